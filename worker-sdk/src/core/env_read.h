/* How the launchers' readers read a variable: one call, one sentence. */
#ifndef MUSTER_SDK_ENV_READ_H
#define MUSTER_SDK_ENV_READ_H

#include <stddef.h>

#include "worker-sdk/src/core/env.h"

/* Ranks, worlds and counts; as far as an MPI rank, an int, can go. */
#define ENV_WORLD_MAX INT32_MAX

struct env_reader {
    sdk_getenv_fn *get;
    void *ctx;
    struct muster_error *err;
    const char *sign;   /* The variable that told which launcher it is. */
    const char *remedy; /* How to get all of its variables. */
};

/* NULL: not set. */
const char *env_text(const struct env_reader *e, const char *name);
/* A number that must be there, or may be. */
int env_must(
    const struct env_reader *e, const char *name, uint32_t min, uint32_t max, uint32_t *ret);
int env_may(const struct env_reader *e,
            const char *name,
            uint32_t min,
            uint32_t max,
            uint32_t otherwise,
            uint32_t *ret);
/* A rank (0 to total-1) and a part (1 to total) of what another variable counts. */
int env_below(const struct env_reader *e,
              const char *name,
              const char *total_name,
              uint32_t total,
              uint32_t *ret);
int env_at_most(const struct env_reader *e,
                const char *name,
                const char *total_name,
                uint32_t total,
                uint32_t *ret);
int env_copy(
    const struct env_reader *e, const char *name, const char *text, char *ret, size_t bytes);

/* env_slurm.c. Fills everything, and in store_host and store_port where rank 0 serves. */
int env_slurm(const struct env_reader *e, struct muster_env *ret);

#endif
