#include "base/words.h"

#include <stdbool.h>
#include <string.h>

#define WORD_BYTES 64 /* Longer ones are near to nothing. */

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Edits (insert, drop, replace, swap neighbours) between two short names. */
static size_t edits(const char *a, const char *b)
{
    size_t m = strlen(a);
    size_t n = strlen(b);
    size_t row[3][WORD_BYTES + 1];
    if (m > WORD_BYTES || n > WORD_BYTES)
        return WORD_BYTES;
    for (size_t j = 0; j <= n; j++)
        row[0][j] = j;
    for (size_t i = 1; i <= m; i++) {
        size_t *now = row[i % 3];
        const size_t *last = row[(i + 2) % 3];
        const size_t *before = row[(i + 1) % 3];
        now[0] = i;
        for (size_t j = 1; j <= n; j++) {
            now[j] = least(least(last[j], now[j - 1]) + 1, last[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                now[j] = least(now[j], before[j - 2] + 1);
        }
    }
    return row[m % 3][n];
}

const char *mu_nearest(const char *name, const char *const *names, size_t count)
{
    const char *best = NULL;
    if (strlen(name) > WORD_BYTES)
        return NULL;
    size_t best_edits = strlen(name) / 3 + 1; /* Beyond it the two are different words. */
    for (size_t i = 0; i < count; i++) {
        size_t e = edits(name, names[i]);
        if (e < best_edits || (e == best_edits && best == NULL)) {
            best = names[i];
            best_edits = e;
        }
    }
    return best;
}
