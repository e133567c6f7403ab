/* The roster: slots, the index by node id, and what a hello must agree with. */
#include "rendezvous/job/internal.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define FIRST_SLOTS 8

/* FNV-1a: node ids are random already; this only spreads them. */
static uint32_t hash_id(const char *id)
{
    uint32_t h = 2166136261U;
    for (; *id != '\0'; id++)
        h = (h ^ (unsigned char)*id) * 16777619U;
    return h;
}

static uint32_t *bucket(const struct job *j, const char *id)
{
    return &j->index[hash_id(id) & (j->node_cap - 1)];
}

bool roster_eligible(const struct job_node *n)
{
    return n->used && n->state == JOB_NODE_WAITING && n->connected && !n->late;
}

void roster_set(struct job *j, uint32_t slot, enum job_node_state state)
{
    struct job_node *n = &j->nodes[slot];
    bool before = roster_eligible(n);
    bool counted = n->state != JOB_NODE_LOST;
    bool started = n->in_round && n->state == JOB_NODE_STARTING && state != JOB_NODE_STARTING;
    if (started && j->starting > 0 && --j->starting == 0 && state == JOB_NODE_RUNNING)
        j->running_unix_ms = j->step_unix_ms;
    /* What a successor cannot tell from the job's own row. */
    if (n->in_round && state != n->state && state != JOB_NODE_STARTING &&
        state != JOB_NODE_STOPPING)
        job_act(j, JOB_ACT_KEEP, slot, CTL_TYPE_COUNT);
    n->state = state;
    j->waiting += (uint32_t)roster_eligible(n) - (uint32_t)before;
    j->node_count += (uint32_t)(state != JOB_NODE_LOST) - (uint32_t)counted;
}

void roster_connect(struct job *j, uint32_t slot, bool connected)
{
    struct job_node *n = &j->nodes[slot];
    bool before = roster_eligible(n);
    n->connected = connected;
    j->waiting += (uint32_t)roster_eligible(n) - (uint32_t)before;
}

void roster_late(struct job *j, uint32_t slot, bool late)
{
    struct job_node *n = &j->nodes[slot];
    bool before = roster_eligible(n);
    n->late = late;
    j->waiting += (uint32_t)roster_eligible(n) - (uint32_t)before;
}

void roster_heard(struct job *j, uint32_t slot, int64_t now_ns)
{
    j->nodes[slot].heard_ns = now_ns;
    if (j->nodes[slot].late)
        roster_late(j, slot, false);
}

uint32_t roster_find(const struct job *j, const char *node)
{
    if (j->node_cap == 0)
        return JOB_NO_NODE;
    uint32_t slot = *bucket(j, node);
    while (slot != JOB_NO_NODE && strcmp(j->nodes[slot].hello.node, node) != 0)
        slot = j->nodes[slot].next;
    return slot;
}

/* Two specs, one field: the sentence that names both values. */
static int differs(const char *what, int64_t ours, int64_t theirs, struct mu_err *err)
{
    return mu_err_set(err, -EACCES,
                      "%s is %" PRId64 " here and %" PRId64
                      " in the agents that came first: give every agent of the job the same",
                      what, theirs, ours);
}

static int check_node_rank(const struct job *j, const struct ctl_hello *h, struct mu_err *err)
{
    if (h->node_rank >= h->nodes_max)
        return mu_err_set(err, -EACCES,
                          "node rank %" PRId64 " is too high: with at most %" PRId64
                          " nodes, 0 to %" PRId64 " are possible",
                          h->node_rank, h->nodes_max, h->nodes_max - 1);
    for (uint32_t i = 0; i < j->node_cap; i++) {
        const struct job_node *n = &j->nodes[i];
        if (n->used && n->state != JOB_NODE_LOST && n->hello.node_rank == h->node_rank &&
            strcmp(n->hello.node, h->node) != 0)
            return mu_err_set(err, -EAGAIN,
                              "node rank %" PRId64 " is taken by %s (pid %" PRId64
                              "): give each node its own",
                              h->node_rank, n->hello.host, n->hello.pid);
    }
    return 0;
}

/* What an agent says of the round it was in, against its own spec. A peer's numbers are never
 * trusted with memory or time. */
static int check_round(const struct ctl_hello *h, struct mu_err *err)
{
    if (h->round > ROUND_MAX || h->round_seen > ROUND_MAX)
        return mu_err_set(err, -EACCES, "round numbers above %u do not occur", ROUND_MAX);
    if (h->round_nodes > h->nodes_max || h->round_restarts > h->max_restarts ||
        (h->round != 0 && h->round_node_rank >= h->nodes_max))
        return mu_err_set(err, -EACCES,
                          "the round this agent says to be in does not fit its own --nnodes and "
                          "--max-restarts");
    return 0;
}

int roster_check(const struct job *j, const struct ctl_hello *h, struct mu_err *err)
{
    if (h->nodes_min > h->nodes_max)
        return mu_err_set(err, -EACCES,
                          "nnodes %" PRId64 ":%" PRId64 " is upside down: write MIN:MAX",
                          h->nodes_min, h->nodes_max);
    if (h->node[0] == '\0')
        return mu_err_set(err, -EACCES, "an agent needs an id of its own in 'node'");
    int r = check_round(h, err);
    if (r < 0)
        return r;
    if (j->has_spec) {
        if (h->nodes_min != j->nodes_min)
            return differs("the fewest nodes (--nnodes MIN)", j->nodes_min, h->nodes_min, err);
        if (h->nodes_max != j->nodes_max)
            return differs("the most nodes (--nnodes MAX)", j->nodes_max, h->nodes_max, err);
        if (h->max_restarts != j->max_restarts)
            return differs("--max-restarts", j->max_restarts, h->max_restarts, err);
    }
    if (j->node_count >= MU_NODES_MAX && roster_find(j, h->node) == JOB_NO_NODE)
        return mu_err_set(err, -EACCES, "the job has %d nodes already", MU_NODES_MAX);
    return h->node_rank >= 0 ? check_node_rank(j, h, err) : 0;
}

/* A hello may lie in the network while its agent gives that connection up and comes back on
 * another. Taken for news, it would say that the agent never heard what it was told since. */
int roster_check_link(const struct job *j, const struct ctl_hello *h, struct mu_err *err)
{
    uint32_t slot = roster_find(j, h->node);
    if (slot == JOB_NO_NODE || h->link >= j->nodes[slot].hello.link)
        return 0;
    return mu_err_set(err, -EAGAIN, "this agent has connected anew since it sent this hello");
}

int roster_reserve_members(struct job *j, uint32_t count)
{
    if (count <= j->member_cap)
        return 0;
    uint32_t *members = mu_realloc(j->mem, j->members, (size_t)count * sizeof *members);
    if (members == NULL)
        return -ENOMEM;
    j->members = members;
    j->member_cap = count;
    return 0;
}

/* Grow by doubling, so that the index stays a power of two. All or nothing. */
static int grow(struct job *j)
{
    uint32_t cap = j->node_cap == 0 ? FIRST_SLOTS : j->node_cap * 2;
    /* A step's most actions: four a node (STOP of the old round, KEEP, WELCOME or END with CLOSE,
     * START), and a few. */
    struct job_action *actions =
        mu_realloc(j->mem, j->actions, (size_t)(cap * 5 + 32) * sizeof *actions);
    if (actions == NULL)
        return -ENOMEM;
    j->actions = actions;
    j->action_cap = cap * 5 + 32;
    if (roster_reserve_members(j, cap) < 0)
        return -ENOMEM;
    struct job_node **scratch = mu_realloc(j->mem, j->scratch, cap * sizeof(struct job_node *));
    if (scratch == NULL)
        return -ENOMEM;
    j->scratch = scratch;
    uint32_t *index = mu_realloc(j->mem, j->index, cap * sizeof *index);
    if (index == NULL)
        return -ENOMEM;
    j->index = index;
    struct job_node *nodes = mu_realloc(j->mem, j->nodes, cap * sizeof *nodes);
    if (nodes != NULL)
        j->nodes = nodes;
    uint32_t have =
        nodes != NULL ? cap : j->node_cap; /* The old table stays whole when the last one fails. */
    for (uint32_t i = 0; i < have; i++)
        index[i] = JOB_NO_NODE;
    for (uint32_t i = have; i > j->node_cap; i--) { /* Backwards: low slots go out first. */
        j->nodes[i - 1] = (struct job_node){.next = j->free_head};
        j->free_head = i - 1;
    }
    j->node_cap = have;
    for (uint32_t i = 0; i < have; i++) {
        if (!j->nodes[i].used)
            continue;
        uint32_t *b = bucket(j, j->nodes[i].hello.node);
        j->nodes[i].next = *b;
        *b = i;
    }
    return nodes != NULL ? 0 : -ENOMEM;
}

int roster_reserve(struct job *j)
{
    return j->free_head != JOB_NO_NODE ? 0 : grow(j);
}

uint32_t roster_add(struct job *j, int64_t now_ns, const struct job_event *ev)
{
    const struct ctl_hello *h = &ev->msg->u.hello;
    struct job_worker *workers = mu_alloc(j->mem, (size_t)h->nproc * sizeof *workers);
    if (workers == NULL)
        return JOB_NO_NODE;
    uint32_t slot = j->free_head;
    MU_ASSERT(slot != JOB_NO_NODE);
    struct job_node *n = &j->nodes[slot];
    j->free_head = n->next;
    uint32_t *b = bucket(j, h->node);
    *n = (struct job_node){.used = true,
                           .state = JOB_NODE_LOST, /* Until roster_set() counts it in. */
                           .node_rank = -1,
                           .heard_ns = now_ns,
                           .joined_unix_ms = ev->unix_ms,
                           .order = j->arrivals++,
                           .next = *b,
                           .hello = *h,
                           .store_port = (uint16_t)h->store_port,
                           .workers = workers};
    *b = slot;
    (void)mu_strcopy(n->seen_addr, sizeof n->seen_addr, ev->seen_addr != NULL ? ev->seen_addr : "");
    for (int64_t i = 0; i < h->nproc; i++)
        workers[i] = (struct job_worker){.pid = 0, .exit = JOB_EXIT_NONE};
    n->connected = true;
    roster_set(j, slot, JOB_NODE_WAITING);
    return slot;
}

void roster_forget(struct job *j, uint32_t slot)
{
    struct job_node *n = &j->nodes[slot];
    MU_ASSERT(n->used);
    n->in_round = false;
    roster_set(j, slot, JOB_NODE_LOST);
    for (uint32_t *at = bucket(j, n->hello.node);; at = &j->nodes[*at].next) {
        if (*at == slot) {
            *at = n->next;
            break;
        }
    }
    mu_mem_free(j->mem, n->workers);
    *n = (struct job_node){.next = j->free_head};
    j->free_head = slot;
    job_act(j, JOB_ACT_FORGET, slot, CTL_TYPE_COUNT);
}
