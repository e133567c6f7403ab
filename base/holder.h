/* Who listens at a port of this machine, from /proc/net/tcp and the descriptors of processes: for
 * sentences about a port that is taken. What may not be read is not known, and never an error. */
#ifndef MUSTER_BASE_HOLDER_H
#define MUSTER_BASE_HOLDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* " (pid 77, python3)": the process that listens at that port, at `host` (numeric) or at every
 * address; "" when it cannot be known. Returns ret. Reads every process's descriptors: for
 * failures, not for every day. */
char *mu_holder_words(const char *host, uint16_t port, char *ret, size_t cap);

/* Does somebody listen at that port, and only at loopback addresses? Then whoever gets through is
 * of this machine. */
bool mu_holder_is_loopback_only(uint16_t port);

#endif
