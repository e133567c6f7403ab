/* Between the server and muster-http.so, the module that knows HTTP. The library behind it brings a
 * TLS library along, which costs 2 ms at start and several MiB; so it is opened at the first HTTP
 * request and not before. */
#ifndef MUSTER_RENDEZVOUS_HTTP_MODULE_H
#define MUSTER_RENDEZVOUS_HTTP_MODULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

/* Raised when anything below changes: a module of another build is refused. */
#define SRV_HTTP_ABI 8
#define SRV_HTTP_SYMBOL "muster_http_module"

/* A request's body; what is larger gets 413. */
#define SRV_HTTP_BODY_BYTES_MAX (1024U * 1024U)
/* What the reader of a stream may leave unread. */
#define SRV_HTTP_STREAM_BYTES_MAX (4U * 1024U * 1024U)

struct srv_http_stream;

/* Who writes an answer that has no end yet. */
struct srv_http_writer {
    /* The head is on its way: what is written to `st` follows it. */
    void (*opened)(void *arg, struct srv_http_stream *st);
    /* What was written is out, and there is room again. NULL: not asked for. */
    void (*drained)(void *arg);
    /* Called once, last of all: the peer is gone, the stream has ended, or it could not begin. */
    void (*closed)(void *arg);
    void *arg;
};

/* One more field of an answer's head. */
struct srv_http_field {
    const char *name;
    const char *value;
};

struct srv_http_answer {
    unsigned status;
    const char *content_type; /* Static. */
    const char *allow;        /* Value of the Allow field, or NULL. Static. */
    const char *challenge;    /* Value of the WWW-Authenticate field, or NULL. Static. */
    const void *body;         /* Stays as it is until `release`; without one, for ever. */
    size_t body_bytes;
    void (*release)(
        void *arg); /* Called once when the last byte is out, or nobody wants it; or NULL. */
    void *release_arg;
    /* Up to a NULL name; Cache-Control is among them. NULL: none, and nobody may keep the answer.
     * Static. */
    const struct srv_http_field *fields;
    uint64_t hold;      /* Not 0: it goes out once let_go() was told of this number. No stream. */
    const char *unkept; /* And where that cannot be: what is said then instead. Static. */
    struct srv_http_writer writer; /* With `opened` set: a stream, and `body` is not looked at. */
};

/* What is asked. All texts stay for the call. */
struct srv_http_request {
    const char *method;
    const char *path;          /* Decoded, without what is behind a '?'. */
    const char *host;          /* The Host field; "": there is none. */
    const char *origin;        /* The Origin field; "": there is none. */
    const char *authorization; /* The Authorization field; "": there is none. */
    const char *content_type;  /* The Content-Type field; "": there is none. */
    const char *if_none_match; /* The If-None-Match field; "": there is none. */
    const char *peer;          /* Numeric address of who asks. */
    const void *body;
    size_t body_bytes;
    void *connection; /* For query(). */
    /* The value of NAME in the part behind '?', decoded, or NULL; see srv_query(). */
    const char *(*query)(void *connection, const char *name);
};

/* The server's side: what is there to be answered. Always fills `ret`. */
struct srv_http_host {
    void *arg;
    void (*respond)(void *arg, const struct srv_http_request *q, struct srv_http_answer *ret);
    /* The answer in *a was held for what cannot be kept: fills `ret` instead. */
    void (*unkept)(void *arg, const struct srv_http_answer *a, struct srv_http_answer *ret);
};

struct srv_http;

struct srv_http_module {
    uint32_t abi;
    /* `host` is copied. NULL: it could not start. */
    struct srv_http *(*start)(const struct srv_http_host *host);
    /* Take a connected, non-blocking socket over. Returns 0; -1: it was closed instead. */
    int (*add)(struct srv_http *h, int fd, const struct sockaddr *sa, socklen_t len);
    /* Readable when run() has something to do. */
    int (*epoll_fd)(struct srv_http *h);
    /* Do what can be done now. Returns milliseconds until it must be called again even if nothing
     * becomes readable, or -1. */
    int64_t (*run)(struct srv_http *h);
    /* Close every connection and free. */
    void (*stop)(struct srv_http *h);
    /* Answers that are held up to this number go out; kept: as they are. Returns whether there were
     * any. */
    bool (*let_go)(struct srv_http *h, uint64_t safe, bool kept);
    /* Append to a stream; goes out with the next run(). Returns 0, -ENOBUFS when the reader has
     * left SRV_HTTP_STREAM_BYTES_MAX unread, -ENOMEM; nothing of `p` is taken then. */
    int (*write)(struct srv_http_stream *st, const void *p, size_t n);
    /* Bytes that are not out yet. */
    size_t (*unsent)(const struct srv_http_stream *st);
    /* Answer for the page's file at q->path, which is one of routes.c's. */
    void (*page)(const struct srv_http_request *q, struct srv_http_answer *ret);
    /* What was written goes out, then the answer ends. `st` is no longer the writer's. */
    void (*end)(struct srv_http_stream *st);
};

#endif
