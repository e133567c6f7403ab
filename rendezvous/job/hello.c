/* Who is greeted: newcomers, agents that come back, and, after a restart of the server, the members
 * of a round that lives on. */
#include "rendezvous/job/internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static void take_spec(struct job *j, const struct ctl_hello *h, int64_t unix_ms)
{
    if (j->has_spec)
        return;
    j->has_spec = true;
    memcpy(j->spec_host, h->host, sizeof j->spec_host);
    j->nodes_min = (uint32_t)h->nodes_min;
    j->nodes_max = (uint32_t)h->nodes_max;
    budget_take_spec(j, h);
    j->join_timeout_ns = h->join_timeout_ms * NS_PER_MS;
    j->last_call_ns = h->last_call_ms * NS_PER_MS;
    j->on_join_restart = h->on_join_restart != 0;
    j->created_unix_ms = unix_ms;
}

/* Does this hello name a round that could be recovered? */
static bool names_round(const struct ctl_hello *h)
{
    return h->round > 0 && h->round_nodes > h->round_node_rank;
}

bool hello_of_our_round(const struct job *j, const struct ctl_hello *h)
{
    bool known = h->round_begun_ms != 0 && j->round_started_unix_ms != 0;
    return h->round == j->round && (!known || h->round_begun_ms == j->round_started_unix_ms);
}

/* Does this hello bring live processes of a round? */
static bool brings_round(const struct ctl_hello *h)
{
    return h->round != 0 && h->round_state != 3;
}

/* A newcomer, or one whose slot we do not know: take it in. Its old round, if it brings one that is
 * not ours, has to be stopped first. */
static int take_in(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    const struct ctl_hello *h = &ev->msg->u.hello;
    int r = roster_check(j, h, err);
    if (r == -EACCES && j->has_spec && err != NULL) /* Who waits for it shall know. */
        (void)snprintf(j->refused, sizeof j->refused, "%s", err->msg);
    if (r == 0)
        r = roster_reserve(j);
    if (r < 0)
        return r;
    uint32_t slot = roster_add(j, now_ns, ev);
    if (slot == JOB_NO_NODE)
        return -ENOMEM;
    if (h->leave_quarantine != 0)
        quarantine_forgive(j, h->host);
    bool first = !j->has_spec;
    take_spec(j, h, ev->unix_ms);
    if (first)
        j->gathering_unix_ms = ev->unix_ms;
    if (first && j->state == JOB_GATHERING) {
        job_enter(j, now_ns);
        j->gather_deadline_ns = now_ns + j->join_timeout_ns;
    }
    if (h->round > j->round_seen)
        j->round_seen = (uint32_t)h->round;
    if (h->round_seen > j->round_seen)
        j->round_seen = (uint32_t)h->round_seen;
    j->hello_slot = slot;
    if (j->round > 0)
        job_act(j, JOB_ACT_KEEP, slot, CTL_TYPE_COUNT);
    job_send(j, slot, CTL_WELCOME);
    job_watch_lease(j, &j->nodes[slot]);
    return 0;
}

/* It has processes of a round that does not live here: they must be gone before it can be in
 * another. */
static void stop_stale(struct job *j, uint32_t slot)
{
    struct job_node *n = &j->nodes[slot];
    n->stale_round = (uint32_t)n->hello.round;
    roster_set(j, slot, JOB_NODE_STOPPING);
    job_send(j, slot, CTL_STOP);
}

/* The agent of a slot is back on a new connection: what it says of itself now counts. Returns 0 or
 * -ENOMEM with nothing changed. */
static int take_back(struct job *j, int64_t now_ns, uint32_t slot, const struct job_event *ev)
{
    if (roster_hear(j, slot, ev) < 0)
        return -ENOMEM;
    roster_heard(j, slot, now_ns);
    if (ev->msg->u.hello.round > j->round_seen) /* Of a life whose end we know nothing of. */
        j->round_seen = (uint32_t)ev->msg->u.hello.round;
    roster_connect(j, slot, true);
    j->hello_slot = slot;
    job_send(j, slot, CTL_WELCOME);
    drain_hear(j, slot, &ev->msg->u.hello);
    if (j->nodes[slot].drain != NULL || (j->nodes[slot].in_round && j->halt_step >= 0))
        job_send(j, slot, CTL_HALT); /* It may be lost. */
    job_watch_lease(j, &j->nodes[slot]);
    return 0;
}

int row_gather_hello(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    const struct ctl_hello *h = &ev->msg->u.hello;
    uint32_t slot = roster_find(j, h->node);
    if (slot != JOB_NO_NODE) {
        if (take_back(j, now_ns, slot, ev) < 0)
            return -ENOMEM;
    } else {
        /* A round that this server has never heard of: it was restarted, and the round may live on.
         * Even one stopped member tells so. */
        bool resumes = j->round == 0 && names_round(h);
        int r = resumes ? roster_check(j, h, err) : 0;
        if (r == 0 && resumes)
            r = roster_reserve_members(j, (uint32_t)h->round_nodes);
        if (r == 0)
            r = take_in(j, now_ns, ev, err);
        if (r < 0)
            return r;
        if (resumes)
            return JOB_EV_RESUMES;
        slot = j->hello_slot;
    }
    if (brings_round(h))
        stop_stale(j, slot);
    else if (j->nodes[slot].state == JOB_NODE_STOPPING)
        roster_set(j, slot, JOB_NODE_WAITING); /* Its STOPPED was lost with the old connection. */
    return job_ready(j, now_ns);
}

/* By ctl_hello.round_state. */
static const enum job_node_state states[] = {JOB_NODE_RUNNING, JOB_NODE_FINISHED, JOB_NODE_STOPPING,
                                             JOB_NODE_STOPPED,
                                             JOB_NODE_STOPPING /* Not begun: nor will it. */};

/* A node's word that it is in the round which is being recovered. */
static int take_member(struct job *j, uint32_t slot, const struct ctl_hello *h)
{
    struct job_node *n = &j->nodes[slot];
    uint32_t rank = (uint32_t)h->round_node_rank;
    if (!hello_of_our_round(j, h) || rank >= j->round_nodes || j->members[rank] != JOB_NO_NODE) {
        if (brings_round(h))
            stop_stale(j, slot);
        return 0;
    }
    j->members[rank] = slot;
    n->in_round = true;
    n->fence_ns = 0;
    n->ranked = false;
    roster_forget_failure(j, n);
    n->node_rank = (int32_t)rank;
    drain_hear(j, slot, h);
    roster_set(j, slot, states[h->round_state]);
    if (h->round_cause.kind != MU_CAUSE_NONE)
        job_new_cause(j, &h->round_cause, NULL); /* The server that died had decided already. */
    MU_ASSERT(j->pending > 0);
    return --j->pending == 0 ? JOB_EV_RESUMED : 0;
}

/* Look for the members of the round that this hello names. Its room was reserved. */
static void expect_round(struct job *j, int64_t now_ns, const struct ctl_hello *h)
{
    j->round = (uint32_t)h->round;
    j->round_started_unix_ms = h->round_begun_ms;
    j->round_nodes = (uint32_t)h->round_nodes;
    budget_recover(j, now_ns, h);
    int64_t fence_ns = h->round_fence_ms * NS_PER_MS;
    bool known = fence_ns > 0 && fence_ns < j->config.fence_ns;
    j->fence_ns = known ? fence_ns : j->config.fence_ns;
    for (uint32_t i = 0; i < j->round_nodes; i++)
        j->members[i] = JOB_NO_NODE;
    j->pending = j->round_nodes;
    j->is_latest = false;
    j->missing_fenced = false;
    j->lead = JOB_NO_NODE;
    j->starting = 0;
    j->halt_step = -1;
    j->halt_ask_until_ns = NEVER;
    job_enter(j, now_ns);
    job_keep_round(j); /* Rows of another round's members would not fit. */
}

int row_begin_recovery(struct job *j,
                       int64_t now_ns,
                       const struct job_event *ev,
                       struct mu_err *err)
{
    expect_round(j, now_ns, &ev->msg->u.hello);
    /* Who came before it, still in GATHERING, can only be fresh: a resuming one would have begun
     * this itself. */
    return take_member(j, j->hello_slot, &ev->msg->u.hello);
}

/* A later round than the one being recovered: the earlier one was surely over before the later
 * began. */
static int recover_later_round(struct job *j, int64_t now_ns, const struct ctl_hello *h)
{
    for (uint32_t r = 0; r < j->round_nodes; r++) {
        if (j->members[r] == JOB_NO_NODE)
            continue;
        struct job_node *n = &j->nodes[j->members[r]];
        bool unheard = n->expected || j->members[r] == j->hello_slot;
        n->in_round = false;
        n->expected = false;
        n->node_rank = -1;
        if (n->state == JOB_NODE_LOST)
            continue;
        if (n->state == JOB_NODE_STOPPED || unheard) /* Back, it says itself what it brings. */
            roster_set(j, j->members[r], JOB_NODE_WAITING);
        else
            stop_stale(j, j->members[r]);
    }
    expect_round(j, now_ns, h);
    return take_member(j, j->hello_slot, h);
}

/* Is this of a later round than the one that is being recovered? What a server has kept is right,
 * unless live processes say otherwise: an agent without any may have been in an earlier job of this
 * id. */
static bool is_later(const struct job *j, const struct ctl_hello *h)
{
    bool began_later = h->round == j->round && !hello_of_our_round(j, h) &&
                       h->round_begun_ms > j->round_started_unix_ms;
    return names_round(h) && (h->round > j->round || began_later) &&
           (!j->loaded || brings_round(h));
}

int job_unexpect(struct job *j, struct job_node *n)
{
    if (!n->expected)
        return 0;
    n->expected = false;
    MU_ASSERT(j->state == JOB_RECOVERING && j->pending > 0);
    return --j->pending == 0 ? JOB_EV_RESUMED : 0;
}

/* A member that the server knows from its former life says how it fared. */
static int expected_member(struct job *j, uint32_t slot, const struct ctl_hello *h)
{
    struct job_node *n = &j->nodes[slot];
    if (hello_of_our_round(j, h)) {
        roster_set(j, slot, states[h->round_state]);
        if (h->round_cause.kind != MU_CAUSE_NONE)
            job_new_cause(j, &h->round_cause, NULL);
    } else if (brings_round(h)) { /* The round that we know had not reached it: it cannot now. */
        job_node_cause(j, MU_CAUSE_NODE_SILENT, n);
        return JOB_EV_BROKEN;
    } else {
        roster_set(j, slot, JOB_NODE_STARTING);
        job_send(j, slot, CTL_START); /* START was lost, or never sent. */
    }
    return job_unexpect(j, n);
}

int row_recover_hello(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    const struct ctl_hello *h = &ev->msg->u.hello;
    uint32_t slot = roster_find(j, h->node);
    if (slot == JOB_NO_NODE) {
        bool later = is_later(j, h);
        int r = later ? roster_check(j, h, err) : 0;
        if (r == 0 && later)
            r = roster_reserve_members(j, (uint32_t)h->round_nodes);
        if (r == 0)
            r = take_in(j, now_ns, ev, err);
        if (r < 0)
            return r;
        return later ? recover_later_round(j, now_ns, h) : take_member(j, j->hello_slot, h);
    }
    bool later = is_later(j, h);
    int r = later ? roster_check(j, h, err) : 0;
    if (r == 0 && later)
        r = roster_reserve_members(j, (uint32_t)h->round_nodes);
    if (r < 0)
        return r;
    if (take_back(j, now_ns, slot, ev) < 0)
        return -ENOMEM;
    const struct job_node *n = &j->nodes[slot];
    if (later) /* What we know is older than what happened since: it could not be kept. */
        return recover_later_round(j, now_ns, h);
    if (n->in_round && (n->expected || !hello_of_our_round(j, h)))
        return expected_member(j, slot, h);
    if (!n->in_round && n->state == JOB_NODE_STOPPING && !brings_round(h))
        roster_set(j, slot, JOB_NODE_WAITING);
    else if (!n->in_round && brings_round(h))
        stop_stale(j, slot);
    else if (n->in_round && h->round_state == 1)
        roster_set(j, slot, JOB_NODE_FINISHED);
    else if (n->in_round && h->round_state >= 2)
        roster_set(j, slot, h->round_state == 3 ? JOB_NODE_STOPPED : JOB_NODE_STOPPING);
    return 0;
}

/* Count who still runs; what happened while no server was there decides how it goes on. */
int row_resume_round(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    job_enter(j, now_ns);
    const struct job_node *stopped = NULL;
    j->pending = 0;
    uint32_t world = 0;
    for (uint32_t r = 0; r < j->round_nodes; r++) {
        struct job_node *n = &j->nodes[j->members[r]];
        n->rank_base = (int32_t)world;
        n->ranked = true;
        world += (uint32_t)n->hello.nproc;
        j->pending += owes_finished(n);
        if (n->state == JOB_NODE_FINISHED)
            job_idle(j, now_ns);
        if (n->state == JOB_NODE_STOPPING || n->state == JOB_NODE_STOPPED)
            stopped = n;
    }
    if (j->lead == JOB_NO_NODE)
        ranks_find_lead(j);
    j->world = world;
    if (j->starting == 0)
        budget_note_running(j);
    budget_look(j);
    job_keep_round(j);
    if (stopped != NULL) {
        job_node_cause(j, MU_CAUSE_NODE_SILENT, stopped);
        return JOB_EV_BROKEN;
    }
    return j->pending == 0 ? drain_or_over(j) : drain_resume(j, now_ns);
}

/* A member is back after its connection broke. What was lost on the way is said again. */
static int run_member_back(struct job *j, uint32_t slot, const struct ctl_hello *h)
{
    const struct job_node *n = &j->nodes[slot];
    if (!hello_of_our_round(j, h)) {
        if (brings_round(h)) { /* It never heard that its older round was over. */
            job_node_cause(j, MU_CAUSE_NODE_SILENT, n);
            return JOB_EV_BROKEN;
        }
        job_send(j, slot, CTL_START); /* START was lost. */
        return 0;
    }
    if (h->round_state == 4) {
        job_send(j, slot, CTL_START); /* What it said of the lead may be lost: it says it again. */
        return 0;
    }
    if (h->round_state >= 2) { /* It fenced itself: silent for too long, it stopped its workers. */
        job_node_cause(j, MU_CAUSE_NODE_SILENT, n);
        roster_set(j, slot, h->round_state == 2 ? JOB_NODE_STOPPING : JOB_NODE_STOPPED);
        return JOB_EV_BROKEN;
    }
    if (h->round_state == 1 && owes_finished(n)) {
        roster_set(j, slot, JOB_NODE_FINISHED);
        job_idle(j, j->nodes[slot].heard_ns);
        return --j->pending == 0 ? drain_or_over(j) : 0;
    }
    /* STARTED was lost; or, where it does not reach the lead, FAILED follows. */
    if (n->state == JOB_NODE_STARTING && n->reached)
        roster_set(j, slot, JOB_NODE_RUNNING);
    return 0;
}

/* RUNNING: does the round end for this newcomer? Then it is the cause. */
bool job_takes_in(struct job *j, uint32_t slot)
{
    const struct job_node *n = &j->nodes[slot];
    if (!j->on_join_restart || j->round_nodes >= j->nodes_max || !roster_eligible(n))
        return false;
    job_node_cause(j, MU_CAUSE_NODE_JOINED, n);
    return true;
}

int row_run_hello(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    const struct ctl_hello *h = &ev->msg->u.hello;
    uint32_t slot = roster_find(j, h->node);
    if (slot != JOB_NO_NODE) {
        if (take_back(j, now_ns, slot, ev) < 0)
            return -ENOMEM;
        if (j->nodes[slot].in_round) {
            j->fresh_from = j->arrivals; /* The job lives: who came meanwhile came to it. */
            return run_member_back(j, slot, h);
        }
        if (brings_round(h))
            stop_stale(j, slot);
        else if (j->nodes[slot].state == JOB_NODE_STOPPING)
            roster_set(j, slot, JOB_NODE_WAITING);
        return 0;
    }
    int r = roster_check_second(j, h, ev->unix_ms, err);
    if (r == 0)
        r = take_in(j, now_ns, ev, err);
    if (r < 0)
        return r;
    if (brings_round(h)) {
        stop_stale(j, j->hello_slot);
        return 0;
    }
    j->nodes[j->hello_slot].fresh = !roster_has_member(j);
    if (quarantine_suspects(j, &j->nodes[j->hello_slot])) /* The round does without it. */
        roster_aside(j, j->hello_slot, true);
    if (job_takes_in(j, j->hello_slot))
        return JOB_EV_BROKEN;
    j->word_now_ns = now_ns;
    job_send(j, j->hello_slot, CTL_WAITING); /* A hot spare: its wait is not silent either. */
    job_idle(j, now_ns);
    return 0;
}

/* It is in a later round than the one that we know and stop, so ours was over; what we know is
 * older than what happened since. Its own round must end. */
static int leave_for_later_round(struct job *j, uint32_t slot)
{
    struct job_node *n = &j->nodes[slot];
    bool owed = owes_stopped(n);
    j->members[n->node_rank] = JOB_NO_NODE;
    n->in_round = false;
    n->node_rank = -1;
    stop_stale(j, slot);
    return owed ? job_accounted(j) : 0;
}

/* It had stopped its own workers, since it was not heard: who missed them failed for that, and no
 * restart is spent. */
static void hear_fence(struct job *j, uint32_t slot, const struct ctl_hello *h)
{
    struct job_node *n = &j->nodes[slot];
    if (!hello_of_our_round(j, h) || h->round_cause.kind != MU_CAUSE_NODE_SILENT)
        return;
    struct mu_cause c = job_cause_of_node(MU_CAUSE_NODE_SILENT, n);
    (void)mu_strcopy(c.message, sizeof c.message, h->round_cause.message);
    job_weigh_own_end(j, n, &c);
}

int row_stop_hello(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    const struct ctl_hello *h = &ev->msg->u.hello;
    uint32_t slot = roster_find(j, h->node);
    if (slot == JOB_NO_NODE) {
        if (j->final && h->round == 0) /* It means the next job of that id. */
            return mu_err_set(err, -EAGAIN, "the job '%.80s' that ran here before is just ending",
                              j->run_id);
        int r = take_in(j, now_ns, ev, err);
        if (r < 0)
            return r;
        slot = j->hello_slot;
        struct job_node *n = &j->nodes[slot];
        uint32_t rank = (uint32_t)h->round_node_rank;
        /* A member that a recovering server had not met yet. */
        if (hello_of_our_round(j, h) && !j->missing_fenced && rank < j->round_nodes &&
            j->members[rank] == JOB_NO_NODE) {
            j->members[rank] = slot;
            n->in_round = true;
            n->fence_ns = 0;
            n->node_rank = (int32_t)rank;
            if (!brings_round(h)) {
                roster_set(j, slot, JOB_NODE_STOPPED);
                return job_accounted(j);
            }
            roster_set(j, slot, JOB_NODE_STOPPING);
            job_send(j, slot, CTL_STOP);
        } else if (brings_round(h)) {
            stop_stale(j, slot);
        }
        return 0;
    }
    if (take_back(j, now_ns, slot, ev) < 0)
        return -ENOMEM;
    struct job_node *n = &j->nodes[slot];
    if (!n->in_round) {
        if (brings_round(h))
            stop_stale(j, slot);
        else if (n->state == JOB_NODE_STOPPING)
            roster_set(j, slot, JOB_NODE_WAITING);
        return 0;
    }
    if (brings_round(h) && h->round > j->round)
        return leave_for_later_round(j, slot);
    hear_fence(j, slot, h);
    if (brings_round(h)) {
        job_send(j, slot, CTL_STOP); /* STOP may have been lost. */
        return 0;
    }
    if (!owes_stopped(n))
        return 0;
    roster_set(j, slot, JOB_NODE_STOPPED); /* STOPPED was lost, or it never got START. */
    return job_accounted(j);
}

/* The job is over. Its own agents are told once more; anybody else means a new job of the same id.
 */
int row_ended_hello(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    const struct ctl_hello *h = &ev->msg->u.hello;
    uint32_t slot = roster_find(j, h->node);
    if (slot == JOB_NO_NODE) {
        if (h->round == 0 || h->round > j->round)
            return -ENOENT;
        int r = take_in(j, now_ns, ev, err);
        if (r < 0)
            return r;
        slot = j->hello_slot;
    } else if (take_back(j, now_ns, slot, ev) < 0) {
        return -ENOMEM;
    }
    job_dismiss(j, slot);
    return 0;
}
