/* What the files of the link share. Nobody else includes it.
 *
 * link.c          a connection that is up: what is read, written and proven on it; the link's life
 * link_connect.c  how there comes to be one: look-ups, addresses, attempts
 *
 * States: idle, resolving, connecting, up, closing. */
#ifndef MUSTER_AGENT_LINK_INTERNAL_H
#define MUSTER_AGENT_LINK_INTERNAL_H

#include "agent/link/link.h"
#include "base/addr.h"
#include "base/str.h"

enum link_state {
    LINK_IDLE,
    LINK_RESOLVING,
    LINK_CONNECTING,
    LINK_UP,
    LINK_CLOSING
};

/* Whether the server of this connection has shown the token. */
enum link_proof {
    PROOF_NOT_ASKED,
    PROOF_WAITS, /* For its CHALLENGE. */
    PROOF_SHOWN,
    PROOF_FAILED /* Nothing is said to it, or heard from it, any more. */
};

struct link {
    uv_loop_t *loop;
    struct link_events events;
    struct mu_endpoint server;
    enum link_state state;
    bool offered; /* on_nobody_listens was called. */
    char first_address[MU_ADDR_BYTES];

    struct lookup *lookups; /* Under way, also those that an attempt no longer waits for. */
    uint32_t lookup_count;
    struct addrinfo *found; /* Of the last look-up; freed at its end. */
    struct addrinfo *next;  /* The address to try next. */
    struct mu_addr numeric; /* When the endpoint is numeric: no look-up at all. */

    uv_tcp_t *tcp;    /* Of the present attempt or connection, in its struct attempt. */
    uv_timer_t timer; /* Limit of an attempt, or of the goodbye. */
    uint32_t handles; /* Open ones: `done` when the last is closed. */

    const struct mu_prover *prover; /* NULL: no token. */
    enum link_proof proof;
    bool proven_once; /* A server had the token. */
    char nonce[MU_NONCE_TEXT];
    struct mu_buf unsaid; /* Frames that wait for PROOF_SHOWN. */

    struct mu_buf in;
    struct mu_buf scratch;
    size_t unsent;
    bool spoke; /* A message has come over this connection. */
    bool asks;  /* An attempt waits for a look-up. */
    bool held;  /* Off on purpose. */
    char text[400];
    void (*done)(void *arg);
    void *done_arg;
};

/* One attempt, and the connection it becomes. Freed in the close callback: a request of an attempt
 * that was given up is cancelled only there, so it must not be reused before. */
struct attempt {
    uv_tcp_t tcp;
    uv_connect_t req;
};

/* A question to the resolver. It cannot be stopped: one that lasts is left behind, and its answer,
 * should it come, is used. */
struct lookup {
    uv_getaddrinfo_t req;
    struct link *link; /* NULL: the link is gone. */
    struct lookup *next;
};

/* --- link.c --- */
/* Connected: say the first words. */
void link_begin(struct link *l);
/* Drop the connection without an orderly end: the server must not take it for our death. */
void link_drop(struct link *l);
/* The same, and idle again; who was told of a connection is told of its loss. */
void link_lose(struct link *l, const char *what);
/* What is wrong, with where: the caller's sentence has no other place for it. In l->text. */
const char *link_words(struct link *l, const char *what);

#endif
