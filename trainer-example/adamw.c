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

TRAINER_CLONES
void adamw_f32(float *restrict value,
               float *restrict mean,
               float *restrict square,
               const float *restrict gradient,
               size_t count,
               const struct adamw *a,
               uint64_t step)
{
    const struct factors f = factors_of(a, step);
    const float keep = (float)f.keep, toward = (float)f.mean, square_keep = (float)f.square_keep,
                square_new = (float)f.square, rate = (float)f.step,
                correction = (float)f.correction, eps = (float)f.eps;
    for (size_t k = 0; k < count; k++) {
        const float g = gradient[k];
        const float m = mean[k] + (g - mean[k]) * toward;
        const float v = square[k] * square_keep + g * g * square_new;
        mean[k] = m;
        square[k] = v;
        value[k] = value[k] * keep - rate * m / (sqrtf(v) / correction + eps);
    }
}

TRAINER_CLONES
void adamw_f64(double *restrict value,
               double *restrict mean,
               double *restrict square,
               const double *restrict gradient,
               size_t count,
               const struct adamw *a,
               uint64_t step)
{
    const struct factors f = factors_of(a, step);
    for (size_t k = 0; k < count; k++) {
        const double g = gradient[k];
        const double m = mean[k] + (g - mean[k]) * f.mean;
        const double v = square[k] * f.square_keep + g * g * f.square;
        mean[k] = m;
        square[k] = v;
        value[k] = value[k] * f.keep - f.step * m / (sqrt(v) / f.correction + f.eps);
    }
}
