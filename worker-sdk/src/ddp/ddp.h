/* Inside of the reducer: what its two files share. ddp.c owns buckets and steps, ddp_check.c what
 * is compared between ranks. */
#ifndef MUSTER_SDK_DDP_H
#define MUSTER_SDK_DDP_H

#include <muster/ddp.h>

struct ddp_bucket {
    size_t first; /* Parameters first..first+count-1, the last of them first in memory. */
    size_t count;
    size_t at; /* Elements in front of it in `gradients`. */
    size_t elements;
    size_t waiting; /* Gradients of this step that are not ready yet. */
    muster_ticket ticket;
};

struct muster_ddp {
    muster_comm *comm;
    const struct muster_tensor
        *params; /* A copy of the array; names and values are the caller's. */
    size_t count;
    enum muster_dtype dtype;
    uint32_t world;
    struct muster_ddp_options options;
    struct muster_ddp_memory memory;
    bool comm_divides; /* Then memory.divide() is not called. */

    struct ddp_bucket *buckets;
    size_t bucket_count;
    size_t *at;        /* By parameter: elements in front of its gradient. */
    size_t *bucket_of; /* By parameter. */
    bool *ready;       /* By parameter, in this step. */
    void *gradients;
    size_t begun;  /* Buckets of this step handed to the communicator, and */
    size_t given;  /* handed to the caller. */
    bool stepping; /* Some gradient of this step is ready. */
    bool no_sync;
    struct muster_error broken; /* code 0: not. */
};

/* Collective. All ranks return the same. */
int ddp_check_shapes(struct muster_ddp *d, struct muster_error *err);
/* Collective: rank 0's values to all. */
int ddp_share_values(struct muster_ddp *d, struct muster_error *err);

/* 64 bits of n bytes. Not cryptographic: it finds accidents. The same on every machine of the same
 * byte order. */
uint64_t ddp_hash(const void *p, size_t n, uint64_t seed);

#endif
