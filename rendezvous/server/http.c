/* HTTP: finds and opens the module at the first request, gives it connections and turns, and says
 * what is served. Without the module a request gets 503 and a sentence, written by hand. */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/module.h"
#include "rendezvous/server/internal.h"

#define MODULE "muster-http.so"

static const char json_type[] = "application/json; charset=utf-8";

/* --- what is served --- */

static void serve_status(struct srv *s, struct srv_http_answer *ret)
{
    struct mu_str text;
    struct srv_status *st = status_take(s, &text);
    if (st == NULL) {
        static const char sorry[] = "{\"error\":\"no memory for the status\"}\n";
        *ret = (struct srv_http_answer){500, json_type, NULL, sorry, sizeof sorry - 1, NULL, NULL};
        return;
    }
    *ret = (struct srv_http_answer){200, json_type, NULL, text.p, text.n, status_release, st};
}

static void serve_health(struct srv *s, struct srv_http_answer *ret)
{
    static const char text[] = "{\"status\":\"ok\"}\n";
    (void)s;
    *ret = (struct srv_http_answer){200, json_type, NULL, text, sizeof text - 1, NULL, NULL};
}

static const struct {
    const char *path;
    void (*serve)(struct srv *s, struct srv_http_answer *ret);
} pages[] = {{"/status", serve_status}, {"/healthz", serve_health}};

static void free_page(void *page)
{
    if (page == NULL)
        return;
    mu_buf_fini(page);
    mu_mem_free(mu_mem_default(), page);
}

/* "/jobs/ID/incidents": an id may have slashes in it. */
static bool serve_incidents(struct srv *s, const char *path, struct srv_http_answer *ret)
{
    static const char head[] = "/jobs/";
    static const char tail[] = "/incidents";
    static const char no_job[] = "{\"error\":\"there is no job of that id\"}\n";
    static const char no_memory[] = "{\"error\":\"no memory for the incidents\"}\n";
    size_t n = strlen(path);
    size_t around = sizeof head - 1 + sizeof tail - 1;
    if (n <= around || strncmp(path, head, sizeof head - 1) != 0 ||
        strcmp(path + n - (sizeof tail - 1), tail) != 0)
        return false;
    struct mu_buf *page = mu_zalloc(mu_mem_default(), sizeof *page);
    if (page != NULL)
        mu_buf_init(page, mu_mem_default());
    bool known =
        page != NULL && incidents_get(s, mu_str_of(path + sizeof head - 1, n - around), page);
    if (known && !page->oom) {
        *ret = (struct srv_http_answer){200, json_type, NULL, page->p, page->n, free_page, page};
        return true;
    }
    *ret =
        page == NULL || page->oom
            ? (struct srv_http_answer){500,  json_type, NULL, no_memory, sizeof no_memory - 1,
                                       NULL, NULL}
            : (struct srv_http_answer){404, json_type, NULL, no_job, sizeof no_job - 1, NULL, NULL};
    free_page(page);
    return true;
}

static void respond(void *arg, const struct srv_http_request *q, struct srv_http_answer *ret)
{
    static const char no_method[] = "{\"error\":\"only GET and HEAD are served here\"}\n";
    static const char no_path[] =
        "{\"error\":\"there is no such page\",\"paths\":[\"/status\",\"/healthz\","
        "\"/jobs/ID/incidents\",\"/nodes/NODE/drain\"]}\n";
    struct srv *s = arg;
    const char *method = q->method;
    const char *path = q->path;
    for (size_t i = 0; i < MU_COUNT(pages); i++) {
        if (strcmp(path, pages[i].path) != 0)
            continue;
        if (strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0)
            pages[i].serve(s, ret);
        else
            *ret = (struct srv_http_answer){
                405, json_type, "GET, HEAD", no_method, sizeof no_method - 1, NULL, NULL};
        return;
    }
    bool reads = strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
    if ((reads && serve_incidents(s, path, ret)) || drain_serve(s, q, ret))
        return;
    *ret = (struct srv_http_answer){404, json_type, NULL, no_path, sizeof no_path - 1, NULL, NULL};
}

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
    struct srv_http_host host = {.arg = s, .respond = respond};
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
                     json_type, sizeof body - 1);
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
