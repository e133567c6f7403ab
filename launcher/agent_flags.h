/* node-agent's own flags that muster run passes on: which there are, and whether a value stands
 * behind. What they mean is node-agent's business. Pure. */
#ifndef MUSTER_LAUNCHER_AGENT_FLAGS_H
#define MUSTER_LAUNCHER_AGENT_FLAGS_H

#include "launcher/options.h"

/* `name` of n bytes, with dashes or, as torchrun also has it, underscores. */
bool cli_flag_is(const char *flag, const char *name, size_t n);

/* The flag at argv[*i] is put into run->agent_args. Steps over its value. Returns 0; -ENOENT: there
 * is no such flag; -EINVAL with a sentence. */
int cli_take_agent_flag(
    struct cli_run *run, int argc, char *const *argv, int *i, struct mu_err *err);

/* For --help. */
void cli_add_agent_flags(struct mu_buf *b);

/* "--max-restarts=3", one word. */
void cli_add_agent_arg(struct mu_buf *b, const struct cli_agent_arg *arg);

#endif
