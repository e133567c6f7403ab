#include "launcher/logs.h"

#include <errno.h>
#include <stdio.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "launcher/answer.h"
#include "launcher/ask.h"
#include "launcher/follow.h"

#define ATTACH_LINES 10

static int stream(const struct cli_options *o, struct cli_follow f)
{
    struct mu_err err = {0};
    int status = 1;
    MU_CLEANUP(mu_closep) int fd = cli_hold_signals(&err);
    struct cli_http *h = fd >= 0 ? cli_http_new(o, &err) : NULL;
    f.o = o;
    f.http = h;
    f.id = o->job;
    if (h != NULL)
        status = cli_follow(&f, fd);
    else
        cli_say(o, "%s", err.msg);
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
    cli_say(o, "job %s waits again: %.400s", o->job, cli_text(answer, "sentence"));
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
