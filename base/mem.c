/* The process's heap behind a table of two functions, and a heap that fails on purpose. */
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

static void *heap_realloc(void *ctx, void *p, size_t n)
{
    (void)ctx;
    return realloc(p, n);
}

static void heap_free(void *ctx, void *p)
{
    (void)ctx;
    free(p);
}

const struct mu_mem *mu_mem_default(void)
{
    static const struct mu_mem heap = {heap_realloc, heap_free, NULL};
    return &heap;
}

void *mu_realloc(const struct mu_mem *m, void *p, size_t n)
{
    return m->realloc(m->ctx, p, n == 0 ? 1 : n);
}

void *mu_alloc(const struct mu_mem *m, size_t n)
{
    return mu_realloc(m, NULL, n);
}

void *mu_zalloc(const struct mu_mem *m, size_t n)
{
    void *p = mu_alloc(m, n);
    if (p != NULL)
        memset(p, 0, n);
    return p;
}

void mu_mem_free(const struct mu_mem *m, void *p)
{
    if (p != NULL)
        m->free(m->ctx, p);
}

char *mu_strdup(const struct mu_mem *m, const char *s)
{
    size_t n = strlen(s) + 1;
    char *p = mu_alloc(m, n);
    if (p != NULL)
        memcpy(p, s, n);
    return p;
}

static void *failing_realloc(void *ctx, void *p, size_t n)
{
    struct mu_mem_failing *f = ctx;
    if (++f->calls >= f->fail_at)
        return NULL;
    void *q = realloc(p, n);
    if (q != NULL && p == NULL)
        f->live++;
    return q;
}

static void failing_free(void *ctx, void *p)
{
    struct mu_mem_failing *f = ctx;
    f->live--;
    free(p);
}

void mu_mem_failing_init(struct mu_mem_failing *f, size_t fail_at)
{
    *f = (struct mu_mem_failing){
        .mem = {failing_realloc, failing_free, f}, .calls = 0, .fail_at = fail_at, .live = 0};
}
