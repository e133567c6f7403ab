/* agent/workers/lines.h: a stream cut anywhere gives the same whole lines. */
#include "tests/unit/unit.h"

#include <stdio.h>
#include <string.h>

#include "agent/workers/lines.h"

struct rig {
    struct lines lines;
    struct mu_buf out;
    struct mu_buf copy;
};

static void begin(struct rig *r, const struct mu_mem *mem, const char *prefix)
{
    lines_init(&r->lines, mem, prefix);
    mu_buf_init(&r->out, mem);
    mu_buf_init(&r->copy, mem);
}

static void end(struct rig *r)
{
    lines_fini(&r->lines);
    mu_buf_fini(&r->out);
    mu_buf_fini(&r->copy);
}

static void take(struct rig *r, const char *text)
{
    lines_take(&r->lines, text, strlen(text), &r->out, &r->copy);
}

static void test_each_line_gets_one_prefix_and_pieces_are_one_line(void **state)
{
    struct rig r;
    (void)state;
    begin(&r, mu_mem_default(), "[a0]:");
    take(&r, "one\n\ntw");
    assert_string_equal(mu_buf_cstr(&r.out), "[a0]:one\n[a0]:\n");
    take(&r, "");
    take(&r, "o");
    assert_string_equal(mu_buf_cstr(&r.out), "[a0]:one\n[a0]:\n");
    take(&r, "\nlast words");
    lines_end(&r.lines, &r.out, &r.copy);
    lines_end(&r.lines, &r.out, &r.copy);
    assert_string_equal(mu_buf_cstr(&r.out), "[a0]:one\n[a0]:\n[a0]:two\n[a0]:last words\n");
    assert_int_equal(r.copy.n, 0);
    end(&r);
}

static void test_carriage_returns_end_lines_too(void **state)
{
    struct rig r;
    (void)state;
    begin(&r, mu_mem_default(), "");
    take(&r, "10%\r20%\r\r\nx\r");
    take(&r, "\ny\r");
    take(&r, "z\n");
    assert_string_equal(mu_buf_cstr(&r.out), "10%\n20%\n\nx\ny\nz\n");
    end(&r);
}

/* Every cut of a text into three pieces. */
static void test_where_a_stream_is_cut_does_not_matter(void **state)
{
    static const char text[] = "a\nbc\r\n\r\rword x\n\n\nno end";
    static const char want[] = ">a\n>bc\n>\n>\n>word x\n>\n>\n>no end\n";
    static const struct mu_str words[] = {{"rd x", 4}};
    size_t n = sizeof text - 1;
    (void)state;
    for (size_t i = 0; i <= n; i++) {
        for (size_t k = i; k <= n; k++) {
            struct rig r;
            begin(&r, mu_mem_default(), ">");
            r.lines.words = words;
            r.lines.word_count = 1;
            lines_take(&r.lines, text, i, &r.out, &r.copy);
            lines_take(&r.lines, text + i, k - i, &r.out, &r.copy);
            lines_take(&r.lines, text + k, n - k, &r.out, &r.copy);
            lines_end(&r.lines, &r.out, &r.copy);
            assert_string_equal(mu_buf_cstr(&r.out), want);
            assert_string_equal(mu_buf_cstr(&r.copy), ">word x\n");
            end(&r);
        }
    }
}

static void test_words_pick_lines_out_and_an_empty_one_picks_all(void **state)
{
    static const struct mu_str words[] = {{"apple", 5}, {"x,y", 3}};
    static const struct mu_str all[] = {{"", 0}};
    struct rig r;
    (void)state;
    begin(&r, mu_mem_default(), ":");
    r.lines.words = words;
    r.lines.word_count = 2;
    lines_take(&r.lines, "an apple\npear\nx,y\nappl\n", 23, NULL, &r.copy);
    assert_string_equal(mu_buf_cstr(&r.copy), ":an apple\n:x,y\n");
    r.lines.words = all;
    r.lines.word_count = 1;
    take(&r, "pear\n\n");
    assert_string_equal(mu_buf_cstr(&r.copy), ":an apple\n:x,y\n:pear\n:\n");
    end(&r);
}

static void test_a_line_without_end_leaves_in_pieces(void **state)
{
    static char much[LINES_PART_BYTES_MAX / 2];
    struct rig r;
    (void)state;
    memset(much, 'm', sizeof much);
    begin(&r, mu_mem_default(), "p");
    for (int i = 0; i < 5; i++)
        lines_take(&r.lines, much, sizeof much, &r.out, NULL);
    lines_end(&r.lines, &r.out, NULL);
    assert_int_equal(lines_count(r.out.p, r.out.n), 2);
    assert_int_equal(r.out.n, 5 * sizeof much + 4); /* Nothing is missing: two prefixes, two \n. */
    end(&r);
}

static void test_bytes_pass_as_they_are(void **state)
{
    static const char text[] = "\xff\x00\x1b[0m\n";
    struct rig r;
    (void)state;
    begin(&r, mu_mem_default(), "");
    lines_take(&r.lines, text, sizeof text - 1, &r.out, NULL);
    assert_int_equal(r.out.n, sizeof text - 1);
    assert_memory_equal(r.out.p, text, sizeof text - 1);
    end(&r);
}

/* Without memory lines may be missing, but it shows, and nothing breaks. */
static void test_missing_memory_shows(void **state)
{
    (void)state;
    for (size_t at = 1; at < 8; at++) {
        struct mu_mem_failing f;
        struct rig r;
        mu_mem_failing_init(&f, at);
        begin(&r, &f.mem, "prefix");
        take(&r, "begun ");
        take(&r, "and ended\nmore\n");
        lines_end(&r.lines, &r.out, &r.copy);
        bool whole = strcmp(mu_buf_cstr(&r.out), "prefixbegun and ended\nprefixmore\n") == 0;
        assert_true(whole || f.calls >= at);
        end(&r);
        assert_int_equal(f.live, 0);
    }
}

static void test_last_lines_of_a_tail(void **state)
{
    static const char t[] = "ut\nb\nc\nd\n";
    (void)state;
    assert_int_equal(lines_last(t, 9, 2, false), 5);
    assert_int_equal(lines_last(t, 8, 2, false), 5);
    assert_int_equal(lines_last(t, 9, 4, false), 0);
    assert_int_equal(lines_last(t, 9, 9, false), 0);
    assert_int_equal(lines_last(t, 9, 9, true), 3); /* "ut" is the rest of a line. */
    assert_int_equal(lines_last("only", 4, 3, true), 0);
    assert_int_equal(lines_last("", 0, 3, false), 0);
}

static void show_is(const char *text, size_t max, size_t cap, const char *want)
{
    char dst[64];
    assert_true(cap <= sizeof dst);
    lines_show(text, strlen(text), max, false, dst, cap);
    assert_string_equal(dst, want);
}

static void test_last_lines_are_fit_to_be_shown(void **state)
{
    (void)state;
    show_is("", 3, 64, "");
    show_is("a\nb\nc\n", 2, 64, "b\nc\n");
    show_is("no end", 2, 64, "no end");
    show_is("a\tb\x1b[2J\x7f", 2, 64, "a\tb\\x1b[2J\\x7f");
    show_is("gr\xc3\xbc\xc3\x9f\n", 1, 64, "gr\xc3\xbc\xc3\x9f\n");
    show_is("\xff|\xc3|\xc2\x9b|", 1, 64, "?|?|?|");          /* The last is CSI of 8 bits. */
    show_is("10%\r20%\r30%\r\nend\r\n", 2, 64, "30%\nend\n"); /* As a terminal shows it. */
    show_is("10%\r20%", 2, 64, "20%");
    show_is("x\r", 2, 64, "x");
    show_is("0123456789\n", 1, 8, "456789\n"); /* What fits is the end. */
    show_is("ab\x01", 1, 6, "b\\x01");
    show_is("ab\x01", 1, 4, ""); /* Nothing is shown in part. */
}

static void test_template(void **state)
{
    static const char *const rows[][2] = {
        {"<${role_name}/${rank}/${local_rank}> ", "<tr/12/3> "},
        {"$rank:$local_rank|", "12:3|"},
        {"$$rank $rankx ${rank $ ${} $1", "$rank $rankx ${rank $ ${} $1"},
        {"$unknown ${unknown}", "$unknown ${unknown}"},
        {"", ""},
        {"$", "$"}};
    (void)state;
    for (size_t i = 0; i < MU_COUNT(rows); i++) {
        struct mu_buf b;
        mu_buf_init(&b, mu_mem_default());
        lines_fill_template(&b, rows[i][0],
                            &(struct lines_names){.role_name = "tr", .rank = 12, .local_rank = 3});
        assert_string_equal(mu_buf_cstr(&b), rows[i][1]);
        mu_buf_fini(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_line_gets_one_prefix_and_pieces_are_one_line),
        cmocka_unit_test(test_carriage_returns_end_lines_too),
        cmocka_unit_test(test_where_a_stream_is_cut_does_not_matter),
        cmocka_unit_test(test_words_pick_lines_out_and_an_empty_one_picks_all),
        cmocka_unit_test(test_a_line_without_end_leaves_in_pieces),
        cmocka_unit_test(test_bytes_pass_as_they_are),
        cmocka_unit_test(test_missing_memory_shows),
        cmocka_unit_test(test_last_lines_of_a_tail),
        cmocka_unit_test(test_last_lines_are_fit_to_be_shown),
        cmocka_unit_test(test_template),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
