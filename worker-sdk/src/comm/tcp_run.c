/* Carries out the operation at the head of the queue: steps over the mesh (tcp_step.c), or chunks
 * round the ring (tcp_ring.c). Never waits; tcp.c comes back when a peer has moved. */
#include "worker-sdk/src/comm/tcp.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "worker-sdk/src/comm/tcp_reduce.h"

/* Up to here log2(N) whole messages beat 2(N-1) parts; measured with bench/run comm. */
#define SMALL_BYTES_OF_TWO ((size_t)32 << 10)
#define SMALL_BYTES ((size_t)16 << 10)
/* Bytes that go into, or out of, shared memory before the peer sees them: while it works on some,
 * the next are copied, and what was copied is still in the cache. */
#define PIECE_BYTES ((size_t)32 << 10)

const char *tcp_kind_name(enum comm_kind k)
{
    switch (k) {
    case COMM_ALL_REDUCE:
        return "all_reduce";
    case COMM_BROADCAST:
        return "broadcast";
    case COMM_ALL_GATHER:
        return "all_gather";
    case COMM_REDUCE_SCATTER:
        return "reduce_scatter";
    case COMM_BARRIER:
        return "barrier";
    }
    return "unknown operation";
}

bool tcp_is_small(const struct tcp *c, const struct comm_work *w)
{
    return plan_largest(w, c->f.size) <= (c->f.size == 2 ? SMALL_BYTES_OF_TWO : SMALL_BYTES);
}

static uint8_t *base_of(const struct tcp *c, const struct comm_work *w, enum plan_base base)
{
    switch (base) {
    case PLAN_BASE_RECV:
        return w->recv;
    case PLAN_BASE_SEND:
        return w->send;
    case PLAN_BASE_SCRATCH:
        return c->scratch;
    }
    return NULL;
}

/* Two ranks that share memory have nothing to gain from a ring. */
static bool is_exchange(const struct tcp *c, const struct comm_work *w)
{
    return c->f.size == 2 && w->kind == COMM_ALL_REDUCE && !tcp_is_small(c, w) &&
           tcp_memory(c, 1 - c->f.rank) != NULL;
}

static void begin(struct tcp *c, const struct comm_work *w)
{
    struct tcp_run *r = &c->run;
    size_t bytes = w->count * muster_dtype_bytes(w->dtype);
    enum plan_base base = PLAN_BASE_RECV;
    bool exchange = is_exchange(c, w);
    r->begun = true;
    /* Two that share memory divide as they add up; else each divides its part before. */
    r->op = exchange && w->mean ? TCP_MEAN_OF_TWO : w->op;
    if (w->mean && r->op != TCP_MEAN_OF_TWO)
        tcp_divide(w->recv, w->count, w->dtype, c->f.size);
    r->ring = !exchange && !tcp_is_small(c, w);
    r->head = (struct link_head){.type = LINK_DATA,
                                 .kind = (uint8_t)w->kind,
                                 .dtype = (uint8_t)w->dtype,
                                 .op = (uint8_t)r->op,
                                 .root = w->root,
                                 .ticket = c->done + 1,
                                 .count = w->count};
    r->send_step = r->recv_step = 0;
    r->send_offset = r->recv_offset = r->send_head = r->recv_head = r->carry = 0;
    r->blocked_in = r->blocked_out = false;
    if (r->ring) {
        plan_ring(w, c->f.rank, c->f.size, &r->plan);
        base = r->plan.base;
        r->send_step = r->plan.send_begin;
    } else if (exchange) {
        plan_exchange(w, c->f.rank, &r->steps);
    } else {
        plan_steps(w, c->f.rank, c->f.size, &r->steps, &base);
    }
    r->base = base_of(c, w, base);
    if (w->kind == COMM_ALL_GATHER && bytes > 0) {
        uint8_t *own = base == PLAN_BASE_SCRATCH ? c->scratch : r->base + c->f.rank * bytes;
        if (own != w->send)
            memmove(own, w->send, bytes);
    }
}

/* The result, where it does not lie in its place already. */
static void finish(struct tcp *c, const struct comm_work *w)
{
    size_t bytes = w->count * muster_dtype_bytes(w->dtype);
    uint32_t rank = c->f.rank, size = c->f.size;
    c->run.begun = false;
    if (bytes == 0)
        return;
    if (w->kind == COMM_REDUCE_SCATTER && w->recv != (uint8_t *)w->send + rank * bytes)
        memmove(w->recv, (uint8_t *)w->send + rank * bytes, bytes);
    if (w->kind == COMM_ALL_GATHER && !c->run.ring) {
        memcpy((uint8_t *)w->recv + rank * bytes, c->scratch, (size - rank) * bytes);
        memcpy(w->recv, c->scratch + (size - rank) * bytes, rank * bytes);
    }
}

/* "all_reduce(100 f32, sum)", "broadcast(8 i64, from rank 2)". A peer's numbers may be none. */
static const char *describe(const struct link_head *h, char *ret, size_t cap)
{
    static const char *const types[] = {[MUSTER_U8] = "u8",
                                        [MUSTER_I32] = "i32",
                                        [MUSTER_I64] = "i64",
                                        [MUSTER_F32] = "f32",
                                        [MUSTER_F64] = "f64"};
    static const char *const ops[] = {[MUSTER_SUM] = "sum",
                                      [MUSTER_MIN] = "min",
                                      [MUSTER_MAX] = "max",
                                      [TCP_MEAN_OF_TWO] = "mean"};
    const char *type = h->dtype < MU_COUNT(types) ? types[h->dtype] : "of no known type";
    const char *op = h->op < MU_COUNT(ops) ? ops[h->op] : "no known operation";
    const char *name = tcp_kind_name((enum comm_kind)h->kind);
    unsigned long long count = h->count;
    if (h->kind == COMM_ALL_REDUCE || h->kind == COMM_REDUCE_SCATTER)
        (void)snprintf(ret, cap, "%s(%llu %s, %s)", name, count, type, op);
    else if (h->kind == COMM_BROADCAST)
        (void)snprintf(ret, cap, "%s(%llu %s, from rank %u)", name, count, type, h->root);
    else if (h->kind == COMM_ALL_GATHER)
        (void)snprintf(ret, cap, "%s(%llu %s)", name, count, type);
    else
        (void)snprintf(ret, cap, "%s", name);
    return ret;
}

/* Ranks that ask for different things would wait for each other, or mix up bytes. */
bool tcp_is_same(struct tcp *c, uint32_t peer, const struct link_head *theirs)
{
    const struct link_head *mine = &c->run.head;
    if (theirs->ticket == mine->ticket && theirs->kind == mine->kind &&
        theirs->count == mine->count && theirs->dtype == mine->dtype && theirs->op == mine->op &&
        theirs->root == mine->root)
        return true;
    char ours[96];
    char other[96];
    tcp_fail_peer(c, peer, -EPROTO, MUSTER_PHASE_RECEIVE,
                  "operation %llu is %s on rank %u, but %s on rank %u: call the same on all ranks",
                  (unsigned long long)mine->ticket, describe(mine, ours, sizeof ours), c->f.rank,
                  describe(theirs, other, sizeof other), peer);
    return false;
}

/* Of a stream that the ring reads, the next bytes are no head. */
static bool is_mid_stream(const struct tcp *c, uint32_t peer)
{
    return (peer + 1) % c->f.size == c->f.rank;
}

void tcp_run_check(struct tcp *c, uint32_t peer)
{
    const void *payload = NULL;
    if (!c->run.begun || !c->run.ring)
        return;
    const struct link_head *h = link_front(&c->links[peer], &payload);
    struct shm *memory = tcp_memory(c, peer);
    struct link_head copy;
    size_t n = 0;
    if (memory != NULL && !is_mid_stream(c, peer) && (payload = shm_peek(memory, &n)) != NULL &&
        n >= sizeof copy) {
        memcpy(&copy, payload, sizeof copy);
        h = &copy;
    }
    if (h != NULL && h->ticket <= c->run.head.ticket)
        (void)tcp_is_same(c, peer, h);
}

/* --- through shared memory --- */

struct shm *tcp_memory(const struct tcp *c, uint32_t peer)
{
    struct shm *s = c->f.memory != NULL ? &c->f.memory[peer] : NULL;
    return s != NULL && s->at != NULL ? s : NULL;
}

void tcp_wake(struct tcp *c, uint32_t peer)
{
    struct link_head head = {.type = LINK_WAKE};
    if (c->links[peer].out.n == 0) /* Else something is under way that wakes it as well. */
        (void)link_send(&c->links[peer], &head, NULL); /* Without memory it is late. */
}

/* Its sums would be wrong, and its next counters as well. */
static void check_counters(struct tcp *c, uint32_t peer, const struct shm *s)
{
    char where[96];
    if (s->broken)
        tcp_fail_peer(c, peer, -EPROTO, MUSTER_PHASE_RECEIVE,
                      "%s wrote into the memory it shares with rank %u what cannot be: use one "
                      "version of muster on all ranks",
                      tcp_where(c, peer, where, sizeof where), c->f.rank);
}

size_t tcp_put(struct tcp *c, uint32_t peer, struct shm *s, const void *p, size_t n, bool is_end)
{
    struct tcp_run *r = &c->run;
    size_t piece = n < PIECE_BYTES ? n : PIECE_BYTES, moved = 0, head = 0;
    if (r->send_head < sizeof r->head)
        head = shm_write(s, &r->head, sizeof r->head, true);
    r->send_head += head;
    if (piece > 0 && r->send_head == sizeof r->head)
        moved = shm_write(s, p, piece, is_end && piece == n);
    r->send_offset += moved;
    if (shm_publish(s))
        tcp_wake(c, peer);
    check_counters(c, peer, s);
    return head + moved;
}

static void release(struct tcp *c, uint32_t peer, struct shm *s)
{
    if (shm_release(s))
        tcp_wake(c, peer);
}

const void *tcp_look(struct tcp *c, uint32_t peer, struct shm *s, size_t *ret_n)
{
    struct tcp_run *r = &c->run;
    size_t n = 0;
    const void *p = shm_peek(s, &n);
    check_counters(c, peer, s);
    if (p == NULL)
        return NULL;
    if (r->recv_head == 0) {
        memcpy(&r->peer_head, p, sizeof r->peer_head); /* A unit: it is whole. */
        r->recv_head = sizeof r->peer_head;
        shm_take(s, sizeof r->peer_head, true);
        if (!tcp_is_same(c, peer, &r->peer_head))
            return NULL;
        p = shm_peek(s, &n);
        if (p == NULL || r->peer_head.count == 0)
            release(c, peer, s);
    }
    *ret_n = n < PIECE_BYTES ? n : PIECE_BYTES;
    return p;
}

void tcp_take(struct tcp *c, uint32_t peer, struct shm *s, size_t n, bool is_end)
{
    shm_take(s, n, is_end);
    c->run.recv_offset += n;
    release(c, peer, s);
}

/* --- all --- */

enum tcp_run_result tcp_run(struct tcp *c, const struct comm_work *w)
{
    if (!c->run.begun)
        begin(c, w);
    enum tcp_run_result result = c->run.ring ? tcp_run_ring(c, w) : tcp_run_steps(c, w);
    if (result == TCP_RUN_DONE)
        finish(c, w);
    return result;
}

int64_t tcp_run_awaits_data(const struct tcp *c)
{
    const struct tcp_run *r = &c->run;
    if (!r->begun)
        return -1;
    if (r->ring)
        return r->recv_step < r->plan.recv_end ? (int64_t)((c->f.rank + c->f.size - 1) % c->f.size)
                                               : -1;
    return r->recv_step < r->steps.count ? r->steps.step[r->recv_step].from : -1;
}

int64_t tcp_run_awaits_room(const struct tcp *c)
{
    const struct tcp_run *r = &c->run;
    if (!r->begun)
        return -1;
    if (r->ring)
        return r->send_step < r->plan.send_end ? (int64_t)((c->f.rank + 1) % c->f.size) : -1;
    return r->send_step < r->steps.count ? r->steps.step[r->send_step].to : -1;
}

int64_t tcp_run_awaits(const struct tcp *c)
{
    int64_t peer = tcp_run_awaits_data(c);
    return peer >= 0 ? peer : tcp_run_awaits_room(c);
}
