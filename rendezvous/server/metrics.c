/* GET /metrics: what the server counts, and what is, as Prometheus's text format has it (version
 * 0.0.4). The names are in metrics.h, the counting in metrics_count.c. Jobs are named by their ids:
 * those that live, and the last few that ended, so that what is stored of them elsewhere has an
 * end.
 */
#include "rendezvous/server/internal.h"
#include "rendezvous/server/pool.h"

#include <inttypes.h>
#include <string.h>

#include <utlist.h>

#include "base/clock.h"

#define TYPE "text/plain; version=0.0.4; charset=utf-8"
#define ENDED_SHOWN 8

/* --- lines --- */

static void head(struct mu_buf *b, enum srv_metric m)
{
    const struct srv_metric_row *r = &srv_metric_rows[m];
    (void)mu_buf_addf(b, "# HELP %s %s\n# TYPE %s %s\n", r->name, r->help, r->name, r->type);
}

/* What a label's value may not hold as it is; peers chose some of them. */
static void add_value(struct mu_buf *b, const char *text)
{
    size_t n = strlen(text);
    for (size_t at = 0; at < n;) {
        size_t len = mu_utf8_len(text + at, n - at);
        if (text[at] == '\n')
            (void)mu_buf_adds(b, "\\n");
        else if (text[at] == '"' || text[at] == '\\')
            (void)mu_buf_addf(b, "\\%c", text[at]);
        else
            (void)mu_buf_add(b, len > 0 ? text + at : "?", len > 0 ? len : 1);
        at += len > 0 ? len : 1;
    }
}

/* name{label="value"}, and the blank behind it. */
static void add_name(struct mu_buf *b, enum srv_metric m, const char *value)
{
    const struct srv_metric_row *r = &srv_metric_rows[m];
    (void)mu_buf_adds(b, r->name);
    if (value != NULL) {
        (void)mu_buf_addf(b, "{%s=\"", r->labels);
        add_value(b, value);
        (void)mu_buf_adds(b, "\"}");
    }
    (void)mu_buf_adds(b, " ");
}

static void put_u64(struct mu_buf *b, enum srv_metric m, const char *value, uint64_t v)
{
    add_name(b, m, value);
    (void)mu_buf_addf(b, "%" PRIu64 "\n", v);
}

static void put_seconds(struct mu_buf *b, enum srv_metric m, const char *value, double v)
{
    add_name(b, m, value);
    (void)mu_buf_addf(b, "%.3f\n", v);
}

static void put_one(struct mu_buf *b, enum srv_metric m, uint64_t v)
{
    head(b, m);
    put_u64(b, m, NULL, v);
}

/* --- jobs, nodes, rounds --- */

static const char *lower(const char *text, char *ret, size_t cap)
{
    size_t i = 0;
    for (; text[i] != '\0' && i + 1 < cap; i++)
        ret[i] = text[i] >= 'A' && text[i] <= 'Z' ? (char)(text[i] - 'A' + 'a') : text[i];
    ret[i] = '\0';
    return ret;
}

static void put_jobs(struct mu_buf *b, const struct srv *s)
{
    uint64_t counts[JOB_STATE_COUNT] = {0};
    uint64_t stopped = 0;
    const struct srv_job *sj = NULL;
    char state[24];
    DL_FOREACH(s->jobs, sj)
    {
        bool asked = srv_pool_stopped(s, sj);
        stopped += asked;
        counts[sj->job.state] += !asked;
    }
    head(b, SRV_METRIC_JOBS);
    for (size_t i = 0; i < JOB_STATE_COUNT; i++)
        put_u64(b, SRV_METRIC_JOBS, lower(job_state_name((enum job_state)i), state, sizeof state),
                counts[i]);
    put_u64(b, SRV_METRIC_JOBS, "stopped", stopped);
    head(b, SRV_METRIC_JOBS_ENDED);
    put_u64(b, SRV_METRIC_JOBS_ENDED, "succeeded", s->metrics.succeeded);
    put_u64(b, SRV_METRIC_JOBS_ENDED, "failed", s->metrics.failed);
    put_u64(b, SRV_METRIC_JOBS_ENDED, "stopped", s->metrics.stopped);
}

/* As job_node_shown() has them. */
static const char *const shown[] = {"waiting", "starting", "running",  "finished",  "stopping",
                                    "stopped", "lost",     "checking", "unhealthy", "quarantined"};

struct node_counts {
    uint64_t nodes[MU_COUNT(shown)];
    uint64_t workers[JOB_NODE_STATE_COUNT];
    uint64_t draining;
};

static void count_nodes(const struct job *j, struct node_counts *c)
{
    for (uint32_t i = 0; i < j->node_cap; i++) {
        const struct job_node *n = &j->nodes[i];
        if (!n->used)
            continue;
        const char *is = job_node_shown(n);
        for (size_t k = 0; k < MU_COUNT(shown); k++)
            c->nodes[k] += strcmp(shown[k], is) == 0;
        if (n->in_round)
            c->workers[n->state] += (uint64_t)n->hello.nproc;
        c->draining += n->drain != NULL;
    }
}

static void put_nodes(struct mu_buf *b, const struct srv *s)
{
    static const enum job_node_state states[] = {JOB_NODE_STARTING, JOB_NODE_RUNNING,
                                                 JOB_NODE_FINISHED, JOB_NODE_STOPPING};
    struct node_counts c = {0};
    const struct srv_job *sj = NULL;
    DL_FOREACH(s->jobs, sj)
    if (!sj->ended)
        count_nodes(&sj->job, &c);
    head(b, SRV_METRIC_NODES);
    for (size_t i = 0; i < MU_COUNT(shown); i++)
        put_u64(b, SRV_METRIC_NODES, shown[i], c.nodes[i]);
    put_one(b, SRV_METRIC_DRAINING, c.draining);
    head(b, SRV_METRIC_WORKERS);
    for (size_t i = 0; i < MU_COUNT(states); i++)
        put_u64(b, SRV_METRIC_WORKERS, job_node_state_name(states[i]), c.workers[states[i]]);
}

static void put_phases(struct mu_buf *b, const struct srv_metrics *m)
{
#define X(NAME, text) text,
    static const char *const names[] = {SRV_PHASES(X)};
#undef X
    const char *name = srv_metric_rows[SRV_METRIC_PHASES].name;
    head(b, SRV_METRIC_PHASES);
    for (size_t p = 0; p < SRV_PHASE_COUNT; p++) {
        const struct srv_histogram *h = &m->phases[p];
        uint64_t sum = 0;
        for (size_t i = 0; i < SRV_BUCKET_COUNT; i++) {
            sum += h->counts[i];
            (void)mu_buf_addf(b, "%s_bucket{phase=\"%s\",le=\"%g\"} %" PRIu64 "\n", name, names[p],
                              (double)srv_bucket_ms[i] / 1000.0, sum);
        }
        sum += h->counts[SRV_BUCKET_COUNT];
        (void)mu_buf_addf(b, "%s_bucket{phase=\"%s\",le=\"+Inf\"} %" PRIu64 "\n", name, names[p],
                          sum);
        (void)mu_buf_addf(b, "%s_sum{phase=\"%s\"} %.3f\n", name, names[p],
                          (double)h->sum_ms / 1000.0);
        (void)mu_buf_addf(b, "%s_count{phase=\"%s\"} %" PRIu64 "\n", name, names[p], sum);
    }
}

static void put_rounds(struct mu_buf *b, const struct srv_metrics *m)
{
    put_one(b, SRV_METRIC_STARTED, m->started);
    head(b, SRV_METRIC_ROUNDS);
    for (size_t i = 0; i < JOB_DECISION_COUNT; i++)
        put_u64(b, SRV_METRIC_ROUNDS, job_decision_name((enum job_decision)i), m->rounds[i]);
    head(b, SRV_METRIC_RESTARTS);
    for (size_t i = 0; i < MU_CAUSE_KIND_COUNT; i++)
        if (mu_cause_costs_restart((enum mu_cause_kind)i))
            put_u64(b, SRV_METRIC_RESTARTS, mu_cause_kind_text((enum mu_cause_kind)i),
                    m->restarts[i]);
    put_one(b, SRV_METRIC_INCIDENTS, m->incidents);
    put_phases(b, m);
    head(b, SRV_METRIC_STALE);
    for (size_t i = 0; i < JOB_OUTSIDE_EVENT_COUNT; i++) {
        char name[24];
        if (status_stale_name((enum job_event_type)i) != NULL)
            put_u64(b, SRV_METRIC_STALE,
                    lower(status_stale_name((enum job_event_type)i), name, sizeof name),
                    m->stale[i]);
    }
    put_one(b, SRV_METRIC_DRAINS, m->drains);
}

/* --- each job --- */

/* Two jobs of one id are one series: the one that lives, else the one that ended last. */
static bool is_shown_already(const struct srv *s,
                             const struct srv_job *const *v,
                             size_t n,
                             const struct srv_job *sj)
{
    const struct srv_job *known = NULL;
    HASH_FIND_STR(s->by_id, sj->job.run_id, known);
    bool found = known != NULL && !known->ended;
    for (size_t i = 0; i < n && !found; i++)
        found = strcmp(v[i]->job.run_id, sj->job.run_id) == 0;
    return found;
}

static size_t last_ended(const struct srv *s, const struct srv_job **ret)
{
    size_t n = 0;
    const struct srv_job *last = s->jobs != NULL ? s->jobs->prev : NULL;
    for (const struct srv_job *sj = last; sj != NULL && n < ENDED_SHOWN;
         sj = sj->prev == last ? NULL : sj->prev) {
        bool ours = sj->ended && sj->tally.ended_ns != 0; /* Else it ended in a former life. */
        if (ours && !is_shown_already(s, ret, n, sj))
            ret[n++] = sj;
    }
    return n;
}

static void
put_job(struct mu_buf *b, enum srv_metric m, const struct srv *s, const struct srv_job *sj)
{
    const struct job *j = &sj->job;
    double productive_s = (double)metrics_productive_ns(sj) / 1e9;
    double wall_s = (double)metrics_wall_ns(s, sj) / 1e9;
    switch ((int)m) { /* Those that have a job; the list has others. */
    case SRV_METRIC_JOB_ROUND:
        put_u64(b, m, j->run_id, j->round);
        break;
    case SRV_METRIC_JOB_NODES:
        put_u64(b, m, j->run_id, j->node_count);
        break;
    case SRV_METRIC_JOB_WORKERS:
        put_u64(b, m, j->run_id, j->world);
        break;
    case SRV_METRIC_JOB_RESTARTS:
        put_u64(b, m, j->run_id, j->restarts);
        break;
    case SRV_METRIC_JOB_STEP:
        if (sj->tally.top >= 0)
            put_u64(b, m, j->run_id, (uint64_t)sj->tally.top);
        break;
    case SRV_METRIC_PRODUCTIVE:
        put_seconds(b, m, j->run_id, productive_s);
        break;
    case SRV_METRIC_WALL:
        put_seconds(b, m, j->run_id, wall_s);
        break;
    case SRV_METRIC_GOODPUT:
        if (sj->tally.has_steps && wall_s > 0)
            put_seconds(b, m, j->run_id, productive_s / wall_s);
        break;
    }
}

static void put_each_job(struct mu_buf *b, const struct srv *s)
{
    const struct srv_job *ended[ENDED_SHOWN];
    size_t n = last_ended(s, ended);
    for (int m = SRV_METRIC_JOB_ROUND; m <= SRV_METRIC_GOODPUT; m++) {
        const struct srv_job *sj = NULL;
        head(b, (enum srv_metric)m);
        DL_FOREACH(s->jobs, sj)
        if (!sj->ended)
            put_job(b, (enum srv_metric)m, s, sj);
        for (size_t i = 0; i < n; i++)
            put_job(b, (enum srv_metric)m, s, ended[i]);
    }
}

/* --- the store, HTTP, the process --- */

static void put_store(struct mu_buf *b, const struct srv *s)
{
    struct store_stats st = {0};
    if (s->store != NULL)
        store_get_stats(s->store, &st);
    head(b, SRV_METRIC_OPS);
    for (size_t i = 0; i < STORE_COMMAND_COUNT; i++)
        put_u64(b, SRV_METRIC_OPS, status_store_ops[i], st.ops[i]);
    put_one(b, SRV_METRIC_KEYS, st.keys);
    put_one(b, SRV_METRIC_QUEUES, st.queues);
    put_one(b, SRV_METRIC_BYTES, st.memory_bytes);
    put_one(b, SRV_METRIC_CLIENTS, st.clients);
    put_one(b, SRV_METRIC_WAITING, st.waiting);
}

static void put_requests(struct mu_buf *b, const struct srv_metrics *m)
{
    head(b, SRV_METRIC_REQUESTS);
    for (size_t i = 0; i < SRV_PATHS_MAX && m->requests[i].path != NULL; i++) {
        const struct srv_requests *r = &m->requests[i];
        for (size_t c = 0; c < SRV_CODES_MAX; c++) {
            if (r->by_code[c] == 0)
                continue;
            (void)mu_buf_addf(b, "%s{path=\"", srv_metric_rows[SRV_METRIC_REQUESTS].name);
            add_value(b, r->path);
            if (metrics_code(c) != 0)
                (void)mu_buf_addf(b, "\",code=\"%u\"} %" PRIu64 "\n", metrics_code(c),
                                  r->by_code[c]);
            else
                (void)mu_buf_addf(b, "\",code=\"other\"} %" PRIu64 "\n", r->by_code[c]);
        }
    }
}

static void put_process(struct mu_buf *b)
{
    int64_t fds = metrics_open_fds();
    int64_t max_fds = metrics_max_fds();
    put_one(b, SRV_METRIC_RESIDENT, (uint64_t)status_resident_bytes());
    if (fds >= 0)
        put_one(b, SRV_METRIC_FDS, (uint64_t)fds);
    if (max_fds >= 0)
        put_one(b, SRV_METRIC_FDS_MAX, (uint64_t)max_fds);
    head(b, SRV_METRIC_CPU);
    put_seconds(b, SRV_METRIC_CPU, NULL, metrics_cpu_s());
    head(b, SRV_METRIC_BEGAN);
    put_seconds(b, SRV_METRIC_BEGAN, NULL, metrics_start_s());
}

static void render(const struct srv *s, struct mu_buf *b)
{
    mu_buf_reset(b);
    head(b, SRV_METRIC_BUILD);
    put_u64(b, SRV_METRIC_BUILD, s->version, 1);
    put_one(b, SRV_METRIC_CONNECTIONS, s->conn_count);
    put_one(b, SRV_METRIC_ACCEPTED, s->accepted_count);
    put_one(b, SRV_METRIC_AGENTS, s->agent_count);
    put_jobs(b, s);
    put_nodes(b, s);
    put_rounds(b, &s->metrics);
    put_store(b, s);
    put_requests(b, &s->metrics);
    put_one(b, SRV_METRIC_READERS, events_reader_count(s));
    put_one(b, SRV_METRIC_EVENTS, s->metrics.events);
    put_each_job(b, s);
    put_process(b);
}

void metrics_serve(struct srv *s,
                   const struct srv_http_request *q,
                   struct mu_str name,
                   struct srv_http_answer *ret)
{
    struct srv_metrics *m = &s->metrics;
    int64_t begin_ns = mu_now_ns();
    (void)q;
    (void)name;
    if (m->page.n == 0 || m->page.oom || begin_ns >= m->good_until_ns) {
        render(s, &m->page);
        int64_t end_ns = mu_now_ns();
        m->good_until_ns = end_ns + SRV_STATUS_REST * (end_ns - begin_ns);
    }
    struct mu_buf *b = answer_new();
    if (b != NULL && (m->page.oom || mu_buf_add(b, m->page.p, m->page.n) < 0))
        b->oom = true;
    *ret = answer_body(200, b);
    if (ret->status == 200)
        ret->content_type = TYPE;
}
