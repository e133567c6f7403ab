/* One loader for every store: the same operations over PyTorch's TCPStore protocol and over Redis's
 * RESP, with the server's CPU and memory read before and after.
 *
 * One JSON object an operation: {"op", "count", "wall_ns", "server_cpu_ns", "server_bytes"}; wall
 * and CPU are sums over `count`, except for what says otherwise below.
 *
 * set get add   one request, one answer, `count` times. TCPStore's SET has no answer, so a PING
 * goes with it in the same write. stream        `count` SETs in as few writes as they fit in, then
 * one answer. bigset bigget one value of 1 MiB, `big` times. barrier       `clients` connections
 * meet, `big` times (TCPStore only). idle          `idle` connections that said hello; server_bytes
 * is what they cost it. accept        one new connection until its first answer; wall_ns is the
 * longest of 3. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/str.h"
#include "bench/bench.h"

#define BIG_BYTES (1024 * 1024)
#define CLIENTS_MAX 8192
#define LANES_MAX 1024
#define KEYS 1024 /* Distinct keys of a stream. */

enum option {
    OPT_PROTO,
    OPT_HOST,
    OPT_PORT,
    OPT_PID,
    OPT_OPS,
    OPT_COUNT_,
    OPT_BIG,
    OPT_CLIENTS,
    OPT_IDLE,
    OPT_VALUE,
    OPT_LANES,
    OPTION_COUNT
};

static struct bench_option options[OPTION_COUNT] = {
    [OPT_PROTO] = {"--proto", "torch", "torch or resp"},
    [OPT_HOST] = {"--host", "127.0.0.1", "the server's address"},
    [OPT_PORT] = {"--port", "29500", "its port"},
    [OPT_PID] = {"--pid", "0", "its process, for its CPU and memory"},
    [OPT_OPS] = {"--ops", "set,get,add,stream,bigset,bigget", "what to do, in this order"},
    [OPT_COUNT_] = {"--count", "20000", "small operations"},
    [OPT_BIG] = {"--big", "50", "large values, and barriers"},
    [OPT_CLIENTS] = {"--clients", "256", "connections of a barrier"},
    [OPT_IDLE] = {"--idle", "2000", "idle connections"},
    [OPT_VALUE] = {"--value", "16", "bytes of a small value"},
    [OPT_LANES] = {"--lanes", "64", "connections of the request-answer operations"},
};

struct bench {
    bool resp;
    uint16_t port;
    pid_t pid;
    size_t count;
    size_t big;
    size_t clients;
    size_t idle;
    size_t value_bytes;
    char *value;
    size_t lanes;
    int fd[LANES_MAX]; /* The connections of the request-answer operations; [0] is for the rest. */
};

/* What an operation found; the sums are over `count`. */
struct result {
    size_t count;
    int64_t wall_ns;
    int64_t cpu_ns;
    int64_t bytes;
};

/* --- requests --- */

static void put_u64(struct mu_buf *b, uint64_t v)
{
    unsigned char le[8];
    for (size_t i = 0; i < sizeof le; i++)
        le[i] = (unsigned char)(v >> (8 * i));
    (void)mu_buf_add(b, le, sizeof le);
}

static void put_str(struct mu_buf *b, const void *p, size_t n)
{
    put_u64(b, n);
    (void)mu_buf_add(b, p, n);
}

static void put_command(struct mu_buf *b, unsigned char code)
{
    (void)mu_buf_add(b, &code, 1);
}

static void put_ping(struct mu_buf *b)
{
    (void)mu_buf_add(b, "\x0d\1\2\3\4", 5);
}

static void put_bulk(struct mu_buf *b, const void *p, size_t n)
{
    (void)mu_buf_addf(b, "$%zu\r\n", n);
    (void)mu_buf_add(b, p, n);
    (void)mu_buf_adds(b, "\r\n");
}

static void put_set(const struct bench *x, struct mu_buf *b, const char *key, size_t value_bytes)
{
    if (x->resp) {
        (void)mu_buf_adds(b, "*3\r\n$3\r\nSET\r\n");
        put_bulk(b, key, strlen(key));
        put_bulk(b, x->value, value_bytes);
        return;
    }
    put_command(b, 1);
    put_str(b, key, strlen(key));
    put_str(b, x->value, value_bytes);
}

static void put_get(const struct bench *x, struct mu_buf *b, const char *key)
{
    if (x->resp) {
        (void)mu_buf_adds(b, "*2\r\n$3\r\nGET\r\n");
        put_bulk(b, key, strlen(key));
        return;
    }
    put_command(b, 3);
    put_str(b, key, strlen(key));
}

static void put_add(const struct bench *x, struct mu_buf *b, const char *key)
{
    if (x->resp) {
        (void)mu_buf_adds(b, "*2\r\n$4\r\nINCR\r\n");
        put_bulk(b, key, strlen(key));
        return;
    }
    put_command(b, 4);
    put_str(b, key, strlen(key));
    put_u64(b, 1);
}

static void put_barrier(struct mu_buf *b, const char *key, size_t world)
{
    put_command(b, 18);
    put_str(b, key, strlen(key));
    put_u64(b, world);
}

/* --- answers --- */

/* A RESP line, of which no more than cap bytes are kept. */
static void read_line(int fd, char *line, size_t cap)
{
    size_t n = 0;
    do {
        bench_read(fd, line + n, 1);
        n += n + 1 < cap ? 1 : 0;
    } while (line[n - 1] != '\n');
    line[n - 1] = '\0';
    if (line[0] == '-')
        bench_fail("the server says '%s'", line);
}

/* A short answer comes whole in one read, as it was written in one; the loader must not cost more
 * calls for one protocol than for the other. */
static void read_short(int fd, size_t fixed)
{
    char answer[256];
    size_t n = 0;
    do {
        ssize_t r = read(fd, answer + n, sizeof answer - n);
        if (r <= 0)
            bench_fail("no answer: %s", r == 0 ? "closed" : strerror(errno));
        n += (size_t)r;
    } while (fixed > 0 ? n < fixed : answer[n - 1] != '\n');
    if (answer[0] == '-' && fixed == 0)
        bench_fail("the server says '%.*s'", (int)n, answer);
}

static void read_value(const struct bench *x, int fd, char *to, size_t bytes)
{
    char line[64];
    if (x->resp) {
        read_line(fd, line, sizeof line);
        bench_read(fd, to, bytes + 2);
        return;
    }
    bench_read(fd, to, bytes + 8);
}

/* --- connections --- */

static int open_client(const struct bench *x)
{
    int fd = bench_connect(options[OPT_HOST].value, x->port, NULL);
    if (x->resp) {
        bench_write(fd, "PING\r\n", 6);
        read_short(fd, 0);
        return fd;
    }
    bench_write(fd, "\0\xce\xf7\x85\x3c\x0d\1\2\3\4", 10);
    read_short(fd, 4);
    return fd;
}

static void start_clock(const struct bench *x, struct result *r)
{
    r->cpu_ns = bench_cpu_ns(x->pid);
    r->wall_ns = mu_now_ns();
}

static void stop_clock(const struct bench *x, struct result *r)
{
    r->wall_ns = mu_now_ns() - r->wall_ns;
    r->cpu_ns = bench_cpu_ns(x->pid) - r->cpu_ns;
}

/* --- operations --- */

static struct result run_pairs(const struct bench *x, const struct mu_buf *request, size_t answer)
{
    struct result r = {.count = x->count / x->lanes * x->lanes};
    start_clock(x, &r);
    for (size_t i = 0; i < r.count; i += x->lanes) {
        for (size_t k = 0; k < x->lanes; k++)
            bench_write(x->fd[k], request->p, request->n);
        for (size_t k = 0; k < x->lanes; k++)
            read_short(x->fd[k], answer);
    }
    stop_clock(x, &r);
    return r;
}

static struct result op_set(const struct bench *x, struct mu_buf *b)
{
    put_set(x, b, "/key", x->value_bytes);
    if (!x->resp)
        put_ping(b);
    return run_pairs(x, b, x->resp ? 5 : 4);
}

static struct result op_get(const struct bench *x, struct mu_buf *b)
{
    put_set(x, b, "/key", x->value_bytes);
    if (!x->resp)
        put_ping(b);
    bench_write(x->fd[0], b->p, b->n);
    read_short(x->fd[0], x->resp ? 5 : 4);
    mu_buf_reset(b);
    put_get(x, b, "/key");
    char head[32];
    size_t head_bytes =
        x->resp ? (size_t)snprintf(head, sizeof head, "$%zu\r\n", x->value_bytes) + 2 : 8;
    return run_pairs(x, b, head_bytes + x->value_bytes);
}

static struct result op_add(const struct bench *x, struct mu_buf *b)
{
    put_add(x, b, "/counter");
    return run_pairs(x, b, x->resp ? 0 : 8);
}

static struct result op_stream(const struct bench *x, struct mu_buf *b)
{
    struct result r = {.count = x->count};
    char key[32];
    char answer[4096];
    for (size_t i = 0; i < x->count; i++) {
        (void)snprintf(key, sizeof key, "/key%04zu", i % KEYS);
        put_set(x, b, key, x->value_bytes);
    }
    if (!x->resp)
        put_ping(b);
    if (b->oom)
        bench_fail("no memory");
    start_clock(x, &r);
    bench_write(x->fd[0], b->p, b->n);
    for (size_t left = x->resp ? x->count * 5 : 4; left > 0;) {
        size_t n = left < sizeof answer ? left : sizeof answer;
        bench_read(x->fd[0], answer, n);
        left -= n;
    }
    stop_clock(x, &r);
    return r;
}

static struct result op_bigset(const struct bench *x, struct mu_buf *b)
{
    struct result r = {.count = x->big};
    put_set(x, b, "/big", BIG_BYTES);
    if (!x->resp)
        put_ping(b);
    start_clock(x, &r);
    for (size_t i = 0; i < x->big; i++) {
        bench_write(x->fd[0], b->p, b->n);
        read_short(x->fd[0], x->resp ? 5 : 4);
    }
    stop_clock(x, &r);
    return r;
}

static struct result op_bigget(const struct bench *x, struct mu_buf *b)
{
    struct result r = {.count = x->big};
    struct mu_buf in;
    mu_buf_init(&in, mu_mem_default());
    if (mu_buf_reserve(&in, BIG_BYTES + 16) < 0)
        bench_fail("no memory");
    put_get(x, b, "/big");
    start_clock(x, &r);
    for (size_t i = 0; i < x->big; i++) {
        bench_write(x->fd[0], b->p, b->n);
        read_value(x, x->fd[0], in.p, BIG_BYTES);
    }
    stop_clock(x, &r);
    mu_buf_fini(&in);
    return r;
}

/* Written by all before anybody reads, as ranks that arrive together do. */
static struct result op_barrier(const struct bench *x, struct mu_buf *b)
{
    struct result r = {.count = x->big};
    int fds[CLIENTS_MAX];
    char key[32];
    for (size_t i = 0; i < x->clients; i++)
        fds[i] = open_client(x);
    start_clock(x, &r);
    for (size_t k = 0; k < x->big; k++) {
        (void)snprintf(key, sizeof key, "/barrier%zu", k);
        mu_buf_reset(b);
        put_barrier(b, key, x->clients);
        for (size_t i = 0; i < x->clients; i++)
            bench_write(fds[i], b->p, b->n);
        for (size_t i = 0; i < x->clients; i++)
            read_short(fds[i], 1);
    }
    stop_clock(x, &r);
    for (size_t i = 0; i < x->clients; i++)
        (void)close(fds[i]);
    return r;
}

static struct result op_idle(const struct bench *x, struct mu_buf *b)
{
    struct result r = {.count = x->idle};
    int fds[CLIENTS_MAX];
    (void)b;
    r.bytes = bench_anonymous_bytes(x->pid);
    start_clock(x, &r);
    for (size_t i = 0; i < x->idle; i++)
        fds[i] = open_client(x);
    stop_clock(x, &r);
    r.bytes = bench_anonymous_bytes(x->pid) - r.bytes;
    for (size_t i = 0; i < x->idle; i++)
        (void)close(fds[i]);
    return r;
}

static struct result op_accept(const struct bench *x, struct mu_buf *b)
{
    struct result r = {.count = 1};
    (void)b;
    for (size_t i = 0; i < 3; i++) {
        int64_t begun_ns = mu_now_ns();
        (void)close(open_client(x));
        int64_t ns = mu_now_ns() - begun_ns;
        r.wall_ns = ns > r.wall_ns ? ns : r.wall_ns;
    }
    return r;
}

typedef struct result op_fn(const struct bench *x, struct mu_buf *b);

static const struct {
    const char *name;
    op_fn *run;
    bool torch_only;
} ops[] = {
    {"set", op_set, false},       {"get", op_get, false},        {"add", op_add, false},
    {"stream", op_stream, false}, {"bigset", op_bigset, false},  {"bigget", op_bigget, false},
    {"idle", op_idle, false},     {"barrier", op_barrier, true}, {"accept", op_accept, false},
};

static void run_op(const struct bench *x, struct mu_str name)
{
    struct mu_buf b;
    mu_buf_init(&b, mu_mem_default());
    size_t k = 0;
    while (k < MU_COUNT(ops) && !mu_str_eq(name, mu_str_of(ops[k].name, strlen(ops[k].name))))
        k++;
    if (k == MU_COUNT(ops))
        bench_fail("--ops: '%.*s' is none", (int)name.n, name.p);
    if (ops[k].torch_only && x->resp)
        return;
    struct result r = ops[k].run(x, &b);
    (void)printf("{\"op\":\"%s\",\"count\":%zu,\"wall_ns\":%lld,\"server_cpu_ns\":%lld,"
                 "\"server_bytes\":%lld}\n",
                 ops[k].name, r.count, (long long)r.wall_ns, (long long)r.cpu_ns,
                 (long long)r.bytes);
    (void)fflush(stdout);
    mu_buf_fini(&b);
}

static void run_ops(const struct bench *x, const char *list)
{
    while (*list != '\0') {
        size_t n = strcspn(list, ",");
        run_op(x, mu_str_of(list, n));
        list += n + (list[n] == ',' ? 1 : 0);
    }
}

int main(int argc, char **argv)
{
    static struct bench x;
    bench_options(argc, argv, options, OPTION_COUNT);
    x.resp = strcmp(options[OPT_PROTO].value, "resp") == 0;
    if (!x.resp && strcmp(options[OPT_PROTO].value, "torch") != 0)
        bench_fail("--proto: torch or resp");
    x.port = (uint16_t)bench_number(&options[OPT_PORT], 1, 65535);
    x.pid = (pid_t)bench_number(&options[OPT_PID], 0, INT32_MAX);
    x.count = (size_t)bench_number(&options[OPT_COUNT_], 1, 10000000);
    x.big = (size_t)bench_number(&options[OPT_BIG], 1, 100000);
    x.clients = (size_t)bench_number(&options[OPT_CLIENTS], 1, CLIENTS_MAX);
    x.idle = (size_t)bench_number(&options[OPT_IDLE], 1, CLIENTS_MAX);
    x.value_bytes = (size_t)bench_number(&options[OPT_VALUE], 1, 128);
    x.lanes = (size_t)bench_number(&options[OPT_LANES], 1, LANES_MAX);
    x.value = mu_zalloc(mu_mem_default(), BIG_BYTES);
    if (x.value == NULL)
        bench_fail("no memory");
    memset(x.value, 'v', BIG_BYTES);
    bench_need_files(x.idle + x.clients + x.lanes + 16);
    if (strcmp(options[OPT_OPS].value, "accept") != 0)
        for (size_t k = 0; k < x.lanes; k++)
            x.fd[k] = open_client(&x);
    run_ops(&x, options[OPT_OPS].value);
    mu_mem_free(mu_mem_default(), x.value);
    return 0;
}
