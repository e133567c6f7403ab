/* Opening NCCL and CUDA's driver by name, and freeing a communicator under a deadline. */
#include "worker-sdk/src/nccl/nccl_free.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "tests/unit/unit.h"
#include "worker-sdk/src/core/sdk.h"

static int use_standin(void **state)
{
    static const char *const settings[] = {"STANDIN_VERSION", "STANDIN_DEVICES", "STANDIN_FAIL",
                                           "STANDIN_HANG"};
    for (size_t i = 0; i < MU_COUNT(settings); i++)
        (void)unsetenv(settings[i]);
    return setenv("MUSTER_NCCL_LIBRARY", STANDIN, 1) | setenv("MUSTER_CUDA_LIBRARY", STANDIN, 1);
}

/* Promise: versions of all ages are written as people write them. */
static void test_version_text_when_old_and_new_then_three_numbers(void **state)
{
    char text[32];
    nccl_lib_version_text(22809, text);
    assert_string_equal(text, "2.28.9");
    nccl_lib_version_text(21903, text);
    assert_string_equal(text, "2.19.3");
    nccl_lib_version_text(2804, text);
    assert_string_equal(text, "2.8.4");
}

/* Promise: 2.19 and later are accepted. */
static void test_open_when_2_19_then_accepted(void **state)
{
    struct nccl_lib n;
    struct muster_error err = {0};
    assert_int_equal(setenv("STANDIN_VERSION", "21900", 1), 0);
    assert_int_equal(nccl_lib_open(&n, &err), 0);
    assert_int_equal(n.version, 21900);
    nccl_lib_close(&n);
}

/* Promise: an older one is refused with a sentence that says what is needed. */
static void test_open_when_older_then_refused_with_both_versions(void **state)
{
    struct nccl_lib n;
    struct muster_error err = {0};
    assert_int_equal(setenv("STANDIN_VERSION", "21805", 1), 0);
    assert_int_equal(nccl_lib_open(&n, &err), -ENOTSUP);
    assert_has(err.text, "NCCL 2.18.5");
    assert_has(err.text, "2.19 or later");
}

/* Promise: a library that is not there, or is another one, is named, with the way out. */
static void test_open_when_not_there_then_says_how_to_go_on(void **state)
{
    struct nccl_lib n;
    struct muster_error err = {0};
    assert_int_equal(setenv("MUSTER_NCCL_LIBRARY", "/nowhere/libnccl.so.2", 1), 0);
    assert_int_equal(nccl_lib_open(&n, &err), -ENOENT);
    assert_has(err.text, "/nowhere/libnccl.so.2");
    assert_has(err.text, "MUSTER_NCCL_LIBRARY");
    assert_has(err.text, "\"tcp\"");
    assert_int_equal(setenv("MUSTER_NCCL_LIBRARY", "libm.so.6", 1), 0);
    assert_int_equal(nccl_lib_open(&n, &err), -ENOENT);
    assert_has(err.text, "'libm.so.6'");
}

static void test_cuda_when_no_driver_then_says_how_to_go_on(void **state)
{
    struct cuda_lib c;
    struct muster_error err = {0};
    assert_int_equal(setenv("MUSTER_CUDA_LIBRARY", "/nowhere/libcuda.so.1", 1), 0);
    assert_int_equal(cuda_lib_open(&c, &err), -ENODEV);
    assert_has(err.text, "no CUDA driver");
    assert_has(err.text, "\"tcp\"");
    assert_int_equal(setenv("MUSTER_CUDA_LIBRARY", "libm.so.6", 1), 0);
    assert_int_equal(cuda_lib_open(&c, &err), -ENODEV);
    assert_has(err.text, "libm.so.6");
}

static void test_cuda_when_no_device_or_a_failing_driver_then_says_so(void **state)
{
    struct cuda_lib c;
    struct muster_error err = {0};
    assert_int_equal(setenv("STANDIN_DEVICES", "0", 1), 0);
    assert_int_equal(cuda_lib_open(&c, &err), -ENODEV);
    assert_has(err.text, "no device");
    assert_int_equal(setenv("STANDIN_FAIL", "cuInit=35", 1), 0);
    assert_int_equal(cuda_lib_open(&c, &err), -ENODEV);
    assert_has(err.text, "does not start: the stand-in's CUDA error (35)");
}

/* Promise: what NCCL says of a failing call is in the sentence, and a lost peer has its own errno.
 */
static void test_error_when_remote_then_connection_reset(void **state)
{
    struct nccl_lib n;
    struct muster_error err = {0};
    assert_int_equal(nccl_lib_open(&n, &err), 0);
    assert_int_equal(nccl_lib_error(&n, NCCL_REMOTE_ERROR, "all-reduce", &err), -ECONNRESET);
    assert_has(err.text, "all-reduce: remote process exited");
    assert_has(err.text, "the stand-in's own words");
    nccl_lib_close(&n);
}

static void test_make_id_when_called_twice_then_two_ids(void **state)
{
    struct nccl_lib n;
    struct nccl_id a;
    struct nccl_id b;
    struct muster_error err = {0};
    assert_int_equal(nccl_lib_open(&n, &err), 0);
    assert_int_equal(nccl_lib_make_id(&n, &a, sizeof a, &err), 0);
    assert_int_equal(nccl_lib_make_id(&n, &b, sizeof b, &err), 0);
    assert_memory_not_equal(&a, &b, sizeof a);
    assert_int_equal(nccl_lib_make_id(&n, &a, 16, &err), -EINVAL);
    assert_int_equal(setenv("STANDIN_FAIL", "ncclGetUniqueId=2", 1), 0);
    assert_int_equal(nccl_lib_make_id(&n, &a, sizeof a, &err), -EIO);
    assert_has(err.text, "making an id: unhandled system error");
    nccl_lib_close(&n);
}

/* --- Freeing --- */

struct gate {
    pthread_mutex_t lock;
    pthread_cond_t opened;
    bool is_open;
    bool was_freed;
};

static int free_at_gate(void *comm)
{
    struct gate *g = comm;
    (void)pthread_mutex_lock(&g->lock);
    while (!g->is_open)
        (void)pthread_cond_wait(&g->opened, &g->lock);
    g->was_freed = true;
    (void)pthread_cond_broadcast(&g->opened);
    (void)pthread_mutex_unlock(&g->lock);
    return 0;
}

/* Promise: an abort that hangs is left after its deadline, and may still end later. */
static void test_free_when_it_hangs_then_left_at_the_deadline(void **state)
{
    struct gate g = {.lock = PTHREAD_MUTEX_INITIALIZER, .opened = PTHREAD_COND_INITIALIZER};
    pthread_mutex_t call_lock = PTHREAD_MUTEX_INITIALIZER;
    struct cuda_lib cuda;
    struct muster_error err = {0};
    int context = 0;
    assert_int_equal(cuda_lib_open(&cuda, &err), 0);
    struct nccl_free *f = nccl_free_start(&cuda, &context, free_at_gate, &g, &call_lock);
    assert_non_null(f);
    int64_t from = sdk_now_ns();
    assert_int_equal(nccl_free_wait(f, 20 * MU_NS_PER_MS), -ETIMEDOUT);
    assert_true(sdk_now_ns() - from >= 20 * MU_NS_PER_MS);
    (void)pthread_mutex_lock(&g.lock);
    assert_false(g.was_freed);
    g.is_open = true;
    (void)pthread_cond_broadcast(&g.opened);
    while (!g.was_freed)
        (void)pthread_cond_wait(&g.opened, &g.lock);
    (void)pthread_mutex_unlock(&g.lock);
    (void)pthread_mutex_lock(&call_lock); /* The thread's last use of what is on this stack. */
    (void)pthread_mutex_unlock(&call_lock);
    cuda_lib_close(&cuda);
}

static void test_free_when_it_works_then_done(void **state)
{
    struct gate g = {
        .lock = PTHREAD_MUTEX_INITIALIZER, .opened = PTHREAD_COND_INITIALIZER, .is_open = true};
    pthread_mutex_t call_lock = PTHREAD_MUTEX_INITIALIZER;
    struct cuda_lib cuda;
    struct muster_error err = {0};
    int context = 0;
    assert_int_equal(cuda_lib_open(&cuda, &err), 0);
    struct nccl_free *f = nccl_free_start(&cuda, &context, free_at_gate, &g, &call_lock);
    assert_int_equal(nccl_free_wait(f, 30 * MU_NS_PER_S), 0);
    assert_true(g.was_freed);
    assert_int_equal(nccl_free_wait(NULL, 0), 0);
    cuda_lib_close(&cuda);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_version_text_when_old_and_new_then_three_numbers, use_standin),
        cmocka_unit_test_setup(test_open_when_2_19_then_accepted, use_standin),
        cmocka_unit_test_setup(test_open_when_older_then_refused_with_both_versions, use_standin),
        cmocka_unit_test_setup(test_open_when_not_there_then_says_how_to_go_on, use_standin),
        cmocka_unit_test_setup(test_cuda_when_no_driver_then_says_how_to_go_on, use_standin),
        cmocka_unit_test_setup(test_cuda_when_no_device_or_a_failing_driver_then_says_so,
                               use_standin),
        cmocka_unit_test_setup(test_error_when_remote_then_connection_reset, use_standin),
        cmocka_unit_test_setup(test_make_id_when_called_twice_then_two_ids, use_standin),
        cmocka_unit_test_setup(test_free_when_it_hangs_then_left_at_the_deadline, use_standin),
        cmocka_unit_test_setup(test_free_when_it_works_then_done, use_standin),
    };
    return cmocka_run_group_tests_name("sdk.nccl", tests, NULL, NULL);
}
