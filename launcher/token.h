/* muster's token: which file has it, and muster token new, which makes one. Shell. */
#ifndef MUSTER_LAUNCHER_TOKEN_H
#define MUSTER_LAUNCHER_TOKEN_H

#include "base/token.h"
#include "launcher/options.h"

#define CLI_PATH_BYTES 4096

/* --token-file, else $MUSTER_TOKEN_FILE, else ~/.config/muster/token, else /etc/muster/token, where
 * these two may be missing and the last be another's. Returns 0, *ret empty where there is none; or
 * a negative errno with a sentence. `ret_file` (CLI_PATH_BYTES, or NULL) gets the file's name, or
 * "". */
int cli_token_find(const struct cli_options *o,
                   struct mu_token *ret,
                   char *ret_file,
                   struct mu_err *err);

/* The server at `where` wants its token, and did not get it: `file` is what was read, "" nothing.
 * Returns -EACCES with a sentence. */
int cli_token_wanted(const char *where, const char *file, struct mu_err *err);

/* muster token new [FILE]. Returns the exit status. */
int cli_token(const struct cli_options *o);

#endif
