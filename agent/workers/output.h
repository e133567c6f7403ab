/* Workers' output on its way to log files and to our own streams, a prefix before each line.
 *
 * Writing to a disk can take as long as it likes and a terminal can stand still, while the loop has
 * beats to send: so this has a thread of its own, which exists only where output passes through us.
 * A worker writes into a pipe; what is read goes to its file as it is, and line by line to the
 * console. A reader who is behind is waited for: those who write to that console are read no
 * further, so they wait too, nobody else does, and nothing is lost. A full disk is no reason to
 * stop a training: what its files do not take is counted, and said once.
 *
 * What a worker would have inherited passes byte by byte, with neither prefix nor cut: only its
 * last lines are kept in passing, for the report should it fail.
 *
 * All calls come from the loop's thread. */
#ifndef MUSTER_AGENT_OUTPUT_H
#define MUSTER_AGENT_OUTPUT_H

#include <stdbool.h>
#include <stdint.h>

#include <uv.h>

#include "agent/workers/work.h"
#include "base/err.h"

struct output_events {
    void *arg;
    /* A sentence for the user: output is being lost. Once for files, once for each console. */
    void (*on_trouble)(void *arg, const char *text);
    /* After output_finish(): everything is written, or was given up. Once. */
    void (*on_finished)(void *arg);
};

struct output;

/* Starts nothing yet. Returns 0 or -ENOMEM with a sentence. */
int output_new(uv_loop_t *loop,
               const struct output_events *events,
               struct output **ret,
               struct mu_err *err);

/* For work_round.passed: which of our own streams can pass through us unnoticed. A terminal cannot:
 * programs behave differently there. Where stdout and stderr lead to the same place they do so as
 * one stream, or what a worker writes to the one and to the other would change its order. */
uint8_t output_passable(void);

/* Make pipes and files for a round: round->output_fd is set where a stream passes through us, and
 * stays valid until output_started(), which closes our copies of the workers' ends. Files are made
 * if need be and written at their end; a full disk is no error, any other failure is: a negative
 * errno with a sentence. A round without such streams costs nothing. */
int output_open(struct output *o, struct work_round *round, struct mu_err *err);
void output_started(struct output *o);

/* Our own words on stderr, whole lines: never waits for its reader. While output passes through us
 * they queue behind it, so that neither tears the other. */
void output_say(struct output *o, const char *p, size_t n);

/* Every process of the round is gone: what the pipes still hold is all there will be. */
void output_round_over(struct output *o);

/* The last lines that a worker wrote, of its stderr if there are any, else of its stdout: at most
 * `lines`, in `cap` bytes with the NUL, fit to be shown (lines_show()). For a worker that has
 * ended. "" when it wrote nothing, or not by way of us, or when they could not be had within
 * limit_ms. Returns
 * the stream's number, 1 or 2; 0: none. */
int output_last_lines(struct output *o,
                      uint32_t local_rank,
                      uint32_t lines,
                      uint32_t limit_ms,
                      char *dst,
                      size_t cap);

/* Bytes of that worker that have passed through us, in all rounds. */
uint64_t output_written(const struct output *o, uint32_t local_rank);

/* Write what there is; on_finished follows from the loop. A reader who takes nothing for a minute
 * is given up. output_abandon() does so at once. */
void output_finish(struct output *o);
void output_abandon(struct output *o);
/* After on_finished: our own stdout or stderr did not take what workers wrote, and not because its
 * reader had seen enough. */
bool output_lost_console(const struct output *o);
/* What was lost, as one sentence; "" when nothing was. After on_finished. */
void output_describe_lost(const struct output *o, char *dst, size_t cap);
/* Close the handles and free; the loop runs on until they are closed. After on_finished. */
void output_close(struct output *o);

#endif
