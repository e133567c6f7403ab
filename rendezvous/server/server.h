/* The server as a library: one TCP port for the store, agents and HTTP. rdzv-server is a main()
 * around it; node-agent links it to host a rendezvous or a round's worker store. One loop, one
 * thread; every call below on the loop's thread. */
#ifndef MUSTER_RENDEZVOUS_SERVER_H
#define MUSTER_RENDEZVOUS_SERVER_H

#include <stdbool.h>
#include <stdint.h>

#include <uv.h>

#include "base/err.h"
#include "base/token.h"
#include "rendezvous/store/store.h"

struct srv;

/* Which callers a port answers; the others are closed with one (rate-limited) log line. */
enum {
    SRV_STORE = 1,
    SRV_AGENTS = 2,
    SRV_HTTP = 4,
    SRV_ALL = 7
};

struct srv_config {
    unsigned services;
    const char
        *host; /* Numeric address to listen on; "" or "*": every address. Ignored with listen_fd. */
    uint16_t port; /* 0: any free one. */
    int listen_fd; /* -1, or a socket that is bound and listens already; taken over on success. */
    struct store_limits store;
    uint32_t connections_max;
    int64_t first_bytes_ns;
    int64_t lease_ns;
    int64_t beat_ns;
    int64_t fence_ns;    /* Silence allowed where the job could not go on without the node. */
    int64_t recovery_ns; /* How long after a restart no first round may begin; used when the last
                            life of this server ended badly. */
    uint32_t quarantine_failures; /* So many that began on one host ... */
    int64_t quarantine_window_ns; /* within this time set it aside; 0: they never do. */
    const char *state_dir; /* Where the mark of a life with running jobs is kept (mode 0700); "":
                              nowhere. */
    bool keep_jobs;        /* And the jobs themselves, in a file that no other server uses. */
    bool lasts;            /* It outlives its jobs: agents may say where to ask of them. */
    const struct mu_token *token; /* Who joins or changes something must have it; NULL: nobody must.
                                     Copied. */
    bool read_needs_token;        /* And who reads over HTTP. */
    bool open_store; /* The store takes clients of other machines, though there is a token. */
    const char *version;
    const char *http_module; /* Path of the HTTP module that is opened at the first HTTP request;
                                NULL: found beside the program. */
};
#define SRV_CONFIG_DEFAULT srv_config_default()
struct srv_config srv_config_default(void);

/* Listen and serve. *ret is owned by the caller until srv_close(). Returns 0 or a negative errno
 * with a sentence. */
int srv_start(uv_loop_t *loop,
              const struct srv_config *config,
              struct srv **ret,
              struct mu_err *err);
uint16_t srv_port(const struct srv *s);
/* "[::]:29500" or "10.0.0.1:29500". */
const char *srv_address(const struct srv *s);

/* Run the loop until nothing is left in it, as uv_run() does, with one system call less for each
 * turn: for a process whose loop is this server's above all. Between its calls of libuv, others
 * may only start timers. *s is gone when it returns. */
void srv_run(struct srv *s);

/* Close everything: `done` (may be NULL) is called when the last handle is gone; *s is freed then.
 */
void srv_close(struct srv *s, void (*done)(void *arg), void *arg);

/* An empty store in the place of the present one, whose clients are closed: a round's end, where
 * the workers' store is served beside the rendezvous. Not from within a callback of the server's.
 * Returns 0, or -ENOMEM with nothing changed. */
int srv_renew_store(struct srv *s);

/* From here on as with config.open_store: the store has become a round's. */
void srv_open_store(struct srv *s);

/* Agents still connected, and jobs that have not ended: a host that wants to leave politely waits
 * until both are 0, with a limit. */
uint32_t srv_agent_count(const struct srv *s);
uint32_t srv_live_job_count(const struct srv *s);

#endif
