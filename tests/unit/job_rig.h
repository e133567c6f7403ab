/* What tests of rendezvous/job have in common: how a job is set up, what nodes say in it, and what
 * it told them. Each story keeps its own struct, as it watches other things. */
#ifndef MUSTER_TESTS_JOB_RIG_H
#define MUSTER_TESTS_JOB_RIG_H

#include "tests/unit/unit.h"

#include "base/check.h"
#include "rendezvous/job/job.h"

#define SEC INT64_C(1000000000)
#define RIG_ANY_NODE JOB_NO_NODE

static inline struct job_config rig_config(void)
{
    return (struct job_config){
        .run_id = "j", .lease_ns = 3 * SEC, .beat_ns = SEC, .version = "test"};
}

/* What that host's agent says first; the rest is the story's. */
static inline struct ctl_msg rig_hello(const char *host)
{
    struct ctl_msg m;
    ctl_init(&m, CTL_HELLO);
    (void)snprintf(m.u.hello.host, sizeof m.u.hello.host, "%s", host);
    (void)snprintf(m.u.hello.node, sizeof m.u.hello.node, "id-%s", host);
    (void)snprintf(m.u.hello.run_id, sizeof m.u.hello.run_id, "j");
    return m;
}

static inline struct job_event rig_hello_event(const struct ctl_msg *m)
{
    return (struct job_event){
        .type = JOB_EV_HELLO, .node = JOB_NO_NODE, .msg = m, .seen_addr = "10.0.0.9"};
}

/* A message of that round. FAILED: local rank 0 exited with 7. BYE: it was told to leave. */
static inline struct ctl_msg rig_message(enum ctl_type t, int64_t round)
{
    struct ctl_msg m;
    ctl_init(&m, t);
    if (t != CTL_BYE)
        m.u.failed.round = round; /* The first field of each. */
    else
        m.u.bye.cause.kind = MU_CAUSE_NODE_LEFT;
    if (t == CTL_FAILED) {
        m.u.failed.cause.kind = MU_CAUSE_WORKER_EXIT;
        m.u.failed.cause.exit_code = 7;
        m.u.failed.cause.local_rank = 0;
    }
    return m;
}

static inline struct job_event rig_event(uint32_t node, enum ctl_type t, const struct ctl_msg *m)
{
    static const enum job_event_type events[CTL_TYPE_COUNT] = {
        [CTL_REACHED] = JOB_EV_REACHED, [CTL_STARTED] = JOB_EV_STARTED,
        [CTL_EXITED] = JOB_EV_EXITED,   [CTL_FAILED] = JOB_EV_WORKER_FAILED,
        [CTL_SILENT] = JOB_EV_SILENT,   [CTL_FINISHED] = JOB_EV_FINISHED,
        [CTL_STOPPED] = JOB_EV_STOPPED, [CTL_BEAT] = JOB_EV_BEAT,
        [CTL_BYE] = JOB_EV_BYE,
    };
    MU_ASSERT(events[t] != 0);
    return (struct job_event){.type = events[t], .node = node, .msg = m};
}

/* How many messages of that type the last step sent, to that node or to anybody. */
static inline uint32_t rig_sent(const struct job_out *out, enum ctl_type t, uint32_t node)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < out->count; i++)
        count += out->actions[i].type == JOB_ACT_SEND && out->actions[i].msg == t &&
                 (node == RIG_ANY_NODE || out->actions[i].node == node);
    return count;
}

#endif
