/* An agent's life: its table as a whole, and stories told event by event. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "agent/life/life.h"

#define SEC INT64_C(1000000000)

static void mark_reachable(enum life_state s, bool *seen)
{
    if (seen[s])
        return;
    seen[s] = true;
    for (int e = 0; e < LIFE_EV_COUNT; e++) {
        int to = life_table_to(s, (enum life_event_type)e);
        if (to >= 0)
            mark_reachable((enum life_state)to, seen);
    }
}

static void test_table_every_state_is_reachable_and_ends(void **state)
{
    (void)state;
    bool seen[LIFE_STATE_COUNT] = {false};
    mark_reachable(LIFE_JOINING, seen);
    for (int s = 0; s < LIFE_STATE_COUNT; s++) {
        bool from_here[LIFE_STATE_COUNT] = {false};
        assert_true(seen[s]);
        mark_reachable((enum life_state)s, from_here);
        assert_true(from_here[LIFE_EXITED]);
    }
}

static void test_table_every_state_hears_signals_time_and_the_link(void **state)
{
    (void)state;
    static const enum life_event_type always[] = {
        LIFE_EV_LINK_UP, LIFE_EV_LINK_LOST,  LIFE_EV_LINK_FAILED, LIFE_EV_WELCOME, LIFE_EV_REFUSED,
        LIFE_EV_WAITING, LIFE_EV_START,      LIFE_EV_STOP,        LIFE_EV_END,     LIFE_EV_BEAT,
        LIFE_EV_SIGNAL,  LIFE_EV_OWNER_GONE, LIFE_EV_DEADLINE};
    for (int s = 0; s < LIFE_STATE_COUNT; s++)
        for (size_t i = 0; i < MU_COUNT(always); i++)
            if (life_table_to((enum life_state)s, always[i]) < 0)
                fail_msg("%s has no row for %s", life_state_name((enum life_state)s),
                         life_event_name(always[i]));
}

struct story {
    struct life life;
    struct life_out out;
    int64_t now;
    struct mu_buf told;
};

static void begin(struct story *s)
{
    struct ctl_msg m;
    ctl_init(&m, CTL_HELLO);
    struct life_config c = {.hello = m.u.hello,
                            .grace_ns = 10 * SEC,
                            .join_timeout_ns = 60 * SEC,
                            .server_timeout_ns = 30 * SEC,
                            .seed = 1};
    c.hello.nproc = 2;
    (void)snprintf(c.hello.host, sizeof c.hello.host, "n1");
    memset(s, 0, sizeof *s);
    s->now = 100 * SEC;
    mu_buf_init(&s->told, mu_mem_default());
    assert_int_equal(life_init(&s->life, mu_mem_default(), s->now, &c), 0);
}

static void end(struct story *s)
{
    life_fini(&s->life);
    mu_buf_fini(&s->told);
}

static void give(struct story *s, struct life_event ev)
{
    static const char *const names[] = {
        [LIFE_ACT_CONNECT] = "connect", [LIFE_ACT_SEND] = "send",     [LIFE_ACT_REACH] = "reach",
        [LIFE_ACT_SPAWN] = "spawn",     [LIFE_ACT_SIGNAL] = "signal", [LIFE_ACT_KILL] = "kill",
        [LIFE_ACT_STACKS] = "stacks",   [LIFE_ACT_HALT] = "halt",     [LIFE_ACT_SAY] = "say",
        [LIFE_ACT_EXIT] = "exit"};
    assert_int_equal(life_step(&s->life, s->now, &ev, &s->out), 0);
    mu_buf_reset(&s->told);
    for (uint32_t i = 0; i < s->out.count; i++) {
        const struct life_action *a = &s->out.actions[i];
        if (a->type == LIFE_ACT_SEND)
            (void)mu_buf_addf(&s->told, "%s; ", ctl_type_name(a->msg));
        else if (a->type == LIFE_ACT_SIGNAL)
            (void)mu_buf_addf(&s->told, "signal %d; ", s->life.signo);
        else if (a->type != LIFE_ACT_SAY)
            (void)mu_buf_addf(&s->told, "%s; ", names[a->type]);
    }
}

#define TOLD(s, text) assert_string_equal(mu_buf_cstr(&(s)->told), text)

/* The last line for the user; "" where there was none. */
static const char *said(const struct story *s)
{
    const char *text = "";
    for (uint32_t i = 0; i < s->out.count; i++)
        if (s->out.actions[i].type == LIFE_ACT_SAY)
            text = s->life.words + s->out.actions[i].arg;
    return text;
}

static void hear(struct story *s, enum ctl_type t, int64_t round, int64_t flag)
{
    static const enum life_event_type events[CTL_TYPE_COUNT] = {[CTL_WELCOME] = LIFE_EV_WELCOME,
                                                                [CTL_START] = LIFE_EV_START,
                                                                [CTL_GO] = LIFE_EV_GO,
                                                                [CTL_STOP] = LIFE_EV_STOP,
                                                                [CTL_END] = LIFE_EV_END};
    struct ctl_msg m;
    ctl_init(&m, t);
    if (t == CTL_START) {
        m.u.start.round = round;
        m.u.start.fence_ms = flag;
        m.u.start.rank_base = 4;
    } else if (t == CTL_GO) {
        m.u.go.round = round;
    } else if (t == CTL_STOP) {
        m.u.stop.round = round;
        m.u.stop.final = flag;
        m.u.stop.cause.kind = MU_CAUSE_WORKER_EXIT;
    } else if (t == CTL_END) {
        m.u.end.success = flag;
    }
    give(s, (struct life_event){.type = events[t], .msg = &m});
}

static void join_and_start(struct story *s, int64_t fence_ms)
{
    static const int32_t pids[] = {11, 12};
    give(s, (struct life_event){.type = LIFE_EV_DEADLINE});
    TOLD(s, "connect; ");
    give(s, (struct life_event){.type = LIFE_EV_LINK_UP});
    TOLD(s, "hello; ");
    hear(s, CTL_WELCOME, 0, 0);
    hear(s, CTL_START, 1, fence_ms);
    TOLD(s, "spawn; ");
    give(s, (struct life_event){.type = LIFE_EV_SPAWNED, .pids = pids});
    TOLD(s, "started; ");
}

/* Up to the START of a round that wants to know whether the lead can be reached. */
static void join_and_check(struct story *s, int64_t node_rank)
{
    struct ctl_msg m;
    give(s, (struct life_event){.type = LIFE_EV_DEADLINE});
    give(s, (struct life_event){.type = LIFE_EV_LINK_UP});
    hear(s, CTL_WELCOME, 0, 0);
    ctl_init(&m, CTL_START);
    m.u.start.round = 1;
    m.u.start.fence_ms = 600000;
    m.u.start.node_rank = node_rank;
    m.u.start.reach_ms = 10000;
    give(s, (struct life_event){.type = LIFE_EV_START, .msg = &m});
}

static int64_t told_round_state(const struct story *s)
{
    struct ctl_msg m;
    struct life_action hello = {.type = LIFE_ACT_SEND, .msg = CTL_HELLO};
    life_message(&s->life, &hello, &m);
    return m.u.hello.round_state;
}

static void test_no_worker_starts_before_all_reach_the_lead(void **state)
{
    (void)state;
    struct story s;
    begin(&s);
    join_and_check(&s, 1);
    TOLD(&s, "reach; ");
    assert_int_equal(told_round_state(&s), 4);
    hear(&s, CTL_GO, 1, 0); /* Nobody says so before we do. */
    TOLD(&s, "");
    give(&s, (struct life_event){.type = LIFE_EV_UNREACHED, .text = "refused"});
    TOLD(&s, "");
    s.now = s.life.deadline_ns;
    give(&s, (struct life_event){.type = LIFE_EV_DEADLINE});
    TOLD(&s, "reach; "); /* Again after a moment. */
    give(&s, (struct life_event){.type = LIFE_EV_REACHED});
    TOLD(&s, "reached; ");
    hear(&s, CTL_GO, 7, 0); /* Of another round. */
    TOLD(&s, "");
    hear(&s, CTL_START, 1, 600000); /* It was not heard: said again. */
    TOLD(&s, "reached; ");
    hear(&s, CTL_GO, 1, 0);
    TOLD(&s, "spawn; ");
    assert_int_equal(s.life.state, LIFE_RUNNING);
    hear(&s, CTL_GO, 1, 0);
    TOLD(&s, "");
    end(&s);
}

static void test_the_lead_waits_for_the_others_and_stops_without_a_worker(void **state)
{
    (void)state;
    struct story s;
    begin(&s);
    join_and_check(&s, 0);
    TOLD(&s, "reached; ");
    hear(&s, CTL_STOP, 1, 0);
    TOLD(&s, "stopped; ");
    assert_int_equal(s.life.state, LIFE_JOINING);
    hear(&s, CTL_GO, 1, 0); /* Too late. */
    TOLD(&s, "");
    end(&s);
}

static void test_a_lead_that_is_not_reached_in_time_is_a_failure(void **state)
{
    (void)state;
    struct story s;
    struct ctl_msg m;
    begin(&s);
    join_and_check(&s, 1);
    int64_t until = s.now + 10 * SEC;
    bool spoken = false;
    while (s.life.state == LIFE_CHECKING) {
        assert_true(s.now <= until);
        give(&s, (struct life_event){.type = LIFE_EV_UNREACHED, .text = "no answer"});
        s.now = s.life.deadline_ns;
        give(&s, (struct life_event){.type = LIFE_EV_DEADLINE});
        spoken = spoken || strstr(s.life.words, "cannot be reached yet (no answer)") != NULL;
    }
    assert_int_equal(s.now, until);
    assert_true(spoken);
    TOLD(&s, "failed; stopped; ");
    struct life_action failed = {.type = LIFE_ACT_SEND, .msg = CTL_FAILED};
    life_message(&s.life, &failed, &m);
    assert_int_equal(m.u.failed.cause.kind, MU_CAUSE_UNREACHED);
    assert_string_equal(m.u.failed.cause.message, "no answer, tried for 10 s");
    end(&s);
}

/* A line before 5 s have passed, then ever less often, but one each minute. */
static void test_no_wait_for_a_server_is_silent(void **state)
{
    (void)state;
    struct story s;
    begin(&s);
    int64_t said = s.now;
    int64_t gap = 0;
    give(&s, (struct life_event){.type = LIFE_EV_DEADLINE});
    while (s.life.state != LIFE_EXITED) {
        give(&s, (struct life_event){.type = LIFE_EV_LINK_FAILED, .text = "n1:29500: no answer"});
        s.now = s.life.deadline_ns;
        give(&s, (struct life_event){.type = LIFE_EV_DEADLINE});
        if (s.life.words_used == 0 || s.life.state == LIFE_EXITED)
            continue;
        assert_non_null(strstr(s.life.words, "n1:29500: no answer"));
        assert_true(s.now - said <= (gap == 0 ? 5 : 60) * SEC && s.now - said >= gap);
        gap = s.now - said;
        said = s.now;
    }
    assert_true(gap > 10 * SEC);
    end(&s);
}

static void test_a_stranger_at_the_port_is_left_after_a_moment(void **state)
{
    (void)state;
    struct story s;
    begin(&s);
    int64_t began = s.now;
    give(&s, (struct life_event){.type = LIFE_EV_DEADLINE});
    while (s.life.state != LIFE_EXITED) {
        give(&s, (struct life_event){.type = LIFE_EV_LINK_UP, .text = "connected"});
        give(&s, (struct life_event){
                     .type = LIFE_EV_LINK_LOST, .stranger = true, .text = "n1:29500: a stranger"});
        if (s.life.state == LIFE_EXITED)
            break;
        s.now = s.life.deadline_ns;
        give(&s, (struct life_event){.type = LIFE_EV_DEADLINE});
    }
    assert_in_range(s.now - began, 2 * SEC, 4 * SEC);
    assert_int_equal(s.life.exit_status, 1);
    assert_non_null(strstr(s.life.cause.message, "a stranger: choose another port"));
    end(&s);
}

static void test_workers_that_do_not_end_are_spoken_of(void **state)
{
    (void)state;
    struct story s;
    begin(&s);
    join_and_start(&s, 600000);
    hear(&s, CTL_STOP, 1, 0);
    TOLD(&s, "signal 15; ");
    bool spoken = false;
    for (int64_t until = s.now + 5 * SEC; s.now < until && !spoken; s.now = s.life.deadline_ns) {
        give(&s, (struct life_event){.type = LIFE_EV_DEADLINE});
        spoken = strstr(s.life.words, " have not ended ") != NULL && s.life.words_used > 0;
    }
    assert_true(spoken);
    end(&s);
}

static void exit_of(struct story *s, uint32_t local_rank, int32_t status)
{
    give(s, (struct life_event){
                .type = LIFE_EV_WORKER_EXIT, .local_rank = local_rank, .status = status});
}

static void test_good_life_joins_runs_finishes_exits_with_0(void **state)
{
    (void)state;
    struct story s;
    begin(&s);
    join_and_start(&s, 600000);
    exit_of(&s, 0, 0);
    TOLD(&s, "");
    exit_of(&s, 1, 0);
    TOLD(&s, "finished; ");
    give(&s, (struct life_event){.type = LIFE_EV_ALL_GONE});
    hear(&s, CTL_END, 0, 1);
    TOLD(&s, "exit; ");
    assert_int_equal(s.life.exit_status, 0);
    end(&s);
}

static void test_failed_worker_stops_the_rest_and_joins_again(void **state)
{
    (void)state;
    struct story s;
    begin(&s);
    join_and_start(&s, 600000);
    exit_of(&s, 1, -9);
    TOLD(&s, "failed; signal 15; ");
    assert_int_equal(s.life.failure.rank, 5);
    assert_int_equal(s.life.failure.signo, 9);
    assert_int_equal(s.life.failure.pid, 12);
    hear(&s, CTL_STOP, 1, 0);
    TOLD(&s, "");
    s.now = s.life.stop_deadline_ns;
    give(&s, (struct life_event){.type = LIFE_EV_DEADLINE});
    TOLD(&s, "beat; kill; ");
    assert_string_equal(said(&s), "rank 4 (pid 11) had not ended 10.0 s after SIGTERM: SIGKILL");
    exit_of(&s, 0, -9);
    give(&s, (struct life_event){.type = LIFE_EV_ALL_GONE});
    TOLD(&s, "stopped; ");
    assert_int_equal(s.life.state, LIFE_JOINING);
    end(&s);
}

static void test_silence_stops_the_workers_before_anyone_may_take_their_place(void **state)
{
    (void)state;
    struct story s;
    begin(&s);
    join_and_start(&s, 3000);
    give(&s, (struct life_event){.type = LIFE_EV_LINK_LOST});
    s.now += 3 * SEC * 7 / 10;
    give(&s, (struct life_event){.type = LIFE_EV_DEADLINE});
    TOLD(&s, "signal 15; ");
    s.now += SEC / 2;
    give(&s, (struct life_event){
                 .type = LIFE_EV_DEADLINE}); /* The grace was 10 s, but the fence ends it. */
    assert_non_null(strstr(mu_buf_cstr(&s.told), "kill; "));
    end(&s);
}

static void test_refused_connections_are_not_silence(void **state)
{
    (void)state;
    struct story s;
    begin(&s);
    join_and_start(&s, 3000);
    give(&s, (struct life_event){.type = LIFE_EV_LINK_LOST});
    for (int i = 0; i < 100; i++) {
        s.now += SEC;
        give(&s, (struct life_event){.type = LIFE_EV_DEADLINE});
        if (strstr(mu_buf_cstr(&s.told), "connect") != NULL)
            give(&s, (struct life_event){.type = LIFE_EV_LINK_FAILED, .refused = true});
    }
    assert_int_equal(s.life.state, LIFE_RUNNING);
    end(&s);
}

static void test_signal_is_passed_on_and_the_second_one_kills(void **state)
{
    (void)state;
    struct story s;
    begin(&s);
    join_and_start(&s, 600000);
    give(&s, (struct life_event){.type = LIFE_EV_SIGNAL, .signo = 2});
    TOLD(&s, "failed; signal 2; ");
    assert_int_equal(s.life.failure.kind, MU_CAUSE_NODE_LEFT);
    s.now += SEC / 2; /* One word heard twice: timeout(1) signals the process and its group. */
    give(&s, (struct life_event){.type = LIFE_EV_SIGNAL, .signo = 2});
    TOLD(&s, "");
    s.now += SEC;
    give(&s, (struct life_event){.type = LIFE_EV_SIGNAL, .signo = 2});
    TOLD(&s, "kill; ");
    assert_string_equal(
        said(&s), "rank 4 (pid 11), rank 5 (pid 12) had not ended 1.5 s after SIGINT: SIGKILL");
    exit_of(&s, 0, -9);
    exit_of(&s, 1, -9);
    give(&s, (struct life_event){.type = LIFE_EV_ALL_GONE});
    TOLD(&s, "bye; exit; ");
    assert_int_equal(s.life.exit_status, 1);
    end(&s);
}

static void hear_halt(struct story *s, int64_t step, int64_t leave)
{
    struct ctl_msg m;
    ctl_init(&m, CTL_HALT);
    m.u.halt = (struct ctl_halt){.round = 1, .step = step, .leave = leave, .timeout_ms = 5000};
    (void)snprintf(m.u.halt.host, sizeof m.u.halt.host, "n2");
    give(s, (struct life_event){.type = LIFE_EV_HALT, .msg = &m});
}

static void hear_drained_stop(struct story *s)
{
    struct ctl_msg m;
    ctl_init(&m, CTL_STOP);
    m.u.stop.round = 1;
    m.u.stop.cause.kind = MU_CAUSE_NODE_LEFT;
    give(s, (struct life_event){.type = LIFE_EV_STOP, .msg = &m});
}

static void halted_exit(struct story *s, uint32_t local_rank)
{
    give(s, (struct life_event){
                .type = LIFE_EV_WORKER_EXIT, .local_rank = local_rank, .halted = true});
}

static const struct life_event asked_to_leave = {
    .type = LIFE_EV_DRAIN, .text = "a reason", .timeout_ns = 20 * SEC};

/* The workers stop after the step that the server names; then the node leaves, and failed nothing.
 */
static void test_who_is_asked_to_leave_goes_after_the_step_that_all_stop_at(void **state)
{
    (void)state;
    struct story s;
    begin(&s);
    s.life.config.hello.nodes_max = 2;
    join_and_start(&s, 600000);
    give(&s, asked_to_leave);
    TOLD(&s, "drain; ");
    hear_halt(&s, 120, 1);
    TOLD(&s, "halt; ");
    assert_string_equal(said(&s), "n2 is to leave (): the workers stop after step 120");
    hear_halt(&s, 150, 1); /* One step for all: the first one. */
    TOLD(&s, "");
    assert_int_equal(s.life.halt_step, 120);
    halted_exit(&s, 0);
    halted_exit(&s, 1);
    TOLD(&s, "finished; ");
    struct ctl_msg m;
    life_message(&s.life, &(struct life_action){.type = LIFE_ACT_SEND, .msg = CTL_FINISHED}, &m);
    assert_int_equal(m.u.finished.halted, 1);
    give(&s, (struct life_event){.type = LIFE_EV_ALL_GONE});
    hear_drained_stop(&s);
    TOLD(&s, "bye; exit; ");
    assert_int_equal(s.life.exit_status, 0);
    end(&s);
}

/* The others stop there too, and go on. */
static void test_who_stays_stops_with_the_one_that_leaves_and_joins_again(void **state)
{
    (void)state;
    struct story s;
    begin(&s);
    s.life.config.hello.nodes_max = 2;
    join_and_start(&s, 600000);
    hear_halt(&s, 7, 0);
    TOLD(&s, "halt; ");
    halted_exit(&s, 1);
    halted_exit(&s, 0);
    give(&s, (struct life_event){.type = LIFE_EV_ALL_GONE});
    hear_drained_stop(&s);
    TOLD(&s, "stopped; ");
    assert_int_equal(s.life.state, LIFE_JOINING);
    end(&s);
}

static void test_who_does_not_leave_in_time_is_stopped_and_leaves(void **state)
{
    (void)state;
    struct story s;
    begin(&s);
    s.life.config.hello.nodes_max = 2;
    join_and_start(&s, 600000);
    give(&s, asked_to_leave);
    s.now += SEC;
    give(&s, (struct life_event){.type = LIFE_EV_LINK_LOST});
    give(&s, (struct life_event){.type = LIFE_EV_LINK_UP});
    TOLD(&s, "hello; started; drain; "); /* It says it again, with what is left. */
    assert_int_equal(s.life.drain_left_ms, 19000);
    s.now += 19 * SEC;
    give(&s, (struct life_event){.type = LIFE_EV_DEADLINE});
    assert_non_null(strstr(mu_buf_cstr(&s.told), "failed; signal 15; "));
    assert_int_equal(s.life.failure.kind, MU_CAUSE_NODE_LEFT);
    assert_string_equal(s.life.failure.message, "drained: a reason");
    exit_of(&s, 0, -15);
    exit_of(&s, 1, -15);
    give(&s, (struct life_event){.type = LIFE_EV_ALL_GONE});
    TOLD(&s, "bye; exit; ");
    assert_int_equal(s.life.exit_status, 0);
    end(&s);
}

/* Where there is no other node the job ends with it. */
static void test_the_only_node_that_is_asked_to_leave_has_not_succeeded(void **state)
{
    (void)state;
    struct story s;
    begin(&s);
    join_and_start(&s, 600000);
    give(&s, asked_to_leave);
    hear_drained_stop(&s); /* Nobody told of steps. */
    TOLD(&s, "signal 15; ");
    exit_of(&s, 0, -15);
    exit_of(&s, 1, -15);
    give(&s, (struct life_event){.type = LIFE_EV_ALL_GONE});
    TOLD(&s, "bye; exit; ");
    assert_int_equal(s.life.exit_status, 1);
    end(&s);
}

static void test_a_spare_that_is_asked_to_leave_goes_at_once(void **state)
{
    (void)state;
    struct story s;
    begin(&s);
    s.life.config.hello.nodes_max = 2;
    give(&s, (struct life_event){.type = LIFE_EV_DEADLINE});
    give(&s, (struct life_event){.type = LIFE_EV_LINK_UP});
    hear_halt(&s, -1, 1);
    TOLD(&s, "bye; exit; ");
    assert_int_equal(s.life.exit_status, 0);
    end(&s);
}

/* What the worker wrote last goes out with its failure, and is ours until the server tells. */
static void test_last_words_go_with_the_failure(void **state)
{
    (void)state;
    struct story s;
    struct ctl_msg m;
    begin(&s);
    join_and_start(&s, 600000);
    give(&s, (struct life_event){
                 .type = LIFE_EV_WORKER_EXIT,
                 .local_rank = 1,
                 .status = 7,
                 .words = {.output = "boom\n", .tail = "more\nboom\n", .trace = "at x.c:1"}});
    TOLD(&s, "failed; signal 15; ");
    life_message(&s.life, &s.out.actions[0], &m);
    assert_string_equal(m.u.failed.output, "boom\n");
    assert_string_equal(m.u.failed.tail, "more\nboom\n");
    assert_string_equal(m.u.failed.trace, "at x.c:1");
    assert_string_equal(s.life.cause_output, "boom\n");
    ctl_init(&m, CTL_STOP);
    m.u.stop.round = 1;
    m.u.stop.cause.kind = MU_CAUSE_WORKER_EXIT;
    (void)snprintf(m.u.stop.output, sizeof m.u.stop.output, "another's\n");
    give(&s, (struct life_event){.type = LIFE_EV_STOP, .msg = &m});
    assert_string_equal(s.life.cause_output, "another's\n");
    end(&s);
}

/* How long the stop took, and who failed by itself meanwhile: not who ended as it was told. */
static void test_stopped_tells_times_and_late_failures(void **state)
{
    (void)state;
    struct story s;
    struct ctl_msg m;
    begin(&s);
    join_and_start(&s, 600000);
    s.now += 5 * SEC;
    ctl_init(&m, CTL_STOP);
    m.u.stop.round = 1;
    m.u.stop.cause.kind = MU_CAUSE_WORKER_SIGNAL;
    give(&s, (struct life_event){.type = LIFE_EV_STOP, .msg = &m});
    s.now += SEC;
    give(&s, (struct life_event){
                 .type = LIFE_EV_WORKER_EXIT, .local_rank = 1, .status = 3, .by_itself = true});
    s.now += 2 * SEC;
    give(&s, (struct life_event){.type = LIFE_EV_WORKER_EXIT, .local_rank = 0, .status = -15});
    s.now += SEC / 2;
    give(&s, (struct life_event){.type = LIFE_EV_ALL_GONE});
    life_message(&s.life, &s.out.actions[0], &m);
    assert_int_equal(m.type, CTL_STOPPED);
    assert_int_equal(m.u.stopped.stop_ms, 3000);
    assert_int_equal(m.u.stopped.reclaim_ms, 500);
    assert_int_equal(m.u.stopped.late_count, 1);
    assert_int_equal(m.u.stopped.late.n, 2);
    assert_int_equal(m.u.stopped.late.v[0], 1);
    assert_int_equal(m.u.stopped.late.v[1], 2500);
    end(&s);
}

static void test_a_hung_worker_ends_the_round_as_a_failure(void **state)
{
    (void)state;
    struct story s;
    struct ctl_msg m;
    static const int32_t numbers[] = {1, 5000, 3, 1};
    begin(&s);
    join_and_start(&s, 600000);
    give(&s, (struct life_event){.type = LIFE_EV_SILENT, .silent = {numbers, 4}});
    TOLD(&s, "silent; ");
    life_message(&s.life, &s.out.actions[0], &m);
    assert_int_equal(m.u.silent.round, 1);
    assert_int_equal(m.u.silent.workers.n, 4);
    assert_memory_equal(m.u.silent.workers.v, numbers, sizeof numbers);
    give(&s, (struct life_event){.type = LIFE_EV_HUNG, .local_rank = 1, .text = "no step"});
    TOLD(&s, "failed; signal 15; ");
    assert_int_equal(s.life.failure.kind, MU_CAUSE_NO_PROGRESS);
    assert_int_equal(s.life.failure.rank, 5);
    assert_int_equal(s.life.failure.pid, 12);
    assert_string_equal(s.life.failure.message, "no step");
    end(&s);
}

static void stop_for_hang(struct story *s, int32_t rank)
{
    struct ctl_msg m;
    ctl_init(&m, CTL_STOP);
    m.u.stop.round = 1;
    m.u.stop.cause.kind = MU_CAUSE_NO_PROGRESS;
    m.u.stop.cause.rank = rank;
    give(s, (struct life_event){.type = LIFE_EV_STOP, .msg = &m});
}

/* Workers are looked at before they are told to end, for no longer than their grace. */
static void test_stacks_are_taken_before_a_hung_round_is_stopped(void **state)
{
    (void)state;
    struct story s;
    struct ctl_msg m;
    begin(&s);
    s.life.config.stacks_ns = 30 * SEC; /* The grace is 10 s. */
    join_and_start(&s, 600000);
    stop_for_hang(&s, 0); /* Another node's. */
    TOLD(&s, "stacks; ");
    s.now += SEC;
    give(&s, (struct life_event){.type = LIFE_EV_STACKS});
    TOLD(&s, "signal 15; ");
    assert_int_equal(s.life.stop_deadline_ns, s.now + 10 * SEC);
    end(&s);

    begin(&s);
    s.life.config.stacks_ns = 30 * SEC;
    join_and_start(&s, 600000);
    stop_for_hang(&s, 5); /* Ours: others blame it, and we know what it was doing. */
    TOLD(&s, "stacks; ");
    give(&s, (struct life_event){.type = LIFE_EV_STACKS, .words = {.trace = "in recv()"}});
    TOLD(&s, "failed; signal 15; ");
    life_message(&s.life, &s.out.actions[0], &m);
    assert_int_equal(m.u.failed.cause.kind, MU_CAUSE_NO_PROGRESS);
    assert_int_equal(m.u.failed.cause.local_rank, 1);
    assert_string_equal(m.u.failed.trace, "in recv()");
    end(&s);

    begin(&s);
    s.life.config.stacks_ns = 30 * SEC;
    join_and_start(&s, 600000);
    stop_for_hang(&s, 0);
    TOLD(&s, "stacks; ");
    s.now += 11 * SEC; /* They never come. */
    give(&s, (struct life_event){.type = LIFE_EV_DEADLINE});
    assert_true(s.life.signalled);
    give(&s, (struct life_event){.type = LIFE_EV_STACKS});
    assert_true(s.life.state == LIFE_STOPPING && !s.life.killed);
    end(&s);
}

static void test_owner_gone_kills_at_once(void **state)
{
    (void)state;
    struct story s;
    begin(&s);
    join_and_start(&s, 600000);
    give(&s, (struct life_event){.type = LIFE_EV_OWNER_GONE});
    TOLD(&s, "failed; kill; ");
    assert_string_equal(s.life.cause.message, "its launching process was killed");
    end(&s);
}

/* Who was told to leave could go on: that is no failure of the node, whatever the words for it. */
static void test_the_owners_words_are_the_cause(void **state)
{
    (void)state;
    struct story s;
    begin(&s);
    join_and_start(&s, 600000);
    give(&s, (struct life_event){.type = LIFE_EV_OWNER_GONE, .text = "on request"});
    TOLD(&s, "failed; kill; ");
    assert_int_equal(s.life.cause.kind, MU_CAUSE_NODE_LEFT);
    assert_string_equal(s.life.cause.message, "on request");
    end(&s);
    begin(&s);
    join_and_start(&s, 600000);
    give(&s, (struct life_event){
                 .type = LIFE_EV_SIGNAL, .signo = 15, .by_owner = true, .text = "it died"});
    TOLD(&s, "failed; signal 15; ");
    assert_int_equal(s.life.cause.kind, MU_CAUSE_NODE_LEFT);
    assert_string_equal(s.life.cause.message, "it died");
    end(&s);
    begin(&s);
    join_and_start(&s, 600000);
    give(&s, (struct life_event){.type = LIFE_EV_SIGNAL, .signo = 15, .text = "stuck"});
    assert_int_equal(s.life.cause.kind, MU_CAUSE_NODE_FAILED);
    end(&s);
}

static void test_no_server_is_given_up_in_time_with_the_last_error(void **state)
{
    (void)state;
    struct story s;
    begin(&s);
    for (int i = 0; i < 10000 && s.life.state != LIFE_EXITED; i++) {
        give(&s, (struct life_event){.type = LIFE_EV_DEADLINE});
        if (strstr(mu_buf_cstr(&s.told), "connect") != NULL)
            give(&s, (struct life_event){.type = LIFE_EV_LINK_FAILED,
                                         .refused = true,
                                         .text = "head port 29500: connection refused"});
        if (s.life.state != LIFE_EXITED) {
            assert_true(s.life.deadline_ns != INT64_MAX);
            s.now = s.life.deadline_ns > s.now ? s.life.deadline_ns : s.now;
        }
    }
    assert_int_equal(s.life.state, LIFE_EXITED);
    assert_int_equal(s.now, 160 * SEC);
    assert_non_null(strstr(s.life.cause.message, "connection refused"));
    end(&s);
}

static void wait_until_exited(struct story *s)
{
    for (int i = 0; i < 10000 && s->life.state != LIFE_EXITED; i++) {
        assert_true(s->life.deadline_ns != INT64_MAX);
        s->now = s->life.deadline_ns > s->now ? s->life.deadline_ns : s->now;
        give(s, (struct life_event){.type = LIFE_EV_DEADLINE});
    }
    assert_int_equal(s->life.state, LIFE_EXITED);
}

static void test_what_takes_our_hello_and_says_nothing_is_no_server(void **state)
{
    (void)state;
    struct story s;
    begin(&s);
    give(&s, (struct life_event){.type = LIFE_EV_DEADLINE});
    give(&s, (struct life_event){.type = LIFE_EV_LINK_UP, .text = "head port 1: connected"});
    wait_until_exited(&s);
    assert_int_equal(s.now, 110 * SEC);
    assert_non_null(strstr(s.life.cause.message, "head port 1: connected"));
    end(&s);
}

static void answer_beat(struct story *s)
{
    struct ctl_msg m;
    ctl_init(&m, CTL_BEAT);
    m.u.beat.seq = s->life.beat_seq;
    give(s, (struct life_event){.type = LIFE_EV_BEAT, .msg = &m});
}

/* The server is heard once a beat: a time-out shorter than that must not take the pause for its
 * end. */
static void test_a_server_that_answers_is_not_given_up_however_short_the_time_out(void **state)
{
    (void)state;
    struct story s;
    struct ctl_msg m;
    begin(&s);
    s.life.config.server_timeout_ns = SEC / 10;
    give(&s, (struct life_event){.type = LIFE_EV_DEADLINE});
    give(&s, (struct life_event){.type = LIFE_EV_LINK_UP});
    ctl_init(&m, CTL_WELCOME);
    m.u.welcome.beat_ms = 1000;
    give(&s, (struct life_event){.type = LIFE_EV_WELCOME, .msg = &m});
    while (s.now < 120 * SEC) {
        s.now = s.life.deadline_ns;
        give(&s, (struct life_event){.type = LIFE_EV_DEADLINE});
        assert_int_equal(s.life.state, LIFE_JOINING);
        if (strstr(mu_buf_cstr(&s.told), "beat") != NULL)
            answer_beat(&s);
    }
    int64_t last_heard = s.life.heard_ns;
    wait_until_exited(&s);
    assert_int_equal(s.now, last_heard + 2 * SEC + SEC / 10);
    end(&s);
}

/* A server in a storm may greet as late as a beat after the hello. The next beat is not put off by
 * that, and none is said twice. */
static void test_a_late_welcome_does_not_put_off_the_beat(void **state)
{
    (void)state;
    struct story s;
    struct ctl_msg m;
    begin(&s);
    give(&s, (struct life_event){.type = LIFE_EV_DEADLINE});
    give(&s, (struct life_event){.type = LIFE_EV_LINK_UP});
    int64_t hello_ns = s.now;
    ctl_init(&m, CTL_WELCOME);
    m.u.welcome.beat_ms = 400;
    s.now += SEC / 2;
    give(&s, (struct life_event){.type = LIFE_EV_WELCOME, .msg = &m});
    assert_in_range(s.life.deadline_ns, 0, s.now);
    give(&s, (struct life_event){.type = LIFE_EV_DEADLINE});
    TOLD(&s, "beat; ");
    assert_int_equal(s.life.beat_at_ns, s.now + 400 * (SEC / 1000));
    m.u.welcome.beat_ms = 2000; /* Said again, another one. */
    s.now += SEC / 10;
    give(&s, (struct life_event){.type = LIFE_EV_WELCOME, .msg = &m});
    assert_int_equal(s.life.beat_at_ns, hello_ns + SEC / 2 + 2 * SEC);
    end(&s);
}

static void test_a_server_that_greets_and_closes_is_given_up_without_a_storm(void **state)
{
    (void)state;
    struct story s;
    begin(&s);
    int attempts = 0;
    for (int i = 0; i < 10000 && s.life.state != LIFE_EXITED; i++) {
        give(&s, (struct life_event){.type = LIFE_EV_DEADLINE});
        if (strstr(mu_buf_cstr(&s.told), "connect") != NULL) {
            attempts++;
            give(&s, (struct life_event){.type = LIFE_EV_LINK_UP});
            hear(&s, CTL_WELCOME, 0, 0);
            give(&s, (struct life_event){.type = LIFE_EV_LINK_LOST, .text = "the server closed"});
        }
        s.now = s.life.deadline_ns > s.now ? s.life.deadline_ns : s.now;
    }
    assert_int_equal(s.life.state, LIFE_EXITED);
    assert_in_range(attempts, 10, 120); /* Back-off, although each time it was welcomed. */
    assert_non_null(strstr(s.life.cause.message, "the server closed"));
    end(&s);
}

static void test_lost_failure_is_said_again_after_reconnecting(void **state)
{
    (void)state;
    struct story s;
    struct ctl_msg m;
    begin(&s);
    join_and_start(&s, 600000);
    give(&s, (struct life_event){.type = LIFE_EV_LINK_LOST});
    exit_of(&s, 0, 3);
    TOLD(&s, "signal 15; ");
    exit_of(&s, 1, -15);
    give(&s, (struct life_event){.type = LIFE_EV_ALL_GONE});
    give(&s, (struct life_event){.type = LIFE_EV_LINK_UP});
    TOLD(&s, "hello; failed; stopped; ");
    life_message(&s.life, &s.out.actions[0], &m);
    assert_int_equal(m.u.hello.round, 1);
    assert_int_equal(m.u.hello.round_state,
                     0); /* Until FAILED is told, else the failure would come as a consequence. */
    end(&s);
}

static void hear_stop_of(struct story *s, int32_t rank)
{
    struct ctl_msg m;
    ctl_init(&m, CTL_STOP);
    m.u.stop.round = 1;
    m.u.stop.cause.kind = MU_CAUSE_WORKER_EXIT;
    m.u.stop.cause.rank = rank;
    m.u.stop.cause.exit_code = 1;
    give(s, (struct life_event){.type = LIFE_EV_STOP, .msg = &m});
}

static void test_what_failed_before_it_was_signalled_is_told_though_the_round_stops(void **state)
{
    (void)state;
    struct story s;
    struct ctl_msg m;
    begin(&s);
    join_and_start(&s, 600000);
    hear_stop_of(&s, 0);
    TOLD(&s, "signal 15; ");
    give(&s, (struct life_event){
                 .type = LIFE_EV_WORKER_EXIT, .local_rank = 1, .status = -9, .by_itself = true});
    TOLD(&s, "failed; ");
    life_message(&s.life, &s.out.actions[0], &m);
    assert_int_equal(m.u.failed.cause.rank, 5);
    assert_int_equal(m.u.failed.cause.signo, 9);
    assert_int_equal(m.u.failed.cause.blame, -1);
    hear_stop_of(&s, 5); /* Which is why the server says so. */
    TOLD(&s, "");
    assert_int_equal(s.life.cause.rank, 5);
    assert_non_null(strstr(s.life.words, "rank 5")); /* The user is told, too. */
    exit_of(&s, 0, -15);                             /* By our signal. */
    TOLD(&s, "");
    end(&s);
}

static void test_a_second_failure_is_told_only_if_it_explains_the_first(void **state)
{
    (void)state;
    struct story s;
    struct ctl_msg m;
    begin(&s);
    join_and_start(&s, 600000);
    give(&s, (struct life_event){.type = LIFE_EV_WORKER_EXIT,
                                 .local_rank = 0,
                                 .status = 1,
                                 .by_itself = true,
                                 .names_rank = true,
                                 .named = 5});
    TOLD(&s, "failed; signal 15; ");
    life_message(&s.life, &s.out.actions[0], &m);
    assert_int_equal(m.u.failed.cause.blame, 5);
    give(&s, (struct life_event){
                 .type = LIFE_EV_WORKER_EXIT, .local_rank = 1, .status = 7, .by_itself = true});
    TOLD(&s, "failed; ");
    assert_int_equal(s.life.cause.rank, 5);
    end(&s);
    begin(&s);
    join_and_start(&s, 600000);
    exit_of(&s, 0, 1);
    give(&s, (struct life_event){
                 .type = LIFE_EV_WORKER_EXIT, .local_rank = 1, .status = 7, .by_itself = true});
    TOLD(&s, "");
    end(&s);
}

static void test_who_exits_young_leaves_its_peers_as_long_again(void **state)
{
    (void)state;
    struct story s;
    begin(&s);
    join_and_start(&s, 600000);
    s.now += SEC / 20;
    exit_of(&s, 1, 3);
    TOLD(&s, "failed; ");
    hear(&s, CTL_STOP, 1, 0);
    TOLD(&s, "");
    assert_int_equal(s.life.deadline_ns, s.now + SEC / 20);
    s.now += SEC / 20;
    give(&s, (struct life_event){.type = LIFE_EV_DEADLINE});
    TOLD(&s, "signal 15; ");
    give(&s, (struct life_event){.type = LIFE_EV_DEADLINE});
    TOLD(&s, "");
    assert_int_equal(s.life.stop_deadline_ns, s.now + 10 * SEC);
    end(&s);

    begin(&s); /* Told by another node. */
    join_and_start(&s, 600000);
    s.now += SEC / 20;
    hear(&s, CTL_STOP, 1, 0);
    TOLD(&s, "");
    give(&s, (struct life_event){.type = LIFE_EV_SIGNAL, .signo = 2}); /* A person does not wait. */
    TOLD(&s, "signal 2; ");
    s.now += SEC / 20;
    give(&s, (struct life_event){.type = LIFE_EV_DEADLINE});
    TOLD(&s, "");
    end(&s);

    begin(&s); /* What has run for a while is past what all say at their start. */
    join_and_start(&s, 600000);
    s.now += SEC;
    exit_of(&s, 1, 3);
    TOLD(&s, "failed; signal 15; ");
    end(&s);

    begin(&s); /* And a signal comes from outside. */
    join_and_start(&s, 600000);
    s.now += SEC / 20;
    exit_of(&s, 1, -9);
    TOLD(&s, "failed; signal 15; ");
    end(&s);
}

/* The server closes once it has said END, while what a worker left behind is still being ended. */
static void test_a_link_that_ends_after_the_job_is_not_made_anew(void **state)
{
    (void)state;
    struct story s;
    begin(&s);
    join_and_start(&s, 600000);
    exit_of(&s, 0, 0);
    exit_of(&s, 1, 0);
    hear(&s, CTL_END, 0, 1);
    TOLD(&s, "signal 15; kill; ");
    give(&s, (struct life_event){.type = LIFE_EV_LINK_LOST});
    s.now = s.life.stop_deadline_ns - 1;
    give(&s, (struct life_event){.type = LIFE_EV_DEADLINE});
    TOLD(&s, "");
    give(&s, (struct life_event){.type = LIFE_EV_ALL_GONE});
    TOLD(&s, "exit; ");
    assert_int_equal(s.life.exit_status, 0);
    end(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table_every_state_is_reachable_and_ends),
        cmocka_unit_test(test_table_every_state_hears_signals_time_and_the_link),
        cmocka_unit_test(test_no_worker_starts_before_all_reach_the_lead),
        cmocka_unit_test(test_the_lead_waits_for_the_others_and_stops_without_a_worker),
        cmocka_unit_test(test_a_lead_that_is_not_reached_in_time_is_a_failure),
        cmocka_unit_test(test_no_wait_for_a_server_is_silent),
        cmocka_unit_test(test_a_stranger_at_the_port_is_left_after_a_moment),
        cmocka_unit_test(test_workers_that_do_not_end_are_spoken_of),
        cmocka_unit_test(test_good_life_joins_runs_finishes_exits_with_0),
        cmocka_unit_test(test_failed_worker_stops_the_rest_and_joins_again),
        cmocka_unit_test(test_silence_stops_the_workers_before_anyone_may_take_their_place),
        cmocka_unit_test(test_refused_connections_are_not_silence),
        cmocka_unit_test(test_signal_is_passed_on_and_the_second_one_kills),
        cmocka_unit_test(test_who_is_asked_to_leave_goes_after_the_step_that_all_stop_at),
        cmocka_unit_test(test_who_stays_stops_with_the_one_that_leaves_and_joins_again),
        cmocka_unit_test(test_who_does_not_leave_in_time_is_stopped_and_leaves),
        cmocka_unit_test(test_the_only_node_that_is_asked_to_leave_has_not_succeeded),
        cmocka_unit_test(test_a_spare_that_is_asked_to_leave_goes_at_once),
        cmocka_unit_test(test_last_words_go_with_the_failure),
        cmocka_unit_test(test_stopped_tells_times_and_late_failures),
        cmocka_unit_test(test_a_hung_worker_ends_the_round_as_a_failure),
        cmocka_unit_test(test_stacks_are_taken_before_a_hung_round_is_stopped),
        cmocka_unit_test(test_owner_gone_kills_at_once),
        cmocka_unit_test(test_the_owners_words_are_the_cause),
        cmocka_unit_test(test_no_server_is_given_up_in_time_with_the_last_error),
        cmocka_unit_test(test_what_takes_our_hello_and_says_nothing_is_no_server),
        cmocka_unit_test(test_a_server_that_answers_is_not_given_up_however_short_the_time_out),
        cmocka_unit_test(test_a_late_welcome_does_not_put_off_the_beat),
        cmocka_unit_test(test_a_server_that_greets_and_closes_is_given_up_without_a_storm),
        cmocka_unit_test(test_lost_failure_is_said_again_after_reconnecting),
        cmocka_unit_test(test_what_failed_before_it_was_signalled_is_told_though_the_round_stops),
        cmocka_unit_test(test_a_second_failure_is_told_only_if_it_explains_the_first),
        cmocka_unit_test(test_who_exits_young_leaves_its_peers_as_long_again),
        cmocka_unit_test(test_a_link_that_ends_after_the_job_is_not_made_anew),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
