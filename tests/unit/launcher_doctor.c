/* muster doctor: facts in, findings out; who looks at whom; how it is told. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "launcher/doctor/judge.h"
#include "launcher/doctor/report.h"

#define NODES_MAX 4

struct rig {
    cJSON *nodes[NODES_MAX];
    cJSON *looks[NODES_MAX];
    const char *stage[NODES_MAX];
    struct doc_case c;
    struct doc_findings f;
};

/* nodes[i] or looks[i] NULL: it said nothing. */
static void
judge(struct rig *r, uint32_t count, const char *const *nodes, const char *const *looks, bool local)
{
    *r = (struct rig){0};
    for (uint32_t i = 0; i < count; i++) {
        r->nodes[i] = nodes[i] != NULL ? cJSON_Parse(nodes[i]) : NULL;
        r->looks[i] = looks != NULL && looks[i] != NULL ? cJSON_Parse(looks[i]) : NULL;
        if (nodes[i] != NULL && r->nodes[i] == NULL)
            fail_msg("no JSON: %s", nodes[i]);
        if (looks != NULL && looks[i] != NULL && r->looks[i] == NULL)
            fail_msg("no JSON: %s", looks[i]);
    }
    r->c = (struct doc_case){.nodes = (const cJSON *const *)r->nodes,
                             .looks = (const cJSON *const *)r->looks,
                             .stage = r->stage,
                             .count = count,
                             .local = local};
    doc_judge(&r->c, &r->f);
}

static void forget(struct rig *r)
{
    doc_findings_fini(&r->f);
    for (uint32_t i = 0; i < NODES_MAX; i++) {
        cJSON_Delete(r->nodes[i]);
        cJSON_Delete(r->looks[i]);
    }
}

static const struct doc_finding *
find(const struct rig *r, const char *check, int32_t node, int32_t peer)
{
    for (size_t i = 0; i < r->f.count; i++)
        if (strcmp(r->f.v[i].check->name, check) == 0 && r->f.v[i].node == node &&
            r->f.v[i].peer == peer)
            return &r->f.v[i];
    return NULL;
}

static void
expect(const struct doc_finding *f, const char *what, enum doc_level level, const char *says)
{
    if (f == NULL) {
        fail_msg("no finding: %s", what);
        return;
    }
    if (f->level != level)
        fail_msg("%s: %s, not %s: %s", what, doc_level_name(f->level), doc_level_name(level),
                 f->said.seen);
    if (strstr(f->said.seen, says) == NULL && strstr(f->said.remedy, says) == NULL)
        fail_msg("%s: '%s' / '%s' do not say '%s'", what, f->said.seen, f->said.remedy, says);
    if (level >= DOC_WARN)
        assert_true(f->said.remedy[0] != '\0' && f->check->expected[0] != '\0');
}

static void a_machine_is_judged_by_its_facts(void **state)
{
    static const struct {
        const char *facts;
        const char *check;
        enum doc_level level;
        const char *says;
    } cases[] = {
        {"{\"nofile_soft\":1024,\"nofile_hard\":1048576}", "open files", DOC_OK, "1048576"},
        {"{\"nofile_soft\":1024,\"nofile_hard\":1024}", "open files", DOC_WARN, "LimitNOFILE"},
        {"{\"nofile_soft\":128,\"nofile_hard\":128}", "open files", DOC_FAIL, "ulimit -n"},
        {"{\"nofile_soft\":{\"unknown\":\"EPERM\"}}", "open files", DOC_UNKNOWN, "EPERM"},
        {"{}", "open files", DOC_UNKNOWN, "not looked at"},
        {"{\"memlock\":65536,\"rdma\":0}", "locked memory", DOC_OK, "no RDMA"},
        {"{\"memlock\":65536,\"rdma\":1}", "locked memory", DOC_FAIL, "LimitMEMLOCK"},
        {"{\"memlock\":-1,\"rdma\":1}", "locked memory", DOC_OK, "no limit"},
        {"{\"shm_bytes\":67108864,\"shm_free\":67108864}", "shared memory", DOC_WARN, "64.0 MiB"},
        {"{\"shm_bytes\":67108864,\"shm_free\":1048576}", "shared memory", DOC_FAIL, "--shm-size"},
        {"{\"shm_bytes\":0,\"shm_free\":0}", "shared memory", DOC_FAIL, "/dev/shm"},
        {"{\"tasks_max\":-1}", "processes", DOC_OK, "no limit"},
        {"{\"tasks_max\":100,\"tasks_now\":90,\"tasks_where\":\"pids.max of its cgroup\"}",
         "processes", DOC_FAIL, "TasksMax"},
        {"{\"core_pattern\":\"core\",\"core_limit\":-1}", "core dumps", DOC_WARN, "core_pattern"},
        {"{\"core_pattern\":\"core\",\"core_limit\":0}", "core dumps", DOC_OK, "none is written"},
        {"{\"core_pattern\":\"|/x %p\",\"core_limit\":0,\"core_helper_missing\":\"/x\"}",
         "core dumps", DOC_WARN, "not here"},
        {"{\"disks\":[{\"path\":\"/a\",\"free\":1e12,\"writable\":true},"
         "{\"path\":\"/b\",\"free\":1000,\"writable\":true}]}",
         "disk", DOC_FAIL, "/b: 1000 bytes free"},
        {"{\"disks\":[{\"path\":\"/a\",\"free\":1e12,\"inodes\":1e6,\"inodes_free\":5,"
         "\"writable\":true}]}",
         "disk", DOC_FAIL, "inode"},
        {"{\"disks\":[{\"path\":\"/a\",\"free\":1e12,\"writable\":false}]}", "disk", DOC_WARN,
         "not writable"},
        {"{\"host\":\"n1\",\"own_name\":[\"127.0.1.1\"]}", "own name", DOC_WARN, "127.0.1.1"},
        {"{\"host\":\"n1\",\"own_name\":[\"10.0.0.1\"]}", "own name", DOC_OK, "10.0.0.1"},
        {"{\"host\":\"n1\",\"own_name\":{\"unknown\":\"none\",\"has_none\":true}}", "own name",
         DOC_WARN, "no address"},
        {"{\"host\":\"n1\",\"own_name\":{\"unknown\":\"the look-up took longer\"}}", "own name",
         DOC_UNKNOWN, "took longer"},
        {"{\"host\":\"n1\",\"own_name\":{\"unknown\":\"x\",\"failed\":\"no name server answers\"}}",
         "own name", DOC_WARN, "n1 cannot be looked up here: no name server answers"},
        {"{\"own_port\":\"dropped\",\"address\":\"10.0.0.1\"}", "own port", DOC_FAIL, "10.0.0.1"},
        {"{\"clock_kept\":true}", "clock kept", DOC_OK, "in step"},
        {"{\"clock_kept\":false}", "clock kept", DOC_WARN, "chronyd"},
        {"{\"clock_kept\":{\"unknown\":\"EPERM\"}}", "clock kept", DOC_UNKNOWN, "EPERM"},
        {"{\"v6_addresses\":0}", "IPv6", DOC_OK, "not used"},
        {"{\"v6_addresses\":0,\"v6_localhost_broken\":true}", "IPv6", DOC_WARN, "::1"},
        {"{\"v6_addresses\":2,\"v6_socket\":false}", "IPv6", DOC_WARN, "no socket"},
        {"{\"cgroup\":\"delegated\"}", "cgroup", DOC_OK, "delegated"},
        {"{\"cgroup\":\"not delegated: x\"}", "cgroup", DOC_WARN, "Delegate=yes"},
        {"{\"ptrace_scope\":-1}", "stack traces", DOC_OK, "no Yama"},
        {"{\"ptrace_scope\":1,\"ptrace_cap\":false}", "stack traces", DOC_WARN, "ptrace_scope=0"},
        {"{\"ptrace_scope\":1,\"ptrace_cap\":true}", "stack traces", DOC_OK, "all the same"},
        {"{\"gpus\":0}", "GPUs", DOC_OK, "none"},
        {"{\"gpus\":8,\"driver\":\"550.54\"}", "GPUs", DOC_FAIL, "libcuda"},
        {"{\"gpus\":8,\"driver\":\"550.54\",\"cuda\":\"12.4\",\"nccl\":\"2.28.9\"}", "GPUs", DOC_OK,
         "2.28.9"},
        {"{\"server\":{\"host\":\"n9\",\"port\":29500,\"addresses\":{\"unknown\":\"x\","
         "\"has_none\":true},\"how\":{\"unknown\":\"x\"}}}",
         "server's name", DOC_FAIL, "n9 has no address"},
        {"{\"server\":{\"host\":\"n9\",\"port\":29500,\"addresses\":[\"127.0.1.1\"]}}",
         "server's name", DOC_WARN, "this node itself"},
        {"{\"server\":{\"host\":\"n9\",\"port\":29500,\"addresses\":[\"10.0.0.9\"],"
         "\"how\":\"dropped\"}}",
         "server's port", DOC_FAIL, "nft insert rule inet filter input tcp dport 29500 accept"},
        {"{\"server\":{\"host\":\"n9\",\"port\":29500,\"addresses\":[\"10.0.0.9\"],"
         "\"how\":\"refused\"}}",
         "server's port", DOC_FAIL, "start rdzv-server"},
        {"{\"server\":{\"host\":\"n9\",\"port\":80,\"addresses\":[\"10.0.0.9\"],\"how\":\"ok\","
         "\"is_muster\":false}}",
         "server's port", DOC_FAIL, "no rdzv-server"},
        {"{\"server\":{\"host\":\"n9\",\"port\":80,\"how\":\"ok\",\"skew_ms\":-5000,"
         "\"rtt_ms\":1}}",
         "server's clock", DOC_FAIL, "5000 ms behind"},
        {"{\"server\":{\"host\":\"n9\",\"port\":80,\"how\":\"ok\",\"skew_ms\":300,\"rtt_ms\":500}}",
         "server's clock", DOC_OK, "ahead"},
    };
    (void)state;
    for (size_t i = 0; i < MU_COUNT(cases); i++) {
        struct rig r;
        judge(&r, 1, &cases[i].facts, NULL, true);
        expect(find(&r, cases[i].check, 0, -1), cases[i].facts, cases[i].level, cases[i].says);
        forget(&r);
    }
}

#define A "{\"host\":\"n1\",\"address\":\"10.0.0.1\",\"machine\":\"a\",\"v6_addresses\":1}"
#define B "{\"host\":\"n2\",\"address\":\"10.0.0.2\",\"machine\":\"b\",\"v6_addresses\":1}"

static void a_pair_is_judged_by_what_one_saw_of_the_other(void **state)
{
    static const struct {
        const char *look;
        const char *check;
        enum doc_level level;
        const char *says;
    } cases[] = {
        {"\"names\":[{\"name\":\"n2\",\"addresses\":[{\"address\":\"10.0.0.2\",\"leads\":"
         "\"there\"}]}]",
         "names", DOC_OK, "lead there"},
        {"\"names\":[{\"name\":\"n2\",\"addresses\":[{\"address\":\"127.0.1.1\",\"leads\":"
         "\"refused\"}]}]",
         "names", DOC_FAIL, "write '10.0.0.2 n2' into /etc/hosts in the place of 127.0.1.1"},
        {"\"same_machine\":true,\"names\":[{\"name\":\"n2\",\"addresses\":[{\"address\":"
         "\"127.0.1.1\",\"leads\":\"there\"}]}]",
         "names", DOC_OK, "lead there"},
        {"\"names\":[{\"name\":\"n2\",\"addresses\":[{\"address\":\"10.0.0.3\",\"leads\":"
         "\"elsewhere\"}]}]",
         "names", DOC_FAIL, "which is another node"},
        {"\"names\":[{\"name\":\"n2\",\"addresses\":{\"unknown\":\"x\",\"has_none\":true}}]",
         "names", DOC_WARN, "n2 has no address"},
        {"\"names\":[{\"name\":\"n2\",\"addresses\":{\"unknown\":\"the look-up took longer\"}}]",
         "names", DOC_UNKNOWN, "took longer"},
        {"\"names\":[{\"name\":\"n2\",\"addresses\":[{\"address\":\"10.0.0.2\",\"leads\":"
         "\"there\"}]},{\"name\":\"n2.x\",\"addresses\":{\"unknown\":\"x\",\"has_none\":true}}]",
         "names", DOC_WARN, "n2.x has no address"},
        {"\"reach\":[{\"address\":\"10.0.0.2\",\"how\":\"ok\"}]", "ports", DOC_OK, "answers"},
        {"\"reach\":[{\"address\":\"172.17.0.1\",\"how\":\"refused\"},{\"address\":\"10.0.0.2\","
         "\"how\":\"ok\"}]",
         "ports", DOC_OK, "answers"},
        {"\"reach\":[{\"address\":\"10.0.0.2\",\"how\":\"dropped\"}]", "ports", DOC_FAIL,
         "nft insert rule inet filter input ip saddr 10.0.0.1 accept (iptables -I INPUT -s "
         "10.0.0.1"},
        {"\"reach\":[{\"address\":\"10.0.0.2\",\"how\":\"refused\"}]", "ports", DOC_FAIL,
         "a firewall refuses it"},
        {"\"reach\":[{\"address\":\"10.0.0.2\",\"how\":\"unreachable (no route)\"}]", "ports",
         DOC_FAIL, "ip route get"},
        {"\"reach\":[]", "ports", DOC_UNKNOWN, "no address"},
        {"\"reach\":[{\"address\":\"10.0.0.2\",\"how\":\"ok\"},{\"address\":\"fd::2\",\"how\":"
         "\"dropped\"}]",
         "ports over IPv6", DOC_WARN, "fd::2 is dropped"},
        {"\"large\":\"get lost on the way\"", "large messages", DOC_FAIL, "MTU"},
        {"\"large\":\"ok\"", "large messages", DOC_OK, "256 KiB"},
        {"\"skew_ms\":1500,\"rtt_us\":200", "clocks", DOC_WARN, "n2's clock is 1500 ms ahead"},
        {"\"skew_ms\":-9000,\"rtt_us\":200", "clocks", DOC_FAIL, "n2's clock is 9000 ms behind"},
        {"\"skew_ms\":150,\"rtt_us\":200000", "clocks", DOC_OK,
         "within"}, /* Half a trip: 100 ms. */
        {"\"link\":{\"bytes_per_s\":1e9,\"latency_us\":20}", "link", DOC_OK, "fast enough"},
        {"\"link\":{\"bytes_per_s\":3e7,\"latency_us\":20}", "link", DOC_WARN, "240.0 Mbit/s"},
        {"\"link\":{\"bytes_per_s\":1e6,\"latency_us\":20}", "link", DOC_FAIL, "8.0 Mbit/s"},
        {"\"same_machine\":true,\"link\":{\"bytes_per_s\":1e6,\"latency_us\":20}", "link", DOC_OK,
         "fast enough"},
        {"\"link\":{\"bytes_per_s\":1e9,\"gpus\":{\"bytes_per_s\":4e9}}", "GPU link", DOC_OK,
         "32.0 Gbit/s"},
        {"\"link\":{\"bytes_per_s\":1e9,\"gpus\":{\"bytes_per_s\":1e8}}", "GPU link", DOC_WARN,
         "NCCL_SOCKET_IFNAME"},
        {"\"link\":{\"bytes_per_s\":1e9,\"gpus\":{\"broken\":\"it took too long\"}}", "GPU link",
         DOC_FAIL, "does not work between them: it took"},
        {"\"link\":{\"bytes_per_s\":1e9,\"gpus\":{\"unknown\":\"the job was stopped\"}}",
         "GPU link", DOC_UNKNOWN, "was stopped"},
        {"\"link\":{\"broken\":\"rank 1 did not come\"}", "link", DOC_FAIL, "did not come"},
        {"\"link\":{\"unknown\":\"it took too long\"}", "link", DOC_UNKNOWN, "took too long"},
        {"\"skipped\":\"it fell silent before its turn\"", "names", DOC_UNKNOWN, "fell silent"},
    };
    (void)state;
    for (size_t i = 0; i < MU_COUNT(cases); i++) {
        struct rig r;
        char look[1024];
        const char *const nodes[] = {A, B};
        (void)snprintf(look, sizeof look, "[{\"to\":1,%s}]", cases[i].look);
        const char *const looks[] = {look, "[]"};
        judge(&r, 2, nodes, looks, false);
        expect(find(&r, cases[i].check, 0, 1), cases[i].look, cases[i].level, cases[i].says);
        forget(&r);
    }
}

static void a_link_is_slow_beside_the_others(void **state)
{
    struct rig r;
    const char *const nodes[] = {A, B, "{\"host\":\"n3\"}"};
    const char *const looks[] = {
        "[{\"to\":1,\"link\":{\"bytes_per_s\":2e9}},{\"to\":2,\"link\":{\"bytes_per_s\":2e9}}]",
        "[{\"to\":0,\"link\":{\"bytes_per_s\":2e9}},{\"to\":2,\"link\":{\"bytes_per_s\":8e8}}]",
        "[{\"to\":0,\"link\":{\"bytes_per_s\":1e8}}]"};
    (void)state;
    judge(&r, 3, nodes, looks, false);
    expect(find(&r, "link", 0, 1), "usual", DOC_OK, "fast enough");
    expect(find(&r, "link", 1, 2), "less than half", DOC_WARN, "16.0 Gbit/s is usual here");
    expect(find(&r, "link", 2, 0), "less than a tenth", DOC_FAIL, "ethtool");
    expect(find(&r, "names", 2, 1), "never looked", DOC_UNKNOWN, "did not come to that");
    assert_int_equal(doc_worst(&r.f), DOC_FAIL);
    assert_int_equal(r.f.v[0].level, DOC_FAIL);
    forget(&r);
}

static void whoever_differs_from_most_is_named(void **state)
{
    struct rig r;
    const char *const nodes[] = {
        "{\"host\":\"n1\",\"machine\":\"a\",\"muster\":\"0.1.0\",\"nccl\":\"2.28.9\",\"gpus\":8,"
        "\"gpu_models\":\"H200\",\"mtu\":9000}",
        "{\"host\":\"n2\",\"machine\":\"b\",\"muster\":\"0.2.0\",\"nccl\":\"2.28.9\",\"gpus\":7,"
        "\"gpu_models\":\"H200\",\"mtu\":9000}",
        "{\"host\":\"n1\",\"machine\":\"c\",\"muster\":\"0.1.0\",\"gpus\":8,"
        "\"gpu_models\":\"H100\",\"mtu\":{\"unknown\":\"EPERM\"}}"};
    const char *const looks[] = {"[]", "[]", "[]"};
    (void)state;
    judge(&r, 3, nodes, looks, false);
    expect(find(&r, "muster's version", 1, -1), "version", DOC_FAIL,
           "0.2.0, where muster's version is 0.1.0 on 2 of 3 nodes");
    expect(find(&r, "NCCL's version", 2, -1), "no NCCL", DOC_WARN, "none, where 2 nodes have 2.28");
    expect(find(&r, "GPU count", 1, -1), "count", DOC_WARN, "7, where");
    expect(find(&r, "GPU model", 2, -1), "model", DOC_WARN, "H100");
    expect(find(&r, "MTU", 2, -1), "unknown", DOC_UNKNOWN, "EPERM");
    expect(find(&r, "names differ", 2, -1), "twice n1", DOC_WARN, "called n1 too");
    assert_null(find(&r, "CUDA's version", -1, -1)); /* Nobody has any. */
    forget(&r);
}

static void who_says_nothing_is_named(void **state)
{
    struct rig r;
    const char *const nodes[] = {A, B, NULL};
    const char *const looks[] = {"[{\"to\":1,\"skipped\":\"it fell silent before its turn\"}]",
                                 NULL, NULL};
    struct mu_buf b;
    (void)state;
    mu_buf_init(&b, mu_mem_default());
    judge(&r, 3, nodes, looks, false);
    expect(find(&r, "took part", 1, -1), "silent", DOC_FAIL, "fell silent before it looked");
    expect(find(&r, "took part", 2, -1), "missing", DOC_FAIL, "never said");
    doc_report_table(&b, &r.c, &r.f, false);
    assert_non_null(strstr(mu_buf_cstr(&b), "FAIL     rank 2"));
    assert_non_null(strstr(mu_buf_cstr(&b), "FAIL     n2"));
    mu_buf_fini(&b);
    forget(&r);
}

static void everybody_meets_everybody_once_and_has_one_peer_at_a_time(void **state)
{
    (void)state;
    assert_int_equal(doc_rounds(1), 0);
    assert_int_equal(doc_peer(1, 0, 0), -1);
    for (uint32_t n = 2; n <= 33; n++) {
        uint32_t met[33][33] = {{0}};
        for (uint32_t round = 0; round < doc_rounds(n); round++)
            for (uint32_t i = 0; i < n; i++) {
                int32_t peer = doc_peer(n, round, i);
                if (peer < 0) {
                    assert_int_equal(n % 2, 1); /* Only with an odd number somebody rests. */
                    continue;
                }
                assert_true((uint32_t)peer < n && (uint32_t)peer != i);
                assert_int_equal(doc_peer(n, round, (uint32_t)peer), i);
                met[i][peer]++;
            }
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t k = 0; k < n; k++)
                assert_int_equal(met[i][k], i != k);
    }
}

static void what_is_the_same_of_several_stands_in_one_line(void **state)
{
    struct rig r;
    struct mu_buf b;
    const char *const nodes[] = {
        "{\"host\":\"n1\",\"machine\":\"a\",\"nofile_soft\":128,\"nofile_hard\":128}",
        "{\"host\":\"n2\\u001b[2J\",\"machine\":\"b\",\"nofile_soft\":128,\"nofile_hard\":128}",
        "{\"host\":\"n3\",\"machine\":\"c\",\"nofile_soft\":129,\"nofile_hard\":129}"};
    const char *const looks[] = {"[]", "[]", "[]"};
    (void)state;
    mu_buf_init(&b, mu_mem_default());
    judge(&r, 3, nodes, looks, false);
    doc_report_table(&b, &r.c, &r.f, false);
    const char *text = mu_buf_cstr(&b);
    assert_non_null(strstr(text, "FAIL     n1, n2?[2J          open files         128, and may"));
    assert_non_null(strstr(text, "FAIL     n3                  open files         129, and may"));
    assert_non_null(strstr(text, "ok       all 3 nodes         took part"));
    assert_null(strstr(text, "\033"));
    assert_true(strstr(text, "FAIL") < strstr(text, "unknown  "));
    mu_buf_reset(&b);
    doc_report_json(&b, &r.c, &r.f);
    cJSON *v = cJSON_Parse(mu_buf_cstr(&b));
    assert_string_equal(cJSON_GetObjectItem(v, "verdict")->valuestring, "FAIL");
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(v, "nodes")), 3);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(v, "findings")), (int)r.f.count);
    cJSON_Delete(v);
    mu_buf_fini(&b);
    forget(&r);
}

static void brief_is_one_sentence_with_its_remedy(void **state)
{
    static const struct {
        const char *facts;
        const char *says;
    } cases[] = {
        {"{\"host\":\"n1\",\"own_name\":[\"127.0.1.1\"],\"server\":{\"host\":\"n9\",\"port\":29500,"
         "\"addresses\":[\"10.0.0.9\"],\"how\":\"dropped\"}}",
         "n9 port 29500: no answer at all, so packets are dropped on the way; open TCP port 29500"},
        {"{\"host\":\"n1\",\"own_name\":[\"10.0.0.1\"],\"server\":{\"host\":\"n9\",\"port\":29500,"
         "\"addresses\":[\"10.0.0.9\"],\"how\":\"ok\",\"is_muster\":true}}",
         "nothing wrong here: n9 port 29500 answers"},
    };
    (void)state;
    for (size_t i = 0; i < MU_COUNT(cases); i++) {
        struct rig r;
        struct mu_buf b;
        mu_buf_init(&b, mu_mem_default());
        judge(&r, 1, &cases[i].facts, NULL, true);
        doc_report_brief(&b, &r.f);
        if (strstr(mu_buf_cstr(&b), cases[i].says) == NULL)
            fail_msg("'%s' does not say '%s'", mu_buf_cstr(&b), cases[i].says);
        assert_ptr_equal(strchr(mu_buf_cstr(&b), '\n'), b.p + b.n - 1);
        mu_buf_fini(&b);
        forget(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_machine_is_judged_by_its_facts),
        cmocka_unit_test(a_pair_is_judged_by_what_one_saw_of_the_other),
        cmocka_unit_test(a_link_is_slow_beside_the_others),
        cmocka_unit_test(whoever_differs_from_most_is_named),
        cmocka_unit_test(who_says_nothing_is_named),
        cmocka_unit_test(everybody_meets_everybody_once_and_has_one_peer_at_a_time),
        cmocka_unit_test(what_is_the_same_of_several_stands_in_one_line),
        cmocka_unit_test(brief_is_one_sentence_with_its_remedy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
