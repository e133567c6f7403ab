/* Lines, cut and prefixed; see lines.h. */
#include "agent/workers/lines.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"

void lines_init(struct lines *l, const struct mu_mem *mem, const char *prefix)
{
    *l = (struct lines){.prefix = prefix, .prefix_bytes = strlen(prefix)};
    mu_buf_init(&l->part, mem);
}

void lines_fini(struct lines *l)
{
    mu_buf_fini(&l->part);
}

/* --- one line --- */

static bool contains(struct mu_str line, struct mu_str word)
{
    const char *at = line.p;
    const char *end = line.p + line.n;
    if (word.n == 0)
        return true;
    while ((size_t)(end - at) >= word.n) {
        at = memchr(at, word.p[0], (size_t)(end - at) - word.n + 1);
        if (at == NULL)
            return false;
        if (memcmp(at, word.p, word.n) == 0)
            return true;
        at++;
    }
    return false;
}

static bool is_wanted(const struct lines *l, struct mu_str line)
{
    for (size_t i = 0; i < l->word_count; i++) {
        if (contains(line, l->words[i]))
            return true;
    }
    return false;
}

/* Prefix, the begun part, the rest of the line, \n. */
static void add_line(const struct lines *l, struct mu_str rest, struct mu_buf *to)
{
    size_t n = l->prefix_bytes + l->part.n + rest.n + 1;
    if (to == NULL)
        return;
    if (to->cap - to->n < n && mu_buf_reserve(to, n) < 0)
        return;
    char *at = to->p + to->n;
    memcpy(at, l->prefix, l->prefix_bytes);
    at += l->prefix_bytes;
    if (l->part.n > 0) {
        memcpy(at, l->part.p, l->part.n);
        at += l->part.n;
    }
    memcpy(at, rest.p, rest.n);
    at[rest.n] = '\n';
    to->n += n;
}

static void put_line(struct lines *l, struct mu_str rest, struct mu_buf *out, struct mu_buf *copy)
{
    add_line(l, rest, out);
    if (copy != NULL && l->word_count > 0) {
        struct mu_str whole = rest;
        if (l->part.n > 0 && mu_buf_add(&l->part, rest.p, rest.n) == 0) {
            whole = mu_str_of(l->part.p, l->part.n);
            rest = mu_str_of(rest.p, 0);
        }
        if (is_wanted(l, whole))
            add_line(l, rest, copy);
    }
    mu_buf_reset(&l->part);
}

/* --- a piece of the stream --- */

/* Without memory for what has begun, it leaves at once. */
static void keep_part(struct lines *l, struct mu_str rest, struct mu_buf *out, struct mu_buf *copy)
{
    if (rest.n == 0)
        return;
    if (l->part.n + rest.n > LINES_PART_BYTES_MAX || mu_buf_add(&l->part, rest.p, rest.n) < 0)
        put_line(l, rest, out, copy);
}

/* The lines of p[0, n), which holds no \n but the one it ends with, if it does. */
static void
take_to_feed(struct lines *l, const char *p, size_t n, struct mu_buf *out, struct mu_buf *copy)
{
    for (;;) {
        const char *cr = memchr(p, '\r', n);
        if (cr == NULL)
            break;
        size_t len = (size_t)(cr - p);
        put_line(l, mu_str_of(p, len), out, copy);
        p += len + 1;
        n -= len + 1;
        if (n == 1 && p[0] == '\n')
            return;
        if (n == 0) {
            l->after_cr = true;
            return;
        }
    }
    if (n > 0 && p[n - 1] == '\n')
        put_line(l, mu_str_of(p, n - 1), out, copy);
    else
        keep_part(l, mu_str_of(p, n), out, copy);
}

void lines_take(struct lines *l, const char *p, size_t n, struct mu_buf *out, struct mu_buf *copy)
{
    if (n > 0 && l->after_cr && p[0] == '\n') {
        p++;
        n--;
    }
    if (n > 0)
        l->after_cr = false;
    while (n > 0) {
        const char *feed = memchr(p, '\n', n);
        size_t len = feed == NULL ? n : (size_t)(feed - p) + 1;
        take_to_feed(l, p, len, out, copy);
        p += len;
        n -= len;
    }
}

void lines_end(struct lines *l, struct mu_buf *out, struct mu_buf *copy)
{
    if (l->part.n > 0)
        put_line(l, mu_str_of("", 0), out, copy);
    l->after_cr = false;
}

size_t lines_count(const char *p, size_t n)
{
    size_t count = 0;
    for (const char *at = n > 0 ? memchr(p, '\n', n) : NULL; at != NULL; count++) {
        size_t used = (size_t)(at - p) + 1;
        p += used;
        n -= used;
        at = n > 0 ? memchr(p, '\n', n) : NULL;
    }
    return count;
}

size_t lines_last(const char *p, size_t n, size_t max, bool cut)
{
    size_t at = n > 0 && p[n - 1] == '\n' ? n - 1 : n;
    size_t lines = 0;
    while (at > 0) {
        if (p[at - 1] == '\n' && ++lines == max)
            return at;
        at--;
    }
    const char *first = cut ? memchr(p, '\n', n) : NULL;
    return first != NULL && first + 1 < p + n ? (size_t)(first - p) + 1 : 0;
}

/* --- a stream's end, for people --- */

#define UNIT_BYTES 5 /* "\x1b" with its NUL; UTF-8 has at most 4. */

/* One character as it is shown. Returns how many bytes it takes of p. */
static size_t show_unit(const char *p, size_t n, char *ret, size_t *ret_bytes)
{
    unsigned char c = (unsigned char)p[0];
    size_t len = mu_utf8_len(p, n);
    bool c1 = len == 2 && c == 0xc2 && (unsigned char)p[1] < 0xa0; /* Controls of 8 bits. */
    if (c < 0x80 && c != '\n' && c != '\t' && (c < 0x20 || c == 0x7f)) {
        *ret_bytes = (size_t)snprintf(ret, UNIT_BYTES, "\\x%02x", c);
        return 1;
    }
    *ret_bytes = len == 0 || c1 ? 1 : len;
    memcpy(ret, len == 0 || c1 ? "?" : p, *ret_bytes);
    return len == 0 ? 1 : len;
}

/* Behind the last carriage return of the line at p that something follows on it: what a terminal
 * would show. */
static size_t skip_overwritten(const char *p, size_t n)
{
    const char *feed = memchr(p, '\n', n);
    size_t end = feed != NULL ? (size_t)(feed - p) : n;
    while (end > 0 && p[end - 1] == '\r')
        end--;
    while (end > 0 && p[end - 1] != '\r')
        end--;
    return end;
}

/* Walk over the text as it is shown; what lies beyond the first `skip` bytes goes to dst. Returns
 * its length, with the skipped ones. */
static size_t show(const char *p, size_t n, size_t skip, char *dst)
{
    char unit[UNIT_BYTES];
    size_t bytes = 0;
    size_t total = 0;
    size_t put = 0;
    bool line_starts = true;
    for (size_t i = 0; i < n; line_starts = p[i - 1] == '\n') {
        i += line_starts ? skip_overwritten(p + i, n - i) : 0;
        if (i < n && p[i] == '\r') {
            i++;
            continue;
        }
        i += show_unit(p + i, n - i, unit, &bytes);
        total += bytes;
        if (dst == NULL || total - bytes < skip)
            continue;
        memcpy(dst + put, unit, bytes);
        put += bytes;
    }
    if (dst != NULL)
        dst[put] = '\0';
    return total;
}

void lines_show(const char *p, size_t n, size_t max, bool cut, char *dst, size_t cap)
{
    size_t at = lines_last(p, n, max, cut);
    size_t bytes = show(p + at, n - at, 0, NULL);
    (void)show(p + at, n - at, bytes < cap ? 0 : bytes - (cap - 1), dst);
}

/* --- the template --- */

static bool is_name_start(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static size_t name_bytes(const char *p)
{
    size_t n = 0;
    if (!is_name_start(p[0]))
        return 0;
    while (is_name_start(p[n]) || (p[n] >= '0' && p[n] <= '9'))
        n++;
    return n;
}

static bool add_name(struct mu_buf *out, struct mu_str name, const struct lines_names *v)
{
    if (mu_str_eq(name, mu_str_of("role_name", 9)))
        (void)mu_buf_adds(out, v->role_name); /* Lost bytes show in oom. */
    else if (mu_str_eq(name, mu_str_of("rank", 4)))
        (void)mu_buf_addf(out, "%u", v->rank);
    else if (mu_str_eq(name, mu_str_of("local_rank", 10)))
        (void)mu_buf_addf(out, "%u", v->local_rank);
    else
        return false;
    return true;
}

/* The bytes of the $… at p that were replaced; 0: it stays. */
static size_t add_macro(struct mu_buf *out, const char *p, const struct lines_names *v)
{
    if (p[1] == '$') {
        (void)mu_buf_adds(out, "$");
        return 2;
    }
    size_t braces = p[1] == '{';
    size_t n = name_bytes(p + 1 + braces);
    if (n == 0 || (braces == 1 && p[2 + n] != '}'))
        return 0;
    return add_name(out, mu_str_of(p + 1 + braces, n), v) ? 1 + n + 2 * braces : 0;
}

void lines_fill_template(struct mu_buf *out, const char *text, const struct lines_names *names)
{
    while (*text != '\0') {
        size_t used = *text == '$' ? add_macro(out, text, names) : 0;
        if (used == 0)
            (void)mu_buf_add(out, text, 1);
        text += used == 0 ? 1 : used;
    }
}
