/* What a mistyped word was meant to be. Pure. */
#ifndef MUSTER_BASE_WORDS_H
#define MUSTER_BASE_WORDS_H

#include <stddef.h>

/* The closest of `count` names, or NULL when none is near enough to be meant: a third of the word's
 * letters may be wrong (inserted, dropped, replaced, or swapped with a neighbour). Borrowed from
 * `names`. */
const char *mu_nearest(const char *word, const char *const *names, size_t count);

#endif
