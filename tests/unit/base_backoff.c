/* base/backoff.h: waits grow up to their limit, and differ within the second half. */
#include "tests/unit/unit.h"

#include <stdbool.h>

#include "base/backoff.h"

#define DRAWS 10000

static void test_a_wait_lies_in_the_second_half_of_its_span_and_uses_all_of_it(void **state)
{
    static const int64_t spans[] = {0, 1, 2, 3, 1000, INT64_C(15000000000), INT64_MAX};
    (void)state;
    for (size_t i = 0; i < sizeof spans / sizeof spans[0]; i++) {
        uint64_t random = 1;
        int64_t least = INT64_MAX;
        int64_t most = 0;
        for (int k = 0; k < DRAWS; k++) {
            int64_t wait = mu_jitter(&random, spans[i]);
            least = wait < least ? wait : least;
            most = wait > most ? wait : most;
        }
        assert_true(least >= spans[i] / 2 && most <= spans[i]);
        /* To a hundredth, in so many draws. */
        assert_true(least - spans[i] / 2 <= spans[i] / 100);
        assert_true(spans[i] - most <= spans[i] / 100 + 1);
    }
}

static void test_spans_double_up_to_the_most_and_stay_there(void **state)
{
    static const int64_t spans[] = {100, 200, 400, 800, 1000, 1000, 1000};
    uint64_t random = 7;
    int64_t span = spans[0];
    (void)state;
    for (size_t i = 0; i < sizeof spans / sizeof spans[0]; i++) {
        assert_int_equal(span, spans[i]);
        int64_t wait = mu_backoff(&random, &span, 1000);
        assert_true(wait >= spans[i] / 2 && wait <= spans[i]);
    }
}

static void test_a_span_near_the_end_of_numbers_does_not_overflow(void **state)
{
    uint64_t random = 7;
    int64_t span = INT64_MAX / 2 + 1;
    (void)state;
    for (int i = 0; i < 100; i++) {
        int64_t before = span;
        int64_t wait = mu_backoff(&random, &span, INT64_MAX);
        assert_true(wait >= before / 2 && wait <= before);
        assert_true(span == INT64_MAX);
    }
}

static void test_other_seeds_wait_otherwise_and_the_same_one_the_same(void **state)
{
    uint64_t a = 1;
    uint64_t b = 3;
    uint64_t again = 1;
    int same = 0;
    (void)state;
    for (int i = 0; i < 100; i++) {
        int64_t wait = mu_jitter(&a, INT64_C(1000000000));
        same += wait == mu_jitter(&b, INT64_C(1000000000));
        assert_true(wait == mu_jitter(&again, INT64_C(1000000000)));
    }
    assert_true(same < 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_wait_lies_in_the_second_half_of_its_span_and_uses_all_of_it),
        cmocka_unit_test(test_spans_double_up_to_the_most_and_stay_there),
        cmocka_unit_test(test_a_span_near_the_end_of_numbers_does_not_overflow),
        cmocka_unit_test(test_other_seeds_wait_otherwise_and_the_same_one_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
