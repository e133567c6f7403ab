/* GET /jobs/ID/logs: the output of a job, from all nodes that have or had it, merged as it comes, a
 * line of JSON each. A node sends as many bytes of text as its credit allows; it gets more when
 * what it sent is on its way to the reader. So a reader that is slow, or a job that writes fast,
 * costs a node's credit of memory at most, and stops nobody else. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include <utlist.h>

#include "base/clock.h"
#include "base/date.h"
#include "base/parse.h"
#include "rendezvous/server/pool.h"

#define HEARTBEAT_MS 5000
/* So much may lie in the stream; the rest waits in `pending`. */
#define STREAM_BYTES (1024U * 1024U)
/* Credit is given back in portions, not line by line. */
#define MORE_BYTES (MU_POOL_CREDIT_BYTES / 4)
/* A node whose job is over says its last words within so many heartbeats. */
#define LAST_BEATS 2

/* What comes from one node. */
struct part {
    uint32_t number;
    uint32_t node;    /* POOL_NONE: nothing more comes. */
    int64_t owed;     /* Bytes of credit to be given back. */
    int64_t again_ms; /* The job was told to start there anew, at this time: when this stream has
                         ended, the next one begins. 0: it was not. */
};

struct tail {
    struct srv *srv;
    struct srv_http_stream *stream; /* NULL: it has not begun, or is over. */
    char job[MU_RUN_ID_BYTES];
    bool follow;
    int64_t rank;
    int64_t since_ms;
    int64_t lines;
    struct part *parts;
    uint32_t part_count;
    struct mu_buf pending;
    uint32_t late_beats; /* Since the job is over. */
    bool broken;         /* A line was lost: it ends without the last one. */
    struct tail *prev;
    struct tail *next;
};

static struct agent *agent_of(const struct srv *s, uint32_t node)
{
    return node != POOL_NONE && node < s->pool->link_cap ? s->pool->links[node] : NULL;
}

static const struct pool_job *job_of(const struct tail *t)
{
    uint32_t slot = pool_find_job(&t->srv->pool->pool, t->job);
    return slot != POOL_NONE ? t->srv->pool->pool.jobs[slot] : NULL;
}

/* --- to the reader --- */

static void push(struct tail *t)
{
    size_t room = http_stream_unsent(t->srv, t->stream);
    room = room < STREAM_BYTES ? STREAM_BYTES - room : 0;
    size_t n = t->pending.n < room ? t->pending.n : room;
    if (n == 0 || http_stream_write(t->srv, t->stream, t->pending.p, n) < 0)
        return; /* With the next `drained`. */
    mu_buf_consume(&t->pending, n);
    if (t->pending.n == 0)
        mu_buf_fini(&t->pending);
}

static void give_back(struct tail *t)
{
    struct srv *s = t->srv;
    struct ctl_msg m;
    if (t->pending.n > 0 || http_stream_unsent(s, t->stream) > STREAM_BYTES / 2)
        return;
    for (uint32_t i = 0; i < t->part_count; i++) {
        struct part *p = &t->parts[i];
        struct agent *a = agent_of(s, p->node);
        if (p->owed < MORE_BYTES || a == NULL)
            continue;
        ctl_init(&m, CTL_MORE);
        m.u.more.stream = p->number;
        m.u.more.credit = p->owed;
        p->owed = 0;
        srv_pool_say(a, &m);
    }
}

static void put_last_line(struct tail *t)
{
    struct mu_json w;
    const struct pool_job *j = job_of(t);
    mu_json_init(&w, &t->pending);
    mu_json_open(&w, '{');
    mu_json_kbool(&w, "end", true);
    mu_json_kstr(&w, "state", j != NULL ? pool_state_name(j->state) : NULL);
    mu_json_key(&w, "exit_status");
    if (j != NULL && pool_is_over(j) && j->exit_status >= 0)
        mu_json_i64(&w, j->exit_status);
    else
        mu_json_null(&w);
    mu_json_close(&w, '}');
    (void)mu_buf_adds(&t->pending, "\n");
}

static void stop_parts(struct tail *t)
{
    struct ctl_msg m;
    for (uint32_t i = 0; i < t->part_count; i++) {
        struct agent *a = agent_of(t->srv, t->parts[i].node);
        if (a != NULL) {
            ctl_init(&m, CTL_UNTAIL);
            m.u.untail.stream = t->parts[i].number;
            srv_pool_say(a, &m);
        }
        t->parts[i].node = POOL_NONE;
    }
}

static bool has_parts(const struct tail *t)
{
    for (uint32_t i = 0; i < t->part_count; i++)
        if (t->parts[i].node != POOL_NONE)
            return true;
    return false;
}

/* Has all been said? */
static void look(struct tail *t)
{
    const struct pool_job *j = job_of(t);
    if (t->stream == NULL)
        return;
    bool over = j == NULL || pool_is_over(j);
    if (!t->broken && ((t->follow && !over) || (has_parts(t) && t->late_beats < LAST_BEATS)))
        return;
    stop_parts(t);
    if (t->pending.n == 0 || t->broken) {
        struct srv_http_stream *st = t->stream;
        if (!t->broken) {
            put_last_line(t);
            if (t->pending.oom || http_stream_write(t->srv, st, t->pending.p, t->pending.n) < 0)
                mu_log(MU_WARN, "tail.broken", "job=%s text=\"no memory for the last line\"",
                       t->job);
        }
        t->stream = NULL; /* on_closed() frees. */
        http_stream_end(t->srv, st);
    }
}

void tail_look(struct srv *s)
{
    struct tail *t = NULL;
    DL_FOREACH(s->pool->tails, t)
    look(t);
}

/* --- which nodes --- */

static void add_part(struct tail *t, uint32_t node, int64_t since_ms)
{
    struct srv *s = t->srv;
    struct agent *a = agent_of(s, node);
    struct ctl_msg m;
    if (a == NULL)
        return;
    for (uint32_t i = 0; i < t->part_count; i++)
        if (t->parts[i].node == node) {
            t->parts[i].again_ms = since_ms;
            return;
        }
    struct part *parts =
        mu_realloc(mu_mem_default(), t->parts, (t->part_count + 1) * sizeof *parts);
    if (parts == NULL)
        return;
    t->parts = parts;
    t->parts[t->part_count++] = (struct part){.number = ++s->pool->streams, .node = node};
    ctl_init(&m, CTL_TAIL);
    m.u.tail.stream = s->pool->streams;
    memcpy(m.u.tail.job, t->job, sizeof m.u.tail.job);
    m.u.tail.follow = t->follow;
    m.u.tail.rank = t->rank;
    m.u.tail.since_ms = since_ms;
    m.u.tail.lines = t->lines;
    m.u.tail.credit = MU_POOL_CREDIT_BYTES;
    srv_pool_say(a, &m);
}

static bool had(const struct pool_job *j, const char *node_id)
{
    for (uint32_t i = 0; i < j->seat_count; i++)
        if (strcmp(j->seats[i].node_id, node_id) == 0)
            return true;
    for (uint32_t i = 0; i < j->past_count; i++)
        if (strcmp(j->past[i], node_id) == 0)
            return true;
    return false;
}

static void add_parts(struct tail *t)
{
    const struct pool *p = &t->srv->pool->pool;
    const struct pool_job *j = job_of(t);
    for (uint32_t n = 0; j != NULL && n < p->node_cap; n++)
        if (p->nodes[n] != NULL && had(j, p->nodes[n]->id))
            add_part(t, n, t->since_ms);
}

/* --- from nodes --- */

static struct tail *find_part(struct srv *s, uint32_t number, uint32_t node, struct part **ret)
{
    struct tail *t = NULL;
    DL_FOREACH(s->pool->tails, t)
    {
        for (uint32_t i = 0; i < t->part_count; i++) {
            if (t->parts[i].number != number || t->parts[i].node != node)
                continue;
            *ret = &t->parts[i];
            return t;
        }
    }
    return NULL;
}

static void put_line(struct tail *t, const struct ctl_output *m, const char *host)
{
    struct mu_json w;
    char at[32];
    mu_json_init(&w, &t->pending);
    mu_json_open(&w, '{');
    mu_json_kstr(&w, "at", m->unix_ms > 0 ? mu_iso8601(m->unix_ms, at) : NULL);
    mu_json_ki64(&w, "unix_ms", m->unix_ms);
    mu_json_kstr(&w, "host", host);
    mu_json_ki64(&w, "rank", m->rank);
    mu_json_kstr(&w, "stream", m->channel == 2 ? "stderr" : "stdout");
    mu_json_kstr(&w, "text", m->text);
    mu_json_close(&w, '}');
    (void)mu_buf_adds(&t->pending, "\n");
}

void tail_output(struct srv *s, struct agent *a, const struct ctl_output *m)
{
    struct part *p = NULL;
    struct tail *t = find_part(s, (uint32_t)m->stream, a->offered, &p);
    if (t == NULL || t->stream == NULL)
        return; /* It was told that nobody reads, and had sent this before. */
    bool says = !m->end || m->text[0] != '\0';
    if (says) {
        put_line(t, m, s->pool->pool.nodes[p->node]->host);
        p->owed += (int64_t)strlen(m->text);
    }
    /* Lines without text need no credit: a node that sends nothing else has no reader long. */
    if (t->pending.oom || t->pending.n > SRV_HTTP_STREAM_BYTES_MAX * 4) {
        mu_log(MU_WARN, "tail.broken",
               "job=%s host=%s text=\"more than its credit, or no memory: "
               "the reader is cut off\"",
               t->job, s->pool->pool.nodes[p->node]->host);
        t->broken = true;
    } else {
        push(t);
        give_back(t);
    }
    if (m->end) {
        p->node = POOL_NONE;
        if (p->again_ms > 0 && !t->broken)
            add_part(t, a->offered, p->again_ms);
    }
    if (m->end || t->broken)
        look(t);
}

void tail_node_gone(struct srv *s, uint32_t node)
{
    struct tail *t = NULL;
    DL_FOREACH(s->pool->tails, t)
    for (uint32_t i = 0; i < t->part_count; i++)
        if (t->parts[i].node == node)
            t->parts[i].node = POOL_NONE;
    tail_look(s);
}

void tail_assigned(struct srv *s, const struct pool_job *j, uint32_t node)
{
    struct tail *t = NULL;
    DL_FOREACH(s->pool->tails, t)
    if (t->stream != NULL && t->follow && strcmp(t->job, j->id) == 0)
        add_part(t, node, mu_unix_ms());
}

/* --- a reader --- */

static void on_opened(void *arg, struct srv_http_stream *st)
{
    struct tail *t = arg;
    t->stream = st;
    add_parts(t);
    look(t);
}

static void on_drained(void *arg)
{
    struct tail *t = arg;
    if (t->stream == NULL)
        return;
    push(t);
    give_back(t);
    look(t);
}

static void on_closed(void *arg)
{
    struct tail *t = arg;
    struct srv_pool *sp = t->srv->pool;
    if (!t->srv->closing)
        stop_parts(t);
    DL_DELETE(sp->tails, t);
    sp->tail_count--;
    if (sp->tail_count == 0 && sp->heartbeat.data != NULL)
        (void)uv_timer_stop(&sp->heartbeat);
    mu_buf_fini(&t->pending);
    mu_mem_free(mu_mem_default(), t->parts);
    mu_mem_free(mu_mem_default(), t);
}

void tail_on_heartbeat(uv_timer_t *timer)
{
    struct srv *s = timer->data;
    struct tail *t = NULL;
    struct tail *next = NULL;
    s->now_ns = mu_now_ns();
    DL_FOREACH_SAFE(s->pool->tails, t, next)
    {
        const struct pool_job *j = job_of(t);
        if (t->stream == NULL)
            continue;
        if (http_stream_unsent(s, t->stream) == 0)
            (void)http_stream_write(s, t->stream, "\n", 1); /* Else it hears of us anyway. */
        t->late_beats = t->follow && (j == NULL || pool_is_over(j)) ? t->late_beats + 1 : 0;
        look(t);
    }
    srv_settle(s);
}

static int number(const struct srv_http_request *q,
                  const char *name,
                  int64_t min,
                  int64_t max,
                  int64_t *ret,
                  struct mu_err *err)
{
    const char *text = srv_query(q, name);
    return text != NULL ? mu_parse_i64(text, min, max, name, ret, err) : 0;
}

static int read_query(const struct srv_http_request *q, struct tail *t, struct mu_err *err)
{
    int64_t follow = 0;
    const char *since = srv_query(q, "since");
    int64_t since_ns = 0;
    t->rank = -2;
    t->since_ms = -1;
    t->lines = -1;
    int r = number(q, "follow", 0, 1, &follow, err);
    if (r == 0)
        r = number(q, "rank", -1, INT32_MAX, &t->rank, err);
    if (r == 0)
        r = number(q, "lines", 0, INT32_MAX, &t->lines, err);
    if (r == 0 && since != NULL) {
        r = mu_parse_seconds(since, 0, MU_SPAN_MAX_NS, "since", &since_ns, err);
        t->since_ms = mu_unix_ms() - since_ns / MU_NS_PER_MS;
        t->since_ms = t->since_ms > 0 ? t->since_ms : 0;
    }
    t->follow = follow != 0;
    return r;
}

void tail_serve(struct srv *s,
                const struct srv_http_request *q,
                struct mu_str name,
                struct srv_http_answer *ret)
{
    struct srv_pool *sp = s->pool;
    struct mu_err err = {0};
    const struct pool_job *j = jobs_named(s, name, ret);
    if (j == NULL)
        return;
    struct tail *t = mu_zalloc(mu_mem_default(), sizeof *t);
    if (t == NULL) {
        *ret = answer_body(500, NULL);
        return;
    }
    int r = read_query(q, t, &err);
    if (r < 0 || sp->tail_count >= MU_POOL_TAILS_MAX) {
        mu_mem_free(mu_mem_default(), t);
        *ret = r < 0 ? answer_refusal(400, err.msg)
                     : answer_refusal(503, "too many read output already: try again later");
        return;
    }
    t->srv = s;
    memcpy(t->job, j->id, sizeof t->job);
    mu_buf_init(&t->pending, mu_mem_default());
    DL_APPEND(sp->tails, t);
    if (sp->tail_count++ == 0)
        srv_pool_beat(s, HEARTBEAT_MS);
    *ret = (struct srv_http_answer){
        .status = 200,
        .content_type = "application/x-ndjson; charset=utf-8",
        .writer = {.opened = on_opened, .drained = on_drained, .closed = on_closed, .arg = t}};
}
