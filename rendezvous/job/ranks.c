/* Ranks: stable for who stays, freed ones for newcomers, natural order at first, an explicit
 * --node-rank honoured. */
#include "rendezvous/job/internal.h"

#include <stdlib.h>
#include <string.h>

/* Order among nodes that have no rank yet: topology key, natural order of host names, then process
 * id, then arrival. */
static int by_place(const void *pa, const void *pb)
{
    const struct job_node *a = *(const struct job_node *const *)pa;
    const struct job_node *b = *(const struct job_node *const *)pb;
    int r = mu_natural_cmp(a->hello.topology, b->hello.topology);
    if (r == 0)
        r = mu_natural_cmp(a->hello.host, b->hello.host);
    if (r == 0)
        r = (a->hello.pid > b->hello.pid) - (a->hello.pid < b->hello.pid);
    return r != 0 ? r : (a->order > b->order) - (a->order < b->order);
}

/* Who comes first when more wait than fit: nodes of the last round, then named ranks, then the
 * earlier arrival. */
static int by_claim(const void *pa, const void *pb)
{
    const struct job_node *a = *(const struct job_node *const *)pa;
    const struct job_node *b = *(const struct job_node *const *)pb;
    int ca = a->node_rank >= 0 ? 0 : a->hello.node_rank >= 0 ? 1 : 2;
    int cb = b->node_rank >= 0 ? 0 : b->hello.node_rank >= 0 ? 1 : 2;
    if (ca != cb)
        return ca - cb;
    return (a->order > b->order) - (a->order < b->order);
}

/* Give out what each node may claim by itself; who gets nothing has -1. Named ranks go before kept
 * ones. */
static void claim_ranks(struct job *j, struct job_node **chosen, uint32_t count)
{
    for (uint32_t r = 0; r < count; r++)
        j->members[r] = JOB_NO_NODE;
    for (int kept = 0; kept < 2; kept++) {
        for (uint32_t i = 0; i < count; i++) {
            struct job_node *n = chosen[i];
            bool named = n->hello.node_rank >= 0;
            int64_t want = named ? n->hello.node_rank : n->node_rank;
            if (named == (kept != 0))
                continue;
            if (want >= 0 && want < count && j->members[want] == JOB_NO_NODE)
                j->members[want] = (uint32_t)(n - j->nodes);
            else
                want = -1;
            n->node_rank = (int32_t)want;
        }
    }
}

static void fill_ranks(struct job *j, struct job_node **chosen, uint32_t count)
{
    uint32_t rank = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (chosen[i]->node_rank >= 0)
            continue;
        while (j->members[rank] != JOB_NO_NODE)
            rank++;
        j->members[rank] = (uint32_t)(chosen[i] - j->nodes);
        chosen[i]->node_rank = (int32_t)rank;
    }
}

/* Ranks of workers, node by node. */
static void spread_workers(struct job *j)
{
    uint32_t world = 0;
    for (uint32_t r = 0; r < j->round_nodes; r++) {
        struct job_node *n = &j->nodes[j->members[r]];
        n->rank_base = (int32_t)world;
        n->ranked = true;
        world += (uint32_t)n->hello.nproc;
    }
    j->world = world;
}

static int by_role(const void *a, const void *b)
{
    const struct job_node *x = *(struct job_node *const *)a;
    const struct job_node *y = *(struct job_node *const *)b;
    int r = strcmp(x->hello.role, y->hello.role);
    return r != 0 ? r : (x->node_rank > y->node_rank) - (x->node_rank < y->node_rank);
}

/* The same within each role. `chosen`: room for the nodes of the round. Nearly always they have one
 * role, and stand in order already. */
static void spread_roles(const struct job *j, struct job_node **chosen, uint32_t count)
{
    bool same = true;
    for (uint32_t r = 0; r < count; r++) {
        chosen[r] = &j->nodes[j->members[r]];
        same = same && strcmp(chosen[r]->hello.role, chosen[0]->hello.role) == 0;
    }
    if (!same)
        qsort(chosen, count, sizeof chosen[0], by_role);
    for (uint32_t first = 0, end = 0; first < count; first = end) {
        int32_t in_role = 0;
        for (; end < count && strcmp(chosen[end]->hello.role, chosen[first]->hello.role) == 0;
             end++) {
            chosen[end]->role_rank_base = in_role;
            in_role += (int32_t)chosen[end]->hello.nproc;
        }
        for (uint32_t i = first; i < end; i++)
            chosen[i]->role_world = in_role;
    }
}

static bool is_loopback(const char *a)
{
    return strncmp(a, "127.", 4) == 0 || strcmp(a, "::1") == 0;
}

/* It means something with the name of an interface alone, which differs from host to host. */
static bool is_link_local(const char *a)
{
    return strncmp(a, "fe80:", 5) == 0;
}

/* Where the others reach the host that the lead shares with the server: the server's address, as
 * one of them met it there. Better than any guess at the lead's interfaces. */
static const char *met_at(const struct job *j)
{
    for (uint32_t r = 0; r < j->round_nodes; r++) {
        const struct job_node *n = &j->nodes[j->members[r]];
        if (n->via_addr[0] != '\0' && !is_loopback(n->via_addr) && !is_link_local(n->via_addr))
            return n->via_addr;
    }
    return NULL;
}

static const char *lead_address(const struct job *j)
{
    const struct job_node *lead = &j->nodes[j->lead];
    if (lead->hello.local_addr[0] != '\0')
        return lead->hello.local_addr; /* The user knows better. */
    if (lead->seen_addr[0] != '\0' && !is_loopback(lead->seen_addr))
        return lead->seen_addr;
    /* The lead shares its host with the server. When all nodes do, loopback is right and nothing
     * wider is needed. */
    bool all_here = true;
    for (uint32_t r = 0; r < j->round_nodes && all_here; r++)
        all_here = is_loopback(j->nodes[j->members[r]].seen_addr);
    if (all_here && lead->seen_addr[0] != '\0')
        return lead->seen_addr;
    const char *met = met_at(j);
    if (met != NULL)
        return met;
    if (lead->hello.host_addr[0] != '\0')
        return lead->hello.host_addr;
    return lead->hello.fqdn[0] != '\0' ? lead->hello.fqdn : lead->hello.host;
}

void ranks_find_lead(struct job *j)
{
    j->lead = j->members[0];
    (void)mu_strcopy(j->lead_addr, sizeof j->lead_addr, lead_address(j)); /* Each candidate fits. */
    j->lead_port = j->nodes[j->lead].store_port;
}

static bool same_place(const struct job_node *a, const struct job_node *b)
{
    return strcmp(a->seen_addr, b->seen_addr) == 0 ||
           (is_loopback(a->seen_addr) && is_loopback(b->seen_addr));
}

/* Between hosts a firewall may stand: then every node looks whether it reaches the lead's store
 * before any worker starts. On one host nothing is in the way, and no time is spent. */
static void find_reach(struct job *j)
{
    bool apart = false;
    bool again = true;
    for (uint32_t r = 0; r < j->round_nodes; r++) {
        const struct job_node *n = &j->nodes[j->members[r]];
        apart = apart || !same_place(n, &j->nodes[j->lead]);
        again = again && n->had_round;
    }
    bool asked = apart && j->lead_port != 0 && j->round_nodes <= MU_REACH_NODES_MAX;
    j->reach_ns = !asked ? 0 : again ? MU_REACH_AGAIN_NS : MU_REACH_NS;
    j->unreached = asked ? j->round_nodes : 0;
    for (uint32_t r = 0; r < j->round_nodes; r++)
        j->nodes[j->members[r]].reached = !asked;
}

void ranks_assign(struct job *j)
{
    struct job_node **chosen = j->scratch;
    uint32_t count = 0;
    for (uint32_t i = 0; i < j->node_cap; i++) {
        struct job_node *n = &j->nodes[i];
        if (roster_eligible(n))
            chosen[count++] = n;
        else if (n->used)
            n->node_rank = -1; /* Who is not in the next round has no claim on a rank of it. */
    }
    MU_ASSERT(count == j->waiting && count > 0);
    uint32_t spares = count > j->nodes_max ? count - j->nodes_max : 0;
    if (spares > 0)
        qsort(chosen, count, sizeof chosen[0], by_claim);
    for (uint32_t i = count - spares; i < count; i++)
        chosen[i]->node_rank = -1;
    count -= spares;
    claim_ranks(j, chosen, count);
    qsort(chosen, count, sizeof chosen[0], by_place);
    fill_ranks(j, chosen, count);
    j->round_nodes = count;
    bool goes_on = spares > 0 || j->aside_count > 0 || j->nodes_min < count;
    j->fence_ns = goes_on ? j->config.lease_ns : j->config.fence_ns;
    ranks_find_lead(j);
    find_reach(j);
    spread_workers(j);
    spread_roles(j, chosen, count);
}
