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
                          .host = "n2",
                          .message = "boom"};
    sentence_is(c, "rank 3 (local rank 1, pid 77) on n2 exited with status 7: boom");
    c.kind = MU_CAUSE_WORKER_SIGNAL;
    c.signo = SIGKILL;
    c.pid = 0;
    c.message[0] = '\0';
    sentence_is(c, "rank 3 (local rank 1) on n2 was ended by SIGKILL");
    c.kind = MU_CAUSE_SPAWN_FAILED;
    c.rank = c.local_rank = -1;
    c.host[0] = '\0';
    sentence_is(c, "worker on an unnamed host could not be started");
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_kind_reads_back),
        cmocka_unit_test(test_only_failures_cost_a_restart),
        cmocka_unit_test(test_sentences_name_rank_host_and_why),
        cmocka_unit_test(test_every_kind_has_a_sentence),
        cmocka_unit_test(test_signals_have_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
