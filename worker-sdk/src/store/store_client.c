/* The store's client: each command is a request, built in one buffer, and a function that takes its
 * answer. What happens when the connection fails in between is decided in one place, run(). */
#include "worker-sdk/src/store/store_client.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/str.h"
#include "worker-sdk/src/store/store_wire.h"

/* PyTorch 2.13's codes; docs/protocol.md "The store". */
enum command {
    CMD_SET = 1,
    CMD_COMPARE_SET = 2,
    CMD_GET = 3,
    CMD_ADD = 4,
    CMD_CHECK = 5,
    CMD_WAIT = 6,
    CMD_GETNUMKEYS = 7,
    CMD_DELETE_KEY = 8,
    CMD_APPEND = 9,
    CMD_MULTI_GET = 10,
    CMD_MULTI_SET = 11,
    CMD_CANCEL_WAIT = 12,
    CMD_PING = 13,
    CMD_QUEUE_PUSH = 14,
    CMD_QUEUE_POP = 15,
    CMD_QUEUE_LEN = 16,
    CMD_LIST_KEYS = 17,
};

#define STOP_WAITING 0
#define WAIT_CANCELED 1

/* After a time-out, for the server to take the wait back. A live one needs microseconds. */
#define CANCEL_NS (200 * MU_NS_PER_MS)
/* Who is missing is asked after time is over, so the question has a limit of its own. */
#define MISSING_NS (500 * MU_NS_PER_MS)
/* Keys of one request: below every server's limit, and small enough that none is held up long. */
#define KEYS_AT_ONCE 4096u
/* No value is larger, whatever a broken server announces. */
#define VALUE_BYTES_MAX (UINT64_C(1) << 32)
#define LIST_MAX (UINT64_C(1) << 28)

struct muster_store {
    struct wire wire;
    char *prefix;
    size_t prefix_bytes;
    int64_t timeout_ns;
    int64_t limit_ns;  /* No call lasts longer; MU_NEVER: as its own time-out says. */
    struct mu_buf out; /* The request at hand. */
};

/* --- a request and its answer --- */

struct call {
    muster_store *s;
    const char *what; /* For sentences: "get", and of which key. */
    const char *key;
    int64_t deadline_ns;
    bool again;     /* May be done twice. */
    uint32_t nonce; /* Of the PING behind a command without an answer. */
    size_t count;
    void *ret;
    int (*answer)(struct call *c, struct muster_error *err);
};

static struct call call_begin(muster_store *s, const char *what, const char *key, bool again)
{
    mu_buf_reset(&s->out);
    return (struct call){.s = s,
                         .what = what,
                         .key = key,
                         .again = again,
                         .deadline_ns = sdk_deadline_ns(s->timeout_ns)};
}

static void put_number(muster_store *s, uint64_t v, size_t bytes)
{
    char b[8];
    wire_put(b, v, bytes);
    (void)mu_buf_add(&s->out, b, bytes); /* Out of memory is seen in run(). */
}

static void put_command(muster_store *s, enum command c)
{
    put_number(s, (uint64_t)c, 1);
}

static void put_bytes(muster_store *s, const void *p, size_t n)
{
    put_number(s, n, 8);
    if (n > 0)
        (void)mu_buf_add(&s->out, p, n);
}

/* Longer keys are refused by key_fits() before this. */
static void put_key(muster_store *s, const char *key)
{
    size_t n = strlen(key);
    put_number(s, 1 + s->prefix_bytes + n, 8);
    (void)mu_buf_add(&s->out, "/", 1);
    (void)mu_buf_add(&s->out, s->prefix, s->prefix_bytes);
    (void)mu_buf_add(&s->out, key, n);
}

/* For commands without an answer: the answer to the PING behind them says that they are done. */
static void put_ping(struct call *c)
{
    c->nonce = ++c->s->wire.nonce;
    put_command(c->s, CMD_PING);
    put_number(c->s, c->nonce, 4);
}

static int is_there(const muster_store *s, struct muster_error *err)
{
    return s != NULL ? 0
                     : sdk_error(err, -ENOTCONN,
                                 "there is no store: a world of one has none, "
                                 "unless its launcher serves one");
}

static int key_fits(const muster_store *s, const char *key, struct muster_error *err)
{
    if (s == NULL)
        return is_there(s, err);
    if (key == NULL)
        return sdk_error(err, -EINVAL, "a key is missing");
    size_t n = 1 + s->prefix_bytes + strlen(key);
    if (n <= MU_STORE_KEY_BYTES_MAX)
        return 0;
    return sdk_error(err, -ENAMETOOLONG, "a key of %zu bytes, with its prefix, is over %d: '%.40s'",
                     n, MU_STORE_KEY_BYTES_MAX, key);
}

static int
keys_fit(const muster_store *s, const char *const *keys, size_t count, struct muster_error *err)
{
    int r = is_there(s, err);
    for (size_t i = 0; i < count && r == 0; i++)
        r = key_fits(s, keys[i], err);
    return r;
}

static int fail(const struct call *c, int code, struct muster_error *err)
{
    if (c->key == NULL)
        return sdk_error_wrap(err, code, "store %s", c->what);
    return sdk_error_wrap(err, code, "store %s '%.60s'", c->what, c->key);
}

/* The connection was lost with the request on its way. */
static int fail_halfway(const struct call *c, int code, struct muster_error *err)
{
    const char *hint = "";
    if (!c->again)
        hint = ". It may or may not have been done, and is not sent again";
    else if (c->s->out.n > MU_STORE_VALUE_BYTES_MAX)
        hint = ". Is the value over the server's limit? That is 8 MiB by default";
    if (err != NULL) {
        size_t n = strlen(err->text);
        (void)mu_strcopy(err->text + n, sizeof err->text - n, hint);
    }
    return fail(c, code, err);
}

/* Send the request and take the answer; connect first where need be. A request that may be done
 * twice is sent once more when the connection is lost; only once, because it may be the request
 * that makes the server close. */
static int run(struct call *c, struct muster_error *err)
{
    muster_store *s = c->s;
    struct muster_error why = {0};
    if (s->out.oom)
        return sdk_error(err, -ENOMEM, "store %s: no memory for the request", c->what);
    if (err == NULL)
        err = &why;
    if (c->deadline_ns > s->limit_ns)
        c->deadline_ns = s->limit_ns;
    for (int attempt = 0;; attempt++) {
        if (!wire_is_alive(&s->wire)) {
            int r = wire_connect(&s->wire, c->deadline_ns, err);
            if (r < 0)
                return fail(c, r, err);
        }
        int r = wire_send(&s->wire, s->out.p, s->out.n, c->deadline_ns, err);
        if (r == 0)
            r = c->answer(c, err);
        if (r >= 0)
            return r;
        if (s->wire.fd >= 0) /* The server's word, or a wait that was taken back. */
            return fail(c, r, err);
        if (!c->again || attempt > 0 || r == -ETIMEDOUT || r == -ENOMEM || r == -EPROTO)
            return fail_halfway(c, r, err);
    }
}

/* --- answers --- */

static int broken(struct call *c, struct muster_error *err)
{
    wire_drop(&c->s->wire);
    return sdk_error(err, -EPROTO, "the answer is none that a store gives");
}

static int answer_number(struct call *c, size_t bytes, uint64_t *ret, struct muster_error *err)
{
    char b[8];
    int r = wire_receive(&c->s->wire, b, bytes, c->deadline_ns, err);
    if (r == 0)
        *ret = wire_number(b, bytes);
    return r;
}

static int answer_i64(struct call *c, struct muster_error *err)
{
    uint64_t v = 0;
    int r = answer_number(c, 8, &v, err);
    if (r == 0)
        *(int64_t *)c->ret = (int64_t)v;
    return r;
}

static int answer_ping(struct call *c, struct muster_error *err)
{
    uint64_t v = 0;
    int r = answer_number(c, 4, &v, err);
    return r == 0 && v != c->nonce ? broken(c, err) : r;
}

static int take_bytes(struct call *c, struct muster_bytes *ret, struct muster_error *err)
{
    uint64_t n = 0;
    int r = answer_number(c, 8, &n, err);
    if (r < 0)
        return r;
    if (n > VALUE_BYTES_MAX)
        return broken(c, err);
    struct muster_bytes b = {.p = mu_alloc(mu_mem_default(), (size_t)n + 1), .n = (size_t)n};
    if (b.p == NULL) {
        wire_drop(&c->s->wire); /* The value is on its way and has no place to go. */
        return sdk_error(err, -ENOMEM, "no memory for a value of %" PRIu64 " bytes", n);
    }
    r = wire_receive(&c->s->wire, b.p, b.n, c->deadline_ns, err);
    if (r < 0) {
        muster_bytes_free(&b);
        return r;
    }
    b.p[b.n] = '\0';
    *ret = b;
    return 0;
}

/* c->count of them; none when one fails. */
static int answer_bytes(struct call *c, struct muster_error *err)
{
    struct muster_bytes *ret = c->ret;
    for (size_t i = 0; i < c->count; i++) {
        int r = take_bytes(c, &ret[i], err);
        if (r == 0)
            continue;
        while (i > 0)
            muster_bytes_free(&ret[--i]);
        return r;
    }
    return 0;
}

/* c->count answers of CHECK, as one truth each. */
static int answer_checks(struct call *c, struct muster_error *err)
{
    bool *ret = c->ret;
    for (size_t i = 0; i < c->count; i++) {
        uint64_t v = 0;
        int r = answer_number(c, 1, &v, err);
        if (r < 0)
            return r;
        if (v > 1)
            return broken(c, err);
        ret[i] = v == 0;
    }
    return 0;
}

/* The wait's time is over: take it back, so that its wake does not answer a later request. It may
 * have come while we gave up; then the wait has succeeded. */
static int cancel(struct call *c, struct muster_error *err)
{
    struct wire *w = &c->s->wire;
    int64_t until_ns = sdk_deadline_ns(CANCEL_NS);
    char command = CMD_CANCEL_WAIT;
    char first = WAIT_CANCELED;
    char second = WAIT_CANCELED;
    int r = wire_send(w, &command, 1, until_ns, err);
    if (r == 0)
        r = wire_receive(w, &first, 1, until_ns, err);
    if (r == 0 && first == STOP_WAITING)
        r = wire_receive(w, &second, 1, until_ns, err);
    if (r == 0 && second != WAIT_CANCELED)
        return broken(c, err);
    if (r == 0 && first == STOP_WAITING)
        return 0;
    return r < 0 && r != -ETIMEDOUT
               ? r
               : sdk_error(err, -ETIMEDOUT,
                           r == 0 ? "time is over" : "time is over, and the store does not answer");
}

static int answer_wait(struct call *c, struct muster_error *err)
{
    int r = wire_ready(&c->s->wire, c->deadline_ns, err);
    if (r == -ETIMEDOUT)
        return cancel(c, err);
    uint64_t v = 0;
    if (r == 0)
        r = answer_number(c, 1, &v, err);
    return r == 0 && v != STOP_WAITING ? broken(c, err) : r;
}

static int answer_pop(struct call *c, struct muster_error *err)
{
    uint64_t n = 0;
    int r = answer_number(c, 8, &n, err);
    if (r < 0)
        return r;
    if ((int64_t)n <= 0)
        return sdk_error(err, -EAGAIN, "the queue is empty");
    return take_bytes(c, c->ret, err);
}

/* --- waiting --- */

static void put_keys(muster_store *s, enum command cmd, const char *const *keys, size_t count)
{
    put_command(s, cmd);
    put_number(s, count, 8);
    for (size_t i = 0; i < count; i++)
        put_key(s, keys[i]);
}

int store_check_each(muster_store *s,
                     const char *const *keys,
                     size_t count,
                     int64_t deadline_ns,
                     bool *ret,
                     struct muster_error *err)
{
    int r = 0;
    for (size_t at = 0; at < count && r == 0; at += KEYS_AT_ONCE) {
        struct call c = call_begin(s, "check", NULL, true);
        c.count = count - at < KEYS_AT_ONCE ? count - at : KEYS_AT_ONCE;
        c.ret = ret + at;
        c.answer = answer_checks;
        c.deadline_ns = deadline_ns;
        for (size_t i = 0; i < c.count; i++)
            put_keys(s, CMD_CHECK, keys + at + i, 1);
        r = run(&c, err);
    }
    return r;
}

/* Name the first key that is missing. Keeps the plain sentence where that cannot be learned. */
static int name_missing(muster_store *s,
                        const char *what,
                        const char *const *keys,
                        size_t count,
                        int64_t waited_ns,
                        struct muster_error *err)
{
    if (err == NULL || s->wire.fd < 0 || count > KEYS_AT_ONCE)
        return -ETIMEDOUT;
    bool *there = mu_zalloc(mu_mem_default(), count * sizeof *there);
    if (there == NULL)
        return -ETIMEDOUT;
    size_t missing = 0;
    size_t first = 0;
    if (store_check_each(s, keys, count, sdk_deadline_ns(MISSING_NS), there, NULL) == 0) {
        for (size_t i = count; i > 0; i--) {
            if (!there[i - 1]) {
                missing++;
                first = i - 1;
            }
        }
    }
    mu_mem_free(mu_mem_default(), there);
    char span[MU_SPAN_BYTES];
    (void)mu_span(waited_ns, span);
    if (missing == 1)
        return sdk_error(err, -ETIMEDOUT, "store %s: '%.100s' did not come within %s", what,
                         keys[first], span);
    if (missing > 1)
        return sdk_error(err, -ETIMEDOUT,
                         "store %s: %zu of %zu keys did not come within %s, the first is "
                         "'%.100s'",
                         what, missing, count, span, keys[first]);
    return -ETIMEDOUT;
}

int store_wait_until(muster_store *s,
                     const char *what,
                     const char *const *keys,
                     size_t count,
                     int64_t deadline_ns,
                     struct muster_error *err)
{
    int64_t began_ns = sdk_now_ns();
    int r = keys_fit(s, keys, count, err);
    for (size_t at = 0; at < count && r == 0; at += KEYS_AT_ONCE) {
        size_t n = count - at < KEYS_AT_ONCE ? count - at : KEYS_AT_ONCE;
        struct call c = call_begin(s, what, n == 1 ? keys[at] : NULL, true);
        c.deadline_ns = deadline_ns;
        c.answer = answer_wait;
        put_keys(s, CMD_WAIT, keys + at, n);
        r = run(&c, err);
        if (r == -ETIMEDOUT)
            r = name_missing(s, what, keys + at, n, sdk_now_ns() - began_ns, err);
    }
    return r;
}

/* --- the handle --- */

void muster_bytes_free(struct muster_bytes *b)
{
    if (b == NULL)
        return;
    mu_mem_free(mu_mem_default(), b->p);
    *b = (struct muster_bytes){0};
}

static muster_store *store_new(const char *prefix, int64_t timeout_ns)
{
    muster_store *s = mu_zalloc(mu_mem_default(), sizeof *s);
    if (s == NULL)
        return NULL;
    s->wire.fd = -1;
    s->timeout_ns = timeout_ns;
    s->limit_ns = MU_NEVER;
    mu_buf_init(&s->out, mu_mem_default());
    s->prefix = mu_strdup(mu_mem_default(), prefix != NULL ? prefix : "");
    if (s->prefix == NULL) {
        muster_store_close(s);
        return NULL;
    }
    s->prefix_bytes = strlen(s->prefix);
    return s;
}

int muster_store_open(const char *host,
                      uint16_t port,
                      const char *prefix,
                      int64_t timeout_ns,
                      muster_store **ret,
                      struct muster_error *err)
{
    int64_t deadline_ns = sdk_deadline_ns(timeout_ns);
    muster_store *s = store_new(prefix, timeout_ns);
    if (s == NULL)
        return sdk_error(err, -ENOMEM, "no memory for a store's handle");
    int r = key_fits(s, "", err);
    if (r == 0)
        r = wire_find(&s->wire, host, port, deadline_ns, err);
    if (r == 0)
        r = wire_connect(&s->wire, deadline_ns, err);
    if (r < 0) {
        muster_store_close(s);
        return r;
    }
    *ret = s;
    return 0;
}

void muster_store_close(muster_store *s)
{
    if (s == NULL)
        return;
    wire_drop(&s->wire);
    mu_buf_fini(&s->out);
    mu_mem_free(mu_mem_default(), s->prefix);
    mu_mem_free(mu_mem_default(), s);
}

void muster_store_set_timeout(muster_store *s, int64_t timeout_ns)
{
    if (s != NULL)
        s->timeout_ns = timeout_ns;
}

int64_t store_limit_ns(const muster_store *s)
{
    return s != NULL ? s->limit_ns : MU_NEVER;
}

int64_t store_limit(muster_store *s, int64_t until_ns)
{
    int64_t former_ns = store_limit_ns(s);
    if (s != NULL && until_ns < former_ns)
        s->limit_ns = until_ns;
    return former_ns;
}

void store_unlimit(muster_store *s, int64_t former_ns)
{
    if (s != NULL)
        s->limit_ns = former_ns;
}

/* --- commands --- */

/* SET, APPEND, QUEUE_PUSH: key and value, no answer of their own. */
static int write_value(muster_store *s,
                       enum command cmd,
                       const char *what,
                       const char *key,
                       const void *p,
                       size_t n,
                       struct muster_error *err)
{
    int r = key_fits(s, key, err);
    if (r < 0)
        return r;
    struct call c = call_begin(s, what, key, cmd == CMD_SET);
    put_command(s, cmd);
    put_key(s, key);
    put_bytes(s, p, n);
    put_ping(&c);
    c.answer = answer_ping;
    return run(&c, err);
}

int muster_store_set(
    muster_store *s, const char *key, const void *p, size_t n, struct muster_error *err)
{
    return write_value(s, CMD_SET, "set", key, p, n, err);
}

int muster_store_append(
    muster_store *s, const char *key, const void *p, size_t n, struct muster_error *err)
{
    return write_value(s, CMD_APPEND, "append", key, p, n, err);
}

int muster_store_queue_push(
    muster_store *s, const char *key, const void *p, size_t n, struct muster_error *err)
{
    return write_value(s, CMD_QUEUE_PUSH, "queue_push", key, p, n, err);
}

int muster_store_get(muster_store *s,
                     const char *key,
                     struct muster_bytes *ret,
                     struct muster_error *err)
{
    return muster_store_multi_get(s, &key, 1, ret, err);
}

/* One key in, one number out. */
static int number_of_key(muster_store *s,
                         enum command cmd,
                         const char *what,
                         const char *key,
                         bool again,
                         int64_t *ret,
                         struct muster_error *err)
{
    int r = key_fits(s, key, err);
    if (r < 0)
        return r;
    struct call c = call_begin(s, what, key, again);
    put_command(s, cmd);
    put_key(s, key);
    c.answer = answer_i64;
    c.ret = ret;
    return run(&c, err);
}

int muster_store_add(
    muster_store *s, const char *key, int64_t delta, int64_t *ret, struct muster_error *err)
{
    int64_t unwanted = 0;
    int r = key_fits(s, key, err);
    if (r < 0)
        return r;
    struct call c = call_begin(s, "add", key, delta == 0);
    put_command(s, CMD_ADD);
    put_key(s, key);
    put_number(s, (uint64_t)delta, 8);
    c.answer = answer_i64;
    c.ret = ret != NULL ? ret : &unwanted;
    return run(&c, err);
}

int muster_store_compare_set(muster_store *s,
                             const char *key,
                             const void *expected,
                             size_t expected_n,
                             const void *desired,
                             size_t desired_n,
                             struct muster_bytes *ret,
                             struct muster_error *err)
{
    int r = key_fits(s, key, err);
    if (r < 0)
        return r;
    struct call c = call_begin(s, "compare_set", key, false);
    put_command(s, CMD_COMPARE_SET);
    put_key(s, key);
    put_bytes(s, expected, expected_n);
    put_bytes(s, desired, desired_n);
    c.answer = answer_bytes;
    c.count = 1;
    c.ret = ret;
    return run(&c, err);
}

int muster_store_check(
    muster_store *s, const char *const *keys, size_t key_count, bool *ret, struct muster_error *err)
{
    bool all = true;
    int r = keys_fit(s, keys, key_count, err);
    for (size_t at = 0; at < key_count && all && r == 0; at += KEYS_AT_ONCE) {
        size_t n = key_count - at < KEYS_AT_ONCE ? key_count - at : KEYS_AT_ONCE;
        struct call c = call_begin(s, "check", n == 1 ? keys[at] : NULL, true);
        put_keys(s, CMD_CHECK, keys + at, n);
        c.answer = answer_checks;
        c.count = 1;
        c.ret = &all;
        r = run(&c, err);
    }
    if (r == 0)
        *ret = all;
    return r;
}

int muster_store_wait(muster_store *s,
                      const char *const *keys,
                      size_t key_count,
                      int64_t timeout_ns,
                      struct muster_error *err)
{
    return store_wait_until(s, "wait", keys, key_count, sdk_deadline_ns(timeout_ns), err);
}

int muster_store_delete(muster_store *s,
                        const char *key,
                        bool *ret_was_there,
                        struct muster_error *err)
{
    int64_t n = 0;
    /* The second time it would not be there any more, whatever it was before. */
    int r = number_of_key(s, CMD_DELETE_KEY, "delete", key, ret_was_there == NULL, &n, err);
    if (r == 0 && ret_was_there != NULL)
        *ret_was_there = n > 0;
    return r;
}

int muster_store_num_keys(muster_store *s, int64_t *ret, struct muster_error *err)
{
    if (s == NULL)
        return is_there(s, err);
    struct call c = call_begin(s, "num_keys", NULL, true);
    put_command(s, CMD_GETNUMKEYS);
    c.answer = answer_i64;
    c.ret = ret;
    return run(&c, err);
}

int muster_store_multi_set(muster_store *s,
                           const char *const *keys,
                           const struct muster_bytes *values,
                           size_t count,
                           struct muster_error *err)
{
    int r = keys_fit(s, keys, count, err);
    for (size_t at = 0; at < count && r == 0; at += KEYS_AT_ONCE) {
        size_t n = count - at < KEYS_AT_ONCE ? count - at : KEYS_AT_ONCE;
        struct call c = call_begin(s, "multi_set", NULL, true);
        put_command(s, CMD_MULTI_SET);
        put_number(s, n, 8);
        for (size_t i = at; i < at + n; i++) {
            put_key(s, keys[i]);
            put_bytes(s, values[i].p, values[i].n);
        }
        put_ping(&c);
        c.answer = answer_ping;
        r = run(&c, err);
    }
    return r;
}

/* Wait for the keys, then fetch them. */
static int get_some(muster_store *s,
                    const char *const *keys,
                    size_t count,
                    struct muster_bytes *ret,
                    int64_t deadline_ns,
                    struct muster_error *err)
{
    int r = store_wait_until(s, count == 1 ? "get" : "multi_get", keys, count, deadline_ns, err);
    if (r < 0)
        return r;
    struct call c = call_begin(s, count == 1 ? "get" : "multi_get", keys[0], true);
    if (count == 1) {
        put_command(s, CMD_GET);
        put_key(s, keys[0]);
    } else {
        put_keys(s, CMD_MULTI_GET, keys, count);
    }
    c.deadline_ns = deadline_ns;
    c.answer = answer_bytes;
    c.count = count;
    c.ret = ret;
    return run(&c, err);
}

int muster_store_multi_get(muster_store *s,
                           const char *const *keys,
                           size_t count,
                           struct muster_bytes *ret,
                           struct muster_error *err)
{
    if (s == NULL)
        return is_there(s, err);
    int64_t deadline_ns = sdk_deadline_ns(s->timeout_ns);
    for (size_t at = 0; at < count; at += KEYS_AT_ONCE) {
        size_t n = count - at < KEYS_AT_ONCE ? count - at : KEYS_AT_ONCE;
        int r = get_some(s, keys + at, n, ret + at, deadline_ns, err);
        if (r == 0)
            continue;
        while (at > 0)
            muster_bytes_free(&ret[--at]);
        return r;
    }
    return 0;
}

int muster_store_queue_pop(muster_store *s,
                           const char *key,
                           bool block,
                           struct muster_bytes *ret,
                           struct muster_error *err)
{
    int r = key_fits(s, key, err);
    int64_t deadline_ns = r == 0 ? sdk_deadline_ns(s->timeout_ns) : 0;
    while (r == 0) {
        if (block)
            r = store_wait_until(s, "queue_pop", &key, 1, deadline_ns, err);
        if (r < 0)
            break;
        struct call c = call_begin(s, "queue_pop", key, false);
        put_command(s, CMD_QUEUE_POP);
        put_key(s, key);
        c.deadline_ns = deadline_ns;
        c.answer = answer_pop;
        c.ret = ret;
        r = run(&c, err);
        if (r == 0)
            return 0;
        if (block && r == -EAGAIN) /* Another consumer was faster: wait for the next item. */
            r = 0;
    }
    return r;
}

int muster_store_queue_len(muster_store *s, const char *key, int64_t *ret, struct muster_error *err)
{
    return number_of_key(s, CMD_QUEUE_LEN, "queue_len", key, true, ret, err);
}

int muster_store_ping(muster_store *s, struct muster_error *err)
{
    if (s == NULL)
        return is_there(s, err);
    struct call c = call_begin(s, "ping", NULL, true);
    put_ping(&c);
    c.answer = answer_ping;
    return run(&c, err);
}

/* --- listing --- */

void muster_store_free_keys(struct muster_bytes *keys, size_t n)
{
    for (size_t i = 0; keys != NULL && i < n; i++)
        muster_bytes_free(&keys[i]);
    mu_mem_free(mu_mem_default(), keys);
}

/* All keys of the store; c->ret points to the list, c->count is how many. */
static int answer_list(struct call *c, struct muster_error *err)
{
    uint64_t n = 0;
    int r = answer_number(c, 8, &n, err);
    if (r < 0)
        return r;
    if (n > LIST_MAX)
        return broken(c, err);
    struct muster_bytes *keys = mu_zalloc(mu_mem_default(), ((size_t)n + 1) * sizeof *keys);
    if (keys == NULL) {
        wire_drop(&c->s->wire);
        return sdk_error(err, -ENOMEM, "no memory for %" PRIu64 " keys", n);
    }
    c->count = (size_t)n;
    void *list = c->ret;
    c->ret = keys;
    r = answer_bytes(c, err);
    c->ret = list;
    if (r < 0) {
        mu_mem_free(mu_mem_default(), keys);
        return r;
    }
    *(struct muster_bytes **)list = keys;
    return 0;
}

/* Cut "/" and the prefix off. False: the key lies elsewhere. */
static bool cut_prefix(const muster_store *s, struct muster_bytes *key)
{
    size_t cut = 1 + s->prefix_bytes;
    if (key->n < cut || key->p[0] != '/' || memcmp(key->p + 1, s->prefix, s->prefix_bytes) != 0)
        return false;
    memmove(key->p, key->p + cut, key->n - cut + 1); /* With its NUL. */
    key->n -= cut;
    return true;
}

int muster_store_list_keys(muster_store *s,
                           struct muster_bytes **ret,
                           size_t *ret_n,
                           struct muster_error *err)
{
    struct muster_bytes *keys = NULL;
    if (s == NULL)
        return is_there(s, err);
    struct call c = call_begin(s, "list_keys", NULL, true);
    put_command(s, CMD_LIST_KEYS);
    c.answer = answer_list;
    c.ret = &keys;
    int r = run(&c, err);
    if (r < 0)
        return r;
    size_t kept = 0;
    for (size_t i = 0; i < c.count; i++) {
        if (cut_prefix(s, &keys[i]))
            keys[kept++] = keys[i];
        else
            muster_bytes_free(&keys[i]);
    }
    *ret = keys;
    *ret_n = kept;
    return 0;
}
