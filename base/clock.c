/* Clocks; see clock.h. */
#include "base/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <time.h>

#include "base/date.h"

int64_t mu_now_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t); /* Cannot fail for this clock. */
    return (int64_t)t.tv_sec * MU_NS_PER_S + t.tv_nsec;
}

int64_t mu_unix_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / MU_NS_PER_MS;
}

int64_t mu_unix_us(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / MU_NS_PER_US;
}

char *mu_iso8601(int64_t unix_ms, char *ret)
{
    if (unix_ms >= 0 && unix_ms < MU_DATE_END_MS)
        return mu_date(unix_ms, ret);
    int64_t ms =
        ((unix_ms % 1000) + 1000) % 1000; /* Before 1970, too: a host's clock may be anywhere. */
    time_t sec = (time_t)((unix_ms - ms) / 1000);
    struct tm tm;
    char date[24] = "1970-01-01T00:00:00";
    if (gmtime_r(&sec, &tm) != NULL)
        (void)strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &tm);
    (void)snprintf(ret, 32, "%s.%03dZ", date, (int)ms);
    return ret;
}
