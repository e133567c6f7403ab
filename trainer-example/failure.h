/* How this program's functions say what went wrong: a negative errno, and a sentence in the SDK's
 * struct. */
#ifndef TRAINER_FAILURE_H
#define TRAINER_FAILURE_H

#include <muster/muster.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Returns `code`. err may be NULL. */
int failure(struct muster_error *err, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#ifdef __cplusplus
}
#endif
#endif
