/* What metadata services answer, as their documentation shows it. */
#include "agent/notice_read.h"

#include <errno.h>

#include "tests/unit/unit.h"

#define NOW INT64_C(1505722800000) /* 2017-09-18T08:20:00Z */

struct row {
    enum notice_kind kind;
    long status;
    const char *body;
    const char *own_name;
    int result;
    const char *reason; /* NULL: no notice. */
    int64_t left_ms;
};

#define AZURE(type, names, when)                                                                   \
    "{\"DocumentIncarnation\":1,\"Events\":[{\"EventId\":\"x\",\"EventType\":\"" type              \
    "\",\"ResourceType\":\"VirtualMachine\",\"Resources\":[" names                                 \
    "],\"EventStatus\":\"Scheduled\",\"NotBefore\":\"" when "\"}]}"

static const struct row rows[] = {
    {NOTICE_AWS, 404, "<html>Not Found</html>", "", 0, NULL, -1},
    {NOTICE_AWS, 200, "{\"action\": \"terminate\", \"time\": \"2017-09-18T08:22:00Z\"}", "", 0,
     "preemption notice of AWS: terminate at 2017-09-18T08:22:00Z", 120000},
    {NOTICE_AWS, 200, "{\"action\": \"stop\", \"time\": \"2017-09-18T08:19:00Z\"}", "", 0,
     "preemption notice of AWS: stop at 2017-09-18T08:19:00Z", 0},
    {NOTICE_AWS, 200, "{\"action\": \"hibernate\"}", "", 0, "preemption notice of AWS: hibernate",
     -1},
    {NOTICE_AWS, 200, "hello", "", -EPROTO, NULL, -1},
    {NOTICE_AWS, 500, "{\"action\": \"stop\"}", "", -EPROTO, NULL, -1},
    {NOTICE_GCP, 200, "FALSE", "", 0, NULL, -1},
    {NOTICE_GCP, 200, "TRUE\n", "", 0, "preemption notice of GCP: preempted", 30000},
    {NOTICE_GCP, 200, "TRUEish", "", -EPROTO, NULL, -1},
    {NOTICE_GCP, 404, "FALSE", "", -EPROTO, NULL, -1},
    {NOTICE_GCP, 200, "", "", -EPROTO, NULL, -1},
    {NOTICE_AZURE, 200, "{\"DocumentIncarnation\":1,\"Events\":[]}", "vm0", 0, NULL, -1},
    {NOTICE_AZURE, 200, AZURE("Preempt", "\"vm0\"", "Mon, 18 Sep 2017 08:20:30 GMT"), "vm0", 0,
     "preemption notice of Azure: Preempt at Mon, 18 Sep 2017 08:20:30 GMT", 30000},
    {NOTICE_AZURE, 200, AZURE("Terminate", "\"vm0\"", ""), "", 0,
     "preemption notice of Azure: Terminate", -1}, /* It has begun: no time is told. */
    {NOTICE_AZURE, 200, AZURE("Preempt", "\"vm1\"", ""), "vm0", 0, NULL, -1},
    {NOTICE_AZURE, 200, AZURE("Reboot", "\"vm0\"", ""), "vm0", 0, NULL, -1},
    {NOTICE_AZURE, 200, "[]", "vm0", -EPROTO, NULL, -1},
    {NOTICE_URL, 404, "", "", 0, NULL, -1},
    {NOTICE_URL, 204, "", "", 0, NULL, -1},
    {NOTICE_URL, 200, "whatever", "", 0, "preemption notice", -1},
    {NOTICE_URL, 503, "", "", -EPROTO, NULL, -1},
};

static void test_answers_are_read_as_the_services_mean_them(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct row *r = &rows[i];
        struct notice n;
        struct mu_err err = {0};
        int got = notice_read(r->kind, r->status, mu_str_of(r->body, strlen(r->body)), r->own_name,
                              NOW, &n, &err);
        if (got != r->result || n.found != (r->reason != NULL) || n.left_ms != r->left_ms)
            fail_msg("row %zu: %d, found %d, left %lld", i, got, n.found, (long long)n.left_ms);
        assert_string_equal(n.reason, r->reason != NULL ? r->reason : "");
        assert_true((got == 0) == (err.msg[0] == '\0'));
    }
}

static void test_the_option_is_a_service_or_a_url(void **state)
{
    enum notice_kind k;
    (void)state;
    assert_true(notice_kind_of("aws", &k) && k == NOTICE_AWS);
    assert_true(notice_kind_of("gcp", &k) && k == NOTICE_GCP);
    assert_true(notice_kind_of("azure", &k) && k == NOTICE_AZURE);
    assert_true(notice_kind_of("http://127.0.0.1:1/x", &k) && k == NOTICE_URL);
    assert_true(notice_kind_of("https://a/", &k) && k == NOTICE_URL);
    assert_false(notice_kind_of("oracle", &k));
    assert_false(notice_kind_of("file:///etc/passwd", &k));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_are_read_as_the_services_mean_them),
        cmocka_unit_test(test_the_option_is_a_service_or_a_url),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
