/* The restart budget: what a round's end costs, which restarts still count, when they are given
 * back, and which failure would only come again. */
#include "rendezvous/job/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const struct job_failed none_failed = {.kind = MU_CAUSE_NONE, .rank = -1, .step = -1};

void budget_begin_round(struct job *j)
{
    struct job_budget *b = &j->budget;
    b->ran_since_ns = NEVER;
    b->first_step = -1;
    b->proven = 0;
    b->given_back_here = 0;
    b->same_failure = false;
    j->was_charged = false;
}

void budget_reset(struct job *j)
{
    struct job_budget *b = &j->budget;
    j->restarts = 0;
    j->spent_by[0] = '\0';
    b->spent = 0;
    b->given_back = 0;
    b->failed = none_failed;
    budget_begin_round(j);
}

void budget_take_spec(struct job *j, const struct ctl_hello *h)
{
    struct job_budget *b = &j->budget;
    j->max_restarts = (uint32_t)h->max_restarts;
    b->window_ns = h->restart_window_ms * NS_PER_MS;
    b->give_back_ns = h->give_back_ms * NS_PER_MS;
    b->give_back_steps = (uint32_t)h->give_back_steps;
    b->same_failure_restart = h->same_failure_restart != 0;
}

void budget_recover(struct job *j, int64_t now_ns, const struct ctl_hello *h)
{
    struct job_budget *b = &j->budget;
    bool told = h->round_spent >= 0 && h->round_spent < h->round_restarts;
    int64_t spent = told ? h->round_spent : h->round_restarts;
    budget_reset(j);
    j->restarts = (uint32_t)h->round_restarts;
    b->spent = spent < j->max_restarts ? (uint32_t)spent : j->max_restarts;
    /* When they were spent nobody knows any more: as if just now. */
    for (uint32_t i = 0; b->window_ns > 0 && i < b->spent; i++)
        b->spent_at_ns[i] = now_ns;
}

/* --- who cost them: one entry each, as far as there is room --- */

static void drop_first_entry(struct job *j)
{
    const char *next = strstr(j->spent_by, ", ");
    size_t skip = next != NULL ? (size_t)(next - j->spent_by) + 2 : strlen(j->spent_by);
    memmove(j->spent_by, j->spent_by + skip, strlen(j->spent_by) + 1 - skip);
}

static void drop_last_entry(struct job *j)
{
    char *last = strrchr(j->spent_by, ',');
    *(last != NULL ? last : j->spent_by) = '\0';
}

static void add_entry(struct job *j)
{
    const struct mu_cause *c = &j->cause;
    char who[32] = "";
    char text[MU_HOST_BYTES + 64];
    if (c->rank >= 0)
        (void)snprintf(who, sizeof who, "rank %d on ", c->rank);
    int n = snprintf(text, sizeof text, "%s%.*s (round %u)", who, MU_HOST_BYTES, c->host, j->round);
    MU_ASSERT(n > 0 && (size_t)n < sizeof text);
    while (j->spent_by[0] != '\0' &&
           strlen(j->spent_by) + 2 + (size_t)n >= sizeof j->spent_by) /* The first make room. */
        drop_first_entry(j);
    size_t used = strlen(j->spent_by);
    (void)snprintf(j->spent_by + used, sizeof j->spent_by - used, "%s%s", used > 0 ? ", " : "",
                   text);
}

static uint32_t count_entries(const struct job *j)
{
    uint32_t n = j->spent_by[0] != '\0';
    for (const char *p = j->spent_by; (p = strstr(p, ", ")) != NULL; p += 2)
        n++;
    return n;
}

/* --- which count --- */

/* Of those in the list the first ones, which have left the window. */
static uint32_t expired(const struct job_budget *b, int64_t now_ns)
{
    uint32_t n = 0;
    while (b->window_ns > 0 && n < b->spent && now_ns - b->spent_at_ns[n] >= b->window_ns)
        n++;
    return n;
}

uint32_t job_spent(const struct job *j, int64_t now_ns)
{
    return j->budget.spent - expired(&j->budget, now_ns);
}

static void forget_expired(struct job *j)
{
    struct job_budget *b = &j->budget;
    uint32_t n = expired(b, j->step_now_ns);
    if (n == 0)
        return;
    b->spent -= n;
    memmove(b->spent_at_ns, b->spent_at_ns + n, b->spent * sizeof b->spent_at_ns[0]);
    for (uint32_t have = count_entries(j); have > b->spent; have--)
        drop_first_entry(j);
}

static void charge(struct job *j)
{
    struct job_budget *b = &j->budget;
    if (b->window_ns > 0) {
        MU_ASSERT(b->spent < MU_WINDOW_RESTARTS_MAX);
        b->spent_at_ns[b->spent] = j->step_now_ns;
    }
    b->spent++;
    j->restarts += j->restarts < MU_RESTARTS_MAX;
    j->was_charged = true;
    add_entry(j);
}

static void uncharge(struct job *j)
{
    j->budget.spent -= j->budget.spent > 0; /* A successor may find that it left the window. */
    j->restarts -= j->restarts > 0;
    j->was_charged = false;
    drop_last_entry(j);
}

/* --- given back --- */

static void give_back(struct job *j)
{
    struct job_budget *b = &j->budget;
    forget_expired(j);
    if (b->spent == 0)
        return;
    b->given_back += b->spent;
    b->given_back_here += b->spent;
    b->spent = 0;
    j->spent_by[0] = '\0';
    job_keep(j);
}

int64_t budget_due_ns(const struct job *j)
{
    const struct job_budget *b = &j->budget;
    if (b->give_back_ns == 0 || b->spent == 0 || b->ran_since_ns == NEVER)
        return NEVER;
    return b->ran_since_ns + b->give_back_ns;
}

void budget_look(struct job *j)
{
    const struct job_budget *b = &j->budget;
    bool far_enough = b->give_back_steps > 0 && j->round_nodes > 0 && b->proven == j->round_nodes;
    if (b->spent > 0 && (far_enough || j->step_now_ns >= budget_due_ns(j)))
        give_back(j);
}

void budget_note_running(struct job *j)
{
    if (j->budget.ran_since_ns == NEVER)
        j->budget.ran_since_ns = j->step_now_ns;
}

/* The rank that failed has come further than where it did: the failure was not bound to happen. */
static void note_further(struct job *j, const struct job_node *n)
{
    struct job_failed *f = &j->budget.failed;
    if (f->step < 0 || !n->ranked || f->rank < n->rank_base ||
        f->rank >= n->rank_base + (int32_t)n->hello.nproc ||
        n->workers[f->rank - n->rank_base].step <= f->step)
        return;
    *f = none_failed;
    job_keep(j);
}

void budget_note_steps(struct job *j, struct job_node *n)
{
    struct job_budget *b = &j->budget;
    int32_t slowest = INT32_MAX;
    note_further(j, n);
    if (b->give_back_steps == 0)
        return;
    int32_t reported = INT32_MAX; /* The smallest of those who report any. */
    for (int64_t i = 0; i < n->hello.nproc; i++) {
        int32_t step = n->workers[i].step;
        slowest = step < slowest ? step : slowest;
        reported = step >= 0 && step < reported ? step : reported;
    }
    if (b->first_step < 0 && reported < INT32_MAX) {
        b->first_step = reported;
        job_keep(j);
    }
    if (n->proven_round == j->round || slowest < 0 ||
        (int64_t)slowest - b->first_step < (int64_t)b->give_back_steps)
        return;
    n->proven_round = j->round;
    b->proven++;
    if (j->state == JOB_RUNNING)
        budget_look(j);
}

/* --- a round's end --- */

static struct job_failed failed_of(const struct mu_cause *c)
{
    bool known = c->step >= 0 && c->rank >= 0 && c->blame < 0; /* Else another one failed. */
    if (!known || (c->kind != MU_CAUSE_WORKER_EXIT && c->kind != MU_CAUSE_WORKER_SIGNAL &&
                   c->kind != MU_CAUSE_NO_PROGRESS))
        return none_failed;
    return (struct job_failed){.kind = c->kind,
                               .code = c->kind == MU_CAUSE_WORKER_SIGNAL ? -c->signo : c->exit_code,
                               .rank = c->rank,
                               .step = c->step};
}

static bool is_same_failure(const struct job *j)
{
    struct job_failed now = failed_of(&j->cause);
    const struct job_failed *before = &j->budget.failed;
    return !j->budget.same_failure_restart && now.step >= 0 && now.step == before->step &&
           now.kind == before->kind && now.code == before->code && now.rank == before->rank;
}

enum job_decision budget_decide(struct job *j)
{
    j->was_charged = false;
    budget_look(j); /* The timer may be late. */
    if (j->cause.kind == MU_CAUSE_UNREACHED) {
        j->final = true; /* Another round would meet the same wall. */
        return JOB_DECIDED_FAIL;
    }
    if (!mu_cause_costs_restart(j->cause.kind))
        return JOB_DECIDED_REGROUP;
    forget_expired(j);
    j->budget.same_failure = is_same_failure(j);
    j->final = j->budget.same_failure || j->budget.spent >= j->max_restarts;
    if (j->final)
        return JOB_DECIDED_FAIL;
    charge(j);
    return JOB_DECIDED_RESTART;
}

void budget_reconsider(struct job *j)
{
    if (!j->was_charged)
        return;
    bool same = is_same_failure(j);
    if (mu_cause_costs_restart(j->cause.kind) && !same) {
        drop_last_entry(j);
        add_entry(j);
        return;
    }
    uncharge(j);
    j->budget.same_failure = same;
    j->final = j->final || same;
}

void budget_end_round(struct job *j)
{
    if (j->has_cause && j->cause.round == j->round && mu_cause_costs_restart(j->cause.kind))
        j->budget.failed = failed_of(&j->cause);
}

/* --- for a successor --- */

void budget_save(const struct job *j, struct job_row_kept *ret)
{
    const struct job_budget *b = &j->budget;
    size_t used = 0;
    ret->restart_window_ns = b->window_ns;
    ret->give_back_ns = b->give_back_ns;
    ret->give_back_steps = b->give_back_steps;
    ret->same_failure_restart = b->same_failure_restart;
    ret->spent = job_spent(j, j->step_now_ns);
    ret->given_back = b->given_back;
    ret->given_back_here = b->given_back_here;
    ret->first_step = b->first_step;
    ret->same_failure = b->same_failure;
    ret->failed_code = b->failed.code;
    ret->failed_rank = b->failed.rank;
    ret->failed_step = b->failed.step;
    (void)mu_strcopy(ret->failed_kind, sizeof ret->failed_kind, mu_cause_kind_text(b->failed.kind));
    ret->spent_at[0] = '\0';
    for (uint32_t i = expired(b, j->step_now_ns); b->window_ns > 0 && i < b->spent; i++) {
        int64_t age_ms = (j->step_now_ns - b->spent_at_ns[i]) / NS_PER_MS;
        int n = snprintf(ret->spent_at + used, sizeof ret->spent_at - used, "%" PRId64 " ",
                         j->step_unix_ms > age_ms ? j->step_unix_ms - age_ms : 0);
        MU_ASSERT(n > 0 && (size_t)n < sizeof ret->spent_at - used);
        used += (size_t)n;
    }
}

/* Times in order, each with a blank behind it. Those of the future, as a clock was set back, are of
 * now. */
static int load_times(struct job *j, const char *p)
{
    struct job_budget *b = &j->budget;
    uint32_t count = 0;
    while (*p != '\0') {
        int64_t unix_ms = 0;
        size_t n = strspn(p, "0123456789");
        if (n == 0 || n > 13 || p[n] != ' ' || count == b->spent)
            return -1;
        for (size_t i = 0; i < n; i++)
            unix_ms = unix_ms * 10 + (p[i] - '0');
        p += n + 1;
        int64_t age_ms = j->step_unix_ms > unix_ms ? j->step_unix_ms - unix_ms : 0;
        if (age_ms > b->window_ns / NS_PER_MS)
            age_ms = b->window_ns / NS_PER_MS + 1;
        int64_t at_ns = j->step_now_ns - age_ms * NS_PER_MS;
        if (count > 0 && at_ns < b->spent_at_ns[count - 1])
            at_ns = b->spent_at_ns[count - 1];
        b->spent_at_ns[count++] = at_ns;
    }
    return count == b->spent ? 0 : -1;
}

int budget_load(struct job *j, const struct job_row_kept *row)
{
    struct job_budget *b = &j->budget;
    bool windowed = row->restart_window_ns > 0;
    if (row->spent > row->max_restarts || row->spent > row->restarts ||
        (windowed && row->max_restarts > MU_WINDOW_RESTARTS_MAX))
        return -1;
    b->window_ns = row->restart_window_ns;
    b->give_back_ns = row->give_back_ns;
    b->give_back_steps = (uint32_t)row->give_back_steps;
    b->same_failure_restart = row->same_failure_restart != 0;
    b->spent = (uint32_t)row->spent;
    b->given_back = (uint32_t)row->given_back;
    b->given_back_here = (uint32_t)row->given_back_here;
    b->first_step = (int32_t)row->first_step;
    b->same_failure = row->same_failure != 0;
    b->failed = (struct job_failed){.code = (int32_t)row->failed_code,
                                    .rank = (int32_t)row->failed_rank,
                                    .step = (int32_t)row->failed_step};
    (void)mu_cause_kind_parse(row->failed_kind, &b->failed.kind); /* Stays "none". */
    return windowed ? load_times(j, row->spent_at) : 0;
}

void budget_load_round(struct job *j)
{
    int64_t last_ms = 0;
    for (uint32_t r = 0; r < j->round_nodes; r++) {
        const struct job_node *n = j->members[r] != JOB_NO_NODE ? &j->nodes[j->members[r]] : NULL;
        if (n == NULL || n->started_unix_ms == 0)
            return; /* It has not said so, as far as is known. */
        last_ms = n->started_unix_ms > last_ms ? n->started_unix_ms : last_ms;
    }
    int64_t ran_ms = j->step_unix_ms > last_ms ? j->step_unix_ms - last_ms : 0;
    if (last_ms > 0)
        j->budget.ran_since_ns =
            j->step_now_ns - (ran_ms < MU_SPAN_MAX_MS ? ran_ms : MU_SPAN_MAX_MS) * NS_PER_MS;
}
