/* Inside: the marks that ranks leave in the store while something starts (muster/id.h). */
#ifndef MUSTER_SDK_ID_H
#define MUSTER_SDK_ID_H

#include <muster/id.h>
#include <muster/store.h>

#include "base/str.h"

#define ID_NAME_BYTES_MAX 64
#define ID_BYTES_MAX 4096
#define ID_KEY_BYTES 160

/* One start: where its marks lie. Borrows name. */
struct id_start {
    muster_store *store;
    const struct muster_env *env;
    const char *name;
    uint64_t number;
};

/* "id/<name>/<number>/<what>/<index>" into ret, which has room for ID_KEY_BYTES. */
void id_key(const struct id_start *s, const char *what, uint32_t index, char *ret);

/* Keys what/first .. what/first+count-1. `list` owns them: id_keys_fini(). 0 or -ENOMEM. */
struct id_keys {
    char *text;
    const char **list;
    size_t count;
};
int id_keys_init(struct id_keys *k,
                 const struct id_start *s,
                 const char *what,
                 uint32_t first,
                 uint32_t count,
                 struct muster_error *err);
void id_keys_fini(struct id_keys *k);

/* An entered mark, taken apart. Points into the bytes. */
struct id_mark {
    const char *same;
    const char *shape; /* Count and size of the ids. */
    const char *host;
    uint32_t node;
};
/* Writes this rank's mark. */
int id_mark_set(const struct id_start *s,
                const struct muster_id_options *o,
                struct muster_error *err);
/* Takes a mark apart in place. False: no mark of ours. */
bool id_mark_parse(char *text, struct id_mark *ret);

/* Appends " on n2", from the rank's own mark or from that of a rank of the same node; or its node.
 */
void id_add_place(const struct id_start *s, uint32_t rank, struct mu_buf *text);

/* Appends "rank 3 on n2, rank 5 (node 2)" of the ranks whose mark `what` is missing, at most `max`
 * of them, "and more" if there are. *ret_count: how many were named. *ret_first: the first. */
int id_name_missing(const struct id_start *s,
                    const char *what,
                    size_t max,
                    struct mu_buf *text,
                    size_t *ret_count,
                    uint32_t *ret_first,
                    struct muster_error *err);

/* One key that holds what all ranks believe of a start: "+" and bytes, or "-<errno> sentence". The
 * first to write it decides; `ret` is what it holds then. */
int id_say(const struct id_start *s,
           const char *what,
           const char *p,
           size_t n,
           struct muster_bytes *ret,
           struct muster_error *err);
int id_say_failed(const struct id_start *s,
                  const char *what,
                  int code,
                  const char *sentence,
                  struct muster_bytes *ret,
                  struct muster_error *err);
/* 0: it begins with "+"; else its code and sentence. */
int id_heard(const struct muster_bytes *said, struct muster_error *err);

#endif
