/* Bringing up a communicator over NCCL, and taking it down. Each step has an end, and each failure
 * is told to the ranks that would wait for this one. */
#include "worker-sdk/src/nccl/nccl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/parse.h"
#include "worker-sdk/src/core/sdk.h"

#define PEERS_LOOK_NS INT64_C(250000000) /* How often a start asks whether another rank failed. */
#define FLUSH_NS INT64_C(2000000000)     /* Ending well; after that it is an abort. */
/* One listener answers some hundred ranks well. */
#define ONE_ID_RANKS_MAX 256
#define RANKS_PER_ID 128
#define STREAM_NON_BLOCKING 1u

/* One that is there but too old counts as there: open() then refuses it with a sentence, on all
 * ranks.
 */
bool nccl_is_there(struct muster_error *why)
{
    struct cuda_lib cuda;
    struct nccl_lib lib;
    if (cuda_lib_open(&cuda, why) < 0)
        return false;
    cuda_lib_close(&cuda);
    int r = nccl_lib_open(&lib, why);
    if (r == 0)
        nccl_lib_close(&lib);
    return r == 0 || r == -ENOTSUP;
}

/* --- The device --- */

static int open_stream(struct nccl *n, void *given, struct muster_error *err)
{
    int least = 0;
    int greatest = 0;
    n->stream = given;
    if (given != NULL)
        return 0;
    /* The greatest priority: what the others wait for goes before our own kernels. */
    int got = n->cuda.priority_range(&least, &greatest);
    if (got == CUDA_LIB_OK)
        got = n->cuda.stream_create(&n->stream, STREAM_NON_BLOCKING, greatest);
    n->owns_stream = got == CUDA_LIB_OK;
    return got == CUDA_LIB_OK ? 0 : cuda_lib_error(&n->cuda, got, "a stream", err);
}

static int open_device(struct nccl *n,
                       const struct muster_comm_options *o,
                       const struct muster_env *env,
                       struct muster_error *err)
{
    int ordinal = o->device >= 0 ? o->device : (int)env->local_rank;
    if (ordinal >= n->cuda.device_count)
        return sdk_error(err, -ENODEV,
                         "there is no CUDA device %d for local rank %" PRIu32
                         ": this node shows %d; start as many workers a node as it has devices, or "
                         "set `device`",
                         ordinal, env->local_rank, n->cuda.device_count);
    void *ctx = NULL;
    void *old = NULL;
    int got = n->cuda.device_get(&n->device, ordinal);
    if (got == CUDA_LIB_OK)
        got = n->cuda.primary_ctx_retain(&ctx, n->device);
    if (got != CUDA_LIB_OK)
        return cuda_lib_error(&n->cuda, got, "the device's context", err);
    n->ctx = ctx;
    got = n->cuda.ctx_push(n->ctx);
    if (got != CUDA_LIB_OK)
        return cuda_lib_error(&n->cuda, got, "the device's context", err);
    int r = open_stream(n, o->stream, err);
    if (r == 0) {
        got = n->cuda.mem_alloc(&n->scratch, sizeof(int32_t));
        if (got == CUDA_LIB_OK)
            got = n->cuda.mem_set(n->scratch, 0, sizeof(int32_t));
        if (got != CUDA_LIB_OK)
            r = cuda_lib_error(&n->cuda, got, "memory for barriers", err);
    }
    (void)n->cuda.ctx_pop(&old);
    return r;
}

static void close_device(struct nccl *n)
{
    void *old = NULL;
    if (n->ctx == NULL || n->cuda.ctx_push(n->ctx) != CUDA_LIB_OK)
        return;
    /* A driver that refuses to take something back is not asked twice. */
    for (size_t i = 0; i < MU_COUNT(n->events); i++)
        if (n->events[i] != NULL)
            (void)n->cuda.event_destroy(n->events[i]);
    if (n->joint != NULL)
        (void)n->cuda.event_destroy(n->joint);
    if (n->scratch != 0)
        (void)n->cuda.mem_free(n->scratch);
    if (n->owns_stream)
        (void)n->cuda.stream_destroy(n->stream);
    (void)n->cuda.ctx_pop(&old);
    (void)n->cuda.primary_ctx_release(n->device);
}

/* --- Ids --- */

/* The same on all ranks where the versions are the same: the exchange compares both. */
static int count_ids(const struct nccl *n, uint32_t *ret, struct muster_error *err)
{
    uint32_t per_id = n->size > ONE_ID_RANKS_MAX ? RANKS_PER_ID : n->size;
    const char *text = getenv("MUSTER_NCCL_RANKS_PER_ID");
    struct mu_err why = {0};
    if (text != NULL && text[0] != '\0' &&
        mu_parse_u32(text, 1, UINT32_MAX, "MUSTER_NCCL_RANKS_PER_ID", &per_id, &why) < 0)
        return sdk_error_take(err, &why);
    *ret = n->lib.init_scalable == NULL ? 1 : n->size / per_id + (n->size % per_id != 0);
    return 0;
}

static int exchange_ids(struct nccl *n,
                        muster *m,
                        uint32_t id_count,
                        int64_t deadline_ns,
                        struct nccl_id *ids,
                        struct muster_error *err)
{
    char version[32];
    char same[64];
    nccl_lib_version_text(n->lib.version, version);
    (void)snprintf(same, sizeof same, "NCCL %s", version); /* Fits. */
    struct muster_id_options o = MUSTER_ID_OPTIONS_INIT;
    o.name = n->name;
    o.same = same;
    o.id_bytes = sizeof *ids;
    o.id_count = id_count;
    o.maker = nccl_lib_make_id;
    o.arg = &n->lib;
    o.timeout_ns = deadline_ns == MU_NEVER ? -1 : deadline_ns - sdk_now_ns();
    if (deadline_ns != MU_NEVER && o.timeout_ns < 0)
        o.timeout_ns = 0;
    return muster_id_exchange(m, &o, ids, &n->marks.number, err);
}

/* A connection for bad news, and the first word on it: so that who has started finds the word of
 * all.
 */
static int open_marks(struct nccl *n, muster *m, struct muster_error *err)
{
    char key[ID_KEY_BYTES];
    n->marks.env = muster_get_env(m);
    n->marks.name = n->name;
    if (muster_get_store(m) == NULL)
        return 0;
    int r = sdk_store_open(m, "", &n->marks.store, err);
    if (r < 0)
        return r;
    muster_store_set_timeout(n->marks.store, NCCL_STORE_NS);
    id_key(&n->marks, "at", n->rank, key);
    return muster_store_set(n->marks.store, key, "0", 1, err);
}

/* --- NCCL's own start --- */

static int begin(struct nccl *n, uint32_t id_count, struct nccl_id *ids, struct muster_error *err)
{
    struct nccl_config config = NCCL_CONFIG_NON_BLOCKING;
    int size = (int)n->size;
    int rank = (int)n->rank;
    int got = id_count > 1 ? n->lib.init_scalable(&n->comm, size, rank, (int)id_count, ids, &config)
                           : n->lib.init(&n->comm, size, ids[0], rank, &config);
    if (got == NCCL_SUCCESS || got == NCCL_IN_PROGRESS)
        return 0;
    return nccl_lib_error(&n->lib, got, "start", err);
}

/* Nobody failed, and time is over: those who are not through are the reason. */
static int late_start(struct nccl *n, muster *m, struct muster_error *err)
{
    int r = muster_id_missing(m, n->name, n->marks.number, err);
    if (r == 0)
        r = sdk_error(err, -ETIMEDOUT,
                      "%s: all other ranks have started, this one not in time: NCCL_DEBUG=INFO "
                      "shows what it waits for",
                      n->name);
    return r;
}

static int await_start(struct nccl *n, muster *m, int64_t deadline_ns, struct muster_error *err)
{
    int64_t nap_ns = 0;
    int64_t look_ns = sdk_now_ns() + PEERS_LOOK_NS;
    for (;;) {
        int state = NCCL_SUCCESS;
        int got = n->lib.get_async_error(n->comm, &state);
        if (got == NCCL_SUCCESS)
            got = state;
        if (got == NCCL_SUCCESS)
            return 0;
        if (got != NCCL_IN_PROGRESS)
            return nccl_lib_error(&n->lib, got, "start", err);
        int64_t now_ns = sdk_now_ns();
        if (now_ns >= deadline_ns)
            return late_start(n, m, err);
        if (now_ns >= look_ns) {
            int r = muster_id_check(m, n->name, n->marks.number, err);
            if (r < 0)
                return r;
            look_ns = sdk_now_ns() + PEERS_LOOK_NS;
        }
        nccl_nap(&nap_ns, deadline_ns);
    }
}

static int run_start(struct nccl *n,
                     muster *m,
                     uint32_t id_count,
                     struct nccl_id *ids,
                     int64_t deadline_ns,
                     struct muster_error *err)
{
    void *old = NULL;
    int r = open_marks(n, m, err);
    if (r == 0 && n->cuda.ctx_push(n->ctx) != CUDA_LIB_OK)
        r = sdk_error(err, -EIO, "CUDA: the device's context cannot be used");
    else if (r == 0) {
        r = begin(n, id_count, ids, err);
        if (r == 0)
            r = await_start(n, m, deadline_ns, err);
        (void)n->cuda.ctx_pop(&old);
    }
    return r;
}

static int start(struct nccl *n, muster *m, int64_t deadline_ns, struct muster_error *err)
{
    uint32_t id_count = 1;
    struct muster_error why = {0};
    int r = count_ids(n, &id_count, &why);
    MU_CLEANUP(mu_freep)
    struct nccl_id *ids = r < 0 ? NULL : mu_zalloc(mu_mem_default(), id_count * sizeof *ids);
    if (r == 0 && ids == NULL)
        r = sdk_error(&why, -ENOMEM, "no memory for %" PRIu32 " ids", id_count);
    if (r < 0) {
        (void)muster_id_refuse(m, n->name, &why, NULL); /* Untold, they find out in time. */
        return sdk_error(err, r, "%s", why.text);
    }
    r = exchange_ids(n, m, id_count, deadline_ns, ids, err);
    if (r < 0)
        return r;
    r = run_start(n, m, id_count, ids, deadline_ns, &why);
    if (r == 0)
        return muster_id_left(m, n->name, n->marks.number, err);
    (void)muster_id_failed(m, n->name, n->marks.number, &why, NULL);
    return sdk_error(err, r, "%s", why.text);
}

/* --- Open and close --- */

/* Frees NCCL's side under a deadline. False: it hangs, and nothing of the device may be touched. */
static bool free_comm(struct nccl *n)
{
    struct nccl_free *f = n->freeing;
    if (n->comm == NULL)
        return true;
    if (f == NULL)
        f = nccl_free_start(&n->cuda, n->ctx, n->lib.abort, n->comm, &n->call_lock);
    return f != NULL && nccl_free_wait(f, NCCL_FREE_NS) == 0;
}

/* Everything behind the communicator. A thread that hangs in NCCL uses call_lock: then this stays.
 */
static void release(struct nccl *n)
{
    bool is_free = free_comm(n);
    muster_store_close(n->marks.store);
    n->marks.store = NULL;
    if (!is_free)
        return;
    close_device(n);
    nccl_lib_close(&n->lib);
    cuda_lib_close(&n->cuda);
    (void)pthread_mutex_destroy(&n->call_lock);
    (void)pthread_mutex_destroy(&n->lock);
    (void)pthread_mutex_destroy(&n->store_lock);
    mu_mem_free(mu_mem_default(), n);
}

static int set_up(struct nccl *n,
                  const struct muster_comm_options *o,
                  const struct muster_env *env,
                  struct muster_error *err)
{
    int r = cuda_lib_open(&n->cuda, err);
    if (r == 0)
        r = nccl_lib_open(&n->lib, err);
    return r < 0 ? r : open_device(n, o, env, err);
}

int nccl_open(muster *m,
              const struct muster_comm_options *o,
              int64_t deadline_ns,
              void **ret,
              struct muster_error *err)
{
    const struct muster_env *env = muster_get_env(m);
    struct nccl *n = mu_zalloc(mu_mem_default(), sizeof *n);
    if (n == NULL)
        return sdk_error(err, -ENOMEM, "no memory for a communicator");
    (void)pthread_mutex_init(&n->call_lock, NULL); /* Does not fail on Linux. */
    (void)pthread_mutex_init(&n->lock, NULL);
    (void)pthread_mutex_init(&n->store_lock, NULL);
    n->rank = env->rank;
    n->size = env->world;
    n->timeout_ns = o->timeout_ns;
    int length = snprintf(n->name, sizeof n->name, "nccl/%s", o->name == NULL ? "world" : o->name);
    struct muster_error why = {0};
    int r = 0;
    if (length >= (int)sizeof n->name) {
        r = sdk_error(err, -EINVAL, "the name of a communicator has at most 59 bytes");
    } else if ((r = set_up(n, o, env, &why)) < 0) {
        (void)muster_id_refuse(m, n->name, &why, NULL); /* Untold, they find out in time. */
        (void)sdk_error(err, r, "%s", why.text);
    } else {
        r = start(n, m, deadline_ns, err);
    }
    if (r < 0) {
        release(n);
        return r;
    }
    *ret = n;
    return 0;
}

/* All operations are done here, perhaps not at the peers: NCCL says when they are. */
static bool flush(struct nccl *n)
{
    int64_t deadline_ns = sdk_deadline_ns(FLUSH_NS);
    int64_t nap_ns = 0;
    void *old = NULL;
    int state = NCCL_IN_PROGRESS;
    (void)pthread_mutex_lock(&n->call_lock);
    int got = n->cuda.ctx_push(n->ctx) == CUDA_LIB_OK ? n->lib.finalize(n->comm)
                                                      : NCCL_UNHANDLED_CUDA_ERROR;
    while (got == NCCL_SUCCESS || got == NCCL_IN_PROGRESS) {
        got = n->lib.get_async_error(n->comm, &state);
        if (got != NCCL_SUCCESS || state != NCCL_IN_PROGRESS || sdk_now_ns() >= deadline_ns)
            break;
        nccl_nap(&nap_ns, deadline_ns);
    }
    (void)n->cuda.ctx_pop(&old);
    (void)pthread_mutex_unlock(&n->call_lock);
    return got == NCCL_SUCCESS && state == NCCL_SUCCESS;
}

void nccl_close(void *self)
{
    struct nccl *n = self;
    if (n == NULL)
        return;
    bool is_idle = n->issued == 0 || nccl_test(n, n->issued, NULL) == 1;
    if (is_idle && nccl_failed(n, NULL) == 0 && flush(n))
        n->freeing = nccl_free_start(&n->cuda, n->ctx, n->lib.destroy, n->comm, &n->call_lock);
    release(n);
}
