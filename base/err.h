/* Errors: 0 or a negative errno, with a sentence that lives on the caller's stack. Reporting needs
 * no memory. */
#ifndef MUSTER_BASE_ERR_H
#define MUSTER_BASE_ERR_H

#include <stdarg.h>
#include <stddef.h>

#include "base/check.h"

struct mu_err {
    int code; /* 0, or a negative errno; libuv's UV_E* are the same integers. */
    char msg[224];
};

/* Set code and sentence. Returns `code`. `e` may be NULL. A sentence too long is cut. */
int mu_err_set(struct mu_err *e, int code, const char *fmt, ...) MU_PRINTF(3, 4);

/* Put "context: " in front of the sentence. Returns e->code (-EIO when `e` is NULL). */
int mu_err_wrap(struct mu_err *e, const char *fmt, ...) MU_PRINTF(2, 3);

/* For structs like this one elsewhere: into dst, of at most MU_ERR_TEXT_MAX bytes, cut where it is
 * full; and in front of what is there. */
#define MU_ERR_TEXT_MAX 256
void mu_err_text(char *dst, size_t cap, const char *fmt, va_list ap) MU_PRINTF(3, 0);
void mu_err_text_wrap(char *dst, size_t cap, const char *fmt, va_list ap) MU_PRINTF(3, 0);

#endif
