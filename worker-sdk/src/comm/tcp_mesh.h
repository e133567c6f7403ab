/* Connecting: from the addresses of all ranks to a fabric. Knows no store. */
#ifndef MUSTER_SDK_TCP_MESH_H
#define MUSTER_SDK_TCP_MESH_H

#include "base/addr.h"
#include "worker-sdk/src/comm/tcp.h"

#define MESH_TOKEN_BYTES 32 /* The first half proves who connects, the second who accepts. */
#define MESH_UNIX_BYTES 48

struct mesh_peer {
    struct mu_addr address;
    char unix_name[MESH_UNIX_BYTES]; /* In the abstract namespace; "": connect to the address. */
    char host[TCP_HOST_BYTES];       /* For sentences. */
};

struct mesh_start {
    uint32_t rank;
    uint32_t size;
    uint8_t token[MESH_TOKEN_BYTES];
    const struct mesh_peer *peers; /* One for each rank. */
    int tcp_listener;              /* -1: none. Borrowed, non-blocking. */
    int unix_listener;
    bool shares_memory; /* With those it reaches by Unix sockets, where both sides can. */
    int64_t deadline_ns;
};

/* A listener of this host's name space: for ranks that share it with us. ret_name has
 * MESH_UNIX_BYTES. Returns the descriptor or a negative errno. */
int mesh_listen_unix(char *ret_name, struct muster_error *err);

/* Connect with everybody: to the lower ranks, and from the higher ones; and round the ring. Who
 * cannot show the token is dropped. On failure `ret_cause` says which rank; those that are
 * connected have been told. Sets all of `ret` but hosts, which are the caller's. */
int mesh_connect(const struct mesh_start *s,
                 struct tcp_fabric *ret,
                 struct muster_cause *ret_cause);

/* Random bytes of the kernel. 0 or a negative errno. */
int mesh_random(void *ret, size_t n);

#endif
