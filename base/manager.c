#include "base/manager.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/parse.h"

#define FIRST_FD 3 /* Where handed-over descriptors begin: sd_listen_fds(3). */
#define JOURNAL_SOCKET "/run/systemd/journal/socket"

/* "@name" is a name in the abstract space. Returns 0, or -EINVAL. */
static int address_of(const char *name, struct sockaddr_un *ret, socklen_t *ret_len)
{
    size_t n = strlen(name);
    *ret = (struct sockaddr_un){.sun_family = AF_UNIX};
    if ((name[0] != '/' && name[0] != '@') || n < 2 || n >= sizeof ret->sun_path)
        return -EINVAL;
    memcpy(ret->sun_path, name, n);
    if (name[0] == '@')
        ret->sun_path[0] = '\0';
    *ret_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
    return 0;
}

void mu_manager_notify(const char *assignments)
{
    const char *name = getenv("NOTIFY_SOCKET");
    struct sockaddr_un to;
    socklen_t len = 0;
    int saved = errno;
    if (name == NULL || address_of(name, &to, &len) < 0)
        return;
    MU_CLEANUP(mu_closep) int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0)
        (void)sendto(fd, assignments, strlen(assignments), MSG_NOSIGNAL,
                     (const struct sockaddr *)&to, len);
    errno = saved; /* Whoever does not read will see what it makes of our silence. */
}

/* The variable's number where $`pid_name` names this process or is not set; 0: not for us. */
static uint64_t number_for_us(const char *name, const char *pid_name)
{
    const char *text = getenv(name);
    const char *pid_text = getenv(pid_name);
    int64_t value = 0;
    int64_t pid = 0;
    if (text == NULL || mu_parse_i64(text, 0, INT64_MAX, name, &value, NULL) < 0)
        return 0;
    if (pid_text != NULL &&
        (mu_parse_i64(pid_text, 0, INT64_MAX, pid_name, &pid, NULL) < 0 || pid != getpid()))
        return 0;
    return (uint64_t)value;
}

static bool is_listening_tcp(int fd)
{
    int type = 0;
    int listens = 0;
    struct sockaddr_storage ss = {0};
    socklen_t type_len = sizeof type;
    socklen_t listens_len = sizeof listens;
    socklen_t len = sizeof ss;
    return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &type_len) == 0 && type == SOCK_STREAM &&
           getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &listens_len) == 0 && listens != 0 &&
           getsockname(fd, (struct sockaddr *)&ss, &len) == 0 &&
           (ss.ss_family == AF_INET || ss.ss_family == AF_INET6);
}

int mu_manager_take_socket(struct mu_err *err)
{
    uint64_t count = getenv("LISTEN_PID") != NULL ? number_for_us("LISTEN_FDS", "LISTEN_PID") : 0;
    (void)unsetenv("LISTEN_PID");
    (void)unsetenv("LISTEN_FDS");
    (void)unsetenv("LISTEN_FDNAMES");
    if (count == 0)
        return -ENOENT;
    if (count > 1)
        return mu_err_set(err, -EINVAL,
                          "the service manager handed over %" PRIu64
                          " sockets: one ListenStream= is served",
                          count);
    if (!is_listening_tcp(FIRST_FD))
        return mu_err_set(err, -EINVAL,
                          "what the service manager handed over is no listening TCP socket: the "
                          "socket unit needs "
                          "ListenStream=PORT and Accept=no");
    if (fcntl(FIRST_FD, F_SETFD, FD_CLOEXEC) < 0)
        return mu_err_set(err, -errno, "the socket that was handed over: %s", strerror(errno));
    return FIRST_FD;
}

int64_t mu_manager_watchdog_ns(void)
{
    uint64_t us = number_for_us("WATCHDOG_USEC", "WATCHDOG_PID");
    return us > 0 && us < INT64_MAX / 1000 ? (int64_t)us * 1000 / 2 : 0;
}

bool mu_journal_is_stderr(void)
{
    const char *stream = getenv("JOURNAL_STREAM");
    struct stat st;
    char mine[48];
    if (stream == NULL || fstat(STDERR_FILENO, &st) < 0)
        return false;
    (void)snprintf(mine, sizeof mine, "%ju:%ju", (uintmax_t)st.st_dev, (uintmax_t)st.st_ino);
    return strcmp(stream, mine) == 0;
}

void mu_journal_field(struct mu_buf *fields, const char *name, struct mu_str value)
{
    (void)mu_buf_adds(fields, name);
    (void)mu_buf_adds(fields, "=");
    (void)mu_buf_add(fields, value.p, value.n);
    (void)mu_buf_adds(fields, "\n");
}

int mu_journal_send(const struct mu_buf *fields)
{
    static int journal_fd = -1; /* Kept: a log line is one system call. */
    struct sockaddr_un to;
    socklen_t len = 0;
    if (journal_fd < 0)
        journal_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (journal_fd < 0 || fields->oom || address_of(JOURNAL_SOCKET, &to, &len) < 0)
        return -EIO;
    ssize_t n =
        sendto(journal_fd, fields->p, fields->n, MSG_NOSIGNAL, (const struct sockaddr *)&to, len);
    return n < 0 ? -errno : 0;
}
