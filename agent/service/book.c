/* The jobs of a node; see book.h. */
#include "agent/service/book.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/str.h"

const char *svc_state_name(enum svc_state s)
{
    static const char *const names[] = {
#define X(s) #s,
        SVC_STATES(X)
#undef X
    };
    MU_ASSERT((size_t)s < MU_COUNT(names));
    return names[s];
}

void svc_init(struct svc_book *b, uint32_t slots, int64_t stop_grace_ns)
{
    memset(b, 0, sizeof *b);
    b->slots = slots;
    b->stop_grace_ns = stop_grace_ns;
}

/* --- looking --- */

static bool is_live(const struct svc_entry *e)
{
    return e->used && e->state != SVC_ENDED;
}

int32_t svc_find(const struct svc_book *b, const char *job, uint32_t attempt)
{
    int32_t best = -1;
    for (int32_t i = 0; i < SVC_JOBS_MAX; i++) {
        const struct svc_entry *e = &b->entries[i];
        if (!e->used || strcmp(e->job, job) != 0 || (attempt != 0 && e->attempt != attempt))
            continue;
        if (best < 0 || e->attempt > b->entries[best].attempt)
            best = i;
    }
    return best;
}

uint32_t svc_live_count(const struct svc_book *b)
{
    uint32_t n = 0;
    for (int i = 0; i < SVC_JOBS_MAX; i++)
        n += is_live(&b->entries[i]);
    return n;
}

uint32_t svc_busy_slots(const struct svc_book *b)
{
    uint32_t n = 0;
    for (int i = 0; i < SVC_JOBS_MAX; i++)
        n += is_live(&b->entries[i]) ? b->entries[i].nproc : 0;
    return n;
}

int64_t svc_deadline(const struct svc_book *b)
{
    int64_t at = INT64_MAX;
    for (int i = 0; i < SVC_JOBS_MAX; i++) {
        const struct svc_entry *e = &b->entries[i];
        if (is_live(e) && e->deadline_ns < at)
            at = e->deadline_ns;
    }
    return at;
}

/* --- saying --- */

static struct svc_action *put(struct svc_out *out, enum svc_action_type type, int32_t entry)
{
    MU_ASSERT(out->count < SVC_ACTIONS_MAX);
    struct svc_action *a = &out->a[out->count++];
    *a = (struct svc_action){.type = type, .entry = entry, .text = ""};
    return a;
}

static void tell(struct svc_book *b, int32_t i, enum svc_placed placed, struct svc_out *out)
{
    struct svc_entry *e = &b->entries[i];
    if (!b->welcome)
        return; /* HAS says it when there is somebody to hear. */
    if (placed == SVC_PLACED_ENDED)
        e->told_seq = b->seq + 1;
    struct svc_action *a = put(out, SVC_ACT_PLACED, i);
    a->placed = placed;
    a->job = e->job;
    a->attempt = e->attempt;
    a->text = e->text;
}

/* --- a job comes --- */

static void
refuse(struct svc_book *b, const struct svc_event *ev, const char *why, struct svc_out *out)
{
    (void)snprintf(b->refusal, sizeof b->refusal, "%s", why);
    struct svc_action *a = put(out, SVC_ACT_PLACED, -1);
    a->placed = SVC_PLACED_REFUSED;
    a->job = ev->job;
    a->attempt = ev->attempt;
    a->text = b->refusal;
}

/* Another job of the same id: its server has lost its memory, and gave the id again. */
static bool is_another(const struct svc_entry *e, const struct svc_event *ev)
{
    return e->submitted_ms != 0 && ev->submitted_ms != 0 && e->submitted_ms != ev->submitted_ms;
}

/* What became of those that have ended is of no use to who gave the id again. */
static void forget_namesakes(struct svc_book *b, const struct svc_event *ev)
{
    for (int i = 0; i < SVC_JOBS_MAX; i++) {
        struct svc_entry *e = &b->entries[i];
        if (e->used && e->state == SVC_ENDED && strcmp(e->job, ev->job) == 0 && is_another(e, ev))
            e->used = false;
    }
}

/* A free place, or that of the ended job that has been here longest. */
static int32_t find_place(const struct svc_book *b)
{
    int32_t oldest = -1;
    for (int32_t i = 0; i < SVC_JOBS_MAX; i++) {
        const struct svc_entry *e = &b->entries[i];
        if (!e->used)
            return i;
        if (e->state == SVC_ENDED && (oldest < 0 || e->ended_ns < b->entries[oldest].ended_ns))
            oldest = i;
    }
    return oldest;
}

static bool cannot_take(const struct svc_book *b, const struct svc_event *ev, char *ret, size_t cap)
{
    uint32_t busy = svc_busy_slots(b);
    int32_t other = svc_find(b, ev->job, 0);
    ret[0] = '\0';
    if (b->stopping)
        (void)snprintf(ret, cap, "this node's service is being stopped");
    else if (b->draining)
        (void)snprintf(ret, cap,
                       "this node was drained (SIGUSR1) and takes no more jobs until its "
                       "service is restarted");
    else if (other >= 0 && is_another(&b->entries[other], ev))
        (void)snprintf(ret, cap, "another job of this id, submitted before it, is still here");
    else if (other >= 0 && is_live(&b->entries[other]))
        (void)snprintf(ret, cap, "start %u of this job is still here", b->entries[other].attempt);
    else if (ev->nproc > b->slots || busy > b->slots - ev->nproc)
        (void)snprintf(ret, cap, "%u workers are wanted, and %u of this node's %u slots are taken",
                       ev->nproc, busy, b->slots);
    else if (svc_live_count(b) >= SVC_LIVE_MAX)
        (void)snprintf(ret, cap, "%d jobs run here, which is as many as a node takes",
                       SVC_LIVE_MAX);
    else if (ev->text != NULL)
        (void)snprintf(ret, cap, "%s", ev->text);
    return ret[0] != '\0';
}

static int on_assign(struct svc_book *b, const struct svc_event *ev, struct svc_out *out)
{
    char why[SVC_TEXT_BYTES];
    forget_namesakes(b, ev);
    int32_t here = svc_find(b, ev->job, ev->attempt);
    if (here >= 0 &&
        !is_another(&b->entries[here],
                    ev)) { /* Said again, as after a connection that was lost: so is our answer. */
        tell(b, here, b->entries[here].state == SVC_ENDED ? SVC_PLACED_ENDED : SVC_PLACED_RUNS,
             out);
        return 0;
    }
    if (cannot_take(b, ev, why, sizeof why)) {
        refuse(b, ev, why, out);
        return 0;
    }
    int32_t i = find_place(b);
    MU_ASSERT(i >= 0); /* There are more places than live jobs. */
    struct svc_entry *e = &b->entries[i];
    *e = (struct svc_entry){.used = true,
                            .attempt = ev->attempt,
                            .submitted_ms = ev->submitted_ms,
                            .state = SVC_RUNNING,
                            .nproc = ev->nproc,
                            .deadline_ns = INT64_MAX};
    if (mu_strcopy(e->job, sizeof e->job, ev->job) < 0) {
        e->used = false;
        return -EPROTO;
    }
    tell(b, i, SVC_PLACED_STARTING, out);
    put(out, SVC_ACT_START, i);
    tell(b, i, SVC_PLACED_RUNS, out);
    return 0;
}

/* PLACED 1 has been said in the same breath as START: the shell leaves it out after a failure. */
static int on_failed(struct svc_book *b, const struct svc_event *ev, struct svc_out *out)
{
    struct svc_entry *e = &b->entries[ev->entry];
    struct svc_event as_assigned = {.job = e->job, .attempt = e->attempt};
    if (!is_live(e))
        return -EPROTO;
    e->used = false;
    refuse(b, &as_assigned, ev->text, out);
    return 0;
}

/* --- a job ends --- */

static void leave_if_empty(struct svc_book *b, struct svc_out *out)
{
    if (!b->stopping || b->left || svc_live_count(b) > 0)
        return;
    b->left = true;
    put(out, SVC_ACT_LEAVE, -1);
}

static int on_exited(struct svc_book *b, int64_t now_ns, const struct svc_event *ev)
{
    struct svc_entry *e = &b->entries[ev->entry];
    if (!is_live(e) || e->state == SVC_EXITED)
        return -EPROTO;
    e->status = ev->status;
    if (ev->text != NULL && e->text[0] == '\0')
        (void)snprintf(e->text, sizeof e->text, "%s", ev->text);
    e->state = SVC_EXITED;
    e->deadline_ns = now_ns + MU_KILL_WAIT_NS; /* For who holds its output open. */
    return 0;
}

static int
on_empty(struct svc_book *b, int64_t now_ns, const struct svc_event *ev, struct svc_out *out)
{
    struct svc_entry *e = &b->entries[ev->entry];
    if (!is_live(e) || (e->state != SVC_EXITED && e->state != SVC_KILLED))
        return -EPROTO;
    if (e->state == SVC_KILLED)
        e->status = 128 + 9; /* It never exited: a process that SIGKILL does not end. */
    e->state = SVC_ENDED;
    e->deadline_ns = INT64_MAX;
    e->ended_ns = now_ns;
    tell(b, ev->entry, SVC_PLACED_ENDED, out);
    leave_if_empty(b, out);
    return 0;
}

static void begin_kill(struct svc_book *b, int64_t now_ns, int32_t i, struct svc_out *out)
{
    struct svc_entry *e = &b->entries[i];
    e->state = SVC_KILLED;
    e->deadline_ns = now_ns + MU_KILL_WAIT_NS;
    put(out, SVC_ACT_KILL, i);
}

static void begin_stop(
    struct svc_book *b, int64_t now_ns, int32_t i, int signo, int64_t grace_ns, struct svc_out *out)
{
    struct svc_entry *e = &b->entries[i];
    if (e->state == SVC_EXITED || e->state == SVC_KILLED)
        return;
    if (signo == 9 || (grace_ns <= 0 && e->state == SVC_STOPPING)) {
        begin_kill(b, now_ns, i, out);
        return;
    }
    int64_t at = now_ns + (grace_ns > 0 ? grace_ns : 0);
    if (e->state == SVC_RUNNING || at < e->deadline_ns)
        e->deadline_ns = at; /* Asked again: sooner, never later. */
    e->state = SVC_STOPPING;
    put(out, SVC_ACT_SIGNAL, i)->signo = signo;
}

static int
on_unassign(struct svc_book *b, int64_t now_ns, const struct svc_event *ev, struct svc_out *out)
{
    int32_t i = svc_find(b, ev->job, ev->attempt);
    if (i < 0) { /* Whatever it was, it is not here: that is what was wanted. */
        struct svc_action *a = put(out, SVC_ACT_PLACED, -1);
        a->placed = SVC_PLACED_ENDED;
        a->job = ev->job;
        a->attempt = ev->attempt;
        a->text = "nothing of it is on this node";
        return 0;
    }
    if (b->entries[i].state == SVC_ENDED)
        tell(b, i, SVC_PLACED_ENDED, out);
    else
        begin_stop(b, now_ns, i, ev->signo, ev->grace_ns, out);
    return 0;
}

static void on_deadline(struct svc_book *b, int64_t now_ns, struct svc_out *out)
{
    for (int32_t i = 0; i < SVC_JOBS_MAX; i++) {
        struct svc_entry *e = &b->entries[i];
        if (!is_live(e) || e->deadline_ns > now_ns)
            continue;
        e->deadline_ns = INT64_MAX;
        if (e->state == SVC_STOPPING) {
            (void)snprintf(e->text, sizeof e->text, "killed: it had not ended within its grace");
            begin_kill(b, now_ns, i, out);
        } else if (e->state == SVC_KILLED || e->state == SVC_EXITED) {
            put(out, SVC_ACT_ABANDON, i);
        }
    }
}

/* --- the server --- */

static void on_welcome(struct svc_book *b, struct svc_out *out)
{
    b->welcome = true;
    for (int32_t i = 0; i < SVC_JOBS_MAX; i++) {
        struct svc_entry *e = &b->entries[i];
        if (!e->used)
            continue;
        put(out, SVC_ACT_HAS, i);
        if (e->state == SVC_ENDED)
            e->told_seq = b->seq + 1;
    }
    put(out, SVC_ACT_HAS, -1);
    if (b->draining || b->stopping)
        put(out, SVC_ACT_DRAINS, -1);
}

static void on_lost(struct svc_book *b)
{
    b->welcome = false;
    for (int i = 0; i < SVC_JOBS_MAX; i++)
        b->entries[i].told_seq = 0;
}

/* Whose end the server has heard of is forgotten. */
static void on_answer(struct svc_book *b, uint64_t seq)
{
    for (int i = 0; i < SVC_JOBS_MAX; i++) {
        struct svc_entry *e = &b->entries[i];
        if (e->used && e->state == SVC_ENDED && e->told_seq != 0 && e->told_seq <= seq)
            e->used = false;
    }
}

static void on_gone(const struct svc_book *b, const struct svc_event *ev, struct svc_out *out)
{
    int32_t i = svc_find(b, ev->job, 0);
    if (b->welcome && (i < 0 || !is_live(&b->entries[i])))
        put(out, SVC_ACT_RELEASE, -1)->job = ev->job;
}

static void on_drain(struct svc_book *b, struct svc_out *out)
{
    enum {
        DRAINS = 10 /* SIGUSR1, as an agent understands it. */
    };
    bool first = !b->draining;
    b->draining = true;
    if (first && b->welcome)
        put(out, SVC_ACT_DRAINS, -1);
    for (int32_t i = 0; i < SVC_JOBS_MAX; i++)
        if (first && b->entries[i].used && b->entries[i].state == SVC_RUNNING)
            put(out, SVC_ACT_SIGNAL, i)->signo = DRAINS;
}

/* One that ends takes none, whatever is asked. */
static void on_undrain(struct svc_book *b, struct svc_out *out)
{
    b->draining = false;
    if (b->stopping)
        put(out, SVC_ACT_DRAINS, -1);
}

static void on_stop(struct svc_book *b, int64_t now_ns, struct svc_out *out)
{
    enum {
        ENDS = 15 /* SIGTERM */
    };
    if (!b->stopping && !b->draining && b->welcome && svc_live_count(b) > 0)
        put(out, SVC_ACT_DRAINS, -1); /* Nothing new is placed here meanwhile. */
    b->stopping = true;
    for (int32_t i = 0; i < SVC_JOBS_MAX; i++)
        if (is_live(&b->entries[i]))
            begin_stop(b, now_ns, i, ENDS, b->stop_grace_ns + SVC_ROOM_NS, out);
    leave_if_empty(b, out);
}

int svc_step(struct svc_book *b, int64_t now_ns, const struct svc_event *ev, struct svc_out *out)
{
    out->count = 0;
    switch (ev->type) {
    case SVC_EV_ASSIGN:
        return on_assign(b, ev, out);
    case SVC_EV_FAILED:
        return on_failed(b, ev, out);
    case SVC_EV_EXITED:
        return on_exited(b, now_ns, ev);
    case SVC_EV_EMPTY:
        return on_empty(b, now_ns, ev, out);
    case SVC_EV_UNASSIGN:
        return on_unassign(b, now_ns, ev, out);
    case SVC_EV_WELCOME:
        on_welcome(b, out);
        return 0;
    case SVC_EV_LOST:
        on_lost(b);
        return 0;
    case SVC_EV_ANSWER:
        on_answer(b, ev->seq);
        return 0;
    case SVC_EV_GONE:
        on_gone(b, ev, out);
        return 0;
    case SVC_EV_DRAIN:
        on_drain(b, out);
        return 0;
    case SVC_EV_UNDRAIN:
        on_undrain(b, out);
        return 0;
    case SVC_EV_STOP:
        on_stop(b, now_ns, out);
        return 0;
    case SVC_EV_DEADLINE:
        on_deadline(b, now_ns, out);
        return 0;
    }
    return -EPROTO;
}
