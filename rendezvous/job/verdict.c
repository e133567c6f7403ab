/* The first cause of a round, kept; what comes after it is a consequence. */
#include "rendezvous/job/internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Is the first cause of this very round known already? */
static bool knows_cause(const struct job *j)
{
    return j->has_cause && j->cause.round == j->round;
}

/* The first cause of a round stays; what comes after it is a consequence. */
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
