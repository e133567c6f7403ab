/* What NVIDIA's driver says in the kernel's log when a GPU fails: "NVRM: Xid (PCI:0000:3b:00): 79,
 * pid=77, name=python, GPU has fallen off the bus." Pure. Source: NVIDIA's "XID Errors", and lines
 * of drivers 384 to 580: older ones name no pid. */
#ifndef MUSTER_AGENT_XID_LINE_H
#define MUSTER_AGENT_XID_LINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define XID_LINES 8 /* Remembered; a failing GPU says more than one. */

struct xid_line {
    int32_t number;
    int32_t pid;    /* 0: not said. */
    int64_t at_ns;  /* When it was read. */
    char gpu[32];   /* "0000:3b:00" */
    char text[120]; /* What follows; may be cut. */
};

/* One record of /dev/kmsg ("PRIORITY,NUMBER,TIME,FLAGS;TEXT\n ..."). False: it is another's. */
bool xid_parse(const char *record, size_t n, struct xid_line *ret);

struct xid_lines {
    struct xid_line v[XID_LINES];
    uint32_t count; /* Of all that came: the last XID_LINES are there. */
};
void xid_add(struct xid_lines *l, const struct xid_line *line, int64_t now_ns);

/* The last one that names `pid`, else the last of the seconds before now; NULL: none. */
const struct xid_line *xid_find(const struct xid_lines *l, int32_t pid, int64_t now_ns);

/* "Xid 79 on GPU 0000:3b:00: GPU has fallen off the bus." */
void xid_words(const struct xid_line *line, int32_t pid, char *ret, size_t cap);

#endif
