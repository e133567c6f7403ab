/* One connection: who calls (its first bytes), which list it is in, when its patience ends, how it
 * ends. */
#include <arpa/inet.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <utlist.h>

#include "base/clock.h"
#include "rendezvous/server/internal.h"

/* Who can be told from the bytes seen so far. */
enum caller {
    CALLER_UNKNOWN, /* Could still be several: more bytes are needed. */
    CALLER_STORE,
    CALLER_AGENT,
    CALLER_HTTP,
    CALLER_TLS,
    CALLER_STRANGER
};

static watch_ready_fn on_ready;

char *conn_peer(const struct conn *c, char *ret)
{
    struct sockaddr_in6 in6 = {.sin6_family = AF_INET6, .sin6_addr = c->addr};
    return mu_addr_host((const struct sockaddr *)&in6, ret);
}

/* --- lists and time-outs --- */

static int64_t list_timeout_ns(const struct srv *s, size_t list)
{
    return list == LIST_FRESH     ? s->config.first_bytes_ns
           : list == LIST_LEAVING ? MU_GOODBYE_NS
                                  : MU_NEVER;
}

/* One timer for all: armed for the earliest head, left alone when that goes away (it then fires
 * once for nothing), silent when the lists are empty. */
static void arm_sweep(struct srv *s)
{
    int64_t at = MU_NEVER;
    for (size_t l = LIST_FRESH; l <= LIST_LEAVING; l++) {
        int64_t head_at =
            s->lists[l] != NULL ? s->lists[l]->since_ns + list_timeout_ns(s, l) : MU_NEVER;
        at = head_at < at ? head_at : at;
    }
    if (at >= s->sweep_at_ns)
        return;
    int64_t wait_ms = (at - s->now_ns) / MU_NS_PER_MS + 1;
    (void)uv_timer_start(&s->sweep, conn_on_sweep, wait_ms > 0 ? (uint64_t)wait_ms : 0, 0);
    s->sweep_at_ns = at;
}

void conn_move(struct conn *c, enum conn_list list)
{
    struct srv *s = c->srv;
    DL_DELETE(s->lists[c->list], c);
    c->list = (uint8_t)list;
    c->since_ns = s->now_ns;
    DL_APPEND(s->lists[c->list], c);
    if (list == LIST_FRESH || list == LIST_LEAVING)
        arm_sweep(s);
}

static struct host *host_find(struct srv *s, const struct in6_addr *addr)
{
    struct host *h = NULL;
    HASH_FIND(hh, s->hosts, addr, sizeof *addr, h);
    return h;
}

/* A PyTorch 1.13 client opens two connections, one of which never says anything, and its process
 * aborts when that one is closed. A silent connection is kept while its host has more legacy
 * clients than such keepsakes. Source: docs/protocol.md "The store". */
static bool park(struct conn *c)
{
    struct host *h = host_find(c->srv, &c->addr);
    if (h == NULL || h->parked >= h->legacy)
        return false;
    h->parked++;
    c->host = h;
    c->kind = CONN_PARKED;
    conn_move(c, LIST_PARKED);
    srv_no_agent(c->srv, c->watch.fd);
    return true;
}

void conn_count_legacy(struct conn *c)
{
    struct srv *s = c->srv;
    struct host *h = host_find(s, &c->addr);
    if (h == NULL) {
        h = mu_zalloc(mu_mem_default(), sizeof *h);
        if (h == NULL)
            return; /* Then its silent twin is closed in time: the client's loss, not ours. */
        h->addr = c->addr;
        HASH_ADD(hh, s->hosts, addr, sizeof h->addr, h);
        if (h->hh.tbl == NULL) { /* uthash found no memory. */
            mu_mem_free(mu_mem_default(), h);
            return;
        }
    }
    h->legacy++;
    c->host = h;
}

/* The last legacy client of a host left: those that were kept for it get their first time-out anew.
 */
static void unpark_all(struct srv *s, struct host *h)
{
    struct conn *c = NULL;
    struct conn *next = NULL;
    DL_FOREACH_SAFE(s->lists[LIST_PARKED], c, next)
    {
        if (c->host != h)
            continue;
        c->host = NULL;
        c->kind = CONN_NEW;
        conn_move(c, LIST_FRESH);
    }
}

static void leave_host(struct conn *c)
{
    struct srv *s = c->srv;
    struct host *h = c->host;
    if (h == NULL)
        return;
    c->host = NULL;
    if (c->kind == CONN_PARKED) {
        h->parked--;
        return;
    }
    if (--h->legacy > 0)
        return;
    unpark_all(s, h);
    HASH_DEL(s->hosts, h);
    mu_mem_free(mu_mem_default(), h);
}

static void
log_stranger(struct conn *c, enum mu_log_level level, const char *what, struct mu_str bytes)
{
    struct srv *s = c->srv;
    char peer[MU_ADDR_BYTES];
    char shown[48] = "\"\"";
    uint32_t left_out = 0;
    if (!mu_log_on(level) || !mu_log_allowed(&s->log_stranger, s->now_ns, SRV_LOG_BURST, &left_out))
        return;
    mu_log(level, "conn.closed", "peer=%s reason=\"%s\" bytes=%s left_out=%u", conn_peer(c, peer),
           what, bytes.n > 0 ? mu_quote(shown, sizeof shown, bytes) : shown, left_out);
}

/* The head's patience is over. */
static void time_out(struct conn *c)
{
    if (c->list == LIST_FRESH && c->kind == CONN_NEW && park(c))
        return;
    if (c->list == LIST_FRESH)
        log_stranger(c, MU_INFO, "said nothing that makes sense in time", mu_str_of(NULL, 0));
    if (c->kind == CONN_AGENT)
        agent_lost(c->u.agent, JOB_EV_NODE_AWAY);
    else
        conn_close(c);
}

void conn_on_sweep(uv_timer_t *timer)
{
    struct srv *s = timer->data;
    s->now_ns = mu_now_ns();
    for (size_t l = LIST_FRESH; l <= LIST_LEAVING; l++)
        while (s->lists[l] != NULL && s->lists[l]->since_ns + list_timeout_ns(s, l) <= s->now_ns)
            time_out(s->lists[l]);
    s->sweep_at_ns = MU_NEVER;
    arm_sweep(s);
    srv_settle(s);
}

/* --- birth and death --- */

int conn_release(struct conn *c)
{
    struct srv *s = c->srv;
    MU_ASSERT(c->kind != CONN_CLOSED);
    leave_host(c);
    if (c->kind == CONN_STORE)
        store_client_free(c->u.client);
    else if (c->kind == CONN_AGENT)
        agent_free(c->u.agent);
    DL_DELETE(s->lists[c->list], c);
    s->conn_count--;
    c->kind = CONN_CLOSED;
    int fd = watch_remove(s, &c->watch);
    watch_free_later(s, &c->watch);
    return fd;
}

void conn_close(struct conn *c)
{
    (void)close(conn_release(c));
}

static struct in6_addr address_of(const struct sockaddr *sa)
{
    struct in6_addr a = IN6ADDR_ANY_INIT;
    if (sa->sa_family == AF_INET6) {
        struct sockaddr_in6 in6;
        memcpy(&in6, sa, sizeof in6);
        a = in6.sin6_addr;
    } else if (sa->sa_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, sa, sizeof in);
        a.s6_addr[10] = 0xff;
        a.s6_addr[11] = 0xff;
        memcpy(&a.s6_addr[12], &in.sin_addr, 4);
    }
    return a;
}

void conn_new(struct srv *s, int fd, const struct sockaddr *sa)
{
    struct conn *c = mu_zalloc(mu_mem_default(), sizeof *c);
    if (c == NULL || watch_add(s, &c->watch, fd, WATCH_IN, on_ready) < 0) {
        mu_mem_free(mu_mem_default(), c);
        (void)close(fd);
        return;
    }
    c->srv = s;
    c->addr = address_of(sa);
    c->kind = CONN_NEW;
    c->list = LIST_FRESH;
    c->since_ns = s->now_ns;
    DL_APPEND(s->lists[LIST_FRESH], c);
    s->conn_count++;
    arm_sweep(s);
}

/* --- the first bytes --- */

/* Does `seen` begin with `word`, or could it still? */
static bool may_be(struct mu_str seen, const char *word, size_t word_bytes, bool *ret_whole)
{
    size_t n = seen.n < word_bytes ? seen.n : word_bytes;
    *ret_whole = seen.n >= word_bytes;
    return memcmp(seen.p, word, n) == 0;
}

/* design: the one port. A store's command codes end at 18, so no letter is one of them; which of
 * them make sense as a first one is the store's business. */
static enum caller caller_of(struct mu_str seen)
{
    static const struct {
        const char *word;
        enum caller who;
    } words[] = {{CTL_GREETING, CALLER_AGENT}, {"GET ", CALLER_HTTP}, {"HEAD", CALLER_HTTP},
                 {"POST", CALLER_HTTP},        {"PUT ", CALLER_HTTP}, {"DELE", CALLER_HTTP},
                 {"OPTI", CALLER_HTTP},        {"PATC", CALLER_HTTP}, {"TRAC", CALLER_HTTP},
                 {"\x16\x03", CALLER_TLS}};
    if ((unsigned char)seen.p[0] < STORE_COMMAND_COUNT)
        return CALLER_STORE;
    enum caller found = CALLER_STRANGER;
    for (size_t i = 0; i < MU_COUNT(words); i++) {
        bool whole = false;
        if (!may_be(seen, words[i].word, strlen(words[i].word), &whole))
            continue;
        if (whole)
            return words[i].who;
        found = CALLER_UNKNOWN;
    }
    return found;
}

/* The alert protocol_version (RFC 8446, 6.2), so that the caller says what is wrong, and not that
 * the connection broke. */
static void answer_tls(struct conn *c)
{
    static const unsigned char alert[] = {0x15, 0x03, 0x01, 0x00, 0x02, 0x02, 70};
    (void)recv(c->watch.fd, c->srv->scratch, SRV_SCRATCH_BYTES, MSG_DONTWAIT); /* Else: a reset. */
    (void)send(c->watch.fd, alert, sizeof alert, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void dispatch(struct conn *c, struct mu_str seen)
{
    unsigned services = c->srv->config.services;
    const char *why = "neither a store client, an agent nor HTTP";
    switch (caller_of(seen)) {
    case CALLER_UNKNOWN:
        if (c->hung_up)
            conn_close(c); /* Nobody is left to say the rest. */
        return;
    case CALLER_STORE: {
        struct srv_caller who = {.local = srv_is_local(&c->addr)};
        why = (services & SRV_STORE) != 0 ? srv_denies(c->srv, SRV_STORES, who)
                                          : "the store is not served here";
        if (why == NULL) {
            client_open(c);
            return;
        }
        break;
    }
    case CALLER_AGENT:
        if ((services & SRV_AGENTS) != 0) {
            agent_open(c);
            return;
        }
        why = "agents are not served here";
        break;
    case CALLER_HTTP:
        if ((services & SRV_HTTP) != 0) {
            http_take(c);
            return;
        }
        why = "HTTP is not served here";
        break;
    case CALLER_TLS:
        why =
            "TLS is not served here: use http:// and no TLS, or a tunnel where the network is not "
            "to be trusted";
        answer_tls(c);
        break;
    case CALLER_STRANGER:
        break;
    }
    log_stranger(c, MU_WARN, why, seen);
    conn_close(c);
}

static void first_readable(struct conn *c)
{
    char seen[CTL_GREETING_BYTES];
    ssize_t n = recv(c->watch.fd, seen, sizeof seen, MSG_PEEK);
    if (n < 0 && errno == EAGAIN)
        return;
    if (n <= 0) {
        conn_close(c); /* Came and went: a port scanner, or the twin of a client that ended. */
        return;
    }
    if (c->kind == CONN_PARKED) {
        leave_host(c);
        c->kind = CONN_NEW;
        conn_move(c, LIST_FRESH);
    }
    dispatch(c, mu_str_of(seen, (size_t)n));
}

static void readable(struct conn *c)
{
    switch ((enum conn_kind)c->kind) {
    case CONN_NEW:
    case CONN_PARKED:
        first_readable(c);
        break;
    case CONN_STORE:
        client_readable(c);
        break;
    case CONN_AGENT:
        agent_readable(c);
        break;
    case CONN_CLOSED:
        break;
    }
}

/* When the peer is gone, what it said before, a goodbye for instance, is still there to be read;
 * recv() gives the end or the error behind it. */
static void on_ready(struct watch *w, uint32_t events)
{
    struct conn *c = (struct conn *)w; /* Its first member. */
    if ((events & (EPOLLERR | EPOLLHUP | EPOLLRDHUP)) != 0)
        c->hung_up = true;
    if (c->kind == CONN_STORE && c->ending && (events & (EPOLLERR | EPOLLHUP)) != 0) {
        conn_close(c); /* Nobody reads the rest. */
        return;
    }
    if (c->kind == CONN_STORE && (events & EPOLLOUT) != 0)
        client_writable(c);
    if (c->kind == CONN_AGENT && (events & EPOLLOUT) != 0)
        agent_writable(c);
    if ((events & EPOLLIN) != 0 || c->hung_up)
        readable(c);
}
