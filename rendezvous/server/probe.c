/* Proof of death. A process that is killed while bytes lie unread in its socket makes its kernel
 * send a reset, which a connection that was merely cut sends too: its agent is away, and may come
 * back. But an agent holds a listening port as long as it lives. When it has not come back after a
 * moment, that port is tried: a machine that refuses has no such process
 * any more. Whoever answers lives; and silence, or a word from anything between us, says nothing.
 *
 * A refusal counts only where it must come from the agent's own machine: see may_prove(). */
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <unistd.h>

#include <utlist.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "rendezvous/server/internal.h"

/* Who only lost its connection is back sooner. */
#define FIRST_LOOK_NS (MU_NS_PER_S / 2)
/* Each look comes twice as long after the last one: 0.5, 1, 2 ... 32 s, and then every 32 s. */
#define LAST_STEP (SRV_PROBE_STEPS - 1)
/* What does not answer within this time says nothing. */
#define PATIENCE_NS MU_NS_PER_S
/* A switch that dies takes hundreds of connections along: they are looked at little by little. */
#define ASKED_AT_ONCE 64

enum finding {
    FINDING_NONE, /* Nobody answered, or somebody in between. */
    FINDING_LIVES,
    FINDING_DEAD
};

struct probe {
    struct watch watch; /* In the set while it asks. */
    struct srv *srv;
    struct srv_job *job;
    uint32_t node;
    uint8_t step;   /* How long it waits, or waited: its list. */
    bool asks;      /* In srv->probes_asking; else in srv->probes[step]. */
    int64_t due_ns; /* When it asks, or when it gives up asking. */
    struct probe *prev;
    struct probe *next;
};

static watch_ready_fn on_answer;

static struct job_node *node_of(const struct probe *p)
{
    return &p->job->job.nodes[p->node];
}

/* Is the address from which we see it its own? Through a translation of addresses or a tunnel we
 * see another machine's, whose refusal proves nothing: its own first one must be the same, or both
 * be of this machine. */
static bool may_prove(const struct job_node *n)
{
    const char *own = n->hello.host_addr;
    if (n->life_port == 0 || n->seen_addr[0] == '\0')
        return false;
    if (strcmp(n->seen_addr, own) == 0)
        return true;
    return mu_addr_is_local(n->seen_addr) && (own[0] == '\0' || mu_addr_is_local(own));
}

/* --- the queue: for each step a list in the order of its deadlines, so that heads are enough ---
 */

static void arm(struct srv *s)
{
    int64_t at = s->probes_asking != NULL ? s->probes_asking->due_ns : MU_NEVER;
    for (size_t i = 0; i < SRV_PROBE_STEPS && s->probes_asking_count < ASKED_AT_ONCE; i++)
        if (s->probes[i] != NULL && s->probes[i]->due_ns < at)
            at = s->probes[i]->due_ns;
    if (at == MU_NEVER) {
        (void)uv_timer_stop(&s->probe_timer);
        return;
    }
    int64_t wait_ms = (at - s->now_ns + MU_NS_PER_MS - 1) / MU_NS_PER_MS;
    uv_update_time(s->loop); /* The timer counts from the loop's idea of now, which is older. */
    (void)uv_timer_start(&s->probe_timer, probe_on_timer, wait_ms > 0 ? (uint64_t)wait_ms : 0, 0);
}

static void enqueue(struct probe *p, uint8_t step)
{
    struct srv *s = p->srv;
    p->step = step;
    p->due_ns = s->now_ns + (FIRST_LOOK_NS << step);
    DL_APPEND(s->probes[step], p);
}

static void dequeue(struct probe *p)
{
    struct srv *s = p->srv;
    if (!p->asks) {
        DL_DELETE(s->probes[p->step], p);
        return;
    }
    DL_DELETE(s->probes_asking, p);
    s->probes_asking_count--;
    p->asks = false;
    (void)close(watch_remove(s, &p->watch));
}

static void forget(struct probe *p)
{
    dequeue(p);
    p->job->slots[p->node].probe = NULL;
    watch_free_later(p->srv, &p->watch);
}

void probe_begin(struct srv *s, struct srv_job *sj, uint32_t node)
{
    if (job_is_ended(&sj->job) || sj->slots[node].probe != NULL || !may_prove(&sj->job.nodes[node]))
        return;
    struct probe *p = mu_zalloc(mu_mem_default(), sizeof *p);
    if (p == NULL)
        return; /* Then its silence must tell. */
    p->watch.fd = -1;
    p->srv = s;
    p->job = sj;
    p->node = node;
    sj->slots[node].probe = p;
    enqueue(p, 0);
    arm(s);
}

void probe_cancel(struct srv_job *sj, uint32_t node)
{
    if (sj->slots[node].probe != NULL)
        forget(sj->slots[node].probe); /* A timer that is too early fires once for nothing. */
}

void probe_cancel_all(struct srv *s)
{
    while (s->probes_asking != NULL)
        forget(s->probes_asking);
    for (size_t i = 0; i < SRV_PROBE_STEPS; i++)
        while (s->probes[i] != NULL)
            forget(s->probes[i]);
}

/* --- one look --- */

/* A refusal that a router or a firewall sent in the machine's name lies in the error queue; the
 * machine's own is a reset, which leaves none. */
static bool is_hearsay(int fd)
{
    char control[256];
    struct msghdr m = {.msg_control = control, .msg_controllen = sizeof control};
    return recvmsg(fd, &m, MSG_ERRQUEUE | MSG_DONTWAIT) >= 0;
}

static enum finding finding_of(int fd, int code)
{
    if (code == 0)
        return FINDING_LIVES;
    return code == ECONNREFUSED && !is_hearsay(fd) ? FINDING_DEAD : FINDING_NONE;
}

static void conclude(struct probe *p, enum finding f)
{
    struct srv *s = p->srv;
    struct srv_job *sj = p->job;
    uint32_t node = p->node;
    if (f != FINDING_DEAD) {
        uint8_t step = p->step < LAST_STEP ? (uint8_t)(p->step + 1) : p->step;
        dequeue(p);
        enqueue(p, step);
        return;
    }
    uint32_t left_out = 0;
    char host[96];
    const struct job_node *n = node_of(p);
    if (mu_log_allowed(&s->log_agent, s->now_ns, SRV_LOG_BURST, &left_out))
        mu_log(
            MU_WARN, "agent.dead",
            "host=%s peer=%s port=%u left_out=%u text=\"it is not connected, and nobody listens at "
            "its port any more\"",
            mu_quote(host, sizeof host, mu_str_of(n->hello.host, strlen(n->hello.host))),
            n->seen_addr, n->life_port, left_out);
    forget(p);
    jobs_event(s, sj, JOB_EV_NODE_DEAD, node, NULL);
}

/* A socket that never blocks, tells hearsay apart, and leaves nothing behind when it is closed. */
static int open_socket(int family)
{
    static const struct linger none = {.l_onoff = 1, .l_linger = 0};
    int on = 1;
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &none,
                     sizeof none); /* Else a moment's TIME_WAIT. */
    int r = family == AF_INET6 ? setsockopt(fd, IPPROTO_IPV6, IPV6_RECVERR, &on, sizeof on)
                               : setsockopt(fd, IPPROTO_IP, IP_RECVERR, &on, sizeof on);
    if (r == 0)
        return fd;
    (void)close(fd);
    return -1;
}

/* Moves it out of its waiting list in any case. */
static void ask(struct probe *p)
{
    struct srv *s = p->srv;
    const struct job_node *n = node_of(p);
    struct mu_addr a;
    if (job_is_ended(&p->job->job) || !n->used || n->connected || n->state == JOB_NODE_LOST) {
        forget(p);
        return;
    }
    MU_CLEANUP(mu_closep) int fd = -1;
    if (mu_addr_parse(n->seen_addr, n->life_port, &a) == 0)
        fd = open_socket(a.ss.ss_family);
    if (fd < 0) {
        conclude(p, FINDING_NONE);
        return;
    }
    int code = connect(fd, (const struct sockaddr *)&a.ss, a.len) == 0 ? 0 : errno;
    if (code != EINPROGRESS || watch_add(s, &p->watch, fd, EPOLLOUT, on_answer) < 0) {
        conclude(p, code == EINPROGRESS ? FINDING_NONE : finding_of(fd, code));
        return;
    }
    (void)mu_steal_fd(&fd);
    DL_DELETE(s->probes[p->step], p);
    DL_APPEND(s->probes_asking, p);
    s->probes_asking_count++;
    p->asks = true;
    p->due_ns = s->now_ns + PATIENCE_NS;
}

/* Whoever is due asks, as long as few do; whoever got no answer stops asking. */
static void look_around(struct srv *s)
{
    while (s->probes_asking != NULL && s->probes_asking->due_ns <= s->now_ns)
        conclude(s->probes_asking, FINDING_NONE);
    for (size_t i = 0; i < SRV_PROBE_STEPS; i++)
        while (s->probes[i] != NULL && s->probes[i]->due_ns <= s->now_ns &&
               s->probes_asking_count < ASKED_AT_ONCE)
            ask(s->probes[i]);
    arm(s);
}

static void on_answer(struct watch *w, uint32_t events)
{
    struct probe *p = (struct probe *)w; /* Its first member. */
    struct srv *s = p->srv;
    int code = 0;
    socklen_t len = sizeof code;
    (void)events;
    if (getsockopt(w->fd, SOL_SOCKET, SO_ERROR, &code, &len) < 0)
        code = errno;
    conclude(p, finding_of(w->fd, code));
    look_around(s);
}

void probe_on_timer(uv_timer_t *timer)
{
    struct srv *s = timer->data;
    s->now_ns = mu_now_ns();
    look_around(s);
    srv_settle(s);
}
