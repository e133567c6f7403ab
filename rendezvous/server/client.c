/* A connection of the store: bytes in, bytes out. What they mean is rendezvous/store's business. */
#include <errno.h>
#include <string.h>
#include <sys/uio.h>

#include "rendezvous/server/internal.h"

/* Pieces of one write. A large value is one piece. */
#define PIECES 32

/* Of an answer beyond LARGE_BYTES the first FIRST_BYTES go out alone: they wake whoever waits for
 * it, and what it reads meanwhile needs not be waited for in the end. A GET of 1 MiB takes 0.88 of
 * the time that one call for all of it takes; with 8 KiB first, or 64 KiB each time, 0.91. */
#define FIRST_BYTES (64 * 1024)
#define LARGE_BYTES (256 * 1024)

void client_open(struct conn *c)
{
    struct store_client *client = store_client_new(c->srv->store, c);
    if (client == NULL) {
        conn_close(c);
        return;
    }
    c->kind = CONN_STORE;
    c->u.client = client;
    srv_no_agent(c->srv, c->watch.fd);
    client_readable(c); /* The bytes that told who it is are there. */
}

static void log_verdict(struct conn *c, enum store_verdict v)
{
    struct srv *s = c->srv;
    char peer[MU_ADDR_BYTES];
    uint32_t left_out = 0;
    if (mu_log_allowed(&s->log_store, s->now_ns, SRV_LOG_BURST, &left_out))
        mu_log(MU_WARN, "store.closed", "peer=%s reason=\"%s\" left_out=%u", conn_peer(c, peer),
               store_verdict_text(v), left_out);
}

/* A first whole word was understood: no time-out any more, and its dialect is known. */
static void settle_once(struct conn *c)
{
    if (c->list != LIST_FRESH || !store_client_has_spoken(c->u.client))
        return;
    conn_move(c, LIST_SETTLED);
    if (store_client_is_legacy(c->u.client))
        conn_count_legacy(c);
}

void client_readable(struct conn *c)
{
    struct srv *s = c->srv;
    size_t taken = 0;
    while (!c->ending && taken < SRV_READ_BYTES_PER_TURN) {
        void *p = NULL;
        size_t room = 0;
        store_client_space(c->u.client, &p, &room);
        if (p == NULL) {
            p = s->scratch;
            room = SRV_SCRATCH_BYTES;
        }
        ssize_t n = recv(c->watch.fd, p, room, 0);
        if (n < 0 && errno == EAGAIN)
            return;
        if (n <= 0) {
            conn_close(c);
            return;
        }
        /* A verdict is carried out with the output: store_take_ready() gives this client too. */
        enum store_verdict v = store_client_feed(c->u.client, p, (size_t)n);
        settle_once(c);
        if (v != STORE_OK)
            return;
        taken += (size_t)n;
        if ((size_t)n < room)
            break;
    }
    if (c->hung_up || taken >= SRV_READ_BYTES_PER_TURN)
        watch_again(s, &c->watch); /* After the answers. */
}

/* Returns how many of the pieces come first, the last of them cut. */
static size_t cut(struct store_piece *pieces, size_t count)
{
    size_t left = FIRST_BYTES;
    for (size_t i = 0; i < count; i++) {
        if (pieces[i].n >= left) {
            pieces[i].n = left;
            return i + 1;
        }
        left -= pieces[i].n;
    }
    return count;
}

/* Returns 0: all is out; 1: the peer must read first; or a negative errno. */
static int write_pending(struct conn *c)
{
    struct store_piece pieces[PIECES];
    bool large = store_client_pending(c->u.client) > LARGE_BYTES;
    for (;; large = false) {
        struct iovec iov[PIECES];
        size_t count = store_client_output(c->u.client, pieces, PIECES);
        if (count == 0)
            return 0;
        if (large)
            count = cut(pieces, count);
        for (size_t i = 0; i < count; i++) {
            union {
                const void *in;
                void *out;
            } base = {.in = pieces[i].p}; /* sendmsg() only reads it. */
            iov[i] = (struct iovec){.iov_base = base.out, .iov_len = pieces[i].n};
        }
        struct msghdr m = {.msg_iov = iov, .msg_iovlen = count};
        ssize_t n = count == 1
                        ? send(c->watch.fd, pieces[0].p, pieces[0].n, MSG_NOSIGNAL | MSG_DONTWAIT)
                        : sendmsg(c->watch.fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n >= 0)
            store_client_sent(c->u.client, (size_t)n);
        else if (errno == EAGAIN)
            return 1;
        else if (errno != EINTR)
            return -errno;
    }
}

/* Output first, then the verdict. A client that is to be closed is not read from any more. */
static void serve(struct conn *c)
{
    enum store_verdict v = store_client_verdict(c->u.client);
    if (v != STORE_OK && !c->ending) {
        log_verdict(c, v);
        c->ending = true;
    }
    int r = v == STORE_READS_TOO_SLOWLY || v == STORE_NO_MEMORY ? -EPIPE : write_pending(c);
    if (r < 0 || (r == 0 && c->ending))
        conn_close(c);
    else
        watch_change(c->srv, &c->watch, (r == 1 ? WATCH_OUT : 0) | (c->ending ? 0 : WATCH_IN));
}

void client_writable(struct conn *c)
{
    serve(c);
}

void client_flush_ready(struct srv *s)
{
    struct store_client *client = NULL;
    while (s->store != NULL && (client = store_take_ready(s->store)) != NULL)
        serve(store_client_owner(client));
}
