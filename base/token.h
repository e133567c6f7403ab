/* The token: the secret that who may start, stop and change things has in a file, 32 random bytes
 * as 64 hexadecimal digits and a newline. It is never an argument, a variable, or in a log. */
#ifndef MUSTER_BASE_TOKEN_H
#define MUSTER_BASE_TOKEN_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

#define MU_TOKEN_BYTES 32
#define MU_TOKEN_CREDENTIAL "muster-token" /* Its name among systemd's. */
#define MU_TOKEN_DIGITS 64

/* Behind the sentence of a file that is not there: two tokens in one cluster do not meet. */
#define MU_TOKEN_REMEDY ": copy the server's file (muster token new makes a cluster's first one)"

struct mu_token {
    char text[MU_TOKEN_DIGITS + 1]; /* Lower case; "": there is none. */
};

static inline bool mu_token_is_set(const struct mu_token *t)
{
    return t->text[0] != '\0';
}

/* Where its file is; each place is named here and nowhere else.
 *
 * For daemons: the file that was named (`named`, or NULL), else systemd's credential "muster-token"
 * in `credentials` (the value of CREDENTIALS_DIRECTORY, or NULL), where there is one. Returns 1; 0:
 * in neither; or a negative errno with a sentence. */
int mu_token_place_daemon(
    const char *named, const char *credentials, char *ret, size_t cap, struct mu_err *err);
/* For people who named none: their own, below `config` (the value of XDG_CONFIG_HOME, or NULL) or
 * `home` (of HOME); "" where there is neither. Then that of the machine. */
void mu_token_place_own(const char *config, const char *home, char *ret, size_t cap);
#define MU_TOKEN_MACHINE_FILE "/etc/muster/token"

/* Read a token's file, which nobody but its owner, us or root, may read; systemd's credentials,
 * which it shows to a service's user by an ACL, may have a group's right. `path` stands in the
 * sentence. Returns 0, -ENOENT, -EACCES, or another negative errno; *ret is written on success. */
int mu_token_read(const char *path, struct mu_token *ret, struct mu_err *err);

/* The one at mu_token_place_daemon(). None is no failure: *ret is empty. */
int mu_token_read_daemon(const char *named,
                         const char *credentials,
                         struct mu_token *ret,
                         struct mu_err *err);

/* Make a new one at `path`, where nothing may be yet. */
int mu_token_make(const char *path, struct mu_err *err);

/* Its bytes, for a proof. */
void mu_token_bytes(const struct mu_token *t, unsigned char ret[MU_TOKEN_BYTES]);

/* Takes as long whatever differs. False where there is no token. */
bool mu_token_is(const struct mu_token *t, const char *text, size_t n);

void mu_token_wipe(struct mu_token *t);

/* For all secrets: equal texts of n bytes, in the same time whatever differs. */
bool mu_secret_equal(const char *a, const char *b, size_t n);

/* Random bytes as digits; `ret` has 2 * n + 1 bytes. */
int mu_random_digits(size_t n, char *ret, struct mu_err *err);

#endif
