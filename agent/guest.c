/* A guest among the workers; see guest.h. */
#include "agent/guest.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"

#define READS_MAX 16 /* Of one turn: one that writes without end must not hold up the loop. */

static void forget_poll(uv_handle_t *handle)
{
    free(handle);
}

static void stop_reading(struct guest *g)
{
    if (g->poll != NULL)
        uv_close((uv_handle_t *)g->poll, forget_poll);
    g->poll = NULL;
    if (g->fd >= 0)
        (void)close(g->fd);
    g->fd = -1;
}

/* The end of all that it wrote stays. */
static void keep(struct guest *g, const char *p, size_t n)
{
    const size_t room = sizeof g->tail - 1;
    if (n > room) {
        p += n - room;
        n = room;
    }
    if (g->tail_bytes + n > room) {
        size_t gone = g->tail_bytes + n - room;
        memmove(g->tail, g->tail + gone, g->tail_bytes - gone);
        g->tail_bytes -= gone;
    }
    for (size_t i = 0; i < n; i++)
        g->tail[g->tail_bytes++] = p[i] != '\0' ? p[i] : ' ';
    g->tail[g->tail_bytes] = '\0';
}

static void read_some(struct guest *g)
{
    char piece[4096];
    for (int i = 0; i < READS_MAX && g->fd >= 0; i++) {
        ssize_t n = read(g->fd, piece, sizeof piece);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0) { /* It closed them and runs on, or both are over. */
            stop_reading(g);
            return;
        }
        keep(g, piece, (size_t)n);
    }
}

static void on_output(uv_poll_t *poll, int status, int events)
{
    (void)status;
    (void)events;
    read_some(poll->data);
}

static void finish(struct guest *g, int32_t status, bool timed_out)
{
    (void)uv_timer_stop(&g->timer);
    stop_reading(g);
    g->running = false;
    g->on_over(g->arg, status, timed_out);
}

static void on_ended(void *arg, int32_t status)
{
    struct guest *g = arg;
    if (!g->running)
        return; /* It was given up. */
    read_some(g);
    finish(g, status, false);
}

static void on_limit(uv_timer_t *timer)
{
    struct guest *g = timer->data;
    read_some(g);
    work_kill_guest(g->work);
    finish(g, 0, true);
}

static int watch(struct guest *g, int fd)
{
    g->fd = fd;
    g->poll = mu_zalloc(mu_mem_default(), sizeof *g->poll);
    if (g->poll == NULL)
        return -ENOMEM;
    int r = uv_poll_init(g->loop, g->poll, fd);
    if (r < 0) {
        free(g->poll);
        g->poll = NULL;
        return r;
    }
    g->poll->data = g;
    uv_unref((uv_handle_t *)g->poll);
    return uv_poll_start(g->poll, UV_READABLE, on_output);
}

int guest_start(struct guest *g, char *const argv[], int64_t limit_ns)
{
    extern char **environ;
    int fds[2] = {-1, -1};
    guest_give_up(g);
    g->tail_bytes = 0;
    g->tail[0] = '\0';
    g->running = true;
    int r = pipe2(fds, O_CLOEXEC) < 0 ? -errno : 0;
    if (r == 0 && fcntl(fds[0], F_SETFL, O_NONBLOCK) < 0) /* Its own end waits, as is usual. */
        r = -errno;
    if (r == 0)
        r = work_start_guest(g->work, argv, environ, fds[1], on_ended, g);
    if (fds[1] >= 0)
        (void)close(fds[1]);
    if (r == 0)
        r = watch(g, fds[0]);
    else if (fds[0] >= 0)
        (void)close(fds[0]);
    if (r < 0) {
        guest_give_up(g);
        return r;
    }
    uv_update_time(g->loop);
    (void)uv_timer_start(&g->timer, on_limit, (uint64_t)(limit_ns / MU_NS_PER_MS), 0);
    return 0;
}

void guest_give_up(struct guest *g)
{
    if (!g->running)
        return;
    g->running = false;
    (void)uv_timer_stop(&g->timer);
    stop_reading(g);
    work_kill_guest(g->work);
}

void guest_init(struct guest *g, uv_loop_t *loop, guest_fn *on_over, void *arg)
{
    *g = (struct guest){.loop = loop, .fd = -1, .on_over = on_over, .arg = arg};
    (void)uv_timer_init(loop, &g->timer); /* Cannot fail. */
    g->timer.data = g;
    uv_unref((uv_handle_t *)&g->timer);
}

void guest_use(struct guest *g, struct work *work)
{
    g->work = work;
}

void guest_close(struct guest *g)
{
    guest_give_up(g);
    uv_close((uv_handle_t *)&g->timer, NULL);
}
