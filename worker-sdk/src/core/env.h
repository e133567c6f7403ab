/* Who am I: the launcher's variables become one struct. Pure: where variables come from is the
 * caller's. */
#ifndef MUSTER_SDK_ENV_H
#define MUSTER_SDK_ENV_H

#include <muster/muster.h>

/* As getenv(3): NULL when the variable is not set. The text stays valid for the call. */
typedef const char *sdk_getenv_fn(void *ctx, const char *name);

/* Source: docs/sdk.md "Who am I". Returns 0, or -EINVAL with a sentence. */
int sdk_env_parse(sdk_getenv_fn *get, void *ctx, struct muster_env *ret, struct muster_error *err);

#endif
