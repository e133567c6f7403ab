/* What the reducer compares between ranks: shapes at the start, values whenever asked; and rank 0's
 * values for all. What is compared is gathered first, so that every rank sees the same and says the
 * same sentence. */
#include "worker-sdk/src/ddp/ddp.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/mem.h"
#include "worker-sdk/src/core/sdk.h"

/* --- hash --- */

static uint64_t mix(uint64_t h, uint64_t word)
{
    h = (h ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    return h ^ h >> 29;
}

uint64_t ddp_hash(const void *p, size_t n, uint64_t seed)
{
    /* Four lanes, for one would wait for its own multiplications. */
    uint64_t lane[4] = {seed + 1, seed + 2, seed + 3, seed + 4};
    const char *at = p;
    size_t left = n;
    for (; left >= sizeof lane; at += sizeof lane, left -= sizeof lane) {
        uint64_t words[4];
        memcpy(words, at, sizeof words);
        for (int i = 0; i < 4; i++)
            lane[i] = mix(lane[i], words[i]);
    }
    for (int i = 0; left > 0; i++) {
        uint64_t word = 0;
        size_t part = left < sizeof word ? left : sizeof word;
        memcpy(&word, at, part);
        lane[i] = mix(lane[i], word);
        at += part;
        left -= part;
    }
    uint64_t h = mix(seed, n);
    for (int i = 0; i < 4; i++)
        h = mix(h, lane[i]);
    return mix(h, h >> 32);
}

/* --- gathering --- */

/* On memory that the communicator can reach: `room` has a place for each rank's numbers. */
static int gather_there(const struct muster_ddp *d,
                        const uint64_t *mine,
                        size_t count,
                        char *room,
                        uint64_t *all,
                        struct muster_error *err)
{
    const struct muster_ddp_memory *m = &d->memory;
    size_t bytes = count * sizeof *mine;
    void *own = room + muster_comm_rank(d->comm) * bytes;
    muster_ticket ticket = 0;
    int r = m->write(m->arg, own, mine, bytes);
    if (r < 0)
        return sdk_error(err, r, "ddp: copy to the device: %s", strerror(-r));
    r = muster_comm_all_gather(d->comm, own, room, count, MUSTER_I64, &ticket, err);
    if (r == 0)
        r = muster_comm_wait(d->comm, ticket, d->options.timeout_ns, err);
    if (r < 0)
        return sdk_error_wrap(err, r, "ddp: compare ranks");
    r = m->read(m->arg, all, room, bytes * d->world);
    return r < 0 ? sdk_error(err, r, "ddp: copy from the device: %s", strerror(-r)) : 0;
}

/* `count` numbers of every rank, in order of rank; mu_mem_free() it. */
static int gather(const struct muster_ddp *d,
                  const uint64_t *mine,
                  size_t count,
                  uint64_t **ret,
                  struct muster_error *err)
{
    size_t bytes = count * d->world * sizeof *mine;
    uint64_t *all = mu_alloc(mu_mem_default(), bytes);
    void *room = d->memory.alloc(d->memory.arg, bytes);
    int r = 0;
    if (all == NULL || room == NULL)
        r = sdk_error(err, -ENOMEM, "ddp: no memory to compare %zu numbers of %u ranks", count,
                      d->world);
    else if (d->world == 1)
        memcpy(all, mine, bytes);
    else
        r = gather_there(d, mine, count, room, all, err);
    if (room != NULL)
        d->memory.release(d->memory.arg, room);
    if (r < 0) {
        mu_mem_free(mu_mem_default(), all);
        return r;
    }
    *ret = all;
    return 0;
}

/* The first column in which some rank differs from rank 0, and that rank; false: all are equal. */
static bool find_difference(
    const uint64_t *all, size_t count, uint32_t world, size_t *ret_at, uint32_t *ret_rank)
{
    for (size_t i = 0; i < count; i++) {
        for (uint32_t rank = 1; rank < world; rank++) {
            if (all[rank * count + i] != all[i]) {
                *ret_at = i;
                *ret_rank = rank;
                return true;
            }
        }
    }
    return false;
}

/* --- shapes --- */

static int say_heads(const uint64_t *all, size_t width, uint32_t rank, struct muster_error *err)
{
    const uint64_t *other = &all[rank * width];
    if (other[0] != all[0])
        return sdk_error(err, -EINVAL,
                         "ddp: rank %u has %" PRIu64 " parameters and rank 0 has %" PRIu64
                         ": all ranks must build the same model",
                         rank, other[0], all[0]);
    return sdk_error(err, -EINVAL,
                     "ddp: rank %u has parameters of %zu bytes an element and rank 0 of %zu: all "
                     "ranks must use the same type",
                     rank, muster_dtype_bytes((enum muster_dtype)other[1]),
                     muster_dtype_bytes((enum muster_dtype)all[1]));
}

static int find_shape(const struct muster_ddp *d, const uint64_t *shapes, struct muster_error *err)
{
    uint64_t *all = NULL;
    size_t i = 0;
    uint32_t rank = 0;
    int r = gather(d, shapes, d->count, &all, err);
    if (r < 0)
        return r;
    if (find_difference(all, d->count, d->world, &i, &rank))
        r = sdk_error(err, -EINVAL,
                      "ddp: parameter %zu ('%.60s') has %" PRIu64
                      " elements on rank %u and %" PRIu64
                      " on rank 0: all ranks must build the same model",
                      i, d->params[i].name, all[rank * d->count + i], rank, all[i]);
    else
        r = sdk_error(err, -EINVAL,
                      "ddp: ranks use buckets of different sizes: give all the same options");
    mu_mem_free(mu_mem_default(), all);
    return r;
}

int ddp_check_shapes(struct muster_ddp *d, struct muster_error *err)
{
    enum {
        WIDTH = 3 /* Number of parameters, type, hash of the shapes and of the layout. */
    };
    uint64_t *all = NULL;
    uint64_t *shapes = mu_alloc(mu_mem_default(), d->count * sizeof *shapes);
    size_t at = 0;
    uint32_t rank = 0;
    if (shapes == NULL)
        return sdk_error(err, -ENOMEM, "ddp: no memory to compare %zu shapes", d->count);
    for (size_t i = 0; i < d->count; i++)
        shapes[i] = d->params[i].count;
    uint64_t seed = ddp_hash(d->bucket_of, d->count * sizeof *d->bucket_of, 0);
    const uint64_t head[WIDTH] = {d->count, d->dtype,
                                  ddp_hash(shapes, d->count * sizeof *shapes, seed)};
    int r = gather(d, head, WIDTH, &all, err);
    if (r == 0 && find_difference(all, WIDTH, d->world, &at, &rank))
        r = at < 2 ? say_heads(all, WIDTH, rank, err) : find_shape(d, shapes, err);
    mu_mem_free(mu_mem_default(), all);
    mu_mem_free(mu_mem_default(), shapes);
    return r;
}

/* --- values --- */

int ddp_share_values(struct muster_ddp *d, struct muster_error *err)
{
    enum {
        AHEAD = 32 /* Broadcasts in flight: enough to keep the wire busy. */
    };
    muster_ticket ticket = 0;
    size_t begun = 0;
    for (size_t i = 0; d->world > 1 && i < d->count; i++) {
        const struct muster_tensor *p = &d->params[i];
        if (p->count == 0)
            continue;
        int r = muster_comm_broadcast(d->comm, p->value, p->count, d->dtype, 0, &ticket, err);
        if (r == 0 && ++begun % AHEAD == 0)
            r = muster_comm_wait(d->comm, ticket, d->options.timeout_ns, err);
        if (r < 0)
            return sdk_error_wrap(err, r, "ddp: broadcast parameter %zu ('%.60s')", i, p->name);
    }
    if (begun % AHEAD == 0)
        return 0;
    int r = muster_comm_wait(d->comm, ticket, d->options.timeout_ns, err); /* And all before it. */
    return r < 0 ? sdk_error_wrap(err, r, "ddp: broadcast rank 0's parameters") : 0;
}

static int hash_parameter(const struct muster_ddp *d,
                          const struct muster_tensor *p,
                          void *room,
                          size_t room_bytes,
                          uint64_t *ret,
                          struct muster_error *err)
{
    size_t bytes = p->count * muster_dtype_bytes(d->dtype);
    uint64_t h = bytes;
    for (size_t at = 0; at < bytes; at += room_bytes) {
        size_t part = bytes - at < room_bytes ? bytes - at : room_bytes;
        int r = d->memory.read(d->memory.arg, room, (const char *)p->value + at, part);
        if (r < 0)
            return sdk_error(err, r, "ddp: read parameter '%.60s': %s", p->name, strerror(-r));
        h = ddp_hash(room, part, h);
    }
    *ret = h;
    return 0;
}

static int hash_all(const struct muster_ddp *d, uint64_t *hashes, struct muster_error *err)
{
    enum {
        ROOM_BYTES = 256 * 1024 /* Stays in a core's cache. */
    };
    void *room = mu_alloc(mu_mem_default(), ROOM_BYTES);
    int r = room == NULL ? sdk_error(err, -ENOMEM, "ddp: no memory to read parameters") : 0;
    for (size_t i = 0; r == 0 && i < d->count; i++)
        r = hash_parameter(d, &d->params[i], room, ROOM_BYTES, &hashes[i], err);
    mu_mem_free(mu_mem_default(), room);
    return r;
}

static int
find_parameter(const struct muster_ddp *d, const uint64_t *hashes, struct muster_error *err)
{
    uint64_t *all = NULL;
    size_t i = 0;
    uint32_t rank = 0;
    int r = gather(d, hashes, d->count, &all, err);
    if (r == 0 && find_difference(all, d->count, d->world, &i, &rank))
        r = sdk_error(err, -EUCLEAN,
                      "ddp: parameter %zu ('%.60s') on rank %u differs from rank 0's (hashes "
                      "%016" PRIx64 " and %016" PRIx64
                      "): a rank updated it alone, or with other gradients",
                      i, d->params[i].name, rank, all[rank * d->count + i], all[i]);
    mu_mem_free(mu_mem_default(), all);
    return r;
}

static int compare(const struct muster_ddp *d, const uint64_t *hashes, struct muster_error *err)
{
    uint64_t *all = NULL;
    size_t at = 0;
    uint32_t rank = 0;
    uint64_t whole = ddp_hash(hashes, d->count * sizeof *hashes, 0);
    int r = gather(d, &whole, 1, &all, err);
    if (r == 0 && find_difference(all, 1, d->world, &at, &rank))
        r = find_parameter(d, hashes, err);
    mu_mem_free(mu_mem_default(), all);
    return r;
}

int muster_ddp_check_equal(muster_ddp *d, uint64_t *ret_hash, struct muster_error *err)
{
    if (d->stepping && !d->no_sync)
        return sdk_error(err, -EBUSY,
                         "ddp: a step is under way: take its buckets with "
                         "muster_ddp_next() before comparing ranks");
    uint64_t *hashes = mu_alloc(mu_mem_default(), d->count * sizeof *hashes);
    if (hashes == NULL)
        return sdk_error(err, -ENOMEM, "ddp: no memory for %zu hashes", d->count);
    int r = hash_all(d, hashes, err);
    if (r == 0)
        r = compare(d, hashes, err);
    if (r == 0 && ret_hash != NULL)
        *ret_hash = ddp_hash(hashes, d->count * sizeof *hashes, 0);
    mu_mem_free(mu_mem_default(), hashes);
    return r;
}
