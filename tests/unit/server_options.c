/* rendezvous/server/options.h: each kind of value, what is refused and in which words, and what one
 * value says about another. */
#include "tests/unit/unit.h"

#include <errno.h>

#include "base/check.h"
#include "base/limits.h"
#include "rendezvous/server/options.h"

#define WORDS_MAX 8
#define SEC INT64_C(1000000000)

/* `line`: words, '|' between. What is read borrows from `text`. */
struct command {
    char text[256];
    struct srv_options o;
    struct mu_err err;
};

static int parse(struct command *c, const char *line)
{
    char program[] = "rdzv-server";
    char *words[WORDS_MAX + 1] = {program};
    int count = 1;
    memset(c, 0, sizeof *c);
    (void)snprintf(c->text, sizeof c->text, "%s", line);
    for (char *p = c->text; *line != '\0' && p != NULL; count++) {
        assert_true(count < WORDS_MAX);
        words[count] = p;
        p = strchr(p, '|');
        if (p != NULL)
            *p++ = '\0';
    }
    return srv_options_parse(count, words, &c->o, &c->err);
}

static void is_refused(const char *line, const char *says)
{
    struct command c;
    int r = parse(&c, line);
    if (r != -EINVAL && r != -ERANGE)
        fail_msg("%s: %d", line, r);
    assert_has(c.err.msg, says);
    assert_null(strchr(c.err.msg, '\n'));
}

static void quarantine_is(const char *line, uint32_t failures, int64_t window_s)
{
    struct command c;
    if (parse(&c, line) != 0)
        fail_msg("%s: %s", line, c.err.msg);
    assert_int_equal(c.o.quarantine.failures, failures);
    assert_int_equal(c.o.quarantine.window_ns, window_s * SEC);
}

static void test_without_a_word_all_is_as_the_help_says(void **state)
{
    struct command c;
    (void)state;
    assert_int_equal(parse(&c, ""), 0);
    assert_int_equal(c.o.port, 29500);
    assert_string_equal(c.o.host, "");
    assert_int_equal(c.o.lease_ns, 3 * SEC);
    assert_int_equal(c.o.first_bytes_ns, 30 * SEC);
    assert_int_equal(c.o.connections_max, 65536);
    assert_int_equal(c.o.key_bytes_max, 8 << 10);
    assert_int_equal(c.o.value_bytes_max, 8 << 20);
    assert_true(c.o.store_memory_max == UINT64_C(4) << 30);
    assert_int_equal(c.o.unread_max, 64 << 20);
    assert_int_equal(c.o.log_level, MU_INFO);
    assert_int_equal(c.o.log_format, MU_LOG_TEXT);
    assert_null(c.o.state_dir);
    assert_null(c.o.token_file);
    assert_false(c.o.read_needs_token || c.o.open_store || c.o.help || c.o.version);
    quarantine_is("", 3, 3600);
}

static void test_a_quarantine_is_a_number_and_a_window_with_its_unit_or_off(void **state)
{
    static const char *const wrong[] = {
        "",
        "3",
        "3/",
        "/1h",
        "3/h",
        "3/1",
        "0/1h",
        "33/1h",
        "-1/h",
        "3/0h",
        "3/-1h",
        "3/1w",
        "3/1h ",
        "3/1hh",
        "3/1.5h",
        "OFF",
        "3//h",
        "3/1/",
        "a/1h",
        "3/xh",
        "3/1H",
        "3 1h",
        "123456789012/1h",
        "3/36501s",
    };
    char line[64];
    (void)state;
    quarantine_is("--quarantine=5/90s", 5, 90);
    quarantine_is("--quarantine=1/30m", 1, 1800);
    quarantine_is("--quarantine|32/2d", 32, 2 * 86400);
    quarantine_is("--quarantine=2/36500d", 2, INT64_C(36500) * 86400);
    quarantine_is("--quarantine=off", 0, 0);
    quarantine_is("--quarantine=off|--quarantine=4/1h", 4, 3600);
    assert_int_equal(MU_QUARANTINE_FAILURES_MAX, 32); /* As the rows have it. */
    for (size_t i = 0; i < MU_COUNT(wrong); i++) {
        (void)snprintf(line, sizeof line, "--quarantine=%s", wrong[i]);
        is_refused(line, "is not N/WINDOW with N from 1 to 32");
    }
}

static void test_values_of_each_kind_are_read_and_have_their_limits(void **state)
{
    struct command c;
    (void)state;
    assert_int_equal(
        parse(&c, "--port=0|--lease|0.5|--max-key-bytes=64K|--read=token|--open-store"), 0);
    assert_int_equal(c.o.port, 0);
    assert_int_equal(c.o.lease_ns, SEC / 2);
    assert_int_equal(c.o.key_bytes_max, 64 << 10);
    assert_true(c.o.read_needs_token && c.o.open_store);
    assert_int_equal(parse(&c, "--log-level=debug|--log-format=json|--state-dir=|-h|--version"), 0);
    assert_int_equal(c.o.log_level, MU_DEBUG);
    assert_int_equal(c.o.log_format, MU_LOG_JSON);
    assert_string_equal(c.o.state_dir, "");
    assert_true(c.o.help && c.o.version);
    assert_int_equal(parse(&c, "--read=token|--read=anyone|--recovery=0"), 0);
    assert_false(c.o.read_needs_token);
    assert_int_equal(c.o.recovery_ns, 0);
    is_refused("--port=65536", "--port");
    is_refused("--port=", "--port");
    is_refused("--lease=0.01", "--lease");
    is_refused("--lease=1d", "--lease");
    is_refused("--max-connections=0", "--max-connections");
    is_refused("--max-store-memory=1K", "--max-store-memory");
    is_refused("--max-value-bytes=2T", "--max-value-bytes");
    is_refused("--read=all", "'all' is not anyone or token");
    is_refused("--log-level=loud", "--log-level");
    is_refused("--log-format=xml", "'xml' is not text or json");
}

static void test_a_word_that_is_no_option_is_named(void **state)
{
    (void)state;
    is_refused("29500", "\"29500\" is not an option: every one begins with --");
    is_refused("--prot=1", "is not an option of rdzv-server");
    is_refused("--por=1", "is not an option of rdzv-server");
    is_refused("--", "is not an option");
    is_refused("--open-store=1", "--open-store takes no value");
    is_refused("--lease=1|--port", "--port needs a value: --port PORT");
}

static void test_what_is_left_open_follows_from_the_lease(void **state)
{
    struct command c;
    char host[64];
    (void)state;
    assert_int_equal(parse(&c, "--lease=9|--host=[::1]"), 0);
    assert_int_equal(srv_options_check(&c.o, host, sizeof host, &c.err), 0);
    assert_int_equal(c.o.beat_ns, 3 * SEC);
    assert_int_equal(c.o.recovery_ns, 9 * SEC);
    assert_int_equal(c.o.fence_ns, 600 * SEC);
    assert_string_equal(host, "::1");
    assert_int_equal(parse(&c, "--lease=900|--host=*"), 0);
    assert_int_equal(srv_options_check(&c.o, host, sizeof host, &c.err), 0);
    assert_int_equal(c.o.fence_ns, 900 * SEC);
    assert_string_equal(host, "*");
}

static void test_values_that_do_not_go_together_are_refused(void **state)
{
    static const struct {
        const char *line;
        const char *says;
    } rows[] = {
        {"--lease=3|--beat=3", "--beat: 3 s is not shorter than the lease of 3 s"},
        {"--lease=3|--fence=2", "--fence: 2 s is shorter than the lease of 3 s"},
        {"--host=localhost", "--host: \"localhost\" is not a numeric address"},
        {"--host=[::1", "is not a numeric address"},
        {"--host=300.1.1.1", "is not a numeric address"},
    };
    char host[64];
    (void)state;
    for (size_t i = 0; i < MU_COUNT(rows); i++) {
        struct command c;
        assert_int_equal(parse(&c, rows[i].line), 0);
        assert_int_equal(srv_options_check(&c.o, host, sizeof host, &c.err), -EINVAL);
        assert_has(c.err.msg, rows[i].says);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_without_a_word_all_is_as_the_help_says),
        cmocka_unit_test(test_a_quarantine_is_a_number_and_a_window_with_its_unit_or_off),
        cmocka_unit_test(test_values_of_each_kind_are_read_and_have_their_limits),
        cmocka_unit_test(test_a_word_that_is_no_option_is_named),
        cmocka_unit_test(test_what_is_left_open_follows_from_the_lease),
        cmocka_unit_test(test_values_that_do_not_go_together_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
