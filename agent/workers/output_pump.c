/* The pump's side of workers' output: it reads what they write, puts it into files and onto our own
 * streams, and waits for whoever is behind. */
#include "agent/workers/output_internal.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/mem.h"

/* ------------------------------------------------------------------ files */

static void trouble(struct output *o, const char *text)
{
    uv_mutex_lock(&o->lock);
    size_t at = strlen(o->box.trouble);
    (void)snprintf(o->box.trouble + at, sizeof(o->box.trouble) - at, "%s%s", at > 0 ? "; " : "",
                   text);
    uv_mutex_unlock(&o->lock);
    (void)uv_async_send(&o->async);
}

/* Lines are missing from a file of this stream. */
static void count_lost(struct output *o, const struct stream *s, uint64_t lines, int error)
{
    char text[256];
    o->lost_file_lines += lines;
    o->lost_file_errno = error;
    if (o->told_file)
        return;
    (void)snprintf(text, sizeof(text),
                   "worker %u's %s.log cannot be written: %s; lines that files do not take are "
                   "counted, and the workers go on",
                   s->local_rank, s->which == 0 ? "stdout" : "stderr", strerror(error));
    o->told_file = true;
    trouble(o, text);
}

/* Bytes that the stream's file did not take. */
static void lose(struct output *o, struct stream *s, const char *p, size_t n, int error)
{
    if (n == 0)
        return;
    uint64_t lines = lines_count(p, n);
    s->gap = true;
    s->gap_lines += lines;
    s->gap_mid_line = p[n - 1] != '\n';
    count_lost(o, s, lines, error);
}

/* How much of it was written; *ret_error says why not all. */
static size_t write_all(int fd, const char *p, size_t n, int *ret_error)
{
    size_t done = 0;
    while (done < n) {
        ssize_t put = write(fd, p + done, n - done);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0) {
            *ret_error = put < 0 ? errno : ENOSPC;
            break;
        }
        done += (size_t)put;
    }
    return done;
}

/* There was a gap: go on at a line's start, behind a note of what is missing. Returns how much of p
 * belongs to the gap; n when the file takes nothing yet. */
static size_t mend(struct output *o, struct stream *s, const char *p, size_t n, int *ret_error)
{
    char note[160];
    size_t skip = 0;
    if (s->gap_mid_line) {
        const char *feed = memchr(p, '\n', n);
        if (feed == NULL)
            return n;
        skip = (size_t)(feed - p) + 1;
    }
    int len = snprintf(note, sizeof(note), "%s[%llu lines are missing here: %s]\n",
                       s->mid_line ? "\n" : "", (unsigned long long)(s->gap_lines + (skip > 0)),
                       strerror(*ret_error));
    size_t put = write_all(s->file_fd, note, (size_t)len, ret_error);
    if (put < (size_t)len) {
        s->mid_line = s->mid_line || put > 0;
        return n;
    }
    s->mid_line = s->gap_mid_line = false;
    s->gap_lines = 0;
    s->gap = false;
    o->lost_file_lines += skip > 0; /* The line whose start is missing. */
    return skip;
}

static void put_file(struct output *o, struct stream *s, const char *p, size_t n)
{
    int error = o->lost_file_errno;
    if (s->file_fd < 0) {
        lose(o, s, p, n, error != 0 ? error : ENOSPC);
        return;
    }
    if (s->gap) {
        size_t skip = mend(o, s, p, n, &error);
        if (s->gap) {
            lose(o, s, p, n, error);
            return;
        }
        p += skip;
        n -= skip;
    }
    size_t put = write_all(s->file_fd, p, n, &error);
    if (put > 0)
        s->mid_line = p[put - 1] != '\n';
    lose(o, s, p + put, n - put, error);
}

static void put_copy(struct output *o, struct stream *s, struct mu_buf *copy)
{
    int error = 0;
    size_t put = write_all(s->copy_fd, copy->p, copy->n, &error);
    if (put < copy->n)
        count_lost(o, s, lines_count(copy->p + put, copy->n - put), error);
}

/* ------------------------------------------------------------------ consoles */

static struct console *console_of(struct output *o, const struct stream *s)
{
    return s->set == SET_FILES ? NULL : &o->console[s->set - SET_STDOUT];
}

static bool is_behind(struct output *o, int set)
{
    return set != SET_FILES && console_pending(&o->console[set - SET_STDOUT]) >= BEHIND_BYTES;
}

static void flush_console(struct output *o, int i)
{
    struct console *c = &o->console[i];
    console_flush(c);
    if (c->lost_errno == 0 || o->told_console[i])
        return;
    char text[256];
    (void)snprintf(text, sizeof(text),
                   "%s cannot be written: %s; lines that it does not take are counted, and the "
                   "workers go on",
                   i == 0 ? "stdout" : "stderr", strerror(c->lost_errno));
    o->told_console[i] = true;
    trouble(o, text);
}

/* ------------------------------------------------------------------ reading */

static void keep_tail(struct stream *s, const char *p, size_t n)
{
    if (s->tail == NULL)
        s->tail = mu_alloc(mu_mem_default(), TAIL_BYTES);
    if (s->tail == NULL)
        return; /* A report without last lines, then. */
    if (n >= TAIL_BYTES) {
        s->tail_cut = s->tail_cut || n > TAIL_BYTES || s->tail_bytes > 0;
        memcpy(s->tail, p + n - TAIL_BYTES, TAIL_BYTES);
        s->tail_bytes = TAIL_BYTES;
        return;
    }
    size_t room = TAIL_BYTES - s->tail_bytes;
    if (n > room) {
        memmove(s->tail, s->tail + (n - room), s->tail_bytes - (n - room));
        s->tail_bytes -= n - room;
        s->tail_cut = true;
    }
    memcpy(s->tail + s->tail_bytes, p, n);
    s->tail_bytes += n;
}

static void note_no_memory(struct console *c)
{
    if (c->out.oom)
        c->lost_errno = ENOMEM;
    c->out.oom = false;
}

/* To the console, and what the words pick out to its file. Bytes none: the stream's end. */
static void put_lines(struct output *o, struct stream *s, const char *p, size_t n)
{
    struct console *c = console_of(o, s);
    struct mu_buf copy;
    if (c != NULL && s->raw) {
        (void)mu_buf_add(&c->out, p, n);
        note_no_memory(c);
        return;
    }
    if (c == NULL && s->copy_fd < 0)
        return;
    mu_buf_init(&copy, mu_mem_default());
    struct mu_buf *out = c != NULL ? &c->out : NULL;
    if (n > 0)
        lines_take(&s->lines, p, n, out, &copy);
    else
        lines_end(&s->lines, out, &copy);
    if (c != NULL)
        note_no_memory(c);
    if (copy.n > 0)
        put_copy(o, s, &copy);
    mu_buf_fini(&copy);
}

static void end_stream(struct output *o, struct stream *s)
{
    if (s->ended)
        return;
    put_lines(o, s, NULL, 0);
    o->lost_file_lines += s->gap && s->gap_mid_line; /* Unterminated last words. */
    (void)epoll_ctl(o->set_fd[s->set], EPOLL_CTL_DEL, s->pipe_fd, NULL);
    output_close_fd(&s->pipe_fd);
    output_close_fd(&s->writer_fd);
    output_close_fd(&s->file_fd);
    s->ended = true;
}

/* Read once. Returns false when there is nothing, now or ever. */
static bool read_stream(struct output *o, struct stream *s)
{
    if (s->ended)
        return false;
    ssize_t n = read(s->pipe_fd, o->buffer, READ_BYTES);
    if (n < 0 && errno == EINTR)
        return true;
    if (n < 0 && errno == EAGAIN) {
        if (s->over)
            end_stream(o, s);
        return false;
    }
    if (n <= 0) {
        end_stream(o, s);
        return false;
    }
    if (s->has_file)
        put_file(o, s, o->buffer, (size_t)n);
    (void)__atomic_fetch_add(&o->written[s->local_rank], (uint64_t)n, __ATOMIC_RELAXED);
    keep_tail(s, o->buffer, (size_t)n);
    put_lines(o, s, o->buffer, (size_t)n);
    s->over_bytes += s->over ? (size_t)n : 0;
    if (s->over_bytes >= PIPE_BYTES)
        end_stream(o, s);
    return !s->ended;
}

/* Whatever a dead worker left in its pipe, a reader's pace or not: a pipe's content at most, for
 * its children may go on writing. */
static void drain(struct output *o, struct stream *s)
{
    size_t limit = PIPE_BYTES / READ_BYTES + 1;
    while (limit-- > 0 && read_stream(o, s))
        ;
}

static void read_set(struct output *o, int set)
{
    struct epoll_event ready[BATCH];
    int n = epoll_wait(o->set_fd[set], ready, BATCH, 0);
    for (int i = 0; i < n && !is_behind(o, set); i++) {
        (void)read_stream(o, ready[i].data.ptr);
        if (set != SET_FILES)
            flush_console(o, set - SET_STDOUT);
    }
}

/* Streams of rounds that are over end where their pipes are empty. */
static void end_what_is_over(struct output *o)
{
    bool left = false;
    for (struct stream *s = o->streams; s != NULL; s = s->next) {
        while (s->over && !s->ended && !is_behind(o, s->set) && read_stream(o, s)) {
            if (s->set != SET_FILES)
                flush_console(o, s->set - SET_STDOUT);
        }
        left = left || (s->over && !s->ended);
    }
    o->over_pending = left;
}

/* ------------------------------------------------------------------ the pump */

static void unlink_stream(struct stream *s)
{
    *s->link = s->next;
    if (s->next != NULL)
        s->next->link = s->link;
}

static void link_stream(struct output *o, struct stream *s)
{
    s->next = o->streams;
    s->link = &o->streams;
    if (s->next != NULL)
        s->next->link = &s->next;
    o->streams = s;
}

static void take_fresh(struct output *o, struct stream *fresh)
{
    while (fresh != NULL) {
        struct stream *s = fresh;
        fresh = s->next;
        link_stream(o, s);
        struct epoll_event ev = {.events = EPOLLIN, .data.ptr = s};
        if (epoll_ctl(o->set_fd[s->set], EPOLL_CTL_ADD, s->pipe_fd, &ev) < 0)
            s->over = true; /* Unwatched: read at each turn until it is empty. */
        o->over_pending = o->over_pending || s->over;
    }
}

static void forget_ended(struct output *o)
{
    for (struct stream *s = o->streams, *next = NULL; s != NULL; s = next) {
        next = s->next;
        if (s->ended) {
            unlink_stream(s);
            output_free_stream(s);
        }
    }
}

/* The answer to `tail`, under the lock. */
static void write_tail(struct output *o, struct want_tail *t)
{
    const struct stream *best = NULL;
    for (const struct stream *s = o->streams; s != NULL; s = s->next) {
        if (s->local_rank == t->local_rank && s->tail_bytes > 0 && !s->over &&
            (best == NULL || s->which > best->which))
            best = s;
    }
    t->text[0] = '\0';
    if (best == NULL)
        return;
    lines_show(best->tail, best->tail_bytes, t->lines, best->tail_cut, t->text, t->cap);
    t->channel = best->which + 1;
}

static void answer_tail(struct output *o, uint32_t local_rank)
{
    for (struct stream *s = o->streams; s != NULL; s = s->next) {
        if (s->local_rank == local_rank)
            drain(o, s);
    }
    uv_mutex_lock(&o->lock);
    if (o->box.tail.wanted) { /* Else it was too late. */
        write_tail(o, &o->box.tail);
        o->box.tail.wanted = false;
        uv_cond_signal(&o->answered);
    }
    uv_mutex_unlock(&o->lock);
}

static void mark_over(struct output *o)
{
    for (struct stream *s = o->streams; s != NULL; s = s->next)
        s->over = true;
    o->over_pending = true;
}

static void give_up(struct output *o)
{
    for (int i = 0; i < 2; i++) {
        bool behind = console_pending(&o->console[i]) > 0;
        o->console[i].given_up = behind && !o->console[i].gone;
        o->console[i].gone = behind || o->console[i].gone;
        flush_console(o, i);
    }
    mark_over(o);
}

static void take_mailbox(struct output *o)
{
    uint64_t count = 0;
    if (read(o->wake_fd, &count, sizeof(count)) < 0) {
        /* Nobody called: a look costs little. */
    }
    uv_mutex_lock(&o->lock);
    struct mailbox m = o->box;
    o->box.fresh = NULL;
    o->box.words = (struct mu_buf){.mem = mu_mem_default()};
    o->box.round_begins = o->box.round_over = o->box.finish = o->box.give_up = false;
    uv_mutex_unlock(&o->lock);
    if (m.round_begins)
        forget_ended(o);
    if (m.round_over || m.finish)
        mark_over(o);
    take_fresh(o, m.fresh);
    /* Without memory, or a reader for long, they are lost; nothing else is. */
    if (m.words.n > 0 && console_pending(&o->console[1]) < 2 * (size_t)BEHIND_BYTES)
        (void)mu_buf_add(&o->console[1].out, m.words.p, m.words.n);
    o->console[1].out.oom = false;
    mu_buf_fini(&m.words);
    if (m.tail.wanted)
        answer_tail(o, m.tail.local_rank);
    if (m.give_up)
        give_up(o);
    o->finish = o->finish || m.finish;
}

static bool is_done(const struct output *o)
{
    if (!o->finish || o->over_pending || console_pending(&o->console[0]) > 0 ||
        console_pending(&o->console[1]) > 0)
        return false;
    for (const struct stream *s = o->streams; s != NULL; s = s->next) {
        if (!s->ended)
            return false;
    }
    return true;
}

/* What the loop's thread looks at while it waits for the end. */
static void show_state(struct output *o, bool finished)
{
    uv_mutex_lock(&o->lock);
    o->box.sent_total = o->console[0].sent_total + o->console[1].sent_total;
    o->box.pending = console_pending(&o->console[0]) + console_pending(&o->console[1]);
    o->box.lost_file_lines = o->lost_file_lines;
    o->box.lost_file_errno = o->lost_file_errno;
    o->box.lost_shown_lines = o->console[0].lost_lines + o->console[1].lost_lines;
    for (int i = 0; i < 2; i++)
        if (o->console[i].lost_errno != 0 && o->console[i].lost_errno != EPIPE)
            o->box.lost_shown_errno = o->console[i].lost_errno;
    o->box.finished = finished;
    uv_mutex_unlock(&o->lock);
    if (finished)
        (void)uv_async_send(&o->async);
}

/* Wait for news, then read and write. */
static void turn(struct output *o)
{
    struct pollfd fds[1 + SET_COUNT + 2];
    nfds_t count = 0;
    int set_at[SET_COUNT];
    fds[count++] = (struct pollfd){.fd = o->wake_fd, .events = POLLIN};
    for (int i = 0; i < SET_COUNT; i++) {
        set_at[i] = is_behind(o, i) ? -1 : (int)count;
        if (set_at[i] >= 0)
            fds[count++] = (struct pollfd){.fd = o->set_fd[i], .events = POLLIN};
    }
    for (int i = 0; i < 2; i++) {
        if (o->console[i].blocked)
            fds[count++] = (struct pollfd){.fd = o->console[i].fd, .events = POLLOUT};
    }
    bool busy = false; /* Over, and read at each turn: nobody else would wake us. */
    for (const struct stream *s = o->over_pending ? o->streams : NULL; s != NULL; s = s->next)
        busy = busy || (s->over && !s->ended && !is_behind(o, s->set));
    if (poll(fds, count, busy ? 0 : -1) < 0)
        return;
    if (fds[0].revents != 0)
        take_mailbox(o);
    for (int i = 0; i < SET_COUNT; i++) {
        if (set_at[i] >= 0 && fds[set_at[i]].revents != 0)
            read_set(o, i);
    }
    if (o->over_pending)
        end_what_is_over(o);
    for (int i = 0; i < 2; i++) {
        if (console_pending(&o->console[i]) > 0)
            flush_console(o, i);
    }
}

void output_pump(void *arg)
{
    struct output *o = arg;
    while (!is_done(o)) {
        turn(o);
        if (o->finish)
            show_state(o, false);
    }
    show_state(o, true);
}
