/* agent/workers/warden.h: who is killed, who is left. Each test starts this program again as a
 * launcher ("launch …"), which runs a warden and an agent with real workers. */
#include "tests/unit/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "agent/workers/warden.h"
#include "agent/workers/work.h"

/* Nothing may be left of a job one second after its owner's death. */
#define GONE_WITHIN_MS 1000
#define DEADLINE_MS 20000

/* --- the launcher: a small agent --- */

struct agent {
    uv_loop_t loop;
    struct warden *warden;
    struct work *work;
    uv_signal_t signals[4];
    int status;
};

static void on_exit_event(void *arg, const struct work_exit *e)
{
    struct agent *a = arg;
    if (a->status == 0)
        a->status = e->status < 0 ? 100 - e->status : e->status;
    work_kill(a->work);
}

static void on_all_gone(void *arg)
{
    struct agent *a = arg;
    uv_stop(&a->loop);
}

static void on_warden_lost(void *arg)
{
    struct agent *a = arg;
    work_kill(a->work);
}

static void on_signal(uv_signal_t *s, int signo)
{
    struct agent *a = s->data;
    a->status = signo == SIGINT ? 42 : 40;
    work_kill(a->work);
}

/* Options, in argv: the folder, then any of: no-cgroup, exit=N, raise. */
static int agent_main(struct warden *w, void *arg)
{
    char **argv = arg;
    struct agent a = {.warden = w};
    struct mu_err err;
    struct work_events events = {.arg = &a, .on_exit = on_exit_event, .on_all_gone = on_all_gone};
    bool cgroup = true;
    for (char **o = argv + 1; *o != NULL; o++) {
        if (strcmp(*o, "no-cgroup") == 0)
            cgroup = false;
        if (strncmp(*o, "exit=", 5) == 0)
            return (int)strtol(*o + 5, NULL, 10);
        if (strcmp(*o, "raise") == 0)
            raise(SIGUSR1);
    }
    uv_loop_init(&a.loop);
    if (work_new(&a.loop, &events, &a.work, &err) < 0)
        return 99;
    if (!cgroup)
        work_drop_cgroup(a.work);
    warden_note_cgroup(w, work_cgroup(a.work));
    if (warden_watch(w, &a.loop, on_warden_lost, &a) < 0)
        return 98;
    static const int handled[] = {SIGTERM, SIGINT};
    for (size_t i = 0; i < MU_COUNT(handled); i++) {
        uv_signal_init(&a.loop, &a.signals[i]);
        a.signals[i].data = &a;
        uv_signal_start(&a.signals[i], on_signal, handled[i]);
    }
    /* Each worker: a daemon (double fork, setsid, deaf), one that hides its origin, a child in its
     * group, then sleep. */
    static char text[] = "cd $D; for e in '' 'env -i'; do ($e setsid sh -c 'trap \"\" TERM HUP "
                         "INT; while :; do sleep 60; done' > /dev/null 2>&1 &); done; "
                         "sleep 60 & [ $LOCAL_RANK != 1 ] || trap '' TERM; : > ready.$LOCAL_RANK; "
                         "while :; do sleep 60; done";
    char *sh[] = {"sh", "-c", text, NULL};
    char d[128];
    char error_file[2][160];
    (void)snprintf(d, sizeof(d), "D=%s", argv[0]);
    (void)snprintf(error_file[0], sizeof(error_file[0]), "TORCHELASTIC_ERROR_FILE=%s/0", argv[0]);
    (void)snprintf(error_file[1], sizeof(error_file[1]), "TORCHELASTIC_ERROR_FILE=%s/1", argv[0]);
    char *env[2][5] = {{"PATH=/usr/bin:/bin", "LOCAL_RANK=0", d, error_file[0], NULL},
                       {"PATH=/usr/bin:/bin", "LOCAL_RANK=1", d, error_file[1], NULL}};
    char *const *argvs[] = {sh, sh};
    char *const *envps[] = {env[0], env[1]};
    struct work_round r = {
        .round = 1, .nproc = 2, .program = "/bin/sh", .argv = argvs, .envp = envps};
    int32_t pids[2];
    uint32_t failed = 0;
    if (work_start(a.work, &r, pids, &failed, &err) < 0)
        return 97;
    char path[160];
    (void)snprintf(path, sizeof(path), "%s/agent", argv[0]);
    FILE *f = fopen(path, "we");
    (void)fprintf(f, "%d %d %d\n", (int)getpid(), (int)getpgrp(), (int)getppid());
    (void)fclose(f);
    uv_run(&a.loop, UV_RUN_DEFAULT);
    work_close(a.work, NULL, NULL);
    warden_unwatch(w);
    for (size_t i = 0; i < MU_COUNT(handled); i++)
        uv_close((uv_handle_t *)&a.signals[i], NULL);
    uv_run(&a.loop, UV_RUN_DEFAULT);
    uv_loop_close(&a.loop);
    return a.status;
}

/* --- the tests' side --- */

struct launch {
    char dir[64];
    pid_t pid; /* The warden. */
    pid_t agent;
    int life; /* Read end of a pipe whose other end every process of the job has: EOF means that all
                 are gone. */
    int errors; /* Its stderr. */
};

static char self[256];
static bool without_cgroup;

static int64_t now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void await_path(const char *dir, const char *name)
{
    char path[160];
    int64_t end = now_ms() + DEADLINE_MS;
    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    struct stat st;
    while (stat(path, &st) < 0 || (strcmp(name, "agent") == 0 && st.st_size == 0)) {
        struct timespec turn = {.tv_nsec = 1000000};
        (void)nanosleep(&turn, NULL);
        if (now_ms() > end)
            fail_msg("%s did not come", path);
    }
}

/* Start the launcher with an option ("" for none). stdin is the pipe that tells when all are gone:
 * it is the only descriptor beside 1 and 2 that workers inherit. */
static void launch(struct launch *l, const char *option)
{
    int life[2];
    int errors[2];
    *l = (struct launch){.agent = -1};
    (void)snprintf(l->dir, sizeof(l->dir), "/tmp/work_warden.XXXXXX");
    assert_non_null(mkdtemp(l->dir));
    assert_int_equal(pipe2(life, O_CLOEXEC), 0);
    assert_int_equal(pipe2(errors, O_CLOEXEC), 0);
    l->pid = fork();
    assert_true(l->pid >= 0);
    if (l->pid == 0) {
        dup2(life[1], 0);
        dup2(errors[1], 2);
        execl(self, self, "launch", l->dir, without_cgroup ? "no-cgroup" : "x", option,
              (char *)NULL);
        _exit(127);
    }
    close(life[1]);
    close(errors[1]);
    l->life = life[0];
    l->errors = errors[0];
}

static void launch_workers(struct launch *l)
{
    int pids[3];
    char path[160];
    launch(l, "x");
    await_path(l->dir, "ready.0");
    await_path(l->dir, "ready.1");
    await_path(l->dir, "agent");
    (void)snprintf(path, sizeof(path), "%s/agent", l->dir);
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%d %d %d", &pids[0], &pids[1], &pids[2]), 3);
    (void)fclose(f);
    l->agent = pids[0];
    assert_int_equal(pids[1], pids[0]); /* A group of its own. */
    assert_int_equal(pids[2], l->pid);
}

/* Every process of the job has closed its standard input: none is left. */
static void expect_gone(const struct launch *l)
{
    struct pollfd p = {.fd = l->life, .events = POLLIN};
    int64_t start = now_ms();
    if (poll(&p, 1, DEADLINE_MS) != 1)
        fail_msg("processes of the job are left after %d ms", DEADLINE_MS);
    int64_t took = now_ms() - start;
    if (took > GONE_WITHIN_MS)
        fail_msg("the last process of the job ended only after %d ms", (int)took);
}

/* The launcher's wait status. */
static int await(struct launch *l, char *errors, size_t cap)
{
    int status = 0;
    assert_int_equal(waitpid(l->pid, &status, 0), l->pid);
    ssize_t n = read(l->errors, errors, cap - 1);
    errors[n > 0 ? n : 0] = '\0';
    close(l->errors);
    close(l->life);
    pid_t pid = fork();
    if (pid == 0) {
        execlp("rm", "rm", "-rf", l->dir, (char *)NULL);
        _exit(127);
    }
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    return status;
}

static void expect_exit(struct launch *l, int code, const char *errors)
{
    char text[512];
    int status = await(l, text, sizeof(text));
    assert_string_equal(text, errors);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), code);
}

static void test_exit_status_is_the_agents(void **state)
{
    struct launch l;
    (void)state;
    launch(&l, "exit=0");
    expect_exit(&l, 0, "");
    launch(&l, "exit=23");
    expect_exit(&l, 23, "");
}

static void test_agent_killed_nothing_is_left(void **state)
{
    struct launch l;
    (void)state;
    launch_workers(&l);
    assert_int_equal(kill(l.agent, SIGKILL), 0);
    expect_gone(&l);
    expect_exit(&l, 1, "test: the agent process was killed by SIGKILL; its workers were ended\n");
}

static void test_agent_killed_while_stopped_nothing_is_left(void **state)
{
    struct launch l;
    (void)state;
    launch_workers(&l);
    assert_int_equal(kill(l.agent, SIGSTOP), 0);
    assert_int_equal(kill(l.agent, SIGKILL), 0);
    expect_gone(&l);
    expect_exit(&l, 1, "test: the agent process was killed by SIGKILL; its workers were ended\n");
}

static void test_warden_killed_nothing_is_left(void **state)
{
    struct launch l;
    char text[256];
    (void)state;
    launch_workers(&l);
    assert_int_equal(kill(l.pid, SIGKILL), 0);
    expect_gone(&l);
    int status = await(&l, text, sizeof(text));
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGKILL);
    assert_string_equal(text, "");
    while (waitpid(-1, NULL, 0) > 0) /* The agent, handed to us. */
        ;
}

static void test_group_of_the_warden_killed_nothing_is_left(void **state)
{
    struct launch l;
    char text[256];
    (void)state;
    launch_workers(&l);
    assert_int_equal(setpgid(l.pid, l.pid),
                     -1); /* Too late from here; the launcher did it itself. */
    assert_int_equal(kill(-l.pid, SIGKILL), 0);
    expect_gone(&l);
    (void)await(&l, text, sizeof(text));
    while (waitpid(-1, NULL, 0) > 0)
        ;
}

static void test_signals_are_forwarded_once(void **state)
{
    struct launch l;
    (void)state;
    launch_workers(&l);
    assert_int_equal(kill(l.pid, SIGTERM), 0);
    expect_gone(&l);
    expect_exit(&l, 40, "");
    launch_workers(&l);
    assert_int_equal(kill(-l.pid, SIGINT), 0); /* As a terminal does: to the group. */
    expect_gone(&l);
    expect_exit(&l, 42, "");
}

static void test_agent_that_dies_of_an_unhandled_signal(void **state)
{
    struct launch l;
    (void)state;
    launch(&l, "raise");
    expect_exit(&l, 1, "test: the agent process was killed by SIGUSR1; its workers were ended\n");
    launch_workers(&l);
    assert_int_equal(kill(l.pid, SIGUSR2), 0); /* Forwarded; its default action ends the agent. */
    expect_gone(&l);
    expect_exit(&l, 1, "test: the agent process was killed by SIGUSR2; its workers were ended\n");
}

static char state_of(pid_t pid)
{
    char path[64];
    char name[64];
    char state = '?';
    int number = 0;
    (void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "re");
    if (f == NULL)
        return '?';
    if (fscanf(f, "%d %63s %c", &number, name, &state) != 3)
        state = '?';
    (void)fclose(f);
    return state;
}

static void await_state(pid_t pid, char want, bool is)
{
    int64_t end = now_ms() + DEADLINE_MS;
    while ((state_of(pid) == want) != is) {
        struct timespec turn = {.tv_nsec = 1000000};
        (void)nanosleep(&turn, NULL);
        if (now_ms() > end)
            fail_msg("process %d is in state %c", (int)pid, state_of(pid));
    }
}

static void test_stop_and_continue_reach_both(void **state)
{
    struct launch l;
    (void)state;
    launch_workers(&l);
    assert_int_equal(kill(l.pid, SIGTSTP), 0);
    await_state(l.pid, 'T', true);
    await_state(l.agent, 'T', true);
    assert_int_equal(kill(l.pid, SIGCONT), 0);
    await_state(l.pid, 'T', false);
    await_state(l.agent, 'T', false);
    assert_int_equal(kill(l.pid, SIGTERM), 0);
    expect_gone(&l);
    expect_exit(&l, 40, "");
}

/* `sh -c 'sleep & exec launcher'`: the launcher gets a child it never started. */
static void test_children_from_before_are_left_alone(void **state)
{
    (void)state;
    int life[2];
    assert_int_equal(pipe2(life, O_CLOEXEC), 0);
    char dir[] = "/tmp/work_warden.XXXXXX";
    assert_non_null(mkdtemp(dir));
    pid_t pid = fork();
    if (pid == 0) {
        dup2(life[1], 0);
        execlp("sh", "sh", "-c",
               "exec 3<&0; sleep 60 <&3 3<&- & exec 3<&-; exec \"$0\" launch \"$1\" x exit=5", self,
               dir, (char *)NULL);
        _exit(127);
    }
    close(life[1]);
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 5);
    struct pollfd p = {.fd = life[0], .events = POLLIN};
    assert_int_equal(poll(&p, 1, 50), 0); /* It lives. */
    /* Ours now, for this test adopts orphans. */
    char children[128] = "";
    char path[64];
    (void)snprintf(path, sizeof(path), "/proc/self/task/%d/children", (int)getpid());
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    assert_non_null(fgets(children, sizeof(children), f));
    (void)fclose(f);
    pid_t left = (pid_t)strtol(children, NULL, 10);
    assert_int_equal(kill(left, SIGKILL), 0);
    assert_int_equal(waitpid(left, NULL, 0), left);
    close(life[0]);
    assert_int_equal(rmdir(dir), 0);
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exit_status_is_the_agents),
        cmocka_unit_test(test_agent_killed_nothing_is_left),
        cmocka_unit_test(test_agent_killed_while_stopped_nothing_is_left),
        cmocka_unit_test(test_warden_killed_nothing_is_left),
        cmocka_unit_test(test_group_of_the_warden_killed_nothing_is_left),
        cmocka_unit_test(test_signals_are_forwarded_once),
        cmocka_unit_test(test_agent_that_dies_of_an_unhandled_signal),
        cmocka_unit_test(test_stop_and_continue_reach_both),
        cmocka_unit_test(test_children_from_before_are_left_alone),
    };
    if (argc > 2 && strcmp(argv[1], "launch") == 0) {
        (void)setpgid(0, 0);
        return warden_run("test", agent_main, argv + 2);
    }
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    if (n <= 0)
        return 1;
    without_cgroup = argc > 1 && strcmp(argv[1], "no-cgroup") == 0;
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1L, 0L, 0L,
                0L); /* What a killed warden leaves comes here, and can be awaited. */
    return cmocka_run_group_tests_name(
        without_cgroup ? "work_warden without cgroup" : "work_warden", tests, NULL, NULL);
}
