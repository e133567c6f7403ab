/* Promises of base/str.h and base/mem.h: buffers that say when memory ran out, text that is safe to
 * show, and the order people expect of host names. */
#include <errno.h>
#include <stdlib.h>

#include "tests/unit/unit.h"

#include "base/str.h"

static void test_buffer_grows_appends_and_consumes(void **state)
{
    (void)state;
    struct mu_buf b;
    mu_buf_init(&b, mu_mem_default());
    assert_string_equal(mu_buf_cstr(&b), "");
    for (int i = 0; i < 1000; i++)
        assert_int_equal(mu_buf_addf(&b, "%d,", i % 10), 0);
    assert_int_equal(b.n, 2000);
    mu_buf_consume(&b, 1990);
    assert_string_equal(mu_buf_cstr(&b), "5,6,7,8,9,");
    mu_buf_consume(&b, b.n);
    assert_int_equal(b.n, 0);
    assert_int_equal(mu_buf_add(&b, "a\0b", 3), 0);
    assert_int_equal(b.n, 3);
    assert_memory_equal(b.p, "a\0b", 3);
    mu_buf_reset(&b);
    assert_int_equal(b.n, 0);
    assert_true(b.cap > 0);
    mu_buf_fini(&b);
    assert_int_equal(mu_buf_adds(&b, "again"), 0);
    assert_string_equal(mu_buf_cstr(&b), "again");
    mu_buf_fini(&b);
}

/* Every allocation of a little story fails once: nothing is half appended, nothing leaks. */
static void test_buffer_without_memory_appends_nothing_and_says_so(void **state)
{
    (void)state;
    bool failed = true;
    for (size_t at = 1; failed; at++) {
        struct mu_mem_failing heap;
        mu_mem_failing_init(&heap, at);
        struct mu_buf b;
        mu_buf_init(&b, &heap.mem);
        size_t whole = 0;
        for (int i = 0; i < 100; i++) {
            size_t before = b.n;
            int r = i % 2 == 0 ? mu_buf_adds(&b, "0123456789") : mu_buf_addf(&b, "%09d.", i);
            assert_true(r == 0 || r == -ENOMEM);
            assert_int_equal(b.n, r == 0 ? before + 10 : before);
            whole += r == 0;
        }
        failed = b.oom;
        assert_int_equal(failed, whole < 100);
        mu_buf_fini(&b);
        assert_int_equal(heap.live, 0);
    }
}

static void test_buffer_refuses_a_size_that_overflows(void **state)
{
    (void)state;
    struct mu_buf b;
    mu_buf_init(&b, mu_mem_default());
    assert_int_equal(mu_buf_adds(&b, "x"), 0);
    assert_int_equal(mu_buf_reserve(&b, SIZE_MAX), -ENOMEM);
    assert_true(b.oom);
    mu_buf_reset(&b);
    assert_false(b.oom);
    mu_buf_fini(&b);
}

static void test_equal_compares_bytes_not_text(void **state)
{
    (void)state;
    assert_true(mu_str_eq(mu_str_of("a\0b", 3), mu_str_of("a\0b", 3)));
    assert_false(mu_str_eq(mu_str_of("a\0b", 3), mu_str_of("a\0c", 3)));
    assert_false(mu_str_eq(mu_str_of("ab", 2), mu_str_of("a", 1)));
    assert_true(mu_str_eq(mu_str_of(NULL, 0), mu_str_of("", 0)));
}

static void quote_is(struct mu_str s, size_t cap, const char *want)
{
    char out[128];
    memset(out, 'Z', sizeof out);
    assert_ptr_equal(mu_quote(out, cap, s), out);
    assert_string_equal(out, want);
    for (size_t i = cap; i < sizeof out; i++)
        assert_int_equal(out[i], 'Z');
}

static void test_quote_shows_peers_bytes_safely(void **state)
{
    (void)state;
    quote_is(mu_str_of("plain", 5), 32, "\"plain\"");
    quote_is(mu_str_of(NULL, 0), 8, "\"\"");
    quote_is(mu_str_of("a\nb\0c", 5), 32, "\"a\\x0ab\\x00c\"");
    quote_is(mu_str_of("\"\\\x7f\x80\xff", 5), 64, "\"\\x22\\x5c\\x7f\\x80\\xff\"");
}

static void test_quote_cuts_with_dots_at_every_size(void **state)
{
    (void)state;
    for (size_t cap = 8; cap < 64; cap++) {
        char out[64];
        for (size_t n = 0; n < 64; n++) {
            char in[64];
            for (size_t i = 0; i < n; i++)
                in[i] = (char)(i * 7);
            (void)mu_quote(out, cap, mu_str_of(in, n));
            size_t len = strlen(out);
            assert_true(len >= 2 && len < cap);
            assert_int_equal(out[len - 1], '"');
        }
    }
    quote_is(mu_str_of("0123456789", 10), 8, "\"01...\"");
}

static void test_strcopy_copies_whole_or_not_at_all(void **state)
{
    (void)state;
    char d[4] = "zzz";
    assert_int_equal(mu_strcopy(d, sizeof d, "abc"), 0);
    assert_string_equal(d, "abc");
    assert_int_equal(mu_strcopy(d, sizeof d, "abcd"), -ENAMETOOLONG);
    assert_string_equal(d, "");
    assert_int_equal(mu_strcopy(d, sizeof d, ""), 0);
}

static const char *const sorted[] = {
    "",  "a",        "a1",        "a01", "a2",  "a10",  "a10b", "a010",  "a100",  "aa",
    "b", "n1-rack2", "n1-rack10", "n2",  "n10", "n010", "node", "node9", "node10"};

static int sign(int v)
{
    return (v > 0) - (v < 0);
}

static void test_natural_order_is_total_and_as_people_expect(void **state)
{
    (void)state;
    assert_true(mu_natural_cmp("n2", "n10") < 0);
    assert_true(mu_natural_cmp("n10", "n2") > 0);
    assert_true(mu_natural_cmp("n9.cluster", "n10.cluster") < 0);
    assert_true(mu_natural_cmp("99999999999999999999998", "99999999999999999999999") < 0);
    assert_true(mu_natural_cmp("x", "x1") < 0);
    for (size_t i = 0; i < MU_COUNT(sorted); i++) {
        for (size_t j = 0; j < MU_COUNT(sorted); j++) {
            int ij = sign(mu_natural_cmp(sorted[i], sorted[j]));
            assert_int_equal(ij, -sign(mu_natural_cmp(sorted[j], sorted[i])));
            assert_int_equal(ij == 0, i == j);
        }
    }
}

/* Order must be transitive, or sorting by it is undefined. */
static void test_natural_order_is_transitive(void **state)
{
    (void)state;
    for (size_t i = 0; i < MU_COUNT(sorted); i++)
        for (size_t j = 0; j < MU_COUNT(sorted); j++)
            for (size_t k = 0; k < MU_COUNT(sorted); k++)
                if (mu_natural_cmp(sorted[i], sorted[j]) < 0 &&
                    mu_natural_cmp(sorted[j], sorted[k]) < 0)
                    assert_true(mu_natural_cmp(sorted[i], sorted[k]) < 0);
}

static void test_memory_helpers(void **state)
{
    (void)state;
    struct mu_mem_failing heap;
    mu_mem_failing_init(&heap, 4);
    char *s = mu_strdup(&heap.mem, "text");
    unsigned char *z = mu_zalloc(&heap.mem, 16);
    void *none = mu_alloc(&heap.mem, 0); /* n is never 0 below: a real pointer. */
    assert_non_null(s);
    assert_non_null(z);
    assert_non_null(none);
    assert_string_equal(s, "text");
    for (size_t i = 0; i < 16; i++)
        assert_int_equal(z[i], 0);
    assert_int_equal(heap.live, 3);
    assert_null(mu_strdup(&heap.mem, "no"));
    assert_null(mu_realloc(&heap.mem, s, 100));
    mu_mem_free(&heap.mem, s);
    mu_mem_free(&heap.mem, z);
    mu_mem_free(&heap.mem, none);
    mu_mem_free(&heap.mem, NULL);
    assert_int_equal(heap.live, 0);
}

static void test_spans_of_time_are_never_nothing(void **state)
{
    (void)state;
    char b[MU_SPAN_BYTES];
    assert_string_equal(mu_span(260000, b), "0.3 ms");
    assert_string_equal(mu_span(40 * 1000000, b), "40 ms");
    assert_string_equal(mu_span(100 * 1000000, b), "0.1 s");
    assert_string_equal(mu_span(INT64_C(2500000000), b), "2.5 s");
    assert_string_equal(mu_span(INT64_C(300000000000), b), "300.0 s");
    assert_string_equal(mu_span(0, b), "0.0 ms");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_buffer_grows_appends_and_consumes),
        cmocka_unit_test(test_buffer_without_memory_appends_nothing_and_says_so),
        cmocka_unit_test(test_buffer_refuses_a_size_that_overflows),
        cmocka_unit_test(test_equal_compares_bytes_not_text),
        cmocka_unit_test(test_quote_shows_peers_bytes_safely),
        cmocka_unit_test(test_quote_cuts_with_dots_at_every_size),
        cmocka_unit_test(test_strcopy_copies_whole_or_not_at_all),
        cmocka_unit_test(test_natural_order_is_total_and_as_people_expect),
        cmocka_unit_test(test_natural_order_is_transitive),
        cmocka_unit_test(test_memory_helpers),
        cmocka_unit_test(test_spans_of_time_are_never_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
