/* Counting for GET /metrics, where things happen: a few additions for what is rare, a comparison
 * for what is not. */
#include <string.h>

#include "base/clock.h"
#include "rendezvous/server/internal.h"
#include "rendezvous/server/pool.h"

/* --- the records of ends --- */

enum {
    SEEN_END = 1,
    SEEN_NEXT = 2,
    SEEN_SPAWN = 4,
    SEEN_STEP = 8
};

static void observe(struct srv_metrics *m, enum srv_phase phase, int64_t ms)
{
    struct srv_histogram *h = &m->phases[phase];
    size_t i = 0;
    if (ms < 0)
        return; /* Not known. */
    while (i < SRV_BUCKET_COUNT && ms > srv_bucket_ms[i])
        i++;
    h->counts[i]++;
    h->sum_ms += ms;
}

/* Two clocks of one host or of two: what cannot be is not known. */
static int64_t span_ms(int64_t from_ms, int64_t to_ms)
{
    return from_ms > 0 && to_ms >= from_ms ? to_ms - from_ms : -1;
}

static void count_end(struct srv_metrics *m, const struct job_incident *in)
{
    struct mu_cause cause;
    job_incident_cause(in, &cause);
    for (size_t d = 0; d < JOB_DECISION_COUNT; d++)
        if (in->nodes > 0 && strcmp(in->decision, job_decision_name((enum job_decision)d)) == 0)
            m->rounds[d]++;
    if (strcmp(in->decision, job_decision_name(JOB_DECIDED_RESTART)) == 0)
        m->restarts[cause.kind]++;
    observe(m, SRV_PHASE_DETECT, span_ms(in->cause_at_unix_ms, in->decided_unix_ms));
    observe(m, SRV_PHASE_STOP, in->stop_ms);
    observe(m, SRV_PHASE_RECLAIM, in->reclaim_ms);
}

/* True once, when it has happened, and in this life. */
static bool is_new(const struct srv_metrics *m, struct srv_tally *t, unsigned what, int64_t at_ms)
{
    if (at_ms == 0 || (t->seen & what) != 0)
        return false;
    t->seen |= what;
    return at_ms >= m->since_unix_ms;
}

/* A record is noted again as more of it is known: each part counts once, when it stays as it is. */
static void note_incident(struct srv_metrics *m, struct srv_tally *t, const struct job_incident *in)
{
    if (t->number != in->number) {
        t->number = in->number;
        t->seen = 0;
        m->incidents += in->decided_unix_ms >= m->since_unix_ms;
    }
    if (is_new(m, t, SEEN_END, in->stopped_unix_ms))
        count_end(m, in);
    if (is_new(m, t, SEEN_NEXT, in->next_unix_ms))
        observe(m, SRV_PHASE_RENDEZVOUS, span_ms(in->stopped_unix_ms, in->next_unix_ms));
    if (is_new(m, t, SEEN_SPAWN, in->next_running_unix_ms))
        observe(m, SRV_PHASE_SPAWN, span_ms(in->next_unix_ms, in->next_running_unix_ms));
    if (is_new(m, t, SEEN_STEP, in->next_step_unix_ms))
        observe(m, SRV_PHASE_FIRST_STEP, span_ms(in->next_running_unix_ms, in->next_step_unix_ms));
}

/* --- progress --- */

static int64_t here_ns(const struct srv_tally *t)
{
    return t->from_ns != 0 ? t->last_ns - t->from_ns : 0;
}

/* Productive is the time from when a round passed every step that was reached before it, until its
 * last step was told: each step counts once, and neither waiting nor what is done again does. */
static void note_steps(struct srv_tally *t, int64_t now_ns, uint32_t round, int32_t top)
{
    if (t->round != round) {
        t->closed_ns += here_ns(t);
        t->high = t->top > t->high ? t->top : t->high;
        t->round = round;
        t->top = -1;
        t->from_ns = t->last_ns = 0;
    }
    if (top <= t->top)
        return;
    t->has_steps = true;
    t->top = top;
    if (top <= t->high)
        return;
    if (t->from_ns == 0)
        t->from_ns = now_ns;
    t->last_ns = now_ns;
}

void metrics_begin_job(const struct srv *s, struct srv_job *sj)
{
    sj->tally = (struct srv_tally){.since_ns = s->now_ns, .top = -1, .high = -1};
}

int64_t metrics_productive_ns(const struct srv_job *sj)
{
    return sj->tally.closed_ns + here_ns(&sj->tally);
}

int64_t metrics_wall_ns(const struct srv *s, const struct srv_job *sj)
{
    const struct srv_tally *t = &sj->tally;
    return (t->ended_ns != 0 ? t->ended_ns : s->now_ns) - t->since_ns;
}

/* --- steps of jobs --- */

void metrics_note(struct srv *s,
                  struct srv_job *sj,
                  const struct job_event *ev,
                  const struct job_out *out)
{
    struct srv_metrics *m = &s->metrics;
    const struct job *j = &sj->job;
    for (uint32_t i = 0; i < out->move_count; i++) {
        const struct job_move *move = &out->moves[i];
        m->started += move->from == JOB_GATHERING && move->to == JOB_RUNNING;
    }
    for (uint32_t i = 0; i < out->count; i++)
        if (out->actions[i].type == JOB_ACT_INCIDENT)
            note_incident(m, &sj->tally, &j->incident);
    if (out->stale_round != 0)
        m->stale[ev->type]++;
    if (ev->type == JOB_EV_BEAT && ev->node < j->node_cap && j->nodes[ev->node].in_round &&
        j->nodes[ev->node].top_step >= 0)
        note_steps(&sj->tally, s->now_ns, j->round, j->nodes[ev->node].top_step);
    const struct job_drain *d =
        ev->type == JOB_EV_DRAIN && ev->node < j->node_cap ? j->nodes[ev->node].drain : NULL;
    m->drains += d != NULL && d->since_unix_ms == ev->unix_ms; /* Else it was said again. */
    if (job_is_ended(j) && sj->tally.ended_ns == 0) {
        sj->tally.ended_ns = s->now_ns;
        bool stopped = srv_pool_stopped(s, sj);
        m->stopped += stopped;
        m->failed += !stopped && j->state == JOB_FAILED;
        m->succeeded += !stopped && j->state != JOB_FAILED;
    }
}

/* --- requests --- */

static const unsigned codes[SRV_CODES_MAX] = {200, 201, 202, 304, 400, 401, 403, 404,
                                              405, 409, 413, 500, 503, 507, 0};

unsigned metrics_code(size_t i)
{
    return codes[i];
}

void metrics_request(struct srv *s, const char *path, unsigned status)
{
    struct srv_requests *r = s->metrics.requests;
    size_t c = 0;
    for (size_t i = 0; i + 1 < SRV_PATHS_MAX; i++, r++)
        if (r->path == NULL || strcmp(r->path, path) == 0)
            break;
    if (r->path == NULL)
        r->path = path;
    while (c + 1 < SRV_CODES_MAX && codes[c] != status)
        c++;
    r->by_code[c]++;
}
