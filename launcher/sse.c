#include "launcher/sse.h"

#include <errno.h>
#include <string.h>

void cli_sse_init(struct cli_sse *s, const struct mu_mem *mem, size_t bytes_max)
{
    mu_buf_init(&s->line, mem);
    mu_buf_init(&s->data, mem);
    s->bytes_max = bytes_max;
}

void cli_sse_fini(struct cli_sse *s)
{
    mu_buf_fini(&s->line);
    mu_buf_fini(&s->data);
}

/* "data: x", "data:x" and "data"; other fields, and comments, are not asked for. */
static int take_line(struct cli_sse *s, const char *p, size_t n)
{
    static const char name[] = "data";
    size_t len = sizeof name - 1;
    if (n < len || memcmp(p, name, len) != 0 || (n > len && p[len] != ':'))
        return 0;
    size_t from = n > len ? len + 1 : len;
    from += from < n && p[from] == ' ';
    if (s->data.n > 0 && mu_buf_adds(&s->data, "\n") < 0)
        return -ENOMEM;
    return mu_buf_add(&s->data, p + from, n - from);
}

/* Returns 1 where the line, which is empty, ends an event that has data. */
static int end_line(struct cli_sse *s, struct mu_buf *newest)
{
    size_t n = s->line.n > 0 && s->line.p[s->line.n - 1] == '\r' ? s->line.n - 1 : s->line.n;
    int r = 0;
    if (n > 0) {
        r = take_line(s, s->line.p, n);
    } else if (s->data.n > 0) {
        struct mu_buf whole = s->data;
        s->data = *newest;
        *newest = whole;
        mu_buf_reset(&s->data);
        r = 1;
    }
    mu_buf_reset(&s->line);
    return r;
}

int cli_sse_feed(struct cli_sse *s, const char *p, size_t n, struct mu_buf *newest)
{
    int count = 0;
    while (n > 0) {
        const char *end = memchr(p, '\n', n);
        size_t len = end != NULL ? (size_t)(end - p) : n;
        if (s->line.n + s->data.n + len > s->bytes_max)
            return -EMSGSIZE;
        if (mu_buf_add(&s->line, p, len) < 0)
            return -ENOMEM;
        if (end == NULL)
            return count;
        int r = end_line(s, newest);
        if (r < 0)
            return r;
        count += r;
        p += len + 1;
        n -= len + 1;
    }
    return count;
}
