/* /proc read without memory of its own; see family.h. */
#include "agent/workers/family.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"

/* Called as the numbers come, piece by piece: "12 345 6" may be cut anywhere. */
static int each_number(int fd, family_fn *fn, void *arg)
{
    char piece[4096];
    long number = 0;
    bool in_number = false;
    for (;;) {
        ssize_t n = read(fd, piece, sizeof(piece));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        for (ssize_t i = 0; i < n; i++) {
            if (isdigit((unsigned char)piece[i])) {
                number = number * 10 + (piece[i] - '0');
                in_number = true;
            } else if (in_number) {
                fn(arg, (pid_t)number);
                number = 0;
                in_number = false;
            }
        }
        if (n == 0) {
            if (in_number)
                fn(arg, (pid_t)number);
            return 0;
        }
    }
}

bool family_stat(pid_t pid, char *ret, size_t cap)
{
    char path[32];
    (void)snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    MU_CLEANUP(mu_closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, ret, cap - 1);
    if (n <= 0)
        return false;
    ret[n] = '\0';
    const char *name_end = strrchr(ret, ')');
    if (name_end == NULL)
        return false;
    memmove(ret, name_end + 1, strlen(name_end + 1) + 1);
    return true;
}

static pid_t parent_of(pid_t pid)
{
    char stat[FAMILY_STAT_BYTES];
    int parent = 0;
    return family_stat(pid, stat, sizeof stat) && sscanf(stat, " %*c %d", &parent) == 1 ? parent
                                                                                        : 0;
}

/* Field 9 are its flags; PF_EXITING is set before it closes its first file. */
bool family_is_ending(pid_t pid)
{
    enum {
        EXITING = 0x4
    };
    char stat[FAMILY_STAT_BYTES];
    char state = ' ';
    unsigned flags = 0;
    if (!family_stat(pid, stat, sizeof stat) ||
        sscanf(stat, " %c %*d %*d %*d %*d %*d %u", &state, &flags) != 2)
        return false;
    return state == 'Z' || state == 'X' || (flags & EXITING) != 0;
}

/* Where the kernel has no `children` files (CONFIG_PROC_CHILDREN): every process is asked for its
 * parent. */
static int each_by_parent(family_fn *fn, void *arg)
{
    MU_CLEANUP(mu_closedirp) DIR *proc = opendir("/proc");
    if (proc == NULL)
        return -errno;
    pid_t self = getpid();
    for (const struct dirent *e = readdir(proc); e != NULL; e = readdir(proc)) {
        int pid = 0;
        if (sscanf(e->d_name, "%d", &pid) == 1 && parent_of(pid) == self)
            fn(arg, pid);
    }
    return 0;
}

int family_each(family_fn *fn, void *arg)
{
    char path[64];
    (void)snprintf(path, sizeof(path), "/proc/self/task/%d/children", (int)getpid());
    MU_CLEANUP(mu_closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd < 0 ? each_by_parent(fn, arg) : each_number(fd, fn, arg);
}

/* FNV-1a. Two of a round's thousand entries share a tag once in 10^13 rounds. */
#define TAG_START UINT64_C(0xcbf29ce484222325)
static uint64_t tag_add(uint64_t tag, char c)
{
    return (tag ^ (unsigned char)c) * UINT64_C(0x100000001b3);
}

uint64_t family_tag(const char *entry)
{
    uint64_t tag = TAG_START;
    for (; *entry != '\0'; entry++)
        tag = tag_add(tag, *entry);
    return tag == 0 ? 1 : tag;
}

uint64_t family_tag_of(pid_t pid, const char *prefix)
{
    char path[32];
    char piece[4096];
    size_t prefix_bytes = strlen(prefix);
    size_t at = 0;   /* Position in the entry. */
    size_t same = 0; /* Its bytes that are the prefix's. */
    uint64_t tag = TAG_START;
    (void)snprintf(path, sizeof(path), "/proc/%d/environ", (int)pid);
    MU_CLEANUP(mu_closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
    for (;;) {
        ssize_t n = fd < 0 ? -1 : read(fd, piece, sizeof(piece));
        if (n <= 0)
            return 0;
        for (ssize_t i = 0; i < n; i++) {
            if (piece[i] == '\0') {
                if (same == prefix_bytes)
                    return tag == 0 ? 1 : tag;
                at = same = 0;
                tag = TAG_START;
                continue;
            }
            if (at < prefix_bytes && same == at && piece[i] == prefix[at])
                same++;
            at++;
            tag = tag_add(tag, piece[i]);
        }
    }
}
