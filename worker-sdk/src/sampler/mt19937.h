/* The generator behind torch.manual_seed() on a CPU: MT19937 with 32-bit outputs. */
#ifndef MUSTER_SDK_MT19937_H
#define MUSTER_SDK_MT19937_H

#include <stdint.h>

#define MT_WORDS 624

struct mt19937 {
    uint32_t word[MT_WORDS];
    uint32_t next; /* MT_WORDS: all are used up. */
};

/* PyTorch seeds with the low half of its 64-bit seed. */
void mt_seed(struct mt19937 *g, uint64_t seed);
uint32_t mt_u32(struct mt19937 *g);
/* Two draws; the first is the high half. */
uint64_t mt_u64(struct mt19937 *g);

#endif
