/* mpirun of Open MPI, and Hydra, which is MPICH's and Intel's mpiexec. Neither tells a process
 * where rank 0 is: Open MPI 4 tells mpirun's own addresses, Hydra has a line on which rank 0 can
 * say so. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "agent/surroundings/internal.h"
#include "base/str.h"

/* Several processes of the job on this host: one agent is wanted, unless the user names the
 * launcher and so says that each is to count as a node. */
static int check_local(const struct surroundings_ask *ask,
                       const char *name,
                       const char *remedy,
                       const char *word,
                       struct mu_err *err)
{
    uint32_t local = 1;
    if (surroundings_env(ask, name) == NULL || ask->kind != SURROUNDINGS_AUTO)
        return 0;
    int r = surroundings_number(ask, name, 1, UINT32_MAX, &local, err);
    if (r < 0 || local == 1)
        return r;
    return mu_err_set(err, -EINVAL,
                      "%s=%u: one agent a node is wanted: start it with %s (or give "
                      "--surroundings=%s, if each process is to count as a node)",
                      name, local, remedy, word);
}

/* --- Open MPI --- */

bool openmpi_is_there(const struct surroundings_ask *ask)
{
    return surroundings_env(ask, "OMPI_COMM_WORLD_SIZE") != NULL &&
           surroundings_env(ask, "OMPI_COMM_WORLD_RANK") != NULL;
}

/* The next address of "ID;tcp://A,B:PORT;tcp6://[C],[D]:PORT", or false. */
static bool next_address(const char **at, char *ret)
{
    const char *p = *at;
    size_t n = 0;
    if (*p == ';' || *p == '\0') { /* Between parts: the next one. */
        p = strstr(p, "://");
        if (p == NULL)
            return false;
        p += 3;
    }
    if (*p == '[')
        p++;
    bool is_v6 = p[-1] == '[';
    size_t len = strcspn(p, is_v6 ? "]" : ",:;");
    if (len == 0 || len >= MU_ADDR_BYTES)
        return false;
    for (; n < len; n++)
        ret[n] = p[n];
    ret[n] = '\0';
    p += len;
    if (*p == ']')
        p++;
    *at = *p == ',' ? p + 1 : p + strcspn(p, ";");
    return true;
}

/* The address that this node should use: an own one where mpirun is here, else one on a network
 * that both are on, else the first. */
static int choose_address(const struct surroundings_ask *ask,
                          const char *uri,
                          struct surroundings *s,
                          struct mu_err *err)
{
    char address[MU_ADDR_BYTES];
    char first[MU_ADDR_BYTES] = "";
    char near[MU_ADDR_BYTES] = "";
    char own[MU_ADDR_BYTES] = "";
    const char *at = strchr(uri, ';');
    while (at != NULL && next_address(&at, address)) {
        if (first[0] == '\0')
            memcpy(first, address, sizeof first);
        if (near[0] == '\0' && ask->machine->is_near(address))
            memcpy(near, address, sizeof near);
        if (own[0] == '\0' && ask->machine->is_own(address))
            memcpy(own, address, sizeof own);
    }
    if (first[0] == '\0') {
        char shown[64];
        return mu_err_set(err, -EINVAL, "OMPI_MCA_orte_hnp_uri: no address in %s: give --rdzv=HOST",
                          mu_quote(shown, sizeof shown, mu_str_of(uri, strlen(uri))));
    }
    if (s->node_rank == 0 && own[0] == '\0')
        return mu_err_set(err, -EINVAL,
                          "mpirun runs on %s, and rank 0 elsewhere: nobody there can serve the "
                          "others. Start mpirun on the first node, or give --rdzv=HOST, a node's "
                          "name, to all",
                          first);
    const char *chosen = own[0] != '\0' ? own : near[0] != '\0' ? near : first;
    s->has_many_addresses = true;
    return mu_strcopy(s->host, sizeof s->host, chosen);
}

int openmpi_ask(const struct surroundings_ask *ask, struct surroundings *s, struct mu_err *err)
{
    s->count_from = "OMPI_COMM_WORLD_SIZE";
    s->rank_from = "OMPI_COMM_WORLD_RANK";
    int r = surroundings_number(ask, s->count_from, 1, MU_NODES_MAX, &s->node_count, err);
    if (r == 0)
        r = surroundings_number(ask, s->rank_from, 0, s->node_count - 1, &s->node_rank, err);
    if (r < 0 || s->node_count == 1)
        return r;
    r = check_local(ask, "OMPI_COMM_WORLD_LOCAL_SIZE", "mpirun --map-by ppr:1:node", "openmpi",
                    err);
    if (r < 0)
        return r;
    s->id_from = surroundings_env(ask, "PMIX_NAMESPACE") != NULL ? "PMIX_NAMESPACE"
                                                                 : "OMPI_MCA_ess_base_jobid";
    const char *id = surroundings_env(ask, s->id_from);
    if (id != NULL) {
        surroundings_set_id(s, "openmpi", id);
        s->port = surroundings_port(s->run_id);
    }
    if (!ask->place_wanted)
        return 0;
    s->host_from = "OMPI_MCA_orte_hnp_uri";
    const char *uri = surroundings_env(ask, s->host_from);
    if (uri == NULL || id == NULL)
        return mu_err_set(err, -EINVAL,
                          "mpirun does not say here where it runs (%s is not set, as with Open MPI "
                          "5): give --rdzv=HOST, the first node's name, to all",
                          uri == NULL ? s->host_from : s->id_from);
    return choose_address(ask, uri, s, err);
}

/* --- PMI --- */

bool pmi_is_there(const struct surroundings_ask *ask)
{
    /* srun --mpi=pmi2 has such a line too, and its own variables say more. Where Hydra starts its
     * helpers with srun, Slurm's variables are the helpers'. */
    bool is_slurms = surroundings_env(ask, "SLURM_STEP_ID") != NULL &&
                     surroundings_env(ask, "MPI_LOCALNRANKS") == NULL;
    return !is_slurms && surroundings_env(ask, "PMI_SIZE") != NULL &&
           surroundings_env(ask, "PMI_RANK") != NULL;
}

int pmi_ask(const struct surroundings_ask *ask, struct surroundings *s, struct mu_err *err)
{
    uint32_t fd = 0;
    char job[SURROUNDINGS_ID_BYTES] = "";
    s->count_from = "PMI_SIZE";
    s->rank_from = "PMI_RANK";
    int r = surroundings_number(ask, s->count_from, 1, MU_NODES_MAX, &s->node_count, err);
    if (r == 0)
        r = surroundings_number(ask, s->rank_from, 0, s->node_count - 1, &s->node_rank, err);
    if (r < 0 || s->node_count == 1)
        return r;
    r = check_local(ask, "MPI_LOCALNRANKS", "mpiexec -ppn 1", "pmi", err);
    if (r < 0 || !ask->place_wanted)
        return r;
    if (surroundings_env(ask, "PMI_FD") == NULL)
        return mu_err_set(err, -EINVAL,
                          "PMI_FD is not set, so rank 0 cannot tell the others where it is: give "
                          "--rdzv=HOST, the first node's name, to all");
    r = surroundings_number(ask, "PMI_FD", 3, INT32_MAX, &fd, err);
    if (r < 0)
        return r;
    /* The name under which mpiexec itself came here: others know it too. */
    const char *own = surroundings_env(ask, "MPIR_CVAR_CH3_INTERFACE_HOSTNAME");
    if (own == NULL || own[0] == '\0')
        own = ask->machine->host();
    r = ask->machine->share((int)fd, s->node_rank == 0, own, s->host, job, err);
    if (r < 0)
        return r;
    s->host_from = "rank 0, over PMI_FD";
    s->id_from = "PMI's job name";
    surroundings_set_id(s, "pmi", job);
    s->port = surroundings_port(s->run_id);
    return 0;
}
