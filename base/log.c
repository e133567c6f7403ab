/* Log lines; see log.h. */
#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
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
    settings.journal = getenv("JOURNAL_STREAM") != NULL;
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

/* key=value pairs as JSON members: the same fields in the other format. Quoted values keep their
 * escapes. */
static void pairs_to_json(struct mu_json *w, const char *p)
{
    while (*p != '\0') {
        p += strspn(p, " ");
        size_t k = strcspn(p, "= ");
        if (p[k] != '=') {
            if (*p != '\0') /* Not a pair: whole sentences are let through as they are. */
                mu_json_kstr(w, "text", p);
            break;
        }
        char key[48] = "";
        memcpy(key, p, k < sizeof key - 1 ? k : sizeof key - 1);
        p += k + 1;
        mu_json_key(w, key);
        size_t n = 0;
        if (*p == '"') {
            n = 1;
            while (p[n] != '\0' && p[n] != '"')
                n += p[n] == '\\' && p[n + 1] != '\0' ? 2 : 1;
            mu_json_strn(w, mu_str_of(p + 1, n - 1));
            n += p[n] == '"';
        } else {
            n = strcspn(p, " ");
            mu_json_strn(w, mu_str_of(p, n));
        }
        p += n;
    }
}

static void
format_line(struct mu_buf *b, enum mu_log_level level, const char *event, const char *text)
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
        pairs_to_json(&w, text);
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
    struct mu_buf b;
    mu_buf_init(&b, mu_mem_default());
    format_line(&b, level, event, text);
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
