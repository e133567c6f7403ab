/* Our descendants as the kernel shows them in /proc: who is our child now, and to which worker a
 * stray one belonged. A subreaper sees every orphan of its tree become its own child, so children
 * are all that is ever asked for. */
#ifndef MUSTER_AGENT_FAMILY_H
#define MUSTER_AGENT_FAMILY_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

typedef void family_fn(void *arg, pid_t pid);

/* Call fn for each child of this process, zombies included. Only children of the process's first
 * thread are seen: that one adopts orphans, and is the one that starts workers. Takes no memory.
 * Returns 0, or a negative errno when there is no /proc to look into. */
int family_each(family_fn *fn, void *arg);

enum {
    FAMILY_STAT_BYTES = 1024
};
/* What proc(5) shows of process `pid` in its file stat, from field 3 on: " S 1 ...". The name
 * before it may hold blanks and brackets itself. ret has room for cap bytes, FAMILY_STAT_BYTES for
 * all fields. Returns false when there is no such process. Takes no memory. */
bool family_stat(pid_t pid, char *ret, size_t cap);

/* The kernel is taking it apart already, or it waits to be reaped. */
bool family_is_ending(pid_t pid);

/* A number that names one entry of an environment ("NAME=value"); never 0. */
uint64_t family_tag(const char *entry);
/* The tag of the entry of process `pid` that starts with `prefix` ("NAME="); 0 when it has none or
 * cannot be read. */
uint64_t family_tag_of(pid_t pid, const char *prefix);

#endif
