/* Why rounds ended, as text for a terminal: pages of GET /jobs/ID/incidents. Pure but for cJSON. */
#ifndef MUSTER_LAUNCHER_INCIDENTS_H
#define MUSTER_LAUNCHER_INCIDENTS_H

#include <cjson/cJSON.h>

#include "base/err.h"
#include "base/str.h"
#include "launcher/table.h"

/* One line an incident. `answers`: an array of the server's answers, one a job. */
void cli_page_incidents(struct mu_buf *out, const cJSON *answers, const struct cli_style *style);

/* All about one: what failed first and where, its last words, what failed after it, what was
 * decided, how long each phase took. `incident` is one of `answer`. */
void cli_page_incident(struct mu_buf *out,
                       const cJSON *answer,
                       const cJSON *incident,
                       const struct cli_style *style);

/* The incident of that number. NULL with a sentence that says which there are. */
const cJSON *cli_incident_find(const cJSON *answer, uint32_t number, struct mu_err *err);

#endif
