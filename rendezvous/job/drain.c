/* A node is to leave in order: one step is chosen after which the workers of all nodes stop, so
 * that they can checkpoint together; then the round ends, at no cost, and the others go on without
 * it.
 *
 * The step lies ahead of what any worker can have reached when the word arrives: as many steps as
 * are done in two beats at the speed that was seen, beside those that were done since the last beat
 * told of. Where no worker tells of steps there is nothing to agree on: the round is stopped at
 * once. That the node leaves in time is its agent's business, which knows the deadline and keeps it
 * without us. */
#include "rendezvous/job/internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define BEATS_AHEAD 2
#define BEATS_TO_LEARN 3  /* How long an unknown speed is waited for. */
#define STEPS_AHEAD_MIN 2 /* Ranks are not at the same step to the instant. */
#define GUESSED_PER_BEAT 10

static struct job_node *member(const struct job *j, uint32_t rank)
{
    return j->members[rank] != JOB_NO_NODE ? &j->nodes[j->members[rank]] : NULL;
}

/* The first of the round's that is to leave; NULL: none is. */
static const struct job_node *leaver(const struct job *j)
{
    for (uint32_t r = 0; r < j->round_nodes; r++) {
        const struct job_node *n = member(j, r);
        if (n != NULL && n->drain != NULL)
            return n;
    }
    return NULL;
}

static struct mu_cause cause_of(const struct job *j)
{
    static const struct job_node nobody = {.hello = {.host = ""}};
    const struct job_node *n = leaver(j);
    struct mu_cause c = job_cause_of_node(MU_CAUSE_NODE_LEFT, n != NULL ? n : &nobody);
    if (n == NULL)
        (void)mu_strcopy(c.message, sizeof c.message, "drained");
    else
        (void)snprintf(c.message, sizeof c.message, "drained: %s", n->drain->reason);
    return c;
}

static int stop_for_it(struct job *j)
{
    struct mu_cause c = cause_of(j);
    j->halt_ask_until_ns = NEVER;
    job_new_cause(j, &c, NULL);
    return JOB_EV_BROKEN;
}

/* --- which step --- */

void drain_note_speed(struct job_node *n, int64_t now_ns, int64_t beat_ns)
{
    int32_t top = -1;
    for (int64_t i = 0; i < n->hello.nproc; i++)
        top = n->workers[i].step > top ? n->workers[i].step : top;
    if (top <= n->top_step)
        return;
    if (n->top_step >= 0) {
        /* Beats that were held up arrive together: they were sent a beat apart. */
        int64_t ns = now_ns - n->top_step_ns > beat_ns ? now_ns - n->top_step_ns : beat_ns;
        int64_t took_ns = ns / (top - n->top_step) + 1;
        bool faster = n->step_took_ns == 0 || took_ns < n->step_took_ns;
        n->step_took_ns = faster ? took_ns : (took_ns + n->step_took_ns) / 2;
    }
    n->top_step = top;
    n->top_step_ns = now_ns;
}

/* Where this node's workers can be in two beats. Steps are told once a beat, so of a node that is
 * silent about them for longer it is known that none was done. */
static int64_t step_ahead(const struct job *j, const struct job_node *n, int64_t now_ns)
{
    int64_t beat_ns = j->config.beat_ns;
    int64_t took_ns = n->step_took_ns != 0 ? n->step_took_ns : beat_ns / GUESSED_PER_BEAT + 1;
    int64_t untold_ns = now_ns - n->top_step_ns;
    if (untold_ns > 2 * beat_ns)
        untold_ns = 2 * beat_ns;
    return n->top_step + (untold_ns + BEATS_AHEAD * beat_ns) / took_ns + STEPS_AHEAD_MIN;
}

static void tell_all(struct job *j)
{
    for (uint32_t r = 0; r < j->round_nodes; r++)
        if (member(j, r) != NULL && owes_finished(member(j, r)))
            job_send(j, j->members[r], CTL_HALT);
}

int drain_choose_step(struct job *j, int64_t now_ns)
{
    bool known = true;
    int64_t step = -1;
    if (j->halt_ask_until_ns == NEVER)
        return 0;
    for (uint32_t r = 0; r < j->round_nodes; r++) {
        const struct job_node *n = member(j, r);
        if (n == NULL || !owes_finished(n))
            continue;
        known = known && n->step_took_ns != 0;
        int64_t ahead = n->top_step >= 0 ? step_ahead(j, n, now_ns) : -1;
        step = ahead > step ? ahead : step;
    }
    bool learns = (step >= 0 || j->resumed) && !known;
    if (learns && now_ns < j->halt_ask_until_ns)
        return 0;
    if (step < 0 || step > INT32_MAX)
        return stop_for_it(j);
    j->halt_ask_until_ns = NEVER;
    j->halt_step = (int32_t)step;
    job_keep(j);
    j->durable = true; /* Another server must not choose another step. */
    tell_all(j);
    return 0;
}

static void ask(struct job *j, int64_t now_ns)
{
    if (j->halt_ask_until_ns == NEVER)
        j->halt_ask_until_ns = now_ns + BEATS_TO_LEARN * j->config.beat_ns;
}

int drain_resume(struct job *j, int64_t now_ns)
{
    j->resumed = true;
    if (j->halt_step >= 0)
        tell_all(j);
    for (uint32_t r = 0; r < j->round_nodes && j->halt_step < 0; r++)
        if (member(j, r) != NULL && member(j, r)->drain != NULL && owes_finished(member(j, r)))
            ask(j, now_ns);
    return 0;
}

void drain_hear(struct job *j, uint32_t slot, const struct ctl_hello *h)
{
    struct job_node *n = &j->nodes[slot];
    if (!n->in_round || !hello_of_our_round(j, h))
        return;
    n->halted = n->halted || h->round_halted != 0;
    if (j->halt_step < 0)
        j->halt_step = (int32_t)h->round_halt_step; /* Chosen by a server that died. */
}

/* --- how it ends --- */

static bool anybody_halted(const struct job *j)
{
    for (uint32_t r = 0; r < j->round_nodes; r++)
        if (member(j, r) != NULL && member(j, r)->halted)
            return true;
    return false;
}

int drain_or_over(struct job *j)
{
    return anybody_halted(j) ? stop_for_it(j) : JOB_EV_OVER;
}

/* Who has stopped is missed by its peers. */
void drain_explain(const struct job *j, struct mu_cause *c)
{
    bool of_worker = c->kind == MU_CAUSE_WORKER_EXIT || c->kind == MU_CAUSE_WORKER_SIGNAL ||
                     c->kind == MU_CAUSE_NO_PROGRESS;
    if (j->halt_step >= 0 && of_worker && (c->step >= j->halt_step || anybody_halted(j)))
        *c = cause_of(j);
}

/* --- who is to leave --- */

int job_check_drain(const struct job *j, uint32_t node, struct mu_err *err)
{
    const struct job_node *n = &j->nodes[node];
    if (job_is_ended(j))
        return mu_err_set(err, -ESHUTDOWN, "the job '%.80s' has ended", j->run_id);
    if (n->state == JOB_NODE_LOST)
        return mu_err_set(err, -ESHUTDOWN, "the node %.80s of job '%.80s' is gone", n->hello.host,
                          j->run_id);
    if (n->drain != NULL)
        return mu_err_set(err, -EALREADY, "the node %.80s of job '%.80s' is leaving already",
                          n->hello.host, j->run_id);
    return 0;
}

static int note_drain(struct job *j, int64_t now_ns, const struct job_event *ev)
{
    struct job_node *n = job_node_of(j, ev);
    const struct ctl_drain *m = &ev->msg->u.drain;
    struct job_drain *d = n->drain;
    if (d == NULL)
        d = mu_alloc(j->mem, sizeof *d);
    if (d == NULL)
        return -ENOMEM;
    if (n->drain == NULL) {
        *d = (struct job_drain){.since_unix_ms = ev->unix_ms};
        memcpy(d->reason, m->reason, sizeof d->reason);
        roster_drain(j, ev->node, d);
    }
    roster_heard(j, ev->node, now_ns);
    d->until_unix_ms = ev->unix_ms + m->timeout_ms; /* Said again, it says what is left. */
    if (j->round > 0)
        job_act(j, JOB_ACT_KEEP, ev->node, CTL_TYPE_COUNT);
    job_send(j, ev->node, CTL_HALT);
    return 0;
}

int row_note_drain(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    int news = note_drain(j, now_ns, ev);
    if (news == 0 && j->state == JOB_GATHERING && j->aside_count > 0)
        news = job_ready(j, now_ns); /* Who is in quarantine may be needed now. */
    return news;
}

int row_run_drain(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    int r = note_drain(j, now_ns, ev);
    if (r < 0 || !owes_finished(job_node_of(j, ev)) || j->halt_step >= 0)
        return r;
    ask(j, now_ns);
    return drain_choose_step(j, now_ns);
}

/* --- words --- */

void drain_fill_halt(const struct job *j, const struct job_node *n, struct ctl_halt *m)
{
    const struct job_node *who = n->drain != NULL ? n : leaver(j);
    m->round = n->in_round ? j->round : 0;
    m->step = n->in_round ? j->halt_step : -1;
    m->leave = n->drain != NULL;
    if (who == NULL)
        return;
    int64_t left_ms = who->drain->until_unix_ms - j->step_unix_ms;
    m->timeout_ms = left_ms < 0 ? 0 : left_ms > 86400000 ? 86400000 : left_ms;
    (void)mu_strcopy(m->host, sizeof m->host, who->hello.host); /* It fits. */
    memcpy(m->reason, who->drain->reason, sizeof m->reason);
}

void drain_sentence(const struct job *j, struct mu_buf *b)
{
    uint32_t left = j->waiting;
    const struct job_node *who = leaver(j);
    if (who == NULL || j->round_nodes == 0)
        return;
    for (uint32_t r = 0; r < j->round_nodes; r++)
        left += member(j, r) != NULL && member(j, r)->drain == NULL && !member(j, r)->gone &&
                member(j, r)->state != JOB_NODE_LOST;
    (void)mu_buf_addf(b, "; %s is to leave (%s): ", who->hello.host, who->drain->reason);
    if (j->halt_step >= 0)
        (void)mu_buf_addf(b, "all workers stop after step %d, then ", j->halt_step);
    if (left >= j->nodes_min)
        (void)mu_buf_addf(b, "another round begins without it (%u nodes, at most %u)", left,
                          j->nodes_max);
    else
        (void)mu_buf_addf(b, "the job waits for another node (%u of %u are left)", left,
                          j->nodes_min);
}
