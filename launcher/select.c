#include "launcher/select.h"

#include "launcher/answer.h"
#include "launcher/pool_page.h"

/* Copies `item` behind the list. Returns the copy, or NULL. */
static cJSON *add_copy(cJSON *list, const cJSON *item)
{
    cJSON *copy = cJSON_Duplicate(item, true);
    if (copy == NULL || !cJSON_AddItemToArray(list, copy)) {
        cJSON_Delete(copy);
        return NULL;
    }
    return copy;
}

static bool add_jobs(cJSON *list, const cJSON *answer)
{
    const cJSON *job = NULL;
    cJSON_ArrayForEach(job, cli_list(answer, "jobs"))
    {
        cJSON *copy = add_copy(list, job);
        if (copy == NULL)
            return false;
        cJSON_DeleteItemFromObjectCaseSensitive(copy, "nodes");
    }
    for (const cJSON *q = cli_queued_next(answer, NULL); q != NULL; q = cli_queued_next(answer, q))
        if (add_copy(list, q) == NULL)
            return false;
    cJSON_ArrayForEach(job, cli_list(cli_object(answer, "pool"), "ended"))
    {
        if (add_copy(list, job) == NULL)
            return false;
    }
    return true;
}

static bool add_workers(cJSON *list, const cJSON *job, const cJSON *node)
{
    const cJSON *w = NULL;
    cJSON_ArrayForEach(w, cli_list(node, "workers"))
    {
        cJSON *copy = add_copy(list, w);
        int64_t rank = cli_number(node, "node_rank", -1);
        if (copy == NULL || cJSON_AddStringToObject(copy, "job", cli_text(job, "id")) == NULL ||
            cJSON_AddStringToObject(copy, "host", cli_text(node, "host")) == NULL)
            return false;
        cJSON *added = rank >= 0 ? cJSON_AddNumberToObject(copy, "node_rank", (double)rank)
                                 : cJSON_AddNullToObject(copy, "node_rank");
        if (added == NULL)
            return false;
    }
    return true;
}

static bool add_node(cJSON *list, const cJSON *job, const cJSON *node)
{
    cJSON *copy = add_copy(list, node);
    return copy != NULL && cJSON_AddStringToObject(copy, "job", cli_text(job, "id")) != NULL;
}

static bool add_nodes(cJSON *list, const cJSON *answer, bool workers, const char *job_id)
{
    const cJSON *only = job_id != NULL ? cli_job_find(answer, job_id) : NULL;
    const cJSON *job = NULL;
    const cJSON *node = NULL;
    cJSON_ArrayForEach(job, cli_list(answer, "jobs"))
    {
        if (only != NULL ? job != only : cli_job_is_over(job))
            continue;
        cJSON_ArrayForEach(
            node, cli_list(job, "nodes")) if (!(workers ? add_workers(list, job, node)
                                                        : add_node(list, job, node))) return false;
    }
    return true;
}

cJSON *cli_select(const cJSON *answer, enum cli_verb verb, const char *job_id)
{
    if (verb == CLI_STATUS)
        return cJSON_Duplicate(job_id != NULL ? cli_job_find(answer, job_id) : answer, true);
    if (verb == CLI_POOL) {
        const cJSON *pool = cli_object(answer, "pool");
        return pool != NULL ? cJSON_Duplicate(pool, true) : cJSON_CreateObject();
    }
    cJSON *list = cJSON_CreateArray();
    if (list == NULL)
        return NULL;
    bool whole = verb == CLI_INCIDENTS ? true
                 : verb == CLI_JOBS    ? add_jobs(list, answer)
                                       : add_nodes(list, answer, verb == CLI_WORKERS, job_id);
    if (!whole) {
        cJSON_Delete(list);
        return NULL;
    }
    return list;
}
