/* Shapes, and the first values of the parameters. */
#include "trainer-example/model.h"

#include <math.h>

void model_shapes(uint32_t w, struct shape ret[PARAM_COUNT])
{
    const uint32_t c1 = CONV1_CHANNELS * w, c2 = CONV2_CHANNELS * w, hidden = HIDDEN * w;
    const uint32_t flat = c2 * POOL_PIXELS;
    const size_t in1 = KERNEL_TAPS, in2 = (size_t)KERNEL_TAPS * c1;
    const struct shape all[PARAM_COUNT] = {
        [CONV1_WEIGHT] = {"conv1.weight", 4, {c1, 1, KERNEL_SIDE, KERNEL_SIDE}, 0, in1},
        [CONV1_BIAS] = {"conv1.bias", 1, {c1}, 0, in1},
        [CONV2_WEIGHT] = {"conv2.weight", 4, {c2, c1, KERNEL_SIDE, KERNEL_SIDE}, 0, in2},
        [CONV2_BIAS] = {"conv2.bias", 1, {c2}, 0, in2},
        [FC1_WEIGHT] = {"fc1.weight", 2, {hidden, flat}, 0, flat},
        [FC1_BIAS] = {"fc1.bias", 1, {hidden}, 0, flat},
        [FC2_WEIGHT] = {"fc2.weight", 2, {CLASSES, hidden}, 0, hidden},
        [FC2_BIAS] = {"fc2.bias", 1, {CLASSES}, 0, hidden},
    };
    for (size_t i = 0; i < PARAM_COUNT; i++) {
        ret[i] = all[i];
        ret[i].count = 1;
        for (uint32_t d = 0; d < all[i].rank; d++)
            ret[i].count *= all[i].dim[d];
    }
}

/* --- PyTorch's generator, MT19937 (M. Matsumoto, T. Nishimura, 1998) --- */

enum {
    MT_WORDS = 624,
    MT_MIDDLE = 397
};

struct mt {
    uint32_t word[MT_WORDS];
    uint32_t at;
};

static void mt_seed(struct mt *g, uint32_t seed)
{
    g->word[0] = seed;
    for (uint32_t i = 1; i < MT_WORDS; i++)
        g->word[i] = UINT32_C(1812433253) * (g->word[i - 1] ^ (g->word[i - 1] >> 30)) + i;
    g->at = MT_WORDS;
}

static void mt_refill(struct mt *g)
{
    for (uint32_t i = 0; i < MT_WORDS; i++) {
        uint32_t y = (g->word[i] & UINT32_C(0x80000000)) |
                     (g->word[(i + 1) % MT_WORDS] & UINT32_C(0x7fffffff));
        g->word[i] = g->word[(i + MT_MIDDLE) % MT_WORDS] ^ (y >> 1) ^
                     ((y & 1) != 0 ? UINT32_C(0x9908b0df) : 0);
    }
    g->at = 0;
}

static uint32_t mt_next(struct mt *g)
{
    if (g->at == MT_WORDS)
        mt_refill(g);
    uint32_t y = g->word[g->at++];
    y ^= y >> 11;
    y ^= (y << 7) & UINT32_C(0x9d2c5680);
    y ^= (y << 15) & UINT32_C(0xefc60000);
    return y ^ (y >> 18);
}

/* Both kinds of layer start in +-1/sqrt(fan_in). The weights' bound is worked out in the steps of
 * kaiming_uniform_(a=sqrt(5)), because it is the last bit that counts here. */
static double bound_of(size_t i, size_t fan_in)
{
    if (i == CONV1_BIAS || i == CONV2_BIAS || i == FC1_BIAS || i == FC2_BIAS)
        return 1 / sqrt((double)fan_in);
    const double slope = sqrt(5.0), gain = sqrt(2.0 / (1 + slope * slope));
    return sqrt(3.0) * (gain / sqrt((double)fan_in));
}

void model_init(uint32_t width, uint64_t seed, float *const value[PARAM_COUNT])
{
    struct shape shape[PARAM_COUNT];
    struct mt g;
    model_shapes(width, shape);
    mt_seed(&g, (uint32_t)seed); /* PyTorch too uses the lower half only. */
    for (size_t i = 0; i < PARAM_COUNT; i++) {
        const float to = (float)bound_of(i, shape[i].fan_in), from = -to;
        for (size_t k = 0; k < shape[i].count; k++) {
            /* One rounding for both operations, as in PyTorch on processors that can. */
            const float unit = (float)(mt_next(&g) & UINT32_C(0xffffff)) * 0x1p-24f;
            value[i][k] = fmaf(unit, to - from, from);
        }
    }
}
