/* What a failure costs: how many restarts count, for how long, and when starting again does not
 * help. Pure; part of struct job. */
#ifndef MUSTER_RENDEZVOUS_BUDGET_H
#define MUSTER_RENDEZVOUS_BUDGET_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cause.h"
#include "base/limits.h"

/* By what two failures are the same one. A worker that reports no steps has none. */
struct job_failed {
    enum mu_cause_kind kind;
    int32_t code; /* Exit status, or minus the signal's number. */
    int32_t rank;
    int32_t step; /* -1: there is none to compare with. */
};

struct job_budget {
    /* The job's spec, beside job.max_restarts. */
    int64_t window_ns;         /* Only restarts within so long count; 0: all. */
    int64_t give_back_ns;      /* None counts after a round has run so long; 0: not by time. */
    uint32_t give_back_steps;  /* Or has come so far; 0: not by steps. */
    bool same_failure_restart; /* The same failure twice is nothing special. */

    uint32_t spent; /* Restarts that count, those that have left the window since included. */
    int64_t spent_at_ns[MU_WINDOW_RESTARTS_MAX]; /* With a window: when, in order. */
    uint32_t given_back;                         /* Since the job began. */

    /* What the live round has proved. */
    int64_t ran_since_ns;     /* Since when all its workers run; INT64_MAX: not yet. */
    int32_t first_step;       /* The first one that a worker of it reported; -1: none. */
    uint32_t proven;          /* Members all of whose workers have come far enough. */
    uint32_t given_back_here; /* During it. */

    struct job_failed failed; /* Of the last round that failed; no round came further since. */
    bool same_failure;        /* This one fails as that did: job.final for that reason. */
};

#endif
