/* A worker that says when it lived first: one line "T RANK RESTARTS PID" to a FIFO, T being
 * CLOCK_MONOTONIC at the top of main() of a static program.
 *
 * stamp FIFO               stamp, then wait for a signal
 * stamp FIFO exit          stamp and exit with 0
 * stamp FIFO exit R CODE   ... the worker with RANK R with CODE
 * With FIFO "-" nothing is written. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *env(const char *name)
{
    const char *v = getenv(name);
    return v != NULL ? v : "0";
}

static int tell(const char *fifo, const struct timespec *now)
{
    char line[128];
    int n = snprintf(line, sizeof line, "%lld %s %s %d\n",
                     (long long)now->tv_sec * 1000000000 + now->tv_nsec, env("RANK"),
                     env("TORCHELASTIC_RESTART_COUNT"), (int)getpid());
    int fd = open(fifo, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, line, (size_t)n) != n) /* Below PIPE_BUF: whole or not at all. */
        return -1;
    return close(fd);
}

int main(int argc, char **argv)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    if (argc < 2)
        return 2;
    if (strcmp(argv[1], "-") != 0 && tell(argv[1], &now) < 0)
        return 3;
    if (argc == 2)
        for (;;)
            (void)pause();
    if (argc == 5 && strcmp(argv[3], env("RANK")) == 0)
        return (int)(argv[4][0] - '0');
    return 0;
}
