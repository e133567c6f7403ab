/* Errors and deadlines of the library; see sdk.h. */
#include "worker-sdk/src/core/sdk.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>

#include "base/shown.h"

int sdk_error(struct muster_error *e, int code, const char *fmt, ...)
{
    if (e == NULL)
        return code;
    va_list ap;
    va_start(ap, fmt);
    e->code = code;
    mu_err_text(e->text, sizeof e->text, fmt, ap);
    va_end(ap);
    mu_clean(e->text); /* Some of it may be another process's. */
    return code;
}

int sdk_error_wrap(struct muster_error *e, int code, const char *fmt, ...)
{
    if (e == NULL)
        return code;
    va_list ap;
    va_start(ap, fmt);
    mu_err_text_wrap(e->text, sizeof e->text, fmt, ap);
    va_end(ap);
    mu_clean(e->text);
    e->code = code;
    return code;
}

int sdk_error_take(struct muster_error *e, const struct mu_err *from)
{
    return sdk_error(e, from->code, "%s", from->msg);
}

int64_t sdk_now_ns(void)
{
    return mu_now_ns();
}

int64_t sdk_deadline_ns(int64_t timeout_ns)
{
    int64_t at = 0;
    if (timeout_ns < 0 || __builtin_add_overflow(sdk_now_ns(), timeout_ns, &at))
        return MU_NEVER;
    return at;
}

int64_t sdk_after_ns(int64_t deadline_ns, int64_t more_ns)
{
    int64_t at = 0;
    return __builtin_add_overflow(deadline_ns, more_ns, &at) ? MU_NEVER : at;
}

int sdk_poll_ms(int64_t deadline_ns)
{
    if (deadline_ns == MU_NEVER)
        return -1;
    int64_t left = deadline_ns - sdk_now_ns();
    if (left <= 0)
        return 0;
    int64_t ms = left / MU_NS_PER_MS + (left % MU_NS_PER_MS != 0);
    return ms > INT_MAX ? INT_MAX : (int)ms;
}
