/* muster: what a person types. Parses, calls, returns. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/doctor.h"
#include "launcher/drain.h"
#include "launcher/logs.h"
#include "launcher/options.h"
#include "launcher/run.h"
#include "launcher/show.h"
#include "launcher/stop.h"
#include "launcher/store.h"
#include "launcher/token.h"

/* What each command does. */
static int (*const deeds[CLI_VERB_COUNT])(const struct cli_options *o) = {
    [CLI_STATUS] = cli_show,   [CLI_JOBS] = cli_show,      [CLI_NODES] = cli_show,
    [CLI_WORKERS] = cli_show,  [CLI_INCIDENTS] = cli_show, [CLI_DRAIN] = cli_drain,
    [CLI_RUN] = cli_run,       [CLI_LOGS] = cli_logs,      [CLI_ATTACH] = cli_attach,
    [CLI_STOP] = cli_stop,     [CLI_RESUME] = cli_resume,  [CLI_POOL] = cli_show,
    [CLI_UNDRAIN] = cli_drain, [CLI_STORE] = cli_store,    [CLI_TOKEN] = cli_token,
};

static int print(struct mu_buf *b)
{
    bool good = fputs(mu_buf_cstr(b), stdout) >= 0 && fflush(stdout) == 0;
    if (!good)
        (void)fprintf(stderr, "muster: standard output takes no more: %s\n", strerror(errno));
    mu_buf_fini(b);
    return good ? 0 : 1;
}

int main(int argc, char **argv)
{
    struct cli_options o;
    struct mu_err err = {0};
    struct mu_buf b;
    mu_buf_init(&b, mu_mem_default());
    if (cli_options_parse(&o, argc, argv, getenv("MUSTER_RDZV"), &err) < 0) {
        (void)fprintf(stderr, "muster: %s\n", err.msg);
        return 2;
    }
    if (o.help) {
        cli_help(&b, o.verb);
        return print(&b);
    }
    if (o.version) {
        (void)mu_buf_adds(&b, "muster " MUSTER_VERSION "\n");
        return print(&b);
    }
    if (o.verb == CLI_DOCTOR)
        return cli_doctor(argv);
    return deeds[o.verb](&o);
}
