/* One connection to a store: found, made, made again, and never out of step: whatever fails in the
 * middle of an exchange drops it. What the bytes mean is store_client.c's. */
#ifndef MUSTER_SDK_STORE_WIRE_H
#define MUSTER_SDK_STORE_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/addr.h"
#include "worker-sdk/src/core/sdk.h"

#define WIRE_ADDRESSES 8 /* Of one name; further ones are not tried. */
#define WIRE_READ_BYTES 4096

struct wire {
    char host[256];
    uint16_t port;
    struct mu_addr address[WIRE_ADDRESSES];
    size_t address_count;
    int fd;         /* -1: none now. */
    uint32_t nonce; /* Of the last PING. */
    size_t from;    /* Bytes from..to of `in` were received and not taken yet. */
    size_t to;
    char in[WIRE_READ_BYTES];
};

/* Look the name up, the only time: later connections go to the same addresses. A numeric address
 * needs no look-up. The resolver's own time-out is not ours to cut; between its answers the
 * deadline counts. */
int wire_find(
    struct wire *w, const char *host, uint16_t port, int64_t deadline_ns, struct muster_error *err);
/* Connect and greet, again and again until it works or the deadline has passed. */
int wire_connect(struct wire *w, int64_t deadline_ns, struct muster_error *err);
void wire_drop(struct wire *w);

/* False: nobody is at the other end any more, or it says what nobody asked for. Drops it then. */
bool wire_is_alive(struct wire *w);

/* All n bytes, or a negative errno and the connection is dropped. */
int wire_send(
    struct wire *w, const void *p, size_t n, int64_t deadline_ns, struct muster_error *err);
int wire_receive(struct wire *w, void *p, size_t n, int64_t deadline_ns, struct muster_error *err);
/* Wait until there is something to receive. -ETIMEDOUT: nothing came, and the connection stays. */
int wire_ready(struct wire *w, int64_t deadline_ns, struct muster_error *err);

/* A connected socket to the first address of the name that answers, or a negative errno. One try
 * each. */
int wire_dial(const char *host, uint16_t port, int64_t deadline_ns, struct muster_error *err);

/* Little-endian, as on the wire. */
void wire_put(char *p, uint64_t v, size_t bytes);
uint64_t wire_number(const char *p, size_t bytes);

#endif
