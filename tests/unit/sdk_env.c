/* The promise: the launchers' variables become who I am, and each one that is wrong or missing gets
 * a sentence that names it. One row a story. */
#include "tests/unit/unit.h"

#include <errno.h>

#include "worker-sdk/src/core/env.h"

struct row {
    const char *title;
    const char *vars;     /* "A=1 B=2"; an underscore in a value is a space. */
    const char *sentence; /* Part of it; NULL: it is right. */
    struct muster_env want;
};

/* A value of `ctx`, which is such a list. */
static const char *get(void *ctx, const char *name)
{
    static char values[64][160];
    static size_t next;
    size_t n = strlen(name);
    for (const char *p = ctx; p != NULL && *p != '\0';) {
        size_t all = strcspn(p, " ");
        if (all > n && strncmp(p, name, n) == 0 && p[n] == '=') {
            char *v = values[next++ % 64];
            assert_true(all - n - 1 < sizeof values[0]);
            memcpy(v, p + n + 1, all - n - 1);
            v[all - n - 1] = '\0';
            return v;
        }
        p += all;
        p += strspn(p, " ");
    }
    return NULL;
}

#define TORCH                                                                                      \
    "RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 GROUP_RANK=1 GROUP_WORLD_SIZE=2 "         \
    "MASTER_ADDR=n1 MASTER_PORT=29500 "
#define ELASTIC                                                                                    \
    "TORCHELASTIC_RUN_ID=job7 TORCHELASTIC_RESTART_COUNT=2 TORCHELASTIC_MAX_RESTARTS=3 "           \
    "TORCHELASTIC_USE_AGENT_STORE=True "
#define OPEN_MPI                                                                                   \
    "OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_SIZE=6 OMPI_COMM_WORLD_LOCAL_RANK=1 "                  \
    "OMPI_COMM_WORLD_LOCAL_SIZE=2 "
#define HYDRA "PMI_RANK=1 PMI_SIZE=4 PMI_FD=6 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=4 "
#define SLURM                                                                                      \
    "SLURM_PROCID=4 SLURM_NTASKS=5 SLURM_LOCALID=0 SLURM_NODEID=2 SLURM_NNODES=3 "                 \
    "SLURM_TASKS_PER_NODE=2(x2),1 SLURM_JOB_NODELIST=n[01-02,7],m3 SLURM_JOB_ID=77 "               \
    "SLURM_STEP_ID=1 "

/* clang-format off */
static const struct row right[] = {
    {"nobody", "HOME=/tmp", NULL,
     {.launcher = MUSTER_LAUNCHER_NONE, .world = 1, .local_world = 1, .node_count = 1, .run_id = "alone"}},
    {"torchrun", TORCH ELASTIC, NULL,
     {.launcher = MUSTER_LAUNCHER_TORCHRUN, .rank = 3, .world = 4, .local_rank = 1, .local_world = 2, .node_rank = 1,
      .node_count = 2, .restart_count = 2, .restarts_max = 3, .round = 2, .run_id = "job7", .store_host = "n1",
      .store_port = 29500, .store_is_served = true}},
    {"node-agent says the round", TORCH ELASTIC "MUSTER_ROUND=9", NULL,
     {.launcher = MUSTER_LAUNCHER_AGENT, .rank = 3, .world = 4, .local_rank = 1, .local_world = 2, .node_rank = 1,
      .node_count = 2, .restart_count = 2, .restarts_max = 3, .round = 9, .run_id = "job7", .store_host = "n1",
      .store_port = 29500, .store_is_served = true}},
    {"by hand, rank 0 serves", TORCH, NULL,
     {.launcher = MUSTER_LAUNCHER_TORCHRUN, .rank = 3, .world = 4, .local_rank = 1, .local_world = 2, .node_rank = 1,
      .node_count = 2, .run_id = "none", .store_host = "n1", .store_port = 29500}},
    {"the flag may say False", TORCH "TORCHELASTIC_USE_AGENT_STORE=False", NULL,
     {.launcher = MUSTER_LAUNCHER_TORCHRUN, .rank = 3, .world = 4, .local_rank = 1, .local_world = 2, .node_rank = 1,
      .node_count = 2, .run_id = "none", .store_host = "n1", .store_port = 29500}},
    {"one process a node", "RANK=2 WORLD_SIZE=3 MASTER_ADDR=n1 MASTER_PORT=29500", NULL,
     {.launcher = MUSTER_LAUNCHER_TORCHRUN, .rank = 2, .world = 3, .local_world = 1, .node_rank = 2, .node_count = 3,
      .run_id = "none", .store_host = "n1", .store_port = 29500}},
    {"alone needs no address", "RANK=0 WORLD_SIZE=1", NULL,
     {.launcher = MUSTER_LAUNCHER_TORCHRUN, .world = 1, .local_world = 1, .node_count = 1, .run_id = "none"}},
    {"nodes in blocks", "RANK=5 WORLD_SIZE=6 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=1", NULL,
     {.launcher = MUSTER_LAUNCHER_TORCHRUN, .rank = 5, .world = 6, .local_rank = 1, .local_world = 2, .node_rank = 2,
      .node_count = 3, .run_id = "none", .store_host = "a", .store_port = 1}},
    {"ranks dealt round", "RANK=4 WORLD_SIZE=6 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=1", NULL,
     {.launcher = MUSTER_LAUNCHER_TORCHRUN, .rank = 4, .world = 6, .local_rank = 1, .local_world = 2, .node_rank = 1,
      .node_count = 3, .run_id = "none", .store_host = "a", .store_port = 1}},
    {"Open MPI", OPEN_MPI "MASTER_ADDR=n1 MASTER_PORT=4000 PMIX_NAMESPACE=prte-1", NULL,
     {.launcher = MUSTER_LAUNCHER_MPI, .rank = 5, .world = 6, .local_rank = 1, .local_world = 2, .node_rank = 2,
      .node_count = 3, .run_id = "prte-1", .store_host = "n1", .store_port = 4000}},
    {"Open MPI without an address still says who I am", OPEN_MPI, NULL,
     {.launcher = MUSTER_LAUNCHER_MPI, .rank = 5, .world = 6, .local_rank = 1, .local_world = 2, .node_rank = 2,
      .node_count = 3, .run_id = "mpi"}},
    {"Hydra", HYDRA, NULL,
     {.launcher = MUSTER_LAUNCHER_MPI, .rank = 1, .world = 4, .local_rank = 1, .local_world = 4, .node_count = 1,
      .run_id = "mpi"}},
    {"Hydra in a batch job comes before Slurm", HYDRA SLURM, NULL,
     {.launcher = MUSTER_LAUNCHER_MPI, .rank = 1, .world = 4, .local_rank = 1, .local_world = 4, .node_count = 1,
      .run_id = "mpi"}},
    {"srun", SLURM, NULL,
     {.launcher = MUSTER_LAUNCHER_SLURM, .rank = 4, .world = 5, .local_world = 1, .node_rank = 2, .node_count = 3,
      .run_id = "slurm-77.1", .store_host = "n01", .store_port = 14237}},
    {"srun --mpi=pmi2 sets PMI's names too", SLURM "PMI_RANK=4 PMI_SIZE=5 PMI_FD=9", NULL,
     {.launcher = MUSTER_LAUNCHER_SLURM, .rank = 4, .world = 5, .local_world = 1, .node_rank = 2, .node_count = 3,
      .run_id = "slurm-77.1", .store_host = "n01", .store_port = 14237}},
    {"srun: the next step has the next port", "SLURM_STEPID=2 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 SLURM_NTASKS=5 "
     "SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_STEP_NUM_NODES=1 SLURM_STEP_TASKS_PER_NODE=2 SLURM_STEP_NODELIST=n7 "
     "SLURM_JOB_NODELIST=n[1-9] SLURM_JOB_ID=77 SLURM_RESTART_COUNT=1", NULL,
     {.launcher = MUSTER_LAUNCHER_SLURM, .world = 2, .local_world = 2, .node_count = 1, .restart_count = 1, .round = 1,
      .run_id = "slurm-77.2", .store_host = "n7", .store_port = 14238}},
    {"srun with an address", SLURM "MASTER_ADDR=n9 MASTER_PORT=4000", NULL,
     {.launcher = MUSTER_LAUNCHER_SLURM, .rank = 4, .world = 5, .local_world = 1, .node_rank = 2, .node_count = 3,
      .run_id = "slurm-77.1", .store_host = "n9", .store_port = 4000}},
    {"a batch script is nobody's rank", "SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_JOB_ID=7", NULL,
     {.launcher = MUSTER_LAUNCHER_NONE, .world = 1, .local_world = 1, .node_count = 1, .run_id = "alone"}},
    {"torchrun under srun and mpiexec comes first", TORCH ELASTIC SLURM HYDRA OPEN_MPI, NULL,
     {.launcher = MUSTER_LAUNCHER_TORCHRUN, .rank = 3, .world = 4, .local_rank = 1, .local_world = 2, .node_rank = 1,
      .node_count = 2, .restart_count = 2, .restarts_max = 3, .round = 2, .run_id = "job7", .store_host = "n1",
      .store_port = 29500, .store_is_served = true}},
};

#define ADDR " MASTER_ADDR=a MASTER_PORT=1"
#define RANKS "RANK=0 WORLD_SIZE=2 "
static const struct row wrong[] = {
    {"rank alone", "RANK=0", "WORLD_SIZE is not set, though RANK is", {0}},
    {"world alone", "WORLD_SIZE=2", "RANK is not set, though WORLD_SIZE is", {0}},
    {"round alone", "MUSTER_ROUND=2", "WORLD_SIZE is not set, though MUSTER_ROUND is", {0}},
    {"rank too large", "RANK=4 WORLD_SIZE=4" ADDR, "RANK is 4, but WORLD_SIZE is 4: 0 to 3 would be right", {0}},
    {"rank no number", "RANK=one WORLD_SIZE=4" ADDR, "RANK: \"one\" is not a whole number", {0}},
    {"rank empty", "RANK= WORLD_SIZE=4" ADDR, "RANK: \"\" is not a whole number", {0}},
    {"rank negative", "RANK=-1 WORLD_SIZE=4" ADDR, "RANK: -1 is out of range", {0}},
    {"world of none", "RANK=0 WORLD_SIZE=0" ADDR, "WORLD_SIZE: 0 is out of range: 1 to", {0}},
    {"world too large", "RANK=0 WORLD_SIZE=4294967296" ADDR, "WORLD_SIZE: 4294967296 is out of range", {0}},
    {"local rank alone", RANKS "LOCAL_RANK=0" ADDR, "LOCAL_WORLD_SIZE is not set, though LOCAL_RANK is", {0}},
    {"local world alone", RANKS "LOCAL_WORLD_SIZE=2" ADDR, "LOCAL_RANK is not set, though LOCAL_WORLD_SIZE is", {0}},
    {"local world too large", RANKS "LOCAL_RANK=0 LOCAL_WORLD_SIZE=3" ADDR, "LOCAL_WORLD_SIZE is 3, but WORLD_SIZE is 2", {0}},
    {"local rank too large", RANKS "LOCAL_RANK=2 LOCAL_WORLD_SIZE=2" ADDR, "LOCAL_RANK is 2, but LOCAL_WORLD_SIZE is 2", {0}},
    {"group rank alone", RANKS "GROUP_RANK=0" ADDR, "GROUP_WORLD_SIZE is not set, though GROUP_RANK is", {0}},
    {"groups alone", RANKS "GROUP_WORLD_SIZE=1" ADDR, "GROUP_RANK is not set, though GROUP_WORLD_SIZE is", {0}},
    {"group rank too large", RANKS "GROUP_RANK=1 GROUP_WORLD_SIZE=1" ADDR, "GROUP_RANK is 1, but GROUP_WORLD_SIZE is 1", {0}},
    {"groups too many", RANKS "GROUP_RANK=0 GROUP_WORLD_SIZE=3" ADDR, "GROUP_WORLD_SIZE is 3, but WORLD_SIZE is 2", {0}},
    {"no address", RANKS, "MASTER_ADDR and MASTER_PORT are not set, though WORLD_SIZE is 2", {0}},
    {"no port", RANKS "MASTER_ADDR=a", "MASTER_PORT is not set, though MASTER_ADDR is", {0}},
    {"no host", RANKS "MASTER_PORT=1", "MASTER_ADDR is not set, though MASTER_PORT is", {0}},
    {"empty host", RANKS "MASTER_ADDR= MASTER_PORT=1", "MASTER_ADDR is empty", {0}},
    {"port 0", RANKS "MASTER_ADDR=a MASTER_PORT=0", "MASTER_PORT: 0 is out of range: 1 to 65535", {0}},
    {"port too large", RANKS "MASTER_ADDR=a MASTER_PORT=65536", "MASTER_PORT: 65536 is out of range", {0}},
    {"a flag that is none", RANKS "TORCHELASTIC_USE_AGENT_STORE=maybe" ADDR, "TORCHELASTIC_USE_AGENT_STORE: \"maybe\" is neither", {0}},
    {"a store nowhere", "RANK=0 WORLD_SIZE=1 TORCHELASTIC_USE_AGENT_STORE=True", "though TORCHELASTIC_USE_AGENT_STORE is True", {0}},
    {"restarts", RANKS "TORCHELASTIC_RESTART_COUNT=x" ADDR, "TORCHELASTIC_RESTART_COUNT: \"x\"", {0}},
    {"budget", RANKS "TORCHELASTIC_MAX_RESTARTS=-2" ADDR, "TORCHELASTIC_MAX_RESTARTS: -2", {0}},
    {"run id", RANKS "TORCHELASTIC_RUN_ID=0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890"
     "1234567890123456789012345678901234567" ADDR, "TORCHELASTIC_RUN_ID has 128 bytes, at most 127", {0}},
    {"round no number", TORCH "MUSTER_ROUND=x", "MUSTER_ROUND: \"x\" is not a whole number", {0}},
    {"Open MPI: size", "OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE is not set, though OMPI_COMM_WORLD_RANK is: start", {0}},
    {"Open MPI: local size", "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1", "OMPI_COMM_WORLD_LOCAL_SIZE is not set", {0}},
    {"Open MPI: local rank", "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_LOCAL_SIZE=1",
     "OMPI_COMM_WORLD_LOCAL_RANK is not set", {0}},
    {"Hydra: size", "PMI_RANK=0 PMI_FD=3", "PMI_SIZE is not set, though PMI_RANK is: start the program with mpiexec.hydra", {0}},
    {"Hydra: rank", "PMI_RANK=4 PMI_SIZE=4 MPI_LOCALNRANKS=4 MPI_LOCALRANKID=0 PMI_FD=3", "PMI_RANK is 4, but PMI_SIZE is 4", {0}},
    {"Hydra: local size", "PMI_RANK=0 PMI_SIZE=2 PMI_FD=3", "MPI_LOCALNRANKS is not set", {0}},
    {"Hydra: local rank", "PMI_RANK=0 PMI_SIZE=2 PMI_FD=3 MPI_LOCALNRANKS=2", "MPI_LOCALRANKID is not set", {0}},
    {"Hydra: nowhere to meet", "PMI_RANK=0 PMI_SIZE=2 MPI_LOCALNRANKS=2 MPI_LOCALRANKID=0", "PMI_FD is not set, though PMI_RANK is", {0}},
    {"Hydra: its other way", "PMI_PORT=n1:4000 PMI_ID=0", "start mpiexec.hydra without -pmi-port", {0}},
    {"srun: tasks", "SLURM_PROCID=0 SLURM_STEP_ID=0", "SLURM_NTASKS is not set, though SLURM_PROCID is: start the program with srun", {0}},
    {"srun: nodes", "SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_NTASKS=2", "SLURM_JOB_NUM_NODES is not set", {0}},
    {"srun: node", "SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_NTASKS=2 SLURM_NNODES=1", "SLURM_NODEID is not set", {0}},
    {"srun: tasks of nodes", "SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_NTASKS=2 SLURM_NNODES=1 SLURM_NODEID=0",
     "SLURM_TASKS_PER_NODE is not set", {0}},
    {"srun: a list that is none", "SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_NTASKS=2 SLURM_NNODES=1 SLURM_NODEID=0 SLURM_TASKS_PER_NODE=2(y3)",
     "SLURM_TASKS_PER_NODE: \"2(y3)\" does not say how many tasks node 0 has", {0}},
    {"srun: a list too short", "SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_NTASKS=3 SLURM_NNODES=3 SLURM_NODEID=2 SLURM_TASKS_PER_NODE=1(x2)",
     "does not say how many tasks node 2 has", {0}},
    {"srun: local", "SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_NTASKS=2 SLURM_NNODES=1 SLURM_NODEID=0 SLURM_TASKS_PER_NODE=2",
     "SLURM_LOCALID is not set", {0}},
    {"srun: local too large", "SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_NTASKS=2 SLURM_NNODES=1 SLURM_NODEID=0 SLURM_TASKS_PER_NODE=2 "
     "SLURM_LOCALID=2", "SLURM_LOCALID is 2, but SLURM_TASKS_PER_NODE is 2", {0}},
    {"srun: job", "SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_NTASKS=2 SLURM_NNODES=1 SLURM_NODEID=0 SLURM_TASKS_PER_NODE=2 SLURM_LOCALID=0",
     "SLURM_JOB_ID is not set", {0}},
    {"srun: hosts", "SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_NTASKS=2 SLURM_NNODES=1 SLURM_NODEID=0 SLURM_TASKS_PER_NODE=2 SLURM_LOCALID=0 "
     "SLURM_JOB_ID=1", "SLURM_JOB_NODELIST is not set", {0}},
    {"srun: hosts that are none", "SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_NTASKS=2 SLURM_NNODES=1 SLURM_NODEID=0 SLURM_TASKS_PER_NODE=2 "
     "SLURM_LOCALID=0 SLURM_JOB_ID=1 SLURM_JOB_NODELIST=[1]", "SLURM_JOB_NODELIST: \"[1]\" is no list of hosts", {0}},
    {"srun: hosts cut off", "SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_NTASKS=2 SLURM_NNODES=1 SLURM_NODEID=0 SLURM_TASKS_PER_NODE=2 "
     "SLURM_LOCALID=0 SLURM_JOB_ID=1 SLURM_JOB_NODELIST=n[1-", "SLURM_JOB_NODELIST: \"n[1-\" is no list of hosts", {0}},
};
/* clang-format on */

static void *ctx_of(const char *vars)
{
    union {
        const char *in;
        void *out;
    } u = {.in = vars}; /* get() only reads it. */
    return u.out;
}

static void test_right_variables_say_who_i_am(void **state)
{
    for (size_t i = 0; i < sizeof right / sizeof right[0]; i++) {
        const struct row *t = &right[i];
        const struct muster_env *w = &t->want;
        struct muster_error err = {0};
        struct muster_env e;
        memset(&e, 0xee, sizeof e);
        if (sdk_env_parse(get, ctx_of(t->vars), &e, &err) != 0)
            fail_msg("%s: %s", t->title, err.text);
        bool same = e.launcher == w->launcher && e.rank == w->rank && e.world == w->world &&
                    e.local_rank == w->local_rank && e.local_world == w->local_world &&
                    e.node_rank == w->node_rank && e.node_count == w->node_count &&
                    e.restart_count == w->restart_count && e.restarts_max == w->restarts_max &&
                    e.round == w->round && strcmp(e.run_id, w->run_id) == 0 &&
                    strcmp(e.store_host, w->store_host) == 0 && e.store_port == w->store_port &&
                    e.store_is_served == w->store_is_served;
        if (!same)
            fail_msg("%s: launcher=%d rank=%u/%u local=%u/%u node=%u/%u restarts=%u/%u round=%u "
                     "id=%s store=%s:%u served=%d",
                     t->title, e.launcher, e.rank, e.world, e.local_rank, e.local_world,
                     e.node_rank, e.node_count, e.restart_count, e.restarts_max, e.round, e.run_id,
                     e.store_host, e.store_port, e.store_is_served);
    }
}

static void test_wrong_variables_get_a_sentence(void **state)
{
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        const struct row *t = &wrong[i];
        struct muster_error err = {0};
        struct muster_env e = {.rank = 42};
        int r = sdk_env_parse(get, ctx_of(t->vars), &e, &err);
        if (r != -EINVAL || err.code != r || strstr(err.text, t->sentence) == NULL)
            fail_msg("%s: %d \"%s\", wanted \"%s\"", t->title, r, err.text, t->sentence);
        assert_int_equal(e.rank, 42); /* Outputs are written on success only. */
        assert_int_equal(sdk_env_parse(get, ctx_of(t->vars), &e, NULL), -EINVAL);
    }
}

/* Every variable of a good environment, taken away or spoilt, is noticed or has a documented
 * default; nothing crashes, and no sentence is empty. */
static void test_each_variable_spoilt_is_named(void **state)
{
    static const char *const envs[] = {TORCH ELASTIC "MUSTER_ROUND=9", OPEN_MPI, HYDRA, SLURM};
    for (size_t i = 0; i < sizeof envs / sizeof envs[0]; i++) {
        for (const char *p = envs[i]; *p != '\0';) {
            char vars[1024];
            char name[64];
            struct muster_error err = {0};
            struct muster_env e;
            size_t all = strcspn(p, " ");
            size_t n = strcspn(p, "=");
            snprintf(name, sizeof name, "%.*s", (int)n, p);
            snprintf(vars, sizeof vars, "%.*s%s=[%s", (int)(p - envs[i]), envs[i], name, p + all);
            bool free_text = strcmp(name, "MASTER_ADDR") == 0 || strcmp(name, "PMI_FD") == 0 ||
                             strcmp(name, "TORCHELASTIC_RUN_ID") == 0;
            int r = sdk_env_parse(get, vars, &e, &err);
            if (free_text ? r != 0 : r != -EINVAL || strstr(err.text, name) == NULL)
                fail_msg("%s spoilt: %d \"%s\"", name, r, err.text);
            p += all;
            p += strspn(p, " ");
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_right_variables_say_who_i_am),
        cmocka_unit_test(test_wrong_variables_get_a_sentence),
        cmocka_unit_test(test_each_variable_spoilt_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
