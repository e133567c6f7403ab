/* muster's token: which file has it, and muster token new, which makes one. Shell. */
#ifndef MUSTER_LAUNCHER_TOKEN_H
#define MUSTER_LAUNCHER_TOKEN_H

#include "base/token.h"
#include "launcher/options.h"

/* --token-file, else $MUSTER_TOKEN_FILE, else ~/.config/muster/token, else /etc/muster/token, where
 * these two may be missing and the last be another's. Returns 0, *ret empty where there is none; or
 * a negative errno with a sentence. */
int cli_token_find(const struct cli_options *o, struct mu_token *ret, struct mu_err *err);

/* muster token new [FILE]. Returns the exit status. */
int cli_token(const struct cli_options *o);

#endif
