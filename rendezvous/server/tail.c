/* GET /jobs/ID/logs: the output of a job, from all nodes that have or had it, a line of JSON each,
 * in the order of its times; to who follows it, what was there before in that order, and then what
 * comes as it comes. Nodes say when they have caught up (CAUGHT); one that does not, and sends
 * nothing, is waited for no longer than PAST_SILENCE_NS. A node sends as many bytes of text
 * as its credit allows; it gets more when what it sent is on its way to the reader. So a reader
 * that is slow, or a job that writes fast, costs a node's credit of memory at most, and stops
 * nobody else.
 *
 * A node that is away is waited for: by who follows until the job is over, and then for as long as
 * the lease has it back; by others for AWAY_WAIT_NS. When it is back it goes on where it was cut
 * off. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <utlist.h>

#include "base/clock.h"
#include "base/date.h"
#include "base/parse.h"
#include "rendezvous/server/merge.h"
#include "rendezvous/server/pool.h"

#define LOOK_MS 1000
#define HEARTBEAT_LOOKS 5
/* Who does not follow waits so long for nodes that are away. */
#define AWAY_WAIT_NS (5 * MU_NS_PER_S)
/* Who follows waits so long for the next line of a node's past; then its lines come as they come.
 * Looked at each LOOK_MS. */
#define PAST_SILENCE_NS (2 * MU_NS_PER_S)
/* A node that is here and says no word, although its reader would take it. */
#define SILENT_MAX_NS (60 * MU_NS_PER_S)
/* Nodes that only a former life of this server knew have so long at least to come. */
#define LOADED_WAIT_NS (10 * MU_NS_PER_S)
/* So much may lie in the stream; the rest waits in `pending`. */
#define STREAM_BYTES (1024U * 1024U)
/* Credit is given back in portions, not line by line. */
#define MORE_BYTES (MU_POOL_CREDIT_BYTES / 4)
/* More than a node's credit can be: only lines without text, which cost none, are more than that.
 * Then their order is given up rather than the memory. */
#define QUEUE_BYTES_MAX (MU_POOL_CREDIT_BYTES * (sizeof(struct merge_line) + 2))

/* What comes from one node. */
struct part {
    char id[40];
    char host[MU_HOST_BYTES];
    uint32_t number;
    uint32_t node;       /* POOL_NONE: nothing more comes, or not now. */
    bool cut;            /* Its node went away in the middle. */
    int64_t owed;        /* Bytes of credit to be given back. */
    int64_t again_ms;    /* The job was told to start there anew, at this time: when this stream has
                            ended, the next one begins. 0: it was not. */
    int64_t last_ms;     /* Of the last line; 0: none came. */
    uint32_t last_count; /* So many lines had that time. */
    uint32_t skip;       /* So many of them come again, since the node was cut off. */
    bool caught;         /* What was there before is sent, or is not waited for any more. */
    int64_t heard_ns;    /* When it last sent something, or could not. */
    struct merge_queue queue; /* Lines that wait for their turn. */
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
    uint32_t last_part; /* Of which the last line was. */
    struct mu_buf pending;
    int64_t opened_ns;
    int64_t active_ns; /* When something came or went last, or the job was not over yet. */
    bool gathers;      /* It follows, and what was there before is being sent, in order. */
    bool awaits;       /* A node is away, and expected back. */
    bool late;         /* Nothing more is waited for. */
    bool broken;       /* A line was lost: it ends without the last one. */
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
    t->active_ns = t->srv->now_ns;
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

static bool has_queued(const struct tail *t)
{
    for (uint32_t i = 0; i < t->part_count; i++)
        if (merge_bytes(&t->parts[i].queue) > 0)
            return true;
    return false;
}

/* --- who is away --- */

static struct part *part_of(const struct tail *t, const char *node_id)
{
    for (uint32_t i = 0; i < t->part_count; i++)
        if (strcmp(t->parts[i].id, node_id) == 0)
            return &t->parts[i];
    return NULL;
}

static bool is_expected(const struct tail *t, const char *node_id)
{
    const struct srv *s = t->srv;
    const struct pool *p = &s->pool->pool;
    const struct part *part = part_of(t, node_id);
    bool many = false;
    if (node_id[0] == '\0' || (part != NULL && !part->cut))
        return false;
    uint32_t slot = pool_find_node(p, node_id, &many);
    if (slot != POOL_NONE && strcmp(p->nodes[slot]->id, node_id) == 0)
        return !p->nodes[slot]->lost; /* If it is here, it has not said yet what it has. */
    int64_t wait_ns = s->config.lease_ns > LOADED_WAIT_NS ? s->config.lease_ns : LOADED_WAIT_NS;
    return s->now_ns - s->started_ns < wait_ns;
}

static bool expects_nodes(const struct tail *t, const struct pool_job *j)
{
    if (j == NULL || (!t->follow && t->srv->now_ns - t->opened_ns >= AWAY_WAIT_NS))
        return false;
    for (uint32_t i = 0; i < j->seat_count; i++)
        if (j->seats[i].state != POOL_SEAT_VACANT && is_expected(t, j->seats[i].node_id))
            return true;
    for (uint32_t i = 0; i < j->past_count; i++)
        if (is_expected(t, j->past[i]))
            return true;
    return false;
}

/* --- in the order of their times --- */

static void put_line(struct tail *t, const struct merge_line *line, const char *host)
{
    struct mu_json w;
    char at[32];
    mu_json_init(&w, &t->pending);
    mu_json_open(&w, '{');
    mu_json_kstr(&w, "at", line->unix_ms > 0 ? mu_iso8601(line->unix_ms, at) : NULL);
    mu_json_ki64(&w, "unix_ms", line->unix_ms);
    mu_json_kstr(&w, "host", host);
    mu_json_ki64(&w, "rank", line->rank);
    mu_json_kstr(&w, "stream", line->channel == 2 ? "stderr" : "stdout");
    mu_json_kstr(&w, "text", line->text);
    mu_json_close(&w, '}');
    (void)mu_buf_adds(&t->pending, "\n");
}

/* The oldest of the lines that wait; NULL: it is not known yet which that is. Of equal ones that of
 * the same node as before: it may be the rest of a long line. */
static struct part *oldest(struct tail *t, struct merge_line *ret)
{
    struct part *best = NULL;
    struct merge_line line;
    bool known = t->late || !t->awaits || t->gathers;
    bool full = false;
    for (uint32_t i = 0; i < t->part_count; i++) {
        struct part *p = &t->parts[i];
        if (!merge_peek(&p->queue, &line)) {
            known = known && (t->late || p->node == POOL_NONE || p->caught);
            continue;
        }
        full = full || merge_bytes(&p->queue) > QUEUE_BYTES_MAX;
        if (best != NULL &&
            (line.unix_ms > ret->unix_ms || (line.unix_ms == ret->unix_ms && i != t->last_part)))
            continue;
        best = p;
        *ret = line;
    }
    return known || full ? best : NULL;
}

static void merge(struct tail *t)
{
    struct merge_line line;
    struct part *p = NULL;
    while (t->pending.n < STREAM_BYTES && !t->pending.oom && (p = oldest(t, &line)) != NULL) {
        put_line(t, &line, p->host);
        p->owed += (int64_t)line.text_bytes;
        t->last_part = (uint32_t)(p - t->parts);
        merge_drop(&p->queue);
    }
}

/* Which nodes have no past to be waited for any more; without one, lines go straight on. */
static void look_at_past(struct tail *t)
{
    bool waits = false;
    bool slow = t->pending.n > 0; /* The reader is, not the nodes. */
    for (uint32_t i = 0; i < t->part_count; i++) {
        struct part *p = &t->parts[i];
        if (slow || merge_bytes(&p->queue) > 0)
            p->heard_ns = t->srv->now_ns;
        p->caught = p->caught || t->srv->now_ns - p->heard_ns >= PAST_SILENCE_NS;
        waits = waits || (p->node != POOL_NONE && !p->caught);
    }
    merge(t);
    t->gathers = waits || has_queued(t);
}

static void pass_on(struct tail *t)
{
    if (t->gathers)
        look_at_past(t);
    else
        merge(t);
    push(t);
    give_back(t);
}

/* --- the end --- */

static void end(struct tail *t)
{
    struct srv_http_stream *st = t->stream;
    if (!t->broken) {
        put_last_line(t);
        if (t->pending.oom || http_stream_write(t->srv, st, t->pending.p, t->pending.n) < 0)
            mu_log(MU_WARN, "tail.broken", "job=%s text=\"no memory for the last line\"", t->job);
    }
    t->stream = NULL; /* on_closed() frees. */
    http_stream_end(t->srv, st);
}

/* Has all been said? */
static void look(struct tail *t)
{
    const struct pool_job *j = job_of(t);
    struct srv *s = t->srv;
    if (t->stream == NULL)
        return;
    bool goes_on = t->follow && j != NULL && !pool_is_over(j);
    if (goes_on || t->pending.n > 0)
        t->active_ns = s->now_ns;
    t->awaits = !goes_on && !t->late && expects_nodes(t, j);
    t->late = t->late || s->now_ns - t->active_ns >= SILENT_MAX_NS;
    if ((!t->follow || t->gathers) && !t->broken)
        pass_on(t);
    if (!t->broken && (goes_on || (!t->late && (t->awaits || has_parts(t)))))
        return;
    stop_parts(t);
    if (t->broken || (t->pending.n == 0 && !has_queued(t)))
        end(t);
}

void tail_look(struct srv *s)
{
    struct tail *t = NULL;
    DL_FOREACH(s->pool->tails, t)
    look(t);
}

/* --- which nodes --- */

static struct part *new_part(struct tail *t, const struct pool_node *n)
{
    struct part *parts =
        mu_realloc(mu_mem_default(), t->parts, (t->part_count + 1) * sizeof *parts);
    if (parts == NULL)
        return NULL;
    t->parts = parts;
    struct part *p = &parts[t->part_count++];
    *p = (struct part){.node = POOL_NONE};
    memcpy(p->id, n->id, sizeof p->id);
    memcpy(p->host, n->host, sizeof p->host);
    merge_init(&p->queue, mu_mem_default());
    return p;
}

/* restart_ms: where the job starts there for another time; what it wrote before has been sent. */
static void add_part(struct tail *t, uint32_t node, int64_t restart_ms)
{
    struct srv *s = t->srv;
    const struct pool_job *j = job_of(t);
    struct agent *a = agent_of(s, node);
    struct ctl_msg m;
    if (a == NULL)
        return;
    struct part *p = part_of(t, s->pool->pool.nodes[node]->id);
    if (p != NULL && p->node != POOL_NONE) {
        p->again_ms = restart_ms;
        return;
    }
    bool resumes = p != NULL && p->cut && p->last_ms > 0;
    bool restarts = p != NULL && !p->cut;
    if (p == NULL)
        p = new_part(t, s->pool->pool.nodes[node]);
    if (p == NULL)
        return;
    p->node = node;
    p->number = ++s->pool->streams;
    p->cut = false;
    p->owed = 0;
    p->again_ms = 0;
    p->skip = resumes ? p->last_count : 0;
    p->caught = (t->follow && !t->gathers) || restart_ms > 0;
    p->heard_ns = s->now_ns;
    t->active_ns = s->now_ns;
    ctl_init(&m, CTL_TAIL);
    m.u.tail.stream = p->number;
    memcpy(m.u.tail.job, t->job, sizeof m.u.tail.job);
    m.u.tail.follow = t->follow;
    m.u.tail.rank = t->rank;
    m.u.tail.since_ms = resumes ? p->last_ms : restarts ? restart_ms : t->since_ms;
    m.u.tail.lines = resumes ? -1 : t->lines;
    m.u.tail.credit = MU_POOL_CREDIT_BYTES;
    m.u.tail.submitted_ms = j != NULL ? j->submitted_unix_ms : 0;
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
        if (p->nodes[n] != NULL && p->nodes[n]->reported && had(j, p->nodes[n]->id))
            add_part(t, n, 0);
}

void tail_node_back(struct srv *s, uint32_t node)
{
    const char *id = s->pool->pool.nodes[node]->id;
    struct tail *t = NULL;
    DL_FOREACH(s->pool->tails, t)
    {
        const struct pool_job *j = job_of(t);
        const struct part *p = part_of(t, id);
        if (t->stream != NULL && !t->late && j != NULL && had(j, id) && (p == NULL || p->cut))
            add_part(t, node, 0);
    }
    tail_look(s);
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

/* One that was sent already, before the node was cut off. */
static bool comes_again(struct part *p, const struct ctl_output *m)
{
    if (m->unix_ms != p->last_ms) {
        p->last_ms = m->unix_ms;
        p->last_count = 0;
        p->skip = 0;
    }
    if (p->skip > 0) {
        p->skip--;
        return true;
    }
    p->last_count++;
    return false;
}

static void take(struct tail *t, struct part *p, const struct ctl_output *m)
{
    const struct merge_line line = {.unix_ms = m->unix_ms,
                                    .rank = m->rank,
                                    .channel = m->channel,
                                    .text = m->text,
                                    .text_bytes = strlen(m->text)};
    if (comes_again(p, m)) {
        p->owed += (int64_t)line.text_bytes;
    } else if (t->follow && !t->gathers) {
        put_line(t, &line, p->host);
        p->owed += (int64_t)line.text_bytes;
    } else if (merge_add(&p->queue, &line) < 0) {
        t->pending.oom = true;
    }
}

void tail_output(struct srv *s, struct agent *a, const struct ctl_output *m)
{
    struct part *p = NULL;
    struct tail *t = find_part(s, (uint32_t)m->stream, a->offered, &p);
    if (t == NULL || t->stream == NULL)
        return; /* It was told that nobody reads, and had sent this before. */
    t->active_ns = s->now_ns;
    p->heard_ns = s->now_ns;
    if (!m->end || m->text[0] != '\0')
        take(t, p, m);
    if (m->end)
        p->node = POOL_NONE;
    pass_on(t);
    /* Lines without text need no credit: a node that sends nothing else has no reader long. */
    if (t->pending.oom || t->pending.n > SRV_HTTP_STREAM_BYTES_MAX * 4 ||
        merge_bytes(&p->queue) > SRV_HTTP_STREAM_BYTES_MAX * 4) {
        mu_log(MU_WARN, "tail.broken",
               "job=%s host=%s text=\"more than its credit, or no memory: "
               "the reader is cut off\"",
               t->job, p->host);
        t->broken = true;
    }
    if (m->end && p->again_ms > 0 && !t->broken)
        add_part(t, a->offered, p->again_ms);
    if (m->end || t->broken)
        look(t);
}

void tail_caught(struct srv *s, struct agent *a, const struct ctl_caught *m)
{
    struct part *p = NULL;
    struct tail *t = find_part(s, (uint32_t)m->stream, a->offered, &p);
    if (t == NULL || t->stream == NULL)
        return;
    p->caught = true;
    pass_on(t);
}

void tail_node_gone(struct srv *s, uint32_t node)
{
    struct tail *t = NULL;
    DL_FOREACH(s->pool->tails, t)
    for (uint32_t i = 0; i < t->part_count; i++)
        if (t->parts[i].node == node) {
            t->parts[i].node = POOL_NONE;
            t->parts[i].cut = true;
        }
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
    t->opened_ns = t->srv->now_ns;
    t->active_ns = t->srv->now_ns;
    t->gathers = t->follow;
    add_parts(t);
    look(t);
}

static void on_drained(void *arg)
{
    struct tail *t = arg;
    if (t->stream == NULL)
        return;
    push(t);
    pass_on(t);
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
    for (uint32_t i = 0; i < t->part_count; i++)
        merge_fini(&t->parts[i].queue);
    mu_mem_free(mu_mem_default(), t->parts);
    mu_mem_free(mu_mem_default(), t);
}

void tail_on_heartbeat(uv_timer_t *timer)
{
    struct srv *s = timer->data;
    struct tail *t = NULL;
    struct tail *next = NULL;
    s->now_ns = mu_now_ns();
    bool beats = ++s->pool->looks % HEARTBEAT_LOOKS == 0;
    DL_FOREACH_SAFE(s->pool->tails, t, next)
    {
        if (t->stream == NULL)
            continue;
        if (http_stream_unsent(s, t->stream) > 0)
            t->active_ns = s->now_ns; /* The reader is slow, not the nodes. */
        else if (beats)
            (void)http_stream_write(s, t->stream, "\n", 1);
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

static struct srv_http_answer too_many(void)
{
    char text[200];
    (void)snprintf(
        text, sizeof text,
        "%d read the output of jobs already, which is as many as this server serves: end "
        "a muster logs or muster attach that nobody needs, or try again later",
        MU_POOL_TAILS_MAX);
    return answer_refusal(503, text);
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
        *ret = r < 0 ? answer_refusal(400, err.msg) : too_many();
        return;
    }
    t->srv = s;
    memcpy(t->job, j->id, sizeof t->job);
    mu_buf_init(&t->pending, mu_mem_default());
    DL_APPEND(sp->tails, t);
    if (sp->tail_count++ == 0)
        srv_pool_beat(s, LOOK_MS);
    *ret = (struct srv_http_answer){
        .status = 200,
        .content_type = "application/x-ndjson; charset=utf-8",
        .writer = {.opened = on_opened, .drained = on_drained, .closed = on_closed, .arg = t}};
}
