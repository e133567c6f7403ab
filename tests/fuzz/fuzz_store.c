/* Any bytes at all, from four connections in turn, at a store with small limits.
 *
 * The input is a list of steps: one byte (bits 0-1 which client, bits 2-4 what), for a feed two
 * bytes of length and the bytes. The whole story runs twice, with each feed whole and by the byte,
 * and must end the same: the same answers, verdicts, keys. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "rendezvous/store/store.h"

#define CLIENTS 4

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum step {
    STEP_FEED,
    STEP_FEED_MODERN, /* After VALIDATE, so that the fuzzer need not find it. */
    STEP_DRAIN,       /* The client reads. */
    STEP_DRAIN_SOME,
    STEP_CLOSE,
    STEP_WIPE,
    STEP_TAKE_READY,
    STEP_STATS,
};

struct story {
    struct store *store;
    struct store_client *client[CLIENTS];
    bool by_byte;
    uint64_t answers; /* A hash of all that was answered and decided. */
};

static void note(struct story *t, const void *p, size_t n)
{
    const unsigned char *u = p;
    for (size_t i = 0; i < n; i++)
        t->answers = (t->answers ^ u[i]) * UINT64_C(0x100000001b3);
}

static void connect_client(struct story *t, int who)
{
    t->client[who] = store_client_new(t->store, &t->client[who]);
    MU_ASSERT(t->client[who] != NULL);
}

static void close_client(struct story *t, int who)
{
    uint64_t verdict = store_client_verdict(t->client[who]);
    note(t, &verdict, sizeof verdict);
    store_client_free(t->client[who]);
    connect_client(t, who);
}

static void drain(struct story *t, int who, size_t max)
{
    struct store_client *c = t->client[who];
    struct store_piece piece;
    while (max > 0 && store_client_output(c, &piece, 1) == 1) {
        size_t n = piece.n < max ? piece.n : max;
        MU_ASSERT(n > 0 && store_client_pending(c) >= n);
        note(t, piece.p, n);
        store_client_sent(c, n);
        max -= n;
    }
}

/* As a shell does; the bytes in a block of their own size, so that a read too far is seen. */
static void feed_piece(struct story *t, int who, const uint8_t *p, size_t n)
{
    while (n > 0) {
        void *space = NULL;
        size_t room = 0;
        store_client_space(t->client[who], &space, &room);
        size_t m = space != NULL && room < n ? room : n;
        char *scratch = malloc(m);
        MU_ASSERT(scratch != NULL);
        memcpy(space != NULL ? space : scratch, p, m);
        (void)store_client_feed(t->client[who], space != NULL ? space : scratch, m);
        free(scratch);
        p += m;
        n -= m;
    }
}

static void feed(struct story *t, int who, const uint8_t *p, size_t n)
{
    for (size_t at = 0; t->by_byte && at < n; at++)
        feed_piece(t, who, p + at, 1);
    if (!t->by_byte)
        feed_piece(t, who, p, n);
}

static void take_ready(struct story *t)
{
    struct store_client *c = NULL;
    while ((c = store_take_ready(t->store)) != NULL) {
        struct store_client **slot = store_client_owner(c);
        MU_ASSERT(*slot == c);
        MU_ASSERT(store_client_pending(c) > 0 || store_client_verdict(c) != STORE_OK);
    }
}

static void note_stats(struct story *t)
{
    struct store_stats st;
    store_get_stats(t->store, &st);
    st.memory_bytes = 0; /* May differ by what is kept of half-read requests. */
    note(t, &st, sizeof st);
}

/* Returns how many bytes of p the step used. */
static size_t step(struct story *t, const uint8_t *p, size_t n)
{
    static const uint8_t magic[] = {0x00, 0xce, 0xf7, 0x85, 0x3c};
    int who = p[0] & 3;
    size_t len = n >= 3 ? (size_t)(p[1] | p[2] << 8) : 0;
    len = n >= 3 && len > n - 3 ? n - 3 : len;
    switch ((enum step)(p[0] >> 2 & 7)) {
    case STEP_FEED_MODERN:
        if (!store_client_has_spoken(t->client[who]))
            feed(t, who, magic, sizeof magic);
        feed(t, who, p + (n >= 3 ? 3 : n), len);
        return n >= 3 ? 3 + len : n;
    case STEP_FEED:
        feed(t, who, p + (n >= 3 ? 3 : n), len);
        return n >= 3 ? 3 + len : n;
    case STEP_DRAIN:
        drain(t, who, SIZE_MAX);
        break;
    case STEP_DRAIN_SOME:
        drain(t, who, 7);
        break;
    case STEP_CLOSE:
        close_client(t, who);
        break;
    case STEP_WIPE:
        store_wipe(t->store);
        break;
    case STEP_TAKE_READY:
        take_ready(t);
        break;
    case STEP_STATS:
        note_stats(t);
        break;
    }
    return 1;
}

static uint64_t run(const uint8_t *p, size_t n, bool by_byte)
{
    static const struct store_limits limits = {
        .key_bytes_max = 40,
        .value_bytes_max = 40000,
        .keys_per_request_max = 50,
        .memory_bytes_max = 64 << 20, /* Never reached: how near one is depends on the pieces. */
        .out_bytes_max = 5000,
    };
    struct story t = {.store = store_new(mu_mem_default(), &limits, 1), .by_byte = by_byte};
    MU_ASSERT(t.store != NULL);
    for (int i = 0; i < CLIENTS; i++)
        connect_client(&t, i);
    while (n > 0) {
        size_t used = step(&t, p, n);
        p += used;
        n -= used;
    }
    take_ready(&t);
    note_stats(&t);
    for (int i = 0; i < CLIENTS; i++) {
        drain(&t, i, SIZE_MAX);
        close_client(&t, i);
        store_client_free(t.client[i]);
    }
    store_free(t.store); /* Asserts that every byte it charged was given back. */
    return t.answers;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    MU_ASSERT(run(data, size, false) == run(data, size, true));
    return 0;
}
