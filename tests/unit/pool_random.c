/* A cluster in one process, from seeds: nodes that come, go, cut their connections, refuse and take
 * their time; people who submit, stop and resume; a server that is killed and started anew. After
 * every step: no GPU or slot is in use twice on a node, jobs pass no earlier one that they could
 * delay; and when all calms down every job has ended. */
#include <stdio.h>
#include <string.h>

#include "rendezvous/pool/pool.h"
#include "tests/unit/unit.h"

#define SEC INT64_C(1000000000)
#define NODES 6
#define ON_NODE 16
#define MAIL 512
#define SEEDS 300
#define STEPS 400

/* A job's agent on a node, as it truly is there. */
struct run {
    bool used;
    bool ending;
    char job[MU_RUN_ID_BYTES];
    uint32_t attempt;
    uint32_t nproc;
    uint32_t gpus; /* A bit each. */
};

struct node {
    char id[40];
    uint32_t slot; /* In the pool; POOL_NONE: not connected. */
    uint32_t births;
    uint32_t slots;
    uint32_t gpus;
    struct run runs[ON_NODE];
};

struct world {
    uint64_t seed;
    struct pool pool;
    struct pool_out out;
    int64_t now;
    struct node nodes[NODES];
    struct ctl_msg mail[MAIL]; /* From nodes, on its way. */
    int mail_from[MAIL];
    int mail_count;
    uint32_t submitted;
    uint32_t nproc_of[4096];
    bool calm;
};

static uint32_t rnd(struct world *w, uint32_t below)
{
    w->seed ^= w->seed << 13;
    w->seed ^= w->seed >> 7;
    w->seed ^= w->seed << 17;
    return (uint32_t)((w->seed >> 11) % below);
}

static int node_at(const struct world *w, uint32_t slot)
{
    for (int i = 0; i < NODES; i++)
        if (w->nodes[i].slot == slot)
            return i;
    return -1;
}

static void
post(struct world *w, int from, const char *job, uint32_t attempt, int state, int status)
{
    assert_true(w->mail_count < MAIL);
    struct ctl_msg *m = &w->mail[w->mail_count];
    ctl_init(m, CTL_PLACED);
    (void)mu_strcopy(m->u.placed.job, sizeof m->u.placed.job, job);
    m->u.placed.attempt = attempt;
    m->u.placed.state = state;
    m->u.placed.status = status;
    w->mail_from[w->mail_count++] = from;
}

static struct run *find_run(struct node *n, const char *job)
{
    for (int i = 0; i < ON_NODE; i++)
        if (n->runs[i].used && strcmp(n->runs[i].job, job) == 0)
            return &n->runs[i];
    return NULL;
}

/* What the promise is about: what truly runs there. */
static void assert_room(const struct world *w, const struct node *n)
{
    uint32_t slots = 0;
    uint32_t gpus = 0;
    for (int i = 0; i < ON_NODE; i++) {
        if (!n->runs[i].used)
            continue;
        if ((gpus & n->runs[i].gpus) != 0)
            fail_msg("a GPU of %s is used twice", n->id);
        gpus |= n->runs[i].gpus;
        slots += n->runs[i].nproc;
    }
    if (slots > n->slots)
        fail_msg("%u of %u slots of %s are used", slots, n->slots, n->id);
    (void)w;
}

static void on_assign(struct world *w, int at, const struct ctl_assign *m)
{
    struct node *n = &w->nodes[at];
    struct run *r = find_run(n, m->job);
    if (r != NULL && r->attempt == m->attempt)
        return;
    if (!w->calm && rnd(w, 12) == 0) {
        post(w, at, m->job, (uint32_t)m->attempt, 3, 0);
        return;
    }
    assert_null(r); /* An older start has ended here before. */
    for (r = n->runs; r->used; r++)
        assert_true(r < n->runs + ON_NODE - 1);
    *r = (struct run){.used = true, .attempt = (uint32_t)m->attempt, .nproc = (uint32_t)m->nproc};
    (void)mu_strcopy(r->job, sizeof r->job, m->job);
    for (uint32_t i = 0; i < m->gpus.n; i++)
        r->gpus |= 1U << m->gpus.v[i];
    assert_room(w, n);
    post(w, at, m->job, r->attempt, (int)rnd(w, 2), 0);
}

static void carry_out(struct world *w)
{
    struct pool_action a;
    struct ctl_msg m;
    while (pool_next(&w->pool, &a)) {
        int at = a.type == POOL_ACT_KEEP ? -1 : node_at(w, a.node);
        if (at < 0)
            continue;
        struct node *n = &w->nodes[at];
        if (a.type == POOL_ACT_ASSIGN) {
            pool_assign_message(&w->pool, &a, &m);
            on_assign(w, at, &m.u.assign);
        } else if (a.type == POOL_ACT_UNASSIGN) {
            pool_unassign_message(&w->pool, &a, &m);
            struct run *r = find_run(n, m.u.unassign.job);
            if (r != NULL)
                r->ending = true;
            else
                post(w, at, m.u.unassign.job, (uint32_t)m.u.unassign.attempt, 2, 143);
        } else if (a.type == POOL_ACT_DROP) {
            n->slot = POOL_NONE;
        }
    }
}

/* Each job in the queue but the first waits for a reason that the first gives. */
static void assert_order(const struct world *w)
{
    const struct pool_job *last = NULL;
    for (const struct pool_job *j = w->pool.queue; j != NULL; j = j->next) {
        assert_true(last == NULL || last->order < j->order);
        assert_int_equal(j->state, POOL_QUEUED);
        last = j;
    }
}

static int give(struct world *w, struct pool_event ev)
{
    struct mu_err err = {0};
    ev.unix_ms = w->now / 1000000;
    int r = pool_step(&w->pool, w->now, &ev, &w->out, &err);
    carry_out(w);
    assert_order(w);
    return r;
}

static struct pool_event event(enum pool_event_type type, uint32_t node, uint32_t job)
{
    return (struct pool_event){.type = type, .node = node, .job = job};
}

static void drop_mail(struct world *w, int from)
{
    int kept = 0;
    for (int i = 0; i < w->mail_count; i++) {
        if (w->mail_from[i] == from)
            continue;
        w->mail[kept] = w->mail[i];
        w->mail_from[kept++] = w->mail_from[i];
    }
    w->mail_count = kept;
}

/* --- what happens --- */

static void deliver(struct world *w)
{
    if (w->mail_count == 0)
        return;
    int i = 0; /* In order, as connections are; of all nodes together, which is harder. */
    struct ctl_msg m = w->mail[i];
    struct pool_event ev = event(POOL_EV_PLACED, w->nodes[w->mail_from[i]].slot, POOL_NONE);
    w->mail_count--;
    memmove(w->mail, w->mail + 1, (size_t)w->mail_count * sizeof w->mail[0]);
    memmove(w->mail_from, w->mail_from + 1, (size_t)w->mail_count * sizeof w->mail_from[0]);
    ev.msg = &m;
    (void)give(w, ev);
}

static void connect(struct world *w, int at)
{
    struct node *n = &w->nodes[at];
    struct ctl_msg m;
    if (n->slot != POOL_NONE)
        return;
    ctl_init(&m, CTL_OFFER);
    (void)mu_strcopy(m.u.offer.node, sizeof m.u.offer.node, n->id);
    (void)snprintf(m.u.offer.host, sizeof m.u.offer.host, "n%d", at);
    m.u.offer.slots = n->slots;
    m.u.offer.gpus = n->gpus;
    struct pool_event ev = event(POOL_EV_OFFER, POOL_NONE, POOL_NONE);
    ev.msg = &m;
    assert_int_equal(give(w, ev), 0);
    n->slot = w->out.node;
    for (int i = 0; i <= ON_NODE; i++) {
        if (i < ON_NODE && !n->runs[i].used)
            continue;
        ctl_init(&m, CTL_HAS);
        if (i < ON_NODE) {
            (void)mu_strcopy(m.u.has.job, sizeof m.u.has.job, n->runs[i].job);
            m.u.has.attempt = n->runs[i].attempt;
        }
        ev = event(POOL_EV_HAS, n->slot, POOL_NONE);
        ev.msg = &m;
        (void)give(w, ev);
        if (w->out.stray)
            n->runs[i].ending = true;
    }
}

static void away(struct world *w, int at, bool dies)
{
    struct node *n = &w->nodes[at];
    drop_mail(w, at);
    if (n->slot != POOL_NONE)
        (void)give(w, event(POOL_EV_AWAY, n->slot, POOL_NONE));
    n->slot = POOL_NONE;
    if (!dies)
        return;
    memset(n->runs, 0, sizeof n->runs);
    (void)snprintf(n->id, sizeof n->id, "id-%d-%u", at, ++n->births);
}

static void submit(struct world *w)
{
    char id[32];
    (void)snprintf(id, sizeof id, "j%u", w->submitted++);
    uint32_t min = 1 + rnd(w, 3);
    struct pool_submission s = {.id = id,
                                .name = id,
                                .spec = mu_str_of("{}", 2),
                                .nodes_min = min,
                                .nodes_max = min + rnd(w, 3),
                                .nproc = 1 + rnd(w, 3),
                                .gpus = (int32_t)rnd(w, 4) - 1,
                                .no_requeue = rnd(w, 4) == 0,
                                .unkept = rnd(w, 2) == 0};
    struct pool_event ev = event(POOL_EV_SUBMIT, POOL_NONE, POOL_NONE);
    ev.submission = &s;
    (void)give(w, ev);
}

static const struct pool_job *some_job(struct world *w)
{
    for (int i = 0; i < 8 && w->pool.job_cap > 0; i++) {
        const struct pool_job *j = w->pool.jobs[rnd(w, w->pool.job_cap)];
        if (j != NULL)
            return j;
    }
    return NULL;
}

/* The rendezvous and the agents end together. */
static void work_ends(struct world *w)
{
    const struct pool_job *j = some_job(w);
    bool live = j != NULL && (j->state == POOL_RUNNING || (w->calm && j->state == POOL_STARTING));
    if (!live)
        return;
    struct pool_event ev = event(POOL_EV_VERDICT, POOL_NONE, j->slot);
    ev.success = rnd(w, 2) == 0;
    ev.nodes_gone = !ev.success && rnd(w, 2) == 0;
    ev.exit_status = 3;
    ev.begun_unix_ms = w->now / 1000000;
    for (int i = 0; i < NODES; i++) {
        struct run *r = find_run(&w->nodes[i], j->id);
        if (r != NULL)
            r->ending = true;
    }
    if (rnd(w, 4) > 0)
        (void)give(w, ev);
}

static void agents_end(struct world *w)
{
    for (int i = 0; i < NODES; i++)
        for (int k = 0; k < ON_NODE; k++) {
            struct run *r = &w->nodes[i].runs[k];
            if (!r->used || !r->ending || rnd(w, 3) == 0)
                continue;
            if (w->nodes[i].slot != POOL_NONE)
                post(w, i, r->job, r->attempt, 2, (int)rnd(w, 2));
            r->used = false;
        }
}

static void restart(struct world *w)
{
    struct pool next;
    pool_init(&next, mu_mem_default(), &w->pool.config);
    for (uint32_t i = 0; i < w->pool.job_cap; i++) {
        struct pool_row row;
        struct mu_buf texts;
        struct mu_err err = {0};
        if (w->pool.jobs[i] == NULL)
            continue;
        mu_buf_init(&texts, mu_mem_default());
        assert_int_equal(mu_buf_reserve(&texts, 65536), 0);
        assert_int_equal(pool_save(&w->pool, w->pool.jobs[i], &row, &texts), 0);
        if (pool_load(&next, w->now, &row, &err) < 0)
            fail_msg("%s", err.msg);
        mu_buf_fini(&texts);
    }
    for (uint32_t i = 0; i < w->pool.drain_count; i++) {
        struct pool_drain_row row;
        pool_save_drain(&w->pool.drains[i], &row);
        assert_int_equal(pool_load_drain(&next, &row, NULL), 0);
    }
    assert_int_equal(next.live_count, w->pool.live_count);
    assert_int_equal(next.ended_count, w->pool.ended_count);
    pool_fini(&w->pool);
    w->pool = next;
    w->mail_count = 0;
    for (int i = 0; i < NODES; i++)
        w->nodes[i].slot = POOL_NONE;
}

static void pass(struct world *w, int64_t ns)
{
    w->now += ns;
    for (int i = 0; i < NODES; i++)
        if (w->nodes[i].slot != POOL_NONE)
            (void)give(w, event(POOL_EV_BEAT, w->nodes[i].slot, POOL_NONE));
    if (w->pool.deadline_ns <= w->now)
        (void)give(w, event(POOL_EV_DEADLINE, POOL_NONE, POOL_NONE));
}

static void ask(struct world *w)
{
    const struct pool_job *j = some_job(w);
    if (j == NULL)
        return;
    struct pool_event ev =
        event(rnd(w, 2) == 0 ? POOL_EV_STOP : POOL_EV_RESUME, POOL_NONE, j->slot);
    ev.signo = 15;
    (void)give(w, ev);
}

static void drain(struct world *w, uint32_t node)
{
    struct pool_event ev = event(rnd(w, 2) == 0 ? POOL_EV_DRAIN : POOL_EV_UNDRAIN, node, POOL_NONE);
    ev.by_itself = ev.type == POOL_EV_DRAIN && rnd(w, 3) == 0;
    (void)give(w, ev);
}

/* The disk has written what is due, or could not. */
static void written(struct world *w, bool kept)
{
    for (uint32_t i = 0; i < w->pool.job_cap; i++)
        if (w->pool.jobs[i] != NULL && w->pool.jobs[i]->unkept)
            (void)give(w, event(kept ? POOL_EV_KEPT : POOL_EV_UNKEPT, POOL_NONE, i));
}

/* A job's nodes die together, as where the power fails. */
static void nodes_die(struct world *w)
{
    const struct pool_job *j = some_job(w);
    if (j == NULL || j->state != POOL_RUNNING)
        return;
    struct pool_event ev = event(POOL_EV_VERDICT, POOL_NONE, j->slot);
    ev.nodes_gone = true;
    ev.exit_status = 1;
    ev.begun_unix_ms = w->now / 1000000;
    for (int i = 0; i < NODES; i++)
        if (find_run(&w->nodes[i], j->id) != NULL)
            away(w, i, true);
    (void)give(w, ev);
}

static void one_step(struct world *w)
{
    int at = (int)rnd(w, NODES);
    switch (rnd(w, 16)) {
    case 0:
        submit(w);
        break;
    case 1:
        away(w, at, rnd(w, 3) == 0);
        break;
    case 2:
    case 3:
        connect(w, at);
        break;
    case 4:
        ask(w);
        break;
    case 5:
        work_ends(w);
        break;
    case 6:
    case 7:
        agents_end(w);
        break;
    case 8:
        if (rnd(w, 8) == 0)
            restart(w);
        else if (rnd(w, 2) == 0)
            nodes_die(w);
        else
            written(w, rnd(w, 4) > 0);
        break;
    case 9:
        if (w->nodes[at].slot != POOL_NONE)
            drain(w, w->nodes[at].slot);
        break;
    case 10:
        pass(w, (int64_t)rnd(w, 4000) * 1000000);
        break;
    default:
        deliver(w);
        break;
    }
}

static void assert_says(const struct world *w, const struct pool_job *j)
{
    struct mu_buf b;
    mu_buf_init(&b, mu_mem_default());
    pool_sentence(&w->pool, j, &b);
    assert_true(b.n >= sizeof "runs on n1" - 1);
    mu_buf_fini(&b);
}

/* It asks for more than all nodes have, and says so: a person gives it up. */
static void stop_what_cannot_be(struct world *w)
{
    const struct pool_job *j = w->pool.queue;
    struct mu_buf b;
    if (j == NULL)
        return;
    mu_buf_init(&b, mu_mem_default());
    pool_sentence(&w->pool, j, &b);
    struct pool_event ev = event(POOL_EV_STOP, POOL_NONE, j->slot);
    if (strstr(mu_buf_cstr(&b), "could: add nodes") != NULL)
        assert_int_equal(give(w, ev), 0);
    mu_buf_fini(&b);
}

/* All nodes are there and stay, nobody asks for anything, and work ends. */
static void calm_down(struct world *w)
{
    w->calm = true;
    written(w, true);
    for (int round = 0; round < 3000 && w->pool.live_count > 0; round++) {
        for (int i = 0; i < NODES; i++) {
            connect(w, i);
            if (w->pool.nodes[w->nodes[i].slot]->draining)
                (void)give(w, event(POOL_EV_UNDRAIN, w->nodes[i].slot, POOL_NONE));
        }
        stop_what_cannot_be(w);
        work_ends(w);
        agents_end(w);
        while (w->mail_count > 0)
            deliver(w);
        pass(w, SEC);
    }
    for (uint32_t i = 0; i < w->pool.job_cap; i++) {
        const struct pool_job *j = w->pool.jobs[i];
        struct mu_buf b;
        if (j == NULL || pool_is_over(j))
            continue;
        mu_buf_init(&b, mu_mem_default());
        pool_sentence(&w->pool, j, &b);
        fail_msg("%s has not ended: it %s (%s)", j->id, mu_buf_cstr(&b), pool_state_name(j->state));
    }
    for (int i = 0; i < NODES; i++) {
        const struct pool_node *n = w->pool.nodes[w->nodes[i].slot];
        for (int round = 0; round < 20 && n->seats > 0; round++) {
            agents_end(w);
            while (w->mail_count > 0)
                deliver(w);
        }
        assert_int_equal(n->seats, 0);
        assert_int_equal(n->slots_free, n->slots);
        assert_int_equal(n->gpus_free, n->gpus);
    }
}

static void assert_starts(struct world *w, uint32_t *again)
{
    for (uint32_t i = 0; i < w->pool.job_cap; i++) {
        const struct pool_job *j = w->pool.jobs[i];
        if (j == NULL)
            continue;
        assert_true(j->requeues <= POOL_REQUEUES_MAX && (!j->no_requeue || j->requeues == 0));
        *again += j->requeues;
    }
}

static void run(uint64_t seed, uint32_t *again)
{
    static struct world w;
    memset(&w, 0, sizeof w);
    w.seed = seed * 0x9e3779b97f4a7c15U + 1;
    w.now = 1000 * SEC;
    pool_init(&w.pool, mu_mem_default(), &(struct pool_config){.lease_ns = 3 * SEC, .keeps = true});
    for (int i = 0; i < NODES; i++) {
        w.nodes[i] = (struct node){.slot = POOL_NONE,
                                   .slots = 3 + (uint32_t)i % 4,
                                   .gpus = i < 4 ? 2 + (uint32_t)i % 3 : 0};
        (void)snprintf(w.nodes[i].id, sizeof w.nodes[i].id, "id-%d-0", i);
    }
    for (int i = 0; i < STEPS; i++) {
        one_step(&w);
        const struct pool_job *j = some_job(&w);
        if (j != NULL)
            assert_says(&w, j);
    }
    assert_starts(&w, again);
    calm_down(&w);
    pool_fini(&w.pool);
}

static void test_many_seeds(void **state)
{
    (void)state;
    uint32_t again = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++)
        run(seed, &again);
    assert_true(again > SEEDS / 4); /* Else it was not looked at. */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_many_seeds)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
