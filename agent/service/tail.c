/* Readers of kept output; see tail.h. */
#include "agent/service/tail.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/stat.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"

enum {
    READ_BYTES = 256 * 1024, /* In one turn, of one reader; more than the longest record. */
    LINES_MAX = 100000,      /* Whose places are remembered: last lines that can be asked for. */
    RECORD_MAX = 100 * 1024, /* Of one in its file: each byte of a piece may need six there. */
    WAIT_MS = 20             /* Until a connection that is full is looked at again. */
};

struct place {
    struct kept_part part;
    int64_t offset;
};

struct tail {
    struct tail *next;
    uint32_t stream;
    char job[MU_RUN_ID_BYTES];
    bool follow;
    int64_t rank; /* -2: all. */
    int64_t since_ms;
    int64_t credit;
    int64_t window; /* The most there ever was: a piece is no longer than that. */
    bool idle;      /* Everything is sent: wait for more. */
    bool caught;    /* That was so before, and was told. */

    bool open;
    int fd;
    struct place at;
    size_t sent_of_line; /* Bytes of the decoded text of the record at `at` that are sent. */

    bool no_past;       /* Of what is there nothing is wanted. */
    struct place *ring; /* While the last lines are looked for. */
    uint32_t ring_size;
    uint32_t ring_at;
    uint64_t ring_count;
};

int tails_init(struct tails *t, uv_loop_t *loop)
{
    (void)uv_timer_init(loop, &t->timer); /* Cannot fail. */
    t->timer.data = t;
    t->first = NULL;
    t->count = 0;
    t->buffer = mu_alloc(mu_mem_default(), READ_BYTES);
    return t->buffer != NULL ? 0 : -ENOMEM;
}

/* --- a reader's place --- */

static void close_part(struct tail *r)
{
    if (r->fd >= 0)
        (void)close(r->fd);
    r->fd = -1;
    r->open = false;
}

static bool go_to(struct tails *t, struct tail *r, struct place at)
{
    close_part(r);
    r->at = at;
    r->fd = kept_open(t->logs, r->job, at.part);
    r->open = r->fd >= 0;
    r->sent_of_line = 0;
    return r->open;
}

/* Behind the part that is open, or the very first. A part that is removed while we look is passed
 * over. */
static bool go_on(struct tails *t, struct tail *r)
{
    struct kept_part next;
    struct kept_part here = r->at.part;
    const struct kept_part *after = r->open ? &here : NULL;
    while (kept_next(t->logs, r->job, after, &next)) {
        if (go_to(t, r, (struct place){.part = next}))
            return true;
        here = next;
        after = &here;
    }
    return false;
}

/* What is before the reader has been dropped, so a junction is worth showing. */
static bool follows_a_gap(struct tails *t, const struct tail *r)
{
    struct kept_part first;
    return kept_next(t->logs, r->job, NULL, &first) && first.attempt == r->at.part.attempt &&
           first.part == r->at.part.part && first.part > 0;
}

/* --- one record --- */

/* A line of this service's own in that stream. */
static void
send_own(struct tails *t, uint32_t stream, const char *job, int64_t unix_ms, const char *text)
{
    struct ctl_output *o = &t->out.u.output;
    ctl_init(&t->out, CTL_OUTPUT);
    o->stream = stream;
    (void)mu_strcopy(o->job, sizeof o->job, job);
    o->unix_ms = unix_ms;
    o->rank = -1;
    o->channel = 2;
    (void)mu_strcopy(o->text, sizeof o->text, text);
    t->send(t->arg, &t->out);
}

static void send_end(struct tails *t, const struct tail *r)
{
    ctl_init(&t->out, CTL_OUTPUT);
    t->out.u.output.stream = r->stream;
    memcpy(t->out.u.output.job, r->job, sizeof r->job);
    t->out.u.output.end = 1;
    t->send(t->arg, &t->out);
}

/* How much of the text fits: never half of a character. */
static size_t piece_of(const char *p, size_t n, size_t max)
{
    if (n <= max)
        return n;
    size_t at = max;
    while (at > 1 && max - at < 4 && ((unsigned char)p[at] & 0xc0U) == 0x80)
        at--;
    return at;
}

/* Send a record's text as far as there is credit. True: all of it. */
static bool send_record(struct tails *t, struct tail *r, const struct record_head *h)
{
    MU_CLEANUP(mu_buf_fini) struct mu_buf text;
    mu_buf_init(&text, mu_mem_default());
    record_text(h->text, &text);
    size_t most = r->window < CTL_OUTPUT_BYTES - 1 ? (size_t)r->window : CTL_OUTPUT_BYTES - 1;
    struct ctl_output *o = &t->out.u.output;
    do {
        const char *p = text.p != NULL ? text.p + r->sent_of_line : "";
        size_t n = piece_of(p, text.n - r->sent_of_line, most);
        if (r->credit < (n > 0 ? (int64_t)n : 1))
            return false;
        ctl_init(&t->out, CTL_OUTPUT);
        o->stream = r->stream;
        memcpy(o->job, r->job, sizeof r->job);
        o->unix_ms = h->unix_ms;
        o->rank = h->rank;
        o->channel = h->channel;
        memcpy(o->text, p, n);
        o->text[n] = '\0';
        t->send(t->arg, &t->out);
        r->credit -= (int64_t)n;
        r->sent_of_line += n;
    } while (r->sent_of_line < text.n);
    r->sent_of_line = 0;
    return true;
}

static bool is_wanted(struct tails *t, const struct tail *r, const struct record_head *h)
{
    if (h->is_junction && !follows_a_gap(t, r))
        return false;
    return (r->rank == -2 || h->rank == r->rank) && h->unix_ms >= r->since_ms;
}

static void remember(struct tail *r)
{
    r->ring[r->ring_at] = r->at;
    r->ring_at = (r->ring_at + 1) % r->ring_size;
    r->ring_count++;
}

/* One record at the reader's place. False: it has to wait. */
static bool take_record(struct tails *t, struct tail *r, struct mu_str line)
{
    struct record_head h;
    if (!record_read(line, &h) || !is_wanted(t, r, &h))
        return true;
    if (r->ring != NULL) {
        remember(r);
        return true;
    }
    return send_record(t, r, &h);
}

/* --- a turn --- */

enum turn {
    TURN_MORE, /* Something was done, and there may be more. */
    TURN_WAITS,
    TURN_FULL, /* The connection is. */
    TURN_OVER
};

/* The last lines are known: from the oldest of them on. */
static enum turn begin_sending(struct tails *t, struct tail *r)
{
    uint64_t kept = r->ring_count < r->ring_size ? r->ring_count : r->ring_size;
    kept = r->no_past ? 0 : kept;
    bool any = kept > 0;
    struct place from = r->at;
    if (any)
        from = r->ring[(r->ring_at + r->ring_size - kept) % r->ring_size];
    free(r->ring);
    r->ring = NULL;
    if (any)
        (void)go_to(t, r, from); /* Should it be gone: go_on() finds what follows. */
    return TURN_MORE;
}

/* Once: what comes from now on is as it is written. */
static void send_caught(struct tails *t, struct tail *r)
{
    if (r->caught)
        return;
    r->caught = true;
    ctl_init(&t->out, CTL_CAUGHT);
    t->out.u.caught.stream = r->stream;
    t->send(t->arg, &t->out);
}

/* What could not be kept, and is noted in no file. False: it has to wait for credit. */
static bool send_gap(struct tails *t, const struct tail *r)
{
    struct kept_gap gap;
    char text[KEPT_GAP_BYTES];
    if ((r->no_past && !r->follow) || (r->rank != -2 && r->rank != -1) ||
        !kept_find_gap(t->logs, r->job, &gap) || gap.unix_ms < r->since_ms)
        return true;
    kept_gap_text(&gap, text);
    if (r->credit < (int64_t)strlen(text))
        return false;
    send_own(t, r->stream, r->job, gap.unix_ms, text);
    return true;
}

static enum turn at_end(struct tails *t, struct tail *r)
{
    if (go_on(t, r))
        return TURN_MORE;
    if (r->ring != NULL)
        return begin_sending(t, r);
    if (r->follow && t->is_live(t->arg, r->job)) {
        send_caught(t, r);
        r->idle = true;
        return TURN_WAITS;
    }
    if (!send_gap(t, r))
        return TURN_WAITS;
    send_end(t, r);
    return TURN_OVER;
}

static enum turn take_turn(struct tails *t, struct tail *r)
{
    if (r->ring == NULL && r->credit <= 0)
        return TURN_WAITS;
    ssize_t n = r->open ? pread(r->fd, t->buffer, READ_BYTES, r->at.offset) : 0;
    size_t left = n > 0 ? (size_t)n : 0;
    const char *p = t->buffer;
    bool any = false;
    for (const char *feed = left > 0 ? memchr(p, '\n', left) : NULL; feed != NULL;) {
        size_t len = (size_t)(feed - p);
        if (r->ring == NULL && !t->has_room(t->arg))
            return TURN_FULL;
        if (!take_record(t, r, mu_str_of(p, len)) || t->dropped)
            return TURN_WAITS;
        any = true;
        p += len + 1;
        left -= len + 1;
        r->at.offset += (int64_t)len + 1;
        feed = left > 0 ? memchr(p, '\n', left) : NULL;
    }
    return any ? TURN_MORE : at_end(t, r);
}

static void free_tail(struct tail *r)
{
    close_part(r);
    free(r->ring);
    free(r);
}

static void unlink_tail(struct tails *t, struct tail **at)
{
    struct tail *r = *at;
    *at = r->next;
    t->count--;
    free_tail(r);
}

static void on_turn(uv_timer_t *timer)
{
    struct tails *t = timer->data;
    bool more = false;
    bool full = false;
    t->in_turn = true;
    t->gather(t->arg, true); /* Else lines that were written together arrive between others'. */
    for (struct tail **at = &t->first; *at != NULL && !t->dropped;) {
        struct tail *r = *at;
        enum turn turn = r->idle ? TURN_WAITS : take_turn(t, r);
        full = full || turn == TURN_FULL;
        more = more || turn == TURN_MORE;
        if (turn == TURN_OVER)
            unlink_tail(t, at);
        else
            at = &r->next;
    }
    t->gather(t->arg, false);
    t->in_turn = false;
    if (t->dropped) {
        t->dropped = false;
        tails_drop_all(t);
        return;
    }
    if (more || full)
        (void)uv_timer_start(&t->timer, on_turn, more ? 0 : WAIT_MS, 0);
}

static void wake(struct tails *t)
{
    if (!uv_is_active((const uv_handle_t *)&t->timer) || uv_timer_get_due_in(&t->timer) > 0)
        (void)uv_timer_start(&t->timer, on_turn, 0, 0);
}

/* --- coming and going --- */

static struct tail **find(struct tails *t, uint32_t stream)
{
    struct tail **at = &t->first;
    while (*at != NULL && (*at)->stream != stream)
        at = &(*at)->next;
    return at;
}

/* Not the whole of a large file for its last ten lines: from a record's start that is surely before
 * them. */
static void skip_to_last(struct tails *t, struct tail *r, int64_t lines)
{
    struct kept_part last;
    struct stat st;
    if (r->rank != -2 || !kept_last(t->logs, r->job, &last) ||
        !go_to(t, r, (struct place){.part = last}))
        return;
    if (fstat(r->fd, &st) < 0 || st.st_size / RECORD_MAX <= lines) {
        close_part(r); /* From the very first. */
        return;
    }
    r->at.offset = st.st_size - lines * RECORD_MAX;
    ssize_t n = pread(r->fd, t->buffer, READ_BYTES, r->at.offset);
    const char *feed = n > 0 ? memchr(t->buffer, '\n', (size_t)n) : NULL;
    if (feed == NULL)
        close_part(r);
    else
        r->at.offset += feed + 1 - t->buffer;
}

void tails_begin(struct tails *t, const struct ctl_tail *m)
{
    static const char too_many[] =
        "[this node's output is missing: it sends output to 256 readers already, which is as many "
        "as it can; ask again when one of them has gone]";
    static const char no_memory[] = "[this node's output is missing: its service has no memory]";
    _Static_assert(TAILS_MAX == 256, "as the sentence has it");
    tails_end(t, (uint32_t)m->stream);
    bool full = t->count >= TAILS_MAX;
    bool is_name = kept_is_name(m->job);
    struct tail none = {.stream = (uint32_t)m->stream};
    if (is_name && !kept_is_of(t->logs, m->job, m->submitted_ms)) {
        send_end(t, &none); /* What is here is a namesake's. */
        return;
    }
    struct tail *r = full ? NULL : mu_zalloc(mu_mem_default(), sizeof *r);
    int64_t lines = m->lines < LINES_MAX ? m->lines : LINES_MAX;
    if (r != NULL && lines >= 0) {
        r->ring_size = lines > 0 ? (uint32_t)lines : 1;
        r->ring = mu_alloc(mu_mem_default(), r->ring_size * sizeof *r->ring);
    }
    if (r == NULL || (lines >= 0 && r->ring == NULL) || !is_name) {
        free(r);
        if (full || is_name) /* Else its reader would take it for one that is silent. */
            send_own(t, none.stream, m->job, mu_unix_ms(), full ? too_many : no_memory);
        send_end(t, &none);
        return;
    }
    r->stream = (uint32_t)m->stream;
    memcpy(r->job, m->job, sizeof r->job);
    r->follow = m->follow != 0;
    r->rank = m->rank;
    r->since_ms = m->since_ms;
    r->credit = r->window = m->credit;
    r->fd = -1;
    r->no_past = lines == 0;
    if (lines >= 0)
        skip_to_last(t, r, lines);
    r->next = t->first;
    t->first = r;
    t->count++;
    wake(t);
}

void tails_more(struct tails *t, const struct ctl_more *m)
{
    struct tail *r = *find(t, (uint32_t)m->stream);
    if (r == NULL)
        return;
    r->credit += m->credit;
    if (r->credit > INT32_MAX)
        r->credit = INT32_MAX;
    r->window = r->credit > r->window ? r->credit : r->window;
    wake(t);
}

void tails_end(struct tails *t, uint32_t stream)
{
    struct tail **at = find(t, stream);
    if (*at != NULL)
        unlink_tail(t, at);
}

void tails_kick(struct tails *t, const char *job)
{
    bool any = false;
    for (struct tail *r = t->first; r != NULL; r = r->next) {
        if (job != NULL && strcmp(r->job, job) != 0)
            continue;
        r->idle = false;
        any = true;
    }
    if (any)
        wake(t);
}

void tails_drop_all(struct tails *t)
{
    if (t->in_turn) {
        t->dropped = true;
        return;
    }
    while (t->first != NULL) {
        struct tail *r = t->first;
        t->first = r->next;
        free_tail(r);
    }
    t->count = 0;
    (void)uv_timer_stop(&t->timer);
}

void tails_close(struct tails *t)
{
    tails_drop_all(t);
    free(t->buffer);
    t->buffer = NULL;
    uv_close((uv_handle_t *)&t->timer, NULL);
}
