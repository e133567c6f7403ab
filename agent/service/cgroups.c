/* Jobs' cgroups; see cgroups.h. */
#include "agent/service/cgroups.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "agent/workers/cgroup.h"
#include "base/cleanup.h"
#include "base/limits.h"

#define OWN_NAME "muster-service"
#define JOB_NAME "job-"

static int put(const char *dir, const char *file, const char *text)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/%s", dir, file) >= (int)sizeof path)
        return -ENAMETOOLONG;
    MU_CLEANUP(mu_closep) int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, text, strlen(text)) < 0)
        return -errno;
    return 0;
}

/* systemd marks what it has delegated. */
static bool is_delegated(const char *path)
{
    static const char *const names[] = {"user.delegate", "trusted.delegate"};
    char value[8] = "";
    for (size_t i = 0; i < MU_COUNT(names); i++)
        if (getxattr(path, names[i], value, sizeof value - 1) > 0 && value[0] == '1')
            return true;
    return false;
}

/* Out of the way, so that jobs' memory, processes and CPU time are counted below `root`. */
static void step_aside(const char *root)
{
    static const char *const controllers[] = {"+memory", "+pids", "+cpu"};
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/" OWN_NAME, root) >= (int)sizeof path)
        return;
    if ((mkdir(path, 0755) < 0 && errno != EEXIST) || put(path, "cgroup.procs", "0") < 0)
        return;
    for (size_t i = 0; i < MU_COUNT(controllers); i++)
        (void)put(root, "cgroup.subtree_control",
                  controllers[i]); /* What is not there is not counted. */
}

void cgroups_init(struct cgroups *c, const char *root)
{
    if (root[0] != '\0') {
        (void)snprintf(c->root, sizeof c->root, "%s", root);
        return;
    }
    if (cgroup_own(c->root, sizeof c->root) < 0) {
        c->root[0] = '\0';
        return;
    }
    if (is_delegated(c->root))
        step_aside(c->root);
}

int cgroups_make(
    const struct cgroups *c, const char *job, uint32_t attempt, char *ret_path, int *ret_fd)
{
    size_t cap = CGROUPS_PATH_BYTES + 200;
    ret_path[0] = '\0';
    if (c->root[0] == '\0')
        return -ENOENT;
    int n =
        snprintf(ret_path, cap, "%s/" JOB_NAME "%.*s.%u", c->root, MU_RUN_ID_BYTES, job, attempt);
    if (n > 0 && (size_t)n < cap)
        cgroups_remove(ret_path); /* Of a service that was killed: it would be used up. */
    if (n < 0 || (size_t)n >= cap || mkdir(ret_path, 0755) < 0) {
        int r = n < 0 || (size_t)n >= cap ? -ENAMETOOLONG : -errno;
        ret_path[0] = '\0';
        return r;
    }
    int fd = open(ret_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0 && faccessat(fd, "cgroup.kill", W_OK, 0) == 0) {
        *ret_fd = fd;
        return 0;
    }
    int r = -errno;
    if (fd >= 0)
        (void)close(fd);
    (void)rmdir(ret_path);
    ret_path[0] = '\0';
    return r;
}

void cgroups_remove(const char *path)
{
    char below[PATH_MAX];
    if (path[0] == '\0' || rmdir(path) == 0)
        return;
    MU_CLEANUP(mu_closedirp) DIR *d = opendir(path);
    for (const struct dirent *e = d != NULL ? readdir(d) : NULL; e != NULL; e = readdir(d)) {
        bool is_folder = e->d_type == DT_DIR && e->d_name[0] != '.';
        if (is_folder &&
            snprintf(below, sizeof below, "%s/%s", path, e->d_name) < (int)sizeof below)
            (void)rmdir(below);
    }
    (void)rmdir(path);
}

void cgroups_sweep(const struct cgroups *c)
{
    char path[PATH_MAX];
    MU_CLEANUP(mu_closedirp) DIR *d = c->root[0] != '\0' ? opendir(c->root) : NULL;
    for (const struct dirent *e = d != NULL ? readdir(d) : NULL; e != NULL; e = readdir(d)) {
        bool is_job = e->d_type == DT_DIR && strncmp(e->d_name, JOB_NAME, sizeof JOB_NAME - 1) == 0;
        if (is_job && snprintf(path, sizeof path, "%s/%s", c->root, e->d_name) < (int)sizeof path)
            cgroups_remove(path);
    }
}
