/* What the checks of this node's health have found. */
#include "agent/life/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void life_begin_check(struct life *l)
{
    l->recheck_at_ns = NEVER;
    if (l->health != LIFE_HEALTH_UNHEALTHY)
        l->health = LIFE_HEALTH_CHECKING;
    life_act(l, LIFE_ACT_CHECK);
}

static void say_health(struct life *l, const char *before, const char *after)
{
    char text[MU_MESSAGE_BYTES + 160];
    (void)snprintf(text, sizeof text, "%s%s%s", before, l->health_text, after);
    life_say(l, text);
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
    life_send(l, CTL_HEALTH);
    return 0;
}

static int64_t first_gap(const struct life *l)
{
    return l->config.recheck_ns > 0 ? l->config.recheck_ns : MU_HEALTH_GAP_NS;
}

int life_row_health_known(struct life *l, int64_t now_ns, const struct life_event *ev)
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
    life_send(l, CTL_HEALTH);
    return 0;
}
