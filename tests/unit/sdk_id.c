/* Handing out ids: who makes which, what options can be right, and a world of one. The exchange
 * between processes is tests/blackbox/test_sdk_nccl.py. */
#include <errno.h>
#include <stdlib.h>

#include <muster/id.h>

#include "base/check.h"
#include "tests/unit/unit.h"

/* Promise: the ids' makers are the first ranks of id_count blocks, the longer ones first, as
 * ncclCommInitRankScalable() divides ranks. */
static void test_maker_of_when_ranks_do_not_divide_then_first_blocks_are_longer(void **state)
{
    static const uint32_t of_10_by_4[] = {0, 3, 6, 8}; /* Blocks of 3, 3, 2, 2. */
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(muster_id_maker_of(i, 4, 10), of_10_by_4[i]);
    assert_int_equal(muster_id_maker_of(0, 1, 4096), 0);
    assert_int_equal(muster_id_maker_of(31, 32, 4096), 3968);
    assert_int_equal(muster_id_maker_of(4, 5, 5), 4);
}

/* Each rank's block begins at its maker: walking the ranks meets the makers in order. */
static void test_maker_of_when_walked_then_each_block_begins_at_its_maker(void **state)
{
    for (uint32_t world = 1; world < 40; world++)
        for (uint32_t count = 1; count <= world; count++) {
            uint32_t next = 0;
            for (uint32_t i = 0; i < count; i++) {
                assert_int_equal(muster_id_maker_of(i, count, world), next);
                next += world / count + (i < world % count);
            }
            assert_int_equal(next, world);
        }
}

static int make_number(void *arg, void *ret_id, size_t id_bytes, struct muster_error *err)
{
    int *made = arg;
    memset(ret_id, ++*made, id_bytes);
    return 0;
}

static int make_nothing(void *arg, void *ret_id, size_t id_bytes, struct muster_error *err)
{
    return -EIO;
}

static int open_alone(void **state)
{
    static const char *const launchers[] = {"RANK",         "WORLD_SIZE",   "LOCAL_RANK",
                                            "MASTER_ADDR",  "MASTER_PORT",  "PMI_RANK",
                                            "SLURM_PROCID", "SLURM_JOB_ID", "OMPI_COMM_WORLD_RANK"};
    struct muster_error err = {0};
    for (size_t i = 0; i < MU_COUNT(launchers); i++)
        (void)unsetenv(launchers[i]);
    muster *m = NULL;
    if (muster_open(NULL, &m, &err) < 0) {
        print_error("%s\n", err.text);
        return -1;
    }
    *state = m;
    return 0;
}

static int close_alone(void **state)
{
    muster_close(*state);
    return 0;
}

/* Promise: a program that runs alone needs no store. */
static void test_exchange_when_alone_then_makes_one_itself(void **state)
{
    int made = 0;
    char id[8] = "";
    uint64_t number = 9;
    struct muster_error err = {0};
    struct muster_id_options o = MUSTER_ID_OPTIONS_INIT;
    o.name = "alone";
    o.id_bytes = sizeof id;
    o.maker = make_number;
    o.arg = &made;
    assert_int_equal(muster_id_exchange(*state, &o, id, &number, &err), 0);
    assert_int_equal(id[7], 1);
    assert_int_equal(muster_id_left(*state, "alone", number, &err), 0);
    assert_int_equal(muster_id_check(*state, "alone", number, &err), 0);
    assert_int_equal(muster_id_missing(*state, "alone", number, &err), 0);
}

/* Promise: outputs are written on success only. */
static void test_exchange_when_the_maker_fails_then_nothing_is_written(void **state)
{
    char id[8] = "before";
    uint64_t number = 9;
    struct muster_error err = {0};
    struct muster_id_options o = MUSTER_ID_OPTIONS_INIT;
    o.name = "alone";
    o.id_bytes = sizeof id;
    o.maker = make_nothing;
    assert_int_equal(muster_id_exchange(*state, &o, id, &number, &err), -EIO);
    assert_string_equal(id, "before");
    assert_int_equal(number, 9);
}

static void refused(muster *m, const struct muster_id_options *o, const char *part)
{
    char id[8];
    uint64_t number = 0;
    struct muster_error err = {0};
    assert_int_equal(muster_id_exchange(m, o, id, &number, &err), -EINVAL);
    assert_has(err.text, part);
}

/* Promise: options that cannot be right get a sentence, and nobody waits. */
static void test_exchange_when_options_are_wrong_then_each_is_named(void **state)
{
    char long_name[80] = "";
    int made = 0;
    struct muster_id_options right = MUSTER_ID_OPTIONS_INIT;
    right.name = "n";
    right.id_bytes = 8;
    right.maker = make_number;
    right.arg = &made;
    struct muster_id_options o = right;
    o.name = NULL;
    refused(*state, &o, "name");
    memset(long_name, 'x', 65);
    o.name = long_name;
    refused(*state, &o, "1 to 64 bytes");
    o = right;
    o.maker = NULL;
    refused(*state, &o, "maker");
    o = right;
    o.id_bytes = 4097;
    refused(*state, &o, "4097");
    o = right;
    o.id_count = 2;
    refused(*state, &o, "2 ids for 1 ranks");
    o = right;
    o.same = "two\nlines";
    refused(*state, &o, "one line");
    assert_int_equal(made, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_maker_of_when_ranks_do_not_divide_then_first_blocks_are_longer),
        cmocka_unit_test(test_maker_of_when_walked_then_each_block_begins_at_its_maker),
        cmocka_unit_test_setup_teardown(test_exchange_when_alone_then_makes_one_itself, open_alone,
                                        close_alone),
        cmocka_unit_test_setup_teardown(test_exchange_when_the_maker_fails_then_nothing_is_written,
                                        open_alone, close_alone),
        cmocka_unit_test_setup_teardown(test_exchange_when_options_are_wrong_then_each_is_named,
                                        open_alone, close_alone),
    };
    return cmocka_run_group_tests_name("sdk.id", tests, NULL, NULL);
}
