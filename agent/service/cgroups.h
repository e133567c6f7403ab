/* A cgroup (v2) of its own for each job of a service, so that a job can be killed as a whole and
 * its memory is counted apart. The agents' own cgroups of their workers lie below.
 *
 * Where the service manager has delegated ours to us (Delegate=yes), the service itself moves into
 * a cgroup below it, because controllers can only be handed down by one that has no processes. */
#ifndef MUSTER_AGENT_SERVICE_CGROUPS_H
#define MUSTER_AGENT_SERVICE_CGROUPS_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#define CGROUPS_PATH_BYTES 3000

struct cgroups {
    char root[CGROUPS_PATH_BYTES]; /* "": none can be made. */
};

/* root: what a service that this one took over from had; "": find it. */
void cgroups_init(struct cgroups *c, const char *root);
/* A fresh one: its path (CGROUPS_PATH_BYTES + 200) and a descriptor. Returns 0, or a negative
 * errno: then there is none, and the job runs without. */
int cgroups_make(
    const struct cgroups *c, const char *job, uint32_t attempt, char *ret_path, int *ret_fd);
/* With all below it. One that still has processes stays. */
void cgroups_remove(const char *path);
/* All jobs' that are empty: what could not be removed at once, or was left by a service that was
 * killed. */
void cgroups_sweep(const struct cgroups *c);

#endif
