/* When a service connects, says beat, drops a connection that has gone silent, and speaks of what
 * it waits for. Pure. It never gives up: a node that is not there when its server comes back would
 * have to be looked after by hand. */
#ifndef MUSTER_AGENT_SERVICE_LINE_H
#define MUSTER_AGENT_SERVICE_LINE_H

#include <stdbool.h>
#include <stdint.h>

enum line_state {
    LINE_DOWN,   /* Next attempt at `retry_at_ns`. */
    LINE_TRYING, /* One is under way. */
    LINE_ASKED,  /* Connected, and we have said who we are. */
    LINE_READY
};

enum line_event {
    LINE_EV_UP,
    LINE_EV_FAILED,  /* An attempt, */
    LINE_EV_LOST,    /* or a connection. */
    LINE_EV_REFUSED, /* The server does not want us, for now. */
    LINE_EV_WELCOME,
    LINE_EV_HEARD, /* Any message. */
    LINE_EV_DEADLINE
};

/* What to do: bits. */
enum {
    LINE_CONNECT = 1,
    LINE_OFFER = 2,
    LINE_BEAT = 4, /* `seq` is its number. */
    LINE_DROP = 8, /* Nothing came for too long. LOST follows. */
    LINE_WORD = 16 /* Say what we wait for, and since when. */
};

struct line {
    enum line_state state;
    uint64_t random;
    int64_t retry_at_ns;
    int64_t backoff_ns;
    int64_t beat_ns;
    int64_t beat_at_ns;
    int64_t heard_ns;
    int64_t silence_ns;
    int64_t away_since_ns; /* Without a server. */
    int64_t word_at_ns;
    int64_t word_gap_ns;
    uint64_t seq;
};

void line_init(struct line *l, int64_t now_ns, uint64_t seed);
/* beat_ns, lease_ns: of WELCOME. */
unsigned
line_step(struct line *l, int64_t now_ns, enum line_event ev, int64_t beat_ns, int64_t lease_ns);
int64_t line_deadline(const struct line *l);

#endif
