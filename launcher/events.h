/* The server's stream of events, waited for with a limit. Shell. */
#ifndef MUSTER_LAUNCHER_EVENTS_H
#define MUSTER_LAUNCHER_EVENTS_H

#include <stdint.h>

#include "base/err.h"
#include "base/str.h"
#include "launcher/http.h"

struct cli_events;

/* Begin to ask for `path`, on a connection of its own. timeout_ns: until the first event. `h` must
 * outlive it. Returns NULL with a sentence. */
struct cli_events *
cli_events_new(struct cli_http *h, const char *path, int64_t timeout_ns, struct mu_err *err);
void cli_events_free(struct cli_events *s); /* Takes NULL. */

/* Wait for the next event. Of several that are here the last one counts. Returns 1 with its data in
 * `body`; 0: none came within wait_ns; or a negative errno with a sentence, and the stream is over:
 * -ENODATA: this server serves no such stream, or no further one. */
int cli_events_next(struct cli_events *s, int64_t wait_ns, struct mu_buf *body, struct mu_err *err);

#endif
