/* Text from another process, on its way to a terminal or a log: what a terminal would obey, and
 * what is no UTF-8, does not get there. Pure. */
#ifndef MUSTER_BASE_SHOWN_H
#define MUSTER_BASE_SHOWN_H

#include <stddef.h>

#include "base/str.h"

/* Bytes of the character at p that can be shown, of n that are there; 0: it is a control code (C0,
 * DEL, or C1, which is two bytes in UTF-8), or not whole. */
size_t mu_shown_len(const char *p, size_t n);

/* In place: a blank for each byte that cannot be shown. So no sentence has a second line. */
void mu_clean(char *text);

/* Append; \xNN for each byte that cannot be shown, but those in `kept` ("\n\t"). Returns 0 or
 * -ENOMEM. */
int mu_buf_add_shown(struct mu_buf *b, struct mu_str s, const char *kept);

#endif
