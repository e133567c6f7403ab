/* The shells' completions, written from a program's option table. */
#ifndef MUSTER_TOOLS_COMPLETION_H
#define MUSTER_TOOLS_COMPLETION_H

#include <stdbool.h>
#include <stddef.h>

#include "base/option_text.h"
#include "base/str.h"

struct completed {
    const char *name;
    bool (*option)(size_t i, struct mu_option_text *ret); /* false: there are no more. */
    const char *commands; /* What the first word that is no option may be, divided by blanks; NULL:
                             it is none of these. */
    bool starts_program; /* The first word that is no option is a program, and what follows its own.
                          */
};

/* The whole file for one shell. */
typedef void completion_fn(struct mu_buf *out, const struct completed *c);
completion_fn completion_bash;
completion_fn completion_zsh;
completion_fn completion_fish;

#endif
