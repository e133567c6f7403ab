/* What else of the library asks of the store's client. */
#ifndef MUSTER_SDK_STORE_CLIENT_H
#define MUSTER_SDK_STORE_CLIENT_H

#include <muster/store.h>

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
