/* Element by element: ret = a op b. */
#ifndef MUSTER_SDK_TCP_REDUCE_H
#define MUSTER_SDK_TCP_REDUCE_H

#include <muster/comm.h>

/* ret may be a or b themselves, and must not overlap them otherwise. All are aligned for t. The
 * order of a and b is kept, so that ranks that combine the same values in the same order get the
 * same bits, NaNs and signed zeros included. Integers wrap around. */
void tcp_reduce(
    void *ret, const void *a, const void *b, size_t count, enum muster_dtype t, enum muster_op op);

/* One more operation, of floats: (a + b) / 2. The same bits as a/2 + b/2, as halving is exact, but
 * where a sum overflows or a half is no longer a normal number. */
#define TCP_MEAN_OF_TWO ((enum muster_op)(MUSTER_MAX + 1))

/* p /= by, of floats. */
void tcp_divide(void *p, size_t count, enum muster_dtype t, uint32_t by);

#endif
