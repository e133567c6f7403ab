/* How the link comes to a connection: look-ups, one address after the other, each for a limited
 * time. */
#include "agent/link/link_internal.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"

#define LOOKUPS_MAX 3 /* Of the four threads that libuv has for such work. */
#define HELD "cut on purpose (chaos)"

static void try_next(struct link *l);

static void options_for(const uv_tcp_t *tcp)
{
    uv_os_fd_t fd = -1;
    /* Idle and then silent: keepalive. Silent with data under way: the user time-out. Each alone
     * misses the other's case. */
    static const struct {
        int level;
        int name;
        int value;
    } options[] = {{IPPROTO_TCP, TCP_NODELAY, 1},  {SOL_SOCKET, SO_KEEPALIVE, 1},
                   {IPPROTO_TCP, TCP_KEEPIDLE, 1}, {IPPROTO_TCP, TCP_KEEPINTVL, 1},
                   {IPPROTO_TCP, TCP_KEEPCNT, 3},  {IPPROTO_TCP, TCP_USER_TIMEOUT, 2500}};
    if (uv_fileno((const uv_handle_t *)tcp, &fd) < 0)
        return;
    for (size_t i = 0; i < MU_COUNT(options); i++)
        (void)setsockopt(fd, options[i].level, options[i].name, &options[i].value,
                         sizeof options[i].value); /* Without it we are slower, not wrong. */
    mu_resend_evenly(fd);
}

static void fail(struct link *l, int code, const char *what)
{
    (void)uv_timer_stop(&l->timer);
    link_drop(l);
    l->state = LINK_IDLE;
    (void)link_words(l, what);
    bool offer = code == UV_ECONNREFUSED && !l->offered && l->events.on_nobody_listens != NULL;
    l->offered = l->offered || offer;
    if (offer && l->events.on_nobody_listens(l->events.arg, l->first_address, l->server.port))
        link_connect(l);
    else
        l->events.on_failed(l->events.arg, code == UV_ECONNREFUSED, l->text);
}

static void on_connected(uv_connect_t *req, int status)
{
    struct link *l = req->data;
    if (l->state != LINK_CONNECTING || req->handle != (uv_stream_t *)l->tcp)
        return; /* Of an attempt that was given up. */
    if (status < 0) {
        link_drop(l);
        if (l->next != NULL)
            try_next(l);
        else
            fail(l, status, uv_strerror(status));
        return;
    }
    (void)uv_timer_stop(&l->timer);
    options_for(l->tcp);
    l->offered = true; /* There is a server. Should it go, its place is not ours to take. */
    link_begin(l);
}

static void on_attempt_limit(uv_timer_t *t)
{
    struct link *l = t->data;
    if (l->state == LINK_RESOLVING) {
        l->asks = false;
        fail(l, UV_ETIMEDOUT, "the name cannot be resolved (no answer from a name server yet)");
    } else if (l->state == LINK_CONNECTING) {
        link_drop(l);
        if (l->next != NULL)
            try_next(l);
        else
            fail(l, UV_ETIMEDOUT, "no answer to a connection attempt");
    }
}

static void connect_to(struct link *l, const struct sockaddr *to)
{
    struct attempt *a = mu_zalloc(mu_mem_default(), sizeof *a);
    if (a == NULL || uv_tcp_init(l->loop, &a->tcp) < 0) {
        free(a);
        fail(l, UV_ENOMEM, "no memory");
        return;
    }
    _Static_assert(offsetof(struct attempt, tcp) == 0,
                   "on_tcp_closed() frees the attempt by its handle");
    a->tcp.data = l;
    a->req.data = l;
    l->tcp = &a->tcp;
    l->handles++;
    l->state = LINK_CONNECTING;
    int r = uv_tcp_connect(&a->req, &a->tcp, to, on_connected);
    if (r < 0) {
        link_drop(l);
        if (l->next != NULL)
            try_next(l);
        else
            fail(l, r, uv_strerror(r));
        return;
    }
    (void)uv_timer_start(&l->timer, on_attempt_limit, (uint64_t)(LINK_CONNECT_NS / MU_NS_PER_MS),
                         0);
}

static void try_next(struct link *l)
{
    const struct addrinfo *a = l->next;
    l->next = a->ai_next;
    connect_to(l, a->ai_addr);
}

static void forget_lookup(struct lookup *q)
{
    struct link *l = q->link;
    if (l != NULL) {
        struct lookup **at = &l->lookups;
        while (*at != q)
            at = &(*at)->next;
        *at = q->next;
        l->lookup_count--;
    }
    free(q);
}

static void use(struct link *l, struct addrinfo *found)
{
    if (l->found != NULL)
        uv_freeaddrinfo(l->found);
    l->found = found;
    l->next = found;
    (void)mu_addr_host(found->ai_addr, l->first_address);
    try_next(l);
}

static void on_resolved(uv_getaddrinfo_t *req, int status, struct addrinfo *found)
{
    struct lookup *q = (struct lookup *)req; /* Its first member. */
    struct link *l = q->link;
    bool good = status == 0 && found != NULL;
    bool last = l != NULL && l->lookups == q; /* The present attempt's own: the newest. */
    forget_lookup(q);
    if (l != NULL && l->state == LINK_RESOLVING && good) {
        use(l, found);
        return;
    }
    uv_freeaddrinfo(found); /* Too late for an attempt; the next one asks anew. */
    if (l == NULL || l->state != LINK_RESOLVING || !last || !l->asks)
        return;
    char what[120];
    (void)snprintf(what, sizeof what, "the name cannot be resolved (%s)",
                   status < 0 ? uv_strerror(status) : "no address");
    l->asks = false;
    l->first_address[0] = '\0';
    fail(l, status, what);
}

/* Names come late, and name servers are slow or gone: an attempt waits for an answer only so long,
 * and while one question is stuck the next may find the name in a file. */
static void resolve(struct link *l)
{
    static const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    char service[8];
    int r = 0;
    (void)snprintf(service, sizeof service, "%u", l->server.port);
    l->state = LINK_RESOLVING;
    (void)uv_timer_start(&l->timer, on_attempt_limit, (uint64_t)(LINK_LOOKUP_NS / MU_NS_PER_MS), 0);
    if (l->lookup_count >= LOOKUPS_MAX)
        return; /* Those that are under way may answer yet. */
    struct lookup *q = mu_zalloc(mu_mem_default(), sizeof *q);
    if (q != NULL)
        r = uv_getaddrinfo(l->loop, &q->req, on_resolved, l->server.host, service, &hints);
    if (q == NULL || r < 0) {
        free(q);
        fail(l, q == NULL ? UV_ENOMEM : r, q == NULL ? "no memory" : uv_strerror(r));
        return;
    }
    q->link = l;
    q->next = l->lookups;
    l->lookups = q;
    l->lookup_count++;
    l->asks = true;
}

void link_connect(struct link *l)
{
    if (l->state != LINK_IDLE)
        return;
    if (l->held) {
        fail(l, UV_ETIMEDOUT, HELD);
        return;
    }
    if (mu_addr_parse(l->server.host, l->server.port, &l->numeric) < 0) {
        resolve(l);
        return;
    }
    (void)mu_addr_host((const struct sockaddr *)&l->numeric.ss, l->first_address);
    l->next = NULL;
    connect_to(l, (const struct sockaddr *)&l->numeric.ss);
}

void link_hold(struct link *l, bool held)
{
    bool up = l->state == LINK_UP;
    bool trying = l->state == LINK_RESOLVING || l->state == LINK_CONNECTING;
    l->held = held;
    if (!held)
        return;
    l->asks = false;
    if (up)
        link_lose(l, HELD);
    else if (trying)
        fail(l, UV_ETIMEDOUT, HELD);
}

bool link_has_lookups(const struct link *l)
{
    return l->lookup_count > 0;
}
