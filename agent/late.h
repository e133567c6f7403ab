/* Why does the rendezvous take so long? After a while the agent lets muster-doctor look, once, at
 * this node's names and its way to the server, and says what it found in one line. A process of its
 * own with a limit, beside the loop; it changes nothing of what the agent does. */
#ifndef MUSTER_AGENT_LATE_H
#define MUSTER_AGENT_LATE_H

#include <stdbool.h>
#include <stdint.h>

#include <uv.h>

#include "agent/guest.h"
#include "base/parse.h"

#define LATE_AFTER_NS INT64_C(60000000000) /* Before that, people are still starting nodes. */
#define LATE_LEAST_NS INT64_C(2000000000)  /* Who waits for less wants no explanations. */
#define LATE_LIMIT_NS INT64_C(20000000000) /* A look-up, and some addresses that do not answer. */

struct late {
    uv_loop_t *loop;
    uv_timer_t timer;                 /* Until it looks. */
    const struct mu_endpoint *server; /* NULL: never; nothing here is used. */
    int64_t after_ns;
    struct guest guest;
    bool waiting;
    bool done; /* Once is enough. */
    void (*on_said)(void *arg, const char *text);
    void *arg;
};

/* server: where the rendezvous is, borrowed; NULL: nothing is ever looked at. join_timeout_ns: it
 * looks early enough for that. The timer does not keep the loop alive. */
void late_init(struct late *l,
               uv_loop_t *loop,
               const struct mu_endpoint *server,
               int64_t join_timeout_ns,
               void (*on_said)(void *arg, const char *text),
               void *arg);
void late_use(struct late *l, struct work *work);
/* After each step: does the agent wait for the rendezvous? */
void late_follow(struct late *l, bool waits);
void late_close(struct late *l);

#endif
