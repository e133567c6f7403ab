/* The sentence beside an error code: set where it happens, wrapped on the way up. */
#include "base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int mu_err_set(struct mu_err *e, int code, const char *fmt, ...)
{
    if (e == NULL)
        return code;
    va_list ap;
    va_start(ap, fmt);
    e->code = code;
    (void)vsnprintf(e->msg, sizeof e->msg, fmt, ap); /* A cut sentence is still a sentence. */
    va_end(ap);
    return code;
}

int mu_err_wrap(struct mu_err *e, const char *fmt, ...)
{
    if (e == NULL)
        return -EIO;
    char old[sizeof e->msg];
    memcpy(old, e->msg, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(e->msg, sizeof e->msg, fmt, ap); /* A cut sentence is still a sentence. */
    va_end(ap);
    static const char *const rest[] = {": ", NULL};
    size_t n = strlen(e->msg);
    for (size_t part = 0; part < 2; part++) {
        const char *from = rest[part] != NULL ? rest[part] : old;
        size_t room = sizeof e->msg - 1 - n;
        size_t add = strlen(from);
        add = add < room ? add : room;
        memcpy(e->msg + n, from, add);
        n += add;
    }
    e->msg[n] = '\0';
    return e->code;
}
