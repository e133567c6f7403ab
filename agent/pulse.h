/* The pulse of the workers: looks at their processes now and then, gathers what they have said and
 * written, and lets agent/life/hang.c judge. A look costs one small file a worker; only for one
 * that used no CPU time since the last look are its descendants looked at, too. */
#ifndef MUSTER_AGENT_PULSE_H
#define MUSTER_AGENT_PULSE_H

#include <uv.h>

#include "agent/life/hang.h"
#include "agent/workers/output.h"
#include "agent/workers/work.h"
#include "base/ctl.h"

struct pulse_events {
    void *arg;
    /* The user's limit is passed. Looking ends with it. */
    void (*on_hung)(void *arg, const struct hang_verdict *v, int64_t now_ns);
    /* Who gives no sign of life has changed, or is told again: as the message SILENT has it. */
    void (*on_silent)(void *arg, struct ctl_ints workers);
};

struct pulse {
    uv_timer_t timer; /* Does not keep the loop alive. */
    struct hang hang;
    struct pulse_events events;
    const struct work *work;
    const struct output *output;
    int32_t *pids;   /* Of the round. */
    uint64_t *cpu;   /* At the last look. */
    uint64_t *below; /* Of descendants, when they were last looked at. */
    int32_t *told;   /* As it was told last. */
    int32_t *now;
    uint32_t told_count;
    int64_t told_ns;
};

/* Returns 0 or -ENOMEM. pulse_use() comes before the first start. */
int pulse_init(struct pulse *p,
               uv_loop_t *loop,
               uint32_t nproc,
               const struct hang_limits *limits,
               const struct pulse_events *events);
void pulse_use(struct pulse *p, const struct work *work, const struct output *output);
/* Workers were started. */
void pulse_start(struct pulse *p, const int32_t *pids);
void pulse_stop(struct pulse *p);
void pulse_close(struct pulse *p);

#endif
