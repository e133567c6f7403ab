/* The network on a GPU: cuBLAS for matrix products, and a kernel for each thing between them.
 *
 * Activations lie with channels innermost, so that a convolution is one matrix product: im2col puts
 * the 3x3 surroundings of each pixel into a row (channel, tap), which is the order of PyTorch's weights.
 *
 *     columns1 (N*64, 9)     x conv1.weight^T (9, C1)     -> a1   (N*64, C1)
 *     columns2 (N*64, 9*C1)  x conv2.weight^T (9*C1, C2)  -> y2   (N*64, C2) -> pool -> flat (N, C2*16)
 *     flat     (N, C2*16)    x fc1.weight^T               -> h    (N, H)
 *     h        (N, H)        x fc2.weight^T               -> z    (N, 10)
 *
 * The result is the same bits in every run: no kernel adds with atomics, each sum has one order, and
 * cuBLAS keeps its order on one stream. Compiled with --fmad=false, so that AdamW rounds as on a CPU.
 *
 * Everything is enqueued on one compute stream; batches come over a copy stream beside it. */
#include "trainer-example/cuda.h"

#include <dlfcn.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <muster/cuda.h>
#include <muster/ddp.h>

#include "trainer-example/failure.h"

namespace
{

constexpr int THREADS = 256;
constexpr int SUM_COLUMNS = 32; /* column_sums: a block sums 32 columns, */
constexpr int SUM_LANES = 8;    /* each of 8 rows of threads every eighth row. */
constexpr size_t ALIGN = 256;
constexpr int SLOTS = 2; /* Batches on the device: one in use, one coming. */

} // namespace

struct slot {
    void *images;         /* (batch_max, 8, 8) */
    int32_t *labels;      /* (batch_max) */
    const void *expected; /* Host images that are here or on their way; NULL: free. */
    cudaEvent_t arrived;
    cudaEvent_t used; /* forward() has read it. */
};

/* cuBLAS, opened when a network is: it is large, and a machine without it trains on the CPU. */
struct blas {
    void *library;
    cublasHandle_t handle;
    decltype(&cublasCreate_v2) create;
    decltype(&cublasDestroy_v2) destroy;
    decltype(&cublasSetStream_v2) set_stream;
    decltype(&cublasSetAtomicsMode) set_atomics;
    decltype(&cublasSetMathMode) set_math;
    decltype(&cublasSgemm_v2) sgemm;
    decltype(&cublasDgemm_v2) dgemm;
};

struct result {
    double loss_sum;
    uint32_t correct;
};

/* Opaque outside; model.h wants the name at file scope. */
struct net {
    struct net_options options;
    struct shape shape[PARAM_COUNT];
    size_t real_bytes;
    int c1, c2, hidden, flat_size;
    cudaStream_t compute, copy;
    struct blas blas;
    muster_comm *comm; /* Of memory(). */
    struct muster_ddp_memory ddp_memory;
    struct slot slot[SLOTS];

    void *part[NET_PART_COUNT][PARAM_COUNT]; /* Into `memory`. */

    /* Of the last forward(), N = count. */
    uint32_t count;
    void *columns1; /* (N*64, 9) */
    void *a1;       /* (N*64, C1): conv1 after ReLU */
    void *columns2; /* (N*64, 9*C1) */
    void *y2;       /* (N*64, C2): conv2 before bias; then its gradient */
    void *flat;     /* (N, C2, 16) */
    uint8_t *winner;
    void *h;            /* (N, H): fc1 after ReLU */
    void *z;            /* (N, 10): logits, then their gradient */
    double *item_loss;  /* (N) */
    uint8_t *item_right; /* (N) */
    struct result *sums;

    /* Scratch of backward(). */
    void *dh;       /* as h */
    void *dflat;    /* as flat */
    void *dcolumns; /* as columns2 */
    void *da1;      /* as a1 */

    void *memory, *scratch;     /* One allocation of each kind. */
    struct result *host_result; /* Pinned. */
};

namespace
{

/* --- Checks --- */

int cuda_failure(struct muster_error *err, cudaError_t got, const char *call, int line)
{
    return failure(err, got == cudaErrorMemoryAllocation ? -ENOMEM : -EIO, "cuda.cu:%d: %s: %s", line, call,
                   cudaGetErrorString(got));
}

/* Ends the function with the call's failure. */
#define CUDA_TRY(err, call)                                                                        \
    do {                                                                                           \
        cudaError_t got_ = (call);                                                                 \
        if (got_ != cudaSuccess)                                                                   \
            return cuda_failure(err, got_, #call, __LINE__);                                       \
    } while (0)
#define BLAS_TRY(err, call)                                                                        \
    do {                                                                                           \
        cublasStatus_t got_ = (call);                                                              \
        if (got_ != CUBLAS_STATUS_SUCCESS)                                                         \
            return failure(err, -EIO, "cuda.cu:%d: %s: cuBLAS status %d", __LINE__, #call, got_);  \
    } while (0)
#define TRY(call)                                                                                  \
    do {                                                                                           \
        int r_ = (call);                                                                           \
        if (r_ != 0)                                                                               \
            return r_;                                                                             \
    } while (0)
/* A kernel over `n` things, one thread each. */
#define LAUNCH(err, n, kernel, ...)                                                                \
    do {                                                                                           \
        size_t n_ = (n);                                                                           \
        kernel<<<(unsigned)((n_ + THREADS - 1) / THREADS), THREADS, 0, net->compute>>>(__VA_ARGS__); \
        CUDA_TRY(err, cudaGetLastError());                                                         \
    } while (0)

__device__ size_t thread_index()
{
    return (size_t)blockIdx.x * blockDim.x + threadIdx.x;
}

/* --- Kernels: forward --- */

/* Pixel p of an item and a tap of 3x3: which pixel that is, or -1 outside. */
__device__ int neighbour(int p, int tap)
{
    int y = p / IMAGE_SIDE + tap / KERNEL_SIDE - 1;
    int x = p % IMAGE_SIDE + tap % KERNEL_SIDE - 1;
    bool inside = y >= 0 && y < IMAGE_SIDE && x >= 0 && x < IMAGE_SIDE;
    return inside ? y * IMAGE_SIDE + x : -1;
}

/* (N*64, C) -> (N*64, C*9) */
template <typename real>
__global__ void im2col(const real *from, real *to, size_t total, int channels)
{
    size_t i = thread_index();
    if (i >= total)
        return;
    int tap = (int)(i % KERNEL_TAPS);
    int c = (int)(i / KERNEL_TAPS % channels);
    size_t pixel = i / KERNEL_TAPS / channels;
    int q = neighbour((int)(pixel % IMAGE_PIXELS), tap);
    size_t item = pixel / IMAGE_PIXELS;
    to[i] = q < 0 ? (real)0 : from[(item * IMAGE_PIXELS + q) * channels + c];
}

/* (rows, columns), in place. */
template <typename real>
__global__ void bias_relu(real *a, const real *bias, size_t total, int columns)
{
    size_t i = thread_index();
    if (i >= total)
        return;
    real v = a[i] + bias[i % columns];
    a[i] = v > 0 ? v : 0;
}

/* conv2 before bias (N, 8, 8, C2) -> bias, ReLU, largest of 2x2 -> flat (N, C2, 4, 4), and which of
 * the four it was: the first of equal ones. */
template <typename real>
__global__ void
bias_relu_pool(const real *y2, const real *bias, real *flat, uint8_t *winner, size_t total, int channels)
{
    size_t i = thread_index();
    if (i >= total)
        return;
    int w = (int)(i % POOL_PIXELS);
    int c = (int)(i / POOL_PIXELS % channels);
    size_t item = i / POOL_PIXELS / channels;
    int top_left = w / POOL_SIDE * 2 * IMAGE_SIDE + w % POOL_SIDE * 2;
    real best = 0;
    int which = 0;
    for (int k = 0; k < 4; k++) {
        int p = top_left + k / 2 * IMAGE_SIDE + k % 2;
        real v = y2[(item * IMAGE_PIXELS + p) * channels + c] + bias[c];
        v = v > 0 ? v : 0;
        if (k == 0 || v > best) {
            best = v;
            which = k;
        }
    }
    flat[i] = best;
    winner[i] = (uint8_t)which;
}

/* Logits without bias (N, 10) -> loss and rightness of each item, and in place the gradient of the
 * mean loss. */
template <typename real>
__global__ void cross_entropy(
    real *z, const real *bias, const int32_t *labels, double *item_loss, uint8_t *item_right, int count)
{
    int i = (int)thread_index();
    if (i >= count)
        return;
    real *row = z + (size_t)i * CLASSES;
    double logit[CLASSES];
    int top = 0;
    for (int c = 0; c < CLASSES; c++) {
        logit[c] = (double)(real)(row[c] + bias[c]);
        if (logit[c] > logit[top])
            top = c;
    }
    double power[CLASSES];
    double sum = 0;
    for (int c = 0; c < CLASSES; c++)
        sum += power[c] = exp(logit[c] - logit[top]);
    int label = labels[i];
    item_loss[i] = log(sum) - (logit[label] - logit[top]);
    item_right[i] = top == label;
    for (int c = 0; c < CLASSES; c++)
        row[c] = (real)((power[c] / sum - (c == label)) / count);
}

/* One thread: a batch is small, and the order is the CPU's. */
__global__ void sum_items(const double *item_loss, const uint8_t *item_right, int count, struct result *ret)
{
    struct result r = {0, 0};
    for (int i = 0; i < count; i++) {
        r.loss_sum += item_loss[i];
        r.correct += item_right[i];
    }
    *ret = r;
}

/* --- Kernels: backward --- */

/* (rows, columns) -> (columns): always in the same order, whatever the GPU does first. */
template <typename real>
__global__ void column_sums(const real *a, real *ret, int rows, int columns)
{
    __shared__ real part[SUM_LANES][SUM_COLUMNS];
    int c = (int)(blockIdx.x * SUM_COLUMNS + threadIdx.x);
    real sum = 0;
    for (int r = (int)threadIdx.y; c < columns && r < rows; r += SUM_LANES)
        sum += a[(size_t)r * columns + c];
    part[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || c >= columns)
        return;
    for (int lane = 1; lane < SUM_LANES; lane++)
        sum += part[lane][threadIdx.x];
    ret[c] = sum;
}

/* The gradient stops where ReLU gave 0. */
template <typename real>
__global__ void relu_back(real *gradient, const real *after, size_t total)
{
    size_t i = thread_index();
    if (i < total && !(after[i] > 0))
        gradient[i] = 0;
}

/* dflat (N, C2, 4, 4) -> gradient before ReLU (N, 8, 8, C2): to the winner of each window. */
template <typename real>
__global__ void pool_back(
    const real *dflat, const real *flat, const uint8_t *winner, real *ret, size_t total, int channels)
{
    size_t i = thread_index();
    if (i >= total)
        return;
    int c = (int)(i % channels);
    int p = (int)(i / channels % IMAGE_PIXELS);
    size_t item = i / channels / IMAGE_PIXELS;
    int y = p / IMAGE_SIDE;
    int x = p % IMAGE_SIDE;
    size_t w = (item * channels + c) * POOL_PIXELS + (size_t)(y / 2 * POOL_SIDE + x / 2);
    bool won = winner[w] == y % 2 * 2 + x % 2 && flat[w] > 0;
    ret[i] = won ? dflat[w] : (real)0;
}

/* dcolumns (N*64, C*9) -> (N*64, C): each number gathers the nine places im2col copied it to. */
template <typename real>
__global__ void col2im(const real *dcolumns, const real *after, real *ret, size_t total, int channels)
{
    size_t i = thread_index();
    if (i >= total)
        return;
    int c = (int)(i % channels);
    size_t pixel = i / channels;
    size_t item = pixel / IMAGE_PIXELS;
    real sum = 0;
    for (int tap = 0; tap < KERNEL_TAPS; tap++) {
        /* Pixel q saw this one at `tap`, if q lies opposite. */
        int q = neighbour((int)(pixel % IMAGE_PIXELS), KERNEL_TAPS - 1 - tap);
        if (q >= 0)
            sum += dcolumns[((item * IMAGE_PIXELS + q) * channels + c) * KERNEL_TAPS + tap];
    }
    ret[i] = after[i] > 0 ? sum : (real)0;
}

/* --- Kernels: update --- */

__device__ float root(float x)
{
    return sqrtf(x);
}

__device__ double root(double x)
{
    return sqrt(x);
}

template <typename real> struct factors {
    real keep, toward, square_keep, square_new, rate, correction, eps;
};

/* As adamw.c, operation by operation. */
template <typename real>
__global__ void
adamw_step(real *value, real *mean, real *square, const real *gradient, size_t count, struct factors<real> f)
{
    size_t k = thread_index();
    if (k >= count)
        return;
    const real g = gradient[k];
    const real m = mean[k] + (g - mean[k]) * f.toward;
    const real v = square[k] * f.square_keep + g * g * f.square_new;
    mean[k] = m;
    square[k] = v;
    value[k] = value[k] * f.keep - f.rate * m / (root(v) / f.correction + f.eps);
}

template <typename real> __global__ void divide_by(real *p, size_t count, real by)
{
    size_t k = thread_index();
    if (k < count)
        p[k] /= by;
}

/* --- Matrix products, row-major --- */

cublasStatus_t gemm(const struct blas *l, cublasOperation_t a, cublasOperation_t b, int m, int n, int k,
                    const float *A, int lda, const float *B, int ldb, float *C)
{
    const float one = 1;
    const float zero = 0;
    return l->sgemm(l->handle, a, b, m, n, k, &one, A, lda, B, ldb, &zero, C, m);
}

cublasStatus_t gemm(const struct blas *l, cublasOperation_t a, cublasOperation_t b, int m, int n, int k,
                    const double *A, int lda, const double *B, int ldb, double *C)
{
    const double one = 1;
    const double zero = 0;
    return l->dgemm(l->handle, a, b, m, n, k, &one, A, lda, B, ldb, &zero, C, m);
}

enum turned { AS_IS, TURNED };

/* C (m, n) = A (m, k) x B (k, n); A lies as (k, m), or B as (n, k), where it is TURNED. cuBLAS counts
 * by columns: to it all three are transposed, so that it computes B x A. */
template <typename real>
int product(struct net *net, real *C, const void *A, enum turned a, const void *B, enum turned b,
            int m, int n, int k, struct muster_error *err)
{
    BLAS_TRY(err, gemm(&net->blas, b == TURNED ? CUBLAS_OP_T : CUBLAS_OP_N,
                       a == TURNED ? CUBLAS_OP_T : CUBLAS_OP_N, n, m, k,
                       static_cast<const real *>(B), b == TURNED ? k : n,
                       static_cast<const real *>(A), a == TURNED ? m : k, C));
    return 0;
}

/* --- Memory --- */

/* Called twice: with at == NULL it counts, with the block it gives out. */
template <typename T> void carve(char *at, size_t *used, size_t bytes, T **ret)
{
    *ret = at == nullptr ? nullptr : reinterpret_cast<T *>(at + *used);
    *used += (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

template <> void carve<void>(char *at, size_t *used, size_t bytes, void **ret)
{
    *ret = at == nullptr ? nullptr : at + *used;
    *used += (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

size_t lay_out_parameters(struct net *n, char *at)
{
    size_t used = 0;
    for (int p = 0; p < NET_PART_COUNT; p++)
        for (int i = 0; i < PARAM_COUNT; i++)
            carve(at, &used, n->shape[i].count * n->real_bytes, &n->part[p][i]);
    return used;
}

size_t lay_out_scratch(struct net *n, char *at)
{
    const size_t b = n->options.batch_max;
    const size_t r = n->real_bytes;
    const size_t pixels = b * IMAGE_PIXELS;
    size_t used = 0;
    for (struct slot &s : n->slot) {
        carve(at, &used, pixels * r, &s.images);
        carve(at, &used, b * sizeof(int32_t), &s.labels);
    }
    carve(at, &used, pixels * KERNEL_TAPS * r, &n->columns1);
    carve(at, &used, pixels * n->c1 * r, &n->a1);
    carve(at, &used, pixels * KERNEL_TAPS * n->c1 * r, &n->columns2);
    carve(at, &used, pixels * n->c2 * r, &n->y2);
    carve(at, &used, b * n->flat_size * r, &n->flat);
    carve(at, &used, b * n->flat_size, &n->winner);
    carve(at, &used, b * n->hidden * r, &n->h);
    carve(at, &used, b * CLASSES * r, &n->z);
    carve(at, &used, b * sizeof(double), &n->item_loss);
    carve(at, &used, b, &n->item_right);
    carve(at, &used, sizeof *n->sums, &n->sums);
    carve(at, &used, b * n->hidden * r, &n->dh);
    carve(at, &used, b * n->flat_size * r, &n->dflat);
    carve(at, &used, pixels * KERNEL_TAPS * n->c1 * r, &n->dcolumns);
    carve(at, &used, pixels * n->c1 * r, &n->da1);
    return used;
}

void *cuda_host_alloc(size_t bytes)
{
    void *p = nullptr;
    return cudaHostAlloc(&p, bytes == 0 ? 1 : bytes, cudaHostAllocDefault) == cudaSuccess ? p : nullptr;
}

void cuda_host_free(void *p)
{
    if (p != nullptr)
        (void)cudaFreeHost(p); /* Nothing is left to do about it. */
}

int open_memory(struct net *n, struct muster_error *err)
{
    size_t bytes = lay_out_parameters(n, nullptr);
    CUDA_TRY(err, cudaMalloc(&n->memory, bytes));
    CUDA_TRY(err, cudaMemset(n->memory, 0, bytes));
    (void)lay_out_parameters(n, static_cast<char *>(n->memory));
    CUDA_TRY(err, cudaMalloc(&n->scratch, lay_out_scratch(n, nullptr)));
    (void)lay_out_scratch(n, static_cast<char *>(n->scratch));
    n->host_result = static_cast<struct result *>(cuda_host_alloc(sizeof *n->host_result));
    if (n->host_result == nullptr)
        return failure(err, -ENOMEM, "no pinned memory for a result");
    return 0;
}

int open_device(struct net *n, struct muster_error *err)
{
    int devices = 0;
    CUDA_TRY(err, cudaGetDeviceCount(&devices));
    if (n->options.device < 0 || n->options.device >= devices)
        return failure(err, -ENODEV,
                       "there is no GPU %d: this machine shows %d; start one worker a GPU", n->options.device,
                       devices);
    CUDA_TRY(err, cudaSetDevice(n->options.device));
    CUDA_TRY(err, cudaStreamCreateWithFlags(&n->compute, cudaStreamNonBlocking));
    CUDA_TRY(err, cudaStreamCreateWithFlags(&n->copy, cudaStreamNonBlocking));
    for (struct slot &s : n->slot) {
        CUDA_TRY(err, cudaEventCreateWithFlags(&s.arrived, cudaEventDisableTiming));
        CUDA_TRY(err, cudaEventCreateWithFlags(&s.used, cudaEventDisableTiming));
    }
    return 0;
}

template <typename F> bool find_function(void *library, const char *name, F *ret)
{
    void *found = dlsym(library, name);
    static_assert(sizeof found == sizeof *ret, "POSIX: functions' addresses are pointers");
    std::memcpy(ret, &found, sizeof found);
    return found != nullptr;
}

int open_blas(struct net *n, struct muster_error *err)
{
    struct blas *b = &n->blas;
    char name[32];
    (void)std::snprintf(name, sizeof name, "libcublas.so.%d", CUBLAS_VER_MAJOR); /* Fits. */
    b->library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (b->library == nullptr)
        return failure(err, -ENODEV, "cuBLAS cannot be opened (%s): install it, or train on the CPU", dlerror());
    if (!find_function(b->library, "cublasCreate_v2", &b->create) ||
        !find_function(b->library, "cublasDestroy_v2", &b->destroy) ||
        !find_function(b->library, "cublasSetStream_v2", &b->set_stream) ||
        !find_function(b->library, "cublasSetAtomicsMode", &b->set_atomics) ||
        !find_function(b->library, "cublasSetMathMode", &b->set_math) ||
        !find_function(b->library, "cublasSgemm_v2", &b->sgemm) ||
        !find_function(b->library, "cublasDgemm_v2", &b->dgemm))
        return failure(err, -ENODEV, "%s lacks functions of cuBLAS: install it anew", name);
    BLAS_TRY(err, b->create(&b->handle));
    BLAS_TRY(err, b->set_stream(b->handle, n->compute));
    BLAS_TRY(err, b->set_atomics(b->handle, CUBLAS_ATOMICS_NOT_ALLOWED));
    /* Full float32: no TF32, whatever the environment says. */
    BLAS_TRY(err, b->set_math(b->handle, CUBLAS_PEDANTIC_MATH));
    return 0;
}

void cuda_close(struct net *n)
{
    if (n == nullptr)
        return;
    /* On the way out a failure changes nothing any more. */
    if (n->compute != nullptr)
        (void)cudaStreamSynchronize(n->compute);
    if (n->blas.handle != nullptr)
        (void)n->blas.destroy(n->blas.handle);
    for (struct slot &s : n->slot) {
        if (s.arrived != nullptr)
            (void)cudaEventDestroy(s.arrived);
        if (s.used != nullptr)
            (void)cudaEventDestroy(s.used);
    }
    if (n->copy != nullptr)
        (void)cudaStreamDestroy(n->copy);
    if (n->compute != nullptr)
        (void)cudaStreamDestroy(n->compute);
    (void)cudaFree(n->scratch);
    (void)cudaFree(n->memory);
    cuda_host_free(n->host_result);
    std::free(n);
}

int cuda_open(const struct net_options *o, struct net **ret, struct muster_error *err)
{
    if (o->width == 0 || o->width > WIDTH_MAX || o->batch_max == 0)
        return failure(err, -EINVAL, "a width is 1 to %d, and a batch has at least one item", WIDTH_MAX);
    if (o->dtype != MUSTER_F32 && o->dtype != MUSTER_F64)
        return failure(err, -EINVAL, "the network computes in float32 or float64");
    struct net *n = static_cast<struct net *>(std::calloc(1, sizeof *n));
    if (n == nullptr)
        return failure(err, -ENOMEM, "no memory for a network");
    n->options = *o;
    n->real_bytes = muster_dtype_bytes(o->dtype);
    n->c1 = (int)(CONV1_CHANNELS * o->width);
    n->c2 = (int)(CONV2_CHANNELS * o->width);
    n->hidden = (int)(HIDDEN * o->width);
    n->flat_size = n->c2 * POOL_PIXELS;
    model_shapes(o->width, n->shape);
    int r = open_device(n, err);
    if (r == 0)
        r = open_blas(n, err);
    if (r == 0)
        r = open_memory(n, err);
    if (r < 0) {
        cuda_close(n);
        return r;
    }
    *ret = n;
    return 0;
}

void *cuda_part(struct net *n, enum net_part p, size_t i)
{
    return n->part[p][i];
}

int cuda_get(struct net *n, enum net_part p, size_t i, void *host, struct muster_error *err)
{
    size_t bytes = n->shape[i].count * n->real_bytes;
    CUDA_TRY(err, cudaMemcpyAsync(host, n->part[p][i], bytes, cudaMemcpyDeviceToHost, n->compute));
    CUDA_TRY(err, cudaStreamSynchronize(n->compute));
    return 0;
}

int cuda_set(struct net *n, enum net_part p, size_t i, const void *host, struct muster_error *err)
{
    size_t bytes = n->shape[i].count * n->real_bytes;
    CUDA_TRY(err, cudaMemcpyAsync(n->part[p][i], host, bytes, cudaMemcpyHostToDevice, n->compute));
    CUDA_TRY(err, cudaStreamSynchronize(n->compute));
    return 0;
}

void *cuda_stream(struct net *n)
{
    (void)n;
    return nullptr;
}

/* --- Batches --- */

int check_batch(const struct net *n, const struct batch *b, struct muster_error *err)
{
    if (b->count == 0 || b->count > n->options.batch_max)
        return failure(err, -EINVAL, "a batch of %u items does not fit a network made for 1 to %u",
                       b->count, n->options.batch_max);
    for (uint32_t i = 0; i < b->count; i++)
        if (b->labels[i] < 0 || b->labels[i] >= CLASSES)
            return failure(err, -EINVAL, "item %u of the batch has label %d: labels are 0 to %d", i,
                           b->labels[i], CLASSES - 1);
    return 0;
}

/* Copy into slot s over `stream`, after whoever read what is there. */
int fill_slot(struct net *n, struct slot *s, const struct batch *b, cudaStream_t stream,
              struct muster_error *err)
{
    size_t image_bytes = (size_t)b->count * IMAGE_PIXELS * n->real_bytes;
    CUDA_TRY(err, cudaStreamWaitEvent(stream, s->used, 0));
    CUDA_TRY(err, cudaMemcpyAsync(s->images, b->images, image_bytes, cudaMemcpyHostToDevice, stream));
    CUDA_TRY(err, cudaMemcpyAsync(s->labels, b->labels, b->count * sizeof *b->labels,
                                  cudaMemcpyHostToDevice, stream));
    CUDA_TRY(err, cudaEventRecord(s->arrived, stream));
    return 0;
}

struct slot *find_slot(struct net *n, const void *expected)
{
    for (struct slot &s : n->slot)
        if (s.expected == expected)
            return &s;
    return nullptr;
}

int cuda_stage(struct net *n, const struct batch *b, struct muster_error *err)
{
    TRY(check_batch(n, b, err));
    struct slot *s = find_slot(n, nullptr);
    if (s == nullptr)
        return failure(err, -EBUSY, "two batches are staged already: run forward() on one");
    TRY(fill_slot(n, s, b, n->copy, err));
    s->expected = b->images;
    return 0;
}

/* The slot with batch b on the device, for the compute stream. */
int take_batch(struct net *n, const struct batch *b, struct slot **ret, struct muster_error *err)
{
    struct slot *s = find_slot(n, b->images);
    if (s == nullptr) {
        s = find_slot(n, nullptr);
        if (s == nullptr)
            return failure(err, -EBUSY, "two other batches are staged: run forward() on one of them");
        TRY(fill_slot(n, s, b, n->compute, err));
    }
    CUDA_TRY(err, cudaStreamWaitEvent(n->compute, s->arrived, 0));
    s->expected = nullptr;
    *ret = s;
    return 0;
}

/* --- Forward --- */

template <typename real> real *as(void *p)
{
    return static_cast<real *>(p);
}

template <typename real>
int run_forward(struct net *net, const struct slot *s, struct muster_error *err)
{
    void *const *value = net->part[NET_VALUE];
    const int count = (int)net->count;
    const int pixels = count * IMAGE_PIXELS;
    const int c1 = net->c1;
    const int c2 = net->c2;
    const int k2 = KERNEL_TAPS * c1;
    const size_t flats = (size_t)count * net->flat_size;
    LAUNCH(err, (size_t)pixels * KERNEL_TAPS, im2col, as<real>(s->images), as<real>(net->columns1),
           (size_t)pixels * KERNEL_TAPS, 1);
    TRY(product(net, as<real>(net->a1), net->columns1, AS_IS, value[CONV1_WEIGHT], TURNED, pixels, c1,
                KERNEL_TAPS, err));
    LAUNCH(err, (size_t)pixels * c1, bias_relu, as<real>(net->a1), as<real>(value[CONV1_BIAS]),
           (size_t)pixels * c1, c1);
    LAUNCH(err, (size_t)pixels * k2, im2col, as<real>(net->a1), as<real>(net->columns2),
           (size_t)pixels * k2, c1);
    TRY(product(net, as<real>(net->y2), net->columns2, AS_IS, value[CONV2_WEIGHT], TURNED, pixels, c2, k2,
                err));
    LAUNCH(err, flats, bias_relu_pool, as<real>(net->y2), as<real>(value[CONV2_BIAS]),
           as<real>(net->flat), net->winner, flats, c2);
    TRY(product(net, as<real>(net->h), net->flat, AS_IS, value[FC1_WEIGHT], TURNED, count, net->hidden,
                net->flat_size, err));
    LAUNCH(err, (size_t)count * net->hidden, bias_relu, as<real>(net->h), as<real>(value[FC1_BIAS]),
           (size_t)count * net->hidden, net->hidden);
    TRY(product(net, as<real>(net->z), net->h, AS_IS, value[FC2_WEIGHT], TURNED, count, CLASSES,
                net->hidden, err));
    LAUNCH(err, (size_t)count, cross_entropy, as<real>(net->z), as<real>(value[FC2_BIAS]), s->labels,
           net->item_loss, net->item_right, count);
    sum_items<<<1, 1, 0, net->compute>>>(net->item_loss, net->item_right, count, net->sums);
    CUDA_TRY(err, cudaGetLastError());
    return 0;
}

int cuda_forward(struct net *n, const struct batch *b, struct muster_error *err)
{
    struct slot *s = nullptr;
    TRY(check_batch(n, b, err));
    TRY(take_batch(n, b, &s, err));
    n->count = b->count;
    TRY(n->options.dtype == MUSTER_F64 ? run_forward<double>(n, s, err) : run_forward<float>(n, s, err));
    CUDA_TRY(err, cudaEventRecord(s->used, n->compute));
    return 0;
}

int cuda_loss(struct net *n, double *ret_sum, uint32_t *ret_correct, struct muster_error *err)
{
    CUDA_TRY(err, cudaMemcpyAsync(n->host_result, n->sums, sizeof *n->sums, cudaMemcpyDeviceToHost,
                                  n->compute));
    CUDA_TRY(err, cudaStreamSynchronize(n->compute));
    *ret_sum = n->host_result->loss_sum;
    *ret_correct = n->host_result->correct;
    return 0;
}

/* --- Backward --- */

template <typename real>
int sum_columns(struct net *net, void *from, void *to, int rows, int columns, struct muster_error *err)
{
    const dim3 block(SUM_COLUMNS, SUM_LANES);
    const unsigned blocks = (unsigned)((columns + SUM_COLUMNS - 1) / SUM_COLUMNS);
    column_sums<<<blocks, block, 0, net->compute>>>(as<real>(from), as<real>(to), rows, columns);
    CUDA_TRY(err, cudaGetLastError());
    return 0;
}

/* Whom backward() tells, and where gradients go. */
struct target {
    void *const *gradient;
    net_ready_fn *ready;
    void *arg;
};

/* Gradients of a layer out = in x weight^T + bias, from dout (rows, outs) and in (rows, ins). */
template <typename real>
int layer_gradients(struct net *net, const struct target *t, enum param weight, enum param bias,
                    void *dout, const void *in, int rows, int outs, int ins, struct muster_error *err)
{
    TRY(sum_columns<real>(net, dout, t->gradient[bias], rows, outs, err));
    TRY(t->ready(t->arg, bias, err));
    TRY(product(net, as<real>(t->gradient[weight]), dout, TURNED, in, AS_IS, outs, ins, rows, err));
    return t->ready(t->arg, weight, err);
}

template <typename real>
int run_backward(struct net *net, const struct target *t, struct muster_error *err)
{
    void *const *value = net->part[NET_VALUE];
    const int count = (int)net->count;
    const int pixels = count * IMAGE_PIXELS;
    const int c1 = net->c1;
    const int c2 = net->c2;
    const int k2 = KERNEL_TAPS * c1;
    TRY(layer_gradients<real>(net, t, FC2_WEIGHT, FC2_BIAS, net->z, net->h, count, CLASSES, net->hidden,
                              err));
    TRY(product(net, as<real>(net->dh), net->z, AS_IS, value[FC2_WEIGHT], AS_IS, count, net->hidden,
                CLASSES, err));
    LAUNCH(err, (size_t)count * net->hidden, relu_back, as<real>(net->dh), as<real>(net->h),
           (size_t)count * net->hidden);
    TRY(layer_gradients<real>(net, t, FC1_WEIGHT, FC1_BIAS, net->dh, net->flat, count, net->hidden,
                              net->flat_size, err));
    TRY(product(net, as<real>(net->dflat), net->dh, AS_IS, value[FC1_WEIGHT], AS_IS, count,
                net->flat_size, net->hidden, err));
    LAUNCH(err, (size_t)pixels * c2, pool_back, as<real>(net->dflat), as<real>(net->flat), net->winner,
           as<real>(net->y2), (size_t)pixels * c2, c2);
    TRY(layer_gradients<real>(net, t, CONV2_WEIGHT, CONV2_BIAS, net->y2, net->columns2, pixels, c2, k2,
                              err));
    TRY(product(net, as<real>(net->dcolumns), net->y2, AS_IS, value[CONV2_WEIGHT], AS_IS, pixels, k2, c2,
                err));
    LAUNCH(err, (size_t)pixels * c1, col2im, as<real>(net->dcolumns), as<real>(net->a1),
           as<real>(net->da1), (size_t)pixels * c1, c1);
    return layer_gradients<real>(net, t, CONV1_WEIGHT, CONV1_BIAS, net->da1, net->columns1, pixels, c1,
                                 KERNEL_TAPS, err);
}

int cuda_backward(struct net *n, void *const gradient[PARAM_COUNT], net_ready_fn *ready, void *arg,
                  struct muster_error *err)
{
    const struct target t = {gradient, ready, arg};
    return n->options.dtype == MUSTER_F64 ? run_backward<double>(n, &t, err)
                                          : run_backward<float>(n, &t, err);
}

/* --- Update --- */

template <typename real>
int run_update(struct net *net, size_t first, size_t count, void *const gradient[PARAM_COUNT],
               const struct adamw *a, uint64_t step, struct muster_error *err)
{
    const struct factors<real> f = {(real)(1 - a->lr * a->weight_decay),
                                    (real)(1 - a->beta1),
                                    (real)a->beta2,
                                    (real)(1 - a->beta2),
                                    (real)(a->lr / (1 - std::pow(a->beta1, (double)step))),
                                    (real)std::sqrt(1 - std::pow(a->beta2, (double)step)),
                                    (real)a->eps};
    for (size_t i = first; i < first + count; i++)
        LAUNCH(err, net->shape[i].count, adamw_step, as<real>(net->part[NET_VALUE][i]),
               as<real>(net->part[NET_MEAN][i]), as<real>(net->part[NET_SQUARE][i]),
               as<real>(gradient[i]), net->shape[i].count, f);
    return 0;
}

int cuda_update(struct net *n, size_t first, size_t count, void *const gradient[PARAM_COUNT],
                const struct adamw *a, uint64_t step, struct muster_error *err)
{
    return n->options.dtype == MUSTER_F64 ? run_update<double>(n, first, count, gradient, a, step, err)
                                          : run_update<float>(n, first, count, gradient, a, step, err);
}

/* --- Memory of the reducer --- */

/* Sockets cannot read a GPU's memory: alone it does not matter. */
bool can_move(muster_comm *c)
{
#ifdef TRAINER_NCCL
    if (std::strcmp(muster_comm_backend(c), "nccl") == 0)
        return true;
#endif
    return muster_comm_size(c) == 1;
}

void *memory_alloc(void *arg, size_t bytes)
{
    void *p = nullptr;
    size_t whole = bytes == 0 ? 1 : bytes;
    struct net *n = static_cast<struct net *>(arg);
    if (!can_move(n->comm) || cudaMalloc(&p, whole) != cudaSuccess)
        return nullptr;
    if (cudaMemsetAsync(p, 0, whole, n->compute) != cudaSuccess ||
        cudaStreamSynchronize(n->compute) != cudaSuccess) {
        (void)cudaFree(p);
        return nullptr;
    }
    return p;
}

void memory_release(void *arg, void *p)
{
    (void)arg;
    (void)cudaFree(p); /* Waits for the device; a failure is an earlier one's. */
}

template <typename real>
int run_divide(struct net *net, void *p, size_t count, uint32_t by, struct muster_error *err)
{
    LAUNCH(err, count, divide_by, as<real>(p), count, (real)by);
    return 0;
}

int memory_divide(void *arg, void *p, size_t count, enum muster_dtype t, uint32_t by)
{
    struct net *n = static_cast<struct net *>(arg);
    int r = 0;
    if (by != 1 && count > 0)
        r = t == MUSTER_F64 ? run_divide<double>(n, p, count, by, nullptr)
                            : run_divide<float>(n, p, count, by, nullptr);
#ifdef TRAINER_NCCL
    if (r == 0 && by != 1)
        r = muster_comm_wait_stream(n->comm, n->compute, nullptr);
#endif
    return r;
}

int memory_copy(void *arg, void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    struct net *n = static_cast<struct net *>(arg);
    if (cudaMemcpyAsync(to, from, bytes, kind, n->compute) != cudaSuccess ||
        cudaStreamSynchronize(n->compute) != cudaSuccess)
        return -EIO;
    return 0;
}

int memory_read(void *arg, void *to, const void *from, size_t bytes)
{
    return memory_copy(arg, to, from, bytes, cudaMemcpyDeviceToHost);
}

int memory_write(void *arg, void *to, const void *from, size_t bytes)
{
    return memory_copy(arg, to, from, bytes, cudaMemcpyHostToDevice);
}

const struct muster_ddp_memory *cuda_memory(struct net *n, muster_comm *c)
{
    n->comm = c;
    n->ddp_memory = {n, memory_alloc, memory_release, memory_divide, memory_read, memory_write};
    return &n->ddp_memory;
}

} // namespace

/* --- The table --- */

extern "C" {

bool net_cuda_usable(const char **ret_why)
{
    int devices = 0;
    cudaError_t got = cudaGetDeviceCount(&devices);
    if (got == cudaSuccess && devices > 0)
        return true;
    int driver = 0;
    if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0)
        *ret_why = "there is no CUDA driver here: install NVIDIA's";
    else
        *ret_why = got == cudaSuccess ? "no CUDA device is visible" : cudaGetErrorString(got);
    return false;
}

const struct net_ops net_cuda = {
    "cuda",          cuda_open,      cuda_close, cuda_part,    cuda_get,  cuda_set,      cuda_stream, cuda_memory,
    cuda_host_alloc, cuda_host_free, cuda_stage, cuda_forward, cuda_loss, cuda_backward, cuda_update,
};

} // extern "C"
