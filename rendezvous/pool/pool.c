/* Events in: nodes that come, go and speak, and what people ask for. */
#include "rendezvous/pool/internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <utlist.h>

#define NS_PER_S INT64_C(1000000000)
/* A server that was just started waits so long at least for nodes that it knows from before. */
#define LOADED_WAIT_NS (10 * NS_PER_S)

void pool_init(struct pool *p, const struct mu_mem *mem, const struct pool_config *config)
{
    *p = (struct pool){.mem = mem, .config = *config, .deadline_ns = POOL_NEVER};
}

void pool_fini(struct pool *p)
{
    for (uint32_t i = 0; i < p->job_cap; i++)
        if (p->jobs[i] != NULL)
            pool_job_free(p, p->jobs[i]);
    for (uint32_t i = 0; i < p->node_cap; i++) {
        if (p->nodes[i] != NULL)
            mu_mem_free(p->mem, p->nodes[i]->gpu_used);
        mu_mem_free(p->mem, p->nodes[i]);
    }
    mu_mem_free(p->mem, p->jobs);
    mu_mem_free(p->mem, p->nodes);
    mu_mem_free(p->mem, p->candidates);
    mu_mem_free(p->mem, p->drains);
    *p = (struct pool){0};
}

/* --- nodes --- */

bool pool_is_here(const struct pool_node *n)
{
    return n->connected;
}

uint32_t pool_node_find(const struct pool *p, const char *id)
{
    for (uint32_t i = 0; i < p->node_cap; i++)
        if (p->nodes[i] != NULL && strcmp(p->nodes[i]->id, id) == 0)
            return i;
    return POOL_NONE;
}

uint32_t pool_find_node(const struct pool *p, const char *name, bool *ret_many)
{
    uint32_t found = pool_node_find(p, name);
    *ret_many = false;
    if (found != POOL_NONE)
        return found;
    for (uint32_t i = 0; i < p->node_cap; i++) {
        if (p->nodes[i] == NULL || strcmp(p->nodes[i]->host, name) != 0)
            continue;
        /* One that is away was most likely followed by the one that is here. */
        bool better = found == POOL_NONE || !pool_is_here(p->nodes[found]);
        *ret_many = *ret_many || (!better && pool_is_here(p->nodes[i]));
        found = better ? i : found;
    }
    return found;
}

static int grow_nodes(struct pool *p)
{
    uint32_t cap = p->node_cap == 0 ? 16 : p->node_cap * 2;
    uint32_t *candidates = mu_realloc(p->mem, p->candidates, cap * sizeof *candidates);
    if (candidates == NULL)
        return -ENOMEM;
    p->candidates = candidates;
    struct pool_node **nodes = mu_realloc(p->mem, p->nodes, cap * sizeof *nodes);
    if (nodes == NULL)
        return -ENOMEM;
    for (uint32_t i = p->node_cap; i < cap; i++)
        nodes[i] = NULL;
    p->nodes = nodes;
    p->node_cap = cap;
    return 0;
}

uint32_t pool_node_new(struct pool *p, const char *id, struct mu_err *err)
{
    uint32_t slot = 0;
    while (slot < p->node_cap && p->nodes[slot] != NULL)
        slot++;
    if (p->node_count >= MU_POOL_NODES_MAX) {
        (void)mu_err_set(err, -ENOSPC, "%d nodes are on offer already", MU_POOL_NODES_MAX);
        return POOL_NONE;
    }
    struct pool_node *n = NULL;
    if (slot < p->node_cap || grow_nodes(p) == 0)
        n = mu_zalloc(p->mem, sizeof *n);
    if (n == NULL) {
        (void)mu_err_set(err, -ENOMEM, "the server has no memory for another node");
        return POOL_NONE;
    }
    (void)mu_strcopy(n->id, sizeof n->id, id); /* It fits: the protocol's own bound. */
    p->nodes[slot] = n;
    p->node_count++;
    return slot;
}

static void node_free(struct pool *p, uint32_t slot)
{
    struct pool_node *n = p->nodes[slot];
    for (uint32_t i = 0; i < p->job_cap; i++)
        for (uint32_t k = 0; p->jobs[i] != NULL && k < p->jobs[i]->seat_count; k++)
            if (p->jobs[i]->seats[k].node == slot)
                p->jobs[i]->seats[k].node = POOL_NONE;
    for (uint32_t i = 0; i < p->job_cap; i++)
        for (uint32_t k = 0; p->jobs[i] != NULL && k < MU_POOL_REFUSALS_MAX; k++)
            if (p->jobs[i]->avoid[k] == slot)
                p->jobs[i]->avoid[k] = POOL_NONE;
    mu_mem_free(p->mem, n->gpu_used);
    mu_mem_free(p->mem, n);
    p->nodes[slot] = NULL;
    p->node_count--;
}

static struct pool_seat *seat_on(const struct pool_job *j, uint32_t node)
{
    for (uint32_t i = 0; i < j->seat_count; i++)
        if (j->seats[i].node == node && j->seats[i].state != POOL_SEAT_VACANT)
            return &j->seats[i];
    return NULL;
}

/* What it offers is all free but for what jobs hold there. */
static int set_capacity(struct pool *p, uint32_t slot, const struct ctl_offer *m)
{
    struct pool_node *n = p->nodes[slot];
    if (n->known && n->slots == m->slots && n->gpus == m->gpus)
        return 0;
    uint8_t *used = mu_zalloc(p->mem, m->gpus > 0 ? (size_t)m->gpus : 1);
    if (used == NULL)
        return -ENOMEM;
    for (uint32_t i = 0; i < p->job_cap; i++) {
        struct pool_job *j = p->jobs[i];
        for (uint32_t k = 0; j != NULL && k < j->seat_count; k++)
            if (j->seats[k].held && j->seats[k].node == slot)
                pool_seat_release(p, j, &j->seats[k]);
    }
    mu_mem_free(p->mem, n->gpu_used);
    n->gpu_used = used;
    n->known = true;
    n->slots = (uint32_t)m->slots;
    n->gpus = (uint32_t)m->gpus;
    n->slots_free = n->slots;
    n->gpus_free = n->gpus;
    for (uint32_t i = 0; i < p->job_cap; i++) {
        struct pool_job *j = p->jobs[i];
        struct pool_seat *s = j != NULL ? seat_on(j, slot) : NULL;
        if (s == NULL || s->state == POOL_SEAT_ENDED)
            continue;
        bool fits = n->slots_free >= j->nproc;
        for (uint32_t g = 0; g < s->gpu_count; g++)
            fits = fits && (uint32_t)s->gpus[g] < n->gpus && !n->gpu_used[s->gpus[g]];
        s->adopted = s->adopted || !fits; /* It offers less than the job holds: until then nobody
                                             else gets anything there. */
        pool_seat_hold(p, j, s);
    }
    return 0;
}

/* A service that was started anew on a host is another node. */
static void succeed(struct pool *p, uint32_t slot)
{
    struct pool_node *n = p->nodes[slot];
    for (uint32_t i = 0; i < p->node_cap; i++) {
        struct pool_node *old = p->nodes[i];
        if (i == slot || old == NULL || old->connected || strcmp(old->host, n->host) != 0)
            continue;
        if (old->seats == 0)
            node_free(p, i);
    }
}

static int
on_offer(struct pool *p, const struct pool_event *ev, struct pool_out *out, struct mu_err *err)
{
    const struct ctl_offer *m = &ev->msg->u.offer;
    uint32_t slot = pool_node_find(p, m->node);
    bool fresh = slot == POOL_NONE;
    bool first = fresh || !p->nodes[slot]->known;
    if (fresh)
        slot = pool_node_new(p, m->node, err);
    if (slot == POOL_NONE)
        return err != NULL && err->code != 0 ? err->code : -ENOMEM;
    struct pool_node *n = p->nodes[slot];
    memcpy(n->host, m->host, sizeof n->host);
    if (set_capacity(p, slot, m) < 0) {
        if (fresh)
            node_free(p, slot);
        return mu_err_set(err, -ENOMEM, "the server has no memory for another node");
    }
    memcpy(n->version, m->version, sizeof n->version);
    memcpy(n->user, m->user, sizeof n->user);
    (void)snprintf(n->addr, sizeof n->addr, "%s", ev->addr != NULL ? ev->addr : "");
    n->cpus = (uint32_t)m->cpus;
    n->connected = true;
    n->lost = false;
    n->drop = false;
    n->draining = n->draining || (first && pool_host_is_drained(p, n->host));
    n->reported = false;
    n->strays = 0;
    n->heard_ns = p->now_ns;
    if (n->since_unix_ms == 0)
        n->since_unix_ms = p->unix_ms;
    for (uint32_t i = 0; i < p->job_cap; i++) {
        struct pool_seat *s = p->jobs[i] != NULL ? seat_on(p->jobs[i], slot) : NULL;
        if (s != NULL)
            s->seen = false;
    }
    if (fresh)
        succeed(p, slot);
    p->moved = true;
    out->node = slot;
    return 0;
}

static void on_away(struct pool *p, uint32_t slot)
{
    struct pool_node *n = p->nodes[slot];
    n->gone_ns = p->now_ns;
    n->connected = false;
    n->reported = false;
    n->strays = 0; /* It will say what it has. */
    p->moved = true;
}

/* Its jobs go on elsewhere, where there is room; it may still come back to them. */
static void lose(struct pool *p, uint32_t slot)
{
    for (uint32_t i = 0; i < p->job_cap; i++) {
        struct pool_job *j = p->jobs[i];
        struct pool_seat *s = j != NULL ? seat_on(j, slot) : NULL;
        if (s == NULL || !pool_seat_is_live(s))
            continue;
        s->state = POOL_SEAT_LOST;
        s->assign_due = false;
        s->unassign_due = false;
        if (!pool_job_goes_on(j))
            pool_seat_release(p, j, s);
        p->vacant_due = true;
        p->moved = true;
        j->keep_due = true;
        pool_job_dirty(p, j);
        pool_job_check(p, j);
    }
}

/* --- what nodes say --- */

static void seat_ended(struct pool *p, struct pool_job *j, struct pool_seat *s, uint32_t status)
{
    s->status = status;
    s->ended_ns = p->now_ns;
    s->state = POOL_SEAT_ENDED;
    s->assign_due = false;
    s->unassign_due = false;
    pool_seat_release(p, j, s);
    j->keep_due = true;
    pool_job_dirty(p, j);
    pool_job_check(p, j);
}

static void seat_up(struct pool *p, struct pool_job *j, struct pool_seat *s, bool runs)
{
    if (s->state != POOL_SEAT_UP) {
        s->state = POOL_SEAT_UP;
        j->keep_due = true;
        pool_job_dirty(p, j);
    }
    s->seen = true;
    if (!s->held) { /* It was taken for lost when the job was told to stop, or ended. */
        s->adopted = true;
        pool_seat_hold(p, j, s);
    }
    if (!pool_job_goes_on(j))
        s->unassign_due = true;
    pool_job_dirty(p, j);
    if (runs && pool_job_goes_on(j) && j->verdict == POOL_UNDECIDED)
        j->cause[0] = '\0'; /* Whoever refused it is of no interest any more. */
    if (!runs || j->state != POOL_STARTING)
        return;
    for (uint32_t i = 0; i < j->seat_count; i++)
        if (j->seats[i].state != POOL_SEAT_UP)
            return;
    pool_job_move(p, j, POOL_RUNNING);
}

static void refuse(struct pool *p, struct pool_job *j, struct pool_seat *s, const char *text)
{
    const struct pool_node *n = p->nodes[s->node];
    char shown[MU_MESSAGE_BYTES];
    (void)snprintf(shown, sizeof shown, "%.200s refused it: %.280s", n->host,
                   text[0] != '\0' ? text : "it did not say why");
    bool past = !pool_job_has_start(j); /* Of one that is behind it. */
    if (!past && j->refusals < MU_POOL_REFUSALS_MAX)
        j->avoid[j->refusals] = s->node;
    j->refusals += !past;
    pool_seat_release(p, j, s);
    s->state = POOL_SEAT_VACANT;
    s->assign_due = false;
    s->unassign_due = false;
    p->vacant_due = true;
    j->keep_due = true;
    pool_job_dirty(p, j);
    if (past)
        return;
    (void)snprintf(j->cause, sizeof j->cause, "%s", shown);
    if (!j->stop && (j->refusals > MU_POOL_REFUSALS_MAX ||
                     (!j->met && j->spec != NULL && !pool_job_has_others(p, j)))) {
        if (j->refusals > MU_POOL_REFUSALS_MAX)
            j->refusals = MU_POOL_REFUSALS_MAX;
        pool_job_fail(p, j, shown);
        return;
    }
    pool_job_check(p, j);
}

static void on_placed(struct pool *p, const struct pool_event *ev)
{
    const struct ctl_placed *m = &ev->msg->u.placed;
    struct pool_node *n = p->nodes[ev->node];
    struct pool_job *j = pool_job_at(p, pool_find_job(p, m->job));
    struct pool_seat *s = j != NULL && j->attempt == m->attempt ? seat_on(j, ev->node) : NULL;
    if (s == NULL) { /* One that was told to end. */
        if (m->state >= 2 && n->strays > 0)
            n->strays--;
        return;
    }
    if (s->state == POOL_SEAT_ENDED)
        return;
    if (m->state == 3) {
        refuse(p, j, s, m->text);
    } else if (m->state == 2) {
        if (m->text[0] != '\0' && m->status != 0 && j->cause[0] == '\0' && pool_job_has_start(j))
            (void)snprintf(j->cause, sizeof j->cause, "%.200s: %.280s", s->host, m->text);
        seat_ended(p, j, s, (uint32_t)m->status);
    } else {
        seat_up(p, j, s, m->state == 1);
    }
}

/* It has said all: what it does not have must be started there, or has ended. */
static void reported(struct pool *p, uint32_t slot)
{
    p->nodes[slot]->reported = true;
    for (uint32_t i = 0; i < p->job_cap; i++) {
        struct pool_job *j = p->jobs[i];
        struct pool_seat *s = j != NULL ? seat_on(j, slot) : NULL;
        if (s == NULL || s->seen || s->state == POOL_SEAT_ENDED)
            continue;
        if (!pool_job_goes_on(j) || j->verdict != POOL_UNDECIDED || j->spec == NULL) {
            seat_ended(p, j, s, j->stop ? 128 + (uint32_t)j->signo : 0);
            continue;
        }
        s->state = s->held ? POOL_SEAT_ASSIGNED : POOL_SEAT_VACANT;
        s->assign_due = s->held;
        p->vacant_due = p->vacant_due || !s->held;
        pool_job_dirty(p, j);
    }
    p->moved = true;
}

static void on_has(struct pool *p, const struct pool_event *ev, struct pool_out *out)
{
    const struct ctl_has *m = &ev->msg->u.has;
    if (m->job[0] == '\0') {
        reported(p, ev->node);
        return;
    }
    struct pool_job *j = pool_job_at(p, pool_find_job(p, m->job));
    struct pool_seat *s = j != NULL && j->attempt == m->attempt ? seat_on(j, ev->node) : NULL;
    if (s != NULL) {
        s->seen = true;
        if (m->state == 1 && s->state != POOL_SEAT_ENDED)
            seat_ended(p, j, s, (uint32_t)m->status);
        else if (m->state == 0 && s->state != POOL_SEAT_ENDED)
            seat_up(p, j, s, true);
        else if (m->state == 0)
            out->stray = true;
    } else if (m->state == 0) {
        bool nobodys =
            j == NULL || (j->spec == NULL && !pool_is_over(j) && j->attempt == m->attempt);
        out->stray = p->config.keeps || !nobodys || pool_job_adopt(p, ev->node, m) == NULL;
    }
    p->nodes[ev->node]->strays += out->stray;
    p->moved = true;
}

static void on_beat(struct pool *p, uint32_t slot)
{
    p->nodes[slot]->heard_ns = p->now_ns;
}

/* --- what the rendezvous says --- */

static void on_round(struct pool *p, struct pool_job *j, const struct pool_event *ev)
{
    if (j->attempt == 0 || !pool_job_has_start(j) || ev->begun_unix_ms < j->started_unix_ms)
        return;
    if (!j->met)
        j->keep_due = true;
    j->met = true;
    pool_job_dirty(p, j);
    if (j->state == POOL_STARTING)
        pool_job_move(p, j, POOL_RUNNING);
}

static void on_verdict(struct pool *p, struct pool_job *j, const struct pool_event *ev)
{
    if (!pool_job_has_start(j) || j->verdict != POOL_UNDECIDED ||
        ev->begun_unix_ms < j->started_unix_ms)
        return; /* Of an earlier start. */
    j->verdict = ev->success ? POOL_SUCCEEDED : ev->nodes_gone ? POOL_NODES_GONE : POOL_FAILED_SO;
    j->verdict_ns = p->now_ns;
    j->exit_status = ev->success ? 0 : ev->exit_status;
    (void)snprintf(j->cause, sizeof j->cause, "%s", ev->text != NULL ? ev->text : "");
    j->keep_due = true;
    pool_job_dirty(p, j);
    pool_job_check(p, j);
}

/* --- time --- */

static void want(struct pool *p, int64_t at_ns)
{
    p->deadline_ns = at_ns < p->deadline_ns ? at_ns : p->deadline_ns;
}

/* It will not come back any more. */
static void give_up(struct pool *p, uint32_t slot)
{
    for (uint32_t i = 0; i < p->job_cap; i++) {
        struct pool_job *j = p->jobs[i];
        struct pool_seat *s = j != NULL ? seat_on(j, slot) : NULL;
        if (s == NULL)
            continue;
        pool_seat_release(p, j, s);
        if (s->state == POOL_SEAT_LOST && !pool_is_over(j))
            s->state = POOL_SEAT_VACANT;
    }
    node_free(p, slot);
    p->vacant_due = true;
    p->moved = true;
}

static void look_at_node(struct pool *p, uint32_t slot)
{
    struct pool_node *n = p->nodes[slot];
    if (n->connected && p->now_ns - n->heard_ns >= p->config.lease_ns) {
        on_away(p, slot);
        n->gone_ns = n->heard_ns;
        n->drop = true; /* When it comes again it says what it has. */
        p->drop_due = true;
    }
    if (n->connected) {
        want(p, n->heard_ns + p->config.lease_ns);
        return;
    }
    int64_t wait_ns = p->config.lease_ns;
    if (!n->known && wait_ns < LOADED_WAIT_NS)
        wait_ns = LOADED_WAIT_NS;
    if (p->now_ns - n->gone_ns < wait_ns) {
        want(p, n->gone_ns + wait_ns);
        return;
    }
    if (!n->lost)
        lose(p, slot);
    n->lost = true;
    if (p->now_ns - n->gone_ns >= MU_POOL_AWAY_NS)
        give_up(p, slot);
    else
        want(p, n->gone_ns + MU_POOL_AWAY_NS);
}

static void settle(struct pool *p)
{
    p->deadline_ns = POOL_NEVER;
    for (uint32_t i = 0; i < p->node_cap; i++)
        if (p->nodes[i] != NULL)
            look_at_node(p, i);
    for (uint32_t i = 0; i < p->job_cap; i++)
        if (p->jobs[i] != NULL)
            pool_job_check(p, p->jobs[i]);
    pool_schedule(p);
}

void pool_hear_anew(struct pool *p, int64_t now_ns)
{
    for (uint32_t i = 0; i < p->node_cap; i++)
        if (p->nodes[i] != NULL && p->nodes[i]->connected)
            p->nodes[i]->heard_ns = now_ns;
}

/* --- a step --- */

static int handle(struct pool *p,
                  const struct pool_event *ev,
                  struct pool_job *j,
                  struct pool_out *out,
                  struct mu_err *err)
{
    int r = 0;
    switch (ev->type) {
    case POOL_EV_OFFER:
        return on_offer(p, ev, out, err);
    case POOL_EV_AWAY:
        on_away(p, ev->node);
        break;
    case POOL_EV_BEAT:
        on_beat(p, ev->node);
        break;
    case POOL_EV_HAS:
        on_has(p, ev, out);
        break;
    case POOL_EV_PLACED:
        on_placed(p, ev);
        break;
    case POOL_EV_SUBMIT:
        r = pool_job_submit(p, ev->submission, &j, err);
        out->job = r == 0 ? j->slot : POOL_NONE;
        break;
    case POOL_EV_KEPT:
        j->unkept = false;
        break;
    case POOL_EV_UNKEPT:
        j->unkept = false;
        p->queue_changed = true;
        if (j->state == POOL_QUEUED) /* Else somebody has stopped it meanwhile. */
            pool_job_free(p, j);
        break;
    case POOL_EV_STOP:
        r = pool_job_stop(p, j, ev->signo, ev->grace_ms, err);
        break;
    case POOL_EV_RESUME:
        r = pool_job_resume(p, j, err);
        break;
    case POOL_EV_DRAIN:
        r = pool_drain_node(p, p->nodes[ev->node], ev->by_itself, err);
        break;
    case POOL_EV_UNDRAIN:
        r = ev->node != POOL_NONE ? pool_undrain_node(p, p->nodes[ev->node], err)
                                  : pool_undrain_host(p, ev->text, err);
        break;
    case POOL_EV_ROUND:
        on_round(p, j, ev);
        break;
    case POOL_EV_VERDICT:
        on_verdict(p, j, ev);
        break;
    case POOL_EV_DEADLINE:
    case POOL_EV_COUNT:
        break;
    }
    return r;
}

static void number_queue(struct pool *p)
{
    struct pool_job *j = NULL;
    uint32_t ahead = 0;
    DL_FOREACH(p->queue, j)
    j->ahead = ahead++;
    p->queue_changed = false;
}

int pool_step(struct pool *p,
              int64_t now_ns,
              const struct pool_event *ev,
              struct pool_out *out,
              struct mu_err *err)
{
    *out = (struct pool_out){.node = ev->node, .job = ev->job};
    struct pool_job *j = pool_job_at(p, ev->job);
    bool of_row = ev->type == POOL_EV_KEPT || ev->type == POOL_EV_UNKEPT;
    bool of_job = of_row || ev->type == POOL_EV_STOP || ev->type == POOL_EV_RESUME ||
                  ev->type == POOL_EV_ROUND || ev->type == POOL_EV_VERDICT;
    MU_ASSERT(!of_job || j != NULL);
    MU_ASSERT(!of_row || j->unkept);
    p->now_ns = now_ns;
    p->unix_ms = ev->unix_ms;
    p->moved = false;
    p->drains_changed = false;
    int r = handle(p, ev, j, out, err);
    if (r < 0)
        return r;
    if (ev->type != POOL_EV_BEAT ||
        p->moved) /* A lease that now ends later is looked at in time. */
        settle(p);
    if (p->queue_changed)
        number_queue(p);
    out->moved = p->moved;
    out->drains = p->drains_changed;
    return 0;
}

static bool next_of_node(struct pool *p, struct pool_action *ret)
{
    for (uint32_t i = 0; p->drop_due && i < p->node_cap; i++) {
        struct pool_node *n = p->nodes[i];
        if (n == NULL || (!n->drop && !n->undrain))
            continue;
        *ret = (struct pool_action){
            .type = n->drop ? POOL_ACT_DROP : POOL_ACT_UNDRAIN, .job = POOL_NONE, .node = i};
        n->drop = false;
        n->undrain = false;
        return true;
    }
    p->drop_due = false;
    return false;
}

bool pool_next(struct pool *p, struct pool_action *ret)
{
    if (next_of_node(p, ret))
        return true;
    for (; p->dirty != NULL; p->dirty = p->dirty->next_dirty) {
        struct pool_job *j = p->dirty;
        for (uint32_t i = 0; i < j->seat_count; i++) {
            struct pool_seat *s = &j->seats[i];
            bool here = s->node != POOL_NONE && p->nodes[s->node]->connected;
            if (!s->assign_due && !s->unassign_due)
                continue;
            *ret = (struct pool_action){.type = s->assign_due ? POOL_ACT_ASSIGN : POOL_ACT_UNASSIGN,
                                        .job = j->slot,
                                        .seat = i,
                                        .node = s->node};
            s->assign_due = false;
            s->unassign_due = false;
            if (here) /* Else it is told when it is back: it says what it has. */
                return true;
        }
        if (j->keep_due) {
            j->keep_due = false;
            *ret = (struct pool_action){.type = POOL_ACT_KEEP, .job = j->slot, .node = POOL_NONE};
            return true;
        }
        j->dirty = false;
    }
    return false;
}

void pool_assign_message(const struct pool *p, const struct pool_action *a, struct ctl_msg *ret)
{
    const struct pool_job *j = p->jobs[a->job];
    const struct pool_seat *s = &j->seats[a->seat];
    ctl_init(ret, CTL_ASSIGN);
    memcpy(ret->u.assign.job, j->id, sizeof ret->u.assign.job);
    ret->u.assign.attempt = j->attempt;
    ret->u.assign.spec = mu_str_of(j->spec, j->spec_bytes);
    ret->u.assign.node_rank = a->seat;
    ret->u.assign.node_count = j->seat_count;
    ret->u.assign.nproc = j->nproc;
    ret->u.assign.gpus = (struct ctl_ints){s->gpus, s->gpu_count};
    ret->u.assign.submitted_ms = j->submitted_unix_ms;
}

void pool_unassign_message(const struct pool *p, const struct pool_action *a, struct ctl_msg *ret)
{
    const struct pool_job *j = p->jobs[a->job];
    ctl_init(ret, CTL_UNASSIGN);
    memcpy(ret->u.unassign.job, j->id, sizeof ret->u.unassign.job);
    ret->u.unassign.attempt = j->attempt;
    if (!j->stop)
        return; /* As the message has it by default. */
    ret->u.unassign.signo = j->signo;
    ret->u.unassign.grace_ms = j->grace_ms;
}
