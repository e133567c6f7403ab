/* Weight files and checkpoints. */
#include "trainer-example/state.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer-example/failure.h"

enum {
    NAME_BYTES = 64,
    PATH_BYTES = 4096
};
static const char magic_f32[] = "MUSTWT01", magic_f64[] = "MUSTWT64";
static const char *const part_suffix[NET_PART_COUNT] = {"", ".mean", ".square"};

struct file {
    FILE *f;
    const char *path;
    const struct net_ops *ops;
    struct net *n;
    struct shape shape[PARAM_COUNT];
    enum muster_dtype net_dtype, file_dtype;
    void *host, *raw; /* One tensor as the net has it, and as the file has it. */
};

static int open_file(struct file *w, const char *mode, uint32_t width, struct muster_error *err)
{
    size_t most = 0;
    model_shapes(width, w->shape);
    for (size_t i = 0; i < PARAM_COUNT; i++)
        most = w->shape[i].count > most ? w->shape[i].count : most;
    w->host = malloc(most * sizeof(double));
    w->raw = malloc(most * sizeof(double));
    if (w->host == NULL || w->raw == NULL)
        return failure(err, -ENOMEM, "no memory to move weights to or from '%s'", w->path);
    w->f = fopen(w->path, mode);
    if (w->f == NULL)
        return failure(err, -errno, "open '%s': %s", w->path, strerror(errno));
    return 0;
}

/* Returns r, or what writing the last bytes said. */
static int close_file(struct file *w, int r, struct muster_error *err)
{
    if (w->f != NULL && fclose(w->f) != 0 && r == 0)
        r = failure(err, -errno, "write '%s': %s", w->path, strerror(errno));
    free(w->host);
    free(w->raw);
    return r;
}

/* --- Reading --- */

static int cut_short(const struct file *w, struct muster_error *err)
{
    return failure(err, -EINVAL, "'%s' ends in the middle: it was cut, or is no weight file",
                   w->path);
}

static bool read_u32(struct file *w, uint32_t *ret)
{
    uint8_t b[4];
    if (fread(b, 1, 4, w->f) != 4)
        return false;
    *ret = (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
    return true;
}

static int read_head(struct file *w, uint32_t *ret_count, struct muster_error *err)
{
    char magic[8];
    if (fread(magic, 1, sizeof magic, w->f) != sizeof magic || !read_u32(w, ret_count))
        return cut_short(w, err);
    if (memcmp(magic, magic_f32, sizeof magic) == 0)
        w->file_dtype = MUSTER_F32;
    else if (memcmp(magic, magic_f64, sizeof magic) == 0)
        w->file_dtype = MUSTER_F64;
    else
        return failure(err, -EINVAL, "'%s' is no weight file: it does not begin with %s or %s",
                       w->path, magic_f32, magic_f64);
    return 0;
}

static bool
find_tensor(const struct file *w, const char *name, size_t *ret_param, enum net_part *ret_part)
{
    for (size_t i = 0; i < PARAM_COUNT; i++) {
        const size_t n = strlen(w->shape[i].name);
        if (strncmp(name, w->shape[i].name, n) != 0)
            continue;
        for (int p = 0; p < NET_PART_COUNT; p++) {
            if (strcmp(name + n, part_suffix[p]) == 0) {
                *ret_param = i;
                *ret_part = (enum net_part)p;
                return true;
            }
        }
    }
    return false;
}

/* The name and the dims of the next tensor. */
static int
read_label(struct file *w, size_t *ret_param, enum net_part *ret_part, struct muster_error *err)
{
    char name[NAME_BYTES] = "";
    uint32_t n, rank;
    if (!read_u32(w, &n))
        return cut_short(w, err);
    if (n >= sizeof name)
        return failure(err, -EINVAL,
                       "'%s' has a tensor with a name of %u bytes, and none of ours is that long",
                       w->path, n);
    if (fread(name, 1, n, w->f) != n || !read_u32(w, &rank))
        return cut_short(w, err);
    if (!find_tensor(w, name, ret_param, ret_part))
        return failure(err, -EINVAL, "'%s' has a tensor '%s', which this network has not", w->path,
                       name);
    const struct shape *s = &w->shape[*ret_param];
    bool same = rank == s->rank;
    for (uint32_t d = 0, dim; same && d < rank; d++) {
        if (!read_u32(w, &dim))
            return cut_short(w, err);
        same = dim == s->dim[d];
    }
    if (!same)
        return failure(err, -EINVAL,
                       "'%s': %s has another shape than here: was it saved with another --width?",
                       w->path, name);
    return 0;
}

static int read_tensor(struct file *w, size_t i, enum net_part p, struct muster_error *err)
{
    const size_t count = w->shape[i].count, bytes = count * muster_dtype_bytes(w->file_dtype);
    if (fread(w->raw, 1, bytes, w->f) != bytes)
        return cut_short(w, err);
    if (w->file_dtype == w->net_dtype)
        return w->ops->set(w->n, p, i, w->raw, err);
    for (size_t k = 0; k < count; k++) {
        if (w->net_dtype == MUSTER_F64)
            ((double *)w->host)[k] = (double)((const float *)w->raw)[k];
        else
            ((float *)w->host)[k] = (float)((const double *)w->raw)[k];
    }
    return w->ops->set(w->n, p, i, w->host, err);
}

static int read_all(struct file *w, bool with_means, struct muster_error *err)
{
    bool seen[NET_PART_COUNT][PARAM_COUNT] = {{false}};
    uint32_t count;
    int r = read_head(w, &count, err);
    for (uint32_t t = 0; t < count && r == 0; t++) {
        size_t i = 0;
        enum net_part p = NET_VALUE;
        r = read_label(w, &i, &p, err);
        if (r == 0)
            r = read_tensor(w, i, p, err);
        if (r == 0)
            seen[p][i] = true;
    }
    for (size_t p = 0; r == 0 && p < (with_means ? NET_PART_COUNT : 1); p++)
        for (size_t i = 0; r == 0 && i < PARAM_COUNT; i++)
            if (!seen[p][i])
                r = failure(err, -EINVAL, "'%s' lacks %s%s", w->path, w->shape[i].name,
                            part_suffix[p]);
    return r;
}

int weights_load(const char *path,
                 bool with_means,
                 const struct net_ops *ops,
                 struct net *n,
                 uint32_t width,
                 enum muster_dtype dtype,
                 struct muster_error *err)
{
    struct file w = {.path = path, .ops = ops, .n = n, .net_dtype = dtype};
    int r = open_file(&w, "rbe", width, err);
    if (r == 0)
        r = read_all(&w, with_means, err);
    return close_file(&w, r, err);
}

/* --- Writing --- */

static void write_u32(FILE *f, uint32_t v)
{
    const uint8_t b[4] = {(uint8_t)v, (uint8_t)(v >> 8), (uint8_t)(v >> 16), (uint8_t)(v >> 24)};
    fwrite(b, 1, sizeof b, f); /* The caller looks at ferror() once. */
}

static int write_tensor(struct file *w, size_t i, enum net_part p, struct muster_error *err)
{
    const struct shape *s = &w->shape[i];
    int r = w->ops->get(w->n, p, i, w->host, err);
    if (r < 0)
        return r;
    write_u32(w->f, (uint32_t)(strlen(s->name) + strlen(part_suffix[p])));
    fputs(s->name, w->f);
    fputs(part_suffix[p], w->f);
    write_u32(w->f, s->rank);
    for (uint32_t d = 0; d < s->rank; d++)
        write_u32(w->f, s->dim[d]);
    fwrite(w->host, muster_dtype_bytes(w->net_dtype), s->count, w->f);
    if (ferror(w->f))
        return failure(err, -EIO, "write '%s': %s", w->path, strerror(errno));
    return 0;
}

static int write_all(struct file *w, struct muster_error *err)
{
    int r = 0;
    fwrite(w->net_dtype == MUSTER_F32 ? magic_f32 : magic_f64, 1, 8, w->f);
    write_u32(w->f, NET_PART_COUNT * PARAM_COUNT);
    for (int p = 0; p < NET_PART_COUNT; p++)
        for (size_t i = 0; r == 0 && i < PARAM_COUNT; i++)
            r = write_tensor(w, i, (enum net_part)p, err);
    return r;
}

static const char position_format[] = "step %" PRIu64 "\nepoch %" PRIu64 "\nepoch_items %" PRIu64
                                      "\nloss_items %" PRIu64 "\nloss_sum %.17g\n";
static const char position_scan[] = "step %" SCNu64 " epoch %" SCNu64 " epoch_items %" SCNu64
                                    " loss_items %" SCNu64 " loss_sum %lf";

static int write_position(const char *path, const struct position *at, struct muster_error *err)
{
    FILE *f = fopen(path, "we");
    bool whole = f != NULL && fprintf(f, position_format, at->step, at->epoch, at->epoch_items,
                                      at->loss_items, at->loss_sum) > 0;
    whole = f != NULL && fclose(f) == 0 && whole;
    return whole ? 0 : failure(err, -EIO, "write '%s': %s", path, strerror(errno));
}

int state_save(const char *folder,
               const struct position *at,
               const struct net_ops *ops,
               struct net *n,
               uint32_t width,
               enum muster_dtype dtype,
               struct muster_error *err)
{
    char path[PATH_BYTES];
    if (snprintf(path, sizeof path, "%s/state.bin", folder) >= (int)sizeof path)
        return failure(err, -ENAMETOOLONG, "the name of --checkpoint is too long");
    struct file w = {.path = path, .ops = ops, .n = n, .net_dtype = dtype};
    int r = open_file(&w, "wbe", width, err);
    if (r == 0)
        r = write_all(&w, err);
    r = close_file(&w, r, err);
    if (r < 0)
        return r;
    (void)snprintf(path, sizeof path, "%s/position", folder); /* Shorter than the one above. */
    return write_position(path, at, err);
}

int state_load(const char *folder,
               struct position *ret,
               const struct net_ops *ops,
               struct net *n,
               uint32_t width,
               enum muster_dtype dtype,
               struct muster_error *err)
{
    char path[PATH_BYTES];
    struct position at;
    if (snprintf(path, sizeof path, "%s/position", folder) >= (int)sizeof path - 2)
        return failure(err, -ENAMETOOLONG, "the name of --checkpoint is too long");
    FILE *f = fopen(path, "re");
    const int got = f == NULL ? 0
                              : fscanf(f, position_scan, &at.step, &at.epoch, &at.epoch_items,
                                       &at.loss_items, &at.loss_sum);
    if (f != NULL)
        fclose(f);
    /* -1 reads as the largest number there is. */
    const bool makes_sense =
        got == 5 && at.step < INT64_MAX && at.epoch < UINT32_MAX && isfinite(at.loss_sum);
    if (!makes_sense)
        return failure(
            err, -EINVAL,
            "'%s' does not say where the training stood: remove its folder to go on from "
            "an older checkpoint",
            path);
    (void)snprintf(path, sizeof path, "%s/state.bin", folder); /* Room was checked above. */
    int r = weights_load(path, true, ops, n, width, dtype, err);
    if (r == 0)
        *ret = at;
    return r;
}
