/* The tcp backend, with threads as ranks: results, order, abort, deadlines, ends. All of it over
 * sockets, through shared memory as a communicator has it, and through streams so short that every
 * message waits for room and turns in the middle. */
#include "tests/unit/unit.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/unit/sdk_comm_rig.h"

#define LONG (60 * MU_NS_PER_S)

/* --- elements as numbers --- */

static void put(void *p, size_t i, enum muster_dtype t, int64_t v)
{
    switch (t) {
    case MUSTER_U8:
        ((uint8_t *)p)[i] = (uint8_t)v;
        break;
    case MUSTER_I32:
        ((int32_t *)p)[i] = (int32_t)v;
        break;
    case MUSTER_I64:
        ((int64_t *)p)[i] = v;
        break;
    case MUSTER_F32:
        ((float *)p)[i] = (float)v;
        break;
    case MUSTER_F64:
        ((double *)p)[i] = (double)v;
        break;
    }
}

static int64_t get(const void *p, size_t i, enum muster_dtype t)
{
    switch (t) {
    case MUSTER_U8:
        return ((const uint8_t *)p)[i];
    case MUSTER_I32:
        return ((const int32_t *)p)[i];
    case MUSTER_I64:
        return ((const int64_t *)p)[i];
    case MUSTER_F32:
        return (int64_t)((const float *)p)[i];
    case MUSTER_F64:
        return (int64_t)((const double *)p)[i];
    }
    return 0;
}

/* What rank r holds at i: small, so that sums are exact in each type, 8 * 13 included. */
static int64_t value(uint32_t rank, size_t i)
{
    return (int64_t)((rank * 7 + i * 3) % 13);
}

static int64_t combined(uint32_t size, size_t i, enum muster_op op)
{
    int64_t v = value(0, i);
    for (uint32_t r = 1; r < size; r++) {
        int64_t w = value(r, i);
        if (op == MUSTER_SUM)
            v += w;
        else if (op == MUSTER_MIN ? w < v : w > v)
            v = w;
    }
    return v;
}

/* --- all operations, with one type and count --- */

struct story {
    struct rig *rig;
    size_t count;
    enum muster_dtype t;
    enum muster_op op;
};

static void need(int r, const struct muster_error *err)
{
    if (r < 0)
        fprintf(stderr, "failed: %d %s\n", r, err->text);
    MU_ASSERT(r == 0);
}

static void wait_for(muster_comm *c, muster_ticket t)
{
    struct muster_error err = {0};
    need(muster_comm_wait(c, t, -1, &err), &err);
}

static void all_reduce_is_right(const struct story *s, muster_comm *c, void *a)
{
    muster_ticket t = 0;
    uint32_t rank = muster_comm_rank(c), size = muster_comm_size(c);
    for (size_t i = 0; i < s->count; i++)
        put(a, i, s->t, value(rank, i));
    need(muster_comm_all_reduce(c, a, s->count, s->t, s->op, &t, NULL), NULL);
    wait_for(c, t);
    for (size_t i = 0; i < s->count; i++)
        MU_ASSERT(get(a, i, s->t) == combined(size, i, s->op));
}

static void broadcast_is_right(const struct story *s, muster_comm *c, void *a)
{
    muster_ticket t = 0;
    uint32_t rank = muster_comm_rank(c), size = muster_comm_size(c), root = (uint32_t)s->op % size;
    for (size_t i = 0; i < s->count; i++)
        put(a, i, s->t, rank == root ? value(9, i) : 1);
    need(muster_comm_broadcast(c, a, s->count, s->t, root, &t, NULL), NULL);
    wait_for(c, t);
    for (size_t i = 0; i < s->count; i++)
        MU_ASSERT(get(a, i, s->t) == value(9, i));
}

/* Apart, and with the part in its place already. */
static void all_gather_is_right(const struct story *s, muster_comm *c, uint8_t *a, uint8_t *b)
{
    uint32_t rank = muster_comm_rank(c), size = muster_comm_size(c);
    for (int in_place = 0; in_place < 2; in_place++) {
        muster_ticket t = 0;
        uint8_t *mine = in_place ? b + rank * s->count * muster_dtype_bytes(s->t) : a;
        memset(b, 0x55, size * s->count * muster_dtype_bytes(s->t));
        for (size_t i = 0; i < s->count; i++)
            put(mine, i, s->t, value(rank, i));
        need(muster_comm_all_gather(c, mine, b, s->count, s->t, &t, NULL), NULL);
        wait_for(c, t);
        for (size_t i = 0; i < size * s->count; i++)
            MU_ASSERT(get(b, i, s->t) == value((uint32_t)(i / s->count), i % s->count));
    }
}

static void reduce_scatter_is_right(const struct story *s, muster_comm *c, uint8_t *a, uint8_t *b)
{
    uint32_t rank = muster_comm_rank(c), size = muster_comm_size(c);
    for (int in_place = 0; in_place < 2; in_place++) {
        muster_ticket t = 0;
        uint8_t *mine = in_place ? a + rank * s->count * muster_dtype_bytes(s->t) : b;
        for (size_t i = 0; i < size * s->count; i++)
            put(a, i, s->t, value(rank, i));
        need(muster_comm_reduce_scatter(c, a, mine, s->count, s->t, s->op, &t, NULL), NULL);
        wait_for(c, t);
        for (size_t i = 0; i < s->count; i++)
            MU_ASSERT(get(mine, i, s->t) == combined(size, rank * s->count + i, s->op));
    }
}

static void do_all(void *arg, uint32_t rank)
{
    const struct story *s = arg;
    muster_comm *c = s->rig->comms[rank];
    size_t bytes = s->rig->size * s->count * muster_dtype_bytes(s->t);
    uint8_t *a = malloc(bytes + 1), *b = malloc(bytes + 1);
    MU_ASSERT(a != NULL && b != NULL);
    all_reduce_is_right(s, c, a);
    broadcast_is_right(s, c, a);
    all_gather_is_right(s, c, a, b);
    reduce_scatter_is_right(s, c, a, b);
    need(muster_comm_barrier(c, -1, NULL), NULL);
    free(a);
    free(b);
}

/* Every operation gives what its definition says, for worlds that are and are not powers of 2, and
 * counts around the world's size; the last ones go round the ring, with chunks of different
 * lengths. */
static void test_operations_give_what_they_should(void **state)
{
    static const uint32_t sizes[] = {1, 2, 3, 4, 5, 8};
    for (size_t k = 0; k < MU_COUNT(sizes); k++) {
        struct rig rig;
        uint32_t n = sizes[k];
        const size_t counts[] = {0, 1, n - 1, n, n + 1, 1000, 4099, 33333};
        rig_open(&rig, n, LONG);
        for (size_t i = 0; i < MU_COUNT(counts); i++)
            for (int t = MUSTER_U8; t <= MUSTER_F64; t++) {
                struct story s = {&rig, counts[i], (enum muster_dtype)t,
                                  (enum muster_op)((i + (size_t)t) % 3)};
                rig_each(&rig, do_all, &s);
            }
        for (int op = MUSTER_SUM; op <= MUSTER_MAX; op++)
            for (int t = MUSTER_U8; t <= MUSTER_F64; t++) {
                struct story s = {&rig, 7, (enum muster_dtype)t, (enum muster_op)op};
                rig_each(&rig, do_all, &s);
            }
        rig_close(&rig);
    }
}

/* --- bits --- */

struct bits {
    struct rig *rig;
    size_t count;
    float *out[RIG_RANKS_MAX];
};

static void reduce_noise(void *arg, uint32_t rank)
{
    struct bits *b = arg;
    muster_ticket t = 0;
    uint32_t x = 1234567u + rank * 7919u;
    for (size_t i = 0; i < b->count; i++) {
        x = x * 1664525u + 1013904223u;
        b->out[rank][i] = i % 97 == rank ? (float)NAN : ((float)x - 2147483648.0f) * 1e-7f;
    }
    need(muster_comm_all_reduce(b->rig->comms[rank], b->out[rank], b->count, MUSTER_F32, MUSTER_SUM,
                                &t, NULL),
         NULL);
    wait_for(b->rig->comms[rank], t);
}

static void reduce_over(size_t stream_bytes, struct bits *b, uint32_t size)
{
    size_t own = rig_stream_bytes;
    struct rig rig;
    rig_stream_bytes = stream_bytes;
    b->rig = &rig;
    rig_open(&rig, size, LONG);
    rig_each(&rig, reduce_noise, b);
    rig_close(&rig);
    rig_stream_bytes = own;
}

/* Sums of floats depend on the order; all ranks get the same bits, whatever way the sums went, and
 * through shared memory the same as over sockets. */
static void test_results_are_the_same_bits_everywhere(void **state)
{
    for (uint32_t n = 2; n <= RIG_RANKS_MAX; n++)
        for (size_t count = 1000; count <= 100000; count *= 100) {
            struct bits b = {.count = count};
            float *first = malloc(count * sizeof *first);
            for (uint32_t r = 0; r < n; r++)
                b.out[r] = malloc(count * sizeof(float));
            reduce_over(0, &b, n);
            memcpy(first, b.out[0], count * sizeof *first);
            reduce_over(rig_stream_bytes, &b, n);
            for (uint32_t r = 0; r < n; r++)
                assert_memory_equal(first, b.out[r], count * sizeof(float));
            for (uint32_t r = 0; r < n; r++)
                free(b.out[r]);
            free(first);
        }
}

/* --- the mean --- */

static float noise(uint32_t rank, size_t i)
{
    return (float)((i * 2654435761u + rank * 40503u) % 16777213u) * 1e-3f - 8000.0f;
}

static void mean_is_right(void *arg, uint32_t rank)
{
    const struct story *s = arg;
    muster_comm *c = s->rig->comms[rank];
    uint32_t size = s->rig->size;
    muster_ticket t = 0;
    float *f = malloc(s->count * sizeof *f);
    double *d = malloc(s->count * sizeof *d);
    MU_ASSERT(comm_knows_mean(c) && f != NULL && d != NULL);
    for (size_t i = 0; i < s->count; i++)
        d[i] = f[i] = noise(rank, i);
    need(comm_all_reduce_mean(c, f, s->count, MUSTER_F32, &t, NULL), NULL);
    wait_for(c, t);
    need(comm_all_reduce_mean(c, d, s->count, MUSTER_F64, &t, NULL), NULL);
    wait_for(c, t);
    for (size_t i = 0; i < s->count; i++) {
        double sum = 0;
        for (uint32_t r = 0; r < size; r++)
            sum += (double)noise(r, i);
        MU_ASSERT(fabs(d[i] - sum / size) < 1e-9 && fabs((double)f[i] - sum / size) < 4e-3);
        float halves = noise(0, i) / 2 + noise(1, i) / 2;
        MU_ASSERT(size != 2 || memcmp(&f[i], &halves, sizeof halves) == 0);
    }
    free(f);
    free(d);
}

/* Small ones by doubling; large ones of two by an exchange through memory, which divides as it adds
 * up, else round the ring. */
static void test_the_mean_is_the_sum_of_what_each_divided(void **state)
{
    size_t own = rig_stream_bytes;
    for (uint32_t n = 1; n <= 5; n++)
        for (int shared = 0; shared < 2; shared++) {
            struct rig rig;
            rig_stream_bytes = shared ? own : 0;
            rig_open(&rig, n, LONG);
            for (size_t count = 1; count <= 100001; count += 33333) {
                struct story s = {.rig = &rig, .count = count};
                rig_each(&rig, mean_is_right, &s);
            }
            rig_close(&rig);
        }
    rig_stream_bytes = own;
}

/* --- tickets --- */

#define FLIGHT 40

static void fly(void *arg, uint32_t rank)
{
    struct rig *rig = arg;
    muster_comm *c = rig->comms[rank];
    static int32_t data[3][FLIGHT][30000];
    muster_ticket t[FLIGHT] = {0};
    for (int i = 0; i < FLIGHT; i++) {
        size_t count = i % 3 == 0 ? 30000 : (size_t)i; /* Round the ring, and over the mesh. */
        for (size_t k = 0; k < count; k++)
            data[rank][i][k] = i;
        need(muster_comm_all_reduce(c, data[rank][i], count, MUSTER_I32, MUSTER_SUM, &t[i], NULL),
             NULL);
        MU_ASSERT(i == 0 || t[i] == t[i - 1] + 1);
    }
    wait_for(c, t[FLIGHT - 1]);
    for (int i = 0; i < FLIGHT; i++) {
        MU_ASSERT(muster_comm_test(c, t[i], NULL) == 1); /* In order: the last is done last. */
        for (size_t k = 0; k < (i % 3 == 0 ? 30000 : (size_t)i); k++)
            MU_ASSERT(data[rank][i][k] == 3 * i);
    }
}

/* Many operations at once finish, in order, with a number that grows by one. */
static void test_tickets_finish_in_order(void **state)
{
    struct rig rig;
    rig_open(&rig, 3, LONG);
    rig_each(&rig, fly, &rig);
    assert_int_equal(muster_comm_wait(rig.comms[0], FLIGHT + 1, 0, NULL), -EINVAL);
    assert_int_equal(muster_comm_test(rig.comms[0], FLIGHT + 1, NULL), -EINVAL);
    rig_close(&rig);
}

/* An operation that nobody waits for ends by itself: the communicator has a thread. */
static void test_operations_go_on_while_nobody_waits(void **state)
{
    struct rig rig;
    static float a[2][200000];
    muster_ticket t[2] = {0};
    rig_open(&rig, 2, LONG);
    for (uint32_t r = 0; r < 2; r++)
        assert_int_equal(
            muster_comm_all_reduce(rig.comms[r], a[r], 200000, MUSTER_F32, MUSTER_SUM, &t[r], NULL),
            0);
    wait_for(rig.comms[0], t[0]); /* Needs the other side's thread. */
    wait_for(rig.comms[1], t[1]);
    rig_close(&rig);
}

struct crowd {
    muster_comm *c;
    muster_ticket t;
    bool polls;
};

static void *wait_with_others(void *arg)
{
    const struct crowd *w = arg;
    struct muster_error err = {0};
    if (!w->polls)
        wait_for(w->c, w->t);
    int r = 0;
    while (w->polls && (r = muster_comm_test(w->c, w->t, &err)) == 0)
        (void)sched_yield();
    MU_ASSERT(r >= 0);
    return NULL;
}

static void wait_in_a_crowd(void *arg, uint32_t rank)
{
    struct rig *rig = arg;
    muster_comm *c = rig->comms[rank];
    static int64_t data[3][30][20000];
    struct crowd crowd[4];
    pthread_t threads[4];
    muster_ticket t = 0;
    for (int i = 0; i < 30; i++) {
        for (size_t k = 0; k < 20000; k++)
            data[rank][i][k] = i;
        size_t count = i % 2 ? 20000 : 5;
        need(muster_comm_all_reduce(c, data[rank][i], count, MUSTER_I64, MUSTER_SUM, &t, NULL),
             NULL);
        if (i % 8 != 7)
            continue;
        crowd[i / 8] = (struct crowd){c, t, i == 15};
        MU_ASSERT(pthread_create(&threads[i / 8], NULL, wait_with_others, &crowd[i / 8]) == 0);
    }
    wait_for(c, t);
    for (int i = 0; i < 3; i++)
        MU_ASSERT(pthread_join(threads[i], NULL) == 0);
    for (int i = 0; i < 30; i++)
        MU_ASSERT(data[rank][i][4] == 3 * i);
}

/* Several threads wait for, or look at, tickets of one communicator while more are given out. */
static void test_threads_wait_side_by_side(void **state)
{
    struct rig rig;
    rig_open(&rig, 3, LONG);
    rig_each(&rig, wait_in_a_crowd, &rig);
    rig_close(&rig);
}

/* --- failures --- */

static void
must_fail_alike(struct rig *rig, int32_t peer, int code, enum muster_phase phase, const char *text)
{
    for (uint32_t r = 0; r < rig->size; r++) {
        struct muster_cause cause = {0};
        float x = 0;
        muster_ticket t = 0;
        struct muster_error err = {0};
        if (rig->comms[r] == NULL)
            continue;
        assert_true(muster_comm_get_cause(rig->comms[r], &cause));
        assert_int_equal(cause.peer, peer);
        assert_int_equal(cause.code, code);
        assert_int_equal(cause.phase, phase);
        assert_has(cause.text, text);
        assert_int_equal(
            muster_comm_all_reduce(rig->comms[r], &x, 1, MUSTER_F32, MUSTER_SUM, &t, &err), code);
        assert_string_equal(err.text, cause.text);
    }
}

struct waits {
    struct rig *rig;
    int64_t timeout_ns;
    uint32_t absent; /* This rank does not take part. */
    size_t count;
    int result[RIG_RANKS_MAX];
    int64_t ended_ns[RIG_RANKS_MAX];
    pthread_barrier_t *ready;
};

static void wait_in_vain(void *arg, uint32_t rank)
{
    struct waits *w = arg;
    static float data[RIG_RANKS_MAX][100000];
    muster_ticket t = 0;
    if (rank == w->absent) {
        if (w->ready != NULL) {
            (void)pthread_barrier_wait(w->ready);
            w->ended_ns[rank] = mu_now_ns();
            muster_comm_abort(w->rig->comms[rank], "the test\nsays \x1b[2Jso");
        }
        return;
    }
    int r = muster_comm_all_reduce(w->rig->comms[rank], data[rank], w->count, MUSTER_F32,
                                   MUSTER_SUM, &t, NULL);
    if (w->ready != NULL)
        (void)pthread_barrier_wait(w->ready);
    if (r == 0) /* Else the failure was there first. */
        r = muster_comm_wait(w->rig->comms[rank], t, w->timeout_ns, NULL);
    w->result[rank] = r;
    w->ended_ns[rank] = mu_now_ns();
}

/* abort() on one rank ends the waits of all, at once, with one cause. */
static void test_abort_ends_all_waits(void **state)
{
    for (size_t count = 10; count <= 100000; count *= 10000) {
        struct rig rig;
        pthread_barrier_t ready;
        struct waits w = {
            .rig = &rig, .timeout_ns = LONG, .absent = 2, .count = count, .ready = &ready};
        rig_open(&rig, 4, LONG);
        pthread_barrier_init(&ready, NULL, 4);
        rig_each(&rig, wait_in_vain, &w);
        pthread_barrier_destroy(&ready);
        for (uint32_t r = 0; r < 4; r++) {
            assert_int_equal(w.result[r], r == 2 ? 0 : -ECANCELED);
            assert_true(w.ended_ns[r] - w.ended_ns[2] < 1000 * MU_NS_PER_MS);
        }
        must_fail_alike(&rig, 2, -ECANCELED, MUSTER_PHASE_ABORT,
                        "rank 2 aborted: the test says  [2Jso");
        rig_close(&rig);
    }
}

static void *abort_soon(void *arg)
{
    muster_comm_abort(arg, "from another thread");
    return NULL;
}

/* abort() by another thread wakes the waiter of the same communicator. */
static void test_abort_from_another_thread_wakes_the_waiter(void **state)
{
    struct rig rig;
    pthread_t other;
    float x = 0;
    muster_ticket t = 0;
    struct muster_error err = {0};
    rig_open(&rig, 2, LONG);
    assert_int_equal(muster_comm_all_reduce(rig.comms[0], &x, 1, MUSTER_F32, MUSTER_SUM, &t, NULL),
                     0);
    assert_int_equal(pthread_create(&other, NULL, abort_soon, rig.comms[0]), 0);
    assert_int_equal(muster_comm_wait(rig.comms[0], t, LONG, &err), -ECANCELED);
    assert_has(err.text, "from another thread");
    assert_int_equal(pthread_join(other, NULL), 0);
    rig_close(&rig);
}

/* A wait that ends by its deadline names the rank that is not there, on all ranks. */
static void test_deadline_names_who_is_late(void **state)
{
    for (size_t count = 10; count <= 100000; count *= 10000) {
        struct rig rig;
        struct waits w = {
            .rig = &rig, .timeout_ns = 30 * MU_NS_PER_MS, .absent = 3, .count = count};
        rig_open(&rig, 4, LONG);
        rig_each(&rig, wait_in_vain, &w);
        for (uint32_t r = 0; r < 3; r++)
            assert_int_equal(w.result[r], -ETIMEDOUT);
        struct muster_cause cause = {0};
        while (!muster_comm_get_cause(rig.comms[3], &cause)) /* Its thread hears of it. */
            (void)sched_yield();
        must_fail_alike(&rig, 3, -ETIMEDOUT, MUSTER_PHASE_WAIT, "rank 3");
        rig_close(&rig);
    }
}

/* A peer that ends without a word is the cause, and for everybody: those that learn of it from
 * others do not blame the messenger. */
static void test_death_of_a_rank_is_the_cause_for_all(void **state)
{
    for (uint32_t dead = 0; dead < 5; dead++) {
        struct rig rig;
        struct muster_comm_options o = MUSTER_COMM_OPTIONS_INIT;
        rig_wire(&rig, 5);
        for (uint32_t i = 0; i < 5; i++)
            if (i != dead)
                assert_int_equal(muster_comm_open(&rig.ranks[i], &o, &rig.comms[i], NULL), 0);
        struct waits w = {
            .rig = &rig, .timeout_ns = LONG, .absent = dead, .count = dead % 2 ? 10 : 100000};
        tcp_fabric_fini(&rig.ranks[dead].fabric); /* As the kernel does when a process ends. */
        rig_each(&rig, wait_in_vain, &w);
        char who[16];
        (void)snprintf(who, sizeof who, "rank %u", dead);
        must_fail_alike(&rig, (int32_t)dead, -ECONNRESET, MUSTER_PHASE_RECEIVE, who);
        rig_close(&rig);
    }
}

/* Ranks that ask for different things get a sentence, and no wrong sums. */
static void test_different_calls_are_refused(void **state)
{
    struct rig rig;
    float a[8] = {0};
    muster_ticket t[2] = {0};
    struct muster_error err = {0};
    rig_open(&rig, 2, LONG);
    (void)muster_comm_all_reduce(rig.comms[0], a, 3, MUSTER_F32, MUSTER_SUM, &t[0], NULL);
    (void)muster_comm_all_reduce(rig.comms[1], a + 4, 4, MUSTER_F32, MUSTER_SUM, &t[1], NULL);
    assert_int_equal(muster_comm_wait(rig.comms[0], 1, LONG, &err), -EPROTO);
    assert_has(err.text, "all_reduce(3 f32, sum)");
    assert_has(err.text, "all_reduce(4 f32, sum)");
    rig_close(&rig);
    rig_open(&rig, 2, LONG);
    (void)muster_comm_all_reduce(rig.comms[0], a, 2, MUSTER_F32, MUSTER_SUM, &t[0], NULL);
    (void)muster_comm_all_reduce(rig.comms[1], a + 4, 2, MUSTER_I32, MUSTER_MAX, &t[1], NULL);
    assert_int_equal(muster_comm_wait(rig.comms[0], 1, LONG, &err), -EPROTO);
    assert_has(err.text, "all_reduce(2 f32, sum)");
    assert_has(err.text, "all_reduce(2 i32, max)");
    rig_close(&rig);
    rig_open(&rig, 2, LONG);
    (void)muster_comm_broadcast(rig.comms[0], a, 2, MUSTER_F64, 1, &t[0], NULL);
    (void)muster_comm_barrier(rig.comms[1], LONG, NULL);
    assert_int_equal(muster_comm_wait(rig.comms[0], 1, LONG, &err), -EPROTO);
    assert_has(err.text, "broadcast(2 f64, from rank 1)");
    assert_has(err.text, "but barrier on rank 1");
    rig_close(&rig);
}

/* Leaving is no failure for those that ask for nothing more; for those that do, it is. */
static void test_leaving_fails_only_who_goes_on(void **state)
{
    struct rig rig;
    struct muster_cause cause;
    struct muster_error err = {0};
    muster_ticket t = 0;
    float x = 0;
    rig_open(&rig, 2, LONG);
    struct story s = {&rig, 7, MUSTER_F32, MUSTER_SUM};
    rig_each(&rig, do_all, &s);
    muster_comm_close(rig.comms[1]);
    rig.comms[1] = NULL;
    assert_false(muster_comm_get_cause(rig.comms[0], &cause));
    int r = muster_comm_all_reduce(rig.comms[0], &x, 1, MUSTER_F32, MUSTER_SUM, &t, &err);
    if (r == 0)
        r = muster_comm_wait(rig.comms[0], t, LONG, &err);
    assert_int_equal(r, -ECONNRESET);
    assert_has(err.text, "rank 1 closed its communicator");
    rig_close(&rig);
}

/* Closing with operations in flight is an abort. */
static void test_closing_in_flight_aborts(void **state)
{
    struct rig rig;
    float a[2] = {0};
    muster_ticket t = 0;
    struct muster_error err = {0};
    rig_open(&rig, 3, LONG);
    assert_int_equal(muster_comm_all_reduce(rig.comms[0], a, 1, MUSTER_F32, MUSTER_SUM, &t, NULL),
                     0);
    assert_int_equal(
        muster_comm_all_reduce(rig.comms[1], a + 1, 1, MUSTER_F32, MUSTER_SUM, &t, NULL), 0);
    muster_comm_close(rig.comms[1]);
    rig.comms[1] = NULL;
    assert_int_equal(muster_comm_wait(rig.comms[0], 1, LONG, &err), -ECANCELED);
    assert_has(err.text, "rank 1 closed its communicator with operations in flight");
    rig_close(&rig);
}

/* A peer that writes nonsense where the counters are is the cause: nothing is read or written where
 * it points, and nobody waits for it. */
static void test_nonsense_in_shared_memory_is_refused(void **state)
{
    for (size_t at = 0; rig_stream_bytes > 0 && at < 2; at++) {
        struct rig rig;
        struct muster_comm_options o = MUSTER_COMM_OPTIONS_INIT;
        struct muster_error err = {0};
        struct muster_cause cause = {0};
        muster_ticket t = 0;
        static float a[200000];
        rig_wire(&rig, 2);
        assert_int_equal(muster_comm_open(&rig.ranks[0], &o, &rig.comms[0], &err), 0);
        /* Of side 1: what it has written, and what it has taken of ours. */
        uint64_t *counter = (uint64_t *)(void *)((char *)rig.memory[1] + 3 * 64 + at * 64);
        __atomic_store_n(counter, UINT64_MAX / 2, __ATOMIC_SEQ_CST);
        int r =
            muster_comm_all_reduce(rig.comms[0], a, MU_COUNT(a), MUSTER_F32, MUSTER_SUM, &t, &err);
        if (r == 0)
            r = muster_comm_wait(rig.comms[0], t, LONG, &err);
        assert_int_equal(r, -EPROTO);
        assert_has(err.text, "what cannot be");
        assert_true(muster_comm_get_cause(rig.comms[0], &cause));
        assert_int_equal(cause.peer, 1);
        tcp_fabric_fini(&rig.ranks[1].fabric);
        rig_close(&rig);
    }
}

/* A link on which no data comes, as beside shared memory, never fills up with what is said: the
 * rank hears the last question as well as the first. */
static void test_a_link_without_data_is_heard_for_ever(void **state)
{
    struct rig rig;
    struct muster_comm_options o = MUSTER_COMM_OPTIONS_INIT;
    uint32_t answers = 0;
    const uint32_t questions = 3 * LINK_PAYLOAD_MAX / sizeof(struct link_head);
    rig_wire(&rig, 2);
    assert_int_equal(muster_comm_open(&rig.ranks[0], &o, &rig.comms[0], NULL), 0);
    for (uint32_t i = 0; i < questions; i++) {
        const struct link_head ask = {.type = LINK_ASK, .number = i};
        struct link_head answer = {0};
        struct pollfd p = {.fd = rig.ranks[1].fabric.mesh[0], .events = POLLIN};
        assert_int_equal(send(p.fd, &ask, sizeof ask, MSG_NOSIGNAL), sizeof ask);
        assert_int_equal(poll(&p, 1, 60000), 1);
        assert_int_equal(recv(p.fd, &answer, sizeof answer, 0), sizeof answer);
        assert_int_equal(answer.type, LINK_TELL);
        answers += answer.number == i;
    }
    assert_int_equal(answers, questions);
    tcp_fabric_fini(&rig.ranks[1].fabric);
    rig_close(&rig);
}

/* --- arguments --- */

static void test_wrong_arguments_get_a_sentence(void **state)
{
    struct rig rig;
    struct muster_error err = {0};
    float x = 0;
    muster_comm *c = NULL;
    struct muster_comm_options o = MUSTER_COMM_OPTIONS_INIT;
    rig_open(&rig, 1, LONG);
    o.backend = "carrier pigeon";
    assert_int_equal(muster_comm_open(&rig.ranks[0], &o, &c, &err), -EINVAL);
    assert_has(err.text, "choose from");
    o.backend = NULL;
    o.name = "a/b";
    assert_int_equal(muster_comm_open(&rig.ranks[0], &o, &c, &err), -EINVAL);
    o.size = 3;
    assert_int_equal(muster_comm_open(&rig.ranks[0], &o, &c, &err), -EINVAL);
    assert_has(err.text, "MUSTER_COMM_OPTIONS_INIT");
    c = rig.comms[0];
    assert_int_equal(muster_comm_broadcast(c, &x, 1, MUSTER_F32, 1, NULL, &err), -EINVAL);
    assert_has(err.text, "root 1");
    assert_int_equal(muster_comm_all_reduce(c, NULL, 1, MUSTER_F32, MUSTER_SUM, NULL, &err),
                     -EINVAL);
    assert_int_equal(
        muster_comm_all_reduce(c, &x, SIZE_MAX / 2, MUSTER_F32, MUSTER_SUM, NULL, &err), -EINVAL);
    assert_has(err.text, "too many");
    assert_int_equal(
        muster_comm_all_reduce(c, &x, 1, (enum muster_dtype)17, MUSTER_SUM, NULL, &err), -EINVAL);
    assert_int_equal(muster_comm_all_reduce(c, &x, 1, MUSTER_F32, (enum muster_op)17, NULL, &err),
                     -EINVAL);
    assert_int_equal(muster_comm_all_reduce(c, NULL, 0, MUSTER_F32, MUSTER_SUM, NULL, &err), 0);
    muster_comm_close(NULL);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_operations_give_what_they_should),
        cmocka_unit_test(test_results_are_the_same_bits_everywhere),
        cmocka_unit_test(test_the_mean_is_the_sum_of_what_each_divided),
        cmocka_unit_test(test_tickets_finish_in_order),
        cmocka_unit_test(test_operations_go_on_while_nobody_waits),
        cmocka_unit_test(test_threads_wait_side_by_side),
        cmocka_unit_test(test_abort_ends_all_waits),
        cmocka_unit_test(test_abort_from_another_thread_wakes_the_waiter),
        cmocka_unit_test(test_deadline_names_who_is_late),
        cmocka_unit_test(test_death_of_a_rank_is_the_cause_for_all),
        cmocka_unit_test(test_different_calls_are_refused),
        cmocka_unit_test(test_leaving_fails_only_who_goes_on),
        cmocka_unit_test(test_closing_in_flight_aborts),
        cmocka_unit_test(test_a_link_without_data_is_heard_for_ever),
        cmocka_unit_test(test_nonsense_in_shared_memory_is_refused),
        cmocka_unit_test(test_wrong_arguments_get_a_sentence),
    };
    int failed = cmocka_run_group_tests_name("sockets", tests, NULL, NULL);
    rig_stream_bytes = shm_stream_bytes(RIG_RANKS_MAX);
    failed += cmocka_run_group_tests_name("memory", tests, NULL, NULL);
    rig_stream_bytes = 4096;
    failed += cmocka_run_group_tests_name("short streams", tests, NULL, NULL);
    return failed;
}
