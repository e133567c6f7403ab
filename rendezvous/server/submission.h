/* What is submitted over HTTP: JSON in, checked to the last field, and the text that nodes get. */
#ifndef MUSTER_RENDEZVOUS_SERVER_SUBMISSION_H
#define MUSTER_RENDEZVOUS_SERVER_SUBMISSION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/ctl.h"
#include "base/err.h"
#include "base/str.h"

#define SUBMISSION_NAME_BYTES 65

struct submission {
    char id[MU_RUN_ID_BYTES];         /* "": one is to be made of the name. */
    char name[SUBMISSION_NAME_BYTES]; /* As given, else of the program. */
    uint32_t nodes_min;
    uint32_t nodes_max;
    uint32_t nproc;
    int32_t gpus; /* -1: not said. */
    bool no_requeue;
    struct mu_buf spec; /* One JSON object, without control characters. */
};

/* Returns 0, or -EINVAL or -ENOMEM with a sentence. submission_fini() in any case. */
int submission_read(struct mu_str body, struct submission *ret, struct mu_err *err);
void submission_fini(struct submission *s);

/* How much of a spec is for everybody: from its brace on, without the environment, which is its
 * last field, and the closing brace. A quote in a text has a backslash before it, so the mark is
 * found in no text. */
#define SUBMISSION_ENV ",\"env\":{"
size_t submission_public_bytes(const char *spec, size_t bytes);

/* {"signal":"SIGTERM","grace_s":30}, or nothing at all. */
int submission_read_stop(struct mu_str body,
                         int32_t *ret_signo,
                         int64_t *ret_grace_ms,
                         struct mu_err *err);

#endif
