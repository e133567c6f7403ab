/* Facts in, findings out: what is well, and what is not, with what was expected, what was seen and
 * what helps. Nothing is taken for bad that could not be looked at. Pure. */
#ifndef MUSTER_LAUNCHER_DOCTOR_JUDGE_H
#define MUSTER_LAUNCHER_DOCTOR_JUDGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"
#include "launcher/doctor/facts.h"

/* In the order of how bad they are. */
enum doc_level {
    DOC_OK,
    DOC_UNKNOWN,
    DOC_WARN,
    DOC_FAIL,
    DOC_LEVEL_COUNT
};
const char *doc_level_name(enum doc_level level); /* "ok", "unknown", "warn", "FAIL" */

struct doc_check {
    const char *name;
    const char *expected;
    const char *remedy;
};

struct doc_finding {
    enum doc_level level;
    const struct doc_check *check;
    uint32_t order; /* Of the check: what else may come of it stands behind it. */
    int32_t node;   /* Index; -1: of all nodes together. */
    int32_t peer;   /* Of a pair: what `node` saw of it; else -1. */
    struct doc_said said;
};

struct doc_case {
    const cJSON *const *nodes; /* `count` of them; NULL: it never said anything. */
    const cJSON *const *looks; /* What node i saw of the others: a list; NULL: it did not say. */
    const char *const *stage;  /* Where a node that did not say was last; NULL: not known. */
    uint32_t count;
    bool local; /* One machine by itself: nobody else is missed. */
};

struct doc_findings {
    struct doc_finding *v;
    size_t count;
    size_t capacity;
    bool oom;
};

/* All checks; the worst first, then in the order of checks, by node and peer. doc_findings_fini()
 * in any case. */
void doc_judge(const struct doc_case *c, struct doc_findings *out);
void doc_findings_fini(struct doc_findings *f);
enum doc_level doc_worst(const struct doc_findings *f);

/* For people and sorting: "n1", or "n1 (rank 0)" where several nodes have that name. Returns buf.
 */
#define DOC_NAME_BYTES 160
const char *doc_node_name(const struct doc_case *c, int32_t node, char *buf);

/* Whom node `me` of `count` looks at in round `round` of doc_rounds(count): in a round everybody
 * has one peer, in all rounds each pair meets once. -1: nobody. */
uint32_t doc_rounds(uint32_t count);
int32_t doc_peer(uint32_t count, uint32_t round, uint32_t me);

/* What node `from` found when it looked at `to`; NULL: nothing. */
const cJSON *doc_look_at(const struct doc_case *c, uint32_t from, uint32_t to);

/* --- the tables, each in a file of its own --- */

typedef enum doc_level doc_node_fn(const cJSON *node, struct doc_said *s);
struct doc_node_row {
    struct doc_check check;
    doc_node_fn *judge;
};
extern const struct doc_node_row doc_node_rows[];
extern const size_t doc_node_row_count;

struct doc_typical {
    double bytes_per_s; /* The median; 0: not known. */
    uint32_t pairs;
};
struct doc_pair {
    const cJSON *a;
    const cJSON *b;
    const cJSON *look;                 /* What `a` saw of `b`. */
    const struct doc_typical *typical; /* Of all pairs. */
};
typedef enum doc_level doc_pair_fn(const struct doc_pair *p, struct doc_said *s);
struct doc_pair_row {
    struct doc_check check;
    doc_pair_fn *judge;
};
extern const struct doc_pair_row doc_pair_rows[];
extern const size_t doc_pair_row_count;

/* Things that should be the same everywhere. */
void doc_judge_same(const struct doc_case *c, struct doc_findings *out);

/* For the tables: add one. */
void doc_add(struct doc_findings *out,
             enum doc_level level,
             const struct doc_check *check,
             int32_t node,
             int32_t peer,
             const struct doc_said *said);

#endif
