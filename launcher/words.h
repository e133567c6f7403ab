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

/* A time of UTC as a person writes it: "2026-11-30", "2026-11-30T06:46", "2026-11-30T06:46:42", or
 * as the server does; a Z may stand behind. As cli_time_parse(). */
int cli_moment_parse(const char *text, int64_t *ret_ms);

/* A line of a worker, fit for a terminal: escape sequences and control characters but the tab are
 * gone, and of what was written over itself (carriage returns) the last is left. */
void cli_add_clean_line(struct mu_buf *b, const char *text);

/* Text of another machine, fit for a terminal: control characters (C0, DEL, C1) and bytes that are
 * no UTF-8 become '?'. */
void cli_add_plain(struct mu_buf *b, const char *text);

#endif
