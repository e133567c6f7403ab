/* The server inside an agent; see hosting.h. */
#include "agent/hosting.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/addr.h"
#include "base/limits.h"
#include "base/str.h"
#include "rendezvous/server/server.h"

#define LIFE_BACKLOG 64

void hosting_init(struct hosting *h, uv_loop_t *loop)
{
    *h = (struct hosting){.loop = loop, .life_fd = -1, .next_store_fd = -1, .store_host = "*"};
}

static struct srv_config config_for(unsigned services, const char *host, uint16_t port)
{
    struct srv_config c = srv_config_default();
    c.services = services;
    c.host = host;
    c.port = port;
    c.version = MUSTER_VERSION;
    c.state_dir = "";
    return c;
}

int hosting_serve_rdzv(
    struct hosting *h, const char *host, uint16_t port, uint16_t *ret_port, struct mu_err *err)
{
    struct srv_config c = config_for(SRV_ALL, host, port);
    c.token = h->token;
    int r = srv_start(h->loop, &c, &h->rdzv, err);
    if (r == 0)
        *ret_port = srv_port(h->rdzv);
    return r;
}

/* At every address, as by which of them the server sees us may change, unless it is on this host.
 * Nobody is accepted; once so many have looked that no more fit, looking says nothing, which is as
 * good as before. */
uint16_t hosting_life_port(struct hosting *h, const char *local)
{
    bool at_all = !mu_addr_is_loopback(local);
    struct mu_err err = {0};
    if (h->life_fd >= 0 && at_all && !h->life_at_all) {
        (void)close(h->life_fd);
        h->life_fd = -1;
    }
    if (h->life_fd < 0) {
        h->life_at_all = at_all;
        h->life_fd = mu_listen(at_all ? "*" : local, 0, LIFE_BACKLOG, &h->life_port, &err);
    }
    return h->life_fd >= 0 ? h->life_port : 0; /* Without one our silence must tell. */
}

void hosting_store_at_rdzv(struct hosting *h)
{
    MU_ASSERT(h->rdzv != NULL && h->next_store_fd < 0);
    h->store_at_rdzv = true;
    srv_open_store(h->rdzv); /* Workers elsewhere were promised it. */
}

int hosting_reserve_store(struct hosting *h, uint16_t *ret_port, struct mu_err *err)
{
    if (h->store_at_rdzv) {
        *ret_port = srv_port(h->rdzv);
        return 0;
    }
    if (h->next_store_fd < 0) {
        int fd = mu_listen(h->store_host, h->store_port_wanted, MU_LISTEN_BACKLOG,
                           &h->next_store_port, err);
        if (fd < 0) {
            bool full = err->code == -EMFILE || err->code == -ENFILE;
            (void)snprintf(h->store_why, sizeof h->store_why, "%.150s%s", err->msg,
                           full ? ": raise the limit of open files (ulimit -n)" : "");
            return mu_err_wrap(err, "a port for the worker store");
        }
        h->next_store_fd = fd;
    }
    *ret_port = h->next_store_port;
    return 0;
}

static void on_closed(void *arg)
{
    struct hosting *h = arg;
    h->closing--;
}

static void close_server(struct hosting *h, struct srv **s)
{
    if (*s == NULL)
        return;
    h->closing++;
    srv_close(*s, on_closed, h);
    *s = NULL;
}

int hosting_open_store(struct hosting *h, struct mu_err *err)
{
    if (h->store_at_rdzv)
        return srv_renew_store(h->rdzv) < 0
                   ? mu_err_set(err, -ENOMEM, "the worker store: no memory")
                   : 0;
    MU_ASSERT(h->store == NULL);
    if (h->next_store_fd < 0)
        return mu_err_set(err, -EMFILE, "no port could be bound for the worker store%s%s",
                          h->store_why[0] != '\0' ? ": " : "", h->store_why);
    struct srv_config c = config_for(SRV_STORE, h->store_host, 0);
    c.listen_fd = h->next_store_fd;
    int r = srv_start(h->loop, &c, &h->store, err);
    if (r < 0)
        return mu_err_wrap(err, "the worker store");
    h->next_store_fd = -1;
    return 0;
}

void hosting_release_store(struct hosting *h)
{
    if (h->next_store_fd >= 0)
        (void)close(h->next_store_fd); /* Nothing was ever written to it. */
    h->next_store_fd = -1;
}

void hosting_close_store(struct hosting *h)
{
    close_server(h, &h->store);
    if (h->store_at_rdzv && h->rdzv != NULL)
        (void)srv_renew_store(h->rdzv); /* Without memory now: hosting_open_store() tries again. */
}

bool hosting_is_needed(const struct hosting *h)
{
    return h->rdzv != NULL && (srv_agent_count(h->rdzv) > 0 || srv_live_job_count(h->rdzv) > 0);
}

void hosting_close(struct hosting *h)
{
    close_server(h, &h->store);
    close_server(h, &h->rdzv);
    hosting_release_store(h);
    if (h->life_fd >= 0)
        (void)close(h->life_fd);
    h->life_fd = -1;
}

bool hosting_is_closed(const struct hosting *h)
{
    return h->closing == 0;
}
