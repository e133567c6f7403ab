/* PMI-1, the line between mpiexec's proxy and its processes: one "cmd=… key=value …" line there,
 * one back. Rank 0 puts where it is, all meet at the barrier, and all get it. Source: MPICH's
 * description of the wire protocol, version 1.1; tried with Hydra 4.0.2. */
#include "agent/around.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/str.h"

#define LINE_BYTES 2048 /* A value has at most 1,024, a name 256. */
#define KEY "muster-rdzv"

struct line {
    int fd;
    int64_t deadline_ns;
    char text[LINE_BYTES];
    struct mu_err *err;
};

static int lost(const struct line *l, int code, const char *what)
{
    return mu_err_set(l->err, code,
                      "PMI_FD=%d: %s: %s. Give --rdzv=HOST, the first node's name, to all", l->fd,
                      what, strerror(-code));
}

/* Wait for room or bytes. */
static int wait_for(const struct line *l, short events)
{
    for (;;) {
        int64_t left_ns = l->deadline_ns - mu_now_ns();
        struct pollfd p = {.fd = l->fd, .events = events};
        int ms = left_ns > 0 ? (int)(left_ns / MU_NS_PER_MS) + 1 : 0;
        int n = poll(&p, 1, ms);
        if (n > 0)
            return 0;
        if (n == 0)
            return -ETIMEDOUT;
        if (errno != EINTR)
            return -errno;
    }
}

static int put_line(const struct line *l)
{
    size_t n = strlen(l->text);
    for (size_t at = 0; at < n;) {
        int r = wait_for(l, POLLOUT);
        ssize_t wrote = r < 0 ? r : send(l->fd, l->text + at, n - at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (r < 0)
            return r;
        if (wrote < 0 && errno != EAGAIN && errno != EINTR)
            return -errno;
        at += wrote > 0 ? (size_t)wrote : 0;
    }
    return 0;
}

static int take_line(struct line *l)
{
    for (size_t n = 0; n < sizeof l->text - 1;) {
        int r = wait_for(l, POLLIN);
        ssize_t got = r < 0 ? r : recv(l->fd, l->text + n, sizeof l->text - 1 - n, MSG_DONTWAIT);
        if (r < 0)
            return r;
        if (got == 0)
            return -EPIPE;
        if (got < 0 && errno != EAGAIN && errno != EINTR)
            return -errno;
        n += got > 0 ? (size_t)got : 0;
        l->text[n] = '\0';
        if (n > 0 && l->text[n - 1] == '\n') {
            l->text[n - 1] = '\0';
            return 0;
        }
    }
    return -EMSGSIZE;
}

/* The value of `key` in the answer, or false. */
static bool value_of(const struct line *l, const char *key, char *ret, size_t cap)
{
    size_t n = strlen(key);
    for (const char *p = l->text; (p = strstr(p, key)) != NULL; p += n) {
        if ((p > l->text && p[-1] != ' ') || p[n] != '=')
            continue;
        size_t len = strcspn(p + n + 1, " ");
        if (len >= cap)
            return false;
        memcpy(ret, p + n + 1, len);
        ret[len] = '\0';
        return true;
    }
    return false;
}

/* Say l->text; the answer, which is to begin with "cmd=ANSWER" and report no failure, takes its
 * place. */
static int ask(struct line *l, const char *answer)
{
    char cmd[32] = "";
    char rc[16] = "0";
    int r = put_line(l);
    if (r == 0)
        r = take_line(l);
    if (r < 0)
        return lost(l, r, answer);
    (void)value_of(l, "rc", rc, sizeof rc);
    if (value_of(l, "cmd", cmd, sizeof cmd) && strcmp(cmd, answer) == 0 && strcmp(rc, "0") == 0)
        return 0;
    return lost(l, -EPROTO, answer);
}

static int say(struct line *l, const char *answer, const char *command)
{
    (void)snprintf(l->text, sizeof l->text, "%s\n", command);
    return ask(l, answer);
}

static int put_own(struct line *l, const char *job, const char *own)
{
    (void)snprintf(l->text, sizeof l->text, "cmd=put kvsname=%s key=" KEY " value=%s\n", job, own);
    return ask(l, "put_result");
}

static int
meet(struct line *l, bool is_first, const char *own, char *ret_shared, char *job, size_t job_cap)
{
    int r = say(l, "response_to_init", "cmd=init pmi_version=1 pmi_subversion=1");
    if (r == 0)
        r = say(l, "my_kvsname", "cmd=get_my_kvsname");
    if (r == 0 && !value_of(l, "kvsname", job, job_cap))
        r = lost(l, -EPROTO, "kvsname");
    if (r == 0 && is_first)
        r = put_own(l, job, own);
    if (r == 0)
        r = say(l, "barrier_out", "cmd=barrier_in"); /* Until all ranks are there. */
    if (r < 0)
        return r;
    (void)snprintf(l->text, sizeof l->text, "cmd=get kvsname=%s key=" KEY "\n", job);
    r = ask(l, "get_result");
    if (r == 0 && !value_of(l, "value", ret_shared, MU_HOST_BYTES))
        r = lost(l, -EPROTO, "value");
    return r;
}

int around_share(
    int fd, bool is_first, const char *own, char *ret_shared, char *ret_job, struct mu_err *err)
{
    struct line l = {.fd = fd, .deadline_ns = mu_now_ns() + MU_JOIN_TIMEOUT_NS, .err = err};
    char job[SURROUNDINGS_ID_BYTES];
    char shared[MU_HOST_BYTES];
    int r = meet(&l, is_first, own, shared, job, sizeof job);
    if (r == 0)
        r = say(&l, "finalize_ack", "cmd=finalize"); /* Else our end would be the whole job's. */
    if (r < 0)
        return r;
    (void)close(fd);                                     /* Said goodbye. */
    (void)mu_strcopy(ret_shared, MU_HOST_BYTES, shared); /* Same sizes. */
    (void)mu_strcopy(ret_job, SURROUNDINGS_ID_BYTES, job);
    return 0;
}
