/* Promises of base/parse.h: the whole text or a sentence that names the thing and says what would
 * be right; nothing is written on failure. */
#include <errno.h>
#include <inttypes.h>

#include "tests/unit/unit.h"

#include "base/parse.h"

#define SEC_NS INT64_C(1000000000)
#define DAY_NS (86400 * SEC_NS)
#define MARK INT64_C(-777)

struct int_row {
    const char *text;
    int64_t min;
    int64_t max;
    int code;
    int64_t value;
    const char *sentence;
};

static const struct int_row int_rows[] = {
    {"0", 0, 10, 0, 0, NULL},
    {"10", 0, 10, 0, 10, NULL},
    {" 7\t", 0, 10, 0, 7, NULL},
    {"+7", 0, 10, 0, 7, NULL},
    {"007", 0, 10, 0, 7, NULL},
    {"-5", -5, 10, 0, -5, NULL},
    {"9223372036854775807", 0, INT64_MAX, 0, INT64_MAX, NULL},
    {"-9223372036854775807", INT64_MIN, 0, 0, -INT64_MAX, NULL},
    {"11", 0, 10, -ERANGE, 0, "--x: 11 is out of range: 0 to 10 is allowed"},
    {"-1", 0, 10, -ERANGE, 0, "--x: -1 is out of range: 0 to 10 is allowed"},
    {"9223372036854775808", 0, INT64_MAX, -ERANGE, 0, "is out of range"},
    {"99999999999999999999999999", 0, 10, -ERANGE, 0, "--x: 99999999999999999999999999 is out"},
    {"", 0, 10, -EINVAL, 0, "--x: \"\" is not a whole number (0 to 10)"},
    {" ", 0, 10, -EINVAL, 0, "is not a whole number"},
    {"-", 0, 10, -EINVAL, 0, "--x: \"-\" is not a whole number (0 to 10)"},
    {"+", 0, 10, -EINVAL, 0, "is not a whole number"},
    {"--1", -5, 10, -EINVAL, 0, "is not a whole number"},
    {"- 1", -5, 10, -EINVAL, 0, "is not a whole number"},
    {"1 2", 0, 99, -EINVAL, 0, "--x: \"1 2\" is not a whole number"},
    {"1x", 0, 10, -EINVAL, 0, "\"1x\""},
    {"0x10", 0, 99, -EINVAL, 0, "\"0x10\""},
    {"1.5", 0, 10, -EINVAL, 0, "\"1.5\""},
    {"1e3", 0, 9999, -EINVAL, 0, "\"1e3\""},
    {"a\x1b[2J", 0, 10, -EINVAL, 0, "\"a\\x1b[2J\""},
    {"\xd9\xa1", 0, 10, -EINVAL, 0, "\\xd9\\xa1"},
};

static void test_whole_numbers(void **state)
{
    (void)state;
    for (size_t i = 0; i < MU_COUNT(int_rows); i++) {
        const struct int_row *row = &int_rows[i];
        struct mu_err err = {0};
        int64_t v = MARK;
        int r = mu_parse_i64(row->text, row->min, row->max, "--x", &v, &err);
        if (r != row->code)
            fail_msg("\"%s\": %d, wanted %d (%s)", row->text, r, row->code, err.msg);
        assert_true(v == (r == 0 ? row->value : MARK));
        if (row->sentence != NULL)
            assert_has(err.msg, row->sentence);
        assert_int_equal(mu_parse_i64(row->text, row->min, row->max, "--x", &v, NULL), row->code);
    }
}

static void test_unsigned_keeps_its_range(void **state)
{
    (void)state;
    struct mu_err err = {0};
    uint32_t v = 5;
    assert_int_equal(mu_parse_u32("4294967295", 0, UINT32_MAX, "n", &v, &err), 0);
    assert_true(v == UINT32_MAX);
    assert_int_equal(mu_parse_u32("4294967296", 0, UINT32_MAX, "n", &v, &err), -ERANGE);
    assert_int_equal(mu_parse_u32("-1", 0, UINT32_MAX, "n", &v, &err), -ERANGE);
    assert_int_equal(mu_parse_u32("x", 0, 1, "n", &v, &err), -EINVAL);
    assert_true(v == UINT32_MAX);
}

static const struct int_row seconds_rows[] = {
    {"30", 0, INT64_MAX, 0, INT64_C(30000000000), NULL},
    {"0", 0, INT64_MAX, 0, 0, NULL},
    {"0.25", 0, INT64_MAX, 0, INT64_C(250000000), NULL},
    {"0.1", 0, INT64_MAX, 0, INT64_C(100000000), NULL},
    {".5", 0, INT64_MAX, 0, INT64_C(500000000), NULL},
    {"5.", 0, INT64_MAX, 0, INT64_C(5000000000), NULL},
    {" 1.000000001 ", 0, INT64_MAX, 0, INT64_C(1000000001), NULL},
    {"9223372036.854775807", 0, INT64_MAX, 0, INT64_MAX, NULL},
    {"9223372036.854775808", 0, INT64_MAX, -ERANGE, 0, "is out of range"},
    {"99999999999999999999", 0, INT64_MAX, -ERANGE, 0, "is out of range"},
    {"0", 1, INT64_C(1000000000), -ERANGE, 0, "--t: 0 s is out of range: 1e-09 to 1 s is allowed"},
    {"2", 0, INT64_C(1000000000), -ERANGE, 0, "--t: 2 s is out of range: 0 to 1 s is allowed"},
    {"", 0, INT64_MAX, -EINVAL, 0, "--t: \"\" is not a number of seconds (as in 30 or 0.25)"},
    {".", 0, INT64_MAX, -EINVAL, 0, "not a number of seconds"},
    {"-1", 0, INT64_MAX, -EINVAL, 0, "--t: \"-1\" is not a number of seconds"},
    {"1s", 0, INT64_MAX, -EINVAL, 0, "\"1s\""},
    {"1.2.3", 0, INT64_MAX, -EINVAL, 0, "\"1.2.3\""},
    {"1.0000000001", 0, INT64_MAX, -EINVAL, 0, "not a number"},
    {"nan", 0, INT64_MAX, -EINVAL, 0, "not a number"},
    {"inf", 0, INT64_MAX, -EINVAL, 0, "not a number"},
    {"1e2", 0, INT64_MAX, -EINVAL, 0, "not a number"},
};

static void test_seconds(void **state)
{
    (void)state;
    for (size_t i = 0; i < MU_COUNT(seconds_rows); i++) {
        const struct int_row *row = &seconds_rows[i];
        struct mu_err err = {0};
        int64_t v = MARK;
        int r = mu_parse_seconds(row->text, row->min, row->max, "--t", &v, &err);
        if (r != row->code)
            fail_msg("\"%s\": %d, wanted %d (%s)", row->text, r, row->code, err.msg);
        assert_true(v == (r == 0 ? row->value : MARK));
        if (row->sentence != NULL)
            assert_has(err.msg, row->sentence);
    }
}

static void test_spans_have_a_unit(void **state)
{
    (void)state;
    static const struct int_row rows[] = {
        {"90s", 1, 1000 * DAY_NS, 0, 90 * SEC_NS, NULL},
        {" 15m ", 1, 1000 * DAY_NS, 0, 900 * SEC_NS, NULL},
        {"1.5h", 1, 1000 * DAY_NS, 0, 5400 * SEC_NS, NULL},
        {"2d", 1, 1000 * DAY_NS, 0, 2 * DAY_NS, NULL},
        {"0.25s", 1, DAY_NS, 0, SEC_NS / 4, NULL},
        {"", 1, DAY_NS, -EINVAL, 0,
         "--t: \"\" is not a time with its unit (as in 90s, 15m, 1h, 2d)"},
        {"h", 1, DAY_NS, -EINVAL, 0, "\"h\" is not a time"},
        {"60", 1, DAY_NS, -EINVAL, 0, "\"60\" is not a time"},
        {"1x", 1, DAY_NS, -EINVAL, 0, "\"1x\" is not a time"},
        {"1hs", 1, DAY_NS, -EINVAL, 0, NULL},
        {"1H", 1, DAY_NS, -EINVAL, 0, NULL},
        {"-1h", 1, DAY_NS, -EINVAL, 0, NULL},
        {"1 1h", 1, DAY_NS, -EINVAL, 0, NULL},
        {".h", 1, DAY_NS, -EINVAL, 0, NULL},
        {"0s", 1, DAY_NS, -ERANGE, 0, "--t: \"0s\" is out of range: 1e-09 s to 1 d is allowed"},
        {"25h", 1, DAY_NS, -ERANGE, 0, NULL},
        {"9223372036d", 1, INT64_MAX, -ERANGE, 0, NULL}, /* Must not wrap. */
        {"99999999999999999999d", 1, INT64_MAX, -ERANGE, 0, NULL},
        {"1111111111111111111111111111111111111h", 1, DAY_NS, -EINVAL, 0, NULL},
    };
    for (size_t i = 0; i < MU_COUNT(rows); i++) {
        const struct int_row *row = &rows[i];
        struct mu_err err = {0};
        int64_t v = MARK;
        int r = mu_parse_span(row->text, row->min, row->max, "--t", &v, &err);
        if (r != row->code)
            fail_msg("\"%s\": %d, wanted %d (%s)", row->text, r, row->code, err.msg);
        assert_true(v == (r == 0 ? row->value : MARK));
        if (row->sentence != NULL)
            assert_has(err.msg, row->sentence);
    }
}

static void test_spans_are_written_as_people_do(void **state)
{
    (void)state;
    static const struct {
        int64_t ms;
        const char *plain, *apart;
    } rows[] = {{3600000, "1h", "1 h"},         {90000, "90s", "90 s"},  {900000, "15m", "15 min"},
                {172800000, "2d", "2 d"},       {1500, "1.5s", "1.5 s"}, {1, "0.001s", "0.001 s"},
                {86401000, "86401s", "86401 s"}};
    char buf[MU_SPAN_BYTES];
    for (size_t i = 0; i < MU_COUNT(rows); i++) {
        assert_string_equal(mu_span_text(rows[i].ms, false, buf), rows[i].plain);
        assert_string_equal(mu_span_text(rows[i].ms, true, buf), rows[i].apart);
    }
}

struct bytes_row {
    const char *text;
    int code;
    uint64_t value;
};

static const struct bytes_row bytes_rows[] = {
    {"4096", 0, 4096},
    {"64K", 0, 65536},
    {"64k", 0, 65536},
    {"8M", 0, 8388608},
    {" 1G ", 0, 1073741824},
    {"2T", 0, 2199023255552},
    {"0", 0, 0},
    {"8388607T", -ERANGE, 0},  /* Fits 64 bits, passes the limit. */
    {"16777216T", -ERANGE, 0}, /* 2^64: must not wrap to 0. */
    {"16777217T", -ERANGE, 0},
    {"99999999999999999999", -ERANGE, 0},
    {"", -EINVAL, 0},
    {"K", -EINVAL, 0},
    {"-1", -EINVAL, 0},
    {"1KB", -EINVAL, 0},
    {"1 K", -EINVAL, 0},
    {"1.5G", -EINVAL, 0},
    {"1X", -EINVAL, 0},
};

static void test_sizes(void **state)
{
    (void)state;
    for (size_t i = 0; i < MU_COUNT(bytes_rows); i++) {
        const struct bytes_row *row = &bytes_rows[i];
        struct mu_err err = {0};
        uint64_t v = 7;
        int r = mu_parse_bytes(row->text, 0, UINT64_C(1) << 62, "--m", &v, &err);
        if (r != row->code)
            fail_msg("\"%s\": %d, wanted %d (%s)", row->text, r, row->code, err.msg);
        assert_true(v == (r == 0 ? row->value : 7));
        if (r == -EINVAL)
            assert_has(err.msg, "is not a size (as in 4096, 64K, 8M, 1G)");
        if (r == -ERANGE)
            assert_has(err.msg, "is out of range: 0 to 4611686018427387904 is allowed");
    }
    uint64_t v = 0;
    struct mu_err err = {0};
    assert_int_equal(mu_parse_bytes("1K", 2048, 4096, "--m", &v, &err), -ERANGE);
    assert_string_equal(err.msg, "--m: \"1K\" bytes is out of range: 2048 to 4096 is allowed");
}

struct endpoint_row {
    const char *text;
    int default_port;
    const char *host; /* NULL: refused. */
    int port;
    bool has_port;
    const char *sentence;
};

static const struct endpoint_row endpoint_rows[] = {
    {"n1", 29500, "n1", 29500, false, NULL},
    {"n1:1234", 29500, "n1", 1234, true, NULL},
    {" n1:1 ", 29500, "n1", 1, true, NULL},
    {"localhost:0", 29400, "localhost", 0, true, NULL},
    {"a_b-c.d:65535", 1, "a_b-c.d", 65535, true, NULL},
    {"10.0.0.1", 7, "10.0.0.1", 7, false, NULL},
    {"10.0.0.1:80", 7, "10.0.0.1", 80, true, NULL},
    {"[::1]", 7, "::1", 7, false, NULL},
    {"[::1]:80", 7, "::1", 80, true, NULL},
    {"[fe80::1%eth0]:80", 7, "fe80::1%eth0", 80, true, NULL},
    {"::1", 7, "::1", 7, false, NULL},
    {"::", 7, "::", 7, false, NULL},
    {"fe80::", 7, "fe80::", 7, false, NULL},
    {"fe80::1%eth0", 7, "fe80::1%eth0", 7, false, NULL},
    {"::ffff:10.0.0.1", 7, "::ffff:10.0.0.1", 7, false, NULL},
    {"::1:29991", 7, "::1", 29991, true, NULL},
    {"2001:db8::aaaa", 7, "2001:db8::aaaa", 7, false, NULL},
    {"n1", -1, NULL, 0, false, "--e: \"n1\" has no port: write HOST:PORT"},
    {"", 7, NULL, 0, false, "--e: \"\" is not HOST, HOST:PORT or [IPv6]:PORT"},
    {":80", 7, NULL, 0, false, "is not HOST, HOST:PORT or [IPv6]:PORT"},
    {"[]", 7, NULL, 0, false, "is not HOST"},
    {"[::1", 7, NULL, 0, false, "is not HOST"},
    {"[::1]80", 7, NULL, 0, false, "is not HOST"},
    {"n1:", 7, NULL, 0, false, "--e: the port of \"n1:\" is not 0 to 65535"},
    {"[::1]:", 7, NULL, 0, false, "the port of"},
    {"n1:65536", 7, NULL, 0, false, "the port of \"n1:65536\" is not 0 to 65535"},
    {"n1:99999", 7, NULL, 0, false, "the port of"},
    {"n1:000080", 7, NULL, 0, false, "the port of"},
    {"n1:-1", 7, NULL, 0, false, "the port of"},
    {"n1:abc", 7, NULL, 0, false, "the port of"},
    {"n1:8 0", 7, NULL, 0, false, "the port of"},
    {"bad host:1", 7, NULL, 0, false, "holds a character that no host name has"},
    {"h\xc3\xa4:1", 7, NULL, 0, false, "holds a character"},
    {"http://n1:80", 7, NULL, 0, false, "holds a character"},
    {"a/b", 7, NULL, 0, false, "holds a character"},
};

static void test_endpoints(void **state)
{
    (void)state;
    for (size_t i = 0; i < MU_COUNT(endpoint_rows); i++) {
        const struct endpoint_row *row = &endpoint_rows[i];
        struct mu_err err = {0};
        struct mu_endpoint e = {.host = "before", .port = 9};
        int r = mu_parse_endpoint(row->text, row->default_port, "--e", &e, &err);
        if (r != (row->host != NULL ? 0 : -EINVAL))
            fail_msg("\"%s\": %d (%s; host %s)", row->text, r, err.msg, e.host);
        assert_string_equal(e.host, row->host != NULL ? row->host : "before");
        assert_int_equal(e.port, row->host != NULL ? row->port : 9);
        if (row->host != NULL)
            assert_int_equal(e.has_port, row->has_port);
        else
            assert_has(err.msg, row->sentence);
    }
}

static void test_a_host_longer_than_a_name_is_refused(void **state)
{
    (void)state;
    char text[300];
    struct mu_endpoint e;
    struct mu_err err = {0};
    memset(text, 'a', sizeof text);
    text[255] = '\0';
    assert_int_equal(mu_parse_endpoint(text, 1, "--e", &e, &err), 0);
    text[255] = 'a';
    text[256] = '\0';
    assert_int_equal(mu_parse_endpoint(text, 1, "--e", &e, &err), -EINVAL);
    assert_has(err.msg, "longer than 255");
}

/* Any bytes at all: an answer, no crash (this test runs under sanitizers). */
static void test_every_short_text_gets_an_answer(void **state)
{
    (void)state;
    static const char alphabet[] = "0:.[]%-+ aK\xff";
    char text[6] = "";
    size_t n = sizeof alphabet - 1;
    for (size_t code = 0; code < n * n * n * n; code++) {
        size_t c = code;
        for (size_t i = 0; i < 4; i++, c /= n)
            text[i] = alphabet[c % n];
        for (size_t skip = 0; skip < 4; skip++) {
            int64_t v = 0;
            uint64_t u = 0;
            struct mu_endpoint e;
            struct mu_err err = {0};
            int r[] = {mu_parse_i64(text + skip, 0, 9, "x", &v, &err),
                       mu_parse_seconds(text + skip, 0, 9, "x", &v, &err),
                       mu_parse_span(text + skip, 0, 9, "x", &v, &err),
                       mu_parse_bytes(text + skip, 0, 9, "x", &u, &err),
                       mu_parse_endpoint(text + skip, 1, "x", &e, &err)};
            for (size_t k = 0; k < MU_COUNT(r); k++)
                assert_true(r[k] == 0 || r[k] == -EINVAL || r[k] == -ERANGE);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_numbers),
        cmocka_unit_test(test_unsigned_keeps_its_range),
        cmocka_unit_test(test_seconds),
        cmocka_unit_test(test_spans_have_a_unit),
        cmocka_unit_test(test_spans_are_written_as_people_do),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_endpoints),
        cmocka_unit_test(test_a_host_longer_than_a_name_is_refused),
        cmocka_unit_test(test_every_short_text_gets_an_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
