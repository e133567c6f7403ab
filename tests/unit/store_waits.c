/* Waiting: who is woken, when, in which order, and once only; each way in which PyTorch's server
 * goes wrong here has a test that ours does not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/store_rig.h"

enum {
    A,
    B,
    C,
    D,
    L,
    M
};

/* Four modern clients; L and M decide by their first command. */
static int setup(void **state)
{
    struct rig *r = rig_new(NULL, *(enum rig_feeding *)*state, 11);
    for (int i = A; i <= D; i++)
        rig_modern(r, i);
    rig_connect(r, L);
    rig_connect(r, M);
    *state = r;
    return 0;
}

static int teardown(void **state)
{
    rig_free(*state);
    return 0;
}

static void test_wait_is_answered_at_once_when_all_is_there(void **state)
{
    struct rig *r = *state;
    rig_send(r, A, "cq", 6, 0LL);
    rig_expect(r, A, "c", 0);
    rig_send(r, A, "csscqs", 1, "/k", "v", 6, 1LL, "/k");
    rig_expect(r, A, "c", 0);
    rig_send(r, B, "css", 1, "/k", "again");
    rig_silent(r, A);
}

static void test_every_kind_of_write_wakes(void **state)
{
    struct rig *r = *state;
    const char *key[] = {"/set", "/add", "/append", "/multi", "/compare", "/barrier"};
    for (int i = 0; i < 6; i++) {
        rig_send(r, A, "cqs", 6, 1LL, key[i]);
        rig_silent(r, A);
        switch (i) {
        case 0:
            rig_send(r, B, "css", 1, key[i], "v");
            break;
        case 1:
            rig_send(r, B, "csq", 4, key[i], 1LL);
            break;
        case 2:
            rig_send(r, B, "css", 9, key[i], "v");
            break;
        case 3:
            rig_send(r, B, "cqssss", 11, 2LL, "/other", "o", key[i], "v");
            break;
        case 4:
            rig_send(r, B, "csss", 2, key[i], "", "v");
            break;
        default:
            rig_send(r, B, "csq", 18, key[i], 1LL);
        }
        rig_expect(r, A, "c", 0);
        rig_send(r, B, "css", 1, key[i], "again"); /* One wake for one wait. */
        rig_silent(r, A);
    }
    assert_int_equal(rig_stats(r).waiting, 0);
}

static void test_a_wait_on_two_keys_counts_events_and_not_states(void **state)
{
    struct rig *r = *state;
    rig_send(r, A, "cqss", 6, 2LL, "/a", "/b");
    rig_send(r, B, "css", 1, "/a", "1");
    rig_send(r, B, "css", 1, "/a", "2"); /* Does not count twice. */
    rig_silent(r, A);
    rig_send(r, B, "cs", 8, "/a");
    rig_expect(r, B, "q", 1LL);
    rig_send(r, B, "css", 1, "/b", "1");
    rig_expect(r, A, "c", 0);
}

static void test_a_key_listed_twice_is_fine(void **state)
{
    struct rig *r = *state;
    rig_send(r, A, "cqss", 6, 2LL, "/a", "/a");
    rig_send(r, B, "css", 1, "/a", "1");
    rig_expect(r, A, "c", 0);
    rig_send(r, A, "cqsss", 6, 3LL, "/q", "/q", "/q");
    rig_send(r, B, "css", 14, "/q", "one item");
    rig_expect(r, A, "c", 0);
}

static void test_the_wake_goes_out_before_the_writers_own_answer(void **state)
{
    struct rig *r = *state;
    rig_send(r, A, "cqs", 6, 1LL, "/n");
    rig_send(r, A, "csq", 4, "/n", 5LL);
    rig_expect(r, A, "cq", 0, 5LL);
    /* And another's: it stands before the writer in the line of the ready. */
    rig_send(r, B, "cqs", 6, 1LL, "/m");
    rig_send(r, C, "csq", 4, "/m", 5LL);
    assert_ptr_equal(store_take_ready(r->store), r->client[B]);
    assert_ptr_equal(store_take_ready(r->store), r->client[C]);
    assert_null(store_take_ready(r->store));
}

static void test_waiters_are_woken_in_order_of_registration(void **state)
{
    struct rig *r = *state;
    rig_send(r, C, "cqs", 6, 1LL, "/k");
    rig_send(r, A, "cqs", 6, 1LL, "/k");
    rig_send(r, B, "cqs", 6, 1LL, "/k");
    rig_send(r, D, "css", 1, "/k", "v");
    assert_ptr_equal(store_take_ready(r->store), r->client[C]);
    assert_ptr_equal(store_take_ready(r->store), r->client[A]);
    assert_ptr_equal(store_take_ready(r->store), r->client[B]);
    assert_null(store_take_ready(r->store));
}

static void test_other_requests_are_answered_while_a_wait_is_open(void **state)
{
    struct rig *r = *state;
    rig_send(r, A, "cqscw", 6, 1LL, "/k", 13, 9U);
    rig_expect(r, A, "w", 9U);
    rig_send(r, B, "css", 1, "/k", "v");
    rig_expect(r, A, "c", 0);
}

static void test_cancel_answers_one_and_a_wake_never_comes_after_it(void **state)
{
    struct rig *r = *state;
    rig_send(r, A, "c", 12); /* Nothing to cancel. */
    rig_expect(r, A, "c", 1);
    rig_send(r, A, "cqssc", 6, 2LL, "/a", "/b", 12);
    rig_expect(r, A, "c", 1);
    rig_send(r, B, "csscss", 1, "/a", "1", 1, "/b", "1");
    rig_silent(r, A);
    rig_send(r, A, "cqs", 6, 1LL, "/c"); /* The wake was on its way already. */
    rig_send(r, B, "css", 1, "/c", "1");
    rig_send(r, A, "c", 12);
    rig_expect(r, A, "cc", 0, 1);
}

static void test_progress_is_gone_after_a_cancel(void **state)
{
    struct rig *r = *state;
    rig_send(r, A, "cqss", 6, 2LL, "/a", "/b");
    rig_send(r, B, "csscs", 1, "/a", "1", 8, "/a");
    rig_send(r, A, "ccqss", 12, 6, 2LL, "/a", "/b");
    rig_expect(r, A, "c", 1);
    rig_send(r, B, "css", 1, "/b", "1");
    rig_silent(r, A);
    rig_send(r, B, "css", 1, "/a", "1");
    rig_expect(r, A, "c", 0);
}

static void test_a_second_wait_takes_the_place_of_the_first(void **state)
{
    struct rig *r = *state;
    rig_send(r, L, "cqs", 5, 1LL, "/a"); /* A legacy client times out without a word, */
    rig_send(r, L, "cqs", 5, 1LL, "/b"); /* and tries something else. */
    rig_send(r, A, "css", 1, "/a", "1");
    rig_silent(r, L);
    rig_send(r, A, "css", 1, "/b", "1");
    rig_expect(r, L, "c", 0);
    rig_send(r, L, "cqs", 5, 1LL, "/c");
    rig_send(r, L, "cqs", 5, 1LL, "/a"); /* There already: answered, and the other one is over. */
    rig_expect(r, L, "c", 0);
    rig_send(r, A, "css", 1, "/c", "1");
    rig_silent(r, L);
}

static void test_a_client_that_goes_is_forgotten(void **state)
{
    struct rig *r = *state;
    rig_send(r, A, "cqss", 6, 2LL, "/a", "/b");
    rig_close(r, A);
    assert_int_equal(rig_stats(r).waiting, 0);
    rig_send(r, B, "csscss", 1, "/a", "1", 1, "/b", "1");
    rig_silent(r, B);
    rig_send(r, B, "cqs", 6, 1LL, "/c");
    assert_int_equal(rig_stats(r).waiting, 1);
    rig_send(r, B, "c", 99);
    rig_ended(r, B, STORE_BAD_COMMAND); /* Also one that is to be closed. */
    assert_int_equal(rig_stats(r).waiting, 0);
}

static void test_barrier_lets_all_go_with_the_last_arrival(void **state)
{
    struct rig *r = *state;
    rig_send(r, A, "csq", 18, "/b", 3LL);
    rig_send(r, B, "csq", 18, "/b", 3LL);
    rig_silent(r, A);
    rig_send(r, C, "cqscs", 5, 1LL, "/b", 3, "/b"); /* The counter is an ordinary key. */
    rig_expect(r, C, "cs", 0, "2");
    rig_send(r, C, "csq", 18, "/b", 3LL);
    rig_expect(r, A, "c", 0);
    rig_expect(r, B, "c", 0);
    rig_expect(r, C, "c", 0);
    rig_send(r, A, "csq", 18, "/b", 3LL); /* Never reset: the next one passes. */
    rig_expect(r, A, "c", 0);
    rig_send(r, A, "csqcsqcsq", 18, "/1", 1LL, 18, "/2", 0LL, 18, "/3", -4LL);
    rig_expect(r, A, "ccc", 0, 0, 0);
}

static void test_barrier_stays_counted_and_is_released_by_writes(void **state)
{
    struct rig *r = *state;
    rig_send(r, A, "csqc", 18, "/b", 3LL, 12);
    rig_expect(r, A, "c", 1);
    rig_send(r, B, "csq", 18, "/b", 3LL);
    rig_close(r, B);
    rig_send(r, C, "csq", 18, "/b", 3LL);
    rig_expect(r, C, "c", 0);
    rig_send(r, C, "csq", 18, "/x", 5LL);
    rig_send(r, A, "css", 1, "/x", "anything");
    rig_expect(r, C, "c", 0);
    rig_send(r, D, "csq", 18, "/x", 5LL);
    rig_ended(r, D, STORE_NOT_A_NUMBER);
}

static void test_an_incomplete_arrival_wakes_nobody_though_the_key_is_there(void **state)
{
    struct rig *r = *state;
    rig_send(r, A, "cqs", 6, 1LL, "/b");
    rig_send(r, B, "csq", 18, "/b", 2LL);
    rig_silent(r, A);
    rig_send(r, C, "csq", 18, "/b", 2LL);
    rig_expect(r, A, "c", 0);
    rig_expect(r, B, "c", 0);
    rig_expect(r, C, "c", 0);
}

static void test_barrier_after_a_wait_for_the_same_missing_key(void **state)
{
    struct rig *r = *state;
    rig_send(r, A, "cqs", 6, 1LL, "/b");
    rig_send(r, A, "csq", 18, "/b", 2LL);
    rig_send(r, B, "csq", 18, "/b", 2LL);
    rig_expect(r, A, "c", 0);
    rig_expect(r, B, "c", 0);
}

static void test_barrier_of_256(void **state)
{
    struct rig *r = *state;
    for (int i = 10; i < 266; i++) {
        rig_modern(r, i);
        rig_send(r, i, "csq", 18, "/all", 256LL);
        if (i < 265)
            rig_silent(r, i);
    }
    for (int i = 10; i < 266; i++)
        rig_expect(r, i, "c", 0);
}

static void test_a_push_wakes_the_oldest_only_and_a_set_wakes_all(void **state)
{
    struct rig *r = *state;
    rig_send(r, B, "cqs", 6, 1LL, "/q");
    rig_send(r, A, "cqs", 6, 1LL, "/q");
    rig_send(r, C, "cqs", 6, 1LL, "/q");
    rig_send(r, D, "css", 14, "/q", "1");
    rig_expect(r, B, "c", 0);
    rig_silent(r, A);
    rig_silent(r, C);
    rig_send(r, D, "css", 1, "/q", "a key of that name");
    rig_expect(r, A, "c", 0);
    rig_expect(r, C, "c", 0);
}

/* torch: a connection woken through a queue stays registered there. */
static void test_who_was_woken_by_a_queue_is_off_its_list(void **state)
{
    struct rig *r = *state;
    rig_send(r, A, "cqs", 6, 1LL, "/q");
    rig_send(r, B, "css", 14, "/q", "1");
    rig_send(r, A, "cs", 15, "/q");
    rig_expect(r, A, "cqs", 0, 1LL, "1");
    rig_send(r, A, "cqs", 6, 1LL, "/unrelated");
    rig_send(r, B, "css", 14, "/q", "2");
    rig_silent(r, A); /* The unrelated wait goes on. */
    rig_send(r, B, "css", 1, "/unrelated", "now");
    rig_expect(r, A, "c", 0);
}

/* torch: a queue that holds something is registered as missing. */
static void test_a_filled_queue_counts_as_present_in_a_wait(void **state)
{
    struct rig *r = *state;
    rig_send(r, B, "css", 14, "/q", "1");
    rig_send(r, A, "cqss", 6, 2LL, "/q", "/k");
    rig_silent(r, A);
    rig_send(r, B, "css", 1, "/k", "v");
    rig_expect(r, A, "c", 0);
}

/* torch: COMPARE_SET that creates nothing wakes. */
static void test_a_compare_set_that_creates_nothing_wakes_nobody(void **state)
{
    struct rig *r = *state;
    rig_send(r, A, "cqs", 6, 1LL, "/k");
    rig_send(r, B, "csss", 2, "/k", "expected", "v");
    rig_expect(r, B, "s", "expected");
    rig_silent(r, A);
    rig_send(r, B, "csss", 2, "/k", "", "v");
    rig_expect(r, A, "c", 0);
}

/* torch: a woken consumer that dies before popping leaves the item to nobody. */
static void test_an_item_is_offered_on_when_the_woken_one_dies(void **state)
{
    struct rig *r = *state;
    rig_send(r, A, "cqs", 6, 1LL, "/q");
    rig_send(r, B, "cqs", 6, 1LL, "/q");
    rig_send(r, C, "cqs", 6, 1LL, "/q");
    rig_send(r, D, "css", 14, "/q", "item");
    rig_expect(r, A, "c", 0);
    rig_silent(r, B);
    rig_close(r, A);
    rig_expect(r, B, "c", 0);
    rig_silent(r, C);
    rig_send(r, B, "c", 99); /* Its connection must end: that counts as well. */
    rig_ended(r, B, STORE_BAD_COMMAND);
    rig_expect(r, C, "c", 0);
    rig_send(r, C, "cs", 15, "/q");
    rig_expect(r, C, "qs", 1LL, "item");
    rig_modern(r, A);
    rig_send(r, A, "cqs", 6, 1LL, "/q");
    rig_close(r, C); /* It popped: nothing to offer on. */
    rig_silent(r, A);
    rig_modern(r, C);
}

static void test_an_item_is_offered_on_after_a_cancel_or_another_wait(void **state)
{
    struct rig *r = *state;
    rig_send(r, A, "cqs", 6, 1LL, "/q");
    rig_send(r, B, "cqs", 6, 1LL, "/q");
    rig_send(r, C, "cqs", 6, 1LL, "/q");
    rig_send(r, D, "css", 14, "/q", "item");
    rig_send(r, A, "c", 12); /* It timed out just then: the client raises, and does not pop. */
    rig_expect(r, A, "cc", 0, 1);
    rig_expect(r, B, "c", 0);
    rig_send(r, B, "cqs", 6, 1LL, "/something else");
    rig_expect(r, C, "c", 0);
    /* But not where the item is gone. */
    rig_send(r, A, "cqscs", 6, 1LL, "/q", 15, "/q");
    rig_expect(r, A, "cqs", 0, 1LL, "item");
    rig_send(r, D, "cqs", 6, 1LL, "/q");
    rig_close(r, C);
    rig_silent(r, D);
    rig_modern(r, C);
}

static void test_an_offer_in_a_wait_for_more_goes_on_with_it(void **state)
{
    struct rig *r = *state;
    rig_send(r, A, "cqss", 6, 2LL, "/q", "/k");
    rig_send(r, B, "cqs", 6, 1LL, "/q");
    rig_send(r, D, "css", 14, "/q", "item"); /* A's half of it. */
    rig_silent(r, A);
    rig_silent(r, B);
    rig_close(r, A);
    rig_expect(r, B, "c", 0);
    rig_modern(r, A);
}

static void test_legacy_compare_set_is_heard_by_modern_waiters_only(void **state)
{
    struct rig *r = *state;
    rig_send(r, L, "cqs", 5, 1LL, "/k");
    rig_send(r, A, "cqs", 6, 1LL, "/k");
    rig_send(r, M, "csss", 1, "/k", "", "v");
    rig_expect(r, M, "s", "v");
    rig_silent(r, L);
    rig_expect(r, A, "c", 0);
    rig_send(r, M, "css", 0, "/k", "w");
    rig_expect(r, L, "c", 0);
    rig_send(r, L, "cqs", 5, 1LL, "/k2");
    rig_send(r, A, "csss", 2, "/k2", "", "v"); /* A modern one wakes both kinds. */
    rig_expect(r, L, "c", 0);
}

static void test_wipe_forgets_keys_queues_and_progress(void **state)
{
    struct rig *r = *state;
    rig_send(r, D, "csscsscsq", 1, "/a", "1", 14, "/q", "item", 4, "/n", 4LL);
    rig_send(r, A, "cqss", 6, 2LL, "/a", "/b"); /* /a is there. */
    rig_send(r, B, "cqss", 6, 2LL, "/c", "/d"); /* /c comes. */
    rig_send(r, D, "css", 1, "/c", "1");
    rig_send(r, C, "cqss", 6, 2LL, "/q", "/e"); /* The queue holds something. */
    rig_expect(r, D, "q", 5LL - 1);
    rig_send(r, L, "cs", 7, "/a");
    rig_expect(r, L, "c", 3);
    store_wipe(r->store);
    assert_int_equal(rig_stats(r).keys, 0);
    assert_int_equal(rig_stats(r).queues, 0);
    assert_int_equal(rig_stats(r).waiting, 3);
    rig_send(r, D, "cqssssss", 11, 3LL, "/b", "1", "/d", "1", "/e", "1");
    rig_silent(r, A);
    rig_silent(r, B);
    rig_silent(r, C);
    rig_send(r, D, "cqssss", 11, 2LL, "/a", "1", "/c", "1");
    rig_send(r, D, "css", 14, "/q", "item");
    rig_expect(r, A, "c", 0);
    rig_expect(r, B, "c", 0);
    rig_expect(r, C, "c", 0);
    rig_expect(r, L, "csss", 1, "/a", "", "1");
}

static void test_wipe_forgets_an_offer(void **state)
{
    struct rig *r = *state;
    rig_send(r, A, "cqs", 6, 1LL, "/q");
    rig_send(r, D, "css", 14, "/q", "item");
    rig_expect(r, A, "c", 0);
    store_wipe(r->store);
    rig_send(r, B, "cqs", 6, 1LL, "/q");
    rig_close(r, A);
    rig_silent(r, B);
    rig_modern(r, A);
}

#define IN(feeding, f)                                                                             \
    {                                                                                              \
#f " (" #feeding ")", f, setup, teardown, &feedings[feeding]                               \
    }
#define T(f) IN(RIG_WHOLE, f), IN(RIG_BYTES, f), IN(RIG_RANDOM, f)

int main(void)
{
    static enum rig_feeding feedings[] = {RIG_WHOLE, RIG_BYTES, RIG_RANDOM};
    const struct CMUnitTest tests[] = {
        T(test_wait_is_answered_at_once_when_all_is_there),
        T(test_every_kind_of_write_wakes),
        T(test_a_wait_on_two_keys_counts_events_and_not_states),
        T(test_a_key_listed_twice_is_fine),
        T(test_the_wake_goes_out_before_the_writers_own_answer),
        T(test_waiters_are_woken_in_order_of_registration),
        T(test_other_requests_are_answered_while_a_wait_is_open),
        T(test_cancel_answers_one_and_a_wake_never_comes_after_it),
        T(test_progress_is_gone_after_a_cancel),
        T(test_a_second_wait_takes_the_place_of_the_first),
        T(test_a_client_that_goes_is_forgotten),
        T(test_barrier_lets_all_go_with_the_last_arrival),
        T(test_barrier_stays_counted_and_is_released_by_writes),
        T(test_an_incomplete_arrival_wakes_nobody_though_the_key_is_there),
        T(test_barrier_after_a_wait_for_the_same_missing_key),
        T(test_barrier_of_256),
        T(test_a_push_wakes_the_oldest_only_and_a_set_wakes_all),
        T(test_who_was_woken_by_a_queue_is_off_its_list),
        T(test_a_filled_queue_counts_as_present_in_a_wait),
        T(test_a_compare_set_that_creates_nothing_wakes_nobody),
        T(test_an_item_is_offered_on_when_the_woken_one_dies),
        T(test_an_item_is_offered_on_after_a_cancel_or_another_wait),
        T(test_an_offer_in_a_wait_for_more_goes_on_with_it),
        T(test_legacy_compare_set_is_heard_by_modern_waiters_only),
        T(test_wipe_forgets_keys_queues_and_progress),
        T(test_wipe_forgets_an_offer),
    };
    return cmocka_run_group_tests_name("store waits", tests, NULL, NULL);
}
