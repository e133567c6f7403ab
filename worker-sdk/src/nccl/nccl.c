/* Operations over NCCL: issued on one stream, each with an event behind it that is its ticket.
 *
 * NCCL runs non-blocking: a call that says "in progress" is asked again under a deadline, so that
 * nothing here can hang for longer than it was told to. */
#include "worker-sdk/src/nccl/nccl.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <time.h>

#include "worker-sdk/src/core/sdk.h"

#define SPIN_NS INT64_C(20000) /* Short operations end sooner than a sleep begins. */
#define LOOK_FIRST_NS INT64_C(250000000)
#define LOOK_MAX_NS INT64_C(2000000000)

void nccl_nap(int64_t *nap_ns, int64_t deadline_ns)
{
    if (*nap_ns < SPIN_NS) {
        *nap_ns += 1000;
        (void)sched_yield();
        return;
    }
    int64_t ns = *nap_ns;
    int64_t left = deadline_ns == MU_NEVER ? ns : deadline_ns - sdk_now_ns();
    if (ns > left)
        ns = left;
    if (ns > 0) {
        struct timespec ts = {.tv_nsec = ns};
        (void)ppoll(NULL, 0, &ts, NULL); /* A signal only ends the nap. */
    }
    *nap_ns = *nap_ns * 2 > NCCL_NAP_MAX_NS ? NCCL_NAP_MAX_NS : *nap_ns * 2;
}

/* --- Calls under call_lock, with the context current --- */

bool nccl_enter(struct nccl *n)
{
    (void)pthread_mutex_lock(&n->call_lock);
    if (nccl_failed(n, NULL) == 0 && n->cuda.ctx_push(n->ctx) == CUDA_LIB_OK)
        return true;
    (void)pthread_mutex_unlock(&n->call_lock);
    return false;
}

void nccl_leave(struct nccl *n)
{
    void *old = NULL;
    (void)n->cuda.ctx_pop(&old);
    (void)pthread_mutex_unlock(&n->call_lock);
}

/* 0: in order; 1: still in progress; negative. */
static int ask_nccl(struct nccl *n, const char *what, struct muster_error *err)
{
    int state = NCCL_SUCCESS;
    int got = n->lib.get_async_error(n->comm, &state);
    if (got == NCCL_SUCCESS)
        got = state;
    if (got == NCCL_SUCCESS)
        return 0;
    return got == NCCL_IN_PROGRESS ? 1 : nccl_lib_error(&n->lib, got, what, err);
}

/* --- Tickets --- */

/* 1: done; 0: not yet; negative: this rank found an error. */
static int query(struct nccl *n, muster_ticket t, struct muster_error *err)
{
    int got = n->cuda.event_query(n->events[t % NCCL_IN_FLIGHT_MAX]);
    if (got == CUDA_LIB_OK) {
        (void)pthread_mutex_lock(&n->lock);
        if (n->done < t)
            n->done = t;
        (void)pthread_mutex_unlock(&n->lock);
        return 1;
    }
    if (got != CUDA_LIB_NOT_READY)
        return cuda_lib_error(&n->cuda, got, "an operation", err);
    int r = ask_nccl(n, "an operation", err);
    return r < 0 ? r : 0;
}

int nccl_test(void *self, muster_ticket t, struct muster_error *err)
{
    struct nccl *n = self;
    struct muster_error why = {0};
    (void)pthread_mutex_lock(&n->lock);
    bool is_done = t <= n->done;
    bool is_known = t <= n->issued;
    (void)pthread_mutex_unlock(&n->lock);
    if (is_done)
        return 1;
    if (!is_known)
        return sdk_error(err, -EINVAL, "%s: there is no ticket %" PRIu64 " yet", n->name, t);
    int r = nccl_failed(n, err);
    if (r < 0)
        return r;
    /* Somebody else is in a call: what he waits for is no concern of ours. */
    if (pthread_mutex_trylock(&n->call_lock) != 0)
        return 0;
    (void)pthread_mutex_unlock(&n->call_lock);
    if (!nccl_enter(n))
        return nccl_failed(n, err);
    r = query(n, t, &why);
    nccl_leave(n);
    if (r < 0)
        return nccl_fail_with(n, MUSTER_PHASE_RECEIVE, why.code == -EIO ? (int32_t)n->rank : -1,
                              &why, err);
    return r;
}

int nccl_wait(void *self, muster_ticket t, int64_t timeout_ns, struct muster_error *err)
{
    struct nccl *n = self;
    if (timeout_ns < 0)
        timeout_ns = n->timeout_ns;
    int64_t deadline_ns = sdk_deadline_ns(timeout_ns);
    int64_t look_pause_ns = LOOK_FIRST_NS;
    int64_t look_ns = sdk_now_ns() + look_pause_ns;
    int64_t nap_ns = 0;
    for (;;) {
        int r = nccl_test(n, t, err);
        if (r != 0)
            return r < 0 ? r : 0;
        int64_t now_ns = sdk_now_ns();
        if (now_ns >= deadline_ns)
            return nccl_fail_late(n, t, timeout_ns, err);
        if (now_ns >= look_ns) {
            nccl_look(n);
            look_pause_ns = look_pause_ns * 2 > LOOK_MAX_NS ? LOOK_MAX_NS : look_pause_ns * 2;
            look_ns = sdk_now_ns() + look_pause_ns;
        }
        nccl_nap(&nap_ns, deadline_ns);
    }
}

/* --- Operations --- */

static int dtype_of(enum muster_dtype t)
{
    switch (t) {
    case MUSTER_U8:
        return NCCL_UINT8;
    case MUSTER_I32:
        return NCCL_INT32;
    case MUSTER_I64:
        return NCCL_INT64;
    case MUSTER_F32:
        return NCCL_FLOAT32;
    case MUSTER_F64:
        return NCCL_FLOAT64;
    }
    return -1; /* NCCL refuses it with words of its own. */
}

static int op_of(enum muster_op op)
{
    switch (op) {
    case MUSTER_SUM:
        return NCCL_SUM;
    case MUSTER_MIN:
        return NCCL_MIN;
    case MUSTER_MAX:
        return NCCL_MAX;
    }
    return -1;
}

static const char *const kind_names[] = {[COMM_ALL_REDUCE] = "all-reduce",
                                         [COMM_BROADCAST] = "broadcast",
                                         [COMM_ALL_GATHER] = "all-gather",
                                         [COMM_REDUCE_SCATTER] = "reduce-scatter",
                                         [COMM_BARRIER] = "barrier"};

static int call(struct nccl *n, const struct comm_work *w)
{
    const struct nccl_lib *l = &n->lib;
    int type = dtype_of(w->dtype);
    int op = op_of(w->op);
    void *scratch = (void *)(uintptr_t)n->scratch; /* NCCL takes device addresses as pointers. */
    switch (w->kind) {
    case COMM_ALL_REDUCE:
        return l->all_reduce(w->send, w->recv, w->count, type, op, n->comm, n->stream);
    case COMM_BROADCAST:
        return l->broadcast(w->send, w->recv, w->count, type, (int)w->root, n->comm, n->stream);
    case COMM_ALL_GATHER:
        return l->all_gather(w->send, w->recv, w->count, type, n->comm, n->stream);
    case COMM_REDUCE_SCATTER:
        return l->reduce_scatter(w->send, w->recv, w->count, type, op, n->comm, n->stream);
    case COMM_BARRIER:
        return l->all_reduce(scratch, scratch, 1, NCCL_INT32, NCCL_SUM, n->comm, n->stream);
    }
    return NCCL_INVALID_ARGUMENT;
}

/* After a call that said "in progress": until NCCL is ready for the next one. Entered, and entered
 * again between questions, so that abort gets its turn. 0, or negative and left. */
static int settle(struct nccl *n, const char *what, struct muster_error *err)
{
    int64_t deadline_ns = sdk_deadline_ns(n->timeout_ns);
    int64_t nap_ns = 0;
    for (;;) {
        struct muster_error why = {0};
        int r = ask_nccl(n, what, &why);
        if (r == 0)
            return 0;
        nccl_leave(n);
        if (r < 0)
            return nccl_fail_with(n, MUSTER_PHASE_SEND, -1, &why, err);
        if (sdk_now_ns() >= deadline_ns) {
            (void)pthread_mutex_lock(&n->lock);
            uint64_t t = n->issued + 1;
            (void)pthread_mutex_unlock(&n->lock);
            return nccl_fail_late(n, t, n->timeout_ns, err);
        }
        nccl_nap(&nap_ns, deadline_ns);
        if (!nccl_enter(n))
            return nccl_failed(n, err);
    }
}

static int put_event(struct nccl *n, muster_ticket t, struct muster_error *err)
{
    void **event = &n->events[t % NCCL_IN_FLIGHT_MAX];
    int got = *event != NULL ? CUDA_LIB_OK : n->cuda.event_create(event, NCCL_EVENT_NO_TIMING);
    if (got == CUDA_LIB_OK)
        got = n->cuda.event_record(*event, n->stream);
    return got == CUDA_LIB_OK ? 0 : cuda_lib_error(&n->cuda, got, "an event", err);
}

/* NCCL's call, its answer, its event: entered; left at the end in any case. */
static int
issue(struct nccl *n, const struct comm_work *w, muster_ticket t, struct muster_error *err)
{
    struct muster_error why = {0};
    const char *what = kind_names[w->kind];
    int got = call(n, w);
    if (got != NCCL_SUCCESS && got != NCCL_IN_PROGRESS) {
        (void)nccl_lib_error(&n->lib, got, what, &why);
        nccl_leave(n);
        return nccl_fail_with(n, MUSTER_PHASE_SEND, (int32_t)n->rank, &why, err);
    }
    int r = settle(n, what, err);
    if (r < 0)
        return r;
    r = put_event(n, t, &why);
    nccl_leave(n);
    return r < 0 ? nccl_fail_with(n, MUSTER_PHASE_SEND, (int32_t)n->rank, &why, err) : 0;
}

static int
nccl_submit(void *self, const struct comm_work *w, muster_ticket *ret, struct muster_error *err)
{
    struct nccl *n = self;
    muster_ticket t = n->issued + 1; /* Only this thread writes it. */
    int r = nccl_failed(n, err);
    if (r == 0 && t > NCCL_IN_FLIGHT_MAX)
        r = nccl_wait(n, t - NCCL_IN_FLIGHT_MAX, -1,
                      err); /* Its event is about to be used again. */
    if (r < 0)
        return r;
    if (!nccl_enter(n))
        return nccl_failed(n, err);
    r = issue(n, w, t, err);
    if (r < 0)
        return r;
    (void)pthread_mutex_lock(&n->lock);
    n->issued = t;
    (void)pthread_mutex_unlock(&n->lock);
    nccl_tell(n);
    *ret = t;
    return 0;
}

const struct comm_backend comm_nccl = {.name = "nccl",
                                       .is_there = nccl_is_there,
                                       .open = nccl_open,
                                       .submit = nccl_submit,
                                       .wait = nccl_wait,
                                       .test = nccl_test,
                                       .abort = nccl_abort,
                                       .get_cause = nccl_get_cause,
                                       .close = nccl_close};
