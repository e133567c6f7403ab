/* The files of jobs' output; see kept.h. */
#include "agent/service/kept.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/parse.h"

#define SUFFIX ".log"
#define NAME_BYTES (MU_RUN_ID_BYTES + 32)
#define SWEEP_BYTES                                                                                \
    (UINT64_C(16) << 20) /* How much is written between two looks at the folder.                   \
                          */

struct keeper {
    struct keeper *next; /* In kept.keepers. */
    struct kept *logs;
    char job[MU_RUN_ID_BYTES];
    uint32_t attempt;
    uint32_t part;
    int fd; /* -1: it could not be opened yet. */
    uint64_t part_bytes;
    uint64_t lines;     /* Records so far, in all parts. */
    uint64_t gap_lines; /* Lost behind the last one in the file. */
    uint64_t noted;     /* Of these, what `out` begins with a note of. */
    int open_error;
    uint64_t lost;
    int lost_error; /* Why the last of them were. */
    int64_t lost_ms;
    bool told;
    bool ended; /* Nothing more comes, and a gap at the end was to be noted. */
    bool busy;
    struct mu_buf batch; /* The caller's, */
    struct mu_buf out;   /* and what is being written. */
    uint32_t batch_lines;
    uint32_t out_lines;
    void (*on_written)(void *arg);
    void *arg;

    uv_work_t req;
    size_t kept; /* Of `out`: the pool's answer. */
    int error;
    int remove_part; /* To be removed first; -1: none. */
};

/* --- names --- */

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
}

bool kept_is_name(const char *job)
{
    size_t n = strlen(job);
    for (size_t i = 0; i < n; i++)
        if (!is_word(job[i]))
            return false;
    return n > 0 && n < MU_RUN_ID_BYTES && job[0] != '.' && job[0] != '-';
}

static void name_of(const char *job, struct kept_part part, char *ret)
{
    (void)snprintf(ret, NAME_BYTES, "%s.%u.%u" SUFFIX, job, part.attempt, part.part);
}

/* The number behind the last dot of name[0, *n), which ends before it then. */
static bool take_number(const char *name, size_t *n, uint32_t *ret)
{
    size_t at = *n;
    uint64_t v = 0;
    while (at > 0 && name[at - 1] >= '0' && name[at - 1] <= '9')
        at--;
    if (at == *n || at < 2 || name[at - 1] != '.' || *n - at > 10)
        return false;
    for (size_t i = at; i < *n; i++)
        v = v * 10 + (uint64_t)(name[i] - '0');
    *n = at - 1;
    *ret = (uint32_t)v;
    return v <= UINT32_MAX;
}

/* "job.2.0.log": ret_job has MU_RUN_ID_BYTES. */
static bool read_name(const char *name, char *ret_job, struct kept_part *ret)
{
    size_t n = strlen(name);
    size_t suffix = sizeof SUFFIX - 1;
    if (n <= suffix || strcmp(name + n - suffix, SUFFIX) != 0)
        return false;
    n -= suffix;
    if (!take_number(name, &n, &ret->part) || !take_number(name, &n, &ret->attempt) ||
        n >= MU_RUN_ID_BYTES)
        return false;
    memcpy(ret_job, name, n);
    ret_job[n] = '\0';
    return true;
}

static int compare(struct kept_part a, struct kept_part b)
{
    if (a.attempt != b.attempt)
        return a.attempt < b.attempt ? -1 : 1;
    return a.part < b.part ? -1 : a.part > b.part;
}

/* --- the folder --- */

static DIR *open_folder(const struct kept *l)
{
    int fd = openat(l->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (d == NULL && fd >= 0)
        (void)close(fd);
    return d;
}

bool kept_next(const struct kept *l,
               const char *job,
               const struct kept_part *after,
               struct kept_part *ret)
{
    MU_CLEANUP(mu_closedirp) DIR *d = open_folder(l);
    bool found = false;
    for (const struct dirent *e = d != NULL ? readdir(d) : NULL; e != NULL; e = readdir(d)) {
        char name[MU_RUN_ID_BYTES];
        struct kept_part p;
        if (!read_name(e->d_name, name, &p) || strcmp(name, job) != 0)
            continue;
        if ((after != NULL && compare(p, *after) <= 0) || (found && compare(p, *ret) > 0))
            continue;
        *ret = p;
        found = true;
    }
    return found;
}

bool kept_last(const struct kept *l, const char *job, struct kept_part *ret)
{
    struct kept_part at;
    bool found = kept_next(l, job, NULL, &at);
    *ret = at;
    while (found && kept_next(l, job, &at, ret))
        at = *ret;
    if (found)
        *ret = at;
    return found;
}

int kept_open(const struct kept *l, const char *job, struct kept_part part)
{
    char name[NAME_BYTES];
    name_of(job, part, name);
    int fd = openat(l->dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    return fd < 0 ? -errno : fd;
}

/* Each folder of the path that is missing; only ours are closed to others. */
static int make_folders(const char *dir)
{
    char path[MU_DIR_BYTES];
    if (mu_strcopy(path, sizeof path, dir) < 0)
        return -ENAMETOOLONG;
    for (char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(path, 0755) < 0 && errno != EEXIST)
            return -errno;
        *slash = '/';
    }
    return mkdir(path, 0700) < 0 && errno != EEXIST ? -errno : 0;
}

int kept_init(struct kept *l, const char *dir, struct mu_err *err)
{
    l->dir_fd = -1;
    if (mu_strcopy(l->dir, sizeof l->dir, dir) < 0)
        return mu_err_set(err, -ENAMETOOLONG, "--log-dir: the path is longer than %zu characters",
                          sizeof l->dir - 1);
    int r = make_folders(dir);
    l->dir_fd = r < 0 ? -1 : open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (r == 0 && l->dir_fd < 0)
        r = -errno;
    if (r == 0 && faccessat(l->dir_fd, ".", W_OK | X_OK, AT_EACCESS) < 0)
        r = -errno;
    if (r < 0)
        return mu_err_set(
            err, r,
            "the output of jobs cannot be kept in '%.120s': %s; name a folder of this "
            "user's with --log-dir",
            dir, strerror(-r));
    if (l->lock_fd >= 0) /* It has been ours all along. */
        return 0;
    l->lock_fd = openat(l->dir_fd, ".lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (l->lock_fd >= 0 && flock(l->lock_fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK)
        return mu_err_set(err, -EBUSY,
                          "another service keeps the output of its jobs in '%.100s': name another "
                          "folder with --log-dir",
                          dir);
    return 0;
}

/* Where it was removed under us: as at the start. */
static int renew_folder(struct kept *l, struct mu_err *err)
{
    char dir[sizeof l->dir];
    memcpy(dir, l->dir, sizeof dir);
    kept_fini(l);
    return kept_init(l, dir, err);
}

void kept_fini(struct kept *l)
{
    if (l->dir_fd >= 0)
        (void)close(l->dir_fd);
    if (l->lock_fd >= 0)
        (void)close(l->lock_fd);
    l->dir_fd = l->lock_fd = -1;
}

struct record_now kept_now(const struct kept *l, char *at)
{
    int64_t ms = mu_unix_ms();
    return (struct record_now){.at = mu_iso8601(ms, at), .unix_ms = ms, .host = l->host};
}

/* --- what was lost at the end --- */

static struct kept_gap *find_noted(struct kept *l, const char *job)
{
    for (size_t i = 0; i < KEPT_GAPS_MAX; i++)
        if (l->gaps[i].lines > 0 && strcmp(l->gaps[i].job, job) == 0)
            return &l->gaps[i];
    return NULL;
}

/* In place of that job's, a free one, or the oldest. */
void kept_note_gap(struct kept *l, const struct kept_gap *gap)
{
    struct kept_gap *at = find_noted(l, gap->job);
    for (size_t i = 0; at == NULL && i < KEPT_GAPS_MAX; i++)
        at = l->gaps[i].lines == 0 ? &l->gaps[i] : NULL;
    if (at == NULL) {
        at = &l->gaps[0];
        for (size_t i = 1; i < KEPT_GAPS_MAX; i++)
            at = l->gaps[i].unix_ms < at->unix_ms ? &l->gaps[i] : at;
    }
    *at = *gap;
}

static void forget_gap(struct kept *l, const char *job)
{
    struct kept_gap *gap = find_noted(l, job);
    if (gap != NULL)
        gap->lines = 0;
}

static struct kept_gap gap_of(const struct keeper *g)
{
    struct kept_gap gap = {.lines = g->gap_lines, .error = g->lost_error, .unix_ms = g->lost_ms};
    memcpy(gap.job, g->job, sizeof gap.job);
    return gap;
}

static void take_gap(struct keeper *g, const struct kept_gap *gap)
{
    g->gap_lines += gap->lines;
    g->lost_error = gap->error;
    g->lost_ms = gap->unix_ms;
}

bool kept_find_gap(const struct kept *l, const char *job, struct kept_gap *ret)
{
    for (const struct keeper *g = l->keepers; g != NULL; g = g->next) {
        if (strcmp(g->job, job) != 0)
            continue;
        *ret = gap_of(g);
        return ret->lines > 0;
    }
    for (size_t i = 0; i < KEPT_GAPS_MAX; i++) {
        *ret = l->gaps[i];
        if (ret->lines > 0 && strcmp(ret->job, job) == 0)
            return true;
    }
    return false;
}

void kept_gap_text(const struct kept_gap *gap, char *ret)
{
    (void)snprintf(ret, KEPT_GAP_BYTES, "[%" PRIu64 " lines are missing here: %s]", gap->lines,
                   strerror(gap->error));
}

/* --- whose it is --- */

#define ASIDE '~' /* In no id. */
#define STAMP_BYTES 21

/* ".train.1790000000000" */
static void mark_name(const char *job, int64_t submitted_ms, char *ret)
{
    (void)snprintf(ret, NAME_BYTES, ".%s.%" PRId64, job, submitted_ms);
}

/* When the job was submitted whose output is there; 0: not known. */
static int64_t owner_of(const struct kept *l, const char *job)
{
    size_t n = strlen(job);
    int64_t found = 0;
    MU_CLEANUP(mu_closedirp) DIR *d = open_folder(l);
    for (const struct dirent *e = d != NULL ? readdir(d) : NULL; e != NULL; e = readdir(d)) {
        const char *p = e->d_name;
        if (p[0] == '.' && strncmp(p + 1, job, n) == 0 && p[n + 1] == '.' &&
            mu_parse_i64(p + n + 2, 1, INT64_MAX, "mark", &found, NULL) == 0)
            return found;
    }
    return 0;
}

static void remove_mark(struct kept *l, const char *job)
{
    char name[NAME_BYTES];
    int64_t owner = owner_of(l, job);
    if (owner == 0)
        return;
    mark_name(job, owner, name);
    (void)unlinkat(l->dir_fd, name, 0);
}

/* Of a long id the beginning: the name must be one of ours, or nobody would ever remove it. */
static void aside_name(const char *job, int64_t stamp, char *ret)
{
    (void)snprintf(ret, KEPT_ASIDE_BYTES, "%.*s%c%" PRId64, KEPT_ASIDE_BYTES - 2 - STAMP_BYTES, job,
                   ASIDE, stamp);
}

static int move_aside(struct kept *l, const char *job, const char *aside)
{
    struct kept_part part;
    int count = 0;
    while (kept_next(l, job, NULL, &part)) {
        char from[NAME_BYTES];
        char to[NAME_BYTES];
        name_of(job, part, from);
        name_of(aside, part, to);
        if (renameat(l->dir_fd, from, l->dir_fd, to) < 0 && unlinkat(l->dir_fd, from, 0) < 0)
            break; /* Nothing can be done in this folder. */
        count++;
    }
    return count;
}

int kept_claim(
    struct kept *l, const char *job, uint32_t attempt, int64_t submitted_ms, char *ret_aside)
{
    char name[NAME_BYTES];
    int64_t owner = submitted_ms > 0 ? owner_of(l, job) : 0;
    int count = 0;
    if (submitted_ms == 0 || owner == submitted_ms)
        return 0;
    /* Without a mark, of an older version: a first start has no output yet, and a further one goes
     * on with what is there. */
    aside_name(job, owner > 0 ? owner : mu_unix_ms(), ret_aside);
    if (owner > 0 || attempt == 1)
        count = move_aside(l, job, ret_aside);
    forget_gap(l, job);
    remove_mark(l, job);
    mark_name(job, submitted_ms, name);
    MU_CLEANUP(mu_closep)
    int fd = openat(l->dir_fd, name, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY, 0600);
    (void)fd; /* Without it the next namesake is told by its first start. */
    return count;
}

bool kept_is_of(const struct kept *l, const char *job, int64_t submitted_ms)
{
    int64_t owner = submitted_ms > 0 ? owner_of(l, job) : 0;
    return owner == 0 || owner == submitted_ms;
}

/* --- too much of it --- */

struct kept_file {
    char name[NAME_BYTES];
    char job[MU_RUN_ID_BYTES];
    struct kept_part part;
    int64_t changed_ns;
    uint64_t bytes;
};

static int by_age(const void *a, const void *b)
{
    const struct kept_file *x = a;
    const struct kept_file *y = b;
    int jobs = strcmp(x->job, y->job);
    if (jobs == 0)
        return compare(x->part, y->part);
    if (x->changed_ns != y->changed_ns)
        return x->changed_ns < y->changed_ns ? -1 : 1;
    return jobs;
}

static bool look_at(const struct kept *l, const char *name, struct kept_file *ret)
{
    struct stat st;
    if (strlen(name) >= sizeof ret->name || !read_name(name, ret->job, &ret->part) ||
        fstatat(l->dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode))
        return false;
    memcpy(ret->name, name, strlen(name) + 1);
    ret->changed_ns = (int64_t)st.st_mtim.tv_sec * MU_NS_PER_S + st.st_mtim.tv_nsec;
    ret->bytes = (uint64_t)st.st_blocks * 512;
    return true;
}

/* All that is there, in `files`; returns the bytes. */
static uint64_t list_files(const struct kept *l, struct mu_buf *files)
{
    uint64_t total = 0;
    MU_CLEANUP(mu_closedirp) DIR *d = open_folder(l);
    for (const struct dirent *e = d != NULL ? readdir(d) : NULL; e != NULL; e = readdir(d)) {
        struct kept_file f;
        if (!look_at(l, e->d_name, &f))
            continue;
        total += f.bytes;
        if (l->live_attempt(l->arg, f.job) != f.part.attempt)
            (void)mu_buf_add(files, &f, sizeof f); /* Without memory it stays for another time. */
    }
    return total;
}

void kept_sweep(struct kept *l)
{
    MU_CLEANUP(mu_buf_fini) struct mu_buf files;
    mu_buf_init(&files, mu_mem_default());
    l->since_sweep = 0;
    uint64_t total = list_files(l, &files);
    struct kept_file *f = (struct kept_file *)(void *)files.p;
    size_t count = files.n / sizeof *f;
    if (total <= l->all_bytes || count == 0)
        return;
    qsort(f, count, sizeof *f, by_age);
    for (size_t i = 0; i < count && total > l->all_bytes; i++) {
        struct kept_part next;
        if (unlinkat(l->dir_fd, f[i].name, 0) < 0)
            continue;
        total -= f[i].bytes < total ? f[i].bytes : total;
        if (kept_next(l, f[i].job, NULL, &next))
            continue;
        forget_gap(l, f[i].job);
        remove_mark(l, f[i].job);
        if (strchr(f[i].job, ASIDE) == NULL)
            l->on_gone(l->arg, f[i].job);
    }
}

/* --- one job's --- */

static int open_at_end(const struct kept *l, const char *name)
{
    return openat(l->dir_fd, name,
                  O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY, 0600);
}

/* The present part, at its end. */
static void open_part(struct keeper *g)
{
    char name[NAME_BYTES];
    struct stat st;
    name_of(g->job, (struct kept_part){g->attempt, g->part}, name);
    g->fd = open_at_end(g->logs, name);
    if (g->fd < 0 && errno == ENOENT) { /* Somebody has removed the folder. */
        struct mu_err err = {0};
        if (renew_folder(g->logs, &err) < 0)
            mu_log(MU_WARN, "service.folder", "why=\"%s\"", err.msg);
        g->fd = open_at_end(g->logs, name);
    }
    g->open_error = g->fd < 0 ? errno : 0;
    g->part_bytes = g->fd >= 0 && fstat(g->fd, &st) == 0 ? (uint64_t)st.st_size : 0;
}

struct keeper *keeper_new(struct kept *l,
                          const char *job,
                          uint32_t attempt,
                          uint32_t part,
                          uint64_t lines,
                          void (*on_written)(void *arg),
                          void *arg)
{
    struct keeper *g = mu_zalloc(mu_mem_default(), sizeof *g);
    if (g == NULL || mu_strcopy(g->job, sizeof g->job, job) < 0) {
        free(g);
        return NULL;
    }
    g->logs = l;
    g->attempt = attempt;
    g->part = part;
    g->lines = lines;
    g->on_written = on_written;
    g->arg = arg;
    g->remove_part = -1;
    mu_buf_init(&g->batch, mu_mem_default());
    mu_buf_init(&g->out, mu_mem_default());
    open_part(g);
    struct kept_gap *before = find_noted(l, job);
    if (before != NULL) { /* It is noted where this start's output begins. */
        take_gap(g, before);
        before->lines = 0;
    }
    g->next = l->keepers;
    l->keepers = g;
    return g;
}

bool keeper_is_busy(const struct keeper *g)
{
    return g->busy;
}

struct mu_buf *keeper_batch(struct keeper *g)
{
    return &g->batch;
}

uint32_t keeper_part_of(const struct keeper *g)
{
    return g->part;
}

uint64_t keeper_lines_of(const struct keeper *g)
{
    return g->lines;
}

uint64_t keeper_lost(const struct keeper *g)
{
    return g->lost;
}

int keeper_error(const struct keeper *g)
{
    return g->lost_error;
}

void keeper_take_loss(struct keeper *g, uint64_t lost)
{
    g->lost += lost;
    g->told = g->told || lost > 0;
}

/* Runs on a thread of the pool: nothing of the log is touched by others meanwhile. What is in the
 * file stays whole lines, for somebody may be reading it. */
static void write_out(uv_work_t *req)
{
    struct keeper *g = req->data;
    g->kept = 0;
    g->error = g->fd < 0 ? g->open_error : 0;
    if (g->remove_part >= 0) {
        char name[NAME_BYTES];
        name_of(g->job, (struct kept_part){g->attempt, (uint32_t)g->remove_part}, name);
        (void)unlinkat(g->logs->dir_fd, name, 0);
    }
    while (g->kept < g->out.n && g->error == 0) {
        ssize_t n = write(g->fd, g->out.p + g->kept, g->out.n - g->kept);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            g->error = n < 0 ? errno : ENOSPC;
        else
            g->kept += (size_t)n;
    }
    if (g->error == 0)
        return;
    size_t whole = g->kept;
    while (whole > 0 && g->out.p[whole - 1] != '\n')
        whole--;
    if (whole < g->kept && ftruncate(g->fd, (off_t)(g->part_bytes + whole)) < 0) {
        /* The next record is not read then: it stands behind half of another. */
    }
    g->kept = whole;
}

static uint32_t count_lines(const char *p, size_t n)
{
    uint32_t count = 0;
    for (const char *feed = n > 0 ? memchr(p, '\n', n) : NULL; feed != NULL; count++) {
        n -= (size_t)(feed - p) + 1;
        p = feed + 1;
        feed = n > 0 ? memchr(p, '\n', n) : NULL;
    }
    return count;
}

static void note_loss(struct keeper *g)
{
    char text[MU_RUN_ID_BYTES + 200];
    uint64_t lost = count_lines(g->out.p + g->kept, g->out.n - g->kept);
    if (g->kept == 0 && g->noted > 0) { /* The note itself, which is no line of the job's. */
        lost--;
        g->gap_lines += g->noted;
    }
    g->gap_lines += lost;
    g->lost += lost;
    g->lost_error = g->error;
    if (lost > 0)
        g->lost_ms = mu_unix_ms();
    if (g->told)
        return;
    g->told = true;
    (void)snprintf(
        text, sizeof text,
        "output of job '%s' cannot be kept: %s; lines that are lost are counted, and the "
        "job goes on",
        g->job, strerror(g->error));
    g->logs->on_trouble(g->logs->arg, text);
}

static void on_written(uv_work_t *req, int status)
{
    struct keeper *g = req->data;
    struct kept *l = g->logs;
    (void)status; /* Never cancelled. */
    g->busy = false;
    g->remove_part = -1;
    g->part_bytes += g->kept;
    l->since_sweep += g->kept;
    if (g->error != 0)
        note_loss(g);
    mu_buf_reset(&g->out);
    if (l->since_sweep >= SWEEP_BYTES)
        kept_sweep(l);
    g->on_written(g->arg);
}

/* Half of what may be kept is full: on with the next part. */
static void turn_page(struct keeper *g)
{
    if (g->fd < 0 || g->part_bytes < g->logs->job_bytes / 2)
        return;
    (void)close(g->fd);
    g->part++;
    g->remove_part = g->part >= 2 ? (int)g->part - 2 : -1;
    open_part(g);
    char at[32];
    char text[160];
    struct record_now now = kept_now(g->logs, at);
    (void)snprintf(text, sizeof text,
                   "[%" PRIu64 " older lines of this output were dropped or are in another file: "
                   "--log-bytes]",
                   g->lines);
    record_say(&g->out, &now, (int64_t)g->lines, text);
}

static void note_gap(struct keeper *g)
{
    char at[32];
    char text[KEPT_GAP_BYTES];
    if (g->gap_lines == 0)
        return;
    struct record_now now = kept_now(g->logs, at);
    struct kept_gap gap = gap_of(g);
    kept_gap_text(&gap, text);
    record_say(&g->out, &now, -1, text);
    g->noted = g->gap_lines;
    g->gap_lines = 0;
}

static void begin_writing(struct keeper *g)
{
    g->busy = true;
    g->req.data = g;
    if (uv_queue_work(g->logs->loop, &g->req, write_out, on_written) < 0) {
        write_out(&g->req);
        on_written(&g->req, 0);
    }
}

void keeper_write(struct keeper *g, uint32_t lines)
{
    if (g->batch.n == 0 || g->busy)
        return;
    turn_page(g);
    if (g->fd < 0)
        open_part(g);
    g->noted = 0;
    note_gap(g);
    if (mu_buf_add(&g->out, g->batch.p, g->batch.n) < 0 || g->batch.oom) {
        g->gap_lines += lines;
        g->lost += lines;
        g->lost_error = ENOMEM;
        g->lost_ms = mu_unix_ms();
    }
    mu_buf_reset(&g->batch);
    g->lines += lines;
    begin_writing(g);
}

bool keeper_end(struct keeper *g)
{
    if (g->busy || g->ended || g->gap_lines == 0)
        return false;
    g->ended = true;
    if (g->fd < 0)
        open_part(g);
    note_gap(g);
    begin_writing(g);
    return true;
}

void keeper_free(struct keeper *g)
{
    if (g == NULL)
        return;
    MU_ASSERT(!g->busy);
    struct keeper **at = &g->logs->keepers;
    while (*at != g)
        at = &(*at)->next;
    *at = g->next;
    struct kept_gap gap = gap_of(g);
    if (gap.lines > 0)
        kept_note_gap(g->logs, &gap);
    if (g->fd >= 0)
        (void)close(g->fd);
    mu_buf_fini(&g->batch);
    mu_buf_fini(&g->out);
    free(g);
}
