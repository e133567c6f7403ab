/* Slurm: what srun says to the tasks of a step. A batch script and a shell of salloc have the job's
 * variables only: they are no step, and run on one node. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "agent/surroundings/internal.h"
#include "base/str.h"

#define STEP_FIRST_SPECIAL 0xfffffff0u /* Batch script, interactive shell, …: no tasks of ours. */

bool slurm_is_there(const struct surroundings_ask *ask)
{
    return surroundings_env(ask, "SLURM_JOB_ID") != NULL;
}

/* Both spellings are in use, the second also for what a user asked for. */
static const char *job_nodes(const struct surroundings_ask *ask)
{
    return surroundings_env(ask, "SLURM_JOB_NUM_NODES") != NULL ? "SLURM_JOB_NUM_NODES"
                                                                : "SLURM_NNODES";
}

static bool is_step(const struct surroundings_ask *ask, uint32_t *ret_step, struct mu_err *err)
{
    return surroundings_env(ask, "SLURM_STEP_ID") != NULL &&
           surroundings_number(ask, "SLURM_STEP_ID", 0, STEP_FIRST_SPECIAL - 1, ret_step, err) == 0;
}

/* Not started by srun: fine on a single node, a slip on several. */
static int ask_outside(const struct surroundings_ask *ask,
                       uint32_t job,
                       struct surroundings *s,
                       struct mu_err *err)
{
    const char *name = job_nodes(ask);
    s->node_count = 1;
    if (surroundings_env(ask, name) == NULL)
        return 0;
    int r = surroundings_number(ask, name, 1, MU_NODES_MAX, &s->node_count, err);
    if (r < 0 || s->node_count == 1)
        return r;
    return mu_err_set(err, -EINVAL,
                      "Slurm job %u has %u nodes, and this is no step of it: type srun "
                      "--ntasks-per-node=1 in front, for an agent on each, or --standalone to use "
                      "this node alone",
                      job, s->node_count);
}

/* Tasks of the step: one a node, or the user says that each is to count as one. */
static int ask_tasks(const struct surroundings_ask *ask, struct surroundings *s, struct mu_err *err)
{
    uint32_t tasks = 0;
    const char *name = surroundings_env(ask, "SLURM_STEP_NUM_TASKS") != NULL
                           ? "SLURM_STEP_NUM_TASKS"
                           : "SLURM_NTASKS";
    int r = surroundings_number(ask, "SLURM_STEP_NUM_NODES", 1, MU_NODES_MAX, &s->node_count, err);
    if (r == 0)
        r = surroundings_number(ask, name, 1, UINT32_MAX, &tasks, err);
    if (r < 0)
        return r;
    s->count_from = "SLURM_STEP_NUM_NODES";
    s->rank_from = "SLURM_NODEID";
    if (tasks != s->node_count && ask->kind == SURROUNDINGS_AUTO)
        return mu_err_set(
            err, -EINVAL,
            "srun started %u tasks on %u node%s, and one agent a node is wanted: srun "
            "--ntasks-per-node=1 (or --surroundings=slurm, if each task is to count "
            "as a node)",
            tasks, s->node_count, s->node_count == 1 ? "" : "s");
    if (tasks != s->node_count) {
        s->node_count = tasks;
        s->count_from = name;
        s->rank_from = "SLURM_PROCID";
    }
    return surroundings_number(ask, s->rank_from, 0, s->node_count - 1, &s->node_rank, err);
}

static int ask_place(const struct surroundings_ask *ask, struct surroundings *s, struct mu_err *err)
{
    char shown[64];
    uint64_t count = 0;
    bool of_step = surroundings_env(ask, "SLURM_STEP_NODELIST") != NULL;
    s->host_from = of_step ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST";
    const char *list = surroundings_env(ask, s->host_from);
    if (list == NULL)
        list = "";
    if (surroundings_hostlist(list, 0, s->host, &count) < 0)
        return mu_err_set(err, -EINVAL,
                          "%s: %s is not a list of hosts as n[1-3],m5: give --rdzv=HOST on every "
                          "node",
                          s->host_from,
                          mu_quote(shown, sizeof shown, mu_str_of(list, strlen(list))));
    return 0;
}

/* The parts of a heterogeneous job are not told of each other in one count. */
static int check_parts(const struct surroundings_ask *ask, struct mu_err *err)
{
    uint32_t parts = 1;
    if (ask->kind != SURROUNDINGS_AUTO || surroundings_env(ask, "SLURM_HET_SIZE") == NULL)
        return 0;
    int r = surroundings_number(ask, "SLURM_HET_SIZE", 0, UINT32_MAX, &parts, err);
    if (r < 0 || parts <= 1)
        return r;
    return mu_err_set(err, -EINVAL,
                      "this Slurm job has %u parts, and none knows of the others' nodes: give "
                      "--nnodes and --rdzv=HOST (or --surroundings=slurm, if each part is a job of "
                      "its own)",
                      parts);
}

/* Steps of one job run side by side, jobs have neighbouring numbers, and what is left of a job's
 * first run may not be met by its second: none may share a port, so that arithmetic is better than
 * chance here. */
static uint16_t port_of(uint32_t job, uint32_t step, uint32_t restarts)
{
    uint64_t offset = (uint64_t)job + UINT64_C(1009) * step + UINT64_C(2017) * restarts;
    return (uint16_t)(SURROUNDINGS_PORT_FIRST + offset % SURROUNDINGS_PORT_COUNT);
}

int slurm_ask(const struct surroundings_ask *ask, struct surroundings *s, struct mu_err *err)
{
    uint32_t job = 0;
    uint32_t step = 0;
    uint32_t restarts = 0;
    char id[48];
    int r = surroundings_number(ask, "SLURM_JOB_ID", 0, UINT32_MAX, &job, err);
    if (r < 0)
        return r;
    if (!is_step(ask, &step, err))
        return ask_outside(ask, job, s, err);
    r = check_parts(ask, err);
    if (r == 0)
        r = ask_tasks(ask, s, err);
    if (r == 0 && surroundings_env(ask, "SLURM_RESTART_COUNT") != NULL)
        r = surroundings_number(ask, "SLURM_RESTART_COUNT", 0, UINT32_MAX, &restarts, err);
    if (r == 0 && ask->place_wanted)
        r = ask_place(ask, s, err);
    if (r < 0)
        return r;
    s->port = port_of(job, step, restarts);
    s->id_from = "SLURM_JOB_ID, SLURM_STEP_ID";
    (void)snprintf(id, sizeof id, "%u.%u", job, step);
    if (restarts > 0) { /* Requeued: the same numbers again, and not the same job. */
        (void)snprintf(id, sizeof id, "%u.%u-requeue%u", job, step, restarts);
        s->id_from = "SLURM_JOB_ID, SLURM_STEP_ID, SLURM_RESTART_COUNT";
    }
    surroundings_set_id(s, "slurm", id);
    return 0;
}
