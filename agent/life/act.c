/* How rows act, send and speak, and what they note of a failure. */
#include "agent/life/internal.h"

#include <stdio.h>
#include <string.h>

void life_act(struct life *l, enum life_action_type type)
{
    MU_ASSERT(l->action_count < (uint32_t)l->config.hello.nproc + EXTRA_ACTIONS);
    l->actions[l->action_count++] = (struct life_action){.type = type, .msg = CTL_TYPE_COUNT};
}

void life_send_arg(struct life *l, enum ctl_type msg, uint32_t arg)
{
    if (!l->link_up)
        return; /* Said again, in one form or another, by the next HELLO. */
    life_act(l, LIFE_ACT_SEND);
    l->actions[l->action_count - 1].msg = msg;
    l->actions[l->action_count - 1].arg = arg;
}

void life_send(struct life *l, enum ctl_type msg)
{
    life_send_arg(l, msg, 0);
}

void life_say(struct life *l, const char *text)
{
    size_t room = sizeof l->words - l->words_used;
    int n = snprintf(l->words + l->words_used, room, "%s", text); /* A cut sentence is still one. */
    life_act(l, LIFE_ACT_SAY);
    l->actions[l->action_count - 1].arg = l->words_used;
    size_t used = n < 0 ? 0 : (size_t)n < room ? (size_t)n + 1 : room;
    l->words_used += (uint32_t)(used < room ? used : room - 1); /* The last byte stays for "". */
}

/* output: last lines of the worker it names, or NULL. */
void life_take_cause(struct life *l, const struct mu_cause *c, const char *output)
{
    l->cause = *c;
    l->has_cause = c->kind != MU_CAUSE_NONE;
    if (output != l->cause_output)
        (void)snprintf(l->cause_output, sizeof l->cause_output, "%s", output != NULL ? output : "");
}

struct mu_cause
life_cause_here(const struct life *l, enum mu_cause_kind kind, const char *text, int64_t unix_ms)
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

void life_note_failure(struct life *l, const struct mu_cause *c, const struct life_words *w)
{
    l->failure = *c;
    l->failure_said = true;
    put_words(l->failure_output, sizeof l->failure_output, w->output);
    put_words(l->failure_tail, sizeof l->failure_tail, w->tail);
    put_words(l->failure_trace, sizeof l->failure_trace, w->trace);
}

/* The round failed or must be left here: our own cause, until the server tells the first one. */
void life_fail_here(struct life *l, const struct mu_cause *c, const struct life_words *w)
{
    static const struct life_words none;
    w = w != NULL ? w : &none;
    if (l->failure_untold)
        return;
    life_note_failure(l, c, w);
    l->failure_untold = true;
    if (!l->has_cause)
        life_take_cause(l, c, w->output);
    life_send(l, CTL_FAILED);
}
