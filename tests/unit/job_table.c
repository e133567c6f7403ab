/* The rendezvous of one job: its table as a whole, and stories told event by event. */
#include "tests/unit/job_rig.h"

#include <errno.h>

#include "base/limits.h"

/* ------------------------------------------------------------------ the table */

static void mark_reachable(enum job_state s, bool *seen)
{
    if (seen[s])
        return;
    seen[s] = true;
    for (int e = 0; e < JOB_EV_COUNT; e++) {
        int to = job_table_to(s, (enum job_event_type)e);
        if (to >= 0)
            mark_reachable((enum job_state)to, seen);
    }
}

static void test_table_every_state_is_reachable(void **state)
{
    (void)state;
    bool seen[JOB_STATE_COUNT] = {false};
    mark_reachable(JOB_GATHERING, seen);
    for (int s = 0; s < JOB_STATE_COUNT; s++)
        assert_true(seen[s]);
}

static void test_table_every_state_hears_every_outside_event(void **state)
{
    (void)state;
    for (int s = 0; s < JOB_STATE_COUNT; s++)
        for (int e = 0; e < JOB_OUTSIDE_EVENT_COUNT; e++)
            if (job_table_to((enum job_state)s, (enum job_event_type)e) < 0)
                fail_msg("%s has no row for %s", job_state_name((enum job_state)s),
                         job_event_name((enum job_event_type)e));
}

static void test_table_ended_states_lead_nowhere(void **state)
{
    (void)state;
    for (int e = 0; e < JOB_EV_COUNT; e++) {
        int a = job_table_to(JOB_SUCCEEDED, (enum job_event_type)e);
        int b = job_table_to(JOB_FAILED, (enum job_event_type)e);
        assert_true(a < 0 || a == JOB_SUCCEEDED);
        assert_true(b < 0 || b == JOB_FAILED);
    }
}

/* ------------------------------------------------------------------ stories */

struct story {
    struct job job;
    struct job_out out;
    struct mu_err err;
    int64_t now;
    struct mu_buf told; /* "START n1 0/2; STOP n2; " ... */
};

static void begin(struct story *s, const struct mu_mem *mem)
{
    struct job_config c = rig_config();
    memset(s, 0, sizeof *s);
    s->now = SEC;
    assert_int_equal(job_init(&s->job, mem, &c, &s->err), 0);
    mu_buf_init(&s->told, mu_mem_default());
}

static void end(struct story *s)
{
    job_fini(&s->job);
    mu_buf_fini(&s->told);
}

static void note_actions(struct story *s)
{
    mu_buf_reset(&s->told);
    for (uint32_t i = 0; i < s->out.count; i++) {
        const struct job_action *a = &s->out.actions[i];
        if (a->type == JOB_ACT_FORGET)
            (void)mu_buf_adds(&s->told, "forget; ");
        if (a->type != JOB_ACT_SEND)
            continue;
        const struct job_node *n = &s->job.nodes[a->node];
        (void)mu_buf_addf(&s->told, "%s %s", ctl_type_name(a->msg), n->hello.host);
        if (a->msg == CTL_START)
            (void)mu_buf_addf(&s->told, " %d/%u ranks %d of %u", n->node_rank, s->job.round_nodes,
                              n->rank_base, s->job.world);
        (void)mu_buf_adds(&s->told, "; ");
    }
}

static int give(struct story *s, struct job_event ev)
{
    ev.unix_ms = s->now / 1000000;
    int r = job_step(&s->job, s->now, &ev, &s->out, &s->err);
    if (r == 0)
        note_actions(s);
    return r;
}

struct who {
    const char *host;
    int min, max, nproc, restarts, rank;
    const char *role;
    const char *addr;
};

static void fill_hello(struct ctl_msg *m, struct who w)
{
    *m = rig_hello(w.host);
    struct ctl_hello *h = &m->u.hello;
    (void)snprintf(h->role, sizeof h->role, "%s", w.role != NULL ? w.role : "default");
    h->nodes_min = w.min;
    h->nodes_max = w.max;
    h->nproc = w.nproc == 0 ? 2 : w.nproc;
    h->max_restarts = w.restarts;
    h->node_rank = w.rank - 1; /* 0 in a test's row: any. */
    h->last_call_ms = 2000;
    h->store_port = 1234;
}

static int hello(struct story *s, struct who w, uint32_t *slot)
{
    struct ctl_msg m;
    fill_hello(&m, w);
    struct job_event ev = rig_hello_event(&m);
    if (w.addr != NULL)
        ev.seen_addr = w.addr;
    int r = give(s, ev);
    if (r == 0 && slot != NULL)
        *slot = s->out.node;
    return r;
}

static int say(struct story *s, uint32_t slot, enum ctl_type t)
{
    struct ctl_msg m = rig_message(t, s->job.round);
    if (t == CTL_FAILED) {
        m.u.failed.cause.local_rank = 1;
        (void)snprintf(m.u.failed.output, sizeof m.u.failed.output, "last words of slot %u", slot);
    }
    return give(s, rig_event(slot, t, &m));
}

#define TOLD(s, text) assert_string_equal(mu_buf_cstr(&(s)->told), text)

static void test_round_begins_when_all_are_here_in_natural_order(void **state)
{
    (void)state;
    struct story s;
    begin(&s, mu_mem_default());
    assert_int_equal(hello(&s, (struct who){.host = "n10", .min = 3, .max = 3, .nproc = 1}, NULL),
                     0);
    TOLD(&s, "welcome n10; ");
    assert_int_equal(hello(&s, (struct who){.host = "n2", .min = 3, .max = 3, .nproc = 3}, NULL),
                     0);
    assert_int_equal(hello(&s, (struct who){.host = "n1", .min = 3, .max = 3, .nproc = 2}, NULL),
                     0);
    TOLD(&s, "welcome n1; start n1 0/3 ranks 0 of 6; start n2 1/3 ranks 2 of 6; start n10 2/3 "
             "ranks 5 of 6; ");
    assert_int_equal(s.job.state, JOB_RUNNING);
    end(&s);
}

static void test_explicit_ranks_are_honoured_and_doubles_refused(void **state)
{
    (void)state;
    struct story s;
    begin(&s, mu_mem_default());
    assert_int_equal(hello(&s, (struct who){.host = "a", .min = 2, .max = 2, .rank = 2}, NULL), 0);
    assert_int_equal(hello(&s, (struct who){.host = "b", .min = 2, .max = 2, .rank = 2}, NULL),
                     -EAGAIN);
    assert_non_null(strstr(s.err.msg, "node rank 1 is taken by a"));
    assert_int_equal(hello(&s, (struct who){.host = "b", .min = 2, .max = 2, .rank = 3}, NULL),
                     -EACCES);
    assert_int_equal(hello(&s, (struct who){.host = "b", .min = 2, .max = 2}, NULL), 0);
    TOLD(&s, "welcome b; start b 0/2 ranks 0 of 4; start a 1/2 ranks 2 of 4; ");
    end(&s);
}

static void test_specs_that_disagree_are_refused_with_both_values(void **state)
{
    (void)state;
    struct story s;
    begin(&s, mu_mem_default());
    assert_int_equal(hello(&s, (struct who){.host = "a", .min = 2, .max = 2}, NULL), 0);
    assert_int_equal(hello(&s, (struct who){.host = "b", .min = 2, .max = 3}, NULL), -EACCES);
    assert_non_null(strstr(s.err.msg, "--nnodes is 2:3 on b and 2 on a, which came first"));
    assert_int_equal(s.job.node_count, 1);
    end(&s);
}

static void test_rounds_that_cannot_be_are_refused(void **state)
{
    (void)state;
    static const struct {
        int64_t round, seen, nodes, rank, restarts;
    } rows[] = {{0, INT64_C(4294967295), 0, 0, 0}, /* The number would wrap. */
                {INT64_C(4294967295), 0, 2, 0, 0},
                {1, 0, 65536, 5, 0}, /* More nodes than the job has. */
                {1, 0, 2, 2, 0},
                {1, 0, 2, 0, 1000000}}; /* More restarts than its budget. */
    for (size_t i = 0; i < MU_COUNT(rows); i++) {
        struct story s;
        struct ctl_msg m;
        begin(&s, mu_mem_default());
        fill_hello(&m, (struct who){.host = "a", .min = 2, .max = 2});
        m.u.hello.round = rows[i].round;
        m.u.hello.round_seen = rows[i].seen;
        m.u.hello.round_nodes = rows[i].nodes;
        m.u.hello.round_node_rank = rows[i].rank;
        m.u.hello.round_restarts = rows[i].restarts;
        assert_int_equal(give(&s, rig_hello_event(&m)), -EACCES);
        assert_int_equal(s.job.node_count, 0);
        end(&s);
    }
}

static void test_a_resumed_round_may_not_be_silent_for_longer_than_the_server_allows(void **state)
{
    (void)state;
    struct story s;
    struct ctl_msg m;
    begin(&s, mu_mem_default());
    fill_hello(&m, (struct who){.host = "a", .min = 2, .max = 2});
    m.u.hello.round = 3;
    m.u.hello.round_nodes = 2;
    m.u.hello.round_fence_ms = INT64_C(86400000000);
    assert_int_equal(give(&s, rig_hello_event(&m)), 0);
    assert_int_equal(s.job.state, JOB_RECOVERING);
    assert_int_equal(s.job.fence_ns, MU_FENCE_NS);
    end(&s);
}

static void test_failure_restarts_within_the_budget_then_ends_with_the_first_cause(void **state)
{
    (void)state;
    struct story s;
    uint32_t a = 0;
    uint32_t b = 0;
    begin(&s, mu_mem_default());
    assert_int_equal(hello(&s, (struct who){.host = "a", .min = 2, .max = 2, .restarts = 1}, &a),
                     0);
    assert_int_equal(hello(&s, (struct who){.host = "b", .min = 2, .max = 2, .restarts = 1}, &b),
                     0);
    assert_int_equal(say(&s, b, CTL_FAILED), 0);
    TOLD(&s, "stop a; stop b; ");
    assert_int_equal(say(&s, a, CTL_FAILED), 0); /* A consequence. */
    assert_int_equal(s.job.consequences, 1);
    assert_int_equal(say(&s, a, CTL_STOPPED), 0);
    assert_int_equal(say(&s, a, CTL_STOPPED), 0); /* Identities are counted, not messages. */
    assert_int_equal(s.job.state, JOB_STOPPING);
    assert_int_equal(say(&s, b, CTL_STOPPED), 0);
    TOLD(&s, "start a 0/2 ranks 0 of 4; start b 1/2 ranks 2 of 4; ");
    assert_int_equal(s.job.restarts, 1);
    assert_int_equal(say(&s, a, CTL_FAILED), 0);
    assert_true(s.job.final);
    assert_int_equal(say(&s, a, CTL_STOPPED), 0);
    assert_int_equal(say(&s, b, CTL_STOPPED), 0);
    TOLD(&s, "end a; end b; ");
    assert_int_equal(s.job.state, JOB_FAILED);
    assert_int_equal(s.job.cause.rank, 1);
    assert_string_equal(s.job.cause.host, "a");
    assert_int_equal(s.job.restarts, 1);
    struct ctl_msg m;
    job_message(&s.job, b, CTL_END, &m);
    assert_string_equal(m.u.end.output, "last words of slot 0");
    assert_string_equal(m.u.end.spent_by, "rank 3 on b (round 1)");
    end(&s);
}

/* Every node hears what the worker that failed first wrote, and nothing of a later one. */
static void test_last_words_of_the_first_failure_go_to_all(void **state)
{
    (void)state;
    struct story s;
    struct ctl_msg m;
    uint32_t a = 0;
    uint32_t b = 0;
    begin(&s, mu_mem_default());
    (void)hello(&s, (struct who){.host = "a", .min = 2, .max = 2, .restarts = 9}, &a);
    (void)hello(&s, (struct who){.host = "b", .min = 2, .max = 2, .restarts = 9}, &b);
    assert_int_equal(say(&s, b, CTL_FAILED), 0);
    assert_int_equal(say(&s, a, CTL_FAILED), 0);
    job_message(&s.job, a, CTL_STOP, &m);
    assert_string_equal(m.u.stop.output, "last words of slot 1");
    assert_int_equal(say(&s, a, CTL_STOPPED), 0);
    assert_int_equal(say(&s, b, CTL_STOPPED), 0);
    assert_int_equal(give(&s, (struct job_event){.type = JOB_EV_NODE_DEAD, .node = b}), 0);
    job_message(&s.job, a, CTL_STOP, &m); /* The next cause is a lost node: it wrote nothing. */
    assert_string_equal(m.u.stop.output, "");
    end(&s);
}

/* Hosts of many letters and many restarts: the last ones are kept, whole. */
static void test_who_spent_the_restarts_is_bounded(void **state)
{
    (void)state;
    struct story s;
    uint32_t a = 0;
    char host[256];
    memset(host, 'h', sizeof host - 1);
    host[sizeof host - 1] = '\0';
    begin(&s, mu_mem_default());
    (void)hello(&s, (struct who){.host = host, .min = 1, .max = 1, .restarts = 9}, &a);
    /* The test's node id is cut by the long name: there is but one. */
    for (int round = 1; round <= 5; round++) {
        assert_int_equal(say(&s, a, CTL_FAILED), 0);
        assert_int_equal(say(&s, a, CTL_STOPPED), 0);
        assert_true(strlen(s.job.spent_by) < sizeof s.job.spent_by);
        assert_int_equal(strncmp(s.job.spent_by, "rank 1 on hhhh", 14), 0);
    }
    assert_non_null(strstr(s.job.spent_by, "h (round 5)"));
    assert_null(strstr(s.job.spent_by, "(round 4)"));
    end(&s);
}

static void silent(struct story *s, uint32_t slot, const int32_t *numbers, uint32_t count)
{
    struct ctl_msg m = rig_message(CTL_SILENT, s->job.round);
    m.u.silent.workers = (struct ctl_ints){numbers, count};
    assert_int_equal(give(s, (struct job_event){.type = JOB_EV_SILENT, .node = slot, .msg = &m}),
                     0);
    TOLD(s, ""); /* Nothing follows from it. */
}

static void no_progress(struct story *s, uint32_t slot, int32_t local_rank)
{
    struct ctl_msg m = rig_message(CTL_FAILED, s->job.round);
    m.u.failed.cause.kind = MU_CAUSE_NO_PROGRESS;
    m.u.failed.cause.local_rank = local_rank;
    (void)snprintf(m.u.failed.cause.message, sizeof m.u.failed.cause.message, "told by it");
    assert_int_equal(
        give(s, (struct job_event){.type = JOB_EV_WORKER_FAILED, .node = slot, .msg = &m}), 0);
}

/* Who is silent is kept until the node says otherwise; what is no worker is passed over. */
static void test_silence_is_kept_as_it_is_told(void **state)
{
    (void)state;
    struct story s;
    uint32_t a = 0;
    begin(&s, mu_mem_default());
    (void)hello(&s, (struct who){.host = "a", .min = 1, .max = 1}, &a);
    s.now = 50 * SEC;
    silent(&s, a, (const int32_t[]){1, 7000, 41, 1}, 4);
    const struct job_worker *w = s.job.nodes[a].workers;
    assert_int_equal(w[0].silent_unix_ms, 0);
    assert_int_equal(w[1].silent_unix_ms, 43000);
    assert_int_equal(w[1].silent_step, 41);
    assert_true(w[1].silent_stopped);
    silent(&s, a, (const int32_t[]){2, 7000, 41, 1, -1, 1, 1, 1, 0, -5, 1, 1, 0, 6000}, 14);
    assert_int_equal(w[0].silent_unix_ms + w[1].silent_unix_ms, 0);
    end(&s);
}

static void beat(struct story *s, uint32_t slot, int64_t round, const int32_t *steps, uint32_t n)
{
    struct ctl_msg m = rig_message(CTL_BEAT, round);
    m.u.beat.steps = (struct ctl_ints){steps, n};
    assert_int_equal(give(s, (struct job_event){.type = JOB_EV_BEAT, .node = slot, .msg = &m}), 0);
}

/* A beat without steps leaves them as they are; one of another round says nothing. */
static void test_steps_are_kept_as_beats_tell_them(void **state)
{
    (void)state;
    struct story s;
    uint32_t a = 0;
    begin(&s, mu_mem_default());
    (void)hello(&s, (struct who){.host = "a", .min = 1, .max = 1}, &a);
    const struct job_worker *w = s.job.nodes[a].workers;
    assert_int_equal(w[0].step, -1);
    beat(&s, a, 1, (const int32_t[]){7, -1, 99}, 3);
    beat(&s, a, 1, NULL, 0);
    beat(&s, a, 2, (const int32_t[]){8, 8}, 2);
    assert_int_equal(w[0].step, 7);
    assert_int_equal(w[1].step, -1);
    end(&s);
}

/* A node tells of its own worker that hangs, which may only wait for one of another node. */
static void test_who_hangs_is_found_among_all_nodes(void **state)
{
    (void)state;
    static const struct {
        int32_t there[4]; /* What b says of its workers. */
        int32_t here[4];  /* What a says of its own, before it tells that one hangs. */
        int32_t rank;     /* Who is the cause. */
    } rows[] = {
        {{1, 6000, 41, 1}, {0, 6000, 41, 0}, 3}, /* It is stopped. */
        {{1, 6000, 40, 0}, {0, 6000, 41, 0}, 3}, /* It is a step behind. */
        {{1, 6000, 41, 0}, {0, 6000, 41, 0}, 0}, /* Nothing speaks against it. */
        {{1, 6000, 42, 0}, {0, 6000, 41, 0}, 0}, {{1, 6000, -1, 0}, {0, 6000, -1, 0}, 0},
        {{1, 6000, 40, 0}, {0, 6000, 41, 1}, 0}, /* The teller's is stopped. */
    };
    for (size_t i = 0; i < MU_COUNT(rows); i++) {
        struct story s;
        uint32_t a = 0;
        uint32_t b = 0;
        begin(&s, mu_mem_default());
        (void)hello(&s, (struct who){.host = "a", .min = 2, .max = 2, .restarts = 1}, &a);
        (void)hello(&s, (struct who){.host = "b", .min = 2, .max = 2, .restarts = 1}, &b);
        s.now = 50 * SEC;
        silent(&s, b, rows[i].there, 4);
        silent(&s, a, rows[i].here, 4);
        no_progress(&s, a, 0);
        TOLD(&s, "stop a; stop b; ");
        assert_int_equal(s.job.cause.kind, MU_CAUSE_NO_PROGRESS);
        assert_int_equal(s.job.cause.rank, rows[i].rank);
        assert_string_equal(s.job.cause.host, rows[i].rank == 3 ? "b" : "a");
        assert_int_equal(s.job.restarts, 1);
        if (rows[i].rank == 0)
            assert_string_equal(s.job.cause.message, "told by it");
        else
            assert_non_null(strstr(s.job.cause.message, "no sign of life for 6.0 s"));
        end(&s);
    }
}

static void tick(struct story *s, int64_t ns)
{
    s->now += ns;
    assert_int_equal(give(s, (struct job_event){.type = JOB_EV_DEADLINE, .node = JOB_NO_NODE}), 0);
}

/* Nobody who has finished waits in silence, and nobody else is told. */
static void test_a_node_that_has_finished_hears_for_whom_it_waits(void **state)
{
    (void)state;
    struct story s;
    struct ctl_msg m;
    uint32_t slot[3];
    begin(&s, mu_mem_default());
    for (int i = 0; i < 3; i++)
        (void)hello(&s,
                    (struct who){.host = (const char *[]){"a", "b", "c"}[i], .min = 3, .max = 3},
                    &slot[i]);
    assert_int_equal(say(&s, slot[0], CTL_FINISHED), 0);
    assert_true(s.job.deadline_ns <= s.now + 5 * SEC);
    tick(&s, 1 * SEC);
    TOLD(&s, "");
    tick(&s, 4 * SEC);
    TOLD(&s, "waiting a; ");
    job_message(&s.job, slot[0], CTL_WAITING, &m);
    assert_string_equal(m.u.waiting.text,
                        "every worker of this node has ended well, waiting for b, c for 5 s");
    assert_int_equal(say(&s, slot[1], CTL_FINISHED), 0);
    tick(&s, 5 * SEC);
    TOLD(&s, "waiting a; waiting b; ");
    assert_int_equal(say(&s, slot[2], CTL_FINISHED), 0);
    assert_int_equal(s.job.state, JOB_SUCCEEDED);
    end(&s);
}

/* A node has died and the others cannot go on without one: they hear it soon, not after 5 s. */
static void test_who_is_missing_after_a_round_is_said_soon(void **state)
{
    (void)state;
    struct story s;
    uint32_t a = 0;
    uint32_t b = 0;
    begin(&s, mu_mem_default());
    (void)hello(&s, (struct who){.host = "a", .min = 2, .max = 2}, &a);
    (void)hello(&s, (struct who){.host = "b", .min = 2, .max = 2}, &b);
    assert_int_equal(give(&s, (struct job_event){.type = JOB_EV_NODE_DEAD, .node = b}), 0);
    assert_int_equal(say(&s, a, CTL_STOPPED), 0);
    assert_int_equal(s.job.state, JOB_GATHERING);
    tick(&s, 0);
    TOLD(&s, ""); /* A replacement that comes at once is nothing to speak of. */
    assert_int_equal(s.job.deadline_ns, s.now + SEC / 2);
    tick(&s, SEC / 2);
    TOLD(&s, "waiting a; ");
    assert_int_equal(s.job.next_word_ns, s.now + MU_FIRST_WORD_NS);
    end(&s);
}

static int fail_of(struct story *s, uint32_t slot, struct mu_cause cause)
{
    struct ctl_msg m = rig_message(CTL_FAILED, s->job.round);
    m.u.failed.cause = cause;
    return give(s, (struct job_event){.type = JOB_EV_WORKER_FAILED, .node = slot, .msg = &m});
}

static struct mu_cause of_worker(int32_t local_rank, int32_t status, int32_t blame)
{
    struct mu_cause c = MU_CAUSE_INIT;
    c.kind = status > 0 ? MU_CAUSE_WORKER_EXIT : MU_CAUSE_WORKER_SIGNAL;
    c.local_rank = local_rank;
    c.exit_code = status > 0 ? status : 0;
    c.signo = status < 0 ? -status : 0;
    c.blame = blame;
    return c;
}

/* Three nodes of two workers each: a has ranks 0 and 1, b 2 and 3, c 4 and 5. */
static void begin_three(struct story *s, int restarts, uint32_t *slots)
{
    static const char *const hosts[] = {"a", "b", "c"};
    begin(s, mu_mem_default());
    for (int i = 0; i < 3; i++)
        assert_int_equal(
            hello(s, (struct who){.host = hosts[i], .min = 3, .max = 3, .restarts = restarts},
                  &slots[i]),
            0);
    assert_int_equal(s->job.state, JOB_RUNNING);
}

static void test_whom_the_first_failure_names_is_the_cause_and_all_are_told_anew(void **state)
{
    (void)state;
    struct story s;
    uint32_t n[3];
    begin_three(&s, 0, n);
    assert_int_equal(fail_of(&s, n[0], of_worker(0, 1, 3)), 0);
    TOLD(&s, "stop a; stop b; stop c; ");
    assert_int_equal(s.job.cause.rank, 0);
    assert_false(s.out.new_cause);
    assert_int_equal(fail_of(&s, n[2], of_worker(0, 1, 3)), 0); /* One more who names it. */
    TOLD(&s, "");
    assert_int_equal(say(&s, n[0], CTL_STOPPED), 0);
    s.now += 60 * SEC; /* The stop lasts; it is not too late. */
    assert_int_equal(fail_of(&s, n[1], of_worker(1, 7, -1)), 0);
    TOLD(&s, "stop a; stop b; stop c; ");
    assert_true(s.out.new_cause);
    assert_int_equal(s.job.cause.rank, 3);
    assert_int_equal(s.job.cause.exit_code, 7);
    assert_string_equal(s.job.cause.host, "b");
    assert_int_equal(s.job.consequences, 2);
    assert_int_equal(say(&s, n[1], CTL_STOPPED), 0);
    assert_int_equal(say(&s, n[2], CTL_STOPPED), 0);
    TOLD(&s, "end a; end b; end c; ");
    assert_int_equal(s.job.cause.rank, 3);
    end(&s);
}

/* a names b's rank, b's names c's, and c's own word came before b's. */
static void test_a_chain_of_names_is_followed_to_its_end(void **state)
{
    (void)state;
    struct story s;
    uint32_t n[3];
    begin_three(&s, 0, n);
    struct mu_cause c = of_worker(1, 9, -1);
    (void)snprintf(c.message, sizeof c.message, "out of data");
    assert_int_equal(fail_of(&s, n[0], of_worker(0, 1, 2)), 0);
    assert_int_equal(fail_of(&s, n[2], c), 0);
    assert_int_equal(s.job.cause.rank, 0);
    assert_int_equal(fail_of(&s, n[1], of_worker(0, 1, 5)), 0);
    assert_int_equal(s.job.cause.rank, 5);
    assert_string_equal(s.job.cause.message, "out of data");
    end(&s);
}

static void test_ranks_that_name_each_other_leave_the_first(void **state)
{
    (void)state;
    struct story s;
    uint32_t n[3];
    begin_three(&s, 0, n);
    assert_int_equal(fail_of(&s, n[0], of_worker(0, 1, 2)), 0);
    assert_int_equal(fail_of(&s, n[1], of_worker(0, 1, 0)), 0);
    assert_int_equal(s.job.cause.rank, 0);
    end(&s);
}

static void test_a_kill_beats_a_status_for_a_moment_only(void **state)
{
    (void)state;
    struct story s;
    uint32_t n[3];
    begin_three(&s, 0, n);
    assert_int_equal(fail_of(&s, n[0], of_worker(0, 1, -1)), 0);
    s.now += MU_SETTLE_NS;
    assert_int_equal(fail_of(&s, n[1], of_worker(0, -9, -1)), 0);
    assert_int_equal(s.job.cause.rank, 2);
    assert_int_equal(fail_of(&s, n[2], of_worker(0, -9, -1)), 0); /* The first of two kills. */
    assert_int_equal(s.job.cause.rank, 2);
    end(&s);
    begin_three(&s, 0, n);
    assert_int_equal(fail_of(&s, n[0], of_worker(0, 1, -1)), 0);
    s.now += MU_SETTLE_NS + 1;
    assert_int_equal(fail_of(&s, n[1], of_worker(0, -9, -1)), 0);
    assert_int_equal(s.job.cause.rank, 0);
    end(&s);
}

/* The first failure costs a restart; that a node is gone does not. */
static void test_a_lost_node_that_was_named_gives_the_restart_back(void **state)
{
    (void)state;
    struct story s;
    uint32_t n[3];
    begin_three(&s, 1, n);
    assert_int_equal(fail_of(&s, n[0], of_worker(0, 1, 3)), 0);
    assert_int_equal(s.job.restarts, 1);
    assert_int_equal(give(&s, (struct job_event){.type = JOB_EV_NODE_DEAD, .node = n[2]}), 0);
    assert_int_equal(s.job.cause.rank, 0); /* It had another rank. */
    assert_int_equal(give(&s, (struct job_event){.type = JOB_EV_NODE_DEAD, .node = n[1]}), 0);
    TOLD(&s, "stop a; ");
    assert_int_equal(s.job.cause.kind, MU_CAUSE_NODE_LOST);
    assert_string_equal(s.job.cause.host, "b");
    assert_int_equal(s.job.cause.rank, -1);
    assert_int_equal(s.job.restarts, 0);
    end(&s);
}

static void test_all_finished_succeeds_and_a_death_after_finishing_is_no_failure(void **state)
{
    (void)state;
    struct story s;
    uint32_t a = 0;
    uint32_t b = 0;
    begin(&s, mu_mem_default());
    assert_int_equal(hello(&s, (struct who){.host = "a", .min = 2, .max = 2}, &a), 0);
    assert_int_equal(hello(&s, (struct who){.host = "b", .min = 2, .max = 2}, &b), 0);
    assert_int_equal(say(&s, a, CTL_FINISHED), 0);
    assert_int_equal(give(&s, (struct job_event){.type = JOB_EV_NODE_DEAD, .node = a}), 0);
    assert_int_equal(s.job.state, JOB_RUNNING);
    assert_int_equal(say(&s, b, CTL_FINISHED), 0);
    assert_int_equal(s.job.state, JOB_SUCCEEDED);
    TOLD(&s, "end b; ");
    end(&s);
}

static void test_dead_node_costs_nothing_and_a_spare_takes_its_rank(void **state)
{
    (void)state;
    struct story s;
    uint32_t a = 0;
    uint32_t b = 0;
    begin(&s, mu_mem_default());
    assert_int_equal(hello(&s, (struct who){.host = "a", .min = 2, .max = 2}, &a), 0);
    assert_int_equal(hello(&s, (struct who){.host = "b", .min = 2, .max = 2}, &b), 0);
    assert_int_equal(hello(&s, (struct who){.host = "c", .min = 2, .max = 2}, NULL), 0);
    TOLD(&s, "welcome c; waiting c; ");
    assert_int_equal(give(&s, (struct job_event){.type = JOB_EV_NODE_DEAD, .node = a}), 0);
    TOLD(&s, "stop b; ");
    assert_int_equal(say(&s, b, CTL_STOPPED), 0);
    TOLD(&s, "forget; start c 0/2 ranks 0 of 4; start b 1/2 ranks 2 of 4; ");
    assert_int_equal(s.job.restarts, 0);
    assert_int_equal(s.job.cause.kind, MU_CAUSE_NODE_LOST);
    end(&s);
}

static void leave_with_the_server(struct story *s, uint32_t slot)
{
    struct ctl_msg m;
    ctl_init(&m, CTL_BYE);
    m.u.bye.final = 1;
    m.u.bye.cause.kind = MU_CAUSE_NODE_LEFT;
    assert_int_equal(give(s, (struct job_event){.type = JOB_EV_BYE, .node = slot, .msg = &m}), 0);
}

static void test_when_the_server_goes_with_a_node_the_job_ends_for_all(void **state)
{
    (void)state;
    struct story s;
    uint32_t a = 0;
    uint32_t b = 0;
    begin(&s, mu_mem_default());
    assert_int_equal(hello(&s, (struct who){.host = "a", .min = 2, .max = 2, .restarts = 3}, &a),
                     0);
    assert_int_equal(hello(&s, (struct who){.host = "b", .min = 2, .max = 2, .restarts = 3}, &b),
                     0);
    assert_int_equal(say(&s, a, CTL_FAILED), 0);
    TOLD(&s, "stop a; stop b; ");
    leave_with_the_server(&s, a);
    assert_int_equal(s.job.state, JOB_STOPPING); /* Until b has said that nothing is left. */
    assert_int_equal(say(&s, b, CTL_STOPPED), 0);
    TOLD(&s, "end b; ");
    assert_int_equal(s.job.state, JOB_FAILED);
    end(&s);

    begin(&s, mu_mem_default());
    assert_int_equal(hello(&s, (struct who){.host = "a", .min = 3, .max = 3}, &a), 0);
    assert_int_equal(hello(&s, (struct who){.host = "b", .min = 3, .max = 3}, &b), 0);
    leave_with_the_server(&s, a);
    TOLD(&s, "forget; end b; ");
    assert_int_equal(s.job.state, JOB_FAILED);
    assert_int_equal(s.job.cause.kind, MU_CAUSE_NODE_LEFT);
    end(&s);
}

static void test_elastic_job_waits_for_the_last_call_then_runs_with_who_is_here(void **state)
{
    (void)state;
    struct story s;
    begin(&s, mu_mem_default());
    assert_int_equal(hello(&s, (struct who){.host = "a", .min = 1, .max = 4}, NULL), 0);
    assert_int_equal(hello(&s, (struct who){.host = "b", .min = 1, .max = 4}, NULL), 0);
    assert_int_equal(s.job.state, JOB_GATHERING);
    s.now = s.job.last_call_at_ns;
    assert_int_equal(s.now, 3 * SEC);
    assert_int_equal(give(&s, (struct job_event){.type = JOB_EV_DEADLINE, .node = JOB_NO_NODE}), 0);
    assert_int_equal(s.job.state, JOB_RUNNING);
    assert_int_equal(s.job.round_nodes, 2);
    assert_int_equal(s.job.fence_ns, 3 * SEC); /* It could go on without one of them. */
    end(&s);
}

static void test_too_few_nodes_give_up_and_say_who_is_here(void **state)
{
    (void)state;
    struct story s;
    uint32_t a = 0;
    begin(&s, mu_mem_default());
    assert_int_equal(hello(&s, (struct who){.host = "a", .min = 2, .max = 2}, &a), 0);
    uint32_t words = 0;
    for (int i = 0; i < 2000 && s.job.state == JOB_GATHERING; i++) {
        s.now += SEC;
        assert_int_equal(say(&s, a, CTL_BEAT), 0);
        if (s.job.deadline_ns <= s.now) {
            assert_int_equal(
                give(&s, (struct job_event){.type = JOB_EV_DEADLINE, .node = JOB_NO_NODE}), 0);
            words += strstr(mu_buf_cstr(&s.told), "waiting a") != NULL;
        }
    }
    assert_int_equal(s.job.state, JOB_FAILED);
    assert_int_equal(s.job.cause.kind, MU_CAUSE_JOIN_TIMEOUT);
    assert_non_null(strstr(s.job.cause.message, "1 of 2 nodes are here (a)"));
    assert_in_range(words, 10, 17); /* 4, 7, 14, 28, 56 s, then every 50 s: no minute is silent. */
    end(&s);
}

static void test_roles_have_ranks_of_their_own(void **state)
{
    (void)state;
    struct story s;
    uint32_t c;
    begin(&s, mu_mem_default());
    assert_int_equal(
        hello(&s, (struct who){.host = "a", .min = 3, .max = 3, .nproc = 1, .role = "actor"}, NULL),
        0);
    assert_int_equal(
        hello(&s, (struct who){.host = "b", .min = 3, .max = 3, .nproc = 2, .role = "learner"},
              NULL),
        0);
    assert_int_equal(
        hello(&s, (struct who){.host = "c", .min = 3, .max = 3, .nproc = 4, .role = "actor"}, &c),
        0);
    struct ctl_msg m;
    job_message(&s.job, c, CTL_START, &m);
    assert_int_equal(m.u.start.rank_base, 3);
    assert_int_equal(m.u.start.role_rank_base, 1);
    assert_int_equal(m.u.start.role_world, 5);
    end(&s);
}

static void test_lead_address_is_one_that_the_others_can_reach(void **state)
{
    (void)state;
    struct story s;
    uint32_t b = 0;
    struct ctl_msg m;
    begin(&s, mu_mem_default());
    fill_hello(&m, (struct who){.host = "a", .min = 2, .max = 2});
    (void)snprintf(m.u.hello.host_addr, sizeof m.u.hello.host_addr, "10.1.1.1");
    assert_int_equal(give(&s, (struct job_event){.type = JOB_EV_HELLO,
                                                 .node = JOB_NO_NODE,
                                                 .msg = &m,
                                                 .seen_addr = "127.0.0.1"}),
                     0);
    assert_int_equal(
        hello(&s, (struct who){.host = "b", .min = 2, .max = 2, .addr = "10.1.1.2"}, &b), 0);
    job_message(&s.job, b, CTL_START, &m);
    assert_string_equal(
        m.u.start.lead_addr,
        "10.1.1.1"); /* The lead shares the server's host; loopback would lead b to itself. */
    assert_int_equal(m.u.start.lead_port, 1234);
    end(&s);
}

static void test_a_lead_beside_the_server_is_where_the_others_met_the_server(void **state)
{
    (void)state;
    struct story s;
    struct ctl_msg m;
    begin(&s, mu_mem_default());
    fill_hello(&m, (struct who){.host = "a", .min = 2, .max = 2});
    (void)snprintf(m.u.hello.host_addr, sizeof m.u.hello.host_addr, "172.17.0.1");
    assert_int_equal(give(&s, (struct job_event){.type = JOB_EV_HELLO,
                                                 .node = JOB_NO_NODE,
                                                 .msg = &m,
                                                 .seen_addr = "127.0.0.1"}),
                     0);
    fill_hello(&m, (struct who){.host = "b", .min = 2, .max = 2});
    assert_int_equal(give(&s, (struct job_event){.type = JOB_EV_HELLO,
                                                 .node = JOB_NO_NODE,
                                                 .msg = &m,
                                                 .seen_addr = "10.1.1.2",
                                                 .via_addr = "10.1.1.1"}),
                     0);
    assert_string_equal(s.job.lead_addr, "10.1.1.1"); /* Not that of its first interface. */
    end(&s);
}

static int reached(struct story *s, uint32_t slot)
{
    struct ctl_msg m = rig_message(CTL_REACHED, s->job.round);
    return give(s, (struct job_event){.type = JOB_EV_REACHED, .node = slot, .msg = &m});
}

static int unreached(struct story *s, uint32_t slot)
{
    struct ctl_msg m = rig_message(CTL_FAILED, s->job.round);
    m.u.failed.cause.kind = MU_CAUSE_UNREACHED;
    (void)snprintf(m.u.failed.cause.message, sizeof m.u.failed.cause.message,
                   "no answer, tried for 10 s");
    return give(s, (struct job_event){.type = JOB_EV_WORKER_FAILED, .node = slot, .msg = &m});
}

static void gather_apart(struct story *s, uint32_t slots[3])
{
    static const char *const hosts[] = {"a", "b", "c"};
    static const char *const addrs[] = {"10.1.1.1", "10.1.1.2", "10.1.1.3"};
    begin(s, mu_mem_default());
    for (int i = 0; i < 3; i++)
        assert_int_equal(
            hello(
                s,
                (struct who){.host = hosts[i], .min = 3, .max = 3, .restarts = 5, .addr = addrs[i]},
                &slots[i]),
            0);
    assert_int_equal(s->job.reach_ns, MU_REACH_NS);
}

static void test_between_hosts_all_reach_the_lead_before_any_worker_starts(void **state)
{
    (void)state;
    struct story s;
    uint32_t slots[3];
    gather_apart(&s, slots);
    assert_int_equal(reached(&s, slots[0]), 0);
    TOLD(&s, "");
    assert_int_equal(reached(&s, slots[2]), 0);
    assert_int_equal(reached(&s, slots[2]), 0); /* Said twice: identities are counted. */
    TOLD(&s, "");
    struct mu_buf b;
    mu_buf_init(&b, mu_mem_default());
    job_sentence(&s.job, s.now + 4 * SEC, &b);
    assert_string_equal(mu_buf_cstr(&b),
                        "round 1 begins: waiting for b to reach the workers' store "
                        "on a at 10.1.1.1:1234, for 4 s");
    mu_buf_fini(&b);
    s.now = s.job.deadline_ns;
    assert_int_equal(give(&s, (struct job_event){.type = JOB_EV_DEADLINE, .node = JOB_NO_NODE}), 0);
    assert_int_equal(reached(&s, slots[1]), 0);
    TOLD(&s, "go a; go b; go c; ");
    assert_int_equal(reached(&s, slots[1]), 0); /* GO was lost. */
    TOLD(&s, "go b; ");
    end(&s);
}

static void
test_who_does_not_reach_the_lead_ends_the_job_with_both_names_and_the_remedy(void **state)
{
    (void)state;
    struct story s;
    uint32_t slots[3];
    gather_apart(&s, slots);
    assert_int_equal(unreached(&s, slots[1]), 0);
    TOLD(&s, "stop a; stop b; stop c; ");
    assert_true(s.job.final); /* However many restarts are left. */
    assert_int_equal(s.job.restarts, 0);
    assert_string_equal(
        s.job.cause.message,
        "b cannot reach a at 10.1.1.1:1234: no answer, tried for 10 s; the workers' "
        "store is there: open the port between the hosts, or choose an open one "
        "with --store-port=PORT on every node");
    end(&s);
}

static void test_on_one_host_no_time_is_spent_on_reaching_the_lead(void **state)
{
    (void)state;
    struct story s;
    begin(&s, mu_mem_default());
    for (int i = 0; i < 2; i++)
        assert_int_equal(hello(&s,
                               (struct who){.host = i == 0 ? "a" : "b",
                                            .min = 2,
                                            .max = 2,
                                            .addr = i == 0 ? "127.0.0.1" : "::1"},
                               NULL),
                         0);
    assert_int_equal(s.job.state, JOB_RUNNING);
    assert_int_equal(s.job.reach_ns, 0);
    end(&s);
}

static void test_a_second_unnamed_job_of_one_node_is_refused_with_the_first_ones_facts(void **state)
{
    (void)state;
    struct story s;
    uint32_t a = 0;
    struct job_config c = {
        .run_id = "none", .lease_ns = 3 * SEC, .beat_ns = SEC, .version = "test"};
    begin(&s, mu_mem_default());
    job_fini(&s.job);
    assert_int_equal(job_init(&s.job, mu_mem_default(), &c, &s.err), 0);
    s.now = INT64_C(1798761600000) * 1000000; /* 2027-01-01; `give` makes wall clock of it. */
    assert_int_equal(hello(&s, (struct who){.host = "a", .min = 1, .max = 1}, &a), 0);
    s.now += 3 * SEC;
    assert_int_equal(hello(&s, (struct who){.host = "b", .min = 1, .max = 1}, NULL), -EACCES);
    assert_non_null(
        strstr(s.err.msg, "job 'none' runs here since 2027-01-01T00:00:00Z (3 s), on a"));
    /* Nobody of it is connected: then it may be dead, and who comes waits. */
    assert_int_equal(give(&s, (struct job_event){.type = JOB_EV_NODE_AWAY, .node = a}), 0);
    assert_int_equal(hello(&s, (struct who){.host = "b", .min = 1, .max = 1}, NULL), 0);
    end(&s);
}

static void test_no_memory_changes_nothing_and_everything_is_freed(void **state)
{
    (void)state;
    for (size_t n = 1;; n++) {
        struct mu_mem_failing heap;
        mu_mem_failing_init(&heap, n);
        struct story s;
        begin(&s, &heap.mem);
        int r = 0;
        for (int i = 0; i < 20 && r == 0; i++) {
            char host[8];
            (void)snprintf(host, sizeof host, "n%d", i);
            uint32_t before = s.job.node_count;
            r = hello(&s, (struct who){.host = host, .min = 20, .max = 20}, NULL);
            assert_true(r == 0 || r == -ENOMEM);
            if (r != 0)
                assert_int_equal(s.job.node_count, before);
        }
        bool done = heap.calls < n;
        assert_true(done == (r == 0));
        end(&s);
        assert_int_equal(heap.live, 0);
        if (done)
            break;
    }
}

static void test_who_comes_back_is_known_by_its_new_words_unless_memory_ran_out(void **state)
{
    (void)state;
    struct mu_mem_failing heap;
    mu_mem_failing_init(&heap, SIZE_MAX);
    struct story s;
    struct who w = {.host = "n1", .min = 2, .max = 2, .addr = "10.0.0.1"};
    uint32_t slot = 0;
    uint32_t again = 0;
    begin(&s, &heap.mem);
    assert_int_equal(hello(&s, w, &slot), 0);
    const struct job_node *n = &s.job.nodes[slot];
    s.job.nodes[slot].workers[1].pid = 77;
    w.addr = "2001:db8::1:2:3:4";
    w.role = "another";
    w.nproc = 5;
    heap.fail_at = heap.calls + 1;
    assert_int_equal(hello(&s, w, NULL), -ENOMEM);
    assert_string_equal(n->seen_addr, "10.0.0.1");
    assert_string_equal(n->hello.role, "default");
    heap.fail_at = SIZE_MAX;
    assert_int_equal(hello(&s, w, &again), 0);
    assert_int_equal(again, slot);
    assert_string_equal(n->seen_addr, w.addr);
    assert_string_equal(n->hello.role, w.role);
    assert_string_equal(n->hello.host, "n1");
    assert_int_equal(n->hello.nproc, 2); /* It has as many workers as it came with. */
    assert_int_equal(n->workers[1].pid, 77);
    end(&s);
    assert_int_equal(heap.live, 0);
}

static void test_sixteen_thousand_joins_cost_the_same_each(void **state)
{
    (void)state;
    struct story s;
    begin(&s, mu_mem_default());
    for (int i = 0; i < 16000; i++) {
        char host[16];
        (void)snprintf(host, sizeof host, "n%d", i);
        assert_int_equal(
            hello(&s, (struct who){.host = host, .min = 16000, .max = 16000, .nproc = 8}, NULL), 0);
    }
    assert_int_equal(s.job.state, JOB_RUNNING);
    assert_int_equal(s.job.world, 128000);
    assert_string_equal(s.job.nodes[s.job.members[10]].hello.host, "n10");
    end(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table_every_state_is_reachable),
        cmocka_unit_test(test_table_every_state_hears_every_outside_event),
        cmocka_unit_test(test_table_ended_states_lead_nowhere),
        cmocka_unit_test(test_round_begins_when_all_are_here_in_natural_order),
        cmocka_unit_test(test_explicit_ranks_are_honoured_and_doubles_refused),
        cmocka_unit_test(test_specs_that_disagree_are_refused_with_both_values),
        cmocka_unit_test(test_rounds_that_cannot_be_are_refused),
        cmocka_unit_test(test_a_resumed_round_may_not_be_silent_for_longer_than_the_server_allows),
        cmocka_unit_test(test_failure_restarts_within_the_budget_then_ends_with_the_first_cause),
        cmocka_unit_test(test_whom_the_first_failure_names_is_the_cause_and_all_are_told_anew),
        cmocka_unit_test(test_a_chain_of_names_is_followed_to_its_end),
        cmocka_unit_test(test_ranks_that_name_each_other_leave_the_first),
        cmocka_unit_test(test_a_kill_beats_a_status_for_a_moment_only),
        cmocka_unit_test(test_a_lost_node_that_was_named_gives_the_restart_back),
        cmocka_unit_test(test_last_words_of_the_first_failure_go_to_all),
        cmocka_unit_test(test_who_spent_the_restarts_is_bounded),
        cmocka_unit_test(test_silence_is_kept_as_it_is_told),
        cmocka_unit_test(test_steps_are_kept_as_beats_tell_them),
        cmocka_unit_test(test_who_hangs_is_found_among_all_nodes),
        cmocka_unit_test(test_a_node_that_has_finished_hears_for_whom_it_waits),
        cmocka_unit_test(test_who_is_missing_after_a_round_is_said_soon),
        cmocka_unit_test(test_all_finished_succeeds_and_a_death_after_finishing_is_no_failure),
        cmocka_unit_test(test_dead_node_costs_nothing_and_a_spare_takes_its_rank),
        cmocka_unit_test(test_when_the_server_goes_with_a_node_the_job_ends_for_all),
        cmocka_unit_test(test_elastic_job_waits_for_the_last_call_then_runs_with_who_is_here),
        cmocka_unit_test(test_too_few_nodes_give_up_and_say_who_is_here),
        cmocka_unit_test(test_roles_have_ranks_of_their_own),
        cmocka_unit_test(test_lead_address_is_one_that_the_others_can_reach),
        cmocka_unit_test(test_a_lead_beside_the_server_is_where_the_others_met_the_server),
        cmocka_unit_test(test_between_hosts_all_reach_the_lead_before_any_worker_starts),
        cmocka_unit_test(
            test_who_does_not_reach_the_lead_ends_the_job_with_both_names_and_the_remedy),
        cmocka_unit_test(test_on_one_host_no_time_is_spent_on_reaching_the_lead),
        cmocka_unit_test(
            test_a_second_unnamed_job_of_one_node_is_refused_with_the_first_ones_facts),
        cmocka_unit_test(test_no_memory_changes_nothing_and_everything_is_freed),
        cmocka_unit_test(test_who_comes_back_is_known_by_its_new_words_unless_memory_ran_out),
        cmocka_unit_test(test_sixteen_thousand_joins_cost_the_same_each),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
