/* What a worker built on the SDK says to its agent, and the one thing the agent asks of it: one
 * socket for each worker, inherited as descriptor TALK_WORKER_FD, packets of one JSON object. A
 * worker that knows nothing of it never touches it. Source: docs/sdk.md "The agent's socket". */
#ifndef MUSTER_AGENT_TALK_H
#define MUSTER_AGENT_TALK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/limits.h"
#include "base/str.h"

#define TALK_WORKER_FD 3 /* In the worker: MUSTER_AGENT_FD. */

/* What one packet was about. */
enum talk_news {
    TALK_HELLO,
    TALK_PROGRESS,
    TALK_SECTION,
    TALK_BLAME,
    TALK_FAIL,
    TALK_LOOKS,
    TALK_HALTS,
    TALK_UNKNOWN, /* Of a newer SDK: skipped. */
    TALK_NEWS_COUNT
};

/* All that a worker has said so far. */
struct talk_said {
    bool hello;
    bool looks; /* It asks whether to stop, so it can be asked to. */
    bool halts; /* It stops because of talk_ask_stop_after(). */
    bool has_step;
    int64_t step;
    int64_t step_ns;          /* When it was heard of; monotonic. */
    char section[64];         /* The innermost open one; "": none. */
    int64_t section_limit_ns; /* Negative: none. */
    int64_t section_since_ns;
    int32_t blame;                  /* Rank whose failure broke what it was doing; -1: none. */
    char failure[MU_MESSAGE_BYTES]; /* Its own words; "": none. The first counts. */
    int64_t failure_ns;             /* When it said so, by its own word; monotonic. */
};

struct talk {
    int fd; /* -1: none, or closed for what came over it. */
    /* The worker's end, kept open here as well: else each exit of a worker would first wake us for
     * the end of its socket, and then for its own. */
    int worker_fd;
    struct talk_said said;
};

#define TALK_NONE                                                                                  \
    {                                                                                              \
        .fd = -1, .worker_fd = -1, .said = {.blame = -1 }                                          \
    }

/* Returns 0 or a negative errno. */
int talk_open(struct talk *t);
void talk_close(struct talk *t); /* What was said stays. Closed already: nothing. */

/* Take one packet. Returns 1 with what it was; 0: none is there; -EPROTO: it is none of ours, and
 * the socket is closed. */
int talk_read(struct talk *t, int64_t now_ns, enum talk_news *ret);
/* "Please stop": never waits; a worker that does not read it loses nothing. */
void talk_ask_stop(struct talk *t);
/* "Please stop when you have finished this step", which all ranks are told alike. */
void talk_ask_stop_after(struct talk *t, int64_t step);

/* One packet into *said. -EPROTO: no object, or a field of the wrong kind; then nothing changed. */
int talk_parse(struct mu_str packet, int64_t now_ns, struct talk_said *said, enum talk_news *ret);

#endif
