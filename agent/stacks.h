/* What the workers of this node were doing when one of them hung: their stacks, taken before they
 * are stopped. By the user's command, or by a debugger where there is one, else from /proc, which
 * needs no program.
 *
 * Never blocks the loop, and ends in time: commands are processes with groups of their own, whose
 * output is read as it comes and which are killed at the limit; /proc is read by a thread of
 * libuv's pool. Children of ours that are no workers go with the round at the latest (work.h). */
#ifndef MUSTER_AGENT_STACKS_H
#define MUSTER_AGENT_STACKS_H

#include <stdbool.h>
#include <stdint.h>

#include <uv.h>

#include "agent/workers/spawn.h"
#include "base/err.h"
#include "base/limits.h"
#include "base/str.h"

#define STACKS_BYTES_MAX 65536UL /* Of one worker. */
#define STACKS_AT_ONCE 8         /* Commands: a debugger takes a core and much memory. */

struct stacks_worker {
    uint32_t local_rank;
    uint32_t rank;
    int32_t pid;
};

/* One worker's. */
struct stacks_look {
    struct stacks *owner;
    struct stacks_worker worker;
    uv_poll_t exit; /* On its pidfd. */
    uv_poll_t pipe; /* On its output. */
    int32_t pid;    /* Of the command; 0: none was started. */
    int pidfd;
    int pipe_fd;
    int open_handles;
    bool started; /* Or it is not its turn yet. */
    bool over;
    bool late; /* Killed at the limit. */
    struct mu_buf text;
};

struct stacks {
    uv_loop_t *loop;
    const char *hook; /* NULL: what is there; "": nothing. Borrowed. */
    void (*on_done)(void *arg);
    void *arg;
    uv_timer_t timer;
    struct spawner spawner;
    bool spawner_ready;
    bool busy;
    bool closing;
    bool facts_asked;          /* In this take. */
    bool valid;                /* The texts are of the round that runs. */
    struct stacks_look *looks; /* Of the take that runs, or was last. */
    uint32_t count;
    uint32_t running;
    uint32_t late_count;
    struct stacks_facts *facts; /* Being read by a thread; NULL: none. */
    char trouble[224];          /* Why a command could not be started; "": it could. */
};

/* on_done: once for each stacks_take() that returned true, from the loop, unless
 * stacks_cancel() came before. */
void stacks_init(
    struct stacks *s, uv_loop_t *loop, const char *hook, void (*on_done)(void *arg), void *arg);
/* Take the stacks of these, the first ones first, within limit_ns for all together. Returns false
 * where nothing is to be taken, or one take is under way. */
bool stacks_take(struct stacks *s, const struct stacks_worker *v, uint32_t count, int64_t limit_ns);
bool stacks_is_busy(const struct stacks *s);
/* The round is over. What runs is killed. */
void stacks_cancel(struct stacks *s);

/* After on_done, until the next take: of the i-th worker. "" where nothing came. */
uint32_t stacks_count(const struct stacks *s);
const char *stacks_text(struct stacks *s, uint32_t i, struct stacks_worker *ret);
/* How it went, in one sentence: "stacks of 2 workers were taken (1 not within 10 s)". */
void stacks_describe(const struct stacks *s, int64_t limit_ns, struct mu_buf *out);

/* Closes the handles; when the loop is through, stacks_fini(). */
void stacks_close(struct stacks *s);
void stacks_fini(struct stacks *s);

#endif
