/* Exits held back and put in order; see first.h. */
#include "agent/first.h"

#include <stdint.h>

/* When it said why it fails; INT64_MAX: it said nothing. */
static int64_t word_ns(const struct first *f, uint32_t local_rank)
{
    const struct talk_said *said = work_said(f->work, local_rank);
    return said != NULL && said->failure[0] != '\0' ? said->failure_ns : INT64_MAX;
}

/* Could a worker that has not ended yet have failed before this one? */
static bool has_suspect(const struct first *f, uint32_t local_rank)
{
    work_listen(f->work);
    int64_t own_ns = word_ns(f, local_rank);
    for (uint32_t i = 0; i < work_nproc(f->work); i++)
        if (work_is_there(f->work, i) &&
            (word_ns(f, i) < own_ns || (word_ns(f, i) == INT64_MAX && work_is_ending(f->work, i))))
            return true;
    return false;
}

static bool blames(const struct first *f, uint32_t who, uint32_t whom)
{
    const struct talk_said *said = work_said(f->work, who);
    return said != NULL && said->blame >= 0 && (uint32_t)said->blame == f->rank_base + whom;
}

/* Ranks run one program: where some say why they fail and one does not, it ended in a way of which
 * it could say nothing, and the others speak of that. */
static bool
comes_before(const struct first *f, const struct work_exit *a, const struct work_exit *b)
{
    int64_t a_ns = word_ns(f, a->local_rank);
    int64_t b_ns = word_ns(f, b->local_rank);
    bool a_named = blames(f, b->local_rank, a->local_rank);
    bool b_named = blames(f, a->local_rank, b->local_rank);
    if (a_named != b_named)
        return a_named;
    if ((a->status < 0) != (b->status < 0))
        return a->status < 0;
    if ((a_ns == INT64_MAX) != (b_ns == INT64_MAX))
        return a_ns == INT64_MAX;
    return a_ns < b_ns;
}

void first_flush(struct first *f)
{
    struct work_exit held[FIRST_HELD_MAX];
    uint32_t count = f->count;
    f->count = 0;
    (void)uv_timer_stop(&f->timer);        /* Never fails. */
    for (uint32_t i = 0; i < count; i++) { /* Insertion keeps the order of equals. */
        uint32_t at = i;
        for (; at > 0 && comes_before(f, &f->held[i], &held[at - 1]); at--)
            held[at] = held[at - 1];
        held[at] = f->held[i];
    }
    for (uint32_t i = 0; i < count; i++)
        f->deliver(f->arg, &held[i]);
}

static void on_time_over(uv_timer_t *timer)
{
    first_flush(timer->data);
}

void first_take(struct first *f, const struct work_exit *e, bool deciding)
{
    if (e->status == 0 ||
        (f->count == 0 && !(deciding && e->status > 0 && has_suspect(f, e->local_rank)))) {
        f->deliver(f->arg, e);
        return;
    }
    if (f->count == 0)
        (void)uv_timer_start(&f->timer, on_time_over, FIRST_HOLD_MS, 0); /* Never fails. */
    f->held[f->count++] = *e;
    if (e->status < 0 || !deciding || f->count == FIRST_HELD_MAX || !has_suspect(f, e->local_rank))
        first_flush(f);
}

void first_init(struct first *f, uv_loop_t *loop)
{
    (void)uv_timer_init(loop, &f->timer); /* Never fails. */
    f->timer.data = f;
    f->count = 0;
}

void first_use(struct first *f,
               struct work *work,
               void (*deliver)(void *arg, const struct work_exit *e),
               void *arg)
{
    f->work = work;
    f->deliver = deliver;
    f->arg = arg;
}

void first_begin(struct first *f, uint32_t rank_base)
{
    f->rank_base = rank_base;
}

void first_close(struct first *f)
{
    uv_close((uv_handle_t *)&f->timer, NULL);
}
