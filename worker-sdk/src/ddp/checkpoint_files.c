/* Trees of files; see checkpoint_files.h. Every name is looked up in an open folder, so that a
 * folder renamed meanwhile is still the same one. */
#include "worker-sdk/src/ddp/checkpoint_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "worker-sdk/src/core/sdk.h"

enum {
    DEPTH_MAX = 16,   /* Folders within folders. */
    LOCK_GAP_MS = 10, /* Between two tries of a lock: flock(2) cannot wait with a limit. */
    ASIDE_BYTES = 64
};

/* fn for each entry of folder `at`/`name` but "." and "..". Stops at the first failure. */
typedef int each_fn(int at, const char *name, bool is_folder, int depth);

static bool is_folder_at(int at, const struct dirent *e)
{
    struct stat st;
    if (e->d_type != DT_UNKNOWN)
        return e->d_type == DT_DIR;
    return fstatat(at, e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
}

static int for_each(int at, const char *name, int depth, each_fn *fn)
{
    if (depth > DEPTH_MAX)
        return -ELOOP;
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    MU_CLEANUP(mu_closedirp) DIR *d = fdopendir(fd);
    if (d == NULL) {
        int r = -errno;
        (void)close(fd);
        return r;
    }
    for (;;) {
        errno = 0;
        const struct dirent *e = readdir(d);
        if (e == NULL)
            return -errno;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        int r = fn(fd, e->d_name, is_folder_at(fd, e), depth + 1);
        if (r < 0)
            return r;
    }
}

static int sync_one(int at, const char *name, int flags)
{
    MU_CLEANUP(mu_closep) int fd = openat(at, name, flags | O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    return fsync(fd) < 0 ? -errno : 0;
}

static int sync_entry(int at, const char *name, bool is_folder, int depth)
{
    struct stat st;
    if (!is_folder) {
        if (fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
            return -errno;
        return S_ISREG(st.st_mode) ? sync_one(at, name, 0) : 0; /* A link is its folder's. */
    }
    int r = for_each(at, name, depth, sync_entry);
    return r < 0 ? r : sync_one(at, name, O_DIRECTORY);
}

int files_sync_tree(int at, const char *name)
{
    return sync_entry(at, name, true, 0);
}

static int remove_entry(int at, const char *name, bool is_folder, int depth)
{
    if (is_folder) {
        int r = for_each(at, name, depth, remove_entry);
        if (r < 0 && r != -ENOENT)
            return r;
    }
    if (unlinkat(at, name, is_folder ? AT_REMOVEDIR : 0) < 0 && errno != ENOENT)
        return -errno;
    return 0;
}

int files_remove_tree(int at, const char *name)
{
    return remove_entry(at, name, true, 0);
}

static int write_all(int fd, const char *text, size_t n)
{
    while (n > 0) {
        ssize_t put = write(fd, text, n);
        if (put < 0 && errno != EINTR)
            return -errno;
        if (put > 0) {
            text += put;
            n -= (size_t)put;
        }
    }
    return fsync(fd) < 0 ? -errno : 0;
}

int files_put(int at, const char *name, const char *text, size_t n)
{
    char aside[ASIDE_BYTES];
    if ((size_t)snprintf(aside, sizeof aside, ".%s.%d", name, (int)getpid()) >= sizeof aside)
        return -ENAMETOOLONG;
    MU_CLEANUP(mu_closep)
    int fd = openat(at, aside, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0)
        return -errno;
    int r = write_all(fd, text, n);
    if (r == 0 && renameat(at, aside, at, name) < 0)
        r = -errno;
    if (r == 0 && fsync(at) < 0)
        r = -errno;
    if (r < 0)
        (void)unlinkat(at, aside, 0); /* The first error is the one to tell. */
    return r;
}

int files_get(int at, const char *name, char *ret, size_t cap)
{
    MU_CLEANUP(mu_closep) int fd = openat(at, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    ssize_t n = read(fd, ret, cap - 1);
    if (n < 0)
        return -errno;
    ret[n] = '\0';
    return 0;
}

int files_lock(int fd, int64_t deadline_ns)
{
    while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        if (errno == EINTR)
            continue;
        if (errno != EWOULDBLOCK)
            return 0; /* No locks here: ROUND alone keeps a stale writer out, but for a moment. */
        if (sdk_now_ns() >= deadline_ns)
            return -ETIMEDOUT;
        (void)poll(NULL, 0, LOCK_GAP_MS);
    }
    return 0;
}
