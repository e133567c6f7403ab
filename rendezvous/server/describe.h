/* What docs/ takes from the server's tables, for muster-describe. */
#ifndef MUSTER_RENDEZVOUS_SERVER_DESCRIBE_H
#define MUSTER_RENDEZVOUS_SERVER_DESCRIBE_H

#include "base/str.h"

/* Who may do what, as a table in Markdown. */
void srv_allow_describe(struct mu_buf *out);

#endif
