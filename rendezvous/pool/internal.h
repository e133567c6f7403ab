/* What the files of this room share.
 *
 * pool.c    events in: nodes, and what they say
 * jobs.c    submissions, ends, the dirty list
 * again.c   jobs that start again since nodes were lost
 * place.c   who gets which node, slots and GPUs
 * drain.c   hosts that take no jobs
 * words.c   sentences and names
 * keep.c    rows */
#ifndef MUSTER_RENDEZVOUS_POOL_INTERNAL_H
#define MUSTER_RENDEZVOUS_POOL_INTERNAL_H

#include "rendezvous/pool/pool.h"

/* --- jobs.c --- */
struct pool_job *pool_job_at(const struct pool *p, uint32_t slot);
/* It is placed, and is to stay where it is. */
bool pool_job_goes_on(const struct pool_job *j);
/* Is it on nodes, or ending there? Else what is said of a start is of an earlier one. */
bool pool_job_has_start(const struct pool_job *j);
void pool_job_dirty(struct pool *p, struct pool_job *j);
/* The only function that writes the state. */
void pool_job_move(struct pool *p, struct pool_job *j, enum pool_job_state to);
/* Look whether it has ended, or has to go back to the queue. */
void pool_job_check(struct pool *p, struct pool_job *j);
int pool_job_submit(struct pool *p,
                    const struct pool_submission *s,
                    struct pool_job **ret,
                    struct mu_err *err);
int pool_job_stop(
    struct pool *p, struct pool_job *j, int32_t signo, int64_t grace_ms, struct mu_err *err);
int pool_job_resume(struct pool *p, struct pool_job *j, struct mu_err *err);
/* A job that a node has and nobody knows. NULL without memory or room. */
struct pool_job *pool_job_adopt(struct pool *p, uint32_t node, const struct ctl_has *m);
/* An empty one in a slot; NULL without memory. */
struct pool_job *pool_job_new(struct pool *p, const char *id);
/* Nothing of its last start counts any more, and it stands in the queue, by its order. */
void pool_job_wait_anew(struct pool *p, struct pool_job *j);
void pool_job_enqueue(struct pool *p, struct pool_job *j);
void pool_job_dequeue(struct pool *p, struct pool_job *j);
void pool_job_free(struct pool *p, struct pool_job *j);
void pool_job_drop_seats(struct pool *p, struct pool_job *j);
void pool_job_fail(struct pool *p, struct pool_job *j, const char *text);
uint32_t pool_hash(const char *id);
/* Its output may be there still. */
void pool_job_note_past(struct pool *p, struct pool_job *j, const char *node_id);

/* --- again.c --- */
/* It is about to end: does it start again instead? Then it stands in the queue. */
bool pool_job_starts_again(struct pool *p, struct pool_job *j);

/* --- words.c --- */
/* "n1, n2 and 3 more": the hosts of its seats in these states, a bit each. Returns how many. */
uint32_t pool_add_hosts(const struct pool_job *j, unsigned states, struct mu_buf *b);
#define POOL_SEAT_BIT(s) (1U << POOL_SEAT_##s)

/* --- place.c --- */
bool pool_seat_is_live(const struct pool_seat *s);
/* Take what the seat's gpus say, and nproc slots. */
void pool_seat_hold(struct pool *p, const struct pool_job *j, struct pool_seat *s);
void pool_seat_release(struct pool *p, const struct pool_job *j, struct pool_seat *s);
/* Find nodes for whoever waits. */
void pool_schedule(struct pool *p);
/* How many GPUs the job takes of such a node. */
uint32_t pool_job_gpus_on(const struct pool_job *j, const struct pool_node *n);
/* Could it run there if nothing else did? And now? */
bool pool_node_could(const struct pool_node *n, const struct pool_job *j);
bool pool_node_fits(const struct pool_node *n, const struct pool_job *j);
bool pool_node_takes_jobs(const struct pool_node *n);
/* Are there nodes enough that may run it, at once or later, and have not refused it? Those that run
 * it count. */
bool pool_job_has_others(const struct pool *p, const struct pool_job *j);

/* --- drain.c --- */
bool pool_host_is_drained(const struct pool *p, const char *host);
int pool_drain_node(struct pool *p, struct pool_node *n, bool by_itself, struct mu_err *err);
int pool_undrain_node(struct pool *p, struct pool_node *n, struct mu_err *err);
int pool_undrain_host(struct pool *p, const char *host, struct mu_err *err);

/* --- pool.c --- */
uint32_t pool_node_new(struct pool *p, const char *id, struct mu_err *err);
uint32_t pool_node_find(const struct pool *p, const char *id);

#endif
