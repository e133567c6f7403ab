/* A store served from inside the process, by one thread of its own, for jobs whose launcher serves
 * none. What keys hold is rendezvous/store's; here are sockets and the thread. */
#ifndef MUSTER_SDK_STORE_SERVE_H
#define MUSTER_SDK_STORE_SERVE_H

#include "worker-sdk/src/core/sdk.h"

/* host: a numeric address, or "" for every address. port 0: any; ret_port says which. The thread
 * takes no signals. */
int sdk_serve_start(const char *host,
                    uint16_t port,
                    struct sdk_serve **ret,
                    uint16_t *ret_port,
                    struct muster_error *err);

/* Wait until nobody needs the store any more: each rank from 1 on has set "gone/<rank>" under
 * `prefix`; or has set "here/<rank>" before, and no connection is left. The caller has closed its
 * own. -ETIMEDOUT: some rank has not, and is named. */
int sdk_serve_drain(struct sdk_serve *v,
                    const char *prefix,
                    uint32_t world,
                    int64_t deadline_ns,
                    struct muster_error *err);

/* Ends the thread, every connection and the store. Takes NULL. */
void sdk_serve_stop(struct sdk_serve *v);

#endif
