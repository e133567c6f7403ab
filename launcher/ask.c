#include "launcher/ask.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "launcher/answer.h"
#include "launcher/words.h"

void cli_cjsonp(cJSON **j)
{
    cJSON_Delete(*j);
}

void cli_say(const struct cli_options *o, const char *fmt, ...)
{
    char text[1024];
    struct mu_buf b;
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    mu_buf_init(&b, mu_mem_default());
    (void)mu_buf_addf(&b, "muster %s: ", cli_verb_name(o->verb));
    cli_add_plain(&b, text);
    (void)mu_buf_adds(&b, "\n");
    (void)fputs(mu_buf_cstr(&b), stderr);
    mu_buf_fini(&b);
}

int cli_print(const char *text, struct mu_err *err)
{
    if (printf("%s\n", text) > 0 && fflush(stdout) == 0)
        return 0;
    return mu_err_set(err, -EIO, "standard output takes no more: %s", strerror(errno));
}

int cli_print_json(const cJSON *o, bool on_one_line, struct mu_err *err)
{
    char *text = on_one_line ? cJSON_PrintUnformatted(o) : cJSON_Print(o);
    int r =
        text != NULL ? cli_print(text, err) : mu_err_set(err, -ENOMEM, "no memory for the answer");
    cJSON_free(text);
    return r;
}

void cli_job_path(struct cli_http *h, struct mu_buf *b, const char *id, const char *tail)
{
    (void)mu_buf_adds(b, "/v1/jobs/");
    cli_http_escape(h, b, id);
    (void)mu_buf_adds(b, tail);
}

int cli_refused(const struct cli_http *h, long status, struct mu_str body, struct mu_err *err)
{
    MU_CLEANUP(cli_cjsonp) cJSON *answer = cJSON_ParseWithLength(body.p, body.n);
    const char *error = cli_text(answer, "error");
    int code = status == 404 ? -ENOENT : status >= 500 ? -EAGAIN : -EPROTO;
    if (cli_list(answer, "paths") != NULL)
        return mu_err_set(err, -ENOTSUP,
                          "the rdzv-server at %s is older than this muster and runs no jobs of its "
                          "own: start a newer one there",
                          cli_http_where(h));
    if (error[0] == '\0')
        return mu_err_set(err, code,
                          "%s answers with HTTP status %ld, but not as an rdzv-server: is this the "
                          "right port?",
                          cli_http_where(h), status);
    if (status == 401)
        return cli_http_unauthorized(h, err);
    return mu_err_set(err, code, "%s: %.190s", cli_http_where(h), error);
}

cJSON *cli_ask(struct cli_http *h,
               const struct cli_options *o,
               const char *method,
               const char *path,
               const struct mu_buf *request,
               struct mu_err *err)
{
    MU_CLEANUP(mu_buf_fini) struct mu_buf body;
    long status = 0;
    mu_buf_init(&body, mu_mem_default());
    int r = strcmp(method, "GET") == 0
                ? cli_http_look(h, path, o->timeout_ns, &body, &status, err)
                : cli_http_send(h, method, path, request, o->timeout_ns, &body, &status, err);
    if (r < 0)
        return NULL;
    if (status < 200 || status > 299) {
        (void)cli_refused(h, status, mu_str_of(body.p, body.n), err);
        return NULL;
    }
    cJSON *answer = cJSON_ParseWithLength(body.p, body.n);
    if (cJSON_IsObject(answer))
        return answer;
    cJSON_Delete(answer);
    (void)mu_err_set(err, -EPROTO,
                     "%s answers HTTP, but not as an rdzv-server: is this the right port?",
                     cli_http_where(h));
    return NULL;
}

/* The hosts of a job, three at most. */
static void add_hosts(struct mu_buf *b, const cJSON *job)
{
    const cJSON *node = NULL;
    int n = 0;
    cJSON_ArrayForEach(node, cli_list(job, "nodes"))
    {
        if (n < 3)
            (void)mu_buf_addf(b, "%s%.60s", n > 0 ? ", " : " on ", cli_text(node, "host"));
        n++;
    }
    if (n > 3)
        (void)mu_buf_addf(b, " and %d more", n - 3);
}

/* The pool has no such job: perhaps its agents were started by hand. */
static void
look_elsewhere(struct cli_http *h, const struct cli_options *o, const char *id, struct mu_err *err)
{
    MU_CLEANUP(mu_buf_fini) struct mu_buf b;
    struct mu_err ignored = {0};
    char shown[64];
    MU_CLEANUP(cli_cjsonp) cJSON *status = cli_ask(h, o, "GET", "/v1/status", NULL, &ignored);
    const cJSON *job = cli_job_find(status, id);
    mu_buf_init(&b, mu_mem_default());
    (void)mu_quote(shown, sizeof shown, mu_str_of(id, strlen(id)));
    if (status == NULL)
        return;
    if (job == NULL) {
        (void)mu_err_set(err, -ENOENT, "there is no job %s at %s: muster jobs lists all", shown,
                         cli_http_where(h));
        return;
    }
    add_hosts(&b, job);
    if (o->verb == CLI_STOP || o->verb == CLI_RESUME)
        (void)mu_err_set(err, -ENOENT,
                         "job %s was not started by muster run: who started its node-agents%s %s "
                         "them (systemctl, or Ctrl-C there)",
                         shown, mu_buf_cstr(&b), o->verb == CLI_STOP ? "stops" : "starts");
    else
        (void)mu_err_set(
            err, -ENOENT,
            "job %s was not started by muster run: its output is where its node-agents "
            "write%s (journalctl -u node-agent@JOB, their terminals, or --log-dir)",
            shown, mu_buf_cstr(&b));
}

cJSON *cli_ask_submission(struct cli_http *h,
                          const struct cli_options *o,
                          const char *id,
                          struct mu_err *err)
{
    MU_CLEANUP(mu_buf_fini) struct mu_buf path;
    mu_buf_init(&path, mu_mem_default());
    cli_job_path(h, &path, id, "");
    if (path.oom) {
        (void)mu_err_set(err, -ENOMEM, "no memory for the question");
        return NULL;
    }
    return cli_ask(h, o, "GET", mu_buf_cstr(&path), NULL, err);
}

cJSON *
cli_ask_job(struct cli_http *h, const struct cli_options *o, const char *id, struct mu_err *err)
{
    cJSON *job = cli_ask_submission(h, o, id, err);
    if (job == NULL && err->code == -ENOENT)
        look_elsewhere(h, o, id, err);
    return job;
}
