/* A barrier on the store that can say who is missing: each rank leaves a mark of its own, rank 0
 * waits for all marks and then opens the gate, for which the others wait. Marks, not a counter: a
 * mark can be set twice, so a lost connection or a second call does no harm, and the store knows
 * who came. A rank costs three requests; only rank 0 names all keys. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "worker-sdk/src/core/sdk.h"
#include "worker-sdk/src/store/store_client.h"

/* To learn who is missing, once time is over. */
#define MISSING_NS (2 * MU_NS_PER_S)
#define MISSING_SHOWN 8

struct barrier {
    muster_store *s;
    const char *name;
    uint32_t world;
    int64_t began_ns;
    char **marks; /* Keys, one a rank. */
    char *text;   /* Where they are. */
    char *gate;
};

static void barrier_fini(struct barrier *b)
{
    mu_mem_free(mu_mem_default(), b->marks);
    mu_mem_free(mu_mem_default(), b->text);
    mu_mem_free(mu_mem_default(), b->gate);
}

/* The names of all keys. */
static int barrier_init(struct barrier *b, struct muster_error *err)
{
    size_t bytes = strlen(b->name) + sizeof "barrier//4294967295";
    size_t all = 0;
    b->gate = mu_alloc(mu_mem_default(), bytes);
    b->marks = mu_alloc(mu_mem_default(), b->world * sizeof *b->marks);
    if (!__builtin_mul_overflow(bytes, b->world, &all))
        b->text = mu_alloc(mu_mem_default(), all);
    if (b->gate == NULL || b->marks == NULL || b->text == NULL)
        return sdk_error(err, -ENOMEM, "barrier '%.60s': no memory for the keys of %u ranks",
                         b->name, b->world);
    (void)snprintf(b->gate, bytes, "barrier/%s/open", b->name);
    for (uint32_t r = 0; r < b->world; r++) {
        b->marks[r] = b->text + r * bytes;
        (void)snprintf(b->marks[r], bytes, "barrier/%s/%u", b->name, r);
    }
    return 0;
}

static int open_gate(struct barrier *b, struct muster_error *err)
{
    return muster_store_set(b->s, b->gate, "1", 1, err);
}

/* "2, 5, 7 and 3 more" */
static uint32_t list_missing(const struct barrier *b, const bool *there, char *ret, size_t bytes)
{
    uint32_t missing = 0;
    size_t n = 0;
    ret[0] = '\0';
    for (uint32_t r = 0; r < b->world; r++) {
        if (there[r])
            continue;
        if (missing++ < MISSING_SHOWN && n < bytes)
            n += (size_t)snprintf(ret + n, bytes - n, "%s%u", missing == 1 ? "" : ", ", r);
    }
    if (missing > MISSING_SHOWN && n < bytes)
        (void)snprintf(ret + n, bytes - n, " and %u more", missing - MISSING_SHOWN);
    return missing;
}

/* Time is over. Returns 0 after all when every rank has come: rank 0 may have given up before the
 * last one came, so whoever sees all marks opens the gate. */
static int time_is_over(struct barrier *b, struct muster_error *err)
{
    char span[MU_SPAN_BYTES];
    (void)mu_span(sdk_now_ns() - b->began_ns, span);
    bool *there = mu_zalloc(mu_mem_default(), b->world * sizeof *there);
    int r = there == NULL ? -ENOMEM
                          : store_check_each(b->s, (const char *const *)b->marks, b->world,
                                             sdk_deadline_ns(MISSING_NS), there, NULL);
    if (r < 0) {
        r = sdk_error(err, -ETIMEDOUT,
                      "barrier '%.60s': not all of %u ranks came within %s, and the store does "
                      "not say who is missing",
                      b->name, b->world, span);
    } else {
        char who[128];
        uint32_t missing = list_missing(b, there, who, sizeof who);
        r = missing == 0 ? open_gate(b, err)
                         : sdk_error(err, -ETIMEDOUT,
                                     "barrier '%.60s': %u of %u ranks did not come within %s: "
                                     "%s",
                                     b->name, missing, b->world, span, who);
    }
    mu_mem_free(mu_mem_default(), there);
    return r;
}

int muster_store_barrier(muster_store *s,
                         const char *name,
                         uint32_t rank,
                         uint32_t world,
                         int64_t timeout_ns,
                         struct muster_error *err)
{
    int64_t deadline_ns = sdk_deadline_ns(timeout_ns);
    struct barrier b = {.s = s, .name = name, .world = world, .began_ns = sdk_now_ns()};
    if (name == NULL || world == 0 || rank >= world)
        return sdk_error(err, -EINVAL, "a barrier has a name, and a rank below the world's %u",
                         world);
    if (s == NULL && world == 1)
        return 0; /* Nobody to wait for, and no store to do it with. */
    int r = barrier_init(&b, err);
    if (r == 0)
        r = muster_store_set(s, b.marks[rank], "1", 1, err);
    if (r == 0) {
        r = rank == 0
                ? store_wait_until(s, "barrier", (const char *const *)b.marks, world, deadline_ns,
                                   err)
                : store_wait_until(s, "barrier", (const char *const *)&b.gate, 1, deadline_ns, err);
        if (r == 0 && rank == 0)
            r = open_gate(&b, err);
        else if (r == -ETIMEDOUT)
            r = time_is_over(&b, err);
    }
    barrier_fini(&b);
    return r;
}
