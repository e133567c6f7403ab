/* muster-http.so: HTTP for rdzv-server, by libmicrohttpd; see http_module.h. Owns the connections
 * that it was given; what is answered is the server's business. */
#include "rendezvous/server/http_module.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include <microhttpd.h>
#include <utlist.h>

#include "base/addr.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/parse.h"
#include "base/str.h"
#include "rendezvous/server/page.h"

/* What is asked here is small, and comes in one piece: who takes longer is not one who reads. */
#define IDLE_S 15U
#define ASK_NS (30 * MU_NS_PER_S) /* From the first byte of a request to its last. */
#define CONNECTIONS_MAX 256U
#define CONNECTIONS_SPARE 16U /* Of those that were told to go and have not gone yet. */
#define STREAMS_MAX 128U
#define CONNECTION_BYTES (16U * 1024U)
#define BLOCK_BYTES 16384U
/* So much of a body that is too large is read, so that its sender hears so. */
#define BODY_BYTES_READ (16U * 1024U * 1024U)

struct client {
    struct MHD_Connection *connection;
    struct client *prev;
    struct client *next;
    int64_t since_ns; /* When it could begin to ask. */
    bool answered;    /* It was asked, and is being answered: not in `asking`. */
};

struct srv_http {
    struct MHD_Daemon *daemon;
    struct srv_http_host host;
    struct client *asking; /* Those that have not asked, or not whole; the longest first. */
    struct srv_http_stream *streams;
    struct asked *held; /* Their connections are suspended. */
    uint32_t client_count;
    uint32_t stream_count;
};

struct srv_http_stream {
    struct srv_http *http;
    struct MHD_Connection *connection;
    struct srv_http_writer writer;
    struct srv_http_stream *prev;
    struct srv_http_stream *next;
    struct mu_buf out;
    size_t out_at;
    bool suspended;
    bool ended;
};

/* A request that is being read. */
struct asked {
    struct mu_buf body;
    size_t bytes; /* That came of it, also those that nobody keeps. */
    /* An answer that is held: */
    struct MHD_Connection *connection;
    struct srv_http_answer answer;
    bool has_answer; /* It is made, and not given to the library yet. */
    bool holds;      /* In `held`. */
    struct asked *prev;
    struct asked *next;
};

/* --- streams --- */

static size_t unsent(const struct srv_http_stream *st)
{
    return st->out.n - st->out_at;
}

static void wake(struct srv_http_stream *st)
{
    if (!st->suspended)
        return;
    st->suspended = false;
    MHD_resume_connection(st->connection);
}

static int stream_write(struct srv_http_stream *st, const void *p, size_t n)
{
    if (unsent(st) + n > SRV_HTTP_STREAM_BYTES_MAX)
        return -ENOBUFS;
    if (mu_buf_add(&st->out, p, n) < 0) {
        st->out.oom = false; /* What it holds is whole. */
        return -ENOMEM;
    }
    wake(st);
    return 0;
}

static void stream_end(struct srv_http_stream *st)
{
    st->ended = true;
    wake(st);
}

/* The library asks for more of the answer. */
static ssize_t stream_read(void *arg, uint64_t at, char *buf, size_t cap)
{
    struct srv_http_stream *st = arg;
    (void)at;
    size_t n = unsent(st);
    if (n == 0 && st->ended)
        return MHD_CONTENT_READER_END_OF_STREAM;
    if (n == 0) {
        st->suspended = true;
        MHD_suspend_connection(st->connection);
        return 0;
    }
    n = n < cap ? n : cap;
    memcpy(buf, st->out.p + st->out_at, n);
    st->out_at += n;
    if (st->out_at == st->out.n) {
        mu_buf_reset(&st->out);
        st->out_at = 0;
        if (!st->ended && st->writer.drained != NULL)
            st->writer.drained(st->writer.arg);
    } else if (st->out_at >= st->out.n / 2) {
        mu_buf_consume(&st->out, st->out_at);
        st->out_at = 0;
    }
    return (ssize_t)n;
}

static void stream_free(void *arg)
{
    struct srv_http_stream *st = arg;
    DL_DELETE(st->http->streams, st);
    st->http->stream_count--;
    st->writer.closed(st->writer.arg);
    mu_buf_fini(&st->out);
    mu_mem_free(mu_mem_default(), st);
}

static struct MHD_Response *
stream_new(struct srv_http *h, struct MHD_Connection *connection, const struct srv_http_writer *w)
{
    struct srv_http_stream *st = mu_zalloc(mu_mem_default(), sizeof *st);
    if (st == NULL) {
        w->closed(w->arg);
        return NULL;
    }
    *st = (struct srv_http_stream){.http = h, .connection = connection, .writer = *w};
    mu_buf_init(&st->out, mu_mem_default());
    DL_APPEND(h->streams, st);
    h->stream_count++;
    struct MHD_Response *r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK_BYTES,
                                                               stream_read, st, stream_free);
    if (r == NULL)
        stream_free(st);
    else
        w->opened(w->arg, st);
    return r;
}

/* --- answers --- */

static void add_header(struct MHD_Response *r, const char *name, const char *value)
{
    if (value != NULL)
        (void)MHD_add_response_header(r, name, value);
}

/* What the module says by itself. */
#define SENTENCE(code, text)                                                                       \
    {                                                                                              \
        .status = (code), .content_type = "application/json; charset=utf-8",                       \
        .body = "{\"error\":\"" text "\"}\n",                                                      \
        .body_bytes = sizeof "{\"error\":\"" text "\"}\n" - 1                                      \
    }

static const struct srv_http_answer too_many_streams =
    SENTENCE(503,
             "128 streams (events, output of jobs) are open already, which is as many as this "
             "server serves: close one that nobody needs, or try again later");
_Static_assert(STREAMS_MAX == 128, "as the sentence has it");
static const struct srv_http_answer body_too_large = SENTENCE(413, "a request may have 1 MiB");

static enum MHD_Result
answer(struct srv_http *h, struct MHD_Connection *connection, const struct srv_http_answer *a)
{
    bool streams = a->writer.opened != NULL;
    if (streams && h->stream_count >= STREAMS_MAX) {
        a->writer.closed(a->writer.arg);
        a = &too_many_streams;
        streams = false;
    }
    /* The library wants a pointer it may write to, and does not. */
    union {
        const void *in;
        void *out;
    } body = {.in = a->body};
    struct MHD_Response *r = streams ? stream_new(h, connection, &a->writer)
                                     : MHD_create_response_from_buffer_with_free_callback_cls(
                                           a->body_bytes, body.out, a->release, a->release_arg);
    if (r == NULL) {
        if (!streams && a->release != NULL)
            a->release(a->release_arg);
        return MHD_NO;
    }
    add_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, a->content_type);
    if (a->fields == NULL)
        add_header(r, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    for (const struct srv_http_field *f = a->fields; f != NULL && f->name != NULL; f++)
        add_header(r, f->name, f->value);
    add_header(r, "X-Content-Type-Options", "nosniff");
    add_header(r, MHD_HTTP_HEADER_ALLOW, a->allow);
    add_header(r, MHD_HTTP_HEADER_WWW_AUTHENTICATE, a->challenge);
    enum MHD_Result queued = MHD_queue_response(connection, a->status, r);
    MHD_destroy_response(r);
    return queued;
}

/* --- requests --- */

static const char *
field(struct MHD_Connection *connection, const char *name, const char *when_missing)
{
    const char *v = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name);
    return v != NULL ? v : when_missing;
}

static const char *query(void *connection, const char *name)
{
    return MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, name);
}

static void fill_request(struct MHD_Connection *connection,
                         const char *url,
                         const char *method,
                         char *peer,
                         struct srv_http_request *ret)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    peer[0] = '\0';
    if (info != NULL && info->client_addr != NULL)
        (void)mu_addr_host(info->client_addr, peer);
    *ret = (struct srv_http_request){
        .method = method,
        .path = url,
        .host = field(connection, MHD_HTTP_HEADER_HOST, ""),
        .origin = field(connection, MHD_HTTP_HEADER_ORIGIN, ""),
        .authorization = field(connection, MHD_HTTP_HEADER_AUTHORIZATION, ""),
        .content_type = field(connection, MHD_HTTP_HEADER_CONTENT_TYPE, ""),
        .if_none_match = field(connection, MHD_HTTP_HEADER_IF_NONE_MATCH, ""),
        .peer = peer,
        .connection = connection,
        .query = query};
}

/* As the library's own, but for %00, which stays as it is: a text that ended there would name
 * another key than the one that was meant. */
static size_t unescape(void *arg, struct MHD_Connection *connection, char *text)
{
    char *to = text;
    (void)arg;
    (void)connection;
    for (const char *from = text; *from != '\0'; from++) {
        int high = from[0] == '%' ? mu_hex_digit(from[1]) : -1;
        int low = high >= 0 ? mu_hex_digit(from[2]) : -1;
        bool coded = low >= 0 && (high > 0 || low > 0);
        unsigned byte = coded ? (unsigned)high << 4 | (unsigned)low : (unsigned char)*from;
        *to++ = (char)byte;
        from += coded ? 2 : 0;
    }
    *to = '\0';
    return (size_t)(to - text);
}

static struct client *client_of(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info != NULL ? info->socket_context : NULL;
}

static void is_asked(struct srv_http *h, struct MHD_Connection *connection)
{
    struct client *c = client_of(connection);
    if (c == NULL || c->answered)
        return;
    DL_DELETE(h->asking, c);
    c->answered = true;
}

static void take_body(struct asked *q, const char *upload, size_t n)
{
    q->bytes += n;
    if (q->bytes <= SRV_HTTP_BODY_BYTES_MAX)
        (void)mu_buf_add(&q->body, upload, n);
    else
        mu_buf_fini(&q->body);
}

/* --- answers that wait --- */

static void hold(struct srv_http *h,
                 struct asked *asked,
                 struct MHD_Connection *connection,
                 const struct srv_http_answer *a)
{
    asked->connection = connection;
    asked->answer = *a;
    asked->has_answer = true;
    asked->holds = true;
    DL_APPEND(h->held, asked);
    MHD_suspend_connection(connection);
}

static void take_back(struct srv_http *h, struct asked *asked)
{
    struct srv_http_answer a = {0};
    h->host.unkept(h->host.arg, &asked->answer, &a);
    if (asked->answer.release != NULL)
        asked->answer.release(asked->answer.release_arg);
    asked->answer = a;
}

static bool let_go(struct srv_http *h, uint64_t safe, bool kept)
{
    bool any = false;
    struct asked *asked = NULL;
    struct asked *next = NULL;
    DL_FOREACH_SAFE(h->held, asked, next)
    {
        if (asked->answer.hold > safe)
            continue;
        DL_DELETE(h->held, asked);
        asked->holds = false;
        if (!kept && asked->answer.unkept != NULL)
            take_back(h, asked);
        MHD_resume_connection(asked->connection); /* The library asks for the answer anew. */
        any = true;
    }
    return any;
}

static void forget_asked(struct srv_http *h, struct asked *asked)
{
    if (asked->holds)
        DL_DELETE(h->held, asked);
    if (asked->has_answer && asked->answer.release != NULL)
        asked->answer.release(asked->answer.release_arg);
    mu_buf_fini(&asked->body);
    mu_mem_free(mu_mem_default(), asked);
}

/* The library's signature. Called with the head, with each piece of the body, and at the end. */
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
    struct asked *asked = *state;
    (void)version;
    if (asked == NULL) { /* The head alone: the answer belongs behind the request's end. */
        asked = mu_zalloc(mu_mem_default(), sizeof *asked);
        if (asked == NULL)
            return MHD_NO;
        mu_buf_init(&asked->body, mu_mem_default());
        *state = asked;
        return MHD_YES;
    }
    if (*upload_bytes > 0) {
        take_body(asked, upload, *upload_bytes);
        *upload_bytes = 0;
        bool goes_on = !asked->body.oom && asked->bytes <= BODY_BYTES_READ;
        return goes_on ? MHD_YES : MHD_NO; /* No: the connection is closed. */
    }
    struct srv_http_answer a = {0};
    struct srv_http_request q;
    char peer[MU_ADDR_BYTES];
    is_asked(h, connection);
    if (asked->has_answer) {
        asked->has_answer = false;
        return answer(h, connection, &asked->answer);
    }
    if (asked->bytes > SRV_HTTP_BODY_BYTES_MAX)
        return answer(h, connection, &body_too_large);
    fill_request(connection, url, method, peer, &q);
    q.body = asked->body.p;
    q.body_bytes = asked->body.n;
    h->host.respond(h->host.arg, &q, &a);
    if (a.hold == 0)
        return answer(h, connection, &a);
    hold(h, asked, connection, &a);
    return MHD_YES;
}

static void on_completed(void *arg,
                         struct MHD_Connection *connection,
                         void **state,
                         enum MHD_RequestTerminationCode how)
{
    struct srv_http *h = arg;
    struct asked *asked = *state;
    struct client *c = client_of(connection);
    (void)how;
    if (asked != NULL)
        forget_asked(h, asked);
    *state = NULL;
    if (c == NULL)
        return;
    if (!c->answered)
        DL_DELETE(h->asking, c);
    c->answered = false;
    c->since_ns = mu_now_ns();
    DL_APPEND(h->asking, c);
}

/* --- clients --- */

static void on_connection(void *arg,
                          struct MHD_Connection *connection,
                          void **context,
                          enum MHD_ConnectionNotificationCode what)
{
    struct srv_http *h = arg;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        struct client *c = mu_zalloc(mu_mem_default(), sizeof *c);
        *context = c;
        if (c == NULL)
            return; /* It has the library's limits alone. */
        c->connection = connection;
        c->since_ns = mu_now_ns();
        DL_APPEND(h->asking, c);
        h->client_count++;
        return;
    }
    struct client *c = *context;
    if (c == NULL)
        return;
    if (!c->answered)
        DL_DELETE(h->asking, c);
    h->client_count--;
    mu_mem_free(mu_mem_default(), c);
    *context = NULL;
}

/* The library reads the end of it in its next turn, and closes it. */
static void send_away(struct srv_http *h, struct client *c)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (info != NULL)
        (void)shutdown(info->connect_fd, SHUT_RDWR);
    DL_DELETE(h->asking, c);
    c->answered = true;
}

/* Who takes too long to ask, and, where there are too many, who takes longest. Returns when to look
 * again, in ms; -1: nobody has begun. */
static int64_t send_slow_away(struct srv_http *h)
{
    int64_t now_ns = mu_now_ns();
    while (h->asking != NULL && now_ns - h->asking->since_ns >= ASK_NS)
        send_away(h, h->asking);
    if (h->asking == NULL)
        return -1;
    return (h->asking->since_ns + ASK_NS - now_ns) / MU_NS_PER_MS + 1;
}

/* --- the module --- */

static void stop(struct srv_http *h)
{
    if (h == NULL)
        return;
    struct srv_http_stream *st = NULL;
    DL_FOREACH(h->streams, st)
    {
        wake(st); /* The library does not close who is suspended. */
    }
    (void)let_go(h, UINT64_MAX, true);
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
        MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL,
        on_request, h, MHD_OPTION_CONNECTION_TIMEOUT, IDLE_S, MHD_OPTION_CONNECTION_LIMIT,
        CONNECTIONS_MAX + CONNECTIONS_SPARE, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)CONNECTION_BYTES, MHD_OPTION_NOTIFY_COMPLETED, on_completed, h,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, h, MHD_OPTION_UNESCAPE_CALLBACK, unescape,
        NULL, MHD_OPTION_END);
    if (h->daemon == NULL) {
        stop(h);
        return NULL;
    }
    return h;
}

static int add(struct srv_http *h, int fd, const struct sockaddr *sa, socklen_t len)
{
    if (h->client_count >= CONNECTIONS_MAX && h->asking != NULL) {
        send_away(h, h->asking);
        (void)MHD_run(h->daemon);
    }
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
    int64_t slow_ms = send_slow_away(h);
    if (MHD_get_timeout(h->daemon, &ms) != MHD_YES)
        return slow_ms;
    int64_t wait_ms = ms > 60000 ? 60000 : (int64_t)ms;
    return slow_ms >= 0 && slow_ms < wait_ms ? slow_ms : wait_ms;
}

__attribute__((visibility("default"))) extern const struct srv_http_module muster_http_module;
const struct srv_http_module muster_http_module = {.abi = SRV_HTTP_ABI,
                                                   .start = start,
                                                   .add = add,
                                                   .epoll_fd = epoll_fd,
                                                   .run = run,
                                                   .stop = stop,
                                                   .let_go = let_go,
                                                   .write = stream_write,
                                                   .unsent = unsent,
                                                   .page = page_respond,
                                                   .end = stream_end};
