/* Numbers and times as people read them. Pure. */
#ifndef MUSTER_LAUNCHER_WORDS_H
#define MUSTER_LAUNCHER_WORDS_H

#include <stdint.h>

#include "base/str.h"

/* "0.3 s", "12 s", "3 min 5 s", "2 h 10 min", "4 d 3 h": two units at most. Negative counts as 0.
 */
void cli_add_duration(struct mu_buf *b, int64_t ms);

/* "1 node", "2 nodes", "0 nodes". */
void cli_add_count(struct mu_buf *b, int64_t n, const char *noun);

/* "2026-11-30T06:46:42.123Z", as the server writes times, into milliseconds since 1970. Returns 0,
 * or -EINVAL with *ret_ms untouched. */
int cli_time_parse(const char *text, int64_t *ret_ms);

/* Text of another machine, fit for a terminal: control characters (C0, DEL, C1) and bytes that are
 * no UTF-8 become '?'. */
void cli_add_plain(struct mu_buf *b, const char *text);

#endif
