/* The folders of a job on this node: <base>/<run id>_<random>/attempt_<restarts>/<local rank>/.
 *
 * A base folder that nobody named holds nothing but, perhaps, error files. Making and removing a
 * folder per worker costs 165 us on ext4 here and 11 us in memory, where a no-op worker takes 490
 * us in all: so it lies in /dev/shm, unless TMPDIR says where temporary files go or output is
 * written to it. An error file that is read is copied to TMPDIR. */
#ifndef MUSTER_AGENT_LOGS_H
#define MUSTER_AGENT_LOGS_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/limits.h"

#define LOGS_TAG_BYTES 9 /* Eight random characters. */

struct logs {
    bool none;       /* --log-dir=/dev/null */
    bool is_default; /* Ours to remove. */
    bool in_memory;
    bool base_made;
    bool job_made;
    uint32_t nproc;
    uint32_t attempt;     /* The current one. */
    uint32_t attempt_low; /* Made so far: low to high. */
    uint32_t attempt_high;
    bool attempt_any;
    char base[1024];
    char lasting[1024]; /* Where an error file is copied to when in_memory. */
    char job[MU_RUN_ID_BYTES + LOGS_TAG_BYTES + 1];
};

struct logs_config {
    const char *dir;    /* As plan_config.log_dir. */
    const char *tmpdir; /* $TMPDIR; NULL: not set. */
    const char *run_id;
    uint32_t nproc;
    bool has_output; /* Output is redirected to files. */
};

int logs_init(struct logs *l, const struct logs_config *c, struct mu_err *err);

/* "<base>/<job>/attempt_<n>" of the current attempt. ret: 1,280 bytes. */
#define LOGS_PATH_BYTES 1280
void logs_attempt_path(const struct logs *l, char *ret);
/* The folders of attempt `l->attempt`. */
int logs_make(struct logs *l, struct mu_err *err);
/* Where worker i's error file is, or the place it is copied to. ret: LOGS_PATH_BYTES. False: there
 * are no files. */
bool logs_error_path(const struct logs *l, uint32_t local_rank, bool lasting, char *ret);
/* mkdir -p for the folder that a file lies in. Returns 0 or a negative errno. */
int logs_make_parents(const char *path, unsigned mode);
void logs_cleanup(struct logs *l);
/* The same for whoever has the path alone: base/job/attempt/rank go, but for what holds a file.
 * in_memory: error files go as well. */
void logs_remove(const char *base, bool in_memory);

#endif
