#include "launcher/incidents.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "launcher/answer.h"
#include "launcher/words.h"

/* Both together and all else fit on a screen; --json has them whole. */
#define OUTPUT_LINES 20
#define TRACE_LINES 30

static const char *sentence_of(const cJSON *incident)
{
    const char *text = cli_text(cli_object(incident, "cause"), "sentence");
    return text[0] != '\0' ? text : cli_text(incident, "reason");
}

/* --- times --- */

/* Milliseconds of a phase; -1: not known. */
static int64_t phase_ms(const cJSON *incident, const char *name)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(
        cJSON_GetObjectItemCaseSensitive(incident, "phases_s"), name);
    return cJSON_IsNumber(v) && v->valuedouble >= 0 && v->valuedouble < 9e12
               ? (int64_t)(v->valuedouble * 1000 + 0.5)
               : -1;
}

/* From the decision until workers ran again, as far as it is known. */
static int64_t took_ms(const cJSON *incident)
{
    static const char *const parts[] = {"stopping", "rendezvous", "spawn"};
    int64_t sum = -1;
    for (size_t i = 0; i < MU_COUNT(parts); i++) {
        int64_t ms = phase_ms(incident, parts[i]);
        if (ms < 0)
            break;
        sum = sum < 0 ? ms : sum + ms;
    }
    return sum;
}

static void add_ms(struct mu_buf *b, int64_t ms)
{
    if (ms < 10000)
        (void)mu_buf_addf(b, "%" PRId64 ".%03d s", ms / 1000, (int)(ms % 1000));
    else
        cli_add_duration(b, ms);
}

/* --- the list --- */

static void
add_row(struct cli_table *t, const struct mu_mem *mem, const cJSON *answer, const cJSON *in)
{
    const char *decision = cli_text(in, "decision");
    bool bad = strcmp(decision, "succeed") != 0 && strcmp(decision, "regroup") != 0;
    struct mu_buf b;
    mu_buf_init(&b, mem);
    int64_t ms = took_ms(in);
    if (ms >= 0)
        add_ms(&b, ms);
    cli_cell(t, CLI_BOLD, cli_text(answer, "id"));
    cli_cellf(t, CLI_PLAIN, "%" PRId64, cli_number(in, "number", 0));
    cli_cellf(t, CLI_PLAIN, "%" PRId64, cli_number(in, "round", 0));
    cli_cell(t, CLI_PLAIN, cli_text(in, "decided_at"));
    cli_cell(t,
             strcmp(decision, "succeed") == 0 ? CLI_GREEN
             : bad                            ? CLI_RED
                                              : CLI_YELLOW,
             decision);
    cli_cell(t, CLI_PLAIN, ms >= 0 ? mu_buf_cstr(&b) : "-");
    cli_cell(t, CLI_PLAIN, sentence_of(in));
    mu_buf_fini(&b);
}

void cli_page_incidents(struct mu_buf *out, const cJSON *answers, const struct cli_style *style)
{
    static const char *const heads[] = {"JOB", "N", "ROUND", "WHEN", "DECISION", "TOOK", "WHAT"};
    struct mu_buf b;
    const cJSON *answer = NULL;
    const cJSON *in = NULL;
    int64_t rows = 0;
    int64_t left_out = 0;
    struct cli_table *t = cli_table_new(out->mem, heads, MU_COUNT(heads));
    mu_buf_init(&b, out->mem);
    if (t != NULL)
        cJSON_ArrayForEach(answer, answers)
        {
            left_out += cli_number(answer, "left_out", 0);
            cJSON_ArrayForEach(in, cli_list(answer, "incidents"))
            {
                add_row(t, out->mem, answer, in);
                rows++;
            }
        }
    if (t != NULL && rows > 0)
        cli_table_draw(t, style, 0, &b);
    else
        (void)mu_buf_adds(&b, "no round has ended yet\n");
    if (left_out > 0)
        (void)mu_buf_addf(&b, "%" PRId64 " earlier ones are not kept any more\n", left_out);
    cli_add_cut(out, style, mu_buf_cstr(&b));
    out->oom = out->oom || b.oom || t == NULL;
    mu_buf_fini(&b);
    cli_table_free(t);
}

/* --- one --- */

static void add_line(struct mu_buf *b, const char *mark, const char *text, size_t n)
{
    struct mu_buf line;
    mu_buf_init(&line, b->mem);
    (void)mu_buf_add(&line, text, n);
    (void)mu_buf_adds(b, mark);
    cli_add_plain(b, mu_buf_cstr(&line));
    (void)mu_buf_adds(b, "\n");
    mu_buf_fini(&line);
}

static void add_heading(struct mu_buf *b, const char *text, int64_t hidden)
{
    (void)mu_buf_addf(b, "\n%s", text);
    if (hidden > 0)
        (void)mu_buf_addf(b, " (%" PRId64 " more before them: --json)", hidden);
    (void)mu_buf_adds(b, ":\n");
}

static void add_output(struct mu_buf *b, const cJSON *incident)
{
    const cJSON *lines = cli_list(incident, "last_lines");
    const cJSON *line = NULL;
    int64_t count = cJSON_GetArraySize(lines);
    int64_t at = 0;
    int64_t hidden = count > OUTPUT_LINES ? count - OUTPUT_LINES : 0;
    if (count == 0)
        return;
    add_heading(b, "its last lines", hidden);
    cJSON_ArrayForEach(line, lines)
    {
        if (at++ >= hidden && cJSON_IsString(line))
            add_line(b, "    | ", line->valuestring, strlen(line->valuestring));
    }
}

static void add_trace(struct mu_buf *b, const cJSON *incident)
{
    const char *text = cli_text(incident, "trace");
    int64_t count = 0;
    if (text[0] == '\0')
        return;
    for (const char *p = text; *p != '\0'; p += strcspn(p, "\n"), p += *p == '\n')
        count++;
    int64_t hidden = count > TRACE_LINES ? count - TRACE_LINES : 0;
    add_heading(b, "where it failed", hidden);
    for (int64_t at = 0; *text != '\0'; at++) {
        size_t n = strcspn(text, "\n");
        if (at >= hidden)
            add_line(b, "    | ", text, n);
        text += n + (text[n] == '\n');
    }
}

static void add_consequences(struct mu_buf *b, const cJSON *incident)
{
    const cJSON *other = NULL;
    const cJSON *list = cli_list(incident, "consequences");
    int64_t more = cli_number(incident, "consequences_left_out", 0);
    if (cJSON_GetArraySize(list) == 0 && more == 0)
        return;
    (void)mu_buf_adds(b, "\nwhat failed after it:\n");
    cJSON_ArrayForEach(other, list)
    {
        const char *text = cli_text(other, "sentence");
        (void)mu_buf_adds(b, "    ");
        cli_add_plain(b, cli_text(other, "at"));
        (void)mu_buf_adds(b, "  ");
        add_line(b, "", text, strlen(text));
    }
    if (more > 0)
        (void)mu_buf_addf(b, "    and %" PRId64 " more\n", more);
}

static void add_phases(struct mu_buf *b, const cJSON *incident)
{
    static const struct {
        const char *name;
        const char *words;
    } phases[] = {
        {"running", "the round ran"},
        {"detect", "until the server had decided"},
        {"stop", "until the workers had ended"},
        {"reclaim", "until nothing of them was left"},
        {"rendezvous", "until the next round was started"},
        {"spawn", "until all its workers ran"},
        {"first_step", "until its first step was told of"},
    };
    (void)mu_buf_adds(b, "\nhow long it took:\n");
    for (size_t i = 0; i < MU_COUNT(phases); i++) {
        int64_t ms = phase_ms(incident, phases[i].name);
        if (ms < 0)
            continue;
        (void)mu_buf_addf(b, "    %-34s", phases[i].words);
        add_ms(b, ms);
        (void)mu_buf_adds(b, "\n");
    }
}

void cli_page_incident(struct mu_buf *out,
                       const cJSON *answer,
                       const cJSON *incident,
                       const struct cli_style *style)
{
    const cJSON *cause = cli_object(incident, "cause");
    struct mu_buf b;
    mu_buf_init(&b, out->mem);
    cli_add_coloured(&b, style, CLI_BOLD, cli_text(answer, "id"));
    (void)mu_buf_addf(&b, ": incident %" PRId64 ", the end of round %" PRId64 " (",
                      cli_number(incident, "number", 0), cli_number(incident, "round", 0));
    cli_add_count(&b, cli_number(incident, "nodes", 0), "node");
    (void)mu_buf_adds(&b, ", ");
    cli_add_count(&b, cli_number(incident, "world", 0), "worker");
    (void)mu_buf_adds(&b, ") at ");
    cli_add_plain(&b, cli_text(incident, "decided_at"));
    (void)mu_buf_adds(&b, "\n");
    if (cause != NULL) {
        (void)mu_buf_adds(&b, "  first:    ");
        cli_add_coloured(&b, style, CLI_RED, cli_text(cause, "sentence"));
        (void)mu_buf_adds(&b, "\n  when:     ");
        cli_add_plain(&b, cli_text(cause, "at"));
        (void)mu_buf_adds(&b, " by the clock of its host\n");
    }
    (void)mu_buf_addf(&b, "  decided:  ");
    cli_add_plain(&b, cli_text(incident, "decision"));
    (void)mu_buf_adds(&b, ", ");
    cli_add_plain(&b, cli_text(incident, "reason"));
    (void)mu_buf_adds(&b, "\n");
    add_output(&b, incident);
    add_trace(&b, incident);
    add_consequences(&b, incident);
    add_phases(&b, incident);
    cli_add_cut(out, style, mu_buf_cstr(&b));
    out->oom = out->oom || b.oom;
    mu_buf_fini(&b);
}

const cJSON *cli_incident_find(const cJSON *answer, uint32_t number, struct mu_err *err)
{
    const cJSON *list = cli_list(answer, "incidents");
    const cJSON *in = NULL;
    int n = cJSON_GetArraySize(list);
    char shown[80];
    const char *id = cli_text(answer, "id");
    cJSON_ArrayForEach(in, list) if (cli_number(in, "number", 0) == number) return in;
    (void)mu_quote(shown, sizeof shown, mu_str_of(id, strlen(id)));
    if (n == 0)
        (void)mu_err_set(err, -ENOENT, "job %s has no incident %u: no round of it has ended yet",
                         shown, number);
    else
        (void)mu_err_set(err, -ENOENT,
                         "job %s has no incident %u; there are %" PRId64 " to %" PRId64
                         ": muster incidents lists them",
                         shown, number, cli_number(cJSON_GetArrayItem(list, 0), "number", 0),
                         cli_number(cJSON_GetArrayItem(list, n - 1), "number", 0));
    return NULL;
}
