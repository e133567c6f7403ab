/* The token that proves to a server that this node is one of its own: where it is, and where there
 * has to be one. What runs jobs for whoever asks is not offered to a server that anybody on the
 * network may speak to. */
#ifndef MUSTER_AGENT_SERVICE_TRUST_H
#define MUSTER_AGENT_SERVICE_TRUST_H

#include <stddef.h>

#include "base/err.h"
#include "base/parse.h"

/* given: --token-file, or NULL; else $CREDENTIALS_DIRECTORY/muster-token. `ret`: its absolute path,
 * "" when there is none. Returns 0; or a negative errno with a sentence: it cannot be read, or
 * there is none and the server is not on this host's loopback. */
int trust_find(
    const char *given, const struct mu_endpoint *server, char *ret, size_t cap, struct mu_err *err);

#endif
