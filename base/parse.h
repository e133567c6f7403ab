/* Text becomes a number only through these: the whole text, in range, or a sentence that says what
 * would be right. */
#ifndef MUSTER_BASE_PARSE_H
#define MUSTER_BASE_PARSE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

/* Decimal, blanks around and one leading '+' allowed, nothing behind. Returns 0, -EINVAL (no
 * number) or -ERANGE. `what` names the thing in the sentence ("--port"). `*ret` is written on
 * success only. */
int mu_parse_i64(
    const char *text, int64_t min, int64_t max, const char *what, int64_t *ret, struct mu_err *err);
int mu_parse_u32(const char *text,
                 uint32_t min,
                 uint32_t max,
                 const char *what,
                 uint32_t *ret,
                 struct mu_err *err);

/* Seconds as a decimal with at most nine places ("0.25", "30"), given as nanoseconds. */
int mu_parse_seconds(const char *text,
                     int64_t min_ns,
                     int64_t max_ns,
                     const char *what,
                     int64_t *ret_ns,
                     struct mu_err *err);

/* The same with a unit, which must be there: "90s", "15m", "1.5h", "2d". */
int mu_parse_span(const char *text,
                  int64_t min_ns,
                  int64_t max_ns,
                  const char *what,
                  int64_t *ret_ns,
                  struct mu_err *err);
/* And back: "90s"; `apart`, for sentences: "90 s", "15 min". */
#define MU_SPAN_BYTES 32
const char *mu_span_text(int64_t ms, bool apart, char *buf);

/* The value of a hexadecimal digit; -1: it is none. */
int mu_hex_digit(char c);

/* Bytes: "4096", "64K", "8M", "1G" (powers of 1024). */
int mu_parse_bytes(const char *text,
                   uint64_t min,
                   uint64_t max,
                   const char *what,
                   uint64_t *ret,
                   struct mu_err *err);

/* Letters, digits, dots, dashes and underscores; and no number that a resolver would take for an
 * address of its own making: "1" is 0.0.0.1 to it. Four numbers are an address, and are taken. */
bool mu_is_host_name(const char *text);

/* HOST, HOST:PORT, [V6], [V6]:PORT, or a bare V6 address. Port 0..65535; `default_port` when absent
 * (-1: required). Source: parity with torchrun's endpoint grammar. `host` gets the text without
 * brackets. */
struct mu_endpoint {
    char host[256];
    uint16_t port;
    bool has_port;
};
int mu_parse_endpoint(const char *text,
                      int default_port,
                      const char *what,
                      struct mu_endpoint *ret,
                      struct mu_err *err);

#endif
