#include "launcher/options_jobs.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "launcher/agent_flags.h"
#include "launcher/words.h"

#define S(n) ((n)*INT64_C(1000000000))

/* --- muster run --- */

int cli_set_nnodes(struct cli_options *o, const char *text, struct mu_err *err)
{
    char min_text[32];
    char shown[64];
    const char *colon = strchr(text, ':');
    size_t n = colon != NULL ? (size_t)(colon - text) : strlen(text);
    uint32_t min = 0;
    uint32_t max = 0;
    (void)mu_quote(shown, sizeof shown, mu_str_of(text, strlen(text)));
    if (n >= sizeof min_text)
        return mu_err_set(err, -EINVAL, "--nnodes: %s is not N or MIN:MAX", shown);
    memcpy(min_text, text, n);
    min_text[n] = '\0';
    int r = mu_parse_u32(min_text, 1, MU_NODES_MAX, "--nnodes", &min, err);
    if (r == 0)
        r = mu_parse_u32(colon != NULL ? colon + 1 : min_text, 1, MU_NODES_MAX, "--nnodes", &max,
                         err);
    if (r == 0 && min > max)
        r = mu_err_set(err, -EINVAL,
                       "--nnodes: %s: the first number may not be greater than the second", shown);
    if (r < 0)
        return r;
    o->run.nnodes = text;
    o->run.nodes_min = min;
    o->run.nodes_max = max;
    return 0;
}

/* A number; with hosts also node-agent's words, of which it judges itself. */
int cli_set_nproc(struct cli_options *o, const char *text, struct mu_err *err)
{
    static const char *const words[] = {"cpu", "gpu", "auto"};
    uint32_t n = 0;
    o->run.nproc = text;
    for (size_t i = 0; i < MU_COUNT(words); i++)
        if (strcmp(words[i], text) == 0)
            return 0;
    return mu_parse_u32(text, 1, MU_WORKERS_MAX, "--nproc-per-node", &n, err);
}

int cli_set_gpus(struct cli_options *o, const char *text, struct mu_err *err)
{
    return mu_parse_i64(text, 0, MU_WORKERS_MAX, "--gpus-per-node", &o->run.gpus, err);
}

int cli_set_name(struct cli_options *o, const char *text, struct mu_err *err)
{
    size_t n = strlen(text);
    char shown[64];
    if (n == 0 || n > 60 ||
        strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") != n)
        return mu_err_set(err, -EINVAL,
                          "--name: %s is no name for a job: 1 to 60 letters, digits, dots, dashes "
                          "and underscores",
                          mu_quote(shown, sizeof shown, mu_str_of(text, n)));
    o->run.name = text;
    return 0;
}

int cli_set_cwd(struct cli_options *o, const char *text, struct mu_err *err)
{
    char shown[64];
    if (text[0] != '/')
        return mu_err_set(err, -EINVAL,
                          "--cwd: %s does not begin with /: it is a folder of other machines",
                          mu_quote(shown, sizeof shown, mu_str_of(text, strlen(text))));
    o->run.cwd = text;
    return 0;
}

int cli_set_env(struct cli_options *o, const char *text, struct mu_err *err)
{
    size_t n = strcspn(text, "=");
    bool named = n > 0 && (text[0] < '0' || text[0] > '9');
    for (size_t i = 0; i < n; i++)
        named =
            named && ((text[i] >= '0' && text[i] <= '9') || (text[i] >= 'a' && text[i] <= 'z') ||
                      (text[i] >= 'A' && text[i] <= 'Z') || text[i] == '_');
    if (!named) /* The value may be a secret, and is not shown. */
        return mu_err_set(err, -EINVAL,
                          "--env: what stands before the = is no name of a variable: letters, "
                          "digits and underscores, no digit first");
    if (o->run.env_count == CLI_ENV_MAX)
        return mu_err_set(err, -EINVAL, "--env: at most %d variables can be given", CLI_ENV_MAX);
    o->run.env[o->run.env_count++] = text;
    return 0;
}

int cli_set_detach(struct cli_options *o, const char *text, struct mu_err *err)
{
    (void)text;
    (void)err;
    o->run.detach = true;
    return 0;
}

int cli_set_no_requeue(struct cli_options *o, const char *text, struct mu_err *err)
{
    (void)text;
    (void)err;
    o->run.no_requeue = true;
    return 0;
}

int cli_set_hosts(struct cli_options *o, const char *text, struct mu_err *err)
{
    (void)err;
    o->run.hosts = text;
    return 0;
}

int cli_set_hostfile(struct cli_options *o, const char *text, struct mu_err *err)
{
    (void)err;
    o->run.hostfile = text;
    return 0;
}

int cli_set_agent(struct cli_options *o, const char *text, struct mu_err *err)
{
    (void)err;
    o->run.agent = text;
    return 0;
}

/* --- muster logs, attach --- */

int cli_set_follow(struct cli_options *o, const char *text, struct mu_err *err)
{
    (void)text;
    (void)err;
    o->logs.follow = true;
    return 0;
}

int cli_set_rank(struct cli_options *o, const char *text, struct mu_err *err)
{
    return mu_parse_i64(text, 0, INT32_MAX, "--rank", &o->logs.rank, err);
}

int cli_set_host(struct cli_options *o, const char *text, struct mu_err *err)
{
    (void)err;
    o->logs.host = text;
    return 0;
}

int cli_set_since(struct cli_options *o, const char *text, struct mu_err *err)
{
    char shown[64];
    if (cli_moment_parse(text, &o->logs.since_unix_ms) == 0)
        return 0;
    if (mu_parse_span(text, 0, MU_SPAN_MAX_NS, "--since", &o->logs.since_span_ns, NULL) == 0)
        return 0;
    return mu_err_set(
        err, -EINVAL,
        "--since: %s is neither a span with its unit (90s, 10m, 2h, 1d) nor a time of "
        "UTC (2026-11-30, 2026-11-30T06:46, 2026-11-30T06:46:42)",
        mu_quote(shown, sizeof shown, mu_str_of(text, strlen(text))));
}

int cli_set_lines(struct cli_options *o, const char *text, struct mu_err *err)
{
    return mu_parse_i64(text, 0, INT32_MAX, "--lines", &o->logs.lines, err);
}

/* --- muster stop --- */

int cli_set_signal(struct cli_options *o, const char *text, struct mu_err *err)
{
    static const char *const names[] = {"SIGTERM", "SIGINT", "SIGKILL"};
    char shown[64];
    for (size_t i = 0; i < MU_COUNT(names); i++)
        if (strcmp(names[i], text) == 0 || strcmp(names[i] + 3, text) == 0) {
            o->stop.signal = names[i];
            return 0;
        }
    return mu_err_set(err, -EINVAL, "--signal: %s is not SIGTERM, SIGINT or SIGKILL",
                      mu_quote(shown, sizeof shown, mu_str_of(text, strlen(text))));
}

int cli_set_grace(struct cli_options *o, const char *text, struct mu_err *err)
{
    return mu_parse_seconds(text, 0, S(86400), "--grace", &o->stop.grace_ns, err);
}

int cli_set_wait(struct cli_options *o, const char *text, struct mu_err *err)
{
    (void)text;
    (void)err;
    o->stop.wait = true;
    return 0;
}

/* --- all together --- */

void cli_options_jobs_init(struct cli_options *o)
{
    o->run.gpus = -1;
    o->logs = (struct cli_logs){.rank = -1, .lines = -1, .since_span_ns = -1, .since_unix_ms = -1};
    o->stop.grace_ns = -1;
}

/* "muster run -- -m mod": what stands where the program should. */
static bool is_agent_flag(const struct cli_run *run)
{
    struct cli_run scratch = {.argc = 0};
    int i = 0;
    return run->argv[0][0] == '-' &&
           cli_take_agent_flag(&scratch, (int)run->argc, run->argv, &i, NULL) != -ENOENT;
}

static int check_run(const struct cli_options *o, struct mu_err *err)
{
    const struct cli_run *r = &o->run;
    bool by_ssh = r->hosts != NULL || r->hostfile != NULL;
    uint32_t n = 0;
    if (r->argc == 0)
        return mu_err_set(err, -EINVAL,
                          "muster run needs a program: muster run --nnodes=2 -- ./trainer");
    if (is_agent_flag(r))
        return mu_err_set(err, -EINVAL,
                          "%.40s is no program: flags of node-agent such as -m go before --, as in "
                          "muster run -m -- MODULE",
                          r->argv[0]);
    if (r->hosts != NULL && r->hostfile != NULL)
        return mu_err_set(err, -EINVAL, "--hosts and --hostfile: only one can say where to run");
    if (by_ssh && r->detach)
        return mu_err_set(err, -EINVAL,
                          "--detach does not go with hosts: nobody is there to keep the job; start "
                          "node-agent --service on the hosts, and muster run submits it");
    if (by_ssh && r->no_requeue)
        return mu_err_set(err, -EINVAL,
                          "--no-requeue does not go with hosts: a job there is no pool's, and "
                          "starts again by hand alone");
    if (by_ssh && r->gpus >= 0)
        return mu_err_set(err, -EINVAL,
                          "--gpus-per-node does not go with hosts: workers there see "
                          "all GPUs");
    if (!by_ssh && r->agent != NULL)
        return mu_err_set(err, -EINVAL, "--agent goes with --hosts or --hostfile alone");
    if (!by_ssh && r->nproc != NULL &&
        mu_parse_u32(r->nproc, 1, MU_WORKERS_MAX, "--nproc-per-node", &n, NULL) < 0)
        return mu_err_set(err, -EINVAL,
                          "--nproc-per-node=%.8s goes with hosts alone: a pool is asked for a "
                          "number of workers",
                          r->nproc);
    return 0;
}

int cli_options_jobs_check(const struct cli_options *o, struct mu_err *err)
{
    static const unsigned with_job =
        1U << CLI_LOGS | 1U << CLI_ATTACH | 1U << CLI_STOP | 1U << CLI_RESUME;
    if ((with_job >> o->verb & 1) != 0 && o->job == NULL)
        return mu_err_set(err, -EINVAL, "muster %s needs a job: muster jobs lists them",
                          cli_verb_name(o->verb));
    return o->verb == CLI_RUN ? check_run(o, err) : 0;
}

/* --- help --- */

static void add_line(struct mu_buf *b, const char *left, const char *right)
{
    if (right[0] == '\0')
        (void)mu_buf_addf(b, "  %s\n", left);
    else
        (void)mu_buf_addf(b, "  %-38s %s\n", left, right);
}

void cli_add_questions(struct mu_buf *b)
{
    add_line(b, "what is running?", "muster status");
    add_line(b, "why did it restart?", "muster incidents JOB");
    add_line(b, "which rank is slow?", "muster workers JOB");
    add_line(b, "what did rank 3 print?", "muster logs JOB --rank 3");
    add_line(b, "", "(of agents started by hand: their --log-dir, terminal or journal)");
    add_line(b, "is this cluster healthy?", "muster doctor --local");
}

static const struct {
    enum cli_verb verb; /* CLI_VERB_COUNT: of all. */
    const char *line;
    const char *what;
} examples[] = {
    {CLI_VERB_COUNT, "muster status", "what runs on this machine's server"},
    {CLI_VERB_COUNT, "muster status train --watch -r n1", "follow one job until it ends"},
    {CLI_VERB_COUNT, "muster incidents train 3", "all about the third end of a round"},
    {CLI_VERB_COUNT, "muster run --nnodes=2 -- ./trainer", "start a job on two nodes of the pool"},
    {CLI_VERB_COUNT, "muster logs -f train-5f3a9c --rank 3", "what rank 3 prints"},
    {CLI_VERB_COUNT, "muster stop train-5f3a9c", "end it"},
    {CLI_STATUS, "muster status", "what runs on this machine's server"},
    {CLI_STATUS, "muster status train --watch -r n1", "follow one job until it ends"},
    {CLI_JOBS, "muster jobs --json | jq -r .[].id", "for programs"},
    {CLI_NODES, "muster nodes -r n1:29500 --json | jq", "for programs"},
    {CLI_WORKERS, "muster workers train", "which rank is slow"},
    {CLI_WORKERS, "muster workers train --json | jq", "for programs"},
    {CLI_INCIDENTS, "muster incidents train", "why it restarted"},
    {CLI_INCIDENTS, "muster incidents train 3", "all about the third end of a round"},
    {CLI_DRAIN, "muster drain n2 --drain-timeout 300", "before n2 is rebooted"},
    {CLI_RUN, "muster run --nnodes=2 --nproc-per-node=8 --max-restarts=3 -- ./trainer --epochs 10",
     ""},
    {CLI_RUN, "id=$(muster run -d --name=train -- ./train.py)", "in a script"},
    {CLI_RUN, "muster run --hosts n1,n2 -- ./trainer", "by ssh, without any service"},
    {CLI_LOGS, "muster logs train-5f3a9c --rank 3", "what rank 3 printed"},
    {CLI_LOGS, "muster logs -f train-5f3a9c --since 10m", "from ten minutes ago on"},
    {CLI_ATTACH, "muster attach train-5f3a9c", "its last lines, and what follows"},
    {CLI_STOP, "muster stop train-5f3a9c --wait", "return when nothing runs any more"},
    {CLI_RESUME, "muster resume train-5f3a9c", "once more, and follow it"},
    {CLI_POOL, "muster pool --watch", "see the queue move"},
    {CLI_UNDRAIN, "muster undrain n2", "n2 was rebooted, and may work again"},
    {CLI_DOCTOR, "muster run --nnodes=2 -- muster doctor",
     "two nodes of the pool, and what is between them"},
    {CLI_DOCTOR, "muster doctor --local -r n1", "this machine, and its way to n1"},
};

void cli_add_examples(struct mu_buf *b, enum cli_verb verb)
{
    for (size_t i = 0; i < MU_COUNT(examples); i++)
        if (examples[i].verb == verb)
            add_line(b, examples[i].line, examples[i].what);
}
