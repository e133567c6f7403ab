/* CUDA's runtime as far as trainer-example/cuda.cu uses it, on a CPU: for a test of the kernels and
 * their order where no GPU is. Streams are done at once; a block whose threads meet gets real
 * threads. */
#ifndef MUSTER_TESTS_EMULATED_CUDA_RUNTIME_H
#define MUSTER_TESTS_EMULATED_CUDA_RUNTIME_H

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include <pthread.h>

#define __global__
#define __device__
#define __shared__ static /* Blocks run one after the other. */

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};

static thread_local dim3 blockIdx, threadIdx, blockDim;
static pthread_barrier_t emulated_barrier;

static inline void __syncthreads()
{
    (void)pthread_barrier_wait(&emulated_barrier);
}

static void emulated_threads(dim3 block, unsigned b, const std::function<void()> &kernel)
{
    std::vector<std::thread> threads;
    pthread_barrier_init(&emulated_barrier, nullptr, block.x * block.y);
    for (unsigned y = 0; y < block.y; y++)
        for (unsigned x = 0; x < block.x; x++)
            threads.emplace_back([=, &kernel] {
                blockIdx = dim3(b);
                blockDim = block;
                threadIdx = dim3(x, y);
                kernel();
            });
    for (std::thread &t : threads)
        t.join();
    pthread_barrier_destroy(&emulated_barrier);
}

/* kernel<<<grid, block>>>(...), as translate.py writes it. Backwards, as a GPU promises no order.
 */
static void emulate(dim3 grid, dim3 block, const std::function<void()> &kernel)
{
    for (unsigned b = grid.x; b-- > 0;) {
        if (block.y > 1) {
            emulated_threads(block, b, kernel);
            continue;
        }
        blockIdx = dim3(b);
        blockDim = block;
        for (unsigned x = block.x; x-- > 0;) {
            threadIdx = dim3(x);
            kernel();
        }
    }
}

typedef int cudaError_t;
typedef struct emulated_stream *cudaStream_t;
typedef struct emulated_event *cudaEvent_t;
enum {
    cudaSuccess = 0,
    cudaErrorMemoryAllocation = 2
};
enum {
    cudaHostAllocDefault,
    cudaStreamNonBlocking,
    cudaEventDisableTiming
};
enum cudaMemcpyKind {
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost
};

static inline const char *cudaGetErrorString(cudaError_t)
{
    return "emulated";
}
static inline cudaError_t cudaGetLastError()
{
    return cudaSuccess;
}
/* What was not written is a NaN: reading it shows. */
template <typename T> cudaError_t cudaMalloc(T **p, size_t bytes)
{
    void *got = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (got != nullptr)
        std::memset(got, 0xff, bytes);
    *p = static_cast<T *>(got);
    return got == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
static inline cudaError_t cudaFree(void *p)
{
    std::free(p);
    return cudaSuccess;
}
static inline cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned)
{
    return cudaMalloc(p, bytes);
}
static inline cudaError_t cudaFreeHost(void *p)
{
    return cudaFree(p);
}
static inline cudaError_t cudaMemset(void *p, int value, size_t bytes)
{
    std::memset(p, value, bytes);
    return cudaSuccess;
}
static inline cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t)
{
    return cudaMemset(p, value, bytes);
}
static inline cudaError_t
cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind, cudaStream_t)
{
    std::memcpy(to, from, bytes);
    return cudaSuccess;
}
static inline cudaError_t cudaGetDeviceCount(int *ret)
{
    *ret = 1;
    return cudaSuccess;
}
static inline cudaError_t cudaDriverGetVersion(int *ret)
{
    *ret = 13000;
    return cudaSuccess;
}
static inline cudaError_t cudaSetDevice(int)
{
    return cudaSuccess;
}
static inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t *ret, unsigned)
{
    *ret = nullptr;
    return cudaSuccess;
}
static inline cudaError_t cudaStreamDestroy(cudaStream_t)
{
    return cudaSuccess;
}
static inline cudaError_t cudaStreamSynchronize(cudaStream_t)
{
    return cudaSuccess;
}
static inline cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned)
{
    return cudaSuccess;
}
static inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t *ret, unsigned)
{
    *ret = nullptr;
    return cudaSuccess;
}
static inline cudaError_t cudaEventDestroy(cudaEvent_t)
{
    return cudaSuccess;
}
static inline cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t)
{
    return cudaSuccess;
}

#endif
