/* Streams in shared memory; see tcp_shm.h.
 *
 * All accesses to counters are sequentially consistent: who publishes stores a counter and then
 * reads `asleep`; who sleeps stores `asleep` and then reads the counter; so at least one of them
 * sees the other. */
#include "worker-sdk/src/comm/tcp_shm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

#define LINE_BYTES 64
#define BUDGET_BYTES ((size_t)1 << 20)
#define STREAM_MIN ((size_t)32 << 10) /* A small message and its head, with as much beside it. */
#define STREAM_MAX ((size_t)512 << 10)
#define SEALS (F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW)

/* By side; each in a cache line of its own. */
struct shm_counters {
    struct {
        _Alignas(LINE_BYTES) atomic_ullong written; /* Of this side's stream out. */
        _Alignas(LINE_BYTES) atomic_ullong taken;   /* By this side, of the other's. */
        _Alignas(LINE_BYTES) atomic_uint asleep;    /* This side; enum shm_sleep. */
    } of[2];
};
#define HEAD_BYTES 4096
_Static_assert(sizeof(struct shm_counters) <= HEAD_BYTES, "counters fit into a page");
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2 && ATOMIC_INT_LOCK_FREE == 2,
               "atomics between processes have no lock");

static size_t whole_units(size_t n)
{
    return n / SHM_UNIT * SHM_UNIT;
}

static uint64_t next_unit(uint64_t n)
{
    return (n + SHM_UNIT - 1) / SHM_UNIT * SHM_UNIT;
}

size_t shm_stream_bytes(uint32_t size)
{
    size_t cap = STREAM_MIN;
    while (cap < STREAM_MAX && 2 * cap * (size - 1) <= BUDGET_BYTES)
        cap *= 2;
    return cap;
}

size_t shm_bytes(size_t cap)
{
    return HEAD_BYTES + 2 * cap;
}

void shm_init(struct shm *s, void *bytes, size_t cap, unsigned side)
{
    uint8_t *streams = (uint8_t *)bytes + HEAD_BYTES;
    MU_ASSERT(side < 2 && cap % SHM_UNIT == 0);
    *s = (struct shm){.at = bytes,
                      .side = side,
                      .cap = cap,
                      .out = streams + side * cap,
                      .in = streams + (1 - side) * cap};
}

void shm_fini(struct shm *s)
{
    if (s->map_bytes > 0)
        (void)munmap(s->at, s->map_bytes);
    *s = (struct shm){0};
}

static int map(struct shm *s, size_t cap, unsigned side, int fd)
{
    void *p = mmap(NULL, shm_bytes(cap), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return -errno;
    shm_init(s, p, cap, side);
    s->map_bytes = shm_bytes(cap);
    return 0;
}

int shm_create(struct shm *s, size_t cap, unsigned side, int *ret_fd)
{
    unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    MU_CLEANUP(mu_closep) int fd = memfd_create("muster-comm", flags | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL) /* Before Linux 6.3. */
        fd = memfd_create("muster-comm", flags);
    if (fd < 0 || fallocate(fd, 0, 0, (off_t)shm_bytes(cap)) < 0 ||
        fcntl(fd, F_ADD_SEALS, SEALS) < 0)
        return -errno;
    int r = map(s, cap, side, fd);
    if (r == 0)
        *ret_fd = mu_steal_fd(&fd);
    return r;
}

int shm_adopt(struct shm *s, size_t cap, unsigned side, int fd)
{
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS); /* Of a memfd only. */
    if (seals < 0 || fstat(fd, &st) < 0)
        return -errno;
    if ((seals & SEALS) != SEALS || st.st_size != (off_t)shm_bytes(cap))
        return -EPROTO;
    return map(s, cap, side, fd);
}

/* --- out --- */

static size_t room_of(struct shm *s)
{
    uint64_t used = s->written - s->seen_taken;
    return s->broken || used > s->cap ? 0 : whole_units(s->cap - used);
}

size_t shm_write(struct shm *s, const void *p, size_t n, bool is_end)
{
    if (room_of(s) < n) {
        uint64_t taken = atomic_load(&s->at->of[1 - s->side].taken);
        if (taken - s->seen_taken > s->written - s->seen_taken)
            s->broken = true;
        else
            s->seen_taken = taken;
    }
    size_t room = room_of(s), m = n < room ? n : room;
    is_end = is_end && m == n;
    if (!is_end)
        m = whole_units(m);
    size_t at = s->written % s->cap, first = m < s->cap - at ? m : s->cap - at;
    memcpy(s->out + at, p, first);
    memcpy(s->out, (const uint8_t *)p + first, m - first);
    s->written = is_end ? next_unit(s->written + m) : s->written + m;
    return m;
}

/* Does the peer sleep for one of `why`? Only once true for each sleep. */
static bool is_asleep(struct shm *s, unsigned why)
{
    atomic_uint *asleep = &s->at->of[1 - s->side].asleep;
    return (atomic_load(asleep) & why) != 0 && (atomic_fetch_and(asleep, ~why) & why) != 0;
}

bool shm_publish(struct shm *s)
{
    if (s->published == s->written)
        return false;
    s->published = s->written;
    atomic_store(&s->at->of[s->side].written, s->written);
    return is_asleep(s, SHM_WANTS_DATA);
}

/* --- in --- */

const void *shm_peek(struct shm *s, size_t *ret_n)
{
    if (s->seen_written == s->taken && !s->broken) {
        uint64_t written = atomic_load(&s->at->of[1 - s->side].written);
        if (written - s->taken > s->cap || written % SHM_UNIT != 0)
            s->broken = true;
        else
            s->seen_written = written;
    }
    size_t at = s->taken % s->cap, n = (size_t)(s->seen_written - s->taken);
    if (s->broken || n == 0)
        return NULL;
    *ret_n = n < s->cap - at ? n : s->cap - at;
    return s->in + at;
}

void shm_take(struct shm *s, size_t n, bool is_end)
{
    MU_ASSERT(n <= s->seen_written - s->taken);
    s->taken = is_end ? next_unit(s->taken + n) : s->taken + n; /* seen_written is a whole unit. */
}

bool shm_release(struct shm *s)
{
    if (s->released == s->taken)
        return false;
    s->released = s->taken;
    atomic_store(&s->at->of[s->side].taken, s->taken);
    s->owes_room = s->seen_written - s->taken > s->cap / 2;
    return !s->owes_room && is_asleep(s, SHM_WANTS_ROOM);
}

/* --- sleep --- */

void shm_sleep(struct shm *s, unsigned why)
{
    (void)atomic_exchange(&s->at->of[s->side].asleep, why);
}

void shm_wake_up(struct shm *s)
{
    atomic_store(&s->at->of[s->side].asleep, 0);
}

bool shm_nudge(struct shm *s, bool is_awaited)
{
    unsigned why = is_awaited ? SHM_LAZY : 0;
    if (s->owes_room)
        why |= SHM_WANTS_ROOM;
    s->owes_room = false;
    return why != 0 && is_asleep(s, why);
}
