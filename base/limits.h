/* Every limit of the product, with the reason beside the number. What a user may change is an
 * option and has its default here. */
#ifndef MUSTER_BASE_LIMITS_H
#define MUSTER_BASE_LIMITS_H

#include <stdint.h>

/* --- the control protocol --- */
#define MU_FRAME_BYTES_MAX                                                                         \
    (1024 * 1024) /* One control message; the largest real one (1,024 pids) takes 12 KiB. */
#define MU_RUN_ID_BYTES 128 /* With its NUL. torchrun's ids are UUIDs or what people type. */
#define MU_HOST_BYTES 256   /* RFC 1035: 253 characters. */
#define MU_ADDR_BYTES 64    /* A numeric IPv6 address with a zone. */
#define MU_ROLE_BYTES 64
#define MU_DIR_BYTES                                                                               \
    1000 /* A folder of our own files, with its NUL: names in it still fit PATH_MAX. */
#define MU_MESSAGE_BYTES 512 /* A cause's own words: one sentence, not a traceback. */
#define MU_OUTPUT_BYTES                                                                            \
    2048 /* Last lines of the worker that failed first: a screen at most, told to every node. */
#define MU_OUTPUT_LINES_MAX 20 /* All that an agent says at the end stays within 40. */
#define MU_TAIL_BYTES                                                                              \
    8192 /* The same for the record of a round's end, which is told to the server alone: */
#define MU_TAIL_LINES_MAX 50
#define MU_TRACE_BYTES                                                                             \
    8192 /* Where it failed: a traceback of some 60 calls, or the stacks of a few threads. */
#define MU_CONSEQUENCES_MAX 16 /* Described one by one; more are counted. */

/* --- a job --- */
#define MU_NODES_MAX 65536 /* Nodes of one job, spares included. */
#define MU_WORKERS_MAX                                                                             \
    1024 /* Workers of one node: 8 GPUs are usual, 256 no-ops are a test, 1,024 a storm. */
#define MU_JOBS_MAX 4096      /* Jobs of one server at once. */
#define MU_JOBS_ENDED_KEPT 64 /* Ended jobs that status still shows. */
#define MU_RESTARTS_MAX 1000000
#define MU_WINDOW_RESTARTS_MAX                                                                     \
    100 /* Within a window (--max-restarts=N/WINDOW): the time of each is remembered. */
#define MU_SPAN_MAX_NS (INT64_C(366) * 86400 * 1000000000) /* Longer is a slip of the finger. */
#define MU_SPAN_MAX_MS (MU_SPAN_MAX_NS / 1000000)

/* --- a pool: service mode --- */
#define MU_POOL_NODES_MAX 4096              /* On offer, and away for a while. */
#define MU_POOL_JOBS_MAX MU_JOBS_MAX        /* Jobs that wait or run. */
#define MU_POOL_SPEC_BYTES_MAX (256U << 20) /* Submissions of all jobs, ended ones too. */
#define MU_POOL_ENDED_KEPT 256              /* Ended jobs that can be asked for, or resumed. */
#define MU_POOL_REFUSALS_MAX                                                                       \
    3 /* A start that is refused once more, or whose agents end alone, has failed. */
#define MU_POOL_PAST_MAX 64 /* Nodes that had a job before, and may have output of it. */
#define MU_POOL_AWAY_NS INT64_C(600000000000) /* Then a node does not come back. */
#define MU_POOL_TAILS_MAX                                                                          \
    96 /* Readers of output at once: each muster run is one. The rest of what HTTP can stream is   \
          for those who watch. */
#define MU_POOL_CREDIT_BYTES                                                                       \
    65536 /* Output that a node may send before its reader has taken any. */

/* --- times, in ns --- */
#define MU_LEASE_NS INT64_C(3000000000) /* Not below three scheduler stalls of a loaded node. */
#define MU_BEAT_NS INT64_C(1000000000)  /* A third of the lease: two beats may be lost. */
#define MU_FENCE_NS                                                                                \
    INT64_C(                                                                                       \
        600000000000) /* Silence allowed where the job could not go on without the node anyway. */
#define MU_JOIN_TIMEOUT_NS INT64_C(600000000000) /* As torchrun's join_timeout. */
#define MU_LAST_CALL_NS INT64_C(30000000000)     /* As torchrun's last_call_timeout. */
#define MU_GRACE_NS INT64_C(30000000000) /* SIGTERM to SIGKILL, as torchrun's shutdown timeout. */
#define MU_DRAIN_NS                                                                                \
    INT64_C(60000000000) /* To leave in order: two minutes are what clouds give.                   \
                          */
#define MU_DRAIN_MARGIN_NS                                                                         \
    INT64_C(5000000000) /* Before a machine is taken away, for the last words. */
#define MU_DRAIN_MAX_NS INT64_C(86400000000000)
#define MU_SETTLE_NS                                                                               \
    INT64_C(2000000000) /* How long after a round's first failure another one that nobody had been \
                           told of can prove the better cause: three stalls of a loaded node. */
#define MU_HEALTH_TIMEOUT_NS                                                                       \
    INT64_C(30000000000) /* For a health check; beyond it nothing is known of the node. */
#define MU_HEALTH_GAP_NS INT64_C(30000000000)      /* From a failed health check to the next, */
#define MU_HEALTH_GAP_MAX_NS INT64_C(600000000000) /* and ever longer up to this. */
#define MU_QUARANTINE_FAILURES 3 /* Once is chance, twice may be; within the window below. */
#define MU_QUARANTINE_WINDOW_NS INT64_C(3600000000000)
#define MU_QUARANTINE_FAILURES_MAX 32
#define MU_KILL_WAIT_NS                                                                            \
    INT64_C(10000000000) /* SIGKILL to "this node is unhealthy": a process in D state. */
#define MU_FIRST_ANSWER_NS                                                                         \
    INT64_C(10000000000) /* A server answers a hello at once; what is silent for so long is none.  \
                          */
#define MU_REACH_NS                                                                                \
    INT64_C(10000000000) /* For the lead's store to be reached: three lost SYNs.                   \
                          */
#define MU_REACH_AGAIN_NS                                                                          \
    INT64_C(60000000000) /* The same for nodes that had reached one another before. */
#define MU_REACH_NODES_MAX                                                                         \
    2048 /* Larger rounds start at once: all who look are in the lead's backlog together. */
#define MU_FIRST_WORD_NS INT64_C(3500000000)      /* A wait is spoken of before 5 s have passed, */
#define MU_WORD_GAP_MAX_NS INT64_C(50000000000)   /* and then ever less often, but each minute. */
#define MU_WORD_GAP_LONG_NS INT64_C(300000000000) /* The same for who waits for others to work. */
#define MU_FIRST_BYTES_NS INT64_C(30000000000)    /* A connection that says nothing. */
#define MU_GOODBYE_NS                                                                              \
    INT64_C(5000000000) /* How long a server that is about to end waits for its peers to read the  \
                           end. */

/* --- the store --- */
#define MU_STORE_KEY_BYTES_MAX 8192 /* As PyTorch 2.13's server. */
#define MU_STORE_VALUE_BYTES_MAX                                                                   \
    (8ULL << 20) /* As PyTorch 2.13's server, so that a program meets no surprise there. */
#define MU_STORE_KEYS_PER_REQUEST_MAX 131072 /* As PyTorch 2.13's server. */
#define MU_STORE_MEMORY_MAX (4ULL << 30)     /* Keys and values of one store. */
#define MU_STORE_OUT_BYTES_MAX                                                                     \
    (64ULL << 20) /* Answers a client has not read: beyond it is closed. */

/* --- connections --- */
#define MU_CONNECTIONS_MAX 65536
#define MU_LISTEN_BACKLOG 4096 /* The kernel cuts it to net.core.somaxconn. */
#define MU_ACCEPT_BATCH                                                                            \
    64 /* Accepts per turn of the loop: a storm must not starve who is there.                      \
        */

#endif
