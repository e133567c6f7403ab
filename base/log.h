/* One event, one line: a dotted event name and key=value pairs, on stderr. Cores do not log;
 * values, tokens and environment never are. Where stderr is the journal's, lines go there with
 * their fields; where that fails, they carry a priority prefix and no time. */
#ifndef MUSTER_BASE_LOG_H
#define MUSTER_BASE_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/check.h"

enum mu_log_level {
    MU_ERROR,
    MU_WARN,
    MU_INFO,
    MU_DEBUG
};
enum mu_log_format {
    MU_LOG_TEXT,
    MU_LOG_JSON
};

/* Set by main() before the loop runs. `program` is borrowed for ever. */
void mu_log_setup(const char *program, enum mu_log_level level, enum mu_log_format format);
/* Lines go to `put` instead of stderr, whole ones; NULL: to stderr again. */
typedef void mu_log_put_fn(void *arg, const char *p, size_t n);
void mu_log_divert(mu_log_put_fn *put, void *arg);
/* "error", "warning", "info", "debug", or Python's spellings of LOGLEVEL. Returns 0 or -EINVAL. */
int mu_log_level_parse(const char *text, enum mu_log_level *ret);
bool mu_log_on(enum mu_log_level level);

/* Write one line with one write(2). errno is kept. Values with blanks belong in quotes
 * (mu_quote()). */
void mu_log(enum mu_log_level level, const char *event, const char *fmt, ...) MU_PRINTF(3, 4);

/* For what a peer can trigger: at most `burst` lines a second from one place; the next allowed line
 * tells how many were left out. */
struct mu_log_limit {
    int64_t second;
    uint32_t used;
    uint32_t left_out;
};
/* True: log now. `*ret_left_out` is the number of lines not written since the last one that was. */
bool mu_log_allowed(struct mu_log_limit *l, int64_t now_ns, uint32_t burst, uint32_t *ret_left_out);

#endif
