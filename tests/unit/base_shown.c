/* base/shown.h: a terminal obeys nothing that came from another process. */
#include "tests/unit/unit.h"

#include "base/shown.h"

static void shown_is(const char *text, const char *kept, const char *want)
{
    struct mu_buf b;
    mu_buf_init(&b, mu_mem_default());
    assert_int_equal(mu_buf_add_shown(&b, mu_str_of(text, strlen(text)), kept), 0);
    assert_string_equal(mu_buf_cstr(&b), want);
    mu_buf_fini(&b);
}

static void test_what_a_terminal_would_obey_is_escaped(void **state)
{
    (void)state;
    shown_is("plain d\xc3\xa4ta \xe2\x82\xac \xf0\x9f\x98\x80", "",
             "plain d\xc3\xa4ta \xe2\x82\xac \xf0\x9f\x98\x80");
    shown_is("\x1b[2Ja\rb\x7f\x07", "", "\\x1b[2Ja\\x0db\\x7f\\x07");
    shown_is("a\xc2\x9b"
             "2J",
             "", "a\\xc2\\x9b2J");            /* C1: CSI in two bytes. */
    shown_is("a\xc2\xa0z", "", "a\xc2\xa0z"); /* A blank that does not break is none. */
    shown_is("a\x9b"
             "2J\xff\xe2\x82",
             "", "a\\x9b2J\\xff\\xe2\\x82");
    shown_is("a\nb\tc\rd", "\n\t", "a\nb\tc\\x0dd");
    shown_is("", "\n", "");
}

static void test_a_sentence_is_cleaned_in_its_place(void **state)
{
    (void)state;
    char text[] = "one\ntwo\x1b[31m d\xc3\xa4ta \xc2\x9b cut \xc3";
    mu_clean(text);
    assert_string_equal(text, "one two [31m d\xc3\xa4ta    cut  ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_a_terminal_would_obey_is_escaped),
        cmocka_unit_test(test_a_sentence_is_cleaned_in_its_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
