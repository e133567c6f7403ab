/* A worker's own words on its failure: TORCHELASTIC_ERROR_FILE, as torch's @record and others write
 * it. */
#ifndef MUSTER_AGENT_ERRFILE_H
#define MUSTER_AGENT_ERRFILE_H

#include "agent/workers/plan.h"

#define ERRFILE_BYTES_MAX 1048576L /* 1 MiB; a traceback takes a few KiB. */

/* Fills found, unix_s, message and text. A file that is broken, too long or says nothing is
 * described in message. */
void errfile_read(const char *path, struct plan_error *ret);
/* Copy it as it is. Returns 0 or a negative errno. */
int errfile_copy(const char *from, const char *to);

/* Beside and renamed, mode 0600: nobody reads half a file. Returns 0 or a negative errno. */
int errfile_write(const char *path, const char *text, size_t n);

#endif
