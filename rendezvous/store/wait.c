/* Who waits for which names, and who hears of it. The rules are those of docs/protocol.md
 * "Waiting": events count, not states; the oldest waiter is first; one wake for a wait.
 *
 * A queue's item wakes one waiter only. From that wake until the client pops, the item is on offer
 * to it: when it dies, cancels or waits for something else first, and the queue still holds an
 * item, the next in line is woken. Otherwise an item could lie there while others wait for it. */
#include "rendezvous/store/internal.h"

#include <utlist.h>

static size_t wait_cost(size_t link_count)
{
    return sizeof(struct wait) + link_count * sizeof(struct link) + STORE_BLOCK_BYTES;
}

enum store_verdict store_wait_begin(struct store_client *c, size_t link_count)
{
    struct store *s = c->store;
    store_wait_release(c);
    if (!store_charge(s, wait_cost(link_count), CHARGE_UPKEEP))
        return STORE_STORE_FULL;
    struct wait *w = mu_alloc(s->mem, sizeof *w + link_count * sizeof(struct link));
    if (w == NULL) {
        store_discharge(s, wait_cost(link_count));
        return STORE_NO_MEMORY;
    }
    *w = (struct wait){.client = c, .link_cap = link_count};
    DL_APPEND(s->waits, w);
    c->wait = w;
    return STORE_OK;
}

static void link_wait(struct link *l)
{
    l->state = LINK_WAITS;
    l->wait->missing++;
    DL_APPEND(l->name->waiters, l);
}

void store_wait_add(struct store_client *c, struct name *n, bool seen)
{
    struct wait *w = c->wait;
    MU_ASSERT(w->link_count < w->link_cap);
    struct link *l = &w->links[w->link_count++];
    *l = (struct link){.name = n, .wait = w, .state = LINK_SEEN};
    n->pins++;
    if (!seen)
        link_wait(l);
}

/* The wait is off its client already, waits for nothing, and nothing is on offer to it. */
static void wait_free(struct store *s, struct wait *w)
{
    for (size_t i = 0; i < w->link_count; i++) {
        struct name *n = w->links[i].name;
        n->pins--;
        store_name_settle(s, n);
    }
    DL_DELETE(s->waits, w);
    store_discharge(s, wait_cost(w->link_cap));
    mu_mem_free(s->mem, w);
}

static void wait_free_if_over(struct store *s, struct wait *w)
{
    if (w->missing > 0 || w->offered > 0)
        return;
    w->client->wait = NULL;
    wait_free(s, w);
}

void store_wait_release(struct store_client *c)
{
    struct store *s = c->store;
    struct wait *w = c->wait;
    if (w == NULL)
        return;
    c->wait = NULL;
    for (size_t i = 0; i < w->link_count; i++)
        if (w->links[i].state == LINK_WAITS)
            DL_DELETE(w->links[i].name->waiters, &w->links[i]);
    /* Only now: what is passed on must not come back to this one. */
    for (size_t i = 0; i < w->link_count; i++)
        if (w->links[i].state == LINK_OFFERED && w->links[i].name->queue != NULL)
            store_wake_one(s, w->links[i].name);
    wait_free(s, w);
}

/* One event for one waiter. May free the wait. */
static void link_event(struct store *s, struct link *l, enum link_state how)
{
    struct wait *w = l->wait;
    DL_DELETE(l->name->waiters, l);
    l->state = how;
    w->offered += how == LINK_OFFERED;
    if (--w->missing > 0)
        return;
    store_out_u8(w->client, 0);
    wait_free_if_over(s, w);
}

void store_wake_all(struct store *s, struct name *n, bool legacy_sleep)
{
    struct link *next = NULL;
    for (struct link *l = n->waiters; l != NULL; l = next) {
        /* `next` outlives the event: a wait is freed only when none of its links waits. */
        next = l->next;
        if (!legacy_sleep || l->wait->client->dialect != STORE_LEGACY)
            link_event(s, l, LINK_SEEN);
    }
}

void store_wake_one(struct store *s, struct name *n)
{
    struct link *l = n->waiters;
    while (l != NULL && !store_client_alive(l->wait->client))
        l = l->next;
    if (l == NULL)
        return;
    /* A key listed twice: the links stand side by side, and one item is enough for both. */
    const struct wait *w = l->wait;
    enum link_state how = LINK_OFFERED;
    for (struct link *next = NULL; l != NULL && l->wait == w; l = next) {
        next = l->next;
        link_event(s, l, how);
        how = LINK_SEEN;
    }
}

void store_offer_taken(struct store_client *c, struct name *n)
{
    struct wait *w = c->wait;
    if (w == NULL || w->offered == 0)
        return;
    for (size_t i = 0; i < w->link_count; i++) {
        struct link *l = &w->links[i];
        if (l->name == n && l->state == LINK_OFFERED) {
            l->state = LINK_SEEN;
            w->offered--;
        }
    }
    wait_free_if_over(c->store, w);
}

void store_waits_restart(struct store *s)
{
    struct wait *next = NULL;
    for (struct wait *w = s->waits; w != NULL; w = next) {
        next = w->next;
        w->offered = 0;
        if (w->missing == 0) {
            wait_free_if_over(s, w);
            continue;
        }
        for (size_t i = 0; i < w->link_count; i++)
            if (w->links[i].state != LINK_WAITS)
                link_wait(&w->links[i]);
    }
}

/* --- WATCH_KEY --- */

static size_t watch_cost(void)
{
    return sizeof(struct watch) + STORE_BLOCK_BYTES;
}

enum store_verdict store_watch_add(struct store_client *c, struct name *n)
{
    struct store *s = c->store;
    if (!store_charge(s, watch_cost(), CHARGE_DATA))
        return STORE_STORE_FULL;
    struct watch *w = mu_alloc(s->mem, sizeof *w);
    if (w == NULL) {
        store_discharge(s, watch_cost());
        return STORE_NO_MEMORY;
    }
    *w = (struct watch){.name = n, .client = c, .next_of_client = c->watches};
    c->watches = w;
    DL_APPEND(n->watches, w);
    return STORE_OK;
}

void store_watches_release(struct store_client *c)
{
    struct store *s = c->store;
    while (c->watches != NULL) {
        struct watch *w = c->watches;
        c->watches = w->next_of_client;
        DL_DELETE(w->name->watches, w);
        store_name_settle(s, w->name);
        store_discharge(s, watch_cost());
        mu_mem_free(s->mem, w);
    }
}

void store_watch_notify(struct name *n, enum watch_event ev, struct blob *before, struct blob *now)
{
    struct watch *w = NULL;
    DL_FOREACH(n->watches, w)
    {
        struct store_client *c = w->client;
        if (!store_client_alive(c) || !store_out_open(c))
            continue;
        uint64_t pending = c->pending;
        store_out_u8(c, (uint8_t)ev);
        store_out_str(c, store_name_key(n));
        store_out_blob(c, before);
        store_out_blob(c, now);
        store_out_done(c, pending);
    }
}
