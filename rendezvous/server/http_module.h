/* Between the server and muster-http.so, the module that knows HTTP. The library behind it brings a
 * TLS library along, which costs 2 ms at start and several MiB; so it is opened at the first HTTP
 * request and not before. */
#ifndef MUSTER_RENDEZVOUS_HTTP_MODULE_H
#define MUSTER_RENDEZVOUS_HTTP_MODULE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

/* Raised when anything below changes: a module of another build is refused. */
#define SRV_HTTP_ABI 3
#define SRV_HTTP_SYMBOL "muster_http_module"

struct srv_http_answer {
    unsigned status;
    const char *content_type; /* Static. */
    const char *allow;        /* Value of the Allow field, or NULL. Static. */
    const void *body;         /* Stays as it is until `release`; without one, for ever. */
    size_t body_bytes;
    void (*release)(
        void *arg); /* Called once when the last byte is out, or nobody wants it; or NULL. */
    void *release_arg;
};

/* What is asked. Texts stay for the call; a body is never looked at. */
struct srv_http_request {
    const char *method;
    const char *path;    /* Decoded, without what is behind a '?'. */
    const char *host;    /* The Host field; "": there is none. */
    const char *peer;    /* Numeric address of who asks. */
    const char *job;     /* ?job=; NULL: not there. */
    const char *timeout; /* ?timeout= */
};

/* The server's side: what is there to be answered. Always fills `ret`. */
struct srv_http_host {
    void *arg;
    void (*respond)(void *arg, const struct srv_http_request *q, struct srv_http_answer *ret);
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
};

#endif
