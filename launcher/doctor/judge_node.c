/* What one machine can be judged by alone. The table is at the end. */
#include "launcher/doctor/judge.h"

#include <stdio.h>
#include <string.h>

#define KIB 1024.0
#define MIB (KIB * 1024)
#define GIB (MIB * 1024)

static enum doc_level nofile(const cJSON *n, struct doc_said *s)
{
    double soft = 0;
    double hard = 0;
    if (!doc_num(n, "nofile_soft", &soft, s) || !doc_num(n, "nofile_hard", &hard, s))
        return DOC_UNKNOWN;
    doc_see(s, "%.0f, and may be raised to %.0f", soft, hard);
    return soft < 256 ? DOC_FAIL : soft < 4096 && hard < 4096 ? DOC_WARN : DOC_OK;
}

static enum doc_level memlock(const cJSON *n, struct doc_said *s)
{
    char text[DOC_BYTES_TEXT];
    double bytes = 0;
    double rdma = 0;
    if (!doc_num(n, "memlock", &bytes, s))
        return DOC_UNKNOWN;
    bool has_rdma = doc_num(n, "rdma", &rdma, NULL) && rdma > 0;
    doc_see(s, "%s%s", doc_bytes(bytes, text),
            bytes < 0  ? ""
            : has_rdma ? ", and this node has RDMA devices, which lock what they send from"
                       : ", and no RDMA device that needs more");
    return bytes < 0 || !has_rdma ? DOC_OK : bytes < 64 * MIB ? DOC_FAIL : DOC_WARN;
}

static enum doc_level shm(const cJSON *n, struct doc_said *s)
{
    char total_text[DOC_BYTES_TEXT];
    char free_text[DOC_BYTES_TEXT];
    double total = 0;
    double left = 0;
    if (!doc_num(n, "shm_bytes", &total, s) || !doc_num(n, "shm_free", &left, s))
        return DOC_UNKNOWN;
    doc_see(s, "%s free of %s", doc_bytes(left, free_text), doc_bytes(total, total_text));
    return left < 64 * MIB ? DOC_FAIL : left < GIB ? DOC_WARN : DOC_OK;
}

static enum doc_level tasks(const cJSON *n, struct doc_said *s)
{
    const char *where = "";
    double most = 0;
    double now = 0;
    if (!doc_num(n, "tasks_max", &most, s))
        return DOC_UNKNOWN;
    (void)doc_text(n, "tasks_where", &where, NULL);
    if (most < 0) {
        doc_see(s, "no limit");
        return DOC_OK;
    }
    if (!doc_num(n, "tasks_now", &now, s))
        return DOC_UNKNOWN;
    doc_see(s, "%.0f more processes and threads (%s allows %.0f)", most - now, where, most);
    return most - now < 64 ? DOC_FAIL : most - now < 2048 ? DOC_WARN : DOC_OK;
}

static enum doc_level cores(const cJSON *n, struct doc_said *s)
{
    const char *pattern = "";
    const char *missing = "";
    double limit = 0;
    if (!doc_text(n, "core_pattern", &pattern, s) || !doc_num(n, "core_limit", &limit, s))
        return DOC_UNKNOWN;
    if (doc_text(n, "core_helper_missing", &missing, NULL)) {
        doc_see(s, "core_pattern hands dumps to %s, which is not here", missing);
        return DOC_WARN;
    }
    if (pattern[0] == '|')
        doc_see(s, "handed to a program: %s", pattern);
    else if (limit == 0)
        doc_see(s, "none is written (limit 0)");
    else if (pattern[0] != '/') {
        doc_see(s, "written as '%s' into the workers' folder, each as large as its worker's memory",
                pattern);
        return limit < 0 || limit > GIB ? DOC_WARN : DOC_OK;
    } else
        doc_see(s, "written as '%s'", pattern);
    return DOC_OK;
}

static enum doc_level worse(enum doc_level a, enum doc_level b)
{
    return a > b ? a : b;
}

static enum doc_level disk_level(const cJSON *d, const char **ret_why)
{
    double left = 0;
    double inodes = 0;
    double inodes_free = 0;
    const cJSON *writable = cJSON_GetObjectItemCaseSensitive(d, "writable");
    *ret_why = "";
    if (cJSON_IsFalse(writable)) {
        *ret_why = ", not writable";
        return DOC_WARN;
    }
    if (!doc_num(d, "free", &left, NULL))
        return DOC_UNKNOWN;
    bool counts = doc_num(d, "inodes", &inodes, NULL) && inodes > 0;
    if (counts && doc_num(d, "inodes_free", &inodes_free, NULL) && inodes_free < 10000) {
        *ret_why = ", hardly an inode left";
        return inodes_free < 1000 ? DOC_FAIL : DOC_WARN;
    }
    return left < 100 * MIB ? DOC_FAIL : left < 2 * GIB ? DOC_WARN : DOC_OK;
}

static enum doc_level disks(const cJSON *n, struct doc_said *s)
{
    const cJSON *list = NULL;
    const cJSON *d = NULL;
    enum doc_level level = DOC_OK;
    size_t used = 0;
    if (!doc_list(n, "disks", &list, s))
        return DOC_UNKNOWN;
    cJSON_ArrayForEach(d, list)
    {
        char text[DOC_BYTES_TEXT];
        const char *path = "?";
        const char *why = "";
        double left = -1;
        level = worse(level, disk_level(d, &why));
        (void)doc_text(d, "path", &path, NULL);
        bool known = doc_num(d, "free", &left, NULL);
        int put =
            snprintf(s->seen + used, sizeof s->seen - used, "%s%.80s: %s%s", used > 0 ? "; " : "",
                     path, known ? doc_bytes(left, text) : "unknown", known ? " free" : "");
        used += put > 0 && (size_t)put < sizeof s->seen - used ? (size_t)put : 0;
        put = snprintf(s->seen + used, sizeof s->seen - used, "%s", why);
        used += put > 0 && (size_t)put < sizeof s->seen - used ? (size_t)put : 0;
    }
    return level;
}

static enum doc_level own_name(const cJSON *n, struct doc_said *s)
{
    const char *host = "this host";
    const cJSON *list = NULL;
    const cJSON *a = NULL;
    (void)doc_text(n, "host", &host, NULL);
    if (!doc_list(n, "own_name", &list, s)) {
        return doc_no_address(n, "own_name", host, s) ? DOC_WARN : DOC_UNKNOWN;
    }
    cJSON_ArrayForEach(a, list)
    {
        if (!cJSON_IsString(a) || !doc_is_loopback(a->valuestring))
            continue;
        doc_see(s,
                "%s is %s here: programs that tell others the address of their own name tell them "
                "one that leads nowhere",
                host, a->valuestring);
        doc_cure(s, "in /etc/hosts, put the node's address in the place of %s", a->valuestring);
        return DOC_WARN;
    }
    a = cJSON_GetArrayItem(list, 0);
    doc_see(s, "%s is %s", host, cJSON_IsString(a) ? a->valuestring : "?");
    return DOC_OK;
}

static enum doc_level own_port(const cJSON *n, struct doc_said *s)
{
    const char *how = "";
    const char *addr = "its own address";
    if (!doc_text(n, "own_port", &how, s))
        return DOC_UNKNOWN;
    (void)doc_text(n, "address", &addr, NULL);
    bool ok = strcmp(how, "ok") == 0;
    doc_see(s, "a connection to %s, a port of this node's own: %s", addr, how);
    return ok ? DOC_OK : DOC_FAIL;
}

static enum doc_level clock_kept(const cJSON *n, struct doc_said *s)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(n, "clock_kept");
    const char *text = "";
    if (doc_text(n, "clock_kept", &text, s) || !cJSON_IsBool(v)) {
        if (v == NULL || cJSON_IsObject(v))
            return DOC_UNKNOWN;
    }
    doc_see(s, cJSON_IsTrue(v) ? "the kernel says that it is kept in step"
                               : "the kernel says that nobody keeps it in step");
    return cJSON_IsTrue(v) ? DOC_OK : DOC_WARN;
}

static enum doc_level ipv6(const cJSON *n, struct doc_said *s)
{
    double addresses = 0;
    if (doc_is(n, "v6_localhost_broken")) {
        doc_see(s, "localhost is ::1, and ::1 does not answer");
        return DOC_WARN;
    }
    if (!doc_num(n, "v6_addresses", &addresses, s))
        return DOC_UNKNOWN;
    if (addresses > 0 && !doc_is(n, "v6_socket")) {
        doc_see(s, "%.0f of its addresses, and no socket can be opened for them", addresses);
        return DOC_WARN;
    }
    if (addresses > 0)
        doc_see(s, "%.0f address%s", addresses, addresses == 1 ? "" : "es");
    else
        doc_see(s, "not used: no address but link-local ones");
    return DOC_OK;
}

static enum doc_level cgroup(const cJSON *n, struct doc_said *s)
{
    const char *how = "";
    if (!doc_text(n, "cgroup", &how, s))
        return DOC_UNKNOWN;
    doc_see(s, "%s", how);
    return strcmp(how, "delegated") == 0 ? DOC_OK : DOC_WARN;
}

static enum doc_level ptrace(const cJSON *n, struct doc_said *s)
{
    double scope = 0;
    if (!doc_num(n, "ptrace_scope", &scope, s))
        return DOC_UNKNOWN;
    if (scope < 1) {
        doc_see(s, scope < 0 ? "not restricted (no Yama)" : "not restricted");
        return DOC_OK;
    }
    doc_see(s, "kernel.yama.ptrace_scope is %.0f%s", scope,
            doc_is(n, "ptrace_cap") ? ", and this user may trace all the same" : "");
    return scope < 3 && doc_is(n, "ptrace_cap") ? DOC_OK : DOC_WARN;
}

static enum doc_level gpus(const cJSON *n, struct doc_said *s)
{
    const char *driver = "";
    const char *cuda = "";
    double count = 0;
    if (!doc_num(n, "gpus", &count, s))
        return DOC_UNKNOWN;
    if (count < 1) {
        doc_see(s, "none");
        return DOC_OK;
    }
    (void)doc_text(n, "driver", &driver, NULL);
    if (!doc_text(n, "cuda", &cuda, NULL)) {
        doc_see(s, "%.0f, driver %s, but libcuda cannot be used", count, driver);
        doc_cure(s, "install the driver's library (libcuda.so.1), or give the container the GPUs");
        return DOC_FAIL;
    }
    const char *nccl = "";
    if (!doc_text(n, "nccl", &nccl, NULL)) {
        doc_see(s, "%.0f, driver %s, CUDA %s; no NCCL where libraries are looked for", count,
                driver, cuda);
        return DOC_OK; /* torch brings its own. */
    }
    doc_see(s, "%.0f, driver %s, CUDA %s, NCCL %s", count, driver, cuda, nccl);
    return DOC_OK;
}

/* --- the server of a rendezvous, where one is named --- */

static const cJSON *server_of(const cJSON *n)
{
    return cJSON_GetObjectItemCaseSensitive(n, "server");
}

static enum doc_level server_name(const cJSON *n, struct doc_said *s)
{
    const cJSON *server = server_of(n);
    const cJSON *list = NULL;
    const char *host = "";
    if (server == NULL)
        return DOC_OK;
    (void)doc_text(server, "host", &host, NULL);
    if (!doc_list(server, "addresses", &list, s)) {
        if (!doc_no_address(server, "addresses", host, s))
            return DOC_UNKNOWN;
        doc_cure(s,
                 "add %.100s to the name server or to /etc/hosts, or give --rdzv a numeric address",
                 host);
        return DOC_FAIL;
    }
    const cJSON *a = cJSON_GetArrayItem(list, 0);
    const char *first = cJSON_IsString(a) ? a->valuestring : "?";
    doc_see(s, "%.100s is %s", host, first);
    if (!doc_is_loopback(first) || strcmp(host, "localhost") == 0 || doc_is_loopback(host))
        return DOC_OK;
    doc_see(s, "%.100s is %s here, which is this node itself", host, first);
    doc_cure(s,
             "where %.100s is another node, put that node's address into /etc/hosts in the place "
             "of %s",
             host, first);
    return DOC_WARN;
}

static void cure_server_port(struct doc_said *s, const char *how, double port)
{
    if (strcmp(how, "dropped") == 0)
        doc_cure(s,
                 "open TCP port %.0f in the server's firewall, or in one between: nft insert rule "
                 "inet filter input tcp dport %.0f accept (iptables -I INPUT -p tcp --dport %.0f "
                 "-j ACCEPT)",
                 port, port, port);
    else if (strcmp(how, "refused") == 0)
        doc_cure(s,
                 "start rdzv-server (or the node-agent that hosts the rendezvous) there, or name "
                 "its port: nobody listens at %.0f",
                 port);
    else
        doc_cure(s, "see to the route to it: ip route get, ping; or a firewall that answers so");
}

static enum doc_level server_port(const cJSON *n, struct doc_said *s)
{
    const cJSON *server = server_of(n);
    const char *how = "";
    const char *host = "";
    double port = 0;
    if (server == NULL)
        return DOC_OK;
    if (!doc_text(server, "how", &how, s))
        return DOC_UNKNOWN;
    (void)doc_text(server, "host", &host, NULL);
    (void)doc_num(server, "port", &port, NULL);
    if (strcmp(how, "ok") == 0) {
        const cJSON *is = cJSON_GetObjectItemCaseSensitive(server, "is_muster");
        doc_see(s, "%.100s port %.0f answers%s", host, port,
                cJSON_IsFalse(is) ? ", but is no rdzv-server" : "");
        if (!cJSON_IsFalse(is))
            return DOC_OK;
        doc_cure(s, "another program has that port: name the server's port, or stop that program");
        return DOC_FAIL;
    }
    doc_see(s, "%.100s port %.0f: %s", host, port,
            strcmp(how, "dropped") == 0   ? "no answer at all, so packets are dropped on the way"
            : strcmp(how, "refused") == 0 ? "refused, so nobody listens there"
                                          : how);
    cure_server_port(s, how, port);
    return DOC_FAIL;
}

static enum doc_level server_clock(const cJSON *n, struct doc_said *s)
{
    const cJSON *server = server_of(n);
    double skew = 0;
    double trip = 0;
    char text[DOC_BYTES_TEXT];
    if (server == NULL || !doc_num(server, "skew_ms", &skew, NULL))
        return DOC_OK;
    (void)doc_num(server, "rtt_ms", &trip, NULL);
    double off = skew < 0 ? -skew : skew;
    doc_see(s, "the server's clock is %s %s", doc_ms(off, text), skew < 0 ? "behind" : "ahead");
    off -= trip / 2;
    return off > 2000 ? DOC_FAIL : off > 200 ? DOC_WARN : DOC_OK;
}

/* clang-format off */
const struct doc_node_row doc_node_rows[] = {
    {{"server's name", "the server's name has an address that leads to it", "name the server by an address that is not this node's loopback"}, server_name},
    {{"server's port", "the server's port takes connections", "open it"}, server_port},
    {{"server's clock", "within 0.2 s of this node's", "run chronyd or systemd-timesyncd on both"}, server_clock},
    {{"own name", "the node's own name is an address of its own, no loopback", "add the node's name and address to /etc/hosts or the name server"}, own_name},
    {{"own port", "a node reaches its own ports", "let the loopback and own addresses through: nft insert rule inet filter input iif lo accept (iptables -I INPUT -i lo -j ACCEPT)"}, own_port},
    {{"open files", "at least 4096 (ulimit -n)", "raise it: ulimit -n 65536, LimitNOFILE= in the unit, nofile in /etc/security/limits.conf"}, nofile},
    {{"locked memory", "no limit (ulimit -l) where there is RDMA", "raise it: ulimit -l unlimited, LimitMEMLOCK=infinity in the unit, docker --ulimit memlock=-1"}, memlock},
    {{"shared memory", "at least 1 GiB free in /dev/shm", "enlarge it: mount -o remount,size=50% /dev/shm, docker --shm-size=16g, a memory-backed emptyDir in Kubernetes; or remove what lies there"}, shm},
    {{"processes", "room for at least 2048 more processes and threads", "raise it: TasksMax=infinity in the unit, docker --pids-limit=-1, ulimit -u"}, tasks},
    {{"core dumps", "handed to a program, written to a folder of their own, or off", "sysctl -w kernel.core_pattern=/var/crash/%e.%p, or ulimit -c 0"}, cores},
    {{"disk", "at least 2 GiB and 10,000 inodes free, and writable", "make room there, or point --log-dir, TMPDIR and the working folder elsewhere"}, disks},
    {{"clock kept", "kept in step by NTP or PTP", "run chronyd or systemd-timesyncd (in a container: on its host)"}, clock_kept},
    {{"IPv6", "usable, or not there at all", "give lo its ::1 back (sysctl -w net.ipv6.conf.all.disable_ipv6=0), or take ::1 out of /etc/hosts"}, ipv6},
    {{"cgroup", "a cgroup v2 of node-agent's own, so that nothing escapes it", "start node-agent as a unit with Delegate=yes, or with systemd-run --user --scope -p Delegate=yes"}, cgroup},
    {{"stack traces", "workers may be traced, for the stacks of one that hangs (py-spy, gdb)", "sysctl -w kernel.yama.ptrace_scope=0, or give node-agent CAP_SYS_PTRACE"}, ptrace},
    {{"GPUs", "the GPUs that the driver knows can be used", "see nvidia-smi"}, gpus},
};
/* clang-format on */
const size_t doc_node_row_count = MU_COUNT(doc_node_rows);
