/* Data-parallel training from top to bottom: read main() first, then the functions in its order.
 *
 * Every rank has the whole network and a part of the data. A step: each rank works out the
 * gradients of its own batch, all gradients are averaged, and every rank makes the same update to
 * its own copy of the weights. The averaging of one layer goes on while the layers below it are
 * still being worked out. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <muster/checkpoint.h>
#include <muster/comm.h>
#include <muster/ddp.h>
#include <muster/muster.h>
#include <muster/progress.h>
#include <muster/sampler.h>
#include <muster/store.h>

#include "trainer-example/data.h"
#include "trainer-example/events.h"
#include "trainer-example/failure.h"
#include "trainer-example/model.h"
#include "trainer-example/options.h"
#include "trainer-example/state.h"
#ifdef TRAINER_CUDA
#include "trainer-example/cuda.h"
#endif

struct trainer {
    struct settings set;
    struct muster_error err;

    /* The group. */
    muster *group;
    const struct muster_env *env;
    muster_comm *comm; /* For gradients. */
    muster_comm
        *host; /* For numbers in the CPU's memory: the same one, or a second one beside NCCL. */

    /* The network. */
    const struct net_ops *ops;
    struct net *net;
    struct shape shape[PARAM_COUNT];
    muster_ddp *ddp;
    void *gradient[PARAM_COUNT];

    /* The data. */
    struct dataset data;
    muster_sampler *sampler;
    struct loader *loader;
    int64_t *test_items; /* This rank's part of them. */
    size_t test_count;

    /* Where we are. */
    struct position at; /* The same on all ranks. */
    double loss_sum;    /* Of this rank, since at.loss_sum was added up last. */
    uint64_t loss_items;
    double seconds;       /* Training, this epoch; without tests and checkpoints. */
    uint64_t timed_items; /* Items of this rank in them. */
    bool stop;            /* The group was asked to. */
    FILE *events;
    int64_t bar_drawn_ns;
};

/* --- When something fails --- */

/* Any call that fails ends this rank with one sentence, which the launcher also gets as the cause.
 * The launcher then ends or restarts the whole group. */
static _Noreturn void give_up(struct trainer *t, const char *file, int line, const char *call)
{
    const char *name = strrchr(file, '/');
    char who[32] = "";
    if (t->env != NULL)
        (void)snprintf(who, sizeof who, "rank %u: ", t->env->rank);
    (void)muster_fail(t->group, t->err.text, NULL); /* First: what follows is news for others. */
    fprintf(stderr, "trainer: %s%s (%s:%d: %s)\n", who, t->err.text, name == NULL ? file : name + 1,
            line, call);
    if (t->comm != NULL) /* The other ranks need not wait for a time-out, and hear why. */
        muster_comm_abort(t->comm, t->err.text);
    exit(EXIT_FAILURE);
}

#define TRY(t, call)                                                                               \
    do {                                                                                           \
        if ((call) < 0)                                                                            \
            give_up((t), __FILE__, __LINE__, #call);                                               \
    } while (0)

/* --- Set up --- */

static muster *signalled; /* For the handler: the only thing that is not in struct trainer. */

static void on_sigterm(int signo)
{
    (void)signo;
    muster_request_stop(signalled);
}

/* From here on SIGTERM means: stop after this step. Until then, and the second time, it ends this
 * process as it ends any. */
static void listen_to_sigterm(struct trainer *t)
{
    signalled = t->group;
    struct sigaction action = {.sa_handler = on_sigterm,
                               .sa_flags = (int)(SA_RESTART | SA_RESETHAND)};
    sigemptyset(&action.sa_mask);
    (void)sigaction(SIGTERM, &action, NULL); /* Cannot fail with these arguments. */
}

static void join_group(struct trainer *t)
{
    struct muster_options o = MUSTER_OPTIONS_INIT;
    o.timeout_ns = (int64_t)t->set.timeout_s * INT64_C(1000000000);
    TRY(t, muster_open(&o, &t->group, &t->err));
    t->env = muster_get_env(t->group);
}

/* A GPU for each rank of a node, or one core for each. */
static void bind_device(struct trainer *t)
{
    t->ops = t->set.dtype == MUSTER_F64 ? &net_cpu_f64 : &net_cpu_f32;
    const char *why = "this trainer was built without CUDA";
    bool cuda = false;
#ifdef TRAINER_CUDA
    cuda = net_cuda_usable(&why);
    if (cuda && t->set.device != DEVICE_CPU)
        t->ops = &net_cuda;
#endif
    if (!cuda && t->set.device == DEVICE_CUDA)
        TRY(t, failure(&t->err, -ENODEV, "--device cuda: %s", why));
    const struct net_options o = {t->set.width, t->set.batch, (enum muster_dtype)t->set.dtype,
                                  (int)t->env->local_rank};
    TRY(t, t->ops->open(&o, &t->net, &t->err));
    model_shapes(t->set.width, t->shape);
}

static void connect_ranks(struct trainer *t)
{
    const bool cpu = strcmp(t->ops->name, "cpu") == 0;
    struct muster_comm_options o = MUSTER_COMM_OPTIONS_INIT;
    o.timeout_ns = (int64_t)t->set.timeout_s * INT64_C(1000000000);
    o.backend = t->set.backend == BACKEND_NCCL ? "nccl" : NULL;
    if (cpu || t->set.backend == BACKEND_TCP)
        o.backend = "tcp";
    o.stream = t->ops->stream(t->net);
    TRY(t, muster_comm_open(t->group, &o, &t->comm, &t->err));
    t->host = t->comm;
    if (strcmp(muster_comm_backend(t->comm), "tcp") != 0) {
        o.backend = "tcp";
        o.name = "host";
        TRY(t, muster_comm_open(t->group, &o, &t->host, &t->err));
    }
}

static void open_data(struct trainer *t)
{
    TRY(t, dataset_open(&t->data, t->set.data, &t->err));
    const struct loader_options lo = {&t->data, t->ops, (enum muster_dtype)t->set.dtype,
                                      t->set.batch, t->set.workers};
    TRY(t, loader_open(&lo, &t->loader, &t->err));
    struct muster_sampler_options so = MUSTER_SAMPLER_OPTIONS_INIT;
    so.item_count = t->data.train_count;
    so.world = t->env->world;
    so.rank = t->env->rank;
    so.seed = t->set.seed;
    TRY(t, muster_sampler_open(&so, &t->sampler, &t->err));

    /* Test items are dealt out like cards. */
    t->test_items = calloc(t->data.count - t->data.train_count, sizeof *t->test_items);
    if (t->test_items == NULL)
        TRY(t, failure(&t->err, -ENOMEM, "no memory for the list of test items"));
    for (uint32_t i = t->data.train_count + t->env->rank; i < t->data.count; i += t->env->world)
        t->test_items[t->test_count++] = i;
}

static void first_weights(struct trainer *t)
{
    if (t->set.init != NULL) {
        TRY(t, weights_load(t->set.init, false, t->ops, t->net, t->set.width,
                            (enum muster_dtype)t->set.dtype, &t->err));
        return;
    }
    float *value[PARAM_COUNT];
    for (size_t i = 0; i < PARAM_COUNT; i++) {
        value[i] = malloc(t->shape[i].count * sizeof(double));
        if (value[i] == NULL)
            TRY(t, failure(&t->err, -ENOMEM, "no memory for the first weights"));
    }
    model_init(t->set.width, t->set.seed, value);
    for (size_t i = 0; i < PARAM_COUNT; i++) {
        if (t->set.dtype == MUSTER_F64) /* In place, from the end. */
            for (size_t k = t->shape[i].count; k-- > 0;)
                ((double *)(void *)value[i])[k] = (double)value[i][k];
        TRY(t, t->ops->set(t->net, NET_VALUE, i, value[i], &t->err));
        free(value[i]);
    }
}

/* Better now than after the first epoch, which would be lost. */
static int can_save(const char *folder, struct muster_error *err)
{
    if (mkdir(folder, 0777) < 0 && errno != EEXIST)
        return failure(err, -errno, "make the folder '%s' (--checkpoint): %s", folder,
                       strerror(errno));
    if (access(folder, W_OK | X_OK) < 0)
        return failure(err, -errno, "checkpoints cannot be written to '%s' (--checkpoint): %s",
                       folder, strerror(errno));
    return 0;
}

/* What one rank does for all: the weights to begin with, of the newest checkpoint where there is
 * one. */
static void set_up_once(struct trainer *t)
{
    char folder[4096];
    uint64_t step;
    int found = 0;
    if (t->set.checkpoint != NULL)
        TRY(t, can_save(t->set.checkpoint, &t->err));
    if (t->set.checkpoint != NULL)
        TRY(t, found = muster_checkpoint_latest(t->set.checkpoint, &step, folder, sizeof folder,
                                                &t->err));
    if (found == 0) {
        first_weights(t);
        return;
    }
    TRY(t, state_load(folder, &t->at, t->ops, t->net, t->set.width, (enum muster_dtype)t->set.dtype,
                      &t->err));
    muster_log(t->group, false, "going on from %s: epoch %" PRIu64 ", step %" PRIu64, folder,
               t->at.epoch, t->at.step);
}

/* Rank 0's position and AdamW's means to all; muster_ddp_open() does the same for the weights. A
 * checkpoint need not be where others can read it. */
static void share_state(struct trainer *t)
{
    muster_ticket ticket;
    TRY(t, muster_comm_broadcast(t->host, &t->at, sizeof t->at, MUSTER_U8, 0, &ticket, &t->err));
    TRY(t, muster_comm_wait(t->host, ticket, -1, &t->err));
    if (t->at.step == 0)
        return;
    const enum muster_dtype type = (enum muster_dtype)t->set.dtype;
    for (enum net_part p = NET_MEAN; p < NET_PART_COUNT; p++) {
        for (size_t i = 0; i < PARAM_COUNT; i++) {
            void *copy = malloc(t->shape[i].count * muster_dtype_bytes(type));
            if (copy == NULL)
                TRY(t, failure(&t->err, -ENOMEM, "no memory to share %s", t->shape[i].name));
            TRY(t, t->ops->get(t->net, p, i, copy, &t->err));
            TRY(t,
                muster_comm_broadcast(t->host, copy, t->shape[i].count, type, 0, &ticket, &t->err));
            TRY(t, muster_comm_wait(t->host, ticket, -1, &t->err));
            TRY(t, t->ops->set(t->net, p, i, copy, &t->err));
            free(copy);
        }
    }
}

static void open_reducer(struct trainer *t)
{
    struct muster_tensor tensor[PARAM_COUNT];
    for (size_t i = 0; i < PARAM_COUNT; i++)
        tensor[i] = (struct muster_tensor){t->shape[i].name, t->ops->part(t->net, NET_VALUE, i),
                                           t->shape[i].count};
    struct muster_ddp_options o = MUSTER_DDP_OPTIONS_INIT;
    o.bucket_bytes = o.first_bucket_bytes = (size_t)t->set.bucket_kib << 10;
    o.timeout_ns = (int64_t)t->set.timeout_s * INT64_C(1000000000);
    o.memory = t->ops->memory(t->net, t->comm);
    TRY(t, muster_ddp_open(t->comm, tensor, PARAM_COUNT, (enum muster_dtype)t->set.dtype, &o,
                           &t->ddp, &t->err));
    for (size_t i = 0; i < PARAM_COUNT; i++)
        t->gradient[i] = muster_ddp_gradient(t->ddp, i);
}

/* --- Talk --- */

static int64_t now_ns(void)
{
    struct timespec ts;
    (void)clock_gettime(CLOCK_MONOTONIC, &ts); /* Cannot fail with this clock. */
    return (int64_t)ts.tv_sec * INT64_C(1000000000) + ts.tv_nsec;
}

static void say_start(struct trainer *t)
{
    size_t count = 0;
    for (size_t i = 0; i < PARAM_COUNT; i++)
        count += t->shape[i].count;
    muster_log(t->group, false, "%u rank%s, %s, %s over %s, %zu parameters in %zu buckets",
               t->env->world, t->env->world == 1 ? "" : "s",
               t->set.dtype == MUSTER_F64 ? "float64" : "float32", t->ops->name,
               muster_comm_backend(t->comm), count, muster_ddp_bucket_count(t->ddp));
    events_add(t->events, "start",
               "\"rank\":%u,\"world\":%u,\"pid\":%d,\"restarts\":%u,\"epoch\":%" PRIu64
               ",\"step\":%" PRIu64,
               t->env->rank, t->env->world, (int)getpid(), t->env->restart_count, t->at.epoch,
               t->at.step);
    if (t->events != NULL)
        fflush(t->events);
}

/* On a terminal: rank 0 alone, and some times a second at most. */
static void draw_bar(struct trainer *t, size_t done, size_t steps, double loss)
{
    enum {
        BAR_WIDTH = 30
    };
    if (!muster_is_main(t->group) || !isatty(STDERR_FILENO))
        return;
    const int64_t now = now_ns();
    if (done < steps && now - t->bar_drawn_ns < INT64_C(50000000))
        return;
    t->bar_drawn_ns = now;
    const int filled = (int)(done * BAR_WIDTH / steps);
    fprintf(stderr, "\repoch %" PRIu64 " [%.*s%*s] %zu/%zu loss %.4f ", t->at.epoch, filled,
            "##############################", BAR_WIDTH - filled, "", done, steps, loss);
    if (done == steps)
        fprintf(stderr, "\r%*s\r", BAR_WIDTH + 50, ""); /* The epoch's line comes here. */
}

/* --- One step --- */

static int on_ready(void *arg, size_t i, struct muster_error *err)
{
    struct trainer *t = arg;
    return t->set.overlap ? muster_ddp_ready(t->ddp, i, err) : 0;
}

/* What on_ready() left out. */
static void send_after_backward(struct trainer *t)
{
    for (size_t i = PARAM_COUNT; i-- > 0 && !t->set.overlap;)
        TRY(t, muster_ddp_ready(t->ddp, i, &t->err));
}

/* Returns the sum of the losses of the batch. */
static double train_step(struct trainer *t, const struct batch *batch)
{
    TRY(t, t->ops->forward(t->net, batch, &t->err));

    /* As the gradients of a bucket become complete, it sets off, while backward goes on. */
    TRY(t, t->ops->backward(t->net, t->gradient, on_ready, t, &t->err));
    send_after_backward(t);

    /* Buckets come back in order, and each is used while the next is still under way. */
    struct muster_bucket b;
    int more;
    t->at.step++;
    for (;;) {
        TRY(t, more = muster_ddp_next(t->ddp, &b, &t->err));
        if (more == 0)
            break;
        TRY(t, t->ops->update(t->net, b.first, b.count, t->gradient, &t->set.adamw, t->at.step,
                              &t->err));
    }

    double loss;
    uint32_t correct;
    TRY(t, t->ops->loss(t->net, &loss, &correct, &t->err));
    return loss;
}

/* --- Checkpoints --- */

/* Sums over all ranks, in place. */
static void add_up(struct trainer *t, double *sums, size_t count)
{
    muster_ticket ticket;
    TRY(t, muster_comm_all_reduce(t->host, sums, count, MUSTER_F64, MUSTER_SUM, &ticket, &t->err));
    TRY(t, muster_comm_wait(t->host, ticket, -1, &t->err));
}

static void add_up_loss(struct trainer *t)
{
    double sums[2] = {t->loss_sum, (double)t->loss_items};
    add_up(t, sums, 2);
    t->at.loss_sum += sums[0];
    t->at.loss_items += (uint64_t)sums[1];
    t->loss_sum = 0;
    t->loss_items = 0;
}

static void save(struct trainer *t)
{
    muster_checkpoint *k;
    TRY(t, muster_checkpoint_begin(t->group, t->host, t->set.checkpoint, t->at.step, &k, &t->err));
    if (muster_is_main(t->group)) {
        const int r = state_save(muster_checkpoint_path(k), &t->at, t->ops, t->net, t->set.width,
                                 (enum muster_dtype)t->set.dtype, &t->err);
        if (r < 0) {
            muster_checkpoint_discard(k);
            TRY(t, r);
        }
    }
    TRY(t, muster_checkpoint_commit(k, &t->err));
    if (muster_is_main(t->group) && t->set.keep != 0)
        TRY(t, muster_checkpoint_prune(t->set.checkpoint, t->set.keep, &t->err));
    events_add(t->events, "checkpoint", "\"epoch\":%" PRIu64 ",\"step\":%" PRIu64, t->at.epoch,
               t->at.step);
}

/* --- One epoch --- */

/* What is done after each step. */
static void
after_step(struct trainer *t, size_t k, size_t steps, const struct batch *batch, double loss)
{
    const double mean = loss / batch->count;
    t->loss_sum += loss;
    t->loss_items += batch->count;
    t->timed_items += batch->count;
    events_add(t->events, "step", "\"epoch\":%" PRIu64 ",\"step\":%zu,\"items\":%u,\"loss\":%.17g",
               t->at.epoch, k, batch->count, mean);
    draw_bar(t, k + 1, steps, mean);
    muster_progress(t->group, t->at.step);
    if (t->set.log_steps != 0 && t->at.step % t->set.log_steps == 0) {
        muster_log(t->group, false, "step %" PRIu64 " loss %.6f", t->at.step, mean);
        if (t->events != NULL)
            fflush(t->events);
    }
    TRY(t, muster_should_stop(t->group, t->host, t->at.step, &t->stop, &t->err));
}

static void say_order(struct trainer *t, const int64_t *items, size_t count)
{
    if (t->events == NULL)
        return;
    fprintf(t->events, "{\"event\":\"order\",\"epoch\":%" PRIu64 ",\"items\":[", t->at.epoch);
    for (size_t i = 0; i < count; i++)
        fprintf(t->events, "%s%" PRId64, i == 0 ? "" : ",", items[i]);
    fputs("]}\n", t->events);
}

/* Returns true at the end of the epoch, false when the group is to stop before. */
static bool train_epoch(struct trainer *t)
{
    /* Without set_epoch each epoch would have the order of the first. */
    TRY(t, muster_sampler_set_epoch(t->sampler, t->at.epoch, &t->err));
    const int64_t *items = muster_sampler_indices(t->sampler);
    const size_t count = (size_t)muster_sampler_len(t->sampler);
    const size_t steps = (count + t->set.batch - 1) / t->set.batch;
    const uint64_t step_items = (uint64_t)t->set.batch * t->env->world; /* Of all ranks. */
    /* After a restart with another world: the last whole step of the new size; a few items are seen
     * twice. */
    const size_t first = (size_t)(t->at.epoch_items / step_items);
    say_order(t, items, count);
    loader_start(t->loader, items, count, first);
    t->seconds = 0;
    t->timed_items = 0;

    const struct batch *batch = loader_next(t->loader);
    int64_t began = now_ns();
    for (size_t k = first; batch != NULL; k++) {
        const struct batch *coming = loader_next(t->loader);
        if (coming != NULL && t->ops->stage != NULL)
            TRY(t,
                t->ops->stage(t->net, coming, &t->err)); /* Copied while this one is worked on. */
        const double loss = train_step(t, batch);
        t->at.epoch_items = (k + 1) * step_items;
        after_step(t, k, steps, batch, loss);
        const bool due = t->set.every != 0 && t->at.step % t->set.every == 0;
        if (t->set.checkpoint != NULL && (due || t->stop) && k + 1 < steps) {
            t->seconds += (double)(now_ns() - began) * 1e-9;
            add_up_loss(t);
            save(t);
            began = now_ns();
        }
        if (t->stop && k + 1 < steps)
            return false;
        batch = coming;
    }
    t->seconds += (double)(now_ns() - began) * 1e-9;
    return true;
}

struct test_result {
    double loss;
    uint32_t correct, items;
};

static struct test_result test(struct trainer *t)
{
    double sums[3] = {0}; /* Loss, right answers, items. */
    loader_start(t->loader, t->test_items, t->test_count, 0);
    for (const struct batch *b; (b = loader_next(t->loader)) != NULL;) {
        double loss;
        uint32_t correct;
        TRY(t, t->ops->forward(t->net, b, &t->err));
        TRY(t, t->ops->loss(t->net, &loss, &correct, &t->err));
        sums[0] += loss;
        sums[1] += correct;
        sums[2] += b->count;
    }
    add_up(t, sums, 3);
    return (struct test_result){sums[0] / sums[2], (uint32_t)sums[1], (uint32_t)sums[2]};
}

/* For the event of an epoch: tells runs apart better than a loss. */
static void sum_weights(struct trainer *t, double *ret_l2, double *ret_sum, double *ret_absmax)
{
    double square = 0, sum = 0, absmax = 0;
    for (size_t i = 0; i < PARAM_COUNT; i++) {
        double *copy = malloc(t->shape[i].count * sizeof(double));
        if (copy == NULL)
            TRY(t, failure(&t->err, -ENOMEM, "no memory to look at the weights"));
        TRY(t, t->ops->get(t->net, NET_VALUE, i, copy, &t->err));
        for (size_t k = 0; k < t->shape[i].count; k++) {
            const double v =
                t->set.dtype == MUSTER_F64 ? copy[k] : (double)((float *)(void *)copy)[k];
            square += v * v;
            sum += v;
            absmax = fmax(absmax, fabs(v));
        }
        free(copy);
    }
    *ret_l2 = sqrt(square);
    *ret_sum = sum;
    *ret_absmax = absmax;
}

/* Most memory this process has had at once, or 0 where the system does not say. */
static unsigned peak_kib(void)
{
    char line[128];
    unsigned kib = 0;
    FILE *f = fopen("/proc/self/status", "re");
    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        if (sscanf(line, "VmHWM: %u", &kib) == 1)
            break;
    if (f != NULL)
        fclose(f);
    return kib;
}

static void report(struct trainer *t, const struct test_result *test, uint64_t hash)
{
    const double loss = t->at.loss_sum / (double)t->at.loss_items;
    const double speed = (double)(t->timed_items * t->env->world) / t->seconds;
    if (muster_is_main(t->group)) {
        printf("epoch %" PRIu64
               ": loss %.6f, test loss %.6f, accuracy %.2f%% (%u of %u), %.0f samples/s, %.2f s\n",
               t->at.epoch, loss, test->loss, 100.0 * test->correct / test->items, test->correct,
               test->items, speed, t->seconds);
        fflush(stdout);
    }
    if (t->events == NULL)
        return;
    double l2, sum, absmax;
    sum_weights(t, &l2, &sum, &absmax);
    events_add(t->events, "epoch",
               "\"epoch\":%" PRIu64 ",\"step\":%" PRIu64
               ",\"train_loss\":%.17g,\"test_loss\":%.17g,\"test_correct\":%u,\"test_items\":%u,"
               "\"seconds\":%.6f,\"samples_per_s\":%.1f,\"peak_kib\":%u,\"hash\":\"%016" PRIx64
               "\",\"weights\":{\"l2\":%.17g,\"sum\":%.17g,\"absmax\":%.17g}",
               t->at.epoch, t->at.step, loss, test->loss, test->correct, test->items, t->seconds,
               speed, peak_kib(), hash, l2, sum, absmax);
    fflush(t->events);
}

static void finish_epoch(struct trainer *t)
{
    uint64_t hash;
    const struct test_result result = test(t);
    TRY(t,
        muster_ddp_check_equal(t->ddp, &hash, &t->err)); /* Ranks that drift apart train nothing. */
    add_up_loss(t);
    report(t, &result, hash);
    const uint64_t step = t->at.step;
    t->at = (struct position){.step = step, .epoch = t->at.epoch + 1};
    const bool due =
        t->set.every == 0 || step % t->set.every == 0 || t->at.epoch == t->set.epochs || t->stop;
    if (t->set.checkpoint != NULL && due)
        save(t);
}

/* --- Tear down --- */

static void tear_down(struct trainer *t)
{
    const bool lost = t->events != NULL && ferror(t->events) != 0;
    if (t->events != NULL && (fclose(t->events) != 0 || lost))
        muster_log(t->group, true, "not all events (--events) could be written: is the disk full?");
    loader_close(t->loader);
    muster_sampler_close(t->sampler);
    dataset_close(&t->data);
    free(t->test_items);
    muster_ddp_close(t->ddp);
    if (t->host != t->comm)
        muster_comm_close(t->host);
    muster_comm_close(t->comm);
    t->ops->close(t->net);
    signal(SIGTERM, SIG_DFL);
    muster_close(t->group);
}

/* What was printed has arrived: a full disk must not look like success. */
static int end_of_output(void)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return EXIT_SUCCESS;
    perror("trainer: cannot write to standard output");
    return EXIT_FAILURE;
}

int main(int argc, char *argv[])
{
    struct trainer t = {0};
    const int parsed = settings_parse(argc, argv, &t.set);
    if (parsed != 0)
        return parsed > 0 ? end_of_output() : 2;

    join_group(&t);
    bind_device(&t);
    connect_ranks(&t);
    TRY(&t, events_open(t.set.events, t.env->rank, &t.events, &t.err));
    open_data(&t);
    if (muster_is_main(t.group))
        set_up_once(&t);
    TRY(&t, muster_comm_barrier(t.host, -1, &t.err)); /* The others wait here for rank 0. */
    share_state(&t);
    open_reducer(&t);
    say_start(&t);
    listen_to_sigterm(&t);

    while (t.at.epoch < t.set.epochs && !t.stop)
        if (train_epoch(&t))
            finish_epoch(&t);
    if (t.stop)
        muster_log(t.group, false, "asked to stop: ended after step %" PRIu64, t.at.step);
    tear_down(&t);
    return end_of_output();
}
