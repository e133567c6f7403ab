/* Accepting: in batches, without ever looking a name up, and without spinning when descriptors run
 * out. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "rendezvous/server/internal.h"

/* Inherited by what is accepted. A host that vanished without a word must not keep its connections
 * here for ever; agents ask for far less patience (agent.c), but for as many probes. */
#define KEEPALIVE_IDLE_S 60
#define KEEPALIVE_INTERVAL_S 20
#define KEEPALIVE_COUNT 3

static void on_pause_over(uv_timer_t *timer)
{
    struct srv *s = timer->data;
    if (s->spare_fd < 0)
        s->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (!s->closing)
        watch_change(s, &s->listener, EPOLLIN);
}

/* Descriptors have run out. The newcomer is closed by way of the spare one, so that it is told at
 * once; then the listener rests, or the loop would spin on a connection that cannot be taken. */
static void out_of_descriptors(struct srv *s, int code)
{
    uint32_t left_out = 0;
    if (mu_log_allowed(&s->log_full, s->now_ns, 1, &left_out))
        mu_log(MU_ERROR, "listen.descriptors",
               "connections=%u error=\"%s\" left_out=%u text=\"raise the limit of open files; "
               "newcomers are closed until then\"",
               s->conn_count, strerror(code), left_out);
    if (s->spare_fd >= 0) {
        (void)close(s->spare_fd);
        int fd = accept4(s->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0)
            (void)close(fd);
        s->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    }
    watch_change(s, &s->listener, 0);
    (void)uv_timer_start(&s->listen_pause, on_pause_over, SRV_LISTEN_PAUSE_MS, 0);
}

static void take(struct srv *s, int fd, const struct sockaddr *sa)
{
    if (s->conn_count < s->config.connections_max) {
        conn_new(s, fd, sa);
        return;
    }
    uint32_t left_out = 0;
    char peer[MU_ADDR_BYTES];
    if (mu_log_allowed(&s->log_full, s->now_ns, 1, &left_out))
        mu_log(
            MU_WARN, "listen.full",
            "peer=%s connections=%u left_out=%u text=\"--max-connections is reached; newcomers are "
            "closed\"",
            mu_addr_host(sa, peer), s->conn_count, left_out);
    (void)close(fd);
}

static void on_acceptable(struct watch *w, uint32_t events)
{
    struct srv *s = (struct srv *)((char *)w - offsetof(struct srv, listener));
    (void)events; /* A listener has no error of its own; accept4() tells. */
    for (int i = 0; i < MU_ACCEPT_BATCH; i++) {
        struct sockaddr_storage ss;
        socklen_t len = sizeof ss;
        int fd = accept4(s->listen_fd, (struct sockaddr *)&ss, &len, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            s->accepted_count++;
            take(s, fd, (const struct sockaddr *)&ss);
            continue;
        }
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
            out_of_descriptors(s, errno);
        /* Everything else is one connection's own trouble, which the kernel has already dropped. */
        if (errno != ECONNABORTED && errno != EINTR && errno != EPROTO)
            break;
    }
}

static void set_address(struct srv *s)
{
    struct sockaddr_storage ss;
    socklen_t len = sizeof ss;
    char host[MU_ADDR_BYTES] = "";
    if (getsockname(s->listen_fd, (struct sockaddr *)&ss, &len) == 0) {
        (void)mu_addr_host((const struct sockaddr *)&ss, host);
        s->port = mu_addr_port((const struct sockaddr *)&ss);
    }
    const char *form = strchr(host, ':') != NULL ? "[%s]:%u" : "%s:%u";
    struct mu_buf b;
    mu_buf_init(&b, mu_mem_default());
    (void)mu_buf_addf(&b, "%s%s%s:%u", form[0] == '[' ? "[" : "", host, form[0] == '[' ? "]" : "",
                      s->port);
    (void)mu_strcopy(s->address, sizeof s->address, mu_buf_cstr(&b)); /* Has room for both. */
    mu_buf_fini(&b);
}

static void inherit_options(int fd)
{
    static const struct {
        int level;
        int name;
        int value;
    } options[] = {{IPPROTO_TCP, TCP_NODELAY, 1},
                   {SOL_SOCKET, SO_KEEPALIVE, 1},
                   {IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_IDLE_S},
                   {IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S},
                   {IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_COUNT}};
    for (size_t i = 0; i < MU_COUNT(options); i++) /* Wishes: all work without them. */
        (void)setsockopt(fd, options[i].level, options[i].name, &options[i].value,
                         sizeof options[i].value);
}

int srv_listen(struct srv *s, struct mu_err *err)
{
    if (s->config.listen_fd >= 0) {
        s->listen_fd = s->config.listen_fd;
        int flags = fcntl(s->listen_fd, F_GETFL);
        if (flags < 0 || fcntl(s->listen_fd, F_SETFL, flags | O_NONBLOCK) < 0) {
            s->listen_fd = -1;
            return mu_err_set(err, -errno, "the listening socket that was handed over: %s",
                              strerror(errno));
        }
    } else {
        s->listen_fd = mu_listen(s->config.host, s->config.port, MU_LISTEN_BACKLOG, &s->port, err);
        if (s->listen_fd < 0)
            return s->listen_fd;
    }
    inherit_options(s->listen_fd);
    set_address(s);
    s->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int r = watch_add(s, &s->listener, s->listen_fd, EPOLLIN, on_acceptable);
    if (r < 0)
        return mu_err_set(err, r, "watch the listening socket: %s", strerror(-r));
    return 0;
}

void srv_unlisten(struct srv *s)
{
    if (s->listen_fd >= 0 && s->listener.fd >= 0)
        (void)watch_remove(s, &s->listener);
    if (s->listen_fd >= 0)
        (void)close(s->listen_fd);
    s->listen_fd = -1;
    if (s->spare_fd >= 0)
        (void)close(s->spare_fd);
    s->spare_fd = -1;
}
