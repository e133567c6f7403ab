/* muster store: keys and values of the server's store. Shell. */
#ifndef MUSTER_LAUNCHER_STORE_H
#define MUSTER_LAUNCHER_STORE_H

#include "launcher/options.h"

/* Returns the exit status. */
int cli_store(const struct cli_options *o);

#endif
