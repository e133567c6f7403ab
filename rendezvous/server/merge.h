/* Lines of one node that wait for their turn among those of others. */
#ifndef MUSTER_RENDEZVOUS_SERVER_MERGE_H
#define MUSTER_RENDEZVOUS_SERVER_MERGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

struct merge_line {
    int64_t unix_ms;
    int64_t rank;
    int64_t channel;
    const char *text; /* Stays until the queue is changed. */
    size_t text_bytes;
};

struct merge_queue {
    struct mu_buf buf;
    size_t at; /* Where the first line begins. */
};

void merge_init(struct merge_queue *q, const struct mu_mem *mem);
void merge_fini(struct merge_queue *q);
size_t merge_bytes(const struct merge_queue *q);
/* Returns 0 or -ENOMEM with nothing changed. */
int merge_add(struct merge_queue *q, const struct merge_line *line);
/* The first line; false: there is none. */
bool merge_peek(const struct merge_queue *q, struct merge_line *ret);
/* Drop the first line. */
void merge_drop(struct merge_queue *q);

#endif
