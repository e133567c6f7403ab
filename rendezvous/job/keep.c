/* Rows out of a job, and a job out of rows; see keep.h. */
#include "rendezvous/job/keep.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "rendezvous/job/internal.h"

#define INT_OF(type, name, min, max) {#name, offsetof(type, name), 0, (min), (max)},
#define STR_OF(type, name, bytes) {#name, offsetof(type, name), (bytes), 0, 0},
#define ROW_INT(name, min, max) INT_OF(struct job_row_kept, name, min, max)
#define ROW_STR(name, bytes) STR_OF(struct job_row_kept, name, bytes)
#define NODE_INT(name, min, max) INT_OF(struct job_node_row, name, min, max)
#define NODE_STR(name, bytes) STR_OF(struct job_node_row, name, bytes)
#define INCIDENT_INT(name, min, max) INT_OF(struct job_incident, name, min, max)
#define INCIDENT_STR(name, bytes) STR_OF(struct job_incident, name, bytes)
static const struct job_field row_fields[] = {JOB_ROW_FIELDS(ROW_INT, ROW_STR)};
static const struct job_field node_fields[] = {JOB_NODE_ROW_FIELDS(NODE_INT, NODE_STR){
    "hello", offsetof(struct job_node_row, hello), JOB_FIELD_BLOB, 0, 0}};
static const struct job_field incident_fields[] = {JOB_INCIDENT_FIELDS(INCIDENT_INT, INCIDENT_STR)};
const struct job_fields job_row_fields = {row_fields, MU_COUNT(row_fields)};
const struct job_fields job_node_row_fields = {node_fields, MU_COUNT(node_fields)};
const struct job_fields job_incident_fields = {incident_fields, MU_COUNT(incident_fields)};

const char *job_decision_name(enum job_decision d)
{
    static const char *const names[] = {
#define X(name, text) [JOB_DECIDED_##name] = text,
        JOB_DECISIONS(X)
#undef X
    };
    MU_ASSERT((size_t)d < MU_COUNT(names));
    return names[d];
}

/* --- a cause, in rows that have one: each list of fields makes its own struct --- */

#define CAUSE_OUT(row, c)                                                                          \
    do {                                                                                           \
        (void)mu_strcopy((row)->cause_kind, sizeof(row)->cause_kind,                               \
                         mu_cause_kind_text((c)->kind));                                           \
        memcpy((row)->cause_host, (c)->host, sizeof(row)->cause_host);                             \
        memcpy((row)->cause_message, (c)->message, sizeof(row)->cause_message);                    \
        (row)->cause_node_rank = (c)->node_rank;                                                   \
        (row)->cause_rank = (c)->rank;                                                             \
        (row)->cause_local_rank = (c)->local_rank;                                                 \
        (row)->cause_pid = (c)->pid;                                                               \
        (row)->cause_exit_code = (c)->exit_code;                                                   \
        (row)->cause_signo = (c)->signo;                                                           \
        (row)->cause_blame = (c)->blame;                                                           \
        (row)->cause_step = (c)->step;                                                             \
        (row)->cause_core_dumped = (c)->core_dumped;                                               \
        (row)->cause_out_of_memory = (c)->out_of_memory;                                           \
        (row)->cause_round = (c)->round;                                                           \
        (row)->cause_at_unix_ms = (c)->at_unix_ms;                                                 \
    } while (0)

#define CAUSE_IN(c, row)                                                                           \
    do {                                                                                           \
        *(c) = MU_CAUSE_INIT;                                                                      \
        (void)mu_cause_kind_parse((row)->cause_kind, &(c)->kind); /* Stays "none". */              \
        memcpy((c)->host, (row)->cause_host, sizeof(c)->host);                                     \
        memcpy((c)->message, (row)->cause_message, sizeof(c)->message);                            \
        (c)->node_rank = (int32_t)(row)->cause_node_rank;                                          \
        (c)->rank = (int32_t)(row)->cause_rank;                                                    \
        (c)->local_rank = (int32_t)(row)->cause_local_rank;                                        \
        (c)->pid = (int32_t)(row)->cause_pid;                                                      \
        (c)->exit_code = (int32_t)(row)->cause_exit_code;                                          \
        (c)->signo = (int32_t)(row)->cause_signo;                                                  \
        (c)->blame = (int32_t)(row)->cause_blame;                                                  \
        (c)->step = (int32_t)(row)->cause_step;                                                    \
        (c)->core_dumped = (int32_t)(row)->cause_core_dumped;                                      \
        (c)->out_of_memory = (int32_t)(row)->cause_out_of_memory;                                  \
        (c)->round = (uint32_t)(row)->cause_round;                                                 \
        (c)->at_unix_ms = (row)->cause_at_unix_ms;                                                 \
    } while (0)

void job_incident_cause(const struct job_incident *in, struct mu_cause *ret)
{
    CAUSE_IN(ret, in);
}

void job_keep_cause(const struct job *j, struct job_incident *ret)
{
    static const struct mu_cause none = MU_CAUSE_INIT;
    const struct mu_cause *c = j->has_cause && j->cause.round == j->round ? &j->cause : &none;
    CAUSE_OUT(ret, c);
    (void)snprintf(ret->tail, sizeof ret->tail, "%s", c != &none ? j->cause_tail : "");
    (void)snprintf(ret->trace, sizeof ret->trace, "%s", c != &none ? j->cause_trace : "");
}

/* --- out --- */

void job_save(const struct job *j, struct job_row_kept *ret)
{
    *ret = (struct job_row_kept){.created_unix_ms = j->created_unix_ms,
                                 .round_started_unix_ms = j->round_started_unix_ms,
                                 .gathering_unix_ms = j->gathering_unix_ms,
                                 .running_unix_ms = j->running_unix_ms,
                                 .ended_unix_ms = j->ended_unix_ms,
                                 .nodes_min = j->nodes_min,
                                 .nodes_max = j->nodes_max,
                                 .max_restarts = j->max_restarts,
                                 .join_timeout_ns = j->join_timeout_ns,
                                 .last_call_ns = j->last_call_ns,
                                 .on_join_restart = j->on_join_restart,
                                 .round = j->round,
                                 .round_seen = j->round_seen,
                                 .round_nodes = j->round_nodes,
                                 .world = j->world,
                                 .lead_port = j->lead_port,
                                 .fence_ns = j->fence_ns,
                                 .restarts = j->restarts,
                                 .halt_step = j->halt_step,
                                 .final = j->final,
                                 .was_charged = j->was_charged,
                                 .has_cause = j->has_cause,
                                 .consequences = j->consequences,
                                 .forgiven_unix_ms = j->forgiven_unix_ms,
                                 .incidents = j->incident_count};
    (void)mu_strcopy(ret->run_id, sizeof ret->run_id, j->run_id);
    (void)mu_strcopy(ret->state, sizeof ret->state, job_state_name(j->state));
    memcpy(ret->lead_addr, j->lead_addr, sizeof ret->lead_addr);
    memcpy(ret->spec_host, j->spec_host, sizeof ret->spec_host);
    memcpy(ret->spent_by, j->spent_by, sizeof ret->spent_by);
    budget_save(j, ret);
    memcpy(ret->forgiven_host, j->forgiven_host, sizeof ret->forgiven_host);
    CAUSE_OUT(ret, &j->cause);
}

static void copy(char *dst, size_t cap, const char *src)
{
    (void)mu_strcopy(dst, cap, src); /* It came out of a field of this size. */
}

/* The hello again, as far as it is remembered. */
static void said_of(const struct job *j, const struct job_node *n, struct ctl_hello *ret)
{
    const struct job_hello *h = &n->hello;
    copy(ret->run_id, sizeof ret->run_id, j->run_id);
    copy(ret->version, sizeof ret->version, h->version);
    copy(ret->node, sizeof ret->node, h->node);
    copy(ret->host, sizeof ret->host, h->host);
    copy(ret->fqdn, sizeof ret->fqdn, h->fqdn);
    copy(ret->local_addr, sizeof ret->local_addr, h->local_addr);
    copy(ret->host_addr, sizeof ret->host_addr, h->host_addr);
    copy(ret->topology, sizeof ret->topology, h->topology);
    copy(ret->role, sizeof ret->role, h->role);
    copy(ret->boot_id, sizeof ret->boot_id, h->boot_id);
    ret->pid = h->pid;
    ret->cpus = h->cpus;
    ret->gpus = h->gpus;
    ret->nproc = h->nproc;
    ret->node_rank = h->node_rank;
    ret->round = h->round;
    ret->link = h->link;
    ret->nodes_min = j->nodes_min;
    ret->nodes_max = j->nodes_max;
    ret->max_restarts = j->max_restarts;
    ret->store_port = n->store_port;
    ret->life_port = n->life_port;
}

int job_save_node(const struct job *j,
                  uint32_t slot,
                  struct job_node_row *ret,
                  struct mu_buf *hello)
{
    const struct job_node *n = &j->nodes[slot];
    size_t from = hello->n;
    struct ctl_msg m;
    MU_ASSERT(n->used);
    ctl_init(&m, CTL_HELLO);
    said_of(j, n, &m.u.hello);
    if (ctl_encode(&m, hello) < 0)
        return -ENOMEM;
    *ret = (struct job_node_row){.node_rank = n->node_rank,
                                 .rank_base = n->in_round && !n->ranked ? -1 : n->rank_base,
                                 .role_rank_base = n->role_rank_base,
                                 .role_world = n->role_world,
                                 .gone = n->gone,
                                 .halted = n->halted,
                                 .joined_unix_ms = n->joined_unix_ms,
                                 .started_unix_ms = n->started_unix_ms,
                                 .hello = mu_str_of(hello->p + from + CTL_FRAME_HEAD_BYTES,
                                                    hello->n - from - CTL_FRAME_HEAD_BYTES)};
    (void)mu_strcopy(ret->state, sizeof ret->state, job_node_state_name(n->state));
    if (n->drain != NULL) {
        ret->drain_since_unix_ms = n->drain->since_unix_ms;
        ret->drain_until_unix_ms = n->drain->until_unix_ms;
        copy(ret->drain_reason, sizeof ret->drain_reason, n->drain->reason);
    }
    copy(ret->node, sizeof ret->node, n->hello.node);
    copy(ret->seen_addr, sizeof ret->seen_addr, n->seen_addr);
    copy(ret->via_addr, sizeof ret->via_addr, n->via_addr);
    return 0;
}

/* --- in --- */

static int senseless(struct mu_err *err, const char *what)
{
    return mu_err_set(err, -EPROTO, "its kept %s makes no sense", what);
}

static int check_fields(struct job_fields fields, const void *row, struct mu_err *err)
{
    for (size_t i = 0; i < fields.n; i++) {
        const struct job_field *f = &fields.v[i];
        const char *at = (const char *)row + f->offset;
        int64_t v = 0;
        if (f->bytes == JOB_FIELD_BLOB)
            continue;
        if (f->bytes > 0 && memchr(at, '\0', f->bytes) == NULL)
            return senseless(err, f->name);
        if (f->bytes == 0) {
            memcpy(&v, at, sizeof v);
            if (v < f->min || v > f->max)
                return senseless(err, f->name);
        }
    }
    return 0;
}

int job_check_incident(const struct job_incident *in, struct mu_err *err)
{
    return check_fields(job_incident_fields, in, err);
}

static int find_state(const char *name)
{
    for (int s = 0; s < JOB_STATE_COUNT; s++)
        if (strcmp(job_state_name((enum job_state)s), name) == 0)
            return s;
    return -1;
}

static int find_node_state(const char *name)
{
    for (int s = 0; s < JOB_NODE_STATE_COUNT; s++)
        if (strcmp(job_node_state_name((enum job_node_state)s), name) == 0)
            return s;
    return -1;
}

static void load_numbers(struct job *j, const struct job_row_kept *row)
{
    j->loaded = true;
    j->has_spec = true;
    j->created_unix_ms = row->created_unix_ms;
    j->round_started_unix_ms = row->round_started_unix_ms;
    j->gathering_unix_ms = row->gathering_unix_ms;
    j->running_unix_ms = row->running_unix_ms;
    j->ended_unix_ms = row->ended_unix_ms;
    j->nodes_min = (uint32_t)row->nodes_min;
    j->nodes_max = (uint32_t)row->nodes_max;
    j->max_restarts = (uint32_t)row->max_restarts;
    j->join_timeout_ns = row->join_timeout_ns;
    j->last_call_ns = row->last_call_ns;
    j->on_join_restart = row->on_join_restart != 0;
    j->round = (uint32_t)row->round;
    j->round_seen = (uint32_t)(row->round_seen > row->round ? row->round_seen : row->round);
    j->round_nodes = (uint32_t)row->round_nodes;
    j->world = (uint32_t)row->world;
    j->fence_ns = row->fence_ns;
    j->restarts = (uint32_t)row->restarts;
    j->halt_step = (int32_t)row->halt_step;
    j->final = row->final != 0;
    j->was_charged = row->was_charged != 0;
    j->has_cause = row->has_cause != 0;
    j->consequences = (uint32_t)row->consequences;
    j->incident_count = (uint32_t)row->incidents;
    j->lead_port = (uint16_t)row->lead_port;
    memcpy(j->lead_addr, row->lead_addr, sizeof j->lead_addr);
    memcpy(j->spec_host, row->spec_host, sizeof j->spec_host);
    memcpy(j->spent_by, row->spent_by, sizeof j->spent_by);
    memcpy(j->forgiven_host, row->forgiven_host, sizeof j->forgiven_host);
    j->forgiven_unix_ms = row->forgiven_unix_ms;
    CAUSE_IN(&j->cause, row);
}

/* The agents are on their way back: who was heard last a moment before the death must not be given
 * up a moment after it, nor before the time in which agents are heard out. */
static int64_t heard_anew(const struct job *j, int64_t now_ns, bool in_round)
{
    int64_t allowed = in_round ? j->fence_ns : j->config.lease_ns;
    int64_t window = j->config.not_before_ns - allowed;
    return window > now_ns ? window : now_ns;
}

/* How many ranks there can be: of the round, or of the last one while there is none. */
static uint32_t ranks_of(const struct job *j)
{
    return j->round_nodes > 0 ? j->round_nodes : j->nodes_max;
}

/* One node, in the slot that it gets. */
static int load_node(
    struct job *j, int64_t now_ns, const struct job_node_row *row, bool ended, struct mu_err *err)
{
    struct ctl_msg m;
    struct mu_buf lists;
    int state = find_node_state(row->state);
    int r = check_fields(job_node_row_fields, row, err);
    if (r < 0)
        return r;
    if (state < 0)
        return senseless(err, "node state");
    bool member = row->node_rank >= 0;
    if (member &&
        ((uint64_t)row->node_rank >= ranks_of(j) || j->members[row->node_rank] != JOB_NO_NODE))
        return senseless(err, "node rank");
    mu_buf_init(&lists, j->mem);
    r = ctl_decode(row->hello, &m, &lists, err);
    mu_buf_fini(&lists); /* A hello has none. */
    if (r == -ENOMEM)
        return r;
    if (r < 0 || m.type != CTL_HELLO || roster_find(j, m.u.hello.node) != JOB_NO_NODE)
        return senseless(err, "node");
    if (roster_reserve(j) < 0)
        return -ENOMEM;
    uint32_t slot = roster_add(j, now_ns,
                               &(struct job_event){.type = JOB_EV_HELLO,
                                                   .msg = &m,
                                                   .seen_addr = row->seen_addr,
                                                   .via_addr = row->via_addr,
                                                   .unix_ms = row->joined_unix_ms});
    if (slot == JOB_NO_NODE)
        return -ENOMEM;
    struct job_node *n = &j->nodes[slot];
    n->in_round = member && j->round_nodes > 0;
    n->node_rank = (int32_t)row->node_rank;
    n->rank_base = row->rank_base >= 0 ? (int32_t)row->rank_base : 0;
    n->role_rank_base = (int32_t)row->role_rank_base;
    n->role_world = (int32_t)row->role_world;
    n->ranked = n->in_round && row->rank_base >= 0;
    n->reached = true; /* Or it says that it does not. */
    n->had_round = member;
    n->gone = row->gone != 0;
    n->halted = row->halted != 0;
    if (row->drain_since_unix_ms > 0) {
        struct job_drain *d = mu_alloc(j->mem, sizeof *d);
        if (d == NULL)
            return -ENOMEM;
        *d = (struct job_drain){.since_unix_ms = row->drain_since_unix_ms,
                                .until_unix_ms = row->drain_until_unix_ms};
        copy(d->reason, sizeof d->reason, row->drain_reason);
        roster_drain(j, slot, d);
    }
    n->started_unix_ms = row->started_unix_ms;
    n->heard_ns = heard_anew(j, now_ns, n->in_round);
    roster_connect(j, slot, false);
    if (n->in_round || ended) /* Else it waits, and says itself what it brings. */
        roster_set(j, slot, (enum job_node_state)state);
    j->starting += n->state == JOB_NODE_STARTING;
    for (int64_t i = 0; i < n->hello.nproc; i++)
        n->workers[i] =
            (struct job_worker){.exit = state == JOB_NODE_FINISHED ? 0 : JOB_EXIT_NONE, .step = -1};
    if (member)
        j->members[row->node_rank] = slot;
    return 0;
}

/* Every rank of the round is held once, by the members that are known. */
static bool ranks_fit(const struct job *j)
{
    uint64_t world = 0;
    for (uint32_t r = 0; r < j->round_nodes; r++) {
        if (j->members[r] == JOB_NO_NODE)
            return true; /* What is behind an unknown one is settled when it comes. */
        const struct job_node *n = &j->nodes[j->members[r]];
        if (!n->ranked)
            return true;
        if ((uint64_t)n->rank_base != world)
            return false;
        world += (uint64_t)n->hello.nproc;
    }
    return j->round_nodes == 0 || world == j->world;
}

/* The round ran: its members are asked before anything is decided. Of one that died after its work
 * was done nothing is expected. */
static void load_running(struct job *j)
{
    j->pending = 0;
    for (uint32_t r = 0; r < j->round_nodes; r++) {
        if (j->members[r] == JOB_NO_NODE) {
            j->pending++;
            continue;
        }
        struct job_node *n = &j->nodes[j->members[r]];
        n->expected = !n->gone;
        j->pending += n->expected;
    }
}

/* The round was being stopped: who has not said that nothing is left still owes that word. */
static void load_stopping(struct job *j, int64_t now_ns)
{
    j->pending = 0;
    for (uint32_t r = 0; r < j->round_nodes; r++) {
        uint32_t slot = j->members[r];
        if (slot == JOB_NO_NODE) {
            j->missing_fenced = false;
            j->missing_until_ns = now_ns + j->fence_ns;
            j->pending++;
        } else if (owes_stopped(&j->nodes[slot])) {
            roster_set(j, slot, j->nodes[slot].gone ? JOB_NODE_LOST : JOB_NODE_STOPPING);
            j->pending += !j->nodes[slot].gone;
        }
    }
}

static void load_state(struct job *j, int64_t now_ns, enum job_state state)
{
    job_enter(j, now_ns);
    switch (state) {
    case JOB_GATHERING: /* The last round's nodes wait, and keep their ranks, as long as a lease. */
        j->gather_deadline_ns = now_ns + j->join_timeout_ns;
        break;
    case JOB_RECOVERING:
    case JOB_RUNNING:
        load_running(j);
        budget_load_round(j);
        state = JOB_RECOVERING;
        break;
    case JOB_STOPPING:
        load_stopping(j, now_ns);
        break;
    case JOB_SUCCEEDED:
    case JOB_FAILED:
    case JOB_STATE_COUNT:
        break;
    }
    job_resume(j, state, now_ns);
}

void job_load_incident(struct job *j, const struct job_incident *in)
{
    if (in->number == j->incident_count)
        j->incident = *in;
    quarantine_load(j, in);
}

int job_load(struct job *j,
             int64_t now_ns,
             int64_t unix_ms,
             const struct job_row_kept *row,
             const struct job_node_row *nodes,
             size_t node_count,
             struct mu_err *err)
{
    int r = check_fields(job_row_fields, row, err);
    int state = r == 0 ? find_state(row->state) : -1;
    if (r < 0)
        return r;
    MU_ASSERT(strcmp(row->run_id, j->run_id) == 0 && j->node_cap == 0);
    if (state < 0)
        return senseless(err, "state");
    bool ended = state == JOB_SUCCEEDED || state == JOB_FAILED;
    if (row->nodes_min > row->nodes_max || row->round_nodes > row->nodes_max)
        return senseless(err, "spec");
    bool gathers = state == JOB_GATHERING;
    if (!ended && (row->round == 0 || row->fence_ns == 0 || gathers != (row->round_nodes == 0)))
        return senseless(err, "round");
    load_numbers(j, row);
    j->step_now_ns = now_ns;
    j->step_unix_ms = unix_ms;
    if (budget_load(j, row) < 0)
        return senseless(err, "budget");
    if (roster_reserve(j) < 0 || roster_reserve_members(j, ranks_of(j)) < 0)
        return -ENOMEM;
    for (uint32_t i = 0; i < j->member_cap; i++)
        j->members[i] = JOB_NO_NODE;
    for (size_t i = 0; i < node_count && r == 0; i++)
        r = load_node(j, now_ns, &nodes[i], ended, err);
    if (r < 0)
        return r;
    if (gathers && j->node_count == 0)
        return senseless(err, "list of nodes");
    bool runs = state == JOB_RUNNING || state == JOB_RECOVERING;
    if (runs && !ranks_fit(j))
        return senseless(err, "table of ranks");
    if (j->round_nodes > 0)
        j->lead = j->members[0];
    j->action_count = 0; /* What was just read needs no keeping. */
    load_state(j, now_ns, (enum job_state)state);
    return 0;
}
