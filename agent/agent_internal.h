/* What the files of one agent share. Nobody else includes it.
 *
 * agent.c         the parts wired together; events of the loop, the link, signals and the machine
 * agent_round.c   the workers of a round
 * agent_words.c   what is said, torchrun's events, how the job came out */
#ifndef MUSTER_AGENT_AGENT_INTERNAL_H
#define MUSTER_AGENT_AGENT_INTERNAL_H

#include <sys/resource.h>

#include "agent/agent.h"
#include "agent/first.h"
#include "agent/health.h"
#include "agent/hosting.h"
#include "agent/inject.h"
#include "agent/late.h"
#include "agent/life/life.h"
#include "agent/link/link.h"
#include "agent/link/reach.h"
#include "agent/notice_watch.h"
#include "agent/pulse.h"
#include "agent/stacks.h"
#include "agent/watchdog.h"
#include "agent/workers/output.h"
#include "agent/workers/plan.h"
#include "agent/workers/work.h"
#include "agent/workers/xid.h"

/* A worker that failed in the present round, for the report. */
struct failed {
    struct work_exit exit;
    int64_t unix_s;
    char *error_path;
    char *error_text;
    bool has_output; /* Its last lines are known. */
};

enum {
    LAST_LINES_MS = 200,  /* The pump may be held up by a disk. */
    REPORT_LINES = 40,    /* All that is said at the end. */
    CONSEQUENCES_MAX = 8, /* Named; more are counted. */
    OUTPUT_FILES = 6,     /* Descriptors of a worker whose output passes through us, at most; */
    OUTPUT_OWN_FILES = 7, /* and of the one that carries it. */
    WORKER_FILES = 3,     /* A socket's two ends and a pidfd. */
    OWN_FILES = 25        /* With the rendezvous and a worker store, before the first worker. */
};

struct agent {
    const struct agent_options *o;
    const char *name;
    struct warden *warden;
    uv_loop_t loop;
    struct life life;
    struct link *link;
    struct reach reach;
    struct work *work;
    struct output *output;
    struct plan *plan;
    int told_signo;     /* The signal that told us to stop; 0: none. */
    int64_t started_ns; /* For events: the agent's start, and the present join's. */
    int64_t joining_ns;
    struct hosting hosting;
    struct watchdog watchdog;
    struct pulse pulse;
    struct health health;
    struct late late;
    struct xid xid;
    char cause_words[MU_MESSAGE_BYTES]; /* Of the worker that failed last. */
    struct stacks stacks;
    bool hangs; /* `hang` waits for its stacks. */
    struct hang_verdict hang;
    int64_t hang_ns; /* When it was found. */
    struct notice_watch notices;
    struct inject inject; /* Faults on purpose; nothing without --chaos. */
    uv_timer_t timer;
    int64_t timer_at_ns;
    struct first first; /* Exits on their way from `work`. */
    uv_timer_t goodbye; /* Limit of waiting for others that need our server. */
    bool lookups_left;  /* A thread waits for a name server: the process ends without it. */
    bool stuck;         /* Processes of the round do not end after SIGKILL. */
    bool left;          /* Everything is closed but what the loop closes by itself. */
    uv_signal_t signals[AGENT_SIGNALS_MAX];
    uint32_t signal_count;
    bool usr1_drains; /* Not in --signals-to-handle: a scheduler's warning. */
    char run_id[MU_RUN_ID_BYTES];
    struct failed *failed; /* nproc entries. */
    uint32_t failed_count;
    char
        last_lines[MU_OUTPUT_BYTES]; /* Of the first of them, where its output passes through us. */
    char tail[MU_TAIL_BYTES];        /* More of them, for the record. */
    struct work_exit consequences[CONSEQUENCES_MAX]; /* Failed by themselves while being stopped. */
    uint32_t consequence_count;
    bool leaving;            /* EXIT was decided: handles are being closed. */
    struct mu_prover prover; /* No token: none is asked for. */
    bool link_open;
    bool work_open;
    bool output_open;
    bool goodbye_over;
    struct rlimit files; /* The workers' limit of open files, where ours was raised at the start. */
    bool files_raised;
    bool files_inherit;      /* Too few to carry output for its last lines alone. */
    struct mu_buf *report;   /* While our last words are gathered; else NULL. */
    bool console_lost;       /* What workers wrote is missing from our own stdout or stderr. */
    bool rank0_serves_store; /* As the user wants it: torchrun's TORCH_DISABLE_SHARE_RDZV_TCP_STORE.
                              */
};

/* --- agent.c --- */
/* What happened: the machine goes on, and its actions are carried out. */
void agent_step(struct agent *a, struct life_event *ev);

/* --- agent_round.c --- */
/* Start the workers of the round that life has; what happens is told by events. */
void agent_spawn(struct agent *a);
/* Of all workers that live, the one that hangs first. Returns false where agent_on_stacks() will
 * not come. */
bool agent_take_stacks(struct agent *a, uint32_t first);
void agent_forget_failures(struct agent *a);
/* A fresh port for the next round that this node may lead. */
void agent_renew_store(struct agent *a);
/* For work, first, pulse and stacks; arg: the agent. */
void agent_on_exit_of_worker(void *arg, const struct work_exit *e);
void agent_note_exit(void *arg, const struct work_exit *e);
void agent_on_all_gone(void *arg);
void agent_on_said(void *arg,
                   uint32_t local_rank,
                   enum talk_news news,
                   const struct talk_said *said);
void agent_on_hung(void *arg, const struct hang_verdict *v, int64_t now_ns);
void agent_on_stacks(void *arg);

/* --- agent_words.c --- */
/* Whole lines on stderr. */
void agent_put_words(const struct agent *a, const char *p, size_t n);
/* One line to the user: what cannot be shown by a terminal is escaped. */
void agent_say(const struct agent *a, const char *text);
void agent_say_err(const struct agent *a, const struct mu_err *err);
/* torchrun's events, where the user wants them: the agent's own; a round's start; how a worker
 * ended
 * (`words`: why, or NULL). */
void agent_tell_own_event(const struct agent *a, const char *state, int64_t duration_ms);
void agent_tell_started(const struct agent *a, const int32_t *pids);
void agent_tell_end(const struct agent *a, const struct work_exit *e, const char *words);
/* Everybody prints the same first cause. */
void agent_say_outcome(const struct agent *a);

#endif
