/* The reducer: gradients in buckets, all-reduced in order while backward goes on; see
 * <muster/ddp.h>. All ranks must hand the same buckets over in the same order, so a bucket that is
 * complete waits for those before it. */
#include "worker-sdk/src/ddp/ddp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "worker-sdk/src/comm/comm.h"
#include "worker-sdk/src/comm/tcp_reduce.h"
#include "worker-sdk/src/core/sdk.h"

#define ALIGN_BYTES 64U

/* --- memory --- */

static void *cpu_alloc(void *arg, size_t bytes)
{
    (void)arg;
    size_t whole = (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    void *p = aligned_alloc(ALIGN_BYTES, whole == 0 ? ALIGN_BYTES : whole);
    if (p != NULL)
        memset(p, 0, whole);
    return p;
}

static void cpu_release(void *arg, void *p)
{
    (void)arg;
    free(p);
}

static int cpu_divide(void *arg, void *p, size_t count, enum muster_dtype t, uint32_t by)
{
    (void)arg;
    tcp_divide(p, count, t, by);
    return 0;
}

static int cpu_copy(void *arg, void *to, const void *from, size_t bytes)
{
    (void)arg;
    memcpy(to, from, bytes);
    return 0;
}

static const struct muster_ddp_memory cpu_memory = {NULL,       cpu_alloc, cpu_release,
                                                    cpu_divide, cpu_copy,  cpu_copy};

/* --- layout --- */

/* Elements that a gradient takes, so that each one starts aligned. */
static size_t padded(const struct muster_ddp *d, size_t count)
{
    size_t unit = ALIGN_BYTES / muster_dtype_bytes(d->dtype);
    return (count + unit - 1) / unit * unit;
}

/* Put parameter i into the last bucket, or open one where it does not fit. */
static void place(struct muster_ddp *d, size_t i)
{
    size_t limit = d->bucket_count <= 1 ? d->options.first_bucket_bytes : d->options.bucket_bytes;
    size_t room = limit / muster_dtype_bytes(d->dtype);
    size_t need = padded(d, d->params[i].count);
    struct ddp_bucket *b = d->bucket_count > 0 ? &d->buckets[d->bucket_count - 1] : NULL;
    if (b == NULL || need > room || b->elements > room - need) {
        size_t at = b == NULL ? 0 : b->at + b->elements;
        b = &d->buckets[d->bucket_count++];
        *b = (struct ddp_bucket){.at = at};
    }
    d->at[i] = b->at + b->elements;
    d->bucket_of[i] = d->bucket_count - 1;
    b->first = i;
    b->count++;
    b->elements += need;
}

static int lay_out(struct muster_ddp *d, struct muster_error *err)
{
    const struct mu_mem *m = mu_mem_default();
    d->buckets = mu_zalloc(m, d->count * sizeof *d->buckets);
    d->at = mu_zalloc(m, d->count * sizeof *d->at);
    d->bucket_of = mu_zalloc(m, d->count * sizeof *d->bucket_of);
    d->ready = mu_zalloc(m, d->count * sizeof *d->ready);
    if (d->buckets == NULL || d->at == NULL || d->bucket_of == NULL || d->ready == NULL)
        return sdk_error(err, -ENOMEM, "ddp: no memory for the layout of %zu parameters", d->count);
    for (size_t i = d->count; i-- > 0;)
        place(d, i);
    const struct ddp_bucket *last = &d->buckets[d->bucket_count - 1];
    size_t bytes = (last->at + last->elements) * muster_dtype_bytes(d->dtype);
    d->gradients = d->memory.alloc(d->memory.arg, bytes);
    if (d->gradients == NULL)
        return sdk_error(err, -ENOMEM,
                         "ddp: no memory for gradients: %zu bytes in %zu buckets are needed", bytes,
                         d->bucket_count);
    return 0;
}

static void *at_element(const struct muster_ddp *d, size_t element)
{
    return (char *)d->gradients + element * muster_dtype_bytes(d->dtype);
}

/* --- open and close --- */

static int check_arguments(const struct muster_tensor *params,
                           size_t count,
                           enum muster_dtype t,
                           const struct muster_ddp_options *o,
                           struct muster_error *err)
{
    size_t elements = 0;
    if (t != MUSTER_F32 && t != MUSTER_F64)
        return sdk_error(err, -EINVAL, "ddp: parameters must be MUSTER_F32 or MUSTER_F64");
    if (count == 0)
        return sdk_error(err, -EINVAL, "ddp: there are no parameters: give at least one");
    if (o->bucket_bytes == 0 || o->first_bucket_bytes == 0)
        return sdk_error(err, -EINVAL,
                         "ddp: bucket_bytes and first_bucket_bytes must not be 0: start from "
                         "MUSTER_DDP_OPTIONS_INIT");
    for (size_t i = 0; i < count; i++) {
        if (params[i].value == NULL && params[i].count > 0)
            return sdk_error(err, -EINVAL, "ddp: parameter %zu has no value", i);
        if (__builtin_add_overflow(elements, params[i].count, &elements) ||
            elements > SIZE_MAX / 16)
            return sdk_error(err, -EOVERFLOW, "ddp: parameter %zu is too large", i);
    }
    return 0;
}

static int open_ddp(struct muster_ddp *d,
                    const struct muster_tensor *params,
                    size_t count,
                    struct muster_error *err)
{
    struct muster_tensor *copy = mu_alloc(mu_mem_default(), count * sizeof *copy);
    if (copy == NULL)
        return sdk_error(err, -ENOMEM, "ddp: no memory for %zu parameters", count);
    for (size_t i = 0; i < count; i++) {
        copy[i] = params[i];
        if (copy[i].name == NULL)
            copy[i].name = "?";
    }
    d->params = copy;
    d->count = count;
    int r = lay_out(d, err);
    if (r == 0)
        r = ddp_check_shapes(d, err);
    return r < 0 ? r : ddp_share_values(d, err);
}

int muster_ddp_open(muster_comm *c,
                    const struct muster_tensor *params,
                    size_t count,
                    enum muster_dtype t,
                    const struct muster_ddp_options *options,
                    muster_ddp **ret,
                    struct muster_error *err)
{
    struct muster_ddp_options o = MUSTER_DDP_OPTIONS_INIT;
    if (options != NULL) /* A caller built with an older header has a shorter struct. */
        memcpy(&o, options, options->size < sizeof o ? options->size : sizeof o);
    int r = check_arguments(params, count, t, &o, err);
    if (r < 0)
        return r;
    struct muster_ddp *d = mu_zalloc(mu_mem_default(), sizeof *d);
    if (d == NULL)
        return sdk_error(err, -ENOMEM, "ddp: no memory");
    d->comm = c;
    d->dtype = t;
    d->world = muster_comm_size(c);
    d->options = o;
    d->memory = o.memory != NULL ? *o.memory : cpu_memory;
    d->comm_divides = o.memory == NULL && d->world > 1 && comm_knows_mean(c);
    r = open_ddp(d, params, count, err);
    if (r < 0) {
        muster_ddp_close(d);
        return r;
    }
    *ret = d;
    return 0;
}

void muster_ddp_close(muster_ddp *d)
{
    if (d == NULL)
        return;
    if (d->begun > d->given && d->world > 1) {
        muster_comm_abort(d->comm, "a reducer was closed in the middle of a step");
        for (size_t i = d->given; i < d->begun; i++) /* They fail at once; then nobody writes. */
            (void)muster_comm_wait(d->comm, d->buckets[i].ticket, d->options.timeout_ns, NULL);
    }
    if (d->gradients != NULL)
        d->memory.release(d->memory.arg, d->gradients);
    const struct mu_mem *m = mu_mem_default();
    mu_mem_free(m, d->buckets);
    mu_mem_free(m, d->at);
    mu_mem_free(m, d->bucket_of);
    mu_mem_free(m, d->ready);
    union {
        const struct muster_tensor *read;
        struct muster_tensor *write;
    } params = {.read = d->params};
    mu_mem_free(m, params.write);
    mu_mem_free(m, d);
}

void *muster_ddp_gradient(muster_ddp *d, size_t i)
{
    return i < d->count ? at_element(d, d->at[i]) : NULL;
}

size_t muster_ddp_bucket_count(const muster_ddp *d)
{
    return d->bucket_count;
}

/* --- a step --- */

static int break_down(struct muster_ddp *d, size_t k, int code, const struct muster_error *why)
{
    const struct ddp_bucket *b = &d->buckets[k];
    return sdk_error(&d->broken, code, "ddp: bucket %zu of %zu (parameters %zu to %zu): %.160s", k,
                     d->bucket_count, b->first, b->first + b->count - 1, why->text);
}

/* The error that ended this reducer, again. */
static int say_broken(const struct muster_ddp *d, struct muster_error *err)
{
    if (d->broken.code != 0 && err != NULL)
        *err = d->broken;
    return d->broken.code;
}

static int begin_bucket(struct muster_ddp *d, size_t k)
{
    struct ddp_bucket *b = &d->buckets[k];
    struct muster_error why = {0};
    void *p = at_element(d, b->at);
    if (d->comm_divides) {
        int r = comm_all_reduce_mean(d->comm, p, b->elements, d->dtype, &b->ticket, &why);
        return r < 0 ? break_down(d, k, r, &why) : 0;
    }
    int r = d->memory.divide(d->memory.arg, p, b->elements, d->dtype, d->world);
    if (r < 0)
        return break_down(d, k, sdk_error(&why, r, "divide: %s", strerror(-r)), &why);
    if (d->world == 1)
        return 0;
    r = muster_comm_all_reduce(d->comm, p, b->elements, d->dtype, MUSTER_SUM, &b->ticket, &why);
    return r < 0 ? break_down(d, k, r, &why) : 0;
}

static void begin_step(struct muster_ddp *d)
{
    for (size_t k = 0; k < d->bucket_count; k++)
        d->buckets[k].waiting = d->buckets[k].count;
    memset(d->ready, 0, d->count * sizeof *d->ready);
    d->begun = d->given = 0;
    d->stepping = true;
}

int muster_ddp_ready(muster_ddp *d, size_t i, struct muster_error *err)
{
    if (d->broken.code != 0)
        return say_broken(d, err);
    if (i >= d->count)
        return sdk_error(err, -EINVAL, "ddp: there is no parameter %zu: they are 0 to %zu", i,
                         d->count - 1);
    if (d->no_sync)
        return 0;
    if (!d->stepping)
        begin_step(d);
    if (d->ready[i])
        return sdk_error(err, -EALREADY,
                         "ddp: the gradient of '%.60s' (parameter %zu) was ready before in this "
                         "step: take all buckets with muster_ddp_next() before the next step",
                         d->params[i].name, i);
    d->ready[i] = true;
    d->buckets[d->bucket_of[i]].waiting--;
    while (d->begun < d->bucket_count && d->buckets[d->begun].waiting == 0) {
        if (begin_bucket(d, d->begun) < 0)
            return say_broken(d, err);
        d->begun++;
    }
    return 0;
}

static int say_waiting(const struct muster_ddp *d, struct muster_error *err)
{
    const struct ddp_bucket *b = &d->buckets[d->begun];
    size_t i = b->first + b->count - 1;
    while (d->ready[i])
        i--;
    return sdk_error(err, -EAGAIN,
                     "ddp: bucket %zu of %zu waits for the gradient of '%.60s' (parameter %zu), "
                     "which is not ready yet",
                     d->begun, d->bucket_count, d->params[i].name, i);
}

int muster_ddp_next(muster_ddp *d, struct muster_bucket *ret, struct muster_error *err)
{
    if (d->broken.code != 0)
        return say_broken(d, err);
    if (d->no_sync || !d->stepping)
        return 0;
    if (d->given == d->begun)
        return say_waiting(d, err);
    const struct ddp_bucket *b = &d->buckets[d->given];
    struct muster_error why = {0};
    int r = d->world == 1 ? 0 : muster_comm_wait(d->comm, b->ticket, d->options.timeout_ns, &why);
    if (r < 0) {
        (void)break_down(d, d->given, r, &why);
        return say_broken(d, err);
    }
    *ret = (struct muster_bucket){b->first, b->count};
    d->given++;
    d->stepping = d->given < d->bucket_count;
    return 1;
}

void muster_ddp_no_sync(muster_ddp *d, bool on)
{
    d->no_sync = on;
}
