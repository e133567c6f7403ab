/* Lines to records and back; see record.h. */
#include "agent/service/record.h"

#include <string.h>

#include "base/json.h"

#define MARK '\x1e'

void record_init(struct record *r, const struct mu_mem *mem, int channel)
{
    *r = (struct record){.channel = channel, .rank = -1};
    mu_buf_init(&r->part, mem);
}

void record_fini(struct record *r)
{
    mu_buf_fini(&r->part);
}

static void open_record(
    struct mu_json *w, struct mu_buf *out, const struct record_now *now, int32_t rank, int channel)
{
    mu_json_init(w, out);
    mu_json_open(w, '{');
    mu_json_kstr(w, "at", now->at);
    mu_json_ki64(w, "unix_ms", now->unix_ms);
    mu_json_kstr(w, "host", now->host);
    mu_json_ki64(w, "rank", rank);
    mu_json_kstr(w, "stream", channel == 1 ? "stdout" : "stderr");
}

static void close_record(struct mu_json *w, struct mu_buf *out, struct mu_str text)
{
    mu_json_key(w, "text");
    mu_json_strn(w, text);
    mu_json_close(w, '}');
    (void)mu_buf_adds(out, "\n");
}

void record_say(struct mu_buf *out,
                const struct record_now *now,
                int64_t lines_before,
                const char *text)
{
    struct mu_json w;
    open_record(&w, out, now, -1, 2);
    if (lines_before >= 0)
        mu_json_ki64(&w, "lines_before", lines_before);
    close_record(&w, out, mu_str_of(text, strlen(text)));
}

/* "<MARK>12<MARK>text": the rank, and how many bytes it took; 0: there is none. */
static size_t read_mark(const char *p, size_t n, int32_t *ret_rank)
{
    size_t i = 1;
    int32_t rank = 0;
    if (n < 3 || p[0] != MARK)
        return 0;
    for (; i < n && i < 9 && p[i] >= '0' && p[i] <= '9'; i++)
        rank = rank * 10 + (p[i] - '0');
    if (i == 1 || i == n || p[i] != MARK)
        return 0;
    *ret_rank = rank;
    return i + 1;
}

/* Where to cut a text so that a piece has no half of a character. */
static size_t cut_at(const char *p, size_t n, size_t all)
{
    size_t at = n;
    while (at > n - 4 && ((unsigned char)p[at] & 0xc0U) == 0x80)
        at--;
    return mu_utf8_len(p + at, all - at) > 0 ? at : n;
}

/* NULs would end the text for readers in C. */
static void put_piece(const struct record *r,
                      const struct record_now *now,
                      char *p,
                      size_t n,
                      bool more,
                      struct mu_buf *out)
{
    struct mu_json w;
    for (char *nul = memchr(p, '\0', n); nul != NULL; nul = memchr(p, '\0', n))
        *nul = '\xff'; /* Shown as U+FFFD. */
    open_record(&w, out, now, r->rank, r->channel);
    if (more)
        mu_json_kbool(&w, "part", true);
    close_record(&w, out, mu_str_of(p, n));
}

/* Take what has gathered as far as it makes pieces; `whole`: all of it, its line has ended. */
static uint32_t
put_part(struct record *r, const struct record_now *now, bool whole, struct mu_buf *out)
{
    uint32_t count = 0;
    char *p = r->part.p;
    size_t n = r->part.n;
    size_t at = 0;
    if (!r->continues) {
        r->rank = -1;
        at = n > 0 ? read_mark(p, n, &r->rank) : 0;
    }
    for (; n - at > RECORD_TEXT_BYTES; count++) {
        size_t len = cut_at(p + at, RECORD_TEXT_BYTES, n - at);
        put_piece(r, now, p + at, len, true, out);
        r->continues = true;
        at += len;
    }
    if (whole) {
        if (n > at && p[n - 1] == '\r')
            n--;
        char none = '\0';
        put_piece(r, now, p != NULL ? p + at : &none, n - at, false, out);
        r->continues = false;
        mu_buf_reset(&r->part);
        return count + 1;
    }
    if (count > 0)
        mu_buf_consume(&r->part, at);
    return count;
}

uint32_t record_take(
    struct record *r, const struct record_now *now, const char *p, size_t n, struct mu_buf *out)
{
    uint32_t count = 0;
    while (n > 0) {
        const char *feed = memchr(p, '\n', n);
        size_t len = feed != NULL ? (size_t)(feed - p) : n;
        if (mu_buf_add(&r->part, p, len) < 0)
            out->oom = true;
        if (feed != NULL || r->part.n > RECORD_TEXT_BYTES + 16)
            count += put_part(r, now, feed != NULL, out);
        len += feed != NULL;
        p += len;
        n -= len;
    }
    return count;
}

uint32_t record_end(struct record *r, const struct record_now *now, struct mu_buf *out)
{
    return r->part.n > 0 ? put_part(r, now, true, out) : 0;
}

/* --- reading --- */

/* Behind `key`, which stands between `p` and `end`, or NULL. */
static const char *find_key(const char *p, const char *end, const char *key)
{
    size_t n = strlen(key);
    while (p != NULL && (size_t)(end - p) >= n) {
        p = memchr(p, '"', (size_t)(end - p) - n + 1);
        if (p != NULL && memcmp(p, key, n) == 0)
            return p + n;
        p = p != NULL ? p + 1 : NULL;
    }
    return NULL;
}

static int64_t number_at(const char *p, const char *end)
{
    int64_t v = 0;
    bool minus = p < end && *p == '-';
    for (p += minus; p < end && *p >= '0' && *p <= '9' && v < (INT64_C(1) << 53); p++)
        v = v * 10 + (*p - '0');
    return minus ? -v : v;
}

bool record_read(struct mu_str line, struct record_head *ret)
{
    const char *end = line.p + line.n;
    const char *head =
        line.n < 512 ? end : line.p + 512; /* A host name is the longest thing in it. */
    const char *ms = find_key(line.p, head, "\"unix_ms\":"); /* In this order. */
    const char *rank = find_key(ms, head, "\"rank\":");
    const char *stream = find_key(rank, head, "\"stream\":\"std");
    const char *text = find_key(stream, head, "\"text\":\"");
    if (text == NULL || end - text < 2 || end[-1] != '}' || end[-2] != '"')
        return false;
    const char *junction = find_key(stream, text, "\"lines_before\":");
    *ret = (struct record_head){.unix_ms = number_at(ms, end),
                                .rank = (int32_t)number_at(rank, end),
                                .channel = stream[0] == 'o' ? 1 : 2,
                                .is_junction = junction != NULL,
                                .text = mu_str_of(text, (size_t)(end - text) - 2)};
    return true;
}

static int hex_of(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : 0;
}

/* mu_json writes control bytes as \u00XX, and everything else as it is. */
static size_t decode_escape(const char *p, size_t n, char *ret)
{
    static const char from[] = "nrtbf";
    static const char to[] = "\n\r\t\b\f";
    const char *known = n > 1 && p[1] != '\0' ? strchr(from, p[1]) : NULL;
    if (n >= 6 && p[1] == 'u') {
        *ret = (char)(hex_of(p[4]) * 16 + hex_of(p[5]));
        return 6;
    }
    *ret = known != NULL ? to[known - from] : n > 1 ? p[1] : '\\';
    return n > 1 ? 2 : 1;
}

void record_text(struct mu_str json, struct mu_buf *out)
{
    size_t i = 0;
    if (mu_buf_reserve(out, json.n) < 0)
        return;
    while (i < json.n) {
        const char *slash = memchr(json.p + i, '\\', json.n - i);
        size_t len = slash != NULL ? (size_t)(slash - json.p) - i : json.n - i;
        (void)mu_buf_add(out, json.p + i, len);
        i += len;
        if (slash != NULL) {
            char c = '\0';
            i += decode_escape(json.p + i, json.n - i, &c);
            (void)mu_buf_add(out, &c, 1);
        }
    }
}
