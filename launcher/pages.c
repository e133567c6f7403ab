#include "launcher/pages.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/parse.h"
#include "launcher/answer.h"
#include "launcher/pool_page.h"
#include "launcher/words.h"

#define ENDED_SHOWN 5 /* Of the jobs that are over, where all are shown. */

/* --- colours of states --- */

struct state_colour {
    const char *name;
    enum cli_colour colour;
};

static const struct state_colour state_colours[] = {
    {"running", CLI_GREEN},     {"succeeded", CLI_GREEN}, {"finished", CLI_GREEN},
    {"gathering", CLI_YELLOW},  {"waiting", CLI_YELLOW},  {"starting", CLI_YELLOW},
    {"recovering", CLI_YELLOW}, {"stopping", CLI_YELLOW}, {"failed", CLI_RED},
    {"lost", CLI_RED},          {"killed", CLI_RED},      {"checking", CLI_YELLOW},
    {"unhealthy", CLI_RED},     {"quarantined", CLI_RED},
};

static enum cli_colour colour_of(const char *state)
{
    for (size_t i = 0; i < MU_COUNT(state_colours); i++)
        if (strcmp(state_colours[i].name, state) == 0)
            return state_colours[i].colour;
    return CLI_PLAIN;
}

static void cell_state(struct cli_table *t, const char *state)
{
    cli_cell(t, colour_of(state), state);
}

/* --- cells --- */

static void cell_number(struct cli_table *t, const cJSON *o, const char *key)
{
    int64_t v = cli_number(o, key, -1);
    if (v < 0)
        cli_cell(t, CLI_DIM, "-");
    else
        cli_cellf(t, CLI_PLAIN, "%" PRId64, v);
}

static void cell_age(struct cli_table *t, const struct mu_mem *mem, int64_t ms)
{
    struct mu_buf b;
    mu_buf_init(&b, mem);
    if (ms < 0)
        (void)mu_buf_adds(&b, "-");
    else
        cli_add_duration(&b, ms);
    cli_cell(t, CLI_PLAIN, mu_buf_cstr(&b));
    mu_buf_fini(&b);
}

/* "0-7", or "3", or "-". */
static void cell_ranks(struct cli_table *t, const cJSON *node)
{
    int64_t base = cli_number(node, "rank_base", -1);
    int64_t n = cli_number(node, "workers_count", 0);
    if (base < 0 || n < 1)
        cli_cell(t, CLI_DIM, "-");
    else if (n == 1)
        cli_cellf(t, CLI_PLAIN, "%" PRId64, base);
    else
        cli_cellf(t, CLI_PLAIN, "%" PRId64 "-%" PRId64, base, base + n - 1);
}

/* "8 running", "1 failed, 7 running", worst first; before a round "8". */
static void cell_workers(struct cli_table *t, const struct mu_mem *mem, const cJSON *node)
{
    static const char *const states[] = {"failed",   "killed",  "unknown",  "stopping",
                                         "starting", "running", "succeeded"};
    const cJSON *w = NULL;
    enum cli_colour colour = CLI_PLAIN;
    struct mu_buf b;
    mu_buf_init(&b, mem);
    for (size_t i = 0; i < MU_COUNT(states); i++) {
        int n = 0;
        cJSON_ArrayForEach(w, cli_list(node, "workers")) n +=
            strcmp(cli_text(w, "state"), states[i]) == 0;
        if (n == 0)
            continue;
        colour = b.n == 0 ? colour_of(states[i]) : colour;
        (void)mu_buf_addf(&b, "%s%d %s", b.n > 0 ? ", " : "", n, states[i]);
    }
    if (b.n == 0)
        (void)mu_buf_addf(&b, "%" PRId64, cli_number(node, "workers_count", 0));
    int silent = 0;
    cJSON_ArrayForEach(w, cli_list(node, "workers")) silent +=
        cli_text(w, "silent_since")[0] != '\0';
    if (silent > 0) {
        (void)mu_buf_addf(&b, ", %d silent", silent);
        colour = colour == CLI_RED ? colour : CLI_YELLOW;
    }
    cli_cell(t, colour, mu_buf_cstr(&b));
    mu_buf_fini(&b);
}

/* --- nodes --- */

/* "3 failures began here, the last in round 7: rank 2 on n3 exited with status 1" */
static void add_failures(struct mu_buf *b, const cJSON *node)
{
    const cJSON *failures = cli_list(node, "failures");
    int n = cJSON_GetArraySize(failures);
    const cJSON *last = n > 0 ? cJSON_GetArrayItem(failures, n - 1) : NULL;
    if (last == NULL)
        return;
    (void)mu_buf_adds(b, b->n > 0 ? "; " : "");
    cli_add_count(b, n, "failure");
    (void)mu_buf_addf(b, " began here, the last in round %" PRId64 ": ",
                      cli_number(last, "round", 0));
    (void)mu_buf_adds(b, cli_text(last, "sentence"));
}

/* What is wrong with it. */
static void
cell_trouble(struct cli_table *t, const struct mu_mem *mem, const cJSON *node, bool connected)
{
    const cJSON *unhealthy = cli_object(node, "unhealthy");
    struct mu_buf b;
    mu_buf_init(&b, mem);
    if (!connected)
        (void)mu_buf_adds(&b, "not connected");
    else if (cli_object(node, "drain") != NULL)
        (void)mu_buf_adds(&b, "is to leave");
    if (unhealthy != NULL)
        (void)mu_buf_addf(&b, "%s%s", b.n > 0 ? "; " : "", cli_text(unhealthy, "text"));
    add_failures(&b, node);
    cli_cell(t, CLI_RED, mu_buf_cstr(&b));
    mu_buf_fini(&b);
}

static uint32_t
add_node(struct cli_table *t, const struct mu_mem *mem, const cJSON *job, const cJSON *node)
{
    bool connected = cli_is_true(node, "connected");
    if (job != NULL)
        cli_cell(t, CLI_PLAIN, cli_text(job, "id"));
    cell_number(t, node, "node_rank");
    cli_cell(t, CLI_PLAIN, cli_text(node, "host"));
    cli_cell(t, CLI_PLAIN, cli_text(node, "address"));
    cell_state(t, cli_text(node, "state"));
    cell_ranks(t, node);
    cell_workers(t, mem, node);
    if (cli_number(node, "gpus", 0) > 0)
        cell_number(t, node, "gpus");
    else
        cli_cell(t, CLI_PLAIN, "");
    cell_age(t, mem, cli_number(node, "heard_ms_ago", -1));
    cell_trouble(t, mem, node, connected);
    return 1;
}

static const char *const node_heads[] = {"JOB",   "NODE",    "HOST", "ADDRESS", "STATE",
                                         "RANKS", "WORKERS", "GPUS", "HEARD",   ""};

/* Whether a node is as it should be, and may be left out of a long list first. */
static bool is_calm(const cJSON *node)
{
    const char *state = cli_text(node, "state");
    return cli_is_true(node, "connected") &&
           !cJSON_IsObject(cJSON_GetObjectItemCaseSensitive(node, "drain")) &&
           (strcmp(state, "running") == 0 || strcmp(state, "finished") == 0);
}

/* The nodes of a job below its sentence. In a long list those that are not as they should be come
 * first. */
static void add_job_nodes(struct mu_buf *out, const cJSON *job, const struct cli_style *style)
{
    const cJSON *node = NULL;
    uint32_t shown = 0;
    uint32_t all = 0;
    cJSON_ArrayForEach(node, cli_list(job, "nodes")) all++;
    if (all == 0)
        return;
    struct cli_table *t = cli_table_new(out->mem, node_heads + 1, MU_COUNT(node_heads) - 1);
    if (t == NULL) {
        out->oom = true;
        return;
    }
    bool cut = style->lines > 0 && all > style->lines;
    for (int calm = 0; calm < 2; calm++)
        cJSON_ArrayForEach(node, cli_list(job, "nodes"))
        {
            bool now = cut ? (is_calm(node) == (calm == 1)) : calm == 0;
            if (!now || (cut && shown == style->lines))
                continue;
            shown += add_node(t, out->mem, NULL, node);
        }
    cli_table_draw(t, style, 2, out);
    cli_table_free(t);
    if (shown < all)
        (void)mu_buf_addf(out, "  and %u more nodes: muster nodes lists all\n", all - shown);
}

/* --- jobs --- */

static void
add_cause(struct mu_buf *out, const cJSON *answer, const cJSON *job, const struct cli_style *style)
{
    const cJSON *cause = cli_object(job, "last_cause");
    bool over = strcmp(cli_text(job, "state"), "failed") == 0;
    int64_t age = cli_age_ms(answer, cause, "at");
    int64_t after = cli_number(job, "consequences", 0);
    if (cause == NULL || over)
        return; /* A failed job's sentence is its cause. */
    (void)mu_buf_addf(out, "  round %" PRId64 " ended", cli_number(cause, "round", 0));
    if (age >= 0) {
        (void)mu_buf_adds(out, " ");
        cli_add_duration(out, age);
        (void)mu_buf_adds(out, " ago");
    }
    (void)mu_buf_adds(out, ": ");
    cli_add_coloured(out, style, CLI_YELLOW, cli_text(cause, "sentence"));
    if (after > 0)
        (void)mu_buf_addf(out, "; %" PRId64 " more failed after it", after);
    (void)mu_buf_adds(out, "\n");
    const char *message = cli_text(cause, "message");
    if (message[0] != '\0' && strstr(cli_text(cause, "sentence"), message) == NULL) {
        (void)mu_buf_adds(out, "    ");
        cli_add_plain(out, message);
        (void)mu_buf_adds(out, "\n");
    }
}

/* How many count: an older server says only how many there were. */
static int64_t spent_of(const cJSON *job)
{
    return cli_number(job, "restarts_spent", cli_number(job, "restarts", 0));
}

/* "train  running  for 12 min, 1 of 3 restarts used" and the sentence that says what happens. */
static void add_job_head(struct mu_buf *out,
                         const cJSON *answer,
                         const cJSON *job,
                         const struct cli_style *style)
{
    const char *state = cli_text(job, "state");
    bool ended = cli_job_is_over(job);
    int64_t max = cli_number(job, "max_restarts", 0);
    int64_t used = spent_of(job);
    int64_t window_s = cli_number(job, "restart_window_s", 0);
    char span[MU_SPAN_BYTES];
    int64_t age = cli_age_ms(answer, job, ended ? "ended_at" : "created_at");
    cli_add_coloured(out, style, CLI_BOLD, cli_text(job, "id"));
    (void)mu_buf_adds(out, "  ");
    cli_add_coloured(out, style, colour_of(state), state);
    if (age >= 0) {
        (void)mu_buf_adds(out, ended ? "  ended " : "  for ");
        cli_add_duration(out, age);
        (void)mu_buf_adds(out, ended ? " ago" : "");
    }
    if (used > 0 || max > 0)
        (void)mu_buf_addf(out, ", %" PRId64 " of %" PRId64 " restarts%s%s used", used, max,
                          window_s > 0 ? " within " : "",
                          window_s > 0 ? mu_span_text(window_s * 1000, true, span) : "");
    (void)mu_buf_adds(out, "\n  ");
    cli_add_plain(out, cli_text(job, "sentence"));
    (void)mu_buf_adds(out, "\n");
    add_cause(out, answer, job, style);
}

static void
add_job(struct mu_buf *out, const cJSON *answer, const cJSON *job, const struct cli_style *style)
{
    (void)mu_buf_adds(out, "\n");
    add_job_head(out, answer, job, style);
    if (!cli_job_is_over(job))
        add_job_nodes(out, job, style);
}

static void add_server(struct mu_buf *out, const cJSON *answer, const char *where)
{
    const cJSON *server = cli_object(answer, "server");
    cli_add_plain(out, where);
    (void)mu_buf_adds(out, ": rdzv-server ");
    cli_add_plain(out, cli_text(answer, "version"));
    (void)mu_buf_adds(out, ", up ");
    cli_add_duration(out, cli_number(answer, "uptime_s", 0) * 1000);
    (void)mu_buf_adds(out, ", ");
    cli_add_count(out, cli_number(server, "jobs_live", 0), "job");
    (void)mu_buf_adds(out, ", ");
    cli_add_count(out, cli_number(server, "agents", 0), "agent");
    (void)mu_buf_adds(out, "\n");
}

static int count_in_state(const cJSON *nodes, const char *state)
{
    const cJSON *node = NULL;
    int n = 0;
    cJSON_ArrayForEach(node, nodes) n += strcmp(cli_text(node, "state"), state) == 0;
    return n;
}

/* "pool: 4 nodes, 1 idle, 1 away; 2 jobs wait: muster pool" */
static void add_pool(struct mu_buf *out, const cJSON *answer)
{
    static const char *const states[] = {"idle", "draining", "away"};
    const cJSON *pool = cli_object(answer, "pool");
    const cJSON *nodes = cli_list(pool, "nodes");
    int waiting = cJSON_GetArraySize(cli_list(pool, "queue"));
    if (cJSON_GetArraySize(nodes) == 0 && waiting == 0)
        return;
    (void)mu_buf_adds(out, "pool: ");
    cli_add_count(out, cJSON_GetArraySize(nodes), "node");
    for (size_t i = 0; i < MU_COUNT(states); i++) {
        int n = count_in_state(nodes, states[i]);
        if (n > 0)
            (void)mu_buf_addf(out, ", %d %s", n, states[i]);
    }
    if (waiting == 0) {
        (void)mu_buf_adds(out, "; no job waits\n");
        return;
    }
    (void)mu_buf_adds(out, "; ");
    cli_add_count(out, waiting, "job");
    (void)mu_buf_adds(out, waiting == 1 ? " waits: muster pool\n" : " wait: muster pool\n");
}

/* The rendezvous has none; the pool's line above says whether some wait. */
static void say_no_job(struct mu_buf *out, const cJSON *pool)
{
    bool nodes = cJSON_GetArraySize(cli_list(pool, "nodes")) > 0;
    bool waiting = cJSON_GetArraySize(cli_list(pool, "queue")) > 0;
    if (nodes && !waiting)
        (void)mu_buf_adds(out, "\nno job runs: muster run -- PROGRAM starts one on these nodes\n");
    else if (nodes)
        (void)mu_buf_adds(out, "\nno job has met yet: muster pool says what each waits for\n");
    else if (waiting)
        (void)mu_buf_adds(out, "\nno job runs, and no node is on offer: one is as soon as\n"
                               "  node-agent --service --rdzv=HOST:PORT\n"
                               "runs there\n");
    else
        (void)mu_buf_adds(
            out,
            "\nno job yet: one begins when agents come, as in\n"
            "  node-agent --nnodes=2 --nproc-per-node=8 --rdzv=HOST:PORT ./trainer\n"
            "on each node, or with muster run where nodes are on offer (node-agent --service)\n");
}

static void add_all_jobs(struct mu_buf *out, const cJSON *answer, const struct cli_style *style)
{
    const cJSON *job = NULL;
    int64_t ended = 0;
    bool any = false;
    cJSON_ArrayForEach(job, cli_list(answer, "jobs"))
    {
        any = true;
        if (cli_job_is_over(job) && ++ended > ENDED_SHOWN)
            continue;
        add_job(out, answer, job, style);
    }
    if (ended > ENDED_SHOWN)
        (void)mu_buf_addf(out,
                          "\nand %" PRId64 " more jobs that are over: muster jobs lists them\n",
                          ended - ENDED_SHOWN);
    if (!any)
        say_no_job(out, cli_object(answer, "pool"));
}

void cli_page_status(struct mu_buf *out,
                     const cJSON *answer,
                     const char *where,
                     const char *job_id,
                     const struct cli_style *style)
{
    struct mu_buf b;
    mu_buf_init(&b, out->mem);
    add_server(&b, answer, where);
    if (job_id != NULL)
        add_job(&b, answer, cli_job_find(answer, job_id), style);
    else {
        add_pool(&b, answer);
        add_all_jobs(&b, answer, style);
    }
    cli_add_cut(out, style, mu_buf_cstr(&b));
    out->oom = out->oom || b.oom;
    mu_buf_fini(&b);
}

/* Draw, cut to the terminal's width, and free. t == NULL: there was no memory. */
static void finish(struct mu_buf *out, struct cli_table *t, const struct cli_style *style)
{
    struct mu_buf b;
    mu_buf_init(&b, out->mem);
    if (t != NULL)
        cli_table_draw(t, style, 0, &b);
    cli_add_cut(out, style, mu_buf_cstr(&b));
    out->oom = out->oom || b.oom || t == NULL;
    mu_buf_fini(&b);
    cli_table_free(t);
}

/* A job of the pool that waits for its nodes. */
static void
add_queued(struct cli_table *t, const struct mu_mem *mem, const cJSON *answer, const cJSON *q)
{
    const cJSON *nodes = cJSON_GetObjectItemCaseSensitive(q, "nodes");
    cli_cell(t, CLI_BOLD, cli_text(q, "id"));
    cli_cell(t, CLI_YELLOW, cli_text(q, "state"));
    cli_cell(t, CLI_DIM, "-");
    cli_cell(t, CLI_DIM, "-");
    if (cJSON_IsNumber(nodes))
        cli_cellf(t, CLI_PLAIN, "0/%" PRId64, cli_number(q, "nodes", 0));
    else
        cli_cellf(t, CLI_PLAIN, "0/%s", cli_text(q, "nodes"));
    cli_cell(t, CLI_DIM, "-");
    cell_age(t, mem, cli_age_ms(answer, q, "submitted_at"));
    cli_cell(t, CLI_PLAIN, cli_text(q, "waits_for"));
}

/* One that ended before its agents had met. */
static void
add_ended(struct cli_table *t, const struct mu_mem *mem, const cJSON *answer, const cJSON *job)
{
    cli_cell(t, CLI_BOLD, cli_text(job, "id"));
    cell_state(t, cli_text(job, "state"));
    cli_cell(t, CLI_DIM, "-");
    cli_cell(t, CLI_DIM, "-");
    cli_cell(t, CLI_PLAIN, "");
    cli_cell(t, CLI_DIM, "-");
    cell_age(t, mem, cli_age_ms(answer, job, "submitted_at"));
    cli_cell(t, CLI_PLAIN, cli_text(job, "sentence"));
}

/* Nothing but heads would be there: a person is told so, a program gets nothing. */
static void say_nothing(struct mu_buf *out,
                        struct cli_table *t,
                        const struct cli_style *style,
                        const char *sentence)
{
    if (style->terminal)
        cli_add_cut(out, style, sentence);
    cli_table_free(t);
}

void cli_page_jobs(struct mu_buf *out, const cJSON *answer, const struct cli_style *style)
{
    static const char *const heads[] = {"JOB",   "STATE",   "ROUND", "RESTARTS",
                                        "NODES", "WORKERS", "AGE",   "WHAT"};
    const cJSON *job = NULL;
    const cJSON *node = NULL;
    uint32_t rows = 0;
    struct cli_table *t = cli_table_new(out->mem, heads, MU_COUNT(heads));
    if (t != NULL)
        cJSON_ArrayForEach(job, cli_list(answer, "jobs"))
        {
            int64_t nodes = 0;
            int64_t min = cli_number(job, "nodes_min", 0);
            int64_t max = cli_number(job, "nodes_max", 0);
            cJSON_ArrayForEach(node, cli_list(job, "nodes")) nodes +=
                cli_is_true(node, "connected");
            cli_cell(t, CLI_BOLD, cli_text(job, "id"));
            cell_state(t, cli_text(job, "state"));
            cell_number(t, job, "round");
            cli_cellf(t, CLI_PLAIN, "%" PRId64 "/%" PRId64, spent_of(job),
                      cli_number(job, "max_restarts", 0));
            if (cli_job_is_over(job))
                cli_cell(t, CLI_PLAIN, "");
            else if (min == max)
                cli_cellf(t, CLI_PLAIN, "%" PRId64 "/%" PRId64, nodes, max);
            else
                cli_cellf(t, CLI_PLAIN, "%" PRId64 "/%" PRId64 ":%" PRId64, nodes, min, max);
            cell_number(t, job, "world");
            cell_age(t, out->mem, cli_age_ms(answer, job, "created_at"));
            cli_cell(t, CLI_PLAIN, cli_text(job, "sentence"));
            rows++;
        }
    for (const cJSON *q = cli_queued_next(answer, NULL); t != NULL && q != NULL;
         q = cli_queued_next(answer, q), rows++)
        add_queued(t, out->mem, answer, q);
    if (t != NULL)
        cJSON_ArrayForEach(job, cli_list(cli_object(answer, "pool"), "ended"))
        {
            add_ended(t, out->mem, answer, job);
            rows++;
        }
    if (rows > 0 || t == NULL)
        finish(out, t, style);
    else
        say_nothing(out, t, style,
                    "no job is known here; muster run -- PROGRAM starts one, or "
                    "node-agent on each node\n");
}

/* Calls `add`, which returns how many rows it added, with each node that is meant. `none`: what to
 * say where there are none. */
typedef uint32_t
add_fn(struct cli_table *t, const struct mu_mem *mem, const cJSON *job, const cJSON *node);

static void each_node(struct mu_buf *out,
                      const cJSON *answer,
                      const char *job_id,
                      const char *const *heads,
                      uint32_t head_count,
                      add_fn *add,
                      const char *none,
                      const struct cli_style *style)
{
    const cJSON *job = NULL;
    const cJSON *node = NULL;
    uint32_t rows = 0;
    const cJSON *only = job_id != NULL ? cli_job_find(answer, job_id) : NULL;
    struct cli_table *t = cli_table_new(out->mem, heads, head_count);
    if (t != NULL)
        cJSON_ArrayForEach(job, cli_list(answer, "jobs"))
        {
            if (only != NULL ? job != only : cli_job_is_over(job))
                continue;
            cJSON_ArrayForEach(node, cli_list(job, "nodes")) rows += add(t, out->mem, job, node);
        }
    if (rows > 0 || t == NULL)
        finish(out, t, style);
    else
        say_nothing(out, t, style, none);
}

void cli_page_nodes(struct mu_buf *out,
                    const cJSON *answer,
                    const char *job_id,
                    const struct cli_style *style)
{
    each_node(out, answer, job_id, node_heads, MU_COUNT(node_heads), add_node,
              job_id != NULL
                  ? "this job has no node\n"
                  : "no job lives here, so no node is busy; muster pool shows those that "
                    "wait for one\n",
              style);
}

/* --- workers --- */

/* How the steps of a job's workers compare. */
struct pace {
    const cJSON *slowest; /* NULL: fewer than two report steps, or all are level. */
    const cJSON *host;    /* The node where that one runs. */
    int64_t fastest_step; /* -1: nobody reports steps. */
    int64_t fastest_rank;
};

static struct pace pace_of(const cJSON *job)
{
    struct pace p = {.fastest_step = -1};
    const cJSON *node = NULL;
    const cJSON *w = NULL;
    int64_t least = INT64_MAX;
    cJSON_ArrayForEach(node, cli_list(job, "nodes"))
        cJSON_ArrayForEach(w, cli_list(node, "workers"))
    {
        int64_t step = cli_number(w, "step", -1);
        if (step < 0)
            continue;
        if (step > p.fastest_step) {
            p.fastest_step = step;
            p.fastest_rank = cli_number(w, "rank", -1);
        }
        if (step < least) {
            least = step;
            p.slowest = w;
            p.host = node;
        }
    }
    if (p.slowest != NULL && least == p.fastest_step)
        p.slowest = NULL;
    return p;
}

static void cell_ending(struct cli_table *t, const cJSON *w)
{
    const char *signal = cli_text(w, "signal_name");
    const char *silent = strlen(cli_text(w, "silent_since")) > strlen("2026-11-30T")
                             ? cli_text(w, "silent_since")
                             : "";
    if (silent[0] != '\0')
        cli_cellf(t, CLI_YELLOW, "silent since %.8s UTC", silent + strlen("2026-11-30T"));
    else if (signal[0] != '\0')
        cli_cell(t, CLI_PLAIN, signal);
    else if (cli_number(w, "exit_code", -1) >= 0)
        cli_cellf(t, CLI_PLAIN, "status %" PRId64, cli_number(w, "exit_code", 0));
    else
        cli_cell(t, CLI_PLAIN, "");
}

static uint32_t
add_workers(struct cli_table *t, const struct mu_mem *mem, const cJSON *job, const cJSON *node)
{
    const cJSON *w = NULL;
    struct pace pace = pace_of(job);
    uint32_t rows = 0;
    (void)mem;
    cJSON_ArrayForEach(w, cli_list(node, "workers"))
    {
        int64_t step = cli_number(w, "step", -1);
        cli_cell(t, CLI_PLAIN, cli_text(job, "id"));
        cell_number(t, w, "rank");
        cli_cell(t, CLI_PLAIN, cli_text(node, "host"));
        cell_number(t, w, "local_rank");
        cell_number(t, w, "pid");
        cell_state(t, cli_text(w, "state"));
        cell_number(t, w, "step");
        if (step >= 0 && pace.slowest != NULL)
            cli_cellf(t, w == pace.slowest ? CLI_YELLOW : CLI_PLAIN, "%" PRId64,
                      pace.fastest_step - step);
        else
            cli_cell(t, CLI_PLAIN, "");
        cell_ending(t, w);
        rows++;
    }
    return rows;
}

/* "train: rank 3 on n2 is the slowest, 12 steps behind rank 0" */
static void add_slowest(struct mu_buf *out, const cJSON *job, const struct cli_style *style)
{
    struct pace pace = pace_of(job);
    struct mu_buf b;
    if (pace.fastest_step < 0 && strcmp(cli_text(job, "state"), "running") == 0)
        (void)mu_buf_addf(out,
                          "%s: its workers tell no steps, so which is slow is not known; "
                          "muster_progress() of libmuster tells them\n",
                          cli_text(job, "id"));
    if (pace.slowest == NULL)
        return;
    mu_buf_init(&b, out->mem);
    (void)mu_buf_addf(&b, "%s: rank %" PRId64 " on %s is the slowest, ", cli_text(job, "id"),
                      cli_number(pace.slowest, "rank", -1), cli_text(pace.host, "host"));
    cli_add_count(&b, pace.fastest_step - cli_number(pace.slowest, "step", 0), "step");
    (void)mu_buf_addf(&b, " behind rank %" PRId64, pace.fastest_rank);
    struct mu_buf line;
    mu_buf_init(&line, out->mem);
    cli_add_coloured(&line, style, CLI_YELLOW, mu_buf_cstr(&b));
    (void)mu_buf_adds(&line, "\n");
    cli_add_cut(out, style, mu_buf_cstr(&line));
    mu_buf_fini(&line);
    mu_buf_fini(&b);
}

void cli_page_workers(struct mu_buf *out,
                      const cJSON *answer,
                      const char *job_id,
                      const struct cli_style *style)
{
    static const char *const heads[] = {"JOB",   "RANK", "HOST",   "LOCAL", "PID",
                                        "STATE", "STEP", "BEHIND", ""};
    const cJSON *only = job_id != NULL ? cli_job_find(answer, job_id) : NULL;
    const cJSON *job = NULL;
    each_node(out, answer, job_id, heads, MU_COUNT(heads), add_workers,
              job_id != NULL
                  ? "this job has no worker now\n"
                  : "no worker runs here: muster jobs shows what waits and what is over\n",
              style);
    cJSON_ArrayForEach(job, cli_list(answer, "jobs")) if (only != NULL ? job == only
                                                                       : !cli_job_is_over(job))
        add_slowest(out, job, style);
}
