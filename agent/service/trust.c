/* Finding the token; see trust.h. */
#include "agent/service/trust.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/addr.h"
#include "base/str.h"

static bool is_loopback(const char *host)
{
    return strcmp(host, "localhost") == 0 || mu_addr_is_loopback(host);
}

int trust_find(
    const char *given, const struct mu_endpoint *server, char *ret, size_t cap, struct mu_err *err)
{
    const char *folder = getenv("CREDENTIALS_DIRECTORY");
    int n = 0;
    ret[0] = '\0';
    if (given != NULL)
        n = snprintf(ret, cap, "%s", given);
    else if (folder != NULL)
        n = snprintf(ret, cap, "%s/muster-token", folder);
    if (n < 0 || (size_t)n >= cap)
        return mu_err_set(err, -ENAMETOOLONG, "--token-file: the path is too long");
    if (ret[0] != '\0' && access(ret, R_OK) == 0)
        return 0;
    if (given != NULL)
        return mu_err_set(err, -errno, "--token-file: '%.120s' cannot be read: %s", given,
                          strerror(errno));
    ret[0] = '\0';
    if (is_loopback(server->host))
        return 0;
    return mu_err_set(
        err, -EPERM,
        "--service at %.100s, which is not this host's loopback, needs a token: make one with "
        "'muster token new' and give it with --token-file",
        server->host);
}
