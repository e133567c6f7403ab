#include "launcher/run.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/path.h"
#include "launcher/answer.h"
#include "launcher/ask.h"
#include "launcher/follow.h"
#include "launcher/hosts.h"
#include "launcher/job_page.h"
#include "launcher/submission.h"

static const char *env_here(void *arg, const char *name)
{
    (void)arg;
    return getenv(name);
}

static void name_submitter(char *ret, size_t cap)
{
    char host[256] = "";
    char user[256] = "";
    const char *name = getlogin_r(user, sizeof user) == 0 ? user : getenv("USER");
    (void)gethostname(host, sizeof host - 1);
    if (name != NULL)
        (void)snprintf(ret, cap, "%.200s@%s", name, host);
    else
        (void)snprintf(ret, cap, "uid %u@%s", (unsigned)getuid(), host);
}

/* Fill the body. Returns 0, or -EINVAL with a sentence. */
static int describe(const struct cli_options *o, struct mu_buf *b, struct mu_err *err)
{
    char cwd[PATH_MAX];
    char submitter[512];
    if (o->run.cwd == NULL && mu_path_here(cwd, sizeof cwd, CLI_OTHER_FOLDER, err) < 0)
        return err->code = -EINVAL;
    name_submitter(submitter, sizeof submitter);
    return cli_submission(b,
                          &(struct cli_submission){
                              .run = &o->run, .cwd = cwd, .submitter = submitter, .env = env_here},
                          err);
}

static int follow(const struct cli_options *o, struct cli_http *h, const cJSON *answer, int fd)
{
    const char *id = cli_text(answer, "id");
    struct mu_err err = {0};
    if (o->json ? cli_print_json(answer, !o->run.detach, &err) < 0
                : o->run.detach && cli_print(id, &err) < 0) {
        cli_say(o, "%s; job %s goes on", err.msg, id);
        return 1;
    }
    if (o->run.detach)
        return 0;
    MU_CLEANUP(mu_buf_fini) struct mu_buf b;
    mu_buf_init(&b, mu_mem_default());
    cli_add_state(&b, cli_text(answer, "state"), cli_text(answer, "sentence"));
    cli_say(o, "job %s%.400s", id, mu_buf_cstr(&b));
    struct cli_follow f = {
        .o = o, .http = h, .id = id, .on_signal = CLI_STOPS, .to_the_end = true, .is_known = true};
    return cli_follow(&f, fd);
}

int cli_run(const struct cli_options *o)
{
    MU_CLEANUP(mu_buf_fini) struct mu_buf body;
    struct mu_err err = {0};
    mu_buf_init(&body, mu_mem_default());
    if (o->run.hosts != NULL || o->run.hostfile != NULL)
        return cli_run_on_hosts(o);
    int r = describe(o, &body, &err);
    MU_CLEANUP(mu_closep) int fd = r == 0 ? cli_hold_signals(&err) : -1;
    struct cli_http *h = fd >= 0 ? cli_http_new(o, &err) : NULL;
    cJSON *answer = h != NULL ? cli_ask(h, o, "POST", "/v1/jobs", &body, &err) : NULL;
    int status = 0;
    if (answer != NULL && cli_text(answer, "id")[0] != '\0') {
        status = follow(o, h, answer, fd);
    } else {
        if (answer != NULL)
            (void)mu_err_set(&err, -EPROTO, "%s gave no id to the job: is this the right port?",
                             cli_http_where(h));
        cli_say(o, "%s", err.msg);
        status = r == -EINVAL ? 2 : 1;
    }
    cJSON_Delete(answer);
    cli_http_free(h);
    return status;
}
