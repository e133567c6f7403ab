/* What the command line and PET_ variables leave open is taken from the launcher that started us,
 * or from a host file: it fills the same texts, so that all later checks are the same. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "agent/options_table.h"

static bool is_given(const struct reading *rd, const char *name)
{
    return rd->text[option_row_of(name) - option_rows] != NULL;
}

static const char *read_env(const void *arg, const char *name)
{
    return option_env((char *const *)arg, name);
}

/* The flag that says where to meet, in torchrun's words, which are torchrun's in all else, too.
 * NULL: none. */
static const char *place_given(const struct reading *rd)
{
    static const char *const places[] = {"standalone", "rdzv-endpoint", "rdzv-backend",
                                         "master-addr", "master-port"};
    for (size_t i = 0; i < MU_COUNT(places); i++)
        if (is_given(rd, places[i]))
            return places[i];
    return NULL;
}

static bool is_settled(const struct reading *rd)
{
    if (place_given(rd) != NULL)
        return true;
    if (!is_given(rd, "nnodes"))
        return false;
    return is_given(rd, "rdzv") || (rd->o->nodes_max == 1 && rd->hostfile == NULL);
}

static int fail_settled(struct reading *rd)
{
    const char *flag = place_given(rd);
    char variable[32] = "";
    if (flag == NULL)
        return option_fail(rd, 2,
                           "--hostfile says which nodes there are and where they meet, and "
                           "--nnodes with --rdzv says so too: leave out one of them");
    size_t n = 0;
    for (; flag[n] != '\0' && n + 1 < sizeof variable; n++)
        variable[n] = flag[n] == '-' ? '_' : (char)(flag[n] - 'a' + 'A');
    return option_fail(rd, 2,
                       "--hostfile says which nodes there are and where they meet, and --%s (or "
                       "PET_%s) says so too: leave out one of them; another port than 29500: "
                       "--rdzv=HOST:PORT beside --hostfile",
                       flag, variable);
}

/* Nobody asked for it: a worker of an agent that starts another one is no node of our job. */
static bool is_inner(const struct reading *rd)
{
    return option_env(rd->envp, "TORCHELASTIC_RUN_ID") != NULL;
}

static void take_place(struct reading *rd, struct surroundings *s)
{
    struct agent_options *o = rd->o;
    if (strchr(s->host, ':') != NULL)
        (void)snprintf(o->around_place, sizeof o->around_place, "[%s]:%u", s->host, s->port);
    else
        (void)snprintf(o->around_place, sizeof o->around_place, "%s:%u", s->host, s->port);
    rd->rdzv = o->around_place;
    o->serves_everywhere = s->has_many_addresses;
    o->connect_timeout_ns = o->join_timeout_ns; /* Launchers and clusters start at leisure. */
    if (s->node_rank > 0)
        o->is_host = 0;
    (void)mu_buf_addf(rd->notes, " --rdzv=%s (%s)", o->around_place, s->host_from);
}

static bool takes_workers(const struct reading *rd, const struct surroundings *s)
{
    return s->nproc > 0 && !is_given(rd, "nproc-per-node");
}

static void take_workers(struct reading *rd, const struct surroundings *s)
{
    struct agent_options *o = rd->o;
    (void)snprintf(o->around_nproc, sizeof o->around_nproc, "%u", s->nproc);
    rd->nproc = o->around_nproc;
    (void)mu_buf_addf(rd->notes, " --nproc-per-node=%u (its slots)", s->nproc);
}

/* The line that tells reads as the flags that one would type. */
static void take(struct reading *rd, struct surroundings *s)
{
    struct agent_options *o = rd->o;
    (void)mu_buf_addf(rd->notes, "taken from %s:", s->name);
    if (!is_given(rd, "nnodes") && s->node_count > 0) {
        o->nodes_min = o->nodes_max = s->node_count;
        (void)mu_buf_addf(rd->notes, " --nnodes=%u (%s)", s->node_count, s->count_from);
    }
    if (!rd->node_rank_given && s->node_rank < o->nodes_max) { /* Others are spares. */
        rd->node_rank_given = true;
        o->node_rank = (int32_t)s->node_rank;
        (void)mu_buf_addf(rd->notes, " --node-rank=%u (%s)", s->node_rank, s->rank_from);
    }
    if (rd->rdzv == NULL)
        take_place(rd, s);
    if (rd->run_id == NULL && s->run_id[0] != '\0') {
        (void)mu_strcopy(o->around_id, sizeof o->around_id, s->run_id); /* Same sizes. */
        rd->run_id = o->around_id;
        (void)mu_buf_addf(rd->notes, " --rdzv-id=%s (%s)", s->run_id, s->id_from);
    }
    if (takes_workers(rd, s))
        take_workers(rd, s);
    (void)mu_buf_adds(rd->notes, "\n");
}

int option_take_surroundings(struct reading *rd)
{
    struct surroundings s;
    bool chosen = rd->surroundings != SURROUNDINGS_AUTO;
    if (rd->hostfile != NULL && chosen)
        return option_fail(rd, 2,
                           "--hostfile and --surroundings both say whom to listen to: give "
                           "one of them");
    if (rd->hostfile != NULL && is_settled(rd))
        return fail_settled(rd);
    if (rd->surroundings == SURROUNDINGS_NONE || is_settled(rd) ||
        (!chosen && rd->hostfile == NULL && is_inner(rd)))
        return 0;
    struct surroundings_ask ask = {.kind = rd->hostfile != NULL ? SURROUNDINGS_HOSTFILE
                                                                : rd->surroundings,
                                   .hostfile = rd->hostfile,
                                   .node_rank = rd->node_rank_given ? rd->o->node_rank : -1,
                                   .node_count = is_given(rd, "nnodes") ? rd->o->nodes_max : 0,
                                   .place_wanted = rd->rdzv == NULL,
                                   .env = read_env,
                                   .env_arg = rd->envp,
                                   .machine = rd->machine->around};
    if (surroundings_find(&ask, &s, rd->err) < 0)
        return option_fail_as(rd, 1);
    if (s.note != NULL)
        option_note(rd, "%s", s.note);
    if (s.kind != SURROUNDINGS_NONE) {
        take(rd, &s);
    } else if (takes_workers(rd, &s)) { /* One host: nobody to meet. */
        (void)mu_buf_addf(rd->notes, "taken from %s:", s.name);
        take_workers(rd, &s);
        (void)mu_buf_adds(rd->notes, "\n");
    }
    return 0;
}
