#include "launcher/doctor/gpu_memory.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct driver {
    int (*init)(unsigned flags);
    int (*device_get)(int *ret, int ordinal);
    int (*ctx_retain)(void **ret, int device);
    int (*ctx_push)(void *ctx);
    int (*mem_alloc)(uint64_t *ret, size_t bytes);
    int (*mem_set)(uint64_t address, unsigned char value, size_t bytes);
};

static int open_driver(struct driver *d, struct mu_err *err)
{
    static const struct {
        const char *name;
        size_t offset;
    } symbols[] = {
        {"cuInit", offsetof(struct driver, init)},
        {"cuDeviceGet", offsetof(struct driver, device_get)},
        {"cuDevicePrimaryCtxRetain", offsetof(struct driver, ctx_retain)},
        {"cuCtxPushCurrent_v2", offsetof(struct driver, ctx_push)},
        {"cuMemAlloc_v2", offsetof(struct driver, mem_alloc)},
        {"cuMemsetD8_v2", offsetof(struct driver, mem_set)},
    };
    const char *path = getenv("MUSTER_CUDA_LIBRARY"); /* As libmuster. */
    void *lib = dlopen(path != NULL && path[0] != '\0' ? path : "libcuda.so.1",
                       RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (lib == NULL)
        return mu_err_set(err, -ENODEV, "the CUDA driver cannot be opened");
    for (size_t i = 0; i < MU_COUNT(symbols); i++) {
        void *p = dlsym(lib, symbols[i].name);
        if (p == NULL)
            return mu_err_set(err, -ENODEV, "the CUDA driver has no %s", symbols[i].name);
        /* A function's address as bytes: C has no cast for it, POSIX promises that it works. */
        memcpy((char *)d + symbols[i].offset, &p, sizeof p);
    }
    return 0;
}

int gpu_memory(size_t bytes, void **ret, struct mu_err *err)
{
    struct driver d;
    void *ctx = NULL;
    int device = 0;
    uint64_t address = 0;
    int r = open_driver(&d, err);
    if (r < 0)
        return r;
    if ((r = d.init(0)) != 0 || (r = d.device_get(&device, 0)) != 0 ||
        (r = d.ctx_retain(&ctx, device)) != 0 || (r = d.ctx_push(ctx)) != 0)
        return mu_err_set(err, -ENODEV, "GPU 0 cannot be used: CUDA error %d", r);
    if ((r = d.mem_alloc(&address, bytes)) != 0 || (r = d.mem_set(address, 0, bytes)) != 0)
        return mu_err_set(err, -ENOMEM, "GPU 0 has no %zu bytes free: CUDA error %d", bytes, r);
    *ret = (void *)(uintptr_t)address;
    return 0;
}
