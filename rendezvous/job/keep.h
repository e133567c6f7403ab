/* What a job has to say to a server that takes its place: rows of plain numbers and texts, which a
 * shell keeps as it likes. The job says with JOB_ACT_KEEP which rows changed, and with
 * job_out.durable that they must be safe before the step's messages go out; job_save_...() fill
 * them, job_load() brings a job back. Pure.
 *
 * A job is kept from its first round on: before it nothing was decided that its agents do not bring
 * along. */
#ifndef MUSTER_RENDEZVOUS_KEEP_H
#define MUSTER_RENDEZVOUS_KEEP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cause.h"
#include "base/ctl.h"
#include "base/err.h"
#include "base/limits.h"
#include "base/str.h"

/* Rows as lists, from which the structs, the checks and a shell's columns come. INT(name, min,
 * max), STR(name, bytes with its NUL). */
#define JOB_CAUSE_FIELDS(INT, STR)                                                                 \
    STR(cause_kind, 16)                                                                            \
    STR(cause_host, MU_HOST_BYTES)                                                                 \
    STR(cause_message, MU_MESSAGE_BYTES)                                                           \
    INT(cause_node_rank, -1, MU_NODES_MAX)                                                         \
    INT(cause_rank, -1, INT32_MAX)                                                                 \
    INT(cause_local_rank, -1, MU_WORKERS_MAX)                                                      \
    INT(cause_pid, INT32_MIN, INT32_MAX)                                                           \
    INT(cause_exit_code, INT32_MIN, INT32_MAX)                                                     \
    INT(cause_signo, INT32_MIN, INT32_MAX)                                                         \
    INT(cause_blame, -1, INT32_MAX)                                                                \
    INT(cause_step, -1, INT32_MAX)                                                                 \
    INT(cause_core_dumped, 0, INT32_MAX)                                                           \
    INT(cause_out_of_memory, 0, INT32_MAX)                                                         \
    INT(cause_round, 0, INT32_MAX)                                                                 \
    INT(cause_at_unix_ms, 0, INT64_MAX)

#define JOB_ROW_FIELDS(INT, STR)                                                                   \
    STR(run_id, MU_RUN_ID_BYTES)                                                                   \
    STR(state, 16) /* As job_state_name(). */                                                      \
    INT(created_unix_ms, 0, INT64_MAX)                                                             \
    INT(round_started_unix_ms, 0, INT64_MAX)                                                       \
    INT(gathering_unix_ms, 0, INT64_MAX)                                                           \
    INT(running_unix_ms, 0, INT64_MAX)                                                             \
    INT(ended_unix_ms, 0, INT64_MAX)                                                               \
    STR(spec_host, MU_HOST_BYTES)                                                                  \
    INT(nodes_min, 1, MU_NODES_MAX)                                                                \
    INT(nodes_max, 1, MU_NODES_MAX)                                                                \
    INT(max_restarts, 0, MU_RESTARTS_MAX)                                                          \
    INT(join_timeout_ns, 1, INT64_C(86400000000000000))                                            \
    INT(last_call_ns, 0, INT64_C(86400000000000000))                                               \
    INT(on_join_restart, 0, 1)                                                                     \
    INT(round, 0, INT32_MAX)                                                                       \
    INT(round_seen, 0, INT32_MAX)                                                                  \
    INT(round_nodes, 0, MU_NODES_MAX)                                                              \
    INT(world, 0, INT32_MAX)                                                                       \
    STR(lead_addr, MU_HOST_BYTES)                                                                  \
    INT(lead_port, 0, 65535)                                                                       \
    INT(fence_ns, 0, INT64_C(86400000000000000))                                                   \
    INT(restarts, 0, MU_RESTARTS_MAX)                                                              \
    INT(halt_step, -1, INT32_MAX)                                                                  \
    INT(final, 0, 1)                                                                               \
    INT(was_charged, 0, 1)                                                                         \
    STR(spent_by, MU_MESSAGE_BYTES)                                                                \
    INT(restart_window_ns, 0, MU_SPAN_MAX_NS)                                                      \
    INT(give_back_ns, 0, MU_SPAN_MAX_NS)                                                           \
    INT(give_back_steps, 0, INT32_MAX)                                                             \
    INT(same_failure_restart, 0, 1)                                                                \
    INT(spent, 0, MU_RESTARTS_MAX)                                                                 \
    STR(spent_at, MU_WINDOW_RESTARTS_MAX * 14 + 1) /* Unix ms, a blank behind each. */             \
    INT(given_back, 0, UINT32_MAX)                                                                 \
    INT(given_back_here, 0, UINT32_MAX)                                                            \
    INT(first_step, -1, INT32_MAX)                                                                 \
    INT(same_failure, 0, 1)                                                                        \
    STR(failed_kind, 16)                                                                           \
    INT(failed_code, INT32_MIN, INT32_MAX)                                                         \
    INT(failed_rank, -1, INT32_MAX)                                                                \
    INT(failed_step, -1, INT32_MAX)                                                                \
    INT(has_cause, 0, 1)                                                                           \
    INT(consequences, 0, UINT32_MAX)                                                               \
    STR(forgiven_host, MU_HOST_BYTES)                                                              \
    INT(forgiven_unix_ms, 0, INT64_MAX)                                                            \
    INT(incidents, 0, UINT32_MAX) /* How many there were. */                                       \
    JOB_CAUSE_FIELDS(INT, STR)

#define JOB_NODE_ROW_FIELDS(INT, STR)                                                              \
    STR(node, 40)                                                                                  \
    INT(node_rank, -1, MU_NODES_MAX) /* -1: a spare. */                                            \
    INT(rank_base, -1, INT32_MAX)    /* -1: not known while members are missing. */                \
    INT(role_rank_base, 0, INT32_MAX)                                                              \
    INT(role_world, 0, INT32_MAX)                                                                  \
    STR(state, 16) /* As job_node_state_name(). */                                                 \
    INT(gone, 0, 1)                                                                                \
    INT(halted, 0, 1)                                                                              \
    INT(drain_since_unix_ms, 0, INT64_MAX) /* 0: it is not asked to leave. */                      \
    INT(drain_until_unix_ms, 0, INT64_MAX)                                                         \
    STR(drain_reason, CTL_REASON_BYTES)                                                            \
    INT(joined_unix_ms, 0, INT64_MAX)                                                              \
    INT(started_unix_ms, 0, INT64_MAX)                                                             \
    STR(seen_addr, MU_ADDR_BYTES)                                                                  \
    STR(via_addr, MU_ADDR_BYTES)

#define JOB_OTHERS_BYTES 6144 /* Sixteen sentences of 300 bytes, as a rule. */

/* The end of a round, or of a job without one. */
#define JOB_INCIDENT_FIELDS(INT, STR)                                                              \
    INT(number, 1, UINT32_MAX) /* Of the job's incidents, from 1. */                               \
    INT(round, 0, INT32_MAX)                                                                       \
    STR(decision, 16)                 /* As job_decision_name(). */                                \
    INT(restarts, 0, MU_RESTARTS_MAX) /* After how many failures, this one included. */            \
    INT(spent, 0, MU_RESTARTS_MAX)    /* How many of them counted. */                              \
    INT(max_restarts, 0, MU_RESTARTS_MAX)                                                          \
    INT(window_ms, 0, MU_SPAN_MAX_MS) /* 0: none. */                                               \
    INT(given_back, 0, UINT32_MAX)    /* While the round ran. */                                   \
    INT(same_failure, 0, 1)                                                                        \
    INT(nodes, 0, MU_NODES_MAX)                                                                    \
    INT(world, 0, INT32_MAX)                                                                       \
    INT(consequences, 0, UINT32_MAX)                                                               \
    INT(gathering_unix_ms, 0, INT64_MAX) /* When each phase began; 0: not known, or not yet. */    \
    INT(started_unix_ms, 0, INT64_MAX)   /* START went out. */                                     \
    INT(running_unix_ms, 0, INT64_MAX)   /* Every node said STARTED. */                            \
    INT(decided_unix_ms, 0, INT64_MAX)                                                             \
    INT(stopped_unix_ms, 0, INT64_MAX)      /* Nothing of the round was left. */                   \
    INT(next_unix_ms, 0, INT64_MAX)         /* The next round's START. */                          \
    INT(next_running_unix_ms, 0, INT64_MAX) /* All of its nodes said STARTED. */                   \
    INT(next_step_unix_ms, 0, INT64_MAX)    /* Its first step was told of. */                      \
    INT(stop_ms, -1, INT32_MAX)             /* As STOPPED has it, of the slowest node; -1: none */ \
    INT(reclaim_ms, -1, INT32_MAX)          /* said so. */                                         \
    STR(others, JOB_OTHERS_BYTES)           /* For job_incident_other(). */                        \
    STR(tail, MU_TAIL_BYTES)                /* Last lines of the worker that the cause names. */   \
    STR(trace, MU_TRACE_BYTES)              /* And where it failed. */                             \
    STR(boot_id, 40)                        /* Of the host on which the cause began. */            \
    JOB_CAUSE_FIELDS(INT, STR)

#define JOB_ROW_INT(name, min, max) int64_t name;
#define JOB_ROW_STR(name, bytes) char name[bytes];
struct job_row_kept {
    JOB_ROW_FIELDS(JOB_ROW_INT, JOB_ROW_STR)
};
struct job_node_row {
    JOB_NODE_ROW_FIELDS(JOB_ROW_INT, JOB_ROW_STR)
    struct mu_str hello; /* What it said of itself, as a message of the protocol. */
};
struct job_incident {
    JOB_INCIDENT_FIELDS(JOB_ROW_INT, JOB_ROW_STR)
};
#undef JOB_ROW_INT
#undef JOB_ROW_STR

/* One field of such a row, for who keeps them. */
struct job_field {
    const char *name;
    size_t offset;
    size_t bytes; /* Of a text with its NUL; 0: an int64_t; JOB_FIELD_BLOB: a struct mu_str. */
    int64_t min;
    int64_t max;
};
#define JOB_FIELD_BLOB SIZE_MAX
struct job_fields {
    const struct job_field *v;
    size_t n;
};
extern const struct job_fields job_row_fields;
extern const struct job_fields job_node_row_fields; /* `hello` is the last one. */
extern const struct job_fields job_incident_fields;

/* RESTART   a failure within the budget: the group starts again
 * REGROUP   nodes came or went, which costs nothing: another round follows when enough are here
 * FAIL      a failure, and no restart is left, or it would only come again
 * ABANDON   nobody is left
 * GIVE_UP   too few nodes came in time
 * SUCCEED   every worker exited with 0 */
#define JOB_DECISIONS(X)                                                                           \
    X(RESTART, "restart")                                                                          \
    X(REGROUP, "regroup")                                                                          \
    X(FAIL, "fail")                                                                                \
    X(ABANDON, "abandon")                                                                          \
    X(GIVE_UP, "give_up")                                                                          \
    X(SUCCEED, "succeed")
enum job_decision {
#define X(name, text) JOB_DECIDED_##name,
    JOB_DECISIONS(X)
#undef X
    JOB_DECISION_COUNT
};
const char *job_decision_name(enum job_decision d);

struct job;

void job_save(const struct job *j, struct job_row_kept *ret);
/* `hello`: where the row's text is appended; it must not grow while the row is used.
 * Returns 0 or -ENOMEM. */
int job_save_node(const struct job *j,
                  uint32_t slot,
                  struct job_node_row *ret,
                  struct mu_buf *hello);
/* The cause of such a row. */
void job_incident_cause(const struct job_incident *in, struct mu_cause *ret);

/* What failed after it, most likely because of it. */
struct job_other {
    int64_t at_unix_ms;
    int64_t rank; /* -1: it was no worker. */
    char host[MU_HOST_BYTES];
    char sentence[MU_MESSAGE_BYTES];
};
/* The next one from *at, which starts at 0. Returns false behind the last; a text that is none of
 * ours ends the list. */
bool job_incident_other(const struct job_incident *in, size_t *at, struct job_other *ret);

/* Bring a job back on one that was just set up with the same run id. Its members are not connected;
 * each has its whole silence anew, and at least until config.not_before_ns. A round that ran is
 * RECOVERING. `nodes`: in any order. Nothing in the rows is trusted.
 * Returns 0; -EPROTO with a sentence: they make no sense; -ENOMEM. The job is of no use then. */
int job_load(struct job *j,
             int64_t now_ns,
             int64_t unix_ms,
             const struct job_row_kept *row,
             const struct job_node_row *nodes,
             size_t node_count,
             struct mu_err *err);

/* Its last incident, which the job may go on with; one with another number is ignored. */
void job_load_incident(struct job *j, const struct job_incident *in);

/* Are the numbers of an incident row within their bounds, and its texts texts? */
int job_check_incident(const struct job_incident *in, struct mu_err *err);

#endif
