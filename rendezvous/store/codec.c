/* How requests are read: both dialects, in pieces of any size.
 *
 * A request has no length in front, so a scanner walks it by its layout, checks each length and
 * count as soon as it is there, and can stop and go on anywhere. A request that is whole in what
 * was read is executed from there, without a copy. Of one that is not, the bytes are kept and the
 * scanner goes on behind them: no byte is looked at twice. A long value gets memory of its own,
 * which the shell then reads into and which becomes the key's value as it is. */
#include "rendezvous/store/internal.h"

#include <string.h>

/* --- layouts --- */

enum field {
    F_END,
    F_KEY,   /* u64 length, bytes */
    F_VALUE, /* the same, with another limit */
    F_I64,
    F_U32,
    F_COUNT, /* u64; what follows comes that often */
};

struct layout {
    uint8_t fields[4];
};

static const struct layout layouts[STORE_COMMANDS] = {
    [STORE_SET] = {{F_KEY, F_VALUE}},
    [STORE_COMPARE_SET] = {{F_KEY, F_VALUE, F_VALUE}},
    [STORE_GET] = {{F_KEY}},
    [STORE_ADD] = {{F_KEY, F_I64}},
    [STORE_CHECK] = {{F_COUNT, F_KEY}},
    [STORE_WAIT] = {{F_COUNT, F_KEY}},
    [STORE_DELETE_KEY] = {{F_KEY}},
    [STORE_APPEND] = {{F_KEY, F_VALUE}},
    [STORE_MULTI_GET] = {{F_COUNT, F_KEY}},
    [STORE_MULTI_SET] = {{F_COUNT, F_KEY, F_VALUE}},
    [STORE_PING] = {{F_U32}},
    [STORE_QUEUE_PUSH] = {{F_KEY, F_VALUE}},
    [STORE_QUEUE_POP] = {{F_KEY}},
    [STORE_QUEUE_LEN] = {{F_KEY}},
    [STORE_BARRIER] = {{F_KEY, F_I64}},
    [STORE_WATCH_KEY] = {{F_KEY}},
};

/* Codes of the legacy dialect (PyTorch 1.x). */
static const uint8_t legacy_commands[] = {
    STORE_SET,  STORE_COMPARE_SET, STORE_GET,       STORE_ADD,        STORE_CHECK,
    STORE_WAIT, STORE_GETNUMKEYS,  STORE_WATCH_KEY, STORE_DELETE_KEY,
};

/* --- the dialect --- */

#define HELLO_BYTES 5 /* VALIDATE and its magic number. */

enum hello {
    HELLO_MORE,
    HELLO_MODERN,
    HELLO_LEGACY,
    HELLO_BAD
};

/* A legacy client begins with any command of its own. Its codes 1 to 8 decide at once. Code 0 is
 * SET with the length of a key behind it, of which the lower half stands where the modern dialect
 * has its magic number; that would be a key of 1 GiB. So a modern client that leaves out VALIDATE
 * and begins with SET is taken for a legacy one: no client does that, and nothing could tell them
 * apart. */
static enum hello hello(const struct store *s, const char *p, size_t n)
{
    static const char magic[HELLO_BYTES] = {0, '\xce', '\xf7', '\x85', '\x3c'};
    if (n == 0)
        return HELLO_MORE;
    if (p[0] != 0)
        return (unsigned char)p[0] < sizeof legacy_commands ? HELLO_LEGACY : HELLO_BAD;
    if (n < HELLO_BYTES)
        return HELLO_MORE;
    if (memcmp(p, magic, HELLO_BYTES) == 0)
        return HELLO_MODERN;
    return store_read_u32(p + 1) <= s->limits.key_bytes_max ? HELLO_LEGACY : HELLO_BAD;
}

/* False: the bytes decide nothing yet, or are neither's, and the client has its verdict. */
static bool hello_settle(struct store_client *c, enum hello h)
{
    switch (h) {
    case HELLO_MODERN:
        c->dialect = STORE_MODERN;
        c->store->stats.ops[STORE_VALIDATE]++;
        return true;
    case HELLO_LEGACY:
        c->dialect = STORE_LEGACY;
        return true;
    case HELLO_BAD:
        store_client_fail(c, STORE_BAD_MAGIC);
        return false;
    case HELLO_MORE:
        break;
    }
    return false;
}

/* --- the scanner --- */

struct scan {
    const uint8_t *field; /* At which field of the layout; NULL: not begun. */
    size_t off;           /* Bytes behind us. */
    size_t need;          /* Going on makes sense from so many on. */
    size_t want;          /* The request has at least so many. */
    uint64_t left;        /* Items not yet whole, this one included. */
    size_t field_bytes;   /* Of the key or value at hand. */
    bool has_length;      /* field_bytes was read. */
    uint8_t spans;
    struct parsed parsed;
};

enum scan_result {
    SCAN_MORE,
    SCAN_WHOLE,
    SCAN_BAD
};

/* Begin at a command byte. Other than OK: no such command. */
static enum store_verdict scan_begin(struct scan *sc, enum store_dialect dialect, unsigned code)
{
    if (dialect == STORE_LEGACY) {
        if (code >= sizeof legacy_commands)
            return STORE_BAD_COMMAND;
        code = legacy_commands[code];
    } else if (code >= STORE_COMMAND_COUNT) {
        return STORE_BAD_COMMAND;
    } else if (code == STORE_VALIDATE) {
        return STORE_SECOND_VALIDATE;
    }
    sc->field = layouts[code].fields;
    sc->off = 1;
    sc->left = 0;
    sc->has_length = false;
    sc->spans = 0;
    sc->parsed.command = (enum store_command)code;
    sc->parsed.items = 0;
    sc->parsed.body_count = 0;
    return STORE_OK;
}

static enum scan_result more(struct scan *sc, size_t n)
{
    sc->need = sc->off + n;
    sc->want = sc->need;
    if (sc->left > 1)
        sc->want += (size_t)(sc->left - 1) * 8; /* Each further item has a length at least. */
    return SCAN_MORE;
}

static void scan_span(struct scan *sc, size_t n)
{
    if (sc->spans < MU_COUNT(sc->parsed.field))
        sc->parsed.field[sc->spans++] = (struct span){sc->off, n};
    sc->has_length = false;
    sc->field++;
}

static enum scan_result scan_string(struct scan *sc,
                                    const struct store_limits *l,
                                    const char *p,
                                    size_t n,
                                    enum store_verdict *ret_bad)
{
    if (!sc->has_length) {
        if (n - sc->off < 8)
            return more(sc, 8);
        bool key = *sc->field == F_KEY;
        uint64_t bytes = store_read_u64(p + sc->off);
        if (bytes > (key ? l->key_bytes_max : l->value_bytes_max)) {
            *ret_bad = key ? STORE_KEY_TOO_LONG : STORE_VALUE_TOO_LONG;
            return SCAN_BAD;
        }
        sc->off += 8;
        sc->field_bytes = (size_t)bytes;
        sc->has_length = true;
    }
    if (n - sc->off < sc->field_bytes)
        return more(sc, sc->field_bytes);
    scan_span(sc, sc->field_bytes);
    sc->off += sc->field_bytes;
    return SCAN_WHOLE;
}

static enum scan_result scan_count(struct scan *sc,
                                   const struct store_limits *l,
                                   const char *p,
                                   size_t n,
                                   enum store_verdict *ret_bad)
{
    if (n - sc->off < 8)
        return more(sc, 8);
    uint64_t count = store_read_u64(p + sc->off);
    if (count > l->keys_per_request_max) {
        *ret_bad = STORE_TOO_MANY_KEYS;
        return SCAN_BAD;
    }
    sc->off += 8;
    sc->left = count;
    sc->parsed.items = count;
    sc->parsed.items_off = sc->off;
    sc->field++;
    return SCAN_WHOLE;
}

static enum scan_result scan_number(struct scan *sc, const char *p, size_t n)
{
    size_t width = *sc->field == F_I64 ? 8 : 4;
    if (n - sc->off < width)
        return more(sc, width);
    sc->parsed.number = width == 8 ? store_read_u64(p + sc->off) : store_read_u32(p + sc->off);
    sc->off += width;
    sc->field++;
    return SCAN_WHOLE;
}

/* One field: whole, or more bytes needed, or bad. */
static enum scan_result scan_field(struct scan *sc,
                                   const struct store_limits *l,
                                   const char *p,
                                   size_t n,
                                   enum store_verdict *ret_bad)
{
    switch ((enum field) * sc->field) {
    case F_KEY:
    case F_VALUE:
        return scan_string(sc, l, p, n, ret_bad);
    case F_COUNT:
        return scan_count(sc, l, p, n, ret_bad);
    case F_I64:
    case F_U32:
        return scan_number(sc, p, n);
    case F_END:
        break;
    }
    return SCAN_WHOLE;
}

/* Go on with the n bytes at p, where the request begins. */
static enum scan_result scan_on(struct scan *sc,
                                const struct store_limits *l,
                                const char *p,
                                size_t n,
                                enum store_verdict *ret_bad)
{
    for (;;) {
        while (*sc->field != F_END) {
            enum scan_result r = scan_field(sc, l, p, n, ret_bad);
            if (r != SCAN_WHOLE)
                return r;
            if (sc->parsed.items == 0 && sc->field[-1] == F_COUNT)
                return SCAN_WHOLE;
        }
        if (sc->left <= 1)
            return SCAN_WHOLE;
        sc->left--;
        sc->field = layouts[sc->parsed.command].fields + 1;
    }
}

/* --- a request that is not whole yet --- */

struct request {
    struct scan scan;
    struct mu_buf bytes; /* All but the bodies. */
    size_t charged;      /* For `bytes`. */
    struct blob *open;   /* The value being received; its cap is what it has, not what it costs. */
    size_t open_bytes;   /* Its announced size. */
    struct body *bodies;
    size_t body_count;
    size_t body_cap;
};

static struct request *request_begin(struct store_client *c)
{
    struct request *r = mu_alloc(c->store->mem, sizeof *r);
    if (r == NULL) {
        store_client_fail(c, STORE_NO_MEMORY);
        return NULL;
    }
    *r = (struct request){.scan = {.need = 1, .want = 1}};
    mu_buf_init(&r->bytes, c->store->mem);
    c->request = r;
    return r;
}

static void open_drop(struct store *s, struct blob *b)
{
    if (b == NULL)
        return;
    store_discharge(s, store_blob_cost(b->n)); /* It was charged as its bytes came. */
    mu_mem_free(s->mem, b);
}

void store_request_drop(struct store_client *c)
{
    struct store *s = c->store;
    struct request *r = c->request;
    if (r == NULL)
        return;
    c->request = NULL;
    open_drop(s, r->open);
    for (size_t i = 0; i < r->body_count; i++)
        store_blob_unref(s, r->bodies[i].blob);
    mu_mem_free(s->mem, r->bodies);
    mu_buf_fini(&r->bytes);
    store_discharge(s, r->charged);
    mu_mem_free(s->mem, r);
}

/* Memory for more bytes of the open value: what was asked for first, then twice as much. */
static bool open_grow(struct store *s, struct request *r)
{
    struct blob *b = r->open;
    if (b->n < b->cap)
        return true;
    size_t cap = b->cap < r->open_bytes / 2 ? b->cap * 2 : r->open_bytes;
    b = mu_realloc(s->mem, b, sizeof *b + cap);
    if (b == NULL)
        return false;
    b->cap = cap;
    r->open = b;
    return true;
}

/* Take what belongs to the open value. Returns how much that was. */
static size_t open_take(struct store_client *c, struct request *r, const char *p, size_t n)
{
    size_t done = 0;
    while (done < n && r->open->n < r->open_bytes) {
        if (!open_grow(c->store, r)) {
            store_client_fail(c, STORE_NO_MEMORY);
            break;
        }
        struct blob *b = r->open;
        size_t m = b->cap - b->n < n - done ? b->cap - b->n : n - done;
        if (!store_charge(c->store, m, CHARGE_DATA)) {
            store_client_fail(c, STORE_STORE_FULL);
            break;
        }
        if (p + done != b->bytes + b->n) /* Else it was read right there. */
            memcpy(b->bytes + b->n, p + done, m);
        b->n += m;
        done += m;
    }
    return done;
}

/* The open value is whole: it joins the bodies. */
static bool open_close(struct store_client *c, struct request *r)
{
    if (r->body_count == r->body_cap) {
        size_t cap = r->body_cap == 0 ? 2 : r->body_cap * 2;
        struct body *bodies = mu_realloc(c->store->mem, r->bodies, cap * sizeof *bodies);
        if (bodies == NULL) {
            store_client_fail(c, STORE_NO_MEMORY);
            return false;
        }
        r->bodies = bodies;
        r->body_cap = cap;
    }
    MU_ASSERT(r->open->cap == r->open->n);
    r->bodies[r->body_count++] = (struct body){r->scan.off, r->open};
    r->open = NULL;
    scan_span(&r->scan, r->open_bytes);
    return true;
}

/* The scanner stands at a long value which is not all there: give it memory of its own. */
static void open_begin(struct store_client *c, struct request *r)
{
    struct store *s = c->store;
    size_t bytes = r->scan.field_bytes;
    size_t cap = bytes < STORE_BODY_FIRST_BYTES ? bytes : STORE_BODY_FIRST_BYTES;
    if (!store_charge(s, store_blob_cost(0), CHARGE_DATA)) {
        store_client_fail(c, STORE_STORE_FULL);
        return;
    }
    struct blob *b = mu_alloc(s->mem, sizeof *b + cap);
    if (b == NULL) {
        store_discharge(s, store_blob_cost(0));
        store_client_fail(c, STORE_NO_MEMORY);
        return;
    }
    *b = (struct blob){.refs = 1, .cap = cap};
    r->open = b;
    r->open_bytes = bytes;
    size_t tail = r->bytes.n - r->scan.off; /* The first of its bytes, kept with the rest. */
    (void)open_take(c, r, r->bytes.p + r->scan.off, tail); /* Less than the value: takes all. */
    r->bytes.n = r->scan.off;
}

/* Keep bytes up to what the request has at least. Returns how many. */
static size_t bytes_take(struct store_client *c, struct request *r, const char *p, size_t n)
{
    size_t missing = r->scan.want - r->bytes.n;
    size_t m = n < missing ? n : missing;
    if (mu_buf_add(&r->bytes, p, m) < 0) {
        store_client_fail(c, STORE_NO_MEMORY);
        return 0;
    }
    size_t cost = r->bytes.cap > STORE_REQUEST_FREE_BYTES ? r->bytes.cap : 0;
    if (cost > r->charged) {
        if (!store_charge(c->store, cost - r->charged, CHARGE_UPKEEP)) {
            store_client_fail(c, STORE_STORE_FULL);
            return 0;
        }
        r->charged = cost;
    }
    return m;
}

static void run(struct store_client *c, struct scan *sc, const char *base)
{
    sc->parsed.base = base;
    enum store_verdict v = store_execute(c, &sc->parsed);
    if (v != STORE_OK)
        store_client_fail(c, v);
}

static void request_run(struct store_client *c, struct request *r)
{
    r->scan.parsed.bodies = r->bodies;
    r->scan.parsed.body_count = r->body_count;
    run(c, &r->scan, r->bytes.p);
    store_request_drop(c);
}

/* The first bytes of a connection came in pieces. True: the rest of the request may follow. */
static bool request_hello(struct store_client *c, struct request *r)
{
    enum hello h = hello(c->store, r->bytes.p, r->bytes.n);
    if (h == HELLO_MORE)
        r->scan.need = r->scan.want = HELLO_BYTES;
    if (!hello_settle(c, h))
        return false;
    if (h == HELLO_MODERN)
        store_request_drop(c);
    return h == HELLO_LEGACY;
}

/* What the scanner needs to go on is there. */
static void request_advance(struct store_client *c, struct request *r)
{
    enum store_verdict bad = STORE_OK;
    if (c->dialect == STORE_UNDECIDED && !request_hello(c, r))
        return;
    if (r->scan.field == NULL) {
        bad = scan_begin(&r->scan, (enum store_dialect)c->dialect, (unsigned char)r->bytes.p[0]);
        if (bad != STORE_OK) {
            store_client_fail(c, bad);
            return;
        }
    }
    switch (scan_on(&r->scan, &c->store->limits, r->bytes.p, r->bytes.n, &bad)) {
    case SCAN_WHOLE:
        request_run(c, r);
        break;
    case SCAN_BAD:
        store_client_fail(c, bad);
        break;
    case SCAN_MORE:
        if (r->scan.has_length && *r->scan.field == F_VALUE &&
            r->scan.field_bytes >= STORE_BODY_BYTES)
            open_begin(c, r);
        break;
    }
}

/* Take bytes for the request that is half read. Returns how many. */
static size_t request_take(struct store_client *c, struct request *r, const char *p, size_t n)
{
    size_t used = 0;
    if (r->open != NULL) {
        used = open_take(c, r, p, n);
        if (!store_client_alive(c) || r->open->n < r->open_bytes || !open_close(c, r))
            return used;
    } else {
        used = bytes_take(c, r, p, n);
        if (!store_client_alive(c) || r->bytes.n < r->scan.need)
            return used;
    }
    request_advance(c, r);
    return used;
}

/* Execute the requests that are whole in p. Returns how many bytes that were. */
static size_t whole_requests(struct store_client *c, const char *p, size_t n)
{
    size_t done = 0;
    if (c->dialect == STORE_UNDECIDED) {
        enum hello h = hello(c->store, p, n);
        if (!hello_settle(c, h))
            return 0;
        done = h == HELLO_MODERN ? HELLO_BYTES : 0;
    }
    while (done < n && store_client_alive(c)) {
        struct scan sc;
        enum store_verdict bad =
            scan_begin(&sc, (enum store_dialect)c->dialect, (unsigned char)p[done]);
        enum scan_result r = SCAN_BAD;
        if (bad == STORE_OK)
            r = scan_on(&sc, &c->store->limits, p + done, n - done, &bad);
        if (r == SCAN_MORE)
            break;
        if (r == SCAN_BAD) {
            store_client_fail(c, bad);
            break;
        }
        run(c, &sc, p + done);
        done += sc.off;
    }
    return done;
}

enum store_verdict store_client_feed(struct store_client *c, const void *p, size_t n)
{
    const char *at = p;
    while (n > 0 && store_client_alive(c)) {
        size_t used = 0;
        if (c->request == NULL) {
            used = whole_requests(c, at, n);
            if (used < n && store_client_alive(c))
                (void)request_begin(c); /* Failing is a verdict, which ends the loop. */
        } else {
            used = request_take(c, c->request, at, n);
        }
        at += used;
        n -= used;
    }
    if (!store_client_alive(c)) {
        store_wait_release(c);
        store_watches_release(c);
        store_request_drop(c);
    }
    return store_client_verdict(c);
}

void store_client_space(struct store_client *c, void **ret_p, size_t *ret_n)
{
    struct request *r = c->request;
    *ret_p = NULL;
    *ret_n = 0;
    /* A short rest is read through the scratch, together with what follows it. */
    if (r == NULL || r->open == NULL || r->open_bytes - r->open->n < STORE_BODY_BYTES)
        return;
    if (!open_grow(c->store, r))
        return; /* Feeding what comes will give the verdict. */
    *ret_p = r->open->bytes + r->open->n;
    *ret_n = r->open->cap - r->open->n;
}
