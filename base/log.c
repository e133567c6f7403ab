/* Log lines; see log.h. */
#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/manager.h"
#include "base/parse.h"
#include "base/shown.h"

static struct {
    const char *program;
    enum mu_log_level level;
    enum mu_log_format format;
    bool journal;
    mu_log_put_fn *put; /* NULL: to stderr. */
    void *put_arg;
} settings = {.program = "muster", .level = MU_WARN, .format = MU_LOG_TEXT};

void mu_log_setup(const char *program, enum mu_log_level level, enum mu_log_format format)
{
    settings.program = program;
    settings.level = level;
    settings.format = format;
    settings.journal = mu_journal_is_stderr();
}

void mu_log_divert(mu_log_put_fn *put, void *arg)
{
    settings.put = put;
    settings.put_arg = arg;
}

int mu_log_level_parse(const char *text, enum mu_log_level *ret)
{
    static const struct {
        const char *name;
        enum mu_log_level level;
    } names[] = {{"error", MU_ERROR}, {"critical", MU_ERROR}, {"warning", MU_WARN},
                 {"warn", MU_WARN},   {"info", MU_INFO},      {"debug", MU_DEBUG}};
    for (size_t i = 0; i < MU_COUNT(names); i++) {
        if (strcasecmp(text, names[i].name) == 0) {
            *ret = names[i].level;
            return 0;
        }
    }
    return -EINVAL;
}

bool mu_log_on(enum mu_log_level level)
{
    return level <= settings.level;
}

/* The next key=value of a line: *ret_value is what stands in the quotes, or up to the blank.
 * Returns where the one after it begins; NULL when no pair follows, *p is then at the rest. */
static const char *next_pair(const char **p, struct mu_str *ret_key, struct mu_str *ret_value)
{
    *p += strspn(*p, " ");
    size_t k = strcspn(*p, "= ");
    if ((*p)[k] != '=')
        return NULL; /* Whole sentences are let through as they are. */
    const char *v = *p + k + 1;
    size_t n = 0;
    *ret_key = mu_str_of(*p, k);
    if (*v != '"') {
        n = strcspn(v, " ");
        *ret_value = mu_str_of(v, n);
        return v + n;
    }
    n = 1;
    while (v[n] != '\0' && v[n] != '"')
        n += v[n] == '\\' && v[n + 1] != '\0' ? 2 : 1;
    *ret_value = mu_str_of(v + 1, n - 1);
    return v + n + (v[n] == '"');
}

/* "%u", "%5ld": one conversion of an integer, behind which nothing but texts stand, which may be
 * empty or begin with a blank. */
static bool converts_integer(struct mu_str s)
{
    size_t i = 1;
    if (s.n < 2 || s.p[0] != '%')
        return false;
    while (i < s.n && strchr("-+ #0123456789", s.p[i]) != NULL)
        i++;
    while (i < s.n && strchr("hljzt", s.p[i]) != NULL)
        i++;
    if (i == s.n || strchr("diu", s.p[i]) == NULL)
        return false;
    for (i++; i + 1 < s.n && s.p[i] == '%' && s.p[i + 1] == 's';)
        i += 2;
    return i == s.n;
}

/* Was that value made from an integer? The format tells; digits in a text do not. */
static bool is_integer(const char *fmt, struct mu_str key)
{
    struct mu_str k;
    struct mu_str v;
    for (const char *next = NULL; (next = next_pair(&fmt, &k, &v)) != NULL; fmt = next)
        if (k.n == key.n && memcmp(k.p, key.p, k.n) == 0)
            return v.n > 0 && v.p[-1] == '=' && converts_integer(v);
    return false;
}

/* Plain digits, as the conversion alone writes them. */
static bool reads_as_integer(struct mu_str s, int64_t *ret)
{
    char text[24] = "";
    size_t sign = s.n > 0 && s.p[0] == '-' ? 1 : 0;
    if (s.n == sign || s.n >= sizeof text || (s.p[sign] == '0' && s.n > sign + 1))
        return false;
    memcpy(text, s.p, s.n);
    return mu_parse_i64(text, INT64_MIN, INT64_MAX, "number", ret, NULL) == 0;
}

/* key=value pairs as JSON members: the same fields in the other format. Quoted values keep their
 * escapes; what the format made from an integer is a number. */
static void pairs_to_json(struct mu_json *w, const char *fmt, const char *p)
{
    struct mu_str key;
    struct mu_str value;
    for (const char *next = NULL; (next = next_pair(&p, &key, &value)) != NULL; p = next) {
        char name[48] = "";
        memcpy(name, key.p, key.n < sizeof name - 1 ? key.n : sizeof name - 1);
        int64_t number = 0;
        mu_json_key(w, name);
        if (is_integer(fmt, key) && reads_as_integer(value, &number))
            mu_json_i64(w, number);
        else
            mu_json_strn(w, value);
    }
    if (*p != '\0')
        mu_json_kstr(w, "text", p);
}

/* The same fields in the journal: MESSAGE is the line, MUSTER_EVENT its name, MUSTER_JOB and so on
 * its pairs, so that `journalctl MUSTER_JOB=train` finds a job's lines. Returns 0, or a negative
 * errno when it is not to be had. */
static int send_to_journal(enum mu_log_level level, const char *event, const char *text)
{
    static const char *const priorities[] = {"3", "4", "6", "7"};
    struct mu_str key;
    struct mu_str value;
    struct mu_buf b;
    mu_buf_init(&b, mu_mem_default());
    (void)mu_buf_addf(&b, "MESSAGE=%s %s\nPRIORITY=%s\nSYSLOG_IDENTIFIER=%s\nMUSTER_EVENT=%s\n",
                      event, text, priorities[level], settings.program, event);
    const char *p = text;
    for (const char *next = NULL; (next = next_pair(&p, &key, &value)) != NULL; p = next) {
        char name[48] = "MUSTER_";
        size_t n = strlen(name);
        for (size_t i = 0; i < key.n && n < sizeof name - 1; i++)
            name[n++] =
                (char)(key.p[i] >= 'a' && key.p[i] <= 'z' ? key.p[i] - 'a' + 'A' : key.p[i]);
        name[n] = '\0';
        mu_journal_field(&b, name, value);
    }
    int r = mu_journal_send(&b);
    mu_buf_fini(&b);
    return r;
}

static void format_line(
    struct mu_buf *b, enum mu_log_level level, const char *event, const char *fmt, const char *text)
{
    static const char *const names[] = {"error", "warning", "info", "debug"};
    static const char *const journal[] = {"<3>", "<4>", "<6>", "<7>"};
    char when[32];
    if (settings.format == MU_LOG_JSON) {
        struct mu_json w;
        mu_json_init(&w, b);
        mu_json_open(&w, '{');
        mu_json_kstr(&w, "time", mu_iso8601(mu_unix_ms(), when));
        mu_json_kstr(&w, "level", names[level]);
        mu_json_kstr(&w, "program", settings.program);
        mu_json_kstr(&w, "event", event);
        pairs_to_json(&w, fmt, text);
        mu_json_close(&w, '}');
        (void)mu_buf_adds(b, "\n");
    } else if (settings.journal) {
        (void)mu_buf_addf(b, "%s%s %s\n", journal[level], event, text);
    } else {
        (void)mu_buf_addf(b, "%s %s %s: %s %s\n", mu_iso8601(mu_unix_ms(), when), settings.program,
                          names[level], event, text);
    }
}

void mu_log(enum mu_log_level level, const char *event, const char *fmt, ...)
{
    if (!mu_log_on(level))
        return;
    int saved = errno;
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap); /* A cut line is still a line. */
    va_end(ap);
    mu_clean(text); /* One event, one line, whatever somebody forgot to quote. */
    bool to_journal = settings.journal && settings.put == NULL && settings.format == MU_LOG_TEXT;
    if (to_journal && send_to_journal(level, event, text) == 0) {
        errno = saved;
        return;
    }
    struct mu_buf b;
    mu_buf_init(&b, mu_mem_default());
    format_line(&b, level, event, fmt, text);
    if (settings.put != NULL)
        settings.put(settings.put_arg, b.p, b.n);
    else if (b.n > 0 && write(STDERR_FILENO, b.p, b.n) < 0) {
        /* Nowhere left to say so. */
    }
    mu_buf_fini(&b);
    errno = saved;
}

bool mu_log_allowed(struct mu_log_limit *l, int64_t now_ns, uint32_t burst, uint32_t *ret_left_out)
{
    int64_t second = now_ns / MU_NS_PER_S;
    if (l->second != second) {
        l->second = second;
        l->used = 0;
    }
    if (l->used >= burst) {
        l->left_out++;
        return false;
    }
    l->used++;
    *ret_left_out = l->left_out;
    l->left_out = 0;
    return true;
}
