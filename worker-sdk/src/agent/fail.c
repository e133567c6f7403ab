/* Why a worker fails: its error file, in torch's schema, and a word to the agent. */
#include <muster/progress.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "worker-sdk/src/agent/progress_line.h"
#include "worker-sdk/src/core/sdk.h"

/* "message (in section 'load data' for 3.2 s, limit 2.0 s; after step 12)" */
static void add_where(struct mu_buf *b)
{
    struct line_section s;
    uint64_t step = 0;
    bool has_section = line_section(&s);
    bool has_step = line_step(&step);
    if (!has_section && !has_step)
        return;
    (void)mu_buf_adds(b, " (");
    if (has_section) {
        char span[MU_SPAN_BYTES];
        (void)mu_buf_addf(b, "in section '%s' for %s", s.name,
                          mu_span(mu_now_ns() - s.since_ns, span));
        if (s.limit_ns >= 0)
            (void)mu_buf_addf(b, ", limit %s", mu_span(s.limit_ns, span));
    }
    if (has_step)
        (void)mu_buf_addf(b, "%safter step %" PRIu64, has_section ? "; " : "", step);
    (void)mu_buf_adds(b, ")");
}

static void write_schema(struct mu_buf *b, const char *text)
{
    struct mu_json j;
    char seconds[24];
    (void)snprintf(seconds, sizeof seconds, "%" PRId64, mu_unix_ms() / 1000);
    mu_json_init(&j, b);
    mu_json_open(&j, '{');
    mu_json_key(&j, "message");
    mu_json_open(&j, '{');
    mu_json_kstr(&j, "message", text);
    mu_json_key(&j, "extraInfo");
    mu_json_open(&j, '{');
    mu_json_kstr(&j, "timestamp", seconds);
    mu_json_close(&j, '}');
    mu_json_close(&j, '}');
    mu_json_close(&j, '}');
}

static int write_whole(int fd, const struct mu_buf *b)
{
    size_t at = 0;
    while (at < b->n) {
        ssize_t put = write(fd, b->p + at, b->n - at);
        if (put < 0 && errno != EINTR)
            return -errno;
        at += put > 0 ? (size_t)put : 0;
    }
    return 0;
}

/* The first failure keeps its file. */
static int move_there(const char *aside, const char *path)
{
    if (renameat2(AT_FDCWD, aside, AT_FDCWD, path, RENAME_NOREPLACE) == 0)
        return 0;
    bool is_unknown = errno == EINVAL || errno == ENOSYS; /* To this file system or kernel. */
    if (is_unknown && rename(aside, path) == 0)
        return 0;
    int r = errno == EEXIST ? 0 : -errno;
    (void)unlink(aside);
    return r;
}

static int put_file(const char *path, const struct mu_buf *b)
{
    char aside[1100];
    if ((size_t)snprintf(aside, sizeof aside, "%s.%d.tmp", path, (int)getpid()) >= sizeof aside)
        return -ENAMETOOLONG;
    MU_CLEANUP(mu_closep) int fd = open(aside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    int r = write_whole(fd, b);
    if (r < 0) {
        (void)unlink(aside);
        return r;
    }
    return move_there(aside, path);
}

int muster_fail(muster *m, const char *message, struct muster_error *err)
{
    MU_CLEANUP(mu_buf_fini) struct mu_buf text;
    MU_CLEANUP(mu_buf_fini) struct mu_buf json;
    const char *path = getenv("TORCHELASTIC_ERROR_FILE");
    (void)m;
    mu_buf_init(&text, mu_mem_default());
    mu_buf_init(&json, mu_mem_default());
    (void)mu_buf_adds(&text, message);
    add_where(&text);
    line_fail(mu_buf_cstr(&text));
    if (path == NULL || path[0] == '\0')
        return 0;
    write_schema(&json, mu_buf_cstr(&text));
    int r = text.oom || json.oom ? -ENOMEM : put_file(path, &json);
    return r < 0 ? sdk_error(err, r, "write error file '%.120s': %s", path, strerror(-r)) : 0;
}
