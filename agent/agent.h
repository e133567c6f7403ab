/* One agent process at work: agent/life decides, this wires it to the link, the workers, the
 * signals, and to the server where this node hosts one. */
#ifndef MUSTER_AGENT_AGENT_H
#define MUSTER_AGENT_AGENT_H

#include "agent/options.h"
#include "agent/workers/warden.h"

/* Run until the job is over for this node. Returns the process's exit status. `name` is what the
 * program is called in sentences. */
int agent_run(const struct agent_options *options, struct warden *warden, const char *name);

#endif
