/* Where the output of jobs is kept on this node: <log-dir>/<job>.<attempt>.<part>.log, one record a
 * line (record.h). When a part has half of what one job may keep, the next one begins and the one
 * before the last goes; the new one's first record says how many came before. When all together
 * are too much, parts of ended jobs go, the oldest first.
 *
 * A server that loses its memory may give an id again. An empty file, .<job>.<when it was
 * submitted>, says whose output is there under the id; another job's is renamed to
 * <job>~<when>.<attempt>.<part>.log when the id is claimed, and never shown under it.
 *
 * The loop never waits for a disk: what is to be written is handed to a thread of libuv's pool, one
 * batch of a job at a time, and who has more to say waits for on_written. A full disk
 * stops nobody: what it does not take is counted, said once, and noted in the file when there is
 * room again, or at the job's end; a note that finds no room then is kept in memory
 * (kept_find_gap()), so that a reader hears of the loss. All calls on the loop's thread. */
#ifndef MUSTER_AGENT_SERVICE_KEPT_H
#define MUSTER_AGENT_SERVICE_KEPT_H

#include <stdbool.h>
#include <stdint.h>

#include <uv.h>

#include "agent/service/record.h"
#include "base/err.h"
#include "base/limits.h"
#include "base/str.h"

#define KEPT_GAPS_MAX 64

/* Lines of a job that were lost behind the last one in its files, where there was no room to note
 * that either. */
struct kept_gap {
    char job[MU_RUN_ID_BYTES];
    uint64_t lines; /* 0: none. */
    int error;
    int64_t unix_ms; /* When the last of them was. */
};

struct kept {
    uv_loop_t *loop;
    int dir_fd;
    int lock_fd; /* One service has a folder to itself: it removes what it does not know. */
    char dir[MU_DIR_BYTES];
    char host[MU_HOST_BYTES];
    uint64_t job_bytes;
    uint64_t all_bytes;
    uint64_t since_sweep; /* Bytes written. */
    struct keeper *keepers;
    struct kept_gap gaps[KEPT_GAPS_MAX]; /* Of jobs that have ended. */
    void *arg;
    uint32_t (*live_attempt)(void *arg, const char *job); /* The start of it that runs; 0: none. */
    void (*on_gone)(void *arg, const char *job); /* The last part of an ended job was removed. */
    void (*on_trouble)(void *arg, const char *text); /* Once a job. */
};

/* The other fields are the caller's to fill before. Makes the folder. Returns 0 or a negative errno
 * with a sentence. */
int kept_init(struct kept *l, const char *dir, struct mu_err *err);
void kept_fini(struct kept *l);
/* Remove what is too much. */
void kept_sweep(struct kept *l);
/* The time as records have it; `at` has room for 32 bytes. */
struct record_now kept_now(const struct kept *l, char *at);

/* A job's id that may be a file's name. */
bool kept_is_name(const char *job);

/* The id is that job's from now on; submitted_ms 0: nothing is known of it, and nothing done.
 * Output of another job is moved aside: the number of files, and in ret_aside, which has
 * KEPT_ASIDE_BYTES, what stands in place of the id in their names. */
#define KEPT_ASIDE_BYTES MU_RUN_ID_BYTES
int kept_claim(
    struct kept *l, const char *job, uint32_t attempt, int64_t submitted_ms, char *ret_aside);
/* May what is kept under that id be that job's? */
bool kept_is_of(const struct kept *l, const char *job, int64_t submitted_ms);

struct kept_part {
    uint32_t attempt;
    uint32_t part;
};
/* The first part of that job behind `after` (NULL: the very first). False: there is none. */
bool kept_next(const struct kept *l,
               const char *job,
               const struct kept_part *after,
               struct kept_part *ret);
/* The last one. */
bool kept_last(const struct kept *l, const char *job, struct kept_part *ret);
/* Open one for reading: a descriptor, or a negative errno. */
int kept_open(const struct kept *l, const char *job, struct kept_part part);

/* What that job has lost behind what is kept. False: nothing. */
bool kept_find_gap(const struct kept *l, const char *job, struct kept_gap *ret);
/* Of one that has ended. */
void kept_note_gap(struct kept *l, const struct kept_gap *gap);
/* "[7 lines are missing here: No space left on device]" */
#define KEPT_GAP_BYTES 160
void kept_gap_text(const struct kept_gap *gap, char *ret);

struct keeper;

/* To go on where another process was (a service that was started anew): part and lines, else 0.
 * on_written is called after each keeper_write(). Returns NULL when there is no memory. */
struct keeper *keeper_new(struct kept *l,
                          const char *job,
                          uint32_t attempt,
                          uint32_t part,
                          uint64_t lines,
                          void (*on_written)(void *arg),
                          void *arg);
bool keeper_is_busy(const struct keeper *g);
/* What is to be written next; add records to it while the log is not busy. */
struct mu_buf *keeper_batch(struct keeper *g);
/* Write that. `lines` is how many records it has. Nothing happens when it is empty. */
void keeper_write(struct keeper *g, uint32_t lines);
/* All that the job wrote has come: note what was lost behind the last line, if that was not tried.
 * Returns whether that is being written. */
bool keeper_end(struct keeper *g);
uint32_t keeper_part_of(const struct keeper *g);
uint64_t keeper_lines_of(const struct keeper *g);
uint64_t keeper_lost(const struct keeper *g);
/* Why the last of them were. */
int keeper_error(const struct keeper *g);
/* What another process had lost and said; what of it is noted nowhere goes by kept_note_gap(). */
void keeper_take_loss(struct keeper *g, uint64_t lost);
/* Not while busy. What was lost last and is not noted in its file goes to kept_note_gap(). */
void keeper_free(struct keeper *g);

#endif
