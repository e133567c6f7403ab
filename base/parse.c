/* Text to numbers; see parse.h. Pure. */
#include "base/parse.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/str.h"

#define NS_PER_S INT64_C(1000000000)

static bool is_blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* The text without blanks around it. */
static struct mu_str trimmed(const char *text)
{
    const char *a = text;
    while (is_blank(*a))
        a++;
    size_t n = strlen(a);
    while (n > 0 && is_blank(a[n - 1]))
        n--;
    return mu_str_of(a, n);
}

/* Digits only, into a signed 64-bit sum. False when it is no number; *over when it does not fit. */
static bool digits(struct mu_str s, int64_t *ret, bool *over)
{
    int64_t v = 0;
    *over = false;
    if (s.n == 0)
        return false;
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] < '0' || s.p[i] > '9')
            return false;
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, s.p[i] - '0', &v))
            *over = true;
    }
    *ret = v;
    return true;
}

int mu_parse_i64(
    const char *text, int64_t min, int64_t max, const char *what, int64_t *ret, struct mu_err *err)
{
    char shown[64];
    struct mu_str all = trimmed(text);
    struct mu_str s = all;
    bool negative = false;
    if (s.n > 0 && (s.p[0] == '+' || s.p[0] == '-')) {
        negative = s.p[0] == '-';
        s = mu_str_of(s.p + 1, s.n - 1);
    }
    int64_t v = 0;
    bool over = false;
    if (!digits(s, &v, &over))
        return mu_err_set(err, -EINVAL, "%s: %s is not a whole number (%" PRId64 " to %" PRId64 ")",
                          what, mu_quote(shown, sizeof shown, mu_str_of(text, strlen(text))), min,
                          max);
    if (negative)
        v = -v;
    if (over || v < min || v > max)
        return mu_err_set(err, -ERANGE,
                          "%s: %.*s is out of range: %" PRId64 " to %" PRId64 " is allowed", what,
                          (int)(all.n > 40 ? 40 : all.n), all.p, min, max);
    *ret = v;
    return 0;
}

int mu_parse_u32(const char *text,
                 uint32_t min,
                 uint32_t max,
                 const char *what,
                 uint32_t *ret,
                 struct mu_err *err)
{
    int64_t v = 0;
    int r = mu_parse_i64(text, min, max, what, &v, err);
    if (r == 0)
        *ret = (uint32_t)v;
    return r;
}

int mu_parse_seconds(const char *text,
                     int64_t min_ns,
                     int64_t max_ns,
                     const char *what,
                     int64_t *ret_ns,
                     struct mu_err *err)
{
    char shown[64];
    struct mu_str s = trimmed(text);
    const char *dot = s.n > 0 ? memchr(s.p, '.', s.n) : NULL;
    struct mu_str whole = mu_str_of(s.p, dot != NULL ? (size_t)(dot - s.p) : s.n);
    struct mu_str part = dot != NULL ? mu_str_of(dot + 1, s.n - whole.n - 1) : mu_str_of("0", 1);
    int64_t sec = 0;
    int64_t frac = 0;
    bool over = false;
    bool over_frac = false;
    /* ".5" and "5." are numbers to those who write Python; "." is not. */
    bool ok = whole.n + (dot != NULL ? part.n : 0) > 0 && part.n <= 9 &&
              (whole.n == 0 || digits(whole, &sec, &over)) &&
              (part.n == 0 || digits(part, &frac, &over_frac));
    if (!ok)
        return mu_err_set(err, -EINVAL, "%s: %s is not a number of seconds (as in 30 or 0.25)",
                          what, mu_quote(shown, sizeof shown, mu_str_of(text, strlen(text))));
    for (size_t i = part.n; i < 9; i++)
        frac *= 10;
    int64_t ns = 0;
    over =
        over || __builtin_mul_overflow(sec, NS_PER_S, &ns) || __builtin_add_overflow(ns, frac, &ns);
    if (over || ns < min_ns || ns > max_ns)
        return mu_err_set(err, -ERANGE, "%s: %.*s s is out of range: %g to %g s is allowed", what,
                          (int)(s.n > 40 ? 40 : s.n), s.p, (double)min_ns / (double)NS_PER_S,
                          (double)max_ns / (double)NS_PER_S);
    *ret_ns = ns;
    return 0;
}

/* From the longest to the shortest. */
static const struct {
    char unit;
    const char *apart;
    int64_t ms;
} spans[] = {{'d', "d", 86400000}, {'h', "h", 3600000}, {'m', "min", 60000}, {'s', "s", 1000}};

int mu_parse_span(const char *text,
                  int64_t min_ns,
                  int64_t max_ns,
                  const char *what,
                  int64_t *ret_ns,
                  struct mu_err *err)
{
    char shown[64];
    char number[32] = "";
    struct mu_str s = trimmed(text);
    int64_t factor = 0;
    for (size_t i = 0; i < MU_COUNT(spans) && s.n > 1; i++)
        if (s.p[s.n - 1] == spans[i].unit)
            factor = spans[i].ms / 1000;
    if (s.n > 1 && s.n <= sizeof number)
        memcpy(number, s.p, s.n - 1);
    int64_t ns = 0;
    int r = mu_parse_seconds(number, 0, INT64_MAX, what, &ns, NULL);
    (void)mu_quote(shown, sizeof shown, mu_str_of(text, strlen(text)));
    if (factor == 0 || (r < 0 && r != -ERANGE))
        return mu_err_set(err, -EINVAL,
                          "%s: %s is not a time with its unit (as in 90s, 15m, 1h, 2d)", what,
                          shown);
    if (r < 0 || __builtin_mul_overflow(ns, factor, &ns) || ns < min_ns || ns > max_ns)
        return mu_err_set(err, -ERANGE, "%s: %s is out of range: %g s to %g d is allowed", what,
                          shown, (double)min_ns / (double)NS_PER_S,
                          (double)max_ns / (double)NS_PER_S / 86400.0);
    *ret_ns = ns;
    return 0;
}

const char *mu_span_text(int64_t ms, bool apart, char *buf)
{
    size_t i = 0;
    while (i + 1 < MU_COUNT(spans) && (ms % spans[i].ms != 0 || ms < spans[i].ms))
        i++;
    (void)snprintf(buf, MU_SPAN_BYTES, "%.10g%s", (double)ms / (double)spans[i].ms,
                   apart ? " " : "");
    size_t n = strlen(buf);
    (void)snprintf(buf + n, MU_SPAN_BYTES - n, "%.*s", apart ? 3 : 1, spans[i].apart);
    return buf;
}

int mu_parse_bytes(const char *text,
                   uint64_t min,
                   uint64_t max,
                   const char *what,
                   uint64_t *ret,
                   struct mu_err *err)
{
    char shown[64];
    struct mu_str s = trimmed(text);
    static const char units[] = "KMGT";
    unsigned shift = 0;
    if (s.n > 0) {
        char last = s.p[s.n - 1];
        char upper = last >= 'a' && last <= 'z' ? (char)(last - 'a' + 'A') : last;
        const char *u = upper != '\0' ? strchr(units, upper) : NULL;
        if (u != NULL) {
            shift = 10 * ((unsigned)(u - units) + 1);
            s.n--;
        }
    }
    int64_t v = 0;
    bool over = false;
    if (!digits(s, &v, &over))
        return mu_err_set(err, -EINVAL, "%s: %s is not a size (as in 4096, 64K, 8M, 1G)", what,
                          mu_quote(shown, sizeof shown, mu_str_of(text, strlen(text))));
    uint64_t bytes = (uint64_t)v << shift;
    if (over || bytes >> shift != (uint64_t)v || bytes < min || bytes > max)
        return mu_err_set(
            err, -ERANGE, "%s: %s bytes is out of range: %" PRIu64 " to %" PRIu64 " is allowed",
            what, mu_quote(shown, sizeof shown, mu_str_of(text, strlen(text))), min, max);
    *ret = bytes;
    return 0;
}

static bool host_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == ':' || c == '-' || c == '%';
}

/* Of a text with several colons: is it all address? "::1" and "fe80::1%eth0" are; "::1:29991" is
 * not: five digits behind the last colon can only be a port. */
static bool is_bare_v6(struct mu_str s, const char *last)
{
    static const char alphabet[] = "0123456789abcdefABCDEF:.";
    size_t tail = (size_t)(s.p + s.n - last) - 1;
    for (size_t i = 0; i < s.n && s.p[i] != '%'; i++)
        if (memchr(alphabet, s.p[i], sizeof alphabet - 1) == NULL)
            return false;
    for (size_t i = 1; i <= tail; i++)
        if (last[i] < '0' || last[i] > '9')
            return true;
    return tail <= 4; /* "fe80::" ends with a colon. */
}

/* Where the host ends and the port begins. False: brackets that do not match. */
static bool split_endpoint(struct mu_str s, struct mu_str *host, struct mu_str *port)
{
    *port = mu_str_of(NULL, 0);
    if (s.n > 0 && s.p[0] == '[') {
        const char *end = memchr(s.p, ']', s.n);
        if (end == NULL)
            return false;
        *host = mu_str_of(s.p + 1, (size_t)(end - s.p) - 1);
        size_t rest = s.n - (size_t)(end - s.p) - 1;
        if (rest > 0 && end[1] != ':')
            return false;
        if (rest > 0)
            *port = mu_str_of(end + 2, rest - 1);
        return true;
    }
    const char *first = s.n > 0 ? memchr(s.p, ':', s.n) : NULL;
    const char *last = first;
    for (size_t i = 0; i < s.n; i++)
        if (s.p[i] == ':')
            last = s.p + i;
    if (first == NULL || (last != first && is_bare_v6(s, last))) {
        *host = s;
        return true;
    }
    *host = mu_str_of(s.p, (size_t)(last - s.p));
    *port = mu_str_of(last + 1, (size_t)(s.p + s.n - last) - 1);
    return true;
}

int mu_parse_endpoint(const char *text,
                      int default_port,
                      const char *what,
                      struct mu_endpoint *ret,
                      struct mu_err *err)
{
    char shown[96];
    (void)mu_quote(shown, sizeof shown, mu_str_of(text, strlen(text)));
    struct mu_str host;
    struct mu_str port;
    if (!split_endpoint(trimmed(text), &host, &port) || host.n == 0)
        return mu_err_set(err, -EINVAL, "%s: %s is not HOST, HOST:PORT or [IPv6]:PORT", what,
                          shown);
    struct mu_endpoint e = {.has_port = port.p != NULL};
    if (host.n >= sizeof e.host)
        return mu_err_set(err, -EINVAL, "%s: the host name is longer than 255 characters", what);
    for (size_t i = 0; i < host.n; i++)
        if (!host_char(host.p[i]))
            return mu_err_set(err, -EINVAL,
                              "%s: %s holds a character that no host name has (letters, digits, _ "
                              ". : - are allowed)",
                              what, shown);
    memcpy(e.host, host.p, host.n);
    int64_t v = default_port;
    bool over = false;
    if (e.has_port && (port.n > 5 || !digits(port, &v, &over) || over || v > 65535))
        return mu_err_set(err, -EINVAL, "%s: the port of %s is not 0 to 65535", what, shown);
    if (v < 0)
        return mu_err_set(err, -EINVAL, "%s: %s has no port: write HOST:PORT", what, shown);
    e.port = (uint16_t)v;
    *ret = e;
    return 0;
}

int mu_hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* As inet_aton() reads one of its up to four parts: decimal, octal or, with 0x, hexadecimal. */
static bool is_number(const char *p, size_t n, bool *ret_plain)
{
    bool hex = n > 2 && p[0] == '0' && (p[1] == 'x' || p[1] == 'X');
    for (size_t i = hex ? 2 : 0; i < n; i++)
        if (hex ? mu_hex_digit(p[i]) < 0 : p[i] < '0' || p[i] > '9')
            return false;
    *ret_plain = !hex && n <= 3 && (n == 1 || p[0] != '0') && (n < 3 || memcmp(p, "255", 3) <= 0);
    return true;
}

static bool is_label_char(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
           c == '_';
}

bool mu_is_host_name(const char *text)
{
    size_t parts = 0;
    size_t numbers = 0;
    size_t plain = 0;
    for (const char *p = text;; p++) {
        size_t n = 0;
        bool is_plain = false;
        while (is_label_char(p[n]))
            n++;
        if (n == 0 || p[0] == '-' || (p[n] != '.' && p[n] != '\0'))
            return false;
        parts++;
        if (is_number(p, n, &is_plain)) {
            numbers++;
            plain += is_plain;
        }
        p += n;
        if (*p == '\0')
            break;
    }
    return numbers < parts || (parts == 4 && plain == 4);
}
