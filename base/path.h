/* Paths that are to mean the same from another folder. Shell. */
#ifndef MUSTER_BASE_PATH_H
#define MUSTER_BASE_PATH_H

#include <stddef.h>

#include "base/err.h"

/* The current folder. Returns 0, or a negative errno where it has no name or is too long; `remedy`
 * ends the sentence. */
int mu_path_here(char *ret, size_t cap, const char *remedy, struct mu_err *err);

/* `path` as an absolute one, seen from the current folder. Not realpath(): it need not be there
 * yet, and what a link leads to may be replaced. Returns 0; -ENAMETOOLONG where it does not fit
 * `cap` bytes, or a negative errno where this folder has no name, with a sentence to which the
 * caller adds whose path it is (mu_err_wrap()). */
int mu_path_absolute(const char *path, char *ret, size_t cap, struct mu_err *err);

#endif
