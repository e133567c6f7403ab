/* The records of rounds' ends, and GET /jobs/ID/incidents. Names and meanings are promised by
 * docs/incidents.md and docs/incidents.schema.json; change all three together. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <utlist.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/parse.h"
#include "rendezvous/server/internal.h"

/* --- kept in memory: the last ones of each job, each as small as its texts --- */

static size_t packed_bytes(const struct job_incident *in)
{
    size_t n = 0;
    for (size_t i = 0; i < job_incident_fields.n; i++) {
        const struct job_field *f = &job_incident_fields.v[i];
        n += f->bytes == 0 ? sizeof(int64_t) : strlen((const char *)in + f->offset) + 1;
    }
    return n;
}

/* NULL without memory. */
static struct srv_incident *pack(const struct job_incident *in)
{
    struct srv_incident *ret = mu_alloc(mu_mem_default(), sizeof *ret + packed_bytes(in));
    if (ret == NULL)
        return NULL;
    ret->number = in->number;
    char *p = ret->packed;
    for (size_t i = 0; i < job_incident_fields.n; i++) {
        const struct job_field *f = &job_incident_fields.v[i];
        const char *from = (const char *)in + f->offset;
        size_t n = f->bytes == 0 ? sizeof(int64_t) : strlen(from) + 1;
        memcpy(p, from, n);
        p += n;
    }
    return ret;
}

void incidents_unpack(const struct srv_incident *packed, struct job_incident *ret)
{
    const char *p = packed->packed;
    memset(ret, 0, sizeof *ret);
    for (size_t i = 0; i < job_incident_fields.n; i++) {
        const struct job_field *f = &job_incident_fields.v[i];
        size_t n = f->bytes == 0 ? sizeof(int64_t) : strlen(p) + 1;
        memcpy((char *)ret + f->offset, p, n);
        p += n;
    }
}

static int make_room(struct srv_job *sj)
{
    if (sj->incident_count == SRV_INCIDENTS_MAX) {
        mu_mem_free(mu_mem_default(), sj->incidents[0]);
        memmove(sj->incidents, sj->incidents + 1, (SRV_INCIDENTS_MAX - 1) * sizeof(void *));
        sj->incident_count--;
    }
    if (sj->incident_count < sj->incident_cap)
        return 0;
    uint32_t cap = sj->incident_cap == 0 ? 2 : sj->incident_cap * 2;
    struct srv_incident **v =
        mu_realloc(mu_mem_default(), (void *)sj->incidents, cap * sizeof(void *));
    if (v == NULL)
        return -ENOMEM;
    sj->incidents = v;
    sj->incident_cap = cap;
    return 0;
}

int incidents_add(struct srv_job *sj, const struct job_incident *in)
{
    struct srv_incident **last =
        sj->incident_count > 0 ? &sj->incidents[sj->incident_count - 1] : NULL;
    struct srv_incident *packed = pack(in);
    if (packed == NULL)
        return -ENOMEM;
    if (last != NULL && (*last)->number == in->number) { /* It says more than before. */
        mu_mem_free(mu_mem_default(), *last);
        *last = packed;
        return 0;
    }
    if (make_room(sj) < 0) {
        mu_mem_free(mu_mem_default(), packed);
        return -ENOMEM;
    }
    sj->incidents[sj->incident_count++] = packed;
    return 0;
}

void incidents_free(struct srv_job *sj)
{
    for (uint32_t i = 0; i < sj->incident_count; i++)
        mu_mem_free(mu_mem_default(), sj->incidents[i]);
    mu_mem_free(mu_mem_default(), (void *)sj->incidents);
    sj->incidents = NULL;
    sj->incident_count = 0;
}

void incidents_note(struct srv_job *sj)
{
    (void)incidents_add(sj, &sj->job.incident); /* Without memory it is not shown. */
}

/* --- written --- */

static void put_time(struct mu_json *w, const char *key, int64_t unix_ms)
{
    char text[32];
    mu_json_kstr(w, key, unix_ms != 0 ? mu_iso8601(unix_ms, text) : NULL);
}

/* Seconds from one moment to the next; null where one of them is not known. */
static void put_span(struct mu_json *w, const char *key, int64_t from_ms, int64_t to_ms)
{
    mu_json_key(w, key);
    if (from_ms == 0 || to_ms == 0)
        mu_json_null(w);
    else
        mu_json_num(w, (double)(to_ms - from_ms) / 1000.0);
}

/* What was decided, for people. */
static const char *
why(const struct job_incident *in, const struct mu_cause *cause, struct mu_buf *b)
{
    char span[MU_SPAN_BYTES];
    char within[MU_SPAN_BYTES + 8] = "";
    if (in->window_ms > 0)
        (void)snprintf(within, sizeof within, " within %s",
                       mu_span_text(in->window_ms, true, span));
    mu_buf_reset(b);
    if (strcmp(in->decision, "restart") == 0)
        (void)mu_buf_addf(b, "a failure: the group starts again (restart %lld of %lld%s)",
                          (long long)in->spent, (long long)in->max_restarts, within);
    else if (in->same_failure != 0)
        mu_cause_twice_sentence(cause, b);
    else if (strcmp(in->decision, "fail") == 0 && in->window_ms > 0)
        (void)mu_buf_addf(b, "a failure, and no restart is left: %lld of %lld restarts%s are spent",
                          (long long)in->spent, (long long)in->max_restarts, within);
    else if (strcmp(in->decision, "fail") == 0)
        (void)mu_buf_addf(b, "a failure, and no restart is left: %lld of %lld are spent",
                          (long long)in->spent, (long long)in->max_restarts);
    else if (strcmp(in->decision, "regroup") == 0)
        (void)mu_buf_adds(b, "nodes came or went, which spends no restart: another round begins "
                             "when enough nodes are here");
    else if (strcmp(in->decision, "abandon") == 0)
        (void)mu_buf_adds(b, "no node is left: the job ends");
    else if (strcmp(in->decision, "give_up") == 0)
        (void)mu_buf_adds(b, "too few nodes came in time: the job ends");
    else
        (void)mu_buf_adds(b, "every worker exited with status 0");
    return mu_buf_cstr(b);
}

/* What else failed; returns how many of them are told. */
static uint32_t put_others(struct mu_json *w, const struct job_incident *in)
{
    struct job_other o;
    uint32_t count = 0;
    size_t at = 0;
    mu_json_key(w, "consequences");
    mu_json_open(w, '[');
    for (; job_incident_other(in, &at, &o); count++) {
        mu_json_open(w, '{');
        mu_json_key(w, "rank");
        if (o.rank >= 0)
            mu_json_i64(w, o.rank);
        else
            mu_json_null(w);
        mu_json_kstr(w, "host", o.host[0] != '\0' ? o.host : NULL);
        mu_json_kstr(w, "sentence", o.sentence);
        put_time(w, "at", o.at_unix_ms);
        mu_json_close(w, '}');
    }
    mu_json_close(w, ']');
    return count;
}

static void put_lines(struct mu_json *w, const char *key, const char *text)
{
    mu_json_key(w, key);
    mu_json_open(w, '[');
    while (*text != '\0') {
        size_t n = strcspn(text, "\n");
        mu_json_strn(w, mu_str_of(text, n));
        text += n + (text[n] == '\n');
    }
    mu_json_close(w, ']');
}

/* Clocks of two hosts: a difference that cannot be is none. */
static void put_detect(struct mu_json *w, const struct job_incident *in)
{
    bool known = in->cause_at_unix_ms > 0 && in->cause_at_unix_ms <= in->decided_unix_ms;
    put_span(w, "detect", known ? in->cause_at_unix_ms : 0, in->decided_unix_ms);
}

static void put_ms(struct mu_json *w, const char *key, int64_t ms)
{
    mu_json_key(w, key);
    if (ms < 0)
        mu_json_null(w);
    else
        mu_json_num(w, (double)ms / 1000.0);
}

static void put_phases(struct mu_json *w, const struct job_incident *in)
{
    mu_json_key(w, "phases_s");
    mu_json_open(w, '{');
    put_span(w, "gathering", in->gathering_unix_ms, in->started_unix_ms);
    put_span(w, "starting", in->started_unix_ms, in->running_unix_ms);
    put_span(w, "running", in->running_unix_ms, in->decided_unix_ms);
    put_detect(w, in);
    put_span(w, "stopping", in->decided_unix_ms, in->stopped_unix_ms);
    put_ms(w, "stop", in->stop_ms);
    put_ms(w, "reclaim", in->reclaim_ms);
    put_span(w, "rendezvous", in->stopped_unix_ms, in->next_unix_ms);
    put_span(w, "spawn", in->next_unix_ms, in->next_running_unix_ms);
    put_span(w, "first_step", in->next_running_unix_ms, in->next_step_unix_ms);
    mu_json_close(w, '}');
}

static void put_incident(struct mu_json *w, const struct job_incident *in, struct mu_buf *text)
{
    struct mu_cause cause;
    job_incident_cause(in, &cause);
    mu_json_open(w, '{');
    mu_json_ki64(w, "number", in->number);
    mu_json_ki64(w, "round", in->round);
    mu_json_kstr(w, "decision", in->decision);
    mu_json_kstr(w, "reason", why(in, &cause, text));
    mu_json_ki64(w, "restarts", in->restarts);
    mu_json_ki64(w, "restarts_spent", in->spent);
    mu_json_ki64(w, "restarts_given_back", in->given_back);
    mu_json_ki64(w, "max_restarts", in->max_restarts);
    mu_json_key(w, "restart_window_s");
    if (in->window_ms > 0)
        mu_json_num(w, (double)in->window_ms / 1000.0);
    else
        mu_json_null(w);
    mu_json_kbool(w, "same_failure", in->same_failure != 0);
    mu_json_ki64(w, "nodes", in->nodes);
    mu_json_ki64(w, "world", in->world);
    mu_json_key(w, "cause");
    status_put_cause(w, &cause);
    uint32_t told = put_others(w, in);
    mu_json_ki64(w, "consequences_left_out", in->consequences > told ? in->consequences - told : 0);
    put_lines(w, "last_lines", in->tail);
    mu_json_kstr(w, "trace", in->trace[0] != '\0' ? in->trace : NULL);
    put_time(w, "gathering_at", in->gathering_unix_ms);
    put_time(w, "started_at", in->started_unix_ms);
    put_time(w, "running_at", in->running_unix_ms);
    put_time(w, "decided_at", in->decided_unix_ms);
    put_time(w, "stopped_at", in->stopped_unix_ms);
    put_time(w, "next_at", in->next_unix_ms);
    put_time(w, "next_running_at", in->next_running_unix_ms);
    put_time(w, "next_step_at", in->next_step_unix_ms);
    put_phases(w, in);
    mu_json_close(w, '}');
}

/* The job of that id that lives, or else the last one that ended. */
static const struct srv_job *find(const struct srv *s, struct mu_str id)
{
    const struct srv_job *sj = NULL;
    const struct srv_job *last = NULL;
    DL_FOREACH(s->jobs, sj)
    {
        const char *run_id = sj->job.run_id;
        if (!mu_str_eq(id, mu_str_of(run_id, strlen(run_id))))
            continue;
        if (!sj->ended)
            return sj;
        last = sj;
    }
    return last;
}

static bool get(const struct srv *s, struct mu_str id, struct mu_buf *out)
{
    struct mu_json w;
    struct mu_buf text;
    const struct srv_job *sj = find(s, id);
    mu_buf_reset(out);
    if (sj == NULL)
        return false;
    uint32_t left_out = sj->job.incident_count - sj->incident_count;
    mu_buf_init(&text, mu_mem_default());
    mu_json_init(&w, out);
    mu_json_open(&w, '{');
    mu_json_kstr(&w, "id", sj->job.run_id);
    mu_json_ki64(&w, "left_out", left_out);
    mu_json_key(&w, "incidents");
    mu_json_open(&w, '[');
    struct job_incident *row = mu_alloc(mu_mem_default(), sizeof *row);
    for (uint32_t i = 0; i < sj->incident_count && row != NULL; i++) {
        incidents_unpack(sj->incidents[i], row);
        put_incident(&w, row, &text);
    }
    out->oom = out->oom || row == NULL;
    mu_mem_free(mu_mem_default(), row);
    mu_json_close(&w, ']');
    mu_json_close(&w, '}');
    (void)mu_buf_adds(out, "\n");
    mu_buf_fini(&text);
    return true;
}

void incidents_serve(struct srv *s,
                     const struct srv_http_request *q,
                     struct mu_str id,
                     struct srv_http_answer *ret)
{
    (void)q;
    struct mu_buf *page = answer_new();
    if (page != NULL && !get(s, id, page)) {
        answer_free(page);
        *ret = answer_text(404, NULL, "{\"error\":\"there is no job of that id\"}\n");
        return;
    }
    *ret = answer_body(200, page);
}
