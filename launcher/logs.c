#include "launcher/logs.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "launcher/answer.h"
#include "launcher/ask.h"
#include "launcher/follow.h"
#include "launcher/job_page.h"

#define ATTACH_LINES 10

static bool has_pool_node(const struct cli_options *o, struct cli_http *h, const char *host)
{
    struct mu_err ignored = {0};
    MU_CLEANUP(cli_cjsonp) cJSON *status = cli_ask(h, o, "GET", "/v1/status", NULL, &ignored);
    const cJSON *node = NULL;
    cJSON_ArrayForEach(node, cli_list(cli_object(status, "pool"), "nodes"))
    {
        if (strcmp(cli_text(node, "host"), host) == 0)
            return true;
    }
    return status == NULL;
}

/* Can there be lines of that rank and that host? Returns 0, or -ENOENT with a sentence. */
static int
check_wanted(const struct cli_options *o, struct cli_http *h, const cJSON *job, struct mu_err *err)
{
    MU_CLEANUP(mu_buf_fini) struct mu_buf hosts;
    const char *host = o->logs.host;
    int64_t workers = cli_submission_workers(job);
    mu_buf_init(&hosts, mu_mem_default());
    if (workers > 0 && o->logs.rank >= workers)
        return mu_err_set(err, -ENOENT,
                          "job %.80s has no rank %" PRId64 ": its ranks are 0 to %" PRId64, o->job,
                          o->logs.rank, workers - 1);
    /* It may have been elsewhere before; but of a node that is gone nothing can be had. */
    if (host != NULL && !cli_submission_is_on(job, host, &hosts) && !has_pool_node(o, h, host))
        return mu_err_set(err, -ENOENT, "job %.60s is not on %.60s, nor is such a node here: %.80s",
                          o->job, host, mu_buf_cstr(&hosts));
    return 0;
}

/* A job that was never given nodes has printed nothing, and that is said. */
static bool say_not_begun(const struct cli_options *o, const cJSON *job)
{
    MU_CLEANUP(mu_buf_fini) struct mu_buf b;
    bool over = cli_submission_is_over(job);
    if (cli_number(job, "attempt", 1) != 0)
        return false;
    mu_buf_init(&b, mu_mem_default());
    cli_add_state(&b, cli_text(job, "state"), cli_text(job, "sentence"));
    cli_say(o, "job %s has printed nothing%s: it%.400s", o->job, over ? "" : " yet",
            mu_buf_cstr(&b));
    return true;
}

/* What is known beforehand. Returns whether there is nothing to stream; *ret_status is then
 * muster's own. */
static bool
settle(const struct cli_options *o, struct cli_http *h, const struct cli_follow *f, int *ret_status)
{
    struct mu_err err = {0};
    MU_CLEANUP(cli_cjsonp) cJSON *job = cli_ask_job(h, o, o->job, &err);
    if (job == NULL || check_wanted(o, h, job, &err) < 0) {
        cli_say(o, "%s", err.msg);
        *ret_status = 1;
        return true;
    }
    *ret_status = 0;
    return !f->to_the_end && say_not_begun(o, job);
}

static int stream(const struct cli_options *o, struct cli_follow f)
{
    struct mu_err err = {0};
    int status = 1;
    MU_CLEANUP(mu_closep) int fd = cli_hold_signals(&err);
    struct cli_http *h = fd >= 0 ? cli_http_new(o, &err) : NULL;
    f.o = o;
    f.http = h;
    f.id = o->job;
    if (h == NULL)
        cli_say(o, "%s", err.msg);
    else if (!settle(o, h, &f, &status))
        status = cli_follow(&f, fd);
    cli_http_free(h);
    return status;
}

int cli_logs(const struct cli_options *o)
{
    return stream(o, (struct cli_follow){.on_signal = CLI_LEAVES, .to_the_end = o->logs.follow});
}

int cli_attach(const struct cli_options *o)
{
    struct cli_options own = *o;
    if (own.logs.lines < 0)
        own.logs.lines = ATTACH_LINES;
    return stream(&own, (struct cli_follow){.on_signal = CLI_DETACHES, .to_the_end = true});
}

/* Returns 0 when the job is in the queue again. */
static int resume(const struct cli_options *o, struct cli_http *h, struct mu_err *err)
{
    MU_CLEANUP(mu_buf_fini) struct mu_buf path;
    mu_buf_init(&path, mu_mem_default());
    MU_CLEANUP(cli_cjsonp) cJSON *job = cli_ask_job(h, o, o->job, err);
    if (job == NULL)
        return err->code;
    cli_job_path(h, &path, o->job, "/resume");
    MU_CLEANUP(cli_cjsonp)
    cJSON *answer = cli_ask(h, o, "POST", mu_buf_cstr(&path), NULL, err);
    if (answer == NULL)
        return err->code;
    if (o->json)
        return cli_print_json(answer, !o->run.detach, err);
    if (o->run.detach)
        return cli_print(o->job, err);
    MU_CLEANUP(mu_buf_fini) struct mu_buf b;
    mu_buf_init(&b, mu_mem_default());
    cli_add_again(&b, cli_text(answer, "state"), cli_text(answer, "sentence"));
    cli_say(o, "job %s%.400s", o->job, mu_buf_cstr(&b));
    return 0;
}

int cli_resume(const struct cli_options *o)
{
    struct mu_err err = {0};
    struct cli_options own = *o;
    int status = 1;
    int64_t began_ms = mu_unix_ms();
    MU_CLEANUP(mu_closep) int fd = cli_hold_signals(&err);
    struct cli_http *h = fd >= 0 ? cli_http_new(o, &err) : NULL;
    own.logs.since_unix_ms = began_ms; /* What it printed before is not wanted. */
    struct cli_follow f = {.o = &own,
                           .http = h,
                           .id = o->job,
                           .on_signal = CLI_STOPS,
                           .to_the_end = true,
                           .is_known = true};
    if (h == NULL || resume(o, h, &err) < 0)
        cli_say(o, "%s", err.msg);
    else
        status = o->run.detach ? 0 : cli_follow(&f, fd);
    cli_http_free(h);
    return status;
}
