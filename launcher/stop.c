#include "launcher/stop.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "launcher/answer.h"
#include "launcher/ask.h"
#include "launcher/job_page.h"

#define S(n) ((n)*INT64_C(1000000000))
#define GRACE_NS S(30)  /* node-agent's, where none is given. */
#define BEYOND_NS S(60) /* What may pass behind the grace until nothing is left. */
#define LOOK_MIN_NS (S(1) / 10)
#define LOOK_MAX_NS S(2)

static int order(const struct cli_options *o, struct cli_http *h, struct mu_err *err)
{
    MU_CLEANUP(mu_buf_fini) struct mu_buf path;
    MU_CLEANUP(mu_buf_fini) struct mu_buf body;
    struct mu_json w;
    mu_buf_init(&path, mu_mem_default());
    mu_buf_init(&body, mu_mem_default());
    mu_json_init(&w, &body);
    mu_json_open(&w, '{');
    if (o->stop.signal != NULL)
        mu_json_kstr(&w, "signal", o->stop.signal);
    if (o->stop.grace_ns >= 0) {
        mu_json_key(&w, "grace_s");
        mu_json_num(&w, (double)o->stop.grace_ns / 1e9);
    }
    mu_json_close(&w, '}');
    cli_job_path(h, &path, o->job, "/stop");
    MU_CLEANUP(cli_cjsonp) cJSON *answer = cli_ask(h, o, "POST", mu_buf_cstr(&path), &body, err);
    if (answer == NULL)
        return err->code;
    if (o->stop.wait)
        return 0;
    if (o->json)
        return cli_print_json(answer, false, err);
    MU_CLEANUP(mu_buf_fini) struct mu_buf line;
    mu_buf_init(&line, mu_mem_default());
    (void)mu_buf_addf(&line, "job %s", o->job);
    cli_add_stop(&line, cli_text(answer, "state"), cli_text(answer, "sentence"));
    return cli_print(mu_buf_cstr(&line), err);
}

static void rest(int64_t ns)
{
    struct timespec t = {ns / MU_NS_PER_S, ns % MU_NS_PER_S};
    (void)clock_nanosleep(CLOCK_MONOTONIC, 0, &t, NULL); /* A shorter one just looks sooner. */
}

static int say_over(const struct cli_options *o, const cJSON *job, struct mu_err *err)
{
    MU_CLEANUP(mu_buf_fini) struct mu_buf line;
    MU_CLEANUP(mu_buf_fini) struct mu_buf how;
    mu_buf_init(&line, mu_mem_default());
    mu_buf_init(&how, mu_mem_default());
    if (o->json)
        return cli_print_json(job, false, err);
    cli_add_outcome(&how, cli_text(job, "state"), cli_text(job, "cause"));
    bool is_verb = strncmp(mu_buf_cstr(&how), " was ", 5) == 0;
    (void)mu_buf_addf(&line, "job %s is over:%s%s", o->job, is_verb ? " it" : "",
                      mu_buf_cstr(&how));
    return cli_print(mu_buf_cstr(&line), err);
}

/* Until it is over; a server that is away meanwhile is asked again. */
static int await(const struct cli_options *o, struct cli_http *h, struct mu_err *err)
{
    int64_t grace_ns = o->stop.grace_ns >= 0 ? o->stop.grace_ns : GRACE_NS;
    int64_t until = mu_now_ns() + grace_ns + BEYOND_NS;
    int64_t pause = LOOK_MIN_NS;
    int64_t say_ns = mu_now_ns() + S(5);
    int64_t say_pause = S(5);
    for (;;) {
        MU_CLEANUP(cli_cjsonp) cJSON *job = cli_ask_job(h, o, o->job, err);
        int64_t now = mu_now_ns();
        if (job != NULL && cli_submission_is_over(job))
            return say_over(o, job, err);
        if (job == NULL && err->code == -ENOENT)
            return err->code;
        if (now > until)
            return mu_err_set(err, -ETIMEDOUT,
                              "job %.80s has not ended: muster stop %.80s --signal SIGKILL --wait",
                              o->job, o->job);
        if (now > say_ns) {
            cli_say(o, "waiting for the end of job %s: %.300s", o->job,
                    job != NULL ? cli_text(job, "sentence") : err->msg);
            say_pause = say_pause * 2 < S(60) ? say_pause * 2 : S(60);
            say_ns = now + say_pause;
        }
        rest(pause);
        pause = pause * 2 < LOOK_MAX_NS ? pause * 2 : LOOK_MAX_NS;
    }
}

/* Tell it to stop. *ret_over: it was over before, and that is said where the end is waited for. */
static int stop(const struct cli_options *o, struct cli_http *h, bool *ret_over, struct mu_err *err)
{
    MU_CLEANUP(cli_cjsonp) cJSON *job = cli_ask_job(h, o, o->job, err); /* Else who was it? */
    if (job == NULL)
        return err->code;
    *ret_over = o->stop.wait && cli_submission_is_over(job);
    return *ret_over ? say_over(o, job, err) : order(o, h, err);
}

int cli_stop(const struct cli_options *o)
{
    struct mu_err err = {0};
    struct cli_http *h = cli_http_new(o, &err);
    bool over = false;
    int r = h != NULL ? stop(o, h, &over, &err) : -ENOMEM;
    if (r == 0 && o->stop.wait && !over)
        r = await(o, h, &err);
    if (r < 0)
        cli_say(o, "%s", err.msg);
    cli_http_free(h);
    return r < 0 ? 1 : 0;
}
