/* Between the server and muster-state.so, the module that keeps rows of jobs in SQLite. The library
 * costs 1.5 MiB and a millisecond at start; so it is opened where --state-dir asks for it and not
 * elsewhere. What the rows mean is rendezvous/job's business, when they are written the server's.
 */
#ifndef MUSTER_RENDEZVOUS_STATE_MODULE_H
#define MUSTER_RENDEZVOUS_STATE_MODULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "rendezvous/job/keep.h"
#include "rendezvous/pool/keep.h"

/* Raised when anything below, or a row, changes: a module of another build is refused. */
#define SRV_STATE_ABI 3
#define SRV_STATE_SYMBOL "muster_state_module"
/* Raised when a table changes: a file of a newer one is refused, one of an older one is brought up.
 */
#define SRV_STATE_SCHEMA 4

enum srv_state_table {
    SRV_STATE_JOBS,
    SRV_STATE_NODES,
    SRV_STATE_INCIDENTS,
    SRV_STATE_POOL, /* Its jobs; since schema 2. Numbers of `jobs` and of these are never the same.
                     */
    SRV_STATE_DRAINS, /* Hosts that the pool gives no jobs; since schema 3. All of "job" 0. */
    SRV_STATE_TABLE_COUNT
};

/* PUT    `row` in its place, or in that of the row with the same key
 * CLEAR  no row of the job in the table
 * TRIM   no incident of the job with a number up to `number`
 * EMPTY  no row of any job in any table */
enum srv_state_what {
    SRV_STATE_PUT,
    SRV_STATE_CLEAR,
    SRV_STATE_TRIM,
    SRV_STATE_EMPTY
};

struct srv_state_op {
    enum srv_state_what what;
    enum srv_state_table table;
    int64_t job;     /* Chosen by the server, from 1. */
    const void *row; /* PUT: a struct job_row_kept, job_node_row, job_incident, pool_row or
                        pool_drain_row. */
    int64_t number;
};

/* Whom read() tells; rows are borrowed for the call. */
struct srv_state_reader {
    void *arg;
    void (*job)(void *arg,
                int64_t job,
                const struct job_row_kept *row,
                const struct job_node_row *nodes,
                size_t node_count);
    void (*incident)(void *arg, int64_t job, const struct job_incident *row);
    void (*pool)(void *arg, int64_t job, const struct pool_row *row);
    void (*drain)(void *arg, const struct pool_drain_row *row);
};

struct srv_state;

/* Each returns 0 or a negative errno with a sentence; -EBADMSG: the file is no database any more,
 * -EPROTONOSUPPORT: it is of a newer schema. One call at a time, from any thread. */
struct srv_state_module {
    uint32_t abi;
    /* `fields`: of each table's rows. The file is made, with mode 0600, where there is none. */
    int (*open)(const char *path,
                const struct job_fields *fields,
                struct srv_state **ret,
                struct mu_err *err);
    /* Every job of the pool and every host that is drained, then every job in the order of their
     * numbers, each followed by its incidents. */
    int (*read)(struct srv_state *st, const struct srv_state_reader *reader, struct mu_err *err);
    /* All of it or nothing. durable: safe from power loss when it returns, with all before it. */
    int (*write)(struct srv_state *st,
                 const struct srv_state_op *ops,
                 size_t count,
                 bool durable,
                 struct mu_err *err);
    void (*close)(struct srv_state *st); /* Takes NULL. */
};

#endif
