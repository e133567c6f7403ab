/* Stacks of hung workers; see stacks.h. */
#include "agent/stacks.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"

enum {
    THREADS_MAX = 256, /* Of one worker that /proc is asked for. */
    FACTS_MS = 500,    /* For /proc, where commands have used up the limit. */
    VARIABLES = 3
};

extern char **environ;

static void next(struct stacks *s);

/* ------------------------------------------------------------------ /proc */

/* What a thread of the pool reads; it outlives a take that was given up. */
struct stacks_facts {
    uv_work_t work;
    struct stacks *owner; /* NULL: nobody waits for it any more. */
    uint32_t count;
    struct {
        uint32_t index;
        int32_t pid;
        struct mu_buf text;
    } v[];
};

static void add_file(struct mu_buf *b, int32_t pid, const char *tid, const char *name)
{
    char path[96];
    char piece[2048];
    (void)snprintf(path, sizeof path, "/proc/%d/task/%.20s/%s", pid, tid, name);
    MU_CLEANUP(mu_closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, piece, sizeof piece);
    if (n <= 0) {
        (void)mu_buf_addf(b, "%s: %s\n", name, n < 0 ? strerror(errno) : "empty");
        return;
    }
    bool one_line = memchr(piece, '\n', (size_t)n - 1) == NULL;
    (void)mu_buf_addf(b, "%s:%s", name, one_line ? " " : "\n");
    (void)mu_buf_add(b, piece, (size_t)n);
    if (piece[n - 1] != '\n')
        (void)mu_buf_adds(b, "\n");
}

/* Of /proc/PID/task/TID/status only what tells of waiting. */
static void add_status(struct mu_buf *b, int32_t pid, const char *tid)
{
    static const char *const wanted[] = {"Name:", "State:", "voluntary_ctxt_switches:"};
    char path[96];
    char piece[4096];
    (void)snprintf(path, sizeof path, "/proc/%d/task/%.20s/status", pid, tid);
    MU_CLEANUP(mu_closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, piece, sizeof piece - 1);
    piece[n > 0 ? n : 0] = '\0';
    for (const char *p = piece; *p != '\0'; p += strcspn(p, "\n"), p += *p == '\n')
        for (size_t i = 0; i < MU_COUNT(wanted); i++)
            if (strncmp(p, wanted[i], strlen(wanted[i])) == 0) {
                (void)mu_buf_add(b, p, strcspn(p, "\n"));
                (void)mu_buf_adds(b, "\n");
            }
}

static void add_threads(struct mu_buf *b, int32_t pid)
{
    char path[32];
    uint32_t count = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/task", pid);
    MU_CLEANUP(mu_closedirp) DIR *tasks = opendir(path);
    if (tasks == NULL)
        return;
    (void)mu_buf_addf(b, "process %d, as /proc has it:\n", pid);
    for (const struct dirent *e = readdir(tasks); e != NULL; e = readdir(tasks)) {
        if (e->d_name[0] == '.' || b->n >= STACKS_BYTES_MAX)
            continue;
        if (++count > THREADS_MAX)
            break;
        (void)mu_buf_addf(b, "thread %.20s\n", e->d_name);
        add_status(b, pid, e->d_name);
        add_file(b, pid, e->d_name, "wchan");
        add_file(b, pid, e->d_name, "syscall");
        add_file(b, pid, e->d_name, "stack");
    }
}

static void read_facts(uv_work_t *work)
{
    struct stacks_facts *f = work->data;
    for (uint32_t i = 0; i < f->count; i++)
        add_threads(&f->v[i].text, f->v[i].pid);
}

static void free_facts(struct stacks_facts *f)
{
    for (uint32_t i = 0; i < f->count; i++)
        mu_buf_fini(&f->v[i].text);
    free(f);
}

static void add_text(struct stacks_look *k, const char *p, size_t n)
{
    size_t room = STACKS_BYTES_MAX - (k->text.n < STACKS_BYTES_MAX ? k->text.n : STACKS_BYTES_MAX);
    (void)mu_buf_add(&k->text, p, n < room ? n : room);
}

static void on_facts(uv_work_t *work, int status)
{
    struct stacks_facts *f = work->data;
    struct stacks *s = f->owner;
    (void)status;
    if (s != NULL) {
        s->facts = NULL;
        for (uint32_t i = 0; i < f->count; i++) {
            struct stacks_look *k = &s->looks[f->v[i].index];
            if (k->text.n > 0 && k->text.p[k->text.n - 1] != '\n')
                add_text(k, "\n", 1);
            add_text(k, f->v[i].text.p, f->v[i].text.n);
            k->over = true;
        }
    }
    free_facts(f);
    if (s != NULL)
        next(s);
}

static bool wants_facts(const struct stacks_look *k)
{
    return k->text.n == 0 || k->late;
}

/* Ask /proc for those that no command told all of. */
static bool begin_facts(struct stacks *s)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < s->count; i++)
        count += wants_facts(&s->looks[i]);
    s->facts_asked = true;
    struct stacks_facts *f =
        count > 0 ? mu_zalloc(mu_mem_default(), sizeof *f + count * sizeof f->v[0]) : NULL;
    if (f == NULL)
        return false;
    f->owner = s;
    f->work.data = f;
    for (uint32_t i = 0; i < s->count; i++) {
        if (!wants_facts(&s->looks[i]))
            continue;
        f->v[f->count].index = i;
        f->v[f->count].pid = s->looks[i].worker.pid;
        mu_buf_init(&f->v[f->count].text, mu_mem_default());
        f->count++;
    }
    if (uv_queue_work(s->loop, &f->work, read_facts, on_facts) < 0) {
        free_facts(f);
        return false;
    }
    s->facts = f;
    return true;
}

/* ------------------------------------------------------------------ which command */

static bool is_installed(const char *program)
{
    const char *path = getenv("PATH");
    char full[1024];
    for (const char *p = path != NULL ? path : ""; *p != '\0';) {
        size_t n = strcspn(p, ":");
        int len = snprintf(full, sizeof full, "%.*s/%s", (int)n, p, program);
        if (n > 0 && len > 0 && (size_t)len < sizeof full && access(full, X_OK) == 0)
            return true;
        p += n + (p[n] == ':');
    }
    return false;
}

static bool is_python(int32_t pid)
{
    char path[32];
    char exe[1024];
    (void)snprintf(path, sizeof path, "/proc/%d/exe", pid);
    ssize_t n = readlink(path, exe, sizeof exe - 1);
    exe[n > 0 ? n : 0] = '\0';
    const char *name = strrchr(exe, '/');
    return name != NULL && strncmp(name + 1, "python", 6) == 0;
}

/* NULL: no program is needed. */
static const char *command_for(const struct stacks *s, int32_t pid)
{
    if (s->hook != NULL)
        return s->hook;
    if (is_python(pid) && is_installed("py-spy"))
        return "py-spy dump --pid \"$MUSTER_HANG_PID\"";
    if (is_installed("gdb"))
        return "DEBUGINFOD_URLS= gdb -nx -q -p \"$MUSTER_HANG_PID\" -batch -ex 'thread apply all "
               "bt'";
    return NULL;
}

/* ------------------------------------------------------------------ one command */

static void on_handle_closed(uv_handle_t *h)
{
    struct stacks_look *k = h->data;
    struct stacks *s = k->owner;
    int fd = h == (uv_handle_t *)&k->exit ? k->pidfd : k->pipe_fd;
    (void)close(fd);
    if (--k->open_handles > 0)
        return;
    k->over = true;
    s->running--;
    next(s);
}

/* Its group goes as well, as long as its pid cannot be another's: work.c may have reaped it. */
static void end_look(struct stacks_look *k)
{
    siginfo_t si = {0};
    if (k->open_handles == 0 || uv_is_closing((uv_handle_t *)&k->exit))
        return;
    if (waitid(P_PIDFD, (id_t)k->pidfd, &si, WEXITED | WNOHANG | WNOWAIT) == 0)
        (void)kill(-k->pid, SIGKILL);
    (void)waitid(P_PIDFD, (id_t)k->pidfd, &si, WEXITED | WNOHANG);
    uv_close((uv_handle_t *)&k->exit, on_handle_closed);
    uv_close((uv_handle_t *)&k->pipe, on_handle_closed);
}

/* What it has written by now. A hook's child may hold the pipe for ever: whoever started it has
 * ended, and that counts. */
static bool read_pipe(struct stacks_look *k)
{
    char piece[16384];
    for (int i = 0; i < 64; i++) {
        ssize_t n = read(k->pipe_fd, piece, sizeof piece);
        if (n == 0)
            return false;
        if (n < 0)
            return errno == EAGAIN || errno == EINTR;
        add_text(k, piece, (size_t)n);
    }
    return true;
}

static void on_output(uv_poll_t *p, int status, int events)
{
    struct stacks_look *k = p->data;
    (void)events;
    if (status < 0 || !read_pipe(k))
        (void)uv_poll_stop(p); /* Its end is told by the other handle. */
}

static void on_exit_of_command(uv_poll_t *p, int status, int events)
{
    struct stacks_look *k = p->data;
    (void)status;
    (void)events;
    (void)read_pipe(k);
    end_look(k);
}

static int watch(struct stacks_look *k)
{
    int r = uv_poll_init(k->owner->loop, &k->exit, k->pidfd);
    if (r < 0)
        return r;
    k->exit.data = k;
    k->open_handles++;
    r = uv_poll_init(k->owner->loop, &k->pipe, k->pipe_fd);
    if (r < 0) {
        k->pipe_fd = -1;
        return r;
    }
    k->pipe.data = k;
    k->open_handles++;
    (void)uv_poll_start(&k->exit, UV_READABLE, on_exit_of_command);
    (void)uv_poll_start(&k->pipe, UV_READABLE, on_output);
    return 0;
}

/* Our environment and what the command is to know. */
static char **make_environment(const struct stacks_worker *w, char (*own)[48])
{
    size_t n = 0;
    while (environ[n] != NULL)
        n++;
    char **envp = mu_alloc(mu_mem_default(), (n + VARIABLES + 1) * sizeof *envp);
    if (envp == NULL)
        return NULL;
    (void)snprintf(own[0], sizeof own[0], "MUSTER_HANG_PID=%d", w->pid);
    (void)snprintf(own[1], sizeof own[1], "MUSTER_HANG_RANK=%u", w->rank);
    (void)snprintf(own[2], sizeof own[2], "MUSTER_HANG_LOCAL_RANK=%u", w->local_rank);
    for (size_t i = 0; i < VARIABLES; i++)
        envp[i] = own[i];
    memcpy(envp + VARIABLES, environ, (n + 1) * sizeof *envp);
    return envp;
}

static int start_process(struct stacks *s, struct stacks_look *k, const char *command, int out)
{
    MU_CLEANUP(mu_buf_fini) struct mu_buf script;
    char own[VARIABLES][48];
    enum spawn_stage stage = SPAWN_OK;
    pid_t pid = 0;
    mu_buf_init(&script, mu_mem_default());
    (void)mu_buf_addf(&script, "exec </dev/null\n%s", command);
    char **envp = make_environment(&k->worker, own);
    if (envp == NULL || script.oom) {
        free(envp);
        return -ENOMEM;
    }
    char sh[] = "sh";
    char c[] = "-c";
    char *const argv[] = {sh, c, script.p, NULL};
    struct spawn_plan plan = {.path = "/bin/sh", .argv = argv, .envp = envp, .cgroup_fd = -1};
    (void)mu_buf_cstr(&script);
    plan.stdout_fd = spawn_use_output(&s->spawner, STDOUT_FILENO, out);
    plan.stderr_fd = spawn_use_output(&s->spawner, STDERR_FILENO, out);
    int r = plan.stdout_fd < 0 ? plan.stdout_fd : plan.stderr_fd;
    if (r >= 0)
        r = spawn_start(&s->spawner, &plan, &pid, &k->pidfd, &stage);
    k->pid = pid;
    free(envp);
    return r;
}

static int ready_spawner(struct stacks *s)
{
    int r = 0;
    if (!s->spawner_ready)
        r = spawn_init(&s->spawner);
    s->spawner_ready = r == 0;
    if (r < 0)
        return r;
    spawn_refresh(&s->spawner);
    return spawn_reserve_output(&s->spawner);
}

static int start_look(struct stacks *s, struct stacks_look *k, const char *command)
{
    int ends[2];
    int r = ready_spawner(s);
    if (r < 0)
        return r;
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0)
        return -errno;
    (void)fcntl(ends[1], F_SETFL, 0); /* The command's own end waits, as is usual. */
    r = start_process(s, k, command, ends[1]);
    (void)close(ends[1]);
    /* The reserved places hold the pipe open until the next command takes them. */
    MU_CLEANUP(mu_closep) int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (null >= 0) {
        (void)spawn_use_output(&s->spawner, STDOUT_FILENO, null);
        (void)spawn_use_output(&s->spawner, STDERR_FILENO, null);
    }
    if (r < 0) {
        (void)close(ends[0]);
        return r;
    }
    k->pipe_fd = ends[0];
    s->running++;
    r = watch(k);
    if (r == 0)
        return 0;
    (void)kill(-k->pid, SIGKILL); /* Its child: nobody else reaps it before we return. */
    if (k->pipe_fd < 0)
        (void)close(ends[0]);
    if (k->open_handles > 0)
        uv_close((uv_handle_t *)&k->exit, on_handle_closed);
    else
        s->running--;
    return r;
}

/* ------------------------------------------------------------------ all of them */

static void finish(struct stacks *s)
{
    (void)uv_timer_stop(&s->timer);
    s->busy = false;
    s->on_done(s->arg);
}

static void on_limit(uv_timer_t *t);

static void start_some(struct stacks *s)
{
    for (uint32_t i = 0; i < s->count && s->running < STACKS_AT_ONCE; i++) {
        struct stacks_look *k = &s->looks[i];
        if (k->started || k->over)
            continue;
        const char *command = command_for(s, k->worker.pid);
        int r = command != NULL ? start_look(s, k, command) : 0;
        k->started = true;
        k->over = command == NULL || (r < 0 && k->open_handles == 0);
        if (r < 0)
            (void)snprintf(s->trouble, sizeof s->trouble, "the hang hook cannot be started: %s",
                           strerror(-r));
    }
}

static bool all_over(const struct stacks *s)
{
    for (uint32_t i = 0; i < s->count; i++)
        if (!s->looks[i].over)
            return false;
    return true;
}

/* After anything that happened. */
static void next(struct stacks *s)
{
    if (!s->busy)
        return;
    start_some(s);
    if (!all_over(s) || s->facts != NULL)
        return;
    if (s->facts_asked || !begin_facts(s))
        finish(s);
    else if (!uv_is_active((uv_handle_t *)&s->timer))
        (void)uv_timer_start(&s->timer, on_limit, FACTS_MS, 0);
}

/* Of whom no command has told all by now /proc is asked, which takes no time to speak of; what
 * /proc itself does not tell is done without. */
static void on_limit(uv_timer_t *t)
{
    struct stacks *s = t->data;
    for (uint32_t i = 0; i < s->count; i++) {
        struct stacks_look *k = &s->looks[i];
        if (k->over)
            continue;
        k->late = true;
        s->late_count++;
        if (!k->started)
            k->started = k->over = true;
        end_look(k);
    }
    if (s->facts != NULL) {
        s->facts->owner = NULL;
        s->facts = NULL;
    }
    next(s);
}

void stacks_init(
    struct stacks *s, uv_loop_t *loop, const char *hook, void (*on_done)(void *arg), void *arg)
{
    *s = (struct stacks){.loop = loop, .hook = hook, .on_done = on_done, .arg = arg};
    s->spawner.slot[0] = s->spawner.slot[1] = s->spawner.slot[2] = -1;
    (void)uv_timer_init(loop, &s->timer);
    s->timer.data = s;
}

static bool has_open(const struct stacks *s)
{
    for (uint32_t i = 0; i < s->count; i++)
        if (s->looks[i].open_handles > 0)
            return true;
    return false;
}

static void free_looks(struct stacks *s)
{
    for (uint32_t i = 0; i < s->count; i++)
        mu_buf_fini(&s->looks[i].text);
    free(s->looks);
    s->looks = NULL;
    s->count = 0;
}

bool stacks_take(struct stacks *s, const struct stacks_worker *v, uint32_t count, int64_t limit_ns)
{
    bool off = s->hook != NULL && s->hook[0] == '\0';
    if (off || count == 0 || limit_ns <= 0 || s->busy || has_open(s))
        return false;
    free_looks(s);
    s->looks = mu_zalloc(mu_mem_default(), count * sizeof *s->looks);
    if (s->looks == NULL)
        return false;
    s->count = count;
    s->late_count = 0;
    s->facts_asked = false;
    s->valid = true;
    s->trouble[0] = '\0';
    s->busy = true;
    for (uint32_t i = 0; i < count; i++) {
        s->looks[i] = (struct stacks_look){.owner = s, .worker = v[i], .pidfd = -1, .pipe_fd = -1};
        mu_buf_init(&s->looks[i].text, mu_mem_default());
    }
    uv_update_time(s->loop);
    (void)uv_timer_start(&s->timer, on_limit, (uint64_t)(limit_ns / MU_NS_PER_MS) + 1, 0);
    start_some(s);
    if (!all_over(s) || begin_facts(s))
        return true;
    (void)uv_timer_stop(&s->timer);
    s->busy = false;
    return false;
}

bool stacks_is_busy(const struct stacks *s)
{
    return s->busy;
}

void stacks_cancel(struct stacks *s)
{
    s->busy = s->valid = false;
    if (!s->closing)
        (void)uv_timer_stop(&s->timer);
    if (s->facts != NULL)
        s->facts->owner = NULL;
    s->facts = NULL;
    for (uint32_t i = 0; i < s->count; i++)
        end_look(&s->looks[i]);
}

uint32_t stacks_count(const struct stacks *s)
{
    return s->valid ? s->count : 0;
}

const char *stacks_text(struct stacks *s, uint32_t i, struct stacks_worker *ret)
{
    *ret = s->looks[i].worker;
    return mu_buf_cstr(&s->looks[i].text);
}

void stacks_describe(const struct stacks *s, int64_t limit_ns, struct mu_buf *out)
{
    uint32_t taken = 0;
    for (uint32_t i = 0; i < s->count; i++)
        taken += s->looks[i].text.n > 0;
    (void)mu_buf_addf(out, "stacks of %u of %u workers were taken", taken, s->count);
    if (s->late_count > 0)
        (void)mu_buf_addf(out, "; the hang hook had not ended for %u within %g s, and was killed",
                          s->late_count, (double)limit_ns / (double)(1000 * MU_NS_PER_MS));
    if (s->trouble[0] != '\0')
        (void)mu_buf_addf(out, "; %s", s->trouble);
}

void stacks_close(struct stacks *s)
{
    stacks_cancel(s);
    s->closing = true;
    uv_close((uv_handle_t *)&s->timer, NULL);
}

void stacks_fini(struct stacks *s)
{
    free_looks(s);
    if (s->spawner_ready)
        spawn_fini(&s->spawner);
}
