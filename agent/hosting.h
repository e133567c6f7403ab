/* What an agent serves for others: the rendezvous, where --rdzv names this node and nothing listens
 * there, and the worker store of a round that it leads. The only place, with agent/main.c's wiring,
 * that knows the server. */
#ifndef MUSTER_AGENT_HOSTING_H
#define MUSTER_AGENT_HOSTING_H

#include <stdbool.h>
#include <stdint.h>

#include <uv.h>

#include "base/err.h"

struct mu_token;
struct srv;

struct hosting {
    uv_loop_t *loop;
    const struct mu_token *token; /* Of the rendezvous, if it is hosted here; NULL: none. */
    struct srv *rdzv;             /* NULL: not hosted here. */
    struct srv *store;            /* Of the round that we lead; NULL: none. */
    int life_fd;                  /* Listens as long as this process lives; -1: does not. */
    uint16_t life_port;
    bool life_at_all;    /* At every address. */
    int next_store_fd;   /* Bound and listening for a round to come; -1: none. */
    char store_why[224]; /* Why there was no port for it last. */
    uint16_t next_store_port;
    uint16_t store_port_wanted; /* --store-port; 0: any free one. */
    char store_host[64];        /* Address it is bound to; "*": every address. */
    bool store_at_rdzv;         /* The worker store is the rendezvous' own, at its port. */
    uint32_t closing;           /* Servers whose handles are not all closed yet. */
};

void hosting_init(struct hosting *h, uv_loop_t *loop);

/* Serve the rendezvous at that numeric address. Returns 0 and the port, -EADDRINUSE when somebody
 * does already, or another negative errno with a sentence. */
int hosting_serve_rdzv(
    struct hosting *h, const char *host, uint16_t port, uint16_t *ret_port, struct mu_err *err);

/* A port at which this process listens as long as it lives, and which says no more than that: a
 * server that has lost it can tell by it whether it is dead. local: our address on the way to
 * the server; behind loopback nobody else is let in. 0: there is none. */
uint16_t hosting_life_port(struct hosting *h, const char *local);

/* From now on the worker store of a round led here is the one of the rendezvous served here: for
 * those who were promised its port (--master-port). Each round finds it empty. */
void hosting_store_at_rdzv(struct hosting *h);

/* Have a port bound for the next round's store. Returns 0 and *ret_port, also when there was one
 * already. */
int hosting_reserve_store(struct hosting *h, uint16_t *ret_port, struct mu_err *err);

/* The round begins and we lead it: answer on the reserved port. Its keys are its own. */
int hosting_open_store(struct hosting *h, struct mu_err *err);
/* The round begins, we lead it, and its rank 0 serves the store itself: let go of the reserved
 * port.
 */
void hosting_release_store(struct hosting *h);
/* The round is over: its store and every connection to it go. */
void hosting_close_store(struct hosting *h);

/* May we go, or do other agents still need the rendezvous here? */
bool hosting_is_needed(const struct hosting *h);
/* Close all. Returns at once; the loop runs until hosting_is_closed(). */
void hosting_close(struct hosting *h);
bool hosting_is_closed(const struct hosting *h);

#endif
