/* One link to one peer: framed messages over a stream socket, never blocking. It carries small
 * operations and everything that ranks tell each other besides: that they failed and why, that they
 * leave, how far they are. Bulk data has sockets of its own (tcp_bulk.h), so that the news of a
 * failure never stands behind megabytes. */
#ifndef MUSTER_SDK_TCP_LINK_H
#define MUSTER_SDK_TCP_LINK_H

#include <stdbool.h>
#include <stdint.h>

#include <muster/comm.h>

#include "base/str.h"

#define LINK_PAYLOAD_MAX ((size_t)64 << 10) /* Larger operations go over the bulk sockets. */

enum link_type {
    LINK_DATA = 1, /* A step of a small operation. */
    LINK_ABORT,    /* payload: struct link_abort. The last frame of a link. */
    LINK_BYE,      /* The peer closes its communicator; done: its last finished ticket. */
    LINK_ASK,      /* How far are you? number: of the question. */
    LINK_TELL,     /* number: of the question; ticket: last asked for here; done: last finished. */
    LINK_WAKE,     /* There is news in the memory that both share. */
    LINK_SKIP      /* Not on the wire: a control frame that was handled. */
};

/* Host byte order: the greeting refuses peers of another one. */
struct link_head {
    uint32_t bytes; /* Of the payload, on the wire with padding: link_padded(). */
    uint8_t type;   /* enum link_type */
    uint8_t kind;   /* enum comm_kind and what else the operation is, of DATA. */
    uint8_t dtype;
    uint8_t op;
    uint32_t root;
    uint32_t number;
    uint64_t ticket;
    union {
        uint64_t count; /* DATA */
        uint64_t done;
    };
};
_Static_assert(sizeof(struct link_head) == 32, "frames have a head of 32 bytes");

struct link_abort {
    int32_t peer;
    int32_t code;
    uint32_t phase;
    char text[MUSTER_TEXT_BYTES];
};

struct link {
    int fd; /* -1: none (this rank itself), or closed. */
    char *in;
    size_t head;    /* First byte not yet taken. */
    size_t scanned; /* Control frames before it were handled; head <= scanned <= tail. */
    size_t tail;
    size_t cap;
    struct mu_buf out;        /* Accepted for sending, not yet taken by the kernel. */
    struct link_head control; /* What link_next_control() gave last. */
    bool ended;               /* The peer sent its end, or the link broke. */
    int broken;               /* Negative errno of that; 0: an orderly end. */
    bool bye;
    uint64_t bye_done;
    uint32_t told;        /* Number of the last question it answered. */
    uint64_t told_ticket; /* What it answered. */
    uint64_t told_done;
};

/* To a multiple of 8, so that what lies in a buffer is aligned for every type. */
size_t link_padded(size_t bytes);

void link_init(struct link *l, int fd); /* Owns fd. */
void link_fini(struct link *l);         /* Closes. */

/* Send a frame, whole, sooner or later; head->bytes without padding. What the kernel does not take
 * at once is copied. Returns 0, or -ENOMEM. A broken link is not an error here: reading finds it.
 */
int link_send(struct link *l, const struct link_head *head, const void *payload);
/* The last frame of a link: that this rank failed, and why. As link_send(). */
int link_send_abort(struct link *l, const struct muster_cause *cause);
/* Go on with what is left over. */
void link_flush(struct link *l);

/* Take in what is there. Returns true when something new came, its end included. `any_size`: also
 * beyond what one frame needs: used once the peer has sent its end, to find its last words. Memory:
 * -ENOMEM in l->broken. */
bool link_read(struct link *l, bool any_size);
bool link_is_full(const struct link *l);

/* The next control frame that is whole; NULL: none. Valid until the next link_read(). */
const struct link_head *link_next_control(struct link *l, const void **payload);
/* The first DATA frame that is whole; NULL: none. link_drop() takes it off. */
const struct link_head *link_front(struct link *l, const void **payload);
void link_drop(struct link *l);

#endif
