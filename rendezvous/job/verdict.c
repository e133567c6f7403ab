/* The first cause of a round, kept; what comes after it is a consequence, or proves the better
 * cause. */
#include "rendezvous/job/internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Is the first cause of this very round known already? */
static bool knows_cause(const struct job *j)
{
    return j->has_cause && j->cause.round == j->round;
}

static void put_words(char *dst, size_t cap, const char *text)
{
    (void)snprintf(dst, cap, "%s", text != NULL ? text : ""); /* It came out of such a field. */
}

static void set_cause(struct job *j, const struct mu_cause *c, const struct job_words *words)
{
    static const struct job_words none;
    words = words != NULL ? words : &none;
    j->cause = *c;
    j->cause.round = j->round;
    if (j->cause.at_unix_ms == 0)
        j->cause.at_unix_ms = j->step_unix_ms;
    put_words(j->cause_output, sizeof j->cause_output, words->output);
    put_words(j->cause_tail, sizeof j->cause_tail, words->tail);
    put_words(j->cause_trace, sizeof j->cause_trace, words->trace);
}

void job_new_cause(struct job *j, const struct mu_cause *c, const struct job_words *words)
{
    if (j->state != JOB_GATHERING && knows_cause(j))
        return;
    set_cause(j, c, words);
    j->has_cause = true;
    j->consequences = 0;
}

struct mu_cause job_cause_of_node(enum mu_cause_kind kind, const struct job_node *n)
{
    struct mu_cause c = MU_CAUSE_INIT;
    c.kind = kind;
    c.node_rank = n->in_round ? n->node_rank : -1;
    (void)mu_strcopy(c.host, sizeof c.host, n->hello.host); /* It fits. */
    return c;
}

void job_node_cause(struct job *j, enum mu_cause_kind kind, const struct job_node *n)
{
    struct mu_cause c = job_cause_of_node(kind, n);
    job_new_cause(j, &c, NULL);
}

static bool had_rank(const struct job_node *n, int32_t rank)
{
    return n->ranked && rank >= n->rank_base && rank < n->rank_base + (int32_t)n->hello.nproc;
}

/* What a node says of its own is better than what others say of a rank there: its agent knows which
 * of its workers failed first, and its end was the end of all of them. */
static struct mu_cause as_of_rank(const struct job_node *n, const struct mu_cause *c, int32_t rank)
{
    struct mu_cause of_rank = *c;
    if (had_rank(n, rank))
        of_rank.rank = rank;
    return of_rank;
}

/* The restart that the former cause took is the better one's now, and given back where that takes
 * none. What was told to be final stays so: agents have acted upon it. */
static void supersede(struct job *j, const struct mu_cause *c, const struct job_words *words)
{
    set_cause(j, c, words);
    budget_reconsider(j);
    j->new_cause = true;
    job_explain_incident(j);
    job_keep(j);
    j->durable = true; /* Everybody is told anew. */
}

/* The member that told of this rank's failure; NULL: none has. */
static const struct job_node *teller_of(const struct job *j, int32_t rank)
{
    for (uint32_t r = 0; r < j->round_nodes; r++) {
        if (j->members[r] == JOB_NO_NODE)
            continue;
        const struct job_node *n = &j->nodes[j->members[r]];
        if (n->failure != NULL && as_of_rank(n, &n->failure->cause, rank).rank == rank)
            return n;
    }
    return NULL;
}

void job_tell_cause(struct job *j)
{
    for (uint32_t r = 0; r < j->round_nodes; r++)
        if (j->members[r] != JOB_NO_NODE && j->nodes[j->members[r]].in_round &&
            j->nodes[j->members[r]].state != JOB_NODE_LOST)
            job_send(j, j->members[r], CTL_STOP);
}

static size_t bytes_of(const char *text)
{
    return text != NULL ? strlen(text) + 1 : 0;
}

/* A copy at *at, which moves on. */
static const char *keep_text(char **at, const char *text)
{
    size_t n = bytes_of(text);
    if (n == 0)
        return NULL;
    char *kept = memcpy(*at, text, n);
    *at += n;
    return kept;
}

static void remember(struct job *j,
                     struct job_node *n,
                     const struct mu_cause *c,
                     const struct job_words *w,
                     bool at_once)
{
    if (n->failure != NULL && !mu_cause_is_better(c, &n->failure->cause, at_once))
        return;
    struct job_failure *f =
        mu_alloc(j->mem, sizeof *f + bytes_of(w->output) + bytes_of(w->tail) + bytes_of(w->trace));
    if (f == NULL)
        return; /* It counts now, and is not remembered. */
    char *at = f->text;
    f->cause = *c;
    f->words.output = keep_text(&at, w->output);
    f->words.tail = keep_text(&at, w->tail);
    f->words.trace = keep_text(&at, w->trace);
    roster_forget_failure(j, n);
    n->failure = f;
}

void job_add_words(struct job *j, const struct job_words *words)
{
    if (j->cause_output[0] == '\0')
        put_words(j->cause_output, sizeof j->cause_output, words->output);
    if (j->cause_tail[0] == '\0')
        put_words(j->cause_tail, sizeof j->cause_tail, words->tail);
    if (j->cause_trace[0] == '\0')
        put_words(j->cause_trace, sizeof j->cause_trace, words->trace);
    job_explain_incident(j);
}

static void weigh(struct job *j,
                  bool at_once,
                  struct job_node *teller,
                  const struct mu_cause *c,
                  const struct job_words *words)
{
    const struct job_node *n = teller;
    remember(j, teller, c, words, at_once);
    if (!knows_cause(j))
        return;
    if (j->budget.same_failure)
        return; /* It came twice, and everybody was told that it is the reason. */
    /* A better cause may name a rank whose failure is known already, which may name another. Only a
     * named rank's own counts: who was no better than the former cause is no better now. */
    const struct mu_cause *best = &j->cause;
    const struct job_words *best_words = NULL;
    for (uint32_t steps = 0; n != NULL; steps++) {
        struct mu_cause of_rank = as_of_rank(n, c, best->blame);
        if (!mu_cause_is_better(&of_rank, best, at_once))
            break;
        if (steps > j->round_nodes)
            return; /* They name each other in a circle: the first stays. */
        best = c;
        best_words = words;
        n = best->blame >= 0 ? teller_of(j, best->blame) : NULL;
        c = n != NULL ? &n->failure->cause : NULL;
        words = n != NULL ? &n->failure->words : NULL;
    }
    if (best != &j->cause)
        supersede(j, best, best_words);
}

void job_weigh_cause(struct job *j,
                     int64_t now_ns,
                     struct job_node *teller,
                     const struct mu_cause *c,
                     const struct job_words *words)
{
    weigh(j, now_ns - j->since_ns <= MU_SETTLE_NS, teller, c, words);
}

void job_weigh_own_end(struct job *j, struct job_node *teller, const struct mu_cause *c)
{
    static const struct job_words none;
    weigh(j, true, teller, c, &none);
}
