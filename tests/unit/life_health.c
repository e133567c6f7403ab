/* agent/life/health.h, and what an agent's life makes of it: only an explicit failure excludes a
 * node. */
#include "tests/unit/unit.h"

#include "agent/life/life.h"
#include "base/check.h"

#define SEC INT64_C(1000000000)

static void test_only_a_status_of_its_own_is_a_failure(void **state)
{
    static const struct {
        struct health_run run;
        enum health_verdict verdict;
        const char *text;
    } rows[] = {
        {{.status = 0, .output = "all well\n"}, HEALTH_PASSED, ""},
        {{.status = 1, .output = ""}, HEALTH_FAILED, "the health check failed with status 1"},
        {{.status = 255, .output = "a\nb c \n\n"},
         HEALTH_FAILED,
         "the health check failed with status 255: b c"},
        {{.status = 128, .output = "x"},
         HEALTH_FAILED,
         "the health check failed with status 128: x"},
        {{.status = 127, .output = "sh: 2: x: not found\n"},
         HEALTH_UNKNOWN,
         "the health check could not be run (status 127): sh: 2: x: not found"},
        {{.status = 126, .output = ""},
         HEALTH_UNKNOWN,
         "the health check could not be run (status 126)"},
        {{.status = -11, .output = ""}, HEALTH_UNKNOWN, "the health check was ended by SIGSEGV"},
        {{.status = 137, .output = ""}, HEALTH_UNKNOWN, "the health check was ended by SIGKILL"},
        {{.status = 193, .output = ""}, HEALTH_FAILED, "the health check failed with status 193"},
        {{.timed_out = true, .limit_ns = 30 * SEC, .output = "asking\r\n"},
         HEALTH_UNKNOWN,
         "the health check did not end within 30 s: asking"},
        {{.not_started = "Cannot allocate memory", .output = ""},
         HEALTH_UNKNOWN,
         "the health check could not be started: Cannot allocate memory"},
    };
    (void)state;
    for (size_t i = 0; i < MU_COUNT(rows); i++) {
        char text[256];
        assert_int_equal(health_judge(&rows[i].run, text, sizeof text), rows[i].verdict);
        assert_string_equal(text, rows[i].text);
    }
}

static void test_a_long_line_is_cut(void **state)
{
    char line[400];
    char text[64];
    struct health_run run = {.status = 1, .output = line};
    (void)state;
    memset(line, 'x', sizeof line - 1);
    line[sizeof line - 1] = '\0';
    assert_int_equal(health_judge(&run, text, sizeof text), HEALTH_FAILED);
    assert_int_equal(strlen(text), sizeof text - 1);
}

static void test_gaps_grow_up_to_a_limit(void **state)
{
    (void)state;
    assert_int_equal(health_longer_gap(30 * SEC), 60 * SEC);
    assert_int_equal(health_longer_gap(480 * SEC), 600 * SEC);
    assert_int_equal(health_longer_gap(600 * SEC), 600 * SEC);
    assert_int_equal(health_longer_gap(900 * SEC), 900 * SEC);
}

/* --- a life with a check --- */

struct story {
    struct life life;
    struct life_out out;
    int64_t now;
    char did[256]; /* By the last step: "check", "hello?", "health-" ... */
    char said[1024];
};

static void give(struct story *s, struct life_event ev)
{
    s->did[0] = s->said[0] = '\0';
    assert_int_equal(life_step(&s->life, s->now, &ev, &s->out), 0);
    for (uint32_t i = 0; i < s->out.count; i++) {
        const struct life_action *a = &s->out.actions[i];
        size_t n = strlen(s->did);
        size_t k = strlen(s->said);
        struct ctl_msg m;
        if (a->type == LIFE_ACT_CHECK)
            (void)snprintf(s->did + n, sizeof s->did - n, "check ");
        if (a->type == LIFE_ACT_SAY)
            (void)snprintf(s->said + k, sizeof s->said - k, "%s\n", s->life.words + a->arg);
        if (a->type != LIFE_ACT_SEND)
            continue;
        life_message(&s->life, a, &m);
        const char *mark = m.type == CTL_HELLO && m.u.hello.unready       ? "?"
                           : m.type == CTL_STOPPED && m.u.stopped.unready ? "?"
                           : m.type == CTL_HEALTH && !m.u.health.ok       ? "-"
                                                                          : "";
        (void)snprintf(s->did + n, sizeof s->did - n, "%s%s ", ctl_type_name(m.type), mark);
    }
}

static void begin(struct story *s, bool checks)
{
    struct ctl_msg m;
    ctl_init(&m, CTL_HELLO);
    struct life_config c = {.hello = m.u.hello,
                            .grace_ns = 10 * SEC,
                            .join_timeout_ns = 6000 * SEC,
                            .server_timeout_ns = 6000 * SEC,
                            .checks_health = checks,
                            .seed = 1};
    c.hello.nproc = 1;
    memset(s, 0, sizeof *s);
    s->now = 100 * SEC;
    assert_int_equal(life_init(&s->life, mu_mem_default(), s->now, &c), 0);
}

/* The server takes it in. */
static void welcome(struct story *s)
{
    struct ctl_msg m;
    ctl_init(&m, CTL_WELCOME);
    give(s, (struct life_event){.type = LIFE_EV_WELCOME, .msg = &m});
}

static void known(struct story *s, enum health_verdict v, const char *text)
{
    give(s, (struct life_event){.type = LIFE_EV_CHECKED, .verdict = v, .text = text});
}

static void start_round(struct story *s)
{
    struct ctl_msg m;
    ctl_init(&m, CTL_START);
    m.u.start.round = s->life.start.round + 1;
    m.u.start.fence_ms = 600000;
    static const int32_t pids[] = {77};
    give(s, (struct life_event){.type = LIFE_EV_START, .msg = &m});
    give(s, (struct life_event){.type = LIFE_EV_SPAWNED, .pids = pids});
    assert_int_equal(s->life.state, LIFE_RUNNING);
}

static void end_round(struct story *s)
{
    struct ctl_msg m;
    ctl_init(&m, CTL_STOP);
    m.u.stop.round = s->life.start.round;
    m.u.stop.cause.kind = MU_CAUSE_NODE_LEFT;
    give(s, (struct life_event){.type = LIFE_EV_STOP, .msg = &m});
    give(s, (struct life_event){.type = LIFE_EV_WORKER_EXIT, .status = -15});
    give(s, (struct life_event){.type = LIFE_EV_ALL_GONE});
}

static void test_without_a_check_nothing_is_done_or_said(void **state)
{
    struct story s;
    (void)state;
    begin(&s, false);
    give(&s, (struct life_event){.type = LIFE_EV_DEADLINE});
    give(&s, (struct life_event){.type = LIFE_EV_LINK_UP});
    assert_string_equal(s.did, "hello ");
    start_round(&s);
    end_round(&s);
    assert_string_equal(s.did, "stopped ");
    life_fini(&s.life);
}

static void test_it_is_checked_at_first_and_after_each_round(void **state)
{
    struct story s;
    (void)state;
    begin(&s, true);
    give(&s, (struct life_event){.type = LIFE_EV_DEADLINE});
    assert_has(s.did, "check ");
    give(&s, (struct life_event){.type = LIFE_EV_LINK_UP});
    assert_string_equal(s.did, "hello? ");
    known(&s, HEALTH_PASSED, "");
    assert_string_equal(s.did, "health ");
    assert_string_equal(s.said, "");
    start_round(&s);
    end_round(&s);
    assert_string_equal(s.did, "check stopped? ");
    known(&s, HEALTH_PASSED, "");
    assert_string_equal(s.did, "health ");
    life_fini(&s.life);
}

static void test_a_failure_lasts_until_a_check_passes(void **state)
{
    struct story s;
    (void)state;
    begin(&s, true);
    give(&s, (struct life_event){.type = LIFE_EV_DEADLINE});
    known(&s, HEALTH_FAILED, "the health check failed with status 1");
    assert_has(s.said, "this node is unhealthy: the health check failed with status 1; it takes "
                       "part in no round until the check passes, next tried in 30 s");
    give(&s, (struct life_event){.type = LIFE_EV_LINK_UP});
    assert_string_equal(s.did, "hello? health- ");
    welcome(&s);
    s.now += 31 * SEC;
    give(&s, (struct life_event){.type = LIFE_EV_DEADLINE});
    assert_has(s.did, "check ");
    known(&s, HEALTH_UNKNOWN, "the health check did not end within 30 s");
    assert_string_equal(s.did, ""); /* What is not known takes nothing back. */
    assert_int_equal(s.life.health, LIFE_HEALTH_UNHEALTHY);
    s.now += 59 * SEC;
    give(&s, (struct life_event){.type = LIFE_EV_DEADLINE});
    assert_null(strstr(s.did, "check"));
    s.now += 2 * SEC;
    give(&s, (struct life_event){.type = LIFE_EV_DEADLINE});
    assert_has(s.did, "check ");
    known(&s, HEALTH_PASSED, "");
    assert_string_equal(s.did, "health ");
    assert_has(s.said, "healthy again");
    assert_int_equal(s.life.recheck_gap_ns, 30 * SEC);
    life_fini(&s.life);
}

static void test_what_is_not_known_is_said_once(void **state)
{
    struct story s;
    (void)state;
    begin(&s, true);
    give(&s, (struct life_event){.type = LIFE_EV_DEADLINE});
    give(&s, (struct life_event){.type = LIFE_EV_LINK_UP});
    for (int round = 0; round < 3; round++) {
        known(&s, HEALTH_UNKNOWN, "the health check could not be run (status 127)");
        assert_string_equal(s.did, "health ");
        assert_string_equal(s.said, round == 0 ? "the health check could not be run (status 127); "
                                                 "this node is counted on all the same\n"
                                               : "");
        start_round(&s);
        end_round(&s);
    }
    life_fini(&s.life);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_only_a_status_of_its_own_is_a_failure),
        cmocka_unit_test(test_a_long_line_is_cut),
        cmocka_unit_test(test_gaps_grow_up_to_a_limit),
        cmocka_unit_test(test_without_a_check_nothing_is_done_or_said),
        cmocka_unit_test(test_it_is_checked_at_first_and_after_each_round),
        cmocka_unit_test(test_a_failure_lasts_until_a_check_passes),
        cmocka_unit_test(test_what_is_not_known_is_said_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
