/* --events: one JSON object a line. docs/trainer.md lists them. */
#ifndef TRAINER_EVENTS_H
#define TRAINER_EVENTS_H

#include <stdint.h>
#include <stdio.h>

#include <muster/muster.h>

/* Opens for appending, so that a restart goes on in the same file. "%r" in `name` becomes the rank;
 * a name without it is rank 0's, and *ret is NULL on the others, as with a `name` of NULL. */
int events_open(const char *name, uint32_t rank, FILE **ret, struct muster_error *err);
/* Write a line. The line's braces and "event" are put in by this; fields are `"key":value` pairs
 * with commas between. f may be NULL. */
void events_add(FILE *f, const char *event, const char *fields, ...)
    __attribute__((format(printf, 3, 4)));

#endif
