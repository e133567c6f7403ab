/* AdamW. Every rank updates its own copy of the weights, and all copies must stay the same bits,
 * even where the ranks' processors differ. So this file is compiled without fused multiply-add:
 * each operation is rounded once, as IEEE 754 says, and then neither the processor nor the width of
 * its vectors matters. */
#include "trainer-example/adamw.h"

#include <math.h>

#include "trainer-example/clones.h"

struct factors {
    double keep; /* 1 - lr*wd */
    double mean, square_keep, square;
    double step;       /* lr / (1 - beta1^t) */
    double correction; /* sqrt(1 - beta2^t) */
    double eps;
};

static struct factors factors_of(const struct adamw *a, uint64_t step)
{
    return (struct factors){
        .keep = 1 - a->lr * a->weight_decay,
        .mean = 1 - a->beta1,
        .square_keep = a->beta2,
        .square = 1 - a->beta2,
        .step = a->lr / (1 - pow(a->beta1, (double)step)),
        .correction = sqrt(1 - pow(a->beta2, (double)step)),
        .eps = a->eps,
    };
}

/* The same in both precisions: the factors are made in double and rounded once. */
#define ADAMW(name, real, root)                                                                    \
    TRAINER_CLONES                                                                                 \
    void name(real *restrict value, real *restrict mean, real *restrict square,                    \
              const real *restrict gradient, size_t count, const struct adamw *a, uint64_t step)   \
    {                                                                                              \
        const struct factors f = factors_of(a, step);                                              \
        const real keep = (real)f.keep, toward = (real)f.mean, rate = (real)f.step;                \
        const real square_keep = (real)f.square_keep, square_new = (real)f.square;                 \
        const real correction = (real)f.correction, eps = (real)f.eps;                             \
        for (size_t k = 0; k < count; k++) {                                                       \
            const real g = gradient[k];                                                            \
            const real m = mean[k] + (g - mean[k]) * toward;                                       \
            const real v = square[k] * square_keep + g * g * square_new;                           \
            mean[k] = m;                                                                           \
            square[k] = v;                                                                         \
            value[k] = value[k] * keep - rate * m / (root(v) / correction + eps);                  \
        }                                                                                          \
    }

/* clang-format off */
ADAMW(adamw_f32, float, sqrtf)
ADAMW(adamw_f64, double, sqrt)
/* clang-format on */
