/* One rank of a small model whose gradients are known, for tests of the reducer on a real
 * communicator. Prints "rank R: ..." lines.
 *
 *     ddp_ranks train f32|f64    steps with gradients ready in another order on each rank and step;
 *                                checks every averaged value and that all ranks stay equal
 *     ddp_ranks accumulate       two micro-batches a step
 *     ddp_ranks shape            rank 1 has another shape
 *     ddp_ranks drift            the last rank changes one bit
 *     ddp_ranks die              rank 1 ends in the middle of a step */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <muster/ddp.h>
#include <muster/progress.h>

#define PARAMS 7
static const char *const names[PARAMS] = {"c1.w", "c1.b", "c2.w", "none", "c2.b", "fc.w", "fc.b"};
static const size_t sizes[PARAMS] = {288, 32, 18432, 0, 64, 40000, 10};

struct run {
    muster *m;
    muster_comm *comm;
    muster_ddp *ddp;
    uint32_t rank;
    uint32_t world;
    enum muster_dtype dtype;
    struct muster_tensor params[PARAMS];
    struct muster_error err;
};

static int say(const struct run *r, const char *text)
{
    if (text == r->err.text)
        (void)muster_fail(r->m, text, NULL); /* First: what follows is news for others. */
    (void)printf("rank %u: %s\n", r->rank, text);
    (void)fflush(stdout);
    return text == r->err.text ? 1 : 0;
}

static void store(const struct run *r, void *p, size_t k, double v)
{
    if (r->dtype == MUSTER_F32)
        ((float *)p)[k] = (float)v;
    else
        ((double *)p)[k] = v;
}

static double load(const struct run *r, const void *p, size_t k)
{
    return r->dtype == MUSTER_F32 ? (double)((const float *)p)[k] : ((const double *)p)[k];
}

/* Small whole numbers times the world's size: their mean is exact, in any order of summing. */
static double gradient_of(const struct run *r, uint32_t rank, size_t i, size_t k, unsigned step)
{
    return (double)r->world * (double)((k * 7 + i * 3 + rank * 5 + step) % 101);
}

static double mean_of(const struct run *r, size_t i, size_t k, unsigned step)
{
    double sum = 0;
    for (uint32_t rank = 0; rank < r->world; rank++)
        sum += gradient_of(r, rank, i, k, step);
    return sum / r->world;
}

static int write_gradient(struct run *r, size_t i, unsigned step, double part)
{
    void *g = muster_ddp_gradient(r->ddp, i);
    for (size_t k = 0; k < sizes[i]; k++)
        store(r, g, k, part * gradient_of(r, r->rank, i, k, step));
    return muster_ddp_ready(r->ddp, i, &r->err);
}

/* The averages are what they should be; the parameters move by them. */
static int update(struct run *r, const struct muster_bucket *b, unsigned step, double times)
{
    for (size_t i = b->first; i < b->first + b->count; i++) {
        const void *g = muster_ddp_gradient(r->ddp, i);
        for (size_t k = 0; k < sizes[i]; k++) {
            double got = load(r, g, k);
            if (got != times * mean_of(r, i, k, step)) {
                (void)snprintf(r->err.text, sizeof r->err.text, "%s[%zu] is %g, not %g", names[i],
                               k, got, times * mean_of(r, i, k, step));
                return -1;
            }
            store(r, r->params[i].value, k, load(r, r->params[i].value, k) - got / 128);
        }
    }
    return 0;
}

static int take_buckets(struct run *r, unsigned step, double times)
{
    struct muster_bucket b;
    int got = 0;
    while ((got = muster_ddp_next(r->ddp, &b, &r->err)) == 1) {
        if (update(r, &b, step, times) < 0)
            return -1;
    }
    return got;
}

static int train(struct run *r)
{
    char text[80];
    uint64_t hash = 0;
    for (unsigned step = 0; step < 20; step++) {
        for (size_t n = 0; n < PARAMS; n++) {
            size_t i = (PARAMS - 1 - n + (size_t)r->rank * step) % PARAMS;
            if (write_gradient(r, i, step, 1) < 0)
                return say(r, r->err.text);
        }
        if (take_buckets(r, step, 1) < 0)
            return say(r, r->err.text);
    }
    if (muster_ddp_check_equal(r->ddp, &hash, &r->err) < 0)
        return say(r, r->err.text);
    (void)snprintf(text, sizeof text, "equal %016llx in %zu buckets", (unsigned long long)hash,
                   muster_ddp_bucket_count(r->ddp));
    return say(r, text);
}

static int accumulate(struct run *r)
{
    for (unsigned step = 0; step < 3; step++) {
        muster_ddp_no_sync(r->ddp, true);
        for (size_t i = PARAMS; i-- > 0;) {
            if (write_gradient(r, i, step, 1) < 0)
                return say(r, r->err.text);
        }
        muster_ddp_no_sync(r->ddp, false);
        for (size_t i = PARAMS; i-- > 0;) { /* The second micro-batch doubles them. */
            void *g = muster_ddp_gradient(r->ddp, i);
            for (size_t k = 0; k < sizes[i]; k++)
                store(r, g, k, 2 * load(r, g, k));
            if (muster_ddp_ready(r->ddp, i, &r->err) < 0)
                return say(r, r->err.text);
        }
        if (take_buckets(r, step, 2) < 0)
            return say(r, r->err.text);
    }
    return say(r, "accumulated");
}

static int drift(struct run *r)
{
    if (muster_ddp_check_equal(r->ddp, NULL, &r->err) < 0)
        return say(r, r->err.text);
    if (r->rank == r->world - 1)
        ((unsigned char *)r->params[4].value)[101] ^= 0x10;
    return muster_ddp_check_equal(r->ddp, NULL, &r->err) < 0 ? say(r, r->err.text)
                                                             : say(r, "nothing found");
}

static int die(struct run *r)
{
    sigset_t term; /* The agent ends us for rank 1's failure: not before we have told ours. */
    (void)sigemptyset(&term);
    (void)sigaddset(&term, SIGTERM);
    (void)sigprocmask(SIG_BLOCK, &term, NULL);
    if (muster_comm_barrier(r->comm, -1, &r->err) < 0) /* All have come so far. */
        return say(r, r->err.text);
    for (size_t i = PARAMS; i-- > 0;) {
        if (r->rank == 1 && i == 2)
            _exit(7);
        if (write_gradient(r, i, 0, 1) < 0)
            return say(r, r->err.text);
    }
    return take_buckets(r, 0, 1) < 0 ? say(r, r->err.text) : say(r, "nothing failed");
}

/* Every rank starts from values of its own; rank 0's must be everybody's after open. */
static int build(struct run *r, bool other_shape)
{
    struct muster_ddp_options o = MUSTER_DDP_OPTIONS_INIT;
    size_t element = muster_dtype_bytes(r->dtype);
    o.bucket_bytes = 64 << 10;
    o.first_bucket_bytes = 4 << 10;
    for (size_t i = 0; i < PARAMS; i++) {
        size_t count = sizes[i] + (other_shape && i == 2 ? 1 : 0);
        r->params[i] = (struct muster_tensor){names[i], calloc(count + 1, element), count};
        for (size_t k = 0; k < count; k++)
            store(r, r->params[i].value, k, (double)(r->rank * 1000 + i * 10 + k % 7));
    }
    if (muster_ddp_open(r->comm, r->params, PARAMS, r->dtype, &o, &r->ddp, &r->err) < 0)
        return -1;
    for (size_t i = 0; i < PARAMS; i++) {
        for (size_t k = 0; k < sizes[i]; k++) {
            if (load(r, r->params[i].value, k) != (double)(i * 10 + k % 7))
                return snprintf(r->err.text, sizeof r->err.text, "%s is not rank 0's", names[i]) *
                       -1;
        }
    }
    return 0;
}

static int work(struct run *r, const char *what)
{
    if (build(r, strcmp(what, "shape") == 0 && r->rank == 1) < 0)
        return say(r, r->err.text);
    if (strcmp(what, "train") == 0)
        return train(r);
    if (strcmp(what, "accumulate") == 0)
        return accumulate(r);
    if (strcmp(what, "drift") == 0)
        return drift(r);
    return strcmp(what, "die") == 0 ? die(r) : say(r, "nothing found");
}

int main(int argc, char **argv)
{
    static struct run r; /* Zero. */
    if (argc < 2)
        return 2;
    r.dtype = argc > 2 && strcmp(argv[2], "f64") == 0 ? MUSTER_F64 : MUSTER_F32;
    struct muster_comm_options o = MUSTER_COMM_OPTIONS_INIT;
    o.backend = "tcp";
    if (muster_open(NULL, &r.m, &r.err) < 0 || muster_comm_open(r.m, &o, &r.comm, &r.err) < 0) {
        (void)printf("%s\n", r.err.text);
        return 1;
    }
    r.rank = muster_comm_rank(r.comm);
    r.world = muster_comm_size(r.comm);
    int status = work(&r, argv[1]);
    muster_ddp_close(r.ddp);
    muster_comm_close(r.comm);
    muster_close(r.m);
    for (size_t i = 0; i < PARAMS; i++)
        free(r.params[i].value);
    return status;
}
