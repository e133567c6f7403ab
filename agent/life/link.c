/* The link to the server: up, lost, refused, and what its answers to beats prove. */
#include "agent/life/internal.h"

#include <stdio.h>

#include "base/backoff.h"

#define BACKOFF_MAX_NS (1000 * NS_PER_MS)
#define STRANGER_NS (2 * NS_PER_S)

void life_try_connect(struct life *l)
{
    if (l->connecting || l->link_up)
        return;
    l->connecting = true;
    l->connect_at_ns = NEVER;
    life_act(l, LIFE_ACT_CONNECT);
}

/* Is there something that only a server can give? Then its absence has a limit. */
bool life_needs_server(const struct life *l)
{
    return l->state == LIFE_JOINING || l->state == LIFE_CHECKING || l->state == LIFE_FINISHED ||
           l->failure_untold;
}

static void retry_later(struct life *l, int64_t now_ns)
{
    l->connect_at_ns = now_ns + mu_backoff(&l->random, &l->backoff_ns, BACKOFF_MAX_NS);
    if (l->needed_since_ns == NEVER && life_needs_server(l))
        l->needed_since_ns = now_ns;
}

/* Words about the link, for whoever waits for a server in vain. */
static void note_words(struct life *l, const struct life_event *ev)
{
    if (ev->text != NULL)
        (void)snprintf(l->last_error, sizeof l->last_error, "%s", ev->text);
}

int life_row_greet(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    if (!l->told_why)
        note_words(l, ev);
    l->link_up = true;
    l->links++;
    l->connecting = false;
    l->connect_at_ns = NEVER;
    l->hello_sent_ns = now_ns;
    l->beat_at_ns = now_ns + l->beat_ns;
    life_send(l, CTL_HELLO);
    l->steps_untold = l->spawned;
    if (l->spawned && l->state == LIFE_RUNNING)
        life_send(l, CTL_STARTED); /* A server that was started anew does not know the pids. */
    /* What the server may have missed while the link was down. */
    if (l->failure_untold)
        life_send(l, CTL_FAILED);
    if (l->failure_untold && l->state == LIFE_JOINING)
        life_send(l, CTL_STOPPED);
    if (l->health == LIFE_HEALTH_UNHEALTHY)
        life_send(l, CTL_HEALTH);
    if (l->draining)
        life_tell_drain(l, now_ns);
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
    struct mu_cause c = life_cause_here(l, MU_CAUSE_NODE_FAILED, text, ev->unix_ms);
    life_take_cause(l, &c, NULL);
    l->exit_status = 1;
    l->leaving = true;
    return LIFE_EV_QUIT;
}

int life_row_link_lost(struct life *l, int64_t now_ns, const struct life_event *ev)
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

int life_row_link_failed(struct life *l, int64_t now_ns, const struct life_event *ev)
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
int life_row_beat_answered(struct life *l, int64_t now_ns, const struct life_event *ev)
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

int life_row_welcome(struct life *l, int64_t now_ns, const struct life_event *ev)
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
int life_row_refused(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    const struct ctl_refused *r = &ev->msg->u.refused;
    (void)snprintf(l->last_error, sizeof l->last_error, "%.255s", r->text);
    if (r->retry != 0) {
        if (!l->told_why)
            life_say(l, r->text);
        l->told_why = true;
        return 0; /* The server closes; LINK_LOST brings the next attempt, and the join time-out its
                     end. */
    }
    l->told_why = true;
    struct mu_cause c = life_cause_here(l, MU_CAUSE_NODE_FAILED, r->text, ev->unix_ms);
    life_take_cause(l, &c, NULL);
    l->exit_status = 1;
    l->leaving = true;
    if (l->state == LIFE_RUNNING)
        return LIFE_EV_BROKEN;
    return l->state == LIFE_STOPPING ? 0 : LIFE_EV_QUIT;
}

int life_row_waiting(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    char text[sizeof l->config.meeting + MU_MESSAGE_BYTES + 2];
    const char *where = l->config.meeting;
    if (l->state == LIFE_STOPPING && !l->gone)
        return 0; /* It is us: who stays is said here, by name. */
    (void)snprintf(text, sizeof text, "%s%s%s", where, where[0] != '\0' ? ": " : "",
                   ev->msg->u.waiting.text);
    life_say(l, text);
    return 0;
}
