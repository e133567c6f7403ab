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

void job_new_cause(struct job *j, const struct mu_cause *c)
{
    if (j->state != JOB_GATHERING && knows_cause(j))
        return;
    j->cause = *c;
    j->cause.round = j->round;
    if (j->cause.at_unix_ms == 0)
        j->cause.at_unix_ms = j->step_unix_ms;
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
    job_new_cause(j, &c);
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

/* The restart that the former cause took is given back where the better one takes none. What was
 * told to be final stays so: agents have acted upon it. */
static void supersede(struct job *j, const struct mu_cause *c)
{
    j->cause = *c;
    j->cause.round = j->round;
    if (j->cause.at_unix_ms == 0)
        j->cause.at_unix_ms = j->step_unix_ms;
    if (j->was_charged && !mu_cause_costs_restart(c->kind)) {
        j->was_charged = false;
        j->restarts--;
    }
    j->new_cause = true;
}

/* Is this node's failure better than the cause, as far as it has said? */
static bool weigh(struct job *j, const struct job_node *n, const struct mu_cause *c, bool at_once)
{
    struct mu_cause of_rank = as_of_rank(n, c, j->cause.blame);
    bool better = mu_cause_is_better(&of_rank, &j->cause, at_once);
    if (better)
        supersede(j, c);
    return better;
}

/* The cause names a rank, whose failure may be known already. Only that rank's own counts here: who
 * was no better than the former cause is no better now. */
static bool follow_blame(struct job *j, bool at_once)
{
    for (uint32_t r = 0; r < j->round_nodes; r++) {
        if (j->members[r] == JOB_NO_NODE)
            continue;
        const struct job_node *n = &j->nodes[j->members[r]];
        if (n->failure != NULL && as_of_rank(n, n->failure, j->cause.blame).rank == j->cause.blame)
            return weigh(j, n, n->failure, at_once);
    }
    return false;
}

void job_tell_cause(struct job *j)
{
    for (uint32_t r = 0; r < j->round_nodes; r++)
        if (j->members[r] != JOB_NO_NODE && j->nodes[j->members[r]].in_round &&
            j->nodes[j->members[r]].state != JOB_NODE_LOST)
            job_send(j, j->members[r], CTL_STOP);
}

void job_weigh_cause(struct job *j, int64_t now_ns, struct job_node *n, const struct mu_cause *c)
{
    bool at_once = now_ns - j->since_ns <= MU_SETTLE_NS;
    if (n->failure == NULL) {
        n->failure = mu_alloc(j->mem, sizeof *n->failure);
        if (n->failure != NULL) /* Else it counts now, and is not remembered. */
            *n->failure = *c;
    } else if (mu_cause_is_better(c, n->failure, at_once)) {
        *n->failure = *c;
    }
    struct mu_cause former = j->cause;
    if (!knows_cause(j) || !weigh(j, n, c, at_once))
        return;
    uint32_t steps = 0;
    while (steps <= j->round_nodes && j->cause.blame >= 0 && follow_blame(j, at_once))
        steps++;
    if (steps > j->round_nodes) { /* They name each other in a circle: the first stays. */
        j->cause = former;
        j->new_cause = false;
    }
}
