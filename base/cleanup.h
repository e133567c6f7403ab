/* Freed on every way out: MU_CLEANUP(mu_freep) char *line = NULL; MU_CLEANUP(mu_closep) int fd =
 * -1; */
#ifndef MUSTER_BASE_CLEANUP_H
#define MUSTER_BASE_CLEANUP_H

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/check.h"

static inline void mu_freep(void *pp)
{
    free(*(void **)pp);
}

static inline void mu_closep(const int *fd)
{
    int saved = errno;
    if (*fd >= 0)
        (void)close(*fd); /* Nothing left to do about it. */
    errno = saved;
}

static inline void mu_closedirp(DIR **d)
{
    if (*d != NULL)
        (void)closedir(*d);
}

/* Hand a descriptor on: the cleanup sees -1. */
static inline int mu_steal_fd(int *fd)
{
    int v = *fd;
    *fd = -1;
    return v;
}

#endif
