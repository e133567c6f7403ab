/* The store and its clients as wholes: birth, end, limits, statistics. What requests do is in
 * command.c, how they are read in codec.c. */
#include "rendezvous/store/internal.h"

#include <errno.h>

#include <utlist.h>

#include "base/limits.h"

const struct store_limits store_limits_default = {
    .key_bytes_max = MU_STORE_KEY_BYTES_MAX,
    .value_bytes_max = MU_STORE_VALUE_BYTES_MAX,
    .keys_per_request_max = MU_STORE_KEYS_PER_REQUEST_MAX,
    .memory_bytes_max = MU_STORE_MEMORY_MAX,
    .out_bytes_max = MU_STORE_OUT_BYTES_MAX,
};

const char *store_verdict_text(enum store_verdict v)
{
    static const char *const text[STORE_VERDICT_COUNT] = {
#define X(name, words) [STORE_##name] = (words),
        STORE_VERDICTS(X)
#undef X
    };
    return (unsigned)v < STORE_VERDICT_COUNT ? text[v] : "unknown";
}

/* --- memory --- */

bool store_charge(struct store *s, size_t n, enum charge_kind kind)
{
    uint64_t max = s->limits.memory_bytes_max;
    if (kind == CHARGE_UPKEEP)
        max += max / 8;
    if (n > max || s->stats.memory_bytes > max - n)
        return false;
    s->stats.memory_bytes += n;
    return true;
}

void store_discharge(struct store *s, size_t n)
{
    MU_ASSERT(s->stats.memory_bytes >= n);
    s->stats.memory_bytes -= n;
}

/* --- the store --- */

static uint64_t at_most(uint64_t v, uint64_t max)
{
    return v < max ? v : max;
}

struct store *store_new(const struct mu_mem *mem, const struct store_limits *limits, uint64_t seed)
{
    struct store *s = mu_zalloc(mem, sizeof *s);
    if (s == NULL)
        return NULL;
    const struct store_limits *l = limits != NULL ? limits : &store_limits_default;
    s->mem = mem;
    /* So far from the end of the numbers that sums and sizes made of them cannot wrap. */
    s->limits = (struct store_limits){
        .key_bytes_max = at_most(l->key_bytes_max, SIZE_MAX / 4),
        .value_bytes_max = at_most(l->value_bytes_max, SIZE_MAX / 4),
        .keys_per_request_max = at_most(l->keys_per_request_max, UINT32_MAX),
        .memory_bytes_max = at_most(l->memory_bytes_max, SIZE_MAX / 4),
        .out_bytes_max = at_most(l->out_bytes_max, SIZE_MAX / 4),
    };
    if (store_names_init(s, seed) < 0) {
        mu_mem_free(mem, s);
        return NULL;
    }
    return s;
}

static void empty_name(struct store *s, struct name *n)
{
    if (n->value != NULL)
        s->stats.keys--;
    store_blob_unref(s, n->value);
    n->value = NULL;
    store_queue_drop(s, n);
}

void store_wipe(struct store *s)
{
    for (size_t i = 0; i < s->bucket_count; i++)
        for (struct name *n = s->buckets[i]; n != NULL; n = n->next)
            empty_name(s, n);
    store_waits_restart(s);
    for (size_t i = 0; i < s->bucket_count; i++) {
        for (struct name *n = s->buckets[i], *next = NULL; n != NULL; n = next) {
            next = n->next;
            store_name_settle(s, n);
        }
    }
}

void store_free(struct store *s)
{
    if (s == NULL)
        return;
    MU_ASSERT(s->stats.clients == 0);
    store_wipe(s);
    MU_ASSERT(s->name_count == 0);
    store_discharge(s, s->bucket_count * sizeof(struct name *));
    MU_ASSERT(s->stats.memory_bytes == 0);
    store_out_drop_spares(s);
    store_names_fini(s);
    mu_mem_free(s->mem, s);
}

void store_get_stats(const struct store *s, struct store_stats *ret)
{
    *ret = s->stats;
    ret->waiting = 0;
    for (const struct wait *w = s->waits; w != NULL; w = w->next)
        ret->waiting += w->missing > 0;
}

int store_peek(struct store *s, struct mu_str key, struct mu_str *ret_value)
{
    const struct name *n = store_name_find(s, key);
    if (n == NULL || n->value == NULL)
        return -ENOENT;
    *ret_value = mu_str_of(n->value->bytes, n->value->n);
    return 0;
}

/* --- clients --- */

struct store_client *store_client_new(struct store *s, void *owner)
{
    struct store_client *c = mu_zalloc(s->mem, sizeof *c);
    if (c == NULL)
        return NULL;
    c->store = s;
    c->owner = owner;
    s->stats.clients++;
    return c;
}

/* All that ties it to others. */
static void detach(struct store_client *c)
{
    store_wait_release(c);
    store_watches_release(c);
    store_request_drop(c);
}

void store_client_free(struct store_client *c)
{
    if (c == NULL)
        return;
    struct store *s = c->store;
    if (store_client_alive(c))
        s->stats.closed[STORE_OK]++;
    detach(c);
    store_out_drop(c);
    store_client_unmark_ready(c);
    s->stats.clients--;
    mu_mem_free(s->mem, c);
}

void *store_client_owner(const struct store_client *c)
{
    return c->owner;
}

bool store_client_is_legacy(const struct store_client *c)
{
    return c->dialect == STORE_LEGACY;
}

bool store_client_has_spoken(const struct store_client *c)
{
    return c->dialect != STORE_UNDECIDED;
}

enum store_verdict store_client_verdict(const struct store_client *c)
{
    return (enum store_verdict)c->verdict;
}

void store_client_mark_ready(struct store_client *c)
{
    if (c->ready)
        return;
    c->ready = true;
    DL_APPEND(c->store->ready, c);
}

void store_client_unmark_ready(struct store_client *c)
{
    if (!c->ready)
        return;
    c->ready = false;
    DL_DELETE(c->store->ready, c);
}

void store_client_fail(struct store_client *c, enum store_verdict v)
{
    if (!store_client_alive(c))
        return;
    c->verdict = (uint8_t)v;
    c->store->stats.closed[v]++;
    store_client_mark_ready(c);
}

struct store_client *store_take_ready(struct store *s)
{
    struct store_client *c = s->ready;
    if (c == NULL)
        return NULL;
    store_client_unmark_ready(c);
    if (!store_client_alive(c))
        detach(c); /* Its place in line is free at once, however slowly its last answers leave. */
    return c;
}
