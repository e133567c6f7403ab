/* The kernel's log; see xid.h. */
#include "agent/workers/xid.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/clock.h"

#define LOOK_MS 1000    /* So that it is known about when a line came: its own clock drifts. */
#define RECORDS_MAX 256 /* Of one look: who fills the log does not hold up the loop. */
#define RECORD_BYTES 2048

static void look(struct xid *x)
{
    char record[RECORD_BYTES];
    struct xid_line line;
    int64_t now_ns = mu_now_ns();
    for (int i = 0; i < RECORDS_MAX && x->fd >= 0; i++) {
        ssize_t n = read(x->fd, record, sizeof record);
        if (n < 0 && (errno == EPIPE || errno == EINVAL || errno == EINTR))
            continue; /* Overwritten before it was read, or too long to be one of ours. */
        if (n <= 0)
            return;
        if (xid_parse(record, (size_t)n, &line))
            xid_add(&x->lines, &line, now_ns);
    }
}

static void on_look(uv_timer_t *timer)
{
    look(timer->data);
}

void xid_init(struct xid *x, uv_loop_t *loop)
{
    *x = (struct xid){.fd = -1};
    (void)uv_timer_init(loop, &x->timer); /* Cannot fail. */
    x->timer.data = x;
    uv_unref((uv_handle_t *)&x->timer);
}

void xid_begin(struct xid *x)
{
    if (x->fd >= 0 || access("/proc/driver/nvidia/version", F_OK) < 0)
        return;
    x->fd = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (x->fd < 0)
        return; /* It is not for us to read: then nothing is known. */
    if (lseek(x->fd, 0, SEEK_END) < 0) {
        (void)close(x->fd);
        x->fd = -1;
        return;
    }
    (void)uv_timer_start(&x->timer, on_look, LOOK_MS, LOOK_MS);
}

void xid_explain(struct xid *x, int32_t pid, char *ret, size_t cap)
{
    ret[0] = '\0';
    look(x);
    const struct xid_line *line = xid_find(&x->lines, pid, mu_now_ns());
    if (line != NULL)
        xid_words(line, pid, ret, cap);
}

void xid_close(struct xid *x)
{
    uv_close((uv_handle_t *)&x->timer, NULL);
    if (x->fd >= 0)
        (void)close(x->fd);
    x->fd = -1;
}
