/* What the agent says: single lines, torchrun's events, and at the end how the job came out. */
#include "agent/agent_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/events.h"
#include "agent/workers/report.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/shown.h"

/* ------------------------------------------------------------------ words */

/* Whole lines on stderr. */
void agent_put_words(const struct agent *a, const char *p, size_t n)
{
    if (a->report != NULL) {
        (void)mu_buf_add(a->report, p, n);
    } else if (a->output != NULL && a->output_open) {
        output_say(a->output, p, n);
    } else if (write(STDERR_FILENO, p, n) < 0) {
        /* Nowhere left to say so. */
    }
}

/* One line to the user: what cannot be shown by a terminal is escaped. */
void agent_say(const struct agent *a, const char *text)
{
    MU_CLEANUP(mu_buf_fini) struct mu_buf b;
    mu_buf_init(&b, mu_mem_default());
    (void)mu_buf_addf(&b, "%s: ", a->name);
    (void)mu_buf_add_shown(&b, mu_str_of(text, strlen(text)), "");
    (void)mu_buf_adds(&b, "\n");
    agent_put_words(a, b.p, b.n);
}

void agent_say_err(const struct agent *a, const struct mu_err *err)
{
    agent_say(a, err->msg);
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
    agent_put_words(a, b.p, b.n);
}

/* The agent's own. */
void agent_tell_own_event(const struct agent *a, const char *state, int64_t duration_ms)
{
    tell_event(a,
               &(struct events_item){.state = state, .local_rank = -1, .duration_ms = duration_ms});
}

void agent_tell_started(const struct agent *a, const int32_t *pids)
{
    if (!a->o->events_on_console)
        return;
    agent_tell_own_event(a, "RENDEZVOUS", (mu_now_ns() - a->joining_ns) / MU_NS_PER_MS);
    agent_tell_own_event(a, "ASSIGN_WORKER_RANKS", 0);
    for (uint32_t i = 0; i < a->o->nproc; i++)
        tell_event(a, &(struct events_item){
                          .state = "START", .local_rank = i, .pid = pids[i], .duration_ms = -1});
}

/* How a worker ended: by itself, well or not, or because the round is stopped. */
void agent_tell_end(const struct agent *a, const struct work_exit *e, const char *words)
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
    agent_say(a, mu_buf_cstr(&b));
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
    agent_put_words(a, b.p, b.n);
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
        agent_say_err(a, &err);
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
    agent_say(a, mu_buf_cstr(&b));
}

/* Everybody prints the same first cause. */
void agent_say_outcome(const struct agent *a)
{
    const struct life *l = &a->life;
    if (l->exit_status == 0 && l->draining && !l->ended) {
        char text[MU_RUN_ID_BYTES + CTL_REASON_BYTES + 80];
        (void)snprintf(text, sizeof text, "this node has left job %s in order (%s)", a->run_id,
                       l->drain_reason);
        agent_say(a, text);
        return;
    }
    if (l->exit_status == 0) {
        if (l->start.round == 0) /* Nothing of ours ever ran: that is no usual success. */
            agent_say(a,
                      "the job ended well without this node, which waited as a spare; another job "
                      "needs a --rdzv-id of its own");
        return;
    }
    char within[LIFE_WITHIN_BYTES];
    MU_CLEANUP(mu_buf_fini) struct mu_buf b;
    mu_buf_init(&b, mu_mem_default());
    if (!l->welcomed && l->told_why) { /* It may run well without us. */
        (void)mu_buf_addf(&b, "job %s refuses this node: %s", a->run_id, l->cause.message);
        agent_say(a, mu_buf_cstr(&b));
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
    agent_say(a, mu_buf_cstr(&b));
    mu_buf_reset(&b);
    report_output(&b, a->name, l->cause_output);
    agent_put_words(a, b.p, b.n);
    report_failures(a, REPORT_LINES - 2 - count_lines(&b));
    say_consequences(a);
    say_where_more(a);
    copy_error_file(a);
}
