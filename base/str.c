/* Strings and buffers; see str.h. Pure. */
#include "base/str.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

bool mu_str_eq(struct mu_str a, struct mu_str b)
{
    return a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, a.n) == 0);
}

void mu_buf_init(struct mu_buf *b, const struct mu_mem *mem)
{
    *b = (struct mu_buf){.mem = mem};
}

void mu_buf_fini(struct mu_buf *b)
{
    mu_mem_free(b->mem, b->p);
    *b = (struct mu_buf){.mem = b->mem};
}

void mu_buf_reset(struct mu_buf *b)
{
    b->n = 0;
    b->oom = false;
}

int mu_buf_reserve(struct mu_buf *b, size_t n)
{
    size_t need = 0;
    if (__builtin_add_overflow(b->n, n, &need)) {
        b->oom = true;
        return -ENOMEM;
    }
    if (need <= b->cap)
        return 0;
    size_t cap = b->cap < 64 ? 64 : b->cap;
    while (cap < need) {
        if (cap > SIZE_MAX / 2) {
            cap = need;
            break;
        }
        cap *= 2;
    }
    char *p = mu_realloc(b->mem, b->p, cap);
    if (p == NULL) {
        b->oom = true;
        return -ENOMEM;
    }
    b->p = p;
    b->cap = cap;
    return 0;
}

int mu_buf_add(struct mu_buf *b, const void *p, size_t n)
{
    if (n == 0)
        return 0;
    int r = mu_buf_reserve(b, n);
    if (r < 0)
        return r;
    memcpy(b->p + b->n, p, n);
    b->n += n;
    return 0;
}

int mu_buf_adds(struct mu_buf *b, const char *s)
{
    return mu_buf_add(b, s, strlen(s));
}

int mu_buf_addf(struct mu_buf *b, const char *fmt, ...)
{
    va_list ap;
    va_list again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    int r = n < 0 ? -EINVAL : mu_buf_reserve(b, (size_t)n + 1);
    if (r == 0) {
        (void)vsnprintf(b->p + b->n, (size_t)n + 1, fmt, again);
        b->n += (size_t)n;
    }
    va_end(again);
    return r;
}

void mu_buf_consume(struct mu_buf *b, size_t n)
{
    MU_ASSERT(n <= b->n);
    if (n == 0)
        return;
    memmove(b->p, b->p + n, b->n - n);
    b->n -= n;
}

const char *mu_buf_cstr(struct mu_buf *b)
{
    if (mu_buf_reserve(b, 1) < 0)
        return "";
    b->p[b->n] = '\0';
    return b->p;
}

char *mu_quote(char *dst, size_t cap, struct mu_str s)
{
    static const char hex[] = "0123456789abcdef";
    MU_ASSERT(cap >= 8);
    size_t o = 0;
    dst[o++] = '"';
    for (size_t i = 0; i < s.n; i++) {
        unsigned char c = (unsigned char)s.p[i];
        bool plain = c >= 0x20 && c < 0x7f && c != '"' && c != '\\';
        /* Room for this character, "..." , the closing quote and NUL. */
        if (o + (plain ? 1 : 4) + 5 > cap) {
            memcpy(dst + o, "...", 3);
            o += 3;
            break;
        }
        if (plain) {
            dst[o++] = (char)c;
        } else {
            dst[o++] = '\\';
            dst[o++] = 'x';
            dst[o++] = hex[c >> 4];
            dst[o++] = hex[c & 15];
        }
    }
    dst[o++] = '"';
    dst[o] = '\0';
    return dst;
}

int mu_strcopy(char *dst, size_t cap, const char *src)
{
    size_t n = strlen(src);
    if (n >= cap) {
        dst[0] = '\0';
        return -ENAMETOOLONG;
    }
    memcpy(dst, src, n + 1);
    return 0;
}

const char *mu_span(int64_t ns, char buf[MU_SPAN_BYTES])
{
    if (ns < 100000000)
        (void)snprintf(buf, MU_SPAN_BYTES, ns < 10000000 ? "%.1f ms" : "%.0f ms", (double)ns / 1e6);
    else
        (void)snprintf(buf, MU_SPAN_BYTES, "%.1f s", (double)ns / 1e9);
    return buf;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

int mu_natural_cmp(const char *a, const char *b)
{
    const char *a0 = a;
    const char *b0 = b;
    while (*a != '\0' && *b != '\0') {
        if (is_digit(*a) && is_digit(*b)) {
            while (*a == '0')
                a++;
            while (*b == '0')
                b++;
            size_t na = strspn(a, "0123456789");
            size_t nb = strspn(b, "0123456789");
            if (na != nb)
                return na < nb ? -1 : 1;
            int r = memcmp(a, b, na);
            if (r != 0)
                return r;
            a += na;
            b += nb;
        } else {
            if (*a != *b)
                return (unsigned char)*a < (unsigned char)*b ? -1 : 1;
            a++;
            b++;
        }
    }
    if (*a != *b)
        return *a == '\0' ? -1 : 1;
    return strcmp(a0, b0); /* "n01" and "n1" are equal by value: order them by text. */
}
