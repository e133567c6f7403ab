/* A communicator: collective operations between all ranks of a round.
 *
 * Two backends do the same: "tcp", a ring and recursive doubling over sockets, and through shared
 * memory between ranks of a host, with one thread of its own; "nccl", NCCL opened at run time, on a
 * CUDA stream. All ranks call the same operations in the same order with the same counts; "tcp"
 * refuses what differs with -EPROTO and a sentence.
 *
 * Tickets    Operations that give out a ticket are asynchronous: the buffers belong to the
 *            communicator until the ticket is done or has failed, also when nobody waits for it. A
 *            ticket is a number that grows by one from 1; operations finish in order.
 * Results    are the same bits on every rank. Integers wrap around. MIN and MAX of a NaN give
 *            either operand, the same everywhere. The order in which floats are summed depends on
 *            count and world size, not on the run.
 * Failure    One failure ends the communicator, on all ranks, with one cause, the first: every
 *            ticket not done and every later call returns its code and sentence. A rank that dies
 *            is named by all others within milliseconds. Nothing is repaired: close, and open
 *            another one.
 * Threads    Any thread may call anything but close at any time; calls that begin operations are
 *            to come in the same order on all ranks, so mostly from one thread.
 * fork       Not carried over: a child neither uses nor closes it. */
#ifndef MUSTER_COMM_H
#define MUSTER_COMM_H

#include <muster/muster.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct muster_comm muster_comm;
typedef uint64_t muster_ticket;

enum muster_dtype {
    MUSTER_U8,
    MUSTER_I32,
    MUSTER_I64,
    MUSTER_F32,
    MUSTER_F64
};
enum muster_op {
    MUSTER_SUM,
    MUSTER_MIN,
    MUSTER_MAX
};

MUSTER_API size_t muster_dtype_bytes(enum muster_dtype t);

enum muster_phase {
    MUSTER_PHASE_NONE,
    MUSTER_PHASE_START, /* Meeting and connecting. */
    MUSTER_PHASE_SEND,
    MUSTER_PHASE_RECEIVE,
    MUSTER_PHASE_WAIT, /* A deadline passed. */
    MUSTER_PHASE_ABORT /* Somebody called muster_comm_abort(). */
};

struct muster_cause {
    int32_t peer; /* Rank that failed or is late, this one possibly; -1: not known. */
    int code;     /* Negative errno: -ECONNRESET it ended, -ETIMEDOUT it is late, -ECANCELED it
                   * aborted, -EPROTO it called something else; or what a system call gave. */
    enum muster_phase phase; /* What the rank that noticed was doing. */
    char text[MUSTER_TEXT_BYTES];
};

struct muster_comm_options {
    size_t size;
    const char *backend; /* "tcp", "nccl"; NULL: nccl where a GPU and NCCL are, else tcp. */
    const char *name;    /* Of those that are open at the same time, each its own: at most 48
                          * printable characters without '/'; NULL: "world". */
    int64_t timeout_ns;  /* Of the start, and of a wait that has none; 5 minutes. */
    int device;          /* nccl: CUDA device; -1: local rank. */
    void *stream;        /* nccl: cudaStream_t; NULL: one of its own. */
};
#define MUSTER_COMM_OPTIONS_INIT                                                                   \
    {                                                                                              \
        sizeof(struct muster_comm_options), NULL, NULL, INT64_C(300000000000), -1, NULL            \
    }

/* Collective, with the same name and backend on all ranks. `options` may be NULL. Blocks.
 *
 * Returns 0;
 *     -EINVAL     options that cannot be right, on this rank alone;
 *     -ENODEV     the backend that was asked for does not work on this rank: says what is missing;
 *     or, on every rank that came, with one sentence:
 *     -ETIMEDOUT  ranks are missing: they and their hosts are named;
 *     else        what failed on the first rank that failed. */
MUSTER_API int muster_comm_open(muster *m,
                                const struct muster_comm_options *options,
                                muster_comm **ret,
                                struct muster_error *err);
/* Not collective; takes NULL. No other thread uses `c` any more. Operations in flight are aborted,
 * on all ranks; without any, the others go on until they ask for an operation that this rank would
 * have to take part in. Returns within a second. */
MUSTER_API void muster_comm_close(muster_comm *c);

MUSTER_API uint32_t muster_comm_rank(const muster_comm *c);
MUSTER_API uint32_t muster_comm_size(const muster_comm *c);
MUSTER_API const char *muster_comm_backend(const muster_comm *c);

/* The operations below return 0 and a ticket (`ret` may be NULL), -EINVAL with a sentence and no
 * effect, or the cause of the failure. Counts are elements; 0 is allowed, and buffers may then be
 * NULL. They do not block for peers.
 *
 * In place: buf holds this rank's part before and the result after. */
MUSTER_API int muster_comm_all_reduce(muster_comm *c,
                                      void *buf,
                                      size_t count,
                                      enum muster_dtype t,
                                      enum muster_op op,
                                      muster_ticket *ret,
                                      struct muster_error *err);
/* buf of rank `root` to all. */
MUSTER_API int muster_comm_broadcast(muster_comm *c,
                                     void *buf,
                                     size_t count,
                                     enum muster_dtype t,
                                     uint32_t root,
                                     muster_ticket *ret,
                                     struct muster_error *err);
/* recv holds size*count elements; send may be recv + rank*count, and overlaps it nowhere else. */
MUSTER_API int muster_comm_all_gather(muster_comm *c,
                                      const void *send,
                                      void *recv,
                                      size_t count,
                                      enum muster_dtype t,
                                      muster_ticket *ret,
                                      struct muster_error *err);
/* send holds size*count elements and is overwritten; recv gets this rank's count sums and may be
 * send + rank*count. */
MUSTER_API int muster_comm_reduce_scatter(muster_comm *c,
                                          void *send,
                                          void *recv,
                                          size_t count,
                                          enum muster_dtype t,
                                          enum muster_op op,
                                          muster_ticket *ret,
                                          struct muster_error *err);
/* No rank leaves before all have come. Blocks, as a wait with this time-out. */
MUSTER_API int muster_comm_barrier(muster_comm *c, int64_t timeout_ns, struct muster_error *err);

/* Wait for a ticket. Any thread, several at once too; the one that waits does the work meanwhile.
 * Negative timeout_ns: that of the options; if that is negative too, no limit.
 *
 * Returns 0; -EINVAL: no such ticket; or the cause. Time that is over is a failure of the whole
 * communicator, on all ranks, as an operation that one rank gave up cannot be made whole again:
 * -ETIMEDOUT, and the cause names the rank that is late, because it does not answer or has not
 * called the operation. To find out who is late takes up to 50 ms more if somebody is silent. To
 * look without consequences there is muster_comm_test(). */
MUSTER_API int muster_comm_wait(muster_comm *c,
                                muster_ticket ticket,
                                int64_t timeout_ns,
                                struct muster_error *err);
/* 1: done; 0: not yet; negative: -EINVAL, or the cause. Does not block. Any thread. */
MUSTER_API int muster_comm_test(muster_comm *c, muster_ticket ticket, struct muster_error *err);

/* End all operations here and at the peers, with this rank and `why` as their cause (-ECANCELED).
 * Any thread; wakes every waiter within a millisecond. Does nothing after a failure. Takes NULL;
 * why may be NULL. Not from a signal handler: it takes a lock. */
MUSTER_API void muster_comm_abort(muster_comm *c, const char *why);
/* False, and nothing written, while nothing has failed. Any thread. */
MUSTER_API bool muster_comm_get_cause(muster_comm *c, struct muster_cause *ret);

#ifdef __cplusplus
}
#endif
#endif
