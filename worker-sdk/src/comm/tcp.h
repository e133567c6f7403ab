/* The tcp backend, inside. tcp.c: tickets, the thread, waiting. tcp_run.c: operations, and
 * tcp_step.c and tcp_ring.c, the two ways of doing them. tcp_shm.c: memory that two ranks share.
 * tcp_fail.c: causes, and how they spread. tcp_meet.c: finding each other through the store.
 * tcp_mesh.c: connecting.
 *
 * One lock guards all of a communicator. Whoever waits for a ticket drives the sockets itself, so
 * that a small operation costs no switch of threads; while nobody does, the communicator's thread
 * does (see "who drives" in tcp.c). */
#ifndef MUSTER_SDK_TCP_H
#define MUSTER_SDK_TCP_H

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "worker-sdk/src/comm/comm.h"
#include "worker-sdk/src/comm/tcp_link.h"
#include "worker-sdk/src/comm/tcp_plan.h"
#include "worker-sdk/src/comm/tcp_shm.h"

#define TCP_RANKS_MAX 65536
#define TCP_HOST_BYTES 64

/* Sockets between this rank and the others, connected and non-blocking, and who they are. */
struct tcp_fabric {
    uint32_t rank;
    uint32_t size;
    int *mesh;          /* One for each rank; -1 at this rank's place. */
    int ring_next;      /* Bulk data to the next rank; */
    int ring_prev;      /* and from the previous one. */
    struct shm *memory; /* One for each rank: where both share some, it carries all data. */
    char (*hosts)[TCP_HOST_BYTES];
};
void tcp_fabric_fini(struct tcp_fabric *f);

/* A communicator over a fabric, which is moved into it (on failure too: then it is closed). */
struct tcp;
int tcp_new(struct tcp_fabric *f, int64_t timeout_ns, struct tcp **ret, struct muster_error *err);

/* --- shared between the tcp_*.c --- */

enum tcp_thread_at {
    TCP_THREAD_RUNS,
    TCP_THREAD_POLLS, /* Without the lock, as in the states below; wake_fd ends each. */
    TCP_THREAD_NAPS,  /* For a moment: somebody drove a moment ago. */
    TCP_THREAD_SLEEPS /* Until poked: somebody has been driving for a while. */
};

/* The operation at the head of the queue. */
struct tcp_run {
    bool begun;
    bool ring;
    enum muster_op op; /* TCP_MEAN_OF_TWO too. */
    uint8_t *base;
    struct plan_steps steps; /* Over the mesh. */
    struct plan_ring plan;   /* Round the ring. */
    uint32_t send_step, recv_step;
    size_t send_offset, recv_offset;
    size_t send_head, recv_head; /* Bytes of the head already moved. */
    struct link_head head;       /* What this rank announces. */
    struct link_head peer_head;
    size_t carry; /* Bytes of a torn element at the front of the scratch. */
    bool blocked_in, blocked_out;
};

struct tcp {
    struct tcp_fabric f;
    int64_t timeout_ns;
    struct link *links; /* One for each rank. */

    pthread_mutex_t lock;
    atomic_uint lock_wanted; /* Others than the driver want the lock: it lets them in. */
    pthread_cond_t changed;  /* A ticket is done, or the driver's place is free. */
    pthread_t thread;
    bool thread_there;
    enum tcp_thread_at thread_at;
    int wake_fd; /* Ends whatever wait the thread is in. */
    int fail_fd; /* Readable for ever once failed: ends everybody's poll. */
    bool closing;
    /* Written with the lock held; the thread looks at them without it, so as not to disturb. */
    atomic_bool driven;        /* A caller drives. */
    atomic_ullong drive_count; /* How often one began or ended to. */
    struct pollfd *polls[2];   /* Of the caller that drives, and of the thread: size + 3 each. */
    uint32_t waiters;
    bool shares;    /* Memory with at least one rank, */
    bool lazy;      /* with all, and no CPU is spare: see "who drives" in tcp.c; */
    bool crowded;   /* with more than there are CPUs for. */
    bool nudged;    /* Since a caller drove last, a peer slept for our sake. */
    uint32_t looks; /* At the memory, before a driver yields. */
    bool is_asleep; /* In its memory it says that somebody here sleeps, or is lazy. */

    struct comm_work *queue; /* A ring of queue_cap places. */
    size_t queue_cap, queue_head, queue_count;
    uint64_t submitted; /* Tickets; done <= submitted. */
    uint64_t done;
    struct tcp_run run;
    uint8_t *scratch;

    bool failed;
    struct muster_cause cause;
    int64_t linger_ns;   /* After a failure: until when last words are pushed out. */
    int64_t verdict_ns;  /* A bulk socket broke: until when the peer's own words are awaited. */
    uint32_t verdict_of; /* That peer. */
    struct muster_cause verdict;
    uint32_t asked; /* Number of the last question. */
    int64_t asked_ns;
    uint64_t asked_ticket;
};

#define TCP_SCRATCH_BYTES ((size_t)128 << 10)

/* tcp_run.c. Lock held. Does what can be done without waiting, at most some 100 KiB of it. */
enum tcp_run_result {
    TCP_RUN_DONE,    /* The head of the queue is done. */
    TCP_RUN_BLOCKED, /* Waits for a peer. */
    TCP_RUN_MORE     /* Would go on: look at the others first. */
};
enum tcp_run_result tcp_run(struct tcp *c, const struct comm_work *w);
/* A peer's message for the operation that runs, where none belongs: it asked for another one. */
void tcp_run_check(struct tcp *c, uint32_t peer);
/* Which rank's data it waits for; else which rank's room; -1: none. */
int64_t tcp_run_awaits(const struct tcp *c);
int64_t tcp_run_awaits_data(const struct tcp *c);
int64_t tcp_run_awaits_room(const struct tcp *c);
bool tcp_is_small(const struct tcp *c, const struct comm_work *w);

/* tcp_run.c, for the two ways. */
/* Bytes moved before the lock is offered to others. */
#define TCP_BURST_BYTES ((size_t)512 << 10)
bool tcp_is_same(struct tcp *c, uint32_t peer, const struct link_head *theirs);
/* The memory that is shared with a rank; NULL: none. */
struct shm *tcp_memory(const struct tcp *c, uint32_t peer);
/* Put the head, where it is not out yet, and what there is room for of n bytes into it; moves
 * send_head and send_offset. `is_end`: of a message or chunk. Bytes moved. */
size_t tcp_put(struct tcp *c, uint32_t peer, struct shm *s, const void *p, size_t n, bool is_end);
/* What lies there, after the head, which is taken off and checked first; NULL: nothing yet. */
const void *tcp_look(struct tcp *c, uint32_t peer, struct shm *s, size_t *ret_n);
/* n bytes of it were read; moves recv_offset. */
void tcp_take(struct tcp *c, uint32_t peer, struct shm *s, size_t n, bool is_end);
void tcp_wake(struct tcp *c, uint32_t peer);

/* tcp_step.c, tcp_ring.c: as tcp_run(). */
enum tcp_run_result tcp_run_steps(struct tcp *c, const struct comm_work *w);
enum tcp_run_result tcp_run_ring(struct tcp *c, const struct comm_work *w);

/* tcp_fail.c. Lock held. */
void tcp_fail(struct tcp *c, const struct muster_cause *cause);
void tcp_fail_peer(
    struct tcp *c, int64_t peer, int code, enum muster_phase phase, const char *fmt, ...)
    MU_PRINTF(5, 6);
/* A bulk socket to or from `peer` ended: fails once the peer's link says why, or a moment later. */
void tcp_bulk_broke(struct tcp *c, uint32_t peer, int code, enum muster_phase phase);
/* Read the link of a peer and act on all but DATA. `is_end`: it has sent its last byte. */
void tcp_hear(struct tcp *c, uint32_t peer, bool is_end);
/* Times of tcp_fail.c have come. */
void tcp_fail_due(struct tcp *c, int64_t now_ns);
/* A wait for `ticket` nears its end: ask everybody how far they are. */
void tcp_ask(struct tcp *c, uint64_t ticket, int64_t now_ns);
bool tcp_all_told(const struct tcp *c);
/* It has ended: fail with the rank that is late. */
void tcp_fail_late(struct tcp *c, uint64_t ticket, int64_t waited_ns);
/* A peer that left takes part in nothing after its last ticket. */
void tcp_check_bye(struct tcp *c, uint32_t peer);
/* Say goodbye; with operations in flight, abort. */
void tcp_say_bye(struct tcp *c);
const char *tcp_where(const struct tcp *c, uint32_t rank, char *ret, size_t cap);

const char *tcp_kind_name(enum comm_kind k);

#endif
