/* What muster shows of an answer, and what it makes of a strange one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "launcher/answer.h"
#include "launcher/incidents.h"
#include "launcher/pages.h"
#include "launcher/select.h"
#include "launcher/words.h"

static const char node_text[] = "{\"host\":\"%s\",\"address\":\"10.0.0.%d\",\"node_rank\":%d,"
                                "\"state\":\"%s\",\"connected\":%s,\"rank_base\":%d,"
                                "\"workers_count\":2,\"gpus\":0,\"heard_ms_ago\":300,\"workers\":[{"
                                "\"rank\":%d,\"local_rank\":0,\"pid\":71,"
                                "\"state\":\"running\",\"exit_code\":null},{\"rank\":%d,\"local_"
                                "rank\":1,\"pid\":72,\"state\":\"failed\",\"exit_code\":7}]}";

static void
add_node(struct mu_buf *b, int i, const char *host, const char *state, const char *connected)
{
    char text[600];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    (void)snprintf(text, sizeof text, node_text, host, i + 1, i, state, connected, 2 * i, 2 * i,
                   2 * i + 1);
#pragma GCC diagnostic pop
    (void)mu_buf_addf(b, "%s%s", i > 0 ? "," : "", text);
}

/* One living job of `nodes` nodes of which the last is lost, and one that failed. */
static cJSON *answer_of(int nodes, const char *sentence)
{
    struct mu_buf b;
    struct mu_err err = {0};
    mu_buf_init(&b, mu_mem_default());
    (void)mu_buf_addf(&b,
                      "{\"version\":\"0.1.0\",\"uptime_s\":3725,\"now\":\"2026-11-30T12:00:00."
                      "000Z\",\"server\":{\"jobs_live\":1,"
                      "\"agents\":%d},\"jobs\":[{\"id\":\"train\",\"state\":\"running\","
                      "\"sentence\":\"%s\",\"round\":2,\"restarts\":1,"
                      "\"max_restarts\":3,\"nodes_min\":1,\"nodes_max\":%d,\"world\":4,\"created_"
                      "at\":\"2026-11-30T11:58:30.000Z\","
                      "\"last_cause\":{\"sentence\":\"rank 3 exited with status "
                      "7\",\"message\":\"disk full\",\"round\":1,"
                      "\"at\":\"2026-11-30T11:59:00.000Z\"},\"consequences\":2,\"nodes\":[",
                      nodes, sentence, nodes);
    for (int i = 0; i < nodes; i++) {
        char host[16];
        (void)snprintf(host, sizeof host, "n%d", i + 1);
        add_node(&b, i, host, i == nodes - 1 ? "lost" : "running",
                 i == nodes - 1 ? "false" : "true");
    }
    (void)mu_buf_adds(&b, "]},{\"id\":\"old\",\"state\":\"failed\",\"sentence\":\"failed: rank 0 "
                          "exited with status 1\",\"round\":1,"
                          "\"restarts\":0,\"max_restarts\":0,\"ended_at\":\"2026-11-30T11:00:00."
                          "000Z\",\"nodes\":[]}]}");
    cJSON *answer = cli_answer_parse(b.p, b.n, "n1:29500", &err);
    assert_non_null(answer);
    mu_buf_fini(&b);
    return answer;
}

static void restarts_that_count_are_shown(void **state)
{
    struct mu_buf b;
    struct mu_err err = {0};
    const struct cli_style style = {0};
    static const char text[] =
        "{\"version\":\"0.1.0\",\"uptime_s\":5,\"now\":\"2026-11-30T12:00:00.000Z\",\"server\":{"
        "\"jobs_live\":1,\"agents\":0},\"jobs\":[{\"id\":\"train\",\"state\":\"running\","
        "\"sentence\":\"round 8 runs\",\"round\":8,\"restarts\":7,\"restarts_spent\":2,"
        "\"max_restarts\":3,\"restart_window_s\":3600,\"nodes_min\":1,\"nodes_max\":1,\"nodes\":[]}"
        "]}";
    cJSON *answer = cli_answer_parse(text, sizeof text - 1, "n1:29500", &err);
    (void)state;
    assert_non_null(answer);
    mu_buf_init(&b, mu_mem_default());
    cli_page_status(&b, answer, "n1:29500", NULL, &style);
    assert_non_null(strstr(mu_buf_cstr(&b), "running, 2 of 3 restarts within 1 h used\n"));
    mu_buf_fini(&b);
    cJSON_Delete(answer);
}

static void status_answers_at_a_glance(void **state)
{
    struct mu_buf b;
    const struct cli_style style = {0};
    cJSON *answer = answer_of(2, "round 2 runs");
    (void)state;
    mu_buf_init(&b, mu_mem_default());
    cli_page_status(&b, answer, "n1:29500", NULL, &style);
    assert_string_equal(
        mu_buf_cstr(&b),
        "n1:29500: rdzv-server 0.1.0, up 1 h 2 min, 1 job, 2 agents\n"
        "\n"
        "train  running  for 1 min 30 s, 1 of 3 restarts used\n"
        "  round 2 runs\n"
        "  round 1 ended 1 min ago: rank 3 exited with status 7; 2 more failed after it\n"
        "    disk full\n"
        "  NODE  HOST  ADDRESS   STATE    RANKS  WORKERS              HEARD\n"
        "  0     n1    10.0.0.1  running  0-1    1 failed, 1 running  0.3 s\n"
        "  1     n2    10.0.0.2  lost     2-3    1 failed, 1 running  0.3 s  not connected\n"
        "\n"
        "old  failed  ended 1 h ago\n"
        "  failed: rank 0 exited with status 1\n");
    mu_buf_reset(&b);
    cli_page_status(&b, answer, "n1:29500", "old", &style);
    assert_null(strstr(mu_buf_cstr(&b), "train"));
    mu_buf_fini(&b);
    cJSON_Delete(answer);
}

static void in_a_long_list_trouble_comes_first(void **state)
{
    struct mu_buf b;
    const struct cli_style style = {.lines = 3};
    cJSON *answer = answer_of(50, "round 2 runs");
    (void)state;
    mu_buf_init(&b, mu_mem_default());
    cli_page_status(&b, answer, "n1:29500", "train", &style);
    const char *lost = strstr(mu_buf_cstr(&b), "n50 ");
    assert_non_null(lost);
    assert_true(lost < strstr(mu_buf_cstr(&b), "n1  "));
    assert_non_null(strstr(mu_buf_cstr(&b), "and 47 more nodes: muster nodes lists all"));
    mu_buf_fini(&b);
    cJSON_Delete(answer);
}

static void jobs_nodes_and_workers_are_lines(void **state)
{
    struct mu_buf b;
    const struct cli_style style = {.width = 60};
    cJSON *answer =
        answer_of(2, "round 2 runs: a sentence that is longer than the terminal is wide");
    (void)state;
    mu_buf_init(&b, mu_mem_default());
    cli_page_jobs(&b, answer, &style);
    assert_non_null(strstr(mu_buf_cstr(&b), "train  running  2      1/3       1/1:2  4"));
    for (const char *p = mu_buf_cstr(&b); *p != '\0'; p += strcspn(p, "\n") + 1)
        assert_true(strcspn(p, "\n") <= 60);
    mu_buf_reset(&b);
    cli_page_nodes(&b, answer, NULL, &(struct cli_style){0});
    assert_non_null(strstr(mu_buf_cstr(&b), "train  1     n2    10.0.0.2  lost     2-3"));
    mu_buf_reset(&b);
    cli_page_workers(&b, answer, "train", &(struct cli_style){0});
    assert_non_null(
        strstr(mu_buf_cstr(&b), "train  3     n2    1      72   failed   -     status 7"));
    mu_buf_fini(&b);
    cJSON_Delete(answer);
}

static void the_slowest_rank_is_named(void **state)
{
    static const char text[] =
        "{\"version\":\"0.1.0\",\"jobs\":[{\"id\":\"train\",\"state\":\"running\",\"nodes\":["
        "{\"host\":\"n1\",\"workers\":[{\"rank\":0,\"step\":120,\"state\":\"running\"},"
        "{\"rank\":1,\"step\":119,\"state\":\"running\"}]},"
        "{\"host\":\"n2\",\"workers\":[{\"rank\":2,\"step\":108,\"state\":\"running\"},"
        "{\"rank\":3,\"state\":\"running\"}]}]}]}";
    struct mu_buf b;
    struct mu_err err = {0};
    const struct cli_style style = {0};
    cJSON *answer = cli_answer_parse(text, sizeof text - 1, "n1:29500", &err);
    (void)state;
    assert_non_null(answer);
    mu_buf_init(&b, mu_mem_default());
    cli_page_workers(&b, answer, NULL, &style);
    assert_string_equal(mu_buf_cstr(&b),
                        "JOB    RANK  HOST  LOCAL  PID  STATE    STEP  BEHIND\n"
                        "train  0     n1    -      -    running  120   0\n"
                        "train  1     n1    -      -    running  119   1\n"
                        "train  2     n2    -      -    running  108   12\n"
                        "train  3     n2    -      -    running  -\n"
                        "train: rank 2 on n2 is the slowest, 12 steps behind rank 0\n");
    mu_buf_fini(&b);
    cJSON_Delete(answer);
}

static void what_others_wrote_moves_no_cursor(void **state)
{
    struct mu_buf b;
    const struct cli_style style = {.colour = true};
    cJSON *answer = answer_of(1, "\\u001b[2J\\u009b31m \\u0007bell, \xc3\xa4 stays");
    (void)state;
    mu_buf_init(&b, mu_mem_default());
    cli_page_status(&b, answer, "n1:29500", NULL, &style);
    assert_non_null(strstr(mu_buf_cstr(&b), "?[2J?31m ?bell, \xc3\xa4 stays"));
    assert_null(strstr(mu_buf_cstr(&b), "\033[2J"));
    mu_buf_reset(&b);
    cli_add_plain(&b, "a\xff\x01z");
    assert_string_equal(mu_buf_cstr(&b), "a??z");
    mu_buf_fini(&b);
    cJSON_Delete(answer);
}

static void a_strange_answer_breaks_nothing(void **state)
{
    static const char *const refused[] = {"", "[]", "{}", "hello", "{\"jobs\":1}", "{\"jobs\":[}"};
    static const char *const shown[] = {
        "{\"jobs\":[]}", "{\"jobs\":[1,null,\"x\",[],{}]}",
        "{\"jobs\":[{\"id\":7,\"state\":[],\"nodes\":{\"a\":1},\"last_cause\":\"x\"}],\"server\":"
        "3}",
        "{\"jobs\":[{\"id\":\"a\",\"nodes\":[3,{\"workers\":[1,{}],\"rank_base\":1e300}]}]}"};
    struct mu_err err;
    (void)state;
    for (size_t i = 0; i < MU_COUNT(refused); i++) {
        assert_null(cli_answer_parse(refused[i], strlen(refused[i]), "n1:80", &err));
        assert_non_null(strstr(err.msg, "is this the right port"));
    }
    for (size_t i = 0; i < MU_COUNT(shown); i++) {
        struct mu_buf b;
        cJSON *answer = cli_answer_parse(shown[i], strlen(shown[i]), "n1:80", &err);
        assert_non_null(answer);
        mu_buf_init(&b, mu_mem_default());
        cli_page_status(&b, answer, "n1:80", NULL,
                        &(struct cli_style){.lines = 2, .width = 10, .colour = true});
        cli_page_jobs(&b, answer, &(struct cli_style){0});
        cli_page_nodes(&b, answer, NULL, &(struct cli_style){0});
        cli_page_workers(&b, answer, NULL, &(struct cli_style){0});
        assert_true(b.n > 0);
        for (int v = 0; v < CLI_VERB_COUNT; v++) {
            cJSON *part = cli_select(answer, (enum cli_verb)v, NULL);
            assert_non_null(part);
            cJSON_Delete(part);
        }
        mu_buf_fini(&b);
        cJSON_Delete(answer);
    }
}

static void one_incident_is_one_screen(void **state)
{
    static const char text[] =
        "{\"id\":\"train\",\"left_out\":0,\"incidents\":[{\"number\":3,\"round\":2,\"nodes\":1,"
        "\"world\":2,\"decision\":\"fail\",\"reason\":\"no restart is left\",\"decided_at\":"
        "\"2026-11-30T12:00:00.000Z\",\"cause\":{\"sentence\":\"rank 1 on n1 exited\",\"at\":"
        "\"2026-11-30T11:59:59.900Z\"},\"last_lines\":[\"one\",\"t\\u001b[31mwo\"],\"trace\":"
        "\"File x\\n  line 1\\n\",\"consequences\":[{\"rank\":0,\"sentence\":\"rank 0 on n1 "
        "exited\",\"at\":\"2026-11-30T12:00:00.100Z\"}],\"consequences_left_out\":4,"
        "\"phases_s\":{\"running\":75,\"detect\":0.1,\"stop\":0.0124,\"spawn\":null}}]}";
    const struct cli_style style = {0};
    struct mu_buf b;
    struct mu_err err = {0};
    cJSON *answer = cJSON_Parse(text);
    (void)state;
    mu_buf_init(&b, mu_mem_default());
    assert_null(cli_incident_find(answer, 4, &err));
    assert_non_null(strstr(err.msg, "there are 3 to 3"));
    const cJSON *incident = cli_incident_find(answer, 3, &err);
    assert_non_null(incident);
    cli_page_incident(&b, answer, incident, &style);
    assert_string_equal(
        mu_buf_cstr(&b),
        "train: incident 3, the end of round 2 (1 node, 2 workers) at 2026-11-30T12:00:00.000Z\n"
        "  first:    rank 1 on n1 exited\n"
        "  when:     2026-11-30T11:59:59.900Z by the clock of its host\n"
        "  decided:  fail, no restart is left\n"
        "\n"
        "its last lines:\n"
        "    | one\n"
        "    | t?[31mwo\n"
        "\n"
        "where it failed:\n"
        "    | File x\n"
        "    |   line 1\n"
        "\n"
        "what failed after it:\n"
        "    2026-11-30T12:00:00.100Z  rank 0 on n1 exited\n"
        "    and 4 more\n"
        "\n"
        "how long it took:\n"
        "    the round ran                     1 min 15 s\n"
        "    until the server had decided      0.100 s\n"
        "    until the workers had ended       0.012 s\n");
    mu_buf_fini(&b);
    cJSON_Delete(answer);
}

static void json_keeps_the_servers_names(void **state)
{
    cJSON *answer = answer_of(2, "round 2 runs");
    (void)state;
    cJSON *jobs = cli_select(answer, CLI_JOBS, NULL);
    assert_int_equal(cJSON_GetArraySize(jobs), 2);
    assert_null(cli_list(cJSON_GetArrayItem(jobs, 0), "nodes"));
    cJSON *nodes = cli_select(answer, CLI_NODES, "train");
    assert_int_equal(cJSON_GetArraySize(nodes), 2);
    assert_string_equal(cli_text(cJSON_GetArrayItem(nodes, 1), "job"), "train");
    cJSON *workers = cli_select(answer, CLI_WORKERS, NULL);
    assert_int_equal(cJSON_GetArraySize(workers), 4);
    assert_string_equal(cli_text(cJSON_GetArrayItem(workers, 3), "host"), "n2");
    assert_int_equal(cli_number(cJSON_GetArrayItem(workers, 3), "node_rank", -1), 1);
    cJSON_Delete(jobs);
    cJSON_Delete(nodes);
    cJSON_Delete(workers);
    cJSON_Delete(answer);
}

static void times_and_durations(void **state)
{
    static const struct {
        int64_t ms;
        const char *text;
    } durations[] = {{-5, "0.0 s"},           {0, "0.0 s"},      {9990, "9.9 s"},
                     {10000, "10 s"},         {60000, "1 min"},  {185000, "3 min 5 s"},
                     {7800000, "2 h 10 min"}, {86400000, "1 d"}, {INT64_C(356400000), "4 d 3 h"}};
    struct mu_buf b;
    int64_t ms = -1;
    (void)state;
    mu_buf_init(&b, mu_mem_default());
    for (size_t i = 0; i < MU_COUNT(durations); i++) {
        mu_buf_reset(&b);
        cli_add_duration(&b, durations[i].ms);
        assert_string_equal(mu_buf_cstr(&b), durations[i].text);
    }
    mu_buf_fini(&b);
    assert_int_equal(cli_time_parse("1970-01-01T00:00:00.000Z", &ms), 0);
    assert_int_equal(ms, 0);
    assert_int_equal(cli_time_parse("2000-02-29T23:59:59.999Z", &ms), 0);
    assert_int_equal(ms, INT64_C(951868799999));
    assert_int_equal(cli_time_parse("2026-11-30T06:46:42.123Z", &ms), 0);
    assert_int_equal(ms, INT64_C(1796021202123));
    assert_true(cli_time_parse("2026-11-30 06:46:42.123Z", &ms) < 0);
    assert_true(cli_time_parse("", &ms) < 0);
    assert_true(cli_time_parse("2026-13-30T06:46:42.123Z", &ms) < 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(restarts_that_count_are_shown),
        cmocka_unit_test(status_answers_at_a_glance),
        cmocka_unit_test(in_a_long_list_trouble_comes_first),
        cmocka_unit_test(one_incident_is_one_screen),
        cmocka_unit_test(jobs_nodes_and_workers_are_lines),
        cmocka_unit_test(the_slowest_rank_is_named),
        cmocka_unit_test(what_others_wrote_moves_no_cursor),
        cmocka_unit_test(a_strange_answer_breaks_nothing),
        cmocka_unit_test(json_keeps_the_servers_names),
        cmocka_unit_test(times_and_durations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
