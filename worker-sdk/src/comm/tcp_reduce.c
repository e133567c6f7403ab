/* Reductions as plain loops that the compiler turns into vector instructions; this file is built
 * with -O3 for that. One function a pair of type and operation, with both operands given, so that
 * no rank swaps them. */
#include "worker-sdk/src/comm/tcp_reduce.h"

typedef void reduce_fn(void *ret, const void *a, const void *b, size_t count);

/* ivdep: ret is a or b, so that no element depends on an earlier one; without it the check for
 * overlap, which then fails, would choose the scalar loop. */
#define REDUCE(name, type, wide, expression)                                                       \
    static void name(void *ret_, const void *a_, const void *b_, size_t count)                     \
    {                                                                                              \
        type *ret = ret_;                                                                          \
        const type *a = a_, *b = b_;                                                               \
        _Pragma("GCC ivdep") for (size_t i = 0; i < count; i++)                                    \
        {                                                                                          \
            wide x = (wide)a[i], y = (wide)b[i];                                                   \
            ret[i] = (type)(expression);                                                           \
        }                                                                                          \
    }
/* Signed overflow is undefined, so integers are added as unsigned ones. */
#define REDUCE_ALL(suffix, type, wide)                                                             \
    REDUCE(sum_##suffix, type, wide, x + y)                                                        \
    REDUCE(min_##suffix, type, type, x < y ? x : y)                                                \
    REDUCE(max_##suffix, type, type, x > y ? x : y)

REDUCE_ALL(u8, uint8_t, unsigned)
REDUCE_ALL(i32, int32_t, uint32_t)
REDUCE_ALL(i64, int64_t, uint64_t)
REDUCE_ALL(f32, float, float)
REDUCE_ALL(f64, double, double)
REDUCE(mean_f32, float, float, (x + y) * 0.5F)
REDUCE(mean_f64, double, double, (x + y) * 0.5)

/* clang-format off */
#define ROW(suffix) [MUSTER_SUM] = sum_##suffix, [MUSTER_MIN] = min_##suffix, [MUSTER_MAX] = max_##suffix
static reduce_fn *const table[][TCP_MEAN_OF_TWO + 1] = {
    [MUSTER_U8]  = { ROW(u8) },
    [MUSTER_I32] = { ROW(i32) },
    [MUSTER_I64] = { ROW(i64) },
    [MUSTER_F32] = { ROW(f32), [TCP_MEAN_OF_TWO] = mean_f32 },
    [MUSTER_F64] = { ROW(f64), [TCP_MEAN_OF_TWO] = mean_f64 },
};
/* clang-format on */

void tcp_reduce(
    void *ret, const void *a, const void *b, size_t count, enum muster_dtype t, enum muster_op op)
{
    table[t][op](ret, a, b, count);
}

/* By a power of two, multiplying gives the same bits and is faster. */
#define DIVIDE(T, p_, count_, by_)                                                                 \
    do {                                                                                           \
        T *v_ = (p_);                                                                              \
        const T factor_ = 1 / (T)(by_), by_t_ = (T)(by_);                                          \
        if (((by_) & ((by_)-1)) == 0)                                                              \
            for (size_t i_ = 0; i_ < (count_); i_++)                                               \
                v_[i_] *= factor_;                                                                 \
        else                                                                                       \
            for (size_t i_ = 0; i_ < (count_); i_++)                                               \
                v_[i_] /= by_t_;                                                                   \
    } while (0)

void tcp_divide(void *p, size_t count, enum muster_dtype t, uint32_t by)
{
    if (by == 1)
        return;
    if (t == MUSTER_F32)
        DIVIDE(float, p, count, by);
    else
        DIVIDE(double, p, count, by);
}
