/* muster stop: ends a job of the pool, or takes it out of the queue. Shell. */
#ifndef MUSTER_LAUNCHER_STOP_H
#define MUSTER_LAUNCHER_STOP_H

#include "launcher/options.h"

/* Returns the exit status. */
int cli_stop(const struct cli_options *o);

#endif
