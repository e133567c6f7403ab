/* What the nodes of a round say, and who of them is gone. */
#include "rendezvous/job/internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

int row_beat(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    struct job_node *n = job_node_of(j, ev);
    roster_heard(j, ev->node, now_ns);
    if (ev->type == JOB_EV_BEAT) {
        n->beat_seq = ev->msg->u.beat.seq;
        job_send(j, ev->node, CTL_BEAT);
    }
    return j->state == JOB_GATHERING ? job_ready(j, now_ns) : 0;
}

/* Is the message about the live round, from a member of it? */
static bool of_this_round(struct job *j, int64_t now_ns, const struct job_event *ev, int64_t round)
{
    struct job_node *n = job_node_of(j, ev);
    roster_heard(j, ev->node, now_ns);
    return n->in_round && round == j->round && n->state != JOB_NODE_LOST;
}

int row_note_started(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    const struct ctl_started *m = &ev->msg->u.started;
    if (!of_this_round(j, now_ns, ev, m->round))
        return 0;
    struct job_node *n = job_node_of(j, ev);
    n->started_unix_ms = ev->unix_ms;
    job_act(j, JOB_ACT_KEEP, ev->node, CTL_TYPE_COUNT);
    for (uint32_t i = 0; i < m->pids.n && i < n->hello.nproc; i++)
        n->workers[i] = (struct job_worker){.pid = m->pids.v[i], .exit = JOB_EXIT_NONE};
    if (n->state == JOB_NODE_STARTING)
        roster_set(j, ev->node, JOB_NODE_RUNNING);
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
    return k == MU_CAUSE_WORKER_EXIT || k == MU_CAUSE_WORKER_SIGNAL || k == MU_CAUSE_SPAWN_FAILED ||
           k == MU_CAUSE_NODE_LEFT || k == MU_CAUSE_NODE_FAILED;
}

int row_run_failed(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    const struct ctl_failed *m = &ev->msg->u.failed;
    if (!of_this_round(j, now_ns, ev, m->round))
        return 0;
    struct job_node *n = job_node_of(j, ev);
    struct mu_cause c = m->cause;
    if (!is_nodes_own(c.kind))
        c.kind = MU_CAUSE_NODE_FAILED;
    c.node_rank = n->node_rank;
    if (c.local_rank >= 0)
        c.rank = n->rank_base + c.local_rank;
    if (c.host[0] == '\0')
        memcpy(c.host, n->hello.host, sizeof c.host);
    note_failed_worker(n, &c);
    job_new_cause(j, &c);
    return JOB_EV_BROKEN;
}

int row_count_failed(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    const struct ctl_failed *m = &ev->msg->u.failed;
    if (of_this_round(j, now_ns, ev, m->round)) {
        note_failed_worker(job_node_of(j, ev), &m->cause);
        j->consequences++;
    }
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
    finish_node(j, ev->node);
    return --j->pending == 0 ? JOB_EV_OVER : 0;
}

int row_recover_finished(struct job *j,
                         int64_t now_ns,
                         const struct job_event *ev,
                         struct mu_err *err)
{
    if (of_this_round(j, now_ns, ev, ev->msg->u.finished.round) &&
        owes_finished(job_node_of(j, ev)))
        finish_node(j, ev->node);
    return 0;
}

static void note_stopped(struct job *j, const struct job_event *ev)
{
    const struct ctl_stopped *m = &ev->msg->u.stopped;
    struct job_node *n = job_node_of(j, ev);
    n->store_port = (uint16_t)m->store_port;
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

int row_away(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    roster_connect(j, ev->node, false);
    job_watch_lease(j, job_node_of(j, ev));
    return 0;
}

/* Why a node is not here any more, by how we know. */
static enum mu_cause_kind kind_of_leaving(const struct job_event *ev)
{
    if (ev->type == JOB_EV_NODE_DEAD)
        return MU_CAUSE_NODE_LOST;
    return ev->type == JOB_EV_BYE ? MU_CAUSE_NODE_LEFT : MU_CAUSE_NODE_SILENT;
}

static void cause_of_leaving(struct job *j, const struct job_event *ev, const struct job_node *n)
{
    const struct mu_cause *said = ev->type == JOB_EV_BYE ? &ev->msg->u.bye.cause : NULL;
    struct mu_cause c = job_cause_of_node(kind_of_leaving(ev), n);
    if (said != NULL && said->kind == MU_CAUSE_NODE_FAILED)
        c.kind = said->kind;
    if (said != NULL)
        memcpy(c.message, said->message, sizeof c.message);
    job_new_cause(j, &c);
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
    if (!j->has_cause || !mu_cause_costs_restart(j->cause.kind))
        cause_of_leaving(j, ev, job_node_of(j, ev));
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
    cause_of_leaving(j, ev, n);
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
    job_lose(j, ev->node, ev->type != JOB_EV_DEADLINE);
    return owed ? job_accounted(j) : 0;
}

int row_ended_left(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err)
{
    roster_connect(j, ev->node, false); /* The slot stays, for status. */
    return 0;
}
