#include "launcher/lines.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "launcher/answer.h"
#include "launcher/words.h"

/* --- reading --- */

enum cli_said
cli_line_read(struct mu_str s, cJSON **ret_tree, struct cli_line *ret, struct cli_end *ret_end)
{
    *ret_tree = NULL;
    while (s.n > 0 && strchr(" \t\r", s.p[s.n - 1]) != NULL)
        s.n--;
    if (s.n == 0)
        return CLI_SAID_BEAT;
    cJSON *o = cJSON_ParseWithLength(s.p, s.n);
    if (cli_is_true(o, "end")) {
        ret_end->exit_status = cli_number(o, "exit_status", -1);
        (void)snprintf(ret_end->state, sizeof ret_end->state, "%s", cli_text(o, "state"));
        *ret_tree = o;
        return CLI_SAID_END;
    }
    const cJSON *text = o != NULL ? cJSON_GetObjectItemCaseSensitive(o, "text") : NULL;
    if (!cJSON_IsString(text)) {
        cJSON_Delete(o);
        return CLI_SAID_NONSENSE;
    }
    *ret = (struct cli_line){.unix_ms = cli_number(o, "unix_ms", 0),
                             .rank = cli_number(o, "rank", -1),
                             .is_error = strcmp(cli_text(o, "stream"), "stderr") == 0,
                             .host = cli_text(o, "host"),
                             .text = text->valuestring};
    *ret_tree = o;
    return CLI_SAID_LINE;
}

int cli_end_status(const struct cli_end *end)
{
    if (end->exit_status >= 0)
        return (int)(end->exit_status & 255);
    return strcmp(end->state, "done") == 0 ? 0 : 1;
}

/* --- which were shown --- */

struct source {
    char *host;
    int64_t rank;
    int64_t last_ms;
    uint32_t last_count; /* Lines shown of that millisecond. */
    uint32_t again;      /* Lines of it that came again. */
    bool is_error;
    bool caught_up; /* Since the restart: a new line was seen. */
};

struct cli_seen {
    const struct mu_mem *mem;
    struct source *sources; /* Sorted. */
    size_t count;
    size_t cap;
};

struct cli_seen *cli_seen_new(const struct mu_mem *mem)
{
    struct cli_seen *s = mu_zalloc(mem, sizeof *s);
    if (s != NULL)
        s->mem = mem;
    return s;
}

void cli_seen_free(struct cli_seen *s)
{
    if (s == NULL)
        return;
    for (size_t i = 0; i < s->count; i++)
        mu_mem_free(s->mem, s->sources[i].host);
    mu_mem_free(s->mem, s->sources);
    mu_mem_free(s->mem, s);
}

void cli_seen_restart(struct cli_seen *s)
{
    for (size_t i = 0; i < s->count; i++) {
        s->sources[i].caught_up = false;
        s->sources[i].again = 0;
    }
}

static int compare(const struct source *a, const struct cli_line *line)
{
    if (a->rank != line->rank)
        return a->rank < line->rank ? -1 : 1;
    if (a->is_error != line->is_error)
        return a->is_error ? 1 : -1;
    return strcmp(a->host, line->host);
}

/* The place of that source, or where it belongs. */
static size_t place_of(const struct cli_seen *s, const struct cli_line *line)
{
    size_t low = 0;
    size_t high = s->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (compare(&s->sources[middle], line) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void add_source(struct cli_seen *s, size_t at, const struct cli_line *line)
{
    if (s->count == s->cap) {
        size_t cap = s->cap > 0 ? 2 * s->cap : 16;
        struct source *grown = mu_realloc(s->mem, s->sources, cap * sizeof *grown);
        if (grown == NULL)
            return;
        s->sources = grown;
        s->cap = cap;
    }
    char *host = mu_strdup(s->mem, line->host);
    if (host == NULL)
        return;
    memmove(&s->sources[at + 1], &s->sources[at], (s->count - at) * sizeof s->sources[0]);
    s->sources[at] = (struct source){.host = host,
                                     .rank = line->rank,
                                     .is_error = line->is_error,
                                     .last_ms = line->unix_ms,
                                     .last_count = 1,
                                     .caught_up = true};
    s->count++;
}

bool cli_seen_is_new(struct cli_seen *s, const struct cli_line *line)
{
    size_t at = place_of(s, line);
    if (at == s->count || compare(&s->sources[at], line) != 0) {
        add_source(s, at, line);
        return true;
    }
    struct source *src = &s->sources[at];
    if (!src->caught_up) {
        if (line->unix_ms < src->last_ms)
            return false;
        if (line->unix_ms == src->last_ms && src->again < src->last_count) {
            src->again++;
            return false;
        }
        src->caught_up = true;
    }
    src->last_count = line->unix_ms == src->last_ms ? src->last_count + 1 : 1;
    src->last_ms = line->unix_ms;
    return true;
}

int64_t cli_seen_since_ms(const struct cli_seen *s)
{
    int64_t ms = -1;
    for (size_t i = 0; i < s->count; i++)
        ms = ms < 0 || s->sources[i].last_ms < ms ? s->sources[i].last_ms : ms;
    return ms;
}

/* --- drawing --- */

void cli_line_draw(struct mu_buf *out,
                   const struct cli_line *line,
                   const struct cli_line_style *style)
{
    static const char *const codes[] = {"36", "33", "32", "35", "34", "31"};
    bool of_worker = line->rank >= 0;
    if (style->colour)
        (void)mu_buf_addf(out, "\033[%sm",
                          of_worker ? codes[(uint64_t)line->rank % MU_COUNT(codes)] : "2");
    (void)mu_buf_adds(out, "[");
    if (of_worker)
        (void)mu_buf_addf(out, "%" PRId64, line->rank);
    else
        cli_add_plain(out, line->host);
    (void)mu_buf_adds(out, style->colour ? "]\033[0m " : "] ");
    if (style->terminal)
        cli_add_clean_line(out, line->text);
    else
        (void)mu_buf_adds(out, line->text);
    (void)mu_buf_adds(out, "\n");
}
