/* What the nodes of a round say, and who of them is gone. */
#include "rendezvous/job/internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static void note_steps(struct job *j, int64_t now_ns, struct job_node *n, const struct ctl_beat *m)
{
    bool any = false;
    if (!n->in_round || m->round != j->round || m->steps.n == 0)
        return;
    for (uint32_t i = 0; i < m->steps.n && i < n->hello.nproc; i++) {
        n->workers[i].step = m->steps.v[i];
        any = any || m->steps.v[i] >= 0;
    }
    budget_note_steps(j, n);
    if (any)
        job_note_step(j);
    drain_note_speed(n, now_ns, j->config.beat_ns);
}

/* It stops its workers after less silence than the round allows, and will not be told otherwise. */
static void note_fence(struct job *j, struct job_node *n, const struct ctl_beat *m)
{
    int64_t fence_ns = m->fence_ms * NS_PER_MS;
    if (!n->in_round || m->round != j->round || fence_ns < j->config.lease_ns ||
        fence_ns >= job_silence_allowed(j, n))
        return;
    n->fence_ns = fence_ns;
    job_watch_lease(j, n);
}

int row_beat(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    struct job_node *n = job_node_of(j, ev);
    roster_heard(j, ev->node, now_ns);
    if (ev->type == JOB_EV_BEAT) {
        note_steps(j, now_ns, n, &ev->msg->u.beat);
        note_fence(j, n, &ev->msg->u.beat);
        n->beat_seq = ev->msg->u.beat.seq;
        job_send(j, ev->node, CTL_BEAT);
    }
    if (j->state == JOB_RUNNING)
        return drain_choose_step(j, now_ns);
    return j->state == JOB_GATHERING ? job_ready(j, now_ns) : 0;
}

/* Is the message about the live round, from a member of it? */
static bool of_this_round(struct job *j, int64_t now_ns, const struct job_event *ev, int64_t round)
{
    struct job_node *n = job_node_of(j, ev);
    roster_heard(j, ev->node, now_ns);
    return n->in_round && round == j->round && n->state != JOB_NODE_LOST;
}

void job_reached(struct job *j, uint32_t slot)
{
    struct job_node *n = &j->nodes[slot];
    bool news = !n->reached;
    n->reached = true;
    j->unreached -= news && j->unreached > 0;
    if (j->unreached > 0)
        return;
    if (!news) { /* Said again by one that has not heard the answer. */
        if (n->state == JOB_NODE_STARTING && j->reach_ns != 0)
            job_send(j, slot, CTL_GO);
        return;
    }
    for (uint32_t r = 0; r < j->round_nodes; r++)
        if (j->nodes[j->members[r]].state == JOB_NODE_STARTING)
            job_send(j, j->members[r], CTL_GO);
}

int row_note_reached(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    if (of_this_round(j, now_ns, ev, ev->msg->u.reached.round))
        job_reached(j, ev->node);
    return 0;
}

int row_note_started(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    const struct ctl_started *m = &ev->msg->u.started;
    if (!of_this_round(j, now_ns, ev, m->round))
        return 0;
    struct job_node *n = job_node_of(j, ev);
    j->is_latest = true; /* Its workers live, so no later round can have begun without its word. */
    for (uint32_t i = 0; i < m->pids.n && i < n->hello.nproc; i++)
        n->workers[i].pid = m->pids.v[i];
    if (n->state != JOB_NODE_STARTING) /* Said again on a new connection: we may be new here. */
        return 0;
    n->started_unix_ms = ev->unix_ms;
    job_act(j, JOB_ACT_KEEP, ev->node, CTL_TYPE_COUNT);
    roster_set(j, ev->node, JOB_NODE_RUNNING);
    if (j->state == JOB_RUNNING && !n->reached)
        job_reached(j, ev->node); /* It did not look: an older agent. */
    return 0;
}

int row_note_exited(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    const struct ctl_exited *m = &ev->msg->u.exited;
    struct job_node *n = job_node_of(j, ev);
    if (of_this_round(j, now_ns, ev, m->round) && m->local_rank < n->hello.nproc)
        n->workers[m->local_rank].exit = 0;
    return 0;
}

/* The whole truth of that node anew: who is not in the list is alive. */
int row_note_silent(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    const struct ctl_silent *m = &ev->msg->u.silent;
    if (!of_this_round(j, now_ns, ev, m->round))
        return 0;
    struct job_node *n = job_node_of(j, ev);
    for (int64_t i = 0; i < n->hello.nproc; i++)
        n->workers[i].silent_unix_ms = 0;
    for (uint32_t i = 0; i + CTL_SILENT_NUMBERS <= m->workers.n; i += CTL_SILENT_NUMBERS) {
        const int32_t *v = m->workers.v + i;
        if (v[0] < 0 || v[0] >= n->hello.nproc || v[1] < 0)
            continue;
        struct job_worker *w = &n->workers[v[0]];
        w->silent_unix_ms = ev->unix_ms > v[1] ? ev->unix_ms - v[1] : 1;
        w->silent_step = v[2];
        w->silent_stopped = v[3] != 0;
    }
    return 0;
}

/* Is this silent worker more to blame than that one? As agent/life/hang.h decides among its own. */
static bool is_worse(const struct job_worker *a, const struct job_worker *b)
{
    if (a->silent_stopped != b->silent_stopped)
        return a->silent_stopped;
    if (a->silent_step != b->silent_step && a->silent_step >= 0 && b->silent_step >= 0)
        return a->silent_step < b->silent_step;
    return false; /* Clocks of two hosts are not compared: who was told of stays. */
}

/* A node tells of one that hangs. If it only waits for another node's worker, which is silent too,
 * that one is the cause. */
static void blame(struct job *j, struct mu_cause *c, const struct job_node *teller)
{
    if (c->local_rank < 0 || c->local_rank >= teller->hello.nproc)
        return;
    const struct job_worker *worst = &teller->workers[c->local_rank];
    for (uint32_t r = 0; r < j->round_nodes; r++) {
        if (j->members[r] == JOB_NO_NODE || &j->nodes[j->members[r]] == teller)
            continue;
        const struct job_node *n = &j->nodes[j->members[r]];
        for (int32_t i = 0; i < n->hello.nproc; i++) {
            const struct job_worker *w = &n->workers[i];
            if (w->silent_unix_ms == 0 || w->exit != JOB_EXIT_NONE || !is_worse(w, worst))
                continue;
            worst = w;
            *c = job_cause_of_node(MU_CAUSE_NO_PROGRESS, n);
            c->local_rank = i;
            c->rank = n->rank_base + i;
            c->pid = w->pid;
            c->step = w->step;
            c->at_unix_ms = j->step_unix_ms;
            (void)snprintf(
                c->message, sizeof c->message, "no sign of life for %.1f s%s; first missed on %s",
                (double)(j->step_unix_ms - w->silent_unix_ms) / 1000.0,
                w->silent_stopped ? ", it is stopped by a signal" : "", teller->hello.host);
        }
    }
}

static void note_failed_worker(struct job_node *n, const struct mu_cause *c)
{
    if (c->local_rank < 0 || c->local_rank >= n->hello.nproc)
        return;
    if (c->kind == MU_CAUSE_WORKER_EXIT)
        n->workers[c->local_rank].exit = c->exit_code;
    else if (c->kind == MU_CAUSE_WORKER_SIGNAL)
        n->workers[c->local_rank].exit = -c->signo;
}

/* What can fail on a node. Other kinds are the server's own verdicts, and some of them cost
 * nothing. */
static bool is_nodes_own(enum mu_cause_kind k)
{
    if (k == MU_CAUSE_UNREACHED)
        return true;
    return k == MU_CAUSE_WORKER_EXIT || k == MU_CAUSE_WORKER_SIGNAL || k == MU_CAUSE_SPAWN_FAILED ||
           k == MU_CAUSE_NO_PROGRESS || k == MU_CAUSE_NODE_LEFT || k == MU_CAUSE_NODE_FAILED;
}

/* What a node says of its failure, with what we know of the node. */
static struct mu_cause failure_of(const struct job_node *n, const struct ctl_failed *m)
{
    struct mu_cause c = m->cause;
    if (!is_nodes_own(c.kind))
        c.kind = MU_CAUSE_NODE_FAILED;
    c.node_rank = n->node_rank;
    if (c.local_rank >= 0 && n->ranked)
        c.rank = n->rank_base + c.local_rank;
    if (c.host[0] == '\0')
        (void)mu_strcopy(c.host, sizeof c.host, n->hello.host); /* It fits. */
    return c;
}

/* Its sentence names both hosts, and what to do: "n2 cannot reach n1 at 10.0.0.1:41234: no answer".
 */
static void explain_unreached(const struct job *j, struct mu_cause *c)
{
    const struct job_node *lead = &j->nodes[j->lead];
    const char *own = lead->hello.host_addr;
    bool v6 = strchr(j->lead_addr, ':') != NULL;
    struct mu_buf b;
    mu_buf_init(&b, j->mem);
    (void)mu_buf_addf(&b, "%s cannot reach %s at %s%s%s:%u%s%.100s; the workers' store is there: ",
                      c->host, lead->hello.host, v6 ? "[" : "", j->lead_addr, v6 ? "]" : "",
                      j->lead_port, c->message[0] != '\0' ? ": " : "", c->message);
    if (own[0] != '\0' && lead->hello.local_addr[0] == '\0' && strcmp(own, j->lead_addr) != 0)
        (void)mu_buf_addf(&b,
                          "%s calls itself %s, and --local-addr there says what others shall "
                          "use; or ",
                          lead->hello.host, own);
    (void)mu_buf_adds(&b, "open the port between the hosts, or choose an open one with "
                          "--store-port=PORT on every node");
    (void)snprintf(c->message, sizeof c->message, "%s", mu_buf_cstr(&b));
    mu_buf_fini(&b);
}

static struct job_words words_of(const struct ctl_failed *m)
{
    return (struct job_words){.output = m->output, .tail = m->tail, .trace = m->trace};
}

int row_run_failed(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    const struct ctl_failed *m = &ev->msg->u.failed;
    if (!of_this_round(j, now_ns, ev, m->round))
        return 0;
    struct job_node *n = job_node_of(j, ev);
    struct mu_cause c = failure_of(n, m);
    if (c.kind == MU_CAUSE_UNREACHED && j->lead != JOB_NO_NODE)
        explain_unreached(j, &c);
    note_failed_worker(n, &c);
    if (c.kind == MU_CAUSE_NO_PROGRESS)
        blame(j, &c, n);
    drain_explain(j, &c);
    const struct job_words words = words_of(m);
    bool own = c.node_rank == n->node_rank;
    job_new_cause(j, &c, own ? &words : NULL);
    if (own) /* RECOVERING: agents may have brought a cause with them. */
        job_weigh_cause(j, now_ns, n, &c, &words);
    return JOB_EV_BROKEN;
}

/* Told again: its agent has connected anew, or knows by now what the worker was doing. */
static bool is_same_failure(const struct mu_cause *a, const struct mu_cause *b)
{
    return a->rank >= 0 && a->rank == b->rank && a->kind == b->kind && a->node_rank == b->node_rank;
}

int row_weigh_failed(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    const struct ctl_failed *m = &ev->msg->u.failed;
    if (!of_this_round(j, now_ns, ev, m->round))
        return 0;
    struct job_node *n = job_node_of(j, ev);
    struct mu_cause c = failure_of(n, m);
    note_failed_worker(n, &c);
    const struct job_words words = words_of(m);
    const struct mu_cause former = j->cause;
    if (is_same_failure(&c, &former)) {
        job_add_words(j, &words);
        return 0;
    }
    job_weigh_cause(j, now_ns, n, &c, &words);
    job_note_consequence(j, j->new_cause ? &former : &c);
    return 0;
}

static void finish_node(struct job *j, uint32_t slot)
{
    struct job_node *n = &j->nodes[slot];
    for (int64_t i = 0; i < n->hello.nproc; i++)
        n->workers[i].exit = 0;
    roster_set(j, slot, JOB_NODE_FINISHED);
}

int row_run_finished(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    if (!of_this_round(j, now_ns, ev, ev->msg->u.finished.round) ||
        !owes_finished(job_node_of(j, ev)))
        return 0;
    job_node_of(j, ev)->halted = ev->msg->u.finished.halted != 0;
    finish_node(j, ev->node);
    if (--j->pending == 0)
        return drain_or_over(j);
    job_idle(j, now_ns);
    return 0;
}

int row_recover_finished(struct job *j,
                         int64_t now_ns,
                         const struct job_event *ev,
                         struct mu_err *err)
{
    if (of_this_round(j, now_ns, ev, ev->msg->u.finished.round) &&
        owes_finished(job_node_of(j, ev))) {
        job_node_of(j, ev)->halted = ev->msg->u.finished.halted != 0;
        finish_node(j, ev->node);
    }
    return 0;
}

static void note_stopped(struct job *j, const struct job_event *ev)
{
    const struct ctl_stopped *m = &ev->msg->u.stopped;
    struct job_node *n = job_node_of(j, ev);
    n->store_port = (uint16_t)m->store_port;
    roster_health(j, ev->node, m->unready != 0 ? JOB_HEALTH_CHECKING : JOB_HEALTH_OK, "");
    for (uint32_t i = 0; i < m->exits.n && i < n->hello.nproc; i++)
        n->workers[i].exit = m->exits.v[i] == -1000 ? JOB_EXIT_UNKNOWN : m->exits.v[i];
}

/* Nobody told it to stop: it had not heard us for too long and fenced itself. */
int row_run_stopped(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    if (!of_this_round(j, now_ns, ev, ev->msg->u.stopped.round))
        return row_stale_stopped(j, now_ns, ev, err);
    note_stopped(j, ev);
    job_node_cause(j, MU_CAUSE_NODE_SILENT, job_node_of(j, ev));
    roster_set(j, ev->node, JOB_NODE_STOPPED);
    return JOB_EV_BROKEN;
}

int row_stop_stopped(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    if (!of_this_round(j, now_ns, ev, ev->msg->u.stopped.round))
        return row_stale_stopped(j, now_ns, ev, err);
    if (!owes_stopped(job_node_of(j, ev)))
        return 0; /* Said twice: identities are counted, not messages. */
    note_stopped(j, ev);
    job_note_stopped(j, job_node_of(j, ev), &ev->msg->u.stopped);
    roster_set(j, ev->node, JOB_NODE_STOPPED);
    return job_accounted(j);
}

int row_stale_stopped(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    struct job_node *n = job_node_of(j, ev);
    roster_heard(j, ev->node, now_ns);
    if (n->in_round || n->state != JOB_NODE_STOPPING || ev->msg->u.stopped.round != n->stale_round)
        return 0;
    note_stopped(j, ev);
    n->stale_round = 0;
    roster_set(j, ev->node, JOB_NODE_WAITING);
    return j->state == JOB_GATHERING ? job_ready(j, now_ns) : 0;
}

int row_note_health(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    const struct ctl_health *m = &ev->msg->u.health;
    bool fit = m->ok != 0;
    bool was_fit = job_node_of(j, ev)->health == JOB_HEALTH_OK;
    roster_heard(j, ev->node, now_ns);
    roster_health(j, ev->node, fit ? JOB_HEALTH_OK : JOB_HEALTH_UNHEALTHY, m->text);
    if (j->state == JOB_GATHERING)
        return job_ready(j, now_ns);
    bool comes = fit && !was_fit && j->state == JOB_RUNNING && job_takes_in(j, ev->node);
    return comes ? JOB_EV_BROKEN : 0;
}

int row_away(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    roster_connect(j, ev->node, false);
    job_watch_lease(j, job_node_of(j, ev));
    return j->state == JOB_GATHERING && j->aside_count > 0 ? job_ready(j, now_ns) : 0;
}

/* Why a node is not here any more, by how we know. */
static enum mu_cause_kind kind_of_leaving(const struct job_event *ev)
{
    if (ev->type == JOB_EV_NODE_DEAD)
        return MU_CAUSE_NODE_LOST;
    return ev->type == JOB_EV_BYE ? MU_CAUSE_NODE_LEFT : MU_CAUSE_NODE_SILENT;
}

static struct mu_cause cause_of_leaving(const struct job_event *ev, const struct job_node *n)
{
    const struct mu_cause *said = ev->type == JOB_EV_BYE ? &ev->msg->u.bye.cause : NULL;
    struct mu_cause c = job_cause_of_node(kind_of_leaving(ev), n);
    if (said != NULL && said->kind == MU_CAUSE_NODE_FAILED)
        c.kind = said->kind;
    if (said != NULL)
        memcpy(c.message, said->message, sizeof c.message);
    return c;
}

/* The server is in that agent's process, and goes with it: nobody could begin another round. */
static bool takes_the_server(const struct job_event *ev)
{
    return ev->type == JOB_EV_BYE && ev->msg->u.bye.final != 0;
}

/* Its reason is the round's cause, or a job's without a round, unless a failure is known already.
 */
int row_gather_left(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    struct mu_cause c = cause_of_leaving(ev, job_node_of(j, ev));
    if (!j->has_cause || !mu_cause_costs_restart(j->cause.kind))
        job_new_cause(j, &c, NULL);
    roster_forget(j, ev->node);
    if (takes_the_server(ev))
        return JOB_EV_ABANDONED;
    return j->node_count == 0 ? JOB_EV_ABANDONED : job_ready(j, now_ns);
}

/* A member is gone for good: it stays in the table for status until the next round. */
void job_lose(struct job *j, uint32_t slot, bool connection_gone)
{
    if (connection_gone)
        roster_connect(j, slot, false);
    roster_set(j, slot, JOB_NODE_LOST);
}

int row_run_left(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    struct job_node *n = job_node_of(j, ev);
    if (!n->in_round) {
        roster_forget(j, ev->node);
        return 0;
    }
    if (n->state == JOB_NODE_FINISHED) { /* Its work is done; the round goes on without it. */
        if (ev->type != JOB_EV_DEADLINE)
            roster_connect(j, ev->node, false);
        n->gone = true;
        job_act(j, JOB_ACT_KEEP, ev->node, CTL_TYPE_COUNT);
        return job_unexpect(j, n);
    }
    struct mu_cause c = cause_of_leaving(ev, n);
    job_new_cause(j, &c, NULL);
    job_lose(j, ev->node, ev->type != JOB_EV_DEADLINE);
    return JOB_EV_BROKEN;
}

int row_stop_left(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    struct job_node *n = job_node_of(j, ev);
    if (!n->in_round) {
        roster_forget(j, ev->node);
        return 0;
    }
    bool owed = owes_stopped(n);
    j->final = j->final || takes_the_server(ev);
    struct mu_cause c = cause_of_leaving(ev, n);
    job_lose(j, ev->node, ev->type != JOB_EV_DEADLINE);
    if (!owed)
        return 0;
    static const struct job_words none;
    const struct mu_cause former = j->cause;
    job_weigh_cause(j, now_ns, n, &c, &none);
    if (c.kind != MU_CAUSE_NODE_LEFT)
        job_note_consequence(j, j->new_cause ? &former : &c);
    return job_accounted(j);
}

int row_ended_left(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    roster_connect(j, ev->node, false); /* The slot stays, for status. */
    return 0;
}
