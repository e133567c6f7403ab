/* The table of names. Own, and not uthash: memory comes from struct mu_mem and can run out (then
 * nothing has changed), an entry is one block with its key, and growing is never needed to go on.
 * The hash is SipHash-1-3 (Aumasson and Bernstein, 2012): peers choose keys, and must not be able
 * to choose a bucket. */
#include "rendezvous/store/internal.h"

#include <errno.h>
#include <string.h>

#define BUCKETS_FIRST 64

static uint64_t rotate(uint64_t v, int by)
{
    return v << by | v >> (64 - by);
}

struct sip {
    uint64_t a, b, c, d;
};

static inline void sip_round(struct sip *s)
{
    s->a += s->b;
    s->c += s->d;
    s->b = rotate(s->b, 13) ^ s->a;
    s->d = rotate(s->d, 16) ^ s->c;
    s->a = rotate(s->a, 32);
    s->c += s->b;
    s->a += s->d;
    s->b = rotate(s->b, 17) ^ s->c;
    s->d = rotate(s->d, 21) ^ s->a;
    s->c = rotate(s->c, 32);
}

/* The last n (0..7) bytes of a key, and its length on top. */
static uint64_t sip_last(struct mu_str key)
{
    size_t n = key.n % 8;
    uint64_t w = (uint64_t)key.n << 56;
    if (n == 0)
        return w;
    if (key.n >= 8) /* One load that reaches back over bytes seen before, which are shifted out. */
        return w | store_read_u64(key.p + key.n - 8) >> (64 - 8 * n);
    for (size_t i = 0; i < n; i++)
        w |= (uint64_t)(unsigned char)key.p[i] << (8 * i);
    return w;
}

static uint32_t hash_of(const struct store *s, struct mu_str key)
{
    struct sip h = {s->hash_key[0] ^ UINT64_C(0x736f6d6570736575),
                    s->hash_key[1] ^ UINT64_C(0x646f72616e646f6d),
                    s->hash_key[0] ^ UINT64_C(0x6c7967656e657261),
                    s->hash_key[1] ^ UINT64_C(0x7465646279746573)};
    for (size_t i = 0; i + 8 <= key.n; i += 8) {
        uint64_t w = store_read_u64(key.p + i);
        h.d ^= w;
        sip_round(&h);
        h.a ^= w;
    }
    uint64_t last = sip_last(key);
    h.d ^= last;
    sip_round(&h);
    h.a ^= last;
    h.c ^= 0xff;
    sip_round(&h);
    sip_round(&h);
    sip_round(&h);
    return (uint32_t)(h.a ^ h.b ^ h.c ^ h.d);
}

/* One number becomes two that look unrelated (the mixer of splitmix64). */
static uint64_t mix(uint64_t v)
{
    v += UINT64_C(0x9e3779b97f4a7c15);
    v = (v ^ v >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    v = (v ^ v >> 27) * UINT64_C(0x94d049bb133111eb);
    return v ^ v >> 31;
}

int store_names_init(struct store *s, uint64_t seed)
{
    s->hash_key[0] = mix(seed);
    s->hash_key[1] = mix(s->hash_key[0]);
    s->buckets = mu_zalloc(s->mem, BUCKETS_FIRST * sizeof(struct name *));
    if (s->buckets == NULL)
        return -ENOMEM;
    s->bucket_count = BUCKETS_FIRST;
    s->stats.memory_bytes += BUCKETS_FIRST * sizeof(struct name *);
    return 0;
}

void store_names_fini(struct store *s)
{
    mu_mem_free(s->mem, s->buckets);
}

static struct name *find(struct store *s, struct mu_str key, uint32_t hash)
{
    struct name *n = s->buckets[hash & (s->bucket_count - 1)];
    while (n != NULL && (n->hash != hash || n->key_bytes != key.n ||
                         (key.n > 0 && memcmp(n->key, key.p, key.n) != 0)))
        n = n->next;
    return n;
}

struct name *store_name_find(struct store *s, struct mu_str key)
{
    return find(s, key, hash_of(s, key));
}

/* Twice the buckets; where there is no memory for them chains grow longer, which is no error. */
static void grow(struct store *s)
{
    size_t count = s->bucket_count * 2;
    size_t more = s->bucket_count * sizeof(struct name *);
    if (!store_charge(s, more, CHARGE_UPKEEP))
        return;
    struct name **buckets = mu_zalloc(s->mem, count * sizeof(struct name *));
    if (buckets == NULL) {
        store_discharge(s, more);
        return;
    }
    for (size_t i = 0; i < s->bucket_count; i++) {
        for (struct name *n = s->buckets[i], *next; n != NULL; n = next) {
            next = n->next;
            struct name **at = &buckets[n->hash & (count - 1)];
            n->next = *at;
            *at = n;
        }
    }
    mu_mem_free(s->mem, s->buckets);
    s->buckets = buckets;
    s->bucket_count = count;
}

static size_t name_cost(size_t key_bytes)
{
    return sizeof(struct name) + key_bytes + STORE_BLOCK_BYTES;
}

enum store_verdict
store_name_get(struct store *s, struct mu_str key, enum charge_kind kind, struct name **ret)
{
    uint32_t hash = hash_of(s, key);
    struct name *n = find(s, key, hash);
    if (n != NULL) {
        *ret = n;
        return STORE_OK;
    }
    if (!store_charge(s, name_cost(key.n), kind))
        return STORE_STORE_FULL;
    n = mu_alloc(s->mem, sizeof *n + key.n);
    if (n == NULL) {
        store_discharge(s, name_cost(key.n));
        return STORE_NO_MEMORY;
    }
    *n = (struct name){.hash = hash, .key_bytes = key.n};
    if (key.n > 0)
        memcpy(n->key, key.p, key.n);
    if (s->name_count >= s->bucket_count)
        grow(s);
    struct name **at = &s->buckets[hash & (s->bucket_count - 1)];
    n->next = *at;
    *at = n;
    s->name_count++;
    *ret = n;
    return STORE_OK;
}

void store_name_settle(struct store *s, struct name *n)
{
    if (n->value != NULL || n->queue != NULL || n->pins > 0 || n->watches != NULL)
        return;
    MU_ASSERT(n->waiters == NULL);
    struct name **at = &s->buckets[n->hash & (s->bucket_count - 1)];
    while (*at != n)
        at = &(*at)->next;
    *at = n->next;
    s->name_count--;
    store_discharge(s, name_cost(n->key_bytes));
    mu_mem_free(s->mem, n);
}
