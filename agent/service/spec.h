/* A submission as the server sends it (ASSIGN's spec): read, checked, and made into the command
 * line and environment of the agent that runs it here. Reads files only to see whether they are
 * there. */
#ifndef MUSTER_AGENT_SERVICE_SPEC_H
#define MUSTER_AGENT_SERVICE_SPEC_H

#include <stdbool.h>
#include <stdint.h>

#include "agent/workers/arena.h"
#include "base/err.h"
#include "base/str.h"

struct cJSON;

struct spec {
    struct cJSON *json; /* Owns the texts. */
    const char *cwd;
    const char *nnodes;
    const struct cJSON *argv;
    const struct cJSON *env;        /* NULL: none. */
    const struct cJSON *agent_args; /* NULL: none. */
};

/* Returns 0; -EINVAL with a sentence; -ENOMEM. spec_free() after success. */
int spec_read(struct mu_str text, struct spec *ret, struct mu_err *err);
void spec_free(struct spec *s);

/* What the job gets of this node and of the service. */
struct spec_place {
    const char *server;     /* As --rdzv takes it. */
    const char *token_file; /* NULL: none. */
    const char *local_addr; /* NULL: not given. */
    const char *job;
    uint32_t nproc;
    const int32_t *gpus;
    uint32_t gpu_count;
    uint32_t node_gpus;
    const char *visible; /* The service's own $CUDA_VISIBLE_DEVICES; NULL: all. */
    const char *user;
    const char *home;
    int service_pid;
    char *const *environment; /* The service's own. */
};

/* Can it run here? The folder is there and can be entered, the program is found, no other user is
 * wanted. `envp` as spec_build() made it. Returns 0 or a negative errno with a sentence. */
int spec_check(const struct spec *s,
               const struct spec_place *p,
               char *const *envp,
               struct mu_err *err);

/* argv and envp of its agent, in the arena. Returns 0, -EINVAL with a sentence or -ENOMEM. */
int spec_build(const struct spec *s,
               const struct spec_place *p,
               struct arena *arena,
               char ***ret_argv,
               char ***ret_envp,
               struct mu_err *err);

#endif
