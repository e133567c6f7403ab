/* rendezvous/job: who is not counted on: nodes whose health check fails, and hosts on which
 * failures begin again and again. */
#include "tests/unit/job_rig.h"

#include <errno.h>

#define NODES 4

struct story {
    struct job job;
    struct job_out out;
    int64_t now;
    uint32_t slot[NODES + 1]; /* Of n1, n2, ... */
    char started[64];         /* By the last step: "n1 n3 ". */
    int min, max;
};

static void give(struct story *s, struct job_event ev)
{
    struct mu_err err = {0};
    ev.unix_ms = s->now / 1000000;
    assert_int_equal(job_step(&s->job, s->now, &ev, &s->out, &err), 0);
    for (uint32_t i = 0; i < s->out.count; i++) {
        size_t n = strlen(s->started);
        if (s->out.actions[i].type == JOB_ACT_SEND && s->out.actions[i].msg == CTL_START)
            (void)snprintf(s->started + n, sizeof s->started - n, "%s ",
                           s->job.nodes[s->out.actions[i].node].hello.host);
    }
}

static void
hello_from(struct story *s, int n, const char *boot_id, bool unready, bool leave, const char *id)
{
    char host[16];
    (void)snprintf(host, sizeof host, "n%d", n);
    struct ctl_msg m = rig_hello(host);
    struct ctl_hello *h = &m.u.hello;
    (void)snprintf(h->node, sizeof h->node, "%s-n%d", id, n);
    (void)snprintf(h->boot_id, sizeof h->boot_id, "%s", boot_id);
    h->nodes_min = s->min;
    h->nodes_max = s->max;
    h->nproc = 1;
    h->max_restarts = 100;
    h->last_call_ms = 1;
    h->unready = unready;
    h->leave_quarantine = leave;
    s->started[0] = '\0';
    give(s, rig_hello_event(&m));
    s->slot[n] = s->out.node;
}

static void hello(struct story *s, int n)
{
    hello_from(s, n, "b", false, false, "id");
}

static void begin(struct story *s, int min, int max, uint32_t failures)
{
    struct job_config c = rig_config();
    c.quarantine_failures = failures;
    c.quarantine_window_ns = 1000 * SEC;
    memset(s, 0, sizeof *s);
    s->now = 5000 * SEC;
    s->min = min;
    s->max = max;
    assert_int_equal(job_init(&s->job, mu_mem_default(), &c, NULL), 0);
}

static void health(struct story *s, int n, bool ok)
{
    struct ctl_msg m;
    ctl_init(&m, CTL_HEALTH);
    m.u.health.ok = ok;
    (void)snprintf(m.u.health.text, sizeof m.u.health.text, "%s", ok ? "" : "no GPU");
    s->started[0] = '\0';
    give(s, (struct job_event){.type = JOB_EV_HEALTH, .node = s->slot[n], .msg = &m});
}

static void stopped(struct story *s, uint32_t slot, bool unready)
{
    struct ctl_msg m = rig_message(CTL_STOPPED, s->job.round);
    m.u.stopped.unready = unready;
    give(s, (struct job_event){.type = JOB_EV_STOPPED, .node = slot, .msg = &m});
}

/* The round fails, first on node n; then all have stopped. */
static void fail_first(struct story *s, int n)
{
    struct ctl_msg m = rig_message(CTL_FAILED, s->job.round);
    s->now += SEC;
    give(s, rig_event(s->slot[n], CTL_FAILED, &m));
    s->started[0] = '\0';
    uint32_t members[NODES];
    uint32_t count = s->job.round_nodes;
    memcpy(members, s->job.members, count * sizeof members[0]);
    for (uint32_t i = 0; i < count; i++)
        stopped(s, members[i], false);
}

#define SHOWN(s, n) job_node_shown(&(s)->job.nodes[(s)->slot[n]])

static void test_who_is_being_checked_or_unhealthy_does_not_count(void **state)
{
    struct story s;
    struct mu_buf b;
    (void)state;
    begin(&s, 2, 2, 3);
    hello(&s, 1);
    hello_from(&s, 2, "b", true, false, "id");
    assert_string_equal(s.started, "");
    assert_string_equal(SHOWN(&s, 2), "checking");
    assert_int_equal(s.job.waiting, 1);
    health(&s, 2, false);
    assert_string_equal(SHOWN(&s, 2), "unhealthy");
    assert_string_equal(s.job.nodes[s.slot[2]].unhealthy, "no GPU");
    mu_buf_init(&b, mu_mem_default());
    job_sentence(&s.job, s.now, &b);
    assert_has(mu_buf_cstr(&b), "1 of 2 nodes are here (n1)");
    assert_has(mu_buf_cstr(&b), "; unhealthy: n2 (no GPU)");
    mu_buf_fini(&b);
    hello_from(&s, 2, "b", true, false, "id"); /* Back on another connection. */
    assert_string_equal(SHOWN(&s, 2), "unhealthy");
    health(&s, 2, true);
    assert_string_equal(s.started, "n1 n2 ");
    assert_null(s.job.nodes[s.slot[2]].unhealthy);
    job_fini(&s.job);
}

static void test_the_next_round_waits_for_checks_but_not_for_the_unhealthy(void **state)
{
    struct story s;
    (void)state;
    begin(&s, 1, 2, 3);
    hello(&s, 1);
    hello(&s, 2);
    assert_int_equal(s.job.state, JOB_RUNNING);
    struct ctl_msg m = rig_message(CTL_FAILED, 1);
    m.u.failed.cause.kind = MU_CAUSE_WORKER_EXIT;
    give(&s, (struct job_event){.type = JOB_EV_WORKER_FAILED, .node = s.slot[1], .msg = &m});
    s.started[0] = '\0';
    stopped(&s, s.slot[1], true);
    stopped(&s, s.slot[2], true);
    health(&s, 1, true);
    assert_string_equal(s.started, "");
    health(&s, 2, false);
    assert_string_equal(s.started, "n1 ");
    job_fini(&s.job);
}

static void
test_a_check_that_lasts_holds_nothing_up_for_longer_than_nodes_are_waited_for(void **state)
{
    struct story s;
    (void)state;
    begin(&s, 1, 2, 3);
    hello(&s, 1);
    hello(&s, 2);
    struct ctl_msg m = rig_message(CTL_FAILED, 1);
    m.u.failed.cause.kind = MU_CAUSE_WORKER_EXIT;
    give(&s, (struct job_event){.type = JOB_EV_WORKER_FAILED, .node = s.slot[1], .msg = &m});
    stopped(&s, s.slot[1], false);
    stopped(&s, s.slot[2], true);
    assert_int_equal(s.job.state, JOB_GATHERING);
    while (s.now < s.job.gather_deadline_ns) {
        struct ctl_msg beat;
        ctl_init(&beat, CTL_BEAT);
        s.now += SEC;
        s.started[0] = '\0';
        for (int n = 1; n <= 2; n++)
            give(&s, (struct job_event){.type = JOB_EV_BEAT, .node = s.slot[n], .msg = &beat});
        give(&s, (struct job_event){.type = JOB_EV_DEADLINE, .node = JOB_NO_NODE});
    }
    assert_string_equal(s.started, "n1 ");
    job_fini(&s.job);
}

static void test_a_host_that_fails_alone_is_set_aside_for_a_spare(void **state)
{
    struct story s;
    (void)state;
    begin(&s, 2, 2, 2);
    for (int n = 1; n <= 3; n++)
        hello(&s, n);
    fail_first(&s, 1);
    assert_string_equal(s.started, "n1 n2 ");
    fail_first(&s, 1);
    assert_string_equal(s.started, "n3 n2 ");
    assert_string_equal(SHOWN(&s, 1), "quarantined");
    uint32_t at = 0;
    const struct job_node *n1 = &s.job.nodes[s.slot[1]];
    const struct job_blamed *b = job_next_blamed(&s.job, n1, s.now / 1000000, &at);
    assert_int_equal(b->round, 1);
    assert_has(b->sentence, "on n1 exited with status 7");
    assert_int_equal(job_next_blamed(&s.job, n1, s.now / 1000000, &at)->round, 2);
    assert_null(job_next_blamed(&s.job, n1, s.now / 1000000, &at));
    assert_int_equal(s.job.fence_ns, 3 * SEC); /* The job could go on with it. */
    /* Another node leaves: it is needed, and used. */
    s.started[0] = '\0';
    give(&s, (struct job_event){.type = JOB_EV_NODE_DEAD, .node = s.slot[3]});
    stopped(&s, s.slot[2], false);
    assert_string_equal(s.started, "n1 n2 ");
    job_fini(&s.job);
}

/* Nobody stays in quarantine whom the next round needs: another that waits is asked to leave. */
static void test_a_drain_takes_back_who_is_needed(void **state)
{
    struct story s;
    (void)state;
    begin(&s, 2, 3, 2);
    for (int n = 1; n <= 4; n++)
        hello(&s, n);
    fail_first(&s, 1);
    fail_first(&s, 1);
    assert_string_equal(s.started, "n4 n2 n3 ");
    struct ctl_msg m = rig_message(CTL_FAILED, s.job.round);
    m.u.failed.cause.kind = MU_CAUSE_WORKER_EXIT;
    give(&s, (struct job_event){.type = JOB_EV_WORKER_FAILED, .node = s.slot[4], .msg = &m});
    stopped(&s, s.slot[2], false);
    stopped(&s, s.slot[3], false);
    stopped(&s, s.slot[4], true); /* It is waited for. */
    assert_int_equal(s.job.state, JOB_GATHERING);
    assert_true(s.job.nodes[s.slot[1]].aside);
    ctl_init(&m, CTL_DRAIN);
    m.u.drain.timeout_ms = 1000;
    give(&s, (struct job_event){.type = JOB_EV_DRAIN, .node = s.slot[3], .msg = &m});
    assert_false(s.job.nodes[s.slot[1]].aside);
    assert_int_equal(s.job.waiting, 2);
    job_fini(&s.job);
}

static void test_it_shrinks_the_job_where_that_is_allowed(void **state)
{
    struct story s;
    (void)state;
    begin(&s, 1, 2, 2);
    hello(&s, 1);
    hello(&s, 2);
    fail_first(&s, 2);
    assert_string_equal(s.started, "n1 n2 ");
    fail_first(&s, 2);
    assert_string_equal(s.started, "n1 ");
    job_fini(&s.job);
}

static void test_nobody_is_set_aside_where_two_fail_as_often_or_failures_are_old(void **state)
{
    struct story s;
    (void)state;
    begin(&s, 2, 2, 2);
    for (int n = 1; n <= 4; n++)
        hello(&s, n);
    fail_first(&s, 1);
    fail_first(&s, 1);
    assert_string_equal(s.started, "n3 n2 ");
    fail_first(&s, 2);
    fail_first(&s, 2); /* Wherever it runs: it is the program. */
    assert_int_equal(s.job.aside_count, 0);
    assert_string_equal(s.started, "n3 n2 ");
    s.now += 2000 * SEC;
    fail_first(&s, 2);
    assert_string_equal(s.started, "n3 n2 ");
    fail_first(&s, 2);
    assert_int_equal(s.job.nodes[s.slot[2]].aside, true);
    job_fini(&s.job);
}

static void test_a_new_agent_changes_nothing_unless_it_forgives_or_the_host_booted(void **state)
{
    for (int way = 0; way < 3; way++) {
        struct story s;
        (void)state;
        begin(&s, 2, 2, 1);
        for (int n = 1; n <= 3; n++)
            hello(&s, n);
        fail_first(&s, 1);
        assert_string_equal(s.started, "n3 n2 ");
        give(&s, (struct job_event){.type = JOB_EV_NODE_DEAD, .node = s.slot[1]});
        hello_from(&s, 1, way == 1 ? "later" : "b", false, way == 2, "new");
        assert_string_equal(SHOWN(&s, 1), way == 0 ? "quarantined" : "waiting");
        assert_int_equal(s.job.forgiven_unix_ms != 0, way == 2);
        job_fini(&s.job);
    }
}

static void test_failures_that_are_not_its_own_do_not_count(void **state)
{
    struct story s;
    (void)state;
    begin(&s, 1, 3, 1);
    for (int n = 1; n <= 3; n++)
        hello(&s, n);
    give(&s, (struct job_event){.type = JOB_EV_NODE_DEAD, .node = s.slot[1]}); /* It went. */
    for (int n = 2; n <= 3; n++)
        stopped(&s, s.slot[n], false);
    assert_int_equal(s.job.blamed_count, 0);
    struct ctl_msg m;
    ctl_init(&m, CTL_FAILED); /* It names another. */
    m.u.failed.round = s.job.round;
    m.u.failed.cause.kind = MU_CAUSE_WORKER_EXIT;
    m.u.failed.cause.local_rank = 0;
    m.u.failed.cause.blame = 1;
    give(&s, (struct job_event){.type = JOB_EV_WORKER_FAILED, .node = s.slot[2], .msg = &m});
    for (int n = 2; n <= 3; n++)
        stopped(&s, s.slot[n], false);
    assert_int_equal(s.job.blamed_count, 0);
    job_fini(&s.job);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_who_is_being_checked_or_unhealthy_does_not_count),
        cmocka_unit_test(test_the_next_round_waits_for_checks_but_not_for_the_unhealthy),
        cmocka_unit_test(
            test_a_check_that_lasts_holds_nothing_up_for_longer_than_nodes_are_waited_for),
        cmocka_unit_test(test_a_host_that_fails_alone_is_set_aside_for_a_spare),
        cmocka_unit_test(test_a_drain_takes_back_who_is_needed),
        cmocka_unit_test(test_it_shrinks_the_job_where_that_is_allowed),
        cmocka_unit_test(test_nobody_is_set_aside_where_two_fail_as_often_or_failures_are_old),
        cmocka_unit_test(test_a_new_agent_changes_nothing_unless_it_forgives_or_the_host_booted),
        cmocka_unit_test(test_failures_that_are_not_its_own_do_not_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
