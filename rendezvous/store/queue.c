/* Queues: first in, first out, under a name. What is empty is gone. */
#include "rendezvous/store/internal.h"

static size_t queue_cost(void)
{
    return sizeof(struct queue) + STORE_BLOCK_BYTES;
}

bool store_queue_push(struct store *s, struct name *n, struct blob *b)
{
    struct queue *q = n->queue;
    if (q == NULL) {
        q = mu_zalloc(s->mem, sizeof *q);
        if (q == NULL)
            return false;
        s->stats.memory_bytes += queue_cost();
        s->stats.queues++;
        n->queue = q;
    }
    b->next = NULL;
    if (q->tail == NULL)
        q->head = b;
    else
        q->tail->next = b;
    q->tail = b;
    q->length++;
    return true;
}

struct blob *store_queue_take(struct store *s, struct name *n)
{
    struct queue *q = n->queue;
    struct blob *b = q->head;
    q->head = b->next;
    b->next = NULL;
    q->length--;
    if (q->head == NULL) {
        MU_ASSERT(q->length == 0);
        mu_mem_free(s->mem, q);
        store_discharge(s, queue_cost());
        s->stats.queues--;
        n->queue = NULL;
    }
    return b;
}

void store_queue_drop(struct store *s, struct name *n)
{
    while (n->queue != NULL)
        store_blob_unref(s, store_queue_take(s, n));
}
