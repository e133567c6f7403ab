/* Starting one process: the parent computes, the child only issues system calls. clone3 with the
 * parent's memory lent to the child (VM|VFORK) costs the same whatever the parent's size; vfork()
 * stands in where clone3 is refused. */
#ifndef MUSTER_AGENT_SPAWN_H
#define MUSTER_AGENT_SPAWN_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

#include "base/err.h"

/* Where a start failed, and the words of the sentence. */
#define SPAWN_STAGES(X)                                                                            \
    X(OK, "")                                                                                      \
    X(STDOUT, "open its stdout file")                                                              \
    X(STDERR, "open its stderr file")                                                              \
    X(TALK, "make its socket")                                                                     \
    X(CLONE, "create its process")                                                                 \
    X(PIDFD, "open its pidfd")                                                                     \
    X(SESSION, "setsid")                                                                           \
    X(SIGNALS, "reset its signals")                                                                \
    X(PARENT, "tie it to the agent's life")                                                        \
    X(FOLDER, "enter its folder")                                                                  \
    X(FILES, "part with our descriptors")                                                          \
    X(STDIO, "redirect its output")                                                                \
    X(CPUS, "bind it to its CPUs")                                                                 \
    X(LIMIT, "give back its limit of open files")                                                  \
    X(EXEC, "execve")
#define X(name, text) SPAWN_##name,
enum spawn_stage {
    SPAWN_STAGES(X) SPAWN_STAGE_COUNT
};
#undef X

/* What stays the same from child to child. */
struct spawner {
    void *stack; /* The child's, until its execve: one is enough, for the parent waits. */
    int slot[3]; /* Low descriptors for the child's stdout and stderr files and its socket; -1: not
                    reserved. */
    uint64_t reset_signals; /* Bit n-1: signal n is not at its default here. */
    pid_t self;
    struct rlimit files; /* The limit of open files that the children get, where ours was raised. */
    bool files_raised;
    bool no_clone3; /* Refused once (ENOSYS, or a filter's EPERM): vfork() from then on. */
};

struct spawn_plan {
    const char *path; /* Resolved: no search in PATH is done. */
    char *const *argv;
    char *const *envp;
    int stdout_fd; /* -1: inherit ours. Not below 3. */
    int stderr_fd;
    const unsigned long *cpus; /* A mask of cpus_bytes; NULL: inherit ours. */
    size_t cpus_bytes;
    int cgroup_fd;      /* -1: none. Only with clone3; ignored otherwise. */
    int talk_fd;        /* A socket it gets as `talk_at`; 0: none. */
    int talk_at;        /* Above 2. */
    const char *folder; /* Where it starts; NULL: where we are. */
    int death_signo;    /* What it gets should we die; 0: SIGKILL. */
};

/* Returns 0 or -ENOMEM. spawn_refresh() reads again what may have changed: our signal dispositions
 * and pid. */
int spawn_init(struct spawner *s);
void spawn_fini(struct spawner *s);
void spawn_refresh(struct spawner *s);

/* Room for `more` descriptors: raises our soft limit when it must. The children get the former one
 * back. */
void spawn_raise_files(struct spawner *s, uint32_t more);

/* Output files take two reserved descriptors, low ones, for a child copies all below them: reserve
 * before the first start of a round that has any. spawn_open_output() opens `path` for appending in
 * the place of stream 1 or 2, valid until the next call for that stream, and returns the
 * descriptor, which is the spawner's. Both: a negative errno on failure. */
int spawn_reserve_output(struct spawner *s);
/* The same for a socket: a copy of `fd` in the reserved place, valid until the next call. */
int spawn_place_talk(struct spawner *s, int fd);
int spawn_open_output(struct spawner *s, int stream, const char *path);
int spawn_use_output(struct spawner *s, int stream, int fd); /* The same for an open descriptor. */

/* Start a process that leads its own session, with default signals and none blocked, dies with the
 * calling thread, and has descriptors 0 to 2 and its socket alone. Returns 0: the program runs,
 * *ret_pidfd is close-on-exec and the caller's. Or a negative errno with *ret_stage: then nothing
 * is left behind. -EBUSY, -EOPNOTSUPP, -EACCES, -EPERM or -ENOENT at SPAWN_CLONE with a cgroup_fd
 * may be the cgroup's doing. One thread at a time per spawner. */
int spawn_start(struct spawner *s,
                const struct spawn_plan *p,
                pid_t *ret_pid,
                int *ret_pidfd,
                enum spawn_stage *ret_stage);

/* The sentence: "worker 3: execve './x': Permission denied". Says what is behind an ENOENT or
 * ENOEXEC that the path alone does not explain (the interpreter of its #! line is missing). Returns
 * code. */
int spawn_explain(
    struct mu_err *err, uint32_t local_rank, const char *path, enum spawn_stage stage, int code);

#endif
