/* Where cores get memory. Tests make the n-th call fail; everyone else passes mu_mem_default(). */
#ifndef MUSTER_BASE_MEM_H
#define MUSTER_BASE_MEM_H

#include <stddef.h>

struct mu_mem {
    void *(*realloc)(void *ctx, void *p, size_t n); /* As realloc(3); n is never 0. */
    void (*free)(void *ctx, void *p);
    void *ctx;
};

/* The process's heap. Never NULL; static. */
const struct mu_mem *mu_mem_default(void);

/* NULL when there is no memory. mu_zalloc gives zeroed bytes. mu_mem_free takes NULL. */
void *mu_alloc(const struct mu_mem *m, size_t n);
void *mu_zalloc(const struct mu_mem *m, size_t n);
void *mu_realloc(const struct mu_mem *m, void *p, size_t n);
void mu_mem_free(const struct mu_mem *m, void *p);

/* A heap copy of a C string; NULL when there is no memory. */
char *mu_strdup(const struct mu_mem *m, const char *s);

/* A heap of its own that fails from the `fail_at`-th call on (1 is the first), for tests. SIZE_MAX:
 * never. */
struct mu_mem_failing {
    struct mu_mem mem;
    size_t calls;
    size_t fail_at;
    size_t live; /* Allocations not yet freed. */
};
void mu_mem_failing_init(struct mu_mem_failing *f, size_t fail_at);

#endif
