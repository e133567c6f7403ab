/* Service mode: nodes on offer, and jobs that are placed on them. Which job runs where, what each
 * that waits waits for, and what became of it.
 *
 * Pure: (now, event) in, actions out. No clock, no I/O, no log. Nodes and jobs are slots: numbers
 * that stay while they are known.
 *
 * Rules kept here, and checked by tests/unit/pool_random.c:
 *  - a GPU or slot of a node is given to one job at a time, and is free again only when its node
 *    has said that the job has ended there, or has been lost;
 *  - jobs start in the order in which they were submitted or resumed. A later one passes an earlier
 *    one only on nodes that could not serve the earlier one even if nothing ran there;
 *  - a job starts on its fewest nodes at once or not at all, and on more, up to its most, where
 *    there is room at that moment; it does not grow later;
 *  - running jobs that lost a node get another before any queued job does;
 *  - how a job ended is what its rendezvous says (VERDICT); where it says nothing, what the agents'
 *    exit statuses say;
 *  - a job that ends because nodes were lost starts again by itself, in its old place in the queue,
 *    at most POOL_REQUEUES_MAX times (again.c). */
#ifndef MUSTER_RENDEZVOUS_POOL_H
#define MUSTER_RENDEZVOUS_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/ctl.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"
#include "rendezvous/pool/keep.h"

#define POOL_NONE UINT32_MAX
#define POOL_NEVER INT64_MAX

/* QUEUED    waits for its turn and for nodes
 * STARTING  is placed: its agents are being started and have not met
 * RUNNING   its agents run
 * STOPPING  was told to stop
 * STOPPED, DONE, FAILED  over: as it was told to, well, or not */
#define POOL_JOB_STATES(X)                                                                         \
    X(QUEUED, queued)                                                                              \
    X(STARTING, starting)                                                                          \
    X(RUNNING, running)                                                                            \
    X(STOPPING, stopping)                                                                          \
    X(STOPPED, stopped)                                                                            \
    X(DONE, done)                                                                                  \
    X(FAILED, failed)
enum pool_job_state {
#define X(NAME, name) POOL_##NAME,
    POOL_JOB_STATES(X) POOL_JOB_STATE_COUNT
#undef X
};

/* Of a job on one node. ASSIGNED: told to start. UP: being started, or its agent runs. ENDED: its
 * agent has ended. LOST: its node is away; it may come back, or be replaced. VACANT: another node
 * is wanted. */
#define POOL_SEAT_STATES(X)                                                                        \
    X(ASSIGNED, assigned) X(UP, up) X(ENDED, ended) X(LOST, lost) X(VACANT, vacant)
enum pool_seat_state {
#define X(NAME, name) POOL_SEAT_##NAME,
    POOL_SEAT_STATES(X) POOL_SEAT_STATE_COUNT
#undef X
};

/* NODES_GONE: it failed since nodes went, not for anything that a worker did. */
enum pool_verdict {
    POOL_UNDECIDED,
    POOL_SUCCEEDED,
    POOL_FAILED_SO,
    POOL_NODES_GONE
};

enum pool_event_type {
    POOL_EV_OFFER,    /* msg, addr. out.node is its slot. */
    POOL_EV_AWAY,     /* node: its connection is gone. */
    POOL_EV_BEAT,     /* node */
    POOL_EV_HAS,      /* node, msg. out.stray: it is to be ended there. */
    POOL_EV_PLACED,   /* node, msg */
    POOL_EV_SUBMIT,   /* submission. out.job is its slot. */
    POOL_EV_KEPT,     /* job: its row is safe. It was submitted with `unkept`. */
    POOL_EV_UNKEPT,   /* job: it cannot be. It is forgotten; nobody was told of it. */
    POOL_EV_STOP,     /* job, signo, grace_ms */
    POOL_EV_RESUME,   /* job */
    POOL_EV_DRAIN,    /* node, by_itself */
    POOL_EV_UNDRAIN,  /* node; POOL_NONE: text, a host that is drained and not here. */
    POOL_EV_ROUND,    /* job: its agents have met, and a round of it runs. */
    POOL_EV_VERDICT,  /* job, success, nodes_gone, exit_status (-1: as the nodes say), text,
                         begun_unix_ms */
    POOL_EV_DEADLINE, /* pool.deadline_ns is here. */
    POOL_EV_COUNT
};

/* What is asked for. Texts are copied. */
struct pool_submission {
    const char *id;
    const char *name;
    struct mu_str spec; /* One JSON object. */
    uint32_t nodes_min;
    uint32_t nodes_max;
    uint32_t nproc;
    int32_t gpus;    /* A node; -1: nproc on nodes that have GPUs, else none. */
    bool no_requeue; /* It does not start again by itself. */
    bool unkept;     /* It starts once its row is safe. */
};

struct pool_event {
    enum pool_event_type type;
    uint32_t node;
    uint32_t job;
    int64_t unix_ms;
    const struct ctl_msg *msg;
    const char *addr; /* As the server sees it. */
    const struct pool_submission *submission;
    int32_t signo;
    int64_t grace_ms;
    bool by_itself; /* DRAIN: its service says so, and takes it back when it ends. */
    bool success;
    bool nodes_gone;
    int32_t exit_status;
    const char *text;
    int64_t begun_unix_ms; /* VERDICT: since when the rendezvous knew the job. */
};

struct pool_out {
    uint32_t node;
    uint32_t job;
    bool stray;
    bool moved;  /* A job or node has another state now. */
    bool drains; /* Other hosts are drained now. */
};

/* ASSIGN    make the message with pool_assign_message()
 * UNASSIGN  the same with pool_unassign_message()
 * UNDRAIN   the node's service, which had said drain, is to take jobs again: before any ASSIGN
 * DROP      close the node's connection: it is silent. It is away already.
 * KEEP      the job's row has changed */
enum pool_action_type {
    POOL_ACT_ASSIGN,
    POOL_ACT_UNASSIGN,
    POOL_ACT_UNDRAIN,
    POOL_ACT_DROP,
    POOL_ACT_KEEP
};
struct pool_action {
    enum pool_action_type type;
    uint32_t job;
    uint32_t seat;
    uint32_t node;
};

struct pool_node {
    bool connected;
    bool lost;     /* Away for so long that its jobs go on elsewhere. */
    bool drop;     /* DROP is due. */
    bool reported; /* It has said what is there since it came. */
    bool known;    /* It has said what it offers; else only jobs of a former life name it. */
    bool draining; /* It takes no new jobs, */
    bool leaving;  /* as its service wants it, or else whoever asked for its host. */
    bool undrain;  /* UNDRAIN is due. */
    bool reserved; /* Within one pass over the queue: an earlier job may need it. */
    char id[40];
    char host[MU_HOST_BYTES];
    char addr[MU_ADDR_BYTES];
    char version[32];
    char user[64];
    uint32_t cpus;
    uint32_t gpus;
    uint32_t slots;
    uint32_t slots_free;
    uint32_t gpus_free;
    uint8_t *gpu_used; /* gpus of them. */
    uint32_t seats;    /* That hold something of it. */
    uint32_t strays;   /* Jobs there that are not its any more, and have been told to end. */
    uint32_t adopted;  /* Jobs there of which nobody knows what they hold. */
    int64_t heard_ns;
    int64_t gone_ns; /* Since when it is away. */
    int64_t since_unix_ms;
};

struct pool_seat {
    enum pool_seat_state state;
    uint32_t node; /* POOL_NONE: none, or no longer known. */
    char node_id[40];
    char host[MU_HOST_BYTES];
    int32_t *gpus;
    uint32_t gpu_count;
    bool held; /* It holds slots and GPUs of its node. */
    bool adopted;
    bool assign_due;
    bool unassign_due;
    bool seen;       /* Its node has said so since it came. */
    uint32_t status; /* ENDED */
    int64_t ended_ns;
};

struct pool_job {
    enum pool_job_state state;
    char id[MU_RUN_ID_BYTES];
    char name[MU_RUN_ID_BYTES];
    uint32_t hash;
    char *spec; /* NULL: not known, it was found on its nodes. */
    size_t spec_bytes;
    uint32_t nodes_min;
    uint32_t nodes_max;
    uint32_t nproc;
    int32_t gpus;
    uint32_t attempt;  /* Starts so far, */
    uint32_t requeues; /* how many of them by itself since it last ran for long, */
    bool no_requeue;
    bool unkept;                /* Its row is not safe yet, and it is promised to nobody. */
    char lost[POOL_LOST_BYTES]; /* and why the last one: "n2 was lost"; "": it was asked for. */
    uint64_t order;
    uint32_t ahead;          /* QUEUED: how many stand before it. */
    struct pool_seat *seats; /* Of its last start. */
    uint32_t seat_count;
    char (*past)[40]; /* Ids of nodes that had it before. */
    uint32_t past_count;
    uint32_t refusals; /* In this start: nodes that refused it, or whose agent ended alone. */
    uint32_t avoid[MU_POOL_REFUSALS_MAX]; /* These nodes. */
    bool met;                             /* A round of it ran in this start. */
    enum pool_verdict verdict;
    int64_t verdict_ns;
    int32_t exit_status; /* -1: not known. */
    char cause[MU_MESSAGE_BYTES];
    bool stop; /* It was asked to stop in this start. */
    int32_t signo;
    int64_t grace_ms;
    int64_t submitted_unix_ms;
    int64_t started_unix_ms; /* Placed; 0: not yet. */
    int64_t ended_unix_ms;
    int64_t kept;               /* The shell's own number for it, */
    bool kept_due;              /* that its row is to be written, */
    enum pool_job_state logged; /* and the state that the log has. */
    bool keep_due;
    bool dirty;
    struct pool_job *next_dirty;
    bool in_queue;
    struct pool_job *prev; /* In the queue. */
    struct pool_job *next;
    uint32_t slot;
};

/* Takes no jobs, whether a node of it is here or not. */
struct pool_drain {
    char host[MU_HOST_BYTES];
    int64_t since_unix_ms;
};

struct pool_config {
    int64_t lease_ns;
    bool keeps; /* Jobs are kept over a death: one that is not known has no right to run. */
};

struct pool {
    const struct mu_mem *mem;
    struct pool_config config;
    struct pool_node **nodes; /* NULL: a free slot. */
    uint32_t node_cap;
    uint32_t node_count;
    struct pool_job **jobs;
    uint32_t job_cap;
    struct pool_drain *drains;
    uint32_t drain_count;
    uint32_t drain_cap;
    uint32_t live_count;  /* Jobs that have not ended. */
    uint32_t ended_count; /* And those that have. */
    bool vacant_due;      /* Jobs may have seats that want another node. */
    bool drop_due;        /* Nodes may have `drop` or `undrain` set. */
    size_t spec_bytes;    /* Of all jobs. */
    struct pool_job *queue;
    struct pool_job *dirty;
    uint32_t *candidates; /* node_cap; scratch of the placement. */
    uint64_t orders;
    int64_t deadline_ns; /* POOL_NEVER: none. */
    int64_t now_ns;      /* Of the step. */
    int64_t unix_ms;
    bool moved;
    bool drains_changed;
    bool queue_changed;
};

void pool_init(struct pool *p, const struct mu_mem *mem, const struct pool_config *config);
void pool_fini(struct pool *p);

/* Advance by one event. Returns 0, or with nothing changed and a sentence:
 * -ENOSPC    too many nodes, or too many jobs wait
 * -EEXIST    SUBMIT: the id is taken
 * -EALREADY  STOP: it has ended; RESUME: it has not; UNDRAIN: its service has to say so itself
 * -ENOENT    RESUME: its submission is not known; UNDRAIN: that host is not drained
 * -ENOMEM */
int pool_step(struct pool *p,
              int64_t now_ns,
              const struct pool_event *ev,
              struct pool_out *out,
              struct mu_err *err);

/* What is to be done, one by one, after each step. Returns false when nothing is left. */
bool pool_next(struct pool *p, struct pool_action *ret);
/* The text in it is the job's. */
void pool_assign_message(const struct pool *p, const struct pool_action *a, struct ctl_msg *ret);
void pool_unassign_message(const struct pool *p, const struct pool_action *a, struct ctl_msg *ret);

/* Ended jobs beyond MU_POOL_ENDED_KEPT, the oldest first: forgets one that holds nothing, and gives
 * its `kept`. Returns false when there is none. */
bool pool_trim(struct pool *p, int64_t *ret_kept);

/* The clock jumped, or the server stood still: every node has its whole lease anew. */
void pool_hear_anew(struct pool *p, int64_t now_ns);

uint32_t pool_find_job(const struct pool *p, const char *id);
/* By id, else by host where one node alone has it. POOL_NONE: none; *ret_many: several. */
uint32_t pool_find_node(const struct pool *p, const char *name, bool *ret_many);

bool pool_is_over(const struct pool_job *j);
bool pool_is_here(const struct pool_node *n);
const char *pool_state_name(enum pool_job_state s);
const char *pool_node_shown(const struct pool_node *n); /* "idle", "busy", "draining", "away" */
/* What it does, what it waits for, or how it ended: one sentence. Appends to b. */
void pool_sentence(const struct pool *p, const struct pool_job *j, struct mu_buf *b);

/* Bring a job back that a former life kept; before any event. -EPROTO with a sentence: the row
 * makes no sense, and is left out. */
int pool_load(struct pool *p, int64_t now_ns, const struct pool_row *row, struct mu_err *err);
/* The same of a host that is drained; any number of them, as `drains` has them. */
int pool_load_drain(struct pool *p, const struct pool_drain_row *row, struct mu_err *err);
void pool_save_drain(const struct pool_drain *d, struct pool_drain_row *ret);
/* The row's texts are `texts`', which must not grow while the row is used, or the job's. */
int pool_save(const struct pool *p,
              const struct pool_job *j,
              struct pool_row *ret,
              struct mu_buf *texts);

#endif
