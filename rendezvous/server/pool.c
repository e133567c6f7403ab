/* Nodes on offer: their connections, the pool's actions carried out, one timer, and what status
 * shows of it all. */
#include "rendezvous/server/pool.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/addr.h"
#include "base/clock.h"
#include "base/date.h"

#define POOL_ENDED_SHOWN 32 /* In status, of those without a round. */

int srv_pool_start(struct srv *s)
{
    struct srv_pool *sp = mu_zalloc(mu_mem_default(), sizeof *sp);
    if (sp == NULL)
        return -ENOMEM;
    s->pool = sp;
    sp->timer_at_ns = MU_NEVER;
    pool_init(&sp->pool, mu_mem_default(),
              &(struct pool_config){.lease_ns = s->config.lease_ns, .keeps = s->config.keep_jobs});
    return 0;
}

static void on_timer(uv_timer_t *timer);

/* Both timers exist only where the pool is used. */
static void make_timers(struct srv *s)
{
    struct srv_pool *sp = s->pool;
    if (sp->timer.data != NULL)
        return;
    (void)uv_timer_init(s->loop, &sp->timer); /* Never fails. */
    (void)uv_timer_init(s->loop, &sp->heartbeat);
    sp->timer.data = s;
    sp->heartbeat.data = s;
    s->handles += 2;
}

void srv_pool_beat(struct srv *s, uint64_t ms)
{
    make_timers(s);
    (void)uv_timer_start(&s->pool->heartbeat, tail_on_heartbeat, ms, ms);
}

static void on_closed(uv_handle_t *h)
{
    srv_handle_closed(h->data);
}

void srv_pool_close(struct srv *s)
{
    if (s->pool == NULL || s->pool->timer.data == NULL)
        return;
    uv_close((uv_handle_t *)&s->pool->timer, on_closed);
    uv_close((uv_handle_t *)&s->pool->heartbeat, on_closed);
}

void srv_pool_free(struct srv *s)
{
    if (s->pool == NULL)
        return;
    pool_fini(&s->pool->pool);
    mu_mem_free(mu_mem_default(), s->pool->links);
    mu_mem_free(mu_mem_default(), s->pool);
    s->pool = NULL;
}

/* --- a step, and what follows --- */

static struct agent *link_of(const struct srv *s, uint32_t node)
{
    return node < s->pool->link_cap ? s->pool->links[node] : NULL;
}

static void log_move(struct srv *s, struct pool_job *j)
{
    struct mu_buf b;
    char shown[MU_MESSAGE_BYTES];
    if (j->logged == j->state || !mu_log_on(MU_INFO))
        return;
    mu_buf_init(&b, mu_mem_default());
    pool_sentence(&s->pool->pool, j, &b);
    mu_log(MU_INFO, "pool.move", "job=%s attempt=%u move=%s->%s text=%s", j->id, j->attempt,
           pool_state_name(j->logged), pool_state_name(j->state),
           mu_quote(shown, sizeof shown, mu_str_of(b.p, b.n)));
    mu_buf_fini(&b);
    j->logged = j->state;
}

/* In the order in which it is said: what follows something that waits, waits too. */
void srv_pool_say(struct agent *a, const struct ctl_msg *m)
{
    if (state_holds_pool(a->conn->srv))
        agent_hold(a, m);
    else
        agent_send(a, m);
}

void srv_pool_release(struct srv *s)
{
    for (uint32_t i = 0; s->pool != NULL && i < s->pool->link_cap; i++)
        if (s->pool->links[i] != NULL)
            agent_release(s->pool->links[i]);
}

static void carry_out(struct srv *s)
{
    struct pool *p = &s->pool->pool;
    struct pool_action act;
    struct ctl_msg m;
    int64_t kept = 0;
    while (pool_next(p, &act)) {
        struct agent *a = act.node != POOL_NONE ? link_of(s, act.node) : NULL;
        switch (act.type) {
        case POOL_ACT_ASSIGN:
            if (a == NULL)
                break;
            pool_assign_message(p, &act, &m);
            state_note_pool(s, p->jobs[act.job]); /* It is told once that is safe. */
            srv_pool_say(a, &m);
            tail_assigned(s, p->jobs[act.job], act.node);
            break;
        case POOL_ACT_UNASSIGN:
            if (a == NULL)
                break;
            pool_unassign_message(p, &act, &m);
            srv_pool_say(a, &m);
            break;
        case POOL_ACT_UNDRAIN:
            if (a == NULL)
                break;
            ctl_init(&m, CTL_UNDRAIN);
            (void)mu_strcopy(m.u.undrain.reason, sizeof m.u.undrain.reason,
                             "asked through the server");
            srv_pool_say(a, &m);
            break;
        case POOL_ACT_DROP:
            if (a == NULL)
                break;
            a->offered = POOL_NONE;
            s->pool->links[act.node] = NULL;
            tail_node_gone(s, act.node);
            agent_drop(a);
            break;
        case POOL_ACT_KEEP:
            log_move(s, p->jobs[act.job]);
            state_note_pool(s, p->jobs[act.job]);
            break;
        }
    }
    while (pool_trim(p, &kept))
        state_forget_pool(s, kept);
}

static void arm(struct srv *s)
{
    struct srv_pool *sp = s->pool;
    int64_t at_ns = sp->pool.deadline_ns;
    if (at_ns >= sp->timer_at_ns || at_ns == POOL_NEVER)
        return;
    int64_t wait_ms = (at_ns - s->now_ns) / MU_NS_PER_MS + 1;
    make_timers(s);
    uv_update_time(s->loop);
    (void)uv_timer_start(&sp->timer, on_timer, wait_ms > 0 ? (uint64_t)wait_ms : 1, 0);
    sp->timer_at_ns = at_ns;
}

int srv_pool_step(struct srv *s, struct pool_event *ev, struct pool_out *out, struct mu_err *err)
{
    ev->unix_ms = mu_unix_ms();
    s->now_ns = mu_now_ns();
    int r = pool_step(&s->pool->pool, s->now_ns, ev, out, err);
    if (out->drains)
        state_note_drains(s);
    carry_out(s);
    arm(s);
    if (out->moved)
        tail_look(s);
    return r;
}

void srv_pool_kept(struct srv *s, bool kept)
{
    struct pool *p = &s->pool->pool;
    for (uint32_t i = 0; i < p->job_cap && !s->closing; i++) {
        struct pool_out out;
        struct pool_event ev = {
            .type = kept ? POOL_EV_KEPT : POOL_EV_UNKEPT, .node = POOL_NONE, .job = i};
        if (p->jobs[i] != NULL && p->jobs[i]->unkept && !(kept && p->jobs[i]->kept_due))
            (void)srv_pool_step(s, &ev, &out, NULL);
    }
}

static void tell(struct srv *s, enum pool_event_type type, uint32_t node, const struct ctl_msg *m)
{
    struct pool_out out;
    struct pool_event ev = {.type = type, .node = node, .job = POOL_NONE, .msg = m};
    (void)srv_pool_step(s, &ev, &out, NULL); /* Only offers and what people ask is refused. */
    struct agent *a = node != POOL_NONE ? link_of(s, node) : NULL;
    if (!out.stray || a == NULL)
        return;
    struct ctl_msg end;
    ctl_init(&end, CTL_UNASSIGN);
    memcpy(end.u.unassign.job, m->u.has.job, sizeof end.u.unassign.job);
    end.u.unassign.attempt = m->u.has.attempt;
    agent_send(a, &end);
}

static void on_timer(uv_timer_t *timer)
{
    struct srv *s = timer->data;
    struct srv_pool *sp = s->pool;
    s->now_ns = mu_now_ns();
    if (s->now_ns - sp->timer_at_ns > s->config.beat_ns) /* We stood still, and heard nobody. */
        pool_hear_anew(&sp->pool, s->now_ns);
    sp->timer_at_ns = MU_NEVER;
    tell(s, POOL_EV_DEADLINE, POOL_NONE, NULL);
    srv_settle(s);
}

/* --- nodes --- */

static void refuse(struct srv *s, struct agent *a, const char *text, bool retry)
{
    uint32_t left_out = 0;
    char peer[MU_ADDR_BYTES];
    if (mu_log_allowed(&s->pool->log_node, s->now_ns, SRV_LOG_BURST, &left_out))
        mu_log(MU_WARN, "pool.refused", "peer=%s reason=\"%s\" left_out=%u",
               conn_peer(a->conn, peer), text, left_out);
    agent_refuse(a, text, retry);
}

static int reserve_links(struct srv_pool *sp)
{
    uint32_t cap = sp->pool.node_cap;
    if (cap <= sp->link_cap)
        return 0;
    struct agent **links = mu_realloc(mu_mem_default(), sp->links, cap * sizeof *links);
    if (links == NULL)
        return -ENOMEM;
    for (uint32_t i = sp->link_cap; i < cap; i++)
        links[i] = NULL;
    sp->links = links;
    sp->link_cap = cap;
    return 0;
}

static void welcome(struct srv *s, struct agent *a, const char *peer)
{
    struct ctl_msg m;
    ctl_init(&m, CTL_WELCOME);
    (void)mu_strcopy(m.u.welcome.version, sizeof m.u.welcome.version, s->version);
    (void)mu_strcopy(m.u.welcome.seen_addr, sizeof m.u.welcome.seen_addr, peer);
    m.u.welcome.lease_ms = s->config.lease_ns / MU_NS_PER_MS;
    m.u.welcome.beat_ms = s->config.beat_ns / MU_NS_PER_MS;
    m.u.welcome.lasts = 1;
    agent_send(a, &m);
}

void srv_pool_offer(struct srv *s, struct agent *a, const struct ctl_msg *m)
{
    struct srv_pool *sp = s->pool;
    struct pool_out out;
    struct mu_err err = {0};
    char peer[MU_ADDR_BYTES];
    char shown[MU_HOST_BYTES];
    const char *why = !s->config.lasts ? "this server ends with its job: offer the node to an "
                                         "rdzv-server"
                                       : srv_denies_agent(a, SRV_OFFERS);
    if (why != NULL) {
        refuse(s, a, why, false);
        return;
    }
    struct pool_event ev = {.type = POOL_EV_OFFER,
                            .node = POOL_NONE,
                            .job = POOL_NONE,
                            .msg = m,
                            .addr = conn_peer(a->conn, peer)};
    int r = srv_pool_step(s, &ev, &out, &err);
    if (r < 0 || reserve_links(sp) < 0) {
        refuse(s, a, err.msg[0] != '\0' ? err.msg : "no memory for another node", true);
        if (r == 0)
            tell(s, POOL_EV_AWAY, out.node, NULL);
        return;
    }
    struct agent *old = sp->links[out.node];
    if (old != NULL) { /* Its older connection is cut, and does not know yet. */
        old->offered = POOL_NONE;
        tail_node_gone(s, out.node);
        agent_drop(old);
    }
    sp->links[out.node] = a;
    a->offered = out.node;
    conn_move(a->conn, LIST_SETTLED);
    welcome(s, a, peer);
    mu_log(MU_INFO, "pool.offer", "node=%s host=%s slots=%u gpus=%u", sp->pool.nodes[out.node]->id,
           mu_quote(shown, sizeof shown, mu_str_of(m->u.offer.host, strlen(m->u.offer.host))),
           sp->pool.nodes[out.node]->slots, sp->pool.nodes[out.node]->gpus);
}

static void beat(struct srv *s, struct agent *a, const struct ctl_msg *m)
{
    struct ctl_msg answer;
    ctl_init(&answer, CTL_BEAT);
    answer.u.beat.seq = m->u.beat.seq;
    agent_send(a, &answer);
    tell(s, POOL_EV_BEAT, a->offered, NULL);
}

bool srv_pool_message(struct srv *s, struct agent *a, const struct ctl_msg *m)
{
    struct pool_out out;
    struct pool_event drain = {
        .type = POOL_EV_DRAIN, .node = a->offered, .job = POOL_NONE, .by_itself = true};
    if (m->type == CTL_BEAT) {
        beat(s, a, m);
    } else if (m->type == CTL_HAS || m->type == CTL_PLACED) {
        tell(s, m->type == CTL_HAS ? POOL_EV_HAS : POOL_EV_PLACED, a->offered, m);
        if (m->type == CTL_HAS && m->u.has.job[0] == '\0' && a->offered != POOL_NONE)
            tail_node_back(s, a->offered);
    } else if (m->type == CTL_OUTPUT) {
        tail_output(s, a, &m->u.output);
    } else if (m->type == CTL_CAUGHT) {
        tail_caught(s, a, &m->u.caught);
    } else if (m->type == CTL_DRAIN) {
        (void)srv_pool_step(s, &drain, &out, NULL); /* It may be drained already. */
    } else if (m->type == CTL_BYE) {
        srv_pool_gone(a);
        agent_close_after(a);
    } else {
        return m->type == CTL_RELEASE; /* Its output is gone; asking for it says so too. */
    }
    return true;
}

void srv_pool_gone(struct agent *a)
{
    struct srv *s = a->conn->srv;
    uint32_t node = a->offered;
    a->offered = POOL_NONE;
    if (node == POOL_NONE)
        return;
    s->pool->links[node] = NULL;
    if (s->closing)
        return;
    tail_node_gone(s, node);
    mu_log(MU_INFO, "pool.away", "node=%s host=%s", s->pool->pool.nodes[node]->id,
           s->pool->pool.nodes[node]->host);
    tell(s, POOL_EV_AWAY, node, NULL);
}

/* --- what the rendezvous says --- */

static uint32_t job_of(const struct srv *s, const struct srv_job *sj)
{
    if (s->pool == NULL || s->closing || s->pool->pool.live_count == 0)
        return POOL_NONE;
    return pool_find_job(&s->pool->pool, sj->job.run_id);
}

void srv_pool_round(struct srv *s, const struct srv_job *sj)
{
    struct pool_out out;
    struct pool_event ev = {.type = POOL_EV_ROUND,
                            .node = POOL_NONE,
                            .job = job_of(s, sj),
                            .begun_unix_ms = sj->job.created_unix_ms};
    if (ev.job != POOL_NONE)
        (void)srv_pool_step(s, &ev, &out, NULL);
}

/* As node-agent --exit-status=first ends; -1: as its nodes say, for one that was told to leave ends
 * with the signal that told it. */
static int32_t exit_status_of(const struct job *j)
{
    const struct mu_cause *c = &j->cause;
    if (j->has_cause && c->kind == MU_CAUSE_WORKER_EXIT && c->exit_code > 0 && c->exit_code < 256)
        return c->exit_code;
    if (j->has_cause && c->kind == MU_CAUSE_WORKER_SIGNAL)
        return 128 + (c->signo & 127);
    if (!j->has_cause || c->kind == MU_CAUSE_NODE_LEFT)
        return -1;
    return j->budget.same_failure ? 65 : 1;
}

/* Nothing that a worker did. That a node left counts where it is gone altogether, as when its
 * service was killed: that is the pool's to see. */
static bool is_of_nodes(const struct job *j)
{
    switch (j->has_cause ? j->cause.kind : MU_CAUSE_NONE) {
    case MU_CAUSE_NODE_LOST:
    case MU_CAUSE_NODE_SILENT:
    case MU_CAUSE_NODE_LEFT:
    case MU_CAUSE_JOIN_TIMEOUT:
        return true;
    case MU_CAUSE_NONE:
    case MU_CAUSE_WORKER_EXIT:
    case MU_CAUSE_WORKER_SIGNAL:
    case MU_CAUSE_SPAWN_FAILED:
    case MU_CAUSE_NO_PROGRESS:
    case MU_CAUSE_NODE_JOINED:
    case MU_CAUSE_NODE_FAILED:
    case MU_CAUSE_UNREACHED:
    case MU_CAUSE_SERVER_LOST:
    case MU_CAUSE_KIND_COUNT:
        break;
    }
    return false;
}

void srv_pool_verdict(struct srv *s, const struct srv_job *sj)
{
    struct pool_out out;
    struct mu_buf cause;
    struct pool_event ev = {.type = POOL_EV_VERDICT,
                            .node = POOL_NONE,
                            .job = job_of(s, sj),
                            .success = sj->job.state == JOB_SUCCEEDED,
                            .nodes_gone = is_of_nodes(&sj->job),
                            .begun_unix_ms = sj->job.created_unix_ms};
    if (ev.job == POOL_NONE)
        return;
    mu_buf_init(&cause, mu_mem_default());
    if (!ev.success && sj->job.has_cause)
        mu_cause_sentence(&sj->job.cause, &cause);
    ev.text = mu_buf_cstr(&cause);
    ev.exit_status = ev.success ? 0 : exit_status_of(&sj->job);
    (void)srv_pool_step(s, &ev, &out, NULL);
    mu_buf_fini(&cause);
}

bool srv_pool_stopped(const struct srv *s, const struct srv_job *sj)
{
    uint32_t slot =
        sj->job.state == JOB_FAILED ? pool_find_job(&s->pool->pool, sj->job.run_id) : POOL_NONE;
    const struct pool_job *j = slot != POOL_NONE ? s->pool->pool.jobs[slot] : NULL;
    return j != NULL && j->stop && (j->state == POOL_STOPPING || j->state == POOL_STOPPED) &&
           j->started_unix_ms > 0 && sj->job.created_unix_ms >= j->started_unix_ms;
}

/* --- what a former life kept --- */

void srv_pool_load(struct srv *s, int64_t kept, const struct pool_row *row)
{
    struct mu_err err = {0};
    char id[MU_RUN_ID_BYTES + 16];
    s->now_ns = mu_now_ns();
    if (pool_load(&s->pool->pool, s->now_ns, row, &err) < 0) {
        mu_log(MU_WARN, "state.pool", "job=%s error=\"%s\" text=\"this job is left out\"",
               mu_quote(id, sizeof id, mu_str_of(row->id, strlen(row->id))), err.msg);
        state_forget_pool(s, kept);
        return;
    }
    struct pool_job *j = s->pool->pool.jobs[pool_find_job(&s->pool->pool, row->id)];
    j->kept = kept;
    j->logged = j->state;
    s->pool->pool.deadline_ns = s->now_ns; /* Its nodes are waited for from now on. */
    arm(s);
}

void srv_pool_load_drain(struct srv *s, const struct pool_drain_row *row)
{
    struct mu_err err = {0};
    char host[MU_HOST_BYTES + 16];
    if (pool_load_drain(&s->pool->pool, row, &err) < 0)
        mu_log(MU_WARN, "state.drain", "host=%s error=\"%s\" text=\"it takes jobs again\"",
               mu_quote(host, sizeof host, mu_str_of(row->host, strlen(row->host))), err.msg);
}

/* --- status --- */

static void put_gpus(struct mu_json *w, const struct pool_node *n)
{
    mu_json_key(w, "gpus_free");
    mu_json_open(w, '[');
    for (uint32_t i = 0; i < n->gpus; i++)
        if (!n->gpu_used[i] && n->adopted == 0)
            mu_json_i64(w, i);
    mu_json_close(w, ']');
}

static void put_node(struct mu_json *w, const struct pool *p, uint32_t slot)
{
    const struct pool_node *n = p->nodes[slot];
    mu_json_open(w, '{');
    mu_json_kstr(w, "id", n->id);
    mu_json_kstr(w, "host", n->host);
    mu_json_kstr(w, "addr", n->addr);
    mu_json_kstr(w, "state", pool_node_shown(n));
    mu_json_ki64(w, "cpus", n->cpus);
    mu_json_ki64(w, "gpus", n->gpus);
    mu_json_ki64(w, "slots", n->slots);
    /* Nobody knows what a job holds that was found there: nothing is given out until it is over. */
    mu_json_ki64(w, "slots_free", n->adopted == 0 ? n->slots_free : 0);
    put_gpus(w, n);
    mu_json_key(w, "jobs");
    mu_json_open(w, '[');
    for (uint32_t i = 0; n->seats > 0 && i < p->job_cap; i++)
        for (uint32_t k = 0; p->jobs[i] != NULL && k < p->jobs[i]->seat_count; k++)
            if (p->jobs[i]->seats[k].held && p->jobs[i]->seats[k].node == slot)
                mu_json_str(w, p->jobs[i]->id);
    mu_json_close(w, ']');
    mu_json_kstr(w, "version", n->version);
    jobs_put_time(w, "since", n->since_unix_ms);
    mu_json_close(w, '}');
}

static void
put_sentence(struct mu_json *w, const char *key, const struct pool *p, const struct pool_job *j)
{
    struct mu_buf b;
    mu_buf_init(&b, mu_mem_default());
    pool_sentence(p, j, &b);
    mu_json_key(w, key);
    mu_json_strn(w, mu_str_of(b.p, b.n));
    mu_buf_fini(&b);
}

static void put_how_many(struct mu_json *w, const struct pool_job *j)
{
    char nodes[32];
    (void)snprintf(nodes, sizeof nodes, j->nodes_min == j->nodes_max ? "%u" : "%u:%u", j->nodes_min,
                   j->nodes_max);
    mu_json_kstr(w, "nodes", nodes);
}

static void put_queued(struct mu_json *w, const struct pool *p, const struct pool_job *j)
{
    mu_json_open(w, '{');
    mu_json_kstr(w, "id", j->id);
    mu_json_kstr(w, "name", j->name);
    mu_json_kstr(w, "state", pool_state_name(j->state));
    put_how_many(w, j);
    put_sentence(w, "waits_for", p, j);
    jobs_put_time(w, "submitted_at", j->submitted_unix_ms);
    mu_json_close(w, '}');
}

/* Has no agent of its last start been here? Else status has it among the jobs. */
static bool has_no_round(const struct srv *s, const struct pool_job *j)
{
    struct srv_job *sj = NULL;
    if (j == NULL || !pool_is_over(j))
        return false;
    HASH_FIND_STR(s->by_id, j->id, sj);
    return sj == NULL || j->started_unix_ms == 0 || sj->job.created_unix_ms < j->started_unix_ms;
}

/* The last one first. */
static void put_ended(const struct srv *s, struct mu_json *w)
{
    const struct pool *p = &s->pool->pool;
    const struct pool_job *last[POOL_ENDED_SHOWN];
    size_t count = 0;
    for (uint32_t i = 0; p->ended_count > 0 && i < p->job_cap; i++) {
        const struct pool_job *j = p->jobs[i];
        if (!has_no_round(s, j) ||
            (count == MU_COUNT(last) && last[count - 1]->ended_unix_ms >= j->ended_unix_ms))
            continue;
        size_t at = count < MU_COUNT(last) ? count++ : count - 1;
        for (; at > 0 && last[at - 1]->ended_unix_ms < j->ended_unix_ms; at--)
            last[at] = last[at - 1];
        last[at] = j;
    }
    mu_json_key(w, "ended");
    mu_json_open(w, '[');
    for (size_t i = 0; i < count; i++) {
        mu_json_open(w, '{');
        mu_json_kstr(w, "id", last[i]->id);
        mu_json_kstr(w, "name", last[i]->name);
        mu_json_kstr(w, "state", pool_state_name(last[i]->state));
        put_how_many(w, last[i]);
        mu_json_ki64(w, "exit_status", last[i]->exit_status);
        put_sentence(w, "sentence", p, last[i]);
        jobs_put_time(w, "submitted_at", last[i]->submitted_unix_ms);
        jobs_put_time(w, "ended_at", last[i]->ended_unix_ms);
        mu_json_close(w, '}');
    }
    mu_json_close(w, ']');
}

void srv_pool_put(const struct srv *s, struct mu_json *w)
{
    const struct pool *p = &s->pool->pool;
    mu_json_key(w, "pool");
    mu_json_open(w, '{');
    mu_json_key(w, "nodes");
    mu_json_open(w, '[');
    for (uint32_t i = 0; i < p->node_cap; i++)
        if (p->nodes[i] != NULL)
            put_node(w, p, i);
    mu_json_close(w, ']');
    mu_json_key(w, "queue");
    mu_json_open(w, '[');
    for (uint32_t i = 0; i < p->job_cap; i++)
        if (p->jobs[i] != NULL && p->jobs[i]->state == POOL_STARTING)
            put_queued(w, p, p->jobs[i]);
    for (const struct pool_job *j = p->queue; j != NULL; j = j->next)
        put_queued(w, p, j);
    mu_json_close(w, ']');
    mu_json_key(w, "drained");
    mu_json_open(w, '[');
    for (uint32_t i = 0; i < p->drain_count; i++)
        mu_json_str(w, p->drains[i].host);
    mu_json_close(w, ']');
    put_ended(s, w);
    mu_json_close(w, '}');
}
