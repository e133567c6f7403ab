/* What agent/surroundings wants to know of this machine, looked at for real. */
#ifndef MUSTER_AGENT_AROUND_H
#define MUSTER_AGENT_AROUND_H

#include "agent/surroundings/surroundings.h"

extern const struct surroundings_machine around_machine;

/* PMI-1 over descriptor fd, as in struct surroundings_machine. Every wait has MU_JOIN_TIMEOUT_NS.
 */
int around_share(
    int fd, bool is_first, const char *own, char *ret_shared, char *ret_job, struct mu_err *err);

#endif
