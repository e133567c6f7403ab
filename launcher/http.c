#include "launcher/http.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <curl/curl.h>

struct cli_http {
    CURL *curl;
    char where[300];
    char url[3072]; /* The longest names, each byte as three. */
    size_t url_base;
    char why[CURL_ERROR_SIZE];
};

static size_t on_body(char *p, size_t size, size_t n, void *arg)
{
    struct mu_buf *body = arg;
    if (body->n + size * n > CLI_BODY_BYTES_MAX || mu_buf_add(body, p, size * n) < 0)
        return 0; /* libcurl ends the transfer. */
    return size * n;
}

struct cli_http *cli_http_new(const struct mu_endpoint *server, struct mu_err *err)
{
    struct cli_http *h = mu_zalloc(mu_mem_default(), sizeof *h);
    if (h == NULL || curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK ||
        (h->curl = curl_easy_init()) == NULL) {
        mu_mem_free(mu_mem_default(), h);
        (void)mu_err_set(err, -ENOMEM, "no memory for a connection");
        return NULL;
    }
    const char *form = strchr(server->host, ':') != NULL ? "[%s]:%u" : "%s:%u";
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    (void)snprintf(h->where, sizeof h->where, form, server->host, server->port);
#pragma GCC diagnostic pop
    h->url_base = (size_t)snprintf(h->url, sizeof h->url, "http://%s", h->where);
    (void)curl_easy_setopt(h->curl, CURLOPT_NOPROXY, "*");
    (void)curl_easy_setopt(h->curl, CURLOPT_NOSIGNAL, 1L);
    (void)curl_easy_setopt(h->curl, CURLOPT_PROTOCOLS_STR, "http");
    (void)curl_easy_setopt(h->curl, CURLOPT_ERRORBUFFER, h->why);
    (void)curl_easy_setopt(h->curl, CURLOPT_WRITEFUNCTION, on_body);
    (void)curl_easy_setopt(h->curl, CURLOPT_USERAGENT, "muster/" MUSTER_VERSION);
    return h;
}

void cli_http_free(struct cli_http *h)
{
    if (h == NULL)
        return;
    curl_easy_cleanup(h->curl);
    mu_mem_free(mu_mem_default(), h);
    curl_global_cleanup();
}

const char *cli_http_where(const struct cli_http *h)
{
    return h->where;
}

void *cli_http_handle(const struct cli_http *h)
{
    return h->curl;
}

int cli_http_explain(struct cli_http *h, int code, int64_t timeout_ns, struct mu_err *err)
{
    const char *why = h->why[0] != '\0' ? h->why : curl_easy_strerror((CURLcode)code);
    long sys = 0;
    (void)curl_easy_getinfo(h->curl, CURLINFO_OS_ERRNO, &sys);
    switch (code) { /* curl's list is longer than what a GET meets. */
    case CURLE_COULDNT_RESOLVE_HOST:
        return mu_err_set(
            err, -ENOENT,
            "the name in %s leads to no address: is it spelled right, and known here?", h->where);
    case CURLE_COULDNT_CONNECT:
        return mu_err_set(err, -ECONNREFUSED,
                          "no rdzv-server answers at %s (%s): start one there, or name the right "
                          "one with --rdzv=HOST[:PORT]",
                          h->where, sys != 0 ? strerror((int)sys) : "no connection");
    case CURLE_OPERATION_TIMEDOUT:
        return mu_err_set(err, -ETIMEDOUT,
                          "%s did not answer within %g s: --timeout gives it longer", h->where,
                          (double)timeout_ns / 1e9);
    case CURLE_WRITE_ERROR:
        return mu_err_set(err, -EMSGSIZE, "the answer of %s does not fit into memory", h->where);
    default:
        return mu_err_set(err, -EPROTO,
                          "%s does not answer as an rdzv-server does (%s): is this the right port?",
                          h->where, why);
    }
}

static int perform(struct cli_http *h,
                   const char *path,
                   int64_t timeout_ns,
                   struct mu_buf *body,
                   long *ret,
                   struct mu_err *err)
{
    long ms = (long)(timeout_ns / 1000000);
    mu_buf_reset(body);
    h->why[0] = '\0';
    (void)snprintf(h->url + h->url_base, sizeof h->url - h->url_base, "%s", path);
    (void)curl_easy_setopt(h->curl, CURLOPT_URL, h->url);
    (void)curl_easy_setopt(h->curl, CURLOPT_WRITEDATA, body);
    (void)curl_easy_setopt(h->curl, CURLOPT_TIMEOUT_MS, ms > 0 ? ms : 1);
    CURLcode code = curl_easy_perform(h->curl);
    if (code != CURLE_OK)
        return cli_http_explain(h, (int)code, timeout_ns, err);
    (void)curl_easy_getinfo(h->curl, CURLINFO_RESPONSE_CODE, ret);
    return 0;
}

int cli_http_post(struct cli_http *h,
                  const char *path,
                  int64_t timeout_ns,
                  struct mu_buf *body,
                  long *ret,
                  struct mu_err *err)
{
    (void)curl_easy_setopt(h->curl, CURLOPT_POST, 1L);
    (void)curl_easy_setopt(h->curl, CURLOPT_POSTFIELDS, "");
    (void)curl_easy_setopt(h->curl, CURLOPT_POSTFIELDSIZE, 0L);
    return perform(h, path, timeout_ns, body, ret, err);
}

void cli_http_escape(const struct cli_http *h, struct mu_buf *b, const char *text)
{
    char *escaped = curl_easy_escape(h->curl, text, 0);
    if (escaped == NULL) {
        b->oom = true;
        return;
    }
    (void)mu_buf_adds(b, escaped);
    curl_free(escaped);
}

int cli_http_get(struct cli_http *h,
                 const char *path,
                 int64_t timeout_ns,
                 struct mu_buf *body,
                 struct mu_err *err)
{
    long status = 0;
    int r = perform(h, path, timeout_ns, body, &status, err);
    if (r < 0)
        return r;
    if (status == 200)
        return 0;
    struct mu_str said = mu_str_of(body->p, body->n < 120 ? body->n : 120);
    char shown[160];
    return mu_err_set(err, status == 404 ? -ENODATA : -EPROTO,
                      "%s answered %s with HTTP status %ld: %s", h->where, path, status,
                      mu_quote(shown, sizeof shown, said));
}
