/* What people are told: states, and for each job one sentence, which reads well alone and behind
 * the state's name. */
#include "rendezvous/pool/internal.h"

#include <string.h>

const char *pool_state_name(enum pool_job_state s)
{
    static const char *const names[] = {
#define X(NAME, name) #name,
        POOL_JOB_STATES(X)
#undef X
    };
    return names[s];
}

const char *pool_node_shown(const struct pool_node *n)
{
    return !n->connected                   ? "away"
           : n->draining                   ? "draining"
           : n->seats > 0 || n->strays > 0 ? "busy"
                                           : "idle";
}

static void add_need(const struct pool_job *j, struct mu_buf *b)
{
    (void)mu_buf_addf(b, "%u free slot%s", j->nproc, j->nproc == 1 ? "" : "s");
    if (j->gpus > 0)
        (void)mu_buf_addf(b, " and %d free GPU%s", j->gpus, j->gpus == 1 ? "" : "s");
    else if (j->gpus < 0)
        (void)mu_buf_adds(b, " (and as many GPUs where a node has any)");
}

struct room {
    uint32_t here;
    uint32_t large; /* So large, drained or not. */
    uint32_t could;
    uint32_t fit;
    uint32_t draining;
};

/* with_gpus: of two kinds of node that are not mixed, where the job leaves it open. */
static struct room count_room(const struct pool *p, const struct pool_job *j, bool with_gpus)
{
    struct room r = {0};
    for (uint32_t i = 0; i < p->node_cap; i++) {
        const struct pool_node *n = p->nodes[i];
        if (n == NULL || !n->connected)
            continue;
        bool kind = j->gpus >= 0 || (n->gpus > 0) == with_gpus;
        r.here++;
        r.draining += n->draining;
        r.large += pool_node_could(n, j);
        r.could += kind && pool_node_could(n, j) && !n->draining;
        r.fit += kind && pool_node_fits(n, j);
    }
    return r;
}

/* None of those that are here is large enough. */
static void add_largest(const struct pool *p, const struct pool_job *j, struct mu_buf *b)
{
    uint32_t slots = 0;
    uint32_t gpus = 0;
    for (uint32_t i = 0; i < p->node_cap; i++) {
        const struct pool_node *n = p->nodes[i];
        if (n == NULL || !n->connected)
            continue;
        slots = n->slots > slots ? n->slots : slots;
        gpus = n->gpus > gpus ? n->gpus : gpus;
    }
    (void)mu_buf_adds(b, "waits for a node with ");
    add_need(j, b);
    (void)mu_buf_addf(b,
                      ": of those on offer none can ever run it, as the largest takes %u worker%s",
                      slots, slots == 1 ? "" : "s");
    if (gpus > 0)
        (void)mu_buf_addf(b, " and has %u GPU%s", gpus, gpus == 1 ? "" : "s");
    else
        (void)mu_buf_adds(b, " and none has a GPU");
    (void)mu_buf_adds(b, "; ask for less, or add such a node");
}

/* The first in the queue, or one that could pass it. */
static void add_room(const struct pool *p, const struct pool_job *j, struct mu_buf *b)
{
    struct room r = count_room(p, j, true);
    if (j->gpus < 0 && r.could < j->nodes_min) {
        struct room other = count_room(p, j, false);
        r = other.could > r.could ? other : r;
    }
    if (r.here > 0 && r.large == 0) {
        add_largest(p, j, b);
        return;
    }
    (void)mu_buf_addf(b, "waits for %u node%s with ", j->nodes_min, j->nodes_min == 1 ? "" : "s");
    add_need(j, b);
    if (r.here == 0)
        (void)mu_buf_adds(b, ": no node is on offer");
    else if (r.could < j->nodes_min)
        (void)mu_buf_addf(b, ": only %u of %u on offer could: add nodes, or stop it", r.could,
                          r.here);
    else
        (void)mu_buf_addf(b, ": of %u on offer %u %s that now", r.here, r.fit,
                          r.fit == 1 ? "has" : "have");
    if (r.draining > 0)
        (void)mu_buf_addf(b, ", %u %s drained", r.draining, r.draining == 1 ? "is" : "are");
}

static void add_again(const struct pool_job *j, struct mu_buf *b)
{
    if (j->lost[0] != '\0')
        (void)mu_buf_addf(b, "starts again: %s; ", j->lost);
}

static void add_queued(const struct pool *p, const struct pool_job *j, struct mu_buf *b)
{
    add_again(j, b);
    for (uint32_t i = 0; i < j->seat_count; i++)
        if (j->seats[i].held) {
            (void)mu_buf_addf(b, "waits for %s to end its last start", j->seats[i].host);
            return;
        }
    struct room r = count_room(p, j, true);
    if (j->ahead > 0 && p->queue != NULL && (r.here == 0 || r.large > 0)) {
        (void)mu_buf_addf(b, "waits for %s, which is first in the queue", p->queue->id);
        if (j->ahead > 1)
            (void)mu_buf_addf(b, ", and %u more before it", j->ahead - 1);
        return;
    }
    add_room(p, j, b);
    if (j->refusals > 0 && j->cause[0] != '\0')
        (void)mu_buf_addf(b, "; %s", j->cause);
}

#define NAMED 4

/* "n1, n2 and 3 more"; two services of one host are one name. */
uint32_t pool_add_hosts(const struct pool_job *j, unsigned states, struct mu_buf *b)
{
    const char *named[NAMED];
    uint32_t count = 0;
    uint32_t more = 0;
    for (uint32_t i = 0; i < j->seat_count; i++) {
        const char *host = j->seats[i].host;
        uint32_t k = 0;
        while (k < count && strcmp(named[k], host) != 0)
            k++;
        if ((states >> j->seats[i].state & 1) == 0 || k < count)
            continue;
        if (count == NAMED) {
            more++;
            continue;
        }
        (void)mu_buf_addf(b, "%s%s", count > 0 ? ", " : "", host);
        named[count++] = host;
    }
    if (more > 0)
        (void)mu_buf_addf(b, " and %u more", more);
    return count + more;
}

static uint32_t count_in(const struct pool_job *j, unsigned states)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < j->seat_count; i++)
        count += states >> j->seats[i].state & 1;
    return count;
}

static void add_placed(const struct pool *p, const struct pool_job *j, struct mu_buf *b)
{
    uint32_t away = count_in(j, POOL_SEAT_BIT(LOST) | POOL_SEAT_BIT(VACANT));
    (void)p;
    if (j->state == POOL_STARTING)
        add_again(j, b);
    if (j->state == POOL_STOPPING) {
        (void)mu_buf_adds(b, "waits for ");
        (void)pool_add_hosts(j, POOL_SEAT_BIT(ASSIGNED) | POOL_SEAT_BIT(UP), b);
        (void)mu_buf_adds(b, " to end it");
    } else if (count_in(j, POOL_SEAT_BIT(ASSIGNED)) > 0) {
        (void)mu_buf_adds(b, "waits for ");
        (void)pool_add_hosts(j, POOL_SEAT_BIT(ASSIGNED), b);
        (void)mu_buf_adds(b, " to begin it");
    } else if (count_in(j, POOL_SEAT_BIT(UP)) == 0) {
        (void)mu_buf_adds(b, count_in(j, POOL_SEAT_BIT(ENDED)) > 0
                                 ? "its agents have ended: how is about to be decided"
                                 : "has no node now");
    } else if (j->verdict != POOL_UNDECIDED) {
        (void)mu_buf_adds(b, "has ended: waits for the agents on ");
        (void)pool_add_hosts(j, POOL_SEAT_BIT(UP), b);
    } else if (j->state == POOL_STARTING) {
        (void)mu_buf_adds(b, "waits for its agents to meet, on ");
        (void)pool_add_hosts(j, POOL_SEAT_BIT(UP), b);
    } else {
        (void)mu_buf_adds(b, "runs on ");
        (void)pool_add_hosts(j, POOL_SEAT_BIT(UP), b);
    }
    if (j->lost[0] != '\0' && j->state == POOL_RUNNING)
        (void)mu_buf_addf(b, "; started again: %s", j->lost);
    if (away == 0)
        return;
    (void)mu_buf_adds(b, "; waits for ");
    (void)pool_add_hosts(j, POOL_SEAT_BIT(LOST) | POOL_SEAT_BIT(VACANT), b);
    (void)mu_buf_adds(b, j->spec != NULL ? " to come back, or for another node" : " to come back");
}

void pool_sentence(const struct pool *p, const struct pool_job *j, struct mu_buf *b)
{
    switch (j->state) {
    case POOL_QUEUED:
        add_queued(p, j, b);
        return;
    case POOL_STARTING:
    case POOL_RUNNING:
    case POOL_STOPPING:
        add_placed(p, j, b);
        if (j->spec == NULL)
            (void)mu_buf_adds(b,
                              "; found there after a restart of this server, which does not know "
                              "what it runs");
        return;
    case POOL_DONE:
        (void)mu_buf_adds(b, "it ended well");
        return;
    case POOL_STOPPED:
    case POOL_FAILED:
    case POOL_JOB_STATE_COUNT:
        break;
    }
    (void)mu_buf_adds(b, j->cause[0] != '\0' ? j->cause : "nothing is known of why");
}
