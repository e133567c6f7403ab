/* A stream of bytes cut into lines, each with a prefix in front; and the lines that some words
 * occur in, once more. Pure: it knows no descriptor.
 *
 * A line ends with \n, \r or \r\n, and always leaves with \n. What is begun waits for its end, so
 * that a line written in pieces stays one line; lines_end() lets out unterminated last words. */
#ifndef MUSTER_AGENT_LINES_H
#define MUSTER_AGENT_LINES_H

#include <stdbool.h>
#include <stddef.h>

#include "base/str.h"

#define LINES_PART_BYTES_MAX                                                                       \
    (1024 * 1024) /* A longer line leaves in pieces: who never writes \n must not take all memory. \
                   */

struct lines {
    const char *prefix; /* Borrowed. */
    size_t prefix_bytes;
    const struct mu_str *words; /* Borrowed. A line that one of them occurs in is copied; an empty
                                   one is in every line. */
    size_t word_count;
    struct mu_buf part; /* A line that has begun. */
    bool after_cr;      /* A \n right at the start belongs to the \r before it. */
};

void lines_init(struct lines *l, const struct mu_mem *mem, const char *prefix);
void lines_fini(struct lines *l);

/* Append whole lines, prefixed, to `out`, and those that a word occurs in to `copy`; NULL: not
 * wanted. Memory that is missing shows in their `oom`. */
void lines_take(struct lines *l, const char *p, size_t n, struct mu_buf *out, struct mu_buf *copy);
void lines_end(struct lines *l, struct mu_buf *out, struct mu_buf *copy);

/* Line feeds in n bytes. */
size_t lines_count(const char *p, size_t n);

/* Where the last `max` lines of a text begin that holds nothing but the end of a stream: the first,
 * which may be cut, is left out when `cut` and others remain. */
size_t lines_last(const char *p, size_t n, size_t max, bool cut);

/* The last lines of a stream's end, fit to be shown and sent: at most `max` lines, as many of their
 * last bytes as fit into `cap` with the NUL; a carriage return ends a line, control bytes are
 * escaped (\x1b), what is no UTF-8 becomes '?'. "" when nothing was written. */
void lines_show(const char *p, size_t n, size_t max, bool cut, char *dst, size_t cap);

/* A prefix from a template: $name and ${name} for role_name, rank and local_rank; $$ is $; other
 * names stay as they are. */
struct lines_names {
    const char *role_name;
    unsigned rank;
    unsigned local_rank;
};
void lines_fill_template(struct mu_buf *out, const char *text, const struct lines_names *names);

#endif
