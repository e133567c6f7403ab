/* The options of the commands that start, follow and stop jobs; their rows stand in options.c.
 * Pure.
 */
#ifndef MUSTER_LAUNCHER_OPTIONS_JOBS_H
#define MUSTER_LAUNCHER_OPTIONS_JOBS_H

#include "launcher/options.h"

/* What an option's value means. Returns 0, or -EINVAL or -ERANGE with a sentence. */
typedef int cli_set_fn(struct cli_options *o, const char *text, struct mu_err *err);

cli_set_fn cli_set_nnodes, cli_set_nproc, cli_set_gpus, cli_set_name, cli_set_cwd, cli_set_env,
    cli_set_detach, cli_set_no_requeue, cli_set_hosts, cli_set_hostfile, cli_set_agent,
    cli_set_follow, cli_set_rank, cli_set_host, cli_set_since, cli_set_lines, cli_set_signal,
    cli_set_grace, cli_set_wait;

void cli_options_jobs_init(struct cli_options *o);

/* Is everything there that the command needs, and nothing that contradicts? As cli_set_fn. */
int cli_options_jobs_check(const struct cli_options *o, struct mu_err *err);

/* For --help: what a person asks most and which command answers, a line each; and examples. */
void cli_add_questions(struct mu_buf *b);
void cli_add_examples(struct mu_buf *b, enum cli_verb verb);

#endif
