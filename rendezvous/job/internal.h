/* What the files of this room share. Nobody else includes it. */
#ifndef MUSTER_RENDEZVOUS_JOB_INTERNAL_H
#define MUSTER_RENDEZVOUS_JOB_INTERNAL_H

#include "rendezvous/job/job.h"

#define NEVER INT64_MAX
#define NS_PER_MS INT64_C(1000000)
#define FIRST_WORD_NS INT64_C(5000000000) /* No wait is silent for longer. */
#define WORD_GAP_MAX_NS INT64_C(300000000000)

/* --- roster.c: who is here --- */

/* Refuse what cannot be: specs that differ, a rank that is taken. Changes nothing. */
int roster_check(const struct job *j, const struct ctl_hello *h, struct mu_err *err);
/* The slot of this agent process; JOB_NO_NODE when it is not here. */
uint32_t roster_find(const struct job *j, const char *node);
/* Room for one more slot, for its workers, and for the actions of any step. Returns 0 or -ENOMEM
 * with nothing changed. */
int roster_reserve(struct job *j);
/* Room for a round of that many nodes, known or not. Returns 0 or -ENOMEM with nothing changed. */
int roster_reserve_members(struct job *j, uint32_t count);
/* Take it in: a new slot, WAITING. roster_reserve() came before; only its workers' memory can be
 * missing. Returns the slot or JOB_NO_NODE. */
uint32_t roster_add(struct job *j, int64_t now_ns, const struct job_event *ev);
/* Free the slot and tell the shell (FORGET). */
void roster_forget(struct job *j, uint32_t slot);
/* State and connection change only here, so that j->waiting is always right. */
void roster_set(struct job *j, uint32_t slot, enum job_node_state state);
void roster_connect(struct job *j, uint32_t slot, bool connected);
void roster_late(struct job *j, uint32_t slot, bool late);
void roster_heard(struct job *j, uint32_t slot, int64_t now_ns);
/* Could it be in a round that begins now? */
bool roster_eligible(const struct job_node *n);

/* --- ranks.c: who gets which rank --- */

/* Choose the next round's nodes from who waits, rank them, compute bases, world, lead and fence
 * time. At least one waits. */
void ranks_assign(struct job *j);
/* Node rank 0 leads: note it, and where its worker store can be reached by all nodes of the round.
 * Once a round: it looks at all. */
void ranks_find_lead(struct job *j);

/* --- job.c --- */
void job_act(struct job *j, enum job_action_type type, uint32_t node, enum ctl_type msg);

#endif
