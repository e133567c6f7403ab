/* CUDA's driver library, opened at run time: the few calls that a communicator needs.
 *
 * The driver's own interface is used and not the runtime's: it is there wherever a GPU works, its
 * version does not depend on what a program was built with, and its streams and events are the
 * runtime's. A machine without a driver gets a sentence. */
#ifndef MUSTER_SDK_CUDA_LIB_H
#define MUSTER_SDK_CUDA_LIB_H

#include <muster/muster.h>

#define CUDA_LIB_OK 0
#define CUDA_LIB_NOT_READY 600

/* Handles are pointers, devices ints, device addresses 64 bits wide; results are ints. */
struct cuda_lib {
    void *handle;
    int device_count;
    int (*init)(unsigned flags);
    int (*device_get_count)(int *ret);
    int (*device_get)(int *ret, int ordinal);
    int (*primary_ctx_retain)(void **ret, int device);
    int (*primary_ctx_release)(int device);
    int (*ctx_push)(void *ctx);
    int (*ctx_pop)(void **ret);
    int (*priority_range)(int *ret_least, int *ret_greatest);
    int (*stream_create)(void **ret, unsigned flags, int priority);
    int (*stream_destroy)(void *stream);
    int (*stream_wait_event)(void *stream, void *event, unsigned flags);
    int (*event_create)(void **ret, unsigned flags);
    int (*event_destroy)(void *event);
    int (*event_record)(void *event, void *stream);
    int (*event_query)(void *event);
    int (*mem_alloc)(uint64_t *ret, size_t bytes);
    int (*mem_free)(uint64_t address);
    int (*mem_set)(uint64_t address, unsigned char value, size_t bytes);
    int (*error_string)(int result, const char **ret);
};

/* Opens the library (MUSTER_CUDA_LIBRARY, else libcuda.so.1), starts it and counts the devices.
 * 0, or -ENODEV with a sentence: no driver, no device, or a driver that does not work. */
int cuda_lib_open(struct cuda_lib *ret, struct muster_error *err);
/* Takes a zeroed one. The library itself stays loaded: its threads may still run. */
void cuda_lib_close(struct cuda_lib *c);

/* "" or what the driver says of a result. */
const char *cuda_lib_text(const struct cuda_lib *c, int result);
/* Sets a sentence of a call that failed; -EIO. */
int cuda_lib_error(const struct cuda_lib *c,
                   int result,
                   const char *what,
                   struct muster_error *err);

/* A row of a library's functions: the name, where its pointer goes in the struct, and whether one
 * can do without. */
struct lib_symbol {
    const char *name;
    size_t offset;
    bool is_optional;
};
/* Fills the pointers of `into`. On failure names the first function that is missing. */
const char *lib_symbols(void *handle, const struct lib_symbol *list, size_t count, void *into);

#endif
