/* Service mode's loop; see service.h. A callback makes an event, steps the book or the line, and
 * carries out what comes of it. */
#include "agent/service/service.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <uv.h>

#include "agent/link/facts.h"
#include "agent/link/link.h"
#include "agent/service/book.h"
#include "agent/service/handover.h"
#include "agent/service/line.h"
#include "agent/service/run.h"
#include "agent/service/spec.h"
#include "agent/service/tail.h"
#include "agent/service/trust.h"
#include "base/proof.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/manager.h"
#include "base/mem.h"

enum {
    UNSENT_BYTES = 512 * 1024, /* Of output for a server that is behind; beats come through. */
    SETTLE_MS = 5,             /* Between two looks whether the disk has what it was given, */
    SETTLES_MAX = 1000,        /* and how many, before a new start is put off. */
    FILES_OF_A_JOB = 4         /* Its process, two pipes, its file. */
};

struct service {
    const struct agent_options *o;
    char **argv;
    const char *name;
    uv_loop_t loop;
    uv_timer_t timer;
    uv_timer_t watchdog;
    uv_timer_t settle;
    uint32_t settles;
    uv_signal_t signals[4];
    struct link *link;
    struct line line;
    struct svc_book book;
    struct svc_out out;
    struct runs runs;
    struct cgroups cgroups;
    struct kept logs;
    struct tails tails;
    struct ctl_msg offer;
    struct ctl_msg msg;
    const struct ctl_assign *assign; /* While it is being taken. */
    struct spec spec;
    struct arena arena;
    char **job_argv;
    char **job_envp;
    char token_file[1024];
    struct mu_prover prover; /* No token: none is asked for. */
    char server[MU_HOST_BYTES + 16];
    char user[64];
    char home[1024];
    char exe[1024];
    char trouble[400]; /* What was last said of a server that is not there. */
    bool dropping;
    bool reloading;
    bool leaving;
    int64_t timer_at_ns;
};

static void step(struct service *s, const struct svc_event *ev);
static void arm(struct service *s);

/* ------------------------------------------------------------------ saying */

static void tell_status(struct service *s, const char *more)
{
    char text[400];
    (void)snprintf(text, sizeof text, "%sSTATUS=%s %s, %u jobs%s", more,
                   s->line.state == LINE_READY ? "on offer to" : "waiting for", s->server,
                   svc_live_count(&s->book), s->book.draining ? ", draining" : "");
    mu_manager_notify(text);
}

static void send_placed(struct service *s, const struct svc_action *a)
{
    ctl_init(&s->msg, CTL_PLACED);
    struct ctl_placed *p = &s->msg.u.placed;
    (void)mu_strcopy(p->job, sizeof p->job, a->job);
    (void)mu_strcopy(p->text, sizeof p->text, a->text);
    p->attempt = a->attempt;
    p->state = a->placed;
    p->status = a->entry >= 0 ? s->book.entries[a->entry].status : 0;
    link_send(s->link, &s->msg);
}

static void send_has(struct service *s, int32_t entry)
{
    ctl_init(&s->msg, CTL_HAS);
    struct ctl_has *h = &s->msg.u.has;
    if (entry >= 0) {
        const struct svc_entry *e = &s->book.entries[entry];
        memcpy(h->job, e->job, sizeof h->job);
        h->attempt = e->attempt;
        h->state = e->state == SVC_ENDED;
        h->status = e->status;
        h->submitted_ms = e->submitted_ms;
    }
    link_send(s->link, &s->msg);
}

static void send_release(struct service *s, const char *job)
{
    ctl_init(&s->msg, CTL_RELEASE);
    (void)mu_strcopy(s->msg.u.release.job, sizeof s->msg.u.release.job, job);
    link_send(s->link, &s->msg);
}

static void send_drain(struct service *s)
{
    ctl_init(&s->msg, CTL_DRAIN);
    (void)mu_strcopy(s->msg.u.drain.reason, sizeof s->msg.u.drain.reason, "SIGUSR1");
    s->msg.u.drain.timeout_ms = s->o->drain_timeout_ns / MU_NS_PER_MS;
    link_send(s->link, &s->msg);
}

static void send_beat(struct service *s)
{
    ctl_init(&s->msg, CTL_BEAT);
    s->msg.u.beat.seq = (int64_t)s->line.seq;
    s->book.seq = s->line.seq;
    link_send(s->link, &s->msg);
}

/* ------------------------------------------------------------------ jobs */

static struct run *run_of(struct service *s, int32_t entry)
{
    struct run *r = s->runs.first;
    while (r != NULL && r->entry != entry)
        r = r->next;
    return r;
}

static struct spec_place place_of(const struct service *s, const struct ctl_assign *a)
{
    extern char **environ;
    return (struct spec_place){.server = s->server,
                               .token_file = s->token_file[0] != '\0' ? s->token_file : NULL,
                               .local_addr = s->o->local_addr,
                               .job = a->job,
                               .nproc = (uint32_t)a->nproc,
                               .gpus = a->gpus.v,
                               .gpu_count = a->gpus.n,
                               .node_gpus = (uint32_t)s->offer.u.offer.gpus,
                               .visible = getenv("CUDA_VISIBLE_DEVICES"),
                               .user = s->user,
                               .home = s->home,
                               .service_pid = (int)getpid(),
                               .environment = environ};
}

/* Read and check what is to be run: "" or why it cannot be. */
static void prepare(struct service *s, const struct ctl_assign *a, struct mu_err *err)
{
    struct spec_place place = place_of(s, a);
    if (!kept_is_name(a->job)) {
        (void)mu_err_set(err, -EINVAL, "its id is no name for a file");
        return;
    }
    if (spec_read(a->spec, &s->spec, err) < 0)
        return;
    if (spec_build(&s->spec, &place, &s->arena, &s->job_argv, &s->job_envp, err) == 0)
        (void)spec_check(&s->spec, &place, s->job_envp, err);
}

static uint32_t live_attempt(void *arg, const char *job);

/* From now on the id is this job's, even if it cannot be started here. */
static void claim_output(struct service *s, const struct ctl_assign *a)
{
    char aside[KEPT_ASIDE_BYTES];
    if (kept_claim(&s->logs, a->job, (uint32_t)a->attempt, a->submitted_ms, aside) > 0)
        mu_log(MU_WARN, "service.namesake",
               "job=%s moved_to=%s text=\"output of another job of this id, submitted before, is "
               "kept under that name\"",
               a->job, aside);
}

static void take_assign(struct service *s, const struct ctl_assign *a)
{
    struct mu_err err = {0};
    struct svc_event ev = {.type = SVC_EV_ASSIGN,
                           .job = a->job,
                           .attempt = (uint32_t)a->attempt,
                           .submitted_ms = a->submitted_ms,
                           .nproc = (uint32_t)a->nproc};
    if (live_attempt(s, a->job) == 0 && kept_is_name(a->job))
        claim_output(s, a);
    prepare(s, a, &err);
    ev.text = err.code != 0 ? err.msg : NULL;
    s->assign = a;
    step(s, &ev);
    s->assign = NULL;
    spec_free(&s->spec);
    arena_reset(&s->arena);
}

/* The book's START. False: it could not be, and the book has heard of it. */
static bool start(struct service *s, int32_t entry)
{
    struct mu_err err = {0};
    struct run *r = NULL;
    const struct svc_entry *e = &s->book.entries[entry];
    struct run_plan plan = {.entry = entry,
                            .job = e->job,
                            .attempt = e->attempt,
                            .argv = s->job_argv,
                            .envp = s->job_envp,
                            .cwd = s->spec.cwd};
    if (run_start(&s->runs, &plan, &r, &err) < 0) {
        step(s, &(struct svc_event){.type = SVC_EV_FAILED, .entry = entry, .text = err.msg});
        return false;
    }
    mu_log(MU_INFO, "service.start", "job=%s attempt=%u pid=%d nproc=%u", e->job, e->attempt,
           (int)r->pid, e->nproc);
    tell_status(s, "");
    return true;
}

static void say_placed(const struct service *s, const struct svc_action *a)
{
    char shown[SVC_TEXT_BYTES + 8];
    if (a->placed == SVC_PLACED_REFUSED)
        mu_log(MU_WARN, "service.refused", "job=%s attempt=%u why=%s", a->job, a->attempt,
               mu_quote(shown, sizeof shown, mu_str_of(a->text, strlen(a->text))));
    if (a->placed == SVC_PLACED_ENDED && a->entry >= 0)
        mu_log(MU_INFO, "service.end", "job=%s attempt=%u code=%d", a->job, a->attempt,
               (int)s->book.entries[a->entry].status);
}

static void leave(struct service *s);

/* A copy of the actions: carrying one out may step the book again. Returns false when the job that
 * was to be started is not, so that nothing more is to be said of it. */
static bool carry_out(struct service *s, const struct svc_action *a)
{
    struct run *r = a->entry >= 0 ? run_of(s, a->entry) : NULL;
    switch (a->type) {
    case SVC_ACT_START:
        return start(s, a->entry);
    case SVC_ACT_SIGNAL:
        if (r != NULL)
            run_signal(r, a->signo);
        break;
    case SVC_ACT_KILL:
        if (r != NULL)
            run_kill(r);
        break;
    case SVC_ACT_ABANDON:
        if (r != NULL)
            run_abandon(r);
        break;
    case SVC_ACT_PLACED:
        say_placed(s, a);
        send_placed(s, a);
        break;
    case SVC_ACT_HAS:
        send_has(s, a->entry);
        break;
    case SVC_ACT_RELEASE:
        send_release(s, a->job);
        break;
    case SVC_ACT_DRAINS:
        send_drain(s);
        break;
    case SVC_ACT_LEAVE:
        leave(s);
        break;
    }
    return true;
}

static void step(struct service *s, const struct svc_event *ev)
{
    static const char *const names[] = {"ASSIGN",  "FAILED", "EXITED",  "EMPTY", "UNASSIGN",
                                        "WELCOME", "LOST",   "ANSWER",  "GONE",  "DRAIN",
                                        "UNDRAIN", "STOP",   "DEADLINE"};
    int r = svc_step(&s->book, mu_now_ns(), ev, &s->out);
    if (r < 0)
        mu_log(MU_WARN, "service.unexpected", "ev=%s entry=%d", names[ev->type], (int)ev->entry);
    uint32_t count = s->out.count;
    size_t bytes = count * sizeof s->out.a[0];
    MU_CLEANUP(mu_freep)
    struct svc_action *actions = count > 0 ? mu_alloc(mu_mem_default(), bytes) : NULL;
    if (actions != NULL)
        memcpy(actions, s->out.a, bytes);
    for (uint32_t i = 0; actions != NULL && i < count; i++)
        if (!carry_out(s, &actions[i]))
            break;
    arm(s);
}

/* ------------------------------------------------------------------ processes and files */

static void on_exited(void *arg, struct run *r, int status)
{
    struct service *s = arg;
    char text[80];
    (void)snprintf(text, sizeof text,
                   status >= 128 ? "its agent was ended by signal %d"
                                 : "its agent ended with status %d",
                   status >= 128 ? status - 128 : status);
    step(s, &(struct svc_event){
                .type = SVC_EV_EXITED, .entry = r->entry, .status = status, .text = text});
}

static void on_output(void *arg, struct run *r)
{
    struct service *s = arg;
    tails_kick(&s->tails, r->job);
}

static void on_tick(uv_timer_t *t);

/* Taken care of from the loop: the run may be in the middle of something. */
static void on_empty(void *arg, struct run *r)
{
    struct service *s = arg;
    (void)r;
    s->timer_at_ns = 0;
    (void)uv_timer_start(&s->timer, on_tick, 0, 0);
}

static void bury_empty(struct service *s)
{
    for (struct run *r = s->runs.first, *next = NULL; r != NULL; r = next) {
        char job[MU_RUN_ID_BYTES];
        int32_t entry = r->entry;
        next = r->next;
        if (!r->empty_said)
            continue;
        memcpy(job, r->job, sizeof job);
        uint64_t lost = keeper_lost(r->log);
        if (lost > 0)
            mu_log(MU_WARN, "service.lost", "job=%s lines=%" PRIu64 " why=\"%s\"", job, lost,
                   strerror(keeper_error(r->log)));
        run_free(r);
        step(s, &(struct svc_event){.type = SVC_EV_EMPTY, .entry = entry});
        tails_kick(&s->tails, job);
        tell_status(s, "");
        kept_sweep(&s->logs);
        cgroups_sweep(&s->cgroups);
    }
}

static uint32_t live_attempt(void *arg, const char *job)
{
    const struct service *s = arg;
    for (const struct run *r = s->runs.first; r != NULL; r = r->next)
        if (strcmp(r->job, job) == 0)
            return r->attempt;
    return 0;
}

static bool is_live(void *arg, const char *job)
{
    return live_attempt(arg, job) != 0;
}

static void on_gone(void *arg, const char *job)
{
    step(arg, &(struct svc_event){.type = SVC_EV_GONE, .job = job});
}

static void on_log_trouble(void *arg, const char *text)
{
    char shown[400];
    (void)arg;
    mu_log(MU_WARN, "service.disk", "why=%s",
           mu_quote(shown, sizeof shown, mu_str_of(text, strlen(text))));
}

/* ------------------------------------------------------------------ the server */

static void drop(struct service *s)
{
    s->dropping = true;
    link_hold(s->link, true);
    link_hold(s->link, false);
    s->dropping = false;
}

static void say_waiting(struct service *s)
{
    char since[MU_SPAN_BYTES];
    mu_log(MU_WARN, "service.waiting", "server=%s since=%s why=\"%s\"", s->server,
           mu_span_text((mu_now_ns() - s->line.away_since_ns) / MU_NS_PER_MS, false, since),
           s->trouble[0] != '\0' ? s->trouble : "no answer yet");
}

static void line(struct service *s, enum line_event ev, int64_t beat_ns, int64_t lease_ns)
{
    unsigned todo = line_step(&s->line, mu_now_ns(), ev, beat_ns, lease_ns);
    if ((todo & LINE_WORD) != 0)
        say_waiting(s);
    if ((todo & LINE_OFFER) != 0)
        link_send(s->link, &s->offer);
    if ((todo & LINE_BEAT) != 0)
        send_beat(s);
    if ((todo & LINE_CONNECT) != 0)
        link_connect(s->link);
    if ((todo & LINE_DROP) != 0)
        drop(s);
    arm(s);
}

static void on_up(void *arg, const char *text)
{
    struct service *s = arg;
    (void)snprintf(s->trouble, sizeof s->trouble, "%s", text);
    line(s, LINE_EV_UP, 0, 0);
}

static void on_lost(void *arg, bool stranger, const char *text)
{
    struct service *s = arg;
    bool was_ready = s->line.state == LINE_READY;
    (void)stranger;
    if (!s->dropping)
        (void)snprintf(s->trouble, sizeof s->trouble, "%s", text);
    if (was_ready && !s->reloading)
        mu_log(MU_WARN, "service.lost_server", "server=%s why=\"%s\", jobs run on", s->server,
               s->dropping ? "it answers no more" : s->trouble);
    tails_drop_all(&s->tails);
    line(s, LINE_EV_LOST, 0, 0);
    step(s, &(struct svc_event){.type = SVC_EV_LOST});
    tell_status(s, "");
}

static void on_failed(void *arg, bool refused, const char *text)
{
    struct service *s = arg;
    (void)refused;
    (void)snprintf(s->trouble, sizeof s->trouble, "%s", text);
    line(s, LINE_EV_FAILED, 0, 0);
}

static void on_welcome(struct service *s, const struct ctl_welcome *w)
{
    line(s, LINE_EV_WELCOME, w->beat_ms * MU_NS_PER_MS, w->lease_ms * MU_NS_PER_MS);
    mu_log(MU_INFO, "service.offered", "server=%s slots=%u gpus=%d jobs=%u", s->server,
           s->book.slots, (int)s->offer.u.offer.gpus, svc_live_count(&s->book));
    s->trouble[0] = '\0';
    s->book.seq = s->line.seq;
    step(s, &(struct svc_event){.type = SVC_EV_WELCOME});
    tell_status(s, "");
}

static void on_refused(struct service *s, const struct ctl_refused *r)
{
    char shown[sizeof s->trouble];
    (void)mu_quote(shown, sizeof shown, mu_str_of(r->text, strlen(r->text)));
    mu_log(MU_WARN, "service.not_taken", "server=%s why=%s, asking again", s->server, shown);
    line(s, LINE_EV_REFUSED, 0, 0);
    (void)snprintf(s->trouble, sizeof s->trouble, "the server refuses this node");
}

static void undrain(struct service *s)
{
    mu_log(MU_INFO, "service.undrain", "jobs=%u", svc_live_count(&s->book));
    step(s, &(struct svc_event){.type = SVC_EV_UNDRAIN});
    tell_status(s, "");
}

static void take_message(struct service *s, const struct ctl_msg *m)
{
    if (m->type == CTL_WELCOME)
        on_welcome(s, &m->u.welcome);
    else if (m->type == CTL_REFUSED)
        on_refused(s, &m->u.refused);
    else if (s->line.state != LINE_READY)
        return; /* Not before it has taken our offer. */
    else if (m->type == CTL_BEAT)
        step(s, &(struct svc_event){.type = SVC_EV_ANSWER, .seq = (uint64_t)m->u.beat.seq});
    else if (m->type == CTL_ASSIGN)
        take_assign(s, &m->u.assign);
    else if (m->type == CTL_UNASSIGN)
        step(s, &(struct svc_event){.type = SVC_EV_UNASSIGN,
                                    .job = m->u.unassign.job,
                                    .attempt = (uint32_t)m->u.unassign.attempt,
                                    .signo = (int)m->u.unassign.signo,
                                    .grace_ns = m->u.unassign.grace_ms * MU_NS_PER_MS});
    else if (m->type == CTL_UNDRAIN)
        undrain(s);
    else if (m->type == CTL_TAIL)
        tails_begin(&s->tails, &m->u.tail);
    else if (m->type == CTL_MORE)
        tails_more(&s->tails, &m->u.more);
    else if (m->type == CTL_UNTAIL)
        tails_end(&s->tails, (uint32_t)m->u.untail.stream);
}

static void on_message(void *arg, const struct ctl_msg *m)
{
    struct service *s = arg;
    line(s, LINE_EV_HEARD, 0, 0);
    take_message(s, m);
}

static void gather(void *arg, bool on)
{
    link_gather(((struct service *)arg)->link, on);
}

static bool has_room(void *arg)
{
    const struct service *s = arg;
    return link_unsent(s->link) < UNSENT_BYTES;
}

static void send_output(void *arg, const struct ctl_msg *m)
{
    const struct service *s = arg;
    link_send(s->link, m);
}

/* ------------------------------------------------------------------ time */

static void on_tick(uv_timer_t *t)
{
    struct service *s = t->data;
    s->timer_at_ns = INT64_MAX;
    bury_empty(s);
    if (s->leaving)
        return;
    if (svc_deadline(&s->book) <= mu_now_ns())
        step(s, &(struct svc_event){.type = SVC_EV_DEADLINE});
    line(s, LINE_EV_DEADLINE, 0, 0);
    arm(s);
}

static void arm(struct service *s)
{
    int64_t now_ns = mu_now_ns();
    int64_t at = svc_deadline(&s->book);
    int64_t line_at = line_deadline(&s->line);
    at = line_at < at ? line_at : at;
    if (s->leaving || at >= s->timer_at_ns)
        return;
    s->timer_at_ns = at;
    int64_t ms = at > now_ns ? (at - now_ns + MU_NS_PER_MS - 1) / MU_NS_PER_MS : 0;
    (void)uv_timer_start(&s->timer, on_tick, (uint64_t)ms, 0);
}

static void on_watchdog(uv_timer_t *t)
{
    tell_status(t->data, "WATCHDOG=1\n");
}

/* ------------------------------------------------------------------ a new start */

static void go_on(struct service *s)
{
    runs_hold(&s->runs, false);
    mu_manager_notify("READY=1");
}

/* The same process, another program: only an exec that fails returns. */
static void start_anew(struct service *s)
{
    char number[16];
    struct mu_err err = {0};
    s->reloading = true;
    drop(s); /* Not in order: to the server this node is away for a moment, not gone. */
    s->reloading = false;
    int fd =
        handover_write(&s->book, &s->runs, s->offer.u.offer.node, s->cgroups.root, mu_now_ns());
    if (fd < 0) {
        mu_log(MU_ERROR, "service.reload", "why=\"no state to hand over: %s\", the old one goes on",
               strerror(-fd));
        go_on(s);
        return;
    }
    sigset_t all;
    sigset_t before;
    (void)sigfillset(&all); /* Until the successor listens: none may end it by default. */
    (void)sigprocmask(SIG_BLOCK, &all, &before);
    (void)snprintf(number, sizeof number, "%d", fd);
    (void)setenv(HANDOVER_VARIABLE, number, 1);
    (void)execv(s->exe, s->argv);
    (void)mu_err_set(&err, -errno, "'%.120s' cannot be started: %s", s->exe, strerror(errno));
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    (void)unsetenv(HANDOVER_VARIABLE);
    handover_keep(&s->runs);
    (void)close(fd);
    mu_log(MU_ERROR, "service.reload", "why=\"%s\", the old one goes on", err.msg);
    go_on(s);
}

/* What was read of the jobs' output is on its way to the disk: it is waited for, or it is lost. */
static void on_settle(uv_timer_t *t)
{
    struct service *s = t->data;
    bury_empty(s);
    if (s->book.stopping) {
        (void)uv_timer_stop(&s->settle);
    } else if (!runs_are_writing(&s->runs)) {
        (void)uv_timer_stop(&s->settle);
        start_anew(s);
    } else if (++s->settles >= SETTLES_MAX) {
        (void)uv_timer_stop(&s->settle);
        mu_log(MU_ERROR, "service.reload",
               "why=\"the disk of --log-dir does not take what jobs wrote\", the old one goes on");
        go_on(s);
    }
}

static void begin_reload(struct service *s)
{
    char text[80];
    if (s->book.stopping || uv_is_active((const uv_handle_t *)&s->settle))
        return;
    (void)snprintf(text, sizeof text, "RELOADING=1\nMONOTONIC_USEC=%" PRId64,
                   mu_now_ns() / MU_NS_PER_US);
    mu_manager_notify(text);
    mu_log(MU_INFO, "service.reload", "jobs=%u", svc_live_count(&s->book));
    s->settles = 0;
    runs_hold(&s->runs, true);
    (void)uv_timer_start(&s->settle, on_settle, 0, SETTLE_MS);
}

/* ------------------------------------------------------------------ signals and the end */

static void on_closed(void *arg)
{
    (void)arg;
}

static void leave(struct service *s)
{
    s->leaving = true;
    ctl_init(&s->msg, CTL_BYE);
    link_send(s->link, &s->msg);
    tails_close(&s->tails);
    link_close(s->link, on_closed, s);
    uv_close((uv_handle_t *)&s->timer, NULL);
    uv_close((uv_handle_t *)&s->watchdog, NULL);
    uv_close((uv_handle_t *)&s->settle, NULL);
    for (size_t i = 0; i < MU_COUNT(s->signals); i++)
        uv_close((uv_handle_t *)&s->signals[i], NULL);
}

static void on_signal(uv_signal_t *handle, int signo)
{
    struct service *s = handle->data;
    if (signo == SIGHUP) {
        begin_reload(s);
    } else if (signo == SIGUSR1) {
        mu_log(MU_INFO, "service.drain", "jobs=%u", svc_live_count(&s->book));
        step(s, &(struct svc_event){.type = SVC_EV_DRAIN});
        tell_status(s, "");
    } else if (!s->book.stopping) {
        runs_hold(&s->runs, false);
        mu_manager_notify("STOPPING=1");
        mu_log(MU_INFO, "service.stop", "signo=%d jobs=%u", signo, svc_live_count(&s->book));
        step(s, &(struct svc_event){.type = SVC_EV_STOP});
    }
}

static int watch_signals(struct service *s)
{
    static const int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1};
    _Static_assert(MU_COUNT(signals) == MU_COUNT(s->signals), "a handle for each");
    sigset_t none;
    int r = 0;
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGXFSZ, SIG_IGN); /* A file beyond its limit is a full disk like others. */
    for (size_t i = 0; r == 0 && i < MU_COUNT(signals); i++) {
        r = uv_signal_init(&s->loop, &s->signals[i]);
        s->signals[i].data = s;
        if (r == 0)
            r = uv_signal_start(&s->signals[i], on_signal, signals[i]);
    }
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL); /* Who started us anew had blocked all. */
    return r;
}

/* ------------------------------------------------------------------ the start */

static void find_user(struct service *s)
{
    const struct passwd *p = getpwuid(geteuid());
    const char *home = p != NULL ? p->pw_dir : getenv("HOME");
    if (p == NULL || mu_strcopy(s->user, sizeof s->user, p->pw_name) < 0)
        (void)snprintf(s->user, sizeof s->user, "%u", (unsigned)geteuid());
    if (home == NULL || mu_strcopy(s->home, sizeof s->home, home) < 0)
        (void)snprintf(s->home, sizeof s->home, "/");
}

/* Where a program of its version is found later, even if this one's file is replaced meanwhile. */
static void find_exe(struct service *s)
{
    ssize_t n = readlink("/proc/self/exe", s->exe, sizeof s->exe - 1);
    s->exe[n > 0 ? n : 0] = '\0';
    char *deleted = strstr(s->exe, " (deleted)");
    if (deleted != NULL)
        *deleted = '\0';
}

static const char *log_dir_of(const struct service *s, char *ret, size_t cap)
{
    const char *given = getenv("LOGS_DIRECTORY"); /* systemd: several are separated by colons. */
    const char *state = getenv("XDG_STATE_HOME");
    int n = 0;
    if (s->o->log_dir != NULL)
        return s->o->log_dir;
    if (given != NULL && given[0] != '\0')
        n = snprintf(ret, cap, "%.*s", (int)strcspn(given, ":"), given);
    else if (geteuid() == 0 || access("/var/log/muster", W_OK) == 0)
        n = snprintf(ret, cap, "/var/log/muster");
    else if (state != NULL && state[0] != '\0')
        n = snprintf(ret, cap, "%s/muster", state);
    else
        n = snprintf(ret, cap, "%s/.local/state/muster", s->home);
    return n > 0 && (size_t)n < cap ? ret : "/var/log/muster";
}

static int fill_offer(struct service *s, struct mu_err *err)
{
    struct ctl_msg facts;
    ctl_init(&facts, CTL_HELLO);
    ctl_init(&s->offer, CTL_OFFER);
    int r = facts_fill(&facts.u.hello, err);
    if (r < 0)
        return r;
    struct ctl_offer *f = &s->offer.u.offer;
    const struct ctl_hello *h = &facts.u.hello;
    uint32_t gpus = agent_machine_real.gpus(getenv("CUDA_VISIBLE_DEVICES"));
    memcpy(f->node, h->node, sizeof f->node);
    memcpy(f->host, h->host, sizeof f->host);
    memcpy(f->host_addr, h->host_addr, sizeof f->host_addr);
    memcpy(f->boot_id, h->boot_id, sizeof f->boot_id);
    (void)mu_strcopy(f->version, sizeof f->version, MUSTER_VERSION);
    (void)mu_strcopy(f->user, sizeof f->user, s->user);
    (void)mu_strcopy(f->local_addr, sizeof f->local_addr,
                     s->o->local_addr != NULL ? s->o->local_addr : "");
    f->pid = getpid();
    f->cpus = h->cpus;
    f->gpus = gpus < MU_WORKERS_MAX ? gpus : MU_WORKERS_MAX;
    f->slots = s->o->slots > 0 ? s->o->slots : f->gpus > 0 ? f->gpus : f->cpus;
    f->slots = f->slots < 1 ? 1 : f->slots > MU_WORKERS_MAX ? MU_WORKERS_MAX : f->slots;
    (void)mu_strcopy(s->logs.host, sizeof s->logs.host, f->host);
    return 0;
}

/* Of a successor: before it takes over what runs. */
static int before_runs(void *arg, const struct handover *h, struct mu_err *err)
{
    struct service *s = arg;
    char dir[MU_DIR_BYTES];
    cgroups_init(&s->cgroups, h->cgroup_root);
    if (h->node[0] != '\0')
        memcpy(s->offer.u.offer.node, h->node, sizeof s->offer.u.offer.node);
    s->logs.lock_fd = h->lock_fd;
    return kept_init(&s->logs, log_dir_of(s, dir, sizeof dir), err);
}

static int make_link(struct service *s, struct mu_err *err)
{
    struct link_events e = {.arg = s,
                            .on_up = on_up,
                            .on_lost = on_lost,
                            .on_failed = on_failed,
                            .on_message = on_message};
    bool v6 = strchr(s->o->endpoint.host, ':') != NULL;
    (void)snprintf(s->server, sizeof s->server, v6 ? "[%s]:%u" : "%s:%u", s->o->endpoint.host,
                   s->o->endpoint.port);
    if (link_new(&s->loop, &s->o->endpoint, &e, &s->link) < 0)
        return mu_err_set(err, -ENOMEM, "no memory");
    if (mu_token_is_set(&s->prover.token))
        link_use_token(s->link, &s->prover);
    return 0;
}

/* What this node obeys must show that it has the token. */
static int take_token(struct service *s, struct mu_err *err)
{
    struct mu_token token;
    int r = trust_find(s->o->token_file, &s->o->endpoint, s->token_file, sizeof s->token_file, err);
    if (r < 0 || s->token_file[0] == '\0')
        return r;
    r = mu_token_read(s->token_file, &token, err);
    if (r == 0)
        r = mu_prover_init(&s->prover, &token, NULL, err);
    mu_token_wipe(&token);
    return r;
}

static int make_parts(struct service *s, struct mu_err *err)
{
    s->runs.loop = s->logs.loop = &s->loop;
    s->runs.logs = s->tails.logs = &s->logs;
    s->runs.cgroups = &s->cgroups;
    s->runs.arg = s->logs.arg = s->tails.arg = s;
    s->runs.on_exited = on_exited;
    s->runs.on_output = on_output;
    s->runs.on_empty = on_empty;
    s->logs.job_bytes = s->o->log_bytes;
    s->logs.all_bytes = s->o->log_bytes_all;
    s->logs.live_attempt = live_attempt;
    s->tails.is_live = is_live;
    s->logs.on_gone = on_gone;
    s->logs.on_trouble = on_log_trouble;
    s->tails.gather = gather;
    s->tails.has_room = has_room;
    s->tails.send = send_output;
    if (runs_init(&s->runs) < 0 || tails_init(&s->tails, &s->loop) < 0)
        return mu_err_set(err, -ENOMEM, "no memory");
    spawn_raise_files(&s->runs.spawner, FILES_OF_A_JOB * SVC_LIVE_MAX + TAILS_MAX);
    return make_link(s, err);
}

static int set_up(struct service *s, struct mu_err *err)
{
    struct handover h;
    uint64_t seed = mu_unix_ms() > 0 ? (uint64_t)mu_now_ns() ^ (uint64_t)getpid() << 32 : 1;
    int r = uv_loop_init(&s->loop);
    if (r < 0)
        return mu_err_set(err, r, "cannot start: %s", uv_strerror(r));
    (void)uv_timer_init(&s->loop, &s->timer); /* These cannot fail. */
    (void)uv_timer_init(&s->loop, &s->watchdog);
    (void)uv_timer_init(&s->loop, &s->settle);
    s->timer.data = s->watchdog.data = s->settle.data = s;
    s->timer_at_ns = INT64_MAX;
    find_user(s);
    find_exe(s);
    r = fill_offer(s, err);
    if (r == 0)
        r = make_parts(s, err);
    if (r < 0)
        return r;
    line_init(&s->line, mu_now_ns(), seed);
    svc_init(&s->book, (uint32_t)s->offer.u.offer.slots, s->o->shutdown_timeout_ns);
    r = handover_read(&s->book, &s->runs, &h, before_runs, s, mu_now_ns(), err);
    if (r < 0)
        return r;
    if (r == 1)
        mu_log(MU_INFO, "service.resumed", "jobs=%u", svc_live_count(&s->book));
    r = watch_signals(s);
    return r < 0 ? mu_err_set(err, r, "signals: %s", uv_strerror(r)) : 0;
}

static void tell_manager(struct service *s)
{
    int64_t every_ns = mu_manager_watchdog_ns();
    uint64_t every_ms = (uint64_t)(every_ns / MU_NS_PER_MS);
    tell_status(s, "READY=1\n");
    if (every_ns > 0)
        (void)uv_timer_start(&s->watchdog, on_watchdog, every_ms > 0 ? every_ms : 1,
                             every_ms > 0 ? every_ms : 1);
}

/* A descriptor opened later must not be taken for one of the first three. */
static void prepare_files(void)
{
    int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    while (fd >= 0 && fd <= STDERR_FILENO) {
        (void)fcntl(fd, F_SETFD, 0);
        fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    }
    if (fd >= 0)
        (void)close(fd);
}

static int complain(const char *name, const struct mu_err *err, int status)
{
    (void)fprintf(stderr, "%s: error: %s\n", name, err->msg);
    return status;
}

int service_run(const struct agent_options *o, char **argv, const char *name)
{
    static struct service s; /* One a process; big. */
    struct mu_err err = {0};
    s.o = o;
    s.argv = argv;
    s.name = name;
    prepare_files();
    mu_log_setup(name, getenv("LOGLEVEL") != NULL ? o->log_level : MU_INFO, o->log_format);
    if (take_token(&s, &err) < 0)
        return complain(name, &err, 2);
    if (set_up(&s, &err) < 0)
        return complain(name, &err, 1);
    kept_sweep(&s.logs);
    cgroups_sweep(&s.cgroups);
    tell_manager(&s);
    line(&s, LINE_EV_DEADLINE, 0, 0);
    bool lookups = false;
    while (uv_run(&s.loop, UV_RUN_ONCE) != 0)
        lookups = !s.leaving && link_has_lookups(s.link);
    cgroups_sweep(&s.cgroups);
    runs_fini(&s.runs);
    kept_fini(&s.logs);
    arena_fini(&s.arena);
    mu_prover_fini(&s.prover);
    if (lookups) { /* libuv would wait for its threads. */
        (void)fflush(NULL);
        _exit(0);
    }
    (void)uv_loop_close(&s.loop);
    return 0;
}
