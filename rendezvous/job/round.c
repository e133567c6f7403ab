/* The round itself: when it can begin, how it begins, is stopped, ends. */
#include "rendezvous/job/internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Is it missing for a moment only? */
static bool is_awaited(const struct job *j, const struct job_node *n, int64_t now_ns)
{
    bool checked = n->health == JOB_HEALTH_CHECKING && now_ns < j->gather_deadline_ns;
    return n->used && n->state == JOB_NODE_WAITING && (!n->connected || checked);
}

/* GATHERING: can the round begin? */
/* A server that was restarted, and has kept nothing: who came back from a round may know of less
 * than who has not come back yet. */
bool job_hears_out(const struct job *j, int64_t now_ns)
{
    return !j->loaded && !j->is_latest && now_ns < j->config.not_before_ns;
}

int job_ready(struct job *j, int64_t now_ns)
{
    bool first = j->round == 0;
    quarantine_apply(j);
    if (j->waiting < j->nodes_min || j->waiting == 0) {
        j->last_call_at_ns = NEVER;
        return 0;
    }
    if (job_hears_out(j, now_ns))
        return 0;
    if (j->waiting >= j->nodes_max)
        return JOB_EV_READY;
    if (!first) {
        /* Who was here a moment ago and is only cut off may return within its lease, and who is
         * being checked has a limit of its own; else go on with who is here. */
        bool all_here = true;
        for (uint32_t i = 0; i < j->node_cap && all_here; i++)
            all_here = !is_awaited(j, &j->nodes[i], now_ns);
        return all_here ? JOB_EV_READY : 0;
    }
    if (j->last_call_at_ns == NEVER)
        j->last_call_at_ns = now_ns + j->last_call_ns;
    return now_ns >= j->last_call_at_ns ? JOB_EV_READY : 0;
}

int job_accounted(struct job *j)
{
    MU_ASSERT(j->pending > 0);
    if (--j->pending > 0)
        return 0;
    return j->final ? JOB_EV_SPENT : JOB_EV_CLEAR;
}

int row_begin_round(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    job_enter(j, now_ns);
    j->round = (j->round > j->round_seen ? j->round : j->round_seen) + 1;
    j->round_seen = j->round;
    j->is_latest = true;
    j->round_started_unix_ms = ev->unix_ms;
    j->final = false;
    j->missing_fenced = true; /* Every member is known. */
    budget_begin_round(j);
    job_follow_incident(j);
    ranks_assign(j);
    j->pending = j->round_nodes;
    j->starting = j->round_nodes;
    j->running_unix_ms = 0;
    j->halt_step = -1;
    j->resumed = false;
    j->halt_ask_until_ns = NEVER;
    for (uint32_t r = 0; r < j->round_nodes; r++) {
        struct job_node *n = &j->nodes[j->members[r]];
        n->fresh = false;
        n->in_round = true;
        n->had_round = true;
        n->started_unix_ms = 0;
        n->halted = false;
        n->top_step = -1;
        n->step_took_ns = 0;
        n->fence_ns = 0;
        roster_forget_failure(j, n);
        for (int64_t i = 0; i < n->hello.nproc; i++)
            n->workers[i] = (struct job_worker){.pid = 0, .exit = JOB_EXIT_NONE, .step = -1};
        roster_set(j, j->members[r], JOB_NODE_STARTING);
        job_send(j, j->members[r], CTL_START);
    }
    job_keep_round(j);
    j->durable = true;
    return 0;
}

/* The round must stop: decide whether another follows, tell everybody at once. */
int row_stop_round(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    bool recovering = j->state == JOB_RECOVERING;
    j->missing_until_ns = recovering ? j->since_ns + j->fence_ns : 0;
    job_enter(j, now_ns);
    job_begin_incident(j, budget_decide(j));
    j->durable = true;
    j->pending = 0;
    for (uint32_t r = 0; r < j->round_nodes; r++) {
        uint32_t slot = j->members[r];
        if (slot != JOB_NO_NODE)
            j->nodes[slot].expected = false;
        if (slot == JOB_NO_NODE) { /* Never came back: its fence time must pass. */
            j->pending += !j->missing_fenced;
            continue;
        }
        if (!owes_stopped(&j->nodes[slot]))
            continue;
        if (j->nodes[slot].gone) {
            job_lose(j, slot, false);
            continue;
        }
        j->pending++;
        roster_set(j, slot, JOB_NODE_STOPPING);
        job_send(j, slot, CTL_STOP);
    }
    if (recovering)
        job_keep_round(j); /* Members may have come that no successor knows. */
    else
        job_keep(j);
    if (j->pending > 0)
        return 0;
    return j->final ? JOB_EV_SPENT : JOB_EV_CLEAR;
}

/* The old round is over: its nodes wait for the next; lost ones are forgotten. */
static void dissolve(struct job *j)
{
    for (uint32_t i = 0; i < j->node_cap; i++) {
        struct job_node *n = &j->nodes[i];
        if (!n->used)
            continue;
        if (n->state == JOB_NODE_LOST) {
            roster_forget(j, i);
        } else if (n->in_round) {
            n->in_round = false;
            roster_set(j, i, JOB_NODE_WAITING);
        }
    }
    j->round_nodes = 0;
    j->lead = JOB_NO_NODE;
}

/* Nobody of the round is left, and who waits came after the last of it had gone: the same id, used
 * once more. */
static bool is_deserted(const struct job *j)
{
    uint32_t fresh = 0;
    for (uint32_t i = 0; i < j->node_cap; i++) {
        const struct job_node *n = &j->nodes[i];
        if (!n->used || n->state == JOB_NODE_LOST)
            continue;
        if (!n->fresh || n->order < j->fresh_from)
            return false;
        fresh++;
    }
    return fresh > 0;
}

static void begin_anew(struct job *j, int64_t unix_ms)
{
    j->anew++;
    budget_reset(j);
    j->has_cause = false;
    j->consequences = 0;
    j->refused[0] = '\0';
    quarantine_forget_all(j);
    j->created_unix_ms = unix_ms;
}

int row_gather(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    job_enter(j, now_ns);
    job_end_incident(j);
    budget_end_round(j);
    quarantine_note(j);
    j->gathering_unix_ms = ev->unix_ms;
    if (is_deserted(j))
        begin_anew(j, ev->unix_ms);
    dissolve(j);
    job_keep_round(j);
    j->gather_deadline_ns = now_ns + j->join_timeout_ns;
    j->last_call_at_ns = NEVER;
    j->lease_check_ns = now_ns; /* Who waits may be silent for one lease only: look anew. */
    int news = j->node_count == 0 ? JOB_EV_ABANDONED : job_ready(j, now_ns);
    if (news == 0)
        j->next_word_ns = now_ns + GONE_WORD_NS;
    return news;
}

/* Say the last word to a node; its slot stays for status. */
void job_dismiss(struct job *j, uint32_t slot)
{
    if (!j->nodes[slot].connected)
        return;
    job_send(j, slot, CTL_END);
    job_act(j, JOB_ACT_CLOSE, slot, CTL_TYPE_COUNT);
    roster_connect(j, slot, false);
}

/* Everybody is told; what comes after is silence. */
static void tell_end(struct job *j, int64_t now_ns, int64_t unix_ms)
{
    job_enter(j, now_ns);
    j->ended_unix_ms = unix_ms;
    job_keep_round(j); /* Late agents of it, spares too, must not be taken for a new job. */
    j->durable = true;
    for (uint32_t i = 0; i < j->node_cap; i++)
        if (j->nodes[i].used)
            job_dismiss(j, i);
}

int row_succeed(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    job_begin_incident(j, JOB_DECIDED_SUCCEED);
    job_end_incident(j);
    tell_end(j, now_ns, ev->unix_ms);
    return 0;
}

int row_fail(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    if (j->state == JOB_GATHERING)
        job_abandon_incident(j);
    job_end_incident(j);
    tell_end(j, now_ns, ev->unix_ms);
    return 0;
}

int row_give_up(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    struct mu_cause c = MU_CAUSE_INIT;
    struct mu_buf b;
    mu_buf_init(&b, j->mem);
    c.kind = MU_CAUSE_JOIN_TIMEOUT;
    job_sentence(j, now_ns, &b);
    (void)snprintf(c.message, sizeof c.message, "%s",
                   mu_buf_cstr(&b)); /* A cut sentence is still a sentence. */
    mu_buf_fini(&b);
    job_new_cause(j, &c, NULL);
    job_begin_incident(j, JOB_DECIDED_GIVE_UP);
    job_end_incident(j);
    tell_end(j, now_ns, ev->unix_ms);
    return 0;
}
