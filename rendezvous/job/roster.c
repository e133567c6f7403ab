/* The roster: slots, the index by node id, and what a hello must agree with. */
#include "rendezvous/job/internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/date.h"
#include "base/parse.h"

#define FIRST_SLOTS 8

/* FNV-1a: node ids are random already; this only spreads them. */
static uint32_t hash_id(const char *id)
{
    uint32_t h = 2166136261U;
    for (; *id != '\0'; id++)
        h = (h ^ (unsigned char)*id) * 16777619U;
    return h;
}

static uint32_t *bucket(const struct job *j, uint32_t hash)
{
    return &j->index[hash & (j->node_cap - 1)];
}

bool roster_eligible(const struct job_node *n)
{
    return n->used && n->state == JOB_NODE_WAITING && n->connected && !n->late &&
           n->health == JOB_HEALTH_OK && !n->aside && n->drain == NULL;
}

void roster_set(struct job *j, uint32_t slot, enum job_node_state state)
{
    struct job_node *n = &j->nodes[slot];
    bool before = roster_eligible(n);
    bool counted = n->state != JOB_NODE_LOST;
    bool started = n->in_round && n->state == JOB_NODE_STARTING && state != JOB_NODE_STARTING;
    if (started && j->starting > 0 && --j->starting == 0 && state == JOB_NODE_RUNNING) {
        job_note_running(j);
        budget_note_running(j);
    }
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

void roster_aside(struct job *j, uint32_t slot, bool aside)
{
    struct job_node *n = &j->nodes[slot];
    bool before = roster_eligible(n);
    j->aside_count += (uint32_t)aside - (uint32_t)n->aside;
    n->aside = aside;
    j->waiting += (uint32_t)roster_eligible(n) - (uint32_t)before;
}

void roster_health(struct job *j, uint32_t slot, enum job_health health, const char *text)
{
    struct job_node *n = &j->nodes[slot];
    bool before = roster_eligible(n);
    if (health == JOB_HEALTH_CHECKING && n->health == JOB_HEALTH_UNHEALTHY)
        return; /* Only a check that passed takes it back. */
    if (health == JOB_HEALTH_UNHEALTHY && n->health != health)
        n->unhealthy_unix_ms = j->step_unix_ms;
    n->health = health;
    if (health != JOB_HEALTH_UNHEALTHY) {
        mu_mem_free(j->mem, n->unhealthy);
        n->unhealthy = NULL;
    } else if (n->unhealthy == NULL) {
        n->unhealthy = mu_alloc(j->mem, MU_MESSAGE_BYTES);
    }
    if (n->unhealthy != NULL) /* Else there was no memory for it. */
        (void)snprintf(n->unhealthy, MU_MESSAGE_BYTES, "%s", text);
    j->waiting += (uint32_t)roster_eligible(n) - (uint32_t)before;
}

void roster_drain(struct job *j, uint32_t slot, struct job_drain *drain)
{
    struct job_node *n = &j->nodes[slot];
    bool before = roster_eligible(n);
    n->drain = drain;
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
    uint32_t hash = hash_id(node);
    uint32_t slot = *bucket(j, hash);
    while (slot != JOB_NO_NODE &&
           (j->nodes[slot].hash != hash || strcmp(j->nodes[slot].hello.node, node) != 0))
        slot = j->nodes[slot].next;
    return slot;
}

/* Two specs, one field: the sentence that names both values, and who said which. */
static int differs(const struct job *j,
                   const struct ctl_hello *h,
                   const char *what,
                   const char *theirs,
                   const char *ours,
                   struct mu_err *err)
{
    return mu_err_set(
        err, -EACCES,
        "%s is %s on %.50s and %s on %.50s, which came first: give every agent of the "
        "job the same",
        what, theirs, h->host, ours, j->spec_host);
}

#define SHOWN_BYTES 48

static const char *shown_nodes(int64_t min, int64_t max, char *ret)
{
    if (min == max)
        (void)snprintf(ret, SHOWN_BYTES, "%" PRId64, min);
    else
        (void)snprintf(ret, SHOWN_BYTES, "%" PRId64 ":%" PRId64, min, max);
    return ret;
}

static const char *shown_restarts(int64_t max, int64_t window_ms, char *ret)
{
    char span[MU_SPAN_BYTES];
    if (window_ms == 0)
        (void)snprintf(ret, SHOWN_BYTES, "%" PRId64, max);
    else
        (void)snprintf(ret, SHOWN_BYTES, "%" PRId64 "/%s", max,
                       mu_span_text(window_ms, false, span));
    return ret;
}

static const char *shown_proof(int64_t ms, int64_t steps, char *ret)
{
    char span[MU_SPAN_BYTES];
    if (steps > 0)
        (void)snprintf(ret, SHOWN_BYTES, "%" PRId64 "steps", steps);
    else
        (void)snprintf(ret, SHOWN_BYTES, "%s", ms > 0 ? mu_span_text(ms, false, span) : "never");
    return ret;
}

static int check_spec(const struct job *j, const struct ctl_hello *h, struct mu_err *err)
{
    char a[SHOWN_BYTES];
    char b[SHOWN_BYTES];
    const struct job_budget *bu = &j->budget;
    if (h->nodes_min != j->nodes_min || h->nodes_max != j->nodes_max)
        return differs(j, h, "--nnodes", shown_nodes(h->nodes_min, h->nodes_max, a),
                       shown_nodes(j->nodes_min, j->nodes_max, b), err);
    if (h->max_restarts != j->max_restarts || h->restart_window_ms != bu->window_ns / NS_PER_MS)
        return differs(j, h, "--max-restarts",
                       shown_restarts(h->max_restarts, h->restart_window_ms, a),
                       shown_restarts(j->max_restarts, bu->window_ns / NS_PER_MS, b), err);
    if (h->give_back_ms != bu->give_back_ns / NS_PER_MS ||
        h->give_back_steps != bu->give_back_steps)
        return differs(j, h, "--restarts-given-back-after",
                       shown_proof(h->give_back_ms, h->give_back_steps, a),
                       shown_proof(bu->give_back_ns / NS_PER_MS, bu->give_back_steps, b), err);
    if (h->same_failure_restart != bu->same_failure_restart)
        return differs(j, h, "--same-failure", h->same_failure_restart != 0 ? "restart" : "end",
                       bu->same_failure_restart ? "restart" : "end", err);
    return 0;
}

bool roster_has_member(const struct job *j)
{
    for (uint32_t r = 0; r < j->round_nodes; r++)
        if (j->members[r] != JOB_NO_NODE && j->nodes[j->members[r]].connected)
            return true;
    return false;
}

/* The id that agents have whose user gave none (--rdzv-id), as torchrun spells it. */
#define UNNAMED "none"

int roster_check_second(const struct job *j,
                        const struct ctl_hello *h,
                        int64_t unix_ms,
                        struct mu_err *err)
{
    /* A spare for one node is told so: its job has a name. */
    if (h->round != 0 || j->nodes_max != 1 || strcmp(j->run_id, UNNAMED) != 0 ||
        !roster_has_member(j))
        return 0;
    const struct job_node *n = &j->nodes[j->members[0]];
    char since[32];
    (void)mu_date(j->created_unix_ms > 0 ? j->created_unix_ms : 0, since);
    return mu_err_set(err, -EACCES,
                      "job '" UNNAMED "' runs here since %.19sZ (%" PRId64
                      " s), on %.40s, pid %" PRId64
                      ": give this one an id of its own (--rdzv-id), or no endpoint (--standalone)",
                      since, (unix_ms - j->created_unix_ms) / 1000, n->hello.host, n->hello.pid);
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
    int64_t spent = h->round_spent >= 0 ? h->round_spent : h->round_restarts;
    if (h->round_nodes > h->nodes_max || spent > h->max_restarts ||
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
    if (h->restart_window_ms > 0 && h->max_restarts > MU_WINDOW_RESTARTS_MAX)
        return mu_err_set(err, -EACCES, "--max-restarts: at most %d restarts within a window",
                          MU_WINDOW_RESTARTS_MAX);
    int r = check_round(h, err);
    if (r < 0)
        return r;
    r = j->has_spec ? check_spec(j, h, err) : 0;
    if (r < 0)
        return r;
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
        uint32_t *b = bucket(j, j->nodes[i].hash);
        j->nodes[i].next = *b;
        *b = i;
    }
    return nodes != NULL ? 0 : -ENOMEM;
}

int roster_reserve(struct job *j)
{
    return j->free_head != JOB_NO_NODE ? 0 : grow(j);
}

/* The hello's words into a node. Its workers stay where it has some; a new one has hello.nproc
 * only. Returns 0 or -ENOMEM with nothing changed. */
static int note_hello(const struct job *j, struct job_node *n, const struct job_event *ev)
{
    const struct ctl_hello *h = &ev->msg->u.hello;
    const char *seen = n->seen_addr != NULL ? n->seen_addr : "";
    const char *via = n->via_addr != NULL ? n->via_addr : "";
    struct job_hello said = {.pid = h->pid,
                             .cpus = h->cpus,
                             .gpus = h->gpus,
                             .nproc = n->hello.nproc,
                             .node_rank = h->node_rank,
                             .round = h->round,
                             .link = h->link};
    const struct {
        const char **to;
        const char *from;
    } texts[] = {{&said.node, h->node},
                 {&said.host, h->host},
                 {&said.topology, h->topology},
                 {&said.role, h->role},
                 {&said.boot_id, h->boot_id},
                 {&said.version, h->version},
                 {&said.fqdn, h->fqdn},
                 {&said.local_addr, h->local_addr},
                 {&said.host_addr, h->host_addr},
                 {&n->seen_addr, ev->seen_addr != NULL ? ev->seen_addr : seen},
                 {&n->via_addr, ev->via_addr != NULL ? ev->via_addr : via}};
    size_t workers_bytes = (size_t)said.nproc * sizeof(struct job_worker);
    size_t bytes = workers_bytes;
    for (size_t i = 0; i < MU_COUNT(texts); i++)
        bytes += strlen(texts[i].from) + 1;
    struct job_worker *workers = mu_alloc(j->mem, bytes);
    if (workers == NULL)
        return -ENOMEM;
    char *p = (char *)workers + workers_bytes;
    for (size_t i = 0; i < MU_COUNT(texts); i++) {
        size_t n_bytes = strlen(texts[i].from) + 1;
        memcpy(p, texts[i].from, n_bytes);
        *texts[i].to = p;
        p += n_bytes;
    }
    for (int64_t i = 0; i < said.nproc; i++)
        workers[i] = n->workers != NULL
                         ? n->workers[i]
                         : (struct job_worker){.pid = 0, .exit = JOB_EXIT_NONE, .step = -1};
    mu_mem_free(j->mem, n->workers);
    n->workers = workers;
    n->hello = said;
    n->store_port = (uint16_t)h->store_port;
    n->life_port = (uint16_t)h->life_port;
    return 0;
}

static enum job_health health_said(const struct ctl_hello *h)
{
    return h->unready != 0 ? JOB_HEALTH_CHECKING : JOB_HEALTH_OK;
}

int roster_hear(struct job *j, uint32_t slot, const struct job_event *ev)
{
    if (note_hello(j, &j->nodes[slot], ev) < 0)
        return -ENOMEM;
    roster_health(j, slot, health_said(&ev->msg->u.hello), "");
    return 0;
}

uint32_t roster_add(struct job *j, int64_t now_ns, const struct job_event *ev)
{
    const struct ctl_hello *h = &ev->msg->u.hello;
    struct job_node fresh = {.used = true,
                             .state = JOB_NODE_LOST, /* Until roster_set() counts it in. */
                             .connected = true,
                             .health = health_said(h),
                             .node_rank = -1,
                             .top_step = -1,
                             .hash = hash_id(h->node),
                             .heard_ns = now_ns,
                             .joined_unix_ms = ev->unix_ms,
                             .hello = {.nproc = h->nproc}};
    if (note_hello(j, &fresh, ev) < 0)
        return JOB_NO_NODE;
    uint32_t slot = j->free_head;
    MU_ASSERT(slot != JOB_NO_NODE);
    struct job_node *n = &j->nodes[slot];
    j->free_head = n->next;
    uint32_t *b = bucket(j, fresh.hash);
    fresh.order = j->arrivals++;
    fresh.next = *b;
    *n = fresh;
    *b = slot;
    roster_set(j, slot, JOB_NODE_WAITING);
    return slot;
}

void roster_forget_failure(struct job *j, struct job_node *n)
{
    mu_mem_free(j->mem, n->failure);
    n->failure = NULL;
}

void roster_forget(struct job *j, uint32_t slot)
{
    struct job_node *n = &j->nodes[slot];
    MU_ASSERT(n->used);
    n->in_round = false;
    roster_set(j, slot, JOB_NODE_LOST);
    roster_aside(j, slot, false);
    for (uint32_t *at = bucket(j, n->hash);; at = &j->nodes[*at].next) {
        if (*at == slot) {
            *at = n->next;
            break;
        }
    }
    mu_mem_free(j->mem, n->workers);
    mu_mem_free(j->mem, n->drain);
    roster_forget_failure(j, n);
    mu_mem_free(j->mem, n->unhealthy);
    *n = (struct job_node){.next = j->free_head};
    j->free_head = slot;
    job_act(j, JOB_ACT_FORGET, slot, CTL_TYPE_COUNT);
}
