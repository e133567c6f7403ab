/* Shared by the programs of bench/; see bench.h. */
#include "bench/bench.h"

#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/addr.h"
#include "base/parse.h"

void bench_fail(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    (void)fprintf(stderr, "%s: ", program_invocation_short_name);
    (void)vfprintf(stderr, fmt, args);
    (void)fputc('\n', stderr);
    va_end(args);
    exit(2);
}

int64_t bench_cpu_ns(pid_t pid)
{
    char path[300];
    int64_t sum = 0;
    if (pid == 0)
        return 0;
    (void)snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *dir = opendir(path);
    if (dir == NULL)
        bench_fail("process %d is gone: %s", (int)pid, strerror(errno));
    for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) {
        if (e->d_name[0] == '.')
            continue;
        (void)snprintf(path, sizeof path, "/proc/%d/task/%s/schedstat", (int)pid, e->d_name);
        FILE *f = fopen(path, "re");
        long long ns = 0;
        if (f == NULL)
            continue; /* A thread that ended between the two looks. */
        if (fscanf(f, "%lld", &ns) == 1)
            sum += ns;
        (void)fclose(f);
    }
    (void)closedir(dir);
    return sum;
}

int64_t bench_anonymous_bytes(pid_t pid)
{
    char path[64];
    char line[256];
    int64_t sum = 0;
    if (pid == 0)
        return 0;
    (void)snprintf(path, sizeof path, "/proc/%d/smaps_rollup", (int)pid);
    FILE *f = fopen(path, "re");
    if (f == NULL)
        bench_fail("open %s: %s", path, strerror(errno));
    while (fgets(line, sizeof line, f) != NULL) {
        long long kib = 0;
        if (sscanf(line, "Anonymous: %lld", &kib) == 1)
            sum = kib * 1024;
    }
    (void)fclose(f);
    return sum;
}

static struct mu_addr numeric(const char *host, uint16_t port)
{
    struct mu_addr a;
    if (mu_addr_parse(host, port, &a) < 0)
        bench_fail("'%s' is no numeric address", host);
    return a;
}

int bench_socket(const char *host, const char *source)
{
    struct mu_addr to = numeric(host, 0);
    int one = 1;
    int fd = socket(to.ss.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        bench_fail("socket: %s", strerror(errno));
    if (source != NULL) {
        struct mu_addr from = numeric(source, 0);
        (void)setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
        if (bind(fd, (const struct sockaddr *)&from.ss, from.len) < 0)
            bench_fail("bind to %s: %s", source, strerror(errno));
    }
    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) < 0)
        bench_fail("TCP_NODELAY: %s", strerror(errno));
    return fd;
}

void bench_connect_to(int fd, const char *host, uint16_t port)
{
    struct mu_addr to = numeric(host, port);
    if (connect(fd, (const struct sockaddr *)&to.ss, to.len) < 0)
        bench_fail("connect to %s port %d: %s", host, port, strerror(errno));
}

int bench_connect(const char *host, uint16_t port, const char *source)
{
    int fd = bench_socket(host, source);
    bench_connect_to(fd, host, port);
    return fd;
}

void bench_write(int fd, const void *p, size_t n)
{
    const char *at = p;
    while (n > 0) {
        ssize_t r = write(fd, at, n);
        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0)
            bench_fail("write: %s", strerror(errno));
        at += r;
        n -= (size_t)r;
    }
}

void bench_read(int fd, void *p, size_t n)
{
    char *at = p;
    while (n > 0) {
        ssize_t r = read(fd, at, n);
        if (r < 0 && errno == EINTR)
            continue;
        if (r == 0)
            bench_fail("the server closed the connection");
        if (r < 0)
            bench_fail("read: %s", strerror(errno));
        at += r;
        n -= (size_t)r;
    }
}

void bench_need_files(size_t wanted)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        bench_fail("getrlimit: %s", strerror(errno));
    if (limit.rlim_max < wanted)
        bench_fail("needs %zu open files, the limit is %llu: ulimit -n", wanted,
                   (unsigned long long)limit.rlim_max);
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
        bench_fail("setrlimit: %s", strerror(errno));
}

static void usage(const struct bench_option *options, size_t count)
{
    (void)printf("usage: %s [--NAME VALUE]...\n", program_invocation_short_name);
    for (size_t i = 0; i < count; i++)
        (void)printf("  %-14s %s (%s)\n", options[i].name, options[i].doc, options[i].value);
    exit(0);
}

void bench_options(int argc, char **argv, struct bench_option *options, size_t count)
{
    for (int i = 1; i < argc; i += 2) {
        size_t k = 0;
        if (strcmp(argv[i], "--help") == 0)
            usage(options, count);
        while (k < count && strcmp(argv[i], options[k].name) != 0)
            k++;
        if (k == count || i + 1 == argc)
            bench_fail("'%s' is no option, or has no value; --help lists them", argv[i]);
        options[k].value = argv[i + 1];
    }
}

int64_t bench_number(const struct bench_option *option, int64_t min, int64_t max)
{
    struct mu_err err;
    int64_t v = 0;
    if (mu_parse_i64(option->value, min, max, option->name, &v, &err) < 0)
        bench_fail("%s", err.msg);
    return v;
}
