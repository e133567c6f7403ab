/* Jobs' agents as processes; see run.h. */
#include "agent/service/run.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/workers/cgroup.h"
#include "agent/workers/warden.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"

#define READ_BYTES (64 * 1024)
#define WORD_MS 50 /* For a process to end that was asked to; a stopped one does not. */
#define OWN_PROGRAM                                                                                \
    "/proc/self/exe" /* Also where the file was replaced: agent and service are one. */

static void check_empty(struct run *r);

int runs_init(struct runs *a)
{
    a->buffer = mu_alloc(mu_mem_default(), READ_BYTES);
    if (a->buffer == NULL)
        return -ENOMEM;
    return spawn_init(&a->spawner);
}

void runs_fini(struct runs *a)
{
    spawn_fini(&a->spawner);
    free(a->buffer);
    a->buffer = NULL;
}

/* --- output --- */

static void on_readable(uv_poll_t *poll, int status, int events);

/* Read while there is nobody who writes what was read before. */
static void watch_output(struct run *r)
{
    bool idle = !r->all->held && !keeper_is_busy(r->log);
    for (int i = 0; i < 2; i++) {
        if (!r->output_open[i])
            continue;
        if (idle)
            (void)uv_poll_start(&r->output_poll[i], UV_READABLE | UV_DISCONNECT, on_readable);
        else
            (void)uv_poll_stop(&r->output_poll[i]);
    }
}

static void on_written(void *arg)
{
    struct run *r = arg;
    watch_output(r);
    r->all->on_output(r->all->arg, r);
    check_empty(r);
}

static void on_poll_closed(uv_handle_t *h)
{
    struct run *r = h->data;
    if (--r->handles == 0 && r->freed)
        free(r);
}

static void close_output(struct run *r, int i)
{
    char at[32];
    if (!r->output_open[i])
        return;
    r->output_open[i] = false;
    uv_close((uv_handle_t *)&r->output_poll[i], on_poll_closed);
    (void)close(r->fd[i]);
    r->fd[i] = -1;
    if (keeper_is_busy(r->log))
        return; /* Abandoned: what was begun is not waited for. */
    struct record_now now = kept_now(r->all->logs, at);
    uint32_t lines = record_end(&r->record[i], &now, keeper_batch(r->log));
    keeper_write(r->log, lines);
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
    struct run *r = poll->data;
    int i = poll == &r->output_poll[0] ? 0 : 1;
    char at[32];
    (void)status;
    (void)events;
    if (keeper_is_busy(r->log)) {
        watch_output(r);
        return;
    }
    ssize_t n = read(r->fd[i], r->all->buffer, READ_BYTES);
    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (n <= 0) {
        close_output(r, i);
    } else {
        struct record_now now = kept_now(r->all->logs, at);
        uint32_t lines =
            record_take(&r->record[i], &now, r->all->buffer, (size_t)n, keeper_batch(r->log));
        keeper_write(r->log, lines);
    }
    watch_output(r);
    check_empty(r);
}

static void check_empty(struct run *r)
{
    if (!r->exited || r->output_open[0] || r->output_open[1] || keeper_is_busy(r->log) ||
        r->empty_said || keeper_end(r->log))
        return;
    r->empty_said = true;
    r->all->on_empty(r->all->arg, r);
}

void runs_hold(struct runs *a, bool held)
{
    a->held = held;
    for (struct run *r = a->first; r != NULL; r = r->next)
        watch_output(r);
}

bool runs_are_writing(const struct runs *a)
{
    for (const struct run *r = a->first; r != NULL; r = r->next)
        if (keeper_is_busy(r->log))
            return true;
    return false;
}

/* --- its end --- */

static void close_exit(struct run *r)
{
    if (!r->exit_open)
        return;
    r->exit_open = false;
    uv_close((uv_handle_t *)&r->exit_poll, on_poll_closed);
    (void)close(r->pidfd);
    r->pidfd = -1;
}

static void on_exit_of_agent(uv_poll_t *poll, int status, int events)
{
    struct run *r = poll->data;
    siginfo_t si = {0};
    (void)status;
    (void)events;
    if (waitid(P_PIDFD, (id_t)r->pidfd, &si, WEXITED | WNOHANG) < 0 && errno == EINTR)
        return;
    if (si.si_pid == 0 && errno != ECHILD)
        return;
    close_exit(r);
    r->exited = true;
    r->all->on_exited(r->all->arg, r,
                      si.si_code == CLD_EXITED ? si.si_status & 255 : 128 + (si.si_status & 127));
    check_empty(r);
}

/* --- its start --- */

static int watch(struct run *r)
{
    int code = 0;
    for (int i = 0; code == 0 && i < 2; i++) {
        if (r->fd[i] < 0)
            continue;
        code = uv_poll_init(r->all->loop, &r->output_poll[i], r->fd[i]);
        if (code == 0) {
            r->output_poll[i].data = r;
            r->output_open[i] = true;
            r->handles++;
        }
    }
    if (code == 0 && r->pidfd >= 0) {
        code = uv_poll_init(r->all->loop, &r->exit_poll, r->pidfd);
        if (code == 0) {
            r->exit_poll.data = r;
            r->exit_open = true;
            r->handles++;
            code = uv_poll_start(&r->exit_poll, UV_READABLE, on_exit_of_agent);
        }
    }
    watch_output(r);
    return code;
}

static struct run *
new_run(struct runs *a, const char *job, uint32_t attempt, uint32_t part, uint64_t lines)
{
    struct run *r = mu_zalloc(mu_mem_default(), sizeof *r);
    if (r == NULL)
        return NULL;
    r->all = a;
    r->attempt = attempt;
    r->fd[0] = r->fd[1] = r->pidfd = -1;
    for (int i = 0; i < 2; i++)
        record_init(&r->record[i], mu_mem_default(), i + 1);
    if (mu_strcopy(r->job, sizeof r->job, job) == 0)
        r->log = keeper_new(a->logs, job, attempt, part, lines, on_written, r);
    if (r->log == NULL) {
        free(r);
        return NULL;
    }
    r->next = a->first;
    a->first = r;
    return r;
}

static void unlink_run(struct run *r)
{
    struct run **at = &r->all->first;
    while (*at != r)
        at = &(*at)->next;
    *at = r->next;
}

void run_free(struct run *r)
{
    unlink_run(r);
    for (int i = 0; i < 2; i++) {
        if (r->output_open[i])
            uv_close((uv_handle_t *)&r->output_poll[i], on_poll_closed);
        r->output_open[i] = false;
        if (r->fd[i] >= 0)
            (void)close(r->fd[i]);
        record_fini(&r->record[i]);
    }
    close_exit(r);
    if (r->pidfd >= 0)
        (void)close(r->pidfd);
    keeper_free(r->log);
    cgroups_remove(r->cgroup);
    r->freed = true;
    if (r->handles == 0)
        free(r);
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        (void)close(*fd);
    *fd = -1;
}

/* Ours do not block, the agent's do. */
static int make_pipes(struct run *r, int writers[2])
{
    for (int i = 0; i < 2; i++) {
        int ends[2];
        if (pipe2(ends, O_CLOEXEC) < 0)
            return -errno;
        r->fd[i] = ends[0];
        writers[i] = ends[1];
        if (fcntl(ends[0], F_SETFL, O_NONBLOCK) < 0)
            return -errno;
        (void)fcntl(ends[0], F_SETPIPE_SZ, 1 << 20); /* A smaller one does as well. */
    }
    return 0;
}

static int spawn_agent(struct run *r,
                       const struct run_plan *p,
                       const int writers[2],
                       int cgroup_fd,
                       struct mu_err *err)
{
    struct spawn_plan plan = {.path = OWN_PROGRAM,
                              .argv = p->argv,
                              .envp = p->envp,
                              .stdout_fd = writers[0],
                              .stderr_fd = writers[1],
                              .cgroup_fd = cgroup_fd,
                              .folder = p->cwd,
                              .death_signo = SIGTERM};
    enum spawn_stage stage = SPAWN_OK;
    spawn_refresh(&r->all->spawner);
    int code = spawn_start(&r->all->spawner, &plan, &r->pid, &r->pidfd, &stage);
    if (code < 0 && stage == SPAWN_CLONE && cgroup_fd >= 0) {
        plan.cgroup_fd = -1;
        code = spawn_start(&r->all->spawner, &plan, &r->pid, &r->pidfd, &stage);
    }
    if (code < 0 && stage == SPAWN_FOLDER)
        return mu_err_set(err, code, "its folder '%.100s' cannot be entered: %s", p->cwd,
                          strerror(-code));
    return code < 0 ? mu_err_set(err, code, "its agent cannot be started: %s", strerror(-code)) : 0;
}

/* The log of a job that was started before goes on in the same place. */
static void say_attempt(struct run *r)
{
    char at[32];
    char text[64];
    if (r->attempt < 2)
        return;
    struct record_now now = kept_now(r->all->logs, at);
    (void)snprintf(text, sizeof text, "node-agent: attempt %u begins", r->attempt);
    record_say(keeper_batch(r->log), &now, -1, text);
    keeper_write(r->log, 1);
}

int run_start(struct runs *a, const struct run_plan *p, struct run **ret, struct mu_err *err)
{
    int writers[2] = {-1, -1};
    MU_CLEANUP(mu_closep) int cgroup_fd = -1;
    struct run *r = new_run(a, p->job, p->attempt, 0, 0);
    if (r == NULL)
        return mu_err_set(err, -ENOMEM, "no memory for the job");
    r->entry = p->entry;
    (void)cgroups_make(a->cgroups, p->job, p->attempt, r->cgroup, &cgroup_fd);
    int code = make_pipes(r, writers);
    if (code < 0)
        (void)mu_err_set(err, code, "no pipes for its output: %s", strerror(-code));
    if (code == 0)
        code = spawn_agent(r, p, writers, cgroup_fd, err);
    close_fd(&writers[0]);
    close_fd(&writers[1]);
    if (code == 0 && (code = watch(r)) < 0) {
        (void)mu_err_set(err, code, "its agent cannot be watched: %s", strerror(-code));
        run_kill(r);
        (void)waitpid(r->pid, NULL, 0);
    }
    if (code < 0) {
        run_free(r);
        return code;
    }
    say_attempt(r);
    *ret = r;
    return 0;
}

int run_adopt(struct runs *a, struct run *from, uint32_t part, uint64_t lines, struct run **ret)
{
    struct run *r = new_run(a, from->job, from->attempt, part, lines);
    if (r == NULL)
        return -ENOMEM;
    r->entry = from->entry;
    r->pid = from->pid;
    r->pidfd = from->pidfd;
    r->exited = from->pidfd < 0;
    memcpy(r->fd, from->fd, sizeof r->fd);
    memcpy(r->record, from->record, sizeof r->record);
    memcpy(r->cgroup, from->cgroup, sizeof r->cgroup);
    int code = watch(r);
    if (code < 0)
        return code;
    *ret = r;
    check_empty(r);
    return 0;
}

/* --- signals --- */

/* With a value: what comes from us without one is the kernel's word of our death (WARDEN_...). */
static int tell(const struct run *r, int signo, int value)
{
    siginfo_t si = {.si_signo = signo, .si_code = SI_QUEUE};
    si.si_pid = getpid();
    si.si_uid = getuid();
    si.si_value.sival_int = value;
    return r->pidfd >= 0 ? (int)syscall(SYS_pidfd_send_signal, r->pidfd, signo, &si, 0) : -1;
}

void run_signal(struct run *r, int signo)
{
    (void)tell(r, signo, 0);
}

/* A word before the SIGKILL, so that the cause says who ended it. Its other half, which ends the
 * workers, lives on. */
static void kill_with_a_word(const struct run *r)
{
    struct pollfd end = {.fd = r->pidfd, .events = POLLIN};
    if (tell(r, SIGTERM, WARDEN_END_NOW) == 0)
        (void)poll(&end, 1, WORD_MS);
}

void run_kill(struct run *r)
{
    if (r->cgroup[0] != '\0')
        cgroup_kill_path(r->cgroup);
    else
        kill_with_a_word(r);
    (void)tell(r, SIGKILL, 0); /* Its other half ends the workers where there is no cgroup. */
}

void run_abandon(struct run *r)
{
    if (r->cgroup[0] != '\0')
        cgroup_kill_path(r->cgroup);
    mu_log(MU_WARN, "service.abandoned", "job=%s pid=%d", r->job, (int)r->pid);
    close_output(r, 0);
    close_output(r, 1);
    if (!r->exited) {
        close_exit(r); /* It is the kernel's, and becomes init's when we end. */
        r->exited = true;
    }
    check_empty(r);
}
