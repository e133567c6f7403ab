/* A job's output as it comes, to its end: what run, attach and logs do. Shell. */
#ifndef MUSTER_LAUNCHER_FOLLOW_H
#define MUSTER_LAUNCHER_FOLLOW_H

#include "launcher/http.h"
#include "launcher/options.h"

/* What Ctrl-C and SIGTERM mean. */
enum cli_on_signal {
    CLI_STOPS,    /* The job is stopped, then killed, then left alone. */
    CLI_DETACHES, /* The job goes on, and how to stop it is said. */
    CLI_LEAVES    /* Nothing is said. */
};

struct cli_follow {
    const struct cli_options *o;
    struct cli_http *http;
    const char *id;
    enum cli_on_signal on_signal;
    bool to_the_end; /* Else what is there, and no more. */
    bool is_known;   /* The job is there: a server that does not answer is waited for. */
};

/* SIGINT and SIGTERM wait from now on, until cli_follow() looks at them. Returns their descriptor,
 * or -1 with a sentence. */
int cli_hold_signals(struct mu_err *err);

/* Returns the exit status: the job's own where it is followed to its end; 128+n when left for a
 * signal. */
int cli_follow(const struct cli_follow *what, int signal_fd);

#endif
