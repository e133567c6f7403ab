/* A store inside the process; see store_serve.h.
 *
 * The thread owns the store and all connections. Another thread may only raise a flag under the
 * lock and wake it; what it wants to know, it waits for on a condition. */
#include "worker-sdk/src/store/store_serve.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/addr.h"
#include "base/limits.h"
#include "base/mem.h"
#include "rendezvous/store/store.h"

#define EVENTS 64
#define PIECES 16
#define SCRATCH_BYTES ((size_t)64 << 10)
#define STACK_BYTES ((size_t)256 << 10)
/* What one connection may bring before the others get their turn. */
#define TURN_BYTES ((size_t)1 << 20)
/* No connection is left: a rank that is only connecting anew comes back within this. */
#define QUIET_NS (500 * MU_NS_PER_MS)

struct conn {
    int fd;
    struct store_client *client;
    bool wants_out;
    bool dead;
    struct conn *prev;
    struct conn *next; /* Of all; once dead, of the dead. */
};

struct sdk_serve {
    struct store *store;
    int listener;
    int epoll;
    int wake; /* eventfd: look at the flags below. */
    bool listens;
    struct conn *all;
    struct conn *dead;
    size_t conn_count;
    char *scratch;
    pthread_t thread;
    bool has_thread;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* Under the lock. */
    bool stop;
    const char *drain_prefix; /* NULL: nobody asks. */
    uint32_t drain_world;
    uint32_t drain_next; /* Ranks below have said goodbye. */
    int64_t quiet_since_ns;
    bool drained;
};

/* --- connections --- */

static int watch(struct sdk_serve *v, int op, int fd, uint32_t events, void *ptr)
{
    struct epoll_event e = {.events = events, .data.ptr = ptr};
    return epoll_ctl(v->epoll, op, fd, &e) < 0 ? -errno : 0;
}

/* Out of descriptors: a listener that stays readable would turn the loop for nothing. */
static void listen_again(struct sdk_serve *v)
{
    if (!v->listens)
        v->listens = watch(v, EPOLL_CTL_ADD, v->listener, EPOLLIN, &v->listener) == 0;
}

static void conn_close(struct sdk_serve *v, struct conn *c)
{
    if (c->dead)
        return;
    c->dead = true;
    store_client_free(c->client);
    (void)close(c->fd);
    if (c->prev != NULL)
        c->prev->next = c->next;
    else
        v->all = c->next;
    if (c->next != NULL)
        c->next->prev = c->prev;
    c->next = v->dead; /* Events of this turn may still name it. */
    v->dead = c;
    v->conn_count--;
    listen_again(v);
}

static void free_dead(struct sdk_serve *v)
{
    while (v->dead != NULL) {
        struct conn *c = v->dead;
        v->dead = c->next;
        mu_mem_free(mu_mem_default(), c);
    }
}

static void conn_open(struct sdk_serve *v, int fd)
{
    struct conn *c = mu_zalloc(mu_mem_default(), sizeof *c);
    struct store_client *client = c != NULL ? store_client_new(v->store, c) : NULL;
    if (client == NULL || watch(v, EPOLL_CTL_ADD, fd, EPOLLIN, c) < 0) {
        store_client_free(client);
        mu_mem_free(mu_mem_default(), c);
        (void)close(fd);
        return;
    }
    *c = (struct conn){.fd = fd, .client = client, .next = v->all};
    if (v->all != NULL)
        v->all->prev = c;
    v->all = c;
    v->conn_count++;
}

static void accept_some(struct sdk_serve *v)
{
    for (int i = 0; i < MU_ACCEPT_BATCH; i++) {
        int fd = accept4(v->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            conn_open(v, fd);
            continue;
        }
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
            v->listens = watch(v, EPOLL_CTL_DEL, v->listener, 0, NULL) < 0;
        if (errno != EINTR && errno != ECONNABORTED)
            return;
    }
}

static void conn_read(struct sdk_serve *v, struct conn *c)
{
    for (size_t taken = 0; taken < TURN_BYTES;) {
        void *p = NULL;
        size_t room = 0;
        store_client_space(c->client, &p, &room);
        if (p == NULL) {
            p = v->scratch;
            room = SCRATCH_BYTES;
        }
        ssize_t n = recv(c->fd, p, room, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return;
        if (n <= 0) {
            conn_close(v, c);
            return;
        }
        taken += (size_t)n;
        if (store_client_feed(c->client, p, (size_t)n) != STORE_OK || (size_t)n < room)
            return; /* A verdict is carried out with the output, in flush(). */
    }
}

/* 0: all is out; 1: the peer must read first; or a negative errno. */
static int conn_write(struct conn *c)
{
    struct store_piece pieces[PIECES];
    size_t count = 0;
    while ((count = store_client_output(c->client, pieces, PIECES)) > 0) {
        struct iovec iov[PIECES];
        for (size_t i = 0; i < count; i++) {
            union {
                const void *in;
                void *out;
            } base = {.in = pieces[i].p}; /* sendmsg() only reads it. */
            iov[i] = (struct iovec){.iov_base = base.out, .iov_len = pieces[i].n};
        }
        struct msghdr m = {.msg_iov = iov, .msg_iovlen = count};
        ssize_t n = sendmsg(c->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n >= 0)
            store_client_sent(c->client, (size_t)n);
        else if (errno == EAGAIN)
            return 1;
        else if (errno != EINTR)
            return -errno;
    }
    return 0;
}

/* Output first, then the verdict. Whoever does not read his answers is not read from. */
static void conn_serve(struct sdk_serve *v, struct conn *c)
{
    if (c->dead)
        return;
    bool ends = store_client_verdict(c->client) != STORE_OK;
    int r = conn_write(c);
    bool wants_out = r == 1;
    if (r < 0 || ends ||
        (wants_out != c->wants_out &&
         watch(v, EPOLL_CTL_MOD, c->fd, wants_out ? EPOLLOUT : EPOLLIN, c) < 0)) {
        conn_close(v, c);
        return;
    }
    c->wants_out = wants_out;
}

static void flush(struct sdk_serve *v)
{
    struct store_client *client = NULL;
    while ((client = store_take_ready(v->store)) != NULL)
        conn_serve(v, store_client_owner(client));
}

/* --- is anybody left? --- */

static bool has_mark(struct sdk_serve *v, const char *what, uint32_t rank)
{
    char key[256];
    struct mu_str value;
    int n = snprintf(key, sizeof key, "/%s%s/%u", v->drain_prefix, what, rank);
    return n > 0 && (size_t)n < sizeof key &&
           store_peek(v->store, mu_str_of(key, (size_t)n), &value) == 0;
}

static bool all_were_here(struct sdk_serve *v)
{
    for (uint32_t r = v->drain_next; r < v->drain_world; r++) {
        if (!has_mark(v, "gone", r) && !has_mark(v, "here", r))
            return false;
    }
    return true;
}

/* With the lock. Returns when to look again. */
static int64_t drain_look(struct sdk_serve *v)
{
    if (v->drain_prefix == NULL || v->drained)
        return MU_NEVER;
    while (v->drain_next < v->drain_world && has_mark(v, "gone", v->drain_next))
        v->drain_next++;
    int64_t now_ns = sdk_now_ns();
    bool quiet = v->conn_count == 0 && all_were_here(v);
    if (!quiet)
        v->quiet_since_ns = MU_NEVER;
    else if (v->quiet_since_ns == MU_NEVER)
        v->quiet_since_ns = now_ns;
    if (v->drain_next == v->drain_world || (quiet && now_ns - v->quiet_since_ns >= QUIET_NS)) {
        v->drained = true;
        (void)pthread_cond_broadcast(&v->changed);
        return MU_NEVER;
    }
    return quiet ? v->quiet_since_ns + QUIET_NS : MU_NEVER;
}

/* --- the thread --- */

static void on_event(struct sdk_serve *v, const struct epoll_event *e)
{
    uint64_t count = 0;
    if (e->data.ptr == &v->listener) {
        accept_some(v);
        return;
    }
    if (e->data.ptr == &v->wake) {
        (void)!read(v->wake, &count, sizeof count); /* Only that it was raised matters. */
        return;
    }
    struct conn *c = e->data.ptr;
    if (c->dead)
        return;
    if (c->wants_out)
        conn_serve(v, c);
    else
        conn_read(v, c);
}

static void *serve(void *arg)
{
    struct sdk_serve *v = arg;
    int64_t look_ns = MU_NEVER;
    for (;;) {
        struct epoll_event events[EVENTS];
        int n = epoll_wait(v->epoll, events, EVENTS, sdk_poll_ms(look_ns));
        for (int i = 0; i < n; i++)
            on_event(v, &events[i]);
        flush(v);
        free_dead(v);
        (void)pthread_mutex_lock(&v->lock);
        bool stop = v->stop;
        look_ns = drain_look(v);
        (void)pthread_mutex_unlock(&v->lock);
        if (stop)
            return NULL;
    }
}

/* The program's signals are for the program's threads. */
static int start_thread(struct sdk_serve *v)
{
    pthread_attr_t attr;
    sigset_t all;
    sigset_t before;
    int r = pthread_attr_init(&attr);
    if (r != 0)
        return -r;
    (void)pthread_attr_setstacksize(&attr, STACK_BYTES);
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    r = pthread_create(&v->thread, &attr, serve, v);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    (void)pthread_attr_destroy(&attr);
    v->has_thread = r == 0;
    return -r;
}

/* --- from outside --- */

static int init_lock(struct sdk_serve *v)
{
    pthread_condattr_t attr;
    int r = pthread_condattr_init(&attr);
    if (r != 0)
        return -r;
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    r = pthread_cond_init(&v->changed, &attr);
    (void)pthread_condattr_destroy(&attr);
    if (r == 0)
        r = pthread_mutex_init(&v->lock, NULL);
    return -r;
}

static int set_up(struct sdk_serve *v)
{
    uint64_t seed = (uint64_t)sdk_now_ns() ^ ((uint64_t)getpid() << 32);
    v->scratch = mu_alloc(mu_mem_default(), SCRATCH_BYTES);
    v->store = store_new(mu_mem_default(), &store_limits_default, seed);
    v->epoll = epoll_create1(EPOLL_CLOEXEC);
    v->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (v->scratch == NULL || v->store == NULL)
        return -ENOMEM;
    if (v->epoll < 0 || v->wake < 0)
        return -errno;
    listen_again(v);
    if (!v->listens)
        return -errno;
    int r = watch(v, EPOLL_CTL_ADD, v->wake, EPOLLIN, &v->wake);
    return r < 0 ? r : start_thread(v);
}

int sdk_serve_start(const char *host,
                    uint16_t port,
                    struct sdk_serve **ret,
                    uint16_t *ret_port,
                    struct muster_error *err)
{
    struct mu_err why = {0};
    uint16_t got = 0;
    int listener = mu_listen(host, port, MU_LISTEN_BACKLOG, &got, &why);
    if (listener < 0) {
        (void)sdk_error_take(err, &why);
        return sdk_error_wrap(err, why.code, "serve the job's store");
    }
    struct sdk_serve *v = mu_zalloc(mu_mem_default(), sizeof *v);
    int r = v == NULL ? -ENOMEM : init_lock(v);
    if (r < 0) {
        (void)close(listener);
        mu_mem_free(mu_mem_default(), v);
    } else {
        v->listener = listener;
        v->epoll = v->wake = -1;
        r = set_up(v);
        if (r < 0)
            sdk_serve_stop(v);
    }
    if (r < 0)
        return sdk_error(err, r, "serve the job's store: %s", strerror(-r));
    *ret = v;
    *ret_port = got;
    return 0;
}

static void raise_flag(struct sdk_serve *v)
{
    uint64_t one = 1;
    (void)!write(v->wake, &one, sizeof one); /* Cannot fail but when it is raised already. */
}

int sdk_serve_drain(struct sdk_serve *v,
                    const char *prefix,
                    uint32_t world,
                    int64_t deadline_ns,
                    struct muster_error *err)
{
    /* MU_NEVER is so far off that no clock gets there. */
    struct timespec until = {.tv_sec = deadline_ns / MU_NS_PER_S,
                             .tv_nsec = deadline_ns % MU_NS_PER_S};
    int r = 0;
    (void)pthread_mutex_lock(&v->lock);
    v->drain_prefix = prefix;
    v->drain_world = world;
    v->drain_next = 1;
    v->quiet_since_ns = MU_NEVER;
    raise_flag(v);
    while (!v->drained && r == 0)
        r = pthread_cond_timedwait(&v->changed, &v->lock, &until);
    if (!v->drained)
        r = sdk_error(err, -ETIMEDOUT, "rank %u did not say goodbye in time, and uses the store",
                      v->drain_next);
    else
        r = 0;
    v->drain_prefix = NULL;
    (void)pthread_mutex_unlock(&v->lock);
    return r;
}

void sdk_serve_stop(struct sdk_serve *v)
{
    if (v == NULL)
        return;
    if (v->has_thread) {
        (void)pthread_mutex_lock(&v->lock);
        v->stop = true;
        (void)pthread_mutex_unlock(&v->lock);
        raise_flag(v);
        (void)pthread_join(v->thread, NULL);
    }
    while (v->all != NULL)
        conn_close(v, v->all);
    free_dead(v);
    store_free(v->store);
    mu_mem_free(mu_mem_default(), v->scratch);
    (void)close(v->listener);
    if (v->epoll >= 0)
        (void)close(v->epoll);
    if (v->wake >= 0)
        (void)close(v->wake);
    (void)pthread_mutex_destroy(&v->lock);
    (void)pthread_cond_destroy(&v->changed);
    mu_mem_free(mu_mem_default(), v);
}
