/* Element by element: ret = a op b. */
#ifndef MUSTER_SDK_TCP_REDUCE_H
#define MUSTER_SDK_TCP_REDUCE_H

#include <muster/comm.h>

/* ret may be a or b themselves, and must not overlap them otherwise. All are aligned for t. The
 * order of a and b is kept, so that ranks that combine the same values in the same order get the
 * same bits, NaNs and signed zeros included. Integers wrap around. */
void tcp_reduce(
    void *ret, const void *a, const void *b, size_t count, enum muster_dtype t, enum muster_op op);

#endif
