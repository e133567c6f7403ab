/* agent/workers/xid_line.h: what the GPU driver says in the kernel's log. */
#include "tests/unit/unit.h"

#include "agent/workers/xid_line.h"
#include "base/check.h"

#define SEC INT64_C(1000000000)

static struct xid_line parsed(const char *record)
{
    struct xid_line line = {0};
    assert_true(xid_parse(record, strlen(record), &line));
    return line;
}

static void test_lines_of_old_and_new_drivers(void **state)
{
    static const struct {
        const char *record;
        int32_t number, pid;
        const char *gpu, *text;
    } rows[] = {
        {"4,1204,78123456789,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1122, name=python, GPU has "
         "fallen off the bus.\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n",
         79, 1122, "0000:3b:00", "GPU has fallen off the bus."},
        {"4,1,2,-;NVRM: Xid (PCI:0000:01:00): 79, pid=1122, GPU has fallen off the bus.", 79, 1122,
         "0000:01:00", "GPU has fallen off the bus."},
        {"3,1,2,-;NVRM: Xid (PCI:0000:00:06): 31, pid=79749, name=exe, Ch 0000000a, intr 00000000. "
         "MMU Fault: ENGINE GRAPHICS\n",
         31, 79749, "0000:00:06", "Ch 0000000a, intr 00000000. MMU Fault: ENGINE GRAPHICS"},
        {"4,1,2,-;NVRM: Xid (PCI:0000:18:00): 48, pid='<unknown>', name=<unknown>, DBE (double bit "
         "error)\n",
         48, 0, "0000:18:00", "DBE (double bit error)"},
        {"4,1,2,-;NVRM: Xid (PCI:0000:23:00): 79, GPU has fallen off the bus.\n", 79, 0,
         "0000:23:00", "GPU has fallen off the bus."},
        {"4,1,2,c;NVRM: Xid (0000:03:00): 14, Channel 00000001\n", 14, 0, "0000:03:00",
         "Channel 00000001"},
        {"4,1,2,-;NVRM: Xid (PCI:0000:83:00): 48\n", 48, 0, "0000:83:00", ""},
    };
    (void)state;
    for (size_t i = 0; i < MU_COUNT(rows); i++) {
        struct xid_line line = parsed(rows[i].record);
        assert_int_equal(line.number, rows[i].number);
        assert_int_equal(line.pid, rows[i].pid);
        assert_string_equal(line.gpu, rows[i].gpu);
        assert_string_equal(line.text, rows[i].text);
    }
}

static void test_other_lines_are_left_alone(void **state)
{
    static const char *const rows[] = {
        "",
        ";",
        "NVRM: Xid (PCI:0000:3b:00): 79, x",
        "6,1,2,-;Out of memory: Killed process 77 (python)",
        "6,1,2,-;NVRM: GPU at PCI:0000:3b:00: GPU-b850f46d",
        "6,1,2,-;NVRM: Xid (",
        "6,1,2,-;NVRM: Xid (PCI:0000:3b:00",
        "6,1,2,-;NVRM: Xid (PCI:0000:3b:00): ",
        "6,1,2,-;NVRM: Xid (PCI:0000:3b:00): many, pid=1",
        "6,1,2,-;NVRM: Xid (PCI:0000:3b:00): 0, pid=1",
        "6,1,2,-;fake\nNVRM: Xid (PCI:0000:3b:00): 79, x",
    };
    (void)state;
    for (size_t i = 0; i < MU_COUNT(rows); i++) {
        struct xid_line line;
        assert_false(xid_parse(rows[i], strlen(rows[i]), &line));
    }
}

static void test_the_workers_own_line_is_better_than_the_last_one(void **state)
{
    struct xid_lines l = {0};
    char words[200];
    struct xid_line own = parsed("4,1,2,-;NVRM: Xid (PCI:0000:3b:00): 31, pid=77, name=a, fault");
    struct xid_line other = parsed("4,1,2,-;NVRM: Xid (PCI:0000:5e:00): 43, pid=88, name=b, ch");
    struct xid_line bus = parsed("4,1,2,-;NVRM: Xid (PCI:0000:5e:00): 79, off the bus.");
    (void)state;
    assert_null(xid_find(&l, 77, 100 * SEC));
    xid_add(&l, &own, 10 * SEC);
    xid_add(&l, &other, 100 * SEC);
    assert_int_equal(xid_find(&l, 77, 101 * SEC)->number, 31);
    assert_int_equal(xid_find(&l, 78, 101 * SEC)->number, 43);
    assert_null(xid_find(&l, 78, 200 * SEC));
    xid_words(xid_find(&l, 78, 101 * SEC), 78, words, sizeof words);
    assert_string_equal(words, "Xid 43 on GPU 0000:5e:00 (pid 88): ch");
    xid_add(&l, &bus, 102 * SEC);
    xid_words(xid_find(&l, 78, 103 * SEC), 78, words, sizeof words);
    assert_string_equal(words, "Xid 79 on GPU 0000:5e:00: off the bus.");
    for (int i = 0; i < 3 * XID_LINES; i++)
        xid_add(&l, &bus, 104 * SEC);
    assert_int_equal(xid_find(&l, 77, 104 * SEC)->number, 79);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines_of_old_and_new_drivers),
        cmocka_unit_test(test_other_lines_are_left_alone),
        cmocka_unit_test(test_the_workers_own_line_is_better_than_the_last_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
