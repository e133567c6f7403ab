/* The record of a round's end: what ended it, what was decided, how long its phases took. */
#include "rendezvous/job/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/parse.h"

/* The last incident is about this very round, which is still being stopped. */
static bool is_open(const struct job *j)
{
    return j->incident.number != 0 && j->incident.round == j->round &&
           j->incident.stopped_unix_ms == 0;
}

/* --- what failed after the cause: a line each, "unix_ms\trank\thost\tsentence\n" --- */

static void add_field(struct mu_buf *b, const char *text, size_t max, char end)
{
    size_t n = strlen(text);
    size_t at = 0;
    while (at < n) {
        size_t len = mu_utf8_len(text + at, n - at);
        if (at + (len > 0 ? len : 1) > max)
            break;
        bool plain = len > 0 && (unsigned char)text[at] >= ' ';
        (void)mu_buf_add(b, plain ? text + at : " ", plain ? len : 1);
        at += len > 0 ? len : 1;
    }
    (void)mu_buf_add(b, &end, 1);
}

static void
make_line(const struct job *j, const struct mu_cause *c, int64_t at_unix_ms, struct mu_buf *line)
{
    struct mu_buf sentence;
    mu_buf_init(&sentence, j->mem);
    mu_cause_sentence(c, &sentence);
    (void)mu_buf_addf(line, "%" PRId64 "\t%" PRId32 "\t", at_unix_ms, c->rank);
    add_field(line, c->host, MU_HOST_BYTES - 1, '\t');
    add_field(line, mu_buf_cstr(&sentence), MU_MESSAGE_BYTES - 1, '\n');
    line->oom = line->oom || sentence.oom;
    mu_buf_fini(&sentence);
}

/* Copies up to `end`, which is stepped over. Returns false where it does not come, or not in time.
 */
static bool take_field(const char *text, size_t *at, char end, char *dst, size_t cap)
{
    const char *p = text + *at;
    const char *stop = strchr(p, end);
    if (stop == NULL || (size_t)(stop - p) >= cap)
        return false;
    memcpy(dst, p, (size_t)(stop - p));
    dst[stop - p] = '\0';
    *at += (size_t)(stop - p) + 1;
    return true;
}

static bool take_number(const char *text, size_t *at, int64_t *ret)
{
    char digits[24];
    return take_field(text, at, '\t', digits, sizeof digits) &&
           mu_parse_i64(digits, INT64_MIN, INT64_MAX, "number", ret, NULL) == 0;
}

bool job_incident_other(const struct job_incident *in, size_t *at, struct job_other *ret)
{
    size_t from = *at;
    bool whole = take_number(in->others, &from, &ret->at_unix_ms) &&
                 take_number(in->others, &from, &ret->rank) &&
                 take_field(in->others, &from, '\t', ret->host, sizeof ret->host) &&
                 take_field(in->others, &from, '\n', ret->sentence, sizeof ret->sentence);
    if (whole)
        *at = from;
    return whole;
}

/* How many are listed; *ret_from, *ret_to: the line of this rank, both 0 where there is none. */
static uint32_t look(const struct job_incident *in, int32_t rank, size_t *ret_from, size_t *ret_to)
{
    struct job_other o;
    uint32_t count = 0;
    size_t at = 0;
    *ret_from = *ret_to = 0;
    for (size_t from = 0; job_incident_other(in, &at, &o); from = at) {
        count++;
        if (rank >= 0 && o.rank == rank) {
            *ret_from = from;
            *ret_to = at;
        }
    }
    return count;
}

static void note_other(struct job *j, const struct mu_cause *c, int64_t at_unix_ms)
{
    struct job_incident *in = &j->incident;
    size_t from = 0;
    size_t to = 0;
    if (look(in, c->rank, &from, &to) >= MU_CONSEQUENCES_MAX)
        return;
    struct mu_buf line;
    mu_buf_init(&line, j->mem);
    make_line(j, c, at_unix_ms, &line);
    size_t used = strlen(in->others);
    if (!line.oom && used + line.n < sizeof in->others) /* Else it is counted. */
        memcpy(in->others + used, mu_buf_cstr(&line), line.n + 1);
    mu_buf_fini(&line);
}

/* It was listed before it proved the better cause. */
static void drop_cause_from_others(struct job *j)
{
    struct job_incident *in = &j->incident;
    size_t from = 0;
    size_t to = 0;
    (void)look(in, j->cause.rank, &from, &to);
    if (to > from)
        memmove(in->others + from, in->others + to, strlen(in->others + to) + 1);
}

void job_note_consequence(struct job *j, const struct mu_cause *c)
{
    size_t from = 0;
    size_t to = 0;
    j->consequences++;
    if (!is_open(j))
        return;
    j->incident.consequences = j->consequences;
    (void)look(&j->incident, c->rank, &from, &to);
    if (to == from)
        note_other(j, c, c->at_unix_ms != 0 ? c->at_unix_ms : j->step_unix_ms);
}

/* One of them on that node, as STOPPED tells it. */
static void note_late(struct job *j, const struct job_node *n, int32_t local_rank, int32_t ms)
{
    size_t from = 0;
    size_t to = 0;
    struct mu_cause c = job_cause_of_node(MU_CAUSE_WORKER_EXIT, n);
    c.local_rank = local_rank;
    c.rank = n->rank_base + local_rank;
    c.pid = n->workers[local_rank].pid;
    c.step = n->workers[local_rank].step;
    c.exit_code = n->workers[local_rank].exit;
    if (c.exit_code < 0) {
        c.kind = MU_CAUSE_WORKER_SIGNAL;
        c.signo = -c.exit_code;
    }
    (void)look(&j->incident, c.rank, &from, &to);
    if (c.rank == j->cause.rank || to > from)
        return; /* FAILED told of it. */
    j->consequences++;
    note_other(j, &c, j->step_unix_ms - ms);
}

static void take_longer(int64_t *longest, int64_t ms)
{
    *longest = ms > *longest ? ms : *longest;
}

void job_note_stopped(struct job *j, const struct job_node *n, const struct ctl_stopped *m)
{
    if (!is_open(j))
        return;
    take_longer(&j->incident.stop_ms, m->stop_ms);
    take_longer(&j->incident.reclaim_ms, m->reclaim_ms);
    for (uint32_t i = 0; n->ranked && i + 1 < m->late.n; i += 2) {
        const int32_t *v = m->late.v + i;
        if (v[0] >= 0 && v[0] < n->hello.nproc && v[1] >= 0 && n->workers[v[0]].exit != 0 &&
            n->workers[v[0]].exit > JOB_EXIT_NONE)
            note_late(j, n, v[0], v[1]);
    }
    if (m->late_count > m->late.n / 2)
        j->consequences += (uint32_t)m->late_count - m->late.n / 2;
}

/* --- the record --- */

static void fill_budget(const struct job *j, struct job_incident *ret)
{
    ret->restarts = j->restarts;
    ret->spent = job_spent(j, j->step_now_ns);
    ret->max_restarts = j->max_restarts;
    ret->window_ms = j->budget.window_ns / NS_PER_MS;
    ret->given_back = j->budget.given_back_here;
    ret->same_failure = j->budget.same_failure;
}

static void keep_cause(const struct job *j, struct job_incident *in)
{
    job_keep_cause(j, in);
    int64_t rank = in->cause_node_rank;
    bool known = rank >= 0 && rank < j->round_nodes && j->members[rank] != JOB_NO_NODE;
    (void)mu_strcopy(in->boot_id, sizeof in->boot_id,
                     known ? j->nodes[j->members[rank]].hello.boot_id : ""); /* It fits. */
}

void job_begin_incident(struct job *j, enum job_decision d)
{
    struct job_incident *in = &j->incident;
    bool ran = j->round_nodes > 0; /* Else nodes were only gathering. */
    *in = (struct job_incident){0};
    keep_cause(j, in);
    in->number = ++j->incident_count;
    in->round = j->round;
    fill_budget(j, in);
    in->nodes = j->round_nodes;
    in->world = ran ? j->world : 0;
    in->gathering_unix_ms = j->gathering_unix_ms;
    in->started_unix_ms = ran ? j->round_started_unix_ms : 0;
    in->running_unix_ms = ran ? j->running_unix_ms : 0;
    in->decided_unix_ms = j->step_unix_ms;
    in->stop_ms = in->reclaim_ms = -1;
    (void)mu_strcopy(in->decision, sizeof in->decision, job_decision_name(d));
    job_act(j, JOB_ACT_INCIDENT, JOB_NO_NODE, CTL_TYPE_COUNT);
}

void job_explain_incident(struct job *j)
{
    struct job_incident *in = &j->incident;
    if (!is_open(j))
        return; /* RECOVERING: it has not begun; or it began in a former life. */
    keep_cause(j, in);
    drop_cause_from_others(j);
    fill_budget(j, in);
    enum job_decision d = j->final         ? JOB_DECIDED_FAIL
                          : j->was_charged ? JOB_DECIDED_RESTART
                                           : JOB_DECIDED_REGROUP;
    (void)mu_strcopy(in->decision, sizeof in->decision, job_decision_name(d));
    job_act(j, JOB_ACT_INCIDENT, JOB_NO_NODE, CTL_TYPE_COUNT);
}

/* What was decided at the last round's end came to nothing: one record an end. */
void job_abandon_incident(struct job *j)
{
    struct job_incident *in = &j->incident;
    if (in->number == 0 || in->round != j->round || in->next_unix_ms != 0) {
        job_begin_incident(j, JOB_DECIDED_ABANDON);
        return;
    }
    (void)mu_strcopy(in->decision, sizeof in->decision, job_decision_name(JOB_DECIDED_ABANDON));
}

void job_end_incident(struct job *j)
{
    if (j->incident.number == 0)
        return; /* It began in a former life. */
    if (j->incident.stopped_unix_ms == 0)
        j->incident.stopped_unix_ms = j->step_unix_ms;
    j->incident.consequences = j->consequences;
    job_act(j, JOB_ACT_INCIDENT, JOB_NO_NODE, CTL_TYPE_COUNT);
}

void job_follow_incident(struct job *j)
{
    if (j->incident.number == 0)
        return;
    j->incident.next_unix_ms = j->step_unix_ms;
    job_act(j, JOB_ACT_INCIDENT, JOB_NO_NODE, CTL_TYPE_COUNT);
}

/* The last one was followed by the round that runs. */
static bool is_followed(const struct job *j)
{
    return j->incident.number != 0 && j->incident.next_unix_ms != 0 && j->incident.round < j->round;
}

void job_note_running(struct job *j)
{
    j->running_unix_ms = j->step_unix_ms;
    job_keep(j);
    if (!is_followed(j) || j->incident.next_running_unix_ms != 0)
        return;
    j->incident.next_running_unix_ms = j->step_unix_ms;
    job_act(j, JOB_ACT_INCIDENT, JOB_NO_NODE, CTL_TYPE_COUNT);
}

void job_note_step(struct job *j)
{
    if (!is_followed(j) || j->incident.next_step_unix_ms != 0)
        return;
    j->incident.next_step_unix_ms = j->step_unix_ms;
    job_act(j, JOB_ACT_INCIDENT, JOB_NO_NODE, CTL_TYPE_COUNT);
}
