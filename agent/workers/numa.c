/* The machine as sysfs shows it, and shares of it; see numa.h. */
#include "agent/workers/numa.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/parse.h"
#include "base/str.h"

enum {
    WORD_BITS = 8 * sizeof(unsigned long)
};

struct gpu {
    char pci[32];
    char uuid[64];
    int64_t minor;
    uint32_t node; /* Index into machine.node. */
};

struct machine {
    const char *root;
    struct cpus allowed;
    uint32_t node_count;
    int64_t node_id[NUMA_NODES_MAX];
    struct cpus node[NUMA_NODES_MAX]; /* Those we may use. */
    uint32_t gpu_count;
    struct gpu gpu[NUMA_GPUS_MAX]; /* In CUDA_VISIBLE_DEVICES' order. */
};

/* --- sets of CPUs --- */

static bool has(const struct cpus *s, uint32_t cpu)
{
    return (s->word[cpu / WORD_BITS] >> cpu % WORD_BITS & 1) != 0;
}

static void put(struct cpus *s, uint32_t cpu)
{
    s->word[cpu / WORD_BITS] |= 1UL << cpu % WORD_BITS;
}

static void keep_only(struct cpus *s, const struct cpus *these)
{
    for (size_t i = 0; i < MU_COUNT(s->word); i++)
        s->word[i] &= these->word[i];
}

static void remove_all(struct cpus *s, const struct cpus *these)
{
    for (size_t i = 0; i < MU_COUNT(s->word); i++)
        s->word[i] &= ~these->word[i];
}

static void join(struct cpus *s, const struct cpus *these)
{
    for (size_t i = 0; i < MU_COUNT(s->word); i++)
        s->word[i] |= these->word[i];
}

static uint32_t count(const struct cpus *s)
{
    uint32_t n = 0;
    for (size_t i = 0; i < MU_COUNT(s->word); i++)
        n += (uint32_t)__builtin_popcountl(s->word[i]);
    return n;
}

/* The first CPU at or behind `from`; NUMA_CPUS_MAX: none. */
static uint32_t first(const struct cpus *s, uint32_t from)
{
    while (from < NUMA_CPUS_MAX && !has(s, from))
        from++;
    return from;
}

static uint32_t read_number(const char **p)
{
    uint32_t n = 0;
    for (; **p >= '0' && **p <= '9'; (*p)++)
        n = n < NUMA_CPUS_MAX ? n * 10 + (uint32_t)(**p - '0') : NUMA_CPUS_MAX;
    return n;
}

void numa_parse_list(const char *text, struct cpus *ret)
{
    *ret = (struct cpus){0};
    for (const char *p = text; *p >= '0' && *p <= '9';) {
        uint32_t low = read_number(&p);
        uint32_t high = low;
        if (*p == '-') {
            p++;
            high = read_number(&p);
        }
        for (uint32_t cpu = low; cpu <= high && cpu < NUMA_CPUS_MAX; cpu++)
            put(ret, cpu);
        p += *p == ',';
    }
}

/* --- files --- */

/* The first bytes of a small file, "" when it cannot be read. */
static bool read_text(const char *path, char *ret, size_t cap)
{
    MU_CLEANUP(mu_closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, ret, cap - 1);
    ret[n > 0 ? n : 0] = '\0';
    return n > 0;
}

static bool read_list(const char *path, struct cpus *ret)
{
    char text[4096];
    *ret = (struct cpus){0};
    if (!read_text(path, text, sizeof(text)))
        return false;
    numa_parse_list(text, ret);
    return true;
}

static int64_t read_int(const char *path, int64_t otherwise)
{
    char text[32];
    int64_t v = 0;
    if (!read_text(path, text, sizeof(text)))
        return otherwise;
    text[strcspn(text, "\n")] = '\0';
    return mu_parse_i64(text, INT32_MIN, INT32_MAX, path, &v, NULL) < 0 ? otherwise : v;
}

static bool read_of_cpu(const struct machine *m, uint32_t cpu, const char *what, struct cpus *ret)
{
    char path[512];
    (void)snprintf(path, sizeof(path), "%s/sys/devices/system/cpu/cpu%u/%s", m->root, cpu, what);
    return read_list(path, ret);
}

static int64_t socket_of(const struct machine *m, uint32_t cpu)
{
    char path[512];
    (void)snprintf(path, sizeof(path),
                   "%s/sys/devices/system/cpu/cpu%u/topology/physical_package_id", m->root, cpu);
    return read_int(path, 0);
}

/* --- nodes --- */

static void add_node(struct machine *m, int64_t id, const struct cpus *cpus)
{
    if (m->node_count == NUMA_NODES_MAX)
        return;
    m->node_id[m->node_count] = id;
    m->node[m->node_count] = *cpus;
    keep_only(&m->node[m->node_count], &m->allowed);
    m->node_count++;
}

static void read_nodes(struct machine *m)
{
    char path[512];
    struct cpus online;
    struct cpus cpus;
    (void)snprintf(path, sizeof(path), "%s/sys/devices/system/node/online", m->root);
    (void)read_list(path, &online);
    for (uint32_t id = first(&online, 0); id < NUMA_CPUS_MAX; id = first(&online, id + 1)) {
        (void)snprintf(path, sizeof(path), "%s/sys/devices/system/node/node%u/cpulist", m->root,
                       id);
        if (read_list(path, &cpus) && count(&cpus) > 0)
            add_node(m, id, &cpus);
    }
    if (m->node_count == 0) /* A kernel without NUMA: one node. */
        add_node(m, 0, &m->allowed);
}

/* --- GPUs --- */

static void value_of(const char *text, const char *label, char *ret, size_t cap)
{
    const char *at = strstr(text, label);
    ret[0] = '\0';
    if (at == NULL)
        return;
    at += strlen(label);
    at += strspn(at, " \t");
    (void)snprintf(ret, cap, "%.*s", (int)strcspn(at, " \t\r\n"), at);
}

static uint32_t node_of_gpu(const struct machine *m, const char *pci)
{
    char path[512];
    char small[32];
    size_t n = 0;
    for (; pci[n] != '\0' && n < sizeof(small) - 1; n++) /* /proc writes 0000:3B, /sys 0000:3b. */
        small[n] = (char)(pci[n] >= 'A' && pci[n] <= 'F' ? pci[n] + ('a' - 'A') : pci[n]);
    small[n] = '\0';
    (void)snprintf(path, sizeof(path), "%s/sys/bus/pci/devices/%s/numa_node", m->root, small);
    int64_t id = read_int(path, -1);
    id = id < 0 ? 0 : id; /* -1: the firmware does not say. */
    for (uint32_t i = 0; i < m->node_count; i++) {
        if (m->node_id[i] == id)
            return i;
    }
    return 0;
}

static void read_gpu(struct machine *m, const char *pci)
{
    char path[512];
    char text[2048];
    char number[32];
    struct gpu g = {.minor = -1};
    (void)snprintf(g.pci, sizeof(g.pci), "%.31s", pci);
    (void)snprintf(path, sizeof(path), "%s/proc/driver/nvidia/gpus/%.31s/information", m->root,
                   pci);
    if (!read_text(path, text, sizeof(text)))
        return;
    value_of(text, "GPU UUID:", g.uuid, sizeof(g.uuid));
    value_of(text, "Device Minor:", number, sizeof(number));
    if (mu_parse_i64(number, 0, INT32_MAX, path, &g.minor, NULL) < 0)
        return;
    (void)snprintf(path, sizeof(path), "%s/dev/nvidia%d", m->root, (int)g.minor);
    if (access(path, F_OK) < 0) /* Another container's. */
        return;
    g.node = node_of_gpu(m, g.pci);
    m->gpu[m->gpu_count++] = g;
}

static int by_pci(const void *a, const void *b)
{
    const struct gpu *x = a;
    const struct gpu *y = b;
    return strcmp(x->pci, y->pci);
}

static void read_gpus(struct machine *m)
{
    char path[512];
    (void)snprintf(path, sizeof(path), "%s/proc/driver/nvidia/gpus", m->root);
    DIR *d = opendir(path);
    if (d == NULL)
        return;
    for (const struct dirent *e = readdir(d); e != NULL && m->gpu_count < NUMA_GPUS_MAX;
         e = readdir(d)) {
        if (e->d_name[0] != '.')
            read_gpu(m, e->d_name);
    }
    (void)closedir(d); /* Read only. */
    qsort(m->gpu, m->gpu_count, sizeof(m->gpu[0]), by_pci);
}

/* The GPU that an entry of CUDA_VISIBLE_DEVICES names; NULL: none. */
static const struct gpu *named_gpu(const struct machine *m, struct mu_str name)
{
    char text[64];
    int64_t index = 0;
    (void)snprintf(text, sizeof(text), "%.*s", (int)(name.n < 63 ? name.n : 63), name.p);
    if (strncmp(text, "GPU-", 4) == 0) {
        for (uint32_t i = 0; i < m->gpu_count; i++) {
            if (strncmp(m->gpu[i].uuid, text, strlen(text)) == 0)
                return &m->gpu[i];
        }
        return NULL;
    }
    if (mu_parse_i64(text, 0, INT32_MAX, "CUDA_VISIBLE_DEVICES", &index, NULL) < 0 ||
        index >= m->gpu_count)
        return NULL;
    return &m->gpu[index];
}

/* As CUDA reads the list: up to the first entry that is no device. */
static void choose_visible(struct machine *m, const char *visible)
{
    struct gpu chosen[NUMA_GPUS_MAX];
    uint32_t n = 0;
    for (const char *p = visible; n < NUMA_GPUS_MAX;) {
        p += strspn(p, " \t");
        size_t len = strcspn(p, ", \t");
        const struct gpu *g = len > 0 ? named_gpu(m, mu_str_of(p, len)) : NULL;
        if (g == NULL)
            break;
        chosen[n++] = *g;
        p += len + strspn(p + len, " \t");
        if (*p != ',')
            break;
        p++;
    }
    memcpy(m->gpu, chosen, n * sizeof(chosen[0]));
    m->gpu_count = n;
}

/* --- shares --- */

/* Of the workers that use one NUMA node: which one is this, of how many? */
struct turn {
    uint32_t node;
    uint32_t index;
    uint32_t of;
};

static uint32_t node_of_worker(const struct machine *m, uint32_t nproc, uint32_t i)
{
    if (m->gpu_count > 0)
        return m->gpu[i % m->gpu_count].node;
    return (uint32_t)((uint64_t)i * m->node_count / nproc);
}

static struct turn turn_of(const struct machine *m, uint32_t nproc, uint32_t i)
{
    struct turn t = {.node = node_of_worker(m, nproc, i)};
    for (uint32_t k = 0; k < nproc; k++) {
        if (node_of_worker(m, nproc, k) != t.node)
            continue;
        t.index += k < i;
        t.of++;
    }
    return t;
}

static void share_socket(const struct machine *m, const struct turn *t, struct cpus *ret)
{
    uint32_t any = first(&m->node[t->node], 0);
    if (any == NUMA_CPUS_MAX)
        return;
    int64_t socket = socket_of(m, any);
    for (uint32_t k = 0; k < m->node_count; k++) {
        uint32_t cpu = first(&m->node[k], 0);
        if (cpu < NUMA_CPUS_MAX && socket_of(m, cpu) == socket)
            join(ret, &m->node[k]);
    }
}

/* Cores in the order of their first CPUs; an even share, the odd ones to the first workers. */
static int share_cores(const struct machine *m, const struct turn *t, struct cpus *ret)
{
    struct cpus left = m->node[t->node];
    uint32_t cores = 0;
    for (int pass = 0; pass < 2; pass++) {
        uint32_t low =
            t->index * (cores / t->of) + (t->index < cores % t->of ? t->index : cores % t->of);
        uint32_t high = low + cores / t->of + (t->index < cores % t->of);
        uint32_t at = 0;
        left = m->node[t->node];
        for (uint32_t cpu = first(&left, 0); cpu < NUMA_CPUS_MAX; cpu = first(&left, cpu), at++) {
            struct cpus core;
            if (!read_of_cpu(m, cpu, "topology/thread_siblings_list", &core))
                core = (struct cpus){0};
            put(&core, cpu);
            keep_only(&core, &m->node[t->node]);
            remove_all(&left, &core);
            if (pass == 1 && at >= low && at < high)
                join(ret, &core);
        }
        cores = at;
        if (cores < t->of)
            return -EINVAL;
    }
    return 0;
}

/* The CPUs that share the last level of cache with this one. */
static void cache_group(const struct machine *m, uint32_t cpu, struct cpus *ret)
{
    int64_t deepest = -1;
    *ret = (struct cpus){0};
    put(ret, cpu);
    for (int i = 0; i < 16; i++) {
        char path[512];
        char what[64];
        struct cpus shared;
        (void)snprintf(path, sizeof(path), "%s/sys/devices/system/cpu/cpu%u/cache/index%d/level",
                       m->root, cpu, i);
        int64_t level = read_int(path, -1);
        if (level < 0)
            return;
        (void)snprintf(what, sizeof(what), "cache/index%d/shared_cpu_list", i);
        if (level > deepest && read_of_cpu(m, cpu, what, &shared)) {
            deepest = level;
            *ret = shared;
            put(ret, cpu);
        }
    }
}

/* The index-th of the node's groups, larger ones first, then as they are numbered; round robin. */
static int share_cache(const struct machine *m, const struct turn *t, struct cpus *ret)
{
    struct cpus left = m->node[t->node];
    uint32_t n = 0;
    uint32_t cap = count(&left);
    MU_CLEANUP(mu_freep) struct cpus *groups = mu_alloc(mu_mem_default(), (cap + 1) * sizeof(*ret));
    if (groups == NULL)
        return -ENOMEM;
    for (uint32_t cpu = first(&left, 0); cpu < NUMA_CPUS_MAX; cpu = first(&left, cpu)) {
        struct cpus group;
        cache_group(m, cpu, &group);
        keep_only(&group, &m->node[t->node]);
        remove_all(&left, &group);
        uint32_t at = n++;
        for (; at > 0 && count(&groups[at - 1]) < count(&group); at--)
            groups[at] = groups[at - 1];
        groups[at] = group;
    }
    if (n > 0)
        *ret = groups[t->index % n];
    return 0;
}

static int share(const struct machine *m, const char *mode, const struct turn *t, struct cpus *ret)
{
    *ret = (struct cpus){0};
    if (strcmp(mode, "exclusive") == 0)
        return share_cores(m, t, ret);
    if (strcmp(mode, "core-complex") == 0)
        return share_cache(m, t, ret);
    if (strcmp(mode, "socket") == 0)
        share_socket(m, t, ret);
    else
        *ret = m->node[t->node];
    return 0;
}

/* --- all workers --- */

static int bind_one(struct numa *n,
                    const struct machine *m,
                    const char *mode,
                    uint32_t nproc,
                    uint32_t i,
                    struct mu_err *err)
{
    struct turn t = turn_of(m, nproc, i);
    if (count(&m->node[t.node]) == 0) {
        (void)snprintf(
            n->warning, sizeof(n->warning),
            "--numa-binding=%s: none of the CPUs of NUMA node %d is in our affinity mask: "
            "workers that belong there are not bound",
            mode, (int)m->node_id[t.node]);
        return 0;
    }
    int r = share(m, mode, &t, &n->cpus[i]);
    if (r == -EINVAL)
        return mu_err_set(err, r,
                          "--numa-binding=exclusive: NUMA node %d has fewer free cores than the %u "
                          "workers that belong there: start fewer of them, or use "
                          "--numa-binding=node",
                          (int)m->node_id[t.node], t.of);
    if (r < 0)
        return mu_err_set(err, r, "no memory for --numa-binding");
    n->masks[i] = n->cpus[i].word;
    return 0;
}

int numa_bind_within(struct numa *n,
                     const char *mode,
                     uint32_t nproc,
                     const char *visible,
                     const char *root,
                     const struct cpus *allowed,
                     struct mu_err *err)
{
    *n = (struct numa){0};
    MU_CLEANUP(mu_freep) struct machine *m = mu_zalloc(mu_mem_default(), sizeof(*m));
    n->cpus = mu_zalloc(mu_mem_default(), nproc * sizeof(*n->cpus));
    n->masks = mu_zalloc(mu_mem_default(), nproc * sizeof(*n->masks));
    if (m == NULL || n->cpus == NULL || n->masks == NULL)
        return mu_err_set(err, -ENOMEM, "no memory for --numa-binding");
    m->root = root;
    m->allowed = *allowed;
    read_nodes(m);
    read_gpus(m);
    if (visible != NULL)
        choose_visible(m, visible);
    if (m->gpu_count == 0)
        (void)snprintf(n->warning, sizeof(n->warning),
                       "--numa-binding=%s: no GPU is visible here, so the %u workers are dealt to "
                       "%u NUMA node%s in order",
                       mode, nproc, m->node_count, m->node_count == 1 ? "" : "s");
    int r = 0;
    for (uint32_t i = 0; r == 0 && i < nproc; i++)
        r = bind_one(n, m, mode, nproc, i, err);
    return r;
}

int numa_bind(struct numa *n,
              const char *mode,
              uint32_t nproc,
              const char *visible,
              const char *root,
              struct mu_err *err)
{
    struct cpus allowed = {0};
    cpu_set_t *set = CPU_ALLOC(NUMA_CPUS_MAX);
    size_t bytes = CPU_ALLOC_SIZE(NUMA_CPUS_MAX);
    if (set == NULL)
        return mu_err_set(err, -ENOMEM, "no memory for --numa-binding");
    CPU_ZERO_S(bytes, set);
    if (sched_getaffinity(0, bytes, set) < 0) {
        int code = -errno;
        CPU_FREE(set);
        return mu_err_set(err, code, "--numa-binding: our affinity mask: %s", strerror(-code));
    }
    for (uint32_t cpu = 0; cpu < NUMA_CPUS_MAX; cpu++) {
        if (CPU_ISSET_S(cpu, bytes, set))
            put(&allowed, cpu);
    }
    CPU_FREE(set);
    return numa_bind_within(n, mode, nproc, visible, root, &allowed, err);
}

void numa_fini(struct numa *n)
{
    free(n->cpus);
    free(n->masks);
    *n = (struct numa){0};
}

const unsigned long *const *numa_masks(const struct numa *n)
{
    return n->masks;
}
