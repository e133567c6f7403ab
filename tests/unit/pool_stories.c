/* Promises of the pool, one story each: who starts when and where, what each that waits is said to
 * wait for, how jobs end, and what a restarted server knows. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/pool/pool.h"
#include "tests/unit/unit.h"

#define SEC INT64_C(1000000000)
#define ORDERS_MAX 64

/* What nodes were told, in order. */
struct order {
    enum pool_action_type type;
    char job[MU_RUN_ID_BYTES];
    uint32_t node;
    uint32_t attempt;
    uint32_t rank;
    uint32_t count;
    int32_t gpus[16];
    uint32_t gpu_count;
    int64_t signo;
};

struct story {
    struct pool pool;
    struct pool_out out;
    int64_t now;
    struct order orders[ORDERS_MAX];
    uint32_t order_count;
    uint32_t kept;
};

static void note(struct story *s, const struct pool_action *a)
{
    struct ctl_msg m;
    if (a->type == POOL_ACT_KEEP) {
        s->kept++;
        return;
    }
    assert_true(s->order_count < ORDERS_MAX);
    struct order *o = &s->orders[s->order_count++];
    *o = (struct order){.type = a->type, .node = a->node};
    if (a->type == POOL_ACT_ASSIGN) {
        pool_assign_message(&s->pool, a, &m);
        (void)mu_strcopy(o->job, sizeof o->job, m.u.assign.job);
        o->attempt = (uint32_t)m.u.assign.attempt;
        o->rank = (uint32_t)m.u.assign.node_rank;
        o->count = (uint32_t)m.u.assign.node_count;
        o->gpu_count = m.u.assign.gpus.n;
        for (uint32_t i = 0; i < o->gpu_count; i++)
            o->gpus[i] = m.u.assign.gpus.v[i];
    } else if (a->type == POOL_ACT_UNASSIGN) {
        pool_unassign_message(&s->pool, a, &m);
        (void)mu_strcopy(o->job, sizeof o->job, m.u.unassign.job);
        o->attempt = (uint32_t)m.u.unassign.attempt;
        o->signo = m.u.unassign.signo;
    }
}

static int try(struct story *s, struct pool_event ev, struct mu_err *err)
{
    struct pool_action a;
    ev.unix_ms = s->now / 1000000;
    s->order_count = 0;
    int r = pool_step(&s->pool, s->now, &ev, &s->out, err);
    while (pool_next(&s->pool, &a))
        note(s, &a);
    return r;
}

static void give(struct story *s, struct pool_event ev)
{
    struct mu_err err = {0};
    if (try(s, ev, &err) != 0)
        fail_msg("refused: %s", err.msg);
}

static void begin(struct story *s, bool keeps)
{
    memset(s, 0, sizeof *s);
    s->now = 1000 * SEC;
    pool_init(&s->pool, mu_mem_default(),
              &(struct pool_config){.lease_ns = 3 * SEC, .keeps = keeps});
}

static struct pool_event none(enum pool_event_type type)
{
    return (struct pool_event){.type = type, .node = POOL_NONE, .job = POOL_NONE};
}

static void has(struct story *s, uint32_t node, const char *job, int attempt, int state)
{
    struct ctl_msg m;
    struct pool_event ev = none(POOL_EV_HAS);
    ctl_init(&m, CTL_HAS);
    (void)mu_strcopy(m.u.has.job, sizeof m.u.has.job, job);
    m.u.has.attempt = attempt;
    m.u.has.state = state;
    ev.node = node;
    ev.msg = &m;
    give(s, ev);
}

static uint32_t offer_as(struct story *s, const char *host, const char *id, int slots, int gpus)
{
    struct ctl_msg m;
    struct pool_event ev = none(POOL_EV_OFFER);
    ctl_init(&m, CTL_OFFER);
    (void)mu_strcopy(m.u.offer.node, sizeof m.u.offer.node, id);
    (void)mu_strcopy(m.u.offer.host, sizeof m.u.offer.host, host);
    m.u.offer.slots = slots;
    m.u.offer.gpus = gpus;
    ev.msg = &m;
    ev.addr = "127.0.0.1";
    give(s, ev);
    return s->out.node;
}

static uint32_t offer_again(struct story *s, const char *host, int slots, int gpus)
{
    char id[40];
    (void)snprintf(id, sizeof id, "id-%.30s", host);
    return offer_as(s, host, id, slots, gpus);
}

static uint32_t offer(struct story *s, const char *host, int slots, int gpus)
{
    uint32_t node = offer_again(s, host, slots, gpus);
    has(s, node, "", 0, 0);
    return node;
}

static uint32_t
submit(struct story *s, const char *id, uint32_t min, uint32_t max, uint32_t nproc, int32_t gpus)
{
    struct pool_submission sub = {.id = id,
                                  .name = id,
                                  .spec = mu_str_of("{}", 2),
                                  .nodes_min = min,
                                  .nodes_max = max,
                                  .nproc = nproc,
                                  .gpus = gpus};
    struct pool_event ev = none(POOL_EV_SUBMIT);
    ev.submission = &sub;
    give(s, ev);
    return s->out.job;
}

static void
placed(struct story *s, uint32_t node, const char *job, int attempt, int state, int status)
{
    struct ctl_msg m;
    struct pool_event ev = none(POOL_EV_PLACED);
    ctl_init(&m, CTL_PLACED);
    (void)mu_strcopy(m.u.placed.job, sizeof m.u.placed.job, job);
    m.u.placed.attempt = attempt;
    m.u.placed.state = state;
    m.u.placed.status = status;
    if (state == 3)
        (void)mu_strcopy(m.u.placed.text, sizeof m.u.placed.text, "no such folder");
    ev.node = node;
    ev.msg = &m;
    give(s, ev);
}

static void verdict(struct story *s, uint32_t job, bool success, int status)
{
    struct pool_event ev = none(POOL_EV_VERDICT);
    ev.job = job;
    ev.success = success;
    ev.exit_status = status;
    ev.text = success ? NULL : "rank 0 failed";
    ev.begun_unix_ms = s->now / 1000000;
    give(s, ev);
}

/* As the rendezvous says it where the last node of a job goes. */
static void nodes_gone(struct story *s, uint32_t job)
{
    struct pool_event ev = none(POOL_EV_VERDICT);
    ev.job = job;
    ev.nodes_gone = true;
    ev.exit_status = 1;
    ev.text = "the agent on n1 was lost";
    ev.begun_unix_ms = s->now / 1000000;
    give(s, ev);
}

static void stop(struct story *s, uint32_t job, int signo)
{
    struct pool_event ev = none(POOL_EV_STOP);
    ev.job = job;
    ev.signo = signo;
    ev.grace_ms = 1000;
    give(s, ev);
}

static void of_node(struct story *s, enum pool_event_type type, uint32_t node)
{
    struct pool_event ev = none(type);
    ev.node = node;
    give(s, ev);
}

static void pass(struct story *s, int64_t seconds)
{
    s->now += seconds * SEC;
    for (uint32_t i = 0; i < s->pool.node_cap; i++)
        if (s->pool.nodes[i] != NULL && s->pool.nodes[i]->connected)
            s->pool.nodes[i]->heard_ns = s->now;
    give(s, none(POOL_EV_DEADLINE));
}

static const struct pool_job *job(const struct story *s, uint32_t slot)
{
    return s->pool.jobs[slot];
}

static void assert_state(const struct story *s, uint32_t slot, enum pool_job_state state)
{
    assert_string_equal(pool_state_name(job(s, slot)->state), pool_state_name(state));
}

static void assert_says(const struct story *s, uint32_t slot, const char *part)
{
    struct mu_buf b;
    mu_buf_init(&b, mu_mem_default());
    pool_sentence(&s->pool, job(s, slot), &b);
    assert_has(mu_buf_cstr(&b), part);
    mu_buf_fini(&b);
}

static void assert_says_all(const struct story *s, uint32_t slot, const char *text)
{
    struct mu_buf b;
    mu_buf_init(&b, mu_mem_default());
    pool_sentence(&s->pool, job(s, slot), &b);
    assert_string_equal(mu_buf_cstr(&b), text);
    mu_buf_fini(&b);
}

static void end(struct story *s)
{
    pool_fini(&s->pool);
}

/* --- placement --- */

static void test_a_job_gets_its_nodes_at_once_and_in_natural_order(void **state)
{
    struct story s;
    (void)state;
    begin(&s, false);
    uint32_t j = submit(&s, "j", 2, 2, 4, -1);
    assert_state(&s, j, POOL_QUEUED);
    assert_says(&s, j, "no node is on offer");
    uint32_t n10 = offer(&s, "n10", 8, 8);
    assert_int_equal(s.order_count, 0); /* All or nothing. */
    assert_says(&s, j, "waits for 2 nodes with 4 free slots");
    uint32_t n2 = offer(&s, "n2", 8, 8);
    assert_int_equal(s.order_count, 2);
    assert_int_equal(s.orders[0].node, n2);
    assert_int_equal(s.orders[1].node, n10);
    assert_int_equal(s.orders[1].rank, 1);
    assert_int_equal(s.orders[0].count, 2);
    assert_int_equal(s.orders[0].gpu_count, 4);
    assert_int_equal(s.orders[0].gpus[3], 3);
    assert_state(&s, j, POOL_STARTING);
    placed(&s, n2, "j", 1, 0, 0);
    placed(&s, n2, "j", 1, 1, 0);
    assert_state(&s, j, POOL_STARTING);
    placed(&s, n10, "j", 1, 1, 0);
    assert_state(&s, j, POOL_RUNNING);
    verdict(&s, j, true, 0);
    assert_state(&s, j, POOL_RUNNING); /* Its agents end by themselves. */
    placed(&s, n2, "j", 1, 2, 0);
    placed(&s, n10, "j", 1, 2, 0);
    assert_state(&s, j, POOL_DONE);
    assert_int_equal(job(&s, j)->exit_status, 0);
    assert_int_equal(s.pool.nodes[n2]->gpus_free, 8);
    end(&s);
}

static void test_jobs_share_a_node_and_no_gpu(void **state)
{
    struct story s;
    (void)state;
    begin(&s, false);
    uint32_t n = offer(&s, "n1", 16, 4);
    (void)submit(&s, "a", 1, 1, 2, -1);
    assert_int_equal(s.orders[0].gpus[0], 0);
    uint32_t b = submit(&s, "b", 1, 1, 2, -1);
    assert_int_equal(s.orders[0].gpus[0], 2);
    assert_int_equal(s.orders[0].gpus[1], 3);
    uint32_t c = submit(&s, "c", 1, 1, 1, 1);
    assert_state(&s, c, POOL_QUEUED); /* Slots are free, GPUs are not. */
    assert_says(&s, c, "1 free GPU");
    uint32_t d = submit(&s, "d", 1, 1, 1, 0);
    assert_state(&s, d, POOL_QUEUED); /* It could delay c. */
    assert_says(&s, d, "waits for c, which is first in the queue");
    placed(&s, n, "b", 1, 1, 0);
    verdict(&s, b, true, 0);
    placed(&s, n, "b", 1, 2, 0);
    assert_state(&s, b, POOL_DONE);
    assert_state(&s, c, POOL_STARTING);
    assert_state(&s, d, POOL_STARTING);
    assert_int_equal(job(&s, c)->seats[0].gpus[0], 2);
    end(&s);
}

static void test_a_later_job_passes_only_where_the_earlier_could_never_run(void **state)
{
    struct story s;
    (void)state;
    begin(&s, false);
    (void)offer(&s, "big", 8, 8);
    (void)offer(&s, "small", 2, 0);
    uint32_t two = submit(&s, "two", 2, 2, 8, 8);
    uint32_t small = submit(&s, "small-one", 1, 1, 2, 0);
    uint32_t other = submit(&s, "other", 1, 1, 4, 0);
    assert_state(&s, two, POOL_QUEUED);
    assert_says(&s, two, "only 1 of 2 on offer could: add nodes, or stop it");
    assert_state(&s, small, POOL_STARTING);
    assert_string_equal(job(&s, small)->seats[0].host, "small");
    assert_state(&s, other, POOL_QUEUED);
    end(&s);
}

static void test_idle_nodes_come_first_and_most_nodes_where_there_is_room(void **state)
{
    struct story s;
    (void)state;
    begin(&s, false);
    (void)offer(&s, "n1", 4, 0);
    (void)offer(&s, "n2", 4, 0);
    uint32_t a = submit(&s, "a", 1, 1, 1, -1);
    uint32_t b = submit(&s, "b", 1, 1, 1, -1);
    assert_string_equal(job(&s, a)->seats[0].host, "n1");
    assert_string_equal(job(&s, b)->seats[0].host, "n2");
    uint32_t c = submit(&s, "c", 1, 8, 2, -1);
    assert_int_equal(job(&s, c)->seat_count, 2);
    end(&s);
}

/* --- ends --- */

static void test_a_job_without_a_verdict_ends_by_exit_statuses(void **state)
{
    struct story s;
    (void)state;
    begin(&s, false);
    uint32_t n = offer(&s, "n1", 4, 0);
    uint32_t j = submit(&s, "j", 1, 1, 1, -1);
    placed(&s, n, "j", 1, 1, 0);
    placed(&s, n, "j", 1, 2, 127);
    assert_state(&s, j, POOL_RUNNING); /* The rendezvous speaks first. */
    pass(&s, 3);
    assert_state(&s, j, POOL_FAILED);
    assert_int_equal(job(&s, j)->exit_status, 127);
    assert_says(&s, j, "the agent on n1 ended with status 127");
    end(&s);
}

static void test_a_verdict_beats_statuses_and_agents_that_stay_are_ended(void **state)
{
    struct story s;
    (void)state;
    begin(&s, false);
    uint32_t n = offer(&s, "n1", 4, 0);
    uint32_t j = submit(&s, "j", 1, 1, 1, -1);
    placed(&s, n, "j", 1, 1, 0);
    verdict(&s, j, false, 9);
    pass(&s, 31);
    assert_state(&s, j, POOL_FAILED);
    assert_int_equal(job(&s, j)->exit_status, 9);
    assert_int_equal(s.orders[0].type, POOL_ACT_UNASSIGN);
    assert_int_equal(s.pool.nodes[n]->slots_free, 3); /* Until it has said so. */
    placed(&s, n, "j", 1, 2, 1);
    assert_int_equal(s.pool.nodes[n]->slots_free, 4);
    assert_int_equal(job(&s, j)->exit_status, 9);
    end(&s);
}

static void test_stop_and_resume(void **state)
{
    struct story s;
    struct mu_err err = {0};
    (void)state;
    begin(&s, false);
    uint32_t n = offer(&s, "n1", 1, 0);
    uint32_t j = submit(&s, "j", 1, 1, 1, -1);
    uint32_t k = submit(&s, "k", 1, 1, 1, -1);
    placed(&s, n, "j", 1, 1, 0);
    struct pool_event resume = none(POOL_EV_RESUME);
    resume.job = j;
    assert_int_equal(try(&s, resume, &err), -EALREADY);
    assert_has(err.msg, "running");
    stop(&s, k, 15);
    assert_state(&s, k, POOL_STOPPED); /* It had not begun. */
    stop(&s, j, 2);
    assert_state(&s, j, POOL_STOPPING);
    assert_int_equal(s.orders[0].signo, 2);
    stop(&s, j, 9);
    assert_int_equal(s.orders[0].signo, 9);
    assert_says(&s, j, "waits for n1 to end it");
    placed(&s, n, "j", 1, 2, 137);
    assert_state(&s, j, POOL_STOPPED);
    assert_int_equal(job(&s, j)->exit_status, 137);
    struct pool_event again = none(POOL_EV_STOP);
    again.job = j;
    assert_int_equal(try(&s, again, &err), -EALREADY);
    resume.job = k;
    give(&s, resume);
    resume.job = j;
    give(&s, resume);
    assert_state(&s, k, POOL_STARTING);
    assert_state(&s, j, POOL_QUEUED); /* At the queue's end. */
    placed(&s, n, "k", 1, 1, 0);
    verdict(&s, k, true, 0);
    placed(&s, n, "k", 1, 2, 0);
    assert_state(&s, j, POOL_STARTING);
    assert_int_equal(s.orders[0].attempt, 2);
    placed(&s, n, "j", 1, 2, 0); /* Of the start before: late, and of no meaning. */
    assert_state(&s, j, POOL_STARTING);
    end(&s);
}

static void test_a_job_that_was_told_to_stop_ends_with_that_signal(void **state)
{
    struct story s;
    (void)state;
    begin(&s, false);
    uint32_t n = offer(&s, "n1", 2, 0);
    uint32_t j = submit(&s, "j", 1, 1, 1, -1);
    uint32_t k = submit(&s, "k", 1, 1, 1, -1);
    placed(&s, n, "j", 1, 1, 0);
    placed(&s, n, "k", 1, 1, 0);
    stop(&s, j, 15);
    verdict(&s, j, false, -1); /* Its node has left, says the rendezvous. */
    placed(&s, n, "j", 1, 2, 143);
    assert_state(&s, j, POOL_STOPPED);
    assert_int_equal(job(&s, j)->exit_status, 143);
    stop(&s, k, 2);
    verdict(&s, k, false, -1);
    placed(&s, n, "k", 1, 2, 0);
    assert_state(&s, k, POOL_STOPPED);
    assert_int_equal(job(&s, k)->exit_status, 130);
    end(&s);
}

/* The agents are killed, and what the rendezvous sees of that is a node that was lost. */
static void test_a_job_that_was_killed_on_request_ends_with_that_signal(void **state)
{
    struct story s;
    (void)state;
    begin(&s, false);
    uint32_t n1 = offer(&s, "n1", 1, 0);
    uint32_t n2 = offer(&s, "n2", 1, 0);
    uint32_t j = submit(&s, "j", 2, 2, 1, -1);
    placed(&s, n1, "j", 1, 1, 0);
    placed(&s, n2, "j", 1, 1, 0);
    stop(&s, j, 9);
    nodes_gone(&s, j);
    placed(&s, n1, "j", 1, 2, 1); /* It saw the other one go, first. */
    placed(&s, n2, "j", 1, 2, 137);
    assert_state(&s, j, POOL_STOPPED);
    assert_int_equal(s.pool.jobs[j]->exit_status, 137);
    uint32_t k = submit(&s, "k", 1, 1, 1, -1);
    placed(&s, n1, "k", 1, 1, 0);
    stop(&s, k, 9);
    nodes_gone(&s, k);
    of_node(&s, POOL_EV_AWAY, n1); /* It says nothing any more. */
    pass(&s, 4);
    assert_state(&s, k, POOL_STOPPED);
    assert_int_equal(s.pool.jobs[k]->exit_status, 137);
    end(&s);
}

static void test_who_refuses_is_passed_over_and_in_the_end_the_job_fails(void **state)
{
    struct story s;
    (void)state;
    begin(&s, false);
    uint32_t n1 = offer(&s, "n1", 4, 0);
    uint32_t n2 = offer(&s, "n2", 4, 0);
    uint32_t j = submit(&s, "j", 1, 1, 1, -1);
    placed(&s, n1, "j", 1, 3, 0);
    assert_int_equal(s.order_count, 1);
    assert_int_equal(s.orders[0].node, n2);
    assert_int_equal(s.orders[0].attempt, 2);
    placed(&s, n2, "j", 2, 3, 0);
    assert_state(&s, j, POOL_FAILED);
    assert_says(&s, j, "n2 refused it: no such folder");
    assert_int_equal(s.pool.nodes[n1]->slots_free + s.pool.nodes[n2]->slots_free, 8);
    end(&s);
}

static void test_who_refuses_is_not_asked_again_while_another_is_busy(void **state)
{
    struct story s;
    (void)state;
    begin(&s, false);
    uint32_t n1 = offer(&s, "n1", 4, 0);
    uint32_t n2 = offer(&s, "n2", 8, 0);
    uint32_t large = submit(&s, "large", 1, 1, 8, -1);
    placed(&s, n2, "large", 1, 1, 0);
    uint32_t j = submit(&s, "j", 1, 1, 1, -1);
    placed(&s, n1, "j", 1, 3, 0);
    assert_state(&s, j, POOL_QUEUED);
    assert_says(&s, j, "n1 refused it: no such folder");
    placed(&s, n2, "large", 1, 2, 0);
    pass(&s, 3);
    assert_state(&s, large, POOL_DONE);
    assert_state(&s, j, POOL_STARTING);
    assert_string_equal(job(&s, j)->seats[0].host, "n2");
    end(&s);
}

static void test_a_job_of_many_nodes_fails_when_too_few_have_not_refused_it(void **state)
{
    struct story s;
    (void)state;
    begin(&s, false);
    uint32_t n1 = offer(&s, "n1", 4, 0);
    uint32_t n2 = offer(&s, "n2", 4, 0);
    uint32_t two = submit(&s, "two", 2, 2, 1, -1);
    placed(&s, n2, "two", 1, 1, 0);
    placed(&s, n1, "two", 1, 3, 0);
    assert_state(&s, two, POOL_FAILED);
    assert_says(&s, two, "n1 refused it");
    placed(&s, n2, "two", 1, 2, 0);
    assert_int_equal(s.pool.nodes[n1]->slots_free + s.pool.nodes[n2]->slots_free, 8);
    end(&s);
}

static void test_sentences_stand_behind_the_state_and_name_a_host_once(void **state)
{
    struct story s;
    (void)state;
    begin(&s, false);
    uint32_t huge = submit(&s, "huge", 1, 1, 16, -1);
    assert_says(&s, huge, "no node is on offer");
    (void)offer(&s, "vm", 4, 0);
    uint32_t other = offer(&s, "vm2", 4, 2);
    (void)mu_strcopy(s.pool.nodes[other]->host, sizeof s.pool.nodes[other]->host, "vm");
    uint32_t j = submit(&s, "j", 2, 2, 1, 0);
    assert_says_all(&s, j, "waits for vm to begin it");
    assert_says_all(&s, huge,
                    "waits for a node with 16 free slots (and as many GPUs where a node has any): "
                    "of those on offer none can ever run it, as the "
                    "largest takes 4 workers and has 2 GPUs; ask for less, or add such a node");
    uint32_t later = submit(&s, "later", 1, 1, 17, -1);
    assert_says(&s, later, "can ever run it"); /* Not: waits for huge. */
    stop(&s, later, 15);
    assert_says_all(&s, later, "it was stopped before it began");
    end(&s);
}

/* --- nodes that go --- */

static void test_a_lost_node_is_replaced_and_tidies_up_when_it_is_back(void **state)
{
    struct story s;
    (void)state;
    begin(&s, false);
    uint32_t n1 = offer(&s, "n1", 1, 0);
    uint32_t n2 = offer(&s, "n2", 1, 0);
    uint32_t j = submit(&s, "j", 2, 2, 1, -1);
    placed(&s, n1, "j", 1, 1, 0);
    placed(&s, n2, "j", 1, 1, 0);
    of_node(&s, POOL_EV_AWAY, n1);
    assert_string_equal(pool_node_shown(s.pool.nodes[n1]), "away");
    pass(&s, 4);
    assert_says(&s, j, "waits for n1 to come back, or for another node");
    uint32_t waits = submit(&s, "k", 1, 1, 1, -1);
    uint32_t n3 = offer(&s, "n3", 1, 0);
    assert_int_equal(s.order_count, 1);
    assert_int_equal(s.orders[0].node, n3); /* Before the queue. */
    assert_int_equal(s.orders[0].rank, 0);
    assert_string_equal(s.orders[0].job, "j");
    assert_state(&s, waits, POOL_QUEUED);
    (void)offer_again(&s, "n1", 1, 0);
    has(&s, n1, "j", 1, 0);
    assert_true(s.out.stray);
    has(&s, n1, "", 0, 0);
    assert_state(&s, waits, POOL_QUEUED); /* Something of j still runs there. */
    placed(&s, n1, "j", 1, 2, 143);
    assert_state(&s, waits, POOL_STARTING);
    assert_int_equal(s.orders[0].node, n1);
    end(&s);
}

static void test_a_node_that_is_back_in_time_changes_nothing(void **state)
{
    struct story s;
    (void)state;
    begin(&s, false);
    uint32_t n1 = offer(&s, "n1", 1, 0);
    uint32_t j = submit(&s, "j", 1, 1, 1, -1);
    placed(&s, n1, "j", 1, 1, 0);
    of_node(&s, POOL_EV_AWAY, n1);
    pass(&s, 2);
    (void)offer_again(&s, "n1", 1, 0);
    has(&s, n1, "j", 1, 0);
    assert_false(s.out.stray);
    has(&s, n1, "", 0, 0);
    assert_int_equal(s.order_count, 0);
    assert_state(&s, j, POOL_RUNNING);
    of_node(&s, POOL_EV_AWAY, n1);
    (void)offer(&s, "n1", 1, 0); /* It has lost it meanwhile: it is told again. */
    assert_int_equal(s.order_count, 1);
    assert_int_equal(s.orders[0].type, POOL_ACT_ASSIGN);
    end(&s);
}

static void test_a_silent_node_is_dropped(void **state)
{
    struct story s;
    (void)state;
    begin(&s, false);
    uint32_t n1 = offer(&s, "n1", 1, 0);
    s.now += 4 * SEC;
    give(&s, none(POOL_EV_DEADLINE));
    assert_int_equal(s.order_count, 1);
    assert_int_equal(s.orders[0].type, POOL_ACT_DROP);
    assert_int_equal(s.orders[0].node, n1);
    s.now += 700 * SEC;
    give(&s, none(POOL_EV_DEADLINE));
    assert_int_equal(s.pool.node_count, 0);
    end(&s);
}

/* The ASSIGN of the start before had crossed the order to stop. */
static void test_a_refusal_of_the_start_before_is_nothing_to_the_next(void **state)
{
    struct story s;
    (void)state;
    begin(&s, false);
    uint32_t n1 = offer(&s, "n1", 1, 0);
    uint32_t j = submit(&s, "j", 1, 1, 1, -1);
    of_node(&s, POOL_EV_AWAY, n1);
    struct pool_event ev = none(POOL_EV_STOP);
    ev.job = j;
    ev.signo = 15;
    give(&s, ev);
    s.now += 4 * SEC;
    give(&s, none(POOL_EV_DEADLINE));
    assert_state(&s, j, POOL_STOPPED);
    n1 = offer_again(&s, "n1", 1, 0);
    placed(&s, n1, "j", 1, 1, 0);
    ev.type = POOL_EV_RESUME;
    give(&s, ev);
    assert_state(&s, j, POOL_QUEUED);
    placed(&s, n1, "j", 1, 3, 0);
    assert_int_equal(s.pool.jobs[j]->refusals, 0);
    has(&s, n1, "", 0, 0);
    assert_state(&s, j, POOL_STARTING);
    end(&s);
}

static void test_a_drained_node_takes_nothing_new_until_that_is_taken_back(void **state)
{
    struct story s;
    (void)state;
    begin(&s, false);
    uint32_t n1 = offer(&s, "n1", 1, 0);
    of_node(&s, POOL_EV_DRAIN, n1);
    uint32_t j = submit(&s, "j", 1, 1, 1, -1);
    assert_state(&s, j, POOL_QUEUED);
    assert_says(&s, j, "1 is drained");
    of_node(&s, POOL_EV_UNDRAIN, n1);
    assert_state(&s, j, POOL_STARTING);
    end(&s);
}

/* --- what a successor knows --- */

/* Every row, into a pool of its own, as a server does that was started anew. */
static void restart(struct story *s)
{
    struct story next;
    begin(&next, true);
    next.now = s->now + 60 * SEC;
    for (uint32_t i = 0; i < s->pool.job_cap; i++) {
        struct pool_row row;
        struct mu_err err = {0};
        struct mu_buf texts;
        if (s->pool.jobs[i] == NULL)
            continue;
        mu_buf_init(&texts, mu_mem_default());
        assert_int_equal(mu_buf_reserve(&texts, 65536), 0);
        assert_int_equal(pool_save(&s->pool, s->pool.jobs[i], &row, &texts), 0);
        if (pool_load(&next.pool, next.now, &row, &err) != 0)
            fail_msg("%s", err.msg);
        mu_buf_fini(&texts);
    }
    for (uint32_t i = 0; i < s->pool.drain_count; i++) {
        struct pool_drain_row row;
        pool_save_drain(&s->pool.drains[i], &row);
        assert_int_equal(pool_load_drain(&next.pool, &row, NULL), 0);
    }
    pool_fini(&s->pool);
    *s = next;
}

/* A service that ends with jobs there says that it leaves: the next one of its host is as new. */
static void test_a_drain_is_of_the_host_and_what_a_service_says_is_its_own(void **state)
{
    struct story s;
    struct mu_err err = {0};
    (void)state;
    begin(&s, false);
    uint32_t n1 = offer(&s, "n1", 1, 0);
    struct pool_event ev = none(POOL_EV_DRAIN);
    ev.node = n1;
    ev.by_itself = true;
    give(&s, ev);
    assert_false(s.out.drains);
    assert_true(s.pool.nodes[n1]->draining);
    of_node(&s, POOL_EV_AWAY, n1);
    uint32_t next = offer_as(&s, "n1", "id-next", 1, 0);
    assert_false(s.pool.nodes[next]->draining);
    of_node(&s, POOL_EV_DRAIN, next);
    assert_true(s.out.drains);
    of_node(&s, POOL_EV_AWAY, next);
    s.now += 700 * SEC;
    give(&s, none(POOL_EV_DEADLINE));
    assert_int_equal(s.pool.node_count, 0);
    next = offer_as(&s, "n1", "id-third", 1, 0);
    assert_true(s.pool.nodes[next]->draining);
    of_node(&s, POOL_EV_UNDRAIN, next);
    assert_true(s.out.drains);
    assert_int_equal(s.pool.drain_count, 0);
    ev = none(POOL_EV_UNDRAIN);
    ev.text = "n1";
    assert_int_equal(try(&s, ev, &err), -ENOENT);
    end(&s);
}

static void test_a_host_comes_back_drained_to_a_successor(void **state)
{
    struct story s;
    (void)state;
    begin(&s, true);
    uint32_t n1 = offer(&s, "n1", 1, 0);
    uint32_t runs = submit(&s, "runs", 1, 1, 1, -1);
    assert_state(&s, runs, POOL_STARTING);
    of_node(&s, POOL_EV_DRAIN, n1);
    of_node(&s, POOL_EV_DRAIN, offer(&s, "n2", 1, 0));
    restart(&s);
    assert_int_equal(s.pool.drain_count, 2);
    n1 = offer_again(&s, "n1", 1, 0); /* Known from its job. */
    uint32_t n2 = offer_as(&s, "n2", "id-other", 1, 0);
    uint32_t n3 = offer(&s, "n3", 1, 0);
    assert_true(s.pool.nodes[n1]->draining && s.pool.nodes[n2]->draining);
    assert_false(s.pool.nodes[n3]->draining);
    of_node(&s, POOL_EV_AWAY, n2);
    struct pool_event ev = none(POOL_EV_UNDRAIN);
    ev.text = "n2";
    give(&s, ev);
    assert_int_equal(s.pool.drain_count, 1);
    assert_true(s.out.drains);
    end(&s);
}

/* --- what cannot be kept --- */

static uint32_t submit_unkept(struct story *s, const char *id)
{
    struct pool_submission sub = {.id = id,
                                  .name = id,
                                  .spec = mu_str_of("{}", 2),
                                  .nodes_min = 1,
                                  .nodes_max = 1,
                                  .nproc = 1,
                                  .gpus = -1,
                                  .unkept = true};
    struct pool_event ev = none(POOL_EV_SUBMIT);
    ev.submission = &sub;
    give(s, ev);
    return s->out.job;
}

static void of_job(struct story *s, enum pool_event_type type, uint32_t job)
{
    struct pool_event ev = none(type);
    ev.job = job;
    give(s, ev);
}

static void test_a_job_starts_once_it_is_kept_and_is_forgotten_where_it_cannot_be(void **state)
{
    struct story s;
    (void)state;
    begin(&s, true);
    (void)offer(&s, "n1", 1, 0);
    uint32_t j = submit_unkept(&s, "j");
    assert_state(&s, j, POOL_QUEUED);
    assert_int_equal(s.order_count, 0);
    uint32_t k = submit_unkept(&s, "k");
    of_job(&s, POOL_EV_UNKEPT, j);
    assert_int_equal(pool_find_job(&s.pool, "j"), POOL_NONE);
    assert_int_equal(s.pool.live_count, 1);
    of_job(&s, POOL_EV_KEPT, k);
    assert_state(&s, k, POOL_STARTING);
    j = submit_unkept(&s, "j"); /* The id is free again. */
    stop(&s, j, 15);
    of_job(&s, POOL_EV_UNKEPT, j);
    assert_state(&s, j, POOL_STOPPED);
    end(&s);
}

/* --- nodes that are lost --- */

/* One that runs on n1, which goes; others wait behind it. */
static uint32_t lose_all(struct story *s, uint32_t job, uint32_t node, int attempt)
{
    placed(s, node, s->pool.jobs[job]->id, attempt, 1, 0);
    nodes_gone(s, job);
    of_node(s, POOL_EV_AWAY, node);
    pass(s, 4);
    return s->pool.jobs[job]->seats[0].node;
}

static void test_a_job_whose_nodes_are_lost_starts_again_before_all_others(void **state)
{
    struct story s;
    (void)state;
    begin(&s, true);
    uint32_t n1 = offer(&s, "n1", 1, 0);
    uint32_t j = submit(&s, "j", 1, 1, 1, -1);
    uint32_t k = submit(&s, "k", 1, 1, 1, -1);
    (void)lose_all(&s, j, n1, 1);
    assert_state(&s, j, POOL_QUEUED);
    assert_says(&s, j, "starts again: n1 was lost; waits for 1 node");
    assert_says(&s, k, "waits for j, which is first in the queue");
    restart(&s); /* A successor knows it too. */
    assert_says(&s, j, "starts again: n1 was lost; waits for 1 node");
    uint32_t n2 = offer(&s, "n2", 1, 0);
    assert_state(&s, j, POOL_STARTING);
    assert_state(&s, k, POOL_QUEUED);
    assert_int_equal(s.orders[0].attempt, 2);
    assert_says(&s, j, "starts again: n1 was lost; waits for n2 to begin it");
    placed(&s, n2, "j", 2, 1, 0);
    assert_says(&s, j, "runs on n2; started again: n1 was lost");
    (void)offer_again(&s, "n1", 1, 0); /* Back, with what it had. */
    has(&s, n1, "j", 1, 0);
    assert_true(s.out.stray);
    verdict(&s, j, true, 0);
    placed(&s, n2, "j", 2, 2, 0);
    assert_state(&s, j, POOL_DONE);
    end(&s);
}

static void test_a_job_starts_again_three_times_and_more_once_it_ran_for_an_hour(void **state)
{
    struct story s;
    char host[16];
    (void)state;
    begin(&s, true);
    uint32_t node = offer(&s, "n0", 1, 0);
    uint32_t j = submit(&s, "j", 1, 1, 1, -1);
    for (int attempt = 1; attempt <= 6; attempt++) {
        (void)snprintf(host, sizeof host, "n%d", attempt);
        uint32_t next = offer(&s, host, 1, 0);
        struct pool_event round = none(POOL_EV_ROUND);
        round.job = j;
        round.begun_unix_ms = s.now / 1000000;
        placed(&s, node, "j", attempt, 1, 0);
        give(&s, round);
        if (attempt == 2)
            pass(&s, 3601);
        (void)lose_all(&s, j, node, attempt);
        node = next;
        /* The second start ran for so long that the three count from there. */
        assert_state(&s, j, attempt < 5 ? POOL_STARTING : POOL_FAILED);
        if (attempt == 5)
            break;
    }
    assert_says(&s, j, "the agent on n1 was lost");
    assert_int_equal(s.pool.jobs[j]->exit_status, 1);
    end(&s);
}

static void assert_ends(struct story *s, uint32_t job, uint32_t node, enum pool_job_state how)
{
    (void)lose_all(s, job, node, 1);
    assert_state(s, job, how);
    end(s);
}

static void test_a_job_ends_where_its_end_was_nobodys_loss(void **state)
{
    struct story s;
    (void)state;
    begin(&s, true);
    uint32_t n1 = offer(&s, "n1", 1, 0);
    uint32_t j = submit(&s, "j", 1, 1, 1, -1);
    of_node(&s, POOL_EV_DRAIN, n1);
    assert_ends(&s, j, n1, POOL_FAILED);

    begin(&s, true);
    n1 = offer(&s, "n1", 1, 0);
    j = submit(&s, "j", 1, 1, 1, -1);
    placed(&s, n1, "j", 1, 1, 0);
    stop(&s, j, 15);
    assert_ends(&s, j, n1, POOL_STOPPED);

    begin(&s, true); /* A worker failed, and the node goes a moment later. */
    n1 = offer(&s, "n1", 1, 0);
    j = submit(&s, "j", 1, 1, 1, -1);
    placed(&s, n1, "j", 1, 1, 0);
    verdict(&s, j, false, 7);
    assert_ends(&s, j, n1, POOL_FAILED);

    begin(&s, true); /* Somebody killed the agent alone: its service is there, and says so. */
    n1 = offer(&s, "n1", 1, 0);
    j = submit(&s, "j", 1, 1, 1, -1);
    placed(&s, n1, "j", 1, 1, 0);
    nodes_gone(&s, j);
    placed(&s, n1, "j", 1, 2, 137);
    assert_state(&s, j, POOL_FAILED);
    end(&s);

    begin(&s, true);
    n1 = offer(&s, "n1", 1, 0);
    j = submit(&s, "j", 1, 1, 1, -1);
    s.pool.jobs[j]->no_requeue = true;
    restart(&s);
    n1 = offer(&s, "n1", 1, 0);
    assert_ends(&s, j, n1, POOL_FAILED);
}

static void test_who_is_left_of_lost_nodes_ends_it_before_it_starts_again(void **state)
{
    struct story s;
    (void)state;
    begin(&s, true);
    uint32_t n1 = offer(&s, "n1", 1, 0);
    uint32_t n2 = offer(&s, "n2", 1, 0);
    uint32_t j = submit(&s, "j", 2, 2, 1, -1);
    placed(&s, n1, "j", 1, 1, 0);
    placed(&s, n2, "j", 1, 1, 0);
    of_node(&s, POOL_EV_AWAY, n1);
    pass(&s, 4);
    nodes_gone(&s, j); /* Too few came in time. */
    assert_state(&s, j, POOL_RUNNING);
    pass(&s, 31); /* The agent on n2 does not end. */
    assert_state(&s, j, POOL_QUEUED);
    assert_int_equal(s.orders[0].type, POOL_ACT_UNASSIGN);
    assert_says(&s, j, "starts again: n1 was lost; waits for n2 to end its last start");
    (void)offer(&s, "n3", 1, 0);
    assert_state(&s, j, POOL_QUEUED);
    placed(&s, n2, "j", 1, 2, 143);
    assert_state(&s, j, POOL_STARTING);
    end(&s);
}

static void test_a_successor_goes_on(void **state)
{
    struct story s;
    (void)state;
    begin(&s, true);
    uint32_t n1 = offer(&s, "n1", 2, 2);
    (void)submit(&s, "runs", 1, 1, 1, -1);
    (void)submit(&s, "starts", 1, 1, 1, -1);
    (void)submit(&s, "waits", 1, 1, 1, -1);
    placed(&s, n1, "runs", 1, 1, 0);
    restart(&s);
    uint32_t runs = pool_find_job(&s.pool, "runs");
    uint32_t starts = pool_find_job(&s.pool, "starts");
    uint32_t waits = pool_find_job(&s.pool, "waits");
    assert_state(&s, runs, POOL_RUNNING);
    assert_state(&s, waits, POOL_QUEUED);
    n1 = offer_again(&s, "n1", 2, 2);
    assert_int_equal(s.pool.nodes[n1]->slots_free, 0);
    has(&s, n1, "runs", 1, 0);
    has(&s, n1, "nobodys", 1, 0);
    assert_true(s.out.stray);
    has(&s, n1, "", 0, 0);
    assert_int_equal(s.order_count, 1);
    assert_string_equal(s.orders[0].job, "starts"); /* It was never told, or has lost it. */
    assert_int_equal(s.orders[0].gpus[0], 1);
    assert_state(&s, starts, POOL_STARTING);
    placed(&s, n1, "nobodys", 1, 2, 0);
    placed(&s, n1, "runs", 1, 2, 0);
    pass(&s, 3);
    assert_state(&s, runs, POOL_DONE);
    assert_state(&s, waits, POOL_STARTING);
    assert_int_equal(job(&s, waits)->seats[0].gpus[0], 0);
    end(&s);
}

static void test_without_rows_running_jobs_are_found_on_their_nodes(void **state)
{
    struct story s;
    struct mu_err err = {0};
    (void)state;
    begin(&s, false);
    uint32_t n1 = offer_again(&s, "n1", 8, 8);
    uint32_t waits = submit(&s, "waits", 1, 1, 1, -1);
    has(&s, n1, "old", 3, 0);
    assert_false(s.out.stray);
    has(&s, n1, "", 0, 0);
    uint32_t old = pool_find_job(&s.pool, "old");
    assert_state(&s, old, POOL_RUNNING);
    assert_says(&s, old, "which does not know what it runs");
    assert_state(&s, waits, POOL_QUEUED); /* Which GPUs it has is not known either. */
    placed(&s, n1, "old", 3, 2, 0);
    pass(&s, 3);
    assert_state(&s, old, POOL_DONE);
    assert_state(&s, waits, POOL_STARTING);
    struct pool_event resume = none(POOL_EV_RESUME);
    resume.job = old;
    assert_int_equal(try(&s, resume, &err), -ENOENT);
    assert_has(err.msg, "submit it anew");
    end(&s);
}

static void test_rows_that_make_no_sense_are_left_out(void **state)
{
    static const char *const seats[] = {"x", "id 9 0 0 - h\n", "id 0 0 1 99999 h\n",
                                        "id 0 0 0 1,,2 h\n", "id 0 0 0 - h"};
    (void)state;
    for (size_t i = 0; i < 3 + MU_COUNT(seats); i++) {
        struct story s;
        struct mu_err err = {0};
        begin(&s, true);
        struct pool_row row = {
            .id = "j", .state = "queued", .nodes_min = 1, .nodes_max = 1, .nproc = 1};
        if (i == 0)
            (void)mu_strcopy(row.state, sizeof row.state, "odd");
        else if (i == 1)
            row.nodes_max = 0;
        else if (i == 2)
            row.id[0] = '\0';
        else
            row.seats = mu_str_of(seats[i - 3], strlen(seats[i - 3]));
        int r = pool_load(&s.pool, s.now, &row, &err);
        if (i == 3 || i == 7)
            assert_int_equal(r, 0); /* No line at all. */
        else
            assert_int_equal(r, -EPROTO);
        end(&s);
    }
}

static void test_ended_jobs_are_forgotten_the_oldest_first(void **state)
{
    struct story s;
    int64_t kept = 0;
    (void)state;
    begin(&s, false);
    for (int i = 0; i < MU_POOL_ENDED_KEPT + 2; i++) {
        char id[32];
        (void)snprintf(id, sizeof id, "j%d", i);
        uint32_t j = submit(&s, id, 1, 1, 1, -1);
        s.pool.jobs[j]->kept = i;
        s.now += SEC;
        stop(&s, j, 15);
    }
    assert_true(pool_trim(&s.pool, &kept));
    assert_int_equal(kept, 0);
    assert_true(pool_trim(&s.pool, &kept));
    assert_false(pool_trim(&s.pool, &kept));
    assert_int_equal(pool_find_job(&s.pool, "j1"), POOL_NONE);
    assert_true(pool_find_job(&s.pool, "j2") != POOL_NONE);
    end(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_job_gets_its_nodes_at_once_and_in_natural_order),
        cmocka_unit_test(test_jobs_share_a_node_and_no_gpu),
        cmocka_unit_test(test_a_later_job_passes_only_where_the_earlier_could_never_run),
        cmocka_unit_test(test_idle_nodes_come_first_and_most_nodes_where_there_is_room),
        cmocka_unit_test(test_a_job_without_a_verdict_ends_by_exit_statuses),
        cmocka_unit_test(test_a_verdict_beats_statuses_and_agents_that_stay_are_ended),
        cmocka_unit_test(test_stop_and_resume),
        cmocka_unit_test(test_a_job_that_was_told_to_stop_ends_with_that_signal),
        cmocka_unit_test(test_a_job_that_was_killed_on_request_ends_with_that_signal),
        cmocka_unit_test(test_who_refuses_is_passed_over_and_in_the_end_the_job_fails),
        cmocka_unit_test(test_who_refuses_is_not_asked_again_while_another_is_busy),
        cmocka_unit_test(test_a_job_of_many_nodes_fails_when_too_few_have_not_refused_it),
        cmocka_unit_test(test_sentences_stand_behind_the_state_and_name_a_host_once),
        cmocka_unit_test(test_a_lost_node_is_replaced_and_tidies_up_when_it_is_back),
        cmocka_unit_test(test_a_node_that_is_back_in_time_changes_nothing),
        cmocka_unit_test(test_a_silent_node_is_dropped),
        cmocka_unit_test(test_a_refusal_of_the_start_before_is_nothing_to_the_next),
        cmocka_unit_test(test_a_drained_node_takes_nothing_new_until_that_is_taken_back),
        cmocka_unit_test(test_a_drain_is_of_the_host_and_what_a_service_says_is_its_own),
        cmocka_unit_test(test_a_host_comes_back_drained_to_a_successor),
        cmocka_unit_test(test_a_job_starts_once_it_is_kept_and_is_forgotten_where_it_cannot_be),
        cmocka_unit_test(test_a_job_whose_nodes_are_lost_starts_again_before_all_others),
        cmocka_unit_test(test_a_job_starts_again_three_times_and_more_once_it_ran_for_an_hour),
        cmocka_unit_test(test_a_job_ends_where_its_end_was_nobodys_loss),
        cmocka_unit_test(test_who_is_left_of_lost_nodes_ends_it_before_it_starts_again),
        cmocka_unit_test(test_a_successor_goes_on),
        cmocka_unit_test(test_without_rows_running_jobs_are_found_on_their_nodes),
        cmocka_unit_test(test_rows_that_make_no_sense_are_left_out),
        cmocka_unit_test(test_ended_jobs_are_forgotten_the_oldest_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
