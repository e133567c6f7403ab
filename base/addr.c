/* Addresses; see addr.h. */
#include "base/addr.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/holder.h"
#include "base/str.h"

int mu_addr_parse(const char *host, uint16_t port, struct mu_addr *ret)
{
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV,
                             .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    char service[8];
    (void)snprintf(service, sizeof service, "%u", port);
    if (getaddrinfo(host, service, &hints, &found) != 0)
        return -EINVAL;
    *ret = (struct mu_addr){.len = found->ai_addrlen};
    memcpy(&ret->ss, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    return 0;
}

char *mu_addr_host(const struct sockaddr *sa, char *ret)
{
    ret[0] = '\0';
    if (sa->sa_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, sa, sizeof in);
        (void)inet_ntop(AF_INET, &in.sin_addr, ret, MU_ADDR_BYTES);
    } else if (sa->sa_family == AF_INET6) {
        struct sockaddr_in6 in6;
        memcpy(&in6, sa, sizeof in6);
        if (IN6_IS_ADDR_V4MAPPED(&in6.sin6_addr)) {
            (void)inet_ntop(AF_INET, &in6.sin6_addr.s6_addr[12], ret, MU_ADDR_BYTES);
        } else {
            (void)inet_ntop(AF_INET6, &in6.sin6_addr, ret, MU_ADDR_BYTES);
            char zone[IF_NAMESIZE];
            size_t n = strlen(ret);
            if (in6.sin6_scope_id != 0 && if_indextoname(in6.sin6_scope_id, zone) != NULL &&
                n + strlen(zone) + 2 <= MU_ADDR_BYTES)
                (void)snprintf(ret + n, MU_ADDR_BYTES - n, "%%%s", zone);
        }
    }
    return ret;
}

uint16_t mu_addr_port(const struct sockaddr *sa)
{
    struct sockaddr_in in;
    struct sockaddr_in6 in6;
    if (sa->sa_family == AF_INET) {
        memcpy(&in, sa, sizeof in);
        return ntohs(in.sin_port);
    }
    if (sa->sa_family == AF_INET6) {
        memcpy(&in6, sa, sizeof in6);
        return ntohs(in6.sin6_port);
    }
    return 0;
}

bool mu_addr_is_loopback(const char *host)
{
    return strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0;
}

bool mu_addr_is_link_local(const char *host)
{
    struct mu_addr a;
    struct sockaddr_in6 in6;
    if (mu_addr_parse(host, 0, &a) < 0 || a.ss.ss_family != AF_INET6)
        return false;
    memcpy(&in6, &a.ss, sizeof in6);
    return IN6_IS_ADDR_LINKLOCAL(&in6.sin6_addr);
}

bool mu_addr_is_local(const char *numeric_host)
{
    if (mu_addr_is_loopback(numeric_host))
        return true;
    struct ifaddrs *all = NULL;
    bool found = false;
    /* Interfaces have link-layer addresses too, which show as "". */
    if (numeric_host[0] == '\0' || getifaddrs(&all) != 0)
        return false;
    for (struct ifaddrs *i = all; i != NULL && !found; i = i->ifa_next) {
        char text[MU_ADDR_BYTES];
        found = i->ifa_addr != NULL && strcmp(mu_addr_host(i->ifa_addr, text), numeric_host) == 0;
    }
    freeifaddrs(all);
    return found;
}

static bool usable(const struct ifaddrs *i, int family)
{
    if (i->ifa_addr == NULL || i->ifa_addr->sa_family != family || (i->ifa_flags & IFF_UP) == 0 ||
        (i->ifa_flags & IFF_LOOPBACK) != 0)
        return false;
    if (family == AF_INET)
        return true;
    struct sockaddr_in6 in6;
    memcpy(&in6, i->ifa_addr, sizeof in6);
    return !IN6_IS_ADDR_LINKLOCAL(&in6.sin6_addr);
}

void mu_addr_primary(char *ret)
{
    static const int families[] = {AF_INET, AF_INET6};
    struct ifaddrs *all = NULL;
    ret[0] = '\0';
    if (getifaddrs(&all) != 0)
        return;
    for (size_t f = 0; f < MU_COUNT(families) && ret[0] == '\0'; f++)
        for (struct ifaddrs *i = all; i != NULL && ret[0] == '\0'; i = i->ifa_next)
            if (usable(i, families[f]))
                (void)mu_addr_host(i->ifa_addr, ret);
    freeifaddrs(all);
}

static int listen_on(const struct mu_addr *a, bool dual, int backlog)
{
    int on = 1;
    int off = 0;
    MU_CLEANUP(mu_closep)
    int fd = socket(a->ss.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on); /* TIME_WAIT only, on Linux. */
    if (dual)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on,
                     sizeof on); /* Accepted sockets inherit it. */
    if (bind(fd, (const struct sockaddr *)&a->ss, a->len) < 0 || listen(fd, backlog) < 0)
        return -errno;
    return mu_steal_fd(&fd);
}

void mu_resend_evenly(int fd)
{
    static const char way[] = "reno"; /* Under BBR no connection counts as thin. */
    const int on = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, &on, sizeof on);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, way, sizeof way - 1);
}

int mu_listen(const char *host, uint16_t port, int backlog, uint16_t *ret_port, struct mu_err *err)
{
    bool any = host[0] == '\0' || strcmp(host, "*") == 0;
    struct mu_addr a;
    char shown[72];
    int fd = -EAFNOSUPPORT;
    if (any) {
        if (mu_addr_parse("::", port, &a) == 0)
            fd = listen_on(&a, true, backlog);
        if (fd == -EAFNOSUPPORT && mu_addr_parse("0.0.0.0", port, &a) == 0)
            fd = listen_on(&a, false, backlog);
    } else {
        if (mu_addr_parse(host, port, &a) < 0)
            return mu_err_set(err, -EINVAL, "'%s' is not a numeric address", host);
        fd = listen_on(&a, false, backlog);
    }
    if (fd == -EADDRINUSE) {
        char holder[96];
        const char *at = any ? "*" : host;
        (void)snprintf(shown, sizeof shown, strchr(at, ':') != NULL ? "[%.60s]" : "%.60s", at);
        return mu_err_set(err, fd, "%s:%u is taken%s: choose another port, or stop who has it",
                          shown, port, mu_holder_words(host, port, holder, sizeof holder));
    }
    if (fd == -EADDRNOTAVAIL)
        return mu_err_set(err, fd, "%s is not an address of this machine", host);
    if (fd < 0)
        return mu_err_set(err, fd, "listen on %s port %u: %s", any ? "every address" : host, port,
                          strerror(-fd));
    struct mu_addr got = {.len = sizeof got.ss};
    (void)getsockname(fd, (struct sockaddr *)&got.ss, &got.len);
    *ret_port = mu_addr_port((const struct sockaddr *)&got.ss);
    return fd;
}
