/* How long to wait before the next attempt: ever longer, and at random within the second half, so
 * that those who lost the same server do not all come back at once. Pure. */
#ifndef MUSTER_BASE_BACKOFF_H
#define MUSTER_BASE_BACKOFF_H

#include <stdint.h>

/* A wait of span_ns / 2 to span_ns. `random`: the caller's seed, not 0, and what becomes of it. */
int64_t mu_jitter(uint64_t *random, int64_t span_ns);

/* The same of *span_ns, which is twice as long afterwards, up to max_ns. */
int64_t mu_backoff(uint64_t *random, int64_t *span_ns, int64_t max_ns);

#endif
