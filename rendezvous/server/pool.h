/* Service mode in the server's shell; what is decided is rendezvous/pool's.
 *
 * pool.c         connections of nodes on offer, actions carried out, rows, what status shows
 * pool_http.c    submissions and what is asked of jobs over HTTP
 * submission.c   a submission as JSON, checked
 * tail.c         the output of jobs, from their nodes to who reads it over HTTP
 * merge.c        its lines in the order of their times */
#ifndef MUSTER_RENDEZVOUS_SERVER_POOL_H
#define MUSTER_RENDEZVOUS_SERVER_POOL_H

#include "rendezvous/pool/pool.h"
#include "rendezvous/server/internal.h"

struct tail;

struct srv_pool {
    struct pool pool;
    struct agent **links; /* By node; NULL: not connected. */
    uint32_t link_cap;
    uv_timer_t timer;
    int64_t timer_at_ns; /* MU_NEVER: not armed. */
    struct tail *tails;
    uint32_t tail_count;
    uint32_t streams; /* Numbers given out. */
    uv_timer_t heartbeat;
    uint32_t looks; /* How often that was. */
    struct mu_log_limit log_node;
};

/* --- pool.c --- */
/* Returns 0 or -ENOMEM. */
int srv_pool_start(struct srv *s);
void srv_pool_close(struct srv *s);
void srv_pool_free(struct srv *s);
/* The first message of a connection: a node offers itself. */
void srv_pool_offer(struct srv *s, struct agent *a, const struct ctl_msg *m);
/* What such a node says then. Returns false where it is no message of a node. */
bool srv_pool_message(struct srv *s, struct agent *a, const struct ctl_msg *m);
/* To a node on offer: at once, or once the rows of what was decided are safe. */
void srv_pool_say(struct agent *a, const struct ctl_msg *m);
/* Jobs whose rows were in the lot that was written are the pool's now; or, where it could not be,
 * those that were just submitted are not. */
void srv_pool_kept(struct srv *s, bool kept);
/* They are. */
void srv_pool_release(struct srv *s);
/* Its connection is gone. */
void srv_pool_gone(struct agent *a);
/* What the rendezvous knows of a job that may be the pool's: a round of it runs; it is over. */
void srv_pool_round(struct srv *s, const struct srv_job *sj);
void srv_pool_verdict(struct srv *s, const struct srv_job *sj);
/* An event of the pool, with all that follows from it. */
int srv_pool_step(struct srv *s, struct pool_event *ev, struct pool_out *out, struct mu_err *err);
/* tail_on_heartbeat() each so many ms, until that timer is stopped. */
void srv_pool_beat(struct srv *s, uint64_t ms);
/* Did its rendezvous fail because it was told to stop? */
bool srv_pool_stopped(const struct srv *s, const struct srv_job *sj);
/* "pool", for status. */
void srv_pool_put(const struct srv *s, struct mu_json *w);
/* A row of a former life. */
void srv_pool_load(struct srv *s, int64_t kept, const struct pool_row *row);
void srv_pool_load_drain(struct srv *s, const struct pool_drain_row *row);

/* --- tail.c --- */
void tail_output(struct srv *s, struct agent *a, const struct ctl_output *m);
void tail_caught(struct srv *s, struct agent *a, const struct ctl_caught *m);
/* The job was told to start there: who follows it wants that output too. */
void tail_assigned(struct srv *s, const struct pool_job *j, uint32_t node);
/* It is back, and has said what it has. */
void tail_node_back(struct srv *s, uint32_t node);
/* Nothing more comes from this node, until it is back. */
void tail_node_gone(struct srv *s, uint32_t node);
/* A job may have ended. */
void tail_look(struct srv *s);
void tail_on_heartbeat(uv_timer_t *timer);
/* GET /jobs/ID/logs */
srv_serve_fn tail_serve;

/* --- pool_http.c --- */
srv_serve_fn jobs_submit_serve;
srv_serve_fn jobs_get_serve;
srv_serve_fn jobs_stop_serve;
srv_serve_fn jobs_resume_serve;
srv_serve_fn undrain_serve;
/* POST /nodes/NODE/drain, where it is a node on offer. Returns false where it is not. */
bool srv_pool_drain(struct srv *s,
                    const char *name,
                    int64_t timeout_ns,
                    struct srv_http_answer *ret);
/* The job of that name; else an answer is in *ret and NULL. */
struct pool_job *jobs_named(struct srv *s, struct mu_str name, struct srv_http_answer *ret);
void jobs_put_time(struct mu_json *w, const char *key, int64_t unix_ms);

#endif
