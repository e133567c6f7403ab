#include "launcher/job_page.h"

#include <inttypes.h>
#include <string.h>

#include "base/limits.h"
#include "base/parse.h"
#include "launcher/answer.h"
#include "launcher/words.h"

bool cli_submission_is_over(const cJSON *job)
{
    static const char *const states[] = {"stopped", "done", "failed"};
    for (size_t i = 0; i < MU_COUNT(states); i++)
        if (strcmp(cli_text(job, "state"), states[i]) == 0)
            return true;
    return false;
}

/* --- states in sentences --- */

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

static const char *past_word(const char *text)
{
    const char *blank = strchr(text, ' ');
    return blank != NULL ? blank + 1 : text + strlen(text);
}

/* Does it begin with the state, or a form of it? "is being started on n1" says "starting". */
static bool says(const char *sentence, const char *state)
{
    static const char *const helpers[] = {"it ", "is ", "was ", "has ", "been ", "being "};
    static const struct {
        const char *state;
        const char *stem;
    } stems[] = {
        {"queued", "queue"}, {"starting", "start"}, {"running", "run"}, {"stopping", "stop"},
        {"stopped", "stop"}, {"done", "ended"},     {"failed", "fail"},
    };
    for (size_t i = 0; i < MU_COUNT(helpers);) {
        bool helps = begins(sentence, helpers[i]);
        sentence = helps ? past_word(sentence) : sentence;
        i = helps ? 0 : i + 1;
    }
    for (size_t i = 0; i < MU_COUNT(stems); i++)
        if (strcmp(stems[i].state, state) == 0 && begins(sentence, stems[i].stem))
            return true;
    return false;
}

/* "was stopped: it was stopped before it began" says it twice; and "it" is the job, which the
 * caller has named. */
static const char *said_once(const char *sentence, const char *state)
{
    const char *colon = strstr(sentence, ": ");
    if (colon != NULL && says(sentence, state) && says(colon + 2, state))
        sentence = colon + 2;
    return says(sentence, state) && begins(sentence, "it ") ? past_word(sentence) : sentence;
}

void cli_add_state(struct mu_buf *b, const char *state, const char *sentence)
{
    if (says(sentence, state))
        (void)mu_buf_addf(b, " %s", said_once(sentence, state));
    else
        (void)mu_buf_addf(b, " is %s%s%s", state, sentence[0] != '\0' ? ": " : "", sentence);
}

void cli_add_outcome(struct mu_buf *b, const char *state, const char *cause)
{
    if (says(cause, state))
        (void)mu_buf_addf(b, " %s", said_once(cause, state));
    else
        (void)mu_buf_addf(b, " %s%s%s", state[0] != '\0' ? state : "ended",
                          cause[0] != '\0' ? ": " : "", cause);
}

void cli_add_stop(struct mu_buf *b, const char *state, const char *sentence)
{
    if (says(sentence, state))
        cli_add_state(b, state, sentence);
    else
        (void)mu_buf_addf(b, " is told to stop%s%s", sentence[0] != '\0' ? ": " : "", sentence);
}

void cli_add_again(struct mu_buf *b, const char *state, const char *sentence)
{
    if (begins(sentence, "waits "))
        (void)mu_buf_addf(b, " waits again %s", past_word(sentence));
    else if (strcmp(state, "queued") != 0)
        cli_add_state(b, state, sentence);
    else
        (void)mu_buf_addf(b, " waits again%s%s", sentence[0] != '\0' ? ": " : "", sentence);
}

/* --- page --- */

static enum cli_colour colour_of(const char *state)
{
    if (strcmp(state, "failed") == 0)
        return CLI_RED;
    return strcmp(state, "done") == 0 || strcmp(state, "running") == 0 ? CLI_GREEN : CLI_YELLOW;
}

/* "  on n1 (GPUs 0, 1), n2" */
static void add_placed(struct mu_buf *b, const cJSON *job)
{
    const cJSON *place = NULL;
    const cJSON *gpu = NULL;
    int n = 0;
    cJSON_ArrayForEach(place, cli_list(job, "placed"))
    {
        int gpus = 0;
        (void)mu_buf_adds(b, n++ > 0 ? ", " : "  placed on ");
        cli_add_plain(b, cli_text(place, "host"));
        cJSON_ArrayForEach(gpu, cli_list(place, "gpus")) if (cJSON_IsNumber(gpu))(void)
            mu_buf_addf(b, "%s%d", gpus++ > 0 ? ", " : " (GPU ", gpu->valueint);
        (void)mu_buf_adds(b, gpus > 0 ? ")" : "");
    }
    (void)mu_buf_adds(b, n > 0 ? "\n" : "");
}

static const char *nothing_of(enum cli_verb verb, bool over)
{
    if (verb == CLI_INCIDENTS)
        return "  no end of a round is known of it, so it has no incident\n";
    if (verb == CLI_WORKERS)
        return over ? "  no worker of it is known\n" : "  no worker of it runs yet\n";
    return verb == CLI_NODES ? "  no agent of it is known\n" : "";
}

void cli_page_submission(struct mu_buf *out,
                         const cJSON *job,
                         enum cli_verb verb,
                         const struct cli_style *style)
{
    const char *state = cli_text(job, "state");
    int64_t status = cli_number(job, "exit_status", -1);
    struct mu_buf b;
    mu_buf_init(&b, out->mem);
    cli_add_coloured(&b, style, CLI_BOLD, cli_text(job, "id"));
    (void)mu_buf_adds(&b, "  ");
    cli_add_coloured(&b, style, colour_of(state), state);
    if (status >= 0)
        (void)mu_buf_addf(&b, ", exit status %" PRId64, status);
    (void)mu_buf_adds(&b, "\n  ");
    cli_add_plain(&b, said_once(cli_text(job, "sentence"), state));
    (void)mu_buf_adds(&b, "\n");
    add_placed(&b, job);
    (void)mu_buf_adds(&b, nothing_of(verb, cli_submission_is_over(job)));
    cli_add_cut(out, style, mu_buf_cstr(&b));
    out->oom = out->oom || b.oom;
    mu_buf_fini(&b);
}

int64_t cli_submission_workers(const cJSON *job)
{
    const char *nodes = cli_text(job, "nnodes");
    const char *colon = strchr(nodes, ':');
    int64_t nproc = cli_number(job, "nproc_per_node", 0);
    uint32_t most = 0;
    if (mu_parse_u32(colon != NULL ? colon + 1 : nodes, 1, MU_NODES_MAX, "", &most, NULL) < 0)
        return 0;
    return nproc > 0 && nproc <= MU_WORKERS_MAX ? nproc * most : 0;
}

bool cli_submission_is_on(const cJSON *job, const char *host, struct mu_buf *ret)
{
    const cJSON *place = NULL;
    bool found = false;
    int n = 0;
    cJSON_ArrayForEach(place, cli_list(job, "placed"))
    {
        found = found || strcmp(cli_text(place, "host"), host) == 0;
        (void)mu_buf_addf(ret, "%s%.60s", n++ > 0 ? ", " : "", cli_text(place, "host"));
    }
    return found || n == 0;
}

cJSON *cli_select_submission(const cJSON *job, enum cli_verb verb)
{
    if (verb == CLI_STATUS)
        return cJSON_Duplicate(job, true);
    if (verb != CLI_INCIDENTS)
        return cJSON_CreateArray();
    cJSON *o = cJSON_CreateObject();
    if (o != NULL && cJSON_AddStringToObject(o, "id", cli_text(job, "id")) != NULL &&
        cJSON_AddNumberToObject(o, "left_out", 0) != NULL &&
        cJSON_AddArrayToObject(o, "incidents") != NULL)
        return o;
    cJSON_Delete(o);
    return NULL;
}
