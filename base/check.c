/* The one way out for a fact that must hold. */
#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>

void mu_assert_failed(const char *file, int line, const char *fact)
{
    fprintf(stderr, "muster: internal error at %s:%d: %s\n", file, line, fact);
    abort();
}
