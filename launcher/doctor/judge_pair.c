/* What one node sees of another. The table is at the end. */
#include "launcher/doctor/judge.h"

#include <stdio.h>
#include <string.h>

static const char *name_of(const cJSON *node)
{
    const char *host = "the other";
    (void)doc_text(node, "host", &host, NULL);
    return host;
}

static const char *address_of(const cJSON *node)
{
    const char *addr = "?";
    (void)doc_text(node, "address", &addr, NULL);
    return addr;
}

/* Over any of its addresses? */
static bool is_reached(const cJSON *look)
{
    const cJSON *list = NULL;
    const cJSON *r = NULL;
    if (!doc_list(look, "reach", &list, NULL))
        return false;
    cJSON_ArrayForEach(r, list)
    {
        const char *how = "";
        if (doc_text(r, "how", &how, NULL) && strcmp(how, "ok") == 0)
            return true;
    }
    return false;
}

/* --- names --- */

static enum doc_level judge_address(const cJSON *b,
                                    const cJSON *look,
                                    const char *name,
                                    const char *addr,
                                    const char *leads,
                                    struct doc_said *s)
{
    if (strcmp(leads, "there") == 0)
        return DOC_OK;
    if (doc_is_loopback(addr) && !doc_is(look, "same_machine")) {
        doc_see(s, "%.80s is %s here, which leads back to the one who asks", name, addr);
        doc_cure(s, "on this node, write '%s %.80s' into /etc/hosts in the place of %s",
                 address_of(b), name, addr);
        return DOC_FAIL;
    }
    if (strcmp(leads, "elsewhere") == 0) {
        doc_see(s, "%.80s is %s here, which is another node", name, addr);
        doc_cure(s,
                 "on this node, write '%s %.80s' into /etc/hosts or the name server in its place",
                 address_of(b), name);
        return DOC_FAIL;
    }
    if (doc_is_v6(addr))
        return DOC_OK; /* IPv6's own check says it. */
    doc_see(s, "%.80s is %s here, and a connection to it is %s", name, addr, leads);
    /* Where the node is not reached at all, the ports' own check says it. */
    return is_reached(look) ? DOC_WARN : DOC_UNKNOWN;
}

static enum doc_level
judge_name(const cJSON *b, const cJSON *look, const cJSON *n, struct doc_said *s)
{
    const char *name = "?";
    const cJSON *list = NULL;
    const cJSON *a = NULL;
    enum doc_level level = DOC_OK;
    (void)doc_text(n, "name", &name, NULL);
    if (!doc_list(n, "addresses", &list, s)) {
        if (!doc_no_address(n, "addresses", name, s))
            return DOC_UNKNOWN;
        doc_cure(s, "on this node, add '%s %.80s' to /etc/hosts or the name server", address_of(b),
                 name);
        return DOC_WARN;
    }
    cJSON_ArrayForEach(a, list)
    {
        struct doc_said one = {{0}, {0}};
        const char *addr = "";
        const char *leads = "";
        if (!doc_text(a, "address", &addr, NULL) || !doc_text(a, "leads", &leads, NULL))
            continue;
        enum doc_level l = judge_address(b, look, name, addr, leads, &one);
        if (l > level) {
            level = l;
            *s = one;
        }
    }
    if (level == DOC_OK)
        doc_see(s, "its names lead there");
    return level;
}

static enum doc_level names(const struct doc_pair *p, struct doc_said *s)
{
    const cJSON *list = NULL;
    const cJSON *n = NULL;
    enum doc_level level = DOC_OK;
    if (!doc_list(p->look, "names", &list, s))
        return DOC_UNKNOWN;
    cJSON_ArrayForEach(n, list)
    {
        struct doc_said one = {{0}, {0}};
        enum doc_level l = judge_name(p->b, p->look, n, &one);
        if (l > level || s->seen[0] == '\0') {
            level = l;
            *s = one;
        }
    }
    return level;
}

/* --- a random high port --- */

/* Who is worst tells most: silence is a firewall, "unreachable" may be a missing route. */
static void see_unreached(const cJSON *b, const char *how, const char *addr, struct doc_said *s)
{
    if (strcmp(how, "dropped") == 0)
        doc_see(s, "%s, a random high port: no answer at all, so a firewall drops it", addr);
    else if (strcmp(how, "refused") == 0)
        doc_see(
            s, "%s, a random high port: refused, though %s listens there, so a firewall refuses it",
            addr, name_of(b));
    else
        doc_see(s, "%s, a random high port: %s", addr, how);
}

static enum doc_level
unreached(const cJSON *a, const cJSON *b, const char *how, const char *addr, struct doc_said *s)
{
    see_unreached(b, how, addr, s);
    if (strcmp(how, "dropped") == 0 || strcmp(how, "refused") == 0)
        doc_cure(s,
                 "on %.60s, let this node in: nft insert rule inet filter input %s saddr %s accept "
                 "(iptables -I INPUT -s %s -j ACCEPT; firewalld: --zone=trusted --add-source=%s)",
                 name_of(b), doc_is_v6(address_of(a)) ? "ip6" : "ip", address_of(a), address_of(a),
                 address_of(a));
    return DOC_FAIL;
}

static enum doc_level reach(const struct doc_pair *p, struct doc_said *s)
{
    const cJSON *list = NULL;
    const cJSON *r = NULL;
    const char *first = NULL;
    const char *first_addr = NULL;
    if (!doc_list(p->look, "reach", &list, s))
        return DOC_UNKNOWN;
    cJSON_ArrayForEach(r, list)
    {
        const char *how = "";
        const char *addr = "";
        if (!doc_text(r, "how", &how, NULL) || !doc_text(r, "address", &addr, NULL))
            continue;
        if (strcmp(how, "ok") == 0) {
            doc_see(s, "a random high port answers");
            return DOC_OK;
        }
        if (first == NULL) {
            first = how;
            first_addr = addr;
        }
    }
    if (first == NULL) {
        doc_see(s, "%s told no address that others could use", name_of(p->b));
        return DOC_UNKNOWN;
    }
    return unreached(p->a, p->b, first, first_addr, s);
}

static enum doc_level ipv6(const struct doc_pair *p, struct doc_said *s)
{
    const cJSON *list = NULL;
    const cJSON *r = NULL;
    double own = 0;
    if (!is_reached(p->look) || !doc_list(p->look, "reach", &list, NULL) ||
        !doc_num(p->a, "v6_addresses", &own, NULL) || own < 1)
        return DOC_OK;
    cJSON_ArrayForEach(r, list)
    {
        const char *how = "";
        const char *addr = "";
        if (!doc_text(r, "how", &how, NULL) || !doc_text(r, "address", &addr, NULL) ||
            !doc_is_v6(addr))
            continue;
        if (strcmp(how, "ok") == 0) {
            doc_see(s, "a port answers over IPv6");
            return DOC_OK;
        }
        doc_see(s, "both have IPv6 addresses, but %s is %s", addr, how);
    }
    return s->seen[0] != '\0' ? DOC_WARN : DOC_OK;
}

/* --- over that connection --- */

static enum doc_level large(const struct doc_pair *p, struct doc_said *s)
{
    const char *how = "";
    if (!doc_text(p->look, "large", &how, NULL))
        return DOC_OK; /* It was not reached: said above. */
    if (strcmp(how, "ok") == 0) {
        doc_see(s, "256 KiB come back");
        return DOC_OK;
    }
    doc_see(s, "small messages come through, 256 KiB %s", how);
    return DOC_FAIL;
}

static enum doc_level skew(const struct doc_pair *p, struct doc_said *s)
{
    char text[DOC_BYTES_TEXT];
    double ms = 0;
    double trip_us = 0;
    if (!doc_num(p->look, "skew_ms", &ms, NULL) || !doc_num(p->look, "rtt_us", &trip_us, NULL))
        return DOC_OK;
    double off = ms < 0 ? -ms : ms;
    doc_see(s, "%s's clock is %s %s", name_of(p->b), doc_ms(off, text),
            ms < 0 ? "behind" : "ahead");
    off -= trip_us / 2000; /* It could be less by that. */
    if (off <= 100)
        doc_see(s, "within 0.1 s");
    return off > 2000 ? DOC_FAIL : off > 100 ? DOC_WARN : DOC_OK;
}

#define MBIT (1e6 / 8)

static enum doc_level link_level(double rate, bool same, const struct doc_typical *t)
{
    if (same)
        return DOC_OK;
    bool many = t->pairs > 2;
    if (rate < 20 * MBIT || (many && rate < t->bytes_per_s / 10))
        return DOC_FAIL;
    return rate < 500 * MBIT || (many && rate < t->bytes_per_s / 2) ? DOC_WARN : DOC_OK;
}

static enum doc_level carries(const struct doc_pair *p, struct doc_said *s)
{
    const cJSON *l = cJSON_GetObjectItemCaseSensitive(p->look, "link");
    char rate_text[DOC_BYTES_TEXT];
    char typical_text[DOC_BYTES_TEXT];
    double rate = 0;
    if (l == NULL)
        return DOC_OK; /* Not asked for. */
    const char *why = "";
    if (doc_text(l, "broken", &why, NULL)) {
        doc_see(s, "no communicator between them: %s", why);
        return DOC_FAIL;
    }
    if (!doc_num(l, "bytes_per_s", &rate, NULL)) {
        (void)doc_num(p->look, "link", &rate, s); /* Says why. */
        return DOC_UNKNOWN;
    }
    enum doc_level level = link_level(rate, doc_is(p->look, "same_machine"), p->typical);
    if (level == DOC_OK)
        doc_see(s, "fast enough");
    else
        doc_see(s, "%s%s%s%s", doc_rate(rate, rate_text), p->typical->pairs > 2 ? ", where " : "",
                p->typical->pairs > 2 ? doc_rate(p->typical->bytes_per_s, typical_text) : "",
                p->typical->pairs > 2 ? " is usual here" : "");
    return level;
}

/* NCCL, where both have GPUs. It should be no slower than sockets. */
static enum doc_level carries_gpus(const struct doc_pair *p, struct doc_said *s)
{
    const cJSON *l = cJSON_GetObjectItemCaseSensitive(p->look, "link");
    const cJSON *g = cJSON_GetObjectItemCaseSensitive(l, "gpus");
    char text[DOC_BYTES_TEXT];
    char sockets_text[DOC_BYTES_TEXT];
    const char *why = "";
    double rate = 0;
    double sockets = 0;
    if (g == NULL)
        return DOC_OK;
    if (doc_text(g, "broken", &why, NULL)) {
        doc_see(s, "NCCL does not work between them: %s", why);
        return DOC_FAIL;
    }
    if (!doc_num(g, "bytes_per_s", &rate, NULL)) {
        (void)doc_num(l, "gpus", &rate, s); /* Says why. */
        return DOC_UNKNOWN;
    }
    doc_see(s, "%s by NCCL", doc_rate(rate, text));
    if (!doc_num(l, "bytes_per_s", &sockets, NULL) || rate >= sockets / 2)
        return DOC_OK;
    doc_see(s, "%s by NCCL, and %s by plain sockets", text, doc_rate(sockets, sockets_text));
    return DOC_WARN;
}

/* clang-format off */
const struct doc_pair_row doc_pair_rows[] = {
    {{"names", "the other's short and full name lead to it", "see /etc/hosts and the name server"}, names},
    {{"ports", "any high port of the other can be reached", "see to the route between them: ip route get, ping; the same network, VLAN or security group"}, reach},
    {{"ports over IPv6", "IPv6 works between them, or is not there", "open the firewall for IPv6 too (nft inet, ip6tables), or take the addresses away: sysctl -w net.ipv6.conf.all.disable_ipv6=1"}, ipv6},
    {{"large messages", "large messages come through like small ones", "the path carries less than its ends think: set the same MTU on all ports of the way (ip link set dev eth0 mtu 1500), and let ICMP 'fragmentation needed' through"}, large},
    {{"clocks", "within 0.1 s of each other", "run chronyd or systemd-timesyncd on both"}, skew},
    {{"link", "at least 500 Mbit/s, and half of what is usual here", "see ethtool (speed, errors), the cable and the switch port; is NCCL_SOCKET_IFNAME's interface the one that is meant?"}, carries},
    {{"GPU link", "NCCL works between them, and is no slower than sockets", "NCCL_DEBUG=INFO says which interface it took: NCCL_SOCKET_IFNAME, NCCL_IB_HCA and NCCL_IB_DISABLE choose"}, carries_gpus},
};
/* clang-format on */
const size_t doc_pair_row_count = MU_COUNT(doc_pair_rows);
