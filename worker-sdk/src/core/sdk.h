/* Inside libmuster: the handle, errors with sentences, deadlines, and further connections to the
 * job's store. What is not MUSTER_API stays inside the library. */
#ifndef MUSTER_SDK_SDK_H
#define MUSTER_SDK_SDK_H

#include <muster/muster.h>
#include <muster/store.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"

struct sdk_serve; /* store_serve.h */

#define SDK_CLAIMS_MAX 8 /* Folders of checkpoints that a program writes to by turns. */

struct muster {
    struct muster_env env;
    int64_t timeout_ns;
    char prefix[192]; /* "muster/<run id>/<round>/": of every key of this round. */
    char store_host[256];
    uint16_t store_port;
    muster_store *store;     /* NULL: a world of one without a store. */
    struct sdk_serve *serve; /* Rank 0 where no launcher serves; else NULL. */
    int pmi_fd;   /* mpiexec waits for a goodbye here; -1: it does not. Not ours to close. */
    int agent_fd; /* The agent's socket; -1: none. */
    struct {
        uint64_t writer; /* This handle's own number, in ROUND; 0: not made yet. */
        struct {
            uint64_t device, inode;
        } claimed[SDK_CLAIMS_MAX]; /* Folders that it has written its number in. */
        uint32_t claimed_count;
    } checkpoints;
};

/* Set code and sentence. Returns `code`. `e` may be NULL. */
int sdk_error(struct muster_error *e, int code, const char *fmt, ...) MU_PRINTF(3, 4);
/* Put "context: " in front of the sentence. Returns `code`, which also works where `e` is NULL. */
int sdk_error_wrap(struct muster_error *e, int code, const char *fmt, ...) MU_PRINTF(3, 4);
/* A sentence of base becomes one of ours. Returns its code. */
int sdk_error_take(struct muster_error *e, const struct mu_err *from);

/* CLOCK_MONOTONIC. */
int64_t sdk_now_ns(void);
/* When a relative time-out is over; MU_NEVER for a negative one. */
int64_t sdk_deadline_ns(int64_t timeout_ns);
/* So much after a deadline; MU_NEVER stays. */
int64_t sdk_after_ns(int64_t deadline_ns, int64_t more_ns);
/* For poll(2): milliseconds until the deadline, rounded up, at least 0; -1: never. */
int sdk_poll_ms(int64_t deadline_ns);

/* Another connection to the job's store, for another thread or another part of the library. Its
 * keys are under the round's prefix, then `sub_prefix` (as "comm/world/"). -ENOTCONN: a world of
 * one without a store. Close with muster_store_close(). Opened in the time that the handle's own
 * connection is limited to (store_limit()); the limit itself is not handed on. */
int sdk_store_open(muster *m, const char *sub_prefix, muster_store **ret, struct muster_error *err);

/* progress.c: connect to the agent's socket where the environment names one, and set m->agent_fd;
 * no agent is no error. Called at the end of muster_open(), and at the start of muster_close(). */
int sdk_agent_open(muster *m, struct muster_error *err);
void sdk_agent_close(muster *m);

#endif
