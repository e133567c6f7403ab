/* Own name and addresses, small files; see around.h. */
#include "agent/around.h"

#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stddef.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/addr.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/mem.h"

#define FILE_BYTES_MAX (1 << 20) /* 65,536 hosts of 16 characters. */

static const char *host_name(void)
{
    static struct utsname u;
    return uname(&u) == 0 ? u.nodename : "";
}

/* The bytes of an address and of its net's mask; NULL for other families. */
static const unsigned char *address_bytes(const struct sockaddr *sa, size_t *ret_n)
{
    static const size_t v4 = offsetof(struct sockaddr_in, sin_addr);
    static const size_t v6 = offsetof(struct sockaddr_in6, sin6_addr);
    if (sa == NULL || (sa->sa_family != AF_INET && sa->sa_family != AF_INET6))
        return NULL;
    *ret_n = sa->sa_family == AF_INET ? 4 : 16;
    return (const unsigned char *)sa + (sa->sa_family == AF_INET ? v4 : v6);
}

static bool on_net(const struct ifaddrs *i, const struct mu_addr *a)
{
    size_t n = 0;
    size_t unused = 0;
    if ((i->ifa_flags & IFF_UP) == 0 || (i->ifa_flags & IFF_LOOPBACK) != 0 || i->ifa_addr == NULL ||
        i->ifa_netmask == NULL || i->ifa_addr->sa_family != a->ss.ss_family)
        return false;
    const unsigned char *own = address_bytes(i->ifa_addr, &n);
    const unsigned char *theirs = address_bytes((const struct sockaddr *)&a->ss, &unused);
    const unsigned char *mask = address_bytes(i->ifa_netmask, &unused);
    if (own == NULL || theirs == NULL || mask == NULL)
        return false;
    for (size_t k = 0; k < n; k++)
        if (((own[k] ^ theirs[k]) & mask[k]) != 0)
            return false;
    return true;
}

static bool is_near(const char *address)
{
    struct ifaddrs *all = NULL;
    struct mu_addr a;
    bool found = false;
    if (mu_addr_parse(address, 0, &a) < 0 || getifaddrs(&all) != 0)
        return false;
    for (const struct ifaddrs *i = all; i != NULL && !found; i = i->ifa_next)
        found = on_net(i, &a);
    freeifaddrs(all);
    return found;
}

/* Read to its end: files under /proc and pipes tell no size. */
static int read_all(int fd, char *text, size_t cap, size_t *ret_n)
{
    *ret_n = 0;
    while (*ret_n < cap) {
        ssize_t n = read(fd, text + *ret_n, cap - *ret_n);
        if (n == 0)
            return 0;
        if (n < 0 && errno != EINTR)
            return -errno;
        *ret_n += n > 0 ? (size_t)n : 0;
    }
    return -EFBIG;
}

static int read_text(const char *path, char *text)
{
    size_t n = 0;
    MU_CLEANUP(mu_closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
    int r = fd < 0 ? -errno : read_all(fd, text, FILE_BYTES_MAX, &n);
    if (r < 0)
        return r;
    text[n] = '\0';
    return memchr(text, '\0', n) != NULL ? -EILSEQ : 0;
}

static const char *small_file(const char *path, struct mu_err *err)
{
    static char *text; /* Of the last call. */
    if (text == NULL)
        text = mu_alloc(mu_mem_default(), FILE_BYTES_MAX + 1);
    int r = text == NULL ? -ENOMEM : read_text(path, text);
    if (r == 0)
        return text;
    if (r == -EFBIG)
        (void)mu_err_set(err, r, "%.100s has more than %d bytes, the most that is read of it", path,
                         FILE_BYTES_MAX);
    else
        (void)mu_err_set(err, r, "%.100s: %s", path,
                         r == -EILSEQ ? "this is no text" : strerror(-r));
    return NULL;
}

const struct surroundings_machine around_machine = {
    .host = host_name,
    .is_own = mu_addr_is_local,
    .is_near = is_near,
    .file = small_file,
    .share = around_share,
};
