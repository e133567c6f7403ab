/* The marks of a start in the store: who has come, who has left, and where the others are. */
#include "worker-sdk/src/nccl/id.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/parse.h"
#include "worker-sdk/src/core/sdk.h"

void id_key(const struct id_start *s, const char *what, uint32_t index, char *ret)
{
    int n = snprintf(ret, ID_KEY_BYTES, "id/%s/%" PRIu64 "/%s/%" PRIu32, s->name, s->number, what,
                     index);
    MU_ASSERT(n > 0 && n < ID_KEY_BYTES); /* ID_NAME_BYTES_MAX and our own words. */
}

int id_keys_init(struct id_keys *k,
                 const struct id_start *s,
                 const char *what,
                 uint32_t first,
                 uint32_t count,
                 struct muster_error *err)
{
    k->text = mu_alloc(mu_mem_default(), (size_t)count * ID_KEY_BYTES + 1);
    k->list = mu_alloc(mu_mem_default(), (size_t)count * sizeof *k->list + 1);
    k->count = count;
    if (k->text == NULL || k->list == NULL) {
        id_keys_fini(k);
        return sdk_error(err, -ENOMEM, "no memory for the keys of %" PRIu32 " ranks", count);
    }
    for (uint32_t i = 0; i < count; i++) {
        k->list[i] = k->text + (size_t)i * ID_KEY_BYTES;
        id_key(s, what, first + i, k->text + (size_t)i * ID_KEY_BYTES);
    }
    return 0;
}

void id_keys_fini(struct id_keys *k)
{
    mu_mem_free(mu_mem_default(), k->text);
    mu_mem_free(mu_mem_default(), k->list);
    *k = (struct id_keys){0};
}

/* --- The entered mark: four lines --- */

int id_mark_set(const struct id_start *s,
                const struct muster_id_options *o,
                struct muster_error *err)
{
    char host[256] = "";
    if (gethostname(host, sizeof host - 1) != 0 || host[0] == '\0')
        (void)mu_strcopy(host, sizeof host, "a host without a name"); /* Fits. */
    struct mu_buf b;
    mu_buf_init(&b, mu_mem_default());
    (void)mu_buf_addf(&b, /* A failure sticks in b.oom. */
                      "%s\n%" PRIu32 " of %zu bytes\n%" PRIu32 "\n%s\n",
                      o->same == NULL ? "" : o->same, o->id_count, o->id_bytes, s->env->node_rank,
                      host);
    char key[ID_KEY_BYTES];
    id_key(s, "in", s->env->rank, key);
    int r = b.oom ? sdk_error(err, -ENOMEM, "no memory for an entered mark")
                  : muster_store_set(s->store, key, b.p, b.n, err);
    mu_buf_fini(&b);
    return r;
}

bool id_mark_parse(char *text, struct id_mark *ret)
{
    char *line[4];
    for (size_t i = 0; i < MU_COUNT(line); i++) {
        char *end = strchr(text, '\n');
        if (end == NULL)
            return false;
        *end = '\0';
        line[i] = text;
        text = end + 1;
    }
    *ret = (struct id_mark){.same = line[0], .shape = line[1], .host = line[3]};
    return mu_parse_u32(line[2], 0, UINT32_MAX, "node rank", &ret->node, NULL) == 0;
}

/* --- Who is missing --- */

struct search {
    const struct id_start *s;
    const char *what;
    uint32_t *found; /* Ranks. */
    size_t found_count;
    size_t max; /* One more than will be named. */
};

/* Halves the ranks: as many questions as the depth for each missing rank, not one for each rank. */
static int
search_missing(struct search *q, uint32_t first, uint32_t count, struct muster_error *err)
{
    if (q->found_count == q->max || count == 0)
        return 0;
    struct id_keys keys;
    int r = id_keys_init(&keys, q->s, q->what, first, count, err);
    if (r < 0)
        return r;
    bool all = false;
    r = muster_store_check(q->s->store, keys.list, keys.count, &all, err);
    id_keys_fini(&keys);
    if (r < 0 || all)
        return r;
    if (count == 1) {
        q->found[q->found_count++] = first;
        return 0;
    }
    r = search_missing(q, first, count / 2, err);
    return r < 0 ? r : search_missing(q, first + count / 2, count - count / 2, err);
}

/* The host in that rank's entered mark, "" where there is none. Failing to look is no failure: the
 * rank is named without it. */
static void host_of_rank(const struct id_start *s, uint32_t rank, uint32_t *node, char ret[256])
{
    char key[ID_KEY_BYTES];
    const char *keys[] = {key};
    bool there = false;
    struct muster_bytes v = {0};
    struct id_mark mark;
    ret[0] = '\0';
    id_key(s, "in", rank, key);
    if (muster_store_check(s->store, keys, 1, &there, NULL) < 0 || !there ||
        muster_store_get(s->store, key, &v, NULL) < 0)
        return;
    if (id_mark_parse(v.p, &mark)) {
        (void)mu_strcopy(ret, 256, mark.host); /* Too long: no name is shown. */
        *node = mark.node;
    }
    muster_bytes_free(&v);
}

void id_add_place(const struct id_start *s, uint32_t rank, struct mu_buf *text)
{
    const struct muster_env *e = s->env;
    char host[256];
    uint32_t node = 0;
    host_of_rank(s, rank, &node, host);
    if (host[0] != '\0') {
        (void)mu_buf_addf(text, " on %s", host); /* A failure sticks in text->oom. */
        return;
    }
    /* Launchers give the ranks of a node one after the other; where nodes differ in size, who
     * knows.
     */
    uint32_t size = e->local_world;
    if (size == 0 || (uint64_t)size * e->node_count != e->world)
        return;
    uint32_t first = rank / size * size;
    for (uint32_t r = first; r < first + size; r++) {
        host_of_rank(s, r, &node, host);
        if (host[0] != '\0' && node == rank / size) {
            (void)mu_buf_addf(text, " on %s", host);
            return;
        }
    }
    (void)mu_buf_addf(text, " (node %" PRIu32 ", from which nobody came)", rank / size);
}

int id_name_missing(const struct id_start *s,
                    const char *what,
                    size_t max,
                    struct mu_buf *text,
                    size_t *ret_count,
                    uint32_t *ret_first,
                    struct muster_error *err)
{
    MU_CLEANUP(mu_freep) uint32_t *found = mu_alloc(mu_mem_default(), (max + 1) * sizeof *found);
    if (found == NULL)
        return sdk_error(err, -ENOMEM, "no memory to look for missing ranks");
    struct search q = {.s = s, .what = what, .found = found, .max = max + 1};
    int r = search_missing(&q, 0, s->env->world, err);
    if (r < 0)
        return r;
    for (size_t i = 0; i < q.found_count && i < max; i++) {
        (void)mu_buf_addf(text, "%srank %" PRIu32, i == 0 ? "" : ", ", found[i]);
        id_add_place(s, found[i], text);
    }
    if (q.found_count > max)
        (void)mu_buf_adds(text, " and more");
    *ret_count = q.found_count > max ? max : q.found_count;
    *ret_first = q.found_count > 0 ? found[0] : 0;
    return text->oom ? sdk_error(err, -ENOMEM, "no memory to name missing ranks") : 0;
}

/* --- What all ranks believe --- */

int id_say(const struct id_start *s,
           const char *what,
           const char *p,
           size_t n,
           struct muster_bytes *ret,
           struct muster_error *err)
{
    char key[ID_KEY_BYTES];
    id_key(s, what, 0, key);
    return muster_store_compare_set(s->store, key, "", 0, p, n, ret, err);
}

int id_say_failed(const struct id_start *s,
                  const char *what,
                  int code,
                  const char *sentence,
                  struct muster_bytes *ret,
                  struct muster_error *err)
{
    char text[MUSTER_TEXT_BYTES + 16];
    (void)snprintf(text, sizeof text, "%d %s", code, sentence); /* Cut is good enough. */
    return id_say(s, what, text, strlen(text), ret, err);
}

int id_heard(const struct muster_bytes *said, struct muster_error *err)
{
    if (said->n > 0 && said->p[0] == '+')
        return 0;
    char *blank = said->n > 0 && said->p[0] == '-' ? strchr(said->p, ' ') : NULL;
    int64_t code = 0;
    if (blank == NULL)
        return sdk_error(err, -EPROTO, "the store holds something else where a start's verdict is");
    *blank = '\0';
    if (mu_parse_i64(said->p, -4095, -1, "code", &code, NULL) < 0)
        code = -EPROTO;
    *blank = ' ';
    return sdk_error(err, (int)code, "%s", blank + 1);
}
