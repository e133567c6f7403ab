/* Jobs that start again by themselves, as Slurm requeues them: not for what a worker or a person
 * did, but where nodes went while it was on them. */
#include "rendezvous/pool/internal.h"

#include <stdio.h>
#include <string.h>

/* A start that ran for so long owes nothing to those before it. */
#define GIVEN_BACK_MS INT64_C(3600000)

static const struct pool_node *node_of(const struct pool *p, const struct pool_seat *s)
{
    return s->node != POOL_NONE ? p->nodes[s->node] : NULL;
}

/* Its node is not here, and the job had not ended there before. */
static bool is_gone(const struct pool *p, const struct pool_seat *s)
{
    const struct pool_node *n = node_of(p, s);
    return s->state != POOL_SEAT_ENDED && s->node_id[0] != '\0' && (n == NULL || !n->connected);
}

/* Whoever drained it knew that the job would have to leave. */
static bool was_drained(const struct pool *p, const struct pool_seat *s)
{
    const struct pool_node *n = node_of(p, s);
    return n != NULL ? n->draining : pool_host_is_drained(p, s->host);
}

static bool may_start_again(const struct pool *p, const struct pool_job *j)
{
    bool gone = false;
    bool drained = false;
    for (uint32_t i = 0; i < j->seat_count; i++) {
        gone = gone || is_gone(p, &j->seats[i]);
        drained = drained || was_drained(p, &j->seats[i]);
    }
    return j->verdict == POOL_NODES_GONE && gone && !drained && !j->stop && j->spec != NULL &&
           !j->no_requeue && j->requeues < POOL_REQUEUES_MAX;
}

/* Those that are here end it; of the others nothing is known, and when they come back they are told
 * to. */
static void leave_seats(struct pool *p, struct pool_job *j)
{
    for (uint32_t i = 0; i < j->seat_count; i++) {
        struct pool_seat *s = &j->seats[i];
        if (is_gone(p, s))
            s->state = POOL_SEAT_LOST;
        s->assign_due = false;
        s->unassign_due = pool_seat_is_live(s);
        if (!pool_seat_is_live(s))
            pool_seat_release(p, j, s);
    }
}

static void say_why(const struct pool *p, struct pool_job *j)
{
    struct mu_buf b;
    mu_buf_init(&b, p->mem);
    uint32_t hosts = pool_add_hosts(j, POOL_SEAT_BIT(LOST), &b);
    (void)snprintf(j->lost, sizeof j->lost, "%.280s %s lost", b.oom ? "a node" : mu_buf_cstr(&b),
                   hosts == 1 || b.oom ? "was" : "were");
    mu_buf_fini(&b);
}

bool pool_job_starts_again(struct pool *p, struct pool_job *j)
{
    if (j->met && j->started_unix_ms > 0 && p->unix_ms - j->started_unix_ms >= GIVEN_BACK_MS)
        j->requeues = 0;
    if (!may_start_again(p, j))
        return false;
    leave_seats(p, j);
    say_why(p, j);
    j->requeues++;
    pool_job_wait_anew(p, j);
    return true;
}
