/* Distributed data parallel: equal weights everywhere, gradients averaged while backward goes on.
 *
 *     muster_ddp_open(comm, params, n, MUSTER_F32, NULL, &ddp, &err);   rank 0's weights to all
 *     for each batch:
 *         for i = n - 1 down to 0:                       backward, the last layer first
 *             write muster_ddp_gradient(ddp, i)
 *             muster_ddp_ready(ddp, i, &err)
 *         while (muster_ddp_next(ddp, &bucket, &err) == 1)       averaged, in order
 *             update the parameters of `bucket` while the next one still moves
 *
 * Gradients live in buckets, in reverse order of the parameters; no tensor is split, and one that
 * is larger than a bucket has its own. A bucket is all-reduced when its last gradient is ready,
 * strictly in order of the buckets, in whatever order gradients become ready. Each rank's gradients
 * are divided by the world's size before they are summed.
 *
 * Nobody zeroes a gradient: the first writer of a step stores, those after no_sync add.
 *
 * Errors of the communicator are passed on with the bucket named. After one, nothing of this
 * reducer works any more: close it and the communicator. */
#ifndef MUSTER_DDP_H
#define MUSTER_DDP_H

#include <muster/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct muster_ddp muster_ddp;

struct muster_tensor {
    const char *name; /* For messages; borrowed until close. */
    void *value;      /* count elements; borrowed until close. */
    size_t count;
};

/* Where values and gradients live, for memory that the CPU cannot touch. Each returns 0 or a
 * negative errno; `arg` is the first argument of all. */
struct muster_ddp_memory {
    void *arg;
    void *(*alloc)(void *arg, size_t bytes); /* Zeroed, aligned to 64 bytes; NULL: no memory. */
    void (*release)(void *arg, void *p);
    /* p[0..count-1] /= by. Also: what the communicator does next with p must come after this and
     * after the kernels that wrote the gradients (cudaEventRecord, cudaStreamWaitEvent). Called for
     * each bucket, `by` of 1 included. */
    int (*divide)(void *arg, void *p, size_t count, enum muster_dtype t, uint32_t by);
    /* Copy to the CPU's memory, and from it; done on return. */
    int (*read)(void *arg, void *to, const void *from, size_t bytes);
    int (*write)(void *arg, void *to, const void *from, size_t bytes);
};

struct muster_ddp_options {
    size_t size;
    size_t bucket_bytes;                    /* 25 MiB */
    size_t first_bucket_bytes;              /* 1 MiB: the first to be ready starts early. */
    int64_t timeout_ns;                     /* Of each wait for a bucket; 5 minutes. */
    const struct muster_ddp_memory *memory; /* NULL: the CPU's. Borrowed until close. */
};
#define MUSTER_DDP_OPTIONS_INIT                                                                    \
    {                                                                                              \
        sizeof(struct muster_ddp_options), (size_t)25 << 20, (size_t)1 << 20,                      \
            INT64_C(300000000000), NULL                                                            \
    }

struct muster_bucket {
    size_t first; /* Parameters first..first+count-1 are averaged. */
    size_t count;
};

/* Collective: checks that all ranks have the same shapes and gives rank 0's values to all. The
 * communicator is borrowed until close. t: MUSTER_F32 or MUSTER_F64.
 * -EINVAL: all ranks get the same sentence, which names the first parameter that differs, the rank,
 * and what it and rank 0 have. */
MUSTER_API int muster_ddp_open(muster_comm *c,
                               const struct muster_tensor *params,
                               size_t count,
                               enum muster_dtype t,
                               const struct muster_ddp_options *options,
                               muster_ddp **ret,
                               struct muster_error *err);
/* Takes NULL. In the middle of a step it aborts the communicator, so that nobody touches the
 * buckets any more. */
MUSTER_API void muster_ddp_close(muster_ddp *d);

/* Where the gradient of parameter i is to be written (or, under no_sync, added up). Aligned to 64
 * bytes, the same address until close. Not to be touched from ready() until its bucket was given
 * out by next(). NULL: no such parameter. */
MUSTER_API void *muster_ddp_gradient(muster_ddp *d, size_t i);
MUSTER_API size_t muster_ddp_bucket_count(const muster_ddp *d);

/* Gradient i is complete. Each once per step, in any order. -EALREADY: twice in a step. */
MUSTER_API int muster_ddp_ready(muster_ddp *d, size_t i, struct muster_error *err);
/* Waits for the next bucket. 1: `ret` is averaged; 0: all of this step were given out, or the step
 * has not begun; -EAGAIN names the gradient that this bucket still waits for; other errors are the
 * communicator's. */
MUSTER_API int muster_ddp_next(muster_ddp *d, struct muster_bucket *ret, struct muster_error *err);
/* Gradients add up here while it is on: ready() and next() do nothing. Between steps only. */
MUSTER_API void muster_ddp_no_sync(muster_ddp *d, bool on);

/* Are all ranks' parameters the same bits? Collective. -EUCLEAN names, on all ranks, the first
 * parameter and rank that differ from rank 0's. ret_hash may be NULL; it covers values alone. */
MUSTER_API int muster_ddp_check_equal(muster_ddp *d, uint64_t *ret_hash, struct muster_error *err);

#ifdef __cplusplus
}
#endif
#endif
