/* torch.randperm() as PyTorch 2.13 does it, found out by what it gives (tests/data/sampler.json):
 * two ways to shuffle, chosen by size, because 32 random bits modulo a large number are not even.
 */
#include "worker-sdk/src/sampler/randperm.h"

#include "worker-sdk/src/sampler/mt19937.h"

/* Below: one 32-bit draw a step is even enough. */
#define LARGE (UINT32_MAX / 20)

/* Fisher and Yates, from the front. */
static void shuffle(uint32_t *p, uint32_t n, struct mt19937 *g)
{
    for (uint32_t i = 0; i < n; i++)
        p[i] = i;
    for (uint32_t i = 0; i + 1 < n; i++) {
        uint32_t at = i + mt_u32(g) % (n - i);
        uint32_t moved = p[i];
        p[i] = p[at];
        p[at] = moved;
    }
}

/* The same from the inside out: it fills in as it goes. */
static void shuffle_large(uint32_t *p, uint32_t n, struct mt19937 *g)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = (uint32_t)(mt_u64(g) % ((uint64_t)i + 1));
        p[i] = p[at];
        p[at] = i;
    }
}

void sdk_randperm(uint32_t *ret, uint32_t n, uint64_t seed)
{
    struct mt19937 g;
    mt_seed(&g, seed);
    if (n < LARGE)
        shuffle(ret, n, &g);
    else
        shuffle_large(ret, n, &g);
}
