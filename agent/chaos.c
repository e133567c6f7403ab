/* Rules of faults and when they are due; see chaos.h. A rule that applies to the round is armed
 * when its workers start, or when its step is reported, and fires `after` later. */
#include "agent/chaos.h"

#include <errno.h>
#include <string.h>

#include "base/check.h"
#include "base/limits.h"
#include "base/parse.h"

#define NEVER INT64_MAX
#define NS_PER_S INT64_C(1000000000)
#define DAY_NS (INT64_C(86400) * NS_PER_S)
#define RANDOM_FOR_NS (2 * NS_PER_S) /* Below the lease of 3 s. */

enum word {
    W_RANK,
    W_NODE,
    W_STEP,
    W_ROUND,
    W_RESTART,
    W_AFTER,
    W_FOR,
    W_EVERY,
    W_TIMES,
    W_RATE,
    W_SEED,
    W_OF,
    W_COUNT
};
#define BIT(w) (1U << (w))
#define WHEN                                                                                       \
    (BIT(W_NODE) | BIT(W_STEP) | BIT(W_ROUND) | BIT(W_RESTART) | BIT(W_AFTER) | BIT(W_EVERY) |     \
     BIT(W_TIMES))

struct fault_row {
    const char *name;
    unsigned allowed;
    unsigned required;
    enum chaos_act act;
    enum chaos_act undo; /* Where the rule has a `for`. */
    const char *doc;
};

/* clang-format off */
static const struct fault_row faults[CHAOS_FAULT_COUNT] = {
    [CHAOS_KILL] = {"kill", WHEN | BIT(W_RANK), BIT(W_RANK), CHAOS_ACT_KILL, CHAOS_ACT_KILL,
        "SIGKILL to the worker of that rank."},
    [CHAOS_FREEZE] = {"freeze", WHEN | BIT(W_RANK) | BIT(W_FOR), BIT(W_RANK) | BIT(W_FOR), CHAOS_ACT_FREEZE, CHAOS_ACT_THAW,
        "SIGSTOP to the worker of that rank, and SIGCONT so much later."},
    [CHAOS_STOP_AGENT] = {"stop-agent", WHEN | BIT(W_FOR), BIT(W_FOR), CHAOS_ACT_STOP_AGENT, CHAOS_ACT_STOP_AGENT,
        "The agent does nothing for so long, its connections open, as if it were stopped or its machine stood still. Workers run on."},
    [CHAOS_KILL_AGENT] = {"kill-agent", WHEN, 0, CHAOS_ACT_KILL_AGENT, CHAOS_ACT_KILL_AGENT,
        "SIGKILL to the agent itself. Its warden ends the workers."},
    [CHAOS_CUT] = {"cut", WHEN | BIT(W_FOR), BIT(W_FOR), CHAOS_ACT_CUT, CHAOS_ACT_HEAL,
        "The connection to the server is reset, and no other is made for so long. Workers' own connections stay."},
    [CHAOS_FILL_DISK] = {"fill-disk", WHEN | BIT(W_FOR), BIT(W_FOR), CHAOS_ACT_FILL_DISK, CHAOS_ACT_EMPTY_DISK,
        "The file system of the log folder is filled by a file without a name, which is gone when the agent is. Only where it is neither the root's nor "
        "$HOME's nor $TMPDIR's, and has at most 1 GiB free."},
    [CHAOS_RANDOM] = {"random", BIT(W_NODE) | BIT(W_ROUND) | BIT(W_RESTART) | BIT(W_FOR) | BIT(W_TIMES) | BIT(W_RATE) | BIT(W_SEED) | BIT(W_OF),
        BIT(W_RATE), CHAOS_ACT_COUNT, CHAOS_ACT_COUNT,
        "One of the faults of `of`, on a worker of this node where it needs one, again and again while workers run. The same seed, round and node give the same faults at "
        "the same times; the seed is printed."},
};

enum kind { NUMBER, SPAN, RATE, LIST };
static const struct {
    const char *name;
    enum kind kind;
    const char *shown;
    const char *doc;
} words[W_COUNT] = {
    [W_RANK] = {"rank", NUMBER, "N", "The worker, by its rank in the job. Only the agent that has it acts."},
    [W_NODE] = {"node", NUMBER, "N", "Only on the node with this rank. Default: every node that has the rule."},
    [W_STEP] = {"step", NUMBER, "N", "When that worker, or any of this node where the fault is no worker's, reports this step or a later one (muster_progress)."},
    [W_ROUND] = {"round", NUMBER, "N", "Only in this round; the first one is 1."},
    [W_RESTART] = {"restart", NUMBER, "N", "Only in rounds before which so many restarts were spent (TORCHELASTIC_RESTART_COUNT)."},
    [W_AFTER] = {"after", SPAN, "TIME", "So long after the workers' start, or after the step. Default: at once."},
    [W_FOR] = {"for", SPAN, "TIME", "How long it lasts. With random: 2s unless given."},
    [W_EVERY] = {"every", SPAN, "TIME", "Again so long after the last time, while workers run."},
    [W_TIMES] = {"times", NUMBER, "N", "At most so often in the agent's life; 0: without end. Default: 1; with every and random without end."},
    [W_RATE] = {"rate", RATE, "N", "Faults a minute on this node, in the mean; 0.5 is one in two minutes."},
    [W_SEED] = {"seed", NUMBER, "N", "Of random. Default: a new one."},
    [W_OF] = {"of", LIST, "FAULT,...", "What random chooses from. Default: kill,freeze,stop-agent,cut."},
};
/* clang-format on */

_Static_assert(CHAOS_RANDOM == CHAOS_FAULT_COUNT - 1, "`of` names those before it");

const char *chaos_fault_name(enum chaos_fault f)
{
    return faults[f].name;
}

/* ------------------------------------------------------------------ reading */

struct reader {
    const char *what;
    struct mu_str rule;
    uint64_t seed;
    struct chaos_rule *r;
    unsigned given;
    struct mu_err *err;
};

#define SHOWN 96

/* "a, b or c" of the words of a fault. */
static void list_words(char *dst, size_t cap, unsigned set)
{
    size_t used = 0;
    unsigned left = set;
    dst[0] = '\0';
    for (unsigned i = 0; i < W_COUNT; i++) {
        if ((set & BIT(i)) == 0)
            continue;
        left &= ~BIT(i);
        for (const char *p = words[i].name; *p != '\0' && used + 3 < cap; p++)
            dst[used++] = *p;
        for (const char *p = left != 0 ? ", " : ""; *p != '\0' && used + 1 < cap; p++)
            dst[used++] = *p;
        dst[used] = '\0';
    }
}

/* False: it is empty, or has no room. */
static bool to_text(struct mu_str value, char *dst, size_t cap)
{
    if (value.n == 0 || value.n >= cap)
        return false;
    memcpy(dst, value.p, value.n);
    dst[value.n] = '\0';
    return true;
}

static int bad_span(const struct reader *rd, const char *name, struct mu_str value)
{
    char shown[SHOWN];
    return mu_err_set(rd->err, -EINVAL,
                      "%s: %s=%s is no time up to a day: write 5s, 200ms, 2m or 1h", rd->what, name,
                      mu_quote(shown, sizeof shown, value));
}

/* 5s, 0.5s, 200ms, 2m, 1h; without a unit seconds. */
static int
read_span(const struct reader *rd, const char *name, struct mu_str value, int64_t *ret_ns)
{
    char text[24];
    int64_t unit_ns = NS_PER_S;
    size_t n = value.n;
    int64_t ns = 0;
    if (n > 2 && memcmp(value.p + n - 2, "ms", 2) == 0) {
        unit_ns = NS_PER_S / 1000;
        n -= 2;
    } else if (n > 1 && strchr("smh", value.p[n - 1]) != NULL) {
        char unit = value.p[--n];
        unit_ns = (unit == 'h' ? 3600 : unit == 'm' ? 60 : 1) * NS_PER_S;
    }
    if (!to_text(mu_str_of(value.p, n), text, sizeof text))
        return bad_span(rd, name, value);
    int64_t units = unit_ns >= NS_PER_S ? unit_ns / NS_PER_S : 1;
    if (mu_parse_seconds(text, 0, DAY_NS / units, name, &ns, NULL) < 0)
        return bad_span(rd, name, value);
    *ret_ns = unit_ns < NS_PER_S ? ns / 1000 : ns * units;
    return 0;
}

static int read_number(const struct reader *rd, const char *name, struct mu_str value, int64_t *ret)
{
    char text[24];
    char shown[SHOWN];
    if (!to_text(value, text, sizeof text) ||
        mu_parse_i64(text, 0, INT64_MAX / 2, name, ret, NULL) < 0)
        return mu_err_set(rd->err, -EINVAL, "%s: %s=%s is no whole number from 0 on", rd->what,
                          name, mu_quote(shown, sizeof shown, value));
    return 0;
}

static int find_fault(struct mu_str name)
{
    for (int i = 0; i < CHAOS_FAULT_COUNT; i++)
        if (mu_str_eq(name, mu_str_of(faults[i].name, strlen(faults[i].name))))
            return i;
    return -1;
}

static int read_of(const struct reader *rd, struct mu_str value)
{
    char shown[SHOWN];
    rd->r->of = 0;
    for (size_t at = 0; at <= value.n;) {
        const char *comma = memchr(value.p + at, ',', value.n - at);
        size_t n = comma != NULL ? (size_t)(comma - value.p) - at : value.n - at;
        struct mu_str one = mu_str_of(value.p + at, n);
        int fault = find_fault(one);
        if (fault < 0 || fault == CHAOS_RANDOM)
            return mu_err_set(rd->err, -EINVAL,
                              "%s: of=%s is no fault to choose from: write some of kill, freeze, "
                              "stop-agent, kill-agent, cut, fill-disk, with commas",
                              rd->what, mu_quote(shown, sizeof shown, one));
        rd->r->of |= BIT(fault);
        at += n + 1;
    }
    return 0;
}

static int read_rate(const struct reader *rd, struct mu_str value)
{
    char text[24];
    char shown[SHOWN];
    int64_t ns = 0;
    if (!to_text(value, text, sizeof text) ||
        mu_parse_seconds(text, NS_PER_S / 1000, 6000 * NS_PER_S, "rate", &ns, NULL) < 0)
        return mu_err_set(rd->err, -EINVAL,
                          "%s: rate=%s is no number of faults a minute from 0.001 to 6000",
                          rd->what, mu_quote(shown, sizeof shown, value));
    rd->r->rate_mn = ns / (NS_PER_S / 1000);
    return 0;
}

static int set_word(struct reader *rd, enum word w, struct mu_str value)
{
    struct chaos_rule *r = rd->r;
    int64_t seed = 0;
    int64_t *const numbers[W_COUNT] = {
        [W_RANK] = &r->rank,   [W_NODE] = &r->node,       [W_STEP] = &r->step,
        [W_ROUND] = &r->round, [W_RESTART] = &r->restart, [W_AFTER] = &r->after_ns,
        [W_FOR] = &r->for_ns,  [W_EVERY] = &r->every_ns,  [W_TIMES] = &r->times,
        [W_SEED] = &seed};
    int ret = 0;
    switch (words[w].kind) {
    case NUMBER:
        ret = read_number(rd, words[w].name, value, numbers[w]);
        break;
    case SPAN:
        ret = read_span(rd, words[w].name, value, numbers[w]);
        if (ret == 0 && (w == W_EVERY || w == W_FOR) && *numbers[w] == 0)
            ret = mu_err_set(rd->err, -EINVAL, "%s: %s=0 makes no sense: write a time, as in 5s",
                             rd->what, words[w].name);
        break;
    case RATE:
        return read_rate(rd, value);
    case LIST:
        return read_of(rd, value);
    }
    if (ret == 0 && w == W_SEED)
        r->seed = (uint64_t)seed;
    return ret;
}

static int read_word(struct reader *rd, struct mu_str word)
{
    char shown[SHOWN];
    char allowed[160];
    const struct fault_row *row = &faults[rd->r->fault];
    const char *equals = memchr(word.p, '=', word.n);
    size_t n = equals != NULL ? (size_t)(equals - word.p) : word.n;
    list_words(allowed, sizeof allowed, row->allowed);
    for (unsigned w = 0; w < W_COUNT; w++) {
        if ((row->allowed & BIT(w)) == 0 ||
            !mu_str_eq(mu_str_of(word.p, n), mu_str_of(words[w].name, strlen(words[w].name))))
            continue;
        if (equals == NULL)
            return mu_err_set(rd->err, -EINVAL, "%s: '%s' of %s lacks its value: write %s=%s",
                              rd->what, words[w].name, row->name, words[w].name, words[w].shown);
        if ((rd->given & BIT(w)) != 0)
            return mu_err_set(rd->err, -EINVAL,
                              "%s: %s stands twice in one rule of %s: write it once", rd->what,
                              words[w].name, row->name);
        rd->given |= BIT(w);
        return set_word(rd, (enum word)w, mu_str_of(equals + 1, word.n - n - 1));
    }
    return mu_err_set(rd->err, -EINVAL, "%s: %s is no word of %s: it knows %s", rd->what,
                      mu_quote(shown, sizeof shown, word), row->name, allowed);
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n';
}

/* The next word of the rule; n = 0: none. */
static struct mu_str next_word(struct mu_str s, size_t *at)
{
    while (*at < s.n && is_blank(s.p[*at]))
        (*at)++;
    size_t begin = *at;
    while (*at < s.n && !is_blank(s.p[*at]))
        (*at)++;
    return mu_str_of(s.p + begin, *at - begin);
}

static int read_fault(struct reader *rd, struct mu_str name)
{
    char shown[SHOWN];
    int fault = find_fault(name);
    if (fault < 0)
        return mu_err_set(rd->err, -EINVAL,
                          "%s: %s is no fault: a rule begins with kill, freeze, stop-agent, "
                          "kill-agent, cut, fill-disk or random",
                          rd->what, mu_quote(shown, sizeof shown, name));
    *rd->r = (struct chaos_rule){.fault = (enum chaos_fault)fault,
                                 .text = rd->rule,
                                 .rank = -1,
                                 .node = -1,
                                 .step = -1,
                                 .round = -1,
                                 .restart = -1,
                                 .times = -1,
                                 .seed = rd->seed,
                                 .of = BIT(CHAOS_KILL) | BIT(CHAOS_FREEZE) | BIT(CHAOS_STOP_AGENT) |
                                       BIT(CHAOS_CUT)};
    return 0;
}

static int read_rule(struct reader *rd)
{
    char missing[64];
    size_t at = 0;
    int ret = read_fault(rd, next_word(rd->rule, &at));
    rd->given = 0;
    for (struct mu_str w = next_word(rd->rule, &at); ret == 0 && w.n > 0;
         w = next_word(rd->rule, &at))
        ret = read_word(rd, w);
    if (ret < 0)
        return ret;
    struct chaos_rule *r = rd->r;
    unsigned lacks = faults[r->fault].required & ~rd->given;
    list_words(missing, sizeof missing, lacks);
    if (lacks != 0)
        return mu_err_set(rd->err, -EINVAL, "%s: %s lacks %s=: see docs/faults.md", rd->what,
                          faults[r->fault].name, missing);
    if (r->times < 0)
        r->times = r->every_ns > 0 || r->fault == CHAOS_RANDOM ? 0 : 1;
    if (r->fault == CHAOS_RANDOM && r->for_ns == 0)
        r->for_ns = RANDOM_FOR_NS;
    return 0;
}

static struct mu_str trimmed(const char *p, size_t n)
{
    while (n > 0 && is_blank(*p)) {
        p++;
        n--;
    }
    while (n > 0 && is_blank(p[n - 1]))
        n--;
    return mu_str_of(p, n);
}

int chaos_parse(
    const char *text, uint64_t seed, const char *what, struct chaos_rules *ret, struct mu_err *err)
{
    struct reader rd = {.what = what, .seed = seed, .err = err};
    ret->count = 0;
    for (const char *p = text;;) {
        size_t n = strcspn(p, ";");
        rd.rule = trimmed(p, n);
        if (rd.rule.n > 0 && ret->count == CHAOS_RULES_MAX)
            return mu_err_set(err, -EINVAL, "%s: more than %d rules", what, CHAOS_RULES_MAX);
        rd.r = &ret->rules[ret->count];
        int r = rd.rule.n > 0 ? read_rule(&rd) : 0;
        if (r < 0)
            return r;
        ret->count += rd.rule.n > 0;
        p += n;
        if (*p == '\0')
            return 0;
        p++;
    }
}

/* ------------------------------------------------------------------ deciding */

void chaos_init(struct chaos *c, const struct chaos_rules *rules)
{
    *c = (struct chaos){.rules = rules, .deadline_ns = NEVER};
    for (uint32_t i = 0; i < CHAOS_RULES_MAX; i++)
        c->states[i].due_ns = c->states[i].until_ns = NEVER;
}

/* splitmix64: a good one after any seed, and short. */
static uint64_t draw(struct chaos_rule_state *s)
{
    uint64_t z = s->random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* Evenly up to twice the mean: as good as any for breaking things. */
static int64_t random_wait(const struct chaos_rule *r, struct chaos_rule_state *s)
{
    int64_t twice_ns = 2 * 60 * NS_PER_S / r->rate_mn * 1000;
    return (int64_t)(draw(s) % (uint64_t)(twice_ns + 1));
}

static bool is_ours(const struct chaos *c, int64_t rank)
{
    return rank < 0 || (rank >= c->round.rank_base && rank - c->round.rank_base < c->round.nproc);
}

static bool applies(const struct chaos *c, const struct chaos_rule *r)
{
    return is_ours(c, r->rank) && (r->node < 0 || r->node == c->round.node) &&
           (r->round < 0 || r->round == c->round.round) &&
           (r->restart < 0 || r->restart == c->round.restarts);
}

static bool is_spent(const struct chaos_rule *r, const struct chaos_rule_state *s)
{
    return r->times > 0 && s->fired >= r->times;
}

static void arm(struct chaos *c, uint32_t i, int64_t now_ns)
{
    const struct chaos_rule *r = &c->rules->rules[i];
    struct chaos_rule_state *s = &c->states[i];
    if (is_spent(r, s) || !applies(c, r))
        return;
    if (r->fault == CHAOS_RANDOM) {
        s->random = r->seed ^ (uint64_t)c->round.round << 32 ^ (uint64_t)c->round.node << 16 ^ i;
        s->due_ns = now_ns + random_wait(r, s);
    } else if (r->step < 0) {
        s->due_ns = now_ns + r->after_ns;
    }
}

static void begin(struct chaos *c, int64_t now_ns, const struct chaos_event *ev)
{
    c->round = *ev;
    c->running = true;
    for (uint32_t i = 0; i < c->rules->count; i++) {
        c->states[i].due_ns = NEVER;
        arm(c, i, now_ns);
    }
}

static void note_step(struct chaos *c, int64_t now_ns, const struct chaos_event *ev)
{
    for (uint32_t i = 0; c->running && i < c->rules->count; i++) {
        const struct chaos_rule *r = &c->rules->rules[i];
        struct chaos_rule_state *s = &c->states[i];
        bool its = r->rank < 0 || r->rank == (int64_t)c->round.rank_base + ev->local_rank;
        if (r->step < 0 || ev->step < r->step || !its || s->due_ns != NEVER || is_spent(r, s) ||
            !applies(c, r))
            continue;
        s->due_ns = now_ns + r->after_ns;
    }
}

static void end(struct chaos *c)
{
    c->running = false;
    for (uint32_t i = 0; i < c->rules->count; i++) {
        struct chaos_rule_state *s = &c->states[i];
        s->due_ns = NEVER;
        if (s->until_ns != NEVER && s->done == CHAOS_FREEZE) /* It is gone. */
            s->until_ns = NEVER;
    }
}

static void
put(struct chaos_out *out, enum chaos_act act, uint32_t rule, uint32_t local_rank, int64_t for_ns)
{
    MU_ASSERT(out->count < MU_COUNT(out->actions));
    out->actions[out->count++] =
        (struct chaos_action){.act = act, .rule = rule, .local_rank = local_rank, .for_ns = for_ns};
}

/* Another rule still wants what this one did. */
static bool is_held_by_another(const struct chaos *c, uint32_t i)
{
    for (uint32_t k = 0; k < c->rules->count; k++)
        if (k != i && c->states[k].until_ns != NEVER && c->states[k].done == c->states[i].done &&
            (c->states[i].done != CHAOS_FREEZE ||
             c->states[k].local_rank == c->states[i].local_rank))
            return true;
    return false;
}

static void undo(struct chaos *c, uint32_t i, struct chaos_out *out)
{
    struct chaos_rule_state *s = &c->states[i];
    if (!is_held_by_another(c, i))
        put(out, faults[s->done].undo, i, s->local_rank, 0);
    s->until_ns = NEVER;
}

/* Which fault, and on whom. */
static enum chaos_fault choose(struct chaos *c, uint32_t i)
{
    const struct chaos_rule *r = &c->rules->rules[i];
    struct chaos_rule_state *s = &c->states[i];
    if (r->fault != CHAOS_RANDOM) {
        s->local_rank = r->rank >= 0 ? (uint32_t)(r->rank - c->round.rank_base) : 0;
        return r->fault;
    }
    uint32_t count = 0;
    for (unsigned f = 0; f < CHAOS_RANDOM; f++)
        count += (r->of & BIT(f)) != 0;
    uint64_t nth = draw(s) % count;
    s->local_rank = (uint32_t)(draw(s) % c->round.nproc);
    unsigned f = 0;
    for (;; f++)
        if ((r->of & BIT(f)) != 0 && nth-- == 0)
            return (enum chaos_fault)f;
}

static void fire(struct chaos *c, uint32_t i, int64_t now_ns, struct chaos_out *out)
{
    const struct chaos_rule *r = &c->rules->rules[i];
    struct chaos_rule_state *s = &c->states[i];
    if (s->until_ns != NEVER) { /* It has not ended yet. */
        s->due_ns = s->until_ns;
        return;
    }
    s->done = choose(c, i);
    const struct fault_row *row = &faults[s->done];
    bool lasts = (row->allowed & BIT(W_FOR)) != 0;
    put(out, row->act, i, s->local_rank, lasts ? r->for_ns : 0);
    s->fired++;
    if (row->undo != row->act)
        s->until_ns = now_ns + r->for_ns;
    s->due_ns = NEVER;
    if (is_spent(r, s))
        return;
    if (r->fault == CHAOS_RANDOM)
        s->due_ns = now_ns + random_wait(r, s);
    else if (r->every_ns > 0)
        s->due_ns = now_ns + (lasts ? r->for_ns : 0) + r->every_ns;
}

void chaos_step(struct chaos *c,
                int64_t now_ns,
                const struct chaos_event *ev,
                struct chaos_out *out)
{
    out->count = 0;
    switch (ev->type) {
    case CHAOS_EV_ROUND:
        begin(c, now_ns, ev);
        break;
    case CHAOS_EV_STEP:
        note_step(c, now_ns, ev);
        break;
    case CHAOS_EV_ENDED:
        end(c);
        break;
    case CHAOS_EV_DEADLINE:
        break;
    }
    c->deadline_ns = NEVER;
    for (uint32_t i = 0; i < c->rules->count; i++) {
        struct chaos_rule_state *s = &c->states[i];
        if (s->until_ns <= now_ns)
            undo(c, i, out);
        if (s->due_ns <= now_ns)
            fire(c, i, now_ns, out);
        if (s->until_ns < c->deadline_ns)
            c->deadline_ns = s->until_ns;
        if (s->due_ns < c->deadline_ns)
            c->deadline_ns = s->due_ns;
    }
}

/* ------------------------------------------------------------------ the page */

void chaos_describe(struct mu_buf *out)
{
    (void)mu_buf_adds(out, "| fault | what happens | words it needs | words it knows |\n"
                           "|---|---|---|---|\n");
    for (unsigned f = 0; f < CHAOS_FAULT_COUNT; f++) {
        char needs[96];
        char knows[160];
        list_words(needs, sizeof needs, faults[f].required);
        list_words(knows, sizeof knows, faults[f].allowed & ~faults[f].required);
        (void)mu_buf_addf(out, "| `%s` | %s | %s | %s |\n", faults[f].name, faults[f].doc, needs,
                          knows);
    }
    (void)mu_buf_adds(out, "\n| word | meaning |\n|---|---|\n");
    for (unsigned w = 0; w < W_COUNT; w++)
        (void)mu_buf_addf(out, "| `%s=%s` | %s |\n", words[w].name, words[w].shown, words[w].doc);
}
