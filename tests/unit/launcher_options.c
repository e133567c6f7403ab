/* muster's command line. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "launcher/options.h"

#define ARGV(...)                                                                                  \
    (char *[])                                                                                     \
    {                                                                                              \
        "muster", __VA_ARGS__, NULL                                                                \
    }

static int parse(struct cli_options *o, char **argv, const char *env, struct mu_err *err)
{
    int argc = 0;
    while (argv[argc] != NULL)
        argc++;
    *err = (struct mu_err){0};
    return cli_options_parse(o, argc, argv, env, err);
}

static void what_is_given_is_taken(void **state)
{
    struct cli_options o;
    struct mu_err err;
    (void)state;
    assert_int_equal(parse(&o,
                           ARGV("status", "train", "--rdzv=n1:1234", "-w0.5", "--json", "-t", "9",
                                "--color=never"),
                           NULL, &err),
                     0);
    assert_int_equal(o.verb, CLI_STATUS);
    assert_string_equal(o.job, "train");
    assert_string_equal(o.server.host, "n1");
    assert_int_equal(o.server.port, 1234);
    assert_true(o.watch && o.json);
    assert_int_equal(o.interval_ns, 500000000);
    assert_int_equal(o.timeout_ns, INT64_C(9000000000));
    assert_int_equal(o.colour, CLI_NEVER);
    assert_int_equal(parse(&o, ARGV("incidents", "train", "12"), NULL, &err), 0);
    assert_int_equal(o.number, 12);
    assert_true(parse(&o, ARGV("incidents", "train", "12", "13"), NULL, &err) < 0);
}

static void the_server_comes_from_the_option_then_the_variable_then_here(void **state)
{
    struct cli_options o;
    struct mu_err err;
    (void)state;
    assert_int_equal(parse(&o, ARGV("jobs"), NULL, &err), 0);
    assert_string_equal(o.server.host, "localhost");
    assert_int_equal(o.server.port, 29500);
    assert_int_equal(parse(&o, ARGV("jobs"), "[fd00::1]:7", &err), 0);
    assert_string_equal(o.server.host, "fd00::1");
    assert_int_equal(parse(&o, ARGV("-r", "n2", "jobs"), "n1", &err), 0);
    assert_string_equal(o.server.host, "n2");
    assert_int_equal(o.server.port, 29500);
    assert_true(parse(&o, ARGV("jobs"), "n1:x", &err) < 0);
    assert_non_null(strstr(err.msg, "MUSTER_RDZV"));
}

static void run_takes_its_own_and_passes_on_the_agents(void **state)
{
    struct cli_options o;
    struct mu_err err;
    (void)state;
    assert_int_equal(parse(&o,
                           ARGV("-r", "n1", "run", "--nnodes=1:4", "--nproc_per_node=8", "--name",
                                "train", "--env=A=b=c", "--env", "PATH", "--max_restarts=3",
                                "--tee", "3", "-m", "-d", "./t", "--name=x", "--", "-d"),
                           NULL, &err),
                     0);
    assert_int_equal(o.verb, CLI_RUN);
    assert_string_equal(o.run.nnodes, "1:4");
    assert_string_equal(o.run.nproc, "8");
    assert_string_equal(o.run.name, "train");
    assert_int_equal(o.run.env_count, 2);
    assert_string_equal(o.run.env[0], "A=b=c");
    assert_int_equal(o.run.agent_arg_count, 3);
    assert_string_equal(o.run.agent_args[0].flag, "max-restarts");
    assert_string_equal(o.run.agent_args[0].value, "3");
    assert_string_equal(o.run.agent_args[1].value, "3");
    assert_string_equal(o.run.agent_args[2].flag, "module");
    assert_null(o.run.agent_args[2].value);
    assert_true(o.run.detach && o.run.gpus == -1);
    assert_int_equal(o.run.argc, 4);
    assert_string_equal(o.run.argv[0], "./t");
    assert_string_equal(o.run.argv[3], "-d");
    assert_int_equal(parse(&o, ARGV("run", "--", "-odd-"), NULL, &err), 0);
    assert_string_equal(o.run.argv[0], "-odd-");
    assert_true(parse(&o, ARGV("run", "--", "-m", "mod"), NULL, &err) < 0);
    assert_non_null(strstr(err.msg, "such as -m go before --"));
    assert_true(parse(&o, ARGV("run", "--", "--max-restarts=3", "./t"), NULL, &err) < 0);
    assert_int_equal(parse(&o, ARGV("run", "--drain-timeout=9", "x"), NULL, &err), 0);
    assert_string_equal(o.run.agent_args[0].flag, "drain-timeout");
    assert_int_equal(parse(&o, ARGV("run", "--hosts=a", "--nproc-per-node=gpu", "x"), NULL, &err),
                     0);
}

static void logs_and_stop_take_times(void **state)
{
    struct cli_options o;
    struct mu_err err;
    (void)state;
    assert_int_equal(
        parse(&o, ARGV("logs", "-f", "train", "--since=10m", "-n5", "--rank=0"), NULL, &err), 0);
    assert_true(o.logs.follow && o.logs.lines == 5 && o.logs.rank == 0);
    assert_true(o.logs.since_span_ns == INT64_C(600000000000) && o.logs.since_unix_ms == -1);
    assert_int_equal(parse(&o, ARGV("logs", "train", "--since", "1970-01-02"), NULL, &err), 0);
    assert_true(o.logs.since_unix_ms == 86400000 && o.logs.since_span_ns == -1);
    assert_int_equal(
        parse(&o, ARGV("stop", "train", "--signal=KILL", "--grace=0.5", "--wait"), NULL, &err), 0);
    assert_string_equal(o.stop.signal, "SIGKILL");
    assert_true(o.stop.grace_ns == 500000000 && o.stop.wait);
}

static void watch_does_not_eat_the_job(void **state)
{
    struct cli_options o;
    struct mu_err err;
    (void)state;
    assert_int_equal(parse(&o, ARGV("status", "--watch", "train"), NULL, &err), 0);
    assert_string_equal(o.job, "train");
    assert_int_equal(o.interval_ns, INT64_C(1000000000));
    assert_int_equal(parse(&o, ARGV("status", "-w", "--", "-odd-"), NULL, &err), 0);
    assert_string_equal(o.job, "-odd-");
}

static void a_wrong_line_is_one_sentence(void **state)
{
    static const struct {
        const char *word[3];
        const char *says;
    } wrong[] = {
        {{"statsu"}, "did you mean muster status"},
        {{"launch"}, "muster --help lists them"},
        {{"status", "--wach"}, "did you mean --watch"},
        {{"status", "--nonsense"}, "is not an option"},
        {{"status", "-z"}, "is not an option"},
        {{"status", "--json=1"}, "--json takes no value"},
        {{"status", "--rdzv"}, "--rdzv needs a value"},
        {{"status", "--rdzv=n1:99999"}, "--rdzv"},
        {{"status", "--timeout=0"}, "--timeout"},
        {{"status", "--watch=x"}, "--watch"},
        {{"status", "--color=blue"}, "auto, always or never"},
        {{"status", "a", "b"}, "one too many"},
        {{"jobs", "a"}, "takes no argument"},
        {{"incidents", "a", "x"}, "muster incidents JOB N: N"},
        {{"incidents", "a", "0"}, "muster incidents JOB N: N"},
        {{"incidents", "--watch"}, "muster status JOB --watch"},
        {{"doctor", "x"}, "takes no argument"},
        {{"doctor", "--watch"}, "--watch does not go with muster doctor"},
        {{"doctor", "--brief"}, "--brief goes with muster doctor --local"},
        {{"status", "--local"}, "--local does not go with muster status"},
        {{"nodes", "--log-dir", "/x"}, "--log-dir does not go with muster nodes"},
        {{"--json"}, "a command is missing"},
        {{"token"}, "muster token new [FILE]"},
        {{"token", "make"}, "does not know \"make\""},
        {{"token", "new", "--watch"}, "--watch does not go with"},
        {{"store"}, "get, set, keys or del"},
        {{"store", "get"}, "muster store get takes KEY"},
        {{"store", "set", "k"}, "muster store set takes KEY VALUE"},
        {{"store", "put"}, "does not know \"put\""},
        {{"store", "get", ""}, "the key is empty"},
        {{"run"}, "muster run needs a program"},
        {{"run", "--", NULL}, "muster run needs a program"},
        {{"run", "--nnodes=0", "x"}, "--nnodes"},
        {{"run", "--nnodes=4:1", "x"}, "may not be greater"},
        {{"run", "--nnodes=a", "x"}, "--nnodes"},
        {{"run", "--nproc-per-node=auto", "x"}, "goes with hosts alone"},
        {{"run", "--gpus-per-node=-1", "x"}, "--gpus-per-node"},
        {{"run", "--name=a b", "x"}, "is no name for a job"},
        {{"run", "--cwd=here", "x"}, "does not begin with /"},
        {{"run", "--env=1A=x", "x"}, "is no name of a variable"},
        {{"run", "--env==x", "x"}, "is no name of a variable"},
        {{"run", "--max-restart=3", "x"}, "is not an option"},
        {{"run", "--no-python=1", "x"}, "--no-python takes no value"},
        {{"run", "--max-restarts"}, "--max-restarts needs a value"},
        {{"run", "--watch", "x"}, "--watch does not go with muster run"},
        {{"run", "--follow", "x"}, "--follow does not go with muster run"},
        {{"run", "--agent=/x", "x"}, "--agent goes with"},
        {{"status", "--rank=3"}, "--rank does not go with muster status"},
        {{"drain", "--nnodes=3", "x"}, "--nnodes does not go with muster drain"},
        {{"logs"}, "muster logs needs a job"},
        {{"logs", "a", "b"}, "one too many"},
        {{"logs", "a", "--since=10"}, "--since: \"10\" is neither"},
        {{"logs", "a", "--rank=x"}, "--rank"},
        {{"stop", "a", "--signal=HUP"}, "is not SIGTERM, SIGINT or SIGKILL"},
        {{"resume"}, "muster resume needs a job"},
        {{"pool", "a"}, "takes no argument"},
    };
    (void)state;
    for (size_t i = 0; i < MU_COUNT(wrong); i++) {
        struct cli_options o;
        struct mu_err err;
        char *argv[5] = {"muster"};
        for (size_t k = 0; k < 3 && wrong[i].word[k] != NULL; k++)
            argv[k + 1] = (char *)(uintptr_t)wrong[i].word[k];
        assert_true(parse(&o, argv, NULL, &err) < 0);
        if (strstr(err.msg, wrong[i].says) == NULL)
            fail_msg("'%s' does not say '%s'", err.msg, wrong[i].says);
    }
}

static void words_of_a_command_are_its_own(void **state)
{
    struct cli_options o;
    struct mu_err err;
    (void)state;
    assert_int_equal(parse(&o, ARGV("store", "set", "k", "-", "--token-file=f"), NULL, &err), 0);
    assert_int_equal(o.verb, CLI_STORE);
    assert_int_equal(o.word_count, 3);
    assert_string_equal(o.words[1], "k");
    assert_string_equal(o.words[2], "-");
    assert_string_equal(o.token_file, "f");
    assert_int_equal(parse(&o, ARGV("store", "set", "k", ""), NULL, &err), 0);
    assert_int_equal(parse(&o, ARGV("store", "set", "--", "-k", "-v"), NULL, &err), 0);
    assert_string_equal(o.words[2], "-v");
    assert_int_equal(parse(&o, ARGV("store", "keys"), NULL, &err), 0);
    assert_int_equal(parse(&o, ARGV("token", "new", "f"), NULL, &err), 0);
    assert_true(parse(&o, ARGV("store", "set", "k", "v", "w"), NULL, &err) < 0);
    assert_true(parse(&o, ARGV("store", "del", "k", "v"), NULL, &err) < 0);
}

static void help_names_every_command_and_option(void **state)
{
    struct mu_buf b;
    struct cli_options o;
    struct mu_err err;
    (void)state;
    mu_buf_init(&b, mu_mem_default());
    assert_int_equal(parse(&o, ARGV("--help"), NULL, &err), 0);
    assert_int_equal(o.verb, CLI_VERB_COUNT);
    cli_help(&b, o.verb);
    for (int v = 0; v < CLI_VERB_COUNT; v++)
        assert_non_null(strstr(mu_buf_cstr(&b), cli_verb_name((enum cli_verb)v)));
    assert_int_equal(b.p[b.n - 1], '\n');
    assert_int_equal(parse(&o, ARGV("nodes", "-h"), NULL, &err), 0);
    assert_true(o.help && o.verb == CLI_NODES);
    mu_buf_reset(&b);
    cli_help(&b, o.verb);
    assert_non_null(strstr(mu_buf_cstr(&b), "Usage: muster nodes [JOB]"));
    static const struct {
        enum cli_verb verb;
        const char *says;
    } own[] = {{CLI_RUN, " print the job's id alone"},
               {CLI_RUN, " with hosts: the node-agent there"},
               {CLI_ATTACH, " of that worker alone"},
               {CLI_DOCTOR, " --local: names, own port"}};
    for (size_t i = 0; i < MU_COUNT(own); i++) {
        mu_buf_reset(&b);
        cli_help(&b, own[i].verb);
        assert_non_null(strstr(mu_buf_cstr(&b), own[i].says));
        assert_null(strstr(mu_buf_cstr(&b), "for run"));
    }
    mu_buf_fini(&b);
}

static void a_job_is_named_once_wherever_it_stands(void **state)
{
    struct cli_options o;
    struct mu_err err;
    (void)state;
    assert_int_equal(parse(&o, ARGV("status", "--job=train"), NULL, &err), 0);
    assert_string_equal(o.job, "train");
    assert_int_equal(parse(&o, ARGV("status", "train", "--job=train"), NULL, &err), 0);
    assert_string_equal(o.job, "train");
    assert_true(parse(&o, ARGV("status", "--job=train", "--job=other"), NULL, &err) < 0);
    assert_non_null(strstr(err.msg, "a job is named already"));
    assert_true(parse(&o, ARGV("status", "train", "--job=other"), NULL, &err) < 0);
    assert_true(parse(&o, ARGV("jobs", "--job=train"), NULL, &err) < 0);
}

static void what_the_commands_of_jobs_take_has_its_limits(void **state)
{
    struct cli_options o;
    struct mu_err err;
    (void)state;
    assert_int_equal(parse(&o, ARGV("logs", "train", "--lines=0"), NULL, &err), 0);
    assert_int_equal(o.logs.lines, 0);
    assert_true(parse(&o, ARGV("logs", "train", "--lines=-1"), NULL, &err) < 0);
    assert_non_null(strstr(err.msg, "--lines"));
    assert_int_equal(parse(&o, ARGV("run", "--detach", "./x"), NULL, &err), 0);
    assert_true(o.run.detach);
    assert_int_equal(parse(&o, ARGV("run", "--hostfile=hosts", "./x"), NULL, &err), 0);
    assert_string_equal(o.run.hostfile, "hosts");
    assert_int_equal(parse(&o, ARGV("doctor", "--quick"), NULL, &err), 0);
    assert_true(o.quick);
    assert_true(parse(&o, ARGV("jobs", "--quick"), NULL, &err) < 0);
    assert_int_equal(parse(&o, ARGV("--version"), NULL, &err), 0);
    assert_true(o.version);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_of_a_command_are_its_own),
        cmocka_unit_test(what_is_given_is_taken),
        cmocka_unit_test(the_server_comes_from_the_option_then_the_variable_then_here),
        cmocka_unit_test(run_takes_its_own_and_passes_on_the_agents),
        cmocka_unit_test(logs_and_stop_take_times),
        cmocka_unit_test(watch_does_not_eat_the_job),
        cmocka_unit_test(a_wrong_line_is_one_sentence),
        cmocka_unit_test(help_names_every_command_and_option),
        cmocka_unit_test(a_job_is_named_once_wherever_it_stands),
        cmocka_unit_test(what_the_commands_of_jobs_take_has_its_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
