/* The service manager that started us, where there is one: telling it how we are, sockets it hands
 * over, its watchdog, its journal. Source: sd_notify(3), sd_listen_fds(3), sd_watchdog_enabled(3),
 * systemd's "Native Journal Protocol": datagrams and variables that are promised to stay. Not for
 * pure rooms. */
#ifndef MUSTER_BASE_MANAGER_H
#define MUSTER_BASE_MANAGER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"

/* Send assignments, one a line, as in "READY=1\nSTATUS=listening". Without $NOTIFY_SOCKET, or when
 * nobody reads, nothing happens. Never blocks. */
void mu_manager_notify(const char *assignments);

/* The one listening stream socket that was handed over (socket activation). Returns its descriptor,
 * now close-on-exec and the caller's; -ENOENT without a sentence when none was; another negative
 * errno with one when what was handed over is not one listening TCP socket. The variables are gone
 * afterwards, so that no child takes them for its own. */
int mu_manager_take_socket(struct mu_err *err);

/* How often "WATCHDOG=1" is wanted, half the time the manager allows; 0: not at all. */
int64_t mu_manager_watchdog_ns(void);

/* Stderr is the journal's own stream ($JOURNAL_STREAM names it, and a child whose stderr is
 * another's is told apart). */
bool mu_journal_is_stderr(void);

/* One entry, `fields` as the protocol has them. Returns 0, or a negative errno: then it belongs on
 * stderr. */
int mu_journal_send(const struct mu_buf *fields);
/* Append "NAME=value\n". A newline in the value must not be: log lines have none. */
void mu_journal_field(struct mu_buf *fields, const char *name, struct mu_str value);

#endif
