/* One sentence into the caller's struct. */
#include "trainer-example/failure.h"

#include <stdarg.h>
#include <stdio.h>

int failure(struct muster_error *err, int code, const char *format, ...)
{
    if (err != NULL) {
        va_list args;
        va_start(args, format);
        err->code = code;
        (void)vsnprintf(err->text, sizeof err->text, format, args); /* Cut where it is too long. */
        va_end(args);
    }
    return code;
}
