#include "launcher/agent_flags.h"

#include <errno.h>
#include <string.h>

#include "base/parse.h"

/* All that node-agent has, but what muster run says itself: how many nodes and workers, where they
 * meet, which node is which, and what its surroundings are. A test compares. */
static const struct flag {
    const char *name;
    bool is_switch;
} flags[] = {
    {"max-restarts", false},
    {"monitor-interval", false},
    {"start-method", false},
    {"event-log-handler", false},
    {"role", false},
    {"module", true},
    {"no-python", true},
    {"run-path", true},
    {"log-dir", false},
    {"redirects", false},
    {"tee", false},
    {"local-ranks-filter", false},
    {"duplicate-stdout-filters", false},
    {"duplicate-stderr-filters", false},
    {"logs-specs", false},
    {"numa-binding", false},
    {"signals-to-handle", false},
    {"shutdown-timeout", false},
    {"virtual-local-rank", true},
    {"on-join", false},
    {"restarts-given-back-after", false},
    {"same-failure", false},
    {"exit-status", false},
    {"last-lines", false},
    {"drain-timeout", false},
    {"preemption-url", false},
    {"progress-timeout", false},
    {"silence-timeout", false},
    {"health-check", false},
    {"health-check-timeout", false},
    {"health-check-interval", false},
    {"leave-quarantine", true},
    {"hang-hook", false},
    {"hang-hook-timeout", false},
    {"label", true},
    {"server-timeout", false},
    {"store-port", false},
    {"topology", false},
    {"chaos", false},
    {"log-format", false},
    {"rdzv-conf", false},
};

bool cli_flag_is(const char *flag, const char *name, size_t n)
{
    if (strlen(flag) != n)
        return false;
    for (size_t i = 0; i < n; i++)
        if (flag[i] != (name[i] == '_' ? '-' : name[i]))
            return false;
    return true;
}

static int add(struct cli_run *run, const char *flag, const char *value, struct mu_err *err)
{
    if (run->agent_arg_count == CLI_AGENT_ARGS_MAX)
        return mu_err_set(err, -EINVAL, "muster run takes at most %d flags for node-agent",
                          CLI_AGENT_ARGS_MAX);
    run->agent_args[run->agent_arg_count++] = (struct cli_agent_arg){flag, value};
    return 0;
}

int cli_take_agent_flag(
    struct cli_run *run, int argc, char *const *argv, int *i, struct mu_err *err)
{
    const char *name = strcmp(argv[*i], "-m") == 0 ? "--module" : argv[*i];
    size_t n = strcspn(name, "=");
    const struct flag *f = NULL;
    for (size_t k = 0; k < MU_COUNT(flags) && n > 2 && f == NULL; k++)
        if (strncmp(name, "--", 2) == 0 && cli_flag_is(flags[k].name, name + 2, n - 2))
            f = &flags[k];
    if (f == NULL)
        return -ENOENT;
    if (f->is_switch && name[n] == '=')
        return mu_err_set(err, -EINVAL, "--%s takes no value", f->name);
    if (f->is_switch)
        return add(run, f->name, NULL, err);
    if (name[n] == '=')
        return add(run, f->name, name + n + 1, err);
    if (*i + 1 >= argc)
        return mu_err_set(err, -EINVAL, "--%s needs a value: --%s=VALUE", f->name, f->name);
    return add(run, f->name, argv[++*i], err);
}

void cli_add_agent_arg(struct mu_buf *b, const struct cli_agent_arg *arg)
{
    (void)mu_buf_addf(b, "--%s", arg->flag);
    if (arg->value != NULL)
        (void)mu_buf_addf(b, "=%s", arg->value);
}

void cli_add_agent_flags(struct mu_buf *b)
{
    size_t column = 0;
    (void)mu_buf_adds(b, "\nThese flags are node-agent's own (man 8 node-agent) and are passed "
                         "on:\n");
    for (size_t i = 0; i < MU_COUNT(flags); i++) {
        size_t n = strlen(flags[i].name) + 3;
        bool fits = column > 0 && column + n <= 92;
        (void)mu_buf_addf(b, "%s%s", fits ? " " : column > 0 ? "\n    " : "    ", flags[i].name);
        column = fits ? column + n : n;
    }
    (void)mu_buf_adds(b, "\n");
}
