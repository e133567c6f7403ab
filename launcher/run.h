/* muster run: submits a job to the pool and follows it; or by ssh (hosts.h). Shell. */
#ifndef MUSTER_LAUNCHER_RUN_H
#define MUSTER_LAUNCHER_RUN_H

#include "launcher/options.h"

/* Returns the exit status: the job's own, 128+n for signals; 2 for what is wrong here. */
int cli_run(const struct cli_options *o);

#endif
