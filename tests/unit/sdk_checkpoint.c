/* worker-sdk/src/ddp/checkpoint.c: which checkpoint is found, who may write, what is removed.
 * Killed writers and full disks are tests/blackbox/test_sdk_checkpoint.py's. */
#include "tests/unit/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <muster/checkpoint.h>

#include "worker-sdk/src/core/sdk.h"

int muster_comm_barrier(muster_comm *c, int64_t timeout_ns, struct muster_error *err)
{
    (void)timeout_ns;
    return sdk_error(err, *(int *)c, "rank 1 is missing"); /* The "communicator" is its answer. */
}

static char dir[64]; /* This test's own; the checkpoints are in a folder below, not made yet. */
static char ckpt[80];

static int make_dir(void **state)
{
    (void)state;
    (void)snprintf(dir, sizeof dir, "/tmp/sdk_checkpoint.XXXXXX");
    if (mkdtemp(dir) == NULL)
        return -1;
    (void)snprintf(ckpt, sizeof ckpt, "%s/ckpt", dir);
    return 0;
}

static int remove_dir(void **state)
{
    (void)state;
    pid_t pid = fork();
    if (pid == 0) {
        execlp("rm", "rm", "-rf", dir, (char *)NULL);
        _exit(127);
    }
    return waitpid(pid, NULL, 0) == pid ? 0 : -1;
}

static muster worker(const char *run_id, uint32_t round)
{
    muster m = {.env = {.world = 1, .round = round}, .timeout_ns = MU_NS_PER_S};
    (void)snprintf(m.env.run_id, sizeof m.env.run_id, "%s", run_id);
    return m;
}

static void put(const char *path, const char *name, const char *text)
{
    char full[300];
    (void)snprintf(full, sizeof full, "%s/%s", path, name);
    FILE *f = fopen(full, "we");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static bool has(const char *name)
{
    char full[300];
    (void)snprintf(full, sizeof full, "%s/%s", ckpt, name);
    return access(full, F_OK) == 0;
}

static void make_folder(const char *name)
{
    char full[300];
    (void)snprintf(full, sizeof full, "%s/%s", ckpt, name);
    assert_int_equal(mkdir(full, 0777), 0);
}

static int try_write(muster *m, uint64_t step, const char *text, struct muster_error *err)
{
    muster_checkpoint *k = NULL;
    int r = muster_checkpoint_begin(m, NULL, ckpt, step, &k, err);
    if (r < 0)
        return r;
    put(muster_checkpoint_path(k), "weights", text);
    return muster_checkpoint_commit(k, err);
}

static void write_one(muster *m, uint64_t step, const char *text)
{
    struct muster_error err;
    if (try_write(m, step, text, &err) < 0)
        fail_msg("%s", err.text);
}

/* "120:text" of the newest, or "none". */
static void expect_latest(const char *want)
{
    struct muster_error err;
    uint64_t step = 0;
    char path[300];
    char got[300] = "none";
    int r = muster_checkpoint_latest(ckpt, &step, path, sizeof path, &err);
    if (r < 0)
        fail_msg("%s", err.text);
    if (r == 1) {
        char text[32] = "";
        (void)strncat(path, "/weights", sizeof path - strlen(path) - 1);
        FILE *f = fopen(path, "re");
        assert_non_null(f);
        text[fread(text, 1, sizeof text - 1, f)] = '\0';
        (void)fclose(f);
        (void)snprintf(got, sizeof got, "%u:%s", (unsigned)step, text);
    }
    assert_string_equal(got, want);
}

static void test_newest_whole_one_is_found(void **state)
{
    muster m = worker("job", 1);
    (void)state;
    expect_latest("none"); /* No such folder. */
    write_one(&m, 9, "nine");
    write_one(&m, 120, "much later");
    write_one(&m, 30, "thirty");
    expect_latest("120:much later");
    assert_true(has("step-000000000120/DONE"));
    make_folder("step-000000000500"); /* No mark. */
    make_folder("step-5000");         /* Not ours. */
    make_folder("step-00000000070x");
    expect_latest("120:much later");
}

static void test_what_is_discarded_leaves_nothing(void **state)
{
    muster m = worker("job", 1);
    muster_checkpoint *k = NULL;
    struct muster_error err;
    (void)state;
    assert_int_equal(muster_checkpoint_begin(&m, NULL, ckpt, 7, &k, &err), 0);
    put(muster_checkpoint_path(k), "weights", "x");
    char path[300];
    (void)snprintf(path, sizeof path, "%s", muster_checkpoint_path(k));
    expect_latest("none");
    muster_checkpoint_discard(k);
    assert_int_equal(access(path, F_OK), -1);
    muster_checkpoint_discard(NULL);
}

static void test_one_of_the_same_step_is_replaced(void **state)
{
    muster m = worker("job", 1);
    (void)state;
    write_one(&m, 7, "first");
    write_one(&m, 7, "second");
    expect_latest("7:second");
    assert_false(has("step-000000000007.old"));
}

static void test_one_that_stepped_aside_counts_while_its_successor_has_no_mark(void **state)
{
    muster m = worker("job", 1);
    char from[300];
    char to[300];
    struct muster_error err;
    (void)state;
    write_one(&m, 7, "first");
    (void)snprintf(from, sizeof from, "%s/step-000000000007", ckpt);
    (void)snprintf(to, sizeof to, "%s/step-000000000007.old", ckpt);
    assert_int_equal(rename(from, to), 0);
    make_folder("step-000000000007"); /* As after a kill between rename and mark. */
    expect_latest("7:first");
    assert_int_equal(muster_checkpoint_prune(ckpt, 1, &err), 0);
    expect_latest("7:first");
    assert_false(has("step-000000000007"));
    write_one(&m, 7, "second");
    expect_latest("7:second");
    assert_int_equal(muster_checkpoint_prune(ckpt, 1, &err), 0);
    assert_false(has("step-000000000007.old"));
    expect_latest("7:second");
}

/* --- who may write --- */

static void test_a_lower_round_is_stale_and_changes_nothing(void **state)
{
    muster old = worker("job", 3);
    muster new = worker("job", 4);
    struct muster_error err = {0};
    (void)state;
    write_one(&old, 1, "old");
    write_one(&new, 2, "new");
    assert_int_equal(try_write(&old, 3, "old", &err), -ESTALE);
    assert_has(err.text, "round 3 of job job is over: round 4 of job job writes here now");
    expect_latest("2:new");
    write_one(&new, 3, "new");
}

static void test_a_writer_that_was_overtaken_is_refused_at_commit(void **state)
{
    muster old = worker("job", 3);
    muster new = worker("job", 4);
    muster_checkpoint *k = NULL;
    struct muster_error err = {0};
    (void)state;
    assert_int_equal(muster_checkpoint_begin(&old, NULL, ckpt, 7, &k, &err), 0);
    put(muster_checkpoint_path(k), "weights", "old");
    char path[300];
    (void)snprintf(path, sizeof path, "%s", muster_checkpoint_path(k));
    write_one(&new, 7, "new");
    assert_int_equal(muster_checkpoint_commit(k, &err), -ESTALE);
    expect_latest("7:new");
    assert_int_equal(access(path, F_OK), -1);
}

static void claim(const char *run_id, unsigned round, long long started_ms)
{
    char text[200];
    (void)snprintf(text, sizeof text, "run_id=%s\nround=%u\nstarted_ms=%lld\n", run_id, round,
                   started_ms);
    put(ckpt, "ROUND", text);
}

static void test_a_new_launch_is_no_stale_writer(void **state)
{
    muster m = worker("job", 1);
    long long now_ms = mu_unix_ms();
    (void)state;
    write_one(&m, 1, "first");
    m = worker("job", 1);              /* Each a process of its own. */
    claim("job", 9, now_ms - 3600000); /* The same name, started an hour ago. */
    write_one(&m, 2, "again");
    m = worker("job", 1);
    claim("other", 9, now_ms - 3600000);
    write_one(&m, 3, "moved in");
    put(ckpt, "ROUND", "rubbish"); /* Says nothing, so nothing against us. */
    write_one(&m, 4, "fine");
    expect_latest("4:fine");
}

/* Writers that have written here before are told by their numbers, whatever the clocks say; the
 * others by when they were started. */
static void test_who_came_after_us_makes_us_stale(void **state)
{
    muster first = worker("job", 9);
    muster next = worker("job", 1); /* Another launch of the job. */
    muster other = worker("other", 1);
    struct muster_error err = {0};
    (void)state;
    write_one(&first, 1, "first");
    claim("job", 1, mu_unix_ms() - 3600000); /* From a host whose clock is an hour late. */
    assert_int_equal(try_write(&first, 2, "stale", &err), -ESTALE);
    assert_has(err.text, "remove ROUND");
    int64_t end_ms = mu_unix_ms() + 200;
    while (mu_unix_ms() < end_ms) /* Longer than our start is uncertain. */
        (void)poll(NULL, 0, 1);
    claim("another", 1, mu_unix_ms());
    assert_int_equal(try_write(&next, 2, "stale", &err), -ESTALE);
    claim("job", 9, mu_unix_ms());
    assert_int_equal(try_write(&next, 2, "stale", &err), -ESTALE);
    assert_int_equal(try_write(&other, 2, "stale", &err), -ESTALE);
}

/* From a host whose clock is an hour early: nobody was started then. */
static void test_a_mark_of_the_future_shuts_nobody_out(void **state)
{
    muster a = worker("job", 1);
    muster b = worker("other", 1);
    (void)state;
    write_one(&a, 1, "first");
    claim("job", 9, mu_unix_ms() + 3600000);
    write_one(&b, 2, "second");
    expect_latest("2:second");
}

static void test_a_lock_that_is_held_is_waited_for_and_named(void **state)
{
    muster m = worker("job", 1);
    struct muster_error err = {0};
    int held[2];
    int over[2];
    char byte = 0;
    (void)state;
    m.timeout_ns = 30 * MU_NS_PER_MS;
    write_one(&m, 1, "first");
    assert_true(pipe(held) == 0 && pipe(over) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        char path[300];
        (void)snprintf(path, sizeof path, "%s/.lock", ckpt);
        int fd = open(path, O_RDWR | O_CLOEXEC);
        (void)close(over[1]);
        bool ok = fd >= 0 && flock(fd, LOCK_EX) == 0 && write(held[1], "x", 1) == 1;
        (void)!read(over[0], &byte, 1); /* Until the test is done with us. */
        _exit(ok ? 0 : 1);
    }
    (void)close(over[0]);
    assert_int_equal(read(held[0], &byte, 1), 1);
    assert_int_equal(try_write(&m, 2, "x", &err), -ETIMEDOUT);
    assert_has(err.text, "another process has held '.lock'");
    (void)close(over[1]);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    (void)close(held[0]);
    (void)close(held[1]);
    write_one(&m, 2, "second");
}

/* --- ranks --- */

static void test_other_ranks_get_a_handle_that_does_nothing(void **state)
{
    muster m = worker("job", 1);
    muster_checkpoint *k = NULL;
    struct muster_error err = {0};
    int fine = 0;
    int late = -ETIMEDOUT;
    (void)state;
    m.env.world = 2;
    m.env.rank = 1;
    assert_int_equal(muster_checkpoint_begin(&m, (muster_comm *)&fine, ckpt, 1, &k, &err), 0);
    assert_null(muster_checkpoint_path(k));
    assert_int_equal(muster_checkpoint_commit(k, &err), 0);
    assert_int_equal(access(ckpt, F_OK), -1);
    k = NULL;
    assert_int_equal(muster_checkpoint_begin(&m, (muster_comm *)&late, ckpt, 1, &k, &err),
                     -ETIMEDOUT);
    assert_has(err.text, "checkpoint: rank 1 is missing");
    assert_int_equal(muster_checkpoint_begin(&m, NULL, ckpt, 1, &k, &err), -EINVAL);
    assert_null(k);
}

/* --- prune --- */

static void test_prune_keeps_the_newest_and_what_is_being_written(void **state)
{
    muster m = worker("job", 1);
    muster_checkpoint *k = NULL;
    struct muster_error err = {0};
    (void)state;
    for (uint64_t step = 1; step <= 5; step++)
        write_one(&m, step, "x");
    make_folder("step-000000000009");  /* Left over. */
    make_folder(".writing-8-123-0");   /* Its writer died. */
    make_folder("mine");               /* Somebody else's. */
    put(ckpt, ".ROUND.123", "run_id"); /* Killed while it wrote ROUND. */
    assert_int_equal(muster_checkpoint_begin(&m, NULL, ckpt, 6, &k, &err), 0);
    put(muster_checkpoint_path(k), "weights", "six");
    if (muster_checkpoint_prune(ckpt, 2, &err) < 0)
        fail_msg("%s", err.text);
    assert_true(has("step-000000000005") && has("step-000000000004") && has("mine"));
    assert_false(has("step-000000000003") || has("step-000000000001"));
    assert_false(has("step-000000000009") || has(".writing-8-123-0") || has(".ROUND.123"));
    assert_int_equal(muster_checkpoint_commit(k, &err), 0);
    expect_latest("6:six");
    assert_int_equal(muster_checkpoint_prune(ckpt, 0, &err), 0);
    expect_latest("none");
}

static void test_wrong_places_get_a_sentence(void **state)
{
    muster m = worker("job", 1);
    muster_checkpoint *k = NULL;
    struct muster_error err = {0};
    uint64_t step = 0;
    char path[8];
    (void)state;
    (void)snprintf(ckpt, sizeof ckpt, "%s/no/such", dir);
    assert_int_equal(muster_checkpoint_begin(&m, NULL, ckpt, 1, &k, &err), -ENOENT);
    assert_has(err.text, ckpt);
    assert_int_equal(muster_checkpoint_begin(&m, NULL, ckpt, UINT64_MAX, &k, &err), -ERANGE);
    (void)snprintf(ckpt, sizeof ckpt, "%s/ckpt", dir);
    write_one(&m, 1, "x");
    assert_int_equal(muster_checkpoint_latest(ckpt, &step, path, sizeof path, &err), -ENAMETOOLONG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(fn) cmocka_unit_test_setup_teardown(fn, make_dir, remove_dir)
        T(test_newest_whole_one_is_found),
        T(test_what_is_discarded_leaves_nothing),
        T(test_one_of_the_same_step_is_replaced),
        T(test_one_that_stepped_aside_counts_while_its_successor_has_no_mark),
        T(test_a_lower_round_is_stale_and_changes_nothing),
        T(test_a_writer_that_was_overtaken_is_refused_at_commit),
        T(test_a_new_launch_is_no_stale_writer),
        T(test_who_came_after_us_makes_us_stale),
        T(test_a_mark_of_the_future_shuts_nobody_out),
        T(test_a_lock_that_is_held_is_waited_for_and_named),
        T(test_other_ranks_get_a_handle_that_does_nothing),
        T(test_prune_keeps_the_newest_and_what_is_being_written),
        T(test_wrong_places_get_a_sentence),
#undef T
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
