/* DistributedSampler. All ranks draw the same permutation and each takes every world-th item of it,
 * so they agree without a word. */
#include <muster/sampler.h>

#include <errno.h>
#include <inttypes.h>

#include "base/mem.h"
#include "worker-sdk/src/sampler/randperm.h"
#include "worker-sdk/src/core/sdk.h"

/* Items are kept as 32-bit numbers while they are shuffled: half the memory of torch's. */
#define ITEMS_MAX UINT32_MAX

struct muster_sampler {
    struct muster_sampler_options o;
    uint64_t epoch;
    uint64_t len;
    int64_t *indices; /* len of them. */
};

static int check(const struct muster_sampler_options *o, struct muster_error *err)
{
    if (o == NULL || o->size < sizeof *o)
        return sdk_error(err, -EINVAL,
                         "muster_sampler_options: begin with "
                         "MUSTER_SAMPLER_OPTIONS_INIT");
    if (o->world == 0 || o->rank >= o->world)
        return sdk_error(err, -EINVAL,
                         "sampler: rank %u of a world of %u: ranks go from 0 to world - 1", o->rank,
                         o->world);
    if (o->item_count > ITEMS_MAX)
        return sdk_error(err, -E2BIG,
                         "sampler: %" PRIu64 " items are over %" PRIu64 ": sample blocks of items",
                         o->item_count, (uint64_t)ITEMS_MAX);
    return 0;
}

/* Items of one rank: the same for all, so the tail is dropped, or filled up from the front. */
static uint64_t len_of(const struct muster_sampler_options *o)
{
    uint64_t whole = o->item_count / o->world;
    bool tail = o->item_count % o->world != 0;
    return whole + (tail && !o->drop_last ? 1 : 0);
}

/* order: NULL is 0, 1, 2 ... Where the world is larger than the data, the front comes more than
 * once. */
static void take(muster_sampler *s, const uint32_t *order)
{
    const struct muster_sampler_options *o = &s->o;
    for (uint64_t i = 0; i < s->len; i++) {
        uint64_t at = (o->rank + i * o->world) % o->item_count;
        s->indices[i] = order != NULL ? (int64_t)order[at] : (int64_t)at;
    }
}

static int fill(muster_sampler *s, uint64_t epoch, struct muster_error *err)
{
    uint32_t *order = NULL;
    size_t n = (size_t)s->o.item_count;
    if (s->len > 0 && s->o.shuffle) {
        order = mu_alloc(mu_mem_default(), n * sizeof *order);
        if (order == NULL)
            return sdk_error(err, -ENOMEM, "sampler: no memory to shuffle %zu items", n);
        sdk_randperm(order, (uint32_t)n, s->o.seed + epoch);
    }
    take(s, order);
    mu_mem_free(mu_mem_default(), order);
    s->epoch = epoch;
    return 0;
}

int muster_sampler_open(const struct muster_sampler_options *options,
                        muster_sampler **ret,
                        struct muster_error *err)
{
    int r = check(options, err);
    if (r < 0)
        return r;
    muster_sampler *s = mu_zalloc(mu_mem_default(), sizeof *s);
    if (s == NULL)
        return sdk_error(err, -ENOMEM, "no memory for a sampler");
    s->o = *options;
    s->len = len_of(options);
    /* One more, so that an empty list is a pointer as well. */
    s->indices = mu_alloc(mu_mem_default(), ((size_t)s->len + 1) * sizeof *s->indices);
    r = s->indices == NULL
            ? sdk_error(err, -ENOMEM, "sampler: no memory for %" PRIu64 " items", s->len)
            : fill(s, 0, err);
    if (r < 0) {
        muster_sampler_close(s);
        return r;
    }
    *ret = s;
    return 0;
}

void muster_sampler_close(muster_sampler *s)
{
    if (s == NULL)
        return;
    mu_mem_free(mu_mem_default(), s->indices);
    mu_mem_free(mu_mem_default(), s);
}

int muster_sampler_set_epoch(muster_sampler *s, uint64_t epoch, struct muster_error *err)
{
    return epoch == s->epoch ? 0 : fill(s, epoch, err);
}

uint64_t muster_sampler_len(const muster_sampler *s)
{
    return s->len;
}

const int64_t *muster_sampler_indices(const muster_sampler *s)
{
    return s->indices;
}
