/* Run several commands in turn, many times, and say how long each run took: one JSON line a run.
 *
 * timed ROUNDS TIMEOUT_MS COMMAND... --- COMMAND... [--- ...]
 *
 * Interleaved, so that whatever else the machine does meets all commands alike. A run's time is
 * from before posix_spawn to the end of the command's own process, which is noticed on its pidfd.
 * Standard streams are /dev/null. A run past the time-out is ended with its process group and
 * marked. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/parse.h"
#include "bench/bench.h"

#define COMMANDS_MAX 32

struct run {
    int64_t wall_ns;
    int64_t cpu_ns; /* Of it and of what it waited for. */
    int status;     /* Exit status, or minus the signal's number. */
    bool timed_out;
};

static pid_t start(char **argv)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    pid_t pid = 0;
    (void)posix_spawn_file_actions_init(&files);
    for (int fd = 0; fd < 3; fd++)
        (void)posix_spawn_file_actions_addopen(&files, fd, "/dev/null", O_RDWR, 0);
    (void)posix_spawnattr_init(&attr);
    (void)posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETPGROUP);
    int r = posix_spawnp(&pid, argv[0], &files, &attr, argv, environ);
    if (r != 0)
        bench_fail("spawn '%s': %s", argv[0], strerror(r));
    (void)posix_spawn_file_actions_destroy(&files);
    (void)posix_spawnattr_destroy(&attr);
    return pid;
}

static int64_t timeval_ns(struct timeval t)
{
    return (int64_t)t.tv_sec * MU_NS_PER_S + (int64_t)t.tv_usec * 1000;
}

static struct run run_once(char **argv, int timeout_ms)
{
    struct run ret = {0};
    struct rusage usage;
    int status = 0;
    int64_t begun_ns = mu_now_ns();
    pid_t pid = start(argv);
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (fd < 0)
        bench_fail("pidfd_open: %s", strerror(errno));
    struct pollfd p = {.fd = fd, .events = POLLIN};
    ret.timed_out = poll(&p, 1, timeout_ms) == 0;
    if (ret.timed_out)
        (void)kill(-pid, SIGKILL);
    if (wait4(pid, &status, 0, &usage) < 0)
        bench_fail("wait4: %s", strerror(errno));
    ret.wall_ns = mu_now_ns() - begun_ns;
    ret.cpu_ns = timeval_ns(usage.ru_utime) + timeval_ns(usage.ru_stime);
    ret.status = WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
    (void)close(fd);
    return ret;
}

int main(int argc, char **argv)
{
    struct mu_err err;
    uint32_t rounds = 0;
    uint32_t timeout_ms = 0;
    char **commands[COMMANDS_MAX];
    size_t count = 0;
    if (argc < 4)
        bench_fail("usage: timed ROUNDS TIMEOUT_MS COMMAND... [--- COMMAND...]...");
    if (mu_parse_u32(argv[1], 1, 1000000, "ROUNDS", &rounds, &err) < 0 ||
        mu_parse_u32(argv[2], 1, 3600000, "TIMEOUT_MS", &timeout_ms, &err) < 0)
        bench_fail("%s", err.msg);
    commands[count++] = argv + 3;
    for (int i = 3; i < argc; i++) {
        if (strcmp(argv[i], "---") != 0)
            continue;
        argv[i] = NULL;
        if (count == COMMANDS_MAX || argv[i + 1] == NULL)
            bench_fail("1 to %d commands, none empty", COMMANDS_MAX);
        commands[count++] = argv + i + 1;
    }
    for (uint32_t round = 0; round < rounds; round++)
        for (size_t k = 0; k < count; k++) {
            struct run r = run_once(commands[k], (int)timeout_ms);
            (void)printf("{\"command\":%zu,\"round\":%u,\"wall_ns\":%lld,\"cpu_ns\":%lld,"
                         "\"status\":%d,\"timed_out\":%s}\n",
                         k, round, (long long)r.wall_ns, (long long)r.cpu_ns, r.status,
                         r.timed_out ? "true" : "false");
            (void)fflush(stdout);
        }
    return 0;
}
