/* Which launcher started this process, and what its variables say. One function per launcher; the
 * order in which they are asked is the table at the end. Everything is checked here, once: the rest
 * of the library trusts struct muster_env. */
#include "worker-sdk/src/core/env.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/parse.h"
#include "base/str.h"
#include "worker-sdk/src/core/env_read.h"
#include "worker-sdk/src/core/sdk.h"

/* --- reading one variable --- */

const char *env_text(const struct env_reader *e, const char *name)
{
    return e->get(e->ctx, name);
}

static int number(const struct env_reader *e,
                  const char *name,
                  const char *text,
                  uint32_t min,
                  uint32_t max,
                  uint32_t *ret)
{
    struct mu_err why = {0};
    if (mu_parse_u32(text, min, max, name, ret, &why) < 0)
        return sdk_error(e->err, -EINVAL, "%s", why.msg);
    return 0;
}

int env_must(
    const struct env_reader *e, const char *name, uint32_t min, uint32_t max, uint32_t *ret)
{
    const char *text = env_text(e, name);
    if (text == NULL)
        return sdk_error(e->err, -EINVAL, "%s is not set, though %s is: %s", name, e->sign,
                         e->remedy);
    return number(e, name, text, min, max, ret);
}

int env_may(const struct env_reader *e,
            const char *name,
            uint32_t min,
            uint32_t max,
            uint32_t otherwise,
            uint32_t *ret)
{
    const char *text = env_text(e, name);
    if (text == NULL) {
        *ret = otherwise;
        return 0;
    }
    return number(e, name, text, min, max, ret);
}

int env_below(const struct env_reader *e,
              const char *name,
              const char *total_name,
              uint32_t total,
              uint32_t *ret)
{
    int r = env_must(e, name, 0, UINT32_MAX, ret);
    if (r == 0 && *ret >= total)
        return sdk_error(e->err, -EINVAL, "%s is %u, but %s is %u: 0 to %u would be right", name,
                         *ret, total_name, total, total - 1);
    return r;
}

int env_at_most(const struct env_reader *e,
                const char *name,
                const char *total_name,
                uint32_t total,
                uint32_t *ret)
{
    int r = env_must(e, name, 1, ENV_WORLD_MAX, ret);
    if (r == 0 && *ret > total)
        return sdk_error(e->err, -EINVAL, "%s is %u, but %s is %u: 1 to %u would be right", name,
                         *ret, total_name, total, total);
    return r;
}

int env_copy(
    const struct env_reader *e, const char *name, const char *text, char *ret, size_t bytes)
{
    if (mu_strcopy(ret, bytes, text) < 0)
        return sdk_error(e->err, -EINVAL, "%s has %zu bytes, at most %zu are allowed", name,
                         strlen(text), bytes - 1);
    return 0;
}

/* --- what several launchers share --- */

/* MASTER_ADDR and MASTER_PORT: both, or neither. */
static int read_master(const struct env_reader *e, struct muster_env *ret)
{
    const char *addr = env_text(e, "MASTER_ADDR");
    const char *port = env_text(e, "MASTER_PORT");
    if (addr == NULL && port == NULL)
        return 0;
    if (addr == NULL || port == NULL)
        return sdk_error(e->err, -EINVAL,
                         "%s is not set, though %s is: set both, or none where the launcher needs "
                         "none",
                         addr == NULL ? "MASTER_ADDR" : "MASTER_PORT",
                         addr == NULL ? "MASTER_PORT" : "MASTER_ADDR");
    if (addr[0] == '\0')
        return sdk_error(e->err, -EINVAL,
                         "MASTER_ADDR is empty: the host name or address of rank 0 would be right");
    uint32_t n = 0;
    int r = number(e, "MASTER_PORT", port, 1, UINT16_MAX, &n);
    if (r == 0)
        r = env_copy(e, "MASTER_ADDR", addr, ret->store_host, sizeof ret->store_host);
    if (r == 0)
        ret->store_port = (uint16_t)n;
    return r;
}

/* Where no launcher says which node this is: ranks are placed in blocks, or else dealt round. */
static void guess_node(struct muster_env *ret)
{
    ret->node_count = (ret->world + ret->local_world - 1) / ret->local_world;
    bool blocks = ret->rank % ret->local_world == ret->local_rank;
    ret->node_rank = blocks ? ret->rank / ret->local_world : ret->rank % ret->node_count;
}

/* --- node-agent, torchrun --- */

static int read_flag(const struct env_reader *e, const char *name, bool *ret)
{
    static const struct {
        const char *text;
        bool value;
    } words[] = {{"True", true},   {"true", true},   {"1", true}, {"", false},
                 {"False", false}, {"false", false}, {"0", false}};
    const char *text = env_text(e, name);
    *ret = false;
    if (text == NULL)
        return 0;
    for (size_t i = 0; i < MU_COUNT(words); i++) {
        if (strcmp(text, words[i].text) == 0) {
            *ret = words[i].value;
            return 0;
        }
    }
    char shown[64];
    return sdk_error(e->err, -EINVAL, "%s: %s is neither True nor False", name,
                     mu_quote(shown, sizeof shown, mu_str_of(text, strlen(text))));
}

/* Programs that set only RANK and WORLD_SIZE, as Kubernetes operators do, start one process a node.
 */
static int read_torch_places(const struct env_reader *e, struct muster_env *ret)
{
    ret->local_world = 1;
    if (env_text(e, "LOCAL_RANK") != NULL || env_text(e, "LOCAL_WORLD_SIZE") != NULL) {
        struct env_reader local = *e;
        local.sign = env_text(e, "LOCAL_RANK") != NULL ? "LOCAL_RANK" : "LOCAL_WORLD_SIZE";
        local.remedy = "set both, or neither where each node has one process";
        int r =
            env_at_most(&local, "LOCAL_WORLD_SIZE", "WORLD_SIZE", ret->world, &ret->local_world);
        if (r == 0)
            r = env_below(&local, "LOCAL_RANK", "LOCAL_WORLD_SIZE", ret->local_world,
                          &ret->local_rank);
        if (r < 0)
            return r;
    }
    if (env_text(e, "GROUP_RANK") == NULL && env_text(e, "GROUP_WORLD_SIZE") == NULL) {
        guess_node(ret);
        return 0;
    }
    struct env_reader group = *e;
    group.sign = env_text(e, "GROUP_RANK") != NULL ? "GROUP_RANK" : "GROUP_WORLD_SIZE";
    group.remedy = "set both, or neither";
    int r = env_at_most(&group, "GROUP_WORLD_SIZE", "WORLD_SIZE", ret->world, &ret->node_count);
    if (r == 0)
        r = env_below(&group, "GROUP_RANK", "GROUP_WORLD_SIZE", ret->node_count, &ret->node_rank);
    return r;
}

static int read_elastic(const struct env_reader *e, struct muster_env *ret)
{
    const char *id = env_text(e, "TORCHELASTIC_RUN_ID");
    int r = env_copy(e, "TORCHELASTIC_RUN_ID", id != NULL ? id : "none", ret->run_id,
                     sizeof ret->run_id);
    if (r == 0)
        r = env_may(e, "TORCHELASTIC_RESTART_COUNT", 0, ENV_WORLD_MAX, 0, &ret->restart_count);
    if (r == 0)
        r = env_may(e, "TORCHELASTIC_MAX_RESTARTS", 0, ENV_WORLD_MAX, 0, &ret->restarts_max);
    if (r == 0)
        r = read_flag(e, "TORCHELASTIC_USE_AGENT_STORE", &ret->store_is_served);
    if (r == 0)
        r = read_master(e, ret);
    if (r == 0 && ret->store_is_served && ret->store_port == 0)
        r = sdk_error(
            e->err, -EINVAL,
            "MASTER_ADDR and MASTER_PORT are not set, though TORCHELASTIC_USE_AGENT_STORE "
            "is True: set where the store is");
    return r;
}

static int read_torchrun(const struct env_reader *e, struct muster_env *ret)
{
    bool by_agent = env_text(e, "MUSTER_ROUND") != NULL;
    ret->launcher = by_agent ? MUSTER_LAUNCHER_AGENT : MUSTER_LAUNCHER_TORCHRUN;
    int r = env_must(e, "WORLD_SIZE", 1, ENV_WORLD_MAX, &ret->world);
    if (r == 0)
        r = env_below(e, "RANK", "WORLD_SIZE", ret->world, &ret->rank);
    if (r == 0)
        r = read_torch_places(e, ret);
    if (r == 0)
        r = read_elastic(e, ret);
    if (r == 0 && ret->world > 1 && ret->store_port == 0)
        r = sdk_error(e->err, -EINVAL,
                      "MASTER_ADDR and MASTER_PORT are not set, though WORLD_SIZE is %u: set the "
                      "address of rank 0 and a free port there",
                      ret->world);
    ret->round = ret->restart_count;
    if (r == 0 && by_agent)
        r = env_must(e, "MUSTER_ROUND", 0, UINT32_MAX, &ret->round);
    return r;
}

/* --- mpiexec --- */

static int read_open_mpi(const struct env_reader *e, struct muster_env *ret)
{
    ret->launcher = MUSTER_LAUNCHER_MPI;
    const char *id = env_text(e, "PMIX_NAMESPACE");
    int r = env_must(e, "OMPI_COMM_WORLD_SIZE", 1, ENV_WORLD_MAX, &ret->world);
    if (r == 0)
        r = env_below(e, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ret->world, &ret->rank);
    if (r == 0)
        r = env_at_most(e, "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE", ret->world,
                        &ret->local_world);
    if (r == 0)
        r = env_below(e, "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
                      ret->local_world, &ret->local_rank);
    if (r == 0)
        r = env_copy(e, "PMIX_NAMESPACE", id != NULL ? id : "mpi", ret->run_id, sizeof ret->run_id);
    if (r == 0)
        r = read_master(e, ret);
    if (r == 0)
        guess_node(ret);
    return r;
}

static int read_pmi(const struct env_reader *e, struct muster_env *ret)
{
    ret->launcher = MUSTER_LAUNCHER_MPI;
    int r = env_must(e, "PMI_SIZE", 1, ENV_WORLD_MAX, &ret->world);
    if (r == 0)
        r = env_below(e, "PMI_RANK", "PMI_SIZE", ret->world, &ret->rank);
    if (r == 0)
        r = env_at_most(e, "MPI_LOCALNRANKS", "PMI_SIZE", ret->world, &ret->local_world);
    if (r == 0)
        r = env_below(e, "MPI_LOCALRANKID", "MPI_LOCALNRANKS", ret->local_world, &ret->local_rank);
    if (r == 0)
        r = env_copy(e, "the run id", "mpi", ret->run_id, sizeof ret->run_id);
    if (r == 0)
        r = read_master(e, ret);
    if (r < 0)
        return r;
    guess_node(ret);
    if (ret->world > 1 && ret->store_port == 0 && env_text(e, "PMI_FD") == NULL)
        return sdk_error(e->err, -EINVAL,
                         "PMI_FD is not set, though PMI_RANK is: start with MPICH's mpiexec.hydra, "
                         "or set MASTER_ADDR and MASTER_PORT");
    return 0;
}

/* Hydra's other way: ranks ask for everything at a port. */
static int refuse_pmi_port(const struct env_reader *e, struct muster_env *ret)
{
    return sdk_error(e->err, -EINVAL,
                     "PMI_PORT is set and PMI_RANK is not: start mpiexec.hydra without -pmi-port, "
                     "which tells ranks nothing in their environment");
}

static int read_slurm(const struct env_reader *e, struct muster_env *ret)
{
    ret->launcher = MUSTER_LAUNCHER_SLURM;
    int r = env_slurm(e, ret);
    uint16_t port = ret->store_port;
    if (r == 0)
        r = read_master(e, ret);
    if (r == 0 && ret->store_port == 0)
        ret->store_port = port;
    return r;
}

/* --- who of them --- */

/* The first whose sign is there decides. node-agent and torchrun come first because they may
 * themselves run under srun or mpiexec, whose variables their workers inherit. Hydra comes before
 * Slurm for the same reason: in a batch job it inherits SLURM_PROCID of the batch script. But
 * `srun --mpi=pmi2` sets PMI_RANK as well, with another protocol behind PMI_FD: only Hydra tells
 * MPI_LOCALNRANKS. A batch script has SLURM_PROCID and no step: that is nobody's rank. */
static const struct launcher {
    const char *signs[2];
    const char *remedy;
    int (*read)(const struct env_reader *e, struct muster_env *ret);
} launchers[] = {
    {{"RANK", NULL}, "start the program with node-agent or torchrun, or set both", read_torchrun},
    {{"MUSTER_ROUND", NULL}, "start the program with node-agent", read_torchrun},
    {{"OMPI_COMM_WORLD_RANK", NULL}, "start the program with Open MPI's mpiexec", read_open_mpi},
    {{"PMI_RANK", "MPI_LOCALNRANKS"}, "start the program with mpiexec.hydra", read_pmi},
    {{"SLURM_PROCID", "SLURM_STEP_ID"}, "start the program with srun", read_slurm},
    {{"SLURM_PROCID", "SLURM_STEPID"}, "start the program with srun", read_slurm},
    {{"PMI_RANK", NULL}, "start the program with mpiexec.hydra", read_pmi},
    {{"PMI_PORT", "PMI_ID"}, "", refuse_pmi_port},
    {{"WORLD_SIZE", NULL},
     "start the program with node-agent or torchrun, or set both",
     read_torchrun},
};

static bool has_signs(const struct launcher *l, sdk_getenv_fn *get, void *ctx)
{
    return get(ctx, l->signs[0]) != NULL && (l->signs[1] == NULL || get(ctx, l->signs[1]) != NULL);
}

int sdk_env_parse(sdk_getenv_fn *get, void *ctx, struct muster_env *ret, struct muster_error *err)
{
    struct muster_env env = {.world = 1, .local_world = 1, .node_count = 1, .run_id = "alone"};
    for (size_t i = 0; i < MU_COUNT(launchers); i++) {
        if (!has_signs(&launchers[i], get, ctx))
            continue;
        struct env_reader e = {get, ctx, err, launchers[i].signs[0], launchers[i].remedy};
        int r = launchers[i].read(&e, &env);
        if (r < 0)
            return r;
        break;
    }
    *ret = env;
    return 0;
}

/* --- the process's own --- */

static const char *process_getenv(void *ctx, const char *name)
{
    return getenv(name);
}

int muster_env_read(struct muster_env *ret, struct muster_error *err)
{
    return sdk_env_parse(process_getenv, NULL, ret, err);
}
