/* Inside: one table of functions for each backend of a communicator. */
#ifndef MUSTER_SDK_COMM_H
#define MUSTER_SDK_COMM_H

#include <muster/comm.h>

enum comm_kind {
    COMM_ALL_REDUCE,
    COMM_BROADCAST,
    COMM_ALL_GATHER,
    COMM_REDUCE_SCATTER,
    COMM_BARRIER
};

/* One operation as asked for, checked by comm.c: pointers are there, root is a rank, bytes do not
 * overflow. In place: send == recv. */
struct comm_work {
    enum comm_kind kind;
    void *send;
    void *recv;
    size_t count;
    enum muster_dtype dtype;
    enum muster_op op;
    uint32_t root;
    bool mean; /* Of an all-reduce: sums are divided by the number of ranks. */
};

struct comm_backend {
    const char *name;
    bool knows_mean; /* It takes comm_work.mean. */
    /* Could it work on this machine? On false, `why` says in a sentence what is missing. */
    bool (*is_there)(struct muster_error *why);
    /* Ends at the deadline; o->timeout_ns is of the waits to come. */
    int (*open)(muster *m,
                const struct muster_comm_options *o,
                int64_t deadline_ns,
                void **ret,
                struct muster_error *err);
    int (*submit)(void *self,
                  const struct comm_work *w,
                  muster_ticket *ret,
                  struct muster_error *err);
    int (*wait)(void *self, muster_ticket t, int64_t timeout_ns, struct muster_error *err);
    int (*test)(void *self, muster_ticket t, struct muster_error *err);
    void (*abort)(void *self, const char *why);
    bool (*get_cause)(void *self, struct muster_cause *ret);
    void (*close)(void *self);
};

extern const struct comm_backend comm_tcp;
extern const struct comm_backend comm_nccl;

/* Does the backend divide as well as add up? It touches the numbers anyway. */
bool comm_knows_mean(const muster_comm *c);
/* Like muster_comm_all_reduce() with MUSTER_SUM, of floats, and divided by the number of ranks.
 * For a backend that knows it. */
int comm_all_reduce_mean(muster_comm *c,
                         void *buf,
                         size_t count,
                         enum muster_dtype t,
                         muster_ticket *ret,
                         struct muster_error *err);

/* What the backend's open() gave; NULL where `c` is of another backend. */
void *comm_self(const muster_comm *c, const struct comm_backend *of);

#endif
