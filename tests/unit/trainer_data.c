/* Promise: batches come whole and in order, whoever filled them; a file that is no data set is
 * refused with its reason. */
#include "tests/unit/unit.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "trainer-example/data.h"

#define DIGITS MUSTER_SOURCE_DIR "/tests/data/digits.bin"

enum {
    COUNT = 333,
    BATCH = 10
};

static void
check_batch(const struct dataset *d, const struct batch *b, const int64_t *items, size_t k)
{
    const size_t left = COUNT - k * BATCH;
    assert_int_equal(b->count, left < BATCH ? left : BATCH);
    for (size_t i = 0; i < b->count; i++) {
        const size_t item = (size_t)items[k * BATCH + i];
        assert_int_equal(b->labels[i], d->labels[item]);
        for (size_t p = 0; p < IMAGE_PIXELS; p++)
            assert_true(((const float *)b->images)[i * IMAGE_PIXELS + p] ==
                        (float)d->pixels[item * IMAGE_PIXELS + p] / 16);
    }
}

static void check_with(uint32_t workers)
{
    struct dataset d;
    struct loader *l;
    struct muster_error err;
    int64_t items[COUNT];
    assert_int_equal(dataset_open(&d, DIGITS, &err), 0);
    const struct loader_options o = {&d, &net_cpu_f32, MUSTER_F32, BATCH, workers};
    assert_int_equal(loader_open(&o, &l, &err), 0);
    for (size_t run = 0; run < 20; run++) {
        for (size_t i = 0; i < COUNT; i++)
            items[i] = (int64_t)((i * 7 + run * 13) % d.count);
        const size_t first = run % 3;
        loader_start(l, items, COUNT, first);
        const struct batch *one = loader_next(l);
        for (size_t k = first; one != NULL; k++) {
            const struct batch *two = loader_next(l);
            check_batch(&d, one, items, k); /* Still whole with the next one given out. */
            one = two;
            if (run == 7 && k == 5)
                break; /* The rest of this run is dropped. */
        }
        if (run != 7)
            assert_null(loader_next(l));
    }
    loader_close(l);
    dataset_close(&d);
}

static void test_batches_are_the_same_with_any_number_of_fillers(void **unused)
{
    check_with(0);
    check_with(1);
    check_with(3);
}

static void write_file(char *path, const char *bytes, size_t n)
{
    const int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, bytes, n) == (ssize_t)n);
    close(fd);
}

static void test_files_that_are_no_data_set_are_refused(void **unused)
{
    struct dataset d;
    struct muster_error err;
    static char whole[200000];
    FILE *f = fopen(DIGITS, "rb");
    const size_t n = fread(whole, 1, sizeof whole, f);
    fclose(f);
    assert_int_equal(dataset_open(&d, "/nowhere/digits.bin", &err), -ENOENT);
    assert_has(err.text, "/nowhere/digits.bin");

    char cut[] = "/tmp/muster-digits-XXXXXX", bad[] = "/tmp/muster-digits-XXXXXX",
         brief[] = "/tmp/muster-digits-XXXXXX", label[] = "/tmp/muster-digits-XXXXXX";
    write_file(cut, whole, n - 1);
    assert_int_equal(dataset_open(&d, cut, &err), -EINVAL);
    assert_has(err.text, "it was cut");
    write_file(brief, whole, 5);
    assert_int_equal(dataset_open(&d, brief, &err), -EINVAL);
    assert_has(err.text, "too short");
    whole[n - 1] = 10;
    write_file(label, whole, n);
    assert_int_equal(dataset_open(&d, label, &err), -EINVAL);
    assert_has(err.text, "item 1796 has label 10");
    whole[0] = 'm';
    write_file(bad, whole, n);
    assert_int_equal(dataset_open(&d, bad, &err), -EINVAL);
    assert_has(err.text, "no MUSTDS01 file");
    unlink(cut);
    unlink(bad);
    unlink(brief);
    unlink(label);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batches_are_the_same_with_any_number_of_fillers),
        cmocka_unit_test(test_files_that_are_no_data_set_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
