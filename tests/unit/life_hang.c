/* agent/life/hang.h: who hangs, since when, and who only waits for it. */
#include "tests/unit/unit.h"

#include "agent/life/hang.h"
#include "base/check.h"

#define SEC INT64_C(1000000000)
#define BEGAN (100 * SEC)

static struct hang *begin(int64_t progress_ns, int64_t silence_ns, uint32_t count)
{
    static struct hang h;
    struct hang_limits limits = {.progress_ns = progress_ns, .silence_ns = silence_ns};
    assert_int_equal(hang_init(&h, mu_mem_default(), &limits, count), 0);
    hang_begin(&h, BEGAN);
    return &h;
}

/* At that many seconds after the round's beginning. */
static void note(struct hang *h, uint32_t rank, int64_t at_s, struct hang_sample s)
{
    if (s.has_step && s.step_ns < BEGAN)
        s.step_ns = BEGAN + s.step_ns * SEC;
    if (s.section_since_ns != 0)
        s.section_since_ns = BEGAN + s.section_since_ns * SEC;
    hang_note(h, rank, BEGAN + at_s * SEC, &s);
}

static bool hangs(const struct hang *h, int64_t at_s, struct hang_verdict *v)
{
    *v = (struct hang_verdict){0};
    return hang_look(h, BEGAN + at_s * SEC, v);
}

static void test_without_limits_silence_is_told_and_nothing_ends(void **state)
{
    (void)state;
    struct hang *h = begin(0, 0, 2);
    struct hang_verdict v;
    note(h, 0, 0, (struct hang_sample){.cpu = 1});
    note(h, 1, 0, (struct hang_sample){.cpu = 1});
    for (int s = 1; s < 1000; s++) {
        note(h, 0, s, (struct hang_sample){.cpu = (uint64_t)s});
        note(h, 1, s, (struct hang_sample){.cpu = 1, .stopped = true});
        assert_false(hangs(h, s, &v));
        assert_int_equal(hang_silent_since(h, 0, BEGAN + s * SEC), 0);
        assert_int_equal(hang_silent_since(h, 1, BEGAN + s * SEC), s >= 5 ? BEGAN : 0);
    }
    note(h, 1, 1000, (struct hang_sample){.cpu = 2});
    assert_int_equal(hang_silent_since(h, 1, BEGAN + 1000 * SEC), 0);
    hang_fini(h);
}

static void test_every_sign_of_life_counts(void **state)
{
    (void)state;
    static const struct hang_sample signs[] = {{.cpu = 1},
                                               {.cpu_below = 1},
                                               {.written = 1},
                                               {.has_step = true, .step = 1},
                                               {.section_since_ns = 3}};
    for (size_t i = 0; i < MU_COUNT(signs); i++) {
        struct hang *h = begin(0, 5 * SEC, 1);
        struct hang_verdict v;
        note(h, 0, 0, (struct hang_sample){0});
        note(h, 0, 4, signs[i]);
        assert_false(hangs(h, 8, &v));
        note(h, 0, 8, signs[i]);
        assert_true(hangs(h, 9, &v));
        assert_int_equal(v.since_ns, BEGAN + 4 * SEC);
        assert_false(v.by_progress);
        hang_fini(h);
    }
}

static void test_progress_counts_from_the_first_step_on(void **state)
{
    (void)state;
    struct hang *h = begin(5 * SEC, 0, 2);
    struct hang_verdict v;
    for (int s = 0; s < 60; s++) { /* Loading takes as long as it takes. */
        note(h, 0, s, (struct hang_sample){0});
        assert_false(hangs(h, s, &v));
    }
    note(h, 0, 60, (struct hang_sample){.has_step = true, .step = 7, .step_ns = 60});
    assert_false(hangs(h, 64, &v));
    note(h, 0, 64, (struct hang_sample){.cpu = 99, .has_step = true, .step = 7, .step_ns = 60});
    assert_true(hangs(h, 65, &v)); /* It computes, and gets nowhere. */
    assert_true(v.by_progress && v.local_rank == 0 && v.step == 7);
    assert_int_equal(v.since_ns, BEGAN + 60 * SEC);
    hang_fini(h);
}

static void test_the_stopped_one_is_to_blame_then_the_one_behind(void **state)
{
    (void)state;
    struct hang *h = begin(5 * SEC, 0, 4);
    struct hang_verdict v;
    /* 0 waits longest; 2 has done fewer steps; 3 is stopped, and reported last. */
    note(h, 0, 9, (struct hang_sample){.has_step = true, .step = 8, .step_ns = 1});
    note(h, 1, 9, (struct hang_sample){.has_step = true, .step = 8, .step_ns = 2});
    note(h, 2, 9, (struct hang_sample){.has_step = true, .step = 7, .step_ns = 3});
    note(h, 3, 9, (struct hang_sample){.has_step = true, .step = 8, .step_ns = 3, .stopped = true});
    assert_true(hangs(h, 6, &v));
    assert_int_equal(v.local_rank, 3);
    hang_ended(h, 3);
    assert_true(hangs(h, 6, &v));
    assert_int_equal(v.local_rank, 2);
    hang_ended(h, 2);
    assert_true(hangs(h, 6, &v));
    assert_int_equal(v.local_rank, 0);
    hang_fini(h);
}

static void test_who_reports_is_no_suspect(void **state)
{
    (void)state;
    struct hang *h = begin(5 * SEC, 0, 2);
    struct hang_verdict v;
    note(h, 0, 5, (struct hang_sample){.has_step = true, .step = 80, .step_ns = 0});
    note(h, 1, 5, (struct hang_sample){.has_step = true, .step = 3, .step_ns = 4});
    assert_true(hangs(h, 5, &v));
    assert_int_equal(v.local_rank, 0);
    hang_fini(h);
}

static void test_a_section_has_a_limit_of_its_own_or_the_usual_one(void **state)
{
    (void)state;
    struct hang *h = begin(5 * SEC, 0, 1);
    struct hang_verdict v;
    struct hang_sample s = {.has_step = true,
                            .step_ns = 1,
                            .in_section = true,
                            .section_since_ns = 2,
                            .section_limit_ns = 60 * SEC};
    note(h, 0, 2, s);
    assert_false(hangs(h, 61, &v));
    assert_true(hangs(h, 62, &v));
    assert_true(v.in_section && v.limit_ns == 60 * SEC && v.since_ns == BEGAN + 2 * SEC);
    s.in_section = false; /* Left: the time for the next step begins then. */
    s.section_since_ns = 58;
    note(h, 0, 58, s);
    assert_false(hangs(h, 62, &v));
    assert_true(hangs(h, 63, &v));
    s.in_section = true; /* One without a limit. */
    s.section_limit_ns = -1;
    s.section_since_ns = 70;
    note(h, 0, 70, s);
    assert_false(hangs(h, 74, &v));
    assert_true(hangs(h, 75, &v));
    hang_fini(h);
}

/* From three steps on, ten times the longest, a minute at least; a new round knows it. */
static void test_a_limit_is_learned_from_steps(void **state)
{
    (void)state;
    struct hang *h = begin(HANG_LEARNED, 0, 1);
    struct hang_verdict v;
    struct hang_sample s = {.has_step = true};
    for (int64_t at = 1; at <= 4; at++) {
        s.step = s.step_ns = at;
        note(h, 0, at, s);
        assert_true(at == 4 || !hangs(h, 4000, &v));
    }
    assert_false(hangs(h, 63, &v));
    assert_true(hangs(h, 64, &v) && v.by_progress && v.limit_ns == HANG_LEARNED_MIN_NS);
    s.step = 5;
    s.step_ns = 34; /* It took 30 s: a checkpoint. */
    note(h, 0, 34, s);
    assert_false(hangs(h, 34 + 299, &v));
    assert_true(hangs(h, 34 + 300, &v));
    hang_begin(h, BEGAN);
    s.step_ns = 2;
    note(h, 0, 2, s);
    assert_false(hangs(h, 301, &v));
    assert_true(hangs(h, 302, &v));
    hang_fini(h);
}

static void test_a_round_forgets_and_the_dead_do_not_hang(void **state)
{
    (void)state;
    struct hang *h = begin(5 * SEC, 5 * SEC, 1);
    struct hang_verdict v;
    note(h, 0, 0, (struct hang_sample){.has_step = true, .step_ns = 0});
    assert_true(hangs(h, 50, &v));
    hang_ended(h, 0);
    assert_false(hangs(h, 50, &v));
    assert_int_equal(hang_silent_since(h, 0, BEGAN + 50 * SEC), 0);
    note(h, 0, 50, (struct hang_sample){.has_step = true, .step_ns = 0});
    hang_begin(h, BEGAN + 51 * SEC);
    assert_false(hangs(h, 500, &v));
    hang_fini(h);
}

static void test_looks_are_as_rare_as_the_limits_allow(void **state)
{
    (void)state;
    static const struct {
        int64_t progress_ns, silence_ns;
        uint32_t count;
        int64_t gap_ns;
    } rows[] = {{0, 0, 8, SEC},
                {0, 0, 256, 5 * SEC},
                {600 * SEC, 0, 8, SEC},
                {5 * SEC, 0, 8, SEC / 2},
                {5 * SEC, 1 * SEC, 8, SEC / 10},
                {1, 0, 8, SEC / 20}};
    (void)state;
    for (size_t i = 0; i < MU_COUNT(rows); i++) {
        struct hang *h = begin(rows[i].progress_ns, rows[i].silence_ns, rows[i].count);
        assert_int_equal(hang_gap_ns(h), rows[i].gap_ns);
        hang_fini(h);
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_without_limits_silence_is_told_and_nothing_ends),
        cmocka_unit_test(test_every_sign_of_life_counts),
        cmocka_unit_test(test_progress_counts_from_the_first_step_on),
        cmocka_unit_test(test_the_stopped_one_is_to_blame_then_the_one_behind),
        cmocka_unit_test(test_who_reports_is_no_suspect),
        cmocka_unit_test(test_a_section_has_a_limit_of_its_own_or_the_usual_one),
        cmocka_unit_test(test_a_limit_is_learned_from_steps),
        cmocka_unit_test(test_a_round_forgets_and_the_dead_do_not_hang),
        cmocka_unit_test(test_looks_are_as_rare_as_the_limits_allow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
