/* Told to stop: signals, and the launching process that is gone. */
#include "agent/life/internal.h"

#include <inttypes.h>
#include <stdio.h>

#define SAME_WORD_NS NS_PER_S /* Signals closer than this are one. */

static void leave(struct life *l, const struct life_event *ev)
{
    char name[16];
    char text[160];
    bool owners = ev->type == LIFE_EV_OWNER_GONE || ev->by_owner;
    if (ev->text != NULL)
        (void)snprintf(text, sizeof text, "%s", ev->text);
    else if (ev->type == LIFE_EV_OWNER_GONE)
        (void)snprintf(text, sizeof text, "its launching process was killed");
    else
        (void)snprintf(text, sizeof text, "told to stop by %s", mu_signal_name(ev->signo, name));
    enum mu_cause_kind kind =
        ev->text != NULL && !owners ? MU_CAUSE_NODE_FAILED : MU_CAUSE_NODE_LEFT;
    struct mu_cause c = life_cause_here(l, kind, text, ev->unix_ms);
    l->leaving = true;
    l->exit_status = 1;
    l->signo = ev->signo;
    if (ev->type == LIFE_EV_OWNER_GONE)
        l->signo = SIGNO_TERM;
    if (!l->has_cause)
        life_take_cause(l, &c, NULL);
    l->bye = c;
}

/* Nothing of a round runs here: there is nobody to pass it on to. */
int life_row_signal_idle(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    leave(l, ev);
    return LIFE_EV_QUIT;
}

static void say_how_long(struct life *l, int signo)
{
    char name[16];
    char text[160];
    (void)snprintf(text, sizeof text,
                   "%s: the workers have %" PRId64 " s to end; a second signal ends them at once",
                   mu_signal_name(signo, name), l->config.grace_ns / NS_PER_S);
    life_say(l, text);
}

/* The others are told at once, so that what their workers say next is known for a consequence. */
int life_row_signal_running(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    leave(l, ev);
    l->told_leave_ns = now_ns;
    if (ev->type == LIFE_EV_SIGNAL && ev->text == NULL)
        say_how_long(l, ev->signo);
    life_fail_here(l, &l->bye, NULL);
    return LIFE_EV_BROKEN;
}

int life_row_signal_finished(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    leave(l, ev);
    return l->gone ? LIFE_EV_QUIT : LIFE_EV_BROKEN;
}

/* Told once more while stopping: no more grace. */
int life_row_signal_stopping(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    bool again = l->leaving;
    if (again && now_ns - l->told_leave_ns < SAME_WORD_NS)
        return 0; /* One word, heard twice: a supervisor signals the process and its group. */
    leave(l, ev);
    if (!again) {
        l->told_leave_ns = now_ns;
        if (l->signalled)
            life_act(l, LIFE_ACT_SIGNAL);
        else
            life_signal_workers(l, now_ns);
        return 0;
    }
    if (!l->killed)
        life_kill_late_workers(l, now_ns);
    return 0;
}

int life_row_owner_running(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    l->kill_at_once = true;
    return l->state == LIFE_FINISHED ? life_row_signal_finished(l, now_ns, ev)
                                     : life_row_signal_running(l, now_ns, ev);
}

int life_row_owner_stopping(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    l->leaving = true; /* Counts as told before: straight to SIGKILL. */
    l->told_leave_ns = now_ns - SAME_WORD_NS;
    return life_row_signal_stopping(l, now_ns, ev);
}
