/* One stream at a time. What must be asked meanwhile (why does the job wait? stop it!) goes over
 * the other connection and blocks for --timeout at most. */
#include "launcher/follow.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/limits.h"
#include "launcher/answer.h"
#include "launcher/ask.h"
#include "launcher/job_page.h"
#include "launcher/last.h"
#include "launcher/lines.h"
#include "launcher/show.h"

#define S(n) ((n)*INT64_C(1000000000))
#define AWAY_MAX_NS S(60)   /* A server that was restarted is back by then, */
#define UNTOLD_MAX_NS S(20) /* and its nodes have told it of their jobs so soon after. */
#define SILENT_MAX_NS S(60) /* Without a beat the connection is dead; the server's come sooner. */
#define RETRY_MIN_NS S(1) / 10
#define RETRY_MAX_NS S(2)
#define SAY_FIRST_NS S(5)
#define SAY_MAX_NS S(60)
#define LOOK_MAX_NS S(10)          /* Whether one that had written something starts again. */
#define AGAIN_BYTES_MAX (64 << 20) /* What was shown may come again as a whole. */
#define SLACK_MS 60000             /* Between the clocks of the server and the nodes. */
#define LINE_BYTES_MAX (1 << 20)   /* A server's line; longer is none. */
#define CHUNK 4096                 /* PIPE_BUF: what poll() calls writable takes at once. */

struct follow {
    const struct cli_follow *w;
    struct cli_stream *stream; /* NULL: between two. */
    struct cli_seen *seen;
    struct cli_last *last; /* NULL: lines are shown as they come. */
    struct mu_buf in;
    struct mu_buf text;             /* Made of lines, not written yet. */
    struct cli_line_style style[2]; /* stdout, stderr */
    struct cli_end end;
    int64_t since_ms; /* What the user asked for; -1: all. */
    int64_t floor_ms; /* The oldest line that was shown of the last --lines; -1: none. */
    int64_t shown_count;
    int64_t bytes;     /* Of lines, since the start. */
    int64_t heard_ns;  /* When the server sent something last. */
    int64_t away_ns;   /* Since when it is away; 0: it is there. */
    int64_t untold_ns; /* Since when a server that came back does not know the job; 0: it does. */
    int64_t retry_ns;  /* When the next attempt is made. */
    int64_t pause_ns;
    int64_t say_ns; /* When it is asked why nothing happens. */
    int64_t say_pause_ns;
    int64_t requeues; /* Starts that the server made by itself, as said. */
    int signal_fd;
    int signals; /* How many came. */
    int signo;
    int text_fd;
    int status; /* -1: goes on. */
    bool patient;
    bool again; /* A connection before this one brought something. */
    bool away_said;
    bool ended;
    char named[640]; /* "train-5f3a9c --rdzv=n1:29500": the job in commands that are proposed. */
};

static void leave(struct follow *f, int status)
{
    if (f->status < 0)
        f->status = status;
}

/* --- signals --- */

int cli_hold_signals(struct mu_err *err)
{
    sigset_t set;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGINT);
    (void)sigaddset(&set, SIGTERM);
    (void)signal(SIGPIPE, SIG_IGN); /* It is an error of write() then. */
    int fd = sigprocmask(SIG_BLOCK, &set, NULL) == 0
                 ? signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK)
                 : -1;
    if (fd < 0)
        (void)mu_err_set(err, -errno, "signals cannot be awaited: %s", strerror(errno));
    return fd;
}

static void order_stop(struct follow *f, const char *signal)
{
    MU_CLEANUP(mu_buf_fini) struct mu_buf path;
    MU_CLEANUP(mu_buf_fini) struct mu_buf body;
    struct mu_err err = {0};
    mu_buf_init(&path, mu_mem_default());
    mu_buf_init(&body, mu_mem_default());
    cli_job_path(f->w->http, &path, f->w->id, "/stop");
    (void)mu_buf_addf(&body, "{\"signal\":\"%s\"}", signal);
    MU_CLEANUP(cli_cjsonp)
    cJSON *answer = cli_ask(f->w->http, f->w->o, "POST", mu_buf_cstr(&path), &body, &err);
    bool kills = strcmp(signal, "SIGKILL") == 0;
    if (answer == NULL)
        cli_say(f->w->o, "job %s was not told to stop: %s; Ctrl-C again %s", f->w->id, err.msg,
                kills ? "leaves it" : "tries SIGKILL");
    else if (kills)
        cli_say(f->w->o, "job %s is killed; Ctrl-C again leaves it", f->w->id);
    else
        cli_say(f->w->o, "job %s is told to stop (%s); Ctrl-C again kills it", f->w->id, signal);
}

static void on_signal(struct follow *f, int signo)
{
    f->signals++;
    f->signo = signo;
    f->say_pause_ns = SAY_FIRST_NS;
    f->say_ns = mu_now_ns() + SAY_FIRST_NS;
    if (f->w->on_signal == CLI_LEAVES) {
        leave(f, 128 + signo);
    } else if (f->w->on_signal == CLI_DETACHES) {
        cli_say(f->w->o,
                "job %s goes on; muster attach %s follows it again, muster stop %s ends it",
                f->w->id, f->named, f->named);
        leave(f, 128 + signo);
    } else if (f->signals == 1) {
        order_stop(f, signo == SIGTERM ? "SIGTERM" : "SIGINT");
    } else if (f->signals == 2) {
        order_stop(f, "SIGKILL");
    } else {
        cli_say(f->w->o, "job %s may still run: muster attach %s, muster stop %s", f->w->id,
                f->named, f->named);
        leave(f, 128 + signo);
    }
}

static void look_at_signals(struct follow *f)
{
    struct signalfd_siginfo info;
    while (f->status < 0 && read(f->signal_fd, &info, sizeof info) == (ssize_t)sizeof info)
        on_signal(f, (int)info.ssi_signo);
}

/* --- output --- */

static void leave_unread(struct follow *f, int code)
{
    if (f->w->on_signal == CLI_LEAVES && code == EPIPE) {
        leave(f, 0); /* As "| head" means it. */
        return;
    }
    cli_say(f->w->o, "standard %s takes no more: %s; job %s goes on: muster attach %s",
            f->text_fd == STDERR_FILENO ? "error" : "output", strerror(code), f->w->id, f->named);
    leave(f, 1);
}

/* All of it, as fast as the reader takes it; signals are heard meanwhile. */
static void flush(struct follow *f)
{
    size_t at = 0;
    while (at < f->text.n && f->status < 0) {
        struct pollfd p[2] = {{.fd = f->text_fd, .events = POLLOUT},
                              {.fd = f->signal_fd, .events = POLLIN}};
        if (poll(p, 2, -1) < 0 && errno != EINTR)
            break;
        if (p[1].revents != 0)
            look_at_signals(f);
        if (p[0].revents == 0)
            continue;
        size_t n = f->text.n - at < CHUNK ? f->text.n - at : CHUNK;
        ssize_t r = write(f->text_fd, f->text.p + at, n);
        if (r > 0) {
            at += (size_t)r;
        } else if (r < 0 && errno != EINTR && errno != EAGAIN) {
            leave_unread(f, errno);
        }
    }
    mu_buf_reset(&f->text);
}

static void draw(struct follow *f, const struct cli_line *line, struct mu_str raw)
{
    bool apart = f->w->on_signal != CLI_LEAVES && !f->w->o->json; /* What logs shows is its own. */
    int fd = line->is_error && apart ? STDERR_FILENO : STDOUT_FILENO;
    if (fd != f->text_fd)
        flush(f);
    f->text_fd = fd;
    if (f->w->o->json) {
        (void)mu_buf_add(&f->text, raw.p, raw.n);
        (void)mu_buf_adds(&f->text, "\n");
    } else {
        cli_line_draw(&f->text, line, &f->style[fd == STDERR_FILENO]);
    }
    f->shown_count++;
}

/* What lies before the last --lines was not wanted the first time, and is not now. */
static bool is_wanted(struct follow *f, const struct cli_line *line)
{
    const char *host = f->w->o->logs.host;
    if (host != NULL && strcmp(host, line->host) != 0)
        return false;
    if (f->w->o->logs.lines > 0 && !f->again && (f->floor_ms < 0 || line->unix_ms < f->floor_ms))
        f->floor_ms = line->unix_ms;
    return line->unix_ms >= f->floor_ms || !f->again;
}

static void take_line(struct follow *f, struct mu_str raw)
{
    cJSON *tree = NULL;
    struct cli_line line = {0};
    switch (cli_line_read(raw, &tree, &line, &f->end)) {
    case CLI_SAID_LINE:
        f->bytes += (int64_t)raw.n;
        if (is_wanted(f, &line) && cli_seen_is_new(f->seen, &line) &&
            (f->last == NULL || !cli_last_add(f->last, line.unix_ms, raw)))
            draw(f, &line, raw);
        break;
    case CLI_SAID_END:
        f->ended = true;
        if (f->w->o->json && f->w->to_the_end)
            draw(f, &line, raw);
        break;
    case CLI_SAID_BEAT:
    case CLI_SAID_NONSENSE: /* Of a newer server: not for us. */
        break;
    }
    cJSON_Delete(tree);
}

/* Of each node the last --lines came: now it is known which are the last of all. */
static void draw_last(struct follow *f)
{
    struct mu_str raw;
    while (f->status < 0 && cli_last_next(f->last, &raw)) {
        cJSON *tree = NULL;
        struct cli_line line = {0};
        struct cli_end ignored;
        if (cli_line_read(raw, &tree, &line, &ignored) == CLI_SAID_LINE)
            draw(f, &line, raw);
        cJSON_Delete(tree);
    }
}

static void take_lines(struct follow *f)
{
    size_t at = 0;
    const char *end = NULL;
    if (f->in.n == 0 || cli_stream_status(f->stream) != 200)
        return; /* An error is read as a whole. */
    f->heard_ns = mu_now_ns();
    f->away_ns = f->untold_ns = 0;
    f->pause_ns = 0;
    f->patient = true;
    if (f->away_said)
        cli_say(f->w->o, "%s answers again", cli_http_where(f->w->http));
    f->away_said = false;
    while (!f->ended && f->status < 0 && (end = memchr(f->in.p + at, '\n', f->in.n - at)) != NULL) {
        size_t n = (size_t)(end - f->in.p) - at;
        take_line(f, mu_str_of(f->in.p + at, n));
        at += n + 1;
    }
    mu_buf_consume(&f->in, at);
    if (f->ended && f->last != NULL)
        draw_last(f);
    flush(f);
    if (f->in.n > LINE_BYTES_MAX)
        mu_buf_reset(&f->in);
}

/* --- the stream --- */

/* From when on lines are asked for. When what was shown is little, all of it comes again. */
static int64_t since_of(const struct follow *f)
{
    int64_t from_ms = -1;
    if (f->again && f->w->o->logs.lines >= 0)
        from_ms = f->floor_ms;
    else if (f->bytes > AGAIN_BYTES_MAX)
        from_ms = cli_seen_since_ms(f->seen);
    if (from_ms < SLACK_MS)
        return f->since_ms;
    return from_ms - SLACK_MS > f->since_ms ? from_ms - SLACK_MS : f->since_ms;
}

/* "/v1/jobs/ID/logs?follow=1&rank=3&since=60&lines=10" */
static void make_path(struct follow *f, struct mu_buf *b)
{
    const struct cli_logs *l = &f->w->o->logs;
    int64_t since_ms = since_of(f);
    cli_job_path(f->w->http, b, f->w->id, "/logs");
    (void)mu_buf_addf(b, "?follow=%d", f->w->to_the_end);
    if (l->rank >= 0)
        (void)mu_buf_addf(b, "&rank=%" PRId64, l->rank);
    int64_t ago_ms = since_ms >= 0 ? mu_unix_ms() - since_ms : MU_SPAN_MAX_MS;
    if (ago_ms < MU_SPAN_MAX_MS) /* No job is older. */
        (void)mu_buf_addf(b, "&since=%" PRId64, ago_ms > 0 ? (ago_ms + 999) / 1000 : 0);
    if (l->lines >= 0 && !f->again)
        (void)mu_buf_addf(b, "&lines=%" PRId64, l->lines);
}

static void open_stream(struct follow *f)
{
    MU_CLEANUP(mu_buf_fini) struct mu_buf path;
    struct mu_err err = {0};
    mu_buf_init(&path, mu_mem_default());
    make_path(f, &path);
    mu_buf_reset(&f->in);
    cli_seen_restart(f->seen);
    f->stream = path.oom
                    ? NULL
                    : cli_stream_open(f->w->http, mu_buf_cstr(&path), f->w->o->timeout_ns, &err);
    f->heard_ns = mu_now_ns();
    if (f->stream == NULL) {
        cli_say(f->w->o, "no memory for a connection");
        leave(f, 1);
    }
}

/* It is over without the job's end: try again, for a while. Who was refused hears so at once. */
static void lose_stream(struct follow *f, const char *why, bool refused)
{
    int64_t now = mu_now_ns();
    cli_stream_close(f->stream);
    f->stream = NULL;
    f->again = f->again || f->patient;
    if (f->away_ns == 0)
        f->away_ns = now;
    if (!f->patient) {
        cli_say(f->w->o, "%s", why);
        leave(f, 1);
    } else if (now - f->away_ns > AWAY_MAX_NS) {
        cli_say(f->w->o, "%s; given up after %d s: job %s may still run: muster attach %s", why,
                (int)(AWAY_MAX_NS / S(1)), f->w->id, f->named);
        leave(f, 1);
    } else if (!f->away_said && (refused || now - f->away_ns > S(1))) {
        f->away_said = true;
        cli_say(f->w->o, "%s; trying again for %d s, the job goes on meanwhile", why,
                (int)(AWAY_MAX_NS / S(1)));
    }
    f->pause_ns = f->pause_ns == 0                 ? RETRY_MIN_NS
                  : f->pause_ns * 2 < RETRY_MAX_NS ? f->pause_ns * 2
                                                   : RETRY_MAX_NS;
    f->retry_ns = now + f->pause_ns;
}

/* A server that remembers nothing hears from its nodes what runs, and they may be back after us. */
static bool may_be_told_yet(struct follow *f)
{
    int64_t now = mu_now_ns();
    if (!f->patient || f->away_ns == 0)
        return false;
    f->untold_ns = f->untold_ns != 0 ? f->untold_ns : now;
    return now - f->untold_ns < UNTOLD_MAX_NS;
}

static void end_stream(struct follow *f, enum cli_flow flow, struct mu_err *err)
{
    long status = cli_stream_status(f->stream);
    if (flow == CLI_BROKEN) {
        lose_stream(f, err->msg, false);
    } else if (status == 200) {
        (void)mu_err_set(err, -EPIPE, "%s ended the answer before the job's end",
                         cli_http_where(f->w->http));
        lose_stream(f, err->msg, false);
    } else if (cli_refused(f->w->http, status, mu_str_of(f->in.p, f->in.n), err) == -EAGAIN) {
        lose_stream(f, err->msg, true);
    } else if (err->code == -ENOENT && may_be_told_yet(f)) {
        (void)mu_err_set(err, -ENOENT, "%s has not heard of job %s from its nodes yet",
                         cli_http_where(f->w->http), f->w->id);
        lose_stream(f, err->msg, true);
    } else {
        cJSON *job = err->code == -ENOENT ? cli_ask_job(f->w->http, f->w->o, f->w->id, err) : NULL;
        cJSON_Delete(job);
        cli_say(f->w->o, "%s", err->msg);
        leave(f, 1);
    }
}

/* --- why nothing happens --- */

static void say_why(struct follow *f, int64_t now)
{
    struct mu_err err = {0};
    bool idle = f->shown_count == 0 || f->signals > 0;
    int64_t most_ns = idle ? SAY_MAX_NS : LOOK_MAX_NS;
    if (now < f->say_ns || f->w->on_signal == CLI_LEAVES || f->ended)
        return;
    f->say_ns = now + f->say_pause_ns;
    f->say_pause_ns = f->say_pause_ns * 2 < most_ns ? f->say_pause_ns * 2 : most_ns;
    if (f->away_ns != 0)
        return; /* That is said elsewhere. */
    MU_CLEANUP(cli_cjsonp) cJSON *job = cli_ask_job(f->w->http, f->w->o, f->w->id, &err);
    const char *state = cli_text(job, "state");
    int64_t requeues = cli_number(job, "requeues", 0);
    bool waits = strcmp(state, "queued") == 0 || strcmp(state, "starting") == 0;
    bool again = requeues > f->requeues;
    f->requeues = job != NULL ? requeues : f->requeues;
    MU_CLEANUP(mu_buf_fini) struct mu_buf b;
    mu_buf_init(&b, mu_mem_default());
    cli_add_state(&b, state, cli_text(job, "sentence"));
    if (job != NULL && (again || waits || f->signals > 0))
        cli_say(f->w->o, "job %s%.400s", f->w->id, mu_buf_cstr(&b));
}

/* --- the whole --- */

/* A job that ended without a round may have none. */
static bool has_incidents(const struct follow *f)
{
    MU_CLEANUP(mu_buf_fini) struct mu_buf path;
    struct mu_err ignored = {0};
    mu_buf_init(&path, mu_mem_default());
    cli_job_path(f->w->http, &path, f->w->id, "/incidents");
    MU_CLEANUP(cli_cjsonp)
    cJSON *answer = cli_ask(f->w->http, f->w->o, "GET", mu_buf_cstr(&path), NULL, &ignored);
    return cJSON_GetArraySize(cli_list(answer, "incidents")) > 0;
}

static void say_end(const struct follow *f)
{
    struct mu_err err = {0};
    if (!f->w->to_the_end && f->shown_count == 0 && f->style[0].terminal)
        cli_say(f->w->o,
                "no such line of job %s is there: nothing was printed, or its node is away (muster "
                "pool)",
                f->w->id);
    if (!f->w->to_the_end || f->w->on_signal == CLI_LEAVES || strcmp(f->end.state, "done") == 0)
        return;
    MU_CLEANUP(cli_cjsonp) cJSON *job = cli_ask_job(f->w->http, f->w->o, f->w->id, &err);
    MU_CLEANUP(mu_buf_fini) struct mu_buf b;
    bool failed = strcmp(f->end.state, "failed") == 0 && has_incidents(f);
    mu_buf_init(&b, mu_mem_default());
    cli_add_outcome(&b, f->end.state, cli_text(job, "cause"));
    cli_say(f->w->o, "job %s%.400s%s%s", f->w->id, mu_buf_cstr(&b),
            failed ? "; all about it: muster incidents " : "", failed ? f->named : "");
}

static int end_status(const struct follow *f)
{
    if (!f->w->to_the_end || f->w->on_signal == CLI_LEAVES)
        return 0;
    /* Who stopped it wants to see that, and not what an agent that was stopped makes of it. */
    bool stopped = f->signals > 0 && strcmp(f->end.state, "done") != 0;
    return stopped && f->end.exit_status <= 128 ? 128 + f->signo : cli_end_status(&f->end);
}

static void wait_between(struct follow *f, int64_t now)
{
    struct pollfd p = {.fd = f->signal_fd, .events = POLLIN};
    int64_t ms = (f->retry_ns - now) / 1000000 + 1;
    if (now < f->retry_ns)
        (void)poll(&p, 1, (int)ms);
    look_at_signals(f);
    if (f->status < 0 && mu_now_ns() >= f->retry_ns)
        open_stream(f);
}

static void turn(struct follow *f)
{
    struct mu_err err = {0};
    int64_t now = mu_now_ns();
    int64_t until = f->heard_ns + SILENT_MAX_NS;
    if (f->stream == NULL) {
        wait_between(f, now);
        return;
    }
    if (f->say_ns > now && f->say_ns < until)
        until = f->say_ns;
    enum cli_flow flow = cli_stream_wait(f->stream, f->signal_fd, until - now, &f->in, &err);
    look_at_signals(f);
    take_lines(f);
    now = mu_now_ns();
    if (f->ended)
        leave(f, end_status(f));
    else if (f->status < 0 && flow != CLI_FLOWS)
        end_stream(f, flow, &err);
    else if (f->status < 0 && now - f->heard_ns > SILENT_MAX_NS)
        lose_stream(f, "the server says nothing any more", false);
    if (f->status < 0)
        say_why(f, now);
}

static bool has_colour(const struct cli_options *o, bool terminal)
{
    return o->colour == CLI_ALWAYS || (o->colour == CLI_AUTO && terminal && cli_wants_colour());
}

int cli_follow(const struct cli_follow *what, int signal_fd)
{
    struct follow f = {.w = what,
                       .signal_fd = signal_fd,
                       .status = -1,
                       .text_fd = STDOUT_FILENO,
                       .patient = what->is_known,
                       .since_ms = what->o->logs.since_unix_ms,
                       .floor_ms = what->o->logs.lines == 0 ? mu_unix_ms() : -1,
                       .end = {.exit_status = -1},
                       .say_pause_ns = SAY_FIRST_NS,
                       .seen = cli_seen_new(mu_mem_default())};
    if (!what->to_the_end && what->o->logs.lines > 0)
        f.last = cli_last_new(mu_mem_default(), (uint64_t)what->o->logs.lines);
    mu_buf_init(&f.in, mu_mem_default());
    mu_buf_init(&f.text, mu_mem_default());
    for (int i = 0; i < 2; i++) {
        f.style[i].terminal = isatty(i == 0 ? STDOUT_FILENO : STDERR_FILENO) == 1;
        f.style[i].colour = has_colour(what->o, f.style[i].terminal);
    }
    if (what->o->logs.since_span_ns >= 0)
        f.since_ms = mu_unix_ms() - what->o->logs.since_span_ns / 1000000;
    (void)snprintf(f.named, sizeof f.named, "%.300s%s%s", what->id,
                   what->o->has_server ? " --rdzv=" : "",
                   what->o->has_server ? cli_http_where(what->http) : "");
    f.say_ns = mu_now_ns() + f.say_pause_ns;
    if (f.seen == NULL)
        leave(&f, 1);
    while (f.status < 0)
        turn(&f);
    if (f.ended)
        say_end(&f);
    cli_stream_close(f.stream);
    cli_seen_free(f.seen);
    cli_last_free(f.last);
    mu_buf_fini(&f.in);
    mu_buf_fini(&f.text);
    return f.status;
}
