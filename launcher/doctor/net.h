/* Names and connections, each with a limit. */
#ifndef MUSTER_LAUNCHER_DOCTOR_NET_H
#define MUSTER_LAUNCHER_DOCTOR_NET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "base/err.h"
#include "base/limits.h"

#define NET_ADDRESSES_MAX 8
#define NET_NONCE_BYTES 17 /* 16 hexadecimal digits */

/* Look a name up, in a thread that is left behind when the limit passes. canonical: may be NULL.
 * Returns how many addresses; 0: it has none; -ETIMEDOUT; or another negative errno, with a
 * sentence. */
int net_resolve(const char *name,
                int64_t limit_ns,
                char (*ret)[MU_ADDR_BYTES],
                char *canonical,
                size_t canonical_cap,
                struct mu_err *err);

/* The addresses of a name as a fact: a list, or {"unknown": ...}, with "has_none" where it is known
 * to have none, and "failed" where nobody answers who would know. */
cJSON *net_resolve_fact(const char *name, int64_t limit_ns);

/* A connection, blocking afterwards, with `limit_ns` as the limit of each later read and write.
 * Returns the descriptor or a negative errno. */
int net_connect(const char *addr, uint16_t port, int64_t limit_ns);
/* "refused", "dropped", or what else stands behind a negative errno of net_connect(). */
const char *net_how(int code);

/* --- the port that others try --- */

struct net_port {
    int fd;
    uint16_t port;
    char nonce[NET_NONCE_BYTES]; /* Whoever knows it is one of us; the answer proves who we are. */
    char answer[NET_NONCE_BYTES];
};

/* Listens on all addresses, at a port of the kernel's choice, and answers from threads of its own
 * until the process ends. */
int net_serve(struct net_port *p, struct mu_err *err);

/* What a connection to another's port tells. */
struct net_look {
    double rtt_us;
    double skew_ms; /* Of the other's clock. */
    const char *large;
};
/* Is it the one that answers so? 0, or negative errno; -EPROTO: somebody else answered. */
int net_greet(int fd, const char *nonce, const char *answer);
/* Round trips, the other's clock by halving the shortest, and messages that need many packets. */
int net_measure(int fd, struct net_look *ret);

#endif
