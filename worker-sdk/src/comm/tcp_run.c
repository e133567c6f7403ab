/* Carries out the operation at the head of the queue: steps over the mesh, or chunks round the
 * ring. Never waits; tcp.c comes back when a socket is ready. */
#include "worker-sdk/src/comm/tcp.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "worker-sdk/src/comm/tcp_reduce.h"

/* Up to here log2(N) whole messages beat 2(N-1) parts; measured with bench/run comm. */
#define SMALL_BYTES_OF_TWO ((size_t)32 << 10)
#define SMALL_BYTES ((size_t)16 << 10)
/* Bytes moved before the lock is offered to others. */
#define BURST_BYTES ((size_t)512 << 10)

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

static void begin(struct tcp *c, const struct comm_work *w)
{
    struct tcp_run *r = &c->run;
    size_t bytes = w->count * muster_dtype_bytes(w->dtype);
    enum plan_base base = PLAN_BASE_RECV;
    r->begun = true;
    r->ring = !tcp_is_small(c, w);
    r->head = (struct link_head){.type = LINK_DATA,
                                 .kind = (uint8_t)w->kind,
                                 .dtype = (uint8_t)w->dtype,
                                 .op = (uint8_t)w->op,
                                 .root = w->root,
                                 .ticket = c->done + 1,
                                 .count = w->count};
    r->step = 0;
    r->sent = false;
    r->send_step = r->recv_step = 0;
    r->send_offset = r->recv_offset = r->send_head = r->recv_head = r->carry = 0;
    r->blocked_in = r->blocked_out = false;
    if (r->ring) {
        plan_ring(w, c->f.rank, c->f.size, &r->plan);
        base = r->plan.base;
        r->send_step = r->plan.send_begin;
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
    static const char *const ops[] = {
        [MUSTER_SUM] = "sum", [MUSTER_MIN] = "min", [MUSTER_MAX] = "max"};
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
static bool is_same(struct tcp *c, uint32_t peer, const struct link_head *theirs)
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

void tcp_run_check(struct tcp *c, uint32_t peer)
{
    const void *payload = NULL;
    const struct link_head *h = NULL;
    if (c->run.begun && c->run.ring && (h = link_front(&c->links[peer], &payload)) != NULL &&
        h->ticket <= c->run.head.ticket)
        (void)is_same(c, peer, h);
}

/* --- over the mesh --- */

static void take(struct tcp *c, const struct plan_step *s, const struct comm_work *w, const void *p)
{
    uint8_t *mine = c->run.base + s->recv.offset;
    size_t count = s->recv.bytes / muster_dtype_bytes(w->dtype);
    switch (s->take) {
    case PLAN_KEEP:
        memcpy(mine, p, s->recv.bytes);
        break;
    case PLAN_FOLD:
        tcp_reduce(mine, mine, p, count, w->dtype, w->op);
        break;
    case PLAN_FOLD_REV:
        tcp_reduce(mine, p, mine, count, w->dtype, w->op);
        break;
    }
}

/* True: the step's message came and was taken in. */
static bool receive_step(struct tcp *c, const struct plan_step *s, const struct comm_work *w)
{
    uint32_t from = (uint32_t)s->from;
    struct link *l = &c->links[from];
    const void *payload = NULL;
    const struct link_head *h = link_front(l, &payload);
    if (h == NULL) {
        tcp_hear(c, from, false);
        h = c->failed ? NULL : link_front(l, &payload);
    }
    if (h == NULL || !is_same(c, from, h))
        return false;
    if (h->bytes != link_padded(s->recv.bytes)) {
        tcp_fail_peer(c, from, -EPROTO, MUSTER_PHASE_RECEIVE,
                      "rank %u sent a part of a wrong size: use one version of muster on all ranks",
                      from);
        return false;
    }
    if (s->recv.bytes > 0)
        take(c, s, w, payload);
    link_drop(l);
    return true;
}

static enum tcp_run_result run_steps(struct tcp *c, const struct comm_work *w)
{
    struct tcp_run *r = &c->run;
    for (; r->step < r->steps.count; r->step++) {
        const struct plan_step *s = &r->steps.step[r->step];
        if (s->to >= 0 && !r->sent) {
            r->head.bytes = (uint32_t)s->send.bytes;
            if (link_send(&c->links[s->to], &r->head, r->base + s->send.offset) < 0) {
                tcp_fail_peer(c, c->f.rank, -ENOMEM, MUSTER_PHASE_SEND,
                              "rank %u has no memory left", c->f.rank);
                return TCP_RUN_BLOCKED;
            }
            r->sent = true;
        }
        if (s->from >= 0 && !receive_step(c, s, w))
            return TCP_RUN_BLOCKED;
        r->sent = false;
    }
    return TCP_RUN_DONE;
}

/* --- round the ring --- */

/* How much of the chunk that send_step passes on is there already. */
static size_t sendable(const struct tcp_run *r, size_t chunk_bytes)
{
    if (r->send_step == 0 || r->send_step - 1 >= r->plan.recv_end)
        return chunk_bytes;
    if (r->recv_step >= r->send_step)
        return chunk_bytes;
    return r->recv_step + 1 == r->send_step ? r->recv_offset : 0;
}

static struct plan_range range_of(const struct tcp_run *r, uint32_t send_step)
{
    return plan_ring_range(&r->plan, plan_ring_chunk(&r->plan, send_step));
}

static uint32_t next_rank(const struct tcp *c)
{
    return (c->f.rank + 1) % c->f.size;
}

static uint32_t previous_rank(const struct tcp *c)
{
    return (c->f.rank + c->f.size - 1) % c->f.size;
}

/* Bytes sent; 0: nothing to send now, or no room (then blocked_out). */
static size_t send_some(struct tcp *c)
{
    struct tcp_run *r = &c->run;
    struct plan_range range = {0, 0};
    size_t ready = 0;
    for (;; r->send_step++, r->send_offset = 0) {
        if (r->send_step == r->plan.send_end)
            return 0;
        range = range_of(r, r->send_step);
        ready = sendable(r, range.bytes);
        if (r->send_offset < range.bytes)
            break;
    }
    size_t left_of_head = sizeof r->head - r->send_head;
    struct iovec v[2] = {{(uint8_t *)&r->head + r->send_head, left_of_head},
                         {r->base + range.offset + r->send_offset, ready - r->send_offset}};
    if (v[0].iov_len + v[1].iov_len == 0)
        return 0;
    if (v[1].iov_len > TCP_SCRATCH_BYTES)
        v[1].iov_len = TCP_SCRATCH_BYTES;
    struct msghdr m = {.msg_iov = v, .msg_iovlen = 2};
    ssize_t n = sendmsg(c->f.ring_next, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) {
        r->blocked_out = errno == EAGAIN;
        if (errno != EAGAIN && errno != EINTR)
            tcp_bulk_broke(c, next_rank(c), -errno, MUSTER_PHASE_SEND);
        return 0;
    }
    size_t of_head = (size_t)n < left_of_head ? (size_t)n : left_of_head;
    r->send_head += of_head;
    r->send_offset += (size_t)n - of_head;
    return (size_t)n;
}

static ssize_t receive(struct tcp *c, void *p, size_t n)
{
    ssize_t got = recv(c->f.ring_prev, p, n, MSG_DONTWAIT);
    if (got > 0)
        return got;
    if (got < 0 && errno == EAGAIN)
        c->run.blocked_in = true;
    else if (got == 0 || errno != EINTR)
        tcp_bulk_broke(c, previous_rank(c), got == 0 ? -ECONNRESET : -errno, MUSTER_PHASE_RECEIVE);
    return 0;
}

/* Add what came, behind the carried bytes, to the chunk; a torn element is kept for next time. */
static void reduce_some(struct tcp *c, const struct comm_work *w, uint8_t *chunk, size_t got)
{
    struct tcp_run *r = &c->run;
    size_t have = r->carry + got, element = r->plan.element_bytes;
    size_t count = have / element, whole = count * element;
    uint8_t *mine = chunk + r->recv_offset;
    tcp_reduce(mine, c->scratch, mine, count, w->dtype, w->op);
    r->recv_offset += whole;
    r->carry = have - whole;
    memmove(c->scratch, c->scratch + whole, r->carry);
}

/* Bytes received; 0: nothing is to come, or nothing is there (then blocked_in). */
static size_t receive_some(struct tcp *c, const struct comm_work *w)
{
    struct tcp_run *r = &c->run;
    struct plan_range range = {0, 0};
    for (;; r->recv_step++, r->recv_offset = 0) {
        if (r->recv_step == r->plan.recv_end)
            return 0;
        range = range_of(r, r->recv_step + 1);
        if (r->recv_offset < range.bytes)
            break;
    }
    if (r->recv_head < sizeof r->peer_head) {
        ssize_t n =
            receive(c, (uint8_t *)&r->peer_head + r->recv_head, sizeof r->peer_head - r->recv_head);
        r->recv_head += (size_t)n;
        if (n > 0 && r->recv_head == sizeof r->peer_head)
            (void)is_same(c, previous_rank(c), &r->peer_head); /* Else it has failed. */
        return c->failed ? 0 : (size_t)n;
    }
    size_t left = range.bytes - r->recv_offset;
    uint8_t *chunk = r->base + range.offset;
    if (r->recv_step >= r->plan.reduce_end) {
        ssize_t n =
            receive(c, chunk + r->recv_offset, left < TCP_SCRATCH_BYTES ? left : TCP_SCRATCH_BYTES);
        r->recv_offset += (size_t)n;
        return (size_t)n;
    }
    size_t room = TCP_SCRATCH_BYTES < left ? TCP_SCRATCH_BYTES - r->carry : left - r->carry;
    ssize_t n = receive(c, c->scratch + r->carry, room);
    if (n > 0)
        reduce_some(c, w, chunk, (size_t)n);
    return (size_t)n;
}

static enum tcp_run_result run_ring(struct tcp *c, const struct comm_work *w)
{
    struct tcp_run *r = &c->run;
    r->blocked_in = r->blocked_out = false;
    for (size_t moved = 0; moved < BURST_BYTES;) {
        size_t out = r->blocked_out || c->verdict_ns != 0 ? 0 : send_some(c);
        size_t in = r->blocked_in || c->failed || c->verdict_ns != 0 ? 0 : receive_some(c, w);
        if (c->failed)
            return TCP_RUN_BLOCKED;
        if (out + in == 0) {
            bool all = r->send_step == r->plan.send_end && r->recv_step == r->plan.recv_end;
            return all ? TCP_RUN_DONE : TCP_RUN_BLOCKED;
        }
        moved += out + in;
    }
    return TCP_RUN_MORE;
}

enum tcp_run_result tcp_run(struct tcp *c, const struct comm_work *w)
{
    if (!c->run.begun)
        begin(c, w);
    enum tcp_run_result result = c->run.ring ? run_ring(c, w) : run_steps(c, w);
    if (result == TCP_RUN_DONE)
        finish(c, w);
    return result;
}

int64_t tcp_run_awaits(const struct tcp *c)
{
    const struct tcp_run *r = &c->run;
    if (!r->begun)
        return -1;
    if (!r->ring)
        return r->step < r->steps.count ? r->steps.step[r->step].from : -1;
    return r->recv_step < r->plan.recv_end ? previous_rank(c) : next_rank(c);
}
