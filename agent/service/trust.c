/* Finding the token; see trust.h. */
#include "agent/service/trust.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/addr.h"
#include "base/path.h"
#include "base/token.h"

static bool is_loopback(const char *host)
{
    return strcmp(host, "localhost") == 0 || mu_addr_is_loopback(host);
}

int trust_find(
    const char *given, const struct mu_endpoint *server, char *ret, size_t cap, struct mu_err *err)
{
    char place[PATH_MAX];
    int r = mu_token_place_daemon(given, getenv("CREDENTIALS_DIRECTORY"), place, sizeof place, err);
    ret[0] = '\0';
    if (r < 0)
        return r;
    if (r > 0 && mu_path_absolute(place, ret, cap, err) < 0) /* Job agents start elsewhere. */
        return mu_err_wrap(err, "--token-file");
    if (given != NULL && access(ret, R_OK) < 0)
        return mu_err_set(err, -errno, "--token-file: '%.90s' cannot be read: %s%s", given,
                          strerror(errno), errno == ENOENT ? MU_TOKEN_REMEDY : "");
    if (r > 0 || is_loopback(server->host))
        return 0;
    return mu_err_set(
        err, -EPERM,
        "--service at %.80s, which is not this host's loopback, needs a token: copy the server's "
        "token file here and give it with --token-file (muster token new makes a cluster's first "
        "one)",
        server->host);
}
