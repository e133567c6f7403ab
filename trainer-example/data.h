/* Data: a mapped file of images, and a loader that hands out batches of it in order.
 *
 * The file, little-endian: the 8 bytes MUSTDS01; count, height, width, classes and levels as u32;
 * the pixels of all images, row by row, as u8; the labels as u8. */
#ifndef TRAINER_DATA_H
#define TRAINER_DATA_H

#include <muster/comm.h>

#include "trainer-example/model.h"

struct dataset {
    const uint8_t *pixels; /* (count, 8, 8), 0 to IMAGE_LEVELS */
    const uint8_t *labels; /* (count), 0 to CLASSES-1 */
    uint32_t count;
    uint32_t train_count; /* The first four fifths. */
    void *map;
    size_t map_bytes;
};

int dataset_open(struct dataset *ret, const char *path, struct muster_error *err);
void dataset_close(struct dataset *d);

struct loader_options {
    const struct dataset *data;
    const struct net_ops *ops; /* Whose memory batches lie in. */
    enum muster_dtype dtype;
    uint32_t batch;   /* Items; the last batch may be smaller. */
    uint32_t workers; /* Threads that fill batches ahead; 0: the caller fills. */
};

/* Batches lie in a ring of slots. Fillers take numbers, batch k goes to slot k % slots, and the
 * reader takes them in order: who filled a batch leaves no trace in it. */
struct loader;
int loader_open(const struct loader_options *o, struct loader **ret, struct muster_error *err);
void loader_close(struct loader *l); /* Takes NULL. */
/* Go through indices[0..count), from batch number `first` on. They stay the caller's until the next
 * start. What was not taken of the run before is dropped. */
void loader_start(struct loader *l, const int64_t *indices, size_t count, size_t first);
/* The next batch, or NULL at the end. The two that were given out last stay as they are; older ones
 * are filled anew. */
const struct batch *loader_next(struct loader *l);

#endif
