/* A stand-in for libnccl.so.2 and libcuda.so.1 at once, loaded by name in their place. It moves no
 * data between ranks: it writes down who called what in which order, and does what the test tells
 * it:
 *
 *   STANDIN_LOG          each call is a line here
 *   STANDIN_VERSION      of NCCL (22809)
 *   STANDIN_DEVICES      how many there are (1)
 *   STANDIN_FAIL         "ncclAllReduce=3": that function returns that result
 *   STANDIN_HANG         "ncclCommAbort": that function never returns
 *   STANDIN_INIT_STEPS   how often a start is "in progress" (2); -1: always
 *   STANDIN_EVENT_STEPS  how often an event is "not ready" (2); -1: always
 *   STANDIN_ASYNC        result that ncclCommGetAsyncError() reports once an operation was issued
 */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
#define SUCCESS 0
#define IN_PROGRESS 7
#define NOT_READY 600

struct id {
    char bytes[128];
};
struct config { /* As 2.19 begins. */
    size_t size;
    unsigned magic;
    unsigned version;
    int blocking;
};
struct comm {
    int rank;
    int size;
    atomic_int steps; /* "In progress" answers left. */
    atomic_int issued;
    atomic_int is_finalizing;
};
struct event {
    atomic_int steps;
};

static long setting(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text == NULL || text[0] == '\0' ? otherwise : strtol(text, NULL, 10);
}

/* Writes the call down; hangs if told to. Returns the result the test wants. */
static int called(const char *name, const char *more, long a, long b)
{
    char line[160];
    const char *path = getenv("STANDIN_LOG");
    int n = more == NULL ? snprintf(line, sizeof line, "%s\n", name)
                         : snprintf(line, sizeof line, more, name, a, b);
    int fd = path == NULL ? -1 : open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (fd >= 0) {
        if (write(fd, line, (size_t)n) != n)
            abort();
        (void)close(fd);
    }
    const char *hang = getenv("STANDIN_HANG");
    while (hang != NULL && strcmp(hang, name) == 0)
        (void)pause();
    const char *fail = getenv("STANDIN_FAIL");
    size_t length = strlen(name);
    if (fail != NULL && strncmp(fail, name, length) == 0 && fail[length] == '=')
        return (int)strtol(fail + length + 1, NULL, 10);
    return SUCCESS;
}

/* --- NCCL --- */

API int ncclGetVersion(int *ret);
API int ncclGetUniqueId(struct id *ret);
API int ncclCommInitRankConfig(void **ret, int size, struct id id, int rank, struct config *c);
API int ncclCommInitRankScalable(
    void **ret, int size, int rank, int id_count, struct id *ids, struct config *c);
API int ncclCommGetAsyncError(void *comm, int *ret);
API int ncclCommFinalize(void *comm);
API int ncclCommDestroy(void *comm);
API int ncclCommAbort(void *comm);
API const char *ncclGetErrorString(int result);
API const char *ncclGetLastError(void *comm);
API int ncclAllReduce(
    const void *send, void *recv, size_t count, int type, int op, void *comm, void *stream);
API int ncclBroadcast(
    const void *send, void *recv, size_t count, int type, int root, void *comm, void *stream);
API int
ncclAllGather(const void *send, void *recv, size_t count, int type, void *comm, void *stream);
API int ncclReduceScatter(
    const void *send, void *recv, size_t count, int type, int op, void *comm, void *stream);

int ncclGetVersion(int *ret)
{
    *ret = (int)setting("STANDIN_VERSION", 22809);
    return called("ncclGetVersion", NULL, 0, 0);
}

int ncclGetUniqueId(struct id *ret)
{
    static atomic_int made;
    memset(ret, 0, sizeof *ret);
    (void)snprintf(ret->bytes, sizeof ret->bytes, "id %d of process %d", ++made, (int)getpid());
    return called("ncclGetUniqueId", NULL, 0, 0);
}

static int begin(void **ret, int size, int rank, struct config *c, int result)
{
    if (result != SUCCESS)
        return result;
    if (c->magic != 0xcafebeef || c->size < sizeof *c || c->blocking != 0 || rank >= size)
        return 4;
    struct comm *comm = calloc(1, sizeof *comm);
    if (comm == NULL)
        return 2;
    comm->rank = rank;
    comm->size = size;
    comm->steps = (int)setting("STANDIN_INIT_STEPS", 2);
    *ret = comm;
    return IN_PROGRESS;
}

int ncclCommInitRankConfig(void **ret, int size, struct id id, int rank, struct config *c)
{
    return begin(ret, size, rank, c,
                 called("ncclCommInitRankConfig", "%s size=%ld rank=%ld\n", size, rank));
}

int ncclCommInitRankScalable(
    void **ret, int size, int rank, int id_count, struct id *ids, struct config *c)
{
    for (int i = 0; i < id_count; i++) /* Each from a process of its own. */
        for (int j = 0; j < i; j++)
            if (memcmp(&ids[i], &ids[j], sizeof ids[i]) == 0)
                return 4;
    return begin(ret, size, rank, c,
                 called("ncclCommInitRankScalable", "%s rank=%ld ids=%ld\n", rank, id_count));
}

int ncclCommGetAsyncError(void *comm, int *ret)
{
    struct comm *c = comm;
    int bad = (int)setting("STANDIN_ASYNC", 0);
    *ret = SUCCESS;
    if (c->steps != 0) {
        if (c->steps > 0)
            c->steps--;
        *ret = IN_PROGRESS;
    } else if (bad != 0 && c->issued > 0) {
        *ret = bad;
    }
    return called("ncclCommGetAsyncError", NULL, 0, 0);
}

int ncclCommFinalize(void *comm)
{
    struct comm *c = comm;
    c->steps = 1;
    int r = called("ncclCommFinalize", NULL, 0, 0);
    return r == SUCCESS ? IN_PROGRESS : r;
}

int ncclCommDestroy(void *comm)
{
    int r = called("ncclCommDestroy", NULL, 0, 0);
    free(comm);
    return r;
}

int ncclCommAbort(void *comm)
{
    int r = called("ncclCommAbort", NULL, 0, 0);
    free(comm);
    return r;
}

const char *ncclGetErrorString(int result)
{
    switch (result) {
    case 2:
        return "unhandled system error";
    case 3:
        return "internal error";
    case 4:
        return "invalid argument";
    case 6:
        return "remote process exited or there was a network error";
    default:
        return "some other error";
    }
}

const char *ncclGetLastError(void *comm)
{
    return "the stand-in's own words";
}

static size_t bytes_of(int type, size_t count)
{
    size_t size = type <= 1 ? 1 : type == 2 || type == 3 || type == 7 ? 4 : 8;
    return size * count;
}

/* What a world of one sees: its own part where it belongs. */
static int copy(void *comm, const char *from, char *to, size_t bytes, int result)
{
    struct comm *c = comm;
    if (result != SUCCESS)
        return result;
    c->issued++;
    if (to != from && bytes > 0)
        memmove(to, from, bytes);
    return SUCCESS;
}

int ncclAllReduce(
    const void *send, void *recv, size_t count, int type, int op, void *comm, void *stream)
{
    return copy(comm, send, recv, bytes_of(type, count),
                called("ncclAllReduce", "%s count=%ld type=%ld\n", (long)count, type));
}

int ncclBroadcast(
    const void *send, void *recv, size_t count, int type, int root, void *comm, void *stream)
{
    return copy(comm, send, recv, bytes_of(type, count),
                called("ncclBroadcast", "%s count=%ld root=%ld\n", (long)count, root));
}

int ncclAllGather(const void *send, void *recv, size_t count, int type, void *comm, void *stream)
{
    struct comm *c = comm;
    size_t bytes = bytes_of(type, count);
    return copy(comm, send, (char *)recv + (size_t)c->rank * bytes, bytes,
                called("ncclAllGather", "%s count=%ld type=%ld\n", (long)count, type));
}

int ncclReduceScatter(
    const void *send, void *recv, size_t count, int type, int op, void *comm, void *stream)
{
    struct comm *c = comm;
    size_t bytes = bytes_of(type, count);
    return copy(comm, (const char *)send + (size_t)c->rank * bytes, recv, bytes,
                called("ncclReduceScatter", "%s count=%ld type=%ld\n", (long)count, type));
}

/* --- CUDA: device memory is the CPU's --- */

API int cuInit(unsigned flags);
API int cuDeviceGetCount(int *ret);
API int cuDeviceGet(int *ret, int ordinal);
API int cuDevicePrimaryCtxRetain(void **ret, int device);
API int cuDevicePrimaryCtxRelease_v2(int device);
API int cuCtxPushCurrent_v2(void *ctx);
API int cuCtxPopCurrent_v2(void **ret);
API int cuCtxGetStreamPriorityRange(int *least, int *greatest);
API int cuStreamCreateWithPriority(void **ret, unsigned flags, int priority);
API int cuStreamDestroy_v2(void *stream);
API int cuStreamWaitEvent(void *stream, void *event, unsigned flags);
API int cuEventCreate(void **ret, unsigned flags);
API int cuEventDestroy_v2(void *event);
API int cuEventRecord(void *event, void *stream);
API int cuEventQuery(void *event);
API int cuMemAlloc_v2(uint64_t *ret, size_t bytes);
API int cuMemFree_v2(uint64_t address);
API int cuMemsetD8_v2(uint64_t address, unsigned char value, size_t bytes);
API int cuGetErrorString(int result, const char **ret);

/* Contexts that are current: calls without one are mistakes. With static TLS, as LeakSanitizer
 * trips over the other kind in a library that was opened late. */
static _Thread_local int pushed __attribute__((tls_model("initial-exec")));

int cuInit(unsigned flags)
{
    return called("cuInit", NULL, 0, 0);
}

int cuDeviceGetCount(int *ret)
{
    *ret = (int)setting("STANDIN_DEVICES", 1);
    return called("cuDeviceGetCount", NULL, 0, 0);
}

int cuDeviceGet(int *ret, int ordinal)
{
    *ret = ordinal;
    return called("cuDeviceGet", "%s %ld\n", ordinal, 0);
}

int cuDevicePrimaryCtxRetain(void **ret, int device)
{
    static int context;
    *ret = &context;
    return called("cuDevicePrimaryCtxRetain", NULL, 0, 0);
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
    return called("cuDevicePrimaryCtxRelease", NULL, 0, 0);
}

int cuCtxPushCurrent_v2(void *ctx)
{
    pushed++;
    return SUCCESS;
}

int cuCtxPopCurrent_v2(void **ret)
{
    *ret = NULL;
    return pushed-- > 0 ? SUCCESS : 201;
}

int cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return pushed > 0 ? SUCCESS : 201;
}

int cuStreamCreateWithPriority(void **ret, unsigned flags, int priority)
{
    *ret = malloc(1);
    return pushed > 0 && *ret != NULL ? called("cuStreamCreate", "%s priority=%ld\n", priority, 0)
                                      : 201;
}

int cuStreamDestroy_v2(void *stream)
{
    free(stream);
    return called("cuStreamDestroy", NULL, 0, 0);
}

int cuStreamWaitEvent(void *stream, void *event, unsigned flags)
{
    return pushed > 0 && event != NULL ? called("cuStreamWaitEvent", NULL, 0, 0) : 201;
}

int cuEventCreate(void **ret, unsigned flags)
{
    *ret = calloc(1, sizeof(struct event));
    return pushed > 0 && *ret != NULL ? SUCCESS : 201;
}

int cuEventDestroy_v2(void *event)
{
    free(event);
    return SUCCESS;
}

int cuEventRecord(void *event, void *stream)
{
    struct event *e = event;
    e->steps = (int)setting("STANDIN_EVENT_STEPS", 2);
    return pushed > 0 ? called("cuEventRecord", NULL, 0, 0) : 201;
}

int cuEventQuery(void *event)
{
    struct event *e = event;
    if (pushed <= 0)
        return 201;
    if (e->steps == 0)
        return called("cuEventQuery", NULL, 0, 0);
    if (e->steps > 0)
        e->steps--;
    return NOT_READY;
}

int cuMemAlloc_v2(uint64_t *ret, size_t bytes)
{
    *ret = (uint64_t)(uintptr_t)malloc(bytes);
    return pushed > 0 && *ret != 0 ? SUCCESS : 201;
}

int cuMemFree_v2(uint64_t address)
{
    free((void *)(uintptr_t)address);
    return SUCCESS;
}

int cuMemsetD8_v2(uint64_t address, unsigned char value, size_t bytes)
{
    memset((void *)(uintptr_t)address, value, bytes);
    return SUCCESS;
}

int cuGetErrorString(int result, const char **ret)
{
    *ret = "the stand-in's CUDA error";
    return SUCCESS;
}
