/* What an agent says, filled from the state of its life. */
#include "agent/life/life.h"

#include <string.h>

/* What the server should believe of our round: a failure it was not told of comes first, as FAILED,
 * so until then the workers "run". */
static int64_t round_state(const struct life *l)
{
    if (l->failure_untold)
        return 0;
    switch (l->state) {
    case LIFE_RUNNING:
        return 0;
    case LIFE_CHECKING:
        return 4;
    case LIFE_FINISHED:
        return 1;
    case LIFE_STOPPING:
        return 2;
    case LIFE_JOINING:
    case LIFE_ENDING:
    case LIFE_EXITED:
    case LIFE_STATE_COUNT:
        break;
    }
    return 3;
}

static void fill_hello(const struct life *l, struct ctl_hello *h)
{
    *h = l->config.hello;
    h->link = l->links;
    h->unready = l->health != LIFE_HEALTH_OK;
    h->round = l->start.round;
    h->round_seen = l->start.round;
    if (h->round == 0)
        return;
    h->round_state = round_state(l);
    h->round_node_rank = l->start.node_rank;
    h->round_nodes = l->start.node_count;
    h->round_restarts = l->start.restarts;
    h->round_spent = l->start.spent;
    h->round_fence_ms = l->start.fence_ms;
    h->round_begun_ms = l->start.begun_ms;
    h->round_halt_step = l->halt_step;
    h->round_halted = l->halted;
    if (l->has_cause && !l->failure_untold)
        h->round_cause = l->cause;
}

/* Of the round that we were in last. */
static void fill_stopped(const struct life *l, struct ctl_stopped *m)
{
    uint32_t told = l->late_count < MU_CONSEQUENCES_MAX ? l->late_count : MU_CONSEQUENCES_MAX;
    m->exits = (struct ctl_ints){l->exits, (uint32_t)l->config.hello.nproc};
    m->stop_ms = l->stop_ms;
    m->reclaim_ms = l->reclaim_ms;
    m->late = (struct ctl_ints){l->late, 2 * told};
    m->late_count = l->late_count;
}

void life_message(const struct life *l, const struct life_action *a, struct ctl_msg *ret)
{
    ctl_init(ret, a->msg);
    switch (a->msg) {
    case CTL_HELLO:
        fill_hello(l, &ret->u.hello);
        break;
    case CTL_REACHED:
        ret->u.reached.round = l->start.round;
        break;
    case CTL_STARTED:
        ret->u.started.round = l->start.round;
        ret->u.started.pids = (struct ctl_ints){l->pids, (uint32_t)l->config.hello.nproc};
        break;
    case CTL_EXITED:
        ret->u.exited.round = l->start.round;
        ret->u.exited.local_rank = a->arg;
        break;
    case CTL_FAILED:
        ret->u.failed.round = l->start.round;
        ret->u.failed.cause = l->failure;
        memcpy(ret->u.failed.output, l->failure_output, sizeof l->failure_output);
        memcpy(ret->u.failed.tail, l->failure_tail, sizeof l->failure_tail);
        memcpy(ret->u.failed.trace, l->failure_trace, sizeof l->failure_trace);
        break;
    case CTL_SILENT:
        ret->u.silent.round = l->start.round;
        ret->u.silent.workers = (struct ctl_ints){l->silent, l->silent_count};
        break;
    case CTL_FINISHED:
        ret->u.finished.round = l->start.round;
        ret->u.finished.halted = l->halted;
        break;
    case CTL_DRAIN:
        ret->u.drain.timeout_ms = l->drain_left_ms;
        memcpy(ret->u.drain.reason, l->drain_reason, sizeof l->drain_reason);
        break;
    case CTL_STOPPED:
        ret->u.stopped.round = l->stopped_round;
        ret->u.stopped.store_port = l->config.hello.store_port;
        ret->u.stopped.unready = l->health != LIFE_HEALTH_OK;
        if (l->stopped_round == l->start.round)
            fill_stopped(l, &ret->u.stopped);
        break;
    case CTL_HEALTH:
        ret->u.health.ok = l->health == LIFE_HEALTH_OK;
        if (l->health == LIFE_HEALTH_UNHEALTHY)
            memcpy(ret->u.health.text, l->health_text, sizeof ret->u.health.text);
        break;
    case CTL_BEAT:
        ret->u.beat.seq = l->beat_seq;
        ret->u.beat.round = l->state == LIFE_CHECKING || l->state == LIFE_RUNNING ||
                                    l->state == LIFE_FINISHED || l->state == LIFE_STOPPING
                                ? l->start.round
                                : 0;
        if (ret->u.beat.round != 0 && l->fence_ms < l->start.fence_ms)
            ret->u.beat.fence_ms = l->fence_ms;
        if (l->steps_in_beat)
            ret->u.beat.steps = (struct ctl_ints){l->steps, (uint32_t)l->config.hello.nproc};
        break;
    case CTL_BYE:
        ret->u.bye.round = l->start.round;
        ret->u.bye.final = l->config.serves;
        ret->u.bye.cause = l->bye.kind != MU_CAUSE_NONE ? l->bye : l->cause;
        break;
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
        MU_ASSERT(a->msg == CTL_HELLO); /* No: an agent does not say this. */
        break;
    }
}

void life_set_store_port(struct life *l, uint16_t port)
{
    l->config.hello.store_port = port;
}

void life_note_step(struct life *l, uint32_t local_rank, int64_t step)
{
    MU_ASSERT(local_rank < l->config.hello.nproc);
    l->steps[local_rank] = step < -1 ? -1 : step > INT32_MAX ? INT32_MAX : (int32_t)step;
    l->steps_untold = true;
}
