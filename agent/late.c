/* See late.h. */
#include "agent/late.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/module.h"
#include "base/str.h"

#define SENTENCE_BYTES 900 /* Longer ones are no sentence. */

static void hang_up(struct late *l)
{
    if (l->fd >= 0)
        (void)close(l->fd);
    l->fd = -1;
}

/* Its one line is less than a pipe holds: it never waits for us to read. */
static void tell(struct late *l)
{
    char line[SENTENCE_BYTES];
    char text[sizeof line + 32];
    ssize_t n = read(l->fd, line, sizeof line - 1);
    line[n > 0 ? n : 0] = '\0';
    line[strcspn(line, "\n")] = '\0';
    if (line[0] == '\0')
        return;
    (void)snprintf(text, sizeof text, "muster doctor: %s", line);
    l->on_said(l->arg, text);
}

static void on_ended(void *arg, int32_t status)
{
    struct late *l = arg;
    mu_log(MU_DEBUG, "doctor.ended", "status=%d", status);
    if (!l->running)
        return; /* It was given up. */
    l->running = false;
    (void)uv_timer_stop(&l->timer);
    tell(l);
    hang_up(l);
}

static int start(struct late *l, int out_fd)
{
    extern char **environ;
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
    int r = path.n > 0 && mu_buf_cstr(&path) != NULL
                ? work_start_guest(l->work, argv, environ, out_fd, on_ended, l)
                : -ENOENT;
    mu_buf_fini(&path);
    return r;
}

static void give_up(struct late *l)
{
    (void)uv_timer_stop(&l->timer);
    l->waiting = false;
    if (!l->running)
        return;
    l->running = false;
    work_kill_guest(l->work);
    hang_up(l);
}

static void on_late(uv_timer_t *timer)
{
    give_up(timer->data);
}

static void begin(uv_timer_t *timer)
{
    struct late *l = timer->data;
    int fds[2] = {-1, -1};
    l->waiting = false;
    l->done = true;
    int r = pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0 ? -errno : 0;
    if (r == 0)
        r = start(l, fds[1]);
    if (fds[1] >= 0)
        (void)close(fds[1]);
    l->fd = fds[0];
    if (r < 0) { /* Nobody asked for it: nobody misses it. */
        mu_log(MU_DEBUG, "doctor.not_started", "reason=\"%s\"", strerror(-r));
        hang_up(l);
        return;
    }
    l->running = true;
    (void)uv_timer_start(&l->timer, on_late, (uint64_t)(LATE_LIMIT_NS / MU_NS_PER_MS), 0);
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
                       .fd = -1,
                       .on_said = on_said,
                       .arg = arg};
    if (l->after_ns < LATE_LEAST_NS)
        l->server = NULL;
    if (l->server == NULL)
        return;
    (void)uv_timer_init(loop, &l->timer); /* Cannot fail. */
    l->timer.data = l;
    uv_unref((uv_handle_t *)&l->timer);
}

void late_use(struct late *l, struct work *work)
{
    l->work = work;
}

void late_follow(struct late *l, bool waits)
{
    if (l->server == NULL || l->work == NULL || (!waits && !l->waiting && !l->running))
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
    uv_close((uv_handle_t *)&l->timer, NULL);
    l->server = NULL;
}
