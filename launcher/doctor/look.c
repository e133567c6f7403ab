#include "launcher/doctor/look.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "launcher/doctor/facts.h"
#include "launcher/doctor/net.h"

struct looking {
    uint16_t port;
    const char *nonce;
    const char *answer;
    const struct look_ask *ask;
    int fd;       /* The first connection that led there; -1. */
    cJSON *known; /* Address: how. Each is tried once. */
};

static const char *try_address(struct looking *l, const char *addr)
{
    const cJSON *before = cJSON_GetObjectItemCaseSensitive(l->known, addr);
    if (before != NULL)
        return before->valuestring;
    if (!l->ask->beat(l->ask->arg))
        return "not tried any more";
    MU_CLEANUP(mu_closep) int fd = net_connect(addr, l->port, l->ask->limit_ns);
    int r = fd >= 0 ? net_greet(fd, l->nonce, l->answer) : fd;
    const char *how = net_how(r);
    (void)cJSON_AddStringToObject(l->known, addr, how);
    if (r == 0 && l->fd < 0)
        l->fd = mu_steal_fd(&fd);
    return how;
}

/* Another node's address, by what that one said of itself? */
static bool is_anothers(const struct looking *l, const char *addr)
{
    for (uint32_t i = 0; i < l->ask->count; i++) {
        const cJSON *list = NULL;
        const cJSON *a = NULL;
        if (i == l->ask->peer || !doc_list(l->ask->nodes[i], "addresses", &list, NULL))
            continue;
        cJSON_ArrayForEach(a, list)
        {
            if (cJSON_IsString(a) && strcmp(a->valuestring, addr) == 0)
                return true;
        }
    }
    return false;
}

static const char *where_leads(const struct looking *l, const char *addr, const char *how)
{
    if (strcmp(how, "ok") == 0)
        return "there";
    return strcmp(how, net_how(-EPROTO)) == 0 || is_anothers(l, addr) ? "elsewhere" : how;
}

static void add_name(struct looking *l, cJSON *list, const char *name)
{
    cJSON *o = cJSON_CreateObject();
    cJSON *addrs = net_resolve_fact(name, l->ask->limit_ns);
    (void)cJSON_AddStringToObject(o, "name", name);
    (void)cJSON_AddItemToArray(list, o);
    if (!cJSON_IsArray(addrs)) {
        (void)cJSON_AddItemToObject(o, "addresses", addrs);
        return;
    }
    cJSON *tried = cJSON_AddArrayToObject(o, "addresses");
    const cJSON *a = NULL;
    cJSON_ArrayForEach(a, addrs)
    {
        const char *how = try_address(l, a->valuestring);
        cJSON *one = cJSON_CreateObject();
        (void)cJSON_AddStringToObject(one, "address", a->valuestring);
        (void)cJSON_AddStringToObject(one, "leads", where_leads(l, a->valuestring, how));
        (void)cJSON_AddItemToArray(tried, one);
    }
    cJSON_Delete(addrs);
}

/* Of each family until one leads there: hosts have bridges that nobody else can reach. */
static void add_reach(struct looking *l, const cJSON *node, cJSON *seen)
{
    const cJSON *addrs = NULL;
    const cJSON *a = NULL;
    cJSON *list = cJSON_AddArrayToObject(seen, "reach");
    bool done[2] = {false, false};
    if (!doc_list(node, "addresses", &addrs, NULL))
        return;
    cJSON_ArrayForEach(a, addrs)
    {
        bool v6 = cJSON_IsString(a) && doc_is_v6(a->valuestring);
        if (!cJSON_IsString(a) || done[v6])
            continue;
        const char *how = try_address(l, a->valuestring);
        cJSON *one = cJSON_CreateObject();
        (void)cJSON_AddStringToObject(one, "address", a->valuestring);
        (void)cJSON_AddStringToObject(one, "how", how);
        (void)cJSON_AddItemToArray(list, one);
        done[v6] = strcmp(how, "ok") == 0;
    }
}

void look_at_node(const struct look_ask *ask, cJSON *seen)
{
    struct looking l = {.ask = ask, .fd = -1};
    const cJSON *node = ask->nodes[ask->peer];
    double port = 0;
    const char *name = "";
    struct net_look got = {0};
    if (!doc_num(node, "port", &port, NULL) || !doc_text(node, "nonce", &l.nonce, NULL) ||
        !doc_text(node, "answer", &l.answer, NULL) || strlen(l.nonce) != NET_NONCE_BYTES - 1 ||
        strlen(l.answer) != NET_NONCE_BYTES - 1 || port < 1 || port > UINT16_MAX)
        return;
    l.port = (uint16_t)port;
    l.known = cJSON_CreateObject();
    cJSON *names = cJSON_AddArrayToObject(seen, "names");
    if (doc_text(node, "host", &name, NULL))
        add_name(&l, names, name);
    if (doc_text(node, "full_name", &name, NULL))
        add_name(&l, names, name);
    add_reach(&l, node, seen);
    if (l.fd >= 0 && net_measure(l.fd, &got) == 0) {
        (void)cJSON_AddNumberToObject(seen, "rtt_us", got.rtt_us);
        (void)cJSON_AddNumberToObject(seen, "skew_ms", got.skew_ms);
        (void)cJSON_AddStringToObject(seen, "large", got.large);
    }
    if (l.fd >= 0)
        (void)close(l.fd);
    cJSON_Delete(l.known);
}
