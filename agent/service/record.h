/* A job's output on its way into its file: lines, each with its time, rank and channel, as one JSON
 * object a line. Pure.
 *
 * The agent of a job writes each worker's line behind a mark with the worker's rank (RECORD_PREFIX
 * is its template); what has no mark is the agent's own, rank -1. A line longer than
 * RECORD_TEXT_BYTES leaves in pieces, all but the last with "part":true. */
#ifndef MUSTER_AGENT_SERVICE_RECORD_H
#define MUSTER_AGENT_SERVICE_RECORD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/str.h"

/* Record separators: no program writes them at a line's start. */
#define RECORD_PREFIX "\x1e${rank}\x1e"
#define RECORD_TEXT_BYTES 16000 /* Of a piece; OUTPUT has room for 16 KiB. */

/* One stream, stdout or stderr of the job's agent. */
struct record {
    int channel;    /* 1 stdout, 2 stderr */
    int32_t rank;   /* Of the line that has begun… */
    bool continues; /* …a piece of which has left already. */
    struct mu_buf part;
};

struct record_now {
    const char *at; /* ISO 8601 */
    int64_t unix_ms;
    const char *host;
};

void record_init(struct record *r, const struct mu_mem *mem, int channel);
void record_fini(struct record *r);

/* Append the whole lines to `out`. Returns how many records that were. Memory that is missing shows
 * in out->oom. record_end(): also the unterminated last words. */
uint32_t record_take(
    struct record *r, const struct record_now *now, const char *p, size_t n, struct mu_buf *out);
uint32_t record_end(struct record *r, const struct record_now *now, struct mu_buf *out);

/* One record of our own words (rank -1, stderr). lines_before >= 0: the head of a further file of
 * the same output, which says how many records came before it. */
void record_say(struct mu_buf *out,
                const struct record_now *now,
                int64_t lines_before,
                const char *text);

/* The head of a record without reading the whole of it. Returns false when it is none of ours. */
struct record_head {
    int64_t unix_ms;
    int32_t rank;
    int channel;
    bool is_junction;   /* Of a further file: shown only where what came before is gone. */
    struct mu_str text; /* As it stands in JSON, without its quotes. */
};
bool record_read(struct mu_str line, struct record_head *ret);

/* The text of a record, decoded, appended to `out`; never longer than the JSON was. */
void record_text(struct mu_str json, struct mu_buf *out);

#endif
