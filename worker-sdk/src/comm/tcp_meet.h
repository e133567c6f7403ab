/* How the ranks of a job find each other for a communicator over sockets. */
#ifndef MUSTER_SDK_TCP_MEET_H
#define MUSTER_SDK_TCP_MEET_H

#include "worker-sdk/src/comm/tcp.h"

/* Collective; ends at the deadline. o->name is there. */
int tcp_meet(muster *m,
             const struct muster_comm_options *o,
             int64_t deadline_ns,
             struct tcp_fabric *ret,
             struct muster_error *err);

#endif
