/* The restart budget of one job, and the fences of its old rounds. */
#include "tests/unit/job_rig.h"

#define NODES 2
#define UNIX_MS INT64_C(1700000000000) /* When the monotonic clock was 0. */

struct story {
    struct job job;
    struct job_out out;
    struct mu_err err;
    int64_t now;
    struct ctl_hello spec;
    uint32_t slots[NODES];
};

static int64_t unix_ms(const struct story *s)
{
    return UNIX_MS + s->now / 1000000;
}

static void make_job(struct story *s)
{
    struct job_config c = rig_config();
    assert_int_equal(job_init(&s->job, mu_mem_default(), &c, &s->err), 0);
}

static void begin(struct story *s)
{
    struct ctl_msg m;
    memset(s, 0, sizeof *s);
    s->now = 1000 * SEC;
    ctl_init(&m, CTL_HELLO);
    s->spec = m.u.hello;
    s->spec.nodes_min = s->spec.nodes_max = NODES;
    s->spec.nproc = 2;
    s->spec.max_restarts = 3;
    s->spec.store_port = 1;
    make_job(s);
}

static void end(struct story *s)
{
    job_fini(&s->job);
}

static int give(struct story *s, struct job_event ev)
{
    ev.unix_ms = unix_ms(s);
    return job_step(&s->job, s->now, &ev, &s->out, &s->err);
}

static struct ctl_msg hello_of(const struct story *s, int i)
{
    struct ctl_msg m;
    ctl_init(&m, CTL_HELLO);
    m.u.hello = s->spec;
    (void)snprintf(m.u.hello.host, sizeof m.u.hello.host, "n%d", i);
    (void)snprintf(m.u.hello.node, sizeof m.u.hello.node, "id-%d", i);
    (void)snprintf(m.u.hello.run_id, sizeof m.u.hello.run_id, "j");
    return m;
}

static int join(struct story *s, int i)
{
    struct ctl_msg m = hello_of(s, i);
    int r = give(s, rig_hello_event(&m));
    if (r == 0 && i < NODES)
        s->slots[i] = s->out.node;
    return r;
}

static void say(struct story *s, int i, enum ctl_type t, int64_t round)
{
    struct ctl_msg m = rig_message(t, round);
    assert_int_equal(give(s, rig_event(s->slots[i], t, &m)), 0);
}

/* Both join where they have not yet, and their workers run. */
static void run_round(struct story *s)
{
    for (int i = 0; i < NODES && s->job.round == 0; i++)
        assert_int_equal(join(s, i), 0);
    assert_int_equal(s->job.state, JOB_RUNNING);
    for (int i = 0; i < NODES; i++)
        say(s, i, CTL_STARTED, s->job.round);
}

static void steps(struct story *s, int i, int32_t first, int32_t second)
{
    const int32_t v[] = {first, second};
    struct ctl_msg m = rig_message(CTL_BEAT, s->job.round);
    m.u.beat.steps = (struct ctl_ints){v, 2};
    assert_int_equal(give(s, rig_event(s->slots[i], CTL_BEAT, &m)), 0);
}

static void fail_as(struct story *s, int i, struct mu_cause c)
{
    struct ctl_msg m = rig_message(CTL_FAILED, s->job.round);
    m.u.failed.cause = c;
    assert_int_equal(give(s, rig_event(s->slots[i], CTL_FAILED, &m)), 0);
}

static struct mu_cause exit_of(int32_t local_rank, int32_t status, int32_t step)
{
    struct mu_cause c = MU_CAUSE_INIT;
    c.kind = MU_CAUSE_WORKER_EXIT;
    c.local_rank = local_rank;
    c.exit_code = status;
    c.step = step;
    return c;
}

static struct mu_cause kill_of(int32_t local_rank, int32_t signo, int32_t step)
{
    struct mu_cause c = exit_of(local_rank, 0, step);
    c.kind = MU_CAUSE_WORKER_SIGNAL;
    c.signo = signo;
    return c;
}

static void stop_all(struct story *s)
{
    int64_t round = s->job.round;
    for (int i = 0; i < NODES; i++)
        say(s, i, CTL_STOPPED, round);
}

/* A round that fails as that, and is stopped; the next one runs, unless the job is over. */
static void fails_as(struct story *s, int i, struct mu_cause c)
{
    fail_as(s, i, c);
    assert_int_equal(s->job.state, JOB_STOPPING);
    stop_all(s);
    if (s->job.state == JOB_RUNNING)
        run_round(s);
}

static void fails(struct story *s)
{
    fails_as(s, 0, exit_of(0, 7, -1));
}

static void tick(struct story *s, int64_t ns)
{
    s->now += ns;
    for (int i = 0; i < NODES; i++) /* Nobody is silent. */
        say(s, i, CTL_BEAT, s->job.round);
    assert_int_equal(give(s, (struct job_event){.type = JOB_EV_DEADLINE, .node = JOB_NO_NODE}), 0);
}

static void test_only_restarts_within_the_window_count(void **state)
{
    (void)state;
    struct story s;
    begin(&s);
    s.spec.restart_window_ms = 3600 * 1000;
    run_round(&s);
    for (int i = 0; i < 3; i++) { /* At 0, 20 and 40 minutes. */
        fails(&s);
        assert_int_equal(s.job.state, JOB_RUNNING);
        tick(&s, 1200 * SEC);
    }
    assert_int_equal(job_spent(&s.job, s.now), 2); /* At 60 the first one counts no longer. */
    assert_int_equal(job_spent(&s.job, s.now - 1), 3);
    fails(&s);
    assert_int_equal(s.job.state, JOB_RUNNING);
    assert_int_equal(s.job.restarts, 4); /* TORCHELASTIC_RESTART_COUNT counts on. */
    assert_string_equal(s.job.spent_by,
                        "rank 0 on n0 (round 2), rank 0 on n0 (round 3), rank 0 on n0 (round 4)");
    fails(&s);
    assert_int_equal(s.job.state, JOB_FAILED);
    assert_string_equal(s.job.incident.decision, "fail");
    assert_int_equal(s.job.incident.spent, 3);
    assert_int_equal(s.job.incident.window_ms, 3600000);
    end(&s);
}

static void test_a_better_cause_that_costs_nothing_leaves_the_window_too(void **state)
{
    (void)state;
    struct story s;
    begin(&s);
    s.spec.max_restarts = 1;
    s.spec.restart_window_ms = 1000;
    run_round(&s);
    struct mu_cause c = exit_of(0, 1, -1);
    c.blame = 3;
    fail_as(&s, 0, c);
    assert_int_equal(job_spent(&s.job, s.now), 1);
    s.now += 2 * SEC; /* The window is over, and the blamed node dies. */
    assert_int_equal(give(&s, (struct job_event){.type = JOB_EV_NODE_DEAD, .node = s.slots[1]}), 0);
    assert_int_equal(s.job.cause.kind, MU_CAUSE_NODE_LOST);
    assert_int_equal(s.job.budget.spent, 0);
    assert_int_equal(s.job.restarts, 0);
    assert_string_equal(s.job.spent_by, "");
    end(&s);
}

static void test_a_round_that_runs_long_enough_gives_the_restarts_back(void **state)
{
    (void)state;
    struct story s;
    struct ctl_msg m;
    begin(&s);
    s.spec.give_back_ms = 1800 * 1000;
    run_round(&s);
    fails(&s);
    fails(&s);
    assert_int_equal(job_spent(&s.job, s.now), 2);
    tick(&s, 1799 * SEC);
    assert_int_equal(job_spent(&s.job, s.now), 2);
    assert_true(s.job.deadline_ns <= s.now + SEC); /* The timer comes for it. */
    tick(&s, SEC);
    assert_int_equal(job_spent(&s.job, s.now), 0);
    assert_int_equal(s.job.budget.given_back, 2);
    assert_string_equal(s.job.spent_by, "");
    fails(&s);
    job_message(&s.job, s.slots[0], CTL_START, &m);
    assert_int_equal(m.u.start.restarts, 3); /* Counts on. */
    assert_int_equal(m.u.start.spent, 1);
    assert_int_equal(s.job.incident.given_back, 2);
    end(&s);
}

static void test_a_failure_before_the_late_timer_still_finds_them_given_back(void **state)
{
    (void)state;
    struct story s;
    begin(&s);
    s.spec.max_restarts = 1;
    s.spec.give_back_ms = 60 * 1000;
    run_round(&s);
    fails(&s);
    s.now += 60 * SEC;
    fails(&s);
    assert_int_equal(s.job.state, JOB_RUNNING);
    s.now += 59 * SEC;
    fails(&s);
    assert_int_equal(s.job.state, JOB_FAILED);
    end(&s);
}

static void test_the_slowest_rank_must_come_far_enough(void **state)
{
    (void)state;
    struct story s;
    begin(&s);
    s.spec.give_back_steps = 500;
    run_round(&s);
    fails(&s);
    steps(&s, 0, 1010, 1012); /* From a checkpoint at 1000. */
    assert_int_equal(s.job.budget.first_step, 1010);
    steps(&s, 0, 1600, 1600);
    steps(&s, 1, 1600, -1); /* One of them has reported none. */
    assert_int_equal(job_spent(&s.job, s.now), 1);
    steps(&s, 1, 1600, 1509);
    assert_int_equal(job_spent(&s.job, s.now), 1);
    steps(&s, 1, 1600, 1510);
    assert_int_equal(job_spent(&s.job, s.now), 0);
    assert_int_equal(s.job.budget.given_back, 1);
    fails(&s); /* A new round proves itself anew. */
    assert_int_equal(job_spent(&s.job, s.now), 1);
    steps(&s, 0, 1600, 1600);
    steps(&s, 1, 1600, 1600);
    assert_int_equal(job_spent(&s.job, s.now), 1);
    end(&s);
}

/* What the first failure was, what the second is, and whether starting again helps. */
static void test_the_same_failure_at_the_same_step_twice_ends_the_job(void **state)
{
    (void)state;
    struct mu_cause blaming = exit_of(1, 1, 41);
    blaming.blame = 0;
    struct mu_cause hung = exit_of(1, 0, 41);
    hung.kind = MU_CAUSE_NO_PROGRESS;
    const struct {
        struct mu_cause first, second;
        int first_on, second_on;
        bool restart; /* --same-failure=restart */
        bool ends;
    } rows[] = {
        {exit_of(1, 1, 41), exit_of(1, 1, 41), 1, 1, false, true},
        {kill_of(1, 11, 41), kill_of(1, 11, 41), 1, 1, false, true},
        {hung, hung, 1, 1, false, true},
        {exit_of(1, 1, 41), exit_of(1, 1, 41), 1, 1, true, false},
        {exit_of(1, 1, 41), exit_of(1, 1, 42), 1, 1, false, false},
        {exit_of(1, 1, 41), exit_of(1, 2, 41), 1, 1, false, false},
        {exit_of(1, 1, 41), kill_of(1, 1, 41), 1, 1, false, false},
        {kill_of(1, 9, 41), kill_of(1, 11, 41), 1, 1, false, false},
        {exit_of(1, 1, 41), exit_of(1, 1, 41), 1, 0, false, false}, /* Another rank. */
        {exit_of(1, 1, 41), exit_of(0, 1, 41), 1, 1, false, false},
        {exit_of(1, 1, -1), exit_of(1, 1, -1), 1, 1, false, false}, /* It reports no steps. */
        {blaming, blaming, 1, 1, false, false}, /* It says that another one failed. */
    };
    for (size_t i = 0; i < MU_COUNT(rows); i++) {
        struct story s;
        struct mu_buf b;
        struct ctl_msg m;
        begin(&s);
        s.spec.same_failure_restart = rows[i].restart;
        run_round(&s);
        fails_as(&s, rows[i].first_on, rows[i].first);
        assert_int_equal(s.job.state, JOB_RUNNING);
        fails_as(&s, rows[i].second_on, rows[i].second);
        assert_int_equal(s.job.state, rows[i].ends ? JOB_FAILED : JOB_RUNNING);
        assert_int_equal(s.job.restarts, rows[i].ends ? 1 : 2);
        assert_int_equal(s.job.incident.same_failure, rows[i].ends);
        job_message(&s.job, s.slots[0], CTL_END, &m);
        assert_int_equal(m.u.end.same_failure, rows[i].ends);
        mu_buf_init(&b, mu_mem_default());
        job_sentence(&s.job, s.now, &b);
        if (i == 0)
            assert_non_null(strstr(mu_buf_cstr(&b), "; rank 3 failed with status 1 after step 41 "
                                                    "twice: starting again does not help"));
        if (i == 1)
            assert_non_null(strstr(mu_buf_cstr(&b), "; rank 3 was ended by SIGSEGV after step 41 "
                                                    "twice: starting again does not help"));
        mu_buf_fini(&b);
        end(&s);
    }
}

/* In between a round ended as a node went, which costs nothing. */
static void test_a_round_in_between_that_came_further_makes_it_another_failure(void **state)
{
    (void)state;
    for (int32_t step = 40; step <= 42; step++) {
        struct story s;
        begin(&s);
        run_round(&s);
        fails_as(&s, 1, exit_of(1, 1, 41));
        steps(&s, 1, 50, step); /* Rank 2 is no sign of where rank 3 is. */
        assert_int_equal(give(&s, (struct job_event){.type = JOB_EV_NODE_DEAD, .node = s.slots[0]}),
                         0);
        say(&s, 1, CTL_STOPPED, 2);
        assert_int_equal(s.job.state, JOB_GATHERING);
        assert_int_equal(join(&s, 0), 0);
        run_round(&s);
        fails_as(&s, 1, exit_of(1, 1, 41));
        assert_int_equal(s.job.state, step > 41 ? JOB_RUNNING : JOB_FAILED);
        end(&s);
    }
}

static void test_another_failure_in_between_makes_it_another_one(void **state)
{
    (void)state;
    struct story s;
    begin(&s);
    run_round(&s);
    fails_as(&s, 1, exit_of(1, 1, 41));
    fails_as(&s, 0, exit_of(0, 1, 20));
    fails_as(&s, 1, exit_of(1, 1, 41));
    assert_int_equal(s.job.state, JOB_RUNNING);
    end(&s);
}

/* Rank 3's failure is no better than what it names: then that one's own proves to be the same. */
static void test_a_better_cause_can_be_the_same_failure(void **state)
{
    (void)state;
    struct story s;
    begin(&s);
    run_round(&s);
    fails_as(&s, 0, exit_of(0, 9, 41));
    struct mu_cause c = exit_of(1, 1, 40);
    c.blame = 0;
    fail_as(&s, 1, c);
    assert_false(s.job.final);
    assert_int_equal(s.job.restarts, 2);
    fail_as(&s, 0, exit_of(0, 9, 41));
    assert_true(s.job.final);
    assert_int_equal(s.job.restarts, 1);
    assert_string_equal(s.job.incident.decision, "fail");
    struct ctl_msg m;
    job_message(&s.job, s.slots[1], CTL_STOP, &m);
    assert_int_equal(m.u.stop.final, 1);
    stop_all(&s);
    assert_int_equal(s.job.state, JOB_FAILED);
    assert_int_equal(s.job.incident.same_failure, 1);
    end(&s);
}

static void test_it_is_the_same_failure_though_the_budget_is_spent_too(void **state)
{
    (void)state;
    struct story s;
    begin(&s);
    s.spec.max_restarts = 1;
    run_round(&s);
    fails_as(&s, 0, exit_of(0, 9, 41));
    fails_as(&s, 0, exit_of(0, 9, 41));
    assert_int_equal(s.job.incident.same_failure, 1);
    end(&s);
}

static void test_nodes_that_come_and_go_cost_nothing(void **state)
{
    (void)state;
    struct story s;
    begin(&s);
    s.spec.restart_window_ms = 1000;
    run_round(&s);
    for (int i = 0; i < 5; i++) {
        int64_t round = s.job.round;
        assert_int_equal(give(&s, (struct job_event){.type = JOB_EV_NODE_DEAD, .node = s.slots[0]}),
                         0);
        say(&s, 1, CTL_STOPPED, round);
        assert_int_equal(join(&s, 0), 0);
        run_round(&s);
    }
    assert_int_equal(s.job.restarts + s.job.budget.spent, 0);
    end(&s);
}

/* --- what is refused --- */

static void test_budgets_that_differ_are_refused_with_both_values(void **state)
{
    (void)state;
    const struct {
        int64_t window_ms, back_ms, back_steps, same;
        const char *says;
    } rows[] = {
        {0, 1800000, 0, 0, "--max-restarts is 3 on n1 and 3/1h on n0, which came first"},
        {90000, 1800000, 0, 0, "--max-restarts is 3/90s on n1 and 3/1h on n0"},
        {3600000, 0, 0, 0, "--restarts-given-back-after is never on n1 and 30m on n0"},
        {3600000, 0, 500, 0, "--restarts-given-back-after is 500steps on n1 and 30m on n0"},
        {3600000, 1800000, 0, 1, "--same-failure is restart on n1 and end on n0"},
    };
    for (size_t i = 0; i < MU_COUNT(rows); i++) {
        struct story s;
        begin(&s);
        s.spec.restart_window_ms = 3600000;
        s.spec.give_back_ms = 1800000;
        assert_int_equal(join(&s, 0), 0);
        s.spec.restart_window_ms = rows[i].window_ms;
        s.spec.give_back_ms = rows[i].back_ms;
        s.spec.give_back_steps = rows[i].back_steps;
        s.spec.same_failure_restart = rows[i].same;
        assert_int_not_equal(join(&s, 1), 0);
        assert_non_null(strstr(s.err.msg, rows[i].says));
        end(&s);
    }
}

static void test_more_restarts_than_are_remembered_are_refused(void **state)
{
    (void)state;
    struct story s;
    begin(&s);
    s.spec.max_restarts = MU_WINDOW_RESTARTS_MAX + 1;
    s.spec.restart_window_ms = 1000;
    assert_int_not_equal(join(&s, 0), 0);
    assert_string_equal(s.err.msg, "--max-restarts: at most 100 restarts within a window");
    end(&s);
}

/* --- a successor --- */

/* The server dies and is started anew, perhaps with its clock set back. */
static void load_anew(struct story *s, int64_t pause_ns, int64_t set_back_ms)
{
    struct job_row_kept row;
    struct job_node_row nodes[NODES];
    struct mu_buf b[NODES];
    job_save(&s->job, &row);
    for (int i = 0; i < NODES; i++) {
        mu_buf_init(&b[i], mu_mem_default());
        assert_int_equal(job_save_node(&s->job, s->slots[i], &nodes[i], &b[i]), 0);
    }
    job_fini(&s->job);
    s->now += pause_ns;
    make_job(s);
    assert_int_equal(
        job_load(&s->job, s->now, unix_ms(s) - set_back_ms, &row, nodes, NODES, &s->err), 0);
    for (int i = 0; i < NODES; i++)
        mu_buf_fini(&b[i]);
}

/* A member is back. cause: why it was told to stop; NULL: its workers run. */
static void come_back(struct story *s, int i, const struct mu_cause *cause)
{
    struct ctl_msg m = hello_of(s, i);
    m.u.hello.round = s->job.round;
    m.u.hello.round_nodes = NODES;
    m.u.hello.round_node_rank = i;
    if (cause != NULL) {
        m.u.hello.round_state = 2;
        m.u.hello.round_cause = *cause;
    }
    assert_int_equal(give(s, rig_hello_event(&m)), 0);
    s->slots[i] = s->out.node;
}

static void die(struct story *s, int64_t pause_ns, int64_t set_back_ms)
{
    load_anew(s, pause_ns, set_back_ms);
    for (int i = 0; i < NODES; i++)
        come_back(s, i, NULL);
    assert_int_equal(s->job.state, JOB_RUNNING);
}

static void test_a_successor_knows_when_restarts_were_spent(void **state)
{
    (void)state;
    struct story s;
    begin(&s);
    s.spec.max_restarts = 2;
    s.spec.restart_window_ms = 3600 * 1000;
    run_round(&s);
    fails(&s);
    tick(&s, 1800 * SEC);
    fails(&s);
    die(&s, 60 * SEC, 0);
    assert_int_equal(job_spent(&s.job, s.now), 2);
    assert_int_equal(job_spent(&s.job, s.now + 1739 * SEC), 2);
    assert_int_equal(job_spent(&s.job, s.now + 1740 * SEC), 1);
    assert_int_equal(job_spent(&s.job, s.now + 3540 * SEC), 0);
    fails(&s);
    assert_int_equal(s.job.state, JOB_FAILED);
    end(&s);
}

/* What a member brings of its round's end is not what the last restart was spent on. */
static void test_a_successor_spends_a_restart_of_its_own_on_what_agents_bring(void **state)
{
    (void)state;
    struct story s;
    begin(&s);
    run_round(&s);
    fails(&s);
    load_anew(&s, SEC, 0);
    struct mu_cause c = exit_of(0, 1, -1);
    c.rank = 0;
    c.blame = 3;
    come_back(&s, 0, &c);
    assert_int_equal(s.job.state, JOB_RECOVERING);
    fail_as(&s, 0, kill_of(1, 9, -1)); /* It names nobody: better. */
    assert_int_equal(s.job.state, JOB_STOPPING);
    assert_int_equal(job_spent(&s.job, s.now), 2);
    assert_string_equal(s.job.spent_by, "rank 0 on n0 (round 1), rank 1 on n0 (round 2)");
    end(&s);
}

static void test_a_clock_that_was_set_back_frees_nothing(void **state)
{
    (void)state;
    struct story s;
    begin(&s);
    s.spec.restart_window_ms = 3600 * 1000;
    run_round(&s);
    fails(&s);
    die(&s, 0, 86400 * 1000);
    assert_int_equal(job_spent(&s.job, s.now + 3599 * SEC), 1);
    assert_int_equal(job_spent(&s.job, s.now + 3600 * SEC), 0);
    end(&s);
}

static void test_a_successor_knows_how_long_the_round_has_run_and_what_failed(void **state)
{
    (void)state;
    struct story s;
    begin(&s);
    s.spec.give_back_ms = 1800 * 1000;
    run_round(&s);
    fails_as(&s, 1, exit_of(1, 1, 41));
    tick(&s, 1000 * SEC);
    die(&s, 700 * SEC, 0);
    assert_int_equal(job_spent(&s.job, s.now), 1);
    tick(&s, 99 * SEC);
    assert_int_equal(job_spent(&s.job, s.now), 1);
    tick(&s, SEC);
    assert_int_equal(job_spent(&s.job, s.now), 0);
    assert_int_equal(s.job.budget.given_back, 1);
    fails_as(&s, 1, exit_of(1, 1, 41));
    assert_int_equal(s.job.state, JOB_FAILED);
    assert_int_equal(s.job.incident.same_failure, 1);
    end(&s);
}

static void test_a_server_that_knows_nothing_believes_what_agents_say_was_spent(void **state)
{
    (void)state;
    struct story s;
    begin(&s);
    s.spec.restart_window_ms = 3600 * 1000;
    for (int i = 0; i < NODES; i++) {
        struct ctl_msg m = hello_of(&s, i);
        m.u.hello.round = 5;
        m.u.hello.round_nodes = NODES;
        m.u.hello.round_node_rank = i;
        m.u.hello.round_restarts = 4;
        m.u.hello.round_spent = 2;
        m.u.hello.round_fence_ms = 600000;
        assert_int_equal(give(&s, rig_hello_event(&m)), 0);
        s.slots[i] = s.out.node;
    }
    assert_int_equal(s.job.restarts, 4);
    assert_int_equal(job_spent(&s.job, s.now), 2);
    fails(&s);
    assert_int_equal(s.job.state, JOB_RUNNING);
    fails(&s);
    assert_int_equal(s.job.state, JOB_FAILED);
    end(&s);
}

static void test_kept_times_that_make_no_sense_are_refused(void **state)
{
    (void)state;
    static const char *const rows[] = {"",   "1700000000000", "1700000000000 1700000000001 ",
                                       "x ", "-1 ",           "99999999999999 "};
    struct story s;
    struct job_row_kept row;
    begin(&s);
    s.spec.restart_window_ms = 3600 * 1000;
    run_round(&s);
    fails(&s);
    job_save(&s.job, &row);
    end(&s);
    assert_string_equal(row.spent_at, "1700001000000 ");
    for (size_t i = 0; i < MU_COUNT(rows); i++) {
        make_job(&s);
        (void)snprintf(row.spent_at, sizeof row.spent_at, "%s", rows[i]);
        assert_int_not_equal(job_load(&s.job, s.now, unix_ms(&s), &row, NULL, 0, &s.err), 0);
        assert_string_equal(s.err.msg, "its kept budget makes no sense");
        end(&s);
    }
}

/* --- fences --- */

static void test_late_messages_of_an_old_round_change_nothing_and_are_counted(void **state)
{
    (void)state;
    static const struct {
        enum ctl_type msg;
        enum job_event_type event;
    } late[] = {{CTL_FAILED, JOB_EV_WORKER_FAILED}, {CTL_STOPPED, JOB_EV_STOPPED},
                {CTL_STARTED, JOB_EV_STARTED},      {CTL_FINISHED, JOB_EV_FINISHED},
                {CTL_EXITED, JOB_EV_EXITED},        {CTL_SILENT, JOB_EV_SILENT},
                {CTL_REACHED, JOB_EV_REACHED},      {CTL_BEAT, JOB_EV_BEAT}};
    struct story s;
    struct job_row_kept before;
    struct job_row_kept after;
    begin(&s);
    run_round(&s);
    fails(&s);
    assert_int_equal(s.job.round, 2);
    job_save(&s.job, &before);
    for (size_t i = 0; i < MU_COUNT(late); i++) {
        struct job_node node = s.job.nodes[s.slots[0]];
        struct job_worker workers[2];
        memcpy(workers, node.workers, sizeof workers);
        say(&s, 0, late[i].msg, 1);
        assert_int_equal(s.out.stale_round, 1);
        assert_int_equal(s.job.stale_count[late[i].event], 1);
        assert_int_equal(s.job.state, JOB_RUNNING);
        assert_int_equal(s.out.count, late[i].msg == CTL_BEAT); /* Each beat is answered. */
        assert_memory_equal(&node, &s.job.nodes[s.slots[0]], sizeof node);
        assert_memory_equal(workers, node.workers, sizeof workers);
        job_save(&s.job, &after);
        assert_memory_equal(&before, &after, sizeof before);
    }
    say(&s, 0, CTL_FAILED, 2); /* Of this one. */
    assert_int_equal(s.out.stale_round, 0);
    assert_int_equal(s.job.state, JOB_STOPPING);
    say(&s, 0, CTL_STOPPED, 1); /* The old round's, once more: it still owes this one's. */
    assert_int_equal(s.out.stale_round, 1);
    say(&s, 1, CTL_STOPPED, 2);
    assert_int_equal(s.job.state, JOB_STOPPING);
    say(&s, 0, CTL_STOPPED, 2);
    assert_int_equal(s.job.state, JOB_RUNNING);
    assert_int_equal(s.job.stale_count[JOB_EV_STOPPED], 2);
    end(&s);
}

/* Told to stop what it brought from another life, it answers: that is no stale word. */
static void test_the_answer_to_a_stop_of_an_old_round_is_none(void **state)
{
    (void)state;
    struct story s;
    begin(&s);
    run_round(&s);
    struct ctl_msg m = hello_of(&s, 7);
    m.u.hello.round = 9;
    m.u.hello.round_nodes = NODES;
    assert_int_equal(give(&s, rig_hello_event(&m)), 0);
    s.slots[0] = s.out.node;
    say(&s, 0, CTL_BEAT, 9);
    assert_int_equal(s.out.stale_round, 0);
    say(&s, 0, CTL_FAILED, 9);
    assert_int_equal(s.out.stale_round, 9);
    say(&s, 0, CTL_STOPPED, 9);
    assert_int_equal(s.out.stale_round, 0);
    say(&s, 0, CTL_BEAT, 0);
    assert_int_equal(s.out.stale_round, 0);
    end(&s);
}

#define T(name) cmocka_unit_test(name)
int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_only_restarts_within_the_window_count),
        T(test_a_better_cause_that_costs_nothing_leaves_the_window_too),
        T(test_a_round_that_runs_long_enough_gives_the_restarts_back),
        T(test_a_failure_before_the_late_timer_still_finds_them_given_back),
        T(test_the_slowest_rank_must_come_far_enough),
        T(test_the_same_failure_at_the_same_step_twice_ends_the_job),
        T(test_a_round_in_between_that_came_further_makes_it_another_failure),
        T(test_another_failure_in_between_makes_it_another_one),
        T(test_a_better_cause_can_be_the_same_failure),
        T(test_it_is_the_same_failure_though_the_budget_is_spent_too),
        T(test_nodes_that_come_and_go_cost_nothing),
        T(test_budgets_that_differ_are_refused_with_both_values),
        T(test_more_restarts_than_are_remembered_are_refused),
        T(test_a_successor_knows_when_restarts_were_spent),
        T(test_a_successor_spends_a_restart_of_its_own_on_what_agents_bring),
        T(test_a_clock_that_was_set_back_frees_nothing),
        T(test_a_successor_knows_how_long_the_round_has_run_and_what_failed),
        T(test_a_server_that_knows_nothing_believes_what_agents_say_was_spent),
        T(test_kept_times_that_make_no_sense_are_refused),
        T(test_late_messages_of_an_old_round_change_nothing_and_are_counted),
        T(test_the_answer_to_a_stop_of_an_old_round_is_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
