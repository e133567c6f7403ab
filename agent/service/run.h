/* One job's agent as a process of this service: started, watched, signalled, its output carried
 * into its file. Decides nothing (book.h does). */
#ifndef MUSTER_AGENT_SERVICE_RUN_H
#define MUSTER_AGENT_SERVICE_RUN_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <uv.h>

#include "agent/service/cgroups.h"
#include "agent/service/kept.h"
#include "agent/service/record.h"
#include "agent/workers/spawn.h"
#include "base/err.h"

#define RUN_CGROUP_BYTES (CGROUPS_PATH_BYTES + 200)

struct run;

/* What all runs of a service share. The callbacks come from the loop, never from within a call. */
struct runs {
    uv_loop_t *loop;
    struct spawner spawner;
    struct kept *logs;
    struct cgroups *cgroups;
    struct run *first;
    bool held; /* Nothing is read: the service is about to be started anew. */
    char *buffer;
    void *arg;
    void (*on_exited)(void *arg, struct run *r, int status); /* As shells have it: 128 + n. */
    void (*on_output)(void *arg, struct run *r);             /* Some was written to its file. */
    void (*on_empty)(void *arg,
                     struct run *r); /* Exited, or abandoned, and all of it is written. */
};

struct run {
    struct run *next;
    struct runs *all;
    int32_t entry; /* Of the book. */
    char job[MU_RUN_ID_BYTES];
    uint32_t attempt;
    pid_t pid;
    int pidfd;
    bool exited;
    bool empty_said;
    int fd[2]; /* Its stdout and stderr; -1: at their end. */
    struct record record[2];
    struct keeper *log;
    char cgroup[RUN_CGROUP_BYTES]; /* "": none. */

    uv_poll_t exit_poll;
    uv_poll_t output_poll[2];
    bool exit_open;
    bool output_open[2];
    uint32_t handles;
    bool freed;
};

struct run_plan {
    int32_t entry;
    const char *job;
    uint32_t attempt;
    char *const *argv;
    char *const *envp;
    const char *cwd;
};

/* The loop, logs, cgroups and callbacks are the caller's to fill before. Returns 0 or -ENOMEM. */
int runs_init(struct runs *a);
void runs_fini(struct runs *a);
/* Stop or go on reading. */
void runs_hold(struct runs *a, bool held);
bool runs_are_writing(const struct runs *a);

/* Start this program anew as the job's agent. Returns 0 or a negative errno with a sentence. */
int run_start(struct runs *a, const struct run_plan *p, struct run **ret, struct mu_err *err);
/* One that another process of this service started: `from` has its numbers and texts, its records
 * are taken. Returns 0 or a negative errno. */
int run_adopt(struct runs *a, struct run *from, uint32_t part, uint64_t lines, struct run **ret);

void run_signal(struct run *r, int signo);
void run_kill(struct run *r);
/* What holds its output open is not waited for any longer. */
void run_abandon(struct run *r);
/* After on_empty. */
void run_free(struct run *r);

#endif
