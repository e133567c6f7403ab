#include "launcher/doctor/facts.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void doc_see(struct doc_said *s, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(s->seen, sizeof s->seen, fmt, ap); /* A cut sentence is still one. */
    va_end(ap);
}

void doc_cure(struct doc_said *s, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(s->remedy, sizeof s->remedy, fmt, ap);
    va_end(ap);
}

static const cJSON *known(const cJSON *facts, const char *key, struct doc_said *s)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(facts, key);
    const cJSON *why = cJSON_IsObject(v) ? cJSON_GetObjectItemCaseSensitive(v, "unknown") : NULL;
    if (v != NULL && why == NULL)
        return v;
    if (s != NULL)
        doc_see(s, "%s", cJSON_IsString(why) ? why->valuestring : "it was not looked at");
    return NULL;
}

bool doc_num(const cJSON *facts, const char *key, double *ret, struct doc_said *s)
{
    const cJSON *v = known(facts, key, s);
    if (!cJSON_IsNumber(v))
        return false;
    *ret = v->valuedouble;
    return true;
}

bool doc_text(const cJSON *facts, const char *key, const char **ret, struct doc_said *s)
{
    const cJSON *v = known(facts, key, s);
    if (!cJSON_IsString(v))
        return false;
    *ret = v->valuestring;
    return true;
}

bool doc_list(const cJSON *facts, const char *key, const cJSON **ret, struct doc_said *s)
{
    const cJSON *v = known(facts, key, s);
    if (!cJSON_IsArray(v))
        return false;
    *ret = v;
    return true;
}

bool doc_no_address(const cJSON *facts, const char *key, const char *name, struct doc_said *s)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(facts, key);
    const char *why = "";
    if (doc_text(v, "failed", &why, NULL))
        doc_see(s, "%.100s cannot be looked up here: %s", name, why);
    else if (doc_is(v, "has_none"))
        doc_see(s, "%.100s has no address here", name);
    else
        return false;
    return true;
}

bool doc_is(const cJSON *facts, const char *key)
{
    return cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(facts, key));
}

const char *doc_bytes(double bytes, char *buf)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB"};
    size_t i = 0;
    if (bytes < 0) {
        (void)snprintf(buf, DOC_BYTES_TEXT, "no limit");
        return buf;
    }
    for (; bytes >= 1024 && i + 1 < MU_COUNT(units); i++)
        bytes /= 1024;
    (void)snprintf(buf, DOC_BYTES_TEXT, "%.*f %s", i == 0 || bytes >= 100 ? 0 : 1, bytes, units[i]);
    return buf;
}

const char *doc_rate(double bytes_per_s, char *buf)
{
    double bits = bytes_per_s * 8;
    if (bits >= 1e9)
        (void)snprintf(buf, DOC_BYTES_TEXT, "%.1f Gbit/s", bits / 1e9);
    else
        (void)snprintf(buf, DOC_BYTES_TEXT, "%.1f Mbit/s", bits / 1e6);
    return buf;
}

const char *doc_ms(double ms, char *buf)
{
    if (ms < 10)
        (void)snprintf(buf, DOC_BYTES_TEXT, "%.2f ms", ms);
    else if (ms < 10000)
        (void)snprintf(buf, DOC_BYTES_TEXT, "%.0f ms", ms);
    else
        (void)snprintf(buf, DOC_BYTES_TEXT, "%.0f s", ms / 1000);
    return buf;
}

bool doc_is_loopback(const char *addr)
{
    return strncmp(addr, "127.", 4) == 0 || strcmp(addr, "::1") == 0;
}

bool doc_is_v6(const char *addr)
{
    return strchr(addr, ':') != NULL;
}
