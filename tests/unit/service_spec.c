/* agent/service/spec.h: what a submission becomes on a node. */
#include "tests/unit/unit.h"

#include "agent/service/spec.h"
#include "base/check.h"

static char *own_env[] = {(char *)(uintptr_t) "PATH=/bin:/usr/bin",
                          (char *)(uintptr_t) "LANG=C.UTF-8",
                          (char *)(uintptr_t) "MUSTER_TOKEN_FILE=/secret",
                          (char *)(uintptr_t) "NOTIFY_SOCKET=/run/x",
                          (char *)(uintptr_t) "OTHER=1",
                          NULL};

struct built {
    struct arena arena;
    struct spec spec;
    char **argv;
    char **envp;
    struct mu_err err;
    int code;
};

static struct built build(const char *json,
                          const int32_t *gpus,
                          uint32_t gpu_count,
                          uint32_t node_gpus,
                          const char *visible)
{
    struct built b = {0};
    struct spec_place place = {.server = "head:29500",
                               .token_file = "/etc/muster/token",
                               .job = "train-1",
                               .nproc = 2,
                               .gpus = gpus,
                               .gpu_count = gpu_count,
                               .node_gpus = node_gpus,
                               .visible = visible,
                               .user = "me",
                               .home = "/home/me",
                               .service_pid = 77,
                               .environment = own_env};
    b.code = spec_read(mu_str_of(json, strlen(json)), &b.spec, &b.err);
    if (b.code == 0)
        b.code = spec_build(&b.spec, &place, &b.arena, &b.argv, &b.envp, &b.err);
    if (b.code == 0)
        b.code = spec_check(&b.spec, &place, b.envp, &b.err);
    return b;
}

static void drop(struct built *b)
{
    spec_free(&b->spec);
    arena_fini(&b->arena);
}

static const char *value(char **envp, const char *name)
{
    size_t n = strlen(name);
    for (; *envp != NULL; envp++)
        if (strncmp(*envp, name, n) == 0 && (*envp)[n] == '=')
            return *envp + n + 1;
    return NULL;
}

static void test_a_submission_becomes_an_agents_command_line(void **state)
{
    (void)state;
    static const char *const wanted[] = {"node-agent",
                                         "--exit-status=first",
                                         "--max-restarts=3",
                                         "--rdzv-conf=join_timeout=5",
                                         "--surroundings=none",
                                         "--rdzv-conf=join_timeout=5,is_host=0",
                                         "--label",
                                         "--rdzv=head:29500",
                                         "--rdzv-id=train-1",
                                         "--nnodes=1:4",
                                         "--nproc-per-node=2",
                                         "--token-file=/etc/muster/token",
                                         "sh",
                                         "-c",
                                         "true"};
    struct built b = build("{\"argv\":[\"sh\",\"-c\",\"true\"],\"cwd\":\"/\",\"nnodes\":\"1:4\","
                           "\"agent_args\":[\"--max-restarts=3\",\"--rdzv-conf=join_timeout=5\"]}",
                           NULL, 0, 0, NULL);
    assert_int_equal(b.code, 0);
    for (size_t i = 0; i < MU_COUNT(wanted); i++)
        assert_string_equal(b.argv[i], wanted[i]);
    assert_null(b.argv[MU_COUNT(wanted)]);
    drop(&b);
}

static void test_the_environment_is_the_submissions_over_a_clean_one(void **state)
{
    (void)state;
    struct built b =
        build("{\"argv\":[\"sh\"],\"cwd\":\"/"
              "\",\"env\":{\"A\":\"1\",\"LANG\":\"de\",\"WATCHDOG_PID\":\"1\",\"PET_RDZV\":\"x\","
              "\"MUSTER_TOKEN\":\"t\",\"CUDA_VISIBLE_DEVICES\":\"9\",\"TORCHELASTIC_LOG_LINE_"
              "PREFIX_TEMPLATE\":\"x\"}}",
              (const int32_t[]){1, 3}, 2, 4, NULL);
    assert_int_equal(b.code, 0);
    assert_string_equal(value(b.envp, "A"), "1");
    assert_string_equal(value(b.envp, "LANG"), "de");
    assert_string_equal(value(b.envp, "HOME"), "/home/me");
    assert_string_equal(value(b.envp, "USER"), "me");
    assert_string_equal(value(b.envp, "MUSTER_SERVICE_PID"), "77");
    assert_string_equal(value(b.envp, "PATH"), "/bin:/usr/bin");
    assert_string_equal(value(b.envp, "CUDA_VISIBLE_DEVICES"), "1,3");
    assert_string_not_equal(value(b.envp, "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"), "x");
    static const char *const none[] = {"OTHER",         "MUSTER_TOKEN_FILE", "MUSTER_TOKEN",
                                       "NOTIFY_SOCKET", "WATCHDOG_PID",      "PET_RDZV"};
    for (size_t i = 0; i < MU_COUNT(none); i++)
        assert_null(value(b.envp, none[i]));
    drop(&b);
}

static void test_gpus_are_those_that_the_service_may_see(void **state)
{
    (void)state;
    struct built b = build("{\"argv\":[\"sh\"],\"cwd\":\"/\"}", (const int32_t[]){0, 2}, 2, 3,
                           "GPU-aa,5,GPU-cc");
    assert_int_equal(b.code, 0);
    assert_string_equal(value(b.envp, "CUDA_VISIBLE_DEVICES"), "GPU-aa,GPU-cc");
    drop(&b);
    b = build("{\"argv\":[\"sh\"],\"cwd\":\"/\"}", NULL, 0, 3,
              NULL); /* None of them is for this job. */
    assert_string_equal(value(b.envp, "CUDA_VISIBLE_DEVICES"), "");
    drop(&b);
    b = build("{\"argv\":[\"sh\"],\"cwd\":\"/\"}", (const int32_t[]){3}, 1, 3, NULL);
    assert_has(b.err.msg, "GPU 3 is wanted");
    drop(&b);
}

static void test_what_makes_no_sense_gets_a_sentence(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        const char *part;
    } cases[] = {
        {"", "no JSON"},
        {"[1]", "no JSON object"},
        {"{\"cwd\":\"/\"}", "argv"},
        {"{\"argv\":[],\"cwd\":\"/\"}", "argv"},
        {"{\"argv\":[1],\"cwd\":\"/\"}", "argv"},
        {"{\"argv\":[\"--standalone\"],\"cwd\":\"/\"}", "argv"},
        {"{\"argv\":[\"sh\"],\"cwd\":null}", "cwd"},
        {"{\"argv\":[\"sh\"],\"cwd\":\"tmp\"}", "cwd"},
        {"{\"argv\":[\"sh\"],\"cwd\":\"/\",\"nnodes\":\"2 --rdzv=evil\"}", "nnodes"},
        {"{\"argv\":[\"sh\"],\"cwd\":\"/\",\"nnodes\":2}", "nnodes"},
        {"{\"argv\":[\"sh\"],\"cwd\":\"/\",\"env\":[]}", "env"},
        {"{\"argv\":[\"sh\"],\"cwd\":\"/\",\"env\":{\"A\":1}}", "env"},
        {"{\"argv\":[\"sh\"],\"cwd\":\"/\",\"agent_args\":[\"--\"]}", "agent_args"},
        {"{\"argv\":[\"sh\"],\"cwd\":\"/\",\"agent_args\":[\"program\"]}", "agent_args"},
        {"{\"argv\":[\"sh\"],\"cwd\":\"/\",\"user\":\"root\"}", "root"},
        {"{\"argv\":[\"sh\"],\"cwd\":\"/dev/null\"}", "no folder"},
        {"{\"argv\":[\"no-such-program-here\"],\"cwd\":\"/\"}", "no-such-program-here"},
        {"{\"argv\":[\"/bin\"],\"cwd\":\"/\"}", "not on this node"},
    };
    for (size_t i = 0; i < MU_COUNT(cases); i++) {
        struct built b = build(cases[i].json, NULL, 0, 0, NULL);
        assert_true(b.code < 0);
        assert_has(b.err.msg, cases[i].part);
        drop(&b);
    }
    struct built own = build("{\"argv\":[\"sh\"]}", NULL, 0, 0, NULL);
    assert_int_equal(own.code, 0); /* The folder is the service's own. */
    drop(&own);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_submission_becomes_an_agents_command_line),
        cmocka_unit_test(test_the_environment_is_the_submissions_over_a_clean_one),
        cmocka_unit_test(test_gpus_are_those_that_the_service_may_see),
        cmocka_unit_test(test_what_makes_no_sense_gets_a_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
