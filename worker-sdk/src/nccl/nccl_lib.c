/* NCCL, opened at run time; see nccl_lib.h. */
#include "worker-sdk/src/nccl/nccl_lib.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker-sdk/src/nccl/cuda_lib.h"
#include "worker-sdk/src/core/sdk.h"

#define AT(name_, field)                                                                           \
    {                                                                                              \
        name_, offsetof(struct nccl_lib, field), false                                             \
    }
static const struct lib_symbol symbols[] = {
    AT("ncclGetVersion", get_version),
    AT("ncclGetUniqueId", get_unique_id),
    AT("ncclCommInitRankConfig", init),
    {"ncclCommInitRankScalable", offsetof(struct nccl_lib, init_scalable), true},
    AT("ncclCommGetAsyncError", get_async_error),
    AT("ncclCommFinalize", finalize),
    AT("ncclCommDestroy", destroy),
    AT("ncclCommAbort", abort),
    AT("ncclGetErrorString", error_string),
    AT("ncclGetLastError", last_error),
    AT("ncclAllReduce", all_reduce),
    AT("ncclBroadcast", broadcast),
    AT("ncclAllGather", all_gather),
    AT("ncclReduceScatter", reduce_scatter),
};

/* Version first: of an older library it is the better sentence than a function that is missing. */
static int check_version(struct nccl_lib *n, const char *path, struct muster_error *err)
{
    char have[32];
    void *found = dlsym(n->handle, "ncclGetVersion");
    memcpy(&n->get_version, &found, sizeof found);
    if (found == NULL || n->get_version(&n->version) != NCCL_SUCCESS)
        return sdk_error(err, -ENOENT,
                         "'%.120s' does not tell NCCL's version: it is another library", path);
    nccl_lib_version_text(n->version, have);
    if (n->version < NCCL_VERSION_MIN)
        return sdk_error(err, -ENOTSUP, "NCCL %s ('%.100s') is too old: 2.19 or later is needed",
                         have, path);
    return 0;
}

int nccl_lib_open(struct nccl_lib *ret, struct muster_error *err)
{
    struct nccl_lib n = {0};
    const char *path = getenv("MUSTER_NCCL_LIBRARY");
    if (path == NULL || path[0] == '\0')
        path = "libnccl.so.2";
    n.handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (n.handle == NULL) {
        const char *why = dlerror();
        return sdk_error(err, -ENOENT,
                         "no NCCL here (%.120s): install libnccl2, or name it in "
                         "MUSTER_NCCL_LIBRARY, or use the backend \"tcp\"",
                         why == NULL ? "cannot be opened" : why);
    }
    int r = check_version(&n, path, err);
    const char *missing = r < 0 ? NULL : lib_symbols(n.handle, symbols, MU_COUNT(symbols), &n);
    if (missing != NULL)
        r = sdk_error(err, -ENOENT, "'%.120s' has no %s: it is no NCCL", path, missing);
    if (r < 0) {
        nccl_lib_close(&n);
        return r;
    }
    *ret = n;
    return 0;
}

void nccl_lib_close(struct nccl_lib *n)
{
    if (n->handle != NULL)
        (void)dlclose(n->handle); /* Only our count of it goes down. */
    *n = (struct nccl_lib){0};
}

void nccl_lib_version_text(int version, char ret[32])
{
    /* 2.9 and later count in ten thousands, earlier ones in thousands. */
    int major = version >= 10000 ? 10000 : 1000;
    (void)snprintf(ret, 32, "%d.%d.%d", version / major, version % major / 100,
                   version % 100); /* Fits. */
}

static int errno_of(int result)
{
    switch (result) {
    case NCCL_REMOTE_ERROR:
        return -ECONNRESET;
    case NCCL_INVALID_ARGUMENT:
    case NCCL_INVALID_USAGE:
        return -EINVAL;
    default:
        return -EIO;
    }
}

int nccl_lib_error(const struct nccl_lib *n, int result, const char *what, struct muster_error *err)
{
    const char *text = n->error_string(result);
    const char *more = n->last_error(NULL);
    bool has_more = more != NULL && more[0] != '\0';
    return sdk_error(err, errno_of(result), "NCCL: %s: %.80s%s%.100s", what,
                     text == NULL ? "unknown error" : text, has_more ? ": " : "",
                     has_more ? more : "");
}

int nccl_lib_make_id(void *arg, void *ret_id, size_t id_bytes, struct muster_error *err)
{
    const struct nccl_lib *n = arg;
    struct nccl_id id;
    if (id_bytes != sizeof id)
        return sdk_error(err, -EINVAL, "an id of NCCL has %zu bytes, not %zu", sizeof id, id_bytes);
    int got = n->get_unique_id(&id);
    if (got != NCCL_SUCCESS)
        return nccl_lib_error(n, got, "making an id", err);
    memcpy(ret_id, &id, sizeof id);
    return 0;
}
