/* The service manager: what it is told, what it hands over. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/unit.h"

#include "base/manager.h"

#define HANDED_OVER 3

static void clear(void)
{
    static const char *const names[] = {"NOTIFY_SOCKET",  "LISTEN_PID",    "LISTEN_FDS",
                                        "LISTEN_FDNAMES", "WATCHDOG_USEC", "WATCHDOG_PID"};
    for (size_t i = 0; i < MU_COUNT(names); i++)
        assert_int_equal(unsetenv(names[i]), 0);
}

static void set_number(const char *name, int64_t v)
{
    char text[24];
    (void)snprintf(text, sizeof text, "%jd", (intmax_t)v);
    assert_int_equal(setenv(name, text, 1), 0);
}

static void test_the_manager_hears_assignments(void **state)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    char name[64];
    char got[64] = "";
    (void)state;
    clear();
    mu_manager_notify("READY=1"); /* Nobody asked. */
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    int n = snprintf(name, sizeof name, "@muster-unit-%d", (int)getpid());
    memcpy(a.sun_path + 1, name + 1, (size_t)n - 1);
    assert_int_equal(bind(fd, (struct sockaddr *)&a,
                          (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)n)),
                     0);
    assert_int_equal(setenv("NOTIFY_SOCKET", name, 1), 0);
    mu_manager_notify("READY=1\nSTATUS=listening");
    assert_int_equal(recv(fd, got, sizeof got - 1, MSG_DONTWAIT), 24);
    assert_string_equal(got, "READY=1\nSTATUS=listening");
    assert_int_equal(setenv("NOTIFY_SOCKET", "relative", 1), 0);
    mu_manager_notify("READY=1");
    assert_int_equal(recv(fd, got, sizeof got, MSG_DONTWAIT), -1);
    (void)close(fd);
    clear();
}

static void test_the_watchdog_wants_half_its_time(void **state)
{
    (void)state;
    clear();
    assert_int_equal(mu_manager_watchdog_ns(), 0);
    set_number("WATCHDOG_USEC", 3000000);
    assert_int_equal(mu_manager_watchdog_ns(), 1500000000);
    set_number("WATCHDOG_PID", getpid());
    assert_int_equal(mu_manager_watchdog_ns(), 1500000000);
    set_number("WATCHDOG_PID", getpid() + 1); /* Somebody else's. */
    assert_int_equal(mu_manager_watchdog_ns(), 0);
    (void)unsetenv("WATCHDOG_PID");
    assert_int_equal(setenv("WATCHDOG_USEC", "soon", 1), 0);
    assert_int_equal(mu_manager_watchdog_ns(), 0);
    clear();
}

/* In a child, where descriptor 3 can be what the manager put there. Returns what the child makes of
 * it. */
static int take(int fd, int64_t pid_offset, int64_t count)
{
    int status = 0;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct mu_err err = {0};
        if (fd >= 0)
            (void)dup2(fd, HANDED_OVER);
        set_number("LISTEN_PID", getpid() + pid_offset);
        set_number("LISTEN_FDS", count);
        int r = mu_manager_take_socket(&err);
        if (getenv("LISTEN_FDS") != NULL || getenv("LISTEN_PID") != NULL)
            _exit(9);
        if (r == HANDED_OVER)
            _exit((fcntl(r, F_GETFD) & FD_CLOEXEC) != 0 ? 1 : 8);
        _exit(r == -ENOENT && err.msg[0] == '\0' ? 2 : err.msg[0] != '\0' ? 3 : 7);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_one_listening_socket_is_taken_and_nothing_else(void **state)
{
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    (void)state;
    clear();
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    int udp = socket(AF_INET, SOCK_DGRAM, 0);
    int file = open("/dev/null", O_RDONLY);
    assert_true(fd >= 0 && udp >= 0 && file >= 0);
    assert_int_equal(take(fd, 0, 1), 3); /* Not listening. */
    assert_int_equal(bind(fd, (struct sockaddr *)&any, sizeof any), 0);
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(take(fd, 0, 1), 1);
    assert_int_equal(take(fd, 1, 1), 2); /* For another process. */
    assert_int_equal(take(fd, 0, 0), 2);
    assert_int_equal(take(fd, 0, 2), 3);
    assert_int_equal(take(udp, 0, 1), 3);
    assert_int_equal(take(file, 0, 1), 3);
    (void)close(fd);
    (void)close(udp);
    (void)close(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_manager_hears_assignments),
        cmocka_unit_test(test_the_watchdog_wants_half_its_time),
        cmocka_unit_test(test_one_listening_socket_is_taken_and_nothing_else),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
