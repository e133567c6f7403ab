/* The store without a connection: the same keys, wakes, limits and counts as with one. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "rendezvous/store/internal.h"
#include "tests/unit/store_rig.h"

static struct mu_str of(const char *text)
{
    return mu_str_of(text, strlen(text));
}

static void what_is_put_is_what_clients_get(void **state)
{
    struct rig *r = rig_new(NULL, RIG_WHOLE, 1);
    struct mu_str v;
    (void)state;
    rig_modern(r, 0);
    assert_int_equal(store_put(r->store, of("k"), mu_str_of("a\0b", 3)), STORE_OK);
    rig_send(r, 0, "cs", STORE_GET, "k");
    rig_expect(r, 0, "b", "a\0b", (size_t)3);
    rig_send(r, 0, "css", STORE_SET, "k", "new");
    assert_int_equal(store_look(r->store, of("k"), &v), 0);
    assert_true(mu_str_eq(v, of("new")));
    assert_int_equal(store_put(r->store, of("k"), mu_str_of(NULL, 0)), STORE_OK);
    assert_int_equal(store_look(r->store, of("k"), &v), 0);
    assert_int_equal(v.n, 0);
    assert_true(store_remove(r->store, of("k")));
    assert_false(store_remove(r->store, of("k")));
    assert_int_equal(store_look(r->store, of("k"), &v), -ENOENT);
    struct store_stats st = rig_stats(r);
    assert_int_equal(st.keys, 0);
    assert_int_equal(st.ops[STORE_SET], 3);
    assert_int_equal(st.ops[STORE_DELETE_KEY], 2);
    assert_int_equal(st.ops[STORE_GET], 4);
    rig_free(r);
}

static void who_waits_is_woken_once(void **state)
{
    struct rig *r = rig_new(NULL, RIG_WHOLE, 2);
    (void)state;
    rig_modern(r, 0);
    rig_send(r, 0, "cqs", STORE_WAIT, (uint64_t)1, "due");
    rig_silent(r, 0);
    assert_int_equal(store_put(r->store, of("due"), of("1")), STORE_OK);
    rig_expect(r, 0, "c", 0);
    assert_int_equal(store_put(r->store, of("due"), of("2")), STORE_OK);
    rig_silent(r, 0);
    rig_free(r);
}

static void limits_hold_and_change_nothing(void **state)
{
    struct store_limits limits = store_limits_default;
    static char big[70000];
    (void)state;
    limits.key_bytes_max = 4;
    limits.value_bytes_max = sizeof big - 1;
    limits.memory_bytes_max = 1 << 16;
    struct rig *r = rig_new(&limits, RIG_WHOLE, 3);
    uint64_t before = rig_stats(r).memory_bytes;
    assert_int_equal(store_put(r->store, of("12345"), of("")), STORE_KEY_TOO_LONG);
    assert_int_equal(store_put(r->store, of("k"), mu_str_of(big, sizeof big)),
                     STORE_VALUE_TOO_LONG);
    assert_int_equal(store_put(r->store, of("k"), mu_str_of(big, sizeof big - 1)),
                     STORE_STORE_FULL);
    assert_int_equal(rig_stats(r).memory_bytes, before);
    assert_int_equal(store_put(r->store, of("k"), of("old")), STORE_OK);
    before = rig_stats(r).memory_bytes;
    assert_int_equal(store_put(r->store, of("k"), mu_str_of(big, sizeof big - 1)),
                     STORE_STORE_FULL);
    struct mu_str v;
    assert_int_equal(store_look(r->store, of("k"), &v), 0);
    assert_true(mu_str_eq(v, of("old")));
    assert_int_equal(rig_stats(r).memory_bytes, before);
    rig_free(r);
}

struct seen {
    uint32_t count;
    uint64_t queued;
    size_t bytes;
};

static void note(void *arg, const struct store_entry *e)
{
    struct seen *s = arg;
    s->count++;
    s->queued += e->queue_length;
    s->bytes += e->has_value ? e->value_bytes : 0;
}

static void each_key_and_queue_is_told_once(void **state)
{
    struct rig *r = rig_new(NULL, RIG_WHOLE, 4);
    char key[16];
    (void)state;
    rig_modern(r, 0);
    for (int i = 0; i < 200; i++) {
        (void)snprintf(key, sizeof key, "%s/%d", i % 2 == 0 ? "a" : "b", i);
        assert_int_equal(store_put(r->store, of(key), of("xyz")), STORE_OK);
    }
    rig_send(r, 0, "css", STORE_QUEUE_PUSH, "a/q", "1");
    rig_send(r, 0, "css", STORE_QUEUE_PUSH, "a/q", "2");
    rig_modern(r, 1);
    rig_send(r, 1, "cqs", STORE_WAIT, (uint64_t)1, "a/not there"); /* A name, but no key. */
    struct seen all = {0};
    struct seen some = {0};
    struct seen none = {0};
    store_each(r->store, of(""), note, &all);
    store_each(r->store, of("a/"), note, &some);
    store_each(r->store, of("a/200000000"), note, &none);
    assert_int_equal(all.count, 201);
    assert_int_equal(some.count, 101);
    assert_int_equal(some.queued, 2);
    assert_int_equal(some.bytes, 300);
    assert_int_equal(none.count, 0);
    rig_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_put_is_what_clients_get),
        cmocka_unit_test(who_waits_is_woken_once),
        cmocka_unit_test(limits_hold_and_change_nothing),
        cmocka_unit_test(each_key_and_queue_is_told_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
