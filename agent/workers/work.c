/* The processes of one node; see work.h. This file owns the table of workers and the events of
 * their ends. How one is started is spawn.c's, what a cgroup can do cgroup.c's, who our children
 * are family.c's.
 *
 * Ends are noticed by pidfds, in one epoll set of our own which the loop watches: the kernel queues
 * them in the order in which the workers ended, so the first failure is reported first; a pidfd is
 * armed before anything else happens, and one whose worker has ended already is simply readable.
 * SIGCHLD, through a signalfd in the same set, is for orphans that we adopt as a subreaper.
 *
 * All gone means ECHILD: a subreaper without children has no descendants at all. Until then what is
 * left is killed, again on each death of one (whose own children have become ours by it), at most
 * once a millisecond; and by a timer that grows where nothing moves. */
#include "agent/workers/work.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/workers/cgroup.h"
#include "agent/workers/family.h"
#include "agent/workers/oom.h"
#include "agent/workers/spawn.h"
#include "base/mem.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"

#define TAG_PREFIX                                                                                 \
    "TORCHELASTIC_ERROR_FILE=" /* A path of its own for each worker, inherited by what it forks.   \
                                */
#define KEY_SIGCHLD UINT32_MAX
#define KEY_TALK 0x40000000U /* Added to a worker's local rank: its socket. */
#define NONE UINT32_MAX
#define PUT_DOWN_GAP_MS 1 /* Between two rounds of killing; doubles while nothing dies. */
#define PUT_DOWN_GAP_MAX_MS 512
#define SCAN_GAP_MS                                                                                \
    10 /* Between two looks for a dead worker's orphans: 256 exits must not mean 256 looks. */

struct worker {
    int32_t pid;
    int pidfd;     /* -1: ended and reaped, or never started. */
    bool falling;  /* It was not well any more before we signalled it. */
    uint64_t tag;  /* Of its error file's entry in the environment; 0: it has none. */
    uint32_t next; /* In its bucket of by_pid. */
};

struct work {
    uv_loop_t *loop;
    struct work_events events;
    uv_poll_t poll; /* On `epoll_fd`. */
    uv_timer_t timer;
    int epoll_fd;
    int signal_fd;
    int spare_fd; /* Given up for a moment where there is no other one to look at /proc with. */
    struct spawner spawner;
    struct cgroup cgroup;
    struct oom oom;

    struct worker *workers;
    struct talk *talks; /* By local rank; NULL: workers get no sockets. */
    uint32_t *by_pid;   /* Local rank by pid: nproc buckets of chains. */
    uint32_t nproc;
    uint32_t living;
    bool running; /* From work_start() to on_all_gone. */
    bool killing; /* Everything is to go, living workers included. */
    bool sent_sigkill;
    bool signalled; /* In this round. */
    bool scan_wanted;
    bool childless;     /* ECHILD was seen. */
    uint64_t looked_ms; /* Of the last scan or killing, by the loop's clock; 0: none yet. */
    uint64_t gap_ms;

    pid_t guest; /* 0: none. */
    void (*guest_ended)(void *arg, int32_t status);
    void *guest_arg;

    bool unblock_sigchld; /* It was not blocked before us. */
    void (*closed)(void *);
    void *closed_arg;
    int open_handles;
};

/* --- the table --- */

static uint32_t find_worker(const struct work *w, pid_t pid)
{
    if (w->nproc == 0)
        return NONE;
    uint32_t i = w->by_pid[(uint32_t)pid % w->nproc];
    while (i != NONE && w->workers[i].pid != pid)
        i = w->workers[i].next;
    return i;
}

static bool is_living(const struct work *w, uint32_t i)
{
    return i != NONE && w->workers[i].pidfd >= 0;
}

static int make_table(struct work *w, uint32_t nproc)
{
    struct worker *workers = mu_realloc(mu_mem_default(), w->workers, nproc * sizeof(*workers));
    if (workers == NULL)
        return -ENOMEM;
    w->workers = workers;
    uint32_t *by_pid = mu_realloc(mu_mem_default(), w->by_pid, nproc * sizeof(*by_pid));
    if (by_pid == NULL)
        return -ENOMEM;
    w->by_pid = by_pid;
    if (w->events.on_said != NULL) {
        struct talk *talks = mu_realloc(mu_mem_default(), w->talks, nproc * sizeof(*talks));
        if (talks == NULL)
            return -ENOMEM;
        w->talks = talks;
    }
    w->nproc = nproc;
    for (uint32_t i = 0; i < nproc; i++) {
        if (w->talks != NULL)
            w->talks[i] = (struct talk)TALK_NONE;
        workers[i] = (struct worker){.pidfd = -1, .next = NONE};
        by_pid[i] = NONE;
    }
    return 0;
}

static void enter(struct work *w, uint32_t i, pid_t pid, int pidfd)
{
    uint32_t *bucket = &w->by_pid[(uint32_t)pid % w->nproc];
    w->workers[i].pid = pid;
    w->workers[i].pidfd = pidfd;
    w->workers[i].next = *bucket;
    *bucket = i;
    w->living++;
}

/* --- killing --- */

/* One process and, where it leads one, its group. */
static void kill_hard(pid_t pid)
{
    (void)kill(-pid, SIGKILL);
    (void)kill(pid, SIGKILL);
}

static void kill_child(void *arg, pid_t pid)
{
    (void)arg;
    kill_hard(pid);
}

static int open_spare(void)
{
    return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

/* A table of descriptors that is full must not keep what is left alive. */
static int each_child(struct work *w, family_fn *fn, void *arg)
{
    int r = family_each(fn, arg);
    if ((r != -EMFILE && r != -ENFILE) || w->spare_fd < 0)
        return r;
    (void)close(w->spare_fd);
    r = family_each(fn, arg);
    w->spare_fd = open_spare();
    return r;
}

/* Everything that is our child, by whatever way it became that; the cgroup takes those below with
 * it. */
static void kill_children(struct work *w)
{
    cgroup_kill(&w->cgroup);
    if (each_child(w, kill_child, NULL) == 0)
        return;
    for (uint32_t i = 0; i < w->nproc; i++) { /* Without /proc those we know by ourselves remain. */
        if (is_living(w, i))
            kill_hard(w->workers[i].pid);
    }
}

/* Whose orphan is it? Its session is the worker's unless it called setsid(); its environment is
 * unless it was replaced. */
static uint32_t owner_of(const struct work *w, pid_t pid)
{
    uint32_t i = find_worker(w, getsid(pid));
    if (i != NONE)
        return i;
    uint64_t tag = family_tag_of(pid, TAG_PREFIX);
    for (i = 0; tag != 0 && i < w->nproc; i++) {
        if (w->workers[i].tag == tag)
            return i;
    }
    return NONE;
}

/* A stray child of a dead worker does not live on; one of a living worker is its own business, and
 * one that hides its origin goes with the round. */
static void kill_if_orphan(void *arg, pid_t pid)
{
    const struct work *w = arg;
    if (find_worker(w, pid) != NONE)
        return;
    uint32_t owner = owner_of(w, pid);
    if (owner != NONE && !is_living(w, owner))
        kill_hard(pid);
}

/* --- what comes next --- */

static void on_timer(uv_timer_t *t);

static void arm(struct work *w, uint64_t in_ms)
{
    bool earlier =
        uv_is_active((const uv_handle_t *)&w->timer) && uv_timer_get_due_in(&w->timer) <= in_ms;
    if (!earlier)
        (void)uv_timer_start(&w->timer, on_timer, in_ms, 0);
}

static void all_gone(struct work *w)
{
    (void)uv_timer_stop(&w->timer);
    w->running = false;
    w->killing = false;
    w->events.on_all_gone(w->events.arg); /* May start the next round, or close us. */
}

static bool may_look(struct work *w, uint64_t gap_ms)
{
    uint64_t now_ms = uv_now(w->loop);
    if (w->looked_ms != 0 && now_ms < w->looked_ms + gap_ms) {
        arm(w, w->looked_ms + gap_ms - now_ms);
        return false;
    }
    w->looked_ms = now_ms == 0 ? 1 : now_ms;
    return true;
}

static void put_down(struct work *w)
{
    if (!may_look(w, w->gap_ms))
        return;
    kill_children(w);
    if (w->gap_ms < PUT_DOWN_GAP_MAX_MS)
        w->gap_ms *= 2;
    arm(w, w->gap_ms);
}

static void reap_adopted(struct work *w);

/* After anything that happened: is the round gone, is something left to be killed? */
static void settle(struct work *w)
{
    if (!w->running)
        return;
    if (w->living == 0) {
        reap_adopted(w);
        if (w->childless) {
            all_gone(w);
            return;
        }
    }
    if (w->living == 0 || w->killing) {
        put_down(w);
    } else if (w->scan_wanted && may_look(w, SCAN_GAP_MS)) {
        w->scan_wanted = false;
        (void)family_each(kill_if_orphan, w); /* No /proc: what is left goes with the round. */
    }
}

static void on_timer(uv_timer_t *t)
{
    settle(t->data);
}

/* --- what they say --- */

/* Packets of one look, so that one who says much keeps nobody else waiting; and when a worker has
 * ended: more than a socket holds, but an orphan of it may go on. */
#define HEAR_BATCH 16
#define HEAR_LAST 1024

static void hear(struct work *w, uint32_t i, int most)
{
    enum talk_news news = TALK_UNKNOWN;
    int64_t now_ns = mu_now_ns();
    int r = 1;
    for (int k = 0; k < most && r > 0; k++) {
        r = talk_read(&w->talks[i], now_ns, &news);
        if (r > 0)
            w->events.on_said(w->events.arg, i, news, &w->talks[i].said);
    }
    if (r < 0)
        mu_log(MU_WARN, "worker.talk",
               "local_rank=%u pid=%d reason=\"no message of ours, its socket is closed\"", i,
               w->workers[i].pid);
}

static int give_talk(struct work *w, uint32_t i, struct spawn_plan *p)
{
    struct talk *t = &w->talks[i];
    struct epoll_event ev = {.events = EPOLLIN, .data.u32 = KEY_TALK + i};
    int r = talk_open(t);
    if (r == 0 && epoll_ctl(w->epoll_fd, EPOLL_CTL_ADD, t->fd, &ev) < 0)
        r = -errno;
    if (r == 0)
        r = spawn_place_talk(&w->spawner, t->worker_fd);
    if (r < 0) {
        talk_close(t);
        return r;
    }
    p->talk_fd = r;
    p->talk_at = TALK_WORKER_FD;
    return 0;
}

/* --- ends --- */

static int32_t exit_status(const siginfo_t *si)
{
    return si->si_code == CLD_EXITED ? si->si_status : -si->si_status;
}

/* Reap worker i, if it has ended. Its group goes before the pid is free again, or it might be
 * another's by then. */
static void worker_ended(struct work *w, uint32_t i)
{
    struct worker *k = &w->workers[i];
    siginfo_t si = {0};
    if (waitid(P_PID, (id_t)k->pid, &si, WEXITED | WNOHANG | WNOWAIT) < 0 || si.si_pid == 0)
        return;
    (void)kill(-k->pid, SIGKILL);
    (void)waitid(P_PID, (id_t)k->pid, &si, WEXITED | WNOHANG);
    (void)close(k->pidfd); /* Which takes it out of the set as well. */
    k->pidfd = -1;
    w->living--;
    w->scan_wanted = true;
    w->gap_ms = PUT_DOWN_GAP_MS;
    if (w->talks != NULL) {
        hear(w, i, HEAR_LAST); /* Its last words. */
        talk_close(&w->talks[i]);
    }
    struct work_exit e = {
        .local_rank = i,
        .pid = k->pid,
        .status = exit_status(&si),
        .by_itself = k->falling || !w->signalled,
        .core_dumped = si.si_code == CLD_DUMPED,
    };
    if (e.status == -SIGKILL && !w->sent_sigkill)
        e.oom_killed = oom_rose(&w->oom);
    w->events.on_exit(w->events.arg, &e);
}

static void guest_is_over(struct work *w, siginfo_t *si)
{
    (void)kill(-w->guest, SIGKILL);
    (void)waitid(P_PID, (id_t)w->guest, si, WEXITED | WNOHANG);
    w->guest = 0;
    w->guest_ended(w->guest_arg, exit_status(si));
}

static void count_child(void *arg, pid_t pid)
{
    (void)pid;
    (*(uint32_t *)arg)++;
}

/* Where nobody but the guest is there, nothing of a round is. */
static bool is_alone(const struct work *w)
{
    uint32_t count = 0;
    return w->guest != 0 && family_each(count_child, &count) == 0 && count == 1;
}

/* Orphans that ended. A worker may show up here too, between two looks at the set. */
static void reap_adopted(struct work *w)
{
    for (;;) {
        siginfo_t si = {0};
        if (waitid(P_ALL, 0, &si, WEXITED | WNOHANG | WNOWAIT) < 0) {
            w->childless = errno == ECHILD;
            return;
        }
        if (si.si_pid == 0) {
            w->childless = is_alone(w);
            return;
        }
        if (si.si_pid == w->guest) {
            guest_is_over(w, &si);
            continue;
        }
        uint32_t i = find_worker(w, si.si_pid);
        if (is_living(w, i)) {
            worker_ended(w, i);
            continue;
        }
        (void)waitid(P_PID, (id_t)si.si_pid, &si, WEXITED | WNOHANG);
        w->scan_wanted = true; /* Its children are ours now. */
        w->gap_ms = PUT_DOWN_GAP_MS;
    }
}

static void on_ready(uv_poll_t *handle, int status, int events)
{
    enum {
        BATCH = 64
    };
    struct work *w = handle->data;
    struct epoll_event ready[BATCH];
    int n = 0;
    bool sigchld = false;
    (void)status;
    (void)events;
    do {
        n = epoll_wait(w->epoll_fd, ready, BATCH, 0);
        for (int i = 0; i < n; i++) {
            if (ready[i].data.u32 == KEY_SIGCHLD)
                sigchld = true;
            else if ((ready[i].data.u32 & KEY_TALK) != 0)
                hear(w, ready[i].data.u32 & ~KEY_TALK, HEAR_BATCH);
            else if (is_living(w, ready[i].data.u32))
                worker_ended(w, ready[i].data.u32);
        }
        struct signalfd_siginfo one; /* Standard signals do not queue: there is never a second. */
        if (sigchld)
            (void)!read(w->signal_fd, &one, sizeof(one));
    } while (n == BATCH);
    if (sigchld)
        reap_adopted(w);
    settle(w);
}

/* --- a round --- */

static uint64_t tag_of_environment(char *const *envp)
{
    for (; *envp != NULL; envp++) {
        if (strncmp(*envp, TAG_PREFIX, sizeof(TAG_PREFIX) - 1) == 0)
            return (*envp)[sizeof(TAG_PREFIX) - 1] == '\0' ? 0 : family_tag(*envp);
    }
    return 0;
}

/* The files of worker i's output into p; -1 where it inherits ours. */
static int open_outputs(struct work *w,
                        const struct work_round *r,
                        uint32_t i,
                        struct spawn_plan *p,
                        struct mu_err *err)
{
    const int *through = r->output_fd != NULL ? r->output_fd + (size_t)2 * i : NULL;
    p->stdout_fd = p->stderr_fd = -1;
    if (through != NULL && through[0] >= 0) {
        p->stdout_fd = spawn_use_output(&w->spawner, STDOUT_FILENO, through[0]);
        if (p->stdout_fd < 0)
            return spawn_explain(err, i, "pipe", SPAWN_STDOUT, p->stdout_fd);
    } else if (r->stdout_path != NULL && r->stdout_path[i] != NULL) {
        p->stdout_fd = spawn_open_output(&w->spawner, STDOUT_FILENO, r->stdout_path[i]);
        if (p->stdout_fd < 0)
            return spawn_explain(err, i, r->stdout_path[i], SPAWN_STDOUT, p->stdout_fd);
    }
    if (through != NULL && through[1] >= 0) {
        p->stderr_fd = spawn_use_output(&w->spawner, STDERR_FILENO, through[1]);
        if (p->stderr_fd < 0)
            return spawn_explain(err, i, "pipe", SPAWN_STDERR, p->stderr_fd);
    } else if (r->stderr_path != NULL && r->stderr_path[i] != NULL) {
        p->stderr_fd = spawn_open_output(&w->spawner, STDERR_FILENO, r->stderr_path[i]);
        if (p->stderr_fd < 0)
            return spawn_explain(err, i, r->stderr_path[i], SPAWN_STDERR, p->stderr_fd);
    }
    return 0;
}

static bool cgroup_refused(enum spawn_stage stage, int r)
{
    return stage == SPAWN_CLONE && (r == -EBUSY || r == -EOPNOTSUPP || r == -EACCES ||
                                    r == -EPERM || r == -ENOENT || r == -ENODEV);
}

static int spawn_worker(struct work *w,
                        struct spawn_plan *p,
                        pid_t *ret_pid,
                        int *ret_pidfd,
                        enum spawn_stage *ret_stage)
{
    p->cgroup_fd = w->cgroup.fd;
    int r = spawn_start(&w->spawner, p, ret_pid, ret_pidfd, ret_stage);
    if (r < 0 && w->cgroup.fd >= 0 && w->living == 0 && cgroup_refused(*ret_stage, r)) {
        work_drop_cgroup(
            w); /* Made, but not to be entered: a rule of the host's we cannot see from here. */
        p->cgroup_fd = -1;
        r = spawn_start(&w->spawner, p, ret_pid, ret_pidfd, ret_stage);
    }
    return r;
}

static int start_one(struct work *w, const struct work_round *r, uint32_t i, struct mu_err *err)
{
    struct spawn_plan p = {
        .path = r->program != NULL ? r->program : r->argv[i][0],
        .argv = r->argv[i],
        .envp = r->envp[i],
        .cpus = r->cpus != NULL ? r->cpus[i] : NULL,
        .cpus_bytes = r->cpus_bytes,
    };
    int code = open_outputs(w, r, i, &p, err);
    if (code < 0)
        return code;
    if (w->talks != NULL) {
        code = give_talk(w, i, &p);
        if (code < 0)
            return spawn_explain(err, i, p.path, SPAWN_TALK, code);
    }
    pid_t pid = 0;
    int pidfd = -1;
    enum spawn_stage stage = SPAWN_OK;
    code = spawn_worker(w, &p, &pid, &pidfd, &stage);
    if (code < 0) {
        if (w->talks != NULL)
            talk_close(&w->talks[i]);
        return spawn_explain(err, i, p.path, stage, code);
    }
    enter(w, i, pid, pidfd);
    w->workers[i].tag = tag_of_environment(r->envp[i]);
    struct epoll_event ev = {.events = EPOLLIN, .data.u32 = i};
    if (epoll_ctl(w->epoll_fd, EPOLL_CTL_ADD, pidfd, &ev) < 0)
        return mu_err_set(err, -errno, "worker %u: watch its pidfd: %s", i, strerror(errno));
    return 0;
}

static int prepare_round(struct work *w, const struct work_round *r, struct mu_err *err)
{
    int code = make_table(w, r->nproc);
    if (code < 0) {
        w->nproc = 0;
        return mu_err_set(err, code, "no memory for %u workers", r->nproc);
    }
    if (r->stdout_path != NULL || r->stderr_path != NULL || r->output_fd != NULL) {
        code = spawn_reserve_output(&w->spawner);
        if (code < 0)
            return mu_err_set(err, code, "reserve descriptors for output: %s", strerror(-code));
    }
    cgroup_renew(&w->cgroup);
    spawn_refresh(&w->spawner);
    spawn_raise_files(&w->spawner, w->talks != NULL ? 3 * r->nproc : r->nproc);
    return 0;
}

void work_expect_files(struct work *w, uint32_t more)
{
    spawn_raise_files(&w->spawner, more);
}

void work_give_files(struct work *w, const struct rlimit *files)
{
    w->spawner.files = *files;
    w->spawner.files_raised = true;
}

int work_start(struct work *w,
               const struct work_round *r,
               int32_t *ret_pids,
               uint32_t *ret_failed,
               struct mu_err *err)
{
    MU_ASSERT(!w->running && w->closed == NULL);
    MU_ASSERT(r->nproc >= 1 && r->nproc <= MU_WORKERS_MAX);
    *ret_failed = 0;
    w->running = true;
    w->killing = w->sent_sigkill = w->signalled = w->scan_wanted = w->childless = false;
    w->living = 0;
    w->looked_ms = 0;
    w->gap_ms = PUT_DOWN_GAP_MS;
    int code = prepare_round(w, r, err);
    for (uint32_t i = 0; code == 0 && i < r->nproc; i++) {
        code = start_one(w, r, i, err);
        ret_pids[i] = w->workers[i].pid;
        *ret_failed = i;
    }
    if (w->oom.fd < 0) /* Now, while the workers load, for none of them has touched memory yet. */
        oom_init(&w->oom);
    if (code < 0) {
        work_kill(w);
        arm(w, 0); /* on_all_gone comes from the loop, also when not one was started. */
    }
    return code;
}

static bool stops(int signo)
{
    return signo == SIGSTOP || signo == SIGTSTP || signo == SIGTTIN || signo == SIGTTOU;
}

void work_note_falling(struct work *w)
{
    if (!w->running || w->signalled)
        return;
    work_listen(w);
    for (uint32_t i = 0; i < w->nproc; i++) {
        const struct talk_said *said = work_said(w, i);
        w->workers[i].falling = work_is_ending(w, i) || (said != NULL && said->failure[0] != '\0');
    }
}

void work_signal(struct work *w, int signo)
{
    w->signalled = true;
    if (signo == SIGKILL)
        w->sent_sigkill = true;
    for (uint32_t i = 0; w->running && i < w->nproc; i++) {
        if (!is_living(w, i))
            continue;
        (void)kill(-w->workers[i].pid, signo);
        if (signo != SIGKILL && signo != SIGCONT && !stops(signo))
            (void)kill(-w->workers[i].pid, SIGCONT);
    }
}

void work_ask_stop(struct work *w)
{
    for (uint32_t i = 0; w->running && w->talks != NULL && i < w->nproc; i++)
        talk_ask_stop(&w->talks[i]);
}

void work_ask_stop_after(struct work *w, int64_t step)
{
    for (uint32_t i = 0; w->running && w->talks != NULL && i < w->nproc; i++)
        talk_ask_stop_after(&w->talks[i], step);
}

const struct talk_said *work_said(const struct work *w, uint32_t local_rank)
{
    return w->talks != NULL && local_rank < w->nproc ? &w->talks[local_rank].said : NULL;
}

uint32_t work_nproc(const struct work *w)
{
    return w->nproc;
}

bool work_is_there(const struct work *w, uint32_t local_rank)
{
    return local_rank < w->nproc && w->workers[local_rank].pidfd >= 0;
}

bool work_is_ending(const struct work *w, uint32_t local_rank)
{
    return work_is_there(w, local_rank) && family_is_ending(w->workers[local_rank].pid);
}

void work_listen(struct work *w)
{
    for (uint32_t i = 0; w->talks != NULL && i < w->nproc; i++)
        if (w->talks[i].fd >= 0)
            hear(w, i, HEAR_BATCH);
}

void work_kill(struct work *w)
{
    if (!w->running)
        return;
    w->signalled = true;
    w->killing = true;
    w->sent_sigkill = true;
    w->gap_ms = PUT_DOWN_GAP_MS;
    w->looked_ms = 0;
    kill_children(w);
    arm(w, PUT_DOWN_GAP_MS);
}

bool work_is_running(const struct work *w)
{
    return w->running;
}

int work_start_guest(struct work *w,
                     char *const *argv,
                     char *const *envp,
                     int out_fd,
                     void (*ended)(void *arg, int32_t status),
                     void *arg)
{
    struct spawn_plan p = {.path = argv[0],
                           .argv = argv,
                           .envp = envp,
                           .stdout_fd = out_fd,
                           .stderr_fd = out_fd,
                           .cgroup_fd = -1};
    enum spawn_stage stage = SPAWN_OK;
    pid_t pid = 0;
    int pidfd = -1;
    if (w->guest != 0)
        return -EBUSY;
    spawn_refresh(&w->spawner);
    int r = spawn_start(&w->spawner, &p, &pid, &pidfd, &stage);
    if (r < 0)
        return r;
    (void)close(pidfd); /* SIGCHLD tells of its end. */
    w->guest = pid;
    w->guest_ended = ended;
    w->guest_arg = arg;
    return 0;
}

void work_kill_guest(struct work *w)
{
    if (w->guest != 0)
        kill_hard(w->guest);
}

struct text {
    char *dst;
    size_t cap;
    size_t n;
};

static void list_pid(void *arg, pid_t pid)
{
    struct text *t = arg;
    int n = snprintf(t->dst + t->n, t->cap - t->n, "%s%d", t->n > 0 ? " " : "", (int)pid);
    if (n > 0 && (size_t)n < t->cap - t->n)
        t->n += (size_t)n;
    else
        t->dst[t->n] = '\0'; /* The list ends where the room does. */
}

void work_describe_left(const struct work *w, char *dst, size_t cap)
{
    struct text t = {dst, cap, 0};
    dst[0] = '\0';
    if (family_each(list_pid, &t) == 0)
        return;
    for (uint32_t i = 0; i < w->nproc; i++) {
        if (is_living(w, i))
            list_pid(&t, w->workers[i].pid);
    }
}

/* --- the group --- */

const char *work_cgroup(const struct work *w)
{
    return w->cgroup.fd >= 0 ? w->cgroup.path : NULL;
}

void work_drop_cgroup(struct work *w)
{
    MU_ASSERT(w->living == 0);
    cgroup_remove(&w->cgroup);
}

static void free_work(struct work *w)
{
    if (w->unblock_sigchld) {
        sigset_t chld;
        (void)sigemptyset(&chld);
        (void)sigaddset(&chld, SIGCHLD);
        (void)pthread_sigmask(SIG_UNBLOCK, &chld, NULL);
    }
    if (w->spare_fd >= 0)
        (void)close(w->spare_fd);
    if (w->signal_fd >= 0)
        (void)close(w->signal_fd);
    if (w->epoll_fd >= 0)
        (void)close(w->epoll_fd);
    cgroup_remove(&w->cgroup);
    oom_fini(&w->oom);
    spawn_fini(&w->spawner);
    free(w->workers);
    free(w->talks);
    free(w->by_pid);
    free(w);
}

static int watch_children(struct work *w)
{
    sigset_t chld;
    sigset_t before;
    struct epoll_event ev = {.events = EPOLLIN, .data.u32 = KEY_SIGCHLD};
    (void)sigemptyset(&chld);
    (void)sigaddset(&chld, SIGCHLD);
    /* Ignored (an inherited setting), the kernel would throw the workers' statuses away. */
    if (signal(SIGCHLD, SIG_DFL) == SIG_ERR || pthread_sigmask(SIG_BLOCK, &chld, &before) != 0)
        return -errno;
    w->unblock_sigchld = sigismember(&before, SIGCHLD) == 0;
    if (prctl(PR_SET_CHILD_SUBREAPER, 1L, 0L, 0L, 0L) < 0)
        return -errno;
    w->signal_fd = signalfd(-1, &chld, SFD_CLOEXEC | SFD_NONBLOCK);
    w->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (w->signal_fd < 0 || w->epoll_fd < 0 ||
        epoll_ctl(w->epoll_fd, EPOLL_CTL_ADD, w->signal_fd, &ev) < 0)
        return -errno;
    return 0;
}

static int open_handles(struct work *w)
{
    int r = uv_poll_init(w->loop, &w->poll, w->epoll_fd);
    if (r < 0)
        return r;
    (void)uv_timer_init(w->loop, &w->timer); /* Cannot fail. */
    w->poll.data = w->timer.data = w;
    w->open_handles = 2;
    return uv_poll_start(&w->poll, UV_READABLE, on_ready);
}

static void on_handle_closed(uv_handle_t *h)
{
    struct work *w = h->data;
    if (--w->open_handles > 0)
        return;
    void (*closed)(void *) = w->closed;
    void *arg = w->closed_arg;
    free_work(w);
    if (closed != NULL)
        closed(arg);
}

int work_new(uv_loop_t *loop,
             const struct work_events *events,
             struct work **ret,
             struct mu_err *err)
{
    struct work *w = mu_zalloc(mu_mem_default(), sizeof(*w));
    if (w == NULL)
        return mu_err_set(err, -ENOMEM, "no memory for the workers' group");
    w->loop = loop;
    w->events = *events;
    w->epoll_fd = w->signal_fd = w->cgroup.fd = w->oom.fd = -1;
    w->spare_fd = open_spare();
    int r = spawn_init(&w->spawner);
    if (r == 0)
        r = watch_children(w);
    if (r == 0)
        r = open_handles(w);
    if (r < 0) {
        if (w->open_handles > 0)
            work_close(w, NULL, NULL);
        else
            free_work(w);
        return mu_err_set(err, r, "prepare to watch workers: %s", strerror(-r));
    }
    (void)cgroup_make(&w->cgroup); /* Where it cannot be made, the rest of the ladder does. */
    *ret = w;
    return 0;
}

void work_close(struct work *w, void (*done)(void *), void *arg)
{
    MU_ASSERT(!w->running);
    w->closed = done;
    w->closed_arg = arg;
    uv_close((uv_handle_t *)&w->poll, on_handle_closed);
    uv_close((uv_handle_t *)&w->timer, on_handle_closed);
}
