/* Events as JSON; see events.h. Keys and their order as torchrun has them. */
#include "agent/events.h"

#include <stdio.h>

#include "base/json.h"

static void key_or_null(struct mu_json *w, const char *key, bool known, int64_t value)
{
    mu_json_key(w, key);
    if (known)
        mu_json_i64(w, value);
    else
        mu_json_null(w);
}

static void list_of_one(struct mu_json *w, const char *key, bool known, int64_t value)
{
    mu_json_key(w, key);
    mu_json_open(w, '[');
    if (known)
        mu_json_i64(w, value);
    else
        mu_json_null(w);
    mu_json_close(w, ']');
}

/* The inner object, which travels as text. */
static void add_inner(struct mu_json *w,
                      const struct events_job *job,
                      const struct ctl_start *start,
                      const struct events_item *item)
{
    struct mu_buf b;
    struct mu_json in;
    mu_buf_init(&b, w->buf->mem);
    mu_json_init(&in, &b);
    mu_json_open(&in, '{');
    key_or_null(&in, "group_world_size", start->round > 0, start->node_count);
    mu_json_kstr(&in, "entry_point", job->entry_point);
    if (item->local_rank >= 0) {
        list_of_one(&in, "local_rank", true, item->local_rank);
        list_of_one(&in, "role_rank", true, start->role_rank_base + item->local_rank);
        list_of_one(&in, "role_world_size", true, start->role_world);
        list_of_one(&in, "exit_code", item->exit_code != 0, item->exit_code);
        list_of_one(&in, "worker_pid", item->exit_code != 0, item->pid);
    }
    mu_json_close(&in, '}');
    mu_json_kstr(w, "metadata", mu_buf_cstr(&b));
    w->buf->oom = w->buf->oom || b.oom;
    mu_buf_fini(&b);
}

static void add_error(struct mu_json *w, const struct events_item *item)
{
    if (item->exit_code == 0) {
        mu_json_key(w, "raw_error");
        mu_json_null(w);
        return;
    }
    struct mu_buf b;
    struct mu_json in;
    mu_buf_init(&b, w->buf->mem);
    mu_json_init(&in, &b);
    mu_json_open(&in, '{');
    mu_json_kstr(&in, "message", item->error != NULL ? item->error : "<NONE>");
    mu_json_close(&in, '}');
    mu_json_kstr(w, "raw_error", mu_buf_cstr(&b));
    w->buf->oom = w->buf->oom || b.oom;
    mu_buf_fini(&b);
}

static void add_metadata(struct mu_json *w,
                         const struct events_job *job,
                         const struct ctl_start *start,
                         const struct events_item *item)
{
    char pid[16];
    bool is_worker = item->local_rank >= 0;
    (void)snprintf(pid, sizeof pid, "%d", item->pid);
    mu_json_open(w, '{');
    mu_json_kstr(w, "run_id", job->run_id);
    key_or_null(w, "global_rank", is_worker, start->rank_base + item->local_rank);
    key_or_null(w, "group_rank", start->round > 0, start->node_rank);
    mu_json_kstr(w, "worker_id", is_worker ? pid : NULL);
    mu_json_kstr(w, "role", job->role);
    mu_json_kstr(w, "hostname", job->host);
    mu_json_kstr(w, "state", item->state);
    mu_json_ki64(w, "total_run_time", item->total_run_time_s);
    mu_json_kstr(w, "rdzv_backend", job->backend);
    add_error(w, item);
    add_inner(w, job, start, item);
    mu_json_ki64(w, "agent_restarts", start->restarts);
    key_or_null(w, "duration_ms", item->duration_ms >= 0, item->duration_ms);
    mu_json_close(w, '}');
}

void events_line(struct mu_buf *out,
                 const struct events_job *job,
                 const struct ctl_start *start,
                 const struct events_item *item)
{
    char name[64];
    struct mu_json w;
    (void)snprintf(name, sizeof name, "torchelastic.worker.status.%s", item->state);
    mu_json_init(&w, out);
    mu_json_open(&w, '{');
    mu_json_kstr(&w, "name", name);
    mu_json_kstr(&w, "source", item->local_rank >= 0 ? "WORKER" : "AGENT");
    mu_json_ki64(&w, "timestamp", 0);
    mu_json_key(&w, "metadata");
    add_metadata(&w, job, start, item);
    mu_json_close(&w, '}');
    (void)mu_buf_adds(out, "\n"); /* Lost bytes show in oom. */
}
