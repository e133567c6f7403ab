/* Memory that two ranks of a host share: a stream of bytes each way, without a system call.
 *
 * Nothing in /dev/shm and no name: one rank makes a memfd whose size is sealed, and passes it over
 * the Unix socket between the two, which stays open: it carries everything but data, wakes who
 * sleeps, and its end shows the end of the peer. Where memory cannot be had, the sockets carry the
 * data too.
 *
 * Each counter is written by one side alone, and bounds are computed from a side's own copy: what a
 * peer writes can spoil sums, as it could over a socket, and never an address. */
#ifndef MUSTER_SDK_TCP_SHM_H
#define MUSTER_SDK_TCP_SHM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Messages and chunks begin at multiples of it, so that elements are aligned and never torn. */
#define SHM_UNIT ((size_t)32)

/* Why a peer sleeps, so that it is woken for nothing else. */
enum shm_sleep {
    SHM_WANTS_DATA = 1, /* Woken by shm_publish(); */
    SHM_WANTS_ROOM = 2, /* by shm_release(), once half of the stream is free; */
    SHM_LAZY = 4        /* by nothing but somebody who would sleep for its sake: shm_nudge(). */
};

struct shm {
    struct shm_counters *at; /* NULL: none with this peer. */
    size_t map_bytes;        /* 0: somebody else unmaps. */
    unsigned side;           /* 0 or 1. */
    size_t cap;
    uint8_t *out;
    const uint8_t *in;
    uint64_t written, published; /* Bytes of the stream out, ever; */
    uint64_t seen_taken;         /* what the peer had taken of them when last looked at. */
    uint64_t taken, released;    /* The same of the stream in. */
    uint64_t seen_written;
    bool owes_room; /* Released, but the peer was not woken for so little. */
    bool broken;    /* The peer wrote a counter that cannot be. */
};

/* Bytes of a stream in a world of `size` ranks: a rank's streams out are 1 MiB together, or 32 KiB
 * each where that is more. A pair of ranks costs twice this and a page. */
size_t shm_stream_bytes(uint32_t size);

/* Make memory; `ret_fd` is for the peer, and the caller's. All pages are there at once, so that no
 * later access fails. Returns 0 or a negative errno. */
int shm_create(struct shm *s, size_t cap, unsigned side, int *ret_fd);
/* Take what a peer passed, if it is what shm_create() makes; fd is borrowed. */
int shm_adopt(struct shm *s, size_t cap, unsigned side, int fd);
/* Over bytes of the caller's, zeroed, at a multiple of 64: shm_bytes(cap) of them. */
void shm_init(struct shm *s, void *bytes, size_t cap, unsigned side);
void shm_fini(struct shm *s);
size_t shm_bytes(size_t cap);

/* Copies as much of n bytes as there is room for, in whole units unless it is all and `is_end`:
 * then the stream goes on at the next unit. The peer sees it from shm_publish() on. */
size_t shm_write(struct shm *s, const void *p, size_t n, bool is_end);
/* Returns true where the peer sleeps for it and is to be woken. */
bool shm_publish(struct shm *s);

/* What is there to read, up to where the stream turns; NULL: nothing. */
const void *shm_peek(struct shm *s, size_t *ret_n);
/* The first n bytes were read. `is_end`: go on at the next unit. */
void shm_take(struct shm *s, size_t n, bool is_end);
/* As shm_publish(). */
bool shm_release(struct shm *s);

/* From now on the peer wakes us for one of `why` (enum shm_sleep); look again before you sleep. */
void shm_sleep(struct shm *s, unsigned why);
void shm_wake_up(struct shm *s);
/* The caller is about to sleep. True: the peer is lazy, and to be woken if it is waited for, or it
 * sleeps for room that it was not told of. */
bool shm_nudge(struct shm *s, bool is_awaited);

#endif
