/* See store_rig.h. */
#include "tests/unit/store_rig.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MAGIC "\x00\xce\xf7\x85\x3c"

struct rig *rig_new(const struct store_limits *limits, enum rig_feeding feeding, uint64_t seed)
{
    struct rig *r = calloc(1, sizeof *r);
    assert_non_null(r);
    mu_mem_failing_init(&r->heap, SIZE_MAX);
    r->feeding = feeding;
    r->random = seed * 2 + 1;
    r->store = store_new(&r->heap.mem, limits, seed);
    assert_non_null(r->store);
    return r;
}

void rig_free(struct rig *r)
{
    for (int i = 0; i < RIG_CLIENTS; i++)
        rig_close(r, i);
    store_wipe(r->store);
    struct store_stats st = rig_stats(r);
    assert_int_equal(st.keys, 0);
    assert_int_equal(st.queues, 0);
    assert_int_equal(st.clients, 0);
    store_free(r->store);
    assert_int_equal(r->heap.live, 0);
    free(r);
}

uint64_t rig_random(struct rig *r)
{
    r->random ^= r->random << 13;
    r->random ^= r->random >> 7;
    r->random ^= r->random << 17;
    return r->random;
}

void rig_connect(struct rig *r, int who)
{
    assert_null(r->client[who]);
    r->client[who] = store_client_new(r->store, &r->client[who]);
    assert_non_null(r->client[who]);
    r->was_ready[who] = false;
}

void rig_modern(struct rig *r, int who)
{
    rig_connect(r, who);
    assert_int_equal(rig_feed(r, who, MAGIC, sizeof MAGIC - 1), STORE_OK);
}

void rig_close(struct rig *r, int who)
{
    store_client_free(r->client[who]);
    r->client[who] = NULL;
}

static void put_number(struct mu_buf *b, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++) {
        char byte = (char)(v >> (8 * i));
        assert_int_equal(mu_buf_add(b, &byte, 1), 0);
    }
}

void rig_format(struct mu_buf *b, const char *format, va_list ap)
{
    for (; *format != '\0'; format++) {
        const char *p = NULL;
        size_t n = 0;
        switch (*format) {
        case 'c':
            put_number(b, (uint64_t)va_arg(ap, int), 1);
            break;
        case 'w':
            put_number(b, va_arg(ap, unsigned), 4);
            break;
        case 'q':
            put_number(b, (uint64_t)va_arg(ap, long long), 8);
            break;
        case 's':
            p = va_arg(ap, const char *);
            put_number(b, strlen(p), 8);
            assert_int_equal(mu_buf_adds(b, p), 0);
            break;
        case 'b':
        case 'r':
            p = va_arg(ap, const char *);
            n = va_arg(ap, size_t);
            if (*format == 'b')
                put_number(b, n, 8);
            assert_int_equal(mu_buf_add(b, p, n), 0);
            break;
        default:
            fail_msg("no field '%c'", *format);
        }
    }
}

void rig_put(struct mu_buf *b, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    rig_format(b, format, ap);
    va_end(ap);
}

/* How much the next read brings. */
static size_t piece(struct rig *r, size_t left)
{
    size_t n = left;
    if (r->feeding == RIG_BYTES)
        n = 1;
    else if (r->feeding == RIG_RANDOM)
        n = (size_t)(rig_random(r) % ((rig_random(r) & 3) == 0 ? 40000 : 24)) + 1;
    return n < left ? n : left;
}

enum store_verdict rig_feed(struct rig *r, int who, const void *p, size_t n)
{
    struct store_client *c = r->client[who];
    const char *at = p;
    enum store_verdict v = store_client_verdict(c);
    while (n > 0) {
        void *space = NULL;
        size_t room = 0;
        size_t m = piece(r, n);
        store_client_space(c, &space, &room);
        if (space != NULL) {
            m = m < room ? m : room;
            memcpy(space, at, m);
            v = store_client_feed(c, space, m);
        } else { /* On the heap and no larger than it is, so that a read too far is seen. */
            char *scratch = malloc(m);
            assert_non_null(scratch);
            memcpy(scratch, at, m);
            v = store_client_feed(c, scratch, m);
            free(scratch);
        }
        at += m;
        n -= m;
    }
    return v;
}

enum store_verdict rig_send(struct rig *r, int who, const char *format, ...)
{
    struct mu_buf b = {.mem = mu_mem_default()};
    va_list ap;
    va_start(ap, format);
    rig_format(&b, format, ap);
    va_end(ap);
    enum store_verdict v = rig_feed(r, who, b.p, b.n);
    mu_buf_fini(&b);
    return v;
}

static void pump(struct rig *r)
{
    struct store_client *c = NULL;
    while ((c = store_take_ready(r->store)) != NULL) {
        struct store_client **slot = store_client_owner(c);
        assert_ptr_equal(*slot, c);
        assert_true(store_client_pending(c) > 0 || store_client_verdict(c) != STORE_OK);
        r->was_ready[slot - r->client] = true;
    }
}

void rig_take_output(struct rig *r, int who, struct mu_buf *b)
{
    struct store_client *c = r->client[who];
    pump(r);
    while (store_client_pending(c) > 0) {
        struct store_piece pieces[3];
        size_t count = store_client_output(c, pieces, 1 + (size_t)(rig_random(r) % 3));
        size_t n = 0;
        assert_true(count > 0);
        for (size_t i = 0; i < count; i++) {
            assert_true(pieces[i].n > 0);
            assert_int_equal(mu_buf_add(b, pieces[i].p, pieces[i].n), 0);
            n += pieces[i].n;
        }
        /* Now and then the socket takes only a part. */
        size_t cut = r->feeding == RIG_WHOLE ? 0 : (size_t)(rig_random(r) % n);
        b->n -= cut;
        store_client_sent(c, n - cut);
    }
    struct store_piece none;
    assert_int_equal(store_client_output(c, &none, 1), 0);
}

static void check(bool ok, const char *file, int line, const char *what, const struct mu_buf *got)
{
    if (ok)
        return;
    print_error("%s; got %zu bytes:", what, got->n);
    for (size_t i = 0; i < got->n && i < 64; i++)
        print_error(" %02x", (unsigned char)got->p[i]);
    print_error("\n");
    _fail(file, line);
}

void rig_expect_at(const char *file, int line, struct rig *r, int who, const char *format, ...)
{
    struct mu_buf want = {.mem = mu_mem_default()};
    struct mu_buf got = {.mem = mu_mem_default()};
    va_list ap;
    va_start(ap, format);
    rig_format(&want, format, ap);
    va_end(ap);
    rig_take_output(r, who, &got);
    check(r->was_ready[who], file, line, "not given out as ready", &got);
    r->was_ready[who] = false;
    check(mu_str_eq(mu_str_of(got.p, got.n), mu_str_of(want.p, want.n)), file, line,
          "another answer was expected", &got);
    mu_buf_fini(&want);
    mu_buf_fini(&got);
}

void rig_silent_at(const char *file, int line, struct rig *r, int who)
{
    struct mu_buf got = {.mem = mu_mem_default()};
    rig_take_output(r, who, &got);
    check(got.n == 0, file, line, "silence was expected", &got);
    check(store_client_verdict(r->client[who]) == STORE_OK, file, line, "it was to go on", &got);
    check(!r->was_ready[who], file, line, "ready for nothing", &got);
    mu_buf_fini(&got);
}

void rig_ended_at(const char *file, int line, struct rig *r, int who, enum store_verdict v)
{
    struct mu_buf got = {.mem = mu_mem_default()};
    enum store_verdict is = store_client_verdict(r->client[who]);
    pump(r);
    if (is != v)
        print_error("verdict is: %s\n", store_verdict_text(is));
    check(is == v, file, line, "another verdict was expected", &got);
    check(r->was_ready[who], file, line, "not given out as ready", &got);
    r->was_ready[who] = false;
    /* Whatever comes now changes nothing. */
    check(store_client_feed(r->client[who], "\r\r\r\r\r", 5) == v, file, line, "feed", &got);
    mu_buf_fini(&got);
}

struct store_stats rig_stats(const struct rig *r)
{
    struct store_stats st;
    store_get_stats(r->store, &st);
    return st;
}
