/* Faults by rule, carried out; see inject.h. */
#include "agent/inject.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/shown.h"

#define DISK_BYTES_MAX (INT64_C(1) << 30) /* More takes too long, and is hardly meant. */

static void step(struct inject *j, struct chaos_event *ev);

/* "chaos: kill rank 3 (pid 17): kill rank=3 step=100" */
static void say(struct inject *j, uint32_t rule, const char *text)
{
    char line[512];
    char shown[160];
    const char *quoted = mu_quote(shown, sizeof shown, j->rules->rules[rule].text);
    (void)snprintf(line, sizeof line, "chaos: %s, by the rule %s", text, quoted);
    mu_log(MU_INFO, "chaos.fault", "rule=%s did=\"%s\"", quoted, text);
    j->say(j->arg, line);
}

static bool is_alive(const struct inject *j, uint32_t local_rank)
{
    return j->work != NULL && work_is_there(j->work, local_rank);
}

static void signal_worker(struct inject *j, const struct chaos_action *a, int signo)
{
    char text[160];
    char name[16];
    char span[MU_SPAN_BYTES];
    if (!is_alive(j, a->local_rank))
        return;
    bool lasts = a->act == CHAOS_ACT_FREEZE;
    (void)snprintf(text, sizeof text, "%s to rank %u (pid %d)%s%s", mu_signal_name(signo, name),
                   j->rank_base + a->local_rank, j->pids[a->local_rank], lasts ? " for " : "",
                   lasts ? mu_span(a->for_ns, span) : "");
    say(j, a->rule, text);
    (void)kill(j->pids[a->local_rank], signo); /* Not reaped yet: the number is still its own. */
}

/* ------------------------------------------------------------------ the agent itself */

static void stop_agent(struct inject *j, const struct chaos_action *a)
{
    char text[96];
    char span[MU_SPAN_BYTES];
    (void)snprintf(text, sizeof text, "this agent stands still for %s", mu_span(a->for_ns, span));
    say(j, a->rule, text);
    int64_t until_ns = mu_now_ns() + a->for_ns;
    for (int64_t left_ns = a->for_ns; left_ns > 0; left_ns = until_ns - mu_now_ns())
        (void)poll(NULL, 0, (int)(left_ns / MU_NS_PER_MS + 1));
}

static _Noreturn void kill_agent(struct inject *j, const struct chaos_action *a)
{
    char line[256];
    char shown[160];
    int n = snprintf(line, sizeof line, "chaos: SIGKILL to this agent, by the rule %s\n",
                     mu_quote(shown, sizeof shown, j->rules->rules[a->rule].text));
    if (write(STDERR_FILENO, line, (size_t)n) < 0) { /* Directly: the pump dies with us. */
        /* Nowhere left to say so. */
    }
    (void)kill(getpid(), SIGKILL);
    abort();
}

/* ------------------------------------------------------------------ the disk */

static bool is_on(dev_t device, const char *path)
{
    struct stat s;
    return path != NULL && stat(path, &s) == 0 && s.st_dev == device;
}

/* Why the log folder's file system must not be filled; NULL: it may. */
static const char *why_not_fill(const char *folder)
{
    struct stat s;
    struct statvfs v;
    if (folder == NULL || stat(folder, &s) < 0 || statvfs(folder, &v) < 0)
        return "there is no log folder: give --log-dir";
    if (is_on(s.st_dev, "/") || is_on(s.st_dev, getenv("HOME")) ||
        is_on(s.st_dev, getenv("TMPDIR")) || is_on(s.st_dev, "/tmp") || is_on(s.st_dev, "/dev/shm"))
        return "the log folder shares its file system with the root, $HOME or temporary files: put "
               "it on one of its own";
    if ((uint64_t)v.f_bfree * v.f_frsize > (uint64_t)DISK_BYTES_MAX)
        return "the log folder's file system has more than 1 GiB free: use a smaller one";
    return NULL;
}

/* Down to the last byte: in ever smaller pieces. */
static int64_t fill(int fd)
{
    static const char zeros[4096];
    off_t at = 0;
    for (off_t piece = 64 << 20; piece >= (off_t)sizeof zeros;) {
        if (at < DISK_BYTES_MAX + piece && posix_fallocate(fd, at, piece) == 0)
            at += piece;
        else
            piece /= 4;
    }
    (void)lseek(fd, at, SEEK_SET);
    for (ssize_t n = write(fd, zeros, sizeof zeros); n > 0 && at < 2 * DISK_BYTES_MAX;
         n = write(fd, zeros, sizeof zeros))
        at += n;
    return at;
}

static void fill_disk(struct inject *j, const struct chaos_action *a)
{
    char text[256];
    char span[MU_SPAN_BYTES];
    const char *why = why_not_fill(j->log_dir);
    if (why == NULL && j->disk_fd < 0)
        j->disk_fd = open(j->log_dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (why == NULL && j->disk_fd < 0)
        why = strerror(errno);
    if (why != NULL) {
        (void)snprintf(text, sizeof text, "the disk is not filled: %s", why);
    } else {
        int64_t bytes = fill(j->disk_fd);
        (void)snprintf(text, sizeof text,
                       "the log folder's file system is full for %s (%" PRId64 " KiB taken)",
                       mu_span(a->for_ns, span), bytes / 1024);
    }
    say(j, a->rule, text);
}

static void empty_disk(struct inject *j, uint32_t rule)
{
    if (j->disk_fd < 0)
        return;
    (void)close(j->disk_fd); /* It had no name: now it is gone. */
    j->disk_fd = -1;
    say(j, rule, "the log folder's file system has room again");
}

/* ------------------------------------------------------------------ carrying out */

static void cut(struct inject *j, const struct chaos_action *a)
{
    char text[96];
    char span[MU_SPAN_BYTES];
    (void)snprintf(text, sizeof text, "no connection to the server for %s",
                   mu_span(a->for_ns, span));
    say(j, a->rule, text);
    link_hold(j->link, true);
}

static void carry_out(struct inject *j, const struct chaos_action *a)
{
    switch (a->act) {
    case CHAOS_ACT_KILL:
        signal_worker(j, a, SIGKILL);
        break;
    case CHAOS_ACT_FREEZE:
        signal_worker(j, a, SIGSTOP);
        break;
    case CHAOS_ACT_THAW:
        signal_worker(j, a, SIGCONT);
        break;
    case CHAOS_ACT_STOP_AGENT:
        stop_agent(j, a);
        break;
    case CHAOS_ACT_KILL_AGENT:
        kill_agent(j, a);
    case CHAOS_ACT_CUT:
        cut(j, a);
        break;
    case CHAOS_ACT_HEAL:
        say(j, a->rule, "the server may be connected again");
        link_hold(j->link, false);
        break;
    case CHAOS_ACT_FILL_DISK:
        fill_disk(j, a);
        break;
    case CHAOS_ACT_EMPTY_DISK:
        empty_disk(j, a->rule);
        break;
    case CHAOS_ACT_COUNT:
        break;
    }
}

static void on_timer(uv_timer_t *t)
{
    struct inject *j = t->data;
    step(j, &(struct chaos_event){.type = CHAOS_EV_DEADLINE});
}

/* What it does can end the round, which steps again: actions are `out`'s, on this stack. */
static void step(struct inject *j, struct chaos_event *ev)
{
    struct chaos_out out;
    if (j->rules->count == 0)
        return;
    int64_t now_ns = mu_now_ns();
    chaos_step(&j->chaos, now_ns, ev, &out);
    for (uint32_t i = 0; i < out.count; i++)
        carry_out(j, &out.actions[i]);
    if (uv_is_closing((uv_handle_t *)&j->timer))
        return;
    (void)uv_timer_stop(&j->timer);
    if (j->chaos.deadline_ns == INT64_MAX)
        return;
    int64_t in_ns = j->chaos.deadline_ns - mu_now_ns();
    uv_update_time(j->timer.loop);
    (void)uv_timer_start(&j->timer, on_timer,
                         in_ns > 0 ? (uint64_t)((in_ns + MU_NS_PER_MS - 1) / MU_NS_PER_MS) : 1, 0);
}

void inject_init(struct inject *j,
                 uv_loop_t *loop,
                 const struct chaos_rules *rules,
                 const char *log_dir,
                 void (*say_line)(void *arg, const char *text),
                 void *arg)
{
    char line[256];
    char shown[160];
    *j = (struct inject){
        .rules = rules, .log_dir = log_dir, .disk_fd = -1, .say = say_line, .arg = arg};
    chaos_init(&j->chaos, rules);
    if (rules->count == 0)
        return;
    (void)uv_timer_init(loop, &j->timer); /* Cannot fail. */
    j->timer.data = j;
    uv_unref((uv_handle_t *)&j->timer);
    j->say(arg, "chaos: ON: this agent breaks things on purpose (--chaos or MUSTER_CHAOS)");
    for (uint32_t i = 0; i < rules->count; i++) {
        const struct chaos_rule *r = &rules->rules[i];
        const char *quoted = mu_quote(shown, sizeof shown, r->text);
        int n = snprintf(line, sizeof line, "chaos: rule %u: %s", i + 1, quoted);
        if (r->fault == CHAOS_RANDOM)
            (void)snprintf(line + n, sizeof line - (size_t)n, ", seed=%" PRIu64, r->seed);
        mu_log(MU_INFO, "chaos.rule", "rule=%s seed=%" PRIu64, quoted, r->seed);
        j->say(arg, line);
    }
}

void inject_use(struct inject *j, const struct work *work, struct link *link)
{
    j->work = work;
    j->link = link;
}

void inject_started(struct inject *j, const struct ctl_start *s, const int32_t *pids, uint32_t n)
{
    if (j->rules->count == 0)
        return;
    memcpy(j->pids, pids, n * sizeof *pids);
    j->rank_base = (uint32_t)s->rank_base;
    step(j, &(struct chaos_event){.type = CHAOS_EV_ROUND,
                                  .round = s->round,
                                  .restarts = s->restarts,
                                  .node = (uint32_t)s->node_rank,
                                  .rank_base = j->rank_base,
                                  .nproc = n});
}

void inject_step(struct inject *j, uint32_t local_rank, int64_t at_step)
{
    step(j,
         &(struct chaos_event){.type = CHAOS_EV_STEP, .local_rank = local_rank, .step = at_step});
}

void inject_ended(struct inject *j)
{
    step(j, &(struct chaos_event){.type = CHAOS_EV_ENDED});
}

void inject_close(struct inject *j)
{
    if (j->rules->count == 0)
        return;
    if (j->disk_fd >= 0)
        (void)close(j->disk_fd);
    j->disk_fd = -1;
    uv_close((uv_handle_t *)&j->timer, NULL);
}
