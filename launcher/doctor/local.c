#include "launcher/doctor/local.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/limits.h"
#include "launcher/doctor/net.h"

void fact_unknown(cJSON *o, const char *key, const char *fmt, ...)
{
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    cJSON *why = cJSON_AddObjectToObject(o, key);
    (void)cJSON_AddStringToObject(why, "unknown", text);
}

void fact_num(cJSON *o, const char *key, double v)
{
    (void)cJSON_AddNumberToObject(o, key, v);
}

void fact_text(cJSON *o, const char *key, const char *v)
{
    (void)cJSON_AddStringToObject(o, key, v);
}

void fact_bool(cJSON *o, const char *key, bool v)
{
    (void)cJSON_AddBoolToObject(o, key, v);
}

int local_read_line(const char *path, char *ret, size_t cap)
{
    MU_CLEANUP(mu_closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    ssize_t n = read(fd, ret, cap - 1);
    if (n < 0)
        return -errno;
    ret[n] = '\0';
    ret[strcspn(ret, "\n")] = '\0';
    return 0;
}

int local_read_num(const char *path, double *ret)
{
    char line[64];
    int64_t v = -1;
    int r = local_read_line(path, line, sizeof line);
    if (r == 0 && strcmp(line, "max") != 0)
        r = mu_parse_i64(line, INT64_MIN, INT64_MAX, path, &v, NULL);
    if (r == 0)
        *ret = (double)v;
    return r;
}

/* Namespaces of one machine share its boot id: each with a network of its own counts as one. */
static void add_machine(cJSON *o)
{
    char boot[64] = "";
    char net[64] = "";
    char both[160];
    ssize_t n = readlink("/proc/self/ns/net", net, sizeof net - 1);
    if (local_read_line("/proc/sys/kernel/random/boot_id", boot, sizeof boot) < 0 || n < 0) {
        fact_unknown(o, "machine", "/proc cannot be read");
        return;
    }
    (void)snprintf(both, sizeof both, "%s %s", boot, net);
    fact_text(o, "machine", both);
}

static void add_names(cJSON *o, int64_t limit_ns)
{
    char host[MU_HOST_BYTES] = "";
    char addrs[NET_ADDRESSES_MAX][MU_ADDR_BYTES];
    char full[256] = "";
    if (gethostname(host, sizeof host - 1) < 0)
        host[0] = '\0';
    fact_text(o, "host", host);
    (void)cJSON_AddItemToObject(o, "own_name", net_resolve_fact(host, limit_ns));
    if (net_resolve(host, limit_ns, addrs, full, sizeof full, NULL) > 0 &&
        strchr(full, '.') != NULL && strncmp(full, "localhost", 9) != 0)
        fact_text(o, "full_name", full);
}

cJSON *local_facts(const struct local_ask *ask)
{
    cJSON *o = cJSON_CreateObject();
    add_names(o, ask->limit_ns);
    add_machine(o);
    fact_text(o, "muster", MUSTER_VERSION);
    local_add_network(o, ask->limit_ns);
    if (ask->server != NULL)
        local_add_server(o, ask->server, ask->limit_ns);
    if (ask->brief)
        return o;
    struct utsname u;
    if (uname(&u) == 0)
        fact_text(o, "kernel", u.release);
    local_add_limits(o, ask->log_dir);
    local_add_gpus(o);
    return o;
}
