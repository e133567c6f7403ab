/* Folders, made and removed; see logs.h. */
#include "agent/workers/logs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sys/vfs.h>

#include "base/cleanup.h"
#include "base/path.h"

#define TMPFS_TYPE 0x01021994
#define MEMORY_DIR "/dev/shm"

static int random_tag(char *ret)
{
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyz012345"; /* 32: each byte chooses evenly. */
    unsigned char bytes[LOGS_TAG_BYTES - 1];
    if (getrandom(bytes, sizeof(bytes), 0) != (ssize_t)sizeof(bytes))
        return -EAGAIN;
    for (size_t i = 0; i < sizeof(bytes); i++)
        ret[i] = letters[bytes[i] % 32];
    ret[sizeof(bytes)] = '\0';
    return 0;
}

static bool memory_dir_serves(void)
{
    struct statfs fs;
    return statfs(MEMORY_DIR, &fs) == 0 && fs.f_type == TMPFS_TYPE && fs.f_bavail > 256 &&
           access(MEMORY_DIR, W_OK | X_OK) == 0;
}

int logs_make_parents(const char *path, unsigned mode)
{
    char part[LOGS_PATH_BYTES];
    if (strlen(path) >= sizeof(part))
        return -ENAMETOOLONG;
    memcpy(part, path, strlen(path) + 1);
    for (char *slash = strchr(part + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(part, (mode_t)mode) < 0 && errno != EEXIST)
            return -errno;
        *slash = '/';
    }
    return 0;
}

/* --log-dir, as an absolute path: workers may change their folder. */
static int init_given(struct logs *l, const char *dir, struct mu_err *err)
{
    struct stat st;
    int r = mu_path_absolute(dir, l->base, sizeof(l->base) - 1, err);
    if (r < 0)
        return mu_err_wrap(err, "--log-dir");
    size_t n = strlen(l->base);
    (void)memcpy(l->base + n, "/", 2); /* So that the last part is made too. */
    r = logs_make_parents(l->base, 0777);
    l->base[n] = '\0';
    if (r == -ENOTDIR || (r == 0 && stat(l->base, &st) == 0 && !S_ISDIR(st.st_mode)))
        return mu_err_set(err, -ENOTDIR, "--log-dir '%.100s': not a folder", dir);
    if (r < 0)
        return mu_err_set(err, r, "--log-dir '%.100s': %s", dir, strerror(-r));
    l->base_made = true;
    return 0;
}

static int init_default(struct logs *l, const struct logs_config *c, struct mu_err *err)
{
    char tag[LOGS_TAG_BYTES];
    /* As Python's tempfile: a TMPDIR that cannot be written is passed over. */
    bool given = c->tmpdir != NULL && c->tmpdir[0] != '\0' && access(c->tmpdir, W_OK | X_OK) == 0;
    const char *tmp = given ? c->tmpdir : "/tmp";
    int r = random_tag(tag);
    if (r < 0)
        return mu_err_set(err, r, "random name for the log folder: %s", strerror(-r));
    l->is_default = true;
    l->in_memory = tmp != c->tmpdir && !c->has_output && memory_dir_serves();
    int n = snprintf(l->lasting, sizeof(l->lasting), "%s/torchelastic_%s", tmp, tag);
    if ((size_t)n >= sizeof(l->lasting))
        return mu_err_set(err, -ENAMETOOLONG, "TMPDIR '%.100s…' is too long", tmp);
    const char *where = l->in_memory ? MEMORY_DIR : tmp;
    (void)snprintf(l->base, sizeof(l->base), "%s/torchelastic_%s", where, tag);
    return 0;
}

int logs_init(struct logs *l, const struct logs_config *c, struct mu_err *err)
{
    char tag[LOGS_TAG_BYTES];
    *l = (struct logs){.nproc = c->nproc};
    if (c->dir != NULL && strcmp(c->dir, "/dev/null") == 0) {
        l->none = true;
        return 0;
    }
    int r = random_tag(tag);
    if (r < 0)
        return mu_err_set(err, r, "random name for the log folder: %s", strerror(-r));
    (void)snprintf(l->job, sizeof(l->job), "%.*s_%s", MU_RUN_ID_BYTES - 1, c->run_id, tag);
    for (char *slash = strchr(l->job, '/'); slash != NULL; slash = strchr(slash, '/'))
        *slash = '_';
    return c->dir != NULL ? init_given(l, c->dir, err) : init_default(l, c, err);
}

void logs_attempt_path(const struct logs *l, char *ret)
{
    (void)snprintf(ret, LOGS_PATH_BYTES, "%s/%s/attempt_%u", l->base, l->job, l->attempt);
}

bool logs_error_path(const struct logs *l, uint32_t local_rank, bool lasting, char *ret)
{
    const char *base = lasting && l->in_memory ? l->lasting : l->base;
    (void)snprintf(ret, LOGS_PATH_BYTES, "%s/%s/attempt_%u/%u/error.json", base, l->job, l->attempt,
                   local_rank);
    return !l->none;
}

static int make_once(bool *made, const char *path)
{
    if (!*made && mkdir(path, 0700) <
                      0) /* Somebody else's is none of ours, least of all in a shared folder. */
        return -errno;
    *made = true;
    return 0;
}

static int make_ranks(const struct logs *l, const char *attempt)
{
    MU_CLEANUP(mu_closep) int fd = open(attempt, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    for (uint32_t i = 0; i < l->nproc; i++) {
        char name[32];
        (void)snprintf(name, sizeof(name), "%u", i);
        if (mkdirat(fd, name, 0777) == 0)
            continue;
        if (errno != EEXIST)
            return -errno;
        (void)snprintf(name, sizeof(name), "%u/error.json",
                       i); /* An earlier round's: no cause of this one. */
        if (unlinkat(fd, name, 0) < 0 && errno != ENOENT)
            return -errno;
    }
    return 0;
}

int logs_make(struct logs *l, struct mu_err *err)
{
    char path[LOGS_PATH_BYTES];
    if (l->none)
        return 0;
    int r = make_once(&l->base_made, l->base);
    (void)snprintf(path, sizeof(path), "%s/%s", l->base, l->job);
    if (r == 0)
        r = make_once(&l->job_made, path);
    logs_attempt_path(l, path);
    if (r == 0 && mkdir(path, 0777) < 0 && errno != EEXIST)
        r = -errno;
    if (r == 0) {
        l->attempt_low =
            !l->attempt_any || l->attempt < l->attempt_low ? l->attempt : l->attempt_low;
        l->attempt_high = l->attempt > l->attempt_high ? l->attempt : l->attempt_high;
        l->attempt_any = true;
        r = make_ranks(l, path);
    }
    return r < 0 ? mu_err_set(err, r, "make log folder '%.120s': %s", path, strerror(-r)) : 0;
}

/* A folder that holds a file stays by itself: rmdir() refuses. */
static void remove_attempt(const struct logs *l, const char *path)
{
    MU_CLEANUP(mu_closep) int fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    for (uint32_t i = 0; fd >= 0 && i < l->nproc; i++) {
        char name[32];
        if (l->in_memory) { /* What it said was copied when it was read. */
            (void)snprintf(name, sizeof(name), "%u/error.json", i);
            (void)unlinkat(fd, name, 0);
        }
        (void)snprintf(name, sizeof(name), "%u", i);
        (void)unlinkat(fd, name, AT_REMOVEDIR);
    }
    (void)rmdir(path);
}

void logs_cleanup(struct logs *l)
{
    char path[LOGS_PATH_BYTES];
    if (!l->is_default || !l->base_made)
        return;
    for (uint32_t a = l->attempt_low; l->attempt_any && a <= l->attempt_high; a++) {
        l->attempt = a;
        logs_attempt_path(l, path);
        remove_attempt(l, path);
    }
    (void)snprintf(path, sizeof(path), "%s/%s", l->base, l->job);
    (void)rmdir(path);
    (void)rmdir(l->base);
    l->base_made = l->job_made = l->attempt_any = false;
}

#define DEPTH 4 /* base, job, attempt, rank */

static void remove_below(int at, const char *name, int depth, bool in_memory)
{
    DIR *d = NULL;
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0 && (d = fdopendir(fd)) == NULL)
        (void)close(fd);
    for (const struct dirent *e = NULL; d != NULL && (e = readdir(d)) != NULL;) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        if (depth + 1 < DEPTH)
            remove_below(fd, e->d_name, depth + 1, in_memory);
        else if (in_memory && strncmp(e->d_name, "error.json", 10) == 0)
            (void)unlinkat(fd, e->d_name, 0);
    }
    if (d != NULL)
        (void)closedir(d);
    (void)unlinkat(at, name, AT_REMOVEDIR); /* Refused where a file is in it. */
}

void logs_remove(const char *base, bool in_memory)
{
    remove_below(AT_FDCWD, base, 0, in_memory);
}
