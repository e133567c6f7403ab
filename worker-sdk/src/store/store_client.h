/* What else of the library asks of the store's client. */
#ifndef MUSTER_SDK_STORE_CLIENT_H
#define MUSTER_SDK_STORE_CLIENT_H

#include <muster/store.h>

#include "base/clock.h"

/* Beyond the deadline of something that takes many calls, for asking who is late and saying why it
 * ends. */
#define STORE_WORDS_NS (500 * MU_NS_PER_MS)

/* From now on no call lasts beyond until_ns, whatever its own time-out, nor beyond what held
 * before. Returns what held before, for store_unlimit(). Takes NULL. */
int64_t store_limit(muster_store *s, int64_t until_ns);
void store_unlimit(muster_store *s, int64_t former_ns);
/* What holds now; MU_NEVER: nothing, or there is no store. */
int64_t store_limit_ns(const muster_store *s);

/* Which of the keys are there? One round trip for thousands. */
int store_check_each(muster_store *s,
                     const char *const *keys,
                     size_t count,
                     int64_t deadline_ns,
                     bool *ret,
                     struct muster_error *err);

/* As muster_store_wait(), with an absolute deadline. `what`: for sentences. */
int store_wait_until(muster_store *s,
                     const char *what,
                     const char *const *keys,
                     size_t count,
                     int64_t deadline_ns,
                     struct muster_error *err);

#endif
