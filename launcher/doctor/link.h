/* What the link between two nodes carries, measured with the SDK's communicator. In a process of
 * its own for each pair, which is killed when its time is over: a start that hangs holds up nobody.
 */
#ifndef MUSTER_LAUNCHER_DOCTOR_LINK_H
#define MUSTER_LAUNCHER_DOCTOR_LINK_H

#include <stdbool.h>
#include <stdint.h>

#include <cjson/cJSON.h>
#include <muster/muster.h>

struct link_ask {
    const struct muster_env *env; /* Of the job. */
    uint32_t me;                  /* 0 or 1, of the pair. */
    const char *name;             /* Of the pair, the same on both. */
    bool gpus;                    /* Both have one, and NCCL: measured too. */
};

/* A fact: {"latency_us", "bytes_per_s" from here to there, "backend"}, {"broken": why} or
 * {"unknown": why}; of sockets, and in it under "gpus" another, of NCCL, where that was asked for.
 * `beat` is called once a second; where it gives false the child is ended. */
cJSON *link_measure(const struct link_ask *ask, bool (*beat)(void *arg), void *arg);

/* The child: muster-doctor LINK_WORD NAME [LINK_GPUS]. Returns its exit status. */
#define LINK_WORD "--measure-link"
#define LINK_GPUS "gpus"
int link_child(const char *name, bool gpus);

#endif
