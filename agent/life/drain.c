/* Told to leave in order: the workers of all nodes stop after one step. */
#include "agent/life/internal.h"

#include <inttypes.h>
#include <stdio.h>

/* Where others can go on without it, nothing failed. */
void life_leave_drained(struct life *l)
{
    bool others = l->config.hello.nodes_max > 1 && !l->config.serves;
    l->leaving = true;
    l->exit_status = others ? 0 : 1;
    if (!l->has_cause)
        life_take_cause(l, &l->bye, NULL);
}

void life_tell_drain(struct life *l, int64_t now_ns)
{
    int64_t left_ns = l->drain_until_ns - now_ns;
    l->drain_left_ms = left_ns > 0 ? left_ns / NS_PER_MS : 0;
    life_send(l, CTL_DRAIN);
}

/* Returns whether that is news. */
static bool begin_drain(struct life *l, int64_t now_ns, const char *reason, int64_t timeout_ns)
{
    char text[CTL_REASON_BYTES + 16];
    if (l->draining)
        return false;
    l->draining = true;
    l->drain_until_ns = now_ns + timeout_ns;
    (void)snprintf(l->drain_reason, sizeof l->drain_reason, "%s",
                   reason != NULL && reason[0] != '\0' ? reason : "no reason is given");
    (void)snprintf(text, sizeof text, "drained: %s", l->drain_reason);
    l->bye = life_cause_here(l, MU_CAUSE_NODE_LEFT, text, 0);
    return true;
}

static bool drain_of(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    if (ev->type == LIFE_EV_DRAIN)
        return begin_drain(l, now_ns, ev->text, ev->timeout_ns);
    const struct ctl_halt *m = &ev->msg->u.halt;
    return m->leave != 0 && begin_drain(l, now_ns, m->reason, m->timeout_ms * NS_PER_MS);
}

/* Nothing runs here, or nothing that has done a step. */
int life_row_halt_idle(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    (void)drain_of(l, now_ns, ev);
    if (!l->draining)
        return 0;
    life_leave_drained(l);
    return LIFE_EV_QUIT;
}

int life_row_drain_idle(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    return life_row_halt_idle(l, now_ns, ev);
}

static void say_drain(struct life *l, int64_t timeout_ns)
{
    char text[CTL_REASON_BYTES + 160];
    (void)snprintf(
        text, sizeof text,
        "this node is to leave (%s): the workers of all nodes stop at one step, or after "
        "%" PRId64 " s in any case",
        l->drain_reason, timeout_ns / NS_PER_S);
    life_say(l, text);
}

/* One step for all: the first one that is told stays. */
int life_row_halt_running(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    char text[MU_HOST_BYTES + CTL_REASON_BYTES + 80];
    const struct ctl_halt *m = &ev->msg->u.halt;
    if (drain_of(l, now_ns, ev))
        say_drain(l, m->timeout_ms * NS_PER_MS);
    if (m->step < 0 || m->round != l->start.round || l->halt_step >= 0)
        return 0;
    l->halt_step = (int32_t)m->step;
    (void)snprintf(text, sizeof text, "%s is to leave (%s): the workers stop after step %d",
                   m->host, m->reason, l->halt_step);
    life_say(l, text);
    life_act(l, LIFE_ACT_HALT);
    return 0;
}

int life_row_drain_running(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    if (!drain_of(l, now_ns, ev))
        return 0; /* Said twice. */
    say_drain(l, ev->timeout_ns);
    life_tell_drain(l, now_ns);
    return 0;
}

/* Its work is done, unless it only stopped for the others: they go on together. */
int life_row_halt_finished(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    (void)drain_of(l, now_ns, ev);
    if (!l->draining || l->halted)
        return 0;
    life_leave_drained(l);
    return l->gone ? LIFE_EV_QUIT : LIFE_EV_BROKEN;
}

int life_row_drain_finished(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    if (l->halted && drain_of(l, now_ns, ev))
        life_tell_drain(l, now_ns);
    return life_row_halt_finished(l, now_ns, ev);
}

/* It leaves when nothing of the round is left. */
int life_row_halt_stopping(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    (void)drain_of(l, now_ns, ev);
    return 0;
}

int life_row_drain_stopping(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    return life_row_halt_stopping(l, now_ns, ev);
}

/* The deadline is here, and workers run. */
int life_leave_at_once(struct life *l, int64_t now_ns)
{
    life_say(l, "the time to leave in order is over: the workers are ended");
    life_leave_drained(l);
    l->signo = SIGNO_TERM;
    l->told_leave_ns = now_ns;
    life_fail_here(l, &l->bye, NULL);
    return LIFE_EV_BROKEN;
}
