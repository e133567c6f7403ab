/* Handing out ids: the exchange itself (muster/id.h). Marks and who is missing: id_marks.c. */
#include "worker-sdk/src/nccl/id.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/parse.h"
#include "worker-sdk/src/core/sdk.h"
#include "worker-sdk/src/store/store_client.h"

#define LOOK_NS (1 * MU_NS_PER_S) /* How often rank 0 asks whether somebody gave up. */
#define NAMED_MAX 5               /* Missing ranks that fit into a sentence. */

struct exchange {
    struct id_start start;
    const struct muster_id_options *o;
    int64_t deadline_ns;
    char *ids;
};

uint32_t muster_id_maker_of(uint32_t index, uint32_t id_count, uint32_t world)
{
    if (id_count == 0 || index >= id_count)
        return 0;
    uint32_t longer = world % id_count;
    return index * (world / id_count) + (index < longer ? index : longer);
}

static int64_t left_ns(const struct exchange *x)
{
    if (x->deadline_ns == MU_NEVER)
        return -1;
    int64_t left = x->deadline_ns - sdk_now_ns();
    return left > 0 ? left : 0;
}

/* Time is over: the sentence that names who is missing becomes everybody's, unless somebody was
 * quicker. `said` is what holds now. */
static int give_up(struct exchange *x,
                   const char *what,
                   const char *doing,
                   struct muster_bytes *said,
                   struct muster_error *err)
{
    struct mu_buf text;
    char span[MU_SPAN_BYTES];
    mu_buf_init(&text, mu_mem_default());
    size_t count = 0;
    uint32_t first = 0;
    (void)mu_buf_addf(&text, "%s: after %s these of %" PRIu32 " ranks have not %s: ", x->start.name,
                      mu_span(x->o->timeout_ns, span), x->start.env->world, doing);
    int r = id_name_missing(&x->start, what, NAMED_MAX, &text, &count, &first, err);
    if (r == 0 && count == 0) {
        mu_buf_reset(&text);
        (void)mu_buf_addf(&text, "%s: all ranks came, but rank 0 made nothing of it in %s",
                          x->start.name, mu_span(x->o->timeout_ns, span));
    }
    if (r == 0)
        r = id_say_failed(&x->start, "verdict", -ETIMEDOUT, mu_buf_cstr(&text), said, err);
    mu_buf_fini(&text);
    return r;
}

/* --- Rank 0: wait for all, compare, make, say --- */

/* The verdict, if there is one: `said` stays empty otherwise. */
static int look_for_verdict(struct exchange *x, struct muster_bytes *said, struct muster_error *err)
{
    char key[ID_KEY_BYTES];
    const char *keys[] = {key};
    bool there = false;
    id_key(&x->start, "verdict", 0, key);
    int r = muster_store_check(x->start.store, keys, 1, &there, err);
    return r < 0 || !there ? r : muster_store_get(x->start.store, key, said, err);
}

/* 0 with `said` empty: all have come. */
static int wait_for_all(struct exchange *x,
                        const struct id_keys *keys,
                        struct muster_bytes *said,
                        struct muster_error *err)
{
    for (;;) {
        int64_t left = left_ns(x);
        int64_t turn = left < 0 || left > LOOK_NS ? LOOK_NS : left;
        int r = muster_store_wait(x->start.store, keys->list, keys->count, turn, err);
        if (r != -ETIMEDOUT)
            return r;
        r = look_for_verdict(x, said, err);
        if (r < 0 || said->p != NULL)
            return r;
        if (left == 0)
            return give_up(x, "in", "come", said, err);
    }
}

/* 0: all marks are equal where they must be; -EPROTO names two that are not. */
static int compare_marks(struct exchange *x,
                         struct muster_bytes *marks,
                         uint32_t count,
                         struct muster_error *err)
{
    struct id_mark zero = {0};
    uint32_t differ_count = 0;
    int r = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct id_mark m;
        if (!id_mark_parse(marks[i].p, &m))
            return sdk_error(err, -EPROTO,
                             "%s: rank %" PRIu32 " left a mark that no libmuster of this version "
                             "writes: install the same on all nodes",
                             x->start.name, i);
        if (i == 0)
            zero = m;
        if (strcmp(m.same, zero.same) == 0 && strcmp(m.shape, zero.shape) == 0)
            continue;
        differ_count++;
        if (r == 0)
            r = sdk_error(err, -EPROTO,
                          "%s: rank 0 on %.60s has %s, but rank %" PRIu32
                          " on %.60s has %s: they must be the same",
                          x->start.name, zero.host,
                          strcmp(m.same, zero.same) != 0 ? zero.same : zero.shape, i, m.host,
                          strcmp(m.same, zero.same) != 0 ? m.same : m.shape);
    }
    if (differ_count > 1 && err != NULL) {
        size_t n = strlen(err->text);
        (void)snprintf(err->text + n, /* Cut is good enough. */
                       sizeof err->text - n, "; %" PRIu32 " more ranks differ from rank 0",
                       differ_count - 1);
    }
    return r;
}

static int
read_and_compare(struct exchange *x, const struct id_keys *keys, struct muster_error *err)
{
    size_t bytes = keys->count * sizeof(struct muster_bytes);
    MU_CLEANUP(mu_freep) struct muster_bytes *marks = mu_zalloc(mu_mem_default(), bytes);
    if (marks == NULL)
        return sdk_error(err, -ENOMEM, "no memory for the marks of %zu ranks", keys->count);
    int r = muster_store_multi_get(x->start.store, keys->list, keys->count, marks, err);
    if (r == 0)
        r = compare_marks(x, marks, (uint32_t)keys->count, err);
    for (size_t i = 0; i < keys->count; i++)
        muster_bytes_free(&marks[i]);
    return r;
}

/* Makes id `index` and says it, or why not, under `what`. */
static int make_and_say(struct exchange *x,
                        uint32_t index,
                        const char *what,
                        struct muster_bytes *said,
                        struct muster_error *err)
{
    char id[1 + ID_BYTES_MAX] = "+";
    struct muster_error why = {0};
    int r = x->o->maker(x->o->arg, id + 1, x->o->id_bytes, &why);
    if (r == 0)
        return id_say(&x->start, what, id, 1 + x->o->id_bytes, said, err);
    char text[MUSTER_TEXT_BYTES];
    (void)snprintf(text, /* Cut is good enough. */
                   sizeof text, "%s: rank %" PRIu32 " could not make id %" PRIu32 ": %.160s",
                   x->start.name, x->start.env->rank, index, why.text);
    return id_say_failed(&x->start, what, r < 0 ? r : -EIO, text, said, err);
}

static int lead(struct exchange *x, struct muster_bytes *said, struct muster_error *err)
{
    struct id_keys keys;
    int r = id_keys_init(&keys, &x->start, "in", 0, x->start.env->world, err);
    if (r < 0)
        return r;
    struct muster_error why = {0};
    r = wait_for_all(x, &keys, said, err);
    bool is_open = r == 0 && said->p == NULL;
    if (is_open)
        r = read_and_compare(x, &keys, &why);
    id_keys_fini(&keys);
    if (is_open && r == 0)
        return make_and_say(x, 0, "verdict", said, err);
    if (is_open)
        return id_say_failed(&x->start, "verdict", r, why.text, said, err);
    return r;
}

/* --- Everybody --- */

static int follow(struct exchange *x, struct muster_bytes *said, struct muster_error *err)
{
    char key[ID_KEY_BYTES];
    const char *keys[] = {key};
    id_key(&x->start, "verdict", 0, key);
    int r = muster_store_wait(x->start.store, keys, 1, left_ns(x), err);
    if (r == -ETIMEDOUT)
        return give_up(x, "in", "come", said, err);
    return r < 0 ? r : muster_store_get(x->start.store, key, said, err);
}

/* An id that somebody said, checked and copied to its place. */
static int take_id(struct exchange *x,
                   uint32_t index,
                   const struct muster_bytes *said,
                   struct muster_error *err)
{
    int r = id_heard(said, err);
    if (r < 0)
        return r;
    if (said->n != 1 + x->o->id_bytes)
        return sdk_error(err, -EPROTO, "%s: id %" PRIu32 " has %zu bytes instead of %zu",
                         x->start.name, index, said->n - 1, x->o->id_bytes);
    memcpy(x->ids + (size_t)index * x->o->id_bytes, said->p + 1, x->o->id_bytes);
    return 0;
}

/* Ids 1 and up, where there are several: each from its own maker. */
static int exchange_more(struct exchange *x, struct muster_error *err)
{
    const struct muster_env *e = x->start.env;
    char what[32];
    for (uint32_t i = 1; i < x->o->id_count; i++) {
        struct muster_bytes said = {0};
        if (muster_id_maker_of(i, x->o->id_count, e->world) != e->rank)
            continue;
        (void)snprintf(what, sizeof what, "id%" PRIu32, i); /* Fits. */
        int r = make_and_say(x, i, what, &said, err);
        muster_bytes_free(&said);
        if (r < 0)
            return r;
    }
    for (uint32_t i = 1; i < x->o->id_count; i++) {
        char key[ID_KEY_BYTES];
        char span[MU_SPAN_BYTES];
        const char *keys[] = {key};
        struct muster_bytes said = {0};
        (void)snprintf(what, sizeof what, "id%" PRIu32, i);
        id_key(&x->start, what, 0, key);
        int r = muster_store_wait(x->start.store, keys, 1, left_ns(x), err);
        if (r == -ETIMEDOUT)
            return sdk_error(err, r,
                             "%s: rank %" PRIu32 " came, but has not made id %" PRIu32
                             " in %s: look there why",
                             x->start.name, muster_id_maker_of(i, x->o->id_count, e->world), i,
                             mu_span(x->o->timeout_ns, span));
        if (r == 0)
            r = muster_store_get(x->start.store, key, &said, err);
        if (r == 0)
            r = take_id(x, i, &said, err);
        muster_bytes_free(&said);
        if (r < 0)
            return r;
    }
    return 0;
}

/* How often this rank has come under this name, kept in the store: so the number is right also for
 * a handle that was opened anew in the same round. */
static int next_number(struct exchange *x, struct muster_error *err)
{
    char key[ID_KEY_BYTES];
    int64_t number = 0;
    int n = snprintf(key, sizeof key, "id/%s/starts/%" PRIu32, x->start.name, x->start.env->rank);
    MU_ASSERT(n > 0 && n < (int)sizeof key);
    int r = muster_store_add(x->start.store, key, 1, &number, err);
    if (r == 0)
        x->start.number = (uint64_t)number;
    return r;
}

static int exchange_over_store(struct exchange *x, struct muster_error *err)
{
    struct muster_bytes said = {0};
    int r = next_number(x, err);
    if (r == 0)
        r = id_mark_set(&x->start, x->o, err);
    if (r == 0)
        r = x->start.env->rank == 0 ? lead(x, &said, err) : follow(x, &said, err);
    if (r == 0)
        r = take_id(x, 0, &said, err);
    muster_bytes_free(&said);
    return r < 0 ? r : exchange_more(x, err);
}

static int make_alone(struct exchange *x, struct muster_error *err)
{
    for (uint32_t i = 0; i < x->o->id_count; i++) {
        int r = x->o->maker(x->o->arg, x->ids + (size_t)i * x->o->id_bytes, x->o->id_bytes, err);
        if (r != 0)
            return r < 0 ? r : -EIO;
    }
    return 0;
}

static int check_name(const char *name, struct muster_error *err)
{
    if (name == NULL || name[0] == '\0' || strlen(name) > ID_NAME_BYTES_MAX)
        return sdk_error(err, -EINVAL, "the name of a start has 1 to %d bytes", ID_NAME_BYTES_MAX);
    return 0;
}

static int
check(const struct muster_env *e, const struct muster_id_options *o, struct muster_error *err)
{
    int r = check_name(o->name, err);
    if (r < 0)
        return r;
    if (o->size < sizeof *o || o->maker == NULL)
        return sdk_error(err, -EINVAL, "%s: begin with MUSTER_ID_OPTIONS_INIT and set a maker",
                         o->name);
    if (o->id_bytes == 0 || o->id_bytes > ID_BYTES_MAX)
        return sdk_error(err, -EINVAL, "%s: an id of %zu bytes: 1 to %d can be handed out", o->name,
                         o->id_bytes, ID_BYTES_MAX);
    if (o->id_count == 0 || o->id_count > e->world)
        return sdk_error(err, -EINVAL,
                         "%s: %" PRIu32 " ids for %" PRIu32 " ranks: 1 to one a rank are possible",
                         o->name, o->id_count, e->world);
    if (o->same != NULL && strchr(o->same, '\n') != NULL)
        return sdk_error(err, -EINVAL, "%s: 'same' is one line", o->name);
    return 0;
}

int muster_id_exchange(muster *m,
                       const struct muster_id_options *options,
                       void *ids,
                       uint64_t *ret_number,
                       struct muster_error *err)
{
    const struct muster_env *env = muster_get_env(m);
    int r = check(env, options, err);
    if (r < 0)
        return r;
    struct exchange x = {.start = {muster_get_store(m), env, options->name, 0},
                         .o = options,
                         .deadline_ns = sdk_deadline_ns(options->timeout_ns)};
    /* Aside first: outputs are written on success only. */
    size_t bytes = (size_t)options->id_count * options->id_bytes;
    MU_CLEANUP(mu_freep) char *aside = mu_zalloc(mu_mem_default(), bytes);
    if (aside == NULL)
        return sdk_error(err, -ENOMEM, "no memory for %" PRIu32 " ids", options->id_count);
    x.ids = aside;
    int64_t former_ns = store_limit(x.start.store, sdk_after_ns(x.deadline_ns, STORE_WORDS_NS));
    r = x.start.store == NULL ? make_alone(&x, err) : exchange_over_store(&x, err);
    store_unlimit(x.start.store, former_ns);
    if (r < 0)
        return r;
    memcpy(ids, aside, bytes);
    if (ret_number != NULL)
        *ret_number = x.start.number;
    return 0;
}

int muster_id_refuse(muster *m,
                     const char *name,
                     const struct muster_error *why,
                     struct muster_error *err)
{
    int r = check_name(name, err);
    if (r < 0 || muster_get_store(m) == NULL)
        return r;
    struct exchange x = {.start = {muster_get_store(m), muster_get_env(m), name, 0}};
    struct muster_bytes said = {0};
    char text[MUSTER_TEXT_BYTES];
    r = next_number(&x, err);
    if (r < 0)
        return r;
    (void)snprintf(text, /* Cut is good enough. */
                   sizeof text, "%s: rank %" PRIu32 " cannot take part: %.160s", name,
                   x.start.env->rank, why->text);
    r = id_say_failed(&x.start, "verdict", why->code < 0 ? why->code : -EIO, text, &said, err);
    muster_bytes_free(&said);
    return r;
}

/* --- After the exchange --- */

static int find_start(
    muster *m, const char *name, uint64_t number, struct id_start *ret, struct muster_error *err)
{
    *ret = (struct id_start){muster_get_store(m), muster_get_env(m), name, number};
    return check_name(name, err);
}

int muster_id_left(muster *m, const char *name, uint64_t number, struct muster_error *err)
{
    struct id_start s;
    char key[ID_KEY_BYTES];
    int r = find_start(m, name, number, &s, err);
    if (r < 0 || s.store == NULL)
        return r;
    id_key(&s, "out", s.env->rank, key);
    return muster_store_set(s.store, key, "1", 1, err);
}

int muster_id_failed(muster *m,
                     const char *name,
                     uint64_t number,
                     const struct muster_error *why,
                     struct muster_error *err)
{
    struct id_start s;
    struct muster_bytes said = {0};
    char text[MUSTER_TEXT_BYTES];
    int r = find_start(m, name, number, &s, err);
    if (r < 0 || s.store == NULL)
        return r;
    (void)snprintf(text, /* Cut is good enough. */
                   sizeof text, "rank %" PRIu32 " failed: %.220s", s.env->rank, why->text);
    r = id_say_failed(&s, "failed", why->code < 0 ? why->code : -EIO, text, &said, err);
    muster_bytes_free(&said);
    return r;
}

int muster_id_check(muster *m, const char *name, uint64_t number, struct muster_error *err)
{
    struct id_start s;
    char key[ID_KEY_BYTES];
    const char *keys[] = {key};
    struct muster_bytes said = {0};
    bool there = false;
    int r = find_start(m, name, number, &s, err);
    if (r < 0 || s.store == NULL)
        return r;
    id_key(&s, "failed", 0, key);
    r = muster_store_check(s.store, keys, 1, &there, err);
    if (r < 0 || !there)
        return r;
    r = muster_store_get(s.store, key, &said, err);
    if (r == 0)
        r = id_heard(&said, err);
    muster_bytes_free(&said);
    return r;
}

int muster_id_missing(muster *m, const char *name, uint64_t number, struct muster_error *err)
{
    struct id_start s;
    int r = find_start(m, name, number, &s, err);
    if (r < 0 || s.store == NULL)
        return r;
    struct mu_buf text;
    mu_buf_init(&text, mu_mem_default());
    size_t count = 0;
    uint32_t first = 0;
    r = id_name_missing(&s, "out", NAMED_MAX, &text, &count, &first, err);
    if (r == 0 && count > 0)
        r = sdk_error(err, -ETIMEDOUT,
                      "%s: these of %" PRIu32 " ranks have not finished their start: %s", name,
                      s.env->world, mu_buf_cstr(&text));
    mu_buf_fini(&text);
    return r;
}
