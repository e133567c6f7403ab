/* Freeing a communicator of NCCL in a thread of its own: ncclCommAbort() and ncclCommDestroy() hang
 * when another rank does not do the same, and nobody may wait for that without end. */
#ifndef MUSTER_SDK_NCCL_FREE_H
#define MUSTER_SDK_NCCL_FREE_H

#include <pthread.h>

#include "worker-sdk/src/nccl/cuda_lib.h"
#include "worker-sdk/src/nccl/nccl_lib.h"

struct nccl_free; /* One that runs. */

/* Calls `free_fn`, which is the library's abort or destroy, on `comm`, with the CUDA context
 * current. Holds call_lock meanwhile, for which it waits a second: a call that does not return by
 * itself is what abort is there for. NULL: no thread can be had; the communicator is then left as
 * it is. */
struct nccl_free *nccl_free_start(const struct cuda_lib *cuda,
                                  void *ctx,
                                  int (*free_fn)(void *comm),
                                  void *comm,
                                  pthread_mutex_t *call_lock);
/* 0: done; -ETIMEDOUT: it hangs, and what it holds must be left alone until the process ends. Takes
 * NULL. `f` is gone afterwards. */
int nccl_free_wait(struct nccl_free *f, int64_t timeout_ns);

#endif
