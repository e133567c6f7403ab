/* --event-log-handler=console: torchrun's events, one JSON object a line, on stderr. */
#ifndef MUSTER_AGENT_EVENTS_H
#define MUSTER_AGENT_EVENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/ctl.h"
#include "base/str.h"

/* What all events of a job have in common; borrowed. */
struct events_job {
    const char *run_id;
    const char *role;
    const char *host;
    const char *backend;     /* torchrun's word for how nodes meet. */
    const char *entry_point; /* What is executed. */
};

/* One event of a worker, or of the agent itself. */
struct events_item {
    const char *state;        /* "START", "SUCCEEDED", … */
    int64_t local_rank;       /* -1: the agent's own. */
    int32_t pid;              /* Of a worker. */
    int32_t exit_code;        /* Of a worker that failed; 0: none. */
    const char *error;        /* Its words, or NULL. */
    int64_t duration_ms;      /* -1: none. */
    int64_t total_run_time_s; /* Of the job so far. */
};

/* Append one line. `start`: the round; its round 0: none yet. */
void events_line(struct mu_buf *out,
                 const struct events_job *job,
                 const struct ctl_start *start,
                 const struct events_item *item);

#endif
