/* Runs the check of this node's health (--health-check): a shell command as a guest (guest.h), for
 * a limited time. What a result means is agent/life/health.h's. */
#ifndef MUSTER_AGENT_HEALTH_H
#define MUSTER_AGENT_HEALTH_H

#include <stdbool.h>
#include <stdint.h>

#include <uv.h>

#include "agent/guest.h"
#include "agent/life/health.h"

struct health {
    const char *command; /* NULL: none, and nothing here is used. */
    int64_t limit_ns;
    struct guest guest;
    uv_timer_t timer; /* For one that could not be started: that is told from the loop too. */
    char trouble[128];
    void *arg;
    void (*on_known)(void *arg, enum health_verdict v, const char *text);
};

/* Its handles do not keep the loop alive. `command` is borrowed. */
void health_init(struct health *h,
                 uv_loop_t *loop,
                 const char *command,
                 int64_t limit_ns,
                 void (*on_known)(void *arg, enum health_verdict v, const char *text),
                 void *arg);
void health_use(struct health *h, struct work *work);
/* on_known follows, from the loop, within the limit. One that runs is given up, and says nothing
 * more. */
void health_begin(struct health *h);
void health_cancel(struct health *h);
void health_close(struct health *h);

#endif
