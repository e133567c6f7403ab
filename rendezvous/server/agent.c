/* A connection of an agent: the greeting, frames in, frames out. What messages mean is jobs.c's and
 * the job's business. */
#include <errno.h>
#include <string.h>

#include <utlist.h>

#include "base/clock.h"
#include "rendezvous/server/internal.h"
#include "rendezvous/server/pool.h"

void agent_open(struct conn *c)
{
    struct agent *a = mu_zalloc(mu_mem_default(), sizeof *a);
    if (a == NULL) {
        conn_close(c);
        return;
    }
    a->conn = c;
    a->node = JOB_NO_NODE;
    a->offered = POOL_NONE;
    mu_buf_init(&a->in, mu_mem_default());
    mu_buf_init(&a->out, mu_mem_default());
    mu_buf_init(&a->held, mu_mem_default());
    c->kind = CONN_AGENT;
    c->u.agent = a;
    agent_readable(c); /* The greeting is there, most often the hello too. */
}

static void leave_patience(struct agent *a)
{
    DL_DELETE(a->conn->srv->patient, a);
    a->patient = false;
}

void agent_detach(struct agent *a)
{
    a->job->starts_due -= a->start_due;
    a->start_due = false;
    a->start_held = false;
    a->job->slots[a->node].agent = NULL;
    a->job = NULL;
    a->conn->srv->agent_count--;
}

void agent_free(struct agent *a)
{
    struct srv *s = a->conn->srv;
    if (a->dirty)
        DL_DELETE2(s->dirty, a, dirty_prev, dirty_next);
    if (a->patient)
        leave_patience(a);
    if (a->job != NULL)
        agent_detach(a);
    if (a->offered != POOL_NONE)
        srv_pool_gone(a);
    mu_buf_fini(&a->in);
    mu_buf_fini(&a->out);
    mu_buf_fini(&a->held);
    prove_free(a);
    mu_mem_free(mu_mem_default(), a);
}

/* --- out --- */

static void make_dirty(struct agent *a)
{
    struct srv *s = a->conn->srv;
    if (a->dirty)
        return;
    a->dirty = true;
    DL_APPEND2(s->dirty, a, dirty_prev, dirty_next);
}

/* The WELCOME that is due goes in front of the first message that is sent. */
static int encode(struct agent *a, const struct ctl_msg *m, struct mu_buf *out)
{
    bool due = a->patient;
    if (due)
        leave_patience(a);
    if (due && a->job != NULL) {
        struct ctl_msg welcome;
        job_message(&a->job->job, a->node, CTL_WELCOME, &welcome);
        if (ctl_encode(&welcome, out) < 0)
            return -ENOMEM;
    }
    return m != NULL ? ctl_encode(m, out) : 0;
}

/* A message to an agent for which none waits goes out at once, from a buffer that all share, and
 * needs no memory. What does not fit its socket, or finds it broken, stays in `out`. */
static int send_now(struct agent *a, const struct ctl_msg *m)
{
    struct mu_buf *b = &a->conn->srv->encoded;
    mu_buf_reset(b);
    if (encode(a, m, b) < 0)
        return -ENOMEM;
    ssize_t n = send(a->conn->watch.fd, b->p, b->n, MSG_NOSIGNAL | MSG_DONTWAIT);
    size_t sent = n > 0 ? (size_t)n : 0;
    return mu_buf_add(&a->out, b->p + sent, b->n - sent);
}

/* Make the START that is due, among what is held where it is; `now`: and send it, as nothing waits
 * before it. */
static void make_start(struct agent *a, bool now)
{
    struct ctl_msg m;
    job_message(&a->job->job, a->node, CTL_START, &m);
    int r = a->start_held ? ctl_encode(&m, &a->held)
            : now         ? send_now(a, &m)
                          : encode(a, &m, &a->out);
    if (r < 0)
        a->broken = true;
    a->start_due = false;
    a->start_held = false;
    a->job->starts_due--;
}

void agent_start(struct agent *a, bool hold)
{
    if (a->close_after || a->broken || a->drop || a->start_due)
        return;
    if (hold && a->patient)
        agent_send(a, NULL);
    a->start_due = true;
    a->start_held = hold;
    a->job->starts_due++;
    if (!hold)
        make_dirty(a);
}

void agent_starts_now(struct srv_job *sj)
{
    for (uint32_t i = 0; i < sj->slot_cap && sj->starts_due > 0; i++)
        if (sj->slots[i].agent != NULL && sj->slots[i].agent->start_due)
            make_start(sj->slots[i].agent, false);
}

void agent_send(struct agent *a, const struct ctl_msg *m)
{
    /* The last words wait for the end that follows, so that one packet takes both. */
    bool last = m != NULL && (m->type == CTL_END || m->type == CTL_REFUSED);
    if (a->close_after || a->broken || a->drop)
        return;
    if (a->start_due && !a->start_held)
        make_start(a, false);
    struct srv *s = a->conn->srv;
    if (s->said_turn != s->turn)
        s->said = 0;
    s->said_turn = s->turn;
    int r = 0;
    if (!a->dirty && a->out.n == 0 && !last && s->said++ < SRV_SAY_NOW_MAX) {
        r = send_now(a, m);
    } else {
        r = encode(a, m, &a->out);
    }
    if (a->out.n > 0)
        make_dirty(a);
    if (r < 0 || a->out.n - a->out_at > SRV_AGENT_OUT_BYTES_MAX) {
        a->broken = true;
        make_dirty(a);
    }
}

void agent_hold(struct agent *a, const struct ctl_msg *m)
{
    if (a->close_after || a->broken || a->drop)
        return;
    if (a->patient)
        agent_send(a, NULL);
    if (a->start_due)
        make_start(a, false);
    if (ctl_encode(m, &a->held) == 0)
        return;
    a->broken = true;
    make_dirty(a);
}

void agent_release(struct agent *a)
{
    if (a->held.n > 0 && !a->broken && mu_buf_add(&a->out, a->held.p, a->held.n) < 0)
        a->broken = true;
    mu_buf_fini(&a->held);
    a->start_held = false;
    a->close_after = a->close_after || a->close_held;
    make_dirty(a);
}

static void on_patience_over(uv_timer_t *timer);

static void arm_patience(struct srv *s)
{
    if (s->patient == NULL)
        return;
    int64_t wait_ns = s->patient->patient_until_ns - s->now_ns;
    (void)uv_timer_start(&s->patience, on_patience_over,
                         wait_ns > 0 ? (uint64_t)(wait_ns / MU_NS_PER_MS + 1) : 0, 0);
}

static void on_patience_over(uv_timer_t *timer)
{
    struct srv *s = timer->data;
    s->now_ns = mu_now_ns();
    while (s->patient != NULL && s->patient->patient_until_ns <= s->now_ns) {
        struct agent *a = s->patient;
        agent_send(a, NULL);
        if (a->patient) /* Its connection ends. */
            leave_patience(a);
    }
    arm_patience(s);
    srv_settle(s);
}

void agent_welcome(struct agent *a)
{
    struct srv *s = a->conn->srv;
    if (a->patient)
        return;
    int64_t patience_ns = s->config.beat_ns * 3 / 2;
    if (patience_ns > s->config.lease_ns / 2)
        patience_ns = s->config.lease_ns / 2; /* Its first beat must come before that ends. */
    bool first = s->patient == NULL;
    a->patient = true;
    a->patient_until_ns = s->now_ns + patience_ns;
    DL_APPEND(s->patient, a);
    if (first)
        arm_patience(s);
}

void agent_close_after(struct agent *a)
{
    a->close_after = true;
    make_dirty(a);
}

void agent_drop(struct agent *a)
{
    a->drop = true;
    make_dirty(a);
}

static void refused(struct ctl_msg *ret, const char *text, bool retry)
{
    ctl_init(ret, CTL_REFUSED);
    (void)mu_strcopy(ret->u.refused.text, sizeof ret->u.refused.text, text); /* It fits. */
    ret->u.refused.retry = retry;
}

void agent_refuse(struct agent *a, const char *text, bool retry)
{
    struct ctl_msg m;
    refused(&m, text, retry);
    agent_send(a, &m);
    agent_close_after(a);
}

/* Returns 0: all is out; 1: the peer must read first; or a negative errno. The last words wait for
 * the end that follows at once, so that one packet takes both. */
static int write_pending(struct agent *a)
{
    int flags = MSG_NOSIGNAL | MSG_DONTWAIT | (a->close_after ? MSG_MORE : 0);
    while (a->out_at < a->out.n) {
        ssize_t n = send(a->conn->watch.fd, a->out.p + a->out_at, a->out.n - a->out_at, flags);
        if (n >= 0)
            a->out_at += (size_t)n;
        else if (errno == EAGAIN)
            return 1;
        else if (errno != EINTR)
            return -errno;
    }
    mu_buf_fini(&a->out);
    a->out_at = 0;
    return 0;
}

static void log_lost(struct agent *a, const char *why)
{
    struct srv *s = a->conn->srv;
    uint32_t left_out = 0;
    char peer[MU_ADDR_BYTES];
    if (mu_log_allowed(&s->log_agent, s->now_ns, SRV_LOG_BURST, &left_out))
        mu_log(MU_WARN, "agent.closed", "peer=%s reason=\"%s\" left_out=%u",
               conn_peer(a->conn, peer), why, left_out);
}

/* Everything is said: the peer is told so and may still speak until it closes. Closing at once
 * would, with bytes of its own on their way, reset the connection over what it has not read yet. */
static void begin_to_leave(struct agent *a)
{
    if (a->conn->list == LIST_LEAVING)
        return;
    (void)shutdown(a->conn->watch.fd, SHUT_WR); /* Fails when the peer is gone, which is as well. */
    conn_move(a->conn, LIST_LEAVING);
}

static void flush(struct agent *a)
{
    if (a->drop) {
        conn_close(a->conn);
        return;
    }
    if (a->start_due && !a->start_held && !a->broken)
        make_start(a, a->out.n == 0 && !a->close_after);
    int r = a->broken ? -ENOBUFS : write_pending(a);
    if (r < 0) {
        if (!a->told)
            log_lost(a, a->broken ? "does not read what it is sent, or no memory for it"
                                  : strerror(-r));
        agent_lost(a, JOB_EV_NODE_AWAY);
        return;
    }
    watch_change(a->conn->srv, &a->conn->watch, WATCH_IN | (r == 1 ? WATCH_OUT : 0));
    if (r == 0 && a->close_after)
        begin_to_leave(a);
}

void agent_writable(struct conn *c)
{
    flush(c->u.agent);
}

/* Once a turn of the loop, which does not sleep meanwhile. A timer would not do: set anew for "at
 * once", libuv runs it again before it looks at anything else. */
static void on_flush_again(uv_idle_t *idle)
{
    struct srv *s = idle->data;
    (void)uv_idle_stop(idle);
    s->now_ns = mu_now_ns();
    srv_settle(s);
}

/* In the order in which they became dirty. A lost one makes news for others, which land here again.
 * Thousands take so long that others' questions come in between: the rest goes out in the next
 * turn.
 */
void agent_flush_dirty(struct srv *s)
{
    int64_t until_ns = s->dirty != NULL ? mu_now_ns() + SRV_FLUSH_NS : 0;
    for (uint32_t n = 1; s->dirty != NULL; n++) {
        struct agent *a = s->dirty;
        DL_DELETE2(s->dirty, a, dirty_prev, dirty_next);
        a->dirty = false;
        flush(a);
        if (n % 4 != 0 || s->dirty == NULL || mu_now_ns() < until_ns)
            continue;
        (void)uv_idle_start(&s->flush_again, on_flush_again); /* Fails without a callback only. */
        return;
    }
}

void agent_lost(struct agent *a, enum job_event_type how)
{
    struct srv *s = a->conn->srv;
    struct srv_job *sj = a->job;
    uint32_t node = a->node;
    conn_close(a->conn); /* And with it `a`: the job's SENDs to this node find nobody. */
    if (sj == NULL || s->closing)
        return;
    if (how == JOB_EV_NODE_AWAY)
        probe_begin(s, sj, node);
    jobs_event(s, sj, how, node, NULL);
}

/* --- in --- */

/* An agent's message as a job's event; JOB_EV_COUNT: only a server says this. */
static enum job_event_type event_of(enum ctl_type t)
{
    switch (t) {
    case CTL_HELLO:
        return JOB_EV_HELLO;
    case CTL_REACHED:
        return JOB_EV_REACHED;
    case CTL_STARTED:
        return JOB_EV_STARTED;
    case CTL_EXITED:
        return JOB_EV_EXITED;
    case CTL_FAILED:
        return JOB_EV_WORKER_FAILED;
    case CTL_SILENT:
        return JOB_EV_SILENT;
    case CTL_FINISHED:
        return JOB_EV_FINISHED;
    case CTL_STOPPED:
        return JOB_EV_STOPPED;
    case CTL_HEALTH:
        return JOB_EV_HEALTH;
    case CTL_BYE:
        return JOB_EV_BYE;
    case CTL_BEAT:
        return JOB_EV_BEAT;
    case CTL_DRAIN:
        return JOB_EV_DRAIN;
    case CTL_KNOCK:
    case CTL_CHALLENGE:
    case CTL_PROOF:
    case CTL_WELCOME:
    case CTL_REFUSED:
    case CTL_WAITING:
    case CTL_START:
    case CTL_GO:
    case CTL_HALT:
    case CTL_STOP:
    case CTL_END:
    case CTL_OFFER:
    case CTL_HAS:
    case CTL_ASSIGN:
    case CTL_PLACED:
    case CTL_UNASSIGN:
    case CTL_TAIL:
    case CTL_MORE:
    case CTL_UNTAIL:
    case CTL_OUTPUT:
    case CTL_CAUGHT:
    case CTL_UNDRAIN:
    case CTL_RELEASE:
    case CTL_TYPE_COUNT:
        break;
    }
    return JOB_EV_COUNT;
}

/* The peer broke the protocol: it is told why, and its connection ends. */
static void misbehaved(struct agent *a, const char *text)
{
    log_lost(a, text);
    if (a->job == NULL) {
        agent_refuse(a, text, false);
        return;
    }
    if (a->out.n == a->out_at) { /* It may come back, and then knows what to mend. */
        struct ctl_msg m;
        refused(&m, text, true);
        (void)send_now(a, &m); /* What does not fit is lost with the rest. */
    }
    a->broken = true;
    a->told = true;
    make_dirty(a);
}

static void handle_message(struct agent *a, const struct ctl_msg *m)
{
    struct srv *s = a->conn->srv;
    enum job_event_type ev = event_of(m->type);
    const char *why = NULL;
    if (m->type == CTL_KNOCK || m->type == CTL_PROOF) {
        why = m->type == CTL_KNOCK ? prove_knock(a, m) : prove_proof(a, m);
    } else if (m->type == CTL_OFFER && !a->said_hello) {
        a->said_hello = true;
        srv_pool_offer(s, a, m);
    } else if (a->offered != POOL_NONE) {
        if (!srv_pool_message(s, a, m))
            misbehaved(a, "a message that no node on offer sends");
    } else if (ev == JOB_EV_HELLO) {
        if (a->said_hello) {
            misbehaved(a, "a second hello on one connection");
            return;
        }
        why = srv_denies_agent(a, SRV_JOINS);
        if (why != NULL) {
            misbehaved(a, why);
            return;
        }
        a->said_hello = true;
        jobs_hello(s, a, m);
    } else if (ev == JOB_EV_COUNT) {
        misbehaved(a, "a message that only a server sends");
    } else if (!a->said_hello) {
        misbehaved(a, "the first message must be hello");
    } else if (a->job != NULL) {
        jobs_event(s, a->job, ev, a->node, m);
    }
    /* Else it was forgotten, and its last words change nothing. */
    if (why != NULL)
        misbehaved(a, why);
}

static bool is_ending(const struct agent *a)
{
    return a->drop || a->broken || (a->close_after && a->job == NULL);
}

/* Handles every whole frame of `in`. Returns how many bytes are done with. */
static size_t handle_frames(struct agent *a, struct mu_str in)
{
    struct srv *s = a->conn->srv;
    size_t done = 0;
    if (!a->greeted) {
        if (in.n < CTL_GREETING_BYTES)
            return 0;
        a->greeted = true; /* Compared when it was peeked at. */
        done = CTL_GREETING_BYTES;
    }
    while (!is_ending(a)) {
        struct mu_err err = {0};
        struct mu_str json;
        size_t frame_bytes = 0;
        struct ctl_msg m;
        int r = ctl_frame(mu_str_of(in.p + done, in.n - done), &json, &frame_bytes, &err);
        if (r == 0)
            return done;
        if (r > 0) {
            done += frame_bytes;
            r = ctl_decode(json, &m, &s->decoded, &err);
        }
        if (r == 0)
            handle_message(a, &m);
        else if (r !=
                 -ENOMSG) /* A newer agent's message that this version does not know is skipped. */
            misbehaved(a, r == -ENOMEM ? "no memory for its message" : err.msg);
    }
    return in.n;
}

static int take_bytes(struct agent *a, size_t n)
{
    struct srv *s = a->conn->srv;
    if (a->in.n == 0) {
        size_t done = handle_frames(a, mu_str_of(s->scratch, n));
        return mu_buf_add(&a->in, s->scratch + done, n - done);
    }
    if (mu_buf_add(&a->in, s->scratch, n) < 0)
        return -ENOMEM;
    size_t done = handle_frames(a, mu_str_of(a->in.p, a->in.n));
    mu_buf_consume(&a->in, done);
    if (a->in.n == 0)
        mu_buf_fini(&a->in);
    return 0;
}

void agent_readable(struct conn *c)
{
    struct srv *s = c->srv;
    struct agent *a = c->u.agent;
    ssize_t n = recv(c->watch.fd, s->scratch, SRV_SCRATCH_BYTES, 0);
    if (n < 0 && errno == EAGAIN)
        return;
    if (n > 0) {
        if (take_bytes(a, (size_t)n) < 0)
            misbehaved(a, "no memory for its message");
        if (c->hung_up || n == SRV_SCRATCH_BYTES)
            watch_again(s, &c->watch); /* After the answers. */
        return;
    }
    /* Closed without a goodbye: its process is gone. Reset, or silent for the kernel's patience:
     * unknown, it may come back. */
    if (n < 0)
        log_lost(a, strerror(errno));
    else if (a->proving != NULL)
        log_lost(a, "left as it was to show its token: it may have another one than this server");
    agent_lost(a, n == 0 ? JOB_EV_NODE_DEAD : JOB_EV_NODE_AWAY);
}
