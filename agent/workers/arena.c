/* A chain of growing blocks; see arena.h. */
#include "agent/workers/arena.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"

#define BLOCK_BYTES_MIN 16384UL
#define ALIGN sizeof(void *)

struct arena_block {
    struct arena_block *next;
    size_t bytes;
    char data[];
};

static int grow(struct arena *a, size_t bytes)
{
    size_t size = a->first != NULL ? 2 * a->first->bytes
                                   : BLOCK_BYTES_MIN; /* So the newest is the largest. */
    if (size < bytes)
        size = bytes;
    struct arena_block *b = mu_alloc(mu_mem_default(), sizeof(*b) + size);
    if (b == NULL)
        return -1;
    b->next = a->first;
    b->bytes = size;
    a->first = b;
    a->used = 0;
    return 0;
}

void *arena_alloc(struct arena *a, size_t bytes)
{
    bytes = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    if ((a->first == NULL || a->first->bytes - a->used < bytes) && grow(a, bytes) < 0)
        return NULL;
    void *p = a->first->data + a->used;
    a->used += bytes;
    return p;
}

/* Printed straight into the block; a second time only when the first block was full. */
char *arena_printf(struct arena *a, const char *fmt, ...)
{
    size_t room = a->first != NULL ? a->first->bytes - a->used : 0;
    char *to = room > 0 ? a->first->data + a->used : NULL;
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(to, room, fmt, args);
    va_end(args);
    if (n < 0)
        return NULL;
    char *p = arena_alloc(a, (size_t)n + 1);
    if (p != NULL && p != to) {
        va_start(args, fmt);
        (void)vsnprintf(p, (size_t)n + 1, fmt, args);
        va_end(args);
    }
    return p;
}

static void free_chain(struct arena_block *b)
{
    while (b != NULL) {
        struct arena_block *next = b->next;
        free(b);
        b = next;
    }
}

void arena_reset(struct arena *a)
{
    if (a->first != NULL) {
        free_chain(a->first->next);
        a->first->next = NULL;
    }
    a->used = 0;
}

void arena_fini(struct arena *a)
{
    free_chain(a->first);
    *a = (struct arena){0};
}
