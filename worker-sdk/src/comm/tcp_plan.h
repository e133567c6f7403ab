/* What a rank does in an operation, worked out beforehand: pure, knows no socket.
 *
 * Small operations are a list of steps: send a range to a peer, then take in a range from a peer.
 * Large ones run round the ring: chunks go from each rank to the next, and what arrives is added
 * up, or kept, and passed on at once. */
#ifndef MUSTER_SDK_TCP_PLAN_H
#define MUSTER_SDK_TCP_PLAN_H

#include "worker-sdk/src/comm/comm.h"

struct plan_range {
    size_t offset; /* Bytes from the plan's base. */
    size_t bytes;
};

enum plan_take {
    PLAN_KEEP,     /* Copy what came. */
    PLAN_FOLD,     /* ret = mine op theirs */
    PLAN_FOLD_REV, /* ret = theirs op mine: the lower rank's value always stands first */
};

struct plan_step {
    int64_t to; /* Rank; -1: nobody. */
    int64_t from;
    struct plan_range send;
    struct plan_range recv;
    enum plan_take take;
    bool is_ahead; /* Needs nothing of the steps before it: may be sent before they are done. */
};

/* Doubling takes log2 of the world's size, a broadcast's root sends that often; 2 more to fold. */
#define PLAN_STEPS_MAX 36

struct plan_steps {
    struct plan_step step[PLAN_STEPS_MAX];
    size_t count;
};

/* Where the bytes lie that the steps talk of. */
enum plan_base {
    PLAN_BASE_RECV,
    PLAN_BASE_SEND,
    PLAN_BASE_SCRATCH /* All parts, this rank's first, then those of the ranks above it. */
};

/* All-reduce: recursive doubling; ranks beyond a power of 2 hand their part to a neighbour first.
 * Reduce-scatter: the same, of which a rank keeps its part. Broadcast: a binomial tree. All-gather:
 * Bruck's. Barrier: dissemination. */
void plan_steps(const struct comm_work *w,
                uint32_t rank,
                uint32_t size,
                struct plan_steps *ret,
                enum plan_base *ret_base);

/* An all-reduce of two ranks, of any size, over a stream that takes any: each sends all it has, and
 * adds the same halves in the same order as the ring does. */
void plan_exchange(const struct comm_work *w, uint32_t rank, struct plan_steps *ret);

/* Bytes of the largest message of the plan. */
size_t plan_largest(const struct comm_work *w, uint32_t size);

/* Round the ring. Chunk of the s-th send: (first - s) modulo chunks; the s-th receive is of the
 * chunk that send s+1 passes on. */
struct plan_ring {
    uint32_t chunks;
    uint32_t first;
    uint32_t send_begin, send_end; /* Steps that this rank sends; 0 waits for nothing. */
    uint32_t recv_end;             /* It receives steps 0 .. recv_end-1; */
    uint32_t reduce_end;           /* of these, 0 .. reduce_end-1 are added up. */
    enum plan_base base;
    size_t element_bytes;
    size_t even; /* Elements of each chunk; */
    size_t odd;  /* the first `odd` chunks have one more. */
};
void plan_ring(const struct comm_work *w, uint32_t rank, uint32_t size, struct plan_ring *ret);
uint32_t plan_ring_chunk(const struct plan_ring *p, uint32_t send_step);
struct plan_range plan_ring_range(const struct plan_ring *p, uint32_t chunk);

#endif
