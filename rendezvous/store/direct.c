/* The store without a connection: what a shell does for callers that speak another protocol.
 * Counted as the commands that they are. */
#include "rendezvous/store/internal.h"

#include <errno.h>
#include <string.h>

enum store_verdict store_put(struct store *s, struct mu_str key, struct mu_str value)
{
    if (key.n > s->limits.key_bytes_max)
        return STORE_KEY_TOO_LONG;
    if (value.n > s->limits.value_bytes_max)
        return STORE_VALUE_TOO_LONG;
    s->stats.ops[STORE_SET]++;
    return store_write(s, key, value);
}

bool store_remove(struct store *s, struct mu_str key)
{
    s->stats.ops[STORE_DELETE_KEY]++;
    return store_erase(s, key);
}

int store_look(struct store *s, struct mu_str key, struct mu_str *ret_value)
{
    s->stats.ops[STORE_GET]++;
    return store_peek(s, key, ret_value);
}

void store_each(struct store *s, struct mu_str prefix, store_each_fn *each, void *arg)
{
    s->stats.ops[STORE_LIST_KEYS]++;
    for (size_t i = 0; i < s->bucket_count; i++)
        for (const struct name *n = s->buckets[i]; n != NULL; n = n->next) {
            if (!store_name_present(n) || n->key_bytes < prefix.n ||
                (prefix.n > 0 && memcmp(n->key, prefix.p, prefix.n) != 0))
                continue;
            struct store_entry e = {.key = store_name_key(n),
                                    .has_value = n->value != NULL,
                                    .value_bytes = n->value != NULL ? n->value->n : 0,
                                    .queue_length = n->queue != NULL ? n->queue->length : 0};
            each(arg, &e);
        }
}
