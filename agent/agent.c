/* The agent at work; see agent.h. A callback turns what happened into an event, steps agent/life,
 * and carries out its actions. */
#include "agent/agent.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "agent/events.h"
#include "agent/first.h"
#include "agent/health.h"
#include "agent/hosting.h"
#include "agent/inject.h"
#include "agent/late.h"
#include "agent/life/life.h"
#include "agent/link/facts.h"
#include "agent/link/link.h"
#include "agent/link/reach.h"
#include "agent/notice_watch.h"
#include "agent/pulse.h"
#include "agent/stacks.h"
#include "agent/watchdog.h"
#include "agent/workers/lines.h"
#include "agent/workers/output.h"
#include "agent/workers/plan.h"
#include "agent/workers/report.h"
#include "agent/workers/warden.h"
#include "agent/workers/work.h"
#include "agent/workers/xid.h"
#include "base/mem.h"
#include "base/addr.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/holder.h"
#include "base/shown.h"

/* A worker that failed in the present round, for the report. */
struct failed {
    struct work_exit exit;
    int64_t unix_s;
    char *error_path;
    char *error_text;
    bool has_output; /* Its last lines are known. */
};

enum {
    LAST_LINES_MS = 200,  /* The pump may be held up by a disk. */
    REPORT_LINES = 40,    /* All that is said at the end. */
    CONSEQUENCES_MAX = 8, /* Named; more are counted. */
    OUTPUT_FILES = 6,     /* Descriptors of a worker whose output passes through us, at most; */
    OUTPUT_OWN_FILES = 7, /* and of the one that carries it. */
    WORKER_FILES = 3,     /* A socket's two ends and a pidfd. */
    OWN_FILES = 25        /* With the rendezvous and a worker store, before the first worker. */
};

struct agent {
    const struct agent_options *o;
    const char *name;
    struct warden *warden;
    uv_loop_t loop;
    struct life life;
    struct link *link;
    struct reach reach;
    struct work *work;
    struct output *output;
    struct plan *plan;
    int told_signo;     /* The signal that told us to stop; 0: none. */
    int64_t started_ns; /* For events: the agent's start, and the present join's. */
    int64_t joining_ns;
    struct hosting hosting;
    struct watchdog watchdog;
    struct pulse pulse;
    struct health health;
    struct late late;
    struct xid xid;
    char cause_words[MU_MESSAGE_BYTES]; /* Of the worker that failed last. */
    struct stacks stacks;
    bool hangs; /* `hang` waits for its stacks. */
    struct hang_verdict hang;
    int64_t hang_ns; /* When it was found. */
    struct notice_watch notices;
    struct inject inject; /* Faults on purpose; nothing without --chaos. */
    uv_timer_t timer;
    int64_t timer_at_ns;
    struct first first; /* Exits on their way from `work`. */
    uv_timer_t goodbye; /* Limit of waiting for others that need our server. */
    bool lookups_left;  /* A thread waits for a name server: the process ends without it. */
    bool stuck;         /* Processes of the round do not end after SIGKILL. */
    bool left;          /* Everything is closed but what the loop closes by itself. */
    uv_signal_t signals[AGENT_SIGNALS_MAX];
    uint32_t signal_count;
    bool usr1_drains; /* Not in --signals-to-handle: a scheduler's warning. */
    char run_id[MU_RUN_ID_BYTES];
    struct failed *failed; /* nproc entries. */
    uint32_t failed_count;
    char
        last_lines[MU_OUTPUT_BYTES]; /* Of the first of them, where its output passes through us. */
    char tail[MU_TAIL_BYTES];        /* More of them, for the record. */
    struct work_exit consequences[CONSEQUENCES_MAX]; /* Failed by themselves while being stopped. */
    uint32_t consequence_count;
    bool leaving;            /* EXIT was decided: handles are being closed. */
    struct mu_prover prover; /* No token: none is asked for. */
    bool link_open;
    bool work_open;
    bool output_open;
    bool goodbye_over;
    struct rlimit files; /* The workers' limit of open files, where ours was raised at the start. */
    bool files_raised;
    bool files_inherit;      /* Too few to carry output for its last lines alone. */
    struct mu_buf *report;   /* While our last words are gathered; else NULL. */
    bool console_lost;       /* What workers wrote is missing from our own stdout or stderr. */
    bool rank0_serves_store; /* As the user wants it: torchrun's TORCH_DISABLE_SHARE_RDZV_TCP_STORE.
                              */
};

static void step(struct agent *a, struct life_event *ev);

/* ------------------------------------------------------------------ words */

/* Whole lines on stderr. */
static void put_words(const struct agent *a, const char *p, size_t n)
{
    if (a->report != NULL) {
        (void)mu_buf_add(a->report, p, n);
    } else if (a->output != NULL && a->output_open) {
        output_say(a->output, p, n);
    } else if (write(STDERR_FILENO, p, n) < 0) {
        /* Nowhere left to say so. */
    }
}

static void put_log_line(void *arg, const char *p, size_t n)
{
    put_words(arg, p, n);
}

/* One line to the user: what cannot be shown by a terminal is escaped. */
static void say(const struct agent *a, const char *text)
{
    MU_CLEANUP(mu_buf_fini) struct mu_buf b;
    mu_buf_init(&b, mu_mem_default());
    (void)mu_buf_addf(&b, "%s: ", a->name);
    (void)mu_buf_add_shown(&b, mu_str_of(text, strlen(text)), "");
    (void)mu_buf_adds(&b, "\n");
    put_words(a, b.p, b.n);
}

static void say_err(const struct agent *a, const struct mu_err *err)
{
    say(a, err->msg);
}

static void say_late(void *arg, const char *text)
{
    say(arg, text);
}

/* ------------------------------------------------------------------ torchrun's events */

static void tell_event(const struct agent *a, const struct events_item *item)
{
    static const char *const backends[] = {[AGENT_RDZV_STANDALONE] = "c10d",
                                           [AGENT_RDZV_STATIC] = "static",
                                           [AGENT_RDZV_DYNAMIC] = "c10d"};
    const struct events_job job = {.run_id = a->run_id,
                                   .role = a->o->role,
                                   .host = a->life.config.hello.host,
                                   .backend = backends[a->o->rdzv],
                                   .entry_point = plan_title(a->plan)};
    if (!a->o->events_on_console)
        return;
    MU_CLEANUP(mu_buf_fini) struct mu_buf b;
    mu_buf_init(&b, mu_mem_default());
    struct events_item full = *item;
    full.total_run_time_s = (mu_now_ns() - a->started_ns) / (MU_NS_PER_MS * 1000);
    events_line(&b, &job, &a->life.start, &full);
    put_words(a, b.p, b.n);
}

/* The agent's own. */
static void tell_agent_event(const struct agent *a, const char *state, int64_t duration_ms)
{
    tell_event(a,
               &(struct events_item){.state = state, .local_rank = -1, .duration_ms = duration_ms});
}

static void tell_started(const struct agent *a, const int32_t *pids)
{
    if (!a->o->events_on_console)
        return;
    tell_agent_event(a, "RENDEZVOUS", (mu_now_ns() - a->joining_ns) / MU_NS_PER_MS);
    tell_agent_event(a, "ASSIGN_WORKER_RANKS", 0);
    for (uint32_t i = 0; i < a->o->nproc; i++)
        tell_event(a, &(struct events_item){
                          .state = "START", .local_rank = i, .pid = pids[i], .duration_ms = -1});
}

/* How a worker ended: by itself, well or not, or because the round is stopped. */
static void note_end(const struct agent *a, const struct work_exit *e, const char *words)
{
    bool stopped = a->life.state != LIFE_RUNNING && a->life.state != LIFE_FINISHED;
    const char *state = e->status == 0 ? "SUCCEEDED" : stopped ? "TERMINATED" : "FAILED";
    tell_event(a, &(struct events_item){.state = state,
                                        .local_rank = e->local_rank,
                                        .pid = e->pid,
                                        .exit_code = stopped ? 0 : e->status,
                                        .error = words,
                                        .duration_ms = -1});
}

/* ------------------------------------------------------------------ workers of a round */

static void forget_failures(struct agent *a)
{
    for (uint32_t i = 0; i < a->failed_count; i++) {
        free(a->failed[i].error_path);
        free(a->failed[i].error_text);
    }
    a->failed_count = 0;
    a->consequence_count = 0;
    a->last_lines[0] = a->tail[0] = '\0';
}

/* A fresh port for the next round that this node may lead: a port is never picked and then lost to
 * someone else. */
static void renew_store(struct agent *a)
{
    struct mu_err err = {0};
    uint16_t port = 0;
    hosting_close_store(&a->hosting);
    if (hosting_reserve_store(&a->hosting, &port, &err) < 0)
        say_err(a, &err); /* Port 0: another node must lead. */
    life_set_store_port(&a->life, port);
}

static void on_all_gone(void *arg)
{
    struct agent *a = arg;
    first_flush(&a->first);
    output_round_over(a->output);
    watchdog_stop(&a->watchdog);
    pulse_stop(&a->pulse);
    stacks_cancel(&a->stacks);
    a->hangs = false;
    inject_ended(&a->inject);
    a->joining_ns = mu_now_ns();
    if (a->life.state == LIFE_STOPPING)
        renew_store(a);
    step(a, &(struct life_event){.type = LIFE_EV_ALL_GONE});
}

static int take_last_lines(struct agent *a, uint32_t local_rank)
{
    int channel = output_last_lines(a->output, local_rank, MU_TAIL_LINES_MAX, LAST_LINES_MS,
                                    a->tail, sizeof a->tail);
    lines_show(a->tail, strlen(a->tail), a->o->last_lines, false, a->last_lines,
               sizeof a->last_lines);
    return channel;
}

/* What the first one to fail wrote last: its own words, where it left no error file. */
static void note_last_lines(struct agent *a, struct failed *f, struct plan_error *pe)
{
    if (f != a->failed)
        return;
    int channel = take_last_lines(a, f->exit.local_rank);
    f->has_output = a->last_lines[0] != '\0';
    if (!f->has_output)
        return;
    /* Whoever is ended from outside has said nothing of it, and what it was at on stdout is no
     * reason. */
    bool from_outside = f->exit.status == -SIGKILL || f->exit.status == -SIGTERM;
    if (!pe->found && !from_outside && channel == STDERR_FILENO)
        plan_error_last_line(pe, a->last_lines);
}

/* What the kernel knows of its end, behind what it said itself; NULL: nobody says anything. */
static const char *add_kernels_words(struct agent *a, const struct work_exit *e, const char *words)
{
    char xid[192];
    xid_explain(&a->xid, e->pid, xid, sizeof xid);
    if (xid[0] == '\0')
        return words;
    if (words != NULL && words[0] != '\0')
        (void)snprintf(a->cause_words, sizeof a->cause_words, "%.256s (%s)", words, xid);
    else
        (void)snprintf(a->cause_words, sizeof a->cause_words, "%s", xid);
    return a->cause_words;
}

/* Keep what the report will say of it. Returns the words for the cause; they live until the next
 * round. */
static const char *note_failure(struct agent *a, const struct work_exit *e, struct plan_error *pe)
{
    struct failed *f = &a->failed[a->failed_count++];
    *f = (struct failed){.exit = *e, .unix_s = mu_unix_ms() / 1000};
    plan_read_error(a->plan, e->local_rank, pe);
    if (pe->found) {
        f->error_path = mu_strdup(mu_mem_default(), pe->path);
        f->unix_s = pe->unix_s != 0 ? pe->unix_s : f->unix_s;
    }
    f->error_text = pe->text;
    pe->text = NULL;
    note_last_lines(a, f, pe);
    if (e->oom_killed)
        return "killed by the kernel: out of memory";
    if (pe->message[0] != '\0')
        return pe->message;
    const struct talk_said *said = work_said(a->work, e->local_rank);
    if (said == NULL || said->failure[0] == '\0')
        return NULL;
    f->error_text = mu_strdup(mu_mem_default(), said->failure); /* It had no file to write. */
    return said->failure;
}

/* As much of a traceback's end as fits, from a line's beginning: what went wrong stands there. */
static const char *trace_of(const struct failed *f)
{
    const char *text = f->error_text;
    size_t n = text != NULL ? strlen(text) : 0;
    if (n < MU_TRACE_BYTES)
        return text;
    text += n - (MU_TRACE_BYTES - 1);
    const char *line = strchr(text, '\n');
    return line != NULL && line[1] != '\0' ? line + 1 : text;
}

/* Does the report speak of it? What ends because we stop it does not, nor what fails here after a
 * failure elsewhere: its cause is told by those who saw it. */
static bool is_of_interest(const struct agent *a, const struct work_exit *e)
{
    if (e->status == 0 || a->life.state == LIFE_RUNNING)
        return e->status != 0;
    return e->by_itself ||
           (a->failed_count > 0 && e->status != -a->life.signo && e->status != -SIGKILL);
}

/* It failed by itself, though something else had failed before. */
static void note_consequence(struct agent *a, const struct work_exit *e)
{
    bool ours = e->status == -a->life.signo || e->status == -SIGKILL ||
                e->status == 128 + a->life.signo; /* It ended as it was told. */
    if (e->status == 0 || a->life.state != LIFE_STOPPING || ours)
        return;
    if (a->consequence_count < CONSEQUENCES_MAX)
        a->consequences[a->consequence_count] = *e;
    a->consequence_count++;
}

static void tell_hung(struct agent *a);

static void note_exit(void *arg, const struct work_exit *e)
{
    struct agent *a = arg;
    if (a->hangs && e->local_rank == a->hang.local_rank) {
        a->hangs = false; /* That it hung comes first, whoever ended it: the hook, or a debugger. */
        tell_hung(a);
    }
    const struct talk_said *said = work_said(a->work, e->local_rank);
    struct life_event ev = {.type = LIFE_EV_WORKER_EXIT,
                            .local_rank = e->local_rank,
                            .status = e->status,
                            .by_itself = e->by_itself,
                            .core_dumped = e->core_dumped,
                            .oom_killed = e->oom_killed,
                            .halted = said != NULL && said->halts,
                            .names_rank = said != NULL && said->blame >= 0,
                            .named = said != NULL ? said->blame : -1};
    struct plan_error pe = {0};
    if (is_of_interest(a, e)) {
        ev.text = add_kernels_words(a, e, note_failure(a, e, &pe));
        ev.words.trace = trace_of(&a->failed[a->failed_count - 1]);
    } else {
        note_consequence(a, e);
    }
    if (a->failed_count == 1) {
        ev.words.output = a->last_lines;
        ev.words.tail = a->tail;
    }
    note_end(a, e, ev.text);
    step(a, &ev);
    plan_error_fini(&pe);
}

static void on_exit_of_worker(void *arg, const struct work_exit *e)
{
    struct agent *a = arg;
    first_take(&a->first, e, a->life.state == LIFE_RUNNING && a->failed_count == 0);
}

static void
on_said(void *arg, uint32_t local_rank, enum talk_news news, const struct talk_said *said)
{
    struct agent *a = arg;
    uint32_t rank = (uint32_t)a->life.start.rank_base + local_rank;
    char name[80];
    if (news == TALK_PROGRESS) {
        life_note_step(&a->life, local_rank, said->step);
        mu_log(MU_DEBUG, "worker.progress", "job=%s round=%" PRId64 " rank=%u step=%" PRId64,
               a->run_id, a->life.start.round, rank, said->step);
        inject_step(&a->inject, local_rank, said->step);
    } else if (news == TALK_SECTION) {
        mu_log(MU_DEBUG, "worker.section", "job=%s round=%" PRId64 " rank=%u name=%s", a->run_id,
               a->life.start.round, rank,
               mu_quote(name, sizeof name, mu_str_of(said->section, strlen(said->section))));
    }
}

static int open_store(struct agent *a, struct mu_err *err)
{
    if (!a->rank0_serves_store)
        return hosting_open_store(&a->hosting, err);
    hosting_release_store(&a->hosting);
    return 0;
}

static int prepare_round(struct agent *a, struct work_round *round, struct mu_err *err)
{
    const struct ctl_start *s = &a->life.start;
    if (s->node_rank == 0) {
        int r = open_store(a, err);
        if (r < 0)
            return r;
    }
    struct plan_round facts = {.round = (uint32_t)s->round,
                               .node_rank = (uint32_t)s->node_rank,
                               .node_count = (uint32_t)s->node_count,
                               .rank_base = (uint32_t)s->rank_base,
                               .world = (uint32_t)s->world,
                               .role_rank_base = (uint32_t)s->role_rank_base,
                               .role_world = (uint32_t)s->role_world,
                               .restarts = (uint32_t)s->restarts,
                               .lead_addr = s->lead_addr,
                               .lead_port = (uint16_t)s->lead_port,
                               .rank0_serves_store = a->rank0_serves_store};
    int r = plan_build(a->plan, &facts, round, err);
    if (r == 0)
        r = plan_make_folders(a->plan, err);
    if (r == -ENOSPC || r == -EDQUOT) { /* A full disk is no reason not to train. */
        say_err(a, err);
        say(a, "the workers run without log files and error files");
        r = 0;
    }
    if (r < 0)
        return r;
    round->passed = a->o->last_lines > 0 && !a->files_inherit ? output_passable() : 0;
    if (round->passed != 0 || round->shown != NULL || round->stdout_path != NULL ||
        round->stderr_path != NULL)
        work_expect_files(a->work, OUTPUT_FILES * a->o->nproc);
    return output_open(a->output, round, err);
}

static void spawn(struct agent *a)
{
    int32_t pids[MU_WORKERS_MAX];
    uint32_t failed = 0;
    struct work_round round;
    struct mu_err err = {0};
    forget_failures(a);
    first_begin(&a->first, (uint32_t)a->life.start.rank_base);
    int r = prepare_round(a, &round, &err);
    bool nothing_started = r < 0;
    if (r == 0)
        r = work_start(a->work, &round, pids, &failed, &err);
    output_started(a->output);
    warden_note_cgroup(a->warden, work_cgroup(a->work)); /* A killed one was replaced. */
    if (r == 0) {
        tell_started(a, pids);
        watchdog_start(&a->watchdog, pids);
        pulse_start(&a->pulse, pids);
        xid_begin(&a->xid);
        step(a, &(struct life_event){.type = LIFE_EV_SPAWNED, .pids = pids});
        inject_started(&a->inject, &a->life.start, pids, a->o->nproc);
        return;
    }
    say_err(a, &err);
    step(a,
         &(struct life_event){.type = LIFE_EV_SPAWN_FAILED, .local_rank = failed, .text = err.msg});
    if (nothing_started)
        on_all_gone(a);
}

/* ------------------------------------------------------------------ the end */

/* The one that is the job's first cause; NULL: that was elsewhere. */
static const struct failed *cause_here(const struct agent *a)
{
    const struct mu_cause *c = &a->life.cause;
    for (uint32_t i = 0; a->life.has_cause && i < a->failed_count; i++)
        if (c->rank == (int32_t)(a->life.start.rank_base + a->failed[i].exit.local_rank) &&
            c->pid == a->failed[i].exit.pid)
            return &a->failed[i];
    return NULL;
}

static uint32_t count_lines(const struct mu_buf *b)
{
    uint32_t lines = 0;
    for (size_t i = 0; i < b->n; i++)
        lines += b->p[i] == '\n';
    return lines;
}

/* Those of this node that failed because of it, where none failed before: one line. */
static void say_consequences(const struct agent *a)
{
    char name[16];
    uint32_t shown =
        a->consequence_count < CONSEQUENCES_MAX ? a->consequence_count : CONSEQUENCES_MAX;
    if (a->consequence_count == 0 || a->failed_count > 0)
        return;
    MU_CLEANUP(mu_buf_fini) struct mu_buf b;
    mu_buf_init(&b, mu_mem_default());
    (void)mu_buf_addf(&b, "after that, on %s:", a->life.config.hello.host);
    for (uint32_t i = 0; i < shown; i++) {
        const struct work_exit *e = &a->consequences[i];
        (void)mu_buf_addf(&b, "%s rank %u (pid %d) ", i > 0 ? "," : "",
                          (uint32_t)a->life.start.rank_base + e->local_rank, e->pid);
        if (e->status > 0)
            (void)mu_buf_addf(&b, "exited with status %d", e->status);
        else
            (void)mu_buf_addf(&b, "was ended by %s", mu_signal_name(-e->status, name));
    }
    if (a->consequence_count > shown)
        (void)mu_buf_addf(&b, " and %u more failed", a->consequence_count - shown);
    say(a, mu_buf_cstr(&b));
}

/* lines: how long it may be. */
static void report_failures(const struct agent *a, uint32_t lines)
{
    if (a->failed_count == 0 || a->life.success)
        return;
    struct report_worker *w = mu_zalloc(mu_mem_default(), a->failed_count * sizeof *w);
    if (w == NULL)
        return;
    const struct failed *cause = cause_here(a);
    for (uint32_t i = 0; i < a->failed_count; i++) {
        const struct failed *f = &a->failed[i];
        w[i] = (struct report_worker){
            .rank = (uint32_t)a->life.start.rank_base + f->exit.local_rank,
            .local_rank = f->exit.local_rank,
            .pid = f->exit.pid,
            .status = f->exit.status,
            .unix_s = f->unix_s,
            .error_file = f->error_path,
            .text = f->error_text,
            .has_output = f->has_output,
            .extra = f->exit.oom_killed ? "killed by the kernel: out of memory" : NULL,
            .is_cause = f == cause};
    }
    MU_CLEANUP(mu_buf_fini) struct mu_buf b;
    mu_buf_init(&b, mu_mem_default());
    report_block(&b, plan_title(a->plan), a->life.config.hello.host, w, a->failed_count, lines);
    put_words(a, b.p, b.n);
    free(w);
}

/* Hand the first failure's error file to whoever launched us, as torchrun does. */
static void copy_error_file(const struct agent *a)
{
    const char *to = getenv("TORCHELASTIC_ERROR_FILE");
    if (to == NULL || to[0] == '\0' || a->failed_count == 0)
        return;
    const struct failed *cause = cause_here(a);
    const struct failed *f = cause != NULL ? cause : &a->failed[0];
    if (f->error_path == NULL)
        return;
    struct mu_err err = {0};
    if (plan_copy_error(f->error_path, to, f->exit.status, &err) < 0)
        say_err(a, &err);
}

/* What failed elsewhere, and where the rest of the story is: one line. */
static void say_where_more(const struct agent *a)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._";
    const struct life *l = &a->life;
    bool asked = l->server_lasts && l->incident > 0 && a->run_id[strspn(a->run_id, plain)] == '\0';
    const struct mu_endpoint *server = &a->o->endpoint;
    bool v6 = strchr(server->host, ':') != NULL;
    uint32_t here = a->consequence_count + (a->failed_count > 0 ? a->failed_count - 1 : 0);
    if (!asked && l->consequences <= here)
        return;
    MU_CLEANUP(mu_buf_fini) struct mu_buf b;
    mu_buf_init(&b, mu_mem_default());
    if (l->consequences > 0)
        (void)mu_buf_addf(&b, "%" PRId64 " more failed after it", l->consequences);
    if (asked)
        (void)mu_buf_addf(&b, "%sall about it: muster incidents %s %" PRId64 " --rdzv=%s%s%s:%u",
                          l->consequences > 0 ? "; " : "", a->run_id, l->incident, v6 ? "[" : "",
                          server->host, v6 ? "]" : "", server->port);
    say(a, mu_buf_cstr(&b));
}

/* Everybody prints the same first cause. */
static void say_outcome(const struct agent *a)
{
    const struct life *l = &a->life;
    if (l->exit_status == 0 && l->draining && !l->ended) {
        char text[MU_RUN_ID_BYTES + CTL_REASON_BYTES + 80];
        (void)snprintf(text, sizeof text, "this node has left job %s in order (%s)", a->run_id,
                       l->drain_reason);
        say(a, text);
        return;
    }
    if (l->exit_status == 0) {
        if (l->start.round == 0) /* Nothing of ours ever ran: that is no usual success. */
            say(a, "the job ended well without this node, which waited as a spare; another job "
                   "needs a --rdzv-id of its own");
        return;
    }
    char within[LIFE_WITHIN_BYTES];
    MU_CLEANUP(mu_buf_fini) struct mu_buf b;
    mu_buf_init(&b, mu_mem_default());
    if (!l->welcomed && l->told_why) { /* It may run well without us. */
        (void)mu_buf_addf(&b, "job %s refuses this node: %s", a->run_id, l->cause.message);
        say(a, mu_buf_cstr(&b));
        return;
    }
    (void)mu_buf_addf(&b, "job %s failed: ", a->run_id);
    mu_cause_sentence(&l->cause, &b);
    if (l->same_failure) {
        (void)mu_buf_adds(&b, "; ");
        mu_cause_twice_sentence(&l->cause, &b);
    }
    if (l->start.round > 0)
        (void)mu_buf_addf(&b, " (round %" PRId64 ", %u of %u restarts%s used%s%s)", l->start.round,
                          l->spent, l->max_restarts, life_within(l, within),
                          l->spent_by[0] != '\0' ? ", by " : "", l->spent_by);
    say(a, mu_buf_cstr(&b));
    mu_buf_reset(&b);
    report_output(&b, a->name, l->cause_output);
    put_words(a, b.p, b.n);
    report_failures(a, REPORT_LINES - 2 - count_lines(&b));
    say_consequences(a);
    say_where_more(a);
    copy_error_file(a);
}

/* ------------------------------------------------------------------ stacks */

/* As much of their beginning as the record holds: the first thread, or who said why it knows
 * nothing. NULL: there is nothing. */
static const char *stacks_of(struct agent *a, uint32_t local_rank)
{
    static char text[MU_TRACE_BYTES];
    struct stacks_worker w;
    for (uint32_t i = 0; i < stacks_count(&a->stacks); i++) {
        const char *all = stacks_text(&a->stacks, i, &w);
        if (w.local_rank != local_rank || all[0] == '\0')
            continue;
        (void)snprintf(text, sizeof text, "%s", all); /* Cut, but for a worker of few threads. */
        return text;
    }
    return NULL;
}

static void write_stacks(struct agent *a)
{
    struct stacks_worker w;
    struct mu_err err = {0};
    for (uint32_t i = 0; a->o->log_dir != NULL && i < stacks_count(&a->stacks); i++) {
        const char *text = stacks_text(&a->stacks, i, &w);
        if (text[0] != '\0' && plan_write_stacks(a->plan, w.local_rank, text, &err) < 0) {
            say_err(a, &err); /* The others would fare no better. */
            return;
        }
    }
}

static void on_stacks(void *arg)
{
    struct agent *a = arg;
    if (stacks_count(&a->stacks) > 0) {
        MU_CLEANUP(mu_buf_fini) struct mu_buf b;
        mu_buf_init(&b, mu_mem_default());
        stacks_describe(&a->stacks, a->o->hang_hook_timeout_ns, &b);
        if (a->o->log_dir != NULL && !a->o->no_files)
            (void)mu_buf_addf(&b, ": see stacks.log of each worker in %s", a->o->log_dir);
        say(a, mu_buf_cstr(&b));
        write_stacks(a);
    }
    if (a->life.state == LIFE_STOPPING) {
        uint32_t named = (uint32_t)(a->life.cause.rank - (int32_t)a->life.start.rank_base);
        step(a,
             &(struct life_event){.type = LIFE_EV_STACKS, .words = {.trace = stacks_of(a, named)}});
    } else if (a->hangs) {
        a->hangs = false;
        tell_hung(a);
    }
}

/* Of all workers that live, the one that hangs first. Returns false where on_stacks() will not
 * come. */
static bool take_stacks(struct agent *a, uint32_t first)
{
    struct stacks_worker v[MU_WORKERS_MAX];
    uint32_t count = 0;
    if (stacks_is_busy(&a->stacks))
        return true;
    for (uint32_t i = 0; i < a->o->nproc; i++) {
        uint32_t local_rank = first >= a->o->nproc ? i : (first + i) % a->o->nproc;
        if (work_is_there(a->work, local_rank))
            v[count++] =
                (struct stacks_worker){.local_rank = local_rank,
                                       .rank = (uint32_t)a->life.start.rank_base + local_rank,
                                       .pid = a->life.pids[local_rank]};
    }
    return stacks_take(&a->stacks, v, count, a->o->hang_hook_timeout_ns);
}

static void on_link_closed(void *arg)
{
    struct agent *a = arg;
    a->link_open = false;
}

static void on_work_closed(void *arg)
{
    struct agent *a = arg;
    a->work_open = false;
}

static void on_goodbye_over(uv_timer_t *t)
{
    struct agent *a = t->data;
    a->goodbye_over = true;
}

/* After each turn of the loop: the link first, then, when nobody needs it any more, the server we
 * host. */
static void look_after_leaving(struct agent *a)
{
    if (a->link_open || a->left || a->output_open ||
        (hosting_is_needed(&a->hosting) && !a->goodbye_over))
        return;
    hosting_close(&a->hosting);
    if (!hosting_is_closed(&a->hosting) || a->work_open)
        return;
    uv_close((uv_handle_t *)&a->goodbye, NULL);
    first_close(&a->first);
    a->left = true;
}

static void say_lost_output(const struct agent *a)
{
    char text[256];
    output_describe_lost(a->output, text, sizeof text);
    if (text[0] != '\0')
        say(a, text);
}

/* All that the workers wrote is out: now our own last words. */
static void on_output_finished(void *arg)
{
    struct agent *a = arg;
    MU_CLEANUP(mu_buf_fini) struct mu_buf report;
    say_lost_output(a);
    a->console_lost = output_lost_console(a->output);
    mu_buf_init(&report, mu_mem_default());
    a->report = &report; /* In one piece: other agents report of the same job to the same reader. */
    say_outcome(a);
    a->report = NULL;
    if (report.n > 0)
        put_words(a, report.p, report.n);
    tell_agent_event(a, a->life.success ? "SUCCEEDED" : "FAILED", -1);
    sigset_t handled; /* What still comes must not end us by its default action. */
    (void)sigemptyset(&handled);
    for (uint32_t i = 0; i < a->signal_count; i++)
        (void)sigaddset(&handled, a->signals[i].signum);
    (void)sigprocmask(SIG_BLOCK, &handled, NULL);
    for (uint32_t i = 0; i < a->signal_count; i++)
        uv_close((uv_handle_t *)&a->signals[i], NULL);
    output_close(a->output);
    a->output_open = false;
}

static void on_output_trouble(void *arg, const char *text)
{
    say(arg, text);
}

static void leave(struct agent *a)
{
    a->leaving = true;
    output_finish(a->output);
    reach_cancel(&a->reach);
    a->lookups_left = link_has_lookups(a->link) || notice_watch_is_busy(&a->notices);
    notice_watch_close(&a->notices);
    link_close(a->link, on_link_closed, a);
    a->stuck = work_is_running(a->work);
    if (a->stuck) /* What the kernel cannot end keeps its handles; the process ends around them. */
        a->work_open = false;
    else
        work_close(a->work, on_work_closed, a);
    uv_close((uv_handle_t *)&a->timer, NULL);
    watchdog_close(&a->watchdog);
    pulse_close(&a->pulse);
    health_close(&a->health);
    late_close(&a->late);
    xid_close(&a->xid);
    stacks_close(&a->stacks);
    inject_close(&a->inject);
    warden_unwatch(a->warden);
    (void)uv_timer_start(&a->goodbye, on_goodbye_over, (uint64_t)(MU_GOODBYE_NS / MU_NS_PER_MS), 0);
}

/* ------------------------------------------------------------------ events and actions */

static void on_timer(uv_timer_t *t)
{
    struct agent *a = t->data;
    a->timer_at_ns = INT64_MAX;
    step(a, &(struct life_event){.type = LIFE_EV_DEADLINE});
}

static void arm_timer(struct agent *a, int64_t now_ns)
{
    if (a->leaving || a->life.deadline_ns == a->timer_at_ns)
        return;
    a->timer_at_ns = a->life.deadline_ns;
    if (a->timer_at_ns == INT64_MAX) {
        (void)uv_timer_stop(&a->timer);
        return;
    }
    int64_t in_ns = a->timer_at_ns > now_ns ? a->timer_at_ns - now_ns : 0;
    uv_update_time(&a->loop); /* Or a stale loop time makes the timer early. */
    (void)uv_timer_start(&a->timer, on_timer, (uint64_t)((in_ns + MU_NS_PER_MS - 1) / MU_NS_PER_MS),
                         0);
}

static void carry_out(struct agent *a, const struct life_action *action)
{
    struct ctl_msg m;
    switch (action->type) {
    case LIFE_ACT_CONNECT:
        link_connect(a->link);
        break;
    case LIFE_ACT_SEND:
        life_message(&a->life, action, &m);
        link_send(a->link, &m);
        break;
    case LIFE_ACT_REACH:
        reach_begin(&a->reach, a->life.start.lead_addr, (uint16_t)a->life.start.lead_port);
        break;
    case LIFE_ACT_CHECK:
        health_begin(&a->health);
        break;
    case LIFE_ACT_SPAWN:
        if (a->o->health_check != NULL)
            health_cancel(&a->health);
        spawn(a);
        break;
    case LIFE_ACT_STACKS:
        if (!take_stacks(a, UINT32_MAX))
            step(a, &(struct life_event){.type = LIFE_EV_STACKS});
        break;
    case LIFE_ACT_HALT:
        mu_log(MU_INFO, "workers.halt", "job=%s round=%" PRId64 " step=%d", a->run_id,
               a->life.start.round, a->life.halt_step);
        work_ask_stop_after(a->work, a->life.halt_step);
        break;
    case LIFE_ACT_SIGNAL:
        if (!a->life.leaving) /* Where we are told to leave, nobody asks what failed. */
            work_note_falling(a->work);
        work_ask_stop(a->work); /* First: who is asked before the signal comes can end in order. */
        work_signal(a->work, a->life.signo);
        break;
    case LIFE_ACT_KILL:
        if (a->life.alive > 0)
            mu_log(MU_INFO, "workers.kill", "job=%s round=%" PRId64 " count=%u", a->run_id,
                   a->life.start.round, a->life.alive);
        work_kill(a->work);
        break;
    case LIFE_ACT_SAY:
        say(a, a->life.words + action->arg);
        break;
    case LIFE_ACT_EXIT:
        leave(a);
        break;
    }
}

static void log_moves(const struct agent *a, const struct life_out *out)
{
    for (uint32_t i = 0; i < out->move_count; i++)
        if (out->moves[i].from != out->moves[i].to)
            mu_log(MU_INFO, "life.move", "job=%s round=%" PRId64 " ev=%s %s->%s", a->run_id,
                   a->life.start.round, life_event_name(out->moves[i].event),
                   life_state_name(out->moves[i].from), life_state_name(out->moves[i].to));
}

/* Actions may step again (SPAWN, a link that is lost while sending), so they are copied first. */
static void step(struct agent *a, struct life_event *ev)
{
    struct life_out out;
    int64_t now_ns = mu_now_ns();
    ev->unix_ms = mu_unix_ms();
    if (life_step(&a->life, now_ns, ev, &out) < 0) {
        mu_log(MU_ERROR, "life.rejected", "state=%s ev=%s", life_state_name(a->life.state),
               life_event_name(ev->type));
        return;
    }
    log_moves(a, &out);
    struct life_action few[8];
    struct life_action *actions =
        out.count <= MU_COUNT(few) ? few : mu_alloc(mu_mem_default(), out.count * sizeof *actions);
    MU_ASSERT(actions != NULL);
    memcpy(actions, out.actions, out.count * sizeof *actions);
    uint32_t count = out.count;
    for (uint32_t i = 0; i < count; i++)
        carry_out(a, &actions[i]);
    if (actions != few)
        free(actions);
    arm_timer(a, now_ns);
    late_follow(&a->late, a->life.state == LIFE_JOINING && !a->leaving);
}

/* ------------------------------------------------------------------ the link's news */

/* Static, as torchrun has it: workers find their store where the nodes met, address and port as
 * typed. */
static void share_rdzv(struct agent *a)
{
    struct ctl_hello *h = &a->life.config.hello;
    if (a->o->rdzv != AGENT_RDZV_STATIC || a->rank0_serves_store || a->o->store_port != 0)
        return;
    hosting_store_at_rdzv(&a->hosting);
    if (h->local_addr[0] == '\0')
        (void)mu_strcopy(h->local_addr, sizeof h->local_addr,
                         a->o->endpoint.host); /* Else as seen. */
}

/* Where others look for us. A host's own name is a loopback address in many a /etc/hosts; to the
 * other nodes it is not. */
static const char *serving_address(const struct agent *a, const char *host)
{
    const char *typed = a->o->endpoint.host;
    if (a->o->serves_everywhere)
        return "*";
    struct mu_addr numeric;
    bool meant = a->o->nodes_max == 1 || strstr(typed, "localhost") != NULL ||
                 mu_addr_parse(typed, 0, &numeric) == 0;
    return mu_addr_is_loopback(host) && !meant ? "*" : host;
}

/* We serve at a port that was typed, and a server of this host listens at the usual one. */
static void say_other_server(const struct agent *a, const char *host, uint16_t port)
{
    enum {
        USUAL = 29500
    };
    char words[96];
    char text[400];
    if (port == USUAL ||
        strstr(mu_holder_words(host, USUAL, words, sizeof words), "rdzv-server") == NULL)
        return;
    (void)snprintf(text, sizeof text,
                   "nobody listened at port %u, so this agent serves the rendezvous there itself; "
                   "a server%s listens at port %d of this host: did you mean --rdzv=%.120s:%d?",
                   port, words, USUAL, a->o->endpoint.host, USUAL);
    say(a, text);
}

/* Nobody listens there, and it is us: serve. */
static bool on_nobody_listens(void *arg, const char *host, uint16_t port)
{
    struct agent *a = arg;
    uint16_t got = port;
    struct mu_err err = {0};
    if (a->hosting.rdzv != NULL || a->o->is_host == 0 || !mu_addr_is_local(host))
        return false;
    const char *met = host;
    host = serving_address(a, host);
    int r = hosting_serve_rdzv(&a->hosting, host, port, &got, &err);
    if (r < 0 && r != -EADDRINUSE) { /* In use: another agent on this host was faster. */
        say_err(a, &err);
        return false;
    }
    link_set_port(a->link, got);
    if (r == 0) {
        a->life.config.serves = true;
        share_rdzv(a);
        say_other_server(a, met, got);
    }
    mu_log(MU_INFO, "rdzv.host", "address=%s port=%u ours=%d", host, got, r == 0);
    return true;
}

/* The worker store is reached where the server reaches us; a name the user gave may lead anywhere.
 * Reached over loopback we share the server's host, which says nothing of the other nodes, unless
 * the server listens there alone. */
static void choose_store_host(struct agent *a)
{
    struct hosting *h = &a->hosting;
    link_local_address(a->link, h->store_host);
    if (a->o->nodes_max > 1 && mu_addr_is_loopback(h->store_host) &&
        !mu_holder_is_loopback_only(a->o->endpoint.port))
        (void)mu_strcopy(h->store_host, sizeof h->store_host, "*"); /* It fits. */
}

static void on_up(void *arg, const char *text)
{
    struct agent *a = arg;
    struct mu_err err = {0};
    uint16_t port = 0;
    if (a->o->rdzv != AGENT_RDZV_STANDALONE) {
        char local[MU_ADDR_BYTES];
        link_local_address(a->link, local);
        a->life.config.hello.life_port = hosting_life_port(&a->hosting, local);
    }
    if (a->hosting.next_store_fd < 0 && a->hosting.store == NULL) {
        if (a->o->local_addr == NULL || a->o->rdzv == AGENT_RDZV_STANDALONE)
            choose_store_host(a);
        if (hosting_reserve_store(&a->hosting, &port, &err) < 0)
            say_err(a, &err);
        life_set_store_port(&a->life, port);
    }
    step(a, &(struct life_event){.type = LIFE_EV_LINK_UP, .text = text});
}

static void on_lost(void *arg, bool stranger, const char *text)
{
    struct agent *a = arg;
    char full[512];
    char holder[96] = "";
    mu_log(MU_INFO, "link.lost", "reason=\"%s\"", text);
    const char *server = link_server_address(a->link);
    if (stranger && mu_addr_is_local(server))
        (void)mu_holder_words(server, a->o->endpoint.port, holder, sizeof holder);
    (void)snprintf(full, sizeof full, "%s%s", text, holder);
    step(a, &(struct life_event){.type = LIFE_EV_LINK_LOST, .stranger = stranger, .text = full});
}

static void on_reach(void *arg, bool reached, const char *text)
{
    struct agent *a = arg;
    step(a,
         &(struct life_event){.type = reached ? LIFE_EV_REACHED : LIFE_EV_UNREACHED, .text = text});
}

static void on_failed(void *arg, bool refused, const char *text)
{
    struct agent *a = arg;
    mu_log(MU_DEBUG, "link.failed", "reason=\"%s\"", text);
    step(a, &(struct life_event){.type = LIFE_EV_LINK_FAILED, .refused = refused, .text = text});
}

static void on_message(void *arg, const struct ctl_msg *m)
{
    static const int events[CTL_TYPE_COUNT] = {
        [CTL_WELCOME] = LIFE_EV_WELCOME + 1, [CTL_REFUSED] = LIFE_EV_REFUSED + 1,
        [CTL_WAITING] = LIFE_EV_WAITING + 1, [CTL_START] = LIFE_EV_START + 1,
        [CTL_GO] = LIFE_EV_GO + 1,           [CTL_HALT] = LIFE_EV_HALT + 1,
        [CTL_STOP] = LIFE_EV_STOP + 1,       [CTL_BEAT] = LIFE_EV_BEAT + 1,
        [CTL_END] = LIFE_EV_END + 1};
    struct agent *a = arg;
    if (m->type == CTL_STOP && a->life.state == LIFE_FINISHED)
        renew_store(a); /* Nothing of ours runs: STOPPED goes out at once. */
    if (events[m->type] == 0) {
        mu_log(MU_WARN, "link.unexpected", "type=%s", ctl_type_name(m->type));
        return;
    }
    step(a, &(struct life_event){.type = (enum life_event_type)(events[m->type] - 1), .msg = m});
}

/* This node is to leave in order. */
static void drain(struct agent *a, const char *reason, int64_t timeout_ns)
{
    step(a, &(struct life_event){.type = LIFE_EV_DRAIN, .text = reason, .timeout_ns = timeout_ns});
}

/* This machine is about to be taken away. */
static void on_notice(void *arg, const struct notice *n)
{
    struct agent *a = arg;
    int64_t left_ns = a->o->drain_timeout_ns;
    if (n->left_ms >= 0) {
        int64_t told_ns = n->left_ms < MU_DRAIN_MAX_NS / MU_NS_PER_MS ? n->left_ms * MU_NS_PER_MS
                                                                      : MU_DRAIN_MAX_NS;
        left_ns = told_ns > MU_DRAIN_MARGIN_NS ? told_ns - MU_DRAIN_MARGIN_NS : 0;
    }
    mu_log(MU_INFO, "node.notice", "job=%s left_ms=%" PRId64, a->run_id, left_ns / MU_NS_PER_MS);
    drain(a, n->reason, left_ns);
}

static void on_notice_trouble(void *arg, const char *text)
{
    say(arg, text);
}

/* Words for what the service that started us did; NULL: it has nothing to do with it. */
static const char *owners_words(const struct agent *a, char *ret, size_t cap)
{
    pid_t pid = 0;
    enum warden_owner owner = warden_owner(a->warden, &pid);
    if (owner == WARDEN_OWNER_OTHER)
        return NULL;
    if (owner == WARDEN_OWNER_DIED)
        (void)snprintf(ret, cap, "its service (node-agent --service, pid %d) died", (int)pid);
    else
        (void)snprintf(
            ret, cap,
            "its service (node-agent --service, pid %d) ended it with SIGKILL, on request",
            (int)pid);
    return ret;
}

static void tell_signal(struct agent *a, int signo)
{
    char words[160];
    struct life_event ev = {.type = LIFE_EV_SIGNAL, .signo = signo};
    if (signo == SIGTERM)
        ev.text = owners_words(a, words, sizeof words);
    ev.by_owner = ev.text != NULL;
    step(a, &ev);
}

static void on_signal(uv_signal_t *s, int signo)
{
    struct agent *a = s->data;
    if (a->leaving) { /* Only a reader of the workers' output is still waited for. */
        output_abandon(a->output);
        return;
    }
    if (a->told_signo == 0)
        a->told_signo = signo;
    if (signo == SIGUSR1 && a->usr1_drains)
        drain(a, "told to stop by SIGUSR1", a->o->drain_timeout_ns);
    else
        tell_signal(a, signo);
}

/* What the kernel does not wake is ended as if we had been told to stop: here nothing would start
 * again. */
static void on_stuck(void *arg, const char *text)
{
    struct agent *a = arg;
    step(a, &(struct life_event){.type = LIFE_EV_SIGNAL, .signo = SIGTERM, .text = text});
}

/* A worker hangs, and the user has set a limit for that. */
static void tell_hung(struct agent *a)
{
    const struct hang_verdict *v = &a->hang;
    char since[32];
    char last[48] = "";
    char text[MU_MESSAGE_BYTES];
    int64_t still_ns = a->hang_ns - v->since_ns;
    const struct talk_said *said = work_said(a->work, v->local_rank);
    if (a->life.state != LIFE_RUNNING)
        return; /* It is being stopped already. */
    (void)mu_iso8601(mu_unix_ms() - (mu_now_ns() - v->since_ns) / MU_NS_PER_MS, since);
    if (v->has_step)
        (void)snprintf(last, sizeof last, ", the last step was %" PRId64, v->step);
    MU_CLEANUP(mu_buf_fini) struct mu_buf b;
    mu_buf_init(&b, mu_mem_default());
    (void)mu_buf_addf(&b, "%s since %s (%.1f s; %s %.1f s)%s%s",
                      v->by_progress ? "no step" : "no sign of life", since,
                      (double)still_ns / (double)(1000 * MU_NS_PER_MS),
                      v->in_section ? "its section's limit is"
                      : v->by_progress && a->o->progress_timeout_ns == HANG_LEARNED
                          ? "the limit, ten times the longest step before or a minute, is"
                          : "the limit is",
                      (double)v->limit_ns / (double)(1000 * MU_NS_PER_MS), last,
                      v->stopped ? ", it is stopped by a signal" : "");
    if (v->in_section && said != NULL)
        (void)mu_buf_addf(&b, ", in section '%s'", said->section);
    (void)snprintf(text, sizeof text, "%s", mu_buf_cstr(&b));
    (void)take_last_lines(a, v->local_rank);
    step(a, &(struct life_event){.type = LIFE_EV_HUNG,
                                 .local_rank = v->local_rank,
                                 .text = text,
                                 .words = {.output = a->last_lines,
                                           .tail = a->tail,
                                           .trace = stacks_of(a, v->local_rank)}});
}

/* Its stacks first: the round goes on meanwhile, as it has for long. */
static void on_hung(void *arg, const struct hang_verdict *v, int64_t now_ns)
{
    struct agent *a = arg;
    a->hang = *v;
    a->hang_ns = now_ns;
    a->hangs = a->life.state == LIFE_RUNNING;
    if (a->hangs && !take_stacks(a, v->local_rank))
        on_stacks(a);
}

static void on_health(void *arg, enum health_verdict verdict, const char *text)
{
    struct agent *a = arg;
    step(a, &(struct life_event){.type = LIFE_EV_CHECKED, .verdict = verdict, .text = text});
}

static void on_silent(void *arg, struct ctl_ints workers)
{
    struct agent *a = arg;
    if (a->life.state == LIFE_RUNNING)
        step(a, &(struct life_event){.type = LIFE_EV_SILENT, .silent = workers});
}

static void on_warden_lost(void *arg)
{
    char words[160];
    struct agent *a = arg;
    step(a, &(struct life_event){.type = LIFE_EV_OWNER_GONE,
                                 .text = owners_words(a, words, sizeof words)});
}

/* ------------------------------------------------------------------ setting up */

static int make_hello(struct agent *a, struct ctl_hello *h, struct mu_err *err)
{
    const struct agent_options *o = a->o;
    struct ctl_msg m;
    ctl_init(&m, CTL_HELLO);
    *h = m.u.hello;
    int r = facts_fill(h, err);
    if (r < 0)
        return r;
    if (mu_strcopy(h->version, sizeof h->version, MUSTER_VERSION) < 0 ||
        mu_strcopy(h->run_id, sizeof h->run_id, a->run_id) < 0 ||
        mu_strcopy(h->role, sizeof h->role, o->role) < 0 ||
        mu_strcopy(h->topology, sizeof h->topology, o->topology != NULL ? o->topology : "") < 0 ||
        mu_strcopy(h->local_addr, sizeof h->local_addr,
                   o->local_addr != NULL ? o->local_addr : "") < 0)
        return mu_err_set(err, -ENAMETOOLONG,
                          "--rdzv-id, --role, --topology or --local-addr is too long");
    h->nodes_min = o->nodes_min;
    h->nodes_max = o->nodes_max;
    h->nproc = o->nproc;
    h->max_restarts = o->max_restarts;
    h->restart_window_ms = o->restart_window_ns / MU_NS_PER_MS;
    h->give_back_ms = o->give_back_ns / MU_NS_PER_MS;
    h->give_back_steps = o->give_back_steps;
    h->same_failure_restart = o->same_failure_restart;
    h->node_rank = o->node_rank;
    h->join_timeout_ms = o->join_timeout_ns / MU_NS_PER_MS;
    h->last_call_ms = o->last_call_ns / MU_NS_PER_MS;
    h->on_join_restart = o->on_join_restart;
    h->leave_quarantine = o->leave_quarantine;
    return 0;
}

static bool hook_is_off(const struct agent_options *o)
{
    return o->hang_hook != NULL && o->hang_hook[0] == '\0';
}

static int make_life(struct agent *a, struct mu_err *err)
{
    struct life_config c = {.grace_ns = a->o->shutdown_timeout_ns,
                            .join_timeout_ns = a->o->connect_timeout_ns,
                            .server_timeout_ns = a->o->server_timeout_ns,
                            .checks_health = a->o->health_check != NULL,
                            .recheck_ns = a->o->health_interval_ns,
                            .stacks_ns = hook_is_off(a->o) ? 0 : a->o->hang_hook_timeout_ns,
                            .seed = (uint64_t)mu_now_ns() ^ (uint64_t)getpid() << 32};
    int r = make_hello(a, &c.hello, err);
    if (r < 0)
        return r;
    (void)snprintf(c.server, sizeof c.server, "%s:%u", a->o->endpoint.host, a->o->endpoint.port);
    if (a->o->rdzv != AGENT_RDZV_STANDALONE)
        (void)snprintf(c.meeting, sizeof c.meeting, "job '%s' at %s:%u", a->run_id,
                       a->o->endpoint.host, a->o->endpoint.port);
    if (life_init(&a->life, mu_mem_default(), mu_now_ns(), &c) < 0)
        return mu_err_set(err, -ENOMEM, "no memory");
    return 0;
}

static int make_plan(struct agent *a, struct mu_err *err)
{
    extern char **environ;
    static const enum plan_kind kinds[] = {[AGENT_PROGRAM_AUTO] = PLAN_AUTO,
                                           [AGENT_PROGRAM_MODULE] = PLAN_MODULE,
                                           [AGENT_PROGRAM_RUN_PATH] = PLAN_RUN_PATH,
                                           [AGENT_PROGRAM_DIRECT] = PLAN_PLAIN};
    const struct agent_options *o = a->o;
    struct plan_config c = {.nproc = o->nproc,
                            .role = o->role,
                            .run_id = a->run_id,
                            .max_restarts = o->max_restarts,
                            .kind = kinds[o->program_kind],
                            .program = o->program,
                            .args = (const char *const *)o->args,
                            .python = NULL,
                            .log_dir = o->log_dir,
                            .redirects = o->any_redirect ? o->redirects : NULL,
                            .tee = o->any_tee ? o->tee : NULL,
                            .quiet = o->any_quiet ? o->quiet : NULL,
                            .label = o->label,
                            .line_prefix = o->line_prefix,
                            .copy_words = {o->copy_words[0], o->copy_words[1]},
                            .numa = o->numa,
                            .virtual_local_rank = o->virtual_local_rank,
                            .signals_to_handle = o->signals_text,
                            .has_sockets = true,
                            .environment = environ};
    int r = plan_new(&c, &a->plan, err);
    if (r < 0)
        return r;
    for (unsigned i = 0; plan_warning(a->plan, i) != NULL; i++)
        say(a, plan_warning(a->plan, i));
    return 0;
}

static int make_link(struct agent *a, struct mu_err *err)
{
    struct link_events e = {.arg = a,
                            .on_nobody_listens = on_nobody_listens,
                            .on_up = on_up,
                            .on_lost = on_lost,
                            .on_failed = on_failed,
                            .on_message = on_message};
    struct mu_endpoint server = a->o->endpoint;
    if (a->o->rdzv == AGENT_RDZV_STANDALONE) {
        uint16_t port = 0;
        int r = hosting_serve_rdzv(&a->hosting, "127.0.0.1", 0, &port, err);
        if (r < 0)
            return mu_err_wrap(err, "--standalone");
        server = (struct mu_endpoint){.host = "127.0.0.1", .port = port, .has_port = true};
    }
    if (link_new(&a->loop, &server, &e, &a->link) < 0)
        return mu_err_set(err, -ENOMEM, "no memory");
    if (mu_token_is_set(&a->prover.token))
        link_use_token(a->link, &a->prover);
    return 0;
}

/* Under nohup(1) the end of the terminal is no reason to end. torchrun ends all the same. */
static bool is_nohup(int signo)
{
    struct sigaction now;
    return signo == SIGHUP && sigaction(signo, NULL, &now) == 0 && now.sa_handler == SIG_IGN;
}

static int watch_signal(struct agent *a, int signo, struct mu_err *err)
{
    uv_signal_t *s = &a->signals[a->signal_count];
    int r = uv_signal_init(&a->loop, s);
    if (r < 0)
        return mu_err_set(err, r, "signals: %s", uv_strerror(r));
    a->signal_count++;
    s->data = a;
    r = uv_signal_start(s, on_signal, signo);
    if (r < 0)
        return mu_err_set(err, r, "--signals-to-handle: signal %d cannot be handled: %s", signo,
                          uv_strerror(r));
    return 0;
}

static int watch_signals(struct agent *a, struct mu_err *err)
{
    int r = 0;
    (void)signal(SIGTTOU, SIG_IGN); /* Our group is in the background: `stty tostop` must not stop
                                       us. Workers get the default back. */
    a->usr1_drains = true;
    for (uint32_t i = 0; r == 0 && i < a->o->signal_count; i++) {
        a->usr1_drains = a->usr1_drains && a->o->signals[i] != SIGUSR1;
        if (!is_nohup(a->o->signals[i]))
            r = watch_signal(a, a->o->signals[i], err);
    }
    return r == 0 && a->usr1_drains ? watch_signal(a, SIGUSR1, err) : r;
}

/* As far as our own part goes, before anything is opened: later it would be told by whatever came
 * last. *ret_raised: *ret is what the workers get. *ret_inherit: there are too few to carry output
 * for its last lines alone. */
static int check_files(const struct agent_options *o,
                       struct rlimit *ret,
                       bool *ret_raised,
                       bool *ret_inherit,
                       struct mu_err *err)
{
    bool carried = o->any_redirect || o->any_tee || o->any_quiet || o->label;
    rlim_t output = OUTPUT_OWN_FILES + (rlim_t)OUTPUT_FILES * o->nproc;
    rlim_t needed = OWN_FILES + (rlim_t)WORKER_FILES * o->nproc + (carried ? output : 0);
    rlim_t wanted = needed + (!carried && o->last_lines > 0 ? output : 0);
    *ret_raised = false;
    *ret_inherit = false;
    if (getrlimit(RLIMIT_NOFILE, ret) < 0)
        return 0;
    if (ret->rlim_cur >= wanted) {
        mu_files_make_room(wanted);
        return 0;
    }
    *ret_inherit = ret->rlim_max < wanted;
    if (ret->rlim_max < needed)
        return mu_err_set(err, -EMFILE,
                          "the limit of open files is %llu, and an agent with %u workers needs "
                          "%llu: raise it (ulimit -n, or LimitNOFILE= of a unit)",
                          (unsigned long long)ret->rlim_max, o->nproc, (unsigned long long)needed);
    struct rlimit raised = {.rlim_cur = wanted < ret->rlim_max ? wanted : ret->rlim_max,
                            .rlim_max = ret->rlim_max};
    *ret_raised = setrlimit(RLIMIT_NOFILE, &raised) == 0;
    mu_files_make_room(raised.rlim_cur);
    return 0;
}

static void say_chaos(void *arg, const char *text)
{
    say(arg, text);
}

static int set_up(struct agent *a, struct mu_err *err)
{
    const char *apart = getenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE");
    struct work_events we = {
        .arg = a, .on_exit = on_exit_of_worker, .on_all_gone = on_all_gone, .on_said = on_said};
    struct output_events oe = {
        .arg = a, .on_trouble = on_output_trouble, .on_finished = on_output_finished};
    int r = a->o->run_id != NULL ? mu_strcopy(a->run_id, sizeof a->run_id, a->o->run_id)
                                 : facts_uuid(a->run_id);
    if (r < 0)
        return mu_err_set(err, r, "--rdzv-id: at most %d characters", MU_RUN_ID_BYTES - 1);
    a->rank0_serves_store = apart != NULL && strcmp(apart, "1") == 0;
    a->failed = mu_zalloc(mu_mem_default(), a->o->nproc * sizeof *a->failed);
    if (a->failed == NULL)
        return mu_err_set(err, -ENOMEM, "no memory");
    if (watchdog_init(&a->watchdog, &a->loop, a->o->nproc, a->o->d_state_ns, on_stuck, a) < 0)
        return mu_err_set(err, -ENOMEM, "no memory");
    const struct hang_limits hl = {.progress_ns = a->o->progress_timeout_ns,
                                   .silence_ns = a->o->silence_timeout_ns};
    const struct pulse_events pe = {.arg = a, .on_hung = on_hung, .on_silent = on_silent};
    if (pulse_init(&a->pulse, &a->loop, a->o->nproc, &hl, &pe) < 0)
        return mu_err_set(err, -ENOMEM, "no memory");
    xid_init(&a->xid, &a->loop);
    health_init(&a->health, &a->loop, a->o->health_check, a->o->health_timeout_ns, on_health, a);
    /* A check of the node's own has the one place for a guest, and says as much. */
    bool looks =
        !a->o->no_doctor && a->o->health_check == NULL && a->o->rdzv != AGENT_RDZV_STANDALONE;
    late_init(&a->late, &a->loop, looks ? &a->o->endpoint : NULL, a->o->connect_timeout_ns,
              say_late, a);
    r = make_plan(a, err);
    if (r == 0)
        r = make_life(a, err);
    if (r == 0)
        r = make_link(a, err);
    if (r == 0)
        r = watch_signals(a, err);
    if (r == 0)
        r = work_new(&a->loop, &we, &a->work, err);
    if (r == 0 && a->files_raised)
        work_give_files(a->work, &a->files);
    if (r == 0)
        first_use(&a->first, a->work, note_exit, a);
    if (r == 0)
        r = output_new(&a->loop, &oe, &a->output, err);
    if (r == 0)
        pulse_use(&a->pulse, a->work, a->output);
    health_use(&a->health, a->work);
    late_use(&a->late, a->work);
    a->notices.arg = a;
    a->notices.on_notice = on_notice;
    a->notices.on_trouble = on_notice_trouble;
    if (r == 0)
        r = notice_watch_init(&a->notices, &a->loop, a->o->preemption_url,
                              getenv("MUSTER_METADATA_HOST"), err);
    if (r == 0)
        r = warden_watch(a->warden, &a->loop, on_warden_lost, a);
    if (r < 0)
        return r;
    warden_note_cgroup(a->warden, work_cgroup(a->work));
    bool in_memory = false;
    const char *logs = plan_log_base(a->plan, &in_memory);
    warden_note_logs(a->warden, logs, in_memory);
    inject_init(&a->inject, &a->loop, &a->o->chaos, a->o->log_dir, say_chaos, a);
    inject_use(&a->inject, a->work, a->link);
    a->link_open = true;
    a->work_open = true;
    a->output_open = true;
    mu_log_divert(put_log_line, a);
    a->started_ns = a->joining_ns = mu_now_ns();
    return 0;
}

/* 1 as torchrun, or 65 where starting again does not help; unless the first failing worker's own
 * status is wanted, or the signal that told us to stop. */
static int exit_status_of(const struct agent *a)
{
    const struct mu_cause *c = &a->life.cause;
    if (a->life.exit_status == 0 && a->console_lost)
        return 1;
    if (a->life.exit_status == 0 || !a->o->exit_status_first)
        return a->life.exit_status;
    if (a->told_signo != 0 && (!a->life.has_cause || c->kind == MU_CAUSE_NODE_LEFT))
        return 128 + a->told_signo;
    if (!a->life.has_cause)
        return 1;
    if (c->kind == MU_CAUSE_WORKER_EXIT && c->exit_code > 0)
        return c->exit_code;
    return c->kind == MU_CAUSE_WORKER_SIGNAL ? 128 + c->signo : a->life.exit_status;
}

static int take_token(struct agent *a, struct mu_err *err)
{
    struct mu_token token;
    int r = mu_token_read_daemon(a->o->token_file, getenv("CREDENTIALS_DIRECTORY"), &token, err);
    if (r == 0 && mu_token_is_set(&token))
        r = mu_prover_init(&a->prover, &token, NULL, err);
    mu_token_wipe(&token);
    return r;
}

int agent_run(const struct agent_options *options, struct warden *warden, const char *name)
{
    static struct agent a; /* One a process; big. */
    struct mu_err err = {0};
    a = (struct agent){.o = options, .name = name, .warden = warden, .timer_at_ns = INT64_MAX};
    if (check_files(options, &a.files, &a.files_raised, &a.files_inherit, &err) < 0) {
        say_err(&a, &err);
        return 1;
    }
    if (take_token(&a, &err) < 0) {
        say_err(&a, &err);
        return 2;
    }
    int made = uv_loop_init(&a.loop);
    if (made < 0) {
        (void)mu_err_set(&err, made, "cannot start: %s", uv_strerror(made));
        say_err(&a, &err);
        return 1;
    }
    hosting_init(&a.hosting, &a.loop);
    a.hosting.token = &a.prover.token;
    a.hosting.store_port_wanted = options->store_port;
    a.reach = (struct reach){.loop = &a.loop, .on_result = on_reach, .arg = &a};
    (void)uv_timer_init(&a.loop, &a.timer);
    (void)uv_timer_init(&a.loop, &a.goodbye);
    first_init(&a.first, &a.loop);
    stacks_init(&a.stacks, &a.loop, options->hang_hook, on_stacks, &a);
    a.timer.data = &a;
    a.goodbye.data = &a;
    if (set_up(&a, &err) < 0) {
        say_err(&a, &err);
        plan_free(a.plan);
        return 1; /* The process ends here: nothing was started, the kernel takes the rest. */
    }
    step(&a, &(struct life_event){.type = LIFE_EV_DEADLINE});
    while (uv_run(&a.loop, UV_RUN_ONCE) != 0) {
        if (a.leaving)
            look_after_leaving(&a);
        if (a.left && (a.stuck || a.lookups_left))
            break;
    }
    plan_cleanup(a.plan);
    int status = exit_status_of(&a);
    forget_failures(&a);
    free(a.failed);
    plan_free(a.plan);
    mu_prover_fini(&a.prover);
    life_fini(&a.life);
    stacks_fini(&a.stacks);
    (void)uv_loop_close(&a.loop);
    if (a.lookups_left) { /* libuv would wait for its threads. */
        (void)fflush(NULL);
        _exit(status);
    }
    return status;
}
