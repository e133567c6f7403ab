/* The network: its shapes and their order, and what a device must be able to do with it.
 *
 * This is the one source of truth. cpu.c and cuda.cu each fill one table of functions, trainer.c
 * calls nothing else of them, and a test runs both tables on the same numbers.
 *
 * (N, C, H, W) and so on are shapes, outermost first; all arrays are row-major. w is --width.
 *
 *     x        (N, 1, 8, 8)       pixel / 16
 *     conv1    (N, 32w, 8, 8)     3x3, one pixel of zeros around; ReLU
 *     conv2    (N, 64w, 8, 8)     3x3, one pixel of zeros around; ReLU
 *     pool     (N, 64w, 4, 4)     largest of 2x2; the first of equal ones (row by row) gets the
 * gradient flat     (N, 1024w)         channel, row, column fc1      (N, 128w)          ReLU fc2
 * (N, 10)            logits loss                        cross-entropy, mean over the N of this rank
 *
 * ReLU's gradient at 0 is 0. */
#ifndef TRAINER_MODEL_H
#define TRAINER_MODEL_H

#include <stddef.h>
#include <stdint.h>

#include <muster/ddp.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    IMAGE_SIDE = 8,
    IMAGE_PIXELS = IMAGE_SIDE * IMAGE_SIDE,
    IMAGE_LEVELS = 16, /* A pixel is divided by this. */
    POOL_SIDE = IMAGE_SIDE / 2,
    POOL_PIXELS = POOL_SIDE * POOL_SIDE,
    KERNEL_SIDE = 3,
    KERNEL_TAPS = KERNEL_SIDE * KERNEL_SIDE,
    CONV1_CHANNELS = 32, /* These three times --width. */
    CONV2_CHANNELS = 64,
    HIDDEN = 128,
    CLASSES = 10,
    WIDTH_MAX = 16
};

/* In the order of PyTorch's named_parameters(): of weight files, of buckets (reversed), of
 * everything. */
enum param {
    CONV1_WEIGHT, /* (32w, 1, 3, 3) */
    CONV1_BIAS,   /* (32w) */
    CONV2_WEIGHT, /* (64w, 32w, 3, 3) */
    CONV2_BIAS,   /* (64w) */
    FC1_WEIGHT,   /* (128w, 1024w) */
    FC1_BIAS,     /* (128w) */
    FC2_WEIGHT,   /* (10, 128w) */
    FC2_BIAS,     /* (10) */
    PARAM_COUNT
};

struct shape {
    const char *name; /* "conv1.weight": the name in weight files. */
    uint32_t rank;
    uint32_t dim[4];
    size_t count;  /* Product of dim. */
    size_t fan_in; /* Inputs that meet in one output of the layer: sets the range of the first
                      values. */
};
void model_shapes(uint32_t width, struct shape ret[PARAM_COUNT]);

/* The first values of all parameters, parameter i at value[i], as torch.manual_seed(seed) and
 * PyTorch's default initialisation give them, to the bit. Host memory. */
void model_init(uint32_t width, uint64_t seed, float *const value[PARAM_COUNT]);

/* --- A device --- */

struct batch {
    const void *images;    /* (count, 8, 8) of the net's type, in host memory of host_alloc(). */
    const int32_t *labels; /* (count), host memory of host_alloc(). */
    uint32_t count;
};

struct adamw {
    double lr, beta1, beta2, eps, weight_decay;
};

struct net_options {
    uint32_t width;
    uint32_t batch_max;      /* No batch is larger. */
    enum muster_dtype dtype; /* MUSTER_F32 or MUSTER_F64. */
    int device;              /* Which GPU; without meaning on a CPU. */
};

/* What is kept for each parameter: its value and AdamW's two means. */
enum net_part {
    NET_VALUE,
    NET_MEAN,   /* Of gradients; 0 at first. */
    NET_SQUARE, /* Of their squares; 0 at first. */
    NET_PART_COUNT
};

/* Called by backward() once for each parameter, as soon as its gradient is complete, last layer
 * first (from FC2_BIAS down to CONV1_WEIGHT). On a GPU "complete" means: the kernels that write it
 * are enqueued on stream(). Not 0: backward() ends at once and returns it. */
typedef int net_ready_fn(void *arg, size_t i, struct muster_error *err);

/* All functions return 0 or a negative errno with a sentence in err, unless they return a value.
 * Those of a GPU only enqueue on stream(); loss(), get() and set() wait. One thread. */
struct net; /* Each device has its own. */
struct net_ops {
    const char *name; /* "cpu", "cuda" */
    int (*open)(const struct net_options *o, struct net **ret, struct muster_error *err);
    void (*close)(struct net *n); /* Takes NULL. */

    /* Where one part of parameter i lives on the device, in PyTorch's layout; for muster_ddp_open()
     * and muster_comm_broadcast(). */
    void *(*part)(struct net *n, enum net_part p, size_t i);
    /* Copy one part of parameter i to or from host memory, in the net's type. */
    int (*get)(struct net *n, enum net_part p, size_t i, void *host, struct muster_error *err);
    int (*set)(
        struct net *n, enum net_part p, size_t i, const void *host, struct muster_error *err);
    /* For muster_comm_options.stream; NULL on a CPU. */
    void *(*stream)(struct net *n);
    /* For muster_ddp_options.memory of a reducer over `c`: what must happen between stream() and
     * the communicator is in its divide(). NULL on a CPU. Valid until close(). */
    const struct muster_ddp_memory *(*memory)(struct net *n, muster_comm *c);

    /* Memory of batches: pinned where the device copies from it. Needs no net. NULL when there is
     * none. */
    void *(*host_alloc)(size_t bytes);
    void (*host_free)(void *p); /* Takes NULL. */

    /* `b` is the batch that the forward() after next uses: start copying it. Its memory stays as it
     * is until the loss() of that batch. At most one batch is staged beside the one in use. May be
     * NULL. */
    int (*stage)(struct net *n, const struct batch *b, struct muster_error *err);

    /* Logits, loss and what backward() needs. */
    int (*forward)(struct net *n, const struct batch *b, struct muster_error *err);
    /* Of the last forward(): the sum of the items' losses, and how many logits are largest at the
     * label (the first of equal ones counts). */
    int (*loss)(struct net *n, double *ret_sum, uint32_t *ret_correct, struct muster_error *err);
    /* Gradients of the mean loss of the last forward(), written (not added) to gradient[i]: memory
     * of muster_ddp_gradient(), on the device. */
    int (*backward)(struct net *n,
                    void *const gradient[PARAM_COUNT],
                    net_ready_fn *ready,
                    void *arg,
                    struct muster_error *err);
    /* AdamW on parameters first .. first+count-1 with averaged gradients; step counts from 1. In
     * this order, with no multiply and add fused, so that ranks on different machines get the same
     * bits: p *= 1 - lr*wd m += (g - m) * (1 - beta1) v  = v * beta2 + g * g * (1 - beta2) p -=
     * lr/(1-beta1^step) * m / (sqrt(v)/sqrt(1-beta2^step) + eps) */
    int (*update)(struct net *n,
                  size_t first,
                  size_t count,
                  void *const gradient[PARAM_COUNT],
                  const struct adamw *a,
                  uint64_t step,
                  struct muster_error *err);
};

extern const struct net_ops net_cpu_f32;
extern const struct net_ops net_cpu_f64;
/* net_cuda is declared in cuda.h, and there where the build found CUDA (TRAINER_CUDA). One table
 * for both types: open() looks at options.dtype. */

#ifdef __cplusplus
}
#endif
#endif
