/* agent/workers/numa.h on machines made of files: two sockets, four nodes, two threads a core. */
#include "tests/unit/unit.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/workers/numa.h"

/* 16 CPUs: node n has cores 2n and 2n+1, that is CPUs 2n, 2n+1, 8+2n, 9+2n; nodes 0 and 1 are
 * socket 0. Each core of node 3 has a last cache of its own, elsewhere a node shares one. */
enum {
    CPUS = 16
};

static char root[64];

static void write_file(const char *text, const char *fmt, ...) MU_PRINTF(2, 3);

static void write_file(const char *text, const char *fmt, ...)
{
    char path[256];
    char part[256];
    va_list ap;
    int at = snprintf(path, sizeof path, "%s/", root);
    va_start(ap, fmt);
    (void)vsnprintf(path + at, sizeof path - (size_t)at, fmt, ap);
    va_end(ap);
    for (char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        (void)snprintf(part, sizeof part, "%.*s", (int)(slash - path), path);
        (void)mkdir(part, 0700);
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void make_cpu(unsigned cpu)
{
    char text[32];
    unsigned core = cpu % 8;
    unsigned node = core / 2;
    (void)snprintf(text, sizeof text, "%u\n", node / 2);
    write_file(text, "sys/devices/system/cpu/cpu%u/topology/physical_package_id", cpu);
    (void)snprintf(text, sizeof text, "%u,%u\n", core, core + 8);
    write_file(text, "sys/devices/system/cpu/cpu%u/topology/thread_siblings_list", cpu);
    write_file("1\n", "sys/devices/system/cpu/cpu%u/cache/index0/level", cpu);
    write_file(text, "sys/devices/system/cpu/cpu%u/cache/index0/shared_cpu_list", cpu);
    write_file("3\n", "sys/devices/system/cpu/cpu%u/cache/index1/level", cpu);
    if (node < 3)
        (void)snprintf(text, sizeof text, "%u-%u,%u-%u\n", 2 * node, 2 * node + 1, 8 + 2 * node,
                       9 + 2 * node);
    write_file(text, "sys/devices/system/cpu/cpu%u/cache/index1/shared_cpu_list", cpu);
}

static void make_gpu(unsigned minor, const char *node)
{
    char text[128];
    (void)snprintf(text, sizeof text,
                   "Model: \t\t a GPU\nGPU UUID:   \t GPU-%u%u%u%u\nDevice Minor: \t %u\n", minor,
                   minor, minor, minor, minor);
    /* Capitals there, small letters here. */
    write_file(text, "proc/driver/nvidia/gpus/0000:%X0:00.0/information", 10 + minor);
    write_file(node, "sys/bus/pci/devices/0000:%x0:00.0/numa_node", 10 + minor);
    write_file("", "dev/nvidia%u", minor);
}

static int make_machine(void **state)
{
    (void)state;
    (void)snprintf(root, sizeof root, "/tmp/muster-numa-XXXXXX");
    assert_non_null(mkdtemp(root));
    write_file("0-3\n", "sys/devices/system/node/online");
    for (unsigned n = 0; n < 4; n++) {
        char text[32];
        (void)snprintf(text, sizeof text, "%u-%u,%u-%u\n", 2 * n, 2 * n + 1, 8 + 2 * n, 9 + 2 * n);
        write_file(text, "sys/devices/system/node/node%u/cpulist", n);
    }
    for (unsigned cpu = 0; cpu < CPUS; cpu++)
        make_cpu(cpu);
    return 0;
}

static int remove_machine(void **state)
{
    char command[160];
    char *argv[] = {(char[]){"rm"}, (char[]){"-rf"}, command, NULL};
    (void)state;
    (void)snprintf(command, sizeof command, "%s", root);
    pid_t pid = fork();
    if (pid == 0) {
        (void)execvp(argv[0], argv);
        _exit(127);
    }
    return pid < 0;
}

static void make_gpus(void)
{
    make_gpu(0, "3\n");
    make_gpu(1, "1\n");
    make_gpu(2, "3\n");
    make_gpu(3, "-1\n"); /* The firmware does not say: node 0. */
}

static struct cpus all_cpus(void)
{
    struct cpus all;
    numa_parse_list("0-15", &all);
    return all;
}

/* The CPUs of each worker as lists, '|' between. */
static void
check(const char *mode, uint32_t nproc, const char *visible, const char *allowed, const char *want)
{
    struct numa n;
    struct cpus mask;
    struct mu_err err = {0};
    char got[512] = "";
    size_t at = 0;
    numa_parse_list(allowed, &mask);
    int r = numa_bind_within(&n, mode, nproc, visible, root, &mask, &err);
    if (r < 0) {
        assert_non_null(strstr(err.msg, want));
        numa_fini(&n);
        return;
    }
    for (uint32_t i = 0; i < nproc; i++) {
        const unsigned long *w = numa_masks(&n)[i];
        at += (size_t)snprintf(got + at, sizeof got - at, "%s%s", i > 0 ? "|" : "",
                               w == NULL ? "-" : "");
        for (unsigned cpu = 0; w != NULL && cpu < CPUS; cpu++) {
            if ((w[0] >> cpu & 1) != 0)
                at += (size_t)snprintf(got + at, sizeof got - at, "%u ", cpu);
        }
    }
    assert_string_equal(got, want);
    numa_fini(&n);
}

static void test_gpus_decide(void **state)
{
    (void)state;
    make_gpus();
    check("node", 4, NULL, "0-15", "6 7 14 15 |2 3 10 11 |6 7 14 15 |0 1 8 9 ");
    check("node", 2, "1,0", "0-15", "2 3 10 11 |6 7 14 15 ");
    check("node", 2, "GPU-3333, GPU-1", "0-15", "0 1 8 9 |2 3 10 11 ");
    check("socket", 2, NULL, "0-15", "4 5 6 7 12 13 14 15 |0 1 2 3 8 9 10 11 ");
    check("exclusive", 4, NULL, "0-15", "6 14 |2 3 10 11 |7 15 |0 1 8 9 ");
    check("core-complex", 4, NULL, "0-15", "6 14 |2 3 10 11 |7 15 |0 1 8 9 ");
}

static void test_the_affinity_mask_is_the_limit(void **state)
{
    (void)state;
    make_gpus();
    check("node", 2, NULL, "0-6", "6 |2 3 ");
    check("node", 2, NULL, "0-5", "-|2 3 "); /* Nothing of node 3: not bound, and said. */
    check("exclusive", 3, NULL, "2-6", "node 3 has fewer free cores than the 2 workers");
    check("core-complex", 3, NULL, "6,7,15", "7 15 |-|6 ");
}

static void test_without_gpus_workers_are_dealt_to_nodes(void **state)
{
    (void)state;
    check("node", 4, "", "0-15", "0 1 8 9 |2 3 10 11 |4 5 12 13 |6 7 14 15 ");
    check("exclusive", 8, "-1", "0-15", "0 8 |1 9 |2 10 |3 11 |4 12 |5 13 |6 14 |7 15 ");
    check("node", 1, "", "0-15", "0 1 8 9 ");
    check("exclusive", 9, "", "0-15", "fewer free cores than the 3 workers");
}

static void test_a_machine_that_shows_nothing_is_one_node(void **state)
{
    struct numa n;
    struct mu_err err = {0};
    struct cpus mask = all_cpus();
    (void)state;
    assert_int_equal(numa_bind_within(&n, "node", 2, NULL, "/nonesuch", &mask, &err), 0);
    assert_int_equal(numa_masks(&n)[0][0], 0xffff);
    assert_int_equal(numa_masks(&n)[1][0], 0xffff);
    assert_non_null(strstr(n.warning, "dealt to 1 NUMA node in order"));
    numa_fini(&n);
    assert_int_equal(numa_bind_within(&n, "exclusive", 2, NULL, "/nonesuch", &mask, &err), 0);
    assert_int_equal(numa_masks(&n)[0][0], 0x00ff);
    assert_int_equal(numa_masks(&n)[1][0], 0xff00);
    numa_fini(&n);
}

static void test_lists_of_cpus(void **state)
{
    struct cpus c;
    (void)state;
    numa_parse_list("0-2,7\n", &c);
    assert_int_equal(c.word[0], 0x87);
    numa_parse_list("", &c);
    assert_int_equal(c.word[0], 0);
    numa_parse_list("99999999999,x", &c);
    assert_int_equal(c.word[0], 0);
    numa_parse_list("63-64", &c);
    assert_int_equal(c.word[1], 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_gpus_decide, make_machine, remove_machine),
        cmocka_unit_test_setup_teardown(test_the_affinity_mask_is_the_limit, make_machine,
                                        remove_machine),
        cmocka_unit_test_setup_teardown(test_without_gpus_workers_are_dealt_to_nodes, make_machine,
                                        remove_machine),
        cmocka_unit_test(test_a_machine_that_shows_nothing_is_one_node),
        cmocka_unit_test(test_lists_of_cpus),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
