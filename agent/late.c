/* See late.h. */
#include "agent/late.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/module.h"
#include "base/str.h"

#define SENTENCE_BYTES 900 /* Longer ones are no sentence. */

static void on_over(void *arg, int32_t status, bool timed_out)
{
    struct late *l = arg;
    char text[SENTENCE_BYTES + 32];
    size_t n = strcspn(l->guest.tail, "\n");
    mu_log(MU_DEBUG, "doctor.ended", "status=%d", status);
    if (timed_out || n == 0)
        return;
    (void)snprintf(text, sizeof text, "muster doctor: %.*s",
                   (int)(n < SENTENCE_BYTES ? n : SENTENCE_BYTES), l->guest.tail);
    l->on_said(l->arg, text);
}

static int start(struct late *l)
{
    char server[sizeof l->server->host + 16];
    char words[][16] = {"muster-doctor", "doctor", "--local", "--brief",
                        "--timeout",     "3",      "--rdzv"};
    struct mu_buf path;
    bool v6 = strchr(l->server->host, ':') != NULL;
    mu_buf_init(&path, mu_mem_default());
    mu_module_path("muster-doctor", &path);
    (void)snprintf(server, sizeof server, v6 ? "[%s]:%u" : "%s:%u", l->server->host,
                   l->server->port);
    char *argv[] = {path.p,   words[1], words[2], words[3], words[4],
                    words[5], words[6], server,   NULL};
    int r = path.n > 0 && mu_buf_cstr(&path) != NULL ? guest_start(&l->guest, argv, LATE_LIMIT_NS)
                                                     : -ENOENT;
    mu_buf_fini(&path);
    return r;
}

static void give_up(struct late *l)
{
    (void)uv_timer_stop(&l->timer);
    l->waiting = false;
    guest_give_up(&l->guest);
}

static void begin(uv_timer_t *timer)
{
    struct late *l = timer->data;
    l->waiting = false;
    l->done = true;
    int r = start(l);
    if (r < 0) /* Nobody asked for it: nobody misses it. */
        mu_log(MU_DEBUG, "doctor.not_started", "reason=\"%s\"", strerror(-r));
}

void late_init(struct late *l,
               uv_loop_t *loop,
               const struct mu_endpoint *server,
               int64_t join_timeout_ns,
               void (*on_said)(void *arg, const char *text),
               void *arg)
{
    int64_t half = join_timeout_ns / 2;
    *l = (struct late){.loop = loop,
                       .server = server,
                       .after_ns = half < LATE_AFTER_NS ? half : LATE_AFTER_NS,
                       .on_said = on_said,
                       .arg = arg};
    if (l->after_ns < LATE_LEAST_NS)
        l->server = NULL;
    if (l->server == NULL)
        return;
    guest_init(&l->guest, loop, on_over, l);
    (void)uv_timer_init(loop, &l->timer); /* Cannot fail. */
    l->timer.data = l;
    uv_unref((uv_handle_t *)&l->timer);
}

void late_use(struct late *l, struct work *work)
{
    guest_use(&l->guest, work);
}

void late_follow(struct late *l, bool waits)
{
    if (l->server == NULL || l->guest.work == NULL)
        return;
    if (!waits)
        give_up(l);
    else if (!l->waiting && !l->done) {
        l->waiting = true;
        uv_update_time(l->loop);
        (void)uv_timer_start(&l->timer, begin, (uint64_t)(l->after_ns / MU_NS_PER_MS), 0);
    }
}

void late_close(struct late *l)
{
    if (l->server == NULL)
        return;
    give_up(l);
    guest_close(&l->guest);
    uv_close((uv_handle_t *)&l->timer, NULL);
    l->server = NULL;
}
