/* A job of the pool as its submission has it: where no round of it is known, that is all there is
 * to show. Pure but for cJSON. */
#ifndef MUSTER_LAUNCHER_JOB_PAGE_H
#define MUSTER_LAUNCHER_JOB_PAGE_H

#include <stdbool.h>

#include <cjson/cJSON.h>

#include "base/str.h"
#include "launcher/options.h"
#include "launcher/table.h"

/* `job`: of GET /jobs/ID. */
bool cli_submission_is_over(const cJSON *job);

/* Its state, sentence, exit status and placement; for `verb` also that there is nothing of what it
 * shows. */
void cli_page_submission(struct mu_buf *out,
                         const cJSON *job,
                         enum cli_verb verb,
                         const struct cli_style *style);

/* The most workers it can have; 0: not told. */
int64_t cli_submission_workers(const cJSON *job);

/* Is it on that host, as far as it is known where it is? `ret` gets its hosts: "n1, n2". */
bool cli_submission_is_on(const cJSON *job, const char *host, struct mu_buf *ret);

/* The same for programs: the submission, or for a command that lists something an empty list. A new
 * tree, the caller's; NULL without memory. */
cJSON *cli_select_submission(const cJSON *job, enum cli_verb verb);

/* What stands behind "job X", with a blank in front: " is queued: waits for ...", or where the
 * sentence says the state itself, " was stopped: ...". */
void cli_add_state(struct mu_buf *b, const char *state, const char *sentence);

/* The same of a job that is over and why: " failed: rank 1 ...", " was stopped before it began". */
void cli_add_outcome(struct mu_buf *b, const char *state, const char *cause);

/* Of one that is told to stop: " is told to stop: ...", " is being stopped: ...". */
void cli_add_stop(struct mu_buf *b, const char *state, const char *sentence);

/* And of one that is in the queue anew: " waits again: ...". */
void cli_add_again(struct mu_buf *b, const char *state, const char *sentence);

#endif
