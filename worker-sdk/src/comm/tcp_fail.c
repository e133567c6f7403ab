/* Failures: one cause, the first, on all ranks.
 *
 * Every rank has a link to every other, so the end of a process shows at all of them at once. A
 * rank that fails for any reason sends the cause on each link before it ends the link; so an end
 * without a word means that the process behind it is gone, and nobody blames the messenger. The end
 * of a bulk socket says only that something happened: the reason is on the link. */
#include "worker-sdk/src/comm/tcp.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/str.h"

/* The kernel closes the sockets of a dead process within microseconds of each other. */
#define VERDICT_NS (100 * MU_NS_PER_MS)
/* How long last words may wait for room at a peer that does not read, before the link is cut. */
#define LINGER_NS (200 * MU_NS_PER_MS)

const char *tcp_where(const struct tcp *c, uint32_t rank, char *ret, size_t cap)
{
    if (c->f.hosts != NULL && c->f.hosts[rank][0] != '\0')
        (void)snprintf(ret, cap, "rank %u on %s", rank, c->f.hosts[rank]);
    else
        (void)snprintf(ret, cap, "rank %u", rank);
    return ret;
}

void tcp_fail(struct tcp *c, const struct muster_cause *cause)
{
    if (c->failed)
        return;
    c->failed = true;
    c->cause = *cause;
    c->linger_ns = mu_now_ns() + LINGER_NS;
    for (uint32_t i = 0; i < c->f.size; i++) {
        struct link *l = &c->links[i];
        if (l->fd < 0)
            continue;
        (void)link_send_abort(l, cause); /* Without memory the end has to speak for itself. */
        if (l->out.n == 0)
            (void)shutdown(l->fd, SHUT_WR);
    }
    if (c->f.ring_next >= 0)
        (void)shutdown(c->f.ring_next, SHUT_RDWR);
    if (c->f.ring_prev >= 0)
        (void)shutdown(c->f.ring_prev, SHUT_RDWR);
    (void)eventfd_write(c->fail_fd, 1); /* Never full: written once. */
    (void)eventfd_write(c->wake_fd, 1);
    (void)pthread_cond_broadcast(&c->changed);
}

void tcp_fail_peer(
    struct tcp *c, int64_t peer, int code, enum muster_phase phase, const char *fmt, ...)
{
    struct muster_cause cause = {.peer = (int32_t)peer, .code = code, .phase = phase};
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(cause.text, sizeof cause.text, fmt, ap);
    va_end(ap);
    tcp_fail(c, &cause);
}

void tcp_bulk_broke(struct tcp *c, uint32_t peer, int code, enum muster_phase phase)
{
    if (c->failed || c->verdict_ns != 0)
        return;
    c->verdict_ns = mu_now_ns() + VERDICT_NS;
    c->verdict_of = peer;
    c->verdict = (struct muster_cause){.peer = (int32_t)peer, .code = code, .phase = phase};
    tcp_hear(c, peer, false);
}

void tcp_fail_due(struct tcp *c, int64_t now_ns)
{
    if (c->failed || c->verdict_ns == 0 || now_ns < c->verdict_ns)
        return;
    char where[96];
    (void)snprintf(c->verdict.text, sizeof c->verdict.text, "%s: its data connection broke (%s)",
                   tcp_where(c, c->verdict_of, where, sizeof where),
                   strerrordesc_np(-c->verdict.code));
    tcp_fail(c, &c->verdict);
}

/* --- what peers say --- */

static void hear_abort(struct tcp *c, uint32_t peer, const struct link_head *h, const void *payload)
{
    struct link_abort words;
    if (h->bytes != link_padded(sizeof words))
        return; /* Its end follows. */
    memcpy(&words, payload, sizeof words);
    struct muster_cause cause = {
        .peer = words.peer < (int32_t)c->f.size ? words.peer : (int32_t)peer,
        .code = words.code < 0 ? words.code : -EPROTO,
        .phase =
            words.phase <= MUSTER_PHASE_ABORT ? (enum muster_phase)words.phase : MUSTER_PHASE_NONE};
    memcpy(cause.text, words.text, sizeof cause.text);
    cause.text[sizeof cause.text - 1] = '\0';
    tcp_fail(c, &cause);
}

void tcp_check_bye(struct tcp *c, uint32_t peer)
{
    char where[96];
    if (!c->failed && c->links[peer].bye && c->submitted > c->links[peer].bye_done)
        tcp_fail_peer(c, peer, -ECONNRESET, MUSTER_PHASE_RECEIVE,
                      "%s closed its communicator after operation %llu",
                      tcp_where(c, peer, where, sizeof where),
                      (unsigned long long)c->links[peer].bye_done);
}

static void
hear_control(struct tcp *c, uint32_t peer, const struct link_head *h, const void *payload)
{
    struct link *l = &c->links[peer];
    struct link_head answer = {
        .type = LINK_TELL, .number = h->number, .ticket = c->submitted, .done = c->done};
    switch (h->type) {
    case LINK_ABORT:
        hear_abort(c, peer, h, payload);
        return;
    case LINK_BYE:
        l->bye = true;
        l->bye_done = h->done;
        return;
    case LINK_ASK:
        (void)link_send(l, &answer, NULL); /* Without memory we count as late, which is so. */
        return;
    case LINK_TELL:
        l->told = h->number;
        l->told_ticket = h->ticket;
        l->told_done = h->done;
        return;
    case LINK_WAKE: /* Whoever read it looks at the memory now. */
        c->nudged = true;
        return;
    default:
        l->ended = true;
        l->broken = -EPROTO;
    }
}

static void hear_end(struct tcp *c, uint32_t peer)
{
    const struct link *l = &c->links[peer];
    char where[96];
    if (l->bye)
        return;
    if (l->broken == -EPROTO)
        tcp_fail_peer(c, peer, -EPROTO, MUSTER_PHASE_RECEIVE,
                      "%s sent bytes that are no message: use one version of muster on all ranks",
                      tcp_where(c, peer, where, sizeof where));
    else
        tcp_fail_peer(c, peer, l->broken == 0 ? -ECONNRESET : l->broken, MUSTER_PHASE_RECEIVE,
                      "%s ended: its connection closed without a word (%s)",
                      tcp_where(c, peer, where, sizeof where),
                      l->broken == 0 ? "end of stream" : strerrordesc_np(-l->broken));
}

void tcp_hear(struct tcp *c, uint32_t peer, bool is_end)
{
    struct link *l = &c->links[peer];
    if (l->fd < 0)
        return;
    (void)link_read(l, is_end);
    const void *payload = NULL;
    const struct link_head *h = NULL;
    while (!c->failed && (h = link_next_control(l, &payload)) != NULL)
        hear_control(c, peer, h, payload);
    if (!c->failed && l->ended)
        hear_end(c, peer);
    tcp_check_bye(c, peer);
    if (!c->failed)
        tcp_run_check(c, peer);
}

/* --- who is late --- */

void tcp_ask(struct tcp *c, uint64_t ticket, int64_t now_ns)
{
    if (c->asked_ticket >= ticket && now_ns - c->asked_ns < 10 * MU_NS_PER_MS)
        return;
    c->asked++;
    c->asked_ns = now_ns;
    c->asked_ticket = ticket;
    struct link_head head = {.type = LINK_ASK, .number = c->asked};
    for (uint32_t i = 0; i < c->f.size; i++)
        if (c->links[i].fd >= 0)
            (void)link_send(&c->links[i], &head, NULL); /* No answer then, which is looked at. */
}

bool tcp_all_told(const struct tcp *c)
{
    for (uint32_t i = 0; i < c->f.size; i++)
        if (c->links[i].fd >= 0 && c->links[i].told != c->asked)
            return false;
    return true;
}

/* Appends "rank 2 on b, rank 3 on b" of those that `is_it` holds for; gives the first. */
static int64_t name_late(const struct tcp *c,
                         bool (*is_it)(const struct tcp *, const struct link *),
                         char *text,
                         size_t cap)
{
    int64_t first = -1;
    uint32_t count = 0;
    size_t used = 0;
    for (uint32_t i = 0; i < c->f.size; i++) {
        char where[96];
        if (c->links[i].fd < 0 || !is_it(c, &c->links[i]))
            continue;
        if (count++ == 0)
            first = i;
        if (count > 3 || used >= cap)
            continue;
        int n = snprintf(text + used, cap - used, "%s%s", used > 0 ? ", " : "",
                         tcp_where(c, i, where, sizeof where));
        used += n < 0 ? 0 : (size_t)n;
    }
    if (count > 3 && used < cap)
        (void)snprintf(text + used, cap - used, " and %u more", count - 3);
    return first;
}

static bool is_silent(const struct tcp *c, const struct link *l)
{
    return l->told != c->asked;
}

static bool has_not_called(const struct tcp *c, const struct link *l)
{
    return l->told_ticket < c->asked_ticket;
}

void tcp_fail_late(struct tcp *c, uint64_t ticket, int64_t waited_ns)
{
    char who[160] = "";
    double seconds = (double)waited_ns / (double)MU_NS_PER_S;
    unsigned long long t = ticket;
    c->asked_ticket = ticket;
    int64_t peer = name_late(c, is_silent, who, sizeof who);
    if (peer >= 0) {
        tcp_fail_peer(
            c, peer, -ETIMEDOUT, MUSTER_PHASE_WAIT,
            "operation %llu did not end within %.3g s: %s: no answer (stopped, or cut off)", t,
            seconds, who);
        return;
    }
    peer = name_late(c, has_not_called, who, sizeof who);
    if (peer >= 0) {
        tcp_fail_peer(
            c, peer, -ETIMEDOUT, MUSTER_PHASE_WAIT,
            "operation %llu did not end within %.3g s: %s: not there yet (at operation %llu)", t,
            seconds, who, (unsigned long long)c->links[peer].told_ticket);
        return;
    }
    tcp_fail_peer(c, tcp_run_awaits(c), -ETIMEDOUT, MUSTER_PHASE_WAIT,
                  "operation %llu did not end within %.3g s, though all ranks are in it and "
                  "answer: the network is too slow for it",
                  t, seconds);
}

void tcp_say_bye(struct tcp *c)
{
    if (c->failed)
        return;
    if (c->done < c->submitted) {
        tcp_fail_peer(c, c->f.rank, -ECANCELED, MUSTER_PHASE_ABORT,
                      "rank %u closed its communicator with operations in flight", c->f.rank);
        return;
    }
    struct link_head head = {.type = LINK_BYE, .done = c->done};
    for (uint32_t i = 0; i < c->f.size; i++)
        (void)link_send(&c->links[i], &head, NULL); /* Without memory we seem dead, soon true. */
    c->linger_ns = mu_now_ns() + LINGER_NS;
}
