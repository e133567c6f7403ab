/* The communicator's all-reduce, timed. usage: comm_load BATCHES BYTES..., one process a rank, with
 * RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT as under torchrun. Rank 0 prints one JSON line for
 * each size: nanoseconds of one all-reduce (float, sum) in each batch, as gloo_yardstick and
 * mpi_yardstick do.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <muster/comm.h>

#include "base/clock.h"
#include "bench/bench.h"

static void need(int r, const struct muster_error *err)
{
    if (r < 0)
        bench_fail("%s", err->text);
}

/* Some milliseconds for a batch, so that one interruption does not decide it. */
static size_t batch_count(size_t bytes)
{
    size_t n = ((size_t)4 << 20) / (bytes + 4096);
    return n < 2 ? 2 : n > 200 ? 200 : n;
}

static void run(muster_comm *c, float *data, size_t count, size_t times)
{
    struct muster_error err = {0};
    muster_ticket t = 0;
    for (size_t i = 0; i < times; i++) {
        need(muster_comm_all_reduce(c, data, count, MUSTER_F32, MUSTER_SUM, &t, &err), &err);
        need(muster_comm_wait(c, t, -1, &err), &err);
    }
}

static void measure(muster_comm *c, size_t bytes, size_t batches)
{
    size_t count = bytes / sizeof(float), times = batch_count(bytes);
    float *data = calloc(count + 1, sizeof *data);
    if (data == NULL)
        bench_fail("no memory for %zu bytes", bytes);
    run(c, data, count, (times + 1) / 2);
    char line[4096];
    size_t used = 0;
    for (size_t b = 0; b < batches && used < sizeof line; b++) {
        int64_t begun = mu_now_ns();
        run(c, data, count, times);
        int64_t each = (mu_now_ns() - begun) / (int64_t)times;
        int n =
            snprintf(line + used, sizeof line - used, "%s%lld", b == 0 ? "" : ",", (long long)each);
        used += n < 0 ? 0 : (size_t)n;
    }
    if (muster_comm_rank(c) == 0) {
        printf("{\"name\":\"muster\",\"bytes\":%zu,\"ns\":[%s]}\n", bytes, line);
        (void)fflush(stdout);
    }
    free(data);
}

int main(int argc, char **argv)
{
    struct muster_error err = {0};
    struct muster_comm_options o = MUSTER_COMM_OPTIONS_INIT;
    muster *m = NULL;
    muster_comm *c = NULL;
    if (argc < 3)
        bench_fail("usage: comm_load BATCHES BYTES...");
    o.backend = "tcp";
    o.timeout_ns = 60 * MU_NS_PER_S;
    need(muster_open(NULL, &m, &err), &err);
    need(muster_comm_open(m, &o, &c, &err), &err);
    size_t batches = strtoul(argv[1], NULL, 10);
    for (int i = 2; i < argc; i++)
        measure(c, strtoul(argv[i], NULL, 10), batches);
    muster_comm_close(c);
    muster_close(m);
    return 0;
}
