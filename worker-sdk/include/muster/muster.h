/* libmuster: what a worker of a distributed job links.
 *
 * It tells the worker who it is, reaches the job's store, hands out NCCL ids, moves tensors between
 * ranks, and tells the agent how the work goes. It blocks, and every wait has a time-out; it starts
 * no thread but the one a communicator on sockets needs, and one on rank 0 where it must serve the
 * store itself; it never prints, exits or installs a signal handler. It meets its launcher only at
 * environment variables and sockets, so a program built on it runs under node-agent, torchrun,
 * mpiexec and srun alike.
 *
 * Errors     0, or a negative errno; the sentence is in the caller's struct muster_error, which may
 *            be NULL. Outputs are written on success only.
 * Times      int64_t nanoseconds, relative; negative: no limit of the call's own.
 * Threads    one thread at a time per handle unless a function says otherwise.
 * Languages  C99 and later, C++11 and later. */
#ifndef MUSTER_MUSTER_H
#define MUSTER_MUSTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define MUSTER_API __attribute__((visibility("default")))
#else
#define MUSTER_API
#endif

#define MUSTER_TEXT_BYTES 256

struct muster_error {
    int code; /* Negative errno; 0: none. */
    char text[MUSTER_TEXT_BYTES];
};

/* "0.1.0": of the library that is there at run time. */
MUSTER_API const char *muster_version(void);

/* --- Who am I --- */

enum muster_launcher {
    MUSTER_LAUNCHER_NONE,     /* Nobody: one rank, alone. */
    MUSTER_LAUNCHER_AGENT,    /* node-agent */
    MUSTER_LAUNCHER_TORCHRUN, /* torchrun, or anything that sets its variables */
    MUSTER_LAUNCHER_MPI,      /* mpiexec of MPICH or Intel (PMI-1), or of Open MPI */
    MUSTER_LAUNCHER_SLURM     /* srun */
};

struct muster_env {
    enum muster_launcher launcher;
    uint32_t rank;
    uint32_t world;
    uint32_t local_rank;
    uint32_t local_world;
    uint32_t node_rank;
    uint32_t node_count;
    uint32_t restart_count; /* Failures the job has restarted after. */
    uint32_t restarts_max;
    uint32_t round; /* Differs in every start of the group; under torchrun its restart count. */
    char run_id[128];
    char store_host[256]; /* Empty: no store (alone, or to be agreed upon through PMI: then
                             muster_open() fills it in). */
    uint16_t store_port;
    bool store_is_served; /* By the launcher; else rank 0 of this library serves it. */
};

/* Read and check the process's environment. Returns 0, or -EINVAL with a sentence that names the
 * variable, what it holds and what would be right.
 * Source: docs/sdk.md "Who am I"; torchrun's variables as in torch.distributed's "environment
 * variable initialization". */
MUSTER_API int muster_env_read(struct muster_env *ret, struct muster_error *err);

/* --- The handle --- */

typedef struct muster muster;
typedef struct muster_store muster_store; /* store.h */

struct muster_options {
    size_t size;        /* Of this struct, set by the initializer. */
    int64_t timeout_ns; /* For reaching the store and for collective starts: 5 minutes. */
};
#define MUSTER_OPTIONS_INIT                                                                        \
    {                                                                                              \
        sizeof(struct muster_options), INT64_C(300000000000)                                       \
    }

/* Read the environment, connect to the store and to the agent's socket where there is one.
 * `options` may be NULL. Blocks for at most timeout_ns, and as long as a name look-up takes.
 *
 * Where no launcher serves a store (mpiexec, srun, plain RANK and MASTER_ADDR), rank 0 serves one
 * in a thread of its own: on loopback where all ranks are on one host, else on all addresses, open
 * to whoever reaches the port, as with torch. Under MPICH's mpiexec the others learn of it through
 * PMI; a program that calls MPI_Init() itself sets MASTER_ADDR and MASTER_PORT, which leaves PMI
 * alone.
 *
 * Collective where rank 0 serves. -EINVAL: a variable is wrong; -EADDRINUSE: the port is taken;
 * -ETIMEDOUT: the store, or another rank, did not come. */
MUSTER_API int
muster_open(const struct muster_options *options, muster **ret, struct muster_error *err);
/* Takes NULL. Waits for no other rank, with one exception: where rank 0 serves the store, it waits
 * until each of the others has closed its handle or ended, for at most a minute (or timeout_ns,
 * where that is less). Under MPICH's mpiexec each rank must call it before it ends, as
 * MPI_Finalize(): a rank that ends without it has crashed, and mpiexec ends the job, or loses what
 * that rank wrote last and exits with 0. There a process opens one handle in its life. */
MUSTER_API void muster_close(muster *m);

MUSTER_API const struct muster_env *muster_get_env(const muster *m);
MUSTER_API bool muster_is_main(const muster *m); /* Rank 0. */
/* Borrowed; keys are under this round's prefix, so that a round that is over is never read. NULL:
 * a world of one without a store; the store's functions then answer -ENOTCONN. */
MUSTER_API muster_store *muster_get_store(muster *m);

#ifdef __cplusplus
}
#endif
#endif
