/* The key-value store that speaks PyTorch's TCPStore protocol: what keys hold, who waits, and the
 * codec of both dialects.
 *
 * Pure: bytes in, bytes out. No socket, no clock (the protocol's time-outs are the client's). One
 * struct store serves any number of clients; a client is one connection. Facts of the protocol:
 * docs/protocol.md "The store".
 *
 * How a shell uses it, per readable socket:
 *     store_client_space()   where to read to (large values go straight into their own memory)
 *     recv()
 *     store_client_feed()    executes every whole request; answers and wakes collect in the
 * clients' output store_take_ready()     until NULL: for each, writev(store_client_output()),
 * store_client_sent(); close it when verdict says so
 *
 * Dialects: MODERN (2.x: VALIDATE first, CANCEL_WAIT, queues, BARRIER ...) and LEGACY (1.x: no
 * handshake, nine commands, WATCH_KEY); decided by the first five bytes. Both share one key space.
 */
#ifndef MUSTER_RENDEZVOUS_STORE_H
#define MUSTER_RENDEZVOUS_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/mem.h"
#include "base/str.h"

struct store;
struct store_client;

/* Beyond a limit the client's connection ends (its protocol has no error message); nobody else
 * notices. Defaults: base/limits.h. */
struct store_limits {
    uint64_t key_bytes_max;
    uint64_t value_bytes_max;
    uint64_t keys_per_request_max;
    /* Keys, values and queues of the store, values on their way here, and bookkeeping. Waits and
     * half-read requests may take an eighth more, so that a full store still serves those who read
     * and delete. */
    uint64_t memory_bytes_max;
    /* Answers one client has not read, beside the largest of them: a single value of any size can
     * be fetched. A shell that stops reading from a client while much is pending for it meets this
     * limit only within one read. */
    uint64_t out_bytes_max;
};
extern const struct store_limits store_limits_default;

/* Why a client's connection must end. Peers' mistakes are verdicts, not errnos. */
#define STORE_VERDICTS(X)                                                                          \
    X(OK, "goes on")                                                                               \
    X(BAD_MAGIC, "first command is not VALIDATE with PyTorch's magic number")                      \
    X(BAD_COMMAND, "unknown command code")                                                         \
    X(SECOND_VALIDATE, "VALIDATE again")                                                           \
    X(KEY_TOO_LONG, "a key longer than the limit")                                                 \
    X(VALUE_TOO_LONG, "a value longer than the limit")                                             \
    X(TOO_MANY_KEYS, "more keys in one request than the limit")                                    \
    X(NOT_A_NUMBER, "ADD or BARRIER on a value that is no 64-bit number")                          \
    X(MISSING_KEY, "GET of a missing key (legacy protocol)")                                       \
    X(STORE_FULL, "the store's memory limit is reached")                                           \
    X(READS_TOO_SLOWLY, "answers it does not read passed the limit")                               \
    X(NO_MEMORY, "the process has no memory")
#define X(name, text) STORE_##name,
enum store_verdict {
    STORE_VERDICTS(X) STORE_VERDICT_COUNT
};
#undef X
const char *store_verdict_text(enum store_verdict v);

/* For status: how many of each command were executed is in ops[code], by the modern codes. */
#define STORE_COMMAND_COUNT 19
struct store_stats {
    uint64_t keys;
    uint64_t queues;
    uint64_t waiting; /* Clients that wait now. */
    uint64_t clients;
    uint64_t memory_bytes;
    uint64_t ops[STORE_COMMAND_COUNT];
    uint64_t closed[STORE_VERDICT_COUNT];
};

/* seed: makes hash order unguessable for peers; any number, the same number gives the same
 * behaviour. NULL when there is no memory. */
struct store *store_new(const struct mu_mem *mem, const struct store_limits *limits, uint64_t seed);
/* Every client must have been freed. Takes NULL. */
void store_free(struct store *s);
/* Forget every key, queue and waiter's progress, as for a new round. Clients stay: one that waits
 * goes on waiting, for all the keys of its wait anew. Watchers are not told, and stay. */
void store_wipe(struct store *s);
void store_get_stats(const struct store *s, struct store_stats *ret);

/* A connection. owner: the shell's own pointer, given back by store_client_owner(). NULL when there
 * is no memory. An idle client costs at most 160 bytes here; buffers exist only while a request or
 * an answer is incomplete. */
struct store_client *store_client_new(struct store *s, void *owner);
void store_client_free(struct store_client *c); /* Forgets its waits at once. Takes NULL. */
void *store_client_owner(const struct store_client *c);
bool store_client_is_legacy(const struct store_client *c);
/* True once the dialect is known, that is, five bytes (or one that decides) have come. */
bool store_client_has_spoken(const struct store_client *c);

/* Where the next bytes should be read to: *ret_p and *ret_n inside the value being received when
 * that is large, else NULL/0 and the shell reads into a scratch buffer of its own (64 KiB is
 * right). */
void store_client_space(struct store_client *c, void **ret_p, size_t *ret_n);

/* Take n bytes that were read (p is what store_client_space() gave, or the shell's scratch;
 * borrowed for the call) and execute what is whole. Requests before a bad one are executed and
 * answered. Returns the verdict; other than OK: send the pending output, then close. */
enum store_verdict store_client_feed(struct store_client *c, const void *p, size_t n);

/* The next client whose output should be written or whose connection must be closed, each once
 * until it has more; NULL: none. Those who were woken come before who woke them. One whose output
 * was all written without being asked for is left out. */
struct store_client *store_take_ready(struct store *s);
enum store_verdict store_client_verdict(const struct store_client *c);

/* Pending output as at most max pieces, borrowed until the next call on this store. Returns how
 * many; 0: nothing pending. */
struct store_piece {
    const void *p;
    size_t n;
};
size_t store_client_output(struct store_client *c, struct store_piece *pieces, size_t max);
/* n bytes of it were written. */
void store_client_sent(struct store_client *c, size_t n);
size_t store_client_pending(const struct store_client *c);

/* For tools and tests inside the process (no connection): 0, -ENOENT, -ENOMEM. The value is
 * borrowed until the next call. */
int store_peek(struct store *s, struct mu_str key, struct mu_str *ret_value);

/* Commands without a client, for callers that speak another protocol; counted as the commands that
 * they are. store_put(): OK, KEY_TOO_LONG, VALUE_TOO_LONG, STORE_FULL, NO_MEMORY; nothing has
 * changed then. Who waited for the key is woken: store_take_ready(). store_remove(): was it there?
 */
enum store_verdict store_put(struct store *s, struct mu_str key, struct mu_str value);
bool store_remove(struct store *s, struct mu_str key);
int store_look(struct store *s, struct mu_str key, struct mu_str *ret_value); /* As store_peek(). */

/* Every key and queue whose name begins with `prefix`, in no order. The entry is borrowed for the
 * call, in which the store must not change. */
struct store_entry {
    struct mu_str key;
    bool has_value;
    size_t value_bytes;
    uint64_t queue_length; /* 0: no queue goes by that name. */
};
typedef void store_each_fn(void *arg, const struct store_entry *e);
void store_each(struct store *s, struct mu_str prefix, store_each_fn *each, void *arg);

#endif
