/* The line to the agent: a socket inherited at birth, packets of one JSON object each. Source:
 * docs/sdk.md "The agent's socket". One a process; any thread. */
#ifndef MUSTER_SDK_PROGRESS_LINE_H
#define MUSTER_SDK_PROGRESS_LINE_H

#include <stdbool.h>
#include <stdint.h>

struct line_section {
    char name[64];
    int64_t limit_ns; /* Negative: none. */
    int64_t since_ns;
};

/* Find the socket and greet, once; every call below does it where it was not done. Returns the
 * descriptor, -1: none. */
int line_open(void);
/* What was held back goes out. */
void line_flush(void);

void line_progress(uint64_t step);
void line_section_begin(const char *name, int64_t limit_ns);
void line_section_end(void);
/* The innermost open section; false: none. */
bool line_section(struct line_section *ret);
/* The last step told; false: none. */
bool line_step(uint64_t *ret);
void line_fail(const char *text);
/* What this process was doing failed because that rank did; -1: it goes on well without it. Said
 * once for each change. */
void line_blame(int32_t rank);
/* As if the agent had asked us to stop. Async-signal-safe. */
void line_request_stop(void);
/* Were we asked to stop? Tells the agent, once, that we look. */
bool line_stop_requested(void);
/* Were we asked to stop after this step, or one before it? Asks nobody anew. */
bool line_stops_after(uint64_t step);
/* This process stops for that: the agent is told, once, that its work is not done. */
void line_halts(uint64_t step);

#endif
