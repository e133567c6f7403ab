#include "launcher/words.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/shown.h"

struct unit {
    int64_t s;
    const char *name;
};

static const struct unit units[] = {{86400, "d"}, {3600, "h"}, {60, "min"}, {1, "s"}};

void cli_add_duration(struct mu_buf *b, int64_t ms)
{
    if (ms < 0)
        ms = 0;
    if (ms < 10000) {
        (void)mu_buf_addf(b, "%" PRId64 ".%" PRId64 " s", ms / 1000, ms % 1000 / 100);
        return;
    }
    int64_t s = ms / 1000;
    size_t i = 0;
    while (s < units[i].s)
        i++;
    (void)mu_buf_addf(b, "%" PRId64 " %s", s / units[i].s, units[i].name);
    int64_t rest = s % units[i].s;
    if (i + 1 < MU_COUNT(units) && rest / units[i + 1].s > 0)
        (void)mu_buf_addf(b, " %" PRId64 " %s", rest / units[i + 1].s, units[i + 1].name);
}

void cli_add_count(struct mu_buf *b, int64_t n, const char *noun)
{
    (void)mu_buf_addf(b, "%" PRId64 " %s%s", n, noun, n == 1 ? "" : "s");
}

/* Days from 1970-01-01 to a day of the Gregorian calendar. Source: the calendar's 400-year cycle of
 * 146,097 days, years counted from March so that the leap day comes last. */
static int64_t days_of(int64_t y, int64_t m, int64_t d)
{
    y -= m <= 2;
    int64_t in_cycle = y % 400;
    int64_t in_year = (153 * (m + (m > 2 ? -3 : 9)) + 2) / 5 + d - 1;
    return y / 400 * 146097 + in_cycle * 365 + in_cycle / 4 - in_cycle / 100 + in_year - 719468;
}

int cli_time_parse(const char *text, int64_t *ret_ms)
{
    static const char shape[] = "dddd-dd-ddTdd:dd:dd.dddZ";
    int64_t part[7] = {0};
    size_t k = 0;
    if (strlen(text) != sizeof shape - 1)
        return -EINVAL;
    for (size_t i = 0; shape[i] != '\0'; i++) {
        bool digit = text[i] >= '0' && text[i] <= '9';
        if (shape[i] == 'd' ? !digit : text[i] != shape[i])
            return -EINVAL;
        if (digit)
            part[k] = part[k] * 10 + (text[i] - '0');
        else
            k++;
    }
    if (part[0] < 1970 || part[1] < 1 || part[1] > 12 || part[2] < 1 || part[2] > 31)
        return -EINVAL;
    int64_t s =
        days_of(part[0], part[1], part[2]) * 86400 + part[3] * 3600 + part[4] * 60 + part[5];
    *ret_ms = s * 1000 + part[6];
    return 0;
}

void cli_add_plain(struct mu_buf *b, const char *text)
{
    size_t n = strlen(text);
    for (size_t i = 0; i < n;) {
        size_t len = mu_utf8_len(text + i, n - i);
        if (mu_shown_len(text + i, n - i) > 0)
            (void)mu_buf_add(b, text + i, len);
        else
            (void)mu_buf_adds(b, "?");
        i += len > 0 ? len : 1;
    }
}

int cli_moment_parse(const char *text, int64_t *ret_ms)
{
    static const char whole[] = "dddd-dd-ddT00:00:00.000Z";
    static const size_t lengths[] = {10, 16, 19, 23};
    char padded[sizeof whole];
    size_t n = strlen(text);
    if (n > 10 && text[n - 1] == 'Z')
        n--;
    for (size_t i = 0; i < MU_COUNT(lengths); i++) {
        if (n != lengths[i])
            continue;
        memcpy(padded, whole, sizeof whole);
        memcpy(padded, text, n);
        return cli_time_parse(padded, ret_ms);
    }
    return -EINVAL;
}

/* Bytes of the escape sequence at p: ESC [ ... letter, ESC ] ... BEL, or ESC and what follows. */
static size_t escape_len(const char *p)
{
    size_t n = 2;
    if (p[1] == '\0')
        return 1;
    if (p[1] == '[') {
        while (p[n] >= 0x20 && p[n] < 0x40)
            n++;
        return n + (p[n] != '\0');
    }
    if (p[1] == ']') {
        while (p[n] != '\0' && p[n] != '\a' && p[n] != '\033')
            n++;
        return n + (p[n] == '\a');
    }
    return n;
}

void cli_add_clean_line(struct mu_buf *b, const char *text)
{
    size_t n = strlen(text);
    while (n > 0 && text[n - 1] == '\r')
        n--;
    size_t i = n;
    while (i > 0 && text[i - 1] != '\r')
        i--;
    while (i < n) {
        size_t len = mu_shown_len(text + i, n - i);
        if (text[i] == '\033') {
            i += escape_len(text + i);
            continue;
        }
        if (len > 0 || text[i] == '\t')
            (void)mu_buf_add(b, text + i, len > 0 ? len : 1);
        i += len > 0 ? len : 1;
    }
}
