/* Did the kernel kill for memory? Its counters tell how often, not whom: asked when a worker died
 * of a SIGKILL that we did not send. */
#ifndef MUSTER_AGENT_OOM_H
#define MUSTER_AGENT_OOM_H

#include <stdbool.h>
#include <stdint.h>

struct oom {
    int fd; /* memory.events (cgroup v2) or memory.oom_control (v1) of the cgroup we live in; -1:
               not to be known. */
    uint64_t seen;
};

/* Finds the counter and takes its value. Without one, oom_rose() is always false. */
void oom_init(struct oom *o);
void oom_fini(struct oom *o);
/* True when the kernel has killed for memory in our cgroup since the last call that said so. */
bool oom_rose(struct oom *o);

#endif
