/* The line to the agent; see progress_line.h. State is the process's and not a handle's: the agent
 * knows processes. The socket stays open until the process ends, since its number would be free for
 * others otherwise while the environment still tells it. */
#include "worker-sdk/src/agent/progress_line.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/parse.h"
#include "base/str.h"

#define STOP "{\"type\":\"stop\"" /* How the agent writes it: the type first, no blanks. */
#define STOP_AFTER "{\"type\":\"stop_after\",\"step\":"

enum {
    SECTIONS_MAX = 8,
    PACKET_BYTES = 2048,
    FAIL_TEXT_BYTES = 500
};
#define PROGRESS_GAP_NS (100 * MU_NS_PER_MS)

static struct {
    pthread_mutex_t lock; /* Of all below. */
    bool looked;          /* For the socket, which comes first. */
    bool told_that_we_look;
    bool told_that_we_halt;
    bool has_step;
    bool step_waits; /* Not sent yet. */
    uint64_t step;
    int64_t sent_ns; /* Of the last step that was sent. */
    int32_t blamed;  /* The rank that was told last, plus one; 0: none. */
    uint32_t depth;  /* Open sections; those beyond SECTIONS_MAX are only counted. */
    struct line_section sections[SECTIONS_MAX];
    atomic_int fd; /* -1: none. Read without the lock where nothing is to be done without it. */
    atomic_bool stop;
    _Atomic int64_t stop_step; /* Stop when it is done; -1: none. */
} line = {.lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1, .stop_step = -1};

/* --- packets --- */

static void hang_up(void)
{
    int fd = atomic_exchange(&line.fd, -1);
    if (fd >= 0)
        (void)close(fd);
}

static void begin_packet(struct mu_buf *b, struct mu_json *j, const char *type)
{
    mu_buf_init(b, mu_mem_default());
    mu_json_init(j, b);
    mu_json_open(j, '{');
    mu_json_kstr(j, "type", type);
}

/* Never waits. What does not go out now is lost: the agent is slow, and newer news follows. */
static void send_packet(struct mu_buf *b, struct mu_json *j)
{
    int fd = atomic_load(&line.fd);
    mu_json_close(j, '}');
    if (fd >= 0 && !b->oom && b->n <= PACKET_BYTES &&
        send(fd, b->p, b->n, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno != EAGAIN &&
        errno != EINTR && errno != ENOBUFS && errno != ENOMEM)
        hang_up(); /* The agent is gone. */
    mu_buf_fini(b);
}

/* --- open --- */

/* A number in the environment proves nothing: the program's starter may have put a file of its own
 * there. */
static bool is_line(int fd)
{
    int domain = 0;
    int type = 0;
    socklen_t n = sizeof domain;
    socklen_t m = sizeof type;
    return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &n) == 0 && domain == AF_UNIX &&
           getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &m) == 0 && type == SOCK_SEQPACKET;
}

static void look(void)
{
    struct mu_buf b;
    struct mu_json j;
    uint32_t fd = 0;
    if (line.looked)
        return;
    const char *text = getenv("MUSTER_AGENT_FD");
    line.looked = true;
    if (text == NULL || mu_parse_u32(text, 3, INT32_MAX, "MUSTER_AGENT_FD", &fd, NULL) < 0 ||
        !is_line((int)fd) || fcntl((int)fd, F_SETFD, FD_CLOEXEC) < 0)
        return;
    atomic_store(&line.fd, (int)fd);
    begin_packet(&b, &j, "hello");
    mu_json_ki64(&j, "pid", getpid());
    send_packet(&b, &j);
}

static void take_lock(void)
{
    (void)pthread_mutex_lock(&line.lock);
    look();
}

int line_open(void)
{
    take_lock();
    (void)pthread_mutex_unlock(&line.lock);
    return atomic_load(&line.fd);
}

/* --- progress --- */

static void send_step(int64_t now_ns)
{
    struct mu_buf b;
    struct mu_json j;
    line.step_waits = false;
    line.sent_ns = now_ns;
    begin_packet(&b, &j, "progress");
    mu_json_ki64(&j, "step", line.step > INT64_MAX ? INT64_MAX : (int64_t)line.step);
    send_packet(&b, &j);
}

void line_progress(uint64_t step)
{
    take_lock();
    bool is_first = !line.has_step;
    line.has_step = true;
    line.step = step;
    if (atomic_load(&line.fd) >= 0) {
        int64_t now_ns = mu_now_ns();
        line.step_waits = true;
        if (is_first || now_ns - line.sent_ns >= PROGRESS_GAP_NS)
            send_step(now_ns);
    }
    (void)pthread_mutex_unlock(&line.lock);
}

void line_flush(void)
{
    (void)pthread_mutex_lock(&line.lock);
    if (line.step_waits)
        send_step(mu_now_ns());
    (void)pthread_mutex_unlock(&line.lock);
}

bool line_step(uint64_t *ret)
{
    take_lock();
    bool has = line.has_step;
    if (has)
        *ret = line.step;
    (void)pthread_mutex_unlock(&line.lock);
    return has;
}

/* --- sections --- */

static struct line_section *innermost(void)
{
    uint32_t n = line.depth < SECTIONS_MAX ? line.depth : SECTIONS_MAX;
    return n == 0 ? NULL : &line.sections[n - 1];
}

/* The innermost one as it is now; an empty name: none is open. */
static void send_section(void)
{
    const struct line_section *s = innermost();
    struct mu_buf b;
    struct mu_json j;
    if (atomic_load(&line.fd) < 0)
        return;
    begin_packet(&b, &j, "section");
    mu_json_kstr(&j, "name", s != NULL ? s->name : "");
    if (s != NULL && s->limit_ns >= 0)
        mu_json_ki64(&j, "limit_ms", s->limit_ns / MU_NS_PER_MS);
    send_packet(&b, &j);
}

void line_section_begin(const char *name, int64_t limit_ns)
{
    take_lock();
    if (line.depth++ < SECTIONS_MAX) {
        struct line_section *s = &line.sections[line.depth - 1];
        *s = (struct line_section){.limit_ns = limit_ns, .since_ns = mu_now_ns()};
        size_t n = strnlen(name, sizeof s->name - 1);
        memcpy(s->name, name, n);
        send_section();
    }
    (void)pthread_mutex_unlock(&line.lock);
}

void line_section_end(void)
{
    take_lock();
    if (line.depth > 0 && --line.depth < SECTIONS_MAX)
        send_section();
    (void)pthread_mutex_unlock(&line.lock);
}

bool line_section(struct line_section *ret)
{
    take_lock();
    const struct line_section *s = innermost();
    if (s != NULL)
        *ret = *s;
    (void)pthread_mutex_unlock(&line.lock);
    return s != NULL;
}

/* --- failing and stopping --- */

void line_request_stop(void)
{
    atomic_store(&line.stop, true); /* Lock-free wherever Linux runs. */
}

void line_fail(const char *text)
{
    struct mu_buf b;
    struct mu_json j;
    size_t n = 0;
    while (text[n] != '\0' && n < FAIL_TEXT_BYTES) { /* Cut between characters. */
        size_t len = mu_utf8_len(text + n, strnlen(text + n, 4));
        n += len == 0 ? 1 : len;
    }
    take_lock();
    begin_packet(&b, &j, "fail");
    mu_json_key(&j, "message");
    mu_json_strn(&j, mu_str_of(text, n));
    mu_json_ki64(&j, "at_ns", mu_now_ns());
    send_packet(&b, &j);
    (void)pthread_mutex_unlock(&line.lock);
}

void line_blame(int32_t rank)
{
    struct mu_buf b;
    struct mu_json j;
    take_lock();
    if (line.blamed != rank + 1) {
        line.blamed = rank + 1;
        begin_packet(&b, &j, "blame");
        if (rank >= 0)
            mu_json_ki64(&j, "rank", rank);
        send_packet(&b, &j);
    }
    (void)pthread_mutex_unlock(&line.lock);
}

static bool begins_with(const char *packet, ssize_t n, const char *text)
{
    return n >= (ssize_t)strlen(text) && memcmp(packet, text, strlen(text)) == 0;
}

/* The first step that is told stays: it is the same for all. */
static void hear_step(char *packet, ssize_t n)
{
    int64_t step = 0;
    char *digits = packet + sizeof STOP_AFTER - 1;
    packet[n] = '\0';
    digits[strspn(digits, "0123456789")] = '\0';
    if (atomic_load(&line.stop_step) < 0 &&
        mu_parse_i64(digits, 0, INT64_MAX, "stop_after", &step, NULL) == 0)
        atomic_store(&line.stop_step, step);
}

/* Under the lock. All packets that are there. */
static void hear(void)
{
    char packet[PACKET_BYTES + 1];
    int fd = 0;
    while ((fd = atomic_load(&line.fd)) >= 0) {
        ssize_t n = recv(fd, packet, PACKET_BYTES, MSG_DONTWAIT);
        if (begins_with(packet, n, STOP))
            atomic_store(&line.stop, true);
        else if (begins_with(packet, n, STOP_AFTER))
            hear_step(packet, n);
        else if (n < 0 && errno == EAGAIN)
            return;
        else if (n == 0 || (n < 0 && errno != EINTR))
            hang_up();
        /* What a newer agent may say is skipped. */
    }
}

bool line_stop_requested(void)
{
    if (atomic_load(&line.stop))
        return true;
    take_lock();
    hear();
    if (!line.told_that_we_look && atomic_load(&line.fd) >= 0) {
        struct mu_buf b;
        struct mu_json j;
        line.told_that_we_look = true;
        begin_packet(&b, &j, "looks");
        send_packet(&b, &j);
    }
    bool done = line.has_step && line_stops_after(line.step);
    uint64_t step = line.step;
    (void)pthread_mutex_unlock(&line.lock);
    if (done)
        line_halts(step);
    return atomic_load(&line.stop) || done;
}

bool line_stops_after(uint64_t step)
{
    int64_t last = atomic_load(&line.stop_step);
    return last >= 0 && step >= (uint64_t)last;
}

void line_halts(uint64_t step)
{
    struct mu_buf b;
    struct mu_json j;
    take_lock();
    if (!line.told_that_we_halt) {
        line.told_that_we_halt = true;
        begin_packet(&b, &j, "halts");
        mu_json_ki64(&j, "step", step > INT64_MAX ? INT64_MAX : (int64_t)step);
        send_packet(&b, &j);
    }
    (void)pthread_mutex_unlock(&line.lock);
}
