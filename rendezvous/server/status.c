/* GET /status: everything a person or a tool asks first, written straight into one buffer. Names
 * and meanings are promised by docs/status.md and docs/status.schema.json; change all three
 * together. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <utlist.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/parse.h"
#include "rendezvous/server/internal.h"
#include "rendezvous/server/pool.h"

/* A status that a reader may still be being sent is not written over: the next one is another. */
struct srv_status {
    struct mu_buf text;
    uint32_t readers; /* And one while it is srv->status. */
};

/* State of the writing: times repeat (a round's workers start together), so the last text is kept.
 */
struct page {
    struct mu_json w;
    int64_t now_ns;
    int64_t page_unix_ms;
    int64_t unix_ms; /* Of `text`. */
    char text[32];
};

static const char *time_text(struct page *p, int64_t unix_ms)
{
    if (p->unix_ms != unix_ms) {
        (void)mu_iso8601(unix_ms, p->text);
        p->unix_ms = unix_ms;
    }
    return p->text;
}

/* null for 0: it has not happened. */
static void put_time(struct page *p, const char *key, int64_t unix_ms)
{
    mu_json_key(&p->w, key);
    if (unix_ms == 0) {
        mu_json_null(&p->w);
        return;
    }
    mu_json_str(&p->w, time_text(p, unix_ms));
}

/* null for what is not known. */
static void put_known(struct page *p, const char *key, bool known, int64_t v)
{
    mu_json_key(&p->w, key);
    if (known)
        mu_json_i64(&p->w, v);
    else
        mu_json_null(&p->w);
}

static void put_signal(struct page *p, bool known, int signo)
{
    char buf[16];
    put_known(p, "signal", known, signo);
    mu_json_kstr(&p->w, "signal_name", known ? mu_signal_name(signo, buf) : NULL);
}

/* --- server --- */

/* Pages in memory, from /proc/self/statm; 0: cannot be known. */
int64_t status_resident_bytes(void)
{
    char text[128];
    MU_CLEANUP(mu_closep) int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (n <= 0)
        return 0;
    text[n] = '\0';
    char *second = strchr(text, ' ');
    if (second == NULL)
        return 0;
    second++;
    second[strcspn(second, " \n")] = '\0';
    int64_t pages = 0;
    return mu_parse_i64(second, 0, INT64_MAX / 65536, "statm", &pages, NULL) == 0
               ? pages * sysconf(_SC_PAGESIZE)
               : 0;
}

const char *const status_store_ops[STORE_COMMAND_COUNT] = {
    "validate",   "set",        "compare_set", "get",       "add",       "check",       "wait",
    "num_keys",   "delete_key", "append",      "multi_get", "multi_set", "cancel_wait", "ping",
    "queue_push", "queue_pop",  "queue_len",   "list_keys", "barrier"};

static void put_store(struct page *p, const struct srv *s)
{
    mu_json_key(&p->w, "store");
    if (s->store == NULL) {
        mu_json_null(&p->w);
        return;
    }
    struct store_stats st;
    store_get_stats(s->store, &st);
    mu_json_open(&p->w, '{');
    mu_json_ki64(&p->w, "clients", (int64_t)st.clients);
    mu_json_ki64(&p->w, "keys", (int64_t)st.keys);
    mu_json_ki64(&p->w, "queues", (int64_t)st.queues);
    mu_json_ki64(&p->w, "waiting", (int64_t)st.waiting);
    mu_json_ki64(&p->w, "memory_bytes", (int64_t)st.memory_bytes);
    mu_json_key(&p->w, "ops");
    mu_json_open(&p->w, '{');
    for (size_t i = 0; i < STORE_COMMAND_COUNT; i++)
        mu_json_ki64(&p->w, status_store_ops[i], (int64_t)st.ops[i]);
    mu_json_close(&p->w, '}');
    mu_json_close(&p->w, '}');
}

static void put_server(struct page *p, const struct srv *s)
{
    mu_json_key(&p->w, "server");
    mu_json_open(&p->w, '{');
    mu_json_ki64(&p->w, "pid", getpid());
    mu_json_ki64(&p->w, "connections", s->conn_count);
    mu_json_ki64(&p->w, "connections_max", s->config.connections_max);
    mu_json_ki64(&p->w, "connections_accepted", (int64_t)s->accepted_count);
    mu_json_ki64(&p->w, "agents", s->agent_count);
    mu_json_ki64(&p->w, "jobs_live", s->live_jobs);
    mu_json_ki64(&p->w, "jobs_ended", s->ended_count);
    mu_json_ki64(&p->w, "memory_bytes", status_resident_bytes());
    mu_json_ki64(&p->w, "lease_ms", s->config.lease_ns / MU_NS_PER_MS);
    mu_json_ki64(&p->w, "beat_ms", s->config.beat_ns / MU_NS_PER_MS);
    mu_json_kstr(&p->w, "state", state_sentence(s));
    put_store(p, s);
    mu_json_close(&p->w, '}');
}

/* --- jobs --- */

void status_put_cause(struct mu_json *w, const struct mu_cause *c)
{
    struct page p = {.w = *w};
    struct mu_buf sentence;
    if (c->kind == MU_CAUSE_NONE) {
        mu_json_null(w);
        return;
    }
    mu_buf_init(&sentence, mu_mem_default());
    mu_cause_sentence(c, &sentence);
    mu_json_open(&p.w, '{');
    mu_json_kstr(&p.w, "kind", mu_cause_kind_text(c->kind));
    mu_json_key(&p.w, "sentence");
    mu_json_strn(&p.w, mu_str_of(sentence.p, sentence.n));
    mu_json_kstr(&p.w, "message", c->message[0] != '\0' ? c->message : NULL);
    mu_json_kstr(&p.w, "host", c->host[0] != '\0' ? c->host : NULL);
    put_known(&p, "node_rank", c->node_rank >= 0, c->node_rank);
    put_known(&p, "rank", c->rank >= 0, c->rank);
    put_known(&p, "local_rank", c->local_rank >= 0, c->local_rank);
    put_known(&p, "pid", c->pid > 0, c->pid);
    put_known(&p, "exit_code", c->kind == MU_CAUSE_WORKER_EXIT, c->exit_code);
    put_signal(&p, c->kind == MU_CAUSE_WORKER_SIGNAL, c->signo);
    mu_json_kbool(&p.w, "core_dumped", c->core_dumped != 0);
    mu_json_kbool(&p.w, "out_of_memory", c->out_of_memory != 0);
    put_known(&p, "blamed_rank", c->blame >= 0, c->blame);
    put_known(&p, "step", c->step >= 0, c->step);
    mu_json_ki64(&p.w, "round", c->round);
    put_time(&p, "at", c->at_unix_ms);
    mu_json_close(&p.w, '}');
    mu_buf_fini(&sentence);
    *w = p.w;
}

static void put_cause(struct page *p, const struct job *j)
{
    mu_json_key(&p->w, "last_cause");
    if (j->has_cause)
        status_put_cause(&p->w, &j->cause);
    else
        mu_json_null(&p->w);
}

static const char *worker_state(const struct job_node *n, const struct job_worker *w)
{
    if (w->exit == 0)
        return "succeeded";
    if (w->exit == JOB_EXIT_UNKNOWN)
        return "unknown";
    if (w->exit != JOB_EXIT_NONE)
        return w->exit > 0 ? "failed" : "killed";
    switch (n->state) {
    case JOB_NODE_STARTING:
        return "starting";
    case JOB_NODE_RUNNING:
        return "running";
    case JOB_NODE_STOPPING:
        return "stopping";
    case JOB_NODE_FINISHED:
        return "succeeded";
    case JOB_NODE_WAITING:
    case JOB_NODE_STOPPED:
    case JOB_NODE_LOST:
    case JOB_NODE_STATE_COUNT:
        break;
    }
    return "unknown";
}

/* Nodes and their workers are nearly all of a large page: their text is put together by hand, which
 * takes a tenth of the time. Longest worker: numbers of 20 digits, the longest state and name, a
 * time; longest node, without the texts that need escapes: the same. */
#define WORKER_BYTES 448
#define NODE_BYTES 512

/* The text is a literal: its length is known. PUT: into a buffer, where lost bytes show in oom. */
#define ADD(p, text) ((char *)memcpy((p), (text), sizeof(text) - 1) + (sizeof(text) - 1))
#define PUT(b, text) ((void)mu_buf_add((b), (text), sizeof(text) - 1))

static char *add_text(char *p, const char *text)
{
    size_t n = strlen(text);
    memcpy(p, text, n);
    return p + n;
}

static char *add_number(char *p, int64_t v)
{
    char digits[24];
    char *end = digits + sizeof digits;
    char *at = end;
    uint64_t rest = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    do {
        *--at = (char)('0' + rest % 10);
        rest /= 10;
    } while (rest > 0);
    if (v < 0)
        *--at = '-';
    memcpy(p, at, (size_t)(end - at));
    return p + (end - at);
}

/* null for what is not known. */
static char *add_known(char *p, bool known, int64_t v)
{
    return known ? add_number(p, v) : ADD(p, "null");
}

/* null for no text; it needs no escapes. */
static char *add_quoted(char *p, const char *text)
{
    if (text == NULL)
        return ADD(p, "null");
    *p++ = '"';
    p = add_text(p, text);
    *p++ = '"';
    return p;
}

/* How a worker is: what follows its pid. */
static char *
add_state(char *p, const struct job_node *n, const struct job_worker *w, const char *started)
{
    bool ended = w->exit != JOB_EXIT_NONE && w->exit != JOB_EXIT_UNKNOWN;
    bool killed = ended && w->exit < 0;
    char name[16];
    p = ADD(p, ",\"state\":");
    p = add_quoted(p, worker_state(n, w));
    p = ADD(p, ",\"exit_code\":");
    p = add_known(p, ended && !killed, w->exit);
    p = ADD(p, ",\"signal\":");
    p = add_known(p, killed, -(int64_t)w->exit);
    p = ADD(p, ",\"signal_name\":");
    p = add_quoted(p, killed ? mu_signal_name(-w->exit, name) : NULL);
    p = ADD(p, ",\"started_at\":");
    p = add_quoted(p, started);
    p = ADD(p, ",\"step\":");
    p = add_known(p, w->step >= 0, w->step);
    p = add_text(p, ",\"silent_since\":");
    char since[32];
    if (w->silent_unix_ms != 0 && !ended)
        (void)mu_iso8601(w->silent_unix_ms, since);
    p = add_quoted(p, w->silent_unix_ms != 0 && !ended ? since : NULL);
    *p++ = '}';
    return p;
}

/* Most workers of a node are as the one before. */
static void put_workers(struct mu_buf *b, const struct job_node *n, const char *started)
{
    char state[WORKER_BYTES];
    size_t state_bytes = 0; /* Of a worker that is as `like`. */
    struct job_worker like = {0};
    for (uint32_t i = 0; i < n->hello.nproc; i++) {
        const struct job_worker *w = &n->workers[i];
        if (mu_buf_reserve(b, WORKER_BYTES) < 0)
            return; /* It shows in oom. */
        if (state_bytes == 0 || w->exit != like.exit || w->silent_unix_ms != like.silent_unix_ms ||
            w->step != like.step) {
            like = *w;
            state_bytes = (size_t)(add_state(state, n, w, started) - state);
        }
        char *p = b->p + b->n;
        p = i > 0 ? ADD(p, ",{\"rank\":") : ADD(p, "{\"rank\":");
        p = add_number(p, n->rank_base + (int64_t)i);
        p = ADD(p, ",\"local_rank\":");
        p = add_number(p, i);
        p = ADD(p, ",\"pid\":");
        p = add_known(p, w->pid > 0, w->pid);
        memcpy(p, state, state_bytes);
        b->n = (size_t)(p - b->p) + state_bytes;
        MU_ASSERT(b->n <= b->cap);
    }
}

/* A node has workers to show when it is, or was last, in a round. */
static bool had_workers(const struct job *j, const struct job_node *n)
{
    return n->in_round || (n->node_rank >= 0 && (n->started_unix_ms != 0 || job_is_ended(j)));
}

/* What needs no escapes, between the texts that may. */
static void put_facts(struct page *p, const struct job_node *n)
{
    struct mu_buf *b = p->w.buf;
    const struct job_hello *h = &n->hello;
    if (mu_buf_reserve(b, NODE_BYTES) < 0)
        return; /* It shows in oom. */
    char *at = b->p + b->n;
    at = ADD(at, ",\"node_rank\":");
    at = add_known(at, n->node_rank >= 0, n->node_rank);
    at = ADD(at, ",\"state\":");
    at = add_quoted(at, job_node_shown(n));
    at = ADD(at, ",\"connected\":");
    at = n->connected ? ADD(at, "true") : ADD(at, "false");
    at = ADD(at, ",\"rank_base\":");
    at = add_known(at, n->node_rank >= 0, n->rank_base);
    at = ADD(at, ",\"workers_count\":");
    at = add_number(at, h->nproc);
    at = ADD(at, ",\"cpus\":");
    at = add_number(at, h->cpus);
    at = ADD(at, ",\"gpus\":");
    at = add_number(at, h->gpus);
    at = ADD(at, ",\"pid\":");
    at = add_number(at, h->pid);
    at = ADD(at, ",\"joined_at\":");
    at = add_quoted(at, n->joined_unix_ms != 0 ? time_text(p, n->joined_unix_ms) : NULL);
    at = ADD(at, ",\"heard_ms_ago\":");
    int64_t silent_ms = (p->now_ns - n->heard_ns) / MU_NS_PER_MS;
    at = add_number(at, silent_ms > 0 ? silent_ms : 0);
    b->n = (size_t)(at - b->p);
    MU_ASSERT(b->n <= b->cap);
}

/* Why it does not count, and which failures began there: nearly always nothing. */
static void put_troubles(struct page *p, const struct job *j, const struct job_node *n)
{
    struct mu_buf *b = p->w.buf;
    bool unhealthy = n->health == JOB_HEALTH_UNHEALTHY;
    const struct job_blamed *f = NULL;
    uint32_t at = 0;
    uint32_t put = 0;
    PUT(b, ",\"unhealthy\":");
    if (unhealthy) {
        PUT(b, "{\"text\":");
        mu_json_quoted(b, n->unhealthy != NULL ? n->unhealthy : "");
        PUT(b, ",\"since\":");
        mu_json_quoted(b, time_text(p, n->unhealthy_unix_ms));
        PUT(b, "}");
    } else {
        PUT(b, "null");
    }
    PUT(b, ",\"failures\":[");
    while (j->blamed_count > 0 && (f = job_next_blamed(j, n, p->page_unix_ms, &at)) != NULL) {
        (void)mu_buf_addf(b, "%s{\"round\":%u,\"at\":", put++ > 0 ? "," : "", f->round);
        mu_json_quoted(b, time_text(p, f->at_unix_ms));
        PUT(b, ",\"sentence\":");
        mu_json_quoted(b, f->sentence);
        PUT(b, "}");
    }
    PUT(b, "]");
}

/* "drain": who is to leave says why, since when, and until when it has. */
static void put_drain(struct page *p, const struct job_node *n)
{
    struct mu_buf *b = p->w.buf;
    PUT(b, ",\"drain\":");
    if (n->drain == NULL) {
        PUT(b, "null");
        return;
    }
    PUT(b, "{\"reason\":");
    mu_json_quoted(b, n->drain->reason);
    PUT(b, ",\"since\":");
    mu_json_quoted(b, time_text(p, n->drain->since_unix_ms));
    PUT(b, ",\"until\":");
    mu_json_quoted(b, time_text(p, n->drain->until_unix_ms));
    PUT(b, "}");
}

static void put_node(struct page *p, const struct job *j, const struct job_node *n, bool first)
{
    struct mu_buf *b = p->w.buf;
    const struct job_hello *h = &n->hello;
    if (!first)
        PUT(b, ",");
    PUT(b, "{\"host\":");
    mu_json_quoted(b, h->host);
    PUT(b, ",\"id\":");
    mu_json_quoted(b, h->node);
    PUT(b, ",\"address\":");
    mu_json_quoted(b, n->seen_addr);
    put_facts(p, n);
    put_drain(p, n);
    PUT(b, ",\"role\":");
    if (h->role[0] != '\0')
        mu_json_quoted(b, h->role);
    else
        PUT(b, "null");
    PUT(b, ",\"version\":");
    mu_json_quoted(b, h->version);
    put_troubles(p, j, n);
    PUT(b, ",\"workers\":[");
    if (had_workers(j, n))
        put_workers(b, n, n->started_unix_ms != 0 ? time_text(p, n->started_unix_ms) : NULL);
    PUT(b, "]}");
}

/* Members in the order of their ranks, then spares and others in the order of their slots. */
static void put_nodes(struct page *p, const struct job *j)
{
    uint32_t put = 0;
    mu_json_key(&p->w, "nodes");
    mu_json_open(&p->w, '[');
    for (uint32_t r = 0; r < j->round_nodes; r++)
        if (j->members[r] != JOB_NO_NODE && j->nodes[j->members[r]].used)
            put_node(p, j, &j->nodes[j->members[r]], put++ == 0);
    for (uint32_t i = 0; i < j->node_cap; i++) {
        const struct job_node *n = &j->nodes[i];
        if (n->used && !n->in_round)
            put_node(p, j, n, put++ == 0);
    }
    mu_json_close(&p->w, ']');
}

static void lower(char *dst, size_t cap, const char *src)
{
    size_t i = 0;
    for (; src[i] != '\0' && i + 1 < cap; i++)
        dst[i] = src[i] >= 'A' && src[i] <= 'Z' ? (char)(src[i] - 'A' + 'a') : src[i];
    dst[i] = '\0';
}

static void put_span(struct page *p, const char *key, int64_t ns)
{
    mu_json_key(&p->w, key);
    if (ns > 0)
        mu_json_num(&p->w, (double)(ns / MU_NS_PER_MS) / 1000.0);
    else
        mu_json_null(&p->w);
}

static void put_budget(struct page *p, const struct job *j)
{
    const struct job_budget *b = &j->budget;
    mu_json_ki64(&p->w, "restarts_spent", job_spent(j, p->now_ns));
    mu_json_ki64(&p->w, "restarts_given_back", b->given_back);
    mu_json_ki64(&p->w, "max_restarts", j->max_restarts);
    put_span(p, "restart_window_s", b->window_ns);
    put_span(p, "give_back_after_s", b->give_back_ns);
    mu_json_key(&p->w, "give_back_after_steps");
    if (b->give_back_steps > 0)
        mu_json_i64(&p->w, b->give_back_steps);
    else
        mu_json_null(&p->w);
    mu_json_kstr(&p->w, "same_failure", b->same_failure_restart ? "restart" : "end");
}

/* Messages of another round than the live one, by their names. */
static const struct {
    enum ctl_type msg;
    enum job_event_type event;
} those[] = {{CTL_REACHED, JOB_EV_REACHED}, {CTL_STARTED, JOB_EV_STARTED},
             {CTL_EXITED, JOB_EV_EXITED},   {CTL_FAILED, JOB_EV_WORKER_FAILED},
             {CTL_SILENT, JOB_EV_SILENT},   {CTL_FINISHED, JOB_EV_FINISHED},
             {CTL_STOPPED, JOB_EV_STOPPED}, {CTL_BEAT, JOB_EV_BEAT}};

const char *status_stale_name(enum job_event_type event)
{
    for (size_t i = 0; i < MU_COUNT(those); i++)
        if (those[i].event == event)
            return ctl_type_name(those[i].msg);
    return NULL;
}

static void put_stale(struct page *p, const struct job *j)
{
    mu_json_key(&p->w, "stale_messages");
    mu_json_open(&p->w, '{');
    for (size_t i = 0; i < MU_COUNT(those); i++)
        mu_json_ki64(&p->w, ctl_type_name(those[i].msg), j->stale_count[those[i].event]);
    mu_json_close(&p->w, '}');
}

static void put_job(struct page *p, const struct srv *s, const struct srv_job *sj)
{
    const struct job *j = &sj->job;
    bool stopped = srv_pool_stopped(s, sj);
    char state[24];
    struct mu_buf sentence;
    mu_buf_init(&sentence, mu_mem_default());
    if (stopped)
        (void)mu_buf_adds(&sentence, "stopped: it was asked to stop");
    else
        job_sentence(j, p->now_ns, &sentence);
    lower(state, sizeof state, stopped ? "STOPPED" : job_state_name(j->state));
    mu_json_open(&p->w, '{');
    mu_json_kstr(&p->w, "id", j->run_id);
    mu_json_kstr(&p->w, "state", state);
    mu_json_key(&p->w, "sentence");
    mu_json_strn(&p->w, mu_str_of(sentence.p, sentence.n));
    mu_json_ki64(&p->w, "round", j->round);
    mu_json_ki64(&p->w, "restarts", j->restarts);
    put_budget(p, j);
    mu_json_ki64(&p->w, "nodes_min", j->nodes_min);
    mu_json_ki64(&p->w, "nodes_max", j->nodes_max);
    mu_json_ki64(&p->w, "world", j->world);
    put_time(p, "created_at", j->created_unix_ms);
    put_time(p, "round_started_at", j->round_started_unix_ms);
    put_time(p, "ended_at", j->ended_unix_ms);
    put_cause(p, j);
    mu_json_ki64(&p->w, "consequences", j->consequences);
    put_stale(p, j);
    put_nodes(p, j);
    mu_json_close(&p->w, '}');
    mu_buf_fini(&sentence);
}

/* Those that live first, then ended ones, the last one first: the first in the list is what people
 * ask for. */
static void put_jobs(struct page *p, const struct srv *s)
{
    const struct srv_job *sj = NULL;
    DL_FOREACH(s->jobs, sj)
    if (!sj->ended)
        put_job(p, s, sj);
    const struct srv_job *last = s->jobs != NULL ? s->jobs->prev : NULL;
    for (sj = last; sj != NULL; sj = sj->prev == last ? NULL : sj->prev)
        if (sj->ended)
            put_job(p, s, sj);
}

static void render(const struct srv *s, struct mu_buf *text)
{
    struct page p = {.now_ns = s->now_ns, .page_unix_ms = mu_unix_ms()};
    mu_buf_reset(text);
    mu_json_init(&p.w, text);
    mu_json_open(&p.w, '{');
    mu_json_kstr(&p.w, "version", s->version);
    mu_json_key(&p.w, "uptime_s");
    mu_json_num(&p.w, (double)((s->now_ns - s->started_ns) / MU_NS_PER_MS) / 1000.0);
    put_time(&p, "now", p.page_unix_ms);
    mu_json_kstr(&p.w, "address", s->address);
    put_server(&p, s);
    mu_json_key(&p.w, "jobs");
    mu_json_open(&p.w, '[');
    put_jobs(&p, s);
    mu_json_close(&p.w, ']');
    srv_pool_put(s, &p.w);
    mu_json_close(&p.w, '}');
    (void)mu_buf_adds(text, "\n");
}

/* --- who reads it --- */

void status_release(void *status)
{
    struct srv_status *st = status;
    if (st == NULL || --st->readers > 0)
        return;
    mu_buf_fini(&st->text);
    mu_mem_free(mu_mem_default(), st);
}

/* A status to write into, as long as the last one was. NULL without memory. */
static struct srv_status *fresh(const struct srv_status *last)
{
    struct srv_status *st = mu_zalloc(mu_mem_default(), sizeof *st);
    if (st == NULL)
        return NULL;
    st->readers = 1;
    mu_buf_init(&st->text, mu_mem_default());
    if (last != NULL)
        (void)mu_buf_reserve(&st->text, last->text.n + WORKER_BYTES); /* It shows in oom. */
    return st;
}

struct srv_status *status_take(struct srv *s, struct mu_str *ret)
{
    int64_t begin_ns = mu_now_ns();
    if (s->status == NULL || begin_ns >= s->status_good_until_ns) {
        if (s->status == NULL || s->status->readers > 1) { /* Else it is written over. */
            struct srv_status *st = fresh(s->status);
            status_release(s->status);
            s->status = st;
        }
        if (s->status == NULL)
            return NULL;
        render(s, &s->status->text);
        s->status_changes = s->changes;
        int64_t end_ns = mu_now_ns();
        s->status_good_until_ns = end_ns + SRV_STATUS_REST * (end_ns - begin_ns);
    }
    if (s->status->text.oom) {
        status_release(s->status);
        s->status = NULL;
        return NULL;
    }
    s->status->readers++;
    *ret = mu_str_of(s->status->text.p, s->status->text.n);
    return s->status;
}

void status_serve(struct srv *s,
                  const struct srv_http_request *q,
                  struct mu_str name,
                  struct srv_http_answer *ret)
{
    struct mu_str text;
    (void)q;
    (void)name;
    struct srv_status *st = status_take(s, &text);
    *ret = st != NULL ? answer_owned(200, text, status_release, st)
                      : answer_text(500, NULL, "{\"error\":\"no memory for the status\"}\n");
}
