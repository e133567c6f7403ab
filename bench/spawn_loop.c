/* The floor that launching is measured against: posix_spawn N workers with the arguments and
 * environment a launcher gives them, then wait for all.
 *
 * spawn_loop [--begin] N PROGRAM ARGS...
 * --begin prints CLOCK_MONOTONIC before the first spawn. Exits with 0 when every worker did,
 * else 1. */
#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/parse.h"
#include "bench/bench.h"

/* What torchrun sets: names whose values are a worker's own, and those all share. */
static const char *const own[] = {"RANK", "LOCAL_RANK", "ROLE_RANK"};
static const char *const shared[] = {
    "GROUP_RANK=0",
    "ROLE_NAME=default",
    "GROUP_WORLD_SIZE=1",
    "MASTER_ADDR=localhost",
    "MASTER_PORT=29500",
    "TORCHELASTIC_RESTART_COUNT=0",
    "TORCHELASTIC_MAX_RESTARTS=0",
    "TORCHELASTIC_RUN_ID=00000000-0000-0000-0000-000000000000",
    "TORCHELASTIC_USE_AGENT_STORE=True",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING=1",
    "TORCHELASTIC_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT",
    "TORCHELASTIC_ERROR_FILE=/tmp/torchelastic_12345678/none_12345678/attempt_0/0/error.json",
    "OMP_NUM_THREADS=1",
};

static char **make_environment(uint32_t worker_count)
{
    size_t n = 0;
    char text[64];
    while (environ[n] != NULL)
        n++;
    size_t slots = n + MU_COUNT(own) + MU_COUNT(shared) + 3;
    char **env = mu_zalloc(mu_mem_default(), slots * sizeof *env);
    if (env == NULL)
        bench_fail("no memory");
    size_t at = MU_COUNT(own); /* The first ones are written anew for each worker. */
    for (size_t i = 0; i < MU_COUNT(shared); i++)
        env[at++] = mu_strdup(mu_mem_default(), shared[i]);
    (void)snprintf(text, sizeof text, "WORLD_SIZE=%u", worker_count);
    env[at++] = mu_strdup(mu_mem_default(), text);
    (void)snprintf(text, sizeof text, "LOCAL_WORLD_SIZE=%u", worker_count);
    env[at++] = mu_strdup(mu_mem_default(), text);
    for (size_t i = 0; i < n; i++)
        env[at++] = environ[i];
    return env;
}

static void spawn(uint32_t rank, char **argv, char **env)
{
    char text[MU_COUNT(own)][32];
    pid_t pid = 0;
    for (size_t i = 0; i < MU_COUNT(own); i++) {
        (void)snprintf(text[i], sizeof text[i], "%s=%u", own[i], rank);
        env[i] = text[i];
    }
    int r = posix_spawnp(&pid, argv[0], NULL, NULL, argv, env);
    if (r != 0)
        bench_fail("spawn '%s': %s", argv[0], strerror(r));
    for (size_t i = 0; i < MU_COUNT(own); i++)
        env[i] = NULL;
}

int main(int argc, char **argv)
{
    struct mu_err err;
    uint32_t n = 0;
    int at = 1;
    bool begin = argc > 1 && strcmp(argv[1], "--begin") == 0;
    if (begin)
        at++;
    if (argc < at + 2)
        bench_fail("usage: spawn_loop [--begin] N PROGRAM ARGS...");
    if (mu_parse_u32(argv[at], 1, 65536, "N", &n, &err) < 0)
        bench_fail("%s", err.msg);
    char **env = make_environment(n);
    if (begin) {
        (void)printf("%lld\n", (long long)mu_now_ns());
        (void)fflush(stdout);
    }
    for (uint32_t i = 0; i < n; i++)
        spawn(i, argv + at + 1, env);
    int failed = 0;
    for (uint32_t i = 0; i < n; i++) {
        int status = 0;
        if (wait(&status) < 0)
            bench_fail("wait: %s", strerror(errno));
        failed += status != 0;
    }
    return failed != 0;
}
