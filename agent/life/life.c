/* The life of one agent: the table, and what each of its rows does; see life.h. */
#include "agent/life/life.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define NEVER INT64_MAX
#define NS_PER_MS INT64_C(1000000)
#define NS_PER_S INT64_C(1000000000)
#define SIGNO_KILL 9
#define SIGNO_TERM                                                                                 \
    15 /* Linux on every architecture we run on; <signal.h>'s numbers are the system's. */
#define SAME_WORD_NS NS_PER_S /* Signals closer than this are one. */
#define BACKOFF_MIN_NS (20 * NS_PER_MS)
#define BACKOFF_MAX_NS (1000 * NS_PER_MS)
#define STRANGER_NS (2 * NS_PER_S)
#define REACH_GAP_NS (200 * NS_PER_MS)
#define TELL_EXITS_NS                                                                              \
    (200 * NS_PER_MS) /* Single good exits are told in one go: 256 that come at once are one       \
                         FINISHED. */
#define LAST_WORD_NS MU_GOODBYE_NS
#define YOUNG_NS NS_PER_S
#define EXTRA_ACTIONS 16
#define NAMED_MAX 8            /* Workers that a sentence names before it says how many more. */
#define EXIT_NOT_KNOWN (-1000) /* As STOPPED spells it. */

typedef int life_row_fn(struct life *l, int64_t now_ns, const struct life_event *ev);

struct life_row {
    int to; /* enum life_state + 1; 0: no such event here. */
    life_row_fn *act;
};

static life_row_fn greet, link_lost, link_failed, beat_answered, welcome, refused, waiting;
static life_row_fn go_told, reached_lead, unreached_lead, start_workers, checking_deadline;
static life_row_fn start, start_again, start_too_late, stop_other_round, stop_told, stop_again,
    end_here, end_first_stop, end_noted;
static life_row_fn spawned, spawn_failed, worker_exit, tell_silent, worker_hung, stacks_taken,
    stopping_exit, note_gone, count_gone;
static life_row_fn signal_idle, signal_running, signal_finished, signal_stopping;
static life_row_fn owner_running, owner_stopping;
static life_row_fn halt_idle, halt_running, halt_finished, halt_stopping;
static life_row_fn drain_idle, drain_running, drain_finished, drain_stopping;
static void leave_drained(struct life *l);
static void tell_drain(struct life *l, int64_t now_ns);
static life_row_fn joining_deadline, running_deadline, finished_deadline, stopping_deadline,
    ending_deadline;
static life_row_fn health_known;
static life_row_fn say_finished, stop_workers, rejoin, wait_for_last_word, quit;

/* clang-format off */
#define ROW(to_, fn) { LIFE_##to_ + 1, (fn) }
static const struct life_row table[LIFE_STATE_COUNT][LIFE_EV_COUNT] = {
    [LIFE_JOINING] = {
        [LIFE_EV_LINK_UP]      = ROW(JOINING,  greet),
        [LIFE_EV_LINK_LOST]    = ROW(JOINING,  link_lost),
        [LIFE_EV_LINK_FAILED]  = ROW(JOINING,  link_failed),
        [LIFE_EV_WELCOME]      = ROW(JOINING,  welcome),
        [LIFE_EV_REFUSED]      = ROW(JOINING,  refused),
        [LIFE_EV_WAITING]      = ROW(JOINING,  waiting),
        [LIFE_EV_START]        = ROW(CHECKING, start),
        [LIFE_EV_GO]           = ROW(JOINING,  NULL),          /* Of a round that is over. */
        [LIFE_EV_HALT]         = ROW(JOINING,  halt_idle),
        [LIFE_EV_STOP]         = ROW(JOINING,  stop_other_round), /* Of a round that is gone here: say so. */
        [LIFE_EV_END]          = ROW(JOINING,  end_here),
        [LIFE_EV_BEAT]         = ROW(JOINING,  beat_answered),
        [LIFE_EV_REACHED]      = ROW(JOINING,  NULL),          /* Too late: the round is over. */
        [LIFE_EV_UNREACHED]    = ROW(JOINING,  NULL),
        [LIFE_EV_CHECKED]      = ROW(JOINING,  health_known),
        [LIFE_EV_SIGNAL]       = ROW(JOINING,  signal_idle),
        [LIFE_EV_DRAIN]        = ROW(JOINING,  drain_idle),
        [LIFE_EV_OWNER_GONE]   = ROW(JOINING,  signal_idle),
        [LIFE_EV_DEADLINE]     = ROW(JOINING,  joining_deadline),
        [LIFE_EV_GONE_FINAL]   = ROW(ENDING,   wait_for_last_word),
        [LIFE_EV_QUIT]         = ROW(EXITED,   quit),
    },
    [LIFE_CHECKING] = {
        [LIFE_EV_LINK_UP]      = ROW(CHECKING, greet),
        [LIFE_EV_LINK_LOST]    = ROW(CHECKING, link_lost),
        [LIFE_EV_LINK_FAILED]  = ROW(CHECKING, link_failed),
        [LIFE_EV_WELCOME]      = ROW(CHECKING, welcome),
        [LIFE_EV_REFUSED]      = ROW(CHECKING, refused),
        [LIFE_EV_WAITING]      = ROW(CHECKING, waiting),
        [LIFE_EV_START]        = ROW(CHECKING, start_again),
        [LIFE_EV_GO]           = ROW(CHECKING, go_told),
        [LIFE_EV_HALT]         = ROW(CHECKING, halt_idle),
        [LIFE_EV_STOP]         = ROW(CHECKING, stop_told),
        [LIFE_EV_END]          = ROW(CHECKING, end_here),
        [LIFE_EV_BEAT]         = ROW(CHECKING, beat_answered),
        [LIFE_EV_REACHED]      = ROW(CHECKING, reached_lead),
        [LIFE_EV_UNREACHED]    = ROW(CHECKING, unreached_lead),
        [LIFE_EV_CHECKED]      = ROW(CHECKING, NULL),          /* A server that does not know of checks began the round. */
        [LIFE_EV_SIGNAL]       = ROW(CHECKING, signal_idle),
        [LIFE_EV_DRAIN]        = ROW(CHECKING, drain_idle),
        [LIFE_EV_OWNER_GONE]   = ROW(CHECKING, signal_idle),
        [LIFE_EV_DEADLINE]     = ROW(CHECKING, checking_deadline),
        [LIFE_EV_CLEARED]      = ROW(RUNNING,  start_workers),
        [LIFE_EV_BROKEN]       = ROW(STOPPING, stop_workers),
        [LIFE_EV_QUIT]         = ROW(EXITED,   quit),
    },
    [LIFE_RUNNING] = {
        [LIFE_EV_LINK_UP]      = ROW(RUNNING,  greet),
        [LIFE_EV_LINK_LOST]    = ROW(RUNNING,  link_lost),
        [LIFE_EV_LINK_FAILED]  = ROW(RUNNING,  link_failed),
        [LIFE_EV_WELCOME]      = ROW(RUNNING,  welcome),
        [LIFE_EV_REFUSED]      = ROW(RUNNING,  refused),
        [LIFE_EV_WAITING]      = ROW(RUNNING,  waiting),
        [LIFE_EV_START]        = ROW(RUNNING,  start_again),
        [LIFE_EV_GO]           = ROW(RUNNING,  NULL),          /* Said twice, or too late. */
        [LIFE_EV_REACHED]      = ROW(RUNNING,  NULL),          /* Of a try in an earlier round. */
        [LIFE_EV_UNREACHED]    = ROW(RUNNING,  NULL),
        [LIFE_EV_HALT]         = ROW(RUNNING,  halt_running),
        [LIFE_EV_STOP]         = ROW(RUNNING,  stop_told),
        [LIFE_EV_END]          = ROW(RUNNING,  end_first_stop),
        [LIFE_EV_BEAT]         = ROW(RUNNING,  beat_answered),
        [LIFE_EV_SPAWNED]      = ROW(RUNNING,  spawned),
        [LIFE_EV_SPAWN_FAILED] = ROW(RUNNING,  spawn_failed),
        [LIFE_EV_WORKER_EXIT]  = ROW(RUNNING,  worker_exit),
        [LIFE_EV_SILENT]       = ROW(RUNNING,  tell_silent),
        [LIFE_EV_HUNG]         = ROW(RUNNING,  worker_hung),
        [LIFE_EV_CHECKED]      = ROW(RUNNING,  NULL),
        [LIFE_EV_SIGNAL]       = ROW(RUNNING,  signal_running),
        [LIFE_EV_DRAIN]        = ROW(RUNNING,  drain_running),
        [LIFE_EV_OWNER_GONE]   = ROW(RUNNING,  owner_running),
        [LIFE_EV_DEADLINE]     = ROW(RUNNING,  running_deadline),
        [LIFE_EV_DONE]         = ROW(FINISHED, say_finished),
        [LIFE_EV_BROKEN]       = ROW(STOPPING, stop_workers),
    },
    [LIFE_FINISHED] = {
        [LIFE_EV_LINK_UP]      = ROW(FINISHED, greet),
        [LIFE_EV_LINK_LOST]    = ROW(FINISHED, link_lost),
        [LIFE_EV_LINK_FAILED]  = ROW(FINISHED, link_failed),
        [LIFE_EV_WELCOME]      = ROW(FINISHED, welcome),
        [LIFE_EV_REFUSED]      = ROW(FINISHED, refused),
        [LIFE_EV_WAITING]      = ROW(FINISHED, waiting),
        [LIFE_EV_START]        = ROW(FINISHED, start_again),
        [LIFE_EV_GO]           = ROW(FINISHED, NULL),          /* Said twice, or too late. */
        [LIFE_EV_REACHED]      = ROW(FINISHED, NULL),          /* Of a try in an earlier round. */
        [LIFE_EV_UNREACHED]    = ROW(FINISHED, NULL),
        [LIFE_EV_HALT]         = ROW(FINISHED, halt_finished),
        [LIFE_EV_STOP]         = ROW(FINISHED, stop_told),
        [LIFE_EV_END]          = ROW(FINISHED, end_first_stop),
        [LIFE_EV_BEAT]         = ROW(FINISHED, beat_answered),
        [LIFE_EV_ALL_GONE]     = ROW(FINISHED, note_gone),
        [LIFE_EV_CHECKED]      = ROW(FINISHED, NULL),
        [LIFE_EV_SIGNAL]       = ROW(FINISHED, signal_finished),
        [LIFE_EV_DRAIN]        = ROW(FINISHED, drain_finished),
        [LIFE_EV_OWNER_GONE]   = ROW(FINISHED, owner_running),
        [LIFE_EV_DEADLINE]     = ROW(FINISHED, finished_deadline),
        [LIFE_EV_BROKEN]       = ROW(STOPPING, stop_workers),
        [LIFE_EV_QUIT]         = ROW(EXITED,   quit),
    },
    [LIFE_STOPPING] = {
        [LIFE_EV_LINK_UP]      = ROW(STOPPING, greet),
        [LIFE_EV_LINK_LOST]    = ROW(STOPPING, link_lost),
        [LIFE_EV_LINK_FAILED]  = ROW(STOPPING, link_failed),
        [LIFE_EV_WELCOME]      = ROW(STOPPING, welcome),
        [LIFE_EV_REFUSED]      = ROW(STOPPING, refused),
        [LIFE_EV_WAITING]      = ROW(STOPPING, waiting),
        [LIFE_EV_HALT]         = ROW(STOPPING, halt_stopping),
        [LIFE_EV_STOP]         = ROW(STOPPING, stop_again),
        [LIFE_EV_START]        = ROW(STOPPING, start_again),
        [LIFE_EV_GO]           = ROW(STOPPING, NULL),          /* Said twice, or too late. */
        [LIFE_EV_END]          = ROW(STOPPING, end_noted),
        [LIFE_EV_BEAT]         = ROW(STOPPING, beat_answered),
        [LIFE_EV_REACHED]      = ROW(STOPPING, NULL),          /* Too late: the round is being stopped. */
        [LIFE_EV_UNREACHED]    = ROW(STOPPING, NULL),
        [LIFE_EV_STACKS]       = ROW(STOPPING, stacks_taken),
        [LIFE_EV_WORKER_EXIT]  = ROW(STOPPING, stopping_exit), /* A consequence of the stop, mostly. */
        [LIFE_EV_ALL_GONE]     = ROW(STOPPING, count_gone),
        [LIFE_EV_CHECKED]      = ROW(STOPPING, NULL),
        [LIFE_EV_SIGNAL]       = ROW(STOPPING, signal_stopping),
        [LIFE_EV_DRAIN]        = ROW(STOPPING, drain_stopping),
        [LIFE_EV_OWNER_GONE]   = ROW(STOPPING, owner_stopping),
        [LIFE_EV_DEADLINE]     = ROW(STOPPING, stopping_deadline),
        [LIFE_EV_GONE_REJOIN]  = ROW(JOINING,  rejoin),
        [LIFE_EV_GONE_FINAL]   = ROW(ENDING,   wait_for_last_word),
        [LIFE_EV_QUIT]         = ROW(EXITED,   quit),
    },
    [LIFE_ENDING] = {
        [LIFE_EV_LINK_UP]      = ROW(ENDING,   greet),
        [LIFE_EV_LINK_LOST]    = ROW(ENDING,   link_lost),
        [LIFE_EV_LINK_FAILED]  = ROW(ENDING,   link_failed),
        [LIFE_EV_WELCOME]      = ROW(ENDING,   welcome),
        [LIFE_EV_REFUSED]      = ROW(ENDING,   refused),
        [LIFE_EV_WAITING]      = ROW(ENDING,   waiting),
        [LIFE_EV_HALT]         = ROW(ENDING,   NULL),          /* It ends already. */
        [LIFE_EV_STOP]         = ROW(ENDING,   stop_other_round),
        [LIFE_EV_START]        = ROW(ENDING,   start_too_late), /* A restarted server that never heard of the end. */
        [LIFE_EV_GO]           = ROW(ENDING,   NULL),          /* As above, of a round that is over. */
        [LIFE_EV_REACHED]      = ROW(ENDING,   NULL),
        [LIFE_EV_UNREACHED]    = ROW(ENDING,   NULL),
        [LIFE_EV_END]          = ROW(ENDING,   end_here),
        [LIFE_EV_BEAT]         = ROW(ENDING,   beat_answered),
        [LIFE_EV_CHECKED]      = ROW(ENDING,   NULL),
        [LIFE_EV_SIGNAL]       = ROW(ENDING,   signal_idle),
        [LIFE_EV_DRAIN]        = ROW(ENDING,   NULL),          /* It ends already. */
        [LIFE_EV_OWNER_GONE]   = ROW(ENDING,   signal_idle),
        [LIFE_EV_DEADLINE]     = ROW(ENDING,   ending_deadline),
        [LIFE_EV_QUIT]         = ROW(EXITED,   quit),
    },
    [LIFE_EXITED] = { /* What was under way when EXIT went out. */
        [LIFE_EV_LINK_UP]      = ROW(EXITED,   NULL),
        [LIFE_EV_LINK_LOST]    = ROW(EXITED,   NULL),
        [LIFE_EV_LINK_FAILED]  = ROW(EXITED,   NULL),
        [LIFE_EV_WELCOME]      = ROW(EXITED,   NULL),
        [LIFE_EV_REFUSED]      = ROW(EXITED,   NULL),
        [LIFE_EV_WAITING]      = ROW(EXITED,   NULL),
        [LIFE_EV_START]        = ROW(EXITED,   NULL),
        [LIFE_EV_GO]           = ROW(EXITED,   NULL),
        [LIFE_EV_REACHED]      = ROW(EXITED,   NULL),
        [LIFE_EV_UNREACHED]    = ROW(EXITED,   NULL),
        [LIFE_EV_HALT]         = ROW(EXITED,   NULL),
        [LIFE_EV_STOP]         = ROW(EXITED,   NULL),
        [LIFE_EV_END]          = ROW(EXITED,   NULL),
        [LIFE_EV_BEAT]         = ROW(EXITED,   NULL),
        [LIFE_EV_CHECKED]      = ROW(EXITED,   NULL),
        [LIFE_EV_WORKER_EXIT]  = ROW(EXITED,   NULL),
        [LIFE_EV_ALL_GONE]     = ROW(EXITED,   NULL),
        [LIFE_EV_SIGNAL]       = ROW(EXITED,   NULL),
        [LIFE_EV_DRAIN]        = ROW(EXITED,   NULL),
        [LIFE_EV_OWNER_GONE]   = ROW(EXITED,   NULL),
        [LIFE_EV_DEADLINE]     = ROW(EXITED,   NULL),
    },
};
/* clang-format on */

int life_table_to(enum life_state s, enum life_event_type e)
{
    return table[s][e].to - 1;
}

/* ------------------------------------------------------------------ small things */

static void act(struct life *l, enum life_action_type type)
{
    MU_ASSERT(l->action_count < (uint32_t)l->config.hello.nproc + EXTRA_ACTIONS);
    l->actions[l->action_count++] = (struct life_action){.type = type, .msg = CTL_TYPE_COUNT};
}

static void send_arg(struct life *l, enum ctl_type msg, uint32_t arg)
{
    if (!l->link_up)
        return; /* Said again, in one form or another, by the next HELLO. */
    act(l, LIFE_ACT_SEND);
    l->actions[l->action_count - 1].msg = msg;
    l->actions[l->action_count - 1].arg = arg;
}

static void send(struct life *l, enum ctl_type msg)
{
    send_arg(l, msg, 0);
}

static void say(struct life *l, const char *text)
{
    size_t room = sizeof l->words - l->words_used;
    int n = snprintf(l->words + l->words_used, room, "%s", text); /* A cut sentence is still one. */
    act(l, LIFE_ACT_SAY);
    l->actions[l->action_count - 1].arg = l->words_used;
    size_t used = n < 0 ? 0 : (size_t)n < room ? (size_t)n + 1 : room;
    l->words_used += (uint32_t)(used < room ? used : room - 1); /* The last byte stays for "". */
}

/* xorshift64*: jitter only. */
static uint64_t next_random(struct life *l)
{
    l->random ^= l->random >> 12;
    l->random ^= l->random << 25;
    l->random ^= l->random >> 27;
    return l->random * UINT64_C(2685821657736338717);
}

static int64_t sooner(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* output: last lines of the worker it names, or NULL. */
static void take_cause(struct life *l, const struct mu_cause *c, const char *output)
{
    l->cause = *c;
    l->has_cause = c->kind != MU_CAUSE_NONE;
    if (output != l->cause_output)
        (void)snprintf(l->cause_output, sizeof l->cause_output, "%s", output != NULL ? output : "");
}

static struct mu_cause
cause_here(const struct life *l, enum mu_cause_kind kind, const char *text, int64_t unix_ms)
{
    struct mu_cause c = MU_CAUSE_INIT;
    c.kind = kind;
    c.round = (uint32_t)l->start.round;
    c.at_unix_ms = unix_ms;
    c.node_rank = l->start.round != 0 ? (int32_t)l->start.node_rank : -1;
    memcpy(c.host, l->config.hello.host, sizeof c.host);
    if (text != NULL)
        (void)snprintf(c.message, sizeof c.message, "%s", text);
    return c;
}

static void put_words(char *dst, size_t cap, const char *text)
{
    (void)snprintf(dst, cap, "%s", text != NULL ? text : ""); /* Cut words are words. */
}

static void note_failure(struct life *l, const struct mu_cause *c, const struct life_words *w)
{
    l->failure = *c;
    l->failure_said = true;
    put_words(l->failure_output, sizeof l->failure_output, w->output);
    put_words(l->failure_tail, sizeof l->failure_tail, w->tail);
    put_words(l->failure_trace, sizeof l->failure_trace, w->trace);
}

/* The round failed or must be left here: our own cause, until the server tells the first one. */
static void fail_here(struct life *l, const struct mu_cause *c, const struct life_words *w)
{
    static const struct life_words none;
    w = w != NULL ? w : &none;
    if (l->failure_untold)
        return;
    note_failure(l, c, w);
    l->failure_untold = true;
    if (!l->has_cause)
        take_cause(l, c, w->output);
    send(l, CTL_FAILED);
}

/* ------------------------------------------------------------------ the link */

static void try_connect(struct life *l)
{
    if (l->connecting || l->link_up)
        return;
    l->connecting = true;
    l->connect_at_ns = NEVER;
    act(l, LIFE_ACT_CONNECT);
}

/* Is there something that only a server can give? Then its absence has a limit. */
static bool needs_server(const struct life *l)
{
    return l->state == LIFE_JOINING || l->state == LIFE_CHECKING || l->state == LIFE_FINISHED ||
           l->failure_untold;
}

static void retry_later(struct life *l, int64_t now_ns)
{
    int64_t jitter = (int64_t)(next_random(l) % (uint64_t)(l->backoff_ns / 2 + 1));
    l->connect_at_ns = now_ns + l->backoff_ns / 2 + jitter;
    l->backoff_ns = l->backoff_ns * 2 > BACKOFF_MAX_NS ? BACKOFF_MAX_NS : l->backoff_ns * 2;
    if (l->needed_since_ns == NEVER && needs_server(l))
        l->needed_since_ns = now_ns;
}

/* Words about the link, for whoever waits for a server in vain. */
static void note_words(struct life *l, const struct life_event *ev)
{
    if (ev->text != NULL)
        (void)snprintf(l->last_error, sizeof l->last_error, "%s", ev->text);
}

static int greet(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    if (!l->told_why)
        note_words(l, ev);
    l->link_up = true;
    l->links++;
    l->connecting = false;
    l->connect_at_ns = NEVER;
    l->hello_sent_ns = now_ns;
    l->beat_at_ns = now_ns + l->beat_ns;
    send(l, CTL_HELLO);
    l->steps_untold = l->spawned;
    if (l->spawned && l->state == LIFE_RUNNING)
        send(l, CTL_STARTED); /* A server that was started anew does not know the pids. */
    /* What the server may have missed while the link was down. */
    if (l->failure_untold)
        send(l, CTL_FAILED);
    if (l->failure_untold && l->state == LIFE_JOINING)
        send(l, CTL_STOPPED);
    if (l->health == LIFE_HEALTH_UNHEALTHY)
        send(l, CTL_HEALTH);
    if (l->draining)
        tell_drain(l, now_ns);
    return 0;
}

/* Another program's port: waiting would not help. It is asked again for a moment, as a proxy may
 * answer so before the server behind it is up. */
static int leave_to_stranger(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    if (l->welcomed || now_ns - l->stranger_ns < STRANGER_NS)
        return 0;
    char text[400];
    (void)snprintf(text, sizeof text, "%.255s: choose another port, or stop that program",
                   l->last_error);
    struct mu_cause c = cause_here(l, MU_CAUSE_NODE_FAILED, text, ev->unix_ms);
    take_cause(l, &c, NULL);
    l->exit_status = 1;
    l->leaving = true;
    return LIFE_EV_QUIT;
}

static int link_lost(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    if (!l->told_why)
        note_words(l, ev);
    l->link_up = false;
    l->connecting = false;
    if (l->ended) /* The server said its last word, and closed. */
        return 0;
    /* At once where it had lasted; where it breaks again and again, or we were refused, without
     * hurry. */
    if (l->told_why)
        l->backoff_ns = BACKOFF_MAX_NS;
    else if (now_ns - l->hello_sent_ns >= l->beat_ns)
        l->backoff_ns = BACKOFF_MIN_NS;
    l->link_welcomed = false;
    if (l->unserved_ns == NEVER)
        l->unserved_ns = now_ns;
    if (!ev->stranger)
        l->stranger_ns = NEVER;
    else if (l->stranger_ns == NEVER)
        l->stranger_ns = now_ns;
    retry_later(l, now_ns);
    return ev->stranger && l->state == LIFE_JOINING ? leave_to_stranger(l, now_ns, ev) : 0;
}

static int link_failed(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    l->connecting = false;
    l->stranger_ns = NEVER;
    if (ev->refused)
        l->heard_ns = now_ns; /* No server process, so nobody decides anything meanwhile. */
    l->told_why = false;
    note_words(l, ev);
    retry_later(l, now_ns);
    return 0;
}

/* A spare has come: the server could soon go on without us. It counts on that no sooner than our
 * next beat says so, and we never allow ourselves more again. Not where that would end our workers
 * at once. */
static void take_fence(struct life *l, int64_t now_ns, const struct ctl_beat *m)
{
    bool fresh = now_ns - l->heard_ns < m->fence_ms * NS_PER_MS / 2;
    if (m->fence_ms > 0 && m->fence_ms < l->fence_ms && m->round == l->start.round && fresh)
        l->fence_ms = m->fence_ms;
}

/* The server's answer to a beat: it had heard us when that beat was sent, not later. */
static int beat_answered(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    int64_t seq = ev->msg->u.beat.seq;
    l->needed_since_ns = NEVER; /* It serves us. */
    if (seq > 0 && seq <= l->beat_seq && seq > l->beat_seq - LIFE_BEATS_REMEMBERED) {
        int64_t sent = l->beat_sent_ns[seq % LIFE_BEATS_REMEMBERED];
        l->heard_ns = sent > l->heard_ns ? sent : l->heard_ns;
    }
    take_fence(l, now_ns, &ev->msg->u.beat);
    return 0;
}

static int welcome(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    const struct ctl_welcome *w = &ev->msg->u.welcome;
    if (l->hello_sent_ns > l->heard_ns)
        l->heard_ns = l->hello_sent_ns;
    l->welcomed = true;
    l->link_welcomed = true;
    l->server_lasts = w->lasts != 0;
    l->told_why = false;
    l->unserved_ns = NEVER;
    l->next_word_ns = now_ns;
    l->word_gap_ns = MU_FIRST_WORD_NS;
    /* Counted from our last word: a server that has much to do greets late. */
    if (l->link_up)
        l->beat_at_ns += w->beat_ms * NS_PER_MS - l->beat_ns;
    l->beat_ns = w->beat_ms * NS_PER_MS;
    return 0;
}

/* Refused for good: nothing of ours runs in the server's eyes, so nothing may run here. */
static int refused(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    const struct ctl_refused *r = &ev->msg->u.refused;
    (void)snprintf(l->last_error, sizeof l->last_error, "%.255s", r->text);
    if (r->retry != 0) {
        if (!l->told_why)
            say(l, r->text);
        l->told_why = true;
        return 0; /* The server closes; LINK_LOST brings the next attempt, and the join time-out its
                     end. */
    }
    l->told_why = true;
    struct mu_cause c = cause_here(l, MU_CAUSE_NODE_FAILED, r->text, ev->unix_ms);
    take_cause(l, &c, NULL);
    l->exit_status = 1;
    l->leaving = true;
    if (l->state == LIFE_RUNNING)
        return LIFE_EV_BROKEN;
    return l->state == LIFE_STOPPING ? 0 : LIFE_EV_QUIT;
}

static int waiting(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    char text[sizeof l->config.meeting + MU_MESSAGE_BYTES + 2];
    const char *where = l->config.meeting;
    if (l->state == LIFE_STOPPING && !l->gone)
        return 0; /* It is us: who stays is said here, by name. */
    (void)snprintf(text, sizeof text, "%s%s%s", where, where[0] != '\0' ? ": " : "",
                   ev->msg->u.waiting.text);
    say(l, text);
    return 0;
}

/* ------------------------------------------------------------------ a round */

/* When somebody else may soon be allowed to take our place: workers are told to stop after 0.7 of
 * the fence time, and whatever grace they had ends at 0.85 of it. */
static int64_t fence_at(const struct life *l)
{
    return l->heard_ns + l->fence_ms * NS_PER_MS / 20 * 14;
}

static int64_t fence_kill_at(const struct life *l)
{
    return l->heard_ns + l->fence_ms * NS_PER_MS / 20 * 17;
}

static int fence(struct life *l, int64_t unix_ms)
{
    struct mu_cause c = cause_here(l, MU_CAUSE_NODE_SILENT,
                                   "the server was not heard for 0.7 of the fence time: workers "
                                   "are stopped before others may take their place",
                                   unix_ms);
    l->signo = SIGNO_TERM;
    take_cause(l, &c, NULL);
    say(l, c.message);
    return LIFE_EV_BROKEN;
}

static int start(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    MU_ASSERT(l->gone && l->alive == 0);
    l->start = ev->msg->u.start;
    l->fence_ms = l->start.fence_ms;
    l->needed_since_ns = NEVER;
    l->restarts = (uint32_t)l->start.restarts;
    l->spent = (uint32_t)(l->start.spent >= 0 ? l->start.spent : l->start.restarts);
    l->max_restarts = (uint32_t)l->start.max_restarts;
    l->spawned = false;
    l->signal_at_ns = 0;
    l->failure_untold = false;
    l->failure_said = false;
    l->final = false;
    l->halt_step = -1;
    l->halted = false;
    l->has_cause = false;
    l->any_untold = false;
    l->tell_at_ns = NEVER;
    for (int64_t i = 0; i < l->config.hello.nproc; i++) {
        l->exits[i] = EXIT_NOT_KNOWN;
        l->exit_untold[i] = false;
        l->steps[i] = -1;
    }
    l->steps_untold = false;
    l->late_count = 0;
    l->last_exit_ns = 0;
    l->stop_ms = l->reclaim_ms = -1;
    if (now_ns >= fence_at(l))
        return fence(l, ev->unix_ms); /* It was so long under way that the round may be over. */
    if (l->start.reach_ms == 0)
        return LIFE_EV_CLEARED;
    l->reach_until_ns = now_ns + l->start.reach_ms * NS_PER_MS;
    l->reach_at_ns = NEVER;
    l->reach_error[0] = '\0';
    l->reach_word_ns = now_ns + MU_FIRST_WORD_NS;
    l->reached = l->start.node_rank == 0; /* It leads. */
    if (l->reached)
        send(l, CTL_REACHED);
    else
        act(l, LIFE_ACT_REACH);
    return 0;
}

static int reached_lead(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    l->reached = true;
    send(l, CTL_REACHED);
    return 0;
}

static int unreached_lead(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    if (ev->text != NULL)
        (void)snprintf(l->reach_error, sizeof l->reach_error, "%.127s", ev->text);
    l->reach_at_ns = now_ns + REACH_GAP_NS;
    return 0;
}

/* All nodes of the round reach the lead. */
static int go_told(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    if (ev->msg->u.go.round != l->start.round || !l->reached)
        return 0;
    return now_ns >= fence_at(l) ? fence(l, ev->unix_ms) : LIFE_EV_CLEARED;
}

static int start_workers(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    l->alive = (uint32_t)l->config.hello.nproc;
    l->gone = false;
    act(l, LIFE_ACT_SPAWN);
    return 0;
}

/* The server, which knows the lead's name, makes the whole sentence of it. */
static int give_lead_up(struct life *l, int64_t unix_ms)
{
    char text[240];
    (void)snprintf(text, sizeof text, "%s, tried for %" PRId64 " s",
                   l->reach_error[0] != '\0' ? l->reach_error : "no answer",
                   l->start.reach_ms / 1000);
    struct mu_cause c = cause_here(l, MU_CAUSE_UNREACHED, text, unix_ms);
    fail_here(l, &c, NULL);
    return LIFE_EV_BROKEN;
}

/* START of the round we are in: the server thinks the first one was lost. Of another round it never
 * is (server's rule). */
static int start_again(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    if (ev->msg->u.start.round != l->start.round)
        return 0;
    if (l->spawned)
        send(l, CTL_STARTED);
    else if (l->state == LIFE_CHECKING && l->reached)
        send(l, CTL_REACHED);
    return 0;
}

static int start_too_late(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    return LIFE_EV_QUIT; /* BYE tells it why. */
}

static int spawned(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    memcpy(l->pids, ev->pids, (size_t)l->config.hello.nproc * sizeof l->pids[0]);
    l->spawned = true;
    l->spawned_ns = now_ns;
    send(l, CTL_STARTED);
    return 0;
}

static struct mu_cause
cause_of_worker(const struct life *l, enum mu_cause_kind kind, const struct life_event *ev)
{
    struct mu_cause c = cause_here(l, kind, ev->text, ev->unix_ms);
    c.local_rank = (int32_t)ev->local_rank;
    c.rank = (int32_t)l->start.rank_base + c.local_rank;
    c.step = l->steps[ev->local_rank];
    return c;
}

static int spawn_failed(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    struct mu_cause c = cause_of_worker(l, MU_CAUSE_SPAWN_FAILED, ev);
    fail_here(l, &c, NULL);
    return LIFE_EV_BROKEN;
}

/* Ranks run one program and start together: where one exits in its first moments, the others may
 * be about to say why too, and better. They are told to end when they are twice as old. */
static void spare_the_young(struct life *l, int64_t now_ns)
{
    int64_t age_ns = l->spawned ? now_ns - l->spawned_ns : YOUNG_NS;
    l->signal_at_ns = age_ns < YOUNG_NS ? now_ns + age_ns : 0;
}

static int32_t whole_ms(int64_t ns)
{
    int64_t ms = ns / NS_PER_MS;
    return ms < 0 ? 0 : ms > INT32_MAX ? INT32_MAX : (int32_t)ms;
}

static void record_exit(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    MU_ASSERT(ev->local_rank < l->config.hello.nproc &&
              l->exits[ev->local_rank] == EXIT_NOT_KNOWN && l->alive > 0);
    l->exits[ev->local_rank] = ev->status;
    l->alive--;
    l->last_exit_ns = now_ns;
}

static struct mu_cause cause_of_exit(const struct life *l, const struct life_event *ev)
{
    struct mu_cause c =
        cause_of_worker(l, ev->status > 0 ? MU_CAUSE_WORKER_EXIT : MU_CAUSE_WORKER_SIGNAL, ev);
    c.pid = l->pids[ev->local_rank];
    c.exit_code = ev->status > 0 ? ev->status : 0;
    c.signo = ev->status < 0 ? -ev->status : 0;
    c.core_dumped = ev->core_dumped;
    c.out_of_memory = ev->oom_killed;
    c.blame = ev->names_rank && ev->named != c.rank ? ev->named : -1;
    return c;
}

static int worker_exit(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    record_exit(l, now_ns, ev);
    l->halted = l->halted || (ev->status == 0 && ev->halted);
    if (ev->status == 0) {
        if (l->alive == 0)
            return LIFE_EV_DONE;
        l->exit_untold[ev->local_rank] = true;
        if (!l->any_untold)
            l->tell_at_ns = now_ns + TELL_EXITS_NS;
        l->any_untold = true;
        return 0;
    }
    struct mu_cause c = cause_of_exit(l, ev);
    if (ev->status > 0)
        spare_the_young(l, now_ns);
    fail_here(l, &c, &ev->words);
    return LIFE_EV_BROKEN;
}

static int tell_silent(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    uint32_t n = ev->silent.n / CTL_SILENT_NUMBERS;
    uint32_t room = (uint32_t)l->config.hello.nproc;
    room = room < CTL_SILENT_MAX ? room : CTL_SILENT_MAX;
    l->silent_count = (n < room ? n : room) * CTL_SILENT_NUMBERS;
    if (l->silent_count > 0)
        memcpy(l->silent, ev->silent.v, l->silent_count * sizeof l->silent[0]);
    send(l, CTL_SILENT);
    return 0;
}

static int worker_hung(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    struct mu_cause c = cause_of_worker(l, MU_CAUSE_NO_PROGRESS, ev);
    c.pid = l->pids[ev->local_rank];
    fail_here(l, &c, &ev->words);
    return LIFE_EV_BROKEN;
}

static int say_finished(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    send(l, CTL_FINISHED);
    l->tell_at_ns = NEVER;
    if (!l->link_up && l->needed_since_ns == NEVER)
        l->needed_since_ns = now_ns;
    return 0;
}

/* It failed by itself, though something else had failed before. */
static void note_late(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    if (ev->status == 0 || !ev->by_itself || !l->spawned)
        return;
    if (l->late_count < MU_CONSEQUENCES_MAX) {
        l->late[2 * l->late_count] = (int32_t)ev->local_rank;
        l->late[2 * l->late_count + 1] = whole_ms(now_ns - l->stop_began_ns);
    }
    l->late_count++;
}

/* Mostly a consequence of the stop. But news of a failure elsewhere can be faster than our notice
 * of the one here that brought it about: what failed before we touched it is told, and whoever
 * knows all of it decides. */
static int stopping_exit(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    record_exit(l, now_ns, ev);
    note_late(l, now_ns, ev);
    if (ev->status == 0 || !ev->by_itself || !l->spawned)
        return 0;
    struct mu_cause c = cause_of_exit(l, ev);
    if (l->failure_said && !mu_cause_is_better(&c, &l->failure, true))
        return 0;
    note_failure(l, &c, &ev->words);
    bool told = l->told_stop_round == l->start.round;
    if (!told && l->has_cause && mu_cause_is_better(&c, &l->cause, true))
        take_cause(l, &c, ev->words.output);
    send(l, CTL_FAILED);
    return 0;
}

static int note_gone(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    l->gone = true;
    return 0;
}

static int nothing_left(struct life *l)
{
    if (l->draining && !l->final && !l->leaving && !l->ended)
        leave_drained(l);
    if (l->leaving || l->ended)
        return LIFE_EV_QUIT;
    return l->final ? LIFE_EV_GONE_FINAL : LIFE_EV_GONE_REJOIN;
}

static int count_gone(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    int64_t ended_ns = l->last_exit_ns > l->stop_began_ns ? l->last_exit_ns : l->stop_began_ns;
    l->gone = true;
    l->alive = 0; /* Some were never started, where a spawn failed. */
    l->stop_ms = whole_ms(ended_ns - l->stop_began_ns);
    l->reclaim_ms = whole_ms(now_ns - ended_ns);
    for (uint32_t i = 0; i < l->late_count && i < MU_CONSEQUENCES_MAX; i++) /* Backwards. */
        l->late[2 * i + 1] = whole_ms(now_ns - l->stop_began_ns) - l->late[2 * i + 1];
    return nothing_left(l);
}

static void signal_workers(struct life *l, int64_t now_ns)
{
    act(l, LIFE_ACT_SIGNAL);
    l->signalled = true;
    l->stop_deadline_ns = now_ns + l->config.grace_ns;
}

static void kill_workers(struct life *l, int64_t now_ns)
{
    act(l, LIFE_ACT_KILL);
    l->killed = true;
    l->stop_deadline_ns = now_ns + MU_KILL_WAIT_NS;
}

/* The ladder's first rung: the signal that was asked for, or SIGTERM. Nothing to do where nothing
 * is left. */
static int stop_workers(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    l->killed = false;
    l->signalled = false;
    l->tell_at_ns = NEVER;
    l->stop_deadline_ns = l->signal_at_ns;
    l->stop_began_ns = now_ns;
    l->stop_word_ns = now_ns + MU_FIRST_WORD_NS;
    l->stop_gap_ns = MU_FIRST_WORD_NS;
    if (l->gone)
        return nothing_left(l);
    if (l->kill_at_once) {
        kill_workers(l, now_ns);
        return 0;
    }
    if (l->alive > 0 && now_ns < l->signal_at_ns)
        return 0;
    signal_workers(l, now_ns);
    if (l->alive == 0) /* Only what the workers left behind: it gets no grace. */
        kill_workers(l, now_ns);
    return 0;
}

/* "round 1 ended: rank 3 on n2 exited with status 7; the group starts again (1 of 3 restarts)" */
static void say_why_again(struct life *l, const struct ctl_stop *m)
{
    struct mu_buf b;
    char within[LIFE_WITHIN_BYTES];
    mu_buf_init(&b, l->mem);
    (void)mu_buf_addf(&b, "round %" PRId64 " ended: ", m->round);
    mu_cause_sentence(&m->cause, &b);
    if (mu_cause_costs_restart(m->cause.kind))
        (void)mu_buf_addf(&b, "; the group starts again (restart %" PRId64 " of %u%s)",
                          m->spent >= 0 ? m->spent : l->restarts + (int64_t)1, l->max_restarts,
                          life_within(l, within));
    else
        (void)mu_buf_adds(&b, "; the group starts again when enough nodes are here (no restart is "
                              "spent)");
    say(l, mu_buf_cstr(&b));
    mu_buf_fini(&b);
}

static bool is_same_failure(const struct mu_cause *a, const struct mu_cause *b)
{
    return a->kind == b->kind && a->rank == b->rank && a->node_rank == b->node_rank &&
           strcmp(a->host, b->host) == 0;
}

static void note_stop(struct life *l, const struct ctl_stop *m)
{
    bool news = l->told_stop_round != m->round || !is_same_failure(&l->cause, &m->cause);
    l->told_stop_round = (uint32_t)m->round;
    l->final = m->final != 0;
    l->failure_untold = false;
    take_cause(l, &m->cause, m->output);
    if (news && !l->final && !l->leaving) /* The end of the job says its cause itself. */
        say_why_again(l, m);
}

static int stop_other_round(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    const struct ctl_stop *m = &ev->msg->u.stop;
    l->stopped_round = (uint32_t)m->round;
    if (m->round == l->start.round) {
        note_stop(l, m);
        if (l->final && l->state == LIFE_JOINING)
            return LIFE_EV_GONE_FINAL;
    }
    send(l, CTL_STOPPED);
    return 0;
}

/* A worker elsewhere hangs, or one of ours that was blamed there: what ours are doing, no one can
 * tell any more once they are told to end. They lose no grace by it. */
static void look_first(struct life *l, int64_t now_ns)
{
    int64_t limit_ns = sooner(l->config.stacks_ns, l->config.grace_ns);
    if (limit_ns <= 0 || l->alive == 0)
        return;
    act(l, LIFE_ACT_STACKS);
    l->signal_at_ns = now_ns + limit_ns;
}

/* The server knows of the one that hung by now, and has no words of it where others blamed it. */
static int stacks_taken(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    int32_t local_rank = l->cause.rank - (int32_t)l->start.rank_base;
    bool ours = l->cause.kind == MU_CAUSE_NO_PROGRESS && local_rank >= 0 &&
                local_rank < l->config.hello.nproc;
    if (ours && !l->failure_said && !l->leaving) {
        struct mu_cause c = l->cause;
        c.local_rank = local_rank;
        note_failure(l, &c, &ev->words);
        send(l, CTL_FAILED);
    }
    if (!l->signalled && !l->killed && !l->gone)
        signal_workers(l, now_ns);
    return 0;
}

static int stop_told(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    if (ev->msg->u.stop.round != l->start.round)
        return stop_other_round(l, now_ns, ev);
    note_stop(l, &ev->msg->u.stop);
    l->signo = SIGNO_TERM;
    if (l->state == LIFE_RUNNING && l->cause.kind == MU_CAUSE_WORKER_EXIT)
        spare_the_young(l, now_ns);
    if (l->state == LIFE_RUNNING && l->cause.kind == MU_CAUSE_NO_PROGRESS)
        look_first(l, now_ns);
    return LIFE_EV_BROKEN;
}

static int stop_again(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    if (ev->msg->u.stop.round == l->start.round)
        note_stop(l, &ev->msg->u.stop);
    return 0;
}

/* ------------------------------------------------------------------ the end */

static void begin_check(struct life *l)
{
    l->recheck_at_ns = NEVER;
    if (l->health != LIFE_HEALTH_UNHEALTHY)
        l->health = LIFE_HEALTH_CHECKING;
    act(l, LIFE_ACT_CHECK);
}

static void note_end(struct life *l, const struct ctl_end *m)
{
    l->ended = true;
    l->success = m->success != 0;
    l->restarts = (uint32_t)m->restarts;
    l->spent = (uint32_t)(m->spent >= 0 ? m->spent : m->restarts);
    l->max_restarts = (uint32_t)m->max_restarts;
    l->same_failure = m->same_failure != 0;
    memcpy(l->spent_by, m->spent_by, sizeof l->spent_by);
    l->consequences = m->consequences;
    l->incident = m->incident;
    if (!l->success && m->cause.kind != MU_CAUSE_NONE)
        take_cause(l, &m->cause, m->output);
    if (!l->leaving)
        l->exit_status = l->success ? 0 : l->same_failure ? LIFE_EXIT_SAME_FAILURE : 1;
}

static int end_here(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    note_end(l, &ev->msg->u.end);
    return LIFE_EV_QUIT;
}

/* END while processes of the round may be left: they go first. */
static int end_first_stop(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    note_end(l, &ev->msg->u.end);
    l->signo = SIGNO_TERM;
    if (l->state == LIFE_FINISHED && l->gone)
        return LIFE_EV_QUIT;
    return LIFE_EV_BROKEN;
}

static int end_noted(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    note_end(l, &ev->msg->u.end);
    return 0;
}

/* Before the next round it is looked at anew; whoever looks before nothing is left here would see
 * the workers. */
static int rejoin(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    if (l->config.checks_health)
        begin_check(l);
    l->stopped_round = (uint32_t)l->start.round;
    send(l, CTL_STOPPED);
    l->stop_deadline_ns = NEVER;
    if (!l->link_up && l->needed_since_ns == NEVER)
        l->needed_since_ns = now_ns;
    return 0;
}

static int wait_for_last_word(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    l->stopped_round = (uint32_t)l->start.round;
    send(l, CTL_STOPPED);
    l->stop_deadline_ns = now_ns + LAST_WORD_NS;
    l->exit_status = 1;
    return 0;
}

static int quit(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    if (!l->ended)
        send(l, CTL_BYE);
    act(l, LIFE_ACT_EXIT);
    return 0;
}

/* ------------------------------------------------------------------ health */

static void say_health(struct life *l, const char *before, const char *after)
{
    char text[MU_MESSAGE_BYTES + 160];
    (void)snprintf(text, sizeof text, "%s%s%s", before, l->health_text, after);
    say(l, text);
}

/* Absent evidence is no failure: what could not look is said once, and this node is counted on.
 * Nor does it take a failure back. */
static int health_unknown(struct life *l, const char *text)
{
    bool news = strcmp(l->health_text, text) != 0;
    if (l->health == LIFE_HEALTH_UNHEALTHY)
        return 0;
    (void)snprintf(l->health_text, sizeof l->health_text, "%s", text);
    if (news)
        say_health(l, "", "; this node is counted on all the same");
    l->health = LIFE_HEALTH_OK;
    send(l, CTL_HEALTH);
    return 0;
}

static int64_t first_gap(const struct life *l)
{
    return l->config.recheck_ns > 0 ? l->config.recheck_ns : MU_HEALTH_GAP_NS;
}

static int health_known(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    const char *text = ev->text != NULL ? ev->text : "";
    char after[80];
    bool unhealthy = ev->verdict == HEALTH_FAILED ||
                     (ev->verdict == HEALTH_UNKNOWN && l->health == LIFE_HEALTH_UNHEALTHY);
    if (unhealthy) {
        l->recheck_at_ns = now_ns + l->recheck_gap_ns;
        (void)snprintf(after, sizeof after,
                       "; it takes part in no round until the check passes, next tried in %" PRId64
                       " s",
                       l->recheck_gap_ns / NS_PER_S);
        l->recheck_gap_ns = health_longer_gap(l->recheck_gap_ns);
    }
    if (ev->verdict == HEALTH_UNKNOWN)
        return health_unknown(l, text);
    (void)snprintf(l->health_text, sizeof l->health_text, "%s", text);
    if (ev->verdict == HEALTH_FAILED) {
        say_health(l, "this node is unhealthy: ", after);
        l->health = LIFE_HEALTH_UNHEALTHY;
    } else {
        if (l->health == LIFE_HEALTH_UNHEALTHY)
            say_health(l, "this node is healthy again: its check passed", "");
        l->health = LIFE_HEALTH_OK;
        l->recheck_gap_ns = first_gap(l);
    }
    send(l, CTL_HEALTH);
    return 0;
}

/* ------------------------------------------------------------------ told to stop */

static void leave(struct life *l, const struct life_event *ev)
{
    char name[16];
    char text[160];
    if (ev->type == LIFE_EV_OWNER_GONE)
        (void)snprintf(text, sizeof text, "its launching process was killed");
    else if (ev->text != NULL)
        (void)snprintf(text, sizeof text, "%s", ev->text);
    else
        (void)snprintf(text, sizeof text, "told to stop by %s", mu_signal_name(ev->signo, name));
    enum mu_cause_kind kind = ev->text != NULL ? MU_CAUSE_NODE_FAILED : MU_CAUSE_NODE_LEFT;
    struct mu_cause c = cause_here(l, kind, text, ev->unix_ms);
    l->leaving = true;
    l->exit_status = 1;
    l->signo = ev->signo;
    if (ev->type == LIFE_EV_OWNER_GONE)
        l->signo = SIGNO_TERM;
    if (!l->has_cause)
        take_cause(l, &c, NULL);
    l->bye = c;
}

/* Nothing of a round runs here: there is nobody to pass it on to. */
static int signal_idle(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    leave(l, ev);
    return LIFE_EV_QUIT;
}

static void say_how_long(struct life *l, int signo)
{
    char name[16];
    char text[160];
    (void)snprintf(text, sizeof text,
                   "%s: the workers have %" PRId64 " s to end; a second signal ends them at once",
                   mu_signal_name(signo, name), l->config.grace_ns / NS_PER_S);
    say(l, text);
}

/* The others are told at once, so that what their workers say next is known for a consequence. */
static int signal_running(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    leave(l, ev);
    l->told_leave_ns = now_ns;
    if (ev->type == LIFE_EV_SIGNAL && ev->text == NULL)
        say_how_long(l, ev->signo);
    fail_here(l, &l->bye, NULL);
    return LIFE_EV_BROKEN;
}

static int signal_finished(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    leave(l, ev);
    return l->gone ? LIFE_EV_QUIT : LIFE_EV_BROKEN;
}

/* "rank 3 (pid 77), rank 4 (pid 78) and 2 more". Returns how many live. */
static uint32_t name_living(const struct life *l, struct mu_buf *b)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < (uint32_t)l->config.hello.nproc; i++) {
        if (l->exits[i] != EXIT_NOT_KNOWN)
            continue;
        if (count < NAMED_MAX)
            (void)mu_buf_addf(b, "%srank %u (pid %d)", count > 0 ? ", " : "",
                              (uint32_t)l->start.rank_base + i, l->pids[i]);
        count++;
    }
    if (count > NAMED_MAX)
        (void)mu_buf_addf(b, " and %u more", count - NAMED_MAX);
    return count;
}

/* "rank 3 (pid 77) had not ended 4.0 s after SIGTERM: SIGKILL" */
static void say_who_is_killed(struct life *l, int64_t now_ns)
{
    char name[16];
    struct mu_buf b;
    mu_buf_init(&b, l->mem);
    uint32_t count = name_living(l, &b);
    double after_s = (double)(now_ns - (l->stop_deadline_ns - l->config.grace_ns)) / NS_PER_S;
    (void)mu_buf_addf(&b, " had not ended %.1f s after %s: SIGKILL", after_s,
                      mu_signal_name(l->signo, name));
    if (count > 0)
        say(l, mu_buf_cstr(&b));
    mu_buf_fini(&b);
}

/* The ladder's last rung. */
static void kill_late_workers(struct life *l, int64_t now_ns)
{
    if (l->spawned)
        say_who_is_killed(l, now_ns);
    kill_workers(l, now_ns);
}

/* Told once more while stopping: no more grace. */
static int signal_stopping(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    bool again = l->leaving;
    if (again && now_ns - l->told_leave_ns < SAME_WORD_NS)
        return 0; /* One word, heard twice: a supervisor signals the process and its group. */
    leave(l, ev);
    if (!again) {
        l->told_leave_ns = now_ns;
        if (l->signalled)
            act(l, LIFE_ACT_SIGNAL);
        else
            signal_workers(l, now_ns);
        return 0;
    }
    if (!l->killed)
        kill_late_workers(l, now_ns);
    return 0;
}

static int owner_running(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    l->kill_at_once = true;
    return l->state == LIFE_FINISHED ? signal_finished(l, now_ns, ev)
                                     : signal_running(l, now_ns, ev);
}

static int owner_stopping(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    l->leaving = true; /* Counts as told before: straight to SIGKILL. */
    l->told_leave_ns = now_ns - SAME_WORD_NS;
    return signal_stopping(l, now_ns, ev);
}

/* ------------------------------------------------------------------ told to leave in order */

/* Where others can go on without it, nothing failed. */
static void leave_drained(struct life *l)
{
    bool others = l->config.hello.nodes_max > 1 && !l->config.serves;
    l->leaving = true;
    l->exit_status = others ? 0 : 1;
    if (!l->has_cause)
        take_cause(l, &l->bye, NULL);
}

static void tell_drain(struct life *l, int64_t now_ns)
{
    int64_t left_ns = l->drain_until_ns - now_ns;
    l->drain_left_ms = left_ns > 0 ? left_ns / NS_PER_MS : 0;
    send(l, CTL_DRAIN);
}

/* Returns whether that is news. */
static bool begin_drain(struct life *l, int64_t now_ns, const char *reason, int64_t timeout_ns)
{
    char text[CTL_REASON_BYTES + 16];
    if (l->draining)
        return false;
    l->draining = true;
    l->drain_until_ns = now_ns + timeout_ns;
    (void)snprintf(l->drain_reason, sizeof l->drain_reason, "%s",
                   reason != NULL && reason[0] != '\0' ? reason : "no reason is given");
    (void)snprintf(text, sizeof text, "drained: %s", l->drain_reason);
    l->bye = cause_here(l, MU_CAUSE_NODE_LEFT, text, 0);
    return true;
}

static bool drain_of(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    if (ev->type == LIFE_EV_DRAIN)
        return begin_drain(l, now_ns, ev->text, ev->timeout_ns);
    const struct ctl_halt *m = &ev->msg->u.halt;
    return m->leave != 0 && begin_drain(l, now_ns, m->reason, m->timeout_ms * NS_PER_MS);
}

/* Nothing runs here, or nothing that has done a step. */
static int halt_idle(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    (void)drain_of(l, now_ns, ev);
    if (!l->draining)
        return 0;
    leave_drained(l);
    return LIFE_EV_QUIT;
}

static int drain_idle(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    return halt_idle(l, now_ns, ev);
}

static void say_drain(struct life *l, int64_t timeout_ns)
{
    char text[CTL_REASON_BYTES + 160];
    (void)snprintf(
        text, sizeof text,
        "this node is to leave (%s): the workers of all nodes stop at one step, or after "
        "%" PRId64 " s in any case",
        l->drain_reason, timeout_ns / NS_PER_S);
    say(l, text);
}

/* One step for all: the first one that is told stays. */
static int halt_running(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    char text[MU_HOST_BYTES + CTL_REASON_BYTES + 80];
    const struct ctl_halt *m = &ev->msg->u.halt;
    if (drain_of(l, now_ns, ev))
        say_drain(l, m->timeout_ms * NS_PER_MS);
    if (m->step < 0 || m->round != l->start.round || l->halt_step >= 0)
        return 0;
    l->halt_step = (int32_t)m->step;
    (void)snprintf(text, sizeof text, "%s is to leave (%s): the workers stop after step %d",
                   m->host, m->reason, l->halt_step);
    say(l, text);
    act(l, LIFE_ACT_HALT);
    return 0;
}

static int drain_running(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    if (!drain_of(l, now_ns, ev))
        return 0; /* Said twice. */
    say_drain(l, ev->timeout_ns);
    tell_drain(l, now_ns);
    return 0;
}

/* Its work is done, unless it only stopped for the others: they go on together. */
static int halt_finished(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    (void)drain_of(l, now_ns, ev);
    if (!l->draining || l->halted)
        return 0;
    leave_drained(l);
    return l->gone ? LIFE_EV_QUIT : LIFE_EV_BROKEN;
}

static int drain_finished(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    if (l->halted && drain_of(l, now_ns, ev))
        tell_drain(l, now_ns);
    return halt_finished(l, now_ns, ev);
}

/* It leaves when nothing of the round is left. */
static int halt_stopping(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    (void)drain_of(l, now_ns, ev);
    return 0;
}

static int drain_stopping(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    return halt_stopping(l, now_ns, ev);
}

/* The deadline is here, and workers run. */
static int leave_at_once(struct life *l, int64_t now_ns)
{
    say(l, "the time to leave in order is over: the workers are ended");
    leave_drained(l);
    l->signo = SIGNO_TERM;
    l->told_leave_ns = now_ns;
    fail_here(l, &l->bye, NULL);
    return LIFE_EV_BROKEN;
}

/* ------------------------------------------------------------------ time */

static void beat_and_connect(struct life *l, int64_t now_ns)
{
    if (l->link_up && now_ns >= l->beat_at_ns) {
        l->beat_seq++;
        l->beat_sent_ns[l->beat_seq % LIFE_BEATS_REMEMBERED] = now_ns;
        l->steps_in_beat = l->steps_untold;
        l->steps_untold = false;
        send(l, CTL_BEAT);
        l->beat_at_ns = now_ns + l->beat_ns;
    }
    if (now_ns >= l->connect_at_ns)
        try_connect(l);
}

/* Since when something is needed of a server that does not answer: it cannot be reached, or it
 * accepts and is silent. */
static int64_t missing_since(const struct life *l)
{
    if (l->link_up && l->link_welcomed)
        return l->heard_ns;
    return l->needed_since_ns;
}

static int64_t give_up_at(const struct life *l)
{
    int64_t since = missing_since(l);
    int64_t limit = l->welcomed ? l->config.server_timeout_ns : l->config.join_timeout_ns;
    if (l->link_welcomed && limit < NEVER - 2 * l->beat_ns)
        limit += 2 * l->beat_ns; /* A good server is heard once a beat: that is no silence yet. */
    int64_t at = since == NEVER || limit > NEVER - since ? NEVER : since + limit;
    bool mute = l->link_up && !l->link_welcomed &&
                !l->welcomed; /* It took our hello. Is it an rdzv-server at all? */
    return mute ? sooner(at, l->hello_sent_ns + MU_FIRST_ANSWER_NS) : at;
}

/* The limit of that wait. The verdict of a job that failed says why, so only what it does not say
 * is said here. */
static bool server_given_up(struct life *l, int64_t now_ns, int64_t unix_ms)
{
    if (now_ns < give_up_at(l))
        return false;
    int64_t limit = now_ns - missing_since(l);
    char text[400];
    (void)snprintf(text, sizeof text, "no rendezvous server for %" PRId64 " s%s%.255s",
                   limit / NS_PER_S, l->last_error[0] != '\0' ? "; last attempt: " : "",
                   l->last_error);
    struct mu_cause c = cause_here(l, MU_CAUSE_SERVER_LOST, text, unix_ms);
    if (l->told_why) /* It answers, but does not take us in. */
        c = cause_here(l, MU_CAUSE_NODE_FAILED, l->last_error, unix_ms);
    if (l->state == LIFE_FINISHED) /* One line: there is room for one in a step. */
        (void)snprintf(c.message, sizeof c.message,
                       "every worker of this node exited with status 0; how the other nodes fared "
                       "is not known: %.300s",
                       text);
    if (l->has_cause || l->state == LIFE_FINISHED)
        say(l, l->state == LIFE_FINISHED ? c.message : text);
    if (!l->has_cause)
        take_cause(l, &c, NULL);
    return true;
}

/* Since when we wait for a server: there is none, or it takes our bytes and says nothing. */
static int64_t unserved_since(const struct life *l)
{
    if (!l->link_up || !l->link_welcomed)
        return l->unserved_ns;
    return l->heard_ns + 2 * l->beat_ns; /* A good one is heard once a beat. */
}

static int64_t server_word_at(const struct life *l)
{
    int64_t since = unserved_since(l);
    if (since == NEVER || l->state == LIFE_ENDING || l->state == LIFE_EXITED)
        return NEVER; /* The last word is waited for a few seconds only. */
    return since + MU_FIRST_WORD_NS > l->next_word_ns ? since + MU_FIRST_WORD_NS : l->next_word_ns;
}

/* Between words of one wait. */
static int64_t longer_gap(int64_t gap_ns)
{
    return gap_ns * 2 > MU_WORD_GAP_MAX_NS ? MU_WORD_GAP_MAX_NS : gap_ns * 2;
}

/* No wait is silent: before 5 s have passed, and then with growing gaps, say what is wrong. */
static void say_what_is_wrong(struct life *l, int64_t now_ns)
{
    char text[480];
    char until[80];
    if (now_ns < server_word_at(l))
        return;
    l->next_word_ns = now_ns + l->word_gap_ns;
    l->word_gap_ns = longer_gap(l->word_gap_ns);
    int64_t end_ns = needs_server(l) ? give_up_at(l) : NEVER;
    if (end_ns != NEVER)
        (void)snprintf(until, sizeof until, "trying for another %" PRId64 " s",
                       end_ns > now_ns ? (end_ns - now_ns) / NS_PER_S : 0);
    else
        (void)snprintf(until, sizeof until, "%strying on",
                       l->state == LIFE_RUNNING ? "the workers run on, " : "");
    bool mute = l->link_up && l->link_welcomed;
    (void)snprintf(text, sizeof text, "%s for %" PRId64 " s, %s: %.255s%s",
                   l->told_why ? "this node is not taken in" : "no rendezvous server",
                   (now_ns - unserved_since(l)) / NS_PER_S, until,
                   mute ? l->config.server : l->last_error,
                   mute ? ": connected, but it does not answer" : "");
    say(l, text);
}

static int joining_deadline(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    if (server_given_up(l, now_ns, ev->unix_ms)) {
        l->exit_status = 1;
        l->leaving = true;
        return LIFE_EV_QUIT;
    }
    if (now_ns >= l->recheck_at_ns)
        begin_check(l);
    say_what_is_wrong(l, now_ns);
    beat_and_connect(l, now_ns);
    return 0;
}

static void say_unreached(struct life *l, int64_t now_ns)
{
    char text[520];
    if (l->reached || now_ns < l->reach_word_ns)
        return;
    l->reach_word_ns = now_ns + 3 * MU_FIRST_WORD_NS;
    (void)snprintf(text, sizeof text,
                   "the workers' store at %.255s port %" PRId64
                   " cannot be reached yet (%s); trying "
                   "for another %" PRId64 " s",
                   l->start.lead_addr, l->start.lead_port,
                   l->reach_error[0] != '\0' ? l->reach_error : "no answer",
                   (l->reach_until_ns - now_ns) / NS_PER_S);
    say(l, text);
}

static int checking_deadline(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    if (server_given_up(l, now_ns, ev->unix_ms)) {
        l->exit_status = 1;
        l->leaving = true;
        return LIFE_EV_QUIT;
    }
    if (!l->reached && now_ns >= l->reach_until_ns)
        return give_lead_up(l, ev->unix_ms);
    if (now_ns >= l->reach_at_ns) {
        l->reach_at_ns = NEVER;
        act(l, LIFE_ACT_REACH);
    }
    say_unreached(l, now_ns);
    say_what_is_wrong(l, now_ns);
    beat_and_connect(l, now_ns);
    return 0;
}

static void tell_exits(struct life *l, int64_t now_ns)
{
    if (now_ns < l->tell_at_ns)
        return;
    for (uint32_t i = 0; i < (uint32_t)l->config.hello.nproc; i++) {
        if (l->exit_untold[i])
            send_arg(l, CTL_EXITED, i);
        l->exit_untold[i] = false;
    }
    l->any_untold = false;
    l->tell_at_ns = NEVER;
}

static int running_deadline(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    if (now_ns >= fence_at(l))
        return fence(l, ev->unix_ms);
    if (l->draining && now_ns >= l->drain_until_ns)
        return leave_at_once(l, now_ns);
    tell_exits(l, now_ns);
    say_what_is_wrong(l, now_ns);
    beat_and_connect(l, now_ns);
    return 0;
}

static int finished_deadline(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    if (server_given_up(l, now_ns, ev->unix_ms)) {
        l->exit_status = 0; /* Ours ended well; of the others nothing is known, and absent evidence
                               is no failure. */
        l->success = true;
        l->leaving = true;
        return l->gone ? LIFE_EV_QUIT : LIFE_EV_BROKEN;
    }
    if (l->draining && now_ns >= l->drain_until_ns) {
        leave_drained(l);
        return l->gone ? LIFE_EV_QUIT : LIFE_EV_BROKEN;
    }
    say_what_is_wrong(l, now_ns);
    beat_and_connect(l, now_ns);
    return 0;
}

/* Workers that were told to end and do not. */
static void say_who_stays(struct life *l, int64_t now_ns)
{
    char name[16];
    if (l->gone || now_ns < l->stop_word_ns)
        return;
    l->stop_word_ns = now_ns + l->stop_gap_ns;
    l->stop_gap_ns = longer_gap(l->stop_gap_ns);
    int64_t left_s = l->stop_deadline_ns > now_ns ? (l->stop_deadline_ns - now_ns) / NS_PER_S : 0;
    struct mu_buf b;
    mu_buf_init(&b, l->mem);
    uint32_t count = l->spawned ? name_living(l, &b) : 0;
    if (count == 0)
        (void)mu_buf_adds(&b, "what the workers left behind");
    (void)mu_buf_addf(&b, " %s not ended %" PRId64 " s after %s; %s %" PRId64 " s",
                      count > 1 ? "have" : "has", (now_ns - l->stop_began_ns) / NS_PER_S,
                      mu_signal_name(l->killed ? SIGNO_KILL : l->signo, name),
                      l->killed ? "waiting for the kernel for another" : "SIGKILL follows in",
                      left_s);
    say(l, mu_buf_cstr(&b));
    mu_buf_fini(&b);
}

static int stopping_deadline(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    beat_and_connect(l, now_ns);
    say_what_is_wrong(l, now_ns);
    say_who_stays(l, now_ns);
    if (now_ns < l->stop_deadline_ns && (l->killed || now_ns < fence_kill_at(l)))
        return 0;
    if (!l->signalled && !l->killed && now_ns < fence_kill_at(l)) {
        signal_workers(l, now_ns);
        return 0;
    }
    if (!l->killed) {
        kill_late_workers(l, now_ns);
        return 0;
    }
    /* The kernel cannot end them: this node is unhealthy. Never a wait without end. */
    l->bye = cause_here(l, MU_CAUSE_NODE_FAILED, "processes of a worker do not end after SIGKILL",
                        ev->unix_ms);
    l->exit_status = 1;
    l->leaving = true;
    say(l, l->bye.message);
    return LIFE_EV_QUIT;
}

static int ending_deadline(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    beat_and_connect(l, now_ns);
    return now_ns >= l->stop_deadline_ns ? LIFE_EV_QUIT : 0;
}

static int64_t next_deadline(const struct life *l)
{
    if (l->state == LIFE_EXITED)
        return NEVER;
    int64_t at = l->connect_at_ns;
    if (l->link_up)
        at = sooner(at, l->beat_at_ns);
    if (l->state == LIFE_JOINING || l->state == LIFE_CHECKING || l->state == LIFE_FINISHED)
        at = sooner(at, give_up_at(l));
    if (l->state == LIFE_JOINING)
        at = sooner(at, l->recheck_at_ns);
    if (l->state == LIFE_CHECKING && !l->reached)
        at = sooner(sooner(at, l->reach_word_ns), sooner(l->reach_at_ns, l->reach_until_ns));
    at = sooner(at, server_word_at(l));
    if (l->draining && (l->state == LIFE_RUNNING || l->state == LIFE_FINISHED))
        at = sooner(at, l->drain_until_ns);
    if (l->state == LIFE_STOPPING && !l->gone)
        at = sooner(at, l->stop_word_ns);
    if (l->state == LIFE_RUNNING)
        at = sooner(sooner(at, l->tell_at_ns), fence_at(l));
    if (l->state == LIFE_STOPPING || l->state == LIFE_ENDING)
        at = sooner(at, l->stop_deadline_ns);
    if (l->state == LIFE_STOPPING && !l->killed)
        at = sooner(at, fence_kill_at(l));
    return at;
}

/* ------------------------------------------------------------------ the machine */

int life_init(struct life *l,
              const struct mu_mem *mem,
              int64_t now_ns,
              const struct life_config *config)
{
    size_t n = (size_t)config->hello.nproc;
    *l = (struct life){.mem = mem,
                       .state = LIFE_JOINING,
                       .config = *config,
                       .random = config->seed | 1,
                       .beat_ns = MU_BEAT_NS,
                       .heard_ns = now_ns,
                       .beat_at_ns = NEVER,
                       .connect_at_ns = now_ns,
                       .backoff_ns = BACKOFF_MIN_NS,
                       .needed_since_ns = now_ns,
                       .gone = true,
                       .stranger_ns = NEVER,
                       .unserved_ns = now_ns,
                       .next_word_ns = now_ns,
                       .word_gap_ns = MU_FIRST_WORD_NS,
                       .tell_at_ns = NEVER,
                       .health = config->checks_health ? LIFE_HEALTH_CHECKING : LIFE_HEALTH_OK,
                       .recheck_at_ns = config->checks_health ? now_ns : NEVER,
                       .recheck_gap_ns =
                           config->recheck_ns > 0 ? config->recheck_ns : MU_HEALTH_GAP_NS,
                       .stop_deadline_ns = NEVER,
                       .signo = SIGNO_TERM,
                       .halt_step = -1,
                       .cause = MU_CAUSE_INIT,
                       .failure = MU_CAUSE_INIT,
                       .bye = MU_CAUSE_INIT,
                       .max_restarts = (uint32_t)config->hello.max_restarts,
                       .exit_status = 1,
                       .deadline_ns = now_ns};
    if (config->server[0] == '\0')
        (void)snprintf(l->config.server, sizeof l->config.server, "the server");
    (void)snprintf(l->last_error, sizeof l->last_error, "%.200s: no answer yet", l->config.server);
    l->exits = mu_zalloc(mem, n * sizeof *l->exits);
    l->pids = mu_zalloc(mem, n * sizeof *l->pids);
    l->exit_untold = mu_zalloc(mem, n * sizeof *l->exit_untold);
    l->steps = mu_zalloc(mem, n * sizeof *l->steps);
    l->silent = mu_zalloc(mem, n * CTL_SILENT_NUMBERS * sizeof *l->silent);
    l->actions = mu_zalloc(mem, (n + EXTRA_ACTIONS) * sizeof *l->actions);
    if (l->exits == NULL || l->pids == NULL || l->exit_untold == NULL || l->actions == NULL ||
        l->steps == NULL || l->silent == NULL) {
        life_fini(l);
        return -ENOMEM;
    }
    return 0;
}

void life_fini(struct life *l)
{
    mu_mem_free(l->mem, l->exits);
    mu_mem_free(l->mem, l->pids);
    mu_mem_free(l->mem, l->exit_untold);
    mu_mem_free(l->mem, l->steps);
    mu_mem_free(l->mem, l->silent);
    mu_mem_free(l->mem, l->actions);
    l->exits = NULL;
    l->pids = NULL;
    l->exit_untold = NULL;
    l->steps = NULL;
    l->silent = NULL;
    l->actions = NULL;
}

int life_step(struct life *l, int64_t now_ns, const struct life_event *ev, struct life_out *out)
{
    enum life_event_type type = ev->type;
    out->count = 0;
    out->move_count = 0;
    l->action_count = 0;
    l->words_used = 0;
    for (;;) {
        const struct life_row *row = &table[l->state][type];
        if (row->to == 0) {
            MU_ASSERT(out->move_count == 0); /* News of our own always have a row. */
            l->rejected_count++;
            return -EPROTO;
        }
        int news = row->act != NULL ? row->act(l, now_ns, ev) : 0;
        MU_ASSERT(out->move_count < LIFE_MOVES_MAX);
        out->moves[out->move_count++] =
            (struct life_move){type, l->state, (enum life_state)(row->to - 1)};
        l->state = (enum life_state)(row->to - 1); /* The only line that writes the state. */
        if (news == 0)
            break;
        type = (enum life_event_type)news;
    }
    l->deadline_ns = next_deadline(l);
    out->actions = l->actions;
    out->count = l->action_count;
    return 0;
}
