#include "launcher/drain.h"

#include <errno.h>
#include <stdio.h>

#include <cJSON.h>

#include "base/cleanup.h"
#include "base/shown.h"
#include "launcher/answer.h"
#include "launcher/http.h"
#include "launcher/words.h"

static void cjsonp(cJSON **j)
{
    cJSON_Delete(*j);
}

/* "/nodes/n1/drain?timeout=60&job=train", "/nodes/n1/undrain" */
static void make_path(struct mu_buf *b, const struct cli_options *o, const struct cli_http *h)
{
    (void)mu_buf_adds(b, "/nodes/");
    cli_http_escape(h, b, o->node);
    (void)mu_buf_adds(b, o->verb == CLI_UNDRAIN ? "/undrain" : "/drain");
    if (o->drain_timeout_ns >= 0)
        (void)mu_buf_addf(b, "?timeout=%.3f", (double)o->drain_timeout_ns / 1e9);
    if (o->job != NULL) {
        (void)mu_buf_adds(b, o->drain_timeout_ns >= 0 ? "&job=" : "?job=");
        cli_http_escape(h, b, o->job);
    }
}

static int say(const struct cli_options *o, const struct mu_buf *body, const cJSON *answer)
{
    const cJSON *ms = cJSON_GetObjectItemCaseSensitive(answer, "timeout_ms");
    MU_CLEANUP(mu_buf_fini) struct mu_buf b;
    mu_buf_init(&b, mu_mem_default());
    bool good = false;
    if (o->json)
        good = fwrite(body->p, 1, body->n, stdout) == body->n;
    else if (cli_text(answer, "job")[0] == '\0') { /* A node of the pool. */
        cli_add_plain(&b, cli_text(answer, "sentence"));
        (void)mu_buf_adds(&b, "\n");
        good = !b.oom && fwrite(b.p, 1, b.n, stdout) == b.n;
    } else { /* Names and words of other machines. */
        cli_add_plain(&b, cli_text(answer, "host"));
        (void)mu_buf_adds(&b, " leaves job ");
        cli_add_plain(&b, cli_text(answer, "job"));
        (void)mu_buf_addf(&b, " within %g s: ", cJSON_IsNumber(ms) ? ms->valuedouble / 1e3 : 0.0);
        cli_add_plain(&b, cli_text(answer, "sentence"));
        (void)mu_buf_adds(&b, "\n");
        good = !b.oom && fwrite(b.p, 1, b.n, stdout) == b.n;
    }
    return good && fflush(stdout) == 0 ? 0 : -EIO;
}

static int ask(const struct cli_options *o, struct cli_http *h, struct mu_err *err)
{
    MU_CLEANUP(mu_buf_fini) struct mu_buf path;
    MU_CLEANUP(mu_buf_fini) struct mu_buf body;
    long status = 0;
    mu_buf_init(&path, mu_mem_default());
    mu_buf_init(&body, mu_mem_default());
    make_path(&path, o, h);
    if (path.oom)
        return mu_err_set(err, -ENOMEM, "no memory for the request");
    int r = cli_http_post(h, mu_buf_cstr(&path), o->timeout_ns, &body, &status, err);
    if (r < 0)
        return r;
    MU_CLEANUP(cjsonp) cJSON *answer = cJSON_ParseWithLength(body.p, body.n);
    const char *error = cli_text(answer, "error");
    if (status == 202 && answer != NULL)
        return say(o, &body, answer) < 0 ? mu_err_set(err, -EIO, "standard output takes no more")
                                         : 0;
    if (status == 401 && error[0] != '\0')
        return cli_http_unauthorized(h, err);
    if (error[0] == '\0')
        error = "it does not answer as an rdzv-server that knows this does";
    return mu_err_set(err, -EPROTO, "%s: %.180s", cli_http_where(h), error);
}

int cli_drain(const struct cli_options *o)
{
    struct mu_err err = {0};
    struct cli_http *h = cli_http_new(o, &err);
    int r = h != NULL ? ask(o, h, &err) : -ENOMEM;
    mu_clean(err.msg); /* The server's words. */
    if (r < 0)
        (void)fprintf(stderr, "muster %s: %s\n", cli_verb_name(o->verb), err.msg);
    cli_http_free(h);
    return r < 0 ? 1 : 0;
}
