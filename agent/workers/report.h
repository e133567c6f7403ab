/* The closing failure report, in torchrun's form. Pure but for the local time zone. */
#ifndef MUSTER_AGENT_REPORT_H
#define MUSTER_AGENT_REPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/str.h"

struct report_worker {
    uint32_t rank;
    uint32_t local_rank;
    int32_t pid;
    int32_t status;         /* Exit status > 0, or minus the signal's number. */
    int64_t unix_s;         /* From its error file, else when it was noticed. */
    const char *error_file; /* NULL: none. */
    const char *text;       /* Traceback or message of the error file; NULL: none. */
    bool has_output;        /* Its last lines were shown above the block. */
    bool is_cause;          /* The job's first cause, as everybody says. */
    const char *extra;      /* One more fact ("killed by the kernel for memory"); NULL: none. */
};

/* Append the block. `w` in the order in which the failures were noticed, at least one; the earliest
 * second is the root cause, and the first noticed among equals, where none is marked as it.
 * lines  how long the block may be, at least 18: a traceback loses its middle, and others that
 *        failed are counted instead of described, where they would not fit. */
void report_block(struct mu_buf *b,
                  const char *title,
                  const char *host,
                  const struct report_worker *w,
                  uint32_t count,
                  uint32_t lines);

/* "    | " before each line of the first cause's last ones, under a heading. */
void report_output(struct mu_buf *b, const char *name, const char *text);

#endif
