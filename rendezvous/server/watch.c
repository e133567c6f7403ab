/* What the server watches: one epoll set of its own, which sits in the loop as a single descriptor.
 *
 * A uv_poll_t for each connection costs three system calls at its birth and 160 bytes; the set
 * costs one call, and everything that is ready is handled in one go: first all that came in, then,
 * once, what goes out. */
#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "rendezvous/server/internal.h"

/* Handled in one turn of the loop; the rest is as ready in the next. */
#define READY_MAX 64

static void rest_in_a_storm(const struct srv *s)
{
    static const struct timespec moment = {.tv_nsec = SRV_STORM_REST_NS};
    if (s->accept_crowd == SRV_STORM && !s->accept_more &&
        s->now_ns - s->accepted_ns < SRV_CROWD_GAP_NS)
        (void)nanosleep(&moment, NULL); /* A signal may end it early: as good. */
}

/* Returns how many were ready. */
static int turn(struct srv *s, int timeout_ms)
{
    rest_in_a_storm(s);
    struct epoll_event ready[READY_MAX];
    int n = epoll_wait(s->epoll_fd, ready, READY_MAX, timeout_ms);
    s->now_ns = mu_now_ns();
    s->turn++;
    for (int i = 0; i < n; i++) {
        struct watch *w = ready[i].data.ptr; /* Memory stays until srv_settle(). */
        if (w->fd >= 0)
            w->u.ready(w, ready[i].events);
    }
    srv_settle(s);
    return n;
}

static void on_ready(uv_poll_t *poll, int status, int events)
{
    (void)status; /* An epoll descriptor has no error of its own. */
    (void)events;
    (void)turn(poll->data, 0);
}

static void on_loop_ready(struct watch *w, uint32_t events)
{
    struct srv *s = (struct srv *)((char *)w - offsetof(struct srv, loop_watch));
    (void)events;
    s->loop_ready = true;
}

/* The loop in the set instead of the set in the loop. libuv's callbacks run when its descriptor is
 * ready or a timer is due; nothing else here makes work for it. */
void srv_run(struct srv *s)
{
    uv_loop_t *loop = s->loop;
    bool closed = false;
    s->closed = &closed;
    (void)uv_poll_stop(&s->watch_poll); /* Never fails. */
    (void)uv_run(loop, UV_RUN_NOWAIT);  /* What was started before is in the loop's set now. */
    if (!closed && watch_add(s, &s->loop_watch, uv_backend_fd(loop), EPOLLIN, on_loop_ready) < 0)
        (void)uv_poll_start(&s->watch_poll, UV_READABLE, on_ready); /* Then as everybody does. */
    while (!closed && s->loop_watch.fd >= 0) {
        uv_update_time(loop);
        int timeout_ms = uv_backend_timeout(loop);
        int n = turn(s, timeout_ms);
        if (n > 0 && timeout_ms != 0 && !s->loop_ready)
            continue;
        s->loop_ready = false;
        (void)uv_run(loop, UV_RUN_NOWAIT);
    }
    (void)uv_run(loop, UV_RUN_DEFAULT);
}

int watch_init(struct srv *s, struct mu_err *err)
{
    s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    return s->epoll_fd >= 0 ? 0 : mu_err_set(err, -errno, "an epoll set: %s", strerror(errno));
}

int watch_start(struct srv *s, struct mu_err *err)
{
    int r = uv_poll_init(s->loop, &s->watch_poll, s->epoll_fd);
    if (r < 0)
        return mu_err_set(err, r, "watch connections: %s", uv_strerror(r));
    s->watch_poll.data = s;
    s->handles++;
    r = uv_poll_start(&s->watch_poll, UV_READABLE, on_ready);
    MU_ASSERT(r == 0); /* Fails only for a descriptor that is watched elsewhere. */
    return 0;
}

static void on_closed(uv_handle_t *h)
{
    srv_handle_closed(h->data);
}

void watch_stop(struct srv *s)
{
    uv_close((uv_handle_t *)&s->watch_poll, on_closed);
    (void)close(s->epoll_fd);
    s->epoll_fd = -1;
}

int watch_add(struct srv *s, struct watch *w, int fd, uint32_t events, watch_ready_fn *ready)
{
    struct epoll_event e = {.events = events, .data.ptr = w};
    *w = (struct watch){.u.ready = ready, .fd = fd, .events = events};
    if (epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &e) == 0)
        return 0;
    int r = -errno;
    w->fd = -1;
    return r;
}

void watch_again(struct srv *s, struct watch *w)
{
    struct epoll_event e = {.events = w->events, .data.ptr = w};
    int r = epoll_ctl(s->epoll_fd, EPOLL_CTL_MOD, w->fd, &e);
    MU_ASSERT(r == 0); /* It is in the set. */
}

void watch_change(struct srv *s, struct watch *w, uint32_t events)
{
    if (w->events == events)
        return;
    w->events = events;
    watch_again(s, w);
}

int watch_remove(struct srv *s, struct watch *w)
{
    int fd = w->fd;
    /* Closing alone would do, but not where a child between fork and exec holds a copy. */
    (void)epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
    w->fd = -1;
    return fd;
}

void watch_free_later(struct srv *s, struct watch *w)
{
    MU_ASSERT(w->fd < 0);
    w->u.dead_next = s->dead;
    s->dead = w;
}

void watch_free_dead(struct srv *s)
{
    while (s->dead != NULL) {
        struct watch *w = s->dead;
        s->dead = w->u.dead_next;
        mu_mem_free(mu_mem_default(), w);
    }
}
