/* Fetch, draw, and again: what the looking commands do. Shell. */
#ifndef MUSTER_LAUNCHER_SHOW_H
#define MUSTER_LAUNCHER_SHOW_H

#include "launcher/options.h"

/* Returns the exit status: 0; 1 with a sentence on stderr; with --watch and a job, 0 when it
 * succeeded and 1 when it failed. */
int cli_show(const struct cli_options *o);

/* Does the environment of this process want colours on a terminal? */
bool cli_wants_colour(void);

#endif
