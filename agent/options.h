/* node-agent's command line: torchrun's grammar and flags, ours beside them, every value typed and
 * checked.
 *
 * One table (options_table.c) gives the parser, usage, --help and the man page. Words of the
 * command line beat PET_* variables, the last occurrence of a flag wins, unique prefixes are
 * enough, and the first word that is no flag is the program. Source: torchrun 2.13, seen from
 * outside; where it differs, a comment says so. What neither words nor variables say is taken from
 * the launcher that started us (agent/surroundings). */
#ifndef MUSTER_AGENT_OPTIONS_H
#define MUSTER_AGENT_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "agent/chaos.h"
#include "agent/surroundings/surroundings.h"
#include "base/err.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/option_text.h"
#include "base/parse.h"
#include "base/str.h"

/* What main() does with the command line. */
enum agent_mode {
    AGENT_RUN,
    AGENT_SERVE, /* --service */
    AGENT_SHOW_HELP,
    AGENT_SHOW_VERSION
};

/* Where agents meet.
 * STANDALONE  this agent alone hosts a rendezvous on a free loopback port, under a fresh run id
 * STATIC      --master-addr and --master-port, or a static endpoint: exactly nodes_max nodes
 * DYNAMIC     --rdzv, or backend c10d: nodes_min to nodes_max nodes */
enum agent_rdzv {
    AGENT_RDZV_STANDALONE,
    AGENT_RDZV_STATIC,
    AGENT_RDZV_DYNAMIC
};

/* What the program word is.
 * AUTO    a Python script, or a file that is executable and runs as it is
 * MODULE  python -u -m NAME
 * RUN_PATH  a Python script by way of runpy.run_path (--run-path)
 * DIRECT  looked up in PATH and run as it is (--no-python) */
enum agent_program_kind {
    AGENT_PROGRAM_AUTO,
    AGENT_PROGRAM_MODULE,
    AGENT_PROGRAM_RUN_PATH,
    AGENT_PROGRAM_DIRECT
};

/* Which of a worker's streams go to files: bits. */
enum {
    AGENT_STDOUT = 1,
    AGENT_STDERR = 2
};

#define AGENT_SIGNALS_MAX 32

/* What the words cpu, gpu and auto of --nproc-per-node mean here. Asked only when they are used. */
struct agent_machine {
    uint32_t (*cpus)(void); /* CPUs of the affinity mask. */
    /* GPUs: entries of `visible` ($CUDA_VISIBLE_DEVICES; NULL: unset), else device nodes. */
    uint32_t (*gpus)(const char *visible);
    const struct surroundings_machine *around;
    uint64_t (*seed)(void); /* Of --chaos, where it gives none. NULL: 1. */
};
extern const struct agent_machine agent_machine_real;

/* Strings are borrowed from argv and envp, static, or in here: not to be copied. Times are in ns.
 */
struct agent_options {
    enum agent_mode mode;

    /* the job */
    uint32_t nodes_min;
    uint32_t nodes_max;
    uint32_t nproc;
    uint32_t max_restarts;
    int64_t restart_window_ns; /* Within which they count; 0: for ever. */
    int64_t give_back_ns;      /* --restarts-given-back-after: a time; 0: none. */
    uint32_t give_back_steps;  /* Or steps; 0: none. */
    bool same_failure_restart; /* --same-failure=restart */
    int32_t node_rank;         /* -1: any. */
    bool on_join_restart;
    const char *run_id;   /* NULL: the caller makes a fresh one (a UUID). */
    const char *role;     /* May be "". */
    const char *topology; /* NULL: none. */

    /* where and how to meet */
    enum agent_rdzv rdzv;
    struct mu_endpoint endpoint; /* STANDALONE: localhost, port 0. Port 0: a free one. */
    bool serves_everywhere;      /* If this agent serves: at every address, not at endpoint's. */
    int is_host; /* rdzv-conf is_host: 1 serve the rendezvous here, 0 never, -1 find out. */
    const char *local_addr;  /* NULL: not given. */
    const char *token_file;  /* NULL: not given. */
    uint16_t store_port;     /* For the workers' store, where this node leads; 0: any free one. */
    int64_t join_timeout_ns; /* For enough nodes to come. */
    int64_t last_call_ns;    /* For more than enough to come. */
    int64_t connect_timeout_ns; /* For the server to be reached the first time. */
    int64_t server_timeout_ns;  /* For a lost server, once something is needed from it. */

    /* the workers */
    enum agent_program_kind program_kind;
    const char *program;
    char *const *args;  /* Behind the program, up to and with NULL. */
    const char *python; /* $PYTHON_EXEC, else "python3". */
    bool virtual_local_rank;
    const char *numa;            /* --numa-binding; NULL: none. */
    int64_t d_state_ns;          /* TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT; 0: do not look. */
    int64_t shutdown_timeout_ns; /* SIGTERM to SIGKILL. */
    int64_t
        progress_timeout_ns;    /* From one reported step to the next; 0: no limit; HANG_LEARNED. */
    int64_t silence_timeout_ns; /* Without any sign of life; 0: no limit. */
    const char *health_check;   /* NULL: none. */
    int64_t health_timeout_ns;
    int64_t health_interval_ns; /* From one that failed to the next, at first. */
    bool no_doctor;             /* Nothing is looked at where the rendezvous is late. */
    bool leave_quarantine;
    const char *hang_hook; /* NULL: what is there; "": nothing. */
    int64_t hang_hook_timeout_ns;
    const char *preemption_url; /* NULL: nothing is watched. Else a word or URL of notice_read.h. */
    int64_t drain_timeout_ns;   /* From "leave in order" until this node leaves in any case. */
    int signals[AGENT_SIGNALS_MAX];
    uint32_t signal_count;
    const char *signals_text; /* As given: workers see it. */

    /* service mode: `service` is set, and of the rest what concerns one job is not */
    bool service;
    uint32_t slots;         /* Workers it takes; 0: as many as there are GPUs, else CPUs. */
    uint64_t log_bytes;     /* Output kept of one job, */
    uint64_t log_bytes_all; /* and of all together. */

    /* output */
    const char *log_dir; /* NULL: not given. "/dev/null": no files at all. */
    bool no_files;       /* log_dir is /dev/null. */
    bool any_redirect;
    bool any_tee;
    bool any_quiet;
    uint8_t redirects[MU_WORKERS_MAX]; /* By local rank: AGENT_STDOUT | AGENT_STDERR. */
    uint8_t tee[MU_WORKERS_MAX];       /* The same: to files and to the console. */
    uint8_t quiet[MU_WORKERS_MAX];     /* 1: --local-ranks-filter keeps it off the console. */
    bool label;                        /* A prefix for what goes to the console plainly, too. */
    const char *line_prefix;           /* A template; NULL: the usual one. */
    const char *copy_words[2];         /* --duplicate-stdout-filters, -stderr-; NULL: not given. */
    bool events_on_console;            /* --event-log-handler=console */
    bool exit_status_first;            /* --exit-status=first */
    uint32_t last_lines;               /* --last-lines; 0: workers inherit stderr. */
    int64_t monitor_interval_ns;       /* Checked; nothing here polls. */
    struct chaos_rules chaos;          /* --chaos; none: off. */
    enum mu_log_level log_level;
    enum mu_log_format log_format;

    /* Where texts live that the surroundings told; the others point here. */
    char around_place[MU_HOST_BYTES + 16];
    char around_id[MU_RUN_ID_BYTES];
    char around_nproc[12];
};

/* Read the command line and the environment.
 *
 * notes     warnings, one sentence a line, for main() to print; appended.
 * ret_exit  on failure: the exit status, 2 for usage, 1 for values that are found wrong later.
 * Returns 0; or -EINVAL with one sentence that names the flag or variable, what was wrong and what
 * would be right; or -ENOMEM. */
int agent_options_parse(struct agent_options *ret,
                        int argc,
                        char *const *argv,
                        char *const *envp,
                        const struct agent_machine *machine,
                        struct mu_buf *notes,
                        int *ret_exit,
                        struct mu_err *err);

/* A text from the same table. `name`: how the program was called ("node-agent", "torchrun"). */
void agent_options_help(struct mu_buf *out, const char *name);
void agent_options_man(struct mu_buf *out); /* The OPTIONS section, as man(7) macros. */
/* The i-th flag; false: there are no more. */
bool agent_option_text(size_t i, struct mu_option_text *ret);

#endif
