/* The network on a GPU beside the one on the CPU, on the same numbers.
 *
 * nccl_nets DATA float32|float64 STEPS [WIDTH]
 *
 * Prints how far they are from each other: gradients of the first step (relative L2), the loss of
 * each of STEPS steps (largest relative difference), weights at the end; whether a second run gives
 * the same bits; and samples a second of both. Status 0 if they agree, 1 if not, 77 where there is
 * no GPU. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "trainer-example/cuda.h"

#define BATCH 32

struct data {
    unsigned char *file;
    uint32_t count;
};
struct run {
    double *loss;  /* By step. */
    double *first; /* Gradients of step 1, one after the other. */
    double *value; /* Weights at the end, likewise. */
    double seconds;
};
struct plan {
    struct data data;
    enum muster_dtype dtype;
    uint32_t steps, width;
    struct shape shape[PARAM_COUNT];
    size_t total; /* Numbers of all parameters. */
};

static void fail(const char *what, const struct muster_error *err)
{
    fprintf(stderr, "nccl_nets: %s: %s\n", what, err == NULL ? "no memory" : err->text);
    exit(1);
}

static void *zeroed(size_t count, size_t size)
{
    void *p = calloc(count, size);
    if (p == NULL)
        fail("memory", NULL);
    return p;
}

static double now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static struct data read_data(const char *path)
{
    struct data d = {0};
    FILE *f = fopen(path, "rb");
    unsigned char head[28];
    if (f == NULL || fread(head, 1, sizeof head, f) != sizeof head ||
        memcmp(head, "MUSTDS01", 8) != 0) {
        fprintf(stderr, "nccl_nets: '%s' is no data set\n", path);
        exit(2);
    }
    memcpy(&d.count, head + 8, sizeof d.count);
    d.file = zeroed(d.count, IMAGE_PIXELS + 1);
    if (fread(d.file, IMAGE_PIXELS + 1, d.count, f) != d.count) {
        fprintf(stderr, "nccl_nets: '%s' is too short\n", path);
        exit(2);
    }
    (void)fclose(f);
    return d;
}

static void put(void *to, size_t at, double v, enum muster_dtype t)
{
    if (t == MUSTER_F64)
        ((double *)to)[at] = v;
    else
        ((float *)to)[at] = (float)v;
}

static double take(const void *from, size_t at, enum muster_dtype t)
{
    return t == MUSTER_F64 ? ((const double *)from)[at] : (double)((const float *)from)[at];
}

/* Every third batch is short, as the last one of an epoch is. */
static void
fill(const struct plan *p, uint32_t step, void *images, int32_t *labels, struct batch *ret)
{
    uint32_t count = step % 3 == 1 ? BATCH - 5 : BATCH;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t item = (step * BATCH + i) * 31 % p->data.count;
        for (uint32_t k = 0; k < IMAGE_PIXELS; k++)
            put(images, i * IMAGE_PIXELS + k, p->data.file[item * IMAGE_PIXELS + k] / 16.0,
                p->dtype);
        labels[i] = p->data.file[p->data.count * IMAGE_PIXELS + item];
    }
    *ret = (struct batch){images, labels, count};
}

struct seen {
    size_t next; /* The parameter whose gradient must come now, plus one. */
};

static int ready(void *arg, size_t i, struct muster_error *err)
{
    struct seen *s = arg;
    if (i + 1 != s->next) {
        fprintf(stderr, "nccl_nets: gradient %zu came instead of %zu\n", i, s->next - 1);
        exit(1);
    }
    s->next = i;
    return 0;
}

static void first_values(const struct plan *p, const struct net_ops *ops, struct net *net)
{
    struct muster_error err = {0};
    float *first[PARAM_COUNT];
    for (size_t i = 0; i < PARAM_COUNT; i++)
        first[i] = zeroed(p->shape[i].count, sizeof(float));
    model_init(p->width, 0, first);
    for (size_t i = 0; i < PARAM_COUNT; i++) {
        void *host = zeroed(p->shape[i].count, sizeof(double));
        for (size_t k = 0; k < p->shape[i].count; k++)
            put(host, k, (double)first[i][k], p->dtype);
        if (ops->set(net, NET_VALUE, i, host, &err) < 0)
            fail("set", &err);
        free(host);
        free(first[i]);
    }
}

/* Gradients lie where the reducer of a world of one would put them. */
static void *
open_gradients(const struct plan *p, const struct muster_ddp_memory *memory, void *ret[PARAM_COUNT])
{
    size_t bytes = 0;
    for (size_t i = 0; i < PARAM_COUNT; i++)
        bytes += (p->shape[i].count * sizeof(double) + 63) / 64 * 64;
    char *at = memory == NULL ? zeroed(1, bytes) : memory->alloc(memory->arg, bytes);
    if (at == NULL)
        fail("gradients", NULL);
    void *whole = at;
    for (size_t i = 0; i < PARAM_COUNT; i++) {
        ret[i] = at;
        at += (p->shape[i].count * sizeof(double) + 63) / 64 * 64;
    }
    return whole;
}

static void read_all(const struct plan *p,
                     const struct muster_ddp_memory *memory,
                     void *const from[PARAM_COUNT],
                     double *ret)
{
    for (size_t i = 0; i < PARAM_COUNT; i++) {
        size_t bytes = p->shape[i].count * muster_dtype_bytes(p->dtype);
        void *host = zeroed(1, bytes);
        if (memory == NULL)
            memcpy(host, from[i], bytes);
        else if (memory->read(memory->arg, host, from[i], bytes) < 0)
            fail("read", NULL);
        for (size_t k = 0; k < p->shape[i].count; k++)
            *ret++ = take(host, k, p->dtype);
        free(host);
    }
}

static void one_step(const struct plan *p,
                     const struct net_ops *ops,
                     struct net *net,
                     const struct batch *b,
                     const struct batch *next,
                     void *const gradient[PARAM_COUNT],
                     uint32_t step,
                     struct run *r)
{
    static const struct adamw adamw = {1e-3, 0.9, 0.999, 1e-8, 0.01};
    struct muster_error err = {0};
    uint32_t correct = 0;
    struct seen seen = {PARAM_COUNT};
    if (ops->forward(net, b, &err) < 0)
        fail("forward", &err);
    if (next != NULL && ops->stage != NULL && ops->stage(net, next, &err) < 0)
        fail("stage", &err);
    if (ops->backward(net, gradient, ready, &seen, &err) < 0)
        fail("backward", &err);
    if (ops->loss(net, &r->loss[step], &correct, &err) < 0)
        fail("loss", &err);
    if (ops->update(net, 0, PARAM_COUNT, gradient, &adamw, step + 1, &err) < 0)
        fail("update", &err);
}

static struct run run(const struct plan *p, const struct net_ops *ops, muster_comm *comm)
{
    struct muster_error err = {0};
    struct net *net = NULL;
    struct net_options o = {p->width, BATCH, p->dtype, 0};
    struct run r = {zeroed(p->steps, sizeof(double)), zeroed(p->total, sizeof(double)),
                    zeroed(p->total, sizeof(double)), 0};
    void *gradient[PARAM_COUNT];
    void *value[PARAM_COUNT];
    void *images[2];
    int32_t *labels[2];
    struct batch batch[2];
    if (ops->open(&o, &net, &err) < 0)
        fail("open", &err);
    const struct muster_ddp_memory *memory = ops->memory == NULL ? NULL : ops->memory(net, comm);
    void *whole = open_gradients(p, memory, gradient);
    first_values(p, ops, net);
    for (int i = 0; i < 2; i++) {
        images[i] = ops->host_alloc(BATCH * IMAGE_PIXELS * sizeof(double));
        labels[i] = ops->host_alloc(BATCH * sizeof(int32_t));
    }
    fill(p, 0, images[0], labels[0], &batch[0]);
    double from = now();
    for (uint32_t step = 0; step < p->steps; step++) {
        uint32_t next = (step + 1) % 2;
        bool is_last = step + 1 == p->steps;
        if (!is_last)
            fill(p, step + 1, images[next], labels[next], &batch[next]);
        one_step(p, ops, net, &batch[step % 2], is_last ? NULL : &batch[next], gradient, step, &r);
        if (step == 0) {
            read_all(p, memory, gradient, r.first);
            from = now();
        }
    }
    r.seconds = now() - from; /* The last loss() waited for all but the last update. */
    for (size_t i = 0; i < PARAM_COUNT; i++)
        value[i] = ops->part(net, NET_VALUE, i);
    read_all(p, memory, value, r.value);
    for (int i = 0; i < 2; i++) {
        ops->host_free(images[i]);
        ops->host_free(labels[i]);
    }
    if (memory == NULL)
        free(whole);
    else
        memory->release(memory->arg, whole);
    ops->close(net);
    return r;
}

static double distance(const double *a, const double *b, size_t n)
{
    double d = 0;
    double whole = 0;
    for (size_t i = 0; i < n; i++) {
        d += (a[i] - b[i]) * (a[i] - b[i]);
        whole += a[i] * a[i];
    }
    return sqrt(d / whole);
}

static bool same_bits(const struct plan *p, const struct run *a, const struct run *b)
{
    return memcmp(a->loss, b->loss, p->steps * sizeof *a->loss) == 0 &&
           memcmp(a->value, b->value, p->total * sizeof *a->value) == 0;
}

static int compare(const struct plan *p, muster_comm *comm)
{
    bool wide = p->dtype == MUSTER_F64;
    struct run cpu = run(p, wide ? &net_cpu_f64 : &net_cpu_f32, comm);
    struct run gpu = run(p, &net_cuda, comm);
    struct run again = run(p, &net_cuda, comm);
    double gradients = distance(cpu.first, gpu.first, p->total);
    double losses = 0;
    for (uint32_t i = 0; i < p->steps; i++) {
        double d = fabs(cpu.loss[i] - gpu.loss[i]) / fabs(cpu.loss[i]);
        losses = d > losses || isnan(d) ? d : losses;
    }
    double values = distance(cpu.value, gpu.value, p->total);
    bool is_same = same_bits(p, &gpu, &again);
    double samples = (double)(p->steps - 1) * BATCH;
    printf("gradients %.3g\nlosses %.3g\nweights %.3g\nsame bits %s\nsamples/s cpu %.0f gpu %.0f\n",
           gradients, losses, values, is_same ? "yes" : "no", samples / cpu.seconds,
           samples / gpu.seconds);
    /* float32: each step rounds anew, and both go their own way from there. */
    bool ok = is_same && gradients < (wide ? 1e-13 : 1e-5) && losses < (wide ? 1e-9 : 1e-2) &&
              values < (wide ? 1e-9 : 1e-2);
    struct run all[] = {cpu, gpu, again};
    for (size_t i = 0; i < 3; i++) {
        free(all[i].loss);
        free(all[i].first);
        free(all[i].value);
    }
    return ok ? 0 : 1;
}

int main(int argc, char **argv)
{
    struct muster_error err = {0};
    const char *why = "";
    if (argc < 4) {
        fprintf(stderr, "usage: nccl_nets DATA float32|float64 STEPS [WIDTH]\n");
        return 2;
    }
    if (!net_cuda_usable(&why)) {
        printf("skipped: %s\n", why);
        return 77;
    }
    struct plan p = {.data = read_data(argv[1]),
                     .dtype = strcmp(argv[2], "float64") == 0 ? MUSTER_F64 : MUSTER_F32,
                     .steps = (uint32_t)strtoul(argv[3], NULL, 10),
                     .width = argc > 4 ? (uint32_t)strtoul(argv[4], NULL, 10) : 1};
    model_shapes(p.width, p.shape);
    for (size_t i = 0; i < PARAM_COUNT; i++)
        p.total += p.shape[i].count;
    muster *m = NULL;
    muster_comm *comm = NULL;
    struct muster_comm_options o = MUSTER_COMM_OPTIONS_INIT;
    o.backend = "tcp"; /* Alone, nothing moves. */
    if (muster_open(NULL, &m, &err) < 0 || muster_comm_open(m, &o, &comm, &err) < 0)
        fail("alone", &err);
    int status = compare(&p, comm);
    muster_comm_close(comm);
    muster_close(m);
    free(p.data.file);
    return status;
}
