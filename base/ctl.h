/* The control protocol between agents and rdzv-server: "MUSTER/1\n", then frames of a 4-byte
 * big-endian length and one JSON object.
 *
 * Every message and field is one row below. From these rows come the structs, the encoder, the
 * checks of the decoder, and docs/protocol.md's tables (ctl_describe()). Rules of versions: the
 * greeting's number changes only when old peers could not go on; unknown fields are skipped,
 * unknown messages are skipped and counted. Pure; reading JSON is cJSON's. */
#ifndef MUSTER_BASE_CTL_H
#define MUSTER_BASE_CTL_H

#include <stdint.h>

#include "base/cause.h"
#include "base/err.h"
#include "base/limits.h"
#include "base/str.h"

#define CTL_GREETING "MUSTER/1\n"
#define CTL_GREETING_BYTES 9
#define CTL_FRAME_HEAD_BYTES 4
#define CTL_REASON_BYTES 160            /* Why a node leaves: half a sentence. */
#define CTL_SPEC_BYTES (256 * 1024 + 1) /* A submission as JSON, with a NUL. */
#define CTL_OUTPUT_BYTES                                                                           \
    (16 * 1024 + 1) /* A line of a job's output or a piece of it, with a NUL. */

/* Field rows. STR(name, bytes, need, doc): text with room for `bytes` with its NUL.
 * INT(name, min, max, need, default, doc). INTS(name, doc): list of int32, at most MU_WORKERS_MAX.
 * CAUSE(name, doc): a cause object. need: 1 when the message is refused without it.
 * CTL_BIG(name, bytes, need, doc): a text too large to have room in each message, at most one in a
 * message. Who expands the rows defines it, so that rows without one need not name it. */
#define CTL_HELLO_FIELDS(STR, INT, INTS, CAUSE)                                                    \
    STR(version, 32, 1, "the agent's version, for people")                                         \
    STR(run_id, MU_RUN_ID_BYTES, 1, "the job: agents with the same id meet")                       \
    STR(node, 40, 1, "this agent process's own random id: the same after a reconnect")             \
    STR(host, MU_HOST_BYTES, 1, "host name, for people and for the natural order of first ranks")  \
    STR(fqdn, MU_HOST_BYTES, 0, "full host name")                                                  \
    STR(local_addr, MU_HOST_BYTES, 0,                                                              \
        "the name or address the user wants others to use (--local-addr)")                         \
    STR(host_addr, MU_ADDR_BYTES, 0, "first global address of an interface")                       \
    STR(topology, MU_HOST_BYTES, 0, "topology key: sorts before the host name for first ranks")    \
    STR(boot_id, 40, 0, "the kernel's boot id")                                                    \
    STR(role, MU_ROLE_BYTES, 0, "the workers' role (--role)")                                      \
    INT(pid, 0, INT32_MAX, 0, 0, "the agent's process id")                                         \
    INT(cpus, 0, 1 << 20, 0, 0, "CPUs it may use")                                                 \
    INT(gpus, 0, 1 << 16, 0, 0, "GPUs it sees")                                                    \
    INT(nodes_min, 1, MU_NODES_MAX, 1, 1, "spec: fewest nodes of a round")                         \
    INT(nodes_max, 1, MU_NODES_MAX, 1, 1, "spec: most nodes of a round")                           \
    INT(nproc, 1, MU_WORKERS_MAX, 1, 1, "workers of this node")                                    \
    INT(max_restarts, 0, MU_RESTARTS_MAX, 0, 0, "spec: failures the job may restart after")        \
    INT(restart_window_ms, 0, MU_SPAN_MAX_MS, 0, 0,                                                \
        "spec: only restarts within so long count against max_restarts; 0: all do")                \
    INT(give_back_ms, 0, MU_SPAN_MAX_MS, 0, 0,                                                     \
        "spec: after a round ran so long without a failure, none counts any more; 0: never")       \
    INT(give_back_steps, 0, INT32_MAX, 0, 0,                                                       \
        "spec: the same, after its slowest rank came so many reported steps further; 0: never")    \
    INT(same_failure_restart, 0, 1, 0, 0,                                                          \
        "spec: 1 when the same failure at the same step twice does not end the job "               \
        "(--same-failure=restart)")                                                                \
    INT(node_rank, -1, MU_NODES_MAX, 0, -1, "wanted node rank, -1: any")                           \
    INT(join_timeout_ms, 1, INT64_C(86400000000), 0, MU_JOIN_TIMEOUT_NS / 1000000,                 \
        "spec: how long to wait for nodes_min nodes")                                              \
    INT(last_call_ms, 0, INT64_C(86400000000), 0, MU_LAST_CALL_NS / 1000000,                       \
        "spec: how long after nodes_min to wait for more at the first round")                      \
    INT(on_join_restart, 0, 1, 0, 0,                                                               \
        "spec: 1 when a newcomer restarts a round that has room (--on-join=restart)")              \
    INT(store_port, 0, 65535, 1, 0,                                                                \
        "port already bound here for the worker store, should this node lead; 0: none")            \
    INT(life_port, 0, 65535, 0, 0,                                                                 \
        "port at which this process listens as long as it lives, whatever it does; 0: none")       \
    INT(unready, 0, 1, 0, 0,                                                                       \
        "1: a health check of this node is under way or has failed: not to be counted on until "   \
        "health says ok")                                                                          \
    INT(leave_quarantine, 0, 1, 0, 0,                                                              \
        "1: the failures that began on this host are forgiven (--leave-quarantine)")               \
    INT(link, 0, INT64_C(1) << 53, 0, 0,                                                           \
        "the agent counts its connections: of two that arrive in the wrong order the later "       \
        "counts")                                                                                  \
    INT(round, 0, UINT32_MAX, 0, 0, "resume: the round this agent is in; 0: none")                 \
    INT(round_state, 0, 4, 0, 0,                                                                   \
        "resume: 0 workers run, 1 all exited 0, 2 being stopped, 3 stopped, 4 not begun: it "      \
        "waits "                                                                                   \
        "for go")                                                                                  \
    INT(round_node_rank, 0, MU_NODES_MAX, 0, 0, "resume: its node rank in that round")             \
    INT(round_nodes, 0, MU_NODES_MAX, 0, 0, "resume: nodes of that round")                         \
    INT(round_restarts, 0, MU_RESTARTS_MAX, 0, 0, "resume: restarts used when that round began")   \
    INT(round_spent, -1, MU_RESTARTS_MAX, 0, -1,                                                   \
        "resume: how many of them counted against the budget then; -1: all")                       \
    INT(round_fence_ms, 0, INT64_C(86400000000), 0, 0, "resume: that round's fence time")          \
    INT(round_begun_ms, 0, INT64_C(1) << 53, 0, 0, "resume: what its START said; 0: not known")    \
    INT(round_seen, 0, UINT32_MAX, 0, 0, "highest round number of this job it has heard of")       \
    INT(round_halt_step, -1, INT32_MAX, 0, -1,                                                     \
        "resume: the step after which its workers were told to stop; -1: they were not")           \
    INT(round_halted, 0, 1, 0, 0, "resume: 1 when they have stopped for that")                     \
    CAUSE(round_cause, "resume: why that round was told to stop, where it was")

#define CTL_WELCOME_FIELDS(STR, INT, INTS, CAUSE)                                                  \
    STR(version, 32, 1, "the server's version, for people")                                        \
    STR(seen_addr, MU_ADDR_BYTES, 1, "the agent's address as the server sees it")                  \
    INT(lease_ms, 1, 86400000, 1, 3000, "silence after which a node can be taken for lost")        \
    INT(beat_ms, 1, 86400000, 1, 1000, "how often the agent says beat")                            \
    INT(lasts, 0, 1, 0, 0, "1: this server outlives its jobs, so that it can be asked of them")

#define CTL_REFUSED_FIELDS(STR, INT, INTS, CAUSE)                                                  \
    STR(text, MU_MESSAGE_BYTES, 1, "one sentence: what was wrong and what would be right")         \
    INT(retry, 0, 1, 0, 0, "1: the same hello may be taken later")

#define CTL_WAITING_FIELDS(STR, INT, INTS, CAUSE)                                                  \
    STR(text, MU_MESSAGE_BYTES, 1, "one sentence: what the job waits for, since when, who is here")

#define CTL_START_FIELDS(STR, INT, INTS, CAUSE)                                                    \
    INT(round, 1, UINT32_MAX, 1, 1, "round number; only the server gives it out")                  \
    INT(node_rank, 0, MU_NODES_MAX, 1, 0, "this node's rank (GROUP_RANK)")                         \
    INT(node_count, 1, MU_NODES_MAX, 1, 1, "nodes of the round (GROUP_WORLD_SIZE)")                \
    INT(rank_base, 0, INT32_MAX, 1, 0, "rank of this node's first worker")                         \
    INT(world, 1, INT32_MAX, 1, 1, "workers of the round (WORLD_SIZE)")                            \
    INT(role_rank_base, 0, INT32_MAX, 1, 0, "first worker's rank within its role")                 \
    INT(role_world, 1, INT32_MAX, 1, 1, "workers of that role")                                    \
    INT(restarts, 0, MU_RESTARTS_MAX, 1, 0,                                                        \
        "failures restarted after so far (TORCHELASTIC_RESTART_COUNT)")                            \
    INT(max_restarts, 0, MU_RESTARTS_MAX, 1, 0, "the job's budget (TORCHELASTIC_MAX_RESTARTS)")    \
    INT(spent, -1, MU_RESTARTS_MAX, 0, -1,                                                         \
        "how many of these count against the budget now; -1: all")                                 \
    STR(lead_addr, MU_HOST_BYTES, 1, "where the lead serves the worker store (MASTER_ADDR)")       \
    INT(lead_port, 0, 65535, 1, 0, "and on which port (MASTER_PORT)")                              \
    INT(begun_ms, 0, INT64_C(1) << 53, 0, 0,                                                       \
        "when the server began it, ms since 1970: tells rounds of one number apart, where a "      \
        "server "                                                                                  \
        "lost its memory between them")                                                            \
    INT(fence_ms, 1, INT64_C(86400000000), 1, 3000,                                                \
        "silence this round allows; an agent stops its workers after 0.7 of it")                   \
    INT(reach_ms, 0, 86400000, 0, 0,                                                               \
        "0: start at once; else connect to lead_addr and lead_port within that time, say reached " \
        "or failed, and start on go")

#define CTL_REACHED_FIELDS(STR, INT, INTS, CAUSE)                                                  \
    INT(round, 1, UINT32_MAX, 1, 1, "the round: its lead's store can be reached from here")

#define CTL_GO_FIELDS(STR, INT, INTS, CAUSE)                                                       \
    INT(round, 1, UINT32_MAX, 1, 1, "the round: every node reaches the lead's store")

#define CTL_STARTED_FIELDS(STR, INT, INTS, CAUSE)                                                  \
    INT(round, 1, UINT32_MAX, 1, 1, "the round")                                                   \
    INTS(pids, "process ids by local rank")

#define CTL_EXITED_FIELDS(STR, INT, INTS, CAUSE)                                                   \
    INT(round, 1, UINT32_MAX, 1, 1, "the round")                                                   \
    INT(local_rank, 0, MU_WORKERS_MAX, 1, 0, "a worker that exited with 0 while others go on")

#define CTL_FAILED_FIELDS(STR, INT, INTS, CAUSE)                                                   \
    INT(round, 1, UINT32_MAX, 1, 1, "the round")                                                   \
    CAUSE(cause, "what failed first on this node")                                                 \
    STR(output, MU_OUTPUT_BYTES, 0, "last lines of that worker, where they are known")             \
    STR(tail, MU_TAIL_BYTES, 0, "more of them, for the record of the round's end")                 \
    STR(trace, MU_TRACE_BYTES, 0,                                                                  \
        "where it failed: the traceback of its error file, or the stacks of one that hung")

#define CTL_SILENT_FIELDS(STR, INT, INTS, CAUSE)                                                   \
    INT(round, 1, UINT32_MAX, 1, 1, "the round")                                                   \
    INTS(workers, "four numbers each: local rank, milliseconds without a sign of life, last step " \
                  "that it reported or -1, 1 where it is stopped by a signal; others are alive")

#define CTL_FINISHED_FIELDS(STR, INT, INTS, CAUSE)                                                 \
    INT(round, 1, UINT32_MAX, 1, 1, "the round: all workers of this node exited with 0")           \
    INT(halted, 0, 1, 0, 0, "1: because they were told to halt, not because their work is done")

#define CTL_DRAIN_FIELDS(STR, INT, INTS, CAUSE)                                                    \
    STR(reason, CTL_REASON_BYTES, 0, "why, for people")                                            \
    INT(timeout_ms, 0, 86400000, 1, 60000, "what is left until it leaves in any case")

#define CTL_HALT_FIELDS(STR, INT, INTS, CAUSE)                                                     \
    INT(round, 0, UINT32_MAX, 1, 0, "the round; 0: the node is in none")                           \
    INT(step, -1, INT32_MAX, 1, -1, "workers stop after this step, on every node; -1: none yet")   \
    INT(leave, 0, 1, 0, 0, "1: it is this node that is to leave")                                  \
    INT(timeout_ms, 0, 86400000, 1, 60000, "what is left until the node leaves in any case")       \
    STR(host, MU_HOST_BYTES, 0, "the node that is to leave, for people")                           \
    STR(reason, CTL_REASON_BYTES, 0, "why, for people")

#define CTL_STOP_FIELDS(STR, INT, INTS, CAUSE)                                                     \
    INT(round, 1, UINT32_MAX, 1, 1, "the round to stop")                                           \
    INT(final, 0, 1, 1, 0, "1: no round follows")                                                  \
    INT(spent, -1, MU_RESTARTS_MAX, 0, -1,                                                         \
        "restarts that count against the budget, the one that follows included; -1: not said")     \
    CAUSE(cause, "the first cause")                                                                \
    STR(output, MU_OUTPUT_BYTES, 0, "last lines of the worker that it names")

#define CTL_STOPPED_FIELDS(STR, INT, INTS, CAUSE)                                                  \
    INT(round, 1, UINT32_MAX, 1, 1, "the round: no process of it is left on this node")            \
    INT(store_port, 0, 65535, 1, 0, "a fresh port bound for the next round's worker store")        \
    INT(unready, 0, 1, 0, 0, "1: its health is being checked: health says when it is ready")       \
    INTS(exits, "by local rank: exit status, or minus the signal's number; -1000: not known")      \
    INT(stop_ms, -1, INT32_MAX, 0, -1,                                                             \
        "from the order to stop until the last worker had ended; -1: not known")                   \
    INT(reclaim_ms, -1, INT32_MAX, 0, -1, "and from then until nothing was left; -1: not known")   \
    INTS(late, "two numbers each: local rank of a worker that failed by itself after the round "   \
               "was to be stopped, and how many milliseconds before this message")                 \
    INT(late_count, 0, MU_WORKERS_MAX, 0, 0, "how many these were; the list holds the first 16")

#define CTL_HEALTH_FIELDS(STR, INT, INTS, CAUSE)                                                   \
    INT(ok, 0, 1, 1, 1, "1: it can be counted on; 0: its check failed, and is tried again")        \
    STR(text, MU_MESSAGE_BYTES, 0, "how it failed, and the last line that the check wrote")

#define CTL_BEAT_FIELDS(STR, INT, INTS, CAUSE)                                                     \
    INT(round, 0, UINT32_MAX, 1, 0, "the round the sender is in; 0: none")                         \
    INT(seq, 0, INT64_C(1) << 53, 0, 0,                                                            \
        "the agent counts its beats; the answer repeats the number: proof that the server heard "  \
        "it")                                                                                      \
    INT(fence_ms, 0, INT64_C(86400000000), 0, 0,                                                   \
        "server: the job could go on without you by now, so allow yourself no more silence than "  \
        "this; agent: what it allows itself in this round, which never grows; 0: as START said")   \
    INTS(steps,                                                                                    \
         "by local rank: the last step that each worker reported, -1: none; empty: as before")

#define CTL_BYE_FIELDS(STR, INT, INTS, CAUSE)                                                      \
    INT(round, 0, UINT32_MAX, 1, 0, "the round it was in; nothing of it runs here any more")       \
    INT(final, 0, 1, 0, 0, "1: this process serves the rendezvous too, so no round follows")       \
    CAUSE(cause, "why it leaves")

#define CTL_END_FIELDS(STR, INT, INTS, CAUSE)                                                      \
    INT(success, 0, 1, 1, 0, "1: every worker of the last round exited with 0")                    \
    INT(round, 0, UINT32_MAX, 1, 0, "the last round")                                              \
    INT(restarts, 0, MU_RESTARTS_MAX, 1, 0, "failures restarted after")                            \
    INT(max_restarts, 0, MU_RESTARTS_MAX, 1, 0, "restarts allowed")                                \
    INT(spent, -1, MU_RESTARTS_MAX, 0, -1,                                                         \
        "how many of these count against the budget now; -1: all")                                 \
    INT(same_failure, 0, 1, 0, 0,                                                                  \
        "1: the job ends since the cause is the same failure at the same step as the one before")  \
    CAUSE(cause, "the first cause of the last failure, when success is 0")                         \
    STR(output, MU_OUTPUT_BYTES, 0, "last lines of the worker that it names")                      \
    STR(spent_by, MU_MESSAGE_BYTES, 0, "which failures spent the restarts, the last ones if many") \
    INT(consequences, 0, UINT32_MAX, 0, 0, "how many failures were told after the first cause")    \
    INT(incident, 0, UINT32_MAX, 0, 0, "number of the record of this end; 0: there is none")

#define CTL_KNOCK_FIELDS(STR, INT, INTS, CAUSE) STR(nonce, 65, 1, "64 hexadecimal digits, random")

#define CTL_CHALLENGE_FIELDS(STR, INT, INTS, CAUSE)                                                \
    STR(nonce, 65, 1, "64 hexadecimal digits, random")                                             \
    STR(proof, 65, 1, "that the server has the token, over both nonces")

#define CTL_PROOF_FIELDS(STR, INT, INTS, CAUSE)                                                    \
    STR(proof, 65, 1, "that the agent has the token, over both nonces")
/* Service mode: nodes on offer, and the jobs that the server places on them. */
#define CTL_OFFER_FIELDS(STR, INT, INTS, CAUSE)                                                    \
    STR(version, 32, 1, "the node's version, for people")                                          \
    STR(node, 40, 1, "this service process's own random id: the same after a reconnect")           \
    STR(host, MU_HOST_BYTES, 1, "host name")                                                       \
    STR(fqdn, MU_HOST_BYTES, 0, "full host name")                                                  \
    STR(host_addr, MU_ADDR_BYTES, 0, "first global address of an interface")                       \
    STR(local_addr, MU_HOST_BYTES, 0, "the name or address the user wants others to use")          \
    STR(boot_id, 40, 0, "the kernel's boot id")                                                    \
    INT(pid, 0, INT32_MAX, 0, 0, "the service's process id")                                       \
    INT(cpus, 0, 1 << 20, 0, 0, "CPUs it may use")                                                 \
    INT(gpus, 0, MU_WORKERS_MAX, 0, 0, "GPUs it gives out, which are numbered from 0")             \
    INT(slots, 1, MU_WORKERS_MAX, 1, 1, "how many workers it takes")                               \
    STR(user, 64, 0, "the unix user that its jobs run as")

#define CTL_HAS_FIELDS(STR, INT, INTS, CAUSE)                                                      \
    STR(job, MU_RUN_ID_BYTES, 1, "a job that is here; empty: that was the last one")               \
    INT(attempt, 0, UINT32_MAX, 0, 0, "which start of it")                                         \
    INT(state, 0, 1, 0, 0, "0 it runs, 1 it has ended")                                            \
    INT(status, 0, 255, 0, 0, "the exit status of its agent, where it has ended")                  \
    INT(submitted_ms, 0, INT64_C(1) << 53, 0, 0, "as assign had it; 0: not known")

#define CTL_ASSIGN_FIELDS(STR, INT, INTS, CAUSE)                                                   \
    STR(job, MU_RUN_ID_BYTES, 1, "the job's id, which is its run id too")                          \
    INT(attempt, 1, UINT32_MAX, 1, 1, "counts the starts of this id")                              \
    CTL_BIG(spec, CTL_SPEC_BYTES, 1, "the submission: one JSON object, as text")                   \
    INT(node_rank, 0, MU_NODES_MAX, 1, 0, "which of the job's nodes this is")                      \
    INT(node_count, 1, MU_NODES_MAX, 1, 1, "how many nodes the job was placed on")                 \
    INT(nproc, 1, MU_WORKERS_MAX, 1, 1, "workers to start here")                                   \
    INTS(gpus, "the numbers of the GPUs that they may use")                                        \
    INT(submitted_ms, 0, INT64_C(1) << 53, 0, 0,                                                   \
        "when it was submitted (the server's Unix time): tells jobs of one id apart, where a "     \
        "server lost its memory between them; 0: not said")

#define CTL_PLACED_FIELDS(STR, INT, INTS, CAUSE)                                                   \
    STR(job, MU_RUN_ID_BYTES, 1, "the job")                                                        \
    INT(attempt, 0, UINT32_MAX, 1, 1, "which start of it")                                         \
    INT(state, 0, 3, 1, 0, "0 it is being started, 1 its agent runs, 2 it has ended, 3 refused")   \
    INT(status, 0, 255, 0, 0, "the agent's exit status; 128 and the number for a signal")          \
    STR(text, MU_MESSAGE_BYTES, 0, "why, for people")

#define CTL_UNASSIGN_FIELDS(STR, INT, INTS, CAUSE)                                                 \
    STR(job, MU_RUN_ID_BYTES, 1, "the job to end here")                                            \
    INT(attempt, 0, UINT32_MAX, 1, 1, "which start of it")                                         \
    INT(signo, 1, 64, 0, 15, "the signal that its agent gets first")                               \
    INT(grace_ms, 0, 86400000, 0, MU_GRACE_NS / 1000000, "from then until it is killed")

#define CTL_TAIL_FIELDS(STR, INT, INTS, CAUSE)                                                     \
    INT(stream, 1, UINT32_MAX, 1, 1, "a number that the server chose: the output comes under it")  \
    STR(job, MU_RUN_ID_BYTES, 1, "whose output is wanted")                                         \
    INT(follow, 0, 1, 0, 0, "1: go on until the job has ended; 0: only what is there")             \
    INT(rank, -2, INT32_MAX, 0, -2, "only this rank's; -1: only the agent's own; -2: all")         \
    INT(since_ms, -1, INT64_C(1) << 53, 0, -1,                                                     \
        "only what was written since then (Unix time); -1: all")                                   \
    INT(lines, -1, INT32_MAX, 0, -1, "of what is there only so many last lines; -1: all")          \
    INT(credit, 0, 1 << 30, 1, 0, "bytes of text that the node may send before more")              \
    INT(submitted_ms, 0, INT64_C(1) << 53, 0, 0,                                                   \
        "of the job of that id that was submitted then; 0: of the last one")

#define CTL_MORE_FIELDS(STR, INT, INTS, CAUSE)                                                     \
    INT(stream, 1, UINT32_MAX, 1, 1, "the stream")                                                 \
    INT(credit, 0, 1 << 30, 1, 0, "so many bytes more may be sent")

#define CTL_UNTAIL_FIELDS(STR, INT, INTS, CAUSE)                                                   \
    INT(stream, 1, UINT32_MAX, 1, 1, "the stream that nobody reads any more")

#define CTL_OUTPUT_FIELDS(STR, INT, INTS, CAUSE)                                                   \
    INT(stream, 1, UINT32_MAX, 1, 1, "the stream")                                                 \
    STR(job, MU_RUN_ID_BYTES, 0, "the job")                                                        \
    INT(unix_ms, 0, INT64_C(1) << 53, 0, 0, "when it was written (Unix time)")                     \
    INT(rank, -1, INT32_MAX, 0, -1, "the rank that wrote it; -1: the agent itself")                \
    INT(channel, 1, 2, 0, 1, "1 stdout, 2 stderr")                                                 \
    STR(text, CTL_OUTPUT_BYTES, 0, "one line or a piece of it, without its end")                   \
    INT(end, 0, 1, 0, 0, "1: nothing more comes in this stream")

#define CTL_CAUGHT_FIELDS(STR, INT, INTS, CAUSE)                                                   \
    INT(stream, 1, UINT32_MAX, 1, 1, "the stream, which is one that follows")

#define CTL_UNDRAIN_FIELDS(STR, INT, INTS, CAUSE)                                                  \
    STR(reason, CTL_REASON_BYTES, 0, "why, for people")

#define CTL_RELEASE_FIELDS(STR, INT, INTS, CAUSE)                                                  \
    STR(job, MU_RUN_ID_BYTES, 1, "nothing of this job is left here, its output included")

/* Message, lower-case name on the wire, who sends it ('A' agent, 'S' server, 'B' both), what it
 * says. */
#define CTL_MESSAGES(X)                                                                            \
    X(KNOCK, knock, 'A', "I have the token: show that you have it too; before all else")           \
    X(CHALLENGE, challenge, 'S', "I have it; show that you do")                                    \
    X(PROOF, proof, 'A', "I do; behind it comes what I want")                                      \
    X(HELLO, hello, 'A', "I am here, this is me, and this is the job I mean")                      \
    X(WELCOME, welcome, 'S', "you are in; these are the server's times")                           \
    X(REFUSED, refused, 'S', "you are not; the connection closes")                                 \
    X(WAITING, waiting, 'S', "what the job waits for, so that no wait is silent")                  \
    X(START, start, 'S', "the round begins: start your workers with these ranks")                  \
    X(REACHED, reached, 'A', "workers started here will find their store")                         \
    X(GO, go, 'S', "all nodes said reached: start your workers now")                               \
    X(STARTED, started, 'A', "they run")                                                           \
    X(EXITED, exited, 'A', "one of them exited well")                                              \
    X(FAILED, failed, 'A', "one of them failed")                                                   \
    X(SILENT, silent, 'A', "which of them give no sign of life, whenever that changes")            \
    X(FINISHED, finished, 'A', "all of them exited well")                                          \
    X(DRAIN, drain, 'A', "I am to leave: let the workers stop at one step")                        \
    X(HALT, halt, 'S', "a node is to leave: your workers stop after this step")                    \
    X(STOP, stop, 'S', "stop your workers")                                                        \
    X(STOPPED, stopped, 'A', "nothing of the round runs here any more")                            \
    X(HEALTH, health, 'A', "what the check of this node's health has found")                       \
    X(BEAT, beat, 'B', "still here; the server answers each")                                      \
    X(BYE, bye, 'A', "I leave on purpose")                                                         \
    X(END, end, 'S', "the job is over; exit")                                                      \
    X(OFFER, offer, 'A', "I am a node on offer: instead of hello")                                 \
    X(HAS, has, 'A', "what of your jobs is here, after each welcome")                              \
    X(ASSIGN, assign, 'S', "start this job's agent")                                               \
    X(PLACED, placed, 'A', "how that went")                                                        \
    X(UNASSIGN, unassign, 'S', "end this job's agent")                                             \
    X(TAIL, tail, 'S', "send this job's output")                                                   \
    X(MORE, more, 'S', "so much more of it has room")                                              \
    X(UNTAIL, untail, 'S', "send no more of it")                                                   \
    X(OUTPUT, output, 'A', "a line of it")                                                         \
    X(CAUGHT, caught, 'A', "all of it that was there is sent: what follows is as it is written")   \
    X(UNDRAIN, undrain, 'S', "you said drain: take jobs again")                                    \
    X(RELEASE, release, 'A', "nothing of that job is left here")

enum ctl_type {
#define X(NAME, name, from, doc) CTL_##NAME,
    CTL_MESSAGES(X)
#undef X
    CTL_TYPE_COUNT
};

#define CTL_SILENT_NUMBERS 4 /* Of a worker in SILENT. */
#define CTL_SILENT_MAX                                                                             \
    (MU_WORKERS_MAX / CTL_SILENT_NUMBERS) /* Workers told of; others are left out. */

/* A list of int32: borrowed; after ctl_decode() it lives in the decoder's scratch. */
struct ctl_ints {
    const int32_t *v;
    uint32_t n;
};

#define CTL_STR_MEMBER(name, bytes, need, doc) char name[bytes];
#define CTL_INT_MEMBER(name, min, max, need, dflt, doc) int64_t name;
#define CTL_INTS_MEMBER(name, doc) struct ctl_ints name;
#define CTL_CAUSE_MEMBER(name, doc) struct mu_cause name;
#define CTL_BIG(name, bytes, need, doc)                                                            \
    struct mu_str name; /* Borrowed; after ctl_decode() in its scratch, with a NUL behind it. */
#define X(NAME, name, from, doc)                                                                   \
    struct ctl_##name {                                                                            \
        CTL_##NAME##_FIELDS(CTL_STR_MEMBER, CTL_INT_MEMBER, CTL_INTS_MEMBER, CTL_CAUSE_MEMBER)     \
    };
CTL_MESSAGES(X)
#undef X
#undef CTL_BIG

struct ctl_msg {
    enum ctl_type type;
    union {
#define X(NAME, name, from, doc) struct ctl_##name name;
        CTL_MESSAGES(X)
#undef X
    } u;
};

const char *ctl_type_name(enum ctl_type t);

/* Every field at its default: strings empty, integers as in the table, causes unknown. */
void ctl_init(struct ctl_msg *m, enum ctl_type t);

/* Append one frame (length and JSON) to `out`. Returns 0 or -ENOMEM (out->oom is set, the frame is
 * not whole: drop the connection). */
int ctl_encode(const struct ctl_msg *m, struct mu_buf *out);

/* Read one JSON object of a frame. Unknown fields are skipped.
 * scratch: caller's buffer, reset here; lists and big texts in `m` point into it until its next
 * use. Returns 0; -ENOMSG: a message name this version does not know (skip it); -EPROTO with a
 * sentence that names the message and field; -ENOMEM. `m` is undefined unless 0. */
int ctl_decode(struct mu_str json, struct ctl_msg *m, struct mu_buf *scratch, struct mu_err *err);

/* Is there a whole frame at the front of `in`? Returns 1 and the JSON in *ret (inside in->p); 0:
 * more bytes are needed; -EMSGSIZE: the length is beyond MU_FRAME_BYTES_MAX or 0, with a sentence.
 */
int ctl_frame(struct mu_str in, struct mu_str *ret, size_t *ret_frame_bytes, struct mu_err *err);

/* The reference page's tables, as Markdown. */
void ctl_describe(struct mu_buf *out);

#endif
