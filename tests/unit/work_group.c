/* agent/workers/work.h with real processes: every promise twice, with a cgroup where one can be had
 * and without. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/workers/spawn.h"
#include "agent/workers/work.h"

#define DEADLINE_MS 20000 /* Fails loudly; nothing here takes a tenth of it. */
#define MANY 256

extern char **environ;

struct group {
    uv_loop_t loop;
    uv_timer_t deadline;
    struct work *work;
    uint32_t exits;
    uint32_t gone;
    struct work_exit exit[MU_WORKERS_MAX];
    uint32_t order[MU_WORKERS_MAX]; /* Local ranks as they were told. */
    int32_t pids[MU_WORKERS_MAX];
    uint32_t failed;
    struct mu_err err;
    uint32_t kill_after; /* work_kill() at this exit; 0: never. */
    char dir[64];
};

static bool without_cgroup; /* The run of the table that forces the other way. */

static void on_exit_event(void *arg, const struct work_exit *e)
{
    struct group *g = arg;
    assert_true(e->local_rank < MU_WORKERS_MAX);
    assert_int_equal(g->exit[e->local_rank].pid, 0); /* Once each. */
    assert_int_equal(g->gone, 0);                    /* And before all is gone. */
    g->exit[e->local_rank] = *e;
    g->order[g->exits++] = e->local_rank;
    if (g->exits == g->kill_after)
        work_kill(g->work);
}

static void on_all_gone(void *arg)
{
    struct group *g = arg;
    g->gone++;
    uv_stop(&g->loop);
}

static void on_deadline(uv_timer_t *t)
{
    char left[256];
    struct group *g = t->data;
    work_describe_left(g->work, left, sizeof(left));
    fail_msg("still there after %d ms: %s (%u exits)", DEADLINE_MS, left, g->exits);
}

static struct group *group_new(void)
{
    struct group *g = calloc(1, sizeof(*g));
    assert_non_null(g);
    struct work_events events = {.arg = g, .on_exit = on_exit_event, .on_all_gone = on_all_gone};
    assert_int_equal(uv_loop_init(&g->loop), 0);
    assert_int_equal(work_new(&g->loop, &events, &g->work, &g->err), 0);
    if (without_cgroup)
        work_drop_cgroup(g->work);
    uv_timer_init(&g->loop, &g->deadline);
    g->deadline.data = g;
    uv_timer_start(&g->deadline, on_deadline, DEADLINE_MS, 0);
    (void)snprintf(g->dir, sizeof(g->dir), "/tmp/work_group.XXXXXX");
    assert_non_null(mkdtemp(g->dir));
    return g;
}

static void on_closed(void *arg)
{
    *(bool *)arg = true;
}

static void remove_dir(const char *dir)
{
    char *argv[] = {"rm", "-rf", (char *)(uintptr_t)dir, NULL};
    pid_t pid = fork();
    if (pid == 0) {
        execvp(argv[0], argv);
        _exit(127);
    }
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void group_free(struct group *g)
{
    bool closed = false;
    char cgroup[4096] = "";
    if (work_cgroup(g->work) != NULL)
        (void)snprintf(cgroup, sizeof(cgroup), "%s", work_cgroup(g->work));
    assert_false(work_is_running(g->work));
    /* The promise behind on_all_gone, and the whole point of the room: not one child is left, not
     * even a zombie. */
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
    work_close(g->work, on_closed, &closed);
    uv_close((uv_handle_t *)&g->deadline, NULL);
    uv_run(&g->loop, UV_RUN_DEFAULT);
    assert_true(closed);
    assert_int_equal(uv_loop_close(&g->loop), 0);
    if (cgroup[0] != '\0')
        assert_int_equal(access(cgroup, F_OK), -1);
    remove_dir(g->dir);
    free(g);
}

static int start(struct group *g, const struct work_round *r)
{
    g->exits = g->gone = 0;
    memset(g->exit, 0, sizeof(g->exit));
    memset(g->pids, 0, sizeof(g->pids));
    return work_start(g->work, r, g->pids, &g->failed, &g->err);
}

static void run_until_gone(struct group *g)
{
    uv_timer_start(&g->deadline, on_deadline, DEADLINE_MS, 0);
    while (g->gone == 0)
        uv_run(&g->loop, UV_RUN_DEFAULT);
    assert_int_equal(g->gone, 1);
}

/* nproc shells with the same text; $LOCAL_RANK tells them apart, $D is the test's directory. */
struct shells {
    char *argv[MU_WORKERS_MAX][4];
    char *const *argvs[MU_WORKERS_MAX];
    char local_rank[MU_WORKERS_MAX][24];
    char error_file[MU_WORKERS_MAX][128];
    char dir[80];
    char *envp[MU_WORKERS_MAX][5];
    char *const *envps[MU_WORKERS_MAX];
    struct work_round round;
};

static struct shells *shells_new(const struct group *g, uint32_t nproc, const char *text)
{
    struct shells *s = calloc(1, sizeof(*s));
    assert_non_null(s);
    (void)snprintf(s->dir, sizeof(s->dir), "D=%s", g->dir);
    for (uint32_t i = 0; i < nproc; i++) {
        (void)snprintf(s->local_rank[i], sizeof(s->local_rank[i]), "LOCAL_RANK=%u", i);
        (void)snprintf(s->error_file[i], sizeof(s->error_file[i]),
                       "TORCHELASTIC_ERROR_FILE=%s/%u/error.json", g->dir, i);
        char *const argv[4] = {"sh", "-c", (char *)(uintptr_t)text, NULL};
        memcpy(s->argv[i], argv, sizeof(argv));
        char *const envp[5] = {"PATH=/usr/bin:/bin", s->local_rank[i], s->error_file[i], s->dir,
                               NULL};
        memcpy(s->envp[i], envp, sizeof(envp));
        s->argvs[i] = s->argv[i];
        s->envps[i] = s->envp[i];
    }
    s->round = (struct work_round){
        .round = 1, .nproc = nproc, .program = "/bin/sh", .argv = s->argvs, .envp = s->envps};
    return s;
}

/* Start, run to the end, check that all went as `start` promised. */
static void run_shells(struct group *g, uint32_t nproc, const char *text)
{
    struct shells *s = shells_new(g, nproc, text);
    assert_int_equal(start(g, &s->round), 0);
    free(s);
    run_until_gone(g);
    assert_int_equal(g->exits, nproc);
}

static void read_all(const char *dir, const char *name, char *ret, size_t cap)
{
    char path[256];
    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        fail_msg("open %s: %s", path, strerror(errno));
    ssize_t n = read(fd, ret, cap - 1);
    assert_true(n >= 0);
    ret[n] = '\0';
    close(fd);
}

/* Wait for a file that a worker makes, while the loop runs. */
static void await_file(struct group *g, const char *name)
{
    char path[256];
    (void)snprintf(path, sizeof(path), "%s/%s", g->dir, name);
    uv_timer_start(&g->deadline, on_deadline, DEADLINE_MS, 0);
    while (access(path, F_OK) < 0) {
        uv_run(&g->loop, UV_RUN_NOWAIT);
        struct timespec turn = {.tv_nsec = 1000000};
        (void)nanosleep(&turn, NULL);
    }
}

static void assert_dead(const char *dir, const char *pid_file)
{
    char text[64];
    read_all(dir, pid_file, text, sizeof(text));
    pid_t pid = (pid_t)strtol(text, NULL, 10);
    assert_true(pid > 1);
    if (kill(pid, 0) == 0 || errno != ESRCH)
        fail_msg("%s: process %d lives on", pid_file, (int)pid);
}

/* --- tests --- */

static void test_exit_codes_and_signals_are_exact(void **state)
{
    struct group *g = group_new();
    (void)state;
    run_shells(g, 6,
               "case $LOCAL_RANK in 0) exit 0;; 1) exit 1;; 2) exit 255;; 3) kill -KILL $$;; 4) "
               "kill -SEGV $$;; 5) kill -TERM $$;; esac");
    static const int32_t want[] = {0, 1, 255, -SIGKILL, -SIGSEGV, -SIGTERM};
    for (uint32_t i = 0; i < 6; i++) {
        assert_int_equal(g->exit[i].status, want[i]);
        assert_int_equal(g->exit[i].pid, g->pids[i]);
        assert_false(g->exit[i].oom_killed);
    }
    group_free(g);
}

static void test_many_instant_exits_again_and_again_none_is_lost(void **state)
{
    struct group *g = group_new();
    (void)state;
    static char *argv[] = {"true", NULL};
    char *const *argvs[MANY];
    char *const *envps[MANY];
    for (uint32_t i = 0; i < MANY; i++) {
        argvs[i] = argv;
        envps[i] = environ;
    }
    int runs =
        getenv("MUSTER_STORMS") != NULL ? (int)strtol(getenv("MUSTER_STORMS"), NULL, 10) : 10;
    for (int run = 0; run < runs; run++) {
        struct work_round r = {.round = (uint32_t)run,
                               .nproc = MANY,
                               .program = "/bin/true",
                               .argv = argvs,
                               .envp = envps};
        assert_int_equal(start(g, &r), 0);
        run_until_gone(g);
        assert_int_equal(g->exits, MANY);
        for (uint32_t i = 0; i < MANY; i++)
            assert_int_equal(g->exit[i].status, 0);
    }
    group_free(g);
}

static void test_ends_are_told_in_the_order_they_happened(void **state)
{
    struct group *g = group_new();
    (void)state;
    /* Each one waits for its predecessor's pid to be gone; all of them are told in one turn of the
     * loop. */
    struct shells *s = shells_new(g, 6,
                                  "n=$((LOCAL_RANK+1)); if [ $n -lt 6 ]; then until [ -e $D/end.$n "
                                  "]; do sleep 0.005; done; fi; "
                                  "sleep 0.02; : > $D/end.$LOCAL_RANK; exit $LOCAL_RANK");
    assert_int_equal(start(g, &s->round), 0);
    char path[128];
    (void)snprintf(path, sizeof(path), "%s/end.0", g->dir);
    while (access(path, F_OK) < 0) { /* The loop does not run meanwhile. */
        struct timespec turn = {.tv_nsec = 1000000};
        (void)nanosleep(&turn, NULL);
    }
    siginfo_t si;
    assert_int_equal(waitid(P_PID, (id_t)g->pids[0], &si, WEXITED | WNOWAIT), 0);
    run_until_gone(g);
    for (uint32_t i = 0; i < 6; i++)
        assert_int_equal(g->order[i], 5 - i);
    free(s);
    group_free(g);
}

static void test_worker_is_a_clean_process(void **state)
{
    struct group *g = group_new();
    (void)state;
    /* Session and group leader, our child, nothing blocked or ignored though we do, descriptors 0
     * to 2 alone. */
    int leak =
        open("/dev/null", O_RDONLY); /* Not close-on-exec, as a careless starter leaves one. */
    void (*old_pipe)(int) = signal(SIGPIPE, SIG_IGN);
    void (*old_usr)(int) = signal(SIGUSR2, SIG_IGN);
    sigset_t usr1;
    sigset_t before;
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    sigprocmask(SIG_BLOCK, &usr1, &before);
    struct rlimit old;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    struct rlimit few = {.rlim_cur = 64, .rlim_max = old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);

    run_shells(g, 1,
               "exec > $D/facts; read a b c d e f rest < /proc/$$/stat; echo pid=$a ppid=$d "
               "pgid=$e sid=$f files=$(ulimit -n); "
               "(cd /proc/$$/fd; echo fds=*); "
               "exec grep -E '^Sig(Blk|Ign)' /proc/self/status"); /* A shell that waits blocks
                                                                     signals itself. */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    sigprocmask(SIG_SETMASK, &before, NULL);
    (void)signal(SIGPIPE, old_pipe);
    (void)signal(SIGUSR2, old_usr);
    close(leak);

    char facts[1024];
    char want[128];
    read_all(g->dir, "facts", facts, sizeof(facts));
    (void)snprintf(want, sizeof(want), "pid=%d ppid=%d pgid=%d sid=%d files=64\n", g->pids[0],
                   (int)getpid(), g->pids[0], g->pids[0]);
    assert_non_null(strstr(facts, want));
    assert_non_null(strstr(facts, "SigBlk:\t0000000000000000\n"));
    assert_non_null(strstr(facts, "SigIgn:\t0000000000000000\n"));
    /* dash keeps a copy of what it redirected at 10 while `exec` is no concern of ours: only 3 to 9
     * would be leaks. */
    for (char fd = '3'; fd <= '9'; fd++) {
        char leaked[4] = {' ', fd, ' ', '\0'};
        assert_null(strstr(strstr(facts, "fds="), leaked));
    }
    group_free(g);
}

static void test_output_goes_to_files_and_a_second_round_keeps_the_first(void **state)
{
    struct group *g = group_new();
    (void)state;
    struct shells *s = shells_new(g, 2, "echo out$LOCAL_RANK; echo err$LOCAL_RANK >&2");
    char path[2][80];
    (void)snprintf(path[0], sizeof(path[0]), "%s/stdout.log", g->dir);
    (void)snprintf(path[1], sizeof(path[1]), "%s/stderr.log", g->dir);
    const char *out[] = {path[0], "/dev/null"};
    const char *errors[] = {"/dev/null", path[1]};
    s->round.stdout_path = out;
    s->round.stderr_path = errors;
    for (int round = 0; round < 2; round++) {
        assert_int_equal(start(g, &s->round), 0);
        run_until_gone(g);
    }
    free(s);
    char text[64];
    read_all(g->dir, "stdout.log", text, sizeof(text));
    assert_string_equal(text, "out0\nout0\n");
    read_all(g->dir, "stderr.log", text, sizeof(text));
    assert_string_equal(text, "err1\nerr1\n");
    group_free(g);
}

/* One worker sleeps, the second one cannot start: what is said, and that the first one is ended. */
static void expect_start_failure(
    const char *program, mode_t mode, const char *content, int code, const char *words)
{
    struct group *g = group_new();
    char path[128];
    (void)snprintf(path, sizeof(path), "%s%s", program[0] == '/' ? "" : g->dir,
                   program[0] == '/' ? program : "/program");
    if (content != NULL) {
        int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, mode);
        assert_true(fd >= 0);
        assert_int_equal(write(fd, content, strlen(content)), (ssize_t)strlen(content));
        close(fd);
    }
    char *sleeper[] = {"/bin/sleep", "60", NULL};
    char *bad[] = {path, NULL};
    char *const *argvs[] = {sleeper, bad};
    char *const *envps[] = {environ, environ};
    struct work_round r = {.round = 1, .nproc = 2, .argv = argvs, .envp = envps};
    assert_int_equal(start(g, &r), code);
    assert_int_equal(g->failed, 1);
    if (strstr(g->err.msg, "worker 1") == NULL || strstr(g->err.msg, path) == NULL ||
        strstr(g->err.msg, words) == NULL)
        fail_msg("the sentence is: %s", g->err.msg);
    run_until_gone(g);
    assert_int_equal(g->exits, 1);
    assert_int_equal(g->exit[0].status, -SIGKILL);
    group_free(g);
}

static void test_start_failures_are_named(void **state)
{
    (void)state;
    expect_start_failure("/nonexistent/program", 0, NULL, -ENOENT, "No such file");
    expect_start_failure("", 0644, "#!/bin/sh\n", -EACCES, "Permission denied");
    expect_start_failure("", 0755, "this is no program\n", -ENOEXEC, "#! line");
    expect_start_failure("", 0755, "#! /nonexistent/python3 -u\n", -ENOENT,
                         "interpreter '/nonexistent/python3'");
    expect_start_failure("/", 0, NULL, -EACCES, "Permission denied");
}

static void test_a_file_that_cannot_be_opened_is_named(void **state)
{
    struct group *g = group_new();
    (void)state;
    struct shells *s = shells_new(g, 1, "exit 0");
    const char *out[] = {"/nonexistent/stdout.log"};
    s->round.stdout_path = out;
    assert_int_equal(start(g, &s->round), -ENOENT);
    assert_non_null(
        strstr(g->err.msg, "worker 0: cannot open its stdout file for '/nonexistent/stdout.log'"));
    run_until_gone(g);
    assert_int_equal(g->exits, 0);
    free(s);
    group_free(g);
}

/* A sleeper that daemonized: forked twice, a session of its own. $1: its name. `env -i` hides whose
 * it is. */
#define DAEMON(name, wipe)                                                                         \
    "(" wipe "setsid sh -c 'echo $$ > " name ".tmp; mv " name ".tmp " name                         \
    "; trap \"\" TERM HUP; while :; do sleep 60; done' > /dev/null 2>&1 &); "                      \
    "until [ -e " name " ]; do sleep 0.005; done; "

static void test_what_a_dead_worker_forked_does_not_live_on(void **state)
{
    struct group *g = group_new();
    (void)state;
    /* Worker 0 leaves a child in its group and a daemon and ends well, while worker 1 and its own
     * daemon live. */
    struct shells *s = shells_new(
        g, 2,
        "cd $D; if [ $LOCAL_RANK = 1 ]; then " DAEMON(
            "d1",
            "") ": > ready; while [ ! -e stop ]; do sleep 0.01; done; exit 0; fi; "
                "until [ -e ready ]; do sleep 0.005; done; sleep 60 & echo $! > child; " DAEMON(
                    "d0", "") "exit 0");
    assert_int_equal(start(g, &s->round), 0);
    char text[64];
    await_file(g, "d0");
    read_all(g->dir, "d0", text, sizeof(text));
    pid_t daemon_pid = (pid_t)strtol(text, NULL, 10);
    while (kill(daemon_pid, 0) == 0) /* Ends with the deadline's failure if it does not die. */
        uv_run(&g->loop, UV_RUN_ONCE);
    assert_int_equal(g->exits, 1);
    read_all(g->dir, "child", text, sizeof(text));
    while (kill((pid_t)strtol(text, NULL, 10), 0) == 0)
        uv_run(&g->loop, UV_RUN_ONCE);
    read_all(g->dir, "d1", text, sizeof(text));
    assert_int_equal(kill((pid_t)strtol(text, NULL, 10), 0),
                     0); /* The living worker's daemon is its own business. */
    char stop[128];
    (void)snprintf(stop, sizeof(stop), "%s/stop", g->dir);
    close(open(stop, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    run_until_gone(g);
    assert_int_equal(g->exit[1].status, 0);
    assert_dead(g->dir, "d1");
    free(s);
    group_free(g);
}

static void test_a_daemon_without_environment_goes_with_the_round(void **state)
{
    struct group *g = group_new();
    (void)state;
    run_shells(g, 1, "cd $D; " DAEMON("d", "env -i ") "exit 3");
    assert_int_equal(g->exit[0].status, 3);
    assert_dead(g->dir, "d");
    group_free(g);
}

static void test_kill_ends_everything(void **state)
{
    struct group *g = group_new();
    (void)state;
    /* One ignores SIGTERM, one is stopped, one has daemons, daemons of daemons among them. */
    struct shells *s = shells_new(
        g, 3,
        "cd $D; trap '' TERM; case $LOCAL_RANK in 1) : > r1; kill -STOP $$;; "
        "2) " DAEMON("a", "") DAEMON("b", "env -i ") "(setsid sh -c '(setsid sleep 60 &); sleep "
                                                     "60' &); : > r2;; *) : > r0;; esac; "
                                                     "while :; do sleep 60; done");
    assert_int_equal(start(g, &s->round), 0);
    await_file(g, "r0");
    await_file(g, "r1");
    await_file(g, "r2");
    work_signal(g->work, SIGTERM);
    uv_run(&g->loop, UV_RUN_NOWAIT);
    assert_int_equal(g->exits, 0);
    work_kill(g->work);
    run_until_gone(g);
    assert_int_equal(g->exits, 3);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(g->exit[i].status, -SIGKILL);
    assert_dead(g->dir, "a");
    assert_dead(g->dir, "b");
    free(s);
    group_free(g);
}

static void test_signal_reaches_groups_and_stopped_workers(void **state)
{
    struct group *g = group_new();
    (void)state;
    struct shells *s =
        shells_new(g, 2,
                   "cd $D; trap 'exit 17' INT; sh -c \"trap 'echo \\$\\$ > child.$LOCAL_RANK; "
                   "exit' INT; : > r$LOCAL_RANK; while :; do sleep 0.01; done\" & "
                   "until [ -e r$LOCAL_RANK ]; do sleep 0.005; done; [ $LOCAL_RANK = 0 ] || kill "
                   "-STOP $$; : > go$LOCAL_RANK; wait");
    assert_int_equal(start(g, &s->round), 0);
    await_file(g, "go0");
    await_file(g, "r1");
    siginfo_t si;
    assert_int_equal(waitid(P_PID, (id_t)g->pids[1], &si, WSTOPPED | WNOWAIT), 0);
    work_signal(g->work, SIGINT);
    run_until_gone(g);
    assert_int_equal(g->exit[0].status, 17);
    assert_int_equal(g->exit[1].status, 17);
    free(s);
    group_free(g);
}

static void test_a_round_after_a_kill_starts_afresh(void **state)
{
    struct group *g = group_new();
    (void)state;
    for (int round = 0; round < 3; round++) {
        struct shells *s = shells_new(g, 4, "exec sleep 60");
        assert_int_equal(start(g, &s->round), 0);
        work_kill(g->work);
        run_until_gone(g);
        free(s);
        run_shells(g, 4, "exit 5"); /* Linux 6.18 kills what starts in a cgroup that was killed. */
        for (uint32_t i = 0; i < 4; i++)
            assert_int_equal(g->exit[i].status, 5);
    }
    group_free(g);
}

static void test_kill_from_within_on_exit(void **state)
{
    struct group *g = group_new();
    (void)state;
    g->kill_after = 1;
    run_shells(g, 32, "[ $LOCAL_RANK = 7 ] && exit 9; sleep 60");
    assert_int_equal(g->order[0], 7);
    assert_int_equal(g->exit[7].status, 9);
    for (uint32_t i = 0; i < 32; i++)
        assert_int_equal(g->exit[i].status, i == 7 ? 9 : -SIGKILL);
    group_free(g);
}

static void test_orphans_that_end_are_reaped_while_workers_live(void **state)
{
    struct group *g = group_new();
    (void)state;
    struct shells *s = shells_new(
        g, 1, "cd $D; (setsid sh -c 'echo $$ > gone' &); while [ ! -e stop ]; do sleep 0.01; done");
    assert_int_equal(start(g, &s->round), 0);
    char text[64] = "";
    await_file(g, "gone");
    while (text[0] == '\0')
        read_all(g->dir, "gone", text, sizeof(text));
    while (kill((pid_t)strtol(text, NULL, 10), 0) == 0) /* A zombie answers: it must be reaped. */
        uv_run(&g->loop, UV_RUN_ONCE);
    assert_int_equal(g->exits, 0);
    work_kill(g->work);
    run_until_gone(g);
    free(s);
    group_free(g);
}

static int spawn_one(struct spawner *s,
                     const char *path,
                     int stdout_fd,
                     enum spawn_stage *ret_stage,
                     int32_t *ret_status)
{
    char *argv[] = {(char *)(uintptr_t)path, "-c", "echo here; exit 7", NULL};
    struct spawn_plan p = {.path = path,
                           .argv = argv,
                           .envp = environ,
                           .stdout_fd = stdout_fd,
                           .stderr_fd = -1,
                           .cgroup_fd = -1};
    pid_t pid = 0;
    int pidfd = -1;
    int r = spawn_start(s, &p, &pid, &pidfd, ret_stage);
    if (r < 0)
        return r;
    siginfo_t si = {0};
    assert_int_equal(waitid(P_PID, (id_t)pid, &si, WEXITED), 0);
    *ret_status = si.si_status;
    assert_true(fcntl(pidfd, F_GETFD) & FD_CLOEXEC);
    close(pidfd);
    return 0;
}

/* ThreadSanitizer makes a fork() of vfork(), and then a child cannot say why it failed. */
#ifdef __SANITIZE_THREAD__
#define WAYS 1
#else
#define WAYS 2
#endif

/* Both ways to start a process do the same; the second one is for where clone3 is refused. */
static void test_clone3_and_vfork_start_alike(void **state)
{
    (void)state;
    for (int way = 0; way < WAYS; way++) {
        struct spawner s;
        enum spawn_stage stage;
        int32_t status = -1;
        char text[16] = "";
        char path[] = "/tmp/work_spawn.XXXXXX";
        close(mkstemp(path));
        assert_int_equal(spawn_init(&s), 0);
        assert_int_equal(spawn_reserve_output(&s), 0);
        spawn_refresh(&s);
        s.no_clone3 = way == 1;
        assert_int_equal(spawn_one(&s, "/bin/sh", spawn_open_output(&s, 1, path), &stage, &status),
                         0);
        assert_int_equal(status, 7);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        assert_int_equal(read(fd, text, sizeof(text)), 5);
        assert_string_equal(text, "here\n");
        close(fd);
        unlink(path);
        assert_int_equal(spawn_one(&s, "/nonexistent", -1, &stage, &status), -ENOENT);
        assert_int_equal(stage, SPAWN_EXEC);
        assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
        assert_int_equal(s.no_clone3,
                         way == 1); /* Here clone3 works, or the first way tested nothing. */
        spawn_fini(&s);
    }
}

static void test_more_workers_than_open_files(void **state)
{
    struct group *g = group_new();
    (void)state;
    struct rlimit old;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    struct rlimit few = {.rlim_cur = 64, .rlim_max = old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    run_shells(g, 200, "exit 0");
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    group_free(g);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_exit_codes_and_signals_are_exact),
    cmocka_unit_test(test_many_instant_exits_again_and_again_none_is_lost),
    cmocka_unit_test(test_ends_are_told_in_the_order_they_happened),
    cmocka_unit_test(test_worker_is_a_clean_process),
    cmocka_unit_test(test_output_goes_to_files_and_a_second_round_keeps_the_first),
    cmocka_unit_test(test_start_failures_are_named),
    cmocka_unit_test(test_a_file_that_cannot_be_opened_is_named),
    cmocka_unit_test(test_what_a_dead_worker_forked_does_not_live_on),
    cmocka_unit_test(test_a_daemon_without_environment_goes_with_the_round),
    cmocka_unit_test(test_kill_ends_everything),
    cmocka_unit_test(test_signal_reaches_groups_and_stopped_workers),
    cmocka_unit_test(test_a_round_after_a_kill_starts_afresh),
    cmocka_unit_test(test_kill_from_within_on_exit),
    cmocka_unit_test(test_orphans_that_end_are_reaped_while_workers_live),
    cmocka_unit_test(test_clone3_and_vfork_start_alike),
    cmocka_unit_test(test_more_workers_than_open_files),
};

int main(int argc, char **argv)
{
    without_cgroup = argc > 1 && strcmp(argv[1], "no-cgroup") == 0;
    return cmocka_run_group_tests_name(without_cgroup ? "work_group without cgroup" : "work_group",
                                       tests, NULL, NULL);
}
