/* AdamW on a run of numbers; the formula is at net_ops.update in model.h. */
#ifndef TRAINER_ADAMW_H
#define TRAINER_ADAMW_H

#include <stddef.h>
#include <stdint.h>

#include "trainer-example/model.h"

void adamw_f32(float *value,
               float *mean,
               float *square,
               const float *gradient,
               size_t count,
               const struct adamw *a,
               uint64_t step);
void adamw_f64(double *value,
               double *mean,
               double *square,
               const double *gradient,
               size_t count,
               const struct adamw *a,
               uint64_t step);

#endif
