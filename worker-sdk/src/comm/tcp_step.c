/* An operation as steps over the mesh: a message to one rank, a message from one rank, and on.
 *
 * A message goes through memory where that is shared, in pieces as there is room, else over the
 * link, whole. A message through memory may be taken in while the same step's is still going out:
 * of what is combined in place, only so far as it is out. */
#include "worker-sdk/src/comm/tcp.h"

#include <errno.h>
#include <string.h>

#include "worker-sdk/src/comm/tcp_reduce.h"

static void take(struct tcp *c,
                 const struct plan_step *s,
                 const struct comm_work *w,
                 size_t offset,
                 const void *p,
                 size_t n)
{
    uint8_t *mine = c->run.base + s->recv.offset + offset;
    size_t count = n / muster_dtype_bytes(w->dtype);
    switch (s->take) {
    case PLAN_KEEP:
        memcpy(mine, p, n);
        break;
    case PLAN_FOLD:
        tcp_reduce(mine, mine, p, count, w->dtype, c->run.op);
        break;
    case PLAN_FOLD_REV:
        tcp_reduce(mine, p, mine, count, w->dtype, c->run.op);
        break;
    }
}

/* --- over a link --- */

static size_t send_frame(struct tcp *c, const struct plan_step *s)
{
    struct tcp_run *r = &c->run;
    struct link_head head = r->head;
    head.bytes = (uint32_t)s->send.bytes;
    if (link_send(&c->links[s->to], &head, r->base + s->send.offset) < 0)
        tcp_fail_peer(c, c->f.rank, -ENOMEM, MUSTER_PHASE_SEND, "rank %u has no memory left",
                      c->f.rank);
    r->send_step++;
    return sizeof head + s->send.bytes;
}

static size_t receive_frame(struct tcp *c, const struct plan_step *s, const struct comm_work *w)
{
    uint32_t from = (uint32_t)s->from;
    struct link *l = &c->links[from];
    const void *payload = NULL;
    if (c->run.send_step == c->run.recv_step) /* It may be combined with what is still to go out. */
        return 0;
    const struct link_head *h = link_front(l, &payload);
    if (h == NULL) {
        tcp_hear(c, from, false);
        h = c->failed ? NULL : link_front(l, &payload);
    }
    if (h == NULL || !tcp_is_same(c, from, h))
        return 0;
    if (h->bytes != link_padded(s->recv.bytes)) {
        tcp_fail_peer(c, from, -EPROTO, MUSTER_PHASE_RECEIVE,
                      "rank %u sent a part of a wrong size: use one version of muster on all ranks",
                      from);
        return 0;
    }
    if (s->recv.bytes > 0)
        take(c, s, w, 0, payload, s->recv.bytes);
    link_drop(l);
    c->run.recv_step++;
    return sizeof *h + s->recv.bytes;
}

/* --- through memory --- */

static size_t send_piece(struct tcp *c, const struct plan_step *s, struct shm *memory)
{
    struct tcp_run *r = &c->run;
    size_t moved = tcp_put(c, (uint32_t)s->to, memory, r->base + s->send.offset + r->send_offset,
                           s->send.bytes - r->send_offset, true);
    if (r->send_head == sizeof r->head && r->send_offset == s->send.bytes) {
        r->send_step++;
        r->send_head = r->send_offset = 0;
    }
    return moved;
}

static size_t receive_piece(struct tcp *c,
                            const struct plan_step *s,
                            struct shm *memory,
                            const struct comm_work *w)
{
    struct tcp_run *r = &c->run;
    size_t n = 0, end = s->recv.bytes, head = r->recv_head;
    const void *p = tcp_look(c, (uint32_t)s->from, memory, &n);
    if (c->failed || r->recv_head == 0)
        return 0;
    if (s->take != PLAN_KEEP && r->send_step == r->recv_step)
        end = r->send_offset;
    if (p == NULL)
        n = 0;
    if (n > end - r->recv_offset)
        n = end - r->recv_offset;
    if (n > 0) {
        take(c, s, w, r->recv_offset, p, n);
        tcp_take(c, (uint32_t)s->from, memory, n, r->recv_offset + n == s->recv.bytes);
    }
    n += r->recv_head - head;
    if (r->recv_offset == s->recv.bytes && r->send_step > r->recv_step) {
        r->recv_step++;
        r->recv_head = r->recv_offset = 0;
    }
    return n;
}

/* --- both --- */

/* Bytes moved; 0: nothing to send now, or no room. */
static size_t send_some(struct tcp *c)
{
    struct tcp_run *r = &c->run;
    for (; r->send_step < r->steps.count; r->send_step++) {
        const struct plan_step *s = &r->steps.step[r->send_step];
        if (r->send_step > r->recv_step && !s->is_ahead)
            return 0;
        struct shm *memory = s->to >= 0 ? tcp_memory(c, (uint32_t)s->to) : NULL;
        if (s->to >= 0)
            return memory != NULL ? send_piece(c, s, memory) : send_frame(c, s);
    }
    return 0;
}

/* Bytes moved; 0: nothing is there. */
static size_t receive_some(struct tcp *c, const struct comm_work *w)
{
    struct tcp_run *r = &c->run;
    for (; r->recv_step < r->steps.count; r->recv_step++) {
        const struct plan_step *s = &r->steps.step[r->recv_step];
        struct shm *memory = s->from >= 0 ? tcp_memory(c, (uint32_t)s->from) : NULL;
        if (s->from >= 0)
            return memory != NULL ? receive_piece(c, s, memory, w) : receive_frame(c, s, w);
        if (r->send_step == r->recv_step)
            return 0;
    }
    return 0;
}

enum tcp_run_result tcp_run_steps(struct tcp *c, const struct comm_work *w)
{
    struct tcp_run *r = &c->run;
    for (size_t moved = 0; moved < TCP_BURST_BYTES;) {
        size_t out = send_some(c);
        size_t in = c->failed ? 0 : receive_some(c, w);
        if (c->failed)
            return TCP_RUN_BLOCKED;
        if (r->send_step == r->steps.count && r->recv_step == r->steps.count)
            return TCP_RUN_DONE;
        if (out + in == 0)
            return TCP_RUN_BLOCKED;
        moved += out + in;
    }
    return TCP_RUN_MORE;
}
