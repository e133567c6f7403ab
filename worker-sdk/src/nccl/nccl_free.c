/* Freeing a communicator of NCCL under a deadline; see nccl_free.h. */
#include "worker-sdk/src/nccl/nccl_free.h"

#include <errno.h>
#include <poll.h>
#include <time.h>

#include "base/mem.h"
#include "worker-sdk/src/core/sdk.h"

#define CALL_NS (1 * MU_NS_PER_S)

struct nccl_free {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* On CLOCK_MONOTONIC. */
    int holders;            /* The thread and its owner: the last to leave frees this. */
    bool is_done;
    int (*ctx_push)(void *ctx);
    int (*ctx_pop)(void **ret);
    int (*free_fn)(void *comm);
    void *ctx;
    void *comm;
    pthread_mutex_t *call_lock;
};

static struct timespec timespec_of(int64_t at_ns)
{
    return (struct timespec){.tv_sec = (time_t)(at_ns / MU_NS_PER_S),
                             .tv_nsec = (long)(at_ns % MU_NS_PER_S)};
}

static void let_go(struct nccl_free *f)
{
    (void)pthread_mutex_lock(&f->lock);
    bool is_last = --f->holders == 0;
    (void)pthread_mutex_unlock(&f->lock);
    if (!is_last)
        return;
    (void)pthread_cond_destroy(&f->changed);
    (void)pthread_mutex_destroy(&f->lock);
    mu_mem_free(mu_mem_default(), f);
}

/* False: whoever holds it does not come back. */
static bool take_lock(pthread_mutex_t *lock)
{
    const struct timespec nap = {.tv_nsec = 1000000};
    int64_t deadline_ns = sdk_deadline_ns(CALL_NS);
    while (pthread_mutex_trylock(lock) != 0) {
        if (sdk_now_ns() >= deadline_ns)
            return false;
        (void)ppoll(NULL, 0, &nap, NULL); /* A signal only ends the nap. */
    }
    return true;
}

static void *run(void *arg)
{
    struct nccl_free *f = arg;
    void *old = NULL;
    bool has_lock = take_lock(f->call_lock);
    (void)f->ctx_push(f->ctx); /* Without it NCCL finds the device by itself. */
    (void)f->free_fn(f->comm); /* Done or failed: there is nothing more to do about it. */
    (void)f->ctx_pop(&old);
    if (has_lock)
        (void)pthread_mutex_unlock(f->call_lock);
    (void)pthread_mutex_lock(&f->lock);
    f->is_done = true;
    (void)pthread_cond_broadcast(&f->changed);
    (void)pthread_mutex_unlock(&f->lock);
    let_go(f);
    return NULL;
}

struct nccl_free *nccl_free_start(const struct cuda_lib *cuda,
                                  void *ctx,
                                  int (*free_fn)(void *comm),
                                  void *comm,
                                  pthread_mutex_t *call_lock)
{
    struct nccl_free *f = mu_zalloc(mu_mem_default(), sizeof *f);
    if (f == NULL)
        return NULL;
    *f = (struct nccl_free){.holders = 2,
                            .ctx_push = cuda->ctx_push,
                            .ctx_pop = cuda->ctx_pop,
                            .free_fn = free_fn,
                            .ctx = ctx,
                            .comm = comm,
                            .call_lock = call_lock};
    pthread_condattr_t monotonic;
    (void)pthread_condattr_init(&monotonic); /* Neither fails on Linux. */
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&f->changed, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    (void)pthread_mutex_init(&f->lock, NULL);
    if (pthread_create(&f->thread, NULL, run, f) != 0) {
        f->holders = 1;
        let_go(f);
        return NULL;
    }
    return f;
}

int nccl_free_wait(struct nccl_free *f, int64_t timeout_ns)
{
    if (f == NULL)
        return 0;
    struct timespec until = timespec_of(sdk_deadline_ns(timeout_ns));
    (void)pthread_mutex_lock(&f->lock);
    while (!f->is_done && pthread_cond_timedwait(&f->changed, &f->lock, &until) == 0) {
    }
    bool is_done = f->is_done;
    (void)pthread_mutex_unlock(&f->lock);
    if (is_done)
        (void)pthread_join(f->thread, NULL); /* It is on its way out. */
    else
        (void)pthread_detach(f->thread); /* Whenever it ends. */
    let_go(f);
    return is_done ? 0 : -ETIMEDOUT;
}
