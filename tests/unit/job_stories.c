/* One job's rendezvous: what was once broken, and is brought back by tests/sim/bugs. */
#include "tests/unit/job_rig.h"

#include <errno.h>
#include <time.h>

struct story {
    struct job job;
    struct job_out out;
    struct mu_err err;
    int64_t now;
};

static void begin(struct story *s)
{
    struct job_config c = rig_config();
    memset(s, 0, sizeof *s);
    s->now = SEC;
    assert_int_equal(job_init(&s->job, mu_mem_default(), &c, &s->err), 0);
}

static void end(struct story *s)
{
    job_fini(&s->job);
}

static int give(struct story *s, struct job_event ev)
{
    ev.unix_ms = s->now / 1000000;
    return job_step(&s->job, s->now, &ev, &s->out, &s->err);
}

/* A hello of a job of two nodes, with two workers each. */
static struct ctl_msg hello_of(const char *host, int64_t restarts)
{
    struct ctl_msg m = rig_hello(host);
    struct ctl_hello *h = &m.u.hello;
    (void)snprintf(h->role, sizeof h->role, "default");
    h->nodes_min = 2;
    h->nodes_max = 2;
    h->nproc = 2;
    h->max_restarts = restarts;
    h->node_rank = -1;
    h->last_call_ms = 2000;
    h->store_port = 1234;
    return m;
}

static uint32_t join(struct story *s, const struct ctl_msg *m)
{
    assert_int_equal(give(s, rig_hello_event(m)), 0);
    return s->out.node;
}

/* As a member of a round comes back to a server that knows nothing. state: 0 runs, 2 is stopping, 3
 * has stopped. */
static struct ctl_msg resuming(const char *host, int64_t round, int64_t rank, int64_t state)
{
    struct ctl_msg m = hello_of(host, 1);
    m.u.hello.round = round;
    m.u.hello.round_seen = round;
    m.u.hello.round_nodes = 2;
    m.u.hello.round_node_rank = rank;
    m.u.hello.round_state = state;
    m.u.hello.round_fence_ms = 600000;
    return m;
}

static bool was_told(const struct story *s, uint32_t slot, enum ctl_type t)
{
    return rig_sent(&s->out, t, slot) > 0;
}

static void test_a_server_that_stood_still_gives_nobody_up_for_it(void **state)
{
    (void)state;
    for (int told = 0; told < 2; told++) {
        struct story s;
        begin(&s);
        for (int i = 0; i < 2; i++) {
            struct ctl_msg m = hello_of(i == 0 ? "a" : "b", 1);
            m.u.hello.nodes_min = 1;
            (void)join(&s, &m);
        }
        assert_int_equal(s.job.state, JOB_RUNNING);
        s.now += 30 * SEC;
        if (told > 0)
            job_hear_anew(&s.job, s.now);
        assert_int_equal(give(&s, (struct job_event){.type = JOB_EV_DEADLINE, .node = JOB_NO_NODE}),
                         0);
        assert_int_equal(s.job.state == JOB_RUNNING, told);
        s.now += 4 * SEC; /* Now it does hear. */
        (void)give(&s, (struct job_event){.type = JOB_EV_DEADLINE, .node = JOB_NO_NODE});
        assert_int_not_equal(s.job.state, JOB_RUNNING);
        end(&s);
    }
}

static void test_a_restarted_server_keeps_the_verdict_its_agents_bring(void **state)
{
    (void)state;
    struct story s;
    begin(&s);
    for (int i = 0; i < 2; i++) {
        struct ctl_msg m = resuming(i == 0 ? "a" : "b", 2, i, 3);
        m.u.hello.round_restarts = 1;
        m.u.hello.round_cause.kind = MU_CAUSE_WORKER_EXIT;
        m.u.hello.round_cause.exit_code = 7;
        (void)join(&s, &m);
    }
    assert_int_equal(s.job.state, JOB_FAILED); /* One restart was allowed, and is spent. */
    assert_int_equal(s.job.cause.exit_code, 7);
    end(&s);
}

static void test_a_recovering_server_takes_the_later_round(void **state)
{
    (void)state;
    struct story s;
    begin(&s);
    struct ctl_msg stale = resuming("a", 1, 0, 0);
    struct ctl_msg b = resuming("b", 2, 1, 0);
    uint32_t a = join(&s, &stale);
    assert_int_equal(s.job.round, 1);
    (void)join(&s, &b);
    assert_int_equal(s.job.round, 2);
    assert_true(was_told(&s, a, CTL_STOP)); /* It missed the end of its round. */
    end(&s);
}

static void test_a_late_node_whose_connection_lives_keeps_its_place(void **state)
{
    (void)state;
    struct story s;
    begin(&s);
    struct ctl_msg m = hello_of("a", 0);
    struct ctl_msg beat;
    uint32_t a = join(&s, &m);
    s.now += 4 * SEC; /* More than a lease. */
    assert_int_equal(give(&s, (struct job_event){.type = JOB_EV_DEADLINE, .node = JOB_NO_NODE}), 0);
    assert_int_equal(s.job.state, JOB_GATHERING);
    assert_int_equal(s.job.waiting, 0); /* It is not counted on. */
    ctl_init(&beat, CTL_BEAT);
    assert_int_equal(give(&s, (struct job_event){.type = JOB_EV_BEAT, .node = a, .msg = &beat}), 0);
    assert_int_equal(s.job.waiting, 1);
    end(&s);
}

static void test_a_failure_of_a_foreign_kind_costs_a_restart_too(void **state)
{
    (void)state;
    struct story s;
    begin(&s);
    struct ctl_msg a = hello_of("a", 1);
    struct ctl_msg b = hello_of("b", 1);
    uint32_t slot = join(&s, &a);
    (void)join(&s, &b);
    struct ctl_msg m = rig_message(CTL_FAILED, 1);
    m.u.failed.cause.kind = MU_CAUSE_NODE_JOINED; /* The server's word, which costs nothing. */
    assert_int_equal(
        give(&s, (struct job_event){.type = JOB_EV_WORKER_FAILED, .node = slot, .msg = &m}), 0);
    assert_int_equal(s.job.state, JOB_STOPPING);
    assert_int_equal(s.job.cause.kind, MU_CAUSE_NODE_FAILED);
    assert_int_equal(s.job.restarts, 1);
    end(&s);
}

static void test_a_spare_is_told_what_it_waits_for(void **state)
{
    (void)state;
    struct story s;
    struct ctl_msg m;
    begin(&s);
    struct ctl_msg a = hello_of("a", 0);
    struct ctl_msg b = hello_of("b", 0);
    struct ctl_msg c = hello_of("c", 0);
    (void)join(&s, &a);
    (void)join(&s, &b);
    uint32_t spare = join(&s, &c);
    assert_true(was_told(&s, spare, CTL_WAITING));
    job_message(&s.job, spare, CTL_WAITING, &m);
    assert_non_null(strstr(m.u.waiting.text, "round 1 runs"));
    assert_non_null(strstr(m.u.waiting.text, "as a spare"));
    end(&s);
}

static void test_a_hello_that_was_overtaken_changes_nothing(void **state)
{
    (void)state;
    struct story s;
    begin(&s);
    struct ctl_msg late = hello_of("a", 1); /* Sent, and its connection given up. */
    late.u.hello.link = 1;
    struct ctl_msg a = late;
    a.u.hello.link = 2;
    struct ctl_msg b = hello_of("b", 1);
    uint32_t slot = join(&s, &a);
    (void)join(&s, &b);
    assert_true(was_told(&s, slot, CTL_START));
    s.now += 700 * SEC; /* b is silent for its fence time: the round is stopped. */
    struct ctl_msg beat;
    ctl_init(&beat, CTL_BEAT);
    assert_int_equal(give(&s, (struct job_event){.type = JOB_EV_BEAT, .node = slot, .msg = &beat}),
                     0);
    assert_int_equal(give(&s, (struct job_event){.type = JOB_EV_DEADLINE, .node = JOB_NO_NODE}), 0);
    assert_int_equal(s.job.state, JOB_STOPPING);
    /* It would say that nothing of the round runs there, while START is on its way. */
    assert_int_equal(give(&s, rig_hello_event(&late)), -EAGAIN);
    assert_int_equal(s.job.state, JOB_STOPPING);
    assert_int_equal(s.job.nodes[slot].state, JOB_NODE_STOPPING);
    end(&s);
}

/* Processor time of a gathering of 16,000 nodes with that many roles. */
static void away(struct story *s, uint32_t slot, bool dead)
{
    assert_int_equal(give(s, (struct job_event){.type = dead ? JOB_EV_NODE_DEAD : JOB_EV_NODE_AWAY,
                                                .node = slot}),
                     0);
}

static void fails(struct story *s, uint32_t slot, int32_t rank, int32_t blame)
{
    struct ctl_msg m = rig_message(CTL_FAILED, s->job.round);
    m.u.failed.cause.kind = MU_CAUSE_WORKER_EXIT;
    m.u.failed.cause.exit_code = 7;
    m.u.failed.cause.rank = rank;
    m.u.failed.cause.blame = blame;
    assert_int_equal(
        give(s, (struct job_event){.type = JOB_EV_WORKER_FAILED, .node = slot, .msg = &m}), 0);
}

static void stopped(struct story *s, uint32_t slot)
{
    struct ctl_msg m = rig_message(CTL_STOPPED, s->job.round);
    assert_int_equal(give(s, (struct job_event){.type = JOB_EV_STOPPED, .node = slot, .msg = &m}),
                     0);
}

static void test_a_spare_that_takes_over_spends_the_same_budget(void **state)
{
    (void)state;
    struct story s;
    begin(&s);
    struct ctl_msg a = hello_of("a", 1);
    struct ctl_msg b = hello_of("b", 1);
    a.u.hello.nodes_min = a.u.hello.nodes_max = b.u.hello.nodes_min = b.u.hello.nodes_max = 1;
    uint32_t slot_a = join(&s, &a);
    away(&s, slot_a, false);
    uint32_t slot_b = join(&s, &b); /* Nobody of the round is connected. */
    a.u.hello.round = a.u.hello.round_seen = a.u.hello.round_nodes = 1;
    (void)join(&s, &a);
    fails(&s, slot_a, 0, -1);
    stopped(&s, slot_a);
    assert_int_equal(s.job.round, 2);
    assert_int_equal(s.job.restarts, 1);
    away(&s, slot_a, true);
    assert_int_equal(s.job.round, 3);
    assert_int_equal(s.job.restarts, 1);
    fails(&s, slot_b, 0, -1);
    stopped(&s, slot_b);
    assert_int_equal(s.job.state, JOB_FAILED);
    end(&s);
}

static void test_who_missed_a_node_that_fenced_itself_spends_nothing(void **state)
{
    (void)state;
    struct story s;
    begin(&s);
    struct ctl_msg a = hello_of("a", 1);
    struct ctl_msg b = hello_of("b", 1);
    uint32_t slot_a = join(&s, &a);
    uint32_t slot_b = join(&s, &b);
    assert_int_equal(s.job.state, JOB_RUNNING);
    away(&s, slot_a, false);
    fails(&s, slot_b, 2, 0);
    assert_int_equal(s.job.restarts, 1);
    s.now += 5 * SEC; /* It was away for long. */
    a.u.hello.round = a.u.hello.round_seen = 1;
    a.u.hello.round_nodes = 2;
    a.u.hello.round_state = 3;
    a.u.hello.round_cause.kind = MU_CAUSE_NODE_SILENT;
    (void)join(&s, &a);
    assert_int_equal(s.job.restarts, 0);
    assert_int_equal(s.job.cause.kind, MU_CAUSE_NODE_SILENT);
    stopped(&s, slot_b);
    assert_int_equal(s.job.round, 2);
    assert_int_equal(s.job.restarts, 0);
    end(&s);
}

/* A server without memory counts from 1 again: "a" was in round 1 of its former life, "b" is in
 * round 1 of this one, which another member of it runs too. */
static void test_two_rounds_of_one_number_are_two(void **state)
{
    (void)state;
    for (int first = 0; first < 2; first++) {
        struct story s;
        struct ctl_msg of_old = resuming("a", 1, 0, 3);
        struct ctl_msg of_new = resuming("b", 1, 1, 0);
        begin(&s);
        of_old.u.hello.round_begun_ms = 1000;
        of_new.u.hello.round_begun_ms = 2000;
        uint32_t slot_old = join(&s, first == 0 ? &of_old : &of_new);
        uint32_t slot_new = join(&s, first == 0 ? &of_new : &of_old);
        if (first > 0) {
            uint32_t swap = slot_old;
            slot_old = slot_new;
            slot_new = swap;
        }
        assert_int_equal(s.job.state, JOB_RECOVERING);
        assert_int_equal(s.job.pending, 1);
        assert_false(s.job.nodes[slot_old].in_round);
        assert_true(s.job.nodes[slot_new].in_round);
        end(&s);
    }
}

static double cost_of_roles(int roles)
{
    struct story s;
    begin(&s);
    for (int i = 0; i < 15999; i++) {
        char host[16];
        (void)snprintf(host, sizeof host, "n%d", i);
        struct ctl_msg m = hello_of(host, 0);
        m.u.hello.nodes_min = m.u.hello.nodes_max = 16000;
        (void)snprintf(m.u.hello.role, sizeof m.u.hello.role, "role%d", i % roles);
        (void)join(&s, &m);
    }
    struct ctl_msg last = hello_of("last", 0);
    last.u.hello.nodes_min = last.u.hello.nodes_max = 16000;
    clock_t from = clock();
    (void)join(&s, &last);
    clock_t to = clock();
    assert_int_equal(s.job.state, JOB_RUNNING);
    end(&s);
    return (double)(to - from) / CLOCKS_PER_SEC;
}

static void test_a_role_for_each_of_sixteen_thousand_nodes_costs_no_more_than_one(void **state)
{
    (void)state;
    double one = cost_of_roles(1);
    double each = cost_of_roles(15999);
    print_message("the last join: %.1f ms with one role, %.1f ms with 15,999\n", one * 1e3,
                  each * 1e3);
    assert_true(each < 10 * (one + 0.01)); /* Was 100 times as much. */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_server_that_stood_still_gives_nobody_up_for_it),
        cmocka_unit_test(test_a_restarted_server_keeps_the_verdict_its_agents_bring),
        cmocka_unit_test(test_a_recovering_server_takes_the_later_round),
        cmocka_unit_test(test_a_late_node_whose_connection_lives_keeps_its_place),
        cmocka_unit_test(test_a_failure_of_a_foreign_kind_costs_a_restart_too),
        cmocka_unit_test(test_a_spare_is_told_what_it_waits_for),
        cmocka_unit_test(test_a_hello_that_was_overtaken_changes_nothing),
        cmocka_unit_test(test_a_spare_that_takes_over_spends_the_same_budget),
        cmocka_unit_test(test_who_missed_a_node_that_fenced_itself_spends_nothing),
        cmocka_unit_test(test_two_rounds_of_one_number_are_two),
        cmocka_unit_test(test_a_role_for_each_of_sixteen_thousand_nodes_costs_no_more_than_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
