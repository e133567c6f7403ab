/* What a service that is started anew, in the same process, leaves to its successor: a memfd with
 * one JSON object, and the descriptors that it names (processes, output). The successor is another
 * version of the program, maybe: unknown fields are skipped, and the form has a number. */
#ifndef MUSTER_AGENT_SERVICE_HANDOVER_H
#define MUSTER_AGENT_SERVICE_HANDOVER_H

#include <stdbool.h>
#include <stdint.h>

#include "agent/service/book.h"
#include "agent/service/run.h"
#include "base/err.h"

#define HANDOVER_VARIABLE "MUSTER_SERVICE_HANDOVER"

/* Write it. Returns a descriptor that crosses exec, or a negative errno. Descriptors of jobs cross
 * it too then; handover_keep() takes that back for all. */
int handover_write(const struct svc_book *b,
                   const struct runs *a,
                   const char *node,
                   const char *cgroup_root,
                   int64_t now_ns);
void handover_keep(const struct runs *a);

struct handover {
    char node[40];
    char cgroup_root[CGROUPS_PATH_BYTES];
    int lock_fd; /* Of the folder of kept output; -1: none. */
};

/* Was something left to us? Returns 1 with the book and the runs filled, 0: no; or a negative errno
 * with a sentence: then nobody looks after its jobs, and who was started by a manager does best to
 * end. `a` and `b` are initialised; what `before` fills is needed before runs are taken. */
int handover_read(struct svc_book *b,
                  struct runs *a,
                  struct handover *ret,
                  int (*before)(void *arg, const struct handover *h, struct mu_err *err),
                  void *arg,
                  int64_t now_ns,
                  struct mu_err *err);

#endif
