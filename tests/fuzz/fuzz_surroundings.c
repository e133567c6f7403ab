/* Any text where a launcher's would be: as a list of hosts (whose count and hosts agree), as a host
 * file, as Open MPI's address, as kubelet's hosts file: taken, or refused with a whole sentence.
 * libFuzzer's entry point; tests/fuzz also builds it with a main() that replays the corpus. */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "agent/surroundings/surroundings.h"
#include "base/mem.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *input;

static const char *own_host(void)
{
    return "train-1";
}

static bool is_own(const char *address)
{
    return strcmp(address, "10.0.0.2") == 0;
}

static bool is_near(const char *address)
{
    return address[0] == '1';
}

static const char *any_file(const char *path, struct mu_err *err)
{
    (void)path;
    (void)err;
    return input;
}

static const struct surroundings_machine machine = {own_host, is_own, is_near, any_file, NULL};

/* The input stands for every text that is long; numbers are as the launcher writes them. */
static const char *env(const void *arg, const char *name)
{
    static const struct {
        const char *name;
        const char *value; /* NULL: the input. */
    } all[] = {
        {"OMPI_COMM_WORLD_SIZE", "4"},
        {"OMPI_COMM_WORLD_RANK", "1"},
        {"OMPI_MCA_orte_hnp_uri", NULL},
        {"PMIX_NAMESPACE", NULL},
        {"SLURM_JOB_ID", "7"},
        {"SLURM_STEP_ID", "0"},
        {"SLURM_STEP_NUM_NODES", "4"},
        {"SLURM_STEP_NUM_TASKS", "4"},
        {"SLURM_NODEID", "1"},
        {"SLURM_STEP_NODELIST", NULL},
        {"KUBERNETES_SERVICE_HOST", "1"},
        {"JOB_COMPLETION_INDEX", "1"},
        {"MUSTER_NNODES", "4"},
    };
    (void)arg;
    for (size_t i = 0; i < MU_COUNT(all); i++)
        if (strcmp(all[i].name, name) == 0)
            return all[i].value != NULL ? all[i].value : input;
    return NULL;
}

static void check_list(void)
{
    char host[MU_HOST_BYTES];
    uint64_t count = 0;
    uint64_t again = 0;
    if (surroundings_hostlist(input, 0, host, &count) != 0)
        return;
    MU_ASSERT(count > 0 && host[0] != '\0' && strlen(host) < sizeof host);
    for (uint64_t i = 0; i < count; i += count / 64 + 1) {
        int r = surroundings_hostlist(input, i, host, &again);
        MU_ASSERT(r == -EINVAL || again == count); /* A later host may be too long. */
        MU_ASSERT(r == 0 || r == -EINVAL);
    }
    MU_ASSERT(surroundings_hostlist(input, count, host, &again) == -ERANGE);
}

static void check_launcher(enum surroundings_kind kind)
{
    struct surroundings s;
    struct mu_err err = {0};
    struct surroundings_ask ask = {.kind = kind,
                                   .hostfile = "hosts",
                                   .node_rank = -1,
                                   .place_wanted = true,
                                   .env = env,
                                   .machine = &machine};
    int r = surroundings_find(&ask, &s, &err);
    if (r < 0) {
        MU_ASSERT(r == -EINVAL && err.code == r && err.msg[0] != '\0');
        return;
    }
    if (s.kind == SURROUNDINGS_NONE)
        return;
    MU_ASSERT(s.node_count > 1 && s.node_rank < s.node_count && s.port > 0);
    MU_ASSERT(s.host[0] != '\0' && s.nproc <= MU_WORKERS_MAX);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = mu_alloc(mu_mem_default(), size + 1);
    if (text == NULL)
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    input = text;
    check_list();
    check_launcher(SURROUNDINGS_HOSTFILE);
    check_launcher(SURROUNDINGS_OPENMPI);
    check_launcher(SURROUNDINGS_SLURM);
    check_launcher(SURROUNDINGS_KUBERNETES);
    free(text);
    return 0;
}
