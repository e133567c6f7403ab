/* The agent at work; see agent.h. A callback turns what happened into an event, steps agent/life,
 * and carries out its actions. */
#include "agent/agent.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/events.h"
#include "agent/first.h"
#include "agent/hosting.h"
#include "agent/life/life.h"
#include "agent/link/facts.h"
#include "agent/link/link.h"
#include "agent/watchdog.h"
#include "agent/workers/output.h"
#include "agent/workers/plan.h"
#include "agent/workers/report.h"
#include "agent/workers/work.h"
#include "base/mem.h"
#include "base/addr.h"
#include "base/clock.h"

/* A worker that failed in the present round, for the report. */
struct failed {
    struct work_exit exit;
    int64_t unix_s;
    char *error_path;
    char *error_text;
    char *last_lines; /* What it wrote last, of the first one, where that passes through us. */
};

enum {
    LAST_LINES = 10,
    LAST_LINES_BYTES = 2048,
    LAST_LINES_MS = 200, /* The pump may be held up by a disk. */
    OUTPUT_FILES = 6     /* Descriptors of a worker whose output passes through us, at most. */
};

struct agent {
    const struct agent_options *o;
    const char *name;
    struct warden *warden;
    uv_loop_t loop;
    struct life life;
    struct link *link;
    struct work *work;
    struct output *output;
    struct plan *plan;
    int64_t started_ns; /* For events: the agent's start, and the present join's. */
    int64_t joining_ns;
    struct hosting hosting;
    struct watchdog watchdog;
    uv_timer_t timer;
    int64_t timer_at_ns;
    struct first first; /* Exits on their way from `work`. */
    uv_timer_t goodbye; /* Limit of waiting for others that need our server. */
    bool stuck;         /* Processes of the round do not end after SIGKILL. */
    bool left;          /* Everything is closed but what the loop closes by itself. */
    uv_signal_t signals[AGENT_SIGNALS_MAX];
    uint32_t signal_count;
    char run_id[MU_RUN_ID_BYTES];
    struct failed *failed; /* nproc entries. */
    uint32_t failed_count;
    bool leaving; /* EXIT was decided: handles are being closed. */
    bool link_open;
    bool work_open;
    bool output_open;
    bool goodbye_over;
    bool rank0_serves_store; /* As the user wants it: torchrun's TORCH_DISABLE_SHARE_RDZV_TCP_STORE.
                              */
};

static void step(struct agent *a, struct life_event *ev);

/* ------------------------------------------------------------------ words */

/* Whole lines on stderr. */
static void put_words(const struct agent *a, const char *p, size_t n)
{
    if (a->output != NULL && a->output_open) {
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
    for (const char *p = text; *p != '\0'; p++) {
        unsigned char c = (unsigned char)*p;
        if (c < 0x20 || c == 0x7f)
            (void)mu_buf_addf(&b, "\\x%02x", c);
        else
            (void)mu_buf_add(&b, p, 1);
    }
    (void)mu_buf_adds(&b, "\n");
    put_words(a, b.p, b.n);
}

static void say_err(const struct agent *a, const struct mu_err *err)
{
    say(a, err->msg);
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
        free(a->failed[i].last_lines);
    }
    a->failed_count = 0;
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
    a->joining_ns = mu_now_ns();
    if (a->life.state == LIFE_STOPPING)
        renew_store(a);
    step(a, &(struct life_event){.type = LIFE_EV_ALL_GONE});
}

/* What the first one to fail wrote last: its own words, where it left no error file. */
static void note_last_lines(struct agent *a, struct failed *f, struct plan_error *pe)
{
    char text[LAST_LINES_BYTES];
    if (f != a->failed)
        return;
    output_last_lines(a->output, f->exit.local_rank, LAST_LINES, LAST_LINES_MS, text, sizeof text);
    if (text[0] == '\0')
        return;
    f->last_lines = mu_strdup(mu_mem_default(), text);
    /* Whoever is ended from outside has said nothing of it. */
    bool from_outside = f->exit.status == -SIGKILL || f->exit.status == -SIGTERM;
    if (!pe->found && !from_outside)
        plan_error_last_line(pe, text);
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

/* Does the report speak of it? What ends because we stop it does not, nor what fails here after a
 * failure elsewhere: its cause is told by those who saw it. */
static bool is_of_interest(const struct agent *a, const struct work_exit *e)
{
    if (e->status == 0 || a->life.state == LIFE_RUNNING)
        return e->status != 0;
    return a->failed_count > 0 && e->status != -a->life.signo && e->status != -SIGKILL;
}

static void note_exit(void *arg, const struct work_exit *e)
{
    struct agent *a = arg;
    struct life_event ev = {
        .type = LIFE_EV_WORKER_EXIT, .local_rank = e->local_rank, .status = e->status};
    struct plan_error pe = {0};
    if (is_of_interest(a, e))
        ev.text = note_failure(a, e, &pe);
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
    const struct agent *a = arg;
    uint32_t rank = (uint32_t)a->life.start.rank_base + local_rank;
    char name[80];
    if (news == TALK_PROGRESS)
        mu_log(MU_DEBUG, "worker.progress", "job=%s round=%" PRId64 " rank=%u step=%" PRId64,
               a->run_id, a->life.start.round, rank, said->step);
    else if (news == TALK_SECTION)
        mu_log(MU_DEBUG, "worker.section", "job=%s round=%" PRId64 " rank=%u name=%s", a->run_id,
               a->life.start.round, rank,
               mu_quote(name, sizeof name, mu_str_of(said->section, strlen(said->section))));
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
    if (round->shown != NULL || round->stdout_path != NULL || round->stderr_path != NULL)
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
    int r = prepare_round(a, &round, &err);
    bool nothing_started = r < 0;
    if (r == 0)
        r = work_start(a->work, &round, pids, &failed, &err);
    output_started(a->output);
    warden_note_cgroup(a->warden, work_cgroup(a->work)); /* A killed one was replaced. */
    if (r == 0) {
        tell_started(a, pids);
        watchdog_start(&a->watchdog, pids);
        step(a, &(struct life_event){.type = LIFE_EV_SPAWNED, .pids = pids});
        return;
    }
    say_err(a, &err);
    step(a,
         &(struct life_event){.type = LIFE_EV_SPAWN_FAILED, .local_rank = failed, .text = err.msg});
    if (nothing_started)
        on_all_gone(a);
}

/* ------------------------------------------------------------------ the end */

static void report_failures(const struct agent *a)
{
    if (a->failed_count == 0 || a->life.success)
        return;
    struct report_worker *w = mu_zalloc(mu_mem_default(), a->failed_count * sizeof *w);
    if (w == NULL)
        return;
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
            .output = f->last_lines,
            .extra = f->exit.oom_killed ? "killed by the kernel: out of memory" : NULL};
    }
    MU_CLEANUP(mu_buf_fini) struct mu_buf b;
    mu_buf_init(&b, mu_mem_default());
    report_block(&b, plan_title(a->plan), a->life.config.hello.host, w, a->failed_count);
    put_words(a, b.p, b.n);
    free(w);
}

/* Hand the first failure's error file to whoever launched us, as torchrun does. */
static void copy_error_file(const struct agent *a)
{
    const char *to = getenv("TORCHELASTIC_ERROR_FILE");
    if (to == NULL || to[0] == '\0' || a->failed_count == 0 || a->failed[0].error_path == NULL)
        return;
    struct mu_err err = {0};
    if (plan_copy_error(a->failed[0].error_path, to, a->failed[0].exit.status, &err) < 0)
        say_err(a, &err);
}

/* Everybody prints the same first cause. */
static void say_outcome(const struct agent *a)
{
    const struct life *l = &a->life;
    if (l->exit_status == 0) {
        if (l->start.round == 0) /* Nothing of ours ever ran: that is no usual success. */
            say(a, "the job ended well without this node, which waited as a spare; another job "
                   "needs a --rdzv-id of its own");
        return;
    }
    MU_CLEANUP(mu_buf_fini) struct mu_buf b;
    mu_buf_init(&b, mu_mem_default());
    (void)mu_buf_addf(&b, "job %s failed: ", a->run_id);
    mu_cause_sentence(&l->cause, &b);
    if (l->start.round > 0)
        (void)mu_buf_addf(&b, " (round %" PRId64 ", %u of %u restarts used)", l->start.round,
                          l->restarts, l->max_restarts);
    say(a, mu_buf_cstr(&b));
    report_failures(a);
    copy_error_file(a);
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
    say_lost_output(a);
    say_outcome(a);
    tell_agent_event(a, a->life.success ? "SUCCEEDED" : "FAILED", -1);
    sigset_t handled; /* What still comes must not end us by its default action. */
    (void)sigemptyset(&handled);
    for (uint32_t i = 0; i < a->signal_count; i++)
        (void)sigaddset(&handled, a->o->signals[i]);
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
    link_close(a->link, on_link_closed, a);
    a->stuck = work_is_running(a->work);
    if (a->stuck) /* What the kernel cannot end keeps its handles; the process ends around them. */
        a->work_open = false;
    else
        work_close(a->work, on_work_closed, a);
    uv_close((uv_handle_t *)&a->timer, NULL);
    watchdog_close(&a->watchdog);
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
    case LIFE_ACT_SPAWN:
        spawn(a);
        break;
    case LIFE_ACT_SIGNAL:
        work_ask_stop(a->work); /* First: who is asked before the signal comes can end in order. */
        work_signal(a->work, a->life.signo);
        break;
    case LIFE_ACT_KILL:
        if (a->life.alive > 0)
            mu_log(MU_WARN, "workers.kill", "job=%s round=%" PRId64 " count=%u", a->run_id,
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
}

/* ------------------------------------------------------------------ the link's news */

/* Static, as torchrun has it: workers find their store where the nodes met, address and port as
 * typed. */
static void share_rdzv(struct agent *a)
{
    struct ctl_hello *h = &a->life.config.hello;
    if (a->o->rdzv != AGENT_RDZV_STATIC || a->rank0_serves_store)
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

/* Nobody listens there, and it is us: serve. */
static bool on_nobody_listens(void *arg, const char *host, uint16_t port)
{
    struct agent *a = arg;
    uint16_t got = port;
    struct mu_err err = {0};
    if (a->hosting.rdzv != NULL || a->o->is_host == 0 || !mu_addr_is_local(host))
        return false;
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
    }
    mu_log(MU_INFO, "rdzv.host", "address=%s port=%u ours=%d", host, got, r == 0);
    return true;
}

/* The worker store is reached where the server reaches us; a name the user gave may lead anywhere.
 * Reached over loopback we share the server's host, which says nothing of the other nodes. */
static void choose_store_host(struct agent *a)
{
    struct hosting *h = &a->hosting;
    link_local_address(a->link, h->store_host);
    if (a->o->nodes_max > 1 && mu_addr_is_loopback(h->store_host))
        (void)mu_strcopy(h->store_host, sizeof h->store_host, "*"); /* It fits. */
}

static void on_up(void *arg, const char *text)
{
    struct agent *a = arg;
    struct mu_err err = {0};
    uint16_t port = 0;
    if (a->o->rdzv != AGENT_RDZV_STANDALONE)
        a->life.config.hello.life_port = hosting_life_port(&a->hosting);
    if (a->hosting.next_store_fd < 0) {
        if (a->o->local_addr == NULL || a->o->rdzv == AGENT_RDZV_STANDALONE)
            choose_store_host(a);
        if (a->hosting.store == NULL && hosting_reserve_store(&a->hosting, &port, &err) < 0)
            say_err(a, &err);
        life_set_store_port(&a->life, port);
    }
    step(a, &(struct life_event){.type = LIFE_EV_LINK_UP, .text = text});
}

static void on_lost(void *arg, const char *text)
{
    struct agent *a = arg;
    mu_log(MU_INFO, "link.lost", "reason=\"%s\"", text);
    step(a, &(struct life_event){.type = LIFE_EV_LINK_LOST, .text = text});
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

static void on_signal(uv_signal_t *s, int signo)
{
    struct agent *a = s->data;
    if (a->leaving) { /* Only a reader of the workers' output is still waited for. */
        output_abandon(a->output);
        return;
    }
    step(a, &(struct life_event){.type = LIFE_EV_SIGNAL, .signo = signo});
}

/* What the kernel does not wake is ended as if we had been told to stop: here nothing would start
 * again. */
static void on_stuck(void *arg, const char *text)
{
    struct agent *a = arg;
    step(a, &(struct life_event){.type = LIFE_EV_SIGNAL, .signo = SIGTERM, .text = text});
}

static void on_warden_lost(void *arg)
{
    struct agent *a = arg;
    step(a, &(struct life_event){.type = LIFE_EV_OWNER_GONE});
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
    h->node_rank = o->node_rank;
    h->join_timeout_ms = o->join_timeout_ns / MU_NS_PER_MS;
    h->last_call_ms = o->last_call_ns / MU_NS_PER_MS;
    h->on_join_restart = o->on_join_restart;
    return 0;
}

static int make_life(struct agent *a, struct mu_err *err)
{
    struct life_config c = {.grace_ns = a->o->shutdown_timeout_ns,
                            .join_timeout_ns = a->o->connect_timeout_ns,
                            .server_timeout_ns = a->o->server_timeout_ns,
                            .seed = (uint64_t)mu_now_ns() ^ (uint64_t)getpid() << 32};
    int r = make_hello(a, &c.hello, err);
    if (r < 0)
        return r;
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
    return link_new(&a->loop, &server, &e, &a->link) < 0 ? mu_err_set(err, -ENOMEM, "no memory")
                                                         : 0;
}

/* Under nohup(1) the end of the terminal is no reason to end. torchrun ends all the same. */
static bool is_nohup(int signo)
{
    struct sigaction now;
    return signo == SIGHUP && sigaction(signo, NULL, &now) == 0 && now.sa_handler == SIG_IGN;
}

static int watch_signals(struct agent *a, struct mu_err *err)
{
    (void)signal(SIGTTOU, SIG_IGN); /* Our group is in the background: `stty tostop` must not stop
                                       us. Workers get the default back. */
    for (uint32_t i = 0; i < a->o->signal_count; i++) {
        if (is_nohup(a->o->signals[i]))
            continue;
        uv_signal_t *s = &a->signals[a->signal_count];
        int r = uv_signal_init(&a->loop, s);
        if (r < 0)
            return mu_err_set(err, r, "signals: %s", uv_strerror(r));
        a->signal_count++;
        s->data = a;
        r = uv_signal_start(s, on_signal, a->o->signals[i]);
        if (r < 0)
            return mu_err_set(err, r, "--signals-to-handle: signal %d cannot be handled: %s",
                              a->o->signals[i], uv_strerror(r));
    }
    return 0;
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
    r = make_plan(a, err);
    if (r == 0)
        r = make_life(a, err);
    if (r == 0)
        r = make_link(a, err);
    if (r == 0)
        r = watch_signals(a, err);
    if (r == 0)
        r = work_new(&a->loop, &we, &a->work, err);
    if (r == 0)
        first_use(&a->first, a->work, note_exit, a);
    if (r == 0)
        r = output_new(&a->loop, &oe, &a->output, err);
    if (r == 0)
        r = warden_watch(a->warden, &a->loop, on_warden_lost, a);
    if (r < 0)
        return r;
    warden_note_cgroup(a->warden, work_cgroup(a->work));
    a->link_open = true;
    a->work_open = true;
    a->output_open = true;
    mu_log_divert(put_log_line, a);
    a->started_ns = a->joining_ns = mu_now_ns();
    return 0;
}

/* 1 as torchrun, unless the first failing worker's own status is wanted. */
static int exit_status_of(const struct agent *a)
{
    const struct mu_cause *c = &a->life.cause;
    if (a->life.exit_status != 1 || !a->o->exit_status_first || !a->life.has_cause)
        return a->life.exit_status;
    if (c->kind == MU_CAUSE_WORKER_EXIT && c->exit_code > 0)
        return c->exit_code;
    return c->kind == MU_CAUSE_WORKER_SIGNAL ? 128 + c->signo : 1;
}

int agent_run(const struct agent_options *options, struct warden *warden, const char *name)
{
    static struct agent a; /* One a process; big. */
    struct mu_err err = {0};
    a = (struct agent){.o = options, .name = name, .warden = warden, .timer_at_ns = INT64_MAX};
    int made = uv_loop_init(&a.loop);
    if (made < 0) {
        (void)mu_err_set(&err, made, "cannot start: %s", uv_strerror(made));
        say_err(&a, &err);
        return 1;
    }
    hosting_init(&a.hosting, &a.loop);
    (void)uv_timer_init(&a.loop, &a.timer);
    (void)uv_timer_init(&a.loop, &a.goodbye);
    first_init(&a.first, &a.loop);
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
        if (a.left && a.stuck)
            break;
    }
    plan_cleanup(a.plan);
    int status = exit_status_of(&a);
    forget_failures(&a);
    free(a.failed);
    plan_free(a.plan);
    life_fini(&a.life);
    (void)uv_loop_close(&a.loop);
    return status;
}
