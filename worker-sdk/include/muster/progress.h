/* What a worker tells its agent, and what it asks: how far it is, why it fails, whether to stop.
 * Over the agent's socket where there is one (MUSTER_AGENT_FD); elsewhere these do nothing and cost
 * nothing. Nothing here waits for the agent: what it does not take at once is dropped, and an agent
 * that died is forgotten. A process has one agent, however many handles it opens: `m` may be NULL
 * in all but muster_should_stop() and muster_log(), for programs that need no store. Any thread. */
#ifndef MUSTER_PROGRESS_H
#define MUSTER_PROGRESS_H

#include <muster/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* This rank has finished `step`. Cheap: sends at most ten times a second, never blocks. */
MUSTER_API void muster_progress(muster *m, uint64_t step);
/* The last step goes out, where it was held back. muster_close() does it as well. */
MUSTER_API void muster_progress_flush(muster *m);
/* A named section that should not last longer than limit_ns (negative: no limit), such as "load
 * data". Sections nest, eight deep; the innermost counts. Its name is in the text of muster_fail().
 */
MUSTER_API void muster_section_begin(muster *m, const char *name, int64_t limit_ns);
MUSTER_API void muster_section_end(muster *m);

/* This process was asked to stop: call it from a SIGTERM handler of the program's own, or from
 * anywhere. Async-signal-safe. */
MUSTER_API void muster_request_stop(muster *m);
/* Was this process asked to stop, by muster_request_stop() or by its agent? Where a node is to
 * leave in order, the agents name one step to all ranks, and the answer is yes from
 * muster_progress() of that step on. Not collective: else ranks may see it at different steps, so
 * use muster_should_stop() to decide. */
MUSTER_API bool muster_stop_requested(muster *m);
/* Should the group stop after `step`? Collective: all ranks ask with the same step and get the same
 * answer, true once any of them was asked to stop, or to stop after that step. One tiny all-reduce
 * on the CPU's memory; `c` may be NULL in a world of one. -EPROTO: ranks asked with different
 * steps; names the lowest and highest.
 */
MUSTER_API int
muster_should_stop(muster *m, muster_comm *c, uint64_t step, bool *ret, struct muster_error *err);

/* Write why this worker fails to TORCHELASTIC_ERROR_FILE, in torch's schema, and tell the agent. An
 * open section and its limit are added to the text. The first failure counts: a file that is there
 * is left as it is. Without that variable only the agent is told. Does not exit. */
MUSTER_API int muster_fail(muster *m, const char *message, struct muster_error *err);

/* One line to stderr, in one piece: of rank 0 alone, or of each with "[rank 3] " in front. */
MUSTER_API void muster_log(const muster *m, bool all_ranks, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 3, 4)))
#endif
    ;

#ifdef __cplusplus
}
#endif
#endif
