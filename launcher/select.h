/* The part of a server's answer that a command shows, as JSON with the same names. Pure but for
 * cJSON. */
#ifndef MUSTER_LAUNCHER_SELECT_H
#define MUSTER_LAUNCHER_SELECT_H

#include <cjson/cJSON.h>

#include "launcher/options.h"

/* status: the whole answer, or the job. jobs: a list of jobs without their nodes, and those in
 * the queue of the pool. pool: its nodes and its queue. nodes: a list of
 * nodes, each with its "job". workers: a list of workers, each with its "job", "host" and
 * "node_rank". incidents: nothing, as they are another answer. A new tree, the caller's; NULL
 * without memory. job_id as in pages.h. */
cJSON *cli_select(const cJSON *answer, enum cli_verb verb, const char *job_id);

#endif
