#include "launcher/pool_page.h"

#include <inttypes.h>
#include <string.h>

#include "launcher/answer.h"
#include "launcher/words.h"

static enum cli_colour colour_of(const char *state)
{
    if (strcmp(state, "idle") == 0 || strcmp(state, "busy") == 0)
        return CLI_GREEN;
    return strcmp(state, "away") == 0 ? CLI_RED : CLI_YELLOW;
}

/* How many of `key` are free, of how many: "2/8"; nothing where there are none. */
static void cell_free(struct cli_table *t, int64_t free, int64_t all)
{
    if (all > 0)
        cli_cellf(t, CLI_PLAIN, "%" PRId64 "/%" PRId64, free, all);
    else
        cli_cell(t, CLI_PLAIN, "");
}

static void cell_jobs(struct cli_table *t, const struct mu_mem *mem, const cJSON *node)
{
    const cJSON *id = NULL;
    struct mu_buf b;
    mu_buf_init(&b, mem);
    cJSON_ArrayForEach(id, cli_list(node, "jobs")) if (cJSON_IsString(id))(void)
        mu_buf_addf(&b, "%s%s", b.n > 0 ? " " : "", id->valuestring);
    cli_cell(t, CLI_PLAIN, mu_buf_cstr(&b));
    mu_buf_fini(&b);
}

static void
add_node(struct cli_table *t, const struct mu_mem *mem, const cJSON *answer, const cJSON *node)
{
    const char *state = cli_text(node, "state");
    int64_t age = cli_age_ms(answer, node, "since");
    struct mu_buf b;
    mu_buf_init(&b, mem);
    if (age >= 0)
        cli_add_duration(&b, age);
    cli_cell(t, CLI_BOLD, cli_text(node, "host"));
    cli_cell(t, CLI_PLAIN, cli_text(node, "addr"));
    cli_cell(t, colour_of(state), state);
    cli_cell(t, CLI_PLAIN, mu_buf_cstr(&b));
    cell_free(t, cli_number(node, "slots_free", 0), cli_number(node, "slots", 0));
    cell_free(t, cJSON_GetArraySize(cli_list(node, "gpus_free")), cli_number(node, "gpus", 0));
    cell_jobs(t, mem, node);
    cli_cell(t, CLI_DIM, cli_text(node, "id"));
    mu_buf_fini(&b);
}

static void add_queued(struct cli_table *t,
                       const struct mu_mem *mem,
                       const cJSON *answer,
                       const cJSON *queued,
                       int64_t place)
{
    int64_t age = cli_age_ms(answer, queued, "submitted_at");
    const cJSON *nodes = cJSON_GetObjectItemCaseSensitive(queued, "nodes");
    struct mu_buf b;
    mu_buf_init(&b, mem);
    if (age >= 0)
        cli_add_duration(&b, age);
    cli_cellf(t, CLI_PLAIN, "%" PRId64, place);
    cli_cell(t, CLI_BOLD, cli_text(queued, "id"));
    cli_cell(t, CLI_YELLOW, cli_text(queued, "state"));
    if (cJSON_IsNumber(nodes))
        cli_cellf(t, CLI_PLAIN, "%" PRId64, cli_number(queued, "nodes", 0));
    else
        cli_cell(t, CLI_PLAIN, cli_text(queued, "nodes"));
    cli_cell(t, CLI_PLAIN, mu_buf_cstr(&b));
    cli_cell(t, CLI_PLAIN, cli_text(queued, "waits_for"));
    mu_buf_fini(&b);
}

static void draw_nodes(struct mu_buf *out, const cJSON *answer, const struct cli_style *style)
{
    static const char *const heads[] = {"NODE", "ADDRESS",   "STATE", "SINCE",
                                        "FREE", "GPUS FREE", "JOBS",  "ID"};
    const cJSON *nodes = cli_list(cli_object(answer, "pool"), "nodes");
    const cJSON *node = NULL;
    if (cJSON_GetArraySize(nodes) == 0) {
        (void)mu_buf_adds(out, "no node is on offer: one is as soon as node-agent --service runs "
                               "there\n");
        return;
    }
    struct cli_table *t = cli_table_new(out->mem, heads, MU_COUNT(heads));
    if (t != NULL) {
        cJSON_ArrayForEach(node, nodes) add_node(t, out->mem, answer, node);
        cli_table_draw(t, style, 0, out);
    }
    out->oom = out->oom || t == NULL;
    cli_table_free(t);
}

static void draw_queue(struct mu_buf *out, const cJSON *answer, const struct cli_style *style)
{
    static const char *const heads[] = {"PLACE", "JOB", "STATE", "NODES", "FOR", "WAITS FOR"};
    const cJSON *queue = cli_list(cli_object(answer, "pool"), "queue");
    const cJSON *queued = NULL;
    int64_t place = 0;
    if (cJSON_GetArraySize(queue) == 0) {
        (void)mu_buf_adds(out, "\nno job waits\n");
        return;
    }
    (void)mu_buf_adds(out, "\n");
    struct cli_table *t = cli_table_new(out->mem, heads, MU_COUNT(heads));
    if (t != NULL) {
        cJSON_ArrayForEach(queued, queue) add_queued(t, out->mem, answer, queued, ++place);
        cli_table_draw(t, style, 0, out);
    }
    out->oom = out->oom || t == NULL;
    cli_table_free(t);
}

/* Whoever is drained and on offer stands among the nodes. */
static bool is_here(const cJSON *answer, const char *host)
{
    const cJSON *node = NULL;
    cJSON_ArrayForEach(node, cli_list(cli_object(answer, "pool"), "nodes"))
    {
        if (strcmp(cli_text(node, "host"), host) == 0 &&
            strcmp(cli_text(node, "state"), "away") != 0)
            return true;
    }
    return false;
}

static void draw_drained(struct mu_buf *out, const cJSON *answer)
{
    const cJSON *host = NULL;
    int n = 0;
    cJSON_ArrayForEach(host, cli_list(cli_object(answer, "pool"), "drained"))
    {
        if (!cJSON_IsString(host) || is_here(answer, host->valuestring))
            continue;
        (void)mu_buf_adds(out, n++ > 0 ? ", " : "\ndrained and not here: ");
        cli_add_plain(out, host->valuestring);
    }
    (void)mu_buf_adds(out, n > 0 ? "; muster undrain NODE takes that back\n" : "");
}

void cli_page_pool(struct mu_buf *out, const cJSON *answer, const struct cli_style *style)
{
    struct mu_buf b;
    mu_buf_init(&b, out->mem);
    if (cli_object(answer, "pool") == NULL) {
        (void)mu_buf_adds(&b, "this rdzv-server knows of no pool: it is older than this muster\n");
    } else {
        draw_nodes(&b, answer, style);
        draw_queue(&b, answer, style);
        draw_drained(&b, answer);
    }
    cli_add_cut(out, style, mu_buf_cstr(&b));
    out->oom = out->oom || b.oom;
    mu_buf_fini(&b);
}

const cJSON *cli_queued_next(const cJSON *answer, const cJSON *after)
{
    const cJSON *q = after != NULL ? after->next : NULL;
    const cJSON *queue = cli_list(cli_object(answer, "pool"), "queue");
    if (after == NULL)
        q = queue != NULL ? queue->child : NULL;
    for (; q != NULL; q = q->next) {
        const cJSON *job = cli_job_find(answer, cli_text(q, "id"));
        if (job == NULL || cli_job_is_over(job))
            return q;
    }
    return NULL;
}
