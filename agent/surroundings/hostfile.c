/* A host file: one host a line, "NAME", "NAME slots=N" or "NAME:N", '#' for remarks. The first line
 * leads; this node's is the one with its name or one of its addresses. */
#include <errno.h>
#include <string.h>

#include "agent/surroundings/internal.h"
#include "base/parse.h"
#include "base/str.h"

#define PORT 29500

struct line {
    char host[MU_HOST_BYTES];
    uint32_t slots; /* 0: not told. */
};

struct search {
    const struct surroundings_ask *ask;
    uint32_t number; /* Of the line in the file, from 1. */
    uint32_t own_line;
    uint32_t own_again; /* A second line of this host: its number; 0: none. */
    uint32_t own_slots;
    uint32_t loopback_line; /* 0: none. */
};

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

static size_t skip_blanks(const char *p, size_t n)
{
    size_t i = 0;
    while (i < n && is_blank(p[i]))
        i++;
    return i;
}

static size_t word_bytes(const char *p, size_t n)
{
    size_t i = 0;
    while (i < n && !is_blank(p[i]))
        i++;
    return i;
}

static int bad_line(const struct search *f, const char *why, struct mu_str s, struct mu_err *err)
{
    char shown[64];
    return mu_err_set(err, -EINVAL,
                      "--hostfile: line %u: %s %s: write HOST, HOST slots=N or HOST:N", f->number,
                      mu_quote(shown, sizeof shown, s), why);
}

static int read_slots(const struct search *f, struct mu_str s, uint32_t *ret, struct mu_err *err)
{
    char text[16] = "";
    struct mu_err unused;
    if (s.n > 0 && s.n < sizeof text)
        memcpy(text, s.p, s.n);
    if (mu_parse_u32(text, 1, MU_WORKERS_MAX, "slots", ret, &unused) < 0)
        return bad_line(f, "is no number of workers", s, err);
    return 0;
}

/* One colon is a number of slots; several are an IPv6 address, which may stand in brackets. */
static int read_host(const struct search *f, struct mu_str w, struct line *l, struct mu_err *err)
{
    struct mu_str slots = {0};
    size_t colons = 0;
    size_t colon = 0;
    for (size_t i = 0; i < w.n; i++) {
        if (w.p[i] != ':')
            continue;
        colons++;
        colon = i;
    }
    bool in_brackets = w.p[0] == '[';
    const char *end = in_brackets ? memchr(w.p, ']', w.n) : NULL;
    struct mu_str host = w;
    if (in_brackets) {
        if (end == NULL)
            return bad_line(f, "has no ]", w, err);
        host = mu_str_of(w.p + 1, (size_t)(end - w.p) - 1);
        size_t rest = w.n - host.n - 2;
        if (rest > 0 && end[1] != ':')
            return bad_line(f, "is no host", w, err);
        slots = rest > 0 ? mu_str_of(end + 2, rest - 1) : slots;
    } else if (colons == 1) {
        host = mu_str_of(w.p, colon);
        slots = mu_str_of(w.p + colon + 1, w.n - colon - 1);
    }
    if (host.n == 0 || host.n >= sizeof l->host)
        return bad_line(f, "is no host", w, err);
    memcpy(l->host, host.p, host.n);
    l->host[host.n] = '\0';
    if (!in_brackets && colons <= 1 && !mu_is_host_name(l->host))
        return bad_line(f, "is no host", host, err);
    return slots.p != NULL ? read_slots(f, slots, &l->slots, err) : 0;
}

/* Returns 1: a host; 0: nothing on this line. */
static int read_line(const struct search *f, struct mu_str text, struct line *l, struct mu_err *err)
{
    const char *remark = memchr(text.p, '#', text.n);
    size_t n = remark != NULL ? (size_t)(remark - text.p) : text.n;
    size_t at = skip_blanks(text.p, n);
    *l = (struct line){0};
    if (at == n)
        return 0;
    size_t word = word_bytes(text.p + at, n - at);
    int r = read_host(f, mu_str_of(text.p + at, word), l, err);
    if (r < 0)
        return r;
    for (at += word;; at += word) {
        at += skip_blanks(text.p + at, n - at);
        word = word_bytes(text.p + at, n - at);
        if (word == 0)
            return 1;
        struct mu_str w = mu_str_of(text.p + at, word);
        if (word > 6 && memcmp(w.p, "slots=", 6) == 0)
            r = read_slots(f, mu_str_of(w.p + 6, w.n - 6), &l->slots, err);
        else if (word <= 10 || memcmp(w.p, "max_slots=", 10) != 0) /* Open MPI's, and no matter. */
            r = bad_line(f, "is not known", w, err);
        if (r < 0)
            return r;
    }
}

static char lower(char c)
{
    if (c >= 'A' && c <= 'Z')
        return (char)(c - 'A' + 'a');
    return c;
}

/* "n1" is "N1" and "n1.cluster.example"; two full names must be equal. */
static bool same_name(const char *a, const char *b)
{
    size_t i = 0;
    while (a[i] != '\0' && lower(a[i]) == lower(b[i]))
        i++;
    return (a[i] == '\0' && (b[i] == '\0' || b[i] == '.')) || (b[i] == '\0' && a[i] == '.');
}

static bool is_numeric(const char *host)
{
    return strchr(host, ':') != NULL || strspn(host, "0123456789.") == strlen(host);
}

/* What means another host on every node. */
static bool is_loopback(const char *host)
{
    return strcmp(host, "localhost") == 0 || strncmp(host, "127.", 4) == 0 ||
           strcmp(host, "::1") == 0;
}

static bool is_own(const struct surroundings_ask *ask, const char *host)
{
    if (is_numeric(host))
        return ask->machine->is_own(host);
    return is_loopback(host) || same_name(host, ask->machine->host());
}

static void note_line(struct search *f, const struct line *l, struct surroundings *s)
{
    const struct surroundings_ask *ask = f->ask;
    bool own =
        ask->node_rank >= 0 ? ask->node_rank == (int64_t)s->node_count : is_own(ask, l->host);
    if (is_loopback(l->host))
        f->loopback_line = f->number;
    if (s->node_count == 0)
        (void)mu_strcopy(s->host, sizeof s->host, l->host); /* It fits. */
    if (own && f->own_line > 0 && f->own_again == 0)
        f->own_again = f->number;
    if (own && f->own_line == 0) {
        f->own_line = f->number;
        f->own_slots = l->slots;
        s->node_rank = s->node_count;
    }
    s->node_count++;
}

static int check(const struct search *f, const struct surroundings *s, struct mu_err *err)
{
    const struct surroundings_ask *ask = f->ask;
    if (s->node_count == 0)
        return mu_err_set(err, -EINVAL, "--hostfile: %.100s names no host: write one a line",
                          ask->hostfile);
    if (f->loopback_line > 0 && s->node_count > 1 && ask->node_rank < 0)
        return mu_err_set(err, -EINVAL,
                          "--hostfile: line %u is this host on every node: write the name by which "
                          "the others know it (or, to try it out on one host, --node-rank)",
                          f->loopback_line);
    if (f->own_line == 0 && ask->node_rank >= 0)
        return mu_err_set(err, -EINVAL,
                          "--node-rank: %lld is not below the number of hosts in "
                          "--hostfile, %u",
                          (long long)ask->node_rank, s->node_count);
    if (f->own_line == 0)
        return mu_err_set(
            err, -EINVAL,
            "--hostfile: none of its %u hosts is this one, '%.64s': write that name or "
            "one of its addresses, or say with --node-rank which line is ours (from 0)",
            s->node_count, ask->machine->host());
    if (f->own_again > 0)
        return mu_err_set(err, -EINVAL,
                          "--hostfile: lines %u and %u are both this host: one is enough (slots=N "
                          "for several workers), or --node-rank says which this one is (from 0)",
                          f->own_line, f->own_again);
    return 0;
}

int hostfile_ask(const struct surroundings_ask *ask, struct surroundings *s, struct mu_err *err)
{
    struct search f = {.ask = ask};
    struct line l;
    const char *text = ask->machine->file(ask->hostfile, err);
    if (text == NULL)
        return mu_err_wrap(err, "--hostfile");
    if (strncmp(text, "\xef\xbb\xbf", 3) == 0) /* The mark of some editors: no part of a name. */
        text += 3;
    while (*text != '\0') {
        size_t n = strcspn(text, "\n");
        f.number++;
        int r = read_line(&f, mu_str_of(text, n), &l, err);
        if (r < 0)
            return r;
        if (r > 0)
            note_line(&f, &l, s);
        if (s->node_count > MU_NODES_MAX)
            return mu_err_set(err, -EINVAL, "--hostfile: more than %d hosts", MU_NODES_MAX);
        text += n + (text[n] == '\n');
    }
    int r = check(&f, s, err);
    if (r < 0)
        return r;
    s->nproc = f.own_slots;
    s->port = PORT;
    s->count_from = "its lines";
    s->rank_from = "this host's line";
    s->host_from = "its first line";
    return 0;
}
