/* The end of the job, and the way back into the next round. */
#include "agent/life/internal.h"

#include <string.h>

#define LAST_WORD_NS MU_GOODBYE_NS

static void note_end(struct life *l, const struct ctl_end *m)
{
    l->ended = true;
    l->success = m->success != 0;
    l->restarts = (uint32_t)m->restarts;
    l->spent = (uint32_t)(m->spent >= 0 ? m->spent : m->restarts);
    l->max_restarts = (uint32_t)m->max_restarts;
    l->same_failure = m->same_failure != 0;
    memcpy(l->spent_by, m->spent_by, sizeof l->spent_by);
    l->consequences = m->consequences;
    l->incident = m->incident;
    if (!l->success && m->cause.kind != MU_CAUSE_NONE)
        life_take_cause(l, &m->cause, m->output);
    if (!l->leaving)
        l->exit_status = l->success ? 0 : l->same_failure ? LIFE_EXIT_SAME_FAILURE : 1;
}

int life_row_end_here(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    note_end(l, &ev->msg->u.end);
    return LIFE_EV_QUIT;
}

/* END while processes of the round may be left: they go first. */
int life_row_end_first_stop(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    note_end(l, &ev->msg->u.end);
    l->signo = SIGNO_TERM;
    if (l->state == LIFE_FINISHED && l->gone)
        return LIFE_EV_QUIT;
    return LIFE_EV_BROKEN;
}

int life_row_end_noted(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    note_end(l, &ev->msg->u.end);
    return 0;
}

/* Before the next round it is looked at anew; whoever looks before nothing is left here would see
 * the workers. */
int life_row_rejoin(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    if (l->config.checks_health)
        life_begin_check(l);
    l->stopped_round = (uint32_t)l->start.round;
    life_send(l, CTL_STOPPED);
    l->stop_deadline_ns = NEVER;
    if (!l->link_up && l->needed_since_ns == NEVER)
        l->needed_since_ns = now_ns;
    return 0;
}

int life_row_wait_for_last_word(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    l->stopped_round = (uint32_t)l->start.round;
    life_send(l, CTL_STOPPED);
    l->stop_deadline_ns = now_ns + LAST_WORD_NS;
    l->exit_status = 1;
    return 0;
}

int life_row_quit(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    if (!l->ended)
        life_send(l, CTL_BYE);
    life_act(l, LIFE_ACT_EXIT);
    return 0;
}
