/* PMI-1, as far as one text needs it; see pmi.h. */
#include "worker-sdk/src/core/pmi.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/str.h"

/* PMI-1 allows no longer line. */
#define LINE_BYTES 1024
#define NAME_BYTES 256

struct pmi {
    int fd;
    int64_t deadline_ns;
    struct muster_error *err;
    char line[LINE_BYTES]; /* The answer at hand, without its newline. */
};

/* --- lines --- */

static int say(struct pmi *p, const char *text)
{
    size_t n = strlen(text);
    while (n > 0) {
        ssize_t m = send(p->fd, text, n, MSG_NOSIGNAL);
        if (m < 0 && errno == EINTR)
            continue;
        if (m < 0)
            return sdk_error(p->err, -errno,
                             "PMI: mpiexec does not listen any more (%s): a process under mpiexec "
                             "opens one handle in its life, or sets MASTER_ADDR and MASTER_PORT",
                             strerror(errno));
        text += m;
        n -= (size_t)m;
    }
    return 0;
}

/* Byte by byte: nothing behind the line may be taken, it may be another's (MPI in this process). */
static int hear(struct pmi *p, const char *what)
{
    size_t n = 0;
    while (n < sizeof p->line - 1) {
        struct pollfd f = {.fd = p->fd, .events = POLLIN};
        int ready = poll(&f, 1, sdk_poll_ms(p->deadline_ns));
        if (ready == 0)
            return sdk_error(p->err, -ETIMEDOUT, "PMI: time is over waiting for %s", what);
        ssize_t m = ready < 0 ? -1 : read(p->fd, p->line + n, 1);
        if (m < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (m < 0)
            return sdk_error(p->err, -errno, "PMI: %s: %s", what, strerror(errno));
        if (m == 0)
            return sdk_error(p->err, -ECONNRESET, "PMI: mpiexec ended while we waited for %s",
                             what);
        if (p->line[n] == '\n') {
            p->line[n] = '\0';
            return 0;
        }
        n++;
    }
    return sdk_error(p->err, -EPROTO, "PMI: a line of %s is over %d bytes", what, LINE_BYTES);
}

/* The value of a word "name=value" of the line. False: not there, or too long. */
static bool word(const char *line, const char *name, char *ret, size_t bytes)
{
    size_t n = strlen(name);
    for (const char *p = line; *p != '\0';) {
        size_t all = strcspn(p, " ");
        if (all > n && strncmp(p, name, n) == 0 && p[n] == '=') {
            if (all - n - 1 >= bytes)
                return false;
            memcpy(ret, p + n + 1, all - n - 1);
            ret[all - n - 1] = '\0';
            return true;
        }
        p += all;
        p += strspn(p, " ");
    }
    return false;
}

/* One request, and an answer of the kind that is due. */
static int ask(struct pmi *p, const char *request, const char *answer, const char *what)
{
    char got[64] = "";
    int r = say(p, request);
    if (r == 0)
        r = hear(p, what);
    if (r < 0)
        return r;
    char shown[96];
    if (!word(p->line, "cmd", got, sizeof got) || strcmp(got, answer) != 0)
        return sdk_error(p->err, -EPROTO, "PMI: %s was due for %s, this came: %s", answer, what,
                         mu_quote(shown, sizeof shown, mu_str_of(p->line, strlen(p->line))));
    if (word(p->line, "rc", got, sizeof got) && strcmp(got, "0") != 0)
        return sdk_error(p->err, -EPROTO, "PMI: mpiexec refuses %s: %s", what,
                         mu_quote(shown, sizeof shown, mu_str_of(p->line, strlen(p->line))));
    return 0;
}

/* --- the exchange --- */

static int put(struct pmi *p, const char *space, const char *key, const char *value)
{
    char request[LINE_BYTES];
    int n = snprintf(request, sizeof request, "cmd=put kvsname=%s key=%s value=%s\n", space, key,
                     value);
    if (n < 0 || (size_t)n >= sizeof request)
        return sdk_error(p->err, -ENAMETOOLONG, "PMI: a value of %zu bytes is too long",
                         strlen(value));
    return ask(p, request, "put_result", "put");
}

static int get(struct pmi *p, const char *space, const char *key, char *ret, size_t ret_bytes)
{
    char request[LINE_BYTES];
    (void)snprintf(request, sizeof request, "cmd=get kvsname=%s key=%s\n", space, key);
    int r = ask(p, request, "get_result", "get");
    if (r == 0 && !word(p->line, "value", ret, ret_bytes))
        r = sdk_error(p->err, -EPROTO, "PMI: rank 0 put no value, or one too long");
    return r;
}

int sdk_pmi_share(int fd,
                  const char *key,
                  const char *value,
                  int64_t deadline_ns,
                  char *ret,
                  size_t ret_bytes,
                  struct muster_error *err)
{
    struct pmi p = {.fd = fd, .deadline_ns = deadline_ns, .err = err};
    char space[NAME_BYTES];
    int r = ask(&p, "cmd=init pmi_version=1 pmi_subversion=1\n", "response_to_init", "init");
    if (r == 0)
        r = ask(&p, "cmd=get_my_kvsname\n", "my_kvsname", "the name of the key space");
    if (r == 0 && !word(p.line, "kvsname", space, sizeof space))
        r = sdk_error(err, -EPROTO, "PMI: mpiexec does not name its key space");
    if (r == 0 && value != NULL)
        r = put(&p, space, key, value);
    if (r == 0)
        r = ask(&p, "cmd=barrier_in\n", "barrier_out", "all other ranks");
    if (r == 0)
        r = get(&p, space, key, ret, ret_bytes);
    return r;
}

int sdk_pmi_goodbye(int fd, int64_t deadline_ns, struct muster_error *err)
{
    struct pmi p = {.fd = fd, .deadline_ns = deadline_ns, .err = err};
    return ask(&p, "cmd=finalize\n", "finalize_ack", "finalize");
}
