/* What should be the same on every node: whoever differs from the most is named. Pure. */
#include "launcher/doctor/judge.h"

#include <stdio.h>
#include <string.h>

static const struct same_row {
    struct doc_check check;
    const char *key;
    enum doc_level level;
} rows[] = {
    /* clang-format off */
    {{"muster's version", "the same on every node", "install the same package everywhere"}, "muster", DOC_FAIL},
    {{"NCCL's version", "the same on every node", "use one container image or environment everywhere: NCCL refuses to work with another version"}, "nccl", DOC_FAIL},
    {{"GPU driver", "the same on every node", "install the same driver everywhere"}, "driver", DOC_WARN},
    {{"CUDA's version", "the same on every node", "install the same driver everywhere"}, "cuda", DOC_WARN},
    {{"GPU count", "the same on every node", "see nvidia-smi: has a GPU fallen off the bus? else give each node its own --nproc-per-node"}, "gpus", DOC_WARN},
    {{"GPU model", "the same on every node", "the slowest GPU sets the pace of all: leave the odd node out"}, "gpu_models", DOC_WARN},
    {{"MTU", "the same on every node", "ip link set dev ETH mtu N, the same everywhere and on the switch"}, "mtu", DOC_WARN},
    /* clang-format on */
};

static const struct doc_check own_names = {
    "names differ", "every machine has a host name of its own",
    "hostnamectl set-hostname: status and logs tell nodes apart by it"};

#define VALUE_BYTES 128

/* The fact as text; false: not known, or not there. */
static bool value_of(const struct doc_case *c, uint32_t i, const char *key, char *ret)
{
    const char *text = NULL;
    double n = 0;
    if (c->nodes[i] == NULL)
        return false;
    if (doc_text(c->nodes[i], key, &text, NULL))
        (void)snprintf(ret, VALUE_BYTES, "%s", text);
    else if (doc_num(c->nodes[i], key, &n, NULL))
        (void)snprintf(ret, VALUE_BYTES, "%.0f", n);
    else
        return false;
    return true;
}

static uint32_t count_of(const struct doc_case *c, const char *key, const char *value)
{
    char other[VALUE_BYTES];
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->count; i++)
        n += value_of(c, i, key, other) && strcmp(other, value) == 0;
    return n;
}

/* What most have; of as many, what the first node has. Returns how many. */
static uint32_t usual(const struct doc_case *c, const char *key, char *ret)
{
    char value[VALUE_BYTES];
    uint32_t most = 0;
    for (uint32_t i = 0; i < c->count; i++) {
        if (!value_of(c, i, key, value))
            continue;
        uint32_t n = count_of(c, key, value);
        if (n > most) {
            most = n;
            memcpy(ret, value, sizeof value);
        }
        if (most > c->count / 2)
            break;
    }
    return most;
}

static void
judge_row(const struct doc_case *c, const struct same_row *row, struct doc_findings *out)
{
    char most[VALUE_BYTES] = "";
    char value[VALUE_BYTES];
    bool differs = false;
    uint32_t n = usual(c, row->key, most);
    struct doc_said s = {{0}, {0}};
    if (n == 0)
        return; /* Nobody has any. */
    for (uint32_t i = 0; i < c->count; i++) {
        if (c->nodes[i] == NULL)
            continue;
        if (!value_of(c, i, row->key, value)) {
            enum doc_level level = DOC_UNKNOWN;
            const cJSON *v = cJSON_GetObjectItemCaseSensitive(c->nodes[i], row->key);
            if (v == NULL || cJSON_IsNull(v)) {
                doc_see(&s, "none, where %u nodes have %s", n, most);
                level = DOC_WARN;
            } else
                (void)doc_num(c->nodes[i], row->key, &(double){0}, &s);
            doc_add(out, level, &row->check, (int32_t)i, -1, &s);
            differs = true;
        } else if (strcmp(value, most) != 0) {
            doc_see(&s, "%s, where %s is %s on %u of %u nodes", value, row->check.name, most, n,
                    c->count);
            doc_add(out, row->level, &row->check, (int32_t)i, -1, &s);
            differs = true;
        }
    }
    if (differs)
        return;
    doc_see(&s, "%s everywhere", most);
    doc_add(out, DOC_OK, &row->check, -1, -1, &s);
}

/* Two machines of one name; workers that share one are no such thing. */
static void judge_names(const struct doc_case *c, struct doc_findings *out)
{
    for (uint32_t i = 0; i < c->count; i++) {
        const char *name = NULL;
        const char *machine = NULL;
        if (c->nodes[i] == NULL || !doc_text(c->nodes[i], "host", &name, NULL) ||
            !doc_text(c->nodes[i], "machine", &machine, NULL))
            continue;
        for (uint32_t k = 0; k < i; k++) {
            const char *other = "";
            const char *there = machine;
            if (c->nodes[k] == NULL || !doc_text(c->nodes[k], "host", &other, NULL) ||
                !doc_text(c->nodes[k], "machine", &there, NULL))
                continue;
            if (strcmp(other, name) != 0 || strcmp(there, machine) == 0)
                continue;
            struct doc_said s = {{0}, {0}};
            doc_see(&s, "rank %u, on another machine, is called %s too", k, name);
            doc_add(out, DOC_WARN, &own_names, (int32_t)i, -1, &s);
            break;
        }
    }
}

void doc_judge_same(const struct doc_case *c, struct doc_findings *out)
{
    for (size_t i = 0; i < MU_COUNT(rows); i++)
        judge_row(c, &rows[i], out);
    judge_names(c, out);
}
