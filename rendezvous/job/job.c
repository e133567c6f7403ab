/* The rendezvous of one job: the table, and what each of its rows does. Who is here is roster.c's,
 * who gets which rank is ranks.c's, words for people are words.c's. */
#include "rendezvous/job/job.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "rendezvous/job/internal.h"

/* What a row does. Returns 0, a JOB_NEWS event that follows at once, or a negative errno with
 * nothing changed. */
typedef int
job_row_fn(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err);

struct job_row {
    int to; /* enum job_state + 1, so that an unwritten row is 0: no such event here. */
    job_row_fn *act;
};

/* Whoever is greeted or left behind. */
static job_row_fn gather_hello, recover_hello, run_hello, stop_hello, ended_hello;
static job_row_fn gather_left, run_left, stop_left, ended_left;
static job_row_fn away, beat;
/* What the round's nodes say. */
static job_row_fn note_started, note_exited, run_failed, count_failed, run_finished,
    recover_finished, run_stopped, stop_stopped, stale_stopped;
/* What time brings. */
static job_row_fn gather_deadline, recover_deadline, run_deadline, stop_deadline;
/* What follows from these. */
static job_row_fn begin_recovery, begin_round, resume_round, stop_round, succeed, gather, fail,
    give_up, abandon;

/* clang-format off */
#define ROW(to_, fn) { JOB_##to_ + 1, (fn) }
static const struct job_row table[JOB_STATE_COUNT][JOB_EV_COUNT] = {
    [JOB_GATHERING] = {
        [JOB_EV_HELLO]         = ROW(GATHERING,  gather_hello),
        [JOB_EV_STARTED]       = ROW(GATHERING,  beat),          /* Of a round that is over: proof of life, no more. */
        [JOB_EV_EXITED]        = ROW(GATHERING,  beat),          /* As above. */
        [JOB_EV_WORKER_FAILED] = ROW(GATHERING,  beat),          /* As above. */
        [JOB_EV_FINISHED]      = ROW(GATHERING,  beat),          /* As above. */
        [JOB_EV_STOPPED]       = ROW(GATHERING,  stale_stopped),
        [JOB_EV_BYE]           = ROW(GATHERING,  gather_left),
        [JOB_EV_BEAT]          = ROW(GATHERING,  beat),
        [JOB_EV_NODE_DEAD]     = ROW(GATHERING,  gather_left),
        [JOB_EV_NODE_AWAY]     = ROW(GATHERING,  away),
        [JOB_EV_DEADLINE]      = ROW(GATHERING,  gather_deadline),
        [JOB_EV_RESUMES]       = ROW(RECOVERING, begin_recovery),
        [JOB_EV_READY]         = ROW(RUNNING,    begin_round),
        [JOB_EV_GIVE_UP]       = ROW(FAILED,     give_up),
        [JOB_EV_ABANDONED]     = ROW(FAILED,     abandon),
    },
    [JOB_RECOVERING] = {
        [JOB_EV_HELLO]         = ROW(RECOVERING, recover_hello),
        [JOB_EV_STARTED]       = ROW(RECOVERING, note_started),
        [JOB_EV_EXITED]        = ROW(RECOVERING, note_exited),
        [JOB_EV_WORKER_FAILED] = ROW(RECOVERING, run_failed),
        [JOB_EV_FINISHED]      = ROW(RECOVERING, recover_finished),
        [JOB_EV_STOPPED]       = ROW(RECOVERING, run_stopped),
        [JOB_EV_BYE]           = ROW(RECOVERING, run_left),
        [JOB_EV_BEAT]          = ROW(RECOVERING, beat),
        [JOB_EV_NODE_DEAD]     = ROW(RECOVERING, run_left),
        [JOB_EV_NODE_AWAY]     = ROW(RECOVERING, away),
        [JOB_EV_DEADLINE]      = ROW(RECOVERING, recover_deadline),
        [JOB_EV_RESUMED]       = ROW(RUNNING,    resume_round),
        [JOB_EV_BROKEN]        = ROW(STOPPING,   stop_round),
    },
    [JOB_RUNNING] = {
        [JOB_EV_HELLO]         = ROW(RUNNING,    run_hello),
        [JOB_EV_STARTED]       = ROW(RUNNING,    note_started),
        [JOB_EV_EXITED]        = ROW(RUNNING,    note_exited),
        [JOB_EV_WORKER_FAILED] = ROW(RUNNING,    run_failed),
        [JOB_EV_FINISHED]      = ROW(RUNNING,    run_finished),
        [JOB_EV_STOPPED]       = ROW(RUNNING,    run_stopped),
        [JOB_EV_BYE]           = ROW(RUNNING,    run_left),
        [JOB_EV_BEAT]          = ROW(RUNNING,    beat),
        [JOB_EV_NODE_DEAD]     = ROW(RUNNING,    run_left),
        [JOB_EV_NODE_AWAY]     = ROW(RUNNING,    away),
        [JOB_EV_DEADLINE]      = ROW(RUNNING,    run_deadline),
        [JOB_EV_BROKEN]        = ROW(STOPPING,   stop_round),
        [JOB_EV_OVER]          = ROW(SUCCEEDED,  succeed),
    },
    [JOB_STOPPING] = {
        [JOB_EV_HELLO]         = ROW(STOPPING,   stop_hello),
        [JOB_EV_STARTED]       = ROW(STOPPING,   note_started),  /* It had not heard STOP yet; it will. */
        [JOB_EV_EXITED]        = ROW(STOPPING,   note_exited),
        [JOB_EV_WORKER_FAILED] = ROW(STOPPING,   count_failed),  /* A consequence, not a cause. */
        [JOB_EV_FINISHED]      = ROW(STOPPING,   beat),          /* Too late to end well: the round is being stopped. */
        [JOB_EV_STOPPED]       = ROW(STOPPING,   stop_stopped),
        [JOB_EV_BYE]           = ROW(STOPPING,   stop_left),
        [JOB_EV_BEAT]          = ROW(STOPPING,   beat),
        [JOB_EV_NODE_DEAD]     = ROW(STOPPING,   stop_left),
        [JOB_EV_NODE_AWAY]     = ROW(STOPPING,   away),
        [JOB_EV_DEADLINE]      = ROW(STOPPING,   stop_deadline),
        [JOB_EV_CLEAR]         = ROW(GATHERING,  gather),
        [JOB_EV_SPENT]         = ROW(FAILED,     fail),
    },
#define ENDED(state) {                                                                             \
        [JOB_EV_HELLO]         = ROW(state, ended_hello),                                          \
        [JOB_EV_STARTED]       = ROW(state, NULL), /* All of these were under way when END went out. */ \
        [JOB_EV_EXITED]        = ROW(state, NULL),                                                 \
        [JOB_EV_WORKER_FAILED] = ROW(state, NULL),                                                 \
        [JOB_EV_FINISHED]      = ROW(state, NULL),                                                 \
        [JOB_EV_STOPPED]       = ROW(state, NULL),                                                 \
        [JOB_EV_BYE]           = ROW(state, ended_left),                                           \
        [JOB_EV_BEAT]          = ROW(state, NULL),                                                 \
        [JOB_EV_NODE_DEAD]     = ROW(state, ended_left),                                           \
        [JOB_EV_NODE_AWAY]     = ROW(state, ended_left),                                           \
        [JOB_EV_DEADLINE]      = ROW(state, NULL), /* None is asked for. */                        \
    }
    [JOB_SUCCEEDED] = ENDED(SUCCEEDED),
    [JOB_FAILED]    = ENDED(FAILED),
#undef ENDED
};
/* clang-format on */

int job_table_to(enum job_state s, enum job_event_type e)
{
    return table[s][e].to - 1;
}

/* ------------------------------------------------------------------ small things */

void job_act(struct job *j, enum job_action_type type, uint32_t node, enum ctl_type msg)
{
    MU_ASSERT(j->action_count < j->action_cap);
    j->actions[j->action_count++] = (struct job_action){.type = type, .node = node, .msg = msg};
}

static void send(struct job *j, uint32_t slot, enum ctl_type msg)
{
    if (j->nodes[slot].connected)
        job_act(j, JOB_ACT_SEND, slot, msg);
}

static struct job_node *node_of(struct job *j, const struct job_event *ev)
{
    MU_ASSERT(ev->node < j->node_cap && j->nodes[ev->node].used);
    return &j->nodes[ev->node];
}

/* Does this node still owe its word before the old round is surely over? */
static bool owes_stopped(const struct job_node *n)
{
    return n->in_round && n->state != JOB_NODE_STOPPED && n->state != JOB_NODE_LOST;
}

static bool owes_finished(const struct job_node *n)
{
    return n->in_round && (n->state == JOB_NODE_STARTING || n->state == JOB_NODE_RUNNING);
}

/* Is the first cause of this very round known already? */
static bool knows_cause(const struct job *j)
{
    return j->has_cause && j->cause.round == j->round;
}

/* The first cause of a round stays; what comes after it is a consequence. */
static void new_cause(struct job *j, const struct mu_cause *c)
{
    if (j->state != JOB_GATHERING && knows_cause(j))
        return;
    j->cause = *c;
    j->cause.round = j->round;
    if (j->cause.at_unix_ms == 0)
        j->cause.at_unix_ms = j->step_unix_ms;
    j->has_cause = true;
    j->consequences = 0;
}

static struct mu_cause cause_of_node(enum mu_cause_kind kind, const struct job_node *n)
{
    struct mu_cause c = MU_CAUSE_INIT;
    c.kind = kind;
    c.node_rank = n->in_round ? n->node_rank : -1;
    memcpy(c.host, n->hello.host, sizeof c.host);
    return c;
}

static void node_cause(struct job *j, enum mu_cause_kind kind, const struct job_node *n)
{
    struct mu_cause c = cause_of_node(kind, n);
    new_cause(j, &c);
}

static void enter(struct job *j, int64_t now_ns)
{
    j->since_ns = now_ns;
    j->next_word_ns = now_ns + FIRST_WORD_NS;
    j->word_gap_ns = FIRST_WORD_NS;
}

/* How long this node may be silent: a member as long as the round says, whoever only waits one
 * lease. */
static int64_t silence_allowed(const struct job *j, const struct job_node *n)
{
    return n->in_round ? j->fence_ns : j->config.lease_ns;
}

static void watch_lease(struct job *j, const struct job_node *n)
{
    int64_t at = n->heard_ns + silence_allowed(j, n);
    if (at < j->lease_check_ns)
        j->lease_check_ns = at;
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
        int64_t at = n->heard_ns + silence_allowed(j, n);
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

/* No wait is silent: after 5 s, and then with growing gaps, everybody here hears what is waited
 * for. */
static void say_what_we_wait_for(struct job *j, int64_t now_ns)
{
    if (now_ns < j->next_word_ns)
        return;
    for (uint32_t i = 0; i < j->node_cap; i++)
        if (j->nodes[i].used)
            send(j, i, CTL_WAITING);
    j->word_now_ns = now_ns;
    j->next_word_ns = now_ns + j->word_gap_ns;
    j->word_gap_ns = j->word_gap_ns * 2 > WORD_GAP_MAX_NS ? WORD_GAP_MAX_NS : j->word_gap_ns * 2;
}

/* ------------------------------------------------------------------ greeting */

static void take_spec(struct job *j, const struct ctl_hello *h, int64_t unix_ms)
{
    if (j->has_spec)
        return;
    j->has_spec = true;
    j->nodes_min = (uint32_t)h->nodes_min;
    j->nodes_max = (uint32_t)h->nodes_max;
    j->max_restarts = (uint32_t)h->max_restarts;
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
    if (r == 0)
        r = roster_reserve(j);
    if (r < 0)
        return r;
    uint32_t slot = roster_add(j, now_ns, ev);
    if (slot == JOB_NO_NODE)
        return -ENOMEM;
    bool first = !j->has_spec;
    take_spec(j, h, ev->unix_ms);
    if (first && j->state == JOB_GATHERING) {
        enter(j, now_ns);
        j->gather_deadline_ns = now_ns + j->join_timeout_ns;
    }
    if (h->round > j->round_seen)
        j->round_seen = (uint32_t)h->round;
    if (h->round_seen > j->round_seen)
        j->round_seen = (uint32_t)h->round_seen;
    j->hello_slot = slot;
    send(j, slot, CTL_WELCOME);
    watch_lease(j, &j->nodes[slot]);
    return 0;
}

/* It has processes of a round that does not live here: they must be gone before it can be in
 * another. */
static void stop_stale(struct job *j, uint32_t slot)
{
    struct job_node *n = &j->nodes[slot];
    n->stale_round = (uint32_t)n->hello.round;
    roster_set(j, slot, JOB_NODE_STOPPING);
    send(j, slot, CTL_STOP);
}

/* The agent of a slot is back on a new connection: what it says of itself now counts. */
static void take_back(struct job *j, int64_t now_ns, uint32_t slot, const struct job_event *ev)
{
    struct job_node *n = &j->nodes[slot];
    const struct ctl_hello *h = &ev->msg->u.hello;
    roster_heard(j, slot, now_ns);
    int64_t nproc = n->hello.nproc; /* As many workers as were reserved. */
    n->hello = *h;
    n->hello.nproc = nproc;
    n->store_port = (uint16_t)h->store_port;
    if (ev->seen_addr != NULL)
        (void)mu_strcopy(n->seen_addr, sizeof n->seen_addr, ev->seen_addr);
    roster_connect(j, slot, true);
    j->hello_slot = slot;
    send(j, slot, CTL_WELCOME);
    watch_lease(j, n);
}

/* GATHERING: can the round begin? */
static int ready(struct job *j, int64_t now_ns)
{
    bool first = j->round == 0;
    if (j->waiting < j->nodes_min || j->waiting == 0) {
        j->last_call_at_ns = NEVER;
        return 0;
    }
    if (first && now_ns < j->config.not_before_ns)
        return 0;
    if (j->waiting >= j->nodes_max)
        return JOB_EV_READY;
    if (!first) {
        /* Who was here a moment ago and is only cut off may return within its lease; else go on
         * with who is here. */
        bool all_here = true;
        for (uint32_t i = 0; i < j->node_cap && all_here; i++)
            all_here =
                !j->nodes[i].used || j->nodes[i].state != JOB_NODE_WAITING || j->nodes[i].connected;
        return all_here ? JOB_EV_READY : 0;
    }
    if (j->last_call_at_ns == NEVER)
        j->last_call_at_ns = now_ns + j->last_call_ns;
    return now_ns >= j->last_call_at_ns ? JOB_EV_READY : 0;
}

static int
gather_hello(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    const struct ctl_hello *h = &ev->msg->u.hello;
    uint32_t slot = roster_find(j, h->node);
    if (slot != JOB_NO_NODE) {
        take_back(j, now_ns, slot, ev);
    } else {
        /* A round that this server has never heard of: it was restarted, and the round may live on.
         * Even one stopped member tells so. */
        bool resumes = j->round == 0 && names_round(h);
        int r = resumes ? roster_reserve_members(j, (uint32_t)h->round_nodes) : 0;
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
    return ready(j, now_ns);
}

/* A node's word that it is in the round which is being recovered. */
static int take_member(struct job *j, uint32_t slot)
{
    struct job_node *n = &j->nodes[slot];
    const struct ctl_hello *h = &n->hello;
    uint32_t rank = (uint32_t)h->round_node_rank;
    if (h->round != j->round || rank >= j->round_nodes || j->members[rank] != JOB_NO_NODE) {
        if (brings_round(h))
            stop_stale(j, slot);
        return 0;
    }
    static const enum job_node_state states[] = {JOB_NODE_RUNNING, JOB_NODE_FINISHED,
                                                 JOB_NODE_STOPPING, JOB_NODE_STOPPED};
    j->members[rank] = slot;
    n->in_round = true;
    n->node_rank = (int32_t)rank;
    roster_set(j, slot, states[h->round_state]);
    if (h->round_cause.kind != MU_CAUSE_NONE)
        new_cause(j, &h->round_cause); /* The server that died had decided already. */
    MU_ASSERT(j->pending > 0);
    return --j->pending == 0 ? JOB_EV_RESUMED : 0;
}

/* Look for the members of the round that this hello names. Its room was reserved. */
static void expect_round(struct job *j, int64_t now_ns, const struct ctl_hello *h)
{
    j->round = (uint32_t)h->round;
    j->round_nodes = (uint32_t)h->round_nodes;
    j->restarts = (uint32_t)h->round_restarts;
    j->fence_ns = h->round_fence_ms > 0 ? h->round_fence_ms * NS_PER_MS : j->config.fence_ns;
    for (uint32_t i = 0; i < j->round_nodes; i++)
        j->members[i] = JOB_NO_NODE;
    j->pending = j->round_nodes;
    j->missing_fenced = false;
    enter(j, now_ns);
}

static int
begin_recovery(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    expect_round(j, now_ns, &ev->msg->u.hello);
    /* Who came before it, still in GATHERING, can only be fresh: a resuming one would have begun
     * this itself. */
    return take_member(j, j->hello_slot);
}

/* A later round than the one being recovered: the earlier one was surely over before the later
 * began. */
static int recover_later_round(struct job *j, int64_t now_ns, uint32_t slot)
{
    for (uint32_t r = 0; r < j->round_nodes; r++) {
        if (j->members[r] == JOB_NO_NODE)
            continue;
        struct job_node *n = &j->nodes[j->members[r]];
        n->in_round = false;
        n->node_rank = -1;
        if (n->state == JOB_NODE_LOST)
            continue;
        if (n->state == JOB_NODE_STOPPED)
            roster_set(j, j->members[r], JOB_NODE_WAITING);
        else
            stop_stale(j, j->members[r]);
    }
    expect_round(j, now_ns, &j->nodes[slot].hello);
    return take_member(j, slot);
}

static int
recover_hello(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    const struct ctl_hello *h = &ev->msg->u.hello;
    uint32_t slot = roster_find(j, h->node);
    if (slot == JOB_NO_NODE) {
        bool later = names_round(h) && h->round > j->round;
        int r = later ? roster_reserve_members(j, (uint32_t)h->round_nodes) : 0;
        if (r == 0)
            r = take_in(j, now_ns, ev, err);
        if (r < 0)
            return r;
        return later ? recover_later_round(j, now_ns, j->hello_slot)
                     : take_member(j, j->hello_slot);
    }
    take_back(j, now_ns, slot, ev);
    struct job_node *n = &j->nodes[slot];
    if (!n->in_round && n->state == JOB_NODE_STOPPING && !brings_round(&n->hello))
        roster_set(j, slot, JOB_NODE_WAITING);
    else if (!n->in_round && brings_round(&n->hello))
        stop_stale(j, slot);
    else if (n->in_round && n->hello.round_state == 1)
        roster_set(j, slot, JOB_NODE_FINISHED);
    else if (n->in_round && n->hello.round_state >= 2)
        roster_set(j, slot, n->hello.round_state == 2 ? JOB_NODE_STOPPING : JOB_NODE_STOPPED);
    return 0;
}

/* Count who still runs; what happened while no server was there decides how it goes on. */
static int
resume_round(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    enter(j, now_ns);
    j->round_started_ns = now_ns;
    const struct job_node *stopped = NULL;
    j->pending = 0;
    uint32_t world = 0;
    for (uint32_t r = 0; r < j->round_nodes; r++) {
        struct job_node *n = &j->nodes[j->members[r]];
        n->rank_base = (int32_t)world;
        world += (uint32_t)n->hello.nproc;
        j->pending += owes_finished(n);
        if (n->state == JOB_NODE_STOPPING || n->state == JOB_NODE_STOPPED)
            stopped = n;
    }
    ranks_find_lead(j);
    j->world = world;
    if (stopped != NULL) {
        node_cause(j, MU_CAUSE_NODE_SILENT, stopped);
        return JOB_EV_BROKEN;
    }
    return j->pending == 0 ? JOB_EV_OVER : 0;
}

/* A member is back after its connection broke. What was lost on the way is said again. */
static int run_member_back(struct job *j, uint32_t slot)
{
    struct job_node *n = &j->nodes[slot];
    if (n->hello.round != j->round) {
        if (brings_round(&n->hello)) { /* It never heard that its older round was over. */
            node_cause(j, MU_CAUSE_NODE_SILENT, n);
            return JOB_EV_BROKEN;
        }
        send(j, slot, CTL_START); /* START was lost. */
        return 0;
    }
    if (n->hello.round_state >=
        2) { /* It fenced itself: silent for too long, it stopped its workers. */
        node_cause(j, MU_CAUSE_NODE_SILENT, n);
        roster_set(j, slot, n->hello.round_state == 2 ? JOB_NODE_STOPPING : JOB_NODE_STOPPED);
        return JOB_EV_BROKEN;
    }
    if (n->hello.round_state == 1 && owes_finished(n)) {
        roster_set(j, slot, JOB_NODE_FINISHED);
        return --j->pending == 0 ? JOB_EV_OVER : 0;
    }
    if (n->state == JOB_NODE_STARTING)
        roster_set(j, slot, JOB_NODE_RUNNING); /* STARTED was lost. */
    return 0;
}

static int run_hello(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    const struct ctl_hello *h = &ev->msg->u.hello;
    uint32_t slot = roster_find(j, h->node);
    if (slot != JOB_NO_NODE) {
        take_back(j, now_ns, slot, ev);
        if (j->nodes[slot].in_round)
            return run_member_back(j, slot);
        if (brings_round(h))
            stop_stale(j, slot);
        else if (j->nodes[slot].state == JOB_NODE_STOPPING)
            roster_set(j, slot, JOB_NODE_WAITING);
        return 0;
    }
    int r = take_in(j, now_ns, ev, err);
    if (r < 0)
        return r;
    if (brings_round(h)) {
        stop_stale(j, j->hello_slot);
        return 0;
    }
    if (j->on_join_restart && j->round_nodes < j->nodes_max) {
        node_cause(j, MU_CAUSE_NODE_JOINED, &j->nodes[j->hello_slot]);
        return JOB_EV_BROKEN;
    }
    return 0; /* A hot spare. */
}

static int accounted(struct job *j)
{
    MU_ASSERT(j->pending > 0);
    if (--j->pending > 0)
        return 0;
    return j->final ? JOB_EV_SPENT : JOB_EV_CLEAR;
}

static int stop_hello(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    const struct ctl_hello *h = &ev->msg->u.hello;
    uint32_t slot = roster_find(j, h->node);
    if (slot == JOB_NO_NODE) {
        int r = take_in(j, now_ns, ev, err);
        if (r < 0)
            return r;
        slot = j->hello_slot;
        struct job_node *n = &j->nodes[slot];
        uint32_t rank = (uint32_t)h->round_node_rank;
        /* A member that a recovering server had not met yet. */
        if (h->round == j->round && !j->missing_fenced && rank < j->round_nodes &&
            j->members[rank] == JOB_NO_NODE) {
            j->members[rank] = slot;
            n->in_round = true;
            n->node_rank = (int32_t)rank;
            if (!brings_round(h)) {
                roster_set(j, slot, JOB_NODE_STOPPED);
                return accounted(j);
            }
            roster_set(j, slot, JOB_NODE_STOPPING);
            send(j, slot, CTL_STOP);
        } else if (brings_round(h)) {
            stop_stale(j, slot);
        }
        return 0;
    }
    take_back(j, now_ns, slot, ev);
    struct job_node *n = &j->nodes[slot];
    if (!n->in_round) {
        if (brings_round(h))
            stop_stale(j, slot);
        else if (n->state == JOB_NODE_STOPPING)
            roster_set(j, slot, JOB_NODE_WAITING);
        return 0;
    }
    if (brings_round(h)) {
        send(j, slot, CTL_STOP); /* STOP may have been lost. */
        return 0;
    }
    if (!owes_stopped(n))
        return 0;
    roster_set(j, slot, JOB_NODE_STOPPED); /* STOPPED was lost, or it never got START. */
    return accounted(j);
}

/* Say the last word to a node; its slot stays for status. */
static void dismiss(struct job *j, uint32_t slot)
{
    if (!j->nodes[slot].connected)
        return;
    send(j, slot, CTL_END);
    job_act(j, JOB_ACT_CLOSE, slot, CTL_TYPE_COUNT);
    roster_connect(j, slot, false);
}

/* The job is over. Its own agents are told once more; anybody else means a new job of the same id.
 */
static int
ended_hello(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
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
    } else {
        take_back(j, now_ns, slot, ev);
    }
    dismiss(j, slot);
    return 0;
}

/* ------------------------------------------------------------------ what nodes say */

static int beat(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    struct job_node *n = node_of(j, ev);
    roster_heard(j, ev->node, now_ns);
    if (ev->type == JOB_EV_BEAT) {
        n->beat_seq = ev->msg->u.beat.seq;
        send(j, ev->node, CTL_BEAT);
    }
    return j->state == JOB_GATHERING ? ready(j, now_ns) : 0;
}

/* Is the message about the live round, from a member of it? */
static bool of_this_round(struct job *j, int64_t now_ns, const struct job_event *ev, int64_t round)
{
    struct job_node *n = node_of(j, ev);
    roster_heard(j, ev->node, now_ns);
    return n->in_round && round == j->round && n->state != JOB_NODE_LOST;
}

static int
note_started(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    const struct ctl_started *m = &ev->msg->u.started;
    if (!of_this_round(j, now_ns, ev, m->round))
        return 0;
    struct job_node *n = node_of(j, ev);
    n->started_unix_ms = ev->unix_ms;
    for (uint32_t i = 0; i < m->pids.n && i < n->hello.nproc; i++)
        n->workers[i] = (struct job_worker){.pid = m->pids.v[i], .exit = JOB_EXIT_NONE};
    if (n->state == JOB_NODE_STARTING)
        roster_set(j, ev->node, JOB_NODE_RUNNING);
    return 0;
}

static int
note_exited(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    const struct ctl_exited *m = &ev->msg->u.exited;
    struct job_node *n = node_of(j, ev);
    if (of_this_round(j, now_ns, ev, m->round) && m->local_rank < n->hello.nproc)
        n->workers[m->local_rank].exit = 0;
    return 0;
}

static void note_failed_worker(struct job_node *n, const struct mu_cause *c)
{
    if (c->local_rank < 0 || c->local_rank >= n->hello.nproc)
        return;
    if (c->kind == MU_CAUSE_WORKER_EXIT)
        n->workers[c->local_rank].exit = c->exit_code;
    else if (c->kind == MU_CAUSE_WORKER_SIGNAL)
        n->workers[c->local_rank].exit = -c->signo;
}

static int run_failed(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    const struct ctl_failed *m = &ev->msg->u.failed;
    if (!of_this_round(j, now_ns, ev, m->round))
        return 0;
    struct job_node *n = node_of(j, ev);
    struct mu_cause c = m->cause;
    c.node_rank = n->node_rank;
    if (c.local_rank >= 0)
        c.rank = n->rank_base + c.local_rank;
    if (c.host[0] == '\0')
        memcpy(c.host, n->hello.host, sizeof c.host);
    note_failed_worker(n, &c);
    new_cause(j, &c);
    return JOB_EV_BROKEN;
}

static int
count_failed(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    const struct ctl_failed *m = &ev->msg->u.failed;
    if (of_this_round(j, now_ns, ev, m->round)) {
        note_failed_worker(node_of(j, ev), &m->cause);
        j->consequences++;
    }
    return 0;
}

static void finish_node(struct job *j, uint32_t slot)
{
    struct job_node *n = &j->nodes[slot];
    for (int64_t i = 0; i < n->hello.nproc; i++)
        n->workers[i].exit = 0;
    roster_set(j, slot, JOB_NODE_FINISHED);
}

static int
run_finished(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    if (!of_this_round(j, now_ns, ev, ev->msg->u.finished.round) || !owes_finished(node_of(j, ev)))
        return 0;
    finish_node(j, ev->node);
    return --j->pending == 0 ? JOB_EV_OVER : 0;
}

static int
recover_finished(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    if (of_this_round(j, now_ns, ev, ev->msg->u.finished.round) && owes_finished(node_of(j, ev)))
        finish_node(j, ev->node);
    return 0;
}

static void note_stopped(struct job *j, const struct job_event *ev)
{
    const struct ctl_stopped *m = &ev->msg->u.stopped;
    struct job_node *n = node_of(j, ev);
    n->store_port = (uint16_t)m->store_port;
    for (uint32_t i = 0; i < m->exits.n && i < n->hello.nproc; i++)
        n->workers[i].exit = m->exits.v[i] == -1000 ? JOB_EXIT_UNKNOWN : m->exits.v[i];
}

/* Nobody told it to stop: it had not heard us for too long and fenced itself. */
static int
run_stopped(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    if (!of_this_round(j, now_ns, ev, ev->msg->u.stopped.round))
        return stale_stopped(j, now_ns, ev, err);
    note_stopped(j, ev);
    node_cause(j, MU_CAUSE_NODE_SILENT, node_of(j, ev));
    roster_set(j, ev->node, JOB_NODE_STOPPED);
    return JOB_EV_BROKEN;
}

static int
stop_stopped(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    if (!of_this_round(j, now_ns, ev, ev->msg->u.stopped.round))
        return stale_stopped(j, now_ns, ev, err);
    if (!owes_stopped(node_of(j, ev)))
        return 0; /* Said twice: identities are counted, not messages. */
    note_stopped(j, ev);
    roster_set(j, ev->node, JOB_NODE_STOPPED);
    return accounted(j);
}

static int
stale_stopped(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    struct job_node *n = node_of(j, ev);
    roster_heard(j, ev->node, now_ns);
    if (n->in_round || n->state != JOB_NODE_STOPPING || ev->msg->u.stopped.round != n->stale_round)
        return 0;
    note_stopped(j, ev);
    n->stale_round = 0;
    roster_set(j, ev->node, JOB_NODE_WAITING);
    return j->state == JOB_GATHERING ? ready(j, now_ns) : 0;
}

/* ------------------------------------------------------------------ who is gone */

static int away(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    roster_connect(j, ev->node, false);
    watch_lease(j, node_of(j, ev));
    return 0;
}

/* Why a node is not here any more, by how we know. */
static enum mu_cause_kind kind_of_leaving(const struct job_event *ev)
{
    if (ev->type == JOB_EV_NODE_DEAD)
        return MU_CAUSE_NODE_LOST;
    return ev->type == JOB_EV_BYE ? MU_CAUSE_NODE_LEFT : MU_CAUSE_NODE_SILENT;
}

static void cause_of_leaving(struct job *j, const struct job_event *ev, const struct job_node *n)
{
    const struct mu_cause *said = ev->type == JOB_EV_BYE ? &ev->msg->u.bye.cause : NULL;
    struct mu_cause c = cause_of_node(kind_of_leaving(ev), n);
    if (said != NULL && said->kind == MU_CAUSE_NODE_FAILED)
        c.kind = said->kind;
    if (said != NULL)
        memcpy(c.message, said->message, sizeof c.message);
    new_cause(j, &c);
}

/* Its reason is the round's cause, or a job's without a round, unless a failure is known already.
 */
static int
gather_left(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    if (!j->has_cause || !mu_cause_costs_restart(j->cause.kind))
        cause_of_leaving(j, ev, node_of(j, ev));
    roster_forget(j, ev->node);
    return j->node_count == 0 ? JOB_EV_ABANDONED : ready(j, now_ns);
}

/* A member is gone for good: it stays in the table for status until the next round. */
static void lose(struct job *j, uint32_t slot, bool connection_gone)
{
    if (connection_gone)
        roster_connect(j, slot, false);
    roster_set(j, slot, JOB_NODE_LOST);
}

static int run_left(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    struct job_node *n = node_of(j, ev);
    if (!n->in_round) {
        roster_forget(j, ev->node);
        return 0;
    }
    if (n->state == JOB_NODE_FINISHED) { /* Its work is done; the round goes on without it. */
        if (ev->type != JOB_EV_DEADLINE)
            roster_connect(j, ev->node, false);
        n->gone = true;
        return 0;
    }
    cause_of_leaving(j, ev, n);
    lose(j, ev->node, ev->type != JOB_EV_DEADLINE);
    return JOB_EV_BROKEN;
}

static int stop_left(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    struct job_node *n = node_of(j, ev);
    if (!n->in_round) {
        roster_forget(j, ev->node);
        return 0;
    }
    bool owed = owes_stopped(n);
    lose(j, ev->node, ev->type != JOB_EV_DEADLINE);
    return owed ? accounted(j) : 0;
}

static int ended_left(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    roster_connect(j, ev->node, false); /* The slot stays, for status. */
    return 0;
}

/* ------------------------------------------------------------------ time */

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

static int
gather_deadline(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    int news = silent_ones(j, now_ns, ev, gather_left);
    if (news != 0)
        return news;
    news = ready(j, now_ns);
    if (news != 0)
        return news;
    if (now_ns >= j->gather_deadline_ns)
        return JOB_EV_GIVE_UP;
    say_what_we_wait_for(j, now_ns);
    return 0;
}

static int
recover_deadline(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    int news = silent_ones(j, now_ns, ev, run_left);
    if (news != 0)
        return news;
    if (now_ns >= j->since_ns + j->fence_ns) {
        struct mu_cause c = MU_CAUSE_INIT;
        c.kind = MU_CAUSE_NODE_SILENT;
        (void)snprintf(c.message, sizeof c.message,
                       "%u of %u nodes did not come back after the server's restart", j->pending,
                       j->round_nodes);
        new_cause(j, &c);
        j->missing_fenced = true;
        return JOB_EV_BROKEN;
    }
    say_what_we_wait_for(j, now_ns);
    return 0;
}

static int
run_deadline(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    return silent_ones(j, now_ns, ev, run_left);
}

static int
stop_deadline(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    int news = silent_ones(j, now_ns, ev, stop_left);
    if (news != 0)
        return news;
    if (!j->missing_fenced && now_ns >= j->missing_until_ns) {
        j->missing_fenced = true;
        for (uint32_t r = 0; r < j->round_nodes; r++) {
            if (j->members[r] != JOB_NO_NODE)
                continue;
            news = accounted(j);
            if (news != 0)
                return news;
        }
    }
    say_what_we_wait_for(j, now_ns);
    return 0;
}

/* ------------------------------------------------------------------ what follows */

static int
begin_round(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    enter(j, now_ns);
    j->round = (j->round > j->round_seen ? j->round : j->round_seen) + 1;
    j->round_seen = j->round;
    j->round_started_ns = now_ns;
    j->round_started_unix_ms = ev->unix_ms;
    j->final = false;
    j->missing_fenced = true; /* Every member is known. */
    ranks_assign(j);
    j->pending = j->round_nodes;
    for (uint32_t r = 0; r < j->round_nodes; r++) {
        struct job_node *n = &j->nodes[j->members[r]];
        n->in_round = true;
        n->started_unix_ms = 0;
        for (int64_t i = 0; i < n->hello.nproc; i++)
            n->workers[i] = (struct job_worker){.pid = 0, .exit = JOB_EXIT_NONE};
        roster_set(j, j->members[r], JOB_NODE_STARTING);
        send(j, j->members[r], CTL_START);
    }
    return 0;
}

/* The round must stop: decide whether another follows, tell everybody at once. */
static int stop_round(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    bool recovering = j->state == JOB_RECOVERING;
    j->missing_until_ns = recovering ? j->since_ns + j->fence_ns : 0;
    enter(j, now_ns);
    if (mu_cause_costs_restart(j->cause.kind)) {
        j->final = j->restarts >= j->max_restarts;
        j->restarts += !j->final;
    }
    j->pending = 0;
    for (uint32_t r = 0; r < j->round_nodes; r++) {
        uint32_t slot = j->members[r];
        if (slot == JOB_NO_NODE) { /* Never came back: its fence time must pass. */
            j->pending += !j->missing_fenced;
            continue;
        }
        if (!owes_stopped(&j->nodes[slot]))
            continue;
        if (j->nodes[slot].gone) {
            lose(j, slot, false);
            continue;
        }
        j->pending++;
        roster_set(j, slot, JOB_NODE_STOPPING);
        send(j, slot, CTL_STOP);
    }
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

static int gather(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    enter(j, now_ns);
    dissolve(j);
    j->gather_deadline_ns = now_ns + j->join_timeout_ns;
    j->last_call_at_ns = NEVER;
    j->lease_check_ns = now_ns; /* Who waits may be silent for one lease only: look anew. */
    return j->node_count == 0 ? JOB_EV_ABANDONED : ready(j, now_ns);
}

/* Everybody is told; what comes after is silence. */
static void tell_end(struct job *j, int64_t now_ns, int64_t unix_ms)
{
    enter(j, now_ns);
    j->ended_unix_ms = unix_ms;
    for (uint32_t i = 0; i < j->node_cap; i++)
        if (j->nodes[i].used)
            dismiss(j, i);
}

static int succeed(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    tell_end(j, now_ns, ev->unix_ms);
    return 0;
}

static int fail(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    tell_end(j, now_ns, ev->unix_ms);
    return 0;
}

static int give_up(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    struct mu_cause c = MU_CAUSE_INIT;
    struct mu_buf b;
    mu_buf_init(&b, j->mem);
    c.kind = MU_CAUSE_JOIN_TIMEOUT;
    job_sentence(j, now_ns, &b);
    (void)snprintf(c.message, sizeof c.message, "%s",
                   mu_buf_cstr(&b)); /* A cut sentence is still a sentence. */
    mu_buf_fini(&b);
    new_cause(j, &c);
    tell_end(j, now_ns, ev->unix_ms);
    return 0;
}

static int abandon(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    return fail(j, now_ns, ev, err);
}

/* ------------------------------------------------------------------ the machine */

static int64_t sooner(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t next_deadline(const struct job *j, int64_t now_ns)
{
    int64_t at = j->lease_check_ns;
    switch (j->state) {
    case JOB_GATHERING:
        if (!j->has_spec)
            return NEVER;
        at = sooner(sooner(at, j->next_word_ns), sooner(j->gather_deadline_ns, j->last_call_at_ns));
        return j->round == 0 && now_ns < j->config.not_before_ns
                   ? sooner(at, j->config.not_before_ns)
                   : at;
    case JOB_RECOVERING:
        return sooner(sooner(at, j->next_word_ns), j->since_ns + j->fence_ns);
    case JOB_RUNNING:
        return at;
    case JOB_STOPPING:
        return sooner(sooner(at, j->next_word_ns), j->missing_fenced ? NEVER : j->missing_until_ns);
    case JOB_SUCCEEDED:
    case JOB_FAILED:
    case JOB_STATE_COUNT:
        break;
    }
    return NEVER;
}

int job_init(struct job *j,
             const struct mu_mem *mem,
             const struct job_config *config,
             struct mu_err *err)
{
    *j = (struct job){.mem = mem,
                      .state = JOB_GATHERING,
                      .config = *config,
                      .free_head = JOB_NO_NODE,
                      .hello_slot = JOB_NO_NODE,
                      .lead = JOB_NO_NODE,
                      .missing_fenced = true,
                      .gather_deadline_ns = NEVER,
                      .last_call_at_ns = NEVER,
                      .next_word_ns = NEVER,
                      .lease_check_ns = NEVER,
                      .deadline_ns = NEVER};
    j->config.run_id = j->run_id;
    if (j->config.fence_ns == 0)
        j->config.fence_ns = MU_FENCE_NS;
    if (config->run_id[0] == '\0' || mu_strcopy(j->run_id, sizeof j->run_id, config->run_id) < 0)
        return mu_err_set(err, -EINVAL, "a run id has 1 to %d characters", MU_RUN_ID_BYTES - 1);
    return 0;
}

void job_fini(struct job *j)
{
    for (uint32_t i = 0; i < j->node_cap; i++)
        mu_mem_free(j->mem, j->nodes[i].workers);
    mu_mem_free(j->mem, j->nodes);
    mu_mem_free(j->mem, j->index);
    mu_mem_free(j->mem, j->members);
    mu_mem_free(j->mem, j->scratch);
    mu_mem_free(j->mem, j->actions);
    *j = (struct job){.mem = j->mem};
}

int job_step(struct job *j,
             int64_t now_ns,
             const struct job_event *ev,
             struct job_out *out,
             struct mu_err *err)
{
    struct job_event e = *ev;
    out->count = 0;
    out->move_count = 0;
    out->from = j->state;
    out->node = JOB_NO_NODE;
    j->action_count = 0;
    j->hello_slot = JOB_NO_NODE;
    j->step_unix_ms = ev->unix_ms;
    for (;;) {
        const struct job_row *row = &table[j->state][e.type];
        if (row->to == 0) {
            MU_ASSERT(out->move_count == 0); /* News of our own always have a row. */
            j->rejected_count++;
            out->to = j->state;
            return -EPROTO;
        }
        int news = row->act != NULL ? row->act(j, now_ns, &e, err) : 0;
        if (news < 0) {
            MU_ASSERT(out->move_count == 0); /* Only the first event can be refused. */
            out->to = j->state;
            return news;
        }
        MU_ASSERT(out->move_count < JOB_MOVES_MAX);
        out->moves[out->move_count++] =
            (struct job_move){e.type, j->state, (enum job_state)(row->to - 1)};
        j->state = (enum job_state)(row->to - 1); /* The only line that writes the state. */
        if (news == 0)
            break;
        e.type = (enum job_event_type)news;
    }
    j->deadline_ns = next_deadline(j, now_ns);
    out->actions = j->actions;
    out->count = j->action_count;
    out->to = j->state;
    out->node = ev->type == JOB_EV_HELLO ? j->hello_slot : JOB_NO_NODE;
    return 0;
}

/* ------------------------------------------------------------------ messages */

static void fill_start(const struct job *j, const struct job_node *n, struct ctl_start *m)
{
    const struct job_node *lead = &j->nodes[j->lead];
    m->round = j->round;
    m->node_rank = n->node_rank;
    m->node_count = j->round_nodes;
    m->rank_base = n->rank_base;
    m->world = j->world;
    m->role_rank_base = n->role_rank_base;
    m->role_world = n->role_world;
    m->restarts = j->restarts;
    m->max_restarts = j->max_restarts;
    m->lead_port = lead->store_port;
    m->fence_ms = j->fence_ns / NS_PER_MS;
    (void)mu_strcopy(m->lead_addr, sizeof m->lead_addr, j->lead_addr);
}

static void fill_stop(const struct job *j, const struct job_node *n, struct ctl_stop *m)
{
    bool stale = !n->in_round;
    m->round = stale ? n->stale_round : j->round;
    m->final = !stale && j->final;
    m->cause = j->cause;
    if (!j->has_cause) {
        m->cause = MU_CAUSE_INIT;
        m->cause.kind = MU_CAUSE_NODE_SILENT;
        memcpy(m->cause.host, n->hello.host, sizeof m->cause.host);
    }
}

void job_message(const struct job *j, uint32_t node, enum ctl_type type, struct ctl_msg *ret)
{
    MU_ASSERT(node < j->node_cap && j->nodes[node].used);
    const struct job_node *n = &j->nodes[node];
    ctl_init(ret, type);
    if (type == CTL_WELCOME) {
        (void)mu_strcopy(ret->u.welcome.version, sizeof ret->u.welcome.version, j->config.version);
        memcpy(ret->u.welcome.seen_addr, n->seen_addr, sizeof ret->u.welcome.seen_addr);
        ret->u.welcome.lease_ms = j->config.lease_ns / NS_PER_MS;
        ret->u.welcome.beat_ms = j->config.beat_ns / NS_PER_MS;
    } else if (type == CTL_START) {
        fill_start(j, n, &ret->u.start);
    } else if (type == CTL_STOP) {
        fill_stop(j, n, &ret->u.stop);
    } else if (type == CTL_BEAT) {
        ret->u.beat.round = n->in_round ? j->round : 0;
        ret->u.beat.seq = n->beat_seq;
    } else if (type == CTL_WAITING) {
        struct mu_buf b;
        mu_buf_init(&b, j->mem);
        job_sentence(j, j->word_now_ns, &b);
        (void)snprintf(ret->u.waiting.text, sizeof ret->u.waiting.text, "%s", mu_buf_cstr(&b));
        mu_buf_fini(&b);
    } else if (type == CTL_END) {
        ret->u.end.success = j->state == JOB_SUCCEEDED;
        ret->u.end.round = j->round;
        ret->u.end.restarts = j->restarts;
        ret->u.end.max_restarts = j->max_restarts;
        if (j->has_cause && j->state == JOB_FAILED)
            ret->u.end.cause = j->cause;
    }
}
