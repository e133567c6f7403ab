/* Time: what is due, what is said of a wait, and when to look again. */
#include "agent/life/internal.h"

#include <inttypes.h>
#include <stdio.h>

static void beat_and_connect(struct life *l, int64_t now_ns)
{
    if (l->link_up && now_ns >= l->beat_at_ns) {
        l->beat_seq++;
        l->beat_sent_ns[l->beat_seq % LIFE_BEATS_REMEMBERED] = now_ns;
        l->steps_in_beat = l->steps_untold;
        l->steps_untold = false;
        life_send(l, CTL_BEAT);
        l->beat_at_ns = now_ns + l->beat_ns;
    }
    if (now_ns >= l->connect_at_ns)
        life_try_connect(l);
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
    return mute ? life_sooner(at, l->hello_sent_ns + MU_FIRST_ANSWER_NS) : at;
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
    struct mu_cause c = life_cause_here(l, MU_CAUSE_SERVER_LOST, text, unix_ms);
    if (l->told_why) /* It answers, but does not take us in. */
        c = life_cause_here(l, MU_CAUSE_NODE_FAILED, l->last_error, unix_ms);
    if (l->state == LIFE_FINISHED) /* One line: there is room for one in a step. */
        (void)snprintf(c.message, sizeof c.message,
                       "every worker of this node exited with status 0; how the other nodes fared "
                       "is not known: %.300s",
                       text);
    if (l->has_cause || l->state == LIFE_FINISHED)
        life_say(l, l->state == LIFE_FINISHED ? c.message : text);
    if (!l->has_cause)
        life_take_cause(l, &c, NULL);
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
int64_t life_longer_gap(int64_t gap_ns)
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
    l->word_gap_ns = life_longer_gap(l->word_gap_ns);
    int64_t end_ns = life_needs_server(l) ? give_up_at(l) : NEVER;
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
    life_say(l, text);
}

int life_row_joining_deadline(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    if (server_given_up(l, now_ns, ev->unix_ms)) {
        l->exit_status = 1;
        l->leaving = true;
        return LIFE_EV_QUIT;
    }
    if (now_ns >= l->recheck_at_ns)
        life_begin_check(l);
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
    life_say(l, text);
}

int life_row_checking_deadline(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    if (server_given_up(l, now_ns, ev->unix_ms)) {
        l->exit_status = 1;
        l->leaving = true;
        return LIFE_EV_QUIT;
    }
    if (!l->reached && now_ns >= l->reach_until_ns)
        return life_give_lead_up(l, ev->unix_ms);
    if (now_ns >= l->reach_at_ns) {
        l->reach_at_ns = NEVER;
        life_act(l, LIFE_ACT_REACH);
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
            life_send_arg(l, CTL_EXITED, i);
        l->exit_untold[i] = false;
    }
    l->any_untold = false;
    l->tell_at_ns = NEVER;
}

int life_row_running_deadline(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    if (now_ns >= life_fence_at(l))
        return life_fence(l, ev->unix_ms);
    if (l->draining && now_ns >= l->drain_until_ns)
        return life_leave_at_once(l, now_ns);
    tell_exits(l, now_ns);
    say_what_is_wrong(l, now_ns);
    beat_and_connect(l, now_ns);
    return 0;
}

int life_row_finished_deadline(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    if (server_given_up(l, now_ns, ev->unix_ms)) {
        l->exit_status = 0; /* Ours ended well; of the others nothing is known, and absent evidence
                               is no failure. */
        l->success = true;
        l->leaving = true;
        return l->gone ? LIFE_EV_QUIT : LIFE_EV_BROKEN;
    }
    if (l->draining && now_ns >= l->drain_until_ns) {
        life_leave_drained(l);
        return l->gone ? LIFE_EV_QUIT : LIFE_EV_BROKEN;
    }
    say_what_is_wrong(l, now_ns);
    beat_and_connect(l, now_ns);
    return 0;
}

int life_row_stopping_deadline(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    beat_and_connect(l, now_ns);
    say_what_is_wrong(l, now_ns);
    life_say_who_stays(l, now_ns);
    if (now_ns < l->stop_deadline_ns && (l->killed || now_ns < life_fence_kill_at(l)))
        return 0;
    if (!l->signalled && !l->killed && now_ns < life_fence_kill_at(l)) {
        life_signal_workers(l, now_ns);
        return 0;
    }
    if (!l->killed) {
        life_kill_late_workers(l, now_ns);
        return 0;
    }
    /* The kernel cannot end them: this node is unhealthy. Never a wait without end. */
    l->bye = life_cause_here(l, MU_CAUSE_NODE_FAILED,
                             "processes of a worker do not end after SIGKILL", ev->unix_ms);
    l->exit_status = 1;
    l->leaving = true;
    life_say(l, l->bye.message);
    return LIFE_EV_QUIT;
}

int life_row_ending_deadline(struct life *l, int64_t now_ns, const struct life_event *ev)
{
    beat_and_connect(l, now_ns);
    return now_ns >= l->stop_deadline_ns ? LIFE_EV_QUIT : 0;
}

int64_t life_next_deadline(const struct life *l)
{
    if (l->state == LIFE_EXITED)
        return NEVER;
    int64_t at = l->connect_at_ns;
    if (l->link_up)
        at = life_sooner(at, l->beat_at_ns);
    if (l->state == LIFE_JOINING || l->state == LIFE_CHECKING || l->state == LIFE_FINISHED)
        at = life_sooner(at, give_up_at(l));
    if (l->state == LIFE_JOINING)
        at = life_sooner(at, l->recheck_at_ns);
    if (l->state == LIFE_CHECKING && !l->reached)
        at = life_sooner(life_sooner(at, l->reach_word_ns),
                         life_sooner(l->reach_at_ns, l->reach_until_ns));
    at = life_sooner(at, server_word_at(l));
    if (l->draining && (l->state == LIFE_RUNNING || l->state == LIFE_FINISHED))
        at = life_sooner(at, l->drain_until_ns);
    if (l->state == LIFE_STOPPING && !l->gone)
        at = life_sooner(at, l->stop_word_ns);
    if (l->state == LIFE_RUNNING)
        at = life_sooner(life_sooner(at, l->tell_at_ns), life_fence_at(l));
    if (l->state == LIFE_STOPPING || l->state == LIFE_ENDING)
        at = life_sooner(at, l->stop_deadline_ns);
    if (l->state == LIFE_STOPPING && !l->killed)
        at = life_sooner(at, life_fence_kill_at(l));
    return at;
}
