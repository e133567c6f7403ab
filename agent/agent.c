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

#include "agent/agent_internal.h"
#include "agent/link/facts.h"
#include "agent/workers/warden.h"
#include "base/addr.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/holder.h"
#include "base/mem.h"

/* ------------------------------------------------------------------ leaving */

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
        agent_say(a, text);
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
    agent_say_outcome(a);
    a->report = NULL;
    if (report.n > 0)
        agent_put_words(a, report.p, report.n);
    agent_tell_own_event(a, a->life.success ? "SUCCEEDED" : "FAILED", -1);
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
    agent_say(arg, text);
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
    agent_step(a, &(struct life_event){.type = LIFE_EV_DEADLINE});
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
        agent_spawn(a);
        break;
    case LIFE_ACT_STACKS:
        if (!agent_take_stacks(a, UINT32_MAX))
            agent_step(a, &(struct life_event){.type = LIFE_EV_STACKS});
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
        agent_say(a, a->life.words + action->arg);
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
void agent_step(struct agent *a, struct life_event *ev)
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
    agent_say(a, text);
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
        agent_say_err(a, &err);
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
            agent_say_err(a, &err);
        life_set_store_port(&a->life, port);
    }
    agent_step(a, &(struct life_event){.type = LIFE_EV_LINK_UP, .text = text});
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
    agent_step(a,
               &(struct life_event){.type = LIFE_EV_LINK_LOST, .stranger = stranger, .text = full});
}

static void on_reach(void *arg, bool reached, const char *text)
{
    struct agent *a = arg;
    agent_step(a, &(struct life_event){.type = reached ? LIFE_EV_REACHED : LIFE_EV_UNREACHED,
                                       .text = text});
}

static void on_failed(void *arg, bool refused, const char *text)
{
    struct agent *a = arg;
    mu_log(MU_DEBUG, "link.failed", "reason=\"%s\"", text);
    agent_step(a,
               &(struct life_event){.type = LIFE_EV_LINK_FAILED, .refused = refused, .text = text});
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
        agent_renew_store(a); /* Nothing of ours runs: STOPPED goes out at once. */
    if (events[m->type] == 0) {
        mu_log(MU_WARN, "link.unexpected", "type=%s", ctl_type_name(m->type));
        return;
    }
    agent_step(a,
               &(struct life_event){.type = (enum life_event_type)(events[m->type] - 1), .msg = m});
}

/* This node is to leave in order. */
static void drain(struct agent *a, const char *reason, int64_t timeout_ns)
{
    agent_step(
        a, &(struct life_event){.type = LIFE_EV_DRAIN, .text = reason, .timeout_ns = timeout_ns});
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
    agent_say(arg, text);
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
    agent_step(a, &ev);
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
    agent_step(a, &(struct life_event){.type = LIFE_EV_SIGNAL, .signo = SIGTERM, .text = text});
}

static void on_health(void *arg, enum health_verdict verdict, const char *text)
{
    struct agent *a = arg;
    agent_step(a, &(struct life_event){.type = LIFE_EV_CHECKED, .verdict = verdict, .text = text});
}

static void on_silent(void *arg, struct ctl_ints workers)
{
    struct agent *a = arg;
    if (a->life.state == LIFE_RUNNING)
        agent_step(a, &(struct life_event){.type = LIFE_EV_SILENT, .silent = workers});
}

static void on_warden_lost(void *arg)
{
    char words[160];
    struct agent *a = arg;
    agent_step(a, &(struct life_event){.type = LIFE_EV_OWNER_GONE,
                                       .text = owners_words(a, words, sizeof words)});
}

/* ------------------------------------------------------------------ setting up */

static void put_log_line(void *arg, const char *p, size_t n)
{
    agent_put_words(arg, p, n);
}

static void say_late(void *arg, const char *text)
{
    agent_say(arg, text);
}

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
        agent_say(a, plan_warning(a->plan, i));
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
    agent_say(arg, text);
}

static int name_run(struct agent *a, struct mu_err *err)
{
    int r = a->o->run_id != NULL ? mu_strcopy(a->run_id, sizeof a->run_id, a->o->run_id)
                                 : facts_uuid(a->run_id);
    return r < 0 ? mu_err_set(err, r, "--rdzv-id: at most %d characters", MU_RUN_ID_BYTES - 1) : 0;
}

/* What looks after workers and node: none of it needs them yet. */
static int make_watchers(struct agent *a, struct mu_err *err)
{
    const struct hang_limits hl = {.progress_ns = a->o->progress_timeout_ns,
                                   .silence_ns = a->o->silence_timeout_ns};
    const struct pulse_events pe = {.arg = a, .on_hung = agent_on_hung, .on_silent = on_silent};
    if (watchdog_init(&a->watchdog, &a->loop, a->o->nproc, a->o->d_state_ns, on_stuck, a) < 0 ||
        pulse_init(&a->pulse, &a->loop, a->o->nproc, &hl, &pe) < 0)
        return mu_err_set(err, -ENOMEM, "no memory");
    xid_init(&a->xid, &a->loop);
    health_init(&a->health, &a->loop, a->o->health_check, a->o->health_timeout_ns, on_health, a);
    /* A check of the node's own has the one place for a guest, and says as much. */
    bool looks =
        !a->o->no_doctor && a->o->health_check == NULL && a->o->rdzv != AGENT_RDZV_STANDALONE;
    late_init(&a->late, &a->loop, looks ? &a->o->endpoint : NULL, a->o->connect_timeout_ns,
              say_late, a);
    return 0;
}

/* Processes and their output, and who wants to know of them. */
static int make_work(struct agent *a, struct mu_err *err)
{
    const struct work_events we = {.arg = a,
                                   .on_exit = agent_on_exit_of_worker,
                                   .on_all_gone = agent_on_all_gone,
                                   .on_said = agent_on_said};
    const struct output_events oe = {
        .arg = a, .on_trouble = on_output_trouble, .on_finished = on_output_finished};
    int r = work_new(&a->loop, &we, &a->work, err);
    if (r < 0)
        return r;
    if (a->files_raised)
        work_give_files(a->work, &a->files);
    first_use(&a->first, a->work, agent_note_exit, a);
    r = output_new(&a->loop, &oe, &a->output, err);
    if (r < 0)
        return r;
    pulse_use(&a->pulse, a->work, a->output);
    health_use(&a->health, a->work);
    late_use(&a->late, a->work);
    return 0;
}

/* What may end this node from outside: notices of the machine's end, and the warden. */
static int watch_outside(struct agent *a, struct mu_err *err)
{
    bool in_memory = false;
    a->notices.arg = a;
    a->notices.on_notice = on_notice;
    a->notices.on_trouble = on_notice_trouble;
    int r = notice_watch_init(&a->notices, &a->loop, a->o->preemption_url,
                              getenv("MUSTER_METADATA_HOST"), err);
    if (r < 0)
        return r;
    r = warden_watch(a->warden, &a->loop, on_warden_lost, a);
    if (r < 0)
        return mu_err_set(err, r, "cannot watch who started this agent: %s", strerror(-r));
    warden_note_cgroup(a->warden, work_cgroup(a->work));
    const char *logs = plan_log_base(a->plan, &in_memory);
    warden_note_logs(a->warden, logs, in_memory);
    return 0;
}

static int set_up(struct agent *a, struct mu_err *err)
{
    static int (*const steps[])(struct agent *, struct mu_err *) = {
        name_run,  make_watchers, make_plan, make_life,
        make_link, watch_signals, make_work, watch_outside};
    const char *apart = getenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE");
    a->rank0_serves_store = apart != NULL && strcmp(apart, "1") == 0;
    a->failed = mu_zalloc(mu_mem_default(), a->o->nproc * sizeof *a->failed);
    if (a->failed == NULL)
        return mu_err_set(err, -ENOMEM, "no memory");
    for (size_t i = 0; i < MU_COUNT(steps); i++) {
        int r = steps[i](a, err);
        if (r < 0)
            return r;
    }
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
        agent_say_err(&a, &err);
        return 1;
    }
    if (take_token(&a, &err) < 0) {
        agent_say_err(&a, &err);
        return 2;
    }
    int made = uv_loop_init(&a.loop);
    if (made < 0) {
        (void)mu_err_set(&err, made, "cannot start: %s", uv_strerror(made));
        agent_say_err(&a, &err);
        return 1;
    }
    hosting_init(&a.hosting, &a.loop);
    a.hosting.token = &a.prover.token;
    a.hosting.store_port_wanted = options->store_port;
    a.reach = (struct reach){.loop = &a.loop, .on_result = on_reach, .arg = &a};
    (void)uv_timer_init(&a.loop, &a.timer);
    (void)uv_timer_init(&a.loop, &a.goodbye);
    first_init(&a.first, &a.loop);
    stacks_init(&a.stacks, &a.loop, options->hang_hook, agent_on_stacks, &a);
    a.timer.data = &a;
    a.goodbye.data = &a;
    if (set_up(&a, &err) < 0) {
        agent_say_err(&a, &err);
        plan_free(a.plan);
        return 1; /* The process ends here: nothing was started, the kernel takes the rest. */
    }
    agent_step(&a, &(struct life_event){.type = LIFE_EV_DEADLINE});
    while (uv_run(&a.loop, UV_RUN_ONCE) != 0) {
        if (a.leaving)
            look_after_leaving(&a);
        if (a.left && (a.stuck || a.lookups_left))
            break;
    }
    plan_cleanup(a.plan);
    int status = exit_status_of(&a);
    agent_forget_failures(&a);
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
