/* rdzv-server's command line: one table (options.c) gives the parser, --help and the shells'
 * completions. */
#ifndef MUSTER_RENDEZVOUS_SERVER_OPTIONS_H
#define MUSTER_RENDEZVOUS_SERVER_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/addr.h"
#include "base/err.h"
#include "base/log.h"
#include "base/option_text.h"

struct srv_options {
    const char *host;
    const char *port_file;
    const char *state_dir;  /* NULL: not given. */
    const char *token_file; /* NULL: not given. */
    uint32_t port;
    int64_t lease_ns;
    int64_t beat_ns;     /* -1: a third of the lease. */
    int64_t fence_ns;    /* -1: not given. */
    int64_t recovery_ns; /* -1: the lease. */
    int64_t first_bytes_ns;
    struct srv_quarantine {
        uint32_t failures; /* 0: off. */
        int64_t window_ns;
    } quarantine;
    uint32_t connections_max;
    uint64_t key_bytes_max;
    uint64_t value_bytes_max;
    uint64_t store_memory_max;
    uint64_t unread_max;
    enum mu_log_level log_level;
    enum mu_log_format log_format;
    bool read_needs_token;
    bool open_store;
    bool help;
    bool version;
};

/* Defaults, then the words. Returns 0, or -EINVAL with a sentence. */
int srv_options_parse(int argc, char **argv, struct srv_options *ret, struct mu_err *err);
/* What one value says about another, and what is left open: filled in. `host` gets the address
 * without brackets and has room for `cap`. Returns 0, or -EINVAL with a sentence. */
int srv_options_check(struct srv_options *o, char *host, size_t cap, struct mu_err *err);
void srv_options_help(void);
/* The i-th option; false: there are no more. */
bool srv_option_text(size_t i, struct mu_option_text *ret);

#endif
