/* Handing out ids that a collective library wants before it can start.
 *
 * NCCL's ranks meet at an id: some rank makes it (a thread that listens then lives in that
 * process), all get it, and it is good for one start. muster_id_exchange() does this for any such
 * library:
 *
 *   1. every rank leaves an entered mark with its host, and what must be equal everywhere;
 *   2. rank 0 waits for all marks, compares them, and only then makes the id, so that no
 *      listener is left over from a start that does not come about;
 *   3. the id goes to all through the store, under the round's prefix and the number of this start,
 *      so that an id of a round that is over, or of an earlier start, is never read.
 *
 * Whoever's time is over first ends the start for all, with one sentence that names the ranks which
 * are missing and their hosts. Further starts under the same name begin afresh.
 *
 * After the exchange the library starts by itself. muster_id_left() then leaves the second mark; a
 * start that hangs is told by muster_id_missing() which ranks have not come out of it. */
#ifndef MUSTER_ID_H
#define MUSTER_ID_H

#include <muster/muster.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Makes one id of id_bytes. Called when all ranks are there, on the ranks muster_id_maker_of()
 * names. Returns 0, or a negative errno with a sentence, which all ranks then get. */
typedef int (*muster_id_maker)(void *arg, void *ret_id, size_t id_bytes, struct muster_error *err);

struct muster_id_options {
    size_t size;
    const char *name;  /* What starts: "nccl/world". 1 to 64 bytes, the same on all ranks. */
    const char *same;  /* Must be the same text on all ranks ("NCCL 2.28.9"); one line, or "". */
    size_t id_bytes;   /* Of one id, at most 4096. */
    uint32_t id_count; /* 1 to the world's size; the same on all ranks. */
    muster_id_maker maker; /* Called in this thread. */
    void *arg;
    int64_t timeout_ns; /* Of the whole exchange; 5 minutes. */
};
#define MUSTER_ID_OPTIONS_INIT                                                                     \
    {                                                                                              \
        sizeof(struct muster_id_options), NULL, "", 0, 1, NULL, NULL, INT64_C(300000000000)        \
    }

/* Which rank makes id `index`: the first of the index-th of id_count blocks of ranks, of which the
 * first world % id_count are longer by one. So ncclCommInitRankScalable() divides them too, and
 * each id is made on a rank that meets there. */
MUSTER_API uint32_t muster_id_maker_of(uint32_t index, uint32_t id_count, uint32_t world);

/* Collective. `ids` has room for id_count * id_bytes and is written on success; `ret_number` is the
 * number of this start, for the calls below.
 *
 * Returns 0, or
 *     -ETIMEDOUT     ranks are missing: they and their hosts are named, to all ranks that came;
 *     -EPROTO        ranks differ in `same`, id_count or id_bytes: two of them are named;
 *     -EINVAL        options that cannot be right, on this rank alone;
 *     what a maker returned, with its rank and sentence; or what the store answered. */
MUSTER_API int muster_id_exchange(muster *m,
                                  const struct muster_id_options *options,
                                  void *ids,
                                  uint64_t *ret_number,
                                  struct muster_error *err);

/* Instead of muster_id_exchange(), on a rank that cannot take part: ends the start for all ranks,
 * with this rank's reason. */
MUSTER_API int muster_id_refuse(muster *m,
                                const char *name,
                                const struct muster_error *why,
                                struct muster_error *err);

/* This rank's start with the ids is complete. */
MUSTER_API int
muster_id_left(muster *m, const char *name, uint64_t number, struct muster_error *err);
/* This rank's start failed: `why`, with code and rank, is what muster_id_check() says to the
 * others. The first to fail is the cause. */
MUSTER_API int muster_id_failed(muster *m,
                                const char *name,
                                uint64_t number,
                                const struct muster_error *why,
                                struct muster_error *err);
/* 0: nobody has said that it failed; else the first failure's code and sentence. Does not wait. */
MUSTER_API int
muster_id_check(muster *m, const char *name, uint64_t number, struct muster_error *err);
/* 0: all ranks have left; -ETIMEDOUT: names those which have not, and their hosts. Does not wait.
 */
MUSTER_API int
muster_id_missing(muster *m, const char *name, uint64_t number, struct muster_error *err);

#ifdef __cplusplus
}
#endif
#endif
