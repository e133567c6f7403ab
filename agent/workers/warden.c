/* The warden; see warden.h. It allocates nothing and opens nothing while all is well: it waits in
 * sigwaitinfo(). */
#include "agent/workers/warden.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "agent/workers/cgroup.h"
#include "agent/workers/family.h"
#include "agent/workers/logs.h"
#include "base/cause.h"
#include "base/clock.h"
#include "base/cleanup.h"
#include "base/parse.h"

#define STRANGERS_MAX                                                                              \
    64 /* Children we had before: a shell's background jobs, where it exec'ed us. */

/* On a page that both processes see. */
struct note {
    char cgroup[PATH_MAX - 1];
    char has_cgroup;
    char logs[LOGS_PATH_BYTES];
    char has_logs;
    bool logs_in_memory;
    char owner; /* enum warden_owner */
};

struct warden {
    const char *program;
    struct note *note; /* NULL: no page was to be had. */
    int life_fd;   /* Warden: the pipe's write end. Agent: its read end, which ends with the warden.
                    */
    pid_t service; /* Who started us, if that is one; 0: it is not. */
    pid_t agent;   /* Warden only. */
    pid_t strangers[STRANGERS_MAX];
    int stranger_count;
    bool too_many; /* Not all of them are known: then no child but the cgroup's is ours to kill. */

    uv_poll_t poll; /* Agent only. */
    void (*on_lost)(void *arg);
    void *arg;
};

/* --- the warden's side --- */

static bool is_stranger(const struct warden *w, pid_t pid)
{
    for (int i = 0; i < w->stranger_count; i++) {
        if (w->strangers[i] == pid)
            return true;
    }
    return false;
}

static void note_stranger(void *arg, pid_t pid)
{
    struct warden *w = arg;
    if (w->stranger_count < STRANGERS_MAX)
        w->strangers[w->stranger_count++] = pid;
    else
        w->too_many = true;
}

static void forget_stranger(struct warden *w, pid_t pid)
{
    for (int i = 0; i < w->stranger_count; i++) {
        if (w->strangers[i] == pid)
            w->strangers[i] = w->strangers[--w->stranger_count];
    }
}

/* Children that are not ours to kill. Hardly ever are there any, and then this is one system call.
 */
static void find_strangers(struct warden *w)
{
    siginfo_t si;
    if (waitid(P_ALL, 0, &si, WEXITED | WNOHANG | WNOWAIT) == 0)
        (void)family_each(note_stranger, w);
}

static void kill_own(void *arg, pid_t pid)
{
    const struct warden *w = arg;
    if (is_stranger(w, pid))
        return;
    (void)kill(-pid, SIGKILL); /* The group that it leads, if it does. */
    (void)kill(pid, SIGKILL);
}

static void count_own(void *arg, pid_t pid)
{
    const struct warden *w = ((void **)arg)[0];
    int *count = ((void **)arg)[1];
    *count += !is_stranger(w, pid);
}

/* Reap what there is. True: no child is left but strangers. */
static bool reap_all(struct warden *w)
{
    for (;;) {
        pid_t pid = waitpid(-1, NULL, WNOHANG);
        if (pid < 0)
            return errno == ECHILD;
        if (pid == 0)
            break;
        forget_stranger(w, pid);
    }
    if (w->too_many)
        return true;
    if (w->stranger_count == 0)
        return false;
    int count = 0;
    void *arg[2] = {w, &count};
    return family_each(count_own, arg) == 0 && count == 0;
}

/* The agent is dead: what it had started is our child now. Each one killed hands us its own
 * children, hence the loop; it waits for deaths, and looks again after some time where a process
 * came up while we looked. */
static void end_descendants(struct warden *w)
{
    struct timespec wait = {.tv_nsec = MU_NS_PER_MS};
    sigset_t chld;
    (void)sigemptyset(&chld);
    (void)sigaddset(&chld, SIGCHLD);
    const char *cgroup = w->note != NULL && w->note->has_cgroup != 0 ? w->note->cgroup : NULL;
    int64_t until_ns = mu_now_ns() + MU_KILL_WAIT_NS;
    while (!reap_all(w)) {
        if (mu_now_ns() >= until_ns) {
            (void)dprintf(STDERR_FILENO,
                          "%s: processes of a worker do not end after SIGKILL: look for state D in "
                          "ps\n",
                          w->program);
            return;
        }
        if (cgroup != NULL)
            cgroup_kill_path(cgroup);
        (void)family_each(kill_own, w);
        if (sigtimedwait(&chld, NULL, &wait) < 0 && wait.tv_nsec < 256 * MU_NS_PER_MS)
            wait.tv_nsec *=
                2; /* Nothing died: one is in a system call that cannot be broken off. */
    }
    if (cgroup != NULL)
        (void)rmdir(cgroup);
}

/* Stop as the default action would (not at all in a group that no shell watches), come back on
 * SIGCONT. */
static void stop_self(int signo)
{
    sigset_t one;
    (void)sigemptyset(&one);
    (void)sigaddset(&one, signo);
    (void)raise(signo);
    (void)sigprocmask(SIG_UNBLOCK, &one, NULL);
    (void)sigprocmask(SIG_BLOCK, &one, NULL);
}

static void pass_on(const struct warden *w, int signo)
{
    (void)kill(w->agent, signo);
    if (signo != SIGTSTP && signo != SIGTTIN && signo != SIGTTOU)
        (void)kill(w->agent, SIGCONT); /* A stopped process hears nothing else. */
    if (signo == SIGTSTP || signo == SIGTTIN || signo == SIGTTOU)
        stop_self(signo);
}

static void note_owner(const struct warden *w, enum warden_owner owner)
{
    if (w->note != NULL)
        __atomic_store_n(&w->note->owner, (char)owner, __ATOMIC_RELEASE);
}

/* A SIGTERM may be the service's death. The service's own have a value; the kernel's has none, and
 * there may be another parent by then or not. */
static void look_at_owner(const struct warden *w, const siginfo_t *si)
{
    bool from_service = si->si_pid == w->service;
    if (w->service <= 0 || si->si_signo != SIGTERM)
        return;
    if (from_service && si->si_code == SI_QUEUE) {
        if (si->si_value.sival_int != WARDEN_END_NOW)
            return;
        note_owner(w, WARDEN_OWNER_ENDS_US);
        _exit(128 + SIGKILL); /* The agent ends what is left, as after a SIGKILL. */
    }
    if (from_service || si->si_pid == 0 || getppid() != w->service)
        note_owner(w, WARDEN_OWNER_DIED);
}

/* Wait for the agent's end; forward signals and reap adopted processes meanwhile. Returns its wait
 * status. */
static int watch_agent(struct warden *w, const sigset_t *all)
{
    for (;;) {
        siginfo_t si;
        int signo = sigwaitinfo(all, &si);
        if (signo < 0)
            continue; /* EINTR: we were stopped and continued. */
        if (signo != SIGCHLD) {
            look_at_owner(w, &si);
            pass_on(w, signo);
            continue;
        }
        int status = 0;
        for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
            if (pid == w->agent)
                return status;
            forget_stranger(w, pid);
        }
    }
}

/* A killed agent cannot do it: what ends by itself has. */
static void remove_logs(const struct warden *w, int status)
{
    if (WIFSIGNALED(status) && w->note != NULL && w->note->has_logs != 0)
        logs_remove(w->note->logs, w->note->logs_in_memory);
}

static int agent_status(const struct warden *w, int status)
{
    char name[16];
    if (WIFEXITED(status))
        return WEXITSTATUS(status);
    (void)dprintf(STDERR_FILENO, "%s: the agent process was killed by %s; its workers were ended\n",
                  w->program, mu_signal_name(WTERMSIG(status), name));
    return 1;
}

/* --- both --- */

static int cannot(const char *program, const char *what)
{
    (void)dprintf(STDERR_FILENO, "%s: cannot start the agent process: %s: %s\n", program, what,
                  strerror(errno));
    return 1;
}

/* A descriptor opened later must not be taken for one of these three. */
static void open_stdio(void)
{
    while (true) {
        int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
        if (fd < 0 || fd > STDERR_FILENO) {
            if (fd >= 0)
                (void)close(fd);
            return;
        }
        (void)fcntl(fd, F_SETFD, 0);
    }
}

static pid_t take_service(void)
{
    const char *text = getenv(WARDEN_SERVICE_VARIABLE);
    uint32_t pid = 0;
    if (text == NULL || mu_parse_u32(text, 1, INT32_MAX, WARDEN_SERVICE_VARIABLE, &pid, NULL) < 0)
        pid = 0;
    (void)unsetenv(WARDEN_SERVICE_VARIABLE);
    return (pid_t)pid;
}

static void all_forwarded(sigset_t *set)
{
    (void)sigfillset(set);
    (void)sigdelset(set, SIGPIPE); /* Ours alone: our stderr is gone. It is ignored below. */
    /* What a fault of our own raises would not wait; sent by others these are forwarded all the
     * same. */
}

static int run_agent(struct warden *w,
                     const sigset_t *before,
                     int (*agent_main)(struct warden *, void *),
                     void *arg)
{
    (void)setpgid(0, 0);
    /* "killall -9 node-agent" must not find both of us. */
    (void)prctl(PR_SET_NAME, "muster-agent", 0L, 0L, 0L);
    (void)sigprocmask(SIG_SETMASK, before, NULL);
    return agent_main(w, arg);
}

int warden_run(const char *program, int (*agent_main)(struct warden *w, void *arg), void *arg)
{
    struct warden w = {.program = program, .life_fd = -1, .service = take_service()};
    sigset_t all;
    sigset_t before;
    int life[2];
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) < 0) {
            open_stdio();
            break;
        }
    }
    find_strangers(&w);
    if (pipe2(life, O_CLOEXEC) < 0)
        return cannot(program, "pipe");
    void *page =
        mmap(NULL, sizeof(*w.note), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    w.note = page == MAP_FAILED ? NULL : page;
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1L, 0L, 0L, 0L);
    (void)signal(SIGCHLD, SIG_DFL); /* Inherited as ignored, it would lose us the agent's status. */
    all_forwarded(&all);
    (void)sigprocmask(SIG_BLOCK, &all, &before);
    w.agent = fork();
    if (w.agent < 0)
        return cannot(program, "fork");
    if (w.agent == 0) {
        (void)close(life[1]);
        w.life_fd = life[0];
        return run_agent(&w, &before, agent_main, arg);
    }
    (void)close(life[0]);            /* life[1] is never written to; our death closes it. */
    (void)setpgid(w.agent, w.agent); /* Both sides: it holds from now on, whoever runs first. */
    (void)signal(SIGPIPE, SIG_IGN);
    int status = watch_agent(&w, &all);
    end_descendants(&w);
    remove_logs(&w, status);
    return agent_status(&w, status);
}

/* --- the agent's side --- */

void warden_note_cgroup(struct warden *w, const char *path)
{
    if (w->note == NULL)
        return;
    w->note->has_cgroup = 0;
    if (path == NULL || strlen(path) >= sizeof(w->note->cgroup))
        return;
    memcpy(w->note->cgroup, path, strlen(path) + 1);
    __atomic_store_n(&w->note->has_cgroup, 1, __ATOMIC_RELEASE);
}

void warden_note_logs(struct warden *w, const char *base, bool in_memory)
{
    if (w->note == NULL)
        return;
    w->note->has_logs = 0;
    if (base == NULL || strlen(base) >= sizeof(w->note->logs))
        return;
    memcpy(w->note->logs, base, strlen(base) + 1);
    w->note->logs_in_memory = in_memory;
    __atomic_store_n(&w->note->has_logs, 1, __ATOMIC_RELEASE);
}

enum warden_owner warden_owner(const struct warden *w, pid_t *ret_pid)
{
    *ret_pid = w->service;
    return w->note != NULL ? (enum warden_owner)__atomic_load_n(&w->note->owner, __ATOMIC_ACQUIRE)
                           : WARDEN_OWNER_OTHER;
}

static void on_readable(uv_poll_t *p, int status, int events)
{
    struct warden *w = p->data;
    (void)status;
    (void)events;
    (void)uv_poll_stop(p);
    w->on_lost(w->arg);
}

int warden_watch(struct warden *w, uv_loop_t *loop, void (*on_lost)(void *arg), void *arg)
{
    int r = uv_poll_init(loop, &w->poll, w->life_fd);
    if (r < 0)
        return r;
    w->poll.data = w;
    w->on_lost = on_lost;
    w->arg = arg;
    uv_unref((uv_handle_t *)&w->poll);
    return uv_poll_start(&w->poll, UV_READABLE | UV_DISCONNECT, on_readable);
}

void warden_unwatch(struct warden *w)
{
    uv_close((uv_handle_t *)&w->poll, NULL);
}
