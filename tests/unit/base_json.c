/* The JSON writer's promise: what it writes is JSON, and another reader finds the same values. */
#include <math.h>

#include "tests/unit/unit.h"

#include <cjson/cJSON.h>

#include "base/json.h"

static cJSON *parse(struct mu_buf *b)
{
    cJSON *root = cJSON_ParseWithLength(b->p, b->n);
    if (root == NULL)
        fail_msg("not JSON: %s", mu_buf_cstr(b));
    return root;
}

static void test_every_kind_of_value_in_every_place(void **state)
{
    (void)state;
    struct mu_buf b;
    struct mu_json w;
    mu_buf_init(&b, mu_mem_default());
    mu_json_init(&w, &b);
    mu_json_open(&w, '{');
    mu_json_kstr(&w, "s", "x");
    mu_json_ki64(&w, "min", INT64_MIN);
    mu_json_ki64(&w, "max", INT64_MAX);
    mu_json_kbool(&w, "yes", true);
    mu_json_kbool(&w, "no", false);
    mu_json_kstr(&w, "null", NULL);
    mu_json_key(&w, "empty");
    mu_json_open(&w, '[');
    mu_json_close(&w, ']');
    mu_json_key(&w, "list");
    mu_json_open(&w, '[');
    mu_json_num(&w, 0.5);
    mu_json_open(&w, '{');
    mu_json_close(&w, '}');
    mu_json_null(&w);
    mu_json_num(&w, HUGE_VAL);
    mu_json_num(&w, -HUGE_VAL);
    mu_json_num(&w, HUGE_VAL - HUGE_VAL);
    mu_json_str(&w, "");
    mu_json_close(&w, ']');
    mu_json_ki64(&w, "last", -1);
    mu_json_close(&w, '}');
    assert_false(b.oom);
    assert_string_equal(
        mu_buf_cstr(&b),
        "{\"s\":\"x\",\"min\":-9223372036854775808,\"max\":9223372036854775807,\"yes\":true,"
        "\"no\":false,\"null\":null,\"empty\":[],\"list\":[0.5,{},null,null,null,null,\"\"],"
        "\"last\":-1}");
    cJSON_Delete(parse(&b));
    mu_buf_fini(&b);
}

/* Each byte, alone and between letters, reads back as itself or as U+FFFD. */
static void test_every_byte_survives_a_reader(void **state)
{
    (void)state;
    for (int c = 1; c < 256; c++) {
        char in[4] = {'a', (char)c, 'z', '\0'};
        struct mu_buf b;
        struct mu_json w;
        mu_buf_init(&b, mu_mem_default());
        mu_json_init(&w, &b);
        mu_json_open(&w, '[');
        mu_json_str(&w, in);
        mu_json_str(&w, in + 1);
        mu_json_close(&w, ']');
        cJSON *root = parse(&b);
        assert_string_equal(root->child->valuestring, c < 0x80 ? in : "a\xef\xbf\xbdz");
        assert_string_equal(root->child->next->valuestring, c < 0x80 ? in + 1 : "\xef\xbf\xbdz");
        cJSON_Delete(root);
        mu_buf_fini(&b);
    }
}

static void string_is(struct mu_str in, const char *want)
{
    struct mu_buf b;
    struct mu_json w;
    mu_buf_init(&b, mu_mem_default());
    mu_json_init(&w, &b);
    mu_json_strn(&w, in);
    assert_string_equal(mu_buf_cstr(&b), want);
    mu_buf_fini(&b);
}

static void test_strings_are_utf8_whatever_came(void **state)
{
    (void)state;
    string_is(mu_str_of("\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", 9),
              "\"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\"");
    string_is(mu_str_of("\xc3", 1), "\"\xef\xbf\xbd\"");                 /* Cut short. */
    string_is(mu_str_of("\xc0\xaf", 2), "\"\xef\xbf\xbd\xef\xbf\xbd\""); /* Overlong. */
    string_is(mu_str_of("\xed\xa0\x80", 3),
              "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""); /* A surrogate. */
    string_is(mu_str_of("\xf4\x90\x80\x80", 4),
              "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""); /* Beyond U+10FFFF. */
    string_is(mu_str_of("a\0b", 3), "\"a\\u0000b\"");
    string_is(mu_str_of("\"\\\b\f\n\r\t\x1f", 8), "\"\\\"\\\\\\b\\f\\n\\r\\t\\u001f\"");
    string_is(mu_str_of(NULL, 0), "\"\"");
}

static void test_keys_are_escaped_too(void **state)
{
    (void)state;
    struct mu_buf b;
    struct mu_json w;
    mu_buf_init(&b, mu_mem_default());
    mu_json_init(&w, &b);
    mu_json_open(&w, '{');
    mu_json_ki64(&w, "a\"b", 1);
    mu_json_close(&w, '}');
    assert_string_equal(mu_buf_cstr(&b), "{\"a\\\"b\":1}");
    mu_buf_reset(&b);
    mu_json_quoted(&b, "a\"b");
    assert_string_equal(mu_buf_cstr(&b), "\"a\\\"b\"");
    mu_buf_fini(&b);
}

static void test_numbers_read_back_close_enough(void **state)
{
    (void)state;
    static const double values[] = {0.0, -0.0, 1.0, 0.1, 1e-9, 1e9, 123456789.0, -2.5e300, 3.125};
    for (size_t i = 0; i < MU_COUNT(values); i++) {
        struct mu_buf b;
        struct mu_json w;
        mu_buf_init(&b, mu_mem_default());
        mu_json_init(&w, &b);
        mu_json_num(&w, values[i]);
        cJSON *v = parse(&b);
        assert_true(fabs(v->valuedouble - values[i]) <= fabs(values[i]) * 1e-8);
        cJSON_Delete(v);
        mu_buf_fini(&b);
    }
}

static void test_nested_to_the_limit(void **state)
{
    (void)state;
    struct mu_buf b;
    struct mu_json w;
    mu_buf_init(&b, mu_mem_default());
    mu_json_init(&w, &b);
    for (int i = 0; i < 15; i++) {
        mu_json_open(&w, '[');
        mu_json_i64(&w, i);
    }
    for (int i = 0; i < 15; i++)
        mu_json_close(&w, ']');
    cJSON *root = parse(&b);
    int depth = 0;
    for (const cJSON *at = root; at != NULL && cJSON_IsArray(at); at = cJSON_GetArrayItem(at, 1)) {
        assert_int_equal(cJSON_GetArrayItem(at, 0)->valueint, depth);
        depth++;
    }
    assert_int_equal(depth, 15);
    cJSON_Delete(root);
    mu_buf_fini(&b);
}

static void test_out_of_memory_shows(void **state)
{
    (void)state;
    struct mu_mem_failing heap;
    mu_mem_failing_init(&heap, 2);
    struct mu_buf b;
    struct mu_json w;
    mu_buf_init(&b, &heap.mem);
    mu_json_init(&w, &b);
    mu_json_open(&w, '[');
    for (int i = 0; i < 100; i++)
        mu_json_str(&w, "some text");
    mu_json_close(&w, ']');
    assert_true(b.oom);
    mu_buf_fini(&b);
    assert_int_equal(heap.live, 0);
}

static void test_utf8_length(void **state)
{
    (void)state;
    assert_int_equal(mu_utf8_len("", 0), 0);
    assert_int_equal(mu_utf8_len("a", 1), 1);
    assert_int_equal(mu_utf8_len("\xdf\xbf", 2), 2);
    assert_int_equal(mu_utf8_len("\xe0\xa0\x80", 3), 3);
    assert_int_equal(mu_utf8_len("\xe0\x9f\x80", 3), 0);
    assert_int_equal(mu_utf8_len("\xf4\x8f\xbf\xbf", 4), 4);
    assert_int_equal(mu_utf8_len("\xf0\x8f\xbf\xbf", 4), 0);
    assert_int_equal(mu_utf8_len("\xf5\x80\x80\x80", 4), 0);
    assert_int_equal(mu_utf8_len("\x80", 1), 0);
    assert_int_equal(mu_utf8_len("\xe2\x82", 2), 0);
    assert_int_equal(mu_utf8_len("\xe2(\x82", 3), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_kind_of_value_in_every_place),
        cmocka_unit_test(test_every_byte_survives_a_reader),
        cmocka_unit_test(test_strings_are_utf8_whatever_came),
        cmocka_unit_test(test_keys_are_escaped_too),
        cmocka_unit_test(test_numbers_read_back_close_enough),
        cmocka_unit_test(test_nested_to_the_limit),
        cmocka_unit_test(test_out_of_memory_shows),
        cmocka_unit_test(test_utf8_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
