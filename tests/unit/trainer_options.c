/* Promise: the option table's own defaults are right, and a wrong option gets a sentence that says
 * what is right. */
#include "tests/unit/unit.h"

#include <stdlib.h>
#include <unistd.h>

#include "trainer-example/options.h"

enum {
    WORDS_MAX = 8
};

/* Parse, with stderr in `text`. */
static int parse(struct settings *s, char *text, size_t bytes, const char *const *words)
{
    char *argv[WORDS_MAX] = {NULL};
    int argc = 0;
    for (; words[argc] != NULL; argc++)
        argv[argc] = strdup(words[argc]);
    FILE *f = tmpfile();
    assert_non_null(f);
    fflush(stderr);
    const int keep = dup(STDERR_FILENO);
    dup2(fileno(f), STDERR_FILENO);
    const int r = settings_parse(argc, argv, s);
    fflush(stderr);
    dup2(keep, STDERR_FILENO);
    close(keep);
    rewind(f);
    text[fread(text, 1, bytes - 1, f)] = '\0';
    fclose(f);
    /* Settings borrow from argv; the test looks at numbers only. */
    for (int i = 0; i < argc; i++)
        free(argv[i]);
    return r;
}

#define PARSE(s, text, ...)                                                                        \
    parse((s), (text), sizeof(text), (const char *const[]){"trainer", __VA_ARGS__, NULL})

static void test_defaults_are_the_references(void **unused)
{
    struct settings s;
    char text[256];
    assert_int_equal(PARSE(&s, text, "--width=1"), 0);
    assert_string_equal(text, "");
    assert_int_equal(s.epochs, 10);
    assert_int_equal(s.batch, 32);
    assert_int_equal(s.dtype, MUSTER_F32);
    assert_true(s.adamw.lr == 1e-3 && s.adamw.beta1 == 0.9 && s.adamw.beta2 == 0.999 &&
                s.adamw.eps == 1e-8 && s.adamw.weight_decay == 0.01);
    assert_null(s.checkpoint);
    assert_null(s.init);
}

static void test_both_forms_are_read(void **unused)
{
    struct settings s;
    char text[256];
    assert_int_equal(PARSE(&s, text, "--batch", "64", "--dtype=float64", "--lr", "0.5"), 0);
    assert_int_equal(s.batch, 64);
    assert_int_equal(s.dtype, MUSTER_F64);
    assert_true(s.adamw.lr == 0.5);
}

static void test_what_is_wrong_is_named(void **unused)
{
    struct settings s;
    char text[256];
    assert_int_equal(PARSE(&s, text, "--batch", "0"), -1);
    assert_has(text, "--batch is a whole number from 1 to 65536, not '0'");
    assert_int_equal(PARSE(&s, text, "--batch", "1.5"), -1);
    assert_has(text, "not '1.5'");
    assert_int_equal(PARSE(&s, text, "--lr", "fast"), -1);
    assert_has(text, "--lr is a number");
    assert_int_equal(PARSE(&s, text, "--lr", "nan"), -1);
    assert_int_equal(PARSE(&s, text, "--dtype", "float16"), -1);
    assert_has(text, "--dtype is float32|float64, not 'float16'");
    assert_int_equal(PARSE(&s, text, "--bach", "1"), -1);
    assert_has(text, "no option '--bach'");
    assert_int_equal(PARSE(&s, text, "--batch"), -1);
    assert_has(text, "--batch wants N behind it");
    assert_int_equal(PARSE(&s, text, "--data="), -1);
    assert_has(text, "--data wants a FILE");
}

static void test_options_that_do_not_go_together_are_refused(void **unused)
{
    struct settings s;
    char text[256];
    assert_int_equal(PARSE(&s, text, "--device=cpu", "--backend=nccl"), -1);
    assert_has(text, "--device cuda");
    assert_int_equal(PARSE(&s, text, "--every=3"), -1);
    assert_has(text, "--checkpoint");
    assert_int_equal(PARSE(&s, text, "--beta2=1"), -1);
    assert_has(text, "below 1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults_are_the_references),
        cmocka_unit_test(test_both_forms_are_read),
        cmocka_unit_test(test_what_is_wrong_is_named),
        cmocka_unit_test(test_options_that_do_not_go_together_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
