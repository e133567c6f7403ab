/* Each command of both dialects, and each answer. Every test runs three times: requests fed whole,
 * byte by byte, and in pieces of random sizes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/store_rig.h"

enum {
    A,
    B,
    L
};

/* Two modern clients and a legacy one. */
static int setup(void **state)
{
    struct rig *r = rig_new(NULL, *(enum rig_feeding *)*state, 7);
    rig_modern(r, A);
    rig_modern(r, B);
    rig_connect(r, L);
    *state = r;
    return 0;
}

static int teardown(void **state)
{
    rig_free(*state);
    return 0;
}

static void test_set_answers_nothing_and_get_answers_the_value(void **state)
{
    struct rig *r = *state;
    rig_send(r, A, "css", 1, "/k", "value");
    rig_silent(r, A);
    rig_send(r, B, "cs", 3, "/k");
    rig_expect(r, B, "s", "value");
    rig_send(r, A, "csscsscs", 1, "/k", "a longer value than before, and then", 1, "/k", "x", 3,
             "/k");
    rig_expect(r, A, "s", "x");
    rig_send(r, A, "cbbcb", 1, "a\0b", (size_t)3, "\0\0", (size_t)2, 3, "a\0b", (size_t)3);
    rig_expect(r, A, "b", "\0\0", (size_t)2);
    rig_send(r, A, "csscs", 1, "", "empty key", 3, "");
    rig_expect(r, A, "s", "empty key");
    rig_send(r, A, "csscs", 1, "/e", "", 3, "/e");
    rig_expect(r, A, "s", "");
}

static void test_get_of_a_missing_key_is_empty_for_modern_and_ends_legacy(void **state)
{
    struct rig *r = *state;
    rig_send(r, A, "cs", 3, "/no");
    rig_expect(r, A, "s", "");
    rig_send(r, L, "ccs", 6, 2, "/no");
    rig_ended(r, L, STORE_MISSING_KEY);
    struct mu_buf before = {.mem = mu_mem_default()};
    rig_take_output(r, L, &before); /* The request before it was answered. */
    assert_int_equal(before.n, 8);
    mu_buf_fini(&before);
    rig_silent(r, A);
}

/* stored ("-": missing), what ADD 1 makes of it ("-": the connection ends) */
static const char *const numbers[][2] = {
    {"-", "1"},
    {"7", "8"},
    {" 7", "8"},
    {" \t\n\v\f\r-7x", "-6"},
    {"12abc", "13"},
    {"0x10", "1"},
    {"3.9", "4"},
    {"1e3", "2"},
    {"+5", "6"},
    {"-0", "1"},
    {"-1", "0"},
    {"007", "8"},
    {"9223372036854775806", "9223372036854775807"},
    {"9223372036854775807", "-9223372036854775808"}, /* wraps */
    {"-9223372036854775808", "-9223372036854775807"},
    {"9223372036854775808", "-"},
    {"-9223372036854775809", "-"},
    {"99999999999999999999999", "-"},
    {"", "-"},
    {" ", "-"},
    {"abc", "-"},
    {"--5", "-"},
    {"- 5", "-"},
    {"+", "-"},
};

static void test_add_reads_numbers_as_strtoll(void **state)
{
    struct rig *r = *state;
    for (size_t i = 0; i < MU_COUNT(numbers); i++) {
        const char *stored = numbers[i][0];
        const char *then = numbers[i][1];
        rig_send(r, A, "cs", 8, "/n");
        rig_expect(r, A, "q", (long long)(i > 0));
        if (strcmp(stored, "-") != 0)
            rig_send(r, A, "css", 1, "/n", stored);
        rig_modern(r, 5);
        rig_send(r, 5, "csq", 4, "/n", 1LL);
        if (strcmp(then, "-") != 0) {
            rig_expect(r, 5, "q", strtoll(then, NULL, 10));
            rig_send(r, A, "cs", 3, "/n");
            rig_expect(r, A, "s", then);
        } else {
            rig_ended(r, 5, STORE_NOT_A_NUMBER);
            rig_send(r, A, "cs", 3, "/n");
            rig_expect(r, A, "s", stored);
        }
        rig_close(r, 5);
    }
    rig_send(r, A, "cbbcsq", 1, "/z", (size_t)2, "4\0005", (size_t)3, 4, "/z", 0LL);
    rig_expect(r, A, "q", 4LL);
}

static void test_add_of_zero_creates_the_key(void **state)
{
    struct rig *r = *state;
    rig_send(r, A, "csqcs", 4, "/n", 0LL, 3, "/n");
    rig_expect(r, A, "qs", 0LL, "0");
    rig_send(r, A, "csqcs", 4, "/n", -2LL, 3, "/n");
    rig_expect(r, A, "qs", -2LL, "-2");
}

static void test_compare_set_table(void **state)
{
    struct rig *r = *state;
    rig_send(r, A, "csss", 2, "/c", "want", "new");
    rig_expect(r, A, "s", "want"); /* Missing, something expected: an echo, nothing made. */
    rig_send(r, A, "cqs", 5, 1LL, "/c");
    rig_expect(r, A, "c", 1);
    rig_send(r, A, "csss", 2, "/c", "", "v1"); /* Missing, nothing expected: created. */
    rig_expect(r, A, "s", "v1");
    rig_send(r, A, "csss", 2, "/c", "v1", "v2 which is longer"); /* Equal: replaced. */
    rig_expect(r, A, "s", "v2 which is longer");
    rig_send(r, A, "csss", 2, "/c", "v1", "v3"); /* Different: the current value. */
    rig_expect(r, A, "s", "v2 which is longer");
    rig_send(r, A, "csss", 2, "/c", "", "v3");
    rig_expect(r, A, "s", "v2 which is longer");
    rig_send(r, A, "csscsss", 1, "/c", "", 2, "/c", "", "v4"); /* Equal, and empty. */
    rig_expect(r, A, "s", "v4");
}

static void test_check_counts_keys_and_queues_that_hold_something(void **state)
{
    struct rig *r = *state;
    rig_send(r, A, "cq", 5, 0LL);
    rig_expect(r, A, "c", 0);
    rig_send(r, A, "csscsscqss", 1, "/k", "1", 14, "/q", "item", 5, 2LL, "/k", "/q");
    rig_expect(r, A, "c", 0);
    rig_send(r, A, "cqsss", 5, 3LL, "/k", "/q", "/none");
    rig_expect(r, A, "c", 1);
    rig_send(r, A, "cscqs", 15, "/q", 5, 1LL, "/q");
    rig_expect(r, A, "qsc", 1LL, "item", 1);
}

static void test_getnumkeys_and_list_keys_leave_queues_and_waits_out(void **state)
{
    struct rig *r = *state;
    rig_send(r, A, "cc", 7, 17);
    rig_expect(r, A, "qq", 0LL, 0LL);
    rig_send(r, B, "cqs", 6, 1LL, "/waited for");
    rig_send(r, A, "csscsqcc", 14, "/q", "item", 4, "init/", 1LL, 7, 17);
    rig_expect(r, A, "qqqs", 1LL, 1LL, 1LL, "init/");
    rig_silent(r, B);
    struct mu_buf list = {.mem = mu_mem_default()};
    for (int i = 0; i < 300; i++) {
        char key[32];
        snprintf(key, sizeof key, "/key-%d", i);
        rig_send(r, A, "css", 1, key, "v");
    }
    rig_send(r, A, "c", 17);
    rig_take_output(r, A, &list);
    assert_int_equal(list.p[0] | list.p[1] << 8, 301);
    assert_int_equal(list.n, 8 + 13 + 10 * 14 + 90 * 15 + 200 * 16);
    assert_non_null(memmem(list.p, list.n, "/key-299", 8));
    mu_buf_fini(&list);
}

static void test_delete_takes_the_key_and_leaves_the_queue(void **state)
{
    struct rig *r = *state;
    rig_send(r, A, "cs", 8, "/x");
    rig_expect(r, A, "q", 0LL);
    rig_send(r, A, "csscsscscscs", 1, "/x", "1", 14, "/x", "item", 8, "/x", 8, "/x", 16, "/x");
    rig_expect(r, A, "qqq", 1LL, 0LL, 1LL);
}

static void test_append_joins_and_creates(void **state)
{
    struct rig *r = *state;
    rig_send(r, A, "csscs", 9, "/a", "", 3, "/a");
    rig_expect(r, A, "s", "");
    rig_send(r, A, "csscsscs", 9, "/a", "ab", 9, "/a", "cd", 3, "/a");
    rig_expect(r, A, "s", "abcd");
    struct mu_buf want = {.mem = mu_mem_default()};
    assert_int_equal(mu_buf_adds(&want, "abcd"), 0);
    for (int i = 0; i < 400; i++) {
        rig_send(r, A, "css", 9, "/a", "0123456789abcdefghijklmnopqrstuvwxyz");
        assert_int_equal(mu_buf_adds(&want, "0123456789abcdefghijklmnopqrstuvwxyz"), 0);
    }
    rig_send(r, A, "cs", 3, "/a");
    rig_expect(r, A, "b", want.p, want.n);
    mu_buf_fini(&want);
}

static void test_multi_get_and_multi_set(void **state)
{
    struct rig *r = *state;
    rig_send(r, A, "cqssssss", 11, 3LL, "/a", "1", "/b", "2", "/a", "3"); /* The last one wins. */
    rig_silent(r, A);
    rig_send(r, B, "cqssss", 10, 4LL, "/b", "/a", "/none", "/b");
    rig_expect(r, B, "ssss", "2", "3", "", "2");
    rig_send(r, B, "cqcq", 10, 0LL, 11, 0LL);
    rig_silent(r, B);
}

static void test_ping_answers_its_nonce(void **state)
{
    struct rig *r = *state;
    rig_send(r, A, "cw", 13, 0xdeadbeefU);
    rig_expect(r, A, "w", 0xdeadbeefU);
}

static void test_queue_is_first_in_first_out_beside_the_key_of_its_name(void **state)
{
    struct rig *r = *state;
    rig_send(r, A, "cscs", 15, "/q", 16, "/q");
    rig_expect(r, A, "qq", 0LL, 0LL);
    rig_send(r, A, "csscsscsscs", 14, "/q", "1", 14, "/q", "", 1, "/q", "key", 16, "/q");
    rig_expect(r, A, "q", 2LL);
    rig_send(r, B, "cscscscs", 15, "/q", 15, "/q", 15, "/q", 3, "/q");
    rig_expect(r, B, "qsqsqs", 2LL, "1", 1LL, "", 0LL, "key");
    assert_int_equal(rig_stats(r).queues, 0);
}

static void test_legacy_commands_by_their_own_codes(void **state)
{
    struct rig *r = *state;
    rig_send(r, L, "csscs", 0, "/k", "v", 2, "/k");
    rig_expect(r, L, "s", "v");
    assert_true(store_client_is_legacy(r->client[L]));
    rig_send(r, L, "csss", 1, "/k", "v", "w");
    rig_expect(r, L, "s", "w");
    rig_send(r, L, "csqcqsc", 3, "/n", 5LL, 4, 1LL, "/k", 6);
    rig_expect(r, L, "qcq", 5LL, 0, 2LL);
    rig_send(r, L, "cqss", 5, 2LL, "/k", "/later");
    rig_silent(r, L);
    rig_send(r, A, "css", 1, "/later", "from a modern client");
    rig_expect(r, L, "c", 0);
    rig_send(r, L, "cs", 8, "/k");
    rig_expect(r, L, "q", 1LL);
    rig_send(r, A, "cs", 3, "/n"); /* One key space. */
    rig_expect(r, A, "s", "5");
}

static void test_watch_hears_every_change(void **state)
{
    struct rig *r = *state;
    rig_send(r, L, "cs", 7, "/w");
    rig_expect(r, L, "c", 3);
    rig_send(r, A, "css", 1, "/w", "1");
    rig_expect(r, L, "csss", 1, "/w", "", "1");
    rig_send(r, A, "css", 1, "/w", "22");
    rig_expect(r, L, "csss", 0, "/w", "1", "22");
    rig_send(r, A, "csq", 4, "/w", 1LL);
    rig_expect(r, L, "csss", 0, "/w", "22", "23");
    rig_send(r, A, "css", 9, "/w", "4");
    rig_expect(r, L, "csss", 0, "/w", "23", "234");
    rig_send(r, A, "csss", 2, "/w", "no match", "x");
    rig_silent(r, L);
    rig_send(r, A, "csss", 2, "/w", "234", "x");
    rig_expect(r, L, "csss", 0, "/w", "234", "x");
    rig_send(r, A, "cqssss", 11, 2LL, "/v", "v", "/w", "y");
    rig_expect(r, L, "csss", 0, "/w", "x", "y");
    rig_send(r, A, "cs", 8, "/w");
    rig_expect(r, L, "csss", 2, "/w", "y", "");
    rig_send(r, A, "csq", 18, "/w", 1LL);
    rig_expect(r, L, "csss", 1, "/w", "", "1");
    rig_send(r, A, "cs", 8, "/w");
    rig_expect(r, L, "csss", 2, "/w", "1", "");
    rig_send(r, A, "csss", 2, "/w", "", "made");
    rig_expect(r, L, "csss", 1, "/w", "", "made");
    /* The watcher's own write: told first, then answered. */
    rig_send(r, L, "csss", 1, "/w", "made", "own");
    rig_expect(r, L, "cssss", 0, "/w", "made", "own", "own");
    rig_close(r, L);
    rig_send(r, A, "css", 1, "/w", "nobody listens");
    rig_connect(r, L);
}

static void test_statistics_count_commands_by_modern_codes(void **state)
{
    struct rig *r = *state;
    rig_send(r, A, "csscs", 1, "/k", "v", 3, "/k");
    rig_send(r, L, "csscs", 0, "/k", "v", 2, "/k");
    rig_send(r, B, "cqs", 6, 1LL, "/none");
    struct store_stats st = rig_stats(r);
    assert_int_equal(st.ops[0], 2);
    assert_int_equal(st.ops[1], 2);
    assert_int_equal(st.ops[3], 2);
    assert_int_equal(st.ops[6], 1);
    assert_int_equal(st.keys, 1);
    assert_int_equal(st.waiting, 1);
    assert_int_equal(st.clients, 3);
    assert_true(st.memory_bytes > 0);
    struct mu_str v = {0};
    assert_int_equal(store_peek(r->store, mu_str_of("/k", 2), &v), 0);
    assert_true(mu_str_eq(v, mu_str_of("v", 1)));
    assert_true(store_peek(r->store, mu_str_of("/none", 5), &v) < 0);
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
        T(test_set_answers_nothing_and_get_answers_the_value),
        T(test_get_of_a_missing_key_is_empty_for_modern_and_ends_legacy),
        T(test_add_reads_numbers_as_strtoll),
        T(test_add_of_zero_creates_the_key),
        T(test_compare_set_table),
        T(test_check_counts_keys_and_queues_that_hold_something),
        T(test_getnumkeys_and_list_keys_leave_queues_and_waits_out),
        T(test_delete_takes_the_key_and_leaves_the_queue),
        T(test_append_joins_and_creates),
        T(test_multi_get_and_multi_set),
        T(test_ping_answers_its_nonce),
        T(test_queue_is_first_in_first_out_beside_the_key_of_its_name),
        T(test_legacy_commands_by_their_own_codes),
        T(test_watch_hears_every_change),
        T(test_statistics_count_commands_by_modern_codes),
    };
    return cmocka_run_group_tests_name("store commands", tests, NULL, NULL);
}
