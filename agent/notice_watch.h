/* Asks, every few seconds, whether this machine is about to be taken away (--preemption-url). The
 * request is made on a thread of libuv's pool: the loop never waits for it. */
#ifndef MUSTER_AGENT_NOTICE_WATCH_H
#define MUSTER_AGENT_NOTICE_WATCH_H

#include <stdbool.h>
#include <stdint.h>

#include <uv.h>

#include "agent/notice_read.h"

struct notice_poll;

struct notice_watch {
    uv_timer_t timer;
    struct notice_poll *poll; /* NULL: nothing is watched. */
    void *arg;
    void (*on_notice)(void *arg, const struct notice *n);
    void (*on_trouble)(void *arg, const char *text); /* Said once; asked on. */
};

/* where: as --preemption-url has it; NULL: nothing is watched, nothing is opened. metadata_host: in
 * the place of the clouds' own; NULL: none. Returns 0, or a negative errno with a sentence. */
int notice_watch_init(struct notice_watch *w,
                      uv_loop_t *loop,
                      const char *where,
                      const char *metadata_host,
                      struct mu_err *err);
void notice_watch_close(struct notice_watch *w);
/* A request is under way: the process ends without it. */
bool notice_watch_is_busy(const struct notice_watch *w);

#endif
