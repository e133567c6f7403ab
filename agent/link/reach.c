/* One attempt to connect; see reach.h. */
#include "agent/link/reach.h"

#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/addr.h"
#include "base/clock.h"
#include "base/mem.h"

/* Freed when its handles are closed and its look-up, which cannot be stopped, has come to its end.
 */
struct reach_attempt {
    struct reach *owner; /* NULL: given up. */
    uv_tcp_t tcp;
    uv_timer_t timer;
    uv_connect_t connecting;
    uv_getaddrinfo_t resolving;
    uint32_t open; /* Handles and look-ups. */
    bool closing;
};

static void on_closed(uv_handle_t *h)
{
    struct reach_attempt *a = h->data;
    if (--a->open == 0)
        free(a);
}

static void close_attempt(struct reach_attempt *a)
{
    a->owner = NULL;
    if (a->closing)
        return;
    a->closing = true;
    uv_close((uv_handle_t *)&a->timer, on_closed);
    if (uv_tcp_close_reset(&a->tcp, on_closed) < 0 && !uv_is_closing((uv_handle_t *)&a->tcp))
        uv_close((uv_handle_t *)&a->tcp, on_closed);
}

static void conclude(struct reach_attempt *a, bool reached, const char *text)
{
    struct reach *r = a->owner;
    close_attempt(a);
    if (r == NULL)
        return;
    r->now = NULL;
    r->on_result(r->arg, reached, text);
}

static void on_limit(uv_timer_t *t)
{
    conclude(t->data, false, "no answer");
}

static void on_connected(uv_connect_t *req, int status)
{
    struct reach_attempt *a = req->data;
    if (status != UV_ECANCELED)
        conclude(a, status == 0, status == 0 ? "" : uv_strerror(status));
}

static void connect_to(struct reach_attempt *a, const struct sockaddr *to)
{
    a->connecting.data = a;
    int status = uv_tcp_connect(&a->connecting, &a->tcp, to, on_connected);
    if (status < 0)
        conclude(a, false, uv_strerror(status));
}

static void on_resolved(uv_getaddrinfo_t *req, int status, struct addrinfo *found)
{
    struct reach_attempt *a = req->data;
    if (!a->closing && status == 0 && found != NULL)
        connect_to(a, found->ai_addr);
    else if (!a->closing)
        conclude(a, false, "the name cannot be resolved");
    uv_freeaddrinfo(found);
    if (--a->open == 0)
        free(a);
}

static void on_no_memory(uv_timer_t *t)
{
    conclude(t->data, false, "no memory");
}

static struct reach_attempt *attempt_new(struct reach *r)
{
    struct reach_attempt *a = mu_zalloc(mu_mem_default(), sizeof *a);
    if (a == NULL)
        return NULL;
    (void)uv_timer_init(r->loop, &a->timer); /* Neither can fail. */
    (void)uv_tcp_init(r->loop, &a->tcp);
    a->timer.data = a;
    a->tcp.data = a;
    a->open = 2;
    a->owner = r;
    return a;
}

void reach_begin(struct reach *r, const char *host, uint16_t port)
{
    static const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct mu_addr numeric;
    char service[8];
    reach_cancel(r);
    struct reach_attempt *a = attempt_new(r);
    if (a == NULL)
        return; /* The wait's own limit tells. */
    r->now = a;
    (void)uv_timer_start(&a->timer, on_limit, (uint64_t)(REACH_LIMIT_NS / MU_NS_PER_MS), 0);
    if (mu_addr_parse(host, port, &numeric) == 0) {
        connect_to(a, (const struct sockaddr *)&numeric.ss);
        return;
    }
    (void)snprintf(service, sizeof service, "%u", port);
    a->resolving.data = a;
    if (uv_getaddrinfo(r->loop, &a->resolving, on_resolved, host, service, &hints) == 0)
        a->open++;
    else
        (void)uv_timer_start(&a->timer, on_no_memory, 0, 0);
}

void reach_cancel(struct reach *r)
{
    if (r->now != NULL)
        close_attempt(r->now);
    r->now = NULL;
}
