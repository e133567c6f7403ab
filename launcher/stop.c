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

#define S(n) ((n)*INT64_C(1000000000))
#define GRACE_NS S(30)  /* node-agent's, where none is given. */
#define BEYOND_NS S(60) /* What may pass behind the grace until nothing is left. */
#define LOOK_MIN_NS (S(1) / 10)
#define LOOK_MAX_NS S(2)

static bool is_over(const cJSON *job)
{
    static const char *const states[] = {"stopped", "done", "failed"};
    for (size_t i = 0; i < MU_COUNT(states); i++)
        if (strcmp(cli_text(job, "state"), states[i]) == 0)
            return true;
    return false;
}

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
    const char *sentence = cli_text(answer, "sentence");
    char line[512];
    (void)snprintf(line, sizeof line, "job %s %s%.400s", o->job,
                   sentence[0] != '\0' ? "is told to stop: " : "is told to stop", sentence);
    return cli_print(line, err);
}

static void rest(int64_t ns)
{
    struct timespec t = {ns / MU_NS_PER_S, ns % MU_NS_PER_S};
    (void)clock_nanosleep(CLOCK_MONOTONIC, 0, &t, NULL); /* A shorter one just looks sooner. */
}

static int say_over(const struct cli_options *o, const cJSON *job, struct mu_err *err)
{
    char line[512];
    const char *cause = cli_text(job, "cause");
    if (o->json)
        return cli_print_json(job, false, err);
    (void)snprintf(line, sizeof line, "job %s is over: %.20s%s%.300s", o->job,
                   cli_text(job, "state"), cause[0] != '\0' ? ", " : "", cause);
    return cli_print(line, err);
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
        if (job != NULL && is_over(job))
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

int cli_stop(const struct cli_options *o)
{
    struct mu_err err = {0};
    struct cli_http *h = cli_http_new(o, &err);
    int r = -ENOMEM;
    if (h != NULL) {
        cJSON *job = cli_ask_job(h, o, o->job, &err); /* Else who was it? */
        r = job != NULL ? order(o, h, &err) : err.code;
        cJSON_Delete(job);
    }
    if (r == 0 && o->stop.wait)
        r = await(o, h, &err);
    if (r < 0)
        cli_say(o, "%s", err.msg);
    cli_http_free(h);
    return r < 0 ? 1 : 0;
}
