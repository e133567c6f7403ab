/* Ranks as threads; see sdk_comm_rig.h. */
#include "tests/unit/sdk_comm_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <muster/store.h>

#include "base/check.h"
#include "worker-sdk/src/comm/tcp_meet.h"
#include "worker-sdk/src/store/store_client.h"

size_t rig_stream_bytes;

static void pair(int *a, int *b)
{
    int v[2];
    MU_ASSERT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, v) == 0);
    *a = v[0];
    *b = v[1];
}

static void share(struct rig *r, uint32_t a, uint32_t b)
{
    size_t n = shm_bytes(rig_stream_bytes);
    void *p = aligned_alloc(4096, (n + 4095) / 4096 * 4096);
    MU_ASSERT(p != NULL);
    memset(p, 0, n);
    shm_init(&r->ranks[a].fabric.memory[b], p, rig_stream_bytes, 0);
    shm_init(&r->ranks[b].fabric.memory[a], p, rig_stream_bytes, 1);
    r->memory[a * RIG_RANKS_MAX + b] = p;
}

void rig_wire(struct rig *r, uint32_t size)
{
    *r = (struct rig){.size = size};
    for (uint32_t i = 0; i < size; i++) {
        struct tcp_fabric *f = &r->ranks[i].fabric;
        r->ranks[i].env = (struct muster_env){.rank = i, .world = size};
        *f = (struct tcp_fabric){.rank = i, .size = size, .ring_next = -1, .ring_prev = -1};
        f->mesh = size > 1 ? malloc(size * sizeof *f->mesh) : NULL;
        f->memory = size > 1 ? calloc(size, sizeof *f->memory) : NULL;
        for (uint32_t k = 0; size > 1 && k < size; k++)
            f->mesh[k] = -1;
    }
    for (uint32_t i = 0; i < size && size > 1; i++) {
        for (uint32_t k = 0; k < i; k++) {
            pair(&r->ranks[i].fabric.mesh[k], &r->ranks[k].fabric.mesh[i]);
            if (rig_stream_bytes > 0)
                share(r, k, i);
        }
        pair(&r->ranks[i].fabric.ring_next, &r->ranks[(i + 1) % size].fabric.ring_prev);
    }
}

void rig_open(struct rig *r, uint32_t size, int64_t timeout_ns)
{
    struct muster_comm_options o = MUSTER_COMM_OPTIONS_INIT;
    o.timeout_ns = timeout_ns;
    rig_wire(r, size);
    for (uint32_t i = 0; i < size; i++)
        MU_ASSERT(muster_comm_open(&r->ranks[i], &o, &r->comms[i], NULL) == 0);
}

void rig_close(struct rig *r)
{
    for (uint32_t i = 0; i < r->size; i++)
        muster_comm_close(r->comms[i]);
    for (size_t i = 0; i < MU_COUNT(r->memory); i++)
        free(r->memory[i]);
}

struct call {
    void (*fn)(void *arg, uint32_t rank);
    void *arg;
    uint32_t rank;
};

static void *call_main(void *arg)
{
    struct call *c = arg;
    c->fn(c->arg, c->rank);
    return NULL;
}

void rig_each(struct rig *r, void (*fn)(void *arg, uint32_t rank), void *arg)
{
    pthread_t threads[RIG_RANKS_MAX];
    struct call calls[RIG_RANKS_MAX];
    for (uint32_t i = 0; i < r->size; i++) {
        calls[i] = (struct call){fn, arg, i};
        MU_ASSERT(pthread_create(&threads[i], NULL, call_main, &calls[i]) == 0);
    }
    for (uint32_t i = 0; i < r->size; i++)
        MU_ASSERT(pthread_join(threads[i], NULL) == 0);
}

/* --- what the backend asks of the rest of the library --- */

/* Ranks are threads here and meet without a store, so comm.c has nothing to ask it. */
muster_store *muster_get_store(muster *m)
{
    (void)m;
    return NULL;
}

int muster_store_set(
    muster_store *s, const char *key, const void *p, size_t n, struct muster_error *err)
{
    (void)s;
    (void)p;
    (void)n;
    (void)key;
    (void)err;
    return -ENOTSUP;
}

int muster_store_get(muster_store *s,
                     const char *key,
                     struct muster_bytes *ret,
                     struct muster_error *err)
{
    (void)s;
    (void)ret;
    (void)key;
    (void)err;
    return -ENOTSUP;
}

void muster_bytes_free(struct muster_bytes *b)
{
    *b = (struct muster_bytes){0};
}

const struct muster_env *muster_get_env(const muster *m)
{
    return &m->env;
}

int64_t store_limit(muster_store *s, int64_t until_ns)
{
    (void)s;
    return until_ns;
}

void store_unlimit(muster_store *s, int64_t former_ns)
{
    (void)s;
    (void)former_ns;
}

int tcp_meet(muster *m,
             const struct muster_comm_options *o,
             int64_t deadline_ns,
             struct tcp_fabric *ret,
             struct muster_error *err)
{
    *ret = m->fabric;
    m->fabric = (struct tcp_fabric){.ring_next = -1, .ring_prev = -1};
    return 0;
}
