/* TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT: a worker that has been in uninterruptible sleep (D
 * state) for so long waits for a device or a file system that will not answer. Looks at /proc, and
 * only where the variable is set. */
#ifndef MUSTER_AGENT_WATCHDOG_H
#define MUSTER_AGENT_WATCHDOG_H

#include <stdint.h>

#include <uv.h>

struct watchdog {
    uv_timer_t timer;
    int64_t limit_ns; /* 0: off. */
    uint32_t count;
    int32_t *pids;     /* Of the round. */
    int64_t *since_ns; /* Seen in D state at each look since; 0: not. */
    void *arg;
    void (*on_stuck)(void *arg, const char *text);
};

/* The timer does not keep the loop alive. Returns 0 or -ENOMEM. */
int watchdog_init(struct watchdog *w,
                  uv_loop_t *loop,
                  uint32_t nproc,
                  int64_t limit_ns,
                  void (*on_stuck)(void *arg, const char *text),
                  void *arg);
/* Workers were started: watch these. on_stuck is called once a round, with a sentence. */
void watchdog_start(struct watchdog *w, const int32_t *pids);
void watchdog_stop(struct watchdog *w);
void watchdog_close(struct watchdog *w);

#endif
