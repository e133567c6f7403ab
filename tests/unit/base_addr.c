/* Addresses: numeric only, there and back; listeners that say which port they got and who has a
 * taken one; and the clock beside them. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/unit/unit.h"

#include "base/addr.h"
#include "base/cleanup.h"
#include "base/clock.h"

static void there_and_back(const char *text, const char *want)
{
    struct mu_addr a;
    char host[MU_ADDR_BYTES];
    if (mu_addr_parse(text, 29500, &a) != 0)
        fail_msg("%s is an address", text);
    assert_string_equal(mu_addr_host((const struct sockaddr *)&a.ss, host), want);
    assert_int_equal(mu_addr_port((const struct sockaddr *)&a.ss), 29500);
}

static void test_numeric_addresses_go_there_and_back(void **state)
{
    (void)state;
    there_and_back("10.0.0.1", "10.0.0.1");
    there_and_back("255.255.255.255", "255.255.255.255");
    there_and_back("::1", "::1");
    there_and_back("2001:DB8:0::1", "2001:db8::1");
    there_and_back("::ffff:10.0.0.1", "10.0.0.1"); /* v4-mapped: people know it as IPv4. */
    there_and_back("fe80::1%lo", "fe80::1%lo");
}

static void test_names_are_never_looked_up(void **state)
{
    (void)state;
    static const char *const bad[] = {"localhost", "",      "n1",  "10.0.0.256",
                                      "1.2.3.4.5", "[::1]", "::g", "1.2.3.4:80"};
    struct mu_addr a;
    for (size_t i = 0; i < MU_COUNT(bad); i++)
        if (mu_addr_parse(bad[i], 1, &a) != -EINVAL)
            fail_msg("taken: %s", bad[i]);
}

static void test_an_unknown_family_shows_as_nothing(void **state)
{
    (void)state;
    struct sockaddr sa = {.sa_family = AF_UNIX};
    char host[MU_ADDR_BYTES];
    assert_string_equal(mu_addr_host(&sa, host), "");
    assert_int_equal(mu_addr_port(&sa), 0);
}

static void test_local_and_loopback(void **state)
{
    (void)state;
    assert_true(mu_addr_is_loopback("127.0.0.1"));
    assert_true(mu_addr_is_loopback("127.9.9.9"));
    assert_true(mu_addr_is_loopback("::1"));
    assert_false(mu_addr_is_loopback("10.0.0.1"));
    assert_false(mu_addr_is_loopback("::127.0.0.1"));
    assert_true(mu_addr_is_local("127.0.0.1"));
    assert_false(mu_addr_is_local("192.0.2.1")); /* TEST-NET: nobody's. */
    assert_false(mu_addr_is_local(""));
    char primary[MU_ADDR_BYTES];
    mu_addr_primary(primary);
    if (primary[0] != '\0') { /* A machine may have loopback alone. */
        struct mu_addr a;
        assert_int_equal(mu_addr_parse(primary, 1, &a), 0);
        assert_true(mu_addr_is_local(primary));
        assert_false(mu_addr_is_loopback(primary));
    }
}

static void test_a_listener_says_its_port_and_is_ready(void **state)
{
    (void)state;
    uint16_t port = 0;
    struct mu_err err = {0};
    MU_CLEANUP(mu_closep) int fd = mu_listen("127.0.0.1", 0, 16, &port, &err);
    assert_true(fd >= 0);
    assert_true(port > 0);
    assert_true((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    assert_true((fcntl(fd, F_GETFL) & O_NONBLOCK) != 0);

    struct mu_addr to;
    assert_int_equal(mu_addr_parse("127.0.0.1", port, &to), 0);
    MU_CLEANUP(mu_closep) int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(client, (const struct sockaddr *)&to.ss, to.len), 0);
    MU_CLEANUP(mu_closep) int server = accept(fd, NULL, NULL);
    int nodelay = 0;
    socklen_t len = sizeof nodelay;
    assert_true(server >= 0);
    assert_int_equal(getsockopt(server, IPPROTO_TCP, TCP_NODELAY, &nodelay, &len), 0);
    assert_int_not_equal(nodelay, 0);

    /* The same port again: the sentence names it. */
    char shown[64];
    uint16_t other = 1;
    assert_int_equal(mu_listen("127.0.0.1", port, 16, &other, &err), -EADDRINUSE);
    (void)snprintf(shown, sizeof shown, "127.0.0.1:%u is taken (pid %d, ", port, (int)getpid());
    assert_has(err.msg, shown);
    assert_int_equal(other, 1);
}

static void test_every_address_means_both_families(void **state)
{
    (void)state;
    uint16_t port = 0;
    struct mu_err err = {0};
    static const char *const any[] = {"", "*"};
    for (size_t i = 0; i < MU_COUNT(any); i++) {
        MU_CLEANUP(mu_closep) int fd = mu_listen(any[i], 0, 16, &port, &err);
        assert_true(fd >= 0);
        struct mu_addr to;
        assert_int_equal(mu_addr_parse("127.0.0.1", port, &to), 0);
        MU_CLEANUP(mu_closep) int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(connect(client, (const struct sockaddr *)&to.ss, to.len), 0);
    }
}

static void test_a_listener_that_cannot_be_gets_a_sentence(void **state)
{
    (void)state;
    uint16_t port = 0;
    struct mu_err err = {0};
    assert_int_equal(mu_listen("192.0.2.1", 0, 16, &port, &err), -EADDRNOTAVAIL);
    assert_string_equal(err.msg, "192.0.2.1 is not an address of this machine");
    assert_int_equal(mu_listen("localhost", 0, 16, &port, &err), -EINVAL);
    assert_string_equal(err.msg, "'localhost' is not a numeric address");
}

static void test_clocks(void **state)
{
    (void)state;
    int64_t a = mu_now_ns();
    int64_t b = mu_now_ns();
    char text[32];
    assert_true(a > 0 && b >= a);
    assert_true(mu_unix_ms() > INT64_C(1600000000000));
    assert_string_equal(mu_iso8601(0, text), "1970-01-01T00:00:00.000Z");
    assert_string_equal(mu_iso8601(-1, text), "1969-12-31T23:59:59.999Z");
    assert_string_equal(mu_iso8601(INT64_C(1796021202123), text), "2026-11-30T06:46:42.123Z");
}

/* Every day, each at another time of it, against the C library. */
static void test_dates_are_those_of_the_calendar(void **state)
{
    (void)state;
    char text[32];
    char theirs[32];
    for (int64_t day = -1000; day < 2932897 + 1000; day++) {
        time_t sec = (time_t)(day * 86400 + (day % 86400 + 86400) * 7919 % 86400);
        struct tm tm;
        assert_non_null(gmtime_r(&sec, &tm));
        assert_true(strftime(theirs, sizeof theirs, "%Y-%m-%dT%H:%M:%S.", &tm) > 0);
        (void)mu_iso8601((int64_t)sec * 1000 + 45, text);
        if (strncmp(text, theirs, strlen(theirs)) != 0 ||
            strcmp(text + strlen(theirs), "045Z") != 0)
            fail_msg("day %lld: %s, not %s045Z", (long long)day, text, theirs);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numeric_addresses_go_there_and_back),
        cmocka_unit_test(test_names_are_never_looked_up),
        cmocka_unit_test(test_an_unknown_family_shows_as_nothing),
        cmocka_unit_test(test_local_and_loopback),
        cmocka_unit_test(test_a_listener_says_its_port_and_is_ready),
        cmocka_unit_test(test_every_address_means_both_families),
        cmocka_unit_test(test_a_listener_that_cannot_be_gets_a_sentence),
        cmocka_unit_test(test_clocks),
        cmocka_unit_test(test_dates_are_those_of_the_calendar),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
