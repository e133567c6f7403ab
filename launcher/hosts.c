/* One ssh a host, each in a process group of its own, so that a Ctrl-C of the terminal reaches the
 * agents in order and not the connections. What holds an agent is the pipe to its ssh: when we are
 * gone, in whatever way, it closes, and the agent ends (hosts_plan.h). */
#include "launcher/hosts.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/path.h"
#include "launcher/ask.h"
#include "launcher/follow.h"
#include "launcher/hosts_plan.h"
#include "launcher/lines.h"
#include "launcher/show.h"
#include "launcher/token.h"

#define S(n) ((n)*INT64_C(1000000000))
#define FILE_BYTES_MAX (1 << 20)
#define LINE_BYTES_MAX (1 << 20) /* Longer ones come in pieces. */
#define SSH_WORDS_MAX 16
#define DEFAULT_PORT 29500
#define LOST_GRACE_NS S(5) /* The others may be about to say why themselves. */
#define LOOK_NS (S(1) / 2) /* How often it is looked who has ended, where nobody said anything. */
#define HELD_NS (S(1) / 2) /* What an ssh that ended had written has come by then. */
#define SSH_FAILED 255
#define NOT_FOUND 127

struct agent {
    const struct cli_host *host;
    pid_t pid;     /* 0: ended. */
    int in_fd;     /* Of ssh; -1: closed. */
    int out_fd[2]; /* stdout, stderr; -1: ended. */
    struct mu_buf line[2];
    struct mu_buf script; /* What is not written yet. */
    int status;
    int wstatus;      /* Of ssh, once it has ended. */
    int64_t ended_ns; /* When that was seen; 0: it runs. */
};

struct hosts_run {
    const struct cli_options *o;
    struct cli_hosts hosts;
    struct cli_hosts_plan plan;
    struct agent *agents;
    struct cli_line_style style[2];
    struct pollfd *polled;
    uint32_t living;
    int signal_fd;
    int signals;
    int status;        /* Of the first that failed; 0: none has. */
    int64_t looked_ns; /* When it was looked who has ended. */
    int64_t stop_ns;   /* When those that are left are told to end; 0: they are not. */
    bool told;         /* They were. */
};

/* --- start --- */

static int read_file(const char *path, struct mu_buf *b, struct mu_err *err)
{
    MU_CLEANUP(mu_closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
    char part[4096];
    ssize_t n = fd < 0 ? -1 : 1;
    while (n > 0 && b->n <= FILE_BYTES_MAX) {
        n = read(fd, part, sizeof part);
        if (n > 0)
            (void)mu_buf_add(b, part, (size_t)n);
    }
    if (n < 0)
        return mu_err_set(err, -EINVAL, "--hostfile: %.150s cannot be read: %s", path,
                          strerror(errno));
    if (b->n > FILE_BYTES_MAX || b->oom)
        return mu_err_set(err, -EINVAL, "--hostfile: %.150s is larger than 1 MiB", path);
    return 0;
}

static int read_hosts(struct hosts_run *r, struct mu_err *err)
{
    MU_CLEANUP(mu_buf_fini) struct mu_buf file;
    const struct cli_run *run = &r->o->run;
    mu_buf_init(&file, mu_mem_default());
    if (run->hosts != NULL)
        return cli_hosts_parse(&r->hosts, run->hosts, false, err);
    int code = read_file(run->hostfile, &file, err);
    return code < 0 ? code : cli_hosts_parse(&r->hosts, mu_buf_cstr(&file), true, err);
}

static void make_id(const struct cli_run *run, char *ret, size_t cap)
{
    uint32_t number = 0;
    if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number)
        number = (uint32_t)mu_now_ns();
    (void)snprintf(ret, cap, "%.60s-%08x", run->name != NULL ? run->name : "run", number);
}

static void make_rdzv(const struct hosts_run *r, char *ret, size_t cap)
{
    const char *host = r->o->has_server ? r->o->server.host : r->hosts.host[0].name;
    unsigned port = r->o->has_server ? r->o->server.port : DEFAULT_PORT;
    bool v6 = strchr(host, ':') != NULL;
    (void)snprintf(ret, cap, "%s%s%s:%u", v6 ? "[" : "", host, v6 ? "]" : "", port);
}

/* $MUSTER_SSH, divided at blanks, or ssh; then its own words. `text` holds what the words borrow.
 */
static void make_command(char *text, size_t cap, const char *host, const char **words)
{
    const char *ssh = getenv("MUSTER_SSH");
    static const char *const options[] = {
        "-T", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=3",
        "--"};
    size_t n = 0;
    (void)snprintf(text, cap, "%s", ssh != NULL && ssh[0] != '\0' ? ssh : "ssh");
    for (char *p = text; *p != '\0' && n < SSH_WORDS_MAX;) {
        size_t length = strcspn(p, " ");
        bool last = p[length] == '\0';
        p[length] = '\0';
        if (length > 0)
            words[n++] = p;
        p += length + !last;
    }
    for (size_t i = 0; i < MU_COUNT(options); i++)
        words[n++] = options[i];
    words[n++] = host;
    words[n++] = cli_host_command;
    words[n] = NULL;
}

static int spawn(struct agent *a, int in, int out, int error, struct mu_err *err)
{
    extern char **environ;
    char text[4096];
    const char *words[SSH_WORDS_MAX + 12];
    posix_spawn_file_actions_t files;
    posix_spawnattr_t how;
    sigset_t none;
    sigset_t plain;
    make_command(text, sizeof text, a->host->ssh, words);
    (void)sigemptyset(&none);
    (void)sigemptyset(&plain);
    (void)sigaddset(&plain, SIGPIPE);
    (void)posix_spawn_file_actions_init(&files);
    (void)posix_spawn_file_actions_adddup2(&files, in, STDIN_FILENO);
    (void)posix_spawn_file_actions_adddup2(&files, out, STDOUT_FILENO);
    (void)posix_spawn_file_actions_adddup2(&files, error, STDERR_FILENO);
    (void)posix_spawnattr_init(&how);
    (void)posix_spawnattr_setpgroup(&how, 0);
    (void)posix_spawnattr_setsigmask(&how, &none);
    (void)posix_spawnattr_setsigdefault(&how, &plain);
    (void)posix_spawnattr_setflags(&how, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK |
                                             POSIX_SPAWN_SETSIGDEF);
    int r = posix_spawnp(&a->pid, words[0], &files, &how, (char *const *)(uintptr_t)words, environ);
    (void)posix_spawnattr_destroy(&how);
    (void)posix_spawn_file_actions_destroy(&files);
    return r == 0 ? 0
                  : mu_err_set(err, -r, "%.100s cannot be started: %s; MUSTER_SSH names another",
                               words[0], strerror(r));
}

/* Beyond stdio, so that the copies in the child cannot overwrite each other. */
static int pipe_apart(int fd[2])
{
    if (pipe2(fd, O_CLOEXEC) < 0)
        return -errno;
    for (int i = 0; i < 2; i++)
        if (fd[i] <= STDERR_FILENO) {
            int moved = fcntl(fd[i], F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
            if (moved < 0)
                return -errno;
            (void)close(fd[i]);
            fd[i] = moved;
        }
    return 0;
}

static void make_ready(int fd)
{
    (void)fcntl(fd, F_SETFL, O_NONBLOCK); /* Of a pipe of ours: cannot fail. */
}

static int start(struct hosts_run *r, uint32_t i, struct mu_err *err)
{
    struct agent *a = &r->agents[i];
    int p[3][2] = {{-1, -1}, {-1, -1}, {-1, -1}};
    int code = cli_host_script(&a->script, &r->plan, i, err);
    for (int k = 0; k < 3 && code == 0; k++)
        if ((code = pipe_apart(p[k])) < 0)
            (void)mu_err_set(err, code, "no pipe for host %.100s: %s", a->host->name,
                             strerror(-code));
    if (code == 0)
        code = spawn(a, p[0][0], p[1][1], p[2][1], err);
    int theirs[] = {p[0][0], p[1][1], p[2][1]};
    int ours[] = {p[0][1], p[1][0], p[2][0]};
    for (int k = 0; k < 3; k++) {
        mu_closep(&theirs[k]);
        if (code < 0)
            mu_closep(&ours[k]);
        else
            make_ready(ours[k]);
    }
    if (code < 0) {
        a->pid = 0;
        return code;
    }
    a->in_fd = ours[0];
    a->out_fd[0] = ours[1];
    a->out_fd[1] = ours[2];
    r->living++;
    return 0;
}

/* --- what agents print --- */

/* "[3] text" is of rank 3; anything else of the agent, or of ssh. */
static struct cli_line line_of(const struct agent *a, int stream, const char *text)
{
    struct cli_line line = {.rank = -1,
                            .is_error = stream == 1,
                            .host = a->host->name,
                            .text = text,
                            .unix_ms = mu_unix_ms()};
    size_t digits = text[0] == '[' ? strspn(text + 1, "0123456789") : 0;
    if (digits > 0 && digits < 9 && text[1 + digits] == ']' && text[2 + digits] == ' ') {
        line.rank = 0;
        for (size_t i = 1; i <= digits; i++)
            line.rank = line.rank * 10 + (text[i] - '0');
        line.text = text + digits + 3;
    }
    return line;
}

static void draw_json(struct mu_buf *b, const struct cli_line *line)
{
    struct mu_json w;
    char at[32];
    mu_json_init(&w, b);
    mu_json_open(&w, '{');
    mu_json_kstr(&w, "at", mu_iso8601(line->unix_ms, at));
    mu_json_ki64(&w, "unix_ms", line->unix_ms);
    mu_json_kstr(&w, "host", line->host);
    mu_json_ki64(&w, "rank", line->rank);
    mu_json_kstr(&w, "stream", line->is_error ? "stderr" : "stdout");
    mu_json_kstr(&w, "text", line->text);
    mu_json_close(&w, '}');
    (void)mu_buf_adds(b, "\n");
}

static void put(struct hosts_run *r, const struct agent *a, int stream, const char *text)
{
    MU_CLEANUP(mu_buf_fini) struct mu_buf b;
    struct cli_line line = line_of(a, stream, text);
    FILE *to = stream == 1 && !r->o->json ? stderr : stdout;
    mu_buf_init(&b, mu_mem_default());
    if (r->o->json)
        draw_json(&b, &line);
    else
        cli_line_draw(&b, &line, &r->style[stream]);
    /* Who reads us no more does not end the job: what it does is what counts. */
    (void)fwrite(b.p, 1, b.n, to);
    (void)fflush(to);
}

static void put_lines(struct hosts_run *r, struct agent *a, int stream, bool all)
{
    struct mu_buf *b = &a->line[stream];
    size_t at = 0;
    char *end = NULL;
    while (at < b->n && (end = memchr(b->p + at, '\n', b->n - at)) != NULL) {
        *end = '\0';
        put(r, a, stream, b->p + at);
        at = (size_t)(end - b->p) + 1;
    }
    mu_buf_consume(b, at);
    if (b->n > 0 && (all || b->n > LINE_BYTES_MAX)) {
        put(r, a, stream, mu_buf_cstr(b));
        mu_buf_reset(b);
    }
}

static void close_output(struct hosts_run *r, struct agent *a, int stream)
{
    put_lines(r, a, stream, true);
    mu_closep(&a->out_fd[stream]);
    a->out_fd[stream] = -1;
}

static void read_output(struct hosts_run *r, struct agent *a, int stream)
{
    char part[65536];
    ssize_t n = read(a->out_fd[stream], part, sizeof part);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n > 0)
        (void)mu_buf_add(&a->line[stream], part, (size_t)n);
    if (n > 0)
        put_lines(r, a, stream, false);
    else
        close_output(r, a, stream);
}

/* --- orders --- */

static void close_input(struct agent *a)
{
    mu_closep(&a->in_fd);
    a->in_fd = -1;
}

/* The script, and signals behind it. */
static void write_input(struct agent *a)
{
    ssize_t n = write(a->in_fd, a->script.p, a->script.n);
    if (n > 0)
        mu_buf_consume(&a->script, (size_t)n);
    else if (errno != EAGAIN && errno != EINTR)
        close_input(a); /* ssh is gone: its end says why. */
}

static void signal_all(struct hosts_run *r, const char *name)
{
    for (uint32_t i = 0; i < r->hosts.count; i++)
        if (r->agents[i].in_fd >= 0)
            (void)mu_buf_addf(&r->agents[i].script, "%s\n", name);
}

static void leave_all(struct hosts_run *r)
{
    for (uint32_t i = 0; i < r->hosts.count; i++) {
        struct agent *a = &r->agents[i];
        if (a->in_fd >= 0)
            close_input(a);
        if (a->pid > 0 && a->ended_ns == 0)
            (void)kill(a->pid, SIGTERM); /* The agent there sees its input end. */
    }
}

/* Returns whether to go on. */
static bool take_signal(struct hosts_run *r, int signo)
{
    const char *name = signo == SIGTERM ? "TERM" : "INT";
    r->signals++;
    r->told = true;
    if (r->signals == 1) {
        cli_say(r->o, "all agents are told to stop (SIG%s); Ctrl-C again kills them", name);
        signal_all(r, name);
        return true;
    }
    if (r->signals == 2) {
        cli_say(r->o, "all agents are killed; Ctrl-C again leaves them");
        signal_all(r, "KILL");
        return true;
    }
    cli_say(r->o, "the connections are cut: agents end by themselves");
    leave_all(r);
    if (r->status == 0)
        r->status = 128 + signo;
    return false;
}

/* --- ends --- */

static void explain(struct hosts_run *r, const struct agent *a)
{
    const char *host = a->host->ssh;
    if (a->status == SSH_FAILED)
        cli_say(
            r->o,
            "the connection to %s failed, or was lost; \"ssh -o BatchMode=yes %s true\" must work "
            "without a question",
            host, host);
    else if (a->status == NOT_FOUND)
        cli_say(r->o,
                "node-agent is not found on %s, or its program is not: install muster there, "
                "or name it with --agent=PATH",
                host);
}

static void take_end(struct hosts_run *r, struct agent *a, int wstatus)
{
    a->pid = 0;
    a->status = WIFSIGNALED(wstatus) ? 128 + WTERMSIG(wstatus) : WEXITSTATUS(wstatus);
    r->living--;
    if (a->in_fd >= 0)
        close_input(a);
    if (a->status == 0)
        return;
    if (r->signals == 0)
        explain(r, a);
    if (r->status == 0)
        r->status = a->status;
    if (r->stop_ns == 0 && r->living > 0 && r->living < r->plan.nodes_min)
        r->stop_ns = mu_now_ns() + LOST_GRACE_NS;
}

static bool is_silent(const struct agent *a)
{
    return a->out_fd[0] < 0 && a->out_fd[1] < 0;
}

/* An ssh that ended may leave somebody behind who holds its output open: a connection that is
 * shared and persists does. */
static void take_ends(struct hosts_run *r)
{
    int64_t now = mu_now_ns();
    bool look = now - r->looked_ns > LOOK_NS;
    if (look)
        r->looked_ns = now;
    for (uint32_t i = 0; i < r->hosts.count; i++) {
        struct agent *a = &r->agents[i];
        if (a->pid == 0)
            continue;
        if (a->ended_ns == 0 && (look || is_silent(a)) &&
            waitpid(a->pid, &a->wstatus, WNOHANG) == a->pid)
            a->ended_ns = now;
        if (a->ended_ns == 0 || (!is_silent(a) && now - a->ended_ns < HELD_NS))
            continue;
        for (int k = 0; k < 2; k++)
            close_output(r, a, k);
        take_end(r, a, a->wstatus);
    }
}

/* --- the loop --- */

static size_t fill(struct hosts_run *r)
{
    size_t n = 0;
    r->polled[n++] = (struct pollfd){.fd = r->signal_fd, .events = POLLIN};
    for (uint32_t i = 0; i < r->hosts.count; i++) {
        const struct agent *a = &r->agents[i];
        r->polled[n++] = (struct pollfd){.fd = a->script.n > 0 ? a->in_fd : -1, .events = POLLOUT};
        for (int k = 0; k < 2; k++)
            r->polled[n++] = (struct pollfd){.fd = a->out_fd[k], .events = POLLIN};
    }
    return n;
}

/* An ssh that ends is looked at often: it is a matter of milliseconds. */
static int patience_ms(const struct hosts_run *r)
{
    for (uint32_t i = 0; i < r->hosts.count; i++) {
        const struct agent *a = &r->agents[i];
        if (a->pid > 0 && (a->ended_ns != 0 || is_silent(a)))
            return 10;
    }
    return (int)(LOOK_NS / 1000000);
}

static bool turn(struct hosts_run *r)
{
    struct signalfd_siginfo info;
    size_t n = fill(r);
    if (poll(r->polled, n, patience_ms(r)) < 0 && errno != EINTR)
        return false;
    for (uint32_t i = 0; i < r->hosts.count; i++) {
        struct agent *a = &r->agents[i];
        const struct pollfd *p = &r->polled[1 + 3 * (size_t)i];
        if (p[0].revents != 0 && a->in_fd >= 0)
            write_input(a);
        for (int k = 0; k < 2; k++)
            if (p[1 + k].revents != 0)
                read_output(r, a, k);
    }
    while (read(r->signal_fd, &info, sizeof info) == (ssize_t)sizeof info)
        if (!take_signal(r, (int)info.ssi_signo))
            return false;
    take_ends(r);
    if (r->stop_ns != 0 && !r->told && mu_now_ns() > r->stop_ns) {
        r->told = true;
        cli_say(r->o, "%u agent%s left, fewer than the job needs: told to end", r->living,
                r->living == 1 ? " is" : "s are");
        signal_all(r, "TERM");
    }
    return r->living > 0;
}

static void allow_descriptors(uint32_t hosts)
{
    struct rlimit l;
    rlim_t want = 3 * (rlim_t)hosts + 64;
    if (getrlimit(RLIMIT_NOFILE, &l) == 0 && l.rlim_cur < want) {
        l.rlim_cur = want < l.rlim_max ? want : l.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &l); /* Where it is not enough, pipe2() says so. */
    }
}

static int start_all(struct hosts_run *r, struct mu_err *err)
{
    allow_descriptors(r->hosts.count);
    r->agents = mu_zalloc(mu_mem_default(), r->hosts.count * sizeof *r->agents);
    r->polled = mu_zalloc(mu_mem_default(), (3 * (size_t)r->hosts.count + 1) * sizeof *r->polled);
    if (r->agents == NULL || r->polled == NULL)
        return mu_err_set(err, -ENOMEM, "no memory for the hosts");
    for (uint32_t i = 0; i < r->hosts.count; i++) {
        struct agent *a = &r->agents[i];
        *a = (struct agent){.host = &r->hosts.host[i], .in_fd = -1, .out_fd = {-1, -1}};
        mu_buf_init(&a->line[0], mu_mem_default());
        mu_buf_init(&a->line[1], mu_mem_default());
        mu_buf_init(&a->script, mu_mem_default());
    }
    for (uint32_t i = 0; i < r->hosts.count; i++) {
        int code = start(r, i, err);
        if (code < 0) {
            leave_all(r);
            return code;
        }
    }
    return 0;
}

static void finish(struct hosts_run *r)
{
    for (uint32_t i = 0; r->agents != NULL && i < r->hosts.count; i++) {
        struct agent *a = &r->agents[i];
        mu_closep(&a->in_fd);
        mu_closep(&a->out_fd[0]);
        mu_closep(&a->out_fd[1]);
        mu_buf_fini(&a->line[0]);
        mu_buf_fini(&a->line[1]);
        mu_buf_fini(&a->script);
    }
    mu_mem_free(mu_mem_default(), r->agents);
    mu_mem_free(mu_mem_default(), r->polled);
    cli_hosts_fini(&r->hosts);
}

static const char *env_here(void *arg, const char *name)
{
    (void)arg;
    return getenv(name);
}

/* Agents need the token that was named here, in a file of the same name on their hosts: agents
 * start in another folder than this, so the name is made a whole one. One that merely lies here is
 * not passed on: it need not lie there. */
static int find_token(struct hosts_run *r, char *file, struct mu_err *err)
{
    struct mu_token token;
    char name[CLI_PATH_BYTES];
    if (r->o->token_file == NULL && getenv("MUSTER_TOKEN_FILE") == NULL)
        return 0;
    int code = cli_token_find(r->o, &token, name, err);
    bool found = code == 0 && mu_token_is_set(&token);
    mu_token_wipe(&token);
    if (code < 0)
        err->code = code = -EINVAL; /* Exit status 2, as for what else is named wrongly. */
    if (!found)
        return code;
    code = mu_path_absolute(name, file, PATH_MAX + CLI_PATH_BYTES, err);
    if (code < 0) {
        (void)mu_err_wrap(err, "--token-file");
        return err->code = -EINVAL;
    }
    r->plan.token_file = file;
    return 0;
}

static int prepare(struct hosts_run *r, char *cwd, struct mu_err *err)
{
    const struct cli_options *o = r->o;
    for (int i = 0; i < 2; i++) {
        bool terminal = isatty(i == 0 ? STDOUT_FILENO : STDERR_FILENO) == 1;
        r->style[i].terminal = terminal;
        r->style[i].colour =
            o->colour == CLI_ALWAYS || (o->colour == CLI_AUTO && terminal && cli_wants_colour());
    }
    if (o->run.cwd == NULL && mu_path_here(cwd, PATH_MAX, CLI_OTHER_FOLDER, err) < 0)
        return err->code = -EINVAL;
    r->plan.hosts = &r->hosts;
    r->plan.submission = (struct cli_submission){.run = &o->run, .cwd = cwd, .env = env_here};
    int code = read_hosts(r, err);
    return code < 0
               ? code
               : cli_hosts_nodes(&r->hosts, &o->run, &r->plan.nodes_min, &r->plan.nodes_max, err);
}

int cli_run_on_hosts(const struct cli_options *o)
{
    char cwd[PATH_MAX] = "/";
    char token_file[PATH_MAX + CLI_PATH_BYTES];
    char rdzv[300];
    char id[80];
    struct mu_err err = {0};
    struct hosts_run r = {.o = o, .hosts = {.mem = mu_mem_default()}};
    MU_CLEANUP(mu_closep) int fd = cli_hold_signals(&err);
    int code = fd < 0 ? err.code : prepare(&r, cwd, &err);
    r.signal_fd = fd;
    if (code == 0)
        code = find_token(&r, token_file, &err);
    if (code == 0) {
        make_rdzv(&r, rdzv, sizeof rdzv);
        make_id(&o->run, id, sizeof id);
        r.plan.rdzv = rdzv;
        r.plan.run_id = id;
        code = start_all(&r, &err);
    }
    if (code == 0)
        while (turn(&r))
            continue;
    else
        cli_say(o, "%s", err.msg);
    finish(&r);
    return code == -EINVAL ? 2 : code < 0 ? 1 : r.status;
}
