/* muster drain: asks the server to let a node leave in order. Shell. */
#ifndef MUSTER_LAUNCHER_DRAIN_H
#define MUSTER_LAUNCHER_DRAIN_H

#include "launcher/options.h"

/* Returns the exit status. */
int cli_drain(const struct cli_options *o);

#endif
