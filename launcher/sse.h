/* Server-sent events, read as they come (HTML Living Standard, 9.2.6): lines in, the data of whole
 * events out. Pure. */
#ifndef MUSTER_LAUNCHER_SSE_H
#define MUSTER_LAUNCHER_SSE_H

#include <stddef.h>

#include "base/str.h"

struct cli_sse {
    struct mu_buf line; /* That is not whole yet. */
    struct mu_buf data; /* Of the event that is not whole yet. */
    size_t bytes_max;   /* Of an event's data. */
};

void cli_sse_init(struct cli_sse *s, const struct mu_mem *mem, size_t bytes_max);
void cli_sse_fini(struct cli_sse *s);

/* Take n bytes. The data of the last event that they complete is put into `newest`, whose content
 * is lost then. Returns how many events were whole; or -EMSGSIZE, -ENOMEM, and the reader is of no
 * use any more. */
int cli_sse_feed(struct cli_sse *s, const char *p, size_t n, struct mu_buf *newest);

#endif
