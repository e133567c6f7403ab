/* What `muster` shows of a server's answer: text for a terminal. Pure but for cJSON. */
#ifndef MUSTER_LAUNCHER_PAGES_H
#define MUSTER_LAUNCHER_PAGES_H

#include <cjson/cJSON.h>

#include "base/str.h"
#include "launcher/table.h"

/* The server in a line, then each living job with its nodes, then what ended last. Lists that are
 * longer than style->lines are cut short with a word on what was left out and how to see it.
 * `where`: the server as it was named. `job_id`: only that job, living or ended, whole; NULL: all.
 * The job is there (cli_job_find). */
void cli_page_status(struct mu_buf *out,
                     const cJSON *answer,
                     const char *where,
                     const char *job_id,
                     const struct cli_style *style);

/* One line a job, ended ones too. */
void cli_page_jobs(struct mu_buf *out, const cJSON *answer, const struct cli_style *style);

/* One line a node, of one job or (job_id NULL) of all living ones. */
void cli_page_nodes(struct mu_buf *out,
                    const cJSON *answer,
                    const char *job_id,
                    const struct cli_style *style);

/* One line a worker, of one job or of all living ones. */
void cli_page_workers(struct mu_buf *out,
                      const cJSON *answer,
                      const char *job_id,
                      const struct cli_style *style);

#endif
