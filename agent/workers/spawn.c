/* One process from clone to execve; see spawn.h. What comes after belongs to work.c. */
#include "agent/workers/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"

/* The child's functions run on lent memory and a stack of their own: no sanitizer may look at them.
 */
#define CHILD_CODE __attribute__((noinline, no_sanitize("address", "undefined", "thread")))

#define CHILD_STACK_BYTES 32768UL /* Its deepest path takes well under 1 KiB. */
#define KERNEL_SIGSET_BYTES 8

/* Everything the child needs, on the parent's stack. It writes `stage` and `error` there as well.
 */
struct child {
    const struct spawn_plan *plan;
    const struct spawner *spawner;
    volatile int stage;
    volatile int error;
};

CHILD_CODE static int child_failed(struct child *c, int stage)
{
    c->stage = stage;
    c->error = errno;
    return 127;
}

CHILD_CODE static int child_signals(const struct spawner *s)
{
    /* The kernel's struct sigaction, not libc's; all zero is SIG_DFL, no flags, empty mask. */
    static const uint64_t by_default[8];
    for (int signo = 1; signo <= 64; signo++) {
        if ((s->reset_signals >> (signo - 1) & 1) != 0 &&
            syscall(SYS_rt_sigaction, signo, by_default, NULL, KERNEL_SIGSET_BYTES) < 0)
            return -1;
    }
    return 0;
}

CHILD_CODE static int child_stdio(const struct spawn_plan *p)
{
    if (p->stdout_fd >= 0 && syscall(SYS_dup3, p->stdout_fd, 1, 0) < 0)
        return -1;
    if (p->stderr_fd >= 0 && syscall(SYS_dup3, p->stderr_fd, 2, 0) < 0)
        return -1;
    if (p->talk_fd == 0)
        return 0;
    if (p->talk_fd == p->talk_at) /* There already, but close-on-exec. */
        return (int)syscall(SYS_fcntl, p->talk_fd, F_SETFD, 0);
    return (int)syscall(SYS_dup3, p->talk_fd, p->talk_at, 0) < 0 ? -1 : 0;
}

/* Until here the table of descriptors is the parent's own (CLONE_FILES). Take leave of it with 0 to
 * 2, and the output files, alone: a copy of the rest would only be closed again by execve, and the
 * parent's 256 pidfds in each of 256 copies cost more than all else here. Before Linux 5.9 it has
 * to be that copy. */
CHILD_CODE static int child_files(const struct spawn_plan *p)
{
    unsigned keep = 3;
    if (p->stdout_fd >= (int)keep)
        keep = (unsigned)p->stdout_fd + 1;
    if (p->stderr_fd >= (int)keep)
        keep = (unsigned)p->stderr_fd + 1;
    if (p->talk_fd >= (int)keep)
        keep = (unsigned)p->talk_fd + 1;
    if (syscall(SYS_close_range, keep, ~0U, CLOSE_RANGE_UNSHARE) < 0 &&
        syscall(SYS_unshare, CLONE_FILES) < 0)
        return -1;
    return 0;
}

/* Only system calls from here to execve. Returns when one failed; the return value is the exit
 * status. */
CHILD_CODE static int child_main(struct child *c)
{
    static const uint64_t no_signals;
    const struct spawner *s = c->spawner;
    if (syscall(SYS_setsid) < 0)
        return child_failed(c, SPAWN_SESSION);
    if (child_signals(s) < 0)
        return child_failed(c, SPAWN_SIGNALS);
    int death_signo = c->plan->death_signo != 0 ? c->plan->death_signo : SIGKILL;
    if (syscall(SYS_prctl, PR_SET_PDEATHSIG, death_signo, 0, 0, 0) < 0)
        return child_failed(c, SPAWN_PARENT);
    if (syscall(SYS_getppid) != s->self) { /* It died before the line above could bind us to it. */
        errno = ESRCH;
        return child_failed(c, SPAWN_PARENT);
    }
    /* Yama lets only ancestors trace, and who asks for a worker's stacks is our child, its brother.
     * Lasts through execve; refused where there is no Yama. */
    (void)syscall(SYS_prctl, PR_SET_PTRACER, s->self, 0, 0, 0);
    if (c->plan->folder != NULL && syscall(SYS_chdir, c->plan->folder) < 0)
        return child_failed(c, SPAWN_FOLDER);
    if (child_files(c->plan) < 0)
        return child_failed(c, SPAWN_FILES);
    if (child_stdio(c->plan) < 0)
        return child_failed(c, SPAWN_STDIO);
    if (c->plan->cpus != NULL &&
        syscall(SYS_sched_setaffinity, 0, c->plan->cpus_bytes, c->plan->cpus) < 0)
        return child_failed(c, SPAWN_CPUS);
    if (s->files_raised && syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, &s->files, NULL) < 0)
        return child_failed(c, SPAWN_LIMIT);
    /* Ours are close-on-exec from birth; this is for what our own starter left open. Before
     * Linux 5.11 it stays so. */
    unsigned own = c->plan->talk_fd == 0 ? 3U : (unsigned)c->plan->talk_at + 1U;
    (void)syscall(SYS_close_range, own, ~0U, CLOSE_RANGE_CLOEXEC);
    if (syscall(SYS_rt_sigprocmask, SIG_SETMASK, &no_signals, NULL, KERNEL_SIGSET_BYTES) < 0)
        return child_failed(c, SPAWN_SIGNALS);
    (void)syscall(SYS_execve, c->plan->path, c->plan->argv, c->plan->envp);
    return child_failed(c, SPAWN_EXEC);
}

#if defined(__x86_64__) || defined(__aarch64__)
#define HAVE_CLONE3_CALL 1

/* clone3 whose child calls fn(arg) on the stack that `args` names, and exits with what it returns.
 * The child must not come back into our frame, for it has another stack: hence the assembly.
 * Returns the pid, or a negative errno. */
CHILD_CODE static long
clone3_call(struct clone_args *args, int (*fn)(struct child *), struct child *arg)
{
#if defined(__x86_64__)
    long ret;
    register int (*child_fn)(struct child *) __asm__("r12") = fn;
    register struct child *child_arg __asm__("r13") = arg;
    __asm__ volatile("syscall\n\t"
                     "testq %%rax, %%rax\n\t"
                     "jnz 1f\n\t"
                     "xorl %%ebp, %%ebp\n\t" /* Backtraces end here. */
                     "movq %%r13, %%rdi\n\t"
                     "callq *%%r12\n\t"
                     "movl %%eax, %%edi\n\t"
                     "movl %[exit], %%eax\n\t"
                     "syscall\n\t"
                     "hlt\n"
                     "1:"
                     : "=a"(ret)
                     : "0"((long)SYS_clone3), "D"(args), "S"(sizeof(*args)), "r"(child_fn),
                       "r"(child_arg), [exit] "i"(SYS_exit)
                     : "rcx", "r11", "memory", "cc");
    return ret;
#else
    register long x8 __asm__("x8") = SYS_clone3;
    register long x0 __asm__("x0") = (long)args;
    register long x1 __asm__("x1") = (long)sizeof(*args);
    register int (*child_fn)(struct child *) __asm__("x20") = fn;
    register struct child *child_arg __asm__("x21") = arg;
    __asm__ volatile("svc #0\n\t"
                     "cbnz x0, 1f\n\t"
                     "mov x29, xzr\n\t" /* Backtraces end here. */
                     "mov x30, xzr\n\t"
                     "mov x0, x21\n\t"
                     "blr x20\n\t"
                     "mov x8, %[exit]\n\t"
                     "svc #0\n\t"
                     "brk #1\n"
                     "1:"
                     : "+r"(x0)
                     : "r"(x1), "r"(x8), "r"(child_fn), "r"(child_arg), [exit] "i"(SYS_exit)
                     : "memory", "cc");
    return x0;
#endif
}

static long start_by_clone3(const struct spawner *s, struct child *c, int *ret_pidfd)
{
    struct clone_args args = {
        .flags = CLONE_VM | CLONE_VFORK | CLONE_PIDFD | CLONE_FILES,
        .pidfd = (uint64_t)(uintptr_t)ret_pidfd,
        .exit_signal = SIGCHLD,
        .stack = (uint64_t)(uintptr_t)s->stack,
        .stack_size = CHILD_STACK_BYTES,
    };
    if (c->plan->cgroup_fd >= 0) {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = (__u64)c->plan->cgroup_fd;
    }
    return clone3_call(&args, child_main, c);
}
#endif

/* The child shares our stack until its execve, so this frame must stay: the pidfd is opened by the
 * caller. */
CHILD_CODE static long start_by_vfork(struct child *c)
{
    pid_t pid = vfork();
    if (pid == 0)
        _exit(child_main(c));
    return pid < 0 ? -errno : pid;
}

static int open_pidfd(pid_t pid)
{
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    return fd < 0 ? -errno : fd;
}

static long start_process(struct spawner *s, struct child *c, int *ret_pidfd)
{
#ifdef HAVE_CLONE3_CALL
    if (!s->no_clone3) {
        long pid = start_by_clone3(s, c, ret_pidfd);
        bool refused = pid == -ENOSYS || (pid == -EPERM && c->plan->cgroup_fd < 0);
        if (!refused)
            return pid;
        s->no_clone3 = true;
    }
#endif
    return start_by_vfork(c);
}

/* The child of a start that failed is dead or about to be; its status tells nothing more. */
static void bury(pid_t pid, int pidfd)
{
    if (pidfd >= 0)
        (void)close(pidfd);
    (void)kill(pid, SIGKILL);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
}

int spawn_start(struct spawner *s,
                const struct spawn_plan *p,
                pid_t *ret_pid,
                int *ret_pidfd,
                enum spawn_stage *ret_stage)
{
    struct child c = {.plan = p, .spawner = s, .stage = SPAWN_OK};
    int pidfd = -1;
    sigset_t all;
    sigset_t before;
    /* A handler of ours must not run in the child, on our memory: signals wait until the
     * dispositions are reset. */
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    long pid = start_process(s, &c, &pidfd);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);

    if (pid < 0) {
        *ret_stage = SPAWN_CLONE;
        return (int)pid;
    }
    if (c.stage == SPAWN_OK && pidfd < 0) {
        pidfd = open_pidfd((pid_t)pid);
        if (pidfd < 0) {
            c.stage = SPAWN_PIDFD;
            c.error = -pidfd;
        }
    }
    if (c.stage != SPAWN_OK) {
        bury((pid_t)pid, pidfd);
        *ret_stage = (enum spawn_stage)c.stage;
        return -c.error;
    }
    *ret_pid = (pid_t)pid;
    *ret_pidfd = pidfd;
    *ret_stage = SPAWN_OK;
    return 0;
}

int spawn_init(struct spawner *s)
{
    *s = (struct spawner){0};
    s->slot[0] = s->slot[1] = s->slot[2] = -1;
    s->stack = aligned_alloc(64, CHILD_STACK_BYTES);
    return s->stack == NULL ? -ENOMEM : 0;
}

void spawn_fini(struct spawner *s)
{
    for (size_t i = 0; i < MU_COUNT(s->slot); i++) {
        if (s->slot[i] >= 0)
            (void)close(s->slot[i]);
    }
    free(s->stack);
    *s = (struct spawner){.slot = {-1, -1, -1}};
}

int spawn_reserve_output(struct spawner *s)
{
    for (int i = 0; i < 2 && s->slot[i] < 0; i++) {
        MU_CLEANUP(mu_closep) int fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
        s->slot[i] = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
        if (s->slot[i] < 0)
            return -errno;
    }
    return 0;
}

int spawn_place_talk(struct spawner *s, int fd)
{
    int *slot = &s->slot[MU_COUNT(s->slot) - 1];
    if (*slot >= 0)
        return dup3(fd, *slot, O_CLOEXEC) < 0 ? -errno : *slot;
    *slot = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1); /* The round's first: still a low one. */
    return *slot < 0 ? -errno : *slot;
}

int spawn_open_output(struct spawner *s, int stream, const char *path)
{
    MU_CLEANUP(mu_closep)
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_NOCTTY | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    return spawn_use_output(s, stream, fd);
}

int spawn_use_output(struct spawner *s, int stream, int fd)
{
    int slot = s->slot[stream - STDOUT_FILENO];
    return dup3(fd, slot, O_CLOEXEC) < 0 ? -errno : slot;
}

void spawn_refresh(struct spawner *s)
{
    s->self = getpid();
    s->reset_signals = 0;
    for (int signo = 1; signo <= 64; signo++) {
        struct sigaction now;
        if (signo == SIGKILL || signo == SIGSTOP || sigaction(signo, NULL, &now) < 0)
            continue;
        if (now.sa_handler != SIG_DFL)
            s->reset_signals |= UINT64_C(1) << (signo - 1);
    }
}

void spawn_raise_files(struct spawner *s, uint32_t more)
{
    enum {
        OWN_FILES = 128 /* What the agent itself has open: far fewer; connections of a hosted server
                           raise it too. */
    };
    struct rlimit now;
    rlim_t want = (rlim_t)more + OWN_FILES;
    if (getrlimit(RLIMIT_NOFILE, &now) < 0 || now.rlim_cur >= want || now.rlim_cur >= now.rlim_max)
        return;
    struct rlimit raised = now;
    raised.rlim_cur = want < now.rlim_max ? want : now.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &raised) < 0)
        return; /* Then the start that finds no descriptor says so. */
    if (!s->files_raised)
        s->files = now;
    s->files_raised = true;
}

/* The interpreter of a script's #! line, "" when it has none. */
static void interpreter_of(const char *path, char *ret, size_t cap)
{
    ret[0] = '\0';
    MU_CLEANUP(mu_closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    char head[256];
    ssize_t n = fd < 0 ? -1 : read(fd, head, sizeof(head) - 1);
    if (n < 3 || head[0] != '#' || head[1] != '!')
        return;
    head[n] = '\0';
    char *word = head + 2 + strspn(head + 2, " \t");
    word[strcspn(word, " \t\r\n")] = '\0';
    size_t len = strlen(word);
    if (len < cap)
        memcpy(ret, word, len + 1);
}

static int explain_exec(struct mu_err *err, uint32_t local_rank, const char *path, int code)
{
    char interpreter[128];
    struct stat st;
    if (code == -ENOENT && stat(path, &st) == 0) {
        interpreter_of(path, interpreter, sizeof(interpreter));
        if (interpreter[0] != '\0')
            return mu_err_set(
                err, code, "worker %u: execve '%s': its interpreter '%s' (#! line) does not exist",
                local_rank, path, interpreter);
        return mu_err_set(err, code, "worker %u: execve '%s': the loader it names does not exist",
                          local_rank, path);
    }
    if (code == -ENOEXEC)
        return mu_err_set(err, code,
                          "worker %u: execve '%s': %s: neither a program of this machine nor a "
                          "script with a #! line",
                          local_rank, path, strerror(-code));
    return mu_err_set(err, code, "worker %u: execve '%s': %s", local_rank, path, strerror(-code));
}

int spawn_explain(
    struct mu_err *err, uint32_t local_rank, const char *path, enum spawn_stage stage, int code)
{
    static const char *const words[] = {
#define X(name, text) [SPAWN_##name] = (text),
        SPAWN_STAGES(X)
#undef X
    };
    MU_ASSERT((size_t)stage < MU_COUNT(words) && stage != SPAWN_OK);
    if (stage == SPAWN_EXEC)
        return explain_exec(err, local_rank, path, code);
    return mu_err_set(err, code, "worker %u: cannot %s for '%s': %s", local_rank, words[stage],
                      path, strerror(-code));
}
