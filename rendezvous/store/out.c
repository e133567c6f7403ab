/* Output of one client: a few bytes in the client itself, then chunks; large values by reference.
 */
#include "rendezvous/store/internal.h"

#include <string.h>

#define CHUNK_SMALL_BYTES (512 - sizeof(struct chunk))
#define CHUNK_LARGE_BYTES (16384 - sizeof(struct chunk))
#define SPARE_CHUNKS_MAX 64

bool store_out_open(struct store_client *c)
{
    /* One answer of any size may be under way; the limit is for what piles up beside it. */
    if (c->pending - c->largest <= c->store->limits.out_bytes_max)
        return true;
    store_client_fail(c, STORE_READS_TOO_SLOWLY);
    return false;
}

void store_out_done(struct store_client *c, uint64_t before)
{
    if (c->pending - before > c->largest)
        c->largest = c->pending - before;
}

static struct chunk *chunk_new(struct store *s, size_t room)
{
    struct chunk *k = NULL;
    if (room <= CHUNK_SMALL_BYTES && s->spare_chunks != NULL) {
        k = s->spare_chunks;
        s->spare_chunks = k->next;
        s->spare_chunk_count--;
    } else {
        k = mu_alloc(s->mem, sizeof *k + room);
    }
    if (k != NULL)
        *k = (struct chunk){.cap = (uint32_t)room};
    return k;
}

static void chunk_free(struct store *s, struct chunk *k)
{
    store_blob_unref(s, k->blob);
    if (k->cap == CHUNK_SMALL_BYTES && s->spare_chunk_count < SPARE_CHUNKS_MAX) {
        k->next = s->spare_chunks;
        s->spare_chunks = k;
        s->spare_chunk_count++;
        return;
    }
    mu_mem_free(s->mem, k);
}

/* The chunk that takes the next bytes, with room for one at least; NULL when there is no memory. */
static struct chunk *chunk_for_bytes(struct store_client *c, size_t n)
{
    struct chunk *tail = c->out_tail;
    if (tail != NULL && tail->blob == NULL && tail->n < tail->cap)
        return tail;
    bool stream = n > CHUNK_SMALL_BYTES || (tail != NULL && tail->blob == NULL);
    struct chunk *k = chunk_new(c->store, stream ? CHUNK_LARGE_BYTES : CHUNK_SMALL_BYTES);
    if (k == NULL)
        return NULL;
    if (tail == NULL)
        c->out = k;
    else
        tail->next = k;
    c->out_tail = k;
    return k;
}

static bool chunks_take(struct store_client *c, const char *p, size_t n)
{
    while (n > 0) {
        struct chunk *k = chunk_for_bytes(c, n);
        if (k == NULL)
            return false;
        size_t m = k->cap - k->n;
        if (m > n)
            m = n;
        memcpy(k->bytes + k->n, p, m);
        k->n += (uint32_t)m;
        c->pending += m;
        c->copied += m;
        p += m;
        n -= m;
    }
    return true;
}

void store_out_bytes(struct store_client *c, const void *p, size_t n)
{
    if (n == 0 || !store_client_alive(c))
        return;
    if (n > c->store->limits.out_bytes_max || c->copied > c->store->limits.out_bytes_max - n) {
        store_client_fail(c, STORE_READS_TOO_SLOWLY);
        return;
    }
    if (c->out == NULL && n <= sizeof c->small - c->small_n) {
        memcpy(c->small + c->small_n, p, n);
        c->small_n = (uint8_t)(c->small_n + n);
        c->pending += n;
        c->copied += n;
    } else if (!chunks_take(c, p, n)) {
        store_client_fail(c, STORE_NO_MEMORY);
    }
    store_client_mark_ready(c);
}

void store_out_u8(struct store_client *c, uint8_t v)
{
    store_out_bytes(c, &v, 1);
}

void store_out_u64(struct store_client *c, uint64_t v)
{
    unsigned char b[8];
    for (int i = 0; i < 8; i++)
        b[i] = (unsigned char)(v >> (8 * i));
    store_out_bytes(c, b, sizeof b);
}

void store_out_str(struct store_client *c, struct mu_str v)
{
    store_out_u64(c, v.n);
    store_out_bytes(c, v.p, v.n);
}

/* Short values are copied, as long as copies stay small beside the limit. */
static bool worth_copying(const struct store_client *c, size_t n)
{
    return n < STORE_REFERENCE_BYTES_LOW ||
           (n < STORE_REFERENCE_BYTES && c->copied + n <= c->store->limits.out_bytes_max / 2);
}

void store_out_blob(struct store_client *c, struct blob *b)
{
    if (b == NULL) {
        store_out_u64(c, 0);
        return;
    }
    if (worth_copying(c, b->n)) {
        store_out_str(c, mu_str_of(b->bytes, b->n));
        return;
    }
    store_out_u64(c, b->n);
    if (!store_client_alive(c))
        return;
    /* Where the length stands in `small`: a chunk with nothing before the blob. */
    if (c->out_tail == NULL && chunk_for_bytes(c, 1) == NULL) {
        store_client_fail(c, STORE_NO_MEMORY);
        return;
    }
    c->out_tail->blob = store_blob_ref(b);
    c->pending += b->n;
}

size_t store_client_output(struct store_client *c, struct store_piece *pieces, size_t max)
{
    size_t count = 0;
    if (c->small_off < c->small_n && count < max)
        pieces[count++] =
            (struct store_piece){c->small + c->small_off, (size_t)(c->small_n - c->small_off)};
    for (const struct chunk *k = c->out; k != NULL && count < max; k = k->next) {
        if (k->off < k->n)
            pieces[count++] = (struct store_piece){k->bytes + k->off, k->n - k->off};
        if (k->blob != NULL && k->blob_off < k->blob->n && count < max)
            pieces[count++] =
                (struct store_piece){k->blob->bytes + k->blob_off, k->blob->n - k->blob_off};
    }
    return count;
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static void small_sent(struct store_client *c, size_t *n)
{
    size_t m = least(*n, (size_t)(c->small_n - c->small_off));
    c->small_off = (uint8_t)(c->small_off + m);
    if (c->small_off == c->small_n)
        c->small_off = c->small_n = 0;
    c->copied -= m;
    *n -= m;
}

/* True: the chunk is all sent. */
static bool chunk_sent(struct store_client *c, struct chunk *k, size_t *n)
{
    size_t m = least(*n, k->n - k->off);
    k->off += (uint32_t)m;
    c->copied -= m;
    *n -= m;
    if (k->off < k->n)
        return false;
    if (k->blob == NULL)
        return true;
    m = least(*n, k->blob->n - k->blob_off);
    k->blob_off += m;
    *n -= m;
    return k->blob_off == k->blob->n;
}

void store_client_sent(struct store_client *c, size_t n)
{
    MU_ASSERT(n <= c->pending);
    c->pending -= n;
    small_sent(c, &n);
    while (c->out != NULL && chunk_sent(c, c->out, &n)) {
        struct chunk *k = c->out;
        c->out = k->next;
        if (c->out == NULL)
            c->out_tail = NULL;
        chunk_free(c->store, k);
    }
    MU_ASSERT(n == 0);
    if (c->largest > c->pending)
        c->largest = c->pending;
    if (c->pending == 0 && store_client_alive(c))
        store_client_unmark_ready(c); /* Written without being asked: nothing is left to do. */
}

size_t store_client_pending(const struct store_client *c)
{
    return c->pending;
}

void store_out_drop(struct store_client *c)
{
    while (c->out != NULL) {
        struct chunk *k = c->out;
        c->out = k->next;
        chunk_free(c->store, k);
    }
    c->out_tail = NULL;
    c->small_n = c->small_off = 0;
    c->pending = c->copied = c->largest = 0;
}

void store_out_drop_spares(struct store *s)
{
    while (s->spare_chunks != NULL) {
        struct chunk *k = s->spare_chunks;
        s->spare_chunks = k->next;
        mu_mem_free(s->mem, k);
    }
    s->spare_chunk_count = 0;
}
