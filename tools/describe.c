/* Prints what docs/ takes from the tables of the code: control messages, state machines, options,
 * which the target `states` puts there and the gate `generated` compares; and, from the option
 * tables, the shells' completions. */
#include <stdio.h>
#include <string.h>

#include "agent/chaos.h"
#include "agent/life/life.h"
#include "agent/options.h"
#include "base/ctl.h"
#include "base/str.h"
#include "launcher/options.h"
#include "rendezvous/job/job.h"
#include "rendezvous/server/describe.h"
#include "rendezvous/server/metrics.h"
#include "rendezvous/server/options.h"
#include "tools/completion.h"

static const struct {
    const char *name;
    void (*print)(struct mu_buf *out);
} parts[] = {
    {"protocol", ctl_describe},
    {"job", job_dot},
    {"life", life_dot},
    {"chaos", chaos_describe},
    {"allow", srv_allow_describe},
    {"metrics", srv_metrics_describe},
    {"node-agent-options", agent_options_man},
};

/* SHELL-PROGRAM. */
static const struct completed programs[] = {
    {"node-agent", agent_option_text, NULL, true},
    {"rdzv-server", srv_option_text, NULL, false},
    {"muster", cli_option_text, cli_commands, false},
};
static const struct {
    const char *name;
    completion_fn *print;
} shells[] = {{"bash", completion_bash}, {"zsh", completion_zsh}, {"fish", completion_fish}};

static int usage(void)
{
    (void)fprintf(stderr, "usage: muster-describe PART\nparts:");
    for (size_t i = 0; i < MU_COUNT(parts); i++)
        (void)fprintf(stderr, " %s", parts[i].name);
    for (size_t i = 0; i < MU_COUNT(shells); i++)
        for (size_t k = 0; k < MU_COUNT(programs); k++)
            (void)fprintf(stderr, " %s-%s", shells[i].name, programs[k].name);
    (void)fprintf(stderr, "\n");
    return 2;
}

static bool print_completion(const char *part, struct mu_buf *out)
{
    for (size_t i = 0; i < MU_COUNT(shells); i++) {
        size_t n = strlen(shells[i].name);
        if (strncmp(part, shells[i].name, n) != 0 || part[n] != '-')
            continue;
        for (size_t k = 0; k < MU_COUNT(programs); k++) {
            if (strcmp(part + n + 1, programs[k].name) != 0)
                continue;
            shells[i].print(out, &programs[k]);
            return true;
        }
    }
    return false;
}

static bool print_part(const char *part, struct mu_buf *out)
{
    for (size_t i = 0; i < MU_COUNT(parts); i++) {
        if (strcmp(part, parts[i].name) != 0)
            continue;
        parts[i].print(out);
        return true;
    }
    return print_completion(part, out);
}

int main(int argc, char **argv)
{
    struct mu_buf b;
    mu_buf_init(&b, mu_mem_default());
    int status = 1;
    if (argc != 2 || !print_part(argv[1], &b))
        status = usage();
    else if (!b.oom && fwrite(b.p, 1, b.n, stdout) == b.n && fflush(stdout) == 0)
        status = 0;
    mu_buf_fini(&b);
    return status;
}
