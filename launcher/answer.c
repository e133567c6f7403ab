#include "launcher/answer.h"

#include <errno.h>
#include <string.h>

#include "base/date.h"
#include "launcher/words.h"

cJSON *cli_answer_parse(const char *body, size_t n, const char *where, struct mu_err *err)
{
    cJSON *answer = cJSON_ParseWithLength(body, n);
    if (cJSON_IsObject(answer) && cJSON_IsArray(cJSON_GetObjectItemCaseSensitive(answer, "jobs")))
        return answer;
    cJSON_Delete(answer);
    (void)mu_err_set(err, -EPROTO,
                     "%s answers HTTP, but not as an rdzv-server: is this the right port?", where);
    return NULL;
}

static const cJSON *member(const cJSON *o, const char *key)
{
    return o != NULL ? cJSON_GetObjectItemCaseSensitive(o, key) : NULL;
}

const char *cli_text(const cJSON *o, const char *key)
{
    const cJSON *v = member(o, key);
    return cJSON_IsString(v) ? v->valuestring : "";
}

int64_t cli_number(const cJSON *o, const char *key, int64_t absent)
{
    const cJSON *v = member(o, key);
    return cJSON_IsNumber(v) && v->valuedouble > -9e15 && v->valuedouble < 9e15
               ? (int64_t)v->valuedouble
               : absent;
}

bool cli_is_true(const cJSON *o, const char *key)
{
    return cJSON_IsTrue(member(o, key));
}

const cJSON *cli_list(const cJSON *o, const char *key)
{
    const cJSON *v = member(o, key);
    return cJSON_IsArray(v) ? v : NULL;
}

const cJSON *cli_object(const cJSON *o, const char *key)
{
    const cJSON *v = member(o, key);
    return cJSON_IsObject(v) ? v : NULL;
}

int64_t cli_age_ms(const cJSON *answer, const cJSON *o, const char *key)
{
    int64_t now = 0;
    int64_t then = 0;
    if (cli_time_parse(cli_text(answer, "now"), &now) < 0 ||
        cli_time_parse(cli_text(o, key), &then) < 0)
        return -1;
    return now > then ? now - then : 0;
}

static void add_number(cJSON *o, const char *key, double n)
{
    cJSON *v = cJSON_GetObjectItemCaseSensitive(o, key);
    if (cJSON_IsNumber(v))
        (void)cJSON_SetNumberHelper(v, v->valuedouble + n);
}

void cli_answer_age(cJSON *answer, int64_t ms)
{
    char text[32];
    int64_t now = 0;
    cJSON *job = NULL;
    cJSON *node = NULL;
    if (cli_time_parse(cli_text(answer, "now"), &now) == 0)
        (void)cJSON_SetValuestring(cJSON_GetObjectItemCaseSensitive(answer, "now"),
                                   mu_date(now + ms, text));
    add_number(answer, "uptime_s", (double)ms / 1e3);
    cJSON_ArrayForEach(job, cJSON_GetObjectItemCaseSensitive(answer, "jobs"))
    {
        cJSON_ArrayForEach(node, cJSON_GetObjectItemCaseSensitive(job, "nodes"))
            add_number(node, "heard_ms_ago", (double)ms);
    }
}

bool cli_job_is_over(const cJSON *job)
{
    const char *state = cli_text(job, "state");
    return strcmp(state, "succeeded") == 0 || strcmp(state, "failed") == 0 ||
           strcmp(state, "stopped") == 0;
}

const cJSON *cli_job_find(const cJSON *answer, const char *id)
{
    const cJSON *job = NULL;
    /* Living ones come first, then ended ones, the last one first. */
    cJSON_ArrayForEach(job, cli_list(answer, "jobs")) if (strcmp(cli_text(job, "id"), id) ==
                                                          0) return job;
    return NULL;
}
