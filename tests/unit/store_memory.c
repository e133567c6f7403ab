/* When memory or the store's limits run out: who is to blame ends, everyone else goes on, nothing
 * is half done, nothing leaks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "rendezvous/store/internal.h"
#include "tests/unit/store_rig.h"

enum {
    A,
    B,
    C,
    L
};

static char block[100000];

/* --- the heap fails --- */

/* A heap of which only the n-th call fails. */
struct once {
    struct mu_mem mem;
    size_t calls;
    size_t fail_at;
    size_t live;
};

static void *once_realloc(void *ctx, void *p, size_t n)
{
    struct once *o = ctx;
    if (++o->calls == o->fail_at)
        return NULL;
    void *q = realloc(p, n);
    o->live += p == NULL && q != NULL;
    return q;
}

static void once_free(void *ctx, void *p)
{
    struct once *o = ctx;
    o->live--;
    free(p);
}

/* Clients come and go, and a request to a client that has ended is left out. */
struct story {
    struct store *s;
    struct store_client *c[4];
    bool mixed_up; /* Something was half done. */
};

static void feed(struct store_client *c, const char *format, ...)
{
    struct mu_buf b = {.mem = mu_mem_default()};
    va_list ap;
    if (c == NULL || store_client_verdict(c) != STORE_OK)
        return;
    va_start(ap, format);
    rig_format(&b, format, ap);
    va_end(ap);
    for (size_t at = 0; at < b.n;) { /* In pieces, so that half-read requests are kept. */
        size_t n = b.n - at < 5000 ? b.n - at : 5000;
        void *space = NULL;
        size_t room = 0;
        store_client_space(c, &space, &room);
        if (space != NULL) {
            n = n < room ? n : room;
            memcpy(space, b.p + at, n);
        }
        (void)store_client_feed(c, space != NULL ? space : b.p + at, n);
        at += n;
    }
    mu_buf_fini(&b);
}

static bool has(struct store *s, const char *key)
{
    struct mu_str v = {0};
    return store_peek(s, mu_str_of(key, strlen(key)), &v) == 0;
}

static void tell(struct story *t)
{
    for (int i = A; i <= L; i++)
        t->c[i] = store_client_new(t->s, NULL);
    for (int i = A; i <= C; i++)
        feed(t->c[i], "r", "\x00\xce\xf7\x85\x3c", (size_t)5);
    feed(t->c[L], "css", 0, "/legacy", "value");
    feed(t->c[L], "cs", 7, "/watched");
    feed(t->c[A], "css", 1, "/k", "v");
    feed(t->c[A], "csb", 1, "/big", block, (size_t)90000);
    feed(t->c[B], "cs", 3, "/big");
    feed(t->c[A], "csb", 9, "/big", block, (size_t)3000); /* Its answer is not sent yet: a copy. */
    feed(t->c[A], "csscss", 1, "/watched", "1", 9, "/watched", "2");
    feed(t->c[B], "cqsss", 6, 3LL, "/k", "/later", "/q");
    feed(t->c[C], "csq", 18, "/barrier", 2LL);
    feed(t->c[A], "csqcsq", 4, "/n", 5LL, 4, "/watched", 1LL);
    feed(t->c[A], "cqsbsbsb", 11, 3LL, "/m1", block, (size_t)20000, "/m2", block, (size_t)10, "/m3",
         block, (size_t)40000);
    t->mixed_up = has(t->s, "/m1") != has(t->s, "/m2") || has(t->s, "/m1") != has(t->s, "/m3");
    feed(t->c[A], "cqsss", 10, 3LL, "/m1", "/m2", "/big");
    feed(t->c[A], "csss", 2, "/compared", "", "new");
    feed(t->c[A], "csscsb", 14, "/q", "item", 14, "/q", block, (size_t)30000);
    feed(t->c[A], "css", 1, "/later", "now");
    feed(t->c[B], "cscs", 15, "/q", 15, "/q");
    feed(t->c[A], "csqc", 18, "/barrier", 2LL, 17);
    for (int i = 0; i < 100; i++) {
        char key[16];
        snprintf(key, sizeof key, "/many%d", i);
        feed(t->c[A], "css", 1, key, "v");
    }
    feed(t->c[B], "csb", 1, "/half", block, (size_t)50);
    feed(t->c[C], "csq", 1, "/never", 60000LL);
    feed(t->c[C], "r", block, (size_t)50000);
}

/* Memory is back: those who are still there, and newcomers, are served. */
static void check_alive(struct story *t)
{
    int alive = 0;
    struct store_client *c = NULL;
    while ((c = store_take_ready(t->s)) != NULL)
        store_client_sent(c, store_client_pending(c));
    for (int i = A; i <= L; i++) {
        enum store_verdict v = t->c[i] == NULL ? STORE_NO_MEMORY : store_client_verdict(t->c[i]);
        assert_true(v == STORE_OK || v == STORE_NO_MEMORY);
        alive += v == STORE_OK;
        if (v == STORE_OK && i < C) {
            feed(t->c[i], "csscs", 1, "/after", "all", 3, "/after");
            assert_int_equal(store_client_pending(t->c[i]), 11);
        }
    }
    assert_false(t->mixed_up);
    c = store_client_new(t->s, NULL);
    feed(c, "r", "\x00\xce\xf7\x85\x3c", (size_t)5);
    feed(c, "csscs", 1, "/new", "comer", 3, "/new");
    assert_int_equal(store_client_pending(c), 13);
    store_client_free(c);
    for (int i = A; i <= L; i++)
        store_client_free(t->c[i]);
    store_free(t->s);
}

static void test_every_allocation_can_be_the_last_that_works(void **state)
{
    (void)state;
    size_t n = 1;
    for (bool failed = true; failed; n++) {
        struct mu_mem_failing heap;
        mu_mem_failing_init(&heap, n);
        struct story t = {.s = store_new(&heap.mem, NULL, n)};
        if (t.s != NULL) {
            tell(&t);
            failed = heap.calls >= n;
            heap.fail_at = SIZE_MAX;
            check_alive(&t);
        }
        assert_int_equal(heap.live, 0);
    }
    assert_true(n > 100);
}

static void test_every_allocation_can_fail_alone(void **state)
{
    (void)state;
    size_t n = 1;
    for (bool failed = true; failed; n++) {
        struct once o = {.mem = {once_realloc, once_free, &o}, .fail_at = n};
        struct story t = {.s = store_new(&o.mem, NULL, n)};
        if (t.s != NULL) {
            tell(&t);
            failed = o.calls >= n;
            int ended = 0;
            for (int i = A; i <= L; i++)
                ended += t.c[i] == NULL || store_client_verdict(t.c[i]) != STORE_OK;
            assert_true(ended <= 1); /* Nobody else notices. */
            o.fail_at = 0;
            check_alive(&t);
        }
        assert_int_equal(o.live, 0);
    }
    assert_true(n > 100);
}

/* --- the store is full --- */

static void test_a_full_store_refuses_writers_and_serves_readers(void **state)
{
    (void)state;
    struct store_limits limits = store_limits_default;
    limits.memory_bytes_max = 1 << 20;
    struct rig *r = rig_new(&limits, RIG_WHOLE, 5);
    rig_modern(r, A);
    rig_modern(r, B);
    rig_modern(r, C);
    rig_send(r, B, "css", 1, "/mine", "kept");
    for (int i = 0; store_client_verdict(r->client[A]) == STORE_OK; i++) {
        char key[16];
        assert_true(i < 1000);
        snprintf(key, sizeof key, "/k%d", i);
        rig_send(r, A, "csb", 1, key, block, (size_t)4000);
    }
    rig_ended(r, A, STORE_STORE_FULL);
    assert_true(rig_stats(r).memory_bytes <= 1 << 20);
    assert_true(rig_stats(r).memory_bytes > (1 << 20) - 5000);
    rig_send(r, B, "cs", 3, "/mine");
    rig_expect(r, B, "s", "kept");
    rig_send(r, B, "csscs", 1, "/mine", "anew", 3, "/mine"); /* In place: needs nothing. */
    rig_expect(r, B, "s", "anew");
    rig_send(r, C, "cqs", 6, 1LL, "/to come"); /* Waiting, and half a request, still go. */
    rig_send(r, C, "cq", 3, 5LL);
    rig_send(r, C, "r", "/mine", (size_t)5);
    rig_expect(r, C, "s", "anew");
    rig_send(r, B, "cscscs", 8, "/k0", 8, "/k1", 8, "/k2");
    rig_expect(r, B, "qqq", 1LL, 1LL, 1LL);
    rig_send(r, B, "css", 1, "/to come", "now there is room");
    rig_expect(r, C, "c", 0);
    rig_free(r);
}

static void test_a_value_on_its_way_counts_and_is_given_back(void **state)
{
    (void)state;
    struct store_limits limits = store_limits_default;
    limits.memory_bytes_max = 1 << 20;
    limits.value_bytes_max = 200ULL << 20;
    struct rig *r = rig_new(&limits, RIG_WHOLE, 5);
    uint64_t before = rig_stats(r).memory_bytes;
    rig_modern(r, A);
    rig_modern(r, B);
    rig_send(r, A, "csq", 1, "/huge", 100LL << 20);
    for (int i = 0; i < 11 && store_client_verdict(r->client[A]) == STORE_OK; i++)
        rig_send(r, A, "r", block, (size_t)100000);
    rig_ended(r, A, STORE_STORE_FULL);
    assert_int_equal(rig_stats(r).memory_bytes, before); /* At once, not when it has gone. */
    rig_send(r, B, "csb", 1, "/k", block, (size_t)100000);
    rig_send(r, B, "c", 7);
    rig_expect(r, B, "q", 1LL);
    rig_free(r);
}

static void test_multi_set_that_does_not_fit_sets_nothing(void **state)
{
    (void)state;
    struct store_limits limits = store_limits_default;
    limits.memory_bytes_max = 150000;
    struct rig *r = rig_new(&limits, RIG_WHOLE, 5);
    rig_modern(r, A);
    rig_modern(r, B);
    rig_send(r, B, "css", 1, "/a", "before");
    rig_send(r, A, "cqsbsbsb", 11, 3LL, "/a", block, (size_t)90000, "/b", block, (size_t)10, "/c",
             block, (size_t)99999);
    rig_ended(r, A, STORE_STORE_FULL);
    rig_send(r, B, "ccs", 7, 3, "/a");
    rig_expect(r, B, "qs", 1LL, "before");
    rig_free(r);
}

/* --- who does not read --- */

static void test_a_client_that_does_not_read_ends_alone(void **state)
{
    (void)state;
    struct store_limits limits = store_limits_default;
    limits.out_bytes_max = 100000;
    struct rig *r = rig_new(&limits, RIG_WHOLE, 5);
    rig_modern(r, A);
    rig_modern(r, B);
    rig_send(r, B, "csbcss", 1, "/big", block, (size_t)50000, 1, "/small", "twenty bytes of text");
    int asked = 0;
    for (; asked < 100 && store_client_verdict(r->client[A]) == STORE_OK; asked++)
        rig_send(r, A, "cs", 3, "/big");
    rig_ended(r, A, STORE_READS_TOO_SLOWLY);
    assert_in_range(asked, 3, 6);
    rig_close(r, A);
    rig_modern(r, A);
    for (asked = 0; store_client_verdict(r->client[A]) == STORE_OK; asked++)
        rig_send(r, A, "cs", 3, "/small");
    rig_ended(r, A, STORE_READS_TOO_SLOWLY);
    assert_in_range(asked, 100000 / 28, 100000 / 28 + 2);
    rig_send(r, B, "cs", 3, "/small");
    rig_expect(r, B, "s", "twenty bytes of text");
    rig_free(r);
}

static void test_one_answer_may_be_larger_than_the_limit(void **state)
{
    (void)state;
    struct store_limits limits = store_limits_default;
    limits.out_bytes_max = 1000;
    struct rig *r = rig_new(&limits, RIG_WHOLE, 5);
    rig_modern(r, A);
    for (size_t n = 400; n < 100000; n += n / 2) {
        rig_send(r, A, "csbcscw", 1, "/v", block, n, 3, "/v", 13, 7U); /* And a PING behind it. */
        rig_expect(r, A, "bw", block, n, 7U);
    }
    rig_send(r, A, "csbcqssss", 1, "/v", block, (size_t)700, 10, 4LL, "/v", "/v", "/v", "/v");
    rig_expect(r, A, "bbbb", block, (size_t)700, block, (size_t)700, block, (size_t)700, block,
               (size_t)700);
    rig_free(r);
}

static void test_a_watcher_that_does_not_read_ends_alone(void **state)
{
    (void)state;
    struct store_limits limits = store_limits_default;
    limits.out_bytes_max = 100000;
    struct rig *r = rig_new(&limits, RIG_WHOLE, 5);
    rig_modern(r, A);
    rig_connect(r, L);
    rig_send(r, L, "cs", 7, "/w");
    for (int i = 0; i < 20; i++)
        rig_send(r, A, "csb", 1, "/w", block, (size_t)20000);
    rig_ended(r, L, STORE_READS_TOO_SLOWLY);
    rig_silent(r, A);
    rig_close(r, L);
    assert_true(rig_stats(r).memory_bytes < 30000); /* The old values went with it. */
    rig_free(r);
}

static void test_an_idle_client_is_small_and_steady_work_allocates_nothing(void **state)
{
    (void)state;
    struct rig *r = rig_new(NULL, RIG_WHOLE, 5);
    assert_true(sizeof(struct store_client) + STORE_BLOCK_BYTES <= 160);
    rig_modern(r, A);
    rig_modern(r, B);
    size_t calls = 0;
    for (int i = 0; i < 100; i++) {
        if (i == 10)
            calls = r->heap.calls;
        rig_send(r, A, "csscscsqcqscqs", 1, "/k", "value", 3, "/k", 4, "/n", 1LL, 5, 1LL, "/k", 6,
                 1LL, "/k");
        struct mu_buf out = {.mem = mu_mem_default()};
        rig_take_output(r, A, &out);
        assert_int_equal(out.n, 13 + 8 + 1 + 1);
        mu_buf_fini(&out);
    }
    assert_int_equal(r->heap.calls, calls);
    size_t live = r->heap.live;
    rig_modern(r, C);
    assert_int_equal(r->heap.live, live + 1); /* The client, and nothing else. */
    rig_free(r);
}

int main(void)
{
    for (size_t i = 0; i < sizeof block; i++)
        block[i] = (char)(i * 7 + i / 251);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_allocation_can_be_the_last_that_works),
        cmocka_unit_test(test_every_allocation_can_fail_alone),
        cmocka_unit_test(test_a_full_store_refuses_writers_and_serves_readers),
        cmocka_unit_test(test_a_value_on_its_way_counts_and_is_given_back),
        cmocka_unit_test(test_multi_set_that_does_not_fit_sets_nothing),
        cmocka_unit_test(test_a_client_that_does_not_read_ends_alone),
        cmocka_unit_test(test_one_answer_may_be_larger_than_the_limit),
        cmocka_unit_test(test_a_watcher_that_does_not_read_ends_alone),
        cmocka_unit_test(test_an_idle_client_is_small_and_steady_work_allocates_nothing),
    };
    return cmocka_run_group_tests_name("store memory", tests, NULL, NULL);
}
