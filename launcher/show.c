#include "launcher/show.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "launcher/answer.h"
#include "launcher/ask.h"
#include "launcher/http.h"
#include "launcher/incidents.h"
#include "launcher/job_page.h"
#include "launcher/pages.h"
#include "launcher/pool_page.h"
#include "launcher/select.h"
#include "launcher/events.h"

#define LINES_ELSEWHERE 40 /* Of a job's nodes, where there is no terminal whose height says. */

struct view {
    const struct cli_options *o;
    struct cli_http *http;
    struct mu_buf body;
    struct mu_buf page;
    struct mu_buf plain;       /* The page before the terminal's codes. */
    struct cli_events *stream; /* NULL: none is open. */
    int64_t told_ns;           /* Of when the answer that is shown is. */
    bool polls;                /* The server is older than its streams, or has too many. */
    bool terminal;
    bool drawn;
};

bool cli_wants_colour(void)
{
    const char *no = getenv("NO_COLOR");
    const char *term = getenv("TERM");
    return (no == NULL || no[0] == '\0') && (term == NULL || strcmp(term, "dumb") != 0);
}

static struct cli_style style_of(const struct view *v)
{
    struct winsize size = {0};
    bool wanted = v->terminal && cli_wants_colour();
    struct cli_style s = {.terminal = v->terminal,
                          .colour =
                              v->o->colour == CLI_ALWAYS || (v->o->colour == CLI_AUTO && wanted)};
    if (v->terminal && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0)
        s.width = size.ws_col;
    if (v->o->verb == CLI_STATUS)
        s.lines = v->o->watch && size.ws_row > 12 ? size.ws_row - 8U : LINES_ELSEWHERE;
    return s;
}

/* Returns 0, or -EIO: stdout takes no more. */
static int put(const struct mu_buf *b)
{
    bool good = fwrite(b->p, 1, b->n, stdout) == b->n && fflush(stdout) == 0;
    return good ? 0 : -EIO;
}

static int draw_part(struct view *v, const cJSON *part, struct mu_err *err)
{
    char *text = part == NULL  ? NULL
                 : v->o->watch ? cJSON_PrintUnformatted(part)
                               : cJSON_Print(part);
    if (text == NULL)
        return mu_err_set(err, -ENOMEM, "no memory for the answer");
    mu_buf_reset(&v->page);
    (void)mu_buf_addf(&v->page, "%s\n", text);
    cJSON_free(text);
    return v->page.oom ? mu_err_set(err, -ENOMEM, "no memory for the answer") : put(&v->page);
}

static int draw_json(struct view *v, const cJSON *answer, struct mu_err *err)
{
    cJSON *part = cli_select(answer, v->o->verb, v->o->job);
    int r = draw_part(v, part, err);
    cJSON_Delete(part);
    return r;
}

/* From the terminal's upper left corner, each line's rest and what is below cleared: no flicker. */
static void overdraw(struct mu_buf *page, struct mu_buf *from)
{
    mu_buf_reset(page);
    (void)mu_buf_adds(page, "\033[H");
    for (const char *p = mu_buf_cstr(from); *p != '\0';) {
        size_t n = strcspn(p, "\n");
        (void)mu_buf_add(page, p, n);
        (void)mu_buf_adds(page, "\033[K\n");
        p += n + (p[n] == '\n');
    }
    (void)mu_buf_adds(page, "\033[J");
}

/* What is in v->plain, in the way that the terminal needs. */
static int put_page(struct view *v, struct mu_err *err)
{
    if (v->o->watch && v->terminal)
        overdraw(&v->page, &v->plain);
    else {
        mu_buf_reset(&v->page);
        (void)mu_buf_addf(&v->page, "%s%s", v->drawn ? "\n" : "", mu_buf_cstr(&v->plain));
    }
    if (v->page.oom || v->plain.oom)
        return mu_err_set(err, -ENOMEM, "no memory for the page");
    if (v->o->watch && v->terminal && !v->drawn)
        (void)fputs("\033[2J", stdout);
    return put(&v->page);
}

static int draw_text(struct view *v, const cJSON *answer, const char *trouble, struct mu_err *err)
{
    struct cli_style style = style_of(v);
    mu_buf_reset(&v->plain);
    if (trouble != NULL)
        (void)mu_buf_addf(&v->plain, "%s\nwhat it said last:\n\n", trouble);
    switch (v->o->verb) {
    case CLI_STATUS:
        cli_page_status(&v->plain, answer, cli_http_where(v->http), v->o->job, &style);
        break;
    case CLI_JOBS:
        cli_page_jobs(&v->plain, answer, &style);
        break;
    case CLI_NODES:
        cli_page_nodes(&v->plain, answer, v->o->job, &style);
        break;
    case CLI_WORKERS:
        cli_page_workers(&v->plain, answer, v->o->job, &style);
        break;
    case CLI_POOL:
        cli_page_pool(&v->plain, answer, &style);
        break;
    case CLI_INCIDENTS: /* From other answers: show_incidents(). */
    case CLI_STORE:     /* store.c */
    case CLI_TOKEN:     /* token.c */
    case CLI_DRAIN:     /* These show no page. */
    case CLI_RUN:
    case CLI_LOGS:
    case CLI_ATTACH:
    case CLI_STOP:
    case CLI_RESUME:
    case CLI_UNDRAIN:
    case CLI_DOCTOR: /* It is another program: doctor.c. */
    case CLI_VERB_COUNT:
        break;
    }
    return put_page(v, err);
}

/* The first three of them are named. */
static void name_job(struct mu_buf *b, const cJSON *job, int before)
{
    char id[48];
    const char *text = cli_text(job, "id");
    if (before < 3)
        (void)mu_buf_addf(b, "%s%s", before > 0 ? ", " : "",
                          mu_quote(id, sizeof id, mu_str_of(text, strlen(text))));
}

static int no_such_job(const struct view *v, const cJSON *answer, struct mu_err *err)
{
    struct mu_buf b;
    char shown[80];
    const cJSON *job = NULL;
    int n = 0;
    mu_buf_init(&b, mu_mem_default());
    cJSON_ArrayForEach(job, cli_list(answer, "jobs")) name_job(&b, job, n++);
    for (job = cli_queued_next(answer, NULL); job != NULL; job = cli_queued_next(answer, job))
        name_job(&b, job, n++);
    (void)mu_quote(shown, sizeof shown, mu_str_of(v->o->job, strlen(v->o->job)));
    int r = n == 0 ? mu_err_set(err, -ENOENT, "there is no job %s at %s, nor any other", shown,
                                cli_http_where(v->http))
                   : mu_err_set(err, -ENOENT,
                                "there is no job %s at %s; there is %s%s: muster jobs", shown,
                                cli_http_where(v->http), mu_buf_cstr(&b), n > 3 ? " and more" : "");
    mu_buf_fini(&b);
    return r;
}

/* The exit status of a watched job that is over; -1 while it lives. */
static int outcome(const struct cli_options *o, const cJSON *answer)
{
    const char *state = o->job != NULL ? cli_text(cli_job_find(answer, o->job), "state") : "";
    if (strcmp(state, "succeeded") == 0)
        return 0;
    return strcmp(state, "failed") == 0 || strcmp(state, "stopped") == 0 ? 1 : -1;
}

/* Does the status have what is to be said of the job? Not of one that ended and waits anew. */
static bool is_in_status(const struct view *v, const cJSON *answer)
{
    const cJSON *job = cli_job_find(answer, v->o->job);
    const cJSON *q = NULL;
    if (job != NULL && cli_job_is_over(job))
        cJSON_ArrayForEach(q, cli_list(cli_object(answer, "pool"), "queue"))
        {
            if (strcmp(cli_text(q, "id"), v->o->job) == 0)
                return false;
        }
    return job != NULL;
}

static void rest(int64_t ns)
{
    struct timespec t = {ns / MU_NS_PER_S, ns % MU_NS_PER_S};
    (void)clock_nanosleep(CLOCK_MONOTONIC, 0, &t,
                          NULL); /* A signal that does not end us just draws sooner. */
}

/* Ask once. The tree is the caller's; NULL with a sentence. */
static cJSON *ask(struct view *v, struct mu_err *err)
{
    if (cli_http_get(v->http, "/status", v->o->timeout_ns, &v->body, err) < 0)
        return NULL;
    return cli_answer_parse(v->body.p, v->body.n, cli_http_where(v->http), err);
}

enum news {
    NEWS_CHANGED, /* There is another answer. */
    NEWS_NONE,    /* Only ages are not as they were. */
    NEWS_AWAY     /* The server is away; err has the sentence. */
};

static enum news asked(struct view *v, cJSON **ret, struct mu_err *err)
{
    *ret = ask(v, err);
    return *ret != NULL ? NEWS_CHANGED : NEWS_AWAY;
}

/* Wait for what is to be drawn next: for an event, or, where the server has none, for the time to
 * ask again. */
static enum news await(struct view *v, cJSON **ret, struct mu_err *err)
{
    *ret = NULL;
    if (v->polls) {
        rest(v->o->interval_ns);
        return asked(v, ret, err);
    }
    if (v->stream == NULL)
        v->stream = cli_events_new(v->http, "/v1/events", v->o->timeout_ns, err);
    int r =
        v->stream != NULL ? cli_events_next(v->stream, v->o->interval_ns, &v->body, err) : -ENOMEM;
    if (r == 0)
        return NEWS_NONE;
    if (r > 0)
        *ret = cli_answer_parse(v->body.p, v->body.n, cli_http_where(v->http), err);
    if (*ret != NULL)
        return NEWS_CHANGED;
    cli_events_free(v->stream);
    v->stream = NULL;
    v->polls = r == -ENODATA;
    if (v->polls)
        return asked(v, ret, err);
    rest(v->o->interval_ns);
    return NEWS_AWAY;
}

/* Draw it as it is now, older by the time that has passed. */
static int draw_older(struct view *v, cJSON *answer, struct mu_err *err)
{
    int64_t now_ns = mu_now_ns();
    if (v->o->json)
        return 0;
    cli_answer_age(answer, (now_ns - v->told_ns) / MU_NS_PER_MS);
    v->told_ns = now_ns;
    return draw_text(v, answer, NULL, err);
}

/* --- a job that the pool alone knows --- */

static int draw_submission(struct view *v, const cJSON *job, struct mu_err *err)
{
    struct cli_style style = style_of(v);
    if (v->o->json) {
        cJSON *part = cli_select_submission(job, v->o->verb);
        int r = draw_part(v, part, err);
        cJSON_Delete(part);
        return r;
    }
    mu_buf_reset(&v->plain);
    cli_page_submission(&v->plain, job, v->o->verb, &style);
    return put_page(v, err);
}

/* Neither in status nor in the pool: what status has is said. */
static cJSON *ask_pool(struct view *v, const cJSON *answer, struct mu_err *err)
{
    cJSON *job = cli_ask_submission(v->http, v->o, v->o->job, err);
    if (job == NULL && (err->code == -ENOENT || err->code == -ENOTSUP))
        (void)no_such_job(v, answer, err);
    return job;
}

/* Draw it where it is another than `text`, what was drawn last. */
static int draw_if_new(struct view *v, const cJSON *job, char **text, struct mu_err *err)
{
    char *now = cJSON_PrintUnformatted(job);
    bool same = now != NULL && *text != NULL && strcmp(now, *text) == 0;
    cJSON_free(*text);
    *text = now;
    int r = same ? 0 : draw_submission(v, job, err);
    v->drawn = true;
    return r;
}

static bool is_away(const struct mu_err *err)
{
    return err->code == -ECONNREFUSED || err->code == -ETIMEDOUT || err->code == -EAGAIN;
}

/* The server is away: that is said once, and what it had said is drawn anew when it is back. */
static int draw_away(struct view *v, char **text, struct mu_err *err)
{
    bool said = *text == NULL;
    cJSON_free(*text);
    *text = NULL;
    if (v->o->json || said)
        return 0;
    mu_buf_reset(&v->plain);
    (void)mu_buf_addf(&v->plain, "%s\n", err->msg);
    return put_page(v, err);
}

/* One look at it. Returns the exit status; -1: look again. */
static int look_at_submission(struct view *v, const cJSON *answer, char **text, struct mu_err *err)
{
    int status = -1;
    cJSON *job = ask_pool(v, answer, err);
    if (job == NULL && v->o->watch && v->drawn && is_away(err))
        status = draw_away(v, text, err) < 0 ? 1 : -1;
    else if (job == NULL || draw_if_new(v, job, text, err) < 0)
        status = 1;
    else if (!v->o->watch)
        status = 0;
    else if (cli_submission_is_over(job))
        status = strcmp(cli_text(job, "state"), "done") != 0;
    cJSON_Delete(job);
    return status;
}

/* Show it; with --watch until the status has it, which is then in *answer and the result -1, or it
 * is over. Returns the exit status. */
static int show_submission(struct view *v, cJSON **answer, struct mu_err *err)
{
    char *text = NULL;
    int status = -1;
    while (!is_in_status(v, *answer)) {
        status = look_at_submission(v, *answer, &text, err);
        if (status >= 0)
            break;
        rest(v->o->interval_ns);
        cJSON *next = ask(v, err);
        if (next == NULL)
            continue; /* Then the pool is not there either, which says so. */
        cJSON_Delete(*answer);
        *answer = next;
    }
    cJSON_free(text);
    return status;
}

/* --- again and again --- */

/* Draws until the job ends or stdout does; a server that is away for a while is said, and asked
 * again. */
static int watch(struct view *v, cJSON *answer, struct mu_err *err)
{
    int status = -1;
    while (status < 0) {
        cJSON *next = NULL;
        enum news news = await(v, &next, err);
        if (news != NEWS_CHANGED) {
            int r = news == NEWS_NONE ? draw_older(v, answer, err)
                    : v->o->json      ? 0
                                      : draw_text(v, answer, err->msg, err);
            if (r < 0)
                break;
            continue;
        }
        cJSON_Delete(answer);
        answer = next;
        v->told_ns = mu_now_ns();
        status = v->o->job != NULL ? show_submission(v, &answer, err) : -1;
        if (status >= 0 ||
            (v->o->json ? draw_json(v, answer, err) : draw_text(v, answer, NULL, err)) < 0)
            break;
        status = outcome(v->o, answer);
    }
    cJSON_Delete(answer);
    cli_events_free(v->stream);
    return status;
}

static int show(struct view *v, struct mu_err *err)
{
    cJSON *answer = ask(v, err);
    if (answer == NULL)
        return 1;
    int status = v->o->job != NULL ? show_submission(v, &answer, err) : -1;
    if (status >= 0) {
        cJSON_Delete(answer);
        return status;
    }
    int r = v->o->json ? draw_json(v, answer, err) : draw_text(v, answer, NULL, err);
    v->drawn = true;
    v->told_ns = mu_now_ns();
    status = r < 0 ? 1 : outcome(v->o, answer);
    if (r < 0 || !v->o->watch || status >= 0) {
        cJSON_Delete(answer);
        return r < 0 ? 1 : v->o->watch ? status : 0;
    }
    status = watch(v, answer, err);
    return status < 0 ? 1 : status;
}

/* --- incidents: an answer of its own for each job --- */

/* "/jobs/ID/incidents", the id's bytes escaped as RFC 3986 wants it. */
static void incidents_path(const char *id, struct mu_buf *path)
{
    mu_buf_reset(path);
    (void)mu_buf_adds(path, "/jobs/");
    for (const unsigned char *p = (const unsigned char *)id; *p != '\0'; p++) {
        bool plain = (*p >= '0' && *p <= '9') || (*p >= 'A' && *p <= 'Z') ||
                     (*p >= 'a' && *p <= 'z') || strchr("-._~", *p) != NULL;
        if (plain)
            (void)mu_buf_add(path, p, 1);
        else
            (void)mu_buf_addf(path, "%%%02X", *p);
    }
    (void)mu_buf_adds(path, "/incidents");
}

/* The server has no such page: is it the job that is missing, or the page? A job that the pool
 * alone knows is shown. */
static int explain_missing(struct view *v, const char *id, struct mu_err *err)
{
    cJSON *answer = ask(v, err);
    if (answer == NULL)
        return -EPROTO;
    cJSON *job =
        v->o->job != NULL && cli_job_find(answer, id) == NULL ? ask_pool(v, answer, err) : NULL;
    if (job != NULL && v->o->number > 0)
        (void)mu_err_set(err, -ENOENT,
                         "job %.80s has no incident: no end of a round is known of it", id);
    else if (job != NULL)
        v->drawn = draw_submission(v, job, err) == 0;
    else if (cli_job_find(answer, id) != NULL)
        (void)mu_err_set(err, -ENOTSUP,
                         "the rdzv-server at %s is of version %.20s, which keeps no incidents: "
                         "muster status shows the last cause",
                         cli_http_where(v->http), cli_text(answer, "version"));
    cJSON_Delete(job);
    cJSON_Delete(answer);
    return -ENOENT;
}

/* One job's answer. The tree is the caller's; NULL with a sentence. */
static cJSON *ask_incidents(struct view *v, const char *id, struct mu_err *err)
{
    incidents_path(id, &v->page);
    int r = v->page.oom
                ? mu_err_set(err, -ENOMEM, "no memory for the question")
                : cli_http_get(v->http, mu_buf_cstr(&v->page), v->o->timeout_ns, &v->body, err);
    if (r == -ENODATA)
        (void)explain_missing(v, id, err);
    if (r < 0)
        return NULL;
    cJSON *answer = cJSON_ParseWithLength(v->body.p, v->body.n);
    if (cli_list(answer, "incidents") != NULL)
        return answer;
    cJSON_Delete(answer);
    (void)mu_err_set(err, -EPROTO,
                     "%s answers HTTP, but not as an rdzv-server: is this the right port?",
                     cli_http_where(v->http));
    return NULL;
}

/* The answers of all jobs, or of the one that is meant. A job that is dropped between two questions
 * is left out. */
static cJSON *gather_incidents(struct view *v, struct mu_err *err)
{
    cJSON *answers = cJSON_CreateArray();
    cJSON *status = v->o->job == NULL ? ask(v, err) : NULL;
    const cJSON *job = NULL;
    bool good = answers != NULL && (v->o->job != NULL || status != NULL);
    if (v->o->job != NULL) {
        cJSON *answer = ask_incidents(v, v->o->job, err);
        good = good && answer != NULL && cJSON_AddItemToArray(answers, answer);
    }
    cJSON_ArrayForEach(job, cli_list(status, "jobs"))
    {
        const char *id = cli_text(job, "id");
        struct mu_err gone = {0};
        if (cli_job_find(status, id) != job)
            continue; /* Of several with one id the server means one. */
        cJSON *answer = ask_incidents(v, id, &gone);
        if (answer != NULL)
            (void)cJSON_AddItemToArray(answers, answer);
    }
    cJSON_Delete(status);
    if (good)
        return answers;
    if (err->msg[0] == '\0')
        (void)mu_err_set(err, -ENOMEM, "no memory for the answer");
    cJSON_Delete(answers);
    return NULL;
}

static int show_incidents(struct view *v, struct mu_err *err)
{
    struct cli_style style = style_of(v);
    cJSON *answers = gather_incidents(v, err);
    if (answers == NULL)
        return !v->drawn;
    const cJSON *only = v->o->job != NULL ? cJSON_GetArrayItem(answers, 0) : NULL;
    const cJSON *one = v->o->number > 0 ? cli_incident_find(only, v->o->number, err) : NULL;
    int r = 0;
    if (v->o->number > 0 && one == NULL) {
        r = -ENOENT;
    } else if (v->o->json) {
        r = draw_part(v, one != NULL ? one : only != NULL ? only : answers, err);
    } else {
        mu_buf_reset(&v->page);
        if (one != NULL)
            cli_page_incident(&v->page, only, one, &style);
        else
            cli_page_incidents(&v->page, answers, &style);
        r = v->page.oom ? mu_err_set(err, -ENOMEM, "no memory for the page") : put(&v->page);
    }
    cJSON_Delete(answers);
    return r < 0;
}

int cli_show(const struct cli_options *o)
{
    struct mu_err err = {0};
    struct view v = {.o = o, .terminal = isatty(STDOUT_FILENO) == 1};
    mu_buf_init(&v.body, mu_mem_default());
    mu_buf_init(&v.page, mu_mem_default());
    mu_buf_init(&v.plain, mu_mem_default());
    v.http = cli_http_new(o, &err);
    int status = v.http == NULL             ? 1
                 : o->verb == CLI_INCIDENTS ? show_incidents(&v, &err)
                                            : show(&v, &err);
    if (ferror(stdout))
        (void)mu_err_set(&err, -EIO, "standard output takes no more: %s", strerror(errno));
    if (status != 0 && err.msg[0] != '\0')
        (void)fprintf(stderr, "muster %s: %s\n", cli_verb_name(o->verb), err.msg);
    cli_http_free(v.http);
    mu_buf_fini(&v.body);
    mu_buf_fini(&v.page);
    mu_buf_fini(&v.plain);
    return status;
}
