/* Streams in shared memory: what goes in comes out, what is passed is checked, and a peer that
 * writes anything at all makes nobody read or write out of bounds. */
#include "tests/unit/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/check.h"
#include "worker-sdk/src/comm/tcp_shm.h"

#define CAP ((size_t)4096)

static uint32_t next_random(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

/* --- what is passed --- */

static void test_memory_is_made_and_adopted(void **state)
{
    struct shm a, b;
    int fd = -1;
    size_t n = 0;
    assert_int_equal(shm_create(&a, CAP, 0, &fd), 0);
    assert_int_equal(shm_adopt(&b, CAP, 1, fd), 0);
    assert_int_equal(shm_write(&a, "hello", 5, true), 5);
    assert_null(shm_peek(&b, &n)); /* Not yet published. */
    assert_false(shm_publish(&a));
    assert_memory_equal(shm_peek(&b, &n), "hello", 5);
    assert_int_equal(n, SHM_UNIT);
    assert_int_equal(ftruncate(fd, 0), -1); /* Nobody makes it shorter under us. */
    assert_int_equal(errno, EPERM);
    assert_int_equal(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    (void)close(fd);
    shm_fini(&a);
    shm_fini(&b);
}

/* What could change its size, has another one, or is something else altogether is refused. */
static void test_what_is_no_such_memory_is_refused(void **state)
{
    struct shm s;
    int fds[2], fd = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(ftruncate(fd, (off_t)shm_bytes(CAP)), 0);
    assert_int_equal(shm_adopt(&s, CAP, 1, fd), -EPROTO);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    assert_int_equal(shm_adopt(&s, CAP, 1, fd), -EPROTO);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SEAL), 0);
    assert_int_equal(shm_adopt(&s, 2 * CAP, 1, fd), -EPROTO);
    assert_int_equal(shm_adopt(&s, CAP, 1, fd), 0);
    shm_fini(&s);
    (void)close(fd);
    assert_int_equal(pipe(fds), 0);
    assert_true(shm_adopt(&s, CAP, 1, fds[0]) < 0);
    (void)close(fds[0]);
    (void)close(fds[1]);
    fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    assert_true(shm_adopt(&s, CAP, 1, fd) < 0);
    (void)close(fd);
    assert_int_equal(shm_adopt(&s, CAP, 1, -1), -EBADF);
}

/* A pair of ranks costs at most twice 512 KiB, a rank's streams out 1 MiB, up to 33 ranks. */
static void test_memory_is_bounded(void **state)
{
    for (uint32_t size = 2; size <= 4096; size++) {
        size_t cap = shm_stream_bytes(size);
        assert_true(cap >= (32u << 10) && cap <= (512u << 10) && cap % SHM_UNIT == 0);
        assert_true(cap * (size - 1) <= (1u << 20) || cap == (32u << 10));
    }
}

/* --- the stream --- */

struct both {
    struct shm a, b;
    void *bytes;
};

static void both_init(struct both *t)
{
    t->bytes = aligned_alloc(4096, (shm_bytes(CAP) + 4095) / 4096 * 4096);
    assert_non_null(t->bytes);
    memset(t->bytes, 0, shm_bytes(CAP));
    shm_init(&t->a, t->bytes, CAP, 0);
    shm_init(&t->b, t->bytes, CAP, 1);
}

#define MESSAGES 3000

static size_t length_of(uint32_t *seed)
{
    return 1 + next_random(seed) % (next_random(seed) % 8 == 0 ? 3 * CAP : 100);
}

static void *write_messages(void *arg)
{
    struct both *t = arg;
    uint32_t lengths = 1, bytes = 2;
    static uint8_t message[3 * CAP];
    for (int i = 0; i < MESSAGES; i++) {
        size_t n = length_of(&lengths);
        for (size_t k = 0; k < n; k++)
            message[k] = (uint8_t)next_random(&bytes);
        for (size_t at = 0; at < n;) {
            size_t m = shm_write(&t->a, message + at, n - at, true);
            (void)shm_publish(&t->a);
            at += m;
            if (m == 0)
                (void)sched_yield();
        }
    }
    return NULL;
}

/* Messages of all lengths, longer than the stream too, come out as they went in, on another thread;
 * each begins at a whole unit. */
static void test_messages_come_out_as_they_went_in(void **state)
{
    struct both t;
    pthread_t writer;
    uint32_t lengths = 1, bytes = 2;
    both_init(&t);
    assert_int_equal(pthread_create(&writer, NULL, write_messages, &t), 0);
    for (int i = 0; i < MESSAGES; i++) {
        size_t n = length_of(&lengths);
        assert_int_equal(t.b.taken % SHM_UNIT, 0);
        for (size_t at = 0; at < n;) {
            size_t m = 0;
            const uint8_t *p = shm_peek(&t.b, &m);
            if (p == NULL) {
                (void)sched_yield();
                continue;
            }
            m = m < n - at ? m : n - at;
            for (size_t k = 0; k < m; k++)
                assert_int_equal(p[k], (uint8_t)next_random(&bytes));
            at += m;
            shm_take(&t.b, m, at == n);
            (void)shm_release(&t.b);
        }
    }
    assert_int_equal(pthread_join(writer, NULL), 0);
    free(t.bytes);
}

/* --- sleeping --- */

/* Each kind of sleeper is woken by what it sleeps for, once, and by nothing else. */
static void test_sleepers_are_woken_for_what_they_want(void **state)
{
    struct both t;
    char x[CAP] = {0};
    size_t n = 0;
    both_init(&t);
    shm_sleep(&t.b, SHM_WANTS_DATA | SHM_WANTS_ROOM);
    assert_false(shm_publish(&t.a)); /* There is nothing new. */
    (void)shm_write(&t.a, x, CAP / 2, true);
    assert_true(shm_publish(&t.a));
    (void)shm_write(&t.a, x, CAP / 2, true);
    assert_false(shm_publish(&t.a)); /* It is on its way. */
    assert_int_equal(shm_write(&t.a, x, 1, true), 0);
    shm_sleep(&t.a, SHM_WANTS_ROOM);
    assert_non_null(shm_peek(&t.b, &n));
    shm_take(&t.b, SHM_UNIT, false);
    assert_false(shm_release(&t.b)); /* Hardly worth it: */
    assert_false(shm_nudge(&t.a, true));
    assert_true(shm_nudge(&t.b, false)); /* unless we would sleep now. */
    shm_sleep(&t.a, SHM_WANTS_ROOM);
    shm_take(&t.b, CAP / 2, false);
    assert_true(shm_release(&t.b));
    shm_wake_up(&t.a);
    shm_sleep(&t.b, SHM_LAZY);
    (void)shm_write(&t.a, x, SHM_UNIT, true);
    assert_false(shm_publish(&t.a)); /* It looks when it comes by: */
    assert_false(shm_nudge(&t.a, false));
    assert_true(shm_nudge(&t.a, true)); /* unless we wait for it. */
    free(t.bytes);
}

/* --- a peer that writes anything --- */

/* Side 1 writes whatever it likes where its counters are, at every moment. Its memory ends where a
 * page begins that nobody may touch. */
static void test_nonsense_never_leads_out_of_bounds(void **state)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = (shm_bytes(CAP) + page - 1) / page * page;
    uint8_t *p = mmap(NULL, bytes + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    static uint8_t message[2 * CAP];
    assert_true(p != MAP_FAILED);
    p += page;
    assert_int_equal(mprotect(p, bytes, PROT_READ | PROT_WRITE), 0);
    for (uint32_t seed = 1; seed <= 3000; seed++) {
        struct shm s;
        uint32_t r = seed;
        memset(p, 0, bytes);
        shm_init(&s, p, CAP, 0);
        for (int i = 0; i < 50; i++) {
            uint64_t *counter = (uint64_t *)(void *)(p + (3 + next_random(&r) % 2) * 64);
            const uint64_t candidates[] = {next_random(&r),
                                           s.written + next_random(&r) % CAP,
                                           s.taken + next_random(&r) % (2 * CAP),
                                           (s.taken + next_random(&r) % CAP) / SHM_UNIT * SHM_UNIT,
                                           UINT64_MAX - next_random(&r) % CAP,
                                           (uint64_t)next_random(&r) << 40};
            *counter = candidates[next_random(&r) % MU_COUNT(candidates)];
            size_t n = 0;
            const uint8_t *in = shm_peek(&s, &n);
            if (in != NULL) {
                assert_true(in >= p && n <= CAP && in + n <= p + shm_bytes(CAP));
                message[0] = (uint8_t)(in[0] + in[n - 1]);
                shm_take(&s, 1 + next_random(&r) % n, next_random(&r) % 2);
                (void)shm_release(&s);
            }
            n = next_random(&r) % sizeof message;
            assert_true(shm_write(&s, message, n, next_random(&r) % 2) <= (n < CAP ? n : CAP));
            (void)shm_publish(&s);
        }
    }
    assert_int_equal(munmap(p - page, bytes + 2 * page), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_is_made_and_adopted),
        cmocka_unit_test(test_what_is_no_such_memory_is_refused),
        cmocka_unit_test(test_memory_is_bounded),
        cmocka_unit_test(test_messages_come_out_as_they_went_in),
        cmocka_unit_test(test_sleepers_are_woken_for_what_they_want),
        cmocka_unit_test(test_nonsense_never_leads_out_of_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
