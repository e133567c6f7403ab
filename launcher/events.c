#include "launcher/events.h"

#include <errno.h>
#include <stdio.h>

#include <curl/curl.h>

#include "base/clock.h"
#include "launcher/sse.h"

/* The server says something each 10 s. */
#define SILENCE_NS (30 * MU_NS_PER_S)

struct cli_events {
    struct cli_http *http;
    CURL *curl;
    CURLM *multi;
    bool added;
    struct cli_sse sse;
    struct mu_buf *body; /* Of the call that waits. */
    int64_t timeout_ns;
    int64_t silent_at_ns; /* When it has said nothing for too long. */
    int trouble;          /* Of reading; a negative errno. */
    bool fresh;           /* `body` has an event that nobody was given. */
};

static size_t on_bytes(char *p, size_t size, size_t n, void *arg)
{
    struct cli_events *s = arg;
    long status = 0;
    (void)curl_easy_getinfo(s->curl, CURLINFO_RESPONSE_CODE, &status);
    if (status != 200)
        return size * n; /* A sentence, which is not shown. */
    int r = cli_sse_feed(&s->sse, p, size * n, s->body);
    if (r < 0) {
        s->trouble = r;
        return 0; /* libcurl ends the transfer. */
    }
    s->fresh = s->fresh || r > 0;
    s->silent_at_ns = mu_now_ns() + SILENCE_NS;
    return size * n;
}

static bool prepare(struct cli_events *s, const char *path)
{
    char url[3072];
    int n = snprintf(url, sizeof url, "http://%s%s", cli_http_where(s->http), path);
    s->curl = curl_easy_duphandle(cli_http_handle(s->http));
    s->multi = curl_multi_init();
    if (s->curl == NULL || s->multi == NULL || n < 0 || (size_t)n >= sizeof url)
        return false;
    (void)curl_easy_setopt(s->curl, CURLOPT_HTTPGET, 1L);
    (void)curl_easy_setopt(s->curl, CURLOPT_TIMEOUT_MS, 0L);
    (void)curl_easy_setopt(s->curl, CURLOPT_CONNECTTIMEOUT_MS, (long)(s->timeout_ns / 1000000) + 1);
    (void)curl_easy_setopt(s->curl, CURLOPT_WRITEFUNCTION, on_bytes);
    (void)curl_easy_setopt(s->curl, CURLOPT_WRITEDATA, s);
    s->added = curl_easy_setopt(s->curl, CURLOPT_URL, url) == CURLE_OK &&
               curl_multi_add_handle(s->multi, s->curl) == CURLM_OK;
    return s->added;
}

struct cli_events *
cli_events_new(struct cli_http *h, const char *path, int64_t timeout_ns, struct mu_err *err)
{
    struct cli_events *s = mu_zalloc(mu_mem_default(), sizeof *s);
    if (s != NULL) {
        s->http = h;
        s->timeout_ns = timeout_ns;
        s->silent_at_ns = mu_now_ns() + timeout_ns;
        cli_sse_init(&s->sse, mu_mem_default(), CLI_BODY_BYTES_MAX);
        if (prepare(s, path))
            return s;
    }
    cli_events_free(s);
    (void)mu_err_set(err, -ENOMEM, "no memory for a connection");
    return NULL;
}

void cli_events_free(struct cli_events *s)
{
    if (s == NULL)
        return;
    if (s->added)
        (void)curl_multi_remove_handle(s->multi, s->curl);
    curl_easy_cleanup(s->curl);
    (void)curl_multi_cleanup(s->multi);
    cli_sse_fini(&s->sse);
    mu_mem_free(mu_mem_default(), s);
}

/* Why it is over. */
static int explain(struct cli_events *s, CURLcode code, struct mu_err *err)
{
    long status = 0;
    (void)curl_easy_getinfo(s->curl, CURLINFO_RESPONSE_CODE, &status);
    if (s->trouble == 0 && code == CURLE_OK && status != 200)
        return mu_err_set(err, -ENODATA, "%s answered with HTTP status %ld",
                          cli_http_where(s->http), status);
    if (code == CURLE_OK)
        return mu_err_set(err, -EPIPE, "the rdzv-server at %s has ended", cli_http_where(s->http));
    return cli_http_explain(s->http, (int)code, s->timeout_ns, err);
}

/* Returns 0 while it goes on. */
static int look(struct cli_events *s, struct mu_err *err)
{
    int left = 0;
    const CURLMsg *m = NULL;
    if (curl_multi_perform(s->multi, &left) != CURLM_OK)
        return mu_err_set(err, -EIO, "the connection to %s fails", cli_http_where(s->http));
    while (!s->fresh && (m = curl_multi_info_read(s->multi, &left)) != NULL)
        if (m->msg == CURLMSG_DONE)
            return explain(s, m->data.result, err);
    return 0;
}

int cli_events_next(struct cli_events *s, int64_t wait_ns, struct mu_buf *body, struct mu_err *err)
{
    int64_t end_ns = mu_now_ns() + wait_ns;
    s->body = body;
    s->fresh = false;
    for (;;) {
        int r = look(s, err);
        int64_t now_ns = mu_now_ns();
        if (r < 0 || s->fresh)
            return r < 0 ? r : 1;
        if (now_ns >= s->silent_at_ns)
            return mu_err_set(err, -ETIMEDOUT, "%s says nothing any more: it is asked anew",
                              cli_http_where(s->http));
        if (now_ns >= end_ns)
            return 0;
        int64_t until_ns = end_ns < s->silent_at_ns ? end_ns : s->silent_at_ns;
        int64_t ms = (until_ns - now_ns) / MU_NS_PER_MS + 1;
        (void)curl_multi_poll(s->multi, NULL, 0, ms < 60000 ? (int)ms : 60000, NULL);
    }
}
