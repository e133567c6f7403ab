/* Finding the token; see trust.h. */
#include "agent/service/trust.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/addr.h"
#include "base/path.h"
#include "base/str.h"
#include "base/token.h"

static bool is_loopback(const char *host)
{
    return strcmp(host, "localhost") == 0 || mu_addr_is_loopback(host);
}

int trust_find(
    const char *given, const struct mu_endpoint *server, char *ret, size_t cap, struct mu_err *err)
{
    const char *folder = getenv("CREDENTIALS_DIRECTORY");
    int r = 0;
    ret[0] = '\0';
    if (given != NULL)
        r = mu_path_absolute(given, ret, cap, err); /* Job agents start in folders of their own. */
    else if (folder != NULL && (size_t)snprintf(ret, cap, "%s/" MU_TOKEN_CREDENTIAL, folder) >= cap)
        r = mu_err_set(err, -ENAMETOOLONG, "$CREDENTIALS_DIRECTORY: %s", strerror(ENAMETOOLONG));
    if (r < 0)
        return mu_err_wrap(err, "--token-file");
    if (ret[0] != '\0' && access(ret, R_OK) == 0)
        return 0;
    if (given != NULL)
        return mu_err_set(err, -errno, "--token-file: '%.90s' cannot be read: %s%s", given,
                          strerror(errno), errno == ENOENT ? MU_TOKEN_REMEDY : "");
    ret[0] = '\0';
    if (is_loopback(server->host))
        return 0;
    return mu_err_set(
        err, -EPERM,
        "--service at %.80s, which is not this host's loopback, needs a token: copy the server's "
        "token file here and give it with --token-file (muster token new makes a cluster's first "
        "one)",
        server->host);
}
