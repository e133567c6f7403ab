/* Why a round or a job ended: one record, the same everywhere. The earliest failure in the server's
 * order of events wins, unless it names another rank's failure as its own cause, or better evidence
 * is reported while the round is being stopped: mu_cause_is_better(). Pure. */
#ifndef MUSTER_BASE_CAUSE_H
#define MUSTER_BASE_CAUSE_H

#include <stdint.h>

#include "base/limits.h"
#include "base/str.h"

/* name, wire text, does it cost a restart of the budget? */
#define MU_CAUSE_KINDS(X)                                                                          \
    X(NONE, "none", 0)                                                                             \
    X(WORKER_EXIT, "worker_exit", 1)     /* A worker ended with a status that is not 0. */         \
    X(WORKER_SIGNAL, "worker_signal", 1) /* A worker was ended by a signal. */                     \
    X(SPAWN_FAILED, "spawn_failed", 1)   /* A worker could not be started. */                      \
    X(NO_PROGRESS, "no_progress", 1)     /* A worker hung, and a limit was set for that. */        \
    X(NODE_LOST, "node_lost", 0)         /* An agent's process died: its connection closed. */     \
    X(NODE_SILENT, "node_silent", 0)     /* An agent was not heard for the fence time. */          \
    X(NODE_LEFT, "node_left", 0)         /* An agent was told to stop and said goodbye. */         \
    X(NODE_JOINED, "node_joined", 0)     /* A newcomer, where --on-join=restart. */                \
    X(NODE_FAILED, "node_failed", 1)   /* An agent cannot go on: unkillable worker, full disk. */  \
    X(JOIN_TIMEOUT, "join_timeout", 0) /* Too few nodes came in time. */                           \
    X(UNREACHED, "unreached", 0)       /* A node cannot reach the lead's store. Ends the job. */   \
    X(SERVER_LOST, "server_lost", 0)   /* An agent's own verdict: nobody answers any more. */

enum mu_cause_kind {
#define X(name, text, costs) MU_CAUSE_##name,
    MU_CAUSE_KINDS(X)
#undef X
    MU_CAUSE_KIND_COUNT
};

struct mu_cause {
    enum mu_cause_kind kind;
    int32_t node_rank; /* -1: not known; as all ranks here. */
    int32_t rank;
    int32_t local_rank;
    int32_t pid;       /* 0: none */
    int32_t exit_code; /* For WORKER_EXIT. */
    int32_t signo;     /* For WORKER_SIGNAL. */
    int32_t blame;     /* Rank that the worker names: it fails because that one did. -1: nobody. */
    int32_t step;      /* The last one that the worker reported; -1: none. */
    int32_t core_dumped;   /* 1: it left a core. */
    int32_t out_of_memory; /* 1: the kernel killed it for memory, as far as that can be known. */
    uint32_t round;
    int64_t at_unix_ms; /* By the clock of the host it happened on. */
    char host[MU_HOST_BYTES];
    char message[MU_MESSAGE_BYTES]; /* The worker's or agent's own words; may be "". UTF-8. */
};

/* A cause with nothing known. */
#define MU_CAUSE_INIT                                                                              \
    ((struct mu_cause){.node_rank = -1, .rank = -1, .local_rank = -1, .blame = -1, .step = -1})

const char *mu_cause_kind_text(enum mu_cause_kind k);
/* Returns 0, or -1 for a word that is none. */
int mu_cause_kind_parse(const char *text, enum mu_cause_kind *ret);
bool mu_cause_costs_restart(enum mu_cause_kind k);

/* Two failures of one round; `first` was reported first. Does `later` tell better what failed
 * first?
 *  - `first` names a rank, and `later` is that rank's own failure (unless they name each other);
 *  - `first` names a rank, `later` names none and says nothing: ended by a signal, or without
 * words;
 *  - nobody is named, `first` ended with a status and `later` was killed or crashed, and the one
 * had not been told of the other (`at_once`): who is killed says nothing, and its peers, whose
 *    libraries raise an error, can be faster with theirs.
 * Else the first stays, whatever comes. What a node says is of every rank it has: the caller looks
 * whether the named rank is there, and sets rank. */
bool mu_cause_is_better(const struct mu_cause *later, const struct mu_cause *first, bool at_once);

/* "SIGKILL" for 9; "signal 63" for one without a name. Static for named ones; `buf` (16 bytes) for
 * others. */
const char *mu_signal_name(int signo, char *buf);

/* One sentence for people: "rank 3 (local rank 1, pid 77) on n2 exited with status 7: boom".
 * Appends to b. */
void mu_cause_sentence(const struct mu_cause *c, struct mu_buf *b);

/* "rank 3 failed with status 1 after step 41 twice: starting again does not help". Appends to b. */
void mu_cause_twice_sentence(const struct mu_cause *c, struct mu_buf *b);

#endif
