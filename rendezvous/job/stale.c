/* Fences of old rounds: a message that names another round than the live one is a no-op everywhere;
 * here it is noticed. */
#include "rendezvous/job/internal.h"

/* The round that a message of a member names; -1: it names none. */
static int64_t round_of(const struct job_event *ev)
{
    switch (ev->type) {
    case JOB_EV_REACHED:
        return ev->msg->u.reached.round;
    case JOB_EV_STARTED:
        return ev->msg->u.started.round;
    case JOB_EV_EXITED:
        return ev->msg->u.exited.round;
    case JOB_EV_WORKER_FAILED:
        return ev->msg->u.failed.round;
    case JOB_EV_SILENT:
        return ev->msg->u.silent.round;
    case JOB_EV_FINISHED:
        return ev->msg->u.finished.round;
    case JOB_EV_STOPPED:
        return ev->msg->u.stopped.round;
    case JOB_EV_BEAT:
        return ev->msg->u.beat.round > 0 ? ev->msg->u.beat.round : -1;
    case JOB_EV_HELLO:
    case JOB_EV_DRAIN:
    case JOB_EV_HEALTH: /* Of the node, in a round or not. */
    case JOB_EV_BYE:    /* Its last word, whatever it was in. */
    case JOB_EV_NODE_DEAD:
    case JOB_EV_NODE_AWAY:
    case JOB_EV_DEADLINE:
    case JOB_EV_RESUMES:
    case JOB_EV_READY:
    case JOB_EV_RESUMED:
    case JOB_EV_BROKEN:
    case JOB_EV_OVER:
    case JOB_EV_CLEAR:
    case JOB_EV_SPENT:
    case JOB_EV_GIVE_UP:
    case JOB_EV_ABANDONED:
    case JOB_EV_COUNT:
        break;
    }
    return -1;
}

int64_t job_stale_round(const struct job *j, const struct job_event *ev)
{
    int64_t round = round_of(ev);
    if (round < 0 || job_is_ended(j)) /* Under way when END went out. */
        return 0;
    const struct job_node *n = &j->nodes[ev->node];
    bool asked = !n->in_round && n->state == JOB_NODE_STOPPING && round == n->stale_round;
    if (asked && (ev->type == JOB_EV_STOPPED || ev->type == JOB_EV_BEAT))
        return 0; /* It was told to stop what it brought, and is about it. */
    return n->in_round && round == j->round ? 0 : round;
}
