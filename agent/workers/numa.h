/* --numa-binding: which CPUs each worker gets. Looks at sysfs, and only when it is asked for. */
#ifndef MUSTER_AGENT_NUMA_H
#define MUSTER_AGENT_NUMA_H

#include <stdint.h>

#include "base/err.h"

enum {
    NUMA_CPUS_MAX = 8192, /* The kernel's own limit on x86 and arm64. */
    NUMA_NODES_MAX = 64,
    NUMA_GPUS_MAX = 64,
    NUMA_MASK_BYTES = NUMA_CPUS_MAX / 8
};

struct cpus {
    unsigned long word[NUMA_CPUS_MAX / (8 * sizeof(unsigned long))];
};

/* Zero-initialised: nothing is bound. */
struct numa {
    struct cpus *cpus;           /* By local rank. */
    const unsigned long **masks; /* The same, for the system; an entry is NULL: not bound. */
    char warning[256];           /* A sentence for the user, or "". */
};

/* Choose the CPUs of `nproc` workers, out of our own affinity mask. Worker i uses GPU i of
 * `visible` (CUDA_VISIBLE_DEVICES; NULL: all); where there is no GPU, the workers are dealt to the
 * NUMA nodes in equal runs.
 *
 * mode  node           CPUs of the GPU's NUMA node
 *       socket         of every node of that socket
 *       exclusive      an even share of the node's cores, of which no other worker gets one
 *       core-complex   one group of the node's CPUs that share their last cache, the largest first
 * root  "" or, in tests, a folder with proc, sys and dev in it
 *
 * Returns 0, or a negative errno with a sentence: -EINVAL (no such mode, fewer cores than workers),
 * -ENOMEM. */
int numa_bind(struct numa *n,
              const char *mode,
              uint32_t nproc,
              const char *visible,
              const char *root,
              struct mu_err *err);
/* The same with an affinity mask that is given. */
int numa_bind_within(struct numa *n,
                     const char *mode,
                     uint32_t nproc,
                     const char *visible,
                     const char *root,
                     const struct cpus *allowed,
                     struct mu_err *err);
void numa_fini(struct numa *n);
/* By local rank; NULL: nothing is bound. */
const unsigned long *const *numa_masks(const struct numa *n);

/* "0-3,8" as the kernel writes it; what is no number ends it. */
void numa_parse_list(const char *text, struct cpus *ret);

#endif
