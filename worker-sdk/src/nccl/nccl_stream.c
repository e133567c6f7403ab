/* Order between a communicator's stream and a program's (muster/cuda.h): events, and no waiting. */
#include "worker-sdk/src/nccl/nccl.h"

#include <errno.h>

#include <muster/cuda.h>

#include "worker-sdk/src/core/sdk.h"

int nccl_stream_wait(struct nccl *n, muster_ticket t, void *stream, struct muster_error *err)
{
    int r = nccl_test(n, t, err);
    if (r != 0)
        return r < 0 ? r : 0;
    if (!nccl_enter(n))
        return nccl_failed(n, err);
    int got = n->cuda.stream_wait_event(stream, n->events[t % NCCL_IN_FLIGHT_MAX], 0);
    nccl_leave(n);
    return got == CUDA_LIB_OK ? 0 : cuda_lib_error(&n->cuda, got, "a stream's wait", err);
}

int nccl_wait_stream(struct nccl *n, void *stream, struct muster_error *err)
{
    int r = nccl_failed(n, err);
    if (r < 0)
        return r;
    if (!nccl_enter(n))
        return nccl_failed(n, err);
    int got =
        n->joint != NULL ? CUDA_LIB_OK : n->cuda.event_create(&n->joint, NCCL_EVENT_NO_TIMING);
    if (got == CUDA_LIB_OK)
        got = n->cuda.event_record(n->joint, stream);
    /* A stream's wait is for what the event has now: it may be used again at once. */
    if (got == CUDA_LIB_OK)
        got = n->cuda.stream_wait_event(n->stream, n->joint, 0);
    nccl_leave(n);
    return got == CUDA_LIB_OK ? 0 : cuda_lib_error(&n->cuda, got, "a stream's wait", err);
}

/* --- muster/cuda.h --- */

static struct nccl *nccl_of(muster_comm *c, struct muster_error *err)
{
    struct nccl *n = c == NULL ? NULL : comm_self(c, &comm_nccl);
    if (n == NULL)
        (void)sdk_error(err, -ENOTSUP,
                        "the backend \"%s\" has no streams: open the communicator with \"nccl\"",
                        c == NULL ? "" : muster_comm_backend(c));
    return n;
}

int muster_comm_stream_wait(muster_comm *c,
                            muster_ticket ticket,
                            void *stream,
                            struct muster_error *err)
{
    struct nccl *n = nccl_of(c, err);
    return n == NULL ? -ENOTSUP : nccl_stream_wait(n, ticket, stream, err);
}

int muster_comm_wait_stream(muster_comm *c, void *stream, struct muster_error *err)
{
    struct nccl *n = nccl_of(c, err);
    return n == NULL ? -ENOTSUP : nccl_wait_stream(n, stream, err);
}
