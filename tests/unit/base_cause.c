/* Causes: every kind has a word that reads back, and a sentence for people. */
#include <signal.h>

#include "tests/unit/unit.h"

#include "base/cause.h"

static void test_every_kind_reads_back(void **state)
{
    (void)state;
    for (int k = 0; k < MU_CAUSE_KIND_COUNT; k++) {
        enum mu_cause_kind got = MU_CAUSE_NONE;
        assert_int_equal(mu_cause_kind_parse(mu_cause_kind_text((enum mu_cause_kind)k), &got), 0);
        assert_int_equal(got, k);
    }
    enum mu_cause_kind kept = MU_CAUSE_NODE_LOST;
    assert_int_equal(mu_cause_kind_parse("nonesuch", &kept), -1);
    assert_int_equal(mu_cause_kind_parse("", &kept), -1);
    assert_int_equal(mu_cause_kind_parse("NODE_LOST", &kept), -1);
    assert_int_equal(kept, MU_CAUSE_NODE_LOST);
}

/* Who comes and goes costs nothing; what fails does. */
static void test_only_failures_cost_a_restart(void **state)
{
    (void)state;
    assert_true(mu_cause_costs_restart(MU_CAUSE_WORKER_EXIT));
    assert_true(mu_cause_costs_restart(MU_CAUSE_WORKER_SIGNAL));
    assert_true(mu_cause_costs_restart(MU_CAUSE_SPAWN_FAILED));
    assert_true(mu_cause_costs_restart(MU_CAUSE_NODE_FAILED));
    assert_false(mu_cause_costs_restart(MU_CAUSE_NODE_LOST));
    assert_false(mu_cause_costs_restart(MU_CAUSE_NODE_SILENT));
    assert_false(mu_cause_costs_restart(MU_CAUSE_NODE_LEFT));
    assert_false(mu_cause_costs_restart(MU_CAUSE_NODE_JOINED));
}

static void sentence_is(struct mu_cause c, const char *want)
{
    struct mu_buf b;
    mu_buf_init(&b, mu_mem_default());
    mu_cause_sentence(&c, &b);
    assert_string_equal(mu_buf_cstr(&b), want);
    mu_buf_fini(&b);
}

static void test_sentences_name_rank_host_and_why(void **state)
{
    (void)state;
    struct mu_cause c = MU_CAUSE_INIT;
    sentence_is(c, "no cause is known");
    c = (struct mu_cause){.kind = MU_CAUSE_WORKER_EXIT,
                          .rank = 3,
                          .local_rank = 1,
                          .pid = 77,
                          .exit_code = 7,
                          .step = -1,
                          .host = "n2",
                          .message = "boom"};
    sentence_is(c, "rank 3 (local rank 1, pid 77) on n2 exited with status 7: boom");
    c.step = 41;
    sentence_is(c, "rank 3 (local rank 1, pid 77) on n2 exited with status 7 after step 41: boom");
    (void)snprintf(c.message, sizeof c.message, "boom (after step 41)"); /* It says so itself. */
    sentence_is(c,
                "rank 3 (local rank 1, pid 77) on n2 exited with status 7: boom (after step 41)");
    c.step = -1;
    c.kind = MU_CAUSE_WORKER_SIGNAL;
    c.signo = SIGKILL;
    c.pid = 0;
    c.message[0] = '\0';
    sentence_is(c, "rank 3 (local rank 1) on n2 was ended by SIGKILL");
    c.core_dumped = 1;
    sentence_is(c, "rank 3 (local rank 1) on n2 was ended by SIGKILL (core dumped)");
    c.core_dumped = 0;
    c.kind = MU_CAUSE_SPAWN_FAILED;
    c.rank = c.local_rank = -1;
    c.host[0] = '\0';
    sentence_is(c, "worker on an unnamed host could not be started");
}

static void test_what_came_twice_is_said_without_a_place(void **state)
{
    (void)state;
    static const struct {
        enum mu_cause_kind kind;
        const char *says;
    } rows[] = {{MU_CAUSE_WORKER_EXIT, "rank 3 failed with status 1 after step 41"},
                {MU_CAUSE_WORKER_SIGNAL, "rank 3 was ended by SIGKILL after step 41"},
                {MU_CAUSE_NO_PROGRESS, "rank 3 made no progress after step 41"}};
    for (size_t i = 0; i < MU_COUNT(rows); i++) {
        struct mu_buf b;
        char want[128];
        struct mu_cause c = {
            .kind = rows[i].kind, .rank = 3, .exit_code = 1, .signo = 9, .step = 41, .host = "n2"};
        mu_buf_init(&b, mu_mem_default());
        mu_cause_twice_sentence(&c, &b);
        (void)snprintf(want, sizeof want, "%s twice: starting again does not help", rows[i].says);
        assert_string_equal(mu_buf_cstr(&b), want);
        mu_buf_fini(&b);
    }
}

static void test_every_kind_has_a_sentence(void **state)
{
    (void)state;
    for (int k = 0; k < MU_CAUSE_KIND_COUNT; k++) {
        struct mu_cause c = MU_CAUSE_INIT;
        struct mu_buf b;
        mu_buf_init(&b, mu_mem_default());
        c.kind = (enum mu_cause_kind)k;
        mu_cause_sentence(&c, &b);
        assert_true(b.n > 10);
        mu_buf_fini(&b);
    }
}

static void test_signals_have_names(void **state)
{
    (void)state;
    char buf[16];
    assert_string_equal(mu_signal_name(SIGTERM, buf), "SIGTERM");
    assert_string_equal(mu_signal_name(SIGSYS, buf), "SIGSYS");
    assert_string_equal(mu_signal_name(SIGUSR2, buf), "SIGUSR2");
    assert_string_equal(mu_signal_name(63, buf), "signal 63");
    assert_string_equal(mu_signal_name(0, buf), "signal 0");
    assert_string_equal(mu_signal_name(-4, buf), "signal -4");
    assert_string_equal(mu_signal_name(INT32_MIN, buf), "signal -2147483"); /* Cut, not spilled. */
    for (int s = 1; s < 32; s++) {
        char want[16];
        (void)snprintf(want, sizeof want, "SIG%s", sigabbrev_np(s));
        if (s != SIGPOLL)
            assert_string_equal(mu_signal_name(s, buf), want);
    }
}

static struct mu_cause exited(int32_t rank, int32_t blame, const char *message)
{
    struct mu_cause c = MU_CAUSE_INIT;
    c.kind = MU_CAUSE_WORKER_EXIT;
    c.rank = rank;
    c.exit_code = 1;
    c.blame = blame;
    (void)snprintf(c.message, sizeof c.message, "%s", message);
    return c;
}

static struct mu_cause signalled(int32_t rank, int signo)
{
    struct mu_cause c = exited(rank, -1, "");
    c.kind = MU_CAUSE_WORKER_SIGNAL;
    c.exit_code = 0;
    c.signo = signo;
    return c;
}

static struct mu_cause node_ended(enum mu_cause_kind kind, int32_t rank)
{
    struct mu_cause c = MU_CAUSE_INIT;
    c.kind = kind;
    c.rank = rank;
    return c;
}

static void test_which_of_two_failures_tells_what_failed_first(void **state)
{
    (void)state;
    const struct mu_cause blamer = exited(0, 3, "rank 3 ended");
    const struct mu_cause plain = exited(0, -1, "");
    const struct {
        struct mu_cause first, later;
        bool at_once, is_better;
    } rows[] = {
        /* Whom the first one names. */
        {blamer, exited(3, -1, "boom"), false, true},
        {blamer, signalled(3, SIGTERM), false, true},
        {blamer, exited(3, 5, "rank 5 ended"), false, true}, /* One step further. */
        {blamer, exited(3, 0, "rank 0 ended"), true, false}, /* Each other: the first stays. */
        {blamer, exited(2, 3, "rank 3 ended"), true, false},
        {blamer, node_ended(MU_CAUSE_NODE_LOST, 3), true, true},
        {blamer, node_ended(MU_CAUSE_NODE_LEFT, 3), true, true},
        {blamer, node_ended(MU_CAUSE_NODE_LOST, 3), false, false},
        {blamer, node_ended(MU_CAUSE_NODE_LOST, -1), true, false},
        /* Who names nobody, and says nothing. */
        {blamer, signalled(2, SIGKILL), false, true},
        {blamer, signalled(2, SIGABRT), false, true},
        {blamer, exited(2, -1, ""), false, true},
        {blamer, exited(2, -1, "my own trouble"), false, false},
        /* Nobody names anybody: the first stays, unless the later one was killed or crashed. */
        {plain, exited(2, -1, ""), true, false},
        {plain, exited(2, 0, "rank 0 ended"), true, false},
        {plain, signalled(2, SIGKILL), true, true},
        {plain, signalled(2, SIGSEGV), true, true},
        {plain, signalled(2, SIGKILL), false, false},
        {plain, signalled(2, SIGABRT), true, false},
        {plain, signalled(2, SIGTERM), true, false},
        {plain, node_ended(MU_CAUSE_NODE_LOST, 2), true, false},
        {signalled(0, SIGABRT), signalled(2, SIGKILL), true, false},
        {signalled(0, SIGKILL), signalled(2, SIGKILL), true, false},
        /* What is no worker's failure is nobody's consequence. */
        {node_ended(MU_CAUSE_NODE_LOST, -1), signalled(2, SIGKILL), true, false},
        {node_ended(MU_CAUSE_SPAWN_FAILED, 0), signalled(2, SIGKILL), true, false},
    };
    for (size_t i = 0; i < MU_COUNT(rows); i++)
        if (mu_cause_is_better(&rows[i].later, &rows[i].first, rows[i].at_once) !=
            rows[i].is_better)
            fail_msg("row %zu: not %d", i, (int)rows[i].is_better);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_kind_reads_back),
        cmocka_unit_test(test_only_failures_cost_a_restart),
        cmocka_unit_test(test_sentences_name_rank_host_and_why),
        cmocka_unit_test(test_what_came_twice_is_said_without_a_place),
        cmocka_unit_test(test_every_kind_has_a_sentence),
        cmocka_unit_test(test_signals_have_names),
        cmocka_unit_test(test_which_of_two_failures_tells_what_failed_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
