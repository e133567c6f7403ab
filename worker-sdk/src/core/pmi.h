/* How the ranks of MPICH's mpiexec (Hydra) meet: one text of rank 0 reaches all, through the
 * launcher.
 *
 * Source: the PMI-1 wire protocol: lines of "key=value" words, each request answered by one line,
 * on a descriptor that the process inherits (PMI_FD). mpiexec takes a process that began to speak
 * PMI and ends without goodbye for crashed, and ends the whole job: so the goodbye is
 * muster_close()'s. */
#ifndef MUSTER_SDK_PMI_H
#define MUSTER_SDK_PMI_H

#include "worker-sdk/src/core/sdk.h"

/* All ranks call this, with the same key, once a key; rank 0 brings `value`, the others NULL. `ret`
 * gets rank 0's. Blocks until all ranks have called. */
int sdk_pmi_share(int fd,
                  const char *key,
                  const char *value,
                  int64_t deadline_ns,
                  char *ret,
                  size_t ret_bytes,
                  struct muster_error *err);

/* The last word. One session a process: mpiexec hangs up after it. */
int sdk_pmi_goodbye(int fd, int64_t deadline_ns, struct muster_error *err);

#endif
