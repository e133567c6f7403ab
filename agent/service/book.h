/* Which jobs are on this node, and what to do about them: the pure half of service mode. (now,
 * event) in, actions out; the shell (service.c) starts and signals processes and talks to the
 * server.
 *
 * A job comes with ASSIGN and is started at once. It is ENDED when its agent has exited and its
 * output is whole; the server is told then (PLACED), and the entry stays until it is known to have
 * heard: an answer to a later beat proves that, and whatever is here is told anew (HAS) on each new
 * connection. RELEASE follows when the last of its output is gone from this node. */
#ifndef MUSTER_AGENT_SERVICE_BOOK_H
#define MUSTER_AGENT_SERVICE_BOOK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/limits.h"

#define SVC_JOBS_MAX 256 /* Live ones, and ended ones that the server may not have heard of. */
#define SVC_LIVE_MAX 128
#define SVC_TEXT_BYTES 224
#define SVC_ROOM_NS INT64_C(10000000000) /* Beyond a job's own grace, before it is killed. */

/* RUNNING   its agent runs
 * STOPPING  that was told to end; it is killed at the deadline
 * KILLED    SIGKILL was sent; at the deadline what is left is given up
 * EXITED    the agent has ended, its output not yet
 * ENDED     nothing of it runs here */
#define SVC_STATES(X) X(RUNNING) X(STOPPING) X(KILLED) X(EXITED) X(ENDED)
#define X(s) SVC_##s,
enum svc_state {
    SVC_STATES(X) SVC_STATE_COUNT
};
#undef X
const char *svc_state_name(enum svc_state s);

struct svc_entry {
    bool used;
    char job[MU_RUN_ID_BYTES];
    uint32_t attempt;
    int64_t submitted_ms; /* Tells jobs of one id apart; 0: not known. */
    enum svc_state state;
    uint32_t nproc;
    int32_t status;      /* Of its agent, once it has ended: as shells have it. */
    int64_t deadline_ns; /* INT64_MAX: none. */
    int64_t ended_ns;
    uint64_t told_seq; /* The end was told before this beat; 0: not on this connection. */
    char text[SVC_TEXT_BYTES];
};

enum svc_event_type {
    SVC_EV_ASSIGN, /* job, attempt, submitted_ms, nproc; text: why the shell finds it cannot be, or
                      NULL. */
    SVC_EV_FAILED, /* entry, text: the start that was asked for did not succeed. */
    SVC_EV_EXITED, /* entry, status */
    SVC_EV_EMPTY,  /* entry: all of its output is kept, every process that held it is gone. */
    SVC_EV_UNASSIGN, /* job, attempt, signo, grace_ns */
    SVC_EV_WELCOME,  /* A connection is up, and the server knows us. */
    SVC_EV_LOST,     /* It is not any more. */
    SVC_EV_ANSWER,   /* seq: the server has answered this beat. */
    SVC_EV_GONE,     /* job: no output of it is left here. */
    SVC_EV_DRAIN,    /* Take no more; the agents here leave in order. */
    SVC_EV_UNDRAIN,  /* Take jobs again; the agents here leave all the same. */
    SVC_EV_STOP,     /* The service is to end. */
    SVC_EV_DEADLINE
};

struct svc_event {
    enum svc_event_type type;
    const char *job;
    uint32_t attempt;
    int64_t submitted_ms;
    uint32_t nproc;
    int32_t entry;
    int32_t status;
    int signo;
    int64_t grace_ns;
    uint64_t seq;
    const char *text;
};

enum svc_action_type {
    SVC_ACT_START,   /* entry: now; FAILED follows if that cannot be. */
    SVC_ACT_SIGNAL,  /* entry, signo: to its agent */
    SVC_ACT_KILL,    /* entry: SIGKILL, the agent and all */
    SVC_ACT_ABANDON, /* entry: what does not end after SIGKILL is left behind; EMPTY follows. */
    SVC_ACT_PLACED,  /* entry, placed; or entry -1, job, attempt and text of one that was refused */
    SVC_ACT_HAS,     /* entry; -1: that was the last */
    SVC_ACT_RELEASE, /* job */
    SVC_ACT_DRAINS,  /* Tell the server that we take no more. */
    SVC_ACT_LEAVE    /* Told to stop, and nothing is left. */
};

enum svc_placed {
    SVC_PLACED_STARTING,
    SVC_PLACED_RUNS,
    SVC_PLACED_ENDED,
    SVC_PLACED_REFUSED
};

struct svc_action {
    enum svc_action_type type;
    int32_t entry;
    int signo;
    enum svc_placed placed;
    const char *job;
    uint32_t attempt;
    const char *text; /* "" or a sentence. */
};

#define SVC_ACTIONS_MAX (2 * SVC_JOBS_MAX + 8)

struct svc_out {
    uint32_t count;
    struct svc_action a[SVC_ACTIONS_MAX];
};

struct svc_book {
    struct svc_entry entries[SVC_JOBS_MAX];
    uint32_t slots;
    int64_t stop_grace_ns; /* For all, when the service ends. */
    bool draining;
    bool stopping;
    bool left;
    bool welcome;
    uint64_t seq; /* The last beat that was sent: the shell sets it. */
    char refusal[SVC_TEXT_BYTES];
};

void svc_init(struct svc_book *b, uint32_t slots, int64_t stop_grace_ns);

/* Advance by one event. Returns 0; -EPROTO, with nothing changed, when it fits nothing here. `out`
 * is the caller's; its texts are valid until the next step. */
int svc_step(struct svc_book *b, int64_t now_ns, const struct svc_event *ev, struct svc_out *out);

/* When DEADLINE is wanted; INT64_MAX: not at all. */
int64_t svc_deadline(const struct svc_book *b);

/* The entry of that job, of that attempt (0: the latest), or -1. */
int32_t svc_find(const struct svc_book *b, const char *job, uint32_t attempt);
/* Of jobs that run or are being ended. */
uint32_t svc_live_count(const struct svc_book *b);
uint32_t svc_busy_slots(const struct svc_book *b);

#endif
