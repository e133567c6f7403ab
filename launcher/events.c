#include "launcher/events.h"

#include <errno.h>

#include "base/clock.h"
#include "launcher/sse.h"

/* The server says something each 10 s. */
#define SILENCE_NS (30 * MU_NS_PER_S)

struct cli_events {
    struct cli_http *http;
    struct cli_stream *stream;
    struct cli_sse sse;
    struct mu_buf in;
    int64_t silent_at_ns; /* When it has said nothing for too long. */
    enum cli_flow flow;   /* Once it is over, what is known of that waits for the events before. */
    struct mu_err why;
};

struct cli_events *
cli_events_new(struct cli_http *h, const char *path, int64_t timeout_ns, struct mu_err *err)
{
    struct cli_events *s = mu_zalloc(mu_mem_default(), sizeof *s);
    if (s == NULL) {
        (void)mu_err_set(err, -ENOMEM, "no memory for a connection");
        return NULL;
    }
    s->http = h;
    s->silent_at_ns = mu_now_ns() + timeout_ns;
    mu_buf_init(&s->in, mu_mem_default());
    cli_sse_init(&s->sse, mu_mem_default(), CLI_BODY_BYTES_MAX);
    s->stream = cli_stream_open(h, path, timeout_ns, err);
    if (s->stream != NULL)
        return s;
    cli_events_free(s);
    return NULL;
}

void cli_events_free(struct cli_events *s)
{
    if (s == NULL)
        return;
    cli_stream_close(s->stream);
    cli_sse_fini(&s->sse);
    mu_buf_fini(&s->in);
    mu_mem_free(mu_mem_default(), s);
}

/* Why it is over. */
static int explain(const struct cli_events *s, struct mu_err *err)
{
    long status = cli_stream_status(s->stream);
    if (s->flow == CLI_BROKEN)
        return mu_err_set(err, s->why.code, "%s", s->why.msg);
    if (status != 200)
        return mu_err_set(err, -ENODATA, "%s answered with HTTP status %ld",
                          cli_http_where(s->http), status);
    return mu_err_set(err, -EPIPE, "the rdzv-server at %s has ended", cli_http_where(s->http));
}

/* What has come. Returns how many events it made whole, or a negative errno with a sentence. */
static int feed(struct cli_events *s, struct mu_buf *body, struct mu_err *err)
{
    int r = 0;
    if (s->in.n > 0 && cli_stream_status(s->stream) == 200) { /* Else a sentence, not shown. */
        r = cli_sse_feed(&s->sse, s->in.p, s->in.n, body);
        s->silent_at_ns = mu_now_ns() + SILENCE_NS;
    }
    mu_buf_reset(&s->in);
    return r < 0 ? mu_err_set(err, -EMSGSIZE, "the answer of %s does not fit into memory",
                              cli_http_where(s->http))
                 : r;
}

int cli_events_next(struct cli_events *s, int64_t wait_ns, struct mu_buf *body, struct mu_err *err)
{
    int64_t end_ns = mu_now_ns() + wait_ns;
    while (s->flow == CLI_FLOWS) {
        int64_t now_ns = mu_now_ns();
        int64_t until_ns = end_ns < s->silent_at_ns ? end_ns : s->silent_at_ns;
        int64_t left_ns = until_ns > now_ns ? until_ns - now_ns : 0;
        s->flow = cli_stream_wait(s->stream, -1, left_ns, &s->in, &s->why);
        int r = feed(s, body, err);
        if (r != 0)
            return r < 0 ? r : 1;
        now_ns = mu_now_ns();
        if (s->flow == CLI_FLOWS && now_ns >= s->silent_at_ns)
            return mu_err_set(err, -ETIMEDOUT, "%s says nothing any more: it is asked anew",
                              cli_http_where(s->http));
        if (s->flow == CLI_FLOWS && now_ns >= end_ns)
            return 0;
    }
    return explain(s, err);
}
