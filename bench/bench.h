/* What the programs of bench/ share: CPU and memory of another process, loopback sockets, whole
 * reads and writes, and ending with a sentence. Tools of measurement: they may exit on any error.
 */
#ifndef MUSTER_BENCH_H
#define MUSTER_BENCH_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/check.h"

/* Print "name: sentence" and exit with 2. */
_Noreturn void bench_fail(const char *fmt, ...) MU_PRINTF(1, 2);

/* CPU time that every thread of `pid` has used so far, from /proc/PID/task/N/schedstat: ns exact,
 * where utime and stime count ticks. 0 for pid 0. */
int64_t bench_cpu_ns(pid_t pid);

/* Resident bytes of `pid` that are in no file, from smaps_rollup: what a heap takes, whoever else
 * maps the same libraries. 0 for pid 0. */
int64_t bench_anonymous_bytes(pid_t pid);

/* A TCP socket, blocking, TCP_NODELAY, for bench_connect_to(). host: numeric. source: NULL, or the
 * numeric address to come from (then the port is chosen at connect, so that one address serves
 * 28,000 connections and several serve more). */
int bench_socket(const char *host, const char *source);
void bench_connect_to(int fd, const char *host, uint16_t port);
/* Both. */
int bench_connect(const char *host, uint16_t port, const char *source);

/* All n bytes, or the end of the program. */
void bench_write(int fd, const void *p, size_t n);
void bench_read(int fd, void *p, size_t n);

/* Raise the limit of open files to the hard one; fail with a sentence when that is below `wanted`.
 */
void bench_need_files(size_t wanted);

/* "--name VALUE" pairs: each option's default stands in `value` before. Fails on an unknown name.
 */
struct bench_option {
    const char *name;
    const char *value;
    const char *doc;
};
void bench_options(int argc, char **argv, struct bench_option *options, size_t count);
int64_t bench_number(const struct bench_option *option, int64_t min, int64_t max);

#endif
