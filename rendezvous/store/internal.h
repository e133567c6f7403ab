/* What the files of this room share; nobody outside includes it (tests may).
 *
 * A name is one entry of the hash table: the key's value, the queue, the waiters and the watchers
 * that go by these bytes, so that a request looks up once. A blob is a run of bytes which is
 * counted, not copied: a key's value, a queue's item, or a piece of an answer. A wait is one WAIT
 * or BARRIER with one link for each key it lists. A chunk is a piece of output: bytes of its own,
 * then perhaps a blob. */
#ifndef MUSTER_RENDEZVOUS_STORE_INTERNAL_H
#define MUSTER_RENDEZVOUS_STORE_INTERNAL_H

#include "rendezvous/store/store.h"

/* A value this long is answered by reference; a shorter one is copied. */
#define STORE_REFERENCE_BYTES 2048
/* And this long once a client has much unread, so that copies stay small beside its limit. */
#define STORE_REFERENCE_BYTES_LOW 64
/* A value that comes in pieces and is this long gets memory of its own at once. */
#define STORE_BODY_BYTES 16384
/* Of an announced value at most this much is asked for before the bytes are there. */
#define STORE_BODY_FIRST_BYTES (1 << 20)
/* A half-read request up to this size is not charged to the store's memory. */
#define STORE_REQUEST_FREE_BYTES 4096
/* What the heap takes for itself, about, for each block. */
#define STORE_BLOCK_BYTES 16
/* Answers up to this size need no memory, so a wake cannot fail for want of it. */
#define STORE_SMALL_OUT_BYTES 32

/* Modern codes are the names of commands in both dialects; the last is legacy only. */
enum store_command {
    STORE_VALIDATE,
    STORE_SET,
    STORE_COMPARE_SET,
    STORE_GET,
    STORE_ADD,
    STORE_CHECK,
    STORE_WAIT,
    STORE_GETNUMKEYS,
    STORE_DELETE_KEY,
    STORE_APPEND,
    STORE_MULTI_GET,
    STORE_MULTI_SET,
    STORE_CANCEL_WAIT,
    STORE_PING,
    STORE_QUEUE_PUSH,
    STORE_QUEUE_POP,
    STORE_QUEUE_LEN,
    STORE_LIST_KEYS,
    STORE_BARRIER,
    STORE_WATCH_KEY,
    STORE_COMMANDS
};
_Static_assert(STORE_WATCH_KEY == STORE_COMMAND_COUNT, "statistics count the modern commands");

enum store_dialect {
    STORE_UNDECIDED,
    STORE_MODERN,
    STORE_LEGACY
};

struct blob {
    size_t refs;
    size_t n;
    size_t cap;
    struct blob *next; /* In a queue. */
    char bytes[];
};

struct queue {
    struct blob *head;
    struct blob *tail;
    uint64_t length; /* Never 0: an empty queue is no queue. */
};

struct name {
    struct name *next;     /* In its bucket. */
    struct blob *value;    /* NULL: there is no such key. */
    struct queue *queue;   /* NULL: empty. */
    struct link *waiters;  /* Oldest first. */
    struct watch *watches; /* Oldest first. */
    uint32_t hash;
    uint32_t pins; /* Links of waits that mean this name, in `waiters` or not. */
    size_t key_bytes;
    char key[];
};

enum link_state {
    LINK_WAITS,   /* In the name's list of waiters. */
    LINK_SEEN,    /* The key was there, or was written since. */
    LINK_OFFERED, /* A queue's item was offered to this client, which has not popped yet. */
};

struct link {
    struct link *prev;
    struct link *next;
    struct name *name;
    struct wait *wait;
    enum link_state state;
};

struct wait {
    struct store_client *client;
    struct wait *prev; /* All waits of the store, oldest first. */
    struct wait *next;
    size_t link_cap;
    size_t link_count;
    size_t missing; /* Links in LINK_WAITS; 0: answered, and kept for its offers only. */
    size_t offered; /* Links in LINK_OFFERED. */
    struct link links[];
};

/* WATCH_KEY of the legacy dialect. */
struct watch {
    struct watch *prev; /* Of one name. */
    struct watch *next;
    struct watch *next_of_client;
    struct name *name;
    struct store_client *client;
};

struct chunk {
    struct chunk *next;
    struct blob *blob; /* After the bytes; NULL: none. */
    size_t blob_off;   /* How much of the blob was sent. */
    uint32_t off;      /* How much of the bytes was sent. */
    uint32_t n;
    uint32_t cap;
    char bytes[];
};

struct store_client {
    struct store *store;
    void *owner;
    struct store_client *prev; /* In the list of the ready. */
    struct store_client *next;
    struct request *request; /* NULL: no request is half read. */
    struct wait *wait;
    struct watch *watches;
    struct chunk *out; /* After the bytes of `small`. */
    struct chunk *out_tail;
    uint64_t pending; /* Bytes not sent: small, chunks, and blobs of chunks. */
    uint64_t copied;  /* Those of them that are copies. */
    uint64_t largest; /* Size of the largest answer since `pending` was 0. */
    uint8_t dialect;
    uint8_t verdict;
    bool ready;
    uint8_t small_off;
    uint8_t small_n;
    char small[STORE_SMALL_OUT_BYTES];
};
_Static_assert(sizeof(struct store_client) + STORE_BLOCK_BYTES <= 160,
               "an idle client costs at most 160 bytes");

struct store {
    const struct mu_mem *mem;
    struct store_limits limits;
    uint64_t hash_key[2];
    struct name **buckets;
    size_t bucket_count; /* A power of two. */
    size_t name_count;
    struct wait *waits;
    struct store_client *ready;
    struct chunk *spare_chunks;
    uint32_t spare_chunk_count;
    struct store_stats stats; /* `waiting` is counted when asked for. */
};

/* --- memory (store.c) --- */
enum charge_kind {
    CHARGE_DATA,
    CHARGE_UPKEEP, /* May use an eighth more than the limit, so that a full store still serves. */
};
/* False: the limit is reached and nothing is charged. */
bool store_charge(struct store *s, size_t n, enum charge_kind kind);
void store_discharge(struct store *s, size_t n);
/* The client's connection must end: the first reason stays. */
void store_client_fail(struct store_client *c, enum store_verdict v);
void store_client_mark_ready(struct store_client *c);
void store_client_unmark_ready(struct store_client *c);
static inline bool store_client_alive(const struct store_client *c)
{
    return c->verdict == STORE_OK;
}

/* --- values (value.c) --- */
/* A value that arrived: in the request's bytes, or in a blob of its own that can be taken over. */
struct store_value {
    const char *p;
    size_t n;
    struct blob **body; /* NULL: none. */
};

static inline size_t store_blob_cost(size_t cap)
{
    return sizeof(struct blob) + cap + STORE_BLOCK_BYTES;
}
/* A blob with room for n bytes and none in it. The verdict is OK, STORE_FULL or NO_MEMORY. */
enum store_verdict store_blob_new(struct store *s, size_t n, struct blob **ret);
/* The bytes of v as a blob: v's own, or a copy. */
enum store_verdict store_blob_from(struct store *s, const struct store_value *v, struct blob **ret);
static inline struct blob *store_blob_ref(struct blob *b)
{
    b->refs++;
    return b;
}
void store_blob_unref(struct store *s, struct blob *b); /* Takes NULL. */

/* Make *at (NULL: nothing yet) hold v: in place where it fits and nobody else looks at it. On
 * failure nothing has changed. */
enum store_verdict store_value_put(struct store *s, struct blob **at, const struct store_value *v);
enum store_verdict
store_value_append(struct store *s, struct blob **at, const struct store_value *v);
/* As strtoll(): leading blanks, a sign, digits, anything. False: no digits, or out of range. */
bool store_value_number(const struct blob *b, int64_t *ret);
/* ASCII decimal; ret has 20 bytes. Returns how many were written. */
size_t store_number_text(int64_t v, char *ret);

/* --- names (names.c) --- */
int store_names_init(struct store *s, uint64_t seed);
void store_names_fini(struct store *s);
struct name *store_name_find(struct store *s, struct mu_str key);
/* Find or add. */
enum store_verdict
store_name_get(struct store *s, struct mu_str key, enum charge_kind kind, struct name **ret);
/* Forget the name if nothing goes by it any more. */
void store_name_settle(struct store *s, struct name *n);
static inline struct mu_str store_name_key(const struct name *n)
{
    return mu_str_of(n->key, n->key_bytes);
}
static inline bool store_name_present(const struct name *n)
{
    return n != NULL && (n->value != NULL || n->queue != NULL);
}

/* --- queues (queue.c) --- */
/* Takes the caller's count of b. False: no memory, and b is still the caller's. */
bool store_queue_push(struct store *s, struct name *n, struct blob *b);
/* The oldest item, which is the caller's now; the queue must not be empty. */
struct blob *store_queue_take(struct store *s, struct name *n);
void store_queue_drop(struct store *s, struct name *n);

/* --- waits and watches (wait.c) --- */
/* A wait of c for link_count keys, to be filled with store_wait_add() and then used or released.
 * Takes the place of the one c has. */
enum store_verdict store_wait_begin(struct store_client *c, size_t link_count);
/* `seen`: the key is there already. */
void store_wait_add(struct store_client *c, struct name *n, bool seen);
/* Forget c's wait; what a queue offered to it goes to the next in line. */
void store_wait_release(struct store_client *c);
/* The key n was written: one event for each waiter. legacy_sleep: those of the legacy dialect do
 * not hear of it (its COMPARE_SET). */
void store_wake_all(struct store *s, struct name *n, bool legacy_sleep);
/* n's queue has an item to offer: the oldest waiter gets it. */
void store_wake_one(struct store *s, struct name *n);
/* c popped from n's queue, so nothing is on offer to it there any more. */
void store_offer_taken(struct store_client *c, struct name *n);
/* Every wait begins anew, none of its keys seen. Names must have been emptied. */
void store_waits_restart(struct store *s);

enum watch_event {
    WATCH_UPDATED = 0,
    WATCH_CREATED = 1,
    WATCH_DELETED = 2,
    WATCH_REGISTERED = 3,
};
enum store_verdict store_watch_add(struct store_client *c, struct name *n);
void store_watches_release(struct store_client *c);
/* Tell the watchers of n. A NULL blob is an empty value. */
void store_watch_notify(struct name *n, enum watch_event ev, struct blob *before, struct blob *now);

/* --- output (out.c) --- */
/* False: c is to be closed, now or already, because it reads too slowly. */
bool store_out_open(struct store_client *c);
void store_out_bytes(struct store_client *c, const void *p, size_t n);
void store_out_u8(struct store_client *c, uint8_t v);
void store_out_u64(struct store_client *c, uint64_t v);
/* Length and bytes, copied. */
void store_out_str(struct store_client *c, struct mu_str v);
/* Length and bytes, by reference where that is cheaper. NULL is empty. */
void store_out_blob(struct store_client *c, struct blob *b);
/* An answer is whole: `before` was c->pending when it began. */
void store_out_done(struct store_client *c, uint64_t before);
void store_out_drop(struct store_client *c);
void store_out_drop_spares(struct store *s);

/* --- requests --- */
struct span {
    size_t off;
    size_t n;
};

/* A value of the request at hand that came into memory of its own. */
struct body {
    size_t at; /* Where in the request's bytes it would stand. */
    struct blob *blob;
};

/* One whole request, checked. */
struct parsed {
    enum store_command command;
    const char *base; /* Command byte and arguments, without the bodies. */
    size_t items_off; /* Where the first of `items` begins. */
    uint64_t items;   /* Of CHECK, WAIT, MULTI_GET and MULTI_SET. */
    struct span field[3];
    uint64_t number; /* I64 or U32. */
    struct body *bodies;
    size_t body_count;
};

/* A key's value as SET writes it: watchers are told, waiters woken. On failure nothing has changed.
 * And its end: false where there was none (command.c). */
enum store_verdict store_write(struct store *s, struct mu_str key, struct mu_str value);
bool store_erase(struct store *s, struct mu_str key);
/* Execute (command.c). */
enum store_verdict store_execute(struct store_client *c, struct parsed *p);
/* Forget a half-read request (codec.c). */
void store_request_drop(struct store_client *c);

static inline uint64_t store_read_u64(const char *p)
{
    const unsigned char *u = (const unsigned char *)p;
    uint64_t lo =
        (uint64_t)u[0] | (uint64_t)u[1] << 8 | (uint64_t)u[2] << 16 | (uint64_t)u[3] << 24;
    uint64_t hi =
        (uint64_t)u[4] | (uint64_t)u[5] << 8 | (uint64_t)u[6] << 16 | (uint64_t)u[7] << 24;
    return lo | hi << 32;
}

static inline uint32_t store_read_u32(const char *p)
{
    const unsigned char *u = (const unsigned char *)p;
    return (uint32_t)u[0] | (uint32_t)u[1] << 8 | (uint32_t)u[2] << 16 | (uint32_t)u[3] << 24;
}

#endif
