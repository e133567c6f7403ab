/* From one life of a service to the next; see handover.h. */
#include "agent/service/handover.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/parse.h"

#define FORM 1
#define BYTES_MAX (64 << 20)

/* --- writing --- */

static void put_hex(struct mu_json *w, const char *key, const struct mu_buf *b)
{
    static const char digits[] = "0123456789abcdef";
    MU_CLEANUP(mu_buf_fini) struct mu_buf text;
    mu_buf_init(&text, mu_mem_default());
    for (size_t i = 0; i < b->n; i++) {
        unsigned char c = (unsigned char)b->p[i];
        char two[2] = {digits[c >> 4], digits[c & 15]};
        (void)mu_buf_add(&text, two, 2); /* Lost bytes: a line that is cut. */
    }
    mu_json_key(w, key);
    mu_json_strn(w, mu_str_of(text.p, text.n));
}

static void put_run(struct mu_json *w, const struct run *r)
{
    mu_json_ki64(w, "pid", r->pid);
    mu_json_ki64(w, "pidfd", r->pidfd);
    mu_json_kstr(w, "cgroup", r->cgroup);
    mu_json_ki64(w, "part", keeper_part_of(r->log));
    mu_json_ki64(w, "lines", (int64_t)keeper_lines_of(r->log));
    mu_json_ki64(w, "lost", (int64_t)keeper_lost(r->log));
    mu_json_key(w, "streams");
    mu_json_open(w, '[');
    for (int i = 0; i < 2; i++) {
        mu_json_open(w, '{');
        mu_json_ki64(w, "fd", r->fd[i]);
        mu_json_ki64(w, "rank", r->record[i].rank);
        mu_json_kbool(w, "continues", r->record[i].continues);
        put_hex(w, "part", &r->record[i].part);
        mu_json_close(w, '}');
    }
    mu_json_close(w, ']');
}

static const struct run *run_of(const struct runs *a, int32_t entry)
{
    const struct run *r = a->first;
    while (r != NULL && r->entry != entry)
        r = r->next;
    return r;
}

static void
put_entry(struct mu_json *w, const struct svc_entry *e, const struct run *r, int64_t now_ns)
{
    mu_json_open(w, '{');
    mu_json_kstr(w, "job", e->job);
    mu_json_ki64(w, "attempt", e->attempt);
    mu_json_ki64(w, "submitted_ms", e->submitted_ms);
    mu_json_kstr(w, "state", svc_state_name(e->state));
    mu_json_ki64(w, "nproc", e->nproc);
    mu_json_ki64(w, "status", e->status);
    mu_json_kstr(w, "text", e->text);
    mu_json_ki64(w, "left_ms",
                 e->deadline_ns == INT64_MAX ? -1 : (e->deadline_ns - now_ns) / MU_NS_PER_MS);
    if (r != NULL)
        put_run(w, r);
    mu_json_close(w, '}');
}

static void let_cross(int fd, bool cross)
{
    if (fd >= 0)
        (void)fcntl(fd, F_SETFD, cross ? 0 : FD_CLOEXEC);
}

static void all_cross(const struct runs *a, bool cross)
{
    let_cross(a->logs->lock_fd, cross);
    for (const struct run *r = a->first; r != NULL; r = r->next) {
        let_cross(r->pidfd, cross);
        let_cross(r->fd[0], cross);
        let_cross(r->fd[1], cross);
    }
}

void handover_keep(const struct runs *a)
{
    all_cross(a, false);
}

static int write_whole(int fd, const struct mu_buf *b)
{
    size_t done = 0;
    while (done < b->n) {
        ssize_t n = write(fd, b->p + done, b->n - done);
        if (n < 0 && errno != EINTR)
            return -errno;
        done += n > 0 ? (size_t)n : 0;
    }
    return lseek(fd, 0, SEEK_SET) < 0 ? -errno : 0;
}

static void put_gap(struct mu_json *w, const struct kept_gap *gap)
{
    mu_json_open(w, '{');
    mu_json_kstr(w, "job", gap->job);
    mu_json_ki64(w, "lines", (int64_t)gap->lines);
    mu_json_ki64(w, "error", gap->error);
    mu_json_ki64(w, "unix_ms", gap->unix_ms);
    mu_json_close(w, '}');
}

/* Of jobs that run, and of those that have ended. */
static void put_gaps(struct mu_json *w, const struct runs *a)
{
    struct kept_gap gap;
    mu_json_key(w, "gaps");
    mu_json_open(w, '[');
    for (const struct run *r = a->first; r != NULL; r = r->next)
        if (kept_find_gap(a->logs, r->job, &gap))
            put_gap(w, &gap);
    for (size_t i = 0; i < KEPT_GAPS_MAX; i++)
        if (a->logs->gaps[i].lines > 0)
            put_gap(w, &a->logs->gaps[i]);
    mu_json_close(w, ']');
}

int handover_write(const struct svc_book *b,
                   const struct runs *a,
                   const char *node,
                   const char *cgroup_root,
                   int64_t now_ns)
{
    MU_CLEANUP(mu_buf_fini) struct mu_buf text;
    MU_CLEANUP(mu_closep) int fd = memfd_create("muster-service", MFD_CLOEXEC);
    struct mu_json w;
    if (fd < 0)
        return -errno;
    mu_buf_init(&text, mu_mem_default());
    mu_json_init(&w, &text);
    mu_json_open(&w, '{');
    mu_json_ki64(&w, "form", FORM);
    mu_json_kstr(&w, "node", node);
    mu_json_kstr(&w, "cgroup_root", cgroup_root);
    mu_json_ki64(&w, "lock", a->logs->lock_fd);
    mu_json_kbool(&w, "draining", b->draining);
    mu_json_key(&w, "jobs");
    mu_json_open(&w, '[');
    for (int32_t i = 0; i < SVC_JOBS_MAX; i++)
        if (b->entries[i].used)
            put_entry(&w, &b->entries[i], run_of(a, i), now_ns);
    mu_json_close(&w, ']');
    put_gaps(&w, a);
    mu_json_close(&w, '}');
    int r = text.oom ? -ENOMEM : write_whole(fd, &text);
    if (r < 0)
        return r;
    let_cross(fd, true);
    all_cross(a, true);
    return mu_steal_fd(&fd);
}

/* --- reading --- */

static int64_t number(const cJSON *from, const char *name, int64_t otherwise)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(from, name);
    return cJSON_IsNumber(item) ? (int64_t)item->valuedouble : otherwise;
}

static const char *text_of(const cJSON *from, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(from, name);
    return cJSON_IsString(item) ? item->valuestring : "";
}

static void take_hex(const char *text, struct mu_buf *ret)
{
    for (; text[0] != '\0' && text[1] != '\0'; text += 2) {
        unsigned hi = text[0] <= '9' ? (unsigned)(text[0] - '0') : (unsigned)(text[0] - 'a' + 10);
        unsigned lo = text[1] <= '9' ? (unsigned)(text[1] - '0') : (unsigned)(text[1] - 'a' + 10);
        char c = (char)(unsigned char)((hi << 4 | lo) & 255);
        (void)mu_buf_add(ret, &c, 1);
    }
}

/* One that is open and ours to close at the next exec. */
static int take_fd(const cJSON *from, const char *name)
{
    int fd = (int)number(from, name, -1);
    return fd > STDERR_FILENO && fcntl(fd, F_SETFD, FD_CLOEXEC) == 0 ? fd : -1;
}

static int take_run(struct runs *a, const cJSON *j, const struct svc_entry *e, int32_t entry)
{
    const cJSON *streams = cJSON_GetObjectItemCaseSensitive(j, "streams");
    struct run *taken = NULL;
    struct run from = {.entry = entry, .attempt = e->attempt, .pid = (pid_t)number(j, "pid", 0)};
    memcpy(from.job, e->job, sizeof from.job);
    from.pidfd = take_fd(j, "pidfd");
    if (mu_strcopy(from.cgroup, sizeof from.cgroup, text_of(j, "cgroup")) < 0)
        from.cgroup[0] = '\0';
    for (int i = 0; i < 2; i++) {
        const cJSON *s = cJSON_GetArrayItem(streams, i);
        record_init(&from.record[i], mu_mem_default(), i + 1);
        from.fd[i] = take_fd(s, "fd");
        from.record[i].rank = (int32_t)number(s, "rank", -1);
        from.record[i].continues = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(s, "continues"));
        take_hex(text_of(s, "part"), &from.record[i].part);
    }
    int r = run_adopt(a, &from, (uint32_t)number(j, "part", 0), (uint64_t)number(j, "lines", 0),
                      &taken);
    if (r == 0)
        keeper_take_loss(taken->log, (uint64_t)number(j, "lost", 0));
    return r;
}

static int state_of(const char *name)
{
    for (int s = 0; s < SVC_STATE_COUNT; s++)
        if (strcmp(svc_state_name((enum svc_state)s), name) == 0)
            return s;
    return -1;
}

static int take_entry(struct svc_book *b, struct runs *a, const cJSON *j, int32_t i, int64_t now_ns)
{
    struct svc_entry *e = &b->entries[i];
    int state = state_of(text_of(j, "state"));
    int64_t left_ms = number(j, "left_ms", -1);
    *e =
        (struct svc_entry){.attempt = (uint32_t)number(j, "attempt", 0),
                           .submitted_ms = number(j, "submitted_ms", 0),
                           .nproc = (uint32_t)number(j, "nproc", 1),
                           .status = (int32_t)number(j, "status", 0),
                           .deadline_ns = left_ms < 0 ? INT64_MAX : now_ns + left_ms * MU_NS_PER_MS,
                           .ended_ns = now_ns};
    if (state < 0 || !kept_is_name(text_of(j, "job")) ||
        mu_strcopy(e->job, sizeof e->job, text_of(j, "job")) < 0)
        return -EPROTO;
    (void)snprintf(e->text, sizeof e->text, "%s", text_of(j, "text"));
    e->state = (enum svc_state)state;
    e->used = true;
    return e->state == SVC_ENDED ? 0 : take_run(a, j, e, i);
}

static cJSON *read_state(int fd)
{
    struct stat st;
    if (fstat(fd, &st) < 0 || st.st_size <= 0 || st.st_size > BYTES_MAX)
        return NULL;
    size_t n = (size_t)st.st_size;
    MU_CLEANUP(mu_freep) char *text = mu_alloc(mu_mem_default(), n);
    size_t done = 0;
    while (text != NULL && done < n) {
        ssize_t got = pread(fd, text + done, n - done, (off_t)done);
        if (got <= 0)
            return NULL;
        done += (size_t)got;
    }
    return text != NULL ? cJSON_ParseWithLength(text, n) : NULL;
}

/* Before the runs: theirs go on with them. */
static void take_gaps(struct kept *l, const cJSON *state)
{
    const cJSON *j = NULL;
    cJSON_ArrayForEach(j, cJSON_GetObjectItemCaseSensitive(state, "gaps"))
    {
        struct kept_gap gap = {.lines = (uint64_t)number(j, "lines", 0),
                               .error = (int)number(j, "error", ENOSPC),
                               .unix_ms = number(j, "unix_ms", 0)};
        if (mu_strcopy(gap.job, sizeof gap.job, text_of(j, "job")) == 0 && gap.lines > 0)
            kept_note_gap(l, &gap);
    }
}

static int take_all(struct svc_book *b, struct runs *a, const cJSON *state, int64_t now_ns)
{
    const cJSON *j = NULL;
    int32_t i = 0;
    take_gaps(a->logs, state);
    b->draining = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(state, "draining"));
    cJSON_ArrayForEach(j, cJSON_GetObjectItemCaseSensitive(state, "jobs"))
    {
        if (i == SVC_JOBS_MAX)
            return -E2BIG;
        int r = take_entry(b, a, j, i++, now_ns);
        if (r < 0)
            return r;
    }
    return 0;
}

int handover_read(struct svc_book *b,
                  struct runs *a,
                  struct handover *ret,
                  int (*before)(void *arg, const struct handover *h, struct mu_err *err),
                  void *arg,
                  int64_t now_ns,
                  struct mu_err *err)
{
    const char *number_text = getenv(HANDOVER_VARIABLE);
    uint32_t number_of_fd = 0;
    *ret = (struct handover){.lock_fd = -1};
    if (number_text == NULL)
        return before(arg, ret, err);
    int r = mu_parse_u32(number_text, 3, INT32_MAX, HANDOVER_VARIABLE, &number_of_fd, err);
    (void)unsetenv(HANDOVER_VARIABLE);
    if (r < 0)
        return r;
    MU_CLEANUP(mu_closep) int fd = (int)number_of_fd;
    cJSON *state = read_state(fd);
    if (state == NULL || number(state, "form", 0) != FORM)
        r = -EPROTO;
    if (r == 0)
        r = mu_strcopy(ret->node, sizeof ret->node, text_of(state, "node"));
    if (r == 0)
        r = mu_strcopy(ret->cgroup_root, sizeof ret->cgroup_root, text_of(state, "cgroup_root"));
    if (r < 0) {
        cJSON_Delete(state);
        return mu_err_set(err, r,
                          "what the service before this one left cannot be read: its jobs end now");
    }
    ret->lock_fd = take_fd(state, "lock");
    r = before(arg, ret, err);
    if (r == 0 && (r = take_all(b, a, state, now_ns)) < 0)
        (void)mu_err_set(
            err, r,
            "the jobs of the service before this one cannot be taken over (%s): they end now",
            strerror(-r));
    cJSON_Delete(state);
    return r < 0 ? r : 1;
}
