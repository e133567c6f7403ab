/* agent/service/record.h: output as records and back. */
#include "tests/unit/unit.h"

#include "agent/service/record.h"
#include "base/check.h"

static const struct record_now now = {
    .at = "2026-11-30T06:46:42.123Z", .unix_ms = 1796021202123, .host = "n1"};

struct rig {
    struct record r;
    struct mu_buf out;
    uint32_t count;
    size_t read;
};

static void begin(struct rig *g, int channel)
{
    *g = (struct rig){0};
    record_init(&g->r, mu_mem_default(), channel);
    mu_buf_init(&g->out, mu_mem_default());
}

static void end(struct rig *g)
{
    assert_int_equal(g->read, g->out.n);
    record_fini(&g->r);
    mu_buf_fini(&g->out);
}

static void feed(struct rig *g, const char *p, size_t n)
{
    g->count += record_take(&g->r, &now, p, n, &g->out);
}

/* The next record; its decoded text in `text`. */
static struct record_head next(struct rig *g, struct mu_buf *text)
{
    struct record_head h;
    const char *p = g->out.p + g->read;
    const char *line_end = memchr(p, '\n', g->out.n - g->read);
    assert_non_null(line_end);
    assert_true(record_read(mu_str_of(p, (size_t)(line_end - p)), &h));
    g->read += (size_t)(line_end - p) + 1;
    mu_buf_reset(text);
    record_text(h.text, text);
    assert_int_equal(h.unix_ms, now.unix_ms);
    return h;
}

static void test_ranks_and_texts_come_back_wherever_the_stream_is_cut(void **state)
{
    (void)state;
    static const char stream[] = "\x1e"
                                 "0"
                                 "\x1e"
                                 "hello \"you\"\\\n"
                                 "agent's own\r\n"
                                 "\x1e"
                                 "12"
                                 "\x1e"
                                 "\n"
                                 "\x1e"
                                 "x\x1e"
                                 "no mark\n"
                                 "\x1e"
                                 "3"
                                 "\x1e"
                                 "caf\xc3\xa9\ttab \x01 end";
    static const struct {
        int32_t rank;
        const char *text;
    } wanted[] = {{0, "hello \"you\"\\"},
                  {-1, "agent's own"},
                  {12, ""},
                  {-1, "\x1ex\x1eno mark"},
                  {3, "caf\xc3\xa9\ttab \x01 end"}};
    struct mu_buf text;
    mu_buf_init(&text, mu_mem_default());
    for (size_t cut = 0; cut < sizeof stream; cut++) {
        struct rig g;
        begin(&g, 2);
        feed(&g, stream, cut);
        feed(&g, stream + cut, sizeof stream - 1 - cut);
        g.count += record_end(&g.r, &now, &g.out);
        assert_int_equal(g.count, MU_COUNT(wanted));
        for (size_t i = 0; i < MU_COUNT(wanted); i++) {
            struct record_head h = next(&g, &text);
            assert_int_equal(h.rank, wanted[i].rank);
            assert_int_equal(h.channel, 2);
            assert_string_equal(mu_buf_cstr(&text), wanted[i].text);
        }
        end(&g);
    }
    mu_buf_fini(&text);
}

static void test_long_lines_leave_in_pieces_that_hold_whole_characters(void **state)
{
    (void)state;
    struct mu_buf text;
    struct mu_buf all;
    struct rig g;
    mu_buf_init(&text, mu_mem_default());
    mu_buf_init(&all, mu_mem_default());
    begin(&g, 1);
    feed(&g,
         "\x1e"
         "5"
         "\x1e"
         "ab",
         5);
    for (int i = 0; i < 20000; i++)
        feed(&g, "\xe2\x82\xac", 3);
    feed(&g, "\nnext\n", 6);
    uint32_t pieces = g.count;
    assert_in_range(pieces, 5, 6);
    for (uint32_t i = 0; i + 1 < pieces; i++) {
        struct record_head h = next(&g, &text);
        assert_int_equal(h.rank, 5);
        assert_true(text.n <= RECORD_TEXT_BYTES);
        assert_null(strstr(mu_buf_cstr(&text), "\xef\xbf\xbd"));
        (void)mu_buf_add(&all, text.p, text.n);
    }
    assert_int_equal(all.n, 2 + 60000);
    assert_int_equal(next(&g, &text).rank, -1);
    assert_string_equal(mu_buf_cstr(&text), "next");
    end(&g);
    mu_buf_fini(&text);
    mu_buf_fini(&all);
}

static void test_bytes_that_are_no_text_are_shown_as_such(void **state)
{
    (void)state;
    struct mu_buf text;
    struct rig g;
    mu_buf_init(&text, mu_mem_default());
    begin(&g, 1);
    feed(&g,
         "a\0b\xff"
         "c\n",
         6);
    (void)next(&g, &text);
    assert_string_equal(mu_buf_cstr(&text), "a\xef\xbf\xbd"
                                            "b\xef\xbf\xbd"
                                            "c");
    end(&g);
    mu_buf_fini(&text);
}

static void test_a_junction_is_known_as_one_and_other_text_is_not(void **state)
{
    (void)state;
    struct mu_buf text;
    struct rig g;
    mu_buf_init(&text, mu_mem_default());
    begin(&g, 1);
    record_say(&g.out, &now, 77, "[77 lines]");
    feed(&g, "\"lines_before\":1\n", 17);
    assert_true(next(&g, &text).is_junction);
    assert_false(next(&g, &text).is_junction);
    struct record_head h;
    assert_false(record_read(mu_str_of("{}", 2), &h));
    assert_false(record_read(mu_str_of("half of a rec", 13), &h));
    end(&g);
    mu_buf_fini(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_and_texts_come_back_wherever_the_stream_is_cut),
        cmocka_unit_test(test_long_lines_leave_in_pieces_that_hold_whole_characters),
        cmocka_unit_test(test_bytes_that_are_no_text_are_shown_as_such),
        cmocka_unit_test(test_a_junction_is_known_as_one_and_other_text_is_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
