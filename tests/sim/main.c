/* sim [--seed N] [--count N] [--jobs N] [-v]: run seeded worlds; print the first one that breaks,
 * with its story.
 * --seed N alone runs that one world twice and compares the stories' hashes: a seed replays to the
 * byte. */
#include <inttypes.h>
#include <stddef.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/parse.h"
#include "tests/sim/world.h"

struct settings {
    int64_t seed;
    int64_t count;
    int64_t jobs;
    bool story;
};

static int one(const struct settings *s)
{
    struct world_result a;
    struct world_result b;
    world_run(&(struct world_options){.seed = (uint64_t)s->seed, .trace = s->story ? stdout : NULL},
              &a);
    world_run(&(struct world_options){.seed = (uint64_t)s->seed}, &b);
    printf("seed %" PRId64 ": %s, %" PRIu64 " events, %u rounds, hash %016" PRIx64 "\n", s->seed,
           a.ok ? "ok" : a.what, a.events, a.rounds, a.hash);
    if (a.hash != b.hash) {
        printf("seed %" PRId64 " does not replay: hash %016" PRIx64 "\n", s->seed, b.hash);
        return 1;
    }
    return a.ok ? 0 : 1;
}

/* An assert in a core ends the process: say which seed it was. */
static volatile uint64_t seed_now;

static void on_abort(int signo)
{
    char line[96];
    (void)signo;
    int n = snprintf(line, sizeof line, "seed %" PRIu64 ": aborted\n", seed_now);
    if (n > 0)
        (void)!write(STDOUT_FILENO, line, (size_t)n);
}

static int many(const struct settings *s, int64_t first, int64_t step)
{
    uint64_t events = 0;
    uint64_t rounds = 0;
    uint64_t restarts = 0;
    uint64_t ended[2] = {0, 0};
    uint64_t stale = 0;
    uint64_t given_back = 0;
    uint64_t same_failures = 0;
    for (int64_t i = first; i < s->count; i += step) {
        struct world_result r;
        uint64_t seed = (uint64_t)(s->seed + i);
        seed_now = seed;
        world_run(&(struct world_options){.seed = seed}, &r);
        if (!r.ok) {
            printf("seed %" PRIu64 ": %s\n  again, with its story: sim --seed %" PRIu64 " -v\n",
                   seed, r.what, seed);
            return 1;
        }
        events += r.events;
        rounds += r.rounds;
        restarts += r.restarts;
        ended[0] += r.succeeded;
        ended[1] += r.failed;
        stale += r.stale;
        given_back += r.given_back;
        same_failures += r.same_failures;
    }
    printf("%" PRId64 " seeds from %" PRId64 " ok: %" PRIu64 " events, %" PRIu64 " rounds, %" PRIu64
           " server restarts, %" PRIu64 " jobs succeeded, %" PRIu64 " failed, %" PRIu64
           " of them as before; %" PRIu64 " budgets given back, %" PRIu64 " late messages\n",
           (s->count - first + step - 1) / step, s->seed, events, rounds, restarts, ended[0],
           ended[1], same_failures, given_back, stale);
    return 0;
}

static int in_parallel(const struct settings *s)
{
    int bad = 0;
    for (int64_t k = 0; k < s->jobs; k++) {
        pid_t pid = fork();
        if (pid == 0) {
            int r = many(s, k, s->jobs);
            fflush(stdout);
            _exit(r);
        }
        bad |= pid < 0;
    }
    int status = 0;
    while (wait(&status) > 0)
        bad |= status != 0;
    return bad;
}

int main(int argc, char **argv)
{
    struct settings s = {.seed = 1, .count = 0, .jobs = 1};
    static const struct {
        const char *name;
        size_t offset;
    } numbers[] = {{"--seed", offsetof(struct settings, seed)},
                   {"--count", offsetof(struct settings, count)},
                   {"--jobs", offsetof(struct settings, jobs)}};
    for (int i = 1; i < argc; i++) {
        struct mu_err err = {0};
        size_t k = 0;
        while (k < MU_COUNT(numbers) && strcmp(argv[i], numbers[k].name) != 0)
            k++;
        if (strcmp(argv[i], "-v") == 0) {
            s.story = true;
        } else if (k == MU_COUNT(numbers) || i + 1 == argc) {
            fprintf(stderr, "usage: sim [--seed N] [--count N] [--jobs N] [-v]\n");
            return 2;
        } else if (mu_parse_i64(argv[++i], 0, INT64_MAX / 2, numbers[k].name,
                                (int64_t *)(void *)((char *)&s + numbers[k].offset), &err) < 0) {
            fprintf(stderr, "sim: %s\n", err.msg);
            return 2;
        }
    }
    (void)setvbuf(stdout, NULL, _IOLBF, 0); /* An assert must not take the story along. */
    (void)signal(SIGABRT, on_abort);
    if (s.count == 0)
        return one(&s);
    return s.jobs > 1 ? in_parallel(&s) : many(&s, 0, 1);
}
