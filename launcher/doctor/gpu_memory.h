/* Memory of the first GPU, by the CUDA driver, which is opened when it is asked for. */
#ifndef MUSTER_LAUNCHER_DOCTOR_GPU_MEMORY_H
#define MUSTER_LAUNCHER_DOCTOR_GPU_MEMORY_H

#include <stddef.h>

#include "base/err.h"

/* So many bytes of zeros there, until the process ends. An address for the SDK's backend "nccl",
 * not for us. -ENODEV with a sentence. */
int gpu_memory(size_t bytes, void **ret, struct mu_err *err);

#endif
