/* One connection to a store; see store_wire.h. */
#include "worker-sdk/src/store/store_wire.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/str.h"

/* An address that swallows packets must not eat the whole time while another would answer. */
#define ATTEMPT_NS (5 * MU_NS_PER_S)
/* Between attempts: short at first, as ranks start within milliseconds of their store. */
#define PAUSE_FIRST_NS (5 * MU_NS_PER_MS)
#define PAUSE_MAX_NS (1 * MU_NS_PER_S)

#define VALIDATE_MAGIC 0x3C85F7CEu
#define VALIDATE 0
#define PING 13
#define GREETING_BYTES 10

void wire_put(char *p, uint64_t v, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        p[i] = (char)(v >> (8 * i));
}

uint64_t wire_number(const char *p, size_t bytes)
{
    uint64_t v = 0;
    for (size_t i = 0; i < bytes; i++)
        v |= (uint64_t)(unsigned char)p[i] << (8 * i);
    return v;
}

/* --- finding --- */

/* Ranks that start together must not come back together: up to a half more, from the clock's last
 * digits. */
static int64_t with_jitter(int64_t pause_ns)
{
    uint64_t mixed = (uint64_t)sdk_now_ns() * UINT64_C(0x9E3779B97F4A7C15) >> 33;
    return pause_ns + (int64_t)(mixed % (uint64_t)(pause_ns / 2));
}

/* False: the deadline has passed. */
static bool pause_until(int64_t *pause_ns, int64_t deadline_ns)
{
    int64_t now_ns = sdk_now_ns();
    if (now_ns >= deadline_ns)
        return false;
    int64_t end_ns = now_ns + with_jitter(*pause_ns);
    if (end_ns > deadline_ns)
        end_ns = deadline_ns;
    (void)poll(NULL, 0, sdk_poll_ms(end_ns)); /* A signal only makes it shorter. */
    *pause_ns = *pause_ns * 2 < PAUSE_MAX_NS ? *pause_ns * 2 : PAUSE_MAX_NS;
    return true;
}

static void keep_addresses(struct wire *w, const struct addrinfo *found)
{
    for (; found != NULL && w->address_count < WIRE_ADDRESSES; found = found->ai_next) {
        struct mu_addr *a = &w->address[w->address_count++];
        *a = (struct mu_addr){.len = found->ai_addrlen};
        memcpy(&a->ss, found->ai_addr, found->ai_addrlen);
    }
}

int wire_find(
    struct wire *w, const char *host, uint16_t port, int64_t deadline_ns, struct muster_error *err)
{
    *w = (struct wire){.fd = -1, .port = port};
    if (host == NULL || host[0] == '\0' || port == 0)
        return sdk_error(err, -EINVAL, "a store has a host and a port from 1 to 65535");
    if (mu_strcopy(w->host, sizeof w->host, host) < 0)
        return sdk_error(err, -EINVAL, "a host name has at most %zu bytes", sizeof w->host - 1);
    if (mu_addr_parse(host, port, &w->address[0]) == 0) {
        w->address_count = 1;
        return 0;
    }
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    char service[8];
    (void)snprintf(service, sizeof service, "%u", port);
    int64_t pause_ns = PAUSE_FIRST_NS;
    for (;;) {
        struct addrinfo *found = NULL;
        int r = getaddrinfo(host, service, &hints, &found);
        if (r == 0) {
            keep_addresses(w, found);
            freeaddrinfo(found);
            return 0;
        }
        /* A name may appear after its user: clusters give names out while pods start. */
        if (!pause_until(&pause_ns, deadline_ns))
            return sdk_error(err, -EHOSTUNREACH,
                             "'%s' has no address (%s): check the store's host name", host,
                             gai_strerror(r));
    }
}

/* --- connecting --- */

void wire_drop(struct wire *w)
{
    if (w->fd >= 0)
        (void)close(w->fd); /* Nothing left to do about it. */
    w->fd = -1;
    w->from = w->to = 0;
}

static int lost(struct wire *w, int code, struct muster_error *err)
{
    wire_drop(w);
    if (code == -ETIMEDOUT)
        return sdk_error(err, code, "the store at %s port %u did not answer in time", w->host,
                         w->port);
    return sdk_error(err, code, "the connection to the store at %s port %u was lost (%s)", w->host,
                     w->port, strerror(-code));
}

/* 0, -ETIMEDOUT, or the connection's error. */
static int poll_for(int fd, short events, int64_t deadline_ns)
{
    for (;;) {
        struct pollfd p = {.fd = fd, .events = events};
        int n = poll(&p, 1, sdk_poll_ms(deadline_ns));
        if (n > 0)
            return 0; /* With an error the next call says which. */
        if (n < 0 && errno != EINTR)
            return -errno;
        if (sdk_now_ns() >= deadline_ns)
            return -ETIMEDOUT;
    }
}

/* A connected socket, or a negative errno. */
static int connect_to(const struct mu_addr *a, int64_t deadline_ns)
{
    MU_CLEANUP(mu_closep)
    int fd = socket(a->ss.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);
    if (fd < 0)
        return -errno;
    int on = 1;
    /* Comfort only: without them it works, slower or less watchful. */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    if (connect(fd, (const struct sockaddr *)&a->ss, a->len) < 0) {
        if (errno != EINPROGRESS)
            return -errno;
        int r = poll_for(fd, POLLOUT, deadline_ns);
        if (r < 0)
            return r;
        int why = 0;
        socklen_t size = sizeof why;
        if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &size) < 0)
            return -errno;
        if (why != 0)
            return -why;
    }
    return mu_steal_fd(&fd);
}

/* Why there is no store, from what tells least to what tells most. */
enum reason {
    REASON_NONE,
    REASON_UNREACHED, /* No connection. */
    REASON_SILENT,
    REASON_CLOSED,
    REASON_STRANGER /* It answers with something else. */
};

/* The first two commands of a connection, in one piece, and the answer to the second. */
static int greet(struct wire *w, int64_t deadline_ns, enum reason *ret, struct muster_error *err)
{
    char hello[GREETING_BYTES];
    char answer[4];
    w->nonce = w->nonce == 0 ? (uint32_t)getpid() : w->nonce + 1;
    hello[0] = VALIDATE;
    wire_put(hello + 1, VALIDATE_MAGIC, 4);
    hello[5] = PING;
    wire_put(hello + 6, w->nonce, 4);
    int r = wire_send(w, hello, sizeof hello, deadline_ns, NULL);
    if (r == 0)
        r = wire_receive(w, answer, sizeof answer, deadline_ns, NULL);
    if (r == 0 && wire_number(answer, 4) == w->nonce)
        return 0;
    wire_drop(w);
    if (r == 0) {
        *ret = REASON_STRANGER;
        return sdk_error(err, -EPROTO, "what answers there does not speak the store's protocol");
    }
    *ret = r == -ETIMEDOUT ? REASON_SILENT : REASON_CLOSED;
    return sdk_error(err, r,
                     r == -ETIMEDOUT ? "what listens there took the connection and says nothing"
                                     : "what listens there closes the connection at once");
}

static int64_t sooner(int64_t a_ns, int64_t b_ns)
{
    return a_ns < b_ns ? a_ns : b_ns;
}

int wire_dial(const char *host, uint16_t port, int64_t deadline_ns, struct muster_error *err)
{
    struct wire w;
    int fd = wire_find(&w, host, port, deadline_ns, err);
    if (fd < 0)
        return fd;
    for (size_t i = 0; i < w.address_count; i++) {
        fd = connect_to(&w.address[i], sooner(sdk_deadline_ns(ATTEMPT_NS), deadline_ns));
        if (fd >= 0)
            return fd;
    }
    return sdk_error(err, fd, "%s", strerror(-fd));
}

/* The latest of the reasons that tell most; but a time-out that is only the end of our own time
 * says nothing. */
struct why {
    enum reason reason;
    struct muster_error err;
};

static void
take_reason(struct why *kept, enum reason reason, const struct muster_error *err, bool cut)
{
    if (reason < kept->reason || (cut && err->code == -ETIMEDOUT && kept->reason != REASON_NONE))
        return;
    *kept = (struct why){reason, *err};
}

/* Each address once. */
static int connect_once(struct wire *w, int64_t deadline_ns, struct why *why)
{
    for (size_t i = 0; i < w->address_count; i++) {
        enum reason reason = REASON_UNREACHED;
        struct muster_error err = {0};
        int64_t attempt_ns = sdk_deadline_ns(ATTEMPT_NS);
        int64_t until_ns = sooner(attempt_ns, deadline_ns);
        int fd = connect_to(&w->address[i], until_ns);
        if (fd >= 0) {
            w->fd = fd;
            if (greet(w, until_ns, &reason, &err) == 0)
                return 0;
        } else {
            (void)sdk_error(&err, fd, "%s", strerror(-fd));
        }
        take_reason(why, reason, &err, until_ns < attempt_ns);
    }
    return why->err.code;
}

int wire_connect(struct wire *w, int64_t deadline_ns, struct muster_error *err)
{
    int64_t pause_ns = PAUSE_FIRST_NS;
    int64_t began_ns = sdk_now_ns();
    char span[MU_SPAN_BYTES];
    struct why why = {REASON_NONE, {-EHOSTUNREACH, "it has no address"}};
    wire_drop(w);
    for (;;) {
        int r = connect_once(w, deadline_ns, &why);
        if (r == 0)
            return 0;
        if (!pause_until(&pause_ns, deadline_ns))
            return sdk_error(err, r == -EPROTO ? r : -ETIMEDOUT,
                             "no store at %s port %u within %s (%s): is it served there, by "
                             "the launcher or by rank 0?",
                             w->host, w->port, mu_span(sdk_now_ns() - began_ns, span),
                             why.err.text);
    }
}

/* --- moving bytes --- */

bool wire_is_alive(struct wire *w)
{
    char c = 0;
    if (w->fd < 0)
        return false;
    ssize_t n = recv(w->fd, &c, 1, MSG_PEEK | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR) && w->from == w->to)
        return true;
    wire_drop(w); /* The end, or bytes that answer nothing. */
    return false;
}

int wire_send(
    struct wire *w, const void *p, size_t n, int64_t deadline_ns, struct muster_error *err)
{
    const char *at = p;
    while (n > 0) {
        ssize_t m = send(w->fd, at, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (m > 0) {
            at += m;
            n -= (size_t)m;
            continue;
        }
        int r = errno == EAGAIN ? poll_for(w->fd, POLLOUT, deadline_ns) : -errno;
        if (r < 0 && r != -EINTR)
            return lost(w, r, err);
    }
    return 0;
}

/* At least one byte, at most n. */
static int receive_some(
    struct wire *w, char *p, size_t n, int64_t deadline_ns, size_t *ret, struct muster_error *err)
{
    for (;;) {
        ssize_t m = recv(w->fd, p, n, MSG_DONTWAIT);
        if (m > 0) {
            *ret = (size_t)m;
            return 0;
        }
        if (m == 0)
            return lost(w, -ECONNRESET, err);
        int r = errno == EAGAIN ? poll_for(w->fd, POLLIN, deadline_ns) : -errno;
        if (r < 0 && r != -EINTR)
            return lost(w, r, err);
    }
}

int wire_receive(struct wire *w, void *p, size_t n, int64_t deadline_ns, struct muster_error *err)
{
    char *at = p;
    while (n > 0) {
        size_t m = w->to - w->from;
        int r = 0;
        if (m > 0) {
            m = m < n ? m : n;
            memcpy(at, w->in + w->from, m);
            w->from += m;
        } else if (n >= sizeof w->in) { /* Large values go straight to where they belong. */
            r = receive_some(w, at, n, deadline_ns, &m, err);
        } else {
            w->from = w->to = 0;
            r = receive_some(w, w->in, sizeof w->in, deadline_ns, &w->to, err);
        }
        if (r < 0)
            return r;
        at += m;
        n -= m;
    }
    return 0;
}

int wire_ready(struct wire *w, int64_t deadline_ns, struct muster_error *err)
{
    if (w->from < w->to)
        return 0;
    int r = poll_for(w->fd, POLLIN, deadline_ns);
    return r < 0 && r != -ETIMEDOUT ? lost(w, r, err) : r;
}
