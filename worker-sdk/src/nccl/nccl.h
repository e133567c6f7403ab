/* Inside: one communicator over NCCL. nccl_start.c brings it up and down, nccl.c runs operations,
 * nccl_cause.c says and hears what failed. */
#ifndef MUSTER_SDK_NCCL_H
#define MUSTER_SDK_NCCL_H

#include <pthread.h>

#include "worker-sdk/src/comm/comm.h"
#include "worker-sdk/src/nccl/cuda_lib.h"
#include "worker-sdk/src/nccl/id.h"
#include "worker-sdk/src/nccl/nccl_free.h"
#include "worker-sdk/src/nccl/nccl_lib.h"

#define NCCL_IN_FLIGHT_MAX 1024 /* Operations whose event is kept; more wait for the oldest. */
#define NCCL_FREE_NS INT64_C(5000000000)  /* A healthy abort takes milliseconds. */
#define NCCL_STORE_NS INT64_C(2000000000) /* Bad news must not wait for a store that is gone. */
#define NCCL_EVENT_NO_TIMING 2u
#define NCCL_NAP_MAX_NS INT64_C(500000) /* Waiters wake within a millisecond. */

struct nccl {
    struct cuda_lib cuda;
    struct nccl_lib lib;
    char name[ID_NAME_BYTES_MAX + 1]; /* Of the start: "nccl/world". */
    uint32_t rank;
    uint32_t size;
    int64_t timeout_ns;
    int device;
    void *ctx;
    void *stream;
    bool owns_stream;
    uint64_t scratch; /* Device memory for barriers. */

    /* Of NCCL's and CUDA's calls on what follows. Who holds it looks at has_failed first: from then
     * on the communicator belongs to the thread that frees it. */
    pthread_mutex_t call_lock;
    void *comm;
    void *joint;                      /* Event for muster_comm_wait_stream(). */
    void *events[NCCL_IN_FLIGHT_MAX]; /* Of ticket t: t % NCCL_IN_FLIGHT_MAX. */

    pthread_mutex_t lock; /* Of what follows; never held while something is waited for. */
    uint64_t issued;      /* The last ticket. */
    uint64_t done;        /* This and all before it. */
    bool has_failed;
    struct muster_cause cause;
    struct nccl_free *freeing;

    pthread_mutex_t store_lock;
    struct id_start marks; /* Its store is a connection of our own; NULL: a world of one. */
    uint64_t told;         /* `issued`, as the store has it. */
    int64_t told_ns;
};

/* --- nccl_start.c --- */
int nccl_open(muster *m,
              const struct muster_comm_options *o,
              int64_t deadline_ns,
              void **ret,
              struct muster_error *err);
void nccl_close(void *self);
bool nccl_is_there(struct muster_error *why);

/* --- nccl.c --- */
/* Around calls of NCCL and CUDA: call_lock, and the context is current. False: it has failed, and
 * the communicator is no longer ours; nothing to leave then. */
bool nccl_enter(struct nccl *n);
void nccl_leave(struct nccl *n);
/* 1, 0 or the cause's code. */
int nccl_test(void *self, muster_ticket t, struct muster_error *err);
int nccl_wait(void *self, muster_ticket t, int64_t timeout_ns, struct muster_error *err);
/* Wait a little, longer each time; *nap_ns begins as 0. Never beyond the deadline. */
void nccl_nap(int64_t *nap_ns, int64_t deadline_ns);

/* --- nccl_stream.c: muster/cuda.h --- */
int nccl_stream_wait(struct nccl *n, muster_ticket t, void *stream, struct muster_error *err);
int nccl_wait_stream(struct nccl *n, void *stream, struct muster_error *err);

/* --- nccl_cause.c --- */
/* 0, or the code and sentence of the cause. */
int nccl_failed(struct nccl *n, struct muster_error *err);
/* This rank found a failure: it becomes the cause, on all ranks, unless there is one. Ends all
 * operations. Returns what is the cause now. */
int nccl_fail(struct nccl *n, const struct muster_cause *cause, struct muster_error *err);
/* The same from an error of a call: its code and sentence. */
int nccl_fail_with(struct nccl *n,
                   enum muster_phase phase,
                   int32_t peer,
                   const struct muster_error *why,
                   struct muster_error *err);
/* Time is over for ticket t. Finds out who is late. */
int nccl_fail_late(struct nccl *n, muster_ticket t, int64_t timeout_ns, struct muster_error *err);
/* Tell the store how far this rank is, and hear whether another one failed. Quick, and quiet about
 * a store that does not answer: NCCL itself will fail then, or the agent ends us. */
void nccl_look(struct nccl *n);
/* The first half only, and at most once a second. */
void nccl_tell(struct nccl *n);
void nccl_abort(void *self, const char *why);
bool nccl_get_cause(void *self, struct muster_cause *ret);

#endif
