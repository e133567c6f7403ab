/* An agent's life: what was once said too often, or not at all, and is brought back by
 * tests/sim/bugs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "agent/life/life.h"

#define SEC INT64_C(1000000000)

struct story {
    struct life life;
    struct life_out out;
    int64_t now;
    char said[2048]; /* By the last step, line by line. */
};

static void begin(struct story *s)
{
    struct ctl_msg m;
    ctl_init(&m, CTL_HELLO);
    struct life_config c = {.hello = m.u.hello,
                            .grace_ns = 10 * SEC,
                            .join_timeout_ns = 60 * SEC,
                            .server_timeout_ns = 60 * SEC,
                            .seed = 1,
                            .meeting = "job 'x' at n1:29500"};
    c.hello.nproc = 1;
    memset(s, 0, sizeof *s);
    s->now = 100 * SEC;
    assert_int_equal(life_init(&s->life, mu_mem_default(), s->now, &c), 0);
}

static void give(struct story *s, struct life_event ev)
{
    assert_int_equal(life_step(&s->life, s->now, &ev, &s->out), 0);
    s->said[0] = '\0';
    for (uint32_t i = 0; i < s->out.count; i++) {
        if (s->out.actions[i].type != LIFE_ACT_SAY)
            continue;
        size_t n = strlen(s->said);
        (void)snprintf(s->said + n, sizeof s->said - n, "%s\n",
                       s->life.words + s->out.actions[i].arg);
    }
}

static void link_up(struct story *s)
{
    give(s, (struct life_event){.type = LIFE_EV_DEADLINE});
    give(s, (struct life_event){.type = LIFE_EV_LINK_UP});
}

static void hear(struct story *s, enum life_event_type type, struct ctl_msg *m)
{
    give(s, (struct life_event){.type = type, .msg = m});
}

static void test_a_refusal_is_said_once(void **state)
{
    (void)state;
    struct story s;
    struct ctl_msg m;
    begin(&s);
    ctl_init(&m, CTL_REFUSED);
    m.u.refused.retry = 1;
    (void)snprintf(m.u.refused.text, sizeof m.u.refused.text, "node rank 1 is taken");
    link_up(&s);
    hear(&s, LIFE_EV_REFUSED, &m);
    assert_string_equal(s.said, "node rank 1 is taken\n");
    hear(&s, LIFE_EV_REFUSED, &m);
    assert_string_equal(s.said, "");
    life_fini(&s.life);
}

static void start_round(struct story *s)
{
    static const int32_t pids[] = {11};
    struct ctl_msg m;
    link_up(s);
    ctl_init(&m, CTL_WELCOME);
    m.u.welcome.beat_ms = 1000;
    hear(s, LIFE_EV_WELCOME, &m);
    ctl_init(&m, CTL_START);
    m.u.start.round = 1;
    m.u.start.fence_ms = 600000;
    m.u.start.max_restarts = 3;
    hear(s, LIFE_EV_START, &m);
    give(s, (struct life_event){.type = LIFE_EV_SPAWNED, .pids = pids});
}

static void test_why_a_round_ended_is_said_once(void **state)
{
    (void)state;
    struct story s;
    struct ctl_msg m;
    begin(&s);
    start_round(&s);
    ctl_init(&m, CTL_STOP);
    m.u.stop.round = 1;
    m.u.stop.cause.kind = MU_CAUSE_WORKER_EXIT;
    m.u.stop.cause.exit_code = 7;
    hear(&s, LIFE_EV_STOP, &m);
    assert_non_null(strstr(s.said, "round 1 ended: "));
    assert_non_null(strstr(s.said, "restart 1 of 3"));
    hear(&s, LIFE_EV_STOP, &m);
    assert_string_equal(s.said, "");
    life_fini(&s.life);
}

/* What counts is the server's to say; how many rounds there were is another number. */
static void test_a_budget_is_told_as_the_server_counts_it(void **state)
{
    (void)state;
    struct story s;
    struct ctl_msg m;
    begin(&s);
    s.life.config.hello.restart_window_ms = 3600 * 1000;
    start_round(&s);
    s.life.start.restarts = 7;
    s.life.start.spent = 1;
    ctl_init(&m, CTL_STOP);
    m.u.stop.round = 1;
    m.u.stop.spent = 2;
    m.u.stop.cause.kind = MU_CAUSE_WORKER_EXIT;
    hear(&s, LIFE_EV_STOP, &m);
    assert_non_null(strstr(s.said, "; the group starts again (restart 2 of 3 within 1 h)"));
    life_message(&s.life, &(struct life_action){.type = LIFE_ACT_SEND, .msg = CTL_HELLO}, &m);
    assert_int_equal(m.u.hello.round_restarts, 7);
    assert_int_equal(m.u.hello.round_spent, 1);
    life_fini(&s.life);
}

static void test_the_same_failure_twice_has_a_status_of_its_own(void **state)
{
    (void)state;
    for (int same = 0; same < 2; same++) {
        struct story s;
        struct ctl_msg m;
        begin(&s);
        start_round(&s);
        ctl_init(&m, CTL_END);
        m.u.end.round = 1;
        m.u.end.restarts = 2;
        m.u.end.same_failure = same;
        m.u.end.cause.kind = MU_CAUSE_WORKER_EXIT;
        hear(&s, LIFE_EV_END, &m);
        assert_int_equal(s.life.exit_status, same ? LIFE_EXIT_SAME_FAILURE : 1);
        assert_int_equal(s.life.spent, 2); /* A server that does not count them apart. */
        life_fini(&s.life);
    }
}

static void test_a_wait_for_a_server_says_so(void **state)
{
    (void)state;
    struct story s;
    int words = 0;
    begin(&s);
    int64_t until = s.now + 50 * SEC;
    for (int steps = 0; s.now < until; steps++) {
        assert_true(steps < 1000);
        give(&s, (struct life_event){.type = LIFE_EV_DEADLINE});
        words += strstr(s.said, "no rendezvous server for ") != NULL &&
                 strstr(s.said, "connection refused") != NULL;
        if (s.life.connecting)
            give(&s, (struct life_event){.type = LIFE_EV_LINK_FAILED,
                                         .refused = true,
                                         .text = "connection refused"});
        s.now = s.life.deadline_ns > s.now ? s.life.deadline_ns : s.now;
    }
    assert_in_range(words, 3, 6); /* After 5, 10, 20 and 40 s. */
    life_fini(&s.life);
}

static void test_a_waiting_line_names_job_and_place(void **state)
{
    (void)state;
    struct story s;
    struct ctl_msg m;
    begin(&s);
    link_up(&s);
    ctl_init(&m, CTL_WAITING);
    (void)snprintf(m.u.waiting.text, sizeof m.u.waiting.text, "1 of 2 nodes are here");
    hear(&s, LIFE_EV_WAITING, &m);
    assert_string_equal(s.said, "job 'x' at n1:29500: 1 of 2 nodes are here\n");
    life_fini(&s.life);
}

static void test_a_server_that_stands_still_is_spoken_of(void **state)
{
    (void)state;
    struct story s;
    int words = 0;
    begin(&s);
    start_round(&s);
    give(&s, (struct life_event){.type = LIFE_EV_WORKER_EXIT, .local_rank = 0, .status = 0});
    give(&s, (struct life_event){.type = LIFE_EV_ALL_GONE});
    assert_int_equal(s.life.state, LIFE_FINISHED);
    int64_t until = s.now + 30 * SEC; /* Nothing is answered from here on. */
    for (int steps = 0; s.now < until; steps++) {
        assert_true(steps < 1000);
        give(&s, (struct life_event){.type = LIFE_EV_DEADLINE});
        words += strstr(s.said, "does not answer") != NULL;
        s.now = s.life.deadline_ns > s.now ? s.life.deadline_ns : s.now;
    }
    assert_in_range(words, 2, 4); /* After 5, 10 and 20 s. */
    assert_int_equal(s.life.state, LIFE_FINISHED);
    life_fini(&s.life);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_refusal_is_said_once),
        cmocka_unit_test(test_why_a_round_ended_is_said_once),
        cmocka_unit_test(test_a_budget_is_told_as_the_server_counts_it),
        cmocka_unit_test(test_the_same_failure_twice_has_a_status_of_its_own),
        cmocka_unit_test(test_a_wait_for_a_server_says_so),
        cmocka_unit_test(test_a_waiting_line_names_job_and_place),
        cmocka_unit_test(test_a_server_that_stands_still_is_spoken_of),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
