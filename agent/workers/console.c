/* Writing to the reader's pace; see console.h. */
#include "agent/workers/console.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/workers/lines.h"
#include "base/mem.h"

/* The same pipe or terminal under a description of its own. -1: it cannot be. */
static int open_anew(int fd)
{
    char path[40];
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    return open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

void console_init(struct console *c, int fd)
{
    struct stat st;
    *c = (struct console){.fd = fd};
    mu_buf_init(&c->out, mu_mem_default());
    if (fstat(fd, &st) < 0) {
        c->gone = true;
        return;
    }
    /* /dev/null and its like are always ready too. */
    c->file = S_ISREG(st.st_mode) || (S_ISCHR(st.st_mode) && isatty(fd) == 0);
    c->socket = S_ISSOCK(st.st_mode);
    if (c->file || c->socket)
        return;
    int anew = open_anew(fd);
    c->owned = anew >= 0;
    c->may_block = anew < 0;
    if (anew >= 0)
        c->fd = anew;
}

void console_fini(struct console *c)
{
    if (c->owned)
        (void)close(c->fd);
    mu_buf_fini(&c->out);
}

size_t console_pending(const struct console *c)
{
    return c->out.n - c->sent;
}

/* What to write at once. A line that is longer than a pipe takes in one piece goes alone. */
static size_t portion(const struct console *c)
{
    const char *p = c->out.p + c->sent;
    size_t n = console_pending(c);
    if (c->file || n <= PIPE_BUF)
        return n;
    const char *last = memrchr(p, '\n', PIPE_BUF);
    if (last != NULL)
        return (size_t)(last - p) + 1;
    if (c->may_block)
        return PIPE_BUF;
    const char *feed = memchr(p, '\n', n);
    return feed == NULL ? n : (size_t)(feed - p) + 1;
}

static bool is_ready(const struct console *c)
{
    struct pollfd p = {.fd = c->fd, .events = POLLOUT};
    return !c->may_block || poll(&p, 1, 0) == 1;
}

static ssize_t put(const struct console *c, size_t n)
{
    if (c->socket)
        return send(c->fd, c->out.p + c->sent, n, MSG_DONTWAIT | MSG_NOSIGNAL);
    return write(c->fd, c->out.p + c->sent, n);
}

static void drop(struct console *c)
{
    if (!c->gone || c->given_up) /* A reader that has seen enough lost nothing. */
        c->lost_lines += lines_count(c->out.p + c->sent, console_pending(c));
    mu_buf_reset(&c->out);
    c->sent = 0;
}

static void failed(struct console *c, int error)
{
    if (error == EINTR)
        return;
    if (error == EAGAIN || error == EWOULDBLOCK || error == ENOBUFS) {
        c->blocked = true;
        return;
    }
    bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
    c->gone = !full;
    if (full)
        c->lost_errno = error;
    drop(c);
}

void console_flush(struct console *c)
{
    if (c->gone)
        drop(c);
    c->blocked = false;
    while (console_pending(c) > 0 && !c->blocked) {
        if (!is_ready(c)) {
            c->blocked = true;
            break;
        }
        ssize_t n = put(c, portion(c));
        if (n < 0) {
            failed(c, errno);
            continue;
        }
        c->sent += (size_t)n;
        c->sent_total += (uint64_t)n;
    }
    if (console_pending(c) == 0)
        mu_buf_reset(&c->out);
    else if (c->sent > c->out.n / 2) /* A reader that never quite catches up: no growth for ever. */
        mu_buf_consume(&c->out, c->sent);
    else
        return;
    c->sent = 0;
}
