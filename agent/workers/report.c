/* The failure report; see report.h. */
#include "agent/workers/report.h"

#include <string.h>
#include <time.h>

#include "base/cause.h"
#include "base/shown.h"

#define WIDTH_MAX 60
#define FRAME_LINES 7   /* Of the block, without its workers. */
#define WORKER_LINES 7  /* Of a worker with one line of text and no further fact. */
#define CUT_LINES_MIN 3 /* First, "...", last. */
#define NO_TRACE "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"

static void add_label(struct mu_buf *b, const char *label)
{
    (void)mu_buf_addf(b, "  %-10s: ", label);
}

static size_t trimmed(const char *text)
{
    size_t n = strlen(text);
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == ' '))
        n--;
    return n;
}

static uint32_t count_lines(const char *text, size_t n)
{
    uint32_t lines = 1;
    for (size_t i = 0; i < n; i++)
        lines += text[i] == '\n';
    return lines;
}

/* Colours and the like, ESC [ ... letter: bytes of it; 0: none begins here. */
static size_t sequence_bytes(const char *p)
{
    if (p[0] != '\x1b' || p[1] != '[')
        return 0;
    size_t n = 2 + strspn(p + 2, "0123456789;:<=>? ");
    return p[n] >= '@' && p[n] <= '~' ? n + 1 : 0;
}

/* One line. Workers that write in colour do so in their error files as well; what else a terminal
 * would obey is escaped. */
static void add_line(struct mu_buf *b, const char *text, size_t n)
{
    for (size_t i = 0; i < n;) {
        size_t skipped = sequence_bytes(text + i);
        size_t plain = 0;
        while (i + plain < n && text[i + plain] != '\x1b')
            plain++;
        if (skipped == 0) {
            plain += plain == 0; /* An ESC that begins nothing. */
            (void)mu_buf_add_shown(b, mu_str_of(text + i, plain), "\t");
        }
        i += skipped > 0 ? skipped : plain;
    }
}

/* Lines after the first are indented by two. Of more than `lines` the middle is left out: the first
 * says what it is, the last what went wrong. */
static void add_indented(struct mu_buf *b, const char *text, uint32_t lines)
{
    size_t n = trimmed(text);
    uint32_t count = count_lines(text, n);
    uint32_t hidden = count > lines ? count - lines + 1 : 0; /* One line tells of them. */
    size_t from = 0;
    for (uint32_t at = 0; at < count; at++) {
        size_t bytes = 0;
        while (from + bytes < n && text[from + bytes] != '\n')
            bytes++;
        if (at == 1 && hidden > 0)
            (void)mu_buf_addf(b, "  ... %u lines are left out: see error_file\n", hidden);
        if (at < 1 || at >= 1 + hidden) {
            (void)mu_buf_adds(b, at > 0 ? "  " : "");
            add_line(b, text + from, bytes);
            (void)mu_buf_adds(b, "\n");
        }
        from += bytes + 1;
    }
}

void report_output(struct mu_buf *b, const char *name, const char *text)
{
    size_t n = trimmed(text);
    if (n == 0)
        return;
    (void)mu_buf_addf(b, "%s: its last lines:\n", name);
    for (size_t from = 0; from < n;) {
        size_t bytes = 0;
        while (from + bytes < n && text[from + bytes] != '\n')
            bytes++;
        (void)mu_buf_adds(b, "    | ");
        add_line(b, text + from, bytes);
        (void)mu_buf_adds(b, "\n");
        from += bytes + 1;
    }
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

static void add_traceback(struct mu_buf *b, const struct report_worker *w, uint32_t lines)
{
    char name[16];
    add_label(b, "traceback");
    if (w->text != NULL)
        add_indented(b, w->text, lines);
    else if (w->has_output && w->status > 0)
        (void)mu_buf_adds(b, "none in an error file; its last lines stand above\n");
    else if (w->status < 0)
        (void)mu_buf_addf(b, "Signal %d (%s) received by PID %d\n", -w->status,
                          mu_signal_name(-w->status, name), w->pid);
    else
        (void)mu_buf_adds(b, NO_TRACE "\n");
}

/* lines: of its traceback, at most. */
static void add_worker(struct mu_buf *b,
                       uint32_t index,
                       const char *host,
                       const struct report_worker *w,
                       uint32_t lines)
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
    add_traceback(b, w, lines);
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

/* Who else failed: as many as fit, the rest as a number. */
static void add_others(struct mu_buf *b,
                       const char *host,
                       const struct report_worker *w,
                       uint32_t count,
                       uint32_t root,
                       uint32_t lines)
{
    uint32_t index = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (i == root)
            continue;
        uint32_t left = count - 1 - index;
        uint32_t rest = left > 1; /* One line tells of them. */
        uint32_t own = WORKER_LINES - 1 + (w[i].extra != NULL);
        uint32_t text = w[i].text != NULL ? count_lines(w[i].text, trimmed(w[i].text)) : 1;
        if (lines < own + (text < CUT_LINES_MIN ? text : CUT_LINES_MIN) + rest) {
            (void)mu_buf_addf(b, "  and %u more, the next is rank %u\n", left, w[i].rank);
            return;
        }
        uint32_t room = lines - own - rest;
        text = text < room ? text : room;
        add_worker(b, ++index, host, &w[i], text);
        lines -= own + text;
    }
    if (count == 1)
        (void)mu_buf_adds(b, "  <NO_OTHER_FAILURES>\n");
}

void report_block(struct mu_buf *b,
                  const char *title,
                  const char *host,
                  const struct report_worker *w,
                  uint32_t count,
                  uint32_t lines)
{
    struct mu_buf others;
    struct mu_buf cause;
    MU_ASSERT(count > 0 && lines >= FRAME_LINES + WORKER_LINES + 1 + CUT_LINES_MIN);
    mu_buf_init(&others, b->mem);
    mu_buf_init(&cause, b->mem);
    uint32_t root = root_of(w, count);
    /* One line stays for the others. */
    uint32_t left = lines - FRAME_LINES - (WORKER_LINES - 1) - (w[root].extra != NULL) - 1;
    uint32_t text = w[root].text != NULL ? count_lines(w[root].text, trimmed(w[root].text)) : 1;
    text = text < left ? text : left;
    add_worker(&cause, 0, host, &w[root], text);
    add_others(&others, host, w, count, root, left - text + 1);
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
