/* How requests are read: which dialect, in pieces of any size, and each limit as soon as its number
 * is there. */
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
    C
};

/* --- dialects --- */

static const struct {
    const char *bytes;
    size_t n;
    enum store_verdict verdict;
    bool spoken;
    bool legacy;
} hellos[] = {
    {"\x00", 1, STORE_OK, false, false},
    {"\x00\xce\xf7\x85", 4, STORE_OK, false, false},
    {"\x00\xce\xf7\x85\x3c", 5, STORE_OK, true, false},
    {"\x00\xce\xf7\x85\x3c\x0d", 6, STORE_OK, true, false},
    {"\x00\x01\x02\x03\x04", 5, STORE_BAD_MAGIC, false, false},
    {"\x00\xce\xf7\x85\x3d", 5, STORE_BAD_MAGIC, false, false},
    {"\x00\x01\x20\x00\x00", 5, STORE_BAD_MAGIC, false, false}, /* A key of 8193 bytes. */
    {"\x00\x00\x20\x00\x00", 5, STORE_OK, true, true},          /* Of 8192. */
    {"\x00\x01\x00\x00\x00\x00\x00\x00\x01", 9, STORE_KEY_TOO_LONG, true, true},
    {"\x01", 1, STORE_OK, true, true},
    {"\x08", 1, STORE_OK, true, true},
    {"\x09", 1, STORE_BAD_MAGIC, false, false},
    {"\x0d\x01\x02\x03\x04", 5, STORE_BAD_MAGIC, false, false},
    {"GET / HTTP/1.1\r\n\r\n", 18, STORE_BAD_MAGIC, false, false},
    {"\x16\x03\x01", 3, STORE_BAD_MAGIC, false, false},
    {"\xff\xff\xff\xff\xff", 5, STORE_BAD_MAGIC, false, false},
};

static void test_the_first_bytes_decide_the_dialect(void **state)
{
    (void)state;
    for (int feeding = RIG_WHOLE; feeding <= RIG_BYTES; feeding++) {
        struct rig *r = rig_new(NULL, (enum rig_feeding)feeding, 3);
        for (size_t i = 0; i < MU_COUNT(hellos); i++) {
            rig_connect(r, A);
            assert_int_equal(rig_feed(r, A, hellos[i].bytes, hellos[i].n), hellos[i].verdict);
            assert_int_equal(store_client_has_spoken(r->client[A]), hellos[i].spoken);
            assert_int_equal(store_client_is_legacy(r->client[A]), hellos[i].legacy);
            if (hellos[i].verdict != STORE_OK)
                rig_ended(r, A, hellos[i].verdict);
            rig_close(r, A);
        }
        assert_int_equal(rig_stats(r).closed[STORE_KEY_TOO_LONG], 1);
        rig_free(r);
    }
}

static void test_a_bad_command_ends_after_the_good_ones_are_served(void **state)
{
    (void)state;
    struct rig *r = rig_new(NULL, RIG_WHOLE, 3);
    rig_modern(r, A);
    rig_modern(r, B);
    rig_send(r, A, "csscscsscw", 1, "/k", "v", 3, "/k", 1, "/k2", "v", 19, 0U);
    rig_ended(r, A, STORE_BAD_COMMAND);
    struct mu_buf got = {.mem = mu_mem_default()};
    rig_take_output(r, A, &got);
    assert_int_equal(got.n, 9);
    mu_buf_fini(&got);
    rig_send(r, B, "cs", 3, "/k2");
    rig_expect(r, B, "s", "v");
    rig_close(r, A);
    rig_modern(r, A);
    rig_send(r, A, "cw", 0, 0x3c85f7ceU);
    rig_ended(r, A, STORE_SECOND_VALIDATE);
    rig_close(r, A);
    rig_connect(r, A);
    rig_send(r, A, "cc", 6, 9);
    rig_ended(r, A, STORE_BAD_COMMAND); /* Legacy ends at 8. */
    rig_send(r, B, "c", 7);
    rig_expect(r, B, "q", 2LL);
    rig_free(r);
}

/* --- limits --- */

static const struct store_limits small = {
    .key_bytes_max = 10,
    .value_bytes_max = 20,
    .keys_per_request_max = 3,
    .memory_bytes_max = 1 << 20,
    .out_bytes_max = 1 << 16,
};

/* The command, and what of it is fine just at the limit; then the number that passes it by one. */
static void test_each_limit_holds_as_soon_as_its_number_is_read(void **state)
{
    (void)state;
    static const char key[] = "0123456789";
    static const char value[] = "01234567890123456789";
    for (int feeding = RIG_WHOLE; feeding <= RIG_BYTES; feeding++) {
        struct rig *r = rig_new(&small, (enum rig_feeding)feeding, 3);
        const int keyed[] = {1, 2, 3, 4, 8, 9, 14, 15, 16, 18};
        const int valued[] = {1, 2, 9, 14};
        const int counted[] = {5, 6, 10, 11};
        rig_modern(r, B);
        for (size_t i = 0; i < MU_COUNT(keyed); i++) {
            rig_modern(r, A);
            assert_int_equal(rig_send(r, A, "cq", keyed[i], 10LL), STORE_OK);
            rig_close(r, A);
            rig_modern(r, A);
            rig_send(r, A, "cq", keyed[i], 11LL);
            rig_ended(r, A, STORE_KEY_TOO_LONG);
            rig_close(r, A);
        }
        for (size_t i = 0; i < MU_COUNT(valued); i++) {
            rig_modern(r, A);
            assert_int_equal(rig_send(r, A, "csq", valued[i], key, 20LL), STORE_OK);
            rig_close(r, A);
            rig_modern(r, A);
            rig_send(r, A, "csq", valued[i], key, 21LL);
            rig_ended(r, A, STORE_VALUE_TOO_LONG);
            rig_close(r, A);
        }
        for (size_t i = 0; i < MU_COUNT(counted); i++) {
            rig_modern(r, A);
            assert_int_equal(rig_send(r, A, "cq", counted[i], 3LL), STORE_OK);
            rig_close(r, A);
            rig_modern(r, A);
            rig_send(r, A, "cq", counted[i], 4LL);
            rig_ended(r, A, STORE_TOO_MANY_KEYS);
            rig_close(r, A);
            rig_modern(r, A);
            rig_send(r, A, "cqq", counted[i], 3LL, -1LL); /* The first of three is enough. */
            rig_ended(r, A, STORE_KEY_TOO_LONG);
            rig_close(r, A);
        }
        rig_modern(r, A);
        rig_send(r, A, "csssq", 2, key, value, value, 0LL); /* A zero is no command... */
        rig_ended(r, A, STORE_SECOND_VALIDATE);             /* ...but the value before was fine. */
        rig_close(r, A);
        rig_modern(r, A);
        rig_send(r, A, "csqq", 2, key, 0LL, 21LL); /* The second value of COMPARE_SET. */
        rig_ended(r, A, STORE_VALUE_TOO_LONG);
        rig_close(r, A);
        rig_modern(r, A);
        rig_send(r, A, "cqsssq", 11, 2LL, key, value, "b", 21LL); /* MULTI_SET's second pair. */
        rig_ended(r, A, STORE_VALUE_TOO_LONG);
        rig_send(r, B, "csscs", 1, key, value, 3, key); /* Nobody else notices. */
        rig_expect(r, B, "s", value);
        rig_free(r);
    }
}

static void test_a_request_that_never_ends_has_no_effect(void **state)
{
    (void)state;
    struct rig *r = rig_new(NULL, RIG_WHOLE, 3);
    rig_modern(r, A);
    rig_modern(r, B);
    rig_send(r, A, "cqsssq", 11, 2LL, "/a", "1", "/b",
             5LL); /* MULTI_SET, the last value missing. */
    rig_send(r, A, "r", "1234", (size_t)4);
    rig_send(r, B, "c", 7);
    rig_expect(r, B, "q", 0LL);
    rig_close(r, A);
    rig_send(r, B, "c", 7);
    rig_expect(r, B, "q", 0LL);
    rig_free(r);
}

static void test_multi_set_is_applied_once_and_when_whole(void **state)
{
    (void)state;
    struct rig *r = rig_new(NULL, RIG_WHOLE, 3);
    rig_modern(r, A);
    rig_modern(r, B);
    rig_send(r, A, "cqsss", 11, 2LL, "/a", "old", "/b");
    rig_send(r, B, "css", 1, "/a", "new"); /* In between, by another. */
    rig_send(r, A, "q", 1LL);
    rig_send(r, B, "cs", 3, "/a");
    rig_expect(r, B, "s", "new"); /* torch undoes it here. */
    rig_send(r, A, "r", "x", (size_t)1);
    rig_send(r, B, "cqss", 10, 2LL, "/a", "/b");
    rig_expect(r, B, "ss", "old", "x");
    rig_free(r);
}

/* --- large values --- */

static char *pattern(size_t n, unsigned seed)
{
    char *p = malloc(n);
    assert_non_null(p);
    for (size_t i = 0; i < n; i++)
        p[i] = (char)((i * 31 + i / 257 + seed) & 0xff);
    return p;
}

static void test_a_large_value_is_read_into_its_own_memory_and_answered_from_there(void **state)
{
    (void)state;
    const size_t n = 5 << 20;
    char *value = pattern(n, 1);
    struct rig *r = rig_new(NULL, RIG_WHOLE, 3);
    rig_modern(r, A);
    rig_send(r, A, "csqr", 1, "/big", (long long)n, value, (size_t)100);
    const char *first = NULL;
    for (size_t at = 100; at < n;) {
        void *space = NULL;
        size_t room = 0;
        store_client_space(r->client[A], &space, &room);
        if (n - at < 16384) { /* A short rest comes through the scratch, with what follows it. */
            assert_null(space);
            assert_int_equal(room, 0);
            assert_int_equal(store_client_feed(r->client[A], value + at, n - at), STORE_OK);
            break;
        }
        assert_non_null(space);
        assert_true(room > 0 && room <= n - at);
        size_t m = room < 200000 ? room : 200000;
        memcpy(space, value + at, m);
        if (first == NULL)
            first = space;
        assert_int_equal(store_client_feed(r->client[A], space, m), STORE_OK);
        at += m;
    }
    rig_send(r, A, "cs", 3, "/big");
    struct store_piece pieces[4];
    assert_int_equal(store_client_output(r->client[A], pieces, 4), 2);
    assert_int_equal(pieces[1].n, n);
    assert_memory_equal(pieces[1].p, value, n);
    struct mu_str peeked = {0};
    assert_int_equal(store_peek(r->store, mu_str_of("/big", 4), &peeked), 0);
    assert_ptr_equal(peeked.p, pieces[1].p); /* By reference: no copy was made. */
    /* Written anew while the old answer is still being sent: that one stays as it was. */
    rig_modern(r, B);
    rig_send(r, B, "csscss", 1, "/big", "small", 9, "/big", "er");
    assert_memory_equal(pieces[1].p, value, n);
    store_client_sent(r->client[A], store_client_pending(r->client[A]));
    rig_send(r, B, "cs", 3, "/big");
    rig_expect(r, B, "s", "smaller");
    assert_true(rig_stats(r).memory_bytes < 10000);
    free(value);
    rig_free(r);
}

static void test_an_announced_value_costs_only_what_came(void **state)
{
    (void)state;
    struct rig *r = rig_new(NULL, RIG_WHOLE, 3);
    char *value = pattern(300000, 2);
    uint64_t before = rig_stats(r).memory_bytes;
    for (int i = 0; i < 100; i++) {
        rig_modern(r, i);
        rig_send(r, i, "csq", 1, "/k", 512LL << 20);
    }
    assert_true(rig_stats(r).memory_bytes - before < 100 * 200);
    for (int i = 0; i < 100; i++)
        rig_send(r, i, "r", value, (size_t)1000);
    assert_true(rig_stats(r).memory_bytes - before < 100 * 1200);
    rig_send(r, 0, "r", value, (size_t)300000);
    assert_true(rig_stats(r).memory_bytes - before < 100 * 1200 + 310000);
    for (int i = 0; i < 100; i++)
        rig_close(r, i);
    assert_int_equal(rig_stats(r).memory_bytes, before);
    rig_modern(r, A); /* A count is no promise either. */
    rig_send(r, A, "cq", 11, 131072LL);
    assert_true(rig_stats(r).memory_bytes - before < 5000);
    free(value);
    rig_free(r);
}

/* --- the same bytes in other pieces --- */

static void put_key(struct rig *r, struct mu_buf *b, bool missing_too)
{
    char key[40];
    snprintf(key, sizeof key, "/%s-%u", missing_too ? "key" : "k", (unsigned)(rig_random(r) % 12));
    rig_put(b, "s", key);
}

static void put_value(struct rig *r, struct mu_buf *b, const char *bytes)
{
    static const size_t sizes[] = {0, 1, 7, 8, 30, 100, 2047, 2048, 5000, 16383, 16384, 70000};
    uint64_t pick = rig_random(r) % 60;
    size_t n = pick < MU_COUNT(sizes) ? sizes[pick] : (size_t)(pick % 20);
    rig_put(b, "b", bytes + rig_random(r) % 100, n);
}

/* One request of any kind; nothing in it ends the connection. */
static void put_request(struct rig *r, struct mu_buf *b, const char *bytes)
{
    int code = 1 + (int)(rig_random(r) % 18);
    uint64_t count = rig_random(r) % 40;
    rig_put(b, "c", code);
    switch (code) {
    case 1:
    case 9:
    case 14:
        put_key(r, b, false);
        put_value(r, b, bytes);
        break;
    case 2:
        put_key(r, b, false);
        put_value(r, b, bytes);
        put_value(r, b, bytes);
        break;
    case 4:
    case 18: /* Numbers have keys of their own. */
        rig_put(b, "sq", "/number", (long long)(rig_random(r) % 3));
        break;
    case 5:
    case 6:
    case 10:
    case 11:
        rig_put(b, "q", (long long)count);
        for (uint64_t i = 0; i < count; i++) {
            put_key(r, b, true);
            if (code == 11)
                put_value(r, b, bytes);
        }
        break;
    case 13:
        rig_put(b, "w", (unsigned)rig_random(r));
        break;
    case 3:
    case 8:
    case 15:
    case 16:
        put_key(r, b, false);
        break;
    default: /* 7, 12, 17: nothing follows. */
        break;
    }
}

static void
run_stream(const struct mu_buf *in, enum rig_feeding feeding, uint64_t seed, struct mu_buf *out)
{
    struct rig *r = rig_new(NULL, feeding, 99); /* The same hash: LIST_KEYS has an order. */
    r->random = seed * 2 + 1;
    rig_modern(r, A);
    assert_int_equal(rig_feed(r, A, in->p, in->n), STORE_OK);
    rig_take_output(r, A, out);
    rig_send(r, A, "cc", 12, 17);
    rig_take_output(r, A, out);
    rig_free(r);
}

static void compare_streams(size_t requests, uint64_t seed, enum rig_feeding feeding)
{
    struct mu_buf in = {.mem = mu_mem_default()};
    struct mu_buf whole = {.mem = mu_mem_default()};
    struct mu_buf pieces = {.mem = mu_mem_default()};
    struct rig *dice = rig_new(NULL, RIG_WHOLE, seed);
    char *bytes = pattern(80000, (unsigned)seed);
    for (size_t i = 0; i < requests; i++)
        put_request(dice, &in, bytes);
    run_stream(&in, RIG_WHOLE, seed, &whole);
    run_stream(&in, feeding, seed, &pieces);
    if (!mu_str_eq(mu_str_of(whole.p, whole.n), mu_str_of(pieces.p, pieces.n)))
        fail_msg("seed %llu: other answers in pieces", (unsigned long long)seed);
    assert_true(whole.n > requests);
    free(bytes);
    rig_free(dice);
    mu_buf_fini(&in);
    mu_buf_fini(&whole);
    mu_buf_fini(&pieces);
}

static void test_byte_by_byte_gives_the_same_answers(void **state)
{
    (void)state;
    compare_streams(400, 1, RIG_BYTES);
}

static void test_random_pieces_give_the_same_answers(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++)
        compare_streams(150, seed, RIG_RANDOM);
}

static void test_131072_pairs_in_many_reads(void **state)
{
    (void)state;
    struct mu_buf in = {.mem = mu_mem_default()};
    struct rig *r = rig_new(NULL, RIG_WHOLE, 3);
    rig_modern(r, A);
    rig_put(&in, "cq", 11, 131072LL);
    for (int i = 0; i < 131072; i++) {
        char key[32];
        snprintf(key, sizeof key, "/key-%d", i);
        rig_put(&in, "ss", key, "v");
    }
    for (size_t at = 0; at < in.n; at += 4096) {
        size_t n = in.n - at < 4096 ? in.n - at : 4096;
        assert_int_equal(store_client_feed(r->client[A], in.p + at, n), STORE_OK);
    }
    rig_send(r, A, "c", 7);
    rig_expect(r, A, "q", 131072LL);
    mu_buf_fini(&in);
    rig_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_first_bytes_decide_the_dialect),
        cmocka_unit_test(test_a_bad_command_ends_after_the_good_ones_are_served),
        cmocka_unit_test(test_each_limit_holds_as_soon_as_its_number_is_read),
        cmocka_unit_test(test_a_request_that_never_ends_has_no_effect),
        cmocka_unit_test(test_multi_set_is_applied_once_and_when_whole),
        cmocka_unit_test(test_a_large_value_is_read_into_its_own_memory_and_answered_from_there),
        cmocka_unit_test(test_an_announced_value_costs_only_what_came),
        cmocka_unit_test(test_byte_by_byte_gives_the_same_answers),
        cmocka_unit_test(test_random_pieces_give_the_same_answers),
        cmocka_unit_test(test_131072_pairs_in_many_reads),
    };
    return cmocka_run_group_tests_name("store codec", tests, NULL, NULL);
}
