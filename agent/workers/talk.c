/* A worker's socket; see talk.h. The worker is a stranger: what it sends is checked, and ends its
 * own socket at most. */
#include "agent/workers/talk.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cJSON.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/shown.h"

#define PACKET_BYTES 2048              /* The SDK's longest has some 1,200. */
#define INTEGER_MAX 9007199254740992.0 /* 2^53: what JSON's numbers hold exactly. */

static void cjsonp(cJSON **j)
{
    cJSON_Delete(*j);
}

/* --- one packet --- */

static bool take_integer(const cJSON *o, const char *key, int64_t *ret)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(o, key);
    if (!cJSON_IsNumber(item) || item->valuedouble < 0)
        return false;
    *ret = item->valuedouble >= INTEGER_MAX ? (int64_t)INTEGER_MAX : (int64_t)item->valuedouble;
    return true;
}

/* Whole characters only, and none that a terminal would obey. */
static void copy_text(char *dst, size_t cap, const char *src)
{
    size_t at = 0;
    size_t n = strlen(src);
    while (at < n) {
        size_t len = mu_shown_len(src + at, n - at);
        size_t step = len == 0 ? 1 : len;
        if (at + step >= cap)
            break;
        if (len == 0)
            dst[at] = ' ';
        else
            memcpy(dst + at, src + at, len);
        at += step;
    }
    dst[at] = '\0';
}

typedef bool take_fn(const cJSON *o, int64_t now_ns, struct talk_said *said);

static bool take_hello(const cJSON *o, int64_t now_ns, struct talk_said *said)
{
    (void)o;
    (void)now_ns;
    said->hello = true;
    return true;
}

static bool take_progress(const cJSON *o, int64_t now_ns, struct talk_said *said)
{
    if (!take_integer(o, "step", &said->step))
        return false;
    said->has_step = true;
    said->step_ns = now_ns;
    return true;
}

static bool take_section(const cJSON *o, int64_t now_ns, struct talk_said *said)
{
    const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(o, "name"));
    int64_t limit_ms = 0;
    if (name == NULL)
        return false;
    copy_text(said->section, sizeof said->section, name);
    said->section_since_ns = now_ns;
    said->section_limit_ns = -1;
    if (take_integer(o, "limit_ms", &limit_ms) && limit_ms < INT64_MAX / MU_NS_PER_MS)
        said->section_limit_ns = limit_ms * MU_NS_PER_MS;
    return true;
}

static bool take_blame(const cJSON *o, int64_t now_ns, struct talk_said *said)
{
    int64_t rank = 0;
    (void)now_ns;
    said->blame = -1; /* Without a rank it takes back what it said. */
    if (take_integer(o, "rank", &rank) && rank <= INT32_MAX)
        said->blame = (int32_t)rank;
    return true;
}

static bool take_fail(const cJSON *o, int64_t now_ns, struct talk_said *said)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(o, "message"));
    int64_t at_ns = 0;
    if (text == NULL)
        return false;
    if (said->failure[0] != '\0')
        return true;
    copy_text(said->failure, sizeof said->failure, text);
    bool told = take_integer(o, "at_ns", &at_ns) && at_ns > 0 && at_ns <= now_ns;
    said->failure_ns = told ? at_ns : now_ns;
    return true;
}

static bool take_looks(const cJSON *o, int64_t now_ns, struct talk_said *said)
{
    (void)o;
    (void)now_ns;
    said->looks = true;
    return true;
}

static bool take_halts(const cJSON *o, int64_t now_ns, struct talk_said *said)
{
    (void)o;
    (void)now_ns;
    said->halts = true;
    return true;
}

static const struct {
    const char *type;
    take_fn *take;
} kinds[TALK_UNKNOWN] = {
    [TALK_HELLO] = {"hello", take_hello},       [TALK_PROGRESS] = {"progress", take_progress},
    [TALK_SECTION] = {"section", take_section}, [TALK_BLAME] = {"blame", take_blame},
    [TALK_FAIL] = {"fail", take_fail},          [TALK_LOOKS] = {"looks", take_looks},
    [TALK_HALTS] = {"halts", take_halts}};

int talk_parse(struct mu_str packet, int64_t now_ns, struct talk_said *said, enum talk_news *ret)
{
    MU_CLEANUP(cjsonp) cJSON *o = cJSON_ParseWithLength(packet.p, packet.n);
    const char *type = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(o, "type"));
    if (type == NULL)
        return -EPROTO;
    for (int i = 0; i < TALK_UNKNOWN; i++) {
        if (strcmp(type, kinds[i].type) != 0)
            continue;
        *ret = (enum talk_news)i;
        return kinds[i].take(o, now_ns, said) ? 0 : -EPROTO;
    }
    *ret = TALK_UNKNOWN;
    return 0;
}

/* --- the socket --- */

int talk_open(struct talk *t)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    *t = (struct talk)TALK_NONE;
    t->fd = pair[0];
    t->worker_fd = pair[1];
    return 0;
}

void talk_close(struct talk *t)
{
    if (t->fd >= 0)
        (void)close(t->fd); /* Which takes it out of an epoll set as well. */
    if (t->worker_fd >= 0)
        (void)close(t->worker_fd);
    t->fd = t->worker_fd = -1;
}

int talk_read(struct talk *t, int64_t now_ns, enum talk_news *ret)
{
    char packet[PACKET_BYTES];
    if (t->fd < 0)
        return 0;
    struct iovec part = {packet, sizeof packet};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};
    ssize_t n = recvmsg(t->fd, &m, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (n > 0 && (m.msg_flags & MSG_TRUNC) == 0 &&
        talk_parse(mu_str_of(packet, (size_t)n), now_ns, &t->said, ret) == 0)
        return 1;
    talk_close(t);
    return -EPROTO;
}

void talk_ask_stop(struct talk *t)
{
    static const char text[] = "{\"type\":\"stop\"}";
    if (t->fd >= 0) /* A full socket has said it before, or is not read at all. */
        (void)send(t->fd, text, sizeof text - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void talk_ask_stop_after(struct talk *t, int64_t step)
{
    char text[64];
    int n = snprintf(text, sizeof text, "{\"type\":\"stop_after\",\"step\":%" PRId64 "}", step);
    if (t->fd >= 0)
        (void)send(t->fd, text, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL);
}
