/* One rank with a real communicator over NCCL on a GPU: do the operations give what they must, are
 * streams kept in order, and does communication run beside computation?
 *
 * nccl_gpu     run it under node-agent, so that the id goes through a store. Status 0, 1 or 77 (no
 * GPU). */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <muster/cuda.h>

#define BYTES ((size_t)256 << 20)
#define SIDE 4096 /* Of the matrices that are multiplied meanwhile. */
#define COPIES 40
#define PRODUCTS 12

#define CUDA(call)                                                                                 \
    do {                                                                                           \
        cudaError_t got_ = (call);                                                                 \
        if (got_ != cudaSuccess) {                                                                 \
            printf("failed %s: %s\n", #call, cudaGetErrorString(got_));                            \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
#define MUSTER(call)                                                                               \
    do {                                                                                           \
        struct muster_error err = {0};                                                             \
        if ((call) < 0) {                                                                          \
            printf("failed %s: %s\n", #call, err.text);                                            \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

struct gpu {
    muster *m;
    muster_comm *c;
    cudaStream_t compute;
    unsigned char *send, *recv, *host;
    float *a, *b, *product;
    cublasHandle_t blas;
    cublasStatus_t (*sgemm)(cublasHandle_t,
                            cublasOperation_t,
                            cublasOperation_t,
                            int,
                            int,
                            int,
                            const float *,
                            const float *,
                            int,
                            const float *,
                            int,
                            const float *,
                            float *,
                            int);
};

static double now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void find(void *library, const char *name, void *ret)
{
    void *found = dlsym(library, name);
    if (found == NULL) {
        printf("failed: cuBLAS has no %s\n", name);
        exit(1);
    }
    memcpy(ret, &found, sizeof found);
}

static void open_blas(struct gpu *g)
{
    char name[32];
    cublasStatus_t (*create)(cublasHandle_t *) = NULL;
    cublasStatus_t (*set_stream)(cublasHandle_t, cudaStream_t) = NULL;
    (void)snprintf(name, sizeof name, "libcublas.so.%d", CUBLAS_VER_MAJOR);
    void *library = dlopen(name, RTLD_NOW);
    if (library == NULL) {
        printf("failed: %s\n", dlerror());
        exit(1);
    }
    find(library, "cublasCreate_v2", &create);
    find(library, "cublasSetStream_v2", &set_stream);
    find(library, "cublasSgemm_v2", &g->sgemm);
    if (create(&g->blas) != CUBLAS_STATUS_SUCCESS ||
        set_stream(g->blas, g->compute) != CUBLAS_STATUS_SUCCESS) {
        printf("failed: cuBLAS does not start\n");
        exit(1);
    }
}

static void open_gpu(struct gpu *g)
{
    struct muster_comm_options o = MUSTER_COMM_OPTIONS_INIT;
    o.backend = "nccl";
    o.timeout_ns = INT64_C(60000000000);
    CUDA(cudaSetDevice(0));
    MUSTER(muster_open(NULL, &g->m, &err));
    MUSTER(muster_comm_open(g->m, &o, &g->c, &err));
    CUDA(cudaStreamCreateWithFlags(&g->compute, cudaStreamNonBlocking));
    CUDA(cudaMalloc((void **)&g->send, BYTES));
    CUDA(cudaMalloc((void **)&g->recv, BYTES));
    CUDA(cudaMallocHost((void **)&g->host, BYTES));
    CUDA(cudaMalloc((void **)&g->a, SIDE * SIDE * sizeof(float)));
    CUDA(cudaMalloc((void **)&g->b, SIDE * SIDE * sizeof(float)));
    CUDA(cudaMalloc((void **)&g->product, SIDE * SIDE * sizeof(float)));
    CUDA(cudaMemset(g->a, 0, SIDE * SIDE * sizeof(float)));
    CUDA(cudaMemset(g->b, 0, SIDE * SIDE * sizeof(float)));
    open_blas(g);
}

static void check_bytes(struct gpu *g, unsigned char value, const char *what)
{
    CUDA(cudaMemcpy(g->host, g->recv, BYTES, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < BYTES; i++)
        if (g->host[i] != value) {
            printf("failed: %s gave %d at byte %zu instead of %d\n", what, g->host[i], i, value);
            exit(1);
        }
}

/* Our stream writes, the communicator moves, our stream reads: in this order with no wait between.
 */
static void check_order(struct gpu *g)
{
    muster_ticket t = 0;
    for (int value = 1; value <= 20; value++) {
        CUDA(cudaMemsetAsync(g->send, value, BYTES, g->compute));
        MUSTER(muster_comm_wait_stream(g->c, g->compute, &err));
        MUSTER(muster_comm_all_gather(g->c, g->send, g->recv, BYTES, MUSTER_U8, &t, &err));
        MUSTER(muster_comm_stream_wait(g->c, t, g->compute, &err));
        CUDA(cudaMemsetAsync(g->send, 0xee, BYTES, g->compute)); /* Too early, it would be moved. */
    }
    CUDA(cudaStreamSynchronize(g->compute));
    check_bytes(g, 20, "all-gather between two writes");
    MUSTER(
        muster_comm_reduce_scatter(g->c, g->send, g->recv, BYTES, MUSTER_U8, MUSTER_MAX, &t, &err));
    MUSTER(muster_comm_wait(g->c, t, -1, &err));
    check_bytes(g, 0xee, "reduce-scatter");
    MUSTER(muster_comm_all_reduce(g->c, g->recv, BYTES, MUSTER_U8, MUSTER_MIN, &t, &err));
    MUSTER(muster_comm_broadcast(g->c, g->recv, BYTES, MUSTER_U8, 0, &t, &err));
    MUSTER(muster_comm_wait(g->c, t, -1, &err));
    check_bytes(g, 0xee, "all-reduce and broadcast");
    MUSTER(muster_comm_barrier(g->c, -1, &err));
    printf("operations and order: right\n");
}

/* Seconds for `copies` operations and `products` matrix products, begun together. */
static double measure(struct gpu *g, int copies, int products)
{
    const float one = 1;
    const float zero = 0;
    muster_ticket t = 0;
    double from = now();
    for (int i = 0; i < copies; i++)
        MUSTER(muster_comm_all_gather(g->c, g->send, g->recv, BYTES, MUSTER_U8, &t, &err));
    for (int i = 0; i < products; i++)
        if (g->sgemm(g->blas, CUBLAS_OP_N, CUBLAS_OP_N, SIDE, SIDE, SIDE, &one, g->a, SIDE, g->b,
                     SIDE, &zero, g->product, SIDE) != CUBLAS_STATUS_SUCCESS) {
            printf("failed: a matrix product\n");
            exit(1);
        }
    if (copies > 0)
        MUSTER(muster_comm_wait(g->c, t, -1, &err));
    CUDA(cudaStreamSynchronize(g->compute));
    return now() - from;
}

int main(void)
{
    static struct gpu g;
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("skipped: no GPU\n");
        return 77;
    }
    open_gpu(&g);
    check_order(&g);
    (void)measure(&g, 2, 2); /* What is loaded at the first call. */
    double moves = measure(&g, COPIES, 0);
    double products = measure(&g, 0, PRODUCTS);
    double both = measure(&g, COPIES, PRODUCTS);
    double shorter = moves < products ? moves : products;
    printf("moves %.1f ms, products %.1f ms, both %.1f ms: %.0f%% of the shorter one hidden\n",
           moves * 1e3, products * 1e3, both * 1e3, 100 * (moves + products - both) / shorter);
    muster_comm_close(g.c);
    muster_close(g.m);
    return 0;
}
