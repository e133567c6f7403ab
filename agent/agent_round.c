/* The workers of a round: how they are started, what becomes of them, what is kept of who fails or
 * hangs. */
#include "agent/agent_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/workers/lines.h"
#include "agent/workers/warden.h"
#include "base/clock.h"
#include "base/mem.h"

/* ------------------------------------------------------------------ workers of a round */

void agent_forget_failures(struct agent *a)
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
void agent_renew_store(struct agent *a)
{
    struct mu_err err = {0};
    uint16_t port = 0;
    hosting_close_store(&a->hosting);
    if (hosting_reserve_store(&a->hosting, &port, &err) < 0)
        agent_say_err(a, &err); /* Port 0: another node must lead. */
    life_set_store_port(&a->life, port);
}

void agent_on_all_gone(void *arg)
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
        agent_renew_store(a);
    agent_step(a, &(struct life_event){.type = LIFE_EV_ALL_GONE});
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

/* ------------------------------------------------------------------ stacks, and who hangs */

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
            agent_say_err(a, &err); /* The others would fare no better. */
            return;
        }
    }
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
    agent_step(a, &(struct life_event){.type = LIFE_EV_HUNG,
                                       .local_rank = v->local_rank,
                                       .text = text,
                                       .words = {.output = a->last_lines,
                                                 .tail = a->tail,
                                                 .trace = stacks_of(a, v->local_rank)}});
}

void agent_on_stacks(void *arg)
{
    struct agent *a = arg;
    if (stacks_count(&a->stacks) > 0) {
        MU_CLEANUP(mu_buf_fini) struct mu_buf b;
        mu_buf_init(&b, mu_mem_default());
        stacks_describe(&a->stacks, a->o->hang_hook_timeout_ns, &b);
        if (a->o->log_dir != NULL && !a->o->no_files)
            (void)mu_buf_addf(&b, ": see stacks.log of each worker in %s", a->o->log_dir);
        agent_say(a, mu_buf_cstr(&b));
        write_stacks(a);
    }
    if (a->life.state == LIFE_STOPPING) {
        uint32_t named = (uint32_t)(a->life.cause.rank - (int32_t)a->life.start.rank_base);
        agent_step(a, &(struct life_event){.type = LIFE_EV_STACKS,
                                           .words = {.trace = stacks_of(a, named)}});
    } else if (a->hangs) {
        a->hangs = false;
        tell_hung(a);
    }
}

/* Of all workers that live, the one that hangs first. Returns false where agent_on_stacks() will
 * not come. */
bool agent_take_stacks(struct agent *a, uint32_t first)
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

/* Its stacks first: the round goes on meanwhile, as it has for long. */
void agent_on_hung(void *arg, const struct hang_verdict *v, int64_t now_ns)
{
    struct agent *a = arg;
    a->hang = *v;
    a->hang_ns = now_ns;
    a->hangs = a->life.state == LIFE_RUNNING;
    if (a->hangs && !agent_take_stacks(a, v->local_rank))
        agent_on_stacks(a);
}

/* ------------------------------------------------------------------ exits, and what workers say */

void agent_note_exit(void *arg, const struct work_exit *e)
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
    agent_tell_end(a, e, ev.text);
    agent_step(a, &ev);
    plan_error_fini(&pe);
}

void agent_on_exit_of_worker(void *arg, const struct work_exit *e)
{
    struct agent *a = arg;
    first_take(&a->first, e, a->life.state == LIFE_RUNNING && a->failed_count == 0);
}

void agent_on_said(void *arg,
                   uint32_t local_rank,
                   enum talk_news news,
                   const struct talk_said *said)
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

/* ------------------------------------------------------------------ the start of a round */

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
        agent_say_err(a, err);
        agent_say(a, "the workers run without log files and error files");
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

void agent_spawn(struct agent *a)
{
    int32_t pids[MU_WORKERS_MAX];
    uint32_t failed = 0;
    struct work_round round;
    struct mu_err err = {0};
    agent_forget_failures(a);
    first_begin(&a->first, (uint32_t)a->life.start.rank_base);
    int r = prepare_round(a, &round, &err);
    bool nothing_started = r < 0;
    if (r == 0)
        r = work_start(a->work, &round, pids, &failed, &err);
    output_started(a->output);
    warden_note_cgroup(a->warden, work_cgroup(a->work)); /* A killed one was replaced. */
    if (r == 0) {
        agent_tell_started(a, pids);
        watchdog_start(&a->watchdog, pids);
        pulse_start(&a->pulse, pids);
        xid_begin(&a->xid);
        agent_step(a, &(struct life_event){.type = LIFE_EV_SPAWNED, .pids = pids});
        inject_started(&a->inject, &a->life.start, pids, a->o->nproc);
        return;
    }
    agent_say_err(a, &err);
    agent_step(a, &(struct life_event){
                      .type = LIFE_EV_SPAWN_FAILED, .local_rank = failed, .text = err.msg});
    if (nothing_started)
        agent_on_all_gone(a);
}
