/* One of the agent's own standard streams, written without ever waiting for its reader. */
#ifndef MUSTER_AGENT_CONSOLE_H
#define MUSTER_AGENT_CONSOLE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/str.h"

struct console {
    int fd;         /* To write to: ours, or the same thing opened anew without blocking. */
    bool owned;     /* Opened anew. */
    bool socket;    /* Written with MSG_DONTWAIT. */
    bool may_block; /* It could not be opened anew: small writes, when poll() says so. */
    bool file;      /* Always ready, never short but when it is full. */
    bool blocked;   /* The reader is behind: wait for POLLOUT. */
    bool gone;      /* Nobody reads it any more: what is put there is dropped. */
    struct mu_buf out;
    size_t sent; /* Of `out`. */
    uint64_t sent_total;
    bool given_up; /* As `gone`, but its reader had not closed it: what is dropped was lost. */
    uint64_t lost_lines;
    int lost_errno; /* 0: nothing was lost. */
};

/* Our descriptor stays as it is: who shares it must not find it non-blocking. */
void console_init(struct console *c, int fd);
void console_fini(struct console *c);
size_t console_pending(const struct console *c);

/* Write what `out` holds until it is empty or the reader is behind. Whole lines at a time: into a
 * pipe no more than it takes in one piece (PIPE_BUF), so that lines of other writers, other agents
 * among them, never come in between. What a full disk does not take is dropped and counted. */
void console_flush(struct console *c);

#endif
