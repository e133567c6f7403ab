/* The sentence beside an error code: set where it happens, wrapped on the way up. */
#include "base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void mu_err_text(char *dst, size_t cap, const char *fmt, va_list ap)
{
    (void)vsnprintf(dst, cap, fmt, ap); /* A cut sentence is still a sentence. */
}

void mu_err_text_wrap(char *dst, size_t cap, const char *fmt, va_list ap)
{
    char old[MU_ERR_TEXT_MAX];
    MU_ASSERT(cap <= sizeof old);
    memcpy(old, dst, cap);
    mu_err_text(dst, cap, fmt, ap);
    static const char *const rest[] = {": ", NULL};
    size_t n = strlen(dst);
    for (size_t part = 0; part < 2; part++) {
        const char *from = rest[part] != NULL ? rest[part] : old;
        size_t room = cap - 1 - n;
        size_t add = strlen(from);
        add = add < room ? add : room;
        memcpy(dst + n, from, add);
        n += add;
    }
    dst[n] = '\0';
}

int mu_err_set(struct mu_err *e, int code, const char *fmt, ...)
{
    if (e == NULL)
        return code;
    va_list ap;
    va_start(ap, fmt);
    e->code = code;
    mu_err_text(e->msg, sizeof e->msg, fmt, ap);
    va_end(ap);
    return code;
}

int mu_err_wrap(struct mu_err *e, const char *fmt, ...)
{
    if (e == NULL)
        return -EIO;
    va_list ap;
    va_start(ap, fmt);
    mu_err_text_wrap(e->msg, sizeof e->msg, fmt, ap);
    va_end(ap);
    return e->code;
}
