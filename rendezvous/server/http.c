/* HTTP: finds and opens the module at the first request, and gives it connections and turns; what
 * is served is in routes.c. Without the module a request gets 503 and a sentence, written by hand.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/module.h"
#include "rendezvous/server/internal.h"

#define MODULE "muster-http.so"

/* --- the module --- */

/* Never unloaded: the TLS library it brings does not like that, and a second request is likely. */
static const struct srv_http_module *open_module(const struct srv *s)
{
    void *lib = mu_module_open(s->http_path, MODULE);
    if (lib == NULL) {
        const char *why = dlerror();
        char shown[256];
        mu_log(MU_WARN, "http.module", "error=%s text=\"HTTP requests are answered with 503\"",
               mu_quote(shown, sizeof shown,
                        why != NULL ? mu_str_of(why, strlen(why)) : mu_str_of(NULL, 0)));
        return NULL;
    }
    const struct srv_http_module *m = dlsym(lib, SRV_HTTP_SYMBOL);
    if (m == NULL || m->abi != SRV_HTTP_ABI) {
        mu_log(MU_WARN, "http.module",
               "error=\"" MODULE
               " is of another version\" text=\"HTTP requests are answered with 503\"");
        (void)dlclose(lib);
        return NULL;
    }
    return m;
}

static void on_timer(uv_timer_t *timer);

/* Some turns at once, and what is left in a millisecond: a client that never ends asking must not
 * keep agents from being heard. (A timer of 0 would, set anew in its own callback, come before the
 * loop looks at anything else.) */
static void run_module(struct srv *s)
{
    int64_t wait_ms = 0;
    for (int turn = 0; turn < SRV_HTTP_TURNS && wait_ms == 0; turn++)
        wait_ms = s->http->run(s->http_daemon);
    if (wait_ms >= 0)
        (void)uv_timer_start(&s->http_timer, on_timer, wait_ms > 0 ? (uint64_t)wait_ms : 1, 0);
    else
        (void)uv_timer_stop(&s->http_timer);
}

static void on_timer(uv_timer_t *timer)
{
    struct srv *s = timer->data;
    s->now_ns = mu_now_ns();
    run_module(s);
    srv_settle(s); /* A request may have told agents something. */
}

static void on_readable(struct watch *w, uint32_t events)
{
    (void)events;
    run_module((struct srv *)((char *)w - offsetof(struct srv, http_watch)));
}

static bool start_module(struct srv *s)
{
    const struct srv_http_module *m = open_module(s);
    if (m == NULL)
        return false;
    struct srv_http_host host = {.arg = s, .respond = routes_respond, .unkept = state_unkept};
    s->http_daemon = m->start(&host);
    if (s->http_daemon == NULL)
        return false;
    if (watch_add(s, &s->http_watch, m->epoll_fd(s->http_daemon), EPOLLIN, on_readable) < 0) {
        m->stop(s->http_daemon);
        s->http_daemon = NULL;
        return false;
    }
    s->http = m;
    (void)uv_timer_init(s->loop, &s->http_timer); /* Never fails. */
    s->http_timer.data = s;
    s->handles++;
    return true;
}

/* As much as can be said without the module: the request is read away, so that closing does not
 * reset the answer, and one that does not fit in one read was not for us. */
static void answer_by_hand(struct srv *s, int fd)
{
    static const char body[] =
        "{\"error\":\"this server has no HTTP module: install muster-http.so "
        "beside it\"}\n";
    char head[256];
    int n = snprintf(head, sizeof head,
                     "HTTP/1.1 503 Service Unavailable\r\nContent-Type: %s\r\nContent-Length: "
                     "%zu\r\nConnection: close\r\n\r\n",
                     SRV_JSON_TYPE, sizeof body - 1);
    MU_ASSERT(n > 0 && (size_t)n < sizeof head);
    (void)recv(fd, s->scratch, SRV_SCRATCH_BYTES, MSG_DONTWAIT);
    (void)send(fd, head, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT | MSG_MORE);
    (void)send(fd, body, sizeof body - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    (void)close(fd);
}

void http_take(struct conn *c)
{
    struct srv *s = c->srv;
    if (s->http == NULL && !s->http_failed)
        s->http_failed = !start_module(s);
    struct sockaddr_storage ss = {0};
    socklen_t len = sizeof ss;
    MU_CLEANUP(mu_closep) int fd = conn_release(c);
    srv_no_agent(s, fd);
    if (s->http == NULL) {
        answer_by_hand(s, mu_steal_fd(&fd));
        return;
    }
    if (getpeername(fd, (struct sockaddr *)&ss, &len) < 0)
        return; /* Gone already. */
    /* It closes the descriptor, also when it refuses. */
    (void)s->http->add(s->http_daemon, mu_steal_fd(&fd), (const struct sockaddr *)&ss, len);
    run_module(s);
}

void http_flush(struct srv *s)
{
    for (int turn = 0; turn < SRV_HTTP_TURNS && s->http != NULL; turn++)
        if (s->http->run(s->http_daemon) != 0)
            return;
}

static void on_closed(uv_handle_t *h)
{
    srv_handle_closed(h->data);
}

void http_stop(struct srv *s)
{
    if (s->http == NULL)
        return;
    (void)watch_remove(s, &s->http_watch);
    uv_close((uv_handle_t *)&s->http_timer, on_closed);
    s->http->stop(s->http_daemon);
    s->http = NULL;
}

/* With the loop's next turn. */
static void run_soon(struct srv *s)
{
    (void)uv_timer_start(&s->http_timer, on_timer, 0, 0);
}

void http_let_go(struct srv *s, uint64_t safe, bool kept)
{
    if (s->http != NULL && s->http->let_go(s->http_daemon, safe, kept))
        run_soon(s);
}

int http_stream_write(struct srv *s, struct srv_http_stream *st, const void *p, size_t n)
{
    int e = s->http->write(st, p, n);
    if (e == 0)
        run_soon(s);
    return e;
}

void http_stream_end(struct srv *s, struct srv_http_stream *st)
{
    s->http->end(st);
    run_soon(s);
}

size_t http_stream_unsent(const struct srv *s, const struct srv_http_stream *st)
{
    return s->http->unsent(st);
}
