/* agent/workers/plan.h: what workers are given, against what torchrun gave in recorded launches
 * (tests/data/torchrun-env.txt). */
#include "tests/unit/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/workers/plan.h"

#define DATA MUSTER_SOURCE_DIR "/tests/data/torchrun-env.txt"

static char dir[64]; /* This test's own. */

static int make_dir(void **state)
{
    (void)state;
    (void)snprintf(dir, sizeof(dir), "/tmp/work_plan.XXXXXX");
    return mkdtemp(dir) == NULL ? -1 : 0;
}

static int remove_dir(void **state)
{
    (void)state;
    pid_t pid = fork();
    if (pid == 0) {
        execlp("rm", "rm", "-rf", dir, (char *)NULL);
        _exit(127);
    }
    return waitpid(pid, NULL, 0) == pid ? 0 : -1;
}

static char *in_dir(const char *name, char *ret)
{
    (void)snprintf(ret, 200, "%s/%s", dir, name);
    return ret;
}

static void write_text(const char *path, const char *text, mode_t mode)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

static void read_text(const char *path, char *ret, size_t cap)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        fail_msg("open %s: %s", path, strerror(errno));
    ssize_t n = read(fd, ret, cap - 1);
    assert_true(n >= 0);
    ret[n] = '\0';
    close(fd);
}

static const char *value_of(char *const *env, const char *name)
{
    size_t n = strlen(name);
    for (; *env != NULL; env++) {
        if (strncmp(*env, name, n) == 0 && (*env)[n] == '=')
            return *env + n + 1;
    }
    return NULL;
}

static uint32_t number_of(char *const *env, const char *name)
{
    const char *v = value_of(env, name);
    assert_non_null(v);
    return (uint32_t)strtoul(v, NULL, 10);
}

/* --- against the recorded launches --- */

#define LINES_MAX 48
struct capture {
    char mode[64];
    char *given[LINES_MAX]; /* NULL-terminated */
    char *set[LINES_MAX];
    int given_count;
    int set_count;
};

static char *copy_of(const char *s)
{
    char *c = strdup(s);
    assert_non_null(c);
    return c;
}

static void free_capture(struct capture *c)
{
    for (int i = 0; i < c->given_count; i++)
        free(c->given[i]);
    for (int i = 0; i < c->set_count; i++)
        free(c->set[i]);
    *c = (struct capture){0};
}

/* The next block; false at the end. `line` carries the first line of the block after it. */
static bool next_capture(FILE *f, char *line, size_t cap, struct capture *ret)
{
    *ret = (struct capture){0};
    while (strncmp(line, "worker ", 7) != 0) {
        if (fgets(line, (int)cap, f) == NULL)
            return false;
    }
    assert_int_equal(sscanf(line, "worker %63s", ret->mode), 1);
    line[0] = '\0';
    while (fgets(line, (int)cap, f) != NULL && strncmp(line, "worker ", 7) != 0) {
        line[strcspn(line, "\n")] = '\0';
        if (line[0] == '\0')
            continue;
        assert_true(ret->given_count < LINES_MAX - 1 && ret->set_count < LINES_MAX - 1);
        if (strncmp(line, "given ", 6) == 0)
            ret->given[ret->given_count++] = copy_of(line + 6);
        else
            ret->set[ret->set_count++] = copy_of(line);
    }
    return true;
}

/* Every variable whose value is not the agent's own: exactly the recorded ones, with the recorded
 * values. */
static void compare(const struct capture *c, char *const *agent, char *const *worker)
{
    int differing = 0;
    for (char *const *e = worker; *e != NULL; e++) {
        char name[64];
        size_t n = strcspn(*e, "=");
        assert_true(n < sizeof(name));
        memcpy(name, *e, n);
        name[n] = '\0';
        assert_ptr_equal(value_of(worker, name), *e + n + 1); /* Once each. */
        const char *inherited = value_of(agent, name);
        if (inherited != NULL && strcmp(inherited, *e + n + 1) == 0)
            continue;
        differing++;
        const char *want = value_of(c->set, name);
        if (want == NULL)
            fail_msg("%s: %s is set, torchrun does not", c->mode, *e);
        const char *got = *e + n + 1;
        if (strcmp(name, "TORCHELASTIC_ERROR_FILE") == 0 && want[0] != '\0') {
            char tail[96];
            (void)snprintf(tail, sizeof(tail), "%s",
                           strrchr(want, 'a') != NULL ? strstr(want, "/attempt_") : "");
            assert_has(got, tail);
            assert_has(got, "/torchelastic_");
            assert_int_equal(got[0], '/');
            continue;
        }
        if (want == NULL || strcmp(want, got) != 0)
            fail_msg("%s: %s, torchrun sets %s", c->mode, *e, want);
    }
    if (differing != c->set_count)
        fail_msg("%s: %d variables are set, torchrun sets %d", c->mode, differing, c->set_count);
    for (char *const *e = agent; *e != NULL; e++) { /* Nothing is removed. */
        char name[64];
        (void)snprintf(name, sizeof(name), "%.*s", (int)strcspn(*e, "="), *e);
        assert_non_null(value_of(worker, name));
    }
}

static void check_capture(struct capture *c)
{
    struct mu_err err;
    struct plan *p = NULL;
    struct work_round r;
    char *agent[LINES_MAX + 2] = {"PATH=/usr/bin:/bin", "SOME_VAR=a=b c"};
    memcpy(agent + 2, c->given, sizeof(c->given[0]) * (size_t)c->given_count);
    bool is_virtual = strstr(c->mode, "virtual") != NULL;
    uint32_t rank = number_of(c->set, "RANK");
    uint32_t local_rank = is_virtual ? rank : number_of(c->set, "LOCAL_RANK");
    struct plan_config config = {
        .nproc = number_of(c->set, "LOCAL_WORLD_SIZE"),
        .role = value_of(c->set, "ROLE_NAME"),
        .run_id = value_of(c->set, "TORCHELASTIC_RUN_ID"),
        .max_restarts = number_of(c->set, "TORCHELASTIC_MAX_RESTARTS"),
        .program = "capw.py",
        .log_dir = strcmp(c->mode, "log_dir_dev_null") == 0 ? "/dev/null" : NULL,
        .virtual_local_rank = is_virtual,
        .signals_to_handle = "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        .environment = agent,
    };
    struct plan_round round = {
        .node_rank = number_of(c->set, "GROUP_RANK"),
        .node_count = number_of(c->set, "GROUP_WORLD_SIZE"),
        .rank_base = rank - local_rank,
        .world = number_of(c->set, "WORLD_SIZE"),
        .role_rank_base = number_of(c->set, "ROLE_RANK") - local_rank,
        .role_world = number_of(c->set, "ROLE_WORLD_SIZE"),
        .lead_addr = value_of(c->set, "MASTER_ADDR"),
        .lead_port = (uint16_t)number_of(c->set, "MASTER_PORT"),
        .rank0_serves_store = strcmp(c->mode, "share_off_1x2") == 0,
    };
    if (plan_new(&config, &p, &err) < 0)
        fail_msg("%s: %s", c->mode, err.msg);
    assert_int_equal(plan_build(p, &round, &r, &err), 0);
    assert_int_equal(r.nproc, config.nproc);
    compare(c, agent, r.envp[local_rank]);
    bool omp = value_of(c->set, "OMP_NUM_THREADS") != NULL;
    assert_int_equal(plan_warning(p, 0) != NULL, omp);
    plan_free(p);
}

static void test_environment_is_what_torchrun_sets(void **state)
{
    struct capture c;
    char line[512] = "";
    int checked = 0;
    FILE *f = fopen(DATA, "re");
    (void)state;
    assert_non_null(f);
    while (next_capture(f, line, sizeof(line), &c)) {
        check_capture(&c);
        free_capture(&c);
        checked++;
    }
    (void)fclose(f);
    assert_int_equal(checked, 35);
}

/* --- program and arguments --- */

static char *const path_only[] = {"PATH=/usr/bin:/bin", NULL};

static struct plan_config
config_of(enum plan_kind kind, const char *program, const char *const *args)
{
    return (struct plan_config){.nproc = 2,
                                .role = "default",
                                .run_id = "job",
                                .kind = kind,
                                .program = program,
                                .args = args,
                                .log_dir = "/dev/null",
                                .signals_to_handle = "SIGTERM",
                                .environment = path_only};
}

static const struct plan_round one_node = {
    .node_count = 1, .world = 2, .role_world = 2, .lead_addr = "n1", .lead_port = 1};

/* What is executed, as one text: "path: argv0 argv1 …" of local rank 1. */
static void expect(const struct plan_config *c, const char *want)
{
    struct mu_err err;
    struct plan *p = NULL;
    struct work_round r;
    char got[1024];
    if (plan_new(c, &p, &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(plan_build(p, &one_node, &r, &err), 0);
    int n = snprintf(got, sizeof(got), "%s:", r.program);
    for (char *const *a = r.argv[1]; *a != NULL; a++)
        n += snprintf(got + n, sizeof(got) - (size_t)n, " %s", *a);
    assert_string_equal(got, want);
    plan_free(p);
}

static void expect_refused(const struct plan_config *c, int code, const char *words)
{
    struct mu_err err;
    struct plan *p = NULL;
    assert_int_equal(plan_new(c, &p, &err), code);
    assert_has(err.msg, words);
}

static void test_arguments_have_the_local_rank_filled_in(void **state)
{
    static const char *const args[] = {
        "x${local_rank}y", "$local_rank", "a$$b", "$HOME",        "${other}", "$local_ranks",
        "$$local_rank",    "$",           "",     "${local_rank", NULL};
    (void)state;
    struct plan_config c = config_of(PLAN_MODULE, "mod$local_rank", args);
    expect(&c, "/usr/bin/python3: /usr/bin/python3 -u -m mod1 x1y 1 a$b $HOME ${other} "
               "$local_ranks $local_rank $  ${local_rank");
}

static void test_what_runs_by_itself_and_what_python_runs(void **state)
{
    char path[200];
    char want[512];
    (void)state;
    static const struct {
        const char *name;
        const char *content;
        mode_t mode;
        bool by_itself;
    } files[] = {
        {"train.py", "#!/bin/sh\n", 0755, false},
        {"sh-script", "#!/bin/sh\nexit 0\n", 0755, true},
        {"sh-not-executable", "#!/bin/sh\nexit 0\n", 0644, false},
        {"py-script", "#!/usr/bin/env python3\n", 0755, false},
        {"py-script-S", "#! /usr/bin/env -S A=b python3.11 -u\n", 0755, false},
        {"perl-script", "#!/usr/bin/env perl\n", 0755, true},
        {"no-line", "print(1)\n", 0755, false},
        {"elf", "\177ELF\2\1\1", 0755, true},
        {"elf-not-executable", "\177ELF\2\1\1", 0644, false},
        {"empty", "", 0755, false},
    };
    for (size_t i = 0; i < MU_COUNT(files); i++) {
        write_text(in_dir(files[i].name, path), files[i].content, files[i].mode);
        struct plan_config c = config_of(PLAN_AUTO, path, NULL);
        if (files[i].by_itself)
            (void)snprintf(want, sizeof(want), "%s: %s", path, path);
        else
            (void)snprintf(want, sizeof(want), "/usr/bin/python3: /usr/bin/python3 -u %s", path);
        expect(&c, want);
        c.kind = PLAN_SCRIPT;
        (void)snprintf(want, sizeof(want), "/usr/bin/python3: /usr/bin/python3 -u %s", path);
        expect(&c, want);
    }
    struct plan_config missing =
        config_of(PLAN_AUTO, "missing", NULL); /* Python says so, as torchrun leaves it to. */
    expect(&missing, "/usr/bin/python3: /usr/bin/python3 -u missing");
    struct plan_config in = config_of(PLAN_AUTO, "-", NULL);
    expect(&in, "/usr/bin/python3: /usr/bin/python3 -u -");
}

static void test_no_python_searches_path(void **state)
{
    static const char *const args[] = {"-c", "echo $$local_rank", NULL};
    char path[200];
    char path_env[256];
    (void)state;
    struct plan_config c = config_of(PLAN_PLAIN, "sh", args);
    expect(&c, "/usr/bin/sh: sh -c echo $local_rank");
    write_text(in_dir("no-x", path), "#!/bin/sh\n", 0644);
    (void)snprintf(path_env, sizeof(path_env), "PATH=/nonexistent:%s:/usr/bin", dir);
    char *env[] = {path_env, NULL};
    c.environment = env;
    expect(&c, "/usr/bin/sh: sh -c echo $local_rank");
    c.program = "no-x";
    expect_refused(&c, -EACCES, "'no-x' is in PATH, but may not be executed");
    c.program = "nonesuch";
    expect_refused(&c, -ENOENT, "program 'nonesuch' is not in PATH");
    c.program = "/nonexistent/x"; /* Whether it is there shows at its start. */
    expect(&c, "/nonexistent/x: /nonexistent/x -c echo $local_rank");
}

static void test_python_exec_replaces_the_interpreter(void **state)
{
    char *env[] = {"PATH=/usr/bin:/bin", "PYTHON_EXEC=/opt/py", NULL};
    (void)state;
    struct plan_config c = config_of(PLAN_AUTO, "x.py", NULL);
    c.environment = env;
    expect(&c, "/opt/py: /opt/py -u x.py");
    c.python = "/other/py";
    expect(&c, "/other/py: /other/py -u x.py");
    char *nothing[] = {"PATH=/nonexistent", NULL};
    c.python = NULL;
    c.environment = nothing;
    expect_refused(&c, -ENOENT, "Python interpreter: program 'python3' is not in PATH");
}

static void test_too_few_devices_are_refused(void **state)
{
    char *env[] = {"PATH=/usr/bin:/bin", "CUDA_VISIBLE_DEVICES=5", NULL};
    (void)state;
    struct plan_config c = config_of(PLAN_AUTO, "x.py", NULL);
    c.environment = env;
    expect(&c, "/usr/bin/python3: /usr/bin/python3 -u x.py");
    c.virtual_local_rank = true;
    expect_refused(&c, -EINVAL, "CUDA_VISIBLE_DEVICES='5' has 1 entries, 2 workers need one each");
}

/* --- folders, output, error files --- */

struct job {
    struct plan *plan;
    struct work_round round;
    char tmp_env[128];
    char *env[3];
};

static void
job_new(struct job *j, const char *log_dir, const uint8_t *redirects, const char *run_id)
{
    struct mu_err err;
    *j = (struct job){0};
    (void)snprintf(j->tmp_env, sizeof(j->tmp_env), "TMPDIR=%s", dir);
    j->env[0] = "PATH=/usr/bin:/bin";
    j->env[1] = j->tmp_env;
    struct plan_config c = config_of(PLAN_AUTO, "x.py", NULL);
    c.environment = j->env;
    c.log_dir = log_dir;
    c.redirects = redirects;
    c.run_id = run_id;
    if (plan_new(&c, &j->plan, &err) < 0)
        fail_msg("%s", err.msg);
}

static void job_round(struct job *j, uint32_t restarts)
{
    struct mu_err err;
    struct plan_round r = one_node;
    r.restarts = restarts;
    assert_int_equal(plan_build(j->plan, &r, &j->round, &err), 0);
    if (plan_make_folders(j->plan, &err) < 0)
        fail_msg("%s", err.msg);
}

static const char *error_path(const struct job *j, uint32_t i)
{
    return value_of(j->round.envp[i], "TORCHELASTIC_ERROR_FILE");
}

static int entries_of(const char *path)
{
    struct stat st;
    return stat(path, &st) < 0 ? -errno : (int)st.st_nlink - 2; /* Folders in it. */
}

static void test_default_folders_leave_nothing_unless_a_file_is_there(void **state)
{
    struct job j;
    char base[256];
    (void)state;
    int before = entries_of(dir);
    job_new(&j, NULL, NULL, "team/job");
    assert_int_equal(entries_of(dir), before); /* Nothing yet. */
    job_round(&j, 0);
    job_round(&j, 1);
    assert_int_equal(entries_of(dir), before + 1);
    assert_has(error_path(&j, 1), "/team_job_");
    assert_has(error_path(&j, 1), "/attempt_1/1/error.json");
    plan_cleanup(j.plan);
    assert_int_equal(entries_of(dir), before);
    plan_free(j.plan);

    job_new(&j, NULL, NULL, "job");
    job_round(&j, 0);
    write_text(error_path(&j, 1), "{}", 0600);
    (void)snprintf(base, sizeof(base), "%.*s",
                   (int)(strstr(error_path(&j, 1), "/attempt_0/1/") - error_path(&j, 1) + 10),
                   error_path(&j, 1));
    plan_cleanup(j.plan);
    assert_int_equal(access(error_path(&j, 1), F_OK), 0);
    assert_int_equal(entries_of(base), 1); /* The one that holds it. */
    plan_free(j.plan);
}

static void test_given_folder_stays_and_a_second_round_of_an_attempt_keeps_output(void **state)
{
    static const uint8_t redirects[] = {PLAN_STDOUT, PLAN_STDOUT | PLAN_STDERR};
    struct job j;
    char logs[200];
    char text[16];
    (void)state;
    job_new(&j, in_dir("logs/deep", logs), redirects, "job");
    job_round(&j, 0);
    assert_null(j.round.stderr_path[0]);
    assert_has(j.round.stdout_path[0], "/attempt_0/0/stdout.log");
    assert_has(j.round.stderr_path[1], "/attempt_0/1/stderr.log");
    assert_int_equal(strncmp(j.round.stdout_path[0], logs, strlen(logs)), 0);
    write_text(j.round.stdout_path[0], "one", 0600);
    write_text(error_path(&j, 0), "{\"message\": \"old\"}", 0600);
    job_round(&j, 0);
    read_text(j.round.stdout_path[0], text, sizeof(text));
    assert_string_equal(text, "one");
    struct plan_error e;
    plan_read_error(j.plan, 0, &e); /* An earlier round's cause is none of this one. */
    assert_false(e.found);
    plan_cleanup(j.plan);
    assert_int_equal(access(j.round.stdout_path[0], F_OK), 0);
    plan_free(j.plan);
}

static void test_bad_log_dir_is_refused(void **state)
{
    char path[200];
    (void)state;
    write_text(in_dir("file", path), "", 0600);
    struct plan_config c = config_of(PLAN_AUTO, "x.py", NULL);
    c.log_dir = path;
    expect_refused(&c, -ENOTDIR, "/file': not a folder");
    c.log_dir = in_dir("file/below", path);
    expect_refused(&c, -ENOTDIR, "not a folder");
    c.log_dir = "/proc/nonesuch";
    expect_refused(&c, -ENOENT, "--log-dir '/proc/nonesuch'");
}

static void test_dev_null_means_no_files(void **state)
{
    static const uint8_t redirects[] = {3, 3};
    struct job j;
    struct plan_error e;
    (void)state;
    job_new(&j, "/dev/null", redirects, "job");
    job_round(&j, 0);
    assert_string_equal(error_path(&j, 0), "");
    assert_null(j.round.stdout_path);
    plan_read_error(j.plan, 0, &e);
    assert_false(e.found);
    plan_free(j.plan);
}

static void test_without_tmpdir_folders_lie_in_memory_and_errors_are_kept(void **state)
{
    struct mu_err err;
    struct plan *p = NULL;
    struct work_round r;
    struct plan_error e;
    (void)state;
    struct plan_config c = config_of(PLAN_AUTO, "x.py", NULL);
    c.log_dir = NULL;
    assert_int_equal(plan_new(&c, &p, &err), 0);
    assert_int_equal(plan_build(p, &one_node, &r, &err), 0);
    assert_int_equal(plan_make_folders(p, &err), 0);
    char *path = copy_of(value_of(r.envp[0], "TORCHELASTIC_ERROR_FILE"));
    write_text(path, "{\"message\": \"kept\"}", 0600);
    plan_read_error(p, 0, &e);
    assert_string_equal(e.message, "kept");
    plan_cleanup(p);
    char text[64];
    read_text(e.path, text, sizeof(text));
    assert_string_equal(text, "{\"message\": \"kept\"}");
    if (strncmp(path, "/dev/shm/", 9) == 0) {
        assert_int_equal(access(path, F_OK), -1);
        assert_int_equal(strncmp(e.path, "/tmp/torchelastic_", 18), 0);
        assert_string_equal(strstr(path, "/torchelastic_"), strstr(e.path, "/torchelastic_"));
    }
    assert_int_equal(unlink(e.path), 0);
    for (int i = 0; i < 4; i++) {
        *strrchr(e.path, '/') = '\0';
        assert_int_equal(rmdir(e.path), 0);
    }
    plan_error_fini(&e);
    free(path);
    plan_free(p);
}

static void test_error_files_are_read_whatever_they_hold(void **state)
{
    static const struct {
        const char *content;
        const char *message;
        const char *text; /* NULL: none. */
        int64_t unix_s;
    } files[] = {
        {"{\"message\": {\"message\": \"ValueError: made\\nby hand\", \"extraInfo\": "
         "{\"py_callstack\": \"Traceback\\n  deep\\nValueError: made\\n\", \"timestamp\": "
         "\"1700000000\"}}}",
         "ValueError: made", "Traceback\n  deep\nValueError: made\n", 1700000000},
        {"{\"message\": \"plain words\", \"timestamp\": \"1700000001\"}", "plain words",
         "plain words", 1700000001},
        {"{\"message\": {\"extraInfo\": {\"py_callstack\": \"Traceback\\nOops: last\\n\\n\"}}}",
         "Oops: last", "Traceback\nOops: last\n\n", 0},
        {"{\"message\": {\"message\": 7, \"extraInfo\": []}}", "its error file has no message",
         NULL, 0},
        {"{\"something\": 1}", "its error file has no message", NULL, 0},
        {"[1, 2]", "its error file has no message", NULL, 0},
        {"{broken json", "its error file is no JSON", NULL, 0},
        {"", "its error file is empty", NULL, 0},
        {"{\"message\": \"tab\\tand \\u00e9\", \"timestamp\": 12}", "tab and \303\251",
         "tab\tand \303\251", 12},
        {"{\"message\": \"x\", \"timestamp\": \"-1e99\"}", "x", "x", 0},
    };
    struct job j;
    (void)state;
    job_new(&j, NULL, NULL, "job");
    job_round(&j, 0);
    for (size_t i = 0; i < MU_COUNT(files); i++) {
        struct plan_error e;
        write_text(error_path(&j, 1), files[i].content, 0600);
        plan_read_error(j.plan, 1, &e);
        assert_true(e.found);
        assert_string_equal(e.path, error_path(&j, 1));
        assert_string_equal(e.message, files[i].message);
        assert_int_equal(e.unix_s, files[i].unix_s);
        assert_int_equal(e.text != NULL, files[i].text != NULL);
        if (e.text != NULL)
            assert_string_equal(e.text, files[i].text);
        plan_error_fini(&e);
    }
    struct plan_error e;
    plan_read_error(j.plan, 0, &e);
    assert_false(e.found);
    assert_string_equal(e.message, "");
    assert_int_equal(unlink(error_path(&j, 1)), 0);
    assert_int_equal(mkfifo(error_path(&j, 1), 0600), 0); /* Nobody writes: must not wait. */
    plan_read_error(j.plan, 1, &e);
    assert_has(e.message, "its error file cannot be read");
    plan_error_fini(&e);
    plan_free(j.plan);
}

static void test_long_message_is_cut_between_characters(void **state)
{
    struct job j;
    struct plan_error e;
    char text[2048] = "{\"message\": \"x";
    (void)state;
    job_new(&j, NULL, NULL, "job");
    job_round(&j, 0);
    size_t n = strlen(text);
    for (int i = 0; i < 600; i++, n += 2)
        memcpy(text + n, "\303\251", 3);
    (void)snprintf(text + n, sizeof(text) - n, "\"}");
    write_text(error_path(&j, 0), text, 0600);
    plan_read_error(j.plan, 0, &e);
    assert_int_equal(strlen(e.message),
                     MU_MESSAGE_BYTES - 1); /* 1 + 2 * 255: ends on a whole one. */
    assert_int_equal((unsigned char)e.message[MU_MESSAGE_BYTES - 2], 0251);
    plan_error_fini(&e);
    plan_free(j.plan);
}

static void test_error_file_is_handed_up_with_its_code(void **state)
{
    char from[200];
    char to[200];
    char text[256];
    struct mu_err err;
    (void)state;
    write_text(in_dir("from.json", from), "{\"message\": {\"message\": \"a\"}, \"more\": [1]}",
               0600);
    in_dir("to.json", to);
    assert_int_equal(plan_copy_error(from, to, 5, &err), 0);
    read_text(to, text, sizeof(text));
    assert_string_equal(text, "{\"message\":{\"message\":\"a\",\"errorCode\":5},\"more\":[1]}");
    write_text(from, "{\"message\": \"string form\"}", 0600);
    assert_int_equal(plan_copy_error(from, to, 5, &err), 0);
    read_text(to, text, sizeof(text));
    assert_string_equal(text, "{\"message\": \"string form\"}");
    assert_int_equal(plan_copy_error(from, "/nonexistent/to.json", 5, &err), -ENOENT);
    assert_has(err.msg, "write error file '/nonexistent/to.json': No such file");
    assert_int_equal(plan_copy_error("/nonexistent", to, 5, &err), -ENOENT);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_environment_is_what_torchrun_sets),
        cmocka_unit_test(test_arguments_have_the_local_rank_filled_in),
        cmocka_unit_test(test_what_runs_by_itself_and_what_python_runs),
        cmocka_unit_test(test_no_python_searches_path),
        cmocka_unit_test(test_python_exec_replaces_the_interpreter),
        cmocka_unit_test(test_too_few_devices_are_refused),
        cmocka_unit_test(test_default_folders_leave_nothing_unless_a_file_is_there),
        cmocka_unit_test(test_given_folder_stays_and_a_second_round_of_an_attempt_keeps_output),
        cmocka_unit_test(test_bad_log_dir_is_refused),
        cmocka_unit_test(test_dev_null_means_no_files),
        cmocka_unit_test(test_without_tmpdir_folders_lie_in_memory_and_errors_are_kept),
        cmocka_unit_test(test_error_files_are_read_whatever_they_hold),
        cmocka_unit_test(test_long_message_is_cut_between_characters),
        cmocka_unit_test(test_error_file_is_handed_up_with_its_code),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
