/* One cgroup (v2) for all workers of this agent, where we may make one: kill it, and everything in
 * it is killed, however it forks, daemonizes or hides. No controller is enabled, so the rules about
 * inner processes do not concern it.
 *
 * One leaf, not one per worker: making and removing a leaf costs 77 us here, a whole no-op worker
 * 490 us, so leaves per worker made a launch of 256 dearer by a sixth; and not one per round, for
 * rounds of one agent never overlap. What a dead worker left behind while others live is found
 * among the orphans we adopt (family.h). */
#ifndef MUSTER_AGENT_CGROUP_H
#define MUSTER_AGENT_CGROUP_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

struct cgroup {
    int fd;       /* The directory; -1: there is none. */
    bool used_up; /* It was killed: no process may be started in it again, see cgroup_kill(). */
    char path[PATH_MAX];
};

/* Make <own cgroup>/muster-<pid>-<random>. Returns 0, or a negative errno: then c->fd is -1 and
 * life goes on without. */
int cgroup_make(struct cgroup *c);
/* SIGKILL to every process in it. Does nothing where there is none. Afterwards it is used up:
 * Linux 6.14 and later kill whatever clone3(CLONE_INTO_CGROUP) starts in a cgroup that was ever
 * killed (they compare its count of kills with that of the parent's cgroup, to close a race of fork
 * and kill; seen on 6.18). */
void cgroup_kill(struct cgroup *c);
/* A fresh one in the place of one that is used up; else nothing. */
void cgroup_renew(struct cgroup *c);
/* Remove it. A cgroup that still has processes stays. */
void cgroup_remove(struct cgroup *c);

/* The folder of the cgroup that this process is in. Returns 0 or a negative errno. */
int cgroup_own(char *ret, size_t cap);

/* For who knows only the path, after the agent's death. */
void cgroup_kill_path(const char *path);

#endif
