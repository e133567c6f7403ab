/* Placement: which nodes a job gets, and which of their GPUs. Idle nodes first, then in the natural
 * order of their hosts; GPUs from the lowest number. The same pool gives the same answer. */
#include "rendezvous/pool/internal.h"

#include <stdlib.h>
#include <string.h>

#include <utlist.h>

bool pool_seat_is_live(const struct pool_seat *s)
{
    return s->state == POOL_SEAT_ASSIGNED || s->state == POOL_SEAT_UP;
}

/* --- what a node has --- */

uint32_t pool_job_gpus_on(const struct pool_job *j, const struct pool_node *n)
{
    if (j->gpus >= 0)
        return (uint32_t)j->gpus;
    return n->gpus > 0 ? j->nproc : 0;
}

bool pool_node_takes_jobs(const struct pool_node *n)
{
    return pool_is_here(n) && n->known && n->reported && !n->draining && n->strays == 0 &&
           n->adopted == 0;
}

bool pool_node_could(const struct pool_node *n, const struct pool_job *j)
{
    return n->known && n->slots >= j->nproc && n->gpus >= pool_job_gpus_on(j, n);
}

bool pool_node_fits(const struct pool_node *n, const struct pool_job *j)
{
    return pool_node_takes_jobs(n) && n->slots_free >= j->nproc &&
           n->gpus_free >= pool_job_gpus_on(j, n);
}

void pool_seat_hold(struct pool *p, const struct pool_job *j, struct pool_seat *s)
{
    struct pool_node *n = p->nodes[s->node];
    MU_ASSERT(!s->held);
    s->held = true;
    n->seats++;
    n->adopted += s->adopted;
    if (!n->known || s->adopted)
        return; /* Counted when it says what it offers; or nobody knows what the job holds. */
    MU_ASSERT(n->slots_free >= j->nproc && n->gpus_free >= s->gpu_count);
    n->slots_free -= j->nproc;
    n->gpus_free -= s->gpu_count;
    for (uint32_t i = 0; i < s->gpu_count; i++) {
        MU_ASSERT(!n->gpu_used[s->gpus[i]]);
        n->gpu_used[s->gpus[i]] = 1;
    }
}

void pool_seat_release(struct pool *p, const struct pool_job *j, struct pool_seat *s)
{
    if (!s->held)
        return;
    struct pool_node *n = p->nodes[s->node];
    s->held = false;
    n->seats--;
    n->adopted -= s->adopted;
    if (!n->known || s->adopted)
        return;
    n->slots_free += j->nproc;
    n->gpus_free += s->gpu_count;
    for (uint32_t i = 0; i < s->gpu_count; i++)
        n->gpu_used[s->gpus[i]] = 0;
}

/* --- which nodes --- */

static int by_order(const struct pool_node *a, const struct pool_node *b)
{
    if (a->seats != b->seats)
        return a->seats < b->seats ? -1 : 1;
    int c = mu_natural_cmp(a->host, b->host);
    return c != 0 ? c : strcmp(a->id, b->id);
}

static bool has_node(const struct pool_job *j, uint32_t node)
{
    for (uint32_t i = 0; i < j->seat_count; i++)
        if (j->seats[i].node == node && j->seats[i].state != POOL_SEAT_VACANT)
            return true;
    return false;
}

static bool avoids(const struct pool_job *j, uint32_t node)
{
    for (uint32_t i = 0; i < j->refusals && i < MU_POOL_REFUSALS_MAX; i++)
        if (j->avoid[i] == node)
            return true;
    return false;
}

/* A seat of the job on this node: it is to be told. Returns 0 or -ENOMEM with nothing changed. */
static int take(struct pool *p, struct pool_job *j, struct pool_seat *s, uint32_t node)
{
    struct pool_node *n = p->nodes[node];
    uint32_t want = pool_job_gpus_on(j, n);
    int32_t *gpus = NULL;
    if (want > 0) {
        gpus = mu_alloc(p->mem, want * sizeof *gpus);
        if (gpus == NULL)
            return -1;
    }
    uint32_t found = 0;
    for (uint32_t g = 0; g < n->gpus && found < want; g++)
        if (!n->gpu_used[g])
            gpus[found++] = (int32_t)g;
    MU_ASSERT(found == want);
    if (s->node_id[0] != '\0')
        pool_job_note_past(p, j, s->node_id);
    mu_mem_free(p->mem, s->gpus);
    *s = (struct pool_seat){.state = POOL_SEAT_ASSIGNED,
                            .node = node,
                            .gpus = gpus,
                            .gpu_count = want,
                            .assign_due = true};
    memcpy(s->node_id, n->id, sizeof s->node_id);
    memcpy(s->host, n->host, sizeof s->host);
    pool_seat_hold(p, j, s);
    pool_job_dirty(p, j);
    j->keep_due = true;
    return 0;
}

/* Candidates in order of preference: sorted by insertion, since only the first few are wanted.
 * Where the submission does not say how many GPUs, nodes with them and nodes without are not mixed.
 */
static uint32_t choose(struct pool *p, const struct pool_job *j, uint32_t most, bool with_gpus)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < p->node_cap; i++) {
        const struct pool_node *n = p->nodes[i];
        if (n == NULL || n->reserved || !pool_node_fits(n, j) || avoids(j, i) ||
            (j->gpus < 0 && (n->gpus > 0) != with_gpus))
            continue;
        if (count == most && by_order(n, p->nodes[p->candidates[count - 1]]) >= 0)
            continue;
        uint32_t at = count < most ? count++ : count - 1;
        for (; at > 0 && by_order(n, p->nodes[p->candidates[at - 1]]) < 0; at--)
            p->candidates[at] = p->candidates[at - 1];
        p->candidates[at] = i;
    }
    return count;
}

bool pool_job_has_others(const struct pool *p, const struct pool_job *j)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < p->node_cap; i++) {
        const struct pool_node *n = p->nodes[i];
        count += n != NULL && n->connected && pool_node_could(n, j) && !avoids(j, i) &&
                 (!n->draining || has_node(j, i));
    }
    return count >= j->nodes_min;
}

static void forget_refusals(struct pool_job *j)
{
    for (uint32_t i = 0; i < MU_POOL_REFUSALS_MAX; i++)
        j->avoid[i] = POOL_NONE;
}

/* The whole job at once. */
static bool place(struct pool *p, struct pool_job *j)
{
    uint32_t most = j->nodes_max < p->node_cap ? j->nodes_max : p->node_cap;
    if (j->unkept || j->nodes_min > p->node_count)
        return false;
    for (uint32_t i = 0; i < j->seat_count; i++)
        if (j->seats[i].held)
            return false; /* Its last start is still being ended somewhere. */
    uint32_t found = choose(p, j, most, true);
    if (found < j->nodes_min)
        found = choose(p, j, most, false);
    if (found < j->nodes_min)
        return false;
    struct pool_seat *seats = mu_zalloc(p->mem, found * sizeof *seats);
    if (seats == NULL)
        return false; /* With the next event. */
    pool_job_drop_seats(p, j);
    j->seats = seats;
    j->seat_count = found;
    for (uint32_t i = 0; i < found; i++) {
        seats[i] = (struct pool_seat){.state = POOL_SEAT_VACANT, .node = POOL_NONE};
        if (take(p, j, &seats[i], p->candidates[i]) < 0)
            p->vacant_due = true;
    }
    pool_job_dequeue(p, j);
    j->attempt++;
    j->met = false;
    j->started_unix_ms = p->unix_ms;
    pool_job_move(p, j, POOL_STARTING);
    return true;
}

/* Another node for one seat. Whoever refused it is asked again only when nobody else is there. */
static void replace(struct pool *p, struct pool_job *j, struct pool_seat *s)
{
    uint32_t best = POOL_NONE;
    for (int again = 0; again < 2 && best == POOL_NONE; again++)
        for (uint32_t i = 0; i < p->node_cap; i++) {
            const struct pool_node *n = p->nodes[i];
            if (n == NULL || !pool_node_fits(n, j) || has_node(j, i) ||
                (again == 0 && avoids(j, i)))
                continue;
            if (best == POOL_NONE || by_order(n, p->nodes[best]) < 0)
                best = i;
        }
    if (best == POOL_NONE)
        return;
    pool_seat_release(p, j, s);
    (void)take(p, j, s, best); /* Without memory with the next event. */
}

static bool wants_node(const struct pool_job *j, const struct pool_seat *s)
{
    return pool_job_goes_on(j) && j->verdict == POOL_UNDECIDED && j->spec != NULL &&
           (s->state == POOL_SEAT_LOST || s->state == POOL_SEAT_VACANT);
}

static void replace_lost(struct pool *p)
{
    if (!p->vacant_due)
        return;
    p->vacant_due = false;
    for (uint32_t i = 0; i < p->job_cap; i++) {
        struct pool_job *j = p->jobs[i];
        for (uint32_t k = 0; j != NULL && k < j->seat_count; k++) {
            if (!wants_node(j, &j->seats[k]))
                continue;
            replace(p, j, &j->seats[k]);
            p->vacant_due = p->vacant_due || wants_node(j, &j->seats[k]);
        }
    }
}

/* Nodes that may serve this job one day are not for those behind it. Returns how many are left. */
static uint32_t reserve(struct pool *p, const struct pool_job *j)
{
    uint32_t left = 0;
    for (uint32_t i = 0; i < p->node_cap; i++) {
        struct pool_node *n = p->nodes[i];
        if (n == NULL)
            continue;
        n->reserved = n->reserved || pool_node_could(n, j);
        left += !n->reserved && pool_node_takes_jobs(n) && n->slots_free > 0;
    }
    return left;
}

void pool_schedule(struct pool *p)
{
    struct pool_job *j = NULL;
    struct pool_job *next = NULL;
    replace_lost(p);
    for (uint32_t i = 0; i < p->node_cap; i++)
        if (p->nodes[i] != NULL)
            p->nodes[i]->reserved = false;
    DL_FOREACH_SAFE(p->queue, j, next)
    {
        if (place(p, j))
            continue;
        if (j->refusals > 0 && !pool_job_has_others(p, j)) { /* They are asked once more. */
            forget_refusals(j);
            if (place(p, j))
                continue;
        }
        if (reserve(p, j) == 0)
            return;
    }
}
