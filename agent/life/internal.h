/* What the files of this room share. Nobody else includes it.
 *
 * life.c    the table, and the machine that runs it
 * act.c     how rows act, send and speak
 * link.c    the link to the server
 * round.c   a round: told, checked, started; workers run and exit
 * stop.c    a round is being stopped
 * end.c     the end of the job, and the way into the next round
 * checks.c  the node's health
 * leave.c   told to stop
 * drain.c   told to leave in order
 * time.c    what is due, and when */
#ifndef MUSTER_AGENT_LIFE_INTERNAL_H
#define MUSTER_AGENT_LIFE_INTERNAL_H

#include "agent/life/life.h"

#define NEVER INT64_MAX
#define NS_PER_MS INT64_C(1000000)
#define NS_PER_S INT64_C(1000000000)
#define SIGNO_KILL 9
#define SIGNO_TERM                                                                                 \
    15 /* Linux on every architecture we run on; <signal.h>'s numbers are the system's. */
#define BACKOFF_MIN_NS (20 * NS_PER_MS)
#define EXTRA_ACTIONS 16
#define EXIT_NOT_KNOWN (-1000) /* As STOPPED spells it. */

/* Carries out one row. Returns 0, or news of our own (enum life_event_type) that follows at once,
 * in the state that the row leads to. */
typedef int life_row_fn(struct life *l, int64_t now_ns, const struct life_event *ev);

static inline int64_t life_sooner(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* --- act.c --- */
void life_act(struct life *l, enum life_action_type type);
/* Nothing goes out without a link: it is said again, in one form or another, by the next HELLO. */
void life_send(struct life *l, enum ctl_type msg);
void life_send_arg(struct life *l, enum ctl_type msg, uint32_t arg);
/* One sentence for people. */
void life_say(struct life *l, const char *text);
/* The cause that people are told. output: last lines of the worker it names, or NULL. */
void life_take_cause(struct life *l, const struct mu_cause *c, const char *output);
/* A cause that begins on this node; `text` may be NULL. */
struct mu_cause
life_cause_here(const struct life *l, enum mu_cause_kind kind, const char *text, int64_t unix_ms);
/* What FAILED says. */
void life_note_failure(struct life *l, const struct mu_cause *c, const struct life_words *w);
/* The round failed or must be left here: our own cause, until the server tells the first one. */
void life_fail_here(struct life *l, const struct mu_cause *c, const struct life_words *w);

/* --- link.c --- */
void life_try_connect(struct life *l);
/* Is there something that only a server can give? Then its absence has a limit. */
bool life_needs_server(const struct life *l);
life_row_fn life_row_greet, life_row_link_lost, life_row_link_failed, life_row_beat_answered,
    life_row_welcome, life_row_refused, life_row_waiting;

/* --- round.c --- */
/* When the workers are told to stop because nobody was heard, and when their grace ends. */
int64_t life_fence_at(const struct life *l);
int64_t life_fence_kill_at(const struct life *l);
/* It is that late. Returns the news of it. */
int life_fence(struct life *l, int64_t unix_ms);
/* The lead's store is not to be reached. Returns the news of it. */
int life_give_lead_up(struct life *l, int64_t unix_ms);
/* Workers that have just begun are told to end when they are twice as old. */
void life_spare_the_young(struct life *l, int64_t now_ns);
void life_record_exit(struct life *l, int64_t now_ns, const struct life_event *ev);
struct mu_cause life_cause_of_exit(const struct life *l, const struct life_event *ev);
life_row_fn life_row_start, life_row_start_again, life_row_start_too_late, life_row_reached_lead,
    life_row_unreached_lead, life_row_go_told, life_row_start_workers, life_row_spawned,
    life_row_spawn_failed, life_row_worker_exit, life_row_tell_silent, life_row_worker_hung,
    life_row_say_finished;

/* --- stop.c --- */
/* The ladder's rungs: the signal that was asked for; SIGKILL, with a word on who had not ended. */
void life_signal_workers(struct life *l, int64_t now_ns);
void life_kill_late_workers(struct life *l, int64_t now_ns);
/* Of workers that were told to end and do not, now and then. */
void life_say_who_stays(struct life *l, int64_t now_ns);
life_row_fn life_row_stop_told, life_row_stop_again, life_row_stop_other_round,
    life_row_stop_workers, life_row_stopping_exit, life_row_stacks_taken, life_row_note_gone,
    life_row_count_gone;

/* --- end.c --- */
life_row_fn life_row_end_here, life_row_end_first_stop, life_row_end_noted, life_row_rejoin,
    life_row_wait_for_last_word, life_row_quit;

/* --- checks.c --- */
void life_begin_check(struct life *l);
life_row_fn life_row_health_known;

/* --- leave.c --- */
life_row_fn life_row_signal_idle, life_row_signal_running, life_row_signal_finished,
    life_row_signal_stopping, life_row_owner_running, life_row_owner_stopping;

/* --- drain.c --- */
/* Nothing is left here of a node that was to leave. */
void life_leave_drained(struct life *l);
/* DRAIN, with the time that is left. */
void life_tell_drain(struct life *l, int64_t now_ns);
/* The deadline is here, and workers run. Returns the news of it. */
int life_leave_at_once(struct life *l, int64_t now_ns);
life_row_fn life_row_halt_idle, life_row_halt_running, life_row_halt_finished,
    life_row_halt_stopping, life_row_drain_idle, life_row_drain_running, life_row_drain_finished,
    life_row_drain_stopping;

/* --- time.c --- */
/* Between words of one wait. */
int64_t life_longer_gap(int64_t gap_ns);
/* When life_step() must be called again at the latest; NEVER once it is over. */
int64_t life_next_deadline(const struct life *l);
life_row_fn life_row_joining_deadline, life_row_checking_deadline, life_row_running_deadline,
    life_row_finished_deadline, life_row_stopping_deadline, life_row_ending_deadline;

#endif
