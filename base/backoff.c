/* Waits before attempts; see backoff.h. */
#include "base/backoff.h"

#include "base/check.h"

/* xorshift64*: jitter only. */
static uint64_t next_random(uint64_t *random)
{
    *random ^= *random >> 12;
    *random ^= *random << 25;
    *random ^= *random >> 27;
    return *random * UINT64_C(2685821657736338717);
}

int64_t mu_jitter(uint64_t *random, int64_t span_ns)
{
    MU_ASSERT(*random != 0); /* It would stay 0, and nobody's wait would differ. */
    MU_ASSERT(span_ns >= 0);
    return span_ns / 2 + (int64_t)(next_random(random) % (uint64_t)(span_ns / 2 + 1));
}

int64_t mu_backoff(uint64_t *random, int64_t *span_ns, int64_t max_ns)
{
    int64_t wait_ns = mu_jitter(random, *span_ns);
    *span_ns = *span_ns > max_ns / 2 ? max_ns : *span_ns * 2;
    return wait_ns;
}
