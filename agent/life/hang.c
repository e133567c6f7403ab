/* Which worker of a node hangs; see hang.h. */
#include "agent/life/hang.h"

#include <errno.h>
#include <stddef.h>

#include "base/check.h"

#define GAP_MIN_NS INT64_C(50000000)
#define GAP_MAX_NS INT64_C(1000000000)
#define MANY_WORKERS 32 /* Each look reads a file of each: beyond so many less often. */
#define GAP_MANY_NS INT64_C(5000000000)

int hang_init(struct hang *h,
              const struct mu_mem *mem,
              const struct hang_limits *limits,
              uint32_t count)
{
    *h = (struct hang){.mem = mem, .limits = *limits, .count = count};
    h->workers = mu_zalloc(mem, count * sizeof *h->workers);
    return h->workers == NULL ? -ENOMEM : 0;
}

void hang_fini(struct hang *h)
{
    mu_mem_free(h->mem, h->workers);
    h->workers = NULL;
    h->count = 0;
}

void hang_begin(struct hang *h, int64_t now_ns)
{
    for (uint32_t i = 0; i < h->count; i++)
        h->workers[i] = (struct hang_worker){.alive_ns = now_ns};
}

void hang_ended(struct hang *h, uint32_t local_rank)
{
    MU_ASSERT(local_rank < h->count);
    h->workers[local_rank].there = false;
}

static bool moved(const struct hang_sample *was, const struct hang_sample *is)
{
    return is->cpu != was->cpu || is->cpu_below != was->cpu_below || is->written != was->written ||
           is->has_step != was->has_step || is->step_ns != was->step_ns ||
           is->section_since_ns != was->section_since_ns;
}

/* Steps between two looks count as one: what is learned is rather too long. */
static void learn(struct hang *h, const struct hang_sample *was, const struct hang_sample *is)
{
    if (!was->has_step || !is->has_step || is->step_ns == was->step_ns)
        return;
    if (is->step_ns - was->step_ns > h->longest_step_ns)
        h->longest_step_ns = is->step_ns - was->step_ns;
    h->steps_seen += h->steps_seen < HANG_LEARNED_AFTER;
}

/* 0: none, or not yet. */
static int64_t progress_limit_ns(const struct hang *h)
{
    if (h->limits.progress_ns != HANG_LEARNED)
        return h->limits.progress_ns;
    if (h->steps_seen < HANG_LEARNED_AFTER)
        return 0;
    int64_t limit = h->longest_step_ns * HANG_LEARNED_TIMES;
    return limit > HANG_LEARNED_MIN_NS ? limit : HANG_LEARNED_MIN_NS;
}

void hang_note(struct hang *h, uint32_t local_rank, int64_t now_ns, const struct hang_sample *s)
{
    MU_ASSERT(local_rank < h->count);
    struct hang_worker *w = &h->workers[local_rank];
    if (!w->there || moved(&w->last, s))
        w->alive_ns = now_ns;
    if (w->there)
        learn(h, &w->last, s);
    w->there = true;
    w->last = *s;
}

static int64_t later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Does the limit of progress hold for it, which, and since when does it count? */
static bool progress_due(const struct hang *h,
                         const struct hang_worker *w,
                         int64_t *ret_since_ns,
                         int64_t *ret_limit_ns)
{
    const struct hang_sample *s = &w->last;
    bool own_limit = s->in_section && s->section_limit_ns >= 0;
    int64_t limit_ns = own_limit ? s->section_limit_ns : progress_limit_ns(h);
    if (h->limits.progress_ns == 0 || !w->there || (!s->has_step && !own_limit) ||
        (limit_ns == 0 && !own_limit))
        return false;
    *ret_limit_ns = limit_ns;
    *ret_since_ns = own_limit ? s->section_since_ns : later(s->step_ns, s->section_since_ns);
    return true;
}

static bool silence_due(const struct hang *h,
                        const struct hang_worker *w,
                        int64_t *ret_since_ns,
                        int64_t *ret_limit_ns)
{
    *ret_since_ns = w->alive_ns;
    *ret_limit_ns = h->limits.silence_ns;
    return h->limits.silence_ns != 0 && w->there;
}

typedef bool
due_fn(const struct hang *h, const struct hang_worker *w, int64_t *since_ns, int64_t *limit_ns);

/* Is a more to blame than b? */
static bool is_worse(const struct hang_verdict *a, const struct hang_verdict *b)
{
    if (a->stopped != b->stopped)
        return a->stopped;
    if (a->has_step && b->has_step && a->step != b->step)
        return a->step < b->step;
    return a->since_ns < b->since_ns;
}

/* Somebody is beyond a limit. Then whoever has been still for half of it is a suspect: peers notice
 * at different moments that they wait. */
static bool look(const struct hang *h, int64_t now_ns, due_fn *due, struct hang_verdict *ret)
{
    bool beyond = false;
    bool any = false;
    for (uint32_t i = 0; i < h->count; i++) {
        const struct hang_worker *w = &h->workers[i];
        struct hang_verdict v = {.local_rank = i,
                                 .by_progress = due == progress_due,
                                 .has_step = w->last.has_step,
                                 .step = w->last.step,
                                 .stopped = w->last.stopped,
                                 .in_section = w->last.in_section};
        if (!due(h, w, &v.since_ns, &v.limit_ns) || now_ns - v.since_ns < v.limit_ns / 2)
            continue;
        beyond = beyond || now_ns - v.since_ns >= v.limit_ns;
        if (!any || is_worse(&v, ret))
            *ret = v;
        any = true;
    }
    return beyond;
}

bool hang_look(const struct hang *h, int64_t now_ns, struct hang_verdict *ret)
{
    struct hang_verdict v;
    if (!look(h, now_ns, progress_due, &v) && !look(h, now_ns, silence_due, &v))
        return false;
    *ret = v;
    return true;
}

/* With a limit, silence is told before it is acted on: other nodes' silence helps to find whom to
 * blame. */
static int64_t notice_ns(const struct hang *h)
{
    int64_t at = HANG_NOTICE_NS;
    if (h->limits.progress_ns > 0 && h->limits.progress_ns / 2 < at)
        at = h->limits.progress_ns / 2;
    if (h->limits.silence_ns != 0 && h->limits.silence_ns / 2 < at)
        at = h->limits.silence_ns / 2;
    return at;
}

int64_t hang_silent_since(const struct hang *h, uint32_t local_rank, int64_t now_ns)
{
    MU_ASSERT(local_rank < h->count);
    const struct hang_worker *w = &h->workers[local_rank];
    return w->there && now_ns - w->alive_ns >= notice_ns(h) ? w->alive_ns : 0;
}

int64_t hang_gap_ns(const struct hang *h)
{
    int64_t gap = GAP_MAX_NS;
    if (h->limits.progress_ns == 0 && h->limits.silence_ns == 0)
        return h->count > MANY_WORKERS ? GAP_MANY_NS : GAP_MAX_NS;
    if (h->limits.progress_ns > 0 && h->limits.progress_ns / 10 < gap)
        gap = h->limits.progress_ns / 10;
    if (h->limits.silence_ns != 0 && h->limits.silence_ns / 10 < gap)
        gap = h->limits.silence_ns / 10;
    return gap < GAP_MIN_NS ? GAP_MIN_NS : gap;
}
