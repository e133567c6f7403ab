/* A store with a few clients, for its tests: requests and answers as one line each, fed whole, by
 * the byte, or in pieces of a seeded size, and always through store_client_space() as a shell does.
 *
 * A format has a letter for each field: c a byte, w a u32, q a 64-bit number, s a C string with its
 * length in front, b the same with pointer and size_t, r bytes as they are (pointer and size_t). */
#ifndef MUSTER_TESTS_STORE_RIG_H
#define MUSTER_TESTS_STORE_RIG_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/mem.h"
#include "rendezvous/store/store.h"

#define RIG_CLIENTS 300

enum rig_feeding {
    RIG_WHOLE,
    RIG_BYTES,
    RIG_RANDOM
};

struct rig {
    struct mu_mem_failing heap;
    struct store *store;
    struct store_client *client[RIG_CLIENTS];
    bool was_ready[RIG_CLIENTS]; /* Given out by store_take_ready() and not looked at since. */
    enum rig_feeding feeding;
    uint64_t random;
};

/* limits NULL: the defaults. */
struct rig *rig_new(const struct store_limits *limits, enum rig_feeding feeding, uint64_t seed);
void rig_free(struct rig *r); /* Everything, and checks that nothing leaked. */
uint64_t rig_random(struct rig *r);

/* A client in slot `who`: silent; after VALIDATE; of the legacy dialect. */
void rig_connect(struct rig *r, int who);
void rig_modern(struct rig *r, int who);
void rig_close(struct rig *r, int who);

void rig_format(struct mu_buf *b, const char *format, va_list ap);
void rig_put(struct mu_buf *b, const char *format, ...);
enum store_verdict rig_feed(struct rig *r, int who, const void *p, size_t n);
enum store_verdict rig_send(struct rig *r, int who, const char *format, ...);

/* The whole pending output of `who`, appended to b and marked as sent. */
void rig_take_output(struct rig *r, int who, struct mu_buf *b);
/* What follows fails the test with the line it stands in. */
void rig_expect_at(const char *file, int line, struct rig *r, int who, const char *format, ...);
void rig_silent_at(const char *file, int line, struct rig *r, int who);
void rig_ended_at(const char *file, int line, struct rig *r, int who, enum store_verdict v);

/* Exactly this is pending, nothing more, and the client was given out as ready. */
#define rig_expect(...) rig_expect_at(__FILE__, __LINE__, __VA_ARGS__)
#define rig_silent(r, who) rig_silent_at(__FILE__, __LINE__, r, who)
/* The client's connection must end, for that reason. */
#define rig_ended(r, who, v) rig_ended_at(__FILE__, __LINE__, r, who, v)

struct store_stats rig_stats(const struct rig *r);

#endif
