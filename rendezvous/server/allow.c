/* Who may do what over HTTP; the one place that decides. Whoever reaches the port may read. To
 * change something one must be on this very machine, as one who could signal the processes is; the
 * Host field must name it as well, or a web page that a browser here has open could do it under a
 * name of its own that leads to 127.0.0.1. */
#include <string.h>
#include <strings.h>

#include "base/addr.h"
#include "rendezvous/server/internal.h"

/* "localhost:29500", "127.0.0.1", "[::1]:8080" */
static bool is_loopback_name(const char *host)
{
    char name[MU_ADDR_BYTES];
    bool v6 = host[0] == '[';
    size_t n = v6 ? strcspn(++host, "]") : strcspn(host, ":");
    const char *rest = v6 ? host + n + (host[n] == ']') : host + n;
    bool has_port = rest[0] == ':' && strspn(rest + 1, "0123456789") == strlen(rest + 1);
    if (n == 0 || n >= sizeof name || (v6 && host[n] != ']') || (rest[0] != '\0' && !has_port))
        return false;
    memcpy(name, host, n);
    name[n] = '\0';
    struct mu_addr numeric;
    return strcasecmp(name, "localhost") == 0 ||
           (mu_addr_parse(name, 0, &numeric) == 0 && mu_addr_is_loopback(name));
}

const char *srv_forbids(const struct srv_http_request *q, enum srv_deed deed)
{
    switch (deed) {
    case SRV_READS:
    case SRV_READS_OUTPUT:
        return NULL;
    case SRV_CHANGES:
        if (!mu_addr_is_loopback(q->peer))
            return "only a process on the server's own machine may ask this: run muster there";
        if (!is_loopback_name(q->host))
            return "the Host field must name this machine (localhost, 127.0.0.1 or [::1])";
        return NULL;
    }
    return "not known";
}
