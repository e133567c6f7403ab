/* A job out of the rows that a former life of its server kept. */
#include "tests/unit/job_rig.h"

#include <errno.h>

#define NODES 3

/* Two lives of a server, and what the first one kept. */
struct story {
    struct job job;
    struct job_out out;
    struct mu_err err;
    int64_t now;
    struct job_row_kept row;
    struct job_node_row nodes[NODES + 1];
    char hellos[NODES + 1][2048];
    size_t node_count;
};

static void begin(struct story *s, const struct mu_mem *mem)
{
    struct job_config c = rig_config();
    s->now += SEC;
    assert_int_equal(job_init(&s->job, mem, &c, &s->err), 0);
}

static int give(struct story *s, struct job_event ev)
{
    ev.unix_ms = s->now / 1000000;
    return job_step(&s->job, s->now, &ev, &s->out, &s->err);
}

static struct ctl_msg hello_of(int i)
{
    char host[16];
    (void)snprintf(host, sizeof host, "n%d", i);
    struct ctl_msg m = rig_hello(host);
    struct ctl_hello *h = &m.u.hello;
    h->nodes_min = h->nodes_max = NODES;
    h->nproc = i + 1;
    h->max_restarts = 1;
    h->store_port = 1000 + i;
    return m;
}

static int join(struct story *s, const struct ctl_msg *m)
{
    return give(s, rig_hello_event(m));
}

static void start_round(struct story *s)
{
    memset(s, 0, sizeof *s);
    begin(s, mu_mem_default());
    for (int i = 0; i < NODES; i++) {
        struct ctl_msg m = hello_of(i);
        assert_int_equal(join(s, &m), 0);
    }
    assert_int_equal(s->job.state, JOB_RUNNING);
    assert_true(s->out.durable);
}

static int say(struct story *s, uint32_t slot, enum ctl_type t)
{
    struct ctl_msg m = rig_message(t, s->job.round);
    return give(s, rig_event(slot, t, &m));
}

static void save(struct story *s)
{
    job_save(&s->job, &s->row);
    s->node_count = 0;
    for (uint32_t i = 0; i < s->job.node_cap; i++) {
        struct mu_buf b;
        if (!s->job.nodes[i].used)
            continue;
        size_t at = s->node_count++;
        mu_buf_init(&b, mu_mem_default());
        assert_int_equal(job_save_node(&s->job, i, &s->nodes[at], &b), 0);
        memcpy(s->hellos[at], s->nodes[at].hello.p, s->nodes[at].hello.n);
        s->nodes[at].hello.p = s->hellos[at];
        mu_buf_fini(&b);
    }
}

static int load(struct story *s, const struct mu_mem *mem)
{
    begin(s, mem);
    return job_load(&s->job, s->now, s->now / 1000000, &s->row, s->nodes, s->node_count, &s->err);
}

/* The server dies and is started anew. */
static void die(struct story *s)
{
    save(s);
    job_fini(&s->job);
    assert_int_equal(load(s, mu_mem_default()), 0);
}

static bool was_told(const struct story *s, enum ctl_type t)
{
    return rig_sent(&s->out, t, RIG_ANY_NODE) > 0;
}

/* Node i comes back. state: of its round, as hello says it. */
static int resume(struct story *s, int i, int64_t state)
{
    struct ctl_msg m = hello_of(i);
    m.u.hello.link = 2;
    m.u.hello.round = s->job.round;
    m.u.hello.round_nodes = NODES;
    m.u.hello.round_node_rank = i;
    m.u.hello.round_state = state;
    return join(s, &m);
}

static void test_a_running_round_goes_on_when_all_are_back(void **state)
{
    (void)state;
    struct story s;
    start_round(&s);
    die(&s);
    assert_int_equal(s.job.state, JOB_RECOVERING);
    assert_int_equal(s.job.world, 6);
    for (int i = 0; i < NODES; i++) {
        assert_int_equal(s.job.state, JOB_RECOVERING);
        assert_int_equal(resume(&s, i, i == 1), 0);
        assert_false(was_told(&s, CTL_START));
    }
    assert_int_equal(s.job.state, JOB_RUNNING);
    assert_int_equal(s.job.round, 1);
    assert_int_equal(s.job.pending, 2); /* One had finished meanwhile. */
    job_fini(&s.job);
}

static void test_a_start_that_was_kept_and_not_told_is_told_with_the_same_ranks(void **state)
{
    (void)state;
    struct story s;
    struct ctl_msg start;
    struct mu_buf before;
    struct mu_buf after;
    mu_buf_init(&before, mu_mem_default());
    mu_buf_init(&after, mu_mem_default());
    start_round(&s);
    job_message(&s.job, s.job.members[2], CTL_START, &start);
    assert_int_equal(ctl_encode(&start, &before), 0);
    die(&s);
    for (int i = 0; i < 2; i++)
        assert_int_equal(resume(&s, i, 0), 0);
    struct ctl_msg m = hello_of(2); /* It knows of no round. */
    m.u.hello.link = 2;
    assert_int_equal(join(&s, &m), 0);
    assert_true(was_told(&s, CTL_START));
    job_message(&s.job, s.job.members[2], CTL_START, &start);
    assert_int_equal(ctl_encode(&start, &after), 0);
    assert_string_equal(mu_buf_cstr(&before) + CTL_FRAME_HEAD_BYTES,
                        mu_buf_cstr(&after) + CTL_FRAME_HEAD_BYTES);
    assert_int_equal(s.job.state, JOB_RUNNING);
    mu_buf_fini(&before);
    mu_buf_fini(&after);
    job_fini(&s.job);
}

static void test_the_budget_and_the_verdict_outlive_the_server(void **state)
{
    (void)state;
    struct story s;
    start_round(&s);
    assert_int_equal(say(&s, s.job.members[0], CTL_FAILED), 0);
    assert_true(s.out.durable);
    die(&s);
    assert_int_equal(s.job.state, JOB_STOPPING);
    assert_int_equal(s.job.restarts, 1);
    for (int i = 0; i < NODES; i++)
        assert_int_equal(resume(&s, i, 3), 0);
    assert_int_equal(s.job.state, JOB_RUNNING);
    assert_int_equal(s.job.round, 2);
    assert_int_equal(say(&s, s.job.members[0], CTL_FAILED), 0);
    for (uint32_t r = 0; r < NODES; r++)
        assert_int_equal(say(&s, s.job.members[r], CTL_STOPPED), 0);
    assert_int_equal(s.job.state, JOB_FAILED); /* And nobody has been told yet. */
    die(&s);
    assert_int_equal(resume(&s, 1, 3), 0);
    assert_true(was_told(&s, CTL_END));
    assert_int_equal(s.job.state, JOB_FAILED);
    assert_int_equal(s.job.cause.exit_code, 7);
    job_fini(&s.job);
}

static void test_all_had_stopped_when_the_server_died(void **state)
{
    (void)state;
    struct story s;
    start_round(&s);
    assert_int_equal(say(&s, s.job.members[0], CTL_FAILED), 0);
    save(&s);
    for (size_t i = 0; i < s.node_count; i++)
        (void)snprintf(s.nodes[i].state, sizeof s.nodes[i].state, "stopped");
    job_fini(&s.job);
    assert_int_equal(load(&s, mu_mem_default()), 0);
    assert_true(s.job.deadline_ns <= s.now);
    assert_int_equal(give(&s, (struct job_event){.type = JOB_EV_DEADLINE, .node = JOB_NO_NODE}), 0);
    assert_int_equal(s.job.state, JOB_GATHERING);
    for (int i = NODES; i-- > 0;) /* Not in their order: each keeps its rank. */
        assert_int_equal(resume(&s, i, 3), 0);
    assert_int_equal(s.job.state, JOB_RUNNING);
    for (int i = 0; i < NODES; i++)
        assert_int_equal(s.job.nodes[s.job.members[i]].hello.nproc, i + 1);
    job_fini(&s.job);
}

static void test_nobody_is_given_up_before_its_whole_silence_is_over(void **state)
{
    (void)state;
    struct story s;
    start_round(&s);
    s.job.fence_ns = 3 * SEC;
    die(&s);
    s.now += 3 * SEC - 1;
    assert_int_equal(give(&s, (struct job_event){.type = JOB_EV_DEADLINE, .node = JOB_NO_NODE}), 0);
    assert_int_equal(s.job.state, JOB_RECOVERING);
    s.now += 1;
    for (int i = 0; i < NODES && s.job.deadline_ns <= s.now; i++)
        assert_int_equal(give(&s, (struct job_event){.type = JOB_EV_DEADLINE, .node = JOB_NO_NODE}),
                         0);
    assert_int_equal(s.job.state, JOB_FAILED); /* All at once: nobody is left. */
    assert_int_equal(s.job.cause.kind, MU_CAUSE_NODE_SILENT);
    job_fini(&s.job);
}

static void test_rows_that_make_no_sense_are_refused(void **state)
{
    (void)state;
    struct story good;
    start_round(&good);
    save(&good);
    job_fini(&good.job);
    static const int64_t values[] = {INT64_MIN, -2, -1, 0, 1, 2, 70000, INT32_MAX, INT64_MAX};
    const struct job_fields lists[] = {job_row_fields, job_node_row_fields};
    for (size_t l = 0; l < 2; l++) {
        for (size_t f = 0; f < lists[l].n; f++) {
            for (size_t v = 0; v < MU_COUNT(values); v++) {
                const struct job_field *field = &lists[l].v[f];
                struct story s = good;
                char *at = (l == 0 ? (char *)&s.row : (char *)&s.nodes[1]) + field->offset;
                if (strcmp(field->name, "run_id") == 0)
                    continue; /* By it the job was found. */
                if (field->bytes == 0)
                    memcpy(at, &values[v], sizeof values[v]);
                else if (field->bytes == JOB_FIELD_BLOB)
                    s.nodes[1].hello.n = v;
                else
                    memset(at, 'x', v % 2 == 0 ? field->bytes : 3);
                for (size_t i = 0; i < s.node_count; i++)
                    s.nodes[i].hello.p = s.hellos[i];
                int r = load(&s, mu_mem_default());
                assert_true(r == 0 || r == -EPROTO);
                assert_true(r == 0 || strstr(s.err.msg, "makes no sense") != NULL);
                /* Whatever was taken can be lived with. */
                for (int i = 0; r == 0 && i < 50; i++) {
                    s.now = s.job.deadline_ns < s.now + 900 * SEC ? s.job.deadline_ns
                                                                  : s.now + 900 * SEC;
                    (void)give(&s,
                               (struct job_event){.type = JOB_EV_DEADLINE, .node = JOB_NO_NODE});
                }
                job_fini(&s.job);
            }
        }
    }
}

static void test_two_of_one_rank_and_two_of_one_name_are_refused(void **state)
{
    (void)state;
    struct story s;
    start_round(&s);
    save(&s);
    job_fini(&s.job);
    s.nodes[0].node_rank = 1;
    assert_int_equal(load(&s, mu_mem_default()), -EPROTO);
    job_fini(&s.job);
    s.nodes[0].node_rank = 0;
    s.nodes[NODES] = s.nodes[0];
    s.nodes[NODES].node_rank = -1;
    s.node_count = NODES + 1;
    assert_int_equal(load(&s, mu_mem_default()), -EPROTO);
    job_fini(&s.job);
}

static void test_no_memory_is_said_and_everything_is_freed(void **state)
{
    (void)state;
    struct story s;
    start_round(&s);
    save(&s);
    job_fini(&s.job);
    for (size_t n = 1;; n++) {
        struct mu_mem_failing heap;
        mu_mem_failing_init(&heap, n);
        int r = load(&s, &heap.mem);
        bool done = heap.calls < n;
        assert_int_equal(r, done ? 0 : -ENOMEM);
        job_fini(&s.job);
        assert_int_equal(heap.live, 0);
        if (done)
            break;
    }
}

static void test_an_end_of_a_round_is_one_record_with_its_phases(void **state)
{
    (void)state;
    struct story s;
    start_round(&s);
    int64_t at = s.now / 1000000;
    s.now += SEC;
    for (uint32_t r = 0; r < NODES; r++)
        assert_int_equal(say(&s, s.job.members[r], CTL_STARTED), 0);
    s.now += SEC;
    assert_int_equal(say(&s, s.job.members[1], CTL_FAILED), 0);
    assert_int_equal(say(&s, s.job.members[2], CTL_FAILED), 0);
    s.now += SEC;
    for (uint32_t r = 0; r < NODES; r++)
        assert_int_equal(say(&s, s.job.members[r], CTL_STOPPED), 0);
    const struct job_incident *in = &s.job.incident;
    assert_int_equal(in->number, 1);
    assert_int_equal(in->round, 1);
    assert_string_equal(in->decision, "restart");
    assert_string_equal(in->cause_kind, "worker_exit");
    assert_int_equal(in->restarts, 1);
    assert_int_equal(in->consequences, 1);
    assert_int_equal(in->world, 6);
    assert_int_equal(in->started_unix_ms, at);
    assert_int_equal(in->running_unix_ms, at + 1000);
    assert_int_equal(in->decided_unix_ms, at + 2000);
    assert_int_equal(in->stopped_unix_ms, at + 3000);
    assert_int_equal(in->next_unix_ms, at + 3000); /* Round 2 began at once. */
    for (uint32_t r = 0; r < NODES; r++)
        assert_int_equal(say(&s, s.job.members[r], CTL_FINISHED), 0);
    assert_int_equal(in->number, 2);
    assert_string_equal(in->decision, "succeed");
    assert_string_equal(in->cause_kind, "none");
    job_fini(&s.job);
}

static int say_failed(struct story *s, uint32_t rank, const struct mu_cause *c, const char *tail)
{
    struct ctl_msg m = rig_message(CTL_FAILED, s->job.round);
    m.u.failed.cause = *c;
    (void)snprintf(m.u.failed.tail, sizeof m.u.failed.tail, "%s", tail);
    (void)snprintf(m.u.failed.trace, sizeof m.u.failed.trace, "at %s", tail);
    return give(s, (struct job_event){
                       .type = JOB_EV_WORKER_FAILED, .node = s->job.members[rank], .msg = &m});
}

static int say_stopped(struct story *s, uint32_t rank, struct ctl_stopped stopped)
{
    struct ctl_msg m;
    ctl_init(&m, CTL_STOPPED);
    m.u.stopped = stopped;
    m.u.stopped.round = s->job.round;
    return give(
        s, (struct job_event){.type = JOB_EV_STOPPED, .node = s->job.members[rank], .msg = &m});
}

static struct mu_cause exit_of(int32_t local_rank, const char *message)
{
    struct mu_cause c = MU_CAUSE_INIT;
    c.kind = MU_CAUSE_WORKER_EXIT;
    c.exit_code = 7;
    c.local_rank = local_rank;
    (void)snprintf(c.message, sizeof c.message, "%s", message);
    return c;
}

/* Names the first rank of n1 as the one that failed before it, which then says so itself. */
static void test_a_record_has_the_first_ones_words_and_who_failed_after_it(void **state)
{
    (void)state;
    struct story s;
    struct job_other o;
    size_t at = 0;
    start_round(&s);
    for (uint32_t r = 0; r < NODES; r++)
        assert_int_equal(say(&s, s.job.members[r], CTL_STARTED), 0);
    const struct job_incident *in = &s.job.incident;
    struct mu_cause c = exit_of(0, "lost\ta\npeer");
    c.blame = 1;
    assert_int_equal(say_failed(&s, 2, &c, "the third"), 0);
    assert_string_equal(in->tail, "the third");
    c = exit_of(0, "no such file");
    c.at_unix_ms = 12345;
    assert_int_equal(say_failed(&s, 1, &c, "the second"), 0);
    assert_string_equal(in->cause_message, "no such file");
    assert_string_equal(in->tail, "the second");
    assert_string_equal(in->trace, "at the second");
    assert_true(job_incident_other(in, &at, &o)); /* The former cause is a consequence now. */
    assert_int_equal(o.rank, 3);
    assert_string_equal(o.host, "n2");
    assert_string_equal(o.sentence,
                        "rank 3 (local rank 0) on n2 exited with status 7: lost a peer");
    assert_false(job_incident_other(in, &at, &o));
    assert_int_equal(say_failed(&s, 1, &c, "again"), 0); /* Told twice, after a reconnect. */
    assert_int_equal(in->consequences, 1);
    s.now += 2 * SEC;
    const int32_t exits[] = {1, 0, -11};
    const int32_t late[] = {0, 400, 2, 300, 1, 0, 9, 9};
    assert_int_equal(say_stopped(&s, 0, (struct ctl_stopped){.stop_ms = 10, .reclaim_ms = 700}), 0);
    assert_int_equal(say_stopped(&s, 1, (struct ctl_stopped){.stop_ms = -1, .reclaim_ms = -1}), 0);
    assert_int_equal(say_stopped(&s, 2,
                                 (struct ctl_stopped){.stop_ms = 20,
                                                      .reclaim_ms = 5,
                                                      .exits = {exits, 3},
                                                      .late = {late, 8},
                                                      .late_count = 6}),
                     0);
    assert_int_equal(in->stop_ms, 20);
    assert_int_equal(in->reclaim_ms, 700);
    assert_true(job_incident_other(in, &at, &o)); /* Not rank 3 again, nor who exited with 0. */
    assert_int_equal(o.rank, 5);
    assert_int_equal(o.at_unix_ms, s.now / 1000000 - 300);
    assert_string_equal(o.sentence, "rank 5 (local rank 2) on n2 was ended by SIGSEGV");
    assert_false(job_incident_other(in, &at, &o));
    assert_int_equal(in->consequences, 4); /* Two more that were not listed. */
    s.now += SEC;
    for (uint32_t r = 0; r < NODES; r++)
        assert_int_equal(say(&s, s.job.members[r], CTL_STARTED), 0);
    assert_int_equal(in->next_running_unix_ms, s.now / 1000000);
    job_fini(&s.job);
}

static void test_more_consequences_than_a_record_holds_are_counted(void **state)
{
    (void)state;
    struct story s;
    struct job_other o;
    struct mu_cause c = exit_of(0, "first");
    size_t at = 0;
    uint32_t listed = 0;
    char longest[MU_MESSAGE_BYTES];
    memset(longest, 'x', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    start_round(&s);
    assert_int_equal(say_failed(&s, 0, &c, ""), 0);
    for (int i = 0; i < 40; i++) {
        c = exit_of(-1, longest); /* No rank: they are not the same. */
        assert_int_equal(say_failed(&s, 1, &c, ""), 0);
    }
    while (job_incident_other(&s.job.incident, &at, &o))
        listed++;
    assert_in_range(listed, 8, MU_CONSEQUENCES_MAX);
    assert_int_equal(s.job.incident.consequences, 40);
    assert_int_equal(job_check_incident(&s.job.incident, &s.err), 0);
    (void)snprintf(s.job.incident.others, sizeof s.job.incident.others, "1\tno number\tn\tx\n");
    at = 0;
    assert_false(job_incident_other(&s.job.incident, &at, &o));
    job_fini(&s.job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_running_round_goes_on_when_all_are_back),
        cmocka_unit_test(test_a_start_that_was_kept_and_not_told_is_told_with_the_same_ranks),
        cmocka_unit_test(test_the_budget_and_the_verdict_outlive_the_server),
        cmocka_unit_test(test_all_had_stopped_when_the_server_died),
        cmocka_unit_test(test_nobody_is_given_up_before_its_whole_silence_is_over),
        cmocka_unit_test(test_rows_that_make_no_sense_are_refused),
        cmocka_unit_test(test_two_of_one_rank_and_two_of_one_name_are_refused),
        cmocka_unit_test(test_no_memory_is_said_and_everything_is_freed),
        cmocka_unit_test(test_an_end_of_a_round_is_one_record_with_its_phases),
        cmocka_unit_test(test_a_record_has_the_first_ones_words_and_who_failed_after_it),
        cmocka_unit_test(test_more_consequences_than_a_record_holds_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
