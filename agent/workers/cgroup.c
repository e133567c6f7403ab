/* Finding, making, killing and removing our cgroup; see cgroup.h. */
#include "agent/workers/cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/cleanup.h"

#define CGROUP2_TYPE 0x63677270 /* "cgrp", as statfs() tells it. */

static void fclosep(FILE **f)
{
    if (*f != NULL)
        (void)fclose(*f);
}

/* Our path within cgroup v2: the line "0::/path" of /proc/self/cgroup. */
static int own_path(char *ret, size_t cap)
{
    char line[PATH_MAX];
    MU_CLEANUP(fclosep) FILE *f = fopen("/proc/self/cgroup", "re");
    while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
        if (strncmp(line, "0::/", 4) != 0)
            continue;
        line[strcspn(line, "\n")] = '\0';
        /* "/.." is a cgroup outside the mount we can see; a deleted one is none either. */
        if (strstr(line, "/..") != NULL || strstr(line, " (deleted)") != NULL)
            return -ENOENT;
        return snprintf(ret, cap, "%s", line + 3) < (int)cap ? 0 : -ENAMETOOLONG;
    }
    return -ENOENT;
}

/* One line of mountinfo: "31 23 0:28 <root> <mount point> <options> … - <type> …". */
static bool is_cgroup2(char *line, const char **ret_root, const char **ret_point)
{
    const char *type = strstr(line, " - cgroup2 ");
    char *rest = line;
    if (type == NULL)
        return false;
    for (int field = 0; field < 5; field++) {
        const char *word = strsep(&rest, " ");
        if (word == NULL || rest == NULL)
            return false;
        if (field == 3)
            *ret_root = word;
        if (field == 4)
            *ret_point = word;
    }
    /* A mount point with blanks is written with octal escapes: nobody mounts cgroups there. */
    return strchr(*ret_point, '\\') == NULL;
}

/* Where nearly every machine has it; reading the table of mounts costs as much as making the
 * cgroup. */
static int find_usual(const char *own, char *ret, size_t cap)
{
    static const char *const points[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};
    struct statfs fs;
    for (size_t i = 0; i < MU_COUNT(points); i++) {
        if (statfs(points[i], &fs) < 0 || fs.f_type != CGROUP2_TYPE)
            continue;
        int n = snprintf(ret, cap, "%s%s", points[i], strcmp(own, "/") == 0 ? "" : own);
        if (n < (int)cap && access(ret, W_OK) == 0)
            return 0; /* Else a part of the tree may be mounted there: the table tells. */
    }
    return -ENOENT;
}

static int find_own(char *ret, size_t cap)
{
    char own[PATH_MAX];
    char line[2 * PATH_MAX];
    int r = own_path(own, sizeof(own));
    if (r < 0 || find_usual(own, ret, cap) == 0)
        return r;
    MU_CLEANUP(fclosep) FILE *f = fopen("/proc/self/mountinfo", "re");
    while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
        const char *root = "";
        const char *point = "";
        if (!is_cgroup2(line, &root, &point))
            continue;
        size_t skip = strcmp(root, "/") == 0 ? 0 : strlen(root);
        if (strncmp(own, root, skip) != 0 || (own[skip] != '/' && own[skip] != '\0'))
            continue;
        const char *below = strcmp(own + skip, "/") == 0 ? "" : own + skip;
        return snprintf(ret, cap, "%s%s", point, below) < (int)cap ? 0 : -ENAMETOOLONG;
    }
    return -ENOENT;
}

int cgroup_own(char *ret, size_t cap)
{
    return find_own(ret, cap);
}

int cgroup_make(struct cgroup *c)
{
    char own[PATH_MAX];
    uint64_t unique = 0;
    *c = (struct cgroup){.fd = -1};
    int r = find_own(own, sizeof(own));
    if (r < 0)
        return r;
    /* The pid alone does not do: two process namespaces may share this cgroup, and have the same
     * pids. */
    if (getrandom(&unique, sizeof(unique), GRND_NONBLOCK) != (ssize_t)sizeof(unique))
        return -EAGAIN;
    int n = snprintf(c->path, sizeof(c->path), "%.4000s/muster-%d-%016" PRIx64, own, (int)getpid(),
                     unique);
    if (n >= (int)sizeof(c->path))
        return -ENAMETOOLONG;
    if (mkdir(c->path, 0755) < 0)
        return -errno;
    c->fd = open(c->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (c->fd < 0 || faccessat(c->fd, "cgroup.kill", W_OK, 0) < 0) { /* Linux before 5.14 */
        r = -errno;
        cgroup_remove(c);
        return r;
    }
    return 0;
}

static void kill_at(int dir_fd)
{
    MU_CLEANUP(mu_closep) int fd = openat(dir_fd, "cgroup.kill", O_WRONLY | O_CLOEXEC);
    if (fd >= 0)
        (void)!write(fd, "1", 1); /* Failing, it leaves the work to the search for descendants. */
}

void cgroup_kill(struct cgroup *c)
{
    if (c->fd < 0)
        return;
    c->used_up = true;
    kill_at(c->fd);
}

void cgroup_renew(struct cgroup *c)
{
    if (!c->used_up)
        return;
    cgroup_remove(c);
    (void)cgroup_make(c);
}

void cgroup_remove(struct cgroup *c)
{
    if (c->fd >= 0)
        (void)close(c->fd);
    if (c->path[0] != '\0')
        (void)rmdir(c->path);
    *c = (struct cgroup){.fd = -1};
}

void cgroup_kill_path(const char *path)
{
    MU_CLEANUP(mu_closep) int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0)
        kill_at(fd);
}
