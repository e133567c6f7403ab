/* Which items a rank trains on: torch.utils.data.DistributedSampler, index for index.
 *
 * Memory: 8 bytes for each item of this rank, and 4 bytes for each item of all while an epoch's
 * order is drawn. At most 2^32 - 1 items. Source: docs/sdk.md "Sampler". */
#ifndef MUSTER_SAMPLER_H
#define MUSTER_SAMPLER_H

#include <muster/muster.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct muster_sampler muster_sampler;

struct muster_sampler_options {
    size_t size;
    uint64_t item_count;
    uint32_t world;
    uint32_t rank;
    bool shuffle;
    bool drop_last; /* Drop the tail instead of repeating items from the front. */
    uint64_t seed;  /* The same on all ranks. */
};
#define MUSTER_SAMPLER_OPTIONS_INIT                                                                \
    {                                                                                              \
        sizeof(struct muster_sampler_options), 0, 1, 0, true, false, 0                             \
    }

/* Begins with epoch 0. -EINVAL, -E2BIG, -ENOMEM. */
MUSTER_API int muster_sampler_open(const struct muster_sampler_options *options,
                                   muster_sampler **ret,
                                   struct muster_error *err);
MUSTER_API void muster_sampler_close(muster_sampler *s);
/* Before each epoch, as DistributedSampler.set_epoch(). -ENOMEM: the old order is still there. */
MUSTER_API int
muster_sampler_set_epoch(muster_sampler *s, uint64_t epoch, struct muster_error *err);
MUSTER_API uint64_t muster_sampler_len(const muster_sampler *s);
/* This rank's items of the epoch, muster_sampler_len() of them; valid until the next set_epoch. */
MUSTER_API const int64_t *muster_sampler_indices(const muster_sampler *s);

#ifdef __cplusplus
}
#endif
#endif
