/* What is common to all backends: arguments are checked, a backend is chosen, and calls go to its
 * table. */
#include "worker-sdk/src/comm/comm.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "base/shown.h"
#include "worker-sdk/src/agent/progress_line.h"
#include "worker-sdk/src/core/sdk.h"
#include "worker-sdk/src/store/store_client.h"

#define NAME_BYTES_MAX 48

struct muster_comm {
    const struct comm_backend *backend;
    void *self;
    uint32_t rank;
    uint32_t size;
};

/* In order of preference. */
static const struct comm_backend *const backends[] = {
#ifdef MUSTER_SDK_NCCL
    &comm_nccl,
#endif
    &comm_tcp,
};

size_t muster_dtype_bytes(enum muster_dtype t)
{
    switch (t) {
    case MUSTER_U8:
        return 1;
    case MUSTER_I32:
    case MUSTER_F32:
        return 4;
    case MUSTER_I64:
    case MUSTER_F64:
        return 8;
    }
    return 0;
}

/* NULL: none has this name. */
static const struct comm_backend *find(const char *name)
{
    for (size_t i = 0; i < MU_COUNT(backends); i++)
        if (strcmp(name, backends[i]->name) == 0)
            return backends[i];
    return NULL;
}

static int unknown(const char *name, struct muster_error *err)
{
    char known[64] = "";
    for (size_t i = 0; i < MU_COUNT(backends); i++) {
        size_t used = strlen(known);
        (void)snprintf(known + used, sizeof known - used, "%s%s", used > 0 ? ", " : "",
                       backends[i]->name);
    }
    return sdk_error(err, -EINVAL, "there is no backend '%.32s': choose from %s", name, known);
}

/* The first that works here; the last one always does. */
static const struct comm_backend *first_there(void)
{
    struct muster_error why = {0};
    size_t i = 0;
    while (i + 1 < MU_COUNT(backends) && !backends[i]->is_there(&why))
        i++;
    return backends[i];
}

/* Where nobody names a backend, rank 0's choice is everybody's: ranks that chose by what each
 * finds could choose differently, and wait for each other. A rank that cannot follow says so in
 * the backend's open(), where the others hear it. */
static int choose(muster *m,
                  const struct muster_comm_options *o,
                  const struct comm_backend **ret,
                  struct muster_error *err)
{
    const struct muster_env *env = muster_get_env(m);
    muster_store *store = muster_get_store(m);
    struct muster_bytes name = {0};
    char key[NAME_BYTES_MAX + 32];
    const struct comm_backend *b = o->backend != NULL ? find(o->backend) : first_there();
    if (b == NULL)
        return unknown(o->backend, err);
    *ret = b;
    if (o->backend != NULL || env->world == 1 || store == NULL)
        return 0;
    (void)snprintf(key, sizeof key, "comm/%s/backend", o->name);
    if (env->rank == 0)
        return muster_store_set(store, key, b->name, strlen(b->name), err);
    int r = muster_store_get(store, key, &name, err);
    if (r < 0)
        return sdk_error_wrap(err, r, "which backend rank 0 chose for '%s'", o->name);
    b = find(name.p);
    r = b != NULL ? 0 : unknown(name.p, err);
    muster_bytes_free(&name);
    if (r == 0)
        *ret = b;
    return r;
}

/* The name becomes part of keys in the store. */
static int check_name(const char *name, struct muster_error *err)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < n && n <= NAME_BYTES_MAX; i++)
        if (name[i] <= ' ' || name[i] > '~' || name[i] == '/')
            n = 0;
    if (n == 0 || n > NAME_BYTES_MAX)
        return sdk_error(
            err, -EINVAL,
            "a communicator's name has 1 to %d printable characters without '/' and blanks",
            NAME_BYTES_MAX);
    return 0;
}

int muster_comm_open(muster *m,
                     const struct muster_comm_options *options,
                     muster_comm **ret,
                     struct muster_error *err)
{
    struct muster_comm_options o = MUSTER_COMM_OPTIONS_INIT;
    if (m == NULL || ret == NULL)
        return sdk_error(err, -EINVAL,
                         "muster_comm_open: a handle and a place for the result are needed");
    if (options != NULL && options->size != sizeof o)
        return sdk_error(err, -EINVAL,
                         "muster_comm_open: begin options with MUSTER_COMM_OPTIONS_INIT");
    if (options != NULL)
        o = *options;
    if (o.name == NULL)
        o.name = "world";
    int r = check_name(o.name, err);
    if (r < 0)
        return r;
    struct muster_comm *c = mu_zalloc(mu_mem_default(), sizeof *c);
    if (c == NULL)
        return sdk_error(err, -ENOMEM, "no memory for a communicator");
    c->rank = muster_get_env(m)->rank;
    c->size = muster_get_env(m)->world;
    /* One deadline for all of it, however many questions to the store, and to whom. */
    int64_t deadline_ns = sdk_deadline_ns(o.timeout_ns);
    int64_t former_ns = store_limit(muster_get_store(m), sdk_after_ns(deadline_ns, STORE_WORDS_NS));
    r = choose(m, &o, &c->backend, err);
    if (r == 0)
        r = c->backend->open(m, &o, deadline_ns, &c->self, err);
    store_unlimit(muster_get_store(m), former_ns);
    if (r < 0) {
        mu_mem_free(mu_mem_default(), c);
        return r;
    }
    line_blame(-1); /* Whatever broke before, this goes on without it. */
    *ret = c;
    return 0;
}

void *comm_self(const muster_comm *c, const struct comm_backend *of)
{
    return c->backend == of ? c->self : NULL;
}

void muster_comm_close(muster_comm *c)
{
    if (c == NULL)
        return;
    c->backend->close(c->self);
    mu_mem_free(mu_mem_default(), c);
}

uint32_t muster_comm_rank(const muster_comm *c)
{
    return c->rank;
}

uint32_t muster_comm_size(const muster_comm *c)
{
    return c->size;
}

const char *muster_comm_backend(const muster_comm *c)
{
    return c->backend->name;
}

/* A failure that the caller hears of: its agent hears who brought it about, so that this process is
 * not taken for the first cause when it ends because of it. */
static int tell_blame(muster_comm *c, int r)
{
    struct muster_cause cause;
    if (r < 0 && c->backend->get_cause(c->self, &cause) && cause.peer >= 0 &&
        cause.peer != (int32_t)c->rank)
        line_blame(cause.peer);
    return r;
}

/* --- operations --- */

static int submit(muster_comm *c,
                  const struct comm_work *w,
                  const char *what,
                  muster_ticket *ret,
                  struct muster_error *err)
{
    size_t bytes = muster_dtype_bytes(w->dtype), total = 0;
    muster_ticket ticket = 0;
    if (c == NULL)
        return sdk_error(err, -EINVAL, "%s: no communicator", what);
    if (bytes == 0)
        return sdk_error(err, -EINVAL, "%s: %d is no type", what, (int)w->dtype);
    if (w->op < MUSTER_SUM || w->op > MUSTER_MAX)
        return sdk_error(err, -EINVAL, "%s: %d is no operation", what, (int)w->op);
    if (w->root >= c->size)
        return sdk_error(err, -EINVAL, "%s: the root %u is no rank of 0 to %u", what, w->root,
                         c->size - 1);
    if (__builtin_mul_overflow(w->count, bytes * c->size, &total) || total > INT64_MAX)
        return sdk_error(err, -EINVAL, "%s: %zu elements are too many", what, w->count);
    if (total > 0 && (w->send == NULL || w->recv == NULL))
        return sdk_error(err, -EINVAL, "%s: no buffer for %zu elements", what, w->count);
    int r = tell_blame(c, c->backend->submit(c->self, w, &ticket, err));
    if (r == 0 && ret != NULL)
        *ret = ticket;
    return r;
}

int muster_comm_all_reduce(muster_comm *c,
                           void *buf,
                           size_t count,
                           enum muster_dtype t,
                           enum muster_op op,
                           muster_ticket *ret,
                           struct muster_error *err)
{
    struct comm_work w = {COMM_ALL_REDUCE, buf, buf, count, t, op, 0, false};
    return submit(c, &w, "all_reduce", ret, err);
}

bool comm_knows_mean(const muster_comm *c)
{
    return c->backend->knows_mean;
}

int comm_all_reduce_mean(muster_comm *c,
                         void *buf,
                         size_t count,
                         enum muster_dtype t,
                         muster_ticket *ret,
                         struct muster_error *err)
{
    struct comm_work w = {.kind = COMM_ALL_REDUCE,
                          .send = buf,
                          .recv = buf,
                          .count = count,
                          .dtype = t,
                          .op = MUSTER_SUM,
                          .mean = true};
    MU_ASSERT(comm_knows_mean(c) && (t == MUSTER_F32 || t == MUSTER_F64));
    return submit(c, &w, "all_reduce", ret, err);
}

int muster_comm_broadcast(muster_comm *c,
                          void *buf,
                          size_t count,
                          enum muster_dtype t,
                          uint32_t root,
                          muster_ticket *ret,
                          struct muster_error *err)
{
    struct comm_work w = {COMM_BROADCAST, buf, buf, count, t, MUSTER_SUM, root, false};
    return submit(c, &w, "broadcast", ret, err);
}

int muster_comm_all_gather(muster_comm *c,
                           const void *send,
                           void *recv,
                           size_t count,
                           enum muster_dtype t,
                           muster_ticket *ret,
                           struct muster_error *err)
{
    struct comm_work w = {COMM_ALL_GATHER, NULL, recv, count, t, MUSTER_SUM, 0, false};
    memcpy(&w.send, &send, sizeof send); /* Nobody writes there in an all-gather. */
    return submit(c, &w, "all_gather", ret, err);
}

int muster_comm_reduce_scatter(muster_comm *c,
                               void *send,
                               void *recv,
                               size_t count,
                               enum muster_dtype t,
                               enum muster_op op,
                               muster_ticket *ret,
                               struct muster_error *err)
{
    struct comm_work w = {COMM_REDUCE_SCATTER, send, recv, count, t, op, 0, false};
    return submit(c, &w, "reduce_scatter", ret, err);
}

int muster_comm_barrier(muster_comm *c, int64_t timeout_ns, struct muster_error *err)
{
    struct comm_work w = {COMM_BARRIER, NULL, NULL, 0, MUSTER_U8, MUSTER_SUM, 0, false};
    muster_ticket t = 0;
    int r = submit(c, &w, "barrier", &t, err);
    return r < 0 ? r : tell_blame(c, c->backend->wait(c->self, t, timeout_ns, err));
}

int muster_comm_wait(muster_comm *c,
                     muster_ticket ticket,
                     int64_t timeout_ns,
                     struct muster_error *err)
{
    if (c == NULL)
        return sdk_error(err, -EINVAL, "wait: no communicator");
    return tell_blame(c, c->backend->wait(c->self, ticket, timeout_ns, err));
}

int muster_comm_test(muster_comm *c, muster_ticket ticket, struct muster_error *err)
{
    if (c == NULL)
        return sdk_error(err, -EINVAL, "test: no communicator");
    return tell_blame(c, c->backend->test(c->self, ticket, err));
}

void muster_comm_abort(muster_comm *c, const char *why)
{
    if (c != NULL)
        c->backend->abort(c->self, why);
}

bool muster_comm_get_cause(muster_comm *c, struct muster_cause *ret)
{
    if (!c->backend->get_cause(c->self, ret))
        return false;
    mu_clean(ret->text); /* It may be another rank's. */
    return true;
}
