/* What muster makes of a job's output, of what run asks for, and of hosts. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "launcher/hosts_plan.h"
#include "launcher/job_page.h"
#include "launcher/last.h"
#include "launcher/lines.h"
#include "launcher/pool_page.h"
#include "launcher/words.h"

static enum cli_said
read_line(const char *text, struct cli_line *line, struct cli_end *end, cJSON **tree)
{
    *line = (struct cli_line){0};
    *end = (struct cli_end){.exit_status = -1};
    return cli_line_read(mu_str_of(text, strlen(text)), tree, line, end);
}

static void a_line_is_read_whatever_it_is(void **state)
{
    struct cli_line line;
    struct cli_end end;
    cJSON *tree = NULL;
    (void)state;
    assert_int_equal(read_line("{\"unix_ms\":1700000000123,\"host\":\"n1\",\"rank\":3,\"stream\":"
                               "\"stderr\",\"text\":\"a \\u00fc\"}\r",
                               &line, &end, &tree),
                     CLI_SAID_LINE);
    assert_true(line.unix_ms == INT64_C(1700000000123) && line.rank == 3 && line.is_error);
    assert_string_equal(line.host, "n1");
    assert_string_equal(line.text, "a \xc3\xbc");
    cJSON_Delete(tree);
    assert_int_equal(read_line("", &line, &end, &tree), CLI_SAID_BEAT);
    assert_int_equal(read_line(" \r", &line, &end, &tree), CLI_SAID_BEAT);
    static const char *const nonsense[] = {"{",   "[]", "7", "{\"text\":7}", "{\"end\":false}",
                                           "\xff"};
    for (size_t i = 0; i < MU_COUNT(nonsense); i++) {
        assert_int_equal(read_line(nonsense[i], &line, &end, &tree), CLI_SAID_NONSENSE);
        assert_null(tree);
    }
    assert_int_equal(read_line("{\"text\":\"\"}", &line, &end, &tree), CLI_SAID_LINE);
    assert_true(line.rank == -1 && !line.is_error && line.host[0] == '\0');
    cJSON_Delete(tree);
}

static void the_end_gives_the_exit_status(void **state)
{
    static const struct {
        const char *text;
        int status;
    } ends[] = {
        {"{\"end\":true,\"state\":\"done\",\"exit_status\":0}", 0},
        {"{\"end\":true,\"state\":\"failed\",\"exit_status\":137}", 137},
        {"{\"end\":true,\"state\":\"stopped\",\"exit_status\":null}", 1},
        {"{\"end\":true,\"state\":\"done\"}", 0},
        {"{\"end\":true}", 1},
        {"{\"end\":true,\"state\":\"a state with a name of more than sixteen bytes\"}", 1},
    };
    (void)state;
    for (size_t i = 0; i < MU_COUNT(ends); i++) {
        struct cli_line line;
        struct cli_end end;
        cJSON *tree = NULL;
        assert_int_equal(read_line(ends[i].text, &line, &end, &tree), CLI_SAID_END);
        assert_int_equal(cli_end_status(&end), ends[i].status);
        cJSON_Delete(tree);
    }
}

static bool shows(struct cli_seen *s, int64_t ms, int64_t rank, const char *host)
{
    return cli_seen_is_new(s, &(struct cli_line){.unix_ms = ms, .rank = rank, .host = host});
}

static void what_comes_again_is_known(void **state)
{
    struct mu_mem_failing heap;
    (void)state;
    mu_mem_failing_init(&heap, SIZE_MAX);
    struct cli_seen *s = cli_seen_new(&heap.mem);
    assert_true(cli_seen_since_ms(s) == -1);
    for (int i = 0; i < 3; i++)
        assert_true(shows(s, 100, 0, "n1"));
    for (int rank = 40; rank > 0; rank--)
        assert_true(shows(s, 90 + rank, rank, "n2"));
    assert_true(shows(s, 120, 0, "n2")); /* The same rank elsewhere is another source. */
    assert_true(cli_seen_since_ms(s) == 91);
    cli_seen_restart(s);
    assert_false(shows(s, 99, 0, "n1"));
    for (int i = 0; i < 3; i++)
        assert_false(shows(s, 100, 0, "n1"));
    assert_true(shows(s, 100, 0, "n1")); /* A fourth one of that millisecond. */
    assert_true(shows(s, 50, 0, "n1"));  /* The clock was set back. */
    assert_false(shows(s, 120, 0, "n2"));
    assert_true(shows(s, 121, 0, "n2"));
    assert_true(shows(s, 80, 41, "n2")); /* Never seen. */
    cli_seen_free(s);
    assert_int_equal(heap.live, 0);
}

static void without_memory_lines_are_shown_all_the_same(void **state)
{
    (void)state;
    for (size_t at = 2; at < 8; at++) {
        struct mu_mem_failing heap;
        mu_mem_failing_init(&heap, at);
        struct cli_seen *s = cli_seen_new(&heap.mem);
        for (int i = 0; i < 40; i++)
            assert_true(shows(s, i, i, "n1"));
        cli_seen_free(s);
        assert_int_equal(heap.live, 0);
    }
}

static void check_clean(const char *text, const char *wanted)
{
    struct mu_buf b;
    mu_buf_init(&b, mu_mem_default());
    cli_add_clean_line(&b, text);
    assert_string_equal(mu_buf_cstr(&b), wanted);
    mu_buf_fini(&b);
}

static void a_terminal_gets_nothing_to_obey(void **state)
{
    (void)state;
    check_clean("plain \xc3\xbc\ttab", "plain \xc3\xbc\ttab");
    check_clean("\033[1;31mred\033[0m \033]0;title\a.", "red .");
    check_clean("\033]0;never ends", "");
    check_clean("\033[", "");
    check_clean("\033", "");
    check_clean("\033c\033(Bx", "Bx");
    check_clean("a\bb\x7f\xc2\x9b\xff", "ab");
    check_clean(" 10%\r 20%\r 30%", " 30%");
    check_clean("windows\r", "windows");
    check_clean("\r\r", "");
}

static const char *env_of(void *arg, const char *name)
{
    (void)arg;
    return strcmp(name, "HERE") == 0 ? "it's" : NULL;
}

static void a_submission_is_what_was_asked(void **state)
{
    char *argv[] = {(char *)(uintptr_t) "./trainer", (char *)(uintptr_t) "--x=\"y\"\n"};
    struct cli_run run = {.argv = argv, .argc = 2, .nnodes = "1:4", .nproc = "8", .gpus = -1};
    struct cli_submission s = {.run = &run, .cwd = "/srv", .submitter = "me@n1", .env = env_of};
    struct mu_buf b;
    struct mu_err err = {0};
    (void)state;
    run.env[run.env_count++] = "HERE";
    run.env[run.env_count++] = "K=a=b";
    run.agent_args[run.agent_arg_count++] = (struct cli_agent_arg){"max-restarts", "3"};
    run.agent_args[run.agent_arg_count++] = (struct cli_agent_arg){"label", NULL};
    mu_buf_init(&b, mu_mem_default());
    assert_int_equal(cli_submission(&b, &s, &err), 0);
    assert_string_equal(mu_buf_cstr(&b),
                        "{\"argv\":[\"./trainer\",\"--x=\\\"y\\\"\\n\"],\"cwd\":\"/"
                        "srv\",\"env\":{\"HERE\":\"it's\","
                        "\"K\":\"a=b\"},\"nnodes\":\"1:4\",\"nproc_per_node\":8,\"agent_args\":[\"-"
                        "-max-restarts=3\",\"--label\"]"
                        ",\"submitter\":\"me@n1\"}");
    run.env[run.env_count++] = "ELSEWHERE";
    mu_buf_reset(&b);
    assert_int_equal(cli_submission(&b, &s, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "--env=ELSEWHERE"));
    run.env_count--;
    argv[1] = (char *)(uintptr_t) "a\xff";
    mu_buf_reset(&b);
    assert_int_equal(cli_submission(&b, &s, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "is no UTF-8"));
    mu_buf_fini(&b);
}

static void hosts_are_read_or_refused(void **state)
{
    static const struct {
        const char *text;
        const char *says;
    } wrong[] = {
        {"", "no host is named"},        {"n1,n1", "named twice"},     {"n1:0", "n1:0"},
        {"-x", "that is no host"},       {"me@-x", "that is no host"}, {"[::1", "that is no host"},
        {"n1 slot=2", "is not slots=N"}, {"n1 slots=x", "host n1"},
    };
    struct cli_hosts h = {.mem = mu_mem_default()};
    struct mu_err err = {0};
    (void)state;
    assert_int_equal(cli_hosts_parse(&h, "n1,me@n2:4,[fd00::1]:8,fd00::2,", false, &err), 0);
    assert_int_equal(h.count, 4);
    assert_string_equal(h.host[1].ssh, "me@n2");
    assert_string_equal(h.host[1].name, "n2");
    assert_int_equal(h.host[1].slots, 4);
    assert_string_equal(h.host[2].ssh, "fd00::1");
    assert_int_equal(h.host[2].slots, 8);
    assert_string_equal(h.host[3].name, "fd00::2");
    assert_int_equal(h.host[3].slots, 0);
    cli_hosts_fini(&h);
    assert_int_equal(cli_hosts_parse(&h, "# all\r\n\n a slots=2 # big\r\nb\n  c:3", true, &err), 0);
    assert_int_equal(h.count, 3);
    assert_int_equal(h.host[0].slots, 2);
    assert_string_equal(h.host[1].name, "b");
    assert_int_equal(h.host[2].slots, 3);
    struct cli_run run = {.nnodes = "2:9", .nodes_min = 2, .nodes_max = 9};
    uint32_t min = 0;
    uint32_t max = 0;
    assert_int_equal(cli_hosts_nodes(&h, &run, &min, &max, &err), 0);
    assert_true(min == 2 && max == 9);
    run.nodes_min = 4;
    assert_int_equal(cli_hosts_nodes(&h, &run, &min, &max, &err), -EINVAL);
    cli_hosts_fini(&h);
    for (size_t i = 0; i < MU_COUNT(wrong); i++) {
        assert_true(cli_hosts_parse(&h, wrong[i].text, false, &err) < 0);
        if (strstr(err.msg, wrong[i].says) == NULL)
            fail_msg("'%s' does not say '%s'", err.msg, wrong[i].says);
        cli_hosts_fini(&h);
    }
}

/* The line for a host has no byte that a shell or `read` would take for more than a letter. */
static void a_script_is_one_plain_line(void **state)
{
    char *argv[] = {(char *)(uintptr_t) "./t", (char *)(uintptr_t) "a'b\n\xff\\"};
    struct cli_run run = {.argv = argv, .argc = 2};
    struct cli_hosts h = {.mem = mu_mem_default()};
    struct mu_buf line;
    struct mu_err err = {0};
    (void)state;
    run.agent_args[run.agent_arg_count++] = (struct cli_agent_arg){"shutdown-timeout", "90"};
    assert_int_equal(cli_hosts_parse(&h, "n1:3,n2", false, &err), 0);
    struct cli_hosts_plan plan = {.hosts = &h,
                                  .submission = {.run = &run, .cwd = "/srv", .env = env_of},
                                  .rdzv = "n1:29500",
                                  .run_id = "run-1",
                                  .token_file = "/etc/muster/token",
                                  .nodes_min = 2,
                                  .nodes_max = 2};
    mu_buf_init(&line, mu_mem_default());
    assert_int_equal(cli_host_script(&line, &plan, 0, &err), 0);
    assert_int_equal(strspn(mu_buf_cstr(&line),
                            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./"
                            "=:,+@\\"),
                     line.n - 1);
    assert_int_equal(line.p[line.n - 1], '\n');
    assert_non_null(strstr(line.p, "--nproc-per-node=3"));
    assert_non_null(strstr(line.p, "--node-rank=0"));
    assert_non_null(strstr(line.p, "--token-file=\\0047/etc/muster/token\\0047\\0040"));
    assert_non_null(strstr(line.p, "-lt\\0040100\\0040")); /* 90 and ten more. */
    assert_non_null(strstr(line.p, "\\0047a\\0047\\0134\\0047\\0047b\\0012\\0377\\0134\\0047"));
    mu_buf_fini(&line);
    cli_hosts_fini(&h);
}

static void a_strange_pool_breaks_nothing(void **state)
{
    static const char *const answers[] = {
        "{\"jobs\":[]}",
        "{\"jobs\":[],\"pool\":7}",
        "{\"jobs\":[],\"pool\":{}}",
        "{\"jobs\":[],\"pool\":{\"nodes\":[7,{},{\"jobs\":[1,\"a\"],\"gpus_free\":{},\"gpus\":2}],"
        "\"queue\":[null,{\"nodes\":{}},{\"nodes\":3,\"id\":\"\\u001b[2J\"}]}}",
    };
    (void)state;
    for (size_t i = 0; i < MU_COUNT(answers); i++) {
        struct mu_buf b;
        cJSON *answer = cJSON_Parse(answers[i]);
        const struct cli_style style = {.terminal = true};
        assert_non_null(answer);
        mu_buf_init(&b, mu_mem_default());
        cli_page_pool(&b, answer, &style);
        assert_true(b.n > 0 && !b.oom && strchr(mu_buf_cstr(&b), '\033') == NULL);
        mu_buf_fini(&b);
        cJSON_Delete(answer);
    }
}

static void moments_are_read(void **state)
{
    int64_t ms = 0;
    (void)state;
    assert_int_equal(cli_moment_parse("1970-01-02", &ms), 0);
    assert_true(ms == 86400000);
    assert_int_equal(cli_moment_parse("1970-01-01T00:01Z", &ms), 0);
    assert_true(ms == 60000);
    assert_int_equal(cli_moment_parse("1970-01-01T00:00:02", &ms), 0);
    assert_true(ms == 2000);
    assert_int_equal(cli_moment_parse("1970-01-01T00:00:02.005Z", &ms), 0);
    assert_true(ms == 2005);
    static const char *const wrong[] = {
        "", "10m", "1970-01", "1970-13-01", "1970-01-01 00:00", "1970-01-01T00:00:02.05Z"};
    for (size_t i = 0; i < MU_COUNT(wrong); i++)
        assert_int_equal(cli_moment_parse(wrong[i], &ms), -EINVAL);
}

static void check_words(void (*add)(struct mu_buf *, const char *, const char *),
                        const char *state,
                        const char *sentence,
                        const char *wanted)
{
    struct mu_buf b;
    mu_buf_init(&b, mu_mem_default());
    add(&b, state, sentence);
    assert_string_equal(mu_buf_cstr(&b), wanted);
    mu_buf_fini(&b);
}

static void a_state_is_said_once(void **state)
{
    (void)state;
    check_words(cli_add_state, "queued", "waits for 1 node", " is queued: waits for 1 node");
    check_words(cli_add_state, "queued", "", " is queued");
    check_words(cli_add_state, "starting", "is being started on n1", " is being started on n1");
    check_words(cli_add_state, "starting", "has no node now", " is starting: has no node now");
    check_words(cli_add_state, "running", "runs on n1", " runs on n1");
    check_words(cli_add_state, "stopped", "was stopped: it was stopped before it began",
                " was stopped before it began");
    check_words(cli_add_state, "failed", "has failed: rank 1: no", " has failed: rank 1: no");
    check_words(cli_add_outcome, "stopped", "it was asked to stop",
                " stopped: it was asked to stop");
    check_words(cli_add_outcome, "stopped", "it was stopped before it began",
                " was stopped before it began");
    check_words(cli_add_outcome, "failed", "", " failed");
    check_words(cli_add_outcome, "", "", " ended");
    check_words(cli_add_stop, "stopping", "is being stopped: waits for n1",
                " is being stopped: waits for n1");
    check_words(cli_add_stop, "stopping", "workers end", " is told to stop: workers end");
    check_words(cli_add_again, "queued", "waits for 1 node", " waits again for 1 node");
    check_words(cli_add_again, "queued", "it is the first", " waits again: it is the first");
    check_words(cli_add_again, "starting", "is being started on n1", " is being started on n1");
}

static void a_job_of_the_pool_is_a_page(void **state)
{
    static const struct {
        const char *text;
        const char *wanted;
    } jobs[] = {
        {"{\"id\":\"a\",\"state\":\"failed\",\"exit_status\":127,\"sentence\":\"has failed: no\","
         "\"placed\":[{\"host\":\"n1\",\"gpus\":[0,1]},{\"host\":\"n\\u001b2\"}]}",
         "a  failed, exit status 127\n  has failed: no\n  placed on n1 (GPU 0, 1), n?2\n"},
        {"{\"placed\":[7,{}],\"exit_status\":\"x\",\"nnodes\":7}", "  \n  \n  placed on , \n"},
    };
    (void)state;
    for (size_t i = 0; i < MU_COUNT(jobs); i++) {
        struct mu_buf b;
        const struct cli_style style = {.colour = false};
        cJSON *job = cJSON_Parse(jobs[i].text);
        assert_non_null(job);
        mu_buf_init(&b, mu_mem_default());
        cli_page_submission(&b, job, CLI_STATUS, &style);
        assert_string_equal(mu_buf_cstr(&b), jobs[i].wanted);
        assert_true(cli_submission_workers(job) == 0);
        mu_buf_fini(&b);
        cJSON_Delete(job);
    }
    cJSON *job = cJSON_Parse("{\"nnodes\":\"1:4\",\"nproc_per_node\":2}");
    assert_true(cli_submission_workers(job) == 8);
    cJSON_Delete(job);
}

static void the_last_of_all_are_kept(void **state)
{
    struct mu_mem_failing heap;
    struct mu_str raw;
    (void)state;
    mu_mem_failing_init(&heap, SIZE_MAX);
    struct cli_last *l = cli_last_new(&heap.mem, 3);
    static const int64_t times[] = {5, 7, 9, 1, 7, 8};
    static const char *const texts[] = {"a5", "a7", "a9", "b1", "b7", "b8"};
    for (size_t i = 0; i < MU_COUNT(times); i++)
        assert_true(cli_last_add(l, times[i], mu_str_of(texts[i], 2)));
    static const char *const wanted[] = {"b7", "b8", "a9"};
    for (size_t i = 0; i < MU_COUNT(wanted); i++)
        assert_true(cli_last_next(l, &raw) && memcmp(raw.p, wanted[i], 2) == 0);
    assert_false(cli_last_next(l, &raw));
    cli_last_free(l);
    assert_int_equal(heap.live, 0);
    for (size_t at = 1; at < 4; at++) {
        mu_mem_failing_init(&heap, at);
        l = cli_last_new(&heap.mem, 3);
        if (l != NULL)
            (void)cli_last_add(l, 1, mu_str_of("x", 1));
        cli_last_free(l);
        assert_int_equal(heap.live, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_is_read_whatever_it_is),
        cmocka_unit_test(the_end_gives_the_exit_status),
        cmocka_unit_test(what_comes_again_is_known),
        cmocka_unit_test(without_memory_lines_are_shown_all_the_same),
        cmocka_unit_test(a_terminal_gets_nothing_to_obey),
        cmocka_unit_test(a_submission_is_what_was_asked),
        cmocka_unit_test(hosts_are_read_or_refused),
        cmocka_unit_test(a_script_is_one_plain_line),
        cmocka_unit_test(a_strange_pool_breaks_nothing),
        cmocka_unit_test(moments_are_read),
        cmocka_unit_test(a_state_is_said_once),
        cmocka_unit_test(a_job_of_the_pool_is_a_page),
        cmocka_unit_test(the_last_of_all_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
