/* GET /events: the whole status at once and after each change, as server-sent events (HTML Living
 * Standard, 9.2), so that who watches need not ask again and again. What changes close behind each
 * other is told once; a reader that has not taken the last status gets only the newest; and making
 * and sending them takes no more of the loop's time than GET /status may. */
#include <inttypes.h>
#include <stdio.h>

#include <utlist.h>

#include "base/clock.h"
#include "rendezvous/server/internal.h"

#define GAP_NS (50 * MU_NS_PER_MS) /* Between two of them. */
#define AGES_NS MU_NS_PER_S /* What changes all the time, ages and steps, is told so often. */
#define HEARTBEAT_NS                                                                               \
    (10 * MU_NS_PER_S)                   /* Tells a dead reader from one that has nothing to hear. \
                                          */
#define PIECE_BYTES ((size_t)256 * 1024) /* Of a status that are copied for a reader at a time. */
#define NS_PER_BYTE 1           /* What it costs to send one: counted where it is not measured. */
#define RETRY "retry: 1000\n\n" /* Milliseconds until a browser asks anew. */

struct reader {
    struct srv_events *events;
    struct srv_http_stream *stream; /* NULL: it has not begun, or is ended. */
    struct srv_status *status;      /* That it is being sent; NULL: it has all. */
    struct mu_str text;             /* Of `status`. */
    size_t at;
    uint64_t seen; /* The last event that it was given. */
    struct reader *prev;
    struct reader *next;
};

struct srv_events {
    struct srv *srv;
    struct reader *readers;
    uint32_t reader_count;
    uv_timer_t timer;
    uint64_t number;       /* Of the last event. */
    int64_t made_ns;       /* When it was. */
    int64_t not_before_ns; /* The next one. */
    int64_t due_ns;        /* When one is to be made; MU_NEVER: nothing has changed. */
    int64_t heartbeat_ns;  /* When all are to hear something. */
};

/* --- one reader --- */

static void let_go(struct reader *r)
{
    status_release(r->status);
    r->status = NULL;
}

/* It comes back, and then gets the newest. */
static void cut_off(struct reader *r)
{
    let_go(r);
    http_stream_end(r->events->srv, r->stream);
    r->stream = NULL;
}

static bool put(struct reader *r, const void *p, size_t n)
{
    if (http_stream_write(r->events->srv, r->stream, p, n) == 0)
        return true;
    cut_off(r);
    return false;
}

/* The next piece; what follows goes out when it is out. The text ends with the end of its line, and
 * an empty line ends the event. */
static void feed(struct reader *r)
{
    size_t left = r->text.n - r->at;
    size_t n = left < PIECE_BYTES ? left : PIECE_BYTES;
    if (!put(r, r->text.p + r->at, n))
        return;
    r->at += n;
    if (r->at < r->text.n)
        return;
    let_go(r);
    (void)put(r, "\n", 1);
}

/* Returns the status's bytes; 0: there is no memory, and the next change is another try. */
static size_t begin(struct reader *r)
{
    char head[64];
    r->status = status_take(r->events->srv, &r->text);
    if (r->status == NULL)
        return 0;
    r->at = 0;
    r->seen = r->events->number;
    int n = snprintf(head, sizeof head, "id: %" PRIu64 "\nevent: status\ndata: ", r->seen);
    size_t bytes = r->text.n;
    if (put(r, head, (size_t)n))
        feed(r);
    return bytes;
}

static void on_drained(void *arg)
{
    struct reader *r = arg;
    if (r->stream == NULL)
        return;
    if (r->status != NULL)
        feed(r);
    else if (r->seen != r->events->number)
        (void)begin(r);
}

static void on_opened(void *arg, struct srv_http_stream *stream)
{
    struct reader *r = arg;
    r->stream = stream;
    if (put(r, RETRY, sizeof RETRY - 1))
        (void)begin(r);
}

static void on_closed(void *arg)
{
    struct reader *r = arg;
    let_go(r);
    r->events->reader_count--;
    DL_DELETE(r->events->readers, r);
    mu_mem_free(mu_mem_default(), r);
}

/* --- all of them --- */

static void on_timer(uv_timer_t *timer);

static void arm(struct srv_events *e)
{
    int64_t at = e->due_ns < e->heartbeat_ns ? e->due_ns : e->heartbeat_ns;
    int64_t now_ns = mu_now_ns();
    int64_t wait_ms = at > now_ns ? (at - now_ns + MU_NS_PER_MS - 1) / MU_NS_PER_MS : 0;
    uv_update_time(e->srv->loop);
    (void)uv_timer_start(&e->timer, on_timer, (uint64_t)wait_ms, 0);
}

/* Is the status that would be sent older than the last change, and no other to be made yet? */
static bool must_rest(const struct srv *s)
{
    return s->status != NULL && s->status_changes != s->changes &&
           s->now_ns < s->status_good_until_ns;
}

static void make(struct srv_events *e)
{
    struct srv *s = e->srv;
    struct reader *r = NULL;
    struct reader *next = NULL;
    size_t bytes = 0;
    if (must_rest(s)) {
        e->due_ns = s->status_good_until_ns;
        return;
    }
    e->number++;
    e->due_ns = MU_NEVER;
    e->made_ns = s->now_ns;
    DL_FOREACH_SAFE(e->readers, r, next)
    {
        if (r->stream != NULL && r->status == NULL)
            bytes += begin(r);
    }
    int64_t end_ns = mu_now_ns();
    int64_t took_ns = end_ns - s->now_ns + (int64_t)bytes * NS_PER_BYTE;
    int64_t rest_ns = took_ns * SRV_STATUS_REST;
    e->not_before_ns = end_ns + (rest_ns > GAP_NS ? rest_ns : GAP_NS);
    s->metrics.events++;
}

static void heartbeat(struct srv_events *e)
{
    struct reader *r = NULL;
    DL_FOREACH(e->readers, r)
    {
        if (r->stream != NULL && r->status == NULL)
            (void)put(r, ":\n\n", 3);
    }
    e->heartbeat_ns = e->srv->now_ns + HEARTBEAT_NS;
}

static void on_timer(uv_timer_t *timer)
{
    struct srv_events *e = timer->data;
    e->srv->now_ns = mu_now_ns();
    if (e->readers == NULL)
        return; /* The next one arms it. */
    if (e->srv->now_ns >= e->due_ns)
        make(e);
    if (e->srv->now_ns >= e->heartbeat_ns)
        heartbeat(e);
    arm(e);
}

static void tell_at(struct srv *s, int64_t at_ns)
{
    struct srv_events *e = s->events;
    if (at_ns < e->not_before_ns)
        at_ns = e->not_before_ns;
    if (at_ns >= e->due_ns)
        return;
    e->due_ns = at_ns;
    arm(e);
}

static bool has_readers(const struct srv *s)
{
    return s->events != NULL && s->events->readers != NULL && !s->closing;
}

void events_changed(struct srv *s)
{
    s->changes++;
    if (has_readers(s))
        tell_at(s, s->now_ns);
}

void events_aged(struct srv *s)
{
    if (has_readers(s))
        tell_at(s, s->events->made_ns + AGES_NS);
}

uint32_t events_reader_count(const struct srv *s)
{
    return s->events != NULL ? s->events->reader_count : 0;
}

/* --- begin and end --- */

static struct srv_events *events_new(struct srv *s)
{
    struct srv_events *e = mu_zalloc(mu_mem_default(), sizeof *e);
    if (e == NULL)
        return NULL;
    e->srv = s;
    e->due_ns = MU_NEVER;
    (void)uv_timer_init(s->loop, &e->timer); /* Never fails. */
    e->timer.data = e;
    s->handles++;
    return e;
}

static void on_handle_closed(uv_handle_t *h)
{
    struct srv_events *e = h->data;
    srv_handle_closed(e->srv);
}

void events_stop(struct srv *s)
{
    struct srv_events *e = s->events;
    struct reader *r = NULL;
    if (e == NULL)
        return;
    DL_FOREACH(e->readers, r)
    {
        if (r->stream != NULL)
            cut_off(r);
    }
    if (e->readers != NULL)
        http_flush(s); /* They hear the end of it, not of the connection alone. */
    uv_close((uv_handle_t *)&e->timer, on_handle_closed);
}

void events_free(struct srv *s)
{
    mu_mem_free(mu_mem_default(), s->events);
    s->events = NULL;
}

void events_serve(struct srv *s,
                  const struct srv_http_request *q,
                  struct mu_str name,
                  struct srv_http_answer *ret)
{
    (void)q;
    (void)name;
    if (s->closing) {
        *ret = answer_text(503, NULL, "{\"error\":\"this server is ending\"}\n");
        return;
    }
    if (s->events == NULL)
        s->events = events_new(s);
    struct reader *r = s->events != NULL ? mu_zalloc(mu_mem_default(), sizeof *r) : NULL;
    if (r == NULL) {
        *ret = answer_body(500, NULL);
        return;
    }
    struct srv_events *e = s->events;
    bool first = e->readers == NULL;
    r->events = e;
    DL_APPEND(e->readers, r);
    e->reader_count++;
    if (first) { /* What changed meanwhile is in the status that it gets now. */
        e->due_ns = MU_NEVER;
        e->heartbeat_ns = s->now_ns + HEARTBEAT_NS;
        arm(e);
    }
    *ret = (struct srv_http_answer){
        .status = 200,
        .content_type = "text/event-stream",
        .writer = {.opened = on_opened, .drained = on_drained, .closed = on_closed, .arg = r}};
}
