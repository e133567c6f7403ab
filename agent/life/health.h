/* What the run of a health check says of its node. Pure: agent/health.c runs it.
 *
 * Only an explicit failure excludes a node: the check ran, and ended with a status of its own that
 * is not 0. A command that is not there (126, 127), that crashed or was killed, that did not end in
 * time or could not be started at all has told nothing. */
#ifndef MUSTER_AGENT_LIFE_HEALTH_H
#define MUSTER_AGENT_LIFE_HEALTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum health_verdict {
    HEALTH_PASSED,
    HEALTH_FAILED,
    HEALTH_UNKNOWN
};

struct health_run {
    const char *not_started; /* Why it could not be; NULL: it was. */
    bool timed_out;          /* It was killed for that. */
    int64_t limit_ns;
    int32_t status;     /* Exit status, or minus the signal's number. */
    const char *output; /* The end of what it wrote, NUL-terminated; "": nothing. */
};

/* `text` gets the words for it, one line: "" where it passed. */
enum health_verdict health_judge(const struct health_run *run, char *text, size_t cap);

/* From one failed check to the next. */
int64_t health_longer_gap(int64_t gap_ns);

#endif
