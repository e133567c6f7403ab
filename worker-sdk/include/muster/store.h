/* The store: keys and values that all ranks of a job see, over PyTorch's TCPStore protocol.
 *
 * Works against rdzv-server, the worker store of node-agent, and torch's own TCPStore (2.x).
 * Source: docs/sdk.md "Store". Values are bytes and may hold NULs. A handle has one connection
 * and serves one thread at a time; muster_store_open() again for another thread.
 *
 * Keys. A key travels as "/", the handle's prefix, the key: what torch's TCPStore sends for the
 * same key, so both see the same. It has at most 8192 bytes in all.
 *
 * Time-outs. Every call ends at its own time-out or, where it has none, at the handle's:
 * -ETIMEDOUT. A call that waited for a key, and a stuck server, may take 0.2 s more to leave the
 * connection in step.
 *
 * Lost connections. One is made again, for as long as the call may last, and a request that may
 * safely be done twice is sent again, once: get, check, wait, set, multi_set, multi_get, num_keys,
 * list_keys, queue_len, ping, barrier, add of 0, and delete where nobody asks whether the key was
 * there. add, append, compare_set, queue_push and queue_pop are never sent twice: -ECONNRESET then
 * says that it may or may not have been done. The next call connects again. A server that was
 * started anew has forgotten its keys.
 *
 * Written is written. set, append, multi_set and queue_push return when the server has done them.
 *
 * No store. muster_get_store() gives NULL in a world of one without a store. The calls below take
 * it and answer -ENOTCONN; a barrier of one rank is 0. */
#ifndef MUSTER_STORE_H
#define MUSTER_STORE_H

#include <muster/muster.h>

#ifdef __cplusplus
extern "C" {
#endif

struct muster_bytes {
    char *p; /* malloc'ed, muster_bytes_free(); a NUL stands behind the last byte. */
    size_t n;
};
MUSTER_API void muster_bytes_free(struct muster_bytes *b);

/* Tries again until the server answers or timeout_ns is over: ranks start before their store.
 * host: a name or a numeric address; names are looked up here only. prefix: put in front of every
 * key; may be "" or NULL. Borrowed for the call.
 * -EINVAL no host or port; -EHOSTUNREACH the name has no address; -ETIMEDOUT nobody serves there;
 * -EPROTO who answers is no store. */
MUSTER_API int muster_store_open(const char *host,
                                 uint16_t port,
                                 const char *prefix,
                                 int64_t timeout_ns,
                                 muster_store **ret,
                                 struct muster_error *err);
MUSTER_API void muster_store_close(muster_store *s);
/* How long an operation may take that has no time-out of its own; the default is that of open.
 * Negative: for ever. */
MUSTER_API void muster_store_set_timeout(muster_store *s, int64_t timeout_ns);

MUSTER_API int muster_store_set(
    muster_store *s, const char *key, const void *p, size_t n, struct muster_error *err);
/* Waits for the key. -ETIMEDOUT: it did not come. */
MUSTER_API int muster_store_get(muster_store *s,
                                const char *key,
                                struct muster_bytes *ret,
                                struct muster_error *err);
/* Add to a decimal number; a missing one is 0. */
MUSTER_API int muster_store_add(
    muster_store *s, const char *key, int64_t delta, int64_t *ret, struct muster_error *err);
MUSTER_API int muster_store_append(
    muster_store *s, const char *key, const void *p, size_t n, struct muster_error *err);
/* Set to `desired` if it holds `expected`, or is missing and `expected` is empty. Gives what it
 * holds afterwards. */
MUSTER_API int muster_store_compare_set(muster_store *s,
                                        const char *key,
                                        const void *expected,
                                        size_t expected_n,
                                        const void *desired,
                                        size_t desired_n,
                                        struct muster_bytes *ret,
                                        struct muster_error *err);
/* Are all of the keys there at this moment? Does not wait. */
MUSTER_API int muster_store_check(muster_store *s,
                                  const char *const *keys,
                                  size_t key_count,
                                  bool *ret,
                                  struct muster_error *err);
/* -ETIMEDOUT names the first of those that are missing. */
MUSTER_API int muster_store_wait(muster_store *s,
                                 const char *const *keys,
                                 size_t key_count,
                                 int64_t timeout_ns,
                                 struct muster_error *err);
/* ret_was_there may be NULL. */
MUSTER_API int muster_store_delete(muster_store *s,
                                   const char *key,
                                   bool *ret_was_there,
                                   struct muster_error *err);
/* Of the whole store, whatever the prefix. */
MUSTER_API int muster_store_num_keys(muster_store *s, int64_t *ret, struct muster_error *err);
/* The keys under this handle's prefix, without it, in no order: *ret_n of them, each and the array
 * freed by muster_store_free_keys(). */
MUSTER_API int muster_store_list_keys(muster_store *s,
                                      struct muster_bytes **ret,
                                      size_t *ret_n,
                                      struct muster_error *err);
MUSTER_API void muster_store_free_keys(struct muster_bytes *keys, size_t n);
/* In order; up to 4096 at once, more in several requests. */
MUSTER_API int muster_store_multi_set(muster_store *s,
                                      const char *const *keys,
                                      const struct muster_bytes *values,
                                      size_t count,
                                      struct muster_error *err);
/* Waits for all. `ret` has room for `count`; each is freed by the caller. On failure none is left.
 */
MUSTER_API int muster_store_multi_get(muster_store *s,
                                      const char *const *keys,
                                      size_t count,
                                      struct muster_bytes *ret,
                                      struct muster_error *err);
MUSTER_API int muster_store_queue_push(
    muster_store *s, const char *key, const void *p, size_t n, struct muster_error *err);
/* The oldest. block: waits for one, -ETIMEDOUT; else -EAGAIN when there is none. */
MUSTER_API int muster_store_queue_pop(muster_store *s,
                                      const char *key,
                                      bool block,
                                      struct muster_bytes *ret,
                                      struct muster_error *err);
MUSTER_API int
muster_store_queue_len(muster_store *s, const char *key, int64_t *ret, struct muster_error *err);
MUSTER_API int muster_store_ping(muster_store *s, struct muster_error *err);

/* Wait until `world` ranks have come here with this name. Names who is missing when time is over:
 * -ETIMEDOUT; coming again with the same name goes on with the same barrier. A name is good for one
 * barrier: one that all have reached lets everybody through. */
MUSTER_API int muster_store_barrier(muster_store *s,
                                    const char *name,
                                    uint32_t rank,
                                    uint32_t world,
                                    int64_t timeout_ns,
                                    struct muster_error *err);

#ifdef __cplusplus
}
#endif
#endif
