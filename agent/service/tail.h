/* Sending kept output to who asked for it: TAIL, MORE, UNTAIL in, OUTPUT out. Reads the files
 * (kept.h), a piece in each turn of the loop, and sends only what there is credit for, so that a
 * reader who stops reading stops this, and nothing else. */
#ifndef MUSTER_AGENT_SERVICE_TAIL_H
#define MUSTER_AGENT_SERVICE_TAIL_H

#include <stdbool.h>
#include <stdint.h>

#include <uv.h>

#include "agent/service/kept.h"
#include "base/ctl.h"

#define TAILS_MAX 256

struct tail;

struct tails {
    uv_timer_t timer;
    struct kept *logs;
    struct tail *first;
    uint32_t count;
    bool in_turn; /* Sending: a connection that is lost over it frees nobody before the end. */
    bool dropped;
    struct ctl_msg out;
    char *buffer;
    void *arg;
    bool (*is_live)(void *arg, const char *job); /* More may come. */
    void (*gather)(void *arg, bool on);          /* What is sent meanwhile goes out together. */
    bool (*has_room)(void *arg);                 /* The connection takes more. */
    void (*send)(void *arg, const struct ctl_msg *m);
};

/* The functions, `logs` and `arg` are the caller's to fill before. Returns 0 or -ENOMEM. */
int tails_init(struct tails *t, uv_loop_t *loop);
void tails_begin(struct tails *t, const struct ctl_tail *m);
void tails_more(struct tails *t, const struct ctl_more *m);
void tails_end(struct tails *t, uint32_t stream);
/* Something was written, or a job has ended. NULL: of any. */
void tails_kick(struct tails *t, const char *job);
/* The connection is gone, and with it who asked. */
void tails_drop_all(struct tails *t);
void tails_close(struct tails *t);

#endif
