/* agent/chaos.h: rules of faults, and when they are due. */
#include "tests/unit/unit.h"

#include "agent/chaos.h"
#include "base/check.h"

#define SEC INT64_C(1000000000)
#define BEGAN (100 * SEC)

static struct chaos_rules rules;

static struct chaos *begin(const char *text)
{
    static struct chaos c;
    struct mu_err err = {0};
    if (chaos_parse(text, 7, "--chaos", &rules, &err) < 0)
        fail_msg("%s: %s", text, err.msg);
    chaos_init(&c, &rules);
    return &c;
}

/* A round of two workers with ranks 2 and 3, on node 1. */
static struct chaos_event round_of(int64_t number, int64_t restarts)
{
    return (struct chaos_event){.type = CHAOS_EV_ROUND,
                                .round = number,
                                .restarts = restarts,
                                .node = 1,
                                .rank_base = 2,
                                .nproc = 2};
}

static const char *act_name(enum chaos_act a)
{
#define X(a) #a,
    static const char *const names[] = {CHAOS_ACTS(X)};
#undef X
    return names[a];
}

/* What comes of an event, as "KILL 1, HEAL 0". */
static const char *after(struct chaos *c, int64_t at_ms, struct chaos_event ev)
{
    static char text[512];
    struct chaos_out out;
    size_t used = 0;
    text[0] = '\0';
    chaos_step(c, BEGAN + at_ms * (SEC / 1000), &ev, &out);
    for (uint32_t i = 0; i < out.count; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s %u", i > 0 ? ", " : "",
                                 act_name(out.actions[i].act), out.actions[i].local_rank);
    return text;
}

static const char *at(struct chaos *c, int64_t at_ms)
{
    return after(c, at_ms, (struct chaos_event){.type = CHAOS_EV_DEADLINE});
}

static const char *step_of(struct chaos *c, int64_t at_ms, uint32_t local_rank, int64_t step)
{
    return after(
        c, at_ms,
        (struct chaos_event){.type = CHAOS_EV_STEP, .local_rank = local_rank, .step = step});
}

static int64_t due_ms(const struct chaos *c)
{
    return c->deadline_ns == INT64_MAX ? -1 : (c->deadline_ns - BEGAN) / (SEC / 1000);
}

static void test_a_worker_is_killed_at_its_step_once_and_only_here(void **state)
{
    (void)state;
    struct chaos *c = begin("kill rank=3 step=100; kill rank=4 step=1");
    assert_string_equal(after(c, 0, round_of(1, 0)), "");
    assert_string_equal(step_of(c, 10, 1, 99), "");
    assert_string_equal(step_of(c, 20, 0, 100), ""); /* That is rank 2's. */
    assert_string_equal(step_of(c, 30, 1, 101), "KILL 1");
    assert_string_equal(step_of(c, 40, 1, 102), "");
    (void)after(c, 50, (struct chaos_event){.type = CHAOS_EV_ENDED});
    assert_string_equal(after(c, 60, round_of(2, 1)), "");
    assert_string_equal(step_of(c, 70, 1, 100), "");
    assert_int_equal(due_ms(c), -1);
}

static void test_what_lasts_is_undone(void **state)
{
    (void)state;
    struct chaos *c =
        begin("freeze rank=2 after=1s for=500ms;cut after=1s for=2; cut after=2s for=2s");
    assert_string_equal(after(c, 0, round_of(1, 0)), "");
    assert_int_equal(due_ms(c), 1000);
    assert_string_equal(at(c, 1000), "FREEZE 0, CUT 0");
    assert_int_equal(due_ms(c), 1500);
    assert_string_equal(at(c, 1500), "THAW 0");
    assert_string_equal(at(c, 2000), "CUT 0");
    assert_string_equal(at(c, 3000), ""); /* The second rule still wants it cut. */
    assert_string_equal(at(c, 4000), "HEAL 0");
    assert_int_equal(due_ms(c), -1);
}

static void test_the_end_of_a_round_disarms_but_heals(void **state)
{
    (void)state;
    struct chaos *c = begin("freeze rank=2 for=5s; cut for=5s; kill rank=2 after=1s");
    assert_string_equal(after(c, 0, round_of(1, 0)), "FREEZE 0, CUT 0");
    assert_string_equal(after(c, 500, (struct chaos_event){.type = CHAOS_EV_ENDED}), "");
    assert_int_equal(due_ms(c), 5000);
    assert_string_equal(at(c, 5000), "HEAL 0");
}

static void test_conditions_choose_the_round(void **state)
{
    (void)state;
    struct chaos *c = begin("kill-agent node=1 round=2 after=3s; kill-agent node=0; kill rank=2 "
                            "restart=1; stop-agent round=3 for=1s");
    assert_string_equal(after(c, 0, round_of(1, 0)), "");
    assert_int_equal(due_ms(c), -1);
    assert_string_equal(after(c, 0, round_of(2, 1)), "KILL 0");
    assert_int_equal(due_ms(c), 3000);
    assert_string_equal(at(c, 3000), "KILL_AGENT 0");
    assert_string_equal(after(c, 4000, round_of(3, 2)), "STOP_AGENT 0");
}

static void test_every_repeats_and_times_limits(void **state)
{
    (void)state;
    struct chaos *c = begin("kill rank=2 after=1s every=2s times=3");
    (void)after(c, 0, round_of(1, 0));
    assert_string_equal(at(c, 1000), "KILL 0");
    assert_int_equal(due_ms(c), 3000);
    assert_string_equal(at(c, 3000), "KILL 0");
    assert_string_equal(at(c, 5000), "KILL 0");
    assert_int_equal(due_ms(c), -1);
    c = begin("fill-disk every=1s for=3s");
    assert_string_equal(after(c, 0, round_of(1, 0)), "FILL_DISK 0");
    assert_string_equal(at(c, 1000), ""); /* It lasts still. */
    assert_string_equal(at(c, 3000), "EMPTY_DISK 0");
    assert_int_equal(due_ms(c), 4000); /* So long after its end. */
    assert_string_equal(at(c, 4000), "FILL_DISK 0");
    c = begin("stop-agent for=2s every=1s");
    assert_string_equal(after(c, 0, round_of(1, 0)), "STOP_AGENT 0");
    assert_int_equal(due_ms(c), 3000);
}

/* Every fault of an hour, as one number. */
static uint64_t hour_of(const char *text, int64_t round, uint32_t *ret_count)
{
    struct chaos *c = begin(text);
    uint64_t sum = 0;
    int64_t ms = 0;
    *ret_count = 0;
    const char *did = after(c, 0, round_of(round, 0));
    while (ms < 3600000) {
        for (const char *p = did; *p != '\0'; p++)
            sum = sum * 31 + (uint64_t)*p;
        *ret_count += strstr(did, "KILL") != NULL || strstr(did, "FREEZE") != NULL;
        sum = sum * 31 + (uint64_t)ms;
        ms = due_ms(c) + 1;
        assert_true(ms > 0);
        did = at(c, ms);
    }
    return sum;
}

static void test_random_repeats_itself_from_its_seed(void **state)
{
    (void)state;
    uint32_t count = 0;
    uint32_t other = 0;
    uint64_t first = hour_of("random rate=2 seed=42 of=kill,freeze for=1s", 1, &count);
    assert_true(hour_of("random rate=2 seed=42 of=kill,freeze for=1s", 1, &other) == first);
    assert_int_equal(other, count);
    assert_in_range(count, 90, 150); /* 120 are meant. */
    assert_true(hour_of("random rate=2 seed=43 of=kill,freeze for=1s", 1, &other) != first);
    assert_true(hour_of("random rate=2 seed=42 of=kill,freeze for=1s", 2, &other) != first);
    (void)begin("random rate=1"); /* The seed that the caller chose. */
    assert_true(rules.rules[0].seed == 7);
}

static void test_times_have_units(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t ms;
    } rows[] = {{"5s", 5000}, {"5", 5000},    {"0.25s", 250},   {"200ms", 200},
                {"1.5ms", 1}, {"2m", 120000}, {"1.5h", 5400000}};
    for (size_t i = 0; i < MU_COUNT(rows); i++) {
        char text[64];
        (void)snprintf(text, sizeof text, " cut\tfor=%s ;; ", rows[i].text);
        (void)begin(text);
        assert_int_equal(rules.count, 1);
        assert_int_equal(rules.rules[0].for_ns / (SEC / 1000), rows[i].ms);
    }
}

static void test_bad_rules_get_a_sentence(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        const char *says;
    } rows[] = {
        {"crash rank=1", "\"crash\" is no fault: a rule begins with kill, freeze"},
        {"kill", "kill lacks rank="},
        {"freeze rank=1", "freeze lacks for="},
        {"kill rank", "'rank' of kill lacks its value: write rank=N"},
        {"kill rnk=3", "\"rnk=3\" is no word of kill: it knows rank, node, step, round"},
        {"kill rank=3 for=2s", "\"for=2s\" is no word of kill"},
        {"kill rank=x", "rank=\"x\" is no whole number from 0 on"},
        {"kill rank=-1", "rank=\"-1\" is no whole number"},
        {"kill rank=", "rank=\"\" is no whole number"},
        {"kill rank=1 rank=2", "rank stands twice in one rule of kill"},
        {"cut for=soon", "for=\"soon\" is no time up to a day: write 5s, 200ms, 2m or 1h"},
        {"cut for=ms", "is no time"},
        {"cut for=25000m", "is no time"},
        {"cut for=0", "for=0 makes no sense"},
        {"random rate=0", "rate=\"0\" is no number of faults a minute"},
        {"random rate=1 of=kill,rank", "of=\"rank\" is no fault to choose from"},
        {"random rate=1 of=", "of=\"\" is no fault to choose from"},
        {"random of=kill", "random lacks rate="},
    };
    for (size_t i = 0; i < MU_COUNT(rows); i++) {
        struct mu_err err = {0};
        assert_int_equal(chaos_parse(rows[i].text, 1, "MUSTER_CHAOS", &rules, &err), -22);
        assert_has(err.msg, "MUSTER_CHAOS: ");
        assert_has(err.msg, rows[i].says);
    }
    char many[CHAOS_RULES_MAX * 16 + 32] = "";
    size_t used = 0;
    for (int i = 0; i <= CHAOS_RULES_MAX; i++)
        used += (size_t)snprintf(many + used, sizeof many - used, "kill-agent;");
    struct mu_err err = {0};
    assert_int_equal(chaos_parse(many, 1, "--chaos", &rules, &err), -22);
    assert_has(err.msg, "more than 16 rules");
}

static void test_the_page_names_every_fault(void **state)
{
    (void)state;
    struct mu_buf b;
    mu_buf_init(&b, mu_mem_default());
    chaos_describe(&b);
    for (int f = 0; f < CHAOS_FAULT_COUNT; f++)
        assert_has(mu_buf_cstr(&b), chaos_fault_name((enum chaos_fault)f));
    mu_buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_worker_is_killed_at_its_step_once_and_only_here),
        cmocka_unit_test(test_what_lasts_is_undone),
        cmocka_unit_test(test_the_end_of_a_round_disarms_but_heals),
        cmocka_unit_test(test_conditions_choose_the_round),
        cmocka_unit_test(test_every_repeats_and_times_limits),
        cmocka_unit_test(test_random_repeats_itself_from_its_seed),
        cmocka_unit_test(test_times_have_units),
        cmocka_unit_test(test_bad_rules_get_a_sentence),
        cmocka_unit_test(test_the_page_names_every_fault),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
