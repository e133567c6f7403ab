/* The first cause of a round, kept; what comes after it is a consequence, or proves the better
 * cause. */
#include "rendezvous/job/internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Is the first cause of this very round known already? */
static bool knows_cause(const struct job *j)
{
    return j->has_cause && j->cause.round == j->round;
}

static void set_cause(struct job *j, const struct mu_cause *c, const char *output)
{
    j->cause = *c;
    j->cause.round = j->round;
    if (j->cause.at_unix_ms == 0)
        j->cause.at_unix_ms = j->step_unix_ms;
    (void)snprintf(j->cause_output, sizeof j->cause_output, "%s", output != NULL ? output : "");
}

void job_new_cause(struct job *j, const struct mu_cause *c, const char *output)
{
    if (j->state != JOB_GATHERING && knows_cause(j))
        return;
    set_cause(j, c, output);
    j->has_cause = true;
    j->consequences = 0;
}

struct mu_cause job_cause_of_node(enum mu_cause_kind kind, const struct job_node *n)
{
    struct mu_cause c = MU_CAUSE_INIT;
    c.kind = kind;
    c.node_rank = n->in_round ? n->node_rank : -1;
    (void)mu_strcopy(c.host, sizeof c.host, n->hello.host); /* It fits. */
    return c;
}

void job_node_cause(struct job *j, enum mu_cause_kind kind, const struct job_node *n)
{
    struct mu_cause c = job_cause_of_node(kind, n);
    job_new_cause(j, &c, NULL);
}

static bool had_rank(const struct job_node *n, int32_t rank)
{
    return n->ranked && rank >= n->rank_base && rank < n->rank_base + (int32_t)n->hello.nproc;
}

/* What a node says of its own is better than what others say of a rank there: its agent knows which
 * of its workers failed first, and its end was the end of all of them. */
static struct mu_cause as_of_rank(const struct job_node *n, const struct mu_cause *c, int32_t rank)
{
    struct mu_cause of_rank = *c;
    if (had_rank(n, rank))
        of_rank.rank = rank;
    return of_rank;
}

/* The restart that the former cause took is the better one's now, and given back where that takes
 * none. What was told to be final stays so: agents have acted upon it. */
static void supersede(struct job *j, const struct mu_cause *c, const char *output)
{
    set_cause(j, c, output);
    budget_reconsider(j);
    j->new_cause = true;
    job_explain_incident(j);
    job_keep(j);
    j->durable = true; /* Everybody is told anew. */
}

/* The member that told of this rank's failure; NULL: none has. */
static const struct job_node *teller_of(const struct job *j, int32_t rank)
{
    for (uint32_t r = 0; r < j->round_nodes; r++) {
        if (j->members[r] == JOB_NO_NODE)
            continue;
        const struct job_node *n = &j->nodes[j->members[r]];
        if (n->failure != NULL && as_of_rank(n, &n->failure->cause, rank).rank == rank)
            return n;
    }
    return NULL;
}

void job_tell_cause(struct job *j)
{
    for (uint32_t r = 0; r < j->round_nodes; r++)
        if (j->members[r] != JOB_NO_NODE && j->nodes[j->members[r]].in_round &&
            j->nodes[j->members[r]].state != JOB_NODE_LOST)
            job_send(j, j->members[r], CTL_STOP);
}

static void remember(
    struct job *j, struct job_node *n, const struct mu_cause *c, const char *output, bool at_once)
{
    if (n->failure != NULL && !mu_cause_is_better(c, &n->failure->cause, at_once))
        return;
    if (n->failure == NULL)
        n->failure = mu_alloc(j->mem, sizeof *n->failure);
    if (n->failure == NULL)
        return; /* It counts now, and is not remembered. */
    n->failure->cause = *c;
    (void)snprintf(n->failure->output, sizeof n->failure->output, "%s", output);
}

void job_weigh_cause(struct job *j,
                     int64_t now_ns,
                     struct job_node *teller,
                     const struct mu_cause *c,
                     const char *output)
{
    bool at_once = now_ns - j->since_ns <= MU_SETTLE_NS;
    const struct job_node *n = teller;
    remember(j, teller, c, output, at_once);
    if (!knows_cause(j))
        return;
    if (j->budget.same_failure)
        return; /* It came twice, and everybody was told that it is the reason. */
    /* A better cause may name a rank whose failure is known already, which may name another. Only a
     * named rank's own counts: who was no better than the former cause is no better now. */
    const struct mu_cause *best = &j->cause;
    const char *best_output = NULL;
    for (uint32_t steps = 0; n != NULL; steps++) {
        struct mu_cause of_rank = as_of_rank(n, c, best->blame);
        if (!mu_cause_is_better(&of_rank, best, at_once))
            break;
        if (steps > j->round_nodes)
            return; /* They name each other in a circle: the first stays. */
        best = c;
        best_output = output;
        n = best->blame >= 0 ? teller_of(j, best->blame) : NULL;
        c = n != NULL ? &n->failure->cause : NULL;
        output = n != NULL ? n->failure->output : NULL;
    }
    if (best != &j->cause)
        supersede(j, best, best_output);
}
