/* Names from the lists, what sentences share, and the table as a picture. */
#include "agent/life/life.h"

#include <stdio.h>

#include "base/parse.h"

const char *life_state_name(enum life_state s)
{
    static const char *const names[] = {
#define X(s) [LIFE_##s] = #s,
        LIFE_STATES(X)
#undef X
    };
    MU_ASSERT((size_t)s < MU_COUNT(names));
    return names[s];
}

const char *life_event_name(enum life_event_type e)
{
    static const char *const names[] = {
#define X(e) [LIFE_EV_##e] = #e,
        LIFE_EVENTS(X) LIFE_NEWS(X)
#undef X
    };
    MU_ASSERT((size_t)e < MU_COUNT(names));
    return names[e];
}

const char *life_within(const struct life *l, char *buf)
{
    char span[MU_SPAN_BYTES];
    int64_t ms = l->config.hello.restart_window_ms;
    buf[0] = '\0';
    if (ms > 0)
        (void)snprintf(buf, LIFE_WITHIN_BYTES, " within %s", mu_span_text(ms, true, span));
    return buf;
}

void life_dot(struct mu_buf *out)
{
    (void)mu_buf_adds(
        out, "digraph life {\n    rankdir=LR;\n    node [shape=box, fontname=\"sans-serif\"];\n    "
             "edge [fontname=\"sans-serif\", fontsize=10];\n");
    for (int s = 0; s < LIFE_STATE_COUNT; s++)
        (void)mu_buf_addf(out, "    %s;\n", life_state_name((enum life_state)s));
    for (int s = 0; s < LIFE_STATE_COUNT; s++) {
        for (int e = 0; e < LIFE_EV_COUNT; e++) {
            int to = life_table_to((enum life_state)s, (enum life_event_type)e);
            if (to >= 0)
                (void)mu_buf_addf(
                    out, "    %s -> %s [label=\"%s\"%s];\n", life_state_name((enum life_state)s),
                    life_state_name((enum life_state)to), life_event_name((enum life_event_type)e),
                    to == s ? ", style=dotted" : "");
        }
    }
    (void)mu_buf_adds(out, "}\n");
}
