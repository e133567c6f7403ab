/* Who runs what for muster run --hosts: reading hosts, and the words for the shell there. Pure. */
#ifndef MUSTER_LAUNCHER_HOSTS_PLAN_H
#define MUSTER_LAUNCHER_HOSTS_PLAN_H

#include <stdint.h>

#include "base/err.h"
#include "base/str.h"
#include "launcher/submission.h"

#define CLI_HOSTS_MAX 1024 /* Each is a process and three descriptors here. */

struct cli_host {
    char ssh[320];  /* As ssh takes it: "user@n1". */
    char name[256]; /* "n1" */
    uint32_t slots; /* Workers; 0: not told. */
};

struct cli_hosts {
    struct cli_host *host; /* `count`, of `mem`. */
    uint32_t count;
    const struct mu_mem *mem;
};

/* "n1,user@n2:8", as --hosts has it; or a file's text, as node-agent's --hostfile has it: one a
 * line, HOST, HOST slots=N or HOST:N, comments behind #. Returns 0; -EINVAL or -ENOMEM with a
 * sentence. */
int cli_hosts_parse(struct cli_hosts *h, const char *text, bool is_file, struct mu_err *err);
void cli_hosts_fini(struct cli_hosts *h);

/* Fewest and most nodes of the job. Returns 0, or -EINVAL: there are not that many hosts. */
int cli_hosts_nodes(const struct cli_hosts *h,
                    const struct cli_run *run,
                    uint32_t *ret_min,
                    uint32_t *ret_max,
                    struct mu_err *err);

struct cli_hosts_plan {
    const struct cli_hosts *hosts;
    struct cli_submission submission; /* Its run, folder and environment. */
    const char *rdzv;                 /* "n1:29500" */
    const char *run_id;
    const char *token_file; /* On each host, absolute; NULL: none. */
    uint32_t nodes_min;
    uint32_t nodes_max;
};

/* What ssh is told to run there. It reads one line, which cli_host_script() makes, then names of
 * signals, a line each, for the agent; when its input ends, the agent gets SIGTERM, and SIGKILL
 * when that has not helped. So no agent outlives the connection, nothing of the job stands in an
 * argument list, and it does not matter which shell the user has there. */
extern const char cli_host_command[];

/* The line, with its newline, for hosts->host[index]. Returns 0, or -EINVAL with a sentence. */
int cli_host_script(struct mu_buf *line,
                    const struct cli_hosts_plan *plan,
                    uint32_t index,
                    struct mu_err *err);

/* A word for a POSIX shell: whatever bytes it has, it stays one word. */
void cli_add_shell_word(struct mu_buf *b, const char *word);

#endif
