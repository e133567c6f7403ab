/* One question about one job, or one order: what the job commands share. Shell. */
#ifndef MUSTER_LAUNCHER_ASK_H
#define MUSTER_LAUNCHER_ASK_H

#include <stdbool.h>

#include <cjson/cJSON.h>

#include "base/err.h"
#include "launcher/http.h"
#include "launcher/options.h"

void cli_cjsonp(cJSON **j); /* For MU_CLEANUP. */

/* "/v1/jobs/ID" with `tail` ("/stop") behind it. */
void cli_job_path(struct cli_http *h, struct mu_buf *b, const char *id, const char *tail);

/* Ask, and want a 2xx answer with a JSON object, which is the caller's. NULL with a sentence that
 * names the remedy; err->code is then -ENOENT where the server knows no such job. */
cJSON *cli_ask(struct cli_http *h,
               const struct cli_options *o,
               const char *method,
               const char *path,
               const struct mu_buf *request,
               struct mu_err *err);

/* The sentence for an answer that was no success. `body` may be anything. Returns err->code. */
int cli_refused(const struct cli_http *h, long status, struct mu_str body, struct mu_err *err);

/* The submission; NULL as cli_ask(). */
cJSON *cli_ask_submission(struct cli_http *h,
                          const struct cli_options *o,
                          const char *id,
                          struct mu_err *err);

/* The same. Where the job is known but was not started by a service, the
 * sentence says where its output is. */
cJSON *
cli_ask_job(struct cli_http *h, const struct cli_options *o, const char *id, struct mu_err *err);

/* To stdout, with a newline. Returns 0 or -EIO with a sentence. */
int cli_print(const char *text, struct mu_err *err);
int cli_print_json(const cJSON *o, bool on_one_line, struct mu_err *err);

/* "muster run: sentence" on stderr, made plain. */
void cli_say(const struct cli_options *o, const char *fmt, ...) MU_PRINTF(2, 3);

#endif
