/* A round is being stopped: who says so, the ladder of signals, and what is left. */
#include "agent/life/internal.h"

#include <inttypes.h>
#include <string.h>

#define NAMED_MAX 8 /* Workers that a sentence names before it says how many more. */

static int32_t whole_ms(int64_t ns)
{
    int64_t ms = ns / NS_PER_MS;
    return ms < 0 ? 0 : ms > INT32_MAX ? INT32_MAX : (int32_t)ms;
}

/* It failed by itself, though something else had failed before. */
static void note_late(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    if (ev->status == 0 || !ev->by_itself || !l->spawned)
        return;
    if (l->late_count < MU_CONSEQUENCES_MAX) {
        l->late[2 * l->late_count] = (int32_t)ev->local_rank;
        l->late[2 * l->late_count + 1] = whole_ms(now_ns - l->stop_began_ns);
    }
    l->late_count++;
}

/* Mostly a consequence of the stop. But news of a failure elsewhere can be faster than our notice
 * of the one here that brought it about: what failed before we touched it is told, and whoever
 * knows all of it decides. */
int life_row_stopping_exit(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    life_record_exit(l, now_ns, ev);
    note_late(l, now_ns, ev);
    if (ev->status == 0 || !ev->by_itself || !l->spawned)
        return 0;
    struct mu_cause c = life_cause_of_exit(l, ev);
    if (l->failure_said && !mu_cause_is_better(&c, &l->failure, true))
        return 0;
    life_note_failure(l, &c, &ev->words);
    bool told = l->told_stop_round == l->start.round;
    if (!told && l->has_cause && mu_cause_is_better(&c, &l->cause, true))
        life_take_cause(l, &c, ev->words.output);
    life_send(l, CTL_FAILED);
    return 0;
}

int life_row_note_gone(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    l->gone = true;
    return 0;
}

static int nothing_left(struct life *l)
{
    if (l->draining && !l->final && !l->leaving && !l->ended)
        life_leave_drained(l);
    if (l->leaving || l->ended)
        return LIFE_EV_QUIT;
    return l->final ? LIFE_EV_GONE_FINAL : LIFE_EV_GONE_REJOIN;
}

int life_row_count_gone(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    int64_t ended_ns = l->last_exit_ns > l->stop_began_ns ? l->last_exit_ns : l->stop_began_ns;
    l->gone = true;
    l->alive = 0; /* Some were never started, where a spawn failed. */
    l->stop_ms = whole_ms(ended_ns - l->stop_began_ns);
    l->reclaim_ms = whole_ms(now_ns - ended_ns);
    for (uint32_t i = 0; i < l->late_count && i < MU_CONSEQUENCES_MAX; i++) /* Backwards. */
        l->late[2 * i + 1] = whole_ms(now_ns - l->stop_began_ns) - l->late[2 * i + 1];
    return nothing_left(l);
}

void life_signal_workers(struct life *l, int64_t now_ns)
{
    life_act(l, LIFE_ACT_SIGNAL);
    l->signalled = true;
    l->stop_deadline_ns = now_ns + l->config.grace_ns;
}

static void kill_workers(struct life *l, int64_t now_ns)
{
    life_act(l, LIFE_ACT_KILL);
    l->killed = true;
    l->stop_deadline_ns = now_ns + MU_KILL_WAIT_NS;
}

/* The ladder's first rung: the signal that was asked for, or SIGTERM. Nothing to do where nothing
 * is left. */
int life_row_stop_workers(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    l->killed = false;
    l->signalled = false;
    l->tell_at_ns = NEVER;
    l->stop_deadline_ns = l->signal_at_ns;
    l->stop_began_ns = now_ns;
    l->stop_word_ns = now_ns + MU_FIRST_WORD_NS;
    l->stop_gap_ns = MU_FIRST_WORD_NS;
    if (l->gone)
        return nothing_left(l);
    if (l->kill_at_once) {
        kill_workers(l, now_ns);
        return 0;
    }
    if (l->alive > 0 && now_ns < l->signal_at_ns)
        return 0;
    life_signal_workers(l, now_ns);
    if (l->alive == 0) /* Only what the workers left behind: it gets no grace. */
        kill_workers(l, now_ns);
    return 0;
}

/* "round 1 ended: rank 3 on n2 exited with status 7; the group starts again (1 of 3 restarts)" */
static void say_why_again(struct life *l, const struct ctl_stop *m)
{
    struct mu_buf b;
    char within[LIFE_WITHIN_BYTES];
    mu_buf_init(&b, l->mem);
    (void)mu_buf_addf(&b, "round %" PRId64 " ended: ", m->round);
    mu_cause_sentence(&m->cause, &b);
    if (mu_cause_costs_restart(m->cause.kind))
        (void)mu_buf_addf(&b, "; the group starts again (restart %" PRId64 " of %u%s)",
                          m->spent >= 0 ? m->spent : l->restarts + (int64_t)1, l->max_restarts,
                          life_within(l, within));
    else
        (void)mu_buf_adds(&b, "; the group starts again when enough nodes are here (no restart is "
                              "spent)");
    life_say(l, mu_buf_cstr(&b));
    mu_buf_fini(&b);
}

static bool is_same_failure(const struct mu_cause *a, const struct mu_cause *b)
{
    return a->kind == b->kind && a->rank == b->rank && a->node_rank == b->node_rank &&
           strcmp(a->host, b->host) == 0;
}

static void note_stop(struct life *l, const struct ctl_stop *m)
{
    bool news = l->told_stop_round != m->round || !is_same_failure(&l->cause, &m->cause);
    l->told_stop_round = (uint32_t)m->round;
    l->final = m->final != 0;
    l->failure_untold = false;
    life_take_cause(l, &m->cause, m->output);
    if (news && !l->final && !l->leaving) /* The end of the job says its cause itself. */
        say_why_again(l, m);
}

int life_row_stop_other_round(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    const struct ctl_stop *m = &ev->msg->u.stop;
    l->stopped_round = (uint32_t)m->round;
    if (m->round == l->start.round) {
        note_stop(l, m);
        if (l->final && l->state == LIFE_JOINING)
            return LIFE_EV_GONE_FINAL;
    }
    life_send(l, CTL_STOPPED);
    return 0;
}

/* A worker elsewhere hangs, or one of ours that was blamed there: what ours are doing, no one can
 * tell any more once they are told to end. They lose no grace by it. */
static void look_first(struct life *l, int64_t now_ns)
{
    int64_t limit_ns = life_sooner(l->config.stacks_ns, l->config.grace_ns);
    if (limit_ns <= 0 || l->alive == 0)
        return;
    life_act(l, LIFE_ACT_STACKS);
    l->signal_at_ns = now_ns + limit_ns;
}

/* The server knows of the one that hung by now, and has no words of it where others blamed it. */
int life_row_stacks_taken(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    int32_t local_rank = l->cause.rank - (int32_t)l->start.rank_base;
    bool ours = l->cause.kind == MU_CAUSE_NO_PROGRESS && local_rank >= 0 &&
                local_rank < l->config.hello.nproc;
    if (ours && !l->failure_said && !l->leaving) {
        struct mu_cause c = l->cause;
        c.local_rank = local_rank;
        life_note_failure(l, &c, &ev->words);
        life_send(l, CTL_FAILED);
    }
    if (!l->signalled && !l->killed && !l->gone)
        life_signal_workers(l, now_ns);
    return 0;
}

int life_row_stop_told(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    if (ev->msg->u.stop.round != l->start.round)
        return life_row_stop_other_round(l, now_ns, ev);
    note_stop(l, &ev->msg->u.stop);
    l->signo = SIGNO_TERM;
    if (l->state == LIFE_RUNNING && l->cause.kind == MU_CAUSE_WORKER_EXIT)
        life_spare_the_young(l, now_ns);
    if (l->state == LIFE_RUNNING && l->cause.kind == MU_CAUSE_NO_PROGRESS)
        look_first(l, now_ns);
    return LIFE_EV_BROKEN;
}

int life_row_stop_again(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    if (ev->msg->u.stop.round == l->start.round)
        note_stop(l, &ev->msg->u.stop);
    return 0;
}

/* "rank 3 (pid 77), rank 4 (pid 78) and 2 more". Returns how many live. */
static uint32_t name_living(const struct life *l, struct mu_buf *b)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < (uint32_t)l->config.hello.nproc; i++) {
        if (l->exits[i] != EXIT_NOT_KNOWN)
            continue;
        if (count < NAMED_MAX)
            (void)mu_buf_addf(b, "%srank %u (pid %d)", count > 0 ? ", " : "",
                              (uint32_t)l->start.rank_base + i, l->pids[i]);
        count++;
    }
    if (count > NAMED_MAX)
        (void)mu_buf_addf(b, " and %u more", count - NAMED_MAX);
    return count;
}

/* "rank 3 (pid 77) had not ended 4.0 s after SIGTERM: SIGKILL" */
static void say_who_is_killed(struct life *l, int64_t now_ns)
{
    char name[16];
    struct mu_buf b;
    mu_buf_init(&b, l->mem);
    uint32_t count = name_living(l, &b);
    double after_s = (double)(now_ns - (l->stop_deadline_ns - l->config.grace_ns)) / NS_PER_S;
    (void)mu_buf_addf(&b, " had not ended %.1f s after %s: SIGKILL", after_s,
                      mu_signal_name(l->signo, name));
    if (count > 0)
        life_say(l, mu_buf_cstr(&b));
    mu_buf_fini(&b);
}

/* The ladder's last rung. */
void life_kill_late_workers(struct life *l, int64_t now_ns)
{
    if (l->spawned)
        say_who_is_killed(l, now_ns);
    kill_workers(l, now_ns);
}

/* Workers that were told to end and do not. */
void life_say_who_stays(struct life *l, int64_t now_ns)
{
    char name[16];
    if (l->gone || now_ns < l->stop_word_ns)
        return;
    l->stop_word_ns = now_ns + l->stop_gap_ns;
    l->stop_gap_ns = life_longer_gap(l->stop_gap_ns);
    int64_t left_s = l->stop_deadline_ns > now_ns ? (l->stop_deadline_ns - now_ns) / NS_PER_S : 0;
    struct mu_buf b;
    mu_buf_init(&b, l->mem);
    uint32_t count = l->spawned ? name_living(l, &b) : 0;
    if (count == 0)
        (void)mu_buf_adds(&b, "what the workers left behind");
    (void)mu_buf_addf(&b, " %s not ended %" PRId64 " s after %s; %s %" PRId64 " s",
                      count > 1 ? "have" : "has", (now_ns - l->stop_began_ns) / NS_PER_S,
                      mu_signal_name(l->killed ? SIGNO_KILL : l->signo, name),
                      l->killed ? "waiting for the kernel for another" : "SIGKILL follows in",
                      left_s);
    life_say(l, mu_buf_cstr(&b));
    mu_buf_fini(&b);
}
