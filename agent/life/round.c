/* A round: told, checked, started; its workers run, hang, and exit. */
#include "agent/life/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define REACH_GAP_NS (200 * NS_PER_MS)
#define TELL_EXITS_NS                                                                              \
    (200 * NS_PER_MS) /* Single good exits are told in one go: 256 that come at once are one       \
                         FINISHED. */
#define YOUNG_NS NS_PER_S

/* When somebody else may soon be allowed to take our place: workers are told to stop after 0.7 of
 * the fence time, and whatever grace they had ends at 0.85 of it. */
int64_t life_fence_at(const struct life *l)
{
    return l->heard_ns + l->fence_ms * NS_PER_MS / 20 * 14;
}

int64_t life_fence_kill_at(const struct life *l)
{
    return l->heard_ns + l->fence_ms * NS_PER_MS / 20 * 17;
}

int life_fence(struct life *l, int64_t unix_ms)
{
    struct mu_cause c =
        life_cause_here(l, MU_CAUSE_NODE_SILENT,
                        "the server was not heard for 0.7 of the fence time: workers "
                        "are stopped before others may take their place",
                        unix_ms);
    l->signo = SIGNO_TERM;
    life_take_cause(l, &c, NULL);
    life_say(l, c.message);
    return LIFE_EV_BROKEN;
}

int life_row_start(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    MU_ASSERT(l->gone && l->alive == 0);
    l->start = ev->msg->u.start;
    l->fence_ms = l->start.fence_ms;
    l->needed_since_ns = NEVER;
    l->restarts = (uint32_t)l->start.restarts;
    l->spent = (uint32_t)(l->start.spent >= 0 ? l->start.spent : l->start.restarts);
    l->max_restarts = (uint32_t)l->start.max_restarts;
    l->spawned = false;
    l->signal_at_ns = 0;
    l->failure_untold = false;
    l->failure_said = false;
    l->final = false;
    l->halt_step = -1;
    l->halted = false;
    l->has_cause = false;
    l->any_untold = false;
    l->tell_at_ns = NEVER;
    for (int64_t i = 0; i < l->config.hello.nproc; i++) {
        l->exits[i] = EXIT_NOT_KNOWN;
        l->exit_untold[i] = false;
        l->steps[i] = -1;
    }
    l->steps_untold = false;
    l->late_count = 0;
    l->last_exit_ns = 0;
    l->stop_ms = l->reclaim_ms = -1;
    if (now_ns >= life_fence_at(l))
        return life_fence(l,
                          ev->unix_ms); /* It was so long under way that the round may be over. */
    if (l->start.reach_ms == 0)
        return LIFE_EV_CLEARED;
    l->reach_until_ns = now_ns + l->start.reach_ms * NS_PER_MS;
    l->reach_at_ns = NEVER;
    l->reach_error[0] = '\0';
    l->reach_word_ns = now_ns + MU_FIRST_WORD_NS;
    l->reached = l->start.node_rank == 0; /* It leads. */
    if (l->reached)
        life_send(l, CTL_REACHED);
    else
        life_act(l, LIFE_ACT_REACH);
    return 0;
}

int life_row_reached_lead(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    l->reached = true;
    life_send(l, CTL_REACHED);
    return 0;
}

int life_row_unreached_lead(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    if (ev->text != NULL)
        (void)snprintf(l->reach_error, sizeof l->reach_error, "%.127s", ev->text);
    l->reach_at_ns = now_ns + REACH_GAP_NS;
    return 0;
}

/* All nodes of the round reach the lead. */
int life_row_go_told(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    if (ev->msg->u.go.round != l->start.round || !l->reached)
        return 0;
    return now_ns >= life_fence_at(l) ? life_fence(l, ev->unix_ms) : LIFE_EV_CLEARED;
}

int life_row_start_workers(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    l->alive = (uint32_t)l->config.hello.nproc;
    l->gone = false;
    life_act(l, LIFE_ACT_SPAWN);
    return 0;
}

/* The server, which knows the lead's name, makes the whole sentence of it. */
int life_give_lead_up(struct life *l, int64_t unix_ms)
{
    char text[240];
    (void)snprintf(text, sizeof text, "%s, tried for %" PRId64 " s",
                   l->reach_error[0] != '\0' ? l->reach_error : "no answer",
                   l->start.reach_ms / 1000);
    struct mu_cause c = life_cause_here(l, MU_CAUSE_UNREACHED, text, unix_ms);
    life_fail_here(l, &c, NULL);
    return LIFE_EV_BROKEN;
}

/* START of the round we are in: the server thinks the first one was lost. Of another round it never
 * is (server's rule). */
int life_row_start_again(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    if (ev->msg->u.start.round != l->start.round)
        return 0;
    if (l->spawned)
        life_send(l, CTL_STARTED);
    else if (l->state == LIFE_CHECKING && l->reached)
        life_send(l, CTL_REACHED);
    return 0;
}

int life_row_start_too_late(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    return LIFE_EV_QUIT; /* BYE tells it why. */
}

int life_row_spawned(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    memcpy(l->pids, ev->pids, (size_t)l->config.hello.nproc * sizeof l->pids[0]);
    l->spawned = true;
    l->spawned_ns = now_ns;
    life_send(l, CTL_STARTED);
    return 0;
}

static struct mu_cause
cause_of_worker(const struct life *l, enum mu_cause_kind kind, const struct life_event *ev)
{
    struct mu_cause c = life_cause_here(l, kind, ev->text, ev->unix_ms);
    c.local_rank = (int32_t)ev->local_rank;
    c.rank = (int32_t)l->start.rank_base + c.local_rank;
    c.step = l->steps[ev->local_rank];
    return c;
}

int life_row_spawn_failed(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    struct mu_cause c = cause_of_worker(l, MU_CAUSE_SPAWN_FAILED, ev);
    life_fail_here(l, &c, NULL);
    return LIFE_EV_BROKEN;
}

/* Ranks run one program and start together: where one exits in its first moments, the others may
 * be about to say why too, and better. They are told to end when they are twice as old. */
void life_spare_the_young(struct life *l, int64_t now_ns)
{
    int64_t age_ns = l->spawned ? now_ns - l->spawned_ns : YOUNG_NS;
    l->signal_at_ns = age_ns < YOUNG_NS ? now_ns + age_ns : 0;
}

void life_record_exit(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    MU_ASSERT(ev->local_rank < l->config.hello.nproc &&
              l->exits[ev->local_rank] == EXIT_NOT_KNOWN && l->alive > 0);
    l->exits[ev->local_rank] = ev->status;
    l->alive--;
    l->last_exit_ns = now_ns;
}

struct mu_cause life_cause_of_exit(const struct life *l, const struct life_event *ev)
{
    struct mu_cause c =
        cause_of_worker(l, ev->status > 0 ? MU_CAUSE_WORKER_EXIT : MU_CAUSE_WORKER_SIGNAL, ev);
    c.pid = l->pids[ev->local_rank];
    c.exit_code = ev->status > 0 ? ev->status : 0;
    c.signo = ev->status < 0 ? -ev->status : 0;
    c.core_dumped = ev->core_dumped;
    c.out_of_memory = ev->oom_killed;
    c.blame = ev->names_rank && ev->named != c.rank ? ev->named : -1;
    return c;
}

int life_row_worker_exit(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    life_record_exit(l, now_ns, ev);
    l->halted = l->halted || (ev->status == 0 && ev->halted);
    if (ev->status == 0) {
        if (l->alive == 0)
            return LIFE_EV_DONE;
        l->exit_untold[ev->local_rank] = true;
        if (!l->any_untold)
            l->tell_at_ns = now_ns + TELL_EXITS_NS;
        l->any_untold = true;
        return 0;
    }
    struct mu_cause c = life_cause_of_exit(l, ev);
    if (ev->status > 0)
        life_spare_the_young(l, now_ns);
    life_fail_here(l, &c, &ev->words);
    return LIFE_EV_BROKEN;
}

int life_row_tell_silent(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    uint32_t n = ev->silent.n / CTL_SILENT_NUMBERS;
    uint32_t room = (uint32_t)l->config.hello.nproc;
    room = room < CTL_SILENT_MAX ? room : CTL_SILENT_MAX;
    l->silent_count = (n < room ? n : room) * CTL_SILENT_NUMBERS;
    if (l->silent_count > 0)
        memcpy(l->silent, ev->silent.v, l->silent_count * sizeof l->silent[0]);
    life_send(l, CTL_SILENT);
    return 0;
}

int life_row_worker_hung(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    struct mu_cause c = cause_of_worker(l, MU_CAUSE_NO_PROGRESS, ev);
    c.pid = l->pids[ev->local_rank];
    life_fail_here(l, &c, &ev->words);
    return LIFE_EV_BROKEN;
}

int life_row_say_finished(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    life_send(l, CTL_FINISHED);
    l->tell_at_ns = NEVER;
    if (!l->link_up && l->needed_since_ns == NEVER)
        l->needed_since_ns = now_ns;
    return 0;
}
