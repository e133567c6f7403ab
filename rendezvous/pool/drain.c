/* Hosts that take no jobs. What people ask for holds for the host: until they take it back, over
 * other services there and other servers here. What a service says of itself ends with it. */
#include "rendezvous/pool/internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static uint32_t find(const struct pool *p, const char *host)
{
    uint32_t i = 0;
    while (i < p->drain_count && strcmp(p->drains[i].host, host) != 0)
        i++;
    return i;
}

bool pool_host_is_drained(const struct pool *p, const char *host)
{
    return find(p, host) < p->drain_count;
}

static int add(struct pool *p, const char *host, int64_t since_unix_ms, struct mu_err *err)
{
    if (pool_host_is_drained(p, host))
        return 0;
    if (p->drain_count >= MU_POOL_NODES_MAX)
        return mu_err_set(err, -ENOSPC,
                          "%d hosts are drained already: muster undrain those that are no more",
                          MU_POOL_NODES_MAX);
    if (p->drain_count == p->drain_cap) {
        uint32_t cap = p->drain_cap == 0 ? 8 : p->drain_cap * 2;
        struct pool_drain *drains = mu_realloc(p->mem, p->drains, cap * sizeof *drains);
        if (drains == NULL)
            return mu_err_set(err, -ENOMEM, "the server has no memory: try again later");
        p->drains = drains;
        p->drain_cap = cap;
    }
    struct pool_drain *d = &p->drains[p->drain_count++];
    *d = (struct pool_drain){.since_unix_ms = since_unix_ms};
    (void)mu_strcopy(d->host, sizeof d->host, host); /* It fits: the protocol's own bound. */
    p->drains_changed = true;
    return 0;
}

static void drop(struct pool *p, const char *host)
{
    uint32_t i = find(p, host);
    if (i == p->drain_count)
        return;
    p->drains[i] = p->drains[--p->drain_count];
    p->drains_changed = true;
}

int pool_drain_node(struct pool *p, struct pool_node *n, bool by_itself, struct mu_err *err)
{
    if (by_itself ? n->leaving : n->draining && pool_host_is_drained(p, n->host))
        return mu_err_set(err, -EALREADY, "%s is being drained already", n->host);
    int r = by_itself ? 0 : add(p, n->host, p->unix_ms, err);
    if (r < 0)
        return r;
    n->leaving = n->leaving || by_itself;
    n->draining = true;
    p->moved = true;
    return 0;
}

int pool_undrain_node(struct pool *p, struct pool_node *n, struct mu_err *err)
{
    if (!n->draining && !pool_host_is_drained(p, n->host))
        return mu_err_set(err, -EALREADY, "%s is not drained", n->host);
    if (n->leaving && !n->connected)
        return mu_err_set(err, -EALREADY,
                          "the service on %s is away, and was told there to take no more jobs: "
                          "muster undrain %s when it is back, or restart it there (systemctl "
                          "restart node-agent)",
                          n->host, n->host);
    n->undrain = n->leaving;
    p->drop_due = p->drop_due || n->undrain;
    n->draining = false;
    n->leaving = false;
    drop(p, n->host);
    p->moved = true;
    return 0;
}

int pool_undrain_host(struct pool *p, const char *host, struct mu_err *err)
{
    if (!pool_host_is_drained(p, host))
        return mu_err_set(err, -ENOENT,
                          "no node on offer has that id or name: muster pool lists them");
    drop(p, host);
    p->moved = true;
    return 0;
}

/* --- rows --- */

void pool_save_drain(const struct pool_drain *d, struct pool_drain_row *ret)
{
    *ret = (struct pool_drain_row){.since_unix_ms = d->since_unix_ms};
    memcpy(ret->host, d->host, sizeof ret->host);
}

int pool_load_drain(struct pool *p, const struct pool_drain_row *row, struct mu_err *err)
{
    if (row->host[0] == '\0' || row->since_unix_ms < 0)
        return mu_err_set(err, -EPROTO, "it names no host");
    int r = add(p, row->host, row->since_unix_ms, err);
    p->drains_changed = false;                 /* As it was. */
    for (uint32_t i = 0; i < p->node_cap; i++) /* Those that its jobs name. */
        if (p->nodes[i] != NULL && strcmp(p->nodes[i]->host, row->host) == 0)
            p->nodes[i]->draining = r == 0;
    return r;
}
