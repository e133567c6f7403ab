/* Addresses, interfaces, and whether this node reaches itself. */
#include "launcher/doctor/local.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/addr.h"
#include "base/cleanup.h"
#include "base/str.h"
#include "launcher/doctor/net.h"

static void add_mtu(cJSON *o, const char *interface)
{
    struct ifreq r = {0};
    MU_CLEANUP(mu_closep) int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    (void)mu_strcopy(r.ifr_name, sizeof r.ifr_name, interface);
    fact_text(o, "interface", interface);
    if (fd >= 0 && ioctl(fd, SIOCGIFMTU, &r) == 0)
        fact_num(o, "mtu", r.ifr_mtu);
    else
        fact_unknown(o, "mtu", "%s: %s", interface, strerror(errno));
}

static bool is_usable(const struct ifaddrs *i)
{
    if (i->ifa_addr == NULL || (i->ifa_flags & IFF_UP) == 0 || (i->ifa_flags & IFF_LOOPBACK) != 0)
        return false;
    return i->ifa_addr->sa_family == AF_INET || i->ifa_addr->sa_family == AF_INET6;
}

/* IPv4 first, as they are tried in this order; the address that stands for this node first of all.
 */
static void add_addresses(cJSON *o, const struct ifaddrs *all, const char *primary)
{
    cJSON *list = cJSON_AddArrayToObject(o, "addresses");
    double v6 = 0;
    if (primary[0] != '\0')
        (void)cJSON_AddItemToArray(list, cJSON_CreateString(primary));
    for (int family = 0; family < 2; family++)
        for (const struct ifaddrs *i = all; i != NULL; i = i->ifa_next) {
            char text[MU_ADDR_BYTES];
            if (!is_usable(i) || (i->ifa_addr->sa_family == AF_INET6) != (family == 1))
                continue;
            (void)mu_addr_host(i->ifa_addr, text);
            if (mu_addr_is_link_local(text))
                continue;
            v6 += family;
            if (strcmp(text, primary) == 0)
                add_mtu(o, i->ifa_name);
            else if (cJSON_GetArraySize(list) < NET_ADDRESSES_MAX)
                (void)cJSON_AddItemToArray(list, cJSON_CreateString(text));
        }
    fact_num(o, "v6_addresses", v6);
}

static void add_own_port(cJSON *o, const char *primary, int64_t limit_ns)
{
    struct mu_err err = {0};
    uint16_t port = 0;
    MU_CLEANUP(mu_closep) int fd = mu_listen(primary, 0, 8, &port, &err);
    if (fd < 0) {
        fact_unknown(o, "own_port", "%s", err.msg);
        return;
    }
    int r = net_connect(primary, port, limit_ns);
    fact_text(o, "own_port", net_how(r < 0 ? r : 0));
    if (r >= 0)
        (void)close(r);
}

/* localhost is ::1 in /etc/hosts of most systems, also of those whose IPv6 is switched off. */
static void add_v6(cJSON *o, int64_t limit_ns)
{
    char addrs[NET_ADDRESSES_MAX][MU_ADDR_BYTES];
    bool named = false;
    uint16_t port = 0;
    MU_CLEANUP(mu_closep) int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    fact_bool(o, "v6_socket", fd >= 0);
    int n = net_resolve("localhost", limit_ns, addrs, NULL, 0, NULL);
    for (int i = 0; i < n; i++)
        named = named || strcmp(addrs[i], "::1") == 0;
    if (!named)
        return;
    MU_CLEANUP(mu_closep) int listener = mu_listen("::1", 0, 8, &port, NULL);
    int r = listener >= 0 ? net_connect("::1", port, limit_ns) : listener;
    fact_bool(o, "v6_localhost_broken", r < 0);
    if (r >= 0)
        (void)close(r);
}

void local_add_network(cJSON *o, int64_t limit_ns)
{
    struct ifaddrs *all = NULL;
    char primary[MU_ADDR_BYTES];
    mu_addr_primary(primary);
    if (getifaddrs(&all) < 0)
        fact_unknown(o, "addresses", "%s", strerror(errno));
    else
        add_addresses(o, all, primary);
    if (all != NULL)
        freeifaddrs(all);
    if (primary[0] == '\0') {
        fact_unknown(o, "address", "no interface has an address");
        fact_unknown(o, "own_port", "no interface has an address");
    } else {
        fact_text(o, "address", primary);
        add_own_port(o, primary, limit_ns);
    }
    add_v6(o, limit_ns);
}
