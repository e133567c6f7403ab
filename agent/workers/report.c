/* The failure report; see report.h. */
#include "agent/workers/report.h"

#include <string.h>
#include <time.h>

#include "base/cause.h"
#include "base/shown.h"

#define WIDTH_MAX 60
#define NO_TRACE "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"

static void add_label(struct mu_buf *b, const char *label)
{
    (void)mu_buf_addf(b, "  %-10s: ", label);
}

/* Colours and the like, ESC [ ... letter: bytes of it; 0: none begins here. */
static size_t sequence_bytes(const char *p)
{
    if (p[0] != '\x1b' || p[1] != '[')
        return 0;
    size_t n = 2 + strspn(p + 2, "0123456789;:<=>? ");
    return p[n] >= '@' && p[n] <= '~' ? n + 1 : 0;
}

/* Lines after the first are indented by two. Workers that write in colour do so in their error
 * files as well; what else a terminal would obey is escaped. */
static void add_indented(struct mu_buf *b, const char *text)
{
    size_t n = strlen(text);
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == ' '))
        n--;
    for (size_t i = 0; i < n;) {
        size_t skipped = sequence_bytes(text + i);
        size_t line = strcspn(text + i, "\n\x1b");
        line = line > n - i ? n - i : line;
        if (skipped > 0) {
            i += skipped;
        } else if (text[i] == '\n') {
            (void)mu_buf_adds(b, "\n  ");
            i++;
        } else {
            line += line == 0; /* An ESC that begins nothing. */
            (void)mu_buf_add_shown(b, mu_str_of(text + i, line), "\t");
            i += line;
        }
    }
    (void)mu_buf_adds(b, "\n");
}

static void add_time(struct mu_buf *b, int64_t unix_s)
{
    char text[32] = "";
    struct tm tm;
    time_t t = (time_t)unix_s;
    if (localtime_r(&t, &tm) != NULL)
        (void)strftime(text, sizeof(text), "%Y-%m-%d_%H:%M:%S", &tm);
    (void)mu_buf_addf(b, "%s\n", text);
}

static void add_traceback(struct mu_buf *b, const struct report_worker *w)
{
    char name[16];
    add_label(b, "traceback");
    if (w->text != NULL)
        add_indented(b, w->text);
    else if (w->output != NULL && w->status > 0)
        (void)mu_buf_adds(b, "none in an error file; see its output below\n");
    else if (w->status < 0)
        (void)mu_buf_addf(b, "Signal %d (%s) received by PID %d\n", -w->status,
                          mu_signal_name(-w->status, name), w->pid);
    else
        (void)mu_buf_adds(b, NO_TRACE "\n");
}

static void
add_worker(struct mu_buf *b, uint32_t index, const char *host, const struct report_worker *w)
{
    char name[16];
    (void)mu_buf_addf(b, "[%u]:\n", index);
    add_label(b, "time");
    add_time(b, w->unix_s);
    add_label(b, "host");
    (void)mu_buf_addf(b, "%s\n", host);
    add_label(b, "rank");
    (void)mu_buf_addf(b, "%u (local_rank: %u)\n", w->rank, w->local_rank);
    add_label(b, "exitcode");
    (void)mu_buf_addf(b, "%d (pid: %d) ", w->status, w->pid);
    if (w->status < 0)
        (void)mu_buf_addf(b, " (%s)", mu_signal_name(-w->status, name));
    (void)mu_buf_adds(b, "\n");
    add_label(b, "error_file");
    (void)mu_buf_addf(b, "%s\n", w->error_file != NULL ? w->error_file : "<N/A>");
    add_traceback(b, w);
    if (w->output != NULL) {
        add_label(b, "output");
        (void)mu_buf_adds(b, "its last lines\n  ");
        add_indented(b, w->output);
    }
    if (w->extra != NULL) {
        add_label(b, "note");
        (void)mu_buf_addf(b, "%s\n", w->extra);
    }
}

static size_t longest_line(const struct mu_buf *b)
{
    size_t longest = 0;
    size_t at = 0;
    for (size_t i = 0; i < b->n; i++) {
        at = b->p[i] == '\n' ? 0 : at + 1;
        longest = at > longest ? at : longest;
    }
    return longest;
}

static void add_rule(struct mu_buf *b, char c, size_t width)
{
    for (size_t i = 0; i < width; i++)
        (void)mu_buf_add(b, &c, 1);
    (void)mu_buf_adds(b, "\n");
}

static uint32_t root_of(const struct report_worker *w, uint32_t count)
{
    uint32_t root = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (w[i].is_cause)
            return i;
        if (w[i].unix_s < w[root].unix_s)
            root = i;
    }
    return root;
}

void report_block(struct mu_buf *b,
                  const char *title,
                  const char *host,
                  const struct report_worker *w,
                  uint32_t count)
{
    struct mu_buf others;
    struct mu_buf cause;
    MU_ASSERT(count > 0);
    mu_buf_init(&others, b->mem);
    mu_buf_init(&cause, b->mem);
    uint32_t root = root_of(w, count);
    uint32_t index = 0;
    add_worker(&cause, 0, host, &w[root]);
    for (uint32_t i = 0; i < count; i++) {
        if (i != root)
            add_worker(&others, ++index, host, &w[i]);
    }
    if (count == 1)
        (void)mu_buf_adds(&others, "  <NO_OTHER_FAILURES>\n");
    size_t width = strlen(title) + sizeof(" FAILED") - 1;
    width = longest_line(&others) > width ? longest_line(&others) : width;
    width = longest_line(&cause) > width ? longest_line(&cause) : width;
    width = width > WIDTH_MAX ? WIDTH_MAX : width;

    add_rule(b, '=', width);
    (void)mu_buf_addf(b, "%s FAILED\n", title);
    add_rule(b, '-', width);
    (void)mu_buf_adds(b, "Failures:\n");
    (void)mu_buf_add(b, others.p, others.n);
    add_rule(b, '-', width);
    (void)mu_buf_adds(b, "Root Cause (first observed failure):\n");
    (void)mu_buf_add(b, cause.p, cause.n);
    add_rule(b, '=', width);
    b->oom = b->oom || others.oom || cause.oom;
    mu_buf_fini(&others);
    mu_buf_fini(&cause);
}
