/* Bytes from the wire (may hold NULs, never %s), a growing buffer, and text made safe to show. */
#ifndef MUSTER_BASE_STR_H
#define MUSTER_BASE_STR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/check.h"
#include "base/mem.h"

struct mu_str {
    const char *p;
    size_t n;
};

static inline struct mu_str mu_str_of(const char *p, size_t n)
{
    return (struct mu_str){p, n};
}

bool mu_str_eq(struct mu_str a, struct mu_str b);

/* A growing byte buffer. Zero-initialise with .mem set, or call mu_buf_init(). Growth doubles;
 * nothing shrinks before mu_buf_fini(). */
struct mu_buf {
    const struct mu_mem *mem;
    char *p;
    size_t n;   /* Bytes in use. */
    size_t cap; /* Bytes owned. */
    bool oom; /* A write found no memory: the content is not whole. Sticky until mu_buf_reset(). */
};

void mu_buf_init(struct mu_buf *b, const struct mu_mem *mem);
void mu_buf_fini(struct mu_buf *b);  /* Frees; the buffer may be used again. */
void mu_buf_reset(struct mu_buf *b); /* Empties, keeps the memory. */

/* Room for n more bytes. Returns 0, or -ENOMEM with nothing changed but `oom`. */
int mu_buf_reserve(struct mu_buf *b, size_t n);

/* Append. Return 0 or -ENOMEM (then nothing is appended and `oom` is set). */
int mu_buf_add(struct mu_buf *b, const void *p, size_t n);
int mu_buf_adds(struct mu_buf *b, const char *s);
int mu_buf_addf(struct mu_buf *b, const char *fmt, ...) MU_PRINTF(2, 3);

/* Drop n bytes from the front (n <= b->n). */
void mu_buf_consume(struct mu_buf *b, size_t n);

/* NUL-terminated view, not counted in n. "" when empty or out of memory. Valid until the next
 * write. */
const char *mu_buf_cstr(struct mu_buf *b);

/* Peer text for logs: printable ASCII kept, the rest as \xNN, in double quotes, cut with "..." at
 * cap. Returns dst. cap >= 8. */
char *mu_quote(char *dst, size_t cap, struct mu_str s);

/* Copy a C string into a fixed array. Returns 0, or -ENAMETOOLONG (dst is then ""). */
int mu_strcopy(char *dst, size_t cap, const char *src);

/* A span of time for people: "0.3 ms", "40 ms", "2.5 s". Returns buf. */
#define MU_SPAN_BYTES 32
const char *mu_span(int64_t ns, char buf[MU_SPAN_BYTES]);

/* Compare as people sort host names: digit runs by value ("n2" < "n10"). <0, 0, >0; 0 only for
 * equal strings. */
int mu_natural_cmp(const char *a, const char *b);

#endif
