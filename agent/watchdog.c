/* Workers in D state; see watchdog.h. */
#include "agent/watchdog.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/workers/family.h"
#include "base/clock.h"
#include "base/mem.h"

enum {
    LOOK_MS_MIN = 20,
    LOOK_MS_MAX = 1000
};

static bool sleeps_uninterruptibly(int32_t pid)
{
    char stat[FAMILY_STAT_BYTES];
    return family_stat(pid, stat, sizeof stat) && strncmp(stat, " D", 2) == 0;
}

static void on_look(uv_timer_t *t)
{
    struct watchdog *w = t->data;
    int64_t now_ns = mu_now_ns();
    char text[160];
    for (uint32_t i = 0; i < w->count; i++) {
        if (!sleeps_uninterruptibly(w->pids[i])) {
            w->since_ns[i] = 0;
            continue;
        }
        if (w->since_ns[i] == 0)
            w->since_ns[i] = now_ns;
        if (now_ns - w->since_ns[i] < w->limit_ns)
            continue;
        (void)snprintf(text, sizeof text,
                       "worker %u (pid %d) has been in uninterruptible sleep (D state) for %d s", i,
                       w->pids[i], (int)((now_ns - w->since_ns[i]) / (MU_NS_PER_MS * 1000)));
        watchdog_stop(w);
        w->on_stuck(w->arg, text);
        return;
    }
}

int watchdog_init(struct watchdog *w,
                  uv_loop_t *loop,
                  uint32_t nproc,
                  int64_t limit_ns,
                  void (*on_stuck)(void *arg, const char *text),
                  void *arg)
{
    *w = (struct watchdog){.limit_ns = limit_ns, .on_stuck = on_stuck, .arg = arg};
    if (limit_ns == 0)
        return 0;
    w->pids = mu_zalloc(mu_mem_default(), nproc * sizeof *w->pids);
    w->since_ns = mu_zalloc(mu_mem_default(), nproc * sizeof *w->since_ns);
    if (w->pids == NULL || w->since_ns == NULL)
        return -ENOMEM;
    w->count = nproc;
    (void)uv_timer_init(loop, &w->timer); /* Cannot fail. */
    w->timer.data = w;
    uv_unref((uv_handle_t *)&w->timer);
    return 0;
}

void watchdog_start(struct watchdog *w, const int32_t *pids)
{
    if (w->limit_ns == 0)
        return;
    int64_t every_ms = w->limit_ns / (4 * MU_NS_PER_MS);
    every_ms = every_ms < LOOK_MS_MIN ? LOOK_MS_MIN : every_ms;
    every_ms = every_ms > LOOK_MS_MAX ? LOOK_MS_MAX : every_ms;
    memcpy(w->pids, pids, w->count * sizeof *w->pids);
    memset(w->since_ns, 0, w->count * sizeof *w->since_ns);
    (void)uv_timer_start(&w->timer, on_look, (uint64_t)every_ms, (uint64_t)every_ms);
}

void watchdog_stop(struct watchdog *w)
{
    if (w->limit_ns != 0)
        (void)uv_timer_stop(&w->timer);
}

void watchdog_close(struct watchdog *w)
{
    if (w->limit_ns != 0)
        uv_close((uv_handle_t *)&w->timer, NULL);
    free(w->pids);
    free(w->since_ns);
    w->pids = NULL;
    w->since_ns = NULL;
}
