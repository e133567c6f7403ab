/* The agent's connection to the rendezvous server: name, address, connection, frames. When to
 * connect is agent/life's business; one attempt at a time. All calls on the loop's thread. */
#ifndef MUSTER_AGENT_LINK_H
#define MUSTER_AGENT_LINK_H

#include <stdbool.h>

#include <uv.h>

#include "base/ctl.h"
#include "base/err.h"
#include "base/parse.h"
#include "base/proof.h"

struct link;

struct link_events {
    void *arg;
    /* The first attempt found a machine, and nobody who listens there: every address of the name
     * refused. Called once, with the name's first address. True: the agent serves there itself now,
     * or somebody just began to; the link tries again at once. NULL: not wanted. */
    bool (*on_nobody_listens)(void *arg, const char *host, uint16_t port);
    /* text: what could be said if nothing more came. In all of these it names host and port. */
    void (*on_up)(void *arg, const char *text);
    /* It was up and is not any more. stranger: what came over it was not our protocol. */
    void (*on_lost)(void *arg, bool stranger, const char *text);
    /* An attempt failed. refused: a machine answered that nobody listens there. */
    void (*on_failed)(void *arg, bool refused, const char *text);
    void (*on_message)(void *arg, const struct ctl_msg *m);
};

/* `server` and `events` are copied. Returns 0 or -ENOMEM. */
int link_new(uv_loop_t *loop,
             const struct mu_endpoint *server,
             const struct link_events *events,
             struct link **ret);

/* Before the first attempt: obey a server only once it has shown that it has this token, and show
 * it that we have it, before anything else is said. `prover` is borrowed. A first server that
 * cannot is told as if it had refused us (CTL_REFUSED); a later one as a lost connection. */
void link_use_token(struct link *l, const struct mu_prover *prover);

/* Another port of the same host, before the first attempt: where the agent itself began to serve on
 * a free one. */
void link_set_port(struct link *l, uint16_t port);

/* Begin an attempt: on_up or on_failed follows, within LINK_LOOKUP_NS for the name, and
 * LINK_CONNECT_NS for each address it has. */
#define LINK_LOOKUP_NS INT64_C(2000000000)
#define LINK_CONNECT_NS INT64_C(3000000000)
void link_connect(struct link *l);

/* For faults on purpose: while held, there is no connection, and attempts fail as if nobody
 * answered. */
void link_hold(struct link *l, bool held);

/* Send one message; lost without a word when the link is not up (agent/life says it again when it
 * is). */
void link_send(struct link *l, const struct ctl_msg *m);

/* While it is on, messages are put together for as few packets as will do: who reads gets them in
 * one go. For a moment only. */
void link_gather(struct link *l, bool on);

/* Bytes that the server has not taken yet. */
size_t link_unsent(const struct link *l);

/* The numeric address that was tried last; "": none yet. */
const char *link_server_address(const struct link *l);

/* Our own numeric address of the connection; "" when it is not up. `ret` has MU_ADDR_BYTES. */
void link_local_address(const struct link *l, char *ret);

/* Does a thread still wait for a name server? It cannot be stopped, and the process can end without
 * it. Asked before link_close(). */
bool link_has_lookups(const struct link *l);

/* Write what is queued, close in order, free. At most MU_GOODBYE_NS. `done` is called when the last
 * handle is gone. No event follows. While the process lives on, a connection is never closed in
 * order but here: to the server an orderly end without BYE is a death. */
void link_close(struct link *l, void (*done)(void *arg), void *arg);

#endif
