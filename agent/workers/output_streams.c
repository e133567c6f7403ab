/* The streams of a round: pipes from the workers, files, and the words that are looked for. */
#include "agent/workers/output_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"

void output_close_fd(int *fd)
{
    if (*fd >= 0)
        (void)close(*fd);
    *fd = -1;
}

static void drop_copies(struct copies *c)
{
    if (c == NULL || --c->users > 0)
        return;
    for (int i = 0; i < 2; i++) {
        output_close_fd(&c->fd[i]);
        for (size_t w = 0; w < c->word_count[i]; w++) {
            union {
                const char *read;
                char *own;
            } u = {.read = c->words[i][w].p};
            free(u.own);
        }
        free(c->words[i]);
    }
    free(c);
}

void output_free_stream(struct stream *s)
{
    if (s == NULL)
        return;
    output_close_fd(&s->pipe_fd);
    output_close_fd(&s->writer_fd);
    output_close_fd(&s->file_fd);
    lines_fini(&s->lines);
    free(s->tail);
    free(s->prefix);
    drop_copies(s->copies);
    free(s);
}

void output_free_streams(struct stream *list)
{
    while (list != NULL) {
        struct stream *next = list->next;
        output_free_stream(list);
        list = next;
    }
}

static bool is_full(int error)
{
    return error == ENOSPC || error == EDQUOT || error == EFBIG;
}

struct opening {
    struct work_round *round;
    struct copies *copies; /* NULL: no words are looked for. */
    struct stream *fresh;
    int pipe_bytes; /* 0: as the system makes them. */
};

static const char *path_of(const struct work_round *r, int which, uint32_t i)
{
    const char *const *paths = which == 0 ? r->stdout_path : r->stderr_path;
    return paths != NULL && paths[i] != NULL && strcmp(paths[i], "/dev/null") != 0 ? paths[i]
                                                                                   : NULL;
}

static bool is_shown(const struct work_round *r, int which, uint32_t i)
{
    return r->shown != NULL && (r->shown[i] & 1U << which) != 0;
}

/* Would the worker inherit it, and does it pass through us instead? Both as one: stderr's. */
static bool is_passed(const struct work_round *r, int which, uint32_t i)
{
    const char *const *paths = which == 0 ? r->stdout_path : r->stderr_path;
    return (r->passed & 1U << which) != 0 && (paths == NULL || paths[i] == NULL) &&
           !is_shown(r, which, i);
}

static bool passes_as_one(const struct work_round *r, uint32_t i)
{
    return is_passed(r, 0, i) && is_passed(r, 1, i);
}

static bool is_stream(const struct work_round *r, int which, uint32_t i)
{
    if (path_of(r, which, i) != NULL || is_shown(r, which, i))
        return true;
    return is_passed(r, which, i) && !(which == 0 && passes_as_one(r, i));
}

static int open_file(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_NOCTTY | O_CLOEXEC, 0600);
    return fd < 0 ? -errno : fd;
}

static int copy_words(const struct work_round *r, int which, struct copies *c)
{
    size_t count = r->copy_word_count[which];
    c->words[which] = mu_zalloc(mu_mem_default(), (count + 1) * sizeof(struct mu_str));
    if (c->words[which] == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < count; i++) {
        struct mu_str from = r->copy_words[which][i];
        char *p = mu_alloc(mu_mem_default(), from.n + 1);
        if (p == NULL)
            return -ENOMEM;
        memcpy(p, from.p, from.n);
        c->words[which][i] = mu_str_of(p, from.n);
        c->word_count[which]++;
    }
    return 0;
}

static int open_copies(struct opening *q, struct mu_err *err)
{
    const struct work_round *r = q->round;
    if (r->copy_path[0] == NULL && r->copy_path[1] == NULL)
        return 0;
    struct copies *c = mu_zalloc(mu_mem_default(), sizeof(*c));
    if (c == NULL)
        return mu_err_set(err, -ENOMEM, "no memory for the filters of workers' output");
    *c = (struct copies){.users = 1, .fd = {-1, -1}};
    q->copies = c;
    for (int which = 0; which < 2; which++) {
        if (r->copy_path[which] == NULL)
            continue;
        if (copy_words(r, which, c) < 0)
            return mu_err_set(err, -ENOMEM, "no memory for the filters of workers' output");
        c->fd[which] = open_file(r->copy_path[which]);
        if (c->fd[which] < 0 && !is_full(-c->fd[which]))
            return mu_err_set(err, c->fd[which], "cannot open '%s': %s", r->copy_path[which],
                              strerror(-c->fd[which]));
    }
    return 0;
}

static int open_stream_file(struct stream *s, const char *path, struct mu_err *err)
{
    s->has_file = path != NULL;
    s->file_fd = path != NULL ? open_file(path) : -1;
    if (path != NULL && s->file_fd < 0 && !is_full(-s->file_fd) && s->file_fd != -ENOENT)
        return mu_err_set(err, s->file_fd, "worker %u: cannot open its %s file '%s': %s",
                          s->local_rank, s->which == 0 ? "stdout" : "stderr", path,
                          strerror(-s->file_fd));
    if (s->file_fd < 0)
        s->file_fd = -1;
    return 0;
}

static int open_pipe(struct opening *q, struct stream *s, int *ret_writer, struct mu_err *err)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return mu_err_set(err, -errno, "worker %u: pipe for its output: %s", s->local_rank,
                          strerror(errno));
    s->pipe_fd = ends[0];
    s->writer_fd = s->raw ? ends[1] : -1;
    *ret_writer = ends[1];
    if (fcntl(ends[0], F_SETFL, O_NONBLOCK) < 0) /* Of the read end alone. */
        return mu_err_set(err, -errno, "worker %u: pipe for its output: %s", s->local_rank,
                          strerror(errno));
    if (q->pipe_bytes > 0 && !s->raw)
        (void)fcntl(ends[0], F_SETPIPE_SZ, q->pipe_bytes); /* A smaller one does as well. */
    return 0;
}

static int
open_stream(struct opening *q, int which, uint32_t i, int *ret_writer, struct mu_err *err)
{
    const struct work_round *r = q->round;
    struct stream *s = mu_zalloc(mu_mem_default(), sizeof(*s));
    if (s == NULL)
        return mu_err_set(err, -ENOMEM, "no memory for the output of worker %u", i);
    s->local_rank = i;
    s->which = which;
    s->raw = is_passed(r, which, i);
    bool to_console = s->raw || is_shown(r, which, i);
    s->set = !to_console ? SET_FILES : which == 0 ? SET_STDOUT : SET_STDERR;
    s->pipe_fd = s->writer_fd = s->file_fd = s->copy_fd = -1;
    s->next = q->fresh;
    q->fresh = s;
    s->prefix = mu_strdup(mu_mem_default(), r->prefix != NULL ? r->prefix[i] : "");
    if (s->prefix == NULL)
        return mu_err_set(err, -ENOMEM, "no memory for the output of worker %u", i);
    lines_init(&s->lines, mu_mem_default(), s->prefix);
    bool is_copied = r->copied != NULL && (r->copied[i] & 1U << which) != 0;
    if (is_copied && q->copies != NULL && q->copies->fd[which] >= 0) {
        s->copies = q->copies;
        s->copies->users++;
        s->copy_fd = q->copies->fd[which];
        s->lines.words = q->copies->words[which];
        s->lines.word_count = q->copies->word_count[which];
    }
    int code = open_stream_file(s, path_of(r, which, i), err);
    return code < 0 ? code : open_pipe(q, s, ret_writer, err);
}

uint32_t output_count_streams(const struct work_round *r)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->nproc; i++) {
        for (int which = 0; which < 2; which++)
            n += is_stream(r, which, i);
    }
    return n;
}

static int open_streams(struct output *o, struct opening *q, struct mu_err *err)
{
    const struct work_round *r = q->round;
    int code = open_copies(q, err);
    for (uint32_t i = 0; code == 0 && i < r->nproc; i++) {
        for (int which = 0; code == 0 && which < 2; which++) {
            uint32_t at = 2 * i + (uint32_t)which;
            if (!is_stream(r, which, i))
                continue;
            code = open_stream(q, which, i, &o->writers[at], err);
            if (!is_passed(r, which, i))
                o->writers[2 * r->nproc + at] = o->writers[at];
        }
        if (passes_as_one(r, i))
            o->writers[2 * i] = o->writers[2 * i + 1];
    }
    return code;
}

int output_make_streams(struct output *o,
                        struct work_round *round,
                        int pipe_bytes,
                        struct stream **ret,
                        struct mu_err *err)
{
    struct opening q = {.round = round, .pipe_bytes = pipe_bytes};
    int code = open_streams(o, &q, err);
    drop_copies(q.copies);
    if (code < 0)
        output_free_streams(q.fresh);
    else
        *ret = q.fresh;
    return code;
}
