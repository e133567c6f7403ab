/* muster run --hosts: node-agents in the foreground, by ssh, without any service. Shell. */
#ifndef MUSTER_LAUNCHER_HOSTS_H
#define MUSTER_LAUNCHER_HOSTS_H

#include "launcher/options.h"

/* Returns the status of the first agent that failed, or 0; 2 for what is wrong here. */
int cli_run_on_hosts(const struct cli_options *o);

#endif
