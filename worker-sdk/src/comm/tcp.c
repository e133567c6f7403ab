/* Tickets, who drives the sockets, and waiting.
 *
 * Who drives: the caller that waits for a ticket, if there is one. It sends, polls and receives
 * itself, without a switch of threads. When no caller drives, the communicator's thread does: it
 * goes on with what was submitted, hears of failures, and answers peers. A program that waits for
 * one operation after the other would have the thread wake up for each; so the thread naps for
 * NAP_NS at a time as long as callers come and go, and takes over when none came during a nap.
 *
 * Who sleeps says so in the memory that it shares, and is woken by a frame on the link; so the
 * links are all that is polled, and who only spins costs a peer no system call. Where all ranks
 * share memory and no CPU is spare, the thread would only take time from a caller that computes: it
 * is lazy there. What callers submit is moved on as far as it goes whenever they come by, and by
 * the thread once a peer would have to sleep for it, which frees a CPU. */
#include "worker-sdk/src/comm/tcp.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "worker-sdk/src/core/sdk.h"
#include "worker-sdk/src/comm/tcp_meet.h"

#define NAP_NS (2 * MU_NS_PER_MS)
/* A larger operation wakes the napping thread, so that it moves while the caller computes. */
#define WAKE_BYTES ((size_t)256 << 10)
/* How long a caller looks again before it polls: about what falling asleep and waking up costs. It
 * yields in between, as the peer may wait for this very CPU. */
#define SPIN_NS (10 * INT64_C(1000))
/* The same for memory that is shared, where each rank has a CPU: a CPU that falls asleep takes
 * longer to wake up than one that has something else to do. */
#define SPIN_LONG_NS (50 * INT64_C(1000))
/* Looks at the memory before the first yield, there. Less often where yielding lets somebody run:
 * it may be the peer, on this very CPU. */
#define LOOKS_MAX 320
#define LOOKS_MIN 10
/* A yield takes longer if it lets somebody run. */
#define YIELD_NS (2 * INT64_C(1000))
/* Peers are asked how far they are so long before a wait ends; */
#define ASK_NS (100 * MU_NS_PER_MS)
/* and get at least so long to answer. */
#define ANSWER_NS (50 * MU_NS_PER_MS)

#define AWAKE_FOR (SHM_WANTS_DATA | SHM_WANTS_ROOM)

enum poller {
    CALLER,
    THREAD
};

/* --- the lock --- */

/* The driver holds the lock in long stretches; who else wants it says so. */
static void lock_in(struct tcp *c)
{
    (void)atomic_fetch_add(&c->lock_wanted, 1);
    (void)pthread_mutex_lock(&c->lock);
    (void)atomic_fetch_sub(&c->lock_wanted, 1);
}

static void let_in(struct tcp *c)
{
    if (atomic_load(&c->lock_wanted) == 0)
        return;
    (void)pthread_mutex_unlock(&c->lock);
    for (int i = 0; i < 100 && atomic_load(&c->lock_wanted) != 0; i++)
        (void)sched_yield();
    (void)pthread_mutex_lock(&c->lock);
}

static struct timespec timespec_of(int64_t ns)
{
    return (struct timespec){.tv_sec = ns / MU_NS_PER_S, .tv_nsec = ns % MU_NS_PER_S};
}

static void wait_until(struct tcp *c, pthread_cond_t *cond, int64_t deadline_ns)
{
    struct timespec at = timespec_of(deadline_ns);
    if (deadline_ns == MU_NEVER)
        (void)pthread_cond_wait(cond, &c->lock);
    else
        (void)pthread_cond_timedwait(cond, &c->lock, &at);
}

/* --- driving --- */

static enum tcp_run_result progress(struct tcp *c)
{
    while (c->queue_count > 0 && !c->failed) {
        enum tcp_run_result r = tcp_run(c, &c->queue[c->queue_head]);
        if (r != TCP_RUN_DONE)
            return r;
        c->queue_head = (c->queue_head + 1) % c->queue_cap;
        c->queue_count--;
        c->done++;
        if (c->waiters > 0)
            (void)pthread_cond_broadcast(&c->changed);
    }
    return TCP_RUN_BLOCKED;
}

static size_t fill_polls(const struct tcp *c, struct pollfd *p)
{
    size_t n = 0;
    const struct tcp_run *r = &c->run;
    for (uint32_t i = 0; i < c->f.size; i++) {
        const struct link *l = &c->links[i];
        short events = link_is_full(l) ? POLLRDHUP : POLLIN | POLLRDHUP;
        if (l->out.n > 0)
            events |= POLLOUT;
        /* A negative descriptor is passed over; its place stays, so that places are ranks. */
        p[n++] = (struct pollfd){.fd = l->ended ? -1 : l->fd, .events = events};
    }
    if (r->begun && r->ring && c->verdict_ns == 0) {
        if (r->blocked_in)
            p[n++] = (struct pollfd){.fd = c->f.ring_prev, .events = POLLIN};
        if (r->blocked_out)
            p[n++] = (struct pollfd){.fd = c->f.ring_next, .events = POLLOUT};
    }
    return n;
}

/* Wait, without the lock, until a socket is ready, something failed, or the time has come; then
 * hear what peers say. The thread leaves the sockets alone if a caller has begun to drive. */
static void poll_links(struct tcp *c, enum poller who, int64_t deadline_ns)
{
    struct pollfd *p = c->polls[who];
    if (c->verdict_ns != 0 && c->verdict_ns < deadline_ns)
        deadline_ns = c->verdict_ns;
    size_t n = fill_polls(c, p);
    p[n++] = (struct pollfd){.fd = who == CALLER ? c->fail_fd : c->wake_fd, .events = POLLIN};
    int64_t left = deadline_ns == MU_NEVER ? 0 : deadline_ns - mu_now_ns();
    struct timespec t = timespec_of(left > 0 ? left : 0);
    unsigned long long drives = c->drive_count;
    (void)pthread_mutex_unlock(&c->lock);
    int got = ppoll(p, n, deadline_ns == MU_NEVER ? NULL : &t, NULL);
    if (who == CALLER)
        (void)pthread_mutex_lock(&c->lock);
    else
        lock_in(c);
    bool ours = who == CALLER || drives == c->drive_count;
    for (uint32_t i = 0; got > 0 && ours && i < c->f.size && !c->failed; i++) {
        if (p[i].revents & POLLOUT)
            link_flush(&c->links[i]);
        if (p[i].revents & ~POLLOUT)
            tcp_hear(c, i, (p[i].revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0);
    }
    if (c->verdict_ns != 0)
        tcp_fail_due(c, mu_now_ns());
}

/* --- sleeping beside shared memory --- */

static void say_asleep(struct tcp *c, unsigned why)
{
    c->is_asleep = why != 0;
    for (uint32_t i = 0; i < c->f.size; i++) {
        struct shm *s = tcp_memory(c, i);
        if (s != NULL && why != 0)
            shm_sleep(s, why);
        else if (s != NULL)
            shm_wake_up(s);
    }
}

static void get_up(struct tcp *c)
{
    if (c->is_asleep)
        say_asleep(c, 0);
}

/* Have peers wake us for `why` (enum shm_sleep), and look once more, as progress() does. */
static enum tcp_run_result lie_down(struct tcp *c, unsigned why)
{
    if (!c->shares || c->queue_count == 0 || c->failed)
        return TCP_RUN_BLOCKED;
    say_asleep(c, why);
    return progress(c);
}

/* The same, and tell those that are lazy that we sleep for their sake. */
static enum tcp_run_result fall_asleep(struct tcp *c, unsigned why)
{
    enum tcp_run_result r = lie_down(c, why);
    if (!c->is_asleep || r != TCP_RUN_BLOCKED)
        return r;
    int64_t data = tcp_run_awaits_data(c), room = tcp_run_awaits_room(c);
    for (uint32_t i = 0; i < c->f.size && !c->failed; i++) {
        struct shm *s = tcp_memory(c, i);
        if (s == NULL)
            continue;
        tcp_run_check(c, i);
        if (shm_nudge(s, i == data || i == room))
            tcp_wake(c, i);
    }
    return TCP_RUN_BLOCKED;
}

/* --- the thread --- */

static void poke_thread(struct tcp *c)
{
    if (c->thread_at != TCP_THREAD_RUNS)
        (void)eventfd_write(c->wake_fd, 1); /* Can it be full? Not in a lifetime. */
}

static bool thread_wanted(const struct tcp *c)
{
    return c->closing || c->failed;
}

/* Without the lock, so that a nap which ends does not get into a driver's way. True: poked. */
static bool nap(struct tcp *c, enum tcp_thread_at how)
{
    struct timespec t = timespec_of(NAP_NS);
    struct pollfd p = {.fd = c->wake_fd, .events = POLLIN};
    eventfd_t ignored;
    c->thread_at = how;
    (void)pthread_mutex_unlock(&c->lock);
    bool poked = false;
    unsigned long long drives = 0;
    do {
        drives = atomic_load(&c->drive_count);
        poked = ppoll(&p, 1, how == TCP_THREAD_NAPS ? &t : NULL, NULL) > 0;
    } while (!poked && drives != atomic_load(&c->drive_count));
    (void)eventfd_read(c->wake_fd, &ignored); /* Non-blocking: empty is fine. */
    lock_in(c);
    c->thread_at = TCP_THREAD_RUNS;
    return poked;
}

/* Until no caller has driven for the length of a nap, or somebody pokes. */
static void rest(struct tcp *c)
{
    bool poked = false;
    while (!thread_wanted(c)) {
        poked = nap(c, TCP_THREAD_NAPS);
        if (!c->driven)
            return;
        if (!poked && !thread_wanted(c))
            (void)nap(c, TCP_THREAD_SLEEPS);
    }
}

/* Push out last words; then end the links, so that peers see the end behind them. */
static void linger(struct tcp *c)
{
    for (;;) {
        size_t n = 0;
        for (uint32_t i = 0; i < c->f.size; i++) {
            struct link *l = &c->links[i];
            link_flush(l);
            if (l->fd >= 0 && l->out.n > 0)
                c->polls[THREAD][n++] = (struct pollfd){.fd = l->fd, .events = POLLOUT};
        }
        int64_t left = c->linger_ns - mu_now_ns();
        if (n == 0 || left <= 0)
            break;
        struct timespec t = timespec_of(left);
        (void)pthread_mutex_unlock(&c->lock);
        (void)ppoll(c->polls[THREAD], n, &t, NULL);
        lock_in(c);
    }
    for (uint32_t i = 0; i < c->f.size; i++)
        if (c->links[i].fd >= 0)
            (void)shutdown(c->links[i].fd, SHUT_WR);
}

static void thread_turn(struct tcp *c)
{
    uint64_t drives = c->drive_count;
    eventfd_t ignored;
    bool goes_on = progress(c) == TCP_RUN_MORE;
    if (!goes_on)
        goes_on = fall_asleep(c, c->lazy && !c->nudged ? SHM_LAZY : AWAKE_FOR) == TCP_RUN_MORE;
    if (thread_wanted(c))
        return;
    c->thread_at = TCP_THREAD_POLLS;
    poll_links(c, THREAD, goes_on ? 0 : MU_NEVER);
    c->thread_at = TCP_THREAD_RUNS;
    if (!c->driven)
        get_up(c);
    (void)eventfd_read(c->wake_fd, &ignored); /* Non-blocking: empty is fine. */
    if (drives != c->drive_count)
        rest(c); /* A caller came and perhaps went: more will come. */
}

static void *thread_main(void *arg)
{
    struct tcp *c = arg;
    lock_in(c);
    while (!thread_wanted(c)) {
        if (c->driven)
            rest(c);
        else
            thread_turn(c);
    }
    c->thread_at = TCP_THREAD_RUNS;
    linger(c);
    (void)pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* --- waiting --- */

struct waiting {
    uint64_t ticket;
    int64_t begun_ns;
    int64_t ask_ns; /* MU_NEVER once asked. */
    int64_t deadline_ns;
};

static bool is_settled(const struct tcp *c, uint64_t ticket)
{
    return c->done >= ticket || c->failed;
}

static int64_t next_due(const struct waiting *w)
{
    return w->ask_ns < w->deadline_ns ? w->ask_ns : w->deadline_ns;
}

static void act_on_time(struct tcp *c, struct waiting *w)
{
    int64_t now = mu_now_ns();
    if (is_settled(c, w->ticket) || now < next_due(w))
        return;
    if (now >= w->ask_ns) {
        tcp_ask(c, w->ticket, now);
        w->ask_ns = MU_NEVER;
    }
    if (now < w->deadline_ns)
        return;
    if (!tcp_all_told(c) && now < c->asked_ns + ANSWER_NS) {
        w->deadline_ns = c->asked_ns + ANSWER_NS;
        return;
    }
    tcp_fail_late(c, w->ticket, now - w->begun_ns);
}

static void pause_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Look at the memory without giving up the CPU. */
static enum tcp_run_result look_again(struct tcp *c, uint64_t ticket)
{
    enum tcp_run_result r = TCP_RUN_BLOCKED;
    for (uint32_t i = 0; i < c->looks && !is_settled(c, ticket) && r == TCP_RUN_BLOCKED; i++) {
        pause_cpu();
        r = progress(c);
    }
    return r;
}

/* The same, and let others run in between. `ret_ran`: somebody did. */
static enum tcp_run_result
yield_again(struct tcp *c, uint64_t ticket, int64_t spin_ns, bool *ret_ran)
{
    enum tcp_run_result r = TCP_RUN_BLOCKED;
    int64_t now = mu_now_ns(), until = now + spin_ns;
    while (!is_settled(c, ticket) && r == TCP_RUN_BLOCKED && now < until &&
           atomic_load(&c->lock_wanted) == 0) {
        int64_t before = now;
        (void)sched_yield();
        r = progress(c);
        now = mu_now_ns();
        *ret_ran = *ret_ran || now - before > YIELD_NS;
    }
    return r;
}

static enum tcp_run_result spin(struct tcp *c, uint64_t ticket)
{
    bool has_cpu = c->shares && !c->crowded, ran = false;
    enum tcp_run_result r = has_cpu ? look_again(c, ticket) : TCP_RUN_BLOCKED;
    if (!is_settled(c, ticket) && r == TCP_RUN_BLOCKED)
        r = yield_again(c, ticket, has_cpu ? SPIN_LONG_NS : SPIN_NS, &ran);
    if (ran)
        c->looks = c->looks / 2 > LOOKS_MIN ? c->looks / 2 : LOOKS_MIN;
    else if (c->looks < LOOKS_MAX)
        c->looks *= 2;
    return r;
}

/* Somebody who drove leaves: the rest, if there is any, is for the thread. */
static void hand_over(struct tcp *c)
{
    bool is_lazy = c->lazy && c->thread_at != TCP_THREAD_SLEEPS;
    if (c->queue_count > 0 && is_lazy)
        (void)lie_down(c, SHM_LAZY);
    else if (c->thread_at == TCP_THREAD_SLEEPS || c->queue_count > 0)
        poke_thread(c);
}

static void drive(struct tcp *c, struct waiting *w)
{
    c->driven = true;
    c->drive_count++;
    get_up(c);
    while (!is_settled(c, w->ticket)) {
        enum tcp_run_result r = progress(c);
        if (r == TCP_RUN_BLOCKED)
            r = spin(c, w->ticket);
        if (r == TCP_RUN_BLOCKED && !is_settled(c, w->ticket))
            r = fall_asleep(c, AWAKE_FOR);
        if (is_settled(c, w->ticket))
            break;
        let_in(c);
        poll_links(c, CALLER, r == TCP_RUN_MORE ? 0 : next_due(w));
        get_up(c);
        act_on_time(c, w);
    }
    get_up(c);
    c->nudged = false;
    c->driven = false;
    c->drive_count++;
    if (c->waiters > 0)
        (void)pthread_cond_broadcast(&c->changed); /* One of them drives on. */
    hand_over(c);
}

static int report(struct tcp *c, struct muster_error *err)
{
    return sdk_error(err, c->cause.code, "%s", c->cause.text);
}

static int tcp_wait(void *self, muster_ticket t, int64_t timeout_ns, struct muster_error *err)
{
    struct tcp *c = self;
    int r = 0;
    lock_in(c);
    if (t > c->submitted) {
        r = sdk_error(err, -EINVAL, "ticket %llu was not given out", (unsigned long long)t);
    } else if (c->done < t) {
        int64_t now = mu_now_ns(), timeout = timeout_ns < 0 ? c->timeout_ns : timeout_ns;
        int64_t lead = timeout / 2 < ASK_NS ? timeout / 2 : ASK_NS;
        int64_t deadline = timeout < 0 || timeout > MU_NEVER - now ? MU_NEVER : now + timeout;
        struct waiting w = {t, now, deadline == MU_NEVER ? MU_NEVER : deadline - lead, deadline};
        while (!is_settled(c, t)) {
            if (!c->driven) {
                drive(c, &w);
                continue;
            }
            c->waiters++;
            wait_until(c, &c->changed, next_due(&w));
            c->waiters--;
            act_on_time(c, &w);
        }
        if (c->done < t)
            r = report(c, err);
    }
    (void)pthread_mutex_unlock(&c->lock);
    return r;
}

static int tcp_test(void *self, muster_ticket t, struct muster_error *err)
{
    struct tcp *c = self;
    lock_in(c);
    if (!c->driven && c->done < t)
        (void)progress(c);
    int r = c->done >= t ? 1 : 0;
    if (t > c->submitted)
        r = sdk_error(err, -EINVAL, "ticket %llu was not given out", (unsigned long long)t);
    else if (r == 0 && c->failed)
        r = report(c, err);
    (void)pthread_mutex_unlock(&c->lock);
    return r;
}

/* --- asking for operations --- */

static int enqueue(struct tcp *c, const struct comm_work *w)
{
    if (c->queue_count == c->queue_cap) {
        size_t cap = c->queue_cap == 0 ? 16 : 2 * c->queue_cap;
        struct comm_work *p = mu_alloc(mu_mem_default(), cap * sizeof *p);
        if (p == NULL)
            return -ENOMEM;
        for (size_t i = 0; i < c->queue_count; i++)
            p[i] = c->queue[(c->queue_head + i) % c->queue_cap];
        mu_mem_free(mu_mem_default(), c->queue);
        c->queue = p;
        c->queue_cap = cap;
        c->queue_head = 0;
    }
    c->queue[(c->queue_head + c->queue_count++) % c->queue_cap] = *w;
    c->submitted++;
    return 0;
}

/* The first messages leave at once; the rest is for whoever waits, or for the thread. */
static void start_first(struct tcp *c, const struct comm_work *w)
{
    enum tcp_run_result r = progress(c);
    if (c->queue_count == 0 || c->failed)
        return;
    if (c->lazy) {
        (void)lie_down(c, SHM_LAZY);
        return;
    }
    bool is_napping = c->thread_at == TCP_THREAD_NAPS;
    bool is_out = r == TCP_RUN_MORE || !tcp_is_small(c, w);
    for (uint32_t i = 0; i < c->f.size && !is_out; i++)
        is_out = c->links[i].out.n > 0;
    if (is_napping ? plan_largest(w, c->f.size) >= WAKE_BYTES : is_out)
        poke_thread(c);
    else
        (void)lie_down(c, AWAKE_FOR); /* For the thread, which polls. */
}

/* In a world of one. */
static void do_alone(struct tcp *c, const struct comm_work *w)
{
    size_t bytes = w->count * muster_dtype_bytes(w->dtype);
    if (bytes > 0 && w->send != w->recv)
        memmove(w->recv, w->send, bytes);
    c->submitted++;
    c->done++;
}

static int
tcp_submit(void *self, const struct comm_work *w, muster_ticket *ret, struct muster_error *err)
{
    struct tcp *c = self;
    int r = 0;
    lock_in(c);
    if (c->failed)
        r = report(c, err);
    else if (c->f.size == 1)
        do_alone(c, w);
    else if (enqueue(c, w) < 0)
        r = sdk_error(err, -ENOMEM, "no memory for another operation");
    if (r == 0) {
        *ret = c->submitted;
        for (uint32_t i = 0; i < c->f.size; i++)
            if (c->links[i].bye)
                tcp_check_bye(c, i);
        if (c->queue_count == 1 && !c->driven)
            start_first(c, w);
    }
    (void)pthread_mutex_unlock(&c->lock);
    return r;
}

static void tcp_abort(void *self, const char *why)
{
    struct tcp *c = self;
    char where[96];
    lock_in(c);
    tcp_fail_peer(c, c->f.rank, -ECANCELED, MUSTER_PHASE_ABORT, "%s aborted: %s",
                  tcp_where(c, c->f.rank, where, sizeof where),
                  why != NULL ? why : "no reason given");
    (void)pthread_mutex_unlock(&c->lock);
}

static bool tcp_get_cause(void *self, struct muster_cause *ret)
{
    struct tcp *c = self;
    lock_in(c);
    bool failed = c->failed;
    if (failed)
        *ret = c->cause;
    (void)pthread_mutex_unlock(&c->lock);
    return failed;
}

/* --- beginning and end --- */

void tcp_fabric_fini(struct tcp_fabric *f)
{
    for (uint32_t i = 0; f->mesh != NULL && i < f->size; i++)
        if (f->mesh[i] >= 0)
            (void)close(f->mesh[i]);
    if (f->ring_next >= 0)
        (void)close(f->ring_next);
    if (f->ring_prev >= 0)
        (void)close(f->ring_prev);
    for (uint32_t i = 0; f->memory != NULL && i < f->size; i++)
        shm_fini(&f->memory[i]);
    mu_mem_free(mu_mem_default(), f->mesh);
    mu_mem_free(mu_mem_default(), f->memory);
    mu_mem_free(mu_mem_default(), f->hosts);
    *f = (struct tcp_fabric){.ring_next = -1, .ring_prev = -1};
}

static void tcp_close(void *self)
{
    struct tcp *c = self;
    if (c->thread_there) {
        lock_in(c);
        tcp_say_bye(c);
        c->closing = true;
        poke_thread(c);
        (void)pthread_mutex_unlock(&c->lock);
        (void)pthread_join(c->thread, NULL);
    }
    for (uint32_t i = 0; c->links != NULL && i < c->f.size; i++)
        link_fini(&c->links[i]);
    if (c->wake_fd >= 0)
        (void)close(c->wake_fd);
    if (c->fail_fd >= 0)
        (void)close(c->fail_fd);
    tcp_fabric_fini(&c->f);
    (void)pthread_cond_destroy(&c->changed);
    (void)pthread_mutex_destroy(&c->lock);
    const struct mu_mem *m = mu_mem_default();
    mu_mem_free(m, c->links);
    mu_mem_free(m, c->polls[CALLER]);
    mu_mem_free(m, c->polls[THREAD]);
    mu_mem_free(m, c->queue);
    mu_mem_free(m, c->scratch);
    mu_mem_free(m, c);
}

static int init_locks(struct tcp *c)
{
    pthread_condattr_t a;
    if (pthread_condattr_init(&a) != 0 || pthread_condattr_setclock(&a, CLOCK_MONOTONIC) != 0)
        return -ENOMEM;
    (void)pthread_mutex_init(&c->lock, NULL); /* Linux: these cannot fail. */
    (void)pthread_cond_init(&c->changed, &a);
    (void)pthread_condattr_destroy(&a);
    return 0;
}

static int allocate(struct tcp *c)
{
    const struct mu_mem *m = mu_mem_default();
    size_t size = c->f.size;
    c->links = mu_zalloc(m, size * sizeof *c->links);
    c->polls[CALLER] = mu_zalloc(m, (size + 3) * sizeof(struct pollfd));
    c->polls[THREAD] = mu_zalloc(m, (size + 3) * sizeof(struct pollfd));
    c->scratch = mu_alloc(m, TCP_SCRATCH_BYTES);
    c->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    c->fail_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (c->links == NULL || c->polls[CALLER] == NULL || c->polls[THREAD] == NULL ||
        c->scratch == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < size; i++) {
        if (c->f.mesh == NULL) { /* Alone. */
            link_init(&c->links[i], -1);
            continue;
        }
        link_init(&c->links[i], c->f.mesh[i]);
        c->f.mesh[i] = -1;
    }
    return c->wake_fd < 0 || c->fail_fd < 0 ? -EMFILE : 0;
}

/* Of this process; a container may have fewer than the machine. */
static uint32_t count_cpus(void)
{
    cpu_set_t set;
    /* More than fit into a set are enough for everybody. */
    return sched_getaffinity(0, sizeof set, &set) < 0 ? CPU_SETSIZE : (uint32_t)CPU_COUNT(&set);
}

static void look_around(struct tcp *c)
{
    uint32_t here = 1, cpus = count_cpus();
    for (uint32_t i = 0; i < c->f.size; i++)
        if (tcp_memory(c, i) != NULL)
            here++;
    c->shares = here > 1;
    c->crowded = here > cpus;
    c->looks = LOOKS_MAX;
    c->lazy = here == c->f.size && here >= cpus;
}

/* The program's signals are for its own threads. */
static int start_thread(struct tcp *c)
{
    sigset_t all, old;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    int r = pthread_create(&c->thread, NULL, thread_main, c);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    c->thread_there = r == 0;
    if (r == 0)
        (void)pthread_setname_np(c->thread, "muster-comm");
    return -r;
}

int tcp_new(struct tcp_fabric *f, int64_t timeout_ns, struct tcp **ret, struct muster_error *err)
{
    struct tcp *c = mu_zalloc(mu_mem_default(), sizeof *c);
    if (c == NULL || init_locks(c) < 0) {
        tcp_fabric_fini(f);
        mu_mem_free(mu_mem_default(), c);
        return sdk_error(err, -ENOMEM, "no memory for a communicator of %u ranks", f->size);
    }
    c->f = *f;
    *f = (struct tcp_fabric){.ring_next = -1, .ring_prev = -1};
    c->timeout_ns = timeout_ns;
    c->wake_fd = c->fail_fd = -1;
    int r = allocate(c);
    look_around(c);
    if (r == 0 && c->f.size > 1)
        r = start_thread(c);
    if (r < 0) {
        uint32_t size = c->f.size;
        tcp_close(c);
        return sdk_error(err, r, "cannot start a communicator of %u ranks: %s", size,
                         strerrordesc_np(-r));
    }
    *ret = c;
    return 0;
}

static bool tcp_is_there(struct muster_error *why)
{
    (void)why;
    return true; /* Sockets work everywhere. */
}

static int tcp_open(muster *m,
                    const struct muster_comm_options *o,
                    int64_t deadline_ns,
                    void **ret,
                    struct muster_error *err)
{
    struct tcp_fabric f = {.size = 1, .ring_next = -1, .ring_prev = -1};
    struct tcp *c = NULL;
    int r = 0;
    if (muster_get_env(m)->world > 1)
        r = tcp_meet(m, o, deadline_ns, &f, err);
    if (r == 0)
        r = tcp_new(&f, o->timeout_ns, &c, err);
    if (r == 0)
        *ret = c;
    return r;
}

const struct comm_backend comm_tcp = {
    .name = "tcp",
    .knows_mean = true,
    .is_there = tcp_is_there,
    .open = tcp_open,
    .submit = tcp_submit,
    .wait = tcp_wait,
    .test = tcp_test,
    .abort = tcp_abort,
    .get_cause = tcp_get_cause,
    .close = tcp_close,
};
