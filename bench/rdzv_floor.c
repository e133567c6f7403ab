/* The floor under a rendezvous: a bare epoll server that accepts, reads one hello from each, and,
 * when the last is there, sends each as many bytes as a WELCOME and a START take. It decides
 * nothing, allocates nothing and looks at nothing but lengths. rdzv_load --join-only is its loader,
 * as it is the real server's: what the real one costs beyond this is the rendezvous itself. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/ctl.h"
#include "base/mem.h"
#include "bench/bench.h"

enum option {
    OPT_AGENTS,
    OPT_COUNT
};

static struct bench_option options[OPT_COUNT] = {
    [OPT_AGENTS] = {"--agents", "1000", "hellos of a round"},
};

struct floor {
    int listener;
    int epoll;
    uint32_t wanted;
    uint32_t joined;
    int *fds; /* Of those that said hello. */
    struct mu_buf answer;
};

static void listen_here(struct floor *f)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int one = 1;
    f->listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    (void)setsockopt(f->listener, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (bind(f->listener, (struct sockaddr *)&a, sizeof a) < 0 || listen(f->listener, 4096) < 0 ||
        getsockname(f->listener, (struct sockaddr *)&a, &len) < 0)
        bench_fail("listen: %s", strerror(errno));
    struct epoll_event e = {.events = EPOLLIN, .data.fd = f->listener};
    (void)epoll_ctl(f->epoll, EPOLL_CTL_ADD, f->listener, &e);
    (void)printf("%u\n", ntohs(a.sin_port));
    (void)fflush(stdout);
}

static void make_answer(struct floor *f)
{
    static struct ctl_msg m;
    mu_buf_init(&f->answer, mu_mem_default());
    ctl_init(&m, CTL_START);
    (void)mu_strcopy(m.u.start.lead_addr, sizeof m.u.start.lead_addr, "127.0.0.1");
    m.u.start.lead_port = 30000;
    m.u.start.node_count = f->wanted;
    m.u.start.world = m.u.start.role_world = 8 * (int64_t)f->wanted;
    m.u.start.rank_base = m.u.start.role_rank_base = m.u.start.world - 8;
    if (ctl_encode(&m, &f->answer) < 0)
        bench_fail("no memory");
}

static void answer_all(struct floor *f)
{
    for (uint32_t i = 0; i < f->joined; i++)
        bench_write(f->fds[i], f->answer.p, f->answer.n);
    f->joined = 0;
}

static void on_acceptable(const struct floor *f)
{
    int fd = -1;
    while ((fd = accept4(f->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        struct epoll_event e = {.events = EPOLLIN | EPOLLET, .data.fd = fd};
        (void)epoll_ctl(f->epoll, EPOLL_CTL_ADD, fd, &e);
    }
}

/* A hello comes in one piece on a loopback. */
static void on_readable(struct floor *f, int fd)
{
    static char scratch[65536];
    ssize_t n = recv(fd, scratch, sizeof scratch, 0);
    if (n == 0)
        (void)close(fd);
    if (n <= CTL_GREETING_BYTES || memcmp(scratch, CTL_GREETING, CTL_GREETING_BYTES) != 0)
        return;
    f->fds[f->joined++] = fd;
    if (f->joined == f->wanted)
        answer_all(f);
}

int main(int argc, char **argv)
{
    bench_options(argc, argv, options, OPT_COUNT);
    struct floor f = {.epoll = epoll_create1(EPOLL_CLOEXEC),
                      .wanted = (uint32_t)bench_number(&options[OPT_AGENTS], 1, MU_NODES_MAX)};
    struct epoll_event events[256];
    bench_need_files(f.wanted + 16);
    f.fds = mu_zalloc(mu_mem_default(), f.wanted * sizeof *f.fds);
    if (f.fds == NULL || f.epoll < 0)
        bench_fail("no memory, or no epoll");
    make_answer(&f);
    listen_here(&f);
    for (;;) {
        int n = epoll_wait(f.epoll, events, MU_COUNT(events), -1); /* Until it is killed. */
        for (int i = 0; i < n; i++) {
            if (events[i].data.fd == f.listener)
                on_acceptable(&f);
            else
                on_readable(&f, events[i].data.fd);
        }
    }
}
