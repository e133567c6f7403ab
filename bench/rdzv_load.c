/* Thousands of agents in one process, to see what a rendezvous costs its server.
 *
 * Each simulated agent is one connection that says hello, gets its START, says started, and, when
 * asked, goes through restarts and finishes, all with the words of base/ctl.h. For each phase one
 * JSON object says how long it took and how much CPU the server (--pid) used in it.
 *
 * One thread. What an agent does for itself, its socket and the text of its hello, is done before
 * the clock runs. Hellos go out while connecting, with blocking sockets: on the loopback the kernel
 * answers a connect at once. Then one epoll loop waits for each phase's last answer. Messages are
 * told apart by their first field alone, so that the loader costs less than what it measures. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/ctl.h"
#include "base/mem.h"
#include "bench/bench.h"

enum option {
    OPT_HOST,
    OPT_PORT,
    OPT_PID,
    OPT_AGENTS,
    OPT_NPROC,
    OPT_RUN_ID,
    OPT_SOURCES,
    OPT_RESTARTS,
    OPT_REPEAT,
    OPT_JOIN_ONLY,
    OPT_TIMEOUT,
    OPT_COUNT
};

static struct bench_option options[OPT_COUNT] = {
    [OPT_HOST] = {"--host", "127.0.0.1", "the server's address"},
    [OPT_PORT] = {"--port", "29500", "its port"},
    [OPT_PID] = {"--pid", "0", "its process, for its CPU"},
    [OPT_AGENTS] = {"--agents", "1000", "agents of the job"},
    [OPT_NPROC] = {"--nproc", "8", "workers each of them claims"},
    [OPT_RUN_ID] = {"--run-id", "load", "the job; a number is added for each repeat"},
    [OPT_SOURCES] = {"--sources", "1", "addresses 127.0.0.1, .2, ... to come from"},
    [OPT_RESTARTS] = {"--restarts", "0", "times that a worker fails and all start again"},
    [OPT_REPEAT] = {"--repeat", "1", "jobs, one after another"},
    [OPT_JOIN_ONLY] = {"--join-only", "0", "1: leave when all have their START"},
    [OPT_TIMEOUT] = {"--timeout", "60", "seconds that a phase may take"},
};

struct agent {
    int fd;
    bool done;        /* Has had the message of this phase. */
    struct mu_buf in; /* A frame not yet whole; empty nearly always. */
    struct mu_buf hello;
};

struct load {
    struct agent *agents;
    uint32_t count;
    uint32_t nproc;
    pid_t pid;
    int epoll;
    int64_t timeout_ns;
    uint32_t round;
    char run_id[MU_RUN_ID_BYTES];
    enum ctl_type wanted;
    uint32_t had; /* Agents that had it. */
    int64_t last_had_ns;
    int64_t cpu_before_ns; /* Of the server, when the phase began. */
};

static struct ctl_msg message; /* Too big for a stack frame that is entered often. */

static void encode(const struct load *l, struct mu_buf *out, enum ctl_type type)
{
    static int32_t numbers[MU_WORKERS_MAX]; /* Pids, or exits. */
    struct ctl_ints ints = {.v = numbers, .n = l->nproc};
    uint32_t round = l->round;
    for (uint32_t i = 0; i < l->nproc; i++)
        numbers[i] = type == CTL_STARTED ? 1000 + (int32_t)i : 0;
    switch ((int)type) {
    case CTL_STARTED:
        message.u.started.round = round;
        message.u.started.pids = ints;
        break;
    case CTL_FAILED:
        message.u.failed.round = round;
        message.u.failed.cause.kind = MU_CAUSE_WORKER_EXIT;
        message.u.failed.cause.exit_code = 7;
        message.u.failed.cause.local_rank = 0;
        message.u.failed.cause.round = round;
        break;
    case CTL_STOPPED:
        message.u.stopped.round = round;
        message.u.stopped.store_port = 40001;
        message.u.stopped.exits = ints;
        break;
    case CTL_FINISHED:
        message.u.finished.round = round;
        break;
    default:
        break;
    }
    if (ctl_encode(&message, out) < 0)
        bench_fail("no memory");
}

static void say(struct load *l, uint32_t i, const struct mu_buf *bytes)
{
    bench_write(l->agents[i].fd, bytes->p, bytes->n);
}

static void say_all(struct load *l, enum ctl_type type)
{
    struct mu_buf bytes;
    mu_buf_init(&bytes, mu_mem_default());
    ctl_init(&message, type);
    encode(l, &bytes, type);
    for (uint32_t i = 0; i < l->count; i++)
        say(l, i, &bytes);
    mu_buf_fini(&bytes);
}

static void make_hello(struct load *l, uint32_t i)
{
    struct mu_buf *out = &l->agents[i].hello;
    struct ctl_hello *h = &message.u.hello;
    ctl_init(&message, CTL_HELLO);
    (void)mu_strcopy(h->version, sizeof h->version, "load");
    (void)mu_strcopy(h->run_id, sizeof h->run_id, l->run_id);
    (void)snprintf(h->node, sizeof h->node, "%08x-load-%08x", (unsigned)getpid(), i);
    (void)snprintf(h->host, sizeof h->host, "node%05u", i);
    (void)snprintf(h->fqdn, sizeof h->fqdn, "node%05u.cluster.example", i);
    (void)mu_strcopy(h->host_addr, sizeof h->host_addr, "127.0.0.1");
    (void)mu_strcopy(h->role, sizeof h->role, "default");
    (void)mu_strcopy(h->boot_id, sizeof h->boot_id, "00000000-0000-4000-8000-000000000000");
    h->pid = 1 + i;
    h->cpus = 64;
    h->gpus = 8;
    h->nodes_min = l->count;
    h->nodes_max = l->count;
    h->nproc = l->nproc;
    h->max_restarts = bench_number(&options[OPT_RESTARTS], 0, MU_RESTARTS_MAX);
    h->store_port = 40000;
    (void)mu_buf_adds(out, CTL_GREETING);
    encode(l, out, CTL_HELLO);
}

static void begin_phase(struct load *l, enum ctl_type wanted)
{
    l->wanted = wanted;
    l->had = 0;
    for (uint32_t i = 0; i < l->count; i++)
        l->agents[i].done = false;
    l->cpu_before_ns = bench_cpu_ns(l->pid);
}

/* One message of the server. */
static void on_frame(struct load *l, struct agent *a, struct mu_str json)
{
    char head[64];
    static const char refused[] = "{\"type\":\"refused\"";
    int n = snprintf(head, sizeof head, "{\"type\":\"%s\"", ctl_type_name(l->wanted));
    if (json.n > sizeof refused && memcmp(json.p, refused, sizeof refused - 1) == 0)
        bench_fail("refused: %.*s", (int)json.n, json.p);
    if (json.n < (size_t)n || memcmp(json.p, head, (size_t)n) != 0 || a->done)
        return;
    a->done = true;
    l->had++;
    l->last_had_ns = mu_now_ns();
}

/* Every whole frame at the front of `in`; returns how many bytes they took. */
static size_t eat(struct load *l, struct agent *a, struct mu_str in)
{
    struct mu_err err;
    struct mu_str json;
    size_t at = 0;
    size_t n = 0;
    int r = 0;
    while ((r = ctl_frame(mu_str_of(in.p + at, in.n - at), &json, &n, &err)) == 1) {
        on_frame(l, a, json);
        at += n;
    }
    if (r < 0)
        bench_fail("%s", err.msg);
    return at;
}

static void on_readable(struct load *l, struct agent *a)
{
    static char scratch[65536];
    ssize_t n = read(a->fd, scratch, sizeof scratch);
    if (n == 0 && l->wanted == CTL_END && a->done) {
        (void)epoll_ctl(l->epoll, EPOLL_CTL_DEL, a->fd, NULL);
        return;
    }
    if (n == 0)
        bench_fail("the server closed a connection before '%s'", ctl_type_name(l->wanted));
    if (n < 0)
        bench_fail("read: %s", strerror(errno));
    struct mu_str in = mu_str_of(scratch, (size_t)n);
    if (a->in.n > 0) {
        (void)mu_buf_add(&a->in, scratch, (size_t)n);
        in = mu_str_of(a->in.p, a->in.n);
    }
    size_t eaten = eat(l, a, in);
    if (a->in.n > 0)
        mu_buf_consume(&a->in, eaten);
    else if (eaten < in.n)
        (void)mu_buf_add(&a->in, in.p + eaten, in.n - eaten);
}

/* A job's end is still at work when its agents are gone: connections are closed, memory is freed.
 * That is not the next job's cost. */
static void until_idle(const struct load *l)
{
    struct timespec look = {.tv_nsec = 50 * MU_NS_PER_MS};
    int64_t cpu_ns = bench_cpu_ns(l->pid);
    for (int tries = 0; l->pid > 0 && tries < 100; tries++) {
        (void)nanosleep(&look, NULL);
        int64_t now_ns = bench_cpu_ns(l->pid);
        if (now_ns - cpu_ns < MU_NS_PER_MS)
            return;
        cpu_ns = now_ns;
    }
}

/* Until every agent has had the wanted message. Real agents are on machines of their own, and a
 * server does not pay for waking them; here its send() wakes this process if that sleeps for
 * single answers. So it sleeps a moment and takes what has come. */
static void wait_phase(struct load *l)
{
    static const struct timespec moment = {.tv_nsec = 200 * MU_NS_PER_US};
    struct epoll_event events[256];
    int64_t deadline_ns = mu_now_ns() + l->timeout_ns;
    while (l->had < l->count) {
        int64_t left_ns = deadline_ns - mu_now_ns();
        if (left_ns <= 0)
            bench_fail("%u of %u agents got '%s' in time", l->had, l->count,
                       ctl_type_name(l->wanted));
        (void)nanosleep(&moment, NULL);
        int n = epoll_wait(l->epoll, events, MU_COUNT(events), (int)(left_ns / MU_NS_PER_MS) + 1);
        if (n < 0 && errno != EINTR)
            bench_fail("epoll_wait: %s", strerror(errno));
        for (int k = 0; k < n; k++)
            on_readable(l, &l->agents[events[k].data.u32]);
    }
}

static void report(const struct load *l, const char *phase, int64_t begun_ns, int64_t said_ns)
{
    int64_t cpu_ns = bench_cpu_ns(l->pid) - l->cpu_before_ns;
    (void)printf("{\"phase\":\"%s\",\"agents\":%u,\"round\":%u,\"wall_ns\":%lld,\"tail_ns\":%lld,"
                 "\"server_cpu_ns\":%lld}\n",
                 phase, l->count, l->round, (long long)(l->last_had_ns - begun_ns),
                 (long long)(l->last_had_ns - said_ns), (long long)cpu_ns);
    (void)fflush(stdout);
}

static void make_agent(struct load *l, uint32_t i, uint32_t sources)
{
    char source[32];
    struct epoll_event e = {.events = EPOLLIN, .data.u32 = i};
    (void)snprintf(source, sizeof source, "127.0.0.%u", 1 + i % sources);
    l->agents[i].fd = bench_socket(options[OPT_HOST].value, sources > 1 ? source : NULL);
    mu_buf_init(&l->agents[i].in, mu_mem_default());
    mu_buf_init(&l->agents[i].hello, mu_mem_default());
    make_hello(l, i);
    if (epoll_ctl(l->epoll, EPOLL_CTL_ADD, l->agents[i].fd, &e) < 0)
        bench_fail("epoll_ctl: %s", strerror(errno));
}

static void join(struct load *l)
{
    uint32_t sources = (uint32_t)bench_number(&options[OPT_SOURCES], 1, 200);
    uint16_t port = (uint16_t)bench_number(&options[OPT_PORT], 1, 65535);
    for (uint32_t i = 0; i < l->count; i++)
        make_agent(l, i, sources);
    begin_phase(l, CTL_START);
    int64_t begun_ns = mu_now_ns();
    for (uint32_t i = 0; i < l->count; i++) {
        bench_connect_to(l->agents[i].fd, options[OPT_HOST].value, port);
        say(l, i, &l->agents[i].hello);
    }
    int64_t said_ns = mu_now_ns();
    wait_phase(l);
    report(l, "join", begun_ns, said_ns);
}

/* One worker fails: everyone is told to stop, says stopped, and starts again. */
static void restart(struct load *l)
{
    struct mu_buf bytes;
    mu_buf_init(&bytes, mu_mem_default());
    begin_phase(l, CTL_STOP);
    ctl_init(&message, CTL_FAILED);
    encode(l, &bytes, CTL_FAILED);
    int64_t begun_ns = mu_now_ns();
    say(l, 0, &bytes);
    wait_phase(l);
    report(l, "stop", begun_ns, begun_ns);
    begin_phase(l, CTL_START);
    begun_ns = mu_now_ns();
    say_all(l, CTL_STOPPED);
    int64_t said_ns = mu_now_ns();
    wait_phase(l);
    l->round++;
    report(l, "restart", begun_ns, said_ns);
    mu_buf_fini(&bytes);
}

static void finish(struct load *l)
{
    begin_phase(l, CTL_END);
    int64_t begun_ns = mu_now_ns();
    say_all(l, CTL_FINISHED);
    int64_t said_ns = mu_now_ns();
    wait_phase(l);
    report(l, "finish", begun_ns, said_ns);
}

static void leave(struct load *l)
{
    for (uint32_t i = 0; i < l->count; i++) {
        (void)close(l->agents[i].fd);
        mu_buf_fini(&l->agents[i].in);
        mu_buf_fini(&l->agents[i].hello);
    }
}

static void one_job(struct load *l)
{
    int64_t restarts = bench_number(&options[OPT_RESTARTS], 0, MU_RESTARTS_MAX);
    l->round = 1;
    until_idle(l);
    join(l);
    if (bench_number(&options[OPT_JOIN_ONLY], 0, 1) == 1) {
        leave(l);
        return;
    }
    say_all(l, CTL_STARTED);
    for (int64_t i = 0; i < restarts; i++) {
        restart(l);
        say_all(l, CTL_STARTED);
    }
    finish(l);
    leave(l);
}

int main(int argc, char **argv)
{
    struct load l = {.epoll = epoll_create1(EPOLL_CLOEXEC)};
    bench_options(argc, argv, options, OPT_COUNT);
    l.count = (uint32_t)bench_number(&options[OPT_AGENTS], 1, MU_NODES_MAX);
    l.nproc = (uint32_t)bench_number(&options[OPT_NPROC], 1, MU_WORKERS_MAX);
    l.pid = (pid_t)bench_number(&options[OPT_PID], 0, INT32_MAX);
    l.timeout_ns = bench_number(&options[OPT_TIMEOUT], 1, 3600) * MU_NS_PER_S;
    bench_need_files(l.count + 16);
    l.agents = mu_zalloc(mu_mem_default(), l.count * sizeof *l.agents);
    if (l.agents == NULL || l.epoll < 0)
        bench_fail("no memory, or no epoll");
    int64_t repeat = bench_number(&options[OPT_REPEAT], 1, 1000000);
    for (int64_t k = 0; k < repeat; k++) {
        (void)snprintf(l.run_id, sizeof l.run_id, "%.100s-%lld", options[OPT_RUN_ID].value,
                       (long long)k);
        one_job(&l);
    }
    mu_mem_free(mu_mem_default(), l.agents);
    return 0;
}
