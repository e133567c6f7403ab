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
bool job_new_cause(struct job *j, const struct mu_cause *c)
{
    if (j->state != JOB_GATHERING && knows_cause(j))
        return false;
    j->cause = *c;
    j->cause.round = j->round;
    if (j->cause.at_unix_ms == 0)
        j->cause.at_unix_ms = j->step_unix_ms;
    j->cause_output[0] = '\0';
    j->has_cause = true;
    j->consequences = 0;
    return true;
}

void job_note_spent(struct job *j)
{
    const struct mu_cause *c = &j->cause;
    char who[32] = "";
    char text[MU_HOST_BYTES + 64];
    if (c->rank >= 0)
        (void)snprintf(who, sizeof who, "rank %d on ", c->rank);
    int n = snprintf(text, sizeof text, "%s%.*s (round %u)", who, MU_HOST_BYTES, c->host, j->round);
    MU_ASSERT(n > 0 && (size_t)n < sizeof text);
    size_t used = strlen(j->spent_by);
    while (used > 0 && used + 2 + (size_t)n >= sizeof j->spent_by) { /* The first ones make room. */
        const char *next = strchr(j->spent_by, ',');
        size_t skip = next != NULL ? (size_t)(next - j->spent_by) + 2 : used;
        memmove(j->spent_by, j->spent_by + skip, used + 1 - skip);
        used -= skip;
    }
    (void)snprintf(j->spent_by + used, sizeof j->spent_by - used, "%s%s", used > 0 ? ", " : "",
                   text);
}

struct mu_cause job_cause_of_node(enum mu_cause_kind kind, const struct job_node *n)
{
    struct mu_cause c = MU_CAUSE_INIT;
    c.kind = kind;
    c.node_rank = n->in_round ? n->node_rank : -1;
    memcpy(c.host, n->hello.host, sizeof c.host);
    return c;
}

void job_node_cause(struct job *j, enum mu_cause_kind kind, const struct job_node *n)
{
    struct mu_cause c = job_cause_of_node(kind, n);
    (void)job_new_cause(j, &c);
}
