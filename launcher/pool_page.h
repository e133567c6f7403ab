/* The pool as a page: the nodes on offer, and the queue. Pure but for cJSON. */
#ifndef MUSTER_LAUNCHER_POOL_PAGE_H
#define MUSTER_LAUNCHER_POOL_PAGE_H

#include <cjson/cJSON.h>

#include "base/str.h"
#include "launcher/table.h"

/* `answer`: of GET /status. */
void cli_page_pool(struct mu_buf *out, const cJSON *answer, const struct cli_style *style);

/* The queue's entries that are no jobs of the rendezvous yet, for muster jobs: the next one behind
 * `after` (NULL: the first), or NULL. */
const cJSON *cli_queued_next(const cJSON *answer, const cJSON *after);

#endif
