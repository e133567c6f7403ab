/* rdzv-server's options: the table, what is parsed by it, and what it prints. */
#include "rendezvous/server/options.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "base/parse.h"
#include "base/str.h"
#include "base/words.h"

#define PROGRAM "rdzv-server"
#define S(n) ((n)*INT64_C(1000000000))

/* --- the table: what is parsed, and what --help prints --- */

enum kind {
    KIND_FLAG,
    KIND_TEXT,
    KIND_NUMBER,
    KIND_SECONDS,
    KIND_BYTES,
    KIND_QUARANTINE,
    KIND_READ,
    KIND_LEVEL,
    KIND_FORMAT
};

struct option {
    const char *name;
    const char *value; /* What --help calls it. */
    enum kind kind;
    size_t offset;
    int64_t min;
    int64_t max;
    const char *help;
};

#define AT(member) offsetof(struct srv_options, member)
/* clang-format off */
static const struct option table[] = {
    {"host", "ADDR", KIND_TEXT, AT(host), 0, 0, "numeric address to listen on; default: every address, IPv6 and IPv4"},
    {"port", "PORT", KIND_NUMBER, AT(port), 0, 65535, "port; 0: any free one; default 29500"},
    {"port-file", "PATH", KIND_TEXT, AT(port_file), 0, 0, "write the port to this file once it listens"},
    {"lease", "SECONDS", KIND_SECONDS, AT(lease_ns), S(1) / 10, S(86400), "silence after which a node can be taken for lost; default 3"},
    {"beat", "SECONDS", KIND_SECONDS, AT(beat_ns), S(1) / 100, S(86400), "how often agents say that they are there; default a third of the lease"},
    {"fence", "SECONDS", KIND_SECONDS, AT(fence_ns), S(1) / 100, S(86400), "silence allowed where the job could not go on without the node; not below the lease; default 600"},
    {"recovery", "SECONDS", KIND_SECONDS, AT(recovery_ns), 0, S(86400), "after a life that ended while a round ran: how long agents are heard before a first round; default the lease"},
    {"quarantine", "N/WINDOW", KIND_QUARANTINE, AT(quarantine), 0, 0, "failures that begin on one host, and on no other as many, within WINDOW (90s, 30m, 1h, 2d) set it aside where the job can do without; off: never; default 3/1h"},
    {"state-dir", "DIR", KIND_TEXT, AT(state_dir), 0, 0, "keep jobs in this folder, so that a server started anew goes on with them; \"\": keep nothing; default: only a mark of running rounds, in $RUNTIME_DIRECTORY, $XDG_RUNTIME_DIR/muster, or /run/muster"},
    {"token-file", "FILE", KIND_TEXT, AT(token_file), 0, 0, "who joins, stops, drains or changes something must have this file's token (muster token new makes one); default: systemd's credential muster-token, else none"},
    {"read", "WHO", KIND_READ, AT(read_needs_token), 0, 0, "who may read status over HTTP: anyone, or token: only who has it; default anyone"},
    {"open-store", NULL, KIND_FLAG, AT(open_store), 0, 0, "with a token: let the store's clients in from other machines all the same; their protocol knows no token"},
    {"first-bytes-timeout", "SECONDS", KIND_SECONDS, AT(first_bytes_ns), S(1) / 100, S(86400), "how long a connection may say nothing that makes sense; default 30"},
    {"max-connections", "N", KIND_NUMBER, AT(connections_max), 1, 1048576, "connections at once; newcomers beyond it are closed; default 65536"},
    {"max-key-bytes", "BYTES", KIND_BYTES, AT(key_bytes_max), 1, 1 << 30, "longest key of the store; default 8K"},
    {"max-value-bytes", "BYTES", KIND_BYTES, AT(value_bytes_max), 1, INT64_C(1) << 40, "largest value of the store; default 8M"},
    {"max-store-memory", "BYTES", KIND_BYTES, AT(store_memory_max), 1 << 16, INT64_C(1) << 50, "memory of the whole store; default 4G"},
    {"max-unread", "BYTES", KIND_BYTES, AT(unread_max), 1 << 12, INT64_C(1) << 40, "answers that a store client may leave unread before it is closed; default 64M"},
    {"log-level", "LEVEL", KIND_LEVEL, AT(log_level), 0, 0, "error, warning, info or debug; default info"},
    {"log-format", "FORMAT", KIND_FORMAT, AT(log_format), 0, 0, "text or json; default text"},
    {"version", NULL, KIND_FLAG, AT(version), 0, 0, "print the version and exit"},
    {"help", NULL, KIND_FLAG, AT(help), 0, 0, "print this text and exit"},
};
/* clang-format on */

void srv_options_help(void)
{
    (void)printf(
        "Usage: " PROGRAM " [--host ADDR] [--port PORT] [options]\n\n"
        "One TCP port for a job's rendezvous: PyTorch's TCPStore protocol for workers, muster's\n"
        "for node-agent, and its state as JSON (GET /status, /jobs/ID/incidents, "
        "/healthz).\n\nOptions:\n");
    for (size_t i = 0; i < MU_COUNT(table); i++) {
        char left[64];
        const struct option *o = &table[i];
        (void)snprintf(left, sizeof left, "--%s%s%s", o->name, o->value != NULL ? " " : "",
                       o->value != NULL ? o->value : "");
        (void)printf("  %-30s %s\n", left, o->help);
    }
    (void)printf("\nWithout a token, joining a rendezvous and using the store are open to whoever "
                 "reaches the\n"
                 "port, and changes over HTTP are taken from this machine alone.\n"
                 "SIGTERM and SIGINT end it with status 0; running workers go on.\n");
}

static int
parse_word(const struct option *o, const char *text, void *to, const char *what, struct mu_err *err)
{
    if (o->kind == KIND_LEVEL) {
        enum mu_log_level level = MU_INFO;
        if (mu_log_level_parse(text, &level) < 0)
            return mu_err_set(err, -EINVAL, "%s: '%.40s' is not error, warning, info or debug",
                              what, text);
        memcpy(to, &level, sizeof level);
        return 0;
    }
    if (o->kind == KIND_READ) {
        bool token = strcmp(text, "token") == 0;
        if (!token && strcmp(text, "anyone") != 0)
            return mu_err_set(err, -EINVAL, "%s: '%.40s' is not anyone or token", what, text);
        memcpy(to, &token, sizeof token);
        return 0;
    }
    enum mu_log_format format = MU_LOG_TEXT;
    if (strcmp(text, "json") == 0)
        format = MU_LOG_JSON;
    else if (strcmp(text, "text") != 0)
        return mu_err_set(err, -EINVAL, "%s: '%.40s' is not text or json", what, text);
    memcpy(to, &format, sizeof format);
    return 0;
}

/* "3/1h": a window is a number with its unit. */
static int
parse_quarantine(const char *text, struct srv_quarantine *ret, const char *what, struct mu_err *err)
{
    static const struct {
        char unit;
        int64_t seconds;
    } units[] = {{'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}};
    char head[12];
    char window[24];
    char shown[48];
    size_t n = strcspn(text, "/");
    size_t rest = text[n] == '/' ? strlen(text + n + 1) : 0;
    struct srv_quarantine q = {0};
    int64_t count = 0;
    *ret = q;
    if (strcmp(text, "off") == 0)
        return 0;
    if (n > 0 && n < sizeof head && rest > 1 && rest < sizeof window) {
        memcpy(head, text, n);
        head[n] = '\0';
        memcpy(window, text + n + 1, rest - 1);
        window[rest - 1] = '\0';
        char unit = text[n + rest];
        for (size_t i = 0; i < MU_COUNT(units); i++)
            if (units[i].unit == unit && mu_parse_i64(window, 1, 36500, what, &count, NULL) == 0)
                q.window_ns = S(count * units[i].seconds);
        if (q.window_ns > 0 &&
            mu_parse_u32(head, 1, MU_QUARANTINE_FAILURES_MAX, what, &q.failures, NULL) == 0) {
            *ret = q;
            return 0;
        }
    }
    return mu_err_set(err, -EINVAL,
                      "%s: %s is not N/WINDOW with N from 1 to %d (as in 3/1h, with s, m, h or d) "
                      "or off",
                      what, mu_quote(shown, sizeof shown, mu_str_of(text, strlen(text))),
                      MU_QUARANTINE_FAILURES_MAX);
}

static int
parse_value(const struct option *o, const char *text, struct srv_options *opts, struct mu_err *err)
{
    char what[40];
    char *to = (char *)opts + o->offset;
    uint32_t u32 = 0;
    uint64_t u64 = 0;
    int64_t i64 = 0;
    int r = 0;
    (void)snprintf(what, sizeof what, "--%s", o->name);
    switch (o->kind) {
    case KIND_FLAG: {
        bool on = true;
        memcpy(to, &on, sizeof on);
        return 0;
    }
    case KIND_TEXT:
        memcpy(to, &text, sizeof text);
        return 0;
    case KIND_NUMBER:
        r = mu_parse_u32(text, (uint32_t)o->min, (uint32_t)o->max, what, &u32, err);
        if (r == 0)
            memcpy(to, &u32, sizeof u32);
        return r;
    case KIND_SECONDS:
        r = mu_parse_seconds(text, o->min, o->max, what, &i64, err);
        if (r == 0)
            memcpy(to, &i64, sizeof i64);
        return r;
    case KIND_BYTES:
        r = mu_parse_bytes(text, (uint64_t)o->min, (uint64_t)o->max, what, &u64, err);
        if (r == 0)
            memcpy(to, &u64, sizeof u64);
        return r;
    case KIND_QUARANTINE:
        return parse_quarantine(text, &opts->quarantine, what, err);
    case KIND_READ:
    case KIND_LEVEL:
    case KIND_FORMAT:
        return parse_word(o, text, to, what, err);
    }
    return -EINVAL;
}

static const struct option *find_option(const char *name, size_t n)
{
    for (size_t i = 0; i < MU_COUNT(table); i++)
        if (strlen(table[i].name) == n && memcmp(table[i].name, name, n) == 0)
            return &table[i];
    return NULL;
}

static int unknown(const char *word, size_t n, const char *shown, struct mu_err *err)
{
    const char *names[MU_COUNT(table)];
    char name[64];
    for (size_t i = 0; i < MU_COUNT(table); i++)
        names[i] = table[i].name;
    (void)snprintf(name, sizeof name, "%.*s", (int)(n < sizeof name ? n : sizeof name - 1), word);
    const char *near = n < sizeof name ? mu_nearest(name, names, MU_COUNT(table)) : NULL;
    if (near == NULL)
        return mu_err_set(err, -EINVAL, "%s is not an option of " PROGRAM ": --help lists them",
                          shown);
    return mu_err_set(err, -EINVAL, "%s is not an option of " PROGRAM ": did you mean --%s?", shown,
                      near);
}

/* "--name value", "--name=value", "-h". */
static int parse_words(int argc, char **argv, struct srv_options *opts, struct mu_err *err)
{
    for (int i = 1; i < argc; i++) {
        char shown[64];
        const char *arg = strcmp(argv[i], "-h") == 0 ? "--help" : argv[i];
        (void)mu_quote(shown, sizeof shown, mu_str_of(arg, strlen(arg)));
        if (strncmp(arg, "--", 2) != 0)
            return mu_err_set(err, -EINVAL, "%s is not an option: every one begins with --", shown);
        size_t n = strcspn(arg + 2, "=");
        const struct option *o = find_option(arg + 2, n);
        bool has_value = arg[2 + n] == '=';
        if (o == NULL)
            return unknown(arg + 2, n, shown, err);
        if (o->kind == KIND_FLAG && has_value)
            return mu_err_set(err, -EINVAL, "--%s takes no value", o->name);
        if (o->kind != KIND_FLAG && !has_value && i + 1 == argc)
            return mu_err_set(err, -EINVAL, "--%s needs a value: --%s %s", o->name, o->name,
                              o->value);
        const char *value = has_value ? arg + 2 + n + 1 : o->kind != KIND_FLAG ? argv[++i] : "";
        int r = parse_value(o, value, opts, err);
        if (r < 0)
            return r;
    }
    return 0;
}

static struct srv_options default_options(void)
{
    return (struct srv_options){.host = "",
                                .port = 29500,
                                .lease_ns = MU_LEASE_NS,
                                .beat_ns = -1,
                                .fence_ns = -1,
                                .recovery_ns = -1,
                                .first_bytes_ns = MU_FIRST_BYTES_NS,
                                .quarantine = {MU_QUARANTINE_FAILURES, MU_QUARANTINE_WINDOW_NS},
                                .connections_max = MU_CONNECTIONS_MAX,
                                .key_bytes_max = MU_STORE_KEY_BYTES_MAX,
                                .value_bytes_max = MU_STORE_VALUE_BYTES_MAX,
                                .store_memory_max = MU_STORE_MEMORY_MAX,
                                .unread_max = MU_STORE_OUT_BYTES_MAX,
                                .log_level = MU_INFO};
}

int srv_options_parse(int argc, char **argv, struct srv_options *ret, struct mu_err *err)
{
    struct srv_options o = default_options();
    int r = parse_words(argc, argv, &o, err);
    if (r == 0)
        *ret = o;
    return r;
}

/* "[::1]" is how people write it; checked here so that the sentence names the option. */
static int check_host(const char *host, char *dst, size_t cap, struct mu_err *err)
{
    struct mu_addr a;
    size_t n = strlen(host);
    bool bracketed = n >= 2 && host[0] == '[' && host[n - 1] == ']';
    int len = snprintf(dst, cap, "%.*s", (int)(bracketed ? n - 2 : n), host + bracketed);
    bool fits = len >= 0 && (size_t)len < cap;
    if (fits && (dst[0] == '\0' || strcmp(dst, "*") == 0 || mu_addr_parse(dst, 0, &a) == 0))
        return 0;
    char shown[64];
    return mu_err_set(err, -EINVAL,
                      "--host: %s is not a numeric address (as in 10.0.0.1, ::1, or * for all)",
                      mu_quote(shown, sizeof shown, mu_str_of(host, n)));
}

static int check_times(struct srv_options *o, struct mu_err *err)
{
    if (o->beat_ns < 0)
        o->beat_ns = o->lease_ns / 3;
    if (o->recovery_ns < 0)
        o->recovery_ns = o->lease_ns;
    if (o->beat_ns >= o->lease_ns)
        return mu_err_set(
            err, -EINVAL,
            "--beat: %g s is not shorter than the lease of %g s: a third of it is right",
            (double)o->beat_ns / 1e9, (double)o->lease_ns / 1e9);
    if (o->fence_ns < 0)
        o->fence_ns = o->lease_ns > MU_FENCE_NS ? o->lease_ns : MU_FENCE_NS;
    if (o->fence_ns < o->lease_ns)
        return mu_err_set(
            err, -EINVAL,
            "--fence: %g s is shorter than the lease of %g s: a node can be taken for "
            "lost no sooner than that",
            (double)o->fence_ns / 1e9, (double)o->lease_ns / 1e9);
    return 0;
}

int srv_options_check(struct srv_options *o, char *host, size_t cap, struct mu_err *err)
{
    if (o->state_dir != NULL && strlen(o->state_dir) >= MU_DIR_BYTES)
        return mu_err_set(err, -ENAMETOOLONG, "--state-dir: longer than %d bytes",
                          MU_DIR_BYTES - 1);
    int r = check_host(o->host, host, cap, err);
    return r == 0 ? check_times(o, err) : r;
}

bool srv_option_text(size_t i, struct mu_option_text *ret)
{
    if (i >= MU_COUNT(table))
        return false;
    const struct option *o = &table[i];
    const char *words = o->kind == KIND_LEVEL    ? "error|warning|info|debug"
                        : o->kind == KIND_FORMAT ? "text|json"
                        : o->kind == KIND_READ   ? "anyone|token"
                                                 : o->value;
    *ret = (struct mu_option_text){.name = o->name, .value = words, .doc = o->help};
    return true;
}
