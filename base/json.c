/* A JSON writer; see json.h. Pure. */
#include "base/json.h"

#include <string.h>

void mu_json_init(struct mu_json *w, struct mu_buf *buf)
{
    *w = (struct mu_json){.buf = buf};
}

/* A value of at most `n` bytes follows: where it goes, behind the comma that is due, if any; NULL
 * without memory, which shows in oom. One look at the buffer serves both: a message has 20 fields,
 * a page tens of thousands. */
static char *begin_value(struct mu_json *w, size_t n)
{
    struct mu_buf *b = w->buf;
    uint16_t bit = (uint16_t)(1U << w->depth);
    bool comma = !w->after_key && (w->has_item & bit) != 0;
    if (!w->after_key)
        w->has_item |= bit;
    w->after_key = false;
    if (mu_buf_reserve(b, n + 1) < 0)
        return NULL;
    if (comma)
        b->p[b->n++] = ',';
    return b->p + b->n;
}

static void put_text(struct mu_json *w, const char *text, size_t n)
{
    char *p = begin_value(w, n);
    if (p == NULL)
        return;
    memcpy(p, text, n);
    w->buf->n += n;
}

void mu_json_open(struct mu_json *w, char bracket)
{
    put_text(w, &bracket, 1);
    MU_ASSERT(w->depth < 15);
    w->depth++;
    w->has_item &= (uint16_t) ~(1U << w->depth);
}

void mu_json_close(struct mu_json *w, char bracket)
{
    MU_ASSERT(w->depth > 0);
    w->depth--;
    (void)mu_buf_add(w->buf, &bracket, 1);
}

size_t mu_utf8_len(const char *p, size_t n)
{
    const unsigned char *u = (const unsigned char *)p;
    if (n == 0)
        return 0;
    if (u[0] < 0x80)
        return 1;
    size_t len = u[0] >= 0xc2 && u[0] <= 0xdf   ? 2
                 : (u[0] & 0xf0) == 0xe0        ? 3
                 : u[0] >= 0xf0 && u[0] <= 0xf4 ? 4
                                                : 0;
    if (len == 0 || len > n)
        return 0;
    for (size_t i = 1; i < len; i++)
        if ((u[i] & 0xc0) != 0x80)
            return 0;
    bool overlong = (u[0] == 0xe0 && u[1] < 0xa0) || (u[0] == 0xf0 && u[1] < 0x90);
    bool surrogate = u[0] == 0xed && u[1] > 0x9f;
    bool beyond = u[0] == 0xf4 && u[1] > 0x8f;
    return overlong || surrogate || beyond ? 0 : len;
}

static void escaped(struct mu_buf *b, unsigned char c)
{
    static const char named[] = "\"\\\b\f\n\r\t";
    static const char letter[] = "\"\\bfnrt";
    const char *at = c != '\0' ? strchr(named, (int)c) : NULL;
    if (at != NULL) {
        char two[2] = {'\\', letter[at - named]};
        (void)mu_buf_add(b, two, 2);
    } else {
        (void)mu_buf_addf(b, "\\u%04x", c);
    }
}

/* ASCII without controls, quote and backslash: stands for itself. */
static bool is_plain(char c)
{
    return (unsigned char)c >= 0x20 && (unsigned char)c < 0x80 && c != '"' && c != '\\';
}

static void quoted(struct mu_buf *b, struct mu_str s)
{
    size_t plain_bytes = 0;
    while (plain_bytes < s.n && is_plain(s.p[plain_bytes]))
        plain_bytes++;
    if (plain_bytes == s.n) { /* Nearly always: one copy. */
        if (mu_buf_reserve(b, s.n + 2) < 0)
            return;
        char *p = b->p + b->n;
        *p = '"';
        if (s.n > 0)
            memcpy(p + 1, s.p, s.n);
        p[s.n + 1] = '"';
        b->n += s.n + 2;
        return;
    }
    (void)mu_buf_add(b, "\"", 1);
    size_t run = 0; /* Bytes before i that go out as they are. */
    for (size_t i = 0; i < s.n;) {
        unsigned char c = (unsigned char)s.p[i];
        size_t len = mu_utf8_len(s.p + i, s.n - i);
        bool plain = len > 0 && c >= 0x20 && c != '"' && c != '\\';
        if (plain) {
            run += len;
            i += len;
            continue;
        }
        (void)mu_buf_add(b, s.p + i - run, run);
        run = 0;
        if (len == 0)
            (void)mu_buf_add(b, "\xef\xbf\xbd", 3);
        else
            escaped(b, c);
        i++;
    }
    (void)mu_buf_add(b, s.n > 0 ? s.p + s.n - run : "", run);
    (void)mu_buf_add(b, "\"", 1);
}

void mu_json_quoted(struct mu_buf *b, const char *s)
{
    quoted(b, mu_str_of(s, strlen(s)));
}

void mu_json_key(struct mu_json *w, const char *key)
{
    struct mu_str s = mu_str_of(key, strlen(key));
    if (begin_value(w, s.n + 3) != NULL)
        quoted(w->buf, s);
    (void)mu_buf_add(w->buf, ":", 1);
    w->after_key = true;
}

void mu_json_ready_key(struct mu_json *w, struct mu_str key)
{
    put_text(w, key.p, key.n);
    w->after_key = true;
}

void mu_json_strn(struct mu_json *w, struct mu_str s)
{
    if (begin_value(w, s.n + 2) != NULL)
        quoted(w->buf, s);
}

void mu_json_str(struct mu_json *w, const char *s)
{
    if (s == NULL)
        mu_json_null(w);
    else
        mu_json_strn(w, mu_str_of(s, strlen(s)));
}

void mu_json_i64(struct mu_json *w, int64_t v)
{
    char digits[24];
    char *end = digits + sizeof digits;
    char *p = end;
    uint64_t rest = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    do {
        *--p = (char)('0' + rest % 10);
        rest /= 10;
    } while (rest > 0);
    if (v < 0)
        *--p = '-';
    put_text(w, p, (size_t)(end - p));
}

void mu_json_num(struct mu_json *w, double v)
{
    if (v - v != 0.0) /* Infinity or no number. */
        mu_json_null(w);
    else if (begin_value(w, 0) != NULL)
        (void)mu_buf_addf(w->buf, "%.9g", v);
}

void mu_json_bool(struct mu_json *w, bool v)
{
    put_text(w, v ? "true" : "false", v ? 4 : 5);
}

void mu_json_null(struct mu_json *w)
{
    put_text(w, "null", 4);
}

void mu_json_kstr(struct mu_json *w, const char *key, const char *s)
{
    mu_json_key(w, key);
    mu_json_str(w, s);
}

void mu_json_ki64(struct mu_json *w, const char *key, int64_t v)
{
    mu_json_key(w, key);
    mu_json_i64(w, v);
}

void mu_json_kbool(struct mu_json *w, const char *key, bool v)
{
    mu_json_key(w, key);
    mu_json_bool(w, v);
}
