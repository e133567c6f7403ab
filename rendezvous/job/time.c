/* What time brings: leases that run out, waits that must be spoken of, waits that end. */
#include "rendezvous/job/internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

int64_t job_silence_allowed(const struct job *j, const struct job_node *n)
{
    if (!n->in_round)
        return j->config.lease_ns;
    return n->fence_ns > 0 ? n->fence_ns : j->fence_ns;
}

void job_watch_lease(struct job *j, const struct job_node *n)
{
    int64_t at = n->heard_ns + job_silence_allowed(j, n);
    if (at < j->lease_check_ns)
        j->lease_check_ns = at;
}

void job_hear_anew(struct job *j, int64_t now_ns)
{
    for (uint32_t i = 0; i < j->node_cap; i++)
        if (j->nodes[i].used)
            j->nodes[i].heard_ns = now_ns;
}

/* The first node that was silent for too long, or JOB_NO_NODE; then the next look is due when the
 * next could be. */
static uint32_t next_silent(struct job *j, int64_t now_ns)
{
    if (now_ns < j->lease_check_ns)
        return JOB_NO_NODE;
    int64_t next = NEVER;
    for (uint32_t i = 0; i < j->node_cap; i++) {
        const struct job_node *n = &j->nodes[i];
        if (!n->used || n->state == JOB_NODE_LOST || n->gone)
            continue;
        int64_t at = n->heard_ns + job_silence_allowed(j, n);
        if (at <= now_ns && n->connected && !n->in_round) {
            roster_late(
                j, i,
                true); /* Its kernel still answers. It keeps its place, and is not counted on. */
            continue;
        }
        if (at <= now_ns)
            return i;
        next = at < next ? at : next;
    }
    j->lease_check_ns = next;
    return JOB_NO_NODE;
}

/* Does it wait for others? While a round runs, who works does not. */
static bool waits(const struct job *j, const struct job_node *n)
{
    return j->state != JOB_RUNNING || n->state == JOB_NODE_WAITING ||
           n->state == JOB_NODE_FINISHED || (n->state == JOB_NODE_STARTING && j->unreached > 0);
}

/* No wait is silent: before 5 s have passed, and then with growing gaps, whoever waits hears what
 * for. */
static void say_what_we_wait_for(struct job *j, int64_t now_ns)
{
    if (now_ns < j->next_word_ns)
        return;
    bool told = false;
    for (uint32_t i = 0; i < j->node_cap; i++) {
        if (!j->nodes[i].used || !waits(j, &j->nodes[i]))
            continue;
        job_send(j, i, CTL_WAITING);
        told = true;
    }
    int64_t longest = j->state == JOB_RUNNING ? MU_WORD_GAP_LONG_NS : MU_WORD_GAP_MAX_NS;
    j->word_now_ns = now_ns;
    j->next_word_ns = told ? now_ns + j->word_gap_ns : NEVER;
    j->word_gap_ns = j->word_gap_ns * 2 > longest ? longest : j->word_gap_ns * 2;
    if (!told)
        j->idle_since_ns = NEVER;
}

/* Everybody whose silence lasted too long leaves through the same rows as who died. Returns the
 * first news. */
static int silent_ones(struct job *j, int64_t now_ns, const struct job_event *ev, job_row_fn *left)
{
    for (;;) {
        uint32_t slot = next_silent(j, now_ns);
        if (slot == JOB_NO_NODE)
            return 0;
        struct job_event gone = *ev; /* Type DEADLINE: kind_of_leaving() says silent. */
        gone.node = slot;
        int news = left(j, now_ns, &gone, NULL);
        if (news != 0)
            return news;
    }
}

int row_gather_deadline(struct job *j,
                        int64_t now_ns,
                        const struct job_event *ev,
                        struct mu_err *err)
{
    int news = silent_ones(j, now_ns, ev, row_gather_left);
    if (news != 0)
        return news;
    news = job_ready(j, now_ns);
    if (news != 0)
        return news;
    if (now_ns >= j->gather_deadline_ns) /* Some may be awaited; others suffice. */
        return j->round > 0 && j->waiting >= j->nodes_min ? JOB_EV_READY : JOB_EV_GIVE_UP;
    say_what_we_wait_for(j, now_ns);
    return 0;
}

int row_recover_deadline(struct job *j,
                         int64_t now_ns,
                         const struct job_event *ev,
                         struct mu_err *err)
{
    int news = silent_ones(j, now_ns, ev, row_run_left);
    if (news != 0)
        return news;
    if (now_ns >= j->since_ns + j->fence_ns) {
        struct mu_cause c = MU_CAUSE_INIT;
        c.kind = MU_CAUSE_NODE_SILENT;
        (void)snprintf(c.message, sizeof c.message,
                       "%u of %u nodes did not come back after the server's restart", j->pending,
                       j->round_nodes);
        job_new_cause(j, &c, NULL);
        j->missing_fenced = true;
        return JOB_EV_BROKEN;
    }
    say_what_we_wait_for(j, now_ns);
    return 0;
}

int row_run_deadline(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    int news = silent_ones(j, now_ns, ev, row_run_left);
    if (news == 0)
        news = drain_choose_step(j, now_ns);
    if (news != 0)
        return news;
    budget_look(j);
    say_what_we_wait_for(j, now_ns);
    return 0;
}

int row_stop_deadline(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    int news = silent_ones(j, now_ns, ev, row_stop_left);
    if (news != 0)
        return news;
    if (j->pending ==
        0) /* All had said stopped when the server died, which had no time to go on. */
        return j->final ? JOB_EV_SPENT : JOB_EV_CLEAR;
    if (!j->missing_fenced && now_ns >= j->missing_until_ns) {
        j->missing_fenced = true;
        for (uint32_t r = 0; r < j->round_nodes; r++) {
            if (j->members[r] != JOB_NO_NODE)
                continue;
            news = job_accounted(j);
            if (news != 0)
                return news;
        }
    }
    say_what_we_wait_for(j, now_ns);
    return 0;
}
