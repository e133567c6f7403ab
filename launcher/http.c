#include "launcher/http.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <curl/curl.h>

#include "launcher/token.h"

struct cli_http {
    CURL *curl;
    char where[300];
    char url[3072]; /* The longest names, each byte as three. */
    size_t url_base;
    char why[CURL_ERROR_SIZE];
    char token_file[CLI_PATH_BYTES]; /* "": none was found. */
    bool has_token;
    bool asked;              /* It wants the token of who only looks, too. */
    struct curl_slist *json; /* Fields of a request with a body. */
};

static size_t on_body(char *p, size_t size, size_t n, void *arg)
{
    struct mu_buf *body = arg;
    if (body->n + size * n > CLI_BODY_BYTES_MAX || mu_buf_add(body, p, size * n) < 0)
        return 0; /* libcurl ends the transfer. */
    return size * n;
}

/* A change needs the token wherever one does, so it comes with it. Who only looks says it where it
 * is asked for (401), and not to every machine that is named. */
static void authorize(const struct cli_http *h, bool at_once)
{
    unsigned long how = at_once ? CURLAUTH_BEARER : CURLAUTH_BEARER | CURLAUTH_ONLY;
    if (h->has_token)
        (void)curl_easy_setopt(h->curl, CURLOPT_HTTPAUTH, how);
}

static int take_token(struct cli_http *h, const struct cli_options *o, struct mu_err *err)
{
    struct mu_token token;
    int r = cli_token_find(o, &token, h->token_file, err);
    h->has_token = r == 0 && mu_token_is_set(&token);
    if (h->has_token)
        (void)curl_easy_setopt(h->curl, CURLOPT_XOAUTH2_BEARER, token.text);
    mu_token_wipe(&token);
    authorize(h, true);
    return r;
}

struct cli_http *cli_http_new(const struct cli_options *o, struct mu_err *err)
{
    const struct mu_endpoint *server = &o->server;
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
    h->json = curl_slist_append(NULL, "Content-Type: application/json");
    (void)curl_easy_setopt(h->curl, CURLOPT_NOPROXY, "*");
    (void)curl_easy_setopt(h->curl, CURLOPT_NOSIGNAL, 1L);
    (void)curl_easy_setopt(h->curl, CURLOPT_PROTOCOLS_STR, "http");
    (void)curl_easy_setopt(h->curl, CURLOPT_ERRORBUFFER, h->why);
    (void)curl_easy_setopt(h->curl, CURLOPT_WRITEFUNCTION, on_body);
    (void)curl_easy_setopt(h->curl, CURLOPT_USERAGENT, "muster/" MUSTER_VERSION);
    if (take_token(h, o, err) < 0) {
        cli_http_free(h);
        return NULL;
    }
    return h;
}

void cli_http_free(struct cli_http *h)
{
    if (h == NULL)
        return;
    curl_easy_cleanup(h->curl);
    curl_slist_free_all(h->json);
    mu_mem_free(mu_mem_default(), h);
    curl_global_cleanup();
}

const char *cli_http_where(const struct cli_http *h)
{
    return h->where;
}

int cli_http_unauthorized(const struct cli_http *h, struct mu_err *err)
{
    return cli_token_wanted(h->where, h->token_file, err);
}

/* Why a transfer failed, by libcurl's code: a negative errno and its sentence. */
static int explain(struct cli_http *h, int code, int64_t timeout_ns, struct mu_err *err)
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
        return explain(h, (int)code, timeout_ns, err);
    (void)curl_easy_getinfo(h->curl, CURLINFO_RESPONSE_CODE, ret);
    return 0;
}

int cli_http_look(struct cli_http *h,
                  const char *path,
                  int64_t timeout_ns,
                  struct mu_buf *body,
                  long *ret,
                  struct mu_err *err)
{
    (void)curl_easy_setopt(h->curl, CURLOPT_HTTPGET, 1L);
    return perform(h, path, timeout_ns, body, ret, err);
}

/* A body of the type that `fields` tell, or none. Afterwards the handle asks with GET again. */
static int send_body(struct cli_http *h,
                     const char *method,
                     const char *path,
                     struct curl_slist *fields,
                     struct mu_str request,
                     int64_t timeout_ns,
                     struct mu_buf *body,
                     long *ret,
                     struct mu_err *err)
{
    (void)curl_easy_setopt(h->curl, CURLOPT_POST, 1L);
    (void)curl_easy_setopt(h->curl, CURLOPT_CUSTOMREQUEST, method);
    (void)curl_easy_setopt(h->curl, CURLOPT_POSTFIELDS, request.n > 0 ? request.p : "");
    (void)curl_easy_setopt(h->curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)request.n);
    (void)curl_easy_setopt(h->curl, CURLOPT_HTTPHEADER, fields);
    int r = perform(h, path, timeout_ns, body, ret, err);
    (void)curl_easy_setopt(h->curl, CURLOPT_HTTPHEADER, NULL);
    (void)curl_easy_setopt(h->curl, CURLOPT_POSTFIELDS, "");
    (void)curl_easy_setopt(h->curl, CURLOPT_CUSTOMREQUEST, NULL);
    (void)curl_easy_setopt(h->curl, CURLOPT_HTTPGET, 1L);
    return r;
}

int cli_http_send(struct cli_http *h,
                  const char *method,
                  const char *path,
                  const struct mu_buf *request,
                  int64_t timeout_ns,
                  struct mu_buf *body,
                  long *ret,
                  struct mu_err *err)
{
    struct mu_str text = request != NULL ? mu_str_of(request->p, request->n) : mu_str_of("", 0);
    return send_body(h, method, path, h->json, text, timeout_ns, body, ret, err);
}

int cli_http_post(struct cli_http *h,
                  const char *path,
                  int64_t timeout_ns,
                  struct mu_buf *body,
                  long *ret,
                  struct mu_err *err)
{
    return send_body(h, "POST", path, NULL, mu_str_of("", 0), timeout_ns, body, ret, err);
}

int cli_http_octets(struct cli_http *h,
                    const char *method,
                    const char *path,
                    struct mu_str request,
                    int64_t timeout_ns,
                    struct mu_buf *body,
                    long *ret,
                    struct mu_err *err)
{
    struct curl_slist *fields = curl_slist_append(NULL, "Content-Type: application/octet-stream");
    int r = send_body(h, method, path, fields, request, timeout_ns, body, ret, err);
    curl_slist_free_all(fields);
    return r;
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
    long ways = 0;
    authorize(h, h->asked);
    int r = perform(h, path, timeout_ns, body, &status, err);
    (void)curl_easy_getinfo(h->curl, CURLINFO_HTTPAUTH_AVAIL, &ways);
    h->asked = h->asked || ways != 0;
    authorize(h, true);
    if (r < 0)
        return r;
    if (status == 200)
        return 0;
    if (status == 401)
        return cli_http_unauthorized(h, err);
    struct mu_str said = mu_str_of(body->p, body->n < 120 ? body->n : 120);
    char shown[160];
    return mu_err_set(err, status == 404 ? -ENODATA : -EPROTO,
                      "%s answered %s with HTTP status %ld: %s", h->where, path, status,
                      mu_quote(shown, sizeof shown, said));
}

/* --- an answer that goes on --- */

struct cli_stream {
    struct cli_http *h;
    CURL *curl;
    CURLM *multi;
    struct mu_buf *in; /* While curl runs. */
    int64_t connect_ns;
};

static size_t on_stream(char *p, size_t size, size_t n, void *arg)
{
    const struct cli_stream *st = arg;
    return mu_buf_add(st->in, p, size * n) == 0 ? size * n : 0;
}

void cli_stream_close(struct cli_stream *st)
{
    if (st == NULL)
        return;
    if (st->multi != NULL && st->curl != NULL)
        (void)curl_multi_remove_handle(st->multi, st->curl);
    curl_easy_cleanup(st->curl);
    (void)curl_multi_cleanup(st->multi);
    mu_mem_free(mu_mem_default(), st);
}

struct cli_stream *
cli_stream_open(struct cli_http *h, const char *path, int64_t connect_ns, struct mu_err *err)
{
    struct cli_stream *st = mu_zalloc(mu_mem_default(), sizeof *st);
    if (st != NULL) {
        st->multi = curl_multi_init();
        st->curl = curl_easy_duphandle(h->curl); /* Its token too. */
    }
    if (st == NULL || st->multi == NULL || st->curl == NULL) {
        cli_stream_close(st);
        (void)mu_err_set(err, -ENOMEM, "no memory for a connection");
        return NULL;
    }
    st->h = h;
    st->connect_ns = connect_ns;
    h->why[0] = '\0';
    (void)snprintf(h->url + h->url_base, sizeof h->url - h->url_base, "%s", path);
    (void)curl_easy_setopt(st->curl, CURLOPT_URL, h->url);
    (void)curl_easy_setopt(st->curl, CURLOPT_HTTPGET, 1L);
    (void)curl_easy_setopt(st->curl, CURLOPT_ERRORBUFFER, h->why);
    (void)curl_easy_setopt(st->curl, CURLOPT_WRITEFUNCTION, on_stream);
    (void)curl_easy_setopt(st->curl, CURLOPT_WRITEDATA, st);
    (void)curl_easy_setopt(st->curl, CURLOPT_TIMEOUT_MS, 0L);
    (void)curl_easy_setopt(st->curl, CURLOPT_CONNECTTIMEOUT_MS, (long)(connect_ns / 1000000));
    (void)curl_multi_add_handle(st->multi, st->curl);
    return st;
}

enum cli_flow cli_stream_wait(
    struct cli_stream *st, int fd, int64_t timeout_ns, struct mu_buf *in, struct mu_err *err)
{
    struct curl_waitfd extra = {.fd = fd, .events = CURL_WAIT_POLLIN};
    int64_t ms = timeout_ns / 1000000 + 1;
    int running = 0;
    int left = 0;
    size_t before = in->n;
    st->in = in;
    CURLMcode code = curl_multi_perform(st->multi, &running);
    if (code == CURLM_OK && running > 0 && in->n == before) {
        (void)curl_multi_poll(st->multi, &extra, fd >= 0, ms < INT32_MAX ? (int)ms : INT32_MAX,
                              NULL);
        code = curl_multi_perform(st->multi, &running);
    }
    if (code != CURLM_OK) {
        (void)mu_err_set(err, -EIO, "%s", curl_multi_strerror(code));
        return CLI_BROKEN;
    }
    const CURLMsg *m = curl_multi_info_read(st->multi, &left);
    if (m == NULL || m->msg != CURLMSG_DONE)
        return CLI_FLOWS;
    if (m->data.result == CURLE_OK)
        return CLI_ENDED;
    (void)explain(st->h, (int)m->data.result, st->connect_ns, err);
    return CLI_BROKEN;
}

long cli_stream_status(const struct cli_stream *st)
{
    long status = 0;
    (void)curl_easy_getinfo(st->curl, CURLINFO_RESPONSE_CODE, &status);
    return status;
}
