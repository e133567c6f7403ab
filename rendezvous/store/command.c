/* What each command does (docs/protocol.md "The store"). A command either answers, or returns the
 * verdict that ends its client, with the keys as they were before. */
#include "rendezvous/store/internal.h"

#include <string.h>

/* --- arguments --- */

static struct mu_str key_of(const struct parsed *p)
{
    return mu_str_of(p->base + p->field[0].off, p->field[0].n);
}

static struct store_value value_of(const struct parsed *p, int field)
{
    struct span f = p->field[field];
    for (size_t i = 0; i < p->body_count; i++)
        if (p->bodies[i].at == f.off)
            return (struct store_value){p->bodies[i].blob->bytes, f.n, &p->bodies[i].blob};
    return (struct store_value){p->base + f.off, f.n, NULL};
}

/* The items of a request with a count, one after the other. The scanner has checked them. */
struct items {
    const struct parsed *p;
    size_t off;
    size_t body_index;
    uint64_t left;
};

static struct items items_of(const struct parsed *p)
{
    return (struct items){.p = p, .off = p->items_off, .left = p->items};
}

static struct mu_str next_key(struct items *it)
{
    const char *at = it->p->base + it->off;
    size_t n = (size_t)store_read_u64(at);
    it->off += 8 + n;
    it->left--;
    return mu_str_of(at + 8, n);
}

static struct store_value next_value(struct items *it)
{
    const struct parsed *p = it->p;
    size_t n = (size_t)store_read_u64(p->base + it->off);
    it->off += 8;
    if (it->body_index < p->body_count && p->bodies[it->body_index].at == it->off) {
        struct body *b = &p->bodies[it->body_index++];
        return (struct store_value){b->blob->bytes, n, &b->blob};
    }
    const char *at = p->base + it->off;
    it->off += n;
    return (struct store_value){at, n, NULL};
}

/* --- writing a key --- */

typedef enum store_verdict write_fn(struct store *s, struct blob **at, const struct store_value *v);

/* Write and tell the watchers; who wakes whom is the caller's. On failure nothing has changed. */
static enum store_verdict
write_key(struct store *s, struct name *n, write_fn *write, const struct store_value *v)
{
    bool created = n->value == NULL;
    struct blob *before = NULL;
    if (n->watches != NULL && !created)
        before = store_blob_ref(n->value); /* So it is not overwritten in place. */
    enum store_verdict r = write(s, &n->value, v);
    if (r == STORE_OK) {
        s->stats.keys += created;
        if (n->watches != NULL)
            store_watch_notify(n, created ? WATCH_CREATED : WATCH_UPDATED, before, n->value);
    }
    store_blob_unref(s, before);
    return r;
}

static enum store_verdict
write_and_wake(struct store *s, struct mu_str key, write_fn *write, struct store_value v)
{
    struct name *n = NULL;
    enum store_verdict r = store_name_get(s, key, CHARGE_DATA, &n);
    if (r != STORE_OK)
        return r;
    r = write_key(s, n, write, &v);
    if (r == STORE_OK)
        store_wake_all(s, n, false);
    else
        store_name_settle(s, n);
    return r;
}

enum store_verdict store_write(struct store *s, struct mu_str key, struct mu_str value)
{
    return write_and_wake(s, key, store_value_put, (struct store_value){value.p, value.n, NULL});
}

static enum store_verdict do_set(struct store_client *c, struct parsed *p)
{
    return write_and_wake(c->store, key_of(p), store_value_put, value_of(p, 1));
}

static enum store_verdict do_append(struct store_client *c, struct parsed *p)
{
    return write_and_wake(c->store, key_of(p), store_value_append, value_of(p, 1));
}

/* Missing key, nothing expected: it is created. */
static enum store_verdict compare_create(struct store_client *c, struct parsed *p)
{
    struct store *s = c->store;
    struct name *n = NULL;
    enum store_verdict r = store_name_get(s, key_of(p), CHARGE_DATA, &n);
    if (r != STORE_OK)
        return r;
    struct store_value desired = value_of(p, 2);
    r = write_key(s, n, store_value_put, &desired);
    if (r != STORE_OK) {
        store_name_settle(s, n);
        return r;
    }
    /* PyTorch's 1.x server wakes nobody here, so its clients do not hear of each other's. */
    store_wake_all(s, n, c->dialect == STORE_LEGACY);
    store_out_blob(c, n->value);
    return STORE_OK;
}

static void answer_value(struct store_client *c, const struct store_value *v)
{
    if (v->body != NULL)
        store_out_blob(c, *v->body);
    else
        store_out_str(c, mu_str_of(v->p, v->n));
}

static enum store_verdict do_compare_set(struct store_client *c, struct parsed *p)
{
    struct name *n = store_name_find(c->store, key_of(p));
    struct store_value expected = value_of(p, 1);
    if (n == NULL || n->value == NULL) {
        if (expected.n == 0)
            return compare_create(c, p);
        answer_value(c, &expected); /* An echo: so does PyTorch, and its clients count on it. */
        return STORE_OK;
    }
    if (mu_str_eq(mu_str_of(n->value->bytes, n->value->n), mu_str_of(expected.p, expected.n))) {
        struct store_value desired = value_of(p, 2);
        enum store_verdict r = write_key(c->store, n, store_value_put, &desired);
        if (r != STORE_OK)
            return r;
    }
    store_out_blob(c, n->value);
    return STORE_OK;
}

/* --- numbers --- */

/* What the counter n would be with delta more. False: it holds no number. */
static bool counter_sum(const struct name *n, int64_t delta, int64_t *ret)
{
    int64_t old = 0;
    if (n->value != NULL && !store_value_number(n->value, &old))
        return false;
    *ret = (int64_t)((uint64_t)old + (uint64_t)delta);
    return true;
}

static enum store_verdict counter_write(struct store *s, struct name *n, int64_t v)
{
    char text[20];
    struct store_value value = {text, store_number_text(v, text), NULL};
    return write_key(s, n, store_value_put, &value);
}

static enum store_verdict do_add(struct store_client *c, struct parsed *p)
{
    struct store *s = c->store;
    struct name *n = NULL;
    int64_t sum = 0;
    enum store_verdict r = store_name_get(s, key_of(p), CHARGE_DATA, &n);
    if (r != STORE_OK)
        return r;
    if (!counter_sum(n, (int64_t)p->number, &sum))
        return STORE_NOT_A_NUMBER;
    r = counter_write(s, n, sum);
    if (r != STORE_OK) {
        store_name_settle(s, n);
        return r;
    }
    store_wake_all(s, n, false);
    store_out_u64(c, (uint64_t)sum);
    return STORE_OK;
}

/* The last arrival lets all go; an earlier one waits. The counter is never taken back. */
static enum store_verdict barrier_arrive(struct store_client *c, struct name *n, int64_t world)
{
    struct store *s = c->store;
    int64_t arrived = 0;
    if (!counter_sum(n, 1, &arrived))
        return STORE_NOT_A_NUMBER;
    bool complete = arrived >= world;
    enum store_verdict r = complete ? STORE_OK : store_wait_begin(c, 1);
    if (r == STORE_OK)
        r = counter_write(s, n, arrived);
    if (r != STORE_OK)
        return r;
    if (complete) {
        store_wake_all(s, n, false);
        store_out_u8(c, 0);
    } else {
        store_wait_add(c, n, false);
    }
    return STORE_OK;
}

static enum store_verdict do_barrier(struct store_client *c, struct parsed *p)
{
    struct name *n = NULL;
    store_wait_release(c); /* Before the look-up: the old wait may be all that holds the name. */
    enum store_verdict r = store_name_get(c->store, key_of(p), CHARGE_DATA, &n);
    if (r != STORE_OK)
        return r;
    r = barrier_arrive(c, n, (int64_t)p->number);
    if (r != STORE_OK) {
        store_wait_release(c);
        store_name_settle(c->store, n);
    }
    return r;
}

/* --- reading --- */

static enum store_verdict do_get(struct store_client *c, struct parsed *p)
{
    const struct name *n = store_name_find(c->store, key_of(p));
    if ((n == NULL || n->value == NULL) && c->dialect == STORE_LEGACY)
        return STORE_MISSING_KEY;
    store_out_blob(c, n == NULL ? NULL : n->value);
    return STORE_OK;
}

static enum store_verdict do_multi_get(struct store_client *c, struct parsed *p)
{
    for (struct items it = items_of(p); it.left > 0 && store_client_alive(c);) {
        const struct name *n = store_name_find(c->store, next_key(&it));
        store_out_blob(c, n == NULL ? NULL : n->value);
    }
    return STORE_OK;
}

static bool all_present(struct store *s, const struct parsed *p)
{
    for (struct items it = items_of(p); it.left > 0;)
        if (!store_name_present(store_name_find(s, next_key(&it))))
            return false;
    return true;
}

static enum store_verdict do_check(struct store_client *c, struct parsed *p)
{
    store_out_u8(c, all_present(c->store, p) ? 0 : 1);
    return STORE_OK;
}

static enum store_verdict do_getnumkeys(struct store_client *c, struct parsed *p)
{
    (void)p;
    store_out_u64(c, c->store->stats.keys);
    return STORE_OK;
}

static enum store_verdict do_list_keys(struct store_client *c, struct parsed *p)
{
    const struct store *s = c->store;
    (void)p;
    store_out_u64(c, s->stats.keys);
    for (size_t i = 0; i < s->bucket_count && store_client_alive(c); i++)
        for (const struct name *n = s->buckets[i]; n != NULL; n = n->next)
            if (n->value != NULL)
                store_out_str(c, store_name_key(n));
    return STORE_OK;
}

bool store_erase(struct store *s, struct mu_str key)
{
    struct name *n = store_name_find(s, key);
    if (n == NULL || n->value == NULL)
        return false;
    struct blob *before = n->value;
    n->value = NULL;
    s->stats.keys--;
    if (n->watches != NULL)
        store_watch_notify(n, WATCH_DELETED, before, NULL);
    store_blob_unref(s, before);
    store_name_settle(s, n);
    return true;
}

static enum store_verdict do_delete_key(struct store_client *c, struct parsed *p)
{
    store_out_u64(c, store_erase(c->store, key_of(p)));
    return STORE_OK;
}

/* --- many keys at once --- */

/* A pair of MULTI_SET that can be written without anything that could fail. */
struct pair {
    struct name *name; /* Pinned. */
    struct blob *blob;
};

static enum store_verdict pair_prepare(struct store *s, struct items *it, struct pair *ret)
{
    struct name *n = NULL;
    struct blob *b = NULL;
    enum store_verdict r = store_name_get(s, next_key(it), CHARGE_DATA, &n);
    if (r != STORE_OK)
        return r;
    struct store_value v = next_value(it);
    r = store_blob_from(s, &v, &b);
    if (r != STORE_OK) {
        store_name_settle(s, n);
        return r;
    }
    n->pins++;
    *ret = (struct pair){n, b};
    return STORE_OK;
}

static void pair_write(struct store *s, struct pair *pair)
{
    struct store_value v = {pair->blob->bytes, pair->blob->n, &pair->blob};
    enum store_verdict r = write_key(s, pair->name, store_value_put, &v);
    MU_ASSERT(r == STORE_OK);
    store_wake_all(s, pair->name, false);
}

/* All pairs or none. */
static enum store_verdict do_multi_set(struct store_client *c, struct parsed *p)
{
    struct store *s = c->store;
    if (p->items == 0)
        return STORE_OK;
    struct pair *pairs = mu_alloc(s->mem, (size_t)p->items * sizeof *pairs);
    if (pairs == NULL)
        return STORE_NO_MEMORY;
    enum store_verdict r = STORE_OK;
    size_t count = 0;
    for (struct items it = items_of(p); it.left > 0 && r == STORE_OK;) {
        r = pair_prepare(s, &it, &pairs[count]);
        count += r == STORE_OK;
    }
    for (size_t i = 0; i < count; i++) {
        if (r == STORE_OK)
            pair_write(s, &pairs[i]);
        store_blob_unref(s, pairs[i].blob);
        pairs[i].name->pins--;
        store_name_settle(s, pairs[i].name);
    }
    mu_mem_free(s->mem, pairs);
    return r;
}

/* --- waiting --- */

static enum store_verdict wait_register(struct store_client *c, const struct parsed *p)
{
    struct store *s = c->store;
    enum store_verdict r = store_wait_begin(c, (size_t)p->items);
    for (struct items it = items_of(p); it.left > 0 && r == STORE_OK;) {
        struct name *n = NULL;
        r = store_name_get(s, next_key(&it), CHARGE_UPKEEP, &n);
        if (r == STORE_OK)
            store_wait_add(c, n, store_name_present(n));
    }
    if (r != STORE_OK)
        store_wait_release(c);
    return r;
}

/* A client has one wait: a new one takes the place of one that still waits. A client of the legacy
 * dialect that gave up has no other way to say so. */
static enum store_verdict do_wait(struct store_client *c, struct parsed *p)
{
    if (c->wait != NULL && c->wait->missing > 0)
        store_wait_release(c);
    if (!all_present(c->store, p))
        return wait_register(c, p);
    store_out_u8(c, 0);
    return STORE_OK;
}

static enum store_verdict do_cancel_wait(struct store_client *c, struct parsed *p)
{
    (void)p;
    store_wait_release(c);
    store_out_u8(c, 1);
    return STORE_OK;
}

static enum store_verdict do_watch_key(struct store_client *c, struct parsed *p)
{
    struct name *n = NULL;
    enum store_verdict r = store_name_get(c->store, key_of(p), CHARGE_DATA, &n);
    if (r != STORE_OK)
        return r;
    r = store_watch_add(c, n);
    if (r == STORE_OK)
        store_out_u8(c, WATCH_REGISTERED);
    else
        store_name_settle(c->store, n);
    return r;
}

/* --- queues --- */

static enum store_verdict do_queue_push(struct store_client *c, struct parsed *p)
{
    struct store *s = c->store;
    struct name *n = NULL;
    struct blob *b = NULL;
    struct store_value v = value_of(p, 1);
    enum store_verdict r = store_name_get(s, key_of(p), CHARGE_DATA, &n);
    if (r != STORE_OK)
        return r;
    r = store_blob_from(s, &v, &b);
    if (r == STORE_OK && !store_queue_push(s, n, b)) {
        store_blob_unref(s, b);
        r = STORE_NO_MEMORY;
    }
    if (r == STORE_OK)
        store_wake_one(s, n);
    else
        store_name_settle(s, n);
    return r;
}

static enum store_verdict do_queue_pop(struct store_client *c, struct parsed *p)
{
    struct store *s = c->store;
    struct name *n = store_name_find(s, key_of(p));
    store_out_u64(c, n == NULL || n->queue == NULL ? 0 : n->queue->length);
    if (n == NULL || !store_client_alive(c)) /* The item stays for one who can be told. */
        return STORE_OK;
    if (n->queue != NULL) {
        struct blob *b = store_queue_take(s, n);
        store_out_blob(c, b);
        store_blob_unref(s, b);
    }
    n->pins++;
    store_offer_taken(c, n);
    n->pins--;
    store_name_settle(s, n);
    return STORE_OK;
}

static enum store_verdict do_queue_len(struct store_client *c, struct parsed *p)
{
    const struct name *n = store_name_find(c->store, key_of(p));
    store_out_u64(c, n == NULL || n->queue == NULL ? 0 : n->queue->length);
    return STORE_OK;
}

/* --- the rest --- */

static enum store_verdict do_ping(struct store_client *c, struct parsed *p)
{
    unsigned char nonce[4];
    for (int i = 0; i < 4; i++)
        nonce[i] = (unsigned char)(p->number >> (8 * i));
    store_out_bytes(c, nonce, sizeof nonce);
    return STORE_OK;
}

typedef enum store_verdict command_fn(struct store_client *c, struct parsed *p);

/* VALIDATE has no row: it comes first, and only the codec sees it. */
static command_fn *const commands[STORE_COMMANDS] = {
    [STORE_SET] = do_set,
    [STORE_COMPARE_SET] = do_compare_set,
    [STORE_GET] = do_get,
    [STORE_ADD] = do_add,
    [STORE_CHECK] = do_check,
    [STORE_WAIT] = do_wait,
    [STORE_GETNUMKEYS] = do_getnumkeys,
    [STORE_DELETE_KEY] = do_delete_key,
    [STORE_APPEND] = do_append,
    [STORE_MULTI_GET] = do_multi_get,
    [STORE_MULTI_SET] = do_multi_set,
    [STORE_CANCEL_WAIT] = do_cancel_wait,
    [STORE_PING] = do_ping,
    [STORE_QUEUE_PUSH] = do_queue_push,
    [STORE_QUEUE_POP] = do_queue_pop,
    [STORE_QUEUE_LEN] = do_queue_len,
    [STORE_LIST_KEYS] = do_list_keys,
    [STORE_BARRIER] = do_barrier,
    [STORE_WATCH_KEY] = do_watch_key,
};

enum store_verdict store_execute(struct store_client *c, struct parsed *p)
{
    if (!store_out_open(c))
        return store_client_verdict(c);
    if (p->command < STORE_COMMAND_COUNT)
        c->store->stats.ops[p->command]++;
    uint64_t before = c->pending;
    enum store_verdict r = commands[p->command](c, p);
    store_out_done(c, before);
    return r != STORE_OK ? r : store_client_verdict(c);
}
