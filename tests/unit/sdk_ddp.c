/* worker-sdk/src/ddp/ddp.c and ddp_check.c: what the reducer hands to a communicator, when, and
 * what it says. The communicator is a fake: its peers hold what this rank holds, unless a test says
 * else.
 */
#include "tests/unit/unit.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "worker-sdk/src/comm/comm.h"
#include "worker-sdk/src/ddp/ddp.h"

/* --- a communicator whose peers are made up --- */

struct muster_comm {
    uint32_t size;
    muster_ticket last;
    char log[1024];  /* What was asked, in order: "reduce 48, wait 3, " */
    int fail_reduce; /* The n-th all-reduce is refused; 0: none. */
    int fail_wait;   /* The n-th wait fails. */
    int reduces;
    int waits;
    bool aborted;
    bool knows_mean;
    ptrdiff_t reach; /* From an address of the caller to the memory behind it. */
    /* What rank `rank` holds in the n-th gathering, where this rank holds `mine`. */
    uint64_t (*peer)(uint32_t rank, int gathering, size_t at, uint64_t mine);
    int gatherings;
};

static void note(muster_comm *c, const char *what, uint64_t n)
{
    size_t used = strlen(c->log);
    (void)snprintf(c->log + used, sizeof c->log - used, "%s %lu, ", what, (unsigned long)n);
}

size_t muster_dtype_bytes(enum muster_dtype t)
{
    return t == MUSTER_U8 ? 1 : t == MUSTER_I32 || t == MUSTER_F32 ? 4 : 8;
}

uint32_t muster_comm_rank(const muster_comm *c)
{
    (void)c;
    return 0;
}

uint32_t muster_comm_size(const muster_comm *c)
{
    return c->size;
}

static int refuse(struct muster_error *err, int code, const char *text)
{
    if (err != NULL) {
        err->code = code;
        (void)snprintf(err->text, sizeof err->text, "%s", text);
    }
    return code;
}

int muster_comm_all_reduce(muster_comm *c,
                           void *buf,
                           size_t count,
                           enum muster_dtype t,
                           enum muster_op op,
                           muster_ticket *ret,
                           struct muster_error *err)
{
    assert_int_equal(op, MUSTER_SUM);
    if (++c->reduces == c->fail_reduce)
        return refuse(err, -EPIPE, "rank 2 is gone");
    float *f = (void *)((char *)buf + c->reach);
    double *d = (void *)f;
    for (size_t i = 0; i < count; i++) {
        if (t == MUSTER_F32)
            f[i] *= (float)c->size;
        else
            d[i] *= (double)c->size;
    }
    note(c, "reduce", count);
    *ret = ++c->last;
    return 0;
}

bool comm_knows_mean(const muster_comm *c)
{
    return c->knows_mean;
}

/* The peers hold what this rank holds: it stays. */
int comm_all_reduce_mean(muster_comm *c,
                         void *buf,
                         size_t count,
                         enum muster_dtype t,
                         muster_ticket *ret,
                         struct muster_error *err)
{
    (void)buf;
    (void)t;
    if (++c->reduces == c->fail_reduce)
        return refuse(err, -EPIPE, "rank 2 is gone");
    note(c, "mean", count);
    *ret = ++c->last;
    return 0;
}

int muster_comm_broadcast(muster_comm *c,
                          void *buf,
                          size_t count,
                          enum muster_dtype t,
                          uint32_t root,
                          muster_ticket *ret,
                          struct muster_error *err)
{
    (void)buf;
    (void)t;
    (void)err;
    assert_int_equal(root, 0);
    note(c, "broadcast", count);
    *ret = ++c->last;
    return 0;
}

int muster_comm_all_gather(muster_comm *c,
                           const void *send,
                           void *recv,
                           size_t count,
                           enum muster_dtype t,
                           muster_ticket *ret,
                           struct muster_error *err)
{
    (void)err;
    assert_int_equal(t, MUSTER_I64);
    const uint64_t *mine = (const void *)((const char *)send + c->reach);
    uint64_t *all = (void *)((char *)recv + c->reach);
    for (uint32_t rank = 1; rank < c->size; rank++) {
        for (size_t i = 0; i < count; i++)
            all[rank * count + i] =
                c->peer == NULL ? mine[i] : c->peer(rank, c->gatherings, i, mine[i]);
    }
    c->gatherings++;
    *ret = ++c->last;
    return 0;
}

int muster_comm_wait(muster_comm *c, muster_ticket t, int64_t timeout_ns, struct muster_error *err)
{
    (void)timeout_ns;
    if (c->aborted)
        return refuse(err, -ECANCELED, "aborted");
    if (++c->waits == c->fail_wait)
        return refuse(err, -ETIMEDOUT, "rank 1 is late");
    note(c, "wait", t);
    return 0;
}

void muster_comm_abort(muster_comm *c, const char *why)
{
    (void)why;
    c->aborted = true;
}

/* --- a model --- */

#define PARAMS 6
/* Elements; padded to 16 (64 bytes): 16, 48, 16, 64, 16, 16. */
static const size_t counts[PARAMS] = {3, 40, 16, 64, 1, 10};
static const char *const names[PARAMS] = {"c1.w", "c1.b", "c2.w", "c2.b", "fc.w", "fc.b"};

struct model {
    muster_comm comm;
    muster_ddp *ddp;
    struct muster_tensor params[PARAMS];
    double values[PARAMS][64];
    struct muster_error err;
};

/* First bucket 128 bytes, the others 256: {5,4} {3} {2,1} {0}, for 3 alone is 256 bytes. */
static const struct muster_ddp_options small = {
    .size = sizeof small, .bucket_bytes = 256, .first_bucket_bytes = 128, .timeout_ns = 1000};

static int open_model(struct model *m, uint32_t world, enum muster_dtype t)
{
    m->comm.size = world;
    for (size_t i = 0; i < PARAMS; i++)
        m->params[i] = (struct muster_tensor){names[i], m->values[i], counts[i]};
    return muster_ddp_open(&m->comm, m->params, PARAMS, t, &small, &m->ddp, &m->err);
}

static void begin(struct model *m, uint32_t world)
{
    if (open_model(m, world, MUSTER_F32) < 0)
        fail_msg("%s", m->err.text);
    m->comm.log[0] = '\0';
    m->comm.last = 0;
    m->comm.waits = m->comm.reduces = 0;
}

static void ready(struct model *m, size_t i)
{
    if (muster_ddp_ready(m->ddp, i, &m->err) < 0)
        fail_msg("%s", m->err.text);
}

static void expect_next(struct model *m, size_t first, size_t count)
{
    struct muster_bucket b = {99, 99};
    int r = muster_ddp_next(m->ddp, &b, &m->err);
    if (r != 1)
        fail_msg("%d: %s", r, m->err.text);
    assert_int_equal(b.first, first);
    assert_int_equal(b.count, count);
}

static void test_buckets_fill_from_the_last_parameter_and_split_none(void **state)
{
    struct model m = {0};
    (void)state;
    begin(&m, 2);
    assert_int_equal(muster_ddp_bucket_count(m.ddp), 4);
    for (size_t i = PARAMS; i-- > 0;)
        ready(&m, i);
    expect_next(&m, 4, 2);
    expect_next(&m, 3, 1);
    expect_next(&m, 1, 2);
    expect_next(&m, 0, 1);
    assert_int_equal(muster_ddp_next(m.ddp, NULL, &m.err), 0);
    for (size_t i = 0; i < PARAMS; i++)
        assert_int_equal((uintptr_t)muster_ddp_gradient(m.ddp, i) % 64, 0);
    assert_null(muster_ddp_gradient(m.ddp, PARAMS));
    muster_ddp_close(m.ddp);
}

static void test_one_larger_than_a_bucket_has_its_own(void **state)
{
    struct model m = {0};
    struct muster_ddp_options o = small;
    struct muster_bucket b;
    (void)state;
    o.bucket_bytes = o.first_bucket_bytes = 64;
    m.comm.size = 2;
    for (size_t i = 0; i < PARAMS; i++)
        m.params[i] = (struct muster_tensor){names[i], m.values[i], counts[i]};
    assert_int_equal(muster_ddp_open(&m.comm, m.params, PARAMS, MUSTER_F32, &o, &m.ddp, &m.err), 0);
    assert_int_equal(muster_ddp_bucket_count(m.ddp), PARAMS);
    for (size_t i = PARAMS; i-- > 0;)
        ready(&m, i);
    for (size_t i = PARAMS; i-- > 0;)
        expect_next(&m, i, 1);
    assert_int_equal(muster_ddp_next(m.ddp, &b, &m.err), 0);
    muster_ddp_close(m.ddp);
}

static void test_ready_in_any_order_reduces_in_the_order_of_buckets(void **state)
{
    struct model m = {0};
    (void)state;
    begin(&m, 2);
    const size_t order[PARAMS] = {0, 3, 5, 1, 4, 2};
    for (size_t i = 0; i < 4; i++)
        ready(&m, order[i]);
    assert_string_equal(m.comm.log, ""); /* Buckets 1 and 3 are complete and wait for bucket 0. */
    ready(&m, order[4]);
    assert_string_equal(m.comm.log, "reduce 32, reduce 64, ");
    ready(&m, order[5]);
    assert_string_equal(m.comm.log, "reduce 32, reduce 64, reduce 64, reduce 16, ");
    expect_next(&m, 4, 2);
    assert_string_equal(m.comm.log, "reduce 32, reduce 64, reduce 64, reduce 16, wait 1, ");
    expect_next(&m, 3, 1);
    expect_next(&m, 1, 2);
    expect_next(&m, 0, 1);
    muster_ddp_close(m.ddp);
    assert_false(m.comm.aborted);
}

static void test_a_bucket_is_given_while_later_ones_still_fill(void **state)
{
    struct model m = {0};
    struct muster_bucket b;
    (void)state;
    begin(&m, 2);
    ready(&m, 5);
    assert_int_equal(muster_ddp_next(m.ddp, &b, &m.err), -EAGAIN);
    assert_non_null(strstr(m.err.text, "'fc.w' (parameter 4)"));
    ready(&m, 4);
    expect_next(&m, 4, 2);
    ready(&m, 3);
    ready(&m, 2);
    expect_next(&m, 3, 1);
    assert_int_equal(muster_ddp_next(m.ddp, &b, &m.err), -EAGAIN);
    assert_non_null(strstr(m.err.text, "'c1.b' (parameter 1)"));
    ready(&m, 1);
    ready(&m, 0);
    expect_next(&m, 1, 2);
    expect_next(&m, 0, 1);
    assert_int_equal(muster_ddp_next(m.ddp, &b, &m.err), 0);
    muster_ddp_close(m.ddp);
}

static void test_gradients_are_divided_before_they_are_summed(void **state)
{
    struct model m = {0};
    (void)state;
    begin(&m, 3);
    /* 0.1f/3*3 in this order, not 0.1f*3/3: the fake multiplies by 3. */
    for (size_t i = PARAMS; i-- > 0;) {
        float *g = muster_ddp_gradient(m.ddp, i);
        for (size_t k = 0; k < counts[i]; k++)
            g[k] = 0.1F * (float)(k + 1);
        ready(&m, i);
    }
    struct muster_bucket b;
    while (muster_ddp_next(m.ddp, &b, &m.err) == 1)
        ;
    for (size_t i = 0; i < PARAMS; i++) {
        const float *g = muster_ddp_gradient(m.ddp, i);
        for (size_t k = 0; k < counts[i]; k++) {
            float want = 0.1F * (float)(k + 1);
            want /= 3.0F;
            want *= 3.0F;
            assert_memory_equal(&g[k], &want, sizeof want);
        }
    }
    muster_ddp_close(m.ddp);
}

/* Then a gradient is handed over as it is, and divided once. */
static void test_a_communicator_that_divides_is_left_to_do_it(void **state)
{
    struct model m = {.comm = {.knows_mean = true}};
    struct muster_bucket b;
    (void)state;
    begin(&m, 3);
    for (size_t i = PARAMS; i-- > 0;) {
        float *g = muster_ddp_gradient(m.ddp, i);
        for (size_t k = 0; k < counts[i]; k++)
            g[k] = (float)(k + 1);
        ready(&m, i);
    }
    while (muster_ddp_next(m.ddp, &b, &m.err) == 1)
        ;
    assert_string_equal(m.comm.log,
                        "mean 32, mean 64, mean 64, mean 16, wait 1, wait 2, wait 3, wait 4, ");
    for (size_t i = 0; i < PARAMS; i++) {
        const float *g = muster_ddp_gradient(m.ddp, i);
        for (size_t k = 0; k < counts[i]; k++)
            assert_true(g[k] == (float)(k + 1));
    }
    m.comm.fail_reduce = m.comm.reduces + 1;
    ready(&m, 5);
    assert_int_equal(muster_ddp_ready(m.ddp, 4, &m.err), -EPIPE);
    assert_non_null(strstr(m.err.text, "rank 2 is gone"));
    muster_ddp_close(m.ddp);
}

static void test_steps_follow_each_other_and_no_sync_is_silent(void **state)
{
    struct model m = {0};
    struct muster_bucket b;
    (void)state;
    begin(&m, 2);
    muster_ddp_no_sync(m.ddp, true);
    for (int twice = 0; twice < 2; twice++) {
        for (size_t i = PARAMS; i-- > 0;)
            ready(&m, i);
        assert_int_equal(muster_ddp_next(m.ddp, &b, &m.err), 0);
    }
    assert_string_equal(m.comm.log, "");
    muster_ddp_no_sync(m.ddp, false);
    for (int step = 0; step < 3; step++) {
        for (size_t i = PARAMS; i-- > 0;)
            ready(&m, i);
        for (int k = 0; k < 4; k++)
            assert_int_equal(muster_ddp_next(m.ddp, &b, &m.err), 1);
        if (step == 1) /* Asking for one more than there are is allowed and not needed. */
            assert_int_equal(muster_ddp_next(m.ddp, &b, &m.err), 0);
    }
    assert_int_equal(m.comm.reduces, 12);
    muster_ddp_close(m.ddp);
}

static void test_twice_ready_is_refused(void **state)
{
    struct model m = {0};
    (void)state;
    begin(&m, 2);
    ready(&m, 2);
    assert_int_equal(muster_ddp_ready(m.ddp, 2, &m.err), -EALREADY);
    assert_non_null(strstr(m.err.text, "'c2.w' (parameter 2)"));
    assert_int_equal(muster_ddp_ready(m.ddp, PARAMS, &m.err), -EINVAL);
    muster_ddp_close(m.ddp);
}

static void test_a_failing_bucket_is_named_and_ends_the_reducer(void **state)
{
    struct model m = {0};
    struct muster_bucket b;
    (void)state;
    begin(&m, 2);
    m.comm.fail_reduce = 2;
    ready(&m, 5);
    ready(&m, 4);
    assert_int_equal(muster_ddp_ready(m.ddp, 3, &m.err), -EPIPE);
    assert_string_equal(m.err.text, "ddp: bucket 1 of 4 (parameters 3 to 3): rank 2 is gone");
    m.err = (struct muster_error){0};
    assert_int_equal(muster_ddp_next(m.ddp, &b, &m.err), -EPIPE);
    assert_non_null(strstr(m.err.text, "rank 2 is gone"));
    muster_ddp_close(m.ddp);
    assert_true(m.comm.aborted); /* Bucket 0 was in flight. */
}

static void test_a_late_bucket_is_named(void **state)
{
    struct model m = {0};
    struct muster_bucket b;
    (void)state;
    begin(&m, 2);
    for (size_t i = PARAMS; i-- > 0;)
        ready(&m, i);
    m.comm.fail_wait = 3;
    expect_next(&m, 4, 2);
    expect_next(&m, 3, 1);
    assert_int_equal(muster_ddp_next(m.ddp, &b, &m.err), -ETIMEDOUT);
    assert_string_equal(m.err.text, "ddp: bucket 2 of 4 (parameters 1 to 2): rank 1 is late");
    assert_int_equal(muster_ddp_ready(m.ddp, 0, &m.err), -ETIMEDOUT);
    muster_ddp_close(m.ddp);
}

static void test_a_world_of_one_needs_no_communicator(void **state)
{
    struct model m = {0};
    (void)state;
    begin(&m, 1);
    float *g = muster_ddp_gradient(m.ddp, 4);
    g[0] = 0.3F;
    for (size_t i = PARAMS; i-- > 0;)
        ready(&m, i);
    expect_next(&m, 4, 2);
    assert_true(g[0] == 0.3F);
    assert_string_equal(m.comm.log, "");
    muster_ddp_close(m.ddp);
}

/* --- what ranks compare --- */

static uint64_t more_parameters(uint32_t rank, int gathering, size_t at, uint64_t mine)
{
    return gathering == 0 && at == 0 && rank == 2 ? mine + 1 : mine;
}

static uint64_t other_type(uint32_t rank, int gathering, size_t at, uint64_t mine)
{
    return gathering == 0 && at == 1 && rank == 1 ? MUSTER_F64 : mine;
}

static uint64_t other_shape(uint32_t rank, int gathering, size_t at, uint64_t mine)
{
    if (gathering == 0)
        return at == 2 && rank == 3 ? mine + 1 : mine; /* Its hash. */
    return rank == 3 && at >= 3 ? mine + 7 : mine;
}

static uint64_t other_buckets(uint32_t rank, int gathering, size_t at, uint64_t mine)
{
    return gathering == 0 && at == 2 && rank == 3 ? mine + 1 : mine;
}

static void expect_refused(uint64_t (*peer)(uint32_t, int, size_t, uint64_t), const char *want)
{
    struct model m = {.comm.peer = peer};
    assert_int_equal(open_model(&m, 4, MUSTER_F32), -EINVAL);
    assert_string_equal(m.err.text, want);
    assert_null(m.ddp);
}

static void test_models_that_differ_are_named(void **state)
{
    (void)state;
    expect_refused(more_parameters, "ddp: rank 2 has 7 parameters and rank 0 has 6: all ranks must "
                                    "build the same model");
    expect_refused(other_type, "ddp: rank 1 has parameters of 8 bytes an element and rank 0 of 4: "
                               "all ranks must use the same type");
    expect_refused(other_shape, "ddp: parameter 3 ('c2.b') has 71 elements on rank 3 and 64 on "
                                "rank 0: all ranks must build the same model");
    expect_refused(other_buckets,
                   "ddp: ranks use buckets of different sizes: give all the same options");
}

static void test_wrong_arguments_get_a_sentence(void **state)
{
    struct model m = {0};
    struct muster_ddp_options o = small;
    (void)state;
    assert_int_equal(open_model(&m, 2, MUSTER_I32), -EINVAL);
    assert_non_null(strstr(m.err.text, "MUSTER_F32 or MUSTER_F64"));
    assert_int_equal(muster_ddp_open(&m.comm, m.params, 0, MUSTER_F32, NULL, &m.ddp, &m.err),
                     -EINVAL);
    o.bucket_bytes = 0;
    assert_int_equal(muster_ddp_open(&m.comm, m.params, PARAMS, MUSTER_F32, &o, &m.ddp, &m.err),
                     -EINVAL);
    m.params[1].count = SIZE_MAX / 2;
    assert_int_equal(muster_ddp_open(&m.comm, m.params, PARAMS, MUSTER_F32, NULL, &m.ddp, &m.err),
                     -EOVERFLOW);
    assert_null(m.ddp);
}

static uint64_t other_values(uint32_t rank, int gathering, size_t at, uint64_t mine)
{
    if (gathering == 1) /* 0 was the shapes; this is the hash of all. */
        return rank == 2 ? mine ^ 1 : mine;
    return gathering == 2 && rank == 2 && at >= 4 ? mine ^ 1 : mine;
}

static void test_values_that_differ_are_named(void **state)
{
    struct model m = {.comm.peer = other_values};
    uint64_t hash = 0;
    (void)state;
    begin(&m, 3);
    assert_int_equal(muster_ddp_check_equal(m.ddp, &hash, &m.err), -EUCLEAN);
    assert_non_null(strstr(m.err.text, "parameter 4 ('fc.w') on rank 2 differs from rank 0's"));
    assert_int_equal(hash, 0); /* Outputs are written on success only. */
    muster_ddp_close(m.ddp);
}

static void test_every_bit_of_every_parameter_is_in_the_hash(void **state)
{
    struct model m = {0};
    uint64_t before = 0;
    uint64_t after = 0;
    (void)state;
    begin(&m, 2);
    assert_int_equal(muster_ddp_check_equal(m.ddp, &before, &m.err), 0);
    for (size_t i = 0; i < PARAMS; i++) {
        unsigned char *bytes = (unsigned char *)m.values[i];
        for (size_t bit = 0; bit < counts[i] * sizeof(float) * 8; bit++) {
            bytes[bit / 8] ^= (unsigned char)(1U << bit % 8);
            assert_int_equal(muster_ddp_check_equal(m.ddp, &after, &m.err), 0);
            assert_true(after != before);
            bytes[bit / 8] ^= (unsigned char)(1U << bit % 8);
        }
    }
    assert_int_equal(muster_ddp_check_equal(m.ddp, &after, &m.err), 0);
    assert_int_equal(after, before);
    muster_ddp_close(m.ddp);
}

static void test_hash_depends_on_order_and_length(void **state)
{
    unsigned char zeros[256] = {0};
    uint64_t words[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    (void)state;
    for (size_t n = 0; n < sizeof zeros; n++)
        assert_true(ddp_hash(zeros, n, 0) != ddp_hash(zeros, n + 1, 0));
    uint64_t before = ddp_hash(words, sizeof words, 0);
    words[0] = 5; /* Swapped within a lane. */
    words[4] = 1;
    assert_true(ddp_hash(words, sizeof words, 0) != before);
    words[0] = 2; /* And between lanes. */
    words[1] = 1;
    words[4] = 5;
    assert_true(ddp_hash(words, sizeof words, 0) != before);
}

/* --- memory that the CPU cannot touch --- */

/* The same pages twice: the caller sees those without access, the hooks reach the others. */
struct device {
    char *shown;
    char *real;
    size_t used;
    size_t bytes;
    int divides;
};

static void *device_alloc(void *arg, size_t bytes)
{
    struct device *v = arg;
    size_t whole = (bytes + 63) / 64 * 64;
    if (v->bytes - v->used < whole)
        return NULL;
    v->used += whole;
    return v->shown + v->used - whole;
}

static void device_release(void *arg, void *p)
{
    (void)arg;
    (void)p;
}

static int device_divide(void *arg, void *p, size_t count, enum muster_dtype t, uint32_t by)
{
    struct device *v = arg;
    float *f = (void *)((char *)p + (v->real - v->shown));
    assert_int_equal(t, MUSTER_F32);
    for (size_t i = 0; i < count; i++)
        f[i] /= (float)by;
    v->divides++;
    return 0;
}

static int device_read(void *arg, void *to, const void *from, size_t bytes)
{
    const struct device *v = arg;
    memcpy(to, (const char *)from + (v->real - v->shown), bytes);
    return 0;
}

static int device_write(void *arg, void *to, const void *from, size_t bytes)
{
    const struct device *v = arg;
    memcpy((char *)to + (v->real - v->shown), from, bytes);
    return 0;
}

static void open_device(struct device *v)
{
    int fd = memfd_create("device", MFD_CLOEXEC);
    v->bytes = 1 << 16;
    assert_true(fd >= 0 && ftruncate(fd, (off_t)v->bytes) == 0);
    v->shown = mmap(NULL, v->bytes, PROT_NONE, MAP_SHARED, fd, 0);
    v->real = mmap(NULL, v->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(v->shown != MAP_FAILED && v->real != MAP_FAILED);
    close(fd);
}

static void test_device_memory_is_touched_by_its_functions_alone(void **state)
{
    struct device v = {0};
    struct model m = {0};
    struct muster_ddp_options o = small;
    struct muster_ddp_memory memory = {&v,          device_alloc, device_release, device_divide,
                                       device_read, device_write};
    uint64_t hash = 0;
    (void)state;
    open_device(&v);
    o.memory = &memory;
    m.comm.size = 2;
    m.comm.reach = v.real - v.shown;
    for (size_t i = 0; i < PARAMS; i++)
        m.params[i] = (struct muster_tensor){names[i], device_alloc(&v, counts[i] * 4), counts[i]};
    assert_int_equal(muster_ddp_open(&m.comm, m.params, PARAMS, MUSTER_F32, &o, &m.ddp, &m.err), 0);
    float *g = (void *)((char *)muster_ddp_gradient(m.ddp, 3) + m.comm.reach);
    g[63] = 5.0F;
    for (size_t i = PARAMS; i-- > 0;)
        ready(&m, i);
    expect_next(&m, 4, 2);
    expect_next(&m, 3, 1);
    expect_next(&m, 1, 2);
    expect_next(&m, 0, 1);
    assert_true(g[63] == 5.0F);
    assert_int_equal(v.divides, 4);
    assert_int_equal(muster_ddp_check_equal(m.ddp, &hash, &m.err), 0);
    muster_ddp_close(m.ddp);
    munmap(v.shown, v.bytes);
    munmap(v.real, v.bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_buckets_fill_from_the_last_parameter_and_split_none),
        cmocka_unit_test(test_one_larger_than_a_bucket_has_its_own),
        cmocka_unit_test(test_ready_in_any_order_reduces_in_the_order_of_buckets),
        cmocka_unit_test(test_a_bucket_is_given_while_later_ones_still_fill),
        cmocka_unit_test(test_gradients_are_divided_before_they_are_summed),
        cmocka_unit_test(test_a_communicator_that_divides_is_left_to_do_it),
        cmocka_unit_test(test_steps_follow_each_other_and_no_sync_is_silent),
        cmocka_unit_test(test_twice_ready_is_refused),
        cmocka_unit_test(test_a_failing_bucket_is_named_and_ends_the_reducer),
        cmocka_unit_test(test_a_late_bucket_is_named),
        cmocka_unit_test(test_a_world_of_one_needs_no_communicator),
        cmocka_unit_test(test_models_that_differ_are_named),
        cmocka_unit_test(test_wrong_arguments_get_a_sentence),
        cmocka_unit_test(test_values_that_differ_are_named),
        cmocka_unit_test(test_every_bit_of_every_parameter_is_in_the_hash),
        cmocka_unit_test(test_hash_depends_on_order_and_length),
        cmocka_unit_test(test_device_memory_is_touched_by_its_functions_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
