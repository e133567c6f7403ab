/* The promise: every list is PyTorch's, number for number (tests/data/sampler.json, made by
 * gen_sampler.py). "--large": the sizes at which randperm changes its way; 900 MB and three
 * minutes. */
#include "tests/unit/unit.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include <cjson/cJSON.h>
#include <muster/sampler.h>

#include "worker-sdk/src/sampler/mt19937.h"
#include "worker-sdk/src/sampler/randperm.h"

#define LARGE_FROM 10000000

/* --- SHA-256 (FIPS 180-4), for lists that are too long to be written down --- */

struct sha {
    uint32_t h[8];
    uint8_t block[64];
    size_t used;
    uint64_t bytes;
};

static const uint32_t sha_k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t turn(uint32_t x, int n)
{
    return x >> n | x << (32 - n);
}

static void sha_block(struct sha *s)
{
    uint32_t w[64];
    uint32_t v[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)s->block[4 * i] << 24 | (uint32_t)s->block[4 * i + 1] << 16 |
               (uint32_t)s->block[4 * i + 2] << 8 | s->block[4 * i + 3];
    for (int i = 16; i < 64; i++)
        w[i] = w[i - 16] + w[i - 7] + (turn(w[i - 15], 7) ^ turn(w[i - 15], 18) ^ w[i - 15] >> 3) +
               (turn(w[i - 2], 17) ^ turn(w[i - 2], 19) ^ w[i - 2] >> 10);
    memcpy(v, s->h, sizeof v);
    for (int i = 0; i < 64; i++) { /* a to h move round through v instead of being moved. */
        uint32_t *a = &v[(64 - i) % 8];
        uint32_t *b = &v[(65 - i) % 8];
        uint32_t *c = &v[(66 - i) % 8];
        uint32_t *d = &v[(67 - i) % 8];
        uint32_t *e = &v[(68 - i) % 8];
        uint32_t *f = &v[(69 - i) % 8];
        uint32_t *g = &v[(70 - i) % 8];
        uint32_t *h = &v[(71 - i) % 8];
        uint32_t t = *h + (turn(*e, 6) ^ turn(*e, 11) ^ turn(*e, 25)) + ((*e & *f) ^ (~*e & *g)) +
                     sha_k[i] + w[i];
        *d += t;
        *h = t + (turn(*a, 2) ^ turn(*a, 13) ^ turn(*a, 22)) + ((*a & *b) ^ (*a & *c) ^ (*b & *c));
    }
    for (int i = 0; i < 8; i++)
        s->h[i] += v[i];
}

static void sha_init(struct sha *s)
{
    *s = (struct sha){.h = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c,
                            0x1f83d9ab, 0x5be0cd19}};
}

static void sha_byte(struct sha *s, uint8_t b)
{
    s->block[s->used++] = b;
    if (s->used == sizeof s->block) {
        sha_block(s);
        s->used = 0;
    }
}

static void sha_i64(struct sha *s, int64_t v)
{
    for (int i = 0; i < 8; i++) /* A block holds eight of them. */
        s->block[s->used + (size_t)i] = (uint8_t)((uint64_t)v >> (8 * i));
    s->used += 8;
    s->bytes += 8;
    if (s->used == sizeof s->block) {
        sha_block(s);
        s->used = 0;
    }
}

static void sha_end(struct sha *s, char *ret)
{
    sha_byte(s, 0x80);
    while (s->used != 56)
        sha_byte(s, 0);
    for (int i = 7; i >= 0; i--)
        sha_byte(s, (uint8_t)(s->bytes * 8 >> (8 * i)));
    for (int i = 0; i < 8; i++)
        snprintf(ret + (size_t)i * 8, 9, "%08x", s->h[i]);
}

/* --- the recorded lists --- */

static cJSON *recorded;

static int load(void **state)
{
    FILE *f = fopen(MUSTER_SOURCE_DIR "/tests/data/sampler.json", "rb");
    char *text = malloc(1 << 20);
    assert_non_null(f);
    assert_non_null(text);
    size_t n = fread(text, 1, (1 << 20) - 1, f);
    text[n] = '\0';
    fclose(f);
    recorded = cJSON_Parse(text);
    free(text);
    assert_non_null(recorded);
    return 0;
}

static int unload(void **state)
{
    cJSON_Delete(recorded);
    return 0;
}

static int64_t number(const cJSON *o, const char *name)
{
    const cJSON *v = cJSON_GetObjectItem(o, name);
    assert_non_null(v);
    return (int64_t)v->valuedouble;
}

static bool flag(const cJSON *o, const char *name)
{
    return cJSON_IsTrue(cJSON_GetObjectItem(o, name));
}

struct list {
    const uint32_t *narrow; /* One of both. */
    const int64_t *wide;
    uint64_t n;
};

static int64_t item(const struct list *l, uint64_t i)
{
    return l->narrow != NULL ? (int64_t)l->narrow[i] : l->wide[i];
}

static void same_part(const struct list *l, const cJSON *want, uint64_t from, const char *what)
{
    int i = 0;
    const cJSON *v = NULL;
    cJSON_ArrayForEach(v, want)
    {
        int64_t got = item(l, from + (uint64_t)i);
        if (got != (int64_t)v->valuedouble)
            fail_msg("%s: item %" PRIu64 " is %" PRId64 ", wanted %.0f", what, from + (uint64_t)i,
                     got, v->valuedouble);
        i++;
    }
}

static void same(const struct list *l, const cJSON *want, const char *what)
{
    char hash[65];
    struct sha s;
    if (l->n != (uint64_t)number(want, "n"))
        fail_msg("%s: %" PRIu64 " items, wanted %" PRId64, what, l->n, number(want, "n"));
    same_part(l, cJSON_GetObjectItem(want, "indices"), 0, what);
    same_part(l, cJSON_GetObjectItem(want, "head"), 0, what);
    const cJSON *tail = cJSON_GetObjectItem(want, "tail");
    if (tail != NULL)
        same_part(l, tail, l->n - (uint64_t)cJSON_GetArraySize(tail), what);
    sha_init(&s);
    for (uint64_t i = 0; i < l->n; i++)
        sha_i64(&s, item(l, i));
    sha_end(&s, hash);
    if (strcmp(hash, cJSON_GetObjectItem(want, "sha256")->valuestring) != 0)
        fail_msg("%s: the ends are right, the middle is not", what);
}

/* --- tests --- */

static void test_the_generator_gives_torchs_words(void **state)
{
    struct mt19937 g;
    const cJSON *words = NULL;
    int seeds = 0;
    cJSON_ArrayForEach(words, cJSON_GetObjectItem(recorded, "raw_u32"))
    {
        mt_seed(&g, strtoull(words->string, NULL, 10));
        const cJSON *w = NULL;
        cJSON_ArrayForEach(w, words) assert_int_equal(mt_u32(&g), (uint32_t)w->valuedouble);
        seeds++;
    }
    assert_true(seeds >= 4);
    const cJSON *later = cJSON_GetObjectItem(recorded, "raw_u32_at_625th");
    mt_seed(&g, (uint64_t)number(later, "seed"));
    for (int i = 0; i < 624; i++)
        (void)mt_u32(&g);
    assert_int_equal(mt_u32(&g), number(later, "value"));
}

/* Of those sizes that are `large`, or of the others. */
static int check_permutations(bool large)
{
    int count = 0;
    const cJSON *p = NULL;
    cJSON_ArrayForEach(p, cJSON_GetObjectItem(recorded, "randperm"))
    {
        char what[64];
        uint32_t n = (uint32_t)number(p, "n");
        if ((n >= LARGE_FROM) != large)
            continue;
        uint32_t *order = malloc(((size_t)n + 1) * sizeof *order);
        assert_non_null(order);
        sdk_randperm(order, n, (uint64_t)number(p, "seed"));
        snprintf(what, sizeof what, "randperm of %u", n);
        same(&(struct list){.narrow = order, .n = n}, p, what);
        free(order);
        count++;
    }
    return count;
}

static void test_permutations_are_torchs(void **state)
{
    assert_true(check_permutations(false) >= 9);
}

static void test_large_permutations_are_torchs(void **state)
{
    assert_true(check_permutations(true) >= 3);
}

static void check_rank(const cJSON *c, uint32_t rank, const cJSON *want)
{
    char what[160];
    struct muster_error err = {0};
    struct muster_sampler_options o = MUSTER_SAMPLER_OPTIONS_INIT;
    muster_sampler *s = NULL;
    o.item_count = (uint64_t)number(c, "dataset_len");
    o.world = (uint32_t)number(c, "world");
    o.rank = rank;
    o.shuffle = flag(c, "shuffle");
    o.drop_last = flag(c, "drop_last");
    o.seed = (uint64_t)number(c, "seed");
    snprintf(what, sizeof what,
             "n=%" PRIu64 " rank=%u/%u seed=%" PRIu64 " epoch=%" PRId64 " shuffle=%d drop_last=%d",
             o.item_count, rank, o.world, o.seed, number(c, "epoch"), o.shuffle, o.drop_last);
    assert_int_equal(muster_sampler_open(&o, &s, &err), 0);
    assert_int_equal(muster_sampler_set_epoch(s, (uint64_t)number(c, "epoch"), &err), 0);
    assert_int_equal(muster_sampler_len(s), number(c, "num_samples"));
    same(&(struct list){.wide = muster_sampler_indices(s), .n = muster_sampler_len(s)}, want, what);
    muster_sampler_close(s);
}

static void test_every_recorded_sampler_is_torchs(void **state)
{
    int lists = 0;
    const cJSON *c = NULL;
    cJSON_ArrayForEach(c, cJSON_GetObjectItem(recorded, "distributed_sampler"))
    {
        uint32_t rank = 0;
        const cJSON *want = NULL;
        cJSON_ArrayForEach(want, cJSON_GetObjectItem(c, "ranks"))
        {
            check_rank(c, want->string != NULL ? (uint32_t)strtoul(want->string, NULL, 10) : rank,
                       want);
            rank++;
            lists++;
        }
    }
    assert_true(lists > 300);
}

/* Epochs come in any order and give the same lists, also the one that is already there. */
static void test_an_epoch_comes_back_the_same(void **state)
{
    struct muster_sampler_options o = MUSTER_SAMPLER_OPTIONS_INIT;
    muster_sampler *s = NULL;
    int64_t first[50];
    o.item_count = 100;
    o.world = 2;
    assert_int_equal(muster_sampler_open(&o, &s, NULL), 0);
    memcpy(first, muster_sampler_indices(s), sizeof first);
    assert_int_equal(muster_sampler_set_epoch(s, 0, NULL), 0);
    assert_memory_equal(first, muster_sampler_indices(s), sizeof first);
    assert_int_equal(muster_sampler_set_epoch(s, 7, NULL), 0);
    assert_memory_not_equal(first, muster_sampler_indices(s), sizeof first);
    assert_int_equal(muster_sampler_set_epoch(s, 0, NULL), 0);
    assert_memory_equal(first, muster_sampler_indices(s), sizeof first);
    muster_sampler_close(s);
}

static void test_nothing_to_sample_is_an_empty_list(void **state)
{
    struct muster_sampler_options o = MUSTER_SAMPLER_OPTIONS_INIT;
    muster_sampler *s = NULL;
    o.world = 3;
    o.rank = 2;
    assert_int_equal(muster_sampler_open(&o, &s, NULL), 0);
    assert_int_equal(muster_sampler_len(s), 0);
    assert_non_null(muster_sampler_indices(s));
    assert_int_equal(muster_sampler_set_epoch(s, 5, NULL), 0);
    muster_sampler_close(s);
}

static void test_wrong_options_are_refused(void **state)
{
    struct muster_error err = {0};
    struct muster_sampler_options o = MUSTER_SAMPLER_OPTIONS_INIT;
    muster_sampler *s = NULL;
    o.rank = 1;
    assert_int_equal(muster_sampler_open(&o, &s, &err), -EINVAL);
    assert_has(err.text, "rank 1 of a world of 1");
    o.rank = 0;
    o.item_count = UINT64_C(1) << 32;
    assert_int_equal(muster_sampler_open(&o, &s, &err), -E2BIG);
    assert_has(err.text, "4294967296 items are over 4294967295");
    o.size = 0;
    assert_int_equal(muster_sampler_open(&o, &s, &err), -EINVAL);
    assert_null(s);
    muster_sampler_close(NULL);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_generator_gives_torchs_words),
        cmocka_unit_test(test_permutations_are_torchs),
        cmocka_unit_test(test_every_recorded_sampler_is_torchs),
        cmocka_unit_test(test_an_epoch_comes_back_the_same),
        cmocka_unit_test(test_nothing_to_sample_is_an_empty_list),
        cmocka_unit_test(test_wrong_options_are_refused),
    };
    const struct CMUnitTest large[] = {cmocka_unit_test(test_large_permutations_are_torchs)};
    if (argc > 1 && strcmp(argv[1], "--large") == 0)
        return cmocka_run_group_tests(large, load, unload);
    return cmocka_run_group_tests(tests, load, unload);
}
