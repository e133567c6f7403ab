/* muster logs, attach and resume: a job's output. Shell. */
#ifndef MUSTER_LAUNCHER_LOGS_H
#define MUSTER_LAUNCHER_LOGS_H

#include "launcher/options.h"

/* Return the exit status. */
int cli_logs(const struct cli_options *o);
int cli_attach(const struct cli_options *o);

/* Starts an ended job again, and follows it unless --detach is given. */
int cli_resume(const struct cli_options *o);

#endif
