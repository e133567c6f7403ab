/* The verdict on a health check; see health.h. */
#include "agent/life/health.h"

#include <stdio.h>
#include <string.h>

#include "base/cause.h"
#include "base/limits.h"

#define STATUS_NOT_RUNNABLE 126 /* As every shell says it. */
#define STATUS_NOT_FOUND 127
#define STATUS_SIGNAL 128 /* And more: a command within it was ended by that signal. */
#define SIGNALS 64

/* The last line that holds more than blanks, without its end. */
static void last_line(const char *output, const char **ret, size_t *ret_bytes)
{
    size_t end = strlen(output);
    while (end > 0 && strchr(" \t\r\n", output[end - 1]) != NULL)
        end--;
    size_t at = end;
    while (at > 0 && output[at - 1] != '\n' && output[at - 1] != '\r')
        at--;
    *ret = output + at;
    *ret_bytes = end - at;
}

static enum health_verdict
say(enum health_verdict v, char *text, size_t cap, const char *how, const char *output)
{
    const char *line = "";
    size_t n = 0;
    last_line(output, &line, &n);
    int room = n < cap ? (int)n : (int)cap;
    (void)snprintf(text, cap, "the health check %s%s%.*s", how, n > 0 ? ": " : "", room,
                   line); /* A cut line is still one. */
    return v;
}

enum health_verdict health_judge(const struct health_run *run, char *text, size_t cap)
{
    char how[96];
    char name[16];
    int signo = run->status < 0 ? -run->status : run->status - STATUS_SIGNAL;
    text[0] = '\0';
    if (run->not_started != NULL)
        return say(HEALTH_UNKNOWN, text, cap, "could not be started", run->not_started);
    if (run->timed_out) {
        (void)snprintf(how, sizeof how, "did not end within %g s", (double)run->limit_ns / 1e9);
        return say(HEALTH_UNKNOWN, text, cap, how, run->output);
    }
    if (run->status == 0)
        return HEALTH_PASSED;
    if (run->status == STATUS_NOT_RUNNABLE || run->status == STATUS_NOT_FOUND) {
        (void)snprintf(how, sizeof how, "could not be run (status %d)", run->status);
        return say(HEALTH_UNKNOWN, text, cap, how, run->output);
    }
    if (signo > 0 && signo <= SIGNALS) {
        (void)snprintf(how, sizeof how, "was ended by %s", mu_signal_name(signo, name));
        return say(HEALTH_UNKNOWN, text, cap, how, run->output);
    }
    (void)snprintf(how, sizeof how, "failed with status %d", run->status);
    return say(HEALTH_FAILED, text, cap, how, run->output);
}

int64_t health_longer_gap(int64_t gap_ns)
{
    if (gap_ns >= MU_HEALTH_GAP_MAX_NS) /* As the user wants it. */
        return gap_ns;
    return gap_ns * 2 > MU_HEALTH_GAP_MAX_NS ? MU_HEALTH_GAP_MAX_NS : gap_ns * 2;
}
