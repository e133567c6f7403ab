/* What people read: names from the lists, one sentence for a state, the table as a picture. */
#include "rendezvous/job/internal.h"

#include <inttypes.h>
#include <string.h>

#define NS_PER_S INT64_C(1000000000)
#define NAMED_MAX 8 /* Hosts that a sentence names before it says how many more. */

const char *job_state_name(enum job_state s)
{
    static const char *const names[] = {
#define X(s) [JOB_##s] = #s,
        JOB_STATES(X)
#undef X
    };
    MU_ASSERT((size_t)s < MU_COUNT(names));
    return names[s];
}

const char *job_event_name(enum job_event_type e)
{
    static const char *const names[] = {
#define X(e) [JOB_EV_##e] = #e,
        JOB_EVENTS(X) JOB_NEWS(X)
#undef X
    };
    MU_ASSERT((size_t)e < MU_COUNT(names));
    return names[e];
}

const char *job_node_state_name(enum job_node_state s)
{
    static const char *const names[] = {
        [JOB_NODE_WAITING] = "waiting",   [JOB_NODE_STARTING] = "starting",
        [JOB_NODE_RUNNING] = "running",   [JOB_NODE_FINISHED] = "finished",
        [JOB_NODE_STOPPING] = "stopping", [JOB_NODE_STOPPED] = "stopped",
        [JOB_NODE_LOST] = "lost"};
    MU_ASSERT((size_t)s < MU_COUNT(names));
    return names[s];
}

const char *job_node_shown(const struct job_node *n)
{
    if (n->state != JOB_NODE_WAITING)
        return job_node_state_name(n->state);
    if (n->health != JOB_HEALTH_OK)
        return n->health == JOB_HEALTH_CHECKING ? "checking" : "unhealthy";
    return n->aside ? "quarantined" : job_node_state_name(n->state);
}

/* Which nodes a sentence speaks of. */
typedef bool node_test(const struct job_node *n);

static bool is_cut_off(const struct job_node *n)
{
    return n->state != JOB_NODE_LOST && !n->connected && !n->gone;
}

static bool is_stopping(const struct job_node *n)
{
    return n->state == JOB_NODE_STOPPING;
}

static bool is_finished(const struct job_node *n)
{
    return n->in_round && n->state == JOB_NODE_FINISHED;
}

static bool is_at_work(const struct job_node *n)
{
    return owes_finished(n);
}

static bool has_not_reached(const struct job_node *n)
{
    return n->in_round && n->state == JOB_NODE_STARTING && !n->reached;
}

static bool is_member(const struct job_node *n)
{
    return n->in_round && n->state != JOB_NODE_LOST;
}

static bool is_checked(const struct job_node *n)
{
    return n->state == JOB_NODE_WAITING && n->health == JOB_HEALTH_CHECKING;
}

static bool is_unhealthy(const struct job_node *n)
{
    return n->state != JOB_NODE_LOST && n->health == JOB_HEALTH_UNHEALTHY;
}

static bool is_aside(const struct job_node *n)
{
    return n->state == JOB_NODE_WAITING && n->aside;
}

/* "n1, n2 and 14 more" */
static uint32_t name_hosts(const struct job *j, node_test *test, struct mu_buf *b)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < j->node_cap; i++) {
        if (!j->nodes[i].used || !test(&j->nodes[i]))
            continue;
        if (count < NAMED_MAX)
            (void)mu_buf_addf(b, "%s%s", count > 0 ? ", " : "", j->nodes[i].hello.host);
        count++;
    }
    if (count > NAMED_MAX)
        (void)mu_buf_addf(b, " and %u more", count - NAMED_MAX);
    return count;
}

/* Why those who are missing may be missing. */
static void hints(const struct job *j, struct mu_buf *b)
{
    char shown[MU_RUN_ID_BYTES + 16];
    if (j->refused[0] != '\0')
        (void)mu_buf_addf(b, "; refused: %s", j->refused);
    if (j->neighbour[0] != '\0')
        (void)mu_buf_addf(
            b, "; another job waits here too, %s: is --rdzv-id the same everywhere?",
            mu_quote(shown, sizeof shown, mu_str_of(j->neighbour, strlen(j->neighbour))));
}

/* How it failed its check, or where it began to fail. */
void job_uncounted_sentence(const struct job *j, const struct job_node *n, struct mu_buf *b)
{
    if (is_unhealthy(n))
        (void)mu_buf_addf(b, "; this node is unhealthy%s%s", n->unhealthy != NULL ? ": " : "",
                          n->unhealthy != NULL ? n->unhealthy : "");
    else if (is_checked(n))
        (void)mu_buf_adds(b, "; this node's health is being checked");
    else if (n->aside)
        (void)mu_buf_adds(b, "; this node is in quarantine, since failures begin here again and "
                             "again (--leave-quarantine forgives them)");
}

/* Those who are here and do not count. */
static void uncounted(const struct job *j, struct mu_buf *b)
{
    struct mu_buf hosts;
    mu_buf_init(&hosts, j->mem);
    if (name_hosts(j, is_checked, &hosts) > 0)
        (void)mu_buf_addf(b, "; being checked: %s", mu_buf_cstr(&hosts));
    mu_buf_reset(&hosts);
    if (name_hosts(j, is_aside, &hosts) > 0)
        (void)mu_buf_addf(b, "; in quarantine: %s", mu_buf_cstr(&hosts));
    mu_buf_reset(&hosts);
    uint32_t count = name_hosts(j, is_unhealthy, &hosts);
    if (count > 0)
        (void)mu_buf_addf(b, "; unhealthy: %s", mu_buf_cstr(&hosts));
    for (uint32_t i = 0; count > 0 && i < j->node_cap; i++) {
        const struct job_node *n = &j->nodes[i];
        if (!n->used || !is_unhealthy(n) || n->unhealthy == NULL)
            continue;
        (void)mu_buf_addf(b, " (%s%s%s)", count > 1 ? n->hello.host : "", count > 1 ? ": " : "",
                          n->unhealthy);
        break;
    }
    mu_buf_fini(&hosts);
}

static const char *s_are(uint32_t count)
{
    return count == 1 ? " is" : "s are";
}

static void gathering_sentence(const struct job *j, int64_t now_ns, struct mu_buf *b)
{
    if (!j->has_spec) {
        (void)mu_buf_adds(b, "nobody is here yet");
        return;
    }
    if (j->waiting < j->nodes_min)
        (void)mu_buf_addf(b, "%u of %u nodes are here", j->waiting, j->nodes_min);
    else if (job_hears_out(j, now_ns))
        (void)mu_buf_addf(b,
                          "%u node%s here; the server was restarted and hears out nodes of a "
                          "running round first",
                          j->waiting, s_are(j->waiting));
    else
        (void)mu_buf_addf(b, "%u node%s here, up to %u may still come", j->waiting,
                          s_are(j->waiting), j->nodes_max);
    if (j->waiting > 0) {
        (void)mu_buf_adds(b, " (");
        (void)name_hosts(j, roster_eligible, b);
        (void)mu_buf_adds(b, ")");
    }
    (void)mu_buf_addf(b, ", waiting for %" PRId64 " s", (now_ns - j->since_ns) / NS_PER_S);
    if (j->gather_deadline_ns != NEVER && now_ns < j->gather_deadline_ns &&
        j->waiting < j->nodes_min)
        (void)mu_buf_addf(b, ", giving up in %" PRId64 " s",
                          (j->gather_deadline_ns - now_ns) / NS_PER_S);
    uncounted(j, b);
    if (j->waiting < j->nodes_min)
        hints(j, b);
}

static void wait_sentence(
    const struct job *j, const char *what, node_test *test, int64_t now_ns, struct mu_buf *b)
{
    (void)mu_buf_addf(b, "round %u %s", j->round, what);
    size_t before = b->n;
    if (name_hosts(j, test, b) == 0)
        (void)mu_buf_addf(b, "%u node%s that did not come back", j->pending,
                          j->pending == 1 ? "" : "s");
    MU_ASSERT(b->n > before || b->oom);
    (void)mu_buf_addf(b, " for %" PRId64 " s", (now_ns - j->since_ns) / NS_PER_S);
    for (uint32_t i = 0; i < j->node_cap; i++) {
        const struct job_node *n = &j->nodes[i];
        if (!n->used || !test(n) || n->connected)
            continue;
        (void)mu_buf_addf(
            b, "; %s was last heard %" PRId64 " s ago and is given up after %" PRId64 " s",
            n->hello.host, (now_ns - n->heard_ns) / NS_PER_S, job_silence_allowed(j, n) / NS_PER_S);
        break;
    }
}

void job_finished_sentence(const struct job *j, int64_t now_ns, struct mu_buf *b)
{
    (void)mu_buf_adds(b, "every worker of this node has ended well, waiting for ");
    if (name_hosts(j, is_at_work, b) == 0)
        (void)mu_buf_adds(b, "the others");
    (void)mu_buf_addf(b, " for %" PRId64 " s", (now_ns - j->idle_since_ns) / NS_PER_S);
}

static void beginning_sentence(const struct job *j, int64_t now_ns, struct mu_buf *b)
{
    bool v6 = strchr(j->lead_addr, ':') != NULL;
    (void)mu_buf_addf(b, "round %u begins: waiting for ", j->round);
    (void)name_hosts(j, has_not_reached, b);
    (void)mu_buf_addf(b, " to reach the workers' store on %s at %s%s%s:%u, for %" PRId64 " s",
                      j->nodes[j->lead].hello.host, v6 ? "[" : "", j->lead_addr, v6 ? "]" : "",
                      j->lead_port, (now_ns - j->since_ns) / NS_PER_S);
}

static void running_sentence(const struct job *j, int64_t now_ns, struct mu_buf *b)
{
    if (j->unreached > 0) {
        beginning_sentence(j, now_ns, b);
        return;
    }
    (void)mu_buf_addf(b, "round %u runs: %u worker%s on %u node%s (", j->round, j->world,
                      j->world == 1 ? "" : "s", j->round_nodes, j->round_nodes == 1 ? "" : "s");
    (void)name_hosts(j, is_member, b);
    (void)mu_buf_adds(b, ")");
    struct mu_buf cut;
    mu_buf_init(&cut, j->mem);
    if (name_hosts(j, is_cut_off, &cut) > 0)
        (void)mu_buf_addf(b, "; not heard from: %s", mu_buf_cstr(&cut));
    uncounted(j, b);
    mu_buf_reset(&cut);
    if (name_hosts(j, is_finished, &cut) > 0) {
        (void)mu_buf_addf(b, "; finished: %s; waiting for ", mu_buf_cstr(&cut));
        (void)name_hosts(j, is_at_work, b);
        if (j->idle_since_ns != NEVER)
            (void)mu_buf_addf(b, " for %" PRId64 " s", (now_ns - j->idle_since_ns) / NS_PER_S);
    }
    mu_buf_fini(&cut);
    drain_sentence(j, b);
}

void job_sentence(const struct job *j, int64_t now_ns, struct mu_buf *b)
{
    switch (j->state) {
    case JOB_GATHERING:
        gathering_sentence(j, now_ns, b);
        break;
    case JOB_RECOVERING:
        (void)mu_buf_addf(b,
                          "the server was restarted: %u of %u nodes of round %u have not come back "
                          "yet, waiting for %" PRId64 " s, at most %" PRId64 " s",
                          j->pending, j->round_nodes, j->round, (now_ns - j->since_ns) / NS_PER_S,
                          j->fence_ns / NS_PER_S);
        break;
    case JOB_RUNNING:
        running_sentence(j, now_ns, b);
        break;
    case JOB_STOPPING:
        wait_sentence(j, "is being stopped, waiting for ", is_stopping, now_ns, b);
        break;
    case JOB_SUCCEEDED:
        (void)mu_buf_adds(b, "succeeded: every worker exited with status 0");
        break;
    case JOB_FAILED:
        (void)mu_buf_adds(b, "failed: ");
        mu_cause_sentence(&j->cause, b);
        if (j->budget.same_failure) {
            (void)mu_buf_adds(b, "; ");
            mu_cause_twice_sentence(&j->cause, b);
        }
        break;
    case JOB_STATE_COUNT:
        break;
    }
}

void job_dot(struct mu_buf *out)
{
    (void)mu_buf_adds(
        out, "digraph job {\n    rankdir=LR;\n    node [shape=box, fontname=\"sans-serif\"];\n    "
             "edge [fontname=\"sans-serif\", fontsize=10];\n");
    for (int s = 0; s < JOB_STATE_COUNT; s++)
        (void)mu_buf_addf(out, "    %s;\n", job_state_name((enum job_state)s));
    for (int s = 0; s < JOB_STATE_COUNT; s++) {
        for (int e = 0; e < JOB_EV_COUNT; e++) {
            int to = job_table_to((enum job_state)s, (enum job_event_type)e);
            if (to >= 0)
                (void)mu_buf_addf(
                    out, "    %s -> %s [label=\"%s\"%s];\n", job_state_name((enum job_state)s),
                    job_state_name((enum job_state)to), job_event_name((enum job_event_type)e),
                    to == s ? ", style=dotted" : "");
        }
    }
    (void)mu_buf_adds(out, "}\n");
}
