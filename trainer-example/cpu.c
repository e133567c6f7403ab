/* The network on a CPU: OpenBLAS for matrix products, one thread a rank. Compiled twice, for float
 * and (TRAINER_F64) for double.
 *
 * Activations of the convolutions lie with channels innermost, (N, 10, 10, C) with the border of
 * zeros in place. Then the three taps of one row of a 3x3 kernel, all their channels, are 3*C
 * numbers in a row, and everything the second convolution does is made of such rows:
 *
 *   forward    Each output pixel's 3 rows are copied beside each other, (pixels, 9*C1), and one
 * matrix product with the weights gives (pixels, C2). backward   Max-pool gives its gradient to one
 * pixel of four and ReLU drops some of those, so at least three quarters of the numbers that go
 * back are zeros. A matrix product would multiply them all; here they are never listed. What is
 * left is one loop: "add these rows, each times its factor", with 12 vectors of sums kept in
 * registers, once over rows of the input (gradient of the weights) and once over rows of the
 * weights (gradient of the input). */
#include "trainer-example/model.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cblas.h>

#include "trainer-example/adamw.h"
#include "trainer-example/clones.h"
#include "trainer-example/failure.h"

#ifdef TRAINER_F64
typedef double real;
#define OPS net_cpu_f64
#define GEMM cblas_dgemm
#define ADAMW adamw_f64
#define DTYPE MUSTER_F64
#else
typedef float real;
#define OPS net_cpu_f32
#define GEMM cblas_sgemm
#define ADAMW adamw_f32
#define DTYPE MUSTER_F32
#endif

enum {
    PADDED_SIDE = IMAGE_SIDE + 2,
    PADDED_PIXELS = PADDED_SIDE * PADDED_SIDE,
    VEC_BYTES = 32,
    LANES = VEC_BYTES / sizeof(real),
    STRIP_VECS = 12, /* Sums in registers; 16 are there on most processors. */
    STRIP = STRIP_VECS * LANES,
    FORWARD_ITEMS = 8,  /* At a time: what they need stays in the second-level cache. */
    BACKWARD_ITEMS = 2, /* The same in the first. */
    POOL_WINDOW = 4,
    NO_PIXEL = POOL_WINDOW, /* In `winner`: ReLU let nothing through. */
    ALIGN = 64
};

/* Any address of reals will do. */
typedef real vec __attribute__((vector_size(VEC_BYTES), aligned(sizeof(real)), may_alias));

/* One row of a sum: factor * base[at ...]. */
struct term {
    uint32_t at;
    real factor;
};

struct net {
    struct shape shape[PARAM_COUNT];
    size_t c1, c2, hidden, flat_size;
    uint32_t batch_max;
    real *part[NET_PART_COUNT][PARAM_COUNT]; /* Into `memory`. */

    /* Of the last forward(), N = count. */
    uint32_t count;
    const int32_t *labels;
    real *x;         /* (N, 10, 10), border 0 */
    real *a1;        /* (N, 10, 10, C1), border 0: conv1 after ReLU */
    real *flat;      /* (N, C2, 16) */
    uint8_t *winner; /* (N, C2, 16): which pixel of the window was largest, or NO_PIXEL */
    real *h;         /* (N, HIDDEN): fc1 after ReLU */
    real *z;         /* (N, CLASSES): logits, then their gradient */
    double loss_sum;
    uint32_t correct;

    /* Scratch. */
    real *w1;                /* (9, C1): conv1.weight with channels innermost */
    real *w2;                /* (C2, 9, C1): conv2.weight likewise */
    real *columns;           /* (FORWARD_ITEMS*64, 9*C1) */
    real *y2;                /* (FORWARD_ITEMS*64, C2): conv2 before bias */
    real *pooled;            /* (2, 16, C2): values and winners of one item */
    real *dw1;               /* as w1 */
    real *dw2;               /* as w2 */
    real *dh;                /* as h */
    real *dflat;             /* as flat */
    real *da1;               /* as a1 */
    struct term *by_channel; /* (C2, BACKWARD_ITEMS*16) */
    struct term *by_pixel;   /* (BACKWARD_ITEMS*64, C2) */
    uint32_t *channel_count; /* (C2) */
    uint32_t *pixel_count;   /* (BACKWARD_ITEMS*64) */

    void *memory, *scratch; /* One allocation of each kind. */
};

/* --- Memory --- */

/* Called twice: with at == NULL it counts, with the block it gives out. */
static void *carve(char *at, size_t *used, size_t bytes)
{
    void *p = at == NULL ? NULL : at + *used;
    *used += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return p;
}

static size_t lay_out_parameters(struct net *n, char *at)
{
    size_t used = 0;
    for (size_t p = 0; p < NET_PART_COUNT; p++)
        for (size_t i = 0; i < PARAM_COUNT; i++)
            n->part[p][i] = carve(at, &used, n->shape[i].count * sizeof(real));
    return used;
}

static size_t lay_out_scratch(struct net *n, char *at)
{
    const size_t b = n->batch_max, r = sizeof(real), k = KERNEL_TAPS * n->c1;
    const size_t rows = (size_t)FORWARD_ITEMS * IMAGE_PIXELS;
    size_t used = 0;
    n->x = carve(at, &used, b * PADDED_PIXELS * r);
    n->a1 = carve(at, &used, b * PADDED_PIXELS * n->c1 * r);
    n->flat = carve(at, &used, b * n->flat_size * r);
    n->winner = carve(at, &used, b * n->flat_size);
    n->h = carve(at, &used, b * n->hidden * r);
    n->z = carve(at, &used, b * CLASSES * r);
    n->w1 = carve(at, &used, k * r);
    n->w2 = carve(at, &used, n->c2 * k * r);
    n->columns = carve(at, &used, rows * k * r);
    n->y2 = carve(at, &used, rows * n->c2 * r);
    n->pooled = carve(at, &used, 2 * POOL_PIXELS * n->c2 * r);
    n->dw1 = carve(at, &used, k * r);
    n->dw2 = carve(at, &used, n->c2 * k * r);
    n->dh = carve(at, &used, b * n->hidden * r);
    n->dflat = carve(at, &used, b * n->flat_size * r);
    n->da1 = carve(at, &used, b * PADDED_PIXELS * n->c1 * r);
    n->by_channel = carve(at, &used, n->c2 * BACKWARD_ITEMS * POOL_PIXELS * sizeof(struct term));
    n->by_pixel =
        carve(at, &used, (size_t)BACKWARD_ITEMS * IMAGE_PIXELS * n->c2 * sizeof(struct term));
    n->channel_count = carve(at, &used, n->c2 * sizeof(uint32_t));
    n->pixel_count = carve(at, &used, (size_t)BACKWARD_ITEMS * IMAGE_PIXELS * sizeof(uint32_t));
    return used;
}

static void *zeroed(size_t bytes)
{
    void *p = aligned_alloc(ALIGN, bytes);
    if (p != NULL)
        memset(p, 0, bytes);
    return p;
}

static void cpu_close(struct net *n)
{
    if (n == NULL)
        return;
    free(n->memory);
    free(n->scratch);
    free(n);
}

static int cpu_open(const struct net_options *o, struct net **ret, struct muster_error *err)
{
    if (o->dtype != DTYPE || o->width == 0 || o->width > WIDTH_MAX || o->batch_max == 0)
        return failure(err, -EINVAL, "a network of width %u for batches of %u cannot be made here",
                       o->width, o->batch_max);
    openblas_set_num_threads(1);
    struct net *n = calloc(1, sizeof *n);
    if (n == NULL)
        return failure(err, -ENOMEM, "no memory for the network");
    model_shapes(o->width, n->shape);
    n->c1 = n->shape[CONV1_WEIGHT].dim[0];
    n->c2 = n->shape[CONV2_WEIGHT].dim[0];
    n->hidden = n->shape[FC1_WEIGHT].dim[0];
    n->flat_size = n->shape[FC1_WEIGHT].dim[1];
    n->batch_max = o->batch_max;
    n->memory = zeroed(lay_out_parameters(n, NULL));
    n->scratch = zeroed(lay_out_scratch(n, NULL));
    if (n->memory == NULL || n->scratch == NULL) {
        cpu_close(n);
        return failure(err, -ENOMEM,
                       "no memory for a network of width %u and batches of %u: make one smaller",
                       o->width, o->batch_max);
    }
    lay_out_parameters(n, n->memory);
    lay_out_scratch(n, n->scratch);
    *ret = n;
    return 0;
}

static void *cpu_part(struct net *n, enum net_part p, size_t i)
{
    return n->part[p][i];
}

static int cpu_get(struct net *n, enum net_part p, size_t i, void *host, struct muster_error *err)
{
    (void)err; /* Cannot fail. */
    memcpy(host, n->part[p][i], n->shape[i].count * sizeof(real));
    return 0;
}

static int
cpu_set(struct net *n, enum net_part p, size_t i, const void *host, struct muster_error *err)
{
    (void)err; /* Cannot fail. */
    memcpy(n->part[p][i], host, n->shape[i].count * sizeof(real));
    return 0;
}

static void *cpu_stream(struct net *n)
{
    (void)n;
    return NULL;
}

static const struct muster_ddp_memory *cpu_memory(struct net *n, muster_comm *c)
{
    (void)n;
    (void)c;
    return NULL;
}

static void *cpu_host_alloc(size_t bytes)
{
    return aligned_alloc(ALIGN, (bytes + ALIGN - 1) / ALIGN * ALIGN);
}

/* --- Small loops --- */

/* (rows, 9) of kernels to (9, rows): w1; and per row of (C2, C1, 9) to (C2, 9, C1): w2. */
static void taps_first(const real *restrict from, size_t channels, real *restrict to)
{
    for (size_t c = 0; c < channels; c++)
        for (size_t t = 0; t < KERNEL_TAPS; t++)
            to[t * channels + c] = from[c * KERNEL_TAPS + t];
}

static void taps_last(const real *restrict from, size_t channels, real *restrict to)
{
    for (size_t c = 0; c < channels; c++)
        for (size_t t = 0; t < KERNEL_TAPS; t++)
            to[c * KERNEL_TAPS + t] = from[t * channels + c];
}

/* out (columns) = sum over rows of m (rows, columns) */
static void sum_rows(const real *restrict m, size_t rows, size_t columns, real *restrict out)
{
    memset(out, 0, columns * sizeof(real));
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < columns; c++)
            out[c] += m[r * columns + c];
}

/* Every row of m (rows, columns) = bias; a matrix product is then added to it. */
static void fill_rows(real *restrict m, size_t rows, const real *restrict bias, size_t columns)
{
    for (size_t r = 0; r < rows; r++)
        memcpy(m + r * columns, bias, columns * sizeof(real));
}

/* Where output pixel p (of 64) finds the top left of its 3x3 in a padded image. */
static size_t padded_at(size_t p)
{
    return p / IMAGE_SIDE * PADDED_SIDE + p % IMAGE_SIDE;
}

/* Pixel k (0 to 3, row by row) of pooling window w (of 16). */
static size_t window_pixel(size_t w, size_t k)
{
    return (2 * (w / POOL_SIDE) + k / 2) * IMAGE_SIDE + 2 * (w % POOL_SIDE) + k % 2;
}

/* --- Forward --- */

/* x (10, 10) -> a1 (10, 10, C1) */
TRAINER_CLONES
static void conv1_forward(const struct net *n, const real *restrict x, real *restrict a1)
{
    const size_t c1 = n->c1;
    const real *restrict bias = n->part[NET_VALUE][CONV1_BIAS], *restrict w1 = n->w1;
    for (size_t p = 0; p < IMAGE_PIXELS; p++) {
        const real *in = x + padded_at(p);
        real *restrict out = a1 + (padded_at(p) + PADDED_SIDE + 1) * c1;
        real tap[KERNEL_TAPS];
        for (size_t t = 0; t < KERNEL_TAPS; t++)
            tap[t] = in[t / KERNEL_SIDE * PADDED_SIDE + t % KERNEL_SIDE];
        for (size_t c = 0; c < c1; c++) {
            real sum = bias[c];
            for (size_t t = 0; t < KERNEL_TAPS; t++)
                sum += tap[t] * w1[t * c1 + c];
            out[c] = sum > 0 ? sum : 0;
        }
    }
}

/* a1 (10, 10, C1) -> columns (64, 9*C1) */
static void gather_columns(const struct net *n, const real *restrict a1, real *restrict columns)
{
    const size_t row = KERNEL_SIDE * n->c1;
    for (size_t p = 0; p < IMAGE_PIXELS; p++)
        for (size_t dy = 0; dy < KERNEL_SIDE; dy++, columns += row)
            memcpy(columns, a1 + (padded_at(p) + dy * PADDED_SIDE) * n->c1, row * sizeof(real));
}

/* y2 (64, C2) -> values and winners (16, C2): bias, ReLU, max-pool */
TRAINER_CLONES
static void pool_forward(const struct net *n,
                         const real *restrict y2,
                         real *restrict value,
                         real *restrict winner)
{
    const size_t c2 = n->c2;
    const real *restrict bias = n->part[NET_VALUE][CONV2_BIAS];
    for (size_t w = 0; w < POOL_PIXELS; w++) {
        const real *v0 = y2 + window_pixel(w, 0) * c2, *v1 = y2 + window_pixel(w, 1) * c2,
                   *v2 = y2 + window_pixel(w, 2) * c2, *v3 = y2 + window_pixel(w, 3) * c2;
        for (size_t c = 0; c < c2; c++) {
            const real b = bias[c];
            real best = v0[c] + b, at = 0;
            at = v1[c] + b > best ? 1 : at;
            best = v1[c] + b > best ? v1[c] + b : best;
            at = v2[c] + b > best ? 2 : at;
            best = v2[c] + b > best ? v2[c] + b : best;
            at = v3[c] + b > best ? 3 : at;
            best = v3[c] + b > best ? v3[c] + b : best;
            winner[w * c2 + c] = best > 0 ? at : (real)NO_PIXEL;
            value[w * c2 + c] = best > 0 ? best : 0;
        }
    }
}

/* conv1, conv2 and pool of `count` items from item `first`. */
static void convolve(struct net *n, size_t first, size_t count)
{
    const size_t c2 = n->c2, k = KERNEL_TAPS * n->c1, plane = PADDED_PIXELS * n->c1;
    const size_t rows = count * IMAGE_PIXELS;
    for (size_t i = 0; i < count; i++) {
        real *a1 = n->a1 + (first + i) * plane;
        conv1_forward(n, n->x + (first + i) * PADDED_PIXELS, a1);
        gather_columns(n, a1, n->columns + i * IMAGE_PIXELS * k);
    }
    /* y2 (rows, C2) = columns (rows, 9*C1) x w2' */
    GEMM(CblasRowMajor, CblasNoTrans, CblasTrans, (int)rows, (int)c2, (int)k, 1, n->columns, (int)k,
         n->w2, (int)k, 0, n->y2, (int)c2);
    real *value = n->pooled, *winner = n->pooled + POOL_PIXELS * c2;
    for (size_t i = 0; i < count; i++) {
        pool_forward(n, n->y2 + i * IMAGE_PIXELS * c2, value, winner);
        real *flat = n->flat + (first + i) * n->flat_size;
        uint8_t *flat_winner = n->winner + (first + i) * n->flat_size;
        for (size_t c = 0; c < c2; c++) { /* (16, C2) -> (C2, 16) */
            for (size_t w = 0; w < POOL_PIXELS; w++) {
                flat[c * POOL_PIXELS + w] = value[w * c2 + c];
                flat_winner[c * POOL_PIXELS + w] = (uint8_t)winner[w * c2 + c];
            }
        }
    }
}

/* Logits to loss, count of right answers, and the logits' gradient in their place. */
static void cross_entropy(struct net *n)
{
    n->loss_sum = 0;
    n->correct = 0;
    for (size_t i = 0; i < n->count; i++) {
        real *z = n->z + i * CLASSES;
        size_t top = 0;
        for (size_t c = 1; c < CLASSES; c++)
            top = z[c] > z[top] ? c : top;
        double power[CLASSES], sum = 0;
        const double max = (double)z[top];
        for (size_t c = 0; c < CLASSES; c++)
            sum += power[c] = exp((double)z[c] - max);
        const size_t label = (size_t)n->labels[i];
        n->loss_sum += log(sum) - ((double)z[label] - max);
        n->correct += top == label;
        for (size_t c = 0; c < CLASSES; c++)
            z[c] = (real)((power[c] / sum - (c == label)) / n->count);
    }
}

static int check_batch(const struct net *n, const struct batch *b, struct muster_error *err)
{
    if (b->count == 0 || b->count > n->batch_max)
        return failure(err, -EINVAL, "a batch of %u items does not fit a network made for 1 to %u",
                       b->count, n->batch_max);
    for (uint32_t i = 0; i < b->count; i++)
        if (b->labels[i] < 0 || b->labels[i] >= CLASSES)
            return failure(err, -EINVAL, "item %u of the batch has label %d: labels are 0 to %d", i,
                           b->labels[i], CLASSES - 1);
    return 0;
}

static int cpu_forward(struct net *n, const struct batch *b, struct muster_error *err)
{
    int r = check_batch(n, b, err);
    if (r < 0)
        return r;
    real *const *value = n->part[NET_VALUE];
    const real *images = b->images;
    n->count = b->count;
    n->labels = b->labels;
    for (size_t i = 0; i < n->count; i++)
        for (size_t y = 0; y < IMAGE_SIDE; y++)
            memcpy(n->x + i * PADDED_PIXELS + (y + 1) * PADDED_SIDE + 1,
                   images + i * IMAGE_PIXELS + y * IMAGE_SIDE, IMAGE_SIDE * sizeof(real));
    taps_first(value[CONV1_WEIGHT], n->c1, n->w1);
    for (size_t c = 0; c < n->c2; c++)
        taps_first(value[CONV2_WEIGHT] + c * KERNEL_TAPS * n->c1, n->c1,
                   n->w2 + c * KERNEL_TAPS * n->c1);
    for (size_t i = 0; i < n->count; i += FORWARD_ITEMS)
        convolve(n, i, n->count - i < FORWARD_ITEMS ? n->count - i : FORWARD_ITEMS);

    const int count = (int)n->count, hidden = (int)n->hidden, flat = (int)n->flat_size;
    fill_rows(n->h, n->count, value[FC1_BIAS], n->hidden);
    GEMM(CblasRowMajor, CblasNoTrans, CblasTrans, count, hidden, flat, 1, n->flat, flat,
         value[FC1_WEIGHT], flat, 1, n->h, hidden);
    for (size_t k = 0; k < n->count * n->hidden; k++)
        n->h[k] = n->h[k] > 0 ? n->h[k] : 0;
    fill_rows(n->z, n->count, value[FC2_BIAS], CLASSES);
    GEMM(CblasRowMajor, CblasNoTrans, CblasTrans, count, CLASSES, hidden, 1, n->h, hidden,
         value[FC2_WEIGHT], hidden, 1, n->z, CLASSES);
    cross_entropy(n);
    return 0;
}

static int cpu_loss(struct net *n, double *ret_sum, uint32_t *ret_correct, struct muster_error *err)
{
    (void)err; /* Cannot fail. */
    *ret_sum = n->loss_sum;
    *ret_correct = n->correct;
    return 0;
}

/* --- Backward --- */

/* Which gradients of conv2's output are not zero, of `count` items from item `first`: by channel,
 * with where the pixel's 3x3 begins in a1; and by pixel, with where the channel's weights begin in
 * w2. */
static void list_gradients(struct net *n, size_t first, size_t count)
{
    const size_t c1 = n->c1, c2 = n->c2;
    memset(n->channel_count, 0, c2 * sizeof(uint32_t));
    memset(n->pixel_count, 0, count * IMAGE_PIXELS * sizeof(uint32_t));
    for (size_t i = 0; i < count; i++) {
        const real *g = n->dflat + (first + i) * n->flat_size;
        const uint8_t *winner = n->winner + (first + i) * n->flat_size;
        for (size_t c = 0; c < c2; c++) {
            struct term *channel = n->by_channel + c * BACKWARD_ITEMS * POOL_PIXELS;
            uint32_t listed = n->channel_count[c];
            for (size_t w = 0; w < POOL_PIXELS; w++, g++, winner++) {
                if (*winner == NO_PIXEL)
                    continue;
                const size_t p = window_pixel(w, *winner), item_pixel = i * IMAGE_PIXELS + p;
                channel[listed++] =
                    (struct term){(uint32_t)((i * PADDED_PIXELS + padded_at(p)) * c1), *g};
                n->by_pixel[item_pixel * c2 + n->pixel_count[item_pixel]++] =
                    (struct term){(uint32_t)(c * KERNEL_TAPS * c1), *g};
            }
            n->channel_count[c] = listed;
        }
    }
}

/* sums (STRIP) += each term's factor * base[its at ...] (STRIP) */
__attribute__((always_inline)) static inline void
add_rows(real *sums, const real *base, const struct term *term, size_t term_count)
{
    vec sum[STRIP_VECS];
    for (size_t v = 0; v < STRIP_VECS; v++)
        sum[v] = *(const vec *)(sums + v * LANES);
    for (size_t k = 0; k < term_count; k++) {
        const real *row = base + term[k].at;
#if defined(__GNUC__)
        /* One pointer and 12 offsets, please: with 12 pointers gcc has too few registers. */
        __asm__("" : "+r"(row));
#endif
        const vec factor = term[k].factor - (vec){0};
        for (size_t v = 0; v < STRIP_VECS; v++)
            sum[v] += factor * *(const vec *)(row + v * LANES);
    }
    for (size_t v = 0; v < STRIP_VECS; v++)
        *(vec *)(sums + v * LANES) = sum[v];
}

/* dw2, db2 and da1 of `count` items from item `first`, from the lists. One row of the kernel at a
 * time, so that what is added up over and over stays in the first-level cache. */
TRAINER_CLONES
static void conv2_backward(struct net *n, size_t first, size_t count, real *restrict db2)
{
    const size_t c1 = n->c1, c2 = n->c2, row = KERNEL_SIDE * c1;
    const real *a1 = n->a1 + first * PADDED_PIXELS * c1;
    real *da1 = n->da1 + first * PADDED_PIXELS * c1;
    for (size_t dy = 0; dy < KERNEL_SIDE; dy++) {
        for (size_t at = 0; at < row; at += STRIP) {
            const size_t in = dy * PADDED_SIDE * c1 + at, weights = dy * row + at;
            for (size_t c = 0; c < c2; c++)
                add_rows(n->dw2 + c * KERNEL_TAPS * c1 + weights, a1 + in,
                         n->by_channel + c * BACKWARD_ITEMS * POOL_PIXELS, n->channel_count[c]);
            for (size_t i = 0; i < count; i++)
                for (size_t p = 0; p < IMAGE_PIXELS; p++)
                    add_rows(da1 + (i * PADDED_PIXELS + padded_at(p)) * c1 + in, n->w2 + weights,
                             n->by_pixel + (i * IMAGE_PIXELS + p) * c2,
                             n->pixel_count[i * IMAGE_PIXELS + p]);
        }
    }
    for (size_t c = 0; c < c2; c++)
        for (size_t k = 0; k < n->channel_count[c]; k++)
            db2[c] += n->by_channel[c * BACKWARD_ITEMS * POOL_PIXELS + k].factor;
}

/* dw1 and db1 from da1: one item. */
TRAINER_CLONES
static void conv1_backward(struct net *n, size_t item, real *restrict db1)
{
    const size_t c1 = n->c1;
    const real *x = n->x + item * PADDED_PIXELS;
    real *restrict dw1 = n->dw1;
    for (size_t p = 0; p < IMAGE_PIXELS; p++) {
        const size_t at = (item * PADDED_PIXELS + padded_at(p) + PADDED_SIDE + 1) * c1;
        const real *restrict a = n->a1 + at;
        real *restrict d = n->da1 + at;
        for (size_t c = 0; c < c1; c++) { /* ReLU */
            d[c] = a[c] > 0 ? d[c] : 0;
            db1[c] += d[c];
        }
        for (size_t t = 0; t < KERNEL_TAPS; t++) {
            const real in = x[padded_at(p) + t / KERNEL_SIDE * PADDED_SIDE + t % KERNEL_SIDE];
            if (in == 0) /* Half of a digit is background. */
                continue;
            for (size_t c = 0; c < c1; c++)
                dw1[t * c1 + c] += in * d[c];
        }
    }
}

static void fc2_backward(struct net *n, real *dw, real *db)
{
    const int count = (int)n->count, hidden = (int)n->hidden;
    sum_rows(n->z, n->count, CLASSES, db);
    /* dw (CLASSES, HIDDEN) = dz' x h */
    GEMM(CblasRowMajor, CblasTrans, CblasNoTrans, CLASSES, hidden, count, 1, n->z, CLASSES, n->h,
         hidden, 0, dw, hidden);
    /* dh (N, HIDDEN) = dz x w, where ReLU let it through */
    GEMM(CblasRowMajor, CblasNoTrans, CblasNoTrans, count, hidden, CLASSES, 1, n->z, CLASSES,
         n->part[NET_VALUE][FC2_WEIGHT], hidden, 0, n->dh, hidden);
    for (size_t k = 0; k < n->count * n->hidden; k++)
        n->dh[k] = n->h[k] > 0 ? n->dh[k] : 0;
}

static void fc1_backward(struct net *n, real *dw, real *db)
{
    const int count = (int)n->count, hidden = (int)n->hidden, flat = (int)n->flat_size;
    sum_rows(n->dh, n->count, n->hidden, db);
    /* dw (HIDDEN, FLAT) = dh' x flat */
    GEMM(CblasRowMajor, CblasTrans, CblasNoTrans, hidden, flat, count, 1, n->dh, hidden, n->flat,
         flat, 0, dw, flat);
}

static void convolutions_backward(struct net *n, real *const gradient[PARAM_COUNT])
{
    const int count = (int)n->count, hidden = (int)n->hidden, flat = (int)n->flat_size;
    const size_t k = KERNEL_TAPS * n->c1;
    /* dflat (N, FLAT) = dh x w */
    GEMM(CblasRowMajor, CblasNoTrans, CblasNoTrans, count, flat, hidden, 1, n->dh, hidden,
         n->part[NET_VALUE][FC1_WEIGHT], flat, 0, n->dflat, flat);
    memset(n->dw2, 0, n->c2 * k * sizeof(real));
    memset(n->da1, 0, n->count * PADDED_PIXELS * n->c1 * sizeof(real));
    memset(gradient[CONV2_BIAS], 0, n->c2 * sizeof(real));
    for (size_t i = 0; i < n->count; i += BACKWARD_ITEMS) {
        const size_t some = n->count - i < BACKWARD_ITEMS ? n->count - i : BACKWARD_ITEMS;
        list_gradients(n, i, some);
        conv2_backward(n, i, some, gradient[CONV2_BIAS]);
    }
    for (size_t c = 0; c < n->c2; c++)
        taps_last(n->dw2 + c * k, n->c1, gradient[CONV2_WEIGHT] + c * k);
}

static void first_layer_backward(struct net *n, real *const gradient[PARAM_COUNT])
{
    memset(n->dw1, 0, KERNEL_TAPS * n->c1 * sizeof(real));
    memset(gradient[CONV1_BIAS], 0, n->c1 * sizeof(real));
    for (size_t i = 0; i < n->count; i++)
        conv1_backward(n, i, gradient[CONV1_BIAS]);
    taps_last(n->dw1, n->c1, gradient[CONV1_WEIGHT]);
}

static int cpu_backward(struct net *n,
                        void *const gradient[PARAM_COUNT],
                        net_ready_fn *ready,
                        void *arg,
                        struct muster_error *err)
{
    real *g[PARAM_COUNT];
    for (size_t i = 0; i < PARAM_COUNT; i++)
        g[i] = gradient[i];
    for (size_t i = PARAM_COUNT; i-- > 0;) {
        if (i == FC2_BIAS) /* Each layer's first call fills both of its gradients. */
            fc2_backward(n, g[FC2_WEIGHT], g[FC2_BIAS]);
        else if (i == FC1_BIAS)
            fc1_backward(n, g[FC1_WEIGHT], g[FC1_BIAS]);
        else if (i == CONV2_BIAS)
            convolutions_backward(n, g);
        else if (i == CONV1_BIAS)
            first_layer_backward(n, g);
        int r = ready(arg, i, err);
        if (r != 0)
            return r;
    }
    return 0;
}

static int cpu_update(struct net *n,
                      size_t first,
                      size_t count,
                      void *const gradient[PARAM_COUNT],
                      const struct adamw *a,
                      uint64_t step,
                      struct muster_error *err)
{
    (void)err; /* Cannot fail. */
    for (size_t i = first; i < first + count; i++)
        ADAMW(n->part[NET_VALUE][i], n->part[NET_MEAN][i], n->part[NET_SQUARE][i], gradient[i],
              n->shape[i].count, a, step);
    return 0;
}

const struct net_ops OPS = {
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .part = cpu_part,
    .get = cpu_get,
    .set = cpu_set,
    .stream = cpu_stream,
    .memory = cpu_memory,
    .host_alloc = cpu_host_alloc,
    .host_free = free,
    .stage = NULL, /* Memory is memory. */
    .forward = cpu_forward,
    .loss = cpu_loss,
    .backward = cpu_backward,
    .update = cpu_update,
};
