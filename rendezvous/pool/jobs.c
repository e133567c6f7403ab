/* A job's way from its submission to its end. */
#include "rendezvous/pool/internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <utlist.h>

#define NS_PER_S INT64_C(1000000000)
/* From the first agent's end to the judgement by exit statuses: the rendezvous speaks first. */
#define SETTLE_NS (2 * NS_PER_S)
/* From the rendezvous' verdict until its agents must have ended by themselves. */
#define END_WAIT_NS (30 * NS_PER_S)

struct pool_job *pool_job_at(const struct pool *p, uint32_t slot)
{
    return slot < p->job_cap ? p->jobs[slot] : NULL;
}

uint32_t pool_hash(const char *id)
{
    uint32_t h = 2166136261U; /* FNV-1a. */
    for (; *id != '\0'; id++)
        h = (h ^ (unsigned char)*id) * 16777619U;
    return h;
}

uint32_t pool_find_job(const struct pool *p, const char *id)
{
    uint32_t hash = pool_hash(id);
    for (uint32_t i = 0; i < p->job_cap; i++)
        if (p->jobs[i] != NULL && p->jobs[i]->hash == hash && strcmp(p->jobs[i]->id, id) == 0)
            return i;
    return POOL_NONE;
}

bool pool_is_over(const struct pool_job *j)
{
    return j->state == POOL_STOPPED || j->state == POOL_DONE || j->state == POOL_FAILED;
}

bool pool_job_has_start(const struct pool_job *j)
{
    return j->state != POOL_QUEUED && !pool_is_over(j);
}

bool pool_job_goes_on(const struct pool_job *j)
{
    return (j->state == POOL_STARTING || j->state == POOL_RUNNING) && !j->stop;
}

void pool_job_dirty(struct pool *p, struct pool_job *j)
{
    if (j->dirty)
        return;
    j->dirty = true;
    j->next_dirty = p->dirty;
    p->dirty = j;
}

static void keep(struct pool *p, struct pool_job *j)
{
    j->keep_due = true;
    pool_job_dirty(p, j);
}

void pool_job_move(struct pool *p, struct pool_job *j, enum pool_job_state to)
{
    static const bool allowed[POOL_JOB_STATE_COUNT][POOL_JOB_STATE_COUNT] = {
        [POOL_QUEUED] = {[POOL_STARTING] = true, [POOL_STOPPED] = true, [POOL_FAILED] = true},
        [POOL_STARTING] = {[POOL_QUEUED] = true, /* Nobody took it. */
                           [POOL_RUNNING] = true,
                           [POOL_STOPPING] = true,
                           [POOL_DONE] = true,
                           [POOL_FAILED] = true},
        [POOL_RUNNING] = {[POOL_QUEUED] = true, /* It starts again. */
                          [POOL_STOPPING] = true,
                          [POOL_DONE] = true,
                          [POOL_FAILED] = true},
        [POOL_STOPPING] = {[POOL_STOPPED] = true, [POOL_DONE] = true},
        [POOL_STOPPED] = {[POOL_QUEUED] = true},
        [POOL_DONE] = {[POOL_QUEUED] = true},
        [POOL_FAILED] = {[POOL_QUEUED] = true}};
    MU_ASSERT(allowed[j->state][to]);
    bool was_over = pool_is_over(j);
    j->state = to; /* The only line that writes the state of a job that is known. */
    p->moved = true;
    p->queue_changed = true;
    p->ended_count += (uint32_t)pool_is_over(j) - (uint32_t)was_over;
    p->live_count += (uint32_t)was_over - (uint32_t)pool_is_over(j);
    keep(p, j);
}

/* --- birth and death --- */

void pool_job_note_past(struct pool *p, struct pool_job *j, const char *node_id)
{
    for (uint32_t i = 0; i < j->past_count; i++)
        if (strcmp(j->past[i], node_id) == 0)
            return;
    if (j->past_count == MU_POOL_PAST_MAX)
        return; /* Their output is no longer found. */
    char(*past)[40] = mu_realloc(p->mem, j->past, (j->past_count + 1) * sizeof *past);
    if (past == NULL)
        return;
    j->past = past;
    memcpy(j->past[j->past_count++], node_id, sizeof *past);
}

void pool_job_drop_seats(struct pool *p, struct pool_job *j)
{
    for (uint32_t i = 0; i < j->seat_count; i++) {
        struct pool_seat *s = &j->seats[i];
        pool_seat_release(p, j, s);
        if (s->node_id[0] != '\0')
            pool_job_note_past(p, j, s->node_id);
        mu_mem_free(p->mem, s->gpus);
    }
    mu_mem_free(p->mem, j->seats);
    j->seats = NULL;
    j->seat_count = 0;
}

struct pool_job *pool_job_new(struct pool *p, const char *id)
{
    uint32_t slot = 0;
    while (slot < p->job_cap && p->jobs[slot] != NULL)
        slot++;
    if (slot == p->job_cap) {
        uint32_t cap = p->job_cap == 0 ? 16 : p->job_cap * 2;
        struct pool_job **jobs = mu_realloc(p->mem, p->jobs, cap * sizeof *jobs);
        if (jobs == NULL)
            return NULL;
        for (uint32_t i = p->job_cap; i < cap; i++)
            jobs[i] = NULL;
        p->jobs = jobs;
        p->job_cap = cap;
    }
    struct pool_job *j = mu_zalloc(p->mem, sizeof *j);
    if (j == NULL)
        return NULL;
    if (mu_strcopy(j->id, sizeof j->id, id) < 0) {
        mu_mem_free(p->mem, j);
        return NULL;
    }
    j->slot = slot;
    j->hash = pool_hash(id);
    j->exit_status = -1;
    j->nodes_min = 1;
    j->nodes_max = 1;
    j->nproc = 1;
    j->gpus = -1;
    for (uint32_t i = 0; i < MU_POOL_REFUSALS_MAX; i++)
        j->avoid[i] = POOL_NONE;
    p->jobs[slot] = j;
    p->live_count++;
    return j;
}

void pool_job_free(struct pool *p, struct pool_job *j)
{
    pool_job_dequeue(p, j);
    for (struct pool_job **at = &p->dirty; *at != NULL; at = &(*at)->next_dirty)
        if (*at == j) {
            *at = j->next_dirty;
            break;
        }
    if (pool_is_over(j))
        p->ended_count--;
    else
        p->live_count--;
    pool_job_drop_seats(p, j);
    p->spec_bytes -= j->spec_bytes;
    p->jobs[j->slot] = NULL;
    mu_mem_free(p->mem, j->past);
    mu_mem_free(p->mem, j->spec);
    mu_mem_free(p->mem, j);
}

static int by_place(const struct pool_job *a, const struct pool_job *b)
{
    return a->order < b->order ? -1 : a->order > b->order;
}

void pool_job_enqueue(struct pool *p, struct pool_job *j)
{
    p->queue_changed = true;
    j->in_queue = true;
    struct pool_job *last = p->queue != NULL ? p->queue->prev : NULL;
    if (last == NULL || last->order < j->order) /* Nearly always. */
        DL_APPEND(p->queue, j);
    else
        DL_INSERT_INORDER(p->queue, j, by_place);
}

void pool_job_dequeue(struct pool *p, struct pool_job *j)
{
    if (j->in_queue)
        DL_DELETE(p->queue, j);
    j->in_queue = false;
}

bool pool_trim(struct pool *p, int64_t *ret_kept)
{
    struct pool_job *oldest = NULL;
    if (p->ended_count <= MU_POOL_ENDED_KEPT)
        return false;
    for (uint32_t i = 0; i < p->job_cap; i++) {
        struct pool_job *j = p->jobs[i];
        if (j == NULL || !pool_is_over(j) ||
            (oldest != NULL && oldest->ended_unix_ms <= j->ended_unix_ms))
            continue;
        bool held = false;
        for (uint32_t k = 0; k < j->seat_count; k++)
            held = held || j->seats[k].held;
        if (!held)
            oldest = j;
    }
    if (oldest == NULL)
        return false;
    *ret_kept = oldest->kept;
    pool_job_free(p, oldest);
    return true;
}

/* --- what people ask for --- */

int pool_job_submit(struct pool *p,
                    const struct pool_submission *s,
                    struct pool_job **ret,
                    struct mu_err *err)
{
    if (pool_find_job(p, s->id) != POOL_NONE)
        return mu_err_set(err, -EEXIST,
                          "a job '%s' is known already: choose another name, or resume that one",
                          s->id);
    if (p->live_count >= MU_POOL_JOBS_MAX || p->spec_bytes + s->spec.n > MU_POOL_SPEC_BYTES_MAX)
        return mu_err_set(err, -ENOSPC, "%u jobs wait or run already: try again later",
                          p->live_count);
    struct pool_job *j = pool_job_new(p, s->id);
    if (j == NULL)
        return mu_err_set(err, -ENOMEM,
                          "the server has no memory for another job: try again later");
    j->spec = mu_alloc(p->mem, s->spec.n + 1);
    if (j->spec == NULL) {
        pool_job_free(p, j);
        return mu_err_set(err, -ENOMEM,
                          "the server has no memory for another job: try again later");
    }
    memcpy(j->spec, s->spec.p, s->spec.n);
    j->spec[s->spec.n] = '\0';
    j->spec_bytes = s->spec.n;
    p->spec_bytes += s->spec.n;
    (void)snprintf(j->name, sizeof j->name, "%s", s->name);
    j->nodes_min = s->nodes_min;
    j->nodes_max = s->nodes_max;
    j->nproc = s->nproc;
    j->gpus = s->gpus;
    j->no_requeue = s->no_requeue;
    j->unkept = s->unkept;
    j->order = ++p->orders;
    j->submitted_unix_ms = p->unix_ms;
    pool_job_enqueue(p, j);
    p->moved = true;
    keep(p, j);
    *ret = j;
    return 0;
}

struct pool_job *pool_job_adopt(struct pool *p, uint32_t node, const struct ctl_has *m)
{
    if (p->live_count >= MU_POOL_JOBS_MAX)
        return NULL;
    uint32_t slot = pool_find_job(p, m->job);
    struct pool_job *j = slot != POOL_NONE ? p->jobs[slot] : pool_job_new(p, m->job);
    if (j == NULL)
        return NULL;
    struct pool_seat *seats = mu_realloc(p->mem, j->seats, (j->seat_count + 1) * sizeof *seats);
    if (seats == NULL) {
        if (slot == POOL_NONE)
            pool_job_free(p, j);
        return NULL;
    }
    const struct pool_node *n = p->nodes[node];
    j->seats = seats;
    struct pool_seat *s = &j->seats[j->seat_count++];
    *s = (struct pool_seat){.state = POOL_SEAT_UP, .node = node, .adopted = true, .seen = true};
    memcpy(s->node_id, n->id, sizeof s->node_id);
    memcpy(s->host, n->host, sizeof s->host);
    pool_seat_hold(p, j, s);
    j->nodes_min = j->seat_count;
    j->nodes_max = j->seat_count;
    if (slot != POOL_NONE)
        return j;
    memcpy(j->name, j->id, sizeof j->name);
    j->attempt = (uint32_t)m->attempt;
    j->order = ++p->orders;
    j->submitted_unix_ms = m->submitted_ms; /* 0: not known. */
    j->state = POOL_STARTING;               /* It never waited here. */
    j->met = true;
    pool_job_move(p, j, POOL_RUNNING);
    return j;
}

/* Told again with each stop: a stronger signal counts. */
static void unassign_all(struct pool *p, struct pool_job *j)
{
    for (uint32_t i = 0; i < j->seat_count; i++)
        if (pool_seat_is_live(&j->seats[i])) {
            j->seats[i].unassign_due = true;
            j->seats[i].assign_due = false;
        }
    keep(p, j);
}

int pool_job_stop(
    struct pool *p, struct pool_job *j, int32_t signo, int64_t grace_ms, struct mu_err *err)
{
    if (pool_is_over(j))
        return mu_err_set(err, -EALREADY, "job '%s' is over: it is %s", j->id,
                          pool_state_name(j->state));
    j->stop = true;
    j->signo = signo;
    j->grace_ms = grace_ms;
    if (j->state == POOL_QUEUED) {
        pool_job_dequeue(p, j);
        (void)snprintf(j->cause, sizeof j->cause, "it was stopped before it began");
        j->ended_unix_ms = p->unix_ms;
        pool_job_move(p, j, POOL_STOPPED);
        return 0;
    }
    if (j->state != POOL_STOPPING)
        pool_job_move(p, j, POOL_STOPPING);
    unassign_all(p, j);
    pool_job_check(p, j);
    return 0;
}

void pool_job_wait_anew(struct pool *p, struct pool_job *j)
{
    j->refusals = 0;
    for (uint32_t i = 0; i < MU_POOL_REFUSALS_MAX; i++)
        j->avoid[i] = POOL_NONE;
    j->verdict = POOL_UNDECIDED;
    j->exit_status = -1;
    j->cause[0] = '\0';
    j->stop = false;
    j->met = false;
    j->started_unix_ms = 0;
    j->ended_unix_ms = 0;
    pool_job_move(p, j, POOL_QUEUED);
    pool_job_enqueue(p, j);
}

int pool_job_resume(struct pool *p, struct pool_job *j, struct mu_err *err)
{
    if (!pool_is_over(j))
        return mu_err_set(err, -EALREADY, "job '%s' is %s: only one that has ended can be resumed",
                          j->id, pool_state_name(j->state));
    if (j->spec == NULL)
        return mu_err_set(err, -ENOENT,
                          "job '%s' was found on its nodes after a restart of this server, which "
                          "does not know what it runs: submit it anew",
                          j->id);
    if (p->live_count >= MU_POOL_JOBS_MAX)
        return mu_err_set(err, -ENOSPC, "%d jobs wait or run already: try again later",
                          MU_POOL_JOBS_MAX);
    j->order = ++p->orders;
    j->requeues = 0;
    j->lost[0] = '\0';
    pool_job_wait_anew(p, j);
    return 0;
}

/* --- the end --- */

/* Where the rendezvous has said nothing of a failure. */
static void judge_by_statuses(struct pool_job *j)
{
    const struct pool_seat *bad = NULL;
    uint32_t asked = j->stop ? 128 + (uint32_t)j->signo : 0;
    bool as_asked = false;
    for (uint32_t i = 0; i < j->seat_count; i++) {
        const struct pool_seat *s = &j->seats[i];
        if (s->state == POOL_SEAT_ENDED && s->status != 0 &&
            (bad == NULL || s->ended_ns < bad->ended_ns))
            bad = s;
        as_asked = as_asked || (asked > 0 && s->state == POOL_SEAT_ENDED && s->status == asked);
    }
    j->exit_status = as_asked ? (int32_t)asked : bad != NULL ? (int32_t)bad->status : 0;
    if (j->cause[0] == '\0' && bad != NULL)
        (void)snprintf(j->cause, sizeof j->cause, "the agent on %s ended with status %u", bad->host,
                       bad->status);
}

static void finish(struct pool *p, struct pool_job *j)
{
    bool lost = false;
    if (pool_job_starts_again(p, j))
        return;
    for (uint32_t i = 0; i < j->seat_count; i++)
        lost = lost || j->seats[i].state == POOL_SEAT_LOST || j->seats[i].state == POOL_SEAT_VACANT;
    if (j->verdict == POOL_SUCCEEDED)
        j->exit_status = 0;
    else if (j->exit_status < 0 || (j->stop && j->verdict == POOL_NODES_GONE))
        judge_by_statuses(j); /* Agents that are killed at once are lost to the rendezvous. */
    bool well = j->verdict == POOL_SUCCEEDED ||
                (j->verdict == POOL_UNDECIDED && j->exit_status == 0 && !lost);
    if (!well && j->exit_status <= 0)
        j->exit_status = j->stop ? 128 + j->signo : 1;
    if (j->stop && (!well || j->verdict == POOL_UNDECIDED)) {
        if (j->exit_status == 0)
            j->exit_status = 128 + j->signo;
        (void)snprintf(j->cause, sizeof j->cause, "it was asked to stop");
    } else if (well) {
        j->cause[0] = '\0';
    }
    j->ended_unix_ms = p->unix_ms;
    for (uint32_t i = 0; i < j->seat_count; i++) { /* Whoever is still there must go. */
        struct pool_seat *s = &j->seats[i];
        s->unassign_due = pool_seat_is_live(s);
        s->assign_due = false;
        if (!pool_seat_is_live(s))
            pool_seat_release(p, j, s);
    }
    pool_job_move(p, j,
                  j->stop && (!well || j->verdict == POOL_UNDECIDED) ? POOL_STOPPED
                  : well                                             ? POOL_DONE
                                                                     : POOL_FAILED);
}

void pool_job_fail(struct pool *p, struct pool_job *j, const char *text)
{
    j->verdict = POOL_FAILED_SO;
    j->exit_status = j->exit_status > 0 ? j->exit_status : 1;
    (void)snprintf(j->cause, sizeof j->cause, "%s", text);
    finish(p, j);
}

struct count {
    uint32_t live;
    uint32_t ended;
    uint32_t vacant;
    int64_t last_ended_ns;
};

static struct count count_seats(const struct pool_job *j)
{
    struct count c = {0};
    for (uint32_t i = 0; i < j->seat_count; i++) {
        const struct pool_seat *s = &j->seats[i];
        c.live += pool_seat_is_live(s);
        c.ended += s->state == POOL_SEAT_ENDED;
        c.vacant += s->state == POOL_SEAT_VACANT;
        if (s->state == POOL_SEAT_ENDED && s->ended_ns > c.last_ended_ns)
            c.last_ended_ns = s->ended_ns;
    }
    return c;
}

static void want_deadline(struct pool *p, int64_t at_ns)
{
    p->deadline_ns = at_ns < p->deadline_ns ? at_ns : p->deadline_ns;
}

/* Nobody has begun, and nobody is left to: its turn comes again. */
static void requeue(struct pool *p, struct pool_job *j)
{
    pool_job_drop_seats(p, j);
    pool_job_move(p, j, POOL_QUEUED);
    pool_job_enqueue(p, j);
}

/* Its agent ended while those of other nodes go on, and the rendezvous does not say that the job is
 * over: it left in order, or it was killed. */
static void replace_ended(struct pool *p, struct pool_job *j)
{
    for (uint32_t i = 0; i < j->seat_count; i++) {
        struct pool_seat *s = &j->seats[i];
        if (s->state != POOL_SEAT_ENDED || p->now_ns - s->ended_ns < SETTLE_NS)
            continue;
        if (s->node != POOL_NONE && p->nodes[s->node]->draining) {
            s->state = POOL_SEAT_VACANT;
        } else if (j->refusals < MU_POOL_REFUSALS_MAX) {
            j->refusals++; /* Without an entry in `avoid`: the node itself is not to blame. */
            s->state = POOL_SEAT_VACANT;
        } else {
            continue;
        }
        pool_seat_release(p, j, s);
        p->vacant_due = true;
        keep(p, j);
    }
}

void pool_job_check(struct pool *p, struct pool_job *j)
{
    if (!pool_job_has_start(j))
        return;
    struct count c = count_seats(j);
    bool decided = j->verdict != POOL_UNDECIDED;
    if (decided && (c.live == 0 || p->now_ns - j->verdict_ns >= END_WAIT_NS)) {
        finish(p, j);
    } else if (decided) {
        want_deadline(p, j->verdict_ns + END_WAIT_NS);
    } else if (c.live == 0 && j->stop) {
        finish(p, j);
    } else if (c.live == 0 && c.ended > 0) {
        if (p->now_ns - c.last_ended_ns >= SETTLE_NS)
            finish(p, j);
        else
            want_deadline(p, c.last_ended_ns + SETTLE_NS);
    } else if (c.live == 0 && !j->met && j->state == POOL_STARTING && j->spec != NULL) {
        requeue(p, j);
    } else if (c.vacant == j->seat_count && j->spec == NULL) {
        pool_job_fail(p, j, "its nodes have gone, and what it runs is not known here");
    } else if (c.ended > 0 && !j->stop) {
        if (p->now_ns - c.last_ended_ns >= SETTLE_NS)
            replace_ended(p, j);
        else
            want_deadline(p, c.last_ended_ns + SETTLE_NS);
    }
}
