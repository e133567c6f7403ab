/* The store over HTTP, for people and scripts: values as they are (octets), the list as JSON. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "rendezvous/server/internal.h"

#define OCTETS "application/octet-stream"

/* Of a longer list so many are told, whichever come first: a list of millions would keep the loop
 * busy. */
#define LISTED_MAX 10000

/* False: answered already. */
static bool has_store(const struct srv *s, struct srv_http_answer *ret)
{
    if (s->store == NULL)
        *ret = answer_refusal(404, "no store is served at this port");
    return s->store != NULL;
}

static void no_such_key(struct mu_str key, const char *what, struct srv_http_answer *ret)
{
    char shown[120];
    char text[200];
    (void)snprintf(text, sizeof text,
                   "%s %s: muster store keys, or GET /v1/store, lists what there is", what,
                   mu_quote(shown, sizeof shown, key));
    *ret = answer_refusal(404, text);
}

void keys_serve_get(struct srv *s,
                    const struct srv_http_request *q,
                    struct mu_str name,
                    struct srv_http_answer *ret)
{
    struct mu_str value;
    (void)q;
    if (!has_store(s, ret))
        return;
    if (store_look(s->store, name, &value) < 0) {
        no_such_key(name, "the store has no value under", ret);
        return;
    }
    struct mu_buf *b = answer_new();
    if (b != NULL)
        (void)mu_buf_add(b, value.p, value.n);
    *ret = answer_body(200, b);
    if (ret->status == 200)
        ret->content_type = OCTETS;
}

static struct srv_http_answer done(struct mu_str key, const char *what, size_t bytes, bool sized)
{
    struct mu_json w;
    struct mu_buf *b = answer_new();
    if (b != NULL) {
        mu_json_init(&w, b);
        mu_json_open(&w, '{');
        mu_json_key(&w, "key");
        mu_json_strn(&w, key);
        mu_json_kbool(&w, what, true);
        if (sized)
            mu_json_ki64(&w, "bytes", (int64_t)bytes);
        mu_json_close(&w, '}');
        (void)mu_buf_adds(b, "\n");
    }
    return answer_body(200, b);
}

void keys_serve_put(struct srv *s,
                    const struct srv_http_request *q,
                    struct mu_str name,
                    struct srv_http_answer *ret)
{
    char text[200];
    if (!has_store(s, ret))
        return;
    enum store_verdict v = store_put(s->store, name, mu_str_of(q->body, q->body_bytes));
    if (v == STORE_OK) {
        client_flush_ready(s); /* Who waited for it. */
        *ret = done(name, "set", q->body_bytes, true);
        return;
    }
    bool too_large = v == STORE_KEY_TOO_LONG || v == STORE_VALUE_TOO_LONG;
    (void)snprintf(text, sizeof text, "not set: %s (%s of rdzv-server)", store_verdict_text(v),
                   v == STORE_KEY_TOO_LONG     ? "--max-key-bytes"
                   : v == STORE_VALUE_TOO_LONG ? "--max-value-bytes"
                                               : "--max-store-memory");
    *ret = answer_refusal(too_large ? 413 : 507, text);
}

void keys_serve_delete(struct srv *s,
                       const struct srv_http_request *q,
                       struct mu_str name,
                       struct srv_http_answer *ret)
{
    (void)q;
    if (!has_store(s, ret))
        return;
    if (!store_remove(s->store, name)) {
        no_such_key(name, "the store has no value under", ret);
        return;
    }
    client_flush_ready(s);
    *ret = done(name, "deleted", 0, false);
}

/* --- the list --- */

struct list {
    struct store_entry *entries;
    size_t count;
    size_t cap;
    size_t left_out;
    bool oom;
};

static void collect(void *arg, const struct store_entry *e)
{
    struct list *l = arg;
    if (l->count == LISTED_MAX || l->oom) {
        l->left_out++;
        return;
    }
    if (l->count == l->cap) {
        size_t cap = l->cap > 0 ? l->cap * 2 : 64;
        struct store_entry *more =
            mu_realloc(mu_mem_default(), l->entries, cap * sizeof *l->entries);
        l->oom = more == NULL;
        if (l->oom)
            return;
        l->entries = more;
        l->cap = cap;
    }
    l->entries[l->count++] = *e;
}

static int by_key(const void *a, const void *b)
{
    const struct mu_str *x = &((const struct store_entry *)a)->key;
    const struct mu_str *y = &((const struct store_entry *)b)->key;
    size_t n = x->n < y->n ? x->n : y->n;
    int r = n > 0 ? memcmp(x->p, y->p, n) : 0;
    return r != 0 ? r : (x->n > y->n) - (x->n < y->n);
}

static void write_list(struct mu_buf *b, const struct list *l)
{
    struct mu_json w;
    mu_json_init(&w, b);
    mu_json_open(&w, '{');
    mu_json_ki64(&w, "count", (int64_t)(l->count + l->left_out));
    mu_json_ki64(&w, "left_out", (int64_t)l->left_out);
    mu_json_key(&w, "keys");
    mu_json_open(&w, '[');
    for (size_t i = 0; i < l->count; i++) {
        const struct store_entry *e = &l->entries[i];
        mu_json_open(&w, '{');
        mu_json_key(&w, "key");
        mu_json_strn(&w, e->key);
        mu_json_key(&w, "bytes");
        if (e->has_value)
            mu_json_i64(&w, (int64_t)e->value_bytes);
        else
            mu_json_null(&w);
        mu_json_ki64(&w, "queued", (int64_t)e->queue_length);
        mu_json_close(&w, '}');
    }
    mu_json_close(&w, ']');
    mu_json_close(&w, '}');
    (void)mu_buf_adds(b, "\n");
}

void keys_serve_list(struct srv *s,
                     const struct srv_http_request *q,
                     struct mu_str name,
                     struct srv_http_answer *ret)
{
    const char *prefix = srv_query(q, "prefix");
    struct list l = {0};
    (void)name;
    if (!has_store(s, ret))
        return;
    store_each(s->store,
               mu_str_of(prefix != NULL ? prefix : "", prefix != NULL ? strlen(prefix) : 0),
               collect, &l);
    if (l.count > 0)
        qsort(l.entries, l.count, sizeof *l.entries, by_key);
    struct mu_buf *b = l.oom ? NULL : answer_new();
    if (b != NULL)
        write_list(b, &l);
    mu_mem_free(mu_mem_default(), l.entries);
    *ret = answer_body(200, b);
}
