/* A health check at work; see health.h. */
#include "agent/health.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"

#define READS_MAX 16 /* Of one turn: one that writes without end must not hold up the loop. */

static void forget_poll(uv_handle_t *handle)
{
    free(handle);
}

static void stop_reading(struct health *h)
{
    if (h->poll != NULL)
        uv_close((uv_handle_t *)h->poll, forget_poll);
    h->poll = NULL;
    if (h->fd >= 0)
        (void)close(h->fd);
    h->fd = -1;
}

/* The end of all that it wrote stays. */
static void keep(struct health *h, const char *p, size_t n)
{
    const size_t room = sizeof h->tail - 1;
    if (n > room) {
        p += n - room;
        n = room;
    }
    if (h->tail_bytes + n > room) {
        size_t gone = h->tail_bytes + n - room;
        memmove(h->tail, h->tail + gone, h->tail_bytes - gone);
        h->tail_bytes -= gone;
    }
    for (size_t i = 0; i < n; i++)
        h->tail[h->tail_bytes++] = p[i] != '\0' ? p[i] : ' ';
    h->tail[h->tail_bytes] = '\0';
}

static void read_some(struct health *h)
{
    char piece[4096];
    for (int i = 0; i < READS_MAX && h->fd >= 0; i++) {
        ssize_t n = read(h->fd, piece, sizeof piece);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0) { /* It closed them and runs on, or both are over. */
            stop_reading(h);
            return;
        }
        keep(h, piece, (size_t)n);
    }
}

static void on_output(uv_poll_t *poll, int status, int events)
{
    (void)status;
    (void)events;
    read_some(poll->data);
}

static void settle(struct health *h, const struct health_run *run)
{
    char text[MU_MESSAGE_BYTES];
    char shown[MU_MESSAGE_BYTES + 64];
    static const char *const words[] = {
        [HEALTH_PASSED] = "passed", [HEALTH_FAILED] = "failed", [HEALTH_UNKNOWN] = "unknown"};
    (void)uv_timer_stop(&h->timer);
    stop_reading(h);
    h->running = false;
    enum health_verdict v = health_judge(run, text, sizeof text);
    mu_log(MU_INFO, "health.checked", "verdict=%s status=%d text=%s", words[v], run->status,
           mu_quote(shown, sizeof shown, mu_str_of(text, strlen(text))));
    h->on_known(h->arg, v, text);
}

static void on_ended(void *arg, int32_t status)
{
    struct health *h = arg;
    if (!h->running)
        return; /* It was given up. */
    read_some(h);
    settle(h, &(struct health_run){.status = status, .output = h->tail});
}

static void on_late(uv_timer_t *timer)
{
    struct health *h = timer->data;
    if (h->fd >= 0)
        read_some(h);
    work_kill_guest(h->work);
    settle(h, &(struct health_run){.timed_out = true, .limit_ns = h->limit_ns, .output = h->tail});
}

static int watch(struct health *h, int fd)
{
    h->fd = fd;
    h->poll = mu_zalloc(mu_mem_default(), sizeof *h->poll);
    if (h->poll == NULL)
        return -ENOMEM;
    int r = uv_poll_init(h->loop, h->poll, fd);
    if (r < 0) {
        free(h->poll);
        h->poll = NULL;
        return r;
    }
    h->poll->data = h;
    uv_unref((uv_handle_t *)h->poll);
    return uv_poll_start(h->poll, UV_READABLE, on_output);
}

/* The command as the shell reads it: no terminal of ours is its stdin. */
static int start(struct health *h, int out_fd)
{
    extern char **environ;
    static const char before[] = "exec </dev/null\n";
    size_t n = sizeof before + strlen(h->command);
    char *script = mu_alloc(mu_mem_default(), n);
    if (script == NULL)
        return -ENOMEM;
    (void)snprintf(script, n, "%s%s", before, h->command);
    char shell[] = "/bin/sh";
    char option[] = "-c";
    char *argv[] = {shell, option, script, NULL};
    int r = work_start_guest(h->work, argv, environ, out_fd, on_ended, h);
    free(script);
    return r;
}

static void on_not_started(uv_timer_t *timer)
{
    struct health *h = timer->data;
    settle(h, &(struct health_run){.not_started = h->tail, .output = ""});
}

void health_begin(struct health *h)
{
    int fds[2] = {-1, -1};
    health_cancel(h);
    h->tail_bytes = 0;
    h->tail[0] = '\0';
    h->running = true;
    int r = pipe2(fds, O_CLOEXEC) < 0 ? -errno : 0;
    if (r == 0 && fcntl(fds[0], F_SETFL, O_NONBLOCK) < 0)
        r = -errno;
    if (r == 0)
        r = start(h, fds[1]);
    if (fds[1] >= 0)
        (void)close(fds[1]);
    if (r == 0)
        r = watch(h, fds[0]);
    else if (fds[0] >= 0)
        (void)close(fds[0]);
    if (r < 0) {
        (void)snprintf(h->tail, sizeof h->tail, "%s",
                       r == -EBUSY ? "the one before it does not end after SIGKILL" : strerror(-r));
        work_kill_guest(h->work);
        (void)uv_timer_start(&h->timer, on_not_started, 0, 0);
        return;
    }
    uv_update_time(h->loop);
    (void)uv_timer_start(&h->timer, on_late, (uint64_t)(h->limit_ns / MU_NS_PER_MS), 0);
}

void health_cancel(struct health *h)
{
    if (!h->running)
        return;
    h->running = false;
    (void)uv_timer_stop(&h->timer);
    stop_reading(h);
    work_kill_guest(h->work);
}

void health_init(struct health *h,
                 uv_loop_t *loop,
                 const char *command,
                 int64_t limit_ns,
                 void (*on_known)(void *arg, enum health_verdict v, const char *text),
                 void *arg)
{
    *h = (struct health){.loop = loop,
                         .fd = -1,
                         .command = command,
                         .limit_ns = limit_ns,
                         .on_known = on_known,
                         .arg = arg};
    if (command == NULL)
        return;
    (void)uv_timer_init(loop, &h->timer); /* Cannot fail. */
    h->timer.data = h;
    uv_unref((uv_handle_t *)&h->timer);
}

void health_use(struct health *h, struct work *work)
{
    h->work = work;
}

void health_close(struct health *h)
{
    if (h->command == NULL)
        return;
    health_cancel(h);
    uv_close((uv_handle_t *)&h->timer, NULL);
}
