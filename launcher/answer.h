/* What the server answered: its JSON, read by name. Missing and wrongly typed members count as
 * absent, so that an older or newer server shows less and breaks nothing. Pure but for cJSON. */
#ifndef MUSTER_LAUNCHER_ANSWER_H
#define MUSTER_LAUNCHER_ANSWER_H

#include <stdbool.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "base/err.h"

/* Parse the body of GET /status. The tree is the caller's (cJSON_Delete). Returns NULL with a
 * sentence when it is no such answer. `where` names the server in it. */
cJSON *cli_answer_parse(const char *body, size_t n, const char *where, struct mu_err *err);

const char *cli_text(const cJSON *o, const char *key);               /* "" when absent or null */
int64_t cli_number(const cJSON *o, const char *key, int64_t absent); /* Cut to whole numbers. */
bool cli_is_true(const cJSON *o, const char *key);
const cJSON *cli_list(const cJSON *o,
                      const char *key); /* NULL when absent: cJSON_ArrayForEach takes that. */
const cJSON *cli_object(const cJSON *o, const char *key); /* NULL when absent or null */

/* Milliseconds from the time under `key` to the answer's own "now"; -1 when it is not known. */
int64_t cli_age_ms(const cJSON *answer, const cJSON *o, const char *key);

/* Let `ms` pass in it: its "now", its uptime, and since when each node was heard. */
void cli_answer_age(cJSON *answer, int64_t ms);

/* succeeded, or failed. */
bool cli_job_is_over(const cJSON *job);

/* A job by its id: the living one, or the one that ended last. NULL: none. */
const cJSON *cli_job_find(const cJSON *answer, const char *id);

#endif
