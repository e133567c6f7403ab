/* What muster run asks for, as JSON: the body of POST /jobs. Pure. */
#ifndef MUSTER_LAUNCHER_SUBMISSION_H
#define MUSTER_LAUNCHER_SUBMISSION_H

#include "base/err.h"
#include "base/str.h"
#include "launcher/options.h"

/* What helps where this folder has no name (mu_path_here()). */
#define CLI_OTHER_FOLDER "--cwd=DIR names another"

struct cli_submission {
    const struct cli_run *run;
    const char *cwd;       /* Where run has none. */
    const char *submitter; /* "user@host" */
    /* The value of a variable here, for --env K; NULL: not set. */
    const char *(*env)(void *arg, const char *name);
    void *env_arg;
};

/* Returns 0, or -EINVAL with a sentence: exit status 2. */
int cli_submission(struct mu_buf *b, const struct cli_submission *s, struct mu_err *err);

/* One of run->env: its name, and its value by `env`. Returns 0, or -EINVAL with a sentence. The
 * name goes into `name`, emptied first. */
int cli_env_read(const struct cli_submission *s,
                 const char *text,
                 struct mu_buf *name,
                 const char **ret_value,
                 struct mu_err *err);

#endif
