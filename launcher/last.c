#include "launcher/last.h"

#include <stdlib.h>
#include <string.h>

struct entry {
    int64_t unix_ms;
    uint64_t order;
    char *text;
    size_t n;
};

struct cli_last {
    const struct mu_mem *mem;
    struct entry *entries;
    size_t used;
    size_t cap;
    size_t at; /* The next one to be given. */
    uint64_t wanted;
    bool sorted;
};

struct cli_last *cli_last_new(const struct mu_mem *mem, uint64_t count)
{
    struct cli_last *l = mu_zalloc(mem, sizeof *l);
    if (l != NULL) {
        l->mem = mem;
        l->wanted = count;
    }
    return l;
}

void cli_last_free(struct cli_last *l)
{
    if (l == NULL)
        return;
    for (size_t i = 0; i < l->used; i++)
        mu_mem_free(l->mem, l->entries[i].text);
    mu_mem_free(l->mem, l->entries);
    mu_mem_free(l->mem, l);
}

bool cli_last_add(struct cli_last *l, int64_t unix_ms, struct mu_str raw)
{
    if (l->used == l->cap) {
        size_t cap = l->cap > 0 ? 2 * l->cap : 64;
        struct entry *grown = mu_realloc(l->mem, l->entries, cap * sizeof *grown);
        if (grown == NULL)
            return false;
        l->entries = grown;
        l->cap = cap;
    }
    char *text = mu_zalloc(l->mem, raw.n + 1);
    if (text == NULL)
        return false;
    if (raw.n > 0)
        memcpy(text, raw.p, raw.n);
    l->entries[l->used] =
        (struct entry){.unix_ms = unix_ms, .order = l->used, .text = text, .n = raw.n};
    l->used++;
    return true;
}

static int compare(const void *a, const void *b)
{
    const struct entry *x = a;
    const struct entry *y = b;
    if (x->unix_ms != y->unix_ms)
        return x->unix_ms < y->unix_ms ? -1 : 1;
    return x->order < y->order ? -1 : x->order > y->order;
}

bool cli_last_next(struct cli_last *l, struct mu_str *ret)
{
    if (!l->sorted && l->used > 1)
        qsort(l->entries, l->used, sizeof *l->entries, compare);
    if (!l->sorted)
        l->at = l->used > l->wanted ? l->used - (size_t)l->wanted : 0;
    l->sorted = true;
    if (l->at == l->used)
        return false;
    *ret = mu_str_of(l->entries[l->at].text, l->entries[l->at].n);
    l->at++;
    return true;
}
