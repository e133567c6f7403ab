/* The clock at the edge: monotonic nanoseconds inside, UTC for people. Not for pure rooms. */
#ifndef MUSTER_BASE_CLOCK_H
#define MUSTER_BASE_CLOCK_H

#include <stdint.h>

#define MU_NS_PER_S INT64_C(1000000000)
#define MU_NS_PER_US INT64_C(1000)
#define MU_NS_PER_MS INT64_C(1000000)
#define MU_NEVER INT64_MAX /* A deadline that is not wanted. */

/* CLOCK_MONOTONIC. Read once per loop turn and passed down. */
int64_t mu_now_ns(void);

/* Milliseconds since 1970, CLOCK_REALTIME: for people and logs only. */
int64_t mu_unix_ms(void);
int64_t mu_unix_us(void); /* The same in microseconds: to compare the clocks of two machines. */

/* "2026-11-30T06:46:42.123Z"; ret has room for 32 bytes. Returns ret. */
char *mu_iso8601(int64_t unix_ms, char *ret);

#endif
