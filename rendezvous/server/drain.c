/* POST /nodes/NODE/drain: somebody asks that a node leave in order. What that means is the job's
 * business (rendezvous/job/drain.c); here the node is found, and the answer is written. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <utlist.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/parse.h"
#include "rendezvous/server/internal.h"
#include "rendezvous/server/pool.h"

#define ANSWER_BYTES 2048

/* --- which node --- */

struct found {
    struct srv_job *job;
    uint32_t node;
    uint32_t count;
    bool has_job; /* A living job of the wanted id is there. */
};

static void look_in(struct srv_job *sj, const char *name, struct found *ret)
{
    for (uint32_t i = 0; i < sj->job.node_cap; i++) {
        const struct job_node *n = &sj->job.nodes[i];
        bool is_it = n->used && n->state != JOB_NODE_LOST &&
                     (strcmp(n->hello.node, name) == 0 || strcmp(n->hello.host, name) == 0);
        if (!is_it)
            continue;
        ret->job = sj;
        ret->node = i;
        ret->count++;
    }
}

static struct found find(const struct srv *s, const char *name, const char *job)
{
    struct found f = {0};
    struct srv_job *sj = NULL;
    DL_FOREACH(s->jobs, sj)
    {
        if (job_is_ended(&sj->job) || (job != NULL && strcmp(sj->job.run_id, job) != 0))
            continue;
        f.has_job = true;
        look_in(sj, name, &f);
    }
    return f;
}

/* --- the answer --- */

static void
describe(const struct srv *s, const struct found *f, int64_t timeout_ms, struct mu_buf *b)
{
    const struct job *j = &f->job->job;
    struct mu_buf sentence;
    struct mu_json w;
    mu_buf_init(&sentence, mu_mem_default());
    job_sentence(j, s->now_ns, &sentence);
    mu_json_init(&w, b);
    mu_json_open(&w, '{');
    mu_json_kstr(&w, "job", j->run_id);
    mu_json_kstr(&w, "node", j->nodes[f->node].hello.node);
    mu_json_kstr(&w, "host", j->nodes[f->node].hello.host);
    mu_json_ki64(&w, "timeout_ms", timeout_ms);
    mu_json_ki64(&w, "halt_step", j->state == JOB_RUNNING ? j->halt_step : -1);
    mu_json_kstr(&w, "sentence", mu_buf_cstr(&sentence));
    mu_json_close(&w, '}');
    (void)mu_buf_adds(b, "\n");
    mu_buf_fini(&sentence);
}

static void
begin(struct srv *s, const struct found *f, int64_t timeout_ns, struct srv_http_answer *ret)
{
    struct ctl_msg m;
    struct mu_err err = {0};
    if (job_check_drain(&f->job->job, f->node, &err) < 0) {
        *ret = answer_refusal(409, err.msg);
        return;
    }
    struct mu_buf *b = answer_new();
    if (b == NULL || mu_buf_reserve(b, ANSWER_BYTES) < 0) { /* Before anything is begun. */
        answer_free(b);
        *ret = answer_body(500, NULL);
        return;
    }
    ctl_init(&m, CTL_DRAIN);
    m.u.drain.timeout_ms = timeout_ns / MU_NS_PER_MS;
    (void)mu_strcopy(m.u.drain.reason, sizeof m.u.drain.reason, "asked through the server");
    mu_log(MU_INFO, "node.drain", "host=%s timeout_ms=%lld", f->job->job.nodes[f->node].hello.host,
           (long long)m.u.drain.timeout_ms);
    struct found now = *f;
    jobs_event(s, f->job, JOB_EV_DRAIN, f->node, &m);
    describe(s, &now, m.u.drain.timeout_ms, b);
    *ret = answer_body(202, b);
}

static void drain(struct srv *s,
                  const struct srv_http_request *q,
                  const char *name,
                  struct srv_http_answer *ret)
{
    const char *job = srv_query(q, "job");
    const char *timeout = srv_query(q, "timeout");
    char text[512];
    char shown[160];
    int64_t timeout_ns = MU_DRAIN_NS;
    struct mu_err err = {0};
    if (timeout != NULL &&
        mu_parse_seconds(timeout, 0, MU_DRAIN_MAX_NS, "timeout", &timeout_ns, &err) < 0) {
        *ret = answer_refusal(400, err.msg);
        return;
    }
    if (job == NULL && srv_pool_drain(s, name, timeout_ns, ret))
        return;
    struct found f = find(s, name, job);
    (void)mu_quote(shown, sizeof shown, mu_str_of(name, strlen(name)));
    if (f.count == 1) {
        begin(s, &f, timeout_ns, ret);
        return;
    }
    if (f.count > 1)
        (void)snprintf(text, sizeof text,
                       "%u nodes are called %s: name the job as well, or one of them by its id, as "
                       "/status has it",
                       f.count, shown);
    else if (job != NULL && !f.has_job)
        (void)snprintf(text, sizeof text, "there is no living job of that id");
    else
        (void)snprintf(text, sizeof text,
                       "no living job has a node %s, nor has the pool: muster nodes and "
                       "muster pool list those that are there",
                       shown);
    *ret = answer_refusal(f.count > 1 ? 409 : 404, text);
}

void drain_serve(struct srv *s,
                 const struct srv_http_request *q,
                 struct mu_str wanted,
                 struct srv_http_answer *ret)
{
    char name[MU_HOST_BYTES];
    if (wanted.n >= sizeof name) {
        *ret = answer_refusal(404, "no node has so long a name");
        return;
    }
    memcpy(name, wanted.p, wanted.n);
    name[wanted.n] = '\0';
    drain(s, q, name, ret);
}
