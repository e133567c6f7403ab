/* Files and folders of a checkpoint: trees synced and removed, small files put down whole. Knows
 * nothing of rounds. All return 0 or a negative errno. */
#ifndef MUSTER_SDK_CHECKPOINT_FILES_H
#define MUSTER_SDK_CHECKPOINT_FILES_H

#include <stddef.h>
#include <stdint.h>

/* fsync every file and folder below `at`/`name`, and itself. */
int files_sync_tree(int at, const char *name);
/* Remove `at`/`name` and all below; 0 when it is not there. Links are removed, not followed. */
int files_remove_tree(int at, const char *name);
/* Written aside, synced, renamed, and the folder synced: never half. */
int files_put(int at, const char *name, const char *text, size_t n);
/* At most cap - 1 bytes and a NUL behind them. */
int files_get(int at, const char *name, char *ret, size_t cap);
/* Take the lock of the open file or folder `fd` before the deadline; 0 also where the file system
 * has no locks. -ETIMEDOUT: somebody else holds it. deadline_ns 0: try once. */
int files_lock(int fd, int64_t deadline_ns);

#endif
