/* Promises of base/err.h: the sentence is there, wrapped in order, never longer than its room. */
#include <errno.h>

#include "tests/unit/unit.h"

#include "base/err.h"

static void test_set_returns_the_code_and_keeps_the_sentence(void **state)
{
    (void)state;
    struct mu_err e = {0};
    assert_int_equal(mu_err_set(&e, -EADDRINUSE, "port %d is taken", 29500), -EADDRINUSE);
    assert_int_equal(e.code, -EADDRINUSE);
    assert_string_equal(e.msg, "port 29500 is taken");
}

static void test_wrap_puts_context_in_front_and_keeps_the_code(void **state)
{
    (void)state;
    struct mu_err e = {0};
    (void)mu_err_set(&e, -ENOENT, "no such thing");
    assert_int_equal(mu_err_wrap(&e, "open %s", "x"), -ENOENT);
    assert_int_equal(mu_err_wrap(&e, "start"), -ENOENT);
    assert_string_equal(e.msg, "start: open x: no such thing");
}

static void test_null_is_taken_everywhere(void **state)
{
    (void)state;
    assert_int_equal(mu_err_set(NULL, -EPERM, "x"), -EPERM);
    assert_int_equal(mu_err_wrap(NULL, "x"), -EIO);
}

static void test_a_sentence_too_long_is_cut_not_spilled(void **state)
{
    (void)state;
    char big[1000];
    memset(big, 'a', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    for (size_t shorter = 0; shorter < 300; shorter++) {
        struct mu_err e = {0};
        (void)mu_err_set(&e, -EIO, "%s", big + 700 + shorter);
        (void)mu_err_wrap(&e, "%s", big + 999 - shorter);
        assert_true(strlen(e.msg) < sizeof e.msg);
        assert_int_equal(e.msg[0], shorter == 0 ? ':' : 'a');
    }
}

static void test_the_old_sentence_may_be_its_own_context(void **state)
{
    (void)state;
    struct mu_err e = {0};
    (void)mu_err_set(&e, -EIO, "inner");
    (void)mu_err_wrap(&e, "%.3s", "outer");
    assert_string_equal(e.msg, "out: inner");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_set_returns_the_code_and_keeps_the_sentence),
        cmocka_unit_test(test_wrap_puts_context_in_front_and_keeps_the_code),
        cmocka_unit_test(test_null_is_taken_everywhere),
        cmocka_unit_test(test_a_sentence_too_long_is_cut_not_spilled),
        cmocka_unit_test(test_the_old_sentence_may_be_its_own_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
