/* What is asked of the pool over HTTP: jobs submitted, looked at, stopped and resumed; nodes
 * drained. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/date.h"
#include "rendezvous/server/pool.h"
#include "rendezvous/server/submission.h"

#define ID_TRIES 8
#define UNKEPT "it is done, but a restart of this server would not know of it"

void jobs_put_time(struct mu_json *w, const char *key, int64_t unix_ms)
{
    char text[32];
    mu_json_kstr(w, key, unix_ms > 0 ? mu_iso8601(unix_ms, text) : NULL);
}

static void put_sentence(struct mu_json *w, const struct pool *p, const struct pool_job *j)
{
    struct mu_buf b;
    mu_buf_init(&b, mu_mem_default());
    pool_sentence(p, j, &b);
    mu_json_key(w, "sentence");
    mu_json_strn(w, mu_str_of(b.p, b.n));
    mu_buf_fini(&b);
}

struct pool_job *jobs_named(struct srv *s, struct mu_str name, struct srv_http_answer *ret)
{
    char id[MU_RUN_ID_BYTES] = "";
    char shown[MU_RUN_ID_BYTES + 16];
    char text[MU_RUN_ID_BYTES + 160];
    if (name.n < sizeof id)
        memcpy(id, name.p, name.n);
    uint32_t slot = id[0] != '\0' ? pool_find_job(&s->pool->pool, id) : POOL_NONE;
    if (slot != POOL_NONE)
        return s->pool->pool.jobs[slot];
    (void)snprintf(text, sizeof text,
                   "no job %s was submitted here, or it is long over (/status has those whose "
                   "agents were started by hand)",
                   mu_quote(shown, sizeof shown, name));
    *ret = answer_refusal(404, text);
    return NULL;
}

static unsigned status_of(int code)
{
    return code == -EEXIST || code == -EALREADY || code == -ENOENT ? 409
           : code == -EINVAL                                       ? 400
                                                                   : 503;
}

/* {"id","state","sentence"} */
static struct srv_http_answer
describe(const struct srv *s, unsigned status, const struct pool_job *j)
{
    struct mu_json w;
    struct mu_buf *b = answer_new();
    if (b == NULL)
        return answer_body(500, NULL);
    mu_json_init(&w, b);
    mu_json_open(&w, '{');
    mu_json_kstr(&w, "id", j->id);
    mu_json_kstr(&w, "state", pool_state_name(j->state));
    put_sentence(&w, &s->pool->pool, j);
    mu_json_close(&w, '}');
    (void)mu_buf_adds(b, "\n");
    return answer_body(status, b);
}

/* --- POST /jobs --- */

static bool is_taken(const struct srv *s, const char *id)
{
    struct srv_job *sj = NULL;
    HASH_FIND_STR(s->by_id, id, sj);
    return (sj != NULL && !sj->ended) || pool_find_job(&s->pool->pool, id) != POOL_NONE;
}

static int choose_id(const struct srv *s, struct submission *sub, struct mu_err *err)
{
    unsigned char bytes[3];
    if (sub->id[0] != '\0')
        return is_taken(s, sub->id)
                   ? mu_err_set(
                         err, -EEXIST,
                         "a job '%s' is known already: choose another id, or resume that one",
                         sub->id)
                   : 0;
    for (int i = 0; i < ID_TRIES; i++) {
        if (getrandom(bytes, sizeof bytes, GRND_NONBLOCK) != (ssize_t)sizeof bytes)
            break;
        (void)snprintf(sub->id, sizeof sub->id, "%s-%02x%02x%02x", sub->name, bytes[0], bytes[1],
                       bytes[2]);
        if (!is_taken(s, sub->id))
            return 0;
    }
    return mu_err_set(err, -EAGAIN, "no id was found for the job: try again, or give one");
}

static int submit(struct srv *s, struct submission *sub, struct pool_out *out, struct mu_err *err)
{
    int r = choose_id(s, sub, err);
    if (r < 0)
        return r;
    const struct pool_submission what = {.id = sub->id,
                                         .name = sub->name,
                                         .spec = mu_str_of(sub->spec.p, sub->spec.n),
                                         .nodes_min = sub->nodes_min,
                                         .nodes_max = sub->nodes_max,
                                         .nproc = sub->nproc,
                                         .gpus = sub->gpus,
                                         .no_requeue = sub->no_requeue,
                                         .unkept = s->state != NULL};
    struct pool_event ev = {
        .type = POOL_EV_SUBMIT, .node = POOL_NONE, .job = POOL_NONE, .submission = &what};
    return srv_pool_step(s, &ev, out, err);
}

void jobs_submit_serve(struct srv *s,
                       const struct srv_http_request *q,
                       struct mu_str name,
                       struct srv_http_answer *ret)
{
    struct submission sub;
    struct pool_out out;
    struct mu_err err = {0};
    (void)name;
    if (state_refuses(s, ret))
        return;
    int r = submission_read(mu_str_of(q->body, q->body_bytes), &sub, &err);
    if (r == 0)
        r = submit(s, &sub, &out, &err);
    submission_fini(&sub);
    if (r < 0)
        *ret = answer_refusal(status_of(r), err.msg);
    else
        *ret = describe(s, 201, s->pool->pool.jobs[out.job]);
    state_hold_answer(s, "the job was not taken on", ret);
}

/* --- GET /jobs/ID --- */

static void put_placed(struct mu_json *w, const struct pool_job *j)
{
    mu_json_key(w, "placed");
    mu_json_open(w, '[');
    for (uint32_t i = 0; i < j->seat_count; i++) {
        const struct pool_seat *seat = &j->seats[i];
        if (seat->state == POOL_SEAT_VACANT)
            continue;
        mu_json_open(w, '{');
        mu_json_kstr(w, "node", seat->node_id);
        mu_json_kstr(w, "host", seat->host);
        mu_json_key(w, "gpus");
        mu_json_open(w, '[');
        for (uint32_t g = 0; g < seat->gpu_count; g++)
            mu_json_i64(w, seat->gpus[g]);
        mu_json_close(w, ']');
        mu_json_close(w, '}');
    }
    mu_json_close(w, ']');
}

static void put_job(struct mu_json *w, const struct pool *p, const struct pool_job *j)
{
    mu_json_kstr(w, "id", j->id);
    mu_json_kstr(w, "state", pool_state_name(j->state));
    put_sentence(w, p, j);
    mu_json_key(w, "exit_status");
    if (pool_is_over(j) && j->exit_status >= 0)
        mu_json_i64(w, j->exit_status);
    else
        mu_json_null(w);
    mu_json_kstr(w, "cause", pool_is_over(j) && j->cause[0] != '\0' ? j->cause : NULL);
    mu_json_ki64(w, "attempt", j->attempt);
    mu_json_kbool(w, "requeue", !j->no_requeue);
    mu_json_ki64(w, "requeues", j->requeues);
    jobs_put_time(w, "submitted_at", j->submitted_unix_ms);
    jobs_put_time(w, "started_at", j->started_unix_ms);
    jobs_put_time(w, "ended_at", j->ended_unix_ms);
    put_placed(w, j);
}

void jobs_get_serve(struct srv *s,
                    const struct srv_http_request *q,
                    struct mu_str name,
                    struct srv_http_answer *ret)
{
    struct mu_json w;
    (void)q;
    const struct pool_job *j = jobs_named(s, name, ret);
    if (j == NULL)
        return;
    struct mu_buf *b = answer_new();
    if (b == NULL) {
        *ret = answer_body(500, NULL);
        return;
    }
    mu_json_init(&w, b);
    mu_json_open(&w, '{');
    put_job(&w, &s->pool->pool, j);
    if (j->spec != NULL) { /* Its fields as they are, but for the environment. */
        (void)mu_buf_adds(b, ",");
        (void)mu_buf_add(b, j->spec + 1, submission_public_bytes(j->spec, j->spec_bytes) - 1);
    } else {
        mu_json_kstr(&w, "name", j->name);
    }
    mu_json_close(&w, '}');
    (void)mu_buf_adds(b, "\n");
    *ret = answer_body(200, b);
}

/* --- POST /jobs/ID/stop and resume --- */

static void
ask(struct srv *s, struct pool_job *j, struct pool_event *ev, struct srv_http_answer *ret)
{
    struct pool_out out;
    struct mu_err err = {0};
    bool frees = ev->type == POOL_EV_STOP; /* Perhaps what fills the disk: it cannot wait for it. */
    if (!frees && state_refuses(s, ret))
        return;
    ev->node = POOL_NONE;
    ev->job = j->slot;
    int r = srv_pool_step(s, ev, &out, &err);
    *ret = r < 0 ? answer_refusal(status_of(r), err.msg) : describe(s, 202, j);
    state_hold_answer(s, UNKEPT, ret);
}

void jobs_stop_serve(struct srv *s,
                     const struct srv_http_request *q,
                     struct mu_str name,
                     struct srv_http_answer *ret)
{
    struct mu_err err = {0};
    struct pool_event ev = {.type = POOL_EV_STOP};
    struct pool_job *j = jobs_named(s, name, ret);
    if (j == NULL)
        return;
    if (submission_read_stop(mu_str_of(q->body, q->body_bytes), &ev.signo, &ev.grace_ms, &err) < 0)
        *ret = answer_refusal(400, err.msg);
    else
        ask(s, j, &ev, ret);
}

void jobs_resume_serve(struct srv *s,
                       const struct srv_http_request *q,
                       struct mu_str name,
                       struct srv_http_answer *ret)
{
    struct pool_event ev = {.type = POOL_EV_RESUME};
    struct pool_job *j = jobs_named(s, name, ret);
    (void)q;
    if (j != NULL)
        ask(s, j, &ev, ret);
}

/* --- nodes --- */

/* seats: of jobs that were there. */
static struct srv_http_answer
describe_node(const struct pool_node *n, uint32_t seats, int64_t timeout_ms)
{
    struct mu_json w;
    struct mu_buf *b = answer_new();
    char sentence[MU_HOST_BYTES + 96];
    if (b == NULL)
        return answer_body(500, NULL);
    const char *what = n->draining ? "is drained: it takes no new jobs" : "takes jobs again";
    if (seats == 0)
        (void)snprintf(sentence, sizeof sentence, "%s %s%s", n->host, what,
                       n->draining ? ", and none is on it" : "");
    else if (n->draining)
        (void)snprintf(sentence, sizeof sentence,
                       "%s takes no new jobs, and %u on it %s asked to leave", n->host, seats,
                       seats == 1 ? "is" : "are");
    else
        (void)snprintf(sentence, sizeof sentence, "%s %s: it has %u that %s there before", n->host,
                       what, seats, seats == 1 ? "was" : "were");
    mu_json_init(&w, b);
    mu_json_open(&w, '{');
    mu_json_kstr(&w, "job", NULL);
    mu_json_kstr(&w, "node", n->id);
    mu_json_kstr(&w, "host", n->host);
    mu_json_ki64(&w, "timeout_ms", timeout_ms);
    mu_json_ki64(&w, "halt_step", -1);
    mu_json_kstr(&w, "sentence", sentence);
    mu_json_close(&w, '}');
    (void)mu_buf_adds(b, "\n");
    return answer_body(202, b);
}

/* The job's agent there leaves in order, as one that was started by hand does. */
static void drain_agent(struct srv *s, const char *id, const char *host, int64_t timeout_ns)
{
    struct srv_job *sj = NULL;
    struct ctl_msg m;
    HASH_FIND_STR(s->by_id, id, sj);
    for (uint32_t i = 0; sj != NULL && !sj->ended && i < sj->job.node_cap; i++) {
        const struct job_node *n = &sj->job.nodes[i];
        if (!n->used || n->state == JOB_NODE_LOST || strcmp(n->hello.host, host) != 0 ||
            job_check_drain(&sj->job, i, NULL) < 0)
            continue;
        ctl_init(&m, CTL_DRAIN);
        m.u.drain.timeout_ms = timeout_ns / MU_NS_PER_MS;
        (void)mu_strcopy(m.u.drain.reason, sizeof m.u.drain.reason, "its node is being drained");
        jobs_event(s, sj, JOB_EV_DRAIN, i, &m);
        return;
    }
}

static bool find(struct srv *s, const char *name, uint32_t *ret_node, struct srv_http_answer *ret)
{
    bool many = false;
    char text[160];
    *ret_node = pool_find_node(&s->pool->pool, name, &many);
    if (*ret_node == POOL_NONE)
        return false;
    if (many) {
        (void)snprintf(text, sizeof text,
                       "several nodes on offer have that name: take the id, as muster pool has it");
        *ret = answer_refusal(409, text);
        *ret_node = POOL_NONE;
    }
    return true;
}

bool srv_pool_drain(struct srv *s,
                    const char *name,
                    int64_t timeout_ns,
                    struct srv_http_answer *ret)
{
    struct pool *p = &s->pool->pool;
    struct pool_out out;
    struct mu_err err = {0};
    struct pool_event ev = {.type = POOL_EV_DRAIN, .job = POOL_NONE};
    if (!find(s, name, &ev.node, ret))
        return false;
    if (ev.node == POOL_NONE) /* A disk that takes nothing is no reason to stay. */
        return true;
    int r = srv_pool_step(s, &ev, &out, &err);
    if (r < 0) {
        *ret = answer_refusal(status_of(r), err.msg);
        return true;
    }
    *ret = describe_node(p->nodes[ev.node], p->nodes[ev.node]->seats, timeout_ns / MU_NS_PER_MS);
    for (uint32_t i = 0; i < p->job_cap; i++)
        for (uint32_t k = 0; p->jobs[i] != NULL && k < p->jobs[i]->seat_count; k++)
            if (p->jobs[i]->seats[k].held && p->jobs[i]->seats[k].node == ev.node)
                drain_agent(s, p->jobs[i]->id, p->nodes[ev.node]->host, timeout_ns);
    state_hold_answer(s, UNKEPT, ret);
    return true;
}

/* One that is drained and not on offer now. */
static void undrain_host(struct srv *s, const char *host, struct srv_http_answer *ret)
{
    struct pool_out out;
    struct mu_err err = {0};
    struct pool_event ev = {
        .type = POOL_EV_UNDRAIN, .node = POOL_NONE, .job = POOL_NONE, .text = host};
    struct pool_node n = {0};
    (void)mu_strcopy(n.host, sizeof n.host, host);
    int r = srv_pool_step(s, &ev, &out, &err);
    *ret = r < 0 ? answer_refusal(404, err.msg) : describe_node(&n, 0, 0);
    state_hold_answer(s, UNKEPT, ret);
}

void undrain_serve(struct srv *s,
                   const struct srv_http_request *q,
                   struct mu_str name,
                   struct srv_http_answer *ret)
{
    char text[MU_HOST_BYTES] = "";
    struct pool_out out;
    struct mu_err err = {0};
    struct pool_event ev = {.type = POOL_EV_UNDRAIN, .job = POOL_NONE};
    (void)q;
    if (state_refuses(s, ret))
        return;
    if (name.n < sizeof text)
        memcpy(text, name.p, name.n);
    if (!find(s, text, &ev.node, ret)) {
        undrain_host(s, text, ret);
        return;
    }
    if (ev.node == POOL_NONE)
        return;
    const struct pool_node *n = s->pool->pool.nodes[ev.node];
    uint32_t seats = n->seats; /* Before it is given something new. */
    int r = srv_pool_step(s, &ev, &out, &err);
    *ret = r < 0 ? answer_refusal(409, err.msg) : describe_node(n, seats, 0);
    state_hold_answer(s, UNKEPT, ret);
}
