#include "launcher/doctor/link.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <muster/comm.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/str.h"
#include "launcher/doctor/facts.h"
#include "launcher/doctor/gpu_memory.h"

#define CHILD_LIMIT_NS (25 * MU_NS_PER_S)
#define GPUS_LIMIT_NS (60 * MU_NS_PER_S) /* NCCL's start alone may take ten seconds. */
#define MEET_LIMIT_NS (15 * MU_NS_PER_S)
#define SMALL_TURNS 50
#define FIRST_BYTES (128u * 1024)
#define MOST_BYTES (64u * 1024 * 1024)
#define AIM_NS (150 * MU_NS_PER_MS) /* So long each way: enough for a window to open. */
#define ANSWER_BYTES 1024

/* ------------------------------------------------------------------ the child */

struct measured {
    double latency_us;
    double bytes_per_s;
};

/* Bytes travel over one communicator; what both must know does so over another, in the CPU's
 * memory, as nobody here can read a GPU's. */
struct wire {
    muster_comm *data;
    muster_comm *control;
    char *bytes; /* MOST_BYTES, where `data` wants them. */
};

static int reduce(muster_comm *c, void *two, struct muster_error *err)
{
    muster_ticket t = 0;
    int r = muster_comm_all_reduce(c, two, 2, MUSTER_I32, MUSTER_MAX, &t, err);
    return r == 0 ? muster_comm_wait(c, t, MEET_LIMIT_NS, err) : r;
}

static int measure_latency(const struct wire *w, struct measured *ret, struct muster_error *err)
{
    int64_t best_ns = INT64_MAX;
    for (int i = 0; i < SMALL_TURNS; i++) {
        int64_t from = mu_now_ns();
        int r = reduce(w->data, w->bytes, err);
        int64_t took = mu_now_ns() - from;
        if (r < 0)
            return r;
        best_ns = took < best_ns ? took : best_ns;
    }
    ret->latency_us = (double)best_ns / 1000;
    return 0;
}

/* One way. The sender knows that all is there when the other has answered. */
static int64_t send_once(const struct wire *w, size_t n, uint32_t root, struct muster_error *err)
{
    muster_ticket t = 0;
    int64_t from = mu_now_ns();
    int r = muster_comm_broadcast(w->data, w->bytes, n, MUSTER_U8, root, &t, err);
    if (r == 0)
        r = muster_comm_wait(w->data, t, MEET_LIMIT_NS, err);
    if (r == 0)
        r = muster_comm_barrier(w->control, MEET_LIMIT_NS, err);
    return r < 0 ? r : mu_now_ns() - from;
}

/* The larger the faster, until it takes long enough. Both know the same size. */
static int
measure_rate(const struct wire *w, uint32_t root, struct measured *ret, struct muster_error *err)
{
    for (uint32_t size = FIRST_BYTES; size > 0;) {
        int64_t took = send_once(w, size, root, err);
        if (took < 0)
            return (int)took;
        double rate = (double)size * 1e9 / (double)(took > 0 ? took : 1);
        if (muster_comm_rank(w->data) == root && rate > ret->bytes_per_s)
            ret->bytes_per_s = rate;
        uint32_t next[2] = {took < AIM_NS && size < MOST_BYTES ? size * 4 : 0, 0};
        int r = reduce(w->control, next, err);
        if (r < 0)
            return r;
        size = next[0] < MOST_BYTES ? next[0] : MOST_BYTES;
    }
    return 0;
}

/* One line: what was measured, or why not. */
static int say(const struct wire *w, const struct measured *got, int code, const char *why)
{
    cJSON *out = cJSON_CreateObject();
    if (code == 0) {
        (void)cJSON_AddNumberToObject(out, "latency_us", got->latency_us);
        (void)cJSON_AddNumberToObject(out, "bytes_per_s", got->bytes_per_s);
        (void)cJSON_AddStringToObject(out, "backend", muster_comm_backend(w->data));
    } else
        (void)cJSON_AddStringToObject(out, "broken", why);
    char *text = cJSON_PrintUnformatted(out);
    if (text != NULL)
        (void)printf("%s\n", text);
    (void)fflush(stdout);
    cJSON_free(text);
    cJSON_Delete(out);
    return code;
}

static int measure(const struct wire *w, struct muster_error *err)
{
    struct measured got = {0};
    int r = measure_latency(w, &got, err);
    for (uint32_t root = 0; r == 0 && root < 2; root++)
        r = measure_rate(w, root, &got, err);
    return say(w, &got, r, err->text);
}

static int open_comm(
    muster *m, const char *name, const char *backend, muster_comm **ret, struct muster_error *err)
{
    struct muster_comm_options o = MUSTER_COMM_OPTIONS_INIT;
    o.name = name;
    o.backend = backend;
    o.device = 0;
    o.timeout_ns = MEET_LIMIT_NS;
    return muster_comm_open(m, &o, ret, err);
}

static void measure_gpus(muster *m, const char *name, muster_comm *control)
{
    char own_name[64];
    struct mu_err why = {0};
    struct muster_error err = {0};
    void *memory = NULL;
    struct wire w = {.control = control};
    (void)snprintf(own_name, sizeof own_name, "%.40s-gpu", name);
    int r = gpu_memory(MOST_BYTES, &memory, &why);
    if (r < 0) {
        (void)say(&w, NULL, r, why.msg);
        return;
    }
    w.bytes = memory;
    r = open_comm(m, own_name, "nccl", &w.data, &err);
    if (r < 0)
        (void)say(&w, NULL, r, err.text);
    else
        (void)measure(&w, &err);
    muster_comm_close(w.data);
}

int link_child(const char *name, bool gpus)
{
    struct muster_options mo = MUSTER_OPTIONS_INIT;
    struct muster_error err = {0};
    struct wire w = {0};
    muster *m = NULL;
    mo.timeout_ns = MEET_LIMIT_NS;
    w.bytes = mu_zalloc(mu_mem_default(), MOST_BYTES);
    if (w.bytes == NULL) {
        (void)say(&w, NULL, -ENOMEM, "no memory for a measurement");
        return 0;
    }
    int r = muster_open(&mo, &m, &err);
    if (r == 0)
        r = open_comm(m, name, "tcp", &w.data, &err);
    w.control = w.data;
    r = r == 0 ? measure(&w, &err) : say(&w, NULL, r, err.text);
    if (r == 0 && gpus)
        measure_gpus(m, name, w.control);
    muster_comm_close(w.data);
    muster_close(m);
    free(w.bytes);
    return 0;
}

/* ------------------------------------------------------------------ its parent */

/* Two ranks, one a node, which use the store that all of the job have. */
static const char *const own_names[] = {"RANK=",
                                        "WORLD_SIZE=",
                                        "LOCAL_RANK=",
                                        "GROUP_RANK=",
                                        "GROUP_WORLD_SIZE=",
                                        "LOCAL_WORLD_SIZE=",
                                        "MASTER_ADDR=",
                                        "MASTER_PORT=",
                                        "MUSTER_AGENT_FD=",
                                        "TORCHELASTIC_USE_AGENT_STORE="};

static bool is_own(const char *entry)
{
    for (size_t i = 0; i < MU_COUNT(own_names); i++)
        if (strncmp(entry, own_names[i], strlen(own_names[i])) == 0)
            return true;
    return false;
}

/* Texts first, then the list that points to them. NULL: no memory. */
static char **make_environment(const struct link_ask *ask, struct mu_buf *texts)
{
    extern char **environ;
    size_t kept = 0;
    size_t n = 0;
    (void)mu_buf_addf(texts,
                      "RANK=%u\nWORLD_SIZE=2\nLOCAL_RANK=0\nLOCAL_WORLD_SIZE=1\nGROUP_RANK=%u\n"
                      "GROUP_WORLD_SIZE=2\nMASTER_ADDR=%s\nMASTER_PORT=%u\n"
                      "TORCHELASTIC_USE_AGENT_STORE=True\n",
                      ask->me, ask->me, ask->env->store_host, ask->env->store_port);
    while (environ[kept] != NULL)
        kept++;
    char **v = mu_zalloc(mu_mem_default(), (kept + MU_COUNT(own_names) + 1) * sizeof *v);
    if (v == NULL || texts->oom || mu_buf_add(texts, "", 1) < 0) {
        free(v);
        return NULL;
    }
    for (size_t i = 0; i < kept; i++)
        if (!is_own(environ[i]))
            v[n++] = environ[i];
    for (char *p = texts->p; *p != '\0';) {
        char *end = strchr(p, '\n');
        *end = '\0';
        v[n++] = p;
        p = end + 1;
    }
    return v;
}

static int start_child(const struct link_ask *ask, int out_fd, pid_t *ret_pid)
{
    MU_CLEANUP(mu_buf_fini) struct mu_buf texts;
    mu_buf_init(&texts, mu_mem_default());
    char **env = make_environment(ask, &texts);
    char program[] = "muster-doctor";
    char word[] = LINK_WORD;
    char name[64];
    char gpus[] = LINK_GPUS;
    char *argv[] = {program, word, name, ask->gpus ? gpus : NULL, NULL};
    posix_spawn_file_actions_t fa;
    if (env == NULL)
        return -ENOMEM;
    (void)mu_strcopy(name, sizeof name, ask->name);
    (void)posix_spawn_file_actions_init(&fa);
    (void)posix_spawn_file_actions_adddup2(&fa, out_fd, STDOUT_FILENO);
    (void)posix_spawn_file_actions_addopen(&fa, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    int r = -posix_spawn(ret_pid, "/proc/self/exe", &fa, NULL, argv, env);
    (void)posix_spawn_file_actions_destroy(&fa);
    free(env);
    return r;
}

/* Until the child closes its output, is late, or `beat` says no. Returns why it ended too early. */
static const char *
read_answer(int fd, int64_t limit_ns, char *ret, size_t cap, bool (*beat)(void *arg), void *arg)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    int64_t end_ns = mu_now_ns() + limit_ns;
    size_t n = 0;
    for (;;) {
        int ready = poll(&p, 1, 1000);
        ssize_t r = ready > 0 ? read(fd, ret + n, cap - 1 - n) : -1;
        if (ready > 0 && r <= 0)
            return NULL;
        n += r > 0 ? (size_t)r : 0;
        ret[n] = '\0';
        if (mu_now_ns() > end_ns)
            return "it took too long";
        if (!beat(arg))
            return "the job was stopped";
    }
}

static cJSON *because(const char *key, const char *why)
{
    cJSON *o = cJSON_CreateObject();
    (void)cJSON_AddStringToObject(o, key, why);
    return o;
}

/* The first line is of sockets, the second of GPUs. NCCL that does not come to an end is broken. */
static cJSON *take_answer(const struct link_ask *ask, char *answer, const char *why, bool is_late)
{
    char *second = answer + strcspn(answer, "\n");
    second += *second == '\n';
    cJSON *gpus = second[0] != '\0' ? cJSON_Parse(second) : NULL;
    cJSON *got = answer[0] != '\0' ? cJSON_ParseWithLength(answer, strcspn(answer, "\n")) : NULL;
    if (got == NULL)
        got = because("unknown", why != NULL ? why : "what measures ended without a word");
    else if (ask->gpus && gpus == NULL)
        gpus = because(is_late ? "broken" : "unknown",
                       why != NULL ? why : "what measures ended without a word");
    if (gpus != NULL)
        (void)cJSON_AddItemToObject(got, "gpus", gpus);
    return got;
}

cJSON *link_measure(const struct link_ask *ask, bool (*beat)(void *arg), void *arg)
{
    char answer[ANSWER_BYTES] = "";
    int fds[2];
    pid_t pid = 0;
    if (pipe2(fds, O_CLOEXEC) < 0)
        return because("unknown", strerror(errno));
    int r = start_child(ask, fds[1], &pid);
    (void)close(fds[1]);
    if (r < 0) {
        (void)close(fds[0]);
        return because("unknown", strerror(-r));
    }
    int64_t limit_ns = ask->gpus ? GPUS_LIMIT_NS : CHILD_LIMIT_NS;
    const char *why = read_answer(fds[0], limit_ns, answer, sizeof answer, beat, arg);
    (void)close(fds[0]);
    (void)kill(pid, SIGKILL); /* It has said all, or never will. */
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
    }
    return take_answer(ask, answer, why, why != NULL && beat(arg));
}
