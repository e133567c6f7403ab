/* A service's connection in time; see line.h. */
#include "agent/service/line.h"

#include "base/backoff.h"
#include "base/limits.h"

#define BACKOFF_MIN_NS INT64_C(100000000)
#define BACKOFF_MAX_NS INT64_C(15000000000)
#define REFUSED_NS INT64_C(30000000000)     /* Who was refused is hardly welcome a moment later. */
#define SILENCE_MIN_NS INT64_C(10000000000) /* A server that is loaded is no dead one. */

void line_init(struct line *l, int64_t now_ns, uint64_t seed)
{
    *l = (struct line){.state = LINE_DOWN,
                       .random = seed | 1,
                       .retry_at_ns = now_ns,
                       .backoff_ns = BACKOFF_MIN_NS,
                       .away_since_ns = now_ns,
                       .word_at_ns = now_ns + MU_FIRST_WORD_NS,
                       .word_gap_ns = MU_FIRST_WORD_NS};
}

static void retry_at(struct line *l, int64_t at_ns)
{
    l->state = LINE_DOWN;
    l->retry_at_ns = at_ns;
}

static void retry(struct line *l, int64_t now_ns)
{
    retry_at(l, now_ns + mu_backoff(&l->random, &l->backoff_ns, BACKOFF_MAX_NS));
}

static void be_ready(struct line *l, int64_t now_ns, int64_t beat_ns, int64_t lease_ns)
{
    l->state = LINE_READY;
    l->beat_ns = beat_ns;
    l->beat_at_ns = now_ns + beat_ns;
    l->silence_ns = 3 * lease_ns > SILENCE_MIN_NS ? 3 * lease_ns : SILENCE_MIN_NS;
    l->backoff_ns = BACKOFF_MIN_NS;
    l->heard_ns = now_ns;
}

static void be_away(struct line *l, int64_t now_ns)
{
    if (l->state == LINE_READY) {
        l->away_since_ns = now_ns;
        l->word_gap_ns = MU_FIRST_WORD_NS;
        l->word_at_ns = now_ns + l->word_gap_ns;
    }
}

static unsigned on_deadline(struct line *l, int64_t now_ns)
{
    unsigned todo = 0;
    if (l->state == LINE_DOWN && now_ns >= l->retry_at_ns) {
        l->state = LINE_TRYING;
        todo |= LINE_CONNECT;
    }
    if (l->state == LINE_READY && now_ns >= l->beat_at_ns) {
        l->beat_at_ns = now_ns + l->beat_ns;
        l->seq++;
        todo |= LINE_BEAT;
    }
    if ((l->state == LINE_READY || l->state == LINE_ASKED) && now_ns >= l->heard_ns + l->silence_ns)
        todo = LINE_DROP;
    if (l->state != LINE_READY && now_ns >= l->word_at_ns) {
        l->word_gap_ns =
            l->word_gap_ns * 2 > MU_WORD_GAP_LONG_NS ? MU_WORD_GAP_LONG_NS : l->word_gap_ns * 2;
        l->word_at_ns = now_ns + l->word_gap_ns;
        todo |= LINE_WORD;
    }
    return todo;
}

unsigned
line_step(struct line *l, int64_t now_ns, enum line_event ev, int64_t beat_ns, int64_t lease_ns)
{
    switch (ev) {
    case LINE_EV_UP:
        l->state = LINE_ASKED;
        l->heard_ns = now_ns;
        l->silence_ns = MU_FIRST_ANSWER_NS;
        return LINE_OFFER;
    case LINE_EV_FAILED:
        if (l->state == LINE_TRYING) /* What was dropped on purpose has its time already. */
            retry(l, now_ns);
        return 0;
    case LINE_EV_LOST:
        be_away(l, now_ns);
        if (l->state != LINE_DOWN)
            retry(l, now_ns);
        return 0;
    case LINE_EV_REFUSED:
        be_away(l, now_ns);
        retry_at(l, now_ns + mu_jitter(&l->random, REFUSED_NS));
        return LINE_DROP;
    case LINE_EV_WELCOME:
        be_ready(l, now_ns, beat_ns, lease_ns);
        return 0;
    case LINE_EV_HEARD:
        l->heard_ns = now_ns;
        return 0;
    case LINE_EV_DEADLINE:
        return on_deadline(l, now_ns);
    }
    return 0;
}

static int64_t sooner(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

int64_t line_deadline(const struct line *l)
{
    int64_t silent = l->heard_ns + l->silence_ns;
    switch (l->state) {
    case LINE_DOWN:
        return sooner(l->retry_at_ns, l->word_at_ns);
    case LINE_TRYING:
        return l->word_at_ns;
    case LINE_ASKED:
        return sooner(silent, l->word_at_ns);
    case LINE_READY:
        return sooner(silent, l->beat_at_ns);
    }
    return INT64_MAX;
}
