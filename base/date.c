/* Days by the rules of the calendar; see date.h. */
#include "base/date.h"

static char *add_digits(char *p, int64_t v, int count)
{
    for (int i = count - 1; i >= 0; i--) {
        p[i] = (char)('0' + v % 10);
        v /= 10;
    }
    return p + count;
}

/* Years are counted from March, so that the leap day is their last; 400 of them have 146,097 days.
 */
char *mu_date(int64_t unix_ms, char *ret)
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
