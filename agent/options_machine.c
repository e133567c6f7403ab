/* What this machine has, for the words cpu, gpu and auto. Nothing here opens a driver. */
#include "agent/options.h"

#include <dirent.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "agent/around.h"
#include "base/clock.h"

/* CPUs of the affinity mask, for masks of any size. */
static uint32_t count_cpus(void)
{
    for (size_t n = 1024; n <= 1 << 20; n *= 2) {
        cpu_set_t *set = CPU_ALLOC(n);
        if (set == NULL)
            break;
        int got = sched_getaffinity(0, CPU_ALLOC_SIZE(n), set);
        int count = got == 0 ? CPU_COUNT_S(CPU_ALLOC_SIZE(n), set) : 0;
        CPU_FREE(set);
        if (count > 0)
            return (uint32_t)count;
    }
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (uint32_t)online : 1;
}

/* CUDA stops reading the list at the first entry that is no device: "-1" or an empty one. */
static uint32_t count_listed(const char *visible)
{
    uint32_t n = 0;
    for (const char *p = visible; *p != '\0';) {
        p += strspn(p, " ");
        size_t len = strcspn(p, ",");
        if (len == 0 || p[0] == '-')
            break;
        n++;
        p += len + (p[len] == ',');
    }
    return n;
}

static bool is_gpu_node(const char *name)
{
    static const char prefix[] = "nvidia";
    size_t n = sizeof prefix - 1;
    return strncmp(name, prefix, n) == 0 && name[n] != '\0' &&
           strspn(name + n, "0123456789") == strlen(name + n);
}

static uint32_t count_gpus(const char *visible)
{
    uint32_t n = 0;
    DIR *dev = opendir("/dev");
    if (dev == NULL)
        return 0;
    for (const struct dirent *e = readdir(dev); e != NULL; e = readdir(dev))
        n += is_gpu_node(e->d_name);
    (void)closedir(dev); /* Read only. */
    if (n == 0 || visible == NULL)
        return n;
    uint32_t listed = count_listed(visible);
    return listed < n ? listed : n;
}

/* Short enough to be typed. */
static uint64_t any_seed(void)
{
    return (uint64_t)(mu_now_ns() ^ (int64_t)getpid() << 20) % 1000000;
}

const struct agent_machine agent_machine_real = {count_cpus, count_gpus, &around_machine, any_seed};
