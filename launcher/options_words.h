/* Commands that take words of their own behind them: muster token, muster store. Pure. */
#ifndef MUSTER_LAUNCHER_OPTIONS_WORDS_H
#define MUSTER_LAUNCHER_OPTIONS_WORDS_H

#include <stdbool.h>

#include "launcher/options.h"

static inline bool cli_takes_words(enum cli_verb verb)
{
    return verb == CLI_TOKEN || verb == CLI_STORE;
}

/* The next word. Returns 0, or -EINVAL with a sentence. */
int cli_take_word(struct cli_options *o, const char *word, struct mu_err *err);
/* Once all are there. */
int cli_check_words(const struct cli_options *o, struct mu_err *err);
/* Lines for --help, behind the usage: what its words mean, and examples. */
void cli_help_words(struct mu_buf *b, enum cli_verb verb);

#endif
