/* The life of one agent: it joins, runs a round's workers, stops them, joins again, ends. What to
 * do when is decided here alone.
 *
 * Pure: (now, event) in, actions out. Sockets are agent/link's, processes agent/workers', words on
 * the terminal main's. The machine is the table in life.c; docs/states/life.dot is printed from it.
 *
 * Rules kept here, and checked by tests/sim:
 *  - workers of a round are started once, on START alone, and nothing of an older round runs here
 * then;
 *  - STOPPED is said only when no process of the round is left;
 *  - an agent that does not know to have been heard for 0.7 of the round's fence time stops its
 * workers first and asks later; a refused connection is not silence: the server's process is down,
 * nobody decides, the workers run on;
 *  - every wait has a limit: joining, the grace, the kernel's time to end a killed process, the
 * server's last word. */
#ifndef MUSTER_AGENT_LIFE_H
#define MUSTER_AGENT_LIFE_H

#include <stdbool.h>
#include <stdint.h>

#include "agent/life/health.h"
#include "base/cause.h"
#include "base/ctl.h"
#include "base/mem.h"

/* JOINING  in no round: connecting, or waiting for START
 * CHECKING looks whether it reaches the lead, and waits until all do     RUNNING  workers run
 * FINISHED every worker exited with 0; other nodes go on      STOPPING the round's processes are
 * being ended ENDING   all stopped for good; waits for the server's last word        EXITED  the
 * process may exit with exit_status */
#define LIFE_STATES(X) X(JOINING) X(CHECKING) X(RUNNING) X(FINISHED) X(STOPPING) X(ENDING) X(EXITED)
#define X(s) LIFE_##s,
enum life_state {
    LIFE_STATES(X) LIFE_STATE_COUNT
};
#undef X

/* From the shell, after REACH: REACHED or UNREACHED; after CHECK: CHECKED. From the link: LINK_UP
 * (connected: say hello), LINK_LOST (was up, closed or reset), LINK_FAILED (an attempt failed), and
 * the server's messages. From the workers: SPAWNED, SPAWN_FAILED, WORKER_EXIT, SILENT (who of them
 * gives no sign of life has changed), HUNG (one of them does not for longer than the user allows),
 * STACKS (they were taken, as far as they could be), ALL_GONE. From the system: SIGNAL (one that is
 * handled), DRAIN (this node is to leave in order), OWNER_GONE (the warden died). From the shell's
 * timer: DEADLINE. */
#define LIFE_EVENTS(X)                                                                             \
    X(LINK_UP)                                                                                     \
    X(LINK_LOST)                                                                                   \
    X(LINK_FAILED)                                                                                 \
    X(WELCOME)                                                                                     \
    X(REFUSED)                                                                                     \
    X(WAITING)                                                                                     \
    X(START)                                                                                       \
    X(GO)                                                                                          \
    X(HALT)                                                                                        \
    X(STOP)                                                                                        \
    X(END)                                                                                         \
    X(BEAT)                                                                                        \
    X(REACHED)                                                                                     \
    X(UNREACHED)                                                                                   \
    X(SPAWNED)                                                                                     \
    X(SPAWN_FAILED)                                                                                \
    X(WORKER_EXIT)                                                                                 \
    X(SILENT)                                                                                      \
    X(CHECKED)                                                                                     \
    X(HUNG)                                                                                        \
    X(STACKS)                                                                                      \
    X(ALL_GONE)                                                                                    \
    X(SIGNAL)                                                                                      \
    X(DRAIN)                                                                                       \
    X(OWNER_GONE)                                                                                  \
    X(DEADLINE)

/* News that the machine tells itself within a step.
 * CLEARED     the workers may start
 * DONE        every worker exited with 0         BROKEN  the round must be stopped here
 * GONE_REJOIN nothing is left, join again        GONE_FINAL nothing is left, no round follows QUIT
 * exit */
#define LIFE_NEWS(X) X(CLEARED) X(DONE) X(BROKEN) X(GONE_REJOIN) X(GONE_FINAL) X(QUIT)
#define X(e) LIFE_EV_##e,
enum life_event_type {
    LIFE_EVENTS(X) LIFE_NEWS(X) LIFE_EV_COUNT
};
#undef X

/* What is told of a worker's failure beyond the cause; NULL: nothing. */
struct life_words {
    const char *output; /* The last lines that it wrote, for everybody. */
    const char *tail;   /* More of them, for the record. */
    const char *trace;  /* Where it failed. */
};

struct life_event {
    enum life_event_type type;
    const struct ctl_msg *msg; /* The server's message, borrowed for the call. */
    bool stranger;             /* LINK_LOST: what answered speaks another protocol. */
    bool refused;  /* LINK_FAILED: connection refused, that is, no server process listens there. */
    int signo;     /* SIGNAL. With a text: none came, this node is ended for that reason. */
    bool by_owner; /* SIGNAL with a text: it leaves as one that was told to; it could go on. */
    uint32_t local_rank; /* WORKER_EXIT, SPAWN_FAILED */
    int32_t status;      /* WORKER_EXIT: exit status, or minus the signal's number. */
    bool by_itself;      /* WORKER_EXIT: it was ending, or had said why, before it was signalled. */
    bool halted;         /* WORKER_EXIT: it stopped because it was told after which step to stop. */
    int64_t timeout_ns;  /* DRAIN: until this node leaves in any case; its reason is `text`. */
    bool names_rank;     /* WORKER_EXIT: it names the rank `named` as the one that failed before. */
    int32_t named;
    enum health_verdict verdict; /* CHECKED; text: how it failed, or why nothing is known. */
    const int32_t *pids;         /* SPAWNED: nproc process ids, borrowed for the call. */
    struct ctl_ints silent;      /* SILENT: as the message has it; borrowed for the call. */
    const char *text; /* LINK_*, UNREACHED, SPAWN_FAILED, WORKER_EXIT: words for people, or NULL;
                         borrowed   for the call. */
    bool core_dumped; /* WORKER_EXIT, as the next one. */
    bool oom_killed;
    struct life_words words; /* WORKER_EXIT, HUNG, STACKS (of the one that the cause names, where it
                                is here): what is known beyond that; borrowed. */
    int64_t unix_ms;         /* Wall clock, only copied into causes. */
};

/* CONNECT     begin one attempt to reach the server; LINK_UP or LINK_FAILED follows
 * SEND        make the message with life_message() and send it
 * REACH       try once to connect to life->start's lead; REACHED or UNREACHED follows
 * CHECK       run the check of this node's health; one that runs is given up. CHECKED follows
 * SPAWN       start the workers of life->start; SPAWNED or SPAWN_FAILED follows at once
 * STACKS      look what the workers are doing; STACKS follows, in its own time
 * HALT        ask every worker to stop after life->halt_step
 * SIGNAL      send life->signo to every worker's group
 * KILL        SIGKILL everything of the round
 * SAY         show the line at life->words + arg to the user
 * EXIT        flush what was sent, then exit with life->exit_status; the outcome is in success,
 * cause */
enum life_action_type {
    LIFE_ACT_CONNECT,
    LIFE_ACT_SEND,
    LIFE_ACT_REACH,
    LIFE_ACT_CHECK,
    LIFE_ACT_SPAWN,
    LIFE_ACT_STACKS,
    LIFE_ACT_HALT,
    LIFE_ACT_SIGNAL,
    LIFE_ACT_KILL,
    LIFE_ACT_SAY,
    LIFE_ACT_EXIT
};

struct life_action {
    enum life_action_type type;
    enum ctl_type msg; /* SEND */
    uint32_t arg;      /* SEND EXITED: local rank. SAY: where in life->words. */
};

struct life_move {
    enum life_event_type event;
    enum life_state from;
    enum life_state to;
};
#define LIFE_MOVES_MAX 4

struct life_out {
    struct life_move moves[LIFE_MOVES_MAX];
    uint32_t move_count;
    const struct life_action *actions; /* Valid until the next life_step(). */
    uint32_t count;
};

#define LIFE_EXIT_SAME_FAILURE                                                                     \
    65 /* Starting again does not help (sysexits' EX_DATAERR); 1 for every other end. */
/* OK: as far as is known, or nobody looks. UNHEALTHY lasts until a check passes. */
enum life_health {
    LIFE_HEALTH_OK,
    LIFE_HEALTH_CHECKING,
    LIFE_HEALTH_UNHEALTHY
};

#define LIFE_BEATS_REMEMBERED 8 /* A later answer than to the eighth beat before is no news. */

struct life_config {
    struct ctl_hello
        hello;        /* What it says of itself; the round_* fields are filled here. Copied. */
    int64_t grace_ns; /* SIGTERM to SIGKILL. */
    int64_t join_timeout_ns;   /* How long to try to reach a server at first. */
    int64_t server_timeout_ns; /* How long to go on without one once something is needed of it. */
    int64_t stacks_ns;         /* How long STACKS may take; 0: nobody asks for it. */
    uint64_t seed;             /* For the jitter of reconnecting. */
    int64_t recheck_ns; /* From a check that failed to the next, at first; 0: MU_HEALTH_GAP_NS. */
    bool checks_health; /* CHECK can be done: before the first round, and after each. */
    bool serves;        /* The server is in this process: when it leaves, the job ends for all. */
    char meeting[MU_RUN_ID_BYTES + MU_HOST_BYTES + 32]; /* "job 'x' at n1:29500"; may be empty. */
    char server[MU_HOST_BYTES + 16];                    /* "n1:29500", for words. */
};

struct life {
    const struct mu_mem *mem;
    enum life_state state;
    struct life_config config;
    uint64_t random;

    bool link_up;
    bool connecting;
    int64_t links;      /* Connections so far. */
    bool link_welcomed; /* By this connection. */
    bool welcomed;      /* Ever: the server has taken us in. */
    int64_t beat_ns;
    int64_t heard_ns; /* When something was sent that the server has surely heard (a HELLO it
                         welcomed, a beat it answered): what travels the other way only would prove
                         nothing. A refused connection counts: nobody decides then. */
    int64_t hello_sent_ns;
    int64_t beat_seq;
    int64_t beat_sent_ns[LIFE_BEATS_REMEMBERED];
    int64_t beat_at_ns;
    int64_t connect_at_ns; /* Next attempt; INT64_MAX: none due. */
    int64_t backoff_ns;
    int64_t needed_since_ns; /* Since when something is needed of a server that is not there;
                                INT64_MAX: not. */

    struct ctl_start start; /* The live or last round; start.round 0: none yet. */
    int64_t fence_ms;    /* Silence that we allow ourselves in it: start.fence_ms, or less since. */
    uint32_t alive;      /* Workers that have not exited. */
    bool gone;           /* No process of the round is left. */
    bool spawned;        /* The round's workers were started here. */
    int64_t spawned_ns;  /* When. */
    bool reached;        /* CHECKING: the lead's store can be reached from here. */
    int64_t reach_at_ns; /* CHECKING: when the next try is due; NEVER: one is under way. */
    int64_t reach_until_ns; /* CHECKING: when it is given up. */
    char reach_error[128];
    int32_t *exits; /* nproc; -1000: has not exited. */
    int32_t *pids;
    bool *exit_untold; /* Exited with 0, the server does not know yet. */
    bool any_untold;
    int64_t tell_at_ns;

    enum life_health health;
    int64_t recheck_at_ns; /* JOINING: when CHECK is due; NEVER: none is. */
    int64_t recheck_gap_ns;
    char health_text[MU_MESSAGE_BYTES]; /* How it failed, or why the last one told nothing. */

    int32_t *steps;     /* Last ones that the workers reported; -1: none. For BEAT. */
    bool steps_untold;  /* The server does not know them all yet. */
    bool steps_in_beat; /* This one tells them. */

    int32_t *silent; /* What SILENT says. */
    uint32_t silent_count;

    bool failure_untold;     /* `failure` was not yet answered by STOP. */
    bool failure_said;       /* Of this round. */
    struct mu_cause failure; /* What failed first here in this round, as far as was said. */
    char failure_output[MU_OUTPUT_BYTES]; /* And what it wrote last. */
    char failure_tail[MU_TAIL_BYTES];
    char failure_trace[MU_TRACE_BYTES];
    bool final;           /* STOP said that no round follows. */
    bool leaving;         /* Exit when nothing is left. */
    bool ended;           /* END was heard. */
    bool killed;          /* STOPPING: SIGKILL was sent. */
    bool kill_at_once;    /* No grace: our own launcher is dead. */
    bool signalled;       /* STOPPING: the workers were told to end. */
    int64_t signal_at_ns; /* STOPPING: not before this. */
    bool draining;        /* This node is to leave in order. */
    char drain_reason[CTL_REASON_BYTES];
    int64_t drain_until_ns; /* Then it leaves in any case. */
    int64_t drain_left_ms;  /* For DRAIN. */
    int32_t halt_step;      /* The workers of this round stop after it; -1: they run on. */
    bool halted;            /* One of them has. */
    uint32_t stopped_round; /* For STOPPED. */
    int64_t last_exit_ns;   /* STOPPING: when the last worker so far ended. */
    int64_t stop_ms;        /* For STOPPED, as the following. */
    int64_t reclaim_ms;
    int32_t late[2 * MU_CONSEQUENCES_MAX]; /* Pairs: local rank, and when, in ms of stopping. */
    uint32_t late_count;                   /* All of them. */
    struct mu_cause bye;                   /* Why we leave, for BYE. */
    int64_t stop_deadline_ns; /* STOPPING: when the next rung of the ladder is due. ENDING: how long
                                 to wait. */
    int signo;                /* For the SIGNAL action. */

    bool success;
    bool has_cause;
    struct mu_cause cause; /* The first cause, as the server told it, or our own verdict. */
    char cause_output[MU_OUTPUT_BYTES]; /* Last lines of the worker it names; "": none known. */
    char spent_by[MU_MESSAGE_BYTES];    /* Which failures spent restarts, as END told. */
    int64_t consequences;               /* Failures after the cause, as END told. */
    int64_t incident;                   /* Number of the record of this end; 0: not known. */
    bool server_lasts;                  /* It can be asked when the job is over. */
    uint32_t restarts;                  /* As END or START told. */
    uint32_t spent;                     /* How many of them count, as END told. */
    uint32_t max_restarts;
    bool same_failure; /* END says that the cause is the same failure as the one before. */
    int exit_status;
    char last_error[256]; /* Of the link. */
    int64_t stranger_ns;  /* Since when a stranger answers, and nobody else has; NEVER: none. */
    int64_t unserved_ns;  /* Since when no server serves us; NEVER: one does. */
    int64_t next_word_ns; /* The next line about that is due, but not before. */
    int64_t word_gap_ns;
    int64_t reach_word_ns; /* CHECKING: when a line is due about the lead. */
    int64_t stop_began_ns; /* STOPPING: since when. */
    int64_t stop_word_ns;  /* STOPPING: when the next line is due about who does not end. */
    int64_t stop_gap_ns;
    int64_t told_leave_ns;    /* When we were first told to stop. */
    uint32_t told_stop_round; /* Round whose STOP the user was told of. */
    bool told_why;            /* It is the server's own word, given before it closes. */
    char words[2048];         /* For SAY, by the action's arg; NUL-terminated each. */
    uint32_t words_used;

    int64_t deadline_ns; /* The shell's timer. */
    uint64_t rejected_count;
    struct life_action *actions; /* Of the step that runs; nproc + 16. */
    uint32_t action_count;
};

/* Returns 0 or -ENOMEM. The first DEADLINE is due at once: it connects. */
int life_init(struct life *l,
              const struct mu_mem *mem,
              int64_t now_ns,
              const struct life_config *config);
void life_fini(struct life *l);

/* Advance by one event. Returns 0, or -EPROTO with nothing changed when the table has no row for it
 * (counted). Allocates for words only, and does without when there is no memory. */
int life_step(struct life *l, int64_t now_ns, const struct life_event *ev, struct life_out *out);

/* Fill the message of a SEND action. Lists in it are borrowed from `l`. */
void life_message(const struct life *l, const struct life_action *a, struct ctl_msg *ret);

/* A port bound for the next round's worker store: goes into the next HELLO and STOPPED. */
void life_set_store_port(struct life *l, uint16_t port);

/* A worker of the round has come as far as this step: the next BEAT tells it, and what is said of
 * its end. */
void life_note_step(struct life *l, uint32_t local_rank, int64_t step);

/* " within 1 h", or "" where all restarts count. */
#define LIFE_WITHIN_BYTES 48
const char *life_within(const struct life *l, char *buf);

const char *life_state_name(enum life_state s);
const char *life_event_name(enum life_event_type e);
void life_dot(struct mu_buf *out);
int life_table_to(enum life_state s, enum life_event_type e);

#endif
