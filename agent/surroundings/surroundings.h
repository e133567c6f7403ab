/* What the environment says of a job: how many nodes, which of them this one is, where they meet.
 *
 * Slurm, Open MPI, Hydra (MPICH's and Intel's mpiexec) and Kubernetes tell the processes that they
 * start; a host file tells whoever reads it. Pure: what must be looked at is behind functions that
 * the caller hands in. Each launcher's variables, and what is made of them, stand in docs/guides/.
 */
#ifndef MUSTER_AGENT_SURROUNDINGS_H
#define MUSTER_AGENT_SURROUNDINGS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/limits.h"

/* Whom to listen to. AUTO: whoever is there, the innermost launcher first. */
enum surroundings_kind {
    SURROUNDINGS_AUTO,
    SURROUNDINGS_NONE,
    SURROUNDINGS_SLURM,
    SURROUNDINGS_OPENMPI,
    SURROUNDINGS_PMI,
    SURROUNDINGS_KUBERNETES,
    SURROUNDINGS_HOSTFILE
};

/* Longest run id of a launcher, with its NUL: an id is told in full or as a number made of it. */
#define SURROUNDINGS_ID_BYTES 112

/* What this machine answers. Every function may be called several times or never. */
struct surroundings_machine {
    /* This host's name, as uname says it. */
    const char *(*host)(void);
    /* Is this numeric address one of this machine's? Of a network that it is directly on? */
    bool (*is_own)(const char *address);
    bool (*is_near)(const char *address);
    /* A small file's text, valid until the next call; NULL with a sentence. */
    const char *(*file)(const char *path, struct mu_err *err);
    /* Over the line to the process manager (descriptor `fd`): what rank 0 hands in as `own` comes
     * out everywhere as `ret_shared` (MU_HOST_BYTES), and the name that the manager gave the job as
     * `ret_job` (SURROUNDINGS_ID_BYTES). Blocks until all ranks are there; 0 or a negative errno
     * with a sentence. The line is of no use to anyone afterwards. */
    int (*share)(int fd,
                 bool is_first,
                 const char *own,
                 char *ret_shared,
                 char *ret_job,
                 struct mu_err *err);
};

struct surroundings_ask {
    enum surroundings_kind kind;
    const char *hostfile; /* HOSTFILE: its path. */
    int64_t node_rank;    /* Given by the user; -1: not. */
    uint32_t node_count;  /* Given by the user (the most); 0: not. */
    bool place_wanted;    /* The user did not say where to meet. */
    const char *(*env)(const void *arg, const char *name); /* NULL: unset. */
    const void *env_arg;
    const struct surroundings_machine *machine;
};

/* What was found. The …_from texts name the variables or file it was taken from. */
struct surroundings {
    enum surroundings_kind kind; /* NONE: nothing that asks for other nodes; the rest is unset. */
    const char *name;            /* For people: "Slurm". */
    uint32_t node_count;         /* 0: not told. */
    uint32_t node_rank;
    char host[MU_HOST_BYTES]; /* Where nodes meet: node 0's name or address; "": not asked for. */
    uint16_t port;
    bool has_many_addresses;      /* `host` is one of several: node 0 serves at all of them. */
    char run_id[MU_RUN_ID_BYTES]; /* "": not told. */
    uint32_t nproc;               /* Workers of this node; 0: not told. */
    const char *count_from;
    const char *rank_from;
    const char *host_from;
    const char *id_from;
    const char *note; /* A warning that comes with NONE; or NULL. */
};

/* Returns 0; or -EINVAL with one sentence that says what is amiss and what to type instead; or what
 * machine->share returned. */
int surroundings_find(const struct surroundings_ask *ask,
                      struct surroundings *ret,
                      struct mu_err *err);

/* The index-th host of a list as Slurm writes it: "n[1-3,07-09],m5", "rack[0-1]n[01-16]"; counting
 * from 0. `ret` has MU_HOST_BYTES; `ret_count` is how many the list has. Returns 0, -EINVAL (no
 * such list) or -ERANGE (not so many hosts). Nothing is said in words. */
int surroundings_hostlist(const char *list, uint64_t index, char *ret, uint64_t *ret_count);

#endif
