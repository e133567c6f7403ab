/* Facts about this node; see facts.h. */
#include "agent/link/facts.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/addr.h"
#include "base/cleanup.h"

int facts_uuid(char *ret)
{
    unsigned char b[16];
    if (getrandom(b, sizeof b, 0) != (ssize_t)sizeof b)
        return errno != 0 ? -errno : -EIO;
    b[6] = (unsigned char)((b[6] & 0x0f) | 0x40);
    b[8] = (unsigned char)((b[8] & 0x3f) | 0x80);
    size_t o = 0;
    for (size_t i = 0; i < sizeof b; i++) {
        (void)snprintf(ret + o, 37 - o, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                       b[i]);
        o = strlen(ret);
    }
    return 0;
}

/* The file's first line; "" when it cannot be read. */
static void read_line(const char *path, char *ret, size_t cap)
{
    ret[0] = '\0';
    MU_CLEANUP(mu_closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, ret, cap - 1);
    ret[n > 0 ? n : 0] = '\0';
    ret[strcspn(ret, "\n")] = '\0';
}

/* The driver lists its GPUs here; no library is loaded to count them. */
static int64_t count_gpus(void)
{
    DIR *d = opendir("/proc/driver/nvidia/gpus");
    int64_t n = 0;
    if (d == NULL)
        return 0;
    for (const struct dirent *e = readdir(d); e != NULL; e = readdir(d))
        n += e->d_name[0] != '.';
    (void)closedir(d);
    return n;
}

int facts_fill(struct ctl_hello *h, struct mu_err *err)
{
    struct utsname u;
    if (uname(&u) < 0)
        return mu_err_set(err, -errno, "uname: %s", strerror(errno));
    if (mu_strcopy(h->host, sizeof h->host, u.nodename) < 0)
        return mu_err_set(err, -ENAMETOOLONG,
                          "this machine's host name is longer than %zu characters",
                          sizeof h->host - 1);
    int r = facts_uuid(h->node);
    if (r < 0)
        return mu_err_set(err, r, "no random bytes from the kernel: %s", strerror(-r));
    mu_addr_primary(h->host_addr);
    read_line("/proc/sys/kernel/random/boot_id", h->boot_id, sizeof h->boot_id);
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    h->cpus = sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? CPU_COUNT(&cpus) : 0;
    h->gpus = count_gpus();
    h->pid = getpid();
    return 0;
}
