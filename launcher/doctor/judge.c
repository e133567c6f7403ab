#include "launcher/doctor/judge.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static const struct doc_check took_part = {
    "took part", "every node answers to the end",
    "see to that node: is it up, what do its node-agent and its kernel's log say?"};

const char *doc_level_name(enum doc_level level)
{
    static const char *const names[] = {
        [DOC_OK] = "ok", [DOC_UNKNOWN] = "unknown", [DOC_WARN] = "warn", [DOC_FAIL] = "FAIL"};
    MU_ASSERT((size_t)level < MU_COUNT(names));
    return names[level];
}

/* Who is there, then pairs, then what each is like, then what should be the same. */
static uint32_t order_of(const struct doc_check *check)
{
    uint32_t at = 0;
    if (check == &took_part)
        return at;
    for (size_t i = 0; i < doc_pair_row_count; i++)
        if (++at > 0 && check == &doc_pair_rows[i].check)
            return at;
    for (size_t i = 0; i < doc_node_row_count; i++)
        if (++at > 0 && check == &doc_node_rows[i].check)
            return at;
    return at + 1;
}

void doc_add(struct doc_findings *out,
             enum doc_level level,
             const struct doc_check *check,
             int32_t node,
             int32_t peer,
             const struct doc_said *said)
{
    if (out->count == out->capacity) {
        size_t capacity = out->capacity == 0 ? 64 : out->capacity * 2;
        struct doc_finding *v = mu_realloc(mu_mem_default(), out->v, capacity * sizeof *v);
        if (v == NULL) {
            out->oom = true;
            return;
        }
        out->v = v;
        out->capacity = capacity;
    }
    struct doc_finding *f = &out->v[out->count++];
    *f = (struct doc_finding){.level = level,
                              .check = check,
                              .order = order_of(check),
                              .node = node,
                              .peer = peer,
                              .said = *said};
    if (level == DOC_OK || level == DOC_UNKNOWN)
        f->said.remedy[0] = '\0';
    else if (f->said.remedy[0] == '\0')
        (void)snprintf(f->said.remedy, sizeof f->said.remedy, "%s", check->remedy);
}

void doc_findings_fini(struct doc_findings *f)
{
    mu_mem_free(mu_mem_default(), f->v);
    *f = (struct doc_findings){0};
}

static int by_weight(const void *pa, const void *pb)
{
    const struct doc_finding *a = pa;
    const struct doc_finding *b = pb;
    if (a->level != b->level)
        return a->level > b->level ? -1 : 1;
    if (a->order != b->order)
        return a->order < b->order ? -1 : 1;
    int c = strcmp(a->check->name, b->check->name);
    if (c != 0)
        return c;
    if (a->node != b->node)
        return a->node < b->node ? -1 : 1;
    return a->peer < b->peer ? -1 : a->peer > b->peer;
}

enum doc_level doc_worst(const struct doc_findings *f)
{
    return f->count > 0 ? f->v[0].level : DOC_OK;
}

static const char *host_of(const struct doc_case *c, uint32_t i)
{
    const char *host = "";
    return c->nodes[i] != NULL && doc_text(c->nodes[i], "host", &host, NULL) ? host : "";
}

const char *doc_node_name(const struct doc_case *c, int32_t node, char *buf)
{
    if (node < 0) {
        (void)snprintf(buf, DOC_NAME_BYTES, "all nodes");
        return buf;
    }
    const char *host = host_of(c, (uint32_t)node);
    bool alone = true;
    for (uint32_t i = 0; i < c->count; i++)
        alone = alone && (i == (uint32_t)node || strcmp(host, host_of(c, i)) != 0);
    if (host[0] == '\0')
        (void)snprintf(buf, DOC_NAME_BYTES, "rank %d", (int)node);
    else if (alone)
        (void)snprintf(buf, DOC_NAME_BYTES, "%.100s", host);
    else
        (void)snprintf(buf, DOC_NAME_BYTES, "%.100s (rank %d)", host, (int)node);
    for (char *p = buf; *p != '\0'; p++) /* Another machine said it, and a terminal shows it. */
        if (*p < ' ' || *p == 0x7f)
            *p = '?';
    return buf;
}

uint32_t doc_rounds(uint32_t count)
{
    return count < 2 ? 0 : count % 2 == 0 ? count - 1 : count;
}

/* The circle method: one stands still, the others go round; with an odd count nobody stands there.
 */
int32_t doc_peer(uint32_t count, uint32_t round, uint32_t me)
{
    uint32_t seats = count % 2 == 0 ? count : count + 1;
    uint32_t ring = seats - 1;
    uint32_t still = ring;
    uint32_t peer = 0;
    if (count < 2 || me >= count)
        return -1;
    if (me == still) /* Who sits opposite has 2x == round (mod ring). */
        peer = round % 2 == 0 ? round / 2 : (round + ring) / 2;
    else
        peer = (round + 2 * ring - me) % ring;
    if (peer == me)
        peer = still;
    return peer < count ? (int32_t)peer : -1;
}

const cJSON *doc_look_at(const struct doc_case *c, uint32_t from, uint32_t to)
{
    const cJSON *look = NULL;
    cJSON_ArrayForEach(look, c->looks[from])
    {
        double at = -1;
        if (doc_num(look, "to", &at, NULL) && at == (double)to)
            return look;
    }
    return NULL;
}

static int by_size(const void *pa, const void *pb)
{
    const double a = *(const double *)pa;
    const double b = *(const double *)pb;
    return a < b ? -1 : a > b;
}

/* The median of what all pairs on different machines carry. */
static struct doc_typical typical_of(const struct doc_case *c)
{
    struct doc_typical t = {0};
    size_t most = (size_t)c->count * c->count;
    double *v = mu_alloc(mu_mem_default(), (most + 1) * sizeof *v);
    for (uint32_t i = 0; v != NULL && i < c->count; i++)
        for (uint32_t k = 0; k < c->count; k++) {
            const cJSON *look = i != k ? doc_look_at(c, i, k) : NULL;
            const cJSON *link = cJSON_GetObjectItemCaseSensitive(look, "link");
            if (look != NULL && !doc_is(look, "same_machine") &&
                doc_num(link, "bytes_per_s", &v[t.pairs], NULL))
                t.pairs++;
        }
    if (t.pairs > 0) {
        qsort(v, t.pairs, sizeof *v, by_size);
        t.bytes_per_s = v[t.pairs / 2];
    }
    mu_mem_free(mu_mem_default(), v);
    return t;
}

static void judge_presence(const struct doc_case *c, uint32_t i, struct doc_findings *out)
{
    struct doc_said s = {{0}, {0}};
    if (c->nodes[i] == NULL) {
        doc_see(&s, "it never said what it is");
        doc_add(out, DOC_FAIL, &took_part, (int32_t)i, -1, &s);
        return;
    }
    if (c->looks[i] == NULL) {
        doc_see(&s, "it came, and fell silent %s",
                c->stage[i] != NULL ? c->stage[i] : "before it looked at anybody");
        doc_add(out, DOC_FAIL, &took_part, (int32_t)i, -1, &s);
        return;
    }
    doc_see(&s, "it did");
    doc_add(out, DOC_OK, &took_part, (int32_t)i, -1, &s);
}

static void judge_node(const struct doc_case *c, uint32_t i, struct doc_findings *out)
{
    if (!c->local)
        judge_presence(c, i, out);
    for (size_t k = 0; c->nodes[i] != NULL && k < doc_node_row_count; k++) {
        struct doc_said s = {{0}, {0}};
        enum doc_level level = doc_node_rows[k].judge(c->nodes[i], &s);
        if (s.seen[0] != '\0') /* Else there is nothing here to be checked. */
            doc_add(out, level, &doc_node_rows[k].check, (int32_t)i, -1, &s);
    }
}

static void judge_pair(const struct doc_case *c,
                       uint32_t a,
                       uint32_t b,
                       const struct doc_typical *typical,
                       struct doc_findings *out)
{
    const struct doc_pair pair = {c->nodes[a], c->nodes[b], doc_look_at(c, a, b), typical};
    if (pair.a == NULL || pair.b == NULL || c->looks[a] == NULL)
        return; /* Said of the node, once. */
    for (size_t k = 0; k < doc_pair_row_count; k++) {
        struct doc_said s = {{0}, {0}};
        enum doc_level level = DOC_UNKNOWN;
        const char *why = NULL;
        if (pair.look == NULL)
            doc_see(&s, "it did not come to that");
        else if (doc_text(pair.look, "skipped", &why, NULL))
            doc_see(&s, "%s", why);
        else
            level = doc_pair_rows[k].judge(&pair, &s);
        if (s.seen[0] != '\0')
            doc_add(out, level, &doc_pair_rows[k].check, (int32_t)a, (int32_t)b, &s);
        if (pair.look == NULL || why != NULL)
            return; /* One line says it. */
    }
}

void doc_judge(const struct doc_case *c, struct doc_findings *out)
{
    *out = (struct doc_findings){0};
    for (uint32_t i = 0; i < c->count; i++)
        judge_node(c, i, out);
    if (!c->local) {
        struct doc_typical typical = typical_of(c);
        for (uint32_t a = 0; a < c->count; a++)
            for (uint32_t b = 0; b < c->count; b++)
                if (a != b)
                    judge_pair(c, a, b, &typical, out);
        doc_judge_same(c, out);
    }
    if (out->count > 0)
        qsort(out->v, out->count, sizeof *out->v, by_weight);
}
