/* cuBLAS as far as trainer-example/cuda.cu uses it: matrices lie by columns, as there. */
#ifndef MUSTER_TESTS_EMULATED_CUBLAS_H
#define MUSTER_TESTS_EMULATED_CUBLAS_H

#include <cstdio>
#include <cstring>

#include "cuda_runtime.h"

#define CUBLAS_VER_MAJOR 0

typedef int cublasStatus_t;
typedef struct emulated_blas *cublasHandle_t;
enum {
    CUBLAS_STATUS_SUCCESS
};
enum cublasOperation_t {
    CUBLAS_OP_N,
    CUBLAS_OP_T
};
enum cublasAtomicsMode_t {
    CUBLAS_ATOMICS_NOT_ALLOWED
};
enum cublasMath_t {
    CUBLAS_PEDANTIC_MATH
};

static cublasStatus_t cublasCreate_v2(cublasHandle_t *ret)
{
    static char one;
    *ret = reinterpret_cast<cublasHandle_t>(&one);
    return CUBLAS_STATUS_SUCCESS;
}
static cublasStatus_t cublasDestroy_v2(cublasHandle_t)
{
    return CUBLAS_STATUS_SUCCESS;
}
static cublasStatus_t cublasSetStream_v2(cublasHandle_t, cudaStream_t)
{
    return CUBLAS_STATUS_SUCCESS;
}
static cublasStatus_t cublasSetAtomicsMode(cublasHandle_t, cublasAtomicsMode_t)
{
    return CUBLAS_STATUS_SUCCESS;
}
static cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t)
{
    return CUBLAS_STATUS_SUCCESS;
}

/* Refuses what cuBLAS refuses: a leading dimension that is too small. */
template <typename real>
cublasStatus_t emulated_gemm(cublasOperation_t ta,
                             cublasOperation_t tb,
                             int m,
                             int n,
                             int k,
                             real alpha,
                             const real *A,
                             int lda,
                             const real *B,
                             int ldb,
                             real beta,
                             real *C,
                             int ldc)
{
    if (lda < (ta == CUBLAS_OP_N ? m : k) || ldb < (tb == CUBLAS_OP_N ? k : n) || ldc < m)
        return 7;
    for (int j = 0; j < n; j++)
        for (int i = 0; i < m; i++) {
            double sum = 0;
            for (int l = 0; l < k; l++)
                sum += (double)A[ta == CUBLAS_OP_N ? i + (size_t)l * lda : l + (size_t)i * lda] *
                       (double)B[tb == CUBLAS_OP_N ? l + (size_t)j * ldb : j + (size_t)l * ldb];
            real old = beta == 0 ? 0 : beta * C[i + (size_t)j * ldc];
            C[i + (size_t)j * ldc] = (real)(alpha * (real)sum + old);
        }
    return CUBLAS_STATUS_SUCCESS;
}
static cublasStatus_t cublasSgemm_v2(cublasHandle_t,
                                     cublasOperation_t ta,
                                     cublasOperation_t tb,
                                     int m,
                                     int n,
                                     int k,
                                     const float *alpha,
                                     const float *A,
                                     int lda,
                                     const float *B,
                                     int ldb,
                                     const float *beta,
                                     float *C,
                                     int ldc)
{
    return emulated_gemm(ta, tb, m, n, k, *alpha, A, lda, B, ldb, *beta, C, ldc);
}
static cublasStatus_t cublasDgemm_v2(cublasHandle_t,
                                     cublasOperation_t ta,
                                     cublasOperation_t tb,
                                     int m,
                                     int n,
                                     int k,
                                     const double *alpha,
                                     const double *A,
                                     int lda,
                                     const double *B,
                                     int ldb,
                                     const double *beta,
                                     double *C,
                                     int ldc)
{
    return emulated_gemm(ta, tb, m, n, k, *alpha, A, lda, B, ldb, *beta, C, ldc);
}

/* cuda.cu opens cuBLAS by name: here it finds the functions above. */
static void *emulated_symbol(const char *name)
{
    static const struct {
        const char *name;
        void *at;
    } all[] = {{"cublasCreate_v2", (void *)cublasCreate_v2},
               {"cublasDestroy_v2", (void *)cublasDestroy_v2},
               {"cublasSetStream_v2", (void *)cublasSetStream_v2},
               {"cublasSetAtomicsMode", (void *)cublasSetAtomicsMode},
               {"cublasSetMathMode", (void *)cublasSetMathMode},
               {"cublasSgemm_v2", (void *)cublasSgemm_v2},
               {"cublasDgemm_v2", (void *)cublasDgemm_v2}};
    for (const auto &one : all)
        if (std::strcmp(one.name, name) == 0)
            return one.at;
    return nullptr;
}
#define dlopen(name, flags) (static_cast<void *>(&blockIdx))
#define dlsym(library, name) emulated_symbol(name)

#endif
