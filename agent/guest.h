/* One more process among the workers' (work_start_guest()), for a limited time and with a limited
 * ear: how it ended, and the end of what it wrote. Beside the loop. What it is for, and what its
 * end means, is the caller's. */
#ifndef MUSTER_AGENT_GUEST_H
#define MUSTER_AGENT_GUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <uv.h>

#include "agent/workers/work.h"

#define GUEST_TAIL_BYTES 1024 /* Its last line is what people see. */

/* timed_out: it was killed at its limit, and has no status. What it wrote is in guest.tail. */
typedef void guest_fn(void *arg, int32_t status, bool timed_out);

struct guest {
    uv_loop_t *loop;
    uv_timer_t timer; /* Of its limit. */
    uv_poll_t *poll;  /* On `fd`, while it runs; freed when it is closed. */
    int fd;           /* Where we read what it writes; -1. */
    struct work *work;
    bool running;
    char tail[GUEST_TAIL_BYTES];
    size_t tail_bytes;
    guest_fn *on_over;
    void *arg;
};

/* Its handles do not keep the loop alive. */
void guest_init(struct guest *g, uv_loop_t *loop, guest_fn *on_over, void *arg);
void guest_use(struct guest *g, struct work *work);
/* on_over follows from the loop within the limit. Returns 0, or a negative errno, and nothing
 * follows: -EBUSY: the one before it does not end after SIGKILL. One that runs is given up first.
 */
int guest_start(struct guest *g, char *const argv[], int64_t limit_ns);
/* Killed where it runs; nothing more follows. */
void guest_give_up(struct guest *g);
void guest_close(struct guest *g);

#endif
