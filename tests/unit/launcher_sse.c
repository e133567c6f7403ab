/* Server-sent events as they arrive: in any pieces, with any line ends, and with limits. */
#include "launcher/sse.h"

#include <errno.h>

#include "tests/unit/unit.h"

static struct cli_sse sse;
static struct mu_buf got;

static int setup(void **state)
{
    (void)state;
    cli_sse_init(&sse, mu_mem_default(), 64);
    mu_buf_init(&got, mu_mem_default());
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    cli_sse_fini(&sse);
    mu_buf_fini(&got);
    return 0;
}

static int feed(const char *text)
{
    return cli_sse_feed(&sse, text, strlen(text), &got);
}

static void an_event_is_its_data(void **state)
{
    (void)state;
    assert_int_equal(feed("retry: 1000\n\nid: 1\nevent: status\ndata: {\"a\":1}\n"), 0);
    assert_int_equal(feed("\n"), 1);
    assert_string_equal(mu_buf_cstr(&got), "{\"a\":1}");
}

static void it_comes_in_any_pieces(void **state)
{
    static const char text[] = ":\n\ndata: one\r\nid:7\ndata:two\ndata\n\n";
    int count = 0;
    (void)state;
    for (size_t i = 0; i + 1 < sizeof text; i++)
        count += cli_sse_feed(&sse, text + i, 1, &got);
    assert_int_equal(count, 1);
    assert_string_equal(mu_buf_cstr(&got), "one\ntwo\n");
}

static void the_last_of_several_counts(void **state)
{
    (void)state;
    assert_int_equal(feed("data: 1\n\ndata: 2\n\ndatum: 4\n\n:\n\ndata: 3"), 2);
    assert_string_equal(mu_buf_cstr(&got), "2");
    assert_int_equal(feed("3\n\n"), 1);
    assert_string_equal(mu_buf_cstr(&got), "33");
}

static void it_has_a_limit(void **state)
{
    char text[65];
    (void)state;
    memset(text, 'x', sizeof text);
    assert_int_equal(cli_sse_feed(&sse, "data:", 5, &got), 0);
    assert_int_equal(cli_sse_feed(&sse, text, sizeof text, &got), -EMSGSIZE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(an_event_is_its_data, setup, teardown),
        cmocka_unit_test_setup_teardown(it_comes_in_any_pieces, setup, teardown),
        cmocka_unit_test_setup_teardown(the_last_of_several_counts, setup, teardown),
        cmocka_unit_test_setup_teardown(it_has_a_limit, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
