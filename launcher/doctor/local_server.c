/* The server of a rendezvous, as seen from here: its name, its port, its clock. */
#include "launcher/doctor/local.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/addr.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "launcher/doctor/net.h"
#include "launcher/words.h"

#define ANSWER_BYTES 4096

/* "now":"2026-11-30T06:46:42.123Z" */
static bool time_in(const char *answer, int64_t *ret_ms)
{
    char text[32];
    const char *p = strstr(answer, "\"now\"");
    if (p == NULL)
        return false;
    p += strlen("\"now\"");
    p += strspn(p, " :\"");
    (void)snprintf(text, sizeof text, "%.24s", p);
    return cli_time_parse(text, ret_ms) == 0;
}

/* What an rdzv-server says of itself comes first in its status. Returns bytes, or negative errno.
 */
static ssize_t ask_status(int fd, char *ret, size_t cap)
{
    static const char request[] = "GET /status HTTP/1.0\r\nHost: doctor\r\n\r\n";
    size_t n = 0;
    if (send(fd, request, sizeof request - 1, MSG_NOSIGNAL) < 0)
        return -errno;
    while (n < cap - 1 && !time_in(ret, &(int64_t){0})) {
        ssize_t r = recv(fd, ret + n, cap - 1 - n, 0);
        if (r < 0)
            return -errno;
        if (r == 0)
            break;
        n += (size_t)r;
        ret[n] = '\0';
    }
    return (ssize_t)n;
}

static void add_answer(cJSON *o, int fd)
{
    char answer[ANSWER_BYTES] = "";
    int64_t theirs_ms = 0;
    int64_t before_ns = mu_now_ns();
    int64_t before_us = mu_unix_us();
    ssize_t n = ask_status(fd, answer, sizeof answer);
    double trip_ms = (double)(mu_now_ns() - before_ns) / 1e6;
    if (n < 0) {
        fact_unknown(o, "is_muster", "%s", net_how((int)n));
        return;
    }
    if (time_in(answer, &theirs_ms)) {
        fact_bool(o, "is_muster", true);
        fact_num(o, "skew_ms", (double)theirs_ms - (double)before_us / 1000 - trip_ms / 2);
        fact_num(o, "rtt_ms", trip_ms);
    } else if (strstr(answer, " 401 ") != NULL || strstr(answer, " 403 ") != NULL)
        fact_unknown(o, "is_muster", "it shows its status to nobody without a token");
    else
        fact_bool(o, "is_muster", false);
}

static int try_addresses(cJSON *o, const cJSON *list, uint16_t port, int64_t limit_ns)
{
    const cJSON *a = NULL;
    int fd = -EHOSTUNREACH;
    cJSON_ArrayForEach(a, list)
    {
        fd = net_connect(a->valuestring, port, limit_ns);
        if (fd < 0)
            continue;
        fact_text(o, "address", a->valuestring);
        return fd;
    }
    return fd;
}

void local_add_server(cJSON *o, const struct mu_endpoint *server, int64_t limit_ns)
{
    cJSON *s = cJSON_AddObjectToObject(o, "server");
    cJSON *list = net_resolve_fact(server->host, limit_ns);
    fact_text(s, "host", server->host);
    fact_num(s, "port", server->port);
    (void)cJSON_AddItemToObject(s, "addresses", list);
    if (!cJSON_IsArray(list)) {
        fact_unknown(s, "how", "the server's name has no address to try");
        return;
    }
    MU_CLEANUP(mu_closep) int fd = try_addresses(s, list, server->port, limit_ns);
    fact_text(s, "how", net_how(fd < 0 ? fd : 0));
    if (fd >= 0)
        add_answer(s, fd);
}
