/* Storms and figures, too long for every day.
 *   work_storm storm RUNS [NPROC]   RUNS times NPROC workers that end at once, all kinds of ends;
 * each status must be exact. work_storm figures [REPEATS]    launching no-ops, side by side with a
 * bare posix_spawn() loop in the same run. work_storm launch NPROC [none|alone]  one whole
 * launcher: warden, plan, folders, workers, clean-up. For outer stopwatches. */
#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/workers/plan.h"
#include "agent/workers/warden.h"
#include "agent/workers/work.h"
#include "base/clock.h"

extern char **environ;

#define KINDS 5

static char *kinds[KINDS][4] = {{"/bin/true", NULL},
                                {"/bin/false", NULL},
                                {"/bin/sh", "-c", "kill -9 $$", NULL},
                                {"/bin/sh", "-c", "exit 255", NULL},
                                {"/bin/sh", "-c", "(setsid sleep 60 &); exit 3", NULL}};
static const int32_t ends[KINDS] = {0, 1, -SIGKILL, 255, 3};

struct storm {
    uv_loop_t loop;
    uv_timer_t deadline;
    struct work *work;
    uint32_t told[MU_WORKERS_MAX];
    uint32_t exits;
    uint32_t wrong;
    bool mixed;
    bool gone;
};

/* Most are no-ops, whose storm is the densest. */
static int kind_of(const struct storm *s, uint32_t i)
{
    if (!s->mixed)
        return 0;
    return i % 16 < 8     ? 0
           : i % 16 < 12  ? 1
           : i % 16 == 12 ? 2
           : i % 16 == 13 ? 3
           : i % 64 == 14 ? 4
                          : 0;
}

static void on_exit_event(void *arg, const struct work_exit *e)
{
    struct storm *s = arg;
    s->exits++;
    if (s->told[e->local_rank]++ > 0 || e->status != ends[kind_of(s, e->local_rank)])
        s->wrong++;
}

static void on_all_gone(void *arg)
{
    struct storm *s = arg;
    s->gone = true;
    uv_stop(&s->loop);
}

static void on_deadline(uv_timer_t *t)
{
    struct storm *s = t->data;
    char left[512];
    work_describe_left(s->work, left, sizeof(left));
    (void)printf("hang: %u exits, left: %s\n", s->exits, left);
    exit(1);
}

static void storm_init(struct storm *s, bool cgroup)
{
    struct mu_err err;
    struct work_events events = {.arg = s, .on_exit = on_exit_event, .on_all_gone = on_all_gone};
    (void)uv_loop_init(&s->loop);
    if (work_new(&s->loop, &events, &s->work, &err) < 0) {
        (void)printf("%s\n", err.msg);
        exit(1);
    }
    if (!cgroup)
        work_drop_cgroup(s->work);
    (void)uv_timer_init(&s->loop, &s->deadline);
    s->deadline.data = s;
}

static void storm_fini(struct storm *s)
{
    work_close(s->work, NULL, NULL);
    uv_close((uv_handle_t *)&s->deadline, NULL);
    (void)uv_run(&s->loop, UV_RUN_DEFAULT);
    (void)uv_loop_close(&s->loop);
}

/* Start and wait for the end. Returns the time that starting took. */
static int64_t storm_round(struct storm *s, uint32_t nproc)
{
    char *const *argv[MU_WORKERS_MAX];
    char *const *envp[MU_WORKERS_MAX];
    int32_t pids[MU_WORKERS_MAX];
    uint32_t failed = 0;
    struct mu_err err;
    for (uint32_t i = 0; i < nproc; i++) {
        argv[i] = kinds[kind_of(s, i)];
        envp[i] = environ;
    }
    struct work_round r = {.round = 1, .nproc = nproc, .argv = argv, .envp = envp};
    s->gone = false;
    s->exits = 0;
    memset(s->told, 0, sizeof(s->told));
    (void)uv_timer_start(&s->deadline, on_deadline, 60000, 0);
    int64_t start = mu_now_ns();
    if (work_start(s->work, &r, pids, &failed, &err) < 0) {
        (void)printf("%s\n", err.msg);
        exit(1);
    }
    int64_t took = mu_now_ns() - start;
    while (!s->gone)
        (void)uv_run(&s->loop, UV_RUN_DEFAULT);
    (void)uv_timer_stop(&s->deadline);
    if (s->exits != nproc)
        s->wrong++;
    return took;
}

static int run_storm(int runs, uint32_t nproc)
{
    static struct storm s = {.mixed = true};
    int64_t start = mu_now_ns();
    storm_init(&s, true);
    for (int i = 0; i < runs; i++)
        (void)storm_round(&s, nproc);
    bool clean = waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD;
    storm_fini(&s);
    (void)printf("%d storms of %u: %u wrong, %s, %.1f s\n", runs, nproc, s.wrong,
                 clean ? "nothing left" : "something left", (double)(mu_now_ns() - start) / 1e9);
    return s.wrong == 0 && clean ? 0 : 1;
}

/* --- figures --- */

struct figure {
    double start_us; /* Per worker, the best of all repeats. */
    double total_us;
};

static void keep_best(struct figure *f, int64_t start_ns, int64_t total_ns, uint32_t nproc)
{
    double s = (double)start_ns / 1e3 / nproc;
    double t = (double)total_ns / 1e3 / nproc;
    f->start_us = f->start_us > 0 && f->start_us < s ? f->start_us : s;
    f->total_us = f->total_us > 0 && f->total_us < t ? f->total_us : t;
}

static void bare_loop(struct figure *f, uint32_t nproc)
{
    pid_t pids[MU_WORKERS_MAX];
    int64_t start = mu_now_ns();
    for (uint32_t i = 0; i < nproc; i++)
        (void)posix_spawn(&pids[i], kinds[0][0], NULL, NULL, kinds[0], environ);
    int64_t started = mu_now_ns();
    for (uint32_t i = 0; i < nproc; i++)
        (void)waitpid(pids[i], NULL, 0);
    keep_best(f, started - start, mu_now_ns() - start, nproc);
}

/* With all that a launch needs beside: group made, cgroup made and removed. */
static void by_group(struct figure *f, uint32_t nproc, bool cgroup)
{
    static struct storm s;
    s = (struct storm){.mixed = false};
    int64_t start = mu_now_ns();
    storm_init(&s, cgroup);
    int64_t took = storm_round(&s, nproc);
    storm_fini(&s);
    keep_best(f, took, mu_now_ns() - start, nproc);
}

static void print_figure(const char *name, const struct figure *f, const struct figure *bare)
{
    (void)printf("  %-20s start %6.1f us  whole %6.1f us each  %.2f\n", name, f->start_us,
                 f->total_us, f->total_us / bare->total_us);
}

static int run_figures(int repeats)
{
    static const uint32_t sizes[] = {1, 8, 64, 256};
    for (size_t i = 0; i < MU_COUNT(sizes); i++) {
        struct figure bare = {0};
        struct figure with = {0};
        struct figure without = {0};
        for (int k = 0; k < repeats; k++) {
            bare_loop(&bare, sizes[i]);
            by_group(&with, sizes[i], true);
            by_group(&without, sizes[i], false);
        }
        (void)printf("%u no-ops, best of %d\n", sizes[i], repeats);
        print_figure("posix_spawn loop", &bare, &bare);
        print_figure("with a cgroup", &with, &bare);
        print_figure("without", &without, &bare);
    }
    return 0;
}

/* --- a whole launcher --- */

struct launcher {
    uint32_t nproc;
    bool bare;
};

static int launcher_main(struct warden *w, void *arg)
{
    static struct storm s;
    const struct launcher *l = arg;
    struct mu_err err;
    struct plan *p = NULL;
    struct work_round r;
    int32_t pids[MU_WORKERS_MAX];
    uint32_t failed = 0;
    struct plan_config c = {.nproc = l->nproc,
                            .role = "default",
                            .run_id = "none",
                            .kind = PLAN_PLAIN,
                            .program = "/bin/true",
                            .signals_to_handle = "SIGTERM",
                            .environment = environ};
    struct plan_round round = {.node_count = 1,
                               .world = l->nproc,
                               .role_world = l->nproc,
                               .lead_addr = "n1",
                               .lead_port = 1};
    storm_init(&s, !l->bare);
    if (w != NULL) {
        warden_note_cgroup(w, work_cgroup(s.work));
        (void)warden_watch(w, &s.loop, on_all_gone, &s);
    }
    if (plan_new(&c, &p, &err) < 0 || plan_build(p, &round, &r, &err) < 0 ||
        plan_make_folders(p, &err) < 0 || work_start(s.work, &r, pids, &failed, &err) < 0) {
        (void)printf("%s\n", err.msg);
        return 1;
    }
    while (!s.gone)
        (void)uv_run(&s.loop, UV_RUN_DEFAULT);
    plan_cleanup(p);
    plan_free(p);
    if (w != NULL)
        warden_unwatch(w);
    storm_fini(&s);
    return s.wrong == 0 && s.exits == l->nproc ? 0 : 1;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    int n = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 20;
    if (strcmp(what, "storm") == 0 && n > 0)
        return run_storm(n, argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 256);
    if (strcmp(what, "figures") == 0 && n > 0)
        return run_figures(n);
    if (strcmp(what, "launch") == 0 && n > 0 && n <= MU_WORKERS_MAX) {
        struct launcher l = {.nproc = (uint32_t)n,
                             .bare = argc > 3 && strcmp(argv[3], "none") == 0};
        bool alone = argc > 3 &&
                     strcmp(argv[3], "alone") == 0; /* What the warden costs is the difference. */
        return alone ? launcher_main(NULL, &l) : warden_run("work_storm", launcher_main, &l);
    }
    if (strcmp(what, "bare") == 0 && n > 0 && n <= MU_WORKERS_MAX) {
        struct figure f = {0};
        bare_loop(&f, (uint32_t)n);
        return 0;
    }
    (void)fprintf(stderr, "usage: work_storm storm RUNS [NPROC] | figures [REPEATS] | launch NPROC "
                          "[none] | bare NPROC\n");
    return 2;
}
