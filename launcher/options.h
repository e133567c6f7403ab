/* muster's command line: one table of verbs and one of options, from which parsing, --help,
 * completions and the man page come. */
#ifndef MUSTER_LAUNCHER_OPTIONS_H
#define MUSTER_LAUNCHER_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/option_text.h"
#include "base/parse.h"
#include "base/str.h"

/* Verbs: X(NAME, word, argument, what it answers). Argument: NULL, or what to write behind it,
 * which may be left out, but for a NODE. */
#define CLI_VERBS(X)                                                                               \
    X(STATUS, "status", "JOB", "what runs, what failed first, and what happens next")              \
    X(JOBS, "jobs", NULL, "every job in a line, those that are over too")                          \
    X(NODES, "nodes", "JOB", "every node of the living jobs, or of one job")                       \
    X(WORKERS, "workers", "JOB", "every worker: its rank, host, process id, and how it ended")     \
    X(INCIDENTS, "incidents", "JOB [N]",                                                           \
      "why each round ended, or all about the end that has number N")                              \
    X(DRAIN, "drain", "NODE", "let a node leave in order: all workers stop after one step")        \
    X(DOCTOR, "doctor", NULL,                                                                      \
      "whether nodes are fit for a job: each one, each pair, and what links carry")
#define X(NAME, word, argument, doc) CLI_##NAME,
enum cli_verb {
    CLI_VERBS(X) CLI_VERB_COUNT
};
#undef X

enum cli_when {
    CLI_AUTO,
    CLI_ALWAYS,
    CLI_NEVER
};

struct cli_options {
    enum cli_verb verb;
    struct mu_endpoint server;
    const char *job;          /* Borrowed from argv; NULL: not given. */
    uint32_t number;          /* Of an incident; 0: not given. */
    const char *node;         /* CLI_DRAIN: host name or id. */
    bool server_given;        /* By --rdzv or MUSTER_RDZV; else it is localhost. */
    bool local;               /* CLI_DOCTOR */
    bool quick;               /* CLI_DOCTOR */
    bool brief;               /* CLI_DOCTOR */
    const char *log_dir;      /* CLI_DOCTOR: borrowed; NULL: none. */
    int64_t drain_timeout_ns; /* CLI_DRAIN; negative: the server's. */
    int64_t timeout_ns;
    int64_t interval_ns;
    bool watch;
    bool json;
    bool help;
    bool version;
    enum cli_when colour;
};

/* Parse. `rdzv_env` is the value of MUSTER_RDZV, or NULL. With `help` or `version` set nothing else
 * counts; verb is then CLI_VERB_COUNT where none was given. Returns 0, or -EINVAL or -ERANGE with a
 * sentence: exit status 2. Pure. */
int cli_options_parse(
    struct cli_options *o, int argc, char *const *argv, const char *rdzv_env, struct mu_err *err);

/* The text of --help: of one verb, or of all (CLI_VERB_COUNT). */
void cli_help(struct mu_buf *b, enum cli_verb verb);

/* The i-th row of the option table; false: there are no more. And all commands, divided by blanks.
 */
bool cli_option_text(size_t i, struct mu_option_text *ret);
extern const char cli_commands[];

const char *cli_verb_name(enum cli_verb verb);

#endif
