/* The last lines of several nodes: each sends its own last N, and the last N of all are shown.
 * Pure. */
#ifndef MUSTER_LAUNCHER_LAST_H
#define MUSTER_LAUNCHER_LAST_H

#include <stdbool.h>
#include <stdint.h>

#include "base/mem.h"
#include "base/str.h"

struct cli_last;

/* Keeps `count` of them. NULL without memory. */
struct cli_last *cli_last_new(const struct mu_mem *mem, uint64_t count);
void cli_last_free(struct cli_last *l);

/* A line of that time, which is copied. False: there is no memory for it. */
bool cli_last_add(struct cli_last *l, int64_t unix_ms, struct mu_str raw);

/* The oldest that is left of the last ones, by time and then as they came; borrowed. From the first
 * call on nothing may be added. False: there are no more. */
bool cli_last_next(struct cli_last *l, struct mu_str *ret);

#endif
