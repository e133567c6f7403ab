/* What the server watches: one epoll set of its own, which sits in the loop as a single descriptor.
 *
 * A uv_poll_t for each connection costs three system calls at its birth and 160 bytes; the set
 * costs one call, and everything that is ready is handled in one go: first all that came in, then,
 * once, what goes out. */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "rendezvous/server/internal.h"

/* Handled in one turn of the loop; the rest is as ready in the next. */
#define READY_MAX 256

static void on_ready(uv_poll_t *poll, int status, int events)
{
    struct srv *s = poll->data;
    struct epoll_event ready[READY_MAX];
    (void)status; /* An epoll descriptor has no error of its own. */
    (void)events;
    s->now_ns = mu_now_ns();
    int n = epoll_wait(s->epoll_fd, ready, READY_MAX, 0);
    for (int i = 0; i < n; i++) {
        struct watch *w = ready[i].data.ptr; /* Memory stays until srv_settle(). */
        if (w->fd >= 0)
            w->ready(w, ready[i].events);
    }
    srv_settle(s);
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
    *w = (struct watch){.ready = ready, .fd = fd, .events = events};
    if (epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &e) == 0)
        return 0;
    int r = -errno;
    w->fd = -1;
    return r;
}

void watch_change(struct srv *s, struct watch *w, uint32_t events)
{
    struct epoll_event e = {.events = events, .data.ptr = w};
    if (w->events == events)
        return;
    int r = epoll_ctl(s->epoll_fd, EPOLL_CTL_MOD, w->fd, &e);
    MU_ASSERT(r == 0); /* It is in the set. */
    w->events = events;
}

int watch_remove(struct srv *s, struct watch *w)
{
    int fd = w->fd;
    /* Closing alone would do, but not where a child between fork and exec holds a copy. */
    (void)epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
    w->fd = -1;
    return fd;
}
