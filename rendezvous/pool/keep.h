/* What is kept of a job of the pool: one row. As rendezvous/job/keep.h has it, a list from which
 * come the struct, its check and the shell's columns. Pure. */
#ifndef MUSTER_RENDEZVOUS_POOL_KEEP_H
#define MUSTER_RENDEZVOUS_POOL_KEEP_H

#include <stddef.h>
#include <stdint.h>

#include "base/limits.h"
#include "base/str.h"

#define POOL_REQUEUES_MAX 3
#define POOL_LOST_BYTES 320

/* INT(name, min, max), STR(name, bytes with its NUL), BIG(name): a text of any size. */
#define POOL_ROW_FIELDS(INT, STR, BIG)                                                             \
    STR(id, MU_RUN_ID_BYTES)                                                                       \
    STR(name, MU_RUN_ID_BYTES)                                                                     \
    STR(state, 16) /* As pool_state_name(). */                                                     \
    INT(nodes_min, 1, MU_NODES_MAX)                                                                \
    INT(nodes_max, 1, MU_NODES_MAX)                                                                \
    INT(nproc, 1, MU_WORKERS_MAX)                                                                  \
    INT(gpus, -1, MU_WORKERS_MAX)                                                                  \
    INT(attempt, 0, UINT32_MAX)                                                                    \
    INT(place, 0, INT64_MAX) /* In the queue. */                                                   \
    INT(refusals, 0, MU_POOL_REFUSALS_MAX + 1)                                                     \
    INT(met, 0, 1)                                                                                 \
    INT(verdict, 0, 3)                                                                             \
    INT(exit_status, -1, 255)                                                                      \
    STR(cause, MU_MESSAGE_BYTES)                                                                   \
    INT(stop, 0, 1)                                                                                \
    INT(signo, 0, 64)                                                                              \
    INT(grace_ms, 0, 86400000)                                                                     \
    INT(submitted_unix_ms, 0, INT64_MAX)                                                           \
    INT(started_unix_ms, 0, INT64_MAX)                                                             \
    INT(ended_unix_ms, 0, INT64_MAX)                                                               \
    INT(no_requeue, 0, 1)                                                                          \
    INT(requeues, 0, POOL_REQUEUES_MAX)                                                            \
    STR(lost, POOL_LOST_BYTES)                                                                     \
    BIG(spec)  /* Empty: not known. */                                                             \
    BIG(seats) /* A line each: node id, state, status, held, GPUs, host. */                        \
    BIG(past)  /* Ids of nodes, a blank behind each. */

struct pool_row {
#define POOL_ROW_INT(name, min, max) int64_t name;
#define POOL_ROW_STR(name, bytes) char name[bytes];
#define POOL_ROW_BIG(name) struct mu_str name;
    POOL_ROW_FIELDS(POOL_ROW_INT, POOL_ROW_STR, POOL_ROW_BIG)
};

/* A host that is drained: the same. */
#define POOL_DRAIN_ROW_FIELDS(INT, STR)                                                            \
    STR(host, MU_HOST_BYTES)                                                                       \
    INT(since_unix_ms, 0, INT64_MAX)

struct pool_drain_row {
    POOL_DRAIN_ROW_FIELDS(POOL_ROW_INT, POOL_ROW_STR)
};
#undef POOL_ROW_INT
#undef POOL_ROW_STR
#undef POOL_ROW_BIG

#endif
