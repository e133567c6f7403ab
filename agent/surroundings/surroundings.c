/* Who is there, in which order they are asked, and what all of them need. */
#include "agent/surroundings/internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/parse.h"
#include "base/str.h"

struct launcher {
    enum surroundings_kind kind;
    const char *word; /* Of --surroundings. */
    const char *name;
    surroundings_there_fn *is_there;
    surroundings_ask_fn *ask;
    const char *sign; /* By what it is known. */
    const char *start;
};

/* The innermost first: mpirun and mpiexec start their helpers with srun, in a pod or in an
 * allocation, and what they start sees the variables of both. */
static const struct launcher launchers[] = {
    {SURROUNDINGS_OPENMPI, "openmpi", "Open MPI", openmpi_is_there, openmpi_ask,
     "OMPI_COMM_WORLD_SIZE", "mpirun"},
    {SURROUNDINGS_PMI, "pmi", "PMI", pmi_is_there, pmi_ask, "PMI_FD", "mpiexec"},
    {SURROUNDINGS_SLURM, "slurm", "Slurm", slurm_is_there, slurm_ask, "SLURM_JOB_ID", "srun"},
    {SURROUNDINGS_KUBERNETES, "kubernetes", "Kubernetes", kubernetes_is_there, kubernetes_ask,
     "KUBERNETES_SERVICE_HOST", "a Job"},
};

const char *surroundings_env(const struct surroundings_ask *ask, const char *name)
{
    return ask->env(ask->env_arg, name);
}

int surroundings_number(const struct surroundings_ask *ask,
                        const char *name,
                        uint32_t min,
                        uint32_t max,
                        uint32_t *ret,
                        struct mu_err *err)
{
    const char *text = surroundings_env(ask, name);
    if (text == NULL)
        return mu_err_set(err, -EINVAL,
                          "%s is not set here, and is needed to know this job's nodes: give "
                          "--nnodes and --rdzv, or --surroundings=none",
                          name);
    return mu_parse_u32(text, min, max, name, ret, err) < 0 ? -EINVAL : 0;
}

/* FNV-1a: short texts that differ in a digit come out far apart. */
static uint64_t mixed(const char *text)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (; *text != '\0'; text++)
        h = (h ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    return h ^ h >> 32;
}

uint16_t surroundings_port(const char *run_id)
{
    return (uint16_t)(SURROUNDINGS_PORT_FIRST + mixed(run_id) % SURROUNDINGS_PORT_COUNT);
}

static bool is_plain(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '-' || c == '_';
}

void surroundings_set_id(struct surroundings *s, const char *prefix, const char *id)
{
    if (strlen(id) < SURROUNDINGS_ID_BYTES)
        (void)snprintf(s->run_id, sizeof s->run_id, "%s-%s", prefix, id); /* A prefix is short. */
    else
        (void)snprintf(s->run_id, sizeof s->run_id, "%s-%016llx", prefix,
                       (unsigned long long)mixed(id));
    for (char *p = s->run_id; *p != '\0'; p++)
        if (!is_plain(*p))
            *p = '_';
}

static int ask_one(const struct launcher *l,
                   const struct surroundings_ask *ask,
                   struct surroundings *ret,
                   struct mu_err *err)
{
    struct surroundings s = {.kind = l->kind, .name = l->name};
    int r = l->ask(ask, &s, err);
    if (r < 0)
        return r;
    if (s.node_count == 1 || (s.node_count == 0 && ask->node_count == 0))
        s.kind = SURROUNDINGS_NONE;
    *ret = s;
    return 0;
}

int surroundings_find(const struct surroundings_ask *ask,
                      struct surroundings *ret,
                      struct mu_err *err)
{
    *ret = (struct surroundings){.kind = SURROUNDINGS_NONE};
    if (ask->kind == SURROUNDINGS_HOSTFILE)
        return ask_one(&(struct launcher){.kind = SURROUNDINGS_HOSTFILE,
                                          .name = "the host file",
                                          .ask = hostfile_ask},
                       ask, ret, err);
    for (size_t i = 0; i < MU_COUNT(launchers); i++) {
        const struct launcher *l = &launchers[i];
        bool chosen = ask->kind == l->kind;
        if (!chosen && ask->kind != SURROUNDINGS_AUTO)
            continue;
        if (l->is_there(ask))
            return ask_one(l, ask, ret, err);
        if (chosen)
            return mu_err_set(err, -EINVAL,
                              "--surroundings=%s: %s is not set here: start it with %s, or leave "
                              "the flag out",
                              l->word, l->sign, l->start);
    }
    return 0;
}
