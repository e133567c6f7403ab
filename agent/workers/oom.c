/* The kernel's out-of-memory counters; see oom.h. */
#include "agent/workers/oom.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/parse.h"

static void fclosep(FILE **f)
{
    if (*f != NULL)
        (void)fclose(*f);
}

/* `<point><own path or a parent of it>/<file>`: the nearest cgroup that counts is the one whose
 * limit is met. */
static int open_nearest(const char *point, char *own, const char *file)
{
    char path[2 * PATH_MAX];
    for (;;) {
        (void)snprintf(path, sizeof(path), "%s%s/%s", point, own, file);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        char *slash = strrchr(own, '/');
        if (fd >= 0 || slash == NULL)
            return fd;
        *slash = '\0';
    }
}

/* /proc/self/cgroup has lines "0::/path" (v2) and "4:memory:/path" (v1). */
static int open_counter(void)
{
    char line[PATH_MAX];
    int fd = -1;
    MU_CLEANUP(fclosep) FILE *f = fopen("/proc/self/cgroup", "re");
    while (f != NULL && fd < 0 && fgets(line, sizeof(line), f) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        char *own = strchr(line, '/');
        if (own == NULL || strstr(own, "/..") != NULL)
            continue;
        if (strncmp(line, "0::", 3) == 0)
            fd = open_nearest("/sys/fs/cgroup", own, "memory.events");
        else if (strstr(line, ":memory:") != NULL)
            fd = open_nearest("/sys/fs/cgroup/memory", own, "memory.oom_control");
    }
    return fd;
}

static bool read_counter(int fd, uint64_t *ret)
{
    char text[512];
    ssize_t n = fd < 0 ? -1 : pread(fd, text, sizeof(text) - 1, 0);
    if (n <= 0)
        return false;
    text[n] = '\0';
    char *number = strstr(text, "oom_kill ");
    int64_t count = 0;
    if (number == NULL)
        return false;
    number += sizeof("oom_kill ") - 1;
    number[strcspn(number, "\n")] = '\0';
    if (mu_parse_i64(number, 0, INT64_MAX, "oom_kill", &count, NULL) < 0)
        return false;
    *ret = (uint64_t)count;
    return true;
}

void oom_init(struct oom *o)
{
    o->fd = open_counter();
    o->seen = 0;
    if (!read_counter(o->fd, &o->seen))
        oom_fini(o);
}

void oom_fini(struct oom *o)
{
    if (o->fd >= 0)
        (void)close(o->fd);
    o->fd = -1;
}

bool oom_rose(struct oom *o)
{
    uint64_t now = 0;
    if (!read_counter(o->fd, &now) || now <= o->seen)
        return false;
    o->seen = now;
    return true;
}
