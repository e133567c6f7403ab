/* What a cloud's metadata service says of this machine's coming end, as its documentation has it.
 * No I/O: an answer in, a notice out. */
#ifndef MUSTER_AGENT_NOTICE_READ_H
#define MUSTER_AGENT_NOTICE_READ_H

#include <stdbool.h>
#include <stdint.h>

#include "base/ctl.h"
#include "base/err.h"
#include "base/str.h"

#define PREEMPTION_URL_BYTES_MAX 256

/* AWS    /latest/meta-data/spot/instance-action: 404, or 200 and {"action": ..., "time": ...}
 * GCP    /computeMetadata/v1/instance/preempted: TRUE or FALSE
 * AZURE  /metadata/scheduledevents: {"Events": [{"EventType": "Preempt", "NotBefore": ...}]}
 * URL    any other: 404 or 204, or 200 whatever it holds */
enum notice_kind {
    NOTICE_URL,
    NOTICE_AWS,
    NOTICE_GCP,
    NOTICE_AZURE
};

struct notice {
    bool found;
    char reason[CTL_REASON_BYTES];
    int64_t left_ms; /* Until the machine goes; negative: it does not say. */
};

/* The word of --preemption-url. False: it is none and no URL. */
bool notice_kind_of(const char *text, enum notice_kind *ret);

/* own_name: this machine's, as Azure calls it; "": not known, then every event counts.
 * Returns 0, or -EPROTO with a sentence: it is no such service. */
int notice_read(enum notice_kind kind,
                long status,
                struct mu_str body,
                const char *own_name,
                int64_t now_unix_ms,
                struct notice *ret,
                struct mu_err *err);

#endif
