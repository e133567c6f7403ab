/* What was found out about a node, or by one node about another, as JSON: a key has a number, a
 * text, a list, or {"unknown": "why"} where it could not be looked at. Reading them back; pure. */
#ifndef MUSTER_LAUNCHER_DOCTOR_FACTS_H
#define MUSTER_LAUNCHER_DOCTOR_FACTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "base/check.h"

#define DOC_TEXT_BYTES 320

/* What a judgement says of a fact. */
struct doc_said {
    char seen[DOC_TEXT_BYTES];
    char remedy[DOC_TEXT_BYTES]; /* "": the check's own. */
};

void doc_see(struct doc_said *s, const char *fmt, ...) MU_PRINTF(2, 3);
void doc_cure(struct doc_said *s, const char *fmt, ...) MU_PRINTF(2, 3);

/* The value of a key. False where it is not known: `seen` then says why. `s` may be NULL. */
bool doc_num(const cJSON *facts, const char *key, double *ret, struct doc_said *s);
/* Borrowed; lives as long as the facts. */
bool doc_text(const cJSON *facts, const char *key, const char **ret, struct doc_said *s);
bool doc_list(const cJSON *facts, const char *key, const cJSON **ret, struct doc_said *s);
/* For a list of addresses that is not there: it is known that the name has none, or that nobody
 * answers who would know; and `seen` says so. False: not known. */
bool doc_no_address(const cJSON *facts, const char *key, const char *name, struct doc_said *s);
/* True and known, else false. */
bool doc_is(const cJSON *facts, const char *key);

/* "64.0 MiB"; "no limit" for less than 0. Returns buf. */
#define DOC_BYTES_TEXT 32
const char *doc_bytes(double bytes, char *buf);
/* "1.2 Gbit/s" of bytes a second. Returns buf. */
const char *doc_rate(double bytes_per_s, char *buf);
/* "0.05 ms", "12 s" of milliseconds. Returns buf. */
const char *doc_ms(double ms, char *buf);

/* Of an address as text: 127.*, ::1. */
bool doc_is_loopback(const char *addr);
bool doc_is_v6(const char *addr);

#endif
