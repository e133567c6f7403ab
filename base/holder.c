/* Who holds a port; see holder.h. */
#include "base/holder.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/addr.h"
#include "base/str.h"

#define TCP_LISTEN_STATE 0x0a
#define LINE_BYTES 512

struct listener {
    char host[MU_ADDR_BYTES];
    bool any;
    uint16_t port;
    unsigned long inode;
};

/* The kernel writes the address as words in its own byte order. */
static bool read_address(const char *hex, struct listener *l)
{
    struct mu_addr a = {0};
    unsigned w[4];
    if (strlen(hex) == 8) {
        struct sockaddr_in in = {.sin_family = AF_INET};
        if (sscanf(hex, "%8x", &w[0]) != 1)
            return false;
        in.sin_addr.s_addr = w[0];
        l->any = w[0] == 0;
        memcpy(&a.ss, &in, sizeof in);
    } else {
        struct sockaddr_in6 in6 = {.sin6_family = AF_INET6};
        if (sscanf(hex, "%8x%8x%8x%8x", &w[0], &w[1], &w[2], &w[3]) != 4)
            return false;
        memcpy(&in6.sin6_addr, w, sizeof w);
        l->any = IN6_IS_ADDR_UNSPECIFIED(&in6.sin6_addr);
        memcpy(&a.ss, &in6, sizeof in6);
    }
    (void)mu_addr_host((const struct sockaddr *)&a.ss, l->host);
    return true;
}

static bool read_listener(const char *line, struct listener *l)
{
    char hex[33];
    unsigned port = 0;
    unsigned state = 0;
    if (sscanf(line, " %*d: %32[0-9A-F]:%4X %*[0-9A-F]:%*4X %2X %*s %*s %*s %*s %*s %lu", hex,
               &port, &state, &l->inode) != 4 ||
        state != TCP_LISTEN_STATE)
        return false;
    l->port = (uint16_t)port;
    return read_address(hex, l);
}

/* Each listener of this network namespace, until `each` returns false. */
static void for_each_listener(bool (*each)(void *arg, const struct listener *l), void *arg)
{
    static const char *const tables[] = {"/proc/self/net/tcp", "/proc/self/net/tcp6"};
    bool go_on = true;
    for (size_t t = 0; t < MU_COUNT(tables) && go_on; t++) {
        char line[LINE_BYTES];
        FILE *f = fopen(tables[t], "re");
        if (f == NULL)
            continue;
        struct listener l;
        bool more = fgets(line, sizeof line, f) != NULL; /* The heading. */
        /* Listeners stand first: tens of thousands of others may follow. */
        while (more && go_on && fgets(line, sizeof line, f) != NULL && read_listener(line, &l))
            go_on = each(arg, &l);
        (void)fclose(f);
    }
}

struct wanted {
    const char *host;
    uint16_t port;
    unsigned long inode; /* 0: not found. */
};

static bool match(void *arg, const struct listener *l)
{
    struct wanted *w = arg;
    bool all = w->host[0] == '\0' || strcmp(w->host, "*") == 0;
    if (l->port == w->port && (all || l->any || strcmp(l->host, w->host) == 0))
        w->inode = l->inode;
    return w->inode == 0;
}

static bool holds(const char *pid, const char *socket)
{
    char path[64];
    bool found = false;
    (void)snprintf(path, sizeof path, "/proc/%.16s/fd", pid);
    DIR *d = opendir(path);
    if (d == NULL)
        return false;
    for (const struct dirent *e = readdir(d); e != NULL && !found; e = readdir(d)) {
        char link[64];
        ssize_t n = readlinkat(dirfd(d), e->d_name, link, sizeof link - 1);
        link[n > 0 ? n : 0] = '\0';
        found = strcmp(link, socket) == 0;
    }
    (void)closedir(d);
    return found;
}

static void read_name(const char *pid, char *ret, size_t cap)
{
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%.16s/comm", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, ret, cap - 1) : -1;
    ret[n > 0 ? n : 0] = '\0';
    ret[strcspn(ret, "\n")] = '\0';
    if (fd >= 0)
        (void)close(fd);
}

char *mu_holder_words(const char *host, uint16_t port, char *ret, size_t cap)
{
    struct wanted w = {.host = host, .port = port};
    char socket[40];
    ret[0] = '\0';
    for_each_listener(match, &w);
    DIR *d = w.inode != 0 ? opendir("/proc") : NULL;
    if (d == NULL)
        return ret;
    (void)snprintf(socket, sizeof socket, "socket:[%lu]", w.inode);
    for (const struct dirent *e = readdir(d); e != NULL && ret[0] == '\0'; e = readdir(d)) {
        char name[24];
        char shown[48];
        if (e->d_name[0] < '1' || e->d_name[0] > '9' || !holds(e->d_name, socket))
            continue;
        read_name(e->d_name, name, sizeof name);
        (void)mu_quote(shown, sizeof shown, mu_str_of(name, strlen(name)));
        (void)snprintf(ret, cap, " (pid %.16s, %s)", e->d_name, shown);
    }
    (void)closedir(d);
    return ret;
}

struct reach {
    uint16_t port;
    bool found;
    bool beyond;
};

static bool look(void *arg, const struct listener *l)
{
    struct reach *r = arg;
    if (l->port != r->port)
        return true;
    r->found = true;
    r->beyond = l->any || !mu_addr_is_loopback(l->host);
    return !r->beyond;
}

bool mu_holder_is_loopback_only(uint16_t port)
{
    struct reach r = {.port = port};
    for_each_listener(look, &r);
    return r.found && !r.beyond;
}
