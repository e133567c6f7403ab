/* Runs the check of this node's health (--health-check): a shell command in a session of its own,
 * beside the loop, for a limited time and with a limited ear for what it writes. What a result
 * means is agent/life/health.h's. */
#ifndef MUSTER_AGENT_HEALTH_H
#define MUSTER_AGENT_HEALTH_H

#include <stdbool.h>
#include <stdint.h>

#include <uv.h>

#include "agent/life/health.h"
#include "agent/workers/work.h"

#define HEALTH_TAIL_BYTES 1024 /* Its last line is what people see. */

struct health {
    uv_loop_t *loop;
    uv_timer_t timer;
    uv_poll_t *poll;     /* On `fd`, while a check runs; freed when it is closed. */
    int fd;              /* Where we read what it writes. */
    const char *command; /* NULL: none, and nothing here is used. */
    int64_t limit_ns;
    struct work *work;
    bool running;
    char tail[HEALTH_TAIL_BYTES];
    size_t tail_bytes;
    void *arg;
    void (*on_known)(void *arg, enum health_verdict v, const char *text);
};

/* The timer does not keep the loop alive. `command` is borrowed. */
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
