/* Socket addresses as text and back; numeric only: no name is ever looked up here. */
#ifndef MUSTER_BASE_ADDR_H
#define MUSTER_BASE_ADDR_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/err.h"
#include "base/limits.h"

struct mu_addr {
    struct sockaddr_storage ss;
    socklen_t len;
};

/* "10.0.0.1", "::1", "fe80::1%eth0" and a port. Returns 0 or -EINVAL (no numeric address: nothing
 * is said in err). */
int mu_addr_parse(const char *host, uint16_t port, struct mu_addr *ret);

/* The numeric host; a v4-mapped IPv6 address shows as IPv4. `ret` has MU_ADDR_BYTES. Returns ret.
 */
char *mu_addr_host(const struct sockaddr *sa, char *ret);
uint16_t mu_addr_port(const struct sockaddr *sa);
bool mu_addr_is_loopback(const char *numeric_host);
/* fe80::…: it means something on one link alone, and with the name of this host's interface. */
bool mu_addr_is_link_local(const char *numeric_host);

/* True when `numeric_host` is an address of an interface of this machine (loopback included). */
bool mu_addr_is_local(const char *numeric_host);

/* First global address of an interface that is up, IPv4 before IPv6; "" when there is none. `ret`
 * has MU_ADDR_BYTES. */
void mu_addr_primary(char *ret);

/* A bound and listening TCP socket, close-on-exec, non-blocking, TCP_NODELAY and keepalive
 * inherited by what it accepts. host: numeric; "" or "*" means every address, IPv6 with IPv4
 * mapped, or IPv4 alone where there is no IPv6. ret_port: the port it got. Returns the descriptor,
 * or a negative errno with a sentence (-EADDRINUSE: it names who has it where that may be read). */
int mu_listen(const char *host, uint16_t port, int backlog, uint16_t *ret_port, struct mu_err *err);

/* Of a connection with little under way at a time, or a listener for such: what is lost is sent
 * again at even intervals. With ever longer ones, as is usual, a network that was away for a second
 * is silent for two or three. A wish: all works without it. */
void mu_resend_evenly(int fd);

#endif
