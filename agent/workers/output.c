/* The pump of workers' output; see output.h.
 *
 * Two threads and one lock. The loop's thread makes streams, and puts what it wants into the
 * mailbox: new streams, the round is over, last lines of a rank, finish, give up. The pump's thread
 * owns streams and consoles from then on; it takes the mailbox, reads, writes and polls without the
 * lock, and answers into the mailbox.
 *
 * Streams are in three epoll sets by the console they go to: a console whose reader is behind costs
 * one set left out of poll(), however many workers write there. */
#include "agent/workers/output.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/workers/console.h"
#include "agent/workers/lines.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/mem.h"

enum {
    READ_BYTES = 64 * 1024,            /* Of one stream at once; then the next one's turn. */
    PIPE_BYTES = 1024 * 1024,          /* What a worker may be ahead of us. */
    PIPES_BYTES = 32 * 1048576,        /* Of all pipes: half of what a user may have by default. */
    BEHIND_BYTES = 1024 * 1024,        /* What a console's reader may be behind. */
    TAIL_BYTES = MU_TAIL_BYTES + 2048, /* Last lines, kept of each stream; the first is cut. */
    BATCH = 64,
    WORD_AFTER_S = 5,    /* A reader that is waited for at the end: said after so long… */
    GIVE_UP_AFTER_S = 60 /* …and given up. */
};

enum {
    SET_FILES, /* Streams that go to files alone. */
    SET_STDOUT,
    SET_STDERR,
    SET_COUNT
};

struct stream {
    struct stream *next;
    struct stream **link; /* Who points to us, in the pump's list. */
    uint32_t local_rank;
    int which; /* 0 stdout, 1 stderr */
    int set;
    int pipe_fd;
    int writer_fd; /* Raw: our copy of the worker's end, so that its exit wakes nobody. Else -1. */
    int file_fd;   /* -1: none, or it could not be made for lack of room. */
    bool has_file;
    bool raw;           /* To the console byte by byte: it is the worker's own in all but name. */
    bool over;          /* Every writer is gone: an empty pipe is its end. */
    size_t over_bytes;  /* Read since: no more than a pipe held, or a stranger writes to it. */
    bool ended;         /* Nothing comes any more; kept for its tail until the next round. */
    bool mid_line;      /* The file's last byte is no line's end. */
    bool gap;           /* Something is missing behind it… */
    bool gap_mid_line;  /* So is the last one of what was lost. */
    uint64_t gap_lines; /* Lost since the file's last byte; a piece of a line counts as one. */
    struct lines lines;
    char *prefix;
    int copy_fd; /* filtered_stdout.log of the attempt; -1: none. Shared, see struct copies. */
    struct copies *copies;
    char *tail; /* TAIL_BYTES, once there are any. */
    size_t tail_bytes;
    bool tail_cut;
};

/* What the streams of one round share: the words looked for. The last one frees it. */
struct copies {
    uint32_t users;
    int fd[2];
    struct mu_str *words[2];
    size_t word_count[2];
};

struct want_tail {
    bool wanted;
    uint32_t local_rank;
    uint32_t lines;
    size_t cap;
    char *text;  /* Written by the pump, under the lock, while wanted. */
    int channel; /* And which stream it is of. */
};

struct mailbox {
    struct stream *fresh; /* Singly linked by next. */
    bool round_begins;    /* Forget the ended ones. */
    bool round_over;
    bool finish;
    bool give_up;
    struct want_tail tail;
    struct mu_buf words; /* Our own, for stderr. */
    /* answers */
    bool finished;
    char trouble[512]; /* "": none. */
    uint64_t sent_total;
    uint64_t pending;
    uint64_t lost_file_lines;
    int lost_file_errno;
    uint64_t lost_shown_lines;
    int lost_shown_errno; /* 0: nothing is lost but what a reader did not want any more. */
};

struct output {
    uv_loop_t *loop;
    struct output_events events;
    uv_async_t async;
    uv_timer_t timer; /* While finishing. */
    int open_handles;
    bool started;
    bool finishing;
    bool finished_said;
    bool detached; /* The pump hangs in a write that nobody takes: it ends with the process. */
    uint64_t seen_sent;
    uint32_t still_s; /* Seconds without a byte taken. */
    bool word_said;
    uint64_t *written; /* By local rank; the pump counts. */
    uint32_t written_count;
    int *writers; /* 2 * nproc of the round being started, then as many to be closed after it. */
    uint32_t writer_count;

    uv_thread_t thread;
    uv_mutex_t lock;
    uv_cond_t answered;
    int wake_fd;
    struct mailbox box;

    /* the pump's own */
    struct stream *streams;
    struct console console[2];
    int set_fd[SET_COUNT];
    char *buffer;
    bool over_pending; /* Streams are over and not yet ended. */
    bool finish;
    bool told_file;
    bool told_console[2];
    uint64_t lost_file_lines;
    int lost_file_errno;
};

/* ------------------------------------------------------------------ streams */

static void close_fd(int *fd)
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
        close_fd(&c->fd[i]);
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

static void free_stream(struct stream *s)
{
    if (s == NULL)
        return;
    close_fd(&s->pipe_fd);
    close_fd(&s->writer_fd);
    close_fd(&s->file_fd);
    lines_fini(&s->lines);
    free(s->tail);
    free(s->prefix);
    drop_copies(s->copies);
    free(s);
}

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

/* ------------------------------------------------------------------ files */

static bool is_full(int error)
{
    return error == ENOSPC || error == EDQUOT || error == EFBIG;
}

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
    close_fd(&s->pipe_fd);
    close_fd(&s->writer_fd);
    close_fd(&s->file_fd);
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
            free_stream(s);
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

static void pump_main(void *arg)
{
    struct output *o = arg;
    while (!is_done(o)) {
        turn(o);
        if (o->finish)
            show_state(o, false);
    }
    show_state(o, true);
}

/* ------------------------------------------------------------------ the loop's side */

static void wake(struct output *o)
{
    uint64_t one = 1;
    if (write(o->wake_fd, &one, sizeof(one)) < 0) {
        /* Full: it is awake already. */
    }
}

/* The pump has ended, and the console is ours: wait a little for a reader, but not for one that was
 * given up. */
static void say_last(struct output *o, const char *p, size_t n)
{
    struct console *c = &o->console[1];
    int64_t until_ns = mu_now_ns() + (int64_t)WORD_AFTER_S * 1000 * MU_NS_PER_MS;
    (void)mu_buf_add(&c->out, p, n);
    console_flush(c);
    while (c->blocked && mu_now_ns() < until_ns) {
        struct pollfd fd = {.fd = c->fd, .events = POLLOUT};
        (void)poll(&fd, 1, 100);
        console_flush(c);
    }
    if (console_pending(c) > 0)
        c->gone = true;
}

static void on_async(uv_async_t *async)
{
    struct output *o = async->data;
    char text[sizeof(o->box.trouble)];
    uv_mutex_lock(&o->lock);
    memcpy(text, o->box.trouble, sizeof(text));
    o->box.trouble[0] = '\0';
    bool finished = o->box.finished;
    uv_mutex_unlock(&o->lock);
    if (text[0] != '\0')
        o->events.on_trouble(o->events.arg, text);
    if (!finished || o->finished_said)
        return;
    o->finished_said = true;
    (void)uv_timer_stop(&o->timer);
    if (o->box.words.n > 0) /* Too late for the pump. */
        say_last(o, o->box.words.p, o->box.words.n);
    o->events.on_finished(o->events.arg);
}

int output_new(uv_loop_t *loop,
               const struct output_events *events,
               struct output **ret,
               struct mu_err *err)
{
    struct output *o = mu_zalloc(mu_mem_default(), sizeof(*o));
    if (o == NULL)
        return mu_err_set(err, -ENOMEM, "no memory for the workers' output");
    o->loop = loop;
    o->events = *events;
    o->wake_fd = -1;
    mu_buf_init(&o->box.words, mu_mem_default());
    for (int i = 0; i < SET_COUNT; i++)
        o->set_fd[i] = -1;
    *ret = o;
    return 0;
}

static int make_sets(struct output *o)
{
    for (int i = 0; i < SET_COUNT; i++) {
        if (o->set_fd[i] < 0)
            o->set_fd[i] = epoll_create1(EPOLL_CLOEXEC);
        if (o->set_fd[i] < 0)
            return -errno;
    }
    if (o->wake_fd < 0)
        o->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return o->wake_fd < 0 ? -errno : 0;
}

/* The pump hears no signal: they are the loop's. A file beyond its limit (SIGXFSZ) is an error like
 * others there. */
static int start_thread(struct output *o)
{
    sigset_t all;
    sigset_t before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int r = uv_thread_create(&o->thread, pump_main, o);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return r;
}

/* With the first stream; half of it on failure, which output_close() takes away. */
static int start_pump(struct output *o, struct mu_err *err)
{
    if (o->started)
        return 0;
    int r = make_sets(o);
    if (o->buffer == NULL)
        o->buffer = mu_alloc(mu_mem_default(), READ_BYTES);
    if (r == 0 && o->buffer == NULL)
        r = -ENOMEM;
    if (r == 0 && o->open_handles == 0) {
        r = uv_mutex_init(&o->lock);
        if (r == 0)
            r = uv_cond_init(&o->answered);
        if (r == 0)
            r = uv_async_init(o->loop, &o->async, on_async);
        if (r == 0) {
            (void)uv_timer_init(o->loop, &o->timer); /* Cannot fail. */
            o->async.data = o->timer.data = o;
            o->open_handles = 2;
        }
    }
    if (r < 0)
        return mu_err_set(err, r, "prepare to read the workers' output: %s", strerror(-r));
    console_init(&o->console[0], STDOUT_FILENO);
    console_init(&o->console[1], STDERR_FILENO);
    r = start_thread(o);
    if (r < 0)
        return mu_err_set(err, r, "start the thread that reads the workers' output: %s",
                          strerror(-r));
    o->started = true;
    return 0;
}

/* --- a round --- */

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

static uint32_t count_streams(const struct work_round *r)
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

static void free_list(struct stream *s)
{
    while (s != NULL) {
        struct stream *next = s->next;
        free_stream(s);
        s = next;
    }
}

/* An agent has as many workers in each round: made once, before the first stream. */
static int count_written(struct output *o, uint32_t nproc)
{
    if (o->written != NULL) {
        MU_ASSERT(o->written_count == nproc);
        return 0;
    }
    o->written = mu_zalloc(mu_mem_default(), nproc * sizeof *o->written);
    o->written_count = o->written != NULL ? nproc : 0;
    return o->written != NULL ? 0 : -ENOMEM;
}

uint64_t output_written(const struct output *o, uint32_t local_rank)
{
    return local_rank < o->written_count
               ? __atomic_load_n(&o->written[local_rank], __ATOMIC_RELAXED)
               : 0;
}

uint8_t output_passable(void)
{
    struct stat out;
    struct stat err;
    if (isatty(STDERR_FILENO) != 0)
        return 0;
    bool same = fstat(STDOUT_FILENO, &out) == 0 && fstat(STDERR_FILENO, &err) == 0 &&
                out.st_dev == err.st_dev && out.st_ino == err.st_ino;
    return same ? 3 : 2;
}

int output_open(struct output *o, struct work_round *round, struct mu_err *err)
{
    struct opening q = {.round = round};
    uint32_t count = count_streams(round);
    output_started(o);
    if (count == 0)
        return 0;
    int code = start_pump(o, err);
    if (code < 0)
        return code;
    code = count_written(o, round->nproc);
    if (code < 0)
        return mu_err_set(err, code, "no memory for the workers' output");
    q.pipe_bytes = PIPES_BYTES / (int)count;
    q.pipe_bytes = q.pipe_bytes < 65536 ? 0 : q.pipe_bytes > PIPE_BYTES ? PIPE_BYTES : q.pipe_bytes;
    o->writers = mu_alloc(mu_mem_default(), (size_t)4 * round->nproc * sizeof(int));
    if (o->writers == NULL)
        return mu_err_set(err, -ENOMEM, "no memory for the workers' output");
    o->writer_count = 2 * round->nproc;
    for (uint32_t i = 0; i < 2 * o->writer_count; i++)
        o->writers[i] = -1;
    code = open_streams(o, &q, err);
    drop_copies(q.copies);
    if (code < 0) {
        free_list(q.fresh);
        output_started(o);
        return code;
    }
    struct stream *last = q.fresh;
    while (last->next != NULL)
        last = last->next;
    uv_mutex_lock(&o->lock);
    o->box.round_begins = true;
    last->next = o->box.fresh; /* Of a round so short that the pump has not looked since. */
    o->box.fresh = q.fresh;
    uv_mutex_unlock(&o->lock);
    wake(o);
    round->output_fd = o->writers;
    return 0;
}

void output_started(struct output *o)
{
    for (uint32_t i = 0; i < o->writer_count; i++)
        close_fd(&o->writers[o->writer_count + i]);
    free(o->writers);
    o->writers = NULL;
    o->writer_count = 0;
}

void output_say(struct output *o, const char *p, size_t n)
{
    struct pollfd err = {.fd = STDERR_FILENO, .events = POLLOUT};
    if (o->started && !o->finished_said) {
        uv_mutex_lock(&o->lock);
        if (o->box.words.n < BEHIND_BYTES)
            (void)mu_buf_add(&o->box.words, p, n);
        uv_mutex_unlock(&o->lock);
        wake(o);
    } else if (o->started && !o->detached) {
        say_last(o, p, n);
    } else if (!o->detached || poll(&err, 1, 0) == 1) {
        if (write(STDERR_FILENO, p, n) < 0) {
            /* Nowhere left to say so. */
        }
    }
}

void output_round_over(struct output *o)
{
    if (!o->started)
        return;
    uv_mutex_lock(&o->lock);
    o->box.round_over = true;
    for (struct stream *s = o->box.fresh; s != NULL; s = s->next)
        s->over = true;
    uv_mutex_unlock(&o->lock);
    wake(o);
}

int output_last_lines(
    struct output *o, uint32_t local_rank, uint32_t lines, uint32_t limit_ms, char *dst, size_t cap)
{
    MU_ASSERT(cap > 0);
    dst[0] = '\0';
    if (!o->started)
        return 0;
    int64_t until_ns = mu_now_ns() + (int64_t)limit_ms * MU_NS_PER_MS;
    uv_mutex_lock(&o->lock);
    o->box.tail = (struct want_tail){
        .wanted = true, .local_rank = local_rank, .lines = lines, .cap = cap, .text = dst};
    wake(o);
    for (int64_t now_ns = mu_now_ns(); o->box.tail.wanted && now_ns < until_ns;
         now_ns = mu_now_ns())
        (void)uv_cond_timedwait(&o->answered, &o->lock, (uint64_t)(until_ns - now_ns));
    o->box.tail.wanted = false;
    int channel = o->box.tail.channel;
    uv_mutex_unlock(&o->lock);
    return channel;
}

/* --- the end --- */

/* Once a second: is the reader still taking something? */
static void on_second(uv_timer_t *t)
{
    struct output *o = t->data;
    uv_mutex_lock(&o->lock);
    uint64_t sent = o->box.sent_total;
    unsigned long long pending = o->box.pending;
    uv_mutex_unlock(&o->lock);
    o->still_s = sent == o->seen_sent || o->still_s >= GIVE_UP_AFTER_S ? o->still_s + 1 : 0;
    o->seen_sent = sent;
    if (o->still_s >= WORD_AFTER_S && !o->word_said) {
        char text[200];
        o->word_said = true;
        (void)snprintf(
            text, sizeof(text),
            "workers have ended; %llu bytes of their output wait for a reader that takes "
            "none: given up after %d s, or at a signal",
            pending, (int)GIVE_UP_AFTER_S);
        o->events.on_trouble(o->events.arg, text);
    }
    if (o->still_s == GIVE_UP_AFTER_S)
        output_abandon(o);
    if (o->still_s < GIVE_UP_AFTER_S + WORD_AFTER_S)
        return;
    o->detached = o->finished_said = true;
    (void)uv_timer_stop(&o->timer);
    uv_unref((uv_handle_t *)&o->async);
    o->events.on_finished(o->events.arg);
}

void output_finish(struct output *o)
{
    if (o->finishing)
        return;
    o->finishing = true;
    if (!o->started) {
        o->finished_said = true;
        o->events.on_finished(o->events.arg);
        return;
    }
    (void)uv_timer_start(&o->timer, on_second, 1000, 1000);
    uv_mutex_lock(&o->lock);
    o->box.finish = true;
    uv_mutex_unlock(&o->lock);
    wake(o);
}

void output_abandon(struct output *o)
{
    if (!o->started || o->finished_said)
        return;
    o->still_s = GIVE_UP_AFTER_S;
    uv_mutex_lock(&o->lock);
    o->box.give_up = true;
    uv_mutex_unlock(&o->lock);
    wake(o);
}

void output_describe_lost(const struct output *o, char *dst, size_t cap)
{
    const struct mailbox *m = &o->box; /* The pump has ended: it is ours alone. */
    size_t n = 0;
    dst[0] = '\0';
    if (o->detached)
        n = (size_t)snprintf(dst, cap, "workers' last lines were not shown: nobody took them");
    if (m->lost_file_lines > 0 && !o->detached)
        n = (size_t)snprintf(dst, cap, "%llu lines are missing from log files: %s",
                             (unsigned long long)m->lost_file_lines, strerror(m->lost_file_errno));
    if (m->lost_shown_lines > 0 && n < cap && !o->detached)
        (void)snprintf(dst + n, cap - n, "%s%llu lines of workers were not shown: %s",
                       n > 0 ? "; " : "", (unsigned long long)m->lost_shown_lines,
                       m->lost_shown_errno != 0 ? strerror(m->lost_shown_errno)
                                                : "nobody took them");
}

bool output_lost_console(const struct output *o)
{
    return o->box.lost_shown_errno != 0;
}

static void free_output(struct output *o)
{
    if (o->started)
        (void)uv_thread_join(&o->thread); /* It has said its last word. */
    while (o->streams != NULL) {
        struct stream *s = o->streams;
        o->streams = s->next;
        free_stream(s);
    }
    free_list(o->box.fresh);
    mu_buf_fini(&o->box.words);
    if (o->started) {
        console_fini(&o->console[0]);
        console_fini(&o->console[1]);
    }
    for (int i = 0; i < SET_COUNT; i++)
        close_fd(&o->set_fd[i]);
    close_fd(&o->wake_fd);
    free(o->buffer);
    free(o->written);
    free(o);
}

static void on_handle_closed(uv_handle_t *h)
{
    struct output *o = h->data;
    if (--o->open_handles > 0)
        return;
    uv_mutex_destroy(&o->lock);
    uv_cond_destroy(&o->answered);
    free_output(o);
}

void output_close(struct output *o)
{
    MU_ASSERT(!o->started || o->finished_said);
    output_started(o);
    if (o->detached)
        return; /* What it holds is the pump's for ever. */
    if (o->open_handles == 0) {
        free_output(o);
        return;
    }
    uv_close((uv_handle_t *)&o->async, on_handle_closed);
    uv_close((uv_handle_t *)&o->timer, on_handle_closed);
}
