/* What this node says of itself: names, addresses, boot id, CPUs, GPUs. No name is looked up. */
#ifndef MUSTER_AGENT_FACTS_H
#define MUSTER_AGENT_FACTS_H

#include "base/ctl.h"

/* Fill the host fields of a hello (host, host_addr, boot_id, cpus, gpus, pid) and a fresh node id.
 * Returns 0 or a negative errno with a sentence. */
int facts_fill(struct ctl_hello *h, struct mu_err *err);

/* A random UUID of version 4; `ret` has 37 bytes. Returns 0 or -errno. */
int facts_uuid(char *ret);

#endif
