/* One rank with a communicator over NCCL, for tests: does what it is told and says how it went.
 *
 * nccl_ops [seconds=S] [device=D] [backend=B] WORD...
 *   open                    prints "open CODE SENTENCE" and ends with 1 if it failed
 *   all_reduce broadcast all_gather reduce_scatter barrier streams
 *   many                    all-reduces, more than are kept in flight
 *   wait                    for the last ticket, `seconds` at most
 *   abort                   with a reason
 *   cause                   prints "cause PEER CODE PHASE SENTENCE"
 *   close                   prints how many milliseconds it took
 *   stay                    prints "staying" and waits for the end of standard input */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <muster/comm.h>
#include <muster/cuda.h>

#define COUNT 8

struct rank {
    muster *m;
    muster_comm *c;
    struct muster_comm_options o;
    int64_t timeout_ns;
    muster_ticket ticket;
    float send[COUNT * 8];
    float recv[COUNT * 8];
};

static double ms_now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static int say(const char *what, int r, const struct muster_error *err)
{
    printf("%s %d %s\n", what, r, r < 0 ? err->text : "");
    return r;
}

static void check_own_part(const struct rank *k, const float *got, const char *what)
{
    for (int i = 0; i < COUNT; i++)
        if (got[i] != (float)(i + 1))
            printf("%s wrong at %d: %f\n", what, i, (double)got[i]);
}

static void run_operation(struct rank *k, const char *word)
{
    struct muster_error err = {0};
    muster_comm *c = k->c;
    size_t mine = (size_t)muster_comm_rank(c) * COUNT;
    int r = -1;
    for (size_t i = 0; i < COUNT; i++)
        k->send[i] = k->send[mine + i] = (float)(i + 1);
    memset(k->recv, 0, sizeof k->recv);
    if (strcmp(word, "all_reduce") == 0)
        r = muster_comm_all_reduce(c, k->send, COUNT, MUSTER_F32, MUSTER_SUM, &k->ticket, &err);
    else if (strcmp(word, "broadcast") == 0)
        r = muster_comm_broadcast(c, k->send, COUNT, MUSTER_F32, 0, &k->ticket, &err);
    else if (strcmp(word, "all_gather") == 0)
        r = muster_comm_all_gather(c, k->send, k->recv, COUNT, MUSTER_F32, &k->ticket, &err);
    else if (strcmp(word, "reduce_scatter") == 0)
        r = muster_comm_reduce_scatter(c, k->send, k->recv, COUNT, MUSTER_F32, MUSTER_MAX,
                                       &k->ticket, &err);
    say(word, r, &err);
    if (r == 0 && strcmp(word, "all_gather") == 0)
        check_own_part(k, k->recv + mine, word);
    if (r == 0 && strcmp(word, "reduce_scatter") == 0)
        check_own_part(k, k->recv, word);
}

static void run_many(struct rank *k)
{
    struct muster_error err = {0};
    int r = 0;
    for (int i = 0; i < 2500 && r == 0; i++)
        r = muster_comm_all_reduce(k->c, k->send, 1, MUSTER_F32, MUSTER_SUM, &k->ticket, &err);
    say("many", r, &err);
}

static void run_streams(struct rank *k)
{
    struct muster_error err = {0};
    int compute = 0; /* The stand-in takes any address. */
    say("wait_stream", muster_comm_wait_stream(k->c, &compute, &err), &err);
    run_operation(k, "all_reduce");
    say("stream_wait", muster_comm_stream_wait(k->c, k->ticket, &compute, &err), &err);
}

static void show_cause(struct rank *k)
{
    struct muster_cause cause;
    if (muster_comm_get_cause(k->c, &cause))
        printf("cause %d %d %d %s\n", (int)cause.peer, cause.code, (int)cause.phase, cause.text);
    else
        printf("cause none\n");
}

static void run_word(struct rank *k, const char *word)
{
    struct muster_error err = {0};
    double from = ms_now();
    if (strcmp(word, "open") == 0) {
        if (say("open", muster_comm_open(k->m, &k->o, &k->c, &err), &err) < 0)
            exit(1);
    } else if (strcmp(word, "many") == 0) {
        run_many(k);
    } else if (strcmp(word, "streams") == 0) {
        run_streams(k);
    } else if (strcmp(word, "barrier") == 0) {
        say(word, muster_comm_barrier(k->c, k->timeout_ns, &err), &err);
    } else if (strcmp(word, "wait") == 0) {
        say(word, muster_comm_wait(k->c, k->ticket, k->timeout_ns, &err), &err);
    } else if (strcmp(word, "abort") == 0) {
        muster_comm_abort(k->c, "the test says so");
    } else if (strcmp(word, "cause") == 0) {
        show_cause(k);
    } else if (strcmp(word, "close") == 0) {
        muster_comm_close(k->c);
        k->c = NULL;
        printf("close %.0f\n", ms_now() - from);
    } else if (strcmp(word, "stay") == 0) {
        printf("staying\n");
        while (getchar() != EOF) {
        }
    } else {
        run_operation(k, word);
    }
}

int main(int argc, char **argv)
{
    struct rank k = {.o = MUSTER_COMM_OPTIONS_INIT, .timeout_ns = -1};
    struct muster_error err = {0};
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    k.o.backend = "nccl";
    if (say("muster_open", muster_open(NULL, &k.m, &err), &err) < 0)
        return 1;
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "seconds=", 8) == 0)
            k.o.timeout_ns = k.timeout_ns = (int64_t)(strtol(argv[i] + 8, NULL, 10) * 1000000000L);
        else if (strncmp(argv[i], "device=", 7) == 0)
            k.o.device = (int)strtol(argv[i] + 7, NULL, 10);
        else if (strncmp(argv[i], "backend=", 8) == 0)
            k.o.backend = strcmp(argv[i] + 8, "any") == 0 ? NULL : argv[i] + 8;
        else
            run_word(&k, argv[i]);
    }
    if (k.c != NULL)
        printf("backend %s\n", muster_comm_backend(k.c));
    muster_comm_close(k.c);
    muster_close(k.m);
    return 0;
}
