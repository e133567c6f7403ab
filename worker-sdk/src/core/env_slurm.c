/* srun's variables. Slurm writes lists in short forms: hosts as "n[01-04,7],m3", tasks per node as
 * "2(x3),1". Only the first host and one node's count are wanted here. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/parse.h"
#include "base/str.h"
#include "worker-sdk/src/core/env_read.h"
#include "worker-sdk/src/core/sdk.h"

/* The port of a step lies below the ports that Linux gives to outgoing connections (32768 on), so
 * that none of these is there first. */
#define PORT_FIRST 10240u
#define PORT_COUNT 20480u

/* Steps with neighbouring numbers run at the same time on one node: the step moves the port by one,
 * the job somewhere else. */
static uint16_t port_of(uint32_t job, uint32_t step)
{
    uint32_t mixed = (uint32_t)((job * UINT64_C(0x9E3779B97F4A7C15)) >> 40);
    return (uint16_t)(PORT_FIRST + (mixed + step) % PORT_COUNT);
}

/* One of several names for the same thing; the step's comes before the job's. */
static const char *first_set(const struct env_reader *e, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (env_text(e, names[i]) != NULL)
            return names[i];
    }
    return names[count - 1];
}

/* The first host of a list: text is copied, and of each [...] its first item. False: no such list,
 * or longer than bytes. */
static bool first_host(const char *list, char *ret, size_t bytes)
{
    size_t n = 0;
    bool inside = false;  /* [...] */
    bool skipped = false; /* Behind the first item of it. */
    for (const char *p = list; *p != '\0'; p++) {
        if (*p == '[' || *p == ']') {
            if (inside == (*p == '['))
                return false;
            inside = *p == '[';
            skipped = false;
            continue;
        }
        if (*p == ',' && !inside)
            break;
        if (inside && (*p == ',' || *p == '-'))
            skipped = true;
        if (skipped)
            continue;
        if (n + 1 >= bytes)
            return false;
        ret[n++] = *p;
    }
    ret[n] = '\0';
    return n > 0 && !inside && mu_is_host_name(ret);
}

/* A number at *p, which moves behind it. False: none, or too large. */
static bool take_number(const char **p, uint32_t *ret)
{
    uint64_t v = 0;
    const char *from = *p;
    while (**p >= '0' && **p <= '9' && v <= ENV_WORLD_MAX)
        v = v * 10 + (uint64_t)(*(*p)++ - '0');
    *ret = (uint32_t)v;
    return *p != from && v <= ENV_WORLD_MAX;
}

/* Tasks of node `node` in "2(x3),1". False: no such list, or too short for that node. */
static bool tasks_of_node(const char *list, uint32_t node, uint32_t *ret)
{
    const char *p = list;
    uint64_t behind = 0; /* Nodes that the list has told of. */
    for (;;) {
        uint32_t tasks = 0;
        uint32_t times = 1;
        if (!take_number(&p, &tasks))
            return false;
        if (strncmp(p, "(x", 2) == 0) {
            p += 2;
            if (!take_number(&p, &times) || *p++ != ')')
                return false;
        }
        if (*p != ',' && *p != '\0')
            return false;
        behind += times;
        if (node < behind) {
            *ret = tasks;
            return true;
        }
        if (*p++ == '\0')
            return false;
    }
}

static int read_places(const struct env_reader *e, struct muster_env *ret)
{
    static const char *const counts[] = {"SLURM_STEP_NUM_NODES", "SLURM_NNODES",
                                         "SLURM_JOB_NUM_NODES"};
    static const char *const tasks[] = {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"};
    const char *count_name = first_set(e, counts, MU_COUNT(counts));
    int r = env_at_most(e, count_name, "SLURM_NTASKS", ret->world, &ret->node_count);
    if (r == 0)
        r = env_below(e, "SLURM_NODEID", count_name, ret->node_count, &ret->node_rank);
    if (r < 0)
        return r;
    const char *name = first_set(e, tasks, MU_COUNT(tasks));
    const char *list = env_text(e, name);
    if (list == NULL)
        return sdk_error(e->err, -EINVAL, "%s is not set, though %s is: %s", name, e->sign,
                         e->remedy);
    char shown[64];
    if (!tasks_of_node(list, ret->node_rank, &ret->local_world) || ret->local_world < 1 ||
        ret->local_world > ret->world)
        return sdk_error(
            e->err, -EINVAL, "%s: %s does not say how many tasks node %u has, as \"2(x3),1\" would",
            name, mu_quote(shown, sizeof shown, mu_str_of(list, strlen(list))), ret->node_rank);
    return env_below(e, "SLURM_LOCALID", name, ret->local_world, &ret->local_rank);
}

static int read_host(const struct env_reader *e, struct muster_env *ret)
{
    static const char *const lists[] = {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"};
    const char *name = first_set(e, lists, MU_COUNT(lists));
    const char *list = env_text(e, name);
    if (list == NULL)
        return sdk_error(e->err, -EINVAL, "%s is not set, though %s is: %s", name, e->sign,
                         e->remedy);
    char shown[64];
    if (!first_host(list, ret->store_host, sizeof ret->store_host))
        return sdk_error(e->err, -EINVAL,
                         "%s: %s is no list of hosts as Slurm writes it (\"n[01-04,7],m3\")", name,
                         mu_quote(shown, sizeof shown, mu_str_of(list, strlen(list))));
    return 0;
}

int env_slurm(const struct env_reader *e, struct muster_env *ret)
{
    static const char *const sizes[] = {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"};
    static const char *const steps[] = {"SLURM_STEP_ID", "SLURM_STEPID"};
    const char *size_name = first_set(e, sizes, MU_COUNT(sizes));
    uint32_t job = 0;
    uint32_t step = 0;
    int r = env_must(e, size_name, 1, ENV_WORLD_MAX, &ret->world);
    if (r == 0)
        r = env_below(e, "SLURM_PROCID", size_name, ret->world, &ret->rank);
    if (r == 0)
        r = read_places(e, ret);
    if (r == 0)
        r = env_must(e, "SLURM_JOB_ID", 0, UINT32_MAX, &job);
    if (r == 0)
        r = env_must(e, first_set(e, steps, MU_COUNT(steps)), 0, UINT32_MAX, &step);
    if (r == 0)
        r = env_may(e, "SLURM_RESTART_COUNT", 0, UINT32_MAX, 0, &ret->restart_count);
    if (r == 0)
        r = read_host(e, ret);
    if (r < 0)
        return r;
    (void)snprintf(ret->run_id, sizeof ret->run_id, "slurm-%u.%u", job, step);
    ret->round = ret->restart_count;
    ret->store_port = port_of(job, step);
    return 0;
}
