/* An operation as chunks round the ring: to the next rank and from the previous one, through memory
 * where it is shared, else over the bulk sockets. */
#include "worker-sdk/src/comm/tcp.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "worker-sdk/src/comm/tcp_reduce.h"

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
    struct shm *memory = tcp_memory(c, next_rank(c));
    if (memory != NULL)
        return tcp_put(c, next_rank(c), memory, v[1].iov_base, v[1].iov_len, ready == range.bytes);
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
    tcp_reduce(mine, c->scratch, mine, count, w->dtype, c->run.op);
    r->recv_offset += whole;
    r->carry = have - whole;
    memmove(c->scratch, c->scratch + whole, r->carry);
}

/* The same through memory, of a chunk of which `left` bytes are to come. */
static size_t
look(struct tcp *c, struct shm *memory, const struct comm_work *w, uint8_t *chunk, size_t left)
{
    struct tcp_run *r = &c->run;
    size_t n = 0, head = r->recv_head;
    const void *p = tcp_look(c, previous_rank(c), memory, &n);
    uint8_t *mine = chunk + r->recv_offset;
    if (p == NULL || c->failed)
        return c->failed ? 0 : r->recv_head - head;
    n = n < left ? n : left;
    if (r->recv_step < r->plan.reduce_end)
        tcp_reduce(mine, p, mine, n / r->plan.element_bytes, w->dtype, c->run.op);
    else
        memcpy(mine, p, n);
    tcp_take(c, previous_rank(c), memory, n, n == left);
    return n;
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
    struct shm *memory = tcp_memory(c, previous_rank(c));
    if (memory != NULL)
        return look(c, memory, w, r->base + range.offset, range.bytes - r->recv_offset);
    if (r->recv_head < sizeof r->peer_head) {
        ssize_t n =
            receive(c, (uint8_t *)&r->peer_head + r->recv_head, sizeof r->peer_head - r->recv_head);
        r->recv_head += (size_t)n;
        if (n > 0 && r->recv_head == sizeof r->peer_head)
            (void)tcp_is_same(c, previous_rank(c), &r->peer_head); /* Else it has failed. */
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

enum tcp_run_result tcp_run_ring(struct tcp *c, const struct comm_work *w)
{
    struct tcp_run *r = &c->run;
    r->blocked_in = r->blocked_out = false;
    for (size_t moved = 0; moved < TCP_BURST_BYTES;) {
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
