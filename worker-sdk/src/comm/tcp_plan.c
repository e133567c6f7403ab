/* The algorithms, as lists of who sends what to whom; see tcp_plan.h. */
#include "worker-sdk/src/comm/tcp_plan.h"

#include "base/check.h"

static struct plan_step *add(struct plan_steps *p)
{
    MU_ASSERT(p->count < PLAN_STEPS_MAX);
    struct plan_step *s = &p->step[p->count++];
    *s = (struct plan_step){.to = -1, .from = -1};
    return s;
}

static void add_send(struct plan_steps *p, uint32_t to, struct plan_range r)
{
    struct plan_step *s = add(p);
    s->to = to;
    s->send = r;
}

static void add_recv(struct plan_steps *p, uint32_t from, struct plan_range r, enum plan_take take)
{
    struct plan_step *s = add(p);
    s->from = from;
    s->recv = r;
    s->take = take;
}

/* Recursive doubling over the largest power of 2. Of the first 2*extra ranks, each even one gives
 * its part to the odd one above and gets the result from it; so blocks that are combined are always
 * neighbours, the lower one first, and each rank computes the same expression. */
static void
all_reduce_steps(struct plan_steps *p, uint32_t rank, uint32_t size, struct plan_range all)
{
    uint32_t power = 1;
    while (power * 2 <= size)
        power *= 2;
    uint32_t extra = size - power;
    bool folded = rank < 2 * extra;
    if (folded && rank % 2 == 0) {
        add_send(p, rank + 1, all);
        add_recv(p, rank + 1, all, PLAN_KEEP);
        return;
    }
    if (folded)
        add_recv(p, rank - 1, all, PLAN_FOLD_REV);
    uint32_t mine = folded ? rank / 2 : rank - extra;
    for (uint32_t bit = 1; bit < power; bit *= 2) {
        uint32_t other = mine ^ bit;
        struct plan_step *s = add(p);
        s->to = s->from = other < extra ? other * 2 + 1 : other + extra;
        s->send = s->recv = all;
        s->take = other < mine ? PLAN_FOLD_REV : PLAN_FOLD;
    }
    if (folded)
        add_send(p, rank - 1, all);
}

/* A binomial tree: a rank's distance from the root, without its highest bit, is its parent's. */
static void broadcast_steps(
    struct plan_steps *p, uint32_t rank, uint32_t size, uint32_t root, struct plan_range all)
{
    uint32_t far = (rank + size - root) % size, bit = 1;
    while (bit <= far)
        bit *= 2;
    if (far > 0)
        add_recv(p, (far - bit / 2 + root) % size, all, PLAN_KEEP);
    for (; far + bit < size; bit *= 2)
        add_send(p, (far + bit + root) % size, all);
}

/* Bruck: with 2^k parts gathered, get 2^k more from the rank 2^k above. */
static void all_gather_steps(struct plan_steps *p, uint32_t rank, uint32_t size, size_t part)
{
    for (uint32_t have = 1; have < size; have *= 2) {
        uint32_t more = size - have < have ? size - have : have;
        struct plan_step *s = add(p);
        s->to = (rank + size - have) % size;
        s->from = (rank + have) % size;
        s->send = (struct plan_range){0, more * part};
        s->recv = (struct plan_range){have * part, more * part};
        s->take = PLAN_KEEP;
    }
}

static void barrier_steps(struct plan_steps *p, uint32_t rank, uint32_t size)
{
    for (uint32_t far = 1; far < size; far *= 2) {
        struct plan_step *s = add(p);
        s->to = (rank + far) % size;
        s->from = (rank + size - far) % size;
    }
}

void plan_steps(const struct comm_work *w,
                uint32_t rank,
                uint32_t size,
                struct plan_steps *ret,
                enum plan_base *ret_base)
{
    size_t bytes = w->count * muster_dtype_bytes(w->dtype);
    ret->count = 0;
    *ret_base = PLAN_BASE_RECV;
    switch (w->kind) {
    case COMM_ALL_REDUCE:
        all_reduce_steps(ret, rank, size, (struct plan_range){0, bytes});
        break;
    case COMM_REDUCE_SCATTER:
        *ret_base = PLAN_BASE_SEND;
        all_reduce_steps(ret, rank, size, (struct plan_range){0, size * bytes});
        break;
    case COMM_BROADCAST:
        broadcast_steps(ret, rank, size, w->root, (struct plan_range){0, bytes});
        break;
    case COMM_ALL_GATHER:
        *ret_base = PLAN_BASE_SCRATCH;
        all_gather_steps(ret, rank, size, bytes);
        break;
    case COMM_BARRIER:
        barrier_steps(ret, rank, size);
        break;
    }
}

void plan_exchange(const struct comm_work *w, uint32_t rank, struct plan_steps *ret)
{
    struct plan_ring ring;
    plan_ring(w, rank, 2, &ring);
    ret->count = 0;
    for (uint32_t chunk = 0; chunk < 2; chunk++) { /* It sets out from the rank of its number. */
        struct plan_step *s = add(ret);
        s->to = s->from = 1 - rank;
        s->send = s->recv = plan_ring_range(&ring, chunk);
        s->take = chunk == rank ? PLAN_FOLD : PLAN_FOLD_REV;
        s->is_ahead = true;
    }
}

size_t plan_largest(const struct comm_work *w, uint32_t size)
{
    size_t bytes = w->count * muster_dtype_bytes(w->dtype);
    switch (w->kind) {
    case COMM_ALL_REDUCE:
    case COMM_BROADCAST:
        return bytes;
    case COMM_REDUCE_SCATTER:
    case COMM_ALL_GATHER:
        return size * bytes;
    case COMM_BARRIER:
        return 0;
    }
    return 0;
}

/* --- the ring --- */

static void one_chunk(const struct comm_work *w, uint32_t rank, uint32_t size, struct plan_ring *p)
{
    uint32_t far = (rank + size - w->root) % size; /* From the root, in the direction of travel. */
    p->chunks = 1;
    p->even = w->count;
    p->recv_end = far > 0 ? 1 : 0;
    p->send_begin = p->recv_end;
    p->send_end = p->send_begin + (far + 1 < size ? 1 : 0);
}

void plan_ring(const struct comm_work *w, uint32_t rank, uint32_t size, struct plan_ring *ret)
{
    struct plan_ring p = {.chunks = size,
                          .first = rank,
                          .send_end = size - 1,
                          .recv_end = size - 1,
                          .element_bytes = muster_dtype_bytes(w->dtype),
                          .even = w->count};
    switch (w->kind) {
    case COMM_ALL_REDUCE: /* Each chunk is complete after size-1 steps, everywhere after as many. */
        p.send_end = p.recv_end = 2 * (size - 1);
        p.reduce_end = size - 1;
        p.even = w->count / size;
        p.odd = w->count % size;
        break;
    case COMM_REDUCE_SCATTER: /* One chunk earlier, so that a rank's own is complete last, here. */
        p.base = PLAN_BASE_SEND;
        p.first = (rank + size - 1) % size;
        p.reduce_end = size - 1;
        break;
    case COMM_ALL_GATHER:
        break;
    case COMM_BROADCAST:
        one_chunk(w, rank, size, &p);
        break;
    case COMM_BARRIER:
        MU_ASSERT(!"a barrier has no bytes");
    }
    *ret = p;
}

uint32_t plan_ring_chunk(const struct plan_ring *p, uint32_t send_step)
{
    return (p->first + 2 * p->chunks - send_step % p->chunks) % p->chunks;
}

struct plan_range plan_ring_range(const struct plan_ring *p, uint32_t chunk)
{
    size_t before = chunk * p->even + (chunk < p->odd ? chunk : p->odd);
    size_t count = p->even + (chunk < p->odd ? 1 : 0);
    return (struct plan_range){before * p->element_bytes, count * p->element_bytes};
}
