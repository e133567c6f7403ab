/* What GET /metrics counts: the one table of its names, and the numbers that the server keeps for
 * it. Names are promised: docs/metrics.md is printed from this table. */
#ifndef MUSTER_RENDEZVOUS_METRICS_H
#define MUSTER_RENDEZVOUS_METRICS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cause.h"
#include "base/str.h"
#include "rendezvous/job/job.h"

/* X(NAME, name, type, labels, what it says). Base units, and names as Prometheus wants them. */
#define SRV_METRICS(X)                                                                             \
    X(BUILD, "muster_build_info", GAUGE, "version", "Always 1; which version serves this")         \
    X(CONNECTIONS, "muster_connections", GAUGE, "",                                                \
      "Connections of agents and store clients that are open")                                     \
    X(ACCEPTED, "muster_connections_accepted_total", COUNTER, "", "Connections that came")         \
    X(AGENTS, "muster_agents", GAUGE, "", "Agents that are connected")                             \
    X(JOBS, "muster_jobs", GAUGE, "state", "Jobs by state; of those that are over, the last ones") \
    X(JOBS_ENDED, "muster_jobs_ended_total", COUNTER, "state",                                     \
      "Jobs that ended: succeeded, failed, or stopped as they were told to")                       \
    X(NODES, "muster_nodes", GAUGE, "state", "Nodes of living jobs by state, as status has it")    \
    X(DRAINING, "muster_nodes_draining", GAUGE, "", "Nodes of living jobs that are to leave")      \
    X(WORKERS, "muster_workers", GAUGE, "state",                                                   \
      "Workers of live rounds, by the state of their nodes")                                       \
    X(STARTED, "muster_rounds_started_total", COUNTER, "", "Rounds that began")                    \
    X(ROUNDS, "muster_rounds_total", COUNTER, "decision",                                          \
      "Rounds that ended, by what was decided then")                                               \
    X(RESTARTS, "muster_restarts_total", COUNTER, "cause",                                         \
      "Restarts after a failure, by the kind of its first cause")                                  \
    X(INCIDENTS, "muster_incidents_total", COUNTER, "",                                            \
      "Records of ends, of rounds and of jobs that had none")                                      \
    X(PHASES, "muster_phase_seconds", HISTOGRAM, "phase",                                          \
      "How long each phase between two rounds took, as incidents have it")                         \
    X(STALE, "muster_stale_messages_total", COUNTER, "message",                                    \
      "Messages of agents that named another round than the live one")                             \
    X(DRAINS, "muster_drains_total", COUNTER, "", "Nodes that were asked to leave")                \
    X(OPS, "muster_store_operations_total", COUNTER, "command",                                    \
      "Commands of the store that were executed")                                                  \
    X(KEYS, "muster_store_keys", GAUGE, "", "Keys of the store")                                   \
    X(QUEUES, "muster_store_queues", GAUGE, "", "Queues of the store")                             \
    X(BYTES, "muster_store_memory_bytes", GAUGE, "", "Memory that the store's content takes")      \
    X(CLIENTS, "muster_store_clients", GAUGE, "", "Connections of the store")                      \
    X(WAITING, "muster_store_waiting_clients", GAUGE, "", "Clients that wait for keys")            \
    X(REQUESTS, "muster_http_requests_total", COUNTER, "path,code",                                \
      "HTTP requests, by path as the API has it and by status")                                    \
    X(READERS, "muster_event_readers", GAUGE, "", "Readers of /events")                            \
    X(EVENTS, "muster_events_total", COUNTER, "", "Events that were made for them")                \
    X(JOB_ROUND, "muster_job_round", GAUGE, "job", "Number of a job's live or last round")         \
    X(JOB_NODES, "muster_job_nodes", GAUGE, "job", "Nodes of a job that are here")                 \
    X(JOB_WORKERS, "muster_job_workers", GAUGE, "job", "Workers of a job's live or last round")    \
    X(JOB_RESTARTS, "muster_job_restarts", GAUGE, "job",                                           \
      "Failures after which a job was started again")                                              \
    X(JOB_STEP, "muster_job_step", GAUGE, "job",                                                   \
      "Highest step that a worker of the live or last round reported; absent where none did")      \
    X(PRODUCTIVE, "muster_job_productive_seconds_total", COUNTER, "job",                           \
      "Time in which a job came further than ever before")                                         \
    X(WALL, "muster_job_wall_seconds_total", COUNTER, "job",                                       \
      "Time since a job came to this server, until its end")                                       \
    X(GOODPUT, "muster_job_goodput_ratio", GAUGE, "job",                                           \
      "Productive time over all time of a job; absent where no worker reports steps")              \
    X(RESIDENT, "process_resident_memory_bytes", GAUGE, "", "Resident memory size in bytes")       \
    X(FDS, "process_open_fds", GAUGE, "", "Number of open file descriptors")                       \
    X(FDS_MAX, "process_max_fds", GAUGE, "", "Maximum number of open file descriptors")            \
    X(CPU, "process_cpu_seconds_total", COUNTER, "",                                               \
      "Total user and system CPU time spent in seconds")                                           \
    X(BEGAN, "process_start_time_seconds", GAUGE, "",                                              \
      "Start time of the process since unix epoch in seconds")

#define X(NAME, name, type, labels, help) SRV_METRIC_##NAME,
enum srv_metric {
    SRV_METRICS(X) SRV_METRIC_COUNT
};
#undef X

struct srv_metric_row {
    const char *name;
    const char *type; /* "gauge" */
    const char *labels;
    const char *help;
};
extern const struct srv_metric_row srv_metric_rows[SRV_METRIC_COUNT];
/* The table of docs/metrics.md. */
void srv_metrics_describe(struct mu_buf *out);

/* --- what is counted --- */

/* Between the end of a round and the next one's first step: docs/incidents.md has their bounds. */
#define SRV_PHASES(X)                                                                              \
    X(DETECT, "detect")                                                                            \
    X(STOP, "stop")                                                                                \
    X(RECLAIM, "reclaim")                                                                          \
    X(RENDEZVOUS, "rendezvous")                                                                    \
    X(SPAWN, "spawn")                                                                              \
    X(FIRST_STEP, "first_step")
#define X(NAME, text) SRV_PHASE_##NAME,
enum srv_phase {
    SRV_PHASES(X) SRV_PHASE_COUNT
};
#undef X

#define SRV_BUCKET_COUNT 14
extern const int64_t srv_bucket_ms[SRV_BUCKET_COUNT]; /* Their upper bounds. */

struct srv_histogram {
    uint64_t counts[SRV_BUCKET_COUNT + 1]; /* Of each bucket alone; the last one has no bound. */
    int64_t sum_ms;
};

#define SRV_PATHS_MAX 48 /* Rows of the table of routes, and one for all else. */
#define SRV_CODES_MAX 16
struct srv_requests {
    const char *path; /* As routes.c has it; NULL: a free row. */
    uint64_t by_code[SRV_CODES_MAX];
};

struct srv_metrics {
    uint64_t succeeded; /* Jobs. */
    uint64_t failed;
    uint64_t stopped;
    uint64_t started;
    uint64_t rounds[JOB_DECISION_COUNT];
    uint64_t restarts[MU_CAUSE_KIND_COUNT];
    uint64_t incidents;
    struct srv_histogram phases[SRV_PHASE_COUNT];
    uint64_t stale[JOB_OUTSIDE_EVENT_COUNT];
    uint64_t drains;
    uint64_t events;
    struct srv_requests requests[SRV_PATHS_MAX];
    int64_t since_unix_ms; /* What ended before is another life's. */
    /* The page, and until when it is good: as SRV_STATUS_REST says of the status. */
    struct mu_buf page;
    int64_t good_until_ns;
};

/* What a job's record and progress were counted for. */
struct srv_tally {
    int64_t number;    /* Of the incident. */
    unsigned seen;     /* Which parts of it. */
    int64_t since_ns;  /* When the job came. */
    int64_t ended_ns;  /* 0: it lives. */
    uint32_t round;    /* Whose steps these are: */
    int32_t top;       /* the highest; -1: none, */
    int64_t from_ns;   /* when it passed `high`; 0: it has not, */
    int64_t last_ns;   /* when `top` was told. */
    int32_t high;      /* The highest of all earlier rounds; -1: none. */
    int64_t closed_ns; /* Productive time of the earlier rounds. */
    bool has_steps;
};

#endif
