/* The plans of all ranks together, without sockets: each part is counted once, everywhere, and each
 * message has a receiver that expects it. */
#include "tests/unit/unit.h"

#include "tests/unit/sdk_comm_rig.h"
#include "worker-sdk/src/comm/tcp_meet.h"
#include "worker-sdk/src/comm/tcp_plan.h"

#define RANKS 33

/* Which ranks' contributions a place holds. */
typedef uint64_t set;

struct message {
    uint32_t from;
    struct plan_range range;
    set holds[2 * RANKS]; /* Of the range, by place. */
};

struct world {
    uint32_t size;
    size_t places; /* Bytes of a rank's buffer. */
    set held[RANKS][2 * RANKS];
    struct plan_steps plans[RANKS];
    size_t at[RANKS];
    bool sent[RANKS];
    struct message box[RANKS][RANKS * 2]; /* Of each receiver, in order of arrival. */
    size_t box_count[RANKS];
};
static struct world world;

static void fill(struct message *m, const set *held, struct plan_range r)
{
    m->range = r;
    for (size_t i = 0; i < r.bytes; i++)
        m->holds[i] = held[r.offset + i];
}

/* The first message from a rank; taken out of the box. */
static bool fetch(struct world *w, uint32_t to, uint32_t from, struct message *ret)
{
    for (size_t i = 0; i < w->box_count[to]; i++) {
        if (w->box[to][i].from != from)
            continue;
        *ret = w->box[to][i];
        memmove(&w->box[to][i], &w->box[to][i + 1], (--w->box_count[to] - i) * sizeof *ret);
        return true;
    }
    return false;
}

static void take(struct world *w, uint32_t rank, const struct plan_step *s, const struct message *m)
{
    assert_int_equal(m->range.bytes, s->recv.bytes);
    for (size_t i = 0; i < s->recv.bytes; i++) {
        set *mine = &w->held[rank][s->recv.offset + i], theirs = m->holds[i];
        if (s->take != PLAN_KEEP)
            assert_int_equal(*mine & theirs, 0); /* Nobody is counted twice. */
        *mine = s->take == PLAN_KEEP ? theirs : *mine | theirs;
    }
}

/* One step of a rank, if it can go on. */
static bool step(struct world *w, uint32_t rank)
{
    struct plan_steps *p = &w->plans[rank];
    if (w->at[rank] == p->count)
        return false;
    const struct plan_step *s = &p->step[w->at[rank]];
    bool moved = false;
    if (s->to >= 0 && !w->sent[rank]) {
        struct message *m = &w->box[s->to][w->box_count[s->to]++];
        m->from = rank;
        fill(m, w->held[rank], s->send);
        w->sent[rank] = moved = true;
    }
    struct message m;
    if (s->from >= 0 && !fetch(w, rank, (uint32_t)s->from, &m))
        return moved;
    if (s->from >= 0)
        take(w, rank, s, &m);
    w->at[rank]++;
    w->sent[rank] = false;
    return true;
}

static void run(const struct comm_work *work, uint32_t size)
{
    enum plan_base base;
    for (uint32_t r = 0; r < size; r++)
        plan_steps(work, r, size, &world.plans[r], &base);
    for (bool moved = true; moved;) {
        moved = false;
        for (uint32_t r = 0; r < size; r++)
            moved = step(&world, r) || moved;
    }
    for (uint32_t r = 0; r < size; r++) {
        assert_int_equal(world.at[r], world.plans[r].count); /* Nobody waits for ever. */
        assert_int_equal(world.box_count[r], 0);             /* Nothing was sent in vain. */
    }
}

static void begin(uint32_t size)
{
    memset(&world, 0, sizeof world);
    world.size = size;
}

/* Every rank ends with each rank's part, once. */
static void test_all_reduce_counts_each_rank_once(void **state)
{
    for (uint32_t n = 1; n <= RANKS; n++) {
        struct comm_work w = {.kind = COMM_ALL_REDUCE, .count = 1, .dtype = MUSTER_U8};
        begin(n);
        for (uint32_t r = 0; r < n; r++)
            world.held[r][0] = (set)1 << r;
        run(&w, n);
        for (uint32_t r = 0; r < n; r++)
            assert_int_equal(world.held[r][0], ((set)1 << n) - 1);
    }
}

static void test_broadcast_reaches_all_from_each_root(void **state)
{
    for (uint32_t n = 1; n <= RANKS; n++)
        for (uint32_t root = 0; root < n; root++) {
            struct comm_work w = {
                .kind = COMM_BROADCAST, .count = 1, .dtype = MUSTER_U8, .root = root};
            begin(n);
            world.held[root][0] = 1;
            run(&w, n);
            for (uint32_t r = 0; r < n; r++)
                assert_int_equal(world.held[r][0], 1);
        }
}

/* The scratch holds the parts of this rank, then of the ranks above. */
static void test_all_gather_brings_all_parts(void **state)
{
    for (uint32_t n = 1; n <= RANKS; n++) {
        struct comm_work w = {.kind = COMM_ALL_GATHER, .count = 1, .dtype = MUSTER_U8};
        begin(n);
        for (uint32_t r = 0; r < n; r++)
            world.held[r][0] = (set)1 << r;
        run(&w, n);
        for (uint32_t r = 0; r < n; r++)
            for (uint32_t i = 0; i < n; i++)
                assert_int_equal(world.held[r][i], (set)1 << (r + i) % n);
    }
}

static void test_barrier_has_a_chain_from_everybody(void **state)
{
    for (uint32_t n = 1; n <= RANKS; n++) {
        struct comm_work w = {.kind = COMM_BARRIER, .dtype = MUSTER_U8};
        begin(n);
        run(&w, n);
        /* Messages of step k come from 2^k below: together they reach back round the world. */
        uint32_t reach = 0;
        for (size_t i = 0; i < world.plans[0].count; i++)
            reach += (uint32_t)((world.size - (uint32_t)world.plans[0].step[i].from) % n);
        assert_true(n == 1 || reach >= n - 1);
    }
}

/* What a rank sends in step s its next one receives in step s; chunks cover the buffer without a
 * gap. */
static void test_ring_passes_each_chunk_on(void **state)
{
    static const enum comm_kind kinds[] = {COMM_ALL_REDUCE, COMM_REDUCE_SCATTER, COMM_ALL_GATHER,
                                           COMM_BROADCAST};
    for (uint32_t n = 2; n <= RANKS; n++)
        for (size_t k = 0; k < MU_COUNT(kinds); k++)
            for (uint32_t r = 0; r < n; r++) {
                struct comm_work w = {
                    .kind = kinds[k], .count = 3 * n + 2, .dtype = MUSTER_I32, .root = n / 2};
                struct plan_ring mine, next;
                plan_ring(&w, r, n, &mine);
                plan_ring(&w, (r + 1) % n, n, &next);
                assert_int_equal(mine.send_end - mine.send_begin, next.recv_end);
                for (uint32_t s = 0; s < next.recv_end; s++)
                    assert_int_equal(plan_ring_chunk(&mine, s + mine.send_begin),
                                     plan_ring_chunk(&next, s + 1));
                size_t end = 0;
                for (uint32_t c = 0; c < mine.chunks; c++) {
                    struct plan_range range = plan_ring_range(&mine, c);
                    assert_int_equal(range.offset, end);
                    end += range.bytes;
                }
                bool each = kinds[k] == COMM_REDUCE_SCATTER || kinds[k] == COMM_ALL_GATHER;
                assert_int_equal(end, (each ? n : 1) * w.count * 4);
                if (kinds[k] ==
                    COMM_REDUCE_SCATTER) /* A rank's own chunk is the last that it adds to. */
                    assert_int_equal(plan_ring_chunk(&mine, mine.recv_end), r);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_reduce_counts_each_rank_once),
        cmocka_unit_test(test_broadcast_reaches_all_from_each_root),
        cmocka_unit_test(test_all_gather_brings_all_parts),
        cmocka_unit_test(test_barrier_has_a_chain_from_everybody),
        cmocka_unit_test(test_ring_passes_each_chunk_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
