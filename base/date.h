/* A day and a time of it as people read them, UTC, by arithmetic alone: for pure rooms, and for a
 * status of thousands of workers, which spends a fifth of its time on them otherwise. Pure. */
#ifndef MUSTER_BASE_DATE_H
#define MUSTER_BASE_DATE_H

#include <stdint.h>

#define MU_DATE_END_MS INT64_C(253402300800000) /* The year 10000. */

/* "2026-11-30T06:46:42.123Z", for milliseconds since 1970 from 0 to MU_DATE_END_MS; ret has room
 * for 32 bytes. Returns ret. Any time of any clock: mu_iso8601(). */
char *mu_date(int64_t unix_ms, char *ret);

#endif
