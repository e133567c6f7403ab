/* torch.randperm() on a CPU, index for index. */
#ifndef MUSTER_SDK_RANDPERM_H
#define MUSTER_SDK_RANDPERM_H

#include <stdint.h>

/* The numbers 0 to n-1 in the order that torch.Generator().manual_seed(seed) gives. */
void sdk_randperm(uint32_t *ret, uint32_t n, uint64_t seed);

#endif
