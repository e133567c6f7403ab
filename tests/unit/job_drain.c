/* A node that is to leave, as the job sees it: which step is chosen, what the round's end costs,
 * what is said. */
#include "tests/unit/job_rig.h"

#include <errno.h>

#define NODES 3

struct story {
    struct job job;
    struct job_out out;
    int64_t now;
    uint32_t slot[NODES];
};

static void give(struct story *s, enum job_event_type type, uint32_t node, struct ctl_msg *m)
{
    struct job_event ev = {
        .type = type, .node = node, .msg = m, .unix_ms = s->now / 1000000, .seen_addr = "10.0.0.9"};
    assert_int_equal(job_step(&s->job, s->now, &ev, &s->out, NULL), 0);
}

static uint32_t join(struct story *s, const char *host, int min, int max)
{
    struct ctl_msg m = rig_hello(host);
    m.u.hello.nodes_min = min;
    m.u.hello.nodes_max = max;
    m.u.hello.nproc = 2;
    m.u.hello.store_port = 1234;
    give(s, JOB_EV_HELLO, JOB_NO_NODE, &m);
    return s->out.node;
}

/* n0 and n1 run a round. */
static void begin(struct story *s, int min)
{
    struct job_config c = rig_config();
    memset(s, 0, sizeof *s);
    s->now = 100 * SEC;
    assert_int_equal(job_init(&s->job, mu_mem_default(), &c, NULL), 0);
    for (uint32_t i = 0; i < 2; i++) {
        char host[4];
        (void)snprintf(host, sizeof host, "n%u", i);
        s->slot[i] = join(s, host, min, 2);
    }
    for (uint32_t i = 0; i < 2; i++) {
        struct ctl_msg m = rig_message(CTL_STARTED, s->job.round);
        give(s, JOB_EV_STARTED, s->slot[i], &m);
    }
    assert_int_equal(s->job.state, JOB_RUNNING);
}

static void beat(struct story *s, uint32_t i, int32_t a, int32_t b)
{
    const int32_t steps[2] = {a, b};
    struct ctl_msg m = rig_message(CTL_BEAT, s->job.round);
    m.u.beat.steps = (struct ctl_ints){steps, 2};
    give(s, JOB_EV_BEAT, s->slot[i], &m);
}

static void drain(struct story *s, uint32_t i)
{
    struct ctl_msg m;
    ctl_init(&m, CTL_DRAIN);
    m.u.drain.timeout_ms = 60000;
    (void)snprintf(m.u.drain.reason, sizeof m.u.drain.reason, "a reason");
    give(s, JOB_EV_DRAIN, s->slot[i], &m);
}

static void finished(struct story *s, uint32_t i, int64_t halted)
{
    struct ctl_msg m = rig_message(CTL_FINISHED, s->job.round);
    m.u.finished.halted = halted;
    give(s, JOB_EV_FINISHED, s->slot[i], &m);
}

static uint32_t sent(const struct story *s, enum ctl_type type)
{
    return rig_sent(&s->out, type, RIG_ANY_NODE);
}

static struct ctl_halt halt_of(const struct story *s, uint32_t i)
{
    struct ctl_msg m;
    job_message(&s->job, s->slot[i], CTL_HALT, &m);
    return m.u.halt;
}

static void goodbye(struct story *s, uint32_t i)
{
    struct ctl_msg m = rig_message(CTL_BYE, 0);
    give(s, JOB_EV_BYE, s->slot[i], &m);
}

static void stopped(struct story *s, uint32_t i)
{
    struct ctl_msg m = rig_message(CTL_STOPPED, s->job.round);
    give(s, JOB_EV_STOPPED, s->slot[i], &m);
}

/* Ten steps a beat; two beats ahead of the beat that told, and of what was done since. */
static void make_pace(struct story *s)
{
    beat(s, 0, 100, 100);
    beat(s, 1, 100, 100);
    s->now += SEC;
    beat(s, 0, 110, 110);
    beat(s, 1, 110, 111);
}

static void test_the_step_lies_two_beats_ahead_of_the_highest(void **state)
{
    struct story s;
    (void)state;
    begin(&s, 2);
    make_pace(&s);
    s.now += SEC / 2;
    drain(&s, 1);
    assert_int_equal(sent(&s, CTL_HALT), 3); /* The leaver hears twice: it is to leave, and when. */
    assert_true(s.out.durable);
    assert_in_range(s.job.halt_step, 111 + 25, 111 + 32);
    assert_int_equal(halt_of(&s, 0).step, s.job.halt_step);
    assert_int_equal(halt_of(&s, 0).leave, 0);
    assert_int_equal(halt_of(&s, 1).leave, 1);
    assert_string_equal(halt_of(&s, 0).host, "n1");
    int32_t step = s.job.halt_step;
    s.now += SEC;
    beat(&s, 0, 200, 200);
    drain(&s, 0); /* Two leave at once: one step all the same. */
    assert_int_equal(s.job.halt_step, step);
    job_fini(&s.job);
}

static void test_an_unknown_speed_is_waited_for(void **state)
{
    struct story s;
    (void)state;
    begin(&s, 2);
    beat(&s, 0, 5, 5);
    drain(&s, 1);
    assert_int_equal(s.job.halt_step, -1);
    assert_int_equal(s.job.state, JOB_RUNNING);
    s.now += SEC;
    beat(&s, 0, 6, 6);
    assert_int_equal(s.job.halt_step, -1); /* n1 has told of none yet. */
    s.now = s.job.halt_ask_until_ns;
    give(&s, JOB_EV_DEADLINE, JOB_NO_NODE, NULL);
    assert_in_range(s.job.halt_step, 6 + 4, 6 + 8);
    job_fini(&s.job);
}

static void test_where_nobody_tells_of_steps_the_round_stops_at_once(void **state)
{
    struct story s;
    (void)state;
    begin(&s, 1);
    drain(&s, 1);
    assert_int_equal(s.job.state, JOB_STOPPING);
    assert_int_equal(s.job.cause.kind, MU_CAUSE_NODE_LEFT);
    assert_string_equal(s.job.cause.host, "n1");
    assert_string_equal(s.job.cause.message, "drained: a reason");
    assert_int_equal(sent(&s, CTL_STOP), 2);
    assert_int_equal(s.job.restarts, 0);
    job_fini(&s.job);
}

static void test_workers_that_stopped_have_not_finished_the_job(void **state)
{
    struct story s;
    (void)state;
    begin(&s, 1);
    make_pace(&s);
    drain(&s, 1);
    finished(&s, 0, 1);
    assert_int_equal(s.job.state, JOB_RUNNING);
    finished(&s, 1, 1);
    assert_int_equal(s.job.state, JOB_STOPPING);
    assert_string_equal(s.job.incident.decision, "regroup");
    assert_string_equal(s.job.incident.cause_kind, "node_left");
    goodbye(&s, 1);
    stopped(&s, 0);
    assert_int_equal(s.job.state, JOB_RUNNING); /* The smaller group. */
    assert_int_equal(s.job.round_nodes, 1);
    assert_int_equal(s.job.halt_step, -1);
    assert_int_equal(s.job.restarts, 0);
    job_fini(&s.job);
}

static void test_workers_whose_work_ends_before_that_step_have(void **state)
{
    struct story s;
    (void)state;
    begin(&s, 2);
    make_pace(&s);
    drain(&s, 1);
    finished(&s, 0, 0);
    finished(&s, 1, 0);
    assert_int_equal(s.job.state, JOB_SUCCEEDED);
    job_fini(&s.job);
}

static void test_who_misses_a_peer_that_has_stopped_costs_no_restart(void **state)
{
    struct story s;
    struct ctl_msg m;
    (void)state;
    begin(&s, 2);
    make_pace(&s);
    drain(&s, 1);
    finished(&s, 1, 1);
    ctl_init(&m, CTL_FAILED);
    m.u.failed.round = s.job.round;
    m.u.failed.cause.kind = MU_CAUSE_WORKER_EXIT;
    m.u.failed.cause.exit_code = 1;
    m.u.failed.cause.local_rank = 0;
    give(&s, JOB_EV_WORKER_FAILED, s.slot[0], &m);
    assert_int_equal(s.job.cause.kind, MU_CAUSE_NODE_LEFT);
    assert_int_equal(s.job.restarts, 0);
    assert_int_equal(s.job.state, JOB_STOPPING);
    assert_false(s.job.final);
    job_fini(&s.job);
}

static void test_a_spare_leaves_and_the_round_goes_on(void **state)
{
    struct story s;
    (void)state;
    begin(&s, 2);
    s.slot[2] = join(&s, "n2", 2, 2);
    assert_int_equal(s.job.waiting, 1);
    drain(&s, 2);
    assert_int_equal(s.job.waiting, 0);
    assert_int_equal(sent(&s, CTL_HALT), 1);
    assert_int_equal(halt_of(&s, 2).leave, 1);
    assert_int_equal(halt_of(&s, 2).round, 0);
    goodbye(&s, 2);
    assert_int_equal(s.job.state, JOB_RUNNING);
    job_fini(&s.job);
}

static void test_the_sentence_says_what_happens_next(void **state)
{
    struct story s;
    struct mu_buf b;
    (void)state;
    begin(&s, 2);
    make_pace(&s);
    drain(&s, 1);
    mu_buf_init(&b, mu_mem_default());
    job_sentence(&s.job, s.now, &b);
    assert_has(mu_buf_cstr(&b), "n1 is to leave (a reason): all workers stop after step ");
    assert_has(mu_buf_cstr(&b), "then the job waits for another node (1 of 2 are left)");
    s.slot[2] = join(&s, "n2", 2, 2);
    mu_buf_reset(&b);
    job_sentence(&s.job, s.now, &b);
    assert_has(mu_buf_cstr(&b), "then another round begins without it (2 nodes, at most 2)");
    mu_buf_fini(&b);
    job_fini(&s.job);
}

/* A server without memory of its own learns the step from who was told. */
static void test_an_agent_that_comes_back_brings_the_step(void **state)
{
    struct job_config c = rig_config();
    struct story s = {.now = SEC};
    struct ctl_msg m;
    (void)state;
    assert_int_equal(job_init(&s.job, mu_mem_default(), &c, NULL), 0);
    for (uint32_t i = 0; i < 2; i++) {
        ctl_init(&m, CTL_HELLO);
        (void)snprintf(m.u.hello.host, sizeof m.u.hello.host, "n%u", i);
        (void)snprintf(m.u.hello.node, sizeof m.u.hello.node, "id-n%u", i);
        m.u.hello.nodes_min = m.u.hello.nodes_max = m.u.hello.round_nodes = 2;
        m.u.hello.nproc = 2;
        m.u.hello.round = 4;
        m.u.hello.round_node_rank = i;
        m.u.hello.round_halt_step = i == 0 ? 70 : -1; /* The other had not heard. */
        give(&s, JOB_EV_HELLO, JOB_NO_NODE, &m);
        s.slot[i] = s.out.node;
    }
    assert_int_equal(s.job.state, JOB_RUNNING);
    assert_int_equal(sent(&s, CTL_HALT), 2);
    assert_int_equal(halt_of(&s, 1).step, 70);
    job_fini(&s.job);
}

static void test_what_is_kept_knows_the_step_and_who_leaves(void **state)
{
    struct story s;
    struct job again;
    struct job_row_kept row;
    struct job_node_row rows[2];
    struct mu_buf hellos[2];
    struct job_config c = rig_config();
    (void)state;
    begin(&s, 2);
    make_pace(&s);
    drain(&s, 1);
    job_save(&s.job, &row);
    for (uint32_t i = 0; i < 2; i++) {
        mu_buf_init(&hellos[i], mu_mem_default());
        assert_int_equal(job_save_node(&s.job, s.slot[i], &rows[i], &hellos[i]), 0);
    }
    assert_int_equal(job_init(&again, mu_mem_default(), &c, NULL), 0);
    assert_int_equal(job_load(&again, s.now, s.now / 1000000, &row, rows, 2, NULL), 0);
    assert_int_equal(again.halt_step, s.job.halt_step);
    assert_null(again.nodes[again.members[0]].drain);
    assert_string_equal(again.nodes[again.members[1]].drain->reason, "a reason");
    mu_buf_fini(&hellos[0]);
    mu_buf_fini(&hellos[1]);
    job_fini(&again);
    job_fini(&s.job);
}

static void test_who_leaves_already_is_not_asked_again(void **state)
{
    struct story s;
    struct mu_err err = {0};
    (void)state;
    begin(&s, 2);
    make_pace(&s);
    assert_int_equal(job_check_drain(&s.job, s.slot[1], &err), 0);
    drain(&s, 1);
    assert_int_equal(job_check_drain(&s.job, s.slot[1], &err), -EALREADY);
    assert_string_equal(err.msg, "the node n1 of job 'j' is leaving already");
    job_fini(&s.job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_step_lies_two_beats_ahead_of_the_highest),
        cmocka_unit_test(test_an_unknown_speed_is_waited_for),
        cmocka_unit_test(test_where_nobody_tells_of_steps_the_round_stops_at_once),
        cmocka_unit_test(test_workers_that_stopped_have_not_finished_the_job),
        cmocka_unit_test(test_workers_whose_work_ends_before_that_step_have),
        cmocka_unit_test(test_who_misses_a_peer_that_has_stopped_costs_no_restart),
        cmocka_unit_test(test_a_spare_leaves_and_the_round_goes_on),
        cmocka_unit_test(test_the_sentence_says_what_happens_next),
        cmocka_unit_test(test_an_agent_that_comes_back_brings_the_step),
        cmocka_unit_test(test_what_is_kept_knows_the_step_and_who_leaves),
        cmocka_unit_test(test_who_leaves_already_is_not_asked_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
