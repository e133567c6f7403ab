/* Memory that dies with its round: a chain of blocks, emptied at once. */
#ifndef MUSTER_AGENT_ARENA_H
#define MUSTER_AGENT_ARENA_H

#include <stddef.h>

#include "base/check.h"

struct arena_block;

struct arena {
    struct arena_block *first; /* The newest, which has room. */
    size_t used;
};

/* NULL when there is no memory; aligned for pointers, not zeroed. */
void *arena_alloc(struct arena *a, size_t bytes);
char *arena_printf(struct arena *a, const char *fmt, ...) MU_PRINTF(2, 3);
/* Everything handed out is gone. Keeps one block, the largest. */
void arena_reset(struct arena *a);
void arena_fini(struct arena *a);

#endif
