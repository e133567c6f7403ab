/* Promise: what was saved comes back to the bit, and a file that is not whole or not ours is
 * refused. */
#include "tests/unit/unit.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "trainer-example/model.h"
#include "trainer-example/state.h"

struct rig {
    const struct net_ops *ops;
    struct net *net;
    struct shape shape[PARAM_COUNT];
    char folder[32], state_path[48], position_path[48];
};

static void rig_open(struct rig *g, enum muster_dtype t, uint32_t width)
{
    struct muster_error err;
    g->ops = t == MUSTER_F64 ? &net_cpu_f64 : &net_cpu_f32;
    const struct net_options o = {width, 1, t, 0};
    assert_int_equal(g->ops->open(&o, &g->net, &err), 0);
    model_shapes(width, g->shape);
    (void)snprintf(g->folder, sizeof g->folder, "/tmp/muster-state-XXXXXX");
    assert_non_null(mkdtemp(g->folder));
    (void)snprintf(g->state_path, sizeof g->state_path, "%s/state.bin", g->folder);
    (void)snprintf(g->position_path, sizeof g->position_path, "%s/position", g->folder);
}

static void rig_close(struct rig *g)
{
    unlink(g->state_path);
    unlink(g->position_path);
    rmdir(g->folder);
    g->ops->close(g->net);
}

/* Every part of every parameter gets numbers of its own. */
static void fill_f64(struct rig *g)
{
    for (int p = 0; p < NET_PART_COUNT; p++)
        for (size_t i = 0; i < PARAM_COUNT; i++) {
            double *v = g->ops->part(g->net, (enum net_part)p, i);
            for (size_t k = 0; k < g->shape[i].count; k++)
                v[k] = 1.0 / (double)(3 + p + 3 * (int)i + (int)k);
        }
}

static const struct position here = {123, 4, 5, 6, 0.1};

static void test_a_checkpoint_comes_back_to_the_bit(void **unused)
{
    struct rig a, b;
    struct muster_error err;
    struct position at;
    rig_open(&a, MUSTER_F64, 1);
    rig_open(&b, MUSTER_F64, 1);
    fill_f64(&a);
    assert_int_equal(state_save(a.folder, &here, a.ops, a.net, 1, MUSTER_F64, &err), 0);
    assert_int_equal(state_load(a.folder, &at, b.ops, b.net, 1, MUSTER_F64, &err), 0);
    assert_int_equal(at.step, 123);
    assert_int_equal(at.epoch, 4);
    assert_int_equal(at.epoch_items, 5);
    assert_int_equal(at.loss_items, 6);
    assert_true(at.loss_sum == 0.1);
    for (int p = 0; p < NET_PART_COUNT; p++)
        for (size_t i = 0; i < PARAM_COUNT; i++)
            assert_memory_equal(a.ops->part(a.net, (enum net_part)p, i),
                                b.ops->part(b.net, (enum net_part)p, i),
                                a.shape[i].count * sizeof(double));
    rig_close(&a);
    rig_close(&b);
}

static void test_types_are_converted(void **unused)
{
    struct rig a, b;
    struct muster_error err;
    rig_open(&a, MUSTER_F64, 1);
    rig_open(&b, MUSTER_F32, 1);
    fill_f64(&a);
    assert_int_equal(state_save(a.folder, &here, a.ops, a.net, 1, MUSTER_F64, &err), 0);
    assert_int_equal(weights_load(a.state_path, true, b.ops, b.net, 1, MUSTER_F32, &err), 0);
    const double *from = a.ops->part(a.net, NET_SQUARE, FC2_BIAS);
    const float *to = b.ops->part(b.net, NET_SQUARE, FC2_BIAS);
    for (size_t k = 0; k < CLASSES; k++)
        assert_true(to[k] == (float)from[k]);
    rig_close(&a);
    rig_close(&b);
}

static void test_a_cut_file_is_refused_wherever_it_was_cut(void **unused)
{
    struct rig a;
    struct muster_error err;
    rig_open(&a, MUSTER_F32, 1);
    assert_int_equal(state_save(a.folder, &here, a.ops, a.net, 1, MUSTER_F32, &err), 0);
    const long cuts[] = {1000000, 300, 40, 20, 14, 10, 3, 0};
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        assert_int_equal(truncate(a.state_path, cuts[i]), 0);
        assert_int_equal(weights_load(a.state_path, true, a.ops, a.net, 1, MUSTER_F32, &err),
                         -EINVAL);
        assert_has(err.text, "it was cut");
    }
    rig_close(&a);
}

static void test_what_is_not_ours_is_refused_with_its_reason(void **unused)
{
    struct rig a, wide;
    struct muster_error err;
    struct position at;
    rig_open(&a, MUSTER_F32, 1);
    rig_open(&wide, MUSTER_F32, 2);
    assert_int_equal(state_save(wide.folder, &here, wide.ops, wide.net, 2, MUSTER_F32, &err), 0);
    assert_int_equal(weights_load(wide.state_path, true, a.ops, a.net, 1, MUSTER_F32, &err),
                     -EINVAL);
    assert_has(err.text, "another --width");
    const char *init = MUSTER_SOURCE_DIR "/tests/data/trainer/init.bin";
    assert_int_equal(weights_load(init, true, a.ops, a.net, 1, MUSTER_F32, &err), -EINVAL);
    assert_has(err.text, "lacks conv1.weight.mean");
    assert_int_equal(weights_load(MUSTER_SOURCE_DIR "/tests/data/digits.bin", false, a.ops, a.net,
                                  1, MUSTER_F32, &err),
                     -EINVAL);
    assert_has(err.text, "no weight file");
    assert_int_equal(state_load(a.folder, &at, a.ops, a.net, 1, MUSTER_F32, &err), -EINVAL);
    assert_has(err.text, "does not say where");
    assert_true(weights_load("/nowhere/w", false, a.ops, a.net, 1, MUSTER_F32, &err) < 0);
    assert_has(err.text, "/nowhere/w");
    rig_close(&a);
    rig_close(&wide);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_checkpoint_comes_back_to_the_bit),
        cmocka_unit_test(test_types_are_converted),
        cmocka_unit_test(test_a_cut_file_is_refused_wherever_it_was_cut),
        cmocka_unit_test(test_what_is_not_ours_is_refused_with_its_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
