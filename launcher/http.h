/* Asking the server: HTTP through libcurl, one connection kept. Shell. */
#ifndef MUSTER_LAUNCHER_HTTP_H
#define MUSTER_LAUNCHER_HTTP_H

#include <stdint.h>

#include "base/err.h"
#include "base/parse.h"
#include "base/str.h"
#include "launcher/options.h"

struct cli_http;

/* Returns NULL with a sentence. What is asked is asked of o->server, with the token that
 * cli_token_find() finds. No proxy is used: the server is a machine of the cluster. */
struct cli_http *cli_http_new(const struct cli_options *o, struct mu_err *err);
void cli_http_free(struct cli_http *h);

/* "host:port", for sentences. Borrowed for the handle's life. */
const char *cli_http_where(const struct cli_http *h);

/* The answer was 401: -EACCES with the sentence that says which token is wanted, and where. */
int cli_http_unauthorized(const struct cli_http *h, struct mu_err *err);

/* GET `path` into `body` (emptied first), at most CLI_BODY_BYTES_MAX. Blocks for timeout_ns at
 * most. Returns 0 when the answer was 200; else a negative errno with a sentence that says what to
 * do. */
#define CLI_BODY_BYTES_MAX (256 << 20) /* 10,000 nodes of 8 workers take 18 MiB. */
int cli_http_get(struct cli_http *h,
                 const char *path,
                 int64_t timeout_ns,
                 struct mu_buf *body,
                 struct mu_err *err);

/* The same, whatever the answer's status, which is in *ret. */
int cli_http_look(struct cli_http *h,
                  const char *path,
                  int64_t timeout_ns,
                  struct mu_buf *body,
                  long *ret,
                  struct mu_err *err);

/* POST without a body. Returns 0 whatever the answer's status, which is in *ret. */
int cli_http_post(struct cli_http *h,
                  const char *path,
                  int64_t timeout_ns,
                  struct mu_buf *body,
                  long *ret,
                  struct mu_err *err);

/* PUT or DELETE with a body of any bytes. As cli_http_post(). */
int cli_http_octets(struct cli_http *h,
                    const char *method,
                    const char *path,
                    struct mu_str request,
                    int64_t timeout_ns,
                    struct mu_buf *body,
                    long *ret,
                    struct mu_err *err);
/* Any method, with a JSON body where `request` is not NULL. As cli_http_post(). */
int cli_http_send(struct cli_http *h,
                  const char *method,
                  const char *path,
                  const struct mu_buf *request,
                  int64_t timeout_ns,
                  struct mu_buf *body,
                  long *ret,
                  struct mu_err *err);

/* An answer that goes on: GET of `path` on a connection of its own. */
struct cli_stream;
struct cli_stream *
cli_stream_open(struct cli_http *h, const char *path, int64_t connect_ns, struct mu_err *err);
void cli_stream_close(struct cli_stream *st);

enum cli_flow {
    CLI_FLOWS,  /* More may come. */
    CLI_ENDED,  /* The whole answer is there. */
    CLI_BROKEN, /* Cut off, or never begun: see `err`. */
};

/* Wait until something came, or `fd` (-1: none) is readable, for timeout_ns at most. What came is
 * appended to `in`. */
enum cli_flow cli_stream_wait(
    struct cli_stream *st, int fd, int64_t timeout_ns, struct mu_buf *in, struct mu_err *err);

/* HTTP status of the answer; 0 before its head has come. */
long cli_stream_status(const struct cli_stream *st);

/* Append text as it stands in a URL. */
void cli_http_escape(const struct cli_http *h, struct mu_buf *b, const char *text);

#endif
