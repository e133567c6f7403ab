/* The loop's side of workers' output; see output.h, and output_internal.h for its two threads. */
#include "agent/workers/output.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/workers/output_internal.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/mem.h"

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
    int r = uv_thread_create(&o->thread, output_pump, o);
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
    struct stream *fresh = NULL;
    uint32_t count = output_count_streams(round);
    output_started(o);
    if (count == 0)
        return 0;
    int code = start_pump(o, err);
    if (code < 0)
        return code;
    code = count_written(o, round->nproc);
    if (code < 0)
        return mu_err_set(err, code, "no memory for the workers' output");
    int pipe_bytes = PIPES_BYTES / (int)count;
    pipe_bytes = pipe_bytes < 65536 ? 0 : pipe_bytes > PIPE_BYTES ? PIPE_BYTES : pipe_bytes;
    o->writers = mu_alloc(mu_mem_default(), (size_t)4 * round->nproc * sizeof(int));
    if (o->writers == NULL)
        return mu_err_set(err, -ENOMEM, "no memory for the workers' output");
    o->writer_count = 2 * round->nproc;
    for (uint32_t i = 0; i < 2 * o->writer_count; i++)
        o->writers[i] = -1;
    code = output_make_streams(o, round, pipe_bytes, &fresh, err);
    if (code < 0) {
        output_started(o);
        return code;
    }
    struct stream *last = fresh;
    while (last->next != NULL)
        last = last->next;
    uv_mutex_lock(&o->lock);
    o->box.round_begins = true;
    last->next = o->box.fresh; /* Of a round so short that the pump has not looked since. */
    o->box.fresh = fresh;
    uv_mutex_unlock(&o->lock);
    wake(o);
    round->output_fd = o->writers;
    return 0;
}

void output_started(struct output *o)
{
    for (uint32_t i = 0; i < o->writer_count; i++)
        output_close_fd(&o->writers[o->writer_count + i]);
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
    output_free_streams(o->streams);
    output_free_streams(o->box.fresh);
    mu_buf_fini(&o->box.words);
    if (o->started) {
        console_fini(&o->console[0]);
        console_fini(&o->console[1]);
    }
    for (int i = 0; i < SET_COUNT; i++)
        output_close_fd(&o->set_fd[i]);
    output_close_fd(&o->wake_fd);
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
