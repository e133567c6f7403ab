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

/* Verbs: X(NAME, word, argument, what it answers). Argument: NULL, or what to write behind it; what
 * may be left out stands in brackets. */
#define CLI_VERBS(X)                                                                               \
    X(STATUS, "status", "[JOB]", "what runs, what failed first, and what happens next")            \
    X(JOBS, "jobs", NULL, "every job in a line, those that are over too")                          \
    X(NODES, "nodes", "[JOB]", "every node of the living jobs, or of one job")                     \
    X(WORKERS, "workers", "[JOB]", "every worker: its rank, host, process id, and how it ended")   \
    X(INCIDENTS, "incidents", "[JOB [N]]",                                                         \
      "why each round ended, or all about the end that has number N")                              \
    X(DRAIN, "drain", "NODE", "let a node leave in order: all workers stop after one step")        \
    X(RUN, "run", "[--] PROGRAM [ARG...]",                                                         \
      "start a program on nodes of the pool, or on --hosts, and follow it to its end")             \
    X(LOGS, "logs", "JOB", "what a job's workers printed")                                         \
    X(ATTACH, "attach", "JOB", "follow a job that runs or waits, as run does")                     \
    X(STOP, "stop", "JOB", "end a job, or take it out of the queue")                               \
    X(RESUME, "resume", "JOB", "start a job that has ended once more, under the same id")          \
    X(POOL, "pool", NULL, "the nodes on offer, and which jobs wait for which")                     \
    X(UNDRAIN, "undrain", "NODE", "let a node of the pool take jobs again")                        \
    X(STORE, "store", "get|set|keys|del [KEY] [VALUE]", "keys and values of the server's store")   \
    X(TOKEN, "token", "new [FILE]", "make the token that who starts and stops jobs must have")     \
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

#define CLI_WORDS_MAX 3
#define CLI_ENV_MAX 256       /* --env */
#define CLI_AGENT_ARGS_MAX 64 /* Flags for node-agent. */

struct cli_agent_arg {
    const char *flag;  /* "max-restarts", of agent_flags.c */
    const char *value; /* NULL: a switch. */
};

/* muster run. All texts are borrowed from argv. */
struct cli_run {
    char *const *argv; /* The program and its arguments. */
    uint32_t argc;
    const char *nnodes; /* "2", "1:4"; NULL: not given. */
    uint32_t nodes_min; /* Of nnodes. */
    uint32_t nodes_max;
    const char *nproc;            /* "8"; node-agent's words where there is no pool. */
    int64_t gpus;                 /* Per node; -1: the server's choice. */
    const char *name;             /* NULL: not given. */
    const char *cwd;              /* NULL: not given. */
    const char *env[CLI_ENV_MAX]; /* "K=V", or "K": as it is here. */
    uint32_t env_count;
    struct cli_agent_arg agent_args[CLI_AGENT_ARGS_MAX];
    uint32_t agent_arg_count;
    const char *hosts;    /* Over ssh; NULL: by the pool. */
    const char *hostfile; /* Likewise. */
    const char *agent;    /* The node-agent there; NULL: by PATH. */
    bool detach;
    bool no_requeue;
};

/* muster logs and attach. */
struct cli_logs {
    bool follow;
    int64_t rank;          /* -1: all. */
    int64_t lines;         /* -1: all. */
    int64_t since_span_ns; /* So long ago; -1: not given. */
    int64_t since_unix_ms; /* -1: not given. */
    const char *host;      /* NULL: all. */
};

/* muster stop. */
struct cli_stop {
    const char *signal; /* "SIGTERM"; NULL: the server's. */
    int64_t grace_ns;   /* -1: the server's. */
    bool wait;
};

struct cli_options {
    enum cli_verb verb;
    struct mu_endpoint server;
    const char *job;                  /* Borrowed from argv; NULL: not given. */
    uint32_t number;                  /* Of an incident; 0: not given. */
    const char *node;                 /* CLI_DRAIN, CLI_UNDRAIN: host name or id. */
    int64_t drain_timeout_ns;         /* CLI_DRAIN; negative: the server's. */
    const char *token_file;           /* NULL: not given. */
    const char *words[CLI_WORDS_MAX]; /* Of commands that take some (options_words.h). */
    uint32_t word_count;
    bool server_given;   /* By --rdzv or MUSTER_RDZV; else it is localhost. */
    bool local;          /* CLI_DOCTOR */
    bool quick;          /* CLI_DOCTOR */
    bool brief;          /* CLI_DOCTOR */
    const char *log_dir; /* CLI_DOCTOR: borrowed; NULL: none. */
    int64_t timeout_ns;
    int64_t interval_ns;
    bool watch;
    bool json;
    bool help;
    bool version;
    enum cli_when colour;
    bool has_server; /* Named by --rdzv. */
    uint64_t given;  /* A bit for each row of the option table. */
    struct cli_run run;
    struct cli_logs logs;
    struct cli_stop stop;
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
