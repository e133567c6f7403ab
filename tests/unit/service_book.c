/* agent/service/book.h, line.h: jobs of a node from assignment to release; when a service connects.
 */
#include "tests/unit/unit.h"

#include <errno.h>

#include "agent/service/book.h"
#include "agent/service/line.h"
#include "base/check.h"

#define SEC INT64_C(1000000000)

static struct svc_book book;
static struct svc_out out;

static void begin(uint32_t slots)
{
    svc_init(&book, slots, 30 * SEC);
    assert_int_equal(svc_step(&book, 0, &(struct svc_event){.type = SVC_EV_WELCOME}, &out), 0);
    assert_int_equal(out.count, 1);
    assert_int_equal(out.a[0].type, SVC_ACT_HAS);
    assert_int_equal(out.a[0].entry, -1);
}

static void step(int64_t at_s, struct svc_event ev)
{
    assert_int_equal(svc_step(&book, at_s * SEC, &ev, &out), 0);
}

static int32_t assign(const char *job, uint32_t attempt, uint32_t nproc)
{
    step(1,
         (struct svc_event){.type = SVC_EV_ASSIGN, .job = job, .attempt = attempt, .nproc = nproc});
    assert_int_equal(out.count, 3);
    assert_int_equal(out.a[0].placed, SVC_PLACED_STARTING);
    assert_int_equal(out.a[1].type, SVC_ACT_START);
    assert_int_equal(out.a[2].placed, SVC_PLACED_RUNS);
    return out.a[1].entry;
}

static const char *refused(struct svc_event ev)
{
    ev.type = SVC_EV_ASSIGN;
    step(2, ev);
    assert_int_equal(out.count, 1);
    assert_int_equal(out.a[0].type, SVC_ACT_PLACED);
    assert_int_equal(out.a[0].placed, SVC_PLACED_REFUSED);
    assert_string_equal(out.a[0].job, ev.job);
    return out.a[0].text;
}

static void end(int32_t entry, int32_t status)
{
    step(3, (struct svc_event){
                .type = SVC_EV_EXITED, .entry = entry, .status = status, .text = "it ended"});
    assert_int_equal(out.count, 0);
    step(4, (struct svc_event){.type = SVC_EV_EMPTY, .entry = entry});
}

static void test_a_job_is_started_and_its_end_is_told_when_its_output_is_whole(void **state)
{
    (void)state;
    begin(4);
    int32_t e = assign("a", 1, 2);
    assert_int_equal(svc_busy_slots(&book), 2);
    end(e, 3);
    assert_int_equal(out.count, 1);
    assert_int_equal(out.a[0].placed, SVC_PLACED_ENDED);
    assert_int_equal(book.entries[e].status, 3);
    assert_string_equal(out.a[0].text, "it ended");
    assert_int_equal(svc_busy_slots(&book), 0);
    assert_int_equal(svc_deadline(&book), INT64_MAX);
}

static void test_an_end_is_remembered_until_a_later_beat_is_answered(void **state)
{
    (void)state;
    begin(4);
    book.seq = 7;
    int32_t e = assign("a", 1, 1);
    end(e, 0);
    step(5, (struct svc_event){.type = SVC_EV_ANSWER, .seq = 7}); /* Sent before we spoke. */
    assert_int_equal(svc_find(&book, "a", 1), e);
    step(6, (struct svc_event){.type = SVC_EV_LOST});
    book.seq = 8;
    step(6, (struct svc_event){.type = SVC_EV_ANSWER, .seq = 8}); /* Of the old connection. */
    assert_int_equal(svc_find(&book, "a", 1), e);
    step(7, (struct svc_event){.type = SVC_EV_WELCOME});
    assert_int_equal(out.count, 2);
    assert_int_equal(out.a[0].type, SVC_ACT_HAS);
    assert_int_equal(out.a[0].entry, e);
    step(8, (struct svc_event){.type = SVC_EV_ANSWER, .seq = 9});
    assert_int_equal(svc_find(&book, "a", 1), -1);
}

static void test_what_cannot_be_taken_is_refused_with_a_reason(void **state)
{
    (void)state;
    begin(4);
    (void)assign("a", 2, 3);
    assert_has(refused((struct svc_event){.job = "b", .attempt = 1, .nproc = 2}),
               "3 of this node's 4 slots");
    assert_has(refused((struct svc_event){.job = "b", .attempt = 1, .nproc = 5}), "5 workers");
    assert_has(refused((struct svc_event){.job = "a", .attempt = 3, .nproc = 1}),
               "start 2 of this job");
    assert_has(
        refused((struct svc_event){.job = "b", .attempt = 1, .nproc = 1, .text = "no such folder"}),
        "no such folder");
    step(3, (struct svc_event){.type = SVC_EV_DRAIN});
    assert_int_equal(out.count, 2);
    assert_int_equal(out.a[0].type, SVC_ACT_DRAINS);
    assert_int_equal(out.a[1].type, SVC_ACT_SIGNAL);
    assert_has(refused((struct svc_event){.job = "b", .attempt = 1, .nproc = 1}), "drained");
    step(3, (struct svc_event){.type = SVC_EV_DRAIN});
    assert_int_equal(out.count, 0);
    step(4, (struct svc_event){.type = SVC_EV_WELCOME}); /* Another server, maybe. */
    assert_int_equal(out.a[out.count - 1].type, SVC_ACT_DRAINS);
    step(5, (struct svc_event){.type = SVC_EV_UNDRAIN});
    assert_int_equal(out.count, 0);
    (void)assign("b", 1, 1);
    step(6, (struct svc_event){.type = SVC_EV_STOP}); /* Then it is too late. */
    step(6, (struct svc_event){.type = SVC_EV_UNDRAIN});
    assert_int_equal(out.count, 1);
    assert_int_equal(out.a[0].type, SVC_ACT_DRAINS);
}

static void test_an_assignment_said_again_is_answered_again(void **state)
{
    (void)state;
    begin(4);
    int32_t e = assign("a", 1, 1);
    step(2, (struct svc_event){.type = SVC_EV_ASSIGN, .job = "a", .attempt = 1, .nproc = 1});
    assert_int_equal(out.count, 1);
    assert_int_equal(out.a[0].placed, SVC_PLACED_RUNS);
    end(e, 0);
    step(5, (struct svc_event){.type = SVC_EV_ASSIGN, .job = "a", .attempt = 1, .nproc = 1});
    assert_int_equal(out.a[0].placed, SVC_PLACED_ENDED);
    (void)assign("a", 2, 1);
    assert_int_equal(svc_find(&book, "a", 0), svc_find(&book, "a", 2));
}

static void test_a_start_that_fails_is_a_refusal(void **state)
{
    (void)state;
    begin(1);
    int32_t e = assign("a", 1, 1);
    step(1, (struct svc_event){.type = SVC_EV_FAILED, .entry = e, .text = "no memory"});
    assert_int_equal(out.count, 1);
    assert_int_equal(out.a[0].placed, SVC_PLACED_REFUSED);
    assert_string_equal(out.a[0].text, "no memory");
    (void)assign("b", 1, 1); /* Its slot is free again. */
}

static void test_who_is_deaf_is_killed_and_then_given_up(void **state)
{
    (void)state;
    begin(1);
    int32_t e = assign("a", 1, 1);
    step(10,
         (struct svc_event){
             .type = SVC_EV_UNASSIGN, .job = "a", .attempt = 1, .signo = 2, .grace_ns = 5 * SEC});
    assert_int_equal(out.a[0].type, SVC_ACT_SIGNAL);
    assert_int_equal(out.a[0].signo, 2);
    assert_int_equal(svc_deadline(&book), 15 * SEC);
    step(14, (struct svc_event){.type = SVC_EV_DEADLINE});
    assert_int_equal(out.count, 0);
    step(15, (struct svc_event){.type = SVC_EV_DEADLINE});
    assert_int_equal(out.a[0].type, SVC_ACT_KILL);
    assert_int_equal(svc_deadline(&book), 15 * SEC + MU_KILL_WAIT_NS);
    step(25, (struct svc_event){.type = SVC_EV_DEADLINE});
    assert_int_equal(out.a[0].type, SVC_ACT_ABANDON);
    step(25, (struct svc_event){.type = SVC_EV_EMPTY, .entry = e});
    assert_int_equal(out.a[0].placed, SVC_PLACED_ENDED);
    assert_int_equal(book.entries[e].status, 137);
    assert_has(out.a[0].text, "grace");
}

static void test_sigkill_has_no_grace_and_a_second_word_only_hurries(void **state)
{
    (void)state;
    begin(4);
    (void)assign("a", 1, 1);
    step(2,
         (struct svc_event){
             .type = SVC_EV_UNASSIGN, .job = "a", .attempt = 1, .signo = 9, .grace_ns = 5 * SEC});
    assert_int_equal(out.a[0].type, SVC_ACT_KILL);
    (void)assign("b", 1, 1);
    step(2,
         (struct svc_event){
             .type = SVC_EV_UNASSIGN, .job = "b", .attempt = 1, .signo = 15, .grace_ns = 5 * SEC});
    step(3,
         (struct svc_event){
             .type = SVC_EV_UNASSIGN, .job = "b", .attempt = 1, .signo = 15, .grace_ns = 9 * SEC});
    assert_int_equal(book.entries[svc_find(&book, "b", 1)].deadline_ns, 7 * SEC);
    step(4, (struct svc_event){
                .type = SVC_EV_UNASSIGN, .job = "b", .attempt = 1, .signo = 15, .grace_ns = SEC});
    assert_int_equal(book.entries[svc_find(&book, "b", 1)].deadline_ns, 5 * SEC);
    step(5, (struct svc_event){.type = SVC_EV_UNASSIGN, .job = "never", .attempt = 1, .signo = 15});
    assert_int_equal(out.a[0].placed, SVC_PLACED_ENDED);
    assert_int_equal(out.a[0].entry, -1);
}

static void test_output_that_stays_open_behind_an_exit_has_a_limit(void **state)
{
    (void)state;
    begin(1);
    int32_t e = assign("a", 1, 1);
    step(5, (struct svc_event){.type = SVC_EV_EXITED, .entry = e, .status = 0});
    assert_int_equal(svc_deadline(&book), 5 * SEC + MU_KILL_WAIT_NS);
    step(60, (struct svc_event){.type = SVC_EV_DEADLINE});
    assert_int_equal(out.a[0].type, SVC_ACT_ABANDON);
    assert_int_equal(out.a[0].entry, e);
}

static void test_a_service_leaves_when_the_last_job_has(void **state)
{
    (void)state;
    begin(4);
    int32_t a = assign("a", 1, 1);
    int32_t b = assign("b", 1, 1);
    step(2, (struct svc_event){.type = SVC_EV_STOP});
    assert_int_equal(out.count, 3);
    assert_int_equal(out.a[0].type, SVC_ACT_DRAINS); /* Nothing new is placed here meanwhile. */
    assert_has(refused((struct svc_event){.job = "c", .attempt = 1, .nproc = 1}), "stopped");
    end(a, 143);
    assert_int_equal(out.count, 1);
    end(b, 143);
    assert_int_equal(out.count, 2);
    assert_int_equal(out.a[1].type, SVC_ACT_LEAVE);
    begin(4);
    step(2, (struct svc_event){.type = SVC_EV_STOP});
    assert_int_equal(out.a[0].type, SVC_ACT_LEAVE);
}

static void test_without_a_connection_nothing_is_said(void **state)
{
    (void)state;
    begin(4);
    int32_t e = assign("a", 1, 1);
    step(2, (struct svc_event){.type = SVC_EV_LOST});
    end(e, 0);
    assert_int_equal(out.count, 0);
    step(5, (struct svc_event){.type = SVC_EV_GONE, .job = "a"});
    assert_int_equal(out.count, 0);
    step(6, (struct svc_event){.type = SVC_EV_WELCOME});
    assert_int_equal(out.count, 2);
    step(7, (struct svc_event){.type = SVC_EV_GONE, .job = "a"});
    assert_int_equal(out.a[0].type, SVC_ACT_RELEASE);
}

static void test_places_last_for_ever(void **state)
{
    (void)state;
    begin(4);
    for (int i = 0; i < 3 * SVC_JOBS_MAX; i++) { /* Nobody ever answers a beat. */
        char job[16];
        (void)snprintf(job, sizeof job, "j%d", i);
        end(assign(job, 1, 4), 0);
    }
    assert_int_equal(svc_live_count(&book), 0);
}

static void test_events_that_fit_nothing_change_nothing(void **state)
{
    (void)state;
    begin(4);
    int32_t e = assign("a", 1, 1);
    struct svc_event empty = {.type = SVC_EV_EMPTY, .entry = e};
    assert_int_equal(svc_step(&book, 0, &empty, &out), -EPROTO);
    end(e, 0);
    struct svc_event again = {.type = SVC_EV_EXITED, .entry = e};
    assert_int_equal(svc_step(&book, 0, &again, &out), -EPROTO);
    assert_int_equal(book.entries[e].state, SVC_ENDED);
}

/* --- the line --- */

static void test_a_service_tries_for_ever_ever_less_often(void **state)
{
    (void)state;
    struct line l;
    int64_t now = 0;
    int attempts = 0;
    int words = 0;
    line_init(&l, 0, 4711);
    while (now < 3600 * SEC) {
        unsigned todo = line_step(&l, now, LINE_EV_DEADLINE, 0, 0);
        words += (todo & LINE_WORD) != 0;
        if ((todo & LINE_CONNECT) != 0) {
            attempts++;
            (void)line_step(&l, now, LINE_EV_FAILED, 0, 0);
        }
        assert_true(line_deadline(&l) > now);
        assert_true(line_deadline(&l) <= now + 20 * SEC);
        now = line_deadline(&l);
    }
    assert_in_range(attempts, 3600 / 16, 3600 / 7 + 20);
    assert_in_range(words, 10, 30);
}

static void test_a_silent_server_is_dropped_and_asked_anew(void **state)
{
    (void)state;
    struct line l;
    line_init(&l, 0, 1);
    assert_int_equal(line_step(&l, 0, LINE_EV_DEADLINE, 0, 0), LINE_CONNECT);
    assert_int_equal(line_step(&l, 0, LINE_EV_UP, 0, 0), LINE_OFFER);
    assert_int_equal(line_step(&l, 0, LINE_EV_WELCOME, SEC, 3 * SEC), 0);
    for (int s = 1; s < 10; s++)
        assert_int_equal(line_step(&l, s * SEC, LINE_EV_DEADLINE, 0, 0), LINE_BEAT);
    assert_int_equal(l.seq, 9);
    assert_int_equal(line_step(&l, 10 * SEC, LINE_EV_DEADLINE, 0, 0), LINE_DROP);
    (void)line_step(&l, 10 * SEC, LINE_EV_LOST, 0, 0);
    assert_int_equal(l.state, LINE_DOWN);
    assert_true(line_deadline(&l) < 11 * SEC);
}

static void test_who_is_refused_waits_longer(void **state)
{
    (void)state;
    struct line l;
    line_init(&l, 0, 1);
    (void)line_step(&l, 0, LINE_EV_DEADLINE, 0, 0);
    (void)line_step(&l, 0, LINE_EV_UP, 0, 0);
    assert_int_equal(line_step(&l, 0, LINE_EV_REFUSED, 0, 0), LINE_DROP);
    (void)line_step(&l, 0, LINE_EV_LOST, 0, 0); /* Of the drop: the time stays. */
    assert_true(l.retry_at_ns >= 15 * SEC);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_job_is_started_and_its_end_is_told_when_its_output_is_whole),
        cmocka_unit_test(test_an_end_is_remembered_until_a_later_beat_is_answered),
        cmocka_unit_test(test_what_cannot_be_taken_is_refused_with_a_reason),
        cmocka_unit_test(test_an_assignment_said_again_is_answered_again),
        cmocka_unit_test(test_a_start_that_fails_is_a_refusal),
        cmocka_unit_test(test_who_is_deaf_is_killed_and_then_given_up),
        cmocka_unit_test(test_sigkill_has_no_grace_and_a_second_word_only_hurries),
        cmocka_unit_test(test_output_that_stays_open_behind_an_exit_has_a_limit),
        cmocka_unit_test(test_a_service_leaves_when_the_last_job_has),
        cmocka_unit_test(test_without_a_connection_nothing_is_said),
        cmocka_unit_test(test_places_last_for_ever),
        cmocka_unit_test(test_events_that_fit_nothing_change_nothing),
        cmocka_unit_test(test_a_service_tries_for_ever_ever_less_often),
        cmocka_unit_test(test_a_silent_server_is_dropped_and_asked_anew),
        cmocka_unit_test(test_who_is_refused_waits_longer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
