/* What the files of the server's shell share. Nobody outside this folder includes it.
 *
 * server.c   life of the whole: start, close, counts
 * watch.c    the set of descriptors that are watched
 * listen.c   accepts
 * conn.c     one connection: its first bytes, its lists and time-outs, its end
 * client.c   a connection of the store
 * allow.c    who may do what
 * prove.c    who has the token
 * agent.c    a connection of an agent: frames in, frames out
 * jobs.c     the table of jobs: events in, actions carried out, one timer
 * probe.c    whether an agent that is away is dead
 * mark.c     the mark of a life with live rounds
 * state.c    jobs kept over a death, with --state-dir
 * module.c   finds the modules that are opened on demand
 * http.c     the module that speaks HTTP, opened at the first request
 * routes.c   what is served over HTTP, and to whom
 * keys.c     the store over HTTP
 * status.c   what GET /status answers
 * page.c     the page for people at /, in the module
 * answer.c  answers over HTTP, with a body of their own or a text that stays
 * events.c   the status again at each change, GET /events
 * metrics*.c  what is counted, GET /metrics
 * incidents.c  the records of rounds' ends, and GET /jobs/ID/incidents
 * pool.h     service mode: its own files
 *
 * How a turn goes: a callback turns what happened into calls below; what these want to close, and
 * what a peer could not take at once, is queued, and srv_settle() at the callback's end carries it
 * out. So no job steps inside the step of another, and a connection that fails while it is written
 * to is an event like any other. */
#ifndef MUSTER_RENDEZVOUS_SERVER_INTERNAL_H
#define MUSTER_RENDEZVOUS_SERVER_INTERNAL_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <uthash.h>
#include <uv.h>

#include "base/addr.h"
#include "base/ctl.h"
#include "base/json.h"
#include "base/log.h"
#include "base/proof.h"
#include "base/str.h"
#include "rendezvous/job/job.h"
#include "rendezvous/server/http_module.h"
#include "rendezvous/server/metrics.h"
#include "rendezvous/server/server.h"

/* One read. A store with small requests fills it rarely; a value that is larger is read in place.
 */
#define SRV_SCRATCH_BYTES (64 * 1024)
/* Bytes taken from one connection before others get their turn. */
#define SRV_READ_BYTES_PER_TURN (1024 * 1024)
/* What an agent may leave unread. All of a round's messages to it take 4 KiB. */
#define SRV_AGENT_OUT_BYTES_MAX (4 * 1024 * 1024)
/* A status is good for this many times what it took to write it: however many ask, and however
 * large the jobs are, writing takes at most a fifth of the time; a small one is always fresh. */
#define SRV_STATUS_REST 4
/* So many newcomers, each within the gap of the one before, are a storm. Then each costs more to
 * wake up for than to serve, and the loop rests a moment so that several are served together: a
 * network card's interrupts are moderated for the same reason. */
#define SRV_CROWD_GAP_NS (250 * MU_NS_PER_US)
#define SRV_STORM 16
#define SRV_STORM_REST_NS (500 * MU_NS_PER_US)
/* So many messages of a turn go out at once; a round of thousands is queued, and the queue is
 * written for so long before who else has come is heard. */
#define SRV_SAY_NOW_MAX 64
#define SRV_FLUSH_NS (200 * MU_NS_PER_US)
/* How long the listener rests when descriptors have run out. */
#define SRV_LISTEN_PAUSE_MS 100
/* Nodes of ended jobs that are kept for status, half a KiB each; the last job to end is kept
 * whatever its size. */
#define SRV_ENDED_SLOTS_MAX 16384
/* Waits between looks at an agent that is away (probe.c): each is twice the one before. */
#define SRV_PROBE_STEPS 7
/* Incidents of one job that are kept; older ones are left out. */
#define SRV_HTTP_TURNS 8
#define SRV_INCIDENTS_MAX 100
/* Lines a second from one place that a peer can trigger. */
#define SRV_LOG_BURST 5

enum conn_kind {
    CONN_NEW,    /* Has not said who it is. */
    CONN_PARKED, /* Silent, and kept because a PyTorch 1.13 client of the same host may own it. */
    CONN_STORE,
    CONN_AGENT,
    CONN_CLOSED /* Waits in srv->dead for the end of the turn. */
};

/* Each connection is in one list. The first two have a time-out, the same for all in it, so that
 * they are in the order of their deadlines and one timer looks at their heads only. */
enum conn_list {
    LIST_FRESH,   /* Must say something that makes sense within first_bytes_ns. */
    LIST_LEAVING, /* Everything was said; waits for the peer's end for MU_GOODBYE_NS. */
    LIST_PARKED,
    LIST_SETTLED,
    LIST_COUNT
};

struct agent;
struct host;
struct probe;
struct srv_events;
struct srv_status;
struct watch;

/* events: as epoll's. */
typedef void watch_ready_fn(struct watch *w, uint32_t events);

/* How connections are watched: told once for what arrives, since asking the kernel after each
 * event whether there is more costs as much as the event. So whoever leaves bytes unread, but for a
 * read that was not filled, says watch_again(); and where the peer has said its last (`hung_up`) a
 * read that gave bytes does so too, as no other event will come. */
#define WATCH_IN ((uint32_t)EPOLLIN | (uint32_t)EPOLLRDHUP | (uint32_t)EPOLLET)
#define WATCH_OUT ((uint32_t)EPOLLOUT | (uint32_t)EPOLLET)

/* A descriptor in the server's set. Its memory must stay until the end of the turn in which it is
 * removed (srv_settle()). */
struct watch {
    union {
        watch_ready_fn *ready;
        struct watch *dead_next; /* In srv->dead. */
    } u;
    int fd;          /* -1: not in the set. */
    uint32_t events; /* As asked for. */
};

/* An idle one is all that a connection of the store costs here, so it is kept small. */
struct conn {
    struct watch watch;
    struct srv *srv;
    struct conn *prev;
    struct conn *next;
    union {
        struct store_client *client; /* CONN_STORE */
        struct agent *agent;         /* CONN_AGENT */
    } u;
    struct host *host; /* Of a legacy client or a parked connection; else NULL. */
    int64_t since_ns;  /* When it came into a list with a time-out. */
    struct in6_addr addr;
    uint8_t kind; /* enum conn_kind */
    uint8_t list; /* enum conn_list */
    bool hung_up; /* The peer has closed its side, or its socket has an error. */
    bool ending;  /* CONN_STORE: closed once its output is out. */
};

/* A host with legacy store clients. */
struct host {
    struct in6_addr addr;
    uint32_t legacy;
    uint32_t parked;
    UT_hash_handle hh;
};

/* What the shell keeps for a node. */
struct srv_slot {
    struct agent *agent; /* NULL: not connected. */
    struct probe *probe; /* NULL: nobody looks whether it lives. */
    bool due;            /* Its row has to be written. */
};

/* What state.c knows of a job. */
struct srv_kept {
    int64_t id;        /* In the file; 0: never written. */
    uint64_t hold;     /* Messages wait for this batch; 0: none. */
    bool due;          /* Something of the following: */
    bool row_due;      /* Rows that have to be written: its own, */
    bool round_due;    /* all of its nodes', */
    bool incident_due; /* its incidents' from `incidents_done` on. */
    int64_t incidents_done;
};

/* A job_incident without the room that its texts do not need. */
struct srv_incident {
    int64_t number;
    char packed[];
};

struct srv_job {
    struct job job;
    struct srv_slot *slots; /* As the job's. */
    uint32_t slot_cap;
    uint32_t heap_index;  /* Place in srv->heap. */
    uint32_t starts_due;  /* Agents of it with start_due. */
    uint32_t ended_slots; /* Counted in srv->ended_slots. */
    bool live_round;      /* Counted in srv->live_rounds. */
    struct srv_kept kept;
    struct srv_incident **incidents; /* The last ones, oldest first; grown on demand. */
    uint32_t incident_count;
    uint32_t incident_cap;
    struct srv_tally tally; /* metrics_count.c */
    bool ended;             /* Counted in srv->ended_count; no longer in the table of run ids. */
    struct srv_job *prev;
    struct srv_job *next;
    UT_hash_handle hh;
};

struct agent {
    struct conn *conn;
    struct srv_job *job; /* NULL: not taken yet, or forgotten. */
    uint32_t node;
    struct mu_buf in;  /* A frame that is not whole yet. */
    struct mu_buf out; /* Frames that are not sent yet; no memory when empty. */
    size_t out_at;
    struct mu_buf held;       /* Frames that wait until what they tell is safe. */
    struct proving *proving;  /* It was asked to show the token; NULL: it was not, or it has. */
    struct agent *dirty_prev; /* In srv->dirty. */
    struct agent *dirty_next;
    struct agent *prev; /* In srv->patient. */
    struct agent *next;
    int64_t patient_until_ns;
    bool patient;     /* Its WELCOME may wait for what comes next. */
    bool start_due;   /* Its START is made when it is written: agent_start(). */
    bool start_held;  /* And comes behind `held`. */
    bool dirty;       /* In srv->dirty. */
    bool greeted;     /* "MUSTER/1\n" is behind us. */
    bool proven;      /* It has the server's token. */
    bool said_hello;  /* A hello was handled: a second one is an error. */
    bool close_after; /* Close once `out` is sent. */
    bool close_held;  /* The same, once `held` has gone out. */
    bool drop;        /* Close now: replaced by a newer connection of the same agent. */
    bool broken;      /* Close now: cannot be written to. */
    bool told;        /* The log has the reason already. */
    uint32_t offered; /* It is a node on offer: which of the pool's; else UINT32_MAX. */
};

struct srv {
    uv_loop_t *loop;
    struct srv_config config;
    struct mu_prover prover; /* No token: nobody needs one. */
    char *version;
    char *state_dir;
    char *http_path;
    char address[MU_ADDR_BYTES + 16];
    uint16_t port;
    int64_t started_ns;
    int64_t now_ns; /* Read once at the start of a callback. */
    bool closing;
    uint32_t handles; /* Open uv handles: memory goes when none is left. */
    void (*done)(void *arg);
    void *done_arg;

    int epoll_fd;
    uv_poll_t watch_poll;
    struct watch loop_watch; /* srv_run() */
    bool loop_ready;
    bool *closed;       /* srv_run() hears by it of srv_close(); NULL: it does not run. */
    uint64_t turn;      /* Counts the times that the set was asked. */
    struct watch *dead; /* Closed in this turn. */

    int listen_fd;
    char congestion[16]; /* The system's way of TCP, for those that are no agents. */
    int spare_fd; /* Given up for a moment when descriptors run out, so that the newcomer can be
                     closed. */
    struct watch listener;
    int64_t accepted_ns;   /* When the last newcomer came. */
    uint32_t accept_crowd; /* How many came close behind each other, up to it. */
    bool accept_more;      /* More may be waiting. */
    uv_timer_t listen_pause;

    struct conn *lists[LIST_COUNT];
    uv_timer_t sweep;
    int64_t sweep_at_ns; /* MU_NEVER: not armed. */
    struct host *hosts;
    uint32_t conn_count;
    uint64_t accepted_count;
    char *scratch;

    struct store *store;
    struct agent *dirty;   /* With bytes to send, or to be closed. */
    uv_idle_t flush_again; /* Active while a turn left some of them. */
    uint64_t said_turn;    /* The turn in which `said` was counted. */
    uint32_t said;         /* Messages in it that went out at once. */
    struct agent *patient; /* In the order of patient_until_ns. */
    uv_timer_t patience;   /* Armed while `patient` holds any. */
    struct mu_buf decoded; /* Lists of the message that is being handled. */
    struct mu_buf encoded; /* The message that is being sent. */
    uint32_t agent_count;

    struct srv_job *jobs;  /* All, in order of creation. */
    struct srv_job *by_id; /* Those that have not ended. */
    struct srv_job **heap; /* By deadline. */
    uint32_t heap_count;
    uint32_t heap_cap;
    uint32_t live_jobs;
    uint32_t ended_count;
    uint32_t ended_slots;
    uint32_t live_rounds;
    int64_t not_before_ns; /* After a life that ended badly; 0: not so. */
    int64_t mark_renewed_ns;
    uv_timer_t job_timer;
    int64_t job_timer_at_ns; /* MU_NEVER: not armed. */
    struct probe *probes[SRV_PROBE_STEPS];
    struct probe *probes_asking;
    uint32_t probes_asking_count;
    uv_timer_t probe_timer;
    char *mark_path; /* NULL: no mark is kept. */
    bool marked;
    struct state *state;   /* NULL: jobs are not kept. */
    struct srv_pool *pool; /* pool.h */

    const struct srv_http_module *http; /* NULL until the first request. */
    struct srv_http *http_daemon;
    bool http_failed; /* The module is not there: said once, answered with 503. */
    struct watch http_watch;
    uv_timer_t http_timer;
    struct srv_status *status; /* The last one; NULL: none yet. */
    int64_t status_good_until_ns;
    uint64_t changes;          /* events_changed() */
    uint64_t status_changes;   /* So many are in `status`. */
    struct srv_events *events; /* NULL until somebody reads them. */
    struct srv_metrics metrics;

    struct mu_log_limit log_stranger;
    struct mu_log_limit log_full;
    struct mu_log_limit log_agent;
    struct mu_log_limit log_stale;
    struct mu_log_limit log_store;
    struct mu_log_limit log_rejected;
    struct mu_log_limit log_refused;
};

/* Serves a row of the table in routes.c. `name`: what stands for the "{...}" in its path. Always
 * fills `ret`. */
typedef void srv_serve_fn(struct srv *s,
                          const struct srv_http_request *q,
                          struct mu_str name,
                          struct srv_http_answer *ret);

/* What stands for NAME behind the '?'; NULL: nothing does. */
static inline const char *srv_query(const struct srv_http_request *q, const char *name)
{
    return q->query(q->connection, name);
}

/* --- server.c --- */
/* Carry out what was queued: output of agents and of the store, connections to be closed. Called at
 * the end of every callback. */
void srv_settle(struct srv *s);
void srv_handle_closed(struct srv *s);

/* --- watch.c --- */
int watch_init(struct srv *s, struct mu_err *err);
/* From here on the loop watches the set; until watch_stop(), which closes it. */
int watch_start(struct srv *s, struct mu_err *err);
void watch_stop(struct srv *s);
/* Returns 0 or a negative errno. */
int watch_add(struct srv *s, struct watch *w, int fd, uint32_t events, watch_ready_fn *ready);
void watch_change(struct srv *s, struct watch *w, uint32_t events);
/* As if nothing had been told yet. */
void watch_again(struct srv *s, struct watch *w);
/* Returns the descriptor, which is the caller's again. */
int watch_remove(struct srv *s, struct watch *w);
/* Free the memory that begins at `w`, which is not in the set any more, at the end of the turn:
 * events of this one may still point there. */
void watch_free_later(struct srv *s, struct watch *w);
void watch_free_dead(struct srv *s);

/* --- listen.c --- */
int srv_listen(struct srv *s, struct mu_err *err);
void srv_unlisten(struct srv *s);
/* The peer behind `fd` is no agent: be as patient as with a store's client. */
void srv_no_agent(const struct srv *s, int fd);

/* --- conn.c --- */
/* Takes the descriptor over; closes it when there is no memory. */
void conn_new(struct srv *s, int fd, const struct sockaddr *sa);
void conn_close(struct conn *c);
/* As conn_close(), but the descriptor stays open and is the caller's. */
int conn_release(struct conn *c);
void conn_move(struct conn *c, enum conn_list list);
/* The peer as text for the log: "10.0.0.2". `ret` has MU_ADDR_BYTES. */
char *conn_peer(const struct conn *c, char *ret);
/* What is known once a store client has spoken: legacy ones keep silent connections of their host
 * alive. */
void conn_count_legacy(struct conn *c);
void conn_on_sweep(uv_timer_t *timer);

/* --- client.c --- */
void client_open(struct conn *c);
void client_readable(struct conn *c);
void client_writable(struct conn *c);
/* Write what the store has for its clients, and close those that must be. */
void client_flush_ready(struct srv *s);

/* --- agent.c --- */
void agent_open(struct conn *c);
void agent_readable(struct conn *c);
void agent_writable(struct conn *c);
/* What it cannot take at once goes out with srv_settle(); a failure is news by then, not here.
 * m: NULL for the WELCOME alone that is due. */
void agent_send(struct agent *a, const struct ctl_msg *m);
/* A WELCOME is due: it goes out with the next message, be it the answer to its first beat, or after
 * a beat and a half. A join is then one packet instead of two, and sending it is most of what an
 * agent costs. */
void agent_welcome(struct agent *a);
/* A START is due: thousands are at once, so each is made only when its turn to be written comes,
 * and others' questions are answered in between. Until agent_starts_now() the job's round must stay
 * as it is. hold: and agent_release() allows it. */
void agent_start(struct agent *a, bool hold);
/* Make every START of the job that is due. */
void agent_starts_now(struct srv_job *sj);
/* The job is not its any more, or it is the job's no more. */
void agent_detach(struct agent *a);
/* As agent_send(), when agent_release() allows it. */
void agent_hold(struct agent *a, const struct ctl_msg *m);
void agent_release(struct agent *a);
/* Answer with one sentence, then close. */
void agent_refuse(struct agent *a, const char *text, bool retry);
void agent_close_after(struct agent *a);
void agent_drop(struct agent *a);
/* The connection is gone (NODE_DEAD or NODE_AWAY): close it and tell its job. */
void agent_lost(struct agent *a, enum job_event_type how);
void agent_free(struct agent *a);
/* Write what is queued for agents; close those that must be. */
void agent_flush_dirty(struct srv *s);

/* --- jobs.c --- */
void jobs_hello(struct srv *s, struct agent *a, const struct ctl_msg *hello);
/* An event of a node; `msg` may be NULL. The job may be gone afterwards. */
void jobs_event(struct srv *s,
                struct srv_job *sj,
                enum job_event_type type,
                uint32_t node,
                const struct ctl_msg *msg);
void jobs_on_timer(uv_timer_t *timer);
/* A job as a former life kept it; one that makes no sense is left out, with a line in the log.
 * Returns NULL then. Its nodes that are not here are looked for. */
struct srv_job *jobs_load(struct srv *s,
                          const struct job_row_kept *row,
                          const struct job_node_row *nodes,
                          size_t node_count);
void jobs_free_all(struct srv *s);

/* --- probe.c --- */
/* The node is away: look after a while whether its process still lives, and again, until it is back
 * or forgotten; NODE_DEAD when it does not. */
void probe_begin(struct srv *s, struct srv_job *sj, uint32_t node);
void probe_cancel(struct srv_job *sj, uint32_t node);
void probe_cancel_all(struct srv *s);
void probe_on_timer(uv_timer_t *timer);

/* --- mark.c --- */
/* Finds the mark of a former life. Returns true when there is one. */
bool mark_find(struct srv *s);
/* Make the mark agree with the number of live rounds. */
void mark_update(struct srv *s);

/* --- state.c --- */
/* Open what is kept in config.state_dir. Returns 0 where there is nothing to be opened, or where it
 * cannot be kept, which is said once; a negative errno with a sentence when this server must not
 * run: another one uses the folder, or its file is of a newer version. */
int state_open(struct srv *s, struct mu_err *err);
/* Bring the jobs back. Returns true when one of them had a live round. */
bool state_load(struct srv *s);
/* Note what a step changed. True: its messages must wait. */
bool state_note(struct srv *s, struct srv_job *sj, const struct job_out *out);
/* Do messages of this job wait? */
static inline bool state_holds(const struct srv_job *sj)
{
    return sj->kept.hold != 0;
}
/* The job is dropped from memory, and so from the file. */
void state_forget(struct srv *s, struct srv_job *sj);
/* The same of jobs of the pool: its row is new; the row `kept` has to go. */
struct pool_job;
void state_note_pool(struct srv *s, struct pool_job *j);
/* And of the hosts that are drained. */
void state_note_drains(struct srv *s);
/* Does what the pool tells its nodes wait until it is safe? */
bool state_holds_pool(const struct srv *s);
/* An answer over HTTP that tells of a step of the pool waits likewise. unkept: what is said instead
 * where it cannot be made safe, without the reason. Static. */
void state_hold_answer(const struct srv *s, const char *unkept, struct srv_http_answer *ret);
/* The disk takes nothing now: what is asked is not begun, and *ret says so. */
bool state_refuses(const struct srv *s, struct srv_http_answer *ret);
/* As struct srv_http_host has it. */
void state_unkept(void *srv, const struct srv_http_answer *a, struct srv_http_answer *ret);
void state_forget_pool(struct srv *s, int64_t kept);
/* At the end of a turn: begin to write what is due. */
void state_settle(struct srv *s);
/* Write what is left, and close. */
void state_close(struct srv *s);
void state_free(struct srv *s);
/* One sentence for status; NULL: nothing is to be kept. Valid until the next turn. */
const char *state_sentence(const struct srv *s);

/* --- incidents.c --- */
/* Take the job's last one over. */
void incidents_note(struct srv_job *sj);
int incidents_add(struct srv_job *sj, const struct job_incident *in);
void incidents_unpack(const struct srv_incident *packed, struct job_incident *ret);
void incidents_free(struct srv_job *sj);
/* GET /jobs/ID/incidents */
srv_serve_fn incidents_serve;

/* --- allow.c --- */
/* What a caller is about to do; the table says who may. */
enum srv_deed {
    SRV_JOINS,        /* An agent joins a job. */
    SRV_OFFERS,       /* A node offers itself for jobs (service mode). */
    SRV_STORES,       /* A client of the store, in PyTorch's protocol. */
    SRV_LIVES,        /* HTTP: is anybody there? */
    SRV_READS,        /* HTTP: looks at jobs and nodes. */
    SRV_READS_OUTPUT, /* HTTP: looks at what jobs write. */
    SRV_LOOKS,        /* HTTP: looks into the store. */
    SRV_CHANGES,      /* HTTP: starts, stops or changes something. */
    SRV_DEED_COUNT
};
struct srv_caller {
    bool local;  /* On the server's own machine: srv_is_local(). */
    bool proven; /* Has shown the token. */
};
static inline bool srv_has_token(const struct srv *s)
{
    return mu_token_is_set(&s->prover.token);
}
bool srv_is_local(const struct in6_addr *a);
/* NULL: it may. Else one sentence why not, and what to do. */
const char *srv_denies(const struct srv *s, enum srv_deed deed, struct srv_caller who);
/* The same of who is behind a control connection: SRV_JOINS, SRV_OFFERS. */
const char *srv_denies_agent(const struct agent *a, enum srv_deed deed);
/* A request over HTTP. 0: it may; else the answer's status, and the sentence in *ret_why. */
unsigned srv_forbids(struct srv *s,
                     const struct srv_http_request *q,
                     enum srv_deed deed,
                     const char **ret_why);

/* --- prove.c --- */
/* Messages KNOCK and PROOF. NULL: it was in order; else what the agent did wrong. */
const char *prove_knock(struct agent *a, const struct ctl_msg *m);
const char *prove_proof(struct agent *a, const struct ctl_msg *m);
void prove_free(struct agent *a);

/* --- keys.c --- */
/* GET /store?prefix=, and GET, PUT and DELETE of /store/KEY */
srv_serve_fn keys_serve_list;
srv_serve_fn keys_serve_get;
srv_serve_fn keys_serve_put;
srv_serve_fn keys_serve_delete;

/* --- drain.c --- */
/* POST /nodes/NODE/drain */
srv_serve_fn drain_serve;

/* --- answer.c --- */
#define SRV_JSON_TYPE "application/json; charset=utf-8"
/* text: stays for ever. allow: as in struct srv_http_answer. */
struct srv_http_answer answer_text(unsigned status, const char *allow, const char *text);
/* `text` stays until release(arg). */
struct srv_http_answer
answer_owned(unsigned status, struct mu_str text, void (*release)(void *arg), void *arg);
/* A body to be written into, for answer_body() or answer_free(); NULL without memory. */
struct mu_buf *answer_new(void);
void answer_free(void *body);
/* Takes the body over; 500 and a sentence where it is NULL or not whole. */
struct srv_http_answer answer_body(unsigned status, struct mu_buf *b);
/* {"error": sentence} */
struct srv_http_answer answer_refusal(unsigned status, const char *sentence);
/* What stands between the two in the path; false where it is none of these, or nothing does. */
bool path_between(const char *path, const char *head, const char *tail, struct mu_str *ret);

/* --- http.c --- */
/* Hand a connection whose first bytes are HTTP to the module. */
void http_take(struct conn *c);
void http_stop(struct srv *s);
/* Write to a stream that a handler has begun (struct srv_http_writer); as the module's own
 * functions, and it goes out with the loop's next turn. Not to be called once `closed` was. */
int http_stream_write(struct srv *s, struct srv_http_stream *st, const void *p, size_t n);
void http_stream_end(struct srv *s, struct srv_http_stream *st);
/* Answers that wait for rows up to this lot go out; kept: these are safe. */
void http_let_go(struct srv *s, uint64_t safe, bool kept);
size_t http_stream_unsent(const struct srv *s, const struct srv_http_stream *st);
/* What was written goes out, as far as its readers take it at once. */
void http_flush(struct srv *s);

/* --- routes.c --- */
/* The i-th row, as text: "`GET /status`". False: there are no more. */
bool routes_text(size_t i, char *ret, size_t cap, enum srv_deed *ret_deed);
/* Answer a request; `arg` is the server. */
void routes_respond(void *arg, const struct srv_http_request *asked, struct srv_http_answer *ret);

/* --- status.c --- */
/* The answer to GET /status; see SRV_STATUS_REST. *ret stays as it is until status_release(). NULL
 * without memory. */
struct srv_status *status_take(struct srv *s, struct mu_str *ret);
/* GET /status */
srv_serve_fn status_serve;
void status_release(void *status);
/* A cause as an object; null for MU_CAUSE_NONE. */
void status_put_cause(struct mu_json *w, const struct mu_cause *c);
/* Memory of this process in RAM; 0: cannot be known. */
int64_t status_resident_bytes(void);
extern const char *const status_store_ops[]; /* By command; STORE_COMMAND_COUNT of them. */
/* "BEAT": the message that this event comes from, where one can be of another round; or NULL. */
const char *status_stale_name(enum job_event_type event);

/* --- events.c --- */
/* Something that status shows is not as it was: readers of /events hear it soon, 50 ms after the
 * last change that they heard at the earliest. Costs nothing where nobody reads. */
void events_changed(struct srv *s);
/* Only ages and steps have changed, as they do all the time: told once a second. */
void events_aged(struct srv *s);
/* GET /events */
srv_serve_fn events_serve;
uint32_t events_reader_count(const struct srv *s);
/* End all of them; before http_stop(). */
void events_stop(struct srv *s);
void events_free(struct srv *s);

/* --- metrics_count.c --- */
void metrics_begin_job(const struct srv *s, struct srv_job *sj);
/* A step of a job was made. */
void metrics_note(struct srv *s,
                  struct srv_job *sj,
                  const struct job_event *ev,
                  const struct job_out *out);
/* path: as the table of routes has it; stays for ever. */
void metrics_request(struct srv *s, const char *path, unsigned status);
unsigned metrics_code(size_t i); /* 0: all others. */
int64_t metrics_productive_ns(const struct srv_job *sj);
int64_t metrics_wall_ns(const struct srv *s, const struct srv_job *sj);

/* --- metrics_process.c: of this process; -1 and 0: cannot be known --- */
int64_t metrics_open_fds(void);
int64_t metrics_max_fds(void);
double metrics_cpu_s(void);
double metrics_start_s(void);

/* --- metrics.c --- */
/* GET /metrics */
srv_serve_fn metrics_serve;

/* --- openapi.c --- */
/* GET /openapi.json: docs/openapi.json, as it was when this was built. */
srv_serve_fn openapi_serve;

#endif
