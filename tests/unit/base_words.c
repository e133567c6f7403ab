/* Which word was meant. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/words.h"

static const char *const names[] = {"status", "jobs", "nodes", "workers"};

static const char *near(const char *word)
{
    return mu_nearest(word, names, MU_COUNT(names));
}

static void a_slip_of_the_finger_is_understood(void **state)
{
    (void)state;
    assert_string_equal(near("statsu"), "status");
    assert_string_equal(near("stauts"), "status");
    assert_string_equal(near("job"), "jobs");
    assert_string_equal(near("node"), "nodes");
    assert_string_equal(near("workerss"), "workers");
}

static void another_word_is_not(void **state)
{
    char longest[300];
    (void)state;
    memset(longest, 'a', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    assert_null(near("launch"));
    assert_null(near("xyz"));
    assert_null(near(longest));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_slip_of_the_finger_is_understood),
        cmocka_unit_test(another_word_is_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
