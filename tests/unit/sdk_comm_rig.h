/* Ranks as threads of one test: a fabric of socket pairs, shared memory beside it if the test says
 * so, and the public functions on top of it. */
#ifndef MUSTER_TESTS_SDK_COMM_RIG_H
#define MUSTER_TESTS_SDK_COMM_RIG_H

#include <muster/comm.h>

#include "worker-sdk/src/comm/tcp.h"

#define RIG_RANKS_MAX 8

/* A process's handle, of which the backend only asks the environment. */
struct muster {
    struct muster_env env;
    struct tcp_fabric fabric;
};

/* Bytes of a stream of the memory that each pair of ranks of the next rigs shares; 0: none, sockets
 * carry the data. Both sides have it at the same address, so that ThreadSanitizer sees what orders
 * their accesses. */
extern size_t rig_stream_bytes;

struct rig {
    uint32_t size;
    void *memory[RIG_RANKS_MAX * RIG_RANKS_MAX];
    struct muster ranks[RIG_RANKS_MAX];
    muster_comm *comms[RIG_RANKS_MAX];
};

/* Socket pairs between all ranks, not yet a communicator. */
void rig_wire(struct rig *r, uint32_t size);
/* The same, and a communicator of each rank. */
void rig_open(struct rig *r, uint32_t size, int64_t timeout_ns);
void rig_close(struct rig *r);

/* Calls fn(arg, rank) on a thread for each rank, and waits for all of them. */
void rig_each(struct rig *r, void (*fn)(void *arg, uint32_t rank), void *arg);

#endif
