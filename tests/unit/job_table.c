/* The rendezvous of one job: its table as a whole, and stories told event by event. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "rendezvous/job/job.h"

#define SEC INT64_C(1000000000)

/* ------------------------------------------------------------------ the table */

static void mark_reachable(enum job_state s, bool *seen)
{
    if (seen[s])
        return;
    seen[s] = true;
    for (int e = 0; e < JOB_EV_COUNT; e++) {
        int to = job_table_to(s, (enum job_event_type)e);
        if (to >= 0)
            mark_reachable((enum job_state)to, seen);
    }
}

static void test_table_every_state_is_reachable(void **state)
{
    (void)state;
    bool seen[JOB_STATE_COUNT] = {false};
    mark_reachable(JOB_GATHERING, seen);
    for (int s = 0; s < JOB_STATE_COUNT; s++)
        assert_true(seen[s]);
}

static void test_table_every_state_hears_every_outside_event(void **state)
{
    (void)state;
    for (int s = 0; s < JOB_STATE_COUNT; s++)
        for (int e = 0; e < JOB_OUTSIDE_EVENT_COUNT; e++)
            if (job_table_to((enum job_state)s, (enum job_event_type)e) < 0)
                fail_msg("%s has no row for %s", job_state_name((enum job_state)s),
                         job_event_name((enum job_event_type)e));
}

static void test_table_ended_states_lead_nowhere(void **state)
{
    (void)state;
    for (int e = 0; e < JOB_EV_COUNT; e++) {
        int a = job_table_to(JOB_SUCCEEDED, (enum job_event_type)e);
        int b = job_table_to(JOB_FAILED, (enum job_event_type)e);
        assert_true(a < 0 || a == JOB_SUCCEEDED);
        assert_true(b < 0 || b == JOB_FAILED);
    }
}

/* ------------------------------------------------------------------ stories */

struct story {
    struct job job;
    struct job_out out;
    struct mu_err err;
    int64_t now;
    struct mu_buf told; /* "START n1 0/2; STOP n2; " ... */
};

static void begin(struct story *s, const struct mu_mem *mem)
{
    struct job_config c = {.run_id = "j", .lease_ns = 3 * SEC, .beat_ns = SEC, .version = "test"};
    memset(s, 0, sizeof *s);
    s->now = SEC;
    assert_int_equal(job_init(&s->job, mem, &c, &s->err), 0);
    mu_buf_init(&s->told, mu_mem_default());
}

static void end(struct story *s)
{
    job_fini(&s->job);
    mu_buf_fini(&s->told);
}

static void note_actions(struct story *s)
{
    mu_buf_reset(&s->told);
    for (uint32_t i = 0; i < s->out.count; i++) {
        const struct job_action *a = &s->out.actions[i];
        if (a->type == JOB_ACT_FORGET)
            (void)mu_buf_adds(&s->told, "forget; ");
        if (a->type != JOB_ACT_SEND)
            continue;
        const struct job_node *n = &s->job.nodes[a->node];
        (void)mu_buf_addf(&s->told, "%s %s", ctl_type_name(a->msg), n->hello.host);
        if (a->msg == CTL_START)
            (void)mu_buf_addf(&s->told, " %d/%u ranks %d of %u", n->node_rank, s->job.round_nodes,
                              n->rank_base, s->job.world);
        (void)mu_buf_adds(&s->told, "; ");
    }
}

static int give(struct story *s, struct job_event ev)
{
    ev.unix_ms = s->now / 1000000;
    int r = job_step(&s->job, s->now, &ev, &s->out, &s->err);
    if (r == 0)
        note_actions(s);
    return r;
}

struct who {
    const char *host;
    int min, max, nproc, restarts, rank;
    const char *role;
    const char *addr;
};

static void fill_hello(struct ctl_msg *m, struct who w)
{
    ctl_init(m, CTL_HELLO);
    struct ctl_hello *h = &m->u.hello;
    (void)snprintf(h->host, sizeof h->host, "%s", w.host);
    (void)snprintf(h->node, sizeof h->node, "id-%s", w.host);
    (void)snprintf(h->run_id, sizeof h->run_id, "j");
    (void)snprintf(h->role, sizeof h->role, "%s", w.role != NULL ? w.role : "default");
    h->nodes_min = w.min;
    h->nodes_max = w.max;
    h->nproc = w.nproc == 0 ? 2 : w.nproc;
    h->max_restarts = w.restarts;
    h->node_rank = w.rank - 1; /* 0 in a test's row: any. */
    h->last_call_ms = 2000;
    h->store_port = 1234;
}

static int hello(struct story *s, struct who w, uint32_t *slot)
{
    struct ctl_msg m;
    fill_hello(&m, w);
    int r = give(s, (struct job_event){.type = JOB_EV_HELLO,
                                       .node = JOB_NO_NODE,
                                       .msg = &m,
                                       .seen_addr = w.addr != NULL ? w.addr : "10.0.0.9"});
    if (r == 0 && slot != NULL)
        *slot = s->out.node;
    return r;
}

static int say(struct story *s, uint32_t slot, enum ctl_type t)
{
    static const enum job_event_type events[CTL_TYPE_COUNT] = {
        [CTL_STARTED] = JOB_EV_STARTED,   [CTL_FAILED] = JOB_EV_WORKER_FAILED,
        [CTL_FINISHED] = JOB_EV_FINISHED, [CTL_STOPPED] = JOB_EV_STOPPED,
        [CTL_BYE] = JOB_EV_BYE,           [CTL_BEAT] = JOB_EV_BEAT};
    struct ctl_msg m;
    ctl_init(&m, t);
    if (t == CTL_FAILED) {
        m.u.failed.round = s->job.round;
        m.u.failed.cause.kind = MU_CAUSE_WORKER_EXIT;
        m.u.failed.cause.exit_code = 7;
        m.u.failed.cause.local_rank = 1;
    } else if (t == CTL_STOPPED) {
        m.u.stopped.round = s->job.round;
    } else if (t == CTL_FINISHED) {
        m.u.finished.round = s->job.round;
    } else if (t == CTL_STARTED) {
        m.u.started.round = s->job.round;
    } else if (t == CTL_BYE) {
        m.u.bye.cause.kind = MU_CAUSE_NODE_LEFT;
    }
    return give(s, (struct job_event){.type = events[t], .node = slot, .msg = &m});
}

#define TOLD(s, text) assert_string_equal(mu_buf_cstr(&(s)->told), text)

static void test_round_begins_when_all_are_here_in_natural_order(void **state)
{
    (void)state;
    struct story s;
    begin(&s, mu_mem_default());
    assert_int_equal(hello(&s, (struct who){.host = "n10", .min = 3, .max = 3, .nproc = 1}, NULL),
                     0);
    TOLD(&s, "welcome n10; ");
    assert_int_equal(hello(&s, (struct who){.host = "n2", .min = 3, .max = 3, .nproc = 3}, NULL),
                     0);
    assert_int_equal(hello(&s, (struct who){.host = "n1", .min = 3, .max = 3, .nproc = 2}, NULL),
                     0);
    TOLD(&s, "welcome n1; start n1 0/3 ranks 0 of 6; start n2 1/3 ranks 2 of 6; start n10 2/3 "
             "ranks 5 of 6; ");
    assert_int_equal(s.job.state, JOB_RUNNING);
    end(&s);
}

static void test_explicit_ranks_are_honoured_and_doubles_refused(void **state)
{
    (void)state;
    struct story s;
    begin(&s, mu_mem_default());
    assert_int_equal(hello(&s, (struct who){.host = "a", .min = 2, .max = 2, .rank = 2}, NULL), 0);
    assert_int_equal(hello(&s, (struct who){.host = "b", .min = 2, .max = 2, .rank = 2}, NULL),
                     -EAGAIN);
    assert_non_null(strstr(s.err.msg, "node rank 1 is taken by a"));
    assert_int_equal(hello(&s, (struct who){.host = "b", .min = 2, .max = 2, .rank = 3}, NULL),
                     -EACCES);
    assert_int_equal(hello(&s, (struct who){.host = "b", .min = 2, .max = 2}, NULL), 0);
    TOLD(&s, "welcome b; start b 0/2 ranks 0 of 4; start a 1/2 ranks 2 of 4; ");
    end(&s);
}

static void test_specs_that_disagree_are_refused_with_both_values(void **state)
{
    (void)state;
    struct story s;
    begin(&s, mu_mem_default());
    assert_int_equal(hello(&s, (struct who){.host = "a", .min = 2, .max = 2}, NULL), 0);
    assert_int_equal(hello(&s, (struct who){.host = "b", .min = 2, .max = 3}, NULL), -EACCES);
    assert_non_null(strstr(s.err.msg, "is 3 here and 2 in the agents that came first"));
    assert_int_equal(s.job.node_count, 1);
    end(&s);
}

static void test_rounds_that_cannot_be_are_refused(void **state)
{
    (void)state;
    static const struct {
        int64_t round, seen, nodes, rank, restarts;
    } rows[] = {{0, INT64_C(4294967295), 0, 0, 0}, /* The number would wrap. */
                {INT64_C(4294967295), 0, 2, 0, 0},
                {1, 0, 65536, 5, 0}, /* More nodes than the job has. */
                {1, 0, 2, 2, 0},
                {1, 0, 2, 0, 1000000}}; /* More restarts than its budget. */
    for (size_t i = 0; i < MU_COUNT(rows); i++) {
        struct story s;
        struct ctl_msg m;
        begin(&s, mu_mem_default());
        fill_hello(&m, (struct who){.host = "a", .min = 2, .max = 2});
        m.u.hello.round = rows[i].round;
        m.u.hello.round_seen = rows[i].seen;
        m.u.hello.round_nodes = rows[i].nodes;
        m.u.hello.round_node_rank = rows[i].rank;
        m.u.hello.round_restarts = rows[i].restarts;
        assert_int_equal(give(&s, (struct job_event){.type = JOB_EV_HELLO,
                                                     .node = JOB_NO_NODE,
                                                     .msg = &m,
                                                     .seen_addr = "10.0.0.9"}),
                         -EACCES);
        assert_int_equal(s.job.node_count, 0);
        end(&s);
    }
}

static void test_a_resumed_round_may_not_be_silent_for_longer_than_the_server_allows(void **state)
{
    (void)state;
    struct story s;
    struct ctl_msg m;
    begin(&s, mu_mem_default());
    fill_hello(&m, (struct who){.host = "a", .min = 2, .max = 2});
    m.u.hello.round = 3;
    m.u.hello.round_nodes = 2;
    m.u.hello.round_fence_ms = INT64_C(86400000000);
    assert_int_equal(give(&s, (struct job_event){.type = JOB_EV_HELLO,
                                                 .node = JOB_NO_NODE,
                                                 .msg = &m,
                                                 .seen_addr = "10.0.0.9"}),
                     0);
    assert_int_equal(s.job.state, JOB_RECOVERING);
    assert_int_equal(s.job.fence_ns, MU_FENCE_NS);
    end(&s);
}

static void test_failure_restarts_within_the_budget_then_ends_with_the_first_cause(void **state)
{
    (void)state;
    struct story s;
    uint32_t a = 0;
    uint32_t b = 0;
    begin(&s, mu_mem_default());
    assert_int_equal(hello(&s, (struct who){.host = "a", .min = 2, .max = 2, .restarts = 1}, &a),
                     0);
    assert_int_equal(hello(&s, (struct who){.host = "b", .min = 2, .max = 2, .restarts = 1}, &b),
                     0);
    assert_int_equal(say(&s, b, CTL_FAILED), 0);
    TOLD(&s, "stop a; stop b; ");
    assert_int_equal(say(&s, a, CTL_FAILED), 0); /* A consequence. */
    assert_int_equal(s.job.consequences, 1);
    assert_int_equal(say(&s, a, CTL_STOPPED), 0);
    assert_int_equal(say(&s, a, CTL_STOPPED), 0); /* Identities are counted, not messages. */
    assert_int_equal(s.job.state, JOB_STOPPING);
    assert_int_equal(say(&s, b, CTL_STOPPED), 0);
    TOLD(&s, "start a 0/2 ranks 0 of 4; start b 1/2 ranks 2 of 4; ");
    assert_int_equal(s.job.restarts, 1);
    assert_int_equal(say(&s, a, CTL_FAILED), 0);
    assert_true(s.job.final);
    assert_int_equal(say(&s, a, CTL_STOPPED), 0);
    assert_int_equal(say(&s, b, CTL_STOPPED), 0);
    TOLD(&s, "end a; end b; ");
    assert_int_equal(s.job.state, JOB_FAILED);
    assert_int_equal(s.job.cause.rank, 1);
    assert_string_equal(s.job.cause.host, "a");
    assert_int_equal(s.job.restarts, 1);
    end(&s);
}

static void test_all_finished_succeeds_and_a_death_after_finishing_is_no_failure(void **state)
{
    (void)state;
    struct story s;
    uint32_t a = 0;
    uint32_t b = 0;
    begin(&s, mu_mem_default());
    assert_int_equal(hello(&s, (struct who){.host = "a", .min = 2, .max = 2}, &a), 0);
    assert_int_equal(hello(&s, (struct who){.host = "b", .min = 2, .max = 2}, &b), 0);
    assert_int_equal(say(&s, a, CTL_FINISHED), 0);
    assert_int_equal(give(&s, (struct job_event){.type = JOB_EV_NODE_DEAD, .node = a}), 0);
    assert_int_equal(s.job.state, JOB_RUNNING);
    assert_int_equal(say(&s, b, CTL_FINISHED), 0);
    assert_int_equal(s.job.state, JOB_SUCCEEDED);
    TOLD(&s, "end b; ");
    end(&s);
}

static void test_dead_node_costs_nothing_and_a_spare_takes_its_rank(void **state)
{
    (void)state;
    struct story s;
    uint32_t a = 0;
    uint32_t b = 0;
    begin(&s, mu_mem_default());
    assert_int_equal(hello(&s, (struct who){.host = "a", .min = 2, .max = 2}, &a), 0);
    assert_int_equal(hello(&s, (struct who){.host = "b", .min = 2, .max = 2}, &b), 0);
    assert_int_equal(hello(&s, (struct who){.host = "c", .min = 2, .max = 2}, NULL), 0);
    TOLD(&s, "welcome c; waiting c; ");
    assert_int_equal(give(&s, (struct job_event){.type = JOB_EV_NODE_DEAD, .node = a}), 0);
    TOLD(&s, "stop b; ");
    assert_int_equal(say(&s, b, CTL_STOPPED), 0);
    TOLD(&s, "forget; start c 0/2 ranks 0 of 4; start b 1/2 ranks 2 of 4; ");
    assert_int_equal(s.job.restarts, 0);
    assert_int_equal(s.job.cause.kind, MU_CAUSE_NODE_LOST);
    end(&s);
}

static void leave_with_the_server(struct story *s, uint32_t slot)
{
    struct ctl_msg m;
    ctl_init(&m, CTL_BYE);
    m.u.bye.final = 1;
    m.u.bye.cause.kind = MU_CAUSE_NODE_LEFT;
    assert_int_equal(give(s, (struct job_event){.type = JOB_EV_BYE, .node = slot, .msg = &m}), 0);
}

static void test_when_the_server_goes_with_a_node_the_job_ends_for_all(void **state)
{
    (void)state;
    struct story s;
    uint32_t a = 0;
    uint32_t b = 0;
    begin(&s, mu_mem_default());
    assert_int_equal(hello(&s, (struct who){.host = "a", .min = 2, .max = 2, .restarts = 3}, &a),
                     0);
    assert_int_equal(hello(&s, (struct who){.host = "b", .min = 2, .max = 2, .restarts = 3}, &b),
                     0);
    assert_int_equal(say(&s, a, CTL_FAILED), 0);
    TOLD(&s, "stop a; stop b; ");
    leave_with_the_server(&s, a);
    assert_int_equal(s.job.state, JOB_STOPPING); /* Until b has said that nothing is left. */
    assert_int_equal(say(&s, b, CTL_STOPPED), 0);
    TOLD(&s, "end b; ");
    assert_int_equal(s.job.state, JOB_FAILED);
    end(&s);

    begin(&s, mu_mem_default());
    assert_int_equal(hello(&s, (struct who){.host = "a", .min = 3, .max = 3}, &a), 0);
    assert_int_equal(hello(&s, (struct who){.host = "b", .min = 3, .max = 3}, &b), 0);
    leave_with_the_server(&s, a);
    TOLD(&s, "forget; end b; ");
    assert_int_equal(s.job.state, JOB_FAILED);
    assert_int_equal(s.job.cause.kind, MU_CAUSE_NODE_LEFT);
    end(&s);
}

static void test_elastic_job_waits_for_the_last_call_then_runs_with_who_is_here(void **state)
{
    (void)state;
    struct story s;
    begin(&s, mu_mem_default());
    assert_int_equal(hello(&s, (struct who){.host = "a", .min = 1, .max = 4}, NULL), 0);
    assert_int_equal(hello(&s, (struct who){.host = "b", .min = 1, .max = 4}, NULL), 0);
    assert_int_equal(s.job.state, JOB_GATHERING);
    s.now = s.job.last_call_at_ns;
    assert_int_equal(s.now, 3 * SEC);
    assert_int_equal(give(&s, (struct job_event){.type = JOB_EV_DEADLINE, .node = JOB_NO_NODE}), 0);
    assert_int_equal(s.job.state, JOB_RUNNING);
    assert_int_equal(s.job.round_nodes, 2);
    assert_int_equal(s.job.fence_ns, 3 * SEC); /* It could go on without one of them. */
    end(&s);
}

static void test_too_few_nodes_give_up_and_say_who_is_here(void **state)
{
    (void)state;
    struct story s;
    uint32_t a = 0;
    begin(&s, mu_mem_default());
    assert_int_equal(hello(&s, (struct who){.host = "a", .min = 2, .max = 2}, &a), 0);
    uint32_t words = 0;
    for (int i = 0; i < 2000 && s.job.state == JOB_GATHERING; i++) {
        s.now += SEC;
        assert_int_equal(say(&s, a, CTL_BEAT), 0);
        if (s.job.deadline_ns <= s.now) {
            assert_int_equal(
                give(&s, (struct job_event){.type = JOB_EV_DEADLINE, .node = JOB_NO_NODE}), 0);
            words += strstr(mu_buf_cstr(&s.told), "waiting a") != NULL;
        }
    }
    assert_int_equal(s.job.state, JOB_FAILED);
    assert_int_equal(s.job.cause.kind, MU_CAUSE_JOIN_TIMEOUT);
    assert_non_null(strstr(s.job.cause.message, "1 of 2 nodes are here (a)"));
    assert_in_range(words, 5, 12); /* 5, 10, 20, 40 ... s, then every 300 s. */
    end(&s);
}

static void test_roles_have_ranks_of_their_own(void **state)
{
    (void)state;
    struct story s;
    uint32_t c;
    begin(&s, mu_mem_default());
    assert_int_equal(
        hello(&s, (struct who){.host = "a", .min = 3, .max = 3, .nproc = 1, .role = "actor"}, NULL),
        0);
    assert_int_equal(
        hello(&s, (struct who){.host = "b", .min = 3, .max = 3, .nproc = 2, .role = "learner"},
              NULL),
        0);
    assert_int_equal(
        hello(&s, (struct who){.host = "c", .min = 3, .max = 3, .nproc = 4, .role = "actor"}, &c),
        0);
    struct ctl_msg m;
    job_message(&s.job, c, CTL_START, &m);
    assert_int_equal(m.u.start.rank_base, 3);
    assert_int_equal(m.u.start.role_rank_base, 1);
    assert_int_equal(m.u.start.role_world, 5);
    end(&s);
}

static void test_lead_address_is_one_that_the_others_can_reach(void **state)
{
    (void)state;
    struct story s;
    uint32_t b = 0;
    struct ctl_msg m;
    begin(&s, mu_mem_default());
    fill_hello(&m, (struct who){.host = "a", .min = 2, .max = 2});
    (void)snprintf(m.u.hello.host_addr, sizeof m.u.hello.host_addr, "10.1.1.1");
    assert_int_equal(give(&s, (struct job_event){.type = JOB_EV_HELLO,
                                                 .node = JOB_NO_NODE,
                                                 .msg = &m,
                                                 .seen_addr = "127.0.0.1"}),
                     0);
    assert_int_equal(
        hello(&s, (struct who){.host = "b", .min = 2, .max = 2, .addr = "10.1.1.2"}, &b), 0);
    job_message(&s.job, b, CTL_START, &m);
    assert_string_equal(
        m.u.start.lead_addr,
        "10.1.1.1"); /* The lead shares the server's host; loopback would lead b to itself. */
    assert_int_equal(m.u.start.lead_port, 1234);
    end(&s);
}

static void test_no_memory_changes_nothing_and_everything_is_freed(void **state)
{
    (void)state;
    for (size_t n = 1;; n++) {
        struct mu_mem_failing heap;
        mu_mem_failing_init(&heap, n);
        struct story s;
        begin(&s, &heap.mem);
        int r = 0;
        for (int i = 0; i < 20 && r == 0; i++) {
            char host[8];
            (void)snprintf(host, sizeof host, "n%d", i);
            uint32_t before = s.job.node_count;
            r = hello(&s, (struct who){.host = host, .min = 20, .max = 20}, NULL);
            assert_true(r == 0 || r == -ENOMEM);
            if (r != 0)
                assert_int_equal(s.job.node_count, before);
        }
        bool done = heap.calls < n;
        assert_true(done == (r == 0));
        end(&s);
        assert_int_equal(heap.live, 0);
        if (done)
            break;
    }
}

static void test_sixteen_thousand_joins_cost_the_same_each(void **state)
{
    (void)state;
    struct story s;
    begin(&s, mu_mem_default());
    for (int i = 0; i < 16000; i++) {
        char host[16];
        (void)snprintf(host, sizeof host, "n%d", i);
        assert_int_equal(
            hello(&s, (struct who){.host = host, .min = 16000, .max = 16000, .nproc = 8}, NULL), 0);
    }
    assert_int_equal(s.job.state, JOB_RUNNING);
    assert_int_equal(s.job.world, 128000);
    assert_string_equal(s.job.nodes[s.job.members[10]].hello.host, "n10");
    end(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table_every_state_is_reachable),
        cmocka_unit_test(test_table_every_state_hears_every_outside_event),
        cmocka_unit_test(test_table_ended_states_lead_nowhere),
        cmocka_unit_test(test_round_begins_when_all_are_here_in_natural_order),
        cmocka_unit_test(test_explicit_ranks_are_honoured_and_doubles_refused),
        cmocka_unit_test(test_specs_that_disagree_are_refused_with_both_values),
        cmocka_unit_test(test_rounds_that_cannot_be_are_refused),
        cmocka_unit_test(test_a_resumed_round_may_not_be_silent_for_longer_than_the_server_allows),
        cmocka_unit_test(test_failure_restarts_within_the_budget_then_ends_with_the_first_cause),
        cmocka_unit_test(test_all_finished_succeeds_and_a_death_after_finishing_is_no_failure),
        cmocka_unit_test(test_dead_node_costs_nothing_and_a_spare_takes_its_rank),
        cmocka_unit_test(test_when_the_server_goes_with_a_node_the_job_ends_for_all),
        cmocka_unit_test(test_elastic_job_waits_for_the_last_call_then_runs_with_who_is_here),
        cmocka_unit_test(test_too_few_nodes_give_up_and_say_who_is_here),
        cmocka_unit_test(test_roles_have_ranks_of_their_own),
        cmocka_unit_test(test_lead_address_is_one_that_the_others_can_reach),
        cmocka_unit_test(test_no_memory_changes_nothing_and_everything_is_freed),
        cmocka_unit_test(test_sixteen_thousand_joins_cost_the_same_each),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
