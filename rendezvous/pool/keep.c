/* Rows: a job to its row and back. */
#include "rendezvous/pool/internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/parse.h"

static const struct {
    const char *name;
    size_t offset;
    int64_t min;
    int64_t max;
} ints[] = {
#define INT(name, min, max) {#name, offsetof(struct pool_row, name), (min), (max)},
#define STR(name, bytes)
#define BIG(name)
    POOL_ROW_FIELDS(INT, STR, BIG)
#undef INT
#undef STR
#undef BIG
};

int pool_save(const struct pool *p,
              const struct pool_job *j,
              struct pool_row *ret,
              struct mu_buf *texts)
{
    (void)p;
    memset(ret, 0, sizeof *ret);
    memcpy(ret->id, j->id, sizeof ret->id);
    memcpy(ret->name, j->name, sizeof ret->name);
    (void)snprintf(ret->state, sizeof ret->state, "%s", pool_state_name(j->state));
    ret->nodes_min = j->nodes_min;
    ret->nodes_max = j->nodes_max;
    ret->nproc = j->nproc;
    ret->gpus = j->gpus;
    ret->attempt = j->attempt;
    ret->place = (int64_t)j->order;
    ret->refusals = j->refusals;
    ret->met = j->met;
    ret->no_requeue = j->no_requeue;
    ret->requeues = j->requeues;
    memcpy(ret->lost, j->lost, sizeof ret->lost);
    ret->verdict = j->verdict;
    ret->exit_status = j->exit_status;
    memcpy(ret->cause, j->cause, sizeof ret->cause);
    ret->stop = j->stop;
    ret->signo = j->signo;
    ret->grace_ms = j->grace_ms;
    ret->submitted_unix_ms = j->submitted_unix_ms;
    ret->started_unix_ms = j->started_unix_ms;
    ret->ended_unix_ms = j->ended_unix_ms;
    size_t at = texts->n;
    for (uint32_t i = 0; i < j->seat_count; i++) {
        const struct pool_seat *s = &j->seats[i];
        (void)mu_buf_addf(texts, "%s %d %u %d ", s->node_id[0] != '\0' ? s->node_id : "-",
                          (int)s->state, s->status, s->held);
        for (uint32_t g = 0; g < s->gpu_count; g++)
            (void)mu_buf_addf(texts, "%s%d", g > 0 ? "," : "", s->gpus[g]);
        (void)mu_buf_addf(texts, "%s %s\n", s->gpu_count == 0 ? "-" : "", s->host);
    }
    size_t past_at = texts->n;
    for (uint32_t i = 0; i < j->past_count; i++)
        (void)mu_buf_addf(texts, "%s ", j->past[i]);
    size_t spec_at = texts->n;
    (void)mu_buf_add(texts, j->spec, j->spec_bytes);
    if (texts->oom)
        return -ENOMEM;
    ret->seats = mu_str_of(texts->p + at, past_at - at);
    ret->past = mu_str_of(texts->p + past_at, spec_at - past_at);
    ret->spec = mu_str_of(texts->p + spec_at, j->spec_bytes);
    return 0;
}

/* --- and back --- */

/* The next word of *in, up to `end`. False: there is none, or it has no room. */
static bool word(struct mu_str *in, char end, char *ret, size_t cap)
{
    const char *to = in->n > 0 ? memchr(in->p, end, in->n) : NULL;
    size_t n = to != NULL ? (size_t)(to - in->p) : 0;
    if (to == NULL || n >= cap)
        return false;
    memcpy(ret, in->p, n);
    ret[n] = '\0';
    *in = mu_str_of(to + 1, in->n - n - 1);
    return true;
}

static bool number(struct mu_str *in, char end, int64_t max, int64_t *ret)
{
    char text[24];
    return word(in, end, text, sizeof text) && mu_parse_i64(text, 0, max, "", ret, NULL) == 0;
}

/* The texts are a row's own: a list of numbers without a count. */
static bool load_gpus(struct pool *p, char *text, struct pool_seat *s)
{
    if (strcmp(text, "-") == 0)
        return true;
    struct mu_str in = mu_str_of(text, strlen(text) + 1);
    text[in.n - 1] = ','; /* Behind the last one, too. */
    s->gpus = mu_alloc(p->mem, MU_WORKERS_MAX * sizeof *s->gpus);
    while (s->gpus != NULL && in.n > 0) {
        int64_t g = 0;
        if (s->gpu_count == MU_WORKERS_MAX || !number(&in, ',', MU_WORKERS_MAX, &g))
            return false;
        s->gpus[s->gpu_count++] = (int32_t)g;
    }
    return s->gpus != NULL;
}

static bool load_seat(struct pool *p, struct mu_str *in, struct pool_seat *s)
{
    char gpus[MU_WORKERS_MAX * 5 + 2];
    int64_t state = 0;
    int64_t status = 0;
    int64_t held = 0;
    *s = (struct pool_seat){.node = POOL_NONE};
    if (!word(in, ' ', s->node_id, sizeof s->node_id) ||
        !number(in, ' ', POOL_SEAT_STATE_COUNT - 1, &state) || !number(in, ' ', 255, &status) ||
        !number(in, ' ', 1, &held) || !word(in, ' ', gpus, sizeof gpus - 1) ||
        !word(in, '\n', s->host, sizeof s->host) || !load_gpus(p, gpus, s))
        return false;
    if (strcmp(s->node_id, "-") == 0)
        s->node_id[0] = '\0';
    s->state = (enum pool_seat_state)state;
    s->status = (uint32_t)status;
    s->held = held != 0;
    s->ended_ns = p->now_ns;
    return true;
}

/* Its node is away until it comes. */
static bool load_node(struct pool *p, struct pool_job *j, struct pool_seat *s)
{
    bool held = s->held;
    s->held = false;
    if (!held || s->node_id[0] == '\0')
        return true;
    s->node = pool_node_find(p, s->node_id);
    if (s->node == POOL_NONE) {
        s->node = pool_node_new(p, s->node_id, NULL);
        if (s->node == POOL_NONE)
            return false;
        memcpy(p->nodes[s->node]->host, s->host, sizeof s->host);
        p->nodes[s->node]->gone_ns = p->now_ns;
    }
    pool_seat_hold(p, j, s);
    return true;
}

static int load_seats(struct pool *p, struct pool_job *j, struct mu_str in)
{
    uint32_t count = 0;
    for (size_t i = 0; i < in.n; i++)
        count += in.p[i] == '\n';
    if (count == 0)
        return 0;
    j->seats = mu_zalloc(p->mem, count * sizeof *j->seats);
    if (j->seats == NULL)
        return -ENOMEM;
    for (; j->seat_count < count; j->seat_count++)
        if (!load_seat(p, &in, &j->seats[j->seat_count])) {
            mu_mem_free(p->mem, j->seats[j->seat_count].gpus);
            return -EPROTO;
        }
    for (uint32_t i = 0; i < count; i++)
        if (!load_node(p, j, &j->seats[i]))
            return -ENOMEM;
    return 0;
}

static int check(const struct pool_row *row, enum pool_job_state *ret, struct mu_err *err)
{
    for (size_t i = 0; i < MU_COUNT(ints); i++) {
        int64_t v = 0;
        memcpy(&v, (const char *)row + ints[i].offset, sizeof v);
        if (v < ints[i].min || v > ints[i].max)
            return mu_err_set(err, -EPROTO, "field '%s' is not from %" PRId64 " to %" PRId64,
                              ints[i].name, ints[i].min, ints[i].max);
    }
    int s = 0;
    while (s < POOL_JOB_STATE_COUNT &&
           strcmp(pool_state_name((enum pool_job_state)s), row->state) != 0)
        s++;
    if (s == POOL_JOB_STATE_COUNT || row->id[0] == '\0' || row->nodes_min > row->nodes_max ||
        row->spec.n >= CTL_SPEC_BYTES)
        return mu_err_set(err, -EPROTO, "its state, id, nodes or submission is none of ours");
    *ret = (enum pool_job_state)s;
    return 0;
}

static void fill(struct pool_job *j, const struct pool_row *row)
{
    memcpy(j->name, row->name, sizeof j->name);
    j->nodes_min = (uint32_t)row->nodes_min;
    j->nodes_max = (uint32_t)row->nodes_max;
    j->nproc = (uint32_t)row->nproc;
    j->gpus = (int32_t)row->gpus;
    j->attempt = (uint32_t)row->attempt;
    j->order = (uint64_t)row->place;
    j->refusals =
        row->refusals < MU_POOL_REFUSALS_MAX ? (uint32_t)row->refusals : MU_POOL_REFUSALS_MAX;
    j->met = row->met != 0;
    j->no_requeue = row->no_requeue != 0;
    j->requeues = (uint32_t)row->requeues;
    memcpy(j->lost, row->lost, sizeof j->lost);
    j->verdict = (enum pool_verdict)row->verdict;
    j->exit_status = (int32_t)row->exit_status;
    memcpy(j->cause, row->cause, sizeof j->cause);
    j->stop = row->stop != 0;
    j->signo = (int32_t)row->signo;
    j->grace_ms = row->grace_ms;
    j->submitted_unix_ms = row->submitted_unix_ms;
    j->started_unix_ms = row->started_unix_ms;
    j->ended_unix_ms = row->ended_unix_ms;
}

static void load_past(struct pool *p, struct pool_job *j, struct mu_str in)
{
    char id[40] = "";
    while (word(&in, ' ', id, sizeof id)) {
        char padded[40] = "";
        (void)mu_strcopy(padded, sizeof padded, id);
        pool_job_note_past(p, j, padded);
    }
}

int pool_load(struct pool *p, int64_t now_ns, const struct pool_row *row, struct mu_err *err)
{
    enum pool_job_state state = POOL_QUEUED;
    p->now_ns = now_ns;
    int r = check(row, &state, err);
    if (r < 0)
        return r;
    if (pool_find_job(p, row->id) != POOL_NONE)
        return mu_err_set(err, -EPROTO, "its id is there twice");
    struct pool_job *j = pool_job_new(p, row->id);
    if (j == NULL)
        return mu_err_set(err, -ENOMEM, "no memory");
    fill(j, row);
    if (row->spec.n > 0) {
        j->spec = mu_alloc(p->mem, row->spec.n + 1);
        if (j->spec == NULL) {
            pool_job_free(p, j);
            return mu_err_set(err, -ENOMEM, "no memory");
        }
        memcpy(j->spec, row->spec.p, row->spec.n);
        j->spec[row->spec.n] = '\0';
        j->spec_bytes = row->spec.n;
        p->spec_bytes += row->spec.n;
    }
    load_past(p, j, row->past);
    r = load_seats(p, j, row->seats);
    if (r < 0) {
        pool_job_free(p, j);
        return mu_err_set(err, r, "its nodes make no sense, or there is no memory");
    }
    j->verdict_ns = now_ns;
    j->state = state; /* As it was: no move. */
    if (pool_is_over(j)) {
        p->live_count--;
        p->ended_count++;
    }
    if (state == POOL_QUEUED)
        pool_job_enqueue(p, j);
    p->orders = j->order > p->orders ? j->order : p->orders;
    return 0;
}
