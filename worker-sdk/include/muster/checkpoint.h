/* Checkpoints that are whole or not there: written aside, synced, renamed, and marked DONE last.
 *
 *     muster_checkpoint_begin(m, comm, "ckpt", step, &k, &err)     all ranks
 *     rank 0: write files into muster_checkpoint_path(k)
 *     muster_checkpoint_commit(k, &err)
 *
 * A folder holds step-000000000120/ for each checkpoint, with a file DONE in the whole ones, and
 * ROUND, which says who writes here: run id, round, and when that process started. A writer is
 * stale when a later round of its job, or another job that was started after it, has written here
 * since: a rank 0 that was only slow, cut off or stopped cannot overwrite what its successor has
 * done. A new launch of the same job counts its rounds from the start and is no stale writer, for
 * it was started later. */
#ifndef MUSTER_CHECKPOINT_H
#define MUSTER_CHECKPOINT_H

#include <muster/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct muster_checkpoint muster_checkpoint;

/* Collective (a barrier over `c`, which may be NULL in a world of one): rank 0 makes an empty
 * folder aside in `dir` for the state after `step`; the others get a handle that does nothing.
 * `dir` is made if its parent is there. -ESTALE: a newer round writes here, which is named; nothing
 * was changed. */
MUSTER_API int muster_checkpoint_begin(muster *m,
                                       muster_comm *c,
                                       const char *dir,
                                       uint64_t step,
                                       muster_checkpoint **ret,
                                       struct muster_error *err);
/* Rank 0: the folder to write files and folders into; valid until commit or discard. Others: NULL.
 */
MUSTER_API const char *muster_checkpoint_path(const muster_checkpoint *k);
/* Sync, rename to step-<12 digits>, DONE; one of the same step is replaced, and stays whole until
 * then. -ESTALE: a newer round writes here; nothing was changed. After any error what was written
 * is removed. Frees the handle, whatever it returns. Waits at most the handle's time-out for
 * another process that commits here. */
MUSTER_API int muster_checkpoint_commit(muster_checkpoint *k, struct muster_error *err);
/* Give up: removes what was written. Takes NULL. */
MUSTER_API void muster_checkpoint_discard(muster_checkpoint *k);

/* The newest whole checkpoint of `dir`: the one of the highest step. 1: found; 0: none, or no such
 * folder; negative. `ret_path` has room for path_bytes. Leftovers of writers that died are passed
 * over. Let rank 0 ask and tell the others: what hosts see of a shared folder may differ for a
 * while.
 */
MUSTER_API int muster_checkpoint_latest(const char *dir,
                                        uint64_t *ret_step,
                                        char *ret_path,
                                        size_t path_bytes,
                                        struct muster_error *err);
/* Remove whole checkpoints but the newest `keep`, and leftovers of writers that died; not what
 * another process is writing. Rank 0 alone. */
MUSTER_API int muster_checkpoint_prune(const char *dir, size_t keep, struct muster_error *err);

#ifdef __cplusplus
}
#endif
#endif
