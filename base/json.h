/* Writing JSON straight into a buffer: the status of 10,000 nodes must not stop the loop while a
 * tree of 400,000 small allocations is built and printed. Reading is cJSON's. Pure. */
#ifndef MUSTER_BASE_JSON_H
#define MUSTER_BASE_JSON_H

#include <stdbool.h>
#include <stdint.h>

#include "base/str.h"

/* A writer puts commas itself. Depth at most 16, asserted. Out of memory shows in buf->oom. */
struct mu_json {
    struct mu_buf *buf;
    uint16_t has_item; /* One bit a level: a comma is due. */
    uint8_t depth;
    bool after_key;
};

void mu_json_init(struct mu_json *w, struct mu_buf *buf);
void mu_json_open(struct mu_json *w, char bracket);  /* '{' or '[' */
void mu_json_close(struct mu_json *w, char bracket); /* '}' or ']' */
void mu_json_key(struct mu_json *w, const char *key);
/* A key that stands as it will in JSON: quotes, escapes, colon. */
void mu_json_ready_key(struct mu_json *w, struct mu_str key);
void mu_json_str(struct mu_json *w,
                 const char *s); /* NULL becomes null. Bytes that are no UTF-8 become U+FFFD. */
void mu_json_strn(struct mu_json *w, struct mu_str s);
void mu_json_i64(struct mu_json *w, int64_t v);
void mu_json_num(struct mu_json *w,
                 double v); /* Up to 9 significant digits; not finite becomes null. */
void mu_json_bool(struct mu_json *w, bool v);
void mu_json_null(struct mu_json *w);

/* A text as it stands in JSON, with its quotes and no comma: for pages that are put together by
 * hand. */
void mu_json_quoted(struct mu_buf *b, const char *s);

/* key and value in one */
void mu_json_kstr(struct mu_json *w, const char *key, const char *s);
void mu_json_ki64(struct mu_json *w, const char *key, int64_t v);
void mu_json_kbool(struct mu_json *w, const char *key, bool v);

/* Length of the UTF-8 sequence at p (1 to 4), or 0 when the bytes there are none. */
size_t mu_utf8_len(const char *p, size_t n);

#endif
