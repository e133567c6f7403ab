/* base/path.h: a path that means the same from another folder. */
#include "tests/unit/unit.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/path.h"

static char folder[64];

static int enter_folder(void **state)
{
    (void)state;
    (void)snprintf(folder, sizeof folder, "/tmp/muster-path-XXXXXX");
    return mkdtemp(folder) != NULL && chdir(folder) == 0 ? 0 : -1;
}

static int leave_folder(void **state)
{
    (void)state;
    return chdir("/");
}

static void test_a_relative_path_is_seen_from_here(void **state)
{
    char path[128];
    char want[128];
    (void)state;
    assert_int_equal(mu_path_absolute("a/../b", path, sizeof path, NULL), 0);
    (void)snprintf(want, sizeof want, "%s/a/../b", folder);
    assert_string_equal(path, want);
    assert_int_equal(mu_path_absolute("/a//b/", path, sizeof path, NULL), 0);
    assert_string_equal(path, "/a//b/");
    assert_int_equal(chdir("/"), 0);
    assert_int_equal(mu_path_absolute("a", path, sizeof path, NULL), 0);
    assert_string_equal(path, "/a");
    assert_int_equal(chdir(folder), 0);
}

static void test_what_does_not_fit_is_refused_whole(void **state)
{
    struct mu_err err = {0};
    char path[128] = "as it was";
    size_t n = strlen(folder) + strlen("/name");
    (void)state;
    assert_int_equal(mu_path_absolute("name", path, n, &err), -ENAMETOOLONG);
    assert_string_equal(path, "as it was");
    assert_has(err.msg, "name");
    assert_has(err.msg, "longer than");
    assert_int_equal(mu_path_absolute("name", path, n + 1, &err), 0);
    assert_int_equal(strlen(path), n);
    assert_int_equal(mu_path_absolute("/name", path, 5, &err), -ENAMETOOLONG);
    assert_int_equal(mu_path_absolute("/name", path, 6, &err), 0);
}

/* The last one: it removes the folder that it stands in. */
static void test_a_folder_without_a_name_asks_for_an_absolute_path(void **state)
{
    struct mu_err err = {0};
    char path[128] = "as it was";
    (void)state;
    assert_int_equal(rmdir(folder), 0);
    assert_int_equal(mu_path_absolute("name", path, sizeof path, &err), -ENOENT);
    assert_string_equal(path, "as it was");
    assert_has(err.msg, "this folder has no name");
    assert_has(err.msg, "give an absolute path");
    assert_int_equal(mu_path_absolute("/name", path, sizeof path, &err), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_relative_path_is_seen_from_here),
        cmocka_unit_test(test_what_does_not_fit_is_refused_whole),
        cmocka_unit_test(test_a_folder_without_a_name_asks_for_an_absolute_path),
    };
    return cmocka_run_group_tests(tests, enter_folder, leave_folder);
}
