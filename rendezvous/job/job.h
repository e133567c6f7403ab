/* One job's rendezvous: who is here, who has which rank, which round runs, what failed first, and
 * what happens next.
 *
 * Pure: (now, event) in, actions out. No clock, no I/O, no log, no random source. One struct job is
 * one run id; the shell keeps many. design: docs/architecture.md "A job's life". The state machine
 * is the table in job.c; docs/states/job.dot is printed from it.
 *
 * Nodes are slots: a number that names one agent process of this job from its hello to
 * JOB_ACT_FORGET. Slots are reused.
 *
 * Rules kept here, and checked by tests/sim:
 *  - at most one round of a job is live; a new one starts only when every node of the old one has
 * said stopped, has died (its connection closed), or was silent for the round's fence time;
 *  - ranks of a round are 0..world-1, each once; a node keeps its rank while it stays;
 *  - the first failure in this machine's order of events is the cause; later ones are consequences,
 *    unless the first names another rank, or was faster than better evidence: until the round has
 *    stopped, mu_cause_is_better() decides, and everybody is told anew;
 *  - only failures spend the restart budget (budget.c); who comes and goes costs nothing;
 *  - a message that names another round than the live one changes nothing, and is counted. */
#ifndef MUSTER_RENDEZVOUS_JOB_H
#define MUSTER_RENDEZVOUS_JOB_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cause.h"
#include "base/ctl.h"
#include "base/mem.h"
#include "rendezvous/job/budget.h"
#include "rendezvous/job/keep.h"

/* --- states and events: lists, from which names, the table's test and the picture come --- */

/* GATHERING   waiting for nodes: fewer than nodes_min, or within the last call, or the server has
 * just restarted RECOVERING  a restarted server met agents of a running round and waits for the
 * others of it RUNNING     a round is live STOPPING    the round was told to stop; another follows
 * when all have stopped (unless `final`) SUCCEEDED   every worker of the last round exited with 0;
 * agents are told to end FAILED      the budget is spent or the nodes did not come; agents are told
 * to end */
#define JOB_STATES(X) X(GATHERING) X(RECOVERING) X(RUNNING) X(STOPPING) X(SUCCEEDED) X(FAILED)
#define X(s) JOB_##s,
enum job_state {
    JOB_STATES(X) JOB_STATE_COUNT
};
#undef X

/* From messages: HELLO REACHED STARTED EXITED FAILED(WORKER_FAILED) SILENT FINISHED STOPPED HEALTH
 * BYE BEAT DRAIN, which the shell may also say for a node. From the connection: NODE_DEAD (closed
 * by the peer without goodbye: its process is gone), NODE_AWAY (reset, or our own error: it may
 * come back). From the shell's timer: DEADLINE.
 */
#define JOB_EVENTS(X)                                                                              \
    X(HELLO)                                                                                       \
    X(REACHED)                                                                                     \
    X(STARTED)                                                                                     \
    X(EXITED)                                                                                      \
    X(WORKER_FAILED)                                                                               \
    X(SILENT)                                                                                      \
    X(FINISHED)                                                                                    \
    X(STOPPED)                                                                                     \
    X(HEALTH)                                                                                      \
    X(BYE)                                                                                         \
    X(BEAT)                                                                                        \
    X(DRAIN)                                                                                       \
    X(NODE_DEAD)                                                                                   \
    X(NODE_AWAY)                                                                                   \
    X(DEADLINE)

/* News that the machine tells itself within a step; never given to job_step().
 * RESUMES   an agent of a round that this server does not know came back
 * READY     the round can begin
 * RESUMED   all agents of the unknown round are back
 * BROKEN    the round must stop; the cause says why
 * OVER      every worker of the round exited with 0
 * CLEAR     nothing of the old round runs any more; another may follow
 * SPENT     the same, and none follows
 * GIVE_UP   too few nodes came in time
 * ABANDONED the last node is gone, or the one whose process serves the rendezvous */
#define JOB_NEWS(X)                                                                                \
    X(RESUMES)                                                                                     \
    X(READY)                                                                                       \
    X(RESUMED)                                                                                     \
    X(BROKEN)                                                                                      \
    X(OVER)                                                                                        \
    X(CLEAR)                                                                                       \
    X(SPENT)                                                                                       \
    X(GIVE_UP)                                                                                     \
    X(ABANDONED)
#define X(e) JOB_EV_##e,
enum job_event_type {
    JOB_EVENTS(X) JOB_NEWS(X) JOB_EV_COUNT
};
#undef X
#define JOB_OUTSIDE_EVENT_COUNT                                                                    \
    ((int)JOB_EV_RESUMES) /* Before it come those that job_step() takes. */

#define JOB_NO_NODE UINT32_MAX

struct job_event {
    enum job_event_type type;
    uint32_t node; /* Slot; JOB_NO_NODE for HELLO and DEADLINE. */
    const struct ctl_msg
        *msg;              /* The message, for events that come from one; borrowed for the call. */
    const char *seen_addr; /* HELLO: the peer's numeric address; borrowed for the call. */
    const char *via_addr;  /* HELLO: the server's own, as the peer reached it; or NULL. */
    int64_t unix_ms;       /* Wall clock, only copied into causes and times that people read. */
};

/* --- actions --- */

/* SEND    make the message with job_message() and send it to the node; lost silently when the node
 * has no connection CLOSE   close the node's connection once what was sent has gone out (after END
 * or REFUSED) FORGET  the slot is free: the shell drops what it keeps for it (its connection, if
 * any, is closed) KEEP    what a successor must know has changed: the row of a node, or with
 * JOB_NO_NODE the job's own KEEP_ROUND  the same, and all rows of nodes are new: the old ones are
 * void INCIDENT  job->incident is new, or says more than before under the same number */
enum job_action_type {
    JOB_ACT_SEND,
    JOB_ACT_CLOSE,
    JOB_ACT_FORGET,
    JOB_ACT_KEEP,
    JOB_ACT_KEEP_ROUND,
    JOB_ACT_INCIDENT
};

struct job_action {
    enum job_action_type type;
    uint32_t node;
    enum ctl_type msg; /* SEND */
};

/* A move of the machine, or an event that kept its state. The shell logs each move with from != to
 * once. */
struct job_move {
    enum job_event_type event;
    enum job_state from;
    enum job_state to;
};
#define JOB_MOVES_MAX 8 /* The longest chain: NODE_DEAD, BROKEN, CLEAR, READY. */

/* What one step asks for, in order. Owned by the job; valid until the next job_step() on it. */
struct job_out {
    struct job_move moves[JOB_MOVES_MAX];
    uint32_t move_count;
    const struct job_action *actions;
    uint32_t count;
    bool durable; /* A decision: its rows must be kept before its messages are sent, or a successor
                     could decide otherwise. */
    enum job_state from; /* State before and after: the shell logs each move once. */
    enum job_state to;
    uint32_t node;  /* HELLO that was taken: the node's slot (the old one when it came back). Else
                       JOB_NO_NODE. */
    bool new_cause; /* A better one took the first cause's place; no move shows it. */
    int64_t stale_round; /* The message was of this round, which is not the live one: it changed
                            nothing. 0: it was not. */
};

/* --- nodes, as status shows them --- */

/* WAITING  in no round: gathered, or a spare       STARTING  got START, has not said STARTED
 * RUNNING  its workers run                         FINISHED  all its workers exited with 0
 * STOPPING told to stop                            STOPPED   nothing of the round is left on it
 * LOST     dead, or silent for the fence time; kept for status until the next round begins */
#define JOB_NODE_STATES(X)                                                                         \
    X(WAITING) X(STARTING) X(RUNNING) X(FINISHED) X(STOPPING) X(STOPPED) X(LOST)
#define X(s) JOB_NODE_##s,
enum job_node_state {
    JOB_NODE_STATES(X) JOB_NODE_STATE_COUNT
};
#undef X

/* What a check on the node says of it; OK where none is done. */
enum job_health {
    JOB_HEALTH_OK,
    JOB_HEALTH_CHECKING,
    JOB_HEALTH_UNHEALTHY
};

/* A failure that began on a host: a round's first cause. */
struct job_blamed {
    char host[MU_HOST_BYTES];
    char boot_id[40];
    uint32_t round;
    int64_t at_unix_ms; /* By the server's clock, as the window is: a successor knows no other. */
    char sentence[192];
};

#define JOB_EXIT_UNKNOWN INT32_MIN
#define JOB_EXIT_NONE (INT32_MIN + 1) /* Has not exited. */

struct job_worker {
    int32_t pid;
    int32_t exit; /* Exit status, minus the signal's number, JOB_EXIT_NONE or JOB_EXIT_UNKNOWN. */
    int32_t step; /* The last one that it reported in this round; -1: none. */
    int64_t
        silent_unix_ms;  /* Since when it gives no sign of life; 0: it does, as far as is told. */
    int32_t silent_step; /* The last step that it reported; -1: none. */
    bool silent_stopped; /* Stopped by a signal. */
};

/* What a node said of itself, as far as it is asked for later. The texts lie behind the node's
 * workers, in one piece of memory: a hello with room for the longest names takes 2.3 KiB, and with
 * thousands of nodes it is the memory that is touched which costs. */
struct job_hello {
    const char *version;
    const char *node;
    const char *host;
    const char *fqdn;
    const char *local_addr;
    const char *host_addr;
    const char *topology;
    const char *role;
    const char *boot_id;
    int64_t pid;
    int64_t cpus;
    int64_t gpus;
    int64_t nproc;
    int64_t node_rank; /* Wanted; -1: any. */
    int64_t round;     /* It was in this one when it said hello; 0: none. */
    int64_t link;      /* It counts its connections. */
};

/* What is told of a failure beyond the cause, of the worker that it names. Borrowed; NULL: nothing.
 */
struct job_words {
    const char *output; /* Last lines, for everybody. */
    const char *tail;   /* More of them, for the record. */
    const char *trace;  /* Where it failed. */
};

/* What a node said of its own failure. */
struct job_failure {
    struct mu_cause cause;
    struct job_words words; /* In `text`. */
    char text[];
};

/* A node that is to leave: why, and until when. */
struct job_drain {
    char reason[CTL_REASON_BYTES];
    int64_t since_unix_ms;
    int64_t until_unix_ms;
};

struct job_node {
    bool used;
    bool in_round; /* Of round job->round, while that one lives. */
    bool connected;
    bool reached;   /* It reaches the lead's store, as far as this round asks. */
    bool had_round; /* It was in one before. */
    bool late;   /* Connected, in no round, and silent for a lease: not counted on until it is heard
                    again. */
    bool fresh;  /* It came when no member of the round was connected: for a run of its own. */
    bool gone;   /* FINISHED, and its agent has left or died since: the round goes on without it. */
    bool aside;  /* Waits in quarantine: others suffice. */
    bool halted; /* FINISHED: its workers stopped because they were told to, not at their end. */
    bool expected; /* RECOVERING: a member that the server knows from its former life, and has not
                      heard since. */
    enum job_node_state state;
    enum job_health health;
    int64_t unhealthy_unix_ms; /* Since when. */
    char *unhealthy;           /* Why, MU_MESSAGE_BYTES; NULL: not said, or it is not. */
    int32_t node_rank; /* In the round; -1: none. Kept from round to round while it stays. */
    int32_t rank_base;
    bool ranked; /* rank_base is known: a restarted server learns it when all members are back. */
    int32_t role_rank_base;
    int32_t role_world;
    uint32_t next;         /* Slot: the free list, or the index's chain. */
    uint32_t hash;         /* Of hello.node. */
    int64_t beat_seq;      /* Of its last beat, for the answer. */
    uint32_t stale_round;  /* It has processes of this round, which is over for us; 0: none. */
    uint32_t proven_round; /* In this one its workers came as far as gives restarts back. */
    int64_t heard_ns;      /* When it was last heard. */
    int64_t joined_unix_ms;
    int64_t started_unix_ms; /* When its workers of this round started; 0: not yet. */
    int64_t
        fence_ns;   /* Silence that it allows itself in this round, as it said; 0: job->fence_ns. */
    uint64_t order; /* Order of arrival. */
    uint16_t store_port; /* Fresh for the next round; 0: none. */
    uint16_t life_port;  /* Its process listens there as long as it lives; 0: not known. */
    struct job_hello hello;
    const char *seen_addr; /* Numeric; "": not known. Where hello's texts are. */
    const char *via_addr;  /* The server's address, as it reached it; "": not known. */
    struct job_failure
        *failure;               /* The best that it said of its own in this round; NULL: nothing. */
    struct job_worker *workers; /* hello.nproc of them. */
    struct job_drain *drain;    /* NULL: it is not asked to leave. */
    int32_t top_step;           /* The highest that its workers reported in this round; -1: none. */
    int64_t top_step_ns;        /* When that was told. */
    int64_t step_took_ns;       /* How long a step takes there; 0: not known. */
};

/* --- the job --- */

struct job_config {
    const char *run_id; /* Copied. */
    int64_t lease_ns;
    int64_t beat_ns;
    int64_t fence_ns;      /* Silence allowed where the job could not go on without the node; 0:
                              MU_FENCE_NS. */
    int64_t not_before_ns; /* No round before this, and of a job that was loaded no earlier lease
                              runs out: a restarted server hears the agents out. 0: no such time. */
    uint32_t quarantine_failures; /* So many failures that began on one host ... */
    int64_t quarantine_window_ns; /* within this time set it aside; 0: they never do. */
    const char *version;          /* For WELCOME; borrowed for ever. */
    bool lasts;                   /* The server outlives its jobs. */
};

struct job {
    const struct mu_mem *mem;
    enum job_state state;
    char run_id[MU_RUN_ID_BYTES];
    struct job_config config;

    struct job_node *nodes; /* Slots 0..node_cap-1. */
    uint32_t node_cap;
    uint32_t node_count; /* Used slots that are not LOST. */
    uint32_t free_head;  /* First free slot; JOB_NO_NODE: none. */
    uint32_t *
        index; /* Hash of a node id -> first slot of its chain; node_cap entries, a power of two. */
    uint64_t arrivals;
    uint64_t fresh_from; /* Who arrived before that is not fresh. */
    uint32_t waiting;    /* Nodes that could be in a next round: WAITING, connected, healthy, and
                            neither late nor set aside. */
    struct job_blamed *blamed; /* JOB_BLAMED_MAX, oldest first; NULL: nobody was yet. */
    uint32_t blamed_count;
    uint32_t aside_count;
    char forgiven_host[MU_HOST_BYTES]; /* By an agent there, of what had begun there until then. */
    int64_t forgiven_unix_ms;

    bool loaded;   /* From what a former life kept. */
    uint32_t anew; /* How often a run of the same id began when nobody was left of the last. */
    bool has_spec; /* From the first hello; later ones must agree. */
    char spec_host[MU_HOST_BYTES];   /* Who said it. */
    char refused[224];               /* Why somebody was turned away last; "": nobody was. */
    char neighbour[MU_RUN_ID_BYTES]; /* Set by the shell, for words: another job that waits for
                                        nodes on the same server; "": none. */
    uint32_t nodes_min;
    uint32_t nodes_max;
    uint32_t max_restarts;
    int64_t join_timeout_ns;
    int64_t last_call_ns;
    bool on_join_restart;

    uint32_t round;       /* Number of the live or last round; 0: none yet. */
    uint32_t round_seen;  /* Highest round number anybody mentioned. */
    bool is_latest;       /* It is surely the last that anybody began: this server did, or one of
                             its members still runs, which holds every later one up. */
    uint32_t round_nodes; /* Nodes of it. */
    uint32_t *members;   /* Slots by node rank, round_nodes of them; JOB_NO_NODE: not (yet) here. */
    uint32_t member_cap; /* Entries of `members`. */
    uint32_t hello_slot; /* Slot of the HELLO that is being handled. */
    bool missing_fenced; /* No member is unknown, or those that never came back after a server's
                            restart are surely gone. */
    int64_t missing_until_ns; /* STOPPING: when they are. */
    uint32_t world;
    uint32_t lead;                 /* Slot of node rank 0. */
    char lead_addr[MU_HOST_BYTES]; /* MASTER_ADDR of the round. */
    uint16_t lead_port;            /* MASTER_PORT. */
    int64_t
        reach_ns; /* How long a node may try to reach it before anybody starts; 0: none tries. */
    uint32_t unreached; /* Members that have not said yet that they do. */
    int64_t fence_ns;   /* Silence this round allows. */
    uint32_t restarts;  /* Failures restarted after; the budget may count fewer. */
    struct job_budget budget;
    uint32_t pending; /* Members whose word this state waits for: finished (RUNNING), stopped
                         (STOPPING), resumed (RECOVERING). */

    bool resumed;              /* The round was recovered: what was known of its speed is lost. */
    int32_t halt_step;         /* The step after which the round's workers stop; -1: they run on. */
    int64_t halt_ask_until_ns; /* How long a step is put off until it is known how fast they are;
                                  NEVER: nothing is put off. */

    bool final; /* STOPPING: no round follows. */
    bool has_cause;
    struct mu_cause cause; /* First cause of the round that is being or was last stopped. */
    bool new_cause;        /* This step put another one in its place. */
    bool was_charged;      /* A restart was spent on it. */
    char cause_output[MU_OUTPUT_BYTES]; /* Last lines of the worker it names. */
    char cause_tail[MU_TAIL_BYTES];     /* As struct job_words has them. */
    char cause_trace[MU_TRACE_BYTES];
    uint32_t consequences;           /* Further failures that were reported. */
    char spent_by[MU_MESSAGE_BYTES]; /* "rank 0 on n1 (round 1), ...": who cost the restarts. */

    struct job_incident incident; /* The last one; number 0: none yet. */
    uint32_t incident_count;
    uint32_t starting; /* Members that have not said STARTED. */
    int64_t gathering_unix_ms;
    int64_t running_unix_ms;

    int64_t since_ns; /* When this state began. */
    int64_t created_unix_ms;
    int64_t round_started_unix_ms;
    int64_t ended_unix_ms;
    int64_t gather_deadline_ns; /* GATHERING: join time-out. */
    int64_t last_call_at_ns;    /* GATHERING: start with what is here; MU_NEVER: not running. */
    int64_t next_word_ns;       /* When the next WAITING line is due; NEVER: nobody waits. */
    int64_t idle_since_ns;      /* RUNNING: since when somebody is here who has nothing to do. */
    int64_t word_now_ns;        /* The step that said the last one. */
    int64_t word_gap_ns;        /* And how long after it the one that follows. */
    int64_t lease_check_ns;     /* No node's silence can matter before. */
    int64_t deadline_ns;        /* The shell's timer: DEADLINE is wanted then. INT64_MAX: none. */
    uint64_t rejected_count;    /* Events with no row in the table. */
    uint32_t stale_count[JOB_OUTSIDE_EVENT_COUNT]; /* Messages of another round than the live one,
                                                      by event. */

    struct job_node **scratch;  /* node_cap pointers, for sorting. */
    struct job_action *actions; /* Of the step that runs. */
    uint32_t action_count;
    uint32_t action_cap;
    int64_t step_unix_ms; /* Of the event that is being handled, or was last. */
    int64_t step_now_ns;
    bool durable; /* For job_out. */
};

/* Set up on memory the caller owns. Nothing is allocated yet. Returns 0, or -EINVAL for a run id
 * that is empty or too long. */
int job_init(struct job *j,
             const struct mu_mem *mem,
             const struct job_config *config,
             struct mu_err *err);
void job_fini(struct job *j);

/* Advance by one event. Returns 0; -EPROTO: the table has no row for it, nothing changed, counted;
 * -EACCES, -EAGAIN: a HELLO that is refused, or may come again later: err has the sentence, nothing
 * changed but what words say (the shell answers REFUSED itself, as there is no slot); -ENOMEM:
 * nothing changed. A message that names another round than the live one is a known no-op: too late
 * is not wrong (job_out.stale_round). */
int job_step(struct job *j,
             int64_t now_ns,
             const struct job_event *ev,
             struct job_out *out,
             struct mu_err *err);

/* The server itself stood still (stopped, or its machine was), and could hear nobody: every silence
 * begins anew. A DEADLINE that is due comes after it. */
void job_hear_anew(struct job *j, int64_t now_ns);

/* Fill the message of a SEND action from the job's state as it is now. */
void job_message(const struct job *j, uint32_t node, enum ctl_type type, struct ctl_msg *ret);

/* True when nothing of the job is left: ended or empty, and no slot is used. The shell may then
 * drop it or keep it for status. */
bool job_is_idle(const struct job *j);
static inline bool job_is_ended(const struct job *j)
{
    return j->state == JOB_SUCCEEDED || j->state == JOB_FAILED;
}

/* How many restarts count against the budget. */
uint32_t job_spent(const struct job *j, int64_t now_ns);
/* May this node be asked to leave? Returns 0, or -EALREADY (it is leaving), -ESHUTDOWN (the job or
 * the node is over), with one sentence. */
int job_check_drain(const struct job *j, uint32_t node, struct mu_err *err);

/* One sentence: what runs, or what is waited for and who is missing. Appends to b. */
void job_sentence(const struct job *j, int64_t now_ns, struct mu_buf *b);

/* As status calls the node: its state, or why one that waits is not counted on ("checking",
 * "unhealthy", "quarantined"). */
const char *job_node_shown(const struct job_node *n);
#define JOB_BLAMED_MAX 64
/* The next failure that began on this node's host and counts still, from *at on, which goes on
 * behind it; NULL: there is none. */
const struct job_blamed *
job_next_blamed(const struct job *j, const struct job_node *n, int64_t unix_ms, uint32_t *at);

const char *job_state_name(enum job_state s);           /* "RUNNING" */
const char *job_event_name(enum job_event_type e);      /* "WORKER_FAILED" */
const char *job_node_state_name(enum job_node_state s); /* "running": as status spells it */

/* The table as a Graphviz picture. */
void job_dot(struct mu_buf *out);

/* For the table's own test: the state a row leads to, or -1 where there is no row. */
int job_table_to(enum job_state s, enum job_event_type e);

#endif
