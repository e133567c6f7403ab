/* muster-doctor: what `muster doctor` becomes. Parses, gathers, judges, prints. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <muster/muster.h>
#include <muster/progress.h>

#include "launcher/doctor/judge.h"
#include "launcher/doctor/link.h"
#include "launcher/doctor/local.h"
#include "launcher/doctor/part.h"
#include "launcher/doctor/report.h"
#include "launcher/options.h"

static volatile bool stop_wanted;

static void on_stop(int signo)
{
    (void)signo;
    stop_wanted = true;
}

static void watch_signals(void)
{
    struct sigaction sa = {.sa_handler = on_stop};
    (void)sigaction(SIGTERM, &sa, NULL);
    (void)sigaction(SIGINT, &sa, NULL);
}

static int complain(const char *text)
{
    (void)fprintf(stderr, "muster doctor: %s\n", text);
    return 1;
}

static bool is_coloured(const struct cli_options *o)
{
    const char *no = getenv("NO_COLOR");
    if (o->colour != CLI_AUTO)
        return o->colour == CLI_ALWAYS;
    return isatty(STDOUT_FILENO) == 1 && (no == NULL || no[0] == '\0');
}

/* Judge and print. 0: nothing FAILs; 1. */
static int conclude(const struct cli_options *o, const struct doc_case *c, struct mu_buf *counts)
{
    struct doc_findings f;
    struct mu_buf b;
    mu_buf_init(&b, mu_mem_default());
    doc_judge(c, &f);
    if (o->brief)
        doc_report_brief(&b, &f);
    else if (o->json)
        doc_report_json(&b, c, &f);
    else
        doc_report_table(&b, c, &f, is_coloured(o));
    if (counts != NULL)
        doc_report_counts(counts, &f);
    int status = doc_worst(&f) == DOC_FAIL || f.oom || b.oom;
    if (fputs(mu_buf_cstr(&b), stdout) < 0 || fflush(stdout) != 0)
        status = complain("standard output takes no more");
    if (f.oom || b.oom)
        status = complain("no memory for all that was found");
    doc_findings_fini(&f);
    mu_buf_fini(&b);
    return status;
}

static cJSON *facts_of(const struct cli_options *o)
{
    const struct local_ask ask = {.server = o->server_given ? &o->server : NULL,
                                  .brief = o->brief,
                                  .limit_ns = o->timeout_ns,
                                  .log_dir = o->log_dir};
    return local_facts(&ask);
}

static int alone(const struct cli_options *o)
{
    cJSON *facts = facts_of(o);
    const cJSON *nodes[] = {facts};
    const cJSON *looks[] = {NULL};
    const char *stage[] = {NULL};
    const struct doc_case c = {
        .nodes = nodes, .looks = looks, .stage = stage, .count = 1, .local = true};
    int status = conclude(o, &c, NULL);
    cJSON_Delete(facts);
    return status;
}

/* The verdict is rank 0's alone: its exit status is the job's. */
static int report(muster *m, const struct cli_options *o, const struct part_result *got)
{
    struct mu_buf counts;
    mu_buf_init(&counts, mu_mem_default());
    const struct doc_case c = {.nodes = (const cJSON *const *)got->nodes,
                               .looks = (const cJSON *const *)got->looks,
                               .stage = (const char *const *)got->stage,
                               .count = got->count};
    (void)mu_buf_adds(&counts, "muster doctor: ");
    int status = conclude(o, &c, &counts);
    if (status != 0)
        (void)muster_fail(m, mu_buf_cstr(&counts), NULL);
    mu_buf_fini(&counts);
    return status;
}

static int together(const struct cli_options *o)
{
    struct muster_options mo = MUSTER_OPTIONS_INIT;
    struct muster_error e = {0};
    struct mu_err err = {0};
    struct part_result got = {0};
    muster *m = NULL;
    mo.timeout_ns = INT64_C(60000000000);
    watch_signals();
    if (muster_open(&mo, &m, &e) < 0)
        return complain(e.text);
    const struct part_ask ask = {
        .limit_ns = o->timeout_ns, .quick = o->quick, .facts = facts_of(o), .stop = &stop_wanted};
    int status = 0;
    if (part_take(m, &ask, &got, &err) < 0)
        status = complain(err.msg);
    if (muster_is_main(m) && got.count > 0) {
        int verdict = report(m, o, &got);
        status = verdict != 0 ? verdict : status;
    }
    part_result_fini(&got);
    cJSON_Delete(ask.facts);
    muster_close(m);
    return status;
}

int main(int argc, char **argv)
{
    struct cli_options o;
    struct muster_env env;
    struct mu_err err = {0};
    struct muster_error e = {0};
    if (argc >= 3 && strcmp(argv[1], LINK_WORD) == 0)
        return link_child(argv[2], argc > 3 && strcmp(argv[3], LINK_GPUS) == 0);
    if (cli_options_parse(&o, argc, argv, getenv("MUSTER_RDZV"), &err) < 0) {
        (void)complain(err.msg);
        return 2;
    }
    if (o.verb != CLI_DOCTOR) {
        (void)complain("this program is started by muster doctor");
        return 2;
    }
    if (o.local)
        return alone(&o);
    if (muster_env_read(&env, &e) < 0) {
        (void)complain(e.text);
        return 2;
    }
    if (env.launcher == MUSTER_LAUNCHER_NONE) {
        (void)complain("no job is around it: start it on every node with node-agent --nnodes=N "
                       "--nproc-per-node=1 --rdzv=HOST --no-python muster doctor, or look at this "
                       "machine alone with muster doctor --local");
        return 2;
    }
    return env.store_port == 0 && env.world == 1 ? alone(&o) : together(&o);
}
