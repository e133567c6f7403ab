/* The driver's lines; see xid_line.h. */
#include "agent/workers/xid_line.h"

#include <stdio.h>
#include <string.h>

#include "base/parse.h"
#include "base/str.h"

#define BEFORE_NS INT64_C(15000000000) /* A failing GPU ends its processes by time-outs, too. */
#define NUMBER_MAX 65535

/* What of the record is left to be read. */
struct rest {
    const char *p;
    const char *end;
};

static bool skip(struct rest *r, const char *text)
{
    size_t n = strlen(text);
    if ((size_t)(r->end - r->p) < n || memcmp(r->p, text, n) != 0)
        return false;
    r->p += n;
    return true;
}

/* Up to one of `stops`, which is left. */
static void take(struct rest *r, const char *stops, char *ret, size_t cap)
{
    size_t n = 0;
    for (; r->p < r->end && strchr(stops, *r->p) == NULL; r->p++)
        if (n + 1 < cap)
            ret[n++] = *r->p;
    ret[n] = '\0';
}

static bool to_number(const char *text, int64_t max, int32_t *ret)
{
    int64_t v = 0;
    if (mu_parse_i64(text, 1, max, "number", &v, NULL) < 0)
        return false;
    *ret = (int32_t)v;
    return true;
}

/* "pid=77, name=python, " and "pid='<unknown>', name=<unknown>, " */
static void take_process(struct rest *r, struct xid_line *line)
{
    char pid[16];
    char name[8];
    if (!skip(r, "pid="))
        return;
    take(r, ",", pid, sizeof pid);
    (void)to_number(pid, INT32_MAX, &line->pid); /* Else it stays 0. */
    (void)skip(r, ", ");
    if (!skip(r, "name="))
        return;
    take(r, ",", name, sizeof name); /* It may be cut: the worker is known. */
    (void)skip(r, ", ");
}

bool xid_parse(const char *record, size_t n, struct xid_line *ret)
{
    char number[8];
    const char *text = memchr(record, ';', n);
    struct xid_line line = {0};
    if (text == NULL)
        return false;
    struct rest r = {text + 1, record + n};
    const char *end = memchr(r.p, '\n', (size_t)(r.end - r.p));
    r.end = end != NULL ? end : r.end;
    if (!skip(&r, "NVRM: Xid ("))
        return false;
    (void)skip(&r, "PCI:");
    take(&r, ")", line.gpu, sizeof line.gpu);
    if (!skip(&r, "): "))
        return false;
    take(&r, ",", number, sizeof number);
    if (!to_number(number, NUMBER_MAX, &line.number))
        return false;
    (void)skip(&r, ", ");
    take_process(&r, &line);
    take(&r, "\n", line.text, sizeof line.text);
    *ret = line;
    return true;
}

void xid_add(struct xid_lines *l, const struct xid_line *line, int64_t now_ns)
{
    struct xid_line *to = &l->v[l->count++ % XID_LINES];
    *to = *line;
    to->at_ns = now_ns;
}

const struct xid_line *xid_find(const struct xid_lines *l, int32_t pid, int64_t now_ns)
{
    const struct xid_line *best = NULL;
    uint32_t have = l->count < XID_LINES ? l->count : XID_LINES;
    for (uint32_t i = 1; i <= have; i++) { /* The last one first. */
        const struct xid_line *line = &l->v[(l->count - i) % XID_LINES];
        if (line->pid == pid)
            return line;
        if (best == NULL && now_ns - line->at_ns <= BEFORE_NS)
            best = line;
    }
    return best;
}

void xid_words(const struct xid_line *line, int32_t pid, char *ret, size_t cap)
{
    char of[32] = "";
    if (line->pid != 0 && line->pid != pid) /* As the host counts, where this is a container. */
        (void)snprintf(of, sizeof of, " (pid %d)", line->pid);
    (void)snprintf(ret, cap, "Xid %d on GPU %s%s%s%s", line->number, line->gpu, of,
                   line->text[0] != '\0' ? ": " : "", line->text);
}
