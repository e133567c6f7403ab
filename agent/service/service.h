/* node-agent --service: this node on offer, its jobs, their output. book.h decides what becomes of
 * jobs, line.h when to connect; this wires them to the link, processes, files and the manager. */
#ifndef MUSTER_AGENT_SERVICE_SERVICE_H
#define MUSTER_AGENT_SERVICE_SERVICE_H

#include "agent/options.h"

/* Runs until it is told to end. `argv`: the words it was called with, for a new start of itself.
 * Returns the process's exit status. */
int service_run(const struct agent_options *o, char **argv, const char *name);

#endif
