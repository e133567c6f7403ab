/* The command line of service mode: what has to be there, and what belongs to a job instead. */
#include "agent/options_table.h"

#define SERVER_PORT 29500

static bool is_given(const struct reading *rd, const char *name)
{
    return rd->text[option_row_of(name) - option_rows] != NULL;
}

bool option_wants_service(const struct reading *rd)
{
    return is_given(rd, "service");
}

/* Flags of one job: here they would be silently without effect. */
static int refuse_flags_of_jobs(struct reading *rd)
{
    static const char *const others[] = {"standalone",     "rdzv-endpoint",  "nnodes",
                                         "nproc-per-node", "rdzv-id",        "max-restarts",
                                         "node-rank",      "module",         "no-python",
                                         "run-path",       "redirects",      "tee",
                                         "hostfile",       "label",          "chaos",
                                         "health-check",   "preemption-url", "numa-binding"};
    for (size_t i = 0; i < MU_COUNT(others); i++) {
        size_t row = (size_t)(option_row_of(others[i]) - option_rows);
        if (rd->text[row] != NULL && !rd->from_env[row])
            return option_fail(rd, 2, "--%s is a job's: with --service it comes with the job",
                               others[i]);
    }
    return 0;
}

int option_resolve_service(struct reading *rd)
{
    struct agent_options *o = rd->o;
    int r = refuse_flags_of_jobs(rd);
    if (r < 0)
        return r;
    if (rd->rdzv == NULL)
        return option_fail(
            rd, 2, "--service needs --rdzv=HOST[:PORT]: the server to which this node is offered");
    if (o->log_bytes > o->log_bytes_all)
        return option_fail(rd, 2,
                           "--log-bytes (of one job) may not be greater than --log-bytes-all");
    r = mu_parse_endpoint(rd->rdzv, SERVER_PORT, "--rdzv", &o->endpoint, rd->err);
    return r < 0 ? option_fail_as(rd, 1) : 0;
}
