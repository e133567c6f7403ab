/* The port speaks in frames: a letter, three bytes of zero, a length (big-endian), and so many
 * bytes. 'H': the nonce, answered by the port's own; 'T': answered by the time; 'B': as many bytes
 * back. Anything else ends the connection. */
#include "launcher/doctor/net.h"

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "base/addr.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/str.h"

#define LARGE_BYTES (256u * 1024)
#define SERVED_MAX 64
#define TRIPS 12

/* --- names --- */

struct lookup {
    pthread_mutex_t lock;
    pthread_cond_t done_cond;
    bool done;
    bool left; /* Nobody waits any more: the thread frees it. */
    int code;  /* Of getaddrinfo(). */
    int count;
    char addrs[NET_ADDRESSES_MAX][MU_ADDR_BYTES];
    char canonical[256];
    char name[256];
};

static void take_addresses(struct lookup *l, const struct addrinfo *list)
{
    if (list != NULL && list->ai_canonname != NULL)
        (void)mu_strcopy(l->canonical, sizeof l->canonical, list->ai_canonname);
    for (const struct addrinfo *a = list; a != NULL && l->count < NET_ADDRESSES_MAX;
         a = a->ai_next) {
        char text[MU_ADDR_BYTES];
        bool known = false;
        (void)mu_addr_host(a->ai_addr, text);
        for (int i = 0; i < l->count; i++)
            known = known || strcmp(l->addrs[i], text) == 0;
        if (!known)
            memcpy(l->addrs[l->count++], text, sizeof text);
    }
}

static void *look_up(void *arg)
{
    struct lookup *l = arg;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_CANONNAME};
    struct addrinfo *list = NULL;
    int code = getaddrinfo(l->name, NULL, &hints, &list);
    (void)pthread_mutex_lock(&l->lock);
    l->code = code;
    if (code == 0)
        take_addresses(l, list);
    l->done = true;
    bool left = l->left;
    (void)pthread_cond_signal(&l->done_cond);
    (void)pthread_mutex_unlock(&l->lock);
    if (code == 0)
        freeaddrinfo(list);
    if (left)
        free(l);
    return NULL;
}

static bool await(struct lookup *l, int64_t limit_ns)
{
    int64_t end_ns = mu_now_ns() + limit_ns;
    struct timespec ts = {.tv_sec = (time_t)(end_ns / MU_NS_PER_S),
                          .tv_nsec = (long)(end_ns % MU_NS_PER_S)};
    (void)pthread_mutex_lock(&l->lock);
    while (!l->done && pthread_cond_timedwait(&l->done_cond, &l->lock, &ts) == 0) {
    }
    bool done = l->done;
    l->left = !done;
    (void)pthread_mutex_unlock(&l->lock);
    return done;
}

static int start_thread(void *(*body)(void *), void *arg)
{
    pthread_attr_t attr;
    pthread_t thread;
    (void)pthread_attr_init(&attr);
    (void)pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    int r = pthread_create(&thread, &attr, body, arg);
    (void)pthread_attr_destroy(&attr);
    return -r;
}

static struct lookup *new_lookup(const char *name)
{
    struct lookup *l = mu_zalloc(mu_mem_default(), sizeof *l);
    pthread_condattr_t attr;
    if (l == NULL || mu_strcopy(l->name, sizeof l->name, name) < 0) {
        free(l);
        return NULL;
    }
    (void)pthread_mutex_init(&l->lock, NULL);
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&l->done_cond, &attr);
    (void)pthread_condattr_destroy(&attr);
    return l;
}

int net_resolve(const char *name,
                int64_t limit_ns,
                char (*ret)[MU_ADDR_BYTES],
                char *canonical,
                size_t canonical_cap,
                struct mu_err *err)
{
    struct lookup *l = new_lookup(name);
    char span[MU_SPAN_BYTES];
    if (l == NULL)
        return mu_err_set(err, -ENOMEM, "no memory");
    int r = start_thread(look_up, l);
    if (r < 0) {
        free(l);
        return mu_err_set(err, r, "no thread can be started: %s", strerror(-r));
    }
    if (!await(l, limit_ns))
        return mu_err_set(err, -ETIMEDOUT, "the look-up of %.100s took longer than %s", name,
                          mu_span(limit_ns, span));
    r = l->count;
    if (l->code == EAI_NONAME || l->code == EAI_NODATA || l->code == EAI_ADDRFAMILY)
        r = 0;
    else if (l->code == EAI_AGAIN)
        r = mu_err_set(err, -EAGAIN,
                       "it is not in /etc/hosts, and no name server in /etc/resolv.conf answers");
    else if (l->code != 0)
        r = mu_err_set(err, -EIO, "the look-up of %.100s failed: %s", name, gai_strerror(l->code));
    if (r > 0)
        memcpy(ret, l->addrs, sizeof l->addrs);
    if (r > 0 && canonical != NULL)
        (void)mu_strcopy(canonical, canonical_cap, l->canonical);
    free(l);
    return r;
}

cJSON *net_resolve_fact(const char *name, int64_t limit_ns)
{
    char addrs[NET_ADDRESSES_MAX][MU_ADDR_BYTES];
    struct mu_err err = {0};
    int n = net_resolve(name, limit_ns, addrs, NULL, 0, &err);
    if (n > 0) {
        cJSON *list = cJSON_CreateArray();
        for (int i = 0; i < n; i++)
            (void)cJSON_AddItemToArray(list, cJSON_CreateString(addrs[i]));
        return list;
    }
    cJSON *o = cJSON_CreateObject();
    (void)cJSON_AddStringToObject(o, "unknown", n < 0 ? err.msg : "it has no address");
    (void)cJSON_AddBoolToObject(o, "has_none", n == 0);
    if (n == -EAGAIN)
        (void)cJSON_AddStringToObject(o, "failed", err.msg);
    return o;
}

/* --- connections --- */

static void set_limits(int fd, int64_t limit_ns)
{
    struct timeval tv = {.tv_sec = (time_t)(limit_ns / MU_NS_PER_S),
                         .tv_usec = (suseconds_t)(limit_ns % MU_NS_PER_S / MU_NS_PER_US)};
    int on = 1;
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

static int await_connected(int fd, int64_t limit_ns)
{
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    int64_t end_ns = mu_now_ns() + limit_ns;
    int code = 0;
    socklen_t n = sizeof code;
    for (;;) {
        int64_t left_ms = (end_ns - mu_now_ns()) / MU_NS_PER_MS;
        int r = poll(&p, 1, left_ms > 0 ? (int)left_ms : 0);
        if (r == 0)
            return -ETIMEDOUT;
        if (r < 0 && errno == EINTR && left_ms > 0)
            continue;
        if (r < 0)
            return -errno;
        if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &n) < 0)
            return -errno;
        return -code;
    }
}

int net_connect(const char *addr, uint16_t port, int64_t limit_ns)
{
    struct mu_addr a;
    if (mu_addr_parse(addr, port, &a) < 0)
        return -EINVAL;
    MU_CLEANUP(mu_closep)
    int fd = socket(a.ss.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    int r = connect(fd, (const struct sockaddr *)&a.ss, a.len) < 0 ? -errno : 0;
    if (r == -EINPROGRESS)
        r = await_connected(fd, limit_ns);
    if (r < 0)
        return r;
    (void)fcntl(fd, F_SETFL, 0); /* Blocking, with limits. */
    set_limits(fd, limit_ns);
    return mu_steal_fd(&fd);
}

const char *net_how(int code)
{
    switch (-code) {
    case 0:
        return "ok";
    case ECONNREFUSED:
        return "refused";
    case ETIMEDOUT:
    case EAGAIN:
        return "dropped";
    case EHOSTUNREACH:
        return "unreachable (no such host on that network, or a firewall that says so)";
    case ENETUNREACH:
        return "unreachable (no route to that network)";
    case EPROTO:
        return "answered by another program";
    default:
        return strerror(-code);
    }
}

/* --- frames --- */

static int put_all(int fd, const void *p, size_t n)
{
    for (size_t at = 0; at < n;) {
        ssize_t r = send(fd, (const char *)p + at, n - at, MSG_NOSIGNAL);
        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0)
            return r < 0 ? -errno : -EPIPE;
        at += (size_t)r;
    }
    return 0;
}

static int get_all(int fd, void *p, size_t n)
{
    for (size_t at = 0; at < n;) {
        ssize_t r = recv(fd, (char *)p + at, n - at, 0);
        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0)
            return r < 0 ? -errno : -ECONNRESET;
        at += (size_t)r;
    }
    return 0;
}

static int put_frame(int fd, char letter, const void *p, uint32_t n)
{
    char head[8] = {letter};
    uint32_t size = htonl(n);
    memcpy(head + 4, &size, sizeof size);
    int r = put_all(fd, head, sizeof head);
    return r < 0 ? r : put_all(fd, p, n);
}

static int get_head(int fd, char *ret_letter, uint32_t *ret_n)
{
    char head[8];
    uint32_t size = 0;
    int r = get_all(fd, head, sizeof head);
    if (r < 0)
        return r;
    memcpy(&size, head + 4, sizeof size);
    *ret_letter = head[0];
    *ret_n = ntohl(size);
    return *ret_n <= LARGE_BYTES && head[1] == 0 && head[2] == 0 && head[3] == 0 ? 0 : -EPROTO;
}

/* --- the port --- */

struct served {
    const struct net_port *port;
    int fd;
    char *bytes; /* LARGE_BYTES */
};

static atomic_uint served_count;

static int answer_one(const struct served *s, bool *known)
{
    char letter = 0;
    uint32_t n = 0;
    int r = get_head(s->fd, &letter, &n);
    if (r == 0)
        r = get_all(s->fd, s->bytes, n);
    if (r < 0)
        return r;
    if (letter == 'H' && n == NET_NONCE_BYTES && memcmp(s->bytes, s->port->nonce, n) == 0) {
        *known = true;
        return put_frame(s->fd, 'H', s->port->answer, NET_NONCE_BYTES);
    }
    if (!*known)
        return -EPROTO;
    if (letter == 'T') {
        uint64_t now = htobe64((uint64_t)mu_unix_us());
        return put_frame(s->fd, 'T', &now, sizeof now);
    }
    return letter == 'B' ? put_frame(s->fd, 'B', s->bytes, n) : -EPROTO;
}

static void *serve_one(void *arg)
{
    struct served *s = arg;
    bool known = false;
    while (answer_one(s, &known) == 0) {
    }
    (void)close(s->fd);
    free(s->bytes);
    free(s);
    (void)atomic_fetch_sub(&served_count, 1);
    return NULL;
}

static void take_caller(const struct net_port *p, int fd)
{
    struct served *s = mu_zalloc(mu_mem_default(), sizeof *s);
    char *bytes = mu_alloc(mu_mem_default(), LARGE_BYTES);
    (void)fcntl(fd, F_SETFL, 0);
    set_limits(fd, 10 * MU_NS_PER_S);
    if (s != NULL && bytes != NULL && atomic_fetch_add(&served_count, 1) < SERVED_MAX) {
        *s = (struct served){.port = p, .fd = fd, .bytes = bytes};
        if (start_thread(serve_one, s) == 0)
            return;
    }
    (void)atomic_fetch_sub(&served_count, s != NULL && bytes != NULL);
    (void)close(fd);
    free(bytes);
    free(s);
}

static void *serve(void *arg)
{
    const struct net_port *p = arg;
    struct pollfd ready = {.fd = p->fd, .events = POLLIN};
    for (;;) {
        (void)poll(&ready, 1, -1);
        int fd = accept4(p->fd, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0)
            take_caller(p, fd);
    }
    return NULL;
}

static void make_nonce(char *ret)
{
    uint64_t n = 0;
    if (getrandom(&n, sizeof n, 0) != (ssize_t)sizeof n)
        n = (uint64_t)mu_now_ns() * 0x9e3779b97f4a7c15u ^ (uint64_t)getpid();
    (void)snprintf(ret, NET_NONCE_BYTES, "%016llx", (unsigned long long)n);
}

int net_serve(struct net_port *p, struct mu_err *err)
{
    make_nonce(p->nonce);
    make_nonce(p->answer);
    p->fd = mu_listen("*", 0, 64, &p->port, err);
    if (p->fd < 0)
        return p->fd;
    int r = start_thread(serve, p);
    return r < 0 ? mu_err_set(err, r, "no thread can be started: %s", strerror(-r)) : 0;
}

/* --- the other end --- */

static int ask(int fd, char letter, const void *p, uint32_t n, void *ret, uint32_t ret_n)
{
    char got = 0;
    uint32_t got_n = 0;
    int r = put_frame(fd, letter, p, n);
    if (r == 0)
        r = get_head(fd, &got, &got_n);
    if (r == 0 && (got != letter || got_n != ret_n))
        r = -EPROTO;
    return r == 0 ? get_all(fd, ret, ret_n) : r;
}

int net_greet(int fd, const char *nonce, const char *answer)
{
    char got[NET_NONCE_BYTES];
    int r = ask(fd, 'H', nonce, NET_NONCE_BYTES, got, sizeof got);
    if (r == -ECONNRESET || r == -EPIPE)
        return -EPROTO; /* Whoever is there does not know us. */
    return r == 0 && memcmp(got, answer, sizeof got) != 0 ? -EPROTO : r;
}

static int measure_large(int fd, struct net_look *ret)
{
    char *bytes = mu_zalloc(mu_mem_default(), LARGE_BYTES);
    int r = bytes != NULL ? ask(fd, 'B', bytes, LARGE_BYTES, bytes, LARGE_BYTES) : -ENOMEM;
    free(bytes);
    ret->large = r == 0                            ? "ok"
                 : r == -EAGAIN || r == -ETIMEDOUT ? "get lost on the way"
                                                   : "end the connection";
    return r == -ENOMEM ? r : 0;
}

int net_measure(int fd, struct net_look *ret)
{
    int64_t best_ns = INT64_MAX;
    for (int i = 0; i < TRIPS; i++) {
        uint64_t got = 0;
        int64_t before = mu_now_ns();
        int64_t before_us = mu_unix_us();
        int r = ask(fd, 'T', "", 0, &got, sizeof got);
        int64_t trip = mu_now_ns() - before;
        if (r < 0)
            return r;
        if (trip >= best_ns)
            continue;
        best_ns = trip;
        ret->rtt_us = (double)trip / 1000;
        ret->skew_ms = (double)((int64_t)be64toh(got) - before_us) / 1000 - (double)trip / 2e6;
    }
    return measure_large(fd, ret);
}
