/* Clocks; see clock.h. */
#include "base/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <time.h>

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

static char *add_digits(char *p, int64_t v, int count)
{
    for (int i = count - 1; i >= 0; i--) {
        p[i] = (char)('0' + v % 10);
        v /= 10;
    }
    return p + count;
}

/* From 1970 to 9999, where a status of thousands of workers spends a fifth of its time otherwise.
 * Years are counted from March, so that the leap day is their last; 400 of them have 146,097 days.
 */
static char *plain_iso8601(int64_t unix_ms, char *ret)
{
    int64_t of_day = unix_ms / 1000 % 86400;
    int64_t days = unix_ms / 86400000 + 719468; /* Since 0000-03-01. */
    int64_t era = days / 146097;
    int64_t in_era = days % 146097;
    int64_t year = (in_era - in_era / 1460 + in_era / 36524 - in_era / 146096) / 365;
    int64_t in_year = in_era - (365 * year + year / 4 - year / 100);
    int64_t month = (5 * in_year + 2) / 153; /* 0: March. */
    char *p = add_digits(ret, era * 400 + year + (month >= 10), 4);
    *p++ = '-';
    p = add_digits(p, month < 10 ? month + 3 : month - 9, 2);
    *p++ = '-';
    p = add_digits(p, in_year - (153 * month + 2) / 5 + 1, 2);
    *p++ = 'T';
    p = add_digits(p, of_day / 3600, 2);
    *p++ = ':';
    p = add_digits(p, of_day / 60 % 60, 2);
    *p++ = ':';
    p = add_digits(p, of_day % 60, 2);
    *p++ = '.';
    p = add_digits(p, unix_ms % 1000, 3);
    *p++ = 'Z';
    *p = '\0';
    return ret;
}

char *mu_iso8601(int64_t unix_ms, char *ret)
{
    if (unix_ms >= 0 && unix_ms < INT64_C(253402300800000)) /* The year 10000. */
        return plain_iso8601(unix_ms, ret);
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
