/* The network on a GPU: the same table of functions as the CPU's, in cuda.cu. */
#ifndef TRAINER_CUDA_H
#define TRAINER_CUDA_H

#include "trainer-example/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One table for both types: open() looks at options.dtype. stream() gives NULL: a communicator gets
 * a stream of its own, so that gradients travel while backward goes on, and divide() of memory()
 * puts the two in order. With more than one rank memory() is for the backend "nccl" only. */
extern const struct net_ops net_cuda;

/* Is there a GPU that works? On false, *ret_why says what is missing; valid for good. */
bool net_cuda_usable(const char **ret_why);

#ifdef __cplusplus
}
#endif
#endif
