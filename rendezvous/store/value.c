/* Values: counted runs of bytes, their growth, and the numbers that ADD and BARRIER keep in them.
 */
#include "rendezvous/store/internal.h"

#include <string.h>

/* Small values get what the heap rounds up to anyway, so that the next one often fits in place. */
static size_t roomy(size_t n)
{
    return n < 1024 ? (n + 23) / 16 * 16 - 8 : n;
}

static enum store_verdict blob_alloc(struct store *s, size_t cap, struct blob **ret)
{
    if (!store_charge(s, store_blob_cost(cap), CHARGE_DATA))
        return STORE_STORE_FULL;
    struct blob *b = mu_alloc(s->mem, sizeof *b + cap);
    if (b == NULL) {
        store_discharge(s, store_blob_cost(cap));
        return STORE_NO_MEMORY;
    }
    *b = (struct blob){.refs = 1, .cap = cap};
    *ret = b;
    return STORE_OK;
}

enum store_verdict store_blob_new(struct store *s, size_t n, struct blob **ret)
{
    return blob_alloc(s, roomy(n), ret);
}

enum store_verdict store_blob_from(struct store *s, const struct store_value *v, struct blob **ret)
{
    if (v->body != NULL) {
        *ret = *v->body;
        *v->body = NULL;
        return STORE_OK;
    }
    enum store_verdict r = store_blob_new(s, v->n, ret);
    if (r != STORE_OK)
        return r;
    if (v->n > 0)
        memcpy((*ret)->bytes, v->p, v->n);
    (*ret)->n = v->n;
    return STORE_OK;
}

void store_blob_unref(struct store *s, struct blob *b)
{
    if (b == NULL || --b->refs > 0)
        return;
    store_discharge(s, store_blob_cost(b->cap));
    mu_mem_free(s->mem, b);
}

/* In place: it fits, nobody else looks, and little of a large block would lie idle. */
static bool fits(const struct blob *b, size_t n)
{
    return b->refs == 1 && n <= b->cap && (b->cap <= 1024 || n >= b->cap / 4);
}

enum store_verdict store_value_put(struct store *s, struct blob **at, const struct store_value *v)
{
    struct blob *b = *at;
    if (b != NULL && v->body == NULL && fits(b, v->n)) {
        if (v->n > 0)
            memcpy(b->bytes, v->p, v->n);
        b->n = v->n;
        return STORE_OK;
    }
    enum store_verdict r = store_blob_from(s, v, &b);
    if (r != STORE_OK)
        return r;
    store_blob_unref(s, *at);
    *at = b;
    return STORE_OK;
}

/* A blob of ours alone with room for n bytes, which begins as *at does. */
static enum store_verdict make_room(struct store *s, struct blob **at, size_t n)
{
    struct blob *b = *at;
    if (b->refs == 1 && n <= b->cap)
        return STORE_OK;
    size_t cap = n > b->cap && b->cap <= SIZE_MAX / 2 && b->cap * 2 > n ? b->cap * 2 : roomy(n);
    if (b->refs > 1) {
        struct blob *copy = NULL;
        enum store_verdict r = blob_alloc(s, cap, &copy);
        if (r != STORE_OK)
            return r;
        memcpy(copy->bytes, b->bytes, b->n);
        copy->n = b->n;
        store_blob_unref(s, b);
        *at = copy;
        return STORE_OK;
    }
    if (!store_charge(s, cap - b->cap, CHARGE_DATA))
        return STORE_STORE_FULL;
    struct blob *larger = mu_realloc(s->mem, b, sizeof *b + cap);
    if (larger == NULL) {
        store_discharge(s, cap - b->cap);
        return STORE_NO_MEMORY;
    }
    larger->cap = cap;
    *at = larger;
    return STORE_OK;
}

enum store_verdict
store_value_append(struct store *s, struct blob **at, const struct store_value *v)
{
    if (*at == NULL)
        return store_value_put(s, at, v);
    if (v->n == 0)
        return STORE_OK;
    size_t n = 0;
    if (__builtin_add_overflow((*at)->n, v->n, &n) || n > SIZE_MAX / 4)
        return STORE_STORE_FULL;
    enum store_verdict r = make_room(s, at, n);
    if (r != STORE_OK)
        return r;
    memcpy((*at)->bytes + (*at)->n, v->p, v->n);
    (*at)->n = n;
    return STORE_OK;
}

static bool is_blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

bool store_value_number(const struct blob *b, int64_t *ret)
{
    size_t i = 0;
    while (i < b->n && is_blank(b->bytes[i]))
        i++;
    bool negative = i < b->n && b->bytes[i] == '-';
    if (i < b->n && (b->bytes[i] == '-' || b->bytes[i] == '+'))
        i++;
    size_t first = i;
    int64_t v = 0; /* Built below zero, where there is room for one more. */
    for (; i < b->n && b->bytes[i] >= '0' && b->bytes[i] <= '9'; i++) {
        int64_t digit = b->bytes[i] - '0';
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_sub_overflow(v, digit, &v))
            return false;
    }
    if (i == first || (!negative && v == INT64_MIN))
        return false;
    *ret = negative ? v : -v;
    return true;
}

size_t store_number_text(int64_t v, char *ret)
{
    char back[20];
    size_t n = 0;
    uint64_t rest = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    do {
        back[n++] = (char)('0' + (char)(rest % 10));
        rest /= 10;
    } while (rest > 0);
    if (v < 0)
        back[n++] = '-';
    for (size_t i = 0; i < n; i++)
        ret[i] = back[n - 1 - i];
    return n;
}
