/* Checkpoints; see <muster/checkpoint.h>. In a folder:
 *
 *     ROUND                       who writes here: the newest claim
 *     .lock                       held while ROUND is changed, or a checkpoint comes or goes
 *     .writing-<step>-<pid>-<n>/  being written, and locked by its writer as long as that lives
 *     step-<12 digits>/           with DONE in it: whole; without: its writer died before the mark
 *     step-<12 digits>.old/       one that is being replaced, until its successor has its mark
 *
 * At every moment of a commit a whole checkpoint stays whole, under one of its two names.
 *
 * Who of two writers is stale? A handle that has written its number into ROUND and finds another
 * one there has been overtaken: no clock is asked. One that has not yet is asked when its process
 * was started, by the clock of the folder's file system, which the others are asked by as well:
 * hosts' clocks may differ by hours. */
#include <muster/checkpoint.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/parse.h"
#include "base/str.h"
#include "worker-sdk/src/ddp/checkpoint_files.h"
#include "worker-sdk/src/core/sdk.h"

#define WRITING_PREFIX ".writing-"
#define ROUND_ASIDE_PREFIX ".ROUND." /* As files_put() calls it. */
#define STEP_PREFIX "step-"
#define STEP_DIGITS 12
#define STEP_MAX UINT64_C(999999999999)
#define OLD_SUFFIX ".old"
#define LEFT_OVER_S 86400 /* Where nothing can be locked: older than this is no one's any more. */
#define NAME_BYTES 64

/* Who writes here. */
struct claim {
    char run_id[128];
    uint32_t round;
    int64_t started_ms; /* Of rank 0's process, by the file system's clock. */
    uint64_t writer;    /* The handle's number; 0: an older version wrote this. */
};

struct muster_checkpoint {
    struct claim claim;
    uint64_t step;
    int64_t timeout_ns;
    int dir_fd;  /* -1: not rank 0. */
    int lock_fd; /* Of our folder aside. */
    char name[NAME_BYTES];
    char *path;
    bool is_main;
};

/* --- claims --- */

/* Seconds since the machine was started, to a hundredth; sleep counts. */
static int read_uptime(int64_t *ret_ns)
{
    char text[64];
    int r = files_get(AT_FDCWD, "/proc/uptime", text, sizeof text);
    if (r < 0)
        return r;
    text[strcspn(text, " ")] = '\0';
    return mu_parse_seconds(text, 0, INT64_MAX, "uptime", ret_ns, NULL);
}

/* The same clock, for this process's start: field 22 of its stat, in ticks. */
static int read_start(int64_t *ret_ns)
{
    char text[1024];
    int64_t ticks = 0;
    long hz = sysconf(_SC_CLK_TCK);
    int r = files_get(AT_FDCWD, "/proc/self/stat", text, sizeof text);
    if (r < 0)
        return r;
    char *at = strrchr(text, ')'); /* Field 2, the name, may hold anything. */
    for (int field = 2; at != NULL && field < 22; field++)
        at = strchr(at + 1, ' ');
    if (at == NULL || hz <= 0)
        return -EINVAL;
    at++;
    at[strcspn(at, " ")] = '\0';
    r = mu_parse_i64(at, 0, INT64_MAX / MU_NS_PER_S, "starttime", &ticks, NULL);
    if (r == 0)
        *ret_ns = ticks * (MU_NS_PER_S / hz);
    return r;
}

/* What the file system takes for now; a file server has a clock of its own. */
static int64_t folder_now_ms(int lock_fd)
{
    struct stat st;
    if (futimens(lock_fd, NULL) < 0 || fstat(lock_fd, &st) < 0)
        return mu_unix_ms();
    return st.st_mtim.tv_sec * 1000 + st.st_mtim.tv_nsec / MU_NS_PER_MS;
}

/* When this process was started; now, where that cannot be known. */
static int64_t process_started_ms(int64_t now_ms)
{
    int64_t up_ns = 0;
    int64_t start_ns = 0;
    if (read_uptime(&up_ns) < 0 || read_start(&start_ns) < 0)
        return now_ms;
    return now_ms - (up_ns - start_ns) / MU_NS_PER_MS;
}

static bool take_line(char **text, const char *key, char **ret)
{
    size_t n = strlen(key);
    if (strncmp(*text, key, n) != 0)
        return false;
    *ret = *text + n;
    *text = *ret + strcspn(*ret, "\n");
    if (**text == '\n')
        *(*text)++ = '\0';
    return true;
}

/* False: nobody has written here, or what is there is no claim. */
static bool read_claim(int dir_fd, struct claim *ret)
{
    char text[512];
    char *at = text;
    char *run_id = NULL;
    char *round = NULL;
    char *started = NULL;
    char *writer = NULL;
    *ret = (struct claim){0};
    bool is_claim = files_get(dir_fd, "ROUND", text, sizeof text) == 0 &&
                    take_line(&at, "run_id=", &run_id) && take_line(&at, "round=", &round) &&
                    take_line(&at, "started_ms=", &started) &&
                    mu_strcopy(ret->run_id, sizeof ret->run_id, run_id) == 0 &&
                    mu_parse_u32(round, 0, UINT32_MAX, "round", &ret->round, NULL) == 0 &&
                    mu_parse_i64(started, 0, INT64_MAX, "started_ms", &ret->started_ms, NULL) == 0;
    int64_t number = 0;
    if (is_claim && take_line(&at, "writer=", &writer) &&
        mu_parse_i64(writer, 1, INT64_MAX, "writer", &number, NULL) == 0)
        ret->writer = (uint64_t)number;
    return is_claim;
}

static int write_claim(int dir_fd, const struct claim *c)
{
    char text[512];
    int n = snprintf(text, sizeof text,
                     "run_id=%s\nround=%u\nstarted_ms=%" PRId64 "\nwriter=%" PRIu64 "\n", c->run_id,
                     c->round, c->started_ms, c->writer);
    return n < 0 || (size_t)n >= sizeof text ? -ENAMETOOLONG
                                             : files_put(dir_fd, "ROUND", text, (size_t)n);
}

static bool same_run(const struct claim *a, const struct claim *b)
{
    return strcmp(a->run_id, b->run_id) == 0;
}

/* Clock ticks and two clocks make a process's start uncertain by this much. */
#define START_SLACK_MS 50

static bool same_claim(const struct claim *a, const struct claim *b)
{
    if (a->writer != 0 && a->writer == b->writer)
        return true;
    /* An earlier handle of this process, or of an older version. */
    return same_run(a, b) && a->round == b->round &&
           llabs(a->started_ms - b->started_ms) <= START_SLACK_MS;
}

/* has_claimed: we have written ours there before, so what is there now came after it. A start that
 * lies in the future was told by a clock that is wrong, and proves nothing. */
static bool
is_stale(const struct claim *ours, const struct claim *there, bool has_claimed, int64_t now_ms)
{
    if (same_claim(ours, there))
        return false;
    if (has_claimed)
        return true;
    if ((same_run(ours, there) && ours->round > there->round) ||
        there->started_ms > now_ms + START_SLACK_MS)
        return false;
    return ours->started_ms <= there->started_ms + START_SLACK_MS;
}

/* Under the lock. */
static int check_claim(int dir_fd,
                       const struct claim *ours,
                       bool has_claimed,
                       int64_t now_ms,
                       struct muster_error *err)
{
    struct claim there;
    if (!read_claim(dir_fd, &there) || !is_stale(ours, &there, has_claimed, now_ms))
        return 0;
    return sdk_error(err, -ESTALE,
                     "checkpoint: round %u of job %.60s is over: round %u of job %.60s writes here "
                     "now; leave, this process is stale (if not, remove ROUND there)",
                     ours->round, ours->run_id, there.round, there.run_id);
}

/* --- which folders a handle has claimed --- */

static int find_claimed(const muster *m, const struct stat *st)
{
    for (uint32_t i = 0; i < m->checkpoints.claimed_count; i++)
        if (m->checkpoints.claimed[i].device == st->st_dev &&
            m->checkpoints.claimed[i].inode == st->st_ino)
            return (int)i;
    return -1;
}

static void note_claimed(muster *m, const struct stat *st)
{
    uint32_t at = m->checkpoints.claimed_count;
    if (find_claimed(m, st) >= 0 || at == SDK_CLAIMS_MAX)
        return; /* Too many: the start decides there. */
    m->checkpoints.claimed[at].device = st->st_dev;
    m->checkpoints.claimed[at].inode = st->st_ino;
    m->checkpoints.claimed_count++;
}

static uint64_t writer_of(muster *m)
{
    uint64_t *w = &m->checkpoints.writer;
    if (*w == 0 && getrandom(w, sizeof *w, 0) != (ssize_t)sizeof *w)
        *w = (uint64_t)mu_now_ns() ^ (uint64_t)getpid() << 32;
    *w = (*w & INT64_MAX) | 1; /* Never 0, and a number that JSON and shells can hold. */
    return *w;
}

/* --- the folder --- */

static int open_folder(const char *dir, bool make, int *ret_fd, struct muster_error *err)
{
    if (make && mkdir(dir, 0777) < 0 && errno != EEXIST)
        return sdk_error(err, -errno, "checkpoint: make folder '%.120s': %s", dir, strerror(errno));
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return sdk_error(err, -errno, "checkpoint: open folder '%.120s': %s", dir, strerror(errno));
    *ret_fd = fd;
    return 0;
}

/* The folder's lock, freed when *ret_fd is closed, or we die. */
static int lock_folder(int dir_fd, int64_t timeout_ns, int *ret_fd, struct muster_error *err)
{
    MU_CLEANUP(mu_closep)
    int fd = openat(dir_fd, ".lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0)
        return sdk_error(err, -errno, "checkpoint: open '.lock' in its folder: %s",
                         strerror(errno));
    int r = files_lock(fd, sdk_deadline_ns(timeout_ns));
    if (r < 0)
        return sdk_error(err, r,
                         "checkpoint: another process has held '.lock' in its folder for %" PRId64
                         " ms: end it",
                         timeout_ns / MU_NS_PER_MS);
    *ret_fd = mu_steal_fd(&fd);
    return 0;
}

static void step_name(uint64_t step, const char *suffix, char ret[NAME_BYTES])
{
    (void)snprintf(ret, NAME_BYTES, STEP_PREFIX "%0*" PRIu64 "%s", STEP_DIGITS, step, suffix);
}

/* Is it a name of ours for a checkpoint that came to be? */
static bool parse_step(const char *name, uint64_t *ret_step, bool *ret_old)
{
    char digits[STEP_DIGITS + 1] = "";
    int64_t step = 0;
    if (strncmp(name, STEP_PREFIX, strlen(STEP_PREFIX)) != 0)
        return false;
    name += strlen(STEP_PREFIX);
    if (strspn(name, "0123456789") != STEP_DIGITS)
        return false;
    memcpy(digits, name, STEP_DIGITS);
    name += STEP_DIGITS;
    *ret_old = strcmp(name, OLD_SUFFIX) == 0;
    if (!*ret_old && *name != '\0')
        return false;
    if (mu_parse_i64(digits, 0, (int64_t)STEP_MAX, "step", &step, NULL) < 0)
        return false;
    *ret_step = (uint64_t)step;
    return true;
}

static bool is_whole(int dir_fd, const char *name)
{
    MU_CLEANUP(mu_closep) int fd = openat(dir_fd, name, O_PATH | O_DIRECTORY | O_CLOEXEC);
    return fd >= 0 && faccessat(fd, "DONE", F_OK, 0) == 0;
}

static bool is_there(int dir_fd, const char *name)
{
    return faccessat(dir_fd, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

/* The mark first, and for good: what is half removed must not look whole. */
static int remove_checkpoint(int dir_fd, const char *name)
{
    MU_CLEANUP(mu_closep) int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? 0 : -errno;
    if (unlinkat(fd, "DONE", 0) == 0) {
        if (fsync(fd) < 0)
            return -errno;
    } else if (errno != ENOENT) {
        return -errno;
    }
    return files_remove_tree(dir_fd, name);
}

/* --- begin --- */

static int make_aside(struct muster_checkpoint *k, const char *dir, struct muster_error *err)
{
    for (unsigned n = 0;; n++) {
        (void)snprintf(k->name, sizeof k->name, WRITING_PREFIX "%" PRIu64 "-%d-%u", k->step,
                       (int)getpid(), n);
        if (mkdirat(k->dir_fd, k->name, 0777) == 0)
            break;
        if (errno != EEXIST)
            return sdk_error(err, -errno, "checkpoint: make '%.120s/%s': %s", dir, k->name,
                             strerror(errno));
    }
    size_t bytes = strlen(dir) + 1 + sizeof k->name;
    k->path = mu_alloc(mu_mem_default(), bytes);
    k->lock_fd = openat(k->dir_fd, k->name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (k->path == NULL || k->lock_fd < 0)
        return sdk_error(err, k->path == NULL ? -ENOMEM : -errno,
                         "checkpoint: no memory or descriptor for '%.120s'", dir);
    (void)snprintf(k->path, bytes, "%s/%s", dir, k->name);
    (void)files_lock(k->lock_fd, 0); /* Nobody else knows it yet. */
    return 0;
}

/* Under the lock. */
static int claim_folder(
    muster *m, struct muster_checkpoint *k, int lock_fd, const char *dir, struct muster_error *err)
{
    struct claim there;
    struct stat st = {0};
    int64_t now_ms = folder_now_ms(lock_fd);
    k->claim.started_ms = process_started_ms(now_ms);
    k->claim.writer = writer_of(m);
    if (fstat(k->dir_fd, &st) < 0)
        return sdk_error(err, -errno, "checkpoint: look at '%.120s': %s", dir, strerror(errno));
    int r = check_claim(k->dir_fd, &k->claim, find_claimed(m, &st) >= 0, now_ms, err);
    if (r < 0)
        return r;
    if (!read_claim(k->dir_fd, &there) || !same_claim(&k->claim, &there)) {
        r = write_claim(k->dir_fd, &k->claim);
        if (r < 0)
            return sdk_error(err, r, "checkpoint: write '%.120s/ROUND': %s", dir, strerror(-r));
    }
    note_claimed(m, &st);
    return 0;
}

static int
begin_main(muster *m, struct muster_checkpoint *k, const char *dir, struct muster_error *err)
{
    MU_CLEANUP(mu_closep) int lock_fd = -1;
    int r = open_folder(dir, true, &k->dir_fd, err);
    if (r == 0)
        r = lock_folder(k->dir_fd, k->timeout_ns, &lock_fd, err);
    if (r == 0)
        r = claim_folder(m, k, lock_fd, dir, err);
    return r < 0 ? r : make_aside(k, dir, err);
}

static int wait_for_all(muster *m, muster_comm *c, struct muster_error *err)
{
    if (m->env.world == 1)
        return 0;
    if (c == NULL)
        return sdk_error(
            err, -EINVAL,
            "checkpoint: give the communicator of all ranks: only a world of one needs "
            "none");
    int r = muster_comm_barrier(c, m->timeout_ns, err);
    return r < 0 ? sdk_error_wrap(err, r, "checkpoint") : 0;
}

int muster_checkpoint_begin(muster *m,
                            muster_comm *c,
                            const char *dir,
                            uint64_t step,
                            muster_checkpoint **ret,
                            struct muster_error *err)
{
    if (step > STEP_MAX)
        return sdk_error(err, -ERANGE, "checkpoint: step %" PRIu64 " has more than %d digits", step,
                         STEP_DIGITS);
    int r = wait_for_all(m, c, err);
    if (r < 0)
        return r;
    struct muster_checkpoint *k = mu_zalloc(mu_mem_default(), sizeof *k);
    if (k == NULL)
        return sdk_error(err, -ENOMEM, "checkpoint: no memory");
    k->dir_fd = k->lock_fd = -1;
    k->step = step;
    k->timeout_ns = m->timeout_ns;
    k->is_main = m->env.rank == 0;
    k->claim.round = m->env.round;
    (void)mu_strcopy(k->claim.run_id, sizeof k->claim.run_id, m->env.run_id); /* The same size. */
    if (k->is_main)
        r = begin_main(m, k, dir, err);
    if (r < 0) {
        muster_checkpoint_discard(k);
        return r;
    }
    *ret = k;
    return 0;
}

const char *muster_checkpoint_path(const muster_checkpoint *k)
{
    return k->path;
}

/* --- commit --- */

static void free_checkpoint(struct muster_checkpoint *k)
{
    if (k->lock_fd >= 0)
        (void)close(k->lock_fd);
    if (k->dir_fd >= 0)
        (void)close(k->dir_fd);
    mu_mem_free(mu_mem_default(), k->path);
    mu_mem_free(mu_mem_default(), k);
}

void muster_checkpoint_discard(muster_checkpoint *k)
{
    if (k == NULL)
        return;
    if (k->is_main && k->dir_fd >= 0 && k->name[0] != '\0')
        (void)files_remove_tree(k->dir_fd, k->name); /* Else prune does it. */
    free_checkpoint(k);
}

/* The mark, with what a person may want to know. */
static int mark_done(const struct muster_checkpoint *k, const char *name)
{
    MU_CLEANUP(mu_closep) int fd = openat(k->dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    MU_CLEANUP(mu_buf_fini) struct mu_buf b;
    struct mu_json j;
    char when[32];
    mu_buf_init(&b, mu_mem_default());
    if (fd < 0)
        return -errno;
    mu_json_init(&j, &b);
    mu_json_open(&j, '{');
    mu_json_ki64(&j, "step", (int64_t)k->step);
    mu_json_kstr(&j, "run_id", k->claim.run_id);
    mu_json_ki64(&j, "round", k->claim.round);
    mu_json_kstr(&j, "time", mu_iso8601(mu_unix_ms(), when));
    mu_json_close(&j, '}');
    (void)mu_buf_adds(&b, "\n");
    return b.oom ? -ENOMEM : files_put(fd, "DONE", b.p, b.n);
}

/* Make the name free for us: what is whole there steps aside and stays whole. */
static int step_aside(int dir_fd, const char *name, const char *old)
{
    if (!is_there(dir_fd, name))
        return 0;
    if (!is_whole(dir_fd, name))
        return remove_checkpoint(dir_fd, name);
    int r = remove_checkpoint(dir_fd, old);
    if (r == 0 && renameat(dir_fd, name, dir_fd, old) < 0)
        r = -errno;
    return r;
}

/* Under the lock. `what` names the step that failed. */
static int
put_in_place(struct muster_checkpoint *k, const char *name, const char *old, const char **what)
{
    *what = "make room";
    int r = step_aside(k->dir_fd, name, old);
    if (r < 0)
        return r;
    *what = "rename";
    if (renameat(k->dir_fd, k->name, k->dir_fd, name) < 0)
        return -errno;
    (void)mu_strcopy(k->name, sizeof k->name, name); /* What to remove when the rest fails. */
    *what = "sync its folder";
    if (fsync(k->dir_fd) < 0)
        return -errno;
    *what = "write DONE";
    return mark_done(k, name);
}

static int commit_main(struct muster_checkpoint *k, struct muster_error *err)
{
    MU_CLEANUP(mu_closep) int lock_fd = -1;
    char name[NAME_BYTES];
    char old[NAME_BYTES];
    const char *what = "sync";
    step_name(k->step, "", name);
    step_name(k->step, OLD_SUFFIX, old);
    int r = files_sync_tree(k->dir_fd, k->name);
    if (r < 0)
        return sdk_error(err, r, "checkpoint: sync '%.120s': %s", k->path, strerror(-r));
    r = lock_folder(k->dir_fd, k->timeout_ns, &lock_fd, err);
    if (r == 0) /* Begin has claimed it. */
        r = check_claim(k->dir_fd, &k->claim, true, 0, err);
    if (r < 0)
        return r;
    r = put_in_place(k, name, old, &what);
    if (r == 0) {
        (void)remove_checkpoint(k->dir_fd, old); /* Else prune does it. */
        return 0;
    }
    (void)remove_checkpoint(k->dir_fd, k->name);
    k->name[0] = '\0'; /* The one that stepped aside comes back, and it may have that name. */
    if (is_whole(k->dir_fd, old) && !is_there(k->dir_fd, name))
        (void)renameat(k->dir_fd, old, k->dir_fd, name);
    return sdk_error(err, r, "checkpoint: %s of '%s': %s", what, name, strerror(-r));
}

int muster_checkpoint_commit(muster_checkpoint *k, struct muster_error *err)
{
    int r = k->is_main ? commit_main(k, err) : 0;
    if (r < 0) {
        muster_checkpoint_discard(k);
        return r;
    }
    free_checkpoint(k);
    return 0;
}

/* --- latest and prune --- */

/* The names in a folder, sorted, so that it may change while one works. */
struct names {
    struct dirent **list;
    int count;
};

static void names_fini(struct names *n)
{
    for (int i = 0; i < n->count; i++)
        free(n->list[i]);
    free(n->list);
}

static int by_bytes(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int list_names(int dir_fd, struct names *ret, struct muster_error *err)
{
    int n = scandirat(dir_fd, ".", &ret->list, NULL, by_bytes);
    if (n < 0)
        return sdk_error(err, -errno, "checkpoint: list its folder: %s", strerror(errno));
    ret->count = n;
    return 0;
}

int muster_checkpoint_latest(const char *dir,
                             uint64_t *ret_step,
                             char *ret_path,
                             size_t path_bytes,
                             struct muster_error *err)
{
    MU_CLEANUP(mu_closep) int dir_fd = -1;
    MU_CLEANUP(names_fini) struct names n = {0};
    int r = open_folder(dir, false, &dir_fd, err);
    if (r == -ENOENT)
        return 0;
    if (r == 0)
        r = list_names(dir_fd, &n, err);
    if (r < 0)
        return r;
    for (int i = n.count; i-- > 0;) { /* The names sort by step, and ".old" behind its own. */
        const char *name = n.list[i]->d_name;
        uint64_t step = 0;
        bool is_old = false;
        if (!parse_step(name, &step, &is_old) || !is_whole(dir_fd, name))
            continue;
        char fresh[NAME_BYTES];
        step_name(step, "", fresh);
        if (is_old && is_whole(dir_fd, fresh))
            continue;
        if ((size_t)snprintf(ret_path, path_bytes, "%s/%s", dir, name) >= path_bytes)
            return sdk_error(err, -ENAMETOOLONG,
                             "checkpoint: the path of '%.120s/%s' has more than %zu bytes", dir,
                             name, path_bytes - 1);
        *ret_step = step;
        return 1;
    }
    return 0;
}

/* Does a living process write there? */
static bool is_being_written(int dir_fd, const char *name, int64_t now_ms)
{
    struct stat st;
    MU_CLEANUP(mu_closep) int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return false;
    if (files_lock(fd, 0) < 0)
        return true;
    MU_CLEANUP(mu_closep) int again = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool has_locks = again >= 0 && files_lock(again, 0) == -ETIMEDOUT;
    return !has_locks && now_ms / 1000 - (int64_t)st.st_mtime < LEFT_OVER_S;
}

/* Under the lock: nobody is between rename and mark. */
static bool is_left_over(int dir_fd, const char *name, int64_t now_ms)
{
    uint64_t step = 0;
    bool is_old = false;
    char fresh[NAME_BYTES];
    if (strncmp(name, WRITING_PREFIX, strlen(WRITING_PREFIX)) == 0)
        return !is_being_written(dir_fd, name, now_ms);
    if (strncmp(name, ROUND_ASIDE_PREFIX, strlen(ROUND_ASIDE_PREFIX)) == 0)
        return true;
    if (!parse_step(name, &step, &is_old))
        return false; /* Not ours. */
    step_name(step, "", fresh);
    return !is_whole(dir_fd, name) || (is_old && is_whole(dir_fd, fresh));
}

static int remove_left_over(int dir_fd, const char *name)
{
    if (strncmp(name, ROUND_ASIDE_PREFIX, strlen(ROUND_ASIDE_PREFIX)) != 0)
        return remove_checkpoint(dir_fd, name);
    return unlinkat(dir_fd, name, 0) < 0 && errno != ENOENT ? -errno : 0;
}

int muster_checkpoint_prune(const char *dir, size_t keep, struct muster_error *err)
{
    MU_CLEANUP(mu_closep) int dir_fd = -1;
    MU_CLEANUP(mu_closep) int lock_fd = -1;
    MU_CLEANUP(names_fini) struct names n = {0};
    size_t kept = 0;
    int r = open_folder(dir, false, &dir_fd, err);
    if (r == -ENOENT)
        return 0;
    if (r == 0)
        r = lock_folder(dir_fd, 60 * MU_NS_PER_S, &lock_fd, err);
    if (r == 0)
        r = list_names(dir_fd, &n, err);
    int64_t now_ms = r == 0 ? folder_now_ms(lock_fd) : 0;
    for (int i = n.count; r == 0 && i-- > 0;) {
        const char *name = n.list[i]->d_name;
        uint64_t step = 0;
        bool is_old = false;
        bool goes = is_left_over(dir_fd, name, now_ms);
        if (!goes && parse_step(name, &step, &is_old))
            goes = ++kept > keep;
        if (!goes)
            continue;
        int gone = remove_left_over(dir_fd, name);
        if (gone < 0)
            r = sdk_error(err, gone, "checkpoint: remove '%.120s/%s': %s", dir, name,
                          strerror(-gone));
    }
    return r;
}
