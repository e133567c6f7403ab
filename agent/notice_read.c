#include "agent/notice_read.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <cJSON.h>

#include "base/cleanup.h"

#define GCP_LEFT_MS 30000 /* What it gives; it tells no time. */

static void cjsonp(cJSON **j)
{
    cJSON_Delete(*j);
}

bool notice_kind_of(const char *text, enum notice_kind *ret)
{
    static const char *const words[] = {
        [NOTICE_AWS] = "aws", [NOTICE_GCP] = "gcp", [NOTICE_AZURE] = "azure"};
    for (size_t i = NOTICE_AWS; i < MU_COUNT(words); i++) {
        if (strcmp(text, words[i]) != 0)
            continue;
        *ret = (enum notice_kind)i;
        return true;
    }
    *ret = NOTICE_URL;
    return strncmp(text, "http://", 7) == 0 || strncmp(text, "https://", 8) == 0;
}

/* --- times --- */

/* Years are counted from March, so that the leap day is their last. */
static int64_t unix_ms_of(int year, int month, int day, int hour, int minute, int second)
{
    int64_t y = month <= 2 ? year - 1 : year;
    int64_t era = y / 400;
    int64_t in_era = y % 400;
    int64_t of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
    int64_t days = era * 146097 + in_era * 365 + in_era / 4 - in_era / 100 + of_year - 719468;
    return ((days * 24 + hour) * 60 + minute) * 60000 + second * INT64_C(1000);
}

/* "2017-09-18T08:22:00Z" (AWS), "Mon, 19 Sep 2016 18:29:47 GMT" (Azure). Negative: neither. */
static int64_t parse_time(const char *text)
{
    static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    char name[4] = "";
    int y = 0;
    int mo = 0;
    int d = 0;
    int h = 0;
    int mi = 0;
    int s = 0;
    if (sscanf(text, "%4d-%2d-%2dT%2d:%2d:%2d", &y, &mo, &d, &h, &mi, &s) != 6) {
        if (sscanf(text, "%*3s, %2d %3s %4d %2d:%2d:%2d", &d, name, &y, &h, &mi, &s) != 6 ||
            strlen(name) != 3)
            return -1;
        const char *at = strstr(months, name);
        mo = at == NULL || (at - months) % 3 != 0 ? 0 : (int)((at - months) / 3) + 1;
    }
    bool good = y >= 1970 && y < 10000 && mo >= 1 && mo <= 12 && d >= 1 && d <= 31 && h >= 0 &&
                h < 24 && mi >= 0 && mi < 60 && s >= 0 && s <= 60;
    return good ? unix_ms_of(y, mo, d, h, mi, s) : -1;
}

static const char *text_of(const cJSON *o, const char *key)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(o, key));
    return text != NULL ? text : "";
}

static void
found(struct notice *ret, const char *who, const char *what, const char *when, int64_t now)
{
    int64_t at = parse_time(when);
    ret->found = true;
    ret->left_ms = at < 0 ? -1 : at > now ? at - now : 0;
    (void)snprintf(ret->reason, sizeof ret->reason, "preemption notice of %s: %.40s%s%.40s", who,
                   what, at < 0 ? "" : " at ", at < 0 ? "" : when);
}

/* --- the services --- */

static int no_service(const char *who, long status, struct mu_err *err)
{
    return mu_err_set(err, -EPROTO, "it does not answer as %s does (HTTP status %ld)", who, status);
}

static int
read_aws(long status, struct mu_str body, int64_t now, struct notice *ret, struct mu_err *err)
{
    if (status == 404)
        return 0;
    MU_CLEANUP(cjsonp) cJSON *o = cJSON_ParseWithLength(body.p, body.n);
    const char *action = text_of(o, "action");
    if (status != 200 || action[0] == '\0')
        return no_service("AWS's metadata service", status, err);
    found(ret, "AWS", action, text_of(o, "time"), now);
    return 0;
}

/* The whole body, but for a line's end. */
static bool says(struct mu_str body, const char *word)
{
    size_t n = strlen(word);
    return body.n >= n && memcmp(body.p, word, n) == 0 &&
           (body.n == n || body.p[n] == '\r' || body.p[n] == '\n');
}

static int read_gcp(long status, struct mu_str body, struct notice *ret, struct mu_err *err)
{
    if (status == 200 && says(body, "FALSE"))
        return 0;
    if (status != 200 || !says(body, "TRUE"))
        return no_service("GCP's metadata service", status, err);
    found(ret, "GCP", "preempted", "", 0);
    ret->left_ms = GCP_LEFT_MS;
    return 0;
}

/* Events are told to all machines of a set, with the names of those that are meant. */
static bool means_us(const cJSON *event, const char *own_name)
{
    const cJSON *name = NULL;
    const cJSON *names = cJSON_GetObjectItemCaseSensitive(event, "Resources");
    if (own_name[0] == '\0' || !cJSON_IsArray(names))
        return true;
    cJSON_ArrayForEach(name, names)
    {
        const char *text = cJSON_GetStringValue(name);
        if (text != NULL && strcmp(text, own_name) == 0)
            return true;
    }
    return false;
}

static int read_azure(long status,
                      struct mu_str body,
                      const char *own_name,
                      int64_t now,
                      struct notice *ret,
                      struct mu_err *err)
{
    MU_CLEANUP(cjsonp) cJSON *o = cJSON_ParseWithLength(body.p, body.n);
    const cJSON *events = cJSON_GetObjectItemCaseSensitive(o, "Events");
    const cJSON *event = NULL;
    if (status != 200 || !cJSON_IsArray(events))
        return no_service("Azure's metadata service", status, err);
    cJSON_ArrayForEach(event, events)
    {
        const char *type = text_of(event, "EventType");
        if ((strcmp(type, "Preempt") != 0 && strcmp(type, "Terminate") != 0) ||
            !means_us(event, own_name))
            continue;
        found(ret, "Azure", type, text_of(event, "NotBefore"), now);
        return 0;
    }
    return 0;
}

static int read_url(long status, struct notice *ret, struct mu_err *err)
{
    if (status == 404 || status == 204)
        return 0;
    if (status != 200)
        return mu_err_set(err, -EPROTO,
                          "HTTP status %ld is neither a notice (200) nor none (404, 204)", status);
    ret->found = true;
    (void)mu_strcopy(ret->reason, sizeof ret->reason, "preemption notice");
    return 0;
}

int notice_read(enum notice_kind kind,
                long status,
                struct mu_str body,
                const char *own_name,
                int64_t now_unix_ms,
                struct notice *ret,
                struct mu_err *err)
{
    *ret = (struct notice){.left_ms = -1};
    switch (kind) {
    case NOTICE_AWS:
        return read_aws(status, body, now_unix_ms, ret, err);
    case NOTICE_GCP:
        return read_gcp(status, body, ret, err);
    case NOTICE_AZURE:
        return read_azure(status, body, own_name, now_unix_ms, ret, err);
    case NOTICE_URL:
        break;
    }
    return read_url(status, ret, err);
}
