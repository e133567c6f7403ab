/* The processes of one node: start a round's workers, notice each end, signal them, make sure that
 * nothing of them is left. A shell on libuv; what to do when is agent/life's business. One group
 * per agent, reused round after round. */
#ifndef MUSTER_AGENT_WORK_H
#define MUSTER_AGENT_WORK_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <uv.h>

#include "agent/workers/talk.h"
#include "base/err.h"
#include "base/limits.h"
#include "base/str.h"

/* How a worker ended: exit status >= 0, or minus the signal's number. */
struct work_exit {
    uint32_t local_rank;
    int32_t pid;
    int32_t status;
    bool by_itself; /* Before work_signal() and work_kill(), or seen to fall by work_note_falling().
                     */
    bool core_dumped;
    bool oom_killed; /* The kernel killed it for memory (cgroup memory.events), where that can be
                        known. */
};

struct work_events {
    void *arg;
    /* A worker's own process ended; its children may still be dying. Called once per started
     * worker. */
    void (*on_exit)(void *arg, const struct work_exit *e);
    /* No process of the round is left: every worker and everything it forked is reaped. Called once
     * per round, after the last on_exit. */
    void (*on_all_gone)(void *arg);
    /* A worker said something over its socket. NULL: workers get no socket. All that came before
     * its end is told before on_exit. */
    void (*on_said)(void *arg,
                    uint32_t local_rank,
                    enum talk_news news,
                    const struct talk_said *said);
};

/* What is started. All strings and arrays are borrowed for work_start() alone. */
struct work_round {
    uint32_t round;
    uint32_t restarts; /* attempt_N in the log folder. */
    uint32_t nproc;
    const char
        *program; /* What is executed, a path: nobody searches PATH. NULL: each worker's argv[0]. */
    /* argv and environment of each worker, NULL-terminated; envp[i] must hold its whole
     * environment. */
    char *const *const *argv;
    char *const *const *envp;
    /* By local rank; NULL array or entry: inherit ours. Files are made if need be and written at
     * their end, so that a second round of the same attempt keeps what the first one wrote. The
     * same path for both: one file. */
    const char *const *stdout_path;
    const char *const *stderr_path;
    /* By twice the local rank, stderr's one behind: descriptors that take the place of the paths;
     * -1: none. NULL: none at all. output_open() makes them; they stay the caller's. */
    const int *output_fd;
    /* CPUs of each worker, as sched_setaffinity() takes them, cpus_bytes each; NULL array or entry:
     * ours. */
    const unsigned long *const *cpus;
    size_t cpus_bytes;

    /* For output_open(). By local rank: streams (1 stdout, 2 stderr) that also go to our own
     * stdout and stderr, with a prefix before each line; NULL: none. */
    const uint8_t *shown;
    const char *const *prefix;
    /* Streams that a worker would inherit, and that pass through us as they are, so that its last
     * lines are known: 2 stderr, 3 also stdout, where both lead to the same place. 0: none. */
    uint8_t passed;
    /* Of stdout and of stderr: lines of streams marked in `copied` (as `shown`) with one of these
     * words in them go here as well. NULL: no. */
    const uint8_t *copied;
    const char *copy_path[2];
    const struct mu_str *copy_words[2];
    size_t copy_word_count[2];
};

struct work;

/* Make the group ready: makes a cgroup where cgroup v2 can be written, becomes a subreaper, blocks
 * SIGCHLD. All calls come from the process's first thread (workers die with the thread that started
 * them), and the process has no other children: a child that is no worker is taken for an orphan of
 * one, and is ended with it. Returns 0 or a negative errno with a sentence. */
int work_new(uv_loop_t *loop,
             const struct work_events *events,
             struct work **ret,
             struct mu_err *err);
/* The cgroup that all workers are in, for warden_note_cgroup(); NULL where there is none. Valid
 * until work_close(). */
const char *work_cgroup(const struct work *w);
/* Do without: every promise below holds as well, by way of process groups, sessions and adopted
 * orphans. */
void work_drop_cgroup(struct work *w);
/* Everything must be gone. Closes handles; `done` is called when the last is closed and *w is
 * freed. */
void work_close(struct work *w, void (*done)(void *), void *arg);

/* Room for so many descriptors more; the workers' own limit stays what it was. */
void work_expect_files(struct work *w, uint32_t more);
/* The limit of open files that workers get, where ours was raised before work_new(). */
void work_give_files(struct work *w, const struct rlimit *files);
/* Start every worker of a round; a former round must be gone. ret_pids: nproc of them.
 * On failure: -errno with a sentence that names worker, program and what failed ("worker 3: execve
 * './x': permission denied"); *ret_failed is its local rank; those already started are being
 * killed, and on_all_gone follows. */
int work_start(struct work *w,
               const struct work_round *r,
               int32_t *ret_pids,
               uint32_t *ret_failed,
               struct mu_err *err);

/* Look, before the first signal, who is ending already or has said why it fails: that is no
 * consequence of the signal. Costs some 10 us a worker. */
void work_note_falling(struct work *w);
/* Send signo to every living worker's process group; then SIGCONT, so that a stopped one hears it
 * (not after signals that stop). */
void work_signal(struct work *w, int signo);
/* Tell every living worker, over its socket, that it should stop. */
void work_ask_stop(struct work *w);
void work_ask_stop_after(struct work *w, int64_t step);
/* What a worker of the present round has said, living or not; NULL: it had no socket. Valid until
 * the next work_start(). */
const struct talk_said *work_said(const struct work *w, uint32_t local_rank);
/* SIGKILL to everything of the round: groups, cgroup, escaped descendants. on_all_gone follows,
 * unless the kernel cannot end one (D state). */
void work_kill(struct work *w);
bool work_is_running(const struct work *w);
/* Take what workers have said by now, before the loop would. */
void work_listen(struct work *w);
uint32_t work_nproc(const struct work *w); /* Of the round; 0 before the first. */
/* Started, and its end is not known yet. */
bool work_is_there(const struct work *w, uint32_t local_rank);
/* It is there, and on its way out: the kernel takes it apart (PF_EXITING in /proc/PID/stat). */
bool work_is_ending(const struct work *w, uint32_t local_rank);
/* One process beside the workers, which belongs to no round: in its own session, with `out_fd` as
 * stdout and stderr, dead when we are. `ended` gets its exit status or minus the signal's number,
 * once; what it leaves in its session is killed then. One that is there when a round's remains are
 * killed goes with them; one that the kernel cannot end keeps no round from being over.
 * Returns 0; -EBUSY while the last one is there; or a negative errno. */
int work_start_guest(struct work *w,
                     char *const *argv,
                     char *const *envp,
                     int out_fd,
                     void (*ended)(void *arg, int32_t status),
                     void *arg);
void work_kill_guest(struct work *w); /* `ended` still follows. */
/* For messages when killing does not help: pids that are still there, as text. */
void work_describe_left(const struct work *w, char *dst, size_t cap);

#endif
