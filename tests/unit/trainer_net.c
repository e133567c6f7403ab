/* Promise: the CPU kernels compute what model.h says, and PyTorch's gradients of the first step. */
#include "tests/unit/unit.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include <muster/sampler.h>

#include "trainer-example/adamw.h"
#include "trainer-example/data.h"
#include "trainer-example/model.h"
#include "trainer-example/state.h"

#define DATA MUSTER_SOURCE_DIR "/tests/data/"

/* --- A network to test, and its numbers as doubles --- */

struct rig {
    const struct net_ops *ops;
    struct net *net;
    struct shape shape[PARAM_COUNT];
    uint32_t width, count;
    bool f64;
    void *images, *gradient[PARAM_COUNT];
    int32_t *labels;
    double *value[PARAM_COUNT]; /* As the net has them. */
    double *x;                  /* (count, 64) */
    size_t order[PARAM_COUNT], ready_count;
};

static uint64_t state;

/* -1 to 1; any full-period generator will do. */
static double noise(void)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(int64_t)state * 0x1p-63;
}

static size_t real_bytes(const struct rig *g)
{
    return g->f64 ? sizeof(double) : sizeof(float);
}

static double real_at(const struct rig *g, const void *p, size_t k)
{
    return g->f64 ? ((const double *)p)[k] : (double)((const float *)p)[k];
}

static void real_put(const struct rig *g, void *p, size_t k, double v)
{
    if (g->f64)
        ((double *)p)[k] = v;
    else
        ((float *)p)[k] = (float)v;
}

static void push_value(struct rig *g, size_t i)
{
    void *host = calloc(g->shape[i].count, sizeof(double));
    for (size_t k = 0; k < g->shape[i].count; k++) {
        real_put(g, host, k, g->value[i][k]);
        g->value[i][k] = real_at(g, host, k);
    }
    assert_int_equal(g->ops->set(g->net, NET_VALUE, i, host, NULL), 0);
    free(host);
}

static void rig_open(struct rig *g, bool f64, uint32_t width, uint32_t count)
{
    struct muster_error err;
    *g = (struct rig){
        .ops = f64 ? &net_cpu_f64 : &net_cpu_f32, .width = width, .count = count, .f64 = f64};
    const struct net_options o = {width, count, f64 ? MUSTER_F64 : MUSTER_F32, 0};
    assert_int_equal(g->ops->open(&o, &g->net, &err), 0);
    model_shapes(width, g->shape);
    float *first[PARAM_COUNT];
    for (size_t i = 0; i < PARAM_COUNT; i++)
        first[i] = calloc(g->shape[i].count, sizeof(float));
    model_init(width, 7, first);
    for (size_t i = 0; i < PARAM_COUNT; i++) {
        g->value[i] = calloc(g->shape[i].count, sizeof(double));
        g->gradient[i] = calloc(g->shape[i].count, sizeof(double));
        for (size_t k = 0; k < g->shape[i].count; k++)
            g->value[i][k] = (double)first[i][k];
        push_value(g, i);
        free(first[i]);
    }
    g->images = g->ops->host_alloc(count * IMAGE_PIXELS * real_bytes(g));
    g->labels = g->ops->host_alloc(count * sizeof(int32_t));
    g->x = calloc(count * IMAGE_PIXELS, sizeof(double));
    state = count;
    for (size_t k = 0; k < count * IMAGE_PIXELS; k++) {
        const double v = noise();
        g->x[k] = v < 0 ? 0 : (double)(float)v; /* Digits have a background too. */
        real_put(g, g->images, k, g->x[k]);
    }
    for (uint32_t i = 0; i < count; i++)
        g->labels[i] = (int32_t)(i * 7 % CLASSES);
}

static void rig_close(struct rig *g)
{
    for (size_t i = 0; i < PARAM_COUNT; i++) {
        free(g->value[i]);
        free(g->gradient[i]);
    }
    g->ops->host_free(g->images);
    g->ops->host_free(g->labels);
    free(g->x);
    g->ops->close(g->net);
}

static int note_ready(void *arg, size_t i, struct muster_error *err)
{
    struct rig *g = arg;
    g->order[g->ready_count++] = i;
    return 0;
}

static double run(struct rig *g, uint32_t *ret_correct)
{
    const struct batch b = {g->images, g->labels, g->count};
    double sum;
    assert_int_equal(g->ops->forward(g->net, &b, NULL), 0);
    g->ready_count = 0;
    assert_int_equal(g->ops->backward(g->net, g->gradient, note_ready, g, NULL), 0);
    assert_int_equal(g->ops->loss(g->net, &sum, ret_correct, NULL), 0);
    return sum / g->count;
}

/* --- The same network in plain loops, straight from model.h, in double --- */

struct naive {
    double *a1, *y2, *flat, *h, *z;
    double *gradient[PARAM_COUNT];
    double loss;
    uint32_t correct;
};

static double *doubles(size_t n)
{
    double *p = calloc(n, sizeof *p);
    assert_non_null(p);
    return p;
}

/* out[o][y][x] = b[o] + sum in[i][y+dy-1][x+dx-1] * w[o][i][dy][dx] */
static void
naive_conv(const double *in, size_t ci, const double *w, const double *b, size_t co, double *out)
{
    for (size_t o = 0; o < co; o++)
        for (int p = 0; p < IMAGE_PIXELS; p++) {
            double sum = b[o];
            for (size_t i = 0; i < ci; i++)
                for (int t = 0; t < KERNEL_TAPS; t++) {
                    const int y = p / 8 + t / 3 - 1, x = p % 8 + t % 3 - 1;
                    if (y >= 0 && y < 8 && x >= 0 && x < 8)
                        sum += in[i * 64 + (size_t)(y * 8 + x)] * w[(o * ci + i) * 9 + (size_t)t];
                }
            out[o * 64 + (size_t)p] = sum > 0 ? sum : 0;
        }
}

static void naive_conv_back(const double *in,
                            size_t ci,
                            const double *w,
                            size_t co,
                            const double *dout,
                            double *dw,
                            double *db,
                            double *din)
{
    for (size_t o = 0; o < co; o++)
        for (int p = 0; p < IMAGE_PIXELS; p++) {
            const double g = dout[o * 64 + (size_t)p];
            db[o] += g;
            for (size_t i = 0; i < ci; i++)
                for (int t = 0; t < KERNEL_TAPS; t++) {
                    const int y = p / 8 + t / 3 - 1, x = p % 8 + t % 3 - 1;
                    if (y < 0 || y >= 8 || x < 0 || x >= 8)
                        continue;
                    dw[(o * ci + i) * 9 + (size_t)t] += g * in[i * 64 + (size_t)(y * 8 + x)];
                    if (din != NULL)
                        din[i * 64 + (size_t)(y * 8 + x)] += g * w[(o * ci + i) * 9 + (size_t)t];
                }
        }
}

static size_t naive_winner(const double *channel, size_t window)
{
    size_t best = 0;
    for (size_t k = 0; k < 4; k++) {
        const size_t at = (2 * (window / 4) + k / 2) * 8 + 2 * (window % 4) + k % 2;
        if (k == 0 || channel[at] > channel[best])
            best = at;
    }
    return best;
}

static void
naive_linear(const double *in, size_t ni, const double *w, const double *b, size_t no, double *out)
{
    for (size_t o = 0; o < no; o++) {
        out[o] = b[o];
        for (size_t i = 0; i < ni; i++)
            out[o] += in[i] * w[o * ni + i];
    }
}

static void naive_linear_back(const double *in,
                              size_t ni,
                              const double *w,
                              size_t no,
                              const double *dout,
                              double *dw,
                              double *db,
                              double *din)
{
    for (size_t o = 0; o < no; o++) {
        db[o] += dout[o];
        for (size_t i = 0; i < ni; i++) {
            dw[o * ni + i] += dout[o] * in[i];
            din[i] += dout[o] * w[o * ni + i];
        }
    }
}

/* One item; gradients are added. */
static void naive_item(const struct rig *g, size_t item, struct naive *n)
{
    const size_t c1 = 32 * g->width, c2 = 64 * g->width, nh = 128 * g->width, nf = c2 * 16;
    double *const *v = g->value;
    const double *x = g->x + item * 64;
    naive_conv(x, 1, v[CONV1_WEIGHT], v[CONV1_BIAS], c1, n->a1);
    naive_conv(n->a1, c1, v[CONV2_WEIGHT], v[CONV2_BIAS], c2, n->y2);
    for (size_t k = 0; k < nf; k++)
        n->flat[k] = n->y2[k / 16 * 64 + naive_winner(n->y2 + k / 16 * 64, k % 16)];
    naive_linear(n->flat, nf, v[FC1_WEIGHT], v[FC1_BIAS], nh, n->h);
    for (size_t k = 0; k < nh; k++)
        n->h[k] = n->h[k] > 0 ? n->h[k] : 0;
    naive_linear(n->h, nh, v[FC2_WEIGHT], v[FC2_BIAS], CLASSES, n->z);

    double sum = 0, dz[CLASSES];
    size_t top = 0;
    const size_t label = (size_t)g->labels[item];
    for (size_t c = 0; c < CLASSES; c++) {
        sum += exp(n->z[c]);
        top = n->z[c] > n->z[top] ? c : top;
    }
    n->loss += (log(sum) - n->z[label]) / g->count;
    n->correct += top == label;
    for (size_t c = 0; c < CLASSES; c++)
        dz[c] = (exp(n->z[c]) / sum - (c == label)) / g->count;

    double *dh = doubles(nh), *dflat = doubles(nf), *dy2 = doubles(c2 * 64),
           *da1 = doubles(c1 * 64);
    naive_linear_back(n->h, nh, v[FC2_WEIGHT], CLASSES, dz, n->gradient[FC2_WEIGHT],
                      n->gradient[FC2_BIAS], dh);
    for (size_t k = 0; k < nh; k++)
        dh[k] = n->h[k] > 0 ? dh[k] : 0;
    naive_linear_back(n->flat, nf, v[FC1_WEIGHT], nh, dh, n->gradient[FC1_WEIGHT],
                      n->gradient[FC1_BIAS], dflat);
    for (size_t k = 0; k < nf; k++)
        if (n->flat[k] > 0)
            dy2[k / 16 * 64 + naive_winner(n->y2 + k / 16 * 64, k % 16)] = dflat[k];
    naive_conv_back(n->a1, c1, v[CONV2_WEIGHT], c2, dy2, n->gradient[CONV2_WEIGHT],
                    n->gradient[CONV2_BIAS], da1);
    for (size_t k = 0; k < c1 * 64; k++)
        da1[k] = n->a1[k] > 0 ? da1[k] : 0;
    naive_conv_back(x, 1, v[CONV1_WEIGHT], c1, da1, n->gradient[CONV1_WEIGHT],
                    n->gradient[CONV1_BIAS], NULL);
    free(dh);
    free(dflat);
    free(dy2);
    free(da1);
}

static void naive_open(const struct rig *g, struct naive *n)
{
    const size_t w = g->width;
    *n = (struct naive){doubles(32 * w * 64),
                        doubles(64 * w * 64),
                        doubles(1024 * w),
                        doubles(128 * w),
                        doubles(CLASSES),
                        {0},
                        0,
                        0};
    for (size_t i = 0; i < PARAM_COUNT; i++)
        n->gradient[i] = doubles(g->shape[i].count);
    for (size_t i = 0; i < g->count; i++)
        naive_item(g, i, n);
}

static void naive_close(struct naive *n)
{
    for (size_t i = 0; i < PARAM_COUNT; i++)
        free(n->gradient[i]);
    free(n->a1);
    free(n->y2);
    free(n->flat);
    free(n->h);
    free(n->z);
}

/* |a - b| / |b| over all numbers of a tensor. */
static double distance(const struct rig *g, const void *a, const double *b, size_t count)
{
    double apart = 0, size = 0;
    for (size_t k = 0; k < count; k++) {
        apart += pow(real_at(g, a, k) - b[k], 2);
        size += b[k] * b[k];
    }
    return sqrt(apart / size);
}

static void check_against_naive(bool f64, uint32_t width, uint32_t count)
{
    struct rig g;
    struct naive n;
    uint32_t correct;
    rig_open(&g, f64, width, count);
    naive_open(&g, &n);
    const double loss = run(&g, &correct), limit = f64 ? 1e-13 : 2e-6;
    assert_true(fabs(loss - n.loss) < (f64 ? 1e-13 : 1e-6));
    assert_int_equal(correct, n.correct);
    for (size_t i = 0; i < PARAM_COUNT; i++) {
        const double d = distance(&g, g.gradient[i], n.gradient[i], g.shape[i].count);
        if (!(d < limit))
            fail_msg("%s, width %u, %u items: gradient is %g away", g.shape[i].name, width, count,
                     d);
    }
    naive_close(&n);
    rig_close(&g);
}

/* --- Tests --- */

static void test_kernels_equal_plain_loops(void **unused)
{
    const uint32_t counts[] = {1, 2, 7, 8, 9, 32}; /* Around the sizes of the kernels' groups. */
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        check_against_naive(true, 1, counts[i]);
        check_against_naive(false, 1, counts[i]);
    }
    check_against_naive(true, 2, 3);
    check_against_naive(false, 2, 3);
}

static void test_a_smaller_batch_after_a_larger_one_leaves_nothing_behind(void **unused)
{
    struct rig big, small;
    uint32_t correct;
    rig_open(&big, true, 1, 9);
    rig_open(&small, true, 1, 5);
    (void)run(&big, &correct);
    big.count = 5;
    memcpy(big.images, small.images, 5 * IMAGE_PIXELS * sizeof(double));
    memcpy(big.labels, small.labels, 5 * sizeof(int32_t));
    const double a = run(&big, &correct), b = run(&small, &correct);
    assert_memory_equal(&a, &b, sizeof a);
    for (size_t i = 0; i < PARAM_COUNT; i++)
        assert_memory_equal(big.gradient[i], small.gradient[i],
                            big.shape[i].count * sizeof(double));
    rig_close(&big);
    rig_close(&small);
}

static void test_gradients_are_slopes_of_the_loss(void **unused)
{
    struct rig g;
    uint32_t correct;
    rig_open(&g, true, 1, 6);
    (void)run(&g, &correct);
    double *want[PARAM_COUNT];
    for (size_t i = 0; i < PARAM_COUNT; i++) {
        want[i] = doubles(g.shape[i].count);
        memcpy(want[i], g.gradient[i], g.shape[i].count * sizeof(double));
    }
    const double h = 1e-6;
    for (size_t i = 0; i < PARAM_COUNT; i++) {
        for (size_t t = 0; t < 5; t++) {
            const size_t k = t * 7919 % g.shape[i].count;
            const double v = g.value[i][k];
            g.value[i][k] = v + h;
            push_value(&g, i);
            const double up = run(&g, &correct);
            g.value[i][k] = v - h;
            push_value(&g, i);
            const double down = run(&g, &correct);
            g.value[i][k] = v;
            push_value(&g, i);
            const double slope = (up - down) / (2 * h);
            if (!(fabs(slope - want[i][k]) < 1e-8 + 1e-5 * fabs(slope)))
                fail_msg("%s[%zu]: gradient %.12g, slope %.12g", g.shape[i].name, k, want[i][k],
                         slope);
        }
    }
    for (size_t i = 0; i < PARAM_COUNT; i++)
        free(want[i]);
    rig_close(&g);
}

static void test_gradients_come_last_layer_first(void **unused)
{
    struct rig g;
    uint32_t correct;
    rig_open(&g, false, 1, 2);
    (void)run(&g, &correct);
    assert_int_equal(g.ready_count, PARAM_COUNT);
    for (size_t i = 0; i < PARAM_COUNT; i++)
        assert_int_equal(g.order[i], PARAM_COUNT - 1 - i);
    rig_close(&g);
}

static int refuse(void *arg, size_t i, struct muster_error *err)
{
    (*(size_t *)arg)++;
    return i == FC1_WEIGHT ? -ECANCELED : 0;
}

static void test_backward_ends_at_the_first_that_refuses(void **unused)
{
    struct rig g;
    size_t asked = 0;
    rig_open(&g, false, 1, 2);
    const struct batch b = {g.images, g.labels, g.count};
    assert_int_equal(g.ops->forward(g.net, &b, NULL), 0);
    assert_int_equal(g.ops->backward(g.net, g.gradient, refuse, &asked, NULL), -ECANCELED);
    assert_int_equal(asked, 4);
    rig_close(&g);
}

static void test_a_batch_that_does_not_fit_is_refused(void **unused)
{
    struct rig g;
    struct muster_error err;
    rig_open(&g, false, 1, 2);
    struct batch b = {g.images, g.labels, 3};
    assert_int_equal(g.ops->forward(g.net, &b, &err), -EINVAL);
    assert_has(err.text, "batch of 3");
    b.count = 2;
    g.labels[1] = 10;
    assert_int_equal(g.ops->forward(g.net, &b, &err), -EINVAL);
    assert_has(err.text, "label 10");
    rig_close(&g);
}

/* PyTorch: tests/data/trainer/make_reference.py. */
static void test_first_step_has_pytorchs_gradients(void **unused)
{
    struct rig g, want;
    struct muster_error err;
    struct dataset data;
    muster_sampler *sampler;
    rig_open(&g, false, 1, 32);
    rig_open(&want, false, 1, 1); /* Only to read a file into. */
    assert_int_equal(dataset_open(&data, DATA "digits.bin", &err), 0);
    assert_int_equal(data.train_count, 1437);
    struct muster_sampler_options o = MUSTER_SAMPLER_OPTIONS_INIT;
    o.item_count = data.train_count;
    assert_int_equal(muster_sampler_open(&o, &sampler, &err), 0);
    assert_int_equal(muster_sampler_set_epoch(sampler, 0, &err), 0);
    for (size_t i = 0; i < 32; i++) {
        const size_t item = (size_t)muster_sampler_indices(sampler)[i];
        g.labels[i] = data.labels[item];
        for (size_t p = 0; p < IMAGE_PIXELS; p++)
            ((float *)g.images)[i * IMAGE_PIXELS + p] =
                data.pixels[item * IMAGE_PIXELS + p] / 16.0f;
    }
    assert_int_equal(
        weights_load(DATA "trainer/init.bin", false, g.ops, g.net, 1, MUSTER_F32, &err), 0);
    assert_int_equal(weights_load(DATA "trainer/gradients-step1-w1.bin", false, want.ops, want.net,
                                  1, MUSTER_F32, &err),
                     0);
    uint32_t correct;
    const double loss = run(&g, &correct);
    assert_true(fabs(loss - 2.292361150653295) < 1e-6); /* The first loss of w1-f64.json. */
    double apart = 0, size = 0;
    for (size_t i = 0; i < PARAM_COUNT; i++) {
        const float *a = g.gradient[i], *b = want.ops->part(want.net, NET_VALUE, i);
        for (size_t k = 0; k < g.shape[i].count; k++) {
            apart += pow((double)a[k] - (double)b[k], 2);
            size += pow((double)b[k], 2);
        }
    }
    assert_true(sqrt(apart / size) < 1e-5);
    muster_sampler_close(sampler);
    dataset_close(&data);
    rig_close(&g);
    rig_close(&want);
}

static void test_first_weights_are_pytorchs_to_the_bit(void **unused)
{
    struct rig g;
    struct muster_error err;
    float *value[PARAM_COUNT];
    rig_open(&g, false, 1, 1);
    assert_int_equal(
        weights_load(DATA "trainer/init.bin", false, g.ops, g.net, 1, MUSTER_F32, &err), 0);
    for (size_t i = 0; i < PARAM_COUNT; i++)
        value[i] = calloc(g.shape[i].count, sizeof(float));
    model_init(1, 0, value);
    for (size_t i = 0; i < PARAM_COUNT; i++) {
        assert_memory_equal(value[i], g.ops->part(g.net, NET_VALUE, i),
                            g.shape[i].count * sizeof(float));
        free(value[i]);
    }
    rig_close(&g);
}

static void test_adamw_is_its_formula_to_the_bit(void **unused)
{
    enum {
        COUNT = 1003 /* Not a multiple of any vector. */
    };
    static float p[COUNT], m[COUNT], v[COUNT], gradient[COUNT];
    const struct adamw a = {1e-3, 0.9, 0.999, 1e-8, 0.01};
    for (size_t k = 0; k < COUNT; k++) {
        p[k] = (float)noise();
        gradient[k] = (float)noise();
    }
    static volatile float wp[COUNT], wm[COUNT],
        wv[COUNT]; /* Each store rounds: nothing can be fused. */
    for (size_t k = 0; k < COUNT; k++)
        wp[k] = p[k];
    for (uint64_t step = 1; step <= 3; step++) {
        adamw_f32(p, m, v, gradient, COUNT, &a, step);
        for (size_t k = 0; k < COUNT; k++) {
            volatile float t = gradient[k] - wm[k];
            t = t * (float)(1 - a.beta1);
            wm[k] = wm[k] + t;
            volatile float old = wv[k] * (float)a.beta2, square = gradient[k] * gradient[k];
            square = square * (float)(1 - a.beta2);
            wv[k] = old + square;
            volatile float divisor = sqrtf(wv[k]) / (float)sqrt(1 - pow(a.beta2, (double)step));
            divisor = divisor + (float)a.eps;
            t = (float)(a.lr / (1 - pow(a.beta1, (double)step))) * wm[k];
            t = t / divisor;
            volatile float kept = wp[k] * (float)(1 - a.lr * a.weight_decay);
            wp[k] = kept - t;
        }
    }
    for (size_t k = 0; k < COUNT; k++)
        if (p[k] != wp[k] || m[k] != wm[k] || v[k] != wv[k])
            fail_msg("number %zu: %a, %a is due", k, (double)p[k], (double)wp[k]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kernels_equal_plain_loops),
        cmocka_unit_test(test_a_smaller_batch_after_a_larger_one_leaves_nothing_behind),
        cmocka_unit_test(test_gradients_are_slopes_of_the_loss),
        cmocka_unit_test(test_gradients_come_last_layer_first),
        cmocka_unit_test(test_backward_ends_at_the_first_that_refuses),
        cmocka_unit_test(test_a_batch_that_does_not_fit_is_refused),
        cmocka_unit_test(test_first_step_has_pytorchs_gradients),
        cmocka_unit_test(test_first_weights_are_pytorchs_to_the_bit),
        cmocka_unit_test(test_adamw_is_its_formula_to_the_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
