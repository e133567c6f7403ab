/* agent/workers/report.h: the block that scripts look for. */
#include "tests/unit/unit.h"

#include <stdlib.h>
#include <time.h>

#include "agent/workers/report.h"

static void
report(const struct report_worker *w, uint32_t count, const char *title, const char *want)
{
    struct mu_buf b;
    mu_buf_init(&b, mu_mem_default());
    report_block(&b, title, "n1.example", w, count, 36);
    assert_false(b.oom);
    assert_string_equal(mu_buf_cstr(&b), want);
    mu_buf_fini(&b);
}

static void test_one_failure(void **state)
{
    (void)state;
    struct report_worker w = {
        .rank = 3, .local_rank = 1, .pid = 77, .status = 7, .unix_s = 1700000000};
    report(&w, 1, "train.py",
           "============================================================\n"
           "train.py FAILED\n"
           "------------------------------------------------------------\n"
           "Failures:\n"
           "  <NO_OTHER_FAILURES>\n"
           "------------------------------------------------------------\n"
           "Root Cause (first observed failure):\n"
           "[0]:\n"
           "  time      : 2023-11-14_22:13:20\n"
           "  host      : n1.example\n"
           "  rank      : 3 (local_rank: 1)\n"
           "  exitcode  : 7 (pid: 77) \n"
           "  error_file: <N/A>\n"
           "  traceback : To enable traceback see: "
           "https://pytorch.org/docs/stable/elastic/errors.html\n"
           "============================================================\n");
}

static void test_last_lines_stand_above(void **state)
{
    (void)state;
    struct report_worker w = {
        .rank = 0, .pid = 7, .status = 3, .unix_s = 1700000000, .has_output = true};
    report(&w, 1, "t",
           "============================================================\n"
           "t FAILED\n"
           "------------------------------------------------------------\n"
           "Failures:\n"
           "  <NO_OTHER_FAILURES>\n"
           "------------------------------------------------------------\n"
           "Root Cause (first observed failure):\n"
           "[0]:\n"
           "  time      : 2023-11-14_22:13:20\n"
           "  host      : n1.example\n"
           "  rank      : 0 (local_rank: 0)\n"
           "  exitcode  : 3 (pid: 7) \n"
           "  error_file: <N/A>\n"
           "  traceback : none in an error file; its last lines stand above\n"
           "============================================================\n");
}

static void test_colours_go_and_nothing_is_obeyed(void **state)
{
    (void)state;
    struct mu_buf b;
    struct report_worker w = {.status = 1,
                              .text = "\x1b[1;31mTraceback\x1b[0m\n\tat \x1b]0;title\x07 x\r"};
    mu_buf_init(&b, mu_mem_default());
    report_block(&b, "t", "n1", &w, 1, 30);
    report_output(&b, "rank 0", "50%\r100%\n");
    assert_non_null(strstr(mu_buf_cstr(&b), ": Traceback\n  \tat \\x1b]0;title\\x07 x\\x0d\n"));
    assert_non_null(strstr(mu_buf_cstr(&b), "50%\\x0d100%\n"));
    assert_null(strchr(mu_buf_cstr(&b), '\x1b'));
    mu_buf_fini(&b);
}

static void test_the_marked_one_is_the_cause(void **state)
{
    (void)state;
    struct mu_buf b;
    struct report_worker w[2] = {{.rank = 0, .status = 1, .unix_s = 1700000000},
                                 {.rank = 1, .status = -9, .unix_s = 1700000005, .is_cause = true}};
    mu_buf_init(&b, mu_mem_default());
    report_block(&b, "t", "n1", w, 2, 30);
    const char *root = strstr(mu_buf_cstr(&b), "Root Cause");
    assert_non_null(root);
    assert_non_null(strstr(root, "rank      : 1 "));
    mu_buf_fini(&b);
}

static void test_earliest_second_is_the_cause_and_width_follows(void **state)
{
    (void)state;
    struct report_worker w[] = {
        {.rank = 0, .local_rank = 0, .pid = 70, .status = -15, .unix_s = 1700000001},
        {.rank = 1,
         .local_rank = 1,
         .pid = 71,
         .status = 1,
         .unix_s = 1700000000,
         .error_file = "/t/1/error.json",
         .text = "Traceback\n  deep\nE: x\n"},
        {.rank = 2,
         .local_rank = 2,
         .pid = 72,
         .status = -9,
         .unix_s = 1700000000,
         .text = "E",
         .extra = "out of memory"},
    };
    report(w, 3, "t",
           "====================================================\n"
           "t FAILED\n"
           "----------------------------------------------------\n"
           "Failures:\n"
           "[1]:\n"
           "  time      : 2023-11-14_22:13:21\n"
           "  host      : n1.example\n"
           "  rank      : 0 (local_rank: 0)\n"
           "  exitcode  : -15 (pid: 70)  (SIGTERM)\n"
           "  error_file: <N/A>\n"
           "  traceback : Signal 15 (SIGTERM) received by PID 70\n"
           "[2]:\n"
           "  time      : 2023-11-14_22:13:20\n"
           "  host      : n1.example\n"
           "  rank      : 2 (local_rank: 2)\n"
           "  exitcode  : -9 (pid: 72)  (SIGKILL)\n"
           "  error_file: <N/A>\n"
           "  traceback : E\n"
           "  note      : out of memory\n"
           "----------------------------------------------------\n"
           "Root Cause (first observed failure):\n"
           "[0]:\n"
           "  time      : 2023-11-14_22:13:20\n"
           "  host      : n1.example\n"
           "  rank      : 1 (local_rank: 1)\n"
           "  exitcode  : 1 (pid: 71) \n"
           "  error_file: /t/1/error.json\n"
           "  traceback : Traceback\n"
           "    deep\n"
           "  E: x\n"
           "====================================================\n");
}

static uint32_t lines_of(const struct mu_buf *b)
{
    uint32_t n = 0;
    for (size_t i = 0; i < b->n; i++)
        n += b->p[i] == '\n';
    return n;
}

/* However much there is to say, it stays within the lines: the cause's traceback comes first. */
static void test_the_block_keeps_to_its_lines(void **state)
{
    (void)state;
    static const char long_text[] = "first\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12\n13\n14\nlast\n";
    struct report_worker w[64] = {{0}};
    for (uint32_t i = 0; i < 64; i++)
        w[i] = (struct report_worker){.rank = i, .local_rank = i, .pid = 100, .status = 1};
    for (uint32_t lines = 18; lines < 120; lines++) {
        for (int variant = 0; variant < 4; variant++) {
            struct mu_buf b;
            mu_buf_init(&b, mu_mem_default());
            w[0].text = (variant & 1) != 0 ? long_text : NULL;
            w[1].text = (variant & 2) != 0 ? long_text : "one\ntwo";
            w[0].extra = w[1].extra = variant == 3 ? "out of memory" : NULL;
            report_block(&b, "t", "h", w, 64, lines);
            assert_true(lines_of(&b) <= lines);
            const char *text = mu_buf_cstr(&b);
            if (w[0].text != NULL) {
                assert_non_null(strstr(text, "traceback : first\n"));
                assert_non_null(strstr(text, "\n  last\n"));
            }
            assert_non_null(strstr(text, " more, the next is rank "));
            assert_null(strstr(text, "\n\n"));
            mu_buf_fini(&b);
        }
    }
}

static void test_output_is_told_line_by_line(void **state)
{
    (void)state;
    struct mu_buf b;
    mu_buf_init(&b, mu_mem_default());
    report_output(&b, "node-agent", "");
    assert_int_equal(b.n, 0);
    report_output(&b, "node-agent", "working\ndisk full\n");
    assert_string_equal(mu_buf_cstr(&b),
                        "node-agent: its last lines:\n    | working\n    | disk full\n");
    mu_buf_fini(&b);
}

static void test_no_memory_shows_in_the_buffer(void **state)
{
    (void)state;
    struct report_worker w = {.status = 1};
    for (size_t fail_at = 1; fail_at < 200; fail_at++) {
        struct mu_mem_failing f;
        struct mu_buf b;
        mu_mem_failing_init(&f, fail_at);
        mu_buf_init(&b, &f.mem);
        report_block(&b, "t", "h", &w, 1, 36);
        bool oom = b.oom;
        mu_buf_fini(&b);
        assert_int_equal(f.live, 0);
        if (!oom)
            return;
    }
    fail_msg("never enough memory");
}

static int in_utc(void **state)
{
    (void)state;
    (void)setenv("TZ", "UTC0", 1);
    tzset();
    return 0;
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_failure),
        cmocka_unit_test(test_last_lines_stand_above),
        cmocka_unit_test(test_colours_go_and_nothing_is_obeyed),
        cmocka_unit_test(test_the_marked_one_is_the_cause),
        cmocka_unit_test(test_earliest_second_is_the_cause_and_width_follows),
        cmocka_unit_test(test_the_block_keeps_to_its_lines),
        cmocka_unit_test(test_output_is_told_line_by_line),
        cmocka_unit_test(test_no_memory_shows_in_the_buffer),
    };
    return cmocka_run_group_tests(tests, in_utc, NULL);
}
