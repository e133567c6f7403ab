#include "launcher/doctor/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/words.h"

#define NAMES_SHOWN 4   /* Of a group, in one line. */
#define MATRIX_NODES 12 /* Wider ones fit on no screen. */
#define SLOWEST_SHOWN 8
#define WHO_WIDTH 18
#define CHECK_WIDTH 17

/* --- groups: what is the same of several nodes stands in one line --- */

static bool belongs(const struct doc_finding *a, const struct doc_finding *b)
{
    if (a->level != b->level || a->check != b->check || (a->peer < 0) != (b->peer < 0))
        return false;
    return a->level == DOC_OK ||
           (strcmp(a->said.seen, b->said.seen) == 0 && strcmp(a->said.remedy, b->said.remedy) == 0);
}

static void add_who(struct mu_buf *b, const struct doc_case *c, const struct doc_finding *f)
{
    char name[DOC_NAME_BYTES];
    cli_add_plain(b, doc_node_name(c, f->node, name));
    if (f->peer >= 0) {
        (void)mu_buf_adds(b, " -> ");
        cli_add_plain(b, doc_node_name(c, f->peer, name));
    }
}

static void add_group_names(struct mu_buf *b,
                            const struct doc_case *c,
                            const struct doc_findings *f,
                            size_t at,
                            uint32_t count)
{
    const struct doc_finding *first = &f->v[at];
    uint32_t pairs = c->count * (c->count - 1);
    if (first->node >= 0 && count > 1 && count == (first->peer < 0 ? c->count : pairs)) {
        (void)mu_buf_addf(b, "all %u %s", count, first->peer < 0 ? "nodes" : "pairs");
        return;
    }
    uint32_t shown = 0;
    for (size_t i = at; i < f->count && shown < NAMES_SHOWN; i++) {
        if (!belongs(first, &f->v[i]))
            continue;
        (void)mu_buf_adds(b, shown++ > 0 ? ", " : "");
        add_who(b, c, &f->v[i]);
    }
    if (count > shown)
        (void)mu_buf_addf(b, " and %u more", count - shown);
}

/* How many of them there are from `at` on. 0: one before `at` was the first, and has shown it. */
static uint32_t group_size(const struct doc_findings *f, size_t at, bool *ret_differs)
{
    uint32_t n = 0;
    *ret_differs = false;
    for (size_t i = at;
         i > 0 && f->v[i - 1].level == f->v[at].level && f->v[i - 1].check == f->v[at].check; i--)
        if (belongs(&f->v[at], &f->v[i - 1]))
            return 0;
    for (size_t i = at;
         i < f->count && f->v[i].level == f->v[at].level && f->v[i].check == f->v[at].check; i++) {
        if (!belongs(&f->v[at], &f->v[i]))
            continue;
        n++;
        *ret_differs = *ret_differs || strcmp(f->v[i].said.seen, f->v[at].said.seen) != 0;
    }
    return n;
}

static void pad(struct mu_buf *b, size_t from, size_t width)
{
    size_t n = b->n - from;
    (void)mu_buf_addf(b, "%*s", (int)(n < width ? width - n : 0), "");
    (void)mu_buf_adds(b, "  ");
}

static void add_level(struct mu_buf *b, enum doc_level level, bool coloured)
{
    static const char *const colours[] = {[DOC_OK] = "\033[32m",
                                          [DOC_UNKNOWN] = "",
                                          [DOC_WARN] = "\033[33m",
                                          [DOC_FAIL] = "\033[31m"};
    bool tinted = coloured && colours[level][0] != '\0';
    (void)mu_buf_addf(b, "%s%-7s%s  ", tinted ? colours[level] : "", doc_level_name(level),
                      tinted ? "\033[0m" : "");
}

static void add_line(struct mu_buf *b,
                     const struct doc_case *c,
                     const struct doc_findings *f,
                     size_t at,
                     bool coloured)
{
    const struct doc_finding *one = &f->v[at];
    bool differs = false;
    uint32_t count = group_size(f, at, &differs);
    if (count == 0)
        return;
    add_level(b, one->level, coloured);
    size_t from = b->n;
    add_group_names(b, c, f, at, count);
    pad(b, from, WHO_WIDTH);
    from = b->n;
    (void)mu_buf_adds(b, one->check->name);
    pad(b, from, CHECK_WIDTH);
    cli_add_plain(b, differs ? one->check->expected : one->said.seen);
    (void)mu_buf_adds(b, "\n");
    if (one->level < DOC_WARN)
        return;
    (void)mu_buf_addf(b, "         expected: %s\n         remedy:   ", one->check->expected);
    cli_add_plain(b, one->said.remedy);
    (void)mu_buf_adds(b, "\n");
}

/* --- links --- */

struct doc_link {
    uint32_t from;
    uint32_t to;
    double bytes_per_s;
    double latency_us;
};

static bool link_of(const struct doc_case *c, uint32_t from, uint32_t to, struct doc_link *ret)
{
    const cJSON *l = cJSON_GetObjectItemCaseSensitive(doc_look_at(c, from, to), "link");
    *ret = (struct doc_link){.from = from, .to = to};
    return from != to && l != NULL && doc_num(l, "bytes_per_s", &ret->bytes_per_s, NULL) &&
           doc_num(l, "latency_us", &ret->latency_us, NULL);
}

static void add_cell(struct mu_buf *b, const struct doc_case *c, uint32_t from, uint32_t to)
{
    struct doc_link l;
    char cell[48];
    if (from == to)
        (void)snprintf(cell, sizeof cell, "-");
    else if (!link_of(c, from, to, &l))
        (void)snprintf(cell, sizeof cell, "?");
    else
        (void)snprintf(cell, sizeof cell, "%.*f / %.0f", l.bytes_per_s < 1.25e8 ? 2 : 1,
                       l.bytes_per_s * 8 / 1e9, l.latency_us);
    (void)mu_buf_addf(b, "  %14s", cell);
}

static void add_matrix(struct mu_buf *b, const struct doc_case *c)
{
    char name[DOC_NAME_BYTES];
    (void)mu_buf_adds(b, "\nLinks, from the row's node to the column's: Gbit/s / microseconds\n");
    (void)mu_buf_addf(b, "%-14s", "");
    for (uint32_t k = 0; k < c->count; k++)
        (void)mu_buf_addf(b, "  %14.14s", doc_node_name(c, (int32_t)k, name));
    (void)mu_buf_adds(b, "\n");
    for (uint32_t i = 0; i < c->count; i++) {
        (void)mu_buf_addf(b, "%-14.14s", doc_node_name(c, (int32_t)i, name));
        for (uint32_t k = 0; k < c->count; k++)
            add_cell(b, c, i, k);
        (void)mu_buf_adds(b, "\n");
    }
}

/* The slowest of many, by insertion. */
static void add_slowest(struct mu_buf *b, const struct doc_case *c)
{
    struct doc_link v[SLOWEST_SHOWN];
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->count; i++)
        for (uint32_t k = 0; k < c->count; k++) {
            struct doc_link l;
            if (!link_of(c, i, k, &l))
                continue;
            uint32_t at = n < SLOWEST_SHOWN ? n : SLOWEST_SHOWN;
            while (at > 0 && v[at - 1].bytes_per_s > l.bytes_per_s) {
                if (at < SLOWEST_SHOWN)
                    v[at] = v[at - 1];
                at--;
            }
            if (at < SLOWEST_SHOWN)
                v[at] = l;
            n += n < SLOWEST_SHOWN;
        }
    (void)mu_buf_adds(b, n > 0 ? "\nThe slowest links (--json has all):\n" : "");
    for (uint32_t i = 0; i < n; i++) {
        char name[DOC_NAME_BYTES];
        char rate[DOC_BYTES_TEXT];
        cli_add_plain(b, doc_node_name(c, (int32_t)v[i].from, name));
        (void)mu_buf_adds(b, " -> ");
        cli_add_plain(b, doc_node_name(c, (int32_t)v[i].to, name));
        (void)mu_buf_addf(b, ": %s, %.0f microseconds\n", doc_rate(v[i].bytes_per_s, rate),
                          v[i].latency_us);
    }
}

static bool has_links(const struct doc_case *c)
{
    struct doc_link l;
    for (uint32_t i = 0; !c->local && i < c->count; i++)
        for (uint32_t k = 0; k < c->count; k++)
            if (link_of(c, i, k, &l))
                return true;
    return false;
}

/* --- the three forms --- */

void doc_report_counts(struct mu_buf *b, const struct doc_findings *f)
{
    uint32_t n[DOC_LEVEL_COUNT] = {0};
    bool any = false;
    for (size_t i = 0; i < f->count; i++)
        n[f->v[i].level]++;
    for (int level = DOC_FAIL; level > DOC_OK; level--) {
        if (n[level] == 0)
            continue;
        (void)mu_buf_addf(b, "%s%u %s", any ? ", " : "", n[level],
                          doc_level_name((enum doc_level)level));
        any = true;
    }
    (void)mu_buf_addf(b, "%s%u ok", any ? ", " : "all well, ", n[DOC_OK]);
}

void doc_report_table(struct mu_buf *b,
                      const struct doc_case *c,
                      const struct doc_findings *f,
                      bool coloured)
{
    char name[DOC_NAME_BYTES];
    if (c->local) {
        (void)mu_buf_adds(b, "muster doctor, ");
        cli_add_plain(b, doc_node_name(c, 0, name));
        (void)mu_buf_adds(b, " alone: ");
    } else
        (void)mu_buf_addf(b, "muster doctor, %u node%s: ", c->count, c->count == 1 ? "" : "s");
    doc_report_counts(b, f);
    (void)mu_buf_adds(b, "\n\n");
    for (size_t i = 0; i < f->count; i++)
        add_line(b, c, f, i, coloured);
    if (!has_links(c))
        return;
    if (c->count <= MATRIX_NODES)
        add_matrix(b, c);
    else
        add_slowest(b, c);
}

static void add_findings(cJSON *to, const struct doc_case *c, const struct doc_findings *f)
{
    char name[DOC_NAME_BYTES];
    cJSON *list = cJSON_AddArrayToObject(to, "findings");
    for (size_t i = 0; i < f->count; i++) {
        const struct doc_finding *one = &f->v[i];
        cJSON *o = cJSON_CreateObject();
        (void)cJSON_AddStringToObject(o, "level", doc_level_name(one->level));
        (void)cJSON_AddStringToObject(o, "check", one->check->name);
        if (one->node >= 0)
            (void)cJSON_AddStringToObject(o, "node", doc_node_name(c, one->node, name));
        else
            (void)cJSON_AddNullToObject(o, "node");
        if (one->peer >= 0)
            (void)cJSON_AddStringToObject(o, "peer", doc_node_name(c, one->peer, name));
        else
            (void)cJSON_AddNullToObject(o, "peer");
        (void)cJSON_AddStringToObject(o, "expected", one->check->expected);
        (void)cJSON_AddStringToObject(o, "seen", one->said.seen);
        if (one->said.remedy[0] != '\0')
            (void)cJSON_AddStringToObject(o, "remedy", one->said.remedy);
        else
            (void)cJSON_AddNullToObject(o, "remedy");
        (void)cJSON_AddItemToArray(list, o);
    }
}

static void add_nodes(cJSON *to, const struct doc_case *c)
{
    char name[DOC_NAME_BYTES];
    cJSON *list = cJSON_AddArrayToObject(to, "nodes");
    for (uint32_t i = 0; i < c->count; i++) {
        cJSON *o = cJSON_CreateObject();
        (void)cJSON_AddStringToObject(o, "name", doc_node_name(c, (int32_t)i, name));
        (void)cJSON_AddNumberToObject(o, "rank", i);
        cJSON *facts = c->nodes[i] != NULL ? cJSON_Duplicate(c->nodes[i], 1) : cJSON_CreateNull();
        cJSON_DeleteItemFromObject(facts, "nonce"); /* By them the nodes knew each other. */
        cJSON_DeleteItemFromObject(facts, "answer");
        (void)cJSON_AddItemToObject(o, "facts", facts);
        (void)cJSON_AddItemToArray(list, o);
    }
}

static void add_links(cJSON *to, const struct doc_case *c)
{
    char name[DOC_NAME_BYTES];
    cJSON *list = cJSON_AddArrayToObject(to, "pairs");
    for (uint32_t i = 0; !c->local && i < c->count; i++)
        for (uint32_t k = 0; k < c->count; k++) {
            const cJSON *look = i != k ? doc_look_at(c, i, k) : NULL;
            if (look == NULL)
                continue;
            cJSON *o = cJSON_CreateObject();
            (void)cJSON_AddStringToObject(o, "from", doc_node_name(c, (int32_t)i, name));
            (void)cJSON_AddStringToObject(o, "to", doc_node_name(c, (int32_t)k, name));
            (void)cJSON_AddItemToObject(o, "facts", cJSON_Duplicate(look, 1));
            (void)cJSON_AddItemToArray(list, o);
        }
}

void doc_report_json(struct mu_buf *b, const struct doc_case *c, const struct doc_findings *f)
{
    cJSON *all = cJSON_CreateObject();
    (void)cJSON_AddStringToObject(all, "verdict", doc_level_name(doc_worst(f)));
    add_findings(all, c, f);
    add_nodes(all, c);
    add_links(all, c);
    char *text = cJSON_PrintUnformatted(all);
    if (text != NULL)
        (void)mu_buf_addf(b, "%s\n", text);
    else
        b->oom = true;
    cJSON_free(text);
    cJSON_Delete(all);
}

static bool is_of_server(const struct doc_finding *f)
{
    return strncmp(f->check->name, "server's ", 9) == 0;
}

void doc_report_brief(struct mu_buf *b, const struct doc_findings *f)
{
    const struct doc_finding *worst = NULL;
    for (size_t i = 0; i < f->count && worst == NULL; i++)
        if (f->v[i].level == DOC_FAIL || (f->v[i].level == DOC_WARN && is_of_server(&f->v[i])))
            worst = &f->v[i];
    if (worst != NULL) {
        cli_add_plain(b, worst->said.seen);
        (void)mu_buf_adds(b, "; ");
        cli_add_plain(b, worst->said.remedy);
    } else {
        (void)mu_buf_adds(b, "nothing wrong here");
        for (size_t i = 0; i < f->count; i++)
            if (strcmp(f->v[i].check->name, "server's port") == 0) {
                (void)mu_buf_adds(b, f->v[i].level == DOC_OK ? ": " : "; ");
                cli_add_plain(b, f->v[i].said.seen);
            }
    }
    (void)mu_buf_adds(b, "\n");
}
