/* The connection to the server; see link.h, and link_internal.h for how it is divided. */
#include "agent/link/link.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/link/link_internal.h"
#include "base/clock.h"
#include "base/mem.h"

#define READ_CHUNK 65536
#define UNSENT_MAX                                                                                 \
    (4 * MU_FRAME_BYTES_MAX) /* A server that reads nothing for so long is not there. */

struct write {
    uv_write_t req;
    struct link *link;
    size_t n;
    char bytes[];
};

static void say(struct link *l, const struct ctl_msg *m, struct mu_str behind);

/* ------------------------------------------------------------------ closing */

static void maybe_free(struct link *l)
{
    if (l->state != LINK_CLOSING || l->handles > 0)
        return;
    void (*done)(void *) = l->done;
    void *arg = l->done_arg;
    if (l->found != NULL)
        uv_freeaddrinfo(l->found);
    mu_buf_fini(&l->in);
    mu_buf_fini(&l->scratch);
    mu_buf_fini(&l->unsaid);
    free(l);
    if (done != NULL)
        done(arg);
}

static void on_tcp_closed(uv_handle_t *h)
{
    struct link *l = h->data;
    free(h);
    l->handles--;
    maybe_free(l);
}

static void on_timer_closed(uv_handle_t *h)
{
    struct link *l = h->data;
    l->handles--;
    maybe_free(l);
}

/* Drop the connection without an orderly end: the server must not take it for our death. */
void link_drop(struct link *l)
{
    uv_tcp_t *tcp = l->tcp;
    l->tcp = NULL;
    if (tcp == NULL)
        return;
    if (uv_tcp_close_reset(tcp, on_tcp_closed) < 0 && !uv_is_closing((uv_handle_t *)tcp))
        uv_close((uv_handle_t *)tcp, on_tcp_closed);
}

/* What is wrong, with where: the caller's sentence has no other place for it. */
const char *link_words(struct link *l, const char *what)
{
    bool bare = strchr(l->server.host, ':') != NULL;
    bool named = l->first_address[0] != '\0' && strcmp(l->first_address, l->server.host) != 0;
    (void)snprintf(l->text, sizeof l->text, "%s%.120s%s:%u%s%s%s: %.200s", bare ? "[" : "",
                   l->server.host, bare ? "]" : "", l->server.port, named ? " (" : "",
                   named ? l->first_address : "", named ? ")" : "", what);
    return l->text;
}

/* Idle again, after the connection went in whatever way. */
static void end_up(struct link *l, bool stranger, const char *what)
{
    (void)uv_timer_stop(&l->timer);
    bool was_up = l->state == LINK_UP;
    l->state = LINK_IDLE;
    mu_buf_reset(&l->in);
    mu_buf_fini(&l->unsaid);
    if (was_up)
        l->events.on_lost(l->events.arg, stranger, link_words(l, what));
}

static void lose_to(struct link *l, bool stranger, const char *what)
{
    link_drop(l);
    end_up(l, stranger, what);
}

void link_lose(struct link *l, const char *what)
{
    lose_to(l, false, what);
}

/* Not a word of our protocol: somebody else's port. */
static void lose_to_stranger(struct link *l)
{
    char shown[64];
    char what[160];
    size_t n = l->in.n < 24 ? l->in.n : 24;
    (void)snprintf(what, sizeof what,
                   "something else than an rdzv-server answers there: it sent %s",
                   mu_quote(shown, sizeof shown, mu_str_of(l->in.p, n)));
    lose_to(l, true, what);
}

/* The server has closed its side, so it expects nothing of us any more: our end is no death to it.
 */
static void close_too(struct link *l)
{
    uv_close((uv_handle_t *)l->tcp, on_tcp_closed);
    l->tcp = NULL;
    end_up(l, false, "the server closed the connection");
}

/* ------------------------------------------------------------------ the token */

static void knock(struct link *l)
{
    struct ctl_msg m;
    l->proof = l->prover != NULL ? PROOF_WAITS : PROOF_NOT_ASKED;
    mu_buf_fini(&l->unsaid);
    if (l->prover == NULL)
        return;
    ctl_init(&m, CTL_KNOCK);
    if (mu_random_digits(MU_NONCE_BYTES, l->nonce, NULL) < 0) {
        link_lose(l, "no random bytes for a proof of the token");
        return;
    }
    (void)mu_strcopy(m.u.knock.nonce, sizeof m.u.knock.nonce, l->nonce); /* It fits. */
    say(l, &m, mu_str_of(NULL, 0));
}

/* It did not show the token, so nothing that it says counts. Before any did, waiting would not
 * help; later another one, which cannot be told from an attacker, must not end what runs. */
static void unproven(struct link *l, const char *why)
{
    struct ctl_msg m;
    if (l->proven_once) {
        link_lose(l, why);
        return;
    }
    ctl_init(&m, CTL_REFUSED);
    (void)mu_strcopy(m.u.refused.text, sizeof m.u.refused.text, why); /* It fits. */
    l->proof = PROOF_FAILED;
    l->events.on_message(l->events.arg, &m);
}

static void take_challenge(struct link *l, const struct ctl_msg *m)
{
    struct ctl_msg answer;
    if (m->type == CTL_REFUSED) {
        unproven(l, m->u.refused.text);
        return;
    }
    const struct ctl_challenge *c = &m->u.challenge;
    if (m->type != CTL_CHALLENGE) {
        unproven(l, "the server knows nothing of tokens: is it an older rdzv-server?");
        return;
    }
    if (!mu_is_nonce(c->nonce) ||
        !mu_proof_is(l->prover, MU_PROOF_OF_SERVER, c->nonce, l->nonce, c->proof)) {
        unproven(l, "the server has another token than this agent: copy the server's token file to "
                    "this node");
        return;
    }
    ctl_init(&answer, CTL_PROOF);
    if (mu_proof(l->prover, MU_PROOF_OF_AGENT, c->nonce, l->nonce, answer.u.proof.proof, NULL) <
        0) {
        link_lose(l, "no proof of the token can be computed");
        return;
    }
    l->proof = PROOF_SHOWN;
    l->proven_once = true;
    say(l, &answer, mu_str_of(l->unsaid.p, l->unsaid.n));
    mu_buf_fini(&l->unsaid);
}

/* ------------------------------------------------------------------ reading */

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *buf)
{
    struct link *l = h->data;
    (void)suggested;
    *buf = mu_buf_reserve(&l->in, READ_CHUNK) < 0 ? uv_buf_init(NULL, 0)
                                                  : uv_buf_init(l->in.p + l->in.n, READ_CHUNK);
}

/* Hand out every whole frame. Stops when a handler closed or lost the link. */
static void take_frames(struct link *l)
{
    size_t used = 0;
    while (l->state == LINK_UP) {
        struct mu_str json;
        size_t frame = 0;
        struct mu_err err = {0};
        struct ctl_msg m;
        int r = ctl_frame(mu_str_of(l->in.p + used, l->in.n - used), &json, &frame, &err);
        if (r == 0)
            break;
        if (r > 0)
            r = ctl_decode(json, &m, &l->scratch, &err);
        if (r == -ENOMSG) { /* A newer server: what we do not know we skip. */
            used += frame;
            continue;
        }
        if (r < 0 && !l->spoke) {
            lose_to_stranger(l);
            return;
        }
        if (r < 0) {
            char what[sizeof err.msg + 24];
            (void)snprintf(what, sizeof what, "the server sent %s", err.msg);
            link_lose(l, what);
            return;
        }
        used += frame;
        l->spoke = true;
        if (l->proof == PROOF_WAITS)
            take_challenge(l, &m);
        else if (l->proof != PROOF_FAILED)
            l->events.on_message(l->events.arg, &m);
    }
    if (l->state == LINK_UP)
        mu_buf_consume(&l->in, used);
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
    struct link *l = s->data;
    (void)buf;
    if (l->tcp != (uv_tcp_t *)s || l->state != LINK_UP)
        return;
    if (n > 0) {
        l->in.n += (size_t)n;
        take_frames(l);
    } else if (n == UV_EOF) {
        close_too(l);
    } else if (n < 0) {
        link_lose(l, uv_strerror((int)n));
    }
}

/* ------------------------------------------------------------------ the first words */

void link_begin(struct link *l)
{
    l->state = LINK_UP;
    l->spoke = false;
    mu_buf_reset(&l->in);
    l->unsent = 0;
    uv_buf_t greeting = uv_buf_init((char *)(uintptr_t)CTL_GREETING, CTL_GREETING_BYTES);
    if (uv_try_write((uv_stream_t *)l->tcp, &greeting, 1) != CTL_GREETING_BYTES ||
        uv_read_start((uv_stream_t *)l->tcp, on_alloc, on_read) < 0) {
        link_lose(l, "the connection broke at once");
        return;
    }
    knock(l);
    if (l->state != LINK_UP)
        return;
    l->events.on_up(l->events.arg, link_words(l, "connected, but no rdzv-server has answered"));
}

/* ------------------------------------------------------------------ writing */

static void on_written(uv_write_t *req, int status)
{
    struct write *w = (struct write *)req;
    struct link *l = w->link;
    l->unsent -= w->n < l->unsent ? w->n : l->unsent;
    free(w);
    (void)status; /* A broken connection shows in on_read. */
}

static void write_later(struct link *l, const char *p, size_t n)
{
    struct write *w = l->unsent + n > UNSENT_MAX ? NULL : mu_alloc(mu_mem_default(), sizeof *w + n);
    if (w == NULL) {
        link_lose(l, "the server does not read");
        return;
    }
    w->link = l;
    w->n = n;
    memcpy(w->bytes, p, n);
    l->unsent += n;
    uv_buf_t buf = uv_buf_init(w->bytes, (unsigned)n);
    if (uv_write(&w->req, (uv_stream_t *)l->tcp, &buf, 1, on_written) < 0) {
        l->unsent -= n;
        free(w);
    }
}

/* One message, and frames behind it. */
static void say(struct link *l, const struct ctl_msg *m, struct mu_str behind)
{
    MU_CLEANUP(mu_buf_fini) struct mu_buf out;
    mu_buf_init(&out, mu_mem_default());
    if (ctl_encode(m, &out) < 0 || mu_buf_add(&out, behind.p, behind.n) < 0) {
        link_lose(l, "no memory");
        return;
    }
    uv_buf_t buf = uv_buf_init(out.p, (unsigned)out.n);
    int n = l->unsent == 0 ? uv_try_write((uv_stream_t *)l->tcp, &buf, 1) : 0;
    size_t sent = n > 0 ? (size_t)n : 0;
    if (sent < out.n)
        write_later(l, out.p + sent, out.n - sent);
}

void link_send(struct link *l, const struct ctl_msg *m)
{
    if (l->state != LINK_UP || l->proof == PROOF_FAILED)
        return;
    if (l->proof != PROOF_WAITS)
        say(l, m, mu_str_of(NULL, 0));
    else if (l->unsaid.n > UNSENT_MAX || ctl_encode(m, &l->unsaid) < 0)
        link_lose(l, "the server does not show its token, and there is no room for what waits");
}

/* ------------------------------------------------------------------ life of the object */

int link_new(uv_loop_t *loop,
             const struct mu_endpoint *server,
             const struct link_events *events,
             struct link **ret)
{
    struct link *l = mu_zalloc(mu_mem_default(), sizeof *l);
    if (l == NULL)
        return -ENOMEM;
    l->loop = loop;
    l->server = *server;
    l->events = *events;
    mu_buf_init(&l->in, mu_mem_default());
    mu_buf_init(&l->scratch, mu_mem_default());
    mu_buf_init(&l->unsaid, mu_mem_default());
    (void)uv_timer_init(loop, &l->timer); /* Cannot fail. */
    l->timer.data = l;
    l->handles = 1;
    *ret = l;
    return 0;
}

void link_use_token(struct link *l, const struct mu_prover *prover)
{
    l->prover = prover;
}

void link_set_port(struct link *l, uint16_t port)
{
    l->server.port = port;
}

void link_gather(struct link *l, bool on)
{
    uv_os_fd_t fd = -1;
    int value = on;
    if (l->state == LINK_UP && uv_fileno((const uv_handle_t *)l->tcp, &fd) == 0)
        (void)setsockopt(fd, IPPROTO_TCP, TCP_CORK, &value, sizeof value);
}

size_t link_unsent(const struct link *l)
{
    return l->unsent;
}

const char *link_server_address(const struct link *l)
{
    return l->first_address;
}

void link_local_address(const struct link *l, char *ret)
{
    struct sockaddr_storage ss;
    int len = sizeof ss;
    ret[0] = '\0';
    if (l->state == LINK_UP && uv_tcp_getsockname(l->tcp, (struct sockaddr *)&ss, &len) == 0)
        (void)mu_addr_host((const struct sockaddr *)&ss, ret);
}

static void on_shutdown(uv_shutdown_t *req, int status)
{
    struct link *l = req->data;
    uv_tcp_t *tcp = (uv_tcp_t *)req->handle;
    (void)status;
    free(req);
    if (l->tcp != tcp)
        return;
    l->tcp = NULL;
    (void)uv_timer_stop(&l->timer);
    uv_close((uv_handle_t *)&l->timer, on_timer_closed);
    uv_close((uv_handle_t *)tcp, on_tcp_closed); /* After a shutdown: the end is orderly. */
}

static void on_goodbye_limit(uv_timer_t *t)
{
    struct link *l = t->data;
    if (l->tcp == NULL)
        return;
    uv_close((uv_handle_t *)&l->timer, on_timer_closed); /* It does not take our goodbye. */
    link_drop(l);
}

void link_close(struct link *l, void (*done)(void *arg), void *arg)
{
    bool up = l->state == LINK_UP;
    l->done = done;
    l->done_arg = arg;
    (void)uv_timer_stop(&l->timer);
    for (struct lookup *q = l->lookups; q != NULL; q = q->next) {
        (void)uv_cancel((uv_req_t *)&q->req); /* Its callback comes either way, maybe late. */
        q->link = NULL;
    }
    l->lookups = NULL;
    l->state = LINK_CLOSING;
    uv_shutdown_t *req = up ? mu_alloc(mu_mem_default(), sizeof *req) : NULL;
    if (req != NULL) {
        req->data = l;
        (void)uv_read_stop((uv_stream_t *)l->tcp);
        if (uv_shutdown(req, (uv_stream_t *)l->tcp, on_shutdown) == 0) {
            (void)uv_timer_start(&l->timer, on_goodbye_limit,
                                 (uint64_t)(MU_GOODBYE_NS / MU_NS_PER_MS), 0);
            return;
        }
        free(req);
    }
    uv_close((uv_handle_t *)&l->timer, on_timer_closed);
    link_drop(l);
}
