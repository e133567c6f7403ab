/* What the files of this room share. Nobody else includes it. */
#ifndef MUSTER_RENDEZVOUS_JOB_INTERNAL_H
#define MUSTER_RENDEZVOUS_JOB_INTERNAL_H

#include "rendezvous/job/job.h"

#define NEVER INT64_MAX
#define NS_PER_MS INT64_C(1000000)
#define GONE_WORD_NS                                                                               \
    INT64_C(500000000)        /* Where a round has just ended: who is it that is missing? */
#define ROUND_MAX 2147483647U /* The server counts them one by one: no job gets near. */

/* --- hello.c: who comes back --- */

/* Is this agent in the round that we know? A server without memory counts from 1 again, so that
 * two rounds may have one number: when they began tells them apart. */
bool hello_of_our_round(const struct job *j, const struct ctl_hello *h);

/* --- roster.c: who is here --- */

/* Refuse what cannot be: specs that differ, a rank that is taken. Changes nothing. */
int roster_check(const struct job *j, const struct ctl_hello *h, struct mu_err *err);
/* RUNNING: is this a second job of the same unnamed id, and no spare? Then -EACCES. */
int roster_check_second(const struct job *j,
                        const struct ctl_hello *h,
                        int64_t unix_ms,
                        struct mu_err *err);
/* Is a member of the round connected? */
bool roster_has_member(const struct job *j);
/* The slot of this agent process; JOB_NO_NODE when it is not here. */
uint32_t roster_find(const struct job *j, const char *node);
/* Refuse a hello that was overtaken by one of a later connection of its agent. */
int roster_check_link(const struct job *j, const struct ctl_hello *h, struct mu_err *err);
/* Room for one more slot, for its workers, and for the actions of any step. Returns 0 or -ENOMEM
 * with nothing changed. */
int roster_reserve(struct job *j);
/* Room for a round of that many nodes, known or not. Returns 0 or -ENOMEM with nothing changed. */
int roster_reserve_members(struct job *j, uint32_t count);
/* Take it in: a new slot, WAITING. roster_reserve() came before; only its workers' memory can be
 * missing. Returns the slot or JOB_NO_NODE. */
uint32_t roster_add(struct job *j, int64_t now_ns, const struct job_event *ev);
/* Note what it says of itself now that it is back. As many workers as it came with stay. Returns 0
 * or -ENOMEM with nothing changed. */
int roster_hear(struct job *j, uint32_t slot, const struct job_event *ev);
/* Free the slot and tell the shell (FORGET). */
void roster_forget(struct job *j, uint32_t slot);
/* What it said of its own failure belongs to a round that is over. */
void roster_forget_failure(struct job *j, struct job_node *n);
/* State and connection change only here, so that j->waiting is always right. */
void roster_set(struct job *j, uint32_t slot, enum job_node_state state);
void roster_connect(struct job *j, uint32_t slot, bool connected);
void roster_late(struct job *j, uint32_t slot, bool late);
void roster_heard(struct job *j, uint32_t slot, int64_t now_ns);
void roster_health(struct job *j, uint32_t slot, enum job_health health, const char *text);
void roster_aside(struct job *j, uint32_t slot, bool aside);
/* It is to leave: it is in no further round. */
void roster_drain(struct job *j, uint32_t slot, struct job_drain *drain);
/* Could it be in a round that begins now? */
bool roster_eligible(const struct job_node *n);

/* --- ranks.c: who gets which rank --- */

/* Choose the next round's nodes from who waits, rank them, compute bases, world, lead and fence
 * time. At least one waits. */
void ranks_assign(struct job *j);
/* Node rank 0 leads: note it, and where its worker store can be reached by all nodes of the round.
 * Once a round: it looks at all. */
void ranks_find_lead(struct job *j);

/* --- quarantine.c: where failures begin again and again --- */

/* The round is over: its first cause, where it tells of a node's own failure, is remembered. */
void quarantine_note(struct job *j);
/* From the record of a former life, of a round that is over. */
void quarantine_load(struct job *j, const struct job_incident *in);
/* Does this node's host fail, and no other as often? */
bool quarantine_suspects(const struct job *j, const struct job_node *n);
/* GATHERING: suspects are set aside where the others suffice, and only there. */
void quarantine_apply(struct job *j);
/* Those of this host are forgiven. */
void quarantine_forgive(struct job *j, const char *host);
void quarantine_forget_all(struct job *j);

/* --- rows: what the table's rows do --- */

/* Returns 0, a JOB_NEWS event that follows at once, or a negative errno with nothing changed. */
typedef int
job_row_fn(struct job *j, int64_t now_ns, const struct job_event *ev, struct mu_err *err);

/* hello.c */
job_row_fn row_gather_hello, row_begin_recovery, row_recover_hello, row_resume_round, row_run_hello,
    row_stop_hello, row_ended_hello;
/* said.c */
job_row_fn row_beat, row_note_reached, row_note_started, row_note_exited, row_note_silent,
    row_run_failed, row_weigh_failed, row_run_finished, row_recover_finished, row_run_stopped,
    row_stop_stopped, row_stale_stopped, row_note_health, row_away, row_gather_left, row_run_left,
    row_stop_left, row_ended_left;
/* round.c */
job_row_fn row_begin_round, row_stop_round, row_gather, row_succeed, row_fail, row_give_up;
/* drain.c */
job_row_fn row_run_drain, row_note_drain;
/* time.c */
job_row_fn row_gather_deadline, row_recover_deadline, row_run_deadline, row_stop_deadline;

/* --- shared by the rows --- */

void job_act(struct job *j, enum job_action_type type, uint32_t node, enum ctl_type msg);
void job_send(struct job *j,
              uint32_t slot,
              enum ctl_type msg); /* Nothing where there is no connection. */
struct job_node *job_node_of(struct job *j, const struct job_event *ev);
void job_enter(struct job *j, int64_t now_ns); /* A state begins: its words are due anew. */
/* What a node hears that has finished while others run. */
void job_finished_sentence(const struct job *j, int64_t now_ns, struct mu_buf *b);
/* Why this one that waits is not counted on. */
void job_uncounted_sentence(const struct job *j, const struct job_node *n, struct mu_buf *b);
/* How long it may be silent: a member as long as the round says, whoever only waits one lease. */
int64_t job_silence_allowed(const struct job *j, const struct job_node *n);
void job_watch_lease(struct job *j, const struct job_node *n);
/* RUNNING: somebody has nothing to do but wait: words are due. */
void job_idle(struct job *j, int64_t now_ns);
bool job_hears_out(const struct job *j, int64_t now_ns);
/* GATHERING: JOB_EV_READY when the round can begin, else 0. */
int job_ready(struct job *j, int64_t now_ns);
/* job_load(): the state it goes on in. */
void job_resume(struct job *j, enum job_state state, int64_t now_ns);
/* STOPPING: one more member is surely over; the news when it was the last. */
int job_accounted(struct job *j);
/* RECOVERING: nothing more is expected of this member; RESUMED when it was the last. */
int job_unexpect(struct job *j, struct job_node *n);
bool job_takes_in(struct job *j, uint32_t slot);
/* A member is gone for good: it stays in the table for status until the next round. */
void job_lose(struct job *j, uint32_t slot, bool connection_gone);
/* Say the last word to a node; its slot stays for status. */
void job_dismiss(struct job *j, uint32_t slot);
/* RUNNING: this member reaches the lead; when it was the last that was waited for, all may start.
 */
void job_reached(struct job *j, uint32_t slot);
/* The first cause of a round, as long as none is known. words: NULL: none. */
void job_new_cause(struct job *j, const struct mu_cause *c, const struct job_words *words);
/* Node `n` failed as well. The better cause stands from now on. */
void job_weigh_cause(struct job *j,
                     int64_t now_ns,
                     struct job_node *n,
                     const struct mu_cause *c,
                     const struct job_words *words);
/* What a node says of its own end counts whenever it comes, as long as the round is being stopped.
 */
void job_weigh_own_end(struct job *j, struct job_node *teller, const struct mu_cause *c);
/* The same worker's failure again, with words that were not known before. */
void job_add_words(struct job *j, const struct job_words *words);
/* STOPPING: another cause stands; nobody is to believe in the former. */
void job_tell_cause(struct job *j);
struct mu_cause job_cause_of_node(enum mu_cause_kind kind, const struct job_node *n);
void job_node_cause(struct job *j, enum mu_cause_kind kind, const struct job_node *n);
/* The job's own row changed. */
void job_keep(struct job *j);
/* And with it all its nodes. */
void job_keep_round(struct job *j);

/* drain.c: the step after which a round stops is chosen where somebody is to leave and enough is
 * known. Returns JOB_EV_BROKEN where there is none to wait for, else 0. */
int drain_choose_step(struct job *j, int64_t now_ns);
/* RUNNING again after a server's restart: nothing is known of its speed yet. */
int drain_resume(struct job *j, int64_t now_ns);
/* All workers of the round have exited with 0: OVER, or BROKEN where they stopped before their end.
 */
int drain_or_over(struct job *j);
/* Is what failed only a consequence of the halt? Then *c becomes the drain itself. */
void drain_explain(const struct job *j, struct mu_cause *c);
/* What a beat told of a member's steps. */
void drain_note_speed(struct job_node *n, int64_t now_ns, int64_t beat_ns);
/* A hello brings what its agent was told. */
void drain_hear(struct job *j, uint32_t slot, const struct ctl_hello *h);
void drain_fill_halt(const struct job *j, const struct job_node *n, struct ctl_halt *m);
/* "; n2 is to leave (...): ..." Nothing where nobody is. */
void drain_sentence(const struct job *j, struct mu_buf *b);

/* The cause as it is now into an incident. */
void job_keep_cause(const struct job *j, struct job_incident *ret);
/* incident.c */
void job_begin_incident(struct job *j, enum job_decision d);
/* STOPPING: a better cause took the place of the one that it names. */
void job_explain_incident(struct job *j);
/* Nobody is left of those who waited for a round. */
void job_abandon_incident(struct job *j);
/* The round of the last one is over, or the next has begun: it says so. */
void job_end_incident(struct job *j);
void job_follow_incident(struct job *j);
/* Its round is being stopped: something failed after the cause. */
void job_note_consequence(struct job *j, const struct mu_cause *c);
/* A node has stopped: how long it took, and who failed there meanwhile. */
void job_note_stopped(struct job *j, const struct job_node *n, const struct ctl_stopped *m);
/* The round after it: every node has started; a step was told of. */
void job_note_running(struct job *j);
void job_note_step(struct job *j);

/* --- budget.c: what a round's end costs --- */

void budget_take_spec(struct job *j, const struct ctl_hello *h);
/* Nothing is spent: the job begins, or begins anew. */
void budget_reset(struct job *j);
/* A round of which only its agents know goes on: what they say was spent. */
void budget_recover(struct job *j, int64_t now_ns, const struct ctl_hello *h);
void budget_begin_round(struct job *j);
/* Every worker of the round runs. */
void budget_note_running(struct job *j);
/* A member told how far its workers are. */
void budget_note_steps(struct job *j, struct job_node *n);
/* RUNNING: when budget_look() is due; NEVER: it is not. */
int64_t budget_due_ns(const struct job *j);
/* Give the restarts back, if the round has run for long enough or come far enough. */
void budget_look(struct job *j);
/* The round ends for job->cause: decide whether another follows, and spend a restart on it. Sets
 * `final`. */
enum job_decision budget_decide(struct job *j);
/* The cause that a restart was spent on gave way to another. What was told to be final stays so. */
void budget_reconsider(struct job *j);
/* Nothing of the round is left: its cause is what the next failure is compared with. */
void budget_end_round(struct job *j);
void budget_save(const struct job *j, struct job_row_kept *ret);
/* Returns 0, or -1 where the row makes no sense. */
int budget_load(struct job *j, const struct job_row_kept *row);
/* The round of the rows ran: since when, as its members said. */
void budget_load_round(struct job *j);

/* --- stale.c --- */

/* The round that this event's message names, where it is not the live one; else 0. */
int64_t job_stale_round(const struct job *j, const struct job_event *ev);

/* Does this node still owe its word before the old round is surely over? */
static inline bool owes_stopped(const struct job_node *n)
{
    return n->in_round && n->state != JOB_NODE_STOPPED && n->state != JOB_NODE_LOST;
}

static inline bool owes_finished(const struct job_node *n)
{
    return n->in_round && (n->state == JOB_NODE_STARTING || n->state == JOB_NODE_RUNNING);
}

#endif
