/* A health check at work; see health.h. */
#include "agent/health.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"

static void settle(struct health *h, const struct health_run *run)
{
    char text[MU_MESSAGE_BYTES];
    char shown[MU_MESSAGE_BYTES + 64];
    static const char *const words[] = {
        [HEALTH_PASSED] = "passed", [HEALTH_FAILED] = "failed", [HEALTH_UNKNOWN] = "unknown"};
    enum health_verdict v = health_judge(run, text, sizeof text);
    mu_log(MU_INFO, "health.checked", "verdict=%s status=%d text=%s", words[v], run->status,
           mu_quote(shown, sizeof shown, mu_str_of(text, strlen(text))));
    h->on_known(h->arg, v, text);
}

static void on_over(void *arg, int32_t status, bool timed_out)
{
    struct health *h = arg;
    settle(h, &(struct health_run){.status = status,
                                   .timed_out = timed_out,
                                   .limit_ns = h->limit_ns,
                                   .output = h->guest.tail});
}

static void on_not_started(uv_timer_t *timer)
{
    struct health *h = timer->data;
    settle(h, &(struct health_run){.not_started = h->trouble, .output = ""});
}

/* The command as the shell reads it: no terminal of ours is its stdin. */
static int start(struct health *h)
{
    static const char before[] = "exec </dev/null\n";
    size_t n = sizeof before + strlen(h->command);
    char *script = mu_alloc(mu_mem_default(), n);
    if (script == NULL)
        return -ENOMEM;
    (void)snprintf(script, n, "%s%s", before, h->command);
    char shell[] = "/bin/sh";
    char option[] = "-c";
    char *argv[] = {shell, option, script, NULL};
    int r = guest_start(&h->guest, argv, h->limit_ns);
    free(script);
    return r;
}

void health_begin(struct health *h)
{
    health_cancel(h);
    int r = start(h);
    if (r == 0)
        return;
    (void)snprintf(h->trouble, sizeof h->trouble, "%s",
                   r == -EBUSY ? "the one before it does not end after SIGKILL" : strerror(-r));
    (void)uv_timer_start(&h->timer, on_not_started, 0, 0);
}

void health_cancel(struct health *h)
{
    if (h->command == NULL)
        return;
    (void)uv_timer_stop(&h->timer);
    guest_give_up(&h->guest);
}

void health_init(struct health *h,
                 uv_loop_t *loop,
                 const char *command,
                 int64_t limit_ns,
                 void (*on_known)(void *arg, enum health_verdict v, const char *text),
                 void *arg)
{
    *h =
        (struct health){.command = command, .limit_ns = limit_ns, .on_known = on_known, .arg = arg};
    if (command == NULL)
        return;
    guest_init(&h->guest, loop, on_over, h);
    (void)uv_timer_init(loop, &h->timer); /* Cannot fail. */
    h->timer.data = h;
    uv_unref((uv_handle_t *)&h->timer);
}

void health_use(struct health *h, struct work *work)
{
    guest_use(&h->guest, work);
}

void health_close(struct health *h)
{
    if (h->command == NULL)
        return;
    health_cancel(h);
    guest_close(&h->guest);
    uv_close((uv_handle_t *)&h->timer, NULL);
}
