/* Kubernetes: the pods of an Indexed Job (a JobSet's are such), of a PyTorchJob, and any that the
 * manifest tells. How many pods there are is in no pod's environment: the manifest must say it. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "agent/surroundings/internal.h"
#include "base/parse.h"
#include "base/str.h"

#define PORT 29500 /* A pod has a network of its own: nobody else is there. */
#define HOSTS "/etc/hosts"

bool kubernetes_is_there(const struct surroundings_ask *ask)
{
    return surroundings_env(ask, "KUBERNETES_SERVICE_HOST") != NULL;
}

/* The operator's variables: of an older one, which sets no PET_ variables. They speak of pods. */
static int
ask_pytorchjob(const struct surroundings_ask *ask, struct surroundings *s, struct mu_err *err)
{
    uint32_t port = PORT;
    s->count_from = "WORLD_SIZE";
    s->rank_from = "RANK";
    int r = surroundings_number(ask, s->count_from, 1, MU_NODES_MAX, &s->node_count, err);
    if (r == 0)
        r = surroundings_number(ask, s->rank_from, 0, s->node_count - 1, &s->node_rank, err);
    if (r == 0 && surroundings_env(ask, "MASTER_PORT") != NULL)
        r = surroundings_number(ask, "MASTER_PORT", 1, 65535, &port, err);
    if (r < 0)
        return r;
    s->port = (uint16_t)port;
    s->host_from = "MASTER_ADDR, MASTER_PORT";
    /* The master's pod is told "localhost" by some: it serves under that name for all. */
    const char *host = surroundings_env(ask, "MASTER_ADDR");
    s->has_many_addresses = true;
    return mu_strcopy(s->host, sizeof s->host, host) == 0
               ? 0
               : mu_err_set(err, -EINVAL, "MASTER_ADDR is longer than %d characters",
                            MU_HOST_BYTES - 1);
}

/* Which index ends this pod's name, "JOB-3"? Returns the length before it, with the dash; 0: none.
 */
static size_t before_index(const char *name, uint32_t index)
{
    char end[16];
    int n = snprintf(end, sizeof end, "-%u", index);
    size_t len = strlen(name);
    return n > 0 && len > (size_t)n && strcmp(name + len - (size_t)n, end) == 0
               ? len - (size_t)n + 1
               : 0;
}

/* What follows the pod's own name in the hosts file that kubelet wrote:
 * ".SUBDOMAIN.NAMESPACE.svc…". Returns its length; 0: there is none. */
static size_t find_domain(const char *hosts, const char *name, const char **ret)
{
    size_t n = strlen(name);
    for (const char *p = hosts; (p = strstr(p, name)) != NULL; p++) {
        bool starts = p > hosts && (p[-1] == ' ' || p[-1] == '\t');
        if (!starts || p[n] != '.')
            continue;
        *ret = p + n;
        return strcspn(p + n, " \t\r\n#");
    }
    return 0;
}

static int no_domain(const char *name, struct mu_err *err)
{
    return mu_err_set(err, -EINVAL,
                      "this pod, %.64s, has no name that others know: set subdomain in its "
                      "template to the name of a headless Service, or give --rdzv=HOST",
                      name);
}

/* Which pod this is, and what its name says: "JOB-3", or "SET-JOBS-2-3" where a JobSet has several
 * equal jobs. */
struct pod {
    uint32_t index;
    bool many_jobs;
    uint32_t job_index;
    char name[MU_HOST_BYTES]; /* Without a domain. */
    char base[MU_HOST_BYTES]; /* Before the indices: what all pods of our job have. */
};

/* Read the name, which also is the run id. */
static int read_name(const struct surroundings_ask *ask,
                     struct pod *p,
                     struct surroundings *s,
                     struct mu_err *err)
{
    const char *own = ask->machine->host();
    size_t own_bytes = strcspn(own, "."); /* With setHostnameAsFQDN it has a domain. */
    if (own_bytes < sizeof p->name)
        memcpy(p->name, own, own_bytes);
    size_t n = before_index(p->name, p->index);
    if (n == 0)
        return mu_err_set(err, -EINVAL,
                          "this pod, %.64s, is not named JOB-%u as the pods of an Indexed Job are: "
                          "give --rdzv=HOST, the first pod's name",
                          p->name, p->index);
    memcpy(p->base, p->name, n - 1);
    n = p->many_jobs ? before_index(p->base, p->job_index) : n;
    if (n == 0)
        return mu_err_set(err, -EINVAL,
                          "MUSTER_JOB_INDEX=%u does not fit this pod's name, %.64s, of the form "
                          "SET-JOBS-%u-%u",
                          p->job_index, p->name, p->job_index, p->index);
    p->base[n - 1] = '\0';
    surroundings_set_id(s, "kubernetes", p->base);
    s->id_from = "the pod's name";
    return 0;
}

/* The first pod's full name, made of this one's: "JOB-0.SUBDOMAIN…", "SET-JOBS-0-0.SUBDOMAIN…". */
static int ask_place(const struct surroundings_ask *ask,
                     const struct pod *p,
                     struct surroundings *s,
                     struct mu_err *err)
{
    const char *domain = NULL;
    const char *hosts = ask->machine->file(HOSTS, err);
    if (hosts == NULL)
        return -EINVAL;
    size_t domain_bytes = find_domain(hosts, p->name, &domain);
    if (domain_bytes == 0)
        return no_domain(p->name, err);
    int len = snprintf(s->host, sizeof s->host, "%s-0%s%.*s", p->base, p->many_jobs ? "-0" : "",
                       (int)domain_bytes, domain);
    s->host_from = "the pod's name and " HOSTS;
    return len > 0 && (size_t)len < sizeof s->host ? 0 : no_domain(p->name, err);
}

/* A JobSet whose replicated job has several replicas: the manifest hands down the label of the
 * job's index and says how many pods each job has. */
static int ask_jobset(const struct surroundings_ask *ask,
                      uint32_t *ret_job_index,
                      struct surroundings *s,
                      struct mu_err *err)
{
    uint32_t pods = 0;
    int r = surroundings_number(ask, "MUSTER_JOB_INDEX", 0, MU_NODES_MAX - 1, ret_job_index, err);
    if (r == 0)
        r = surroundings_number(ask, "MUSTER_PODS_PER_JOB", 1, MU_NODES_MAX, &pods, err);
    if (r < 0)
        return r;
    uint64_t rank = (uint64_t)*ret_job_index * pods + s->node_rank;
    if (s->node_rank >= pods || rank >= MU_NODES_MAX)
        return mu_err_set(err, -EINVAL,
                          "JOB_COMPLETION_INDEX=%u, MUSTER_PODS_PER_JOB=%u, MUSTER_JOB_INDEX=%u: a "
                          "job has fewer pods than that: MUSTER_PODS_PER_JOB is its completions",
                          s->node_rank, pods, *ret_job_index);
    s->node_rank = (uint32_t)rank;
    s->rank_from = "MUSTER_JOB_INDEX, MUSTER_PODS_PER_JOB, JOB_COMPLETION_INDEX";
    return 0;
}

static int
ask_indexed(const struct surroundings_ask *ask, struct surroundings *s, struct mu_err *err)
{
    struct pod p = {.many_jobs = surroundings_env(ask, "MUSTER_JOB_INDEX") != NULL};
    s->rank_from = "JOB_COMPLETION_INDEX";
    int r = surroundings_number(ask, s->rank_from, 0, MU_NODES_MAX - 1, &p.index, err);
    if (r < 0)
        return r;
    s->node_rank = p.index;
    s->port = PORT;
    s->count_from = "MUSTER_NNODES";
    if (p.many_jobs)
        r = ask_jobset(ask, &p.job_index, s, err);
    if (r == 0 && ask->node_count == 0)
        r = surroundings_number(ask, s->count_from, 1, MU_NODES_MAX, &s->node_count, err);
    if (r == 0 && s->node_count > 0 && s->node_rank >= s->node_count)
        r = mu_err_set(err, -EINVAL,
                       "%s: this is pod %u, and MUSTER_NNODES says that there are %u: it is the "
                       "Job's completions",
                       s->rank_from, s->node_rank, s->node_count);
    if (r < 0 || s->node_count == 1)
        return r;
    r = read_name(ask, &p, s, err);
    if (!ask->place_wanted)
        return 0; /* A name of another form tells no id, and none is needed. */
    return r < 0 ? r : ask_place(ask, &p, s, err);
}

int kubernetes_ask(const struct surroundings_ask *ask, struct surroundings *s, struct mu_err *err)
{
    bool has_index = surroundings_env(ask, "JOB_COMPLETION_INDEX") != NULL;
    bool has_count = surroundings_env(ask, "MUSTER_NNODES") != NULL || ask->node_count > 0;
    if (has_index && has_count)
        return ask_indexed(ask, s, err);
    if (surroundings_env(ask, "MASTER_ADDR") != NULL &&
        surroundings_env(ask, "WORLD_SIZE") != NULL && surroundings_env(ask, "RANK") != NULL)
        return ask_pytorchjob(ask, s, err);
    if (ask->kind != SURROUNDINGS_AUTO)
        return mu_err_set(err, -EINVAL, "--surroundings=kubernetes: %s",
                          has_index ? "how many pods there are is not told: set MUSTER_NNODES in "
                                      "the manifest to the Job's completions"
                                    : "this pod is of no Indexed Job (JOB_COMPLETION_INDEX) and of "
                                      "no PyTorchJob (MASTER_ADDR, WORLD_SIZE, RANK)");
    s->node_count = 1; /* As far as one can see. */
    if (has_index)
        s->note = "this pod of an Indexed Job runs by itself: for one job of all its pods set "
                  "MUSTER_NNODES in the manifest to the Job's completions (--standalone: meant so)";
    return 0;
}
