/* muster-http.so: HTTP for rdzv-server, by libmicrohttpd; see http_module.h. Owns the connections
 * that it was given; what is answered is the server's business. */
#include "rendezvous/server/http_module.h"

#include <stdbool.h>
#include <stdint.h>

#include <microhttpd.h>

#include "base/addr.h"
#include "base/mem.h"

/* A status page is one small request: what comes slower or larger is not from somebody who reads
 * it. */
#define IDLE_S 15U
#define CONNECTIONS_MAX 256U
#define CONNECTION_BYTES (16U * 1024U)
#define BODY_BYTES_MAX (64U * 1024U) /* Nothing of it is wanted. */

struct srv_http {
    struct MHD_Daemon *daemon;
    struct srv_http_host host;
};

static enum MHD_Result answer(struct MHD_Connection *connection, const struct srv_http_answer *a)
{
    /* The library wants a pointer it may write to, and does not. */
    union {
        const void *in;
        void *out;
    } body = {.in = a->body};
    struct MHD_Response *r = MHD_create_response_from_buffer_with_free_callback_cls(
        a->body_bytes, body.out, a->release, a->release_arg);
    if (r == NULL) {
        if (a->release != NULL)
            a->release(a->release_arg);
        return MHD_NO;
    }
    (void)MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, a->content_type);
    (void)MHD_add_response_header(r, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    (void)MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
    if (a->allow != NULL)
        (void)MHD_add_response_header(r, MHD_HTTP_HEADER_ALLOW, a->allow);
    enum MHD_Result queued = MHD_queue_response(connection, a->status, r);
    MHD_destroy_response(r);
    return queued;
}

static void fill_request(struct MHD_Connection *connection,
                         const char *url,
                         const char *method,
                         char *peer,
                         struct srv_http_request *ret)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const char *host =
        MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_HOST);
    peer[0] = '\0';
    if (info != NULL && info->client_addr != NULL)
        (void)mu_addr_host(info->client_addr, peer);
    *ret = (struct srv_http_request){
        .method = method,
        .path = url,
        .host = host != NULL ? host : "",
        .peer = peer,
        .job = MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, "job"),
        .timeout = MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, "timeout")};
}

/* The library's signature. A body, which no request of ours has, is read and forgotten, up to a
 * limit. `state`: one more than the bytes of it so far. */
static enum MHD_Result on_request(void *arg,
                                  struct MHD_Connection *connection,
                                  const char *url,
                                  const char *method,
                                  const char *version,
                                  const char *upload,
                                  size_t *upload_bytes,
                                  void **state)
{
    struct srv_http *h = arg;
    uintptr_t seen = (uintptr_t)*state;
    (void)version;
    (void)upload;
    if (seen == 0) { /* The head alone: the answer belongs behind the request's end. */
        *state = (void *)(uintptr_t)1;
        return MHD_YES;
    }
    if (*upload_bytes > 0) {
        *state = (void *)(seen + *upload_bytes);
        bool fits = seen + *upload_bytes <= BODY_BYTES_MAX;
        *upload_bytes = 0;
        return fits ? MHD_YES : MHD_NO; /* No: the connection is closed. */
    }
    struct srv_http_answer a = {0};
    struct srv_http_request q;
    char peer[MU_ADDR_BYTES];
    fill_request(connection, url, method, peer, &q);
    h->host.respond(h->host.arg, &q, &a);
    return answer(connection, &a);
}

static void stop(struct srv_http *h)
{
    if (h == NULL)
        return;
    if (h->daemon != NULL)
        MHD_stop_daemon(h->daemon);
    mu_mem_free(mu_mem_default(), h);
}

static struct srv_http *start(const struct srv_http_host *host)
{
    struct srv_http *h = mu_zalloc(mu_mem_default(), sizeof *h);
    if (h == NULL)
        return NULL;
    h->host = *host;
    h->daemon = MHD_start_daemon(
        MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET, 0, NULL, NULL, on_request, h,
        MHD_OPTION_CONNECTION_TIMEOUT, IDLE_S, MHD_OPTION_CONNECTION_LIMIT, CONNECTIONS_MAX,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES, MHD_OPTION_END);
    if (h->daemon == NULL) {
        stop(h);
        return NULL;
    }
    return h;
}

static int add(struct srv_http *h, int fd, const struct sockaddr *sa, socklen_t len)
{
    /* It closes the socket itself when it refuses. */
    return MHD_add_connection(h->daemon, fd, sa, len) == MHD_YES ? 0 : -1;
}

static int epoll_fd(struct srv_http *h)
{
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    return info != NULL ? info->epoll_fd : -1;
}

static int64_t run(struct srv_http *h)
{
    MHD_UNSIGNED_LONG_LONG ms = 0;
    (void)MHD_run(h->daemon); /* Says no only when called in a wrong mode. */
    if (MHD_get_timeout(h->daemon, &ms) != MHD_YES)
        return -1;
    return ms > 60000 ? 60000 : (int64_t)ms;
}

__attribute__((visibility("default"))) extern const struct srv_http_module muster_http_module;
const struct srv_http_module muster_http_module = {.abi = SRV_HTTP_ABI,
                                                   .start = start,
                                                   .add = add,
                                                   .epoll_fd = epoll_fd,
                                                   .run = run,
                                                   .stop = stop};
