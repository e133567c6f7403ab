/* muster: what a person types. Parses, calls, returns. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/doctor.h"
#include "launcher/drain.h"
#include "launcher/options.h"
#include "launcher/show.h"

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
    return o.verb == CLI_DRAIN ? cli_drain(&o) : cli_show(&o);
}
