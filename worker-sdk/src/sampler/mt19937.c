/* MT19937: M. Matsumoto and T. Nishimura, "Mersenne Twister", ACM TOMACS 8 (1998). */
#include "worker-sdk/src/sampler/mt19937.h"

#define SHIFT 397u
#define UPPER 0x80000000u
#define MATRIX 0x9908B0DFu

void mt_seed(struct mt19937 *g, uint64_t seed)
{
    g->word[0] = (uint32_t)seed;
    for (uint32_t i = 1; i < MT_WORDS; i++)
        g->word[i] = 1812433253u * (g->word[i - 1] ^ (g->word[i - 1] >> 30)) + i;
    g->next = MT_WORDS;
}

/* The next word of the recurrence: the top bit of one, the rest of its neighbour, and one further
 * on.
 */
static uint32_t twist(uint32_t a, uint32_t b, uint32_t far)
{
    uint32_t y = (a & UPPER) | (b & ~UPPER);
    return far ^ (y >> 1) ^ (-(y & 1u) & MATRIX);
}

static void refill(struct mt19937 *g)
{
    uint32_t *w = g->word;
    for (uint32_t i = 0; i < MT_WORDS - SHIFT; i++)
        w[i] = twist(w[i], w[i + 1], w[i + SHIFT]);
    for (uint32_t i = MT_WORDS - SHIFT; i < MT_WORDS - 1; i++)
        w[i] = twist(w[i], w[i + 1], w[i + SHIFT - MT_WORDS]);
    w[MT_WORDS - 1] = twist(w[MT_WORDS - 1], w[0], w[SHIFT - 1]);
    g->next = 0;
}

uint32_t mt_u32(struct mt19937 *g)
{
    if (g->next == MT_WORDS)
        refill(g);
    uint32_t y = g->word[g->next++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9D2C5680u;
    y ^= (y << 15) & 0xEFC60000u;
    return y ^ (y >> 18);
}

uint64_t mt_u64(struct mt19937 *g)
{
    uint64_t high = mt_u32(g);
    return high << 32 | mt_u32(g);
}
