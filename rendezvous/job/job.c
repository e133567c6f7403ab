/* The rendezvous of one job: the table, and the machine that follows it. What the rows do stands in
 * hello.c (who comes), said.c (what nodes say, who goes), drain.c (who is to go), time.c, round.c
 * (begin, stop, end), verdict.c (the first cause) and budget.c (what it costs); old rounds'
 * messages in stale.c; who is here in roster.c, who gets which rank in ranks.c, words for people in
 * words.c. */
#include "rendezvous/job/job.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "rendezvous/job/internal.h"

struct job_row {
    int to; /* enum job_state + 1, so that an unwritten row is 0: no such event here. */
    job_row_fn *act;
};

/* clang-format off */
#define ROW(to_, fn) { JOB_##to_ + 1, (fn) }
static const struct job_row table[JOB_STATE_COUNT][JOB_EV_COUNT] = {
    [JOB_GATHERING] = {
        [JOB_EV_HELLO]         = ROW(GATHERING,  row_gather_hello),
        [JOB_EV_REACHED]       = ROW(GATHERING,  row_beat),          /* Of a round that is over: proof of life, no more. */
        [JOB_EV_STARTED]       = ROW(GATHERING,  row_beat),          /* As above. */
        [JOB_EV_EXITED]        = ROW(GATHERING,  row_beat),          /* As above. */
        [JOB_EV_WORKER_FAILED] = ROW(GATHERING,  row_beat),          /* As above. */
        [JOB_EV_SILENT]        = ROW(GATHERING,  row_beat),          /* As above. */
        [JOB_EV_FINISHED]      = ROW(GATHERING,  row_beat),          /* As above. */
        [JOB_EV_STOPPED]       = ROW(GATHERING,  row_stale_stopped),
        [JOB_EV_HEALTH]        = ROW(GATHERING,  row_note_health),
        [JOB_EV_BYE]           = ROW(GATHERING,  row_gather_left),
        [JOB_EV_BEAT]          = ROW(GATHERING,  row_beat),
        [JOB_EV_DRAIN]         = ROW(GATHERING,  row_note_drain),
        [JOB_EV_NODE_DEAD]     = ROW(GATHERING,  row_gather_left),
        [JOB_EV_NODE_AWAY]     = ROW(GATHERING,  row_away),
        [JOB_EV_DEADLINE]      = ROW(GATHERING,  row_gather_deadline),
        [JOB_EV_RESUMES]       = ROW(RECOVERING, row_begin_recovery),
        [JOB_EV_READY]         = ROW(RUNNING,    row_begin_round),
        [JOB_EV_GIVE_UP]       = ROW(FAILED,     row_give_up),
        [JOB_EV_ABANDONED]     = ROW(FAILED,     row_fail),
    },
    [JOB_RECOVERING] = {
        [JOB_EV_HELLO]         = ROW(RECOVERING, row_recover_hello),
        [JOB_EV_REACHED]       = ROW(RECOVERING, row_beat),          /* The round ends for who has not begun: row_resume_round(). */
        [JOB_EV_STARTED]       = ROW(RECOVERING, row_note_started),
        [JOB_EV_EXITED]        = ROW(RECOVERING, row_note_exited),
        [JOB_EV_WORKER_FAILED] = ROW(RECOVERING, row_run_failed),
        [JOB_EV_SILENT]        = ROW(RECOVERING, row_note_silent),
        [JOB_EV_FINISHED]      = ROW(RECOVERING, row_recover_finished),
        [JOB_EV_STOPPED]       = ROW(RECOVERING, row_run_stopped),
        [JOB_EV_HEALTH]        = ROW(RECOVERING, row_note_health),
        [JOB_EV_BYE]           = ROW(RECOVERING, row_run_left),
        [JOB_EV_BEAT]          = ROW(RECOVERING, row_beat),
        [JOB_EV_DRAIN]         = ROW(RECOVERING, row_note_drain),
        [JOB_EV_NODE_DEAD]     = ROW(RECOVERING, row_run_left),
        [JOB_EV_NODE_AWAY]     = ROW(RECOVERING, row_away),
        [JOB_EV_DEADLINE]      = ROW(RECOVERING, row_recover_deadline),
        [JOB_EV_RESUMED]       = ROW(RUNNING,    row_resume_round),
        [JOB_EV_BROKEN]        = ROW(STOPPING,   row_stop_round),
    },
    [JOB_RUNNING] = {
        [JOB_EV_HELLO]         = ROW(RUNNING,    row_run_hello),
        [JOB_EV_REACHED]       = ROW(RUNNING,    row_note_reached),
        [JOB_EV_STARTED]       = ROW(RUNNING,    row_note_started),
        [JOB_EV_EXITED]        = ROW(RUNNING,    row_note_exited),
        [JOB_EV_WORKER_FAILED] = ROW(RUNNING,    row_run_failed),
        [JOB_EV_SILENT]        = ROW(RUNNING,    row_note_silent),
        [JOB_EV_FINISHED]      = ROW(RUNNING,    row_run_finished),
        [JOB_EV_STOPPED]       = ROW(RUNNING,    row_run_stopped),
        [JOB_EV_HEALTH]        = ROW(RUNNING,    row_note_health),
        [JOB_EV_BYE]           = ROW(RUNNING,    row_run_left),
        [JOB_EV_BEAT]          = ROW(RUNNING,    row_beat),
        [JOB_EV_DRAIN]         = ROW(RUNNING,    row_run_drain),
        [JOB_EV_NODE_DEAD]     = ROW(RUNNING,    row_run_left),
        [JOB_EV_NODE_AWAY]     = ROW(RUNNING,    row_away),
        [JOB_EV_DEADLINE]      = ROW(RUNNING,    row_run_deadline),
        [JOB_EV_BROKEN]        = ROW(STOPPING,   row_stop_round),
        [JOB_EV_OVER]          = ROW(SUCCEEDED,  row_succeed),
    },
    [JOB_STOPPING] = {
        [JOB_EV_HELLO]         = ROW(STOPPING,   row_stop_hello),
        [JOB_EV_REACHED]       = ROW(STOPPING,   row_beat),          /* Too late to begin. */
        [JOB_EV_STARTED]       = ROW(STOPPING,   row_note_started),  /* It had not heard STOP yet; it will. */
        [JOB_EV_EXITED]        = ROW(STOPPING,   row_note_exited),
        [JOB_EV_WORKER_FAILED] = ROW(STOPPING,   row_weigh_failed),  /* A consequence, unless it is the better cause. */
        [JOB_EV_SILENT]        = ROW(STOPPING,   row_beat),          /* What ends is silent. */
        [JOB_EV_FINISHED]      = ROW(STOPPING,   row_beat),          /* Too late to end well: the round is being stopped. */
        [JOB_EV_STOPPED]       = ROW(STOPPING,   row_stop_stopped),
        [JOB_EV_HEALTH]        = ROW(STOPPING,   row_note_health),
        [JOB_EV_BYE]           = ROW(STOPPING,   row_stop_left),
        [JOB_EV_BEAT]          = ROW(STOPPING,   row_beat),
        [JOB_EV_DRAIN]         = ROW(STOPPING,   row_note_drain),
        [JOB_EV_NODE_DEAD]     = ROW(STOPPING,   row_stop_left),
        [JOB_EV_NODE_AWAY]     = ROW(STOPPING,   row_away),
        [JOB_EV_DEADLINE]      = ROW(STOPPING,   row_stop_deadline),
        [JOB_EV_CLEAR]         = ROW(GATHERING,  row_gather),
        [JOB_EV_SPENT]         = ROW(FAILED,     row_fail),
    },
#define ENDED(state) {                                                                             \
        [JOB_EV_HELLO]         = ROW(state, row_ended_hello),                                          \
        [JOB_EV_REACHED]       = ROW(state, NULL), /* All of these were under way when END went out. */ \
        [JOB_EV_STARTED]       = ROW(state, NULL),                                                 \
        [JOB_EV_EXITED]        = ROW(state, NULL),                                                 \
        [JOB_EV_WORKER_FAILED] = ROW(state, NULL),                                                 \
        [JOB_EV_SILENT]        = ROW(state, NULL),                                                 \
        [JOB_EV_FINISHED]      = ROW(state, NULL),                                                 \
        [JOB_EV_STOPPED]       = ROW(state, NULL),                                                 \
        [JOB_EV_HEALTH]        = ROW(state, NULL),                                                 \
        [JOB_EV_BYE]           = ROW(state, row_ended_left),                                           \
        [JOB_EV_BEAT]          = ROW(state, NULL),                                                 \
        [JOB_EV_DRAIN]         = ROW(state, NULL),                                                 \
        [JOB_EV_NODE_DEAD]     = ROW(state, row_ended_left),                                           \
        [JOB_EV_NODE_AWAY]     = ROW(state, row_ended_left),                                           \
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

void job_act(struct job *j, enum job_action_type type, uint32_t node, enum ctl_type msg)
{
    MU_ASSERT(j->action_count < j->action_cap);
    j->actions[j->action_count++] = (struct job_action){.type = type, .node = node, .msg = msg};
}

void job_keep(struct job *j)
{
    job_act(j, JOB_ACT_KEEP, JOB_NO_NODE, CTL_TYPE_COUNT);
}

void job_keep_round(struct job *j)
{
    job_act(j, JOB_ACT_KEEP_ROUND, JOB_NO_NODE, CTL_TYPE_COUNT);
}

void job_send(struct job *j, uint32_t slot, enum ctl_type msg)
{
    if (j->nodes[slot].connected)
        job_act(j, JOB_ACT_SEND, slot, msg);
}

struct job_node *job_node_of(struct job *j, const struct job_event *ev)
{
    MU_ASSERT(ev->node < j->node_cap && j->nodes[ev->node].used);
    return &j->nodes[ev->node];
}

void job_enter(struct job *j, int64_t now_ns)
{
    j->since_ns = now_ns;
    j->next_word_ns = now_ns + MU_FIRST_WORD_NS;
    j->word_gap_ns = MU_FIRST_WORD_NS;
    j->idle_since_ns = NEVER;
}

void job_idle(struct job *j, int64_t now_ns)
{
    if (j->idle_since_ns != NEVER)
        return;
    j->idle_since_ns = now_ns;
    j->next_word_ns = now_ns + MU_FIRST_WORD_NS;
    j->word_gap_ns = MU_FIRST_WORD_NS;
}

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
        return job_hears_out(j, now_ns) ? sooner(at, j->config.not_before_ns) : at;
    case JOB_RECOVERING:
        return sooner(sooner(at, j->next_word_ns), j->since_ns + j->fence_ns);
    case JOB_RUNNING:
        return sooner(sooner(sooner(at, j->next_word_ns), budget_due_ns(j)), j->halt_ask_until_ns);
    case JOB_STOPPING:
        if (j->pending == 0)
            return now_ns; /* Loaded, and nobody owes a word. */
        return sooner(sooner(at, j->next_word_ns), j->missing_fenced ? NEVER : j->missing_until_ns);
    case JOB_SUCCEEDED:
    case JOB_FAILED:
    case JOB_STATE_COUNT:
        break;
    }
    return NEVER;
}

/* The only line that writes the state. */
static void set_state(struct job *j, enum job_state state)
{
    j->state = state;
}

void job_resume(struct job *j, enum job_state state, int64_t now_ns)
{
    set_state(j, state);
    j->lease_check_ns = now_ns;
    j->deadline_ns = next_deadline(j, now_ns);
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
                      .halt_step = -1,
                      .halt_ask_until_ns = NEVER,
                      .missing_fenced = true,
                      .gather_deadline_ns = NEVER,
                      .last_call_at_ns = NEVER,
                      .next_word_ns = NEVER,
                      .lease_check_ns = NEVER,
                      .deadline_ns = NEVER};
    budget_reset(j);
    j->config.run_id = j->run_id;
    if (j->config.fence_ns == 0)
        j->config.fence_ns = MU_FENCE_NS;
    if (config->run_id[0] == '\0' || mu_strcopy(j->run_id, sizeof j->run_id, config->run_id) < 0)
        return mu_err_set(err, -EINVAL, "a run id has 1 to %d characters", MU_RUN_ID_BYTES - 1);
    return 0;
}

void job_fini(struct job *j)
{
    for (uint32_t i = 0; i < j->node_cap; i++) {
        mu_mem_free(j->mem, j->nodes[i].workers);
        mu_mem_free(j->mem, j->nodes[i].failure);
        mu_mem_free(j->mem, j->nodes[i].unhealthy);
        mu_mem_free(j->mem, j->nodes[i].drain);
    }
    mu_mem_free(j->mem, j->blamed);
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
    out->new_cause = false;
    j->new_cause = false;
    j->action_count = 0;
    j->hello_slot = JOB_NO_NODE;
    j->step_unix_ms = ev->unix_ms;
    j->step_now_ns = now_ns;
    j->durable = false;
    out->stale_round = 0;
    int64_t stale_round = job_stale_round(j, ev);
    if (ev->type == JOB_EV_HELLO) {
        int r = roster_check_link(j, &ev->msg->u.hello, err);
        if (r < 0)
            return r;
    }
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
        set_state(j, (enum job_state)(row->to - 1));
        if (news == 0)
            break;
        e.type = (enum job_event_type)news;
    }
    /* Messages are made after the step: where another round has begun, STOP would be for that. */
    if (j->new_cause && out->from == JOB_STOPPING && j->state == JOB_STOPPING)
        job_tell_cause(j);
    if (stale_round != 0)
        j->stale_count[ev->type]++;
    out->stale_round = stale_round;
    j->deadline_ns = next_deadline(j, now_ns);
    out->actions = j->actions;
    out->count = j->action_count;
    out->durable = j->durable;
    out->to = j->state;
    out->new_cause = j->new_cause;
    out->node = ev->type == JOB_EV_HELLO ? j->hello_slot : JOB_NO_NODE;
    return 0;
}

static void fill_start(const struct job *j, const struct job_node *n, struct ctl_start *m)
{
    m->round = j->round;
    m->node_rank = n->node_rank;
    m->node_count = j->round_nodes;
    m->rank_base = n->rank_base;
    m->world = j->world;
    m->role_rank_base = n->role_rank_base;
    m->role_world = n->role_world;
    m->restarts = j->restarts;
    m->spent = job_spent(j, j->step_now_ns);
    m->max_restarts = j->max_restarts;
    m->lead_port = j->lead_port;
    m->reach_ms = j->reach_ns / NS_PER_MS;
    m->fence_ms = j->fence_ns / NS_PER_MS;
    m->begun_ms = j->round_started_unix_ms;
    (void)mu_strcopy(m->lead_addr, sizeof m->lead_addr, j->lead_addr);
}

static void fill_stop(const struct job *j, const struct job_node *n, struct ctl_stop *m)
{
    bool stale = !n->in_round;
    m->round = stale ? n->stale_round : j->round;
    m->final = !stale && j->final;
    if (!stale)
        m->spent = job_spent(j, j->step_now_ns);
    m->cause = j->cause;
    memcpy(m->output, j->cause_output, sizeof m->output);
    if (!j->has_cause) {
        m->cause = MU_CAUSE_INIT;
        m->cause.kind = MU_CAUSE_NODE_SILENT;
        (void)mu_strcopy(m->cause.host, sizeof m->cause.host, n->hello.host); /* It fits. */
    }
}

/* Could another round begin without one of this one's nodes? */
static bool goes_on_without(const struct job *j)
{
    return j->state == JOB_RUNNING &&
           (j->waiting > 0 || j->aside_count > 0 || j->nodes_min < j->round_nodes);
}

void job_message(const struct job *j, uint32_t node, enum ctl_type type, struct ctl_msg *ret)
{
    MU_ASSERT(node < j->node_cap && j->nodes[node].used);
    const struct job_node *n = &j->nodes[node];
    ctl_init(ret, type);
    if (type == CTL_WELCOME) {
        (void)mu_strcopy(ret->u.welcome.version, sizeof ret->u.welcome.version, j->config.version);
        (void)mu_strcopy(ret->u.welcome.seen_addr, sizeof ret->u.welcome.seen_addr, n->seen_addr);
        ret->u.welcome.lease_ms = j->config.lease_ns / NS_PER_MS;
        ret->u.welcome.beat_ms = j->config.beat_ns / NS_PER_MS;
        ret->u.welcome.lasts = j->config.lasts;
    } else if (type == CTL_START) {
        fill_start(j, n, &ret->u.start);
    } else if (type == CTL_GO) {
        ret->u.go.round = j->round;
    } else if (type == CTL_STOP) {
        fill_stop(j, n, &ret->u.stop);
    } else if (type == CTL_HALT) {
        drain_fill_halt(j, n, &ret->u.halt);
    } else if (type == CTL_BEAT) {
        ret->u.beat.round = n->in_round ? j->round : 0;
        ret->u.beat.seq = n->beat_seq;
        if (n->in_round && goes_on_without(j) && j->config.lease_ns < job_silence_allowed(j, n))
            ret->u.beat.fence_ms = j->config.lease_ns / NS_PER_MS;
    } else if (type == CTL_WAITING) {
        struct mu_buf b;
        mu_buf_init(&b, j->mem);
        if (j->state == JOB_RUNNING && n->state == JOB_NODE_FINISHED)
            job_finished_sentence(j, j->word_now_ns, &b);
        else
            job_sentence(j, j->word_now_ns, &b);
        if (j->state == JOB_RUNNING && !roster_eligible(n) && n->state == JOB_NODE_WAITING)
            job_uncounted_sentence(j, n, &b);
        else if (j->state == JOB_RUNNING && n->state == JOB_NODE_WAITING)
            (void)mu_buf_addf(
                &b,
                "; this node waits as a spare%s (another job needs an id of its own: --rdzv-id)",
                j->round_nodes < j->nodes_max
                    ? " for the next round, which --on-join=restart begins at once"
                    : "");
        (void)snprintf(ret->u.waiting.text, sizeof ret->u.waiting.text, "%s", mu_buf_cstr(&b));
        mu_buf_fini(&b);
    } else if (type == CTL_END) {
        ret->u.end.success = j->state == JOB_SUCCEEDED;
        ret->u.end.round = j->round;
        ret->u.end.restarts = j->restarts;
        ret->u.end.max_restarts = j->max_restarts;
        ret->u.end.spent = job_spent(j, j->step_now_ns);
        ret->u.end.same_failure = j->state == JOB_FAILED && j->budget.same_failure;
        memcpy(ret->u.end.spent_by, j->spent_by, sizeof j->spent_by);
        ret->u.end.consequences = j->consequences;
        ret->u.end.incident = j->incident.number;
        if (j->has_cause && j->state == JOB_FAILED) {
            ret->u.end.cause = j->cause;
            memcpy(ret->u.end.output, j->cause_output, sizeof j->cause_output);
        }
    }
}
