/* What a worker gets: program, arguments, environment, log folder; as torchrun gives it. Made once
 * per agent, built once per round. Knows files and folders, no processes and no loop. */
#ifndef MUSTER_AGENT_PLAN_H
#define MUSTER_AGENT_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "agent/workers/work.h"
#include "base/err.h"
#include "base/limits.h"

/* AUTO    a *.py goes to Python, and so does what is no executable file; an ELF file, or an
 * executable whose #! line names no Python, runs as it is. MODULE  python -u -m program (-m).
 * PLAIN: as it is, searched in PATH unless it has a '/' (--no-python). SCRIPT  python -u program,
 * whatever it is. RUN_PATH  the same by way of runpy.run_path(), whose exceptions go to the error
 * file (--run-path). */
enum plan_kind {
    PLAN_AUTO,
    PLAN_SCRIPT,
    PLAN_RUN_PATH,
    PLAN_MODULE,
    PLAN_PLAIN
};

enum plan_streams { /* As the digits of --redirects. */
    PLAN_STDOUT = 1,
    PLAN_STDERR = 2
};

/* All pointers are borrowed for the plan's life. */
struct plan_config {
    uint32_t nproc;
    const char *role;
    const char *run_id;
    uint32_t max_restarts;
    enum plan_kind kind;
    const char *program;       /* As typed. */
    const char *const *args;   /* NULL-terminated, without the program. NULL: none. */
    const char *python;        /* NULL: $PYTHON_EXEC, else that of our virtual environment, else
                                * python3 from PATH. */
    const char *log_dir;       /* NULL: a fresh folder, removed at the end unless it holds a file.
                                  "/dev/null": no files. */
    const uint8_t *redirects;  /* enum plan_streams by local rank; NULL: none. */
    const uint8_t *tee;        /* To files and, with a prefix, to the console; NULL: none. */
    const uint8_t *quiet;      /* By local rank: not 0, and it may not write to the console. */
    bool label;                /* What goes to the console plainly gets a prefix too. */
    const char *line_prefix;   /* A template (lines.h); NULL or "": "[<role><local rank>]:". */
    const char *copy_words[2]; /* --duplicate-stdout-filters, -stderr-; NULL: none. */
    const char *numa;          /* --numa-binding; NULL: none. */
    bool virtual_local_rank;
    const char *signals_to_handle; /* "SIGTERM,SIGINT,SIGHUP,SIGQUIT" */
    bool has_sockets;              /* Workers get one each: MUSTER_AGENT_FD, and MUSTER_ROUND. */
    char *const *environment;      /* What workers inherit: environ. */
};

/* The facts of one round. */
struct plan_round {
    uint32_t round;
    uint32_t node_rank;
    uint32_t node_count;
    uint32_t rank_base; /* Global rank of our local rank 0. */
    uint32_t world;
    uint32_t role_rank_base;
    uint32_t role_world;
    uint32_t restarts;
    const char *lead_addr;
    uint16_t lead_port;
    bool rank0_serves_store; /* TORCHELASTIC_USE_AGENT_STORE=False: rank 0 listens at that port
                                itself. */
};

struct plan;

/* Resolve program and interpreter, fix the names of folders. Touches no folder but --log-dir, which
 * must be one or can be made. Returns 0, or a negative errno with a sentence: -ENOENT (not in
 * PATH), -EACCES, -EINVAL (too few devices for
 * --virtual-local-rank), -ENOTDIR, -ENOMEM. */
int plan_new(const struct plan_config *c, struct plan **ret, struct mu_err *err);
void plan_free(struct plan *p); /* Takes NULL. Leaves folders alone. */

/* Warnings for the user, once per agent, from index 0 on: OMP_NUM_THREADS was set to 1, a script
 * lacks its execute bit. NULL: no more. */
const char *plan_warning(const struct plan *p, unsigned index);
/* The name of the failure report: the program as typed. */
const char *plan_title(const struct plan *p);

/* Lay out one round. *ret points into the plan: valid until the next plan_build() or plan_free().
 * No I/O. Returns 0 or -ENOMEM. */
int plan_build(struct plan *p,
               const struct plan_round *r,
               struct work_round *ret,
               struct mu_err *err);

/* Make the folders of the round that was built last. An error file that an earlier round of the
 * same attempt left is removed, its output stays. Returns 0 or a negative errno with a sentence. */
int plan_make_folders(struct plan *p, struct mu_err *err);
/* The log folder that nobody named, which may be made; NULL: there is none. */
const char *plan_log_base(const struct plan *p, bool *ret_in_memory);
/* At the end: a default log folder goes, but for what holds a file. */
void plan_cleanup(struct plan *p);

/* What a worker said of its own failure, from its error file of the round that was built last. */
struct plan_error {
    bool found;     /* There is a file, readable or not. */
    int64_t unix_s; /* 0: it does not say when. */
    char path[1024];
    char message[MU_MESSAGE_BYTES]; /* One line: the exception's own, or what is wrong with the
                                       file. "" without a file. */
    char *text; /* For the report: the traceback, else the message. The caller frees it; may be
                   NULL. */
};
/* Never fails: what cannot be read is said in words. A default log folder that lives in memory gets
 * its file copied to TMPDIR, where it stays. */
void plan_read_error(struct plan *p, uint32_t local_rank, struct plan_error *ret);
void plan_error_fini(struct plan_error *e);
/* A worker without an error file: the last line it wrote becomes its message. */
void plan_error_last_line(struct plan_error *e, const char *text);

/* What a worker was doing when it hung, into stacks.log beside its error file. Returns 0 or a
 * negative errno with a sentence; 0 where there are no files. */
int plan_write_stacks(const struct plan *p,
                      uint32_t local_rank,
                      const char *text,
                      struct mu_err *err);

/* Copy the error file at `path` to `to` (our own TORCHELASTIC_ERROR_FILE), with "errorCode" added
 * to an inner message. Returns 0 or a negative errno with a sentence. */
int plan_copy_error(const char *path, const char *to, int32_t exit_code, struct mu_err *err);

#endif
