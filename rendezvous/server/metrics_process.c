/* What the kernel says of this process, for GET /metrics. */
#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/parse.h"
#include "rendezvous/server/internal.h"

/* Open descriptors; -1: cannot be known. The one that looks is not counted. */
int64_t metrics_open_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    int64_t n = 0;
    if (d == NULL)
        return -1;
    for (const struct dirent *e = readdir(d); e != NULL; e = readdir(d))
        n += e->d_name[0] != '.';
    (void)closedir(d);
    return n - 1;
}

int64_t metrics_max_fds(void)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) < 0 || r.rlim_cur == RLIM_INFINITY)
        return -1;
    return (int64_t)r.rlim_cur;
}

double metrics_cpu_s(void)
{
    struct rusage u;
    if (getrusage(RUSAGE_SELF, &u) < 0)
        return 0;
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static bool read_file(const char *path, char *ret, size_t cap)
{
    MU_CLEANUP(mu_closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, ret, cap - 1) : -1;
    if (n <= 0)
        return false;
    ret[n] = '\0';
    return true;
}

/* Field 22 of /proc/self/stat: ticks from the boot; the name before may hold anything but ends with
 * the last ')'. */
static bool start_ticks(int64_t *ret)
{
    char text[1024];
    char *p = read_file("/proc/self/stat", text, sizeof text) ? strrchr(text, ')') : NULL;
    for (int field = 2; p != NULL && field < 22; field++) {
        p = strchr(p, ' ');
        p = p != NULL ? p + 1 : NULL;
    }
    if (p == NULL)
        return false;
    p[strcspn(p, " \n")] = '\0';
    return mu_parse_i64(p, 0, INT64_MAX, "starttime", ret, NULL) == 0;
}

double metrics_start_s(void)
{
    char up[128];
    int64_t ticks = 0;
    int64_t up_ns = 0;
    long hz = sysconf(_SC_CLK_TCK);
    if (hz <= 0 || !start_ticks(&ticks) || !read_file("/proc/uptime", up, sizeof up))
        return 0;
    up[strcspn(up, " \n")] = '\0';
    if (mu_parse_seconds(up, 0, INT64_MAX, "uptime", &up_ns, NULL) < 0)
        return 0;
    double age_s = (double)up_ns / 1e9 - (double)ticks / (double)hz;
    return (double)mu_unix_ms() / 1e3 - age_s;
}
