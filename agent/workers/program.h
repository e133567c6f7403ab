/* What is executed: which file, and the words in front of the user's arguments. Looks at files,
 * changes nothing. */
#ifndef MUSTER_AGENT_PROGRAM_H
#define MUSTER_AGENT_PROGRAM_H

#include <limits.h>
#include <stdbool.h>

#include "agent/workers/plan.h"

#define PROGRAM_HEAD_MAX 5

struct program {
    char path[PATH_MAX];                /* For execve. */
    const char *head[PROGRAM_HEAD_MAX]; /* argv[0] and what follows before the arguments; borrowed
                                           from the config. */
    int head_count;
    bool script_last;  /* The last word of the head is a script or module: $local_rank is filled in
                          there too. */
    char warning[256]; /* A sentence for the user, or "". */
};

/* Returns 0, or -ENOENT, -EACCES, -ENAMETOOLONG with a sentence. `ret` must stay where it is: head
 * points into it. */
int program_resolve(const struct plan_config *c, struct program *ret, struct mu_err *err);

/* The value of `name` in an environment; NULL: not there. */
const char *program_getenv(char *const *environment, const char *name);

#endif
