/* CUDA's driver library, opened at run time; see cuda_lib.h. */
#include "worker-sdk/src/nccl/cuda_lib.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "worker-sdk/src/core/sdk.h"

/* From these on a name means another signature, so that they are asked for with their version. */
#define AT(name_, field)                                                                           \
    {                                                                                              \
        name_, offsetof(struct cuda_lib, field), false                                             \
    }
static const struct lib_symbol symbols[] = {
    AT("cuInit", init),
    AT("cuDeviceGetCount", device_get_count),
    AT("cuDeviceGet", device_get),
    AT("cuDevicePrimaryCtxRetain", primary_ctx_retain),
    AT("cuDevicePrimaryCtxRelease_v2", primary_ctx_release),
    AT("cuCtxPushCurrent_v2", ctx_push),
    AT("cuCtxPopCurrent_v2", ctx_pop),
    AT("cuCtxGetStreamPriorityRange", priority_range),
    AT("cuStreamCreateWithPriority", stream_create),
    AT("cuStreamDestroy_v2", stream_destroy),
    AT("cuStreamWaitEvent", stream_wait_event),
    AT("cuEventCreate", event_create),
    AT("cuEventDestroy_v2", event_destroy),
    AT("cuEventRecord", event_record),
    AT("cuEventQuery", event_query),
    AT("cuMemAlloc_v2", mem_alloc),
    AT("cuMemFree_v2", mem_free),
    AT("cuMemsetD8_v2", mem_set),
    AT("cuGetErrorString", error_string),
};

const char *lib_symbols(void *handle, const struct lib_symbol *list, size_t count, void *into)
{
    for (size_t i = 0; i < count; i++) {
        void *found = dlsym(handle, list[i].name);
        if (found == NULL && !list[i].is_optional)
            return list[i].name;
        /* A function's address as bytes: C has no cast for it, POSIX promises that it works. */
        memcpy((char *)into + list[i].offset, &found, sizeof found);
    }
    return NULL;
}

static int open_library(struct cuda_lib *c, struct muster_error *err)
{
    const char *path = getenv("MUSTER_CUDA_LIBRARY");
    bool is_named = path != NULL && path[0] != '\0';
    /* A driver that was loaded has threads of its own: it stays. */
    c->handle = dlopen(is_named ? path : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (c->handle == NULL) {
        const char *why = dlerror();
        return sdk_error(
            err, -ENODEV,
            "no CUDA driver here (%.120s): install NVIDIA's driver, or use the backend "
            "\"tcp\"",
            why == NULL ? "cannot be opened" : why);
    }
    const char *missing = lib_symbols(c->handle, symbols, MU_COUNT(symbols), c);
    if (missing != NULL)
        return sdk_error(err, -ENODEV,
                         "the CUDA driver has no %s: it is too old, or %.80s is another library",
                         missing, is_named ? path : "libcuda.so.1");
    return 0;
}

int cuda_lib_open(struct cuda_lib *ret, struct muster_error *err)
{
    struct cuda_lib c = {0};
    int r = open_library(&c, err);
    int got = r == 0 ? c.init(0) : CUDA_LIB_OK;
    if (got == CUDA_LIB_OK && r == 0)
        got = c.device_get_count(&c.device_count);
    if (r == 0 && got != CUDA_LIB_OK)
        r = sdk_error(err, -ENODEV, "the CUDA driver does not start: %s (%d): see nvidia-smi",
                      cuda_lib_text(&c, got), got);
    if (r == 0 && c.device_count < 1)
        r = sdk_error(err, -ENODEV,
                      "the CUDA driver shows no device: see nvidia-smi and CUDA_VISIBLE_DEVICES");
    if (r < 0) {
        cuda_lib_close(&c);
        return r;
    }
    *ret = c;
    return 0;
}

void cuda_lib_close(struct cuda_lib *c)
{
    if (c->handle != NULL)
        (void)dlclose(c->handle); /* Only our count of it goes down. */
    *c = (struct cuda_lib){0};
}

const char *cuda_lib_text(const struct cuda_lib *c, int result)
{
    const char *text = NULL;
    if (c->error_string == NULL || c->error_string(result, &text) != CUDA_LIB_OK || text == NULL)
        return "unknown error";
    return text;
}

int cuda_lib_error(const struct cuda_lib *c, int result, const char *what, struct muster_error *err)
{
    return sdk_error(err, -EIO, "CUDA: %s: %s (%d)", what, cuda_lib_text(c, result), result);
}
