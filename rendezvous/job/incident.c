/* The record of a round's end: what ended it, what was decided, how long its phases took. */
#include "rendezvous/job/internal.h"

#include <string.h>

static void fill_budget(const struct job *j, struct job_incident *ret)
{
    ret->restarts = j->restarts;
    ret->spent = job_spent(j, j->step_now_ns);
    ret->max_restarts = j->max_restarts;
    ret->window_ms = j->budget.window_ns / NS_PER_MS;
    ret->given_back = j->budget.given_back_here;
    ret->same_failure = j->budget.same_failure;
}

static void keep_cause(const struct job *j, struct job_incident *in)
{
    job_keep_cause(j, in);
    int64_t rank = in->cause_node_rank;
    bool known = rank >= 0 && rank < j->round_nodes && j->members[rank] != JOB_NO_NODE;
    (void)mu_strcopy(in->boot_id, sizeof in->boot_id,
                     known ? j->nodes[j->members[rank]].hello.boot_id : ""); /* It fits. */
}

void job_begin_incident(struct job *j, enum job_decision d)
{
    struct job_incident *in = &j->incident;
    bool ran = j->round_nodes > 0; /* Else nodes were only gathering. */
    *in = (struct job_incident){0};
    keep_cause(j, in);
    in->number = ++j->incident_count;
    in->round = j->round;
    fill_budget(j, in);
    in->nodes = j->round_nodes;
    in->world = ran ? j->world : 0;
    in->gathering_unix_ms = j->gathering_unix_ms;
    in->started_unix_ms = ran ? j->round_started_unix_ms : 0;
    in->running_unix_ms = ran ? j->running_unix_ms : 0;
    in->decided_unix_ms = j->step_unix_ms;
    (void)mu_strcopy(in->decision, sizeof in->decision, job_decision_name(d));
    job_act(j, JOB_ACT_INCIDENT, JOB_NO_NODE, CTL_TYPE_COUNT);
}

void job_explain_incident(struct job *j)
{
    struct job_incident *in = &j->incident;
    if (in->number == 0 || in->round != j->round || in->stopped_unix_ms != 0)
        return; /* RECOVERING: it has not begun; or it began in a former life. */
    keep_cause(j, in);
    fill_budget(j, in);
    enum job_decision d = j->final         ? JOB_DECIDED_FAIL
                          : j->was_charged ? JOB_DECIDED_RESTART
                                           : JOB_DECIDED_REGROUP;
    (void)mu_strcopy(in->decision, sizeof in->decision, job_decision_name(d));
    job_act(j, JOB_ACT_INCIDENT, JOB_NO_NODE, CTL_TYPE_COUNT);
}

/* What was decided at the last round's end came to nothing: one record an end. */
void job_abandon_incident(struct job *j)
{
    struct job_incident *in = &j->incident;
    if (in->number == 0 || in->round != j->round || in->next_unix_ms != 0) {
        job_begin_incident(j, JOB_DECIDED_ABANDON);
        return;
    }
    (void)mu_strcopy(in->decision, sizeof in->decision, job_decision_name(JOB_DECIDED_ABANDON));
}

void job_end_incident(struct job *j)
{
    if (j->incident.number == 0)
        return; /* It began in a former life. */
    if (j->incident.stopped_unix_ms == 0)
        j->incident.stopped_unix_ms = j->step_unix_ms;
    j->incident.consequences = j->consequences;
    job_act(j, JOB_ACT_INCIDENT, JOB_NO_NODE, CTL_TYPE_COUNT);
}

void job_follow_incident(struct job *j)
{
    if (j->incident.number == 0)
        return;
    j->incident.next_unix_ms = j->step_unix_ms;
    job_act(j, JOB_ACT_INCIDENT, JOB_NO_NODE, CTL_TYPE_COUNT);
}
