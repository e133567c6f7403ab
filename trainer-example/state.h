/* Weight files, and what a checkpoint holds.
 *
 * A weight file, little-endian: the 8 bytes MUSTWT01 (float32) or MUSTWT64 (float64); count of
 * tensors as u32; for each: u32 length of its name, the name, u32 rank, u32 dims, its numbers,
 * row-major. A checkpoint's file holds, beside each parameter NAME, AdamW's NAME.mean and
 * NAME.square. */
#ifndef TRAINER_STATE_H
#define TRAINER_STATE_H

#include "trainer-example/model.h"

/* Where the training stands: at a boundary between steps. */
struct position {
    uint64_t step;        /* Steps done, over all epochs: AdamW's count. */
    uint64_t epoch;       /* The one to go on with. */
    uint64_t epoch_items; /* Items of that epoch done, of all ranks. */
    uint64_t loss_items;  /* Items in loss_sum: more than epoch_items where some were seen twice. */
    double loss_sum;      /* Their losses, over all ranks. */
};

/* Read parameters from a file of either type into the net, and, if wanted, AdamW's means. All of
 * them must be there, with the net's shapes; others in the file are an error too. */
int weights_load(const char *path,
                 bool with_means,
                 const struct net_ops *ops,
                 struct net *n,
                 uint32_t width,
                 enum muster_dtype dtype,
                 struct muster_error *err);

/* The files of a checkpoint, in `folder`: state.bin and position. */
int state_save(const char *folder,
               const struct position *at,
               const struct net_ops *ops,
               struct net *n,
               uint32_t width,
               enum muster_dtype dtype,
               struct muster_error *err);
int state_load(const char *folder,
               struct position *ret,
               const struct net_ops *ops,
               struct net *n,
               uint32_t width,
               enum muster_dtype dtype,
               struct muster_error *err);

#endif
