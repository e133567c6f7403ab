/* Can a TCP connection be made from here? One attempt at a time, for the look at the lead's store
 * before workers start. Nothing is said on the connection, and nothing of it stays behind. */
#ifndef MUSTER_AGENT_REACH_H
#define MUSTER_AGENT_REACH_H

#include <stdbool.h>
#include <stdint.h>

#include <uv.h>

struct reach_attempt;

struct reach {
    uv_loop_t *loop;
    /* text: why not, "" when it can be. */
    void (*on_result)(void *arg, bool reached, const char *text);
    void *arg;
    struct reach_attempt *now; /* NULL: none is under way. */
};

#define REACH_LIMIT_NS INT64_C(3000000000)

/* Begin: on_result follows within REACH_LIMIT_NS, from the loop. An attempt that is under way is
 * given up without a word. `host`: an address, or a name where the user named one. */
void reach_begin(struct reach *r, const char *host, uint16_t port);

/* Give up what is under way; its handles close by themselves. */
void reach_cancel(struct reach *r);

#endif
