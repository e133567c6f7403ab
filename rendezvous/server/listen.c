/* Accepting: in batches, without ever looking a name up, and without spinning when descriptors run
 * out. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "rendezvous/server/internal.h"

/* A host that vanished without a word must not keep its connections here for ever. */
#define KEEPALIVE_COUNT 3
#define KEEPALIVE_IDLE_S 60
#define KEEPALIVE_INTERVAL_S 20

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

/* One at a time while few come: asking for one more than there is costs a call. In a storm, all
 * that are there. */
static uint32_t accept_batch(struct srv *s)
{
    bool close_behind = s->now_ns - s->accepted_ns < SRV_CROWD_GAP_NS;
    s->accepted_ns = s->now_ns;
    s->accept_crowd = !close_behind                 ? 0
                      : s->accept_crowd < SRV_STORM ? s->accept_crowd + 1
                                                    : SRV_STORM;
    return s->accept_crowd < SRV_STORM ? 1 : MU_ACCEPT_BATCH;
}

static void on_acceptable(struct watch *w, uint32_t events)
{
    struct srv *s = (struct srv *)((char *)w - offsetof(struct srv, listener));
    (void)events; /* A listener has no error of its own; accept4() tells. */
    uint32_t batch = accept_batch(s);
    s->accept_more = true;
    for (uint32_t i = 0; i < batch; i++) {
        struct sockaddr_storage ss;
        socklen_t len = sizeof ss;
        int fd = accept4(s->listen_fd, (struct sockaddr *)&ss, &len, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            s->accepted_count++;
            take(s, fd, (const struct sockaddr *)&ss);
            continue;
        }
        s->accept_more = false;
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

struct patience {
    int idle_s;
    int interval_s;
    int user_ms; /* 0: the kernel's own. */
};

static void set_patience(int fd, const struct patience *p)
{
    /* Wishes: all work without them. */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &p->idle_s, sizeof p->idle_s);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &p->interval_s, sizeof p->interval_s);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &p->user_ms, sizeof p->user_ms);
}

static int clamp(int64_t v)
{
    return v < 1 ? 1 : v > INT16_MAX ? INT16_MAX : (int)v;
}

/* Two unanswered probes and a third: with one second each the kernel knows of a cut cable in about
 * three, which is the default lease. Keepalive sees an idle link, the user time-out one with unsent
 * bytes: each alone misses the other's case. */
static struct patience with_agents(int64_t lease_ns)
{
    int64_t lease_ms = lease_ns / MU_NS_PER_MS;
    int64_t user_ms = lease_ms * 5 / 6;
    return (struct patience){.idle_s = clamp(lease_ms / 3000),
                             .interval_s = clamp(lease_ms / 3000),
                             .user_ms = user_ms > INT32_MAX ? INT32_MAX : (int)user_ms};
}

static const struct patience with_others = {
    .idle_s = KEEPALIVE_IDLE_S, .interval_s = KEEPALIVE_INTERVAL_S, .user_ms = 0};

/* As agents do. What it was before goes to those that are none. */
static void set_repeats(struct srv *s)
{
    socklen_t n = sizeof s->congestion - 1;
    if (getsockopt(s->listen_fd, IPPROTO_TCP, TCP_CONGESTION, s->congestion, &n) == 0)
        mu_resend_evenly(s->listen_fd);
}

/* What is accepted inherits all of this. Agents are the many where they are served: whoever turns
 * out to be somebody else is given more time then. */
static void inherit_options(struct srv *s)
{
    static const struct {
        int level;
        int name;
        int value;
    } options[] = {{IPPROTO_TCP, TCP_NODELAY, 1},
                   {SOL_SOCKET, SO_KEEPALIVE, 1},
                   {IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_COUNT}};
    bool agents = (s->config.services & SRV_AGENTS) != 0;
    struct patience first = agents ? with_agents(s->config.lease_ns) : with_others;
    for (size_t i = 0; i < MU_COUNT(options); i++)
        (void)setsockopt(s->listen_fd, options[i].level, options[i].name, &options[i].value,
                         sizeof options[i].value);
    set_patience(s->listen_fd, &first);
    if (agents)
        set_repeats(s);
}

void srv_no_agent(const struct srv *s, int fd)
{
    if ((s->config.services & SRV_AGENTS) == 0)
        return;
    set_patience(fd, &with_others);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, s->congestion,
                     (socklen_t)strlen(s->congestion)); /* Its bytes may be many. */
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
    inherit_options(s);
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
