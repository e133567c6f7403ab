/* Which of several workers failed first, where the kernel does not say.
 *
 * A process that is killed closes its sockets before it has ended; its peers see that, say whom
 * they lost, and can have exited before it. And one that says itself why it fails tidies up before
 * it exits. So when a worker exits by itself with a failure, and another one of this node is
 * ending, or has said why it fails before, its exit is held back a moment: then whom the others
 * name comes first, then a signal, then who said nothing, then the earliest word, and else the
 * order of the ends. Nothing is held where nobody else is suspect, so a lone failure is passed on
 * at once. */
#ifndef MUSTER_AGENT_FIRST_H
#define MUSTER_AGENT_FIRST_H

#include <uv.h>

#include "agent/workers/work.h"

#define FIRST_HELD_MAX 64
/* From a process's first steps out to its end: milliseconds, more on a loaded machine. */
#define FIRST_HOLD_MS 50

struct first {
    uv_timer_t timer;
    struct work *work;
    void (*deliver)(void *arg, const struct work_exit *e);
    void *arg;
    uint32_t rank_base;
    struct work_exit held[FIRST_HELD_MAX];
    uint32_t count;
};

void first_init(struct first *f, uv_loop_t *loop);
/* work: borrowed. deliver: gets every exit, once. */
void first_use(struct first *f,
               struct work *work,
               void (*deliver)(void *arg, const struct work_exit *e),
               void *arg);
/* Rank of the round's first worker here: workers name each other by rank. */
void first_begin(struct first *f, uint32_t rank_base);
/* deciding: the group runs, so this exit could be what ends the round. */
void first_take(struct first *f, const struct work_exit *e, bool deciding);
/* Deliver what is held now. */
void first_flush(struct first *f);
void first_close(struct first *f);

#endif
