/* The simulated cluster; see world.h.
 *
 * Words: `host` is a place where one agent after another may live; `agent` is one agent process;
 * `link` is one connection of it. */
#include "tests/sim/world.h"

#include <errno.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "agent/life/life.h"
#include "base/parse.h"
#include "rendezvous/job/job.h"

#define MS INT64_C(1000000)
#define SEC INT64_C(1000000000)
#define HOSTS_MAX 8
#define JOBS_MAX 2
#define NPROC_MAX 3
#define JOB_LIVES_MAX 8       /* Jobs of one run id, one after another. */
#define FAULTS_END (25 * SEC) /* After it the world heals and everything must come to an end. */
#define HORIZON (400 * SEC)
#define STANDING_MAX 100000 /* A timer that is due again at once, for ever. */
#define LEASE (3 * SEC)
#define FENCE (30 * SEC)
#define USER_TIMEOUT (2500 * MS) /* When TCP gives a silent peer up. */

enum event_kind {
    EV_TO_AGENT,  /* a message arrives at an agent */
    EV_TO_SERVER, /* a message arrives at the server */
    EV_AGENT_TIMER,
    EV_JOB_TIMER,
    EV_CONNECT,     /* an attempt comes to its end */
    EV_CHECKED,     /* the check of a host's health ends; arg: its verdict */
    EV_REACH,       /* a try to reach the lead comes to its end; arg: the lead's host */
    EV_AGENT_EOF,   /* the agent notices that its link closed */
    EV_SERVER_EOF,  /* the server notices; arg: 1 reset, 0 closed by a dead or departed process */
    EV_WORKER,      /* a worker ends by itself */
    EV_WORKER_HIT,  /* a worker fails because another rank did; blamed: which */
    EV_WORKER_SEEN, /* the agent notices that a worker has failed by itself */
    EV_WORKER_TOLD, /* a worker ends because of a signal */
    EV_WORKER_HALT, /* a worker stops after the step that it was told */
    EV_GONE,        /* nothing of the round is left on the host */
    EV_FAULT,
    EV_DRAIN, /* a node is asked to leave */
    EV_BOOT,  /* a host's next agent starts */
    EV_SERVER_UP
};

struct event {
    int64_t at;
    uint64_t seq; /* Ties are decided by order of making. */
    enum event_kind kind;
    uint32_t host;
    uint32_t life_no; /* Agent process, link or worker generation it was meant for; a stale one is
                         dropped. */
    uint32_t arg;
    int32_t blamed; /* EV_WORKER_HIT, EV_WORKER_SEEN; -1: nobody */
    struct ctl_msg *msg;
};

struct worker {
    bool alive;
    bool stubborn; /* Ignores SIGTERM. */
    bool asked;    /* Was signalled while it was well. */
    bool ending;   /* Has failed by itself; the agent does not know yet. */
    uint32_t round;
    uint32_t no; /* Generation, so that stale events are known. */
    int64_t began;
    int64_t pace;    /* From one step to the next; 0: it reports none. */
    int64_t fell_at; /* When it failed by itself. */
};

struct agent {
    bool alive;
    bool frozen;
    int64_t frozen_until;
    uint32_t life_no;
    uint32_t ended_with; /* The job, by its number, that ended while this agent was in it. */
    struct life life;
    uint32_t nproc;
    struct worker workers[NPROC_MAX];
    uint32_t running;      /* Living workers. */
    uint32_t worker_round; /* Of the workers that ran last. */
    uint32_t gone_no;
    bool gone_pending;
    int64_t timer_at;
    uint32_t timer_no;
    /* the link */
    bool linked; /* As the agent sees it. */
    uint32_t link_no;
    uint32_t check_no; /* The present check of its health. */
    uint32_t reach_no; /* The present try to reach the lead. */
};

/* The server's end of a connection. It may outlive the agent, when its host is cut off. */
struct end {
    bool open;
    uint32_t link_no;
    uint32_t host;
    uint32_t slot;     /* JOB_NO_NODE: no hello yet. */
    uint32_t job_life; /* Which job object the slot belongs to. */
};

/* Order within a connection. */
struct order {
    int64_t to_agent;
    int64_t to_server;
};
#define ENDS_MAX 64
#define LINKS_MAX 4096

struct host {
    uint32_t no;
    uint32_t job; /* Which job its agents are for. */
    bool cut;     /* Partitioned from the server. */
    int64_t cut_until;
    bool unsafe; /* Its agent was frozen within a fence time: a frozen process cannot fence itself.
                  */
    int64_t unsafe_until;
    bool boots_again;
    struct agent a;
};

/* Who has reached the lead of a round. */
struct reached {
    uint32_t round;
    uint32_t hosts; /* A bit each. */
};
#define ROUNDS_REMEMBERED 64
/* What a server that keeps its state has on its disk of a job, and what it still has to write. */
#define SLOTS_MAX 64
#define HELLO_BYTES 2048
struct disk {
    bool kept;
    struct job_row_kept row;
    uint32_t node_count;
    struct job_node_row nodes[SLOTS_MAX];
    char hellos[SLOTS_MAX][HELLO_BYTES];
    struct job_incident incident;
    bool incident_due;
    bool row_due;
    bool round_due;
    bool node_due[SLOTS_MAX]; /* By slot. */
};

/* A job's budget, as the world counts it. */
#define CHARGES_MAX 4096
struct budget {
    int64_t window;
    int64_t give_back;
    uint32_t give_back_steps;
    bool same_failure_restart;
    int32_t doomed_rank; /* It fails after this step, in every round; -1: none does. */
    int32_t doomed_step;
    int64_t charges[CHARGES_MAX]; /* When restarts were spent that count as long as the window. */
    uint32_t charge_count;
    struct mu_cause last;   /* Of the last incident. */
    struct mu_cause failed; /* Of the last round that was restarted after. */
    uint32_t ended_round;   /* The last one that an incident was about. */
};

struct sim_job {
    struct budget budget;
    bool exists;
    struct disk disk;
    uint32_t anew;
    bool fresh;         /* It began anew since the last incident: a budget of its own. */
    bool charged;       /* The last incident spent a restart. */
    uint32_t incidents; /* Seen of this job, in all lives of its server. */
    uint32_t restarts;  /* Decided. */
    uint32_t number;    /* Of jobs with this id. */
    bool heard_of;      /* Some were decided by somebody of whom its agents told. */
    uint32_t life;      /* Which object. */
    struct job job;
    int64_t timer_at;
    uint32_t timer_no;
    uint32_t last_round;
    struct mu_cause stop_cause;
    bool stop_cause_set;
    struct told {
        struct mu_cause cause;
        int32_t first; /* Ranks of that node: first .. first+nproc-1. */
        int32_t nproc;
    } told[2 * HOSTS_MAX * NPROC_MAX]; /* Failures of this round that it was told of. */
    uint32_t told_count;
    uint32_t halt_round; /* The last round in which workers were told to stop after a step, */
    int64_t halt_step;   /* and that step. */
    uint32_t fell[HOSTS_MAX * NPROC_MAX]; /* Of a rank: the round in which it failed first. */
    struct reached reached[ROUNDS_REMEMBERED];
};

struct world {
    const struct world_options *o;
    struct world_result *r;
    uint64_t random;
    int64_t now;
    uint64_t seq;
    struct event *heap;
    size_t heap_n;
    size_t heap_cap;
    jmp_buf broken;

    uint32_t host_count;
    struct host hosts[HOSTS_MAX];
    uint32_t job_count;
    struct sim_job jobs[JOBS_MAX];
    bool server_up;
    bool keeps; /* The server keeps its state. */
    uint32_t server_no;
    int64_t not_before;
    struct end ends[ENDS_MAX];
    struct order order[LINKS_MAX];
    uint32_t links;
    uint32_t agent_lives;
    uint32_t worker_no;
    uint32_t nodes_min[JOBS_MAX];
    uint32_t nodes_max[JOBS_MAX];
    uint32_t max_restarts[JOBS_MAX];
    bool on_join[JOBS_MAX];
    uint64_t other_random; /* For what only some worlds have: others stay as they were. */
    uint32_t quarantine;   /* Failures; 0: off. */
    uint32_t checking;     /* A bit for each host whose agents check its health. */
    uint32_t walled;       /* A bit for each host whose worker store a firewall hides. */
    int64_t quick;         /* Base delay of the network in this world. */
    uint32_t fault_rate;
    uint64_t drain_random;        /* Chance of its own: worlds without drains stay as they were. */
    bool drains;                  /* Nodes are asked to leave. */
    bool gentle;                  /* And nothing else happens. */
    bool deaf;                    /* Workers take no notice of the step. */
    int64_t step_takes[JOBS_MAX]; /* All ranks are at the same step; 0: workers tell of none. */
    int64_t last_server_up;
    uint32_t ended[2];
    uint32_t standing; /* Events since time last went on. */
};

/* ------------------------------------------------------------------ chance, story, failure */

static uint64_t rnd(struct world *w)
{
    w->random ^= w->random >> 12;
    w->random ^= w->random << 25;
    w->random ^= w->random >> 27;
    return w->random * UINT64_C(2685821657736338717);
}

static uint32_t below(struct world *w, uint32_t n)
{
    return (uint32_t)((rnd(w) >> 33) % n);
}

/* As below(), of the other source. */
static uint32_t other_below(struct world *w, uint32_t n)
{
    uint64_t kept = w->random;
    w->random = w->other_random;
    uint32_t v = below(w, n);
    w->other_random = w->random;
    w->random = kept;
    return v;
}

static bool chance(struct world *w, uint32_t percent)
{
    return below(w, 100) < percent;
}

static int64_t between(struct world *w, int64_t a, int64_t b)
{
    return a + (int64_t)(rnd(w) >> 1) % (b - a + 1);
}

/* Below n, by the chance that drains have. */
static uint32_t drain_below(struct world *w, uint32_t n)
{
    w->drain_random ^= w->drain_random >> 12;
    w->drain_random ^= w->drain_random << 25;
    w->drain_random ^= w->drain_random >> 27;
    return (uint32_t)((w->drain_random * UINT64_C(2685821657736338717) >> 33) % n);
}

static void tell(struct world *w, const char *fmt, ...) MU_PRINTF(2, 3);
static void tell(struct world *w, const char *fmt, ...)
{
    char line[512];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    size_t len = n < 0 ? 0 : (size_t)n < sizeof line ? (size_t)n : sizeof line - 1;
    uint64_t h = w->r->hash ^ (uint64_t)w->now;
    for (size_t i = 0; i < len; i++)
        h = (h ^ (unsigned char)line[i]) * UINT64_C(1099511628211);
    w->r->hash = h;
    if (w->o->trace != NULL)
        fprintf(w->o->trace, "%11.6f %s\n", (double)w->now / (double)SEC, line);
}

static void broken(struct world *w, const char *fmt, ...) MU_PRINTF(2, 3);
static void broken(struct world *w, const char *fmt, ...)
{
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    (void)snprintf(w->r->what, sizeof w->r->what, "at %.6f s: %s", (double)w->now / (double)SEC,
                   text);
    w->r->ok = false;
    longjmp(w->broken, 1);
}

/* ------------------------------------------------------------------ the heap of events */

static bool earlier(const struct event *a, const struct event *b)
{
    return a->at != b->at ? a->at < b->at : a->seq < b->seq;
}

static void push(struct world *w, struct event e)
{
    if (w->heap_n == w->heap_cap) {
        w->heap_cap = w->heap_cap == 0 ? 256 : w->heap_cap * 2;
        w->heap = realloc(w->heap, w->heap_cap * sizeof *w->heap);
        MU_ASSERT(w->heap != NULL);
    }
    e.seq = w->seq++;
    size_t i = w->heap_n++;
    while (i > 0 && earlier(&e, &w->heap[(i - 1) / 2])) {
        w->heap[i] = w->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    w->heap[i] = e;
}

static struct event pop(struct world *w)
{
    struct event top = w->heap[0];
    struct event e = w->heap[--w->heap_n];
    size_t i = 0;
    for (;;) {
        size_t c = 2 * i + 1;
        if (c >= w->heap_n)
            break;
        if (c + 1 < w->heap_n && earlier(&w->heap[c + 1], &w->heap[c]))
            c++;
        if (!earlier(&w->heap[c], &e))
            break;
        w->heap[i] = w->heap[c];
        i = c;
    }
    w->heap[i] = e;
    return top;
}

/* ------------------------------------------------------------------ the network */

static int64_t delay(struct world *w)
{
    int64_t d = between(w, w->quick / 2, w->quick * 2);
    return w->now < FAULTS_END && chance(w, 3) ? d * 40 : d;
}

/* When something sent now arrives: in order within a link, held while the host is cut off. */
static int64_t arrival(struct world *w, const struct host *h, int64_t *last)
{
    int64_t at = w->now + delay(w);
    if (h->cut && at < h->cut_until)
        at = h->cut_until + delay(w);
    if (at <= *last)
        at = *last + 1;
    *last = at;
    return at;
}

static struct end *end_of(struct world *w, uint32_t link_no)
{
    for (uint32_t i = 0; i < ENDS_MAX; i++)
        if (w->ends[i].open && w->ends[i].link_no == link_no)
            return &w->ends[i];
    return NULL;
}

static void open_end(struct world *w, uint32_t link_no, uint32_t host)
{
    for (uint32_t i = 0; i < ENDS_MAX; i++) {
        if (!w->ends[i].open) {
            w->ends[i] =
                (struct end){.open = true, .link_no = link_no, .host = host, .slot = JOB_NO_NODE};
            return;
        }
    }
    MU_ASSERT(w->links == 0); /* No: more ends than the world has room for. */
}

static void send_message(
    struct world *w, uint32_t host, uint32_t link_no, bool to_agent, const struct ctl_msg *m)
{
    struct order *o = &w->order[link_no];
    struct with_steps {
        struct ctl_msg msg;
        int32_t steps[NPROC_MAX];
    } *held = malloc(sizeof *held);
    MU_ASSERT(held != NULL);
    struct ctl_msg *copy = &held->msg; /* The first member: whoever frees it frees both. */
    *copy = *m;
    if (m->type == CTL_BEAT && m->u.beat.steps.n > 0) {
        MU_ASSERT(m->u.beat.steps.n <= NPROC_MAX);
        memcpy(held->steps, m->u.beat.steps.v, m->u.beat.steps.n * sizeof held->steps[0]);
        copy->u.beat.steps.v = held->steps;
    }
    /* Lists are borrowed from the sender: the story does not need them. */
    if (m->type == CTL_STARTED)
        copy->u.started.pids = (struct ctl_ints){0};
    if (m->type == CTL_STOPPED)
        copy->u.stopped.exits = (struct ctl_ints){0};
    push(w,
         (struct event){.at = arrival(w, &w->hosts[host], to_agent ? &o->to_agent : &o->to_server),
                        .kind = to_agent ? EV_TO_AGENT : EV_TO_SERVER,
                        .host = host,
                        .life_no = link_no,
                        .msg = copy});
}

/* The server closes a connection, or its host does: the agent reads the end after what was sent. */
static void close_to_agent(struct world *w, uint32_t host, uint32_t link_no)
{
    push(w, (struct event){.at = arrival(w, &w->hosts[host], &w->order[link_no].to_agent),
                           .kind = EV_AGENT_EOF,
                           .host = host,
                           .life_no = link_no});
}

/* The agent's side is over. dead: its process ended, so the server reads an orderly end; else a
 * reset. */
static void close_to_server(struct world *w, struct host *h, bool dead)
{
    push(w, (struct event){.at = arrival(w, h, &w->order[h->a.link_no].to_server),
                           .kind = EV_SERVER_EOF,
                           .host = h->no,
                           .life_no = h->a.link_no,
                           .arg = dead ? 0 : 1});
}

/* ------------------------------------------------------------------ invariants */

/* Then a number was given to two rounds. */
static bool shares_ranks(const struct host *h, const struct host *o)
{
    const struct ctl_start *a = &h->a.life.start;
    const struct ctl_start *b = &o->a.life.start;
    return h != o && a->round == b->round && a->rank_base < b->rank_base + (int64_t)o->a.nproc &&
           b->rank_base < a->rank_base + (int64_t)h->a.nproc;
}

/* Workers of two rounds of one job at the same time, anywhere: only a frozen agent, or a server
 * that was restarted meanwhile, excuses it. */
static void check_start(struct world *w, const struct host *h, uint32_t round)
{
    for (uint32_t i = 0; i < w->host_count; i++) {
        const struct host *o = &w->hosts[i];
        if (o->job != h->job)
            continue;
        for (uint32_t k = 0; k < o->a.nproc; k++) {
            const struct worker *x = &o->a.workers[k];
            if (!x->alive || (x->round == round && !shares_ranks(h, o)))
                continue;
            if (o == h)
                broken(w, "round %u starts on host %u while a worker of round %u runs there", round,
                       h->no, x->round);
            bool restarted = !w->keeps && w->r->restarts > 0 && w->now >= w->not_before &&
                             w->now < w->last_server_up + 2 * FENCE;
            bool excused = restarted || (o->unsafe && w->now < o->unsafe_until);
            if (!excused)
                broken(w, "round %u starts on host %u while round %u runs on host %u", round, h->no,
                       x->round, o->no);
        }
    }
}

static void note_reached(struct world *w, const struct host *h)
{
    uint32_t round = (uint32_t)h->a.life.start.round;
    struct reached *e = &w->jobs[h->job].reached[round % ROUNDS_REMEMBERED];
    if (e->round != round)
        *e = (struct reached){.round = round};
    e->hosts |= 1U << h->no;
}

/* Where nodes look whether they reach the lead, all do before any worker starts. */
static void check_reached(struct world *w, const struct host *h)
{
    const struct ctl_start *s = &h->a.life.start;
    const struct reached *e = &w->jobs[h->job].reached[s->round % ROUNDS_REMEMBERED];
    uint32_t count = 0;
    for (uint32_t i = 0; i < HOSTS_MAX; i++)
        count += e->round == s->round && (e->hosts & 1U << i) != 0;
    if (s->reach_ms > 0 && count < s->node_count)
        broken(w,
               "round %" PRId64 " starts on host %u while %u of %" PRId64 " nodes reach its lead",
               s->round, h->no, count, s->node_count);
}

static void check_round(struct world *w, const struct job *j)
{
    bool seen[HOSTS_MAX * NPROC_MAX] = {false};
    uint32_t world = 0;
    if (j->round_nodes < j->nodes_min || j->round_nodes > j->nodes_max)
        broken(w, "round %u has %u nodes, %u to %u are allowed", j->round, j->round_nodes,
               j->nodes_min, j->nodes_max);
    for (uint32_t r = 0; r < j->round_nodes; r++) {
        const struct job_node *n = &j->nodes[j->members[r]];
        if (n->node_rank != (int32_t)r)
            broken(w, "member %u of round %u holds node rank %d", r, j->round, n->node_rank);
        for (int64_t k = 0; k < n->hello.nproc; k++) {
            uint32_t rank = (uint32_t)n->rank_base + (uint32_t)k;
            if (rank >= MU_COUNT(seen) || seen[rank])
                broken(w, "rank %u of round %u is held twice", rank, j->round);
            seen[rank] = true;
            world++;
        }
    }
    for (uint32_t k = 0; k < world; k++)
        if (!seen[k])
            broken(w, "rank %u of round %u is held by nobody", k, j->round);
    if (world != j->world)
        broken(w, "world of round %u is %u, not %u", j->round, j->world, world);
}

/* Members that stay keep their rank, unless the round shrank below it. */
static void
check_kept_ranks(struct world *w, const struct job *j, const int32_t *before, uint32_t cap)
{
    for (uint32_t i = 0; i < cap && i < j->node_cap; i++) {
        const struct job_node *n = &j->nodes[i];
        if (before[i] < 0 || !n->used || !n->in_round || n->hello.node_rank >= 0)
            continue;
        bool claimed = false;
        for (uint32_t r = 0; r < j->round_nodes; r++)
            claimed = claimed || j->nodes[j->members[r]].hello.node_rank == before[i];
        if ((uint32_t)before[i] < j->round_nodes && !claimed && n->node_rank != before[i])
            broken(w, "slot %u had node rank %d and has %d in round %u", i, before[i], n->node_rank,
                   j->round);
    }
}

static const struct told *find_told(const struct sim_job *s, int32_t rank)
{
    for (uint32_t i = 0; i < s->told_count; i++)
        if (s->told[i].cause.rank == rank)
            return &s->told[i];
    return NULL;
}

/* Names lead in a circle, as far as they were told: a node tells only what it noticed first, which
 * may be a consequence of what another of its ranks brought about. Then there is no last one. */
static bool is_circle(const struct sim_job *s, int32_t rank)
{
    for (uint32_t n = 0; n <= s->told_count; n++) {
        const struct told *t = find_told(s, rank);
        for (uint32_t i = 0; i < s->told_count && t == NULL; i++)
            if (rank >= s->told[i].first && rank < s->told[i].first + s->told[i].nproc)
                t = &s->told[i];
        if (t == NULL || t->cause.blame < 0)
            return false;
        rank = t->cause.blame;
    }
    return true;
}

static bool is_of_worker(const struct mu_cause *c)
{
    return c->kind == MU_CAUSE_WORKER_EXIT || c->kind == MU_CAUSE_WORKER_SIGNAL;
}

/* Another cause than before, in the same round: only where the former names a rank, or ended with a
 * status and the new one was killed at about the same time. */
static void check_new_cause(struct world *w, const struct sim_job *s)
{
    const struct mu_cause *old = &s->stop_cause;
    const struct mu_cause *new = &s->job.cause;
    bool is_kill = old->kind == MU_CAUSE_WORKER_EXIT &&
                   new->kind == MU_CAUSE_WORKER_SIGNAL &&new->signo == 9 && new->blame < 0 &&
                   w->now - s->job.since_ns <= MU_SETTLE_NS;
    if (!is_of_worker(old) || (old->blame < 0 && !is_kill) ||
        (is_of_worker(new) && find_told(s, new->rank) == NULL))
        broken(w, "the first cause of round %u was overwritten", s->job.round);
}

/* The cause at a round's end names nobody whose own failure is known; and it is known, if it was,
 * where nothing disturbed and every node had its say. */
static void check_last_cause(struct world *w, const struct sim_job *s, bool all_spoke)
{
    const struct mu_cause *c = &s->job.cause;
    if (!s->job.has_cause || c->round != s->job.round || !is_of_worker(c) || c->blame < 0)
        return;
    if (find_told(s, c->blame) != NULL && !is_circle(s, c->rank))
        broken(w, "the cause of round %u is rank %d, which names rank %d, whose failure was told",
               c->round, c->rank, c->blame);
    if (all_spoke && s->fell[c->blame] == c->round)
        broken(w,
               "the cause of round %u is rank %d, which names rank %d, whose failure was not told",
               c->round, c->rank, c->blame);
}

static void check_job(struct world *w, struct sim_job *s)
{
    const struct job *j = &s->job;
    if (w->gentle && j->restarts > 0)
        broken(w, "a node's leaving in order has cost a restart");
    if (job_spent(j, w->now) > j->max_restarts)
        broken(w, "%u restarts of %u", job_spent(j, w->now), j->max_restarts);
    if (j->was_charged && j->state == JOB_STOPPING &&
        (!j->has_cause || !mu_cause_costs_restart(j->cause.kind)))
        broken(w, "a restart is spent on a cause of kind %s", mu_cause_kind_text(j->cause.kind));
    if (j->rejected_count != 0)
        broken(w, "the job's table has no row for an event in state %s", job_state_name(j->state));
    if (j->state == JOB_STOPPING) {
        if (s->stop_cause_set && memcmp(&s->stop_cause, &j->cause, sizeof j->cause) != 0)
            check_new_cause(w, s);
        s->stop_cause = j->cause;
        s->stop_cause_set = true;
    } else {
        s->stop_cause_set = false;
    }
    if (j->state == JOB_FAILED && (!j->has_cause || j->cause.kind == MU_CAUSE_NONE))
        broken(w, "the job failed and names no cause");
    uint32_t waiting = 0;
    uint32_t here = 0;
    uint32_t aside = 0;
    for (uint32_t i = 0; i < j->node_cap; i++) {
        const struct job_node *n = &j->nodes[i];
        waiting += n->used && n->connected && !n->late && n->state == JOB_NODE_WAITING &&
                   n->health == JOB_HEALTH_OK && !n->aside && n->drain == NULL;
        aside += n->used && n->aside;
        here += n->used && n->state != JOB_NODE_LOST;
    }
    if (waiting != j->waiting || here != j->node_count)
        broken(w, "counts differ: waiting %u/%u here %u/%u", j->waiting, waiting, j->node_count,
               here);
    if (aside != j->aside_count)
        broken(w, "counts differ: aside %u/%u", j->aside_count, aside);
    if (j->state == JOB_GATHERING && aside > 0 && waiting < j->nodes_min)
        broken(w, "%u nodes are in quarantine while %u of %u wait", aside, waiting, j->nodes_min);
}

/* ------------------------------------------------------------------ the server's shell */

static void set_job_timer(struct world *w, uint32_t no)
{
    struct sim_job *s = &w->jobs[no];
    if (s->job.deadline_ns == s->timer_at)
        return;
    s->timer_at = s->job.deadline_ns;
    s->timer_no++;
    if (s->timer_at == INT64_MAX)
        return;
    int64_t at = s->timer_at > w->now ? s->timer_at : w->now;
    push(w, (struct event){.at = at,
                           .kind = EV_JOB_TIMER,
                           .host = no,
                           .life_no = s->timer_no,
                           .arg = w->server_no});
}

static struct end *end_of_slot(struct world *w, uint32_t job, uint32_t slot)
{
    for (uint32_t i = 0; i < ENDS_MAX; i++) {
        struct end *e = &w->ends[i];
        if (e->open && w->hosts[e->host].job == job && e->slot == slot &&
            e->job_life == w->jobs[job].life)
            return e;
    }
    return NULL;
}

static void init_job(struct world *w, uint32_t no)
{
    struct sim_job *s = &w->jobs[no];
    char id[16];
    (void)snprintf(id, sizeof id, "job%u", no);
    if (s->exists)
        job_fini(&s->job);
    struct job_config c = {.run_id = id,
                           .lease_ns = LEASE,
                           .beat_ns = SEC,
                           .fence_ns = FENCE,
                           .not_before_ns = w->not_before,
                           .quarantine_failures = w->quarantine,
                           .quarantine_window_ns = 15 * SEC,
                           .version = "sim"};
    MU_ASSERT(job_init(&s->job, mu_mem_default(), &c, NULL) == 0);
    s->exists = true;
    s->life++;
    s->timer_at = INT64_MAX;
    s->timer_no++;
    s->stop_cause_set = false;
    s->told_count = 0;
    s->anew = 0;
}

static void begin_budget(struct budget *b)
{
    b->charge_count = 0;
    b->failed = b->last = MU_CAUSE_INIT;
}

static void start_job(struct world *w, uint32_t no)
{
    struct sim_job *s = &w->jobs[no];
    init_job(w, no);
    s->number++;
    s->last_round = 0;
    s->halt_round = 0;
    s->incidents = 0;
    s->fresh = false;
    s->charged = false;
    s->restarts = 0;
    s->heard_of = false;
    s->disk.kept = false;
    s->budget.ended_round = 0;
    begin_budget(&s->budget);
}

static void write_node(struct disk *d, const struct job *j, uint32_t slot)
{
    struct mu_buf hello;
    struct job_node_row row;
    if (!j->nodes[slot].used)
        return;
    mu_buf_init(&hello, mu_mem_default());
    MU_ASSERT(job_save_node(j, slot, &row, &hello) == 0);
    uint32_t at = 0;
    while (at < d->node_count && strcmp(d->nodes[at].node, row.node) != 0)
        at++;
    MU_ASSERT(at < SLOTS_MAX && row.hello.n <= HELLO_BYTES);
    memcpy(d->hellos[at], row.hello.p, row.hello.n);
    row.hello = mu_str_of(d->hellos[at], row.hello.n);
    d->nodes[at] = row;
    d->node_count = at < d->node_count ? d->node_count : at + 1;
    mu_buf_fini(&hello);
}

/* One transaction: the rows that are due, as the job is now. */
static void write_due(struct sim_job *s)
{
    struct disk *d = &s->disk;
    MU_ASSERT(s->job.node_cap <= SLOTS_MAX);
    if (d->round_due)
        d->node_count = 0;
    for (uint32_t i = 0; i < s->job.node_cap; i++)
        if (d->round_due || d->node_due[i])
            write_node(d, &s->job, i);
    if (d->round_due || d->row_due) {
        job_save(&s->job, &d->row);
        d->kept = true;
    }
    if (d->incident_due)
        d->incident = s->job.incident;
    d->incident_due = false;
    d->round_due = false;
    d->row_due = false;
    memset(d->node_due, 0, sizeof d->node_due);
}

static void note_due(struct disk *d, const struct job_action *a)
{
    if (a->type == JOB_ACT_INCIDENT)
        d->incident_due = true;
    else if (a->type == JOB_ACT_KEEP_ROUND)
        d->round_due = true;
    else if (a->node == JOB_NO_NODE)
        d->row_due = true;
    else
        d->node_due[a->node] = true;
}

/* A server that has just started reads what its former life kept. */
static void load_job(struct world *w, uint32_t no)
{
    struct sim_job *s = &w->jobs[no];
    struct disk *d = &s->disk;
    struct mu_err err = {0};
    init_job(w, no);
    if (job_load(&s->job, w->now, w->now / MS, &d->row, d->nodes, d->node_count, &err) != 0)
        broken(w, "job%u cannot be loaded: %s", no, err.msg);
    job_load_incident(&s->job, &d->incident);
    tell(w, "job%u is loaded: %s round=%u", no, job_state_name(s->job.state), s->job.round);
    bool same = s->job.restarts == s->restarts || (s->fresh && s->job.restarts == 0);
    if (!same && !s->heard_of)
        broken(w, "job%u had spent %u restarts and has %u after loading", no, s->restarts,
               s->job.restarts);
}

/* --- the budget, counted by the world --- */

static bool is_same(const struct mu_cause *a, const struct mu_cause *b)
{
    return a->step >= 0 && a->step == b->step && a->kind == b->kind && a->rank == b->rank &&
           a->exit_code == b->exit_code && a->signo == b->signo && a->blame < 0 && b->blame < 0;
}

static void check_charge(struct world *w, struct sim_job *s)
{
    struct budget *b = &s->budget;
    uint32_t count = 1;
    for (uint32_t i = 0; i < b->charge_count; i++)
        count += b->window == 0 || b->charges[i] > w->now - b->window + 2 * MS; /* Kept in ms. */
    if (count > s->job.max_restarts)
        broken(w, "%u restarts within %.0f s, %u are allowed", count,
               (double)b->window / (double)SEC, s->job.max_restarts);
    if (b->charge_count < CHARGES_MAX)
        b->charges[b->charge_count++] = w->now;
}

/* Of the round that runs; not of one with the same number in a former job of this id. */
static bool is_of_round(const struct worker *x, const struct job *j)
{
    return x->round == j->round && x->began / MS >= j->round_started_unix_ms;
}

/* When the first worker of the round that runs was started. */
static int64_t first_start(const struct world *w, uint32_t no)
{
    int64_t first = w->now;
    for (uint32_t i = 0; i < w->host_count; i++) {
        const struct host *h = &w->hosts[i];
        for (uint32_t k = 0; k < h->a.nproc && h->job == no; k++) {
            const struct worker *x = &h->a.workers[k];
            if (is_of_round(x, &w->jobs[no].job) && x->began < first)
                first = x->began;
        }
    }
    return first;
}

/* Restarts are given back: every worker of the round has run for so long, or come so far. */
static void check_proof(struct world *w, uint32_t no)
{
    const struct budget *b = &w->jobs[no].budget;
    int64_t first = first_start(w, no);
    for (uint32_t i = 0; i < w->host_count; i++) {
        const struct host *h = &w->hosts[i];
        for (uint32_t k = 0; k < h->a.nproc && h->job == no; k++) {
            const struct worker *x = &h->a.workers[k];
            if (!is_of_round(x, &w->jobs[no].job))
                continue;
            bool long_enough = b->give_back > 0 && w->now - x->began >= b->give_back - 2 * MS;
            int64_t takes = w->step_takes[no]; /* Then all ranks are at the same step. */
            bool far_enough =
                b->give_back_steps > 0 &&
                (takes > 0
                     ? w->now / takes - first / takes >= (int64_t)b->give_back_steps
                     : x->pace > 0 && (w->now - x->began) / x->pace > (int64_t)b->give_back_steps);
            if (!long_enough && !far_enough)
                broken(w, "restarts are given back, and worker %u of host %u has run for %.3f s", k,
                       i, (double)(w->now - x->began) / (double)SEC);
        }
    }
}

/* One cause for each end of a round, and what it costs; and it is not the one before once more. */
static void check_decision(struct world *w, struct sim_job *s, bool news)
{
    const struct job_incident *in = &s->job.incident;
    struct budget *b = &s->budget;
    struct mu_cause c;
    job_incident_cause(in, &c);
    bool restart = strcmp(in->decision, "restart") == 0;
    bool fail = strcmp(in->decision, "fail") == 0;
    if (news && in->nodes > 0 && in->round <= b->ended_round)
        broken(w, "round %" PRId64 " ended twice", in->round);
    if (news && in->nodes > 0)
        b->ended_round = (uint32_t)in->round;
    bool ended = restart || fail || strcmp(in->decision, "regroup") == 0;
    if (ended && (c.kind == MU_CAUSE_NONE || c.round != in->round))
        broken(w, "the end of round %" PRId64 " has no cause of its own", in->round);
    if (ended && !fail && restart != mu_cause_costs_restart(c.kind))
        broken(w, "%s after a cause of kind %s", in->decision, mu_cause_kind_text(c.kind));
    if (restart && !b->same_failure_restart && is_same(&c, &b->failed) &&
        c.round == b->failed.round + 1)
        broken(w, "rank %d failed after step %d in rounds %u and %u", c.rank, c.step,
               b->failed.round, c.round);
    if (in->same_failure != 0 && !is_same(&c, &b->failed))
        broken(w, "rank %d fails after step %d for the first time", c.rank, c.step);
    w->r->same_failures += news && in->same_failure != 0;
}

/* The records of a job count its decisions: none is lost, and none made twice. */
static void check_incident(struct world *w, struct sim_job *s)
{
    const struct job_incident *in = &s->job.incident;
    struct budget *b = &s->budget;
    if (s->heard_of || (!w->keeps && w->r->restarts > 0))
        return; /* A server that knows nothing counts anew. */
    if (in->number != s->incidents && in->number != s->incidents + 1)
        broken(w, "incident %" PRId64 " after %u", in->number, s->incidents);
    bool restart = strcmp(in->decision, "restart") == 0;
    bool news = in->number > s->incidents;
    if (news && s->charged)
        b->failed = b->last; /* No better cause comes for that one any more. */
    check_decision(w, s, news);
    job_incident_cause(in, &b->last);
    if (news && restart) {
        s->restarts++;
        if (!s->fresh)
            check_charge(w, s);
    }
    bool spent = strcmp(in->decision, "abandon") == 0 && mu_cause_costs_restart(b->last.kind);
    if (!news && s->charged && !restart && !spent) {
        s->restarts--; /* The better cause costs nothing, or ends the job. */
        b->charge_count -= b->charge_count > 0;
    }
    s->charged = restart;
    if (s->heard_of)
        s->restarts = (uint32_t)in->restarts;
    /* The same id, used once more; this one may still be the old budget's last. */
    if (s->fresh && in->restarts != s->restarts) {
        s->restarts = restart;
        s->fresh = false;
    }
    s->incidents = (uint32_t)in->number;
    if (in->restarts != s->restarts)
        broken(w, "%" PRId64 " restarts are spent and %u were decided", in->restarts, s->restarts);
}

/* Workers that stop for somebody's leaving all stop after the same step. */
static void check_halt(struct world *w, struct sim_job *s, const struct ctl_halt *m)
{
    if (m->step < 0)
        return;
    if (s->halt_round == m->round && s->halt_step != m->step)
        broken(w, "round %" PRId64 " is to stop after step %" PRId64 ", and after %" PRId64,
               m->round, s->halt_step, m->step);
    s->halt_round = (uint32_t)m->round;
    s->halt_step = m->step;
}

static void act_for_job(struct world *w, uint32_t no, const struct job_out *out)
{
    struct sim_job *s = &w->jobs[no];
    struct ctl_msg m;
    for (uint32_t i = 0; i < out->count; i++) {
        const struct job_action *a = &out->actions[i];
        struct end *e = end_of_slot(w, no, a->node);
        switch (a->type) {
        case JOB_ACT_SEND:
            if (e == NULL)
                broken(w, "the job sends %s to slot %u, which has no connection",
                       ctl_type_name(a->msg), a->node);
            job_message(&s->job, a->node, a->msg, &m);
            if (m.type == CTL_HALT)
                check_halt(w, s, &m.u.halt);
            send_message(w, e->host, e->link_no, true, &m);
            break;
        case JOB_ACT_CLOSE:
        case JOB_ACT_FORGET:
            if (e == NULL)
                break;
            close_to_agent(w, e->host, e->link_no);
            e->open = false;
            break;
        case JOB_ACT_KEEP:
        case JOB_ACT_KEEP_ROUND:
            break; /* Done before. */
        case JOB_ACT_INCIDENT:
            check_incident(w, s);
            break;
        }
    }
}

/* --- fences of old rounds --- */

#define SNAPSHOT_NODES 64

/* A job, without what every message may change: when nodes were heard, and what was counted. */
struct snapshot {
    struct job job;
    struct job_node nodes[SNAPSHOT_NODES];
    struct job_worker workers[SNAPSHOT_NODES][NPROC_MAX];
};

static void take_snapshot(const struct job *j, struct snapshot *ret)
{
    MU_ASSERT(j->node_cap <= SNAPSHOT_NODES);
    memset(ret, 0, sizeof *ret);
    memcpy(&ret->job, j, sizeof *j);
    ret->job.action_count = 0;
    ret->job.step_unix_ms = 0;
    ret->job.step_now_ns = 0;
    ret->job.lease_check_ns = 0;
    ret->job.deadline_ns = 0;
    ret->job.waiting = 0;
    ret->job.new_cause = false;
    ret->job.durable = false;
    ret->job.hello_slot = 0;
    memset(ret->job.stale_count, 0, sizeof ret->job.stale_count);
    for (uint32_t i = 0; i < j->node_cap; i++) {
        const struct job_node *n = &j->nodes[i];
        if (!n->used)
            continue;
        memcpy(&ret->nodes[i], n, sizeof *n);
        ret->nodes[i].heard_ns = 0;
        ret->nodes[i].beat_seq = 0;
        ret->nodes[i].late = false;
        memcpy(ret->workers[i], n->workers, (size_t)n->hello.nproc * sizeof n->workers[0]);
    }
}

/* The round that a message names; 0: none. All of these begin with it. */
static int64_t named_round(const struct job_event *ev)
{
    static const bool names[JOB_EV_COUNT] = {
        [JOB_EV_REACHED] = true,       [JOB_EV_STARTED] = true, [JOB_EV_EXITED] = true,
        [JOB_EV_WORKER_FAILED] = true, [JOB_EV_SILENT] = true,  [JOB_EV_FINISHED] = true,
        [JOB_EV_STOPPED] = true,       [JOB_EV_BEAT] = true};
    return names[ev->type] ? ev->msg->u.beat.round : 0;
}

/* Of a round that is not the live one, and no answer to a STOP of that very round. */
static bool is_stale(const struct job *j, const struct job_event *ev)
{
    int64_t round = named_round(ev);
    if (round == 0)
        return false;
    const struct job_node *n = &j->nodes[ev->node];
    bool live = n->in_round && round == j->round;
    bool answer = ev->type == JOB_EV_STOPPED && !n->in_round && round == n->stale_round;
    return !live && !answer;
}

static void check_fence(struct world *w,
                        const struct job *j,
                        const struct job_event *ev,
                        const struct job_out *out,
                        const struct snapshot *before)
{
    static struct snapshot after;
    bool ready = out->move_count > 1 && out->moves[1].event == JOB_EV_READY;
    if (ready) /* It is heard again, and the round was waiting for that. */
        return;
    take_snapshot(j, &after);
    if (memcmp(before, &after, sizeof after) != 0)
        broken(w, "%s of round %" PRId64 " changed something in round %u", job_event_name(ev->type),
               named_round(ev), j->round);
    bool counted = !job_is_ended(j) && (ev->type != JOB_EV_BEAT || out->stale_round != 0);
    if (counted && out->stale_round == 0)
        broken(w, "%s of round %" PRId64 " was not counted in round %u", job_event_name(ev->type),
               named_round(ev), j->round);
    w->r->stale++;
}

/* Nodes that could be in a round now, in quarantine or not. */
static uint32_t count_fit(const struct job *j)
{
    uint32_t fit = 0;
    for (uint32_t i = 0; i < j->node_cap; i++) {
        const struct job_node *n = &j->nodes[i];
        fit += n->used && n->connected && !n->late && n->state == JOB_NODE_WAITING &&
               n->health == JOB_HEALTH_OK;
    }
    return fit;
}

static int step_job(
    struct world *w, uint32_t no, struct job_event *ev, struct job_out *out, struct mu_err *err)
{
    struct sim_job *s = &w->jobs[no];
    int32_t before[64];
    uint32_t cap = s->job.node_cap < MU_COUNT(before) ? s->job.node_cap : MU_COUNT(before);
    uint32_t round = s->job.round;
    ev->unix_ms = w->now / MS;
    /* Ranks that may be kept: of nodes that wait with one, or are in the old round. */
    for (uint32_t i = 0; i < cap; i++)
        before[i] = s->job.nodes[i].used && s->job.nodes[i].state != JOB_NODE_LOST
                        ? s->job.nodes[i].node_rank
                        : -1;
    bool all_spoke = true;
    for (uint32_t i = 0; i < s->job.node_cap; i++)
        all_spoke = all_spoke && s->job.nodes[i].state != JOB_NODE_LOST;
    uint32_t fit = s->job.aside_count > 0 ? count_fit(&s->job) : 0;
    static struct snapshot snapshot;
    uint32_t given_back = s->job.budget.given_back;
    bool stale = is_stale(&s->job, ev);
    if (stale)
        take_snapshot(&s->job, &snapshot);
    int r = job_step(&s->job, w->now, ev, out, err);
    if (stale && r == 0)
        check_fence(w, &s->job, ev, out, &snapshot);
    if (s->job.anew != s->anew)
        begin_budget(&s->budget);
    if (s->job.budget.given_back > given_back) {
        tell(w, "job%u: %u restarts are given back", no, s->job.budget.given_back - given_back);
        check_proof(w, no);
        s->budget.charge_count = 0;
        w->r->given_back++;
    }
    if (r == 0 && s->job.round != round && round != 0 && s->job.incident.number != 0 &&
        ev->type != JOB_EV_HELLO && s->job.incident.round != round)
        broken(w, "round %u begins and nobody knows why round %u ended", s->job.round, round);
    if (r == 0 && s->job.state == JOB_FAILED && s->job.cause.kind == MU_CAUSE_JOIN_TIMEOUT &&
        out->from == JOB_GATHERING && fit >= s->job.nodes_min)
        broken(w, "quarantine ended a job that could have gone on with %u nodes", fit);
    s->fresh = s->fresh || s->job.anew != s->anew;
    s->anew = s->job.anew;
    for (uint32_t i = 0; r == 0 && i < out->move_count; i++)
        s->heard_of = s->heard_of || out->moves[i].event == JOB_EV_RESUMES;
    /* Agents of an earlier run, of whose end they have not heard, found a server that knows a later
     * one. */
    s->heard_of = s->heard_of || (r == 0 && ev->type == JOB_EV_HELLO &&
                                  out->from == JOB_RECOVERING && s->job.round != round);
    for (uint32_t i = 0; r == 0 && i < out->move_count; i++)
        if (out->moves[i].from != out->moves[i].to)
            tell(w, "job%u round=%u ev=%s %s->%s", no, s->job.round,
                 job_event_name(out->moves[i].event), job_state_name(out->moves[i].from),
                 job_state_name(out->moves[i].to));
    if (r == 0 && out->from == JOB_STOPPING && out->to != JOB_STOPPING && s->job.round == round)
        check_last_cause(w, s, all_spoke && w->fault_rate == 0 && ev->type == JOB_EV_STOPPED);
    if (r == 0 && s->job.round != round)
        s->told_count = 0;
    if (r == 0 && out->to == JOB_RUNNING && s->job.round != round && ev->type != JOB_EV_HELLO)
        check_kept_ranks(w, &s->job, before, cap);
    if (r == 0 && out->to == JOB_RUNNING &&
        (s->job.round != round || out->from == JOB_RECOVERING)) {
        if (s->job.round != round && s->job.round <= s->last_round && s->last_round != 0 &&
            (w->keeps || w->last_server_up == 0))
            broken(w, "round number %u after %u", s->job.round, s->last_round);
        if (!w->keeps)
            s->last_round = s->job.round;
        w->r->rounds++;
        check_round(w, &s->job);
    }
    if (r == 0 && job_is_ended(&s->job) && out->from != out->to)
        w->ended[s->job.state == JOB_FAILED]++;
    check_job(w, s);
    return r;
}

static void server_down(struct world *w);

/* It dies in the middle of a step, once in a hundred. */
static bool dies_here(struct world *w, const char *when)
{
    if (w->now >= FAULTS_END || w->fault_rate == 0 || !chance(w, 1))
        return false;
    tell(w, "server dies %s", when);
    server_down(w);
    return true;
}

static void note_ended(struct world *w, uint32_t no, const char *node)
{
    char id[40];
    for (uint32_t i = 0; i < w->host_count; i++) {
        struct agent *a = &w->hosts[i].a;
        (void)snprintf(id, sizeof id, "agent-%u", a->life_no);
        if (w->hosts[i].job == no && a->alive && strcmp(id, node) == 0)
            a->ended_with = w->jobs[no].number;
    }
}

/* Rows of a decision are safe before anybody is told; others when there is time. */
static bool keep(struct world *w, uint32_t no, const struct job_out *out)
{
    struct sim_job *s = &w->jobs[no];
    bool due = out->durable;
    for (uint32_t i = 0; i < out->count; i++) {
        const struct job_action *a = &out->actions[i];
        if (a->type != JOB_ACT_KEEP && a->type != JOB_ACT_KEEP_ROUND && a->type != JOB_ACT_INCIDENT)
            continue;
        note_due(&s->disk, a);
        due = due || chance(w, 30);
    }
    if (!due)
        return true;
    if (out->durable && dies_here(w, "before a decision is kept"))
        return false;
    write_due(s);
    if (!out->durable)
        return true;
    for (uint32_t i = 0; i < out->count; i++) /* Kept with it. */
        if (out->actions[i].type == JOB_ACT_INCIDENT)
            check_incident(w, s);
    for (uint32_t i = 0; job_is_ended(&s->job) && i < s->job.node_cap; i++)
        if (s->job.nodes[i].used)
            note_ended(w, no, s->job.nodes[i].hello.node);
    s->last_round = s->job.round; /* Not before: nobody was told. */
    return !dies_here(w, "after a decision was kept and before anybody is told");
}

static void finish_step(struct world *w, uint32_t no, const struct job_out *out)
{
    if (w->keeps && !keep(w, no, out))
        return;
    act_for_job(w, no, out);
    set_job_timer(w, no);
}

static void refuse(struct world *w, struct end *e, int code, const char *text)
{
    struct ctl_msg m;
    ctl_init(&m, CTL_REFUSED);
    (void)mu_strcopy(m.u.refused.text, sizeof m.u.refused.text, text);
    m.u.refused.retry = code == -EAGAIN;
    tell(w, "server refuses host %u: %s", e->host, text);
    send_message(w, e->host, e->link_no, true, &m);
    close_to_agent(w, e->host, e->link_no);
    e->open = false;
}

static void server_hello(struct world *w, struct end *e, const struct ctl_msg *m)
{
    uint32_t no = w->hosts[e->host].job;
    char address[MU_ADDR_BYTES];
    (void)snprintf(address, sizeof address, "10.0.0.%u", e->host);
    struct job_event ev = {
        .type = JOB_EV_HELLO, .node = JOB_NO_NODE, .msg = m, .seen_addr = address};
    struct job_out out;
    struct mu_err err = {0};
    if (!w->jobs[no].exists)
        start_job(w, no);
    int r = step_job(w, no, &ev, &out, &err);
    if (r == -ENOENT) {
        const struct agent *a = &w->hosts[e->host].a;
        char id[40];
        (void)snprintf(id, sizeof id, "agent-%u", a->life_no);
        if (w->keeps && strcmp(id, m->u.hello.node) == 0 && a->ended_with == w->jobs[no].number)
            broken(w, "host %u: an agent of the job that ended is taken for one of another",
                   e->host);
        start_job(w, no);
        r = step_job(w, no, &ev, &out, &err);
    }
    if (r == -EACCES || r == -EAGAIN) {
        refuse(w, e, r, err.msg);
        return;
    }
    if (r != 0)
        broken(w, "HELLO gave %d", r);
    MU_ASSERT(out.node != JOB_NO_NODE);
    struct end *old = end_of_slot(w, no, out.node);
    if (old != NULL)
        old->open =
            false; /* The agent has come back before the old connection's end was noticed. */
    e->slot = out.node;
    e->job_life = w->jobs[no].life;
    finish_step(w, no, &out);
}

static void note_told(struct sim_job *s, uint32_t slot, const struct ctl_failed *m)
{
    const struct job_node *n = &s->job.nodes[slot];
    if (m->round == s->job.round && n->in_round && n->state != JOB_NODE_LOST &&
        s->told_count < MU_COUNT(s->told))
        s->told[s->told_count++] =
            (struct told){m->cause, m->cause.rank - m->cause.local_rank, (int32_t)n->hello.nproc};
}

static void server_message(struct world *w, struct end *e, const struct ctl_msg *m)
{
    static const int events[CTL_TYPE_COUNT] = {
        [CTL_REACHED] = JOB_EV_REACHED + 1, [CTL_STARTED] = JOB_EV_STARTED + 1,
        [CTL_EXITED] = JOB_EV_EXITED + 1,   [CTL_FAILED] = JOB_EV_WORKER_FAILED + 1,
        [CTL_SILENT] = JOB_EV_SILENT + 1,   [CTL_FINISHED] = JOB_EV_FINISHED + 1,
        [CTL_STOPPED] = JOB_EV_STOPPED + 1, [CTL_BEAT] = JOB_EV_BEAT + 1,
        [CTL_HEALTH] = JOB_EV_HEALTH + 1,   [CTL_BYE] = JOB_EV_BYE + 1,
        [CTL_DRAIN] = JOB_EV_DRAIN + 1};
    uint32_t no = w->hosts[e->host].job;
    if (m->type == CTL_HELLO) {
        server_hello(w, e, m);
        return;
    }
    MU_ASSERT(events[m->type] != 0 && e->slot != JOB_NO_NODE);
    if (e->job_life != w->jobs[no].life)
        broken(w, "host %u still talks to a job that is over", e->host);
    struct job_event ev = {
        .type = (enum job_event_type)(events[m->type] - 1), .node = e->slot, .msg = m};
    struct job_out out;
    if (m->type == CTL_FAILED)
        note_told(&w->jobs[no], e->slot, &m->u.failed);
    if (m->type == CTL_BYE)
        e->open =
            false; /* It has said goodbye: its end of file is no news, and nothing more is sent. */
    int r = step_job(w, no, &ev, &out, NULL);
    if (r != 0)
        broken(w, "%s gave %d", ctl_type_name(m->type), r);
    finish_step(w, no, &out);
}

static void server_eof(struct world *w, struct end *e, bool reset)
{
    e->open = false;
    if (e->slot == JOB_NO_NODE)
        return;
    uint32_t no = w->hosts[e->host].job;
    if (e->job_life != w->jobs[no].life)
        broken(w, "host %u is still connected to a job that is over", e->host);
    struct job_event ev = {.type = reset ? JOB_EV_NODE_AWAY : JOB_EV_NODE_DEAD, .node = e->slot};
    struct job_out out;
    tell(w, "server loses host %u (%s)", e->host, reset ? "reset" : "end of file");
    int r = step_job(w, no, &ev, &out, NULL);
    if (r != 0)
        broken(w, "losing host %u gave %d", e->host, r);
    finish_step(w, no, &out);
}

/* ------------------------------------------------------------------ an agent's shell */

static void step_life(struct world *w, struct host *h, struct life_event *ev);

static void set_agent_timer(struct world *w, struct host *h)
{
    struct agent *a = &h->a;
    if (a->life.deadline_ns == a->timer_at)
        return;
    a->timer_at = a->life.deadline_ns;
    a->timer_no++;
    if (a->timer_at == INT64_MAX)
        return;
    int64_t at = a->timer_at > w->now ? a->timer_at : w->now;
    push(w,
         (struct event){.at = at, .kind = EV_AGENT_TIMER, .host = h->no, .life_no = a->timer_no});
}

static void maybe_gone(struct world *w, struct host *h)
{
    struct agent *a = &h->a;
    if (a->running > 0 || a->gone_pending)
        return;
    a->gone_pending = true;
    a->gone_no = ++w->worker_no;
    push(w, (struct event){.at = w->now + between(w, MS / 100, 3 * MS),
                           .kind = EV_GONE,
                           .host = h->no,
                           .life_no = a->gone_no});
}

static bool reports_steps(const struct budget *b)
{
    return b->give_back_steps > 0 || b->doomed_rank >= 0;
}

/* Is it a worker that fails after a certain step? */
static bool begin_steps(struct world *w, struct host *h, uint32_t lrank)
{
    const struct budget *b = &w->jobs[h->job].budget;
    struct worker *x = &h->a.workers[lrank];
    x->began = w->now;
    if (w->drains || !reports_steps(b)) /* There all ranks are at the same step. */
        return false;
    x->pace = (int64_t)(100 + other_below(w, 400)) * MS;
    return w->now < FAULTS_END &&
           (int32_t)h->a.life.start.rank_base + (int32_t)lrank == b->doomed_rank;
}

/* What its workers have reported, whenever an agent looks. */
static void note_paced_steps(struct world *w, struct host *h)
{
    struct agent *a = &h->a;
    for (uint32_t i = 0; i < a->nproc; i++) {
        const struct worker *x = &a->workers[i];
        int64_t until = x->ending ? x->fell_at : w->now;
        if (x->alive && x->pace > 0 && until >= x->began + x->pace)
            life_note_step(&a->life, i, (until - x->began) / x->pace - 1);
    }
}

static void spawn(struct world *w, struct host *h)
{
    struct agent *a = &h->a;
    uint32_t round = (uint32_t)a->life.start.round;
    check_start(w, h, round);
    check_reached(w, h);
    if (a->life.health != LIFE_HEALTH_OK)
        broken(w, "round %u starts on host %u, whose health is not known to be good", round, h->no);
    a->worker_round = round;
    a->gone_pending = false;
    uint32_t fails_at = chance(w, 2) ? below(w, a->nproc) : UINT32_MAX;
    fails_at = w->gentle ? UINT32_MAX : fails_at;
    int32_t pids[NPROC_MAX];
    for (uint32_t i = 0; i < a->nproc && i != fails_at; i++) {
        struct worker *x = &a->workers[i];
        *x = (struct worker){
            .alive = true, .stubborn = chance(w, 15), .round = round, .no = ++w->worker_no};
        a->running++;
        int64_t lasts = chance(w, 10) ? between(w, 0, 2 * MS) : between(w, SEC, 12 * SEC);
        uint32_t status = w->now < FAULTS_END && chance(w, 12) ? 1 + below(w, 60) : 0;
        status = w->gentle ? 0 : status;
        if (begin_steps(w, h, i)) { /* It comes to its doomed step, and has no other fate. */
            lasts = x->pace * (w->jobs[h->job].budget.doomed_step + 1) + x->pace / 2;
            status = 7;
        }
        push(w, (struct event){.at = w->now + lasts,
                               .kind = EV_WORKER,
                               .host = h->no,
                               .life_no = x->no,
                               .arg = i | (status != 0 && chance(w, 30) ? 9 : status) << 8,
                               .blamed = -1});
        pids[i] = (int32_t)x->no;
    }
    struct life_event ev = {
        .type = LIFE_EV_SPAWNED, .pids = pids, .local_rank = fails_at, .text = "no such file"};
    if (fails_at != UINT32_MAX) {
        ev.type = LIFE_EV_SPAWN_FAILED;
        for (uint32_t i = 0; i < fails_at; i++)
            push(w, (struct event){.at = w->now + between(w, 0, 2 * MS),
                                   .kind = EV_WORKER_TOLD,
                                   .host = h->no,
                                   .life_no = a->workers[i].no,
                                   .arg = i | 9U << 8});
        maybe_gone(w, h);
    }
    step_life(w, h, &ev);
}

static void signal_workers(struct world *w, struct host *h, bool kill)
{
    struct agent *a = &h->a;
    for (uint32_t i = 0; i < a->nproc; i++) {
        struct worker *x = &a->workers[i];
        x->asked = x->asked || (x->alive && !x->ending);
        if (!x->alive || x->ending || (!kill && x->stubborn))
            continue;
        int64_t at = w->now + between(w, MS / 100, kill ? 5 * MS : 300 * MS);
        push(w, (struct event){.at = at,
                               .kind = EV_WORKER_TOLD,
                               .host = h->no,
                               .life_no = x->no,
                               .arg = i | (kill ? 9U : 15U) << 8});
    }
}

/* The step that all ranks of this host's job have finished last. */
static int64_t step_of(const struct world *w, const struct host *h)
{
    return w->now / w->step_takes[h->job];
}

static void note_steps(const struct world *w, struct host *h)
{
    struct agent *a = &h->a;
    for (uint32_t i = 0; w->step_takes[h->job] > 0 && a->life.spawned && i < a->nproc; i++)
        if (a->workers[i].alive && !a->workers[i].ending)
            life_note_step(&a->life, i, step_of(w, h));
}

/* Its workers stop when that step is done, or after the present one where it comes too late. */
static void halt_workers(struct world *w, struct host *h)
{
    struct agent *a = &h->a;
    int64_t step = a->life.halt_step;
    bool late = step_of(w, h) > step;
    /* Without faults the word is under way for half a beat at most. */
    if (late && w->gentle && w->quick <= 5 * MS)
        broken(w, "host %u is told to stop after step %" PRId64 ", and is at %" PRId64, h->no, step,
               step_of(w, h));
    for (uint32_t i = 0; i < a->nproc && !w->deaf; i++)
        if (a->workers[i].alive && !a->workers[i].ending)
            push(w, (struct event){.at = (late ? step_of(w, h) + 1 : step) * w->step_takes[h->job],
                                   .kind = EV_WORKER_HALT,
                                   .host = h->no,
                                   .life_no = a->workers[i].no,
                                   .arg = i});
}

/* The agent's process is gone, and with it, thanks to its warden and the kernel, all its workers.
 */
static void end_agent(struct world *w, struct host *h, const char *how)
{
    struct agent *a = &h->a;
    tell(w, "host %u: agent %u %s", h->no, a->life_no, how);
    if (a->linked)
        close_to_server(w, h, true);
    for (uint32_t i = 0; i < a->nproc; i++)
        a->workers[i].alive = false;
    a->running = 0;
    a->alive = false;
    a->linked = false;
    a->timer_no++;
    life_fini(&a->life);
    h->unsafe = false;
}

/* The lead's host is the last number of its address. */
static void reach(struct world *w, struct host *h)
{
    uint32_t lead = 0;
    MU_ASSERT(mu_parse_u32(h->a.life.start.lead_addr + strlen("10.0.0."), 0, HOSTS_MAX - 1, "lead",
                           &lead, NULL) == 0);
    const struct host *to = &w->hosts[lead];
    bool dropped = (h->cut && w->now < h->cut_until) || (to->cut && w->now < to->cut_until) ||
                   (w->walled & 1U << lead) != 0;
    h->a.reach_no = ++w->worker_no;
    push(w, (struct event){.at = w->now + (dropped ? 3 * SEC : 2 * delay(w)),
                           .kind = EV_REACH,
                           .host = h->no,
                           .life_no = h->a.reach_no,
                           .arg = lead});
}

static void reach_ends(struct world *w, struct host *h, const struct event *e)
{
    struct agent *a = &h->a;
    const struct host *to = &w->hosts[e->arg];
    if (!a->alive || a->reach_no != e->life_no)
        return;
    bool lost = (h->cut && w->now < h->cut_until) || (to->cut && w->now < to->cut_until) ||
                (w->walled & 1U << e->arg) != 0;
    struct life_event ev = {.type = LIFE_EV_UNREACHED, .text = lost ? "no answer" : "refused"};
    if (!lost && to->a.alive)
        ev.type = LIFE_EV_REACHED;
    a->reach_no = 0;
    step_life(w, h, &ev);
}

/* It passes, fails or tells nothing; later, when the world heals, every node becomes fit. */
static void check_health(struct world *w, struct host *h)
{
    uint32_t verdict = w->now >= FAULTS_END || chance(w, 70) ? HEALTH_PASSED
                       : chance(w, 50)                       ? HEALTH_FAILED
                                                             : HEALTH_UNKNOWN;
    h->a.check_no = ++w->worker_no;
    push(w, (struct event){.at = w->now + between(w, MS, chance(w, 80) ? 30 * MS : 3 * SEC),
                           .kind = EV_CHECKED,
                           .host = h->no,
                           .life_no = h->a.check_no,
                           .arg = verdict});
}

static void check_ends(struct world *w, struct host *h, const struct event *e)
{
    struct life_event ev = {.type = LIFE_EV_CHECKED,
                            .verdict = (enum health_verdict)e->arg,
                            .text = e->arg == HEALTH_PASSED ? "" : "no answer from the GPU"};
    if (h->a.alive && h->a.check_no == e->life_no)
        step_life(w, h, &ev);
}

static void connect_agent(struct world *w, struct host *h)
{
    int64_t took = delay(w);
    if (h->cut && w->now + took < h->cut_until)
        took = 3 * SEC; /* Nobody answers: the attempt has a limit. */
    push(w, (struct event){
                .at = w->now + took, .kind = EV_CONNECT, .host = h->no, .life_no = h->a.life_no});
}

static void step_life(struct world *w, struct host *h, struct life_event *ev)
{
    struct agent *a = &h->a;
    struct life_out out;
    struct life_action actions[32];
    struct ctl_msg m;
    ev->unix_ms = w->now / MS;
    int r = life_step(&a->life, w->now, ev, &out);
    if (r != 0)
        broken(w, "host %u: the agent's table has no row for %s in %s", h->no,
               life_event_name(ev->type), life_state_name(a->life.state));
    for (uint32_t i = 0; i < out.move_count; i++)
        if (out.moves[i].from != out.moves[i].to)
            tell(w, "host %u: round=%" PRId64 " ev=%s %s->%s", h->no, a->life.start.round,
                 life_event_name(out.moves[i].event), life_state_name(out.moves[i].from),
                 life_state_name(out.moves[i].to));
    uint32_t count = out.count;
    MU_ASSERT(count <= MU_COUNT(actions));
    memcpy(actions, out.actions, count * sizeof actions[0]); /* SPAWN steps again. */
    for (uint32_t i = 0; i < count && a->alive; i++) {
        switch (actions[i].type) {
        case LIFE_ACT_CONNECT:
            connect_agent(w, h);
            break;
        case LIFE_ACT_SEND:
            MU_ASSERT(a->linked);
            life_message(&a->life, &actions[i], &m);
            if (m.type == CTL_STOPPED && a->running > 0 && m.u.stopped.round == a->worker_round)
                broken(w, "host %u says stopped while %u workers run", h->no, a->running);
            if (m.type == CTL_REACHED)
                note_reached(w, h);
            if (m.type != CTL_BEAT)
                tell(w, "host %u says %s", h->no, ctl_type_name(m.type));
            send_message(w, h->no, a->link_no, false, &m);
            break;
        case LIFE_ACT_REACH:
            reach(w, h);
            break;
        case LIFE_ACT_CHECK:
            check_health(w, h);
            break;
        case LIFE_ACT_SPAWN:
            spawn(w, h);
            break;
        case LIFE_ACT_HALT:
            halt_workers(w, h);
            break;
        case LIFE_ACT_SIGNAL:
            signal_workers(w, h, false);
            break;
        case LIFE_ACT_KILL:
            signal_workers(w, h, true);
            maybe_gone(w, h);
            break;
        case LIFE_ACT_STACKS: /* Nobody asks for them here. */
        case LIFE_ACT_SAY:
            tell(w, "host %u: %s", h->no, a->life.words + actions[i].arg);
            break;
        case LIFE_ACT_EXIT:
            if (a->running > 0)
                broken(w, "host %u: the agent exits while %u workers run", h->no, a->running);
            end_agent(w, h, a->life.exit_status == 0 ? "exits with 0" : "exits with 1");
            break;
        }
    }
    if (a->alive && a->life.draining &&
        (a->life.state == LIFE_JOINING || a->life.state == LIFE_CHECKING))
        broken(w, "host %u is to leave and joins again", h->no);
    if (a->alive)
        set_agent_timer(w, h);
}

static void boot(struct world *w, struct host *h)
{
    struct agent *a = &h->a;
    if (a->alive)
        return;
    *a = (struct agent){.alive = true, .life_no = ++w->agent_lives, .timer_at = INT64_MAX};
    a->nproc = 1 + h->no % NPROC_MAX;
    struct ctl_msg hello;
    ctl_init(&hello, CTL_HELLO);
    struct life_config c = {.hello = hello.u.hello,
                            .grace_ns = between(w, 100 * MS, 5 * SEC),
                            .join_timeout_ns = 40 * SEC,
                            .server_timeout_ns = 40 * SEC,
                            .checks_health = (w->checking & 1U << h->no) != 0,
                            .seed = rnd(w)};
    struct ctl_hello *me = &c.hello;
    (void)snprintf(me->version, sizeof me->version, "sim");
    (void)snprintf(me->run_id, sizeof me->run_id, "job%u", h->job);
    (void)snprintf(me->node, sizeof me->node, "agent-%u", a->life_no);
    (void)snprintf(me->host, sizeof me->host, "n%u", h->no);
    me->pid = a->life_no;
    me->nproc = a->nproc;
    me->nodes_min = w->nodes_min[h->job];
    me->nodes_max = w->nodes_max[h->job];
    me->max_restarts = w->max_restarts[h->job];
    me->on_join_restart = w->on_join[h->job];
    const struct budget *b = &w->jobs[h->job].budget;
    me->restart_window_ms = b->window / MS;
    me->give_back_ms = b->give_back / MS;
    me->give_back_steps = b->give_back_steps;
    me->same_failure_restart = b->same_failure_restart;
    me->join_timeout_ms = 60000;
    me->last_call_ms = 2000;
    me->store_port = 1000;
    MU_ASSERT(life_init(&a->life, mu_mem_default(), w->now, &c) == 0);
    tell(w, "host %u: agent %u starts", h->no, a->life_no);
    set_agent_timer(w, h);
}

/* ------------------------------------------------------------------ faults */

static void server_down(struct world *w)
{
    w->server_up = false;
    for (uint32_t i = 0; i < w->host_count; i++) {
        const struct agent *a = &w->hosts[i].a;
        if (a->linked && end_of(w, a->link_no) != NULL)
            close_to_agent(w, i, a->link_no);
    }
    for (uint32_t i = 0; i < ENDS_MAX; i++)
        w->ends[i].open = false;
    for (uint32_t j = 0; j < w->job_count; j++) {
        if (w->jobs[j].exists)
            job_fini(&w->jobs[j].job);
        w->jobs[j].exists = false;
        w->jobs[j].timer_no++;
        w->jobs[j].disk.row_due = false; /* What was not written is lost. */
        w->jobs[j].disk.round_due = false;
        w->jobs[j].disk.incident_due = false;
        memset(w->jobs[j].disk.node_due, 0, sizeof w->jobs[j].disk.node_due);
    }
    push(w, (struct event){.at = w->now + between(w, 50 * MS, 8 * SEC), .kind = EV_SERVER_UP});
}

static void fault(struct world *w)
{
    struct host *h = &w->hosts[below(w, w->host_count)];
    struct agent *a = &h->a;
    uint32_t kind = below(w, 100);
    if (w->now < FAULTS_END)
        push(w, (struct event){.at = w->now + between(w, 100 * MS, 4 * SEC), .kind = EV_FAULT});
    if (!chance(w, w->fault_rate))
        return;
    if (kind < 20) {
        if (!a->alive)
            return;
        end_agent(w, h, "is killed");
        if (h->boots_again || chance(w, 70))
            push(w, (struct event){.at = w->now + between(w, 10 * MS, 6 * SEC),
                                   .kind = EV_BOOT,
                                   .host = h->no});
    } else if (kind < 40) {
        if (a->linked && a->alive) {
            tell(w, "host %u: link is reset", h->no);
            close_to_server(w, h, false);
            close_to_agent(w, h->no, a->link_no);
        }
    } else if (kind < 60) {
        if (h->cut)
            return;
        h->cut = true;
        h->cut_until = w->now + between(w, 100 * MS, 9 * SEC);
        tell(w, "host %u is cut off until %.3f", h->no, (double)h->cut_until / (double)SEC);
        if (a->alive && a->linked && h->cut_until - w->now > USER_TIMEOUT) {
            /* Each side's TCP gives up by itself; held messages are lost with the link. */
            push(w, (struct event){.at = w->now + between(w, USER_TIMEOUT, 4 * SEC),
                                   .kind = EV_AGENT_EOF,
                                   .host = h->no,
                                   .life_no = a->link_no});
            if (end_of(w, a->link_no) != NULL)
                push(w, (struct event){.at = w->now + between(w, USER_TIMEOUT, 4 * SEC),
                                       .kind = EV_SERVER_EOF,
                                       .host = h->no,
                                       .life_no = a->link_no,
                                       .arg = 1});
        }
    } else if (kind < 72) {
        if (!a->alive || a->frozen)
            return;
        a->frozen = true;
        a->frozen_until = w->now + between(w, 50 * MS, 7 * SEC);
        h->unsafe = true;
        h->unsafe_until = a->frozen_until + FENCE;
        tell(w, "host %u: agent frozen until %.3f", h->no, (double)a->frozen_until / (double)SEC);
    } else if (kind < 82) {
        if (a->alive && !a->frozen) {
            struct life_event ev = {.type = LIFE_EV_SIGNAL, .signo = 15};
            tell(w, "host %u: SIGTERM to the agent", h->no);
            step_life(w, h, &ev);
        }
    } else if (kind < 92) {
        if (w->server_up) {
            tell(w, "server dies");
            server_down(w);
        }
    } else if (!a->alive) {
        push(w, (struct event){.at = w->now + between(w, 0, SEC), .kind = EV_BOOT, .host = h->no});
    }
}

/* By a signal, or by somebody who asks the server. */
static void drain_node(struct world *w)
{
    struct host *h = &w->hosts[drain_below(w, w->host_count)];
    struct agent *a = &h->a;
    int64_t timeout_ms = 500 + drain_below(w, 9500);
    if (w->now < FAULTS_END)
        push(w, (struct event){.at = w->now + (200 + drain_below(w, 6000)) * MS, .kind = EV_DRAIN});
    push(w, (struct event){.at = w->now + (1000 + drain_below(w, 9000)) * MS,
                           .kind = EV_BOOT,
                           .host = h->no}); /* A machine that takes its place. */
    if (!a->alive || a->frozen)
        return;
    if (drain_below(w, 2) == 0) {
        struct life_event ev = {
            .type = LIFE_EV_DRAIN, .text = "a signal", .timeout_ns = timeout_ms * MS};
        tell(w, "host %u: is to leave within %" PRId64 " ms", h->no, timeout_ms);
        step_life(w, h, &ev);
        return;
    }
    const struct end *e = a->linked ? end_of(w, a->link_no) : NULL;
    struct mu_err err = {0};
    if (e == NULL || e->slot == JOB_NO_NODE || !w->jobs[h->job].exists ||
        e->job_life != w->jobs[h->job].life ||
        job_check_drain(&w->jobs[h->job].job, e->slot, &err) < 0)
        return;
    struct ctl_msg m;
    ctl_init(&m, CTL_DRAIN);
    m.u.drain.timeout_ms = timeout_ms;
    (void)mu_strcopy(m.u.drain.reason, sizeof m.u.drain.reason, "somebody asked");
    struct job_event ev = {.type = JOB_EV_DRAIN, .node = e->slot, .msg = &m};
    struct job_out out;
    tell(w, "server: host %u is to leave within %" PRId64 " ms", h->no, timeout_ms);
    if (step_job(w, h->job, &ev, &out, NULL) != 0)
        broken(w, "DRAIN was rejected");
    finish_step(w, h->job, &out);
}

/* ------------------------------------------------------------------ one event */

/* It fails: its peers' sockets close at once, its own agent may notice only after them. */
static void worker_falls(struct world *w,
                         const struct host *h,
                         struct worker *x,
                         uint32_t lrank,
                         int32_t code,
                         int32_t blamed)
{
    int32_t rank = (int32_t)h->a.life.start.rank_base + (int32_t)lrank;
    x->ending = true;
    x->fell_at = w->now;
    if (!x->asked && blamed < 0)
        w->jobs[h->job].fell[rank] = x->round;
    push(w, (struct event){.at = w->now + between(w, 0, 5 * MS),
                           .kind = EV_WORKER_SEEN,
                           .host = h->no,
                           .life_no = x->no,
                           .arg = lrank | (uint32_t)code << 8,
                           .blamed = blamed});
    for (uint32_t i = 0; i < w->host_count; i++) {
        const struct host *o = &w->hosts[i];
        for (uint32_t k = 0; k < o->a.nproc && o->job == h->job; k++) {
            const struct worker *y = &o->a.workers[k];
            if (y->alive && !y->ending && y->round == x->round && chance(w, 40))
                push(w, (struct event){.at = w->now + between(w, MS / 100, 3 * MS),
                                       .kind = EV_WORKER_HIT,
                                       .host = i,
                                       .life_no = y->no,
                                       .arg = k | 1U << 8,
                                       .blamed = rank});
        }
    }
}

static void worker_ends(struct world *w, struct host *h, const struct event *e)
{
    struct agent *a = &h->a;
    uint32_t lrank = e->arg & 0xff;
    int32_t code = (int32_t)(e->arg >> 8);
    struct worker *x = &a->workers[lrank];
    if (!a->alive || !x->alive || x->no != e->life_no)
        return;
    if (x->ending != (e->kind == EV_WORKER_SEEN))
        return;
    if (e->kind == EV_WORKER_HIT || (e->kind == EV_WORKER && code != 0)) {
        worker_falls(w, h, x, lrank, code, e->blamed);
        return;
    }
    x->alive = false;
    a->running--;
    struct life_event ev = {.type = LIFE_EV_WORKER_EXIT,
                            .local_rank = lrank,
                            .halted = e->kind == EV_WORKER_HALT,
                            .by_itself = !x->asked,
                            .names_rank = e->kind == EV_WORKER_SEEN && e->blamed >= 0,
                            .named = e->blamed,
                            .status = e->kind == EV_WORKER_TOLD || code == 9 ? -code : code};
    tell(w, "host %u: worker %u of round %u ends with %d", h->no, lrank, x->round, ev.status);
    maybe_gone(w, h);
    step_life(w, h, &ev);
}

static void connected(struct world *w, struct host *h)
{
    struct agent *a = &h->a;
    struct life_event ev = {.type = LIFE_EV_LINK_FAILED, .text = "time-out"};
    if (h->cut && w->now < h->cut_until) {
        ev.refused = false;
    } else if (!w->server_up) {
        ev.refused = true;
        ev.text = "connection refused";
    } else {
        ev.type = LIFE_EV_LINK_UP;
        a->linked = true;
        a->link_no = ++w->links;
        MU_ASSERT(w->links < LINKS_MAX);
        open_end(w, a->link_no, h->no);
        w->order[a->link_no] = (struct order){w->now, w->now};
    }
    step_life(w, h, &ev);
}

static void run_agent_event(struct world *w, struct event *e)
{
    struct host *h = &w->hosts[e->host];
    struct agent *a = &h->a;
    if (a->alive && a->frozen && w->now < a->frozen_until) {
        struct event later =
            *e; /* A frozen process looks at it when it wakes; order is kept by the heap's ties. */
        later.at = a->frozen_until;
        push(w, later);
        e->msg = NULL;
        return;
    }
    a->frozen = false;
    if (a->alive)
        note_steps(w, h);
    note_paced_steps(w, h);
    struct life_event ev = {.type = LIFE_EV_DEADLINE};
    switch (e->kind) {
    case EV_TO_AGENT: {
        static const int events[CTL_TYPE_COUNT] = {
            [CTL_WELCOME] = LIFE_EV_WELCOME + 1, [CTL_REFUSED] = LIFE_EV_REFUSED + 1,
            [CTL_WAITING] = LIFE_EV_WAITING + 1, [CTL_START] = LIFE_EV_START + 1,
            [CTL_GO] = LIFE_EV_GO + 1,           [CTL_HALT] = LIFE_EV_HALT + 1,
            [CTL_STOP] = LIFE_EV_STOP + 1,       [CTL_BEAT] = LIFE_EV_BEAT + 1,
            [CTL_END] = LIFE_EV_END + 1};
        if (!a->alive || !a->linked || a->link_no != e->life_no)
            return;
        MU_ASSERT(events[e->msg->type] != 0);
        ev.type = (enum life_event_type)(events[e->msg->type] - 1);
        ev.msg = e->msg;
        step_life(w, h, &ev);
        break;
    }
    case EV_AGENT_EOF:
        if (!a->alive || !a->linked || a->link_no != e->life_no)
            return;
        a->linked = false;
        ev.type = LIFE_EV_LINK_LOST;
        step_life(w, h, &ev);
        break;
    case EV_AGENT_TIMER:
        if (a->alive && a->timer_no == e->life_no) {
            a->timer_at = INT64_MAX;
            step_life(w, h, &ev);
        }
        break;
    case EV_CONNECT:
        if (a->alive && a->life_no == e->life_no)
            connected(w, h);
        break;
    case EV_REACH:
        reach_ends(w, h, e);
        break;
    case EV_CHECKED:
        check_ends(w, h, e);
        break;
    case EV_WORKER:
    case EV_WORKER_HIT:
    case EV_WORKER_SEEN:
    case EV_WORKER_TOLD:
    case EV_WORKER_HALT:
        worker_ends(w, h, e);
        break;
    case EV_GONE:
        if (a->alive && a->gone_pending && a->gone_no == e->life_no && a->running == 0) {
            a->gone_no = 0;
            ev.type = LIFE_EV_ALL_GONE;
            step_life(w, h, &ev);
        } else if (a->alive && a->gone_no == e->life_no) {
            a->gone_pending = false;
        }
        break;
    case EV_BOOT:
        boot(w, h);
        break;
    case EV_TO_SERVER:
    case EV_JOB_TIMER:
    case EV_SERVER_EOF:
    case EV_FAULT:
    case EV_DRAIN:
    case EV_SERVER_UP:
        break;
    }
}

static void run_event(struct world *w, struct event *e)
{
    struct end *end =
        e->kind == EV_TO_SERVER || e->kind == EV_SERVER_EOF ? end_of(w, e->life_no) : NULL;
    switch (e->kind) {
    case EV_TO_SERVER:
        if (end != NULL)
            server_message(w, end, e->msg);
        break;
    case EV_SERVER_EOF:
        if (end != NULL)
            server_eof(w, end, e->arg != 0);
        break;
    case EV_JOB_TIMER: {
        struct sim_job *s = &w->jobs[e->host];
        if (w->server_up && s->exists && s->timer_no == e->life_no && e->arg == w->server_no) {
            struct job_event ev = {.type = JOB_EV_DEADLINE, .node = JOB_NO_NODE};
            struct job_out out;
            s->timer_at = INT64_MAX;
            if (step_job(w, e->host, &ev, &out, NULL) != 0)
                broken(w, "DEADLINE was rejected");
            finish_step(w, e->host, &out);
        }
        break;
    }
    case EV_FAULT:
        fault(w);
        break;
    case EV_DRAIN:
        drain_node(w);
        break;
    case EV_SERVER_UP:
        tell(w, "server is up again");
        w->server_up = true;
        w->server_no++;
        w->r->restarts++;
        w->not_before = w->now + LEASE;
        w->last_server_up = w->now;
        for (uint32_t j = 0; j < w->job_count && w->keeps; j++) {
            if (!w->jobs[j].disk.kept)
                continue;
            load_job(w, j);
            set_job_timer(w, j);
        }
        break;
    case EV_TO_AGENT:
    case EV_AGENT_TIMER:
    case EV_CONNECT:
    case EV_REACH:
    case EV_CHECKED:
    case EV_AGENT_EOF:
    case EV_WORKER:
    case EV_WORKER_HIT:
    case EV_WORKER_SEEN:
    case EV_WORKER_TOLD:
    case EV_WORKER_HALT:
    case EV_GONE:
    case EV_BOOT:
        run_agent_event(w, e);
        break;
    }
}

/* ------------------------------------------------------------------ a world */

/* Every other world knows nothing of windows and steps. */
static void make_budget(struct world *w, uint32_t no)
{
    struct budget *b = &w->jobs[no].budget;
    b->doomed_rank = -1;
    if (other_below(w, 2) == 0)
        return;
    if (other_below(w, 2) == 0)
        b->window = (int64_t)(1 + other_below(w, 20)) * SEC;
    if (other_below(w, 3) == 0)
        b->give_back = (int64_t)(1 + other_below(w, 8)) * SEC;
    else if (other_below(w, 2) == 0)
        b->give_back_steps = 1 + other_below(w, 30);
    b->same_failure_restart = other_below(w, 4) == 0;
    if (other_below(w, 3) == 0) {
        b->doomed_rank = (int32_t)other_below(w, 4);
        b->doomed_step = (int32_t)other_below(w, 12);
    }
    tell(w,
         "job%u: window %.0f s, given back after %.0f s or %u steps, rank %d fails after step %d",
         no, (double)b->window / (double)SEC, (double)b->give_back / (double)SEC,
         b->give_back_steps, b->doomed_rank, b->doomed_step);
}

/* In one world of three nodes are asked to leave; in some of these nothing else happens. */
static void make_drains(struct world *w)
{
    w->drain_random = (w->o->seed + 1) * UINT64_C(0xD1342543DE82EF95) | 1;
    (void)drain_below(w, 2);
    w->drains = drain_below(w, 3) == 0;
    if (!w->drains)
        return;
    w->gentle = drain_below(w, 3) == 0;
    w->deaf = drain_below(w, 5) == 0;
    w->fault_rate = w->gentle ? 0 : w->fault_rate;
    w->walled = w->gentle ? 0 : w->walled;
    for (uint32_t j = 0; j < w->job_count; j++)
        if (drain_below(w, 4) > 0)
            w->step_takes[j] = (10 + drain_below(w, drain_below(w, 2) == 0 ? 100 : 1500)) * MS;
    push(w, (struct event){.at = (500 + drain_below(w, 8000)) * MS, .kind = EV_DRAIN});
}

static void make(struct world *w)
{
    w->job_count = chance(w, 25) ? 2 : 1;
    w->host_count = w->job_count + 1 + below(w, HOSTS_MAX - w->job_count);
    w->quick = chance(w, 50) ? MS / 10 : chance(w, 50) ? 5 * MS : 60 * MS;
    w->fault_rate = chance(w, 15) ? 0 : 20 + below(w, 80);
    w->server_up = true;
    w->walled = chance(w, 10) ? 1U << below(w, w->host_count) : 0;
    w->keeps = chance(w, 50);
    w->quarantine = below(w, 3);
    w->checking = chance(w, 40) ? below(w, 1U << w->host_count) : 0;
    uint32_t per_job[JOBS_MAX] = {0};
    for (uint32_t i = 0; i < w->host_count; i++) {
        w->hosts[i].no = i;
        w->hosts[i].job = i % w->job_count;
        w->hosts[i].boots_again = chance(w, 80);
        per_job[i % w->job_count]++;
    }
    for (uint32_t j = 0; j < w->job_count; j++) {
        w->nodes_max[j] = 1 + below(w, per_job[j]);
        w->nodes_min[j] = chance(w, 50) ? w->nodes_max[j] : 1 + below(w, w->nodes_max[j]);
        w->max_restarts[j] = below(w, 4);
        w->on_join[j] = chance(w, 30);
        tell(w, "job%u: %u hosts, nodes %u:%u, %u restarts", j, per_job[j], w->nodes_min[j],
             w->nodes_max[j], w->max_restarts[j]);
    }
    for (uint32_t i = 0; i < w->host_count; i++) {
        int64_t at = chance(w, 70) ? between(w, 0, 50 * MS) : between(w, 0, 10 * SEC);
        push(w, (struct event){.at = at, .kind = EV_BOOT, .host = i});
    }
    push(w, (struct event){.at = between(w, 0, SEC), .kind = EV_FAULT});
    for (uint32_t j = 0; j < w->job_count; j++)
        make_budget(w, j);
    make_drains(w);
}

static void heal(struct world *w)
{
    for (uint32_t i = 0; i < w->host_count; i++) {
        struct host *h = &w->hosts[i];
        if (h->cut && w->now >= h->cut_until)
            h->cut = false;
    }
}

/* Everything came to its end, or the job says what it waits for. */
static void check_end(struct world *w)
{
    for (uint32_t i = 0; i < w->host_count; i++)
        if (w->hosts[i].a.alive)
            broken(w, "host %u: the agent is still in %s round %" PRId64, i,
                   life_state_name(w->hosts[i].a.life.state), w->hosts[i].a.life.start.round);
    for (uint32_t j = 0; j < w->job_count; j++)
        if (w->jobs[j].exists && !job_is_ended(&w->jobs[j].job) && w->jobs[j].job.has_spec)
            broken(w, "job%u is still in %s with nobody left", j,
                   job_state_name(w->jobs[j].job.state));
}

static bool all_quiet(const struct world *w)
{
    if (w->now < FAULTS_END)
        return false;
    for (uint32_t i = 0; i < w->host_count; i++)
        if (w->hosts[i].a.alive)
            return false;
    for (uint32_t i = 0; i < ENDS_MAX; i++)
        if (w->ends[i].open)
            return false;
    for (uint32_t j = 0; j < w->job_count; j++)
        if (w->jobs[j].exists && !job_is_ended(&w->jobs[j].job) && w->jobs[j].job.has_spec)
            return false;
    return true;
}

static void drain(struct world *w)
{
    for (size_t i = 0; i < w->heap_n; i++)
        free(w->heap[i].msg);
    free(w->heap);
    for (uint32_t i = 0; i < w->host_count; i++)
        if (w->hosts[i].a.alive)
            life_fini(&w->hosts[i].a.life);
    for (uint32_t j = 0; j < w->job_count; j++)
        if (w->jobs[j].exists)
            job_fini(&w->jobs[j].job);
}

void world_run(const struct world_options *o, struct world_result *ret)
{
    static struct world w; /* Big; one at a time. */
    memset(&w, 0, sizeof w);
    *ret = (struct world_result){.ok = true, .hash = UINT64_C(14695981039346656037)};
    w.o = o;
    w.r = ret;
    w.random = (o->seed + 1) * UINT64_C(0x9E3779B97F4A7C15);
    w.other_random = w.random ^ UINT64_C(0xD1B54A32D192ED03);
    struct ctl_msg *volatile in_hand = NULL;
    if (setjmp(w.broken) == 0) {
        (void)rnd(&w);
        make(&w);
        while (w.heap_n > 0 && w.heap[0].at < HORIZON && !all_quiet(&w)) {
            struct event e = pop(&w);
            in_hand = e.msg;
            w.standing = e.at > w.now ? 0 : w.standing + 1;
            w.now = e.at;
            ret->events++;
            if (w.standing > STANDING_MAX)
                broken(&w, "%u events and time does not go on", w.standing);
            heal(&w);
            run_event(&w, &e);
            free(e.msg);
            in_hand = NULL;
        }
        check_end(&w);
    }
    free(in_hand);
    tell(&w, "%s", ret->ok ? "the end" : ret->what);
    ret->succeeded = w.ended[0];
    ret->failed = w.ended[1];
    drain(&w);
}
