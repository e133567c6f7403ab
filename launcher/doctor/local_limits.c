/* Limits, memory, disks, cgroups, tracing: what the kernel allows a worker here. */
#include "launcher/doctor/local.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <unistd.h>

#include "base/cleanup.h"

static double limit_num(rlim_t v)
{
    return v == RLIM_INFINITY ? -1 : (double)v;
}

static void add_rlimits(cJSON *o)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) == 0) {
        fact_num(o, "nofile_soft", r.rlim_cur == RLIM_INFINITY ? 1e9 : (double)r.rlim_cur);
        fact_num(o, "nofile_hard", r.rlim_max == RLIM_INFINITY ? 1e9 : (double)r.rlim_max);
    }
    if (getrlimit(RLIMIT_MEMLOCK, &r) == 0)
        fact_num(o, "memlock", limit_num(r.rlim_cur));
    if (getrlimit(RLIMIT_CORE, &r) == 0)
        fact_num(o, "core_limit", limit_num(r.rlim_cur));
}

static double count_entries(const char *path)
{
    double n = 0;
    MU_CLEANUP(mu_closedirp) DIR *d = opendir(path);
    const struct dirent *e = NULL;
    while (d != NULL && (e = readdir(d)) != NULL)
        n += e->d_name[0] != '.';
    return n;
}

static void add_shm(cJSON *o)
{
    struct statvfs v;
    if (statvfs("/dev/shm", &v) < 0) {
        if (errno == ENOENT) {
            fact_num(o, "shm_bytes", 0);
            fact_num(o, "shm_free", 0);
            return;
        }
        fact_unknown(o, "shm_bytes", "/dev/shm: %s", strerror(errno));
        return;
    }
    fact_num(o, "shm_bytes", (double)v.f_blocks * (double)v.f_frsize);
    fact_num(o, "shm_free", (double)v.f_bavail * (double)v.f_frsize);
}

static void add_core_pattern(cJSON *o)
{
    char line[256];
    int r = local_read_line("/proc/sys/kernel/core_pattern", line, sizeof line);
    if (r < 0) {
        fact_unknown(o, "core_pattern", "/proc/sys/kernel/core_pattern: %s", strerror(-r));
        return;
    }
    fact_text(o, "core_pattern", line);
    if (line[0] != '|')
        return;
    line[1 + strcspn(line + 1, " ")] = '\0';
    if (access(line + 1, X_OK) < 0 && errno == ENOENT)
        fact_text(o, "core_helper_missing", line + 1);
}

/* --- tasks and cgroups --- */

/* Where our cgroup v2 is, as a path; 0, or -ENOENT where only v1 is. */
static int own_cgroup(char *ret, size_t cap)
{
    char text[4096];
    MU_CLEANUP(mu_closep) int fd = -1;
    FILE *f = fopen("/proc/self/cgroup", "re");
    if (f == NULL)
        return -errno;
    size_t n = fread(text, 1, sizeof text - 1, f);
    (void)fclose(f);
    text[n] = '\0';
    const char *line = strncmp(text, "0::", 3) == 0 ? text : strstr(text, "\n0::");
    if (line == NULL)
        return -ENOENT;
    line += line[0] == '\n' ? 4 : 3;
    int put = snprintf(ret, cap, "/sys/fs/cgroup%.*s", (int)strcspn(line, "\n"), line);
    return put > 0 && (size_t)put < cap ? 0 : -ENAMETOOLONG;
}

struct room {
    double most;
    double now;
    char where[128];
};

static void take_room(struct room *r, double most, double now, const char *where)
{
    if (most < 0 || (r->most >= 0 && r->most - r->now <= most - now))
        return;
    *r = (struct room){.most = most, .now = now};
    (void)snprintf(r->where, sizeof r->where, "%.127s", where);
}

/* Of all limits above us the one with the least room. */
static void add_tasks(cJSON *o)
{
    struct room room = {.most = -1};
    char path[1024];
    char file[1200];
    double most = -1;
    double now = 0;
    if (own_cgroup(path, sizeof path) == 0)
        for (size_t n = strlen(path); n > strlen("/sys/fs/cgroup"); n = strlen(path)) {
            (void)snprintf(file, sizeof file, "%s/pids.max", path);
            bool known = local_read_num(file, &most) == 0;
            (void)snprintf(file, sizeof file, "%s/pids.current", path);
            if (known && local_read_num(file, &now) == 0)
                take_room(&room, most, now, "pids.max of its cgroup");
            *strrchr(path, '/') = '\0';
        }
    char line[128];
    if (local_read_num("/proc/sys/kernel/threads-max", &most) == 0 &&
        local_read_line("/proc/loadavg", line, sizeof line) == 0 && strchr(line, '/') != NULL) {
        char *count = strchr(line, '/') + 1;
        int64_t tasks = 0;
        count[strcspn(count, " ")] = '\0';
        if (mu_parse_i64(count, 0, INT64_MAX, "tasks", &tasks, NULL) == 0)
            take_room(&room, most, (double)tasks, "kernel.threads-max");
    }
    fact_num(o, "tasks_max", room.most);
    fact_num(o, "tasks_now", room.now);
    fact_text(o, "tasks_where", room.where);
}

static void add_cgroup(cJSON *o)
{
    char path[1024];
    char file[1200];
    int r = own_cgroup(path, sizeof path);
    if (r == -ENOENT) {
        fact_text(o, "cgroup", "not there: this system has cgroup v1 alone");
        return;
    }
    if (r < 0) {
        fact_unknown(o, "cgroup", "/proc/self/cgroup: %s", strerror(-r));
        return;
    }
    if (access("/sys/fs/cgroup/cgroup.controllers", F_OK) < 0) {
        fact_text(o, "cgroup", "not mounted at /sys/fs/cgroup as v2 alone");
        return;
    }
    (void)snprintf(file, sizeof file, "%s/cgroup.procs", path);
    bool writable = access(path, W_OK) == 0 && access(file, W_OK) == 0;
    fact_text(o, "cgroup",
              writable ? "delegated" : "not delegated: this user may make no cgroup below its own");
}

/* --- the rest --- */

static void add_disk(cJSON *list, const char *path)
{
    struct statvfs v;
    const cJSON *d = NULL;
    const cJSON *known = NULL;
    cJSON_ArrayForEach(d, list)
    {
        known = cJSON_GetObjectItemCaseSensitive(d, "path");
        if (cJSON_IsString(known) && strcmp(known->valuestring, path) == 0)
            return;
    }
    cJSON *o = cJSON_CreateObject();
    fact_text(o, "path", path);
    if (statvfs(path, &v) < 0)
        fact_unknown(o, "free", "%s", strerror(errno));
    else {
        fact_num(o, "free", (double)v.f_bavail * (double)v.f_frsize);
        fact_num(o, "bytes", (double)v.f_blocks * (double)v.f_frsize);
        fact_num(o, "inodes", (double)v.f_files);
        fact_num(o, "inodes_free", (double)v.f_favail);
    }
    fact_bool(o, "writable", access(path, W_OK) == 0);
    (void)cJSON_AddItemToArray(list, o);
}

static void add_disks(cJSON *o, const char *log_dir)
{
    char cwd[1024];
    const char *tmp = getenv("TMPDIR");
    cJSON *list = cJSON_AddArrayToObject(o, "disks");
    if (log_dir != NULL)
        add_disk(list, log_dir);
    if (getcwd(cwd, sizeof cwd) != NULL)
        add_disk(list, cwd);
    add_disk(list, tmp != NULL && tmp[0] == '/' ? tmp : "/tmp");
}

static void add_clock(cJSON *o)
{
    struct timex t = {0};
    int r = adjtimex(&t);
    if (r < 0)
        fact_unknown(o, "clock_kept", "adjtimex: %s", strerror(errno));
    else
        fact_bool(o, "clock_kept", r != TIME_ERROR && (t.status & STA_UNSYNC) == 0);
}

/* CAP_SYS_PTRACE is number 19. */
static bool may_trace(void)
{
    char text[8192];
    FILE *f = fopen("/proc/self/status", "re");
    if (f == NULL)
        return false;
    size_t n = fread(text, 1, sizeof text - 1, f);
    (void)fclose(f);
    text[n] = '\0';
    const char *line = strstr(text, "CapEff:\t");
    const size_t digits = 16;
    if (line == NULL || strlen(line + 8) < digits)
        return false;
    char digit = line[8 + digits - 1 - 19 / 4];
    int v = digit <= '9' ? digit - '0' : digit - 'a' + 10;
    return (v >> (19 % 4) & 1) != 0;
}

static void add_ptrace(cJSON *o)
{
    double scope = -1;
    int r = local_read_num("/proc/sys/kernel/yama/ptrace_scope", &scope);
    if (r < 0 && r != -ENOENT)
        fact_unknown(o, "ptrace_scope", "kernel.yama.ptrace_scope: %s", strerror(-r));
    else
        fact_num(o, "ptrace_scope", r == 0 ? scope : -1);
    fact_bool(o, "ptrace_cap", may_trace());
}

void local_add_limits(cJSON *o, const char *log_dir)
{
    add_rlimits(o);
    fact_num(o, "rdma", count_entries("/sys/class/infiniband"));
    add_shm(o);
    add_tasks(o);
    add_core_pattern(o);
    add_disks(o, log_dir);
    add_clock(o);
    add_cgroup(o);
    add_ptrace(o);
}
