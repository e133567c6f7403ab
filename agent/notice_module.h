/* Between node-agent and muster-notice.so, the module that knows libcurl: it is opened where
 * --preemption-url is given and not before. */
#ifndef MUSTER_AGENT_NOTICE_MODULE_H
#define MUSTER_AGENT_NOTICE_MODULE_H

#include <stddef.h>
#include <stdint.h>

#define NOTICE_ABI 1
#define NOTICE_SYMBOL "muster_notice_module"
#define NOTICE_BODY_BYTES (64 * 1024) /* Longer answers are none. */
#define NOTICE_HEADERS_MAX 2

struct notice_request {
    const char *method; /* "GET", "PUT" */
    const char *url;
    const char *headers[NOTICE_HEADERS_MAX]; /* "Name: value"; NULL: no more. */
};

struct notice_answer {
    long status;
    size_t body_bytes;
    char body[NOTICE_BODY_BYTES + 1]; /* With a NUL behind it. */
    char error[256];
};

struct notice_module {
    uint32_t abi;
    /* Blocks for some seconds at most; any thread, one at a time. Returns 0 whatever the status, or
     * -1 with a half sentence in `error`. */
    int (*fetch)(const struct notice_request *q, struct notice_answer *ret);
};

#endif
