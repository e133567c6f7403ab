/* Follows the kernel's log for lines of NVIDIA's driver (xid_line.h), where there is one and the
 * log may be read. */
#ifndef MUSTER_AGENT_XID_H
#define MUSTER_AGENT_XID_H

#include <uv.h>

#include "agent/workers/xid_line.h"

struct xid {
    uv_timer_t timer; /* Does not keep the loop alive. */
    int fd;           /* /dev/kmsg, at its end; -1: not to be read. */
    struct xid_lines lines;
};

void xid_init(struct xid *x, uv_loop_t *loop);
/* Workers were started: follow from here, when it was not begun before. */
void xid_begin(struct xid *x);
/* Why the worker `pid` may have failed just now; "" where nothing is known. */
void xid_explain(struct xid *x, int32_t pid, char *ret, size_t cap);
void xid_close(struct xid *x);

#endif
