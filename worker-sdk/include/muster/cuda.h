/* Order between a communicator over NCCL and a program's own CUDA streams, without blocking the
 * CPU.
 *
 * Operations run on the communicator's stream. To send what a kernel writes, let the communicator
 * wait for the kernel's stream, then issue the operation; to read the result in a kernel, let the
 * kernel's stream wait for the ticket:
 *
 *     backward<<<..., compute>>>(gradient);
 *     muster_comm_wait_stream(comm, compute, &err);
 *     muster_comm_all_reduce(comm, gradient, n, MUSTER_F32, MUSTER_SUM, &ticket, &err);
 *     ... more of backward on `compute`, meanwhile ...
 *     muster_comm_stream_wait(comm, ticket, compute, &err);
 *     update<<<..., compute>>>(gradient);
 *
 * A stream is a cudaStream_t or CUstream of the communicator's device. In a libmuster built without
 * NCCL these functions are missing. */
#ifndef MUSTER_CUDA_H
#define MUSTER_CUDA_H

#include <muster/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What is put into `stream` from now on runs after the ticket's operation. Does not block.
 * -ENOTSUP: a communicator of another backend. */
MUSTER_API int muster_comm_stream_wait(muster_comm *c,
                                       muster_ticket ticket,
                                       void *stream,
                                       struct muster_error *err);
/* Operations issued from now on run after what is in `stream` now. Does not block. -ENOTSUP as
 * above.
 */
MUSTER_API int muster_comm_wait_stream(muster_comm *c, void *stream, struct muster_error *err);

#ifdef __cplusplus
}
#endif
#endif
