/* Connecting all ranks with each other; see tcp_mesh.h.
 *
 * Each rank connects to the lower ones and, for bulk data, to the next of the ring; it accepts the
 * rest. Whoever connects shows the first half of the token and says who it is; whoever accepts
 * answers with the second half. Over a Unix socket of the mesh, who connects also passes memory to
 * share, and the answer says whether it was taken; where it was not, nothing is lost. One poll loop
 * does it all, so that no peer or stranger holds up another. */
#include "worker-sdk/src/comm/tcp_mesh.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/mem.h"
#include "worker-sdk/src/core/sdk.h"

/* "MUSTCOM2", in an order that tells endianness. */
#define HELLO_MAGIC UINT64_C(0x324d4f435453554d)
#define HALF (MESH_TOKEN_BYTES / 2)
/* Connections that have not shown the token: above it the oldest is dropped, and so it is where
 * descriptors are short. A rank that loses its place so comes again. */
#define UNPROVEN_MAX 64
/* A Unix listener's queue is full: there is no event for it. Who was dropped waits longer each
 * time. */
#define TRY_AGAIN_NS MU_NS_PER_MS
#define TRY_AGAIN_MAX_NS (64 * MU_NS_PER_MS)

enum purpose {
    MESH,
    RING
};

struct hello {
    uint64_t magic;
    uint8_t proof[HALF];
    uint32_t from;
    uint32_t to;
    uint32_t purpose;
    uint32_t shares_memory; /* 1: a memfd came with it. */
};
_Static_assert(sizeof(struct hello) == 40, "a greeting has 40 bytes");

struct answer {
    uint8_t proof[HALF];
    uint32_t shares_memory;
    uint32_t zero;
};
_Static_assert(sizeof(struct answer) == 24, "an answer has 24 bytes");

enum conn_state {
    FREE,
    AGAIN,      /* Connect once more. */
    CONNECTING, /* Out. */
    ASKING,     /* Out: hello sent, waits for the answer. */
    UNPROVEN,   /* In: waits for the hello. */
};

struct conn {
    enum conn_state state;
    int fd;
    uint32_t peer; /* Out. */
    enum purpose purpose;
    uint64_t number;  /* In: the order of arrival. */
    int64_t again_ns; /* Out, AGAIN: when; and how long the next pause is. */
    int64_t pause_ns;
    uint8_t buf[sizeof(struct hello)];
    size_t n;
    int passed;        /* In: a descriptor that came with the hello; -1: none. */
    struct shm memory; /* Out: what was offered. */
};

struct mesh {
    const struct mesh_start *s;
    struct tcp_fabric *f;
    struct conn *out; /* rank + 1: to the lower ranks, and to the next one. */
    size_t out_count;
    struct conn in[UNPROVEN_MAX];
    uint64_t accepted;
    bool *quiet; /* Of a rank: its link has something to read that can wait. */
    struct pollfd *polls;
    struct watched *watched;
    size_t poll_count;
    size_t missing;  /* Connections that are to come; */
    size_t incoming; /* and those of them that others open. */
    struct muster_cause *cause;
};

int mesh_random(void *ret, size_t n)
{
    ssize_t got = getrandom(ret, n, 0);
    return got == (ssize_t)n ? 0 : -EIO;
}

static socklen_t unix_address(const char *name, struct sockaddr_un *ret)
{
    *ret = (struct sockaddr_un){.sun_family = AF_UNIX};
    size_t n = strlen(name);
    memcpy(ret->sun_path + 1, name, n); /* A leading NUL: no file. */
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
}

int mesh_listen_unix(char *ret_name, struct muster_error *err)
{
    uint64_t r[2];
    struct sockaddr_un a;
    if (mesh_random(r, sizeof r) < 0)
        return sdk_error(err, -EIO, "the kernel gives no random bytes");
    (void)snprintf(ret_name, MESH_UNIX_BYTES, "muster-%016llx%016llx", (unsigned long long)r[0],
                   (unsigned long long)r[1]);
    socklen_t n = unix_address(ret_name, &a);
    MU_CLEANUP(mu_closep) int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, n) < 0 || listen(fd, 4096) < 0) {
        int code = -errno;
        return sdk_error(err, code, "cannot listen for ranks of this host: %s",
                         strerrordesc_np(-code));
    }
    return mu_steal_fd(&fd);
}

static int fail(struct mesh *m, uint32_t peer, int code, const char *what)
{
    *m->cause =
        (struct muster_cause){.peer = (int32_t)peer, .code = code, .phase = MUSTER_PHASE_START};
    (void)snprintf(m->cause->text, sizeof m->cause->text, "rank %u on %s %s (%s)", peer,
                   m->s->peers[peer].host, what, strerrordesc_np(-code));
    return code;
}

/* --- one connection --- */

static void drop(struct conn *c)
{
    if (c->fd >= 0)
        (void)close(c->fd);
    if (c->passed >= 0)
        (void)close(c->passed);
    shm_fini(&c->memory);
    *c = (struct conn){.fd = -1, .passed = -1};
}

static void set_options(int fd, enum purpose p, bool is_unix)
{
    int one = 1, idle = 5, interval = 3, probes = 3, room = 1 << 20;
    if (is_unix && p == RING) { /* The kernel cuts it to its limit. */
        (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
        return;
    }
    if (is_unix)
        return;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    /* A host that is gone is noticed on the idle links; stopped processes still answer this. */
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

static void establish(struct mesh *m, struct conn *c)
{
    bool is_out = c >= m->out && c < m->out + m->out_count;
    if (c->purpose == MESH)
        m->f->mesh[c->peer] = c->fd;
    else if (is_out)
        m->f->ring_next = c->fd;
    else
        m->f->ring_prev = c->fd;
    m->incoming -= !is_out;
    c->fd = -1;
    drop(c);
    m->missing--;
}

/* --- memory --- */

static unsigned side_of(const struct mesh *m, uint32_t peer)
{
    return m->s->rank > peer;
}

/* Sends a hello, with memory to share where that can be had. As send(). */
static ssize_t send_hello(const struct mesh *m, struct conn *c, struct hello *h)
{
    MU_CLEANUP(mu_closep) int fd = -1;
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    struct iovec v = {h, sizeof *h};
    struct msghdr msg = {.msg_iov = &v, .msg_iovlen = 1};
    bool is_unix = m->s->peers[c->peer].unix_name[0] != '\0';
    if (!is_unix || c->purpose != MESH || !m->s->shares_memory ||
        shm_create(&c->memory, shm_stream_bytes(m->s->size), side_of(m, c->peer), &fd) < 0)
        return sendmsg(c->fd, &msg, MSG_NOSIGNAL);
    h->shares_memory = 1;
    msg.msg_control = control.bytes;
    msg.msg_controllen = sizeof control.bytes;
    struct cmsghdr *cm = CMSG_FIRSTHDR(&msg);
    *cm = (struct cmsghdr){
        .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fd)};
    memcpy(CMSG_DATA(cm), &fd, sizeof fd);
    ssize_t n = sendmsg(c->fd, &msg, MSG_NOSIGNAL);
    if (n >= 0)
        return n;
    shm_fini(&c->memory); /* Passing it may be forbidden, or too many be under way. */
    h->shares_memory = 0;
    msg.msg_control = NULL;
    msg.msg_controllen = 0;
    return sendmsg(c->fd, &msg, MSG_NOSIGNAL);
}

/* Of what somebody passed, who may be a stranger, the first descriptor is kept. */
static void take_passed(struct conn *c, struct msghdr *msg)
{
    for (struct cmsghdr *cm = CMSG_FIRSTHDR(msg); cm != NULL; cm = CMSG_NXTHDR(msg, cm)) {
        if (cm->cmsg_level != SOL_SOCKET || cm->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t at = 0; at + sizeof(int) <= cm->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
            int fd = -1;
            memcpy(&fd, CMSG_DATA(cm) + at, sizeof fd);
            if (c->passed < 0)
                c->passed = fd;
            else
                (void)close(fd);
        }
    }
}

/* As recv(). */
static ssize_t receive(struct conn *c, void *p, size_t n)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec v = {p, n};
    struct msghdr msg = {.msg_iov = &v,
                         .msg_iovlen = 1,
                         .msg_control = control.bytes,
                         .msg_controllen = sizeof control.bytes};
    ssize_t got = recvmsg(c->fd, &msg, MSG_CMSG_CLOEXEC);
    if (got >= 0)
        take_passed(c, &msg);
    return got;
}

/* The peer dropped us before it had answered: mostly because strangers had filled its table. If its
 * process is gone, the next connection is refused. */
static int come_again(struct conn *c)
{
    struct conn next = {.state = AGAIN,
                        .fd = -1,
                        .passed = -1,
                        .peer = c->peer,
                        .purpose = c->purpose,
                        .pause_ns = c->pause_ns == 0 ? TRY_AGAIN_NS : 2 * c->pause_ns};
    if (next.pause_ns > TRY_AGAIN_MAX_NS)
        next.pause_ns = TRY_AGAIN_MAX_NS;
    next.again_ns = mu_now_ns() + next.pause_ns;
    drop(c); /* With the memory that it offered. */
    *c = next;
    return 0;
}

static int say_hello(struct mesh *m, struct conn *c)
{
    struct hello h = {
        .magic = HELLO_MAGIC, .from = m->s->rank, .to = c->peer, .purpose = c->purpose};
    memcpy(h.proof, m->s->token, HALF);
    int code = 0;
    socklen_t n = sizeof code;
    (void)getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &code, &n);
    if (code == 0 && send_hello(m, c, &h) != (ssize_t)sizeof h)
        code = errno != 0 ? errno : EIO;
    if (code == ECONNRESET || code == EPIPE)
        return come_again(c);
    if (code != 0)
        return fail(m, c->peer, -code, "cannot be reached");
    c->state = ASKING;
    return 0;
}

static int begin_connect(struct mesh *m, struct conn *c)
{
    const struct mesh_peer *p = &m->s->peers[c->peer];
    bool is_unix = p->unix_name[0] != '\0';
    struct sockaddr_un un;
    socklen_t un_bytes = is_unix ? unix_address(p->unix_name, &un) : 0;
    const struct sockaddr *to =
        is_unix ? (const struct sockaddr *)&un : (const struct sockaddr *)&p->address.ss;
    if (c->fd < 0)
        c->fd = socket(to->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (c->fd < 0)
        return fail(m, c->peer, -errno, "cannot be connected to");
    set_options(c->fd, c->purpose, is_unix);
    if (connect(c->fd, to, is_unix ? un_bytes : p->address.len) == 0)
        return say_hello(m, c);
    if (errno != EINPROGRESS && errno != EAGAIN && errno != EINTR)
        return fail(m, c->peer, -errno, "cannot be reached");
    c->state = errno == EAGAIN ? AGAIN : CONNECTING;
    c->again_ns = mu_now_ns() + TRY_AGAIN_NS;
    return 0;
}

/* More bytes of what is to come. 1: whole; 0: not yet; negative. */
static int fill(struct conn *c, size_t wanted)
{
    while (c->n < wanted) {
        ssize_t n = receive(c, c->buf + c->n, wanted - c->n);
        if (n > 0)
            c->n += (size_t)n;
        else if (n == 0)
            return -ECONNRESET;
        else if (errno != EINTR)
            return errno == EAGAIN ? 0 : -errno;
    }
    return 1;
}

/* No early way out: how long it takes says nothing about the token. */
static bool is_equal(const uint8_t *a, const uint8_t *b, size_t n)
{
    uint8_t differs = 0;
    for (size_t i = 0; i < n; i++)
        differs = (uint8_t)(differs | (a[i] ^ b[i]));
    return differs == 0;
}

static int hear_answer(struct mesh *m, struct conn *c)
{
    struct answer a;
    int r = fill(c, sizeof a);
    if (r == -ECONNRESET || r == -EPIPE)
        return come_again(c);
    if (r < 0)
        return fail(m, c->peer, r, "closed the connection at the start");
    if (r == 0)
        return 0;
    memcpy(&a, c->buf, sizeof a);
    if (!is_equal(a.proof, m->s->token + HALF, HALF))
        return fail(m, c->peer, -EPERM, "does not know the token of this start");
    if (a.shares_memory == 1) {
        m->f->memory[c->peer] = c->memory;
        c->memory = (struct shm){0};
    }
    establish(m, c);
    return 0;
}

static bool is_expected(const struct mesh *m, const struct hello *h)
{
    uint32_t rank = m->s->rank, size = m->s->size;
    if (h->magic != HELLO_MAGIC || !is_equal(h->proof, m->s->token, HALF) || h->to != rank)
        return false;
    if (h->purpose == MESH)
        return h->from > rank && h->from < size && m->f->mesh[h->from] < 0;
    return h->purpose == RING && h->from == (rank + size - 1) % size && m->f->ring_prev < 0;
}

/* Strangers are dropped without a word. */
static void hear_hello(struct mesh *m, struct conn *c)
{
    int r = fill(c, sizeof(struct hello));
    struct hello h;
    memcpy(&h, c->buf, sizeof h);
    if (r < 0 || (r > 0 && !is_expected(m, &h))) {
        drop(c);
        return;
    }
    if (r == 0)
        return;
    struct answer a = {.shares_memory = 0};
    struct shm memory = {0};
    memcpy(a.proof, m->s->token + HALF, HALF);
    if (h.shares_memory == 1 && c->passed >= 0 && h.purpose == MESH && m->s->shares_memory &&
        shm_adopt(&memory, shm_stream_bytes(m->s->size), side_of(m, h.from), c->passed) == 0)
        a.shares_memory = 1;
    if (send(c->fd, &a, sizeof a, MSG_NOSIGNAL) != (ssize_t)sizeof a) {
        shm_fini(&memory);
        drop(c);
        return;
    }
    c->peer = h.from;
    c->purpose = (enum purpose)h.purpose;
    if (a.shares_memory == 1)
        m->f->memory[c->peer] = memory;
    establish(m, c);
}

/* The peer waits on and the listener stays readable: nothing gets better by looking again. */
static int fail_descriptors(struct mesh *m, int code)
{
    *m->cause = (struct muster_cause){
        .peer = (int32_t)m->s->rank, .code = code, .phase = MUSTER_PHASE_START};
    (void)snprintf(m->cause->text, sizeof m->cause->text,
                   "rank %u cannot take a connection: %s: raise its limit of open files (ulimit "
                   "-n), a communicator of %u ranks needs %u",
                   m->s->rank, strerror(-code), m->s->size, m->s->size + 3);
    return code;
}

/* A place for one more; the one that has been silent for longest, where none is free. */
static struct conn *place_in(struct mesh *m)
{
    struct conn *place = &m->in[0];
    for (size_t k = 0; k < UNPROVEN_MAX && place->state != FREE; k++)
        if (m->in[k].state == FREE || m->in[k].number < place->number)
            place = &m->in[k];
    return place;
}

/* Whoever has been silent for longest makes room for descriptors. False: there is nobody. */
static bool drop_oldest(struct mesh *m)
{
    struct conn *oldest = NULL;
    for (size_t k = 0; k < UNPROVEN_MAX; k++)
        if (m->in[k].state != FREE && (oldest == NULL || m->in[k].number < oldest->number))
            oldest = &m->in[k];
    if (oldest != NULL)
        drop(oldest);
    return oldest != NULL;
}

static int accept_some(struct mesh *m, int listener, bool is_unix)
{
    for (int i = 0; i < UNPROVEN_MAX && m->incoming > 0; i++) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
            int code = -errno;
            if (!drop_oldest(m))
                return fail_descriptors(m, code);
            continue;
        }
        if (fd < 0)
            return 0; /* Nobody, or somebody who went away. */
        struct conn *free_one = place_in(m);
        drop(free_one);
        *free_one =
            (struct conn){.state = UNPROVEN, .fd = fd, .passed = -1, .number = m->accepted++};
        set_options(fd, MESH, is_unix);
        hear_hello(m, free_one); /* A peer's hello is mostly there already. */
    }
    return 0;
}

/* A link that is connected ends or brings the news that somebody failed. */
static int watch_link(struct mesh *m, uint32_t peer)
{
    struct {
        struct link_head head;
        struct link_abort words;
    } said;
    ssize_t n = recv(m->f->mesh[peer], &said, sizeof said, MSG_PEEK | MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
        return fail(m, peer, n == 0 ? -ECONNRESET : -errno, "ended during the start");
    if (n < (ssize_t)sizeof said.head)
        return 0;
    if (said.head.type != LINK_ABORT) {
        m->quiet[peer] = true; /* It is ahead of us. */
        return 0;
    }
    if (n < (ssize_t)sizeof said)
        return 0;
    *m->cause = (struct muster_cause){.peer = said.words.peer,
                                      .code = said.words.code < 0 ? said.words.code : -EPROTO,
                                      .phase = MUSTER_PHASE_START};
    memcpy(m->cause->text, said.words.text, sizeof m->cause->text);
    m->cause->text[sizeof m->cause->text - 1] = '\0';
    return m->cause->code;
}

/* --- all of them --- */

static int turn_out(struct mesh *m, struct conn *c, short revents)
{
    switch (c->state) {
    case FREE:
    case UNPROVEN:
        return 0;
    case AGAIN:
        return mu_now_ns() < c->again_ns ? 0 : begin_connect(m, c);
    case CONNECTING:
        return revents != 0 ? say_hello(m, c) : 0;
    case ASKING:
        return revents != 0 ? hear_answer(m, c) : 0;
    }
    return 0;
}

/* What a descriptor in `polls` is. Only those that are there: poll(2) refuses more than the limit
 * of open files. */
enum watched_kind {
    WATCHED_LINK,
    WATCHED_IN,
    WATCHED_OUT,
    WATCHED_TCP,
    WATCHED_UNIX
};
struct watched {
    enum watched_kind kind;
    uint32_t index;
};

static void watch(struct mesh *m, int fd, short events, enum watched_kind kind, uint32_t index)
{
    if (fd < 0)
        return;
    m->polls[m->poll_count] = (struct pollfd){.fd = fd, .events = events};
    m->watched[m->poll_count++] = (struct watched){kind, index};
}

/* In the order in which news is heard. Returns when the next connection is due again. */
static int64_t watch_all(struct mesh *m)
{
    int64_t until_ns = m->s->deadline_ns;
    m->poll_count = 0;
    for (uint32_t i = 0; i < m->s->size; i++)
        watch(m, m->quiet[i] ? -1 : m->f->mesh[i], POLLIN, WATCHED_LINK, i);
    for (uint32_t i = 0; i < UNPROVEN_MAX; i++)
        watch(m, m->in[i].fd, POLLIN, WATCHED_IN, i);
    for (uint32_t i = 0; i < m->out_count; i++) {
        const struct conn *c = &m->out[i];
        if (c->state != AGAIN)
            watch(m, c->fd, c->state == CONNECTING ? POLLOUT : POLLIN, WATCHED_OUT, i);
        else if (c->again_ns < until_ns)
            until_ns = c->again_ns;
    }
    if (m->incoming > 0) { /* Else only strangers come. */
        watch(m, m->s->tcp_listener, POLLIN, WATCHED_TCP, 0);
        watch(m, m->s->unix_listener, POLLIN, WATCHED_UNIX, 0);
    }
    return until_ns;
}

static int hear_news(struct mesh *m, const struct watched *w, short revents)
{
    switch (w->kind) {
    case WATCHED_LINK:
        return watch_link(m, w->index);
    case WATCHED_IN:
        hear_hello(m, &m->in[w->index]);
        return 0;
    case WATCHED_OUT:
        return turn_out(m, &m->out[w->index], revents);
    case WATCHED_TCP:
        return accept_some(m, m->s->tcp_listener, false);
    case WATCHED_UNIX:
        return accept_some(m, m->s->unix_listener, true);
    }
    return 0;
}

static int turn(struct mesh *m)
{
    int64_t left_ns = watch_all(m) - mu_now_ns();
    left_ns = left_ns > 0 ? left_ns : 0;
    struct timespec t = {.tv_sec = left_ns / MU_NS_PER_S, .tv_nsec = left_ns % MU_NS_PER_S};
    if (ppoll(m->polls, m->poll_count, &t, NULL) < 0)
        return 0;
    int r = 0;
    for (size_t i = 0; i < m->poll_count && r == 0; i++)
        if (m->polls[i].revents != 0)
            r = hear_news(m, &m->watched[i], m->polls[i].revents);
    for (size_t i = 0; i < m->out_count && r == 0; i++)
        if (m->out[i].state == AGAIN)
            r = turn_out(m, &m->out[i], 0);
    return r;
}

static int fail_missing(struct mesh *m)
{
    char who[160] = "";
    size_t used = 0, count = 0;
    int32_t first = -1;
    for (uint32_t i = 0; i < m->s->size; i++) {
        bool is_next = i == (m->s->rank + 1) % m->s->size,
             is_prev = (i + 1) % m->s->size == m->s->rank;
        if (i == m->s->rank || (m->f->mesh[i] >= 0 && (!is_next || m->f->ring_next >= 0) &&
                                (!is_prev || m->f->ring_prev >= 0)))
            continue;
        if (count++ == 0)
            first = (int32_t)i;
        if (count > 3 || used >= sizeof who)
            continue;
        int n = snprintf(who + used, sizeof who - used, "%srank %u on %s", used > 0 ? ", " : "", i,
                         m->s->peers[i].host);
        used += n < 0 ? 0 : (size_t)n;
    }
    *m->cause =
        (struct muster_cause){.peer = first, .code = -ETIMEDOUT, .phase = MUSTER_PHASE_START};
    (void)snprintf(m->cause->text, sizeof m->cause->text,
                   "%zu of %u ranks did not connect in time: %s%s", count, m->s->size, who,
                   count > 3 ? ", and more" : "");
    return -ETIMEDOUT;
}

static int connect_all(struct mesh *m)
{
    for (size_t i = 0; i < UNPROVEN_MAX; i++)
        m->in[i].fd = m->in[i].passed = -1;
    for (size_t i = 0; i < m->out_count; i++) {
        struct conn *c = &m->out[i];
        *c = (struct conn){.fd = -1, .passed = -1, .peer = (uint32_t)i, .purpose = MESH};
        if (i == m->s->rank) {
            c->peer = (m->s->rank + 1) % m->s->size;
            c->purpose = RING;
        }
    }
    int r = 0;
    for (size_t i = 0; i < m->out_count && r == 0; i++)
        r = begin_connect(m, &m->out[i]);
    while (r == 0 && m->missing > 0)
        r = mu_now_ns() < m->s->deadline_ns ? turn(m) : fail_missing(m);
    for (size_t i = 0; i < UNPROVEN_MAX; i++)
        drop(&m->in[i]);
    for (size_t i = 0; i < m->out_count; i++)
        drop(&m->out[i]);
    return r;
}

/* Who is connected hears why nothing comes of it. */
static void tell_all(const struct tcp_fabric *f, const struct muster_cause *cause)
{
    for (uint32_t i = 0; i < f->size; i++) {
        struct link l;
        link_init(&l, f->mesh[i]);
        (void)link_send_abort(&l, cause); /* A new connection has room; else its end must do. */
        mu_buf_fini(&l.out);
    }
}

int mesh_connect(const struct mesh_start *s, struct tcp_fabric *ret, struct muster_cause *ret_cause)
{
    const struct mu_mem *mem = mu_mem_default();
    struct mesh *m = mu_zalloc(mem, sizeof *m);
    *ret = (struct tcp_fabric){.rank = s->rank, .size = s->size, .ring_next = -1, .ring_prev = -1};
    ret->mesh = mu_alloc(mem, s->size * sizeof *ret->mesh);
    ret->memory = mu_zalloc(mem, s->size * sizeof *ret->memory);
    int r = -ENOMEM;
    *ret_cause = (struct muster_cause){.peer = (int32_t)s->rank,
                                       .code = r,
                                       .phase = MUSTER_PHASE_START,
                                       .text = "no memory for a communicator"};
    if (m != NULL && ret->mesh != NULL && ret->memory != NULL) {
        *m = (struct mesh){.s = s,
                           .f = ret,
                           .out_count = s->rank + 1,
                           .missing = (size_t)s->size + 1,
                           .incoming = (size_t)s->size - s->rank,
                           .cause = ret_cause};
        for (uint32_t i = 0; i < s->size; i++)
            ret->mesh[i] = -1;
        m->out = mu_zalloc(mem, m->out_count * sizeof *m->out);
        m->quiet = mu_zalloc(mem, s->size * sizeof *m->quiet);
        size_t most = 2 + UNPROVEN_MAX + m->out_count + s->size;
        m->polls = mu_zalloc(mem, most * sizeof *m->polls);
        m->watched = mu_zalloc(mem, most * sizeof *m->watched);
        if (m->out != NULL && m->quiet != NULL && m->polls != NULL && m->watched != NULL)
            r = connect_all(m);
        if (r < 0)
            tell_all(ret, ret_cause);
        mu_mem_free(mem, m->out);
        mu_mem_free(mem, m->quiet);
        mu_mem_free(mem, m->polls);
        mu_mem_free(mem, m->watched);
    }
    mu_mem_free(mem, m);
    if (r < 0)
        tcp_fabric_fini(ret);
    return r;
}
