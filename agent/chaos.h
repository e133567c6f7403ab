/* Faults by rule: what --chaos says, and when which fault is due. Off unless somebody asks for it.
 *
 * Pure: (now, event) in, actions out. agent/inject.c carries them out on real processes. Faults and
 * their words are rows of two tables in chaos.c, from which the parser's sentences and the part of
 * docs/faults.md come. */
#ifndef MUSTER_AGENT_CHAOS_H
#define MUSTER_AGENT_CHAOS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"

#define CHAOS_RULES_MAX 16 /* More than a person keeps apart. */

/* RANDOM is a rule, no fault: it chooses among those that its `of` names. */
#define CHAOS_FAULTS(X) X(KILL) X(FREEZE) X(STOP_AGENT) X(KILL_AGENT) X(CUT) X(FILL_DISK) X(RANDOM)
#define X(f) CHAOS_##f,
enum chaos_fault {
    CHAOS_FAULTS(X) CHAOS_FAULT_COUNT
};
#undef X

/* Conditions that were not given are -1. */
struct chaos_rule {
    enum chaos_fault fault;
    struct mu_str text; /* As typed; borrowed from what was parsed. */
    int64_t rank;
    int64_t node; /* The node's rank in the round. */
    int64_t step;
    int64_t round;
    int64_t restart; /* Restarts spent before the round. */
    int64_t after_ns;
    int64_t for_ns;
    int64_t every_ns;
    int64_t times;   /* 0: without end. */
    int64_t rate_mn; /* RANDOM: thousandths of a fault a minute. */
    uint64_t seed;
    uint32_t of; /* RANDOM: faults, a bit each. */
};

struct chaos_rules {
    uint32_t count;
    struct chaos_rule rules[CHAOS_RULES_MAX];
};

/* Rules separated by ';'. `what` names where they come from ("--chaos"); `seed` is that of random
 * rules that give none. Returns 0, or -EINVAL with one sentence that names the word and what would
 * be right. */
int chaos_parse(
    const char *text, uint64_t seed, const char *what, struct chaos_rules *ret, struct mu_err *err);

/* ROUND    workers of a round were started here       STEP  one of them has reported this step
 * ENDED    nothing of the round is left               DEADLINE  the shell's timer */
enum chaos_event_type {
    CHAOS_EV_ROUND,
    CHAOS_EV_STEP,
    CHAOS_EV_ENDED,
    CHAOS_EV_DEADLINE
};

struct chaos_event {
    enum chaos_event_type type;
    int64_t round; /* ROUND, all of these */
    int64_t restarts;
    uint32_t node;
    uint32_t rank_base;
    uint32_t nproc;
    uint32_t local_rank; /* STEP */
    int64_t step;
};

/* THAW, HEAL and EMPTY_DISK undo what was done before. */
#define CHAOS_ACTS(X)                                                                              \
    X(KILL)                                                                                        \
    X(FREEZE)                                                                                      \
    X(THAW)                                                                                        \
    X(STOP_AGENT)                                                                                  \
    X(KILL_AGENT)                                                                                  \
    X(CUT)                                                                                         \
    X(HEAL)                                                                                        \
    X(FILL_DISK)                                                                                   \
    X(EMPTY_DISK)
#define X(a) CHAOS_ACT_##a,
enum chaos_act {
    CHAOS_ACTS(X) CHAOS_ACT_COUNT
};
#undef X

struct chaos_action {
    enum chaos_act act;
    uint32_t rule;
    uint32_t local_rank; /* KILL, FREEZE, THAW */
    int64_t for_ns;      /* STOP_AGENT; and of the others for words. */
};

struct chaos_out {
    uint32_t count;
    struct chaos_action actions[2 * CHAOS_RULES_MAX];
};

struct chaos_rule_state {
    int64_t due_ns;   /* INT64_MAX: not. */
    int64_t until_ns; /* When what it did is undone; INT64_MAX: nothing to undo. */
    enum chaos_fault done;
    uint32_t local_rank;
    int64_t fired;
    uint64_t random;
};

struct chaos {
    const struct chaos_rules *rules;
    struct chaos_rule_state states[CHAOS_RULES_MAX];
    struct chaos_event round; /* The live one. */
    bool running;
    int64_t deadline_ns; /* INT64_MAX: no timer wanted. */
};

/* `rules` is borrowed. */
void chaos_init(struct chaos *c, const struct chaos_rules *rules);
void chaos_step(struct chaos *c,
                int64_t now_ns,
                const struct chaos_event *ev,
                struct chaos_out *out);

const char *chaos_fault_name(enum chaos_fault f);
void chaos_describe(struct mu_buf *out); /* Both tables, for docs/faults.md. */

#endif
