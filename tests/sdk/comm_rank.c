/* One rank of a communicator, for tests/blackbox/test_sdk_comm.py. It says on stdout what happens,
 * a line each; its environment is torchrun's.
 *
 *     open TIMEOUT_MS         open, close
 *     loop COUNT TIMEOUT_MS   all-reduces of COUNT floats, until one fails
 *     abort COUNT TIMEOUT_MS  the same, in which the last rank aborts instead
 *     many                    three communicators, a thread each
 *     again TIMES             open and close, and count what is left over
 *     fall HOW                all-reduces; in round r rank r-1 (modulo the world) ends, by "kill"
 * or "exit", and the others fail because of it */
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <muster/comm.h>
#include <muster/progress.h>

static void say_failed(const struct muster_error *err)
{
    printf("error code=%d %s\n", err->code, err->text);
    fflush(stdout);
    exit(1);
}

static long long now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static muster_comm *open_comm(muster *m, const char *name, int64_t timeout_ns)
{
    struct muster_comm_options o = MUSTER_COMM_OPTIONS_INIT;
    struct muster_error err = {0};
    muster_comm *c = NULL;
    o.backend = "tcp";
    o.name = name;
    o.timeout_ns = timeout_ns;
    if (muster_comm_open(m, &o, &c, &err) < 0)
        say_failed(&err);
    return c;
}

static void say_cause(muster_comm *c)
{
    struct muster_cause cause = {0};
    long long at = now_ns();
    (void)muster_comm_get_cause(c, &cause);
    printf("failed at=%lld peer=%d code=%d phase=%d %s\n", at, cause.peer, cause.code,
           (int)cause.phase, cause.text);
    fflush(stdout);
}

/* The others have begun, and wait: a rank that waits does so within milliseconds. */
static void abort_later(muster_comm *c)
{
    struct timespec t = {0, 50000000};
    nanosleep(&t, NULL);
    long long at = now_ns();
    muster_comm_abort(c, "it is time");
    printf("aborts at=%lld\n", at);
}

static void loop(muster *m, size_t count, int64_t timeout_ns, bool aborts)
{
    muster_comm *c = open_comm(m, NULL, 20000000000);
    struct muster_error err = {0};
    float *data = calloc(count, sizeof *data);
    muster_ticket t = 0;
    bool is_last = muster_comm_rank(c) + 1 == muster_comm_size(c);
    int r = muster_comm_barrier(c, 20000000000, &err);
    printf("ready\n");
    fflush(stdout);
    if (aborts && is_last)
        abort_later(c);
    while (r == 0) {
        r = muster_comm_all_reduce(c, data, count, MUSTER_F32, MUSTER_SUM, &t, &err);
        if (r == 0)
            r = muster_comm_wait(c, t, timeout_ns, &err);
    }
    say_cause(c);
    muster_comm_close(c);
    free(data);
}

struct own {
    muster_comm *c;
    int32_t base;
};

static void *reduce_often(void *arg)
{
    struct own *own = arg;
    int32_t size = (int32_t)muster_comm_size(own->c);
    for (int32_t i = 0; i < 200; i++) {
        static const size_t counts[] = {1, 100, 30000};
        size_t count = counts[i % 3];
        int32_t *data = malloc(count * sizeof *data);
        muster_ticket t = 0;
        struct muster_error err = {0};
        for (size_t k = 0; k < count; k++)
            data[k] = own->base + i;
        if (muster_comm_all_reduce(own->c, data, count, MUSTER_I32, MUSTER_SUM, &t, &err) < 0 ||
            muster_comm_wait(own->c, t, -1, &err) < 0)
            say_failed(&err);
        for (size_t k = 0; k < count; k++)
            if (data[k] != size * (own->base + i)) {
                printf("wrong: %d instead of %d\n", data[k], size * (own->base + i));
                exit(1);
            }
        free(data);
    }
    return NULL;
}

static void many(muster *m)
{
    static const char *const names[] = {"one", "two", "three"};
    struct own own[3];
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        own[i] = (struct own){open_comm(m, names[i], 20000000000), 1000 * i};
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, reduce_often, &own[i]);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 3; i++)
        muster_comm_close(own[i].c);
    printf("ok\n");
}

static int entries(const char *folder)
{
    DIR *d = opendir(folder);
    int n = 0;
    while (d != NULL && readdir(d) != NULL)
        n++;
    if (d != NULL)
        closedir(d);
    return n;
}

static int mappings(void)
{
    char line[512];
    int n = 0;
    FILE *f = fopen("/proc/self/maps", "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        n += strstr(line, "muster-comm") != NULL;
    if (f != NULL)
        fclose(f);
    return n;
}

static void again(muster *m, int times)
{
    int fds = 0, threads = 0;
    struct muster_error err = {0};
    for (int i = 0; i < times; i++) {
        muster_comm *c = open_comm(m, NULL, 20000000000);
        if (muster_comm_barrier(c, -1, &err) < 0)
            say_failed(&err);
        muster_comm_close(c);
        if (i == 0) {
            fds = entries("/proc/self/fd");
            threads = entries("/proc/self/task");
        }
    }
    printf("left fds=%d threads=%d mappings=%d\n", entries("/proc/self/fd") - fds,
           entries("/proc/self/task") - threads, mappings());
}

static void fall(muster *m, const char *how)
{
    const struct muster_env *env = muster_get_env(m);
    struct muster_error err = {0};
    muster_comm *c = open_comm(m, NULL, 20000000000);
    float x = 0;
    muster_ticket t = 0;
    for (int i = 0; i < 100000; i++) {
        if (i == 20 && env->rank == env->restart_count % env->world) {
            if (strcmp(how, "kill") == 0)
                raise(SIGKILL);
            _exit(7);
        }
        if (muster_comm_all_reduce(c, &x, 1, MUSTER_F32, MUSTER_SUM, &t, &err) < 0 ||
            muster_comm_wait(c, t, -1, &err) < 0)
            break;
    }
    muster_fail(m, err.text, NULL);
    _exit(1);
}

int main(int argc, char **argv)
{
    struct muster_error err = {0};
    muster *m = NULL;
    if (argc < 2 || muster_open(NULL, &m, &err) < 0)
        say_failed(&err);
    int64_t last_ms = argc > 2 ? strtoll(argv[argc - 1], NULL, 10) : 0;
    if (strcmp(argv[1], "open") == 0) {
        muster_comm_close(open_comm(m, NULL, last_ms * 1000000));
        printf("opened\n");
    } else if (argc > 3) {
        loop(m, strtoul(argv[2], NULL, 10), last_ms * 1000000, strcmp(argv[1], "abort") == 0);
    } else if (strcmp(argv[1], "many") == 0) {
        many(m);
    } else if (strcmp(argv[1], "again") == 0) {
        again(m, (int)last_ms);
    } else if (strcmp(argv[1], "fall") == 0 && argc > 2) {
        fall(m, argv[2]);
    }
    muster_close(m);
    printf("end\n");
    return 0;
}
