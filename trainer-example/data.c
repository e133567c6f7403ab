/* The mapped data set, and the loader's ring. */
#include "trainer-example/data.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "trainer-example/failure.h"

/* --- The file --- */

enum {
    HEADER_BYTES = 28
};

static uint32_t u32_at(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static int map_file(struct dataset *d, const char *path, struct muster_error *err)
{
    struct stat st;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return failure(err, -errno, "open '%s' (--data): %s", path, strerror(errno));
    if (fstat(fd, &st) < 0 || st.st_size < HEADER_BYTES) {
        close(fd);
        return failure(err, -EINVAL, "'%s' (--data) is too short for a file of images", path);
    }
    d->map_bytes = (size_t)st.st_size;
    d->map = mmap(NULL, d->map_bytes, PROT_READ, MAP_SHARED, fd, 0);
    const int code = errno;
    close(fd);
    if (d->map == MAP_FAILED) {
        d->map = NULL;
        return failure(err, -code, "map '%s' (--data): %s", path, strerror(code));
    }
    return 0;
}

static int check_labels(const struct dataset *d, const char *path, struct muster_error *err)
{
    for (uint32_t i = 0; i < d->count; i++)
        if (d->labels[i] >= CLASSES)
            return failure(err, -EINVAL,
                           "'%s' (--data): item %u has label %u, and there are %d classes", path, i,
                           d->labels[i], CLASSES);
    return 0;
}

int dataset_open(struct dataset *ret, const char *path, struct muster_error *err)
{
    struct dataset d = {0};
    int r = map_file(&d, path, err);
    const uint8_t *h = d.map;
    if (r < 0 || h == NULL)
        return r;
    d.count = u32_at(h + 8);
    const size_t bytes = HEADER_BYTES + (size_t)d.count * (IMAGE_PIXELS + 1);
    if (memcmp(h, "MUSTDS01", 8) != 0 || u32_at(h + 12) != IMAGE_SIDE ||
        u32_at(h + 16) != IMAGE_SIDE || u32_at(h + 20) != CLASSES ||
        u32_at(h + 24) != IMAGE_LEVELS) {
        r = failure(err, -EINVAL, "'%s' (--data) is no MUSTDS01 file of 8x8 images in 10 classes",
                    path);
    } else if (d.map_bytes != bytes || d.count < 2) {
        r = failure(
            err, -EINVAL,
            "'%s' (--data) says it has %u items, which are %zu bytes, but it has %zu: it was cut",
            path, d.count, bytes, d.map_bytes);
    } else {
        d.pixels = h + HEADER_BYTES;
        d.labels = d.pixels + (size_t)d.count * IMAGE_PIXELS;
        d.train_count = (uint32_t)((uint64_t)d.count * 4 / 5);
        r = check_labels(&d, path, err);
    }
    if (r < 0) {
        dataset_close(&d);
        return r;
    }
    *ret = d;
    return 0;
}

void dataset_close(struct dataset *d)
{
    if (d->map != NULL)
        munmap(d->map, d->map_bytes);
    d->map = NULL;
}

/* --- The loader --- */

enum {
    HELD = 2 /* Batches that the reader has: in use, and on its way to the device. */
};

struct slot {
    struct batch batch;
    void *images;
    int32_t *labels;
    bool full;
};

struct loader {
    struct loader_options o;
    pthread_mutex_t lock;
    pthread_cond_t filled, freed;
    pthread_t *thread;
    uint32_t thread_count; /* Started. */
    struct slot *slot;
    size_t slot_count;

    /* The run, under `lock`. */
    const int64_t *indices;
    size_t count, end; /* Items; batches. */
    size_t taken;      /* Next batch for a filler. */
    size_t given;      /* Next batch for the reader. */
    size_t filling;    /* Fillers at work. */
    bool closing;
};

/* Batch k into its slot. Without the lock: nobody else touches that slot. */
static void fill(const struct loader *l, size_t k)
{
    struct slot *s = &l->slot[k % l->slot_count];
    const size_t first = k * l->o.batch;
    const size_t count = l->count - first < l->o.batch ? l->count - first : l->o.batch;
    for (size_t i = 0; i < count; i++) {
        const size_t item = (size_t)l->indices[first + i];
        const uint8_t *pixel = l->o.data->pixels + item * IMAGE_PIXELS;
        s->labels[i] = l->o.data->labels[item];
        if (l->o.dtype == MUSTER_F64) {
            double *to = (double *)s->images + i * IMAGE_PIXELS;
            for (size_t p = 0; p < IMAGE_PIXELS; p++)
                to[p] = pixel[p] / (double)IMAGE_LEVELS;
        } else {
            float *to = (float *)s->images + i * IMAGE_PIXELS;
            for (size_t p = 0; p < IMAGE_PIXELS; p++)
                to[p] = pixel[p] / (float)IMAGE_LEVELS;
        }
    }
    s->batch = (struct batch){s->images, s->labels, (uint32_t)count};
}

/* Is there a batch to fill, and is its slot free? It is when the reader holds only younger ones. */
static bool may_fill(const struct loader *l)
{
    const size_t oldest = l->given < HELD ? 0 : l->given - HELD;
    return l->taken < l->end && l->taken < oldest + l->slot_count;
}

static void *filler(void *arg)
{
    struct loader *l = arg;
    pthread_mutex_lock(&l->lock);
    while (!l->closing) {
        if (!may_fill(l)) {
            pthread_cond_wait(&l->freed, &l->lock);
            continue;
        }
        const size_t k = l->taken++;
        l->filling++;
        pthread_mutex_unlock(&l->lock);
        fill(l, k);
        pthread_mutex_lock(&l->lock);
        l->filling--;
        l->slot[k % l->slot_count].full = true;
        pthread_cond_broadcast(&l->filled);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

static int make_slots(struct loader *l)
{
    const size_t item = IMAGE_PIXELS * muster_dtype_bytes(l->o.dtype);
    for (size_t i = 0; i < l->slot_count; i++) {
        l->slot[i].images = l->o.ops->host_alloc(l->o.batch * item);
        l->slot[i].labels = l->o.ops->host_alloc(l->o.batch * sizeof(int32_t));
        if (l->slot[i].images == NULL || l->slot[i].labels == NULL)
            return -ENOMEM;
    }
    return 0;
}

int loader_open(const struct loader_options *o, struct loader **ret, struct muster_error *err)
{
    struct loader *l = calloc(1, sizeof *l);
    if (l == NULL)
        return failure(err, -ENOMEM, "no memory for the loader");
    l->o = *o;
    l->slot_count = HELD + 1 + (size_t)o->workers;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->filled, NULL);
    pthread_cond_init(&l->freed, NULL);
    l->slot = calloc(l->slot_count, sizeof *l->slot);
    l->thread = calloc(o->workers + 1u, sizeof *l->thread);
    if (l->slot == NULL || l->thread == NULL || make_slots(l) < 0) {
        loader_close(l);
        return failure(err, -ENOMEM, "no memory for batches of %u items: choose a smaller --batch",
                       o->batch);
    }
    for (uint32_t i = 0; i < o->workers; i++) {
        const int r = pthread_create(&l->thread[i], NULL, filler, l);
        if (r != 0) {
            loader_close(l);
            return failure(err, -r, "start filler thread %u (--workers): %s", i, strerror(r));
        }
        l->thread_count++;
    }
    *ret = l;
    return 0;
}

void loader_close(struct loader *l)
{
    if (l == NULL)
        return;
    pthread_mutex_lock(&l->lock);
    l->closing = true;
    pthread_cond_broadcast(&l->freed);
    pthread_mutex_unlock(&l->lock);
    for (uint32_t i = 0; i < l->thread_count; i++)
        pthread_join(l->thread[i], NULL);
    for (size_t i = 0; l->slot != NULL && i < l->slot_count; i++) {
        l->o.ops->host_free(l->slot[i].images);
        l->o.ops->host_free(l->slot[i].labels);
    }
    pthread_cond_destroy(&l->freed);
    pthread_cond_destroy(&l->filled);
    pthread_mutex_destroy(&l->lock);
    free(l->slot);
    free(l->thread);
    free(l);
}

void loader_start(struct loader *l, const int64_t *indices, size_t count, size_t first)
{
    pthread_mutex_lock(&l->lock);
    l->end = 0; /* Nobody begins another one ... */
    while (l->filling > 0)
        pthread_cond_wait(&l->filled, &l->lock); /* ... and nobody is at one: microseconds. */
    for (size_t i = 0; i < l->slot_count; i++)
        l->slot[i].full = false;
    l->indices = indices;
    l->count = count;
    l->end = (count + l->o.batch - 1) / l->o.batch;
    l->taken = l->given = first;
    pthread_cond_broadcast(&l->freed);
    pthread_mutex_unlock(&l->lock);
}

const struct batch *loader_next(struct loader *l)
{
    const struct batch *b = NULL;
    pthread_mutex_lock(&l->lock);
    if (l->given < l->end) {
        const size_t k = l->given++;
        struct slot *s = &l->slot[k % l->slot_count];
        if (l->o.workers == 0)
            fill(l, k);
        else
            pthread_cond_signal(
                &l->freed); /* The one before the one before may be overwritten now. */
        while (l->o.workers != 0 && !s->full)
            pthread_cond_wait(&l->filled, &l->lock); /* Fillers wait for nothing but this thread. */
        s->full = false;
        b = &s->batch;
    }
    pthread_mutex_unlock(&l->lock);
    return b;
}
