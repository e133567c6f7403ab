/* Framed messages over a stream socket; see tcp_link.h. */
#include "worker-sdk/src/comm/tcp_link.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/check.h"

/* Two frames of the largest size: one is worked on while the next arrives. */
#define LINK_IN_BYTES (2 * (LINK_PAYLOAD_MAX + sizeof(struct link_head)))

void link_init(struct link *l, int fd)
{
    *l = (struct link){.fd = fd};
    mu_buf_init(&l->out, mu_mem_default());
}

void link_fini(struct link *l)
{
    if (l->fd >= 0)
        (void)close(l->fd);
    l->fd = -1;
    mu_mem_free(mu_mem_default(), l->in);
    l->in = NULL;
    mu_buf_fini(&l->out);
}

size_t link_padded(size_t bytes)
{
    return (bytes + 7) & ~(size_t)7;
}

/* What of the parts behind the first `sent` bytes is left over goes to the out buffer. */
static int keep_rest(struct link *l, const struct iovec *v, size_t count, size_t sent)
{
    for (size_t i = 0; i < count; i++) {
        size_t skip = sent < v[i].iov_len ? sent : v[i].iov_len;
        sent -= skip;
        if (mu_buf_add(&l->out, (const char *)v[i].iov_base + skip, v[i].iov_len - skip) < 0)
            return -ENOMEM;
    }
    return 0;
}

int link_send(struct link *l, const struct link_head *head, const void *payload)
{
    static char zeros[8];
    if (l->fd < 0 || l->ended)
        return 0;
    struct link_head h = *head;
    h.bytes = (uint32_t)link_padded(head->bytes);
    struct iovec v[3] = {{&h, sizeof h}, {NULL, head->bytes}, {zeros, h.bytes - head->bytes}};
    memcpy(&v[1].iov_base, &payload, sizeof payload); /* Nobody writes there. */
    size_t total = sizeof h + h.bytes, sent = 0;
    if (l->out.n == 0) {
        struct msghdr m = {.msg_iov = v, .msg_iovlen = h.bytes > 0 ? 3 : 1};
        ssize_t n = sendmsg(l->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return 0; /* Reading finds the end, and what the peer said before. */
        sent = n < 0 ? 0 : (size_t)n;
    }
    return sent == total ? 0 : keep_rest(l, v, MU_COUNT(v), sent);
}

int link_send_abort(struct link *l, const struct muster_cause *cause)
{
    struct link_abort words = {
        .peer = cause->peer, .code = cause->code, .phase = (uint32_t)cause->phase};
    struct link_head head = {.type = LINK_ABORT, .bytes = sizeof words};
    memcpy(words.text, cause->text, sizeof words.text);
    return link_send(l, &head, &words);
}

void link_flush(struct link *l)
{
    while (l->fd >= 0 && l->out.n > 0) {
        ssize_t n = send(l->fd, l->out.p, l->out.n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno != EAGAIN)
            mu_buf_reset(&l->out); /* Nobody reads it; reading finds the end. */
        if (n < 0)
            return;
        mu_buf_consume(&l->out, (size_t)n);
    }
}

/* Room behind tail, by moving what is left to the front, or, for last words, by growing. */
static bool make_room(struct link *l, bool any_size)
{
    if (l->head == l->tail)
        l->head = l->scanned = l->tail = 0;
    if (l->tail < l->cap)
        return true;
    if (l->head > 0) {
        memmove(l->in, l->in + l->head, l->tail - l->head);
        l->tail -= l->head;
        l->scanned -= l->head;
        l->head = 0;
        return true;
    }
    if (l->cap > 0 && !any_size)
        return false;
    size_t cap = l->cap == 0 ? LINK_IN_BYTES : 2 * l->cap;
    char *p = mu_realloc(mu_mem_default(), l->in, cap);
    if (p == NULL) {
        l->ended = true;
        l->broken = -ENOMEM;
        return false;
    }
    l->in = p;
    l->cap = cap;
    return true;
}

bool link_read(struct link *l, bool any_size)
{
    bool news = false;
    while (l->fd >= 0 && !l->ended) {
        if (!make_room(l, any_size))
            return news || l->ended;
        size_t room = l->cap - l->tail;
        ssize_t n = recv(l->fd, l->in + l->tail, room, MSG_DONTWAIT);
        if (n > 0) {
            l->tail += (size_t)n;
            news = true;
            if ((size_t)n < room)
                return true; /* Empty, or an end that the next look finds. */
        } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
            l->ended = true;
            l->broken = n == 0 ? 0 : -errno;
            return true;
        } else if (errno == EAGAIN) {
            return news;
        }
    }
    return news;
}

bool link_is_full(const struct link *l)
{
    return l->cap > 0 && l->head == 0 && l->tail == l->cap;
}

/* The whole frame at `at`, or NULL. A length that no frame has breaks the link. */
static struct link_head *frame_at(struct link *l, size_t at)
{
    if (l->tail - at < sizeof(struct link_head) || l->broken == -EPROTO)
        return NULL;
    struct link_head *h = (struct link_head *)(void *)(l->in + at);
    if (h->bytes > LINK_PAYLOAD_MAX || h->bytes % 8 != 0) {
        l->ended = true;
        l->broken = -EPROTO;
        return NULL;
    }
    return l->tail - at - sizeof *h < h->bytes ? NULL : h;
}

const struct link_head *link_next_control(struct link *l, const void **payload)
{
    struct link_head *h = NULL;
    while ((h = frame_at(l, l->scanned)) != NULL) {
        bool is_first = l->head == l->scanned;
        l->scanned += sizeof *h + h->bytes;
        if (h->type == LINK_DATA)
            continue;
        if (is_first) /* Where no DATA comes, nobody else would make room. */
            l->head = l->scanned;
        l->control = *h;
        h->type = LINK_SKIP;
        *payload = h + 1;
        return &l->control;
    }
    return NULL;
}

const struct link_head *link_front(struct link *l, const void **payload)
{
    while (l->head < l->scanned) { /* What was scanned is whole. */
        const struct link_head *h = (const struct link_head *)(const void *)(l->in + l->head);
        *payload = h + 1;
        if (h->type == LINK_DATA)
            return h;
        l->head += sizeof *h + h->bytes;
    }
    return NULL;
}

void link_drop(struct link *l)
{
    const void *payload = NULL;
    const struct link_head *h = link_front(l, &payload);
    MU_ASSERT(h != NULL);
    l->head += sizeof *h + h->bytes;
}
