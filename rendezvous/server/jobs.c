/* The table of jobs: which job a hello means, events into the job, its actions carried out, one
 * timer for the nearest deadline of all. What an event means is rendezvous/job's business. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include <utlist.h>

#include "base/clock.h"
#include "rendezvous/server/internal.h"
#include "rendezvous/server/pool.h"

/* --- deadlines: a binary heap, so that one of 4,096 jobs costs what one of one does --- */

static void heap_put(struct srv *s, uint32_t i, struct srv_job *sj)
{
    s->heap[i] = sj;
    sj->heap_index = i;
}

static void heap_up(struct srv *s, uint32_t i)
{
    struct srv_job *sj = s->heap[i];
    while (i > 0) {
        uint32_t parent = (i - 1) / 2;
        if (s->heap[parent]->job.deadline_ns <= sj->job.deadline_ns)
            break;
        heap_put(s, i, s->heap[parent]);
        i = parent;
    }
    heap_put(s, i, sj);
}

static void heap_down(struct srv *s, uint32_t i)
{
    struct srv_job *sj = s->heap[i];
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child >= s->heap_count)
            break;
        if (child + 1 < s->heap_count &&
            s->heap[child + 1]->job.deadline_ns < s->heap[child]->job.deadline_ns)
            child++;
        if (sj->job.deadline_ns <= s->heap[child]->job.deadline_ns)
            break;
        heap_put(s, i, s->heap[child]);
        i = child;
    }
    heap_put(s, i, sj);
}

static void heap_moved(struct srv *s, struct srv_job *sj)
{
    heap_up(s, sj->heap_index);
    heap_down(s, sj->heap_index);
}

static int heap_add(struct srv *s, struct srv_job *sj)
{
    if (s->heap_count == s->heap_cap) {
        uint32_t cap = s->heap_cap == 0 ? 16 : s->heap_cap * 2;
        struct srv_job **heap =
            mu_realloc(mu_mem_default(), s->heap, cap * sizeof(struct srv_job *));
        if (heap == NULL)
            return -ENOMEM;
        s->heap = heap;
        s->heap_cap = cap;
    }
    heap_put(s, s->heap_count++, sj);
    heap_up(s, sj->heap_index);
    return 0;
}

static void heap_remove(struct srv *s, struct srv_job *sj)
{
    uint32_t i = sj->heap_index;
    struct srv_job *last = s->heap[--s->heap_count];
    if (last == sj)
        return;
    heap_put(s, i, last);
    heap_moved(s, last);
}

/* A timer that is too early fires once for nothing: cheaper than setting it anew at each beat. */
static void arm_job_timer(struct srv *s)
{
    int64_t at = s->heap_count > 0 ? s->heap[0]->job.deadline_ns : MU_NEVER;
    if (at >= s->job_timer_at_ns)
        return;
    int64_t wait_ms = (at - s->now_ns + MU_NS_PER_MS - 1) / MU_NS_PER_MS;
    uv_update_time(s->loop); /* The timer counts from the loop's idea of now, which is older. */
    (void)uv_timer_start(&s->job_timer, jobs_on_timer, wait_ms > 0 ? (uint64_t)wait_ms : 1, 0);
    s->job_timer_at_ns = at;
}

/* --- jobs --- */

/* Run ids are peers' text: plain ones stand as they are, others quoted. */
static const char *shown_id(const struct job *j, char *buf, size_t cap)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:-";
    if (j->run_id[strspn(j->run_id, plain)] == '\0')
        return j->run_id;
    return mu_quote(buf, cap, mu_str_of(j->run_id, strlen(j->run_id)));
}

static bool has_live_round(const struct job *j)
{
    return j->state == JOB_RUNNING || j->state == JOB_STOPPING || j->state == JOB_RECOVERING;
}

static void job_free(struct srv *s, struct srv_job *sj)
{
    state_forget(s, sj);
    for (uint32_t i = 0; i < sj->slot_cap; i++) {
        struct agent *a = sj->slots[i].agent;
        probe_cancel(sj, i);
        if (a == NULL)
            continue;
        agent_detach(a);
        agent_close_after(a);
    }
    struct srv_job *known = NULL;
    HASH_FIND_STR(s->by_id, sj->job.run_id, known);
    if (known == sj)
        HASH_DEL(s->by_id, sj);
    DL_DELETE(s->jobs, sj);
    heap_remove(s, sj);
    s->ended_slots -= sj->ended_slots;
    if (sj->ended)
        s->ended_count--;
    else
        s->live_jobs--;
    s->live_rounds -= sj->live_round;
    job_fini(&sj->job);
    mu_mem_free(mu_mem_default(), sj->slots);
    incidents_free(sj);
    mu_mem_free(mu_mem_default(), sj);
}

void jobs_free_all(struct srv *s)
{
    while (s->jobs != NULL)
        job_free(s, s->jobs);
    mu_mem_free(mu_mem_default(), s->heap);
    s->heap = NULL;
}

static struct srv_job *job_new(struct srv *s, const char *run_id, struct mu_err *err)
{
    if (s->live_jobs >= MU_JOBS_MAX) {
        (void)mu_err_set(err, -EAGAIN, "this server has %d jobs already: try again later",
                         MU_JOBS_MAX);
        return NULL;
    }
    struct srv_job *sj = mu_zalloc(mu_mem_default(), sizeof *sj);
    if (sj == NULL || heap_add(s, sj) < 0) {
        mu_mem_free(mu_mem_default(), sj);
        (void)mu_err_set(err, -ENOMEM, "the server has no memory for another job: try again later");
        return NULL;
    }
    struct job_config config = {.run_id = run_id,
                                .lease_ns = s->config.lease_ns,
                                .beat_ns = s->config.beat_ns,
                                .fence_ns = s->config.fence_ns,
                                .not_before_ns = s->not_before_ns,
                                .quarantine_failures = s->config.quarantine_failures,
                                .quarantine_window_ns = s->config.quarantine_window_ns,
                                .version = s->config.version,
                                .lasts = s->config.lasts};
    if (job_init(&sj->job, mu_mem_default(), &config, err) < 0) {
        heap_remove(s, sj);
        mu_mem_free(mu_mem_default(), sj);
        return NULL;
    }
    metrics_begin_job(s, sj);
    heap_moved(s, sj); /* Its deadline is known now. */
    DL_APPEND(s->jobs, sj);
    s->live_jobs++;
    HASH_ADD_STR(s->by_id, job.run_id, sj);
    if (sj->hh.tbl == NULL) { /* uthash found no memory. */
        job_free(s, sj);
        (void)mu_err_set(err, -ENOMEM, "the server has no memory for another job: try again later");
        return NULL;
    }
    return sj;
}

/* One step of the job. What it could change of a round must be said before: only these say nothing
 * but how far their node is. */
static int step(const struct srv *s,
                struct srv_job *sj,
                const struct job_event *ev,
                struct job_out *out,
                struct mu_err *err)
{
    bool harmless =
        ev->type == JOB_EV_STARTED || ev->type == JOB_EV_EXITED || ev->type == JOB_EV_BEAT;
    if (sj->starts_due > 0 && !harmless)
        agent_starts_now(sj);
    return job_step(&sj->job, s->now_ns, ev, out, err);
}

/* --- actions --- */

static struct agent *agent_at(struct srv_job *sj, uint32_t node)
{
    return node < sj->slot_cap ? sj->slots[node].agent : NULL;
}

/* Carry the step's actions out, as far as queues; srv_settle() writes and closes. */
static void carry_out(struct srv *s, struct srv_job *sj, const struct job_out *out)
{
    struct ctl_msg m;
    bool wait = state_note(s, sj, out) || state_holds(sj);
    bool waiting_made =
        false; /* The same text for every node, which names up to all of them: made once. */
    for (uint32_t i = 0; i < out->count; i++) {
        const struct job_action *act = &out->actions[i];
        struct agent *a = agent_at(sj, act->node);
        if (act->type == JOB_ACT_FORGET && act->node < sj->slot_cap)
            probe_cancel(sj, act->node);
        if (a == NULL)
            continue;
        switch (act->type) {
        case JOB_ACT_SEND:
            if (act->msg == CTL_WELCOME) {
                agent_welcome(a);
                break;
            }
            if (act->msg == CTL_START) {
                agent_start(a, wait);
                break;
            }
            if (act->msg != CTL_WAITING || !waiting_made)
                job_message(&sj->job, act->node, act->msg, &m);
            /* While a round runs, spares are told something of their own. */
            waiting_made = act->msg == CTL_WAITING && sj->job.state != JOB_RUNNING;
            if (wait && act->msg != CTL_BEAT) /* That it is heard is no decision. */
                agent_hold(a, &m);
            else
                agent_send(a, &m);
            break;
        case JOB_ACT_CLOSE:
            if (wait)
                a->close_held = true;
            else
                agent_close_after(a);
            break;
        case JOB_ACT_FORGET:
            agent_detach(a);
            agent_close_after(a);
            break;
        case JOB_ACT_KEEP:
        case JOB_ACT_KEEP_ROUND:
        case JOB_ACT_INCIDENT:
            break; /* state_note() has seen them. */
        }
    }
}

static const char *shown_cause(const struct job *j, char *ret, size_t cap)
{
    struct mu_buf b;
    mu_buf_init(&b, mu_mem_default());
    mu_cause_sentence(&j->cause, &b);
    (void)mu_quote(ret, cap, mu_str_of(b.p, b.n));
    mu_buf_fini(&b);
    return ret;
}

static void log_better_cause(const struct job *j)
{
    char id[MU_RUN_ID_BYTES + 16];
    char cause[MU_MESSAGE_BYTES];
    mu_log(MU_INFO, "job.cause", "job=%s round=%u cause=%s", shown_id(j, id, sizeof id), j->round,
           shown_cause(j, cause, sizeof cause));
}

static void log_move(const struct srv_job *sj, const struct job_move *move)
{
    char id[MU_RUN_ID_BYTES + 16];
    char cause[MU_MESSAGE_BYTES] = "\"\"";
    const struct job *j = &sj->job;
    bool tell = j->has_cause && (move->to == JOB_STOPPING || move->to == JOB_FAILED);
    if (tell)
        (void)shown_cause(j, cause, sizeof cause);
    mu_log(move->to == JOB_FAILED ? MU_WARN : MU_INFO, "job.move",
           "job=%s round=%u ev=%s move=%s->%s nodes=%u world=%u%s%s", shown_id(j, id, sizeof id),
           j->round, job_event_name(move->event), job_state_name(move->from),
           job_state_name(move->to), j->node_count, j->world, tell ? " cause=" : "",
           tell ? cause : "");
}

static void trim_ended(struct srv *s)
{
    struct srv_job *sj = NULL;
    struct srv_job *next = NULL;
    DL_FOREACH_SAFE(s->jobs, sj, next)
    {
        if (s->ended_count <= MU_JOBS_ENDED_KEPT &&
            (s->ended_slots <= SRV_ENDED_SLOTS_MAX || s->ended_count == 1))
            return;
        if (sj->ended)
            job_free(s, sj);
    }
}

/* What the shell keeps beside the job, after a step. May free the job. */
static void take_stock(struct srv *s, struct srv_job *sj)
{
    const struct job *j = &sj->job;
    bool live = has_live_round(j);
    s->live_rounds += (uint32_t)live - (uint32_t)sj->live_round;
    if (live && !sj->live_round)
        srv_pool_round(s, sj);
    sj->live_round = live;
    heap_moved(s, sj);
    if (job_is_ended(j) && !sj->ended) {
        srv_pool_verdict(s, sj);
        sj->ended = true; /* Stays known by its id: late agents of it are told the end once more. */
        s->live_jobs--;
        s->ended_count++;
        sj->ended_slots = j->node_cap;
        s->ended_slots += sj->ended_slots;
        DL_DELETE(s->jobs, sj); /* Ended ones stand behind each other in the order of their ends. */
        DL_APPEND(s->jobs, sj);
        trim_ended(s);
    } else if (!sj->ended && !j->has_spec) {
        job_free(s, sj); /* Its first hello was refused: it never was a job. */
    }
    mark_update(s);
}

static void finish_step(struct srv *s, struct srv_job *sj, const struct job_out *out)
{
    if (out->new_cause && mu_log_on(MU_INFO))
        log_better_cause(&sj->job);
    for (uint32_t i = 0; i < out->move_count; i++)
        if (out->moves[i].from != out->moves[i].to && mu_log_on(MU_INFO))
            log_move(sj, &out->moves[i]);
    carry_out(s, sj, out);
    take_stock(s, sj);
    arm_job_timer(s);
}

/* For who watches and who counts: what this step has changed. A beat changes ages and steps, and a
 * deadline often nothing. */
static void tell_watchers(struct srv *s,
                          struct srv_job *sj,
                          const struct job_event *ev,
                          const struct job_out *out)
{
    bool beat = ev->type == JOB_EV_BEAT;
    bool moved = out->count > (beat ? 1U : 0U); /* A beat is answered. */
    for (uint32_t i = 0; i < out->move_count; i++)
        moved = moved || out->moves[i].from != out->moves[i].to;
    metrics_note(s, sj, ev, out);
    if (moved || (!beat && ev->type != JOB_EV_DEADLINE))
        events_changed(s);
    else if (beat)
        events_aged(s);
}

/* Nodes of one job that were given two ids meet two jobs, each of which waits in vain: let both say
 * so. */
static void note_neighbour(const struct srv *s, struct srv_job *sj)
{
    const struct srv_job *other = NULL;
    sj->job.neighbour[0] = '\0';
    if (sj->job.state != JOB_GATHERING || sj->job.waiting >= sj->job.nodes_min)
        return;
    DL_FOREACH(s->jobs, other)
    {
        if (other == sj || other->job.state != JOB_GATHERING || other->job.waiting == 0)
            continue;
        memcpy(sj->job.neighbour, other->job.run_id, sizeof sj->job.neighbour);
        return;
    }
}

/* A fence did its work: of no harm, and worth a look when it is many. */
static void log_stale(struct srv *s,
                      const struct srv_job *sj,
                      const char *host,
                      const char *name,
                      const struct job_out *out)
{
    uint32_t left_out = 0;
    char id[MU_RUN_ID_BYTES + 16];
    char shown[MU_HOST_BYTES];
    if (!mu_log_on(MU_INFO) || !mu_log_allowed(&s->log_stale, s->now_ns, SRV_LOG_BURST, &left_out))
        return;
    mu_log(MU_INFO, "job.stale",
           "job=%s node=%s msg=%s round=%" PRId64 " live_round=%u left_out=%u",
           shown_id(&sj->job, id, sizeof id),
           mu_quote(shown, sizeof shown, mu_str_of(host, strlen(host))), name, out->stale_round,
           sj->job.round, left_out);
}

void jobs_event(struct srv *s,
                struct srv_job *sj,
                enum job_event_type type,
                uint32_t node,
                const struct ctl_msg *msg)
{
    struct job_out out;
    struct mu_err err = {0};
    struct job_event ev = {.type = type, .node = node, .msg = msg, .unix_ms = mu_unix_ms()};
    if (type == JOB_EV_BYE) { /* Its last word: what follows on this connection is its end. */
        struct agent *a = sj->slots[node].agent;
        agent_close_after(a);
        agent_detach(a);
    }
    enum job_state state = sj->job.state;
    if (type == JOB_EV_DEADLINE)
        note_neighbour(s, sj);
    int r = step(s, sj, &ev, &out, &err);
    if (r == 0) {
        if (out.stale_round != 0)
            log_stale(s, sj, sj->job.nodes[node].hello.host, ctl_type_name(msg->type), &out);
        tell_watchers(s, sj, &ev, &out);
        finish_step(s, sj, &out);
        return;
    }
    uint32_t left_out = 0;
    char id[MU_RUN_ID_BYTES + 16];
    if (mu_log_allowed(&s->log_rejected, s->now_ns, SRV_LOG_BURST, &left_out))
        mu_log(MU_ERROR, "job.rejected", "job=%s state=%s ev=%s error=\"%s\" left_out=%u",
               shown_id(&sj->job, id, sizeof id), job_state_name(state), job_event_name(type),
               strerror(-r), left_out);
}

/* A timer that comes later than a beat: we were stopped, or had no CPU. What agents said meanwhile
 * may not be read yet, and nobody may be given up for what we did not hear. */
static void note_standstill(struct srv *s)
{
    int64_t late_ns = s->job_timer_at_ns == MU_NEVER ? 0 : s->now_ns - s->job_timer_at_ns;
    if (late_ns <= s->config.beat_ns)
        return;
    mu_log(MU_WARN, "server.stood_still", "ms=%lld text=\"all leases begin anew\"",
           (long long)(late_ns / MU_NS_PER_MS));
    for (uint32_t i = 0; i < s->heap_count; i++)
        job_hear_anew(&s->heap[i]->job, s->now_ns);
}

/* Every job whose deadline is here gets one event; a job that asks for the same time again comes
 * round with the timer, not in this loop. */
void jobs_on_timer(uv_timer_t *timer)
{
    struct srv *s = timer->data;
    s->now_ns = mu_now_ns();
    note_standstill(s);
    s->job_timer_at_ns = MU_NEVER;
    for (uint32_t due = s->heap_count; due > 0 && s->heap_count > 0; due--) {
        struct srv_job *sj = s->heap[0];
        if (sj->job.deadline_ns > s->now_ns)
            break;
        jobs_event(s, sj, JOB_EV_DEADLINE, JOB_NO_NODE, NULL);
    }
    arm_job_timer(s);
    srv_settle(s);
}

/* --- hello --- */

/* The peer's numeric address. Only a link-local one has a zone, which the kernel must be asked for.
 */
static void peer_address(const struct conn *c, char *ret)
{
    struct sockaddr_storage ss;
    socklen_t len = sizeof ss;
    if (IN6_IS_ADDR_LINKLOCAL(&c->addr) &&
        getpeername(c->watch.fd, (struct sockaddr *)&ss, &len) == 0)
        (void)mu_addr_host((const struct sockaddr *)&ss, ret);
    else
        (void)conn_peer(c, ret);
}

/* Ours, at which it met us. */
static void own_address(const struct conn *c, char *ret)
{
    struct sockaddr_storage ss;
    socklen_t len = sizeof ss;
    ret[0] = '\0';
    if (getsockname(c->watch.fd, (struct sockaddr *)&ss, &len) == 0)
        (void)mu_addr_host((const struct sockaddr *)&ss, ret);
}

static int reserve_slots(struct srv_job *sj)
{
    uint32_t cap = sj->job.node_cap;
    if (cap <= sj->slot_cap)
        return 0;
    struct srv_slot *slots = mu_realloc(mu_mem_default(), sj->slots, cap * sizeof *slots);
    if (slots == NULL)
        return -ENOMEM;
    for (uint32_t i = sj->slot_cap; i < cap; i++)
        slots[i] = (struct srv_slot){0};
    sj->slots = slots;
    sj->slot_cap = cap;
    return 0;
}

/* The slot's connection is this one from now on; an older one of the same agent is dropped without
 * a word. */
static int attach(struct srv *s, struct srv_job *sj, uint32_t node, struct agent *a)
{
    if (reserve_slots(sj) < 0)
        return -ENOMEM;
    probe_cancel(sj, node);
    if (sj->slots[node].agent != NULL) {
        struct agent *old = sj->slots[node].agent;
        agent_detach(old);
        agent_drop(old);
    }
    sj->slots[node].agent = a;
    a->job = sj;
    a->node = node;
    s->agent_count++;
    conn_move(a->conn, LIST_SETTLED);
    return 0;
}

static void refuse(struct srv *s, struct agent *a, int code, const struct mu_err *err)
{
    uint32_t left_out = 0;
    char peer[MU_ADDR_BYTES];
    char shown[sizeof err->msg + 16];
    const char *text = err->msg[0] != '\0' ? err->msg : "the server has no memory: try again later";
    if (mu_log_allowed(&s->log_agent, s->now_ns, SRV_LOG_BURST, &left_out))
        mu_log(MU_WARN, "agent.refused", "peer=%s reason=%s left_out=%u", conn_peer(a->conn, peer),
               mu_quote(shown, sizeof shown, mu_str_of(text, strlen(text))), left_out);
    agent_refuse(a, text, code == -EAGAIN || code == -ENOMEM);
}

void jobs_hello(struct srv *s, struct agent *a, const struct ctl_msg *hello)
{
    struct job_out out;
    struct mu_err err = {0};
    char seen[MU_ADDR_BYTES] = "";
    char via[MU_ADDR_BYTES] = "";
    peer_address(a->conn, seen);
    if (!mu_addr_is_loopback(seen)) /* Over loopback it says nothing to others. */
        own_address(a->conn, via);
    struct job_event ev = {.type = JOB_EV_HELLO,
                           .node = JOB_NO_NODE,
                           .msg = hello,
                           .seen_addr = seen,
                           .via_addr = via,
                           .unix_ms = mu_unix_ms()};
    struct srv_job *sj = NULL;
    HASH_FIND_STR(s->by_id, hello->u.hello.run_id, sj);
    int r = sj != NULL ? step(s, sj, &ev, &out, &err) : -ENOENT;
    if (r == -ENOENT) { /* Nobody's yet, or the id of a job that is over: a new one. */
        if (sj != NULL)
            HASH_DEL(s->by_id, sj);
        sj = job_new(s, hello->u.hello.run_id, &err);
        r = sj != NULL ? step(s, sj, &ev, &out, &err) : err.code;
    }
    if (r < 0) {
        refuse(s, a, r, &err);
        events_changed(s); /* The job's sentence may say who was turned away. */
        if (sj != NULL)
            take_stock(s, sj);
        return;
    }
    tell_watchers(s, sj, &ev, &out);
    if (attach(s, sj, out.node, a) <
        0) { /* Taken in, but it cannot be spoken to: let it come again. */
        uint32_t node = out.node;
        finish_step(s, sj, &out);
        jobs_event(s, sj, JOB_EV_NODE_AWAY, node, NULL);
        a->broken = true;
        agent_close_after(a);
        return;
    }
    finish_step(s, sj, &out);
    /* Who came back to its round has gone long enough without a sign of life. */
    if (a->patient && a->job != NULL && a->job->job.nodes[a->node].in_round && !a->start_due)
        agent_send(a, NULL);
}

/* --- what a former life kept --- */

struct srv_job *jobs_load(struct srv *s,
                          const struct job_row_kept *row,
                          const struct job_node_row *nodes,
                          size_t node_count)
{
    struct mu_err err = {0};
    char id[MU_RUN_ID_BYTES + 16];
    struct srv_job *earlier = NULL;
    HASH_FIND_STR(s->by_id, row->run_id, earlier);
    if (earlier != NULL)
        HASH_DEL(s->by_id, earlier);
    struct srv_job *sj = job_new(s, row->run_id, &err);
    int r = sj != NULL ? job_load(&sj->job, s->now_ns, mu_unix_ms(), row, nodes, node_count, &err)
                       : err.code;
    if (r == 0)
        r = reserve_slots(sj);
    if (r < 0) {
        mu_log(MU_WARN, "state.job", "job=%s error=%s text=\"this job is left out\"",
               mu_quote(id, sizeof id, mu_str_of(row->run_id, strlen(row->run_id))),
               err.msg[0] != '\0' ? err.msg : strerror(-r));
        if (sj != NULL)
            job_free(s, sj);
        return NULL;
    }
    mu_log(MU_INFO, "job.loaded", "job=%s state=%s round=%u restarts=%u nodes=%u",
           shown_id(&sj->job, id, sizeof id), job_state_name(sj->job.state), sj->job.round,
           sj->job.restarts, sj->job.node_count);
    for (uint32_t i = 0; i < sj->job.node_cap; i++)
        if (sj->job.nodes[i].used && !sj->job.nodes[i].gone)
            probe_begin(s, sj, i);
    take_stock(s, sj);
    arm_job_timer(s);
    events_changed(s);
    return sj;
}
